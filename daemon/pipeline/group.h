/* group.h - the clients that share one stream, and what each of them holds.
 *
 * A member is one client's end of a stream, at the site (site.h) of the GPU and transport that it asked for. From the
 * batch with which it begins, every batch that is published there is leased to it from that moment until the member
 * releases it, whether or not it has asked for it yet; the slot is free when the last lease ends. A member that leaves
 * gives all its leases back at once; the others lose and repeat nothing. A private stream is a group of one without a
 * name.
 *
 * When a member begins: private and join = now: at the next batch once it is attached (the client has mapped the ring);
 * gate: when as many as `members` are attached, and nothing is published before; next-epoch: with the first batch of
 * an epoch. After a restart of the daemon, members come back with the incarnation that they were in: the group forms
 * when all are back, or after GROUP_FORM_MS, and begins at the least position among them.
 *
 * Threads: loop only. */
#ifndef FEEDD_GROUP_H
#define FEEDD_GROUP_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "feedd_types.h"
#include "list.h"
#include "site.h"
#include "state.h"
#include "stream.h"

struct group;
struct member;
struct pipeline;

#define GROUP_FORM_MS 10000u  /* how long a group waits for its members after a restart of the daemon */
#define GROUP_GATE_MS 600000u /* how long a gate waits for its members, unless said otherwise */

enum member_event {
    MEMBER_OPENED, /* stream, layout and ring exist: group->stream and member->site->ring may be read */
    MEMBER_READY,  /* member_take_ready() has something, and had nothing before */
    MEMBER_COUNT,  /* group->member_count has changed */
    MEMBER_ENDED,  /* no batch will follow those that were published */
    MEMBER_FAILED  /* the stream, or the member's site, is of no use any more, err says why; the member has to leave */
};

/* Called from the pipeline, never from within group_join() for the one that joins. The member may leave from within
 * OPENED, and has to leave from within FAILED. */
typedef void member_event_fn(struct member *member, enum member_event event, const struct feedd_error *err);

/* What a client asks to be a member of. */
struct group_spec {
    int share;                     /* enum feedd_share */
    char name[FEEDD_MAX_NAME + 1]; /* of a broadcast group, among those of this user */
    uid_t uid;                     /* whose: groups of different users never meet */
    uint32_t members;              /* 0: any number */
    int join;                      /* enum feedd_join */
    uint32_t gate_timeout_ms;
    uint64_t incarnation;         /* 0: a new member; else it comes back after a restart of the daemon, */
    uint32_t incarnation_members; /* when its group had so many, */
    bool started;                 /* and it had been told of batches: stream.order begins where it stands */
    enum transport transport;     /* this member's: how it maps batches, */
    struct gpu *gpu;              /* and in which GPU's memory; NULL: host memory */
    struct stream_spec stream;
};

/* What a member has of one slot. */
struct lease {
    enum { LEASE_NONE, LEASE_UNTOLD, LEASE_TOLD } state; /* untold: published, but the member has not been told yet */
    uint64_t seq;
};

/* joining -> waiting -> active; joining -> active. */
enum member_state {
    MEMBER_JOINING, /* the stream opens, or the client has not mapped the ring yet */
    MEMBER_WAITING, /* for the gate or the next epoch */
    MEMBER_ACTIVE   /* gets every batch that is published */
};
extern const struct sm_state member_states[];

struct member {
    struct list node;
    struct group *group;
    member_event_fn *on_event;
    void *arg;                /* the caller's */
    enum transport transport; /* constant, as what follows */
    struct gpu *gpu;
    struct site *site;    /* of these; NULL while the group forms again */
    int state;            /* enum member_state */
    int join;             /* enum feedd_join */
    uint64_t next_epoch;  /* waiting for the next epoch: this one, or a later one */
    struct lease *leases; /* one a slot; NULL until stream and site are open */
    uint32_t lease_count; /* that are not LEASE_NONE */
    uint32_t *ready;      /* slots that are LEASE_UNTOLD, in order: a ring of depth entries */
    uint32_t ready_first, ready_count;
    uint64_t released; /* batches, for status */
};

struct group {
    struct list node; /* in pipeline->groups */
    struct pipeline *pipeline;
    struct group_spec spec; /* of the first member; where it comes back, `stream` begins at the least position */
    uint64_t incarnation;
    struct stream *stream; /* owned; NULL while the group forms again */
    struct list members;
    uint32_t member_count;
    uint32_t form_members; /* forming: it waits for so many */
    bool form_started;     /* one of them had been told of batches: spec.stream.order is where the least one stands */
    uint32_t gate_members; /* nothing is published before so many are attached; 0: the gate is open */
    bool gate_strict;      /* a gate that was asked for: the stream fails when it doesn't open in time */
    uint64_t deadline_ns;  /* of forming, or of the gate; 0: none */
    struct inbox_item announce; /* a member has joined a stream that is open: it is told in the next round */
    bool announcing;            /* posted; the group is not freed before it has run */
};

/* Joins a group, or makes it. A private stream is always made. Members of one group may differ in transport and gpu.
 * @return 0 and *out: MEMBER_OPENED or MEMBER_FAILED comes later; FEEDD_E_ARGUMENT (the group exists with another spec:
 * err names the field), FEEDD_E_LIMIT (it has all its members), FEEDD_E_STATE (it went on without this one while the
 * daemon was away), FEEDD_E_MEMORY */
int group_join(struct pipeline *pipeline, const struct group_spec *spec, member_event_fn *on_event, void *arg,
               struct member **out, struct feedd_error *err);

/* The client has mapped the ring: it may get batches. */
void group_attach(struct member *member);

/* Members that are attached. */
uint32_t group_attached_count(const struct group *group);

/* Gives every lease back and frees the member; the last one closes the stream. No event comes any more. */
void group_leave(struct member *member);

/* Takes up to `max` published batches off the list of those that the member has not been told of.
 * @return how many: slots[] and seqs[] of each, in order */
uint32_t member_take_ready(struct member *member, uint32_t max, uint32_t *slots, uint64_t *seqs);

/* Ends one lease. @return FEEDD_E_PROTOCOL when the member doesn't hold this batch in this slot */
int member_release(struct member *member, uint32_t slot, uint64_t seq, struct feedd_error *err);

/* Once a second: gates and forming that take too long. */
void group_tick(struct group *group, uint64_t now_ns);

/* From the stream: */
bool group_may_publish(const struct group *group);
void group_failed(struct group *group, const struct feedd_error *err);
void group_ended(struct group *group);
void group_stream_closed(struct group *group); /* frees the group */

/* From a site: its members alone are told. */
void group_site_opened(struct group *group, const struct site *site);
void group_site_failed(struct group *group, const struct site *site, const struct feedd_error *err);
uint32_t group_publish(struct group *group, const struct site *site, uint32_t slot,
                       const struct batch *batch); /* @return leases */

#endif
