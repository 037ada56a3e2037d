/* cuda.c - batches in the memory of NVIDIA GPUs, for clients that map it by CUDA IPC. The only caller of CUDA in the
 * daemon.
 *
 * Happy path of a ring: staging slots as the host backend makes them -> one slab of GPU memory -> the slots registered
 * with the GPU -> the nonce copied behind the last placement -> the slab's IPC handle. Of a batch: the loop queues a
 * copy -> the device thread submits it and an event -> the completion thread waits for the event and posts the batch to
 * the loop. So READY is sent after the bytes have arrived, and no client waits for an event of ours.
 * What can fail: a GPU that doesn't come up is down; a ring that can't be made is an error to who asked, with all
 * undone; a copy that fails ends its stream; and a context that has failed for good (CUDA calls such errors sticky)
 * answers everything with its error, and the loop is told once.
 *
 * Threads: a GPU has two. The *device* thread makes every call but one: it submits copies as they come, and between
 * them makes and frees rings, in steps (a slot's worth of registering at a time), so that a large ring doesn't hold up
 * the copies of others. The *completion* thread waits for events, which sleeps, and does nothing else. Workers that
 * want a ring wait for the device thread. All copies of a GPU go through one CUDA stream: its copy engine takes one
 * after the other anyway, and so they end in the order in which they were submitted. Two streams, used in turn, were 5
 * to 8 % slower (H200). */
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "error.h"
#include "gpu.h"
#include "list.h"
#include "log.h"

#define COPIES_BETWEEN 16u            /* copies submitted between two steps of other work, while more are asked for */
#define REGISTER_STEP  (64ull << 20)  /* bytes registered between two looks at the queue of copies: about 5 ms */
#define SUBMITTED_MAX  (128ull << 20) /* bytes of one ring's copies that the driver has at a time: 2 ms of the link */

struct cuda_gpu;

/* Something that a worker waits for while the device thread does it. */
struct call {
    struct call *next;
    void (*run)(struct cuda_gpu *gpu, struct call *call);
    bool done;
};

struct copies {
    struct ring_copy *first, *last;
};

struct cuda_gpu {
    struct gpu gpu;
    int ordinal; /* of CUDA's, in this process */
    struct inbox *inbox;
    void (*lost)(void *arg, const struct gpu *gpu, const struct feedd_error *err);
    void *lost_arg;
    pthread_t device_thread, completion_thread;
    /* of the device thread, once it is up */
    cudaStream_t stream;
    /* under the lock */
    pthread_mutex_t lock;
    pthread_cond_t device_wake, completion_wake, call_done;
    struct copies asked, submitted; /* by the loop; by the device thread, in the order of the stream */
    struct call *calls, **calls_end;
    bool stop, completion_stop;
    struct feedd_error lost_error; /* status != 0: its context has failed for good */
    struct inbox_item lost_item;
};

struct cuda_ring {
    struct ring ring;
    struct cuda_gpu *gpu;
    uint8_t *slab;
    uint64_t registered_bytes; /* of the staging slots, from their start, in pieces of register_bytes */
    uint64_t register_bytes;   /* a multiple of slot_bytes: a copy never spans two registrations */
    uint64_t submitted_bytes;  /* of its copies that the driver has; under the GPU's lock, as their count */
    uint32_t submitted_count;
    cudaEvent_t *arrived; /* one a staging slot */
    uint32_t event_count;
};

/* ---- errors ---- */

static void tell_lost(struct inbox_item *item)
{
    struct cuda_gpu *gpu = container_of(item, struct cuda_gpu, lost_item);
    gpu->lost(gpu->lost_arg, &gpu->gpu, &gpu->lost_error);
}

/* What a CUDA call answered, as one line, and whether the context still lives: after an error it is asked something
 * harmless. @return FEEDD_E_DEVICE, always */
