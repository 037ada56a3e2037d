/* pool.c - see pool.h.
 *
 * Happy path: add -> a worker takes a run under the lock -> batch_fill() without it -> the batch counts down -> the
 * last run posts it to the inbox.
 * What can fail: nothing here; a sample that fails is its batch's business.
 * Threads: the loop adds, workers take. One lock guards all queues: it is held for some ten nanoseconds a run, and a
 * run is worth a hundred thousand. */
#include "pool.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "batch.h"
#include "clock.h"
#include "ensure.h"
#include "error.h"
#include "gpu.h"
#include "log.h"
#include "numa.h"
#include "sample.h"

#define RUN_NS   100000u /* what one run should be worth */
#define PATIENCE 8u      /* rounds of all queues that one waits before workers of other nodes help it */

/* The workers of one NUMA node, and the queues whose memory is there. */
struct domain {
    struct list turns; /* queues that have batches, the next one's turn first */
    struct list idle;  /* workers that wait, the longest first */
};

struct worker {
    struct list node; /* in pool->workers or pool->given_up; loop thread */
    struct pool *pool;
    struct domain *domain; /* its own: domains[0] runs anywhere */
    pthread_t thread;
    struct sample_scratch *scratch;
    pthread_cond_t wake;
    struct list idle_node;                  /* in its domain's `idle` while it waits; under the pool's lock */
    bool given_up;                          /* under the pool's lock: ends as soon as it can */
    struct batch *batch;                    /* of the run it is at; under the pool's lock */
    struct pool_task *task;                 /* that it is at; under the pool's lock */
    _Alignas(64) _Atomic uint64_t began_ns; /* of the run or task it is at; 0: none */
    _Atomic uint64_t busy_ns;               /* of those that are done; written by this worker alone */
    _Atomic bool ended;                     /* left worker_main */
};

struct task_queue {
    struct pool_task *first, *last;
};

struct pool {
    struct inbox *inbox;
    uint32_t worker_count;
    uint32_t worker_number; /* of the last one started; loop thread */
    struct list workers;    /* at work; loop thread */
    struct list given_up;   /* loop thread */
    uint64_t past_busy_ns;  /* of workers that have ended; loop thread */
    uint32_t node_count;    /* constant, and so are they; 0: workers run anywhere */
    struct pool_node *nodes;
    _Atomic bool unbound;   /* a worker couldn't be bound to its node, and that has been logged */
    pthread_mutex_t lock;   /* guards all below, and pool_queue's first, last and turn */
    struct domain *domains; /* [0]: no node's; [1 + i]: of nodes[i] */
    uint32_t queue_count;   /* queues in all turn lists */
    uint64_t turn;          /* the last one given to a queue */
    struct task_queue tasks, background;
    uint32_t tasks_busy;      /* workers at other tasks, but for those that were given up */
    uint32_t background_busy; /* and at background tasks */
    uint64_t owed_ns;         /* what streams are to get of the workers' time before another background task */
    bool stopping;
};

/* How many samples the next run of a batch takes: RUN_NS worth. */
static uint32_t run_samples(const struct pool_queue *queue, const struct batch *batch)
{
    uint32_t left = batch->plan.count - batch->claimed;
    uint32_t sample_ns = atomic_load_explicit(&queue->sample_ns, memory_order_relaxed);
    uint32_t samples = sample_ns == 0 ? 1 : RUN_NS / sample_ns; /* 0: nothing measured yet */
    return samples < 1 ? 1 : samples < left ? samples : left;
}

/* Of a node that has no workers: [0]. */
static struct domain *domain_of(struct pool *pool, int node)
{
    for (uint32_t i = 0; i < pool->node_count; i++)
        if (pool->nodes[i].node == node)
            return &pool->domains[1 + i];
    return &pool->domains[0];
}

static struct pool_queue *first_queue(const struct domain *domain)
{
    return container_of(domain->turns.next, struct pool_queue, turn_node);
}

static void append_turn(struct pool *pool, struct domain *domain, struct pool_queue *queue)
{
    queue->turn = ++pool->turn;
    list_append(&domain->turns, &queue->turn_node);
    pool->queue_count++;
}

