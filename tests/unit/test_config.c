/* test_config.c - feedd.conf: what a good one becomes, and the one line that each bad one gets.
 *
 * Happy path: every case writes a file into a folder of its own and loads it; values and messages are written out here
 * by hand. The folder goes at the end.
 * Threads: one. */
#include <check.h>
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "config.h"
#include "error.h"

static char folder[512];
static char file[600]; /* folder/feedd.conf */

static int descriptors; /* open when a case began */

static int descriptors_open(void)
{
    int count = 0;
    for (int fd = 0; fd < 256; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

static void folder_make(void)
{
    const char *tmp = getenv("TMPDIR");
    snprintf(folder, sizeof(folder), "%s/feedd-config-XXXXXX", tmp != NULL && tmp[0] == '/' ? tmp : "/tmp");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(file, sizeof(file), "%s/feedd.conf", folder);
    descriptors = descriptors_open();
}

static void folder_remove(void)
{
    unlink(file);
    ck_assert_int_eq(rmdir(folder), 0);
    ck_assert_int_eq(descriptors_open(), descriptors); /* whatever a case does, it leaves none open */
}

/* Some file systems write a file out when it is truncated and closed, and wait: a new file each time is much faster. */
static void write_bytes(const void *bytes, size_t length)
{
    unlink(file);
    FILE *f = fopen(file, "wb");
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fwrite(bytes, 1, length, f), length);
    ck_assert_int_eq(fclose(f), 0);
}

static struct config *load(const char *text)
{
    struct config *config = NULL;
    struct feedd_error err = {.message = ""};
    write_bytes(text, strlen(text));
    int rc = config_load(file, &config, &err);
    ck_assert_msg(rc == 0, "%s", err.message);
    return config;
}

/* Loads what has to be refused: with `status`, and exactly "FILE<message>". */
static void refuse_bytes(const void *bytes, size_t length, int status, const char *message)
{
    struct config *const untouched = (struct config *)file;
    struct config *config = untouched;
    struct feedd_error err = {.message = ""};
    char due[1024];
    write_bytes(bytes, length);
    int rc = config_load(file, &config, &err);
    snprintf(due, sizeof(due), "%s%s", file, message);
    ck_assert_str_eq(err.message, due);
    ck_assert_int_eq(rc, status);
    ck_assert_int_eq(err.status, status);
    ck_assert_ptr_eq(config, untouched);
    ck_assert_int_eq(config_load(file, &config, NULL), status); /* nobody has to want the message */
}

static void refuse(const char *text, const char *message)
{
    refuse_bytes(text, strlen(text), FEEDD_E_ARGUMENT, message);
}

#define FASHION "datasets:\n  fashion:\n    reader: idx\n    images: /d/images.gz\n"
#define TRAIN   FASHION "streams:\n  train:\n    dataset: fashion\n    batch_size: 64\n"

static const char full[] = "# a comment\n"
                           "streams:\n" /* before the datasets that they refer to */
                           "  train:\n"
                           "    dataset: fashion\n"
                           "    batch_size: 64\n"
                           "    order: shuffle\n"
                           "    seed: 18446744073709551615\n"
                           "    epochs: 3\n"
                           "    tail: partial\n"
                           "    depth: 8\n"
                           "    share: broadcast\n"
                           "    members: 4\n"
                           "    join: next-epoch\n"
                           "    on_error: zero\n"
                           "    channels: 1\n"
                           "    truncated: accept\n"
                           "    orientation: ignore\n"
                           "    decode: fast\n"
                           "    transform: {resize: 256, center_crop: [192, 224], flip: 0.25}\n"
                           "  fashion: {dataset: digits, batch_size: 65536, tail: pad, depth: auto}\n"
                           "daemon:\n"
                           "  socket: /run/feedd/other.sock\n"
                           "  workers: 12\n"
                           "  ring_memory_max: 4G\n"
                           "  dataset_memory_max: 512MiB\n"
                           "  gpus: [GPU-0fe1d2c3-b4a5-9687-7869-5a4b3c2d1e0f]\n"
                           "  gpu_memory_max: 3G\n"
                           "  pinned_max: 2G\n"
                           "  clients_max: 65536\n"
                           "  streams_per_client_max: 1024\n"
                           "  leases_per_client_max: 7\n"
                           "  ring_memory_per_client_max: 1G\n"
                           "  image_pixels_max: 1000000000000\n"
                           "  image_bytes_max: 1T\n"
                           "  read_timeout_ms: 250\n"
                           "  linger_s: 5\n"
                           "  cache_dir: cache\n"
                           "  allow: {users: [root, 4000000000], groups: [12345]}\n"
                           "  admin: {users: [77], groups: [root]}\n"
                           "datasets:\n"
                           "  fashion:\n"
                           "    reader: idx\n"
                           "    images: /usr/share/images.gz\n"
                           "    labels: \"/usr/share/labels.gz\"\n"
                           "    classes: [T-shirt/top, 'Trouser', \"caf\\u00e9\", Trouser]\n"
                           "    splits: {train: 0.75, val: 0.25}\n"
                           "    allow: {groups: [root]}\n"
                           "  digits:\n"
                           "    reader: idx\n"
                           "    images: mnist/images\n"
                           "    subset: 0.5\n"
                           "  photos: {reader: folder, root: photos, splits: {a: a.txt, b: /b.txt}}\n"
                           "  faces: {reader: list, list: f/faces.tsv, root: /faces, classes: [no, yes], "
                           "subset: some.txt}\n"
                           "  plain: {reader: list, list: /plain.tsv}\n";

static void rule_is(const struct access_rule *rule, bool everybody, uint32_t user_count, const uid_t *users,
                    uint32_t group_count, const gid_t *groups)
{
    ck_assert_int_eq(rule->everybody, everybody);
    ck_assert_uint_eq(rule->user_count, user_count);
    ck_assert_uint_eq(rule->group_count, group_count);
    for (uint32_t i = 0; i < user_count; i++)
        ck_assert_uint_eq(rule->users[i], users[i]);
    for (uint32_t i = 0; i < group_count; i++)
        ck_assert_uint_eq(rule->groups[i], groups[i]);
}

static void selection_is(const struct reader_config *dataset, uint32_t number, const char *name, double begin,
                         double end, const char *path)
{
    ck_assert_uint_lt(number, dataset->selection_count);
    const struct reader_selection *selection = &dataset->selections[number];
    ck_assert_pstr_eq(selection->name, name);
    ck_assert_double_eq(selection->fraction_begin, begin);
    ck_assert_double_eq(selection->fraction_end, end);
    ck_assert_pstr_eq(selection->file, path);
}

START_TEST(everything_set)
{
    char due[700];
    struct config *c = load(full);
    ck_assert_str_eq(c->path, file);
    ck_assert_str_eq(c->socket, "/run/feedd/other.sock");
    ck_assert_uint_eq(c->workers, 12);
    ck_assert_uint_eq(c->ring_memory_max, 4294967296u);
    ck_assert_uint_eq(c->dataset_memory_max, 536870912);
    ck_assert_uint_eq(c->gpu_count, 1);
    ck_assert_str_eq(c->gpus[0], "GPU-0fe1d2c3-b4a5-9687-7869-5a4b3c2d1e0f");
    ck_assert_uint_eq(c->gpu_memory_max, 3221225472u);
    ck_assert_uint_eq(c->pinned_max, 2147483648u);
    ck_assert_uint_eq(c->clients_max, 65536);
    ck_assert_uint_eq(c->streams_per_client_max, 1024);
    ck_assert_uint_eq(c->leases_per_client_max, 7);
    ck_assert_uint_eq(c->ring_memory_per_client_max, 1 << 30);
    ck_assert_uint_eq(c->image_pixels_max, 1000000000000);
    ck_assert_uint_eq(c->image_bytes_max, UINT64_C(1) << 40);
    ck_assert_uint_eq(c->read_timeout_ms, 250);
    ck_assert_uint_eq(c->linger_s, 5);
    snprintf(due, sizeof(due), "%s/cache", folder);
    ck_assert_str_eq(c->cache_dir, due);
    rule_is(&c->allow, false, 2, (const uid_t[]){0, 4000000000}, 1, (const gid_t[]){12345});
    rule_is(&c->admin, false, 3, (const uid_t[]){77, 0, geteuid()}, 1, (const gid_t[]){0});

    ck_assert_uint_eq(c->dataset_count, 5);
    const struct reader_config *fashion = &c->datasets[0], *digits = &c->datasets[1];
    ck_assert_str_eq(fashion->name, "fashion");
    ck_assert_ptr_eq(fashion->ops, &reader_idx);
    ck_assert_str_eq(fashion->images, "/usr/share/images.gz");
    ck_assert_str_eq(fashion->labels, "/usr/share/labels.gz");
    ck_assert_uint_eq(fashion->class_count, 4);
    ck_assert_str_eq(fashion->classes[0], "T-shirt/top");
    ck_assert_str_eq(fashion->classes[1], "Trouser");
    ck_assert_str_eq(fashion->classes[2], "caf\xc3\xa9");
    ck_assert_str_eq(fashion->classes[3], "Trouser");
    ck_assert_str_eq(digits->name, "digits");
    snprintf(due, sizeof(due), "%s/mnist/images", folder);
    ck_assert_str_eq(digits->images, due);
    ck_assert_ptr_null(digits->labels);
    ck_assert_ptr_null(digits->classes);
    ck_assert_uint_eq(digits->class_count, 0);
    const struct reader_config *photos = &c->datasets[2], *faces = &c->datasets[3], *plain = &c->datasets[4];
    ck_assert_ptr_eq(photos->ops, &reader_folder);
    snprintf(due, sizeof(due), "%s/photos", folder);
    ck_assert_str_eq(photos->root, due);
    ck_assert_ptr_eq(faces->ops, &reader_list);
    snprintf(due, sizeof(due), "%s/f/faces.tsv", folder);
    ck_assert_str_eq(faces->list, due);
    ck_assert_str_eq(faces->root, "/faces");
    ck_assert_uint_eq(faces->class_count, 2);
    ck_assert_str_eq(faces->classes[1], "yes");
    ck_assert_str_eq(plain->list, "/plain.tsv");
    ck_assert_ptr_null(plain->root); /* the reader takes the list's folder */

    ck_assert_uint_eq(fashion->selection_count, 3);
    selection_is(fashion, 0, NULL, 0, 0, NULL);
    selection_is(fashion, 1, "train", 0, 0.75, NULL);
    selection_is(fashion, 2, "val", 0.75, 1, NULL);
    ck_assert_uint_eq(digits->selection_count, 1);
    selection_is(digits, 0, NULL, 0, 0.5, NULL);
    ck_assert_uint_eq(photos->selection_count, 3);
    selection_is(photos, 0, NULL, 0, 0, NULL);
    snprintf(due, sizeof(due), "%s/a.txt", folder);
    selection_is(photos, 1, "a", 0, 0, due);
    selection_is(photos, 2, "b", 0, 0, "/b.txt");
    snprintf(due, sizeof(due), "%s/some.txt", folder);
    selection_is(faces, 0, NULL, 0, 0, due);
    ck_assert_uint_eq(plain->selection_count, 1);
    selection_is(plain, 0, NULL, 0, 0, NULL);

    rule_is(&c->dataset_access[0], false, 0, NULL, 1, (const gid_t[]){0});
    for (int i = 1; i < 5; i++)
        rule_is(&c->dataset_access[i], true, 0, NULL, 0, NULL);

    ck_assert_uint_eq(c->stream_count, 2);
    const struct config_stream *s = &c->streams[0];
    ck_assert_str_eq(s->name, "train");
    ck_assert_ptr_eq(s->dataset, fashion);
    ck_assert_uint_eq(s->batch_size, 64);
    ck_assert_int_eq(s->order, FEEDD_ORDER_SHUFFLE);
    ck_assert_uint_eq(s->seed, UINT64_MAX);
    ck_assert_uint_eq(s->epochs, 3);
    ck_assert_int_eq(s->tail, FEEDD_TAIL_PARTIAL);
    ck_assert_uint_eq(s->depth, 8);
    ck_assert_uint_eq(s->selection, 0);
    ck_assert_int_eq(s->share, FEEDD_SHARE_BROADCAST);
    ck_assert_uint_eq(s->members, 4);
    ck_assert_int_eq(s->join, FEEDD_JOIN_NEXT_EPOCH);
    ck_assert_int_eq(s->on_error, FEEDD_ON_ERROR_ZERO);
    ck_assert_int_eq(s->transform.kind, TRANSFORM_RESIZE_CENTER_CROP);
    ck_assert_uint_eq(s->transform.resize, 256);
    ck_assert_uint_eq(s->transform.height, 192);
    ck_assert_uint_eq(s->transform.width, 224);
    ck_assert_double_eq(s->transform.flip, 0.25);
    ck_assert(s->transform.fast && s->transform.ignore_orientation && s->transform.accept_truncated);
    ck_assert_uint_eq(s->transform.channels, 1);
    s = &c->streams[1]; /* a stream with a dataset's name, of another dataset */
    ck_assert_str_eq(s->name, "fashion");
    ck_assert_ptr_eq(s->dataset, digits);
    ck_assert_uint_eq(s->batch_size, 65536);
    ck_assert_int_eq(s->order, FEEDD_ORDER_SEQUENTIAL);
    ck_assert_uint_eq(s->seed, 0);
    ck_assert_uint_eq(s->epochs, 0);
    ck_assert_int_eq(s->tail, FEEDD_TAIL_PAD);
    ck_assert_uint_eq(s->depth, 0);
    ck_assert_int_eq(s->share, FEEDD_SHARE_PRIVATE);
    ck_assert_uint_eq(s->members, 0);
    ck_assert_int_eq(s->join, 0);
    ck_assert_int_eq(s->on_error, FEEDD_ON_ERROR_SUBSTITUTE);
    ck_assert_int_eq(s->transform.kind, TRANSFORM_NONE);
    ck_assert_uint_eq(s->transform.resize + s->transform.height + s->transform.width, 0);
    ck_assert_double_eq(s->transform.flip, 0);
    ck_assert(!s->transform.fast && !s->transform.ignore_orientation && !s->transform.accept_truncated);
    ck_assert_uint_eq(s->transform.channels, 0);

    ck_assert_ptr_eq(config_dataset(c, "fashion"), fashion);
    ck_assert_ptr_eq(config_dataset(c, "digits"), digits);
    ck_assert_ptr_null(config_dataset(c, "train"));
    ck_assert_ptr_eq(config_stream(c, "fashion"), s);
    ck_assert_ptr_null(config_stream(c, "digits"));
    config_free(c);
    config_free(NULL);
}
END_TEST

/* A file of nothing, of comments, of sections without content: all defaults. */
START_TEST(nothing_set)
{
    static const char *const files[] = {
        "",
        "# nothing\n",
        "---\n",
        "{}",
        "daemon:\n  # workers: 4\ndatasets:\nstreams:\n",
        "\xef\xbb\xbf"
        "daemon: {}\n",
        "daemon: {workers: auto, ring_memory_max: auto, dataset_memory_max: auto, admin: {}, gpus: all,\n"
        "ring_memory_per_client_max: auto}\n...\n",
        NULL, /* no file at all */
    };
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        struct config *c = NULL;
        if (files[i] != NULL)
            c = load(files[i]);
        else
            ck_assert_int_eq(config_empty(&c, NULL), 0);
        ck_assert_str_eq(c->path, files[i] != NULL ? file : "the built-in defaults");
        ck_assert_str_eq(c->socket, "/run/feedd/feedd.sock");
        ck_assert_uint_eq(c->workers, 0);
        ck_assert_uint_eq(c->ring_memory_max, 0);
        ck_assert_uint_eq(c->dataset_memory_max, 0);
        ck_assert_ptr_null(c->gpus);
        ck_assert_uint_eq(c->gpu_memory_max, 0);
        ck_assert_uint_eq(c->pinned_max, 0);
        ck_assert_uint_eq(c->clients_max, 256);
        ck_assert_uint_eq(c->streams_per_client_max, 16);
        ck_assert_uint_eq(c->leases_per_client_max, 1024);
        ck_assert_uint_eq(c->ring_memory_per_client_max, 0);
        ck_assert_uint_eq(c->read_timeout_ms, 30000);
        ck_assert_uint_eq(c->linger_s, 30);
        rule_is(&c->allow, true, 0, NULL, 0, NULL);
        rule_is(&c->admin, false, 2, (const uid_t[]){0, geteuid()}, 0, NULL);
        ck_assert_uint_eq(c->dataset_count, 0);
        ck_assert_uint_eq(c->stream_count, 0);
        ck_assert_ptr_null(config_dataset(c, ""));
        ck_assert_ptr_null(config_stream(c, ""));
        config_free(c);
    }
}
END_TEST

