/* cuda.c - see device.h. With cuda_fd.c the only caller of CUDA in libfeedd, by a runtime that is linked in and hidden:
 * it lives beside the framework's own, in the same primary context, and finds the driver when it is first asked for
 * something.
 *
 * What can fail: everything; a device that isn't there is said with what is missing. An error that a kernel of the
 * caller's has caused shows up here too, and is passed on.
 * Threads: any. The table of opened memory has a lock: a process that opens a handle a second time gets the same
 * address again, and must close it as often, so two members of one group in one process share what the first has
 * opened. */
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_internal.h"
#include "error.h"
#include "normalize_cuda.h"
#include "uuid.h"

struct opened {
    struct opened *next;
    int ordinal;
    uint8_t handle[DEVICE_HANDLE_BYTES];
    void *base;
    unsigned users;
};

static pthread_mutex_t opened_lock = PTHREAD_MUTEX_INITIALIZER;
static struct opened *opened_list;

struct device_mark {
    cudaEvent_t event;
};

struct device_scratch {
    void *memory;
    cudaEvent_t idle; /* its last user is done with it */
};

static cudaError_t enter(const struct device *device, int *before)
{
    *before = device->ordinal;
    cudaError_t error = cudaGetDevice(before);
    return error == cudaSuccess && *before != device->ordinal ? cudaSetDevice(device->ordinal) : error;
}

static void leave(const struct device *device, int before)
{
    if (before != device->ordinal)
        cudaSetDevice(before);
}

cudaError_t cuda_visit_begin(const struct device *device, struct cuda_visit *visit)
{
    cudaError_t error = enter(device, &visit->before);
    visit->mode = cudaStreamCaptureModeRelaxed;
    if (error != cudaSuccess)
        return error;
    error = cudaThreadExchangeStreamCaptureMode(&visit->mode);
    if (error != cudaSuccess)
        leave(device, visit->before);
    return error;
}

void cuda_visit_end(const struct device *device, struct cuda_visit *visit)
{
    cudaThreadExchangeStreamCaptureMode(&visit->mode);
    leave(device, visit->before);
}

int cuda_failed(cudaError_t error, const char *what, struct feedd_error *err)
{
    cudaGetLastError(); /* else the caller's next check would find it, unless it stays */
    return error_set(err, error == cudaErrorMemoryAllocation ? FEEDD_E_MEMORY : FEEDD_E_DEVICE, "%s: %s (%s)", what,
                     cudaGetErrorString(error), cudaGetErrorName(error));
}

static int read_uuid(int ordinal, char text[FEEDD_UUID_TEXT], struct feedd_error *err)
{
    struct cudaDeviceProp properties;
    cudaError_t error = cudaGetDeviceProperties(&properties, ordinal);
    if (error != cudaSuccess)
        return cuda_failed(error, "asking a GPU for its UUID", err);
    uuid_text(properties.uuid.bytes, text);
    return 0;
}

static int count_devices(const char *name, int *count, struct feedd_error *err)
{
    cudaError_t error = cudaGetDeviceCount(count);
    if (error == cudaSuccess && *count > 0)
        return 0;
    cudaGetLastError();
    if (error == cudaErrorInsufficientDriver)
        return error_set(err, FEEDD_E_DEVICE,
                         "device %.80s: no NVIDIA driver is installed here, or one before CUDA 12.4", name);
    return error_set(err, FEEDD_E_DEVICE, "device %.80s: %s%s", name,
                     cudaGetErrorString(error == cudaSuccess ? cudaErrorNoDevice : error),
                     getenv("CUDA_VISIBLE_DEVICES") != NULL ? ", of those that CUDA_VISIBLE_DEVICES shows" : "");
}

static int find_uuid(const char *uuid, int count, struct device *out, struct feedd_error *err)
{
    struct device device;
    for (device.ordinal = 0; device.ordinal < count; device.ordinal++) {
        int status = read_uuid(device.ordinal, device.uuid, err);
        if (status != 0)
            return status;
        if (strcmp(device.uuid, uuid) == 0) {
            *out = device;
            return 0;
        }
    }
    return error_set(err, FEEDD_E_DEVICE, "device %.80s: not among the %d that this process sees (nvidia-smi -L)", uuid,
                     count);
}

