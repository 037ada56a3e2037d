/* fuzz_wire.c - the daemon's control protocol, with its state: up to four clients and a real server in one process.
 *
 * Input: operations, two bytes each and what they take: the operation (see `operations` at the end), and whose it is.
 * The server listens on a socket in a temporary folder and serves tiny datasets of known content; it is made once and
 * lives on from input to input, unless one stops it. The clients keep track of what the daemon has told them, so that
 * sequences get somewhere: stream numbers, nonces read from the rings, batches that were announced.
 *
 * What has to hold, at every answer: it is one that the protocol allows now; batches come in order, in slots that the
 * client doesn't hold; records and samples are what the dataset says, and stay so until they are released.
 * What has to hold after every input, once all clients have gone: no connection, group, ring or open dataset is left,
 * no descriptor and no mapping.
 * Threads: one, which is the loop thread and all clients; and the server's two workers. Workers make an input's
 * outcome vary a little: `settle` and `wait` wait for them, `turn` doesn't.
 * FEEDD_FUZZ_LOG=1 shows what the daemon logs. */
#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sanitizer/asan_interface.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "clock.h"
#include "connection.h"
#include "fuzz.h"
#include "group.h"
#include "log.h"
#include "server.h"
#include "slot.h"
#include "stream.h"
#include "token.h"
#include "wire.h"

#define CLIENTS     4u
#define VIEWS       8u   /* streams that a client keeps track of */
#define HELD_MAX    256u /* batches that it may hold of each: more slots than ring_memory_max allows */
#define SIDE        4u   /* images are SIDE x SIDE */
#define LABELS      10u
#define SETTLE_NS   (10 * 1000000000ull) /* nothing here takes that long */
#define FDS_MAX     8u                   /* that one packet carries */
#define PACKET_ROOM (WIRE_MAX_PACKET + 64)

static const char config_text[] = "daemon:\n"
                                  "  workers: 2\n"
                                  "  ring_memory_max: 512K\n"
                                  "  dataset_memory_max: 8K\n" /* `digits` and `more` don't fit together */
                                  "  clients_max: 3\n"         /* one fewer than CLIENTS */
                                  "  streams_per_client_max: 4\n"
                                  "datasets:\n"
                                  "  digits: {reader: idx, images: digits, labels: digits-labels,\n"
                                  "           classes: [zero, one, two, three, four, five, six, seven, eight, nine]}\n"
                                  "  more: {reader: idx, images: more, labels: more-labels}\n"
                                  "  plain: {reader: idx, images: plain}\n"
                                  "  bad: {reader: idx, images: digits, labels: plain-labels}\n"
                                  "  gone: {reader: idx, images: nowhere}\n"
                                  "streams:\n"
                                  "  train: {dataset: digits, batch_size: 16, order: shuffle, seed: 1, depth: 4}\n"
                                  "  once: {dataset: digits, batch_size: 64, epochs: 1, tail: partial, depth: 3}\n"
                                  "  few: {dataset: plain, batch_size: 8, epochs: 2, tail: pad, depth: 2}\n"
                                  "  bad: {dataset: bad, batch_size: 16}\n"
                                  "  fat: {dataset: digits, batch_size: 4096, tail: pad, depth: 64}\n";
static const char *const sources[] = {"train", "once", "few",   "bad",  "fat",   "digits",
                                      "more",  "gone", "plain", "none", "train "};
#define SOURCE_COUNT (sizeof(sources) / sizeof(sources[0]))

/* A stream as a client sees it. */
struct view {
    uint32_t number;
    int meta_fd, ring_fd;
    uint32_t depth, batch_size;
    uint64_t slot_bytes, record_bytes, sample_count, fingerprint, nonce;
    int has_labels, sequential;
    uint32_t world_size;
    int attached, ended, closed; /* ATTACH sent; END received; CLOSE sent, or told that it failed */
    int lost;                    /* released what it wasn't told of: it doesn't know any more what it holds */
    uint64_t next_seq;           /* of the batch that is announced next, and where it begins */
    uint64_t next_epoch, next_position;
    uint32_t held;
    struct held {
        uint32_t slot;
        uint64_t seq;
    } batches[HELD_MAX];
};

struct client {
    int fd; /* -1: not connected */
    int welcomed;
    int doomed;   /* broke the protocol: has to be closed as soon as the daemon has read everything */
    uint32_t fds; /* descriptors that go with the next packet */
    uint32_t view_count;
    struct view views[VIEWS];
};

static struct server *server;
static struct config *config;
static char folder[] = "/tmp/feedd-fuzz-XXXXXX"; /* not in $TMPDIR: a socket's name is short */
static const char *const files[] = {"feedd.conf", "digits",       "digits-labels", "more",       "more-labels",
                                    "plain",      "plain-labels", "socket",        "socket.lock"};
