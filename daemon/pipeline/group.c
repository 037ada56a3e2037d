/* group.c - see group.h.
 *
 * Happy path: join -> opened -> attached -> (gate, next epoch) -> publish: a lease a member -> the server takes what is
 * ready -> release -> leave.
 * What can fail: the stream, the gate (every member is told, and leaves), a site (its members are, and leave). A
 * member's death is its leave.
 * No two members can wait for each other: nobody asks for a batch while it holds one that is depth - 1 older
 * (FEEDD_E_LEASES in the library), so what all of them hold lies among the depth - 1 batches before the next one. Every
 * site has depth placements and only these batches in them, so that one is free at each for the next batch; and one
 * staging slot is free to make it in, since staging is held by copies, which end by themselves, and by leases at the
 * site on the host. */
#include "group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "clock.h"
#include "ensure.h"
#include "error.h"
#include "log.h"
#include "pipeline.h"
#include "stream.h"

#define MS 1000000ull /* nanoseconds */

const struct sm_state member_states[] = {
    [MEMBER_JOINING] = {"joining", SM(MEMBER_WAITING) | SM(MEMBER_ACTIVE)},
    [MEMBER_WAITING] = {"waiting", SM(MEMBER_ACTIVE)},
    [MEMBER_ACTIVE] = {"active", 0},
};

/* ---- joining ---- */

/* A group that has ended, or failed, is none to join: who comes now makes it anew. */
static struct group *group_find(struct pipeline *pipeline, const struct group_spec *spec)
{
    list_each (node, after, &pipeline->groups) {
        struct group *group = container_of(node, struct group, node);
        if (spec->share == FEEDD_SHARE_BROADCAST && group->spec.share == FEEDD_SHARE_BROADCAST &&
            group->member_count > 0 && group->spec.uid == spec->uid && strcmp(group->spec.name, spec->name) == 0 &&
            (group->stream == NULL || group->stream->state == STREAM_OPENING || stream_is_open(group->stream)))
            return group;
    }
    return NULL;
}

/* The split of a dataset, for messages. */
static const char *selection_name(const struct stream_spec *spec)
{
    const char *name = spec->dataset->config->selections[spec->selection].name;
    return name != NULL ? name : "all of the dataset";
}

static const char *field_text(const struct transform_field *field, char buffer[32])
{
    snprintf(buffer, 32, "%.10g", field->value);
    return field->word != NULL ? field->word : buffer;
}

static int check_equal_fields(const char *group, const struct transform_field *is, const struct transform_field *want,
                              int count, struct feedd_error *err)
{
    char buffers[2][32];
    for (int i = 0; i < count; i++)
        if (is[i].value != want[i].value)
            return error_set(err, FEEDD_E_ARGUMENT, "group '%s' has %s %s, and %s was asked for", group, is[i].name,
                             field_text(&is[i], buffers[0]), field_text(&want[i], buffers[1]));
    return 0;
}

static int check_equal_transform(const char *group, const struct transform_spec *its,
                                 const struct transform_spec *asked, struct feedd_error *err)
{
    struct transform_field is[TRANSFORM_FIELDS], want[TRANSFORM_FIELDS];
    transform_list(its, is);
    transform_list(asked, want);
    return check_equal_fields(group, is, want, TRANSFORM_FIELDS, err);
}

/* What slots hold. Which mean and std count is known once the stream is planned. */
static int check_equal_output(const struct group *group, const struct output_spec *asked, struct feedd_error *err)
{
    struct transform_field is[OUTPUT_FIELDS], want[OUTPUT_FIELDS];
    struct output_spec its = group->spec.stream.output, settled = *asked;
    uint32_t channels = NORMALIZE_CHANNELS_MAX;
    if (group->stream != NULL && stream_is_open(group->stream)) {
        channels = group->stream->plan.channels;
        its = group->stream->plan.output;
        output_settle(&settled, channels);
    }
    output_list(&its, channels, is);
    output_list(&settled, channels, want);
    return check_equal_fields(group->spec.name, is, want, OUTPUT_FIELDS, err);
}

