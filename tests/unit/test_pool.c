/* test_pool.c - the workers, on a machine that is made up: its nodes, their CPUs, and the filling of batches.
 *
 * --wrap puts these functions in the place of NUMA's and of batch_fill(), which notes who took what and can be held up
 * a node at a time. A batch of the tests has a number of its queue, and is told apart by its address. */
#include <check.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "batch.h"
#include "clock.h"
#include "gpu.h"
#include "numa.h"
#include "pool.h"
#include "sample.h"

#define NODES    4 /* nodes 0 to 3 */
#define ANYWHERE NODES
#define RUNS_MAX 4096
#define WAIT_S   20 /* for what comes at once, on a machine that is busy */

struct test_batch {
    struct batch batch; /* first: it is found by this one's address */
    char queue;
    _Atomic uint32_t seen[64]; /* how often each of its samples has been handed out */
};

/* The machine. */
static uint32_t machine_cpus[NODES];
static uint32_t machine_nodes;
static int bind_status;
static _Atomic uint32_t bound[NODES]; /* numa_run_on() calls for each */
static _Thread_local int worker_node = ANYWHERE;

/* What batch_fill() does. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    char queue;
    int node;
} runs[RUNS_MAX];
static uint32_t run_count;
static _Atomic bool held[NODES + 1]; /* workers of these wait for `go` in each run */
static sem_t go[NODES + 1], begun[NODES + 1];
static struct inbox inbox;
static sem_t woken;

uint32_t __wrap_numa_node_count(void);
uint32_t __wrap_numa_cpu_count(int node);
int __wrap_numa_run_on(int node);
void __wrap_batch_fill(struct batch *batch, uint32_t first, uint32_t count, uint64_t now_ns,
                       struct sample_scratch *scratch);

uint32_t __wrap_numa_node_count(void)
{
    return machine_nodes;
}

uint32_t __wrap_numa_cpu_count(int node)
{
    return machine_cpus[node];
}

int __wrap_numa_run_on(int node)
{
    atomic_fetch_add(&bound[node], 1);
    worker_node = node;
    return bind_status;
}

void __wrap_batch_fill(struct batch *batch, uint32_t first, uint32_t count, uint64_t now_ns,
                       struct sample_scratch *scratch)
{
    (void)now_ns, (void)scratch;
    struct test_batch *test = (struct test_batch *)batch;
    pthread_mutex_lock(&lock);
    ck_assert_uint_lt(run_count, RUNS_MAX);
    runs[run_count].queue = test->queue;
    runs[run_count++].node = worker_node;
    pthread_mutex_unlock(&lock);
    for (uint32_t i = first; i < first + count; i++)
        atomic_fetch_add(&test->seen[i], 1);
    bool wait = atomic_load(&held[worker_node]);
    sem_post(&begun[worker_node]);
    if (wait)
        sem_wait(&go[worker_node]);
    if (atomic_fetch_sub(&batch->remaining, count) == count)
        inbox_post(&inbox, &batch->filled);
}

static void wake(void *arg)
{
    (void)arg;
    sem_post(&woken);
}

static void wait_for(sem_t *sem)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += WAIT_S;
    ck_assert_msg(sem_timedwait(sem, &until) == 0, "%s", strerror(errno));
}

static uint32_t batches_filled;

static void count_filled(struct inbox_item *item)
{
    (void)item;
    batches_filled++;
}

static void wait_filled(uint32_t count)
{
    while (batches_filled < count) {
        wait_for(&woken);
        inbox_drain(&inbox);
    }
    ck_assert_uint_eq(batches_filled, count);
}

static void setup(void)
{
    machine_nodes = NODES;
    bind_status = 0;
    run_count = batches_filled = 0;
    for (int i = 0; i <= NODES; i++) {
        sem_init(&go[i], 0, 0);
        sem_init(&begun[i], 0, 0);
        atomic_store(&held[i], false);
        if (i < NODES) {
            machine_cpus[i] = 64;
            atomic_store(&bound[i], 0);
        }
    }
    sem_init(&woken, 0, 0);
    inbox_init(&inbox, wake, NULL);
}

/* A pool whose GPUs are near these nodes. */
static struct pool *start(uint32_t workers, const int *near, uint32_t count)
{
    struct gpu gpu[8] = {{.node = 0}}, *pointers[8];
    struct gpus gpus = {.count = count, .gpu = pointers};
    for (uint32_t i = 0; i < count; i++) {
        gpu[i].node = near[i];
        strcpy(gpu[i].uuid, "GPU-x");
        pointers[i] = &gpu[i];
    }
    struct pool *pool;
    ck_assert_int_eq(pool_new(workers, &gpus, &inbox, &pool, NULL), 0);
    return pool;
}

