/* test_group.c - one stream at several sites: members of a group in host memory and on two GPUs, which are imitated
 * here. One decode, one copy each; who gets which batch when copies arrive in any order; what ends for whom when a
 * ring, a copy or a client fails.
 *
 * Happy path: a pipeline with two workers and an IDX dataset whose pixels are a formula; this thread is the loop.
 * Copies wait until a test lets them arrive, and bytes are moved only then. What members see is compared with the
 * formula, byte by byte, in the memory that they would map. */
#include <semaphore.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "tree.h"

#include "clock.h"
#include "error.h"
#include "gpu.h"
#include "group.h"
#include "pipeline.h"
#include "site.h"
#include "stream.h"

#define SAMPLES 90u
#define SIDE    4u
#define BATCH   8u
#define DEPTH   4u
#define COPIES  64u

static sem_t woken;
static struct pipeline pipeline;
static struct reader_selection selection;
static struct reader_config config;
static char images_path[600];

/* ---- GPUs ---- */

struct fake_gpu {
    struct gpu gpu;
    struct ring_copy *copies[COPIES]; /* asked for, in order */
    uint32_t copy_count;
    uint64_t copied;         /* that have arrived */
    _Atomic uint32_t rings;  /* that are there */
    _Atomic int ring_status; /* of the next ring_new() */
    sem_t *hold;             /* ring_new() waits for it; NULL: it doesn't */
};

struct fake_ring {
    struct ring ring;
    uint8_t *memory;
};

static struct fake_gpu gpus[2];

static int fake_ring_new(const struct ring_spec *spec, struct ring **out, struct feedd_error *err)
{
    struct fake_gpu *gpu = (struct fake_gpu *)spec->gpu;
    if (gpu->hold != NULL)
        sem_wait(gpu->hold);
    if (gpu->ring_status != 0)
        return error_set(err, gpu->ring_status, "no ring on %s", spec->gpu->uuid);
    struct fake_ring *ring = calloc(1, sizeof(*ring));
    ring->ring = (struct ring){.ops = gpu->gpu.backend, .spec = *spec, .nonce = 7};
    ring->ring.meta = calloc(1, slot_meta_bytes(&spec->layout, spec->staging->depth));
    ring->memory = malloc(slot_ring_bytes(&spec->layout, spec->staging->depth));
    memset(ring->memory, 0xEE, slot_ring_bytes(&spec->layout, spec->staging->depth));
    gpu->rings++;
    *out = &ring->ring;
    return 0;
}

static void fake_ring_free(struct ring *base)
{
    struct fake_ring *ring = (struct fake_ring *)base;
    ((struct fake_gpu *)base->spec.gpu)->rings--;
    free(ring->memory);
    free(ring->ring.meta);
    free(ring);
}

static void fake_copy(struct ring *ring, uint32_t staging, uint32_t placement, uint32_t count, struct ring_copy *copy)
{
    struct fake_gpu *gpu = (struct fake_gpu *)ring->spec.gpu;
    copy->ring = ring;
    copy->staging = staging;
    copy->placement = placement;
    copy->count = count;
    ck_assert_uint_lt(gpu->copy_count, COPIES);
    gpu->copies[gpu->copy_count++] = copy;
}

static const struct backend_ops fake_backend = {
    .name = "fake", .ring_new = fake_ring_new, .copy = fake_copy, .ring_free = fake_ring_free};

/* The GPU's oldest copy arrives, or fails. */
static void arrive(struct fake_gpu *gpu, int status)
{
    ck_assert_uint_gt(gpu->copy_count, 0);
    struct ring_copy *copy = gpu->copies[0];
    memmove(gpu->copies, gpu->copies + 1, --gpu->copy_count * sizeof(gpu->copies[0]));
    const struct ring_spec *spec = &copy->ring->spec;
    const uint64_t bytes = slot_used_bytes(&spec->layout, copy->count), slot_bytes = spec->layout.slot_bytes;
    ck_assert_uint_eq(slot_bytes, spec->staging->layout.slot_bytes); /* nothing is normalised here */
    memcpy(((struct fake_ring *)copy->ring)->memory + copy->placement * slot_bytes,
           spec->staging->memory + copy->staging * slot_bytes, bytes);
    copy->bytes = bytes;
    copy->done_ns = clock_ns();
    copy->status = status != 0 ? error_set(&copy->error, status, "a copy to %s", gpu->gpu.uuid) : 0;
    gpu->copied += status == 0;
    copy->done.run(&copy->done);
}