/* Under the lock. Of the queues on the worker's node and on none it is the turn of the one that has waited longest; of
 * all queues, when these have no work or another node's has waited for too long.
 * @return the domain whose first queue it is; NULL when no queue has any batch */
static struct domain *next_turn(struct pool *pool, const struct domain *own)
{
    struct domain *near = NULL, *oldest = NULL;
    for (uint32_t i = 0; i <= pool->node_count; i++) {
        struct domain *domain = &pool->domains[i];
        if (list_empty(&domain->turns))
            continue;
        uint64_t turn = first_queue(domain)->turn;
        if (oldest == NULL || turn < first_queue(oldest)->turn)
            oldest = domain;
        if ((i == 0 || domain == own) && (near == NULL || turn < first_queue(near)->turn))
            near = domain;
    }
    if (near == NULL)
        return oldest;
    uint64_t patience = (uint64_t)PATIENCE * (pool->worker_count + pool->queue_count);
    return pool->turn - first_queue(oldest)->turn > patience ? oldest : near;
}

/* Under the lock. @return the run's batch, or NULL when no queue has any */
static struct batch *take_run(struct pool *pool, const struct domain *own, uint32_t *first, uint32_t *count)
{
    struct domain *domain = next_turn(pool, own);
    if (domain == NULL)
        return NULL;
    struct pool_queue *queue = first_queue(domain);
    list_remove(&queue->turn_node);
    pool->queue_count--;
    struct batch *batch = queue->first;
    *first = batch->claimed;
    *count = run_samples(queue, batch);
    batch->claimed += *count;
    if (batch->claimed == batch->plan.count) {
        queue->first = batch->queue_next;
        if (queue->first == NULL)
            queue->last = NULL;
    }
    if (queue->first != NULL)
        append_turn(pool, domain, queue);
    return batch;
}

static struct pool_task *take_first(struct task_queue *queue)
{
    struct pool_task *task = queue->first;
    if (task != NULL) {
        queue->first = task->next;
        if (queue->first == NULL)
            queue->last = NULL;
    }
    return task;
}

/* Under the lock. Beside streams tasks leave one worker to them: making and freeing large rings takes seconds.
 * @return NULL when no task's turn has come */
static struct pool_task *take_task(struct pool *pool)
{
    struct pool_task *task = NULL;
    if (pool->queue_count == 0 || pool->worker_count == 1 || pool->tasks_busy + 1 < pool->worker_count)
        task = take_first(&pool->tasks);
    if (task != NULL)
        pool->tasks_busy++;
    if (task == NULL && (pool->queue_count == 0 || (pool->background_busy == 0 && pool->owed_ns == 0))) {
        task = take_first(&pool->background);
        if (task != NULL)
            pool->background_busy++;
    }
    return task;
}

/* Under the lock: a worker has spent so long at a run, or at a task, which may be gone. */
static void settle(struct pool *pool, const struct worker *worker, bool run, bool background, uint64_t spent_ns)
{
    if (run) {
        pool->owed_ns -= spent_ns < pool->owed_ns ? spent_ns : pool->owed_ns;
    } else if (worker->given_up) { /* give_up() has counted it */
        return;
    } else if (background) {
        pool->background_busy--;
        pool->owed_ns = spent_ns;
    } else {
        pool->tasks_busy--;
    }
}

/* Under the lock. A worker that waits, of the queue's node if there is one: it is counted as at work from here on.
 * @return NULL: all are at work; else it is to be woken, with or without the lock */
static struct worker *take_idle(struct pool *pool, struct domain *near)
{
    struct list *idle = list_take_first(&near->idle);
    for (uint32_t i = 0; idle == NULL && i <= pool->node_count; i++)
        idle = list_take_first(&pool->domains[i].idle);
    return idle != NULL ? container_of(idle, struct worker, idle_node) : NULL;
}

/* On the worker. */
static void bind_to_node(struct worker *worker)
{
    struct pool *pool = worker->pool;
    if (worker->domain == pool->domains)
        return;
    int node = pool->nodes[worker->domain - pool->domains - 1].node;
    int rc = numa_run_on(node);
    if (rc != 0 && !atomic_exchange(&pool->unbound, true))
        log_warning("NUMA: workers run anywhere, not on the CPUs of node %d: %s", node, strerror(-rc));
}

