/* test_backend_cuda.c - rings in the memory of GPUs: what arrives there and in which order, by both transports, as it
 * is or normalised; pinning for two GPUs at once; every call of CUDA failing in turn.
 *
 * What a placement has to hold is computed here, in doubles. Linked with the real runtime, the tests of the first list
 * run on a GPU too; the others need the fake. Each test runs in a child, this program again with the name of a
 * scenario: the fake is told what to do, and tells what it did, once a process. */
#include <check.h>
#include <cuda_runtime_api.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda_internal.h"
#include "error.h"
#include "list.h"

#define DEPTH    6
#define BATCH    5
#define HEIGHT   9
#define WIDTH    7
#define CHANNELS 3
#define GPUS_MAX 2

#define WANT(condition) want((condition), #condition, __LINE__)

static void want(bool true_, const char *what, int line)
{
    if (true_)
        return;
    fprintf(stderr, "%s:%d: %s\n", __FILE__, line, what);
    _exit(1); /* threads of the GPUs are running */
}

/* ---- in a child: a loop, GPUs, batches ---- */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool woken;
    struct inbox inbox;
    struct gpus gpus;
    unsigned lost_count;
    unsigned arrived; /* batches, ever */
} rig = {.lock = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER};

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
    WANT(arg == &rig);
    WANT(err->status == FEEDD_E_DEVICE);
    WANT(strstr(err->message, gpu->uuid) != NULL);
    rig.lost_count++;
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

static void rig_start(void)
{
    struct feedd_error err = {0};
    inbox_init(&rig.inbox, on_wake, NULL);
    int status = gpus_start(&rig.gpus, NULL, 0, &rig.inbox, on_lost, &rig, &err);
    if (status != 0)
        fprintf(stderr, "%s\n", err.message);
    WANT(status == 0 && rig.gpus.count > 0);
}

static void rig_stop(void)
{
    inbox_drain(&rig.inbox);
    gpus_stop(&rig.gpus);
}

/* Field 0: uint8 NHWC, or float NCHW. Then a ragged count of bytes, so that what follows begins elsewhere. */
static struct slot_layout layout_of(bool floats, uint32_t batch_size, uint64_t height)
{
    struct slot_layout layout = {.field_count = 3, .batch_size = batch_size};
    layout.fields[0] =
        (struct slot_field){.name = "image", .dtype = FEEDD_U8, .ndim = 3, .shape = {height, WIDTH, CHANNELS}};
    if (floats)
        layout.fields[0] =
            (struct slot_field){.name = "image", .dtype = FEEDD_F32, .ndim = 3, .shape = {CHANNELS, height, WIDTH}};
    layout.fields[1] = (struct slot_field){.name = "label", .dtype = FEEDD_I64};
    layout.fields[2] = (struct slot_field){.name = "mask", .dtype = FEEDD_U8, .ndim = 1, .shape = {61}};
    WANT(slot_layout_init(&layout, NULL) == 0);
    return layout;
}

static struct staging *staging_make(uint32_t batch_size, uint64_t height)
{
    const struct slot_layout layout = layout_of(false, batch_size, height);
    struct staging *staging = NULL;
    WANT(staging_new(&layout, DEPTH, -1, &staging, NULL) == 0);
    return staging;
}

static struct ring_spec spec_of(struct staging *staging, unsigned gpu, enum transport transport, bool normalize)
{
    struct ring_spec spec = {.staging = staging,
                             .layout = staging->layout,
                             .transport = transport,
                             .gpu = rig.gpus.gpu[gpu],
                             .normalize = normalize};
    if (!normalize)
        return spec;
    const uint64_t height = staging->layout.fields[0].shape[0];
    spec.layout = layout_of(true, staging->layout.batch_size, height);
    spec.params = (struct normalize_params){.batch = 1,
                                            .in_height = (uint32_t)height,
                                            .in_width = WIDTH,
                                            .channels = CHANNELS,
                                            .out_height = (uint32_t)height,
                                            .out_width = WIDTH,
                                            .dtype = NORMALIZE_F32,
                                            .layout = NORMALIZE_NCHW,
                                            .mean = {0.485, 0.456, 0.406},
                                            .std = {0.229, 0.224, 0.225},
                                            .scale = 255};
    WANT(normalize_check(&spec.params) == NULL);
    return spec;
}

static struct ring *ring_make(const struct ring_spec *spec)
{
    struct ring *ring = NULL;
    struct feedd_error err = {0};
    int status = spec->gpu->backend->ring_new(spec, &ring, &err);
    if (status != 0)
        fprintf(stderr, "%s\n", err.message);
    WANT(status == 0);
    return ring;
}

static uint8_t pixel(uint32_t seq, uint64_t i)
{
    return (uint8_t)(seq * 31 + i * 7 + i / 251);
}

/* Fills a staging slot with what belongs to a batch of that number. */
static void fill(struct staging *staging, uint32_t slot, uint32_t seq)
{
    uint8_t *at = staging->memory + slot * staging->layout.slot_bytes;
    for (uint64_t i = 0; i < staging->layout.slot_bytes; i++)
        at[i] = pixel(seq, i);
}

