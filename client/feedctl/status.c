/* status.c - feedctl status, datasets, streams, clients and errors: the daemon's reports as tables, or as they came
 * (--json).
 *
 * The first line of status says what holds things up; then daemon, datasets, streams, verifications, clients. */
#include <getopt.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "feedctl.h"

static const char *string_at(const json_t *object, const char *key)
{
    const char *value = json_string_value(json_object_get(object, key));
    return value != NULL ? value : "?";
}

static long long integer_at(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

static double number_at(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}

/* "1.5 GiB", "812 KiB": three digits and a unit. */
static const char *human_bytes(double bytes, char text[32])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    size_t unit = 0;
    while (bytes >= 1000 && unit < 4) {
        bytes /= 1024;
        unit++;
    }
    snprintf(text, 32, bytes < 10 && unit > 0 ? "%.1f %s" : "%.0f %s", bytes, units[unit]);
    return text;
}

const char *human_time(double seconds, char text[32])
{
    long s = (long)seconds;
    if (s >= 86400)
        snprintf(text, 32, "%ldd %02ldh", s / 86400, s / 3600 % 24);
    else if (s >= 3600)
        snprintf(text, 32, "%ldh %02ldm", s / 3600, s / 60 % 60);
    else if (s >= 60)
        snprintf(text, 32, "%ldm %02lds", s / 60, s % 60);
    else
        snprintf(text, 32, "%lds", s);
    return text;
}

static void print_datasets(const json_t *report)
{
    const json_t *datasets = json_object_get(report, "datasets");
    printf("DATASET                  READER  STATE      SAMPLES    MEMORY  USERS  BAD\n");
    size_t i;
    const json_t *dataset;
    json_array_foreach (datasets, i, dataset) {
        char bytes[32];
        printf("%-24s %-7s %-8s %9lld %9s %6lld %4lld\n", string_at(dataset, "name"), string_at(dataset, "reader"),
               string_at(dataset, "state"), integer_at(dataset, "samples"),
               human_bytes(number_at(dataset, "memory_bytes"), bytes), integer_at(dataset, "users"),
               integer_at(dataset, "bad_samples"));
        if (json_is_string(json_object_get(dataset, "error")))
            printf("  %s\n", string_at(dataset, "error"));
    }
}

/* "0.485, 0.456, 0.406": as few digits as tell. */
static const char *number_list(const json_t *values, char text[80])
{
    size_t i, used = 0;
    const json_t *value;
    text[0] = '\0';
    json_array_foreach (values, i, value)
        if (used < 80)
            used += (size_t)snprintf(text + used, 80 - used, "%s%.5g", i > 0 ? ", " : "", json_number_value(value));
    return text;
}

/* Who normalises, and what comes of it where that isn't the client's own business. */
static void print_output(const json_t *stream)
{
    const json_t *output = json_object_get(stream, "output");
    char mean[80], std[80];
    printf("       %s\n", string_at(stream, "normalize_reason"));
    if (!json_is_object(output))
        return;
    printf("       %s %s", string_at(output, "dtype"), string_at(output, "layout"));
    if (json_array_size(json_object_get(output, "mean")) > 0)
        printf(", mean %s, std %s, scale %.5g", number_list(json_object_get(output, "mean"), mean),
               number_list(json_object_get(output, "std"), std), number_at(output, "scale"));
    putchar('\n');
}

/* Where batches are, for how many members, and why by that transport. */
static void print_sites(const json_t *stream)
{
    size_t i;
    const json_t *site;
    json_array_foreach (json_object_get(stream, "sites"), i, site) {
        const bool on_gpu = json_is_string(json_object_get(site, "device"));
        const bool open = strcmp(string_at(site, "state"), "open") == 0;
        printf("       %s%s%s, members %lld, ready %lld/%lld%s%s\n", on_gpu ? string_at(site, "device") : "host memory",
               on_gpu ? " by " : "", on_gpu ? string_at(site, "transport") : "", integer_at(site, "members"),
               integer_at(site, "ready"), integer_at(stream, "depth"), open ? "" : ", ",
               open ? "" : string_at(site, "state"));
        if (json_is_string(json_object_get(site, "reason")))
            printf("         %s\n", string_at(site, "reason"));
    }
}

