/* cuda.c - the threads of a GPU: copies of batches, and what else the device thread is asked to do.
 *
 * Happy path of a batch: the loop queues a copy -> the device thread submits it and an event -> the completion thread
 * waits for the event and posts the batch to the loop. So READY is sent after the bytes have arrived, and no client
 * waits for an event of ours. Where the daemon normalises, the image goes to a scratch image, all else where it
 * belongs; a kernel, on a stream of its own, waits for that copy and makes of the image what the placement holds. So
 * the next batch is copied while the kernel runs.
 * What can fail: a GPU that doesn't come up is down; a copy or kernel that fails ends its stream; and a context that
 * has failed for good (CUDA calls such errors sticky) answers everything with its error, and the loop is told once.
 *
 * Threads: cuda_internal.h. All copies of a GPU go through one CUDA stream: its copy engine takes one after the other
 * anyway, and so they end in the order in which they were submitted. Two streams, used in turn, were 5 to 8 % slower
 * (H200). Kernels run in the order of their copies too. */
#include <signal.h>
#include <stdlib.h>

#include "clock.h"
#include "cuda_internal.h"
#include "error.h"
#include "list.h"
#include "log.h"
#include "normalize_cuda.h"

#define COPIES_BETWEEN 16u            /* copies submitted between two steps of other work, while more are asked for */
#define SUBMITTED_MAX  (128ull << 20) /* bytes of one ring's copies that the driver has at a time: 2 ms of the link */

/* ---- errors ---- */

static void tell_lost(struct inbox_item *item)
{
    struct cuda_gpu *gpu = container_of(item, struct cuda_gpu, lost_item);
    gpu->lost(gpu->lost_arg, &gpu->gpu, &gpu->lost_error);
}

