/* transfer.c - feedctl bench transfer: normalising on the CPU and copying floats, against copying pixels and
 * normalising on the GPU.
 *
 * Happy path: for each shape and batch size memory is made, pinned and pageable; in it both ways run, serial and
 * pipelined, and a second process feeds this one by our way; each cell becomes a row.
 * What can fail: a cell (memory, of the host or the GPU): its row says why. Without a GPU the CPU's part is measured.
 * Threads: those of ways.h. */
#include <stdio.h>
#include <string.h>

#include "bench.h"
#include "error.h"
#include "gpu.h"
#include "peer.h"
#include "progress.h"
#include "shape.h"
#include "ways.h"

#define SECONDS 0.5 /* a way and cell */

static const struct table_column columns[] = {
    {"shape", NULL, "shape", NULL, TABLE_TEXT, 0},
    {"batch", NULL, "batch", NULL, 0, 0},
    {"memory", NULL, "memory", NULL, TABLE_TEXT, 0},
    {"mode", NULL, "mode", NULL, TABLE_TEXT, 0},
    {"traditional_cpu_us", "traditional", "CPU", "us", 1, 1},
    {"traditional_copy_us", "traditional", "copy", "us", 1, 1},
    {"traditional_total_us", "traditional", "total", "us", 1, 1},
    {"client_copy_us", "ours, client", "copy", "us", 1, 1},
    {"client_kernel_us", "ours, client", "kernel", "us", 1, 1},
    {"client_total_us", "ours, client", "total", "us", 1, 1},
    {"daemon_total_us", "ours, daemon", "total", "us", 1, 1},
    {"speedup", "speed-up", "client", "x", 2, 1},
    {"daemon_speedup", "speed-up", "daemon", "x", 2, 1},
    {"copy_speedup", "speed-up", "copy", "x", 2, 1},
    {"traditional_bytes", "traditional", "over PCIe", "B", 0, 2},
    {"traditional_gb_per_s", "traditional", "copy", "GB/s", 2, 2},
    {"traditional_samples_per_s", "traditional", "samples", "1/s", 0, 2},
    {"client_bytes", "ours, client", "over PCIe", "B", 0, 2},
    {"client_gb_per_s", "ours, client", "copy", "GB/s", 2, 2},
    {"client_samples_per_s", "ours, client", "samples", "1/s", 0, 2},
};

#define COLUMNS (sizeof(columns) / sizeof(columns[0]))

struct options {
    uint64_t batches[BENCH_LIST_MAX];
    size_t batch_count;
    struct shape shapes[BENCH_LIST_MAX];
    size_t shape_count;
    struct shape plot_shape; /* frames 0: none was asked for */
    uint64_t threads;
};

enum { OPTION_BATCH = 1, OPTION_SHAPE, OPTION_THREADS, OPTION_PLOT_SHAPE };

static const struct option own[] = {
    {"batch", required_argument, NULL, OPTION_BATCH},
    {"shape", required_argument, NULL, OPTION_SHAPE},
    {"threads", required_argument, NULL, OPTION_THREADS},
    {"plot-shape", required_argument, NULL, OPTION_PLOT_SHAPE},
    {NULL, 0, NULL, 0},
};

static int take(void *to, int option, const char *value)
{
    struct options *options = to;
    switch (option) {
    case OPTION_BATCH:
        return bench_numbers("batch", value, 1, FEEDD_MAX_BATCH, options->batches, &options->batch_count);
    case OPTION_SHAPE:
        return shape_parse_list("shape", value, options->shapes, &options->shape_count);
    case OPTION_THREADS:
        return parse_number("threads", value, 1, TEAM_MAX, &options->threads);
    default:
        return shape_parse("plot-shape", value, &options->plot_shape);
    }
}

/* The plot is of the shape that was asked for; else of photos, where they are measured; else of the first one. */
static int choose_plot_shape(struct options *options)
{
    static const char usual[] = "3x224x224";
    const bool asked = options->plot_shape.frames > 0;
    for (size_t i = 0; i < options->shape_count; i++)
        if (strcmp(options->shapes[i].text, asked ? options->plot_shape.text : usual) == 0)
            return options->plot_shape = options->shapes[i], 0;
    if (asked)
        return fprintf(stderr, "feedctl: --plot-shape %s: not among the shapes that are measured (--shape)\n",
                       options->plot_shape.text),
               2;
    options->plot_shape = options->shapes[0];
    return 0;
}

/* ---- measuring ---- */

enum { SERIAL, PIPELINED, MODES };
enum { TRADITIONAL, CLIENT, DAEMON, WAYS };

static const char *const mode_names[] = {"serial", "pipelined"};
static const char *const way_names[] = {"traditional", "client", "daemon"};

