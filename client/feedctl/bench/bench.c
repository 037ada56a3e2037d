/* bench.c - feedctl bench: finds the command, reads the options that all have, and prints what was found.
 *
 * What can fail: a wrong option; the plot. Threads: one. */
#include "bench.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "gpu.h"
#include "peer.h"

#define OPTIONS_MAX 32 /* of a command, the common ones included */
#define REPEAT_MAX  100000
#define SECONDS_MAX 3600
#define NUMBER_MAX  32 /* bytes of a number in a list */

static const struct bench_command *const commands[] = {&bench_transfer, &bench_dtypes, &bench_memory,
                                                       &bench_batch,    &bench_decode, &bench_share};

#define COMMANDS (sizeof(commands) / sizeof(commands[0]))

/* Above those of the commands. */
enum { OPTION_CSV = 256, OPTION_JSON, OPTION_PLOT, OPTION_REPEAT, OPTION_SECONDS, OPTION_HELP };

static const struct option common[] = {
    {"csv", no_argument, NULL, OPTION_CSV},
    {"json", no_argument, NULL, OPTION_JSON},
    {"plot", required_argument, NULL, OPTION_PLOT},
    {"repeat", required_argument, NULL, OPTION_REPEAT},
    {"seconds", required_argument, NULL, OPTION_SECONDS},
    {"help", no_argument, NULL, OPTION_HELP},
};

#define COMMON (sizeof(common) / sizeof(common[0]))

static const char common_help[] = "\nFor all:\n"
                                  "  --csv             print CSV\n"
                                  "  --json            print JSON, with the machine and the parameters\n"
                                  "  --plot FILE       draw a plot too, with gnuplot: FILE ends in .png or .svg\n"
                                  "  --repeat N        measure each cell N times\n"
                                  "  --seconds S       measure each cell for S seconds, where --repeat isn't given\n";

static void print_usage(FILE *to)
{
    fputs("usage: feedctl bench COMMAND [options]\n\ncommands:\n", to);
    for (size_t i = 0; i < COMMANDS; i++)
        fprintf(to, "  %-9s %s\n", commands[i]->name, commands[i]->summary);
    fputs(common_help, to);
    fputs("\nfeedctl bench COMMAND --help tells more.\n", to);
}

int command_bench(const char *name, const char *socket_path, int argc, char **argv)
{
    (void)name;
    if (argc < 2)
        return print_usage(stderr), 2;
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)
        return print_usage(stdout), 0;
    if (strcmp(argv[1], PEER_COMMAND) == 0)
        return peer_serve();
    for (size_t i = 0; i < COMMANDS; i++) {
        if (strcmp(commands[i]->name, argv[1]) != 0)
            continue;
        struct bench bench = {.command = commands[i], .socket_path = socket_path};
        argv[1] = argv[0]; /* what getopt's messages begin with */
        return commands[i]->run(&bench, argc - 1, argv + 1);
    }
    return fprintf(stderr, "feedctl: no benchmark '%s'; try feedctl bench --help\n", argv[1]), 2;
}

/* ---- options ---- */

static int take_common(struct bench *bench, int option)
{
    uint64_t number = 0;
    struct feedd_error err;
    switch (option) {
    case OPTION_CSV:
        bench->csv = true;
        return 0;
    case OPTION_JSON:
        bench->json = true;
        return 0;
    case OPTION_PLOT:
        if (bench->command->no_plot)
            return fprintf(stderr, "feedctl: bench %s has no plot\n", bench->command->name), 2;
        bench->plot = optarg;
        return plot_check(optarg, &err) != 0 ? (fail(&err), 2) : 0;
    case OPTION_REPEAT:
        if (parse_number("repeat", optarg, 1, REPEAT_MAX, &number) != 0)
            return 2;
        bench->repeat = (uint32_t)number;
        return 0;
    case OPTION_SECONDS:
        return bench_real("seconds", optarg, 0.001, SECONDS_MAX, &bench->seconds);
    case OPTION_HELP: {
        const struct bench_command *command = bench->command;
        printf("usage: feedctl bench %s%s%s [options]\n\n%s%s", command->name, command->operand != NULL ? " " : "",
               command->operand != NULL ? command->operand : "", command->help, common_help);
        return -1;
    }
    default:
        return 2; /* getopt has said what is wrong */
    }
}

static int take_operand(struct bench *bench, int argc, char **argv)
{
    const char *what = bench->command->operand;
    const int count = argc - optind;
    if (count == 0 && what != NULL)
        return fprintf(stderr, "feedctl: bench %s needs %s\n", bench->command->name, what), 2;
    if (count > (what != NULL))
        return fprintf(stderr, "feedctl: bench %s takes no argument '%s'\n", bench->command->name, argv[argc - 1]), 2;
    bench->operand = count > 0 ? argv[optind] : NULL;
    return 0;
}

int bench_parse(struct bench *bench, int argc, char **argv, const struct option *own,
                int (*take)(void *to, int option, const char *value), void *to)
{
    struct option options[OPTIONS_MAX] = {{NULL, 0, NULL, 0}};
    size_t count = COMMON;
    memcpy(options, common, sizeof(common));
    for (; own->name != NULL && count < OPTIONS_MAX - 1; own++)
        options[count++] = *own;
    int option;
    optind = 0;
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        const int status = option < OPTION_CSV && option != '?' ? take(to, option, optarg) : take_common(bench, option);
        if (status != 0)
            return status;
    }
    if (bench->csv && bench->json)
        return fputs("feedctl: --csv or --json: one of them\n", stderr), 2;
    return take_operand(bench, argc, argv);
}

