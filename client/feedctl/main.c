/* main.c - feedctl: what operators and scripts ask the daemon. Finds the command; the commands are files of their own.
 */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "feedctl.h"

static const struct {
    const char *name;
    int (*run)(const char *name, const char *socket_path, int argc, char **argv);
    const char *summary;
} commands[] = {
    {"status", command_listing, "the daemon, its datasets, streams and clients, and what holds them up"},
    {"datasets", command_listing, "the configured datasets"},
    {"gpus", command_listing, "the GPUs that it drives, and the copies to each"},
    {"streams", command_listing, "the open streams, and what holds each up"},
    {"clients", command_listing, "the connected clients"},
    {"errors", command_listing, "samples that could not be read or decoded, and why"},
    {"verify", command_verify, "reads and decodes every sample of a dataset, and lists the bad ones"},
    {"cat", command_cat, "reads a stream or dataset and prints each batch: what is delivered, in which order"},
    {"bench", command_bench, "what copying, normalising, memory, decoding and sharing cost here: tables and plots"},
};

static void print_usage(FILE *to)
{
    fputs("usage: feedctl [--socket PATH] COMMAND ...\n\ncommands:\n", to);
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
        fprintf(to, "  %-8s %s\n", commands[i].name, commands[i].summary);
    fputs("\nfeedctl COMMAND --help tells more. The socket is --socket, or $FEEDD_SOCKET, or /run/feedd/feedd.sock.\n",
          to);
}

int fail(const struct feedd_error *err)
{
    fprintf(stderr, "feedctl: %s\n", err->message);
    return 1;
}

int parse_number(const char *option, const char *text, uint64_t min, uint64_t max, uint64_t *out)
{
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0 || value < min || value > max) {
        fprintf(stderr, "feedctl: --%s %s: a whole number from %llu to %llu is right\n", option, text,
                (unsigned long long)min, (unsigned long long)max);
        return 2;
    }
    *out = value;
    return 0;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"socket", required_argument, NULL, 's'},
        {"help", no_argument, NULL, 'h'},
        {"version", no_argument, NULL, 'V'},
        {NULL, 0, NULL, 0},
    };
    const char *socket_path = NULL;
    int option;
    while ((option = getopt_long(argc, argv, "+s:hV", options, NULL)) != -1) {
        switch (option) {
        case 's':
            socket_path = optarg;
            break;
        case 'h':
            print_usage(stdout);
            return 0;
        case 'V':
            printf("feedctl %s\n", feedd_version());
            return 0;
        default:
            return 2;
        }
    }
    if (optind == argc) {
        print_usage(stderr);
        return 2;
    }
    char *program = argv[0];
    const char *name = argv[optind];
    argc -= optind;
    argv += optind;
    optind = 0;        /* the command's own options begin anew (getopt(3): 0 re-initialises) */
    argv[0] = program; /* what getopt's messages begin with */
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
        if (strcmp(commands[i].name, name) == 0)
            return commands[i].run(name, socket_path, argc, argv);
    fprintf(stderr, "feedctl: no command '%s'; try feedctl --help\n", name);
    return 2;
}
