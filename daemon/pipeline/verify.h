/* verify.h - reads and decodes every sample of a dataset in full: which are bad, and why.
 *
 * Every image is decoded whole, by the exact methods, so that damage counts wherever it is, also where no stream's crop
 * has ever touched it. Pixels that a reader holds in memory were read, and their labels checked, when the dataset was
 * opened. A verification has as many runs with the pool as there are workers, as background tasks: streams come first.
 * A run holds the memory for its images only while a worker is at it.
 *
 * What is found stays out of the dataset's error log, which tells what streams have met.
 *
 * Threads: loop only; what workers touch is marked. After VERIFY_ENDED no worker touches it any more, and any thread
 * may read it until it is closed. */
#ifndef FEEDD_VERIFY_H
#define FEEDD_VERIFY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "dataset.h"
#include "feedd_types.h"
#include "inbox.h"
#include "list.h"
#include "state.h"

struct pipeline;
struct verify_run;

#define VERIFY_KEPT_BYTES  (16u << 20) /* of all bad samples that one verification lists; more are only counted */
#define VERIFY_CLASSES_MAX 100000u     /* with more, labels are taken for numbers of something else */
#define VERIFY_UNREADABLE  32u         /* samples one after the other with I/O errors: the file system is at fault */

/* opening -> running -> ended; failed from opening and running; closing from all. */
enum verify_state {
    VERIFY_OPENING, /* the dataset opens */
    VERIFY_RUNNING,
    VERIFY_ENDED,  /* all samples have been checked, or it was cancelled */
    VERIFY_FAILED, /* the owner has been told */
    VERIFY_CLOSING /* nobody's any more: it is freed when the last run, and the dataset, have come back */
};
extern const struct sm_state verify_states[];

enum verify_event {
    VERIFY_EVENT_PROGRESS, /* it runs, more has been checked */
    VERIFY_EVENT_ENDED,
    VERIFY_EVENT_FAILED /* err says why it can't go on; the owner has to close it */
};

struct verify;

/* Called on the loop, never from within verify_open(). The owner may close it from within ENDED and FAILED. */
typedef void verify_event_fn(struct verify *verify, enum verify_event event, const struct feedd_error *err);

struct verify_class {
    _Atomic uint64_t samples, bad; /* checked; any thread */
};

/* A bad sample that is listed. */
struct verify_bad {
    struct list node; /* in verify->bad_list, in the selection's order */
    uint64_t place;   /* in the selection */
    uint64_t index;   /* in the dataset */
    int64_t label;    /* -1: none, or not known, for a file that can't be opened */
    int status;
    const char *path, *reason; /* in the same block */
};

struct verify {
    /* constant */
    struct pipeline *pipeline;
    struct dataset *dataset; /* held, and open from RUNNING on; NULL: it couldn't be opened */
    uint32_t selection;      /* which of its samples */
    uint32_t errors_max;     /* how many bad samples are listed; all are counted */
    verify_event_fn *on_event;
    void *arg; /* the owner's */
    /* constant once running */
    const struct reader *reader; /* not NULL: a user of the dataset */
    const uint64_t *indices;     /* of the selection, or NULL: all samples */
    uint64_t sample_count;
    uint32_t class_count;
    struct verify_class *classes; /* class_count; NULL where labels are no classes */
    /* any thread */
    _Atomic bool cancelled;
    _Atomic uint64_t next;       /* place of the sample that is taken next */
    _Atomic uint64_t done, bad;  /* samples; who reads `bad` first finds no more of them than `done` */
    _Atomic uint64_t bytes;      /* of encoded images that were read */
    _Atomic uint64_t kept;       /* bad samples that are listed, */
    _Atomic uint64_t kept_bytes; /* and their memory; both may count some that there was no room for */
    _Atomic uint32_t unreadable; /* samples one after the other that met I/O errors */
    /* loop */
    int state;            /* enum verify_state */
    struct list bad_list; /* struct verify_bad */
    uint64_t began_ns;    /* it runs since */
    uint64_t ended_ns;    /* 0: it runs */
    struct verify_run *runs;
    uint32_t run_count, runs_out; /* with the pool */
    struct dataset_waiter waiter;
    struct inbox_item opened;
};

/* Starts one; opens the dataset where it isn't. @param errors_max  bad samples to list, within VERIFY_KEPT_BYTES
 * @return 0 and *out, the caller's to close; FEEDD_E_MEMORY */
int verify_open(struct pipeline *pipeline, struct dataset *dataset, uint32_t selection, uint32_t errors_max,
                verify_event_fn *on_event, void *arg, struct verify **out, struct feedd_error *err);

/* Ends it soon, when each run is through with its sample: ENDED comes later. Running ones only. */
void verify_cancel(struct verify *verify);

/* The owner lets go; no event comes any more. */
void verify_close(struct verify *verify);

#endif
