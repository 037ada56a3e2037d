/* test_list.c - lists of images: what a good one becomes, and the one line that each bad one gets.
 *
 * Happy path: a case writes a list and the files that it names, opens it, and compares samples, labels and messages
 * with what is written out here by hand. Threads: one, but for one case that reads on four. */
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <xxhash.h>

#include "tree.h"

#include "error.h"
#include "reader.h"

#define ANY (1ull << 40) /* a memory_max that doesn't matter */

static char list_path[600], root[600]; /* tree/lists/list.tsv, tree/root */
static char *class_names[3] = {(char *)(uintptr_t) "zero", (char *)(uintptr_t) "one", (char *)(uintptr_t) "two"};
static struct reader_config config; /* outlives the readers */

static void setup(void)
{
    tree_setup();
    snprintf(list_path, sizeof(list_path), "%s", at("lists/list.tsv"));
    snprintf(root, sizeof(root), "%s", at("root"));
    config = (struct reader_config){.name = list_path, .ops = &reader_list, .list = list_path, .root = root};
    put_file(at("lists/a.jpg"), "a beside the list");
    put_file(at("root/a.jpg"), "a");
    put_file(at("root/d/b.jpg"), "b");
    put_file(at("root/d/c c.jpg"), "c");
}

static int try_open(uint64_t memory_max, struct reader **out, struct feedd_error *err)
{
    const struct reader_limits limits = {.memory_max = memory_max};
    return reader_list.open(&config, &limits, out, err);
}

static struct reader *must_open(void)
{
    struct reader *reader = NULL;
    struct feedd_error err = {.message = ""};
    int rc = try_open(ANY, &reader, &err);
    ck_assert_msg(rc == 0, "%s", err.message);
    ck_assert_ptr_eq(reader->ops, &reader_list);
    ck_assert_uint_eq(reader->height + reader->width + reader->channels, 0);
    return reader;
}

static struct reader *open_text(const char *text)
{
    put_file(list_path, text);
    return must_open();
}

/* Refused with the message "<list><part>". */
static void refuse_bytes(const void *bytes, size_t size, int status, const char *part)
{
    struct reader *const untouched = (struct reader *)root;
    struct reader *reader = untouched;
    struct feedd_error err = {.message = ""};
    char due[2000];
    put_bytes(list_path, bytes, size);
    int rc = try_open(ANY, &reader, &err);
    snprintf(due, sizeof(due), "%s%s", list_path, part);
    ck_assert_str_eq(err.message, due);
    ck_assert_int_eq(rc, status);
    ck_assert_int_eq(err.status, status);
    ck_assert_ptr_eq(reader, untouched);
    ck_assert_int_eq(try_open(ANY, &reader, NULL), status);
}

static void refuse(const char *text, const char *part)
{
    refuse_bytes(text, strlen(text), FEEDD_E_CORRUPT, part);
}

static void sample_is(const struct reader *reader, uint64_t index, const char *path, const char *text)
{
    struct reader_sample sample = {.fd = -77};
    struct feedd_error err = {.message = ""};
    char got[2 * PATH_MAX];
    reader->ops->path(reader, index, got, sizeof(got));
    ck_assert_str_eq(got, path);
    int rc = reader->ops->read(reader, index, &sample, &err);
    ck_assert_msg(rc == 0, "%s", err.message);
    ck_assert_ptr_null(sample.pixels);
    ck_assert_uint_eq(sample.offset, 0);
    ck_assert_uint_eq(sample.size, strlen(text));
    ck_assert_int_eq(read(sample.fd, got, sizeof(got)), (ssize_t)strlen(text));
    ck_assert_int_eq(memcmp(got, text, strlen(text)), 0);
    close(sample.fd);
}

static struct reader_sample read_one(const struct reader *reader, uint64_t index)
{
    struct reader_sample sample = {.fd = -77};
    ck_assert_int_eq(reader->ops->read(reader, index, &sample, NULL), 0);
    close(sample.fd);
    return sample;
}

/* ---- what a good one becomes ---- */

