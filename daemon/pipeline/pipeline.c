/* pipeline.c - see pipeline.h. */
#include "pipeline.h"

#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "group.h"
#include "stream.h"

int pipeline_init(struct pipeline *pipeline, const struct pipeline_limits *limits, const struct reader_config *datasets,
                  uint32_t dataset_count, void (*wake)(void *arg), void *wake_arg, struct feedd_error *err)
{
    memset(pipeline, 0, sizeof(*pipeline));
    pipeline->limits = *limits;
    list_init(&pipeline->groups);
    inbox_init(&pipeline->inbox, wake, wake_arg);
    pipeline->datasets = calloc(dataset_count + 1, sizeof(*pipeline->datasets));
    if (pipeline->datasets == NULL)
        return error_set(err, FEEDD_E_MEMORY, "no memory for %u datasets", dataset_count);
    pipeline->dataset_count = dataset_count;
    for (uint32_t i = 0; i < dataset_count; i++)
        dataset_init(&pipeline->datasets[i], pipeline, &datasets[i]);
    int status = pool_new(limits->workers, &pipeline->inbox, &pipeline->pool, err);
    if (status != 0)
        free(pipeline->datasets);
    return status;
}

void pipeline_idle_check(struct pipeline *pipeline)
{
    if (pipeline->idle == NULL || !list_empty(&pipeline->groups))
        return;
    for (uint32_t i = 0; i < pipeline->dataset_count; i++)
        if (pipeline->datasets[i].state != DATASET_CLOSED)
            return;
    void (*idle)(void *arg) = pipeline->idle;
    pipeline->idle = NULL;
    idle(pipeline->idle_arg);
}

void pipeline_close(struct pipeline *pipeline, void (*idle)(void *arg), void *arg)
{
    pipeline->idle = idle;
    pipeline->idle_arg = arg;
    pipeline_idle_check(pipeline);
}

void pipeline_done(struct pipeline *pipeline)
{
    pool_free(pipeline->pool);
    free(pipeline->datasets);
}

void pipeline_tick(struct pipeline *pipeline, uint64_t now_ns)
{
    uint64_t busy_ns = pool_busy_ns(pipeline->pool);
    double span_ns = (double)(now_ns - pipeline->rate.tick_ns) * pool_worker_count(pipeline->pool);
    pipeline->rate.busy = span_ns > 0 ? (double)(busy_ns - pipeline->rate.busy_ns) / span_ns : 0;
    if (pipeline->rate.busy > 1) /* a long task that ended in this second */
        pipeline->rate.busy = 1;
    pipeline->rate.busy_ns = busy_ns;
    pipeline->rate.tick_ns = now_ns;
    list_each(node, after, &pipeline->groups)
        stream_tick(container_of(node, struct group, node)->stream, now_ns);
}

struct dataset *pipeline_dataset(struct pipeline *pipeline, const char *name)
{
    for (uint32_t i = 0; i < pipeline->dataset_count; i++)
        if (strcmp(pipeline->datasets[i].config->name, name) == 0)
            return &pipeline->datasets[i];
    return NULL;
}