/* Batches of `samples` each, for one queue. */
static struct test_batch *make_batches(char queue, uint32_t count, uint32_t samples)
{
    struct test_batch *batches = calloc(count, sizeof(*batches));
    ck_assert_ptr_nonnull(batches);
    for (uint32_t i = 0; i < count; i++) {
        batches[i].queue = queue;
        batches[i].batch.plan.count = samples;
        batches[i].batch.filled.run = count_filled;
        atomic_init(&batches[i].batch.remaining, samples);
    }
    return batches;
}

static void add(struct pool *pool, struct pool_queue *queue, struct test_batch *batches, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        pool_queue_add(pool, queue, &batches[i].batch);
}

static void hold(int node, bool yes)
{
    atomic_store(&held[node], yes);
    if (!yes)
        sem_post(&go[node]);
}

/* Until all workers that have been started on nodes are idle: each is bound first, and then it looks for work. */
static void rest(uint32_t workers)
{
    const struct timespec pause = {0, 30000000};
    uint32_t count;
    do {
        nanosleep(&pause, NULL);
        count = 0;
        for (int i = 0; i < NODES; i++)
            count += atomic_load(&bound[i]);
    } while (count < workers);
    nanosleep(&pause, NULL);
}

/* pool_split() against all ways to split: in the best one the most workers a GPU are fewest. */

static double most_a_gpu(const struct pool_node *nodes, uint32_t count)
{
    double most = 0;
    for (uint32_t i = 0; i < count; i++)
        if ((double)nodes[i].workers / nodes[i].gpus > most)
            most = (double)nodes[i].workers / nodes[i].gpus;
    return most;
}

static void try_all(struct pool_node *nodes, uint32_t count, uint32_t at, uint32_t left, double *best)
{
    if (at == count) {
        if (left == 0 && most_a_gpu(nodes, count) < *best)
            *best = most_a_gpu(nodes, count);
        return;
    }
    for (uint32_t workers = 0; workers <= nodes[at].cpus && workers <= left; workers++) {
        nodes[at].workers = workers;
        try_all(nodes, count, at + 1, left - workers, best);
    }
}

START_TEST(test_split_exhaustive)
{
    uint32_t cases = 0, splits = 0;
    for (uint32_t count = 1; count <= 3; count++) {
        uint32_t kinds = 1;
        for (uint32_t i = 0; i < count; i++)
            kinds *= 4 * 5; /* 1 to 4 GPUs, 0 to 4 CPUs each */
        for (uint32_t kind = 0; kind < kinds; kind++)
            for (uint32_t workers = 1; workers <= 9; workers++) {
                struct pool_node nodes[3] = {{.node = 0}}, all[3];
                uint32_t cpus = 0, rest_of_kind = kind, sum = 0, gpus = 0;
                for (uint32_t i = 0; i < count; i++, rest_of_kind /= 20) {
                    nodes[i].gpus = 1 + rest_of_kind % 4;
                    nodes[i].cpus = rest_of_kind / 4 % 5;
                    nodes[i].workers = 77;
                    cpus += nodes[i].cpus;
                    gpus += nodes[i].gpus;
                }
                memcpy(all, nodes, sizeof(all));
                cases++;
                ck_assert_int_eq(pool_split(nodes, count, workers), cpus >= workers);
                if (cpus < workers) {
                    ck_assert_mem_eq(nodes, all, sizeof(all));
                    continue;
                }
                splits++;
                bool capped = false;
                for (uint32_t i = 0; i < count; i++) {
                    ck_assert_uint_le(nodes[i].workers, nodes[i].cpus);
                    ck_assert_uint_eq(nodes[i].gpus, all[i].gpus);
                    sum += nodes[i].workers;
                    capped |= nodes[i].workers == nodes[i].cpus;
                }
                ck_assert_uint_eq(sum, workers);
                for (uint32_t i = 0; !capped && i < count; i++)
                    ck_assert_uint_ge(nodes[i].workers, workers * nodes[i].gpus / gpus);
                double best = 1e9;
                try_all(all, count, 0, workers, &best);
                ck_assert_double_eq_tol(most_a_gpu(nodes, count), best, 1e-9);
            }
    }
    printf("test_pool: %u splits of %u cases\n", splits, cases);
}
END_TEST

