/* feedd_types.h - the words that daemon, library and caller share: status codes, dtypes, flags, limits.
 *
 * Public: installed beside feedd.h. Strict C99 and C++. Values are part of the protocol and the ABI: they are
 * only ever added to. */
#ifndef FEEDD_TYPES_H
#define FEEDD_TYPES_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a call answers: 0, or one of these. */
enum feedd_status {
    FEEDD_OK = 0,
    FEEDD_E_ARGUMENT = -1,    /* the caller asked for something that makes no sense */
    FEEDD_E_NOT_FOUND = -2,   /* no such stream, dataset, field, file */
    FEEDD_E_ACCESS = -3,      /* not allowed for this user */
    FEEDD_E_LIMIT = -4,       /* larger than a configured or built-in limit */
    FEEDD_E_MEMORY = -5,      /* not enough memory, on the host or on a device */
    FEEDD_E_IO = -6,          /* reading failed */
    FEEDD_E_CORRUPT = -7,     /* the bytes are damaged */
    FEEDD_E_UNSUPPORTED = -8, /* understood, but not something that feedd does */
    FEEDD_E_VERSION = -9,     /* the two sides speak different protocol versions */
    FEEDD_E_PROTOCOL = -10,   /* the other side broke the protocol */
    FEEDD_E_CONNECTION = -11, /* no daemon there, or it has gone */
    FEEDD_E_TIMEOUT = -12,    /* nothing within the time given */
    FEEDD_E_LEASES = -13,     /* the caller holds batches for so long that the next can't be made */
    FEEDD_E_TOKEN = -14,      /* a resume token that doesn't fit this dataset, order or seed */
    FEEDD_E_STATE = -15,      /* not now: closed, released already */
    FEEDD_E_FORK = -16,       /* used in a forked child of the process that connected */
    FEEDD_E_SHUTDOWN = -17,   /* the daemon is stopping */
    FEEDD_E_DEVICE = -18,     /* a GPU is missing or failed */
    FEEDD_E_END = -19,        /* the stream has delivered its last batch */
    FEEDD_E_INTERNAL = -20    /* a bug in feedd */
};

/* Filled by the first function that can name the error. Fixed size, owned by the caller. */
struct feedd_error {
    int32_t status;     /* enum feedd_status */
    char message[1020]; /* one line of UTF-8, always terminated: what, where, what would be right */
};

/* Element types. Multi-byte types are in the machine's byte order. */
enum feedd_dtype {
    FEEDD_U8 = 1,
    FEEDD_I8 = 2,
    FEEDD_F16 = 3, /* IEEE 754 binary16 */
    FEEDD_BF16 = 4,
    FEEDD_F32 = 5,
    FEEDD_I32 = 6,
    FEEDD_I64 = 7
};

enum feedd_order {
    FEEDD_ORDER_SEQUENTIAL = 1, /* the dataset's own order */
    FEEDD_ORDER_SHUFFLE = 2     /* a permutation of all samples, another one each epoch */
};

/* What happens to the samples of an epoch that don't fill a step (world size x batch size) of all ranks. */
enum feedd_tail {
    FEEDD_TAIL_DROP = 1,   /* left out of this epoch */
    FEEDD_TAIL_PAD = 2,    /* the step is filled up with samples from the epoch's start, flagged FEEDD_SAMPLE_PADDING */
    FEEDD_TAIL_PARTIAL = 3 /* split over the ranks as evenly as they go: a shorter last batch */
};

/* Who gets what of a stream. */
enum feedd_share {
    FEEDD_SHARE_PRIVATE = 1,  /* a cursor of one's own */
    FEEDD_SHARE_BROADCAST = 2 /* every member of a group gets every sample from the moment it joins */
};

/* When a member of a group gets its first batch. */
enum feedd_join {
    FEEDD_JOIN_NOW = 1,       /* the next one that is published */
    FEEDD_JOIN_GATE = 2,      /* nothing is published before the group is complete */
    FEEDD_JOIN_NEXT_EPOCH = 3 /* the first one of an epoch */
};

/* What a stream does about a sample that can't be decoded. */
enum feedd_on_error {
    FEEDD_ON_ERROR_SUBSTITUTE = 1, /* deliver another one, the same for everyone and every run */
    FEEDD_ON_ERROR_ZERO = 2,       /* deliver black pixels and label -1 */
    FEEDD_ON_ERROR_FAIL = 3        /* end */
};

/* Who makes of uint8 pixels what a network reads. */
enum feedd_normalize_mode {
    FEEDD_NORMALIZE_CLIENT = 1, /* slots hold uint8; the client's kernel does it, on the client's own stream */
    FEEDD_NORMALIZE_DAEMON = 2, /* slots in a GPU's memory hold what the daemon's kernel made */
    FEEDD_NORMALIZE_CPU = 3     /* slots hold what the daemon's workers made: the traditional way */
};

/* Flags of one sample of a batch. */
enum feedd_sample_flag {
    FEEDD_SAMPLE_PADDING = 1 << 0,     /* fills up a batch; its position was or will be delivered elsewhere */
    FEEDD_SAMPLE_SUBSTITUTED = 1 << 1, /* another sample stands in for one that is bad; `index` says which */
    FEEDD_SAMPLE_ZEROED = 1 << 2       /* black pixels and label -1 stand in for one that is bad */
};

/* When things happened to a batch: CLOCK_MONOTONIC nanoseconds, 0 = not yet. */
enum feedd_time {
    FEEDD_TIME_RESERVED,      /* its slot was taken */
    FEEDD_TIME_FIRST_JOB,     /* a worker began */
    FEEDD_TIME_FILLED,        /* the last worker finished */
    FEEDD_TIME_COPIED,        /* it arrived where clients map it */
    FEEDD_TIME_READY,         /* it was published */
    FEEDD_TIME_FIRST_RELEASE, /* the first member gave it back */
    FEEDD_TIME_LAST_RELEASE,  /* the last one did: the slot is free */
    FEEDD_TIME_COUNT
};

/* Limits that both sides check. */
#define FEEDD_MAX_FIELDS     16u    /* fields of a batch */
#define FEEDD_MAX_DIMS       6u     /* dimensions of one sample of a field */
#define FEEDD_MAX_NAME       255u   /* bytes of a name of a stream, dataset, field, group */
#define FEEDD_MAX_BATCH      65536u /* samples of a batch */
#define FEEDD_MAX_DEPTH      1024u  /* slots of a ring */
#define FEEDD_MAX_WORLD      65536u /* ranks */
#define FEEDD_MAX_MEMBERS    1024u  /* of a group */
#define FEEDD_UUID_TEXT      48u /* bytes that hold a GPU's UUID as text ("GPU-" and 36 characters), terminator included */
#define FEEDD_TOKEN_TEXT     128u /* bytes that hold any resume token as text, terminator included */
#define FEEDD_MAX_SLOT_BYTES (1ull << 40)

#ifdef __cplusplus
}
#endif
#endif
