/* batch.c - feedctl bench batch: which batch size a dataset and a training step want.
 *
 * Happy path: a daemon is started -> for each size a stream is opened, read as fast as it goes, then at the pace of a
 * trainer that is simulated -> a row -> the smallest size with which that trainer doesn't wait.
 * What can fail: the daemon, the dataset. A size that the daemon refuses is a row that says why. Threads: one. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "bench.h"
#include "feed.h"
#include "progress.h"

#define WORKERS_MAX 1024 /* feedd.conf(5) */
#define STEP_MS_MAX 600000
#define STEPS_LEAD  2u /* that come before what is measured: the ring is empty at first */
#define STEPS_MIN   5u /* that are measured, however long they take */
#define WAIT_MAX    1.0
#define MIB         (1024.0 * 1024.0)

static const char help[] =
    "Images a second, latency, memory and how long a trainer waits, against the batch size, and the size to take. The\n"
    "trainer is simulated: it takes a batch, sleeps for a step, gives the batch back. A step of n images takes\n"
    "F + T * n / B milliseconds.\n"
    "\n"
    "  --step-ms T       milliseconds of a training step, needed\n"
    "  --step-batch B    with a batch of B images [64]\n"
    "  --step-fixed-ms F milliseconds of every step, whatever its size [0]\n"
    "  --wait-max P      percent of the time that the trainer may wait [1]\n"
    "  --sizes LIST      batch sizes [16,32,64,128,256,512]\n"
    "  --workers N       of the daemon that is started [the CPUs]; not of a running one\n"
    "  --device D        where the batches shall be: host, cuda, cuda:N, a GPU's UUID, or auto "
    "[auto]\n" FEED_OPTIONS_HELP;

/* What a trainer found, over its measured steps. */
struct pace {
    uint64_t steps, samples;
    double wait_s, step_s;
};

/* One size. */
struct row {
    uint64_t size;
    char refused[sizeof(((struct feedd_error *)NULL)->message)]; /* why it could not be measured; "": it was */
    struct feed_window window;
    struct pace pace;
    uint32_t depth;
    char device[FEEDD_UUID_TEXT], mode_reason[256]; /* where the batches were; "": in host memory, and why */
};

struct batch_options {
    struct feed feed;
    uint64_t sizes[BENCH_LIST_MAX];
    size_t size_count;
    uint64_t workers; /* 0: as many as CPUs */
    uint64_t step_batch;
    double step_ms, step_fixed_ms, wait_max;
    const char *device;
    struct row rows[BENCH_LIST_MAX]; /* size_count */
};

static int take_option(void *to, int option, const char *value)
{
    struct batch_options *o = to;
    switch (option) {
    case 's':
        return bench_real("step-ms", value, 0.001, STEP_MS_MAX, &o->step_ms);
    case 'b':
        return parse_number("step-batch", value, 1, FEEDD_MAX_BATCH, &o->step_batch);
    case 'f':
        return bench_real("step-fixed-ms", value, 0, STEP_MS_MAX, &o->step_fixed_ms);
    case 'm':
        return bench_real("wait-max", value, 0, 100, &o->wait_max);
    case 'z':
        return bench_numbers("sizes", value, 1, FEEDD_MAX_BATCH, o->sizes, &o->size_count);
    case 'w':
        return parse_number("workers", value, 1, WORKERS_MAX, &o->workers);
    case 'd':
        o->device = value;
        return 0;
    default:
        feed_option(&o->feed, option, value);
        return 0;
    }
}

static const struct option options[] = {
    {"step-ms", required_argument, NULL, 's'},       {"step-batch", required_argument, NULL, 'b'},
    {"step-fixed-ms", required_argument, NULL, 'f'}, {"wait-max", required_argument, NULL, 'm'},
    {"sizes", required_argument, NULL, 'z'},         {"workers", required_argument, NULL, 'w'},
    {"device", required_argument, NULL, 'd'},        {"transform", required_argument, NULL, FEED_OPTION_TRANSFORM},
    {"cold", no_argument, NULL, FEED_OPTION_COLD},   {NULL, 0, NULL, 0},
};

