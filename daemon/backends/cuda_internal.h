/* cuda_internal.h - what the files of the CUDA backend share: cuda.c (the threads of a GPU, copies), cuda_ring.c
 * (rings, pinning), cuda_fd.c (GPU memory behind a descriptor), cuda_start.c (which GPUs there are). They are the only
 * callers of CUDA in the daemon.
 *
 * Threads: a GPU has two. The *device* thread submits copies as they come, and between them makes and frees rings, in
 * steps, so that a large ring doesn't hold up the copies of others. The *completion* thread waits for what was
 * submitted, which sleeps, and makes no other call. Workers that want a ring wait for the device thread. */
#ifndef FEEDD_CUDA_INTERNAL_H
#define FEEDD_CUDA_INTERNAL_H

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <cudaTypedefs.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "backend.h"
#include "gpu.h"
#include "inbox.h"

struct cuda_gpu;

/* Something that a worker waits for while the device thread does it. */
struct cuda_call {
    struct cuda_call *next;
    void (*run)(struct cuda_gpu *gpu, struct cuda_call *call);
    bool done;
};

struct cuda_copies {
    struct ring_copy *first, *last;
};

/* Functions of the driver, which is found when the program runs. */
struct cuda_driver {
    PFN_cuDeviceGet_v2000 device_get;
    PFN_cuDeviceGetAttribute_v2000 device_get_attribute;
    PFN_cuMemGetAllocationGranularity_v10020 mem_get_allocation_granularity;
    PFN_cuMemCreate_v10020 mem_create;
    PFN_cuMemRelease_v10020 mem_release;
    PFN_cuMemAddressReserve_v10020 mem_address_reserve;
    PFN_cuMemAddressFree_v10020 mem_address_free;
    PFN_cuMemMap_v10020 mem_map;
    PFN_cuMemUnmap_v10020 mem_unmap;
    PFN_cuMemSetAccess_v10020 mem_set_access;
    PFN_cuMemExportToShareableHandle_v10020 mem_export;
};

struct cuda_gpu {
    struct gpu gpu;
    /* constant */
    int ordinal; /* of CUDA's, in this process */
    struct inbox *inbox;
    void (*lost)(void *arg, const struct gpu *gpu, const struct feedd_error *err);
    void *lost_arg;
    const char *fd_lacks; /* what TRANSPORT_FD needs and isn't there; NULL: `driver` is complete */
    struct cuda_driver driver;
    pthread_t device_thread, completion_thread;
    /* made by the device thread */
    cudaStream_t stream;        /* copies; there once it is up */
    cudaStream_t kernel_stream; /* there once a ring normalises */
    /* under the lock */
    pthread_mutex_t lock;
    pthread_cond_t device_wake, completion_wake, call_done;
    struct cuda_copies asked, submitted; /* by the loop; by the device thread, in that order */
    struct cuda_call *calls, **calls_end;
    bool stop, completion_stop;
    struct feedd_error lost_error; /* status != 0: its context has failed for good */
    struct inbox_item lost_item;
};

/* GPU memory that is mapped here, and by whoever has the descriptor. */
struct cuda_fd_memory {
    CUdeviceptr address; /* 0: none is reserved */
    uint64_t bytes;      /* a multiple of what the GPU hands out */
    CUmemGenericAllocationHandle handle;
    bool created, mapped;
    int fd; /* -1: none */
};

struct cuda_ring {
    struct ring ring;
    struct cuda_gpu *gpu;
    /* of the device thread */
    uint8_t *slab;                   /* the placements and the proof page */
    struct cuda_fd_memory fd_memory; /* what the slab is of, with TRANSPORT_FD; else it is of cudaMalloc() */
    uint8_t *scratch;                /* with `normalize`: GPU_SCRATCH_IMAGES of them */
    uint32_t next_scratch;
    /* The first `depth` say that a staging slot's batch has arrived. Then, with `normalize`, one for each scratch
     * image: it has been copied. The completion thread waits for the former. */
    cudaEvent_t *events;
    uint32_t event_count;
    /* under the GPU's lock: its batches that the driver has */
    uint64_t submitted_bytes;
    uint32_t submitted_count;
};

/* --- cuda.c --- */

/* Starts the threads of a GPU whose constants are set, or ends them and frees it. @return 0 or FEEDD_E_MEMORY */
int cuda_gpu_start(struct cuda_gpu *gpu, struct feedd_error *err);
void cuda_gpu_stop(struct cuda_gpu *gpu);

/* Worker: has the device thread do something, and waits for it. */
void cuda_call(struct cuda_gpu *gpu, struct cuda_call *call);

/* backend_ops.copy */
void cuda_copy(struct ring *ring, uint32_t staging, uint32_t placement, uint32_t count, struct ring_copy *copy);

/* Device thread, between two steps of a call: submits what has been asked for, but doesn't stay for all that is asked
 * for meanwhile. */
void cuda_serve_copies(struct cuda_gpu *gpu);

/* What a CUDA call answered, as one line, and whether the context still lives: after an error it is asked something
 * harmless. Of the GPU's two threads.
 * @return FEEDD_E_UNSUPPORTED for cudaErrorNotSupported, else FEEDD_E_DEVICE */
int cuda_failed(struct cuda_gpu *gpu, cudaError_t error, const char *what, struct feedd_error *err);

/* A step of freeing that fails is worth a line in the log and no more: the others free what they can. */
void cuda_check_freed(struct cuda_gpu *gpu, cudaError_t error, const char *what);

/* --- cuda_fd.c --- */

/* Looks for the functions, and asks whether the GPU can do it. @return NULL, or what is lacking (static text) */
const char *cuda_fd_find(struct cuda_driver *driver, int ordinal);

/* Device thread. @param bytes  at least as many. @return an error with *what was being done: then some of `out` may be
 * there, for cuda_fd_free() */
cudaError_t cuda_fd_allocate(struct cuda_gpu *gpu, uint64_t bytes, struct cuda_fd_memory *out, const char **what);
void cuda_fd_free(struct cuda_gpu *gpu, struct cuda_fd_memory *memory);

#endif
