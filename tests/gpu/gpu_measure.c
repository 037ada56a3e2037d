/* gpu_measure.c - gpu_client feed, trainer, copies: how fast batches come, what they cost who computes, and how fast
 * the same bytes are copied without a daemon.
 *
 * What can fail: the daemon and CUDA. Whether a figure is good is for the caller to say; only a trainer that got too
 * few batches to tell has failed itself (exit code 1). Threads: one. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "gpu_client.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010 /* Linux 5.1 */
#endif

/* ---- feed ---- */

#define FOLD 256 /* batches whose checksums are awaited together */

struct feed {
    struct session s;
    const struct options *options;
    uint32_t fields;
    uint64_t *sums, folded; /* FOLD x fields, of the batches since the last one that `folded` has in it */
    double *waits;          /* seconds, of each batch */
    size_t waits_max;
    uint64_t batches, images, bytes, batch_bytes;
    double taken, longest_gap; /* when the last batch came; seconds */
};

/* Where the measured part of a run begins: the batches that stood ready at the start don't count. */
struct mark {
    double at;
    uint64_t batches, images, bytes;
};

static volatile sig_atomic_t stopped;

static void on_stop(int number)
{
    (void)number;
    stopped = 1;
}

static struct mark mark(const struct feed *f)
{
    return (struct mark){f->taken, f->batches, f->images, f->bytes};
}

/* Depends on the order of the batches, unlike the checksums themselves. */
static void fold(struct feed *f, uint64_t batches)
{
    session_wait(&f->s);
    for (uint64_t i = 0; i < batches * f->fields; i++)
        f->folded = f->folded * 0x9E3779B97F4A7C15u + f->sums[i];
}

static void add_wait(struct feed *f, double seconds)
{
    if (f->batches == f->waits_max) {
        f->waits_max = f->waits_max != 0 ? 2 * f->waits_max : 65536;
        double *more = allocate(f->waits_max * sizeof(*more));
        if (f->batches > 0)
            memcpy(more, f->waits, f->batches * sizeof(*more));
        free(f->waits);
        f->waits = more;
    }
    f->waits[f->batches] = seconds;
}

/* What a training step would do with a batch. */
static void use(struct feed *f, const struct feedd_batch *batch)
{
    const struct feedd_normalize_options options = FEEDD_NORMALIZE_OPTIONS_INIT;
    if (f->options->normalize)
        session_normalize(&f->s, batch, &options);
    if (f->options->has_output)
        session_image_ready(&f->s, batch);
    if (f->options->spin_ms > 0)
        TRY((cudaError_t)gpu_spin(f->options->spin_ms, f->s.cuda));
    if (f->options->checksum) {
        session_checksum(&f->s, batch, &f->sums[f->batches % FOLD * f->fields]);
        if (f->batches % FOLD == FOLD - 1)
            fold(f, FOLD);
    }
    sleep_ms(f->options->hold_ms);
}

/* @return false at the stream's end */
static bool feed_one(struct feed *f)
{
    struct feedd_batch_info info;
    const double asked = seconds_now();
    const struct feedd_batch *batch = session_next(&f->s);
    if (batch == NULL)
        return false;
    const double now = seconds_now();
    add_wait(f, now - asked);
    if (f->batches == 0)
        say("feeding");
    else if (now - f->taken > f->longest_gap)
        f->longest_gap = now - f->taken;
    f->taken = now;
    use(f, batch);
    feedd_batch_info(batch, &info);
    f->batch_bytes = session_bytes(&f->s, batch);
    f->batches++;
    f->images += info.valid;
    f->bytes += f->batch_bytes;
    session_release(&f->s, batch);
    return true;
}

