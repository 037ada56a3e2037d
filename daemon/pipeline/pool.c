/* pool.c - see pool.h.
 *
 * Happy path: add -> a worker takes a run under the lock -> batch_fill() without it -> the batch counts down -> the
 * last run posts it to the inbox.
 * What can fail: nothing here; a sample that fails is its batch's business.
 * One lock guards all queues: it is held for some ten nanoseconds a run, and a run is worth a hundred thousand. */
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

#define RUN_NS 100000u /* what one run should be worth */

struct worker {
    struct pool *pool;
    pthread_t thread;
    _Alignas(64) _Atomic uint64_t busy_ns; /* of the runs and tasks that are done; written by this worker alone */
};

struct pool {
    struct inbox *inbox;
    uint32_t worker_count;
    struct worker *workers;
    pthread_mutex_t lock; /* guards all below, and pool_queue's first, last and node */
    pthread_cond_t work;
    struct list turns; /* queues that have batches, the next one's turn first */
    struct pool_task *first_task, *last_task;
    uint32_t idle; /* workers that wait */
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

/* Under the lock. @return the run's batch, or NULL when no queue has any */
static struct batch *take_run(struct pool *pool, uint32_t *first, uint32_t *count)
{
    struct list *turn = list_take_first(&pool->turns);
    if (turn == NULL)
        return NULL;
    struct pool_queue *queue = container_of(turn, struct pool_queue, node);
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
        list_append(&pool->turns, &queue->node);
    return batch;
}

static struct pool_task *take_task(struct pool *pool)
{
    struct pool_task *task = pool->first_task;
    if (task != NULL) {
        pool->first_task = task->next;
        if (pool->first_task == NULL)
            pool->last_task = NULL;
    }
    return task;
}

static void *worker_main(void *arg)
{
    struct worker *worker = arg;
    struct pool *pool = worker->pool;
    uint64_t began = 0;
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        uint32_t first, count;
        struct batch *batch = NULL;
        struct pool_task *task = take_task(pool);
        if (task == NULL)
            batch = take_run(pool, &first, &count);
        if (task == NULL && batch == NULL) {
            if (pool->stopping)
                break;
            pool->idle++;
            pthread_cond_wait(&pool->work, &pool->lock);
            pool->idle--;
            began = 0;
            continue;
        }
        pthread_mutex_unlock(&pool->lock);
        if (began == 0)
            began = clock_ns();
        if (task != NULL) {
            task->work(task);
            inbox_post(pool->inbox, &task->done);
        } else {
            batch_fill(batch, first, count, began);
        }
        uint64_t now = clock_ns();
        atomic_store_explicit(&worker->busy_ns,
                              atomic_load_explicit(&worker->busy_ns, memory_order_relaxed) + now - began,
                              memory_order_relaxed);
        began = now;
        pthread_mutex_lock(&pool->lock);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

static void stop_workers(struct pool *pool, uint32_t started)
{
    pthread_mutex_lock(&pool->lock);
    pool->stopping = true;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
    for (uint32_t i = 0; i < started; i++)
        pthread_join(pool->workers[i].thread, NULL);
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->lock);
    free(pool->workers);
    free(pool);
}

int pool_new(uint32_t worker_count, struct inbox *inbox, struct pool **out, struct feedd_error *err)
{
    struct pool *pool = calloc(1, sizeof(*pool));
    struct worker *workers = aligned_alloc(64, worker_count * sizeof(*workers));
    if (pool == NULL || workers == NULL) {
        free(pool);
        free(workers);
        return error_set(err, FEEDD_E_MEMORY, "no memory for %u workers", worker_count);
    }
    memset(workers, 0, worker_count * sizeof(*workers));
    pool->inbox = inbox;
    pool->worker_count = worker_count;
    pool->workers = workers;
    list_init(&pool->turns);
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->work, NULL);

    sigset_t all, before; /* signals are the loop thread's */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = 0;
    uint32_t started = 0;
    while (started < worker_count) {
        struct worker *worker = &workers[started];
        worker->pool = pool;
        rc = pthread_create(&worker->thread, NULL, worker_main, worker);
        if (rc != 0)
            break;
        char name[16];
        snprintf(name, sizeof(name), "decode-%u", started % 10000);
        pthread_setname_np(worker->thread, name);
        started++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0) {
        stop_workers(pool, started);
        return error_set(err, FEEDD_E_MEMORY, "worker thread %u of %u: %s", started + 1, worker_count, strerror(rc));
    }
    *out = pool;
    return 0;
}

void pool_free(struct pool *pool)
{
    stop_workers(pool, pool->worker_count);
}

void pool_queue_init(struct pool_queue *queue)
{
    list_init(&queue->node);
    queue->first = queue->last = NULL;
    atomic_init(&queue->sample_ns, 0);
}

void pool_queue_add(struct pool *pool, struct pool_queue *queue, struct batch *batch)
{
    batch->queue_next = NULL;
    batch->claimed = 0;
    pthread_mutex_lock(&pool->lock);
    ENSURE(!pool->stopping);
    if (queue->first == NULL) {
        queue->first = batch;
        list_append(&pool->turns, &queue->node);
    } else {
        queue->last->queue_next = batch;
    }
    queue->last = batch;
    bool wake = pool->idle > 0;
    pthread_mutex_unlock(&pool->lock);
    if (wake)
        pthread_cond_signal(&pool->work);
}

void pool_task_add(struct pool *pool, struct pool_task *task)
{
    task->next = NULL;
    pthread_mutex_lock(&pool->lock);
    ENSURE(!pool->stopping);
    if (pool->last_task == NULL)
        pool->first_task = task;
    else
        pool->last_task->next = task;
    pool->last_task = task;
    pthread_mutex_unlock(&pool->lock);
    pthread_cond_signal(&pool->work);
}

uint32_t pool_worker_count(const struct pool *pool)
{
    return pool->worker_count;
}

uint64_t pool_busy_ns(const struct pool *pool)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < pool->worker_count; i++)
        sum += atomic_load_explicit(&pool->workers[i].busy_ns, memory_order_relaxed);
    return sum;
}
