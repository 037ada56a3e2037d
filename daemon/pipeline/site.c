/* site.c - see site.h.
 *
 * Happy path: join -> (the stream has its staging) open: budgets, a ring made on a worker -> attached: place, copy,
 * publish, leases end -> the last member leaves -> what is in flight arrives -> the ring is freed on a worker.
 * What can fail: the budgets, the ring, a copy: the members of this site are told and leave.
 * Threads: see site.h. */
#include "site.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "ensure.h"
#include "error.h"
#include "gpu.h"
#include "group.h"
#include "output.h"
#include "pipeline.h"
#include "stream.h"

const struct sm_state site_states[] = {
    [SITE_WAITING] = {"waiting", SM(SITE_OPENING) | SM(SITE_FAILED) | SM(SITE_CLOSING)},
    [SITE_OPENING] = {"opening", SM(SITE_OPEN) | SM(SITE_FAILED) | SM(SITE_CLOSING)},
    [SITE_OPEN] = {"open", SM(SITE_FAILED) | SM(SITE_CLOSING)},
    [SITE_FAILED] = {"failed", SM(SITE_CLOSING)},
    [SITE_CLOSING] = {"closing", SM(SITE_CLOSED)},
    [SITE_CLOSED] = {"closed", 0},
};

static struct pipeline *pipeline_of(const struct site *site)
{
    return site->stream->group->pipeline;
}

static const struct backend_ops *backend_of(const struct site *site)
{
    return site->gpu != NULL ? site->gpu->backend : &backend_host;
}

/* ---- closing ---- */

static void closed(struct inbox_item *item)
{
    struct site *site = container_of(item, struct site, task.done);
    struct stream *stream = site->stream;
    sm_move(site_states, &site->state, SITE_CLOSED);
    pipeline_of(site)->ring_bytes -= site->meta_bytes;
    if (site->gpu != NULL)
        site->gpu->reserved_bytes -= site->gpu_bytes;
    list_remove(&site->node);
    free(site->placements);
    free(site->copies);
    free(site);
    stream_site_closed(stream);
}

static void free_ring_on_worker(struct pool_task *task)
{
    struct site *site = container_of(task, struct site, task);
    if (site->ring != NULL)
        site->ring->ops->ring_free(site->ring);
}

/* Closing: goes on when no copy is under way any more. */
static void close_when_quiet(struct site *site)
{
    if (site->in_flight > 0)
        return;
    site->task = (struct pool_task){.work = free_ring_on_worker, .done = {.run = closed}};
    pool_task_add(pipeline_of(site)->pool, &site->task);
}

void site_close(struct site *site)
{
    if (site->state == SITE_OPENING || site->state == SITE_CLOSING) /* opening: made() finds that nobody wants it */
        return;
    sm_move(site_states, &site->state, SITE_CLOSING);
    close_when_quiet(site);
}

void site_fail(struct site *site, const struct feedd_error *err)
{
    sm_move(site_states, &site->state, SITE_FAILED);
    group_site_failed(site->stream->group, site, err);
}

/* ---- members ---- */

static struct site *find(struct stream *stream, enum transport transport, const struct gpu *gpu)
{
    list_each (node, after, &stream->sites) {
        struct site *site = container_of(node, struct site, node);
        if (site->transport == transport && site->gpu == gpu && site->state <= SITE_OPEN)
            return site;
    }
    return NULL;
}

struct site *site_join(struct stream *stream, enum transport transport, struct gpu *gpu)
{
    struct site *site = find(stream, transport, gpu);
    if (site == NULL) {
        site = calloc(1, sizeof(*site));
        if (site == NULL)
            return NULL;
        site->stream = stream;
        site->transport = transport;
        site->gpu = gpu;
        site->state = SITE_WAITING;
        list_append(&stream->sites, &site->node);
    }
    site->member_count++;
    return site;
}

void site_attach(struct site *site)
{
    site->attached_count++;
}

void site_leave(struct site *site, bool attached)
{
    site->member_count--;
    site->attached_count -= attached;
    if (site->member_count == 0)
        site_close(site);
}

/* ---- batches ---- */

/* Changes the count of ready placements, and keeps its sum over time. */
static void ready_change(struct site *site, int change, uint64_t now_ns)
{
    site->stats.ready_ns += site->ready * (now_ns - site->stats.ready_since_ns);
    site->stats.ready_since_ns = now_ns;
    site->ready += (uint32_t)change;
}

void site_tick(struct site *site, uint64_t now_ns, uint64_t span_ns)
{
    if (site->state != SITE_OPEN) /* while it is opened the ring is a worker's */
        return;
    ready_change(site, 0, now_ns);
    site->rate.ready = (double)(site->stats.ready_ns - site->rate.ready_ns) / (double)span_ns;
    site->rate.ready_ns = site->stats.ready_ns;
}

void site_position(const struct site *site, uint64_t *epoch, uint64_t *position)
{
    const bool behind = site->in_flight > 0; /* the stream */
    *epoch = behind ? site->next_epoch : site->stream->next_epoch;
    *position = behind ? site->next_position : site->stream->next_position;
}