START_TEST(sizes)
{
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {
        {"1", 1},
        {"'4096'", 4096},
        {"1K", 1024},
        {"3KiB", 3072},
        {"7M", 7340032},
        {"7MiB", 7340032},
        {"2G", 2147483648},
        {"2GiB", 2147483648},
        {"5T", 5497558138880},
        {"16777215TiB", 18446742974197923840u},
        {"18446744073709551615", 18446744073709551615u},
    };
    static const char *const bad[] = {
        "0",
        "0K",
        "-1",
        "+1",
        "1k",
        "1KB",
        "1 K",
        "1.5G",
        "1e9",
        "0x10",
        "K",
        "''",
        "1GiBs",
        "1_000",
        "inf",
        "16777216T",
        "16777217T",
        "18014398509481985K",
        "18446744073709551616",
        "99999999999999999999999999999G",
        "Auto",
    };
    char text[256];
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        snprintf(text, sizeof(text), "daemon:\n  ring_memory_max: %s\n", good[i].text);
        struct config *c = load(text);
        ck_assert_uint_eq(c->ring_memory_max, good[i].bytes);
        config_free(c);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        char due[512];
        snprintf(text, sizeof(text), "daemon:\n  dataset_memory_max: %s\n", bad[i]);
        snprintf(due, sizeof(due),
                 ":2: daemon.dataset_memory_max: '%s' is not allowed; allowed: bytes from 1 to "
                 "18446744073709551615, with K, M, G or T for powers of 1024, or auto",
                 bad[i][0] == '\'' ? "" : bad[i]);
        refuse(text, due);
    }
}
END_TEST

/* Both ends of every range are allowed, and their neighbours aren't. */
START_TEST(ranges)
{
    static const struct {
        const char *before, *place, *line; /* line: of the key */
        const char *below, *above, *range;
        uint64_t min, max;
    } cases[] = {
        {"daemon:\n  workers: ", "daemon.workers", "2", "0", "1025", "1 to 1024, or auto", 1, 1024},
        {"daemon:\n  clients_max: ", "daemon.clients_max", "2", "0", "65537", "1 to 65536", 1, 65536},
        {"daemon:\n  streams_per_client_max: ", "daemon.streams_per_client_max", "2", "0", "1025", "1 to 1024", 1,
         1024},
        {"daemon:\n  leases_per_client_max: ", "daemon.leases_per_client_max", "2", "0", "1048577", "1 to 1048576", 1,
         1048576},
        {"daemon:\n  read_timeout_ms: ", "daemon.read_timeout_ms", "2", "99", "3600001", "100 to 3600000", 100,
         3600000},
        {"daemon:\n  linger_s: ", "daemon.linger_s", "2", "-1", "86401", "0 to 86400", 0, 86400},
        {TRAIN "    share: broadcast\n    members: ", "streams.train.members", "10", "0", "1025", "1 to 1024", 1, 1024},
        {TRAIN "    depth: ", "streams.train.depth", "9", "1", "1025", "2 to 1024, or auto", 2, 1024},
        {FASHION "streams:\n  train:\n    dataset: fashion\n    batch_size: ", "streams.train.batch_size", "8", "0",
         "65537", "1 to 65536", 1, 65536},
        {TRAIN "    seed: ", "streams.train.seed", "9", "-1", "18446744073709551616", "0 to 18446744073709551615", 0,
         UINT64_MAX},
        {TRAIN "    epochs: ", "streams.train.epochs", "9", "-1", "18446744073709551616", "0 to 18446744073709551615",
         0, UINT64_MAX},
    };
    static const char *const junk[] = {"x",  "12x",  "0x10", "1.0", "1e3", "' 5'", "4294967297000000000000",
                                       "-0", "auto5"};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[512], due[512];
        const uint64_t ends[] = {cases[i].min, cases[i].max};
        for (int e = 0; e < 2; e++) {
            snprintf(text, sizeof(text), "%s%llu\n", cases[i].before, (unsigned long long)ends[e]);
            struct config *c = load(text);
            const struct config_stream *s = c->streams;
            const uint64_t got[] = {c->workers,
                                    c->clients_max,
                                    c->streams_per_client_max,
                                    c->leases_per_client_max,
                                    c->read_timeout_ms,
                                    c->linger_s,
                                    s != NULL ? s->members : 0,
                                    s != NULL ? s->depth : 0,
                                    s != NULL ? s->batch_size : 0,
                                    s != NULL ? s->seed : 0,
                                    s != NULL ? s->epochs : 0};
            ck_assert_uint_eq(got[i], ends[e]);
            config_free(c);
        }
        for (size_t j = 0; j < 2 + sizeof(junk) / sizeof(junk[0]); j++) {
            const char *value = j == 0 ? cases[i].below : j == 1 ? cases[i].above : junk[j - 2];
            snprintf(text, sizeof(text), "%s%s\n", cases[i].before, value);
            snprintf(due, sizeof(due), ":%s: %s: '%s' is not allowed; allowed: a whole number from %s", cases[i].line,
                     cases[i].place, strcmp(value, "' 5'") == 0 ? " 5" : value, cases[i].range);
            refuse(text, due);
        }
    }
    refuse("daemon: {clients_max: auto}",
           ":1: daemon.clients_max: 'auto' is not allowed; allowed: a whole number from 1 "
           "to 65536");
}
END_TEST

