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

static void closed(struct inbox_item *item)
{
    struct stream *stream = container_of(item, struct stream, task.done);
    struct group *group = stream->group;
    sm_move(stream_states, &stream->state, STREAM_CLOSED);
    pipeline_of(stream)->ring_bytes -= stream->ring_bytes;
    if (stream->reader != NULL)
        dataset_release(stream->spec.dataset);
    log_info("stream %llu (%s): closed after %llu batches", (unsigned long long)stream->number,
             stream->spec.dataset->config->name, (unsigned long long)stream->stats.batches);
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

static void fail(struct stream *stream, const struct feedd_error *err)
{
    sm_move(stream_states, &stream->state, STREAM_FAILED);
    atomic_store(&stream->cancelled, true);
    group_failed(stream->group, err);
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
    stream->stats.epoch = batch->plan.epoch;
    stream->stats.position = batch->plan.next_position;
    stream->stats.latency_ns += now_ns - batch->time_ns[FEEDD_TIME_RESERVED];
    if (!stream->ring->ops->placement_is_staging)
        staging_free(stream, batch);
    placement->leases = group_publish(stream->group, batch->placement, batch->seq);
}

static void advance(struct stream *stream);

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
        struct feedd_error err;
        error_set(&err, batch->copy.status, "copying batch %llu to the device failed", (unsigned long long)batch->seq);
        fail(stream, &err);
        return;
    }
    batch->time_ns[FEEDD_TIME_COPIED] = clock_ns();
    publish(stream, batch);
    advance(stream);
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
    for (;;) {
        struct batch *batch = stream->by_seq[stream->next_place % stream->depth];
        if (batch == NULL || batch->seq != stream->next_place || batch->state != BATCH_FILLED)
            return;
        if (!take_placement(stream, batch))
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
        int status = stream->ring->ops->copy(stream->ring, batch->staging, batch->placement,
                                             slot_used_bytes(&stream->ring->spec.layout, batch->plan.count),
                                             &batch->copy);
        ENSURE(status == 0); /* failures come by copy.status */
    }
}

static void advance(struct stream *stream)
{
    place_next(stream);
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
        fail(stream, &batch->error);
        return;
    }
    sm_move(batch_states, &batch->state, BATCH_FILLED);
    batch->time_ns[FEEDD_TIME_FIRST_JOB] = atomic_load_explicit(&batch->first_job_ns, memory_order_relaxed);
    batch->time_ns[FEEDD_TIME_FILLED] = clock_ns();
    stream->filled++;
    advance(stream);
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
    sm_move(placement_states, &placement->state, PLACEMENT_FREE);
    ready_change(stream, -1, now_ns);
    if (stream->ring->ops->placement_is_staging)
        staging_free(stream, &stream->batches[slot]);
    if (stream->state == STREAM_RUNNING)
        advance(stream);
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

static void ring_made(struct inbox_item *item)
{
    struct stream *stream = container_of(item, struct stream, task.done);
    if (stream->state == STREAM_CLOSING) {
        close_when_quiet(stream);
        return;
    }
    int status = stream->task_status;
    if (status == 0)
        status = allocate(stream, &stream->task_error);
    if (status != 0) {
        fail(stream, &stream->task_error);
        return;
    }
    sm_move(stream_states, &stream->state, STREAM_RUNNING);
    stream->stats.ready_since_ns = stream->rate.tick_ns = clock_ns();
    group_opened(stream->group); /* the last member may leave here: then the stream is closing */
    if (stream->state == STREAM_RUNNING)
        advance(stream);
}

static void make_ring_on_worker(struct pool_task *task)
{
    struct stream *stream = container_of(task, struct stream, task);
    stream->task_status = stream->spec.backend->ring_new(&stream->ring_spec, &stream->ring, &stream->task_error);
}

/* The dataset is open: what the spec means for it. */
static int plan(struct stream *stream, struct feedd_error *err)
{
    struct pipeline *pipeline = pipeline_of(stream);
    const struct stream_spec *spec = &stream->spec;
    const struct reader *reader = stream->reader;
    if (spec->has_fingerprint &&
        (spec->fingerprint != reader->fingerprint || spec->sample_count != reader->sample_count))
        return error_set(err, FEEDD_E_TOKEN,
                         "the resume token is of another dataset: %llu samples, fingerprint %016llx; %s has %llu, %016llx",
                         (unsigned long long)spec->sample_count, (unsigned long long)spec->fingerprint,
                         spec->dataset->config->name, (unsigned long long)reader->sample_count,
                         (unsigned long long)reader->fingerprint);
    int status = sampler_init(&stream->sampler, &spec->order, reader->sample_count, err);
    if (status != 0)
        return status;
    struct ring_spec *ring = &stream->ring_spec;
    status = sample_layout(reader, spec->order.batch_size, &ring->layout, err);
    if (status != 0)
        return status;
    ring->depth = stream->depth = spec->depth != 0 ? spec->depth : slot_depth_rule(ring->layout.slot_bytes);
    uint64_t bytes = slot_ring_bytes(&ring->layout, ring->depth) + slot_meta_bytes(&ring->layout, ring->depth);
    uint64_t limit = pipeline->limits.ring_memory_max;
    if (bytes > limit || pipeline->ring_bytes > limit - bytes)
        return error_set(err, FEEDD_E_MEMORY,
                         "a ring of %u batches of %u needs %llu bytes; %llu of ring_memory_max are free", ring->depth,
                         spec->order.batch_size, (unsigned long long)bytes,
                         (unsigned long long)(limit > pipeline->ring_bytes ? limit - pipeline->ring_bytes : 0));
    stream->ring_bytes = bytes;
    pipeline->ring_bytes += bytes;
    return 0;
}

static void dataset_opened(struct stream *stream)
{
    stream->reader = stream->spec.dataset->reader; /* from here on a user of the dataset */
    if (stream->state == STREAM_CLOSING) {
        close_when_quiet(stream);
        return;
    }
    struct feedd_error err;
    if (plan(stream, &err) != 0) {
        fail(stream, &err);
        return;
    }
    stream->task = (struct pool_task){.work = make_ring_on_worker, .done = {.run = ring_made}};
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
        fail(stream, err);
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
