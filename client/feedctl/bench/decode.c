/* decode.c - feedctl bench decode: samples a second with 1, 2, 4... workers, and where the workers' time goes.
 *
 * Happy path: for each count of workers a daemon is started -> one reader takes batches as fast as it can -> a row.
 * What can fail: the daemon, the dataset. Threads: one. */
#include <math.h>

#include "bench.h"
#include "feed.h"
#include "progress.h"

#define WORKERS_MAX 1024 /* feedd.conf(5) */

static const char help[] =
    "Images a second that a daemon delivers to one reader that takes them as fast as it can, with more and more "
    "workers,\n"
    "and how much of the workers' time goes into reading, decoding and resizing.\n"
    "\n"
    "  --workers LIST    counts of workers, in rising order [1, 2, 4... up to the CPUs]; not of a running daemon\n"
    "  --batch-size B    images of a batch [64]\n" FEED_OPTIONS_HELP;

struct decode_options {
    struct feed feed;
    uint64_t workers[BENCH_LIST_MAX];
    size_t workers_count;
    uint64_t batch_size;
};

static int take_option(void *to, int option, const char *value)
{
    struct decode_options *o = to;
    if (feed_option(&o->feed, option, value))
        return 0;
    if (option == 'b')
        return parse_number("batch-size", value, 1, FEEDD_MAX_BATCH, &o->batch_size);
    return bench_numbers("workers", value, 1, WORKERS_MAX, o->workers, &o->workers_count);
}

static const struct option options[] = {
    {"workers", required_argument, NULL, 'w'},
    {"batch-size", required_argument, NULL, 'b'},
    {"transform", required_argument, NULL, FEED_OPTION_TRANSFORM},
    {"cold", no_argument, NULL, FEED_OPTION_COLD},
    {NULL, 0, NULL, 0},
};

static const struct table_column columns[] = {
    {"workers", NULL, "workers", NULL, 0, 0},
    {"images_per_s", NULL, "images", "1/s", 1, 0},
    {"images_per_s_worker", NULL, "a worker", "1/s", 1, 0},
    {"efficiency", NULL, "efficiency", NULL, 3, 0},
    {"cpu_s_per_1000", NULL, "CPU/1000", "s", 6, 0},
    {"read_us", "a worker's time for an image", "read", "us", 2, 0},
    {"decode_us", "a worker's time for an image", "decode", "us", 2, 0},
    {"resize_us", "a worker's time for an image", "resize", "us", 2, 0},
    {"read_share", "of it", "read", "%", 1, 0},
    {"decode_share", "of it", "decode", "%", 1, 0},
    {"resize_share", "of it", "resize", "%", 1, 0},
};

/* 1, 2, 4... and all. */
static void default_workers(struct decode_options *o)
{
    const uint32_t cpus = feed_cpus();
    for (uint64_t n = 1; n < cpus && o->workers_count < BENCH_LIST_MAX - 1; n *= 2)
        o->workers[o->workers_count++] = n;
    o->workers[o->workers_count++] = cpus;
}

static void add_stages(struct table *table, const struct feed_window *window)
{
    static const char *const us[] = {"read_us", "decode_us", "resize_us"};
    static const char *const share[] = {"read_share", "decode_share", "resize_share"};
    const double stage_s[] = {window->read_s, window->decode_s, window->resize_s};
    const double sum_s = stage_s[0] + stage_s[1] + stage_s[2];
    for (int i = 0; i < 3; i++) {
        if (!isfinite(sum_s)) {
            table_absent(table, us[i], "this feedd doesn't tell stages apart");
            table_absent(table, share[i], "this feedd doesn't tell stages apart");
            continue;
        }
        table_number(table, us[i], stage_s[i] * 1e6 / (double)window->samples);
        table_number(table, share[i], sum_s > 0 ? stage_s[i] / sum_s * 100 : 0);
    }
}

static void add_row(struct table *table, const struct feed_window *window)
{
    const double rate = (double)window->samples / window->seconds, workers = window->status.workers;
    table_row(table);
    table_number(table, "workers", workers);
    table_number(table, "images_per_s", rate);
    table_number(table, "images_per_s_worker", rate / workers);
    table_number(table, "efficiency", rate / workers / table_number_at(table, 0, "images_per_s_worker"));
    if (isfinite(window->daemon_cpu_s))
        table_number(table, "cpu_s_per_1000", window->daemon_cpu_s / (double)window->samples * 1000);
    else
        table_absent(table, "cpu_s_per_1000", FEED_NO_CPU);
    add_stages(table, window);
}

