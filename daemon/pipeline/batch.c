/* batch.c - one batch from reservation to the workers' last sample. What happens then is the stream's (stream.c).
 *
 * Happy path: reserve -> fill (runs of samples, on workers) -> the last run posts it to the loop.
 * What can fail: a sample. Reading is tried again; a bad sample is dealt with as the stream's on_error says, in a way
 * that depends on epoch and position alone, so that every member, run and count of workers gets the same.
 * Threads: see batch.h. */
#include "batch.h"

#include <time.h>

#include "clock.h"
#include "group.h"
#include "list.h"
#include "pipeline.h"
#include "sample.h"
#include "stream.h"

#define SUBSTITUTE_TRIES 16u
#define SUBSTITUTE_KEY   0x5355425354495455ull /* keeps this permutation apart from the order's */

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
    atomic_store_explicit(&batch->bad, 0, memory_order_relaxed);
    atomic_store_explicit(&batch->error_taken, false, memory_order_relaxed);
    batch->filled.run = filled;
    pool_queue_add(stream->group->pipeline->pool, &stream->queue, batch);
}

/* What went wrong, for whoever has to say so: one of possibly many. */
static void keep_error(struct batch *batch, const struct feedd_error *err)
{
    if (!atomic_exchange(&batch->error_taken, true))
        batch->error = *err;
}

/* I/O errors may pass: the file system is asked three times. */
static int fill_patiently(const struct stream *stream, struct sample_scratch *scratch, const struct sample_place *place,
                          struct feedd_error *err)
{
    static const long pause_ns[] = {10000000, 100000000};
    int status;
    for (size_t i = 0;; i++) {
        status = sample_fill(&stream->plan, scratch, place, err);
        if (status != FEEDD_E_IO || i == sizeof(pause_ns) / sizeof(pause_ns[0]))
            return status;
        nanosleep(&(struct timespec){0, pause_ns[i]}, NULL);
    }
}

static bool is_bad_sample(int status)
{
    return status != 0 && status != FEEDD_E_IO && status != FEEDD_E_MEMORY;
}

/* Try k for position p is the sample at (16 p + k) mod n of a permutation of its own. */
static int substitute(const struct stream *stream, struct sample_scratch *scratch, struct sample_place *place,
                      struct feedd_error *err)
{
    uint64_t n = stream->sampler.sample_count;
    struct permutation permutation;
    permutation_init(&permutation, n, stream->spec.order.seed ^ SUBSTITUTE_KEY, place->epoch);
    int status = FEEDD_E_CORRUPT;
    for (uint64_t k = 0; k < SUBSTITUTE_TRIES && is_bad_sample(status); k++) {
        uint64_t at = (place->position % n * SUBSTITUTE_TRIES + k) % n;
        place->index = stream_sample_index(stream, permutation_index(&permutation, at));
        status = fill_patiently(stream, scratch, place, err);
        if (is_bad_sample(status))
            error_log_add(&stream->spec.dataset->errors, place->index, err);
    }
    return status;
}

/* @return 0: the cells are filled, by the sample or what stands in for it */
static int fill_one(struct batch *batch, uint32_t i, uint8_t *slot, struct sample_scratch *scratch,
                    struct feedd_error *err)
{
    struct stream *stream = batch->stream;
    struct sample_place place = {
        .epoch = batch->plan.epoch, .position = batch->plan.position + i, .slot = slot, .cell = i};
    place.index = stream_sample_index(stream, sampler_index(&stream->sampler, &batch->plan, i, &batch->flags[i]));
    int status = fill_patiently(stream, scratch, &place, err);
    if (is_bad_sample(status)) {
        error_log_add(&stream->spec.dataset->errors, place.index, err);
        keep_error(batch, err);
        if (!(batch->flags[i] & FEEDD_SAMPLE_PADDING)) /* padding repeats what is counted in its own place */
            atomic_fetch_add_explicit(&batch->bad, 1, memory_order_relaxed);
        if (stream->spec.on_error == FEEDD_ON_ERROR_SUBSTITUTE) {
            batch->flags[i] |= FEEDD_SAMPLE_SUBSTITUTED;
            status = substitute(stream, scratch, &place, err);
        } else if (stream->spec.on_error == FEEDD_ON_ERROR_ZERO) {
            batch->flags[i] |= FEEDD_SAMPLE_ZEROED;
            status = sample_zero(&stream->plan, scratch, &place, err);
        }
    }
    batch->index[i] = (int64_t)place.index;
    return status;
}

void batch_fill(struct batch *batch, uint32_t first, uint32_t count, uint64_t now_ns, struct sample_scratch *scratch)
{
    struct stream *stream = batch->stream;
    uint64_t unset = 0;
    atomic_compare_exchange_strong_explicit(&batch->first_job_ns, &unset, now_ns, memory_order_relaxed,
                                            memory_order_relaxed);
    uint8_t *slot = stream->staging->memory + batch->staging * stream->plan.layout.slot_bytes;
    struct sample_times *times = sample_times(scratch);
    *times = (struct sample_times){0};
    for (uint32_t i = first; i < first + count; i++) {
        if (atomic_load_explicit(&stream->cancelled, memory_order_relaxed))
            break;
        struct feedd_error err;
        int status = fill_one(batch, i, slot, scratch, &err);
        if (status != 0) {
            keep_error(batch, &err);
            atomic_store_explicit(&batch->status, status, memory_order_relaxed);
            break;
        }
    }
    uint64_t spent_ns = clock_ns() - now_ns;
    atomic_fetch_add_explicit(&stream->fill_ns, spent_ns, memory_order_relaxed);
    atomic_fetch_add_explicit(&stream->stages.read_ns, spent_ns - times->decode_ns - times->resize_ns,
                              memory_order_relaxed);
    atomic_fetch_add_explicit(&stream->stages.decode_ns, times->decode_ns, memory_order_relaxed);
    atomic_fetch_add_explicit(&stream->stages.resize_ns, times->resize_ns, memory_order_relaxed);
    uint64_t sample_ns = spent_ns / count;
    atomic_store_explicit(&stream->queue.sample_ns,
                          sample_ns < 1            ? 1
                          : sample_ns > UINT32_MAX ? UINT32_MAX
                                                   : (uint32_t)sample_ns,
                          memory_order_relaxed);
    /* Last: whoever brings it to 0 hands the batch over, and it may be reused at once. */
    struct inbox *inbox = &stream->group->pipeline->inbox;
    if (atomic_fetch_sub_explicit(&batch->remaining, count, memory_order_acq_rel) == count)
        inbox_post(inbox, &batch->filled);
}
