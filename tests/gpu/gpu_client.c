/* gpu_client.c - a client of feedd that keeps batches on a GPU: what they hold, when they go back, what is left.
 *
 *   gpu_client COMMAND [SOURCE] [options]
 *
 *   digest SOURCE    checksums of --batches batches, by kernels on the GPU, or with --device host by the CPU
 *   check SOURCE     feedd_normalize() and feedd_batch_read() on the GPU against those on the host, bit for bit
 *   poke SOURCE      writes to a batch that it holds, by a kernel; says whether it could
 *   poison SOURCE    holds a batch for --hold-ms, says "poisoned" having written to it, waits to be killed
 *   late SOURCE      gives each batch back at once, while a kernel that reads it later is still queued
 *   hold SOURCE      queues kernels of --spin-ms together that read a batch, says "holding", waits to be killed
 *   feed SOURCE      takes batches for --seconds, or --batches, or until SIGTERM, and says how fast and how smoothly
 *                    they came
 *   trainer SOURCE   what feeding costs a process that runs kernels one after the other
 *   copies           host to GPU copies from memory like feedd's, one after the other, of each --bytes
 *   memory           the GPU's memory
 *   ring SOURCE      bytes of the GPU that opening a stream takes
 *
 * Happy path: every command prints one line of JSON, as its last.
 * What can fail: a comparison (exit code 1); the daemon, CUDA, the options (2); there is no GPU (77).
 * Threads: one, and libfeedd's. */
#include "gpu_client.h"

#include <getopt.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#define BATCHES_DEFAULT 20
#define HOLD_STEPS      16 /* times that `hold` reads its batch */
#define TAKE_MS         30000

void must(int status, const struct feedd_error *err)
{
    if (status == 0)
        return;
    fflush(stdout);
    fprintf(stderr, "gpu_client: %s\n", err->message);
    exit(2);
}

double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

void say(const char *word)
{
    puts(word);
    fflush(stdout);
}

void sleep_ms(unsigned ms)
{
    if (ms > 0) /* not even for nothing: that takes as long as many batches */
        nanosleep(&(struct timespec){(time_t)(ms / 1000), (long)(ms % 1000) * 1000000}, NULL);
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

double median(double *values, size_t count)
{
    qsort(values, count, sizeof(*values), ascending);
    return (values[(count - 1) / 2] + values[count / 2]) / 2;
}

/* ---- a session ---- */

void *allocate(size_t bytes)
{
    void *memory = malloc(bytes);
    if (memory == NULL) {
        fprintf(stderr, "gpu_client: no memory for %zu bytes\n", bytes);
        exit(2);
    }
    return memory;
}

void session_open(struct session *s, const struct options *options, const char *device)
{
    struct feedd_error err;
    struct feedd_open_options open = options->open;
    *s = (struct session){.cuda = NULL};
    open.device = device;
    open.output = options->has_output ? &options->output : NULL;
    if (device != NULL && strcmp(device, "host") != 0) {
        need_device();
        TRY(cudaStreamCreateWithFlags(&s->cuda, cudaStreamNonBlocking));
    }
    must(feedd_connect(options->socket, &s->client, &err), &err);
    const int status = feedd_open(s->client, options->source, &open, &s->stream, &err);
    if (status != 0) { /* which may be what is wanted: nothing is left behind */
        session_close(s);
        must(status, &err);
    }
    s->schema = feedd_stream_schema(s->stream);
    if (options->has_output && s->schema->normalize == FEEDD_NORMALIZE_CLIENT)
        s->own = options->output;
}

void session_close(struct session *s)
{
    feedd_client_close(s->client);
    if (s->cuda == NULL) {
        free(s->results);
        free(s->output);
        return;
    }
    TRY(cudaFreeHost(s->results));
    TRY(cudaFree(s->output));
    TRY(cudaStreamDestroy(s->cuda));
}

const struct feedd_batch *session_next(struct session *s)
{
    struct feedd_error err;
    const struct feedd_batch *batch;
    const int status = feedd_next(s->stream, TAKE_MS, &batch, &err);
    if (status == FEEDD_E_END)
        return NULL;
    must(status, &err);
    return batch;
}

void session_release(struct session *s, const struct feedd_batch *batch)
{
    struct feedd_error err;
    must(feedd_release(batch, s->cuda, &err), &err);
}

void session_wait(const struct session *s)
{
    if (s->cuda != NULL)
        TRY(cudaStreamSynchronize(s->cuda));
}

void *session_results(struct session *s, size_t bytes)
{
    if (s->cuda == NULL)
        s->results = allocate(bytes);
    else
        TRY(cudaHostAlloc(&s->results, bytes, cudaHostAllocDefault));
    return s->results;
}

uint32_t session_image(const struct session *s)
{
    for (uint32_t i = 0; i < s->schema->field_count; i++)
        if (s->schema->fields[i].dtype == FEEDD_U8 && s->schema->fields[i].ndim == 3)
            return i;
    fprintf(stderr, "gpu_client: %s has no field of uint8 images\n", s->schema->source);
    exit(2);
}

void *session_output(struct session *s, size_t *bytes)
{
    s->output_bytes = *bytes = s->schema->slot_bytes * sizeof(float);
    if (s->cuda == NULL)
        s->output = allocate(*bytes);
    else
        TRY(cudaMalloc(&s->output, *bytes));
    return s->output;
}

void session_normalize(const struct session *s, const struct feedd_batch *batch,
                       const struct feedd_normalize_options *options)
{
    struct feedd_error err;
    must(feedd_normalize(batch, session_image(s), options, s->output, s->output_bytes, s->cuda, &err), &err);
}

void session_image_ready(const struct session *s, const struct feedd_batch *batch)
{
    struct feedd_error err;
    if (s->own.size != 0)
        session_normalize(s, batch, &s->own);
    else if (s->cuda != NULL && s->schema->views_on_host)
        must(feedd_batch_copy(batch, 0, s->output, s->output_bytes, s->cuda, &err), &err);
}

static uint64_t checksum(const uint8_t *bytes, size_t count)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += (uint64_t)(bytes[i] + 1) * (i * 2654435761u + 12345);
    return sum;
}

