/* event.c - the fake CUDA runtime's events: stream.h.
 *
 * Happy path: an event is recorded: a record goes through the stream's queue, and the event stands for it -> who asks
 * or waits for the event asks or waits for the record that it stands for by then.
 * What can fail: what setup.c makes fail; a device that has failed; what a capture forbids. Threads: any. */
#include <stdlib.h>

#include "stream.h"

struct CUevent_st {
    struct CUevent_st *next; /* in `events` */
    struct device *device;
    bool timed;
    pthread_mutex_t lock;
    struct record *last; /* a reference, or NULL */
    uint64_t capture_id; /* of the capture that it was recorded in last, else 0 */
};

/* All of them, so that what a caller has lost is its leak in the count, and not one of this library's memory. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct CUevent_st *events;
static unsigned count;

unsigned event_count(void)
{
    pthread_mutex_lock(&lock);
    const unsigned now = count;
    pthread_mutex_unlock(&lock);
    return now;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    const unsigned known = cudaEventBlockingSync | cudaEventDisableTiming | cudaEventInterprocess;
    struct call call;
    cudaEvent_t event = NULL;
    cudaError_t error = call_begin(&call, __func__, CALL_DEVICE);
    if (error == cudaSuccess && (out == NULL || (flags & ~known) != 0 ||
                                 ((flags & cudaEventInterprocess) != 0 && (flags & cudaEventDisableTiming) == 0)))
        error = cudaErrorInvalidValue;
    if (error == cudaSuccess) {
        event = setup_need(calloc(1, sizeof(*event)));
        event->device = call.device;
        event->timed = (flags & cudaEventDisableTiming) == 0;
        pthread_mutex_init(&event->lock, NULL);
        pthread_mutex_lock(&lock);
        event->next = events;
        events = event;
        count++;
        pthread_mutex_unlock(&lock);
        *out = event;
    }
    return call_end(&call, error, "flags=%u event=%p", flags, (void *)event);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    struct call call;
    cudaError_t error = call_begin(&call, __func__, CALL_PROCESS);
    if (error == cudaSuccess && event == NULL)
        error = cudaErrorInvalidResourceHandle;
    if (error == cudaSuccess) {
        error = device_error(event->device);
        pthread_mutex_lock(&lock);
        struct CUevent_st **link = &events;
        while (*link != event)
            link = &(*link)->next;
        *link = event->next;
        count--;
        pthread_mutex_unlock(&lock);
        record_drop(event->last);
        pthread_mutex_destroy(&event->lock);
        free(event);
    }
    return call_end(&call, error, "event=%p", (void *)event);
}

/* What the event stands for from now on. @param record  a reference, or NULL */
static void set(cudaEvent_t event, struct record *record, uint64_t capture_id)
{
    pthread_mutex_lock(&event->lock);
    struct record *before = event->last;
    event->last = record;
    event->capture_id = capture_id;
    pthread_mutex_unlock(&event->lock);
    record_drop(before);
}

/* @return its last record, a reference, or NULL; *capture_id says where it was captured */
static struct record *get(cudaEvent_t event, uint64_t *capture_id)
{
    pthread_mutex_lock(&event->lock);
    struct record *record = record_keep(event->last);
    *capture_id = event->capture_id;
    pthread_mutex_unlock(&event->lock);
    return record;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle)
{
    struct call call;
    struct CUstream_st *stream = NULL;
    cudaError_t error = call_begin(&call, __func__, CALL_PROCESS);
    if (error == cudaSuccess && event == NULL)
        error = cudaErrorInvalidResourceHandle;
    if (error == cudaSuccess)
        error = stream_find(handle, &stream);
    if (error == cudaSuccess && stream->device != event->device)
        error = cudaErrorInvalidResourceHandle;
    if (error == cudaSuccess) {
        uint64_t capture_id;
        if (capture_adds(stream, &error, &capture_id)) {
            if (error == cudaSuccess)
                set(event, NULL, capture_id);
        } else {
            struct record *record = record_new(2);
            set(event, record, 0);
            queue_submit_record(stream, OP_RECORD, record);
        }
    }
    return call_end(&call, error, "event=%p stream=%p", (void *)event, (void *)handle);
}

