/* client.c - the connection of libfeedd: connecting, sending, receiving, asking for status.
 *
 * Happy path: connect -> HELLO, WELCOME -> requests and answers; what the daemon says in between goes to the streams.
 * What can fail: the daemon is not there, of another version, goes away. The first cause is kept: every later call
 * answers it. Threads: one at a time (feedd.h). */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "error.h"
#include "internal.h"

#define CONNECT_TIMEOUT_MS 10000
#define SEND_TIMEOUT_MS    10000
#define REPORT_BYTES_MAX   (256ull << 20)

FEEDD_API const char *feedd_version(void)
{
    return FEEDD_VERSION;
}

FEEDD_API const char *feedd_status_name(int status)
{
    return error_status_name(status);
}

FEEDD_API uint32_t feedd_dtype_bytes(int dtype)
{
    return dtype_bytes(dtype);
}

FEEDD_API const char *feedd_dtype_name(int dtype)
{
    return dtype_name(dtype);
}

uint64_t client_clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

int client_check(const struct feedd_client *client, struct feedd_error *err)
{
    if (client->owner != getpid())
        return error_set(err, FEEDD_E_FORK,
                         "process %d uses a feedd connection that process %d made; connect again after fork()",
                         (int)getpid(), (int)client->owner);
    if (client->broken.status != 0)
        return error_set(err, client->broken.status, "%s", client->broken.message);
    return 0;
}

int client_left_ms(int timeout_ms, uint64_t began_ns)
{
    if (timeout_ms <= 0)
        return timeout_ms;
    uint64_t spent_ms = (client_clock_ns() - began_ns) / 1000000;
    return spent_ms < (uint64_t)timeout_ms ? timeout_ms - (int)spent_ms : 0;
}

/* Keeps the first cause, and wakes whoever polls. @return status */
static int break_connection(struct feedd_client *client, const struct feedd_error *cause, struct feedd_error *err)
{
    if (client->broken.status == 0)
        client->broken = *cause;
    if (client->broken_ns == 0)
        client->broken_ns = client_clock_ns();
    for (struct feedd_stream *stream = client->streams; stream != NULL; stream = stream->next)
        stream_signal(stream);
    return error_set(err, client->broken.status, "%s", client->broken.message);
}

int client_send(struct feedd_client *client, enum wire_type type, const ProtobufCMessage *message,
                struct feedd_error *err)
{
    size_t bytes = wire_pack(client->packet_out, sizeof(client->packet_out), type, message);
    if (bytes == 0)
        return error_set(err, FEEDD_E_ARGUMENT, "a request of more than %u bytes", WIRE_MAX_PACKET);
    int status;
    while ((status = wire_send(client->fd, client->packet_out, bytes, NULL, 0)) == FEEDD_E_TIMEOUT) {
        struct pollfd p = {client->fd, POLLOUT, 0};
        if (poll(&p, 1, SEND_TIMEOUT_MS) == 0)
            break;
    }
    if (status == 0)
        return 0;
    struct feedd_error cause;
    error_set(&cause, FEEDD_E_CONNECTION,
              status == FEEDD_E_TIMEOUT ? "feedd takes no packets any more" : "feedd has closed the connection");
    /* It may have said why before it closed. */
    while (client->broken.status == 0 && client_receive(client, 0, NULL) == 0)
        continue;
    return break_connection(client, &cause, err);
}

/* By its number on the connection; NULL: closed a moment ago. */
static struct feedd_stream *find_stream(const struct feedd_client *client, uint32_t number)
{
    struct feedd_stream *stream = client->streams;
    while (stream != NULL && (stream->number != number || number == 0))
        stream = stream->next;
    return stream;
}

/* The stream whose OPEN this request was; NULL: it was another request, or it is closed. */
static struct feedd_stream *find_opening(const struct feedd_client *client, uint32_t request)
{
    struct feedd_stream *stream = client->streams;
    while (stream != NULL && (stream->state != STREAM_OPENING || stream->request != request))
        stream = stream->next;
    return stream;
}