int device_find(const char *name, struct device *out, struct feedd_error *err)
{
    struct device device = {.ordinal = 0};
    int count, end = 0;
    bool numbered = sscanf(name, "cuda:%9d%n", &device.ordinal, &end) == 1 && name[end] == '\0' && name[5] != '-';
    if (strcmp(name, "cuda") != 0 && !numbered && strncmp(name, "GPU-", 4) != 0)
        return error_set(err, FEEDD_E_ARGUMENT,
                         "device '%.80s': allowed are host, auto, cuda, cuda:N, and a UUID as nvidia-smi -L prints it",
                         name);
    int status = count_devices(name, &count, err);
    if (status != 0)
        return status;
    if (name[0] == 'G')
        return find_uuid(name, count, out, err);
    if (numbered && device.ordinal >= count)
        return error_set(err, FEEDD_E_DEVICE, "device %.80s: this process sees %d GPUs, the first is cuda:0", name,
                         count);
    cudaError_t error = numbered ? cudaSuccess : cudaGetDevice(&device.ordinal);
    if (error != cudaSuccess)
        return cuda_failed(error, "asking for the current device", err);
    status = read_uuid(device.ordinal, device.uuid, err);
    if (status == 0)
        *out = device;
    return status;
}

/* ---- memory ---- */

static int open_handle(const struct device *device, const uint8_t *bytes, struct opened **out, struct feedd_error *err)
{
    struct cuda_visit visit;
    cudaIpcMemHandle_t handle;
    _Static_assert(sizeof(handle) == DEVICE_HANDLE_BYTES, "as CUDA has it");
    struct opened *opened = calloc(1, sizeof(*opened));
    if (opened == NULL)
        return error_set(err, FEEDD_E_MEMORY, "no memory for a ring");
    memcpy(&handle, bytes, sizeof(handle));
    memcpy(opened->handle, bytes, sizeof(opened->handle));
    opened->ordinal = device->ordinal;
    cudaError_t error = cuda_visit_begin(device, &visit);
    if (error == cudaSuccess) {
        error = cudaIpcOpenMemHandle(&opened->base, handle, cudaIpcMemLazyEnablePeerAccess);
        cuda_visit_end(device, &visit);
    }
    if (error != cudaSuccess) {
        free(opened);
        return cuda_failed(error, "opening the daemon's GPU memory by CUDA IPC", err);
    }
    *out = opened;
    return 0;
}

int device_map(const struct device *device, const uint8_t handle[DEVICE_HANDLE_BYTES], void **out,
               struct feedd_error *err)
{
    pthread_mutex_lock(&opened_lock);
    struct opened *opened = opened_list;
    while (opened != NULL &&
           (opened->ordinal != device->ordinal || memcmp(opened->handle, handle, sizeof(opened->handle)) != 0))
        opened = opened->next;
    int status = opened == NULL ? open_handle(device, handle, &opened, err) : 0;
    if (status == 0) {
        if (opened->users++ == 0) {
            opened->next = opened_list;
            opened_list = opened;
        }
        *out = opened->base;
    }
    pthread_mutex_unlock(&opened_lock);
    return status;
}

void device_unmap(const struct device *device, void *base)
{
    struct cuda_visit visit;
    pthread_mutex_lock(&opened_lock);
    for (struct opened **at = &opened_list; *at != NULL; at = &(*at)->next) {
        struct opened *opened = *at;
        if (opened->base != base || opened->ordinal != device->ordinal)
            continue;
        if (--opened->users == 0) {
            *at = opened->next;
            if (cuda_visit_begin(device, &visit) == cudaSuccess) {
                cudaIpcCloseMemHandle(base);
                cuda_visit_end(device, &visit);
            }
            free(opened);
        }
        break;
    }
    pthread_mutex_unlock(&opened_lock);
}

int device_read(const struct device *device, void *to, const void *from, size_t bytes, struct feedd_error *err)
{
    struct cuda_visit visit;
    cudaStream_t stream = NULL;
    cudaError_t error = cuda_visit_begin(device, &visit);
    if (error != cudaSuccess)
        return cuda_failed(error, "reading GPU memory", err);
    error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking); /* waits for nothing of the caller's */
    if (error == cudaSuccess)
        error = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream);
    if (error == cudaSuccess)
        error = cudaStreamSynchronize(stream);
    if (stream != NULL)
        cudaStreamDestroy(stream);
    cuda_visit_end(device, &visit);
    return error == cudaSuccess ? 0 : cuda_failed(error, "reading GPU memory", err);
}

/* ---- host memory that the device reads ---- */