static uint8_t *read_gpu(const struct ring *base, uint64_t offset, uint64_t bytes)
{
    const struct cuda_ring *ring = (const struct cuda_ring *)base;
    uint8_t *copy = malloc(bytes);
    WANT(copy != NULL);
    WANT(cudaSetDevice(ring->gpu->ordinal) == cudaSuccess);
    WANT(cudaMemcpy(copy, ring->slab + offset, bytes, cudaMemcpyDeviceToHost) == cudaSuccess);
    return copy;
}

/* The first `count` samples of a placement are those of batch `seq`. */
static void check_placement(const struct ring *ring, uint32_t placement, uint32_t seq, uint32_t count)
{
    const struct ring_spec *spec = &ring->spec;
    const struct slot_layout *in = &spec->staging->layout, *out = &spec->layout;
    uint8_t *got = read_gpu(ring, placement * out->slot_bytes, out->slot_bytes);
    for (uint32_t f = spec->normalize ? 1 : 0; f < in->field_count; f++)
        for (uint64_t i = 0; i < in->fields[f].sample_bytes * count; i++)
            WANT(got[out->fields[f].offset + i] == pixel(seq, in->fields[f].offset + i));
    const uint64_t height = in->fields[0].shape[0];
    for (uint64_t n = 0; spec->normalize && n < count; n++)
        for (uint64_t y = 0; y < height; y++)
            for (uint64_t x = 0; x < WIDTH; x++)
                for (uint64_t c = 0; c < CHANNELS; c++) {
                    const uint8_t from = pixel(seq, ((n * height + y) * WIDTH + x) * CHANNELS + c);
                    const double expected = (from / 255.0 - spec->params.mean[c]) / spec->params.std[c];
                    float value;
                    memcpy(&value, got + (((n * CHANNELS + c) * height + y) * WIDTH + x) * sizeof(value),
                           sizeof(value));
                    WANT(fabs(value - expected) <= 1e-6);
                }
    free(got);
}

/* One batch under way. */
struct batch {
    struct ring_copy copy;
    uint32_t seq, staging, placement, count;
    unsigned place; /* 0: under way; else when it arrived, counted */
};

static void on_arrived(struct inbox_item *item)
{
    struct batch *batch = container_of(container_of(item, struct ring_copy, done), struct batch, copy);
    batch->place = ++rig.arrived;
}

static void copy_batch(struct ring *ring, struct batch *batch, uint32_t seq, uint32_t staging, uint32_t placement,
                       uint32_t count)
{
    *batch = (struct batch){.seq = seq, .staging = staging, .placement = placement, .count = count};
    batch->copy.done.run = on_arrived;
    ring->ops->copy(ring, staging, placement, count, &batch->copy);
}

static void await(const struct batch *batch)
{
    while (batch->place == 0)
        loop_once();
}

/* `total` batches through a ring, `in_flight` at a time, every third one short. Placements and staging slots are used
 * in different orders. */
static void stream_batches(struct ring *ring, unsigned in_flight, unsigned total)
{
    struct staging *staging = ring->spec.staging;
    struct batch batches[DEPTH];
    unsigned before = 0;
    for (unsigned seq = 0; seq < total + in_flight; seq++) {
        struct batch *batch = &batches[seq % in_flight];
        if (seq >= in_flight) {
            await(batch);
            WANT(batch->copy.status == 0);
            WANT(batch->place > before);
            before = batch->place;
            WANT(batch->copy.bytes == slot_used_bytes(&staging->layout, batch->count));
            check_placement(ring, batch->placement, batch->seq, batch->count);
        }
        if (seq >= total)
            continue;
        const uint32_t slot = seq % in_flight;
        fill(staging, slot, seq);
        copy_batch(ring, batch, seq, slot, DEPTH - 1 - slot, seq % 3 == 2 ? 2 : BATCH);
    }
}

static void *import(const struct ring *ring)
{
    void *functions[4];
    static const char *const names[] = {"cuMemImportFromShareableHandle", "cuMemAddressReserve", "cuMemMap",
                                        "cuMemSetAccess"};
    for (size_t i = 0; i < 4; i++) {
        enum cudaDriverEntryPointQueryResult found;
#if CUDART_VERSION >= 12050
        WANT(cudaGetDriverEntryPointByVersion(names[i], &functions[i], 10020, cudaEnableDefault, &found) == 0);
#else
        WANT(cudaGetDriverEntryPoint(names[i], &functions[i], cudaEnableDefault, &found) == 0);
#endif
        WANT(found == cudaDriverEntryPointSuccess);
    }
    PFN_cuMemImportFromShareableHandle_v10020 import_handle;
    PFN_cuMemAddressReserve_v10020 reserve;
    PFN_cuMemMap_v10020 map;
    PFN_cuMemSetAccess_v10020 set_access;
    memcpy(&import_handle, &functions[0], sizeof(void *));
    memcpy(&reserve, &functions[1], sizeof(void *));
    memcpy(&map, &functions[2], sizeof(void *));
    memcpy(&set_access, &functions[3], sizeof(void *));
    CUmemGenericAllocationHandle handle;
    CUdeviceptr address;
    const CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
                                    .flags = CU_MEM_ACCESS_FLAGS_PROT_READ};
    WANT(import_handle(&handle, (void *)(uintptr_t)ring->ring_fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == 0);
    WANT(reserve(&address, ring->ring_fd_bytes, 0, 0, 0) == 0);
    WANT(map(address, ring->ring_fd_bytes, 0, handle, 0) == 0);
    WANT(set_access(address, ring->ring_fd_bytes, &access, 1) == 0);
    return (void *)(uintptr_t)address;
}

