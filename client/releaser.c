/* releaser.c - gives batches on a GPU back when the GPU has got there: the one thread of libfeedd, for each client that
 * needs it.
 *
 * Happy path: feedd_release() marks where the caller's stream stands and returns -> the thread sleeps until the oldest
 * mark is passed, takes every other one that is, and sends RELEASE for all of them. A stream that has nothing to do is
 * found out at once, and the batch given back as one in host memory is.
 * What can fail: the connection. Then nobody is there to be told, and the caller's next call finds out. A GPU that has
 * failed passes every mark.
 *
 * Threads: releaser_add() and releaser_drain() are the caller's. The thread blocks all signals. It shares with the
 * caller the queue and the socket (under client->lock, with `generation`, which connection it is) and, of a batch, its
 * state, which is BATCH_RETURNING while it is the thread's. It is made ABSENT before RELEASE is sent: the daemon's next
 * READY for that slot may come at once. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#include "error.h"
#include "internal.h"

#define COALESCED 64 /* batches of one RELEASE */

/* Takes passed marks off the queue that belong to one stream, from its start. Under the lock.
 * @return how many */
static uint32_t take_passed(struct feedd_client *client, struct feedd_batch *taken[COALESCED])
{
    uint32_t count = 0;
    for (struct feedd_batch **at = &client->returning; *at != NULL && count < COALESCED;) {
        struct feedd_batch *batch = *at;
        if ((count > 0 && batch->map != taken[0]->map) || (count > 0 && !device_mark_passed(batch->mark))) {
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

static void *releaser_main(void *arg)
{
    struct feedd_client *client = arg;
    struct feedd_batch *taken[COALESCED];
    device_waiting_thread();
    pthread_mutex_lock(&client->lock);
    for (;;) {
        if (client->returning != NULL) {
            const struct device_mark *oldest = client->returning->mark;
            pthread_mutex_unlock(&client->lock);
            device_mark_wait(oldest);
            pthread_mutex_lock(&client->lock);
            give_back(client, taken, take_passed(client, taken));
        } else if (client->releaser_stop) {
            break;
        } else {
            pthread_cond_wait(&client->returns, &client->lock);
        }
    }
    pthread_mutex_unlock(&client->lock);
    return NULL;
}

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

int releaser_add(struct feedd_client *client, struct feedd_batch *batch, struct CUstream_st *stream, bool *idle,
                 struct feedd_error *err)
{
    int status = client->has_releaser ? 0 : start(client, err);
    if (status == 0) /* a slot's mark is used again and again: the thread is done with it when the batch is ABSENT */
        status = device_mark(&batch->map->stream->device, stream, &batch->mark, idle, err);
    if (status != 0 || *idle)
        return status;
    atomic_store_explicit(&batch->state, BATCH_RETURNING, memory_order_relaxed);
    batch->returning_next = NULL;
    pthread_mutex_lock(&client->lock);
    *client->returning_end = batch;
    client->returning_end = &batch->returning_next;
    batch->map->returning++;
    pthread_cond_signal(&client->returns);
    pthread_mutex_unlock(&client->lock);
    return 0;
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
