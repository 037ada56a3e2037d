/* verify.c - see verify.h.
 *
 * Happy path: open (the dataset, elsewhere) -> a task a worker, each taking sample after sample for RUN_NS: reader ->
 * pread -> codec by content -> probe -> the whole image decoded -> counted -> the loop merges what a task has found and
 * gives it to the pool again -> no sample is left -> ended.
 * What can fail: the dataset (it doesn't open), memory, a file system that doesn't answer or reads nothing any more:
 * the verification fails. A sample that is damaged, too large, of no known kind, gone, or that can't be read in three
 * tries, is a bad one. Threads: check_run() and what it calls are for workers; all else is the loop's. */
#include "verify.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "decoder.h"
#include "ensure.h"
#include "error.h"
#include "pipeline.h"
#include "scratch.h"

#define RUN_NS     10000000u /* what one task is worth: streams wait so long for a worker, but for a slow sample */
#define CHANNELS   3u
#define PATH_SHOWN 500 /* bytes of a path in an error: the reason has to fit behind it */

const struct sm_state verify_states[] = {
    [VERIFY_OPENING] = {"opening", SM(VERIFY_RUNNING) | SM(VERIFY_FAILED) | SM(VERIFY_CLOSING)},
    [VERIFY_RUNNING] = {"running", SM(VERIFY_ENDED) | SM(VERIFY_FAILED) | SM(VERIFY_CLOSING)},
    [VERIFY_ENDED] = {"ended", SM(VERIFY_CLOSING)},
    [VERIFY_FAILED] = {"failed", SM(VERIFY_CLOSING)},
    [VERIFY_CLOSING] = {"closing", 0},
};

struct verify_run {
    struct pool_task task;
    struct verify *verify;
    _Atomic uint64_t index; /* of the sample it is at, in the dataset */
    struct list bad_list;   /* found, and not merged yet; the worker's, then the loop's */
    int status;             /* why it can't go on */
    struct feedd_error error;
};

/* ---- workers ---- */

/* Of one task: made as it goes, given back at its end. */
struct scratch {
    struct decoder *decoders[DECODER_COUNT];
    struct scratch_buffer encoded, decoded;
};

static void scratch_done(struct scratch *scratch)
{
    scratch_decoders_free(scratch->decoders);
    free(scratch->encoded.bytes);
    free(scratch->decoded.bytes);
}

static int decode_whole(struct scratch *scratch, uint64_t pixels_max, struct blob in, struct feedd_error *err)
{
    struct image_info image;
    struct decoder *decoder;
    int status = scratch_decoder(scratch->decoders, pixels_max, in, &decoder, err);
    if (status == 0)
        status = decoder->ops->probe(decoder, in, &image, err);
    if (status != 0)
        return status;
    const struct decode_spec whole = {
        .crop = {0, 0, image.width, image.height}, .channels = CHANNELS, .mode = DECODE_EXACT, .shrink = 1};
    size_t stride = (size_t)image.width * CHANNELS;
    status = scratch_reserve(&scratch->decoded, stride * image.height, err);
    return status == 0 ? decoder->ops->decode(decoder, in, &whole, scratch->decoded.bytes, stride, err) : status;
}

/* @param sample  its label is set where the reader knows it
 * @return 0; FEEDD_E_MEMORY; FEEDD_E_IO (trying again may help); anything else: the sample is bad */
static int examine(struct verify *verify, struct scratch *scratch, uint64_t index, struct reader_sample *sample,
                   struct feedd_error *err)
{
    const struct sample_limits *limits = &verify->pipeline->limits.image;
    int status = verify->reader->ops->read(verify->reader, index, sample, err);
    if (status != 0 || sample->pixels != NULL)
        return status;
    status = scratch_read(&scratch->encoded, sample, limits->encoded_bytes, err);
    close(sample->fd);
    if (status != 0)
        return status;
    atomic_fetch_add_explicit(&verify->bytes, sample->size, memory_order_relaxed);
    return decode_whole(scratch, limits->pixels, (struct blob){scratch->encoded.bytes, sample->size}, err);
}

