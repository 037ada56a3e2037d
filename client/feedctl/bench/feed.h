/* feed.h - the daemon that a benchmark reads from, and a reader that takes batches as fast as it can.
 *
 * The daemon is one of the benchmark's own (private.h), or that of --socket or $FEEDD_SOCKET. All streams read the same
 * samples in the same order: a shuffle with seed 0, from its start. So what was read once, to warm the page cache, is
 * what is read again.
 * Ctrl-C, SIGTERM and SIGHUP end what is under way with FEEDD_E_STATE, "interrupted"; a second one ends the program.
 * Threads: one. */
#ifndef FEEDD_BENCH_FEED_H
#define FEEDD_BENCH_FEED_H

#include <getopt.h>
#include <stdbool.h>
#include <stdint.h>

#include "bench.h"
#include "feedd.h"
#include "private.h"

#define FEED_SECONDS 3.0 /* of a row */
#define FEED_BATCH   64u
#define FEED_NO_CPU  "a running daemon's CPU time is also others'"

struct feed {
    const char *dataset; /* as the command line has it */
    bool own;            /* the daemon is the benchmark's own: started for it, and used by nobody else */
    struct private_daemon daemon;
    const char *socket_path, *source; /* for feedd_connect() and feedd_open() */
    char path[PATH_MAX];              /* the source, where it is a path */
    const char *transform;            /* or NULL */
    bool cold;                        /* the page cache is left as it is */
    double seconds;                   /* of a row */
    uint64_t warmed, sample_count;    /* samples that were read to warm the page cache, of those there are */
    bool warmed_all;                  /* a whole epoch */
    uint64_t most;                    /* samples that a row has read, at most */
};

/* ---- options that the commands share: --transform, --cold ---- */

enum { FEED_OPTION_TRANSFORM = 1, FEED_OPTION_COLD }; /* the commands' own are letters */
#define FEED_OPTIONS_HELP                                                                                              \
    "  --transform T     what is made of images: '{resize: 256, center_crop: 224}'\n"                                  \
    "  --cold            leave the page cache as it is; else samples are read once before the first row\n"             \
    "\nDATASET is a folder of class folders, a list, or idx:IMAGES[,LABELS]: it is served by a daemon that is "        \
    "started\n"                                                                                                        \
    "for it. With --socket or $FEEDD_SOCKET it is the name of a dataset of the daemon there, or a path.\n"             \
    "A row is measured once, for --seconds (3).\n"

/* @return whether the option is one of them */
bool feed_option(struct feed *feed, int option, const char *value);

/* ---- from start to end ---- */

/* Readies the daemon; starts none.
 * @param workers  a count of workers was given, which a running daemon can't be
 * @param gpus     a private one drives them
 * @return 0, or the exit status after saying what is wrong */
int feed_init(struct feed *feed, const struct bench *bench, bool workers, bool gpus);

/* A private daemon is started with so many workers, in place of one that runs. A running one is as it is. */
int feed_start(struct feed *feed, uint32_t workers, struct feedd_error *err);

/* Reads one epoch, or for a minute; with --cold nothing. */
int feed_warm(struct feed *feed, uint32_t batch_size, struct feedd_error *err);

/* Ends a private daemon, and removes what was made for it. After feed_init() succeeded, whatever came then. */
void feed_done(struct feed *feed);

/* Notes below the table that say what was read, and from where. */
void feed_notes(const struct feed *feed, struct table *table);

/* source, daemon, transform, cold, seconds; new. */
json_t *feed_parameters(const struct feed *feed);

/* CPUs that this process may use. */
uint32_t feed_cpus(void);

/* ---- reading ---- */

struct feed_reader {
    struct feedd_client *client;
    struct feedd_stream *stream;
};

/* As feed->source, shuffled, endless. @param options  what else: batch_size, device, group... */
int feed_open(const struct feed *feed, const struct feedd_open_options *options, struct feed_reader *out,
              struct feedd_error *err);
void feed_close(struct feed_reader *reader);

/* feedd_next(), which a signal interrupts. */
int feed_next(const struct feed_reader *reader, const struct feedd_batch **out, struct feedd_error *err);

/* @return FEEDD_E_STATE after a signal */
int feed_check(struct feedd_error *err);

/* Sleeps until CLOCK_MONOTONIC says so. @return FEEDD_E_STATE when it is interrupted */
int feed_sleep_until(double until_s, struct feedd_error *err);

/* What a stream and its daemon have done so far. */
struct feed_status {
    uint32_t workers;
    uint64_t ring_bytes, gpu_bytes;
    double read_s, decode_s, resize_s; /* of workers; NAN: the daemon doesn't say */
};
/* @return FEEDD_E_NOT_FOUND: the daemon doesn't know this process by its number, as behind a PID namespace */
int feed_status(const struct feed_reader *reader, struct feed_status *out, struct feedd_error *err);

/* CPU seconds that the private daemon has used; NAN of another. */
double feed_daemon_cpu_s(const struct feed *feed);

/* From the arrival of one batch to that of another. */
struct feed_window {
    double seconds;
    uint64_t batches, samples; /* after the first */
    double daemon_cpu_s;       /* NAN: not known */
    double read_s, decode_s, resize_s;
    double latency_ms,
        making_ms;             /* means of a batch: from reservation, and from a worker's first work, to publication */
    struct feed_status status; /* at its end */
};
/* Takes and gives back batches as fast as it can, for feed->seconds and until a few have come. */
int feed_measure(struct feed *feed, const struct feed_reader *reader, struct feed_window *out, struct feedd_error *err);

#endif
