/* stream.c - the fake CUDA runtime's streams, events and capture: fake_cuda.h.
 *
 * Happy path: a call puts an operation into its stream's queue -> the stream's thread takes and executes it -> a record
 * in the queue tells who waits for it that everything before has been executed.
 *
 * What synchronises with what is what CUDA promises, and no more: an operation sees what its caller wrote before the
 * call; a caller sees an operation's effects after it has waited for it. So the queue hands over in one direction only:
 * a list whose head the callers swap and the stream's thread never writes, and a semaphore that it only takes. A lock
 * around the queue would order a caller's next call after what has been executed, and hide a wait that it forgot.
 *
 * What can fail: an execution; then the device has failed, and of what is queued only records and waits still count.
 * Threads: any; each stream has one of its own. No lock is held while something is executed. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

#include "fake_cuda.h"

#define POLL_US 1000 /* how often what takes long looks whether its device has failed or the process ends */

/* Waits for this are waits for all that its stream was given before. */
struct record {
    _Atomic unsigned references;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool done; /* under the lock */
};

enum op_kind { OP_RUN, OP_RECORD, OP_WAIT, OP_QUIT };

struct op {
    struct op *_Atomic next;
    enum op_kind kind;
    cudaError_t (*run)(void *argument);
    void *argument; /* owned */
    cudaError_t failure;
    unsigned long delay_us;
    struct record *record; /* of OP_RECORD, OP_WAIT; a reference */
};

struct capture {
    struct capture *next;
    uint64_t id; /* not 0 */
    enum cudaStreamCaptureMode mode;
    pthread_t thread; /* that began it */
    struct CUstream_st *origin;
    bool invalid;
    unsigned nodes;
};

struct CUstream_st {
    struct CUstream_st *next; /* in `streams` */
    struct device *device;
    unsigned flags;
    struct op *_Atomic head; /* the operation put in last */
    struct op *tail;         /* the one taken last; of the stream's thread */
    sem_t queued;
    pthread_t thread;
    _Atomic uint64_t submitted, executed;
    uint64_t work, seen;     /* of blocking streams: operations, and how many of the legacy stream's are waited for */
    uint64_t legacy_seen;    /* how many of its operations the legacy stream waits for */
    struct capture *capture; /* under capture_lock */
};

struct CUevent_st {
    struct CUevent_st *next; /* in `events` */
    struct device *device;
    pthread_mutex_t lock;
    struct record *last; /* a reference, or NULL */
    uint64_t capture_id; /* of the capture it was recorded in last, else 0 */
};

struct CUgraph_st {
    unsigned nodes;
};

/* Guards the lists, and the order in which the legacy stream and blocking streams wait for each other. */
static pthread_mutex_t streams_lock = PTHREAD_MUTEX_INITIALIZER;
static struct CUstream_st *streams;
static struct CUevent_st *events;
static unsigned stream_count, event_count; /* that callers made */

static pthread_mutex_t capture_lock = PTHREAD_MUTEX_INITIALIZER;
static struct capture *captures;
static _Atomic unsigned capture_count;
static uint64_t capture_last_id;

static _Thread_local struct CUstream_st *executing;
static _Thread_local struct CUstream_st *per_thread[FAKE_GPUS_MAX];
static _Thread_local enum cudaStreamCaptureMode thread_capture_mode = cudaStreamCaptureModeGlobal;
static pthread_key_t thread_end;
static pthread_once_t thread_end_once = PTHREAD_ONCE_INIT;

