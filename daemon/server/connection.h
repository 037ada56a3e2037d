/* connection.h - one client: its socket, its process, what is queued for it.
 *
 * A client is gone when its process is (pidfd), also while a forked child of it still holds the socket, or when the
 * socket is closed. Then everything that it had ends at once. Whoever breaks the protocol is told so and closed.
 * Threads: loop only. */
#ifndef FEEDD_CONNECTION_H
#define FEEDD_CONNECTION_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

#include "list.h"
#include "state.h"
#include "wire.h"

struct server;
struct verification;

#define CONNECTION_QUEUE_MAX 64u /* packets that wait for a client that doesn't read; one more disconnects it */

/* greeting -> serving -> closing; greeting -> closing. */
enum connection_state {
    CONNECTION_GREETING, /* no HELLO yet */
    CONNECTION_SERVING,
    CONNECTION_CLOSING /* gone for everybody else; handles are being closed */
};
extern const struct sm_state connection_states[];

struct queued_packet;

struct connection {
    struct list node;           /* in server->connections */
    struct list unflushed_node; /* in server->unflushed, or by itself */
    struct server *server;
    uint64_t number;
    int state;     /* enum connection_state */
    int fd, pidfd; /* pidfd -1: the process is not visible from here */
    pid_t pid;     /* 0: not visible */
    uid_t uid;
    gid_t *groups; /* of the process when it connected, its own and the supplementary ones */
    uint32_t group_count;
    char name[64]; /* as it calls itself */
    uint64_t connected_ns;
    uv_poll_t poll, process;
    int open_handles;
    struct queued_packet *first, *last; /* waiting until the socket takes more */
    uint32_t queued;
    struct feedd_error failure; /* status != 0: sending failed; it is closed at the end of this round of the loop */
    struct list streams;        /* struct attachment, control.h */
    uint32_t stream_count;
    uint32_t stream_number;            /* the last one given */
    struct verification *verification; /* under way, verification.h; NULL: none */
};

/* Serves an accepted socket; takes it over. A client over the limit is told and closed. */
void connection_new(struct server *server, int fd);

/* Sends a message, or queues it; `fds` stay the caller's. Where that fails (the client has gone, or its queue is full)
 * the connection is closed at the end of this round of the loop, and not from within: who sends may be walking lists.
 */
void connection_send(struct connection *connection, enum wire_type type, const ProtobufCMessage *message,
                     const int *fds, uint32_t fd_count);

/* Sends an ERROR. request, stream: which one it is about; 0 and 0: the connection, which the caller then closes */
void connection_send_error(struct connection *connection, uint32_t request, uint32_t stream,
                           const struct feedd_error *err);

/* The connection is being closed as of now: all its streams end. `err`, when not NULL, is logged and told. From event
 * handlers alone. */
void connection_close(struct connection *connection, const struct feedd_error *err);

/* Something is to be announced, or sending failed: connection_flush() is called at the end of this round. */
void connection_mark_unflushed(struct connection *connection);
void connection_flush(struct connection *connection);

/* Once a second. */
void connection_tick(struct connection *connection, uint64_t now_ns);

#endif