START_TEST(lines)
{
    struct reader *reader = open_text("\xef\xbb\xbf# a comment\n"
                                      "\n"
                                      "d/b.jpg\t7\r\n"
                                      "\r\n"
                                      "#a.jpg\t99\n"
                                      "a.jpg\t-1\n"
                                      "d/c c.jpg\t+3\n"
                                      "d/../a.jpg\t007"); /* without a line break */
    ck_assert_uint_eq(reader->sample_count, 4);
    ck_assert(reader->has_labels);
    ck_assert_int_eq(reader->label_dtype, FEEDD_I64);
    ck_assert_uint_eq(reader->class_count, 8);
    ck_assert_ptr_null(reader->class_names);
    sample_is(reader, 0, at("root/d/b.jpg"), "b");
    sample_is(reader, 1, at("root/a.jpg"), "a");
    sample_is(reader, 2, at("root/d/c c.jpg"), "c");
    sample_is(reader, 3, at("root/d/../a.jpg"), "a");
    static const int64_t due[] = {7, -1, 3, 7};
    for (uint64_t i = 0; i < 4; i++)
        ck_assert_int_eq(read_one(reader, i).label, due[i]);

    struct reader_sample sample = {.fd = -77, .label = 77};
    struct feedd_error err;
    ck_assert_int_eq(reader->ops->read(reader, 4, &sample, &err), FEEDD_E_ARGUMENT);
    ck_assert_int_eq(reader->ops->read(reader, UINT64_MAX, &sample, NULL), FEEDD_E_ARGUMENT);
    ck_assert_int_eq(sample.fd, -77);
    char text[9];
    reader->ops->path(reader, 0, text, sizeof(text)); /* cut, and ended all the same */
    ck_assert_uint_eq(strlen(text), 8);
    reader->ops->path(reader, UINT64_MAX, text, sizeof(text));
    reader->ops->close(reader);
    reader_list.close(NULL);
}
END_TEST

START_TEST(floats)
{
    static const struct {
        const char *text;
        float value; /* by the compiler */
    } labels[] = {{"3", 3},
                  {"-5", -5},
                  {"16777217", 16777217.0f},
                  {"9007199254740993", 9007199254740993.0f},
                  {"0.1", 0.1f},
                  {"1e3", 1e3f},
                  {"-2.5E-3", -2.5E-3f},
                  {"3.4028234e38", 3.4028234e38f},
                  {".5", .5f},
                  {"5.", 5.f},
                  {"1e-45", 1e-45f},
                  {"1e-60", 0},
                  {"+7", 7},
                  {"-1", -1},
                  {"33554435", 33554435.0f},
                  {"0.30000001192092896", 0.30000001192092896f},
                  {"123456789", 123456789.0f}};
    const size_t count = sizeof(labels) / sizeof(labels[0]);
    char text[2000];
    for (size_t first = 0; first < count; first++) { /* whichever comes first: whole numbers before and behind */
        size_t used = 0;
        for (size_t i = 0; i < count; i++)
            used += (size_t)snprintf(text + used, sizeof(text) - used, "a.jpg\t%s\n", labels[(first + i) % count].text);
        struct reader *reader = open_text(text);
        ck_assert_int_eq(reader->label_dtype, FEEDD_F32);
        ck_assert(reader->has_labels);
        ck_assert_uint_eq(reader->class_count, 0);
        for (size_t i = 0; i < count; i++) {
            const float value = read_one(reader, i).value, due = labels[(first + i) % count].value;
            ck_assert_msg(memcmp(&value, &due, sizeof(value)) == 0, "%s: %.9g", labels[(first + i) % count].text,
                          (double)value);
        }
        reader->ops->close(reader);
    }
}
END_TEST