static void *worker_main(void *arg)
{
    struct worker *worker = arg;
    struct pool *pool = worker->pool;
    uint64_t began = 0;
    bind_to_node(worker);
    pthread_mutex_lock(&pool->lock);
    while (!worker->given_up) {
        uint32_t first, count;
        struct batch *batch = NULL;
        struct pool_task *task = take_task(pool);
        if (task == NULL)
            batch = take_run(pool, worker->domain, &first, &count);
        if (task == NULL && batch == NULL) {
            if (pool->stopping)
                break;
            list_append(&worker->domain->idle, &worker->idle_node);
            pthread_cond_wait(&worker->wake, &pool->lock);
            list_remove(&worker->idle_node); /* who woke it has done so already; nobody did when it woke by itself */
            began = 0;
            continue;
        }
        bool background = task != NULL && task->background;
        worker->batch = batch;
        worker->task = task;
        pthread_mutex_unlock(&pool->lock);
        if (began == 0)
            began = clock_ns();
        atomic_store_explicit(&worker->began_ns, began, memory_order_relaxed);
        if (task != NULL)
            task->work(task);
        else
            batch_fill(batch, first, count, began, worker->scratch);
        uint64_t now = clock_ns();
        atomic_store_explicit(&worker->began_ns, 0, memory_order_relaxed);
        if (task != NULL) /* last: it may be gone at once, and pool_tick() must not take it for one that is stuck */
            inbox_post(pool->inbox, &task->done);
        atomic_store_explicit(&worker->busy_ns,
                              atomic_load_explicit(&worker->busy_ns, memory_order_relaxed) + now - began,
                              memory_order_relaxed);
        pthread_mutex_lock(&pool->lock);
        worker->batch = NULL;
        worker->task = NULL;
        settle(pool, worker, batch != NULL, background, now - began);
        began = now;
    }
    pthread_mutex_unlock(&pool->lock);
    atomic_store(&worker->ended, true);
    return NULL;
}

static void worker_free(struct worker *worker)
{
    pthread_join(worker->thread, NULL);
    worker->pool->past_busy_ns += atomic_load_explicit(&worker->busy_ns, memory_order_relaxed);
    list_remove(&worker->node);
    pthread_cond_destroy(&worker->wake);
    sample_scratch_free(worker->scratch);
    free(worker);
}

static int worker_start(struct pool *pool, struct domain *domain, struct feedd_error *err)
{
    struct worker *worker = aligned_alloc(64, sizeof(*worker));
    struct sample_scratch *scratch = sample_scratch_new();
    if (worker == NULL || scratch == NULL) {
        free(worker);
        sample_scratch_free(scratch);
        return error_set(err, FEEDD_E_MEMORY, "no memory for a worker");
    }
    memset(worker, 0, sizeof(*worker));
    worker->pool = pool;
    worker->domain = domain;
    worker->scratch = scratch;
    pthread_cond_init(&worker->wake, NULL);
    list_init(&worker->idle_node);
    sigset_t all, before; /* signals are the loop thread's */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(&worker->thread, NULL, worker_main, worker);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0) {
        pthread_cond_destroy(&worker->wake);
        sample_scratch_free(scratch);
        free(worker);
        return error_set(err, FEEDD_E_MEMORY, "a worker thread: %s", strerror(rc));
    }
    char name[16];
    snprintf(name, sizeof(name), "decode-%u", pool->worker_number++ % 10000);
    pthread_setname_np(worker->thread, name);
    list_append(&pool->workers, &worker->node);
    return 0;
}

/* With one worker more each. */
static bool fewer_a_gpu(const struct pool_node *a, const struct pool_node *b)
{
    return (a->workers + (uint64_t)1) * b->gpus < (b->workers + (uint64_t)1) * a->gpus;
}

bool pool_split(struct pool_node *nodes, uint32_t count, uint32_t worker_count)
{
    uint64_t cpus = 0;
    for (uint32_t i = 0; i < count; i++)
        cpus += nodes[i].cpus;
    if (cpus < worker_count)
        return false;
    for (uint32_t i = 0; i < count; i++)
        nodes[i].workers = 0;
    for (uint32_t left = worker_count; left > 0; left--) {
        struct pool_node *next = NULL;
        for (uint32_t i = 0; i < count; i++)
            if (nodes[i].workers < nodes[i].cpus && (next == NULL || fewer_a_gpu(&nodes[i], next)))
                next = &nodes[i];
        next->workers++;
    }
    return true;
}