/* Begins a call that asks for, or waits for, an event.
 * @param record  a reference, or NULL where there is nothing to wait for */
static cudaError_t begin(struct call *call, const char *function, cudaEvent_t event, struct record **record)
{
    cudaError_t error = call_begin(call, function, CALL_PROCESS);
    if (error == cudaSuccess && event == NULL)
        error = cudaErrorInvalidResourceHandle;
    if (error == cudaSuccess)
        error = device_error(event->device);
    if (error != cudaSuccess)
        return error;
    uint64_t capture_id;
    *record = get(event, &capture_id);
    return capture_id != 0 ? capture_forbids_event(capture_id) : capture_forbids();
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    struct call call;
    struct record *record = NULL;
    cudaError_t error = begin(&call, __func__, event, &record);
    if (error == cudaSuccess && record != NULL && !record_is_done(record))
        error = cudaErrorNotReady;
    record_drop(record);
    if (error == cudaSuccess)
        error = device_error(event->device);
    return call_end(&call, error, "event=%p", (void *)event);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    struct call call;
    struct record *record = NULL;
    cudaError_t error = begin(&call, __func__, event, &record);
    if (error == cudaSuccess && record != NULL)
        record_wait(record);
    record_drop(record);
    if (error == cudaSuccess)
        error = device_error(event->device);
    return call_end(&call, error, "event=%p", (void *)event);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    const cudaEvent_t events_of[] = {from, to};
    struct record *records[] = {NULL, NULL};
    uint64_t time_ns[] = {0, 0}, capture_id;
    struct call call;
    cudaError_t error = call_begin(&call, __func__, CALL_PROCESS);
    if (error == cudaSuccess && ms == NULL)
        error = cudaErrorInvalidValue;
    for (int i = 0; error == cudaSuccess && i < 2; i++) {
        if (events_of[i] == NULL || !events_of[i]->timed)
            error = cudaErrorInvalidResourceHandle;
        else if ((error = device_error(events_of[i]->device)) == cudaSuccess &&
                 (records[i] = get(events_of[i], &capture_id)) == NULL)
            error = cudaErrorInvalidResourceHandle; /* never recorded, or in a capture */
    }
    for (int i = 0; error == cudaSuccess && i < 2; i++)
        if ((time_ns[i] = record_time_ns(records[i])) == 0)
            error = cudaErrorNotReady;
    if (error == cudaSuccess)
        *ms = (float)((double)(int64_t)(time_ns[1] - time_ns[0]) / 1e6);
    record_drop(records[0]);
    record_drop(records[1]);
    return call_end(&call, error, "from=%p to=%p", (void *)from, (void *)to);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned flags)
{
    struct call call;
    struct CUstream_st *stream = NULL;
    struct record *record = NULL;
    uint64_t capture_id = 0;
    cudaError_t error = call_begin(&call, __func__, CALL_PROCESS);
    if (error == cudaSuccess && event == NULL)
        error = cudaErrorInvalidResourceHandle;
    if (error == cudaSuccess && flags > cudaEventWaitExternal)
        error = cudaErrorInvalidValue;
    if (error == cudaSuccess)
        error = stream_find(handle, &stream);
    if (error == cudaSuccess) {
        record = get(event, &capture_id);
        uint64_t id;
        if (capture_id != 0 || capture_adds(stream, &error, &id)) {
            if (error == cudaSuccess)
                error = capture_wait_event(stream, record != NULL, capture_id);
        } else if (record != NULL) {
            queue_submit_record(stream, OP_WAIT, record_keep(record));
        }
    }
    record_drop(record);
    return call_end(&call, error, "stream=%p event=%p", (void *)handle, (void *)event);
}
