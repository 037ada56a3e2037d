/* main.c - the daemon's command line: feedd --config FILE [--socket PATH] [--check-config], or feedd --private.
 *
 * Runs in the foreground until SIGTERM or SIGINT; a private daemon also leaves when nobody has used it for a while.
 * Exit status: 0 stopped as asked; 1 couldn't start, or go on (one line says why); 2 wrong usage. */
#include <getopt.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "config.h"
#include "error.h"
#include "log.h"
#include "private.h"
#include "server.h"

static void print_usage(FILE *to)
{
    fputs("usage: feedd --config FILE [--socket PATH] [--check-config]\n"
          "       feedd --private [--config FILE] [--linger S]\n"
          "\n"
          "Feeds datasets to the training processes of this machine.\n"
          "\n"
          "  -c, --config FILE    datasets, streams and settings, feedd.conf(5)\n"
          "  -s, --socket PATH    listen here, in place of the configuration's `socket`\n"
          "      --check-config   say whether FILE is right, and leave\n"
          "  -p, --private        for this user alone, at a socket in $XDG_RUNTIME_DIR that is printed first;\n"
          "                       one daemon a user and FILE: where there is one, its socket is printed\n"
          "      --linger S       private: leave after S seconds without clients\n"
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
        {"check-config", no_argument, NULL, 'k'}, {"private", no_argument, NULL, 'p'},
        {"linger", required_argument, NULL, 'l'}, {"help", no_argument, NULL, 'h'},
        {"version", no_argument, NULL, 'V'},      {NULL, 0, NULL, 0},
    };
    const char *config_path = NULL, *socket_path = NULL;
    bool check = false, private = false;
    long linger_s = -1;
    char *end;
    int option;
    while ((option = getopt_long(argc, argv, "c:s:phV", options, NULL)) != -1) {
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
        case 'p':
            private
            = true;
            break;
        case 'l':
            linger_s = strtol(optarg, &end, 10);
            if (optarg[0] < '0' || optarg[0] > '9' || *end != '\0' || linger_s > 86400) {
                fprintf(stderr, "feedd: --linger %s: 0 to 86400 seconds are right\n", optarg);
                return 2;
            }
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
    if (optind < argc || (config_path == NULL && !private) || (private && socket_path != NULL) ||
        (linger_s >= 0 && !private)) {
        if (optind >= argc && config_path != NULL)
            fputs("feedd: --private has a socket of its own, and --linger goes with it\n", stderr);
        else if (optind < argc)
            fprintf(stderr, "feedd: unexpected argument '%s'\n", argv[optind]);
        else
            fputs("feedd: --config FILE is needed\n", stderr);
        fputs("feedd: try --help\n", stderr);
        return 2;
    }

    struct feedd_error err;
    struct config *config;
    int status = config_path != NULL ? config_load(config_path, &config, &err) : config_empty(&config, &err);
    if (status != 0) {
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
    if (linger_s >= 0)
        config->linger_s = (uint32_t)linger_s;
    char private_path[PRIVATE_PATH_MAX];
    if (private) {
        umask(0077);
        status = private_socket(config_path, private_path, &err);
        socket_path = private_path;
    }
    struct server *server = malloc(sizeof(*server));
    if (status == 0)
        status = server == NULL ? error_set(&err, FEEDD_E_MEMORY, "no memory")
                                : server_init(server, config, socket_path, private, &err);
    bool served = private && (status == 0 || status == FEEDD_E_STATE); /* by this one, or by one that runs already */
    if (served) {
        printf("%s\n", socket_path);
        fflush(stdout);
    }
    if (status == 0)
        status = server_run(server);
    else if (served)
        status = 0;
    else
        log_error("can't start: %s", err.message);
    free(server);
    config_free(config);
    return status == 0 ? 0 : 1;
}
