/* resize.c - see resize.h.
 *
 * Happy path: tables of weights for both axes, or those of the last image -> for each row of the window, the input rows
 * that it needs and that aren't there yet are scaled horizontally into a ring of rows -> their weighted sum is written.
 * What can fail: memory.
 * Threads: a resizer is one worker's scratch.
 *
 * The ring has as many rows as one row of the window needs, a few for photos, so that it stays in the cache. */
#include "resize.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "ensure.h"
#include "error.h"

#define WEIGHT_BITS 22                        /* Pillow's PRECISION_BITS */
#define WEIGHT_ONE  (1u << WEIGHT_BITS)       /* a weight of 1 */
#define WEIGHT_HALF (1u << (WEIGHT_BITS - 1)) /* what rounding adds */

#define CHANNELS_MAX 4
#define KEEP_BYTES   (64u << 20) /* a resizer that grew larger for one image gives all of it back */
#define LANES        16          /* bytes of a row that are summed up at a time: they fit the registers of SSE2 */

struct buffer {
    void *data;
    size_t bytes;
};

/* The part of the input that one position of the output is made of. */
struct span {
    uint32_t first, count;
};

/* One direction's table: position first + i of `scaled` is the sum of the pixels of spans[i] times weights[i]. */
struct axis {
    uint32_t in, scaled, first, count; /* what the table is for; count 0: for nothing */
    uint32_t taps;                     /* room for weights a position */
    uint32_t longest;                  /* span */
    struct buffer spans, weights;      /* struct span [count], uint32_t [count][taps] */
};

struct resizer {
    struct axis x, y;
    struct buffer ring; /* rows that are scaled horizontally: y.longest, input row r in row r % y.longest */
    struct buffer rows; /* const uint8_t *[y.longest]: where the rows of one span are */
};

int resizer_new(struct resizer **out, struct feedd_error *err)
{
    struct resizer *resizer = calloc(1, sizeof(*resizer));
    if (resizer == NULL)
        return error_set(err, FEEDD_E_MEMORY, "not enough memory for a resizer");
    *out = resizer;
    return 0;
}

static void release(struct buffer *buffer)
{
    free(buffer->data);
    *buffer = (struct buffer){NULL, 0};
}

static void release_all(struct resizer *resizer)
{
    release(&resizer->x.spans);
    release(&resizer->x.weights);
    release(&resizer->y.spans);
    release(&resizer->y.weights);
    release(&resizer->ring);
    release(&resizer->rows);
    resizer->x.count = resizer->y.count = 0;
}

void resizer_free(struct resizer *resizer)
{
    if (resizer == NULL)
        return;
    release_all(resizer);
    free(resizer);
}

/* Room for count x size bytes; what was there is lost when there was less. */
static int reserve(struct buffer *buffer, size_t count, size_t size, struct feedd_error *err)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes))
        return error_set(err, FEEDD_E_MEMORY, "resizing: not enough memory for %zu x %zu bytes", count, size);
    if (bytes <= buffer->bytes)
        return 0;
    release(buffer);
    buffer->data = malloc(bytes);
    if (buffer->data == NULL)
        return error_set(err, FEEDD_E_MEMORY, "resizing: not enough memory for %zu bytes", bytes);
    buffer->bytes = bytes;
    return 0;
}

static double triangle(double x)
{
    if (x < 0)
        x = -x;
    return x < 1 ? 1 - x : 0;
}

/* Pillow's precompute_coeffs() and normalize_coeffs_8bpc() for one position, operation by operation: a weight that is
 * rounded otherwise changes pixels. */
static struct span weigh(uint32_t in, double scale, double filter_scale, uint32_t position, uint32_t *weights)
{
    const double center = (position + 0.5) * scale, inverse = 1.0 / filter_scale;
    const int64_t low = (int64_t)(center - filter_scale + 0.5), high = (int64_t)(center + filter_scale + 0.5);
    const uint32_t first = low < 0 ? 0 : (uint32_t)low;
    uint32_t count = (high > in ? in : (uint32_t)high) - first;