static int fds_without_server, fds_idle;
static uint32_t starving; /* as op_starve() says */
static struct client clients[CLIENTS];
static uint8_t packet_room[PACKET_ROOM];
static struct wire_arena answers; /* what clients unpack */

/* In place of log.c, which the linker leaves out then: messages are made, and not written. */
void log_write(enum log_level level, const char *format, ...)
{
    static int shown = -1;
    char line[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    if (shown < 0)
        shown = getenv("FEEDD_FUZZ_LOG") != NULL;
    if (shown)
        fprintf(stderr, "<%d>%s\n", (int)level, line);
}

void log_bug(const char *file, int line, const char *expression)
{
    fprintf(stderr, "bug at %s:%d: not true: %s\n", file, line, expression);
    abort();
}

/* ---- the datasets and the server ---- */

static uint8_t pixel_of(uint64_t sample, uint64_t i)
{
    return (uint8_t)(sample * 31 + i * 7 + 3);
}

static int64_t label_of(uint64_t sample)
{
    return (int64_t)(sample % LABELS);
}

static const char *path_of(const char *name)
{
    static char path[sizeof(folder) + 32];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}

static void write_file(const char *name, const void *bytes, size_t size)
{
    FILE *file = fopen(path_of(name), "wb");
    FUZZ_CHECK(file != NULL && fwrite(bytes, 1, size, file) == size && fclose(file) == 0);
}

static void write_dataset(const char *images, const char *labels, uint8_t count)
{
    uint8_t bytes[16 + 255 * SIDE * SIDE] = {0, 0, 8, 3, 0, 0, 0, count, 0, 0, 0, SIDE, 0, 0, 0, SIDE};
    for (uint32_t s = 0; s < count; s++)
        for (uint32_t i = 0; i < SIDE * SIDE; i++)
            bytes[16 + s * SIDE * SIDE + i] = pixel_of(s, i);
    write_file(images, bytes, 16 + (size_t)count * SIDE * SIDE);
    uint8_t values[8 + 255] = {0, 0, 8, 1, 0, 0, 0, count};
    for (uint32_t s = 0; s < count; s++)
        values[8 + s] = (uint8_t)label_of(s);
    write_file(labels, values, 8 + (size_t)count);
}

static void remove_folder(void)
{
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++)
        unlink(path_of(files[i]));
    rmdir(folder);
}

/* 0: as many descriptors as one likes; else spare - 1 more than there are. */
static void limit_fds(uint32_t spare)
{
    struct rlimit limit;
    static rlim_t most;
    if (most == 0 && getrlimit(RLIMIT_NOFILE, &limit) == 0)
        most = limit.rlim_cur;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = spare == 0 ? most : (rlim_t)fuzz_next_fd() + spare - 1;
    setrlimit(RLIMIT_NOFILE, &limit);
}

/* Not pipes: sanitizers and libFuzzer start a symbolizer when they like, and the daemon makes none. */
static int count_fds(int show)
{
    DIR *dir = opendir("/proc/self/fd");
    FUZZ_CHECK(dir != NULL);
    int count = 0;
    struct dirent *entry;
    while ((entry = readdir(dir)) != NULL) {
        char target[256];
        ssize_t length = readlinkat(dirfd(dir), entry->d_name, target, sizeof(target));
        if (length < 5 || memcmp(target, "pipe:", 5) == 0)
            continue;
        count++;
        if (show)
            fprintf(stderr, "%s: %.*s\n", entry->d_name, (int)length, target);
    }
    closedir(dir);
    return count;
}

static int count_mappings(void)
{
    char line[512];
    int count = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    FUZZ_CHECK(maps != NULL);
    while (fgets(line, sizeof(line), maps) != NULL)
        count += strstr(line, "/memfd:feedd-") != NULL;
    fclose(maps);
    return count;
}

/* Neither a descriptor nor a mapping is left; else they are shown. */
static void check_fds(int due)
{
    int count = count_fds(0), mappings = count_mappings();
    if (count != due || mappings != 0) {
        fprintf(stderr, "%d descriptors, %d before; %d mappings\n", count, due, mappings);
        count_fds(1);
        abort();
    }
}

/* Called by the sanitizer, which needs descriptors to report something. */
__attribute__((visibility("default"))) void __asan_on_error(void)
{
    limit_fds(0);
}

static void run_loop(uv_run_mode mode)
{
    limit_fds(starving);
    uv_run(&server->loop, mode);
    limit_fds(0);
}

static void turn(void)
{
    run_loop(UV_RUN_NOWAIT);
}