START_TEST(without_labels)
{
    struct reader *reader = open_text("a.jpg\n# x\td\nd/b.jpg\n");
    ck_assert(!reader->has_labels);
    ck_assert_uint_eq(reader->sample_count, 2);
    ck_assert_int_eq(reader->label_dtype, FEEDD_I64);
    ck_assert_uint_eq(reader->class_count, 0);
    ck_assert_int_eq(read_one(reader, 0).label, -1);
    ck_assert_int_eq(read_one(reader, 1).label, -1);
    reader->ops->close(reader);
    refuse("a.jpg\n\nd/b.jpg\t1\n", ":3: has a label, and line 1 has none; allowed: a label in every line, or in none");
    refuse("# x\na.jpg\t1\nd/b.jpg\n",
           ":3: has no label, and line 2 has one; allowed: a label in every line, or in none");
}
END_TEST

START_TEST(classes)
{
    config.classes = class_names;
    config.class_count = 3;
    struct reader *reader = open_text("a.jpg\t2\na.jpg\t-1\na.jpg\t0\n");
    ck_assert_uint_eq(reader->class_count, 3);
    ck_assert_str_eq(reader->class_names[2], "two");
    reader->ops->close(reader);
    reader = open_text("a.jpg\n");
    ck_assert_uint_eq(reader->class_count, 3);
    reader->ops->close(reader);
    refuse("a.jpg\t2\na.jpg\t3\n", ":2: label 3, but 3 classes are configured; allowed: 0 to 2, or -1 for none");
    refuse("a.jpg\t-2\n", ":1: label -2, but 3 classes are configured; allowed: 0 to 2, or -1 for none");
    refuse("a.jpg\t1\na.jpg\t1.0\n",
           ":2: label '1.0' is not a whole number, but classes are configured; allowed: a class's number, or -1");
}
END_TEST

/* Without class names: the largest label says how many there are, if that is a number of classes at all. */
START_TEST(class_counts)
{
    static const struct {
        const char *label;
        int64_t value;
        uint32_t classes;
    } cases[] = {{"0", 0, 1},
                 {"-1", -1, 0},
                 {"4294967294", 4294967294, 4294967295},
                 {"4294967295", 4294967295, 0},
                 {"4294967300", 4294967300, 0},
                 {"9223372036854775807", INT64_MAX, 0}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[100];
        snprintf(text, sizeof(text), "a.jpg\t%s\n", cases[i].label);
        struct reader *reader = open_text(text);
        ck_assert_uint_eq(reader->class_count, cases[i].classes);
        ck_assert_int_eq(read_one(reader, 0).label, cases[i].value);
        reader->ops->close(reader);
    }
}
END_TEST

/* ---- paths ---- */