static const struct table_column columns[] = {
    {"batch_size", NULL, "batch", "images", 0, 0},
    {"images_per_s", "feeder alone", "images", "1/s", 1, 0},
    {"latency_ms", "feeder alone", "latency", "ms", 3, 0},
    {"making_ms", "feeder alone", "making", "ms", 3, 0},
    {"depth", "ring", "depth", "slots", 0, 0},
    {"ring_mib", "ring", "host", "MiB", 2, 0},
    {"gpu_mib", "ring", "GPU", "MiB", 2, 0},
    {"step_ms", "trainer", "step", "ms", 3, 0},
    {"wait_ms", "trainer", "wait", "ms", 3, 0},
    {"wait_share", "trainer", "waits", "%", 2, 0},
    {"trainer_images_per_s", "trainer", "images", "1/s", 1, 0},
    {"recommended", NULL, "take", NULL, TABLE_TEXT, 0},
};

static double step_s(const struct batch_options *o, uint64_t size)
{
    return (o->step_fixed_ms + o->step_ms * (double)size / (double)o->step_batch) / 1000;
}

/* A trainer's loop. What it is kept waiting is the time until the next batch is there; what it takes itself, the step
 * with the batch that it holds, and giving that back. */
static int train(const struct batch_options *o, const struct feed_reader *reader, struct pace *out,
                 struct feedd_error *err)
{
    struct pace pace = {.steps = 0};
    int status = 0;
    for (uint64_t i = 0; pace.steps < STEPS_MIN || pace.wait_s + pace.step_s < o->feed.seconds; i++) {
        const struct feedd_batch *batch;
        struct feedd_batch_info info;
        const double asked_s = bench_now_s();
        status = feed_next(reader, &batch, err);
        if (status != 0)
            return status;
        const double got_s = bench_now_s();
        feedd_batch_info(batch, &info);
        status = feed_sleep_until(got_s + step_s(o, info.count), err);
        if (status == 0)
            status = feedd_release(batch, NULL, err);
        if (status != 0)
            return status;
        if (i < STEPS_LEAD)
            continue;
        pace.steps++;
        pace.samples += info.valid;
        pace.wait_s += got_s - asked_s;
        pace.step_s += bench_now_s() - got_s;
    }
    *out = pace;
    return 0;
}

static bool is_refusal(int status)
{
    return status == FEEDD_E_ARGUMENT || status == FEEDD_E_LIMIT || status == FEEDD_E_MEMORY;
}

static int measure_row(struct batch_options *o, struct row *row, struct feedd_error *err)
{
    struct feedd_open_options open = FEEDD_OPEN_OPTIONS_INIT;
    struct feed_reader reader;
    open.batch_size = (uint32_t)row->size;
    open.device = o->device;
    int status = feed_open(&o->feed, &open, &reader, err);
    if (is_refusal(status)) {
        snprintf(row->refused, sizeof(row->refused), "%s", err->message);
        return 0;
    }
    if (status != 0)
        return status;
    const struct feedd_schema *schema = feedd_stream_schema(reader.stream);
    row->depth = schema->depth;
    snprintf(row->device, sizeof(row->device), "%s", schema->device);
    snprintf(row->mode_reason, sizeof(row->mode_reason), "%s", schema->mode_reason);
    status = feed_measure(&o->feed, &reader, &row->window, err);
    if (status == 0)
        status = train(o, &reader, &row->pace, err);
    feed_close(&reader);
    return status;
}

static uint32_t smallest(const struct batch_options *o)
{
    uint64_t size = o->sizes[0];
    for (size_t i = 1; i < o->size_count; i++)
        size = o->sizes[i] < size ? o->sizes[i] : size;
    return (uint32_t)size;
}

