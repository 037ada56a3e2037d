/* stream.c - see stream.h.
 *
 * Happy path: open (dataset -> sampler -> plan -> budgets -> staging, made on a worker) -> running: its sites open;
 * reserve, fill, place in order at every active site, the last copy and the last lease on the host end, again -> ended
 * -> closed by the group (cancel, wait for what is in flight, close the sites, free on a worker).
 * What can fail: anything while opening, a sample while running: the group's members are told and leave. A failing
 * stream touches no other, and a failing site none of the stream's other sites.
 * A batch is placed when every active site has a free placement for it. That leaves none of them waiting for another
 * for good: what members hold at one site lies among the depth - 1 batches before the next one there (group.c). */
#include "stream.h"

#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "ensure.h"
#include "error.h"
#include "gpu.h"
#include "group.h"
#include "log.h"
#include "pipeline.h"
#include "sample.h"
#include "site.h"

const struct sm_state stream_states[] = {
    [STREAM_OPENING] = {"opening", SM(STREAM_RUNNING) | SM(STREAM_FAILED) | SM(STREAM_CLOSING)},
    [STREAM_RUNNING] = {"running", SM(STREAM_ENDED) | SM(STREAM_FAILED) | SM(STREAM_CLOSING)},
    [STREAM_ENDED] = {"ended", SM(STREAM_CLOSING)},
    [STREAM_FAILED] = {"failed", SM(STREAM_CLOSING)},
    [STREAM_CLOSING] = {"closing", SM(STREAM_CLOSED)},
    [STREAM_CLOSED] = {"closed", 0},
};

static struct pipeline *pipeline_of(const struct stream *stream)
{
    return stream->group->pipeline;
}

/* ---- closing ---- */

static void stream_free(struct stream *stream)
{
    if (stream->batches != NULL) {
        free(stream->batches[0].index); /* one block for all */
        free(stream->batches[0].flags);
    }
    free(stream->batches);
    free(stream->free_staging);
    free(stream->by_seq);
    free(stream);
}

static void closed(struct inbox_item *item)
{
    struct stream *stream = container_of(item, struct stream, task.done);
    struct group *group = stream->group;
    struct dataset *dataset = stream->spec.dataset;
    sm_move(stream_states, &stream->state, STREAM_CLOSED);
    group->pipeline->ring_bytes -= stream->staging_bytes;
    group->pipeline->pinned_bytes -= stream->pinned_bytes;
    if (stream->reader != NULL)
        dataset_release(dataset);
    log_info("stream %llu (%s): closed after %llu batches", (unsigned long long)stream->number, dataset->config->name,
             (unsigned long long)stream->stats.batches);
    stream_free(stream);
    group_stream_closed(group);
}

static void free_staging_on_worker(struct pool_task *task)
{
    staging_free(container_of(task, struct stream, task)->staging);
}

/* Closing goes on when no worker writes to the staging any more, and every site has gone. */
static void close_when_quiet(struct stream *stream)
{
    if (stream->stepping || stream->filling > 0 || !list_empty(&stream->sites))
        return;
    stream->task = (struct pool_task){.work = free_staging_on_worker, .done = {.run = closed}};
    pool_task_add(pipeline_of(stream)->pool, &stream->task);
}

void stream_close(struct stream *stream)
{
    sm_move(stream_states, &stream->state, STREAM_CLOSING);
    atomic_store(&stream->cancelled, true);
    list_each (node, after, &stream->sites)
        site_close(container_of(node, struct site, node));
    close_when_quiet(stream);
}

void stream_site_closed(struct stream *stream)
{
    if (stream->state == STREAM_CLOSING)
        close_when_quiet(stream);
}

/* ---- running ---- */

bool stream_is_open(const struct stream *stream)
{
    return stream->state == STREAM_RUNNING;
}

static void failed(struct inbox_item *item)
{
    struct stream *stream = container_of(item, struct stream, failed);
    if (stream->state == STREAM_FAILED) /* else all members have left meanwhile */
        group_failed(stream->group, &stream->failure);
}