/* The packet is what a call waits for; its descriptors are the answer's from now on. */
static int take_answer(struct feedd_client *client, struct wire_packet *packet)
{
    client->answered = true;
    client->answer = *packet;
    packet->fd_count = 0;
    return 0;
}

/* An ERROR is about a request, a stream or, with neither, the connection. @return why the connection is broken, or 0 */
static int handle_error(struct feedd_client *client, struct wire_packet *packet, struct feedd_error *err)
{
    const Feedd__Error *message = wire_unpack(&client->arena, &feedd__error__descriptor, packet);
    if (message == NULL)
        return error_set(err, FEEDD_E_PROTOCOL, "feedd sent an error that can't be parsed");
    int status = message->status < 0 ? message->status : FEEDD_E_INTERNAL;
    if (message->has_request ? message->request > client->request : !message->has_stream)
        return error_set(err, status, "%s", message->message); /* about the connection, or what nobody asked */
    struct feedd_stream *stream =
        message->has_stream ? find_stream(client, message->stream) : find_opening(client, message->request);
    if (stream != NULL)
        return open_failed(stream, status, message->message, err);
    if (message->has_request && message->request == client->request)
        return take_answer(client, packet);
    return 0;
}

static int handle_stream(struct feedd_client *client, const struct wire_packet *packet, struct feedd_error *err)
{
    const Feedd__Stream *answer = wire_unpack(&client->arena, &feedd__stream__descriptor, packet);
    if (answer == NULL)
        return error_set(err, FEEDD_E_PROTOCOL, "feedd answered OPEN with something that can't be parsed");
    if (answer->request == 0 || answer->request > client->request)
        return error_set(err, FEEDD_E_PROTOCOL, "feedd sent a packet of type %u that nobody asked for", packet->type);
    struct feedd_stream *stream = find_opening(client, answer->request);
    if (stream != NULL)
        return open_answered(stream, answer, packet, err);
    Feedd__Close message = FEEDD__CLOSE__INIT; /* given up while it was being opened */
    message.stream = answer->stream;
    return client_send(client, WIRE_CLOSE, &message.base, err);
}

/* What may come at any time. @return 0, or why the connection is broken */
static int dispatch(struct feedd_client *client, struct wire_packet *packet, struct feedd_error *err)
{
    switch (packet->type) {
    case WIRE_READY: {
        const Feedd__Ready *ready = wire_unpack(&client->arena, &feedd__ready__descriptor, packet);
        if (ready == NULL)
            return error_set(err, FEEDD_E_PROTOCOL, "feedd sent a READY that can't be parsed");
        struct feedd_stream *stream = find_stream(client, ready->stream);
        return stream != NULL ? stream_ready(stream, ready, err) : 0; /* closed a moment ago */
    }
    case WIRE_END: {
        const Feedd__End *end = wire_unpack(&client->arena, &feedd__end__descriptor, packet);
        struct feedd_stream *stream = end != NULL ? find_stream(client, end->stream) : NULL;
        if (stream != NULL) {
            open_confirmed(stream);
            stream->ended = true;
            stream_signal(stream);
        }
        return end != NULL ? 0 : error_set(err, FEEDD_E_PROTOCOL, "feedd sent an END that can't be parsed");
    }
    case WIRE_ERROR:
        return handle_error(client, packet, err);
    case WIRE_MEMBERS: {
        const Feedd__Members *members = wire_unpack(&client->arena, &feedd__members__descriptor, packet);
        struct feedd_stream *stream = members != NULL ? find_stream(client, members->stream) : NULL;
        if (stream != NULL) {
            open_confirmed(stream);
            if (stream->schema.share == FEEDD_SHARE_BROADCAST) /* else it is a confirmation, and no news */
                stream->members = members->count;
        }
        return members != NULL ? 0 : error_set(err, FEEDD_E_PROTOCOL, "feedd sent a MEMBERS that can't be parsed");
    }
    case WIRE_STREAM:
        return handle_stream(client, packet, err);
    case WIRE_PROGRESS: {
        const Feedd__Progress *progress = wire_unpack(&client->arena, &feedd__progress__descriptor, packet);
        if (progress == NULL)
            return error_set(err, FEEDD_E_PROTOCOL, "feedd sent a PROGRESS that can't be parsed");
        if (progress->request == client->request)
            client->progress =
                (struct feedd_verify_progress){progress->done, progress->total, progress->bad, progress->bytes};
        return 0;
    }
    case WIRE_REPORT: {
        const Feedd__Report *report = wire_unpack(&client->arena, &feedd__report__descriptor, packet);
        if (report == NULL)
            return error_set(err, FEEDD_E_PROTOCOL, "feedd sent a REPORT that can't be parsed");
        return report->request == client->request ? take_answer(client, packet) : 0; /* else nobody waits any more */
    }
    case WIRE_WELCOME:
        return take_answer(client, packet);
    default:
        return error_set(err, FEEDD_E_PROTOCOL, "feedd sent a packet of unknown type %u", packet->type);
    }
}

