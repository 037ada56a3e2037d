/* stream.h - what makes up the fake CUDA runtime's streams: record.c, queue.c, stream.c, event.c, capture.c.
 *
 * What synchronises with what is what CUDA promises, and no more: an operation sees what its caller wrote before the
 * call; a caller sees an operation's effects after it has waited for it. So a queue hands over in one direction only: a
 * list whose head the callers swap and the stream's thread never writes, and a semaphore that it only takes. A lock
 * around the queue would order a caller's next call after what has been executed, and hide a wait that it forgot. */
#ifndef FEEDD_FAKE_CUDA_STREAM_H
#define FEEDD_FAKE_CUDA_STREAM_H

#include <pthread.h>
#include <semaphore.h>

#include "fake_cuda.h"

#pragma GCC visibility push(hidden)

/* --- record.c: something that becomes done once, counted by references --- */

struct record;

/* @param references  how many the caller gives out */
struct record *record_new(unsigned references);
/* @return another reference; NULL of NULL */
struct record *record_keep(struct record *record);
/* Gives a reference back; NULL is nothing. */
void record_drop(struct record *record);
void record_finish(struct record *record);
bool record_is_done(struct record *record);
/* @return when it was finished, CLOCK_MONOTONIC; 0: it isn't done */
uint64_t record_time_ns(struct record *record);
void record_wait(struct record *record);
/* @return whether it is done; false after about that time */
bool record_wait_us(struct record *record, unsigned us);

/* --- queue.c: what a stream has to do, and the thread that does it --- */

enum op_kind {
    OP_RUN,
    OP_RECORD, /* all before it has been executed: its record is done */
    OP_WAIT,   /* nothing after it is executed before its record is done */
    OP_QUIT
};

struct op {
    struct op *_Atomic next;
    enum op_kind kind;
    cudaError_t (*run)(void *argument);
    void *argument;         /* from malloc(), owned */
    cudaError_t failure;    /* what happens instead of run() */
    unsigned long delay_us; /* before it */
    struct record *record;  /* a reference */
};

struct capture;

struct CUstream_st {
    struct device *device;
    unsigned flags;
    /* queue.c */
    struct CUstream_st *next;
    struct op *_Atomic head; /* the operation put in last */
    struct op *tail;         /* the one taken last; of the stream's thread */
    sem_t queued;
    pthread_t thread;
    _Atomic uint64_t submitted, executed;
    uint64_t work;        /* of a blocking stream: how many operations it was given, */
    uint64_t legacy_seen; /* for how many of them the legacy stream waits, */
    uint64_t seen_legacy; /* for how many of the legacy stream's it waits */
    /* capture.c, under its lock */
    struct capture *capture;
    struct CUstream_st *next_member;
};

/* A stream with its thread. Owned; queue_free() waits for what it has to do. */
struct CUstream_st *queue_new(struct device *device, unsigned flags);
void queue_free(struct CUstream_st *stream);
/* Whether a handle stands for a stream that nobody has made. */
bool queue_is_default(cudaStream_t handle);
/* The stream that a handle names; a default one is made when first used. */
struct CUstream_st *queue_of(cudaStream_t handle);
bool queue_is_blocking(const struct CUstream_st *stream);
/* op from malloc(); owned here from now on. */
void queue_submit(struct CUstream_st *stream, struct op *op);
/* @param record  this reference goes to the queue */
void queue_submit_record(struct CUstream_st *stream, enum op_kind kind, struct record *record);
/* Waits until what was submitted has been executed. */
void queue_wait(struct CUstream_st *stream);
/* Whether it has been; then the caller has waited for it. */
bool queue_is_idle(struct CUstream_st *stream);

/* --- capture.c --- */

/* Adds an operation to the stream's capture if it has one.
 * @return whether it has; then *error says what became of it, and *id which capture it is */
bool capture_adds(struct CUstream_st *stream, cudaError_t *error, uint64_t *id);
/* As cudaStreamWaitEvent() of an event that was captured, or on a stream that captures.
 * @param recorded  the event was recorded outside of a capture
 * @param id        of the capture that it was recorded in, or 0 */
cudaError_t capture_wait_event(struct CUstream_st *stream, bool recorded, uint64_t id);
/* What becomes of asking for an event that was recorded in that capture; the capture is invalid then. */
cudaError_t capture_forbids_event(uint64_t id);
/* What isn't ordered by a stream makes the stream's own capture invalid: cudaErrorStreamCaptureUnsupported. */
cudaError_t capture_forbids_stream(struct CUstream_st *stream);
/* The legacy stream must not be used while a blocking one captures: cudaErrorStreamCaptureImplicit.
 * @param invalidate  to try makes that capture invalid */
cudaError_t capture_forbids_legacy(const struct CUstream_st *stream, bool invalidate);
/* The stream goes away. */
void capture_forget(struct CUstream_st *stream);

#pragma GCC visibility pop

#endif
