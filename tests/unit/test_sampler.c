/* test_sampler.c - every batch of every rank against a plain simulation of what sampler.h says; resuming, endless
 * streams, refusals; and whether shuffled batches mix classes as chance does. */
#include <check.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "permutation.h"
#include "sampler.h"

enum { MAX_RANKS = 5, MAX_BATCH = 9, MAX_COUNT = 70, EPOCHS = 2, MAX_STEPS = EPOCHS * MAX_COUNT };

/* The oracle: what each rank gets at each step, found by dealing out positions one by one. */
struct deal {
    uint32_t steps;
    struct deal_step {
        uint64_t epoch, next_epoch, next_position;
        struct deal_batch {
            uint32_t count, valid;
            uint32_t positions[MAX_BATCH];
        } ranks[MAX_RANKS];
    } step[MAX_STEPS];
};

static void deal_one(struct deal_batch *batch, uint32_t position, bool padding)
{
    batch->positions[batch->count++] = position;
    batch->valid += !padding;
}

/* Whether position j of the m last ones is rank r's: in [floor(r m / W), floor((r + 1) m / W)). */
static bool tail_belongs(uint32_t j, uint32_t m, uint32_t r, uint32_t world)
{
    uint32_t begin = 0, end = 0; /* floors, by counting */
    while ((begin + 1) * world <= r * m)
        begin++;
    while ((end + 1) * world <= (r + 1) * m)
        end++;
    return j >= begin && j < end;
}

static void deal_tail(struct deal_step *step, const struct sampler_spec *spec, uint32_t n, uint32_t position)
{
    const uint32_t world = spec->world_size, m = n - position;
    if (spec->tail == FEEDD_TAIL_PAD) {
        uint32_t padding = 0;
        for (uint32_t r = 0; r < world; r++) {
            for (uint32_t i = 0; i < spec->batch_size; i++) {
                bool past = position == n;
                deal_one(&step->ranks[r], past ? padding : position, past);
                if (past)
                    padding = padding + 1 == n ? 0 : padding + 1;
                else
                    position++;
            }
        }
    } else {
        uint32_t dealt = 0;
        for (uint32_t r = 0; r < world; r++) {
            while (dealt < m && tail_belongs(dealt, m, r, world))
                deal_one(&step->ranks[r], position + dealt++, false);
            if (step->ranks[r].count == 0)
                deal_one(&step->ranks[r], position + dealt, true);
        }
        ck_assert_uint_eq(dealt, m);
    }
}

/* EPOCHS epochs, the first from `begin`. */
static void deal_stream(struct deal *deal, const struct sampler_spec *spec, uint32_t n)
{
    const uint32_t step_samples = spec->world_size * spec->batch_size;
    uint32_t position = (uint32_t)spec->start_position;
    memset(deal, 0, sizeof(*deal));
    for (uint64_t epoch = spec->start_epoch; epoch < spec->epochs; epoch++, position = 0) {
        while (position < n && !(spec->tail == FEEDD_TAIL_DROP && n - position < step_samples)) {
            struct deal_step *step = &deal->step[deal->steps++];
            step->epoch = epoch;
            if (n - position >= step_samples) {
                for (uint32_t r = 0; r < spec->world_size; r++)
                    for (uint32_t i = 0; i < spec->batch_size; i++)
                        deal_one(&step->ranks[r], position++, false);
            } else {
                deal_tail(step, spec, n, position);
                position = n;
            }
            bool last = position == n || (spec->tail == FEEDD_TAIL_DROP && n - position < step_samples);
            step->next_epoch = last ? epoch + 1 : epoch;
            step->next_position = last ? 0 : position;
        }
    }
}

static const char *describe(const struct sampler_spec *spec, uint64_t n)
{
    static char text[160];
    snprintf(text, sizeof(text),
             "order %d, tail %d, n %" PRIu64 ", W %u, B %u, rank %u, from epoch %" PRIu64 " position %" PRIu64,
             spec->order, spec->tail, n, spec->world_size, spec->batch_size, spec->rank, spec->start_epoch,
             spec->start_position);
    return text;
}