static int cuda_failed(struct cuda_gpu *gpu, cudaError_t error, const char *what, struct feedd_error *err)
{
    int status = error_set(err, FEEDD_E_DEVICE, "%s (%s): %s: %s (%s)", gpu->gpu.uuid, gpu->gpu.name, what,
                           cudaGetErrorString(error), cudaGetErrorName(error));
    cudaGetLastError(); /* else an error that isn't sticky would be answered again by a later call */
    if (gpu->stream == NULL)
        return status; /* it isn't up yet */
    cudaError_t alive = cudaStreamQuery(gpu->stream);
    if (alive == cudaSuccess || alive == cudaErrorNotReady)
        return status;
    pthread_mutex_lock(&gpu->lock);
    bool first = gpu->lost_error.status == 0;
    if (first)
        gpu->lost_error = *err;
    pthread_mutex_unlock(&gpu->lock);
    if (first)
        inbox_post(gpu->inbox, &gpu->lost_item);
    return status;
}

/* Its context has failed for good, which was told once. */
static bool is_lost(struct cuda_gpu *gpu)
{
    pthread_mutex_lock(&gpu->lock);
    bool lost = gpu->lost_error.status != 0;
    pthread_mutex_unlock(&gpu->lock);
    return lost;
}

/* ---- copies ---- */

static void push(struct copies *list, struct ring_copy *copy)
{
    copy->next = NULL;
    if (list->first == NULL)
        list->first = copy;
    else
        list->last->next = copy;
    list->last = copy;
}

static struct ring_copy *pop(struct copies *list)
{
    struct ring_copy *copy = list->first;
    if (copy != NULL)
        list->first = copy->next;
    return copy;
}

/* The next copy that may be submitted. What a ring may have submitted is bounded: else a large one that fills for the
 * first time would put gigabytes before everybody else's next batch. Under the lock. */
static struct ring_copy *take_asked(struct cuda_gpu *gpu)
{
    struct ring_copy *before = NULL, *copy = gpu->asked.first;
    for (; copy != NULL; before = copy, copy = copy->next) {
        struct cuda_ring *ring = (struct cuda_ring *)copy->ring;
        if (ring->submitted_count >= 2 && ring->submitted_bytes + copy->bytes > SUBMITTED_MAX)
            continue;
        ring->submitted_count++;
        ring->submitted_bytes += copy->bytes;
        if (before == NULL)
            gpu->asked.first = copy->next;
        else
            before->next = copy->next;
        if (copy == gpu->asked.last)
            gpu->asked.last = before;
        break;
    }
    return copy;
}

static void cuda_copy(struct ring *base, uint32_t staging, uint32_t placement, size_t used_bytes,
                      struct ring_copy *copy)
{
    struct cuda_gpu *gpu = ((struct cuda_ring *)base)->gpu;
    copy->ring = base;
    copy->staging = staging;
    copy->placement = placement;
    copy->bytes = used_bytes;
    copy->status = 0;
    pthread_mutex_lock(&gpu->lock);
    push(&gpu->asked, copy);
    pthread_cond_signal(&gpu->device_wake);
    pthread_mutex_unlock(&gpu->lock);
}

static void submit(struct cuda_gpu *gpu, struct ring_copy *copy)
{
    const struct cuda_ring *ring = (const struct cuda_ring *)copy->ring;
    uint64_t slot_bytes = ring->ring.spec.layout.slot_bytes;
    copy->submitted_ns = clock_ns();
    cudaError_t error =
        cudaMemcpyAsync(ring->slab + copy->placement * slot_bytes, ring->ring.staging + copy->staging * slot_bytes,
                        copy->bytes, cudaMemcpyHostToDevice, gpu->stream);
    if (error == cudaSuccess)
        error = cudaEventRecord(ring->arrived[copy->staging], gpu->stream);
    if (error != cudaSuccess)
        copy->status = cuda_failed(gpu, error, "copying a batch", &copy->error);
    pthread_mutex_lock(&gpu->lock);
    push(&gpu->submitted, copy);
    pthread_cond_signal(&gpu->completion_wake);
    pthread_mutex_unlock(&gpu->lock);
}