static void prepare(void)
{
    uv_loop_t loop; /* what libuv keeps for the process is there before descriptors are counted */
    FUZZ_CHECK(uv_loop_init(&loop) == 0 && uv_loop_close(&loop) == 0);
    FUZZ_CHECK(mkdtemp(folder) != NULL);
    atexit(remove_folder);
    write_file("feedd.conf", config_text, sizeof(config_text) - 1);
    write_dataset("digits", "digits-labels", 200);
    write_dataset("more", "more-labels", 180);
    write_dataset("plain", "plain-labels", 20);
    struct feedd_error err;
    if (config_load(path_of("feedd.conf"), &config, &err) != 0) {
        fprintf(stderr, "%s\n", err.message);
        abort();
    }
    wire_arena_init(&answers);
    for (uint32_t c = 0; c < CLIENTS; c++)
        clients[c].fd = -1;
}

static void start(void)
{
    struct sigaction before[2]; /* the fuzzer's own */
    struct feedd_error err;
    sigaction(SIGTERM, NULL, &before[0]);
    sigaction(SIGINT, NULL, &before[1]);
    fds_without_server = count_fds(0);
    server = malloc(sizeof(*server));
    FUZZ_CHECK(server != NULL);
    if (server_init(server, config, path_of("socket"), &err) != 0) {
        fprintf(stderr, "%s\n", err.message);
        abort();
    }
    sigaction(SIGTERM, &before[0], NULL);
    sigaction(SIGINT, &before[1], NULL);
    turn();
    fds_idle = count_fds(0);
}

/* Something is under way that will report by itself: a worker has it. */
static int busy(void)
{
    const struct pipeline *pipeline = &server->pipeline;
    if (atomic_load(&pipeline->inbox.newest) != NULL)
        return 1;
    list_each (node, after, &pipeline->groups) {
        const struct stream *stream = container_of(node, struct group, node)->stream;
        if (stream->state == STREAM_OPENING || stream->state == STREAM_CLOSING || stream->in_flight > 0)
            return 1;
    }
    for (uint32_t i = 0; i < pipeline->dataset_count; i++)
        if (pipeline->datasets[i].state == DATASET_OPENING || pipeline->datasets[i].state == DATASET_CLOSING)
            return 1;
    return 0;
}

/* Runs the loop until `condition` is false, sleeping in between; the tick wakes it up once a second. */
static void run_while(int (*condition)(void))
{
    uint64_t began_ns = clock_ns();
    turn(); /* what has been sent arrives, and starts things */
    turn();
    while (condition()) {
        FUZZ_CHECK(clock_ns() - began_ns < SETTLE_NS);
        run_loop(UV_RUN_ONCE);
    }
}

static int in_use(void)
{
    return busy() || server->connection_count > 0 || !list_empty(&server->pipeline.groups);
}

static void check_idle(void)
{
    const struct pipeline *pipeline = &server->pipeline;
    FUZZ_CHECK(list_empty(&server->connections) && list_empty(&server->unflushed) && server->connection_count == 0);
    FUZZ_CHECK(list_empty(&pipeline->groups) && pipeline->ring_bytes == 0 && pipeline->dataset_bytes == 0);
    for (uint32_t i = 0; i < pipeline->dataset_count; i++) {
        const struct dataset *dataset = &pipeline->datasets[i];
        FUZZ_CHECK(dataset->state == DATASET_CLOSED && dataset->users == 0 && list_empty(&dataset->waiters));
    }
    check_fds(fds_idle);
}

/* ---- what the daemon answers ---- */

static struct view *view_of(struct client *client, uint32_t number)
{
    for (uint32_t i = 0; i < client->view_count; i++)
        if (client->views[i].number == number)
            return &client->views[i];
    return NULL;
}

/* Descriptors that the daemon shares can be read, and neither written nor resized. */
static void check_sealed(int fd, uint64_t bytes)
{
    uint8_t byte = 0;
    off_t size = lseek(fd, 0, SEEK_END);
    FUZZ_CHECK(size >= 0 && (uint64_t)size == bytes);
    FUZZ_CHECK(pwrite(fd, &byte, 1, 0) < 0 && ftruncate(fd, 0) < 0 && ftruncate(fd, size + 4096) < 0);
}

static void read_at(int fd, void *to, size_t bytes, uint64_t offset)
{
    FUZZ_CHECK(pread(fd, to, bytes, (off_t)offset) == (ssize_t)bytes);
}

