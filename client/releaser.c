/* releaser.c - gives batches back when the GPU has got there, or the last tensor that was lent is deleted: the one
 * thread of libfeedd, for each client that needs it.
 *
 * Happy path: feedd_release() marks where the caller's stream stands and returns -> the thread sleeps until the oldest
 * mark is passed, takes every other one that is, and sends RELEASE for all of them. A stream that has nothing to do is
 * found out at once, and the batch given back as one without a GPU is. A batch that is lent comes when its last tensor
 * is deleted; the thread marks the streams that read it by then, which waits for more than is needed, never for less,
 * and keeps the deleter from calling CUDA. Without a GPU there is nothing to wait for.
 * A client that is closed while something is lent is the thread's from then on: it closes and frees it in the end.
 * What can fail: the connection. Then nobody is there to be told, and the caller's next call finds out. A GPU that has
 * failed passes every mark.
 *
 * Threads: releaser_return() is anybody's; the rest is the caller's. The thread blocks all signals. It shares with the
 * others the queue, the counts of tensors and the socket (under client->lock, with `generation`, which connection it
 * is) and, of a batch, its state, which is BATCH_RETURNING while it is the thread's. It is made ABSENT before RELEASE
 * is sent: the daemon's next READY for that slot may come at once. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "error.h"
#include "internal.h"

#define COALESCED  64       /* batches of one RELEASE */
#define CAPTURE_NS 10000000 /* between two looks at a stream that is being captured */

/* ---- the thread ---- */

static bool passed(const struct feedd_batch *batch)
{
    for (uint32_t i = 0; i < batch->mark_count; i++)
        if (!device_mark_passed(batch->marks[i]))
            return false;
    return batch->stream_count == 0;
}

/* Marks the streams that read what was lent, and waits until all marks are passed. */
static void wait_passed(struct feedd_batch *batch)
{
    const struct device *device = &batch->map->stream->device;
    while (batch->stream_count > 0) {
        struct CUstream_st *stream = batch->streams[batch->stream_count - 1];
        bool idle;
        int status = device_mark(device, stream, &batch->marks[batch->mark_count], &idle, NULL);
        if (status == FEEDD_E_STATE) { /* it is being captured, and can be marked afterwards */
            nanosleep(&(struct timespec){0, CAPTURE_NS}, NULL);
            continue;
        }
        if (status != 0)
            device_finish(device);
        else if (!idle)
            batch->mark_count++;
        batch->stream_count--;
    }
    for (uint32_t i = 0; i < batch->mark_count; i++)
        device_mark_wait(batch->marks[i]);
}

/* Takes passed marks off the queue that belong to one stream, from its start. Under the lock.
 * @return how many */
static uint32_t take_passed(struct feedd_client *client, struct feedd_batch *taken[COALESCED])
{
    uint32_t count = 0;
    for (struct feedd_batch **at = &client->returning; *at != NULL && count < COALESCED;) {
        struct feedd_batch *batch = *at;
        if ((count > 0 && batch->map != taken[0]->map) || (count > 0 && !passed(batch))) {
            at = &batch->returning_next;
            continue;
        }
        taken[count++] = batch;
        *at = batch->returning_next;
    }
    client->returning_end = &client->returning;
    while (*client->returning_end != NULL)
        client->returning_end = &(*client->returning_end)->returning_next;
    return count;
}

/* Sends RELEASE, unless the connection is another one by now. Under the lock, but for waiting. */
static void send_release(struct feedd_client *client, uint64_t generation, const Feedd__Release *release)
{
    size_t bytes = wire_pack(client->release_packet, sizeof(client->release_packet), WIRE_RELEASE, &release->base);
    while (client->generation == generation && !client->releaser_stop &&
           wire_send(client->fd, client->release_packet, bytes, NULL, 0) == FEEDD_E_TIMEOUT) {
        struct pollfd p = {client->fd, POLLOUT, 0};
        pthread_mutex_unlock(&client->lock);
        poll(&p, 1, 10); /* the socket may be replaced meanwhile: look again soon */
        pthread_mutex_lock(&client->lock);
    }
}

static void give_back(struct feedd_client *client, struct feedd_batch *taken[COALESCED], uint32_t count)
{
    struct ring_map *map = taken[0]->map;
    uint32_t slots[COALESCED];
    uint64_t seqs[COALESCED];
    Feedd__Release release = FEEDD__RELEASE__INIT;
    release.stream = map->number;
    release.n_slots = release.n_seqs = count;
    release.slots = slots;
    release.seqs = seqs;
    for (uint32_t i = 0; i < count; i++) {
        slots[i] = taken[i]->slot;
        seqs[i] = taken[i]->seq;
        atomic_store_explicit(&taken[i]->state, BATCH_ABSENT, memory_order_release);
    }
    send_release(client, map->generation, &release);
    map->returning -= count;
    pthread_cond_broadcast(&client->returned);
}

/* Of an abandoned client: nobody reads what the daemon says. */
static void discard_packets(struct feedd_client *client)
{
    char byte;
    while (recv(client->fd, &byte, sizeof(byte), MSG_DONTWAIT | MSG_TRUNC) > 0)
        continue;
}

static void wait_for_work(struct feedd_client *client)
{
    struct timespec until;
    if (!client->abandoned) {
        pthread_cond_wait(&client->returns, &client->lock);
        return;
    }
    discard_packets(client);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec++;
    pthread_cond_timedwait(&client->returns, &client->lock, &until);
}