/* Device thread: submits what has been asked for, but doesn't stay for all that is asked for meanwhile. */
static void serve_copies(struct cuda_gpu *gpu)
{
    for (unsigned i = 0; i < COPIES_BETWEEN; i++) {
        pthread_mutex_lock(&gpu->lock);
        struct ring_copy *copy = take_asked(gpu);
        pthread_mutex_unlock(&gpu->lock);
        if (copy == NULL)
            return;
        submit(gpu, copy);
    }
}

/* Completion thread: a copy that was submitted has ended, well or not. */
static void await_copy(struct cuda_gpu *gpu, struct ring_copy *copy, uint64_t *last_ns)
{
    struct cuda_ring *ring = (struct cuda_ring *)copy->ring;
    if (copy->status == 0) {
        cudaError_t error = cudaEventSynchronize(ring->arrived[copy->staging]);
        if (error != cudaSuccess)
            copy->status = cuda_failed(gpu, error, "copying a batch", &copy->error);
    }
    copy->done_ns = clock_ns();
    if (copy->status == 0) {
        uint64_t began_ns = copy->submitted_ns > *last_ns ? copy->submitted_ns : *last_ns;
        atomic_fetch_add_explicit(&gpu->gpu.stats.copies, 1, memory_order_relaxed);
        atomic_fetch_add_explicit(&gpu->gpu.stats.copied_bytes, copy->bytes, memory_order_relaxed);
        atomic_fetch_add_explicit(&gpu->gpu.stats.copy_ns, copy->done_ns - began_ns, memory_order_relaxed);
    }
    *last_ns = copy->done_ns;
    pthread_mutex_lock(&gpu->lock);
    ring->submitted_count--;
    ring->submitted_bytes -= copy->bytes;
    if (gpu->asked.first != NULL)
        pthread_cond_signal(&gpu->device_wake);
    pthread_mutex_unlock(&gpu->lock);
    inbox_post(gpu->inbox, &copy->done);
}

static void *completion_main(void *arg)
{
    struct cuda_gpu *gpu = arg;
    uint64_t last_ns = 0;
    cudaSetDevice(gpu->ordinal); /* as the device thread did, which has said whether that works */
    pthread_mutex_lock(&gpu->lock);
    for (;;) {
        struct ring_copy *copy = pop(&gpu->submitted);
        if (copy != NULL) {
            pthread_mutex_unlock(&gpu->lock);
            await_copy(gpu, copy, &last_ns);
            pthread_mutex_lock(&gpu->lock);
        } else if (gpu->completion_stop) {
            break;
        } else {
            pthread_cond_wait(&gpu->completion_wake, &gpu->lock);
        }
    }
    pthread_mutex_unlock(&gpu->lock);
    return NULL;
}

/* ---- rings ---- */

/* What a worker asks of the device thread; `ring` and `err` are the worker's. */
struct ring_call {
    struct call call;
    struct cuda_ring *ring;
    int status;
    struct feedd_error *err;
};

static int no_memory(struct cuda_gpu *gpu, uint64_t bytes, struct feedd_error *err)
{
    size_t free_bytes = 0, total_bytes = 0;
    cudaGetLastError();
    cudaMemGetInfo(&free_bytes, &total_bytes);
    return error_set(err, FEEDD_E_MEMORY, "%s (%s): a ring needs %llu bytes of its memory; %zu of %zu are free",
                     gpu->gpu.uuid, gpu->gpu.name, (unsigned long long)bytes, free_bytes, total_bytes);
}

static int allocate_slab(struct cuda_gpu *gpu, struct cuda_ring *ring, struct feedd_error *err)
{
    const struct ring_spec *spec = &ring->ring.spec;
    uint64_t bytes = gpu_slab_bytes(&spec->layout, spec->depth);
    void *slab = NULL;
    cudaError_t error = cudaMalloc(&slab, bytes);
    if (error == cudaErrorMemoryAllocation)
        return no_memory(gpu, bytes, err);
    if (error != cudaSuccess)
        return cuda_failed(gpu, error, "allocating a ring", err);
    ring->slab = slab;
    return 0;
}

