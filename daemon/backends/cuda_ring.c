/* cuda_ring.c - rings in the memory of GPUs, and the staging pinned for them.
 *
 * Happy path of a ring: records -> on the device thread: a slab of GPU memory -> with `normalize` the scratch images
 * and a stream for kernels -> events -> the nonce behind the last placement -> the slab's IPC handle or descriptor ->
 * the staging is pinned, unless another ring of the stream has done that.
 * What can fail: memory of either kind; a GPU that is down or fails; what the GPU or its driver can't do. A ring that
 * can't be made is an error to who asked, with all undone.
 *
 * Threads: workers make and free, and wait for the GPU's device thread, which does it in steps: a piece of pinning
 * takes about 5 ms. Whoever pins holds the staging's lock, so that a ring on another GPU waits for it on its worker,
 * and not on that GPU's device thread, which has others' batches to copy. */
#include <stdlib.h>
#include <string.h>

#include "cuda_internal.h"
#include "error.h"
#include "list.h"
#include "normalize_cuda.h"

#define PIN_STEP (64ull << 20) /* bytes pinned between two looks at the queue of copies */

/* What a worker asks of the device thread; what it points to is the worker's. */
struct ring_call {
    struct cuda_call call;
    struct cuda_ring *ring;
    int status;
    struct feedd_error *err;
};

struct pin_call {
    struct cuda_call call;
    struct staging *staging;
    int status;
    struct feedd_error *err;
};

/* ---- making and freeing ---- */

static int allocation_failed(struct cuda_gpu *gpu, cudaError_t error, const char *what, uint64_t bytes,
                             struct feedd_error *err)
{
    size_t free_bytes = 0, total_bytes = 0;
    if (error != cudaErrorMemoryAllocation)
        return cuda_failed(gpu, error, what, err);
    cudaGetLastError();
    cudaMemGetInfo(&free_bytes, &total_bytes);
    return error_set(err, FEEDD_E_MEMORY, "%s (%s): a ring needs %llu bytes of its memory; %zu of %zu are free",
                     gpu->gpu.uuid, gpu->gpu.name, (unsigned long long)bytes, free_bytes, total_bytes);
}

static int allocate_slab(struct cuda_gpu *gpu, struct cuda_ring *ring, struct feedd_error *err)
{
    const struct ring_spec *spec = &ring->ring.spec;
    const char *what = "allocating a ring";
    void *slab = NULL;
    cudaError_t error;
    if (spec->transport == TRANSPORT_FD) {
        error = cuda_fd_allocate(gpu, gpu_slab_bytes(spec), &ring->fd_memory, &what);
        slab = (void *)(uintptr_t)ring->fd_memory.address;
    } else {
        error = cudaMalloc(&slab, gpu_slab_bytes(spec));
    }
    if (error != cudaSuccess)
        return allocation_failed(gpu, error, what, gpu_ring_bytes(spec), err);
    ring->slab = slab;
    return 0;
}

static int prepare_normalizing(struct cuda_gpu *gpu, struct cuda_ring *ring, struct feedd_error *err)
{
    const struct ring_spec *spec = &ring->ring.spec;
    void *scratch = NULL;
    cudaStream_t stream = NULL;
    cudaError_t error = cudaMalloc(&scratch, gpu_scratch_bytes(spec));
    if (error != cudaSuccess)
        return allocation_failed(gpu, error, "allocating scratch images", gpu_ring_bytes(spec), err);
    ring->scratch = scratch;
    if (gpu->kernel_stream != NULL)
        return 0;
    error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (error != cudaSuccess)
        return cuda_failed(gpu, error, "making a stream for kernels", err);
    gpu->kernel_stream = stream;
    return 0;
}

static int create_events(struct cuda_gpu *gpu, struct cuda_ring *ring, struct feedd_error *err)
{
    const uint32_t count = ring->ring.spec.staging->depth + (ring->scratch != NULL ? GPU_SCRATCH_IMAGES : 0);
    ring->events = calloc(count, sizeof(cudaEvent_t));
    if (ring->events == NULL)
        return error_set(err, FEEDD_E_MEMORY, "no memory for %u events", count);
    for (; ring->event_count < count; ring->event_count++) {
        cudaError_t error =
            cudaEventCreateWithFlags(&ring->events[ring->event_count], cudaEventBlockingSync | cudaEventDisableTiming);
        if (error != cudaSuccess)
            return cuda_failed(gpu, error, "creating an event", err);
    }
    return 0;
}

