/* control.h - what clients may ask for, and the streams that each has open.
 * Threads: loop only. */
#ifndef FEEDD_CONTROL_H
#define FEEDD_CONTROL_H

#include <stdbool.h>
#include <stdint.h>

#include "connection.h"
#include "group.h"
#include "list.h"
#include "resolve.h"

/* One stream of one connection. */
struct attachment {
    struct list node; /* in connection->streams */
    struct connection *connection;
    uint32_t number;  /* on this connection, from 1 */
    uint32_t request; /* the OPEN that it answers */
    char *source;     /* as opened */
    struct delivery delivery;
    struct member *member;
    bool opened;        /* STREAM was sent */
    bool attached;      /* the client has proved that it maps the ring: READY may be sent */
    bool count_changed; /* of the group's members: to be told */
    bool ended;         /* no more batches will be published */
    bool end_sent;
};

/* Why batches get to it so, for a person: transport and normalising. */
#define CONTROL_REASON 256
void control_mode_reason(const struct attachment *attachment, char out[CONTROL_REASON]);

/* Handles one packet. @return 0; an error when the client broke the protocol: the connection has to be closed */
int control_packet(struct connection *connection, const struct wire_packet *packet, struct feedd_error *err);

/* Announces what has become ready on this connection, one READY a stream. */
void control_flush(struct connection *connection);

/* The connection has gone: all its streams end. */
void control_connection_closed(struct connection *connection);

#endif
