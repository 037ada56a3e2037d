/* queue.c - what the fake CUDA runtime's streams have to do, and the threads that do it: stream.h.
 *
 * Happy path: a call puts an operation into its stream's queue -> the stream's thread takes and executes it -> a record
 * in the queue tells who waits for it that everything before has been executed.
 * What can fail: an execution; then the device has failed, and of what is queued only records and waits still count.
 * Threads: any; each stream has one of its own. No lock is held while something is executed. */
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

#include "stream.h"

#define POLL_US 1000 /* how often what takes long looks whether its device has failed or the process ends */

/* Guards the list of streams, the default ones, and the order in which the legacy stream and blocking ones wait for
 * each other. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct CUstream_st *streams;

static _Thread_local struct CUstream_st *executing;
static _Thread_local struct CUstream_st *per_thread[FAKE_GPUS_MAX]; /* cudaStreamPerThread, by device */
static pthread_key_t thread_end;
static pthread_once_t thread_end_once = PTHREAD_ONCE_INIT;

/* --- a stream's thread --- */

static bool is_dead(const struct CUstream_st *stream)
{
    return setup_ending() || device_error(stream->device) != cudaSuccess;
}

bool queue_is_executing(void)
{
    return executing != NULL;
}

static uint64_t now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

void queue_sleep_us(unsigned long us)
{
    const uint64_t end_us = now_us() + us;
    uint64_t now;
    while (!is_dead(executing) && (now = now_us()) < end_us) {
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
        queue_sleep_us(op->delay_us);
        cudaError_t error = op->failure;
        if (error == cudaSuccess && !is_dead(stream))
            error = op->run(op->argument);
        if (error != cudaSuccess)
            device_fail(stream->device, error);
    }
    while (op->kind == OP_WAIT && !is_dead(stream) && !record_wait_us(op->record, POLL_US))
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

static struct op *op_new(enum op_kind kind, struct record *record)
{
    struct op *op = setup_need(calloc(1, sizeof(*op)));
    op->kind = kind;
    op->record = record;
    return op;
}

static void put(struct CUstream_st *stream, struct op *op)
{
    atomic_store_explicit(&op->next, NULL, memory_order_relaxed);
    atomic_fetch_add_explicit(&stream->submitted, 1, memory_order_relaxed);
    struct op *before = atomic_exchange_explicit(&stream->head, op, memory_order_acq_rel);
    atomic_store_explicit(&before->next, op, memory_order_release);
    sem_post(&stream->queued);
}

/* Under the lock: what is put into `stream` from now on waits for what is in `other`. */
static void order_after(struct CUstream_st *stream, struct CUstream_st *other)
{
    struct record *record = record_new(2);
    put(other, op_new(OP_RECORD, record));
    put(stream, op_new(OP_WAIT, record));
}

bool queue_is_blocking(const struct CUstream_st *stream)
{
    return (stream->flags & cudaStreamNonBlocking) == 0;
}

/* Under the lock: the legacy stream and blocking streams wait for each other, as "Stream synchronization behavior" of
 * the CUDA Runtime API has it. */
static void order_default(struct CUstream_st *stream)
{
    struct CUstream_st *legacy = stream->device->legacy;
    if (stream != legacy) {
        if (legacy != NULL && stream->seen_legacy != legacy->work) {
            order_after(stream, legacy);
            stream->seen_legacy = legacy->work;
        }
        return;
    }
    for (struct CUstream_st *other = streams; other != NULL; other = other->next)
        if (other != legacy && other->device == legacy->device && queue_is_blocking(other) &&
            other->legacy_seen != other->work) {
            order_after(legacy, other);
            other->legacy_seen = other->work;
        }
}

void queue_submit(struct CUstream_st *stream, struct op *op)
{
    if (!queue_is_blocking(stream)) {
        put(stream, op);
        return;
    }
    pthread_mutex_lock(&lock);
    order_default(stream);
    stream->work += op->kind != OP_RECORD;
    put(stream, op);
    pthread_mutex_unlock(&lock);
}

void queue_submit_record(struct CUstream_st *stream, enum op_kind kind, struct record *record)
{
    queue_submit(stream, op_new(kind, record));
}

void queue_wait(struct CUstream_st *stream)
{
    struct record *record = record_new(2);
    queue_submit_record(stream, OP_RECORD, record);
    record_wait(record);
    record_drop(record);
}

void queue_wait_all(const struct device *device)
{
    size_t count = 0;
    pthread_mutex_lock(&lock);
    for (struct CUstream_st *stream = streams; stream != NULL; stream = stream->next)
        count++;
    struct record **records = setup_need(calloc(count + 1, sizeof(*records)));
    count = 0;
    for (struct CUstream_st *stream = streams; stream != NULL; stream = stream->next)
        if (device == NULL || stream->device == device) {
            records[count] = record_new(2);
            put(stream, op_new(OP_RECORD, records[count++]));
        }
    pthread_mutex_unlock(&lock);
    for (size_t i = 0; i < count; i++) {
        record_wait(records[i]);
        record_drop(records[i]);
    }
    free(records);
}

static bool is_executed(struct CUstream_st *stream)
{
    const uint64_t submitted = atomic_load_explicit(&stream->submitted, memory_order_relaxed);
    /* Only who is told so has waited for it. */
    return atomic_load_explicit(&stream->executed, memory_order_relaxed) == submitted &&
           atomic_load_explicit(&stream->executed, memory_order_acquire) == submitted;
}

bool queue_is_idle(struct CUstream_st *stream)
{
    bool idle = is_executed(stream);
    pthread_mutex_lock(&lock);
    if (stream == stream->device->legacy)
        for (struct CUstream_st *other = streams; other != NULL; other = other->next)
            idle = idle && (other->device != stream->device || !queue_is_blocking(other) || is_executed(other));
    pthread_mutex_unlock(&lock);
    return idle;
}

/* --- from the first to the last --- */

/* Under the lock. */
static struct CUstream_st *stream_new(struct device *device, unsigned flags)
{
    struct CUstream_st *stream = setup_need(calloc(1, sizeof(*stream)));
    stream->device = device;
    stream->flags = flags;
    stream->tail = op_new(OP_RECORD, NULL); /* as if taken: what comes first is linked to it */
    atomic_init(&stream->head, stream->tail);
    sem_init(&stream->queued, 0, 0);
    /* The program's signals are for its own threads. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int rc = pthread_create(&stream->thread, NULL, stream_main, stream);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    setup_need(rc == 0 ? stream : NULL);
    stream->next = streams;
    streams = stream;
    return stream;
}

struct CUstream_st *queue_new(struct device *device, unsigned flags)
{
    pthread_mutex_lock(&lock);
    struct CUstream_st *stream = stream_new(device, flags);
    pthread_mutex_unlock(&lock);
    return stream;
}

/* Waits for what it has to do, ends its thread. */
static void stream_end(struct CUstream_st *stream)
{
    put(stream, op_new(OP_QUIT, NULL));
    pthread_join(stream->thread, NULL);
}

void queue_free(struct CUstream_st *stream)
{
    pthread_mutex_lock(&lock);
    struct CUstream_st **link = &streams;
    while (*link != stream)
        link = &(*link)->next;
    *link = stream->next;
    pthread_mutex_unlock(&lock);
    stream_end(stream);
    sem_destroy(&stream->queued);
    free(stream->tail);
    free(stream);
}

void queue_stop_all(void)
{
    pthread_mutex_lock(&lock);
    struct CUstream_st *first = streams;
    pthread_mutex_unlock(&lock);
    for (struct CUstream_st *stream = first; stream != NULL; stream = stream->next)
        stream_end(stream);
}

/* The streams of a thread that ends. */
static void free_per_thread(void *argument)
{
    struct CUstream_st **of_thread = argument;
    for (int i = 0; i < FAKE_GPUS_MAX; i++)
        if (of_thread[i] != NULL && !setup_ending())
            queue_free(of_thread[i]);
}

static void make_thread_end(void)
{
    pthread_key_create(&thread_end, free_per_thread);
}

bool queue_is_default(cudaStream_t handle)
{
    return handle == NULL || handle == cudaStreamLegacy || handle == cudaStreamPerThread;
}

struct CUstream_st *queue_of(cudaStream_t handle)
{
    if (!queue_is_default(handle))
        return handle;
    struct device *device = device_at(device_current());
    struct CUstream_st **place = &device->legacy;
    if (handle == cudaStreamPerThread) {
        pthread_once(&thread_end_once, make_thread_end);
        pthread_setspecific(thread_end, per_thread);
        place = &per_thread[device->ordinal];
    }
    pthread_mutex_lock(&lock);
    if (*place == NULL)
        *place = stream_new(device, cudaStreamDefault);
    struct CUstream_st *stream = *place;
    pthread_mutex_unlock(&lock);
    return stream;
}
