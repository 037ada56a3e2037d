/* share.c - feedctl bench share: what it costs to feed more and more clients, of one decode or of a decode each.
 *
 * Happy path: a daemon is started -> for each count as many processes are forked, and each opens a stream -> when all
 * have, they are told when to begin -> each reads as fast as it can, and reports -> a row for private streams, one for
 * a broadcast group.
 * What can fail: the daemon, the dataset, a client: what it says is the error, and the others end.
 * Threads: one in each process. A child has only its socket from the parent, and its own libfeedd client. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"
#include "error.h"
#include "feed.h"
#include "progress.h"

#define WORKERS_MAX 1024 /* feedd.conf(5) */
#define CLIENTS_MAX 256
#define POLL_MS     200 /* how often a wait looks for a signal */
#define SETTLE_S    0.2 /* rings that filled before the start are empty by then */
#define BATCHES_MIN 3u  /* of each client, however long they take */

static const char help[] =
    "Images a second that clients get together and each, as members of one broadcast group, for which the daemon "
    "decodes\n"
    "once, and with private streams, for each of which it decodes anew. Each client is a process that takes batches "
    "as\n"
    "fast as it can.\n"
    "\n"
    "  --clients LIST    counts of clients [1,2,4,8]\n"
    "  --batch-size B    images of a batch [64]\n"
    "  --workers N       of the daemon that is started [the CPUs]; not of a running one\n" FEED_OPTIONS_HELP;

struct share_options {
    struct feed feed;
    uint64_t clients[BENCH_LIST_MAX];
    size_t client_count;
    uint64_t batch_size, workers; /* workers 0: as many as CPUs */
};

static int take_option(void *to, int option, const char *value)
{
    struct share_options *o = to;
    switch (option) {
    case 'c':
        return bench_numbers("clients", value, 1, CLIENTS_MAX, o->clients, &o->client_count);
    case 'b':
        return parse_number("batch-size", value, 1, FEEDD_MAX_BATCH, &o->batch_size);
    case 'w':
        return parse_number("workers", value, 1, WORKERS_MAX, &o->workers);
    default:
        feed_option(&o->feed, option, value);
        return 0;
    }
}

static const struct option options[] = {
    {"clients", required_argument, NULL, 'c'},     {"batch-size", required_argument, NULL, 'b'},
    {"workers", required_argument, NULL, 'w'},     {"transform", required_argument, NULL, FEED_OPTION_TRANSFORM},
    {"cold", no_argument, NULL, FEED_OPTION_COLD}, {NULL, 0, NULL, 0},
};

enum { WAY_PRIVATE, WAY_BROADCAST, WAYS };
static const char *const way_names[WAYS] = {"private", "broadcast"};

static const struct table_column columns[] = {
    {"clients", NULL, "clients", NULL, 0, 0},
    {"way", NULL, "streams", NULL, TABLE_TEXT, 0},
    {"least_images_per_s", "images of a client", "least", "1/s", 1, 0},
    {"mean_images_per_s", "images of a client", "mean", "1/s", 1, 0},
    {"most_images_per_s", "images of a client", "most", "1/s", 1, 0},
    {"together_images_per_s", NULL, "together", "1/s", 1, 0},
    {"ratio", NULL, "ratio", NULL, 3, 0},
    {"daemon_cpu_s_per_1000", "CPU for 1000 delivered", "daemon", "s", 6, 0},
    {"clients_cpu_s_per_1000", "CPU for 1000 delivered", "clients", "s", 6, 0},
};

/* ---- a client ---- */

/* What passes between a client and its parent. First the client says that its stream is open, or why not; then it is
 * told when to read; then it says what came, and reads on until its socket is closed, so that the others are measured
 * beside as many as they began with. */
struct window {
    double from_s, until_s; /* CLOCK_MONOTONIC, the same in all processes */
};

struct report {
    struct feedd_error err; /* status 0: all is well */
    double images_per_s;
    double cpu_share; /* CPU seconds of this client a second */
    uint64_t samples; /* that it has read, all in all */
};