int bench_numbers(const char *option, const char *text, uint64_t min, uint64_t max, uint64_t out[BENCH_LIST_MAX],
                  size_t *count)
{
    size_t n = 0;
    for (const char *at = text;; at++) {
        char number[NUMBER_MAX];
        const size_t length = strcspn(at, ",");
        snprintf(number, sizeof(number), "%.*s", (int)length, at);
        if (n == BENCH_LIST_MAX)
            return fprintf(stderr, "feedctl: --%s: at most %u numbers are right\n", option, BENCH_LIST_MAX), 2;
        if (parse_number(option, number, min, max, &out[n]) != 0)
            return 2;
        for (size_t i = 0; i < n; i++)
            if (out[i] == out[n])
                return fprintf(stderr, "feedctl: --%s %s: %s is there twice\n", option, text, number), 2;
        n++;
        at += length;
        if (*at == '\0')
            break;
    }
    *count = n;
    return 0;
}

int bench_real(const char *option, const char *text, double min, double max, double *out)
{
    char *end;
    const double value = strtod(text, &end);
    if (text[0] == '\0' || strspn(text, "0123456789.") != strlen(text) || *end != '\0' || value < min || value > max)
        return fprintf(stderr, "feedctl: --%s %s: a number from %g to %g is right\n", option, text, min, max), 2;
    *out = value;
    return 0;
}

int bench_choice(const char *option, const char *text, const char *const names[], size_t *out)
{
    for (size_t i = 0; names[i] != NULL; i++)
        if (strcmp(names[i], text) == 0)
            return *out = i, 0;
    fprintf(stderr, "feedctl: --%s %s: right are", option, text);
    for (size_t i = 0; names[i] != NULL; i++)
        fprintf(stderr, "%s %s", i > 0 ? "," : "", names[i]);
    fputc('\n', stderr);
    return 2;
}

json_t *bench_numbers_json(const uint64_t *numbers, size_t count)
{
    json_t *array = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(array, json_integer((json_int_t)numbers[i]));
    return array;
}

/* ---- output ---- */

/* The first "model name" of /proc/cpuinfo; where there is none, as on Arm, what uname(2) calls the machine. */
static void cpu_model(char *model, size_t bytes)
{
    char line[512];
    FILE *file = fopen("/proc/cpuinfo", "re");
    snprintf(model, bytes, "unknown CPU");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        const char *value = strchr(line, ':');
        if (strncmp(line, "model name", strlen("model name")) != 0 || value == NULL)
            continue;
        snprintf(model, bytes, "%.*s", (int)strcspn(value + 2, "\n"), value + 2);
        break;
    }
    if (file != NULL)
        fclose(file);
}

static json_t *machine_json(void)
{
    char model[256];
    struct gpu_identity gpu;
    struct feedd_error err;
    cpu_model(model, sizeof(model));
    json_t *machine = json_pack("{s:s, s:I}", "cpu", model, "cores", (json_int_t)sysconf(_SC_NPROCESSORS_ONLN));
    if (gpu_identify(&gpu, &err) == 0) {
        json_object_set_new(machine, "gpu",
                            json_pack("{s:s, s:s, s:s, s:s}", "name", gpu.name, "uuid", gpu.uuid, "driver", gpu.driver,
                                      "runtime", gpu.runtime));
    } else {
        json_object_set_new(machine, "gpu", json_null());
        json_object_set_new(machine, "gpu_reason", json_string(err.message));
    }
    return machine;
}

static const char *string_at(const json_t *object, const char *key)
{
    return json_string_value(json_object_get(object, key));
}

/* What was run, when and on what, above the table. */
static void print_heading(const struct bench *bench, const char *date, const json_t *machine)
{
    const json_t *gpu = json_object_get(machine, "gpu");
    printf("feedctl bench %s, %s\n%s, %lld cores; ", bench->command->name, date, string_at(machine, "cpu"),
           (long long)json_integer_value(json_object_get(machine, "cores")));
    if (json_is_null(gpu))
        printf("no GPU: %s\n\n", string_at(machine, "gpu_reason"));
    else
        printf("%s (driver for CUDA %s, runtime %s)\n\n", string_at(gpu, "name"), string_at(gpu, "driver"),
               string_at(gpu, "runtime"));
}

int bench_finish(const struct bench *bench, const struct table *table, json_t *parameters, const struct plot *plot)
{
    char date[32];
    struct feedd_error err;
    const time_t now = time(NULL);
    struct tm utc;
    strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    json_t *machine = machine_json();
    if (bench->json) {
        json_t *all = json_pack("{s:s, s:s, s:O, s:O}", "command", bench->command->name, "date", date, "machine",
                                machine, "parameters", parameters);
        table_json(table, all);
        json_dumpf(all, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(15));
        putchar('\n');
        json_decref(all);
    } else if (bench->csv) {
        table_print_csv(table, stdout);
    } else {
        print_heading(bench, date, machine);
        table_print(table, stdout);
    }
    json_decref(machine);
    json_decref(parameters);
    if (fflush(stdout) != 0)
        return fprintf(stderr, "feedctl: writing the output: %s\n", strerror(errno)), 1;
    return bench->plot != NULL && plot_write(plot, bench->plot, &err) != 0 ? fail(&err) : 0;
}

/* ---- time ---- */

double bench_now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(double *values, size_t count)
{
    if (count == 0)
        return 0;
    qsort(values, count, sizeof(*values), compare);
    return count % 2 == 1 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}
