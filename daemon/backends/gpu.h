/* gpu.h - the GPUs that the daemon drives: found once, at the start, and from then on known by their UUIDs.
 *
 * cuda_start.c finds them; where feedd is built without CUDA no_cuda.c says so. A GPU comes up on a thread of its own,
 * since a context takes 0.1 to 0.4 s: what is asked of it meanwhile waits. One that doesn't come up is down, and the
 * others serve. One that fails later takes the daemon with it: its context is of no use any more, and a new process is
 * the only way to another.
 *
 * Threads: loop only, except what is said to be constant or atomic. */
#ifndef FEEDD_GPU_H
#define FEEDD_GPU_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "backend.h"
#include "feedd_types.h"
#include "inbox.h"
#include "slot.h"

enum gpu_state {
    GPU_STARTING,
    GPU_UP,
    GPU_DOWN /* `error` says why */
};

/* Opaque to all but its backend, which puts its own state behind it. */
struct gpu {
    /* constant */
    const struct backend_ops *backend;
    char uuid[FEEDD_UUID_TEXT];
    char name[256];
    uint64_t memory_bytes;
    int node;           /* NUMA node that it is near to; -1: unknown, or there is only one */
    bool transports_fd; /* it and its driver can share memory by descriptors */
    /* any thread */
    _Atomic int state;        /* enum gpu_state */
    struct feedd_error error; /* written before the state becomes GPU_DOWN, constant from then on */
    struct {
        _Atomic uint64_t copies, copied_bytes; /* that have arrived */
        _Atomic uint64_t copy_ns;              /* during which at least one was under way */
        _Atomic uint64_t kernels;              /* that have ended: batches normalised */
    } stats;
    /* loop */
    uint64_t reserved_bytes; /* of its memory: all slabs, from OPEN to the last byte freed */
    struct {
        uint64_t copies, copied_bytes, copy_ns; /* at the last tick */
        double copies_s, copied_bytes_s;        /* over the second before it */
        double busy;                            /* share of that second in which copies were under way, 0..1 */
    } rate;
};

struct gpus {
    uint32_t count;
    struct gpu **gpu;
    char absent[256]; /* count = 0: why, for a person */
};

/* Finds the machine's GPUs and lets them come up.
 * @param wanted  their UUIDs; NULL: all; a list of none: none
 * @param inbox   how its threads report to the loop
 * @param lost    on the loop, at most once for each GPU: it has failed for good
 * @return 0, also without any GPU; FEEDD_E_MEMORY; FEEDD_E_DEVICE: one that was named isn't there */
int gpus_start(struct gpus *gpus, char *const *wanted, uint32_t wanted_count, struct inbox *inbox,
               void (*lost)(void *arg, const struct gpu *gpu, const struct feedd_error *err), void *arg,
               struct feedd_error *err);

/* After every ring and every staging has gone: ends the threads. What they have posted is not run any more. */
void gpus_stop(struct gpus *gpus);

/* By UUID. @return NULL and err (FEEDD_E_DEVICE): there is no such GPU, or it is down */
struct gpu *gpus_find(const struct gpus *gpus, const char *uuid, struct feedd_error *err);

/* Once a second: rates. */
void gpu_tick(struct gpu *gpu, uint64_t span_ns);

/* Bytes of GPU memory that a ring takes: the placements, a multiple of 2 MiB, since an IPC handle shows what shares the
 * driver's block of that size with an allocation; and with `normalize` GPU_SCRATCH_IMAGES that copies go to before the
 * kernel reads them, each large enough for the staging's field 0, in an allocation of their own. */
#define GPU_SCRATCH_IMAGES 3u /* one is copied to, one is read by the kernel, one is between them */
uint64_t gpu_ring_bytes(const struct ring_spec *spec);

/* Its parts: of the placements; of all scratch images, and from one to the next. */
uint64_t gpu_slab_bytes(const struct ring_spec *spec);
uint64_t gpu_scratch_bytes(const struct ring_spec *spec);
uint64_t gpu_scratch_stride(const struct ring_spec *spec);

#endif