/* In pieces, between which the copies of other streams go on. */
static int register_staging(struct cuda_gpu *gpu, struct cuda_ring *ring, struct feedd_error *err)
{
    const struct ring_spec *spec = &ring->ring.spec;
    uint64_t slot_bytes = spec->layout.slot_bytes;
    uint64_t bytes = slot_ring_bytes(&spec->layout, spec->depth); /* the proof's page included */
    ring->register_bytes = slot_bytes > REGISTER_STEP ? slot_bytes : REGISTER_STEP / slot_bytes * slot_bytes;
    while (ring->registered_bytes < bytes) {
        uint64_t left = bytes - ring->registered_bytes;
        uint64_t step = left < ring->register_bytes ? left : ring->register_bytes;
        cudaError_t error =
            cudaHostRegister(ring->ring.staging + ring->registered_bytes, step, cudaHostRegisterDefault);
        if (error == cudaErrorMemoryAllocation) {
            cudaGetLastError();
            return error_set(err, FEEDD_E_MEMORY, "%s (%s): %llu bytes of host memory can't be pinned: %s",
                             gpu->gpu.uuid, gpu->gpu.name, (unsigned long long)bytes, cudaGetErrorString(error));
        }
        if (error != cudaSuccess)
            return cuda_failed(gpu, error, "registering host memory", err);
        ring->registered_bytes += step;
        serve_copies(gpu);
    }
    return 0;
}

static int create_events(struct cuda_gpu *gpu, struct cuda_ring *ring, struct feedd_error *err)
{
    uint32_t depth = ring->ring.spec.depth;
    ring->arrived = calloc(depth, sizeof(cudaEvent_t));
    if (ring->arrived == NULL)
        return error_set(err, FEEDD_E_MEMORY, "no memory for the events of %u slots", depth);
    for (; ring->event_count < depth; ring->event_count++) {
        cudaError_t error =
            cudaEventCreateWithFlags(&ring->arrived[ring->event_count], cudaEventBlockingSync | cudaEventDisableTiming);
        if (error != cudaSuccess)
            return cuda_failed(gpu, error, "creating an event", err);
    }
    return 0;
}

/* The nonce goes where clients look for it, and the slab gets a handle. */
static int publish_slab(struct cuda_gpu *gpu, struct cuda_ring *ring, struct feedd_error *err)
{
    const struct ring_spec *spec = &ring->ring.spec;
    uint64_t proof = slot_ring_bytes(&spec->layout, spec->depth) - SLOT_PROOF_BYTES;
    cudaIpcMemHandle_t handle;
    _Static_assert(sizeof(handle) == RING_HANDLE_BYTES, "as announced");
    cudaError_t error = cudaMemcpyAsync(ring->slab + proof, ring->ring.staging + proof, SLOT_PROOF_BYTES,
                                        cudaMemcpyHostToDevice, gpu->stream);
    if (error == cudaSuccess)
        error = cudaStreamSynchronize(gpu->stream);
    if (error != cudaSuccess)
        return cuda_failed(gpu, error, "copying to a new ring", err);
    error = cudaIpcGetMemHandle(&handle, ring->slab);
    if (error != cudaSuccess)
        return cuda_failed(gpu, error, "sharing a ring by CUDA IPC", err);
    memcpy(ring->ring.ipc_handle, &handle, sizeof(handle));
    ring->ring.ipc_offset = 0; /* the slab is an allocation of its own */
    return 0;
}

static void make_ring(struct cuda_gpu *gpu, struct call *base)
{
    struct ring_call *call = container_of(base, struct ring_call, call);
    struct cuda_ring *ring = call->ring;
    if (atomic_load_explicit(&gpu->gpu.state, memory_order_relaxed) == GPU_DOWN) {
        call->status = error_set(call->err, FEEDD_E_DEVICE, "%s (%s) is down: %.700s", gpu->gpu.uuid, gpu->gpu.name,
                                 gpu->gpu.error.message);
        return;
    }
    call->status = allocate_slab(gpu, ring, call->err);
    serve_copies(gpu);
    if (call->status == 0)
        call->status = register_staging(gpu, ring, call->err);
    if (call->status == 0)
        call->status = create_events(gpu, ring, call->err);
    if (call->status == 0)
        call->status = publish_slab(gpu, ring, call->err);
}

