/* memory.c - feedctl bench memory: the bytes that each way of feeding a trainer holds, computed and allocated.
 *
 * Happy path: for each way the ring and slots are computed by proto/slot.h, then allocated as the daemon allocates
 * them, and what the kernel and the GPU say has gone is put beside. What can fail: nothing; what is too large for the
 * machine is computed, and the reason why it isn't measured stands in its cell. Threads: one. */
#include <stdio.h>
#include <string.h>

#include "bench.h"
#include "error.h"
#include "gpu.h"
#include "host.h"
#include "progress.h"
#include "shape.h"

#define SLAB_BYTES    (2ull << 20) /* the daemon takes memory of a GPU in multiples of this */
#define SCRATCH_SLOTS 3u           /* uint8 slots beside the float ones, where the daemon normalises */

static const struct table_column columns[] = {
    {"shape", NULL, "shape", NULL, TABLE_TEXT, 0},
    {"batch", NULL, "batch", NULL, 0, 0},
    {"depth", NULL, "depth", NULL, 0, 0},
    {"way", NULL, "way", NULL, TABLE_TEXT, 0},
    {"pcie_bytes", NULL, "over PCIe", "B/batch", 0, 0},
    {"host_bytes", "host", "pinned", "B", 0, 0},
    {"host_measured_bytes", "host", "measured", "B", 0, 0},
    {"gpu_slot_bytes", "GPU", "slots", "B", 0, 0},
    {"gpu_scratch_bytes", "GPU", "scratch", "B", 0, 0},
    {"gpu_output_bytes", "GPU", "output", "B", 0, 0},
    {"gpu_bytes", "GPU", "all", "B", 0, 0},
    {"gpu_measured_bytes", "GPU", "measured", "B", 0, 0},
};

struct options {
    uint64_t batches[BENCH_LIST_MAX];
    size_t batch_count;
    struct shape shapes[BENCH_LIST_MAX];
    size_t shape_count;
    uint64_t depth; /* 0: by the rule */
    int dtype;
};

enum { OPTION_BATCH = 1, OPTION_SHAPE, OPTION_DEPTH, OPTION_DTYPE };

static const struct option own[] = {
    {"batch", required_argument, NULL, OPTION_BATCH},
    {"shape", required_argument, NULL, OPTION_SHAPE},
    {"depth", required_argument, NULL, OPTION_DEPTH},
    {"dtype", required_argument, NULL, OPTION_DTYPE},
    {NULL, 0, NULL, 0},
};

static int take(void *to, int option, const char *value)
{
    static const char *const names[] = {"f32", "f16", "bf16", NULL};
    static const int dtypes[] = {FEEDD_F32, FEEDD_F16, FEEDD_BF16};
    struct options *options = to;
    size_t i = 0;
    int status;
    switch (option) {
    case OPTION_BATCH:
        return bench_numbers("batch", value, 1, FEEDD_MAX_BATCH, options->batches, &options->batch_count);
    case OPTION_SHAPE:
        return shape_parse_list("shape", value, options->shapes, &options->shape_count);
    case OPTION_DEPTH:
        return parse_number("depth", value, 1, FEEDD_MAX_DEPTH, &options->depth);
    default:
        status = bench_choice("dtype", value, names, &i);
        options->dtype = dtypes[i];
        return status;
    }
}

/* What one way holds. */
struct way {
    const char *name;
    uint64_t pcie, host, slots, scratch, output;
};

static uint64_t slab(uint64_t bytes)
{
    return (bytes + SLAB_BYTES - 1) / SLAB_BYTES * SLAB_BYTES;
}

#define WAYS 4