static void on_stream(struct client *client, const Feedd__Stream *stream, struct wire_packet *packet)
{
    uint64_t ring_bytes = stream->slot_bytes * stream->depth;
    FUZZ_CHECK(packet->fd_count == (stream->class_names_bytes > 0 ? 3u : 2u));
    FUZZ_CHECK(stream->stream >= 1 && view_of(client, stream->stream) == NULL);
    FUZZ_CHECK(stream->depth >= 2 && stream->depth <= HELD_MAX && stream->n_fields == 3);
    check_sealed(packet->fds[0], (stream->record_bytes * stream->depth + SLOT_PAGE - 1) / SLOT_PAGE * SLOT_PAGE);
    check_sealed(packet->fds[1], ring_bytes + SLOT_PROOF_BYTES);
    if (packet->fd_count == 3)
        check_sealed(packet->fds[2], stream->class_names_bytes);
    if (client->view_count == VIEWS)
        return;
    struct view *view = &client->views[client->view_count++];
    memset(view, 0, offsetof(struct view, batches));
    view->number = stream->stream;
    view->depth = stream->depth;
    view->batch_size = stream->batch_size;
    view->slot_bytes = stream->slot_bytes;
    view->record_bytes = stream->record_bytes;
    view->sample_count = stream->sample_count;
    view->fingerprint = stream->fingerprint;
    view->has_labels = stream->class_count > 0;
    view->sequential = stream->order == FEEDD_ORDER_SEQUENTIAL;
    view->world_size = stream->world_size;
    view->next_epoch = stream->start_epoch;
    view->next_position = stream->start_position;
    view->meta_fd = packet->fds[0];
    view->ring_fd = packet->fds[1];
    if (packet->fd_count == 3)
        close(packet->fds[2]);
    packet->fd_count = 0; /* taken */
    read_at(view->ring_fd, &view->nonce, sizeof(view->nonce), ring_bytes);
}

/* The daemon has closed the connection, though the client may not have read that far: nothing is held any more. */
static int hung_up(const struct client *client)
{
    struct pollfd poll_fd = {.fd = client->fd};
    return poll(&poll_fd, 1, 0) == 1 && (poll_fd.revents & POLLHUP) != 0;
}

/* One batch that the client holds, as its record and its slot have it. */
static void check_batch(const struct view *view, struct held held)
{
    struct slot_record record;
    uint8_t pixels[SIDE * SIDE];
    int64_t label, index, listed;
    uint64_t record_at = held.slot * view->record_bytes, slot_at = held.slot * view->slot_bytes;
    read_at(view->meta_fd, &record, sizeof(record), record_at);
    FUZZ_CHECK(record.seq == held.seq && record.count >= 1 && record.count <= view->batch_size);
    FUZZ_CHECK(record.valid <= record.count && record.used_bytes <= view->slot_bytes);
    for (uint32_t i = 0; i < record.count; i += 1 + record.count / 4) { /* some of them: this is not what takes time */
        read_at(view->meta_fd, &listed, sizeof(listed), record_at + sizeof(record) + i * sizeof(listed));
        read_at(view->ring_fd, pixels, sizeof(pixels), slot_at + record.extents[0].offset + i * sizeof(pixels));
        read_at(view->ring_fd, &label, sizeof(label), slot_at + record.extents[1].offset + i * sizeof(label));
        read_at(view->ring_fd, &index, sizeof(index), slot_at + record.extents[2].offset + i * sizeof(index));
        FUZZ_CHECK(index == listed && index >= 0 && (uint64_t)index < view->sample_count);
        if (view->sequential && i < record.valid)
            FUZZ_CHECK((uint64_t)index == record.position + i);
        FUZZ_CHECK(label == (view->has_labels ? label_of((uint64_t)index) : -1));
        for (uint32_t p = 0; p < SIDE * SIDE; p++)
            FUZZ_CHECK(pixels[p] == pixel_of((uint64_t)index, p));
    }
}

/* One rank of one: a batch begins where the one before it has ended. */
static void check_place(struct view *view, struct held held)
{
    struct slot_record record;
    read_at(view->meta_fd, &record, sizeof(record), held.slot * view->record_bytes);
    FUZZ_CHECK(record.position < view->sample_count && record.next_position < view->sample_count);
    FUZZ_CHECK(record.epoch == view->next_epoch && record.position == view->next_position);
    FUZZ_CHECK(record.next_epoch == record.epoch ? record.next_position == record.position + view->batch_size
                                                 : record.next_epoch == record.epoch + 1 && record.next_position == 0);
    view->next_epoch = record.next_epoch;
    view->next_position = record.next_position;
}