static void arrive_all(struct fake_gpu *gpu)
{
    while (gpu->copy_count > 0)
        arrive(gpu, 0);
}

/* ---- members ---- */

struct client {
    struct member *member; /* NULL: it has left */
    int opened, failed, ended;
    char message[1020];
    bool attaches; /* as soon as it may */
    uint32_t slots[DEPTH];
    uint64_t seqs[DEPTH];
    uint32_t held;
    uint64_t next_seq; /* that it expects; UINT64_MAX: any */
    uint64_t taken;
};

static void on_event(struct member *member, enum member_event event, const struct feedd_error *err)
{
    struct client *client = member->arg;
    ck_assert_ptr_eq(client->member, member);
    if (event == MEMBER_OPENED) {
        client->opened++;
        if (client->attaches)
            group_attach(member);
    } else if (event == MEMBER_FAILED) {
        client->failed++;
        snprintf(client->message, sizeof(client->message), "%s", err->message);
        client->member = NULL;
        group_leave(member);
    } else if (event == MEMBER_ENDED) {
        client->ended++;
    }
}

static uint32_t gate_members; /* of the groups of a case: all of them get the first batch; 0: no gate */

static struct group_spec broadcast(struct fake_gpu *gpu)
{
    struct group_spec spec = {.share = FEEDD_SHARE_BROADCAST,
                              .name = "g",
                              .members = gate_members,
                              .join = gate_members > 0 ? FEEDD_JOIN_GATE : FEEDD_JOIN_NOW,
                              .gate_timeout_ms = 60000,
                              .transport = gpu != NULL ? TRANSPORT_IPC : TRANSPORT_HOST,
                              .gpu = gpu != NULL ? &gpu->gpu : NULL};
    spec.stream = (struct stream_spec){
        .dataset = pipeline_dataset(&pipeline, "numbers"),
        .order = {.order = FEEDD_ORDER_SEQUENTIAL, .tail = FEEDD_TAIL_PARTIAL, .batch_size = BATCH, .world_size = 1},
        .transform = {.kind = TRANSFORM_NONE},
        .on_error = FEEDD_ON_ERROR_FAIL,
        .depth = DEPTH};
    output_init(&spec.stream.output);
    spec.stream.output.mode = FEEDD_NORMALIZE_CLIENT;
    return spec;
}

static int join_as(struct client *client, const struct group_spec *spec, struct feedd_error *err)
{
    *client = (struct client){.attaches = true, .next_seq = UINT64_MAX};
    return group_join(&pipeline, spec, on_event, client, &client->member, err);
}

static void join(struct client *client, struct fake_gpu *gpu)
{
    const struct group_spec spec = broadcast(gpu);
    struct feedd_error err;
    ck_assert_msg(join_as(client, &spec, &err) == 0, "%s", err.message);
}

static void leave(struct client *client)
{
    struct member *member = client->member;
    client->member = NULL;
    client->held = 0;
    group_leave(member);
}

static struct stream *stream_of(const struct client *client)
{
    return client->member->group->stream;
}

static uint8_t pixel(uint64_t index, uint32_t p)
{
    return (uint8_t)(index * 7 + p * 3);
}

