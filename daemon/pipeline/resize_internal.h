/* resize_internal.h - what resize.c leaves to kernels: weights, scaling rows, summing rows up. Each implementation is
 * one file: resize_scalar.c in plain C; resize_sse41.c and resize_avx2.c with vectors, by resize_simd.h. All give the
 * same bytes. Only these files, their tests and their benchmark include this.
 * Threads: kernels have no state. */
#ifndef FEEDD_RESIZE_INTERNAL_H
#define FEEDD_RESIZE_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "resize.h"

#define RESIZE_CHANNELS_MAX 4
#define RESIZE_WEIGHT_BITS  22                         /* Pillow's PRECISION_BITS */
#define RESIZE_WEIGHT_ONE   (1u << RESIZE_WEIGHT_BITS) /* a weight of 1 */

#define RESIZE_ROWS        4  /* that are scaled together */
#define RESIZE_GROUP       4  /* positions that are scaled together; weights that are kept together */
#define RESIZE_LOAD        16 /* bytes that vectors read at a time, and write */
#define RESIZE_BLOCK_BYTES 16 /* RESIZE_GROUP weights */

/* One direction of a scaling: position i of the scaled box has its centre at from + (i + 0.5) * scale in the source. */
struct resize_line {
    uint32_t in;             /* pixels of the source */
    double from, scale;      /* of the box; pixels a position */
    double support, inverse; /* half the filter's width, in pixels, and 1 / support */
};

/* Pixels that a position is the weighted sum of; at least one. */
struct resize_span {
    uint32_t first, count;
};

/* Positions first to first + count - 1 of a line. Tables go on to the end of the last group. */
struct resize_axis {
    struct resize_line line;
    uint32_t first, count;
    uint32_t longest;          /* span */
    uint32_t blocks;           /* of RESIZE_GROUP weights for a span; those behind its own are 0 */
    struct resize_span *spans; /* [count]; of positions behind them: the last one again */
    void *weights;             /* [count][blocks], as the kernels keep them: RESIZE_BLOCK_BYTES a block */
};

/* Up to RESIZE_ROWS rows of the source. */
struct resize_rows {
    uint32_t count, channels;
    uint32_t in_first; /* pixel that in[] begin with */
    const uint8_t *in[RESIZE_ROWS];
    uint8_t *out[RESIZE_ROWS];
};

struct resize_kernels {
    const char *name;
    bool reads_on; /* scale_rows() reads resize_reach() bytes from a span's first pixel on; else the span alone */
    /* Fills in axis->weights, by what else is there. */
    void (*weigh)(struct resize_axis *axis);
    /* Scales all positions of groups `first` to first + count - 1 to out[], one after the other, or the last one first.
     * May write RESIZE_LOAD bytes more. */
    void (*scale_rows)(const struct resize_axis *axis, uint32_t first, uint32_t count, bool mirrored,
                       const struct resize_rows *rows);
    /* Position i: the sum of rows[0] to rows[spans[i].count - 1], which are `bytes` long each. */
    void (*sum_rows)(const struct resize_axis *axis, uint32_t i, const uint8_t *const *rows, size_t bytes,
                     uint8_t *out);
};

extern const struct resize_kernels resize_scalar;
extern const struct resize_kernels resize_sse41, resize_avx2; /* x86-64 only */

/* Those that this CPU has, the fastest first. @return NULL behind the last one, which is resize_scalar */
const struct resize_kernels *resize_kernels_at(unsigned number);

/* Takes these from now on. A new resizer has the fastest. */
void resizer_use(struct resizer *resizer, const struct resize_kernels *kernels);

static inline uint32_t resize_groups(uint32_t count)
{
    return count / RESIZE_GROUP + (count % RESIZE_GROUP != 0);
}

/* How often vectors load for a position: RESIZE_GROUP pixels each, or up to six where all are in the first 16 bytes. */
static inline uint32_t resize_loads(uint32_t longest, uint32_t channels)
{
    return longest <= 6 && longest * channels <= RESIZE_LOAD ? 1 : resize_groups(longest);
}

/* How many bytes that reads, from a span's first pixel on. */
static inline size_t resize_reach(uint32_t longest, uint32_t channels)
{
    return ((size_t)resize_loads(longest, channels) - 1) * RESIZE_GROUP * channels + RESIZE_LOAD;
}

/* Of axis' position first + i. From 2^24 on, where the box's single precision skips integers, one could lie behind the
 * last pixel. */
static inline double resize_center(const struct resize_line *line, uint32_t position)
{
    const double center = line->from + (position + 0.5) * line->scale;
    return center < line->in ? center : line->in;
}

#endif