START_TEST(keys_and_kinds)
{
    refuse("daemon:\n\n  wrokers: 4\n", ":3: daemon.wrokers: unknown key; allowed: socket, workers, numa, "
                                        "ring_memory_max, dataset_memory_max, gpus, gpu_memory_max, pinned_max, "
                                        "clients_max, streams_per_client_max, leases_per_client_max, "
                                        "ring_memory_per_client_max, image_pixels_max, image_bytes_max, "
                                        "read_timeout_ms, linger_s, cache_dir, allow, admin");
    refuse("deamon:\n  workers: 4\n", ":1: deamon: unknown key; allowed: daemon, datasets, streams");
    refuse("datasets:\n  a:\n    image: x\n    reader: idx\n",
           ":3: datasets.a.image: unknown key; allowed: reader, images, labels, classes, subset, splits, allow");
    refuse("datasets:\n  a:\n    images: x\n    reader: folder\n",
           ":3: datasets.a.images: unknown key; allowed: reader, root, subset, splits, allow");
    refuse("datasets:\n  a:\n    images: x\n    reader: list\n",
           ":3: datasets.a.images: unknown key; allowed: reader, list, root, classes, subset, splits, allow");
    refuse("datasets:\n  a:\n    reader: idx\n    images: x\n    reader: list\n",
           ":5: datasets.a.reader: repeated key; allowed: once, and it stands in line 3");
    refuse(TRAIN "    batchsize: 3\n",
           ":9: streams.train.batchsize: unknown key; allowed: dataset, batch_size, order, seed, "
           "epochs, tail, depth, share, members, join, on_error, transform, decode, orientation, truncated, channels, "
           "output, "
           "normalize");
    refuse("'': 1\n", ":1: unknown key; allowed: daemon, datasets, streams");
    refuse("<<: {daemon: {}}\n", ":1: <<: unknown key; allowed: daemon, datasets, streams");

    refuse("daemon:\n  workers: 4\n  clients_max: 3\n  workers: 4\n",
           ":4: daemon.workers: repeated key; allowed: once, and it stands in line 2");
    refuse("daemon: {}\nstreams: {}\ndaemon: {}\n", ":3: daemon: repeated key; allowed: once, and it stands in line 1");
    refuse(FASHION "  fashion: {reader: idx, images: x}\n",
           ":5: datasets.fashion: repeated name; allowed: once, and it stands in line 2");
    refuse(TRAIN "  train: {dataset: fashion, batch_size: 1}\n",
           ":9: streams.train: repeated name; allowed: once, and it stands in line 6");

    refuse("datasets:\n  a:\n    images: x\n", ":2: datasets.a.reader: missing; required: reader");
    refuse("\ndatasets:\n  a:\n    reader: idx\n", ":3: datasets.a.images: missing; required: reader, images");
    refuse("datasets:\n  a:\n", ":2: datasets.a.reader: missing; required: reader");
    refuse("datasets:\n  a: {reader: folder}\n", ":2: datasets.a.root: missing; required: reader, root");
    refuse("datasets:\n  a: {reader: list, root: x}\n", ":2: datasets.a.list: missing; required: reader, list");
    refuse(FASHION "streams:\n  train:\n    dataset: fashion\n",
           ":6: streams.train.batch_size: missing; required: dataset, batch_size");
    refuse("streams:\n  train: {batch_size: 3}\n", ":2: streams.train.dataset: missing; required: dataset, batch_size");

    refuse("text", ":1: is text; allowed: a mapping (lines of `key: value`)");
    refuse("- daemon\n", ":1: is a list; allowed: a mapping (lines of `key: value`)");
    refuse("daemon:\n- workers\n", ":2: daemon: is a list; allowed: a mapping (lines of `key: value`)");
    refuse("daemon: 3\n", ":1: daemon: is text; allowed: a mapping (lines of `key: value`)");
    refuse("datasets: [a]\n", ":1: datasets: is a list; allowed: a mapping (lines of `key: value`)");
    refuse("streams: x\n", ":1: streams: is text; allowed: a mapping (lines of `key: value`)");
    refuse("datasets:\n  a: [b]\n", ":2: datasets.a: is a list; allowed: a mapping (lines of `key: value`)");
    refuse("streams:\n  a: b\n", ":2: streams.a: is text; allowed: a mapping (lines of `key: value`)");
    refuse("daemon:\n  workers: [4]\n", ":2: daemon.workers: is a list; allowed: one value");
    refuse("daemon:\n  ring_memory_max: {a: b}\n", ":2: daemon.ring_memory_max: is a mapping; allowed: one value");
    refuse("daemon:\n  socket: [x]\n", ":2: daemon.socket: is a list; allowed: one value");
    refuse("datasets:\n  a: {reader: [idx], images: x}\n", ":2: datasets.a.reader: is a list; allowed: one value");
    refuse("datasets:\n  a: {reader: idx, images: [x]}\n", ":2: datasets.a.images: is a list; allowed: one value");
    refuse("streams:\n  a: {dataset: [x], batch_size: 1}\n", ":2: streams.a.dataset: is a list; allowed: one value");
    refuse(TRAIN "    order: [shuffle]\n", ":9: streams.train.order: is a list; allowed: one value");
    refuse(TRAIN "    seed:\n      - 1\n", ":10: streams.train.seed: is a list; allowed: one value");
    refuse("[a]: b\n", ":1: is a list; allowed: one value");
    refuse("datasets: {[a]: b}\n", ":1: datasets: is a list; allowed: one value");
    refuse("daemon: {{a: b}: c}\n", ":1: daemon: is a mapping; allowed: one value");
}
END_TEST

START_TEST(values)
{
    refuse(TRAIN "    order: suffle\n",
           ":9: streams.train.order: 'suffle' is not an order; allowed: sequential, shuffle");
    refuse(TRAIN "    order: Shuffle\n",
           ":9: streams.train.order: 'Shuffle' is not an order; allowed: sequential, shuffle");
    refuse(TRAIN "    order:\n", ":9: streams.train.order: '' is not an order; allowed: sequential, shuffle");
    refuse(TRAIN "    tail: dorp\n",
           ":9: streams.train.tail: 'dorp' is not a tail policy; allowed: drop, pad, partial");
    refuse("datasets:\n  a: {images: x, reader: jpeg}\n",
           ":2: datasets.a.reader: 'jpeg' is not a reader; allowed: idx, folder, list");
    refuse(FASHION "  digits: {reader: idx, images: x}\nstreams:\n  train:\n    batch_size: 1\n    dataset: fashon\n",
           ":9: streams.train.dataset: 'fashon' is not a dataset; allowed: fashion, digits");
    refuse("streams:\n  s: {dataset: s, batch_size: 1}\n",
           ":2: streams.s.dataset: 's' is not a dataset; allowed: none, as `datasets:` has none");
    refuse("daemon:\n  socket:\n", ":2: daemon.socket: empty; allowed: a path");
    refuse(FASHION "    labels: ''\n", ":5: datasets.fashion.labels: empty; allowed: a path");
    refuse(FASHION "    classes: a\n", ":5: datasets.fashion.classes: is text; allowed: a list of names");
    refuse(FASHION "    classes: []\n", ":5: datasets.fashion.classes: 0 names; allowed: 1 to 65536, or no such key");
    refuse(FASHION "    classes:\n    - a\n    - [b]\n", ":7: datasets.fashion.classes: is a list; allowed: one value");
    refuse(FASHION "    classes:\n    - a\n    - ''\n",
           ":7: datasets.fashion.classes: name 2 of the list has 0 bytes; allowed: 1 to 255");

    /* A long value is cut for the message, at a whole character: 63 bytes and a two-byte one don't fit into 64. */
    refuse(TRAIN "    tail: aaaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeeeeeffffffffffggg\xc3\xa9zz\n",
           ":9: streams.train.tail: 'aaaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeeeeeffffffffffggg...' is not a tail "
           "policy; allowed: drop, pad, partial");
    /* A line break in a value doesn't break the message's line. */
    refuse(TRAIN "    tail: \"a\\nb\"\n",
           ":9: streams.train.tail: 'a?b' is not a tail policy; allowed: drop, pad, partial");
}
END_TEST

#define SPLITS   FASHION "    splits:\n"
#define FRACTION " is not allowed; allowed: a fraction above 0 and up to 1, or a file of indices"

