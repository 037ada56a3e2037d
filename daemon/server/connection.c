/* connection.c - see connection.h.
 *
 * Happy path: accept -> who is it (SO_PEERCRED, pidfd) -> HELLO -> packets to control.c, packets back -> gone.
 * What can fail: everything that a client does. It is told in one line, logged in one line, and closed; nothing of it
 * stays behind and nobody else notices. */
#include "connection.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "clock.h"
#include "control.h"
#include "ensure.h"
#include "error.h"
#include "log.h"
#include "server.h"

#ifndef SO_PEERGROUPS
#define SO_PEERGROUPS 59 /* Linux 4.13 */
#endif
#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 /* Linux 6.5 */
#endif

const struct sm_state connection_states[] = {
    [CONNECTION_GREETING] = {"greeting", SM(CONNECTION_SERVING) | SM(CONNECTION_CLOSING)},
    [CONNECTION_SERVING] = {"serving", SM(CONNECTION_CLOSING)},
    [CONNECTION_CLOSING] = {"closing", 0},
};

struct queued_packet {
    struct queued_packet *next;
    size_t bytes;
    uint32_t fd_count;
    int fds[WIRE_MAX_FDS]; /* our own copies */
    uint8_t packet[];
};

static void on_socket(uv_poll_t *poll, int status, int events);

static void queue_drop_first(struct connection *connection)
{
    struct queued_packet *packet = connection->first;
    connection->first = packet->next;
    if (connection->first == NULL)
        connection->last = NULL;
    connection->queued--;
    while (packet->fd_count > 0)
        close(packet->fds[--packet->fd_count]);
    free(packet);
}

static void on_handle_closed(uv_handle_t *handle)
{
    struct connection *connection = handle->data;
    if (--connection->open_handles > 0)
        return;
    close(connection->fd);
    if (connection->pidfd >= 0)
        close(connection->pidfd);
    free(connection->groups);
    free(connection);
}

void connection_close(struct connection *connection, const struct feedd_error *err)
{
    if (connection->state == CONNECTION_CLOSING)
        return;
    struct server *server = connection->server;
    if (err != NULL) {
        log_warning("client %s[%d] uid %u: closed: %s", connection->name, (int)connection->pid,
                    (unsigned)connection->uid, err->message);
        server->stats.refused++;
        if (connection->queued == 0) /* the last word; if it can't be sent at once, it isn't */
            connection_send_error(connection, 0, 0, err);
    }
    sm_move(connection_states, &connection->state, CONNECTION_CLOSING);
    control_connection_closed(connection);
    while (connection->first != NULL)
        queue_drop_first(connection);
    list_remove(&connection->node);
    list_remove(&connection->unflushed_node);
    server->connection_count--;
    shutdown(connection->fd, SHUT_RDWR); /* also for a child that holds a copy */
    uv_close((uv_handle_t *)&connection->poll, on_handle_closed);
    if (connection->pidfd >= 0)
        uv_close((uv_handle_t *)&connection->process, on_handle_closed);
}

static void update_events(struct connection *connection)
{
    int events = UV_READABLE | (connection->queued > 0 ? UV_WRITABLE : 0);
    uv_poll_start(&connection->poll, events, on_socket);
}

static int queue_packet(struct connection *connection, const uint8_t *bytes, size_t size, const int *fds,
                        uint32_t fd_count)
{
    struct queued_packet *packet = malloc(sizeof(*packet) + size);
    if (packet == NULL)
        return FEEDD_E_MEMORY;
    packet->next = NULL;
    packet->bytes = size;
    packet->fd_count = 0;
    memcpy(packet->packet, bytes, size);
    for (uint32_t i = 0; i < fd_count; i++) {
        int fd = fcntl(fds[i], F_DUPFD_CLOEXEC, 0);
        if (fd < 0) {
            while (packet->fd_count > 0)
                close(packet->fds[--packet->fd_count]);
            free(packet);
            return FEEDD_E_IO;
        }
        packet->fds[packet->fd_count++] = fd;
    }
    if (connection->last == NULL)
        connection->first = packet;
    else
        connection->last->next = packet;
    connection->last = packet;
    connection->queued++;
    if (connection->queued == 1)
        update_events(connection);
    return 0;
}