static void check_nodes(struct pool *pool, const struct pool_node *due, uint32_t due_count)
{
    uint32_t count;
    const struct pool_node *nodes = pool_nodes(pool, &count);
    ck_assert_uint_eq(count, due_count);
    for (uint32_t i = 0; i < count; i++) {
        ck_assert_int_eq(nodes[i].node, due[i].node);
        ck_assert_uint_eq(nodes[i].gpus, due[i].gpus);
        ck_assert_uint_eq(nodes[i].cpus, due[i].cpus);
        ck_assert_uint_eq(nodes[i].workers, due[i].workers);
    }
    uint32_t workers = pool_worker_count(pool);
    pool_free(pool); /* every worker has been bound, or not, by now */
    for (uint32_t node = 0; node < NODES; node++) {
        uint32_t here = 0;
        for (uint32_t i = 0; i < due_count; i++)
            here += (uint32_t)due[i].node == node ? due[i].workers : 0;
        ck_assert_uint_eq(atomic_exchange(&bound[node], 0), here);
        workers -= here;
    }
    ck_assert(workers == 0 || due_count == 0);
}

START_TEST(test_where_workers_run)
{
    check_nodes(start(3, NULL, 0), NULL, 0);
    check_nodes(start(3, (int[]){2, 2}, 2), (struct pool_node[]){{2, 2, 64, 3}}, 1);
    check_nodes(start(8, (int[]){1, 3, 3, 3}, 4), (struct pool_node[]){{1, 1, 64, 2}, {3, 3, 64, 6}}, 2);
    check_nodes(start(2, (int[]){0, 0, 0, 0, 0, 0, 0, 1}, 8), (struct pool_node[]){{0, 7, 64, 2}}, 1);
    check_nodes(start(3, (int[]){1, -1}, 2), NULL, 0);
    machine_cpus[2] = 2;
    check_nodes(start(3, (int[]){2}, 1), NULL, 0);
    check_nodes(start(2, (int[]){2}, 1), (struct pool_node[]){{2, 1, 2, 2}}, 1);
    check_nodes(start(5, (int[]){2, 2, 1}, 3), (struct pool_node[]){{2, 2, 2, 2}, {1, 1, 64, 3}}, 2);
    machine_nodes = 1;
    check_nodes(start(3, (int[]){-1}, 1), NULL, 0);
    struct pool *pool;
    ck_assert_int_eq(pool_new(2, NULL, &inbox, &pool, NULL), 0);
    check_nodes(pool, NULL, 0);
    machine_nodes = NODES;
    bind_status = -EPERM; /* only worth a warning */
    check_nodes(start(2, (int[]){0, 1}, 2), (struct pool_node[]){{0, 1, 64, 1}, {1, 1, 64, 1}}, 2);
}
END_TEST

/* Each sample of each batch is handed out once, whatever the nodes. */
START_TEST(test_each_sample_once)
{
    static const int queue_nodes[] = {-1, 0, 1, 3}; /* 3 has no workers */
    static const int near[][2] = {{-1, -1}, {0, 0}, {0, 1}};
    enum { QUEUES = 4, BATCHES = 30, SAMPLES = 7 };
    for (int n = 0; n < 3; n++) {
        struct pool *pool = start(4, near[n], 2);
        struct pool_queue queues[QUEUES];
        struct test_batch *batches[QUEUES];
        run_count = batches_filled = 0;
        for (int q = 0; q < QUEUES; q++) {
            pool_queue_init(&queues[q]);
            queues[q].node = queue_nodes[q];
            batches[q] = make_batches((char)('A' + q), BATCHES, SAMPLES);
        }
        for (int b = 0; b < BATCHES; b++)
            for (int q = 0; q < QUEUES; q++)
                add(pool, &queues[q], &batches[q][b], 1);
        wait_filled(QUEUES * BATCHES);
        pool_free(pool);
        for (int q = 0; q < QUEUES; q++) {
            for (int b = 0; b < BATCHES; b++)
                for (int s = 0; s < SAMPLES; s++)
                    ck_assert_uint_eq(atomic_load(&batches[q][b].seen[s]), 1);
            free(batches[q]);
        }
    }
}
END_TEST