static void on_ready(struct client *client, const Feedd__Ready *ready)
{
    struct view *view = view_of(client, ready->stream);
    FUZZ_CHECK(view != NULL && view->attached && !view->ended);
    FUZZ_CHECK(ready->n_slots == ready->n_seqs && ready->n_slots > 0);
    if (view->closed || view->lost || hung_up(client)) /* closed: crossed with our CLOSE */
        return;
    for (size_t i = 0; i < ready->n_slots; i++) {
        struct held held = {ready->slots[i], ready->seqs[i]};
        FUZZ_CHECK(held.slot < view->depth && held.seq == view->next_seq++ && view->held < view->depth);
        for (uint32_t h = 0; h < view->held; h++)
            FUZZ_CHECK(view->batches[h].slot != held.slot);
        view->batches[view->held++] = held;
        check_batch(view, held);
        if (view->world_size == 1)
            check_place(view, held);
    }
}

static void on_end(struct client *client, const Feedd__End *end)
{
    struct view *view = view_of(client, end->stream);
    FUZZ_CHECK(view != NULL && view->attached && !view->ended);
    view->ended = 1;
}

static void on_report(const Feedd__Report *report, const struct wire_packet *packet)
{
    static char text[1 << 20];
    FUZZ_CHECK(packet->fd_count == 1 && report->bytes < sizeof(text));
    check_sealed(packet->fds[0], report->bytes);
    read_at(packet->fds[0], text, report->bytes, 0);
    json_t *json = json_loadb(text, report->bytes, 0, NULL);
    FUZZ_CHECK(json != NULL && json_array_size(json_object_get(json, "datasets")) == config->dataset_count);
    FUZZ_CHECK(json_array_size(json_object_get(json, "clients")) >= 1);
    json_decref(json);
}

static void on_error(struct client *client, const Feedd__Error *error)
{
    FUZZ_CHECK(error->status < 0 && error->message[0] != '\0' && fuzz_is_utf8(error->message));
    struct view *view = error->has_stream ? view_of(client, error->stream) : NULL;
    if (view != NULL)
        view->closed = 1;
}

static void on_packet(struct client *client, struct wire_packet *packet)
{
    static const ProtobufCMessageDescriptor *const types[] = {
        [WIRE_WELCOME] = &feedd__welcome__descriptor, [WIRE_STREAM] = &feedd__stream__descriptor,
        [WIRE_READY] = &feedd__ready__descriptor,     [WIRE_END] = &feedd__end__descriptor,
        [WIRE_REPORT] = &feedd__report__descriptor,   [WIRE_ERROR] = &feedd__error__descriptor,
    };
    FUZZ_CHECK(packet->type <= WIRE_ERROR && types[packet->type] != NULL);
    const void *message = wire_unpack(&answers, types[packet->type], packet);
    FUZZ_CHECK(message != NULL);
    FUZZ_CHECK(packet->type == WIRE_ERROR || client->welcomed == (packet->type != WIRE_WELCOME));
    FUZZ_CHECK(packet->fd_count == 0 || packet->type == WIRE_STREAM || packet->type == WIRE_REPORT);
    switch (packet->type) {
    case WIRE_WELCOME:
        client->welcomed = 1;
        break;
    case WIRE_STREAM:
        on_stream(client, message, packet);
        break;
    case WIRE_READY:
        on_ready(client, message);
        break;
    case WIRE_END:
        on_end(client, message);
        break;
    case WIRE_REPORT:
        on_report(message, packet);
        break;
    default:
        on_error(client, message);
        break;
    }
    wire_packet_drop(packet);
}

/* ---- what clients do ---- */

/* Sends a packet, with the descriptors that were asked for. @return 0 when it is on its way */
static int send_bytes(struct client *client, const void *bytes, size_t size)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int) * FDS_MAX)];
        struct cmsghdr align;
    } control = {{0}};
    struct iovec iov = {(void *)(uintptr_t)bytes, size};
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
    uint32_t fds = client->fds;
    if (fds > 0) {
        message.msg_control = &control;
        message.msg_controllen = CMSG_SPACE(sizeof(int) * fds);
        struct cmsghdr *c = CMSG_FIRSTHDR(&message);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * fds);
        for (uint32_t i = 0; i < fds; i++) /* its own socket, too: a cycle, while it is under way */
            memcpy(CMSG_DATA(c) + i * sizeof(int), i % 2 == 0 ? &(int){STDERR_FILENO} : &client->fd, sizeof(int));
        client->fds = 0;
    }
    if (sendmsg(client->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) != (ssize_t)size)
        return -1;
    client->doomed |= fds > 0 || size > WIRE_MAX_PACKET;
    return 0;
}

static int send_message(struct client *client, enum wire_type type, const ProtobufCMessage *message)
{
    size_t bytes = wire_pack(packet_room, WIRE_MAX_PACKET, type, message);
    return bytes == 0 ? -1 : send_bytes(client, packet_room, bytes);
}