/* The nodes that the GPUs are near. @param nodes  room for one a GPU @return 0: unknown, or the machine has only one */
static uint32_t find_nodes(const struct gpus *gpus, struct pool_node *nodes)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < gpus->count; i++) {
        int node = gpus->gpu[i]->node;
        if (node < 0) {
            if (numa_node_count() == 1)
                log_info("NUMA: workers run anywhere: the machine has one node");
            else
                log_info("NUMA: workers run anywhere: which node GPU %s is near is not known", gpus->gpu[i]->uuid);
            return 0;
        }
        uint32_t n = 0;
        while (n < count && nodes[n].node != node)
            n++;
        if (n == count)
            nodes[count++] = (struct pool_node){.node = node, .cpus = numa_cpu_count(node)};
        nodes[n].gpus++;
    }
    return count;
}

/* Decides where workers run, and says so. */
static void choose_nodes(struct pool *pool, const struct gpus *gpus)
{
    uint32_t count = find_nodes(gpus, pool->nodes);
    if (count == 0)
        return;
    if (!pool_split(pool->nodes, count, pool->worker_count)) {
        log_info("NUMA: workers run anywhere: the nodes near the GPUs have fewer CPUs than the %u workers",
                 pool->worker_count);
        return;
    }
    for (uint32_t i = 0; i < count; i++) {
        const struct pool_node node = pool->nodes[i];
        log_info("NUMA: node %d has %u of the %u workers (CPUs: %u, GPUs: %u)", node.node, node.workers,
                 pool->worker_count, node.cpus, node.gpus);
        if (node.workers > 0) /* queues of a node without workers are everybody's */
            pool->nodes[pool->node_count++] = node;
    }
}

static int start_workers(struct pool *pool, struct domain *domain, uint32_t count, struct feedd_error *err)
{
    int status = 0;
    for (uint32_t i = 0; status == 0 && i < count; i++)
        status = worker_start(pool, domain, err);
    return status;
}

int pool_new(uint32_t worker_count, const struct gpus *gpus, struct inbox *inbox, struct pool **out,
             struct feedd_error *err)
{
    uint32_t nodes_max = gpus != NULL ? gpus->count : 0;
    struct pool *pool = calloc(1, sizeof(*pool));
    struct pool_node *nodes = calloc(nodes_max + 1, sizeof(*nodes));
    struct domain *domains = calloc(nodes_max + 1, sizeof(*domains));
    if (pool == NULL || nodes == NULL || domains == NULL) {
        free(pool);
        free(nodes);
        free(domains);
        return error_set(err, FEEDD_E_MEMORY, "no memory for %u workers", worker_count);
    }
    pool->inbox = inbox;
    pool->worker_count = worker_count;
    pool->nodes = nodes;
    pool->domains = domains;
    list_init(&pool->workers);
    list_init(&pool->given_up);
    for (uint32_t i = 0; i <= nodes_max; i++) {
        list_init(&domains[i].turns);
        list_init(&domains[i].idle);
    }
    pthread_mutex_init(&pool->lock, NULL);
    if (gpus != NULL)
        choose_nodes(pool, gpus);
    int status = 0;
    if (pool->node_count == 0)
        status = start_workers(pool, &domains[0], worker_count, err);
    for (uint32_t i = 0; status == 0 && i < pool->node_count; i++)
        status = start_workers(pool, &domains[1 + i], nodes[i].workers, err);
    if (status == 0)
        *out = pool;
    else
        pool_free(pool);
    return status;
}

void pool_free(struct pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    pool->stopping = true;
    for (struct worker *worker; (worker = take_idle(pool, pool->domains)) != NULL;)
        pthread_cond_signal(&worker->wake);
    pthread_mutex_unlock(&pool->lock);
    list_each (node, after, &pool->workers)
        worker_free(container_of(node, struct worker, node));
    list_each (node, after, &pool->given_up)
        worker_free(container_of(node, struct worker, node));
    pthread_mutex_destroy(&pool->lock);
    free(pool->domains);
    free(pool->nodes);
    free(pool);
}