/* What a member of a group has to share with the others, and how to say it. */
static int check_equal(const struct group *group, const struct group_spec *asked, struct feedd_error *err)
{
    const struct stream_spec *is = &group->spec.stream, *want = &asked->stream;
    /* 0 asks for the rule, and takes what there is: who comes back after a restart says what it had. */
    uint32_t depth = group->stream != NULL && stream_is_open(group->stream) ? group->stream->depth : is->depth;
    const struct {
        const char *name;
        uint64_t is, want;
    } numbers[] = {
        {"batch_size", is->order.batch_size, want->order.batch_size},
        {"seed", is->order.seed, want->order.seed},
        {"epochs", is->order.epochs, want->order.epochs},
        {"rank", is->order.rank, want->order.rank},
        {"world_size", is->order.world_size, want->order.world_size},
        {"depth", depth, want->depth != 0 ? want->depth : depth},
        {"members", group->spec.members, asked->members},
        {"on_error", (uint64_t)is->on_error, (uint64_t)want->on_error},
    };
    if (is->selection != want->selection)
        return error_set(err, FEEDD_E_ARGUMENT, "group '%s' has split %s, and %s was asked for", asked->name,
                         selection_name(is), selection_name(want));
    if (is->dataset != want->dataset)
        return error_set(err, FEEDD_E_ARGUMENT, "group '%s' reads dataset %s, and %s was asked for", asked->name,
                         is->dataset->config->name, want->dataset->config->name);
    if (is->order.order != want->order.order)
        return error_set(err, FEEDD_E_ARGUMENT, "group '%s' has order %s, and %s was asked for", asked->name,
                         order_name(is->order.order), order_name(want->order.order));
    if (is->order.tail != want->order.tail)
        return error_set(err, FEEDD_E_ARGUMENT, "group '%s' has tail %s, and %s was asked for", asked->name,
                         tail_name(is->order.tail), tail_name(want->order.tail));
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        if (numbers[i].is != numbers[i].want)
            return error_set(err, FEEDD_E_ARGUMENT, "group '%s' has %s %llu, and %llu was asked for", asked->name,
                             numbers[i].name, (unsigned long long)numbers[i].is, (unsigned long long)numbers[i].want);
    int status = check_equal_transform(asked->name, &is->transform, &want->transform, err);
    return status == 0 ? check_equal_output(group, &want->output, err) : status;
}

/* Is position a of the order before b? */
static bool before(uint64_t epoch_a, uint64_t position_a, uint64_t epoch_b, uint64_t position_b)
{
    return epoch_a != epoch_b ? epoch_a < epoch_b : position_a < position_b;
}

/* Waiting for members that were there before the daemon went away. */
static bool forming(const struct group *group)
{
    return group->stream == NULL;
}

/* A member that was told of batches before the daemon went away stands where its stream spec begins. */
static void take_position(struct group *group, const struct group_spec *spec)
{
    struct sampler_spec *start = &group->spec.stream.order;
    const struct sampler_spec *its = &spec->stream.order;
    if (!spec->started)
        return;
    if (!group->form_started ||
        before(its->start_epoch, its->start_position, start->start_epoch, start->start_position)) {
        start->start_epoch = its->start_epoch;
        start->start_position = its->start_position;
    }
    group->form_started = true;
}

/* May this one join, where the group stands now? */
static int check_place(const struct group *group, const struct group_spec *asked, struct feedd_error *err)
{
    uint32_t limit = group->spec.members != 0 ? group->spec.members : FEEDD_MAX_MEMBERS;
    if (group->member_count >= limit)
        return error_set(err, FEEDD_E_LIMIT, "group '%s' has all its %u members", asked->name, limit);
    if (asked->started && asked->incarnation != group->incarnation)
        return error_set(err, FEEDD_E_STATE, "group '%s' was made anew by others while feedd was away", asked->name);
    if (!asked->stream.resumed || forming(group))
        return 0;
    const struct sampler_spec *its = &asked->stream.order, *start = &group->spec.stream.order;
    bool open = stream_is_open(group->stream);
    uint64_t epoch = open ? group->stream->next_epoch : start->start_epoch;
    uint64_t position = open ? group->stream->next_position : start->start_position;
    bool same = its->start_epoch == epoch && its->start_position == position;
    /* Who comes back may be ahead: it drops what it has had. Who resumes has to begin where the others are. */
    if (same || (asked->started && !before(its->start_epoch, its->start_position, epoch, position)))
        return 0;
    return error_set(err, FEEDD_E_STATE,
                     "group '%s' stands at epoch %llu, position %llu%s; this member would go on at %llu, %llu",
                     asked->name, (unsigned long long)epoch, (unsigned long long)position,
                     asked->started ? ", it went on while feedd was away" : "", (unsigned long long)its->start_epoch,
                     (unsigned long long)its->start_position);
}