static uint64_t now_us(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

/* --- records --- */

static struct record *record_new(unsigned references)
{
    struct record *record = setup_need(calloc(1, sizeof(*record)));
    atomic_init(&record->references, references);
    pthread_mutex_init(&record->lock, NULL);
    pthread_cond_init(&record->changed, NULL);
    return record;
}

static void record_drop(struct record *record)
{
    if (record == NULL || atomic_fetch_sub_explicit(&record->references, 1, memory_order_acq_rel) > 1)
        return;
    pthread_cond_destroy(&record->changed);
    pthread_mutex_destroy(&record->lock);
    free(record);
}

static struct record *record_keep(struct record *record)
{
    if (record != NULL)
        atomic_fetch_add_explicit(&record->references, 1, memory_order_relaxed);
    return record;
}

static void record_finish(struct record *record)
{
    pthread_mutex_lock(&record->lock);
    record->done = true;
    pthread_cond_broadcast(&record->changed);
    pthread_mutex_unlock(&record->lock);
}

static void record_wait(struct record *record)
{
    pthread_mutex_lock(&record->lock);
    while (!record->done)
        pthread_cond_wait(&record->changed, &record->lock);
    pthread_mutex_unlock(&record->lock);
}

/* @return whether it is done */
static bool record_wait_until(struct record *record, uint64_t realtime_us)
{
    const struct timespec end = {.tv_sec = (time_t)(realtime_us / 1000000),
                                 .tv_nsec = (long)(realtime_us % 1000000) * 1000};
    pthread_mutex_lock(&record->lock);
    if (!record->done)
        pthread_cond_timedwait(&record->changed, &record->lock, &end);
    const bool done = record->done;
    pthread_mutex_unlock(&record->lock);
    return done;
}

static bool record_is_done(struct record *record)
{
    pthread_mutex_lock(&record->lock);
    const bool done = record->done;
    pthread_mutex_unlock(&record->lock);
    return done;
}

/* --- a stream's thread --- */

bool stream_is_executing(void)
{
    return executing != NULL;
}

static bool is_dead(const struct CUstream_st *stream)
{
    return setup_ending() || device_error(stream->device) != cudaSuccess;
}

void stream_sleep_us(unsigned long us)
{
    const uint64_t end_us = now_us(CLOCK_MONOTONIC) + us;
    uint64_t now;
    while (!is_dead(executing) && (now = now_us(CLOCK_MONOTONIC)) < end_us) {
        const uint64_t slice_us = end_us - now < POLL_US ? end_us - now : POLL_US;
        nanosleep(&(struct timespec){.tv_nsec = (long)slice_us * 1000}, NULL);
    }
}

static struct op *take(struct CUstream_st *stream)
{
    while (sem_wait(&stream->queued) != 0)
        ;
    struct op *op;
    while ((op = atomic_load_explicit(&stream->tail->next, memory_order_acquire)) == NULL)
        sched_yield(); /* one that was put in before this is about to be linked */
    free(stream->tail);
    stream->tail = op;
    return op;
}

static void execute(struct CUstream_st *stream, struct op *op)
{
    if (op->kind == OP_RUN && !is_dead(stream)) {
        stream_sleep_us(op->delay_us);
        cudaError_t error = op->failure;
        if (!is_dead(stream) && error == cudaSuccess)
            error = op->run(op->argument);
        if (error != cudaSuccess)
            device_fail(stream->device, error);
    }
    while (op->kind == OP_WAIT && !is_dead(stream) && !record_wait_until(op->record, now_us(CLOCK_REALTIME) + POLL_US))
        ;
    free(op->argument);
    atomic_fetch_add_explicit(&stream->executed, 1, memory_order_release);
    if (op->kind == OP_RECORD)
        record_finish(op->record);
    record_drop(op->record);
}

static void *stream_main(void *argument)
{
    struct CUstream_st *stream = argument;
    struct op *op;
    executing = stream;
    while ((op = take(stream))->kind != OP_QUIT)
        execute(stream, op);
    return NULL;
}

/* --- queues --- */

/* @param op  owned by the stream from now on */
static void put(struct CUstream_st *stream, struct op *op)
{
    atomic_store_explicit(&op->next, NULL, memory_order_relaxed);
    atomic_fetch_add_explicit(&stream->submitted, 1, memory_order_relaxed);
    struct op *before = atomic_exchange_explicit(&stream->head, op, memory_order_acq_rel);
    atomic_store_explicit(&before->next, op, memory_order_release);
    sem_post(&stream->queued);
}

/* @param record  the queue takes this reference */
static void put_record(struct CUstream_st *stream, enum op_kind kind, struct record *record)
{
    struct op *op = setup_need(calloc(1, sizeof(*op)));
    op->kind = kind;
    op->record = record;
    put(stream, op);
}

/* Under streams_lock: what is put into `stream` from now on waits for what is in `other`. */
static void order_after(struct CUstream_st *stream, struct CUstream_st *other)
{
    struct record *record = record_new(2);
    put_record(other, OP_RECORD, record);
    put_record(stream, OP_WAIT, record);
}

static bool is_blocking(const struct CUstream_st *stream)
{
    return (stream->flags & cudaStreamNonBlocking) == 0;
}

/* Under streams_lock: as the legacy stream and blocking streams wait for each other, CUDA's "Stream synchronization
 * behavior". */
static void order_default(struct CUstream_st *stream)
{
    struct CUstream_st *legacy = stream->device->legacy;
    if (stream != legacy) {
        if (legacy != NULL && stream->seen != legacy->work) {
            order_after(stream, legacy);
            stream->seen = legacy->work;
        }
        return;
    }
    for (struct CUstream_st *other = streams; other != NULL; other = other->next)
        if (other != legacy && other->device == legacy->device && is_blocking(other) &&
            other->legacy_seen != other->work) {
            order_after(legacy, other);
            other->legacy_seen = other->work;
        }
}

/* put(), after what it has to wait for because of the legacy stream. */
static void submit(struct CUstream_st *stream, struct op *op)
{
    if (!is_blocking(stream)) {
        put(stream, op);
        return;
    }
    pthread_mutex_lock(&streams_lock);
    order_default(stream);
    stream->work += op->kind != OP_RECORD;
    put(stream, op);
    pthread_mutex_unlock(&streams_lock);
}

/* @param record  the queue takes this reference */
static void submit_record(struct CUstream_st *stream, enum op_kind kind, struct record *record)
{
    struct op *op = setup_need(calloc(1, sizeof(*op)));
    op->kind = kind;
    op->record = record;
    submit(stream, op);
}

static void stream_wait(struct CUstream_st *stream)
{
    struct record *record = record_new(2);
    submit_record(stream, OP_RECORD, record);
    record_wait(record);
    record_drop(record);
}

/* If so, the caller has waited for all of it. */
static bool is_idle(struct CUstream_st *stream)
{
    const uint64_t submitted = atomic_load_explicit(&stream->submitted, memory_order_relaxed);
    return atomic_load_explicit(&stream->executed, memory_order_relaxed) == submitted &&
           atomic_load_explicit(&stream->executed, memory_order_acquire) == submitted;
}

void streams_wait(struct device *device)
{
    struct record **records;
    size_t count = 0;
    pthread_mutex_lock(&streams_lock);
    for (struct CUstream_st *stream = streams; stream != NULL; stream = stream->next)
        count++;
    records = setup_need(calloc(count + 1, sizeof(*records)));
    count = 0;
    for (struct CUstream_st *stream = streams; stream != NULL; stream = stream->next)
        if (device == NULL || stream->device == device) {
            records[count] = record_new(2);
            put_record(stream, OP_RECORD, records[count++]);
        }
    pthread_mutex_unlock(&streams_lock);
    for (size_t i = 0; i < count; i++) {
        record_wait(records[i]);
        record_drop(records[i]);
    }
    free(records);
}

/* --- streams --- */

/* Under streams_lock. */
static struct CUstream_st *stream_new(struct device *device, unsigned flags)
{
    struct CUstream_st *stream = setup_need(calloc(1, sizeof(*stream)));
    stream->device = device;
    stream->flags = flags;
    stream->tail = setup_need(calloc(1, sizeof(*stream->tail)));
    atomic_init(&stream->head, stream->tail);
    sem_init(&stream->queued, 0, 0);
    /* The program's signals are for its own threads. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int rc = pthread_create(&stream->thread, NULL, stream_main, stream);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0)
        setup_need(NULL);
    stream->next = streams;
    streams = stream;
    return stream;
}

/* Waits for what is in it, ends its thread. */
static void stream_end(struct CUstream_st *stream)
{
    struct op *quit = setup_need(calloc(1, sizeof(*quit)));
    quit->kind = OP_QUIT;
    put(stream, quit);
    pthread_join(stream->thread, NULL);
}

static void stream_free(struct CUstream_st *stream)
{
    pthread_mutex_lock(&streams_lock);
    for (struct CUstream_st **link = &streams; *link != NULL; link = &(*link)->next)
        if (*link == stream) {
            *link = stream->next;
            break;
        }
    pthread_mutex_unlock(&streams_lock);
    stream_end(stream);
    sem_destroy(&stream->queued);
    free(stream->tail);
    free(stream);
}

void streams_stop(void)
{
    pthread_mutex_lock(&streams_lock);
    struct CUstream_st *first = streams;
    pthread_mutex_unlock(&streams_lock);
    for (struct CUstream_st *stream = first; stream != NULL; stream = stream->next)
        stream_end(stream);
}

void streams_count(unsigned *stream_total, unsigned *event_total)
{
    pthread_mutex_lock(&streams_lock);
    *stream_total = stream_count;
    *event_total = event_count;
    pthread_mutex_unlock(&streams_lock);
}

/* The streams of a thread that ends. */
static void free_per_thread(void *argument)
{
    struct CUstream_st **of_thread = argument;
    for (int i = 0; i < FAKE_GPUS_MAX; i++)
        if (of_thread[i] != NULL && !setup_ending())
            stream_free(of_thread[i]);
}

static void make_thread_end(void)
{
    pthread_key_create(&thread_end, free_per_thread);
}

static bool is_default_handle(cudaStream_t handle)
{
    return handle == NULL || handle == cudaStreamLegacy || handle == cudaStreamPerThread;
}

/* The stream that a handle names, made if it is a default one. */
static struct CUstream_st *stream_of(cudaStream_t handle)
{
    if (!is_default_handle(handle))
        return handle;
    const int ordinal = device_current();
    struct device *device = device_at(ordinal);
    pthread_once(&thread_end_once, make_thread_end);
    pthread_mutex_lock(&streams_lock);
    struct CUstream_st **place = handle == cudaStreamPerThread ? &per_thread[ordinal] : &device->legacy;
    if (*place == NULL)
        *place = stream_new(device, cudaStreamDefault);
    struct CUstream_st *stream = *place;
    pthread_mutex_unlock(&streams_lock);
    if (handle == cudaStreamPerThread)
        pthread_setspecific(thread_end, per_thread);
    return stream;
}

/* --- capture --- */

/* Under capture_lock: whether a capture of a blocking stream keeps the legacy stream from being used; invalidates it
 * if so. */
static bool capture_bars_legacy(const struct device *device, bool invalidate)
{
    bool bars = false;
    for (struct capture *capture = captures; capture != NULL; capture = capture->next)
        if (capture->origin->device == device && is_blocking(capture->origin)) {
            capture->invalid = capture->invalid || invalidate;
            bars = true;
        }
    return bars;
}

static bool any_capture(void)
{
    return atomic_load_explicit(&capture_count, memory_order_relaxed) > 0;
}

cudaError_t stream_find(cudaStream_t handle, struct CUstream_st **out)
{
    struct CUstream_st *stream = stream_of(handle);
    cudaError_t error = device_error(stream->device);
    if (error == cudaSuccess && any_capture() && stream == stream->device->legacy) {
        pthread_mutex_lock(&capture_lock);
        if (capture_bars_legacy(stream->device, true))
            error = cudaErrorStreamCaptureImplicit;
        pthread_mutex_unlock(&capture_lock);
    }
    if (error == cudaSuccess)
        *out = stream;
    return error;
}

cudaError_t capture_forbids(void)
{
    cudaError_t error = cudaSuccess;
    if (!any_capture() || thread_capture_mode == cudaStreamCaptureModeRelaxed)
        return cudaSuccess;
    pthread_mutex_lock(&capture_lock);
    for (struct capture *capture = captures; capture != NULL; capture = capture->next) {
        const bool mine = pthread_equal(capture->thread, pthread_self());
        if (mine ? capture->mode != cudaStreamCaptureModeRelaxed
                 : capture->mode == cudaStreamCaptureModeGlobal && thread_capture_mode == cudaStreamCaptureModeGlobal) {
            capture->invalid = true;
            error = cudaErrorStreamCaptureUnsupported;
        }
    }
    pthread_mutex_unlock(&capture_lock);
    return error;
}

cudaError_t capture_forbids_device(const struct device *device)
{
    cudaError_t error = cudaSuccess;
    if (!any_capture())
        return cudaSuccess;
    pthread_mutex_lock(&capture_lock);
    for (struct capture *capture = captures; capture != NULL; capture = capture->next)
        if (capture->origin->device == device) {
            capture->invalid = true;
            error = cudaErrorStreamCaptureUnsupported;
        }
    pthread_mutex_unlock(&capture_lock);
    return error;
}

/* What isn't ordered by a stream makes the capture of one invalid. */
static cudaError_t capture_forbids_stream(struct CUstream_st *stream)
{
    cudaError_t error = cudaSuccess;
    if (!any_capture())
        return cudaSuccess;
    pthread_mutex_lock(&capture_lock);
    if (stream->capture != NULL) {
        stream->capture->invalid = true;
        error = cudaErrorStreamCaptureUnsupported;
    }
    pthread_mutex_unlock(&capture_lock);
    return error;
}

/* Under capture_lock: the one of that id if it hasn't ended, or NULL. */
static struct capture *capture_of(uint64_t id)
{
    struct capture *capture = captures;
    while (capture != NULL && capture->id != id)
        capture = capture->next;
    return capture;
}

/* Under capture_lock. */
static void capture_end(struct capture *capture)
{
    struct capture **link = &captures;
    while (*link != capture)
        link = &(*link)->next;
    *link = capture->next;
    pthread_mutex_lock(&streams_lock);
    for (struct CUstream_st *stream = streams; stream != NULL; stream = stream->next)
        if (stream->capture == capture)
            stream->capture = NULL;
    pthread_mutex_unlock(&streams_lock);
    atomic_fetch_sub_explicit(&capture_count, 1, memory_order_relaxed);
    free(capture);
}

/* Adds an operation to the stream's capture if it has one.
 * @return whether it has; then *error says what became of it */
static bool capture_adds(struct CUstream_st *stream, cudaError_t *error, uint64_t *id)
{
    if (!any_capture())
        return false;
    pthread_mutex_lock(&capture_lock);
    struct capture *capture = stream->capture;
    if (capture != NULL) {
        *error = capture->invalid ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
        *id = capture->id;
        capture->nodes++;
    }
    pthread_mutex_unlock(&capture_lock);
    return capture != NULL;
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
    op->kind = OP_RUN;
    op->run = run;
    op->argument = argument;
    op->failure = call->failure;
    op->delay_us = call->delay_us;
    submit(stream, op);
    if (wait)
        stream_wait(stream);
    return wait ? device_error(stream->device) : cudaSuccess;
}

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
        pthread_mutex_lock(&capture_lock);
        if (stream->capture != NULL) {
            error = cudaErrorIllegalState;
        } else {
            struct capture *capture = setup_need(calloc(1, sizeof(*capture)));
            *capture = (struct capture){
                .next = captures, .id = ++capture_last_id, .mode = mode, .thread = pthread_self(), .origin = stream};
            captures = stream->capture = capture;
            atomic_fetch_add_explicit(&capture_count, 1, memory_order_relaxed);
        }
        pthread_mutex_unlock(&capture_lock);
    }
    return call_end(&call, error, "stream=%p mode=%d", (void *)handle, (int)mode);
}

