/* fuzz_wire.c - the daemon's control protocol, with its state: up to five clients and a real server in one process.
 *
 * Input: operations, two bytes each and what they take: the operation (see `operations` at the end), and whose it is.
 * The server listens on a socket in a temporary folder and serves tiny datasets of known content: digits, and photos
 * of which some are broken. It is made once and lives on from input to input, unless one stops it; then another takes
 * its place, and clients may come back. They keep track of what the daemon has told them, so that sequences get
 * somewhere: stream numbers, nonces read from the rings, batches that were announced, where a group stood.
 *
 * What has to hold, at every answer: it is one that the protocol allows now; batches come in order, in slots that the
 * client doesn't hold; records and samples are what the dataset says, and stay so until they are released; all members
 * of a group get the same batches; a verification counts the samples that are bad.
 * What has to hold whenever nothing is under way: every OPEN has been answered, but where a group waits for members to
 * come back, and every VERIFY; a stream that runs has a use for each of its slots, and knows who holds which.
 * What has to hold after every input, once all clients have gone: no connection, group, ring or open dataset is left,
 * no temporary dataset, no descriptor and no mapping.
 * Threads: one, which is the loop thread and all clients; and the server's two workers. Workers make an input's
 * outcome vary a little: `settle` and `wait` wait for them, `turn` doesn't.
 * FEEDD_FUZZ_LOG=1 shows what the daemon logs. */
#include <dirent.h>
#include <errno.h>
#include <ftw.h>
#include <jansson.h>
#include <jpeglib.h>
#include <linux/sockios.h>
#include <math.h>
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
#include "control.h"
#include "error.h"
#include "fuzz.h"
#include "group.h"
#include "log.h"
#include "server.h"
#include "site.h"
#include "slot.h"
#include "stream.h"
#include "token.h"
#include "verification.h"
#include "wire.h"

#define CLIENTS     5u
#define VIEWS       8u   /* streams that a client keeps track of */
#define HELD_MAX    256u /* batches that it may hold of each: more slots than ring_memory_max allows */
#define SIDE        4u   /* digits are SIDE x SIDE */
#define LABELS      10u
#define PHOTO_SIDE  8u  /* of photos but for WIDE_PHOTO; each is of one gray, so that scaling doesn't change it */
#define PHOTOS      18u /* in class folders of PHOTO_CLASS */
#define PHOTO_CLASS 6u
#define CUT_PHOTO   7u  /* a file that ends early, and in the list one that isn't there */
#define WIDE_PHOTO  11u /* twice as wide: bad where nothing is resized */
#define ROTTEN      16u /* photos of the dataset of which all but the first two are cut: more than is tolerated */
#define VERIFY_BIT  (1u << 30) /* of the numbers of VERIFY requests: tells their answers from others */
#define RINGS       64u        /* of groups that an input remembers, and how many batches of each */
#define RING_SEQS   512u
#define SETTLE_NS   (10 * 1000000000ull) /* nothing here takes that long */
#define FDS_MAX     8u                   /* that one packet carries */
#define PACKET_ROOM (WIRE_MAX_PACKET + 64)

static const char config_text[] = "daemon:\n"
                                  "  workers: 2\n"
                                  "  ring_memory_max: 512K\n"
                                  "  dataset_memory_max: 8K\n" /* `digits` and `more` don't fit together */
                                  "  clients_max: 4\n"         /* one fewer than CLIENTS */
                                  "  streams_per_client_max: 4\n"
                                  "  leases_per_client_max: 160\n"
                                  "  cache_dir: cache\n"
                                  "datasets:\n"
                                  "  digits: {reader: idx, images: digits, labels: digits-labels,\n"
                                  "           classes: [zero, one, two, three, four, five, six, seven, eight, nine]}\n"
                                  "  more: {reader: idx, images: more, labels: more-labels}\n"
                                  "  plain: {reader: idx, images: plain, splits: {a: 0.5, b: 0.3}}\n"
                                  "  some: {reader: idx, images: plain, subset: indices}\n"
                                  "  photos: {reader: folder, root: photos, splits: {most: 0.8, rest: 0.2}}\n"
                                  "  rotten: {reader: folder, root: rotten}\n"
                                  "  bad: {reader: idx, images: digits, labels: plain-labels}\n"
                                  "  gone: {reader: idx, images: nowhere}\n"
                                  "streams:\n"
                                  "  train: {dataset: digits, batch_size: 16, order: shuffle, seed: 1, depth: 4}\n"
                                  "  once: {dataset: digits, batch_size: 64, epochs: 1, tail: partial, depth: 3}\n"
                                  "  few: {dataset: plain, batch_size: 8, epochs: 2, tail: pad, depth: 2}\n"
                                  "  bad: {dataset: bad, batch_size: 16}\n"
                                  "  fat: {dataset: digits, batch_size: 4096, tail: pad, depth: 64}\n"
                                  "  both: {dataset: digits, batch_size: 16, depth: 3, share: broadcast, members: 2}\n"
                                  "  later: {dataset: plain/a, batch_size: 2, depth: 3, order: shuffle, epochs: 9,\n"
                                  "          share: broadcast, join: next-epoch}\n"
                                  "  small: {dataset: photos, batch_size: 4, tail: pad, depth: 4,\n"
                                  "          transform: {resize: 7, center_crop: [5, 6], flip: 0.5}}\n"
                                  "  black: {dataset: photos/most, batch_size: 3, order: shuffle, on_error: zero}\n"
                                  "  strict: {dataset: photos, batch_size: 2, on_error: fail, share: broadcast}\n"
                                  "  rot: {dataset: rotten, batch_size: 2, epochs: 1, depth: 3, on_error: zero}\n"
                                  "  rots: {dataset: rotten, batch_size: 8, share: broadcast, members: 2}\n";