static struct sampler sampler_of(const struct sampler_spec *spec, uint64_t n)
{
    struct sampler s;
    struct feedd_error err;
    ck_assert_msg(sampler_init(&s, spec, n, &err) == 0, "%s: refused: %s", describe(spec, n), err.message);
    return s;
}

/* The sample at a position of an epoch. */
static uint64_t expected_index(const struct sampler_spec *spec, uint64_t n, uint64_t epoch, uint64_t position)
{
    if (spec->order == FEEDD_ORDER_SEQUENTIAL)
        return position;
    struct permutation p;
    permutation_init(&p, n, spec->seed, epoch);
    return permutation_index(&p, position);
}

/* Each rank of the spec makes the oracle's steps and no others. */
static void check_against_deal(const struct sampler_spec *spec, uint32_t n, const struct deal *deal)
{
    for (uint32_t r = 0; r < spec->world_size; r++) {
        struct sampler_spec rank_spec = *spec;
        rank_spec.rank = r;
        const struct sampler s = sampler_of(&rank_spec, n);
        struct sampler_batch batch;
        for (uint32_t k = 0; k < deal->steps; k++) {
            const struct deal_step *step = &deal->step[k];
            const struct deal_batch *expected = &step->ranks[r];
            bool same = sampler_batch(&s, k, &batch) && batch.epoch == step->epoch && batch.count == expected->count &&
                        batch.valid == expected->valid && batch.next_epoch == step->next_epoch &&
                        batch.next_position == step->next_position &&
                        (batch.valid == 0 && spec->tail == FEEDD_TAIL_PAD ? batch.position >= n
                                                                          : batch.position == expected->positions[0]);
            for (uint32_t i = 0; same && i < batch.count; i++) {
                uint32_t flags = ~0u;
                uint64_t index = sampler_index(&s, &batch, i, &flags);
                same = index == expected_index(spec, n, step->epoch, expected->positions[i]) &&
                       flags == (i < expected->valid ? 0 : FEEDD_SAMPLE_PADDING);
            }
            if (!same)
                ck_abort_msg("%s: step %u differs", describe(&rank_spec, n), k);
        }
        if (sampler_batch(&s, deal->steps, &batch) || sampler_batch(&s, UINT64_MAX, &batch))
            ck_abort_msg("%s: goes on after step %u", describe(&rank_spec, n), deal->steps);
    }
}

/* Adds the stream's samples that aren't padding to counts[epoch][index], over all ranks: steps [0, steps), or all of
 * them. Returns where the stream stands then. */
static struct sampler_batch count_samples(const struct sampler_spec *spec, uint32_t n, uint64_t steps,
                                          uint32_t counts[EPOCHS][MAX_COUNT])
{
    struct sampler_batch batch = {.next_epoch = spec->start_epoch, .next_position = spec->start_position};
    for (uint32_t r = 0; r < spec->world_size; r++) {
        struct sampler_spec rank_spec = *spec;
        rank_spec.rank = r;
        const struct sampler s = sampler_of(&rank_spec, n);
        for (uint64_t k = 0; k < steps && sampler_batch(&s, k, &batch); k++) {
            for (uint32_t i = 0; i < batch.count; i++) {
                uint32_t flags;
                uint64_t index = sampler_index(&s, &batch, i, &flags);
                counts[batch.epoch][index] += !(flags & FEEDD_SAMPLE_PADDING);
            }
        }
    }
    return batch;
}

/* Epochs hold every sample once, but for what drop leaves out: the last (n - begin) % WB positions of an epoch, where
 * begin is the resume position in the epoch that was resumed. Epochs before that one are the first spec's. */
static void check_counts(const struct sampler_spec *first, const struct sampler_spec *resumed, uint32_t n,
                         uint32_t counts[EPOCHS][MAX_COUNT])
{
    for (uint64_t epoch = 0; epoch < EPOCHS; epoch++) {
        const struct sampler_spec *spec = epoch < resumed->start_epoch ? first : resumed;
        uint32_t begin = epoch == resumed->start_epoch ? (uint32_t)resumed->start_position : 0;
        uint32_t dropped = spec->tail == FEEDD_TAIL_DROP ? (n - begin) % (spec->world_size * spec->batch_size) : 0;
        for (uint32_t position = 0; position < n; position++) {
            uint64_t index = expected_index(spec, n, epoch, position);
            if (counts[epoch][index] != (position < n - dropped))
                ck_abort_msg("%s: epoch %" PRIu64 ": sample %" PRIu64 " of position %u came %u times",
                             describe(resumed, n), epoch, index, position, counts[epoch][index]);
        }
    }
}

