/* main.c - the daemon's command line: feedd --config FILE [--socket PATH] [--check-config].
 *
 * Runs in the foreground until SIGTERM or SIGINT. Exit status: 0 stopped as asked; 1 couldn't start (one line says
 * why); 2 wrong usage. */
#include <getopt.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "config.h"
#include "log.h"
#include "server.h"

static void print_usage(FILE *to)
{
    fputs("usage: feedd --config FILE [--socket PATH] [--check-config]\n"
          "\n"
          "Feeds datasets to the training processes of this machine.\n"
          "\n"
          "  -c, --config FILE    datasets, streams and settings, feedd.conf(5)\n"
          "  -s, --socket PATH    listen here, in place of the configuration's `socket`\n"
          "      --check-config   say whether FILE is right, and leave\n"
          "  -h, --help           this\n"
          "  -V, --version        the version\n",
          to);
}

/* A descriptor a client, three a stream: the soft limit is made as high as it may be. */
static void raise_descriptor_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"config", required_argument, NULL, 'c'}, {"socket", required_argument, NULL, 's'},
        {"check-config", no_argument, NULL, 'k'}, {"help", no_argument, NULL, 'h'},
        {"version", no_argument, NULL, 'V'},      {NULL, 0, NULL, 0},
    };
    const char *config_path = NULL, *socket_path = NULL;
    bool check = false;
    int option;
    while ((option = getopt_long(argc, argv, "c:s:hV", options, NULL)) != -1) {
        switch (option) {
        case 'c':
            config_path = optarg;
            break;
        case 's':
            socket_path = optarg;
            break;
        case 'k':
            check = true;
            break;
        case 'h':
            print_usage(stdout);
            return 0;
        case 'V':
            puts("feedd " FEEDD_VERSION);
            return 0;
        default:
            fputs("feedd: try --help\n", stderr);
            return 2;
        }
    }
    if (optind < argc || config_path == NULL) {
        if (optind < argc)
            fprintf(stderr, "feedd: unexpected argument '%s'\n", argv[optind]);
        else
            fputs("feedd: --config FILE is needed\n", stderr);
        fputs("feedd: try --help\n", stderr);
        return 2;
    }

    struct feedd_error err;
    struct config *config;
    if (config_load(config_path, &config, &err) != 0) {
        log_error("%s", err.message);
        return 1;
    }
    if (check) {
        printf("%s: right: %u datasets, %u streams\n", config_path, config->dataset_count, config->stream_count);
        config_free(config);
        return 0;
    }
    signal(SIGPIPE, SIG_IGN);
    raise_descriptor_limit();
    struct server *server = malloc(sizeof(*server));
    int status = server == NULL ? FEEDD_E_MEMORY : server_init(server, config, socket_path, &err);
    if (status == 0)
        server_run(server);
    else
        log_error("can't start: %s", server == NULL ? "no memory" : err.message);
    free(server);
    config_free(config);
    return status == 0 ? 0 : 1;
}