/* ---- scenarios on any GPU ---- */

static enum transport transport_wanted(void)
{
    return strcmp(getenv("TRANSPORT"), "fd") == 0 ? TRANSPORT_FD : TRANSPORT_IPC;
}

static bool normalize_wanted(void)
{
    return strcmp(getenv("NORMALIZE"), "daemon") == 0;
}

static void scenario_batches(void)
{
    rig_start();
    struct staging *staging = staging_make(BATCH, HEIGHT);
    const struct ring_spec spec = spec_of(staging, 0, transport_wanted(), normalize_wanted());
    struct ring *ring = ring_make(&spec);
    const uint64_t slots = DEPTH * spec.layout.slot_bytes;
    uint8_t *all = read_gpu(ring, 0, slots + SLOT_PROOF_BYTES);
    for (uint64_t i = 0; i < slots; i++)
        WANT(all[i] == 0);
    WANT(memcmp(all + slots, &ring->nonce, sizeof(ring->nonce)) == 0);
    WANT(ring->nonce != staging->nonce);
    free(all);
    for (unsigned in_flight = 1; in_flight <= DEPTH; in_flight++)
        stream_batches(ring, in_flight, 20);
    const struct gpu *gpu = rig.gpus.gpu[0];
    WANT(atomic_load(&gpu->stats.copies) == 20 * DEPTH);
    WANT(atomic_load(&gpu->stats.kernels) == (spec.normalize ? 20 * DEPTH : 0));
    const uint8_t none[RING_HANDLE_BYTES] = {0};
    WANT((memcmp(ring->ipc_handle, none, sizeof(none)) != 0) == (spec.transport == TRANSPORT_IPC));
    WANT((ring->ring_fd >= 0) == (spec.transport == TRANSPORT_FD));
    if (spec.transport == TRANSPORT_FD) {
        WANT((fcntl(ring->ring_fd, F_GETFD) & FD_CLOEXEC) != 0);
        WANT(ring->ring_fd_bytes >= slots + SLOT_PROOF_BYTES);
    }
    backend_cuda.ring_free(ring);
    staging_free(staging);
    rig_stop();
    WANT(rig.lost_count == 0);
}

/* Who has the descriptor sees what arrives. */
static void scenario_import(void)
{
    rig_start();
    struct staging *staging = staging_make(BATCH, HEIGHT);
    const struct ring_spec spec = spec_of(staging, 0, TRANSPORT_FD, false);
    struct ring *ring = ring_make(&spec);
    WANT(cudaSetDevice(0) == cudaSuccess);
    const uint8_t *mapped = import(ring);
    struct batch batch;
    fill(staging, 1, 42);
    copy_batch(ring, &batch, 42, 1, 4, BATCH);
    await(&batch);
    uint8_t got[256], nonce[8];
    WANT(cudaMemcpy(got, mapped + 4 * spec.layout.slot_bytes, sizeof(got), cudaMemcpyDeviceToHost) == cudaSuccess);
    for (uint64_t i = 0; i < sizeof(got); i++)
        WANT(got[i] == pixel(42, i));
    WANT(cudaMemcpy(nonce, mapped + DEPTH * spec.layout.slot_bytes, 8, cudaMemcpyDeviceToHost) == cudaSuccess);
    WANT(memcmp(nonce, &ring->nonce, 8) == 0);
    backend_cuda.ring_free(ring);
    staging_free(staging);
    rig_stop();
}

/* Rings of one staging, plain and normalising, by both transports: each batch goes to all of them. */
static void scenario_many_rings(void)
{
    rig_start();
    struct staging *staging = staging_make(BATCH, HEIGHT);
    struct ring *rings[4];
    struct batch batches[4][DEPTH];
    for (unsigned r = 0; r < 4; r++) {
        const struct ring_spec spec = spec_of(staging, 0, r % 2 == 0 ? TRANSPORT_IPC : TRANSPORT_FD, r >= 2);
        rings[r] = ring_make(&spec);
    }
    for (uint32_t round = 0; round < 5; round++) {
        for (uint32_t slot = 0; slot < DEPTH; slot++) {
            fill(staging, slot, round * DEPTH + slot);
            for (unsigned r = 0; r < 4; r++)
                copy_batch(rings[r], &batches[r][slot], round * DEPTH + slot, slot, slot, BATCH);
        }
        for (unsigned r = 0; r < 4; r++)
            for (uint32_t slot = 0; slot < DEPTH; slot++) {
                await(&batches[r][slot]);
                WANT(batches[r][slot].copy.status == 0);
                WANT(slot == 0 || batches[r][slot].place > batches[r][slot - 1].place);
                check_placement(rings[r], slot, round * DEPTH + slot, BATCH);
            }
    }
    for (unsigned r = 0; r < 4; r++)
        backend_cuda.ring_free(rings[r]);
    staging_free(staging);
    rig_stop();
}