/* The member's site, once there is a stream. */
static int take_site(struct member *member, struct feedd_error *err)
{
    member->site = site_join(member->group->stream, member->transport, member->gpu);
    return member->site != NULL ? 0 : error_set(err, FEEDD_E_MEMORY, "no memory for a member's ring");
}

/* Opens the stream, behind a gate where members have to wait for each other. */
static int start(struct group *group, struct feedd_error *err)
{
    const struct group_spec *spec = &group->spec;
    bool broadcast = spec->share == FEEDD_SHARE_BROADCAST;
    group->deadline_ns = 0;
    if (broadcast && group->form_started) { /* all that are back get the first batch */
        group->gate_members = group->member_count;
        group->deadline_ns = clock_ns() + GROUP_FORM_MS * MS;
        log_info("group '%s': formed again with %u members, at epoch %llu, position %llu", spec->name,
                 group->member_count, (unsigned long long)spec->stream.order.start_epoch,
                 (unsigned long long)spec->stream.order.start_position);
    } else if (broadcast && spec->join == FEEDD_JOIN_GATE && spec->members > 1) {
        group->gate_members = spec->members;
        group->gate_strict = true;
        group->deadline_ns = clock_ns() + spec->gate_timeout_ms * MS;
    }
    int status = stream_open(group, &spec->stream, &group->stream, err);
    if (status != 0)
        return status;
    list_each (node, after, &group->members) {
        struct feedd_error no_site;
        struct member *member = container_of(node, struct member, node);
        if (take_site(member, &no_site) != 0) {
            stream_fail(group->stream, &no_site); /* which tells all of them, later */
            return 0;
        }
    }
    return 0;
}

/* Room for the leases, once the depth is known. */
static int member_books(struct member *member, struct feedd_error *err)
{
    uint32_t depth = member->group->stream->depth;
    member->leases = calloc(depth, sizeof(*member->leases));
    member->ready = calloc(depth, sizeof(*member->ready));
    if (member->leases == NULL || member->ready == NULL)
        return error_set(err, FEEDD_E_MEMORY, "no memory for a member's %u leases", depth);
    return 0;
}

static struct group *group_new(struct pipeline *pipeline, const struct group_spec *spec)
{
    struct group *group = calloc(1, sizeof(*group));
    if (group == NULL)
        return NULL;
    group->pipeline = pipeline;
    group->spec = *spec;
    list_init(&group->members);
    group->incarnation = spec->incarnation;
    while (group->incarnation == 0)
        if (getrandom(&group->incarnation, sizeof(group->incarnation), 0) != sizeof(group->incarnation))
            group->incarnation = clock_ns(); /* it only has to differ from what members remember */
    group->deadline_ns = clock_ns() + GROUP_FORM_MS * MS;
    list_append(&pipeline->groups, &group->node);
    dataset_hold(spec->stream.dataset); /* also while it forms, without a stream */
    return group;
}

static void group_free(struct group *group)
{
    struct pipeline *pipeline = group->pipeline;
    struct dataset *dataset = group->spec.stream.dataset;
    list_remove(&group->node);
    free(group);
    dataset_drop(dataset);
    pipeline_idle_check(pipeline);
}

static void member_free(struct member *member)
{
    list_remove(&member->node);
    member->group->member_count--;
    free(member->leases);
    free(member->ready);
    free(member);
}

/* The last member has left. */
static void close_or_free(struct group *group)
{
    if (group->stream != NULL)
        stream_close(group->stream);
    else
        group_free(group);
}

/* Tells everybody how many they are. */
static void tell_count(struct group *group)
{
    list_each (node, after, &group->members) {
        struct member *member = container_of(node, struct member, node);
        member->on_event(member, MEMBER_COUNT, NULL);
    }
}

/* Members of a site that is open get their books, and are told. */
static void tell_opened(struct group *group, const struct site *site)
{
    list_each (node, after, &group->members) {
        struct member *member = container_of(node, struct member, node);
        struct feedd_error err;
        if (member->site != site || member->leases != NULL) /* told already */
            continue;
        if (member_books(member, &err) != 0)
            member->on_event(member, MEMBER_FAILED, &err);
        else
            member->on_event(member, MEMBER_OPENED, NULL);
    }
}