/* A step of freeing that fails is worth a line and no more: the others free what they can. */
static void check_freed(struct cuda_gpu *gpu, cudaError_t error, const char *what)
{
    struct feedd_error err;
    if (error == cudaSuccess || is_lost(gpu))
        return;
    cuda_failed(gpu, error, what, &err);
    log_error("%s", err.message);
}

static void unmake_ring(struct cuda_gpu *gpu, struct call *base)
{
    struct cuda_ring *ring = container_of(base, struct ring_call, call)->ring;
    for (uint32_t i = 0; i < ring->event_count; i++)
        check_freed(gpu, cudaEventDestroy(ring->arrived[i]), "destroying an event");
    for (uint64_t at = 0; at < ring->registered_bytes; at += ring->register_bytes) {
        check_freed(gpu, cudaHostUnregister(ring->ring.staging + at), "unregistering host memory");
        serve_copies(gpu);
    }
    if (ring->slab != NULL)
        check_freed(gpu, cudaFree(ring->slab), "freeing a ring");
}

/* Worker: has the device thread do something, and waits for it. */
static void call_device(struct cuda_gpu *gpu, struct call *call)
{
    call->next = NULL;
    call->done = false;
    pthread_mutex_lock(&gpu->lock);
    *gpu->calls_end = call;
    gpu->calls_end = &call->next;
    pthread_cond_signal(&gpu->device_wake);
    while (!call->done)
        pthread_cond_wait(&gpu->call_done, &gpu->lock);
    pthread_mutex_unlock(&gpu->lock);
}

static void cuda_ring_free(struct ring *base)
{
    struct cuda_ring *ring = (struct cuda_ring *)base;
    struct ring_call call = {.call.run = unmake_ring, .ring = ring};
    if (ring->slab != NULL)
        call_device(ring->gpu, &call.call);
    free(ring->arrived);
    ring_memory_free(base);
    free(ring);
}

static int cuda_ring_new(const struct ring_spec *spec, struct ring **out, struct feedd_error *err)
{
    struct cuda_ring *ring = calloc(1, sizeof(*ring));
    if (ring == NULL)
        return error_set(err, FEEDD_E_MEMORY, "no memory for a ring");
    ring->ring.ops = &backend_cuda;
    ring->ring.spec = *spec;
    ring->gpu = (struct cuda_gpu *)spec->gpu;
    int status = ring_memory_new(&ring->ring, err);
    struct ring_call call = {.call.run = make_ring, .ring = ring, .err = err};
    if (status == 0) {
        call_device(ring->gpu, &call.call);
        status = call.status;
    }
    if (status == 0)
        *out = &ring->ring;
    else
        cuda_ring_free(&ring->ring);
    return status;
}

const struct backend_ops backend_cuda = {
    .name = "cuda",
    .transport = "ipc",
    .placement_is_staging = false,
    .ring_new = cuda_ring_new,
    .copy = cuda_copy,
    .ring_free = cuda_ring_free,
};

/* ---- coming up ---- */

static int bring_up(struct cuda_gpu *gpu, struct feedd_error *err)
{
    cudaStream_t stream = NULL;
    cudaError_t error = cudaSetDevice(gpu->ordinal);
    if (error == cudaSuccess)
        error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking); /* the first call that needs a context */
    if (error != cudaSuccess)
        return cuda_failed(gpu, error, "making a context", err);
    gpu->stream = stream;
    return 0;
}