/* Others' batches may have been in that memory before; nobody sees them. The nonce goes where clients look for it. */
static int fill_slab(struct cuda_gpu *gpu, struct cuda_ring *ring, struct feedd_error *err)
{
    const struct ring_spec *spec = &ring->ring.spec;
    uint8_t *proof = ring->slab + slot_ring_bytes(&spec->layout, spec->staging->depth) - SLOT_PROOF_BYTES;
    cudaError_t error = cudaMemsetAsync(ring->slab, 0, gpu_slab_bytes(spec), gpu->stream);
    if (error == cudaSuccess)
        error =
            cudaMemcpyAsync(proof, &ring->ring.nonce, sizeof(ring->ring.nonce), cudaMemcpyHostToDevice, gpu->stream);
    if (error == cudaSuccess)
        error = cudaStreamSynchronize(gpu->stream);
    return error == cudaSuccess ? 0 : cuda_failed(gpu, error, "filling a new ring", err);
}

static int share_slab(struct cuda_gpu *gpu, struct cuda_ring *ring, struct feedd_error *err)
{
    cudaIpcMemHandle_t handle;
    _Static_assert(sizeof(handle) == RING_HANDLE_BYTES, "as announced");
    ring->ring.ring_fd = ring->fd_memory.fd;
    ring->ring.ring_fd_bytes = ring->fd_memory.bytes;
    if (ring->ring.spec.transport != TRANSPORT_IPC)
        return 0;
    cudaError_t error = cudaIpcGetMemHandle(&handle, ring->slab);
    if (error != cudaSuccess)
        return cuda_failed(gpu, error, "sharing a ring by CUDA IPC", err);
    memcpy(ring->ring.ipc_handle, &handle, sizeof(handle));
    ring->ring.ipc_offset = 0; /* the slab is an allocation of its own */
    return 0;
}

static void make_ring(struct cuda_gpu *gpu, struct cuda_call *base)
{
    struct ring_call *call = container_of(base, struct ring_call, call);
    struct cuda_ring *ring = call->ring;
    if (atomic_load_explicit(&gpu->gpu.state, memory_order_relaxed) == GPU_DOWN) {
        call->status = error_set(call->err, FEEDD_E_DEVICE, "%s (%s) is down: %.700s", gpu->gpu.uuid, gpu->gpu.name,
                                 gpu->gpu.error.message);
        return;
    }
    call->status = allocate_slab(gpu, ring, call->err);
    cuda_serve_copies(gpu);
    if (call->status == 0 && ring->ring.spec.normalize)
        call->status = prepare_normalizing(gpu, ring, call->err);
    if (call->status == 0)
        call->status = create_events(gpu, ring, call->err);
    if (call->status == 0)
        call->status = fill_slab(gpu, ring, call->err);
    if (call->status == 0)
        call->status = share_slab(gpu, ring, call->err);
}

static void unmake_ring(struct cuda_gpu *gpu, struct cuda_call *base)
{
    struct cuda_ring *ring = container_of(base, struct ring_call, call)->ring;
    for (uint32_t i = 0; i < ring->event_count; i++)
        cuda_check_freed(gpu, cudaEventDestroy(ring->events[i]), "destroying an event");
    if (ring->scratch != NULL)
        cuda_check_freed(gpu, cudaFree(ring->scratch), "freeing scratch images");
    cuda_serve_copies(gpu);
    if (ring->ring.spec.transport == TRANSPORT_FD) {
        /* As cudaFree() waits: filling may have failed half-way. */
        cuda_check_freed(gpu, cudaStreamSynchronize(gpu->stream), "waiting for what uses a ring");
        cuda_fd_free(gpu, &ring->fd_memory);
    } else if (ring->slab != NULL) {
        cuda_check_freed(gpu, cudaFree(ring->slab), "freeing a ring");
    }
}

/* ---- pinning ---- */

static void unpin_to(struct cuda_gpu *gpu, struct staging *staging, uint64_t end)
{
    for (uint64_t at = 0; at < end; at += staging->pinned_step) {
        cuda_check_freed(gpu, cudaHostUnregister(staging->memory + at), "unregistering host memory");
        cuda_serve_copies(gpu);
    }
}