/* What it would map: the record's word for the batch, and its bytes there. */
static void check_batch(const struct client *client, uint32_t slot, uint64_t seq)
{
    const struct ring *ring = client->member->site->ring;
    const struct slot_layout *layout = &ring->spec.layout;
    struct slot_record *record = slot_record_at(ring->meta, layout, slot);
    const uint8_t *memory =
        ring->spec.gpu != NULL ? ((const struct fake_ring *)ring)->memory : ring->spec.staging->memory;
    memory += slot * layout->slot_bytes;
    const uint64_t steps = (SAMPLES + BATCH - 1) / BATCH;
    ck_assert_uint_eq(record->seq, seq);
    ck_assert_uint_eq(record->epoch, seq / steps);
    ck_assert_uint_eq(record->position, seq % steps * BATCH);
    ck_assert_uint_eq(record->count, seq % steps == steps - 1 ? SAMPLES % BATCH : BATCH);
    ck_assert(record->time_ns[FEEDD_TIME_COPIED] >= record->time_ns[FEEDD_TIME_FILLED]);
    ck_assert(record->time_ns[FEEDD_TIME_READY] >= record->time_ns[FEEDD_TIME_COPIED]);
    for (uint32_t i = 0; i < record->count; i++) {
        ck_assert_int_eq(slot_record_index(record)[i], (int64_t)(record->position + i));
        for (uint32_t p = 0; p < SIDE * SIDE; p++)
            ck_assert_uint_eq(memory[layout->fields[0].offset + i * SIDE * SIDE + p], pixel(record->position + i, p));
    }
}

/* Takes what is ready, in order and without a gap. @return how many */
static uint32_t take(struct client *client)
{
    uint32_t count = member_take_ready(client->member, DEPTH - client->held, client->slots + client->held,
                                       client->seqs + client->held);
    for (uint32_t i = client->held; i < client->held + count; i++) {
        ck_assert(client->next_seq == UINT64_MAX || client->seqs[i] == client->next_seq);
        client->next_seq = client->seqs[i] + 1;
        check_batch(client, client->slots[i], client->seqs[i]);
    }
    client->held += count;
    client->taken += count;
    return count;
}

/* Gives its oldest batch back, which has to be what it was until then. */
static void release(struct client *client)
{
    struct feedd_error err;
    uint32_t slot = client->slots[0];
    uint64_t seq = client->seqs[0];
    check_batch(client, slot, seq);
    client->held--;
    memmove(client->slots, client->slots + 1, client->held * sizeof(client->slots[0]));
    memmove(client->seqs, client->seqs + 1, client->held * sizeof(client->seqs[0]));
    ck_assert_msg(member_release(client->member, slot, seq, &err) == 0, "%s", err.message);
}

static void release_all(struct client *client)
{
    while (client->held > 0)
        release(client);
}

/* ---- the loop ---- */

static void wake(void *arg)
{
    (void)arg;
    sem_post(&woken);
}

static void turn(void)
{
    struct timespec deadline;
    clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_sec += 20;
    ck_assert_msg(sem_timedwait(&woken, &deadline) == 0, "nothing happens any more");
    inbox_drain(&pipeline.inbox);
}

#define UNTIL(condition)                                                                                               \
    while (!(condition))                                                                                               \
    turn()

/* All that the workers have to do is done. */
static bool is_still(const struct stream *stream)
{
    return stream->state == STREAM_RUNNING && stream->filling == 0 && atomic_load(&pipeline.inbox.newest) == NULL;
}

static void setup(void)
{
    tree_setup();
    uint8_t bytes[16 + SAMPLES * SIDE * SIDE] = {0, 0, 8, 3, 0, 0, 0, SAMPLES, 0, 0, 0, SIDE, 0, 0, 0, SIDE};
    for (uint32_t i = 0; i < SAMPLES; i++)
        for (uint32_t p = 0; p < SIDE * SIDE; p++)
            bytes[16 + i * SIDE * SIDE + p] = pixel(i, p);
    snprintf(images_path, sizeof(images_path), "%s", at("images"));
    put_bytes(images_path, bytes, sizeof(bytes));
    config = (struct reader_config){.name = (char *)(uintptr_t) "numbers",
                                    .ops = &reader_idx,
                                    .images = images_path,
                                    .selections = &selection,
                                    .selection_count = 1};
    ck_assert_int_eq(sem_init(&woken, 0, 0), 0);
    gate_members = 0;
    const struct pipeline_limits limits = {.workers = 2,
                                           .ring_memory_max = 1 << 20,
                                           .pinned_max = 1 << 20,
                                           .gpu_memory_max = 8 << 20,
                                           .dataset_memory_max = 1 << 20,
                                           .image = {.pixels = 1000, .encoded_bytes = 1000},
                                           .read_timeout_ms = 30000};
    ck_assert_int_eq(pipeline_init(&pipeline, &limits, &config, 1, wake, NULL, NULL, NULL), 0);
    for (int i = 0; i < 2; i++) {
        gpus[i] = (struct fake_gpu){
            .gpu = {.backend = &fake_backend, .node = -1, .state = GPU_UP, .memory_bytes = 1ull << 30}};
        sprintf(gpus[i].gpu.uuid, "GPU-%d", i);
    }
}