/* Takes a worker's place. Without memory for another the pool goes on with fewer. */
static void give_up(struct worker *worker, uint32_t ms, void (*stuck)(struct batch *batch, uint32_t ms))
{
    struct pool *pool = worker->pool;
    struct feedd_error err;
    pthread_mutex_lock(&pool->lock);
    worker->given_up = true;
    struct batch *batch = worker->batch; /* in flight as long as this worker is at it, and so is its task */
    struct pool_task *task = worker->task;
    if (task != NULL)
        *(task->background ? &pool->background_busy : &pool->tasks_busy) -= 1;
    list_remove(&worker->idle_node); /* it may have come back just now, and nobody else shall wake it */
    pthread_cond_signal(&worker->wake);
    pthread_mutex_unlock(&pool->lock);
    list_remove(&worker->node);
    list_append(&pool->given_up, &worker->node);
    log_error("a worker has been at one %s for %u ms: another takes its place", batch != NULL ? "run" : "task", ms);
    if (worker_start(pool, worker->domain, &err) != 0)
        log_error("%s", err.message);
    if (batch != NULL)
        stuck(batch, ms);
    else if (task != NULL && task->stuck != NULL)
        task->stuck(task, ms);
}

void pool_tick(struct pool *pool, uint64_t now_ns, uint32_t limit_ms, void (*stuck)(struct batch *batch, uint32_t ms))
{
    list_each (node, after, &pool->workers) {
        struct worker *worker = container_of(node, struct worker, node);
        uint64_t began_ns = atomic_load_explicit(&worker->began_ns, memory_order_relaxed);
        if (began_ns != 0 && now_ns > began_ns && (now_ns - began_ns) / 1000000 > limit_ms)
            give_up(worker, (uint32_t)((now_ns - began_ns) / 1000000), stuck);
    }
    list_each (node, after, &pool->given_up) {
        struct worker *worker = container_of(node, struct worker, node);
        if (atomic_load(&worker->ended))
            worker_free(worker);
    }
}

uint32_t pool_stuck_count(const struct pool *pool)
{
    uint32_t count = 0;
    list_each (node, after, &pool->given_up)
        count++;
    return count;
}

void pool_queue_init(struct pool_queue *queue)
{
    queue->node = -1;
    list_init(&queue->turn_node);
    queue->turn = 0;
    queue->first = queue->last = NULL;
    atomic_init(&queue->sample_ns, 0);
}

void pool_queue_add(struct pool *pool, struct pool_queue *queue, struct batch *batch)
{
    batch->queue_next = NULL;
    batch->claimed = 0;
    pthread_mutex_lock(&pool->lock);
    ENSURE(!pool->stopping);
    struct domain *domain = domain_of(pool, queue->node);
    if (queue->first == NULL) {
        queue->first = batch;
        append_turn(pool, domain, queue);
    } else {
        queue->last->queue_next = batch;
    }
    queue->last = batch;
    struct worker *idle = take_idle(pool, domain);
    pthread_mutex_unlock(&pool->lock);
    if (idle != NULL)
        pthread_cond_signal(&idle->wake);
}

void pool_task_add(struct pool *pool, struct pool_task *task)
{
    task->next = NULL;
    struct task_queue *queue = task->background ? &pool->background : &pool->tasks;
    pthread_mutex_lock(&pool->lock);
    ENSURE(!pool->stopping);
    if (queue->last == NULL)
        queue->first = task;
    else
        queue->last->next = task;
    queue->last = task;
    struct worker *idle = take_idle(pool, pool->domains);
    pthread_mutex_unlock(&pool->lock);
    if (idle != NULL)
        pthread_cond_signal(&idle->wake);
}

uint32_t pool_worker_count(const struct pool *pool)
{
    return pool->worker_count;
}

const struct pool_node *pool_nodes(const struct pool *pool, uint32_t *count)
{
    *count = pool->node_count;
    return pool->nodes;
}

uint64_t pool_busy_ns(const struct pool *pool)
{
    uint64_t sum = pool->past_busy_ns;
    list_each (node, after, &pool->workers)
        sum += atomic_load_explicit(&container_of(node, struct worker, node)->busy_ns, memory_order_relaxed);
    return sum;
}
