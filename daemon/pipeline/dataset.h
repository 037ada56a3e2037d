/* dataset.h - a configured dataset: opened by its first user, closed after its last.
 *
 * Opening reads or indexes files, so it runs on a worker, and who asks may have to wait.
 * Threads: loop only; `reader` is read by workers while the dataset has users. */
#ifndef FEEDD_DATASET_H
#define FEEDD_DATASET_H

#include <stdbool.h>
#include <stdint.h>

#include "feedd_types.h"
#include "list.h"
#include "pool.h"
#include "reader.h"
#include "state.h"

struct pipeline;

/* closed -> opening -> open -> closing -> closed; opening -> closed when it fails. */
enum dataset_state { DATASET_CLOSED, DATASET_OPENING, DATASET_OPEN, DATASET_CLOSING };
extern const struct sm_state dataset_states[];

struct dataset {
    const struct reader_config *config; /* constant */
    struct pipeline *pipeline;
    int state;           /* enum dataset_state */
    struct reader *reader; /* while open */
    uint32_t users;      /* that hold it open */
    struct list waiters; /* struct dataset_waiter */
    struct pool_task task;
    uint64_t memory_max; /* of the open that is under way */
    int status;          /* of the last open */
    struct feedd_error error;
};

/* One that waits for a dataset; owned by the caller, who must not free it before ready(). */
struct dataset_waiter {
    struct list node;
    /* status 0: the dataset is open, and the waiter is a user that must release it. Else err says why not. */
    void (*ready)(struct dataset_waiter *waiter, int status, const struct feedd_error *err);
};

void dataset_init(struct dataset *dataset, struct pipeline *pipeline, const struct reader_config *config);

/* Asks for the dataset. @return true: it is open, and the caller is a user that must release it;
 * false: waiter->ready() says so later */
bool dataset_acquire(struct dataset *dataset, struct dataset_waiter *waiter);
void dataset_release(struct dataset *dataset);

#endif