START_TEST(roots)
{
    char text[2000];
    config.root = NULL; /* the list's folder */
    struct reader *reader = open_text("a.jpg\t0\n../root/a.jpg\t1\n");
    sample_is(reader, 0, at("lists/a.jpg"), "a beside the list");
    struct feedd_error err;
    struct reader_sample sample = {.fd = -77};
    ck_assert_int_eq(reader->ops->read(reader, 1, &sample, &err), FEEDD_E_ACCESS);
    ck_assert_str_eq(err.message, "leads out of the dataset's folder; allowed: files and links within it");
    ck_assert_int_eq(sample.fd, -77);
    reader->ops->close(reader);

    /* Absolute paths: below the root as it is written, and as it really is. */
    char link[600], slashes[700];
    strcpy(link, at("link"));
    put_link(link, root);
    snprintf(slashes, sizeof(slashes), "%s//", link);
    char *const written[] = {root, link, slashes};
    for (int i = 0; i < 3; i++) {
        config.root = written[i];
        snprintf(text, sizeof(text), "%s/a.jpg\t0\n%s//d/b.jpg\t1\n", root, i == 0 ? root : link);
        reader = open_text(text);
        char due[2000];
        snprintf(due, sizeof(due), "%s/a.jpg", written[i]);
        sample_is(reader, 0, due, "a");
        snprintf(due, sizeof(due), "%s/d/b.jpg", written[i]);
        sample_is(reader, 1, due, "b");
        reader->ops->close(reader);
    }
    config.root = root;
    char part[2000];
    snprintf(part, sizeof(part), ":2: an absolute path outside of the dataset's root; allowed: paths below %s", root);
    snprintf(text, sizeof(text), "a.jpg\n%s/a.jpg\n", at("lists"));
    refuse(text, part);
    snprintf(text, sizeof(text), "a.jpg\n%s2/a.jpg\n", root);
    refuse(text, part);
    refuse("a.jpg\n/\n", part);
    snprintf(text, sizeof(text), "a.jpg\n%s\n", root);
    refuse(text, part);
    snprintf(text, sizeof(text), "a.jpg\n%s//\n", root);
    refuse(text, ":2: no path; allowed: a file's path, and behind a TAB its label");

    /* In the current folder, and in the root of all. */
    char back[PATH_MAX];
    ck_assert_ptr_nonnull(getcwd(back, sizeof(back)));
    ck_assert_int_eq(chdir(at("lists")), 0);
    config.root = NULL;
    config.list = (char *)(uintptr_t) "list.tsv";
    reader = open_text("a.jpg\n");
    sample_is(reader, 0, "./a.jpg", "a beside the list");
    reader->ops->close(reader);
    ck_assert_int_eq(chdir(back), 0);
    config.list = list_path;
    config.root = (char *)(uintptr_t) "/";
    snprintf(text, sizeof(text), "%s/a.jpg\n", root);
    reader = open_text(text);
    struct reader_sample one = read_one(reader, 0);
    ck_assert_uint_eq(one.size, 1);
    reader->ops->close(reader);
    put_link(at("root/absolute.jpg"), at("root/a.jpg"));
    snprintf(text, sizeof(text), "%s/absolute.jpg\n", root);
    reader = open_text(text);
    one = read_one(reader, 0);
    ck_assert_uint_eq(one.size, 1);
    reader->ops->close(reader);
}
END_TEST

START_TEST(files)
{
    struct reader *reader = open_text("none.jpg\t1\nd\t2\nd/out.jpg\t3\nd/in.jpg\t4\nfifo.jpg\t5\n");
    put_link(at("root/d/out.jpg"), "../../lists/a.jpg");
    put_link(at("root/d/in.jpg"), "../a.jpg");
    ck_assert_int_eq(mkfifo(at("root/fifo.jpg"), 0600), 0);
    static const int due[] = {FEEDD_E_NOT_FOUND, FEEDD_E_CORRUPT, FEEDD_E_ACCESS, 0, FEEDD_E_CORRUPT};
    for (uint64_t i = 0; i < 5; i++) {
        struct reader_sample sample = {.fd = -77};
        ck_assert_int_eq(reader->ops->read(reader, i, &sample, NULL), due[i]);
        if (due[i] == 0)
            close(sample.fd);
        else
            ck_assert_int_eq(sample.fd, -77);
    }
    reader->ops->close(reader);
}
END_TEST

/* ---- errors ---- */