static int measure_row(struct decode_options *o, uint32_t workers, bool first, struct table *table,
                       struct feedd_error *err)
{
    struct feedd_open_options open = FEEDD_OPEN_OPTIONS_INIT;
    struct feed_reader reader;
    struct feed_window window;
    open.batch_size = (uint32_t)o->batch_size;
    int status = feed_start(&o->feed, workers, err);
    if (status == 0 && first)
        status = feed_warm(&o->feed, open.batch_size, err);
    if (status == 0)
        status = feed_open(&o->feed, &open, &reader, err);
    if (status != 0)
        return status;
    status = feed_measure(&o->feed, &reader, &window, err);
    feed_close(&reader);
    if (status == 0)
        add_row(table, &window);
    return status;
}

static int measure(struct decode_options *o, struct table *table, struct feedd_error *err)
{
    struct progress progress;
    const size_t rows = o->feed.own ? o->workers_count : 1;
    int status = 0;
    progress_begin(&progress, rows);
    for (size_t i = 0; status == 0 && i < rows; i++) {
        progress_step(&progress, "decode with %u workers", (unsigned)o->workers[i]);
        status = measure_row(o, (uint32_t)o->workers[i], i == 0, table, err);
    }
    progress_end(&progress);
    feed_done(&o->feed);
    return status;
}

static void add_notes(const struct decode_options *o, struct table *table)
{
    const double base = table_number_at(table, 0, "workers");
    table_note(
        table,
        "Efficiency: images/s a worker against those with %.0f worker%s (1: it grows as the workers do). It falls "
        "when workers, reader and other processes are more than CPUs (%u here), and with clocks and caches that "
        "CPUs share.",
        base, base > 1 ? "s" : "", feed_cpus());
    table_note(table,
               "A worker's time is time on the clock, so it includes waiting for a CPU. Read: opening and reading "
               "the file, and what is no stage of its own. Decode: codec. Resize: turning upright, scaling, and "
               "normalising.");
    feed_notes(&o->feed, table);
}

static void add_plot(const struct table *table, struct plot *plot)
{
    struct plot_series *measured = plot_series_add(plot, "measured");
    struct plot_series *ideal = plot_series_add(plot, "ideal: as with the fewest workers, times workers");
    ideal->dashed = true;
    for (size_t i = 0; i < table_rows(table); i++) {
        const double workers = table_number_at(table, i, "workers");
        plot_point(measured, workers, table_number_at(table, i, "images_per_s"));
        plot_point(ideal, workers, workers * table_number_at(table, 0, "images_per_s_worker"));
    }
}

static int run(struct bench *bench, int argc, char **argv)
{
    struct decode_options o = {.batch_size = FEED_BATCH};
    int wrong = bench_parse(bench, argc, argv, options, take_option, &o);
    if (wrong != 0)
        return wrong == -1 ? 0 : wrong;
    wrong = feed_init(&o.feed, bench, o.workers_count > 0, false);
    if (wrong != 0)
        return wrong;
    struct feedd_error err;
    if (o.workers_count == 0)
        default_workers(&o);
    struct table *table = table_new(columns, sizeof(columns) / sizeof(columns[0]));
    int status = measure(&o, table, &err);
    if (status == 0) {
        struct plot plot = {.title = "feedctl bench decode: images a second against workers",
                            .x_label = "workers",
                            .y_label = "images/s"};
        json_t *parameters = feed_parameters(&o.feed);
        json_object_set_new(parameters, "batch_size", json_integer((json_int_t)o.batch_size));
        json_object_set_new(parameters, "cpus", json_integer(feed_cpus()));
        add_notes(&o, table);
        add_plot(table, &plot);
        status = bench_finish(bench, table, parameters, &plot);
    } else {
        status = fail(&err);
    }
    table_free(table);
    return status;
}

const struct bench_command bench_decode = {
    .name = "decode",
    .summary = "images a second for a dataset, stage by stage, and how it grows with workers",
    .operand = "DATASET",
    .help = help,
    .run = run,
};