static void *device_main(void *arg)
{
    struct cuda_gpu *gpu = arg;
    if (bring_up(gpu, &gpu->gpu.error) == 0) {
        atomic_store_explicit(&gpu->gpu.state, GPU_UP, memory_order_release);
        log_info("GPU %s (%s, %llu MiB): up", gpu->gpu.uuid, gpu->gpu.name,
                 (unsigned long long)(gpu->gpu.memory_bytes >> 20));
    } else {
        log_error("GPU is down: %s", gpu->gpu.error.message);
        atomic_store_explicit(&gpu->gpu.state, GPU_DOWN, memory_order_release);
    }
    unsigned submitted = 0; /* copies since the last call */
    pthread_mutex_lock(&gpu->lock);
    for (;;) {
        struct call *call = gpu->calls;
        struct ring_copy *copy = call == NULL || submitted < COPIES_BETWEEN ? take_asked(gpu) : NULL;
        if (copy != NULL) {
            submitted++;
            pthread_mutex_unlock(&gpu->lock);
            submit(gpu, copy);
            pthread_mutex_lock(&gpu->lock);
        } else if (call != NULL) {
            gpu->calls = call->next;
            if (gpu->calls == NULL)
                gpu->calls_end = &gpu->calls;
            submitted = 0;
            pthread_mutex_unlock(&gpu->lock);
            call->run(gpu, call);
            pthread_mutex_lock(&gpu->lock);
            call->done = true;
            pthread_cond_broadcast(&gpu->call_done);
        } else if (gpu->stop) {
            break;
        } else {
            pthread_cond_wait(&gpu->device_wake, &gpu->lock);
        }
    }
    pthread_mutex_unlock(&gpu->lock);
    if (gpu->stream != NULL)
        cudaStreamDestroy(gpu->stream);
    return NULL;
}

/* As nvidia-smi writes it: a UUID of RFC 9562 behind "GPU-". */
static void format_uuid(const cudaUUID_t *uuid, char text[FEEDD_UUID_TEXT])
{
    size_t at = (size_t)sprintf(text, "GPU-");
    for (int i = 0; i < 16; i++)
        at += (size_t)sprintf(text + at, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                              (unsigned char)uuid->bytes[i]);
}

static int start_threads(struct cuda_gpu *gpu)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are the loop's */
    int rc = pthread_create(&gpu->device_thread, NULL, device_main, gpu);
    if (rc == 0) {
        rc = pthread_create(&gpu->completion_thread, NULL, completion_main, gpu);
        if (rc != 0) {
            pthread_mutex_lock(&gpu->lock);
            gpu->stop = true;
            pthread_cond_signal(&gpu->device_wake);
            pthread_mutex_unlock(&gpu->lock);
            pthread_join(gpu->device_thread, NULL);
        }
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc;
}

static void gpu_free(struct cuda_gpu *gpu)
{
    pthread_mutex_destroy(&gpu->lock);
    pthread_cond_destroy(&gpu->device_wake);
    pthread_cond_destroy(&gpu->completion_wake);
    pthread_cond_destroy(&gpu->call_done);
    free(gpu);
}

static void stop_gpu(struct cuda_gpu *gpu)
{
    pthread_mutex_lock(&gpu->lock);
    gpu->completion_stop = true;
    pthread_cond_signal(&gpu->completion_wake);
    pthread_mutex_unlock(&gpu->lock);
    pthread_join(gpu->completion_thread, NULL);
    pthread_mutex_lock(&gpu->lock);
    gpu->stop = true;
    pthread_cond_signal(&gpu->device_wake);
    pthread_mutex_unlock(&gpu->lock);
    pthread_join(gpu->device_thread, NULL);
    gpu_free(gpu);
}

static bool is_wanted(const char *uuid, char *const *wanted, uint32_t wanted_count)
{
    for (uint32_t i = 0; wanted != NULL && i < wanted_count; i++)
        if (strcmp(wanted[i], uuid) == 0)
            return true;
    return wanted == NULL;
}