/* Under capture_lock. */
static cudaError_t end_capture(struct CUstream_st *stream, cudaGraph_t *out)
{
    struct capture *capture = stream->capture;
    if (capture == NULL)
        return cudaErrorIllegalState;
    if (capture->origin != stream)
        return cudaErrorStreamCaptureUnmatched;
    cudaError_t error = capture->invalid ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
    if (capture->mode != cudaStreamCaptureModeRelaxed && !pthread_equal(capture->thread, pthread_self()))
        error = cudaErrorStreamCaptureWrongThread;
    if (error == cudaSuccess) {
        *out = setup_need(malloc(sizeof(**out)));
        (*out)->nodes = capture->nodes;
    }
    capture_end(capture);
    return error;
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
        pthread_mutex_lock(&capture_lock);
        error = end_capture(stream, graph);
        pthread_mutex_unlock(&capture_lock);
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
        struct CUstream_st *stream = stream_of(handle);
        error = device_error(stream->device);
        pthread_mutex_lock(&capture_lock);
        if (error == cudaSuccess && stream == stream->device->legacy && capture_bars_legacy(stream->device, false))
            error = cudaErrorStreamCaptureImplicit;
        if (error == cudaSuccess)
            *status = stream->capture == NULL    ? cudaStreamCaptureStatusNone
                      : stream->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                                 : cudaStreamCaptureStatusActive;
        pthread_mutex_unlock(&capture_lock);
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
        const enum cudaStreamCaptureMode before = thread_capture_mode;
        thread_capture_mode = *mode;
        *mode = before;
    }
    return call_end(&call, error, "mode=%d", (int)thread_capture_mode);
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