static void print_feed(struct feed *f, const struct mark *from)
{
    const double seconds = f->taken - from->at > 0 ? f->taken - from->at : 1e-9;
    struct feedd_stream_stats stats;
    feedd_stream_stats(f->s.stream, &stats);
    median(f->waits, f->batches); /* sorts them */
    printf("{\"command\": \"feed\", \"device\": \"%s\", \"batches\": %" PRIu64 ", \"batch_bytes\": %" PRIu64
           ", \"depth\": %u, \"seconds\": %.3f, \"batches_per_s\": %.1f, \"images_per_s\": %.0f, \"gb_per_s\": %.3f, "
           "\"longest_gap_ms\": %.3f, \"wait_p50_ms\": %.4f, \"wait_p99_ms\": %.4f, \"reconnects\": %u",
           f->s.schema->device, f->batches, f->batch_bytes, f->s.schema->depth, seconds,
           (double)(f->batches - from->batches) / seconds, (double)(f->images - from->images) / seconds,
           (double)(f->bytes - from->bytes) / seconds / 1e9, f->longest_gap * 1e3, f->waits[f->batches / 2] * 1e3,
           f->waits[f->batches * 99 / 100] * 1e3, stats.reconnects);
    if (f->options->checksum)
        printf(", \"checksum\": \"%016" PRIx64 "\"", f->folded);
    puts("}");
}

int command_feed(const struct options *options)
{
    struct feed f = {.options = options};
    const double limit = options->seconds > 0 ? options->seconds : options->batches > 0 ? 1e9 : 2;
    session_open(&f.s, options, options->open.device);
    f.fields = f.s.schema->field_count;
    f.sums = session_results(&f.s, FOLD * f.fields * sizeof(*f.sums));
    size_t bytes;
    if (options->normalize || options->has_output || options->checksum)
        session_output(&f.s, &bytes);
    if (options->spin_ms > 0 && f.s.cuda == NULL)
        return fputs("gpu_client: --spin-ms needs batches on a GPU\n", stderr), 2;
    struct mark from = {.at = 0};
    signal(SIGTERM, on_stop);
    while (!stopped && (options->batches == 0 || f.batches < options->batches) && feed_one(&f)) {
        if (f.batches == 1 || f.batches == f.s.schema->depth)
            from = mark(&f);
        if (f.taken - from.at >= limit)
            break;
    }
    fold(&f, options->checksum ? f.batches % FOLD : 0);
    if (f.batches > 0)
        print_feed(&f, &from);
    fflush(stdout); /* whoever reads it has `linger_ms` from here on */
    sleep_ms(options->linger_ms);
    free(f.waits);
    session_close(&f.s);
    return f.batches == 0 || (options->batches > 0 && options->seconds <= 0 && f.batches < options->batches);
}

/* ---- trainer ---- */

#define ROUNDS_MAX 100
#define QUEUED_MAX 8 /* kernels that the trainer is ahead of the GPU */
#define RATE       100
#define WINDOW_S   2.0
#define KERNEL_MS  1
#define FED_ENOUGH 0.95 /* of the rate that was asked for */

enum mode { ALONE, OWN_KERNEL, TAKEN, FED, MODES };

static const char *const modes[] = {
    [ALONE] = "alone",           /* kernels, and nothing else */
    [OWN_KERNEL] = "own_kernel", /* and normalises a batch that it holds */
    [TAKEN] = "taken",           /* and takes batches and gives them back */
    [FED] = "fed",               /* and takes batches, normalises them, gives them back */
};

struct trainer {
    struct session s;
    bool has_output;
    const struct feedd_batch *held;
    cudaEvent_t events[QUEUED_MAX];
    double kernels_s[MODES][ROUNDS_MAX], steps_s[MODES][ROUNDS_MAX];
};

/* What it does beside its kernels, on the same stream. */
static void step(struct trainer *t, enum mode mode)
{
    const struct feedd_normalize_options options = FEEDD_NORMALIZE_OPTIONS_INIT;
    const struct feedd_batch *batch = mode == OWN_KERNEL ? t->held : session_next(&t->s);
    if (batch == NULL) {
        fprintf(stderr, "gpu_client: the stream ended\n");
        exit(2);
    }
    if (mode != TAKEN && t->has_output)
        session_image_ready(&t->s, batch);
    else if (mode != TAKEN)
        session_normalize(&t->s, batch, &options);
    if (mode != OWN_KERNEL)
        session_release(&t->s, batch);
}