/* Every small n, W, B and tail; the order takes turns. */
static void for_each_spec(void (*check)(struct sampler_spec *, uint32_t))
{
    for (uint32_t n = 1; n <= MAX_COUNT; n++)
        for (uint32_t world = 1; world <= MAX_RANKS; world++)
            for (uint32_t batch_size = 1; batch_size <= MAX_BATCH; batch_size++)
                for (int tail = FEEDD_TAIL_DROP; tail <= FEEDD_TAIL_PARTIAL; tail++) {
                    if (tail == FEEDD_TAIL_DROP && n < world * batch_size)
                        continue;
                    struct sampler_spec spec = {
                        .order = (n + world + batch_size) % 2 ? FEEDD_ORDER_SEQUENTIAL : FEEDD_ORDER_SHUFFLE,
                        .tail = tail,
                        .seed = n * 1000 + batch_size,
                        .epochs = EPOCHS,
                        .batch_size = batch_size,
                        .world_size = world,
                    };
                    check(&spec, n);
                }
}

/* From an epoch's begin, its middle and its last sample. */
static void check_deals(struct sampler_spec *spec, uint32_t n)
{
    static struct deal deal;
    const uint32_t starts[] = {0, 1, n / 2, n - 1};
    for (size_t i = 0; i < sizeof(starts) / sizeof(starts[0]); i++) {
        spec->start_position = starts[i] % n;
        deal_stream(&deal, spec, n);
        check_against_deal(spec, n, &deal);
    }
}

START_TEST(batches_are_as_documented)
{
    for_each_spec(check_deals);
}
END_TEST

static void check_epochs(struct sampler_spec *spec, uint32_t n)
{
    uint32_t counts[EPOCHS][MAX_COUNT] = {{0}};
    struct sampler_batch last = count_samples(spec, n, UINT64_MAX, counts);
    check_counts(spec, spec, n, counts);
    ck_assert(last.next_epoch == EPOCHS && last.next_position == 0);
}

START_TEST(epochs_hold_each_sample_once)
{
    for_each_spec(check_epochs);
}
END_TEST

/* Interrupted after some steps, and gone on with from next_epoch and next_position: with the same step, and with
 * another world size and batch size. */
static void check_resumed(struct sampler_spec *spec, uint32_t n)
{
    const uint32_t epoch_steps = (n + spec->world_size * spec->batch_size - 1) / (spec->world_size * spec->batch_size);
    const uint64_t interruptions[] = {1, epoch_steps / 2, epoch_steps, epoch_steps + 1};
    for (size_t i = 0; i < 2 * sizeof(interruptions) / sizeof(interruptions[0]); i++) {
        uint32_t counts[EPOCHS][MAX_COUNT] = {{0}};
        struct sampler_batch stopped = count_samples(spec, n, interruptions[i / 2], counts);
        struct sampler_spec resumed = *spec;
        resumed.start_epoch = stopped.next_epoch;
        resumed.start_position = stopped.next_position;
        if (i % 2 == 1) {
            resumed.world_size = spec->world_size % MAX_RANKS + 1;
            resumed.batch_size = (spec->batch_size + 3) % MAX_BATCH + 1;
            if (spec->tail == FEEDD_TAIL_DROP && n < resumed.world_size * resumed.batch_size)
                continue;
        }
        count_samples(&resumed, n, UINT64_MAX, counts);
        check_counts(spec, &resumed, n, counts);
    }
}

START_TEST(resumed_epochs_hold_each_sample_once)
{
    for_each_spec(check_resumed);
}
END_TEST