/* --- streams as callers see them --- */

static cudaError_t create_stream(const char *function, cudaStream_t *out, unsigned flags)
{
    struct call call;
    cudaStream_t stream = NULL;
    cudaError_t error = call_begin(&call, function, CALL_DEVICE);
    if (error == cudaSuccess && (out == NULL || flags > cudaStreamNonBlocking))
        error = cudaErrorInvalidValue;
    if (error == cudaSuccess) {
        pthread_mutex_lock(&streams_lock);
        stream = stream_new(call.device, flags);
        stream_count++;
        pthread_mutex_unlock(&streams_lock);
        *out = stream;
    }
    return call_end(&call, error, "flags=%u stream=%p", flags, (void *)stream);
}

cudaError_t cudaStreamCreate(cudaStream_t *out)
{
    return create_stream(__func__, out, cudaStreamDefault);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    return create_stream(__func__, out, flags);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    struct call call;
    cudaError_t error = call_begin(&call, __func__, CALL_PROCESS);
    if (error == cudaSuccess && is_default_handle(stream))
        error = cudaErrorInvalidResourceHandle;
    if (error == cudaSuccess) {
        error = device_error(stream->device);
        pthread_mutex_lock(&capture_lock);
        if (stream->capture != NULL && stream->capture->origin == stream)
            capture_end(stream->capture);
        pthread_mutex_unlock(&capture_lock);
        pthread_mutex_lock(&streams_lock);
        stream_count--;
        pthread_mutex_unlock(&streams_lock);
        stream_free(stream);
    }
    return call_end(&call, error, "stream=%p", (void *)stream);
}