/* Text of up to 255 bytes without NUL, which has to be freed. */
static char *take_text(struct fuzz_input *in)
{
    const uint8_t *bytes;
    size_t size = fuzz_bytes(in, fuzz_byte(in), &bytes);
    char *text = strndup((const char *)bytes, size);
    FUZZ_CHECK(text != NULL);
    return text;
}

static struct view unknown; /* a stream that the client hasn't been told of */

/* One of the client's streams (below 128), or the stream of any number. */
static struct view *take_view(struct client *client, struct fuzz_input *in)
{
    uint8_t byte = fuzz_byte(in);
    if (byte < 128 && client->view_count > 0)
        return &client->views[byte % client->view_count];
    struct view *view = view_of(client, byte % 128);
    if (view != NULL)
        return view;
    memset(&unknown, 0, offsetof(struct view, batches));
    unknown.number = byte % 128;
    return &unknown;
}

static void op_connect(struct client *client, struct fuzz_input *in)
{
    (void)in;
    if (client->fd >= 0)
        return;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strcpy(address.sun_path, path_of("socket"));
    client->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    FUZZ_CHECK(client->fd >= 0);
    FUZZ_CHECK(connect(client->fd, (const struct sockaddr *)&address, sizeof(address)) == 0 || errno == EAGAIN);
}

static void op_hang_up(struct client *client, struct fuzz_input *in)
{
    (void)in;
    if (client->fd >= 0)
        close(client->fd);
    for (uint32_t i = 0; i < client->view_count; i++) {
        close(client->views[i].meta_fd);
        close(client->views[i].ring_fd);
    }
    client->fd = -1;
    client->welcomed = client->doomed = 0;
    client->fds = client->view_count = 0;
}

static void op_shutdown(struct client *client, struct fuzz_input *in)
{
    shutdown(client->fd, fuzz_byte(in) % 3);
}

static void op_read(struct client *client, struct fuzz_input *in)
{
    struct wire_packet packet;
    struct feedd_error err;
    uint32_t most = fuzz_byte(in) % 64;
    for (uint32_t i = 0; most == 0 || i < most; i++) { /* 0: all */
        int status = wire_receive(client->fd, packet_room, WIRE_MAX_PACKET, WIRE_MAX_FDS, &packet, &err);
        FUZZ_CHECK(status == 0 || status == FEEDD_E_TIMEOUT || status == FEEDD_E_CONNECTION);
        if (status != 0)
            return;
        on_packet(client, &packet);
    }
}

/* Bytes as they are. 255: more than any packet may have. */
static void op_raw(struct client *client, struct fuzz_input *in)
{
    const uint8_t *bytes;
    uint8_t size = fuzz_byte(in);
    size_t got = fuzz_bytes(in, size, &bytes);
    memset(packet_room, 0, size == 255 ? sizeof(packet_room) : got);
    memcpy(packet_room, bytes, got);
    send_bytes(client, packet_room, size == 255 ? sizeof(packet_room) : got);
}

/* A right header, mostly, before any bytes. */
static void op_framed(struct client *client, struct fuzz_input *in)
{
    const uint8_t *bytes;
    struct wire_header header = {.magic = WIRE_MAGIC, .type = fuzz_byte(in)};
    header.version = (uint16_t)(WIRE_VERSION + (header.type >> 5));
    header.type &= 31;
    size_t size = fuzz_bytes(in, fuzz_byte(in), &bytes);
    memcpy(packet_room, &header, sizeof(header));
    memcpy(packet_room + sizeof(header), bytes, size);
    if (send_bytes(client, packet_room, sizeof(header) + size) == 0)
        client->doomed |= header.version != WIRE_VERSION || header.type > WIRE_STATUS;
}

static void op_fds(struct client *client, struct fuzz_input *in)
{
    client->fds = fuzz_byte(in) % (FDS_MAX + 1);
}

static void op_hello(struct client *client, struct fuzz_input *in)
{
    Feedd__Hello hello = FEEDD__HELLO__INIT;
    char *name = take_text(in);
    hello.client_name = name[0] != '\0' ? name : NULL;
    send_message(client, WIRE_HELLO, &hello.base);
    free(name);
}

/* A resume token: of a stream that the client has, of nothing, or some text. */
static char *take_token(struct client *client, struct fuzz_input *in)
{
    uint8_t kind = fuzz_byte(in);
    if (kind % 4 == 3)
        return take_text(in);
    struct token token = {.order = fuzz_byte(in), .order_parameter = 0};
    token.seed = fuzz_number(in);
    token.epoch = fuzz_number(in);
    token.position = fuzz_number(in);
    if (client->view_count > 0 && kind % 4 != 2) {
        token.sample_count = client->views[0].sample_count;
        token.fingerprint = client->views[0].fingerprint;
    } else {
        token.sample_count = fuzz_number(in);
    }
    char *text = malloc(FEEDD_TOKEN_TEXT);
    FUZZ_CHECK(text != NULL);
    token_format(&token, text);
    return text;
}