/* The same spec, resumed after steps near and far: the rest is the same, batch by batch. */
static void check_same_rest(struct sampler_spec *spec, uint32_t n)
{
    spec->rank = spec->world_size - 1;
    const struct sampler whole = sampler_of(spec, n);
    struct sampler_batch at, a, b;
    for (uint64_t k = 0; sampler_batch(&whole, k, &at); k += 1 + k / 4) {
        struct sampler_spec resumed_spec = *spec;
        resumed_spec.start_epoch = at.next_epoch;
        resumed_spec.start_position = at.next_position;
        const struct sampler resumed = sampler_of(&resumed_spec, n);
        for (uint64_t rest = 0;; rest++) {
            bool more = sampler_batch(&whole, k + 1 + rest, &a);
            bool same = sampler_batch(&resumed, rest, &b) == more;
            if (same && !more)
                break;
            same = same && a.epoch == b.epoch && a.position == b.position && a.count == b.count && a.valid == b.valid &&
                   a.next_epoch == b.next_epoch && a.next_position == b.next_position;
            for (uint32_t i = 0; same && i < a.count; i++) {
                uint32_t a_flags, b_flags;
                same = sampler_index(&whole, &a, i, &a_flags) == sampler_index(&resumed, &b, i, &b_flags) &&
                       a_flags == b_flags;
            }
            if (!same)
                ck_abort_msg("%s: step %" PRIu64 " differs from the uninterrupted stream", describe(&resumed_spec, n),
                             rest);
        }
    }
}

START_TEST(resumed_batches_are_the_same)
{
    for_each_spec(check_same_rest);
}
END_TEST

/* One step's samples of all ranks, rank after rank. */
static uint32_t step_sequence(const struct sampler_spec *spec, uint64_t n, uint64_t step, uint64_t *out)
{
    uint32_t count = 0;
    for (uint32_t r = 0; r < spec->world_size; r++) {
        struct sampler_spec rank_spec = *spec;
        struct sampler_batch batch;
        rank_spec.rank = r;
        const struct sampler s = sampler_of(&rank_spec, n);
        if (!sampler_batch(&s, step, &batch))
            return 0;
        for (uint32_t i = 0; i < batch.count; i++) {
            uint32_t flags;
            out[count] = sampler_index(&s, &batch, i, &flags);
            if (!(flags & FEEDD_SAMPLE_PADDING) || spec->tail == FEEDD_TAIL_PAD)
                count++;
        }
    }
    return count;
}

/* 24 samples a step, whoever gets them: 1 x 24, 2 x 12 ... 24 x 1 make the same steps, also after a resume. */
START_TEST(same_step_same_samples)
{
    static const uint32_t worlds[] = {2, 3, 4, 6, 8, 12, 24};
    for (uint64_t start = 0; start < 1000; start += 123) {
        for (int tail = FEEDD_TAIL_DROP; tail <= FEEDD_TAIL_PARTIAL; tail++) {
            struct sampler_spec one = {
                .order = FEEDD_ORDER_SHUFFLE,
                .tail = tail,
                .seed = 4,
                .epochs = 9,
                .batch_size = 24,
                .world_size = 1,
                .start_epoch = 7,
                .start_position = start,
            };
            for (size_t w = 0; w < sizeof(worlds) / sizeof(worlds[0]); w++) {
                struct sampler_spec many = one;
                many.world_size = worlds[w];
                many.batch_size = 24 / worlds[w];
                uint32_t count = 1;
                for (uint64_t step = 0; count > 0; step++) {
                    uint64_t a[25], b[25]; /* one more: a rank that gets nothing writes its padding, uncounted */
                    count = step_sequence(&one, 1000, step, a);
                    ck_assert_uint_eq(step_sequence(&many, 1000, step, b), count);
                    ck_assert(memcmp(a, b, count * sizeof(a[0])) == 0);
                }
            }
        }
    }
}
END_TEST

static struct sampler_spec endless_spec(void)
{
    return (struct sampler_spec){
        .order = FEEDD_ORDER_SHUFFLE, .tail = FEEDD_TAIL_PAD, .seed = 11, .batch_size = 64, .rank = 1, .world_size = 4};
}