static void compute(const struct slot_layout *pixels, const struct slot_layout *normal, uint32_t depth,
                    struct way ways[WAYS])
{
    const uint32_t batch = pixels->batch_size;
    const uint64_t pixel_bytes = slot_used_bytes(pixels, batch), normal_bytes = slot_used_bytes(normal, batch);
    ways[0] = (struct way){"traditional", normal_bytes, normal->slot_bytes * depth, 0, 0, normal_bytes};
    ways[1] =
        (struct way){"cpu", normal_bytes, slot_ring_bytes(normal, depth), slab(slot_ring_bytes(normal, depth)), 0, 0};
    ways[2] = (struct way){"client", pixel_bytes, slot_ring_bytes(pixels, depth), slab(slot_ring_bytes(pixels, depth)),
                           0,        normal_bytes};
    ways[3] = (struct way){"daemon",
                           pixel_bytes,
                           slot_ring_bytes(pixels, depth),
                           slab(slot_ring_bytes(normal, depth)),
                           slab(pixels->slot_bytes * SCRATCH_SLOTS),
                           0};
}

/* Allocates what the way holds on the GPU, all of it, and asks how much is free before and after. */
static int measure_gpu(const struct way *way, size_t *bytes, struct feedd_error *err)
{
    const uint64_t sizes[] = {way->slots, way->scratch, way->output};
    void *parts[] = {NULL, NULL, NULL};
    size_t before, after;
    int status = gpu_memory_free(&before, err);
    for (size_t i = 0; status == 0 && i < 3; i++)
        if (sizes[i] > 0)
            status = gpu_memory_new(sizes[i], &parts[i], err);
    if (status == 0)
        status = gpu_memory_free(&after, err);
    for (size_t i = 0; i < 3; i++)
        if (parts[i] != NULL)
            gpu_memory_delete(parts[i]);
    if (status == 0)
        *bytes = before > after ? before - after : 0;
    return status;
}

static int measure_host(const struct way *way, bool pinned, size_t *bytes, struct feedd_error *err)
{
    struct host_memory memory = {.at = NULL};
    size_t before, after;
    int status = host_resident(&before, err);
    if (status == 0)
        status = host_memory_reserve(&memory, way->host, err);
    if (status == 0 && pinned)
        status = host_memory_pin(&memory, way->host, err);
    if (status == 0)
        status = host_resident(&after, err);
    host_memory_unpin(&memory);
    host_memory_delete(&memory);
    if (status == 0)
        *bytes = after - before;
    return status;
}

static void add_row(struct table *table, const struct shape *shape, uint64_t batch, uint32_t depth,
                    const struct way *way, const char *no_gpu)
{
    struct feedd_error err;
    size_t bytes;
    table_row(table);
    table_text(table, "shape", shape->text);
    table_number(table, "batch", (double)batch);
    table_number(table, "depth", (double)depth);
    table_text(table, "way", way->name);
    table_number(table, "pcie_bytes", (double)way->pcie);
    table_number(table, "host_bytes", (double)way->host);
    table_number(table, "gpu_slot_bytes", (double)way->slots);
    table_number(table, "gpu_scratch_bytes", (double)way->scratch);
    table_number(table, "gpu_output_bytes", (double)way->output);
    table_number(table, "gpu_bytes", (double)(way->slots + way->scratch + way->output));
    if (measure_host(way, no_gpu == NULL, &bytes, &err) == 0)
        table_number(table, "host_measured_bytes", (double)bytes);
    else
        table_absent(table, "host_measured_bytes", "%s", err.message);
    if (no_gpu != NULL)
        table_absent(table, "gpu_measured_bytes", "no GPU: %s", no_gpu);
    else if (measure_gpu(way, &bytes, &err) == 0)
        table_number(table, "gpu_measured_bytes", (double)bytes);
    else
        table_absent(table, "gpu_measured_bytes", "%s", err.message);
}

static int add_shape(struct table *table, const struct shape *shape, uint64_t batch, const struct options *options,
                     struct progress *progress, const char *no_gpu, struct feedd_error *err)
{
    struct slot_layout pixels, normal;
    struct way ways[WAYS];
    int status = shape_slot(shape, batch, FEEDD_U8, &pixels, err);
    if (status == 0)
        status = shape_slot(shape, batch, options->dtype, &normal, err);
    if (status != 0)
        return status;
    const uint32_t depth = options->depth > 0 ? (uint32_t)options->depth : slot_depth_rule(pixels.slot_bytes);
    compute(&pixels, &normal, depth, ways);
    for (size_t i = 0; i < WAYS; i++) {
        progress_step(progress, "%s, batches of %llu, %s", shape->text, (unsigned long long)batch, ways[i].name);
        add_row(table, shape, batch, depth, &ways[i], no_gpu);
    }
    return 0;
}

