/* ring.c - what a GPU's ring takes in: batches a second by each transport, and by who makes floats of pixels.
 *
 *   bench_ring [--batch B] [--size N] [--seconds S] [--runs R]
 *
 * B images (default 256) of N x N x 3 (default 224) a batch; every slot of the ring is always asked for or under way,
 * and no worker fills them: this is the ceiling of copying and of the kernel. "u8": pixels are copied. "f32 by GPU":
 * pixels are copied, the kernel writes float32 planes. "f32 by CPU": floats are copied. "u8 beside": pixels for one
 * ring while another one is "f32 by GPU": both share the link. The ways take turns, R times (default 5) for S seconds
 * (default 1); medians. Figures are of this machine: quote the ratio. */
#include <getopt.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "gpu.h"
#include "list.h"

#define DEPTH    6
#define RUNS_MAX 100

struct feed;

struct batch {
    struct ring_copy copy;
    struct feed *feed;
    uint32_t slot;
};

/* One ring that is kept busy. */
struct feed {
    struct staging *staging;
    struct ring *ring;
    struct batch batches[DEPTH];
    unsigned in_flight;
    uint64_t arrived;
    bool stop;
};

static struct {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool woken;
    struct inbox inbox;
    struct gpus gpus;
} rig = {.lock = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER};

static void need(int status, const struct feedd_error *err)
{
    if (status == 0)
        return;
    fprintf(stderr, "bench_ring: %s\n", err->message);
    exit(1);
}

static void on_wake(void *arg)
{
    (void)arg;
    pthread_mutex_lock(&rig.lock);
    rig.woken = true;
    pthread_cond_signal(&rig.wake);
    pthread_mutex_unlock(&rig.lock);
}

static void on_lost(void *arg, const struct gpu *gpu, const struct feedd_error *err)
{
    (void)arg;
    (void)gpu;
    need(err->status, err);
}

static void loop_once(void)
{
    pthread_mutex_lock(&rig.lock);
    while (!rig.woken)
        pthread_cond_wait(&rig.wake, &rig.lock);
    rig.woken = false;
    pthread_mutex_unlock(&rig.lock);
    inbox_drain(&rig.inbox);
}

static void ask(struct batch *batch)
{
    const struct ring *ring = batch->feed->ring;
    batch->feed->in_flight++;
    ring->ops->copy(batch->feed->ring, batch->slot, batch->slot, ring->spec.layout.batch_size, &batch->copy);
}

static void on_arrived(struct inbox_item *item)
{
    struct batch *batch = container_of(container_of(item, struct ring_copy, done), struct batch, copy);
    need(batch->copy.status, &batch->copy.error);
    batch->feed->in_flight--;
    batch->feed->arrived++;
    if (!batch->feed->stop)
        ask(batch);
}

static struct slot_layout layout_of(uint32_t batch_size, uint32_t size, bool floats)
{
    struct feedd_error err = {0};
    struct slot_layout layout = {.field_count = 2, .batch_size = batch_size};
    layout.fields[0] =
        floats ? (struct slot_field){.name = "image", .dtype = FEEDD_F32, .ndim = 3, .shape = {3, size, size}}
               : (struct slot_field){.name = "image", .dtype = FEEDD_U8, .ndim = 3, .shape = {size, size, 3}};
    layout.fields[1] = (struct slot_field){.name = "label", .dtype = FEEDD_I64};
    need(slot_layout_init(&layout, &err), &err);
    return layout;
}

static void feed_open(struct feed *feed, uint32_t batch_size, uint32_t size, enum transport transport,
                      bool floats_staged, bool normalize)
{
    struct feedd_error err = {0};
    const struct slot_layout staged = layout_of(batch_size, size, floats_staged);
    *feed = (struct feed){.staging = NULL};
    need(staging_new(&staged, DEPTH, rig.gpus.gpu[0]->node, &feed->staging, &err), &err);
    const struct ring_spec spec = {
        .staging = feed->staging,
        .layout = layout_of(batch_size, size, floats_staged || normalize),
        .transport = transport,
        .gpu = rig.gpus.gpu[0],
        .normalize = normalize,
        .params = {.batch = batch_size,
                   .in_height = size,
                   .in_width = size,
                   .channels = 3,
                   .out_height = size,
                   .out_width = size,
                   .dtype = NORMALIZE_F32,
                   .layout = NORMALIZE_NCHW,
                   .mean = {0.485, 0.456, 0.406},
                   .std = {0.229, 0.224, 0.225},
                   .scale = 255},
    };
    need(spec.gpu->backend->ring_new(&spec, &feed->ring, &err), &err);
    for (uint32_t i = 0; i < DEPTH; i++)
        feed->batches[i] = (struct batch){.feed = feed, .slot = i, .copy.done.run = on_arrived};
}