    double sum = 0;
    for (uint32_t i = 0; i < count; i++)
        sum += triangle(((double)first + i - center + 0.5) * inverse);
    for (uint32_t i = 0; i < count; i++)
        weights[i] = (uint32_t)(0.5 + triangle(((double)first + i - center + 0.5) * inverse) / sum * WEIGHT_ONE);
    while (count > 1 && weights[count - 1] == 0) /* so that a scale of 1 has one weight */
        count--;
    return (struct span){first, count};
}

/* The table for positions first to first + count - 1 of `scaled`, unless it is there. */
static int prepare(struct axis *axis, uint32_t in, uint32_t scaled, uint32_t first, uint32_t count,
                   struct feedd_error *err)
{
    if (axis->in == in && axis->scaled == scaled && axis->first == first && axis->count == count)
        return 0;
    const double scale = (double)in / scaled, filter_scale = scale < 1 ? 1 : scale;
    const uint64_t widest = 2 * ((uint64_t)in / scaled + 1) + 1; /* a span is less than 2 filter_scale + 1 */
    const uint32_t taps = widest < in ? (uint32_t)widest : in;

    axis->count = 0;
    int rc = reserve(&axis->spans, count, sizeof(struct span), err);
    if (rc == 0)
        rc = reserve(&axis->weights, count, taps * sizeof(uint32_t), err);
    if (rc != 0)
        return rc;
    struct span *spans = axis->spans.data;
    uint32_t *weights = axis->weights.data, longest = 0;
    for (uint32_t i = 0; i < count; i++) {
        spans[i] = weigh(in, scale, filter_scale, first + i, weights + (size_t)i * taps);
        if (spans[i].count > longest)
            longest = spans[i].count;
    }
    axis->in = in;
    axis->scaled = scaled;
    axis->first = first;
    axis->count = count;
    axis->taps = taps;
    axis->longest = longest;
    return 0;
}

/* Weights of many taps may add up to a little more than 1. Sums stay far below 2^32. */
static inline uint8_t round_sum(uint32_t sum)
{
    sum >>= WEIGHT_BITS;
    return (uint8_t)(sum < 255 ? sum : 255);
}

/* One row of the window's width; `channels` is a constant in each caller. */
static inline __attribute__((always_inline)) void scale_row(const struct axis *axis, const uint8_t *in,
                                                            const uint32_t channels, bool flip, uint8_t *out)
{
    const struct span *spans = axis->spans.data;
    const uint32_t *weights = axis->weights.data;
    for (uint32_t i = 0; i < axis->count; i++, weights += axis->taps) {
        const uint8_t *from = in + (size_t)spans[i].first * channels;
        uint8_t *to = out + (size_t)(flip ? axis->count - 1 - i : i) * channels;
        uint32_t sums[CHANNELS_MAX] = {WEIGHT_HALF, WEIGHT_HALF, WEIGHT_HALF, WEIGHT_HALF};
        for (uint32_t t = 0; t < spans[i].count; t++, from += channels)
            for (uint32_t c = 0; c < channels; c++)
                sums[c] += from[c] * weights[t];
        for (uint32_t c = 0; c < channels; c++)
            to[c] = round_sum(sums[c]);
    }
}

static void scale_horizontally(const struct axis *axis, const uint8_t *in, uint32_t channels, bool flip, uint8_t *out)
{
    switch (channels) {
    case 1:
        scale_row(axis, in, 1, flip, out);
        break;
    case 2:
        scale_row(axis, in, 2, flip, out);
        break;
    case 3:
        scale_row(axis, in, 3, flip, out);
        break;
    default:
        scale_row(axis, in, 4, flip, out);
    }
}

