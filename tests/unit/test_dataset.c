/* test_dataset.c - datasets as streams use them: opened for the first user, closed after the last, with the samples of
 * every selection.
 *
 * Happy path: a pipeline with two workers and a list dataset of 100 samples; this thread is the loop.
 * What each selection holds is compared with reader_select() on the same list, which has its own test. */
#include <semaphore.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "tree.h"

#include "dataset.h"
#include "pipeline.h"

#define SAMPLES 100u

static sem_t woken;
static struct pipeline pipeline;
static struct reader_selection selections[4];
static struct reader_config configs[2]; /* the same list with splits, and without */
static char list_path[600], indices_path[600];

struct waiting {
    struct dataset_waiter waiter;
    int calls, status;
    char message[1020];
};

static void wake(void *arg)
{
    (void)arg;
    sem_post(&woken);
}

/* One turn of the loop. */
static void turn(void)
{
    struct timespec deadline;
    clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_sec += 20;
    ck_assert_int_eq(sem_timedwait(&woken, &deadline), 0);
    inbox_drain(&pipeline.inbox);
}

static void ready(struct dataset_waiter *waiter, int status, const struct feedd_error *err)
{
    struct waiting *waiting = container_of(waiter, struct waiting, waiter);
    waiting->calls++;
    waiting->status = status;
    snprintf(waiting->message, sizeof(waiting->message), "%s", status != 0 ? err->message : "");
}

static void setup(void)
{
    tree_setup();
    char text[4000];
    size_t used = 0;
    for (uint32_t i = 0; i < SAMPLES; i++)
        used += (size_t)sprintf(text + used, "%u.jpg\t%u\n", i, i % 7);
    snprintf(list_path, sizeof(list_path), "%s", at("list.tsv"));
    snprintf(indices_path, sizeof(indices_path), "%s", at("indices"));
    put_file(list_path, text);
    put_file(indices_path, "5\n3\n99\n");
    selections[0] = (struct reader_selection){.name = NULL};
    selections[1] = (struct reader_selection){.name = indices_path, .fraction_end = 0.25};
    selections[2] = (struct reader_selection){.name = indices_path, .fraction_begin = 0.25, .fraction_end = 1};
    selections[3] = (struct reader_selection){.name = indices_path, .file = indices_path};
    configs[0] = (struct reader_config){.name = (char *)(uintptr_t) "splits",
                                        .ops = &reader_list,
                                        .list = list_path,
                                        .selections = selections,
                                        .selection_count = 4};
    configs[1] = configs[0];
    configs[1].name = (char *)(uintptr_t) "plain";
    configs[1].selection_count = 1;
    ck_assert_int_eq(sem_init(&woken, 0, 0), 0);
}

static void start(uint64_t memory_max)
{
    const struct pipeline_limits limits = {
        .workers = 2, .ring_memory_max = 1 << 20, .dataset_memory_max = memory_max, .read_timeout_ms = 30000};
    ck_assert_int_eq(pipeline_init(&pipeline, &limits, configs, 2, wake, NULL, NULL, NULL), 0);
}

static void note_idle(void *arg)
{
    *(bool *)arg = true;
}

static void stop(void)
{
    bool idle = false;
    pipeline_close(&pipeline, note_idle, &idle);
    while (!idle)
        turn();
    ck_assert_uint_eq(pipeline.dataset_bytes, 0);
    pipeline_done(&pipeline);
}

static void teardown(void)
{
    sem_destroy(&woken);
    tree_teardown();
}

/* @return the status; on success the caller is a user */
static int open_now(struct dataset *dataset, struct waiting *waiting)
{
    *waiting = (struct waiting){.waiter = {.ready = ready}};
    if (dataset_acquire(dataset, &waiting->waiter))
        return 0;
    while (waiting->calls == 0)
        turn();
    ck_assert_int_eq(waiting->calls, 1);
    return waiting->status;
}

START_TEST(selected)
{
    struct waiting waiting;
    start(1 << 20);
    struct dataset *dataset = pipeline_dataset(&pipeline, "splits");
    ck_assert_int_eq(open_now(dataset, &waiting), 0);
    ck_assert_int_eq(dataset->state, DATASET_OPEN);
    uint64_t bytes = dataset->reader->memory_bytes;
    for (uint32_t i = 0; i < 4; i++) {
        const struct dataset_selection *selection = &dataset->selections[i];
        uint64_t *due = NULL, count;
        ck_assert_int_eq(reader_select(dataset->reader, &selections[i], 1 << 20, &due, &count, NULL), 0);
        ck_assert_uint_eq(selection->count, count);
        ck_assert_int_eq(selection->indices == NULL, i == 0);
        if (i > 0) {
            ck_assert_mem_eq(selection->indices, due, count * sizeof(*due));
            bytes += count * sizeof(*due);
        }
        for (uint32_t j = 0; j < i; j++)
            ck_assert_uint_ne(selection->fingerprint, dataset->selections[j].fingerprint);
        free(due);
    }
    ck_assert_uint_eq(dataset->selections[0].fingerprint, dataset->reader->fingerprint);
    ck_assert_uint_eq(dataset->selections[1].count + dataset->selections[2].count, SAMPLES);
    ck_assert_uint_eq(dataset->memory_bytes, bytes);
    ck_assert_uint_eq(pipeline.dataset_bytes, bytes);
    const uint64_t split = dataset->selections[1].fingerprint, file = dataset->selections[3].fingerprint;

    ck_assert_int_eq(open_now(dataset, &waiting), 0); /* open already: nobody is called */
    ck_assert_int_eq(waiting.calls, 0);
    dataset_release(dataset);
    ck_assert_int_eq(dataset->state, DATASET_OPEN);
    dataset_release(dataset);
    ck_assert_int_eq(dataset->state, DATASET_CLOSING);
    ck_assert_uint_eq(pipeline.dataset_bytes, 0);
    put_file(indices_path, "5\n3\n98\n");
    ck_assert_int_eq(open_now(dataset, &waiting), 0); /* while it closes: afterwards */
    ck_assert_uint_eq(dataset->selections[1].fingerprint, split);
    ck_assert_uint_ne(dataset->selections[3].fingerprint, file); /* other samples, another dataset */
    dataset_release(dataset);
    stop();
}
END_TEST

