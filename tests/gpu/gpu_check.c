/* gpu_check.c - gpu_client check: the same stream on the host and on the GPU, batch after batch, bit for bit.
 *
 * Happy path: of each batch its record and, by feedd_batch_read(), every field; then feedd_normalize() into every dtype
 * and layout, each with an output size, an offset, constants and windows drawn at random. The GPU's output is poisoned
 * before and lies between guards, which are compared too; its windows are overwritten right after the call. The batch
 * is given back while the last kernel is still queued. What can fail: a comparison; a line for each, up to a limit, on
 * standard error. Threads: one. */
#include <inttypes.h>
#include <string.h>

#include "gpu_client.h"

#define BATCHES_DEFAULT 10
#define GUARD           256 /* bytes before and after the output */
#define FAILURES_SHOWN  20

struct check {
    struct session host, gpu;
    uint32_t image;                          /* number of the field */
    const uint64_t *shape;                   /* its height, width, channels */
    uint8_t *expected, *actual, *out;        /* pageable, pinned, the GPU's: output_bytes each */
    size_t output_bytes;                     /* guards included */
    struct feedd_window *windows;            /* batch_size */
    uint64_t random;                         /* state */
    uint64_t cases, values, failed, batches; /* so far */
};

static const uint32_t element_bytes[] = {
    [FEEDD_U8] = 1, [FEEDD_I8] = 1, [FEEDD_F16] = 2, [FEEDD_BF16] = 2, [FEEDD_F32] = 4};

static bool failure(struct check *c)
{
    return c->failed++ < FAILURES_SHOWN;
}

static double random_between(struct check *c, double low, double high)
{
    return low + (high - low) * (double)(random_bits(&c->random) >> 11) / (double)(1ull << 53);
}

/* Output size, constants and windows; dtype and layout are set. */
static void draw(struct check *c, struct feedd_normalize_options *options, uint32_t count)
{
    const uint32_t height = (uint32_t)c->shape[0], width = (uint32_t)c->shape[1];
    const bool smaller = random_below(&c->random, 3) != 0, windows = random_below(&c->random, 4) != 0;
    if (smaller) {
        options->height = 1 + random_below(&c->random, height);
        options->width = 1 + random_below(&c->random, width);
    }
    const uint32_t rows = smaller ? height - options->height : 0, columns = smaller ? width - options->width : 0;
    for (int i = 0; i < 4; i++) {
        options->mean[i] = random_between(c, 0, 1);
        options->std[i] = random_between(c, 0.01, 1);
    }
    options->scale = random_below(&c->random, 2) != 0 ? 255 : random_between(c, 0.5, 300);
    options->windows = windows ? c->windows : NULL;
    for (uint32_t i = 0; i < count; i++)
        c->windows[i] = (struct feedd_window){random_below(&c->random, rows + 1), random_below(&c->random, columns + 1),
                                              random_below(&c->random, 2)};
}

static void compare_output(struct check *c, const struct feedd_normalize_options *options, size_t start, size_t bytes,
                           uint8_t poison)
{
    const size_t all = start + bytes + GUARD;
    c->cases++;
    c->values += bytes / element_bytes[options->dtype];
    if (memcmp(c->expected, c->actual, all) == 0 || !failure(c))
        return;
    size_t first = 0, differing = 0;
    for (size_t i = all; i-- > 0;)
        if (c->expected[i] != c->actual[i]) {
            first = i;
            differing++;
        }
    fprintf(stderr, "FAIL batch %" PRIu64 ", %s, %s, %u x %u, windows %s: %zu of %zu bytes differ, ", c->batches,
            feedd_dtype_name(options->dtype), options->nchw ? "NCHW" : "NHWC", options->height, options->width,
            options->windows != NULL ? "yes" : "no", differing, bytes);
    if (first < start || first >= start + bytes)
        fprintf(stderr, "the first in a guard\n");
    else
        fprintf(stderr, "the first at %zu: %02x not %02x%s\n", first - start, c->actual[first], c->expected[first],
                c->actual[first] == poison ? " (not written)" : "");
}

