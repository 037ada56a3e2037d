/* slot.h - how a batch lies in memory: the slot (the fields' bytes) and its record in the meta ring.
 *
 *   data ring:  slot 0 | slot 1 | ... | proof page       one block: a sealed memfd, or a slab of GPU memory
 *   meta ring:  record 0 | record 1 | ...                always a sealed memfd, read-only for clients
 *
 * Dense fields come first, each at a multiple of SLOT_ALIGN; a batch of `count` samples fills the first
 * count x sample_bytes of each, and what has to be copied to a GPU is [0, used_bytes). A record is written by the
 * daemon's loop thread before READY is sent, so that a client which got READY reads it without locks; only the two
 * release times are written later.
 *
 * Shared by both processes, which may be of different builds: fixed-width members, no padding, checked below. */
#ifndef FEEDD_SLOT_H
#define FEEDD_SLOT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "feedd_types.h"

#define SLOT_ALIGN       256u  /* of each field in a slot: enough for any vector load and for a GPU's transactions */
#define SLOT_PAGE        4096u /* of a slot and of a ring */
#define SLOT_PROOF_BYTES 4096u /* behind the last slot: the nonce that proves that a client has mapped the ring */

/* One named array of a batch. Shapes are of one sample: a batch's shape is {count, shape...}, C order. */
struct slot_field {
    char name[FEEDD_MAX_NAME + 1];
    uint32_t dtype; /* enum feedd_dtype */
    uint32_t ndim;  /* 0 = a scalar a sample */
    uint64_t shape[FEEDD_MAX_DIMS];
    uint64_t sample_bytes; /* computed by slot_layout_init() */
    uint64_t offset;       /* in the slot; computed by slot_layout_init() */
};

struct slot_layout {
    uint32_t field_count;
    uint32_t batch_size; /* samples that fit */
    struct slot_field fields[FEEDD_MAX_FIELDS];
    uint64_t slot_bytes;   /* distance of two slots, a multiple of SLOT_PAGE */
    uint64_t record_bytes; /* distance of two records, a multiple of 64 */
};

/* Where one field of one batch lies. */
struct slot_extent {
    uint64_t offset; /* in the slot */
    uint64_t length; /* bytes used */
};

struct slot_record {
    uint64_t seq;                       /* number of the batch since the stream was opened */
    uint64_t epoch;                     /* of its first sample; a batch never spans two */
    uint64_t position;                  /* of its first sample in the epoch's order, over all ranks */
    uint64_t next_epoch, next_position; /* where a stream goes on that has delivered this batch: the resume point */
    uint32_t count;                     /* samples in the batch, padding included */
    uint32_t valid;                     /* leading samples that are not padding */
    uint64_t used_bytes;                /* bytes of the slot in use, from its start */
    uint64_t time_ns[FEEDD_TIME_COUNT];
    struct slot_extent extents[FEEDD_MAX_FIELDS];
    /* then: int64_t index[batch_size], uint32_t flags[batch_size] (enum feedd_sample_flag) */
};

_Static_assert(sizeof(struct slot_record) == 6 * 8 + 8 + FEEDD_TIME_COUNT * 8 + FEEDD_MAX_FIELDS * 16, "no padding");

/* Computes sample_bytes and offset of each field, slot_bytes and record_bytes from names, dtypes, shapes and
 * batch_size. Every product is checked by division.
 * @return 0, or FEEDD_E_ARGUMENT, FEEDD_E_LIMIT (larger than FEEDD_MAX_SLOT_BYTES) */
int slot_layout_init(struct slot_layout *layout, struct feedd_error *err);

/* Bytes of the rings of `depth` slots; the caller has an initialised layout and depth <= FEEDD_MAX_DEPTH. */
uint64_t slot_ring_bytes(const struct slot_layout *layout, uint32_t depth);
uint64_t slot_meta_bytes(const struct slot_layout *layout, uint32_t depth);

/* The depth rule: clamp(64 MiB / slot bytes, 4, 64); of the larger ones where slots on the host and on GPUs differ. */
uint32_t slot_depth_rule(uint64_t slot_bytes);

/* Bytes of a slot that `count` samples use: the end of the last field. */
uint64_t slot_used_bytes(const struct slot_layout *layout, uint32_t count);

static inline struct slot_record *slot_record_at(void *meta, const struct slot_layout *layout, uint32_t slot)
{
    return (struct slot_record *)((uint8_t *)meta + slot * layout->record_bytes);
}

static inline int64_t *slot_record_index(struct slot_record *record)
{
    return (int64_t *)(record + 1);
}

static inline uint32_t *slot_record_flags(struct slot_record *record, uint32_t batch_size)
{
    return (uint32_t *)(slot_record_index(record) + batch_size);
}

#endif