static void note_idle(void *arg)
{
    *(bool *)arg = true;
}

/* Whatever a case does: in the end all is given back. */
static void teardown(void)
{
    bool idle = false;
    pipeline_close(&pipeline, note_idle, &idle);
    while (!idle) {
        arrive_all(&gpus[0]);
        arrive_all(&gpus[1]);
        if (!idle)
            turn();
    }
    ck_assert_uint_eq(pipeline.ring_bytes, 0);
    ck_assert_uint_eq(pipeline.pinned_bytes, 0);
    for (int i = 0; i < 2; i++) {
        ck_assert_uint_eq(gpus[i].gpu.reserved_bytes, 0);
        ck_assert_uint_eq(gpus[i].rings, 0);
    }
    pipeline_done(&pipeline);
    sem_destroy(&woken);
    tree_teardown();
}

/* ---- cases ---- */

/* One decode and one copy each; over a whole epoch and more, everybody gets everything once, in order. */
START_TEST(three_places)
{
    struct client clients[3];
    gate_members = 3;
    join(&clients[0], &gpus[0]);
    join(&clients[1], &gpus[1]);
    join(&clients[2], NULL);
    struct stream *stream = stream_of(&clients[0]);
    UNTIL(clients[0].opened + clients[1].opened + clients[2].opened == 3);
    for (int i = 0; i < 3; i++)
        ck_assert_ptr_eq(stream_of(&clients[i]), stream);
    for (int round = 0; clients[2].taken < 40; round++) {
        UNTIL(is_still(stream));
        if (round % 3 != 0)
            arrive_all(&gpus[round % 2]);
        else if (gpus[0].copy_count > 0)
            arrive(&gpus[0], 0);
        for (int i = 0; i < 3; i++) {
            take(&clients[i]);
            if ((round + i) % 2 == 0)
                release_all(&clients[i]);
        }
    }
    arrive_all(&gpus[0]);
    arrive_all(&gpus[1]);
    for (int i = 0; i < 3; i++)
        release_all(&clients[i]);
    for (int i = 0; i < 3; i++)
        take(&clients[i]);
    UNTIL(is_still(stream));
    const uint64_t placed = stream->next_place;
    ck_assert_uint_ge(placed, 40);
    ck_assert_uint_eq(gpus[0].copied + gpus[0].copy_count, placed); /* every batch once, from the first one on */
    ck_assert_uint_eq(gpus[1].copied + gpus[1].copy_count, placed);
    ck_assert_uint_eq(stream->stats.batches, placed);
    ck_assert_uint_le(stream->next_reserve, placed + DEPTH); /* decoded once */
    for (int i = 0; i < 3; i++)
        leave(&clients[i]);
}
END_TEST

/* A member that keeps what it has holds the others back when its site is full, and no sooner. */
START_TEST(slow_member)
{
    struct client fast, slow;
    gate_members = 2;
    join(&fast, &gpus[0]);
    join(&slow, &gpus[1]);
    UNTIL(fast.opened + slow.opened == 2);
    struct stream *stream = stream_of(&fast);
    for (uint32_t taken = 0; taken < DEPTH;) { /* copies to the slow one's GPU are as slow */
        UNTIL(is_still(stream));
        arrive_all(&gpus[0]);
        taken += take(&fast);
        release_all(&fast);
    }
    ck_assert_uint_eq(gpus[1].copy_count, DEPTH);
    ck_assert_uint_eq(gpus[0].copy_count, 0);
    ck_assert_uint_eq(stream->free_count, 0); /* nothing is made before the slow copies have been */
    arrive_all(&gpus[1]);
    ck_assert_uint_eq(take(&slow), DEPTH);
    UNTIL(is_still(stream));
    ck_assert_uint_eq(stream->filled, DEPTH); /* decoding went on: staging is not what is missing */
    ck_assert_uint_eq(gpus[0].copy_count, 0);
    ck_assert_uint_eq(take(&fast), 0);
    release(&slow);
    ck_assert_uint_eq(gpus[0].copy_count, 1);
    ck_assert_uint_eq(gpus[1].copy_count, 1);
    arrive_all(&gpus[0]);
    ck_assert_uint_eq(take(&fast), 1);
    leave(&slow);
    UNTIL(is_still(stream));
    arrive_all(&gpus[0]); /* nobody holds the fast one back any more, though a copy to the other GPU is on its way */
    ck_assert_uint_ge(take(&fast), DEPTH - 1);
    ck_assert_uint_eq(gpus[1].rings, 1);
    arrive_all(&gpus[1]);
    UNTIL(gpus[1].rings == 0); /* it has arrived: the ring is of no use any more */
    leave(&fast);
}
END_TEST