void session_checksum(const struct session *s, const struct feedd_batch *batch, uint64_t *sums)
{
    for (uint32_t i = 0; i < s->schema->field_count; i++) {
        struct feedd_view view;
        feedd_batch_view(batch, i, &view);
        if (s->own.size != 0 && i == session_image(s)) {
            session_normalize(s, batch, &s->own);
            view.data = s->output;
            view.bytes *= feedd_dtype_bytes(s->own.dtype);
        } else if (s->cuda != NULL && s->schema->views_on_host) {
            struct feedd_error err;
            must(feedd_batch_copy(batch, i, s->output, s->output_bytes, s->cuda, &err), &err);
            view.data = s->output;
        }
        if (s->cuda == NULL)
            sums[i] = checksum(view.data, view.bytes);
        else
            TRY((cudaError_t)gpu_checksum(view.data, view.bytes, &sums[i], s->cuda));
    }
}

uint64_t session_bytes(const struct session *s, const struct feedd_batch *batch)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < s->schema->field_count; i++) {
        struct feedd_view view;
        feedd_batch_view(batch, i, &view);
        bytes += view.bytes;
    }
    return bytes;
}

/* ---- commands ---- */

static int command_digest(const struct options *options)
{
    const uint64_t most = options->batches != 0 ? options->batches : BATCHES_DEFAULT;
    struct session s;
    session_open(&s, options, options->open.device);
    const uint32_t fields = s.schema->field_count;
    uint64_t *sums = session_results(&s, most * fields * sizeof(*sums)), count = 0;
    size_t bytes;
    session_output(&s, &bytes);
    struct feedd_batch_info *infos = allocate(most * sizeof(*infos));
    const struct feedd_batch *batch;
    for (; count < most && (batch = session_next(&s)) != NULL; count++) {
        feedd_batch_info(batch, &infos[count]);
        session_checksum(&s, batch, &sums[count * fields]);
        if (count == 0)
            say("feeding");
        sleep_ms(options->hold_ms);
        session_release(&s, batch);
    }
    session_wait(&s);
    struct feedd_stream_stats stats;
    feedd_stream_stats(s.stream, &stats);
    printf("{\"command\": \"digest\", \"device\": \"%s\", \"transport\": \"%s\", \"normalize\": %d, "
           "\"reconnects\": %u, \"batches\": [",
           s.schema->device, s.schema->transport, s.schema->normalize, stats.reconnects);
    for (uint64_t i = 0; i < count; i++) {
        printf("%s{\"seq\": %" PRIu64 ", \"epoch\": %" PRIu64 ", \"position\": %" PRIu64 ", \"count\": %u, "
               "\"checksums\": [",
               i > 0 ? ", " : "", infos[i].seq, infos[i].epoch, infos[i].position, infos[i].count);
        for (uint32_t field = 0; field < fields; field++)
            printf("%s\"%016" PRIx64 "\"", field > 0 ? ", " : "", sums[i * fields + field]);
        fputs("]}", stdout);
    }
    puts("]}");
    free(infos);
    session_close(&s);
    return 0;
}

