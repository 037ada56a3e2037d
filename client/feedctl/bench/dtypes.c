/* dtypes.c - feedctl bench dtypes: what an element type costs on the same path, and what normalising on the GPU adds.
 *
 * Happy path: for each dtype a batch of it is copied from pinned memory; then uint8 is copied and normalised to each.
 * What can fail: a row (memory, of the host or the GPU): it says why. Threads: one. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "bench.h"
#include "error.h"
#include "gpu.h"
#include "progress.h"
#include "shape.h"
#include "ways.h"

#define SECONDS 0.5 /* a row */

static const struct table_column columns[] = {
    {"shape", NULL, "shape", NULL, TABLE_TEXT, 0},     {"batch", NULL, "batch", NULL, 0, 0},
    {"shipped", NULL, "shipped", NULL, TABLE_TEXT, 0}, {"delivered", NULL, "delivered", NULL, TABLE_TEXT, 0},
    {"pcie_bytes", NULL, "over PCIe", "B", 0, 0},      {"copy_us", NULL, "copy", "us", 1, 0},
    {"gb_per_s", NULL, "copy", "GB/s", 2, 0},          {"kernel_us", NULL, "kernel", "us", 1, 0},
    {"total_us", NULL, "total", "us", 1, 0},           {"speedup", NULL, "speed-up", "x", 2, 0},
};

static const int dtypes[] = {FEEDD_U8, FEEDD_I8, FEEDD_F16, FEEDD_F32};

#define DTYPES (sizeof(dtypes) / sizeof(dtypes[0]))

struct options {
    uint64_t batches[BENCH_LIST_MAX];
    size_t batch_count;
    struct shape shapes[BENCH_LIST_MAX];
    size_t shape_count;
};

enum { OPTION_BATCH = 1, OPTION_SHAPE };

static const struct option own[] = {
    {"batch", required_argument, NULL, OPTION_BATCH},
    {"shape", required_argument, NULL, OPTION_SHAPE},
    {NULL, 0, NULL, 0},
};

static int take(void *to, int option, const char *value)
{
    struct options *options = to;
    return option == OPTION_BATCH
               ? bench_numbers("batch", value, 1, FEEDD_MAX_BATCH, options->batches, &options->batch_count)
               : shape_parse_list("shape", value, options->shapes, &options->shape_count);
}

static void put(struct table *table, const char *column, double value, const struct feedd_error *err)
{
    if (err->status != 0)
        table_absent(table, column, "%s", err->message);
    else
        table_number(table, column, value);
}

/* @param direct_us  of a batch that is shipped as it is delivered; NAN: not known */
static void add_row(struct table *table, const struct shape *shape, uint64_t batch, int shipped, int delivered,
                    const struct ways_times *times, double direct_us, const struct feedd_error *err)
{
    const double bytes = (double)shape_elements(shape) * (double)batch * dtype_bytes(shipped);
    table_row(table);
    table_text(table, "shape", shape->text);
    table_number(table, "batch", (double)batch);
    table_text(table, "shipped", dtype_name(shipped));
    table_text(table, "delivered", dtype_name(delivered));
    table_number(table, "pcie_bytes", bytes);
    put(table, "copy_us", times->copy, err);
    put(table, "gb_per_s", bytes / times->copy / 1e3, err);
    if (shipped != delivered)
        put(table, "kernel_us", times->kernel, err);
    put(table, "total_us", times->total, err);
    put(table, "speedup", direct_us / times->total, err);
}

/* Both ways to deliver a dtype: shipped as it is, and shipped as uint8. */
struct pair {
    struct ways_times direct, normalised;
    struct feedd_error direct_err, normalised_err;
};

static void measure(const struct shape *shape, uint64_t batch, int dtype, const struct ways_runs *runs,
                    struct ways_memory *memory, struct pair *pair)
{
    struct ways_spec spec = {.pinned = true, .normals = true, .gpu = true};
    struct ways ways;
    struct feedd_error err;
    int status = shape_params(shape, batch, dtype, &spec.params, &err);
    if (status == 0)
        status = ways_init(&ways, &spec, memory, &err);
    if (status != 0) {
        pair->direct_err = pair->normalised_err = err;
        return;
    }
    pair->direct_err.status = ways_serial(&ways, WAY_DIRECT, NULL, runs, &pair->direct, &pair->direct_err);
    if (dtype != FEEDD_U8)
        pair->normalised_err.status =
            ways_serial(&ways, WAY_CLIENT, NULL, runs, &pair->normalised, &pair->normalised_err);
    ways_done(&ways);
}

