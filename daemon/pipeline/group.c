/* group.c - see group.h.
 *
 * Happy path: join -> opened -> publish (a lease a member) -> the server takes what is ready -> release -> leave.
 * What can fail: the stream (every member is told, and leaves). A member's death is its leave. */
#include "group.h"

#include <stdlib.h>

#include "ensure.h"
#include "error.h"
#include "pipeline.h"
#include "stream.h"

static void member_free(struct member *member)
{
    list_remove(&member->node);
    free(member->leases);
    free(member->ready);
    free(member);
}

int group_join(struct pipeline *pipeline, const struct stream_spec *spec, member_event_fn *on_event, void *arg,
               struct member **out, struct feedd_error *err)
{
    struct group *group = calloc(1, sizeof(*group));
    struct member *member = calloc(1, sizeof(*member));
    if (group == NULL || member == NULL) {
        free(group);
        free(member);
        return error_set(err, FEEDD_E_MEMORY, "no memory for a stream of %s", spec->dataset->config->name);
    }
    group->pipeline = pipeline;
    list_init(&group->members);
    member->group = group;
    member->on_event = on_event;
    member->arg = arg;
    int status = stream_open(group, spec, &group->stream, err);
    if (status != 0) {
        free(group);
        free(member);
        return status;
    }
    list_append(&group->members, &member->node);
    list_append(&pipeline->groups, &group->node);
    *out = member;
    return 0;
}

void group_leave(struct member *member)
{
    struct group *group = member->group;
    struct stream *stream = group->stream;
    list_remove(&member->node);
    if (list_empty(&group->members)) {
        /* The leases end with the ring. Ended one by one, their slots would be filled anew, under a client that may
         * still read them: one that feedd disconnects, or stops serving. */
        stream_close(stream);
    } else {
        for (uint32_t slot = 0; member->lease_count > 0; slot++)
            if (member->leases[slot].state != LEASE_NONE) {
                member->lease_count--;
                stream_lease_end(stream, slot);
            }
    }
    member_free(member);
}

uint32_t member_take_ready(struct member *member, uint32_t max, uint32_t *slots, uint64_t *seqs)
{
    uint32_t depth = member->group->stream->depth;
    uint32_t count = member->ready_count < max ? member->ready_count : max;
    for (uint32_t i = 0; i < count; i++) {
        struct lease *lease = &member->leases[member->ready[member->ready_first]];
        lease->state = LEASE_TOLD;
        slots[i] = member->ready[member->ready_first];
        seqs[i] = lease->seq;
        member->ready_first = (member->ready_first + 1) % depth;
    }
    member->ready_count -= count;
    return count;
}

int member_release(struct member *member, uint32_t slot, uint64_t seq, struct feedd_error *err)
{
    struct stream *stream = member->group->stream;
    struct lease *lease = member->leases != NULL && slot < stream->depth ? &member->leases[slot] : NULL;
    if (lease == NULL || lease->state != LEASE_TOLD || lease->seq != seq)
        return error_set(err, FEEDD_E_PROTOCOL, "release of slot %u, batch %llu, which this client does not hold", slot,
                         (unsigned long long)seq);
    lease->state = LEASE_NONE;
    member->lease_count--;
    member->released++;
    stream_lease_end(stream, slot);
    return 0;
}

void group_opened(struct group *group)
{
    list_each(node, after, &group->members)
    {
        struct member *member = container_of(node, struct member, node);
        uint32_t depth = group->stream->depth;
        member->leases = calloc(depth, sizeof(*member->leases));
        member->ready = calloc(depth, sizeof(*member->ready));
        if (member->leases == NULL || member->ready == NULL) {
            struct feedd_error error;
            error_set(&error, FEEDD_E_MEMORY, "no memory for a member's %u leases", depth);
            member->on_event(member, MEMBER_FAILED, &error);
            continue;
        }
        member->on_event(member, MEMBER_OPENED, NULL);
    }
}

void group_failed(struct group *group, const struct feedd_error *err)
{
    list_each(node, after, &group->members)
    {
        struct member *member = container_of(node, struct member, node);
        member->on_event(member, MEMBER_FAILED, err);
    }
}

void group_ended(struct group *group)
{
    list_each(node, after, &group->members)
    {
        struct member *member = container_of(node, struct member, node);
        member->on_event(member, MEMBER_ENDED, NULL);
    }
}

uint32_t group_publish(struct group *group, uint32_t slot, uint64_t seq)
{
    uint32_t leases = 0;
    uint32_t depth = group->stream->depth;
    list_each(node, after, &group->members)
    {
        struct member *member = container_of(node, struct member, node);
        ENSURE(member->leases[slot].state == LEASE_NONE && member->ready_count < depth);
        member->leases[slot] = (struct lease){LEASE_UNTOLD, seq};
        member->lease_count++;
        member->ready[(member->ready_first + member->ready_count++) % depth] = slot;
        leases++;
        if (member->ready_count == 1)
            member->on_event(member, MEMBER_READY, NULL);
    }
    return leases;
}

void group_stream_closed(struct group *group)
{
    struct pipeline *pipeline = group->pipeline;
    list_remove(&group->node);
    free(group);
    pipeline_idle_check(pipeline);
}
