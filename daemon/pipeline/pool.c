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
#include "log.h"
#include "sample.h"

#define RUN_NS 100000u /* what one run should be worth */

struct worker {
    struct list node; /* in pool->workers or pool->given_up; loop thread */
    struct pool *pool;
    pthread_t thread;
    struct sample_scratch *scratch;
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
    pthread_mutex_t lock;   /* guards all below, and pool_queue's first, last and node */
    pthread_cond_t work;
    struct list turns; /* queues that have batches, the next one's turn first */
    struct task_queue tasks, background;
    uint32_t tasks_busy;      /* workers at other tasks, but for those that were given up */
    uint32_t background_busy; /* and at background tasks */
    uint64_t owed_ns;         /* what streams are to get of the workers' time before another background task */
    uint32_t idle;            /* workers that wait */
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
    if (list_empty(&pool->turns) || pool->worker_count == 1 || pool->tasks_busy + 1 < pool->worker_count)
        task = take_first(&pool->tasks);
    if (task != NULL)
        pool->tasks_busy++;
    if (task == NULL && (list_empty(&pool->turns) || (pool->background_busy == 0 && pool->owed_ns == 0))) {
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

static void *worker_main(void *arg)
{
    struct worker *worker = arg;
    struct pool *pool = worker->pool;
    uint64_t began = 0;
    pthread_mutex_lock(&pool->lock);
    while (!worker->given_up) {
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
    sample_scratch_free(worker->scratch);
    free(worker);
}

static int worker_start(struct pool *pool, struct feedd_error *err)
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
    worker->scratch = scratch;
    sigset_t all, before; /* signals are the loop thread's */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(&worker->thread, NULL, worker_main, worker);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0) {
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

int pool_new(uint32_t worker_count, struct inbox *inbox, struct pool **out, struct feedd_error *err)
{
    struct pool *pool = calloc(1, sizeof(*pool));
    if (pool == NULL)
        return error_set(err, FEEDD_E_MEMORY, "no memory for %u workers", worker_count);
    pool->inbox = inbox;
    pool->worker_count = worker_count;
    list_init(&pool->workers);
    list_init(&pool->given_up);
    list_init(&pool->turns);
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->work, NULL);
    for (uint32_t i = 0; i < worker_count; i++) {
        int status = worker_start(pool, err);
        if (status != 0) {
            pool_free(pool);
            return status;
        }
    }
    *out = pool;
    return 0;
}

void pool_free(struct pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    pool->stopping = true;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
    list_each (node, after, &pool->workers)
        worker_free(container_of(node, struct worker, node));
    list_each (node, after, &pool->given_up)
        worker_free(container_of(node, struct worker, node));
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->lock);
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
    pthread_mutex_unlock(&pool->lock);
    list_remove(&worker->node);
    list_append(&pool->given_up, &worker->node);
    log_error("a worker has been at one %s for %u ms: another takes its place", batch != NULL ? "run" : "task", ms);
    if (worker_start(pool, &err) != 0)
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
    struct task_queue *queue = task->background ? &pool->background : &pool->tasks;
    pthread_mutex_lock(&pool->lock);
    ENSURE(!pool->stopping);
    if (queue->last == NULL)
        queue->first = task;
    else
        queue->last->next = task;
    queue->last = task;
    pthread_mutex_unlock(&pool->lock);
    pthread_cond_signal(&pool->work);
}

uint32_t pool_worker_count(const struct pool *pool)
{
    return pool->worker_count;
}

uint64_t pool_busy_ns(const struct pool *pool)
{
    uint64_t sum = pool->past_busy_ns;
    list_each (node, after, &pool->workers)
        sum += atomic_load_explicit(&container_of(node, struct worker, node)->busy_ns, memory_order_relaxed);
    return sum;
}