/* Far away in an endless stream: reached by steps, and by resuming there. 60,000 samples are 234.375 steps of 256. */
START_TEST(endless_streams)
{
    const uint64_t n = 60000, epoch_steps = 235, far = 1000000000;
    struct sampler_spec spec = endless_spec();
    const struct sampler from_start = sampler_of(&spec, n);
    spec.start_epoch = far;
    const struct sampler from_there = sampler_of(&spec, n);
    const uint64_t steps[] = {0, 1, 100, 234, 235, 1000};
    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        struct sampler_batch a, b;
        ck_assert(sampler_batch(&from_start, far * epoch_steps + steps[i], &a));
        ck_assert(sampler_batch(&from_there, steps[i], &b));
        ck_assert_uint_eq(a.epoch, far + steps[i] / epoch_steps);
        ck_assert_uint_eq(a.position, steps[i] % epoch_steps * 256 + 64);
        ck_assert_uint_eq(a.next_epoch, far + (steps[i] + 1) / epoch_steps);
        ck_assert_uint_eq(a.next_position, (steps[i] + 1) % epoch_steps * 256);
        ck_assert(b.epoch == a.epoch && b.position == a.position && b.count == a.count && b.valid == a.valid);
        for (uint32_t s = 0; s < a.count; s++) {
            uint32_t flags;
            uint64_t position = (a.position + s) % n;
            ck_assert_uint_eq(sampler_index(&from_start, &a, s, &flags), expected_index(&spec, n, a.epoch, position));
            ck_assert_uint_eq(flags, a.position + s < n ? 0 : FEEDD_SAMPLE_PADDING);
        }
    }
}
END_TEST

/* Values at the ends of their ranges neither overflow nor loop. */
START_TEST(extreme_values)
{
    struct sampler_batch batch;
    struct sampler_spec spec = endless_spec();
    struct sampler s = sampler_of(&spec, 1);
    ck_assert(sampler_batch(&s, UINT64_MAX - 1, &batch)); /* a step an epoch */
    ck_assert(batch.epoch == UINT64_MAX - 1 && batch.next_epoch == UINT64_MAX && batch.next_position == 0);
    ck_assert(!sampler_batch(&s, UINT64_MAX, &batch)); /* the epoch counter's end */

    spec.start_epoch = UINT64_MAX - 1;
    s = sampler_of(&spec, 1);
    ck_assert(sampler_batch(&s, 0, &batch) && batch.epoch == UINT64_MAX - 1 && batch.next_epoch == UINT64_MAX);
    ck_assert(!sampler_batch(&s, 1, &batch));
    for (spec.start_position = 0; spec.start_position <= 1; spec.start_position++) {
        spec.start_epoch = UINT64_MAX;
        s = sampler_of(&spec, 1);
        ck_assert(!sampler_batch(&s, 0, &batch) && !sampler_batch(&s, UINT64_MAX, &batch));
    }

    /* the largest dataset and step: 2^62 samples are 2^30 steps */
    spec = (struct sampler_spec){.order = FEEDD_ORDER_SHUFFLE,
                                 .tail = FEEDD_TAIL_PARTIAL,
                                 .epochs = 1,
                                 .batch_size = FEEDD_MAX_BATCH,
                                 .rank = FEEDD_MAX_WORLD - 1,
                                 .world_size = FEEDD_MAX_WORLD};
    const uint64_t n = (uint64_t)1 << 62, last_step = ((uint64_t)1 << 30) - 1;
    s = sampler_of(&spec, n);
    ck_assert(sampler_batch(&s, last_step, &batch) && !sampler_batch(&s, last_step + 1, &batch));
    ck_assert(batch.position == n - FEEDD_MAX_BATCH && batch.valid == FEEDD_MAX_BATCH && batch.next_epoch == 1);
    uint32_t flags;
    ck_assert_uint_eq(sampler_index(&s, &batch, FEEDD_MAX_BATCH - 1, &flags), expected_index(&spec, n, 0, n - 1));
    ck_assert_uint_eq(flags, 0);

    /* one sample less: a tail of 2^32 - 1, of which the last rank gets 65,536 and the first 65,535 */
    s = sampler_of(&spec, n - 1);
    ck_assert(sampler_batch(&s, last_step, &batch));
    ck_assert(batch.position == n - 1 - FEEDD_MAX_BATCH && batch.valid == FEEDD_MAX_BATCH);
    spec.rank = 0;
    s = sampler_of(&spec, n - 1);
    ck_assert(sampler_batch(&s, last_step, &batch));
    ck_assert(batch.position == last_step << 32 && batch.valid == FEEDD_MAX_BATCH - 1 && batch.count == batch.valid);

    /* a step of 2^32 around one sample */
    spec.tail = FEEDD_TAIL_PAD;
    spec.rank = FEEDD_MAX_WORLD - 1;
    s = sampler_of(&spec, 1);
    ck_assert(sampler_batch(&s, 0, &batch) && batch.count == FEEDD_MAX_BATCH && batch.valid == 0);
    ck_assert_uint_eq(sampler_index(&s, &batch, FEEDD_MAX_BATCH - 1, &flags), 0);
    ck_assert_uint_eq(flags, FEEDD_SAMPLE_PADDING);
}
END_TEST