void connection_send(struct connection *connection, enum wire_type type, const ProtobufCMessage *message,
                     const int *fds, uint32_t fd_count)
{
    if (connection->state == CONNECTION_CLOSING || connection->failure.status != 0)
        return;
    uint8_t *buffer = connection->server->packet_out;
    size_t bytes = wire_pack(buffer, WIRE_MAX_PACKET, type, message);
    ENSURE(bytes > 0); /* our own messages are small: names and counts are limited */
    int status = connection->queued > 0 ? FEEDD_E_TIMEOUT : wire_send(connection->fd, buffer, bytes, fds, fd_count);
    struct feedd_error *failure = &connection->failure;
    if (status == FEEDD_E_TIMEOUT && connection->queued >= CONNECTION_QUEUE_MAX)
        error_set(failure, FEEDD_E_LIMIT, "it doesn't read: %u packets wait for it", connection->queued);
    else if (status == FEEDD_E_TIMEOUT && queue_packet(connection, buffer, bytes, fds, fd_count) != 0)
        error_set(failure, FEEDD_E_MEMORY, "no memory or descriptors for a packet to it");
    else if (status != FEEDD_E_TIMEOUT)
        failure->status = status; /* 0, or it has gone */
    if (failure->status != 0)
        connection_mark_unflushed(connection);
}

void connection_mark_unflushed(struct connection *connection)
{
    if (list_empty(&connection->unflushed_node))
        list_append(&connection->server->unflushed, &connection->unflushed_node);
}

void connection_flush(struct connection *connection)
{
    list_remove(&connection->unflushed_node);
    if (connection->failure.status == 0)
        control_flush(connection);
    if (connection->failure.status != 0)
        connection_close(connection, connection->failure.status == FEEDD_E_CONNECTION ? NULL : &connection->failure);
}

void connection_send_error(struct connection *connection, uint32_t request, uint32_t stream,
                           const struct feedd_error *err)
{
    Feedd__Error message = FEEDD__ERROR__INIT;
    message.has_request = request != 0;
    message.request = request;
    message.has_stream = stream != 0;
    message.stream = stream;
    message.status = err->status;
    message.message = (char *)(uintptr_t)err->message;
    connection_send(connection, WIRE_ERROR, &message.base, NULL, 0);
}

static void read_packets(struct connection *connection)
{
    struct server *server = connection->server;
    /* 16 at a time: then others have their turn */
    for (int i = 0; i < 16 && connection->state != CONNECTION_CLOSING && connection->failure.status == 0; i++) {
        struct wire_packet packet;
        struct feedd_error err;
        size_t max_bytes = connection->state == CONNECTION_GREETING ? WIRE_MAX_HELLO : WIRE_MAX_PACKET;
        int status = wire_receive(connection->fd, server->packet_in, max_bytes, 0, &packet, &err);
        if (status == FEEDD_E_TIMEOUT)
            return;
        if (status == 0)
            status = control_packet(connection, &packet, &err);
        if (status != 0)
            connection_close(connection, status == FEEDD_E_CONNECTION ? NULL : &err);
    }
}

static void write_packets(struct connection *connection)
{
    while (connection->first != NULL) {
        struct queued_packet *packet = connection->first;
        int status = wire_send(connection->fd, packet->packet, packet->bytes, packet->fds, packet->fd_count);
        if (status == FEEDD_E_TIMEOUT)
            return;
        if (status != 0) {
            connection_close(connection, NULL);
            return;
        }
        queue_drop_first(connection);
    }
    update_events(connection);
    connection_mark_unflushed(connection); /* there may be more to tell */
}

static void on_socket(uv_poll_t *poll, int status, int events)
{
    struct connection *connection = poll->data;
    if (status < 0) {
        connection_close(connection, NULL);
        return;
    }
    if (events & UV_WRITABLE)
        write_packets(connection);
    if (events & UV_READABLE && connection->state != CONNECTION_CLOSING)
        read_packets(connection);
}