int cuda_failed(struct cuda_gpu *gpu, cudaError_t error, const char *what, struct feedd_error *err)
{
    int status =
        error_set(err, error == cudaErrorNotSupported ? FEEDD_E_UNSUPPORTED : FEEDD_E_DEVICE, "%s (%s): %s: %s (%s)",
                  gpu->gpu.uuid, gpu->gpu.name, what, cudaGetErrorString(error), cudaGetErrorName(error));
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

void cuda_check_freed(struct cuda_gpu *gpu, cudaError_t error, const char *what)
{
    struct feedd_error err;
    if (error == cudaSuccess || is_lost(gpu))
        return;
    cuda_failed(gpu, error, what, &err);
    log_error("%s", err.message);
}

/* ---- copies ---- */

static void push(struct cuda_copies *list, struct ring_copy *copy)
{
    copy->next = NULL;
    if (list->first == NULL)
        list->first = copy;
    else
        list->last->next = copy;
    list->last = copy;
}

static struct ring_copy *pop(struct cuda_copies *list)
{
    struct ring_copy *copy = list->first;
    if (copy != NULL)
        list->first = copy->next;
    return copy;
}

/* Whether the driver may have one more of a ring's copies. Their bytes are bounded: else a large ring that fills for
 * the first time would put gigabytes before everybody else's next batch. So are scratch images in use: since batches
 * arrive in order, the next one has been read by its kernel, and copies, which are all in one stream, never wait for
 * kernels. It depends on the ring alone, so that no copy overtakes an earlier one of its ring. Under the lock. */
static bool may_submit(const struct cuda_ring *ring)
{
    if (ring->scratch != NULL && ring->submitted_count == GPU_SCRATCH_IMAGES)
        return false;
    const uint64_t slot_bytes = ring->ring.spec.staging->layout.slot_bytes;
    return ring->submitted_count < 2 || ring->submitted_bytes + slot_bytes <= SUBMITTED_MAX;
}

/* The next copy that may be submitted, or NULL. Under the lock. */
static struct ring_copy *take_asked(struct cuda_gpu *gpu)
{
    struct ring_copy *before = NULL, *copy = gpu->asked.first;
    for (; copy != NULL; before = copy, copy = copy->next) {
        struct cuda_ring *ring = (struct cuda_ring *)copy->ring;
        if (!may_submit(ring))
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

void cuda_copy(struct ring *base, uint32_t staging, uint32_t placement, uint32_t count, struct ring_copy *copy)
{
    struct cuda_gpu *gpu = ((struct cuda_ring *)base)->gpu;
    copy->ring = base;
    copy->staging = staging;
    copy->placement = placement;
    copy->count = count;
    copy->bytes = slot_used_bytes(&base->spec.staging->layout, count);
    copy->status = 0;
    pthread_mutex_lock(&gpu->lock);
    push(&gpu->asked, copy);
    pthread_cond_signal(&gpu->device_wake);
    pthread_mutex_unlock(&gpu->lock);
}

static cudaError_t submit_plain(struct cuda_gpu *gpu, const struct cuda_ring *ring, const struct ring_copy *copy)
{
    const struct staging *staging = ring->ring.spec.staging;
    const uint64_t slot_bytes = staging->layout.slot_bytes;
    cudaError_t error =
        cudaMemcpyAsync(ring->slab + copy->placement * slot_bytes, staging->memory + copy->staging * slot_bytes,
                        copy->bytes, cudaMemcpyHostToDevice, gpu->stream);
    if (error == cudaSuccess)
        error = cudaEventRecord(ring->events[copy->staging], gpu->stream);
    return error;
}

/* What lies behind the image, at the same distances in both layouts. */
static cudaError_t copy_other_fields(struct cuda_gpu *gpu, const struct slot_layout *from, const uint8_t *in,
                                     const struct slot_layout *to, uint8_t *out, uint32_t count)
{
    if (from->field_count == 1)
        return cudaSuccess;
    const uint64_t begin = from->fields[1].offset;
    return cudaMemcpyAsync(out + to->fields[1].offset, in + begin, slot_used_bytes(from, count) - begin,
                           cudaMemcpyHostToDevice, gpu->stream);
}

static cudaError_t submit_normalizing(struct cuda_gpu *gpu, struct cuda_ring *ring, const struct ring_copy *copy)
{
    const struct ring_spec *spec = &ring->ring.spec;
    const struct slot_layout *from = &spec->staging->layout, *to = &spec->layout;
    const uint8_t *in = spec->staging->memory + copy->staging * from->slot_bytes;
    uint8_t *out = ring->slab + copy->placement * to->slot_bytes;
    uint8_t *image = ring->scratch + ring->next_scratch * gpu_scratch_stride(spec);
    cudaEvent_t copied = ring->events[spec->staging->depth + ring->next_scratch];
    struct normalize_params params = spec->params;
    params.batch = copy->count;
    ring->next_scratch = (ring->next_scratch + 1) % GPU_SCRATCH_IMAGES;
    cudaError_t error =
        cudaMemcpyAsync(image, in, from->fields[0].sample_bytes * copy->count, cudaMemcpyHostToDevice, gpu->stream);
    if (error == cudaSuccess)
        error = copy_other_fields(gpu, from, in, to, out, copy->count);
    if (error == cudaSuccess)
        error = cudaEventRecord(copied, gpu->stream);
    if (error == cudaSuccess)
        error = cudaStreamWaitEvent(gpu->kernel_stream, copied, 0);
    if (error == cudaSuccess)
        error = (cudaError_t)normalize_cuda_launch(&params, image, NULL, out, gpu->kernel_stream);
    if (error == cudaSuccess)
        error = cudaEventRecord(ring->events[copy->staging], gpu->kernel_stream);
    return error;
}

/* What was submitted of a batch that failed is ended: no event says when, and when it is posted its memory may go. */
static void batch_failed(struct cuda_gpu *gpu, cudaError_t error, struct ring_copy *copy)
{
    const bool normalizes = ((struct cuda_ring *)copy->ring)->scratch != NULL;
    copy->status = cuda_failed(gpu, error, normalizes ? "normalising a batch" : "copying a batch", &copy->error);
    cudaStreamSynchronize(gpu->stream);
    if (normalizes)
        cudaStreamSynchronize(gpu->kernel_stream);
}

static void submit(struct cuda_gpu *gpu, struct ring_copy *copy)
{
    struct cuda_ring *ring = (struct cuda_ring *)copy->ring;
    copy->submitted_ns = clock_ns();
    cudaError_t error = ring->scratch != NULL ? submit_normalizing(gpu, ring, copy) : submit_plain(gpu, ring, copy);
    if (error != cudaSuccess)
        batch_failed(gpu, error, copy);
    pthread_mutex_lock(&gpu->lock);
    push(&gpu->submitted, copy);
    pthread_cond_signal(&gpu->completion_wake);
    pthread_mutex_unlock(&gpu->lock);
}

void cuda_serve_copies(struct cuda_gpu *gpu)
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
        cudaError_t error = cudaEventSynchronize(ring->events[copy->staging]);
        if (error != cudaSuccess)
            batch_failed(gpu, error, copy);
    }
    copy->done_ns = clock_ns();
    if (copy->status == 0) {
        uint64_t began_ns = copy->submitted_ns > *last_ns ? copy->submitted_ns : *last_ns;
        atomic_fetch_add_explicit(&gpu->gpu.stats.copies, 1, memory_order_relaxed);
        atomic_fetch_add_explicit(&gpu->gpu.stats.copied_bytes, copy->bytes, memory_order_relaxed);
        atomic_fetch_add_explicit(&gpu->gpu.stats.copy_ns, copy->done_ns - began_ns, memory_order_relaxed);
        if (ring->scratch != NULL)
            atomic_fetch_add_explicit(&gpu->gpu.stats.kernels, 1, memory_order_relaxed);
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

/* ---- calls ---- */

void cuda_call(struct cuda_gpu *gpu, struct cuda_call *call)
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

/* ---- the device thread ---- */

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
        struct cuda_call *call = gpu->calls;
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
    if (gpu->kernel_stream != NULL)
        cudaStreamDestroy(gpu->kernel_stream);
    if (gpu->stream != NULL)
        cudaStreamDestroy(gpu->stream);
    return NULL;
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

int cuda_gpu_start(struct cuda_gpu *gpu, struct feedd_error *err)
{
    gpu->lost_item.run = tell_lost;
    gpu->calls_end = &gpu->calls;
    pthread_mutex_init(&gpu->lock, NULL);
    pthread_cond_init(&gpu->device_wake, NULL);
    pthread_cond_init(&gpu->completion_wake, NULL);
    pthread_cond_init(&gpu->call_done, NULL);
    if (start_threads(gpu) == 0)
        return 0;
    gpu_free(gpu);
    return error_set(err, FEEDD_E_MEMORY, "no threads for a GPU");
}

void cuda_gpu_stop(struct cuda_gpu *gpu)
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