static void print_streams(const json_t *report)
{
    const json_t *streams = json_object_get(report, "streams");
    printf(
        "STREAM DATASET          GROUP        MEMBERS STATE   EPOCH   POSITION BATCH SAMPLES/S   READY WORKERS RANK\n");
    size_t i;
    const json_t *stream;
    json_array_foreach (streams, i, stream) {
        char ready[32], rank[32], members[32];
        snprintf(ready, sizeof(ready), "%lld/%lld", integer_at(stream, "ready"), integer_at(stream, "depth"));
        snprintf(rank, sizeof(rank), "%lld/%lld", integer_at(stream, "rank"), integer_at(stream, "world_size"));
        bool broadcast = json_is_string(json_object_get(stream, "group"));
        long long most = integer_at(stream, "members_max");
        snprintf(members, sizeof(members), most > 0 ? "%lld/%lld" : "%lld", integer_at(stream, "members"), most);
        printf("%6lld %-16s %-12s %7s %-8s %4lld %10lld %5lld %9.0f %7s %7.2f %4s\n", integer_at(stream, "stream"),
               string_at(stream, "dataset"), broadcast ? string_at(stream, "group") : "-", broadcast ? members : "-",
               string_at(stream, "state"), integer_at(stream, "epoch"), integer_at(stream, "position"),
               integer_at(stream, "batch_size"), number_at(stream, "samples_per_s"), ready,
               number_at(stream, "workers_mean"), rank);
        const json_t *bottleneck = json_object_get(stream, "bottleneck");
        printf("       %s: %s\n", string_at(bottleneck, "stage"), string_at(bottleneck, "text"));
        print_output(stream);
        print_sites(stream);
    }
}

static void print_gpus(const json_t *report)
{
    const json_t *gpus = json_object_get(report, "gpus");
    printf("GPU                                      NAME             STATE     RINGS      OF  COPIES/S    GB/S "
           "COPYING\n");
    size_t i;
    const json_t *gpu;
    json_array_foreach (gpus, i, gpu) {
        char rings[32], most[32];
        printf("%-40s %-16.16s %-8s %7s %7s %9.0f %7.2f %5.0f %%\n", string_at(gpu, "gpu"), string_at(gpu, "name"),
               string_at(gpu, "state"), human_bytes(number_at(gpu, "ring_bytes"), rings),
               human_bytes(number_at(gpu, "ring_max"), most), number_at(gpu, "copies_per_s"),
               number_at(gpu, "copied_bytes_per_s") / 1e9, number_at(gpu, "copying") * 100);
        if (json_is_string(json_object_get(gpu, "error")))
            printf("  %s\n", string_at(gpu, "error"));
    }
}

static void print_clients(const json_t *report)
{
    const json_t *clients = json_object_get(report, "clients");
    printf("CLIENT NAME                     PID    UID  CONNECTED  STREAMS  HELD  RELEASED\n");
    size_t i, j;
    const json_t *client, *stream;
    json_array_foreach (clients, i, client) {
        const json_t *streams = json_object_get(client, "streams");
        long long held = 0, released = 0;
        json_array_foreach (streams, j, stream) {
            held += integer_at(stream, "held");
            released += integer_at(stream, "released");
        }
        char connected[32];
        printf("%6lld %-20s %7lld %6lld %10s %8zu %5lld %9lld\n", integer_at(client, "client"),
               string_at(client, "name"), integer_at(client, "pid"), integer_at(client, "uid"),
               human_time(number_at(client, "connected_s"), connected), json_array_size(streams), held, released);
    }
}

static void print_verifications(const json_t *report)
{
    const json_t *verifications = json_object_get(report, "verifications");
    printf("VERIFICATION             STATE         DONE      TOTAL    BAD     TIME  CLIENT\n");
    size_t i;
    const json_t *verification;
    json_array_foreach (verifications, i, verification) {
        char seconds[32];
        printf("%-24s %-8s %9lld %10lld %6lld %8s  %s[%lld]\n", string_at(verification, "dataset"),
               string_at(verification, "state"), integer_at(verification, "done"), integer_at(verification, "total"),
               integer_at(verification, "bad"), human_time(number_at(verification, "seconds"), seconds),
               string_at(verification, "name"), integer_at(verification, "pid"));
    }
}