START_TEST(bad_lines)
{
    static const struct {
        const char *label, *message;
    } labels[] = {
        {"", "label '' is not a number; allowed: a whole number, or one like 0.5 or 1e-3"},
        {"cat", "label 'cat' is not a number; allowed: a whole number, or one like 0.5 or 1e-3"},
        {" 1", "label ' 1' is not a number; allowed: a whole number, or one like 0.5 or 1e-3"},
        {"1 ", "label '1 ' is not a number; allowed: a whole number, or one like 0.5 or 1e-3"},
        {"0x10", "label '0x10' is not a number; allowed: a whole number, or one like 0.5 or 1e-3"},
        {"nan", "label 'nan' is not a number; allowed: a whole number, or one like 0.5 or 1e-3"},
        {"inf", "label 'inf' is not a number; allowed: a whole number, or one like 0.5 or 1e-3"},
        {"1,5", "label '1,5' is not a number; allowed: a whole number, or one like 0.5 or 1e-3"},
        {"1-2", "label '1-2' is not a number; allowed: a whole number, or one like 0.5 or 1e-3"},
        {"--1", "label '--1' is not a number; allowed: a whole number, or one like 0.5 or 1e-3"},
        {"-", "label '-' is not a number; allowed: a whole number, or one like 0.5 or 1e-3"},
        {".", "label '.' is not a number; allowed: a whole number, or one like 0.5 or 1e-3"},
        {"1e", "label '1e' is not a number; allowed: a whole number, or one like 0.5 or 1e-3"},
        {"1.2.3", "label '1.2.3' is not a number; allowed: a whole number, or one like 0.5 or 1e-3"},
        {"1e39", "label '1e39' is larger than a 32-bit float can be; allowed: up to 3.4e38"},
        {"-1e999", "label '-1e999' is larger than a 32-bit float can be; allowed: up to 3.4e38"},
        {"9223372036854775808", "label '9223372036854775808' doesn't fit 64 bits; allowed: -1 to 9223372036854775807"},
        {"-9223372036854775809",
         "label '-9223372036854775809' doesn't fit 64 bits; allowed: -1 to 9223372036854775807"},
        {"11111111112222222222333333333344444444445",
         "label '1111111111222222222233333333334444444444' doesn't fit 64 bits; allowed: -1 to 9223372036854775807"},
        {"1\t2", "more than one TAB; allowed: path, TAB, label"},
        {"1\t", "more than one TAB; allowed: path, TAB, label"},
    };
    for (size_t i = 0; i < sizeof(labels) / sizeof(labels[0]); i++) {
        char text[200], part[300];
        snprintf(text, sizeof(text), "# one\na.jpg\t0\n\nd/b.jpg\t%s\na.jpg\tworse\n", labels[i].label);
        snprintf(part, sizeof(part), ":4: %s", labels[i].message);
        refuse(text, part);
    }
    refuse("a.jpg\t0\na.jpg\t-2\na.jpg\t-3\n", ":2: label -2; allowed: 0 or more, or -1 for none");
    struct reader *reader = open_text("a.jpg\t-2\na.jpg\t0.5\n"); /* fine among floats */
    ck_assert_float_eq(read_one(reader, 0).value, -2);
    reader->ops->close(reader);
    refuse("\t1\n", ":1: no path; allowed: a file's path, and behind a TAB its label");
    refuse_bytes("a.jpg\t1\nb\0.jpg\t1\n", 17, FEEDD_E_CORRUPT, ":2: a NUL byte; allowed: text without it");
    refuse_bytes("a.jpg\t1\nb.jpg\t1\n\0", 18, FEEDD_E_CORRUPT, ":3: a NUL byte; allowed: text without it");
    refuse("", ": no samples; allowed: a line for each, path, TAB, label");
    refuse("# a.jpg\t1\n\n\r\n", ": no samples; allowed: a line for each, path, TAB, label");

    char *longest = malloc(PATH_MAX + 10);
    memset(longest, 'x', PATH_MAX);
    strcpy(longest + PATH_MAX, "\t1\n");
    refuse(longest, ":1: a path of 4096 bytes; allowed: at most 4095");
    strcpy(longest + PATH_MAX - 1, "\t1\n");
    reader = open_text(longest);
    ck_assert_int_eq(reader->ops->read(reader, 0, &(struct reader_sample){.fd = -1}, NULL), FEEDD_E_NOT_FOUND);
    reader->ops->close(reader);
    free(longest);
}
END_TEST

START_TEST(bad_files)
{
    struct reader *reader = NULL;
    struct feedd_error err;
    char due[1500];
    snprintf(due, sizeof(due), "%s: can't be opened: No such file or directory", list_path);
    ck_assert_int_eq(try_open(ANY, &reader, &err), FEEDD_E_NOT_FOUND);
    ck_assert_str_eq(err.message, due);
    ck_assert_int_eq(mkfifo(list_path, 0600), 0);
    ck_assert_int_eq(try_open(ANY, &reader, &err), FEEDD_E_IO);
    snprintf(due, sizeof(due), "%s: is a device, pipe or socket; allowed: a regular file", list_path);
    ck_assert_str_eq(err.message, due);
    unlink(list_path);
    put_file(list_path, "a.jpg\n");
    tree_remove(root);
    snprintf(due, sizeof(due), "%s: can't be opened: No such file or directory", root);
    ck_assert_int_eq(try_open(ANY, &reader, &err), FEEDD_E_NOT_FOUND);
    ck_assert_str_eq(err.message, due);
    put_file(root, "x");
    snprintf(due, sizeof(due), "%s: can't be opened: Not a directory", root);
    ck_assert_int_eq(try_open(ANY, &reader, &err), FEEDD_E_NOT_FOUND);
    ck_assert_str_eq(err.message, due);
    ck_assert_ptr_null(reader);
}
END_TEST