/* @: the temporary folder. Others are names of the configuration, and of nothing. */
static const char *const sources[] = {
    "train",        "once",    "few",    "bad",     "fat",         "digits",     "more",     "gone",
    "plain",        "none",    "train ", "both",    "later",       "small",      "black",    "strict",
    "rot",          "rots",    "photos", "rotten",  "@/photos",    "@/list.tsv", "@/rotten", "@/nowhere",
    "@/feedd.conf", "plain/b", "some",   "plain/d", "photos/rest", "@/photos/a",
};
#define SOURCE_COUNT (sizeof(sources) / sizeof(sources[0]))
static const char *const groups[] = {NULL, "", "a", "b", "train", "both"};
#define GROUP_COUNT (sizeof(groups) / sizeof(groups[0]))

/* What a dataset holds. Those at paths are found by the path's end. */
enum content { DIGITS, IN_CLASSES, IN_LIST, IN_ROTTEN };
static const struct known {
    const char *name;
    enum content content;
    uint32_t sample_count;
    int has_labels;
} known_datasets[] = {
    {"digits", DIGITS, 200, 1},       {"more", DIGITS, 180, 1},          {"plain", DIGITS, 20, 0},
    {"some", DIGITS, 20, 0},          {"photos", IN_CLASSES, PHOTOS, 1}, {"rotten", IN_ROTTEN, ROTTEN, 1},
    {"list.tsv", IN_LIST, PHOTOS, 1},
};

/* What the members of one group have seen of its stream. */
struct shared {
    uint64_t nonce;           /* of no other ring */
    uint32_t attached;        /* members that said so, whether they are still there or not */
    uint64_t seen[RING_SEQS]; /* by seq: a hash of slot and record; 0: nobody has seen it */
};

/* What OPEN said. */
struct asked {
    int join;    /* enum feedd_join; 0: not said, or it doesn't hold */
    int no_fail; /* a bad sample is no reason to fail */
    int dtype;   /* of the output; 0: not said */
    int nchw;
    double mean[4], std[4], scale; /* of the output */
};

/* A stream as a client sees it. */
struct view {
    uint32_t number;
    const struct known *dataset;
    uint32_t height, width;
    int dtype; /* of what slots hold */
    struct asked asked;
    struct shared *shared; /* NULL: private, or more than RINGS of them */
    int begun;             /* a batch has come */
    int meta_fd, ring_fd;
    uint32_t depth, batch_size;
    uint64_t slot_bytes, record_bytes, sample_count, fingerprint, nonce;
    int sequential;
    uint32_t world_size;
    int attached, ended, closed; /* ATTACH sent; END received; CLOSE sent, or told that it failed */
    int broke;                   /* sent what breaks the protocol, unless the stream has failed before */
    int lost;                    /* released or closed what it wasn't told of: it doesn't know any more what it holds */
    uint64_t next_seq;           /* of the batch that is announced next, and where it begins */
    uint64_t next_epoch, next_position;
    uint32_t held;
    struct held {
        uint32_t slot;
        uint64_t seq;
    } batches[HELD_MAX];
};

/* What libfeedd remembers of a group, to come back to it when the daemon does. */
struct memory {
    uint64_t incarnation; /* 0: none */
    uint32_t members;
    int started; /* it had been told of batches */
    struct token token;
};

struct client {
    int fd; /* -1: not connected */
    int welcomed;
    int doomed;              /* broke the protocol: has to be closed as soon as the daemon has read everything */
    uint32_t fds;            /* descriptors that go with the next packet */
    uint32_t request;        /* of the last OPEN */
    uint32_t verifies;       /* VERIFY sent */
    uint32_t verified;       /* of them, how many have been answered */
    int wild;                /* has sent bytes that may be a VERIFY, too */
    struct asked asked[256]; /* by the low byte of the request */
    struct memory memory;
    uint8_t closed_early[128]; /* by number: CLOSE was sent before STREAM was read; it may have come in time */
    uint32_t view_count;
    struct view views[VIEWS];
};

static struct server *server;
static struct config *config;
static char folder[] = "/tmp/feedd-fuzz-XXXXXX"; /* not in $TMPDIR: a socket's name is short */
static int fds_without_server, fds_idle;
static uint32_t starving; /* as op_starve() says */
static int starved;       /* by this input */
static struct client clients[CLIENTS];
static struct shared rings[RINGS];
static uint32_t ring_count;
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

static uint8_t gray_of(uint64_t sample)
{
    return (uint8_t)(20 + sample * 11);
}

static int64_t label_of(const struct known *dataset, uint64_t sample)
{
    if (dataset->content == IN_CLASSES)
        return (int64_t)(sample / PHOTO_CLASS);
    if (dataset->content == IN_ROTTEN)
        return 0;
    return dataset->has_labels ? (int64_t)(sample % LABELS) : -1;
}

static int is_bad(const struct known *dataset, uint64_t sample, int resized)
{
    switch (dataset->content) {
    case DIGITS:
        return 0;
    case IN_ROTTEN:
        return sample >= 2;
    default:
        return sample == CUT_PHOTO || (sample == WIDE_PHOTO && !resized);
    }
}

static const char *path_of(const char *name)
{
    static char path[sizeof(folder) + 300];
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
        values[8 + s] = (uint8_t)(s % LABELS);
    write_file(labels, values, 8 + (size_t)count);
}

/* A photo of one gray. @param cut  bytes that its file lacks */
static void write_photo(const char *name, uint32_t width, uint8_t gray, size_t cut)
{
    struct jpeg_compress_struct cinfo;
    struct jpeg_error_mgr errors;
    unsigned char *bytes = NULL;
    unsigned long size = 0;
    JSAMPLE row[2 * PHOTO_SIDE];
    memset(row, gray, sizeof(row));
    cinfo.err = jpeg_std_error(&errors);
    jpeg_create_compress(&cinfo);
    jpeg_mem_dest(&cinfo, &bytes, &size);
    cinfo.image_width = width;
    cinfo.image_height = PHOTO_SIDE;
    cinfo.input_components = 1;
    cinfo.in_color_space = JCS_GRAYSCALE;
    jpeg_set_defaults(&cinfo);
    jpeg_set_quality(&cinfo, 100, TRUE); /* what isn't rounded comes back as it was */
    jpeg_start_compress(&cinfo, TRUE);
    while (cinfo.next_scanline < PHOTO_SIDE)
        jpeg_write_scanlines(&cinfo, &(JSAMPROW){row}, 1);
    jpeg_finish_compress(&cinfo);
    jpeg_destroy_compress(&cinfo);
    write_file(name, bytes, size - cut);
    free(bytes);
}