int client_receive(struct feedd_client *client, int timeout_ms, struct feedd_error *err)
{
    struct feedd_error cause;
    struct wire_packet packet;
    uint64_t began_ns = timeout_ms > 0 ? client_clock_ns() : 0;
    int status;
    while ((status = wire_receive(client->fd, client->packet_in, sizeof(client->packet_in), WIRE_MAX_FDS, &packet,
                                  &cause)) == FEEDD_E_TIMEOUT) {
        int left_ms = client_left_ms(timeout_ms, began_ns);
        if (left_ms == 0)
            return FEEDD_E_TIMEOUT;
        struct pollfd p = {client->fd, POLLIN, 0};
        poll(&p, 1, left_ms); /* interrupted or in vain: the next round finds out */
    }
    if (status == FEEDD_E_CONNECTION)
        error_set(&cause, status, "feedd has gone: the connection is closed");
    if (status == 0) {
        status = dispatch(client, &packet, &cause);
        wire_packet_drop(&packet);
    }
    return status == 0 ? 0 : break_connection(client, &cause, err);
}

int client_wait(struct feedd_client *client, int timeout_ms, struct feedd_error *err)
{
    uint64_t began_ns = client_clock_ns();
    client->answered = false;
    while (!client->answered) {
        int status = client_receive(client, client_left_ms(timeout_ms, began_ns), err);
        if (status == FEEDD_E_TIMEOUT)
            return error_set(err, status, "feedd doesn't answer");
        if (status != 0)
            return status;
    }
    return 0;
}

/* Looks at the answer: its type has to be `type`. The caller takes the packet's descriptors.
 * @return 0 and *packet; an ERROR's status and message; FEEDD_E_PROTOCOL */
static int take(struct feedd_client *client, enum wire_type type, struct wire_packet *packet, struct feedd_error *err)
{
    if (client->answer.type == WIRE_ERROR) {
        const Feedd__Error *message = wire_unpack(&client->arena, &feedd__error__descriptor, &client->answer);
        wire_packet_drop(&client->answer);
        return error_set(err, message->status < 0 ? message->status : FEEDD_E_INTERNAL, "%s", message->message);
    }
    if (client->answer.type != type) {
        wire_packet_drop(&client->answer);
        return error_set(err, FEEDD_E_PROTOCOL, "feedd answered with a packet of type %u in place of %d",
                         client->answer.type, (int)type);
    }
    *packet = client->answer;
    return 0;
}

