/* resize.c - see resize.h.
 *
 * Happy path: tables of weights for both axes, or those of the last image -> for each row of the window, the input rows
 * that it needs and that aren't there yet are scaled horizontally into a ring of rows, four at a time -> their weighted
 * sum is written. What computes is in kernels (resize_internal.h), chosen by what the CPU has.
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
#include "resize_internal.h"

#define KEEP_BYTES (64u << 20) /* a resizer that grew larger for one image gives all of it back */

struct buffer {
    void *data;
    size_t bytes;
};

struct axis {
    struct resize_axis table; /* count 0: there is none */
    struct buffer spans, weights;
};

struct resizer {
    const struct resize_kernels *kernels;
    struct axis x, y;
    struct buffer ring;  /* rows that are scaled horizontally: input row r in row r % ring_rows */
    struct buffer tails; /* ends of RESIZE_ROWS input rows, with room to read on */
    struct buffer rows;  /* const uint8_t *[longest span of y]: where the rows of one span are */
};

const struct resize_kernels *resize_kernels_at(unsigned number)
{
#ifdef RESIZE_X86
    if (!__builtin_cpu_supports("avx2"))
        number++;
    if (number > 0 && !__builtin_cpu_supports("sse4.1"))
        number++;
    static const struct resize_kernels *const all[] = {&resize_avx2, &resize_sse41, &resize_scalar};
#else
    static const struct resize_kernels *const all[] = {&resize_scalar};
#endif
    return number < sizeof(all) / sizeof(all[0]) ? all[number] : NULL;
}

int resizer_new(struct resizer **out, struct feedd_error *err)
{
    struct resizer *resizer = calloc(1, sizeof(*resizer));
    if (resizer == NULL)
        return error_set(err, FEEDD_E_MEMORY, "not enough memory for a resizer");
    resizer->kernels = resize_kernels_at(0);
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
    release(&resizer->tails);
    release(&resizer->rows);
    resizer->x.table.count = resizer->y.table.count = 0;
}