/* As streams do: I/O errors may pass, the file system is asked three times. */
static int examine_patiently(struct verify *verify, struct scratch *scratch, uint64_t index,
                             struct reader_sample *sample, struct feedd_error *err)
{
    static const long pause_ns[] = {10000000, 100000000};
    int status;
    for (size_t i = 0;; i++) {
        status = examine(verify, scratch, index, sample, err);
        if (status != FEEDD_E_IO || i == sizeof(pause_ns) / sizeof(pause_ns[0]))
            return status;
        nanosleep(&(struct timespec){0, pause_ns[i]}, NULL);
    }
}

/* Lists a bad sample, as long as there is room. @return 0; FEEDD_E_MEMORY and run->error */
static int keep_bad(struct verify_run *run, struct verify_bad bad, const char *path, const char *reason)
{
    struct verify *verify = run->verify;
    size_t path_bytes = strlen(path) + 1, reason_bytes = strlen(reason) + 1;
    size_t bytes = sizeof(bad) + path_bytes + reason_bytes;
    if (atomic_fetch_add(&verify->kept, 1) >= verify->errors_max ||
        atomic_fetch_add(&verify->kept_bytes, bytes) > VERIFY_KEPT_BYTES - bytes)
        return 0;
    struct verify_bad *kept = malloc(bytes);
    if (kept == NULL)
        return error_set(&run->error, FEEDD_E_MEMORY, "no memory for the list of bad samples");
    char *texts = (char *)(kept + 1);
    *kept = bad;
    kept->path = memcpy(texts, path, path_bytes);
    kept->reason = memcpy(texts + path_bytes, reason, reason_bytes);
    list_append(&run->bad_list, &kept->node);
    return 0;
}

static void count(struct verify *verify, int64_t label, bool is_bad)
{
    atomic_fetch_add(&verify->done, 1);
    if (is_bad)
        atomic_fetch_add(&verify->bad, 1);
    if (label < 0 || label >= verify->class_count)
        return;
    atomic_fetch_add_explicit(&verify->classes[label].samples, 1, memory_order_relaxed);
    if (is_bad)
        atomic_fetch_add_explicit(&verify->classes[label].bad, 1, memory_order_relaxed);
}

/* @return 0: it was good or bad; else run->error says why the verification can't go on */
static int check_sample(struct verify_run *run, struct scratch *scratch, uint64_t place)
{
    struct verify *verify = run->verify;
    struct reader_sample sample = {.fd = -1, .label = -1};
    struct feedd_error err;
    char path[PATH_MAX];
    uint64_t index = verify->indices != NULL ? verify->indices[place] : place;
    atomic_store_explicit(&run->index, index, memory_order_relaxed);
    int status = examine_patiently(verify, scratch, index, &sample, &err);
    if (status != 0)
        verify->reader->ops->path(verify->reader, index, path, sizeof(path));
    if (status == FEEDD_E_MEMORY)
        return error_set(&run->error, status, "%.*s: %s", PATH_SHOWN, path, err.message);
    if (status != FEEDD_E_IO)
        atomic_store_explicit(&verify->unreadable, 0, memory_order_relaxed);
    else if (atomic_fetch_add_explicit(&verify->unreadable, 1, memory_order_relaxed) >= VERIFY_UNREADABLE - 1)
        return error_set(&run->error, status, "%u samples one after the other can't be read; one of them: %.*s: %s",
                         VERIFY_UNREADABLE, PATH_SHOWN, path, err.message);
    count(verify, sample.label, status != 0);
    if (status == 0)
        return 0;
    return keep_bad(run, (struct verify_bad){.place = place, .index = index, .label = sample.label, .status = status},
                    path, err.message);
}

