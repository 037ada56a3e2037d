/* batch.c - one batch from reservation to the workers' last sample. What happens then is the stream's (stream.c).
 *
 * Happy path: reserve -> fill (runs of samples, on workers) -> the last run posts it to the loop.
 * What can fail: a sample. The first failure is kept, and the stream decides.
 * Threads: see batch.h. */
#include "batch.h"

#include "clock.h"
#include "list.h"
#include "pipeline.h"
#include "group.h"
#include "sample.h"
#include "stream.h"

const struct sm_state batch_states[] = {
    [BATCH_FREE] = {"free", SM(BATCH_FILLING)},
    [BATCH_FILLING] = {"filling", SM(BATCH_FILLED) | SM(BATCH_FAILED)},
    [BATCH_FILLED] = {"filled", SM(BATCH_PLACED) | SM(BATCH_FREE)},
    [BATCH_PLACED] = {"placed", SM(BATCH_FREE)},
    [BATCH_FAILED] = {"failed", SM(BATCH_FREE)},
};

const struct sm_state placement_states[] = {
    [PLACEMENT_FREE] = {"free", SM(PLACEMENT_COPYING)},
    [PLACEMENT_COPYING] = {"copying", SM(PLACEMENT_READY) | SM(PLACEMENT_FREE)},
    [PLACEMENT_READY] = {"ready", SM(PLACEMENT_FREE)},
};

static void filled(struct inbox_item *item)
{
    struct batch *batch = container_of(item, struct batch, filled);
    stream_batch_filled(batch->stream, batch);
}

void batch_reserve(struct batch *batch, uint64_t seq)
{
    struct stream *stream = batch->stream;
    sm_move(batch_states, &batch->state, BATCH_FILLING);
    batch->seq = seq;
    for (int i = 0; i < FEEDD_TIME_COUNT; i++)
        batch->time_ns[i] = 0;
    batch->time_ns[FEEDD_TIME_RESERVED] = clock_ns();
    atomic_store_explicit(&batch->first_job_ns, 0, memory_order_relaxed);
    atomic_store_explicit(&batch->remaining, batch->plan.count, memory_order_relaxed);
    atomic_store_explicit(&batch->status, 0, memory_order_relaxed);
    batch->filled.run = filled;
    pool_queue_add(stream->group->pipeline->pool, &stream->queue, batch);
}

/* The first failure wins and writes the error; the countdown publishes it to the loop. */
static void fail(struct batch *batch, int status, const struct feedd_error *err)
{
    int none = 0;
    if (atomic_compare_exchange_strong(&batch->status, &none, status))
        batch->error = *err;
}

void batch_fill(struct batch *batch, uint32_t first, uint32_t count, uint64_t now_ns)
{
    struct stream *stream = batch->stream;
    uint64_t unset = 0;
    atomic_compare_exchange_strong_explicit(&batch->first_job_ns, &unset, now_ns, memory_order_relaxed,
                                            memory_order_relaxed);
    const struct slot_layout *layout = &stream->ring->spec.layout;
    uint8_t *slot = stream->ring->staging + batch->staging * layout->slot_bytes;
    for (uint32_t i = first; i < first + count; i++) {
        if (atomic_load_explicit(&stream->cancelled, memory_order_relaxed))
            break;
        struct feedd_error err;
        uint64_t index = sampler_index(&stream->sampler, &batch->plan, i, &batch->flags[i]);
        batch->index[i] = (int64_t)index;
        int status = sample_fill(stream->reader, layout, index, slot, i, &err);
        if (status != 0) {
            fail(batch, status, &err);
            break;
        }
    }
    uint64_t spent_ns = clock_ns() - now_ns;
    atomic_fetch_add_explicit(&stream->fill_ns, spent_ns, memory_order_relaxed);
    uint64_t sample_ns = spent_ns / count;
    atomic_store_explicit(&stream->queue.sample_ns,
                          sample_ns < 1 ? 1 : sample_ns > UINT32_MAX ? UINT32_MAX : (uint32_t)sample_ns,
                          memory_order_relaxed);
    /* Last: whoever brings it to 0 hands the batch over, and it may be reused at once. */
    struct inbox *inbox = &stream->group->pipeline->inbox;
    if (atomic_fetch_sub_explicit(&batch->remaining, count, memory_order_acq_rel) == count)
        inbox_post(inbox, &batch->filled);
}
