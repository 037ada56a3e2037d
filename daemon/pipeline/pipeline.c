/* pipeline.c - see pipeline.h. */
#include "pipeline.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "error.h"
#include "group.h"
#include "stream.h"

static void free_datasets(struct pipeline *pipeline)
{
    list_each (node, after, &pipeline->datasets)
        dataset_free(container_of(node, struct dataset, node));
}

static void tell_gpu_lost(void *arg, const struct gpu *gpu, const struct feedd_error *err)
{
    struct pipeline *pipeline = arg;
    (void)gpu; /* err names it */
    pipeline->gpu_lost(pipeline->gpu_lost_arg, err);
}

int pipeline_init(struct pipeline *pipeline, const struct pipeline_limits *limits, const struct reader_config *datasets,
                  uint32_t dataset_count, void (*wake)(void *arg),
                  void (*gpu_lost)(void *arg, const struct feedd_error *err), void *arg, struct feedd_error *err)
{
    memset(pipeline, 0, sizeof(*pipeline));
    pipeline->limits = *limits;
    pipeline->gpu_lost = gpu_lost;
    pipeline->gpu_lost_arg = arg;
    list_init(&pipeline->groups);
    inbox_init(&pipeline->inbox, wake, arg);
    list_init(&pipeline->datasets);
    for (uint32_t i = 0; i < dataset_count; i++)
        if (dataset_new(pipeline, &datasets[i], false) == NULL) {
            free_datasets(pipeline);
            return error_set(err, FEEDD_E_MEMORY, "no memory for %u datasets", dataset_count);
        }
    int status =
        gpus_start(&pipeline->gpus, limits->gpus, limits->gpu_count, &pipeline->inbox, tell_gpu_lost, pipeline, err);
    if (status == 0) {
        const struct gpus *near = limits->numa ? &pipeline->gpus : NULL;
        status = pool_new(limits->workers, near, &pipeline->inbox, &pipeline->pool, err);
        if (status != 0)
            gpus_stop(&pipeline->gpus);
    }
    if (status != 0)
        free_datasets(pipeline);
    return status;
}

void pipeline_idle_check(struct pipeline *pipeline)
{
    if (pipeline->idle == NULL || !list_empty(&pipeline->groups))
        return;
    list_each (node, after, &pipeline->datasets)
        if (container_of(node, struct dataset, node)->state != DATASET_CLOSED)
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
    gpus_stop(&pipeline->gpus);
    free_datasets(pipeline);
}

void pipeline_tick(struct pipeline *pipeline, uint64_t now_ns)
{
    pool_tick(pipeline->pool, now_ns, pipeline->limits.read_timeout_ms, stream_worker_stuck);
    uint64_t busy_ns = pool_busy_ns(pipeline->pool);
    double span_ns = (double)(now_ns - pipeline->rate.tick_ns) * pool_worker_count(pipeline->pool);
    pipeline->rate.busy = span_ns > 0 ? (double)(busy_ns - pipeline->rate.busy_ns) / span_ns : 0;
    if (pipeline->rate.busy > 1) /* a long task that ended in this second */
        pipeline->rate.busy = 1;
    pipeline->rate.busy_ns = busy_ns;
    for (uint32_t i = 0; i < pipeline->gpus.count; i++)
        gpu_tick(pipeline->gpus.gpu[i], now_ns - pipeline->rate.tick_ns);
    pipeline->rate.tick_ns = now_ns;
    list_each (node, after, &pipeline->groups) {
        struct group *group = container_of(node, struct group, node);
        if (group->stream != NULL)
            stream_tick(group->stream, now_ns);
        group_tick(group, now_ns); /* last: the group may go */
    }
}

struct dataset *pipeline_dataset(struct pipeline *pipeline, const char *name)
{
    list_each (node, after, &pipeline->datasets) {
        struct dataset *dataset = container_of(node, struct dataset, node);
        if (strcmp(dataset->config->name, name) == 0)
            return dataset;
    }
    return NULL;
}

/* The configuration of a temporary dataset: named by its path. */
static struct reader_config *path_config(const char *path, bool folder)
{
    struct reader_config *config = calloc(1, sizeof(*config));
    if (config == NULL)
        return NULL;
    config->ops = folder ? &reader_folder : &reader_list;
    config->name = strdup(path);
    *(folder ? &config->root : &config->list) = strdup(path);
    config->selections = calloc(1, sizeof(*config->selections));
    config->selection_count = 1;
    if (config->name != NULL && (config->root != NULL || config->list != NULL) && config->selections != NULL)
        return config;
    dataset_config_free(config);
    return NULL;
}

int pipeline_dataset_at(struct pipeline *pipeline, const char *path, struct dataset **out, struct feedd_error *err)
{
    struct dataset *dataset = pipeline_dataset(pipeline, path); /* no configured name begins with a slash */
    struct stat st;
    if (dataset == NULL && stat(path, &st) != 0)
        return error_set(err, FEEDD_E_NOT_FOUND, "%s: %s", path, strerror(errno));
    if (dataset == NULL) {
        struct reader_config *config = path_config(path, S_ISDIR(st.st_mode));
        dataset = config != NULL ? dataset_new(pipeline, config, true) : NULL;
        if (dataset == NULL) {
            if (config != NULL)
                dataset_config_free(config);
            return error_set(err, FEEDD_E_MEMORY, "no memory for a dataset");
        }
    }
    *out = dataset;
    return 0;
}