static void make_folder(const char *name)
{
    FUZZ_CHECK(mkdir(path_of(name), 0700) == 0);
}

/* Class folders of photos, a list of the same with other labels, and photos that are hardly any. */
static void write_photos(void)
{
    char name[64], list[PHOTOS * 32];
    size_t bytes = 0;
    make_folder("photos");
    for (uint32_t i = 0; i < PHOTOS; i++) {
        int letter = 'a' + (int)(i / PHOTO_CLASS);
        snprintf(name, sizeof(name), "photos/%c", letter);
        if (i % PHOTO_CLASS == 0)
            make_folder(name);
        snprintf(name, sizeof(name), "photos/%c/%02u.jpg", letter, i);
        write_photo(name, i == WIDE_PHOTO ? 2 * PHOTO_SIDE : PHOTO_SIDE, gray_of(i), i == CUT_PHOTO ? 40 : 0);
        bytes += (size_t)sprintf(list + bytes, "%s%s\t%u\n", name, i == CUT_PHOTO ? "x" : "", i % LABELS);
    }
    write_file("list.tsv", list, bytes);
    make_folder("rotten");
    make_folder("rotten/a");
    for (uint32_t i = 0; i < ROTTEN; i++) {
        snprintf(name, sizeof(name), "rotten/a/%02u.jpg", i);
        write_photo(name, PHOTO_SIDE, gray_of(i), i >= 2 ? 40 : 0);
    }
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *place)
{
    (void)st, (void)type, (void)place;
    return remove(path);
}