static void run_window(struct trainer *t, enum mode mode, unsigned round, double seconds, double rate)
{
    uint64_t kernels = 0, steps = 0;
    t->held = mode == OWN_KERNEL ? session_next(&t->s) : NULL;
    const double began = seconds_now();
    for (double now; (now = seconds_now() - began) < seconds; kernels++) {
        if (kernels >= QUEUED_MAX)
            TRY(cudaEventSynchronize(t->events[kernels % QUEUED_MAX]));
        if (mode != ALONE && now * rate >= (double)steps) {
            step(t, mode);
            steps++;
        }
        TRY((cudaError_t)gpu_spin(KERNEL_MS, t->s.cuda));
        TRY(cudaEventRecord(t->events[kernels % QUEUED_MAX], t->s.cuda));
    }
    session_wait(&t->s);
    const double spent = seconds_now() - began;
    t->kernels_s[mode][round] = (double)kernels / spent;
    t->steps_s[mode][round] = (double)steps / spent;
    if (t->held != NULL)
        session_release(&t->s, t->held);
}

static void print_rates(const char *name, double values[MODES][ROUNDS_MAX], unsigned rounds)
{
    printf("\"%s\": {", name);
    for (int mode = 0; mode < MODES; mode++) {
        printf("%s\"%s\": [", mode > 0 ? ", " : "", modes[mode]);
        for (unsigned round = 0; round < rounds; round++)
            printf("%s%.2f", round > 0 ? ", " : "", values[mode][round]);
        fputs("]", stdout);
    }
    fputs("}, ", stdout);
}

int command_trainer(const struct options *options)
{
    struct trainer t = {.held = NULL};
    const unsigned rounds = options->rounds > ROUNDS_MAX ? ROUNDS_MAX : options->rounds > 0 ? options->rounds : 5;
    const double seconds = options->seconds > 0 ? options->seconds : WINDOW_S;
    const double rate = options->rate > 0 ? (double)options->rate : RATE;
    session_open(&t.s, options, options->open.device);
    size_t bytes;
    t.has_output = options->has_output;
    session_output(&t.s, &bytes);
    for (int i = 0; i < QUEUED_MAX; i++)
        TRY(cudaEventCreateWithFlags(&t.events[i], cudaEventBlockingSync | cudaEventDisableTiming));
    run_window(&t, FED, 0, seconds / 2, rate); /* warms up */
    say("training");
    for (unsigned round = 0; round < rounds; round++)
        for (int mode = 0; mode < MODES; mode++)
            run_window(&t, (enum mode)mode, round, seconds, rate);
    for (int i = 0; i < QUEUED_MAX; i++)
        TRY(cudaEventDestroy(t.events[i]));
    printf("{\"command\": \"trainer\", \"slot_bytes\": %" PRIu64 ", ", t.s.schema->slot_bytes);
    print_rates("kernels_per_s", t.kernels_s, rounds);
    print_rates("steps_per_s", t.steps_s, rounds);
    double medians[MODES], fed = median(t.steps_s[FED], rounds), taken = median(t.steps_s[TAKEN], rounds);
    for (int mode = 0; mode < MODES; mode++)
        medians[mode] = median(t.kernels_s[mode], rounds);
    printf("\"medians\": {\"alone\": %.2f, \"own_kernel\": %.2f, \"taken\": %.2f, \"fed\": %.2f}, "
           "\"fed_slowdown_percent\": %.3f, \"taken_slowdown_percent\": %.3f}\n",
           medians[ALONE], medians[OWN_KERNEL], medians[TAKEN], medians[FED],
           (1 - medians[FED] / medians[OWN_KERNEL]) * 100, (1 - medians[TAKEN] / medians[ALONE]) * 100);
    session_close(&t.s);
    return fed < FED_ENOUGH * rate || taken < FED_ENOUGH * rate;
}