/* The holder of batches dies and has scribbled over its ring: what is delivered in these slots later is right. */
START_TEST(poisoned_slots)
{
    struct client dying, survivor;
    join(&dying, &gpus[0]);
    join(&survivor, &gpus[0]);
    UNTIL(dying.opened + survivor.opened == 2);
    struct stream *stream = stream_of(&survivor);
    while (survivor.taken < DEPTH) {
        UNTIL(is_still(stream));
        arrive_all(&gpus[0]);
        take(&dying);
        take(&survivor);
    }
    release_all(&survivor);
    struct fake_ring *ring = (struct fake_ring *)survivor.member->site->ring;
    for (uint32_t i = 0; i < dying.held; i++)
        memset(ring->memory + dying.slots[i] * ring->ring.spec.layout.slot_bytes, 0xBD,
               ring->ring.spec.layout.slot_bytes);
    ck_assert_uint_eq(gpus[0].copy_count, 0); /* all is held */
    leave(&dying);
    while (survivor.taken < 30) { /* past the short batch at the end of the epoch, too */
        UNTIL(is_still(stream));
        arrive_all(&gpus[0]);
        take(&survivor);
        release_all(&survivor);
    }
    leave(&survivor);
}
END_TEST

/* A site whose ring can't be made ends for who wanted it. */
START_TEST(ring_fails)
{
    struct client good, bad;
    gpus[1].ring_status = FEEDD_E_UNSUPPORTED;
    join(&good, &gpus[0]);
    join(&bad, &gpus[1]);
    UNTIL(good.opened && bad.failed);
    ck_assert_str_eq(bad.message, "no ring on GPU-1");
    ck_assert_int_eq(bad.opened, 0);
    struct stream *stream = stream_of(&good);
    UNTIL(is_still(stream));
    arrive_all(&gpus[0]);
    ck_assert_uint_eq(take(&good), DEPTH);
    ck_assert_int_eq(good.failed, 0);

    join(&bad, &gpus[1]); /* likewise while the stream runs */
    UNTIL(bad.failed == 1);
    ck_assert_int_eq(good.failed, 0);
    gpus[1].ring_status = 0;
    join(&bad, &gpus[1]);
    UNTIL(bad.opened == 1);
    release(&good);
    UNTIL(is_still(stream));
    ck_assert_uint_eq(gpus[1].copy_count, 1); /* from the next one on */
    arrive_all(&gpus[1]);
    ck_assert_uint_eq(take(&bad), 1);
    ck_assert_uint_eq(bad.seqs[0], DEPTH);
    leave(&good);
    leave(&bad);
}
END_TEST

/* The same of the only site, which the stream doesn't outlive. */
START_TEST(only_ring_fails)
{
    struct client client;
    gpus[0].ring_status = FEEDD_E_MEMORY;
    join(&client, &gpus[0]);
    UNTIL(client.failed);
    ck_assert_ptr_null(client.member);
}
END_TEST