/* One dtype and layout of one batch. @param last  gives the GPU's batch back as early as that may be */
static void check_normalize(struct check *c, const struct feedd_batch *host, const struct feedd_batch *gpu, int dtype,
                            int nchw, bool last)
{
    struct feedd_normalize_options options = FEEDD_NORMALIZE_OPTIONS_INIT;
    struct feedd_batch_info info;
    struct feedd_error err;
    const uint8_t poison = random_below(&c->random, 2) != 0 ? 0xA5 : 0x5A;
    feedd_batch_info(host, &info);
    options.dtype = dtype;
    options.nchw = nchw;
    draw(c, &options, info.count);
    const uint64_t height = options.height != 0 ? options.height : c->shape[0];
    const uint64_t width = options.width != 0 ? options.width : c->shape[1];
    const size_t bytes = info.count * height * width * c->shape[2] * element_bytes[dtype];
    const size_t start = GUARD + random_below(&c->random, 4) * element_bytes[dtype];
    const size_t all = start + bytes + GUARD;
    memset(c->expected, poison, all);
    must(feedd_normalize(host, c->image, &options, c->expected + start, bytes, NULL, &err), &err);
    TRY(cudaMemsetAsync(c->out, poison, all, c->gpu.cuda));
    must(feedd_normalize(gpu, c->image, &options, c->out + start, bytes, c->gpu.cuda, &err), &err);
    memset(c->windows, 0xFF, info.count * sizeof(*c->windows)); /* they were read during the call */
    if (last)
        session_release(&c->gpu, gpu);
    TRY(cudaMemcpyAsync(c->actual, c->out, all, cudaMemcpyDeviceToHost, c->gpu.cuda));
    session_wait(&c->gpu);
    compare_output(c, &options, start, bytes, poison);
}

static void check_fields(struct check *c, const struct feedd_batch *host, const struct feedd_batch *gpu)
{
    for (uint32_t i = 0; i < c->host.schema->field_count; i++) {
        struct feedd_view view;
        struct feedd_error err;
        feedd_batch_view(host, i, &view);
        memset(c->expected, 0xA5, view.bytes);
        must(feedd_batch_read(gpu, i, c->expected, view.bytes, &err), &err);
        c->cases++;
        if (memcmp(c->expected, view.data, view.bytes) != 0 && failure(c))
            fprintf(stderr, "FAIL batch %" PRIu64 ": feedd_batch_read() of %s\n", c->batches,
                    c->host.schema->fields[i].name);
    }
}

static void check_records(struct check *c, const struct feedd_batch *host, const struct feedd_batch *gpu)
{
    struct feedd_batch_info a, b;
    feedd_batch_info(host, &a);
    feedd_batch_info(gpu, &b);
    const bool same = a.seq == b.seq && a.epoch == b.epoch && a.position == b.position && a.count == b.count &&
                      a.valid == b.valid && memcmp(a.indices, b.indices, a.count * sizeof(*a.indices)) == 0 &&
                      memcmp(a.flags, b.flags, a.count * sizeof(*a.flags)) == 0;
    c->cases++;
    if (!same && failure(c))
        fprintf(stderr, "FAIL batch %" PRIu64 ": its record\n", c->batches);
}

static void check_batch(struct check *c, const struct feedd_batch *host, const struct feedd_batch *gpu)
{
    check_records(c, host, gpu);
    check_fields(c, host, gpu);
    for (int dtype = FEEDD_U8; dtype <= FEEDD_F32; dtype++)
        for (int nchw = 0; nchw < 2; nchw++)
            check_normalize(c, host, gpu, dtype, nchw, dtype == FEEDD_F32 && nchw == 1);
    session_release(&c->host, host);
    c->batches++;
}

int command_check(const struct options *options)
{
    struct check c = {.random = options->open.has_seed ? options->open.seed : (uint64_t)time(NULL)};
    const uint64_t most = options->batches != 0 ? options->batches : BATCHES_DEFAULT, seed = c.random;
    session_open(&c.gpu, options, options->open.device);
    session_open(&c.host, options, "host");
    c.image = session_image(&c.host);
    c.shape = c.host.schema->fields[c.image].shape;
    const uint32_t batch_size = c.host.schema->batch_size;
    /* Other fields, 8 bytes a sample at most, are read into `expected` too. */
    c.output_bytes = batch_size * (c.shape[0] * c.shape[1] * c.shape[2] * sizeof(float) + 8) + 3 * GUARD;
    c.expected = allocate(c.output_bytes);
    c.windows = allocate(batch_size * sizeof(*c.windows));
    TRY(cudaHostAlloc((void **)&c.actual, c.output_bytes, cudaHostAllocDefault));
    TRY(cudaMalloc((void **)&c.out, c.output_bytes));
    const struct feedd_batch *host, *gpu;
    while (c.batches < most && (host = session_next(&c.host)) != NULL && (gpu = session_next(&c.gpu)) != NULL)
        check_batch(&c, host, gpu);
    TRY(cudaFree(c.out));
    TRY(cudaFreeHost(c.actual));
    free(c.windows);
    free(c.expected);
    printf("{\"command\": \"check\", \"seed\": %" PRIu64 ", \"batches\": %" PRIu64 ", \"cases\": %" PRIu64
           ", \"values\": %" PRIu64 ", \"failed\": %" PRIu64 "}\n",
           seed, c.batches, c.cases, c.values, c.failed);
    session_close(&c.host);
    session_close(&c.gpu);
    return c.failed > 0 || c.batches == 0;
}
