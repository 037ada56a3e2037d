/* ways.c - serial and pipelined runs of the ways that ways.h lists.
 *
 * Happy path: memory and events once -> runs; a slot is used again when its `done` has passed.
 * What can fail: the GPU's memory, and every call to it. Threads: producer() is the one beside the caller; slots go to
 * and fro between the two by semaphores. */
#include "ways.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "error.h"

#define ALIGN 256u /* of a slot's memory */
#define STEPS 4u   /* the steps are timed in one STEPSth as many runs as the total */

static size_t round_up(size_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

static int make_events(struct ways *ways, struct feedd_error *err)
{
    int status = gpu_event_new(false, &ways->origin, err);
    for (unsigned i = 0; status == 0 && i < WAYS_SLOTS; i++) {
        struct CUevent_st **events[] = {&ways->slots[i].start, &ways->slots[i].copied, &ways->slots[i].begun,
                                        &ways->slots[i].done};
        for (unsigned e = 0; status == 0 && e < 4; e++)
            status = gpu_event_new(ways->spec.blocking, events[e], err);
    }
    return status;
}

static int make_gpu(struct ways *ways, size_t pixel_stride, size_t normal_stride, struct feedd_error *err)
{
    int status;
    if ((status = gpu_memory_new(pixel_stride * WAYS_SLOTS, &ways->gpu_pixels, err)) != 0 ||
        (status = gpu_memory_new(normal_stride * WAYS_SLOTS, &ways->gpu_normals, err)) != 0 ||
        (status = gpu_stream_new(&ways->copies, err)) != 0 || (status = gpu_stream_new(&ways->kernels, err)) != 0)
        return status;
    return make_events(ways, err);
}

static int make_host(struct host_memory *memory, size_t bytes, bool pinned, struct feedd_error *err)
{
    const int status = host_memory_reserve(memory, bytes, err);
    return status == 0 && pinned ? host_memory_pin(memory, bytes, err) : status;
}

int ways_init(struct ways *ways, const struct ways_spec *spec, struct ways_memory *memory, struct feedd_error *err)
{
    struct normalize_params pixels = spec->params;
    const unsigned slots = spec->gpu ? WAYS_SLOTS : 1;
    pixels.dtype = NORMALIZE_U8;
    *ways = (struct ways){.spec = *spec, .memory = memory};
    ways->pixel_bytes = normalize_bytes(&pixels);
    ways->normal_bytes = normalize_bytes(&spec->params);
    const size_t pixel_stride = round_up(ways->pixel_bytes), normal_stride = round_up(ways->normal_bytes);
    int status = make_host(&memory->pixels, pixel_stride * slots, spec->pinned, err);
    if (status == 0 && spec->normals)
        status = make_host(&memory->normals, normal_stride * slots, spec->pinned, err);
    if (status == 0 && spec->gpu)
        status = make_gpu(ways, pixel_stride, normal_stride, err);
    if (status != 0) {
        ways_done(ways);
        return status;
    }
    for (unsigned i = 0; i < slots; i++) {
        struct ways_slot *slot = &ways->slots[i];
        slot->pixels = memory->pixels.at + i * pixel_stride;
        slot->normals = spec->normals ? memory->normals.at + i * normal_stride : NULL;
        slot->gpu_pixels = spec->gpu ? (uint8_t *)ways->gpu_pixels + i * pixel_stride : NULL;
        slot->gpu_normals = spec->gpu ? (uint8_t *)ways->gpu_normals + i * normal_stride : NULL;
    }
    return 0;
}

void ways_done(struct ways *ways)
{
    for (unsigned i = 0; i < WAYS_SLOTS; i++) {
        gpu_event_delete(ways->slots[i].start);
        gpu_event_delete(ways->slots[i].copied);
        gpu_event_delete(ways->slots[i].begun);
        gpu_event_delete(ways->slots[i].done);
    }
    gpu_event_delete(ways->origin);
    gpu_stream_delete(ways->copies);
    gpu_stream_delete(ways->kernels);
    if (ways->gpu_pixels != NULL)
        gpu_memory_delete(ways->gpu_pixels);
    if (ways->gpu_normals != NULL)
        gpu_memory_delete(ways->gpu_normals);
    host_memory_unpin(&ways->memory->pixels);
    host_memory_unpin(&ways->memory->normals);
    *ways = (struct ways){.memory = NULL};
}

void ways_memory_delete(struct ways_memory *memory)
{
    host_memory_delete(&memory->pixels);
    host_memory_delete(&memory->normals);
}

size_t ways_count(const struct ways_runs *runs, double once_us)
{
    if (runs->repeat > 0)
        return runs->repeat;
    const double fit = runs->seconds * 1e6 / (once_us > 0.1 ? once_us : 0.1);
    return fit < WAYS_RUNS ? WAYS_RUNS : fit > WAYS_RUNS_MAX ? WAYS_RUNS_MAX : (size_t)fit;
}

void ways_note(const struct ways_runs *runs, struct table *table)
{
    if (runs->repeat > 0)
        table_note(table, "Each time is of %u runs.", (unsigned)runs->repeat);
    else
        table_note(table,
                   "Each time is of as many runs as fit into %g s, but of at least %u; copy and kernel of a quarter.",
                   runs->seconds, WAYS_RUNS);
}

/* Of the runs in which steps are timed. */
static size_t step_count(const struct ways_runs *runs, size_t count)
{
    const size_t n = count / STEPS;
    return runs->repeat > 0 ? count : n < WAYS_RUNS ? WAYS_RUNS : n;
}

/* ---- measured values ---- */

struct samples {
    double *cpu, *copy, *kernel, *total; /* one block */
};

static int samples_new(size_t count, struct samples *out, struct feedd_error *err)
{
    double *block = calloc(4 * count, sizeof(*block));
    if (block == NULL)
        return error_set(err, FEEDD_E_MEMORY, "out of memory");
    *out = (struct samples){block, block + count, block + 2 * count, block + 3 * count};
    return 0;
}

static void samples_free(struct samples *samples)
{
    free(samples->cpu);
}

static void put(struct samples *samples, size_t i, const struct ways_times *times)
{
    samples->cpu[i] = times->cpu;
    samples->copy[i] = times->copy;
    samples->kernel[i] = times->kernel;
    samples->total[i] = times->total;
}

/* Copy and kernel of a slot whose work has ended. */
static int read_steps(const struct ways_slot *slot, enum way way, struct ways_times *times, struct feedd_error *err)
{
    const int status = gpu_event_us(slot->start, slot->copied, &times->copy, err);
    return status == 0 && way == WAY_CLIENT ? gpu_event_us(slot->begun, slot->done, &times->kernel, err) : status;
}

/* ---- one batch ---- */

static int submit_on(struct ways *ways, enum way way, struct ways_slot *slot, struct CUstream_st *kernels, bool timed,
                     struct feedd_error *err)
{
    int status = 0;
    if (timed)
        status = gpu_event_record(slot->start, ways->copies, err);
    if (status == 0)
        status = way == WAY_CLIENT ? gpu_copy(slot->gpu_pixels, slot->pixels, ways->pixel_bytes, ways->copies, err)
                                   : gpu_copy(slot->gpu_normals, slot->normals, ways->normal_bytes, ways->copies, err);
    if (status == 0 && (timed || kernels != ways->copies))
        status = gpu_event_record(slot->copied, ways->copies, err);
    if (way != WAY_CLIENT)
        return status == 0 ? gpu_event_record(slot->done, ways->copies, err) : status;
    if (status == 0 && kernels != ways->copies)
        status = gpu_stream_after(kernels, slot->copied, err);
    if (status == 0 && timed)
        status = gpu_event_record(slot->begun, kernels, err);
    if (status == 0)
        status = gpu_normalize(&ways->spec.params, slot->gpu_pixels, slot->gpu_normals, kernels, err);
    return status == 0 ? gpu_event_record(slot->done, kernels, err) : status;
}

int ways_submit(struct ways *ways, enum way way, struct ways_slot *slot, bool timed, struct feedd_error *err)
{
    return submit_on(ways, way, slot, ways->kernels, timed, err);
}

/* One batch alone, and the time that it takes until it has been awaited. */
static int run_once(struct ways *ways, enum way way, struct team *team, bool timed, struct ways_times *out,
                    struct feedd_error *err)
{
    struct ways_slot *slot = &ways->slots[0];
    struct ways_times times = {.cpu = 0};
    const double began = bench_now_s();
    if (way == WAY_TRADITIONAL) {
        team_normalize(team, &ways->spec.params, slot->pixels, slot->normals);
        times.cpu = (bench_now_s() - began) * 1e6;
    }
    int status = submit_on(ways, way, slot, ways->copies, timed, err);
    if (status == 0)
        status = gpu_stream_wait(ways->copies, err);
    times.total = (bench_now_s() - began) * 1e6;
    if (status == 0 && timed)
        status = read_steps(slot, way, &times, err);
    if (status == 0)
        *out = times;
    return status;
}

/* ---- serial ---- */

static double normalize_once(struct ways *ways, struct team *team)
{
    const double began = bench_now_s();
    team_normalize(team, &ways->spec.params, ways->slots[0].pixels, ways->slots[0].normals);
    return (bench_now_s() - began) * 1e6;
}

int ways_cpu(struct ways *ways, struct team *team, const struct ways_runs *runs, double *us, struct feedd_error *err)
{
    normalize_once(ways, team); /* warms up */
    const size_t count = ways_count(runs, normalize_once(ways, team));
    double *samples = calloc(count, sizeof(*samples));
    if (samples == NULL)
        return error_set(err, FEEDD_E_MEMORY, "out of memory");
    for (size_t i = 0; i < count; i++)
        samples[i] = normalize_once(ways, team);
    *us = bench_median(samples, count);
    free(samples);
    return 0;
}

int ways_serial(struct ways *ways, enum way way, struct team *team, const struct ways_runs *runs,
                struct ways_times *out, struct feedd_error *err)
{
    struct ways_times times;
    struct samples samples = {NULL, NULL, NULL, NULL};
    int status = run_once(ways, way, team, false, &times, err); /* warms up: the kernel is loaded by its first launch */
    if (status == 0)
        status = run_once(ways, way, team, false, &times, err);
    if (status != 0)
        return status;
    const size_t count = ways_count(runs, times.total), steps = step_count(runs, count);
    if ((status = samples_new(count, &samples, err)) != 0)
        return status;
    for (size_t i = 0; status == 0 && i < count; i++) {
        status = run_once(ways, way, team, false, &times, err);
        put(&samples, i, &times);
    }
    struct ways_times medians = {.cpu = bench_median(samples.cpu, count), .total = bench_median(samples.total, count)};
    for (size_t i = 0; status == 0 && i < steps; i++) {
        status = run_once(ways, way, team, true, &times, err);
        put(&samples, i, &times);
    }
    medians.copy = bench_median(samples.copy, steps);
    medians.kernel = bench_median(samples.kernel, steps);
    samples_free(&samples);
    if (status == 0)
        *out = medians;
    return status;
}

/* ---- pipelined ---- */

/* The thread that normalises on the CPU while the caller copies. */
struct producer {
    struct ways *ways;
    struct team *team;
    size_t count;
    double *cpu;      /* us, of each batch; read when the thread has ended */
    sem_t free, full; /* slots */
    atomic_bool ended;
    pthread_t thread;
};

static void *produce(void *argument)
{
    struct producer *p = argument;
    for (size_t i = 0; i < p->count; i++) {
        const struct ways_slot *slot = &p->ways->slots[i % WAYS_SLOTS];
        while (sem_wait(&p->free) != 0)
            ;
        if (atomic_load(&p->ended))
            break;
        const double began = bench_now_s();
        team_normalize(p->team, &p->ways->spec.params, slot->pixels, slot->normals);
        p->cpu[i] = (bench_now_s() - began) * 1e6;
        sem_post(&p->full);
    }
    return NULL;
}

static int producer_start(struct producer *p, struct feedd_error *err)
{
    sem_init(&p->free, 0, WAYS_SLOTS);
    sem_init(&p->full, 0, 0);
    atomic_init(&p->ended, false);
    const int error = pthread_create(&p->thread, NULL, produce, p);
    return error == 0 ? 0 : error_set(err, FEEDD_E_LIMIT, "a thread: %s", strerror(error));
}

static void producer_stop(struct producer *p)
{
    atomic_store(&p->ended, true);
    sem_post(&p->free);
    pthread_join(p->thread, NULL);
    sem_destroy(&p->free);
    sem_destroy(&p->full);
}

/* Waits for the batch of a slot; its number is i. @param end_us  of it, from `origin` */
static int collect(struct ways *ways, enum way way, size_t i, bool timed, struct samples *samples, double *end_us,
                   struct feedd_error *err)
{
    struct ways_slot *slot = &ways->slots[i % WAYS_SLOTS];
    struct ways_times times = {.cpu = 0};
    int status = gpu_event_wait(slot->done, err);
    if (status == 0)
        status = gpu_event_us(ways->origin, slot->done, end_us, err);
    if (status == 0 && timed)
        status = read_steps(slot, way, &times, err);
    samples->copy[i] = times.copy;
    samples->kernel[i] = times.kernel;
    return status;
}

/* `count` batches, of which the first WAYS_SLOTS fill the ring. */
static int flow(struct ways *ways, enum way way, struct producer *p, size_t count, bool timed, struct samples *samples,
                double *batch_us, struct feedd_error *err)
{
    double first_us = 0, last_us = 0;
    int status = gpu_event_record(ways->origin, ways->copies, err);
    for (size_t i = 0; status == 0 && i < count + WAYS_SLOTS; i++) {
        if (i >= WAYS_SLOTS) {
            status = collect(ways, way, i - WAYS_SLOTS, timed, samples, &last_us, err);
            if (i == 2 * WAYS_SLOTS - 1)
                first_us = last_us;
            if (p != NULL)
                sem_post(&p->free);
        }
        if (status != 0 || i >= count)
            continue;
        while (p != NULL && sem_wait(&p->full) != 0)
            ;
        status = ways_submit(ways, way, &ways->slots[i % WAYS_SLOTS], timed, err);
    }
    *batch_us = (last_us - first_us) / (double)(count - WAYS_SLOTS);
    return status;
}

/* The same with its producer, if it has one. */
static int run_flow(struct ways *ways, enum way way, struct team *team, size_t count, bool timed,
                    struct samples *samples, double *batch_us, struct feedd_error *err)
{
    struct producer p = {.ways = ways, .team = team, .count = count, .cpu = samples->cpu};
    if (way != WAY_TRADITIONAL)
        return flow(ways, way, NULL, count, timed, samples, batch_us, err);
    int status = producer_start(&p, err);
    if (status != 0)
        return status;
    status = flow(ways, way, &p, count, timed, samples, batch_us, err);
    producer_stop(&p);
    return status;
}

int ways_pipelined(struct ways *ways, enum way way, struct team *team, const struct ways_runs *runs, double once_us,
                   struct ways_times *out, struct feedd_error *err)
{
    const size_t count = ways_count(runs, once_us), steps = step_count(runs, count);
    struct samples samples = {NULL, NULL, NULL, NULL};
    struct ways_times times = {.cpu = 0};
    double ignored;
    int status = samples_new(count + WAYS_SLOTS, &samples, err);
    if (status != 0)
        return status;
    status = run_flow(ways, way, team, count + WAYS_SLOTS, false, &samples, &times.total, err);
    times.cpu = bench_median(samples.cpu + WAYS_SLOTS, count);
    if (status == 0)
        status = run_flow(ways, way, team, steps + WAYS_SLOTS, true, &samples, &ignored, err);
    times.copy = bench_median(samples.copy + WAYS_SLOTS, steps);
    times.kernel = bench_median(samples.kernel + WAYS_SLOTS, steps);
    samples_free(&samples);
    if (status == 0)
        *out = times;
    return status;
}