bool site_has_room(const struct site *site)
{
    return site->taken < site->stream->depth;
}

static uint32_t take_placement(struct site *site, const struct batch *batch)
{
    uint32_t slot = 0;
    if (site->ring->ops->placement_is_staging)
        slot = batch->staging;
    else
        while (site->placements[slot].state != PLACEMENT_FREE)
            slot++; /* there is one: site_has_room() */
    sm_move(placement_states, &site->placements[slot].state, PLACEMENT_COPYING);
    site->placements[slot].seq = batch->seq;
    site->taken++;
    return slot;
}

static void free_placement(struct site *site, uint32_t slot)
{
    sm_move(placement_states, &site->placements[slot].state, PLACEMENT_FREE);
    site->taken--;
    if (site->ring->ops->placement_is_staging)
        stream_hold_end(site->stream, &site->stream->batches[slot]);
}

static void write_record(const struct site *site, const struct batch *batch, uint32_t slot, uint64_t copied_ns,
                         uint64_t now_ns)
{
    const struct slot_layout *layout = &site->spec.layout;
    struct slot_record *record = slot_record_at(site->ring->meta, layout, slot);
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
    record->time_ns[FEEDD_TIME_COPIED] = copied_ns;
    record->time_ns[FEEDD_TIME_READY] = now_ns;
    for (uint32_t i = 0; i < layout->field_count; i++)
        record->extents[i] =
            (struct slot_extent){layout->fields[i].offset, layout->fields[i].sample_bytes * plan->count};
    memcpy(slot_record_index(record), batch->index, plan->count * sizeof(*batch->index));
    memcpy(slot_record_flags(record, layout->batch_size), batch->flags, plan->count * sizeof(*batch->flags));
}

/* The bytes are where members map them. */
static void publish(struct site *site, struct batch *batch, uint32_t slot, uint64_t copied_ns)
{
    struct placement *placement = &site->placements[slot];
    const uint64_t now_ns = clock_ns();
    write_record(site, batch, slot, copied_ns, now_ns);
    sm_move(placement_states, &placement->state, PLACEMENT_READY);
    ready_change(site, 1, now_ns);
    site->next_epoch = batch->plan.next_epoch;
    site->next_position = batch->plan.next_position;
    stream_batch_published(site->stream, batch, now_ns);
    placement->leases = group_publish(site->stream->group, site, slot, batch);
    if (placement->leases == 0) { /* all members here wait for the next epoch */
        ready_change(site, -1, now_ns);
        free_placement(site, slot);
    }
}

static void copied(struct inbox_item *item)
{
    struct site_copy *of = container_of(item, struct site_copy, copy.done);
    struct site *site = of->site;
    struct stream *stream = site->stream;
    const bool wanted = site->state == SITE_OPEN && stream_is_open(stream);
    site->in_flight--;
    stream->copying--;
    if (of->copy.status == 0) {
        site->stats.copies++;
        site->stats.copied_bytes += of->copy.bytes;
    }
    if (wanted && of->copy.status == 0)
        publish(site, of->batch, of->placement, of->copy.done_ns);
    else
        free_placement(site, of->placement);
    stream_hold_end(stream, of->batch);
    if (wanted && of->copy.status != 0)
        site_fail(site, &of->copy.error);
    else if (site->state == SITE_CLOSING)
        close_when_quiet(site);
    stream_advance(stream);
}

void site_place(struct site *site, struct batch *batch)
{
    const uint32_t slot = take_placement(site, batch);
    batch->holds++; /* until it has been copied, or until the last lease ends */
    if (site->ring->ops->copy == NULL) {
        publish(site, batch, slot, batch->time_ns[FEEDD_TIME_FILLED]);
        return;
    }
    struct site_copy *of = &site->copies[batch->staging];
    of->site = site;
    of->batch = batch;
    of->placement = slot;
    of->copy.done.run = copied;
    if (site->in_flight++ == 0) {
        site->next_epoch = site->stream->next_epoch;
        site->next_position = site->stream->next_position;
    }
    site->stream->copying++;
    site->ring->ops->copy(site->ring, batch->staging, slot, batch->plan.count, &of->copy);
}

void site_lease_end(struct site *site, uint32_t slot)
{
    struct placement *placement = &site->placements[slot];
    struct slot_record *record = slot_record_at(site->ring->meta, &site->spec.layout, slot);
    ENSURE(placement->state == PLACEMENT_READY && placement->leases > 0);
    uint64_t now_ns = clock_ns();
    if (record->time_ns[FEEDD_TIME_FIRST_RELEASE] == 0)
        record->time_ns[FEEDD_TIME_FIRST_RELEASE] = now_ns;
    if (--placement->leases > 0)
        return;
    record->time_ns[FEEDD_TIME_LAST_RELEASE] = now_ns;
    ready_change(site, -1, now_ns);
    free_placement(site, slot);
}