static void on_process_gone(uv_poll_t *process, int status, int events)
{
    struct connection *connection = process->data;
    (void)status, (void)events;
    log_info("client %s[%d]: its process has gone", connection->name, (int)connection->pid);
    connection_close(connection, NULL);
}

/* The groups of the process at the other end: its own first. NULL and 0 when memory has run out: it is in none. */
static gid_t *peer_groups(int fd, gid_t own, uint32_t *count)
{
    socklen_t size = 0;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, NULL, &size) != 0 && errno != ERANGE)
        size = 0;
    gid_t *groups = malloc(sizeof(gid_t) + size);
    *count = groups != NULL ? 1 : 0;
    if (groups == NULL)
        return NULL;
    groups[0] = own;
    if (size > 0 && getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups + 1, &size) == 0)
        *count += size / (socklen_t)sizeof(gid_t);
    return groups;
}

/* Credentials and a descriptor of the process at the other end; -1 where it is not visible from here. */
static void identify(struct connection *connection)
{
    struct ucred credentials = {0, (uid_t)-1, (gid_t)-1};
    socklen_t size = sizeof(credentials);
    getsockopt(connection->fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size);
    connection->pid = credentials.pid;
    connection->uid = credentials.uid;
    connection->groups = peer_groups(connection->fd, credentials.gid, &connection->group_count);
    connection->pidfd = -1;
    size = sizeof(connection->pidfd);
    if (getsockopt(connection->fd, SOL_SOCKET, SO_PEERPIDFD, &connection->pidfd, &size) != 0)
        connection->pidfd = connection->pid > 0 ? (int)syscall(SYS_pidfd_open, connection->pid, 0) : -1;
}

void connection_new(struct server *server, int fd)
{
    struct connection *connection = calloc(1, sizeof(*connection));
    if (connection == NULL) {
        log_error("no memory for a client");
        close(fd);
        return;
    }
    connection->server = server;
    connection->fd = fd;
    connection->number = ++server->connection_number;
    connection->state = CONNECTION_GREETING;
    connection->connected_ns = clock_ns();
    strcpy(connection->name, "?");
    list_init(&connection->streams);
    list_init(&connection->unflushed_node);
    identify(connection);
    connection->poll.data = connection->process.data = connection;
    if (uv_poll_init(&server->loop, &connection->poll, fd) != 0) {
        log_error("a client's socket can't be watched");
        close(fd);
        if (connection->pidfd >= 0)
            close(connection->pidfd);
        free(connection->groups);
        free(connection);
        return;
    }
    connection->open_handles = 1;
    if (connection->pidfd >= 0 && uv_poll_init(&server->loop, &connection->process, connection->pidfd) != 0) {
        close(connection->pidfd);
        connection->pidfd = -1;
    }
    if (connection->pidfd >= 0) {
        connection->open_handles = 2;
        uv_poll_start(&connection->process, UV_READABLE, on_process_gone);
    }
    list_append(&server->connections, &connection->node);
    server->connection_count++;
    server->stats.connections++;
    update_events(connection);
    struct feedd_error err;
    if ((server->private && connection->uid != geteuid()) ||
        !access_allows(&server->config->allow, connection->uid, connection->groups, connection->group_count)) {
        error_set(&err, FEEDD_E_ACCESS, "this feedd is not for user %u: %s", (unsigned)connection->uid,
                  server->private ? "it is private to the one that started it; start your own by feedd --private"
                                  : "`allow` under `daemon` says whose it is");
        connection_close(connection, &err);
    } else if (server->connection_count > server->config->clients_max) {
        error_set(&err, FEEDD_E_LIMIT, "feedd serves %u clients already, as many as clients_max allows",
                  server->config->clients_max);
        connection_close(connection, &err);
    }
}

void connection_tick(struct connection *connection, uint64_t now_ns)
{
    if (connection->state == CONNECTION_GREETING &&
        now_ns - connection->connected_ns > SERVER_HELLO_MS * (uint64_t)1000000) {
        struct feedd_error err;
        error_set(&err, FEEDD_E_TIMEOUT, "no HELLO within %u s", SERVER_HELLO_MS / 1000);
        connection_close(connection, &err);
    }
}