/* Large slots: of 43 MiB the driver has two at a time, and the short batch that comes last must not overtake. */
static void scenario_large(void)
{
    struct slot_layout layout = {.field_count = 1, .batch_size = 43};
    layout.fields[0] = (struct slot_field){.name = "image", .dtype = FEEDD_U8, .ndim = 1, .shape = {1 << 20}};
    WANT(slot_layout_init(&layout, NULL) == 0);
    struct staging *staging = NULL;
    rig_start();
    WANT(staging_new(&layout, 4, -1, &staging, NULL) == 0);
    const struct ring_spec spec = spec_of(staging, 0, TRANSPORT_IPC, false);
    struct ring *ring = ring_make(&spec);
    struct batch batches[4];
    for (uint32_t i = 0; i < 4; i++)
        copy_batch(ring, &batches[i], i, i, i, i == 3 ? 1 : 43);
    for (uint32_t i = 0; i < 4; i++) {
        await(&batches[i]);
        WANT(batches[i].copy.status == 0);
        WANT(i == 0 || batches[i].place > batches[i - 1].place);
    }
    backend_cuda.ring_free(ring);
    staging_free(staging);
    rig_stop();
}

/* ---- scenarios of the fake ---- */

struct maker {
    pthread_t thread;
    struct ring_spec spec;
    struct ring *ring;
    int status;
    struct feedd_error err;
};

static void *make(void *arg)
{
    struct maker *maker = arg;
    maker->status = maker->spec.gpu->backend->ring_new(&maker->spec, &maker->ring, &maker->err);
    return NULL;
}

/* Two GPUs want the same staging at the same time, and one of them copies for others meanwhile. FAILING: registering
 * fails once: for one of the rings, and not for the other. */
static void scenario_pinning(void)
{
    const bool failing = getenv("FAILING") != NULL;
    rig_start();
    WANT(rig.gpus.count == 2);
    struct staging *other = staging_make(BATCH, HEIGHT), *staging = staging_make(1024, 1024); /* 21 MiB a slot */
    const struct ring_spec busy_spec = spec_of(other, 1, TRANSPORT_IPC, true);
    struct ring *busy = ring_make(&busy_spec);
    struct maker makers[2];
    for (unsigned i = 0; i < 2; i++) {
        makers[i] = (struct maker){.spec = spec_of(staging, i, TRANSPORT_IPC, false)};
        WANT(pthread_create(&makers[i].thread, NULL, make, &makers[i]) == 0);
    }
    stream_batches(busy, 3, 30);
    for (unsigned i = 0; i < 2; i++)
        WANT(pthread_join(makers[i].thread, NULL) == 0);
    WANT((makers[0].status != 0) + (makers[1].status != 0) == failing);
    for (unsigned i = 0; i < 2; i++)
        if (makers[i].status != 0) {
            WANT(makers[i].status == FEEDD_E_MEMORY);
            WANT(strstr(makers[i].err.message, "can't be pinned: out of memory") != NULL);
            WANT(strstr(makers[i].err.message, makers[i].spec.gpu->uuid) != NULL);
            makers[i].ring = ring_make(&makers[i].spec); /* pinned by the other one */
        }
    WANT(staging->pinned_by != NULL);
    /* Both copy from it, also when the one that pinned it has gone. */
    const unsigned first = staging->pinned_by == makers[0].spec.gpu ? 0 : 1;
    struct batch batches[2];
    fill(staging, 5, 9);
    for (unsigned i = 0; i < 2; i++)
        copy_batch(makers[i].ring, &batches[i], 9, 5, 2, 3);
    for (unsigned i = 0; i < 2; i++) {
        await(&batches[i]);
        WANT(batches[i].copy.status == 0);
        check_placement(makers[i].ring, 2, 9, 3);
    }
    backend_cuda.ring_free(makers[first].ring);
    copy_batch(makers[1 - first].ring, &batches[0], 9, 5, 3, 3);
    await(&batches[0]);
    WANT(batches[0].copy.status == 0);
    check_placement(makers[1 - first].ring, 3, 9, 3);
    backend_cuda.ring_free(makers[1 - first].ring);
    backend_cuda.ring_free(busy);
    staging_free(staging);
    staging_free(other);
    rig_stop();
    WANT(rig.lost_count == 0);
}