/* Begins a call that asks for, or waits for, a stream's state. */
static cudaError_t begin_stream(struct call *call, const char *function, cudaStream_t handle, struct CUstream_st **out)
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
    cudaError_t error = begin_stream(&call, __func__, handle, &stream);
    if (error == cudaSuccess)
        error = capture_forbids();
    if (error == cudaSuccess) {
        stream_wait(stream);
        error = device_error(stream->device);
    }
    return call_end(&call, error, "stream=%p", (void *)handle);
}

cudaError_t cudaStreamQuery(cudaStream_t handle)
{
    struct call call;
    struct CUstream_st *stream = NULL;
    cudaError_t error = begin_stream(&call, __func__, handle, &stream);
    if (error == cudaSuccess)
        error = capture_forbids();
    if (error == cudaSuccess) {
        bool idle = is_idle(stream);
        pthread_mutex_lock(&streams_lock);
        if (stream == stream->device->legacy)
            for (struct CUstream_st *other = streams; other != NULL; other = other->next)
                idle = idle && (other->device != stream->device || !is_blocking(other) || is_idle(other));
        pthread_mutex_unlock(&streams_lock);
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
    cudaError_t error = begin_stream(&call, __func__, handle, &stream);
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

/* --- events --- */

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
        pthread_mutex_init(&event->lock, NULL);
        pthread_mutex_lock(&streams_lock);
        event->next = events;
        events = event;
        event_count++;
        pthread_mutex_unlock(&streams_lock);
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
        pthread_mutex_lock(&streams_lock);
        struct CUevent_st **link = &events;
        while (*link != event)
            link = &(*link)->next;
        *link = event->next;
        event_count--;
        pthread_mutex_unlock(&streams_lock);
        record_drop(event->last);
        pthread_mutex_destroy(&event->lock);
        free(event);
    }
    return call_end(&call, error, "event=%p", (void *)event);
}

