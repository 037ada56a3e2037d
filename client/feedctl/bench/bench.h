/* bench.h - feedctl bench: what its commands share. Each is a file of its own, and one struct bench_command in it.
 *
 * Happy path of a command: bench_parse() -> measure, row by row, into a table, with a progress line -> bench_finish()
 * prints the table (or CSV, or JSON) and draws the plot.
 * What can fail: a wrong option (2), what is measured, or the plot (1); a row that can't be measured is no failure: its
 * cells say why. Threads: the caller's. */
#ifndef FEEDD_BENCH_H
#define FEEDD_BENCH_H

#include <getopt.h>
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "feedctl.h"
#include "plot.h"
#include "table.h"

#define BENCH_LIST_MAX 32u /* numbers of a list on the command line */

struct bench {
    const struct bench_command *command;
    const char *socket_path; /* feedctl's --socket, or NULL */
    const char *operand;     /* what isn't an option, or NULL */
    bool csv, json;
    const char *plot; /* a file, or NULL */
    uint32_t repeat;  /* how often a cell is measured; 0: as often as fits into `seconds` */
    double seconds;   /* for a cell; 0: the command's own default */
};

struct bench_command {
    const char *name;
    const char *summary;                                    /* a line */
    const char *operand;                                    /* "DATASET", or NULL: it takes none */
    const char *help;                                       /* its own options, a line each, and what is measured */
    bool no_plot;                                           /* there is nothing to be drawn */
    int (*run)(struct bench *bench, int argc, char **argv); /* @return exit status */
};

/* One a file, in the order of the help. */
extern const struct bench_command bench_transfer, bench_dtypes, bench_memory;
extern const struct bench_command bench_batch, bench_decode, bench_share;

/* Reads the options, the common ones and the command's own.
 * @param own   ended by zeros; val is from 1 to 127, and what `take` gets
 * @param take  (own, its value or NULL) @return 0, or 2 after saying what is wrong
 * @return 0; 2 after saying what is wrong; -1 after the help */
int bench_parse(struct bench *bench, int argc, char **argv, const struct option *own,
                int (*take)(void *to, int option, const char *value), void *to);

/* Prints the table in the form that was asked for, then draws the plot if one was asked for.
 * @param parameters  what was measured with, an object; given away
 * @param plot        NULL: the command has none (no_plot)
 * @return exit status */
int bench_finish(const struct bench *bench, const struct table *table, json_t *parameters, const struct plot *plot);

/* --- values of options: each says what is wrong and returns 2, or 0 --- */

/* "32,64,128": whole numbers from min to max, in the order given, none twice. */
int bench_numbers(const char *option, const char *text, uint64_t min, uint64_t max, uint64_t out[BENCH_LIST_MAX],
                  size_t *count);

/* A number that may have a fraction, from min to max. */
int bench_real(const char *option, const char *text, double min, double max, double *out);

/* One of `names`, which NULL ends. @param out  its place among them */
int bench_choice(const char *option, const char *text, const char *const names[], size_t *out);

/* A JSON array of the numbers, for the parameters. */
json_t *bench_numbers_json(const uint64_t *numbers, size_t count);

/* --- time --- */

double bench_now_s(void); /* CLOCK_MONOTONIC */

/* The median; sorts them. 0 of none. */
double bench_median(double *values, size_t count);

#endif