/* How many of the first `queued` batches have been read, the first `done` of them known. */
static uint64_t count_done(const cudaEvent_t *events, uint64_t done, uint64_t queued)
{
    while (done < queued) {
        const cudaError_t state = cudaEventQuery(events[done]);
        if (state == cudaErrorNotReady)
            break;
        TRY(state);
        done++;
    }
    return done;
}

static int command_late(const struct options *options)
{
    const uint64_t most = options->batches != 0 ? options->batches : 200;
    const unsigned spin_ms = options->spin_ms != 0 ? options->spin_ms : 50;
    struct session s, host;
    session_open(&s, options, options->open.device);
    session_open(&host, options, "host");
    const uint32_t fields = s.schema->field_count;
    uint64_t *sums = session_results(&s, most * fields * sizeof(*sums));
    uint64_t *expected = session_results(&host, fields * sizeof(*expected));
    size_t bytes;
    session_output(&s, &bytes);
    cudaEvent_t *events = allocate(most * sizeof(cudaEvent_t));
    uint64_t count = 0, done = 0, in_flight = 0, wrong = 0;
    const struct feedd_batch *batch;
    for (; count < most && (batch = session_next(&s)) != NULL; count++) {
        TRY((cudaError_t)gpu_spin(spin_ms, s.cuda));
        session_checksum(&s, batch, &sums[count * fields]);
        TRY(cudaEventCreateWithFlags(&events[count], cudaEventDisableTiming));
        TRY(cudaEventRecord(events[count], s.cuda));
        session_release(&s, batch);
        done = count_done(events, done, count + 1);
        if (count + 1 - done > in_flight)
            in_flight = count + 1 - done;
    }
    session_wait(&s);
    for (uint64_t i = 0; i < count && (batch = session_next(&host)) != NULL; i++) {
        session_checksum(&host, batch, expected);
        wrong += memcmp(expected, &sums[i * fields], fields * sizeof(*sums)) != 0;
        session_release(&host, batch);
        TRY(cudaEventDestroy(events[i]));
    }
    printf("{\"command\": \"late\", \"batches\": %" PRIu64 ", \"spin_ms\": %u, \"in_flight\": %" PRIu64
           ", \"depth\": %u, \"wrong\": %" PRIu64 "}\n",
           count, spin_ms, in_flight, s.schema->depth, wrong);
    free(events);
    session_close(&host);
    session_close(&s);
    return count < most || wrong > 0 || in_flight < 2;
}

static int command_poke(const struct options *options)
{
    struct session s;
    struct feedd_view view;
    session_open(&s, options, options->open.device);
    const struct feedd_batch *batch = session_next(&s);
    if (batch == NULL)
        return 2;
    feedd_batch_view(batch, 0, &view);
    say("poking");
    TRY((cudaError_t)gpu_fill((void *)(uintptr_t)view.data, view.bytes, 0xAA, s.cuda));
    const cudaError_t error = cudaStreamSynchronize(s.cuda);
    printf("{\"command\": \"poke\", \"transport\": \"%s\", \"error\": \"%s\"}\n", s.schema->transport,
           cudaGetErrorName(error));
    fflush(stdout);
    _exit(0); /* its context may be of no use any more */
}