START_TEST(selections)
{
    static const struct {
        const char *value;
        double fraction;
    } numbers[] = {{"1", 1}, {"1.0", 1}, {"0.1", 0.1}, {".5", 0.5}, {"1e-3", 1e-3}, {"'0.25'", 0.25}, {"+1.", 1}};
    static const char *const outside[] = {"0", "0.0", "-0.5", "1.0001", "2", "10", "1e9", "-1e-9", "1e999"};
    static const char *const files[] = {"1/2", "0x1", "nan", "inf", "0.5f", "10%", "0,1", "./0.5", "e", "0.1 "};
    char text[600], due[700];
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        snprintf(text, sizeof(text), FASHION "    subset: %s\n", numbers[i].value);
        struct config *c = load(text);
        selection_is(&c->datasets[0], 0, NULL, 0, numbers[i].fraction, NULL);
        config_free(c);
    }
    for (size_t i = 0; i < sizeof(outside) / sizeof(outside[0]); i++) {
        snprintf(text, sizeof(text), FASHION "    subset: %s\n", outside[i]);
        snprintf(due, sizeof(due), ":5: datasets.fashion.subset: '%s'" FRACTION, outside[i]);
        refuse(text, due);
        snprintf(text, sizeof(text), SPLITS "      a: 0.1\n      b: %s\n", outside[i]);
        snprintf(due, sizeof(due), ":7: datasets.fashion.splits.b: '%s'" FRACTION, outside[i]);
        refuse(text, due);
    }
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        snprintf(text, sizeof(text), FASHION "    subset: '%s'\n", files[i]);
        snprintf(due, sizeof(due), "%s/%s", folder, files[i]);
        struct config *c = load(text);
        selection_is(&c->datasets[0], 0, NULL, 0, 0, due);
        config_free(c);
    }

    /* Sums that rounding takes beside 1 end at 1 all the same, and each split where the next one begins. */
    static const char *const sums[] = {"a: 0.7, b: 0.2, c: 0.1", "a: 0.1, b: 0.2, c: 0.3, d: 0.4",
                                       "a: 0.6, b: 0.3, c: 0.1", "a: 0.3333333333, b: 0.3333333333, c: 0.3333333333"};
    for (size_t i = 0; i < sizeof(sums) / sizeof(sums[0]); i++) {
        snprintf(text, sizeof(text), FASHION "    splits: {%s}\n", sums[i]);
        struct config *c = load(text);
        const struct reader_config *dataset = &c->datasets[0];
        ck_assert_double_eq(dataset->selections[1].fraction_begin, 0);
        for (uint32_t s = 2; s < dataset->selection_count; s++)
            ck_assert_double_eq(dataset->selections[s].fraction_begin, dataset->selections[s - 1].fraction_end);
        ck_assert_double_eq(dataset->selections[dataset->selection_count - 1].fraction_end, 1);
        config_free(c);
    }
    struct config *c = load(SPLITS "      b: 0.25\n      a: 0.5\n"); /* the order of the file; less than all */
    selection_is(&c->datasets[0], 1, "b", 0, 0.25, NULL);
    selection_is(&c->datasets[0], 2, "a", 0.25, 0.75, NULL);
    config_free(c);
    c = load(SPLITS);
    ck_assert_uint_eq(c->datasets[0].selection_count, 1);
    config_free(c);

    refuse(SPLITS "      a: 0.6\n      b: 0.3\n      c: 0.2\n",
           ":8: datasets.fashion.splits.c: the splits up to this one are 1.1 of the dataset; allowed: at most 1");
    refuse(
        SPLITS "      a: 0.6\n      b: b.txt\n",
        ":7: datasets.fashion.splits.b: fractions and files together; allowed: a fraction for every split, or a file "
        "for each");
    refuse(
        SPLITS "      a: a.txt\n      b: b.txt\n      c: 0.1\n",
        ":8: datasets.fashion.splits.c: fractions and files together; allowed: a fraction for every split, or a file "
        "for each");
    refuse(FASHION "    splits: {a: 0.1}\n    subset: 0.5\n",
           ":5: datasets.fashion.splits: the dataset has a `subset` already; allowed: one of the two");
    refuse(FASHION "    splits: {a: 0.1}\n    subset: x\n",
           ":5: datasets.fashion.splits: the dataset has a `subset` already; allowed: one of the two");
    refuse(SPLITS "      a: 0.1\n      a: 0.1\n",
           ":7: datasets.fashion.splits.a: repeated name; allowed: once, and it stands in line 6");
    refuse(SPLITS "      a/b: 0.1\n",
           ":6: datasets.fashion.splits.a/b: not a name; allowed: letters A-Z and a-z, digits, '.', '_' and '-'");
    refuse(SPLITS "      a: [0.1]\n", ":6: datasets.fashion.splits.a: is a list; allowed: one value");
    refuse(SPLITS "      a: ''\n", ":6: datasets.fashion.splits.a: empty; allowed: a path");
    refuse(FASHION "    splits: [a, b]\n",
           ":5: datasets.fashion.splits: is a list; allowed: a mapping (lines of `key: value`)");
    refuse(FASHION "    subset: [0.1]\n", ":5: datasets.fashion.subset: is a list; allowed: one value");
    refuse(FASHION "    subset:\n", ":5: datasets.fashion.subset: empty; allowed: a path");

    char *many = malloc(10000);
    size_t used = (size_t)sprintf(many, FASHION "    splits: {");
    for (int i = 0; i < 256; i++)
        used += (size_t)sprintf(many + used, "s%d: 0.001, ", i);
    sprintf(many + used, "}\n");
    c = load(many);
    ck_assert_uint_eq(c->datasets[0].selection_count, 257);
    config_free(c);
    sprintf(many + used, "s256: 0.001}\n");
    refuse(many, ":5: datasets.fashion.splits: 257 entries; allowed: at most 256");
    free(many);
}
END_TEST

/* What a stream or a client may ask for by name. */
START_TEST(selection_names)
{
    static const char text[] = "datasets:\n  a: {reader: idx, images: x, splits: {train: 0.5, val: 0.5}}\n"
                               "  ab: {reader: idx, images: x, subset: 0.5}\n"
                               "streams:\n  one: {dataset: a, batch_size: 1}\n  two: {dataset: a/val, batch_size: 1}\n"
                               "  three: {dataset: ab, batch_size: 1}\n  four: {dataset: a/train, batch_size: 1}\n";
    static const char *const unknown[] = {"",  "b",      "a/",     "a/trai",  "a/train2", "ab/train", "/train",
                                          "/", "a//val", "a/val/", "a/a/val", "A",        "abc",      "a /val"};
    struct config *c = load(text);
    const struct reader_config *a = &c->datasets[0], *ab = &c->datasets[1];
    const struct reader_config *const datasets[] = {a, a, ab, a};
    const uint32_t numbers[] = {0, 2, 0, 1};
    static const char *const names[] = {"a", "a/val", "ab", "a/train"};
    for (int i = 0; i < 4; i++) {
        const struct reader_config *dataset = NULL;
        uint32_t selection = 77;
        ck_assert_ptr_eq(c->streams[i].dataset, datasets[i]);
        ck_assert_uint_eq(c->streams[i].selection, numbers[i]);
        ck_assert(config_dataset_selection(c, names[i], &dataset, &selection));
        ck_assert_ptr_eq(dataset, datasets[i]);
        ck_assert_uint_eq(selection, numbers[i]);
    }
    for (size_t i = 0; i < sizeof(unknown) / sizeof(unknown[0]); i++) {
        const struct reader_config *dataset = ab;
        uint32_t selection = 77;
        ck_assert(!config_dataset_selection(c, unknown[i], &dataset, &selection));
        ck_assert_ptr_eq(dataset, ab);
        ck_assert_uint_eq(selection, 77);
    }
    config_free(c);

    refuse(FASHION "    splits: {train: 0.5, val: 0.5}\nstreams:\n  s: {batch_size: 1, dataset: fashion/test}\n",
           ":7: streams.s.dataset: 'test' is not a split of fashion; allowed: train, val");
    refuse(FASHION "streams:\n  s: {batch_size: 1, dataset: fashion/test}\n",
           ":6: streams.s.dataset: 'test' is not a split of fashion; allowed: none, as it has no `splits:`");
    refuse(FASHION "streams:\n  s: {batch_size: 1, dataset: fashio/test}\n",
           ":6: streams.s.dataset: 'fashio/test' is not a dataset; allowed: fashion");
}
END_TEST

START_TEST(outputs)
{
    static const struct {
        const char *lines;
        struct output_spec output;
    } good[] = {
        {"", {.std = {1, 1, 1, 1}, .scale = 255}},
        {"normalize: auto", {.std = {1, 1, 1, 1}, .scale = 255}},
        {"normalize: daemon", {.mode = FEEDD_NORMALIZE_DAEMON, .std = {1, 1, 1, 1}, .scale = 255}},
        {"output: {dtype: float32}", {.dtype = FEEDD_F32, .std = {1, 1, 1, 1}, .scale = 255}},
        {"normalize: cpu\n    output: {dtype: u8, layout: nchw}", /* in this order, too */
         {.mode = FEEDD_NORMALIZE_CPU, .dtype = FEEDD_U8, .nchw = true, .std = {1, 1, 1, 1}, .scale = 255}},
        {"output: {dtype: bf16, layout: nhwc, mean: -0.5, std: [2.5e-1], scale: 1}\n    normalize: client",
         {.mode = FEEDD_NORMALIZE_CLIENT,
          .dtype = FEEDD_BF16,
          .mean = {-0.5, -0.5, -0.5, -0.5},
          .std = {0.25, 0.25, 0.25, 0.25},
          .scale = 1}},
        {"output: {dtype: int8, mean: [1, 2, 3], std: 4}",
         {.dtype = FEEDD_I8, .mean = {1, 2, 3, 0}, .std = {4, 4, 4, 0}, .scale = 255}},
        {"output: {dtype: float16, mean: [1, 2, 3, 4], std: [5, 6, 7, 8]}",
         {.dtype = FEEDD_F16, .mean = {1, 2, 3, 4}, .std = {5, 6, 7, 8}, .scale = 255}},
    };
    static const struct {
        const char *line, *message;
    } bad[] = {
        {"normalize: gpu", "normalize: 'gpu' is not allowed; allowed: auto, client, daemon, cpu"},
        {"normalize: [cpu]", "normalize: is a list; allowed: one value"},
        {"output: float32", "output: is text; allowed: a mapping (lines of `key: value`)"},
        {"output: {layout: nchw}", "output.dtype: missing; required: dtype"},
        {"output: {dtype: float32, size: 3}", "output.size: unknown key; allowed: dtype, layout, mean, std, scale"},
        {"output: {dtype: int64}", "output.dtype: 'int64' is not a type of images; allowed: uint8, int8, float16, "
                                   "bfloat16, float32 (or u8, i8, f16, bf16, f32)"},
        {"output: {dtype: f64}", "output.dtype: 'f64' is not a type of images; allowed: uint8, int8, float16, "
                                 "bfloat16, float32 (or u8, i8, f16, bf16, f32)"},
        {"output: {dtype: f32, layout: hwc}", "output.layout: 'hwc' is not a layout; allowed: nhwc, nchw"},
        {"output: {dtype: f32, mean: []}", "output.mean: 0 numbers; allowed: one, or a list of 1 to 4, one a channel"},
        {"output: {dtype: f32, std: [1, 1, 1, 1, 1]}",
         "output.std: 5 numbers; allowed: one, or a list of 1 to 4, one a channel"},
        {"output: {dtype: f32, mean: [0, x]}", "output.mean: 'x' is not allowed; allowed: a number"},
        {"output: {dtype: f32, mean: 1e999}", "output.mean: '1e999' is not allowed; allowed: a number"},
        {"output: {dtype: f32, std: 0}", "output.std: '0' is not allowed; allowed: a number above 0"},
        {"output: {dtype: f32, std: [1, -1]}", "output.std: '-1' is not allowed; allowed: a number above 0"},
        {"output: {dtype: f32, scale: 0}", "output.scale: '0' is not allowed; allowed: a number above 0"},
    };
    char text[500], message[300];
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        snprintf(text, sizeof(text), TRAIN "    %s\n", good[i].lines);
        struct config *c = load(text);
        const struct output_spec *got = &c->streams[0].output, *due = &good[i].output;
        ck_assert_msg(got->mode == due->mode && got->dtype == due->dtype && got->nchw == due->nchw, "case %zu", i);
        ck_assert_double_eq(got->scale, due->scale);
        for (int channel = 0; channel < NORMALIZE_CHANNELS_MAX; channel++) {
            ck_assert_msg(got->mean[channel] == due->mean[channel], "case %zu: mean %d", i, channel);
            ck_assert_msg(got->std[channel] == due->std[channel], "case %zu: std %d", i, channel);
        }
        config_free(c);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        snprintf(text, sizeof(text), TRAIN "    %s\n", bad[i].line);
        snprintf(message, sizeof(message), ":9: streams.train.%s", bad[i].message);
        refuse(text, message);
    }
}
END_TEST

