/* internal.h - what the files of libfeedd share: the connection (client.c), what goes over it (open.c, stream.c,
 * verify.c), the memory that batches are in (map.c), tensors that are lent (dlpack.c), and the thread that gives
 * batches back when a GPU has got there, or the last tensor is gone (releaser.c).
 *
 * Threads: all is the caller's, but for what is said to be under client->lock. */
#ifndef FEEDD_INTERNAL_H
#define FEEDD_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

#include "device.h"
#include "feedd.h"
#include "slot.h"
#include "token.h"
#include "wire.h"

/* Defined here and not in feedd.h: callers need no attributes. */
#define FEEDD_API __attribute__((visibility("default")))

/* absent -> ready -> held -> absent, for a GPU by way of returning; when lent: held -> lent -> returning -> absent. */
enum batch_state {
    BATCH_ABSENT,   /* the daemon's */
    BATCH_READY,    /* announced */
    BATCH_HELD,     /* handed out */
    BATCH_LENT,     /* given back, but tensors of it are there */
    BATCH_RETURNING /* given back, as soon as the GPU has passed its marks: the releaser's */
};

#define BATCH_STREAMS 4 /* of CUDA, that may read one batch */

/* One slot of a ring as this client sees it. */
struct feedd_batch {
    struct ring_map *map;
    uint32_t slot;
    _Atomic int state; /* enum batch_state */
    uint64_t seq;      /* the daemon's */
    uint32_t count;    /* samples: as in the record, checked */
    /* For a GPU: where its readers stood. Made once a slot; the first mark_count count. */
    struct device_mark *marks[BATCH_STREAMS];
    uint32_t mark_count;
    /* Under the lock, but when it is the releaser's: */
    struct CUstream_st *streams[BATCH_STREAMS]; /* for a GPU: those that read what is lent, and aren't marked yet */
    uint32_t stream_count;
    uint32_t tensors; /* that are lent */
    struct feedd_batch *returning_next;
};

/* The rings of one opening of a stream. After a restart of the daemon there is a new one; the old one stays while
 * batches of it are held. */
struct ring_map {
    struct feedd_stream *stream;
    struct ring_map *older;
    struct slot_layout layout;
    uint32_t depth, number; /* slots; of the stream on its connection */
    uint64_t generation;    /* which connection that is */
    bool for_gpu;           /* a GPU reads the batches: what is given back waits until it has done so */
    bool on_host;           /* `ring` is host memory, with for_gpu registered with that GPU; else in the GPU's memory */
    uint8_t *ring, *meta;   /* read-only mappings */
    void *opened;           /* in a GPU's memory: what `ring` lies in */
    uint64_t import_bytes;  /* transport "fd": of `opened`; 0: it was opened by CUDA IPC */
    size_t ring_bytes, meta_bytes;
    struct feedd_batch *batches; /* depth */
    uint32_t *ready;             /* slots announced and not handed out, in order: a ring of depth entries */
    uint32_t ready_first, ready_count;
    uint32_t *release_slots; /* given back and not yet sent */
    uint64_t *release_seqs;
    uint32_t release_count;
    uint32_t held;          /* batches that are HELD */
    _Atomic uint32_t lent;  /* batches that are LENT; written under the lock */
    uint32_t returning;     /* batches that are RETURNING; under the lock */
    uint64_t next_seq;      /* of the batch to hand out next */
    uint64_t announced_seq; /* of the batch to be announced next; UINT64_MAX: whichever comes first */
    uint64_t shown_seq;     /* what callers see = seq + shown_seq (modulo 2^64) */
};

/* How batches for a GPU get to this process, best first. */
enum transport { TRANSPORT_IPC, TRANSPORT_FD, TRANSPORT_HOST, TRANSPORT_COUNT };

/* opening -> attaching -> open -> lost -> opening; opening, attaching -> opening, where another transport is tried. */
enum stream_state {
    STREAM_OPENING,   /* OPEN was sent */
    STREAM_ATTACHING, /* ATTACH was sent, and has to be confirmed */
    STREAM_OPEN,
    STREAM_LOST /* the connection it was open on has gone */
};