static int measure(struct batch_options *o, struct feedd_error *err)
{
    struct progress progress;
    progress_begin(&progress, o->size_count + 1);
    progress_step(&progress, "batch: reading once");
    int status = feed_start(&o->feed, o->workers != 0 ? (uint32_t)o->workers : feed_cpus(), err);
    if (status == 0)
        status = feed_warm(&o->feed, smallest(o), err);
    for (size_t i = 0; status == 0 && i < o->size_count; i++) {
        progress_step(&progress, "batches of %u", (unsigned)o->sizes[i]);
        o->rows[i].size = o->sizes[i];
        status = measure_row(o, &o->rows[i], err);
    }
    progress_end(&progress);
    feed_done(&o->feed);
    return status;
}

/* ---- what is made of it ---- */

/* The share of its time that the trainer waits, in percent, as the table shows it: what is recommended agrees with what
 * is read there. */
static double wait_share(const struct row *row)
{
    return round(row->pace.wait_s / (row->pace.wait_s + row->pace.step_s) * 100 * 100) / 100;
}

/* The smallest size whose trainer waits less than is allowed, or else the one whose trainer waits least.
 * @return NULL: none was measured */
static const struct row *recommend(const struct batch_options *o, bool *good)
{
    const struct row *best = NULL, *least = NULL;
    for (const struct row *row = o->rows; row < o->rows + o->size_count; row++) {
        if (row->refused[0] != '\0')
            continue;
        if (least == NULL || wait_share(row) < wait_share(least))
            least = row;
        if (wait_share(row) < o->wait_max && (best == NULL || row->size < best->size))
            best = row;
    }
    *good = best != NULL;
    return *good ? best : least;
}

static double feeder_rate(const struct row *row)
{
    return (double)row->window.samples / row->window.seconds;
}

static void add_row(const struct row *row, bool recommended, struct table *table)
{
    const double steps = (double)row->pace.steps;
    table_row(table);
    table_number(table, "batch_size", (double)row->size);
    if (row->refused[0] != '\0') {
        for (size_t c = 1; c < sizeof(columns) / sizeof(columns[0]); c++)
            table_absent(table, columns[c].name, "batches of %u: %s", (unsigned)row->size, row->refused);
        return;
    }
    table_number(table, "images_per_s", feeder_rate(row));
    table_number(table, "latency_ms", row->window.latency_ms);
    table_number(table, "making_ms", row->window.making_ms);
    table_number(table, "depth", row->depth);
    table_number(table, "ring_mib", (double)row->window.status.ring_bytes / MIB);
    if (row->device[0] != '\0')
        table_number(table, "gpu_mib", (double)row->window.status.gpu_bytes / MIB);
    else
        table_absent(table, "gpu_mib", "the batches were in host memory (%s)", row->mode_reason);
    table_number(table, "step_ms", row->pace.step_s * 1000 / steps);
    table_number(table, "wait_ms", row->pace.wait_s * 1000 / steps);
    table_number(table, "wait_share", wait_share(row));
    table_number(table, "trainer_images_per_s", (double)row->pace.samples / (row->pace.wait_s + row->pace.step_s));
    table_text(table, "recommended", recommended ? "yes" : "no");
}

static void add_recommendation(const struct batch_options *o, const struct row *row, bool good, struct table *table)
{
    if (row == NULL)
        table_note(table, "No size could be measured.");
    else if (good)
        table_note(table,
                   "Take batches of %llu: the smallest size with which the trainer waits less than %g %% of the time "
                   "(%.2f %%).",
                   (unsigned long long)row->size, o->wait_max, wait_share(row));
    else
        table_note(table,
                   "Take batches of %llu: the trainer waits least with them, %.2f %% of the time. No size comes below "
                   "%g %%: alone the feeder gives %.1f images/s, and without waiting the trainer would take %.1f.",
                   (unsigned long long)row->size, wait_share(row), o->wait_max, feeder_rate(row),
                   (double)row->size / step_s(o, row->size));
}