/* What doesn't fit under a limit, by the limit's name: before anything is made, and for who wants it alone. */
START_TEST(budgets)
{
    static const char *const names[] = {"gpu_memory_max", "pinned_max", "ring_memory_max"};
    for (int limit = 0; limit < 3; limit++) {
        struct client good, bad;
        if (limit == 0)
            gpus[1].gpu.reserved_bytes = 7 << 20; /* of 8: others are there, and a ring needs 2 */
        join(&good, limit == 1 ? NULL : &gpus[0]);
        UNTIL(good.opened);
        if (limit == 1)
            pipeline.limits.pinned_max = 4096;
        if (limit == 2)
            pipeline.limits.ring_memory_max = pipeline.ring_bytes + 100;
        const uint64_t ring_bytes = pipeline.ring_bytes, pinned_bytes = pipeline.pinned_bytes;
        join(&bad, &gpus[1]);
        UNTIL(bad.failed);
        ck_assert_msg(strstr(bad.message, names[limit]) != NULL, "%s", bad.message);
        UNTIL(list_empty(&stream_of(&good)->sites) || stream_of(&good)->sites.next == stream_of(&good)->sites.prev);
        ck_assert_uint_eq(pipeline.ring_bytes, ring_bytes);
        ck_assert_uint_eq(pipeline.pinned_bytes, pinned_bytes);
        ck_assert_int_eq(good.failed, 0);
        UNTIL(is_still(stream_of(&good)));
        arrive_all(&gpus[0]);
        ck_assert_uint_eq(take(&good), DEPTH);
        leave(&good);
        UNTIL(list_empty(&pipeline.groups));
        gpus[1].gpu.reserved_bytes = 0;
        pipeline.limits.pinned_max = pipeline.limits.ring_memory_max = 1 << 20;
    }
    gpus[0].gpu.reserved_bytes = 7 << 20;
    struct client first; /* of a stream whose only site doesn't fit */
    join(&first, &gpus[0]);
    UNTIL(first.failed);
    ck_assert_ptr_nonnull(strstr(first.message, "gpu_memory_max"));
    UNTIL(list_empty(&pipeline.groups));
    gpus[0].gpu.reserved_bytes = 0;
}
END_TEST

/* A copy that fails ends its site: members elsewhere go on. */
START_TEST(copy_fails)
{
    struct client there, too, elsewhere;
    gate_members = 3;
    join(&there, &gpus[1]);
    join(&too, &gpus[1]);
    join(&elsewhere, NULL);
    UNTIL(there.opened + too.opened + elsewhere.opened == 3);
    struct stream *stream = stream_of(&elsewhere);
    UNTIL(is_still(stream));
    const uint32_t copies = gpus[1].copy_count;
    ck_assert_uint_ge(copies, 2);
    arrive(&gpus[1], 0);
    ck_assert_uint_eq(take(&there), 1);
    arrive(&gpus[1], FEEDD_E_DEVICE);
    ck_assert_str_eq(there.message, "a copy to GPU-1");
    ck_assert_str_eq(too.message, "a copy to GPU-1");
    ck_assert_uint_eq(gpus[1].rings, 1); /* copies are still on their way */
    arrive_all(&gpus[1]);
    UNTIL(gpus[1].rings == 0);
    while (elsewhere.taken < 20) {
        UNTIL(is_still(stream));
        take(&elsewhere);
        release_all(&elsewhere);
    }
    leave(&elsewhere);
}
END_TEST

/* A copy that fails when nobody is there any more, or when the stream has failed already, concerns nobody. */
START_TEST(copy_fails_late)
{
    struct client gpu, host;
    join(&gpu, &gpus[0]);
    UNTIL(gpu.opened);
    join(&host, NULL);
    UNTIL(host.opened);
    struct stream *stream = stream_of(&host);
    UNTIL(is_still(stream));
    ck_assert_uint_ge(gpus[0].copy_count, 2);
    leave(&gpu);
    while (gpus[0].copy_count > 0)
        arrive(&gpus[0], FEEDD_E_DEVICE);
    UNTIL(gpus[0].rings == 0);
    join(&gpu, &gpus[0]);
    UNTIL(gpu.opened);
    while (gpus[0].copy_count < 2) {
        UNTIL(is_still(stream));
        take(&host);
        release_all(&host);
    }
    struct feedd_error err;
    error_set(&err, FEEDD_E_IO, "the stream's own");
    stream_fail(stream, &err);
    arrive(&gpus[0], FEEDD_E_DEVICE);
    arrive(&gpus[0], 0);
    ck_assert_uint_eq(gpu.member->ready_count, 0); /* nothing comes after that */
    UNTIL(gpu.failed && host.failed);
    ck_assert_str_eq(gpu.message, "the stream's own");
    ck_assert_str_eq(host.message, "the stream's own");
}
END_TEST

