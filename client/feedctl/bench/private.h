/* private.h - a daemon of a benchmark's own, with as many workers as a row asks for.
 *
 * `feedd --private` with a configuration in a temporary folder: the socket's name follows from that folder, so nobody
 * else has it. It stops with private_stop(), with the death of the process that started it, however that comes, and by
 * itself when nobody has used it for a while.
 * Threads: one; the daemon is tied to the thread that starts it. */
#ifndef FEEDD_BENCH_PRIVATE_H
#define FEEDD_BENCH_PRIVATE_H

#include <jansson.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "feedd_types.h"

#define PRIVATE_DATASET "bench" /* what its only dataset is called */

struct private_daemon {
    json_t *dataset;        /* as feedd.conf(5) has it */
    bool gpus;              /* it drives those there are */
    char folder[64];        /* configuration, log, lists of files; "": there is none */
    char program[PATH_MAX]; /* feedd; without a slash: PATH is searched */
    char socket[128];       /* while it runs */
    pid_t pid;              /* 0: it doesn't run */
};

/* Readies what is needed to start it, and starts nothing. Found is the program of $FEEDD_PROGRAM, or that beside
 * feedctl's own, or that in PATH.
 * @param dataset  a folder of class folders, a list of paths and labels, or "idx:IMAGES[,LABELS]"
 * @return FEEDD_E_NOT_FOUND (no such file), FEEDD_E_ARGUMENT, FEEDD_E_IO (no temporary folder) */
int private_init(struct private_daemon *daemon, const char *dataset, bool gpus, struct feedd_error *err);

/* Starts it, and waits until it listens. @return FEEDD_E_CONNECTION: it doesn't; what it said last */
int private_start(struct private_daemon *daemon, uint32_t workers, struct feedd_error *err);

/* Ends it and waits for that. It may be stopped already. */
void private_stop(struct private_daemon *daemon);

/* Stops it and removes the folder. Of a daemon that is all zeros, or whose private_init() failed: nothing to do. */
void private_done(struct private_daemon *daemon);

#endif