/* What gpu_ring_bytes() says is what a ring takes; what doesn't fit is said, and nothing of it stays. */
static void scenario_memory(void)
{
    rig_start();
    struct staging *staging = staging_make(1024, 64);
    size_t before, during, after, total;
    struct ring *ring;
    struct feedd_error err = {0};
    for (unsigned i = 0; i < 4; i++) {
        const struct ring_spec spec = spec_of(staging, 0, i % 2 == 0 ? TRANSPORT_IPC : TRANSPORT_FD, i >= 2);
        WANT(cudaMemGetInfo(&before, &total) == cudaSuccess);
        ring = ring_make(&spec);
        WANT(cudaMemGetInfo(&during, &total) == cudaSuccess);
        WANT(before - during == gpu_ring_bytes(&spec));
        backend_cuda.ring_free(ring);
        WANT(cudaMemGetInfo(&after, &total) == cudaSuccess);
        WANT(before == after);
    }
    struct staging *large = staging_make(1024, 600), *small = staging_make(1024, 120);
    for (unsigned i = 0; i < 4; i++) { /* the slab of floats fits, and the scratch images beside it don't */
        const struct ring_spec spec =
            spec_of(i < 2 ? large : small, 0, i % 2 == 0 ? TRANSPORT_IPC : TRANSPORT_FD, i >= 2);
        char expected[256];
        WANT(spec.gpu->backend->ring_new(&spec, &ring, &err) == FEEDD_E_MEMORY);
        snprintf(expected, sizeof(expected), "%s (Fake GPU 0): a ring needs %llu bytes of its memory; ", spec.gpu->uuid,
                 (unsigned long long)gpu_ring_bytes(&spec));
        WANT(strncmp(err.message, expected, strlen(expected)) == 0);
        WANT(strstr(err.message, "are free") != NULL);
        WANT(cudaMemGetInfo(&after, &total) == cudaSuccess);
        WANT(before == after);
    }
    WANT(large->pinned_by == NULL && small->pinned_by == NULL);
    staging_free(large);
    staging_free(small);
    staging_free(staging);
    rig_stop();
}

static void scenario_without_fd(void)
{
    rig_start();
    WANT(!rig.gpus.gpu[0]->transports_fd);
    struct staging *staging = staging_make(BATCH, HEIGHT);
    struct ring_spec spec = spec_of(staging, 0, TRANSPORT_FD, false);
    struct feedd_error err = {0};
    struct ring *ring = NULL;
    WANT(spec.gpu->backend->ring_new(&spec, &ring, &err) == FEEDD_E_UNSUPPORTED);
    WANT(strstr(err.message, "transport fd needs ") != NULL && strstr(err.message, getenv("LACKING")) != NULL);
    spec.transport = TRANSPORT_IPC;
    ring = ring_make(&spec);
    stream_batches(ring, 3, 5);
    backend_cuda.ring_free(ring);
    staging_free(staging);
    rig_stop();
}

/* A ring, or NULL once: one call has failed in the making of it, and it was named. */
static struct ring *try_ring(const struct ring_spec *spec, unsigned *failures)
{
    struct ring *ring = NULL;
    struct feedd_error err = {0};
    int status = spec->gpu->backend->ring_new(spec, &ring, &err);
    if (status == 0)
        return ring;
    WANT(ring == NULL);
    WANT(status == err.status && (status == FEEDD_E_DEVICE || status == FEEDD_E_MEMORY));
    WANT(strstr(err.message, spec->gpu->uuid) != NULL);
    ++*failures;
    return NULL;
}

static void try_batches(struct ring *ring, unsigned *failures)
{
    struct batch batches[DEPTH];
    for (uint32_t slot = 0; slot < DEPTH; slot++) {
        fill(ring->spec.staging, slot, slot);
        copy_batch(ring, &batches[slot], slot, slot, slot, BATCH);
    }
    for (uint32_t slot = 0; slot < DEPTH; slot++) {
        await(&batches[slot]);
        if (batches[slot].copy.status == 0) {
            check_placement(ring, slot, slot, BATCH);
            continue;
        }
        WANT(batches[slot].copy.status == FEEDD_E_DEVICE);
        WANT(strstr(batches[slot].copy.error.message, ring->spec.gpu->uuid) != NULL);
        fill(ring->spec.staging, slot, 77); /* nothing reads it any more */
        ++*failures;
    }
}

/* The whole life of two rings. Prints how often something failed. When it did, once more works. */
static void scenario_life(void)
{
    unsigned failures = 0;
    rig_start();
    struct staging *staging = staging_make(BATCH, HEIGHT);
    for (unsigned i = 0; i < 2; i++) {
        const struct ring_spec spec = spec_of(staging, 0, i == 0 ? TRANSPORT_FD : TRANSPORT_IPC, i == 1);
        struct ring *ring = try_ring(&spec, &failures);
        if (ring == NULL)
            ring = try_ring(&spec, &failures);
        WANT(ring != NULL);
        try_batches(ring, &failures);
        backend_cuda.ring_free(ring);
    }
    staging_free(staging);
    rig_stop();
    WANT(rig.lost_count == 0);
    printf("%u\n", failures);
}

/* The context fails for good in the middle: told once, all that is asked for then is answered, and freed. */
static void scenario_lost(void)
{
    unsigned failures = 0;
    rig_start();
    struct staging *staging = staging_make(BATCH, HEIGHT);
    const struct ring_spec spec = spec_of(staging, 0, transport_wanted(), true);
    struct ring *ring = try_ring(&spec, &failures);
    if (ring != NULL) {
        struct batch batches[DEPTH];
        for (uint32_t slot = 0; slot < DEPTH; slot++)
            copy_batch(ring, &batches[slot], slot, slot, slot, BATCH);
        for (uint32_t slot = 0; slot < DEPTH; slot++) {
            await(&batches[slot]);
            failures += batches[slot].copy.status != 0;
            WANT(slot == 0 || batches[slot].place > batches[slot - 1].place);
        }
        WANT(try_ring(&spec, &failures) == NULL);
        backend_cuda.ring_free(ring);
    }
    staging_free(staging);
    rig_stop();
    WANT(rig.lost_count == 1);
    WANT(failures > 0);
}