#define TAKE(bit, field)                                                                                               \
    do {                                                                                                               \
        if (present >> (bit)&1) {                                                                                      \
            open.has_##field = 1;                                                                                      \
            open.field = fuzz_number(in);                                                                              \
        }                                                                                                              \
    } while (0)

static void op_open(struct client *client, struct fuzz_input *in)
{
    static char transports[][5] = {"host", "ipc", "fd", ""};
    Feedd__Open open = FEEDD__OPEN__INIT;
    char *list[3], *source = NULL, *resume = NULL, *device = NULL;
    uint8_t pick = fuzz_byte(in);
    uint32_t present = fuzz_byte(in);
    present |= (uint32_t)fuzz_byte(in) << 8;
    if (pick >= SOURCE_COUNT)
        source = take_text(in);
    open.source = source != NULL ? source : (char *)(uintptr_t)sources[pick];
    open.request = 1;
    TAKE(0, batch_size);
    TAKE(1, order);
    TAKE(2, tail);
    TAKE(3, seed);
    TAKE(4, epochs);
    TAKE(5, rank);
    TAKE(6, world_size);
    TAKE(7, depth);
    if (present >> 8 & 1)
        open.resume = resume = take_token(client, in);
    TAKE(9, resume_force);
    if (present >> 10 & 1)
        open.device = device = take_text(in);
    if (present >> 11 & 1) {
        open.transports = list;
        open.n_transports = 3;
        for (size_t i = 0; i < 3; i++)
            list[i] = transports[fuzz_byte(in) % 4];
    }
    if (present >> 12 & 1)
        open.request = (uint32_t)fuzz_number(in);
    send_message(client, WIRE_OPEN, &open.base);
    free(source);
    free(resume);
    free(device);
}

static void op_attach(struct client *client, struct fuzz_input *in)
{
    struct view *view = take_view(client, in);
    Feedd__Attach attach = FEEDD__ATTACH__INIT;
    attach.stream = view->number;
    attach.nonce = view->nonce ^ (fuzz_byte(in) == 255);
    if (send_message(client, WIRE_ATTACH, &attach.base) != 0 || view->closed || view == &unknown)
        return;
    client->doomed |= attach.nonce != view->nonce || view->attached;
    view->attached = 1;
}

static void op_release(struct client *client, struct fuzz_input *in)
{
    enum { RIGHT = 250 }; /* of the values of `kind` */
    struct view *view = take_view(client, in);
    uint32_t slots[HELD_MAX + 1];
    uint64_t seqs[HELD_MAX + 1];
    uint8_t most = fuzz_byte(in), kind = fuzz_byte(in);
    uint32_t count = most < view->held ? most : view->held;
    int newest = kind & 1; /* in any order */
    struct held *from = &view->batches[newest ? view->held - count : 0];
    for (uint32_t i = 0; i < count; i++) {
        slots[i] = from[i].slot;
        seqs[i] = from[i].seq;
    }
    slots[count] = count > 0 ? slots[0] : 0;
    seqs[count] = count > 0 ? seqs[0] : 0; /* one twice */
    if (kind == RIGHT + 2) {
        slots[count] = (uint32_t)fuzz_number(in); /* any */
        seqs[count] = fuzz_number(in);
    } else if (kind == RIGHT + 3 && count > 0) {
        seqs[count - 1]++; /* another batch than the slot holds */
    }
    Feedd__Release release = FEEDD__RELEASE__INIT;
    release.stream = view->number;
    release.n_slots = count + (kind == RIGHT + 1 || kind == RIGHT + 2 || kind == RIGHT + 4);
    release.n_seqs = count + (kind == RIGHT + 1 || kind == RIGHT + 2);
    release.slots = slots;
    release.seqs = seqs;
    if (send_message(client, WIRE_RELEASE, &release.base) != 0)
        return;
    if (view->held > 0 && count > 0 && !view->closed && !view->lost)
        client->doomed |= kind == RIGHT + 1 || kind == RIGHT + 3 || kind == RIGHT + 4;
    view->lost |= kind > RIGHT;
    for (uint32_t i = 0; i < count && !view->closed && !view->lost; i++)
        check_batch(view, from[i]); /* ours until the loop runs */
    view->held -= count;
    if (!newest)
        memmove(view->batches, view->batches + count, view->held * sizeof(view->batches[0]));
}