/* Who joins a stream that is open is told later, not from within group_join(); so is its site opened. */
static void announce_open(struct inbox_item *item)
{
    struct group *group = container_of(item, struct group, announce);
    group->announcing = false;
    if (group->member_count == 0) {
        close_or_free(group);
        return;
    }
    if (!stream_is_open(group->stream) && group->stream->state != STREAM_ENDED) /* ended since the join */
        return;
    stream_open_sites(group->stream);
    list_each (node, after, &group->stream->sites) {
        const struct site *site = container_of(node, struct site, node);
        if (site->state == SITE_OPEN)
            tell_opened(group, site);
    }
    tell_count(group);
}

int group_join(struct pipeline *pipeline, const struct group_spec *spec, member_event_fn *on_event, void *arg,
               struct member **out, struct feedd_error *err)
{
    struct group *group = group_find(pipeline, spec);
    if (group != NULL) {
        int status = check_equal(group, spec, err);
        if (status == 0)
            status = check_place(group, spec, err);
        if (status != 0)
            return status;
    }
    struct member *member = calloc(1, sizeof(*member));
    if (member != NULL && group == NULL)
        group = group_new(pipeline, spec);
    if (member == NULL || group == NULL) {
        free(member);
        return error_set(err, FEEDD_E_MEMORY, "no memory for a stream of %s", spec->stream.dataset->config->name);
    }
    *member = (struct member){.group = group,
                              .on_event = on_event,
                              .arg = arg,
                              .transport = spec->transport,
                              .gpu = spec->gpu,
                              .state = MEMBER_JOINING,
                              .join = spec->started ? FEEDD_JOIN_NOW : spec->join};
    list_append(&group->members, &member->node);
    group->member_count++;
    if (forming(group)) {
        take_position(group, spec);
        if (spec->incarnation_members > group->form_members)
            group->form_members = spec->incarnation_members;
        int status = group->member_count >= group->form_members ? start(group, err) : 0;
        if (status != 0) {
            member_free(member);
            if (group->member_count > 0)
                group_failed(group, err);
            else
                group_free(group);
            return status;
        }
    } else {
        int status = take_site(member, err);
        if (status != 0) {
            member_free(member);
            return status;
        }
        if (!group->announcing) {
            group->announcing = true;
            group->announce.run = announce_open;
            inbox_post(&pipeline->inbox, &group->announce);
        }
    }
    *out = member;
    return 0;
}

/* ---- beginning ---- */

uint32_t group_attached_count(const struct group *group)
{
    uint32_t count = 0;
    list_each (node, after, &group->members)
        count += container_of(node, struct member, node)->state != MEMBER_JOINING;
    return count;
}

static void open_gate(struct group *group)
{
    group->gate_members = 0;
    group->deadline_ns = 0;
    list_each (node, after, &group->members) {
        struct member *member = container_of(node, struct member, node);
        if (member->state == MEMBER_WAITING && member->join != FEEDD_JOIN_NEXT_EPOCH)
            sm_move(member_states, &member->state, MEMBER_ACTIVE);
    }
    stream_advance(group->stream);
}

static void check_gate(struct group *group)
{
    if (group->gate_members > 0 && group_attached_count(group) >= group->gate_members)
        open_gate(group);
}

void group_attach(struct member *member)
{
    struct group *group = member->group;
    const struct stream *stream = group->stream;
    uint64_t epoch, position;
    site_position(member->site, &epoch, &position);
    bool mid_epoch = stream->next_place > 0 && position != 0;
    bool waits = group->gate_members > 0 || (member->join == FEEDD_JOIN_NEXT_EPOCH && mid_epoch);
    if (member->join == FEEDD_JOIN_NEXT_EPOCH && !mid_epoch)
        member->join = FEEDD_JOIN_NOW;
    member->next_epoch = epoch + 1;
    site_attach(member->site);
    sm_move(member_states, &member->state, waits ? MEMBER_WAITING : MEMBER_ACTIVE);
    check_gate(group);
    stream_advance(group->stream); /* the first one that is attached sets the stream going */
}

