/* feed.c - see feed.h.
 *
 * Happy path: feed_init -> feed_start -> feed_warm -> (feed_start) -> feed_open -> feed_measure -> feed_close -> ... ->
 * feed_done. What can fail: the daemon, the dataset, a signal. */
#include "feed.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "error.h"

#define POLL_MS      200 /* how often a wait looks for a signal */
#define WARM_S       60.0
#define LEAD_BATCHES 2u /* that come before what is measured */
#define BATCHES_MIN  4u /* of a window, however long they take */

static volatile sig_atomic_t interrupted;

static void on_signal(int number)
{
    (void)number;
    interrupted = 1;
}

int feed_check(struct feedd_error *err)
{
    return interrupted ? error_set(err, FEEDD_E_STATE, "interrupted") : 0;
}

bool feed_option(struct feed *feed, int option, const char *value)
{
    if (option == FEED_OPTION_TRANSFORM)
        feed->transform = value;
    if (option == FEED_OPTION_COLD)
        feed->cold = true;
    return option == FEED_OPTION_TRANSFORM || option == FEED_OPTION_COLD;
}

/* ---- from start to end ---- */

/* Whatever asks for what a row or a running daemon can't do. @return 0, or 2 after saying so */
static int check_usage(const struct feed *feed, const struct bench *bench, bool workers)
{
    if (bench->repeat != 0)
        fputs("feedctl: --repeat: here a row is measured once, for --seconds\n", stderr);
    else if (!feed->own && workers)
        fputs(
            "feedctl: --workers: a running daemon has the workers that it has; leave out --socket and $FEEDD_SOCKET\n",
            stderr);
    else if (!feed->own && strncmp(bench->operand, "idx:", 4) == 0)
        fprintf(stderr, "feedctl: %s: a running daemon takes names and folders; leave out --socket and $FEEDD_SOCKET\n",
                bench->operand);
    else
        return 0;
    return 2;
}

/* What a running daemon calls it: a name, or a path, from the root on since it runs elsewhere. */
static int running_source(struct feed *feed, const char *text, struct feedd_error *err)
{
    const bool is_path = text[0] == '/' || text[0] == '.';
    if (is_path && realpath(text, feed->path) == NULL)
        return error_set(err, FEEDD_E_NOT_FOUND, "%s: %s", text, strerror(errno));
    feed->source = is_path ? feed->path : text;
    return 0;
}

int feed_init(struct feed *feed, const struct bench *bench, bool workers, bool gpus)
{
    /* Once: a second signal ends the program, and the private daemon with it. No SA_RESTART: a read ends, too. */
    const struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    const char *named = getenv("FEEDD_SOCKET");
    struct feedd_error err;
    int status;
    feed->dataset = bench->operand;
    feed->seconds = bench->seconds > 0 ? bench->seconds : FEED_SECONDS;
    feed->socket_path = bench->socket_path;
    feed->own = bench->socket_path == NULL && (named == NULL || named[0] == '\0');
    if (check_usage(feed, bench, workers) != 0)
        return 2;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
    if (feed->own) {
        status = private_init(&feed->daemon, bench->operand, gpus, &err);
        feed->source = PRIVATE_DATASET;
        feed->socket_path = feed->daemon.socket;
    } else {
        status = running_source(feed, bench->operand, &err);
    }
    return status != 0 ? fail(&err) : 0;
}

int feed_start(struct feed *feed, uint32_t workers, struct feedd_error *err)
{
    if (!feed->own)
        return feed_check(err);
    private_stop(&feed->daemon);
    int status = feed_check(err);
    if (status == 0 && private_start(&feed->daemon, workers, err) != 0)
        status = interrupted ? feed_check(err) : err->status;
    return status;
}

int feed_warm(struct feed *feed, uint32_t batch_size, struct feedd_error *err)
{
    struct feed_reader reader;
    struct feedd_open_options options = FEEDD_OPEN_OPTIONS_INIT;
    options.batch_size = batch_size;
    int status = feed_open(feed, &options, &reader, err);
    if (status != 0)
        return status;
    const struct feedd_schema *schema = feedd_stream_schema(reader.stream);
    const double until_s = bench_now_s() + WARM_S;
    feed->sample_count = schema->sample_count;
    uint64_t left = feed->cold ? 0 : schema->steps_per_epoch;
    while (status == 0 && left > 0 && bench_now_s() < until_s) {
        const struct feedd_batch *batch;
        struct feedd_batch_info info;
        status = feed_next(&reader, &batch, err);
        if (status != 0)
            break;
        feedd_batch_info(batch, &info);
        feed->warmed += info.valid;
        left--;
        status = feedd_release(batch, NULL, err);
    }
    feed->warmed_all = left == 0;
    feed_close(&reader);
    return status;
}