/* The weighted sum of `count` rows. */
static void sum_rows(const uint8_t *const *rows, const uint32_t *weights, uint32_t count, size_t bytes, uint8_t *out)
{
    if (count == 1 && weights[0] == WEIGHT_ONE) { /* a scale of 1 */
        memcpy(out, rows[0], bytes);
        return;
    }
    size_t x = 0;
    for (; x + LANES <= bytes; x += LANES) {
        uint32_t sums[LANES];
        for (int i = 0; i < LANES; i++)
            sums[i] = WEIGHT_HALF;
        for (uint32_t t = 0; t < count; t++) {
            const uint8_t *row = rows[t] + x;
            const uint32_t weight = weights[t];
            for (int i = 0; i < LANES; i++)
                sums[i] += row[i] * weight;
        }
        for (int i = 0; i < LANES; i++)
            out[x + (size_t)i] = round_sum(sums[i]);
    }
    for (; x < bytes; x++) {
        uint32_t sum = WEIGHT_HALF;
        for (uint32_t t = 0; t < count; t++)
            sum += rows[t][x] * weights[t];
        out[x] = round_sum(sum);
    }
}

/* Tables and buffers are there. */
static void scale(struct resizer *resizer, const uint8_t *in, size_t in_stride, uint32_t channels, bool flip,
                  uint8_t *out)
{
    const struct axis *x = &resizer->x, *y = &resizer->y;
    const size_t row_bytes = (size_t)x->count * channels;
    const bool in_place = x->in == x->scaled && !flip; /* the input's rows serve as they are */
    const struct span *spans = y->spans.data;
    const uint32_t *weights = y->weights.data;
    const uint8_t **rows = resizer->rows.data;
    uint8_t *ring = resizer->ring.data;

    uint32_t next = 0; /* the first input row that hasn't been scaled; spans only ever move down */
    for (uint32_t i = 0; i < y->count; i++, weights += y->taps, out += row_bytes) {
        const uint32_t first = spans[i].first, end = first + spans[i].count;
        if (!in_place) {
            for (next = next > first ? next : first; next < end; next++)
                scale_horizontally(x, in + next * in_stride, channels, flip, ring + next % y->longest * row_bytes);
        }
        for (uint32_t r = first; r < end; r++)
            rows[r - first] =
                in_place ? in + r * in_stride + (size_t)x->first * channels : ring + r % y->longest * row_bytes;
        sum_rows(rows, weights, spans[i].count, row_bytes, out);
    }
}

int resizer_apply(struct resizer *resizer, const uint8_t *in, uint32_t in_width, uint32_t in_height, size_t in_stride,
                  uint32_t channels, uint32_t scaled_width, uint32_t scaled_height, struct rect window, int flip,
                  uint8_t *out, struct feedd_error *err)
{
    ENSURE(channels >= 1 && channels <= CHANNELS_MAX && in_width > 0 && in_height > 0);
    ENSURE(window.width > 0 && window.x < scaled_width && window.width <= scaled_width - window.x);
    ENSURE(window.height > 0 && window.y < scaled_height && window.height <= scaled_height - window.y);

    int rc = prepare(&resizer->x, in_width, scaled_width, window.x, window.width, err);
    if (rc == 0)
        rc = prepare(&resizer->y, in_height, scaled_height, window.y, window.height, err);
    if (rc == 0)
        rc = reserve(&resizer->rows, resizer->y.longest, sizeof(const uint8_t *), err);
    if (rc == 0)
        rc = reserve(&resizer->ring, resizer->y.longest, (size_t)window.width * channels, err);
    if (rc == 0)
        scale(resizer, in, in_stride, channels, flip != 0, out);

    if (resizer->x.spans.bytes + resizer->x.weights.bytes + resizer->y.spans.bytes + resizer->y.weights.bytes +
            resizer->ring.bytes + resizer->rows.bytes >
        KEEP_BYTES)
        release_all(resizer);
    return rc;
}