/* What the event stands for from now on. @param record  a reference, or NULL */
static void event_set(cudaEvent_t event, struct record *record, uint64_t capture_id)
{
    pthread_mutex_lock(&event->lock);
    struct record *before = event->last;
    event->last = record;
    event->capture_id = capture_id;
    pthread_mutex_unlock(&event->lock);
    record_drop(before);
}

/* @return its last record, a reference, or NULL; *capture_id says where it was captured */
static struct record *event_get(cudaEvent_t event, uint64_t *capture_id)
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
                event_set(event, NULL, capture_id);
        } else {
            struct record *record = record_new(2);
            event_set(event, record, 0);
            submit_record(stream, OP_RECORD, record);
        }
    }
    return call_end(&call, error, "event=%p stream=%p", (void *)event, (void *)handle);
}

/* Begins a call that asks for, or waits for, an event.
 * @param record  a reference, or NULL where there is nothing to wait for */
static cudaError_t begin_event(struct call *call, const char *function, cudaEvent_t event, struct record **record)
{
    cudaError_t error = call_begin(call, function, CALL_PROCESS);
    if (error == cudaSuccess && event == NULL)
        error = cudaErrorInvalidResourceHandle;
    if (error == cudaSuccess)
        error = device_error(event->device);
    if (error != cudaSuccess)
        return error;
    uint64_t capture_id;
    *record = event_get(event, &capture_id);
    if (capture_id != 0) {
        pthread_mutex_lock(&capture_lock);
        struct capture *capture = capture_of(capture_id);
        error = capture != NULL ? cudaErrorCapturedEvent : cudaErrorInvalidValue;
        if (capture != NULL)
            capture->invalid = true;
        pthread_mutex_unlock(&capture_lock);
    }
    return error == cudaSuccess ? capture_forbids() : error;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    struct call call;
    struct record *record = NULL;
    cudaError_t error = begin_event(&call, __func__, event, &record);
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
    cudaError_t error = begin_event(&call, __func__, event, &record);
    if (error == cudaSuccess && record != NULL)
        record_wait(record);
    record_drop(record);
    if (error == cudaSuccess)
        error = device_error(event->device);
    return call_end(&call, error, "event=%p", (void *)event);
}