static int command_poison(const struct options *options)
{
    struct session s;
    struct feedd_view view;
    session_open(&s, options, options->open.device);
    const struct feedd_batch *batch = session_next(&s);
    if (batch == NULL)
        return 2;
    feedd_batch_view(batch, 0, &view);
    say("holding");
    sleep_ms(options->hold_ms);
    TRY((cudaError_t)gpu_fill((void *)(uintptr_t)view.data, view.bytes, 0xAA, s.cuda));
    session_wait(&s);
    say("poisoned");
    pause();
    return 1; /* it should have been killed */
}

static int command_hold(const struct options *options)
{
    struct session s;
    session_open(&s, options, options->open.device);
    uint64_t *sums = session_results(&s, s.schema->field_count * sizeof(*sums));
    size_t bytes;
    session_output(&s, &bytes);
    const struct feedd_batch *batch = session_next(&s);
    for (int i = 0; batch != NULL && i < HOLD_STEPS; i++) {
        TRY((cudaError_t)gpu_spin((options->spin_ms + HOLD_STEPS - 1) / HOLD_STEPS, s.cuda));
        session_checksum(&s, batch, sums);
    }
    say("holding");
    pause();
    return 1; /* it should have been killed */
}

static size_t free_on_gpu(size_t *total)
{
    size_t bytes;
    TRY(cudaMemGetInfo(&bytes, total));
    return bytes;
}

static int command_ring(const struct options *options)
{
    struct session s;
    need_device(); /* with a context of its own */
    TRY(cudaFree(NULL));
    size_t total;
    const size_t before = free_on_gpu(&total);
    session_open(&s, options, options->open.device);
    const struct feedd_batch *batch = session_next(&s);
    const size_t after = free_on_gpu(&total);
    printf("{\"command\": \"ring\", \"transport\": \"%s\", \"gpu_bytes\": %zu}\n", s.schema->transport, before - after);
    fflush(stdout);
    sleep_ms(options->linger_ms);
    session_release(&s, batch);
    session_close(&s);
    return 0;
}

static int command_memory(const struct options *options)
{
    size_t total;
    (void)options;
    need_device();
    const size_t free_bytes = free_on_gpu(&total);
    printf("{\"command\": \"memory\", \"free\": %zu, \"total\": %zu}\n", free_bytes, total);
    return 0;
}

/* ---- options ---- */

static const struct command {
    const char *name;
    int (*run)(const struct options *options);
    bool source, gpu; /* needs the name of one; nothing without batches on a GPU */
} commands[] = {
    {"digest", command_digest, true, false},  {"check", command_check, true, true},
    {"poke", command_poke, true, true},       {"poison", command_poison, true, true},
    {"late", command_late, true, true},       {"hold", command_hold, true, true},
    {"feed", command_feed, true, false},      {"trainer", command_trainer, true, true},
    {"copies", command_copies, false, false}, {"memory", command_memory, false, false},
    {"ring", command_ring, true, true},
};

enum {
    OPTION_SOCKET,
    OPTION_DEVICE,
    OPTION_ORDER,
    OPTION_GROUP,
    OPTION_BATCH_SIZE,
    OPTION_SEED,
    OPTION_DEPTH,
    OPTION_MEMBERS,
    OPTION_RECONNECT,
    OPTION_BATCHES,
    OPTION_SECONDS,
    OPTION_SPIN,
    OPTION_HOLD,
    OPTION_LINGER,
    OPTION_ROUNDS,
    OPTION_RATE,
    OPTION_NORMALIZE,
    OPTION_CHECKSUM,
    OPTION_MODE,
    OPTION_TRANSPORT,
    OPTION_OUTPUT,
    OPTION_BYTES
};

static const char usage[] =
    "usage: gpu_client COMMAND [SOURCE] [options]\n"
    "commands: digest, check, poke, poison, late, hold, feed, trainer, ring with SOURCE; copies, memory\n"
    "  --socket PATH  --device D (cuda)  --order O  --seed S  --batch-size B  --depth D\n"
    "  --group NAME --members N   a broadcast group\n"
    "  --reconnect                go on after a restart of the daemon\n"
    "  --batches N                digest, check, late, feed\n"
    "  --seconds S                feed; copies: of each size; trainer: of a window\n"
    "  --spin-ms M                late, hold, feed: of a kernel before each batch is given back\n"
    "  --hold-ms M                digest, feed, poison: wait before each batch is given back, or spoilt\n"
    "  --linger-ms M              feed, ring: keep the stream open at the end\n"
    "  --normalize                feed\n"
    "  --every-checksum           feed: of all batches, depending on their order\n"
    "  --rounds N  --rate R       trainer: windows of each kind, batches a second\n"
    "  --bytes N                  copies; may be repeated\n"
    "  --transport T              ipc, fd, host\n"
    "  --mode M  --output O       who normalises: client, daemon, cpu; to what: f32-nchw, u8-nhwc...\n";