static void remove_folder(void)
{
    nftw(folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
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
    write_file("indices", "# of plain\n3\n3\n19\n0\n7\n", 23);
    write_photos();
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
    if (server_init(server, config, path_of("socket"), false, &err) != 0) {
        fprintf(stderr, "%s\n", err.message);
        abort();
    }
    sigaction(SIGTERM, &before[0], NULL);
    sigaction(SIGINT, &before[1], NULL);
    turn();
    fds_idle = count_fds(0);
}

/* A ring is being made or freed. */
static int sites_change(const struct stream *stream)
{
    list_each (node, after, &stream->sites)
        if (container_of(node, struct site, node)->state != SITE_OPEN)
            return 1;
    return 0;
}

/* Something is under way that will report by itself: a worker has it. */
static int busy(void)
{
    const struct pipeline *pipeline = &server->pipeline;
    if (atomic_load(&pipeline->inbox.newest) != NULL)
        return 1;
    list_each (node, after, &pipeline->groups) {
        const struct stream *stream = container_of(node, struct group, node)->stream;
        if (stream != NULL && (stream->state == STREAM_OPENING || stream->state == STREAM_CLOSING ||
                               stream->filling > 0 || stream->copying > 0 || sites_change(stream)))
            return 1;
    }
    list_each (node, after, &pipeline->datasets) {
        const struct dataset *dataset = container_of(node, struct dataset, node);
        if (dataset->state == DATASET_OPENING || dataset->state == DATASET_CLOSING)
            return 1;
    }
    list_each (node, after, &server->connections)
        if (container_of(node, struct connection, node)->verification != NULL)
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

/* A verification whose client has gone ends by itself, and then its dataset is closed. */
static int in_use(void)
{
    int open = 0;
    list_each (node, after, &server->pipeline.datasets)
        open |= container_of(node, struct dataset, node)->state != DATASET_CLOSED;
    return open || busy() || server->connection_count > 0 || !list_empty(&server->pipeline.groups);
}

/* What members of a site hold, and what is in its placements. */
static void check_site(const struct site *site)
{
    const struct stream *stream = site->stream;
    uint32_t leases = 0, taken = 0, members = 0, attached = 0;
    for (uint32_t slot = 0; slot < stream->depth; slot++) {
        const struct placement *placement = &site->placements[slot];
        FUZZ_CHECK((placement->state == PLACEMENT_READY) == (placement->leases > 0));
        FUZZ_CHECK(placement->state != PLACEMENT_COPYING);
        leases += placement->leases;
        taken += placement->leases > 0;
    }
    list_each (node, after, &stream->group->members) {
        const struct member *member = container_of(node, struct member, node);
        if (member->site != site)
            continue;
        members++;
        attached += member->state != MEMBER_JOINING;
        FUZZ_CHECK(member->lease_count <= stream->depth && member->lease_count <= leases);
        leases -= member->lease_count;
    }
    FUZZ_CHECK(leases == 0 && taken == site->taken && taken == site->ready);
    FUZZ_CHECK(members > 0 && members == site->member_count && attached == site->attached_count);
}

/* A stream that runs: each slot is free to be filled, or has a reason not to be, and leases are counted right. */
static void check_stream(const struct stream *stream)
{
    FUZZ_CHECK(stream->free_count == 0 || stream->exhausted || server->pipeline.stopping);
    FUZZ_CHECK(stream->filled == 0 || !group_may_publish(stream->group));
    list_each (node, after, &stream->sites)
        check_site(container_of(node, struct site, node));
}

/* Nothing is under way: nobody waits for an answer that can't come, and streams are in order. */
static void check_settled(void)
{
    list_each (node, after, &server->pipeline.groups) {
        const struct group *group = container_of(node, struct group, node);
        FUZZ_CHECK(group->member_count > 0 && !group->announcing);
        FUZZ_CHECK(group->stream != NULL || group->member_count < group->form_members);
        if (group->stream != NULL && stream_is_open(group->stream))
            check_stream(group->stream);
    }
    list_each (node, after, &server->connections) {
        list_each (stream_node, stream_after, &container_of(node, struct connection, node)->streams) {
            const struct attachment *attachment = container_of(stream_node, struct attachment, node);
            FUZZ_CHECK(attachment->opened || attachment->member->group->stream == NULL);
        }
    }
}

static void check_idle(void)
{
    const struct pipeline *pipeline = &server->pipeline;
    FUZZ_CHECK(list_empty(&server->connections) && list_empty(&server->unflushed) && server->connection_count == 0);
    FUZZ_CHECK(list_empty(&pipeline->groups) && pipeline->ring_bytes == 0 && pipeline->dataset_bytes == 0);
    list_each (node, after, &pipeline->datasets) {
        const struct dataset *dataset = container_of(node, struct dataset, node);
        FUZZ_CHECK(dataset->state == DATASET_CLOSED && dataset->users == 0 && list_empty(&dataset->waiters));
        FUZZ_CHECK(dataset->holders == 0 && !dataset->temporary);
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

/* NULL: something else at a path, which the daemon takes for a list. */
static const struct known *find_dataset(const char *name)
{
    const char *slash = strrchr(name, '/');
    name = slash != NULL ? slash + 1 : name;
    for (size_t i = 0; i < sizeof(known_datasets) / sizeof(known_datasets[0]); i++)
        if (strcmp(known_datasets[i].name, name) == 0)
            return &known_datasets[i];
    return NULL;
}

static const struct known *dataset_of(const char *name)
{
    const struct known *dataset = find_dataset(name);
    FUZZ_CHECK(dataset != NULL); /* one that a stream can read */
    return dataset;
}

static struct shared *ring_of(uint64_t nonce)
{
    for (uint32_t i = 0; i < ring_count; i++)
        if (rings[i].nonce == nonce)
            return &rings[i];
    if (ring_count == RINGS)
        return NULL;
    memset(&rings[ring_count], 0, sizeof(rings[0]));
    rings[ring_count].nonce = nonce;
    return &rings[ring_count++];
}

/* A group that goes on goes on where the client stands. */
static void remember(struct memory *memory, const Feedd__Stream *stream)
{
    memory->incarnation = stream->incarnation;
    if (memory->started && memory->token.fingerprint == stream->fingerprint)
        return;
    memory->started = 0;
    memory->token = (struct token){.order = (uint8_t)stream->order,
                                   .sample_count = stream->sample_count,
                                   .fingerprint = stream->fingerprint,
                                   .seed = stream->seed};
}

/* What slots hold is what was asked for, or uint8 as decoded. */
static void check_output(const struct client *client, struct view *view, const Feedd__Stream *stream)
{
    const uint64_t *shape = stream->fields[0]->shape;
    const uint32_t channels = view->dataset->content == DIGITS ? 1 : 3;
    const int cpu = stream->normalize == FEEDD_NORMALIZE_CPU, nchw = cpu && view->asked.nchw;
    view->height = (uint32_t)shape[nchw ? 1 : 0];
    view->width = (uint32_t)shape[nchw ? 2 : 1];
    if (client->wild) /* it may have asked for something else with the same number */
        return;
    FUZZ_CHECK(view->dtype == (cpu ? view->asked.dtype : FEEDD_U8) && shape[nchw ? 0 : 2] == channels);
}

static void on_stream(struct client *client, const Feedd__Stream *stream, struct wire_packet *packet)
{
    const Feedd__Field *image = stream->n_fields > 0 ? stream->fields[0] : NULL;
    uint64_t ring_bytes = stream->slot_bytes * stream->depth;
    FUZZ_CHECK(packet->fd_count == (stream->class_names_bytes > 0 ? 3u : 2u));
    FUZZ_CHECK(stream->stream >= 1 && view_of(client, stream->stream) == NULL);
    FUZZ_CHECK(stream->has_normalize &&
               (stream->normalize == FEEDD_NORMALIZE_CLIENT || stream->normalize == FEEDD_NORMALIZE_CPU));
    FUZZ_CHECK(stream->depth >= 2 && stream->depth <= HELD_MAX && stream->n_fields == 3 && image->n_shape == 3);
    FUZZ_CHECK((stream->share == FEEDD_SHARE_PRIVATE || stream->share == FEEDD_SHARE_BROADCAST) &&
               stream->group != NULL && stream->incarnation != 0);
    FUZZ_CHECK((stream->share == FEEDD_SHARE_BROADCAST) == (stream->group[0] != '\0'));
    if (stream->share == FEEDD_SHARE_BROADCAST)
        remember(&client->memory, stream);
    check_sealed(packet->fds[0], (stream->record_bytes * stream->depth + SLOT_PAGE - 1) / SLOT_PAGE * SLOT_PAGE);
    check_sealed(packet->fds[1], ring_bytes + SLOT_PROOF_BYTES);
    if (packet->fd_count == 3)
        check_sealed(packet->fds[2], stream->class_names_bytes);
    if (client->view_count == VIEWS)
        return;
    struct view *view = &client->views[client->view_count++];
    memset(view, 0, offsetof(struct view, batches));
    view->number = stream->stream;
    view->lost = stream->stream < sizeof(client->closed_early) && client->closed_early[stream->stream];
    view->depth = stream->depth;
    view->batch_size = stream->batch_size;
    view->slot_bytes = stream->slot_bytes;
    view->record_bytes = stream->record_bytes;
    view->sample_count = stream->sample_count;
    view->fingerprint = stream->fingerprint;
    view->dataset = dataset_of(stream->dataset);
    view->sequential = stream->order == FEEDD_ORDER_SEQUENTIAL && stream->sample_count == view->dataset->sample_count;
    view->asked = client->asked[stream->request & 255];
    view->dtype = (int)image->dtype;
    check_output(client, view, stream);
    view->asked.no_fail &= view->dataset->content != IN_ROTTEN && view->batch_size <= PHOTOS;
    view->world_size = stream->world_size;
    view->next_epoch = stream->start_epoch;
    view->next_position = stream->start_position;
    view->meta_fd = packet->fds[0];
    view->ring_fd = packet->fds[1];
    if (packet->fd_count == 3)
        close(packet->fds[2]);
    packet->fd_count = 0; /* taken */
    read_at(view->ring_fd, &view->nonce, sizeof(view->nonce), ring_bytes);
    if (stream->share == FEEDD_SHARE_BROADCAST)
        view->shared = ring_of(view->nonce);
    view->begun = stream->share == FEEDD_SHARE_PRIVATE; /* it begins with batch 0, where it was said */
}

/* The daemon has closed the connection, though the client may not have read that far: nothing is held any more. */
static int hung_up(const struct client *client)
{
    struct pollfd poll_fd = {.fd = client->fd};
    return poll(&poll_fd, 1, 0) == 1 && (poll_fd.revents & POLLHUP) != 0;
}

/* Value p of an image, as normalize.h computes it. The image is all of one pixel, or has one channel. */
static void check_float(const struct view *view, const uint8_t *at, uint32_t p, uint8_t pixel)
{
    const struct asked *asked = &view->asked;
    const uint32_t channels = view->dataset->content == DIGITS ? 1 : 3;
    const uint32_t c = asked->nchw ? p / (view->height * view->width) : p % channels;
    const float offset = (float)(asked->mean[c] * asked->scale), factor = (float)(1 / (asked->std[c] * asked->scale));
    const float difference = (float)pixel - offset, due = difference * factor;
    FUZZ_CHECK(memcmp(at, &due, sizeof(due)) == 0);
}

/* Sample i of a batch. */
static void check_sample(const struct view *view, const struct slot_record *record, uint64_t record_at,
                         uint64_t slot_at, uint32_t i)
{
    enum { MOST = 3 * 2 * PHOTO_SIDE * PHOTO_SIDE };
    const struct known *dataset = view->dataset;
    uint32_t values = view->height * view->width * (dataset->content == DIGITS ? 1 : 3), flags;
    uint32_t bytes = values * dtype_bytes(view->dtype);
    int resized = view->height != PHOTO_SIDE;
    uint8_t pixels[MOST * sizeof(float)];
    int64_t label, index, listed;
    uint64_t index_at = record_at + sizeof(*record);
    FUZZ_CHECK(values <= MOST && bytes <= sizeof(pixels));
    read_at(view->meta_fd, &listed, sizeof(listed), index_at + i * sizeof(listed));
    read_at(view->meta_fd, &flags, sizeof(flags), index_at + view->batch_size * sizeof(listed) + i * sizeof(flags));
    read_at(view->ring_fd, pixels, bytes, slot_at + record->extents[0].offset + i * (uint64_t)bytes);
    read_at(view->ring_fd, &label, sizeof(label), slot_at + record->extents[1].offset + i * sizeof(label));
    read_at(view->ring_fd, &index, sizeof(index), slot_at + record->extents[2].offset + i * sizeof(index));
    FUZZ_CHECK(index == listed && index >= 0 && (uint64_t)index < dataset->sample_count);
    FUZZ_CHECK(((flags & FEEDD_SAMPLE_PADDING) != 0) == (i >= record->valid));
    if (view->sequential && i < record->valid && (flags & FEEDD_SAMPLE_SUBSTITUTED) == 0)
        FUZZ_CHECK((uint64_t)index == record->position + i);
    FUZZ_CHECK(((flags & FEEDD_SAMPLE_ZEROED) != 0) == is_bad(dataset, (uint64_t)index, resized));
    FUZZ_CHECK(label == (flags & FEEDD_SAMPLE_ZEROED ? -1 : label_of(dataset, (uint64_t)index)));
    for (uint32_t p = 0; p < values; p++) {
        uint8_t due = flags & FEEDD_SAMPLE_ZEROED  ? 0
                      : dataset->content == DIGITS ? pixel_of((uint64_t)index, p)
                                                   : gray_of((uint64_t)index);
        if (view->dtype == FEEDD_U8)
            FUZZ_CHECK(pixels[p] == due);
        else if (view->dtype == FEEDD_F32)
            check_float(view, pixels + p * sizeof(float), p, due);
    }
}

/* One batch that the client holds, as its record and its slot have it. */
static void check_batch(const struct view *view, struct held held)
{
    struct slot_record record;
    uint64_t record_at = held.slot * view->record_bytes, slot_at = held.slot * view->slot_bytes;
    read_at(view->meta_fd, &record, sizeof(record), record_at);
    FUZZ_CHECK(record.seq == held.seq && record.count >= 1 && record.count <= view->batch_size);
    FUZZ_CHECK(record.valid <= record.count && record.used_bytes <= view->slot_bytes);
    for (uint32_t i = 0; i < record.count; i += 1 + record.count / 4) /* some of them: this is not what takes time */
        check_sample(view, &record, record_at, slot_at, i);
}

/* All members of a group get the same, in the same slot. */
static void check_shared(struct view *view, struct held held)
{
    struct slot_record record;
    int64_t index = 0;
    read_at(view->meta_fd, &record, sizeof(record), held.slot * view->record_bytes);
    read_at(view->meta_fd, &index, sizeof(index), held.slot * view->record_bytes + sizeof(record));
    const uint64_t values[] = {held.slot,    record.epoch, record.position, record.next_epoch, record.next_position,
                               record.count, record.valid, (uint64_t)index};
    uint64_t hash = 14695981039346656037u; /* FNV-1a */
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++)
        hash = (hash ^ values[i]) * 1099511628211u;
    hash |= 1;
    if (view->shared == NULL || held.seq >= RING_SEQS)
        return;
    uint64_t *seen = &view->shared->seen[held.seq];
    FUZZ_CHECK(*seen == 0 || *seen == hash);
    *seen = hash;
}

/* The first batch of all: behind a gate, as many as it waits for have come. */
static void check_gate(const struct view *view)
{
    list_each (node, after, &server->pipeline.groups) {
        const struct group *group = container_of(node, struct group, node);
        if (group->stream == NULL || group->stream->staging == NULL || group->stream->staging->nonce != view->nonce ||
            group->spec.join != FEEDD_JOIN_GATE || group->form_started || view->shared == NULL)
            continue;
        FUZZ_CHECK(view->shared->attached >= group->spec.members);
    }
}

/* Where a member of a group begins. */
static void begin(struct view *view, struct held held)
{
    struct slot_record record;
    read_at(view->meta_fd, &record, sizeof(record), held.slot * view->record_bytes);
    view->begun = 1;
    view->next_seq = held.seq;
    if (held.seq == 0) {
        check_gate(view);
        return; /* where the stream was said to begin */
    }
    FUZZ_CHECK(view->asked.join != FEEDD_JOIN_NEXT_EPOCH || view->world_size > 1 || record.position == 0);
    view->next_epoch = record.epoch;
    view->next_position = record.position;
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

static void advance_memory(struct memory *memory, const struct view *view, struct held held)
{
    struct slot_record record;
    read_at(view->meta_fd, &record, sizeof(record), held.slot * view->record_bytes);
    memory->started = 1;
    memory->token.epoch = record.next_epoch;
    memory->token.position = record.next_position;
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
        if (!view->begun)
            begin(view, held);
        FUZZ_CHECK(held.slot < view->depth && held.seq == view->next_seq++ && view->held < view->depth);
        for (uint32_t h = 0; h < view->held; h++)
            FUZZ_CHECK(view->batches[h].slot != held.slot);
        view->batches[view->held++] = held;
        check_batch(view, held);
        check_shared(view, held);
        if (view->world_size == 1)
            check_place(view, held);
        if (view->shared != NULL && client->memory.token.fingerprint == view->fingerprint)
            advance_memory(&client->memory, view, held);
    }
}

static void on_members(struct client *client, const Feedd__Members *members)
{
    const struct view *view = view_of(client, members->stream);
    FUZZ_CHECK(view != NULL && view->attached && members->count >= 1 && members->count <= FEEDD_MAX_MEMBERS);
    client->memory.members = members->count;
}

static void on_end(struct client *client, const Feedd__End *end)
{
    struct view *view = view_of(client, end->stream);
    FUZZ_CHECK(view != NULL && view->attached && !view->ended);
    view->ended = 1;
}

static void on_answered(struct client *client, uint32_t request)
{
    if (request & VERIFY_BIT)
        FUZZ_CHECK(client->verified++ < client->verifies || client->wild);
}

static void on_progress(const struct client *client, const Feedd__Progress *progress)
{
    FUZZ_CHECK((progress->request & VERIFY_BIT && client->verified < client->verifies) || client->wild);
    FUZZ_CHECK(progress->done <= progress->total && progress->bad <= progress->done);
}

static uint64_t field_of(const json_t *json, const char *key)
{
    FUZZ_CHECK(json_is_integer(json_object_get(json, key)));
    return (uint64_t)json_integer_value(json_object_get(json, key));
}

/* Of all of a dataset that is known, and of which every file could be opened: what has to be found. */
static void check_verified(const json_t *json)
{
    uint64_t samples = field_of(json, "samples"), checked = field_of(json, "checked"), bad = field_of(json, "bad");
    uint64_t in_classes = 0, bad_in_classes = 0, due = 0;
    const struct known *dataset = find_dataset(json_string_value(json_object_get(json, "dataset")));
    const json_t *class;
    size_t i;
    FUZZ_CHECK(checked <= samples && bad <= checked);
    FUZZ_CHECK(json_is_true(json_object_get(json, "complete")) == (checked == samples));
    FUZZ_CHECK(json_array_size(json_object_get(json, "errors")) <= bad);
    json_array_foreach (json_object_get(json, "classes"), i, class) {
        in_classes += field_of(class, "samples");
        bad_in_classes += field_of(class, "bad");
    }
    FUZZ_CHECK(in_classes <= checked && bad_in_classes <= bad);
    if (dataset == NULL || samples != dataset->sample_count || checked != samples || starved)
        return;
    for (uint64_t sample = 0; sample < samples; sample++)
        due += (uint64_t)is_bad(dataset, sample, 1);
    FUZZ_CHECK(bad == due);
}

static void on_report(const Feedd__Report *report, const struct wire_packet *packet)
{
    static char text[1 << 20];
    FUZZ_CHECK(packet->fd_count == 1 && report->bytes < sizeof(text));
    check_sealed(packet->fds[0], report->bytes);
    read_at(packet->fds[0], text, report->bytes, 0);
    if (report->bytes > 0 && text[0] != '{') /* a sample's path, or a file and a number */
        return;
    json_t *json = json_loadb(text, report->bytes, 0, NULL), *error;
    size_t i;
    FUZZ_CHECK(json != NULL);
    json_array_foreach (json_object_get(json, "errors"), i, error)
        FUZZ_CHECK(json_string_length(json_object_get(error, "reason")) > 0);
    if (json_object_get(json, "checked") != NULL) {
        check_verified(json);
    } else if (json_object_get(json, "errors") == NULL) {
        FUZZ_CHECK(json_array_size(json_object_get(json, "datasets")) >= config->dataset_count);
        FUZZ_CHECK(json_array_size(json_object_get(json, "clients")) >= 1);
    }
    json_decref(json);
}

static void on_error(struct client *client, const Feedd__Error *error)
{
    FUZZ_CHECK(error->status < 0 && error->message[0] != '\0' && fuzz_is_utf8(error->message));
    if (error->has_request)
        on_answered(client, error->request);
    struct view *view = error->has_stream ? view_of(client, error->stream) : NULL;
    if (view == NULL)
        return;
    FUZZ_CHECK(!view->asked.no_fail || (error->status != FEEDD_E_CORRUPT && error->status != FEEDD_E_UNSUPPORTED));
    view->closed = 1;
}

static void on_packet(struct client *client, struct wire_packet *packet)
{
    static const ProtobufCMessageDescriptor *const types[] = {
        [WIRE_WELCOME] = &feedd__welcome__descriptor, [WIRE_STREAM] = &feedd__stream__descriptor,
        [WIRE_READY] = &feedd__ready__descriptor,     [WIRE_END] = &feedd__end__descriptor,
        [WIRE_REPORT] = &feedd__report__descriptor,   [WIRE_ERROR] = &feedd__error__descriptor,
        [WIRE_MEMBERS] = &feedd__members__descriptor, [WIRE_PROGRESS] = &feedd__progress__descriptor,
    };
    FUZZ_CHECK(packet->type <= WIRE_PROGRESS && types[packet->type] != NULL);
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
        on_answered(client, ((const Feedd__Report *)message)->request);
        on_report(message, packet);
        break;
    case WIRE_PROGRESS:
        on_progress(client, message);
        break;
    case WIRE_MEMBERS:
        on_members(client, message);
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
    client->welcomed = client->doomed = client->wild = 0;
    client->fds = client->request = client->view_count = client->verifies = client->verified = 0;
    memset(client->closed_early, 0, sizeof(client->closed_early));
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
    client->wild = 1;
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
    client->wild = 1;
    if (send_bytes(client, packet_room, sizeof(header) + size) == 0)
        client->doomed |= header.version != WIRE_VERSION ||
                          (header.type > WIRE_STATUS && header.type != WIRE_VERIFY && header.type != WIRE_CANCEL);
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

/* One of `sources`, with the folder's name in it. */
static char *source_text(const char *source)
{
    char *text = strdup(source[0] == '@' ? path_of(source + 2) : source);
    FUZZ_CHECK(text != NULL);
    return text;
}

static double take_double(struct fuzz_input *in)
{
    static const double special[] = {NAN, INFINITY, -INFINITY, 1e-300, 1e300, 3e38, 1e-38, -0.5, 0.25, 1.0 / 3};
    const size_t count = sizeof(special) / sizeof(special[0]);
    uint8_t byte = fuzz_byte(in);
    return byte < count ? special[byte] : byte - (double)count;
}

/* One a channel, mostly. */
static size_t take_doubles(struct fuzz_input *in, double values[8])
{
    uint8_t byte = fuzz_byte(in);
    size_t count = byte < 9 ? byte % 9u : 4;
    for (size_t i = 0; i < count && i < 8; i++)
        values[i] = take_double(in);
    return count < 8 ? count : 8;
}

/* Sends OPEN; `open` says already with whom, or `resume` where to begin. */
static void send_open(struct client *client, struct fuzz_input *in, Feedd__Open open)
{
    static char transports[][5] = {"host", "ipc", "fd", ""};
    char *list[3], *resume = NULL, *device = NULL;
    double values[2][8];
    uint8_t pick = fuzz_byte(in);
    uint32_t present = fuzz_byte(in);
    present |= (uint32_t)fuzz_byte(in) << 8;
    open.source = pick < SOURCE_COUNT ? source_text(sources[pick]) : take_text(in);
    open.request = ++client->request;
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
        open.request = (uint32_t)fuzz_number(in) & ~VERIFY_BIT;
    TAKE(13, normalize);
    if (present >> 14 & 1) {
        open.has_output_dtype = open.has_output_nchw = true;
        open.output_dtype = (uint32_t)fuzz_number(in);
        open.output_nchw = fuzz_byte(in) & 1;
    }
    if (present >> 15 & 1) {
        open.has_normalizes = open.has_output_scale = true;
        open.normalizes = fuzz_byte(in) & 1;
        open.output_scale = take_double(in);
        open.n_output_mean = take_doubles(in, open.output_mean = values[0]);
        open.n_output_std = take_doubles(in, open.output_std = values[1]);
    }
    int holds = open.has_join && !(open.has_incarnation && open.resume != NULL);
    client->asked[open.request & 255] = (struct asked){.join = holds ? (int)open.join : 0,
                                                       .no_fail = strcmp(open.source, "strict") != 0,
                                                       .dtype = (int)open.output_dtype,
                                                       .nchw = open.output_nchw,
                                                       .std = {1, 1, 1, 1},
                                                       .scale = open.has_output_scale ? open.output_scale : 255};
    struct asked *asked = &client->asked[open.request & 255];
    if (open.n_output_mean == 4)
        memcpy(asked->mean, open.output_mean, sizeof(asked->mean));
    if (open.n_output_std == 4)
        memcpy(asked->std, open.output_std, sizeof(asked->std));
    send_message(client, WIRE_OPEN, &open.base);
    free(open.source);
    free(resume);
    free(device);
}

static void op_open(struct client *client, struct fuzz_input *in)
{
    send_open(client, in, (Feedd__Open)FEEDD__OPEN__INIT);
}

/* OPEN as a member of a group: with = 1: of how many; 2: when it begins; 4: how long a gate waits; 8: it comes back as
 * libfeedd does; 16: as a member of a group that never was; 32: of how many; 64: share isn't broadcast. */
static void op_join(struct client *client, struct fuzz_input *in)
{
    Feedd__Open open = FEEDD__OPEN__INIT;
    const struct memory *memory = &client->memory;
    char token[FEEDD_TOKEN_TEXT], name[FEEDD_MAX_NAME + 2] = {0};
    uint8_t with = fuzz_byte(in), group = fuzz_byte(in);
    if (group % (GROUP_COUNT + 1) < GROUP_COUNT)
        open.group = (char *)(uintptr_t)groups[group % (GROUP_COUNT + 1)];
    else
        open.group = memset(name, 'x', group < 128 ? FEEDD_MAX_NAME : FEEDD_MAX_NAME + 1);
    open.has_share = true;
    open.share = FEEDD_SHARE_BROADCAST;
    if (with & 1) {
        open.has_members = true;
        open.members = (uint32_t)fuzz_number(in);
    }
    if (with & 2) {
        open.has_join = true;
        open.join = (uint32_t)fuzz_number(in);
    }
    if (with & 4) {
        open.has_gate_timeout_ms = true;
        open.gate_timeout_ms = (uint32_t)fuzz_number(in);
    }
    if (with & 8 && memory->incarnation != 0) {
        open.has_incarnation = open.has_incarnation_members = true;
        open.incarnation = memory->incarnation;
        open.incarnation_members = memory->members;
        token_format(&memory->token, token);
        open.resume = memory->started ? token : NULL;
    }
    if (with & 16) {
        open.has_incarnation = true;
        open.incarnation = 1 + fuzz_byte(in);
    }
    if (with & 32) {
        open.has_incarnation_members = true;
        open.incarnation_members = (uint32_t)fuzz_number(in);
    }
    if (with & 64)
        open.share = (uint32_t)fuzz_number(in);
    send_open(client, in, open);
}

static void op_attach(struct client *client, struct fuzz_input *in)
{
    struct view *view = take_view(client, in);
    Feedd__Attach attach = FEEDD__ATTACH__INIT;
    attach.stream = view->number;
    attach.nonce = view->nonce ^ (fuzz_byte(in) == 255);
    if (send_message(client, WIRE_ATTACH, &attach.base) != 0 || view->closed || view == &unknown)
        return;
    view->broke |= !view->lost && view->attached;
    if (attach.nonce != view->nonce && !view->attached) { /* the stream ends; that may be on its way */
        view->lost = 1;
        return;
    }
    if (view->shared != NULL && attach.nonce == view->nonce)
        view->shared->attached += !view->attached;
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
        view->broke |= kind == RIGHT + 1 || kind == RIGHT + 3 || kind == RIGHT + 4;
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
    if (send_message(client, WIRE_CLOSE, &message.base) != 0)
        return;
    view->closed = 1;
    if (view == &unknown)
        client->closed_early[view->number] = 1;
}

static void op_status(struct client *client, struct fuzz_input *in)
{
    Feedd__Status status = FEEDD__STATUS__INIT;
    uint8_t byte = fuzz_byte(in);
    uint32_t count = 1 + byte % 128; /* more than CONNECTION_QUEUE_MAX */
    status.has_errors = status.errors = byte >= 128;
    for (status.request = 1; status.request <= count; status.request++)
        send_message(client, WIRE_STATUS, &status.base);
}

/* Sends VERIFY; with = 1: how many errors to list; 2: several at once, of which all but one are refused. */
static void op_verify(struct client *client, struct fuzz_input *in)
{
    Feedd__Verify verify = FEEDD__VERIFY__INIT;
    uint8_t pick = fuzz_byte(in), with = fuzz_byte(in);
    verify.source = pick < SOURCE_COUNT ? source_text(sources[pick]) : take_text(in);
    if (with & 1) {
        verify.has_errors_max = true;
        verify.errors_max = (uint32_t)fuzz_number(in);
    }
    for (int count = with & 2 ? 1 + fuzz_byte(in) % 4 : 1; count > 0; count--) {
        verify.request = VERIFY_BIT + client->verifies;
        client->verifies += send_message(client, WIRE_VERIFY, &verify.base) == 0;
    }
    free(verify.source);
}

/* Of the last one (below 128), or of any request. */
static void op_cancel(struct client *client, struct fuzz_input *in)
{
    Feedd__Cancel cancel = FEEDD__CANCEL__INIT;
    uint8_t byte = fuzz_byte(in);
    cancel.request = byte < 128 ? VERIFY_BIT + client->verifies - 1 : (uint32_t)fuzz_number(in);
    send_message(client, WIRE_CANCEL, &cancel.base);
}

/* ---- what happens to the server ---- */

static void op_turn(struct client *client, struct fuzz_input *in)
{
    (void)client;
    for (int turns = 1 + fuzz_byte(in) % 4; turns > 0; turns--)
        turn();
}

/* Who broke the protocol has been closed, once the daemon has read that. */
static void check_doomed(struct client *client)
{
    int unread = 0;
    if (client->fd < 0 || ioctl(client->fd, SIOCOUTQ, &unread) != 0 || unread > 0)
        return;
    FUZZ_CHECK(!client->doomed || hung_up(client));
    for (uint32_t i = 0; i < client->view_count; i++)
        for (int tries = 0; client->views[i].broke && !client->views[i].closed && !hung_up(client); tries++) {
            FUZZ_CHECK(tries < 100);
            op_read(client, &(struct fuzz_input){NULL, 0}); /* that it had failed */
            turn();
        }
}

static void op_settle(struct client *client, struct fuzz_input *in)
{
    (void)client, (void)in;
    run_while(busy);
    check_settled();
    for (uint32_t c = 0; c < CLIENTS; c++)
        check_doomed(&clients[c]);
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
    starved |= starving != 0;
}

/* What the timer does, `seconds` from now. */
static void op_tick(struct client *client, struct fuzz_input *in)
{
    (void)client;
    uint64_t now_ns = clock_ns();
    uint64_t then_ns = now_ns + fuzz_byte(in) % 16 * 1000000000ull; /* gates and groups that form, too */
    pipeline_tick(&server->pipeline, then_ns);
    listener_resume(&server->listener);
    list_each (node, after, &server->connections)
        connection_tick(container_of(node, struct connection, node), then_ns);
}

/* The daemon stops, whatever is going on, and a new one takes its place. */
static void op_stop(struct client *client, struct fuzz_input *in)
{
    (void)client;
    server_stop(server);
    server_run(server);
    free(server);
    server = NULL;
    for (uint32_t c = 0; c < CLIENTS; c++)
        op_hang_up(&clients[c], in);
    check_fds(fds_without_server);
    start();
}

/* seeds.py counts on this order. */
static const struct operation {
    void (*run)(struct client *client, struct fuzz_input *in);
    int connected; /* does nothing for a client that isn't */
} operations[] = {
    {op_connect, 0}, {op_hello, 1},   {op_open, 1}, {op_attach, 1},   {op_release, 1}, {op_close, 1},
    {op_status, 1},  {op_read, 1},    {op_turn, 0}, {op_settle, 0},   {op_raw, 1},     {op_framed, 1},
    {op_fds, 1},     {op_squeeze, 0}, {op_tick, 0}, {op_shutdown, 1}, {op_hang_up, 1}, {op_stop, 0},
    {op_starve, 0},  {op_wait, 0},    {op_join, 1}, {op_verify, 1},   {op_cancel, 1},
};
#define OPERATION_COUNT (sizeof(operations) / sizeof(operations[0]))

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};
    if (config == NULL)
        prepare();
    if (server == NULL)
        start();
    ring_count = 0;
    starved = 0;
    for (uint32_t c = 0; c < CLIENTS; c++)
        memset(&clients[c].memory, 0, sizeof(clients[c].memory));
    while (in.left > 0) {
        const struct operation *operation = &operations[fuzz_byte(&in) % OPERATION_COUNT];
        struct client *client = &clients[fuzz_byte(&in) % CLIENTS];
        if (client->fd >= 0 || !operation->connected)
            operation->run(client, &in);
    }
    starving = 0;
    listener_resume(&server->listener);
    for (uint32_t c = 0; c < CLIENTS; c++)
        op_hang_up(&clients[c], &in);
    run_while(in_use);
    turn();
    check_idle();
    return 0;
}