void stream_fail(struct stream *stream, const struct feedd_error *err)
{
    sm_move(stream_states, &stream->state, STREAM_FAILED);
    atomic_store(&stream->cancelled, true);
    /* Members leave when they are told; not from within, a release of one of them may have led here. The item runs
     * before the stream is freed: that takes a task, which reports later. */
    stream->failure = *err;
    stream->failed.run = failed;
    inbox_post(&pipeline_of(stream)->inbox, &stream->failed);
}

void stream_tick(struct stream *stream, uint64_t now_ns)
{
    if (stream->rate.tick_ns == 0 || now_ns <= stream->rate.tick_ns) /* not running yet */
        return;
    list_each (node, after, &stream->sites)
        site_tick(container_of(node, struct site, node), now_ns, now_ns - stream->rate.tick_ns);
    double span_ns = (double)(now_ns - stream->rate.tick_ns);
    uint64_t fill_ns = atomic_load_explicit(&stream->fill_ns, memory_order_relaxed);
    stream->rate.batches_s = (double)(stream->stats.batches - stream->rate.batches) * 1e9 / span_ns;
    stream->rate.samples_s = (double)(stream->stats.samples - stream->rate.samples) * 1e9 / span_ns;
    stream->rate.workers = (double)(fill_ns - stream->rate.fill_ns) / span_ns;
    stream->rate.tick_ns = now_ns;
    stream->rate.batches = stream->stats.batches;
    stream->rate.samples = stream->stats.samples;
    stream->rate.fill_ns = fill_ns;
}

void stream_worker_stuck(struct batch *batch, uint32_t ms)
{
    struct stream *stream = batch->stream;
    struct feedd_error err;
    if (stream->state != STREAM_RUNNING)
        return;
    error_set(&err, FEEDD_E_IO,
              "reading a sample of batch %llu (epoch %llu, position %llu) takes more than %u ms: the "
              "file system doesn't answer",
              (unsigned long long)batch->seq, (unsigned long long)batch->plan.epoch,
              (unsigned long long)batch->plan.position, ms);
    stream_fail(stream, &err);
}

/* How many bad samples an epoch may have: 0.1 % of what this rank gets of it, and at least 10. */
static uint64_t error_budget(const struct stream *stream)
{
    uint64_t budget = stream->sampler.sample_count / stream->spec.order.world_size / 1000;
    return budget > 10 ? budget : 10;
}

/* Counts in the order of the batches, so that a stream that has to end does so at the same one in every run.
 * @return false: that was too much, and the stream has failed */
static bool count_bad(struct stream *stream, const struct batch *batch)
{
    uint32_t bad = atomic_load_explicit(&batch->bad, memory_order_relaxed);
    if (batch->plan.epoch != stream->bad_epoch)
        stream->bad = 0;
    stream->bad_epoch = batch->plan.epoch;
    stream->bad += bad;
    if (bad == 0 || stream->bad <= error_budget(stream))
        return true;
    struct feedd_error err;
    error_set(&err, FEEDD_E_CORRUPT, "%llu bad samples in epoch %llu, and %llu are tolerated; one of them: %.900s",
              (unsigned long long)stream->bad, (unsigned long long)batch->plan.epoch,
              (unsigned long long)error_budget(stream), batch->error.message);
    stream_fail(stream, &err);
    return false;
}

void stream_hold_end(struct stream *stream, struct batch *batch)
{
    if (--batch->holds > 0)
        return;
    sm_move(batch_states, &batch->state, BATCH_FREE);
    stream->free_staging[stream->free_count++] = batch->staging;
}

/* Gives free staging slots to the workers for the steps that come next. */
static void reserve_next(struct stream *stream)
{
    while (stream->free_count > 0 && !stream->exhausted) {
        struct batch *batch = &stream->batches[stream->free_staging[stream->free_count - 1]];
        if (!sampler_batch(&stream->sampler, stream->next_reserve, &batch->plan)) {
            stream->exhausted = true;
            return;
        }
        stream->free_count--;
        stream->filling++;
        stream->by_seq[stream->next_reserve % stream->depth] = batch;
        batch_reserve(batch, stream->next_reserve++);
    }
}

