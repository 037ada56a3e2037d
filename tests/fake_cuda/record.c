/* record.c - something that becomes done once, and that others wait for: stream.h.
 *
 * Threads: any. Who has seen that a record is done sees what was written before it was finished. */
#include <stdlib.h>
#include <time.h>

#include "stream.h"

struct record {
    _Atomic unsigned references;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool done;        /* under the lock */
    uint64_t done_ns; /* CLOCK_MONOTONIC; under the lock */
};

struct record *record_new(unsigned references)
{
    struct record *record = setup_need(calloc(1, sizeof(*record)));
    atomic_init(&record->references, references);
    pthread_mutex_init(&record->lock, NULL);
    pthread_cond_init(&record->changed, NULL);
    return record;
}

struct record *record_keep(struct record *record)
{
    if (record != NULL)
        atomic_fetch_add_explicit(&record->references, 1, memory_order_relaxed);
    return record;
}

void record_drop(struct record *record)
{
    if (record == NULL || atomic_fetch_sub_explicit(&record->references, 1, memory_order_acq_rel) > 1)
        return;
    pthread_cond_destroy(&record->changed);
    pthread_mutex_destroy(&record->lock);
    free(record);
}

void record_finish(struct record *record)
{
    struct timespec now;
    pthread_mutex_lock(&record->lock);
    clock_gettime(CLOCK_MONOTONIC, &now);
    record->done_ns = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
    record->done = true;
    pthread_cond_broadcast(&record->changed);
    pthread_mutex_unlock(&record->lock);
}

bool record_is_done(struct record *record)
{
    pthread_mutex_lock(&record->lock);
    const bool done = record->done;
    pthread_mutex_unlock(&record->lock);
    return done;
}

uint64_t record_time_ns(struct record *record)
{
    pthread_mutex_lock(&record->lock);
    const uint64_t time_ns = record->done_ns;
    pthread_mutex_unlock(&record->lock);
    return time_ns;
}

void record_wait(struct record *record)
{
    pthread_mutex_lock(&record->lock);
    while (!record->done)
        pthread_cond_wait(&record->changed, &record->lock);
    pthread_mutex_unlock(&record->lock);
}

bool record_wait_us(struct record *record, unsigned us)
{
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_nsec += (long)us * 1000;
    end.tv_sec += end.tv_nsec / 1000000000;
    end.tv_nsec %= 1000000000;
    pthread_mutex_lock(&record->lock);
    if (!record->done)
        pthread_cond_timedwait(&record->changed, &record->lock, &end);
    const bool done = record->done;
    pthread_mutex_unlock(&record->lock);
    return done;
}
