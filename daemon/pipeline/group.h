/* group.h - the clients that share one stream, and what each of them holds.
 *
 * A member is one client's end of a stream. Every published batch is leased to every member from the moment it is
 * published until that member releases it, whether or not it has asked for it yet; the slot is free when the last
 * lease ends. A member that leaves gives all its leases back at once.
 *
 * Today each group is private: one member, its own cursor. The bookkeeping is for any number.
 * Threads: loop only. */
#ifndef FEEDD_GROUP_H
#define FEEDD_GROUP_H

#include <stdbool.h>
#include <stdint.h>

#include "feedd_types.h"
#include "list.h"

struct group;
struct member;
struct pipeline;
struct stream;
struct stream_spec;

enum member_event {
    MEMBER_OPENED, /* stream, layout and ring exist: group->stream may be read */
    MEMBER_READY,  /* member_take_ready() has something, and had nothing before */
    MEMBER_ENDED,  /* no batch will follow those that were published */
    MEMBER_FAILED  /* the stream is of no use any more, err says why; the member has to leave */
};

/* Called from the pipeline, never from within group_join(). The member may leave from within, but not on
 * MEMBER_READY. */
typedef void member_event_fn(struct member *member, enum member_event event, const struct feedd_error *err);

/* What a member has of one slot. */
struct lease {
    enum { LEASE_NONE, LEASE_UNTOLD, LEASE_TOLD } state; /* untold: published, but the member has not been told yet */
    uint64_t seq;
};

struct member {
    struct list node;
    struct group *group;
    member_event_fn *on_event;
    void *arg;            /* the caller's */
    struct lease *leases; /* one a slot; NULL until the stream is open */
    uint32_t lease_count; /* that are not LEASE_NONE */
    uint32_t *ready;      /* slots that are LEASE_UNTOLD, in order: a ring of depth entries */
    uint32_t ready_first, ready_count;
    uint64_t released; /* batches, for status */
};

struct group {
    struct list node; /* in pipeline->groups */
    struct pipeline *pipeline;
    struct stream *stream; /* owned */
    struct list members;
};

/* Opens a stream for a new private group. @return 0 and *out: MEMBER_OPENED or MEMBER_FAILED comes later;
 * FEEDD_E_NOT_FOUND, FEEDD_E_MEMORY */
int group_join(struct pipeline *pipeline, const struct stream_spec *spec, member_event_fn *on_event, void *arg,
               struct member **out, struct feedd_error *err);

/* Gives every lease back and frees the member; the last one closes the stream. No event comes any more. */
void group_leave(struct member *member);

/* Takes up to `max` published batches off the list of those that the member has not been told of.
 * @return how many: slots[] and seqs[] of each, in order */
uint32_t member_take_ready(struct member *member, uint32_t max, uint32_t *slots, uint64_t *seqs);

/* Ends one lease. @return FEEDD_E_PROTOCOL when the member doesn't hold this batch in this slot */
int member_release(struct member *member, uint32_t slot, uint64_t seq, struct feedd_error *err);

/* From the stream: */
void group_opened(struct group *group);
void group_failed(struct group *group, const struct feedd_error *err);
void group_ended(struct group *group);
uint32_t group_publish(struct group *group, uint32_t slot, uint64_t seq); /* @return members that now hold a lease */
void group_stream_closed(struct group *group);                           /* frees the group */

#endif