START_TEST(sharing)
{
    static const struct {
        const char *lines;
        uint32_t members;
        int join;
    } good[] = {{"", 0, 0},
                {"    members: 3\n", 3, 0},
                {"    join: now\n    members: 3\n", 3, FEEDD_JOIN_NOW},
                {"    join: gate\n    members: 3\n", 3, FEEDD_JOIN_GATE}, /* in this order, too */
                {"    join: next-epoch\n", 0, FEEDD_JOIN_NEXT_EPOCH}};
    char text[500];
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        snprintf(text, sizeof(text), TRAIN "%s    share: broadcast\n", good[i].lines);
        struct config *c = load(text);
        ck_assert_int_eq(c->streams[0].share, FEEDD_SHARE_BROADCAST);
        ck_assert_uint_eq(c->streams[0].members, good[i].members);
        ck_assert_int_eq(c->streams[0].join, good[i].join);
        config_free(c);
    }
    refuse(TRAIN "    members: 3\n",
           ":9: streams.train.members: the stream is private; allowed: with `share: broadcast` only");
    refuse(TRAIN "    share: private\n    join: now\n",
           ":10: streams.train.join: the stream is private; allowed: with `share: broadcast` only");
    refuse(TRAIN "    share: broadcast\n    join: gate\n",
           ":10: streams.train.join: gate waits until the group is complete; required: `members`, how many it has");
    refuse(TRAIN "    share: everyone\n",
           ":9: streams.train.share: 'everyone' is not a way to share; allowed: private, broadcast");
    refuse(TRAIN "    share: broadcast\n    join: later\n",
           ":10: streams.train.join: 'later' is not a way to join; allowed: now, gate, next-epoch");
    refuse(TRAIN "    on_error: ignore\n",
           ":9: streams.train.on_error: 'ignore' is not an error policy; allowed: substitute, zero, fail");
    struct config *c = load(TRAIN "    on_error: fail\n");
    ck_assert_int_eq(c->streams[0].on_error, FEEDD_ON_ERROR_FAIL);
    config_free(c);
}
END_TEST

static void spec_is(const struct transform_spec *got, const struct transform_spec *due, const char *text)
{
    ck_assert_msg(got->kind == due->kind && got->resize == due->resize && got->resize_height == due->resize_height &&
                      got->resize_width == due->resize_width && got->height == due->height &&
                      got->width == due->width && memcmp(got->scale, due->scale, sizeof(due->scale)) == 0 &&
                      memcmp(got->ratio, due->ratio, sizeof(due->ratio)) == 0 &&
                      memcmp(got->padding, due->padding, sizeof(due->padding)) == 0 && got->flip == due->flip &&
                      got->fast == due->fast && got->ignore_orientation == due->ignore_orientation &&
                      got->accept_truncated == due->accept_truncated && got->channels == due->channels,
                  "%s", text);
}

#define RANDOM_RESIZED_CROP(rows, columns, scale_least, scale_most, ratio_least, ratio_most, p)                        \
    {                                                                                                                  \
        .kind = TRANSFORM_RANDOM_RESIZED_CROP, .height = (rows), .width = (columns),                                   \
        .scale = {(scale_least), (scale_most)}, .ratio = {(ratio_least), (ratio_most)}, .flip = (p)                    \
    }
#define RANDOM_CROP(rows, columns, left, top, right, bottom)                                                           \
    {                                                                                                                  \
        .kind = TRANSFORM_RANDOM_CROP, .height = (rows), .width = (columns), .padding = {                              \
            (left),                                                                                                    \
            (top),                                                                                                     \
            (right),                                                                                                   \
            (bottom)                                                                                                   \
        }                                                                                                              \
    }

START_TEST(transforms)
{
    static const struct {
        const char *text;
        struct transform_spec spec;
    } good[] = {
        {"{}", {.kind = TRANSFORM_NONE}},
        {"", {.kind = TRANSFORM_NONE}},
        {"{flip: 0.5}", {.kind = TRANSFORM_NONE, .flip = 0.5}},
        {"{flip: 1}", {.kind = TRANSFORM_NONE, .flip = 1}},
        {"{center_crop: 224, resize: 256}",
         {.kind = TRANSFORM_RESIZE_CENTER_CROP, .resize = 256, .height = 224, .width = 224}},
        {"{resize: 16384, center_crop: [1, 16384], flip: 1e-2}",
         {.kind = TRANSFORM_RESIZE_CENTER_CROP, .resize = 16384, .height = 1, .width = 16384, .flip = 0.01}},
        {"{resize: [240, 320]}",
         {.kind = TRANSFORM_RESIZE_CENTER_CROP,
          .resize_height = 240,
          .resize_width = 320,
          .height = 240,
          .width = 320}},
        {"{resize: [240, 320], center_crop: [240, 224]}",
         {.kind = TRANSFORM_RESIZE_CENTER_CROP,
          .resize_height = 240,
          .resize_width = 320,
          .height = 240,
          .width = 224}},
        {"{random_resized_crop: 224}", RANDOM_RESIZED_CROP(224, 224, 0.08, 1, 0.75, 4.0 / 3, 0)},
        {"{random_resized_crop: [1, 16384], flip: 0.5}", RANDOM_RESIZED_CROP(1, 16384, 0.08, 1, 0.75, 4.0 / 3, 0.5)},
        {"{random_resized_crop: {size: 224}}", RANDOM_RESIZED_CROP(224, 224, 0.08, 1, 0.75, 4.0 / 3, 0)},
        {"{random_resized_crop: {ratio: [3/4, 4/3], size: [9, 8], scale: [0, 0.25]}}",
         RANDOM_RESIZED_CROP(9, 8, 0, 0.25, 0.75, 4.0 / 3, 0)},
        {"{random_resized_crop: {size: 9, ratio: [1e-1, 5.5/1.1]}}", RANDOM_RESIZED_CROP(9, 9, 0.08, 1, 0.1, 5, 0)},
        {"{random_crop: 32}", RANDOM_CROP(32, 32, 0, 0, 0, 0)},
        {"{random_crop: [32, 28]}", RANDOM_CROP(32, 28, 0, 0, 0, 0)},
        {"{random_crop: {size: 32, padding: 4}}", RANDOM_CROP(32, 32, 4, 4, 4, 4)},
        {"{random_crop: {size: 32, padding: [4, 5]}}", RANDOM_CROP(32, 32, 4, 5, 4, 5)},
        {"{random_crop: {size: [32, 1], padding: [0, 1, 2, 16384]}}", RANDOM_CROP(32, 1, 0, 1, 2, 16384)},
    };
    static const struct {
        const char *text, *message;
    } bad[] = {
        {"{resize: 256}", ": resize of the shorter side alone; required: resize and center_crop together, or resize: "
                          "[height, width]"},
        {"{center_crop: 256}", ".center_crop: alone; required: resize and center_crop together"},
        {"{center_crop: 256, random_crop: 3}", ".center_crop: alone; required: resize and center_crop together"},
        {"{resize: 0, center_crop: 1}", ".resize: '0' is not allowed; allowed: a whole number from 1 to 16384"},
        {"{resize: 16385, center_crop: 1}", ".resize: '16385' is not allowed; allowed: a whole number from 1 to 16384"},
        {"{resize: [1, 2, 3]}", ".resize: 3 numbers; allowed: one number, or [height, width]"},
        {"{resize: [1, 0]}", ".resize: '0' is not allowed; allowed: a whole number from 1 to 16384"},
        {"{resize: 9, center_crop: [9, 0]}",
         ".center_crop: '0' is not allowed; allowed: a whole number from 1 to 16384"},
        {"{resize: 9, center_crop: [1, 2, 3]}", ".center_crop: 3 numbers; allowed: one number, or [height, width]"},
        {"{resize: 9, center_crop: []}", ".center_crop: 0 numbers; allowed: one number, or [height, width]"},
        {"{resize: 9, center_crop: [[1, 2], 3]}", ".center_crop: is a list; allowed: one value"},
        {"{resize: 9, center_crop: {a: 2}}", ".center_crop: is a mapping; allowed: one value"},
        {"{resize: 223, center_crop: 224}", ": the crop is larger than the resized image; allowed: height and width of "
                                            "at most resize"},
        {"{resize: 223, center_crop: [223, 224]}", ": the crop is larger than the resized image; allowed: height and "
                                                   "width of at most resize"},
        {"{resize: [224, 223], center_crop: 224}", ": the crop is larger than the resized image; allowed: height and "
                                                   "width of at most resize"},
        {"{resize: 256, random_resized_crop: 224}", ".random_resized_crop: beside resize; allowed: one of resize (with "
                                                    "center_crop), random_resized_crop, random_crop"},
        {"{random_crop: 256, random_resized_crop: 224}",
         ".random_crop: beside random_resized_crop; allowed: one of resize (with center_crop), random_resized_crop, "
         "random_crop"},
        {"{random_resized_crop: 0}",
         ".random_resized_crop: '0' is not allowed; allowed: a whole number from 1 to 16384"},
        {"{random_resized_crop: {scale: [0, 1]}}", ".random_resized_crop.size: missing; required: size"},
        {"{random_resized_crop: {size: 20000}}",
         ".random_resized_crop.size: '20000' is not allowed; allowed: a whole number from 1 to 16384"},
        {"{random_resized_crop: {size: 2, scale: 1}}",
         ".random_resized_crop.scale: isn't a range; allowed: [least, most]"},
        {"{random_resized_crop: {size: 2, scale: [0, 0.5, 1]}}",
         ".random_resized_crop.scale: isn't a range; allowed: [least, most]"},
        {"{random_resized_crop: {size: 2, scale: [0, x]}}",
         ".random_resized_crop.scale: 'x' is not a number; allowed: numbers like 0.75 or 3/4"},
        {"{random_resized_crop: {size: 2, scale: [0, 1.1]}}",
         ": scale isn't a range of shares of the image's area; allowed: [least, most], from 0 to 1"},
        {"{random_resized_crop: {size: 2, scale: [0.5, 0.4]}}",
         ": scale isn't a range of shares of the image's area; allowed: [least, most], from 0 to 1"},
        {"{random_resized_crop: {size: 2, ratio: [1, 4/3/2]}}",
         ".random_resized_crop.ratio: '4/3/2' is not a number; allowed: numbers like 0.75 or 3/4"},
        {"{random_resized_crop: {size: 2, ratio: [1, /2]}}",
         ".random_resized_crop.ratio: '/2' is not a number; allowed: numbers like 0.75 or 3/4"},
        {"{random_resized_crop: {size: 2, ratio: [1, 2/]}}",
         ".random_resized_crop.ratio: '2/' is not a number; allowed: numbers like 0.75 or 3/4"},
        {"{random_resized_crop: {size: 2, ratio: [1, 2/0]}}",
         ": ratio isn't a range of width / height; allowed: [least, most], from 0.001 to 1000"},
        {"{random_resized_crop: {size: 2, ratio: [0/0, 1]}}",
         ": ratio isn't a range of width / height; allowed: [least, most], from 0.001 to 1000"},
        {"{random_resized_crop: {size: 2, ratio: [-1, 1]}}",
         ": ratio isn't a range of width / height; allowed: [least, most], from 0.001 to 1000"},
        {"{random_resized_crop: {size: 2, padding: 4}}",
         ".random_resized_crop.padding: unknown key; allowed: size, scale, ratio"},
        {"{random_resized_crop: {size: 2, size: 2}}",
         ".random_resized_crop.size: repeated key; allowed: once, and it stands in line 9"},
        {"{random_crop: {size: 2, padding: [1, 2, 3]}}",
         ".random_crop.padding: 3 numbers; allowed: one, [x, y], or [left, top, right, bottom]"},
        {"{random_crop: {size: 2, padding: []}}",
         ".random_crop.padding: 0 numbers; allowed: one, [x, y], or [left, top, right, bottom]"},
        {"{random_crop: {size: 2, padding: -1}}",
         ".random_crop.padding: '-1' is not allowed; allowed: a whole number from 0 to 16384"},
        {"{random_crop: {size: 2, padding: {}}}", ".random_crop.padding: is a mapping; allowed: one value"},
        {"{random_crop: {padding: 4}}", ".random_crop.size: missing; required: size"},
        {"{flip: 1.01}", ".flip: '1.01' is not a probability; allowed: 0 to 1"},
        {"{flip: -0.1}", ".flip: '-0.1' is not a probability; allowed: 0 to 1"},
        {"{flip: nan}", ".flip: 'nan' is not a probability; allowed: 0 to 1"},
        {"{flip: yes}", ".flip: 'yes' is not a probability; allowed: 0 to 1"},
        {"{flip: [1]}", ".flip: is a list; allowed: one value"},
        {"{mirror: 1}", ".mirror: unknown key; allowed: resize, center_crop, random_resized_crop, random_crop, flip"},
        {"{flip: 0, flip: 1}", ".flip: repeated key; allowed: once, and it stands in line 9"},
        {"[resize]", ": is a list; allowed: a mapping (lines of `key: value`)"},
    };
    char text[500], due[500];
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        snprintf(text, sizeof(text), TRAIN "    transform: %s\n", good[i].text);
        struct config *c = load(text);
        spec_is(&c->streams[0].transform, &good[i].spec, good[i].text);
        struct transform_spec sent = {.kind = 77};
        ck_assert_int_eq(config_transform_text(good[i].text, &sent, NULL), 0);
        ck_assert_int_eq(memcmp(&sent, &c->streams[0].transform, sizeof(sent)), 0);
        config_free(c);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        snprintf(text, sizeof(text), TRAIN "    transform: %s\n", bad[i].text);
        snprintf(due, sizeof(due), ":9: streams.train.transform%s", bad[i].message);
        refuse(text, due);
        struct transform_spec sent = {.kind = 77};
        struct feedd_error err;
        ck_assert_int_eq(config_transform_text(bad[i].text, &sent, &err), FEEDD_E_ARGUMENT);
        snprintf(due, sizeof(due), "request:1: transform%s", bad[i].message);
        char *line = strstr(due, "in line 9"); /* which is the file's */
        if (line != NULL)
            line[8] = '1';
        ck_assert_str_eq(err.message, due);
        ck_assert_int_eq(sent.kind, 77);
    }
}
END_TEST