void stream_batch_published(struct stream *stream, struct batch *batch, uint64_t now_ns)
{
    if (batch->time_ns[FEEDD_TIME_READY] != 0) /* at another site */
        return;
    batch->time_ns[FEEDD_TIME_READY] = now_ns;
    stream->stats.batches++;
    stream->stats.samples += batch->plan.valid;
    stream->stats.latency_ns += now_ns - batch->time_ns[FEEDD_TIME_RESERVED];
}

static bool sites_have_room(const struct stream *stream)
{
    list_each (node, after, &stream->sites) {
        const struct site *site = container_of(node, struct site, node);
        if (site_is_active(site) && !site_has_room(site))
            return false;
    }
    return true;
}

static void place(struct stream *stream, struct batch *batch)
{
    sm_move(batch_states, &batch->state, BATCH_PLACED);
    batch->holds = 1; /* while it is handed out */
    list_each (node, after, &stream->sites) {
        struct site *site = container_of(node, struct site, node);
        if (site_is_active(site))
            site_place(site, batch);
    }
    stream->next_epoch = batch->plan.next_epoch;
    stream->next_position = batch->plan.next_position;
    stream_hold_end(stream, batch);
}

/* Places batches in order, as far as they are filled: copies to one site end in the order in which they began, so that
 * they are published there in order, too. */
static void place_next(struct stream *stream)
{
    while (group_may_publish(stream->group)) {
        struct batch *batch = stream->by_seq[stream->next_place % stream->depth];
        if (batch == NULL || batch->seq != stream->next_place || batch->state != BATCH_FILLED)
            return;
        if (!sites_have_room(stream) || !count_bad(stream, batch))
            return;
        stream->by_seq[stream->next_place++ % stream->depth] = NULL;
        stream->filled--;
        place(stream, batch);
    }
}

void stream_advance(struct stream *stream)
{
    if (stream->state != STREAM_RUNNING || pipeline_of(stream)->stopping)
        return;
    place_next(stream);
    if (stream->state != STREAM_RUNNING) /* it has failed */
        return;
    reserve_next(stream);
    if (stream->exhausted && stream->next_place == stream->next_reserve && stream->filling == 0 &&
        stream->copying == 0) {
        sm_move(stream_states, &stream->state, STREAM_ENDED);
        group_ended(stream->group);
    }
}

void stream_batch_filled(struct stream *stream, struct batch *batch)
{
    stream->filling--;
    if (stream->state == STREAM_CLOSING) {
        close_when_quiet(stream);
        return;
    }
    if (stream->state != STREAM_RUNNING)
        return;
    if (atomic_load_explicit(&batch->status, memory_order_relaxed) != 0) {
        sm_move(batch_states, &batch->state, BATCH_FAILED);
        stream_fail(stream, &batch->error);
        return;
    }
    sm_move(batch_states, &batch->state, BATCH_FILLED);
    batch->time_ns[FEEDD_TIME_FIRST_JOB] = atomic_load_explicit(&batch->first_job_ns, memory_order_relaxed);
    batch->time_ns[FEEDD_TIME_FILLED] = clock_ns();
    stream->filled++;
    stream_advance(stream);
}

/* ---- opening ---- */

static int allocate(struct stream *stream, struct feedd_error *err)
{
    uint32_t depth = stream->depth, batch_size = stream->spec.order.batch_size;
    int64_t *index = calloc((size_t)depth * batch_size, sizeof(*index));
    uint32_t *flags = calloc((size_t)depth * batch_size, sizeof(*flags));
    stream->batches = calloc(depth, sizeof(*stream->batches));
    stream->free_staging = calloc(depth, sizeof(*stream->free_staging));
    stream->by_seq = calloc(depth, sizeof(*stream->by_seq));
    if (index == NULL || flags == NULL || stream->batches == NULL || stream->free_staging == NULL ||
        stream->by_seq == NULL) {
        free(index);
        free(flags);
        free(stream->batches);
        stream->batches = NULL;
        return error_set(err, FEEDD_E_MEMORY, "no memory for the books of %u batches of %u samples", depth, batch_size);
    }
    for (uint32_t i = 0; i < depth; i++) {
        struct batch *batch = &stream->batches[i];
        batch->stream = stream;
        batch->staging = i;
        batch->state = BATCH_FREE;
        batch->index = index + (size_t)i * batch_size;
        batch->flags = flags + (size_t)i * batch_size;
        stream->free_staging[depth - 1 - i] = i;
    }
    stream->free_count = depth;
    return 0;
}

