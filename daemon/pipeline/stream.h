/* stream.h - one ordered sequence of batches: its staging, what is in flight, what comes next.
 *
 * A stream reserves free staging slots for the next steps of its sampler, lets the pool fill them, and places filled
 * batches in order at each of its sites (site.h), which publish them to the group. It stops by itself when no slot is
 * free: readers set the pace.
 * Threads: loop only, except `spec`, `sampler`, `reader`, `plan` and `staging`, which workers read while batches are
 * filled, and the atomics. */
#ifndef FEEDD_STREAM_H
#define FEEDD_STREAM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "backend.h"
#include "batch.h"
#include "dataset.h"
#include "list.h"
#include "output.h"
#include "pool.h"
#include "sample.h"
#include "sampler.h"
#include "slot.h"
#include "state.h"

struct group;

struct stream_spec {
    struct dataset *dataset;
    struct sampler_spec order; /* start_epoch and start_position are those of the resume token, if any */
    uint32_t selection;        /* which of the dataset's selections */
    struct transform_spec transform;
    struct output_spec output; /* its mode is decided */
    int on_error;              /* enum feedd_on_error */
    uint32_t depth;            /* 0 = slot_depth_rule() */
    bool resumed;              /* order.start_epoch and start_position come from a resume token */
    bool has_fingerprint;      /* the dataset's fingerprint and count have to be these */
    uint64_t fingerprint, sample_count;
};

/* opening -> running -> ended; failed from opening and running; closing from all; closing -> closed. */
enum stream_state {
    STREAM_OPENING, /* the dataset opens, the staging is made */
    STREAM_RUNNING,
    STREAM_ENDED,   /* the last batch has been published */
    STREAM_FAILED,  /* members have been told */
    STREAM_CLOSING, /* what is in flight ends, the sites close, the staging is freed */
    STREAM_CLOSED
};
extern const struct sm_state stream_states[];

struct stream {
    struct stream_spec spec; /* constant */
    struct group *group;     /* constant */
    uint64_t number;         /* constant: counts streams since the daemon started */
    /* constant once running */
    struct sampler sampler;
    const struct reader *reader; /* not NULL: a user of spec.dataset */
    const uint64_t *indices;     /* of the selection, or NULL: all samples */
    struct sample_plan plan;     /* plan.layout: of the staging; plan.output: the spec's, settled */
    struct staging *staging;
    uint32_t depth; /* slots, of the staging and of every ring */
    /* any thread */
    _Atomic bool cancelled;   /* closing or failed: workers skip what is left */
    _Atomic uint64_t fill_ns; /* what workers have spent on its batches */
    struct {
        _Atomic uint64_t read_ns, decode_ns, resize_ns; /* what of it went where: sample.h */
    } stages;
    /* loop */
    int state;
    struct list sites;      /* struct site */
    struct batch *batches;  /* depth staging slots */
    uint32_t *free_staging; /* a stack */
    uint32_t free_count;
    struct batch **by_seq;              /* batch in flight of seq: by_seq[seq % depth] */
    uint64_t next_reserve;              /* step to reserve next; a step's number is its batch's seq */
    uint64_t next_place;                /* seq to place next */
    uint32_t filling;                   /* batches with the workers */
    uint32_t filled;                    /* complete, waiting to be placed */
    uint32_t copying;                   /* copies under way, of all sites */
    uint64_t bad_epoch;                 /* the epoch that `bad` counts */
    uint64_t bad;                       /* bad samples in it so far, in the order of the batches */
    bool exhausted;                     /* the sampler has no step next_reserve */
    uint64_t next_epoch, next_position; /* of the batch to be placed next, over all ranks */
    uint64_t staging_bytes;             /* taken from ring_memory_max */
    uint64_t pinned_bytes;              /* of that, from pinned_max: all, once a site is on a GPU */
    struct pool_queue queue;            /* batches that have samples to hand out */
    struct feedd_error failure;         /* while failed: why */
    struct inbox_item failed;           /* tells the members */
    struct dataset_waiter waiter;
    bool stepping;         /* a step of opening is under way */
    struct pool_task task; /* steps of opening, and freeing the staging */
    int task_status;
    struct feedd_error task_error;
    struct {
        uint64_t batches, samples; /* published */
        uint64_t latency_ns;       /* sum over batches: reserved to ready, where it was ready first */
    } stats;
    struct {
        uint64_t tick_ns, batches, samples, fill_ns; /* at the last tick */
        double batches_s, samples_s;                 /* published a second, over the second before it */
        double workers;                              /* mean count of workers that filled its batches */
    } rate;
};

/* Starts opening. @return 0 and *out: stream_open_sites() or group_failed() comes later; FEEDD_E_MEMORY */
int stream_open(struct group *group, const struct stream_spec *spec, struct stream **out, struct feedd_error *err);

/* From any state but closing and closed. Ends in group_stream_closed(), later; the stream is freed then. */
void stream_close(struct stream *stream);

/* Any thread: the sample of the dataset that is number i of the stream's selection. */
static inline uint64_t stream_sample_index(const struct stream *stream, uint64_t i)
{
    return stream->indices != NULL ? stream->indices[i] : i;
}

/* From the pool, on the loop: a worker sits in this batch. */
void stream_worker_stuck(struct batch *batch, uint32_t ms);

/* Running: batches are made and published. */
bool stream_is_open(const struct stream *stream);

/* It has its staging: sites that wait are opened. Not from within group_join(): one that can't be fails, and with its
 * members the stream may be closing after it. */
void stream_open_sites(struct stream *stream);

/* From the group and from sites: something that held batches back has gone. */
void stream_advance(struct stream *stream);

/* A stream that is opening or running can't go on; every member is told, later. */
void stream_fail(struct stream *stream, const struct feedd_error *err);

/* Once a second: brings `rate` up to date. */
void stream_tick(struct stream *stream, uint64_t now_ns);

/* From batch.c, on the loop: the workers are done with it. */
void stream_batch_filled(struct stream *stream, struct batch *batch);

/* From its sites: members have got a batch; something that needed its staging slot has ended; a site has gone. */
void stream_batch_published(struct stream *stream, struct batch *batch, uint64_t now_ns);
void stream_hold_end(struct stream *stream, struct batch *batch);
void stream_site_closed(struct stream *stream);

/* Whether `bytes` more fit under a limit of which `taken` are taken. @return 0, or FEEDD_E_MEMORY, which says so */
int stream_check_budget(const struct stream *stream, const char *limit_name, uint64_t bytes, uint64_t taken,
                        uint64_t limit, struct feedd_error *err);

#endif