static void check_run(struct pool_task *task)
{
    struct verify_run *run = container_of(task, struct verify_run, task);
    struct verify *verify = run->verify;
    struct scratch scratch = {0};
    const uint64_t until_ns = clock_ns() + RUN_NS;
    while (run->status == 0 && clock_ns() < until_ns &&
           !atomic_load_explicit(&verify->cancelled, memory_order_relaxed)) {
        uint64_t place = atomic_fetch_add_explicit(&verify->next, 1, memory_order_relaxed);
        if (place >= verify->sample_count)
            break;
        run->status = check_sample(run, &scratch, place);
    }
    scratch_done(&scratch);
}

/* ---- the loop: closing ---- */

static void free_bad(struct list *bad_list)
{
    struct list *node;
    while ((node = list_take_first(bad_list)) != NULL)
        free(container_of(node, struct verify_bad, node));
}

static void verify_free(struct verify *verify)
{
    if (verify->reader != NULL)
        dataset_release(verify->dataset);
    if (verify->dataset != NULL)
        dataset_drop(verify->dataset);
    for (uint32_t i = 0; i < verify->run_count; i++)
        free_bad(&verify->runs[i].bad_list);
    free_bad(&verify->bad_list);
    free(verify->runs);
    free(verify->classes);
    free(verify);
}

void verify_close(struct verify *verify)
{
    bool opening = verify->state == VERIFY_OPENING;
    sm_move(verify_states, &verify->state, VERIFY_CLOSING);
    atomic_store(&verify->cancelled, true);
    if (!opening && verify->runs_out == 0) /* else who comes back last frees it */
        verify_free(verify);
}

void verify_cancel(struct verify *verify)
{
    ENSURE(verify->state == VERIFY_RUNNING);
    atomic_store(&verify->cancelled, true);
}

static void fail(struct verify *verify, const struct feedd_error *err)
{
    sm_move(verify_states, &verify->state, VERIFY_FAILED);
    atomic_store(&verify->cancelled, true);
    verify->on_event(verify, VERIFY_EVENT_FAILED, err); /* last: it may be closed, and gone */
}

/* ---- the loop: running ---- */

/* Into the list, in the selection's order: runs are a few samples apart. */
static void merge_bad(struct verify *verify, struct verify_run *run)
{
    struct list *node;
    while ((node = list_take_first(&run->bad_list)) != NULL) {
        const struct verify_bad *bad = container_of(node, struct verify_bad, node);
        struct list *before = verify->bad_list.prev;
        while (before != &verify->bad_list && container_of(before, struct verify_bad, node)->place > bad->place)
            before = before->prev;
        list_append(before->next, node); /* behind `before` */
    }
}

static bool has_more(struct verify *verify)
{
    return verify->state == VERIFY_RUNNING && !atomic_load(&verify->cancelled) &&
           atomic_load_explicit(&verify->next, memory_order_relaxed) < verify->sample_count;
}

static void run_done(struct inbox_item *item)
{
    struct verify_run *run = container_of(item, struct verify_run, task.done);
    struct verify *verify = run->verify;
    merge_bad(verify, run);
    verify->runs_out--;
    if (verify->state == VERIFY_CLOSING) {
        if (verify->runs_out == 0)
            verify_free(verify);
    } else if (verify->state == VERIFY_RUNNING && run->status != 0) {
        fail(verify, &run->error);
    } else if (has_more(verify)) {
        verify->runs_out++;
        pool_task_add(verify->pipeline->pool, &run->task);
        verify->on_event(verify, VERIFY_EVENT_PROGRESS, NULL);
    } else if (verify->state == VERIFY_RUNNING && verify->runs_out == 0) {
        sm_move(verify_states, &verify->state, VERIFY_ENDED);
        verify->ended_ns = clock_ns();
        verify->on_event(verify, VERIFY_EVENT_ENDED, NULL);
    }
}