/* A selection that can't be made is an error of the dataset; the next user tries again. */
START_TEST(failed)
{
    struct waiting waiting;
    char due[1500];
    start(1 << 20);
    struct dataset *dataset = pipeline_dataset(&pipeline, "splits");
    put_file(indices_path, "5\n100\n");
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(open_now(dataset, &waiting), FEEDD_E_CORRUPT);
        snprintf(due, sizeof(due), "%s:2: '100' is not an index; allowed: 0 to 99", indices_path);
        ck_assert_str_eq(waiting.message, due);
        ck_assert_int_eq(dataset->state, DATASET_CLOSED);
        ck_assert_ptr_null(dataset->reader);
        ck_assert_ptr_null(dataset->selections);
        ck_assert_uint_eq(pipeline.dataset_bytes, 0);
    }
    put_file(indices_path, "5\n");
    ck_assert_int_eq(open_now(dataset, &waiting), 0);
    ck_assert_uint_eq(dataset->selections[3].count, 1);
    dataset_release(dataset);
    stop();
}
END_TEST

/* The limit holds for the list, its selections and other datasets together. */
START_TEST(limits)
{
    struct waiting first, second;
    start(1 << 20);
    struct dataset *dataset = pipeline_dataset(&pipeline, "splits");
    ck_assert_int_eq(open_now(dataset, &first), 0);
    const uint64_t bytes = dataset->memory_bytes, list_bytes = dataset->reader->memory_bytes;
    dataset_release(dataset);
    stop();
    ck_assert_uint_gt(bytes, list_bytes + SAMPLES * 8);

    uint64_t least = 0;
    for (uint64_t limit = 0; limit < 2 * bytes; limit += 101) {
        start(limit);
        dataset = pipeline_dataset(&pipeline, "splits");
        int status = open_now(dataset, &first);
        ck_assert(status == 0 || status == FEEDD_E_LIMIT);
        if (status == 0) {
            least = least == 0 ? limit : least;
            ck_assert_uint_le(dataset->memory_bytes, limit);
            dataset_release(dataset);
        } else {
            ck_assert_uint_eq(least, 0);
            ck_assert_ptr_nonnull(strstr(first.message, "(daemon.dataset_memory_max)"));
        }
        stop();
    }
    ck_assert_uint_ge(least, bytes);

    /* Room for either, not for both. */
    start(least);
    dataset = pipeline_dataset(&pipeline, "splits");
    ck_assert_int_eq(open_now(dataset, &first), 0);
    ck_assert_int_eq(open_now(pipeline_dataset(&pipeline, "plain"), &second), FEEDD_E_LIMIT);
    ck_assert_uint_eq(pipeline.dataset_bytes, bytes);
    dataset_release(dataset);
    while (dataset->state != DATASET_CLOSED)
        turn();
    ck_assert_int_eq(open_now(pipeline_dataset(&pipeline, "plain"), &second), 0);
    dataset_release(pipeline_dataset(&pipeline, "plain"));
    stop();
}
END_TEST

/* A folder that a client named: it goes with its last holder. */
START_TEST(temporary)
{
    struct waiting waiting;
    struct dataset *dataset = NULL, *again = NULL;
    start(1 << 20);
    put_file(at("photos/a/1.jpg"), "x");
    ck_assert_int_eq(pipeline_dataset_at(&pipeline, at("photos"), &dataset, NULL), 0);
    dataset_hold(dataset);
    ck_assert_int_eq(open_now(dataset, &waiting), 0);
    ck_assert_ptr_eq(dataset->config->ops, &reader_folder);
    ck_assert_uint_eq(dataset->selections[0].count, 1);
    ck_assert_int_eq(pipeline_dataset_at(&pipeline, at("photos"), &again, NULL), 0);
    ck_assert_ptr_eq(again, dataset);
    dataset_release(dataset);
    dataset_drop(dataset);
    while (pipeline_dataset(&pipeline, at("photos")) != NULL)
        turn();

    ck_assert_int_eq(pipeline_dataset_at(&pipeline, at("list.tsv"), &dataset, NULL), 0); /* not the configured one */
    dataset_hold(dataset);
    ck_assert(dataset->temporary);
    ck_assert_int_eq(open_now(dataset, &waiting), 0);
    ck_assert_ptr_eq(dataset->config->ops, &reader_list);
    dataset_release(dataset);
    dataset_drop(dataset);
    ck_assert_int_eq(pipeline_dataset_at(&pipeline, at("none"), &dataset, NULL), FEEDD_E_NOT_FOUND);
    stop();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("dataset");
    TCase *tcase = tcase_create("dataset");
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_set_timeout(tcase, 120);
    tcase_add_test(tcase, selected);
    tcase_add_test(tcase, failed);
    tcase_add_test(tcase, limits);
    tcase_add_test(tcase, temporary);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    const int failures = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failures != 0;
}