void feed_done(struct feed *feed)
{
    private_done(&feed->daemon);
}

void feed_notes(const struct feed *feed, struct table *table)
{
    if (feed->own)
        table_note(table, "The daemon was started for this, and had no other clients. Reader and daemon share the "
                          "machine's CPUs: what the reader takes, workers don't get.");
    else
        table_note(table, "The daemon was running: what else it did meanwhile is in these figures, and its CPU time is "
                          "not told apart.");
    if (feed->cold)
        table_note(table, "The page cache was left as it was: a row may have read from disk what the rows after it had "
                          "from memory. Compare rows only where the dataset is far larger than memory, or was in it.");
    else if (feed->warmed_all)
        table_note(table,
                   "An epoch of %" PRIu64 " samples was read before the first row: no row waited for a disk, as far as "
                   "the dataset fits into memory.",
                   feed->warmed);
    else
        table_note(table,
                   "%" PRIu64 " of %" PRIu64 " samples were read before the first row, and all rows begin with these: "
                   "they came from memory. The longest row went on to %" PRIu64 ".",
                   feed->warmed, feed->sample_count, feed->most);
}

json_t *feed_parameters(const struct feed *feed)
{
    return json_pack("{s:s, s:s, s:s?, s:b, s:f, s:I, s:I}", "dataset", feed->dataset, "daemon",
                     feed->own ? "private" : "running", "transform", feed->transform, "cold", feed->cold, "seconds",
                     feed->seconds, "samples", (json_int_t)feed->sample_count, "warmed", (json_int_t)feed->warmed);
}

uint32_t feed_cpus(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) == 0)
        return (uint32_t)CPU_COUNT(&set);
    const long count = sysconf(_SC_NPROCESSORS_ONLN);
    return count > 0 ? (uint32_t)count : 1;
}

/* ---- reading ---- */

int feed_open(const struct feed *feed, const struct feedd_open_options *options, struct feed_reader *out,
              struct feedd_error *err)
{
    struct feedd_open_options open = *options;
    struct feed_reader reader = {.client = NULL};
    open.order = FEEDD_ORDER_SHUFFLE;
    open.has_seed = 1;
    open.seed = 0;
    open.has_epochs = 1;
    open.epochs = 0;
    open.transform = feed->transform;
    int status = feedd_connect(feed->socket_path, &reader.client, err);
    if (status == 0)
        status = feedd_open_begin(reader.client, feed->source, &open, &reader.stream, err);
    while (status == 0 && (status = feedd_open_wait(reader.stream, POLL_MS, err)) == FEEDD_E_TIMEOUT)
        status = feed_check(err);
    if (status != 0) {
        feed_close(&reader);
        return status;
    }
    *out = reader;
    return 0;
}

void feed_close(struct feed_reader *reader)
{
    feedd_client_close(reader->client);
    *reader = (struct feed_reader){.client = NULL};
}

int feed_next(const struct feed_reader *reader, const struct feedd_batch **out, struct feedd_error *err)
{
    int status = feed_check(err);
    while (status == 0 && (status = feedd_next(reader->stream, POLL_MS, out, err)) == FEEDD_E_TIMEOUT)
        status = feed_check(err);
    return status;
}