static int connect_socket(const char *path, int *out, struct feedd_error *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof(address.sun_path))
        return error_set(err, FEEDD_E_ARGUMENT, "socket path of %zu bytes: at most %zu are possible: %s", strlen(path),
                         sizeof(address.sun_path) - 1, path);
    strcpy(address.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return error_set(err, FEEDD_E_IO, "socket: %s", strerror(errno));
    uint64_t began_ns = client_clock_ns();
    while (connect(fd, (const struct sockaddr *)&address, sizeof(address)) != 0) {
        int reason = errno;
        bool busy = reason == EAGAIN || reason == EINTR; /* the daemon's backlog is full */
        if (busy && client_clock_ns() - began_ns < CONNECT_TIMEOUT_MS * (uint64_t)1000000) {
            nanosleep(&(struct timespec){0, 5000000}, NULL);
            continue;
        }
        close(fd);
        const char *hint = reason == ENOENT         ? "; is feedd running? start it, or set FEEDD_SOCKET"
                           : reason == ECONNREFUSED ? "; feedd has gone and left its socket behind: start it again"
                           : reason == EPROTOTYPE   ? "; this is not feedd's socket"
                                                    : "";
        return error_set(err, reason == EACCES ? FEEDD_E_ACCESS : FEEDD_E_CONNECTION, "can't connect to %s: %s%s", path,
                         strerror(reason), hint);
    }
    *out = fd;
    return 0;
}

/* HELLO and WELCOME on a new socket. */
static int greet(struct feedd_client *client, struct feedd_error *err)
{
    char name[64];
    snprintf(name, sizeof(name), "%s", program_invocation_short_name);
    Feedd__Hello hello = FEEDD__HELLO__INIT;
    hello.client_name = name;
    hello.library_version = (char *)(uintptr_t)FEEDD_VERSION;
    struct wire_packet packet;
    int status = client_send(client, WIRE_HELLO, &hello.base, err);
    if (status == 0)
        status = client_wait(client, CONNECT_TIMEOUT_MS, err);
    if (status == 0)
        status = take(client, WIRE_WELCOME, &packet, err);
    if (status == 0)
        wire_packet_drop(&packet);
    return status;
}

FEEDD_API int feedd_connect(const char *socket_path, struct feedd_client **out, struct feedd_error *err)
{
    if (socket_path == NULL)
        socket_path = secure_getenv("FEEDD_SOCKET");
    if (socket_path == NULL || socket_path[0] == '\0')
        socket_path = WIRE_SOCKET;
    int fd = -1;
    int status = connect_socket(socket_path, &fd, err);
    if (status != 0)
        return status;
    struct feedd_client *client = calloc(1, sizeof(*client));
    char *path = strdup(socket_path);
    if (client == NULL || path == NULL) {
        free(client);
        free(path);
        close(fd);
        return error_set(err, FEEDD_E_MEMORY, "no memory for a connection");
    }
    client->fd = fd;
    client->owner = getpid();
    client->socket_path = path;
    client->returning_end = &client->returning;
    pthread_mutex_init(&client->lock, NULL);
    pthread_cond_init(&client->returns, NULL);
    pthread_cond_init(&client->returned, NULL);
    wire_arena_init(&client->arena);
    status = greet(client, err);
    if (status != 0) {
        feedd_client_close(client);
        return status;
    }
    *out = client;
    return 0;
}

int client_reconnect(struct feedd_client *client, struct feedd_error *err)
{
    int fd = -1;
    int status = connect_socket(client->socket_path, &fd, err);
    if (status != 0)
        return status;
    pthread_mutex_lock(&client->lock);
    close(client->fd);
    client->fd = fd;
    client->generation++;
    pthread_mutex_unlock(&client->lock);
    struct feedd_error cause = client->broken;
    client->broken.status = 0;
    for (struct feedd_stream *stream = client->streams; stream != NULL; stream = stream->next) {
        stream->number = 0;
        stream->state = STREAM_LOST;
        if (!stream->options.reconnect)
            stream_failed(stream, cause.status, cause.message);
        stream_poll_socket(stream);
    }
    status = greet(client, &cause);
    if (status != 0)
        return break_connection(client, &cause, err);
    client->broken_ns = 0;
    return 0;
}

