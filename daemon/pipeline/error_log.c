/* error_log.c - see error_log.h. A lock and a linear search: bad samples are rare, and budgets keep them so. */
#include "error_log.h"

#include <stdlib.h>

#include "clock.h"

void error_log_init(struct error_log *log)
{
    *log = (struct error_log){0};
    pthread_mutex_init(&log->lock, NULL);
}

void error_log_done(struct error_log *log)
{
    free(log->entries);
    pthread_mutex_destroy(&log->lock);
}

void error_log_add(struct error_log *log, uint64_t index, const struct feedd_error *err)
{
    pthread_mutex_lock(&log->lock);
    log->total++;
    if (log->entries == NULL)
        log->entries = calloc(ERROR_LOG_ENTRIES, sizeof(*log->entries));
    uint32_t i = 0;
    while (i < log->entry_count && log->entries[i].index != index)
        i++;
    if (i < log->entry_count) {
        log->entries[i].count++;
    } else if (log->entries != NULL && i < ERROR_LOG_ENTRIES) {
        log->entries[i] = (struct error_entry){index, 1, clock_ns(), *err};
        log->entry_count++;
    }
    pthread_mutex_unlock(&log->lock);
}

int error_log_get(struct error_log *log, uint32_t number, struct error_entry *out)
{
    pthread_mutex_lock(&log->lock);
    int status = number < log->entry_count ? 0 : FEEDD_E_NOT_FOUND;
    if (status == 0)
        *out = log->entries[number];
    pthread_mutex_unlock(&log->lock);
    return status;
}

uint64_t error_log_total(struct error_log *log)
{
    pthread_mutex_lock(&log->lock);
    uint64_t total = log->total;
    pthread_mutex_unlock(&log->lock);
    return total;
}
