/* internal.h - what the files of libfeedd share: the connection (client.c) and its streams (stream.c). */
#ifndef FEEDD_INTERNAL_H
#define FEEDD_INTERNAL_H

#include <stdbool.h>
#include <sys/types.h>

#include "feedd.h"
#include "slot.h"
#include "token.h"
#include "wire.h"

/* Defined here and not in feedd.h: callers need no attributes. */
#define FEEDD_API __attribute__((visibility("default")))

/* One slot of the ring as this client sees it. */
struct feedd_batch {
    struct feedd_stream *stream;
    uint32_t slot;
    enum { BATCH_ABSENT, BATCH_READY, BATCH_HELD } state; /* ready: announced; held: handed out */
    uint64_t seq;
    uint32_t count; /* samples: as in the record, checked */
};

struct feedd_stream {
    struct feedd_client *client;
    struct feedd_stream *next; /* of the client's streams */
    uint32_t number;           /* on the connection */
    struct feedd_schema schema;
    struct feedd_field fields[FEEDD_MAX_FIELDS];
    struct slot_layout layout;
    char *text;           /* the names that schema points to */
    char *class_text;     /* the class names, and where each begins */
    const char **classes;
    uint8_t *ring, *meta; /* read-only mappings */
    size_t ring_bytes, meta_bytes;
    struct feedd_batch *batches;             /* depth */
    uint32_t *ready;                         /* slots announced and not handed out, in order: a ring of depth entries */
    uint32_t ready_first, ready_count;
    uint32_t *release_slots;                 /* given back and not yet sent */
    uint64_t *release_seqs;
    uint32_t release_count;
    uint32_t held;                           /* batches handed out */
    uint64_t next_seq;                       /* seq of the batch to hand out next */
    uint64_t announced_seq;                  /* seq of the batch to be announced next */
    struct token token;                      /* after the batch handed out last */
    uint64_t batches_taken, samples_taken, wait_ns;
    bool ended;
    struct feedd_error failure;              /* status != 0: the stream failed */
    int poll_fd, event_fd;                   /* feedd_stream_fd(): -1 until asked for */
    bool signalled;                          /* event_fd is readable */
};

struct feedd_client {
    int fd;
    pid_t owner; /* the process that connected */
    uint32_t request; /* the last one given */
    struct feedd_stream *streams;
    struct feedd_error broken; /* status != 0: the connection is of no use any more, and why */
    /* the answer that a call waits for */
    bool answered;
    struct wire_packet answer; /* its body and descriptors; the body lies in packet_in */
    struct wire_arena arena;
    uint8_t packet_in[WIRE_MAX_PACKET];
    uint8_t packet_out[WIRE_MAX_PACKET];
};

/* Is this process the one that connected, and the connection whole? @return 0, FEEDD_E_FORK, or why it broke */
int client_check(const struct feedd_client *client, struct feedd_error *err);

/* Sends a message, waiting for room. */
int client_send(struct feedd_client *client, enum wire_type type, const ProtobufCMessage *message,
                struct feedd_error *err);

/* Receives what is there, waiting up to timeout_ms (-1: for ever) for the first packet, and hands it to the streams.
 * @return 0, FEEDD_E_TIMEOUT, or why the connection broke */
int client_receive(struct feedd_client *client, int timeout_ms, struct feedd_error *err);

/* Waits for the answer to a request: its type has to be `type`. The caller takes the packet's descriptors.
 * @return 0 and *packet; an ERROR's status and message; FEEDD_E_TIMEOUT; why the connection broke */
int client_answer(struct feedd_client *client, enum wire_type type, int timeout_ms, struct wire_packet *packet,
                  struct feedd_error *err);

/* From client.c: what the daemon says about a stream. @return FEEDD_E_PROTOCOL when it makes no sense */
int stream_ready(struct feedd_stream *stream, const Feedd__Ready *ready, struct feedd_error *err);
void stream_ended(struct feedd_stream *stream);
void stream_failed(struct feedd_stream *stream, int status, const char *message);
/* Something has changed that feedd_stream_fd() tells of. */
void stream_signal(struct feedd_stream *stream);

uint64_t client_clock_ns(void);
/* What is left of a timeout (-1: for ever) that began then. */
int client_left_ms(int timeout_ms, uint64_t began_ns);

#endif
