/* site.h - a stream's end of a ring: the placements that some members of its group map, and which batch is in each.
 *
 * A stream has one for each (GPU, transport) that members want, and one on the host, whose placements are the staging
 * slots themselves. A batch is decoded once and copied once to each active site, in the stream's order; as it arrives,
 * the members there get it. Those of one site don't wait for another's copies, only for a free placement: a batch is
 * placed when every active site has one.
 *
 * A site is made on a worker while the stream runs. One that fails, while it opens or in a copy, ends for its members
 * alone. When the last of them has left, its ring is freed as soon as nothing is on its way to it.
 * Threads: loop only, but for `spec` and `task`, which a worker has while it makes or frees the ring. */
#ifndef FEEDD_SITE_H
#define FEEDD_SITE_H

#include <stdbool.h>
#include <stdint.h>

#include "backend.h"
#include "batch.h"
#include "list.h"
#include "pool.h"
#include "sample.h"
#include "state.h"

struct stream;

/* waiting -> opening -> open; failed from these; closing from all -> closed. */
enum site_state {
    SITE_WAITING, /* for the stream's staging, or for its turn to be opened */
    SITE_OPENING, /* a worker makes the ring */
    SITE_OPEN,
    SITE_FAILED,  /* its members are being told */
    SITE_CLOSING, /* nobody's: what is on its way to it arrives, the ring is freed */
    SITE_CLOSED
};
extern const struct sm_state site_states[];

/* One batch on its way to one site. */
struct site_copy {
    struct ring_copy copy;
    struct site *site;
    struct batch *batch;
    uint32_t placement;
};

struct site {
    struct list node;                   /* in stream->sites */
    struct stream *stream;              /* constant, as the next two */
    enum transport transport;           /* of its members */
    struct gpu *gpu;                    /* NULL: in host memory */
    int state;                          /* enum site_state */
    struct ring_spec spec;              /* once its memory is reserved */
    struct ring *ring;                  /* once open */
    uint32_t member_count;              /* of the group: who uses it, or waits for it. The group counts, */
    uint32_t attached_count;            /* and of them those that are attached: while there are any, it is active */
    struct placement *placements;       /* depth */
    struct site_copy *copies;           /* one a staging slot */
    uint32_t taken;                     /* placements that are not free */
    uint32_t in_flight;                 /* copies under way */
    uint32_t ready;                     /* placements that members hold or may take */
    uint64_t next_epoch, next_position; /* while copies are under way: of the first of them, over all ranks */
    bool reserved;                      /* from the budgets: */
    uint64_t meta_bytes;                /* of ring_memory_max */
    uint64_t gpu_bytes;                 /* of the GPU's memory */
    struct pool_task task;
    int task_status;
    struct feedd_error task_error;
    struct {
        uint64_t copies, copied_bytes; /* that have arrived */
        uint64_t ready_ns;             /* sum over time: ready placements x nanoseconds */
        uint64_t ready_since_ns;       /* when ready_ns was last brought up to date */
    } stats;
    struct {
        uint64_t ready_ns; /* at the last tick */
        double ready;      /* mean count of ready placements over the second before it */
    } rate;
};

/* For a member that joins: the site that it wants, counted as its. @return NULL: no memory */
struct site *site_join(struct stream *stream, enum transport transport, struct gpu *gpu);

/* It has mapped the ring. */
void site_attach(struct site *site);

/* It leaves, whose leases have ended. Nobody's site closes. */
void site_leave(struct site *site, bool attached);

/* What placements look like on any GPU: as the plan's slots, but for what the daemon's kernel makes of them.
 * @return 0 and *out; FEEDD_E_LIMIT: a batch that is too large once it is normalised */
int site_layout(const struct sample_plan *plan, struct slot_layout *out, struct feedd_error *err);

/* Takes what a waiting site needs from the budgets; of a stream whose batches' layout is known.
 * @return FEEDD_E_MEMORY: there isn't so much; FEEDD_E_LIMIT: a batch that is too large once it is normalised */
int site_reserve(struct site *site, struct feedd_error *err);

/* A waiting site whose stream has its staging: group_site_opened() or site_fail() comes later. */
void site_open(struct site *site);

/* Its members are told, and leave from within: the stream may be closing after it. Not from within group_join(). */
void site_fail(struct site *site, const struct feedd_error *err);

/* With its stream, whoever still uses it. Ends in stream_site_closed(), later. */
void site_close(struct site *site);

/* Batches are placed at it. */
static inline bool site_is_active(const struct site *site)
{
    return site->state == SITE_OPEN && site->attached_count > 0;
}

/* Whether an active site has a placement for the stream's next batch. */
bool site_has_room(const struct site *site);

/* Takes the placement, and copies or publishes the batch. */
void site_place(struct site *site, struct batch *batch);

/* From the group: one member's lease of a placement has ended. The caller has the stream advance. */
void site_lease_end(struct site *site, uint32_t slot);

/* The epoch and position, over all ranks, of the batch to be published next. */
void site_position(const struct site *site, uint64_t *epoch, uint64_t *position);

/* Once a second: brings `rate` up to date. */
void site_tick(struct site *site, uint64_t now_ns, uint64_t span_ns);

#endif