/* @return 0 and *out, or NULL in it where it isn't wanted */
static int start_gpu(int ordinal, char *const *wanted, uint32_t wanted_count, const struct cuda_gpu *like,
                     struct gpu **out, struct feedd_error *err)
{
    struct cudaDeviceProp properties;
    char uuid[FEEDD_UUID_TEXT];
    *out = NULL;
    cudaError_t error = cudaGetDeviceProperties(&properties, ordinal);
    if (error != cudaSuccess) {
        log_error("GPU number %d is left out, without its UUID nobody can ask for it: %s", ordinal,
                  cudaGetErrorString(error));
        return 0;
    }
    format_uuid(&properties.uuid, uuid);
    if (!is_wanted(uuid, wanted, wanted_count))
        return 0;
    struct cuda_gpu *gpu = calloc(1, sizeof(*gpu));
    if (gpu == NULL)
        return error_set(err, FEEDD_E_MEMORY, "no memory for a GPU");
    *gpu = *like;
    gpu->ordinal = ordinal;
    gpu->gpu.backend = &backend_cuda;
    gpu->gpu.memory_bytes = properties.totalGlobalMem;
    strcpy(gpu->gpu.uuid, uuid);
    snprintf(gpu->gpu.name, sizeof(gpu->gpu.name), "%s", properties.name);
    gpu->lost_item.run = tell_lost;
    gpu->calls_end = &gpu->calls;
    pthread_mutex_init(&gpu->lock, NULL);
    pthread_cond_init(&gpu->device_wake, NULL);
    pthread_cond_init(&gpu->completion_wake, NULL);
    pthread_cond_init(&gpu->call_done, NULL);
    if (start_threads(gpu) != 0) {
        gpu_free(gpu);
        return error_set(err, FEEDD_E_MEMORY, "no threads for a GPU");
    }
    *out = &gpu->gpu;
    return 0;
}

static bool is_driven(const struct gpus *gpus, const char *uuid)
{
    for (uint32_t i = 0; i < gpus->count; i++)
        if (strcmp(gpus->gpu[i]->uuid, uuid) == 0)
            return true;
    return false;
}

int gpus_start(struct gpus *gpus, char *const *wanted, uint32_t wanted_count, struct inbox *inbox,
               void (*lost)(void *arg, const struct gpu *gpu, const struct feedd_error *err), void *arg,
               struct feedd_error *err)
{
    *gpus = (struct gpus){.count = 0};
    if (wanted != NULL && wanted_count == 0) {
        snprintf(gpus->absent, sizeof(gpus->absent), "its configuration says `gpus: none`");
        return 0;
    }
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess)
        count = 0;
    if (error == cudaErrorInsufficientDriver)
        snprintf(gpus->absent, sizeof(gpus->absent), "no NVIDIA driver is installed here, or one before CUDA 12.4");
    else
        snprintf(gpus->absent, sizeof(gpus->absent), "%s%s",
                 cudaGetErrorString(error == cudaSuccess ? cudaErrorNoDevice : error),
                 getenv("CUDA_VISIBLE_DEVICES") != NULL ? ", of those that CUDA_VISIBLE_DEVICES shows" : "");
    const struct cuda_gpu like = {.inbox = inbox, .lost = lost, .lost_arg = arg};
    int status = 0;
    gpus->gpu = calloc((size_t)count + 1, sizeof(*gpus->gpu));
    if (gpus->gpu == NULL)
        return error_set(err, FEEDD_E_MEMORY, "no memory for %d GPUs", count);
    for (int i = 0; status == 0 && i < count; i++) {
        status = start_gpu(i, wanted, wanted_count, &like, &gpus->gpu[gpus->count], err);
        gpus->count += gpus->gpu[gpus->count] != NULL;
    }
    for (uint32_t i = 0; status == 0 && wanted != NULL && i < wanted_count; i++)
        if (!is_driven(gpus, wanted[i]))
            status = error_set(err, FEEDD_E_DEVICE, "GPU %s isn't here: %s", wanted[i],
                               count > 0 ? "this machine has others (nvidia-smi -L)" : gpus->absent);
    if (status != 0)
        gpus_stop(gpus);
    return status;
}

void gpus_stop(struct gpus *gpus)
{
    for (uint32_t i = 0; i < gpus->count; i++)
        stop_gpu((struct cuda_gpu *)gpus->gpu[i]);
    free(gpus->gpu);
    *gpus = (struct gpus){.count = 0};
}