static void run_stuck(struct pool_task *task, uint32_t ms)
{
    struct verify_run *run = container_of(task, struct verify_run, task);
    struct verify *verify = run->verify;
    struct feedd_error err;
    char path[PATH_SHOWN];
    if (verify->state != VERIFY_RUNNING)
        return;
    verify->reader->ops->path(verify->reader, atomic_load_explicit(&run->index, memory_order_relaxed), path,
                              sizeof(path));
    error_set(&err, FEEDD_E_IO, "%s: reading it takes more than %u ms: the file system doesn't answer", path, ms);
    fail(verify, &err);
}

static int allocate(struct verify *verify, struct feedd_error *err)
{
    uint32_t count = pool_worker_count(verify->pipeline->pool);
    uint32_t classes = verify->reader->class_count;
    verify->class_count = classes <= VERIFY_CLASSES_MAX ? classes : 0;
    verify->runs = calloc(count, sizeof(*verify->runs));
    verify->classes = verify->class_count > 0 ? calloc(verify->class_count, sizeof(*verify->classes)) : NULL;
    if (verify->runs == NULL || (verify->class_count > 0 && verify->classes == NULL))
        return error_set(err, FEEDD_E_MEMORY, "no memory for counts of %u classes", verify->class_count);
    verify->run_count = count;
    for (uint32_t i = 0; i < count; i++) {
        struct verify_run *run = &verify->runs[i];
        run->verify = verify;
        run->task =
            (struct pool_task){.work = check_run, .done = {.run = run_done}, .stuck = run_stuck, .background = true};
        list_init(&run->bad_list);
    }
    return 0;
}

/* ---- the loop: opening ---- */

static void dataset_opened(struct verify *verify)
{
    verify->reader = verify->dataset->reader; /* from here on a user of the dataset */
    if (verify->state == VERIFY_CLOSING) {
        verify_free(verify);
        return;
    }
    const struct dataset_selection *selection = &verify->dataset->selections[verify->selection];
    verify->indices = selection->indices;
    verify->sample_count = selection->count;
    struct feedd_error err;
    if (allocate(verify, &err) != 0) {
        fail(verify, &err);
        return;
    }
    sm_move(verify_states, &verify->state, VERIFY_RUNNING);
    verify->began_ns = clock_ns();
    verify->runs_out = verify->run_count;
    for (uint32_t i = 0; i < verify->run_count; i++)
        pool_task_add(verify->pipeline->pool, &verify->runs[i].task);
    verify->on_event(verify, VERIFY_EVENT_PROGRESS, NULL);
}

static void dataset_ready(struct dataset_waiter *waiter, int status, const struct feedd_error *err)
{
    struct verify *verify = container_of(waiter, struct verify, waiter);
    if (status == 0) {
        dataset_opened(verify);
        return;
    }
    verify->dataset->holders--; /* not dataset_drop(): the dataset is telling others, too, and then looks itself */
    verify->dataset = NULL;
    if (verify->state == VERIFY_CLOSING)
        verify_free(verify);
    else
        fail(verify, err);
}

static void dataset_was_open(struct inbox_item *item)
{
    dataset_opened(container_of(item, struct verify, opened));
}

int verify_open(struct pipeline *pipeline, struct dataset *dataset, uint32_t selection, uint32_t errors_max,
                verify_event_fn *on_event, void *arg, struct verify **out, struct feedd_error *err)
{
    struct verify *verify = calloc(1, sizeof(*verify));
    if (verify == NULL)
        return error_set(err, FEEDD_E_MEMORY, "no memory to verify %s", dataset->config->name);
    verify->pipeline = pipeline;
    verify->dataset = dataset;
    verify->selection = selection;
    verify->errors_max = errors_max;
    verify->on_event = on_event;
    verify->arg = arg;
    verify->state = VERIFY_OPENING;
    list_init(&verify->bad_list);
    dataset_hold(dataset);
    verify->waiter.ready = dataset_ready;
    if (dataset_acquire(dataset, &verify->waiter)) {
        verify->opened.run = dataset_was_open; /* not from within: the owner isn't whole yet */
        inbox_post(&pipeline->inbox, &verify->opened);
    }
    *out = verify;
    return 0;
}