int device_register(const struct device *device, const void *memory, size_t bytes, struct feedd_error *err)
{
    struct cuda_visit visit;
    cudaError_t error = cuda_visit_begin(device, &visit);
    if (error == cudaSuccess) {
        error = cudaHostRegister((void *)(uintptr_t)memory, bytes, cudaHostRegisterReadOnly);
        cuda_visit_end(device, &visit);
    }
    return error == cudaSuccess ? 0 : cuda_failed(error, "registering the daemon's memory with the GPU", err);
}

void device_unregister(const struct device *device, const void *memory)
{
    struct cuda_visit visit;
    if (cuda_visit_begin(device, &visit) != cudaSuccess)
        return;
    cudaHostUnregister((void *)(uintptr_t)memory);
    cuda_visit_end(device, &visit);
}

/* ---- the caller's stream ---- */

/* A graph would read the slot when it is replayed, long after the batch was given back. */
static int check_capture(struct CUstream_st *stream, const char *what, struct feedd_error *err)
{
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    cudaError_t error = cudaStreamIsCapturing(stream, &capture);
    if (error == cudaErrorStreamCaptureImplicit) { /* the legacy stream, while some other one is captured */
        cudaGetLastError();
        capture = cudaStreamCaptureStatusActive;
        error = cudaSuccess;
    }
    if (error != cudaSuccess)
        return cuda_failed(error, what, err);
    if (capture == cudaStreamCaptureStatusNone)
        return 0;
    return error_set(err, FEEDD_E_STATE,
                     "%s on a stream that is being captured into a CUDA graph: do it before the capture, or between "
                     "replays, into memory that the graph reads",
                     what);
}

int device_normalize(const struct device *device, const struct normalize_params *params, const uint8_t *in,
                     const struct normalize_window *windows, void *out, struct CUstream_st *stream,
                     struct feedd_error *err)
{
    int before;
    cudaError_t error = enter(device, &before);
    if (error != cudaSuccess)
        return cuda_failed(error, "normalising", err);
    int status = check_capture(stream, "normalising", err);
    if (status == 0) {
        error = (cudaError_t)normalize_cuda_launch(params, in, windows, out, stream);
        if (error != cudaSuccess)
            status = cuda_failed(error, "normalising", err);
    }
    leave(device, before);
    return status;
}

static int enqueue_copy(const struct device *device, void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                        struct CUstream_st *stream, struct feedd_error *err)
{
    int before;
    cudaError_t error = enter(device, &before);
    if (error != cudaSuccess)
        return cuda_failed(error, "copying a field", err);
    int status = check_capture(stream, "copying a field", err);
    if (status == 0) {
        error = cudaMemcpyAsync(to, from, bytes, kind, stream);
        if (error != cudaSuccess)
            status = cuda_failed(error, "copying a field", err);
    }
    leave(device, before);
    return status;
}

int device_copy(const struct device *device, void *to, const void *from, size_t bytes, struct CUstream_st *stream,
                struct feedd_error *err)
{
    return enqueue_copy(device, to, from, bytes, cudaMemcpyDeviceToDevice, stream, err);
}

int device_upload(const struct device *device, void *to, const void *from, size_t bytes, struct CUstream_st *stream,
                  struct feedd_error *err)
{
    return enqueue_copy(device, to, from, bytes, cudaMemcpyHostToDevice, stream, err);
}

static int scratch_new(size_t bytes, struct device_scratch **out, struct feedd_error *err)
{
    struct device_scratch *scratch = calloc(1, sizeof(*scratch));
    if (scratch == NULL)
        return error_set(err, FEEDD_E_MEMORY, "no memory for normalising");
    cudaError_t error = cudaMalloc(&scratch->memory, bytes);
    if (error == cudaSuccess) {
        error = cudaEventCreateWithFlags(&scratch->idle, cudaEventDisableTiming);
        if (error != cudaSuccess)
            cudaFree(scratch->memory);
    }
    if (error != cudaSuccess) {
        free(scratch);
        return cuda_failed(error, "making room for images on their way through the GPU", err);
    }
    *out = scratch;
    return 0;
}

