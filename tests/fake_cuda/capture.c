/* capture.c - the fake CUDA runtime's stream capture: as much of it as a caller that must not disturb one can notice.
 *
 * What is captured isn't executed, and counted only; a graph can be destroyed.
 * What can fail: a call that a capture doesn't allow; most of them make the capture invalid, which its end then says.
 * Threads: any. */
#include <stdlib.h>

#include "stream.h"

struct capture {
    struct capture *next;
    uint64_t id; /* not 0 */
    enum cudaStreamCaptureMode mode;
    pthread_t thread; /* that began it */
    struct CUstream_st *origin;
    struct CUstream_st *members; /* and those that joined */
    bool invalid;
    unsigned nodes;
};

struct CUgraph_st {
    unsigned nodes;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct capture *captures;
static _Atomic unsigned count; /* of them, so that without any nobody takes the lock */
static uint64_t last_id;

static _Thread_local enum cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

static bool any(void)
{
    return atomic_load_explicit(&count, memory_order_relaxed) > 0;
}

/* Under the lock, as all that follow up to the calls: the one of that id if it hasn't ended, or NULL. */
static struct capture *capture_of(uint64_t id)
{
    struct capture *capture = captures;
    while (capture != NULL && capture->id != id)
        capture = capture->next;
    return capture;
}

static void join(struct capture *capture, struct CUstream_st *stream)
{
    stream->capture = capture;
    stream->next_member = capture->members;
    capture->members = stream;
}

static void leave(struct CUstream_st *stream)
{
    struct CUstream_st **link = &stream->capture->members;
    while (*link != stream)
        link = &(*link)->next_member;
    *link = stream->next_member;
    stream->capture = NULL;
}

static void begin(struct CUstream_st *stream, enum cudaStreamCaptureMode mode)
{
    struct capture *capture = setup_need(calloc(1, sizeof(*capture)));
    *capture =
        (struct capture){.next = captures, .id = ++last_id, .mode = mode, .thread = pthread_self(), .origin = stream};
    captures = capture;
    join(capture, stream);
    atomic_fetch_add_explicit(&count, 1, memory_order_relaxed);
}

static void end(struct capture *capture)
{
    while (capture->members != NULL)
        leave(capture->members);
    struct capture **link = &captures;
    while (*link != capture)
        link = &(*link)->next;
    *link = capture->next;
    atomic_fetch_sub_explicit(&count, 1, memory_order_relaxed);
    free(capture);
}

/* What cudaStreamEndCapture() returns; the graph is made if all is well. */
static cudaError_t end_on(struct CUstream_st *stream, cudaGraph_t *graph)
{
    struct capture *capture = stream->capture;
    if (capture == NULL)
        return cudaErrorIllegalState;
    if (capture->origin != stream) {
        capture->invalid = true;
        return cudaErrorStreamCaptureUnmatched;
    }
    cudaError_t error = capture->invalid ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
    if (capture->mode != cudaStreamCaptureModeRelaxed && !pthread_equal(capture->thread, pthread_self()))
        error = cudaErrorStreamCaptureWrongThread;
    if (error == cudaSuccess) {
        *graph = setup_need(malloc(sizeof(**graph)));
        (*graph)->nodes = capture->nodes;
    }
    end(capture);
    return error;
}

/* --- what other calls ask --- */

cudaError_t capture_forbids(void)
{
    cudaError_t error = cudaSuccess;
    if (!any() || thread_mode == cudaStreamCaptureModeRelaxed)
        return cudaSuccess;
    pthread_mutex_lock(&lock);
    for (struct capture *capture = captures; capture != NULL; capture = capture->next)
        if (pthread_equal(capture->thread, pthread_self())
                ? capture->mode != cudaStreamCaptureModeRelaxed
                : capture->mode == cudaStreamCaptureModeGlobal && thread_mode == cudaStreamCaptureModeGlobal) {
            capture->invalid = true;
            error = cudaErrorStreamCaptureUnsupported;
        }
    pthread_mutex_unlock(&lock);
    return error;
}

cudaError_t capture_forbids_device(const struct device *device)
{
    cudaError_t error = cudaSuccess;
    if (!any())
        return cudaSuccess;
    pthread_mutex_lock(&lock);
    for (struct capture *capture = captures; capture != NULL; capture = capture->next)
        if (capture->origin->device == device) {
            capture->invalid = true;
            error = cudaErrorStreamCaptureUnsupported;
        }
    pthread_mutex_unlock(&lock);
    return error;
}

cudaError_t capture_forbids_legacy(const struct CUstream_st *stream, bool invalidate)
{
    cudaError_t error = cudaSuccess;
    if (!any() || stream != stream->device->legacy)
        return cudaSuccess;
    pthread_mutex_lock(&lock);
    for (struct capture *capture = captures; capture != NULL; capture = capture->next)
        if (capture->origin->device == stream->device && queue_is_blocking(capture->origin)) {
            capture->invalid = capture->invalid || invalidate;
            error = cudaErrorStreamCaptureImplicit;
        }
    pthread_mutex_unlock(&lock);
    return error;
}

cudaError_t capture_forbids_stream(struct CUstream_st *stream)
{
    cudaError_t error = cudaSuccess;
    if (!any())
        return cudaSuccess;
    pthread_mutex_lock(&lock);
    if (stream->capture != NULL) {
        stream->capture->invalid = true;
        error = cudaErrorStreamCaptureUnsupported;
    }
    pthread_mutex_unlock(&lock);
    return error;
}

cudaError_t capture_forbids_event(uint64_t id)
{
    pthread_mutex_lock(&lock);
    struct capture *capture = capture_of(id);
    if (capture != NULL)
        capture->invalid = true;
    pthread_mutex_unlock(&lock);
    return capture != NULL ? cudaErrorCapturedEvent : cudaErrorInvalidValue;
}

bool capture_adds(struct CUstream_st *stream, cudaError_t *error, uint64_t *id)
{
    if (!any())
        return false;
    pthread_mutex_lock(&lock);
    struct capture *capture = stream->capture;
    if (capture != NULL) {
        *error = capture->invalid ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
        *id = capture->id;
        capture->nodes++;
    }
    pthread_mutex_unlock(&lock);
    return capture != NULL;
}

cudaError_t capture_wait_event(struct CUstream_st *stream, bool recorded, uint64_t id)
{
    cudaError_t error = cudaSuccess;
    pthread_mutex_lock(&lock);
    struct capture *capture = id != 0 ? capture_of(id) : NULL;
    if (id != 0 && capture == NULL) {
        error = cudaErrorInvalidValue;
    } else if (stream->capture == NULL) {
        if (capture != NULL)
            join(capture, stream);
    } else if (stream->capture != capture && (recorded || capture != NULL)) {
        stream->capture->invalid = true;
        error = capture != NULL ? cudaErrorStreamCaptureMerge : cudaErrorStreamCaptureIsolation;
    }
    pthread_mutex_unlock(&lock);
    return error;
}

void capture_forget(struct CUstream_st *stream)
{
    pthread_mutex_lock(&lock);
    if (stream->capture != NULL && stream->capture->origin == stream)
        end(stream->capture);
    else if (stream->capture != NULL)
        leave(stream);
    pthread_mutex_unlock(&lock);
}

/* --- calls --- */

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, enum cudaStreamCaptureMode mode)
{
    struct call call;
    struct CUstream_st *stream = NULL;
    cudaError_t error = call_begin(&call, __func__, CALL_PROCESS);
    if (error == cudaSuccess && (handle == NULL || handle == cudaStreamLegacy))
        error = cudaErrorStreamCaptureUnsupported;
    if (error == cudaSuccess && (unsigned)mode > cudaStreamCaptureModeRelaxed)
        error = cudaErrorInvalidValue;
    if (error == cudaSuccess)
        error = stream_find(handle, &stream);
    if (error == cudaSuccess) {
        pthread_mutex_lock(&lock);
        if (stream->capture != NULL)
            error = cudaErrorIllegalState;
        else
            begin(stream, mode);
        pthread_mutex_unlock(&lock);
    }
    return call_end(&call, error, "stream=%p mode=%d", (void *)handle, (int)mode);
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t *graph)
{
    struct call call;
    struct CUstream_st *stream = NULL;
    unsigned nodes = 0;
    cudaError_t error = call_begin(&call, __func__, CALL_PROCESS);
    if (error == cudaSuccess && graph == NULL)
        error = cudaErrorInvalidValue;
    if (error == cudaSuccess)
        error = stream_find(handle, &stream);
    if (error == cudaSuccess) {
        *graph = NULL;
        pthread_mutex_lock(&lock);
        error = end_on(stream, graph);
        pthread_mutex_unlock(&lock);
    }
    if (error == cudaSuccess)
        nodes = (*graph)->nodes;
    return call_end(&call, error, "stream=%p nodes=%u", (void *)handle, nodes);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, enum cudaStreamCaptureStatus *status)
{
    struct call call;
    cudaError_t error = call_begin(&call, __func__, CALL_PROCESS);
    if (error == cudaSuccess && status == NULL)
        error = cudaErrorInvalidValue;
    if (error == cudaSuccess) {
        const struct CUstream_st *stream = queue_of(handle);
        error = device_error(stream->device);
        if (error == cudaSuccess)
            error = capture_forbids_legacy(stream, false);
        if (error == cudaSuccess) {
            pthread_mutex_lock(&lock);
            *status = stream->capture == NULL    ? cudaStreamCaptureStatusNone
                      : stream->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                                 : cudaStreamCaptureStatusActive;
            pthread_mutex_unlock(&lock);
        }
    }
    return call_end(&call, error, "stream=%p", (void *)handle);
}

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
    struct call call;
    cudaError_t error = call_begin(&call, __func__, CALL_PROCESS);
    if (error == cudaSuccess && (mode == NULL || (unsigned)*mode > cudaStreamCaptureModeRelaxed))
        error = cudaErrorInvalidValue;
    if (error == cudaSuccess) {
        const enum cudaStreamCaptureMode before = thread_mode;
        thread_mode = *mode;
        *mode = before;
    }
    return call_end(&call, error, "mode=%d", (int)thread_mode);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    struct call call;
    cudaError_t error = call_begin(&call, __func__, CALL_PROCESS);
    if (error == cudaSuccess && graph == NULL)
        error = cudaErrorInvalidValue;
    if (error == cudaSuccess)
        free(graph);
    return call_end(&call, error, "%s", "");
}