struct client {
    pid_t pid;
    int fd;
};

static double cpu_now_s(void)
{
    struct timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return (double)used.tv_sec + (double)used.tv_nsec / 1e9;
}

static bool is_closed(int fd)
{
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
    return poll(&poll_fd, 1, 0) == 1;
}

/* Reads until the socket is closed; sends one report. */
static int read_as_client(const struct feed_reader *reader, int fd, struct window window, struct feedd_error *err)
{
    double began_s = 0, began_cpu_s = 0;
    uint64_t batches = 0, samples = 0;
    struct report report = {.samples = 0};
    bool reported = false;
    while (!reported || !is_closed(fd)) {
        const struct feedd_batch *batch;
        struct feedd_batch_info info;
        int status = feed_next(reader, &batch, err);
        if (status != 0)
            return status;
        const double now_s = bench_now_s();
        feedd_batch_info(batch, &info);
        status = feedd_release(batch, NULL, err);
        if (status != 0)
            return status;
        report.samples += info.valid;
        if (now_s < window.from_s || reported)
            continue;
        if (began_s == 0) {
            began_s = now_s;
            began_cpu_s = cpu_now_s();
            continue;
        }
        batches++;
        samples += info.valid;
        if (now_s < window.until_s || batches < BATCHES_MIN)
            continue;
        report.images_per_s = (double)samples / (now_s - began_s);
        report.cpu_share = (cpu_now_s() - began_cpu_s) / (now_s - began_s);
        reported = true;
        if (send(fd, &report, sizeof(report), MSG_NOSIGNAL) != (ssize_t)sizeof(report))
            return error_set(err, FEEDD_E_IO, "a client's report: %s", strerror(errno));
    }
    return 0;
}

static _Noreturn void client_main(const struct share_options *o, int way, uint32_t members, int fd, pid_t parent)
{
    char group[FEEDD_MAX_NAME];
    struct feedd_open_options open = FEEDD_OPEN_OPTIONS_INIT;
    struct feed_reader reader = {.client = NULL};
    struct report report = {.samples = 0};
    struct window window;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    open.batch_size = (uint32_t)o->batch_size;
    if (way == WAY_BROADCAST) {
        snprintf(group, sizeof(group), "feedctl-bench-%d-%u", (int)parent, members);
        open.share = FEEDD_SHARE_BROADCAST;
        open.group = group;
        open.members = members;
    }
    int status = feed_open(&o->feed, &open, &reader, &report.err);
    if (status == 0)
        report.err = (struct feedd_error){.status = 0};
    if (send(fd, &report, sizeof(report), MSG_NOSIGNAL) == (ssize_t)sizeof(report) && status == 0 &&
        recv(fd, &window, sizeof(window), 0) == (ssize_t)sizeof(window)) {
        status = read_as_client(&reader, fd, window, &report.err);
        if (status != 0)
            send(fd, &report, sizeof(report), MSG_NOSIGNAL);
    }
    feed_close(&reader);
    _exit(0);
}

/* ---- all of them ---- */

/* @return 0, with *count clients that were forked, also after a failure */
static int fork_clients(const struct share_options *o, int way, uint32_t members, struct client *clients,
                        uint32_t *count, struct feedd_error *err)
{
    const pid_t parent = getpid();
    for (*count = 0; *count < members; ++*count) {
        int fds[2];
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0)
            return error_set(err, FEEDD_E_IO, "starting client %u: %s", *count + 1, strerror(errno));
        const pid_t pid = fork();
        if (pid == 0) {
            for (uint32_t i = 0; i < *count; i++)
                close(clients[i].fd); /* else a client would not see that its parent has closed its end */
            close(fds[0]);
            client_main(o, way, members, fds[1], parent);
        }
        close(fds[1]);
        if (pid < 0) {
            close(fds[0]);
            return error_set(err, FEEDD_E_IO, "starting client %u: %s", *count + 1, strerror(errno));
        }
        clients[*count] = (struct client){.pid = pid, .fd = fds[0]};
    }
    return 0;
}