/* ---- in the parent ---- */

static char folder[64], leaks_path[96], log_path[96], output_path[96];
extern char **environ;

static void setup(void)
{
    snprintf(folder, sizeof(folder), "/tmp/feedd-backend-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(leaks_path, sizeof(leaks_path), "%s/leaks", folder);
    snprintf(log_path, sizeof(log_path), "%s/log", folder);
    snprintf(output_path, sizeof(output_path), "%s/output", folder);
    setenv("FEEDD_FAKE_CUDA_LEAKS", leaks_path, 1);
    setenv("FEEDD_FAKE_CUDA_LOG", log_path, 1);
}

static void teardown(void)
{
    unsetenv("FEEDD_FAKE_CUDA_LEAKS");
    unsetenv("FEEDD_FAKE_CUDA_LOG");
    unlink(leaks_path);
    unlink(log_path);
    unlink(output_path);
    rmdir(folder);
}

/* @param settings  NAME, VALUE, ... of its environment, up to NULL
 * @return its exit code, or minus its signal */
static int run(const char *scenario, const char *const settings[])
{
    unlink(leaks_path);
    unlink(log_path);
    setenv("FEEDD_FAKE_GPUS", "1", 1);
    for (size_t i = 0; settings[i] != NULL; i += 2)
        setenv(settings[i], settings[i + 1], 1);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, output_path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    char *const arguments[] = {(char *)(uintptr_t) "test_backend_cuda", (char *)(uintptr_t)scenario, NULL};
    pid_t pid;
    ck_assert_int_eq(posix_spawn(&pid, "/proc/self/exe", &actions, NULL, arguments, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    for (size_t i = 0; settings[i] != NULL; i += 2)
        unsetenv(settings[i]);
    int status;
    while (waitpid(pid, &status, 0) < 0)
        ck_assert_int_eq(errno, EINTR);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/* How many things a child of the fake's hasn't given back, or -1 without a GPU of the fake. */
static int leaks(void)
{
    char text[512] = "";
    int sum = 0;
    FILE *file = fopen(leaks_path, "r");
    if (file == NULL)
        return -1;
    ck_assert_ptr_nonnull(fgets(text, sizeof(text), file));
    fclose(file);
    for (const char *at = strchr(text, '='); at != NULL; at = strchr(at + 1, '='))
        sum += atoi(at + 1);
    return sum;
}

static bool is_fake;

static void run_clean(const char *scenario, const char *const settings[])
{
    ck_assert_int_eq(run(scenario, settings), 0);
    if (is_fake)
        ck_assert_int_eq(leaks(), 0);
}

/* Lines of the log that have both. */
static unsigned logged(const char *what, const char *and_what)
{
    char line[1024];
    unsigned count = 0;
    FILE *file = fopen(log_path, "r");
    ck_assert_ptr_nonnull(file);
    while (fgets(line, sizeof(line), file) != NULL)
        count += strstr(line, what) != NULL && strstr(line, and_what) != NULL;
    fclose(file);
    return count;
}

/* Slower kernels, then slower copies: what waits for what mustn't be by luck. */
START_TEST(test_batches)
{
    static const char *const transports[] = {"ipc", "fd"}, *const modes[] = {"client", "daemon"},
                             *const delays[] = {"", "normalize_cuda_launch:2000", "cudaMemcpyAsync:1000"};
    for (size_t i = 0; i < 2; i++)
        for (size_t j = 0; j < 2; j++)
            for (size_t k = 0; k < (is_fake ? 3 : 1); k++) {
                const char *const settings[] = {
                    "TRANSPORT", transports[i], "NORMALIZE", modes[j], "FEEDD_FAKE_CUDA_DELAY_US", delays[k], NULL};
                run_clean("batches", settings);
                if (!is_fake)
                    continue;
                /* What isn't normalised needs no second stream. */
                ck_assert_uint_eq(logged(" cudaStreamCreateWithFlags ", ""), j == 0 ? 1 : 2);
                ck_assert_uint_eq(logged(" normalize_cuda_launch ", ""), j == 0 ? 0 : 20 * DEPTH);
            }
}
END_TEST

START_TEST(test_import)
{
    const char *const settings[] = {NULL};
    ck_assert_int_eq(run("import", settings), 0);
}
END_TEST

START_TEST(test_many_rings)
{
    const char *const settings[] = {"FEEDD_FAKE_CUDA_DELAY_US", "normalize_cuda_launch:1000", NULL};
    run_clean("many-rings", settings);
}
END_TEST

START_TEST(test_large_batches_in_order)
{
    const char *const settings[] = {"FEEDD_FAKE_GPU_MEMORY", "1G", "FEEDD_FAKE_CUDA_DELAY_US", "cudaMemcpyAsync:20000",
                                    NULL};
    run_clean("large", settings);
}
END_TEST

/* Kernels wait for copies, and never the other way round: others' copies are in the same stream. */
START_TEST(test_copies_do_not_wait_for_kernels)
{
    const char *const settings[] = {
        "TRANSPORT", "ipc", "NORMALIZE", "daemon", "FEEDD_FAKE_CUDA_DELAY_US", "normalize_cuda_launch:2000", NULL};
    run_clean("batches", settings);
    char line[1024], kernels[64] = "", *stream;
    unsigned waits = 0;
    FILE *file = fopen(log_path, "r");
    ck_assert_ptr_nonnull(file);
    while (fgets(line, sizeof(line), file) != NULL) {
        if (strstr(line, " normalize_cuda_launch ") == NULL && strstr(line, " cudaStreamWaitEvent ") == NULL)
            continue;
        stream = strstr(line, "stream=");
        stream[strcspn(stream, " ")] = '\0';
        if (kernels[0] == '\0')
            snprintf(kernels, sizeof(kernels), "%.60s", stream);
        ck_assert_str_eq(stream, kernels);
        waits++;
    }
    fclose(file);
    ck_assert_uint_eq(waits, 2 * 20 * DEPTH);
    ck_assert_uint_eq(logged(" cudaMemcpyAsync kind=H2D", kernels), 0);
}
END_TEST

START_TEST(test_pinning_by_two_gpus)
{
    const char *const settings[] = {
        "FEEDD_FAKE_GPUS",        "2", "FEEDD_FAKE_GPU_MEMORY", "1G", "FEEDD_FAKE_CUDA_DELAY_US",
        "cudaHostRegister:20000", NULL};
    for (unsigned i = 0; i < 3; i++) {
        run_clean("pinning", settings);
        /* 6 slots of 21 MiB, 3 a piece, and the proof's page; and the other staging. */
        ck_assert_uint_eq(logged(" cudaHostRegister ", "-> cudaSuccess"), 3 + 1);
        ck_assert_uint_eq(logged(" cudaHostUnregister ", "-> cudaSuccess"), 3 + 1);
        ck_assert_uint_eq(logged(" cudaHostRegister ", "flags=1"), 3 + 1);
    }
}
END_TEST

START_TEST(test_pinning_fails_for_one_of_two)
{
    const char *const settings[] = {"FEEDD_FAKE_GPUS",
                                    "2",
                                    "FEEDD_FAKE_GPU_MEMORY",
                                    "1G",
                                    "FEEDD_FAKE_CUDA_DELAY_US",
                                    "cudaHostRegister:20000",
                                    "FEEDD_FAKE_CUDA_FAIL",
                                    "cudaHostRegister:3:cudaErrorMemoryAllocation",
                                    "FAILING",
                                    "1",
                                    NULL};
    run_clean("pinning", settings);
    ck_assert_uint_eq(logged(" cudaHostRegister ", "-> cudaSuccess"), 1 + 3 + 1); /* the first piece twice */
}
END_TEST

START_TEST(test_memory)
{
    const char *const settings[] = {"FEEDD_FAKE_GPU_MEMORY", "64M", NULL};
    run_clean("memory", settings);
}
END_TEST

START_TEST(test_without_fd)
{
    const char *const no_virtual[] = {"FEEDD_FAKE_NO_VMM", "1", "LACKING", "virtual memory management", NULL};
    run_clean("without-fd", no_virtual);
    const char *const no_export[] = {"FEEDD_FAKE_CUDA_FAIL", "cuDeviceGetAttribute:2:CUDA_ERROR_INVALID_VALUE",
                                     "LACKING", "memory that is exported as a descriptor", NULL};
    run_clean("without-fd", no_export);
    const char *const no_function[] = {"FEEDD_FAKE_CUDA_FAIL", "cudaGetDriverEntryPointByVersion:4:cudaErrorUnknown",
                                       "LACKING", "cuMemCreate", NULL};
    run_clean("without-fd", no_function);
}
END_TEST

/* Calls of the life of two rings. Those that make something or copy fail what they are for; those that free fail
 * nothing, and what they couldn't give back is all that is left. */
static const struct {
    const char *function;
    unsigned first;   /* earlier ones are of the GPU's coming up */
    int left;         /* 0: it doesn't free */
    unsigned waiting; /* which one is only waited with before something is freed; 0: none */
} calls[] = {
    {"cudaMalloc", 1, 0, 0},
    {"cudaStreamCreateWithFlags", 2, 0, 0},
    {"cudaEventCreateWithFlags", 1, 0, 0},
    {"cudaMemsetAsync", 1, 0, 0},
    {"cudaMemcpyAsync", 1, 0, 0},
    {"cudaStreamSynchronize", 1, 0, 2},
    {"cudaIpcGetMemHandle", 1, 0, 0},
    {"cudaHostRegister", 1, 0, 0},
    {"cudaEventRecord", 1, 0, 0},
    {"cudaEventSynchronize", 1, 0, 0},
    {"cudaStreamWaitEvent", 1, 0, 0},
    {"normalize_cuda_launch", 1, 0, 0},
    {"cuDeviceGet", 2, 0, 0},
    {"cuMemGetAllocationGranularity", 1, 0, 0},
    {"cuMemCreate", 1, 0, 0},
    {"cuMemAddressReserve", 1, 0, 0},
    {"cuMemMap", 1, 0, 0},
    {"cuMemSetAccess", 1, 0, 0},
    {"cuMemExportToShareableHandle", 1, 0, 0},
    {"cudaEventDestroy", 1, 1, 0},
    {"cudaHostUnregister", 1, 1, 0},
    {"cudaFree", 1, 1, 0},
    {"cuMemUnmap", 1, 2, 0}, /* the addresses too */
    {"cuMemAddressFree", 1, 1, 0},
    {"cuMemRelease", 1, 1, 0},
};

static unsigned failures_printed(void)
{
    unsigned failures = UINT32_MAX;
    FILE *file = fopen(output_path, "r");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fscanf(file, "%u", &failures), 1);
    fclose(file);
    return failures;
}

START_TEST(test_each_call_fails)
{
    const char *const function = calls[_i].function;
    const char *const none[] = {NULL};
    char name[64], rule[128];
    run_clean("life", none);
    ck_assert_uint_eq(failures_printed(), 0);
    snprintf(name, sizeof(name), " %s ", function);
    const unsigned count = logged(name, "");
    ck_assert_uint_ge(count, calls[_i].first);
    for (unsigned nth = calls[_i].first; nth <= count; nth++) {
        /* No memory, an invalid handle: as the runtime and the driver number them. */
        snprintf(rule, sizeof(rule), "%s:%u:%d", function, nth, nth % 2 == 0 ? 2 : 400);
        const char *const settings[] = {"FEEDD_FAKE_CUDA_FAIL", rule, "FEEDD_FAKE_CUDA_DELAY_US",
                                        "cudaMemsetAsync:5000", NULL}; /* it is under way when what follows fails */
        ck_assert_msg(run("life", settings) == 0, "%s", rule);
        ck_assert_msg(failures_printed() == (calls[_i].left == 0 && nth != calls[_i].waiting), "%s: %u failures", rule,
                      failures_printed());
        ck_assert_msg(leaks() == calls[_i].left, "%s: %d leaks", rule, leaks());
    }
}
END_TEST

START_TEST(test_a_context_fails_for_good)
{
    static const char *const rules[] = {
        "normalize_cuda_launch:3:cudaErrorIllegalAddress:async",
        "normalize_cuda_launch:1:cudaErrorIllegalAddress:sticky",
        "cudaMemcpyAsync:4:cudaErrorIllegalAddress:async",
        "cudaEventSynchronize:2:cudaErrorECCUncorrectable:sticky",
        "cudaEventRecord:2:cudaErrorIllegalAddress:sticky",
        "cudaHostRegister:1:cudaErrorIllegalAddress:sticky",
        "cudaMemsetAsync:1:cudaErrorIllegalAddress:async",
    };
    for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++)
        for (size_t j = 0; j < 2; j++) {
            const char *const settings[] = {"TRANSPORT", j == 0 ? "ipc" : "fd", "FEEDD_FAKE_CUDA_FAIL", rules[i], NULL};
            ck_assert_msg(run("lost", settings) == 0, "%s", rules[i]);
            ck_assert_msg(leaks() == 0, "%s: %d leaks", rules[i], leaks());
        }
}
END_TEST

static const struct {
    const char *name;
    void (*run)(void);
} scenarios[] = {
    {"batches", scenario_batches},       {"import", scenario_import},   {"many-rings", scenario_many_rings},
    {"large", scenario_large},           {"pinning", scenario_pinning}, {"memory", scenario_memory},
    {"without-fd", scenario_without_fd}, {"life", scenario_life},       {"lost", scenario_lost},
};

int main(int argc, char **argv)
{
    for (size_t i = 0; argc > 1 && i < sizeof(scenarios) / sizeof(scenarios[0]); i++)
        if (strcmp(argv[1], scenarios[i].name) == 0) {
            scenarios[i].run();
            return 0;
        }
    struct cudaDeviceProp properties;
    setenv("FEEDD_FAKE_GPUS", "1", 0);
    const cudaError_t absent = cudaGetDeviceProperties(&properties, 0);
    if (absent != cudaSuccess) {
        printf("SKIP: no GPU: %s\n", cudaGetErrorString(absent));
        return 77;
    }
    is_fake = strncmp(properties.name, "Fake", 4) == 0;

    Suite *suite = suite_create("backend_cuda");
    TCase *gpu = tcase_create("on a GPU");
    tcase_set_timeout(gpu, 120);
    tcase_add_checked_fixture(gpu, setup, teardown);
    tcase_add_test(gpu, test_batches);
    tcase_add_test(gpu, test_import);
    tcase_add_test(gpu, test_many_rings);
    tcase_add_test(gpu, test_large_batches_in_order);
    suite_add_tcase(suite, gpu);
    if (is_fake) {
        TCase *fake = tcase_create("of the fake alone");
        tcase_set_timeout(fake, 120);
        tcase_add_checked_fixture(fake, setup, teardown);
        tcase_add_test(fake, test_copies_do_not_wait_for_kernels);
        tcase_add_test(fake, test_pinning_by_two_gpus);
        tcase_add_test(fake, test_pinning_fails_for_one_of_two);
        tcase_add_test(fake, test_memory);
        tcase_add_test(fake, test_without_fd);
        tcase_add_loop_test(fake, test_each_call_fails, 0, (int)(sizeof(calls) / sizeof(calls[0])));
        tcase_add_test(fake, test_a_context_fails_for_good);
        suite_add_tcase(suite, fake);
    }
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    const int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
