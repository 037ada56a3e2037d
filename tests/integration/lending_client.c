/* lending_client.c - a client whose batches are read and deleted, as DLPack tensors, by other threads:
 * lending_client SOCKET SOURCE BATCHES.
 *
 * It gives each batch back as soon as it has lent it, twice, and closes stream and client while tensors are still
 * there. The threads look whether a tensor is the same when they get it and a little later. Prints the number of
 * batches. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "feedd.h"

#define THREADS 3
#define QUEUE   64

struct tensor { /* DLManagedTensor, as DLPack 0.8 has it */
    const uint8_t *data;
    int32_t device_type, device_id, ndim;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t byte_offset;
    void *context;
    void (*deleter)(struct tensor *self);
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct tensor *queue[QUEUE];
static unsigned queue_count;
static int done;

static uint64_t sum_of(const struct tensor *tensor)
{
    uint64_t bytes = 1, sum = 0;
    for (int32_t d = 0; d < tensor->ndim; d++)
        bytes *= (uint64_t)tensor->shape[d];
    for (uint64_t i = 0; i < bytes; i++)
        sum = sum * 31 + tensor->data[i];
    return sum;
}

static void *read_tensors(void *arg)
{
    (void)arg;
    for (;;) {
        pthread_mutex_lock(&lock);
        while (queue_count == 0 && !done)
            pthread_cond_wait(&changed, &lock);
        struct tensor *tensor = queue_count > 0 ? queue[--queue_count] : NULL;
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&lock);
        if (tensor == NULL)
            return NULL;
        uint64_t sum = sum_of(tensor);
        nanosleep(&(struct timespec){0, (long)(sum % 500000)}, NULL);
        if (sum_of(tensor) != sum) {
            fprintf(stderr, "a tensor was overwritten\n");
            exit(1);
        }
        tensor->deleter(tensor);
    }
}

static void put(struct tensor *tensor)
{
    pthread_mutex_lock(&lock);
    while (queue_count == QUEUE)
        pthread_cond_wait(&changed, &lock);
    queue[queue_count++] = tensor;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

int main(int argc, char **argv)
{
    struct feedd_open_options options = FEEDD_OPEN_OPTIONS_INIT;
    struct feedd_error err;
    struct feedd_client *client;
    struct feedd_stream *stream;
    pthread_t threads[THREADS];
    int taken = 0, status = 0, batches = argc == 4 ? atoi(argv[3]) : 0;
    options.depth = 8;
    options.batch_size = 20;
    if (argc != 4 || feedd_connect(argv[1], &client, &err) || feedd_open(client, argv[2], &options, &stream, &err))
        return fprintf(stderr, "%s\n", argc == 4 ? err.message : "usage"), 1;
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, read_tensors, NULL);
    while (taken < batches) {
        const struct feedd_batch *batch;
        void *lent[2];
        status = feedd_next(stream, 10000, &batch, &err);
        if (status == FEEDD_E_LEASES) { /* the others are slow */
            nanosleep(&(struct timespec){0, 100000}, NULL);
            continue;
        }
        for (int i = 0; i < 2 && status == 0; i++)
            status = feedd_batch_dlpack(batch, 0, 0, NULL, &lent[i], &err);
        if (status == 0)
            status = feedd_release(batch, NULL, &err);
        if (status != 0)
            return fprintf(stderr, "%s\n", err.message), 1;
        put(lent[0]);
        put(lent[1]);
        taken++;
    }
    feedd_stream_close(stream);
    feedd_client_close(client);
    pthread_mutex_lock(&lock);
    done = 1;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    nanosleep(&(struct timespec){0, 200000000}, NULL); /* what closes them comes to its end */
    printf("%d\n", taken);
    return 0;
}
