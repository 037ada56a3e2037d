/* verify.c - feedctl verify: has the daemon decode every sample of a dataset, and lists the bad ones.
 *
 * Progress goes to stderr: on a terminal one line, rewritten in place; else a line every 10 seconds. Then the bad
 * samples, a line each, path TAB reason: to stdout, or where --list says; a table of the classes (--classes) and a line
 * that sums up. With --json the daemon's report is all of stdout.
 * Exit status: 0 all are good, 1 some are bad, 2 it could not be done, or was interrupted. */
#include <getopt.h>
#include <inttypes.h>
#include <jansson.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "feedctl.h"

#define LINE_S     10  /* between two lines of progress, where it is not a terminal */
#define LINE_BYTES 256 /* of a line of progress */
#define COLUMNS    80u /* of a terminal that doesn't say */
#define COULD_NOT  2   /* exit status */

struct verify_options {
    struct feedd_verify_options verify;
    const char *source;
    const char *list; /* a file; "-": stdout; NULL: stdout, and more goes there */
    bool classes, json;
};

/* What progress is shown from. */
struct watch {
    const char *source;
    bool terminal;
    double began; /* when the first sample was known; 0: not yet */
    double shown; /* when a line was printed last, where it is not a terminal */
};

static const char bar[] = "####################";
static volatile sig_atomic_t interrupted;

static void on_interrupt(int number)
{
    (void)number;
    interrupted = 1;
}

static const char usage[] =
    "usage: feedctl verify DATASET-or-STREAM [options]\n"
    "\n"
    "Reads and decodes every sample in full. The daemon does it; its streams come first.\n"
    "\n"
    "  --list FILE       write the bad samples to FILE, a line each: path TAB reason; -: only they go to stdout\n"
    "  --classes         print samples and bad ones of each class\n"
    "  --errors-max N    list N bad samples at most [10000]; all are counted\n"
    "  --json            print the report\n"
    "\n"
    "Exit status: 0 all samples are good, 1 some are bad, 2 it could not be done, or was interrupted.\n";

