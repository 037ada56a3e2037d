/* batch.h - one batch from reservation to release, and its two lifetimes.
 *
 * A batch is made in a *staging* slot (host memory that workers write) and delivered in *placements* (memory that
 * clients map), one at each site of its stream (site.h). Staging is free again when its last copy has ended, a
 * placement when its last lease has: so a batch that a client keeps doesn't stop decoding. At the site on the host both
 * are one memory, and staging i stays taken until placement i is free, too.
 *
 * Threads: the loop moves states and owns everything here, except what batch_fill() touches on workers: the cells and
 * indices of its own run, and the atomics. */
#ifndef FEEDD_BATCH_H
#define FEEDD_BATCH_H

#include <stdatomic.h>
#include <stdint.h>

#include "feedd_types.h"
#include "inbox.h"
#include "sampler.h"
#include "state.h"

struct sample_scratch;
struct stream;

/* free -> filling -> filled -> placed -> free; failed from filling. */
enum batch_state {
    BATCH_FREE,    /* nobody's */
    BATCH_FILLING, /* workers write it */
    BATCH_FILLED,  /* complete; waits for the batches before it, or for a placement */
    BATCH_PLACED,  /* being copied, or published where it was made */
    BATCH_FAILED   /* a sample failed beyond what the stream tolerates */
};
extern const struct sm_state batch_states[];

struct batch {
    struct stream *stream;
    uint32_t staging; /* number of its slot */
    int state;        /* enum batch_state */
    uint64_t seq;
    struct sampler_batch plan;
    uint64_t time_ns[FEEDD_TIME_COUNT];
    /* the pool's, under its lock */
    struct batch *queue_next;
    uint32_t claimed; /* samples handed out to workers */
    /* workers' */
    _Atomic uint64_t first_job_ns;
    _Atomic uint32_t remaining; /* samples not yet done; who makes it 0 posts `filled` */
    _Atomic int status;         /* the batch is of no use: why; 0: it is */
    _Atomic uint32_t bad;       /* samples that were bad and have a stand-in */
    _Atomic bool error_taken;   /* some worker writes, or has written, `error` */
    struct feedd_error error;   /* one of those that status and bad count */
    int64_t *index;             /* of each sample; batch_size of them, owned by the stream */
    uint32_t *flags;
    struct inbox_item filled;
    uint32_t holds; /* while placed: copies under way, and its placement on the host: what needs the staging slot */
};

/* free -> copying -> ready -> free. */
enum placement_state {
    PLACEMENT_FREE,    /* nobody's */
    PLACEMENT_COPYING, /* a batch is on its way into it */
    PLACEMENT_READY    /* published: members read it until the last has released */
};
extern const struct sm_state placement_states[];

struct placement {
    int state; /* enum placement_state */
    uint64_t seq;
    uint32_t leases; /* members that have not released it */
};

/* Loop: takes a free batch for `seq` as planned, and hands it to the workers. batch->plan is set by the caller. */
void batch_reserve(struct batch *batch, uint64_t seq);

/* Worker: fills samples [first, first + count). @param now_ns  when this run was taken */
void batch_fill(struct batch *batch, uint32_t first, uint32_t count, uint64_t now_ns, struct sample_scratch *scratch);

#endif