/* Two workers, one a node, both idle: a batch is for the one on its node, and a second one for the other, at once. */
START_TEST(test_wakes_near_then_far)
{
    struct pool *pool = start(2, (int[]){0, 1}, 2);
    struct pool_queue queue;
    struct test_batch *batches = make_batches('B', 4, 1);
    pool_queue_init(&queue);
    queue.node = 1;
    for (int round = 0; round < 2; round++) {
        hold(0, true);
        hold(1, true);
        rest(2);
        add(pool, &queue, batches + 2 * round, 1);
        wait_for(&begun[1]);
        ck_assert_int_ne(sem_trywait(&begun[0]), 0);
        add(pool, &queue, batches + 2 * round + 1, 1);
        wait_for(&begun[0]);
        hold(0, false);
        hold(1, false);
        wait_filled(2 * (uint32_t)round + 2);
    }
    /* and when both come before the first worker has woken */
    struct test_batch *more = make_batches('B', 2, 1);
    hold(0, true);
    hold(1, true);
    rest(2);
    add(pool, &queue, more, 2);
    wait_for(&begun[1]);
    wait_for(&begun[0]);
    hold(0, false);
    hold(1, false);
    wait_filled(6);
    pool_free(pool);
    free(batches);
    free(more);
}
END_TEST

/* Runs from `from` on, in the order in which they were taken by a node's workers. */
static uint32_t order_of(int node, uint32_t from, char *order)
{
    uint32_t count = 0;
    pthread_mutex_lock(&lock);
    for (uint32_t i = from; i < run_count; i++)
        if (runs[i].node == node)
            order[count++] = runs[i].queue;
    pthread_mutex_unlock(&lock);
    order[count] = '\0';
    return count;
}

/* A worker of node 0 and one of node 1, which is held up in a run: what does the first one take of batches of one
 * sample, `a` of node 0, `b` of node 1 and `c` of the node `c_node`? */
static void take_alone(uint32_t a, uint32_t b, uint32_t c, int c_node, char *order)
{
    struct pool *pool = start(2, (int[]){0, 1}, 2);
    struct pool_queue queues[3];
    const uint32_t counts[3] = {a, b, c};
    const int nodes[3] = {0, 1, c_node};
    struct test_batch *batches[3], *first[2];
    hold(0, true);
    hold(1, true);
    rest(2);
    for (int i = 0; i < 3; i++) {
        pool_queue_init(&queues[i]);
        queues[i].node = nodes[i];
        batches[i] = make_batches((char)('A' + i), counts[i], 1);
    }
    for (int i = 0; i < 2; i++) {
        first[i] = make_batches((char)('a' + i), 1, 1);
        add(pool, &queues[i], first[i], 1);
        wait_for(&begun[i]);
    }
    for (int i = 0; i < 3; i++)
        add(pool, &queues[i], batches[i], counts[i]);
    hold(0, false);
    wait_filled(1 + a + b + c);
    order_of(0, 2, order);
    ck_assert_uint_eq(strlen(order), a + b + c);
    hold(1, false);
    wait_filled(2 + a + b + c);
    pool_free(pool);
    for (int i = 0; i < 3; i++)
        free(batches[i]);
    for (int i = 0; i < 2; i++)
        free(first[i]);
}

START_TEST(test_own_node_first)
{
    char order[RUNS_MAX];
    take_alone(10, 4, 0, 0, order);
    ck_assert_str_eq(order, "AAAAAAAAAABBBB");
}
END_TEST

/* Queues of no node, and of one without workers, are everybody's and have the same turns. */
START_TEST(test_everybodys_queues)
{
    static const int nodes[] = {-1, 3};
    for (int i = 0; i < 2; i++) {
        char order[RUNS_MAX];
        setup();
        take_alone(4, 2, 6, nodes[i], order);
        ck_assert_str_eq(order, "ACACACACCCBB");
    }
}
END_TEST

/* A queue whose workers don't come waits for no more than eight rounds of all queues and workers. */
START_TEST(test_patience)
{
    char order[RUNS_MAX];
    take_alone(300, 5, 0, 0, order);
    uint32_t since = 0, helped = 0;
    for (const char *c = order; *c != '\0' && helped < 5; c++) {
        since++;
        if (*c != 'B')
            continue;
        ck_assert_uint_ge(since, 30);
        ck_assert_uint_le(since, 36);
        since = 0;
        helped++;
    }
    ck_assert_uint_eq(helped, 5);
}
END_TEST