static void *releaser_main(void *arg)
{
    struct feedd_client *client = arg;
    struct feedd_batch *taken[COALESCED];
    device_waiting_thread();
    pthread_mutex_lock(&client->lock);
    for (;;) {
        if (client->returning != NULL) {
            struct feedd_batch *oldest = client->returning;
            pthread_mutex_unlock(&client->lock);
            wait_passed(oldest);
            pthread_mutex_lock(&client->lock);
            give_back(client, taken, take_passed(client, taken));
        } else if (client->releaser_stop || (client->abandoned && client->tensors == 0)) {
            break;
        } else {
            wait_for_work(client);
        }
    }
    bool abandoned = client->abandoned;
    pthread_mutex_unlock(&client->lock);
    if (abandoned)
        client_free(client);
    return NULL;
}

/* ---- what others ask for ---- */

static int start(struct feedd_client *client, struct feedd_error *err)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are the program's */
    int rc = pthread_create(&client->releaser, NULL, releaser_main, client);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0)
        return error_set(err, FEEDD_E_MEMORY, "no thread for giving back batches");
    pthread_setname_np(client->releaser, "feedd-release");
    client->has_releaser = true;
    return 0;
}

/* Under the lock. */
static void push(struct feedd_client *client, struct feedd_batch *batch)
{
    atomic_store_explicit(&batch->state, BATCH_RETURNING, memory_order_relaxed);
    batch->returning_next = NULL;
    *client->returning_end = batch;
    client->returning_end = &batch->returning_next;
    batch->map->returning++;
    pthread_cond_signal(&client->returns);
}

int releaser_add(struct feedd_client *client, struct feedd_batch *batch, struct CUstream_st *stream, bool *idle,
                 struct feedd_error *err)
{
    int status = client->has_releaser ? 0 : start(client, err);
    if (status == 0) /* a slot's mark is used again and again: the thread is done with it when the batch is ABSENT */
        status = device_mark(&batch->map->stream->device, stream, &batch->marks[0], idle, err);
    if (status != 0 || *idle)
        return status;
    batch->mark_count = 1;
    pthread_mutex_lock(&client->lock);
    push(client, batch);
    pthread_mutex_unlock(&client->lock);
    return 0;
}

/* Under the lock. */
static int record(struct feedd_batch *batch, struct CUstream_st *stream, struct feedd_error *err)
{
    if (!batch->map->for_gpu) /* who reads on the CPU has read when it deletes its tensor */
        return 0;
    for (uint32_t i = 0; i < batch->stream_count; i++)
        if (batch->streams[i] == stream)
            return 0;
    if (batch->stream_count == BATCH_STREAMS)
        return error_set(err, FEEDD_E_LIMIT,
                         "a batch that is lent is read on more than %d streams: let one of them wait for the others",
                         BATCH_STREAMS);
    batch->streams[batch->stream_count++] = stream;
    return 0;
}

int releaser_lend(struct feedd_client *client, struct feedd_batch *batch, struct CUstream_st *stream,
                  struct feedd_error *err)
{
    int status = client->has_releaser ? 0 : start(client, err);
    if (status != 0)
        return status;
    client->lending = true;
    pthread_mutex_lock(&client->lock);
    status = batch->map->on_host ? 0 : record(batch, stream, err); /* a tensor in host memory is the CPU's to read */
    batch->tensors += status == 0;
    client->tensors += status == 0;
    pthread_mutex_unlock(&client->lock);
    return status;
}

int releaser_record(struct feedd_client *client, struct feedd_batch *batch, struct CUstream_st *stream,
                    struct feedd_error *err)
{
    pthread_mutex_lock(&client->lock);
    int status = batch->tensors > 0 ? record(batch, stream, err)
                                    : error_set(err, FEEDD_E_STATE, "a batch that is not lent is read on a stream");
    pthread_mutex_unlock(&client->lock);
    return status;
}

int releaser_settle(struct feedd_client *client, struct feedd_batch *batch, struct CUstream_st *stream, bool *done,
                    struct feedd_error *err)
{
    pthread_mutex_lock(&client->lock);
    *done = batch->tensors > 0 || batch->stream_count > 0;
    int status = *done ? record(batch, stream, err) : 0;
    if (status == 0 && batch->tensors > 0) {
        atomic_store_explicit(&batch->state, BATCH_LENT, memory_order_relaxed);
        batch->map->lent++;
    } else if (status == 0 && *done) {
        push(client, batch);
    }
    pthread_mutex_unlock(&client->lock);
    return status;
}

void releaser_return(struct feedd_batch *batch)
{
    struct feedd_client *client = batch->map->stream->client;
    if (client->owner != getpid()) /* the lock may be held for ever */
        return;
    pthread_mutex_lock(&client->lock);
    client->tensors--;
    if (--batch->tensors == 0 && batch->state == BATCH_LENT) {
        batch->map->lent--;
        push(client, batch);
    }
    pthread_mutex_unlock(&client->lock);
}

bool releaser_abandon(struct feedd_client *client)
{
    pthread_mutex_lock(&client->lock);
    bool lent = client->tensors > 0;
    client->abandoned = lent;
    if (lent) {
        pthread_detach(client->releaser);
        pthread_cond_signal(&client->returns);
    }
    pthread_mutex_unlock(&client->lock);
    return lent;
}

void releaser_drain(struct feedd_client *client, const struct feedd_stream *stream)
{
    pthread_mutex_lock(&client->lock);
    for (const struct ring_map *map = stream->map; map != NULL;) {
        if (map->returning == 0)
            map = map->older;
        else
            pthread_cond_wait(&client->returned, &client->lock);
    }
    pthread_mutex_unlock(&client->lock);
}

void releaser_stop(struct feedd_client *client)
{
    if (!client->has_releaser)
        return;
    pthread_mutex_lock(&client->lock);
    client->releaser_stop = true;
    pthread_cond_signal(&client->returns);
    pthread_mutex_unlock(&client->lock);
    pthread_join(client->releaser, NULL);
}