START_TEST(starts)
{
    struct sampler_batch batch;
    struct sampler_spec spec = {.order = FEEDD_ORDER_SEQUENTIAL,
                                .tail = FEEDD_TAIL_DROP,
                                .epochs = 3,
                                .batch_size = 4,
                                .world_size = 2,
                                .start_position = 20};
    struct sampler s = sampler_of(&spec, 20); /* the end of epoch 0 is the begin of epoch 1 */
    ck_assert(sampler_batch(&s, 0, &batch) && batch.epoch == 1 && batch.position == 0);
    ck_assert(sampler_batch(&s, 3, &batch) && batch.epoch == 2 && batch.position == 8 && batch.next_epoch == 3);
    ck_assert(!sampler_batch(&s, 4, &batch));

    spec.start_position = 13; /* 7 are left of epoch 0, less than a step */
    s = sampler_of(&spec, 20);
    ck_assert(sampler_batch(&s, 0, &batch) && batch.epoch == 1 && batch.position == 0);
    ck_assert(sampler_batch(&s, 3, &batch) && !sampler_batch(&s, 4, &batch));

    spec.start_position = 12; /* 8 are left: a step */
    s = sampler_of(&spec, 20);
    ck_assert(sampler_batch(&s, 0, &batch) && batch.epoch == 0 && batch.position == 12 && batch.next_epoch == 1);

    spec.start_epoch = 2;
    spec.start_position = 20;
    s = sampler_of(&spec, 20);
    ck_assert(!sampler_batch(&s, 0, &batch));
    spec.start_position = 0;
    for (spec.start_epoch = 3; spec.start_epoch < 6; spec.start_epoch++) {
        s = sampler_of(&spec, 20);
        ck_assert(!sampler_batch(&s, 0, &batch) && !sampler_batch(&s, UINT64_MAX, &batch));
    }
}
END_TEST

static void refuse(struct sampler_spec spec, uint64_t n, int status, const char *says)
{
    struct sampler s, before;
    struct feedd_error err;
    memset(&s, 0x5A, sizeof(s));
    memset(&before, 0x5A, sizeof(before));
    int rc = sampler_init(&s, &spec, n, &err);
    ck_assert_msg(rc == status && err.status == status, "%s: status %d, not %d", describe(&spec, n), rc, status);
    ck_assert_msg(strstr(err.message, says) != NULL, "\"%s\" doesn't say \"%s\"", err.message, says);
    ck_assert(memcmp(&s, &before, sizeof(s)) == 0);
    ck_assert_int_eq(sampler_init(&s, &spec, n, NULL), status);
}