static void op_close(struct client *client, struct fuzz_input *in)
{
    struct view *view = take_view(client, in);
    Feedd__Close message = FEEDD__CLOSE__INIT;
    message.stream = view->number;
    if (send_message(client, WIRE_CLOSE, &message.base) == 0)
        view->closed = 1;
}

static void op_status(struct client *client, struct fuzz_input *in)
{
    Feedd__Status status = FEEDD__STATUS__INIT;
    uint32_t count = 1 + fuzz_byte(in) % 128; /* more than CONNECTION_QUEUE_MAX */
    for (status.request = 1; status.request <= count; status.request++)
        send_message(client, WIRE_STATUS, &status.base);
}

/* ---- what happens to the server ---- */

static void op_turn(struct client *client, struct fuzz_input *in)
{
    (void)client;
    for (int turns = 1 + fuzz_byte(in) % 4; turns > 0; turns--)
        turn();
}

static void op_settle(struct client *client, struct fuzz_input *in)
{
    (void)client, (void)in;
    run_while(busy);
    for (uint32_t c = 0; c < CLIENTS; c++) {
        int unread = 0;
        if (clients[c].fd >= 0 && clients[c].doomed && ioctl(clients[c].fd, SIOCOUTQ, &unread) == 0 && unread == 0)
            FUZZ_CHECK(hung_up(&clients[c]));
    }
}

/* Workers get on, the loop doesn't: their reports and what clients send come in one round. */
static void op_wait(struct client *client, struct fuzz_input *in)
{
    (void)client, (void)in;
    for (int i = 0; i < 100 && atomic_load(&server->pipeline.inbox.newest) == NULL && busy(); i++)
        usleep(20);
}

/* Sockets that hold a few packets: whoever doesn't read has to be queued for. */
static void op_squeeze(struct client *client, struct fuzz_input *in)
{
    (void)client, (void)in;
    list_each (node, after, &server->connections) {
        int bytes = 1; /* the kernel takes its least */
        setsockopt(container_of(node, struct connection, node)->fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
    }
}

/* From now on the daemon can open a few descriptors more, or none. 0: as many as it likes. */
static void op_starve(struct client *client, struct fuzz_input *in)
{
    (void)client;
    starving = fuzz_byte(in) % 16;
}

/* What the timer does, `seconds` from now. */
static void op_tick(struct client *client, struct fuzz_input *in)
{
    (void)client;
    uint64_t now_ns = clock_ns();
    uint64_t then_ns = now_ns + fuzz_byte(in) % 16 * 1000000000ull;
    pipeline_tick(&server->pipeline, now_ns);
    listener_resume(&server->listener);
    list_each (node, after, &server->connections)
        connection_tick(container_of(node, struct connection, node), then_ns);
}

/* The daemon stops, whatever is going on, and a new one is started for the next input. */
static void op_stop(struct client *client, struct fuzz_input *in)
{
    (void)client;
    in->left = 0;
    server_stop(server);
    server_run(server);
    free(server);
    server = NULL;
    for (uint32_t c = 0; c < CLIENTS; c++)
        op_hang_up(&clients[c], in);
    check_fds(fds_without_server);
}

/* seeds.py counts on this order. */
static const struct operation {
    void (*run)(struct client *client, struct fuzz_input *in);
    int connected; /* does nothing for a client that isn't */
} operations[] = {
    {op_connect, 0}, {op_hello, 1},    {op_open, 1},    {op_attach, 1}, {op_release, 1}, {op_close, 1}, {op_status, 1},
    {op_read, 1},    {op_turn, 0},     {op_settle, 0},  {op_raw, 1},    {op_framed, 1},  {op_fds, 1},   {op_squeeze, 0},
    {op_tick, 0},    {op_shutdown, 1}, {op_hang_up, 1}, {op_stop, 0},   {op_starve, 0},  {op_wait, 0},
};
#define OPERATION_COUNT (sizeof(operations) / sizeof(operations[0]))

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};
    if (config == NULL)
        prepare();
    if (server == NULL)
        start();
    while (in.left > 0) {
        const struct operation *operation = &operations[fuzz_byte(&in) % OPERATION_COUNT];
        struct client *client = &clients[fuzz_byte(&in) % CLIENTS];
        if (client->fd >= 0 || !operation->connected)
            operation->run(client, &in);
    }
    starving = 0;
    if (server == NULL)
        return 0;
    listener_resume(&server->listener);
    for (uint32_t c = 0; c < CLIENTS; c++)
        op_hang_up(&clients[c], &in);
    run_while(in_use);
    turn();
    check_idle();
    return 0;
}
