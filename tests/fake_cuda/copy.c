/* copy.c - the fake CUDA runtime's copies: fake_cuda.h.
 *
 * From pinned memory a copy reads, and into it it writes, when it is executed. A small one from pageable memory is read
 * by the call; a larger one, and any into pageable memory, is waited for, as the real ones are: "API synchronization
 * behavior" of the CUDA Runtime API.
 *
 * What can fail: memory that isn't what the call says, or ends too early. Threads: any. */
#include <stdlib.h>
#include <string.h>

#include "fake_cuda.h"

#define STAGED_BYTES_MAX 65536 /* of a small one */

struct copy {
    void *to;
    const void *from;
    size_t bytes;
    int value;          /* of memset */
    uint8_t snapshot[]; /* of a small pageable source */
};

static cudaError_t run_copy(void *argument)
{
    const struct copy *copy = argument;
    memmove(copy->to, copy->from, copy->bytes);
    return cudaSuccess;
}

static cudaError_t run_set(void *argument)
{
    const struct copy *copy = argument;
    memset(copy->to, copy->value, copy->bytes);
    return cudaSuccess;
}

static const char *kind_name(enum cudaMemcpyKind kind, const struct memory_place *to, const struct memory_place *from)
{
    static const char *const names[] = {"H2H", "H2D", "D2H", "D2D"};
    return names[kind < cudaMemcpyDefault ? (unsigned)kind : (to->device ? 1U : 0U) + (from->device ? 2U : 0U)];
}

/* @param wait  for the copy, but for one within the GPU */
static cudaError_t copy(const char *function, void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                        cudaStream_t handle, bool wait)
{
    struct call call;
    struct CUstream_st *stream = NULL;
    struct memory_place target = {0}, source = {0};
    cudaError_t error = call_begin_async(&call, function);
    if (error == cudaSuccess)
        error = stream_find(handle, &stream);
    if (error == cudaSuccess && bytes > 0 && (unsigned)kind > cudaMemcpyDefault)
        error = cudaErrorInvalidMemcpyDirection;
    if (error == cudaSuccess && bytes > 0)
        error = memory_place(to, bytes, kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice,
                             MEMORY_WRITE, &target);
    if (error == cudaSuccess && bytes > 0)
        error = memory_place(from, bytes, kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice,
                             MEMORY_READ, &source);
    if (error == cudaSuccess && bytes > 0) {
        const bool staged = source.pageable && bytes <= STAGED_BYTES_MAX;
        struct copy *copy = setup_need(malloc(sizeof(*copy) + (staged ? bytes : 0)));
        *copy = (struct copy){.to = target.memory, .from = source.memory, .bytes = bytes};
        if (staged) {
            memcpy(copy->snapshot, source.memory, bytes);
            copy->from = copy->snapshot;
        }
        const bool blocks = wait ? !target.device || !source.device : target.pageable || (source.pageable && !staged);
        error = stream_execute(&call, stream, run_copy, copy, blocks);
    }
    return call_end(&call, error, "kind=%s bytes=%zu src=%p dst=%p stream=%p", kind_name(kind, &target, &source), bytes,
                    from, to, (void *)handle);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    return copy(__func__, to, from, bytes, kind, cudaStreamLegacy, true);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    return copy(__func__, to, from, bytes, kind, stream, false);
}

static cudaError_t set(const char *function, void *to, int value, size_t bytes, cudaStream_t handle)
{
    struct call call;
    struct CUstream_st *stream = NULL;
    struct memory_place target = {0};
    cudaError_t error = call_begin_async(&call, function);
    if (error == cudaSuccess)
        error = stream_find(handle, &stream);
    if (error == cudaSuccess && bytes > 0)
        error = memory_place(to, bytes, true, MEMORY_WRITE, &target);
    if (error == cudaSuccess && bytes > 0) {
        struct copy *copy = setup_need(malloc(sizeof(*copy)));
        *copy = (struct copy){.to = target.memory, .bytes = bytes, .value = value};
        error = stream_execute(&call, stream, run_set, copy, false);
    }
    return call_end(&call, error, "bytes=%zu dst=%p value=%d stream=%p", bytes, to, value, (void *)handle);
}

cudaError_t cudaMemset(void *to, int value, size_t bytes)
{
    return set(__func__, to, value, bytes, cudaStreamLegacy);
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
    return set(__func__, to, value, bytes, stream);
}