/* A step of opening has ended: a worker's, or the dataset's. @return false: the stream is closing */
static bool step_ended(struct stream *stream)
{
    stream->stepping = false;
    if (stream->state == STREAM_CLOSING)
        close_when_quiet(stream);
    return stream->state == STREAM_OPENING;
}

static void step(struct stream *stream, void (*work)(struct pool_task *task), void (*done)(struct inbox_item *item))
{
    stream->stepping = true;
    stream->task = (struct pool_task){.work = work, .done = {.run = done}};
    pool_task_add(pipeline_of(stream)->pool, &stream->task);
}

void stream_open_sites(struct stream *stream)
{
    list_each (node, after, &stream->sites) {
        struct site *site = container_of(node, struct site, node);
        if (site->state == SITE_WAITING)
            site_open(site);
    }
}

static void staging_made(struct inbox_item *item)
{
    struct stream *stream = container_of(item, struct stream, task.done);
    if (!step_ended(stream))
        return;
    int status = stream->task_status;
    if (status == 0)
        status = allocate(stream, &stream->task_error);
    if (status != 0) {
        stream_fail(stream, &stream->task_error);
        return;
    }
    sm_move(stream_states, &stream->state, STREAM_RUNNING);
    stream->rate.tick_ns = clock_ns();
    stream->next_epoch = stream->sampler.spec.start_epoch;
    stream->next_position = stream->sampler.spec.start_position;
    stream_open_sites(stream);
}

static void make_staging_on_worker(struct pool_task *task)
{
    struct stream *stream = container_of(task, struct stream, task);
    stream->task_status =
        staging_new(&stream->plan.layout, stream->depth, stream->queue.node, &stream->staging, &stream->task_error);
}

int stream_check_budget(const struct stream *stream, const char *limit_name, uint64_t bytes, uint64_t taken,
                        uint64_t limit, struct feedd_error *err)
{
    if (bytes <= limit && taken <= limit - bytes)
        return 0;
    return error_set(err, FEEDD_E_MEMORY, "a ring of %u batches of %u needs %llu bytes; %llu of %s are free",
                     stream->depth, stream->spec.order.batch_size, (unsigned long long)bytes,
                     (unsigned long long)(limit > taken ? limit - taken : 0), limit_name);
}

/* What the batches look like is known: is there room for them? */
static int reserve_memory(struct stream *stream, struct feedd_error *err)
{
    struct pipeline *pipeline = pipeline_of(stream);
    const struct slot_layout *layout = &stream->plan.layout;
    struct slot_layout placed;
    int status = site_layout(&stream->plan, &placed, err);
    if (status != 0)
        return status;
    const uint64_t slot_bytes = placed.slot_bytes > layout->slot_bytes ? placed.slot_bytes : layout->slot_bytes;
    stream->depth = stream->spec.depth != 0 ? stream->spec.depth : slot_depth_rule(slot_bytes);
    const uint64_t staging = slot_ring_bytes(layout, stream->depth);
    const uint64_t records = slot_meta_bytes(layout, stream->depth); /* of one site at least, which takes them */
    status = stream_check_budget(stream, "ring_memory_max", staging + records, pipeline->ring_bytes,
                                 pipeline->limits.ring_memory_max, err);
    if (status == 0)
        pipeline->ring_bytes += stream->staging_bytes = staging;
    return status;
}

/* The same for the sites: one that there is no room for fails before anything is allocated. */
static void reserve_sites(struct stream *stream)
{
    struct feedd_error err;
    list_each (node, after, &stream->sites) {
        struct site *site = container_of(node, struct site, node);
        if (site->state == SITE_WAITING && site_reserve(site, &err) != 0)
            site_fail(site, &err);
    }
}