FEEDD_API void feedd_client_close(struct feedd_client *client)
{
    if (client == NULL)
        return;
    for (struct feedd_stream *stream = client->streams, *next; stream != NULL; stream = next) {
        next = stream->next;
        feedd_stream_close(stream);
    }
    if (client->owner != getpid()) { /* a forked child has no such thread, and a lock that may be held for ever */
        client_free(client);
    } else if (!releaser_abandon(client)) {
        releaser_stop(client);
        client_free(client);
    }
}

void client_free(struct feedd_client *client)
{
    bool ours = client->owner == getpid();
    if (ours) {
        stream_reap(client);
        pthread_mutex_destroy(&client->lock);
        pthread_cond_destroy(&client->returns);
        pthread_cond_destroy(&client->returned);
    }
    close(client->fd);
    free(client->socket_path);
    if (client->streams == NULL) /* in a forked child tensors may be left that point to them */
        free(client);
}

/* The text of a sealed memfd that came with a report. */
static char *read_report(int fd, uint64_t bytes)
{
    struct stat st;
    if (bytes > REPORT_BYTES_MAX || fstat(fd, &st) != 0 || (uint64_t)st.st_size < bytes)
        return NULL;
    char *text = malloc(bytes + 1);
    size_t done = 0;
    while (text != NULL && done < bytes) {
        ssize_t got = pread(fd, text + done, bytes - done, (off_t)done);
        if (got <= 0) {
            free(text);
            return NULL;
        }
        done += (size_t)got;
    }
    if (text != NULL)
        text[bytes] = '\0';
    return text;
}

int client_take_report(struct feedd_client *client, char **out, struct feedd_error *err)
{
    struct wire_packet packet;
    int status = take(client, WIRE_REPORT, &packet, err);
    if (status != 0)
        return status;
    const Feedd__Report *report = wire_unpack(&client->arena, &feedd__report__descriptor, &packet);
    char *text = report != NULL && packet.fd_count == 1 ? read_report(packet.fds[0], report->bytes) : NULL;
    wire_packet_drop(&packet);
    if (text == NULL)
        return error_set(err, FEEDD_E_PROTOCOL, "feedd sent a report that can't be read");
    *out = text;
    return 0;
}

static int ask_report(struct feedd_client *client, Feedd__Status *request, char **out, struct feedd_error *err)
{
    int status = client_check(client, err);
    if (status != 0)
        return status;
    request->request = ++client->request;
    status = client_send(client, WIRE_STATUS, &request->base, err);
    if (status == 0)
        status = client_wait(client, CONNECT_TIMEOUT_MS, err);
    return status == 0 ? client_take_report(client, out, err) : status;
}

FEEDD_API int feedd_status_json(struct feedd_client *client, char **out, struct feedd_error *err)
{
    Feedd__Status request = FEEDD__STATUS__INIT;
    return ask_report(client, &request, out, err);
}

FEEDD_API int feedd_errors_json(struct feedd_client *client, char **out, struct feedd_error *err)
{
    Feedd__Status request = FEEDD__STATUS__INIT;
    request.has_errors = request.errors = true;
    return ask_report(client, &request, out, err);
}

FEEDD_API int feedd_sample_path(struct feedd_stream *stream, uint64_t index, char **out, struct feedd_error *err)
{
    Feedd__Status request = FEEDD__STATUS__INIT;
    int status = client_check(stream->client, err);
    if (status == 0 && stream->state != STREAM_OPEN)
        status = error_set(err, FEEDD_E_CONNECTION, "the stream isn't open now: feedd_next() opens it again");
    if (status != 0)
        return status;
    request.has_stream = request.has_index = true;
    request.stream = stream->number;
    request.index = index;
    return ask_report(stream->client, &request, out, err);
}
