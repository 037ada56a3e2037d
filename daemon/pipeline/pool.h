/* pool.h - the decode workers: threads of our own that fill batches and run slow tasks.
 *
 * Work comes in two kinds. A *run* is some samples of one batch, worth about 100 us: one photo, or a batch of digits.
 * Batches wait in a queue a stream; workers take a run from each queue in turn, so that a stream with small samples
 * doesn't stand behind one with large ones. A *task* is one slow call (index a dataset, make or free a ring); tasks go
 * first, since a client waits for each, but beside streams they leave one worker to those.
 *
 * A *background* task is work that no stream waits for, some milliseconds of it. Where no stream has work, every worker
 * takes them. Beside streams one worker at a time does, and then streams get as much of the workers' time as the task
 * took: of N workers' time background tasks have one part in N + 1 then, and never none.
 *
 * A worker that sits in one run or task for longer than a limit (a file system that doesn't answer) is given up:
 * another takes its place, and it ends when it comes back. What it was filling stays in flight until then.
 *
 * Where the machine has several NUMA nodes, workers stay on those that the GPUs are near, and a worker takes runs of
 * queues on its own node first; it helps others when there are none, or when one of those has been passed over for
 * about eight rounds.
 *
 * Threads: pool_queue_*, pool_task_* and pool_tick() are for the loop thread; results come back through the inbox. */
#ifndef FEEDD_POOL_H
#define FEEDD_POOL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "feedd_types.h"
#include "inbox.h"
#include "list.h"

struct batch;
struct gpus;
struct pool;

/* The batches of one stream that still have samples to hand out. */
struct pool_queue {
    int node;                   /* NUMA node of the memory that is filled, -1 (as begun): any; set while it is empty */
    struct list turn_node;      /* in one of the pool's turn lists while it has batches; under the pool's lock */
    uint64_t turn;              /* number of its turn in there; under the pool's lock */
    struct batch *first, *last; /* under the pool's lock */
    _Atomic uint32_t sample_ns; /* measured: what one sample takes; sizes the runs. Any worker */
};

struct pool_task {
    struct pool_task *next;
    void (*work)(struct pool_task *task);               /* on a worker */
    struct inbox_item done;                             /* then run on the loop */
    void (*stuck)(struct pool_task *task, uint32_t ms); /* on the loop: its worker has been given up; may be NULL */
    bool background;
};

/* A NUMA node that GPUs are near, and the workers that stay on it. */
struct pool_node {
    int node;
    uint32_t gpus; /* that are near it */
    uint32_t cpus; /* of it, that the process may use */
    uint32_t workers;
};

/* Splits workers over nodes in proportion to their GPUs, as d'Hondt does seats; no node gets more than it has CPUs.
 * @param nodes  `workers` is set, the rest read
 * @return false: all together have fewer CPUs, and nothing is set */
bool pool_split(struct pool_node *nodes, uint32_t count, uint32_t worker_count);

/* Starts the workers.
 * @param gpus  workers stay near them; but anywhere when the node of one is unknown, when the machine has one node, or
 *              when their nodes have fewer CPUs than there are workers: that is logged. NULL, or without any: anywhere
 * @return 0, or FEEDD_E_MEMORY: also when a thread can't be made */
int pool_new(uint32_t worker_count, const struct gpus *gpus, struct inbox *inbox, struct pool **out,
             struct feedd_error *err);
/* Waits until every task and batch that was added is done, joins the workers and frees the pool. Results still in the
 * inbox are not run: drain it afterwards. */
void pool_free(struct pool *pool);

/* Once a second: gives up workers that have been at one run or task for longer than limit_ms; stuck() is told of each
 * run, once, and task->stuck() of each task. */
void pool_tick(struct pool *pool, uint64_t now_ns, uint32_t limit_ms, void (*stuck)(struct batch *batch, uint32_t ms));
/* Workers that were given up and have not come back. */
uint32_t pool_stuck_count(const struct pool *pool);

void pool_queue_init(struct pool_queue *queue);
void pool_queue_add(struct pool *pool, struct pool_queue *queue, struct batch *batch);
void pool_task_add(struct pool *pool, struct pool_task *task);

uint32_t pool_worker_count(const struct pool *pool);
/* The nodes that have workers; none: workers run anywhere. */
const struct pool_node *pool_nodes(const struct pool *pool, uint32_t *count);
/* Nanoseconds that the workers have been at work, all together since the start. Loop thread. */
uint64_t pool_busy_ns(const struct pool *pool);

#endif