/* Rows of one shape, batch size and kind of memory: what was measured, or why it wasn't. */
struct cell {
    const struct shape *shape;
    uint64_t batch;
    bool pinned;
    struct result {
        struct ways_times times;
        struct feedd_error err; /* status 0: there are times */
    } results[MODES][WAYS];
};

struct transfer {
    const struct options *options;
    struct ways_runs runs;
    struct team *team;
    struct peer *peer;
    struct ways_memory memory;
    const char *no_gpu; /* why there is none, or NULL */
    struct table *table;
    struct progress progress;
};

static void show(struct transfer *t, const struct cell *cell, int mode, int way)
{
    progress_step(&t->progress, "%s, batches of %llu, %s, %s, %s", cell->shape->text, (unsigned long long)cell->batch,
                  cell->pinned ? "pinned" : "pageable", mode_names[mode], way_names[way]);
}

/* For whoever is to be measured by what has failed already. */
static void fail_from(struct cell *cell, int way, const struct feedd_error *err)
{
    for (int mode = 0; mode < MODES; mode++)
        cell->results[mode][way].err = *err;
}

static void measure_way(struct transfer *t, struct cell *cell, struct ways *ways, int way)
{
    const enum way which = way == TRADITIONAL ? WAY_TRADITIONAL : WAY_CLIENT;
    struct result *serial = &cell->results[SERIAL][way], *pipelined = &cell->results[PIPELINED][way];
    show(t, cell, SERIAL, way);
    serial->err.status = ways_serial(ways, which, t->team, &t->runs, &serial->times, &serial->err);
    show(t, cell, PIPELINED, way);
    if (serial->err.status != 0)
        pipelined->err = serial->err;
    else
        pipelined->err.status =
            ways_pipelined(ways, which, t->team, &t->runs, serial->times.total, &pipelined->times, &pipelined->err);
}

static void measure_daemon(struct transfer *t, struct cell *cell, const struct normalize_params *params)
{
    for (int mode = 0; mode < MODES; mode++) {
        const struct result *client = &cell->results[mode][CLIENT];
        struct result *daemon = &cell->results[mode][DAEMON];
        show(t, cell, mode, DAEMON);
        if (client->err.status != 0)
            daemon->err = client->err;
        else
            daemon->err.status =
                peer_feed(t->peer, params, cell->pinned, mode == PIPELINED, ways_count(&t->runs, client->times.total),
                          &daemon->times.total, &daemon->err);
    }
}

static void measure(struct transfer *t, struct cell *cell)
{
    struct ways_spec spec = {.pinned = cell->pinned, .normals = true, .gpu = true};
    struct ways ways;
    struct feedd_error err;
    int status = shape_params(cell->shape, cell->batch, NORMALIZE_F32, &spec.params, &err);
    if (status == 0)
        status = ways_init(&ways, &spec, &t->memory, &err);
    if (status != 0) {
        for (int way = 0; way < WAYS; way++)
            fail_from(cell, way, &err);
        return;
    }
    measure_way(t, cell, &ways, TRADITIONAL);
    measure_way(t, cell, &ways, CLIENT);
    ways_done(&ways);
    measure_daemon(t, cell, &spec.params);
}

/* Without a GPU: what the CPU has to do for a batch. */
static void measure_host(struct transfer *t, struct cell *cell)
{
    struct ways_spec spec = {.normals = true};
    struct result *serial = &cell->results[SERIAL][TRADITIONAL];
    struct ways ways;
    show(t, cell, SERIAL, TRADITIONAL);
    serial->err.status = shape_params(cell->shape, cell->batch, NORMALIZE_F32, &spec.params, &serial->err);
    if (serial->err.status == 0)
        serial->err.status = ways_init(&ways, &spec, &t->memory, &serial->err);
    if (serial->err.status != 0)
        return;
    serial->err.status = ways_cpu(&ways, t->team, &t->runs, &serial->times.cpu, &serial->err);
    ways_done(&ways);
}

/* ---- the table ---- */

static void put(struct table *table, const char *column, double value, const struct result *result, const char *no_gpu)
{
    if (no_gpu != NULL)
        table_absent(table, column, "no GPU: %s", no_gpu);
    else if (result->err.status != 0)
        table_absent(table, column, "%s", result->err.message);
    else
        table_number(table, column, value);
}