/* The node that its batches are read from: the first GPU's, or -1. */
static int choose_node(const struct stream *stream)
{
    if (!pipeline_of(stream)->limits.numa)
        return -1;
    list_each (node, after, &stream->sites) {
        const struct gpu *gpu = container_of(node, struct site, node)->gpu;
        if (gpu != NULL)
            return gpu->node;
    }
    return -1;
}

static void planned(struct inbox_item *item)
{
    struct stream *stream = container_of(item, struct stream, task.done);
    if (!step_ended(stream))
        return;
    int status = stream->task_status;
    if (status == 0)
        status = reserve_memory(stream, &stream->task_error);
    if (status != 0) {
        stream_fail(stream, &stream->task_error);
        return;
    }
    reserve_sites(stream);
    if (stream->state != STREAM_OPENING) /* with its last site the last member has left */
        return;
    stream->queue.node = choose_node(stream);
    step(stream, make_staging_on_worker, staging_made);
}

static void plan_on_worker(struct pool_task *task)
{
    struct stream *stream = container_of(task, struct stream, task);
    struct sample_scratch *scratch = sample_scratch_new();
    stream->plan.reader = stream->reader;
    stream->plan.transform = stream->spec.transform;
    stream->plan.limits = pipeline_of(stream)->limits.image;
    stream->plan.seed = stream->spec.order.seed;
    stream->plan.output = stream->spec.output;
    stream->task_status =
        scratch == NULL ? error_set(&stream->task_error, FEEDD_E_MEMORY, "no memory for a stream")
                        : sample_plan_init(&stream->plan, stream->spec.order.batch_size, scratch, &stream->task_error);
    sample_scratch_free(scratch);
}

/* The dataset is open: does the spec make sense for it? */
static int check_spec(struct stream *stream, struct feedd_error *err)
{
    const struct stream_spec *spec = &stream->spec;
    const struct dataset_selection *selection = &spec->dataset->selections[spec->selection];
    if (spec->has_fingerprint &&
        (spec->fingerprint != selection->fingerprint || spec->sample_count != selection->count))
        return error_set(
            err, FEEDD_E_TOKEN,
            "the resume token is of another dataset: %llu samples, fingerprint %016llx; %s has %llu, %016llx",
            (unsigned long long)spec->sample_count, (unsigned long long)spec->fingerprint, spec->dataset->config->name,
            (unsigned long long)selection->count, (unsigned long long)selection->fingerprint);
    stream->indices = selection->indices;
    return sampler_init(&stream->sampler, &spec->order, selection->count, err);
}

static void dataset_opened(struct stream *stream)
{
    stream->reader = stream->spec.dataset->reader; /* from here on a user of the dataset */
    if (!step_ended(stream))
        return;
    struct feedd_error err;
    if (check_spec(stream, &err) != 0) {
        stream_fail(stream, &err);
        return;
    }
    step(stream, plan_on_worker, planned);
}

static void dataset_ready(struct dataset_waiter *waiter, int status, const struct feedd_error *err)
{
    struct stream *stream = container_of(waiter, struct stream, waiter);
    if (status == 0)
        dataset_opened(stream);
    else if (step_ended(stream))
        stream_fail(stream, err);
}

static void dataset_was_open(struct inbox_item *item)
{
    dataset_opened(container_of(item, struct stream, task.done));
}

int stream_open(struct group *group, const struct stream_spec *spec, struct stream **out, struct feedd_error *err)
{
    struct stream *stream = calloc(1, sizeof(*stream));
    if (stream == NULL)
        return error_set(err, FEEDD_E_MEMORY, "no memory for a stream of %s", spec->dataset->config->name);
    stream->spec = *spec;
    stream->group = group;
    stream->number = ++group->pipeline->stream_count;
    stream->state = STREAM_OPENING;
    stream->stepping = true;
    list_init(&stream->sites);
    pool_queue_init(&stream->queue);
    stream->waiter.ready = dataset_ready;
    if (dataset_acquire(spec->dataset, &stream->waiter)) {
        stream->task.done.run = dataset_was_open; /* not from within: the group isn't whole yet */
        inbox_post(&group->pipeline->inbox, &stream->task.done);
    }
    *out = stream;
    return 0;
}
