/* sampler.c - from a step's number to the samples of one rank's batch, by arithmetic alone.
 *
 * Happy path: init checks the spec and counts the steps of the first and of a later epoch; batch finds epoch and step
 * by one division, whatever the epoch; index maps a position of the batch to a sample.
 * What can fail: init, when the spec makes no sense. All of its values come from clients.
 * Threads: any, once initialised. */
#include "sampler.h"

#include <inttypes.h>

#include "error.h"

#define MAX_SAMPLES ((uint64_t)1 << 62) /* of permutation_init(); leaves room to add a step to a position */

/* Samples of one step of all ranks: at most 2^32. */
static uint64_t step_samples(const struct sampler_spec *spec)
{
    return (uint64_t)spec->world_size * spec->batch_size;
}

static uint64_t steps_of(const struct sampler_spec *spec, uint64_t samples)
{
    uint64_t step = step_samples(spec);
    return samples / step + (spec->tail != FEEDD_TAIL_DROP && samples % step != 0);
}

/* The epoch that is never delivered. An endless stream ends before the epoch counter would wrap. */
static uint64_t end_epoch(const struct sampler_spec *spec)
{
    return spec->epochs != 0 ? spec->epochs : UINT64_MAX;
}

static int check_spec(const struct sampler_spec *spec, uint64_t sample_count, struct feedd_error *err)
{
    if (spec->order != FEEDD_ORDER_SEQUENTIAL && spec->order != FEEDD_ORDER_SHUFFLE)
        return error_set(err, FEEDD_E_ARGUMENT, "order %d is unknown: it must be sequential (%d) or shuffle (%d)",
                         spec->order, FEEDD_ORDER_SEQUENTIAL, FEEDD_ORDER_SHUFFLE);
    if (spec->tail != FEEDD_TAIL_DROP && spec->tail != FEEDD_TAIL_PAD && spec->tail != FEEDD_TAIL_PARTIAL)
        return error_set(err, FEEDD_E_ARGUMENT, "tail %d is unknown: it must be drop (%d), pad (%d) or partial (%d)",
                         spec->tail, FEEDD_TAIL_DROP, FEEDD_TAIL_PAD, FEEDD_TAIL_PARTIAL);
    if (spec->batch_size == 0 || spec->batch_size > FEEDD_MAX_BATCH)
        return error_set(err, spec->batch_size == 0 ? FEEDD_E_ARGUMENT : FEEDD_E_LIMIT,
                         "batch size %" PRIu32 ": it must be 1 to %u", spec->batch_size, FEEDD_MAX_BATCH);
    if (spec->world_size == 0 || spec->world_size > FEEDD_MAX_WORLD)
        return error_set(err, spec->world_size == 0 ? FEEDD_E_ARGUMENT : FEEDD_E_LIMIT,
                         "world size %" PRIu32 ": it must be 1 to %u", spec->world_size, FEEDD_MAX_WORLD);
    if (spec->rank >= spec->world_size)
        return error_set(err, FEEDD_E_ARGUMENT, "rank %" PRIu32 ": it must be 0 to %" PRIu32 " in a world of %" PRIu32,
                         spec->rank, spec->world_size - 1, spec->world_size);
    if (sample_count == 0)
        return error_set(err, FEEDD_E_ARGUMENT, "the dataset has no samples: at least 1 is needed");
    if (sample_count > MAX_SAMPLES)
        return error_set(err, FEEDD_E_LIMIT, "%" PRIu64 " samples: at most %" PRIu64 " are possible", sample_count,
                         MAX_SAMPLES);
    if (spec->start_position > sample_count)
        return error_set(err, FEEDD_E_ARGUMENT,
                         "start position %" PRIu64 ": it must be 0 to %" PRIu64 ", the number of samples",
                         spec->start_position, sample_count);
    if (spec->tail == FEEDD_TAIL_DROP && sample_count < step_samples(spec)) {
        if (sample_count < spec->world_size)
            return error_set(err, FEEDD_E_ARGUMENT,
                             "%" PRIu64 " samples are less than one for each of %" PRIu32
                             " ranks, and tail = drop would leave none: use tail = pad or partial",
                             sample_count, spec->world_size);
        return error_set(err, FEEDD_E_ARGUMENT,
                         "%" PRIu64 " samples are less than a step of %" PRIu64 " (world size %" PRIu32
                         " x batch size %" PRIu32 "), and tail = drop would leave none: use a batch size of at most "
                         "%" PRIu64 ", or tail = pad or partial",
                         sample_count, step_samples(spec), spec->world_size, spec->batch_size,
                         sample_count / spec->world_size);
    }
    return 0;
}

