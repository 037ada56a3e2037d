/* stream.c - see stream.h.
 *
 * Happy path: open (dataset -> sampler -> budget -> ring, made on a worker) -> running: reserve, fill, place in order,
 * publish, lease ends, again -> ended -> closed by the group (cancel, wait for what is in flight, free on a worker).
 * What can fail: anything while opening, a sample while running: the group's members are told and leave. A failing
 * stream touches no other. */
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
    free(stream->placements);
    free(stream->free_staging);
    free(stream->by_seq);
    free(stream);
}

static void release_memory(struct stream *stream)
{
    pipeline_of(stream)->ring_bytes -= stream->ring_bytes;
    pipeline_of(stream)->pinned_bytes -= stream->pinned_bytes;
    if (stream->spec.gpu != NULL)
        stream->spec.gpu->reserved_bytes -= stream->gpu_bytes;
}

static void closed(struct inbox_item *item)
{
    struct stream *stream = container_of(item, struct stream, task.done);
    struct group *group = stream->group;
    struct dataset *dataset = stream->spec.dataset;
    sm_move(stream_states, &stream->state, STREAM_CLOSED);
    release_memory(stream);
    if (stream->reader != NULL)
        dataset_release(dataset);
    log_info("stream %llu (%s): closed after %llu batches", (unsigned long long)stream->number, dataset->config->name,
             (unsigned long long)stream->stats.batches);
    stream_free(stream);
    group_stream_closed(group);
}

static void free_ring_on_worker(struct pool_task *task)
{
    struct stream *stream = container_of(task, struct stream, task);
    if (stream->ring != NULL)
        stream->ring->ops->ring_free(stream->ring);
}

/* Closing goes on when neither a worker nor a copy engine touches the ring any more. */
static void close_when_quiet(struct stream *stream)
{
    if (stream->in_flight > 0)
        return;
    stream->task = (struct pool_task){.work = free_ring_on_worker, .done = {.run = closed}};
    pool_task_add(pipeline_of(stream)->pool, &stream->task);
}