static void feed_close(struct feed *feed)
{
    feed->ring->ops->ring_free(feed->ring);
    staging_free(feed->staging);
}

/* @return batches a second of the first feed, with the others beside it */
static double measure(struct feed *const feeds[], unsigned count, double seconds)
{
    for (unsigned f = 0; f < count; f++) {
        feeds[f]->stop = false;
        for (uint32_t i = 0; i < DEPTH; i++)
            ask(&feeds[f]->batches[i]);
    }
    for (const uint64_t warm = feeds[0]->arrived + 2 * DEPTH; feeds[0]->arrived < warm;)
        loop_once();
    const uint64_t before = feeds[0]->arrived, began_ns = clock_ns();
    uint64_t spent_ns;
    while ((spent_ns = clock_ns() - began_ns) < (uint64_t)(seconds * 1e9))
        loop_once();
    const uint64_t arrived = feeds[0]->arrived - before;
    for (unsigned f = 0; f < count; f++)
        feeds[f]->stop = true;
    for (unsigned f = 0; f < count; f++)
        while (feeds[f]->in_flight > 0)
            loop_once();
    return (double)arrived * 1e9 / (double)spent_ns;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"batch", required_argument, NULL, 'b'},
                                            {"size", required_argument, NULL, 'n'},
                                            {"seconds", required_argument, NULL, 's'},
                                            {"runs", required_argument, NULL, 'r'},
                                            {NULL, 0, NULL, 0}};
    uint32_t batch_size = 256, size = 224;
    double seconds = 1;
    int runs = 5, option;
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1)
        switch (option) {
        case 'b':
            batch_size = (uint32_t)atoi(optarg);
            break;
        case 'n':
            size = (uint32_t)atoi(optarg);
            break;
        case 's':
            seconds = atof(optarg);
            break;
        case 'r':
            runs = atoi(optarg);
            break;
        default:
            fprintf(stderr, "usage: bench_ring [--batch B] [--size N] [--seconds S] [--runs R]\n");
            return 2;
        }
    if (runs < 1 || runs > RUNS_MAX)
        runs = 5;
    struct feedd_error err = {0};
    inbox_init(&rig.inbox, on_wake, NULL);
    need(gpus_start(&rig.gpus, NULL, 0, &rig.inbox, on_lost, NULL, &err), &err);
    if (rig.gpus.count == 0) {
        printf("SKIP: no GPU: %s\n", rig.gpus.absent);
        return 77;
    }

    enum { IPC, IPC_GPU, IPC_CPU, FD, FD_GPU, FEEDS };
    static const struct {
        const char *name;
        enum transport transport;
        bool floats_staged, normalize;
    } ways[FEEDS] = {
        [IPC] = {"ipc, u8", TRANSPORT_IPC, false, false},
        [IPC_GPU] = {"ipc, f32 by GPU", TRANSPORT_IPC, false, true},
        [IPC_CPU] = {"ipc, f32 by CPU", TRANSPORT_IPC, true, false},
        [FD] = {"fd, u8", TRANSPORT_FD, false, false},
        [FD_GPU] = {"fd, f32 by GPU", TRANSPORT_FD, false, true},
    };
    static struct feed feeds[FEEDS];
    static double rates[FEEDS + 1][RUNS_MAX];
    for (unsigned w = 0; w < FEEDS; w++)
        feed_open(&feeds[w], batch_size, size, ways[w].transport, ways[w].floats_staged, ways[w].normalize);
    for (int run = 0; run < runs; run++) {
        for (unsigned w = 0; w < FEEDS; w++)
            rates[w][run] = measure((struct feed *[]){&feeds[w]}, 1, seconds);
        rates[FEEDS][run] = measure((struct feed *[]){&feeds[FD], &feeds[IPC_GPU]}, 2, seconds);
    }
    printf("%s, %u images of %u x %u x 3 a batch, median of %d runs of %.1f s\n", rig.gpus.gpu[0]->name, batch_size,
           size, size, runs, seconds);
    printf("%-18s %12s %14s %8s\n", "", "batches/s", "GB/s of link", "x CPU");
    for (unsigned w = 0; w <= FEEDS; w++)
        qsort(rates[w], (size_t)runs, sizeof(double), compare);
    for (unsigned w = 0; w <= FEEDS; w++) {
        const unsigned of = w < FEEDS ? w : FD;
        const double rate = rates[w][runs / 2];
        const uint64_t bytes = slot_used_bytes(&feeds[of].staging->layout, batch_size);
        printf("%-18s %12.1f %14.2f %8.2f\n", w < FEEDS ? ways[w].name : "fd, u8 beside", rate,
               rate * (double)bytes / 1e9, rate / rates[IPC_CPU][runs / 2]);
    }
    for (unsigned w = 0; w < FEEDS; w++)
        feed_close(&feeds[w]);
    gpus_stop(&rig.gpus);
    return 0;
}