/* @return 0, 2 after saying what is wrong, -1 after help */
static int parse_options(int argc, char **argv, struct verify_options *verify)
{
    static const struct option options[] = {
        {"list", required_argument, NULL, 'l'},
        {"classes", no_argument, NULL, 'c'},
        {"errors-max", required_argument, NULL, 'e'},
        {"json", no_argument, NULL, 'j'},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    uint64_t number = 0;
    int option;
    while ((option = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        switch (option) {
        case 'l':
            verify->list = optarg;
            break;
        case 'c':
            verify->classes = true;
            break;
        case 'e':
            if (parse_number("errors-max", optarg, 0, UINT32_MAX, &number) != 0)
                return 2;
            verify->verify.errors_max = (uint32_t)number;
            break;
        case 'j':
            verify->json = true;
            break;
        case 'h':
            fputs(usage, stdout);
            return -1;
        default:
            return 2;
        }
    }
    if (optind + 1 != argc)
        return fputs(optind == argc ? "feedctl: verify needs the name of a dataset or stream\n"
                                    : "feedctl: verify takes one dataset or stream\n",
                     stderr),
               2;
    if (verify->json && verify->list != NULL && strcmp(verify->list, "-") == 0)
        return fputs("feedctl: --json and --list - both want stdout; --list FILE goes with --json\n", stderr), 2;
    verify->source = argv[optind];
    return 0;
}

/* ---- progress ---- */

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void describe(const struct feedd_verify_progress *p, const struct watch *watch, double now,
                     char text[LINE_BYTES])
{
    double span = now - watch->began, share = (double)p->done / (double)p->total;
    double rate = span > 0 ? (double)p->done / span : 0;
    char left[32] = "?", where[64];
    if (rate > 0)
        human_time((double)(p->total - p->done) / rate, left);
    if (watch->terminal)
        snprintf(where, sizeof(where), "[%-*.*s]", (int)sizeof(bar) - 1, (int)(share * (sizeof(bar) - 1)), bar);
    else
        snprintf(where, sizeof(where), "%" PRIu64 " of %" PRIu64 ",", p->done, p->total);
    snprintf(text, LINE_BYTES, "%3d %% %s %.0f images/s, %.1f MB/s, %s left, %" PRIu64 " bad", (int)(share * 100),
             where, rate, span > 0 ? (double)p->bytes / span / 1e6 : 0, left, p->bad);
}

/* A line that is longer than the terminal is wide could not be rewritten. */
static void rewrite_line(const char *text)
{
    struct winsize size = {0};
    unsigned columns = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : COLUMNS;
    fprintf(stderr, "\r%.*s\033[K", (int)columns - 1, text);
}

static int on_progress(void *arg, const struct feedd_verify_progress *p)
{
    struct watch *watch = arg;
    double now = seconds_now();
    char text[LINE_BYTES];
    if (watch->began == 0 && p->total > 0)
        watch->began = now;
    if (p->total > 0)
        describe(p, watch, now, text);
    else
        snprintf(text, sizeof(text), "opening %s", watch->source);
    if (watch->terminal) {
        rewrite_line(text);
    } else if (now - watch->shown >= LINE_S) {
        fprintf(stderr, "feedctl: %s\n", text);
        watch->shown = now;
    }
    return interrupted;
}

/* ---- the report ---- */

/* Names of files may hold anything; a line is to stay one, and a terminal unharmed. */
static void print_path(FILE *to, const char *path)
{
    for (; *path != '\0'; path++)
        putc((unsigned char)*path < 0x20 || *path == 0x7F ? '?' : *path, to);
}

static void print_errors(FILE *to, const json_t *report)
{
    size_t i;
    const json_t *error;
    json_array_foreach (json_object_get(report, "errors"), i, error) {
        print_path(to, json_string_value(json_object_get(error, "path")));
        fprintf(to, "\t%s\n", json_string_value(json_object_get(error, "reason")));
    }
}

static void print_classes(FILE *to, const json_t *report)
{
    size_t i;
    const json_t *class;
    fprintf(to, "CLASS                       SAMPLES        BAD\n");
    json_array_foreach (json_object_get(report, "classes"), i, class) {
        const char *name = json_string_value(json_object_get(class, "name"));
        print_path(to, name);
        fprintf(to, "%*s %10lld %10lld\n", strlen(name) < 24 ? 24 - (int)strlen(name) : 0, "",
                (long long)json_integer_value(json_object_get(class, "samples")),
                (long long)json_integer_value(json_object_get(class, "bad")));
    }
}

static void print_sum(FILE *to, const json_t *report)
{
    long long checked = json_integer_value(json_object_get(report, "checked"));
    long long bad = json_integer_value(json_object_get(report, "bad"));
    double seconds = json_number_value(json_object_get(report, "seconds"));
    double megabytes = json_number_value(json_object_get(report, "bytes")) / 1e6;
    size_t listed = json_array_size(json_object_get(report, "errors"));
    print_path(to, json_string_value(json_object_get(report, "dataset")));
    fprintf(to, ": %lld of %lld samples checked, %lld bad", checked,
            (long long)json_integer_value(json_object_get(report, "samples")), bad);
    if ((size_t)bad > listed)
        fprintf(to, " (%zu listed)", listed);
    fprintf(to, "; %.1f MB in %.1f s: %.0f images/s, %.1f MB/s\n", megabytes, seconds,
            seconds > 0 ? (double)checked / seconds : 0, seconds > 0 ? megabytes / seconds : 0);
}

/* @param list  where --list FILE goes, or NULL. @return exit status */
static int print_report(const struct verify_options *verify, const json_t *report, FILE *list)
{
    if (list != NULL || !verify->json)
        print_errors(list != NULL ? list : stdout, report);
    if (verify->json) {
        json_dumpf(report, stdout, JSON_INDENT(2));
        putchar('\n');
    } else {
        FILE *to = list == stdout ? stderr : stdout;
        if (verify->classes)
            print_classes(to, report);
        print_sum(to, report);
    }
    if ((list != NULL && fflush(list) != 0) || fflush(stdout) != 0)
        return fputs("feedctl: the report can't be written\n", stderr), COULD_NOT;
    if (!json_is_true(json_object_get(report, "complete")))
        return fputs("feedctl: interrupted: not all samples were checked\n", stderr), COULD_NOT;
    return json_integer_value(json_object_get(report, "bad")) > 0 ? 1 : 0;
}

/* @return exit status */
static int run(const struct verify_options *verify, const char *socket_path, FILE *list)
{
    struct feedd_error err;
    struct feedd_client *client;
    struct watch watch = {.source = verify->source, .terminal = isatty(STDERR_FILENO), .shown = seconds_now()};
    char *text;
    if (feedd_connect(socket_path, &client, &err) != 0)
        return fail(&err), COULD_NOT;
    int status = feedd_verify(client, verify->source, &verify->verify, on_progress, &watch, &text, &err);
    feedd_client_close(client);
    if (watch.terminal)
        fputs("\r\033[K", stderr);
    if (status != 0)
        return fail(&err), COULD_NOT;
    json_t *report = json_loads(text, 0, NULL);
    free(text);
    if (report == NULL)
        return fputs("feedctl: feedd sent a report that is not JSON\n", stderr), COULD_NOT;
    status = print_report(verify, report, list);
    json_decref(report);
    return status;
}

int command_verify(const char *name, const char *socket_path, int argc, char **argv)
{
    (void)name;
    struct verify_options verify = {.verify = FEEDD_VERIFY_OPTIONS_INIT};
    int wrong = parse_options(argc, argv, &verify);
    if (wrong != 0)
        return wrong == -1 ? 0 : wrong;
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND}; /* twice: at once */
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    FILE *list = verify.list == NULL ? NULL : strcmp(verify.list, "-") == 0 ? stdout : fopen(verify.list, "we");
    if (verify.list != NULL && list == NULL)
        return fprintf(stderr, "feedctl: --list %s: it can't be written: %m\n", verify.list), COULD_NOT;
    int status = run(&verify, socket_path, list);
    if (list != NULL && list != stdout && fclose(list) != 0)
        return fprintf(stderr, "feedctl: --list %s: it can't be written: %m\n", verify.list), COULD_NOT;
    return status;
}
