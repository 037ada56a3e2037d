/* gpu_cuda.c - all CUDA calls of the benchmarks.
 *
 * What can fail: every call; the reason is what CUDA calls it. Threads: any. */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>

#include "error.h"
#include "gpu.h"
#include "normalize_cuda.h"
#include "uuid.h"

_Static_assert(sizeof(cudaIpcMemHandle_t) == GPU_HANDLE_BYTES, "a handle of CUDA's");

/* @param what  was done, or NULL: the error says it all */
static int check(cudaError_t error, const char *what, struct feedd_error *err)
{
    if (error == cudaSuccess)
        return 0;
    cudaGetLastError(); /* not to be found by a later call */
    return error_set(err, error == cudaErrorMemoryAllocation ? FEEDD_E_MEMORY : FEEDD_E_DEVICE, "%s%s%s",
                     what != NULL ? what : "", what != NULL ? ": " : "", cudaGetErrorString(error));
}

static void print_version(int version, char text[32])
{
    snprintf(text, 32, "%d.%d", version / 1000, version % 1000 / 10);
}

int gpu_identify(struct gpu_identity *out, struct feedd_error *err)
{
    struct cudaDeviceProp properties;
    int count, device, driver, runtime, status;
    if ((status = check(cudaGetDeviceCount(&count), NULL, err)) != 0 ||
        (status = check(cudaGetDevice(&device), "choosing a GPU", err)) != 0 ||
        (status = check(cudaGetDeviceProperties(&properties, device), "the GPU's properties", err)) != 0 ||
        (status = check(cudaDriverGetVersion(&driver), "the driver's version", err)) != 0 ||
        (status = check(cudaRuntimeGetVersion(&runtime), "the runtime's version", err)) != 0)
        return status;
    snprintf(out->name, sizeof(out->name), "%s", properties.name);
    uuid_text(properties.uuid.bytes, out->uuid);
    print_version(driver, out->driver);
    print_version(runtime, out->runtime);
    return 0;
}

int gpu_memory_free(size_t *bytes, struct feedd_error *err)
{
    size_t total;
    return check(cudaMemGetInfo(bytes, &total), "how much memory is free", err);
}

int gpu_memory_new(size_t bytes, void **out, struct feedd_error *err)
{
    const cudaError_t error = cudaMalloc(out, bytes);
    size_t available = 0, total = 0;
    if (error == cudaErrorMemoryAllocation && cudaMemGetInfo(&available, &total) == cudaSuccess) {
        cudaGetLastError();
        return error_set(err, FEEDD_E_MEMORY, "GPU out of memory: %zu bytes more, %zu of %zu are free", bytes,
                         available, total);
    }
    return check(error, "memory of the GPU", err);
}

void gpu_memory_delete(void *memory)
{
    cudaFree(memory);
}

int gpu_memory_export(void *memory, uint8_t handle[GPU_HANDLE_BYTES], struct feedd_error *err)
{
    return check(cudaIpcGetMemHandle((cudaIpcMemHandle_t *)handle, memory), "sharing memory of the GPU", err);
}

int gpu_memory_import(const uint8_t handle[GPU_HANDLE_BYTES], void **out, struct feedd_error *err)
{
    cudaIpcMemHandle_t h;
    memcpy(&h, handle, sizeof(h));
    return check(cudaIpcOpenMemHandle(out, h, cudaIpcMemLazyEnablePeerAccess), "opening another process' memory", err);
}

void gpu_memory_close(void *imported)
{
    cudaIpcCloseMemHandle(imported);
}

int gpu_pin(void *host, size_t bytes, struct feedd_error *err)
{
    return check(cudaHostRegister(host, bytes, cudaHostRegisterDefault), "pinning host memory", err);
}

void gpu_unpin(void *host)
{
    cudaHostUnregister(host);
}

int gpu_stream_new(struct CUstream_st **out, struct feedd_error *err)
{
    return check(cudaStreamCreateWithFlags(out, cudaStreamNonBlocking), "a stream", err);
}

void gpu_stream_delete(struct CUstream_st *stream)
{
    if (stream != NULL)
        cudaStreamDestroy(stream);
}

int gpu_stream_wait(struct CUstream_st *stream, struct feedd_error *err)
{
    return check(cudaStreamSynchronize(stream), "waiting for the GPU", err);
}

int gpu_event_new(bool blocking, struct CUevent_st **out, struct feedd_error *err)
{
    return check(cudaEventCreateWithFlags(out, blocking ? cudaEventBlockingSync : cudaEventDefault), "an event", err);
}

void gpu_event_delete(struct CUevent_st *event)
{
    if (event != NULL)
        cudaEventDestroy(event);
}

int gpu_event_record(struct CUevent_st *event, struct CUstream_st *stream, struct feedd_error *err)
{
    return check(cudaEventRecord(event, stream), "recording an event", err);
}

int gpu_event_wait(struct CUevent_st *event, struct feedd_error *err)
{
    return check(cudaEventSynchronize(event), "waiting for the GPU", err);
}

int gpu_event_us(struct CUevent_st *from, struct CUevent_st *to, double *us, struct feedd_error *err)
{
    float ms;
    const int status = check(cudaEventElapsedTime(&ms, from, to), "the time between two events", err);
    if (status == 0)
        *us = (double)ms * 1000;
    return status;
}

int gpu_stream_after(struct CUstream_st *stream, struct CUevent_st *event, struct feedd_error *err)
{
    return check(cudaStreamWaitEvent(stream, event, 0), "ordering two streams", err);
}

int gpu_copy(void *to, const void *from, size_t bytes, struct CUstream_st *stream, struct feedd_error *err)
{
    return check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream), "copying to the GPU", err);
}

int gpu_normalize(const struct normalize_params *params, const uint8_t *in, void *out, struct CUstream_st *stream,
                  struct feedd_error *err)
{
    return check((cudaError_t)normalize_cuda_launch(params, in, NULL, out, stream), "normalising on the GPU", err);
}