int sampler_init(struct sampler *s, const struct sampler_spec *spec, uint64_t sample_count, struct feedd_error *err)
{
    int rc = check_spec(spec, sample_count, err);
    if (rc != 0)
        return rc;
    s->spec = *spec;
    s->sample_count = sample_count;
    if (spec->start_position == sample_count) {
        s->spec.start_position = 0;
        if (spec->start_epoch < UINT64_MAX)
            s->spec.start_epoch++;
    }
    s->first_steps = s->spec.start_epoch < end_epoch(spec) ? steps_of(spec, sample_count - s->spec.start_position) : 0;
    s->epoch_steps = steps_of(spec, sample_count); /* at least 1: see the last check */
    return 0;
}

bool sampler_batch(const struct sampler *s, uint64_t step, struct sampler_batch *batch)
{
    const struct sampler_spec *spec = &s->spec;
    const uint64_t end = end_epoch(spec);
    if (spec->start_epoch >= end)
        return false;

    uint64_t epoch = spec->start_epoch, begin = spec->start_position; /* this epoch's, and where it begins */
    uint64_t steps = s->first_steps, k = step;                        /* k: the step within the epoch */
    if (step >= s->first_steps) {
        uint64_t epochs_ahead = (step - s->first_steps) / s->epoch_steps;
        if (epochs_ahead >= end - spec->start_epoch - 1)
            return false;
        epoch += 1 + epochs_ahead;
        begin = 0;
        steps = s->epoch_steps;
        k = (step - s->first_steps) % s->epoch_steps;
    }

    const uint64_t step_begin = begin + k * step_samples(spec);
    const uint64_t left = s->sample_count - step_begin; /* samples of the epoch from this step on: at least 1 */
    batch->epoch = epoch;
    if (spec->tail == FEEDD_TAIL_PARTIAL && left < step_samples(spec)) {
        /* left < 2^32 and rank < 2^16: no overflow. The last rank always gets a sample, so that the position of a
         * rank which gets none is still one of the epoch. */
        uint64_t from = spec->rank * left / spec->world_size;
        uint64_t to = (spec->rank + 1) * left / spec->world_size;
        batch->position = step_begin + from;
        batch->valid = (uint32_t)(to - from);
        batch->count = batch->valid != 0 ? batch->valid : 1;
    } else {
        uint64_t from = (uint64_t)spec->rank * spec->batch_size;
        uint64_t valid = from < left ? left - from : 0;
        batch->position = step_begin + from;
        batch->valid = valid < spec->batch_size ? (uint32_t)valid : spec->batch_size;
        batch->count = spec->batch_size;
    }
    if (k + 1 == steps) {
        batch->next_epoch = epoch + 1;
        batch->next_position = 0;
    } else {
        batch->next_epoch = epoch;
        batch->next_position = step_begin + step_samples(spec);
    }
    if (spec->order == FEEDD_ORDER_SHUFFLE)
        permutation_init(&batch->permutation, s->sample_count, spec->seed, epoch);
    return true;
}

uint64_t sampler_index(const struct sampler *s, const struct sampler_batch *batch, uint32_t i, uint32_t *flags)
{
    *flags = i < batch->valid ? 0 : FEEDD_SAMPLE_PADDING;
    uint64_t position = batch->position + i;
    if (position >= s->sample_count) /* padding goes on at the epoch's position 0 */
        position %= s->sample_count;
    return s->spec.order == FEEDD_ORDER_SHUFFLE ? permutation_index(&batch->permutation, position) : position;
}