struct feedd_stream {
    struct feedd_client *client;
    struct feedd_stream *next;             /* of the client's streams */
    int state;                             /* enum stream_state */
    uint32_t request;                      /* of the OPEN under way */
    uint32_t number;                       /* on the connection; 0: none yet */
    struct feedd_open_options options;     /* as asked for; its strings are ours */
    struct feedd_normalize_options output; /* that options.output points to, unless that is NULL */
    char *source;
    bool shown; /* schema is filled: by the first opening, constant then */
    struct feedd_schema schema;
    struct feedd_field fields[FEEDD_MAX_FIELDS];
    char field_names[FEEDD_MAX_FIELDS][FEEDD_MAX_NAME + 1];
    char *text;       /* the names that schema points to */
    char *class_text; /* the class names, and where each begins */
    const char **classes;
    struct ring_map *map; /* the newest */
    struct device device; /* that was asked for, or ordinal -1; where it is optional the daemon may choose the host */
    bool device_optional; /* "auto" */
    char device_reason[256];        /* why "auto" found none */
    uint32_t transports;            /* until it is open: those that may be tried, 1 << enum transport */
    char transport_reason[256];     /* why others that were asked for are not among them */
    struct device_scratch *scratch; /* of feedd_normalize(), where batches are in host memory for a GPU */
    struct token token;             /* after the batch handed out last */
    bool dropping;                  /* after opening again: batches may come that the caller has had */
    uint64_t incarnation;           /* of the group */
    uint64_t content;               /* as the daemon hashes it: transform and error policy */
    uint32_t members;               /* as last told */
    bool started;                   /* batches have been announced since the stream was opened first */
    uint64_t last_seq;              /* as shown, of the batch handed out last */
    uint64_t batches_taken, samples_taken, wait_ns;
    uint32_t reconnects;
    bool ended;
    bool closed;                     /* by the caller; something of it is still lent */
    struct feedd_error failure;      /* status != 0: the stream failed */
    int poll_fd, event_fd, timer_fd; /* feedd_stream_fd(): -1 until asked for */
    bool signalled, away;            /* event_fd is readable; timer_fd ticks */
};

struct feedd_client {
    int fd;      /* replaced under the lock, with generation */
    pid_t owner; /* the process that connected */
    char *socket_path;
    uint64_t broken_ns; /* since when there is no connection; 0: there is one */
    uint32_t request;   /* the last one given */
    struct feedd_stream *streams;
    struct feedd_error broken; /* status != 0: the connection is of no use any more, and why */
    /* the answer that a call waits for */
    bool answered;
    struct wire_packet answer;             /* its body and descriptors; the body lies in packet_in */
    struct feedd_verify_progress progress; /* of the verification under way */
    struct wire_arena arena;
    uint8_t packet_in[WIRE_MAX_PACKET];
    uint8_t packet_out[WIRE_MAX_PACKET];
    /* the releaser */
    pthread_mutex_t lock;
    pthread_cond_t returns, returned;
    pthread_t releaser;
    bool has_releaser;
    bool lending;                                   /* something was lent */
    bool releaser_stop;                             /* under the lock, as all that follows */
    bool abandoned;                                 /* closed by the caller: all is the releaser's */
    uint32_t tensors;                               /* that are lent */
    uint64_t generation;                            /* counts connections */
    struct feedd_batch *returning, **returning_end; /* in the order in which they were given back */
    uint8_t release_packet[WIRE_MAX_PACKET];
};

/* Is this process the one that connected, and the connection whole? @return 0, FEEDD_E_FORK, or why it broke */
int client_check(const struct feedd_client *client, struct feedd_error *err);

/* Sends a message, waiting for room. */
int client_send(struct feedd_client *client, enum wire_type type, const ProtobufCMessage *message,
                struct feedd_error *err);

/* Receives what is there, waiting up to timeout_ms (-1: for ever) for the first packet, and hands it to the streams.
 * @return 0, FEEDD_E_TIMEOUT, or why the connection broke */
int client_receive(struct feedd_client *client, int timeout_ms, struct feedd_error *err);

/* Waits until a request is answered. @return 0, FEEDD_E_TIMEOUT, or why the connection broke */
int client_wait(struct feedd_client *client, int timeout_ms, struct feedd_error *err);

/* Takes the text of the REPORT that a request was answered by.
 * @return 0 and *out, to be freed; an ERROR's status and message; FEEDD_E_PROTOCOL */
int client_take_report(struct feedd_client *client, char **out, struct feedd_error *err);