static int number_option(const char *text, uint64_t most, uint64_t *out)
{
    char *end;
    const unsigned long long number = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != '\0' || number > most)
        return fprintf(stderr, "gpu_client: '%s' is no number up to %" PRIu64 "\n", text, most), 2;
    *out = number;
    return 0;
}

static int unsigned_option(const char *text, unsigned *out)
{
    uint64_t number = 0;
    const int wrong = number_option(text, 1000000000, &number);
    *out = (unsigned)number;
    return wrong;
}

static int order_option(const char *text, int32_t *order)
{
    *order = strcmp(text, "shuffle") == 0 ? FEEDD_ORDER_SHUFFLE : FEEDD_ORDER_SEQUENTIAL;
    return *order == FEEDD_ORDER_SHUFFLE || strcmp(text, "sequential") == 0 ? 0 : 2;
}

static int mode_option(const char *text, int32_t *mode)
{
    static const char *const names[] = {"auto", "client", "daemon", "cpu"}; /* as enum feedd_normalize_mode counts */
    for (*mode = 0; *mode < 4; ++*mode)
        if (strcmp(text, names[*mode]) == 0)
            return 0;
    return 2;
}

/* "f32-nchw": a dtype and a layout; with mean and std as ImageNet has them. */
static int output_option(const char *text, struct options *options)
{
    struct feedd_normalize_options output = FEEDD_NORMALIZE_OPTIONS_INIT;
    const double mean[4] = {0.485, 0.456, 0.406, 0.5}, std[4] = {0.229, 0.224, 0.225, 0.25};
    const char *layout = strchr(text, '-');
    if (layout == NULL || (strcmp(layout, "-nchw") != 0 && strcmp(layout, "-nhwc") != 0))
        return 2;
    for (output.dtype = FEEDD_U8; output.dtype <= FEEDD_F32; output.dtype++) {
        const char *name = feedd_dtype_name(output.dtype);
        if (strncmp(text, name, strlen(name)) == 0 && text + strlen(name) == layout)
            break;
    }
    output.nchw = layout[2] == 'c';
    for (int i = 0; i < 4; i++) { /* int8: pixels less 127.5; by ImageNet's all would be -2 to 2 */
        output.mean[i] = output.dtype == FEEDD_I8 ? 0.5 : mean[i];
        output.std[i] = output.dtype == FEEDD_I8 ? 1.0 / 255 : std[i];
    }
    options->output = output;
    options->has_output = true;
    return output.dtype <= FEEDD_F32 ? 0 : 2;
}