void stream_close(struct stream *stream)
{
    bool opening = stream->state == STREAM_OPENING;
    sm_move(stream_states, &stream->state, STREAM_CLOSING);
    atomic_store(&stream->cancelled, true);
    if (!opening) /* else the step that is under way finds the stream closing when it ends */
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

/* Changes the count of ready slots, and keeps its sum over time. */
static void ready_change(struct stream *stream, int change, uint64_t now_ns)
{
    stream->stats.ready_ns += stream->ready * (now_ns - stream->stats.ready_since_ns);
    stream->stats.ready_since_ns = now_ns;
    stream->ready += (uint32_t)change;
}

void stream_tick(struct stream *stream, uint64_t now_ns)
{
    if (stream->rate.tick_ns == 0 || now_ns <= stream->rate.tick_ns) /* not running yet */
        return;
    ready_change(stream, 0, now_ns);
    double span_ns = (double)(now_ns - stream->rate.tick_ns);
    uint64_t fill_ns = atomic_load_explicit(&stream->fill_ns, memory_order_relaxed);
    stream->rate.batches_s = (double)(stream->stats.batches - stream->rate.batches) * 1e9 / span_ns;
    stream->rate.samples_s = (double)(stream->stats.samples - stream->rate.samples) * 1e9 / span_ns;
    stream->rate.ready = (double)(stream->stats.ready_ns - stream->rate.ready_ns) / span_ns;
    stream->rate.workers = (double)(fill_ns - stream->rate.fill_ns) / span_ns;
    stream->rate.tick_ns = now_ns;
    stream->rate.batches = stream->stats.batches;
    stream->rate.samples = stream->stats.samples;
    stream->rate.ready_ns = stream->stats.ready_ns;
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

static void staging_free(struct stream *stream, struct batch *batch)
{
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
        stream->in_flight++;
        stream->by_seq[stream->next_reserve % stream->depth] = batch;
        batch_reserve(batch, stream->next_reserve++);
    }
}

static void write_record(const struct stream *stream, const struct batch *batch)
{
    const struct slot_layout *layout = &stream->ring->spec.layout;
    struct slot_record *record = slot_record_at(stream->ring->meta, layout, batch->placement);
    const struct sampler_batch *plan = &batch->plan;
    record->seq = batch->seq;
    record->epoch = plan->epoch;
    record->position = plan->position;
    record->next_epoch = plan->next_epoch;
    record->next_position = plan->next_position;
    record->count = plan->count;
    record->valid = plan->valid;
    record->used_bytes = slot_used_bytes(layout, plan->count);
    memcpy(record->time_ns, batch->time_ns, sizeof(record->time_ns));
    for (uint32_t i = 0; i < layout->field_count; i++)
        record->extents[i] =
            (struct slot_extent){layout->fields[i].offset, layout->fields[i].sample_bytes * plan->count};
    memcpy(slot_record_index(record), batch->index, plan->count * sizeof(*batch->index));
    memcpy(slot_record_flags(record, layout->batch_size), batch->flags, plan->count * sizeof(*batch->flags));
}

static void placement_free(struct stream *stream, uint32_t slot)
{
    sm_move(placement_states, &stream->placements[slot].state, PLACEMENT_FREE);
    ready_change(stream, -1, clock_ns());
    if (stream->ring->ops->placement_is_staging)
        staging_free(stream, &stream->batches[slot]);
}

/* The bytes are where clients map them. */
static void publish(struct stream *stream, struct batch *batch)
{
    struct placement *placement = &stream->placements[batch->placement];
    uint64_t now_ns = clock_ns();
    batch->time_ns[FEEDD_TIME_READY] = now_ns;
    write_record(stream, batch);
    sm_move(placement_states, &placement->state, PLACEMENT_READY);
    ready_change(stream, 1, now_ns);
    stream->stats.batches++;
    stream->stats.samples += batch->plan.valid;
    stream->next_epoch = batch->plan.next_epoch;
    stream->next_position = batch->plan.next_position;
    stream->stats.latency_ns += now_ns - batch->time_ns[FEEDD_TIME_RESERVED];
    if (!stream->ring->ops->placement_is_staging)
        staging_free(stream, batch);
    placement->leases = group_publish(stream->group, batch->placement, batch);
    if (placement->leases == 0) /* all members wait for the next epoch */
        placement_free(stream, batch->placement);
}

static void copied(struct inbox_item *item)
{
    struct batch *batch = container_of(item, struct batch, copy.done);
    struct stream *stream = batch->stream;
    stream->in_flight--;
    if (stream->state == STREAM_CLOSING) {
        close_when_quiet(stream);
        return;
    }
    if (stream->state != STREAM_RUNNING)
        return;
    if (batch->copy.status != 0) {
        stream_fail(stream, &batch->copy.error);
        return;
    }
    batch->time_ns[FEEDD_TIME_COPIED] = batch->copy.done_ns;
    stream->stats.copied_bytes += batch->copy.bytes;
    publish(stream, batch);
    stream_advance(stream);
}

/* A placement for a batch: its own memory on the host, any free one on a device. @return false when none is free */
static bool take_placement(struct stream *stream, struct batch *batch)
{
    batch->placement = batch->staging;
    if (!stream->ring->ops->placement_is_staging) {
        batch->placement = 0;
        while (batch->placement < stream->depth && stream->placements[batch->placement].state != PLACEMENT_FREE)
            batch->placement++;
        if (batch->placement == stream->depth)
            return false;
    }
    struct placement *placement = &stream->placements[batch->placement];
    sm_move(placement_states, &placement->state, PLACEMENT_COPYING);
    placement->seq = batch->seq;
    return true;
}

/* Places batches in order, as far as they are filled: copies of one stream end in the order in which they began, so
 * that they are published in order too. */
static void place_next(struct stream *stream)
{
    while (group_may_publish(stream->group)) {
        struct batch *batch = stream->by_seq[stream->next_place % stream->depth];
        if (batch == NULL || batch->seq != stream->next_place || batch->state != BATCH_FILLED)
            return;
        if (!take_placement(stream, batch) || !count_bad(stream, batch))
            return;
        sm_move(batch_states, &batch->state, BATCH_PLACED);
        stream->by_seq[stream->next_place++ % stream->depth] = NULL;
        stream->filled--;
        if (stream->ring->ops->copy == NULL) {
            batch->time_ns[FEEDD_TIME_COPIED] = batch->time_ns[FEEDD_TIME_FILLED];
            publish(stream, batch);
            continue;
        }
        batch->copy.done.run = copied;
        stream->in_flight++;
        stream->ring->ops->copy(stream->ring, batch->staging, batch->placement,
                                slot_used_bytes(&stream->ring->spec.layout, batch->plan.count), &batch->copy);
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
    if (stream->exhausted && stream->next_place == stream->next_reserve && stream->in_flight == 0) {
        sm_move(stream_states, &stream->state, STREAM_ENDED);
        group_ended(stream->group);
    }
}

void stream_batch_filled(struct stream *stream, struct batch *batch)
{
    stream->in_flight--;
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

void stream_lease_end(struct stream *stream, uint32_t slot)
{
    struct placement *placement = &stream->placements[slot];
    struct slot_record *record = slot_record_at(stream->ring->meta, &stream->ring->spec.layout, slot);
    ENSURE(placement->state == PLACEMENT_READY && placement->leases > 0);
    uint64_t now_ns = clock_ns();
    if (record->time_ns[FEEDD_TIME_FIRST_RELEASE] == 0)
        record->time_ns[FEEDD_TIME_FIRST_RELEASE] = now_ns;
    if (--placement->leases > 0)
        return;
    record->time_ns[FEEDD_TIME_LAST_RELEASE] = now_ns;
    placement_free(stream, slot);
    stream_advance(stream);
}

/* ---- opening ---- */

static int allocate(struct stream *stream, struct feedd_error *err)
{
    uint32_t depth = stream->depth, batch_size = stream->spec.order.batch_size;
    int64_t *index = calloc((size_t)depth * batch_size, sizeof(*index));
    uint32_t *flags = calloc((size_t)depth * batch_size, sizeof(*flags));
    stream->batches = calloc(depth, sizeof(*stream->batches));
    stream->placements = calloc(depth, sizeof(*stream->placements));
    stream->free_staging = calloc(depth, sizeof(*stream->free_staging));
    stream->by_seq = calloc(depth, sizeof(*stream->by_seq));
    if (index == NULL || flags == NULL || stream->batches == NULL || stream->placements == NULL ||
        stream->free_staging == NULL || stream->by_seq == NULL) {
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
        stream->placements[i].state = PLACEMENT_FREE;
        stream->free_staging[depth - 1 - i] = i;
    }
    stream->free_count = depth;
    return 0;
}

/* A worker has ended one step of opening; `next` is what the loop has to do after it.
 * @return false when that was all: the stream is closing, or has failed */
static bool step_ended(struct stream *stream, int (*next)(struct stream *stream, struct feedd_error *err))
{
    if (stream->state == STREAM_CLOSING) {
        close_when_quiet(stream);
        return false;
    }
    int status = stream->task_status;
    if (status == 0)
        status = next(stream, &stream->task_error);
    if (status != 0)
        stream_fail(stream, &stream->task_error);
    return status == 0;
}

static void ring_made(struct inbox_item *item)
{
    struct stream *stream = container_of(item, struct stream, task.done);
    if (!step_ended(stream, allocate))
        return;
    sm_move(stream_states, &stream->state, STREAM_RUNNING);
    stream->stats.ready_since_ns = stream->rate.tick_ns = clock_ns();
    stream->next_epoch = stream->sampler.spec.start_epoch;
    stream->next_position = stream->sampler.spec.start_position;
    group_opened(stream->group); /* the last member may leave here: then the stream is closing */
    stream_advance(stream);
}

static void make_ring_on_worker(struct pool_task *task)
{
    struct stream *stream = container_of(task, struct stream, task);
    stream->task_status = stream->spec.backend->ring_new(&stream->ring_spec, &stream->ring, &stream->task_error);
}

/* @return whether `bytes` more fit under a limit of which `taken` are taken; else err says so */
static int check_budget(const struct stream *stream, const char *limit_name, uint64_t bytes, uint64_t taken,
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
    const struct pipeline_limits *limits = &pipeline->limits;
    struct gpu *gpu = stream->spec.gpu;
    struct ring_spec *ring = &stream->ring_spec;
    ring->gpu = gpu;
    ring->layout = stream->plan.layout;
    ring->depth = stream->depth =
        stream->spec.depth != 0 ? stream->spec.depth : slot_depth_rule(ring->layout.slot_bytes);
    uint64_t staging = slot_ring_bytes(&ring->layout, ring->depth);
    uint64_t host = staging + slot_meta_bytes(&ring->layout, ring->depth);
    uint64_t slab = gpu_slab_bytes(&ring->layout, ring->depth);
    int status = check_budget(stream, "ring_memory_max", host, pipeline->ring_bytes, limits->ring_memory_max, err);
    if (status == 0 && gpu != NULL)
        status = check_budget(stream, "pinned_max", staging, pipeline->pinned_bytes, limits->pinned_max, err);
    if (status == 0 && gpu != NULL)
        status = check_budget(stream, "gpu_memory_max", slab, gpu->reserved_bytes,
                              limits->gpu_memory_max != 0 ? limits->gpu_memory_max : gpu->memory_bytes / 2, err);
    if (status != 0)
        return status;
    pipeline->ring_bytes += stream->ring_bytes = host;
    if (gpu != NULL) {
        pipeline->pinned_bytes += stream->pinned_bytes = staging;
        gpu->reserved_bytes += stream->gpu_bytes = slab;
    }
    return 0;
}

static void planned(struct inbox_item *item)
{
    struct stream *stream = container_of(item, struct stream, task.done);
    if (!step_ended(stream, reserve_memory))
        return;
    stream->task = (struct pool_task){.work = make_ring_on_worker, .done = {.run = ring_made}};
    pool_task_add(pipeline_of(stream)->pool, &stream->task);
}

static void plan_on_worker(struct pool_task *task)
{
    struct stream *stream = container_of(task, struct stream, task);
    struct sample_scratch *scratch = sample_scratch_new();
    stream->plan.reader = stream->reader;
    stream->plan.transform = stream->spec.transform;
    stream->plan.limits = pipeline_of(stream)->limits.image;
    stream->plan.seed = stream->spec.order.seed;
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
    if (stream->state == STREAM_CLOSING) {
        close_when_quiet(stream);
        return;
    }
    struct feedd_error err;
    if (check_spec(stream, &err) != 0) {
        stream_fail(stream, &err);
        return;
    }
    stream->task = (struct pool_task){.work = plan_on_worker, .done = {.run = planned}};
    pool_task_add(pipeline_of(stream)->pool, &stream->task);
}

static void dataset_ready(struct dataset_waiter *waiter, int status, const struct feedd_error *err)
{
    struct stream *stream = container_of(waiter, struct stream, waiter);
    if (status == 0)
        dataset_opened(stream);
    else if (stream->state == STREAM_CLOSING)
        close_when_quiet(stream);
    else
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
    pool_queue_init(&stream->queue);
    stream->waiter.ready = dataset_ready;
    if (dataset_acquire(spec->dataset, &stream->waiter)) {
        stream->task.done.run = dataset_was_open; /* not from within: the group isn't whole yet */
        inbox_post(&group->pipeline->inbox, &stream->task.done);
    }
    *out = stream;
    return 0;
}