static void print_errors(const json_t *report)
{
    const json_t *errors = json_object_get(report, "errors");
    printf("DATASET                    SAMPLE  TIMES  REASON\n");
    size_t i;
    const json_t *error;
    json_array_foreach (errors, i, error)
        printf("%-24s %8lld %6lld  %s\n", string_at(error, "dataset"), integer_at(error, "index"),
               integer_at(error, "count"), string_at(error, "reason"));
    if (json_array_size(errors) == 0)
        puts("no bad samples");
}

static void print_report(const json_t *report)
{
    const json_t *daemon = json_object_get(report, "daemon");
    const json_t *bottleneck = json_object_get(report, "bottleneck");
    const json_t *memory = json_object_get(report, "memory");
    char uptime[32], rings[32], rings_max[32], datasets[32], datasets_max[32];
    printf("%s: %s\n", string_at(bottleneck, "stage"), string_at(bottleneck, "text"));
    printf("feedd %s, pid %lld, up %s, %lld workers %.0f %% busy; rings %s of %s, datasets %s of %s\n",
           string_at(daemon, "version"), integer_at(daemon, "pid"), human_time(number_at(daemon, "uptime_s"), uptime),
           integer_at(daemon, "workers"), number_at(daemon, "workers_busy") * 100,
           human_bytes(number_at(memory, "ring_bytes"), rings), human_bytes(number_at(memory, "ring_max"), rings_max),
           human_bytes(number_at(memory, "dataset_bytes"), datasets),
           human_bytes(number_at(memory, "dataset_max"), datasets_max));
    const struct {
        const char *list;
        void (*print)(const json_t *report);
    } tables[] = {{"gpus", print_gpus},
                  {"datasets", print_datasets},
                  {"streams", print_streams},
                  {"verifications", print_verifications},
                  {"clients", print_clients}};
    for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++)
        if (json_array_size(json_object_get(report, tables[i].list)) > 0) {
            putchar('\n');
            tables[i].print(report);
        }
}

/* What the listing commands show: all of the report, or one list of it. */
static const struct listing {
    const char *command;
    const char *list; /* the part that --json prints; NULL: all */
    int (*ask)(struct feedd_client *client, char **out, struct feedd_error *err);
    void (*print)(const json_t *report);
    const char *help;
} listings[] = {
    {"status", NULL, feedd_status_json, print_report, "What the daemon does now; first what holds it up."},
    {"datasets", "datasets", feedd_status_json, print_datasets, "The configured datasets."},
    {"gpus", "gpus", feedd_status_json, print_gpus, "The GPUs that it drives, and the copies to each."},
    {"streams", "streams", feedd_status_json, print_streams, "The open streams, and what holds each up."},
    {"clients", "clients", feedd_status_json, print_clients, "The connected clients."},
    {"errors", "errors", feedd_errors_json, print_errors, "Samples that could not be read or decoded, and why."},
};

int command_listing(const char *name, const char *socket_path, int argc, char **argv)
{
    static const struct option options[] = {
        {"json", no_argument, NULL, 'j'}, {"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0}};
    const struct listing *listing = listings;
    while (strcmp(listing->command, name) != 0) /* main.c sends no others */
        listing++;
    bool json = false;
    int option;
    while ((option = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        if (option == 'j')
            json = true;
        else if (option == 'h')
            return printf("usage: feedctl %s [--json]\n\n%s\n", listing->command, listing->help), 0;
        else
            return 2;
    }
    if (optind < argc)
        return fprintf(stderr, "feedctl: %s takes no argument '%s'\n", listing->command, argv[optind]), 2;
    struct feedd_error err;
    struct feedd_client *client;
    char *text;
    if (feedd_connect(socket_path, &client, &err) != 0)
        return fail(&err);
    int status = listing->ask(client, &text, &err);
    feedd_client_close(client);
    if (status != 0)
        return fail(&err);
    json_t *report = json_loads(text, 0, NULL);
    free(text);
    if (report == NULL)
        return fputs("feedctl: feedd sent a report that is not JSON\n", stderr), 1;
    if (json) {
        json_dumpf(listing->list != NULL ? json_object_get(report, listing->list) : report, stdout, JSON_INDENT(2));
        putchar('\n');
    } else {
        listing->print(report);
    }
    json_decref(report);
    return fflush(stdout) == 0 ? 0 : 1;
}
