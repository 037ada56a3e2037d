/* progress.h - one line on stderr, rewritten in place, about what takes long: only where stderr is a terminal, and only
 * after two seconds. Threads: one. */
#ifndef FEEDD_BENCH_PROGRESS_H
#define FEEDD_BENCH_PROGRESS_H

#include <stdbool.h>
#include <stddef.h>

struct progress {
    size_t done, total;
    double began_s; /* CLOCK_MONOTONIC */
    bool terminal, shown;
};

/* @param total  steps there are; 0: not known */
void progress_begin(struct progress *progress, size_t total);
/* Says what the next step is, "3x224x224, batches of 64"; the steps before it are done. */
__attribute__((format(printf, 2, 3))) void progress_step(struct progress *progress, const char *format, ...);
/* Takes the line away. */
void progress_end(struct progress *progress);

#endif