static cudaError_t scratch_run(struct device_scratch *scratch, const struct normalize_params *params, const uint8_t *in,
                               const struct normalize_window *windows, void *out, struct CUstream_st *stream)
{
    const size_t bytes = (size_t)params->batch * params->in_height * params->in_width * params->channels;
    cudaError_t error = cudaStreamWaitEvent(stream, scratch->idle, 0);
    if (error == cudaSuccess)
        error = cudaMemcpyAsync(scratch->memory, in, bytes, cudaMemcpyHostToDevice, stream);
    if (error != cudaSuccess)
        return error;
    error = (cudaError_t)normalize_cuda_launch(params, scratch->memory, windows, out, stream);
    cudaError_t recorded = cudaEventRecord(scratch->idle, stream); /* without a kernel, too: the copy is under way */
    if (recorded != cudaSuccess)
        cudaStreamSynchronize(stream); /* else the next copy could overwrite what this one reads */
    return error != cudaSuccess ? error : recorded;
}

int device_scratch_normalize(const struct device *device, struct device_scratch **scratch, size_t scratch_bytes,
                             const struct normalize_params *params, const uint8_t *in,
                             const struct normalize_window *windows, void *out, struct CUstream_st *stream,
                             struct feedd_error *err)
{
    struct cuda_visit visit; /* allocating would spoil the capture of another stream */
    cudaError_t error = cuda_visit_begin(device, &visit);
    if (error != cudaSuccess)
        return cuda_failed(error, "normalising", err);
    int status = check_capture(stream, "normalising", err);
    if (status == 0 && *scratch == NULL)
        status = scratch_new(scratch_bytes, scratch, err);
    if (status == 0) {
        error = scratch_run(*scratch, params, in, windows, out, stream);
        if (error != cudaSuccess)
            status = cuda_failed(error, "normalising", err);
    }
    cuda_visit_end(device, &visit);
    return status;
}

void device_scratch_free(const struct device *device, struct device_scratch *scratch)
{
    struct cuda_visit visit;
    if (scratch == NULL)
        return;
    if (cuda_visit_begin(device, &visit) == cudaSuccess) {
        cudaFree(scratch->memory);
        cudaEventDestroy(scratch->idle);
        cuda_visit_end(device, &visit);
    }
    free(scratch);
}

static int mark_new(struct device_mark **out, struct feedd_error *err)
{
    struct device_mark *mark = calloc(1, sizeof(*mark));
    if (mark == NULL)
        return error_set(err, FEEDD_E_MEMORY, "no memory for giving back a batch");
    cudaError_t error = cudaEventCreateWithFlags(&mark->event, cudaEventBlockingSync | cudaEventDisableTiming);
    if (error != cudaSuccess) {
        free(mark);
        return cuda_failed(error, "creating an event", err);
    }
    *out = mark;
    return 0;
}

static int record(struct CUstream_st *stream, struct device_mark **mark, struct feedd_error *err)
{
    struct device_mark *made = *mark;
    int status = made == NULL ? mark_new(&made, err) : 0;
    if (status != 0)
        return status;
    cudaError_t error = cudaEventRecord(made->event, stream);
    if (error == cudaSuccess) {
        *mark = made;
        return 0;
    }
    if (*mark == NULL)
        device_mark_free(made);
    return cuda_failed(error, "giving back a batch", err);
}

int device_mark(const struct device *device, struct CUstream_st *stream, struct device_mark **mark, bool *idle,
                struct feedd_error *err)
{
    struct cuda_visit visit; /* asking about a stream would spoil the capture of another */
    cudaError_t error = cuda_visit_begin(device, &visit);
    if (error != cudaSuccess)
        return cuda_failed(error, "giving back a batch", err);
    int status = check_capture(stream, "giving back a batch", err);
    if (status == 0) {
        error = cudaStreamQuery(stream);
        *idle = error == cudaSuccess;
        if (error == cudaErrorNotReady)
            status = record(stream, mark, err);
        else if (error != cudaSuccess)
            status = cuda_failed(error, "giving back a batch", err);
    }
    cuda_visit_end(device, &visit);
    return status;
}

bool device_mark_passed(const struct device_mark *mark)
{
    return cudaEventQuery(mark->event) != cudaErrorNotReady;
}

void device_mark_wait(const struct device_mark *mark)
{
    cudaEventSynchronize(mark->event);
}

void device_mark_free(struct device_mark *mark)
{
    cudaEventDestroy(mark->event);
    free(mark);
}

void device_finish(const struct device *device)
{
    struct cuda_visit visit;
    if (cuda_visit_begin(device, &visit) != cudaSuccess)
        return;
    cudaDeviceSynchronize();
    cuda_visit_end(device, &visit);
}

void device_waiting_thread(void)
{
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    cudaThreadExchangeStreamCaptureMode(&mode);
}
