/* resize_scalar.c - see resize_internal.h: the kernels in plain C. A block is RESIZE_GROUP weights as uint32_t.
 *
 * Nothing can fail. Threads: any. */
#include <string.h>

#include "resize_internal.h"

#define WEIGHT_HALF (1u << (RESIZE_WEIGHT_BITS - 1)) /* what rounding adds */
#define LANES       16 /* bytes of a row that are summed up at a time: compilers make vectors of them */

static uint32_t *weights_at(const struct resize_axis *axis, size_t i)
{
    return (uint32_t *)axis->weights + i * axis->blocks * RESIZE_GROUP;
}

/* Weights of many taps may add up to a little more than 1. Sums stay far below 2^32. */
static inline uint8_t round_sum(uint32_t sum)
{
    sum >>= RESIZE_WEIGHT_BITS;
    return (uint8_t)(sum < 255 ? sum : 255);
}

static double triangle(double x)
{
    if (x < 0)
        x = -x;
    return x < 1 ? 1 - x : 0;
}

/* As the second half of Pillow's precompute_coeffs() and normalize_coeffs_8bpc(), operation by operation: a weight that
 * is rounded otherwise changes pixels. */
static void weigh(struct resize_axis *axis)
{
    const struct resize_line *line = &axis->line;
    const uint32_t most = axis->blocks * RESIZE_GROUP;
    for (uint32_t i = 0; i < axis->count; i++) {
        const double center = resize_center(line, axis->first + i), first = axis->spans[i].first;
        const uint32_t count = axis->spans[i].count;
        uint32_t *weights = weights_at(axis, i);
        double sum = 0;
        for (uint32_t t = 0; t < count; t++)
            sum += triangle((first + t - center + 0.5) * line->inverse);
        for (uint32_t t = 0; t < count; t++) {
            const double weight = triangle((first + t - center + 0.5) * line->inverse) / sum;
            weights[t] = (uint32_t)(0.5 + weight * RESIZE_WEIGHT_ONE);
        }
        for (uint32_t t = count; t < most; t++)
            weights[t] = 0;
    }
    for (size_t i = axis->count; i % RESIZE_GROUP != 0; i++)
        memcpy(weights_at(axis, i), weights_at(axis, axis->count - 1), most * sizeof(uint32_t));
}

/* `channels` is a constant in each caller. */
static inline __attribute__((always_inline)) void scale_row(const struct resize_axis *axis, uint32_t first,
                                                            uint32_t count, bool mirrored, const uint32_t channels,
                                                            const uint8_t *in, uint32_t in_first, uint8_t *out)
{
    const size_t begin = (size_t)first * RESIZE_GROUP, positions = (size_t)count * RESIZE_GROUP;
    for (size_t n = 0; n < positions; n++) {
        const size_t i = begin + (mirrored ? positions - 1 - n : n);
        const uint32_t *weights = weights_at(axis, i);
        const uint8_t *from = in + (size_t)(axis->spans[i].first - in_first) * channels;
        uint32_t sums[RESIZE_CHANNELS_MAX] = {WEIGHT_HALF, WEIGHT_HALF, WEIGHT_HALF, WEIGHT_HALF};
        for (uint32_t t = 0; t < axis->spans[i].count; t++, from += channels)
            for (uint32_t c = 0; c < channels; c++)
                sums[c] += from[c] * weights[t];
        for (uint32_t c = 0; c < channels; c++)
            *out++ = round_sum(sums[c]);
    }
}

static void scale_rows(const struct resize_axis *axis, uint32_t first, uint32_t count, bool mirrored,
                       const struct resize_rows *rows)
{
    for (uint32_t r = 0; r < rows->count; r++) {
        const uint8_t *in = rows->in[r];
        uint8_t *out = rows->out[r];
        switch (rows->channels) {
        case 1:
            scale_row(axis, first, count, mirrored, 1, in, rows->in_first, out);
            break;
        case 2:
            scale_row(axis, first, count, mirrored, 2, in, rows->in_first, out);
            break;
        case 3:
            scale_row(axis, first, count, mirrored, 3, in, rows->in_first, out);
            break;
        default:
            scale_row(axis, first, count, mirrored, 4, in, rows->in_first, out);
        }
    }
}

static void sum_rows(const struct resize_axis *axis, uint32_t i, const uint8_t *const *rows, size_t bytes, uint8_t *out)
{
    const uint32_t *weights = weights_at(axis, i), count = axis->spans[i].count;
    if (count == 1) {
        memcpy(out, rows[0], bytes);
        return;
    }
    size_t x = 0;
    for (; x + LANES <= bytes; x += LANES) {
        uint32_t sums[LANES];
        for (int lane = 0; lane < LANES; lane++)
            sums[lane] = WEIGHT_HALF;
        for (uint32_t t = 0; t < count; t++) {
            const uint8_t *row = rows[t] + x;
            const uint32_t weight = weights[t];
            for (int lane = 0; lane < LANES; lane++)
                sums[lane] += row[lane] * weight;
        }
        for (int lane = 0; lane < LANES; lane++)
            out[x + (size_t)lane] = round_sum(sums[lane]);
    }
    for (; x < bytes; x++) {
        uint32_t sum = WEIGHT_HALF;
        for (uint32_t t = 0; t < count; t++)
            sum += rows[t][x] * weights[t];
        out[x] = round_sum(sum);
    }
}

const struct resize_kernels resize_scalar = {"scalar", false, weigh, scale_rows, sum_rows};