static void pin_staging(struct cuda_gpu *gpu, struct cuda_call *base)
{
    struct pin_call *call = container_of(base, struct pin_call, call);
    struct staging *staging = call->staging;
    const uint64_t slot_bytes = staging->layout.slot_bytes;
    const uint64_t bytes = slot_ring_bytes(&staging->layout, staging->depth); /* the proof's page included */
    staging->pinned_step = slot_bytes > PIN_STEP ? slot_bytes : PIN_STEP / slot_bytes * slot_bytes;
    for (uint64_t at = 0, step; at < bytes; at += step) {
        step = bytes - at < staging->pinned_step ? bytes - at : staging->pinned_step;
        cudaError_t error = cudaHostRegister(staging->memory + at, step, cudaHostRegisterPortable);
        if (error == cudaErrorMemoryAllocation) {
            cudaGetLastError();
            call->status =
                error_set(call->err, FEEDD_E_MEMORY, "%s (%s): %llu bytes of host memory can't be pinned: %s",
                          gpu->gpu.uuid, gpu->gpu.name, (unsigned long long)bytes, cudaGetErrorString(error));
        } else if (error != cudaSuccess) {
            call->status = cuda_failed(gpu, error, "registering host memory", call->err);
        }
        if (error != cudaSuccess) {
            unpin_to(gpu, staging, at);
            return;
        }
        cuda_serve_copies(gpu);
    }
    staging->pinned_by = &gpu->gpu;
}

static int pin(struct cuda_gpu *gpu, struct staging *staging, struct feedd_error *err)
{
    struct pin_call call = {.call.run = pin_staging, .staging = staging, .err = err};
    pthread_mutex_lock(&staging->lock);
    if (staging->pinned_by == NULL)
        cuda_call(gpu, &call.call);
    pthread_mutex_unlock(&staging->lock);
    return call.status;
}

static void unpin_staging(struct cuda_gpu *gpu, struct cuda_call *base)
{
    struct staging *staging = container_of(base, struct pin_call, call)->staging;
    unpin_to(gpu, staging, slot_ring_bytes(&staging->layout, staging->depth));
}

static void cuda_unpin(struct staging *staging)
{
    struct pin_call call = {.call.run = unpin_staging, .staging = staging};
    cuda_call((struct cuda_gpu *)staging->pinned_by, &call.call);
    staging->pinned_by = NULL;
}

/* ---- the workers' part ---- */

static int check_spec(const struct cuda_gpu *gpu, const struct ring_spec *spec, struct feedd_error *err)
{
    const uint64_t sample_bytes = spec->staging->layout.fields[0].sample_bytes;
    if (spec->transport == TRANSPORT_FD && gpu->fd_lacks != NULL)
        return error_set(err, FEEDD_E_UNSUPPORTED, "%s (%s): transport fd needs %s, which it or its driver lacks",
                         gpu->gpu.uuid, gpu->gpu.name, gpu->fd_lacks);
    if (spec->normalize && sample_bytes > NORMALIZE_CUDA_SAMPLE_MAX)
        return error_set(err, FEEDD_E_LIMIT,
                         "samples of %llu bytes can't be normalised on a GPU: at most %u are allowed",
                         (unsigned long long)sample_bytes, NORMALIZE_CUDA_SAMPLE_MAX);
    return 0;
}

static void cuda_ring_free(struct ring *base)
{
    struct cuda_ring *ring = (struct cuda_ring *)base;
    struct ring_call call = {.call.run = unmake_ring, .ring = ring};
    cuda_call(ring->gpu, &call.call);
    free(ring->events);
    ring_meta_free(base);
    free(ring);
}

static int cuda_ring_new(const struct ring_spec *spec, struct ring **out, struct feedd_error *err)
{
    struct cuda_gpu *gpu = (struct cuda_gpu *)spec->gpu;
    int status = check_spec(gpu, spec, err);
    if (status != 0)
        return status;
    struct cuda_ring *ring = calloc(1, sizeof(*ring));
    if (ring == NULL)
        return error_set(err, FEEDD_E_MEMORY, "no memory for a ring");
    ring->ring.ops = &backend_cuda;
    ring->ring.spec = *spec;
    ring->ring.ring_fd = -1;
    ring->fd_memory.fd = -1;
    ring->gpu = gpu;
    struct ring_call call = {.call.run = make_ring, .ring = ring, .err = err};
    status = backend_nonce(&ring->ring.nonce, err);
    if (status == 0)
        status = ring_meta_new(&ring->ring, err);
    if (status == 0) {
        cuda_call(gpu, &call.call);
        status = call.status;
    }
    if (status == 0)
        status = pin(gpu, spec->staging, err); /* last: it is the slow step, and stays when the ring is freed */
    if (status == 0)
        *out = &ring->ring;
    else
        cuda_ring_free(&ring->ring);
    return status;
}

const struct backend_ops backend_cuda = {
    .name = "cuda",
    .placement_is_staging = false,
    .ring_new = cuda_ring_new,
    .copy = cuda_copy,
    .ring_free = cuda_ring_free,
    .unpin = cuda_unpin,
};