bool group_may_publish(const struct group *group)
{
    return group->gate_members == 0 && group_attached_count(group) > 0;
}

void group_tick(struct group *group, uint64_t now_ns)
{
    struct feedd_error err;
    if (group->deadline_ns == 0 || now_ns < group->deadline_ns)
        return;
    if (forming(group)) {
        if (start(group, &err) != 0)
            group_failed(group, &err);
    } else if (!stream_is_open(group->stream)) {
        return; /* the dataset takes its time: the gate can't open before */
    } else if (group->gate_strict) {
        error_set(&err, FEEDD_E_TIMEOUT, "group '%s': %u of %u members came within %u s: the gate stays closed",
                  group->spec.name, group_attached_count(group), group->gate_members,
                  group->spec.gate_timeout_ms / 1000);
        group->deadline_ns = 0;
        stream_fail(group->stream, &err);
    } else {
        open_gate(group); /* those that are not attached by now have missed it */
    }
}

/* ---- leaving ---- */

/* Its site may close, but not while its leases are being ended, which needs the ring. */
static void leave_site(struct member *member)
{
    if (member->site != NULL)
        site_leave(member->site, member->state != MEMBER_JOINING);
}

void group_leave(struct member *member)
{
    struct group *group = member->group;
    struct stream *stream = group->stream;
    list_remove(&member->node); /* first: nothing shall go to this one any more */
    if (group->member_count == 1) {
        /* The leases end with the ring. Ended one by one, their slots would be filled anew, under a client that may
         * still read them: one that feedd disconnects, or stops serving. */
        leave_site(member);
        member_free(member);
        if (!group->announcing)
            close_or_free(group);
        return;
    }
    for (uint32_t slot = 0; member->lease_count > 0; slot++)
        if (member->leases[slot].state != LEASE_NONE) {
            member->lease_count--;
            site_lease_end(member->site, slot);
        }
    leave_site(member);
    member_free(member);
    if (!group->gate_strict && group->gate_members > group->member_count)
        group->gate_members = group->member_count;
    if (stream != NULL && stream_is_open(stream)) {
        check_gate(group);
        stream_advance(stream);
    }
    tell_count(group);
}

/* ---- batches ---- */

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
    site_lease_end(member->site, slot);
    stream_advance(stream);
    return 0;
}

uint32_t group_publish(struct group *group, const struct site *site, uint32_t slot, const struct batch *batch)
{
    uint32_t leases = 0;
    uint32_t depth = group->stream->depth;
    list_each (node, after, &group->members) {
        struct member *member = container_of(node, struct member, node);
        if (member->site != site)
            continue;
        if (member->state == MEMBER_WAITING && batch->plan.epoch >= member->next_epoch)
            sm_move(member_states, &member->state, MEMBER_ACTIVE);
        if (member->state != MEMBER_ACTIVE)
            continue;
        ENSURE(member->leases[slot].state == LEASE_NONE && member->ready_count < depth);
        member->leases[slot] = (struct lease){LEASE_UNTOLD, batch->seq};
        member->lease_count++;
        member->ready[(member->ready_first + member->ready_count++) % depth] = slot;
        leases++;
        if (member->ready_count == 1)
            member->on_event(member, MEMBER_READY, NULL);
    }
    return leases;
}

/* ---- what becomes of the stream ---- */

void group_site_opened(struct group *group, const struct site *site)
{
    tell_opened(group, site);
    tell_count(group);
}

void group_site_failed(struct group *group, const struct site *site, const struct feedd_error *err)
{
    list_each (node, after, &group->members) {
        struct member *member = container_of(node, struct member, node);
        if (member->site == site)
            member->on_event(member, MEMBER_FAILED, err);
    }
}

void group_failed(struct group *group, const struct feedd_error *err)
{
    /* Each leaves from within, and with the last one a group that has no stream is freed. */
    for (uint32_t left = group->member_count; left > 0; left--) {
        struct member *member = container_of(group->members.next, struct member, node);
        member->on_event(member, MEMBER_FAILED, err);
    }
}

void group_ended(struct group *group)
{
    list_each (node, after, &group->members) {
        struct member *member = container_of(node, struct member, node);
        member->on_event(member, MEMBER_ENDED, NULL);
    }
}

void group_stream_closed(struct group *group)
{
    group_free(group);
}