static void put_way(const struct transfer *t, const struct cell *cell, const char *way, uint64_t bytes,
                    const struct result *result)
{
    char name[64];
    snprintf(name, sizeof(name), "%s_copy_us", way);
    put(t->table, name, result->times.copy, result, t->no_gpu);
    snprintf(name, sizeof(name), "%s_total_us", way);
    put(t->table, name, result->times.total, result, t->no_gpu);
    snprintf(name, sizeof(name), "%s_bytes", way);
    table_number(t->table, name, (double)bytes);
    snprintf(name, sizeof(name), "%s_gb_per_s", way);
    put(t->table, name, (double)bytes / result->times.copy / 1e3, result, t->no_gpu);
    snprintf(name, sizeof(name), "%s_samples_per_s", way);
    put(t->table, name, (double)cell->batch / result->times.total * 1e6, result, t->no_gpu);
}

static void add_row(const struct transfer *t, const struct cell *cell, int mode)
{
    const struct result *traditional = &cell->results[mode][TRADITIONAL], *client = &cell->results[mode][CLIENT],
                        *daemon = &cell->results[mode][DAEMON];
    const struct result *ours = client->err.status != 0 ? client : traditional, /* which a ratio fails with */
        *theirs = daemon->err.status != 0 ? daemon : traditional;
    const uint64_t elements = shape_elements(cell->shape) * cell->batch;
    table_row(t->table);
    table_text(t->table, "shape", cell->shape->text);
    table_number(t->table, "batch", (double)cell->batch);
    table_text(t->table, "memory", cell->pinned ? "pinned" : "pageable");
    table_text(t->table, "mode", mode_names[mode]);
    put(t->table, "traditional_cpu_us", traditional->times.cpu, traditional, NULL);
    put_way(t, cell, "traditional", elements * sizeof(float), traditional);
    put_way(t, cell, "client", elements, client);
    put(t->table, "client_kernel_us", client->times.kernel, client, t->no_gpu);
    put(t->table, "daemon_total_us", daemon->times.total, daemon, t->no_gpu);
    put(t->table, "speedup", traditional->times.total / client->times.total, ours, t->no_gpu);
    put(t->table, "copy_speedup", traditional->times.copy / client->times.copy, ours, t->no_gpu);
    put(t->table, "daemon_speedup", traditional->times.total / daemon->times.total, theirs, t->no_gpu);
}

static void add_notes(const struct transfer *t)
{
    struct table *table = t->table;
    const unsigned threads = (unsigned)t->options->threads;
    table_note(
        table,
        "traditional: normalised on the CPU (%s, %u thread%s; --threads) to float32 NCHW, then copied. ours: uint8 "
        "copied, then normalised on the GPU, to the same bits. The pixels lie in host memory before either "
        "begins: decoding is in neither. A clip's frames are normalised as images.",
        normalize_host_name(), threads, threads > 1 ? "s" : "");
    ways_note(&t->runs, table);
    if (t->no_gpu != NULL) {
        table_note(table,
                   "Without a GPU only what the CPU has to do is measured, and there is one row for a batch size.");
        return;
    }
    table_note(table,
               "serial: one batch after the other, each awaited; total is the median, by the clock. pipelined: a "
               "ring of %u batches, copies on one CUDA stream, kernels on another, the CPU's work on a thread "
               "beside them; total is what a batch takes in the flow, by the GPU's events.",
               WAYS_SLOTS);
    table_note(table, "copy and kernel: by events, in runs of their own, so that events between the steps don't cost "
                      "total anything. In a pipelined run the steps overlap: they don't add up to total.");
    table_note(table,
               "daemon: the same copy and kernel in a second process, which owns the GPU's memory and shares it by "
               "CUDA IPC. serial: from before its copy until this process knows that the batch is ready; "
               "pipelined: from one READY to the next. That process is no feedd: it doesn't decode.");
    table_note(table,
               "speed-up: total of traditional by total of ours. Its last column is copy by copy: that part is due "
               "to fewer bytes, the rest to work that the CPU doesn't do. GB/s: bytes by the time of copy.");
    table_note(table, "Host memory is a memfd, filled before; pinned: registered with the GPU, as feedd's rings are.");
}

static void fill_plot(const struct transfer *t, struct plot *plot)
{
    static const struct {
        const char *name, *column;
        int mode;
        bool dashed;
    } lines[] = {
        {"CPU normalise + float32 copy, serial", "traditional_total_us", SERIAL, true},
        {"CPU normalise + float32 copy, pipelined", "traditional_total_us", PIPELINED, true},
        {"uint8 copy + GPU normalise, serial", "client_total_us", SERIAL, false},
        {"uint8 copy + GPU normalise, pipelined", "client_total_us", PIPELINED, false},
    };
    const char *shape = t->options->plot_shape.text;
    *plot =
        (struct plot){.x_label = "batch size (samples)", .y_label = "time a batch (us)", .log2_x = true, .log_y = true};
    snprintf(plot->title, sizeof(plot->title), "From uint8 pixels in pinned memory to float32 on the GPU, %s", shape);
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        struct plot_series *series = plot_series_add(plot, lines[i].name);
        series->dashed = lines[i].dashed;
        for (size_t r = 0; r < table_rows(t->table); r++)
            if (strcmp(table_text_at(t->table, r, "shape"), shape) == 0 &&
                strcmp(table_text_at(t->table, r, "memory"), "pinned") == 0 &&
                strcmp(table_text_at(t->table, r, "mode"), mode_names[lines[i].mode]) == 0)
                plot_point(series, table_number_at(t->table, r, "batch"),
                           table_number_at(t->table, r, lines[i].column));
    }
}