/* @return 0, or 2 for one that is wrong */
static int parse_option(int option, const char *text, struct options *options)
{
    struct feedd_open_options *open = &options->open;
    int wrong = 0;
    switch (option) {
    case OPTION_SOCKET:
        options->socket = text;
        break;
    case OPTION_DEVICE:
        open->device = text;
        break;
    case OPTION_ORDER:
        wrong = order_option(text, &open->order);
        break;
    case OPTION_GROUP:
        open->share = FEEDD_SHARE_BROADCAST;
        open->group = text;
        break;
    case OPTION_BATCH_SIZE:
        wrong = unsigned_option(text, &open->batch_size);
        break;
    case OPTION_SEED:
        open->has_seed = 1;
        wrong = number_option(text, UINT64_MAX, &open->seed);
        break;
    case OPTION_DEPTH:
        wrong = unsigned_option(text, &open->depth);
        break;
    case OPTION_MEMBERS:
        wrong = unsigned_option(text, &open->members);
        break;
    case OPTION_RECONNECT:
        open->reconnect = 1;
        break;
    case OPTION_BATCHES:
        wrong = number_option(text, 100000000, &options->batches);
        break;
    case OPTION_SECONDS:
        options->seconds = strtod(text, NULL);
        wrong = options->seconds > 0 ? 0 : 2;
        break;
    case OPTION_SPIN:
        wrong = unsigned_option(text, &options->spin_ms);
        break;
    case OPTION_HOLD:
        wrong = unsigned_option(text, &options->hold_ms);
        break;
    case OPTION_LINGER:
        wrong = unsigned_option(text, &options->linger_ms);
        break;
    case OPTION_ROUNDS:
        wrong = unsigned_option(text, &options->rounds);
        break;
    case OPTION_RATE:
        wrong = number_option(text, 1000000, &options->rate);
        break;
    case OPTION_NORMALIZE:
        options->normalize = true;
        break;
    case OPTION_CHECKSUM:
        options->checksum = true;
        break;
    case OPTION_MODE:
        wrong = mode_option(text, &open->normalize);
        break;
    case OPTION_TRANSPORT:
        open->transport = text;
        break;
    case OPTION_OUTPUT:
        wrong = output_option(text, options);
        break;
    case OPTION_BYTES:
        wrong = options->size_count == SIZES_MAX
                    ? 2
                    : number_option(text, 1ull << 33, &options->sizes[options->size_count++]);
        break;
    default:
        wrong = 2; /* getopt has said why */
    }
    return wrong;
}

static int parse_options(int argc, char **argv, struct options *options)
{
    static const struct option names[] = {
        {"socket", required_argument, NULL, OPTION_SOCKET},
        {"device", required_argument, NULL, OPTION_DEVICE},
        {"order", required_argument, NULL, OPTION_ORDER},
        {"group", required_argument, NULL, OPTION_GROUP},
        {"batch-size", required_argument, NULL, OPTION_BATCH_SIZE},
        {"seed", required_argument, NULL, OPTION_SEED},
        {"depth", required_argument, NULL, OPTION_DEPTH},
        {"members", required_argument, NULL, OPTION_MEMBERS},
        {"reconnect", no_argument, NULL, OPTION_RECONNECT},
        {"batches", required_argument, NULL, OPTION_BATCHES},
        {"seconds", required_argument, NULL, OPTION_SECONDS},
        {"spin-ms", required_argument, NULL, OPTION_SPIN},
        {"hold-ms", required_argument, NULL, OPTION_HOLD},
        {"linger-ms", required_argument, NULL, OPTION_LINGER},
        {"rounds", required_argument, NULL, OPTION_ROUNDS},
        {"rate", required_argument, NULL, OPTION_RATE},
        {"normalize", no_argument, NULL, OPTION_NORMALIZE},
        {"every-checksum", no_argument, NULL, OPTION_CHECKSUM},
        {"bytes", required_argument, NULL, OPTION_BYTES},
        {"mode", required_argument, NULL, OPTION_MODE},
        {"transport", required_argument, NULL, OPTION_TRANSPORT},
        {"output", required_argument, NULL, OPTION_OUTPUT},
        {NULL, 0, NULL, 0},
    };
    int option, wrong = 0;
    options->open.device = "cuda";
    while (wrong == 0 && (option = getopt_long(argc, argv, "", names, NULL)) != -1)
        wrong = parse_option(option, optarg, options);
    return wrong;
}

int main(int argc, char **argv)
{
    struct options options = {.open = FEEDD_OPEN_OPTIONS_INIT};
    const struct command *command = NULL;
    const int wrong = parse_options(argc, argv, &options);
    for (size_t i = 0; i < sizeof(commands) / sizeof(*commands) && optind < argc; i++)
        if (strcmp(commands[i].name, argv[optind]) == 0)
            command = &commands[i];
    if (wrong != 0 || command == NULL || optind + 1 + command->source != argc)
        return fputs(usage, stderr), 2;
    options.source = argv[optind + 1];
    if (command->gpu && strcmp(options.open.device, "host") == 0)
        return fprintf(stderr, "gpu_client: %s needs batches on a GPU\n", command->name), 2;
    const int rc = command->run(&options);
    return fflush(stdout) == 0 ? rc : 2;
}
