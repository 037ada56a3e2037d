/* dataset.c - see dataset.h.
 *
 * Happy path: acquire -> opening on a worker -> open, every waiter is told -> last release -> closing on a worker.
 * What can fail: opening (every waiter gets the error; the next acquire tries again, the files may be there by then).
 * An acquire while it closes waits until it is closed and then opens it again. */
#include "dataset.h"

#include <stdlib.h>
#include <xxhash.h>

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

static void close_reader(struct dataset *dataset)
{
    for (uint32_t i = 0; i < dataset->config->selection_count && dataset->selections != NULL; i++)
        free(dataset->selections[i].indices);
    free(dataset->selections);
    dataset->selections = NULL;
    if (dataset->reader != NULL)
        dataset->reader->ops->close(dataset->reader);
    dataset->reader = NULL;
}

/* Which samples each selection of the configuration means. */
static int select_samples(struct dataset *dataset, struct feedd_error *err)
{
    const struct reader_config *config = dataset->config;
    const struct reader *reader = dataset->reader;
    dataset->memory_bytes = reader->memory_bytes;
    dataset->selections = calloc(config->selection_count, sizeof(*dataset->selections));
    if (dataset->selections == NULL)
        return error_set(err, FEEDD_E_MEMORY, "no memory for %u selections", config->selection_count);
    for (uint32_t i = 0; i < config->selection_count; i++) {
        struct dataset_selection *selection = &dataset->selections[i];
        uint64_t left = dataset->memory_max > dataset->memory_bytes ? dataset->memory_max - dataset->memory_bytes : 0;
        int status = reader_select(reader, &config->selections[i], left, &selection->indices, &selection->count, err);
        if (status != 0)
            return status;
        selection->fingerprint = reader->fingerprint;
        if (selection->indices == NULL)
            continue;
        selection->fingerprint ^= XXH3_64bits(selection->indices, selection->count * sizeof(*selection->indices));
        dataset->memory_bytes += selection->count * sizeof(*selection->indices);
    }
    return 0;
}

static void open_on_worker(struct pool_task *task)
{
    struct dataset *dataset = container_of(task, struct dataset, task);
    const struct reader_limits limits = {dataset->memory_max, dataset->pipeline->limits.cache_dir};
    dataset->status = dataset->config->ops->open(dataset->config, &limits, &dataset->reader, &dataset->error);
    if (dataset->status == 0)
        dataset->status = select_samples(dataset, &dataset->error);
    if (dataset->status != 0)
        close_reader(dataset);
}

static void close_on_worker(struct pool_task *task)
{
    close_reader(container_of(task, struct dataset, task));
}

static void start_closing(struct dataset *dataset);

/* Something has ended that may have kept it. */
static void check_unused(struct dataset *dataset)
{
    struct pipeline *pipeline = dataset->pipeline;
    if (dataset->state != DATASET_CLOSED || !list_empty(&dataset->waiters))
        return;
    if (dataset->temporary && dataset->holders == 0)
        dataset_free(dataset);
    pipeline_idle_check(pipeline);
}

void dataset_hold(struct dataset *dataset)
{
    dataset->holders++;
}

void dataset_drop(struct dataset *dataset)
{
    dataset->holders--;
    check_unused(dataset);
}

static void opened(struct inbox_item *item)
{
    struct dataset *dataset = container_of(item, struct dataset, task.done);
    struct pipeline *pipeline = dataset->pipeline;
    sm_move(dataset_states, &dataset->state, dataset->status == 0 ? DATASET_OPEN : DATASET_CLOSED);
    if (dataset->status == 0) {
        pipeline->dataset_bytes += dataset->memory_bytes;
        if (pipeline->dataset_bytes > pipeline->limits.dataset_memory_max) /* two opened at the same time */
            dataset->status =
                error_set(&dataset->error, FEEDD_E_LIMIT,
                          "dataset %s: %llu bytes beside %llu of other datasets; dataset_memory_max is %llu",
                          dataset->config->name, (unsigned long long)dataset->memory_bytes,
                          (unsigned long long)(pipeline->dataset_bytes - dataset->memory_bytes),
                          (unsigned long long)pipeline->limits.dataset_memory_max);
    }
    if (dataset->status == 0)
        log_info("dataset %s: %llu samples, %llu bytes in memory", dataset->config->name,
                 (unsigned long long)dataset->reader->sample_count, (unsigned long long)dataset->memory_bytes);

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
        list_each (waiting, after, &waiters)
            dataset->users++; /* for all of them, before the first one can release */
    while ((node = list_take_first(&waiters)) != NULL) {
        struct dataset_waiter *waiter = container_of(node, struct dataset_waiter, node);
        waiter->ready(waiter, status, &error);
    }
    check_unused(dataset); /* holders are still there: this is for pipeline_close() */
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
        check_unused(dataset);
}

static void start_closing(struct dataset *dataset)
{
    sm_move(dataset_states, &dataset->state, DATASET_CLOSING);
    dataset->pipeline->dataset_bytes -= dataset->memory_bytes;
    dataset->task = (struct pool_task){.work = close_on_worker, .done = {.run = closed}};
    pool_task_add(dataset->pipeline->pool, &dataset->task);
}

struct dataset *dataset_new(struct pipeline *pipeline, const struct reader_config *config, bool temporary)
{
    struct dataset *dataset = calloc(1, sizeof(*dataset));
    if (dataset == NULL)
        return NULL;
    dataset->config = config;
    dataset->pipeline = pipeline;
    dataset->temporary = temporary;
    dataset->state = DATASET_CLOSED;
    list_init(&dataset->waiters);
    error_log_init(&dataset->errors);
    list_append(&pipeline->datasets, &dataset->node);
    return dataset;
}

void dataset_free(struct dataset *dataset)
{
    list_remove(&dataset->node);
    error_log_done(&dataset->errors);
    if (dataset->temporary)
        dataset_config_free((struct reader_config *)(uintptr_t)dataset->config);
    free(dataset);
}

void dataset_config_free(struct reader_config *config)
{
    free(config->name);
    free(config->root);
    free(config->list);
    free(config->selections);
    free(config);
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