/* ---- the command ---- */

static json_t *parameters(const struct transfer *t)
{
    const struct options *options = t->options;
    json_t *repeat = t->runs.repeat > 0 ? json_integer(t->runs.repeat) : json_null();
    return json_pack("{s:o, s:o, s:I, s:s, s:o, s:f}", "batch",
                     bench_numbers_json(options->batches, options->batch_count), "shape",
                     shape_list_json(options->shapes, options->shape_count), "threads", (json_int_t)options->threads,
                     "plot_shape", options->plot_shape.text, "repeat", repeat, "seconds", t->runs.seconds);
}

static void measure_all(struct transfer *t)
{
    const struct options *options = t->options;
    const size_t cells = options->shape_count * options->batch_count;
    progress_begin(&t->progress, t->no_gpu != NULL ? cells : cells * 2 * MODES * WAYS);
    for (size_t i = 0; i < cells; i++) {
        const struct shape *shape = &options->shapes[i / options->batch_count];
        const uint64_t batch = options->batches[i % options->batch_count];
        for (int pageable = 0; pageable < 2 && t->no_gpu == NULL; pageable++) {
            struct cell cell = {.shape = shape, .batch = batch, .pinned = !pageable};
            measure(t, &cell);
            add_row(t, &cell, SERIAL);
            add_row(t, &cell, PIPELINED);
        }
        if (t->no_gpu != NULL) {
            struct cell cell = {.shape = shape, .batch = batch};
            measure_host(t, &cell);
            add_row(t, &cell, SERIAL);
        }
    }
    progress_end(&t->progress);
}

static const char help[] =
    "Time, bytes and rate of a batch from uint8 pixels in host memory to float32 on the GPU: normalised on the CPU "
    "and\n"
    "copied as float32, or copied as uint8 and normalised on the GPU; from pinned and from pageable memory; one batch\n"
    "after the other and in a pipeline; by this process, and by another one in a daemon's place.\n\n"
    "  --batch LIST      batch sizes [32,64,128,256,512]\n"
    "  --shape LIST      CxHxW, or FxCxHxW of clips [1x28x28,3x224x224,32x3x112x112]\n"
    "  --threads N       threads that normalise on the CPU [1]\n"
    "  --plot-shape S    the shape that the plot is of [3x224x224]\n";

static int run(struct bench *bench, int argc, char **argv)
{
    struct options options = {
        .batches = {32, 64, 128, 256, 512},
        .batch_count = 5,
        .shapes = {{1, 1, 28, 28, "1x28x28"}, {1, 3, 224, 224, "3x224x224"}, {32, 3, 112, 112, "32x3x112x112"}},
        .shape_count = 3,
        .threads = 1,
    };
    struct feedd_error err, no_gpu;
    struct gpu_identity gpu;
    int status = bench_parse(bench, argc, argv, own, take, &options);
    if (status == 0)
        status = choose_plot_shape(&options);
    if (status != 0)
        return status < 0 ? 0 : status;
    struct transfer t = {.options = &options,
                         .runs = {bench->repeat, bench->seconds > 0 ? bench->seconds : SECONDS},
                         .no_gpu = gpu_identify(&gpu, &no_gpu) != 0 ? no_gpu.message : NULL};
    if (team_new((unsigned)options.threads, &t.team, &err) != 0)
        return fail(&err);
    if (t.no_gpu == NULL && peer_start(&t.peer, &err) != 0) {
        team_free(t.team);
        return fail(&err);
    }
    t.table = table_new(columns, COLUMNS);
    measure_all(&t);
    ways_memory_delete(&t.memory);
    peer_stop(t.peer);
    team_free(t.team);
    add_notes(&t);
    struct plot plot;
    fill_plot(&t, &plot);
    status = bench_finish(bench, t.table, parameters(&t), &plot);
    table_free(t.table);
    return status;
}

const struct bench_command bench_transfer = {
    .name = "transfer",
    .summary = "normalising on the CPU and copying float32, against copying uint8 and normalising on the GPU",
    .help = help,
    .run = run,
};