/* The members of a GPU leave and come back: another ring. The last to leave is on the host. */
START_TEST(sites_come_and_go)
{
    struct client host, gpu;
    join(&host, NULL);
    UNTIL(host.opened);
    struct stream *stream = stream_of(&host);
    uint64_t next = 0;
    for (int i = 0; i < 5; i++) {
        join(&gpu, &gpus[0]);
        if (i == 3) { /* it doesn't wait for its ring */
            leave(&gpu);
            continue;
        }
        UNTIL(gpu.opened);
        for (int round = 0; round < 3; round++) {
            UNTIL(is_still(stream));
            arrive_all(&gpus[0]);
            take(&host);
            take(&gpu);
            release_all(&host);
            if (i % 2 == 0)
                release_all(&gpu);
            next = host.next_seq;
        }
        ck_assert_uint_gt(gpu.taken, 0);
        leave(&gpu); /* with copies on their way, and what it holds */
    }
    arrive_all(&gpus[0]);
    UNTIL(gpus[0].rings == 0 && is_still(stream));
    take(&host);
    ck_assert_uint_ge(host.next_seq, next);
    ck_assert_uint_eq(stream->filled, 0);
    leave(&host);
}
END_TEST

/* A ring is being made when its member leaves, and when the stream does: it is freed as soon as it is there. */
START_TEST(leaves_while_opening)
{
    enum { ALONE, HOST_LEAVES, HOST_STAYS };
    for (int with = ALONE; with <= HOST_STAYS; with++) {
        struct client host, gpu;
        sem_t hold;
        sem_init(&hold, 0, 0);
        gpus[0].hold = &hold;
        if (with != ALONE) {
            join(&host, NULL);
            UNTIL(host.opened);
        }
        join(&gpu, &gpus[0]);
        struct stream *stream = stream_of(&gpu);
        UNTIL(stream->state == STREAM_RUNNING &&
              container_of(stream->sites.prev, struct site, node)->state == SITE_OPENING);
        leave(&gpu);
        if (with == HOST_LEAVES)
            leave(&host);
        sem_post(&hold);
        if (with == HOST_STAYS) {
            UNTIL(stream->sites.next == stream->sites.prev);
            ck_assert_int_eq(host.failed, 0);
            leave(&host);
        }
        UNTIL(list_empty(&pipeline.groups));
        ck_assert_uint_eq(gpus[0].rings, 0);
        gpus[0].hold = NULL;
        sem_destroy(&hold);
    }
}
END_TEST

/* join = next-epoch at a site that is behind: not the end of the epoch that others have had. */
START_TEST(next_epoch_behind)
{
    struct client host, lagging, late;
    join(&host, NULL);
    join(&lagging, &gpus[0]);
    UNTIL(host.opened + lagging.opened == 2);
    struct stream *stream = stream_of(&host);
    const uint64_t steps = (SAMPLES + BATCH - 1) / BATCH;
    while (stream->next_epoch == 0) { /* all of epoch 0 has been placed; on the GPU the last one is on its way */
        UNTIL(is_still(stream) || stream->next_epoch > 0);
        while (gpus[0].copy_count > 1)
            arrive(&gpus[0], 0);
        take(&lagging);
        release_all(&lagging);
        take(&host);
        if (host.held > 0)
            release(&host);
    }
    ck_assert_uint_ge(gpus[0].copy_count, 1);
    struct group_spec spec = broadcast(&gpus[0]);
    spec.join = FEEDD_JOIN_NEXT_EPOCH;
    ck_assert_int_eq(join_as(&late, &spec, NULL), 0);
    UNTIL(late.opened);
    ck_assert_int_eq(late.member->state, MEMBER_WAITING);
    while (late.taken == 0) {
        arrive_all(&gpus[0]);
        take(&lagging);
        release_all(&lagging);
        take(&late);
        take(&host);
        release_all(&host);
        if (late.taken == 0)
            UNTIL(is_still(stream));
    }
    ck_assert_uint_eq(late.seqs[0], steps);
    leave(&lagging);
    leave(&late);
    leave(&host);
}
END_TEST

