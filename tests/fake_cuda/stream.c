/* stream.c - the fake CUDA runtime's streams as callers see them: stream.h.
 *
 * What can fail: what setup.c makes fail; a device that has failed; what a capture forbids. Threads: any. */
#include "stream.h"

#include <stdlib.h>

static _Atomic unsigned count;

unsigned stream_count(void)
{
    return atomic_load(&count);
}

cudaError_t stream_find(cudaStream_t handle, struct CUstream_st **out)
{
    struct CUstream_st *stream = queue_of(handle);
    cudaError_t error = device_error(stream->device);
    if (error == cudaSuccess)
        error = capture_forbids_legacy(stream, true);
    if (error == cudaSuccess)
        *out = stream;
    return error;
}

cudaError_t stream_execute(const struct call *call, struct CUstream_st *stream, cudaError_t (*run)(void *argument),
                           void *argument, bool wait)
{
    cudaError_t error;
    uint64_t id;
    if (capture_adds(stream, &error, &id)) {
        free(argument);
        return error;
    }
    struct op *op = setup_need(calloc(1, sizeof(*op)));
    *op = (struct op){
        .kind = OP_RUN, .run = run, .argument = argument, .failure = call->failure, .delay_us = call->delay_us};
    queue_submit(stream, op);
    if (!wait)
        return cudaSuccess;
    queue_wait(stream);
    return device_error(stream->device);
}

static cudaError_t create(const char *function, cudaStream_t *out, unsigned flags)
{
    struct call call;
    cudaStream_t stream = NULL;
    cudaError_t error = call_begin(&call, function, CALL_DEVICE);
    if (error == cudaSuccess && (out == NULL || flags > cudaStreamNonBlocking))
        error = cudaErrorInvalidValue;
    if (error == cudaSuccess) {
        *out = stream = queue_new(call.device, flags);
        atomic_fetch_add_explicit(&count, 1, memory_order_relaxed);
    }
    return call_end(&call, error, "flags=%u stream=%p", flags, (void *)stream);
}

cudaError_t cudaStreamCreate(cudaStream_t *out)
{
    return create(__func__, out, cudaStreamDefault);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    return create(__func__, out, flags);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    struct call call;
    cudaError_t error = call_begin(&call, __func__, CALL_PROCESS);
    if (error == cudaSuccess && queue_is_default(stream))
        error = cudaErrorInvalidResourceHandle;
    if (error == cudaSuccess) {
        error = device_error(stream->device);
        capture_forget(stream);
        queue_free(stream);
        atomic_fetch_sub_explicit(&count, 1, memory_order_relaxed);
    }
    return call_end(&call, error, "stream=%p", (void *)stream);
}

/* Begins a call about a stream's state. */
static cudaError_t begin(struct call *call, const char *function, cudaStream_t handle, struct CUstream_st **out)
{
    cudaError_t error = call_begin(call, function, CALL_PROCESS);
    if (error == cudaSuccess)
        error = stream_find(handle, out);
    if (error == cudaSuccess)
        error = capture_forbids_stream(*out);
    return error;
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle)
{
    struct call call;
    struct CUstream_st *stream = NULL;
    cudaError_t error = begin(&call, __func__, handle, &stream);
    if (error == cudaSuccess)
        error = capture_forbids();
    if (error == cudaSuccess) {
        queue_wait(stream);
        error = device_error(stream->device);
    }
    return call_end(&call, error, "stream=%p", (void *)handle);
}

cudaError_t cudaStreamQuery(cudaStream_t handle)
{
    struct call call;
    struct CUstream_st *stream = NULL;
    cudaError_t error = begin(&call, __func__, handle, &stream);
    if (error == cudaSuccess)
        error = capture_forbids();
    if (error == cudaSuccess) {
        const bool idle = queue_is_idle(stream);
        error = device_error(stream->device);
        if (error == cudaSuccess && !idle)
            error = cudaErrorNotReady;
    }
    return call_end(&call, error, "stream=%p", (void *)handle);
}

cudaError_t cudaStreamGetFlags(cudaStream_t handle, unsigned *flags)
{
    struct call call;
    struct CUstream_st *stream = NULL;
    cudaError_t error = begin(&call, __func__, handle, &stream);
    if (error == cudaSuccess && flags == NULL)
        error = cudaErrorInvalidValue;
    if (error == cudaSuccess)
        *flags = stream->flags;
    return call_end(&call, error, "stream=%p", (void *)handle);
}

struct host_function {
    cudaHostFn_t function;
    void *argument;
};

static cudaError_t run_host_function(void *argument)
{
    const struct host_function *host = argument;
    host->function(host->argument);
    return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void *argument)
{
    struct call call;
    struct CUstream_st *stream = NULL;
    cudaError_t error = call_begin_async(&call, __func__);
    if (error == cudaSuccess && function == NULL)
        error = cudaErrorInvalidValue;
    if (error == cudaSuccess)
        error = stream_find(handle, &stream);
    if (error == cudaSuccess) {
        struct host_function *host = setup_need(malloc(sizeof(*host)));
        *host = (struct host_function){.function = function, .argument = argument};
        error = stream_execute(&call, stream, run_host_function, host, false);
    }
    return call_end(&call, error, "stream=%p", (void *)handle);
}