START_TEST(refusals)
{
    const struct sampler_spec good = {.order = FEEDD_ORDER_SHUFFLE,
                                      .tail = FEEDD_TAIL_DROP,
                                      .epochs = 1,
                                      .batch_size = 32,
                                      .rank = 3,
                                      .world_size = 4};
    const uint64_t limit = (uint64_t)1 << 62;
    struct sampler_spec bad;
    sampler_of(&good, 128);
    sampler_of(&good, limit);

    bad = good, bad.order = 0;
    refuse(bad, 1000, FEEDD_E_ARGUMENT, "order 0");
    bad = good, bad.order = 3;
    refuse(bad, 1000, FEEDD_E_ARGUMENT, "order 3");
    bad = good, bad.tail = 0;
    refuse(bad, 1000, FEEDD_E_ARGUMENT, "tail 0");
    bad = good, bad.tail = -1;
    refuse(bad, 1000, FEEDD_E_ARGUMENT, "tail -1");
    bad = good, bad.batch_size = 0;
    refuse(bad, 1000, FEEDD_E_ARGUMENT, "batch size 0: it must be 1 to 65536");
    bad = good, bad.batch_size = FEEDD_MAX_BATCH + 1;
    refuse(bad, limit, FEEDD_E_LIMIT, "batch size 65537: it must be 1 to 65536");
    bad = good, bad.batch_size = UINT32_MAX;
    refuse(bad, limit, FEEDD_E_LIMIT, "batch size 4294967295");
    bad = good, bad.world_size = 0;
    refuse(bad, 1000, FEEDD_E_ARGUMENT, "world size 0: it must be 1 to 65536");
    bad = good, bad.world_size = FEEDD_MAX_WORLD + 1;
    refuse(bad, limit, FEEDD_E_LIMIT, "world size 65537");
    bad = good, bad.rank = 4;
    refuse(bad, 1000, FEEDD_E_ARGUMENT, "rank 4: it must be 0 to 3");
    bad = good, bad.rank = UINT32_MAX;
    refuse(bad, 1000, FEEDD_E_ARGUMENT, "rank 4294967295");
    bad = good, bad.start_position = 1001;
    refuse(bad, 1000, FEEDD_E_ARGUMENT, "start position 1001: it must be 0 to 1000");
    bad = good, bad.start_position = UINT64_MAX;
    refuse(bad, limit, FEEDD_E_ARGUMENT, "start position 18446744073709551615");
    refuse(good, 0, FEEDD_E_ARGUMENT, "no samples");
    refuse(good, limit + 1, FEEDD_E_LIMIT, "at most 4611686018427387904");
    refuse(good, UINT64_MAX, FEEDD_E_LIMIT, "18446744073709551615 samples");
    refuse(good, 127, FEEDD_E_ARGUMENT, "127 samples are less than a step of 128 (world size 4 x batch size 32)");
    refuse(good, 127, FEEDD_E_ARGUMENT, "a batch size of at most 31, or tail = pad or partial");
    refuse(good, 3, FEEDD_E_ARGUMENT, "use tail = pad or partial");
    bad = good, bad.batch_size = FEEDD_MAX_BATCH, bad.world_size = FEEDD_MAX_WORLD; /* a step is 2^32, not 0 */
    refuse(bad, 1000, FEEDD_E_ARGUMENT, "less than");
}
END_TEST

/* A set of 6,000 samples sorted by 10 classes of 600. In a batch of 64 drawn at random without replacement, the counts
 * O_c are hypergeometric: mean E = 6.4, covariance (N - B) / (N - 1) * E * (delta_cd - 1/10). So
 *     T = (N - 1) / (N - B) * sum over c of (O_c - E)^2 / E
 * has mean 9, exactly, and is nearly chi-square of 9 degrees of freedom: sigma 4.24. */
enum { SAMPLES = 6000, CLASSES = 10, BATCH = 64, SEEDS = 100 };

static double class_statistic(const uint32_t counts[CLASSES])
{
    const double expected = (double)BATCH / CLASSES;
    double sum = 0;
    for (int c = 0; c < CLASSES; c++)
        sum += (counts[c] - expected) * (counts[c] - expected) / expected;
    return sum * (SAMPLES - 1) / (SAMPLES - BATCH);
}

/* T averaged over an epoch's batches of one rank. `interleaved`: the dataset's classes take turns. */
static double mean_class_statistic(const struct sampler_spec *spec, bool interleaved, uint32_t *extreme,
                                   uint32_t *batches)
{
    const struct sampler s = sampler_of(spec, SAMPLES);
    struct sampler_batch batch;
    uint32_t steps = 0;
    double sum = 0;
    for (; sampler_batch(&s, steps, &batch); steps++) {
        uint32_t counts[CLASSES] = {0}, flags;
        for (uint32_t i = 0; i < batch.count; i++) {
            uint64_t index = sampler_index(&s, &batch, i, &flags);
            counts[interleaved ? index % CLASSES : index / (SAMPLES / CLASSES)]++;
        }
        double t = class_statistic(counts);
        sum += t;
        *extreme += t > 21.67; /* 1 % of chi-square of 9 degrees */
    }
    *batches += steps;
    return sum / steps;
}

