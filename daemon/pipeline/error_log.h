/* error_log.h - the bad samples of a dataset: which, why, how often. What `feedctl errors` shows.
 *
 * Thread-safe: workers add, the loop reads. */
#ifndef FEEDD_ERROR_LOG_H
#define FEEDD_ERROR_LOG_H

#include <pthread.h>
#include <stdint.h>

#include "feedd_types.h"

#define ERROR_LOG_ENTRIES 256u /* distinct samples that are kept; later ones are only counted */

struct error_entry {
    uint64_t index;
    uint64_t count;    /* how often it was met */
    uint64_t first_ns; /* CLOCK_MONOTONIC */
    struct feedd_error error;
};

struct error_log {
    pthread_mutex_t lock;        /* guards all below */
    struct error_entry *entries; /* allocated with the first */
    uint32_t entry_count;
    uint64_t total; /* bad samples met, those without an entry included */
};

void error_log_init(struct error_log *log);
void error_log_done(struct error_log *log);
void error_log_add(struct error_log *log, uint64_t index, const struct feedd_error *err);

/* Copies entry `number`. @return 0, or FEEDD_E_NOT_FOUND behind the last one */
int error_log_get(struct error_log *log, uint32_t number, struct error_entry *out);
uint64_t error_log_total(struct error_log *log);

#endif