static void add_notes(const struct batch_options *o, struct table *table)
{
    table_note(
        table,
        "The trainer is a simple model: a step of n images takes %g + %g * n / %llu ms, in which it sleeps and "
        "leaves the CPUs to the workers. It begins with an empty ring. One whose own work takes CPU time, or whose "
        "steps vary, waits more.",
        o->step_fixed_ms, o->step_ms, (unsigned long long)o->step_batch);
    table_note(table,
               "Feeder alone: one reader takes batches as fast as it can. Latency: from the reservation of a slot "
               "until its batch is ready, waiting for the batches before it included, as many as the ring has "
               "slots; making: from a worker's first work on it. Means of a batch.");
    for (const struct row *row = o->rows; row < o->rows + o->size_count; row++)
        if (row->device[0] != '\0') {
            table_note(table, "The batches were for %s (%s).", row->device, row->mode_reason);
            break;
        }
    feed_notes(&o->feed, table);
}

static void add_plot(const struct batch_options *o, const struct table *table, struct plot *plot)
{
    struct plot_series *alone = plot_series_add(plot, "feeder alone");
    struct plot_series *trainer = plot_series_add(plot, "trainer");
    struct plot_series *ideal = plot_series_add(plot, "trainer that never waits");
    ideal->dashed = true;
    for (size_t i = 0; i < table_rows(table); i++) {
        const double size = table_number_at(table, i, "batch_size");
        plot_point(alone, size, table_number_at(table, i, "images_per_s"));
        plot_point(trainer, size, table_number_at(table, i, "trainer_images_per_s"));
        plot_point(ideal, size, size / step_s(o, (uint64_t)size));
    }
}

static json_t *parameters_of(const struct batch_options *o)
{
    json_t *parameters = feed_parameters(&o->feed);
    json_object_update_new(parameters, json_pack("{s:o, s:s, s:f, s:I, s:f, s:f}", "sizes",
                                                 bench_numbers_json(o->sizes, o->size_count), "device", o->device,
                                                 "step_ms", o->step_ms, "step_batch", (json_int_t)o->step_batch,
                                                 "step_fixed_ms", o->step_fixed_ms, "wait_max", o->wait_max));
    return parameters;
}

static int run(struct bench *bench, int argc, char **argv)
{
    static struct batch_options batch_options = {.sizes = {16, 32, 64, 128, 256, 512},
                                                 .size_count = 6,
                                                 .step_batch = FEED_BATCH,
                                                 .wait_max = WAIT_MAX,
                                                 .device = "auto"};
    struct batch_options *o = &batch_options;
    int wrong = bench_parse(bench, argc, argv, options, take_option, o);
    if (wrong != 0)
        return wrong == -1 ? 0 : wrong;
    if (o->step_ms == 0)
        return fputs("feedctl: bench batch needs --step-ms\n", stderr), 2;
    wrong = feed_init(&o->feed, bench, o->workers != 0, strcmp(o->device, "host") != 0);
    if (wrong != 0)
        return wrong;
    struct feedd_error err;
    if (measure(o, &err) != 0)
        return fail(&err);
    struct plot plot = {.title = "feedctl bench batch: images a second against batch size",
                        .x_label = "batch size (images)",
                        .y_label = "images/s",
                        .log2_x = true};
    bool good;
    const struct row *best = recommend(o, &good);
    struct table *table = table_new(columns, sizeof(columns) / sizeof(columns[0]));
    for (const struct row *row = o->rows; row < o->rows + o->size_count; row++)
        add_row(row, row == best, table);
    add_recommendation(o, best, good, table);
    add_notes(o, table);
    add_plot(o, table, &plot);
    int status = bench_finish(bench, table, parameters_of(o), &plot);
    table_free(table);
    return status;
}

const struct bench_command bench_batch = {
    .name = "batch",
    .summary = "images a second, latency, memory and the trainer's wait against batch size; which size to take",
    .operand = "DATASET",
    .help = help,
    .run = run,
};