static void add_notes(struct table *table, const struct options *options, const char *no_gpu)
{
    const char *dtype = dtype_name(options->dtype);
    table_note(table,
               "traditional: a loader that normalises on the CPU into as many pinned %s batches as the ring is deep, "
               "and one batch on the GPU. cpu: a stream of feedd whose workers normalise: %s slots on the host and on "
               "the GPU. client: uint8 slots on both, and the %s output of the trainer. daemon: uint8 slots on the "
               "host, %s slots on the GPU, and %u uint8 slots of scratch there.",
               dtype, dtype, dtype, dtype, SCRATCH_SLOTS);
    table_note(table,
               "All ways have the same depth: %s. With --depth it is another. Slots hold the images alone, without "
               "labels.",
               options->depth > 0 ? "the one given"
                                  : "what feedd chooses for uint8 slots, 64 MiB a ring, 4 to 64 slots");
    table_note(table,
               "host, measured: RssShmem of the process, before and after a memfd of that size is mapped and "
               "filled%s.",
               no_gpu == NULL ? " and registered with the GPU" : "");
    if (no_gpu == NULL)
        table_note(table, "GPU, measured: cudaMemGetInfo before and after all of it is allocated; what other processes "
                          "allocate meanwhile is in it too, and so is what CUDA rounds up.");
}

static json_t *parameters(const struct options *options)
{
    return json_pack("{s:o, s:o, s:o, s:s}", "batch", bench_numbers_json(options->batches, options->batch_count),
                     "shape", shape_list_json(options->shapes, options->shape_count), "depth",
                     options->depth > 0 ? json_integer((json_int_t)options->depth) : json_null(), "dtype",
                     dtype_name(options->dtype));
}

static const char help[] =
    "Bytes that each way of feeding a trainer holds, as computed, and as allocated on this machine.\n\n"
    "  --batch LIST      batch sizes [256]\n"
    "  --shape LIST      CxHxW or FxCxHxW [3x224x224]\n"
    "  --depth N         slots of a ring [as feedd chooses]\n"
    "  --dtype D         what is normalised to: f32, f16, bf16 [f32]\n";

static int run(struct bench *bench, int argc, char **argv)
{
    struct options options = {.batches = {256},
                              .batch_count = 1,
                              .shapes = {{1, 3, 224, 224, "3x224x224"}},
                              .shape_count = 1,
                              .dtype = FEEDD_F32};
    struct gpu_identity gpu;
    struct feedd_error err, no_gpu;
    struct progress progress;
    int status = bench_parse(bench, argc, argv, own, take, &options);
    if (status != 0)
        return status < 0 ? 0 : status;
    const char *reason = gpu_identify(&gpu, &no_gpu) != 0 ? no_gpu.message : NULL;
    struct table *table = table_new(columns, sizeof(columns) / sizeof(columns[0]));
    progress_begin(&progress, options.batch_count * options.shape_count * WAYS);
    for (size_t s = 0; status == 0 && s < options.shape_count; s++)
        for (size_t b = 0; status == 0 && b < options.batch_count; b++)
            status = add_shape(table, &options.shapes[s], options.batches[b], &options, &progress, reason, &err);
    progress_end(&progress);
    if (status == 0) {
        add_notes(table, &options, reason);
        status = bench_finish(bench, table, parameters(&options), NULL);
    } else {
        status = fail(&err);
    }
    table_free(table);
    return status;
}

const struct bench_command bench_memory = {
    .name = "memory",
    .summary = "bytes of host and GPU memory that each way of feeding a trainer holds",
    .help = help,
    .no_plot = true,
    .run = run,
};
