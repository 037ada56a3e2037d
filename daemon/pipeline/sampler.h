/* sampler.h - which samples make up which batch: a pure function of (spec, sample count, step).
 *
 * Rank r of W with batch size B gets, for step k of an epoch, positions [(kW+r)B, (kW+r+1)B) counted from where the
 * epoch begins: 0, or the resume position in the first epoch after a resume. Every rank gets the same number of
 * batches. The last m < WB samples of an epoch:
 *   drop     are not delivered in this epoch
 *   pad      the step is full: positions past the end hold the samples of positions 0, 1, ... (again from 0 when an
 *            epoch is smaller than a step), flagged as padding, at the end of each rank's batch
 *   partial  rank r gets positions [floor(rm/W), floor((r+1)m/W)) of them; a rank that would get none gets one
 *            padding sample (of the position where its range would begin), so that all ranks make the same number of
 *            steps
 * An epoch of which nothing is left to deliver has no steps. Batches never span two epochs.
 * Thread-safe once initialised. */
#ifndef FEEDD_SAMPLER_H
#define FEEDD_SAMPLER_H

#include <stdbool.h>
#include <stdint.h>

#include "feedd_types.h"
#include "permutation.h"

struct sampler_spec {
    int order;               /* enum feedd_order */
    int tail;                /* enum feedd_tail */
    uint64_t seed;           /* of shuffle */
    uint64_t epochs;         /* the stream ends where this epoch would begin (epochs count from 0); 0 = never ends */
    uint32_t batch_size;     /* samples of one rank's batch, B */
    uint32_t rank;           /* r */
    uint32_t world_size;     /* W */
    uint64_t start_epoch;    /* where to begin: 0, 0, or from a resume token */
    uint64_t start_position; /* the sample count stands for 0 of the next epoch */
};

struct sampler {
    struct sampler_spec spec; /* start_position < sample_count */
    uint64_t sample_count;
    uint64_t first_steps; /* of the epoch that it starts in */
    uint64_t epoch_steps; /* of each later one */
};

/* One rank's batch of one step. */
struct sampler_batch {
    uint64_t epoch;
    uint64_t position;                  /* of its first sample; past the end when tail = pad left none for this rank */
    uint32_t count;                     /* samples, padding included; at least 1 */
    uint32_t valid;                     /* leading ones that are not padding; may be 0 */
    uint64_t next_epoch, next_position; /* where all ranks stand after this step */
    struct permutation permutation;     /* of this epoch, when the order is shuffle */
};

/* @return 0, or FEEDD_E_ARGUMENT with the value that makes no sense and what would: batch size 0, rank >= world
 * size, no samples, start position past the end, a step larger than the dataset with tail = drop. FEEDD_E_LIMIT for
 * more than FEEDD_MAX_BATCH, FEEDD_MAX_WORLD or 2^62 samples. A start past the last epoch makes no steps. */
int sampler_init(struct sampler *s, const struct sampler_spec *spec, uint64_t sample_count, struct feedd_error *err);

/* The batch of `step`, counted over epochs from where the sampler starts.
 * @return false when the stream has ended before this step */
bool sampler_batch(const struct sampler *s, uint64_t step, struct sampler_batch *batch);

/* Index of sample i < count of the batch; *flags gets FEEDD_SAMPLE_PADDING or 0. */
uint64_t sampler_index(const struct sampler *s, const struct sampler_batch *batch, uint32_t i, uint32_t *flags);

#endif