/* ---- opening ---- */

int site_layout(const struct sample_plan *plan, struct slot_layout *out, struct feedd_error *err)
{
    *out = plan->layout;
    if (plan->output.mode != FEEDD_NORMALIZE_DAEMON)
        return 0;
    output_field(&plan->params, &out->fields[0]);
    return slot_layout_init(out, err);
}

/* What its placements look like, and the daemon's part in that. */
static int plan_ring(const struct site *site, struct staging *staging, struct ring_spec *out, struct feedd_error *err)
{
    const struct sample_plan *plan = &site->stream->plan;
    *out = (struct ring_spec){.staging = staging, .transport = site->transport, .gpu = site->gpu};
    out->normalize = plan->output.mode == FEEDD_NORMALIZE_DAEMON;
    if (out->normalize)
        out->params = plan->params;
    ENSURE(!out->normalize || site->gpu != NULL); /* output_resolve() */
    return site_layout(plan, &out->layout, err);
}

int site_reserve(struct site *site, struct feedd_error *err)
{
    struct stream *stream = site->stream;
    struct pipeline *pipeline = pipeline_of(site);
    const struct pipeline_limits *limits = &pipeline->limits;
    struct gpu *gpu = site->gpu;
    struct staging planned = {.layout = stream->plan.layout, .depth = stream->depth}; /* it may not be there yet */
    struct ring_spec spec;
    int status = plan_ring(site, &planned, &spec, err);
    if (status != 0)
        return status;
    const uint64_t meta = slot_meta_bytes(&spec.layout, stream->depth);
    const uint64_t pinned = gpu != NULL ? stream->staging_bytes - stream->pinned_bytes : 0;
    const uint64_t slab = gpu != NULL ? gpu_ring_bytes(&spec) : 0;
    status = stream_check_budget(stream, "ring_memory_max", meta, pipeline->ring_bytes, limits->ring_memory_max, err);
    if (status == 0)
        status = stream_check_budget(stream, "pinned_max", pinned, pipeline->pinned_bytes, limits->pinned_max, err);
    if (status == 0 && gpu != NULL) {
        char name[32 + FEEDD_UUID_TEXT];
        snprintf(name, sizeof(name), "gpu_memory_max of %s", gpu->uuid);
        status = stream_check_budget(stream, name, slab, gpu->reserved_bytes,
                                     limits->gpu_memory_max != 0 ? limits->gpu_memory_max : gpu->memory_bytes / 2, err);
    }
    if (status != 0)
        return status;
    pipeline->ring_bytes += site->meta_bytes = meta;
    pipeline->pinned_bytes += pinned;
    stream->pinned_bytes += pinned; /* until the staging is freed */
    if (gpu != NULL)
        gpu->reserved_bytes += site->gpu_bytes = slab;
    site->spec = spec;
    site->reserved = true;
    return 0;
}

static int allocate(struct site *site, struct feedd_error *err)
{
    const uint32_t depth = site->stream->depth;
    site->placements = calloc(depth, sizeof(*site->placements));
    if (!backend_of(site)->placement_is_staging)
        site->copies = calloc(depth, sizeof(*site->copies));
    if (site->placements == NULL || (site->copies == NULL && !backend_of(site)->placement_is_staging))
        return error_set(err, FEEDD_E_MEMORY, "no memory for the books of a ring of %u batches", depth);
    for (uint32_t i = 0; i < depth; i++)
        site->placements[i].state = PLACEMENT_FREE;
    return 0;
}

static void made(struct inbox_item *item)
{
    struct site *site = container_of(item, struct site, task.done);
    struct stream *stream = site->stream;
    if (site->member_count == 0) { /* so it is, too, when the stream is closing */
        sm_move(site_states, &site->state, SITE_CLOSING);
        close_when_quiet(site);
        return;
    }
    if (site->task_status != 0) {
        site_fail(site, &site->task_error);
        return;
    }
    sm_move(site_states, &site->state, SITE_OPEN);
    site->stats.ready_since_ns = clock_ns();
    if (stream->state == STREAM_FAILED) /* which its members are being told */
        return;
    group_site_opened(stream->group, site);
    stream_advance(stream); /* the workers begin, though nobody is attached yet */
}

static void make_ring_on_worker(struct pool_task *task)
{
    struct site *site = container_of(task, struct site, task);
    site->task_status = backend_of(site)->ring_new(&site->spec, &site->ring, &site->task_error);
}

void site_open(struct site *site)
{
    struct feedd_error err;
    int status = site->reserved ? 0 : site_reserve(site, &err);
    if (status == 0)
        status = allocate(site, &err);
    if (status != 0) {
        site_fail(site, &err);
        return;
    }
    site->spec.staging = site->stream->staging;
    sm_move(site_states, &site->state, SITE_OPENING);
    site->task = (struct pool_task){.work = make_ring_on_worker, .done = {.run = made}};
    pool_task_add(pipeline_of(site)->pool, &site->task);
}