/* With work for all no worker takes another node's runs. */
START_TEST(test_balanced_is_local)
{
    enum { BATCHES = 500 };
    struct pool *pool = start(4, (int[]){0, 1}, 2);
    struct pool_queue queues[2];
    struct test_batch *batches[2], *first[2];
    hold(0, true);
    hold(1, true);
    rest(4);
    for (int i = 0; i < 2; i++) { /* all four workers are in a run, so that none begins before there is work for all */
        pool_queue_init(&queues[i]);
        queues[i].node = i;
        batches[i] = make_batches((char)('A' + i), BATCHES, 1);
        first[i] = make_batches((char)('A' + i), 2, 1);
        add(pool, &queues[i], first[i], 2);
    }
    for (int i = 0; i < 4; i++)
        wait_for(&begun[i / 2]);
    for (int i = 0; i < 2; i++)
        add(pool, &queues[i], batches[i], BATCHES);
    /* in step: each node's workers are let go for one run in turn */
    for (int i = 0; i < BATCHES; i++) {
        for (int node = 0; node < 2; node++) {
            sem_post(&go[node]);
            if (i < BATCHES - 2)
                wait_for(&begun[node]);
        }
    }
    for (int node = 0; node < 2; node++) {
        hold(node, false);
        sem_post(&go[node]);
        sem_post(&go[node]);
    }
    wait_filled(2 * BATCHES + 4);
    pool_free(pool);
    for (uint32_t i = 0; i < 2 * (BATCHES - 10); i++)
        ck_assert_int_eq(runs[i].queue - 'A', runs[i].node);
    for (int i = 0; i < 2; i++) {
        free(batches[i]);
        free(first[i]);
    }
}
END_TEST

static uint32_t stuck_count;

static void count_stuck(struct batch *batch, uint32_t ms)
{
    (void)batch, (void)ms;
    stuck_count++;
}

/* Who takes the place of a worker that is given up is on the same node. */
START_TEST(test_stuck_worker)
{
    struct pool *pool = start(2, (int[]){0, 1}, 2);
    struct pool_queue queue;
    struct test_batch *batches = make_batches('B', 2, 1);
    pool_queue_init(&queue);
    queue.node = 1;
    stuck_count = 0;
    hold(1, true);
    rest(2);
    add(pool, &queue, batches, 1);
    wait_for(&begun[1]);
    pool_tick(pool, clock_ns() + 5000000000, 1000, count_stuck);
    ck_assert_uint_eq(stuck_count, 1);
    ck_assert_uint_eq(pool_stuck_count(pool), 1);
    rest(3);
    add(pool, &queue, batches + 1, 1);
    wait_for(&begun[1]);
    ck_assert_uint_eq(atomic_load(&bound[0]), 1);
    ck_assert_uint_eq(atomic_load(&bound[1]), 2);
    hold(1, false);
    hold(1, false);
    wait_filled(2);
    pool_free(pool);
    free(batches);
}
END_TEST

struct test_task {
    struct pool_task task;
    bool done;
};

static void work(struct pool_task *task)
{
    (void)task;
}

static void task_done(struct inbox_item *item)
{
    container_of(item, struct test_task, task.done)->done = true;
}

START_TEST(test_tasks)
{
    enum { TASKS = 20 };
    struct pool *pool = start(3, (int[]){0, 1}, 2);
    struct test_task tasks[TASKS];
    for (int i = 0; i < TASKS; i++) {
        tasks[i] = (struct test_task){.task = {.work = work, .done = {.run = task_done}, .background = i % 2 == 1}};
        if (i % 5 == 0)
            rest(3);
        pool_task_add(pool, &tasks[i].task);
    }
    for (int i = 0; i < TASKS; i++)
        while (!tasks[i].done) {
            wait_for(&woken);
            inbox_drain(&inbox);
        }
    pool_free(pool);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("pool");
    TCase *tests = tcase_create("pool");
    tcase_set_timeout(tests, 120);
    tcase_add_checked_fixture(tests, setup, NULL);
    tcase_add_test(tests, test_split_exhaustive);
    tcase_add_test(tests, test_where_workers_run);
    tcase_add_test(tests, test_each_sample_once);
    tcase_add_test(tests, test_wakes_near_then_far);
    tcase_add_test(tests, test_own_node_first);
    tcase_add_test(tests, test_everybodys_queues);
    tcase_add_test(tests, test_patience);
    tcase_add_test(tests, test_balanced_is_local);
    tcase_add_test(tests, test_stuck_worker);
    tcase_add_test(tests, test_tasks);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