/* The text and 16 bytes a line: never more than the limit, and that is what is said. */
START_TEST(memory)
{
    static const char text[] = "a.jpg\t1\n# x\nd/b.jpg\t2\n"; /* 22 bytes; 4 lines, the last one empty */
    struct reader *reader = open_text(text);
    ck_assert_uint_eq(reader->memory_bytes, 22 + 1 + 2 * 16);
    reader->ops->close(reader);
    for (uint64_t limit = 0; limit < 200; limit++) {
        struct feedd_error err = {.message = ""};
        char due[1500];
        int rc = try_open(limit, &reader, &err);
        ck_assert_int_eq(rc, limit < 22 + 4 * 16 ? FEEDD_E_LIMIT : 0);
        if (rc == 0) {
            reader->ops->close(reader);
            continue;
        }
        if (limit < 22)
            snprintf(due, sizeof(due), "%s: 22 bytes; allowed: at most %llu (daemon.dataset_memory_max)", list_path,
                     (unsigned long long)limit);
        else
            snprintf(due, sizeof(due),
                     "%s: 4 lines of 22 bytes take more memory than is allowed: %llu bytes (daemon.dataset_memory_max)",
                     list_path, (unsigned long long)limit);
        ck_assert_str_eq(err.message, due);
    }
    int fd = open(list_path, O_WRONLY | O_CLOEXEC); /* as large as a disk: refused before any of it is read */
    ck_assert_int_eq(ftruncate(fd, 1ll << 42), 0);
    close(fd);
    ck_assert_int_eq(try_open(ANY, &reader, NULL), FEEDD_E_LIMIT);
}
END_TEST

static uint64_t fingerprint(const char *text)
{
    struct reader *reader = open_text(text);
    const uint64_t value = reader->fingerprint;
    reader->ops->close(reader);
    return value;
}

START_TEST(fingerprints)
{
    const uint64_t plain = fingerprint("d/b.jpg\t1\na.jpg\t-1\n");

    /* XXH3 of: path, 0, label, in order; then the count and the list's size; numbers as 8 bytes, little-endian. */
    static const char due[] = "d/b.jpg\0"
                              "\1\0\0\0\0\0\0\0"
                              "a.jpg\0"
                              "\xff\xff\xff\xff\xff\xff\xff\xff"
                              "\2\0\0\0\0\0\0\0"
                              "\x13\0\0\0\0\0\0\0";
    ck_assert_uint_eq(plain, XXH3_64bits(due, sizeof(due) - 1));
    static const char floats_due[] = "a.jpg\0"
                                     "\0\0\x20\xc0\0\0\0\0" /* -2.5 */
                                     "\1\0\0\0\0\0\0\0"
                                     "\x0b\0\0\0\0\0\0\0";
    ck_assert_uint_eq(fingerprint("a.jpg\t-2.5\n"), XXH3_64bits(floats_due, sizeof(floats_due) - 1));

    ck_assert_uint_ne(fingerprint("d/b.jpg\t2\na.jpg\t-1\n"), plain);
    ck_assert_uint_ne(fingerprint("a.jpg\t-1\nd/b.jpg\t1\n"), plain);
    ck_assert_uint_ne(fingerprint("d/b.jpg\t1\nb.jpg\t-1\n"), plain);
    ck_assert_uint_ne(fingerprint("d/b.jpg\t1\na.jpg\t-1\n#\n"), plain); /* of another size */
    put_file(at("root/a.jpg"), "another one"); /* whatever the files hold: they aren't looked at */
    ck_assert_uint_eq(fingerprint("d/b.jpg\t1\na.jpg\t-1\n"), plain);
    ck_assert_int_eq(rename(root, at("elsewhere")), 0);
    strcpy(root, at("elsewhere"));
    ck_assert_uint_eq(fingerprint("d/b.jpg\t1\na.jpg\t-1\n"), plain);
}
END_TEST