/* 93 batches an epoch x 100 seeds: the grand mean has sigma 4.24 / sqrt(9300) = 0.044, one seed's 0.44 (somewhat less,
 * as an epoch's batches share its samples). Allowed are 9 +- 0.25 and 9 +- 2.5, over 5 sigma: less mixing than chance
 * is above, an order that spreads classes too evenly is below. Extremes, about 93 of 9300, show a wrong tail. The same
 * holds for one rank of three: 31 batches, sigma 0.076 and 0.76. */
START_TEST(shuffled_batches_mix_classes_as_chance_does)
{
    static const struct {
        uint32_t world, rank;
        double grand, single;
    } cases[] = {{1, 0, 0.25, 2.5}, {3, 1, 0.43, 4.3}};
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        double sum = 0;
        uint32_t extreme = 0, batches = 0;
        for (uint64_t seed = 0; seed < SEEDS; seed++) {
            const struct sampler_spec spec = {.order = FEEDD_ORDER_SHUFFLE,
                                              .tail = FEEDD_TAIL_DROP,
                                              .seed = seed,
                                              .epochs = 1,
                                              .batch_size = BATCH,
                                              .rank = cases[c].rank,
                                              .world_size = cases[c].world};
            double mean = mean_class_statistic(&spec, false, &extreme, &batches);
            ck_assert_msg(mean > 9 - cases[c].single && mean < 9 + cases[c].single,
                          "world size %u, seed %" PRIu64 ": mean statistic %.2f, expected 9", cases[c].world, seed,
                          mean);
            sum += mean;
        }
        double mean = sum / SEEDS, share = (double)extreme / batches;
        ck_assert_msg(mean > 9 - cases[c].grand && mean < 9 + cases[c].grand,
                      "world size %u: mean statistic %.3f, expected 9", cases[c].world, mean);
        ck_assert_msg(share > 0.004 && share < 0.018, "world size %u: %.4f of batches are extreme, expected 0.01",
                      cases[c].world, share);
    }
}
END_TEST

/* The statistic tells: classes in blocks are far above 9, taking turns far below. */
START_TEST(class_statistic_has_both_sides)
{
    const struct sampler_spec spec = {
        .order = FEEDD_ORDER_SEQUENTIAL, .tail = FEEDD_TAIL_DROP, .epochs = 1, .batch_size = BATCH, .world_size = 1};
    uint32_t extreme = 0, batches = 0;
    ck_assert_double_gt(mean_class_statistic(&spec, false, &extreme, &batches), 400);
    ck_assert_double_lt(mean_class_statistic(&spec, true, &extreme, &batches), 1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("sampler");
    TCase *documented = tcase_create("documented");
    tcase_set_timeout(documented, 60);
    tcase_add_test(documented, batches_are_as_documented);
    tcase_add_test(documented, epochs_hold_each_sample_once);
    tcase_add_test(documented, resumed_epochs_hold_each_sample_once);
    tcase_add_test(documented, resumed_batches_are_the_same);
    tcase_add_test(documented, same_step_same_samples);
    suite_add_tcase(suite, documented);
    TCase *edges = tcase_create("edges");
    tcase_add_test(edges, endless_streams);
    tcase_add_test(edges, extreme_values);
    tcase_add_test(edges, starts);
    tcase_add_test(edges, refusals);
    suite_add_tcase(suite, edges);
    TCase *statistics = tcase_create("statistics");
    tcase_set_timeout(statistics, 60);
    tcase_add_test(statistics, shuffled_batches_mix_classes_as_chance_does);
    tcase_add_test(statistics, class_statistic_has_both_sides);
    suite_add_tcase(suite, statistics);

    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failures = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failures != 0;
}