void resizer_use(struct resizer *resizer, const struct resize_kernels *kernels)
{
    release_all(resizer); /* tables are as the kernels made them */
    resizer->kernels = kernels;
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

/* As Pillow's: the box in single precision. */
static struct resize_line line_of(uint32_t in, double from, double length, uint32_t scaled)
{
    const float box[2] = {(float)from, (float)(from + length)};
    struct resize_line line = {.in = in, .from = box[0], .scale = (double)(box[1] - box[0]) / scaled};
    line.support = line.scale < 1 ? 1 : line.scale;
    line.inverse = 1.0 / line.support;
    return line;
}

static struct resize_line line_x(const struct resize_spec *spec)
{
    return line_of(spec->width, spec->box.x, spec->box.width, spec->scaled_width);
}

static struct resize_line line_y(const struct resize_spec *spec)
{
    return line_of(spec->height, spec->box.y, spec->box.height, spec->scaled_height);
}

/* As the first half of Pillow's precompute_coeffs(), operation by operation, but without a last pixel that is just one
 * support away, for its weight is 0. First pixels and ends only ever grow with the position. */
static struct resize_span span_of(const struct resize_line *line, uint32_t position)
{
    const double center = resize_center(line, position);
    const int64_t low = (int64_t)(center - line->support + 0.5), high = (int64_t)(center + line->support + 0.5);
    const uint32_t first = low < 0 ? 0 : (uint32_t)low, end = high > line->in ? line->in : (uint32_t)high;
    const bool touched = ((double)(end - 1) - center + 0.5) * line->inverse >= 1;
    return (struct resize_span){first, end - first - touched};
}

/* The table for positions first to first + count - 1, unless it is there. */
static int prepare(struct axis *axis, const struct resize_kernels *kernels, struct resize_line line, uint32_t first,
                   uint32_t count, struct feedd_error *err)
{
    struct resize_axis *table = &axis->table;
    if (table->line.in == line.in && table->line.from == line.from && table->line.scale == line.scale &&
        table->first == first && table->count == count)
        return 0;
    const size_t room = (size_t)resize_groups(count) * RESIZE_GROUP;
    table->count = 0;
    int rc = reserve(&axis->spans, room, sizeof(struct resize_span), err);
    if (rc != 0)
        return rc;
    struct resize_span *spans = axis->spans.data;
    uint32_t longest = 0;
    for (uint32_t i = 0; i < count; i++) {
        spans[i] = span_of(&line, first + i);
        longest = spans[i].count > longest ? spans[i].count : longest;
    }
    for (size_t i = count; i < room; i++)
        spans[i] = spans[count - 1];
    const uint32_t blocks = resize_groups(longest);
    rc = reserve(&axis->weights, room, (size_t)blocks * RESIZE_BLOCK_BYTES, err);
    if (rc != 0)
        return rc;
    *table = (struct resize_axis){line, first, count, longest, blocks, spans, axis->weights.data};
    kernels->weigh(table);
    return 0;
}

/* The pixels that positions first to first + count - 1 are made of. */
static struct resize_span source_of(struct resize_line line, uint32_t first, uint32_t count)
{
    const struct resize_span begin = span_of(&line, first), end = span_of(&line, first + count - 1);
    return (struct resize_span){begin.first, end.first + end.count - begin.first};
}

struct rect resize_source(const struct resize_spec *spec)
{
    const struct resize_span columns = source_of(line_x(spec), spec->window.x, spec->window.width);
    const struct resize_span rows = source_of(line_y(spec), spec->window.y, spec->window.height);
    return (struct rect){columns.first, rows.first, columns.count, rows.count};
}

/* One scaling on its way. */
struct job {
    const struct resize_kernels *kernels;
    const struct resize_axis *x, *y;
    const uint8_t *in; /* pixel (held.x, held.y) */
    struct rect held;
    size_t in_stride;
    uint32_t channels;
    bool mirrored;
    uint32_t groups, inside;    /* of x; those which are made of the held rows as they are */
    size_t tail_at, tail_bytes; /* of a held row: what the others are made of, by way of a copy */
    uint8_t *tails, *ring;
    size_t tail_stride, ring_stride;
    uint32_t ring_rows;
};

/* Kernels may read on behind a span's end, but not behind the row's: there they get a copy of it with some room. */
static void find_tail(struct job *job)
{
    const struct resize_span *spans = job->x->spans;
    const size_t row = (size_t)job->held.width * job->channels, reach = resize_reach(job->x->longest, job->channels);
    job->groups = job->inside = resize_groups(job->x->count);
    while (job->kernels->reads_on && job->inside > 0 &&
           (size_t)(spans[job->inside * RESIZE_GROUP - 1].first - job->held.x) * job->channels + reach > row)
        job->inside--;
    if (job->inside < job->groups) {
        job->tail_at = (size_t)(spans[job->inside * RESIZE_GROUP].first - job->held.x) * job->channels;
        job->tail_bytes = row - job->tail_at;
        job->tail_stride = job->tail_bytes + reach;
    }
}

/* Rows `first` and up to three more of the source, into the ring. */
static void fill_ring(const struct job *job, uint32_t first, uint32_t count)
{
    const uint32_t outside = job->groups - job->inside;
    const size_t group_bytes = (size_t)RESIZE_GROUP * job->channels;
    const size_t excess = job->groups * group_bytes - (size_t)job->x->count * job->channels; /* of the last group */
    struct resize_rows rows = {.count = count, .channels = job->channels, .in_first = job->held.x};
    struct resize_rows tails = rows;
    tails.in_first += (uint32_t)(job->tail_at / job->channels);
    for (uint32_t r = 0; r < count; r++) {
        uint8_t *out = job->ring + (first + r) % job->ring_rows * job->ring_stride;
        rows.in[r] = job->in + (size_t)(first + r - job->held.y) * job->in_stride;
        rows.out[r] = job->mirrored ? out - excess + outside * group_bytes : out;
        if (outside > 0) {
            uint8_t *tail = job->tails + r * job->tail_stride;
            tails.in[r] = memcpy(tail, rows.in[r] + job->tail_at, job->tail_bytes);
            tails.out[r] = job->mirrored ? out - excess : out + job->inside * group_bytes;
        }
    }
    /* From left to right, for each writes a little too much. */
    if (job->mirrored && outside > 0)
        job->kernels->scale_rows(job->x, job->inside, outside, true, &tails);
    if (job->inside > 0)
        job->kernels->scale_rows(job->x, 0, job->inside, job->mirrored, &rows);
    if (!job->mirrored && outside > 0)
        job->kernels->scale_rows(job->x, job->inside, outside, false, &tails);
}

/* Buffers for rows that are scaled horizontally. */
static int ring_init(struct resizer *resizer, struct job *job, struct feedd_error *err)
{
    find_tail(job);
    job->ring_rows = job->y->longest + RESIZE_ROWS - 1;
    job->ring_stride = (size_t)job->x->count * job->channels + 2 * RESIZE_LOAD;
    int rc = reserve(&resizer->ring, job->ring_rows, job->ring_stride, err);
    if (rc == 0)
        rc = reserve(&resizer->tails, RESIZE_ROWS, job->tail_stride, err);
    if (rc != 0)
        return rc;
    job->ring = (uint8_t *)resizer->ring.data + RESIZE_LOAD;
    job->tails = resizer->tails.data;
    if (job->tail_stride > 0)
        for (size_t r = 0; r < RESIZE_ROWS; r++) /* what is read there has weight 0 */
            memset(job->tails + r * job->tail_stride + job->tail_bytes, 0, job->tail_stride - job->tail_bytes);
    return 0;
}

/* Whether positions are pixels of the source as they are. */
static bool is_copy(const struct resize_axis *axis)
{
    return axis->longest == 1 && axis->spans[axis->count - 1].first - axis->spans[0].first == axis->count - 1;
}

static int scale(struct resizer *resizer, struct job *job, uint8_t *out, struct feedd_error *err)
{
    const struct resize_axis *y = job->y;
    const size_t row_bytes = (size_t)job->x->count * job->channels;
    const bool in_place = is_copy(job->x) && !job->mirrored; /* the input's rows serve as they are */
    int rc = reserve(&resizer->rows, y->longest, sizeof(const uint8_t *), err);
    if (rc == 0 && !in_place)
        rc = ring_init(resizer, job, err);
    if (rc != 0)
        return rc;
    const uint8_t **rows = resizer->rows.data;
    const uint8_t *in = job->in + (size_t)(job->x->spans[0].first - job->held.x) * job->channels;
    const uint32_t last = y->spans[y->count - 1].first + y->spans[y->count - 1].count;
    uint32_t next = y->spans[0].first; /* the first row that isn't in the ring yet */
    for (uint32_t i = 0; i < y->count; i++, out += row_bytes) {
        const uint32_t first = y->spans[i].first, end = first + y->spans[i].count;
        while (!in_place && next < end) {
            const uint32_t count = last - next < RESIZE_ROWS ? last - next : RESIZE_ROWS;
            fill_ring(job, next, count);
            next += count;
        }
        for (uint32_t r = first; r < end; r++)
            rows[r - first] = in_place ? in + (size_t)(r - job->held.y) * job->in_stride
                                       : job->ring + r % job->ring_rows * job->ring_stride;
        job->kernels->sum_rows(y, i, rows, row_bytes, out);
    }
    return 0;
}

static bool contains(struct rect outer, struct rect inner)
{
    return inner.x >= outer.x && inner.y >= outer.y && outer.width >= inner.width && outer.height >= inner.height &&
           inner.x - outer.x <= outer.width - inner.width && inner.y - outer.y <= outer.height - inner.height;
}

int resizer_apply(struct resizer *resizer, const struct resize_spec *spec, const uint8_t *in, struct rect held,
                  size_t in_stride, uint8_t *out, struct feedd_error *err)
{
    const struct rect window = spec->window;
    ENSURE(spec->channels >= 1 && spec->channels <= RESIZE_CHANNELS_MAX);
    ENSURE(spec->width <= INT32_MAX && spec->height <= INT32_MAX);
    ENSURE(spec->box.x >= 0 && spec->box.width > 0 && spec->box.x + spec->box.width <= spec->width);
    ENSURE(spec->box.y >= 0 && spec->box.height > 0 && spec->box.y + spec->box.height <= spec->height);
    ENSURE(contains((struct rect){0, 0, spec->scaled_width, spec->scaled_height}, window));
    ENSURE(window.width > 0 && window.height > 0);
    ENSURE(contains((struct rect){0, 0, spec->width, spec->height}, held) && contains(held, resize_source(spec)));

    int rc = prepare(&resizer->x, resizer->kernels, line_x(spec), window.x, window.width, err);
    if (rc == 0)
        rc = prepare(&resizer->y, resizer->kernels, line_y(spec), window.y, window.height, err);
    struct job job = {.kernels = resizer->kernels,
                      .x = &resizer->x.table,
                      .y = &resizer->y.table,
                      .in = in,
                      .held = held,
                      .in_stride = in_stride,
                      .channels = spec->channels,
                      .mirrored = spec->flip};
    if (rc == 0)
        rc = scale(resizer, &job, out, err);
    if (resizer->x.spans.bytes + resizer->x.weights.bytes + resizer->y.spans.bytes + resizer->y.weights.bytes +
            resizer->ring.bytes + resizer->tails.bytes + resizer->rows.bytes >
        KEEP_BYTES)
        release_all(resizer);
    return rc;
}