/* ---- copies ---- */

#define COPY_RING    (64ull << 20)
#define COPIES_AHEAD 4
#define COPY_S       1.0

struct copies {
    uint8_t *from, *to;
    size_t slot_bytes, ring_bytes;
    uint32_t slots;
    int fd;
};

static void memory_failed(const char *what)
{
    fprintf(stderr, "gpu_client: %s: %s\n", what, strerror(errno));
    exit(2);
}

/* Sealed and registered as feedd's rings are, and of their depth. */
static void make_memory(struct copies *c, uint64_t bytes)
{
    const uint64_t fit = COPY_RING / bytes;
    c->slots = fit < 4 ? 4 : fit > 64 ? 64 : (uint32_t)fit;
    c->slot_bytes = (bytes + 4095) / 4096 * 4096;
    c->ring_bytes = c->slots * c->slot_bytes;
    c->fd = memfd_create("gpu_client", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (c->fd < 0 || ftruncate(c->fd, (off_t)c->ring_bytes) != 0)
        memory_failed("memfd");
    c->from = mmap(NULL, c->ring_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, c->fd, 0);
    if (c->from == MAP_FAILED)
        memory_failed("mmap");
    if (fcntl(c->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) != 0)
        memory_failed("sealing a memfd");
    uint64_t random = 1;
    random_fill(&random, c->from, c->ring_bytes);
    TRY(cudaHostRegister(c->from, c->ring_bytes, cudaHostRegisterDefault));
    TRY(cudaMalloc((void **)&c->to, c->ring_bytes));
}

static void free_memory(struct copies *c)
{
    TRY(cudaFree(c->to));
    TRY(cudaHostUnregister(c->from));
    munmap(c->from, c->ring_bytes);
    close(c->fd);
}

/* @return bytes a second */
static double measure_copies(const struct copies *c, uint64_t bytes, double seconds)
{
    cudaStream_t stream;
    cudaEvent_t events[COPIES_AHEAD];
    uint64_t count = 0;
    TRY(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (int i = 0; i < COPIES_AHEAD; i++)
        TRY(cudaEventCreateWithFlags(&events[i], cudaEventDisableTiming));
    const double began = seconds_now();
    for (; seconds_now() - began < seconds; count++) {
        if (count >= COPIES_AHEAD)
            TRY(cudaEventSynchronize(events[count % COPIES_AHEAD]));
        const size_t at = count % c->slots * c->slot_bytes;
        TRY(cudaMemcpyAsync(c->to + at, c->from + at, bytes, cudaMemcpyHostToDevice, stream));
        TRY(cudaEventRecord(events[count % COPIES_AHEAD], stream));
    }
    TRY(cudaStreamSynchronize(stream));
    const double spent = seconds_now() - began;
    for (int i = 0; i < COPIES_AHEAD; i++)
        TRY(cudaEventDestroy(events[i]));
    TRY(cudaStreamDestroy(stream));
    return (double)(count * bytes) / spent;
}

int command_copies(const struct options *options)
{
    need_device();
    fputs("{\"command\": \"copies\", \"sizes\": [", stdout);
    for (uint32_t i = 0; i < options->size_count; i++) {
        struct copies c;
        const uint64_t bytes = options->sizes[i] > 0 ? options->sizes[i] : 1;
        make_memory(&c, bytes);
        measure_copies(&c, bytes, 0.1); /* warms up */
        const double rate = measure_copies(&c, bytes, options->seconds > 0 ? options->seconds : COPY_S);
        printf("%s{\"bytes\": %" PRIu64 ", \"gb_per_s\": %.3f, \"copies_per_s\": %.1f}", i > 0 ? ", " : "", bytes,
               rate / 1e9, rate / (double)bytes);
        free_memory(&c);
    }
    puts("]}");
    return 0;
}