static void end_clients(const struct client *clients, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        close(clients[i].fd);
    for (uint32_t i = 0; i < count; i++) {
        kill(clients[i].pid, SIGTERM); /* it may be in the midst of opening */
        while (waitpid(clients[i].pid, NULL, 0) < 0 && errno == EINTR)
            ;
    }
}

/* Waits for one message of each. */
static int collect(const struct client *clients, uint32_t count, struct report *reports, struct feedd_error *err)
{
    for (uint32_t i = 0; i < count; i++) {
        struct pollfd poll_fd = {.fd = clients[i].fd, .events = POLLIN};
        int status;
        do {
            status = feed_check(err); /* a signal may have ended clients as well: that is no fault of theirs */
            if (status != 0)
                return status;
        } while (poll(&poll_fd, 1, POLL_MS) <= 0);
        const ssize_t got = recv(clients[i].fd, &reports[i], sizeof(reports[i]), 0);
        if (got != (ssize_t)sizeof(reports[i]))
            return error_set(err, FEEDD_E_IO, "client %u ended: %s", i + 1, got < 0 ? strerror(errno) : "no report");
        if (reports[i].err.status != 0) {
            *err = reports[i].err;
            return err->status;
        }
    }
    return 0;
}

/* What one way came to. */
struct outcome {
    double least, mean, most, together; /* images a second */
    double daemon_cpu, clients_cpu;     /* CPU seconds a second; NAN: not known */
};

static struct outcome sum_up(const struct report *reports, uint32_t count)
{
    struct outcome outcome = {.least = reports[0].images_per_s, .most = reports[0].images_per_s};
    for (uint32_t i = 0; i < count; i++) {
        outcome.least = fmin(outcome.least, reports[i].images_per_s);
        outcome.most = fmax(outcome.most, reports[i].images_per_s);
        outcome.together += reports[i].images_per_s;
        outcome.clients_cpu += reports[i].cpu_share;
    }
    outcome.mean = outcome.together / count;
    return outcome;
}

static int run_clients(struct share_options *o, const struct client *clients, uint32_t count, struct outcome *out,
                       struct feedd_error *err)
{
    struct report reports[CLIENTS_MAX];
    int status = collect(clients, count, reports, err);
    if (status != 0)
        return status;
    const double from_s = bench_now_s() + SETTLE_S;
    const struct window window = {from_s, from_s + o->feed.seconds};
    for (uint32_t i = 0; i < count; i++)
        send(clients[i].fd, &window, sizeof(window), MSG_NOSIGNAL); /* one that has gone is found by collect() */
    status = feed_sleep_until(window.from_s, err);
    const double began_s = bench_now_s(), cpu_s = feed_daemon_cpu_s(&o->feed);
    if (status == 0)
        status = collect(clients, count, reports, err);
    if (status != 0)
        return status;
    *out = sum_up(reports, count);
    out->daemon_cpu = (feed_daemon_cpu_s(&o->feed) - cpu_s) / (bench_now_s() - began_s);
    for (uint32_t i = 0; i < count; i++)
        o->feed.most = reports[i].samples > o->feed.most ? reports[i].samples : o->feed.most;
    return 0;
}

static int measure_way(struct share_options *o, int way, uint32_t members, struct outcome *out, struct feedd_error *err)
{
    struct client clients[CLIENTS_MAX];
    uint32_t count;
    int status = fork_clients(o, way, members, clients, &count, err);
    if (status == 0)
        status = run_clients(o, clients, count, out, err);
    end_clients(clients, count);
    return status;
}

static void add_row(struct table *table, uint32_t clients, int way, const struct outcome *outcome,
                    const struct outcome *private)
{
    table_row(table);
    table_number(table, "clients", clients);
    table_text(table, "way", way_names[way]);
    table_number(table, "least_images_per_s", outcome->least);
    table_number(table, "mean_images_per_s", outcome->mean);
    table_number(table, "most_images_per_s", outcome->most);
    table_number(table, "together_images_per_s", outcome->together);
    table_number(table, "ratio", outcome->together / private->together);
    if (isfinite(outcome->daemon_cpu))
        table_number(table, "daemon_cpu_s_per_1000", outcome->daemon_cpu / outcome->together * 1000);
    else
        table_absent(table, "daemon_cpu_s_per_1000", FEED_NO_CPU);
    table_number(table, "clients_cpu_s_per_1000", outcome->clients_cpu / outcome->together * 1000);
}

