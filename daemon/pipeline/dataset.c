/* dataset.c - see dataset.h.
 *
 * Happy path: acquire -> opening on a worker -> open, every waiter is told -> last release -> closing on a worker.
 * What can fail: opening (every waiter gets the error; the next acquire tries again, the files may be there by then).
 * An acquire while it closes waits until it is closed and then opens it again. */
#include "dataset.h"

#include <string.h>

#include "ensure.h"
#include "error.h"
#include "log.h"
#include "pipeline.h"

const struct sm_state dataset_states[] = {
    [DATASET_CLOSED] = {"closed", SM(DATASET_OPENING)},
    [DATASET_OPENING] = {"opening", SM(DATASET_OPEN) | SM(DATASET_CLOSED)},
    [DATASET_OPEN] = {"open", SM(DATASET_CLOSING)},
    [DATASET_CLOSING] = {"closing", SM(DATASET_CLOSED)},
};

static void open_on_worker(struct pool_task *task)
{
    struct dataset *dataset = container_of(task, struct dataset, task);
    dataset->status = dataset->config->ops->open(dataset->config, dataset->memory_max, &dataset->reader, &dataset->error);
}

static void close_on_worker(struct pool_task *task)
{
    struct dataset *dataset = container_of(task, struct dataset, task);
    dataset->reader->ops->close(dataset->reader);
    dataset->reader = NULL;
}

static void start_closing(struct dataset *dataset);

static void opened(struct inbox_item *item)
{
    struct dataset *dataset = container_of(item, struct dataset, task.done);
    struct pipeline *pipeline = dataset->pipeline;
    sm_move(dataset_states, &dataset->state, dataset->status == 0 ? DATASET_OPEN : DATASET_CLOSED);
    if (dataset->status == 0) {
        pipeline->dataset_bytes += dataset->reader->memory_bytes;
        if (pipeline->dataset_bytes > pipeline->limits.dataset_memory_max) /* two opened at the same time */
            dataset->status = error_set(&dataset->error, FEEDD_E_LIMIT,
                                        "dataset %s: %llu bytes beside %llu of other datasets; dataset_memory_max is %llu",
                                        dataset->config->name, (unsigned long long)dataset->reader->memory_bytes,
                                        (unsigned long long)(pipeline->dataset_bytes - dataset->reader->memory_bytes),
                                        (unsigned long long)pipeline->limits.dataset_memory_max);
    }
    if (dataset->status == 0)
        log_info("dataset %s: %llu samples, %llu bytes in memory", dataset->config->name,
                 (unsigned long long)dataset->reader->sample_count, (unsigned long long)dataset->reader->memory_bytes);

    /* A waiter may release or acquire from within ready(): take the list away first. */
    struct list waiters;
    list_init(&waiters);
    struct list *node;
    while ((node = list_take_first(&dataset->waiters)) != NULL)
        list_append(&waiters, node);
    if (dataset->status != 0 && dataset->state == DATASET_OPEN)
        start_closing(dataset);
    int status = dataset->status;
    struct feedd_error error = dataset->error;
    if (status == 0)
        list_each(waiting, after, &waiters)
            dataset->users++; /* for all of them, before the first one can release */
    while ((node = list_take_first(&waiters)) != NULL) {
        struct dataset_waiter *waiter = container_of(node, struct dataset_waiter, node);
        waiter->ready(waiter, status, &error);
    }
}

static void start_opening(struct dataset *dataset)
{
    const struct pipeline *pipeline = dataset->pipeline;
    sm_move(dataset_states, &dataset->state, DATASET_OPENING);
    dataset->memory_max = pipeline->limits.dataset_memory_max > pipeline->dataset_bytes
                              ? pipeline->limits.dataset_memory_max - pipeline->dataset_bytes
                              : 0;
    dataset->task = (struct pool_task){.work = open_on_worker, .done = {.run = opened}};
    pool_task_add(pipeline->pool, &dataset->task);
}

static void closed(struct inbox_item *item)
{
    struct dataset *dataset = container_of(item, struct dataset, task.done);
    sm_move(dataset_states, &dataset->state, DATASET_CLOSED);
    if (!list_empty(&dataset->waiters))
        start_opening(dataset);
    else
        pipeline_idle_check(dataset->pipeline);
}

static void start_closing(struct dataset *dataset)
{
    sm_move(dataset_states, &dataset->state, DATASET_CLOSING);
    dataset->pipeline->dataset_bytes -= dataset->reader->memory_bytes;
    dataset->task = (struct pool_task){.work = close_on_worker, .done = {.run = closed}};
    pool_task_add(dataset->pipeline->pool, &dataset->task);
}

void dataset_init(struct dataset *dataset, struct pipeline *pipeline, const struct reader_config *config)
{
    memset(dataset, 0, sizeof(*dataset));
    dataset->config = config;
    dataset->pipeline = pipeline;
    dataset->state = DATASET_CLOSED;
    list_init(&dataset->waiters);
}

bool dataset_acquire(struct dataset *dataset, struct dataset_waiter *waiter)
{
    if (dataset->state == DATASET_OPEN) {
        dataset->users++;
        return true;
    }
    list_append(&dataset->waiters, &waiter->node);
    if (dataset->state == DATASET_CLOSED)
        start_opening(dataset);
    return false;
}

void dataset_release(struct dataset *dataset)
{
    ENSURE(dataset->state == DATASET_OPEN && dataset->users > 0);
    if (--dataset->users == 0)
        start_closing(dataset);
}