/* How images are read: the keys beside `transform`. */
START_TEST(image_keys)
{
    static const struct {
        const char *text;
        struct transform_spec spec;
    } good[] = {
        {"decode: exact", {.kind = TRANSFORM_NONE}},
        {"decode: fast", {.kind = TRANSFORM_NONE, .fast = true}},
        {"orientation: exif", {.kind = TRANSFORM_NONE}},
        {"orientation: ignore", {.kind = TRANSFORM_NONE, .ignore_orientation = true}},
        {"truncated: fail", {.kind = TRANSFORM_NONE}},
        {"truncated: accept", {.kind = TRANSFORM_NONE, .accept_truncated = true}},
        {"channels: 1", {.kind = TRANSFORM_NONE, .channels = 1}},
        {"channels: 3", {.kind = TRANSFORM_NONE, .channels = 3}},
    };
    char text[500];
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        snprintf(text, sizeof(text), TRAIN "    %s\n", good[i].text);
        struct config *c = load(text);
        spec_is(&c->streams[0].transform, &good[i].spec, good[i].text);
        config_free(c);
    }
    refuse(TRAIN "    decode: quick\n", ":9: streams.train.decode: 'quick' is not allowed; allowed: exact, fast");
    refuse(TRAIN "    decode: [fast]\n", ":9: streams.train.decode: is a list; allowed: one value");
    refuse(TRAIN "    orientation: 1\n", ":9: streams.train.orientation: '1' is not allowed; allowed: exif, ignore");
    refuse(TRAIN "    truncated: yes\n", ":9: streams.train.truncated: 'yes' is not allowed; allowed: fail, accept");
    refuse(TRAIN "    channels: 2\n", ":9: streams.train.channels: '2' is not allowed; allowed: 3, 1");
    refuse(TRAIN "    transform: {decode: fast}\n",
           ":9: streams.train.transform.decode: unknown key; allowed: resize, center_crop, random_resized_crop, "
           "random_crop, flip");

    refuse("daemon: {image_pixels_max: 0}",
           ":1: daemon.image_pixels_max: '0' is not allowed; allowed: a whole number from 1 to 1000000000000");
    refuse("daemon: {image_pixels_max: 1000000000001}", ":1: daemon.image_pixels_max: '1000000000001' is not allowed; "
                                                        "allowed: a whole number from 1 to 1000000000000");
    refuse("daemon: {image_bytes_max: 2T}", ":1: daemon.image_bytes_max: '2T' is not allowed; allowed: bytes from 1 to "
                                            "1099511627776, with K, M, G or T for powers of 1024");
    struct config *c = load("");
    ck_assert_uint_eq(c->image_pixels_max, 100000000);
    ck_assert_uint_eq(c->image_bytes_max, 268435456);
    config_free(c);
}
END_TEST

/* What a client sends is no file: it may be anything, and is quoted in logs. */
START_TEST(transform_texts)
{
    struct transform_spec spec = {.kind = 77};
    struct feedd_error err;
    char large[5000];
    memset(large, ' ', sizeof(large));
    large[4097] = '\0';
    ck_assert_int_eq(config_transform_text(large, &spec, &err), FEEDD_E_LIMIT);
    ck_assert_str_eq(err.message, "request: a text of 4097 bytes; allowed: at most 4096");
    large[4096] = '\0';
    ck_assert_int_eq(config_transform_text(large, &spec, &err), 0);
    ck_assert_int_eq(spec.kind, TRANSFORM_NONE);
    spec.kind = 77;
    ck_assert_int_eq(config_transform_text("{\"a\\nb\\e\u00e9\": 1}", &spec, &err), FEEDD_E_ARGUMENT);
    ck_assert_str_eq(err.message, "request:1: transform.a?b???: unknown key; allowed: resize, center_crop, "
                                  "random_resized_crop, random_crop, flip");
    ck_assert_int_eq(config_transform_text("{flip: 1}\n---\n{}", &spec, &err), FEEDD_E_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(err.message, "a second document"));
    ck_assert_int_eq(config_transform_text("streams: {}", &spec, &err), FEEDD_E_ARGUMENT);
    ck_assert_int_eq(spec.kind, 77);
}
END_TEST

START_TEST(numa)
{
    static const struct {
        const char *text;
        bool numa;
    } good[] = {{"{}", true}, {"{numa: auto}", true}, {"{numa: off}", false}};
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        char text[64];
        snprintf(text, sizeof(text), "daemon: %s\n", good[i].text);
        struct config *c = load(text);
        ck_assert_int_eq(c->numa, good[i].numa);
        config_free(c);
    }
    refuse("daemon:\n  numa: 0\n", ":2: daemon.numa: '0' is not allowed; allowed: auto, off");
}
END_TEST