static int measure(struct share_options *o, struct table *table, struct feedd_error *err)
{
    struct progress progress;
    progress_begin(&progress, WAYS * o->client_count + 1);
    progress_step(&progress, "share: reading once");
    int status = feed_start(&o->feed, o->workers != 0 ? (uint32_t)o->workers : feed_cpus(), err);
    if (status == 0)
        status = feed_warm(&o->feed, (uint32_t)o->batch_size, err);
    for (size_t i = 0; status == 0 && i < o->client_count; i++) {
        struct outcome outcomes[WAYS];
        const uint32_t clients = (uint32_t)o->clients[i];
        for (int way = 0; status == 0 && way < WAYS; way++) {
            progress_step(&progress, "%u clients, %s", clients, way_names[way]);
            status = measure_way(o, way, clients, &outcomes[way], err);
            if (status == 0)
                add_row(table, clients, way, &outcomes[way], &outcomes[WAY_PRIVATE]);
        }
    }
    progress_end(&progress);
    feed_done(&o->feed);
    return status;
}

static void add_notes(const struct share_options *o, struct table *table)
{
    table_note(table,
               "Ratio: images/s together against the same number of private streams. A broadcast group gets each "
               "image decoded once, all of its members in step: it is for those that may read the same order. "
               "Private streams here read that order too, each at its own place.");
    table_note(table,
               "An image that n clients get counts n times: together, and in the CPU time for 1000. Clients look at "
               "no pixel; what a trainer does with them takes CPUs from the workers.");
    feed_notes(&o->feed, table);
}

static void add_plot(const struct table *table, struct plot *plot)
{
    struct plot_series *series[WAYS] = {plot_series_add(plot, "private streams"),
                                        plot_series_add(plot, "one broadcast group")};
    series[WAY_PRIVATE]->dashed = true;
    for (size_t i = 0; i < table_rows(table); i++)
        plot_point(series[strcmp(table_text_at(table, i, "way"), way_names[WAY_BROADCAST]) == 0],
                   table_number_at(table, i, "clients"), table_number_at(table, i, "together_images_per_s"));
}

static json_t *parameters_of(const struct share_options *o)
{
    json_t *parameters = feed_parameters(&o->feed);
    json_object_update_new(parameters,
                           json_pack("{s:o, s:I}", "clients", bench_numbers_json(o->clients, o->client_count),
                                     "batch_size", (json_int_t)o->batch_size));
    return parameters;
}

static int run(struct bench *bench, int argc, char **argv)
{
    struct share_options o = {.clients = {1, 2, 4, 8}, .client_count = 4, .batch_size = FEED_BATCH};
    int wrong = bench_parse(bench, argc, argv, options, take_option, &o);
    if (wrong == 0)
        wrong = feed_init(&o.feed, bench, o.workers != 0, false);
    if (wrong != 0)
        return wrong == -1 ? 0 : wrong;
    struct feedd_error err;
    struct table *table = table_new(columns, sizeof(columns) / sizeof(columns[0]));
    int status = measure(&o, table, &err);
    if (status == 0) {
        struct plot plot = {.title = "feedctl bench share: images a second of all clients together",
                            .x_label = "clients",
                            .y_label = "images/s"};
        add_notes(&o, table);
        add_plot(table, &plot);
        status = bench_finish(bench, table, parameters_of(&o), &plot);
    } else {
        status = fail(&err);
    }
    table_free(table);
    return status;
}

const struct bench_command bench_share = {
    .name = "share",
    .summary = "more and more clients, of one decode or a decode each: images a second and CPU time",
    .operand = "DATASET",
    .help = help,
    .run = run,
};
