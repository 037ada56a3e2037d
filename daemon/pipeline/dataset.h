/* dataset.h - a dataset: opened by its first user, closed after its last.
 *
 * The configured ones are there as long as the daemon; a temporary one, at a path that a client named, goes with its
 * last user.
 *
 * Opening reads or indexes files, so it runs on a worker, and who asks may have to wait.
 * Threads: loop only; `reader` is read by workers while the dataset has users. */
#ifndef FEEDD_DATASET_H
#define FEEDD_DATASET_H

#include <stdbool.h>
#include <stdint.h>

#include "error_log.h"
#include "feedd_types.h"
#include "list.h"
#include "pool.h"
#include "reader.h"
#include "state.h"

struct pipeline;

/* closed -> opening -> open -> closing -> closed; opening -> closed when it fails. */
enum dataset_state { DATASET_CLOSED, DATASET_OPENING, DATASET_OPEN, DATASET_CLOSING };
extern const struct sm_state dataset_states[];

/* One of the configuration's selections, once the dataset is open. */
struct dataset_selection {
    uint64_t *indices; /* of its samples, in order; NULL: all of the dataset */
    uint64_t count;
    uint64_t fingerprint; /* of the dataset, and of the indices where there are any */
};

struct dataset {
    struct list node;                   /* in pipeline->datasets */
    const struct reader_config *config; /* constant */
    bool temporary;                     /* owns its config, and goes with its last user */
    struct pipeline *pipeline;
    int state;                            /* enum dataset_state */
    struct reader *reader;                /* while open */
    struct dataset_selection *selections; /* config->selection_count, while open */
    uint64_t memory_bytes;                /* of reader and selections, while open */
    uint32_t holders;                     /* groups that point here, open or not, and OPENs under way */
    uint32_t users;                       /* that hold it open */
    struct list waiters;                  /* struct dataset_waiter */
    struct pool_task task;
    uint64_t memory_max; /* of the open that is under way */
    int status;          /* of the last open */
    struct feedd_error error;
    struct error_log errors; /* bad samples; any thread */
};

/* One that waits for a dataset; owned by the caller, who must not free it before ready(). */
struct dataset_waiter {
    struct list node;
    /* status 0: the dataset is open, and the waiter is a user that must release it. Else err says why not. */
    void (*ready)(struct dataset_waiter *waiter, int status, const struct feedd_error *err);
};

/* @param config  borrowed; owned when it is temporary. @return NULL: no memory */
struct dataset *dataset_new(struct pipeline *pipeline, const struct reader_config *config, bool temporary);
void dataset_free(struct dataset *dataset); /* closed */

/* Frees a configuration that was allocated piece by piece, for a temporary dataset. */
void dataset_config_free(struct reader_config *config);

/* Asks for the dataset. @return true: it is open, and the caller is a user that must release it;
 * false: waiter->ready() says so later */
bool dataset_acquire(struct dataset *dataset, struct dataset_waiter *waiter);
void dataset_release(struct dataset *dataset);

/* Somebody points at it, or does no longer: a temporary one that nobody points at is freed once it is closed. */
void dataset_hold(struct dataset *dataset);
void dataset_drop(struct dataset *dataset);

#endif