/* As cudaStreamWaitEvent() where the stream captures, or the event was captured. */
static cudaError_t wait_captured(struct CUstream_st *stream, bool recorded, uint64_t capture_id)
{
    cudaError_t error = cudaSuccess;
    pthread_mutex_lock(&capture_lock);
    struct capture *capture = capture_id != 0 ? capture_of(capture_id) : NULL;
    if (capture_id != 0 && capture == NULL) {
        error = cudaErrorInvalidValue;
    } else if (stream->capture == NULL) {
        stream->capture = capture; /* the stream joins */
    } else if (stream->capture != capture && (recorded || capture != NULL)) {
        stream->capture->invalid = true;
        error = capture != NULL ? cudaErrorStreamCaptureMerge : cudaErrorStreamCaptureIsolation;
    }
    pthread_mutex_unlock(&capture_lock);
    return error;
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
        record = event_get(event, &capture_id);
        uint64_t id;
        if (capture_id != 0 || capture_adds(stream, &error, &id)) {
            if (error == cudaSuccess)
                error = wait_captured(stream, record != NULL, capture_id);
        } else if (record != NULL) {
            submit_record(stream, OP_WAIT, record_keep(record));
        }
    }
    record_drop(record);
    return call_end(&call, error, "stream=%p event=%p", (void *)handle, (void *)event);
}
