/* status.c - feedctl status: the daemon's report as a person reads it, or as it came (--json).
 *
 * The first line of the report says what holds things up; then daemon, datasets, streams, clients. */
#include <getopt.h>
#include <jansson.h>
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

/* "1h 02m", "3m 20s", "12s". */
static const char *human_time(double seconds, char text[32])
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

static void print_datasets(const json_t *datasets)
{
    if (json_array_size(datasets) == 0)
        return;
    printf("\nDATASET                  READER  STATE      SAMPLES    MEMORY  USERS\n");
    size_t i;
    const json_t *dataset;
    json_array_foreach(datasets, i, dataset)
    {
        char bytes[32];
        printf("%-24s %-7s %-8s %9lld %9s %6lld\n", string_at(dataset, "name"), string_at(dataset, "reader"),
               string_at(dataset, "state"), integer_at(dataset, "samples"),
               human_bytes(number_at(dataset, "memory_bytes"), bytes), integer_at(dataset, "users"));
        if (json_is_string(json_object_get(dataset, "error")))
            printf("  %s\n", string_at(dataset, "error"));
    }
}

static void print_streams(const json_t *streams)
{
    if (json_array_size(streams) == 0)
        return;
    printf("\nSTREAM DATASET              STATE    EPOCH   POSITION  BATCH  SAMPLES/S  READY/DEPTH  WORKERS  RANK\n");
    size_t i;
    const json_t *stream;
    json_array_foreach(streams, i, stream)
    {
        char ready[32], rank[32];
        snprintf(ready, sizeof(ready), "%lld/%lld", integer_at(stream, "ready"), integer_at(stream, "depth"));
        snprintf(rank, sizeof(rank), "%lld/%lld", integer_at(stream, "rank"), integer_at(stream, "world_size"));
        printf("%6lld %-20s %-8s %5lld %10lld %6lld %10.0f %12s %8.2f %5s\n", integer_at(stream, "stream"),
               string_at(stream, "dataset"), string_at(stream, "state"), integer_at(stream, "epoch"),
               integer_at(stream, "position"), integer_at(stream, "batch_size"), number_at(stream, "samples_per_s"),
               ready, number_at(stream, "workers_mean"), rank);
        printf("       %s\n", string_at(json_object_get(stream, "bottleneck"), "text"));
    }
}

static void print_clients(const json_t *clients)
{
    printf("\nCLIENT NAME                     PID    UID  CONNECTED  STREAMS  HELD  RELEASED\n");
    size_t i, j;
    const json_t *client, *stream;
    json_array_foreach(clients, i, client)
    {
        const json_t *streams = json_object_get(client, "streams");
        long long held = 0, released = 0;
        json_array_foreach(streams, j, stream)
        {
            held += integer_at(stream, "held");
            released += integer_at(stream, "released");
        }
        char connected[32];
        printf("%6lld %-20s %7lld %6lld %10s %8zu %5lld %9lld\n", integer_at(client, "client"),
               string_at(client, "name"), integer_at(client, "pid"), integer_at(client, "uid"),
               human_time(number_at(client, "connected_s"), connected), json_array_size(streams), held, released);
    }
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
    print_datasets(json_object_get(report, "datasets"));
    print_streams(json_object_get(report, "streams"));
    print_clients(json_object_get(report, "clients"));
}

int command_status(const char *name, const char *socket_path, int argc, char **argv)
{
    (void)name;
    static const struct option options[] = {
        {"json", no_argument, NULL, 'j'}, {"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0}};
    int json = 0, option;
    while ((option = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        if (option == 'j')
            json = 1;
        else if (option == 'h')
            return puts("usage: feedctl status [--json]\n\nWhat the daemon does now; first what holds it up."), 0;
        else
            return 2;
    }
    if (optind < argc)
        return fprintf(stderr, "feedctl: status takes no argument '%s'\n", argv[optind]), 2;
    struct feedd_error err;
    struct feedd_client *client;
    char *text;
    if (feedd_connect(socket_path, &client, &err) != 0)
        return fail(&err);
    int status = feedd_status_json(client, &text, &err);
    feedd_client_close(client);
    if (status != 0)
        return fail(&err);
    json_t *report = json_loads(text, 0, NULL);
    free(text);
    if (report == NULL)
        return fputs("feedctl: feedd sent a report that is not JSON\n", stderr), 1;
    if (json) {
        json_dumpf(report, stdout, JSON_INDENT(2));
        putchar('\n');
    } else {
        print_report(report);
    }
    json_decref(report);
    return fflush(stdout) == 0 ? 0 : 1;
}
