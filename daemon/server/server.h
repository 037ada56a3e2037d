/* server.h - the loop thread: everything that talks to the outside, and the one that moves every state.
 *
 * Threads: loop only. Workers reach it through pipeline.inbox and `wake`. */
#ifndef FEEDD_SERVER_H
#define FEEDD_SERVER_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "config.h"
#include "feedd_types.h"
#include "list.h"
#include "listener.h"
#include "pipeline.h"
#include "wire.h"

#define SERVER_HELLO_MS 5000u  /* from connect to a complete HELLO */
#define SERVER_STOP_MS  10000u /* for workers to end what they are at, when it stops */

struct server {
    uv_loop_t loop;
    const struct config *config;
    struct pipeline pipeline;
    struct listener listener;
    uv_async_t wake;         /* workers -> loop */
    uv_check_t flush;        /* after each round of events: one READY a stream for all that became ready in it */
    uv_timer_t tick;         /* once a second: deadlines and rates */
    uv_signal_t signals[2];  /* SIGTERM, SIGINT */
    struct list connections; /* struct connection */
    struct list unflushed;   /* connections with batches to announce */
    uint32_t connection_count;
    uint64_t connection_number; /* the last one given */
    uint64_t started_ns;
    bool private;     /* for the daemon's own user, and only while there are clients */
    uint64_t idle_ns; /* since when there is no client; 0: there is one */
    bool stopping;
    uint64_t stop_ns;           /* since when */
    struct feedd_error failure; /* why it stops; status 0: it was asked to */
    struct {
        uint64_t connections, refused; /* accepted; closed for breaking the protocol or a limit */
    } stats;
    struct wire_arena arena; /* of the message being handled */
    uint8_t packet_in[WIRE_MAX_PACKET];
    uint8_t packet_out[WIRE_MAX_PACKET];
};

/* Prepares loop, pipeline and listener. @param socket_path  NULL: the configuration's
 * @param private  serve the daemon's own user alone, and leave after linger_s seconds without clients */
int server_init(struct server *server, const struct config *config, const char *socket_path, bool private,
                struct feedd_error *err);

/* Runs until SIGTERM, SIGINT or server_stop(); then everything is closed and freed. @return 0, or server_fail()'s */
int server_run(struct server *server);

/* Tells every client, lets go of everything, and makes server_run() return. Loop thread. */
void server_stop(struct server *server);

/* The same for a reason that is none of theirs: every client is told, and server_run() returns its status. */
void server_fail(struct server *server, const struct feedd_error *reason);

#endif
