/* ways.h - the ways of a batch from uint8 pixels in host memory to normalised values on the GPU, run and timed.
 *
 *   traditional   normalise on the CPU -> copy the normalised values
 *   client        copy the pixels -> normalise on the GPU
 *   direct        copy normalised values that are there already: what a dtype costs to ship
 *
 * Serial: one batch after the other, each awaited. Pipelined: a ring of WAYS_SLOTS batches; copies on one CUDA stream,
 * kernels on another, normalising on the CPU on threads beside the one that copies.
 * Threads: the caller's; a pipelined traditional run has one more, and those of the team. */
#ifndef FEEDD_BENCH_WAYS_H
#define FEEDD_BENCH_WAYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpu.h"
#include "host.h"
#include "normalize.h"
#include "table.h"
#include "team.h"

#define WAYS_SLOTS    3u
#define WAYS_RUNS     5u     /* a time is the median of at least as many */
#define WAYS_RUNS_MAX 10000u /* and of at most as many, unless a number is asked for */

enum way { WAY_TRADITIONAL, WAY_CLIENT, WAY_DIRECT };

struct ways_spec {
    struct normalize_params params;
    bool pinned;
    bool normals;  /* host memory for normalised values too: what all but WAY_CLIENT need */
    bool blocking; /* who waits for the GPU sleeps, as the daemon does; else it spins */
    bool gpu;      /* without, ways_cpu() is all that works */
};

/* Host memory, which stays from one struct ways to the next: to make it takes longer than to measure. Zeros at first.
 */
struct ways_memory {
    struct host_memory pixels, normals;
};

struct ways_slot {
    const uint8_t *pixels; /* on the host */
    void *normals;
    uint8_t *gpu_pixels;
    uint8_t *gpu_normals;
    struct CUevent_st *start, *copied, *begun, *done;
};

struct ways {
    struct ways_spec spec;
    size_t pixel_bytes, normal_bytes; /* of a batch */
    struct ways_memory *memory;       /* borrowed */
    void *gpu_pixels, *gpu_normals;   /* WAYS_SLOTS batches each, one behind the other */
    struct CUstream_st *copies, *kernels;
    struct CUevent_st *origin;
    struct ways_slot slots[WAYS_SLOTS];
};

/* How often a thing is measured. */
struct ways_runs {
    uint32_t repeat; /* this often; 0: as often as fits into `seconds`, within WAYS_RUNS and WAYS_RUNS_MAX */
    double seconds;
};

/* Of a batch, microseconds. Those that a way hasn't are 0. */
struct ways_times {
    double cpu, copy, kernel, total;
};

/* @param memory  one struct ways at a time uses it
 * @return 0; FEEDD_E_MEMORY, FEEDD_E_DEVICE: nothing is held then */
int ways_init(struct ways *ways, const struct ways_spec *spec, struct ways_memory *memory, struct feedd_error *err);
void ways_done(struct ways *ways);

/* When no struct ways uses it. */
void ways_memory_delete(struct ways_memory *memory);

/* How often, if once takes that long. */
size_t ways_count(const struct ways_runs *runs, double once_us);
/* Says it below the table. */
void ways_note(const struct ways_runs *runs, struct table *table);

/* Normalising on the CPU alone, the median. @return 0, or FEEDD_E_MEMORY */
int ways_cpu(struct ways *ways, struct team *team, const struct ways_runs *runs, double *us, struct feedd_error *err);

/* @param team  for WAY_TRADITIONAL; else NULL
 * The medians; `total` is measured without events between its steps, the steps in a quarter as many runs of their own.
 * @return 0, FEEDD_E_DEVICE, FEEDD_E_MEMORY */
int ways_serial(struct ways *ways, enum way way, struct team *team, const struct ways_runs *runs,
                struct ways_times *out, struct feedd_error *err);

/* @param once_us  of a serial run, from which follows how many batches are taken
 * `total` is what a batch takes in the flow: from the end of batch WAYS_SLOTS to the end of the last one, by the GPU's
 * events; the steps are medians of a run of their own. */
int ways_pipelined(struct ways *ways, enum way way, struct team *team, const struct ways_runs *runs, double once_us,
                   struct ways_times *out, struct feedd_error *err);

/* Gives a slot's copy and kernel to the GPU, on its streams; the slot's `done` is behind them.
 * @param timed  with events between the steps */
int ways_submit(struct ways *ways, enum way way, struct ways_slot *slot, bool timed, struct feedd_error *err);

#endif