/* Whatever stands in it: samples that can be asked for, or an error that names the file. */
START_TEST(damaged)
{
    static const char full[] = "# list\na.jpg\t1\nd/b.jpg\t22\r\nd/c c.jpg\t-1\n\na.jpg\t0.5\na.jpg\t1e-3\n";
    uint64_t state = 5;
    for (size_t i = 0; i < sizeof(full) + 4000; i++) {
        char text[sizeof(full)];
        size_t size = i < sizeof(full) ? i : sizeof(full) - 1;
        memcpy(text, full, size);
        for (uint32_t n = i < sizeof(full) ? 0 : 1 + random_next(&state) % 4; n > 0; n--)
            text[random_next(&state) % size] =
                i % 2 ? (char)random_next(&state) : "\t\t\n\r#/.0123456789-e"[random_next(&state) % 19];
        put_bytes(list_path, text, size);
        struct reader *reader = NULL;
        struct feedd_error err = {.message = ""};
        if (try_open(4096, &reader, &err) != 0) {
            ck_assert_ptr_null(reader);
            ck_assert_int_eq(strncmp(err.message, list_path, strlen(list_path)), 0);
            continue;
        }
        for (uint64_t k = 0; k < reader->sample_count; k++) {
            struct reader_sample sample = {.fd = -1};
            char path[2 * PATH_MAX];
            reader->ops->path(reader, k, path, sizeof(path));
            if (reader->ops->read(reader, k, &sample, NULL) == 0)
                close(sample.fd);
            ck_assert_int_ge(sample.label, -1);
            ck_assert(reader->class_count == 0 || sample.label < (int64_t)reader->class_count);
            ck_assert(isfinite(sample.value));
        }
        reader->ops->close(reader);
    }
}
END_TEST

static void *read_all(void *argument)
{
    const struct reader *reader = argument;
    for (int round = 0; round < 500; round++)
        for (uint64_t i = 0; i < reader->sample_count; i++) {
            struct reader_sample sample;
            char text[8] = "";
            if (reader->ops->read(reader, i, &sample, NULL) != 0)
                return argument;
            ssize_t got = read(sample.fd, text, sizeof(text) - 1);
            close(sample.fd);
            if (got != 1 || sample.label != text[0] - 'a')
                return argument;
        }
    return NULL;
}

START_TEST(threads)
{
    pthread_t thread[4];
    struct reader *reader = open_text("a.jpg\t0\nd/b.jpg\t1\nd/c c.jpg\t2\n");
    for (int t = 0; t < 4; t++)
        ck_assert_int_eq(pthread_create(&thread[t], NULL, read_all, reader), 0);
    for (int t = 0; t < 4; t++) {
        void *bad;
        ck_assert_int_eq(pthread_join(thread[t], &bad), 0);
        ck_assert_ptr_null(bad);
    }
    reader->ops->close(reader);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("list");
    TCase *tcase = tcase_create("list");
    tcase_add_checked_fixture(tcase, setup, tree_teardown);
    tcase_set_timeout(tcase, 120);
    tcase_add_test(tcase, lines);
    tcase_add_test(tcase, floats);
    tcase_add_test(tcase, without_labels);
    tcase_add_test(tcase, classes);
    tcase_add_test(tcase, class_counts);
    tcase_add_test(tcase, roots);
    tcase_add_test(tcase, files);
    tcase_add_test(tcase, bad_lines);
    tcase_add_test(tcase, bad_files);
    tcase_add_test(tcase, memory);
    tcase_add_test(tcase, fingerprints);
    tcase_add_test(tcase, damaged);
    tcase_add_test(tcase, threads);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    const int failures = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failures != 0;
}