START_TEST(gpus)
{
    static const char allowed[] = "; allowed: all, none, or a list of UUIDs as nvidia-smi -L prints them";
    char due[300];
    struct config *c = load("daemon: {gpus: none}\n");
    ck_assert_ptr_nonnull(c->gpus);
    ck_assert_uint_eq(c->gpu_count, 0);
    config_free(c);
    c = load("daemon:\n  gpus:\n  - GPU-00000000-0000-0000-0000-000000000000\n"
             "  - GPU-ffffffff-ffff-ffff-ffff-ffffffffffff\n");
    ck_assert_uint_eq(c->gpu_count, 2);
    ck_assert_str_eq(c->gpus[1], "GPU-ffffffff-ffff-ffff-ffff-ffffffffffff");
    config_free(c);
    static const struct {
        const char *text, *wrong;
    } bad[] = {
        {"0", "'0' is no choice of GPUs"},
        {"GPU-00000000-0000-0000-0000-000000000000", "'GPU-00000000-0000-0000-0000-000000000000' is no choice of GPUs"},
        {"{a: b}", "is a mapping"},
        {"[0]", "'0' is not the UUID of a GPU"},
        {"[GPU-00000000-0000-0000-0000-00000000000]",
         "'GPU-00000000-0000-0000-0000-00000000000' is not the UUID of a GPU"},
        {"[GPU-00000000-0000-0000-0000-0000000000000]",
         "'GPU-00000000-0000-0000-0000-0000000000000' is not the UUID of a GPU"},
        {"[GPU-0000000G-0000-0000-0000-000000000000]",
         "'GPU-0000000G-0000-0000-0000-000000000000' is not the UUID of a GPU"},
        {"[MIG-00000000-0000-0000-0000-000000000000]",
         "'MIG-00000000-0000-0000-0000-000000000000' is not the UUID of a GPU"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        char text[200];
        snprintf(text, sizeof(text), "daemon:\n  gpus: %s\n", bad[i].text);
        snprintf(due, sizeof(due), ":2: daemon.gpus: %s%s", bad[i].wrong, allowed);
        refuse(text, due);
    }
}
END_TEST

/* Names are what the machine's own lists say. */
START_TEST(access_rules)
{
    char text[2000], due[2000];
    size_t used = (size_t)snprintf(text, sizeof(text), "daemon:\n  allow:\n    users: [");
    uid_t users[20];
    gid_t groups[20];
    uint32_t user_count = 0, group_count = 0;
    setpwent();
    for (const struct passwd *p; user_count < 20 && (p = getpwent()) != NULL; user_count++) {
        users[user_count] = p->pw_uid;
        used += (size_t)snprintf(text + used, sizeof(text) - used, "'%s', ", p->pw_name);
    }
    endpwent();
    used += (size_t)snprintf(text + used, sizeof(text) - used, "]\n    groups: [");
    setgrent();
    for (const struct group *g; group_count < 20 && (g = getgrent()) != NULL; group_count++) {
        groups[group_count] = g->gr_gid;
        used += (size_t)snprintf(text + used, sizeof(text) - used, "'%s', ", g->gr_name);
    }
    endgrent();
    snprintf(text + used, sizeof(text) - used, "]\n");
    ck_assert_uint_gt(user_count, 1);
    ck_assert_uint_gt(group_count, 1);
    struct config *c = load(text);
    rule_is(&c->allow, false, user_count, users, group_count, groups);
    config_free(c);

    c = load("daemon: {allow: {users: [0, 4294967294]}}\n");
    rule_is(&c->allow, false, 2, (const uid_t[]){0, 4294967294}, 0, NULL);
    config_free(c);

    refuse(
        "daemon:\n  allow:\n    users: [root, no-such-user-here]\n",
        ":3: daemon.allow.users: there is no user 'no-such-user-here'; allowed: a name that this machine knows, or a "
        "number");
    refuse(
        "daemon:\n  admin:\n    groups:\n    - root\n    - no-such-group-here\n",
        ":5: daemon.admin.groups: there is no group 'no-such-group-here'; allowed: a name that this machine knows, or "
        "a number");
    refuse(
        "daemon: {allow: {users: [4294967295]}}\n",
        ":1: daemon.allow.users: there is no user '4294967295'; allowed: a name that this machine knows, or a number");
    refuse("daemon: {allow: {users: [-1]}}\n",
           ":1: daemon.allow.users: there is no user '-1'; allowed: a name that this machine knows, or a number");
    refuse("daemon: {allow: {users: ['']}}\n",
           ":1: daemon.allow.users: there is no user ''; allowed: a name that this machine knows, or a number");
    refuse("daemon: {allow: {users: root}}\n", ":1: daemon.allow.users: is text; allowed: a list of names or numbers");
    refuse("daemon: {allow: {users: [[root]]}}\n", ":1: daemon.allow.users: is a list; allowed: one value");
    refuse("daemon: {allow: {}}\n", ":1: daemon.allow: names nobody; allowed: users, groups or both, or no such key");
    refuse("daemon: {allow: {users: [], groups: []}}\n",
           ":1: daemon.allow: names nobody; allowed: users, groups or both, or no such key");
    refuse("daemon: {allow: everybody}\n", ":1: daemon.allow: is text; allowed: a mapping (lines of `key: value`)");
    refuse("daemon: {admin: {user: [root]}}\n", ":1: daemon.admin.user: unknown key; allowed: users, groups");
    refuse(
        FASHION "    allow: {groups: [no-such-group-here]}\n",
        ":5: datasets.fashion.allow.groups: there is no group 'no-such-group-here'; allowed: a name that this machine "
        "knows, or a number");
    refuse(FASHION "    allow:\n",
           ":5: datasets.fashion.allow: names nobody; allowed: users, groups or both, or no such key");

    char *many = malloc(100000);
    used = (size_t)sprintf(many, "daemon: {admin: {users: [");
    for (int i = 0; i < 4096; i++)
        used += (size_t)sprintf(many + used, "%d,", 900000 + i);
    sprintf(many + used, "]}}");
    c = load(many);
    ck_assert_uint_eq(c->admin.user_count, 4098);
    ck_assert_uint_eq(c->admin.users[4095], 904095);
    config_free(c);
    sprintf(many + used, "1]}}");
    snprintf(due, sizeof(due), ":1: daemon.admin.users: 4097 entries; allowed: at most 4096");
    refuse(many, due);
    free(many);
}
END_TEST

/* The first of the variables that says something, and they are looked at afresh. */
START_TEST(cache_folders)
{
    static const struct {
        const char *systemd, *xdg, *home, *root, *user; /* due for root; for others */
    } cases[] = {
        {"/a", "/b", "/c", "/a", "/a"},
        {"/a:/z", NULL, NULL, "/a", "/a"},
        {NULL, "/b", "/c", "/b/feedd", "/b/feedd"},
        {"", "/b", "/c", "/b/feedd", "/b/feedd"},
        {"a", "/b", "/c", "/b/feedd", "/b/feedd"}, /* none that we understand */
        {NULL, "b", "/c", "/var/cache/feedd", "/c/.cache/feedd"},
        {NULL, NULL, "/c", "/var/cache/feedd", "/c/.cache/feedd"},
        {NULL, NULL, NULL, "/var/cache/feedd", NULL},
        {NULL, "", "", "/var/cache/feedd", NULL},
    };
    static const char *const names[] = {"CACHE_DIRECTORY", "XDG_CACHE_HOME", "HOME"};
    char *kept[3];
    const uid_t user = geteuid();
    for (int i = 0; i < 3; i++)
        kept[i] = getenv(names[i]) != NULL ? strdup(getenv(names[i])) : NULL;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const char *const set[] = {cases[i].systemd, cases[i].xdg, cases[i].home};
        for (int v = 0; v < 3; v++)
            ck_assert_int_eq(set[v] != NULL ? setenv(names[v], set[v], 1) : unsetenv(names[v]), 0);
        struct config *c = load("daemon: {}\n");
        ck_assert_pstr_eq(c->cache_dir, user == 0 ? cases[i].root : cases[i].user);
        config_free(c);
        if (user == 0 && seteuid(65534) == 0) {
            ck_assert_int_eq(config_empty(&c, NULL), 0);
            ck_assert_int_eq(seteuid(0), 0);
            ck_assert_pstr_eq(c->cache_dir, cases[i].user);
            rule_is(&c->admin, false, 2, (const uid_t[]){0, 65534}, 0, NULL);
            config_free(c);
        }
        c = load("daemon: {cache_dir: /var/tmp/x}\n");
        ck_assert_str_eq(c->cache_dir, "/var/tmp/x");
        config_free(c);
    }
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(kept[i] != NULL ? setenv(names[i], kept[i], 1) : unsetenv(names[i]), 0);
        free(kept[i]);
    }
}
END_TEST

START_TEST(entry_names)
{
    static const char *const bad[] = {"a b", "a/b", "\xc3\xa9", "a:b", "a@b", "a,b"};
    char text[1024], due[1024], name[300];
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        snprintf(text, sizeof(text), "datasets:\n  '%s': {reader: idx, images: x}\n", bad[i]);
        snprintf(due, sizeof(due),
                 ":2: datasets.%s: not a name; allowed: letters A-Z and a-z, digits, '.', '_' and '-'", bad[i]);
        refuse(text, due);
        snprintf(text, sizeof(text), FASHION "streams:\n  '%s': {dataset: fashion, batch_size: 1}\n", bad[i]);
        snprintf(due, sizeof(due), ":6: streams.%s: not a name; allowed: letters A-Z and a-z, digits, '.', '_' and '-'",
                 bad[i]);
        refuse(text, due);
    }
    refuse("datasets: {'': {reader: idx, images: x}}", ":1: datasets.: a name of 0 bytes; allowed: 1 to 255");
    memset(name, 'n', sizeof(name));
    name[256] = '\0';
    snprintf(text, sizeof(text), "datasets:\n  ? %s\n  : {reader: idx, images: x}\n", name);
    snprintf(due, sizeof(due), ":2: datasets.%.64s...: a name of 256 bytes; allowed: 1 to 255", name);
    refuse(text, due);
    name[255] = '\0';
    snprintf(text, sizeof(text),
             "datasets:\n  ? %s\n  : {reader: idx, images: x}\n  A-Z_a.9: {reader: idx, images: y}\n", name);
    struct config *c = load(text);
    ck_assert_str_eq(c->datasets[0].name, name);
    ck_assert_str_eq(c->datasets[1].name, "A-Z_a.9");
    config_free(c);
}
END_TEST

START_TEST(yaml)
{
    refuse("daemon:\n  workers: 4\n clients_max: 3\n",
           ":3: not YAML: while parsing a block mapping: did not find expected key");
    refuse("daemon: {workers: 4\n", ":2: not YAML: while parsing a flow mapping: did not find expected ',' or '}'");
    refuse("daemon:\n\tworkers: 4\n",
           ":2: not YAML: while scanning for the next token: found character that cannot start any token");
    refuse("daemon:\n  socket: \"x\n", ":3: not YAML: while scanning a quoted scalar: found unexpected end of stream");
    refuse("daemon: {}\n---\nstreams: {}\n", ":2: a second document begins; allowed: one");
    refuse("---\n---\n", ":2: a second document begins; allowed: one");
    refuse("daemon: &a {}\nstreams: *a\n", ":1: an anchor (&name); allowed: values without one");
    refuse("daemon:\n  socket: &s /x\n", ":2: an anchor (&name); allowed: values without one");
    refuse("daemon:\nstreams: *a\n", ":2: an alias (*name); allowed: write the value out");
    refuse("daemon:\n  workers: !!int 4\n", ":2: a tag (!name); allowed: values without one");
    refuse("daemon: !x {}\n", ":1: a tag (!name); allowed: values without one");
    refuse(FASHION "    classes: !!seq [a]\n", ":5: a tag (!name); allowed: values without one");

    refuse("daemon:\n  workers: [[[[[[[[[[[[[[[]]]]]]]]]]]]]]]\n",
           ":2: nested more than 16 levels deep; allowed: as deep as the keys need");
    refuse("daemon:\n  workers: [[[[[[[[[[[[[[]]]]]]]]]]]]]]\n", ":2: daemon.workers: is a list; allowed: one value");

    refuse("daemon:\n  socket: \"/x\\0y\"\n", ":2: daemon.socket: holds a NUL character; allowed: text without it");
    refuse("\"daemon\\0\": {}\n", ":1: holds a NUL character; allowed: text without it");
    refuse("datasets:\n  \"a\\0\": {reader: idx, images: x}\n",
           ":2: datasets: holds a NUL character; allowed: text without it");
    refuse(FASHION "    classes: [a, \"\\0\"]\n",
           ":5: datasets.fashion.classes: holds a NUL character; allowed: text without it");
    static const char nul[] = "daemon:\n  socket: /x\0y\n", utf16[] = "\xff\xfe"
                                                                      "a\0:\0";
    refuse_bytes(nul, sizeof(nul) - 1, FEEDD_E_ARGUMENT, ":2: not YAML: control characters are not allowed");
    refuse_bytes(utf16, sizeof(utf16) - 1, FEEDD_E_ARGUMENT, ":1: not YAML: invalid leading UTF-8 octet");
    refuse("daemon: {}\n#\n# \xe9t\xe9\n", ":3: not YAML: invalid trailing UTF-8 octet");
}
END_TEST