/* Rows of a shape and batch size: each dtype shipped, then uint8 shipped for each. */
static void add_rows(struct table *table, const struct shape *shape, uint64_t batch, const struct ways_runs *runs,
                     const char *no_gpu, struct progress *progress)
{
    struct ways_memory memory = {.pixels = {.at = NULL}};
    struct pair pairs[DTYPES];
    memset(pairs, 0, sizeof(pairs));
    for (size_t i = 0; i < DTYPES; i++) {
        progress_step(progress, "%s, batches of %llu, %s", shape->text, (unsigned long long)batch,
                      dtype_name(dtypes[i]));
        if (no_gpu == NULL) {
            measure(shape, batch, dtypes[i], runs, &memory, &pairs[i]);
            continue;
        }
        error_set(&pairs[i].direct_err, FEEDD_E_DEVICE, "no GPU: %s", no_gpu);
        pairs[i].normalised_err = pairs[i].direct_err;
    }
    ways_memory_delete(&memory);
    for (size_t i = 0; i < DTYPES; i++)
        add_row(table, shape, batch, dtypes[i], dtypes[i], &pairs[i].direct, pairs[i].direct.total,
                &pairs[i].direct_err);
    for (size_t i = 1; i < DTYPES; i++)
        add_row(table, shape, batch, FEEDD_U8, dtypes[i], &pairs[i].normalised,
                pairs[i].direct_err.status == 0 ? pairs[i].direct.total : (double)NAN, &pairs[i].normalised_err);
}

static const char help[] = "What a batch costs to copy from pinned memory to the GPU as u8, i8, f16 and f32, and what "
                           "normalising it on the GPU\n"
                           "adds when it is copied as u8.\n\n"
                           "  --batch LIST      batch sizes [256]\n"
                           "  --shape LIST      CxHxW or FxCxHxW [3x224x224]\n";

static int run(struct bench *bench, int argc, char **argv)
{
    struct options options = {
        .batches = {256}, .batch_count = 1, .shapes = {{1, 3, 224, 224, "3x224x224"}}, .shape_count = 1};
    struct gpu_identity gpu;
    struct feedd_error no_gpu;
    struct progress progress;
    int status = bench_parse(bench, argc, argv, own, take, &options);
    if (status != 0)
        return status < 0 ? 0 : status;
    const char *reason = gpu_identify(&gpu, &no_gpu) != 0 ? no_gpu.message : NULL;
    const struct ways_runs runs = {bench->repeat, bench->seconds > 0 ? bench->seconds : SECONDS};
    struct table *table = table_new(columns, sizeof(columns) / sizeof(columns[0]));
    progress_begin(&progress, options.batch_count * options.shape_count * DTYPES);
    for (size_t s = 0; s < options.shape_count; s++)
        for (size_t b = 0; b < options.batch_count; b++)
            add_rows(table, &options.shapes[s], options.batches[b], &runs, reason, &progress);
    progress_end(&progress);
    table_note(table,
               "u8, i8: 8-bit integers; f16, f32: IEEE 754 numbers of 16 and 32 bits. Where shipped and delivered "
               "are the same, the values lie in host memory as they are delivered, and how they came about is "
               "not in it; else uint8 pixels do, and a kernel normalises them (NCHW).");
    table_note(table,
               "total: one batch after the other, each awaited; the median, by the clock. copy and kernel: by the "
               "GPU's events, in runs of their own. GB/s: bytes by the time of copy. speed-up: total of shipping "
               "as it is delivered, by total.");
    ways_note(&runs, table);
    json_t *repeat = runs.repeat > 0 ? json_integer(runs.repeat) : json_null();
    status = bench_finish(
        bench, table,
        json_pack("{s:o, s:o, s:o, s:f}", "batch", bench_numbers_json(options.batches, options.batch_count), "shape",
                  shape_list_json(options.shapes, options.shape_count), "repeat", repeat, "seconds", runs.seconds),
        NULL);
    table_free(table);
    return status;
}

const struct bench_command bench_dtypes = {
    .name = "dtypes",
    .summary = "what 8, 16 and 32 bits an element cost to copy, and what normalising on the GPU adds",
    .help = help,
    .no_plot = true,
    .run = run,
};