/* The end: everybody is told when the last copy has arrived, and who comes before that gets what is left. */
START_TEST(end)
{
    struct client host, gpu;
    gate_members = 2;
    struct group_spec spec = broadcast(NULL);
    spec.stream.order.epochs = 1;
    spec.stream.depth = 16; /* all of it */
    ck_assert_int_eq(join_as(&host, &spec, NULL), 0);
    spec.gpu = &gpus[0].gpu;
    spec.transport = TRANSPORT_FD;
    ck_assert_int_eq(join_as(&gpu, &spec, NULL), 0);
    UNTIL(host.opened + gpu.opened == 2);
    struct stream *stream = stream_of(&host);
    UNTIL(is_still(stream));
    const uint64_t steps = (SAMPLES + BATCH - 1) / BATCH;
    ck_assert_uint_eq(stream->next_place, steps);
    ck_assert_int_eq(host.ended, 0);
    while (gpus[0].copy_count > 0) {
        ck_assert_int_eq(gpu.ended, 0);
        arrive(&gpus[0], 0);
    }
    ck_assert_int_eq(host.ended + gpu.ended, 2);
    ck_assert_uint_eq(gpu.member->ready_count, gpu.member->site->taken);
    leave(&gpu);
    leave(&host);
}
END_TEST

/* Members of one group may differ in where and how; in what slots hold they may not. */
START_TEST(unequal_outputs)
{
    struct client first, second;
    struct feedd_error err;
    struct group_spec spec = broadcast(NULL), other;
    spec.stream.output.dtype = FEEDD_F32;
    spec.stream.output.mode = FEEDD_NORMALIZE_CPU;
    ck_assert_int_eq(join_as(&first, &spec, NULL), 0);
    for (int open = 0; open < 2; open++) {
        other = spec;
        other.stream.output.mode = FEEDD_NORMALIZE_CLIENT;
        ck_assert_int_eq(join_as(&second, &other, &err), FEEDD_E_ARGUMENT);
        ck_assert_str_eq(err.message, "group 'g' has normalize cpu, and client was asked for");
        other = spec;
        other.stream.output.dtype = FEEDD_F16;
        ck_assert_int_eq(join_as(&second, &other, &err), FEEDD_E_ARGUMENT);
        ck_assert_str_eq(err.message, "group 'g' has output.dtype f32, and f16 was asked for");
        other = spec;
        other.stream.output.nchw = true;
        ck_assert_int_eq(join_as(&second, &other, &err), FEEDD_E_ARGUMENT);
        ck_assert_str_eq(err.message, "group 'g' has output.layout nhwc, and nchw was asked for");
        other = spec;
        other.stream.output.std[0] = 0.25;
        ck_assert_int_eq(join_as(&second, &other, &err), FEEDD_E_ARGUMENT);
        ck_assert_str_eq(err.message, "group 'g' has output.std[0] 1, and 0.25 was asked for");
        other = spec;
        other.stream.output.mean[1] = 0.5; /* of a channel that images don't have, which is known when it is open */
        ck_assert_int_eq(join_as(&second, &other, &err), open ? 0 : FEEDD_E_ARGUMENT);
        UNTIL(first.opened);
    }
    UNTIL(second.opened);
    leave(&first);
    leave(&second);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("group");
    TCase *tcase = tcase_create("sites");
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_set_timeout(tcase, 120);
    tcase_add_test(tcase, three_places);
    tcase_add_test(tcase, slow_member);
    tcase_add_test(tcase, poisoned_slots);
    tcase_add_test(tcase, ring_fails);
    tcase_add_test(tcase, only_ring_fails);
    tcase_add_test(tcase, budgets);
    tcase_add_test(tcase, copy_fails);
    tcase_add_test(tcase, copy_fails_late);
    tcase_add_test(tcase, sites_come_and_go);
    tcase_add_test(tcase, leaves_while_opening);
    tcase_add_test(tcase, next_epoch_behind);
    tcase_add_test(tcase, end);
    tcase_add_test(tcase, unequal_outputs);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    const int failures = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failures != 0;
}