int feed_sleep_until(double until_s, struct feedd_error *err)
{
    const double whole_s = floor(until_s);
    const struct timespec until = {(time_t)whole_s, (long)((until_s - whole_s) * 1e9)};
    while (!interrupted && clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
        ;
    return feed_check(err);
}

/* The number of this process' only stream in the report, or -1. */
static json_int_t own_stream(const json_t *report)
{
    size_t i;
    const json_t *client;
    json_array_foreach (json_object_get(report, "clients"), i, client)
        if (json_integer_value(json_object_get(client, "pid")) == getpid() &&
            json_array_size(json_object_get(client, "streams")) == 1)
            return json_integer_value(json_object_get(json_array_get(json_object_get(client, "streams"), 0), "stream"));
    return -1;
}

static double stage(const json_t *stream, const char *name)
{
    const json_t *value = json_object_get(json_object_get(stream, "stages"), name);
    return value != NULL ? json_number_value(value) : (double)NAN;
}

int feed_status(const struct feed_reader *reader, struct feed_status *out, struct feedd_error *err)
{
    char *text;
    int status = feedd_status_json(reader->client, &text, err);
    if (status != 0)
        return status;
    json_t *report = json_loads(text, 0, NULL);
    free(text);
    const json_int_t number = own_stream(report);
    size_t i;
    const json_t *stream;
    status = FEEDD_E_NOT_FOUND;
    json_array_foreach (json_object_get(report, "streams"), i, stream) {
        if (json_integer_value(json_object_get(stream, "stream")) != number)
            continue;
        *out = (struct feed_status){
            .workers = (uint32_t)json_integer_value(json_object_get(json_object_get(report, "daemon"), "workers")),
            .ring_bytes = (uint64_t)json_integer_value(json_object_get(stream, "ring_bytes")),
            .gpu_bytes = (uint64_t)json_integer_value(json_object_get(stream, "gpu_bytes")),
            .read_s = stage(stream, "read_s"),
            .decode_s = stage(stream, "decode_s"),
            .resize_s = stage(stream, "resize_s"),
        };
        status = 0;
    }
    json_decref(report);
    return status == 0 ? 0
                       : error_set(err, status, "feedd's report doesn't have process %d as a client", (int)getpid());
}

double feed_daemon_cpu_s(const struct feed *feed)
{
    clockid_t clock;
    struct timespec used;
    if (!feed->own || clock_getcpuclockid(feed->daemon.pid, &clock) != 0 || clock_gettime(clock, &used) != 0)
        return (double)NAN;
    return (double)used.tv_sec + (double)used.tv_nsec / 1e9;
}

/* Takes one batch, notes when, and gives it back. */
static int take(const struct feed_reader *reader, struct feedd_batch_info *info, double *at_s, struct feedd_error *err)
{
    const struct feedd_batch *batch;
    int status = feed_next(reader, &batch, err);
    if (status != 0)
        return status;
    *at_s = bench_now_s();
    feedd_batch_info(batch, info);
    return feedd_release(batch, NULL, err);
}

static double ms_between(const struct feedd_batch_info *info, int from, int to)
{
    return ((double)info->time_ns[to] - (double)info->time_ns[from]) / 1e6;
}

int feed_measure(struct feed *feed, const struct feed_reader *reader, struct feed_window *out, struct feedd_error *err)
{
    struct feed_window window = {.batches = 0};
    struct feed_status before;
    struct feedd_batch_info info;
    double began_s = 0, ended_s = 0;
    int status = 0;
    for (uint32_t i = 0; status == 0 && i < LEAD_BATCHES; i++)
        status = take(reader, &info, &began_s, err);
    const double cpu_s = feed_daemon_cpu_s(feed);
    if (status == 0)
        status = feed_status(reader, &before, err);
    while (status == 0 && (ended_s < began_s + feed->seconds || window.batches < BATCHES_MIN)) {
        status = take(reader, &info, &ended_s, err);
        if (status != 0)
            break;
        window.batches++;
        window.samples += info.valid;
        window.latency_ms += ms_between(&info, FEEDD_TIME_RESERVED, FEEDD_TIME_READY);
        window.making_ms += ms_between(&info, FEEDD_TIME_FIRST_JOB, FEEDD_TIME_READY);
    }
    window.daemon_cpu_s = feed_daemon_cpu_s(feed) - cpu_s;
    if (status == 0)
        status = feed_status(reader, &window.status, err);
    if (status != 0)
        return status;
    const uint64_t lead = (uint64_t)LEAD_BATCHES * feedd_stream_schema(reader->stream)->batch_size;
    feed->most = window.samples + lead > feed->most ? window.samples + lead : feed->most;
    window.seconds = ended_s - began_s;
    window.latency_ms /= (double)window.batches;
    window.making_ms /= (double)window.batches;
    window.read_s = window.status.read_s - before.read_s;
    window.decode_s = window.status.decode_s - before.decode_s;
    window.resize_s = window.status.resize_s - before.resize_s;
    *out = window;
    return 0;
}