START_TEST(files)
{
    struct config *config = NULL;
    struct feedd_error err;
    char path[700], due[1024];
    snprintf(path, sizeof(path), "%s/none.conf", folder);
    ck_assert_int_eq(config_load(path, &config, &err), FEEDD_E_NOT_FOUND);
    snprintf(due, sizeof(due), "%s: can't be opened: No such file or directory", path);
    ck_assert_str_eq(err.message, due);
    ck_assert_int_eq(config_load(folder, &config, &err), FEEDD_E_IO);
    snprintf(due, sizeof(due), "%s: is a directory; allowed: a regular file", folder);
    ck_assert_str_eq(err.message, due);
    snprintf(path, sizeof(path), "%s/fifo", folder); /* nobody writes: opening it must not wait */
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    ck_assert_int_eq(config_load(path, &config, &err), FEEDD_E_IO);
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(config_load("/dev/zero", &config, &err), FEEDD_E_IO);
    ck_assert_str_eq(err.message, "/dev/zero: is a device, pipe or socket; allowed: a regular file");

    write_bytes("", 0);
    ck_assert_int_eq(chmod(file, 0), 0);
    ck_assert_int_eq(chmod(folder, 0755), 0);
    const uid_t user = geteuid();
    if (user == 0 && seteuid(65534) != 0) {
        printf("files: skipped that an unreadable file is refused: root reads everything, and can't become nobody\n");
    } else {
        ck_assert_int_eq(config_load(file, &config, &err), FEEDD_E_ACCESS);
        ck_assert_int_eq(seteuid(user), 0);
        snprintf(due, sizeof(due), "%s: can't be opened: Permission denied", file);
        ck_assert_str_eq(err.message, due);
    }
    ck_assert_int_eq(chmod(file, 0600), 0);
    ck_assert_ptr_null(config);

    const size_t limit = 1 << 20;
    char *big = malloc(limit + 1);
    memset(big, '#', limit + 1);
    write_bytes(big, limit);
    ck_assert_int_eq(config_load(file, &config, &err), 0);
    config_free(config);
    refuse_bytes(big, limit + 1, FEEDD_E_LIMIT, ": 1048577 bytes; allowed: at most 1048576 (a configuration's limit)");
    free(big);
}
END_TEST

START_TEST(paths)
{
    char path[4097], due[5000], text[10000];
    memset(path, 'p', sizeof(path) - 1);
    path[0] = '/';
    path[4096] = '\0';
    snprintf(text, sizeof(text), "datasets:\n  a:\n    reader: idx\n    images: %s\n    labels: %s\n", path, path + 1);
    struct config *c = load(text);
    ck_assert_str_eq(c->datasets[0].images, path);
    snprintf(due, sizeof(due), "%s/%s", folder, path + 1);
    ck_assert_str_eq(c->datasets[0].labels, due);
    config_free(c);

    c = load("daemon: {socket: run/feedd.sock}\n");
    snprintf(due, sizeof(due), "%s/run/feedd.sock", folder);
    ck_assert_str_eq(c->socket, due);
    config_free(c);

    /* The configuration's folder is the current one: paths stay as they are. */
    char back[4096];
    struct feedd_error err;
    ck_assert_ptr_nonnull(getcwd(back, sizeof(back)));
    ck_assert_int_eq(chdir(folder), 0);
    write_bytes("daemon: {socket: s, clients_max: 0}", 35);
    ck_assert_int_eq(config_load("feedd.conf", &c, &err), FEEDD_E_ARGUMENT);
    ck_assert_str_eq(err.message,
                     "feedd.conf:1: daemon.clients_max: '0' is not allowed; allowed: a whole number from 1 to 65536");
    write_bytes("daemon: {socket: s}", 19);
    ck_assert_int_eq(config_load("feedd.conf", &c, &err), 0);
    ck_assert_str_eq(c->path, "feedd.conf");
    ck_assert_str_eq(c->socket, "s");
    config_free(c);
    ck_assert_int_eq(chdir(back), 0);

    /* A socket's address has room for 107 bytes, and the error says so where the line is known. */
    const size_t room = sizeof(((struct sockaddr_un *)NULL)->sun_path) - 1;
    snprintf(text, sizeof(text), "daemon:\n  socket: %.*s\n", (int)room, path);
    c = load(text);
    ck_assert_uint_eq(strlen(c->socket), room);
    config_free(c);
    snprintf(text, sizeof(text), "daemon:\n  socket: %.*s\n", (int)room + 1, path);
    snprintf(due, sizeof(due),
             ":2: daemon.socket: the path has %zu bytes, the folder included; allowed: at most %zu, as in "
             "every socket address",
             room + 1, room);
    refuse(text, due);

    /* The reason survives a path that alone would fill the message. */
    snprintf(text, sizeof(text), "%.4000s", path);
    ck_assert_int_lt(config_load(text, &c, &err), 0);
    ck_assert_ptr_nonnull(strstr(err.message, "...ppp"));
    ck_assert_ptr_nonnull(strstr(err.message, ": can't be opened: "));
}
END_TEST

/* Lists of thousands, and shapes that cost quadratic time or memory in careless parsers. */
START_TEST(large)
{
    const size_t room = 1 << 20;
    char *text = malloc(room + 100);
    size_t used = (size_t)sprintf(text, "datasets:\n");
    for (int i = 0; i < 4096; i++)
        used += (size_t)sprintf(text + used, "  d%d: {reader: idx, images: /i}\n", i);
    struct config *c = load(text);
    ck_assert_uint_eq(c->dataset_count, 4096);
    ck_assert_ptr_eq(config_dataset(c, "d4095"), &c->datasets[4095]);
    config_free(c);
    sprintf(text + used, "streams:\n  s: {dataset: x, batch_size: 1}\n"); /* as many names as fit are shown */
    struct feedd_error err;
    write_bytes(text, strlen(text));
    ck_assert_int_eq(config_load(file, &c, &err), FEEDD_E_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(err.message, ":4099: streams.s.dataset: 'x' is not a dataset; allowed: d0, d1, d2, "));
    ck_assert_str_eq(err.message + strlen(err.message) - 5, ", ...");
    sprintf(text + used, "  more: {reader: idx, images: /i}\n");
    refuse(text, ":2: datasets: 4097 entries; allowed: at most 4096");

    used = (size_t)sprintf(text, FASHION "    classes: [");
    for (int i = 0; i < 65536; i++)
        used += (size_t)sprintf(text + used, "c%d,", i);
    sprintf(text + used, "]\n");
    c = load(text);
    ck_assert_uint_eq(c->datasets[0].class_count, 65536);
    ck_assert_str_eq(c->datasets[0].classes[65535], "c65535");
    config_free(c);
    sprintf(text + used, "more]\n");
    refuse(text, ":5: datasets.fashion.classes: 65537 names; allowed: 1 to 65536, or no such key");

    static const char *const units[] = {"[",        "{",     "- ",     "? ",  "{a: ", "[a, ",   "&a ",
                                        "- &a b\n", "- a\n", "a: b\n", "!a ", "'",    "\"",     "# \n",
                                        "a: |\n ",  "---\n", "[a]: ",  "%",   "a:\n", "- [a]\n"};
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
        const size_t length = strlen(units[i]);
        struct timespec start, end;
        for (used = 0; used + length <= room; used += length)
            memcpy(text + used, units[i], length);
        write_bytes(text, used);
        clock_gettime(CLOCK_MONOTONIC, &start);
        const int rc = config_load(file, &c, &err);
        clock_gettime(CLOCK_MONOTONIC, &end);
        if (rc == 0) /* nothing but comments */
            config_free(c);
        ck_assert_int_eq(rc, units[i][0] == '#' ? 0 : FEEDD_E_ARGUMENT);
        ck_assert_msg(end.tv_sec - start.tv_sec < 10, "1 MiB of '%s' takes %ld s", units[i],
                      (long)(end.tv_sec - start.tv_sec));
    }
    free(text);
}
END_TEST

static uint32_t random_next(uint64_t *state) /* xorshift64*, Vigna 2016 */
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return (uint32_t)((*state * 2685821657736338717u) >> 32);
}

/* Whatever is cut off or changed: a configuration or an error that names the file, and nothing leaks. */
START_TEST(damaged)
{
    char text[sizeof(full)];
    uint64_t state = 1;
    const size_t length = sizeof(full) - 1;
    for (size_t i = 0; i < length + 2000; i++) {
        size_t used = i < length ? i : length;
        memcpy(text, full, used);
        for (uint32_t n = i < length ? 0 : 1 + random_next(&state) % 3; n > 0; n--) {
            static const char marks[] = "\n :-[]{}#&*!'\"0";
            const size_t at = random_next(&state) % used;
            const uint32_t value = random_next(&state);
            text[at] = i % 2 ? (char)value : marks[value % (sizeof(marks) - 1)];
        }
        struct config *config = NULL;
        struct feedd_error err = {.message = ""};
        write_bytes(text, used);
        if (config_load(file, &config, &err) == 0) {
            ck_assert_ptr_nonnull(config);
            config_free(config);
        } else {
            ck_assert_ptr_null(config);
            ck_assert_int_eq(strncmp(err.message, file, strlen(file)), 0);
        }
    }
}
END_TEST

START_TEST(reader_names)
{
    const char *names = NULL;
    ck_assert_ptr_eq(reader_find("idx", &names), &reader_idx);
    ck_assert_str_eq(names, "idx, folder, list");
    ck_assert_ptr_eq(reader_find("folder", NULL), &reader_folder);
    ck_assert_ptr_eq(reader_find("list", NULL), &reader_list);
    ck_assert_ptr_null(reader_find("", NULL));
    ck_assert_ptr_null(reader_find("idx2", NULL));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("config");
    TCase *tcase = tcase_create("config");
    tcase_add_checked_fixture(tcase, folder_make, folder_remove);
    tcase_set_timeout(tcase, 120);
    tcase_add_test(tcase, everything_set);
    tcase_add_test(tcase, nothing_set);
    tcase_add_test(tcase, sizes);
    tcase_add_test(tcase, ranges);
    tcase_add_test(tcase, keys_and_kinds);
    tcase_add_test(tcase, values);
    tcase_add_test(tcase, selections);
    tcase_add_test(tcase, selection_names);
    tcase_add_test(tcase, sharing);
    tcase_add_test(tcase, outputs);
    tcase_add_test(tcase, transforms);
    tcase_add_test(tcase, transform_texts);
    tcase_add_test(tcase, numa);
    tcase_add_test(tcase, gpus);
    tcase_add_test(tcase, image_keys);
    tcase_add_test(tcase, access_rules);
    tcase_add_test(tcase, cache_folders);
    tcase_add_test(tcase, entry_names);
    tcase_add_test(tcase, yaml);
    tcase_add_test(tcase, files);
    tcase_add_test(tcase, paths);
    tcase_add_test(tcase, large);
    tcase_add_test(tcase, damaged);
    tcase_add_test(tcase, reader_names);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    const int failures = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failures != 0;
}
