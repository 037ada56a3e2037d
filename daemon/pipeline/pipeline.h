/* pipeline.h - everything between a spec and a published batch: the datasets, the pool, the groups, the budgets.
 *
 * Knows no clients, sockets or libuv: the server opens memberships (group.h) and is called back.
 * Threads: loop only, but for `inbox`, through which workers report. */
#ifndef FEEDD_PIPELINE_H
#define FEEDD_PIPELINE_H

#include <stdbool.h>
#include <stdint.h>

#include "dataset.h"
#include "gpu.h"
#include "inbox.h"
#include "list.h"
#include "pool.h"
#include "reader.h"
#include "sample.h"

struct pipeline_limits {
    uint32_t workers;
    bool numa;                   /* workers and staging near the GPUs */
    uint64_t ring_memory_max;    /* bytes of all rings together, in host memory */
    uint64_t pinned_max;         /* of them, bytes registered with GPUs */
    uint64_t gpu_memory_max;     /* bytes of all rings in one GPU's memory; 0: half of what it has */
    uint64_t dataset_memory_max; /* bytes of all open datasets together */
    struct sample_limits image;  /* of one sample's image */
    uint32_t read_timeout_ms;    /* of one run of a worker; then its stream fails */
    const char *cache_dir;       /* for index caches; NULL: none */
    char *const *gpus;           /* UUIDs of the GPUs to drive; NULL: all */
    uint32_t gpu_count;
};

struct pipeline {
    struct pipeline_limits limits;
    struct inbox inbox;
    struct pool *pool;
    struct list datasets;  /* struct dataset: the configured ones, and temporary ones while they are used */
    struct list groups;    /* struct group */
    uint64_t stream_count; /* opened since the start: numbers them */
    struct gpus gpus;
    uint64_t ring_bytes;    /* of all rings, from OPEN to the last byte freed */
    uint64_t pinned_bytes;  /* of them, what is registered with GPUs */
    uint64_t dataset_bytes; /* of all open datasets */
    struct {
        uint64_t tick_ns, busy_ns; /* at the last tick */
        double busy;               /* share of all workers' time that they worked, 0..1, over the second before it */
    } rate;
    bool stopping; /* no batch is made any more: what clients hold keeps its bytes while they are told */
    void (*gpu_lost)(void *arg, const struct feedd_error *err);
    void *gpu_lost_arg;
    void (*idle)(void *arg); /* set while it closes: called once nothing is open any more */
    void *idle_arg;
};

/* Starts the workers and the GPUs. @param datasets  as configured; borrowed for the pipeline's life
 * @param wake  any thread: make the loop call inbox_drain(&pipeline->inbox) soon
 * @param gpu_lost  on the loop: a GPU has failed for good, and only a new process can go on with it */
int pipeline_init(struct pipeline *pipeline, const struct pipeline_limits *limits, const struct reader_config *datasets,
                  uint32_t dataset_count, void (*wake)(void *arg),
                  void (*gpu_lost)(void *arg, const struct feedd_error *err), void *arg, struct feedd_error *err);

/* After every member has left: calls idle(arg), perhaps at once, when all rings and datasets are closed. Then
 * pipeline_done(). */
void pipeline_close(struct pipeline *pipeline, void (*idle)(void *arg), void *arg);
void pipeline_done(struct pipeline *pipeline);

/* For the parts of the pipeline: something has closed; was it the last? */
void pipeline_idle_check(struct pipeline *pipeline);

/* Once a second: rates of the last second, for status. */
void pipeline_tick(struct pipeline *pipeline, uint64_t now_ns);

/* A configured dataset, or NULL. */
struct dataset *pipeline_dataset(struct pipeline *pipeline, const char *name);

/* The dataset at an absolute path: a folder of class folders, or a list file. It is made when nobody uses it yet, and
 * freed after its last holder. @return 0 and *out, to be held in this round of the loop; FEEDD_E_NOT_FOUND, _MEMORY
 */
int pipeline_dataset_at(struct pipeline *pipeline, const char *path, struct dataset **out, struct feedd_error *err);

#endif