/* Connects again, once. @return 0: every stream is lost and can be opened again; else the daemon isn't back */
int client_reconnect(struct feedd_client *client, struct feedd_error *err);

/* Sends OPEN: as the caller asked, or for a stream that was lost, as it was. */
int open_send(struct feedd_stream *stream, struct feedd_error *err);

/* The rings that the daemon has answered OPEN with: their books and records, not yet the memory that batches are in.
 * @return 0 and *out, owned by the caller; FEEDD_E_PROTOCOL, FEEDD_E_MEMORY */
int map_new(struct feedd_stream *stream, const Feedd__Stream *answer, const struct wire_packet *packet,
            struct ring_map **out, struct feedd_error *err);
/* Maps that memory, by the transport that was answered, and reads what proves it.
 * @return 0 and *nonce; FEEDD_E_PROTOCOL; FEEDD_E_MEMORY, FEEDD_E_DEVICE: this process can't map it so */
int map_data(struct ring_map *map, const Feedd__Stream *answer, const struct wire_packet *packet, uint64_t *nonce,
             struct feedd_error *err);
void map_free(struct ring_map *map);
/* Unmaps older rings of a stream of which nothing is held, lent, or on its way back. */
void map_drop_older(struct feedd_stream *stream);

/* From client.c: what the daemon says about a stream. @return FEEDD_E_PROTOCOL when it makes no sense */
int open_answered(struct feedd_stream *stream, const Feedd__Stream *answer, const struct wire_packet *packet,
                  struct feedd_error *err);
void open_confirmed(struct feedd_stream *stream); /* by whatever comes for a stream that is attached */
/* The stream has failed, unless it can be opened in another way. @return 0, or why the connection is broken */
int open_failed(struct feedd_stream *stream, int status, const char *message, struct feedd_error *err);
int stream_ready(struct feedd_stream *stream, const Feedd__Ready *ready, struct feedd_error *err);
void stream_failed(struct feedd_stream *stream, int status, const char *message);
/* Something has changed that feedd_stream_fd() tells of. */
void stream_signal(struct feedd_stream *stream);
/* The client has a new socket. */
void stream_poll_socket(struct feedd_stream *stream);

/* Closes streams that the caller has closed and of which nothing is lent any more. */
void stream_reap(struct feedd_client *client);
/* Frees a client, its streams and its socket. */
void client_free(struct feedd_client *client);

/* Gives a batch for a GPU back when `stream` has got to where it stands now. Returns at once.
 * @return 0, and *idle where it has got there already: then the caller gives the batch back; FEEDD_E_STATE (the stream
 * is being captured), FEEDD_E_DEVICE, FEEDD_E_MEMORY: it is still held */
int releaser_add(struct feedd_client *client, struct feedd_batch *batch, struct CUstream_st *stream, bool *idle,
                 struct feedd_error *err);
/* One tensor more of a batch that is held, read on `stream`. @return 0; FEEDD_E_LIMIT, FEEDD_E_MEMORY */
int releaser_lend(struct feedd_client *client, struct feedd_batch *batch, struct CUstream_st *stream,
                  struct feedd_error *err);
/* A batch that is lent is read on `stream`, too. @return 0, FEEDD_E_STATE, FEEDD_E_LIMIT */
int releaser_record(struct feedd_client *client, struct feedd_batch *batch, struct CUstream_st *stream,
                    struct feedd_error *err);
/* The caller gives a batch back that was lent.
 * @return 0 and *done: the rest is the releaser's; or not: it was never read, and goes the usual way; FEEDD_E_LIMIT */
int releaser_settle(struct feedd_client *client, struct feedd_batch *batch, struct CUstream_st *stream, bool *done,
                    struct feedd_error *err);
/* A tensor is deleted: any thread, also of a forked child. */
void releaser_return(struct feedd_batch *batch);
/* Leaves the client to the releaser if something is lent. @return whether it is */
bool releaser_abandon(struct feedd_client *client);
/* Waits until nothing of the stream is on its way back. */
void releaser_drain(struct feedd_client *client, const struct feedd_stream *stream);
/* After all streams have been drained: ends the thread. */
void releaser_stop(struct feedd_client *client);

uint64_t client_clock_ns(void);
/* What is left of a timeout (-1: for ever) that began then. */
int client_left_ms(int timeout_ms, uint64_t began_ns);

#endif
