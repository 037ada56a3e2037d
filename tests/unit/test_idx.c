/* test_idx.c - the IDX reader: every byte that it delivers is compared with what the test wrote, and whatever is wrong
 * with a file is an error that says so.
 *
 * Happy path: a case builds IDX bytes, stores them plain or by zlib's own gzip writer in a folder of its own, and opens
 * them. The folder goes at the end.
 * Threads: one, but for one case that reads on four. */
#include <check.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>
#include <zlib.h>

#include "error.h"
#include "reader.h"

#define ANY (1ull << 40) /* a memory_max that doesn't matter */

static char folder[512];
static char images_path[600], labels_path[600];

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
    snprintf(folder, sizeof(folder), "%s/feedd-idx-XXXXXX", tmp != NULL && tmp[0] == '/' ? tmp : "/tmp");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(images_path, sizeof(images_path), "%s/images", folder);
    snprintf(labels_path, sizeof(labels_path), "%s/labels", folder);
    descriptors = descriptors_open();
}

static void folder_remove(void)
{
    unlink(images_path);
    unlink(labels_path);
    ck_assert_int_eq(rmdir(folder), 0);
    ck_assert_int_eq(descriptors_open(), descriptors); /* whatever a case does, it leaves none open */
}

static uint32_t random_next(uint64_t *state) /* xorshift64*, Vigna 2016 */
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return (uint32_t)((*state * 2685821657736338717u) >> 32);
}

/* Bytes of a file that a case builds. */
struct bytes {
    size_t length;
    uint8_t data[200000];
};

static void put(struct bytes *b, const void *data, size_t length)
{
    if (length > sizeof(b->data) - b->length)
        ck_abort_msg("a case builds too large a file");
    memcpy(b->data + b->length, data, length);
    b->length += length;
}

static void put_be(struct bytes *b, uint32_t value, int size)
{
    uint8_t raw[4] = {(uint8_t)(value >> 24), (uint8_t)(value >> 16), (uint8_t)(value >> 8), (uint8_t)value};
    put(b, raw + 4 - size, (size_t)size);
}

static void header(struct bytes *b, int type, int ndim, const uint32_t *dims)
{
    b->length = 0;
    put_be(b, (uint32_t)type << 8 | (uint32_t)ndim, 4);
    for (int d = 0; d < ndim; d++)
        put_be(b, dims[d], 4);
}

static void images_of(struct bytes *b, uint32_t n, uint32_t h, uint32_t w, uint32_t c, uint64_t seed)
{
    header(b, 0x08, c == 0 ? 3 : 4, (uint32_t[]){n, h, w, c}); /* c = 0: three dimensions */
    for (uint64_t i = 0; i < (uint64_t)n * h * w * (c == 0 ? 1 : c); i++)
        put_be(b, random_next(&seed), 1);
}

static void labels_of(struct bytes *b, int type, int size, uint32_t n, const int64_t *labels)
{
    header(b, type, 1, &n);
    for (uint32_t i = 0; i < n; i++)
        put_be(b, (uint32_t)labels[i], size);
}

/* Some file systems write a file out when it is truncated and closed, and wait: a new file each time is much faster. */
static void store(const char *path, const void *data, size_t length)
{
    unlink(path);
    FILE *f = fopen(path, "wb");
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fwrite(data, 1, length, f), length);
    ck_assert_int_eq(fclose(f), 0);
}

/* @param mode  of gzopen(): "wb", or "ab" for one more member */
static void store_gz(const char *path, const char *mode, const void *data, size_t length)
{
    if (mode[0] == 'w')
        unlink(path);
    gzFile f = gzopen(path, mode);
    ck_assert_ptr_nonnull(f);
    ck_assert_int_eq(gzwrite(f, data, (unsigned)length), (int)length);
    ck_assert_int_eq(gzclose(f), Z_OK);
}

static void load(const char *path, struct bytes *b)
{
    FILE *f = fopen(path, "rb");
    ck_assert_ptr_nonnull(f);
    b->length = fread(b->data, 1, sizeof(b->data), f);
    ck_assert_int_eq(fclose(f), 0);
}

static char *class_names[1]; /* the reader needs the count alone */

static int try_open(int with_labels, uint32_t class_count, uint64_t memory_max, struct reader **out,
                    struct feedd_error *err)
{
    const struct reader_config config = {.name = images_path,
                                         .ops = &reader_idx,
                                         .images = images_path,
                                         .labels = with_labels ? labels_path : NULL,
                                         .classes = class_count > 0 ? class_names : NULL,
                                         .class_count = class_count};
    const struct reader_limits limits = {.memory_max = memory_max};
    return reader_idx.open(&config, &limits, out, err);
}

static struct reader *must_open(int with_labels, uint32_t class_count, uint64_t memory_max)
{
    struct reader *reader = NULL;
    struct feedd_error err = {.message = ""};
    int rc = try_open(with_labels, class_count, memory_max, &reader, &err);
    ck_assert_msg(rc == 0, "%s", err.message);
    ck_assert_ptr_eq(reader->ops, &reader_idx);
    return reader;
}

/* The dataset has to be refused, with a message that begins with the path of the file and holds `part`. */
static void refuse_limited(const char *path, int with_labels, uint32_t class_count, uint64_t memory_max, int status,
                           const char *part)
{
    struct reader *const untouched = (struct reader *)folder;
    struct reader *reader = untouched;
    struct feedd_error err = {.message = ""};
    int rc = try_open(with_labels, class_count, memory_max, &reader, &err);
    ck_assert_msg(strncmp(err.message, path, strlen(path)) == 0 && strstr(err.message, part) != NULL,
                  "'%s' isn't about %s or doesn't say '%s'", err.message, path, part);
    ck_assert_int_eq(rc, status);
    ck_assert_int_eq(err.status, status);
    ck_assert_ptr_eq(reader, untouched);
    ck_assert_int_eq(try_open(with_labels, class_count, memory_max, &reader, NULL), status);
}

static void refuse_images(int status, const char *part)
{
    refuse_limited(images_path, 0, 0, ANY, status, part);
}

static void refuse_labels(int status, const char *part)
{
    refuse_limited(labels_path, 1, 0, ANY, status, part);
}

/* Every sample is what stands in `b` after its header. */
static void compare(const struct reader *reader, const struct bytes *b, uint64_t header_bytes, const int64_t *labels)
{
    const uint64_t sample_bytes = (uint64_t)reader->height * reader->width * reader->channels;
    ck_assert_uint_eq(b->length, header_bytes + reader->sample_count * sample_bytes);
    for (uint64_t i = 0; i < reader->sample_count; i++) {
        struct reader_sample sample = {.fd = 77, .label = 77};
        if (reader->ops->read(reader, i, &sample, NULL) != 0 || sample.fd != -1 ||
            sample.label != (labels != NULL ? labels[i] : -1) ||
            memcmp(sample.pixels, b->data + header_bytes + i * sample_bytes, sample_bytes) != 0)
            ck_abort_msg("sample %llu differs", (unsigned long long)i);
    }
    struct reader_sample sample = {.fd = 77, .label = 77};
    struct feedd_error err;
    ck_assert_int_eq(reader->ops->read(reader, reader->sample_count, &sample, &err), FEEDD_E_ARGUMENT);
    ck_assert_int_eq(reader->ops->read(reader, UINT64_MAX, &sample, &err), FEEDD_E_ARGUMENT);
    ck_assert_ptr_null(sample.pixels);
    ck_assert_int_eq(sample.label, 77);
    ck_assert_int_eq(sample.fd, 77);

    char due[700], text[700];
    snprintf(due, sizeof(due), "%s[%llu]", images_path, (unsigned long long)reader->sample_count - 1);
    reader->ops->path(reader, reader->sample_count - 1, text, sizeof(text));
    ck_assert_str_eq(text, due);
    reader->ops->path(reader, 0, text, 8); /* cut, and ended all the same */
    ck_assert_uint_eq(strlen(text), 7);
    ck_assert_int_eq(strncmp(text, due, 7), 0);
}

static struct bytes images, labels, scratch; /* large: not on the stack */
static const int64_t five[] = {3, 0, 9, 1, 3};

/* Shapes, plain and as gzip, with and without labels; what is written is what is read. */
START_TEST(round_trip)
{
    static const uint32_t shapes[][4] = {{5, 4, 3, 0}, {5, 1, 1, 0}, {5, 28, 28, 0}, {5, 4, 3, 1},
                                         {5, 2, 7, 2}, {5, 3, 5, 3}, {5, 6, 2, 4},   {5, 100, 97, 3}};
    for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++)
        for (int variant = 0; variant < 8; variant++) {
            const int gz_images = variant & 1, gz_labels = variant & 2, with_labels = variant & 4;
            const uint32_t *d = shapes[s], channels = d[3] == 0 ? 1 : d[3];
            images_of(&images, d[0], d[1], d[2], d[3], 1 + s);
            labels_of(&labels, 0x08, 1, 5, five);
            if (gz_images)
                store_gz(images_path, "wb9", images.data, images.length);
            else
                store(images_path, images.data, images.length);
            if (gz_labels)
                store_gz(labels_path, "wb1", labels.data, labels.length);
            else
                store(labels_path, labels.data, labels.length);
            struct reader *reader = must_open(with_labels, 0, ANY);
            ck_assert_uint_eq(reader->sample_count, 5);
            ck_assert_uint_eq(reader->height, d[1]);
            ck_assert_uint_eq(reader->width, d[2]);
            ck_assert_uint_eq(reader->channels, channels);
            ck_assert_int_eq(reader->has_labels, with_labels != 0);
            ck_assert_int_eq(reader->label_dtype, FEEDD_I64);
            ck_assert_ptr_null(reader->class_names);
            ck_assert_uint_eq(reader->class_count, with_labels ? 10 : 0);
            ck_assert_uint_ge(reader->memory_bytes, 5ull * d[1] * d[2] * channels + (with_labels ? 5 * 8 : 0));
            ck_assert_uint_lt(reader->memory_bytes, 5ull * d[1] * d[2] * channels + 5 * 8 + 64);
            compare(reader, &images, d[3] == 0 ? 16 : 20, with_labels ? five : NULL);
            reader->ops->close(reader);
        }
    reader_idx.close(NULL);
}
END_TEST

/* Members of a gzip file are one content, wherever they are cut: also in the header, and empty ones. */
START_TEST(gzip_members)
{
    images_of(&images, 5, 4, 3, 0, 9);
    for (size_t cut = 0; cut <= images.length; cut++) {
        store_gz(images_path, "wb", images.data, cut);
        store_gz(images_path, "ab", "", 0);
        store_gz(images_path, "ab", images.data + cut, images.length - cut);
        struct reader *reader = must_open(0, 0, ANY);
        compare(reader, &images, 16, NULL);
        reader->ops->close(reader);
    }
    for (size_t i = 0; i < images.length; i++) /* one member a byte */
        store_gz(images_path, i == 0 ? "wb" : "ab", images.data + i, 1);
    struct reader *reader = must_open(0, 0, ANY);
    compare(reader, &images, 16, NULL);
    reader->ops->close(reader);

    /* Not smaller than its content: several refills of the reader's buffer, with and without gzip's own structure. */
    images_of(&images, 5, 100, 97, 3, 10);
    store_gz(images_path, "wb0", images.data, images.length);
    reader = must_open(0, 0, ANY);
    compare(reader, &images, 20, NULL);
    reader->ops->close(reader);
}
END_TEST

START_TEST(label_types)
{
    static const struct {
        int type, size;
        int64_t values[5];
        uint32_t class_count;
    } cases[] = {
        {0x08, 1, {0, 255, 128, 127, 1}, 256},      {0x09, 1, {0, -1, 127, 5, 6}, 128},
        {0x0B, 2, {0, -1, 32767, 258, 256}, 32768}, {0x0C, 4, {0, -1, 2147483647, 16909060, 65536}, 2147483648u},
        {0x0C, 4, {-1, -1, -1, -1, -1}, 0},
    };
    images_of(&images, 5, 2, 2, 0, 3);
    store(images_path, images.data, images.length);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        labels_of(&labels, cases[i].type, cases[i].size, 5, cases[i].values);
        store(labels_path, labels.data, labels.length);
        struct reader *reader = must_open(1, 0, ANY);
        ck_assert_uint_eq(reader->class_count, cases[i].class_count);
        compare(reader, &images, 16, cases[i].values);
        reader->ops->close(reader);
    }

    /* More labels than are converted at a time. */
    static int64_t many[30000];
    uint64_t state = 5;
    images_of(&images, 30000, 1, 1, 0, 3);
    for (int i = 0; i < 30000; i++)
        many[i] = (int64_t)(random_next(&state) % 100000) - 1;
    many[29999] = 100000;
    labels_of(&labels, 0x0C, 4, 30000, many);
    store(images_path, images.data, images.length);
    store_gz(labels_path, "wb", labels.data, labels.length);
    struct reader *reader = must_open(1, 0, ANY);
    ck_assert_uint_eq(reader->class_count, 100001);
    compare(reader, &images, 16, many);
    reader->ops->close(reader);
}
END_TEST

START_TEST(label_values)
{
    images_of(&images, 5, 2, 2, 0, 3);
    store(images_path, images.data, images.length);
    labels_of(&labels, 0x0B, 2, 5, (int64_t[]){0, 1, -2, 3, 4});
    store(labels_path, labels.data, labels.length);
    refuse_labels(FEEDD_E_CORRUPT, ": sample 2 has label -2; allowed: 0 or more, or -1 for none");
    labels_of(&labels, 0x08, 1, 5, five);
    store(labels_path, labels.data, labels.length);
    refuse_limited(labels_path, 1, 9, ANY, FEEDD_E_CORRUPT,
                   ": sample 2 has label 9, but 9 classes are configured; allowed: 0 to 8, or -1 for none");
    struct reader *reader = must_open(1, 10, ANY);
    ck_assert_uint_eq(reader->class_count, 10);
    ck_assert_ptr_eq(reader->class_names, class_names);
    reader->ops->close(reader);
    reader = must_open(1, 1000, ANY); /* classes without samples are classes */
    ck_assert_uint_eq(reader->class_count, 1000);
    reader->ops->close(reader);
    reader = must_open(0, 3, ANY);
    ck_assert_uint_eq(reader->class_count, 3);
    reader->ops->close(reader);
}
END_TEST

/* Stores a header, `more` bytes behind it, and expects the images to be refused. */
static void refuse_header(int type, int ndim, const uint32_t *dims, size_t more, int status, const char *part)
{
    header(&scratch, type, ndim, dims);
    put(&scratch, (const uint8_t[64]){0}, more);
    store(images_path, scratch.data, scratch.length);
    refuse_images(status, part);
    store_gz(images_path, "wb", scratch.data, scratch.length);
    refuse_images(status, part);
}

START_TEST(headers)
{
    const uint32_t small[] = {2, 2, 2, 2, 2, 2};
    store(images_path, "\x89PNG\r\n\x1a\n........", 16);
    refuse_images(FEEDD_E_CORRUPT,
                  ": not an IDX file: it begins with 89 50 4e 47; IDX images begin with 00 00 08 03 or "
                  "00 00 08 04");
    store_gz(images_path, "wb", "\0\1\x08\3............", 16);
    refuse_images(FEEDD_E_CORRUPT, ": not an IDX file: it begins with 00 01 08 03;");
    refuse_header(0x0A, 3, small, 8, FEEDD_E_CORRUPT, ": not an IDX file: it begins with 00 00 0a 03;");
    refuse_header(0x0F, 3, small, 8, FEEDD_E_CORRUPT, ": not an IDX file: it begins with 00 00 0f 03;");
    refuse_header(0x00, 3, small, 8, FEEDD_E_CORRUPT, ": not an IDX file: it begins with 00 00 00 03;");
    refuse_header(0xFF, 3, small, 8, FEEDD_E_CORRUPT, ": not an IDX file: it begins with 00 00 ff 03;");
    refuse_header(0x08, 0, small, 8, FEEDD_E_CORRUPT, ": not an IDX file: it begins with 00 00 08 00;");

    refuse_header(0x09, 3, small, 8, FEEDD_E_UNSUPPORTED, ": elements are i8; allowed: u8");
    refuse_header(0x0B, 3, small, 16, FEEDD_E_UNSUPPORTED, ": elements are i16; allowed: u8");
    refuse_header(0x0C, 3, small, 32, FEEDD_E_UNSUPPORTED, ": elements are i32; allowed: u8");
    refuse_header(0x0D, 4, small, 64, FEEDD_E_UNSUPPORTED, ": elements are f32; allowed: u8");
    refuse_header(0x0E, 3, small, 64, FEEDD_E_UNSUPPORTED, ": elements are f64; allowed: u8");
    refuse_header(0x08, 2, small, 4, FEEDD_E_UNSUPPORTED,
                  ": 2 dimensions; allowed: 3 (samples, height, width) or 4 "
                  "(samples, height, width, channels)");
    refuse_header(0x08, 5, small, 32, FEEDD_E_UNSUPPORTED, ": 5 dimensions; allowed: 3 ");
    store(images_path, "\0\0\x08\xff", 4);
    refuse_images(FEEDD_E_UNSUPPORTED, ": 255 dimensions; allowed: 3 ");
    refuse_header(0x08, 4, (uint32_t[]){1, 2, 2, 5}, 20, FEEDD_E_UNSUPPORTED,
                  ": 5 channels (dimension 4 of 4); allowed: 1 "
                  "to 4");
    for (int d = 0; d < 4; d++) {
        uint32_t dims[] = {2, 2, 2, 2};
        char part[100];
        dims[d] = 0;
        snprintf(part, sizeof(part), ": dimension %d of 4 is 0; allowed: 1 or more", d + 1);
        refuse_header(0x08, 4, dims, 0, FEEDD_E_CORRUPT, part);
    }

    /* The two files the wrong way round, and other labels. */
    labels_of(&labels, 0x08, 1, 5, five);
    store(images_path, labels.data, labels.length);
    refuse_images(FEEDD_E_UNSUPPORTED,
                  ": labels (1 dimension) where images are due (3 or 4): `images:` and `labels:` may "
                  "be the wrong way round");
    images_of(&images, 5, 2, 2, 0, 3);
    store(images_path, images.data, images.length);
    store(labels_path, images.data, images.length);
    refuse_labels(FEEDD_E_UNSUPPORTED,
                  ": images (3 dimensions) where labels are due (1): `images:` and `labels:` may be "
                  "the wrong way round");
    store(labels_path, "\0\0\x08\2\0\0\0\1\0\0\0\1.", 13);
    refuse_labels(FEEDD_E_UNSUPPORTED, ": 2 dimensions; allowed: 1 (samples)");
    store(labels_path, "\0\0\x0D\1\0\0\0\1....", 12);
    refuse_labels(FEEDD_E_UNSUPPORTED, ": elements are f32; allowed: u8, i8, i16, i32");
    store(labels_path, "label\n0\n1\n", 10);
    refuse_labels(FEEDD_E_CORRUPT,
                  ": not an IDX file: it begins with 6c 61 62 65; IDX labels begin with 00 00 08 01 (u8), "
                  "00 00 09 01 (i8), 00 00 0b 01 (i16) or 00 00 0c 01 (i32)");
    store(labels_path, "\0\0\x08\1\0\0\0\0", 8);
    refuse_labels(FEEDD_E_CORRUPT, ": dimension 1 of 1 is 0; allowed: 1 or more");

    char part[700];
    labels_of(&labels, 0x08, 1, 4, five);
    store(labels_path, labels.data, labels.length);
    snprintf(part, sizeof(part), " has 5 images, %s has 4 labels; allowed: as many labels as images", labels_path);
    refuse_limited(images_path, 1, 0, ANY, FEEDD_E_CORRUPT, part);
}
END_TEST

START_TEST(sizes)
{
    char part[200];
    images_of(&images, 5, 4, 3, 0, 3);
    labels_of(&labels, 0x0B, 2, 5, five);
    store(images_path, images.data, images.length);
    store(labels_path, labels.data, labels.length);

    /* The limit is met exactly: 60 bytes of pixels, and with labels those from byte 64 on. */
    struct reader *reader = must_open(0, 0, 60);
    ck_assert_uint_eq(reader->memory_bytes, 60);
    reader->ops->close(reader);
    refuse_limited(images_path, 0, 0, 59, FEEDD_E_LIMIT, ": 5 samples of 4 x 3 x 1 take 60 bytes of memory");
    refuse_limited(images_path, 0, 0, 59, FEEDD_E_LIMIT, "; allowed: 59 (daemon.dataset_memory_max)");
    refuse_limited(images_path, 0, 0, 0, FEEDD_E_LIMIT, "; allowed: 0 ");
    reader = must_open(1, 0, 104);
    ck_assert_uint_eq(reader->memory_bytes, 104);
    reader->ops->close(reader);
    refuse_limited(images_path, 1, 0, 103, FEEDD_E_LIMIT, " take 104 bytes of memory");

    /* Headers that promise more than there is or than a machine has: refused without reserving any of it. */
    static const uint32_t huge[][4] = {{4294967295u, 4294967295u, 4294967295u, 4}, {4294967295u, 4294967295u, 1, 1},
                                       {1, 4294967295u, 4294967295u, 2},           {4294967295u, 65536, 65536, 1},
                                       {2147483648u, 2147483648u, 2, 2},           {2147483648u, 2147483648u, 4, 1}};
    for (size_t i = 0; i < sizeof(huge) / sizeof(huge[0]); i++) {
        header(&scratch, 0x08, 4, huge[i]);
        store(images_path, scratch.data, scratch.length);
        refuse_limited(images_path, 0, 0, ANY, FEEDD_E_LIMIT, "; allowed: 1099511627776 (daemon.dataset_memory_max)");
        store_gz(images_path, "wb", scratch.data, scratch.length);
        refuse_limited(images_path, 0, 0, ANY, FEEDD_E_LIMIT, "; allowed: 1099511627776 (daemon.dataset_memory_max)");
    }
    header(&scratch, 0x08, 4, huge[0]);
    store_gz(images_path, "wb", scratch.data, scratch.length);
    refuse_limited(images_path, 0, 0, UINT64_MAX, FEEDD_E_LIMIT, " are more than 2^64; allowed: 18446744073709551615 ");
    header(&scratch, 0x08, 4, huge[4]); /* 2^64 */
    store_gz(images_path, "wb", scratch.data, scratch.length);
    refuse_limited(images_path, 0, 0, UINT64_MAX, FEEDD_E_LIMIT, " are more than 2^64; allowed: ");
    header(&scratch, 0x08, 3, (uint32_t[]){2147483648u, 2147483648u, 1});
    store_gz(images_path, "wb", scratch.data, scratch.length);
    refuse_limited(images_path, 0, 0, UINT64_MAX, FEEDD_E_MEMORY, ": not enough memory for 4611686018427387904 bytes");
    store(images_path, scratch.data, scratch.length);
    refuse_limited(images_path, 0, 0, UINT64_MAX, FEEDD_E_CORRUPT, ": truncated: 16 of 4611686018427387920 bytes");

    /* Every plain file that is too short, and the first that are too long. */
    for (size_t length = 0; length < images.length + 3; length++) {
        if (length == images.length)
            continue;
        memcpy(scratch.data, images.data, images.length);
        store(images_path, scratch.data, length);
        snprintf(part, sizeof(part), ": truncated: %zu of %d bytes", length, length < 4 ? 4 : length < 16 ? 16 : 76);
        refuse_images(FEEDD_E_CORRUPT,
                      length < images.length ? part : ": trailing data: its header says 76 bytes, and there are more");
    }
    store(images_path, images.data, images.length);
    for (size_t length = 0; length < labels.length + 3; length++) {
        if (length == labels.length)
            continue;
        memcpy(scratch.data, labels.data, labels.length);
        store(labels_path, scratch.data, length);
        snprintf(part, sizeof(part), ": truncated: %zu of %d bytes", length, length < 4 ? 4 : length < 8 ? 8 : 18);
        refuse_labels(FEEDD_E_CORRUPT,
                      length < labels.length ? part : ": trailing data: its header says 18 bytes, and there are more");
    }
}
END_TEST

/* Where the content is cut or too long, but the gzip around it is whole. */
START_TEST(gzip_content)
{
    char part[200];
    images_of(&images, 5, 4, 3, 0, 3);
    labels_of(&labels, 0x0C, 4, 5, five);
    for (size_t length = 0; length < images.length; length++) {
        store_gz(images_path, "wb", images.data, length);
        snprintf(part, sizeof(part), ": truncated: %zu of %d bytes after decompression", length,
                 length < 4    ? 4
                 : length < 16 ? 16
                               : 76);
        refuse_images(FEEDD_E_CORRUPT, part);
    }
    memcpy(scratch.data, images.data, images.length);
    scratch.data[images.length] = 0;
    store_gz(images_path, "wb", scratch.data, images.length + 1);
    refuse_images(FEEDD_E_CORRUPT, ": trailing data: its header says 76 bytes after decompression, and there are more");
    store_gz(images_path, "wb", images.data, images.length);
    store_gz(images_path, "ab", "x", 1); /* the same in a member of its own */
    refuse_images(FEEDD_E_CORRUPT, ": trailing data: its header says 76 bytes after decompression");

    store_gz(images_path, "wb", images.data, images.length); /* bytes behind it that aren't gzip */
    load(images_path, &scratch);
    put(&scratch, "more", 4);
    store(images_path, scratch.data, scratch.length);
    refuse_images(FEEDD_E_CORRUPT, ": damaged gzip data before byte ");
    refuse_images(FEEDD_E_CORRUPT, ": incorrect header check");

    store_gz(images_path, "wb", images.data, images.length);
    for (size_t length = 0; length < labels.length; length++) {
        store_gz(labels_path, "wb", labels.data, length);
        snprintf(part, sizeof(part), ": truncated: %zu of %d bytes after decompression", length,
                 length < 4   ? 4
                 : length < 8 ? 8
                              : 28);
        refuse_labels(FEEDD_E_CORRUPT, part);
    }
    store_gz(labels_path, "wb", labels.data, labels.length);
    store_gz(labels_path, "ab", "x", 1);
    refuse_labels(FEEDD_E_CORRUPT, ": trailing data: its header says 28 bytes after decompression");
}
END_TEST

/* A gzip file cut at every byte: always an error, also where all pixels are there and only the checksum isn't. */
START_TEST(gzip_truncated)
{
    images_of(&images, 20, 6, 5, 0, 3);
    for (int level = 0; level <= 9; level += 3) {
        char mode[4] = {'w', 'b', (char)('0' + level), 0};
        store_gz(images_path, mode, images.data, images.length);
        load(images_path, &scratch);
        for (size_t length = 0; length < scratch.length; length++) {
            store(images_path, scratch.data, length);
            const int no_checksum = length >= 2 && length + 8 >= scratch.length; /* 8: checksum and length */
            refuse_images(FEEDD_E_CORRUPT,
                          no_checksum ? "but the gzip checksum at its end is missing" : ": truncated: ");
        }
        store(images_path, scratch.data, scratch.length);
        struct reader *reader = must_open(0, 0, ANY);
        compare(reader, &images, 16, NULL);
        reader->ops->close(reader);
    }
}
END_TEST

/* One dataset that may be damaged: what opens has to be read without trouble.
 * @return 0 when it opened, and then with what `due` says, where it isn't NULL */
static int damaged(const struct bytes *due)
{
    struct reader *reader = NULL;
    struct feedd_error err = {.message = ""};
    int rc = try_open(1, 0, 1 << 20, &reader, &err);
    if (rc != 0) {
        ck_assert_ptr_null(reader);
        ck_assert_int_eq(strncmp(err.message, folder, strlen(folder)), 0);
        return rc;
    }
    if (due != NULL)
        compare(reader, due, 16, five);
    uint64_t sum = 0;
    for (uint64_t i = 0; i < reader->sample_count; i++) {
        struct reader_sample sample;
        if (reader->ops->read(reader, i, &sample, NULL) != 0 || sample.label < -1 ||
            sample.label >= (int64_t)reader->class_count)
            ck_abort_msg("sample %llu isn't right", (unsigned long long)i);
        for (uint64_t p = 0; p < (uint64_t)reader->height * reader->width * reader->channels; p++)
            sum += sample.pixels[p];
    }
    ck_assert_uint_le(sum, 255ull << 20);
    reader->ops->close(reader);
    return 0;
}

/* Every bit of a gzip file, one at a time: an error, or, where the bit says nothing about
 * the content, the very same pixels. */
START_TEST(gzip_bits)
{
    uint32_t opened = 0;
    images_of(&images, 5, 6, 5, 0, 3);
    labels_of(&labels, 0x08, 1, 5, five);
    store(labels_path, labels.data, labels.length);
    store_gz(images_path, "wb", images.data, images.length);
    load(images_path, &scratch);
    for (size_t bit = 0; bit < scratch.length * 8; bit++) {
        scratch.data[bit / 8] ^= (uint8_t)(1 << bit % 8);
        store(images_path, scratch.data, scratch.length);
        opened += damaged(&images) == 0;
        scratch.data[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    ck_assert_uint_ge(opened, 48); /* time, extra flags, system: 6 bytes */
    ck_assert_uint_le(opened, 56); /* and "is text", and up to 7 bits that fill deflate's last byte */
}
END_TEST

/* Every bit of the plain files, and random bytes in both and in gzip: no crash, nothing out of bounds. */
START_TEST(flips)
{
    uint64_t state = 7;
    uint32_t opened = 0;
    images_of(&images, 5, 4, 3, 0, 3);
    labels_of(&labels, 0x0B, 2, 5, five);
    store(labels_path, labels.data, labels.length);
    for (size_t bit = 0; bit < images.length * 8; bit++) {
        images.data[bit / 8] ^= (uint8_t)(1 << bit % 8);
        store(images_path, images.data, images.length);
        /* a pixel's bit is another pixel; the header's bits are all needed */
        ck_assert_int_eq(damaged(bit / 8 < 16 ? NULL : &images) == 0, bit / 8 >= 16);
        images.data[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    store(images_path, images.data, images.length);
    for (size_t bit = 0; bit < labels.length * 8; bit++) {
        labels.data[bit / 8] ^= (uint8_t)(1 << bit % 8);
        store(labels_path, labels.data, labels.length);
        const int negative = bit / 8 >= 8 && bit / 8 % 2 == 0 && bit % 8 == 7; /* the sign bit of an i16 */
        ck_assert_int_eq(damaged(NULL) == 0, bit / 8 >= 8 && !negative);
        labels.data[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    for (int i = 0; i < 1200; i++) {
        struct bytes *b = i % 2 ? &images : &labels;
        const char *path = i % 2 ? images_path : labels_path;
        images_of(&images, 5, 4, 3, 0, 3);
        labels_of(&labels, 0x0B, 2, 5, five);
        store_gz(images_path, "wb", images.data, images.length);
        store_gz(labels_path, "wb", labels.data, labels.length);
        if (i % 4 < 2)
            load(path, b); /* damage what is around the content, else the content within whole gzip */
        for (uint32_t n = 1 + random_next(&state) % 4; n > 0; n--) {
            const size_t at = random_next(&state) % b->length;
            b->data[at] = (uint8_t)random_next(&state);
        }
        if (i % 4 < 2)
            store(path, b->data, b->length);
        else
            store_gz(path, "wb", b->data, b->length);
        opened += damaged(NULL) == 0;
    }
    ck_assert_uint_gt(opened, 0);
    ck_assert_uint_lt(opened, 1200);
}
END_TEST

START_TEST(files)
{
    images_of(&images, 5, 4, 3, 0, 3);
    labels_of(&labels, 0x08, 1, 5, five);
    refuse_images(FEEDD_E_NOT_FOUND, ": can't be opened: No such file or directory");
    store(images_path, images.data, images.length);
    refuse_labels(FEEDD_E_NOT_FOUND, ": can't be opened: No such file or directory");

    store(labels_path, labels.data, labels.length);
    ck_assert_int_eq(chmod(labels_path, 0), 0);
    ck_assert_int_eq(chmod(folder, 0755), 0);
    const uid_t user = geteuid();
    if (user == 0 && seteuid(65534) != 0) {
        printf("files: skipped that an unreadable file is refused: root reads everything, and can't become nobody\n");
    } else {
        refuse_labels(FEEDD_E_ACCESS, ": can't be opened: Permission denied");
        ck_assert_int_eq(seteuid(user), 0);
    }
    ck_assert_int_eq(unlink(labels_path), 0);

    ck_assert_int_eq(mkdir(labels_path, 0700), 0);
    refuse_labels(FEEDD_E_IO, ": is a directory; allowed: a regular file");
    ck_assert_int_eq(rmdir(labels_path), 0);
    ck_assert_int_eq(mkfifo(labels_path, 0600), 0); /* nobody writes: opening it must not wait */
    refuse_labels(FEEDD_E_IO, ": is a device, pipe or socket; allowed: a regular file");
    ck_assert_int_eq(unlink(labels_path), 0);
    ck_assert_int_eq(symlink("/dev/zero", labels_path), 0);
    refuse_labels(FEEDD_E_IO, ": is a device, pipe or socket; allowed: a regular file");
    ck_assert_int_eq(unlink(labels_path), 0);
    ck_assert_int_eq(symlink("labels", labels_path), 0); /* to itself */
    refuse_labels(FEEDD_E_NOT_FOUND, ": can't be opened: Too many levels of symbolic links");
}
END_TEST

/* A dataset's pages are given back, after success and after failure. (Descriptors: folder_remove.) */
START_TEST(memory)
{
    struct reader_sample sample;
    unsigned char resident;
    images_of(&images, 5, 100, 97, 3, 3);
    store_gz(images_path, "wb", images.data, images.length);
    struct reader *reader = must_open(0, 0, ANY);
    ck_assert_int_eq(reader->ops->read(reader, 0, &sample, NULL), 0);
    void *block = (void *)(uintptr_t)sample.pixels; /* the first sample's pixels begin a page */
    ck_assert_int_eq(mincore(block, 1, &resident), 0);
    reader->ops->close(reader);
    ck_assert_int_ne(mincore(block, 1, &resident), 0);

    store_gz(images_path, "wb", images.data, images.length - 1);
    refuse_images(FEEDD_E_CORRUPT, ": truncated: 145519 of 145520 bytes");
    ck_assert_int_ne(mincore(block, 1, &resident), 0); /* where the kernel puts a block of that size again */
}
END_TEST

static uint64_t fingerprint(int with_labels)
{
    struct reader *reader = must_open(with_labels, 0, ANY);
    const uint64_t value = reader->fingerprint;
    reader->ops->close(reader);
    return value;
}

/* The same in every folder and on every machine, another one for other names, sizes, shapes, counts. */
START_TEST(fingerprints)
{
    images_of(&images, 5, 4, 3, 0, 3);
    labels_of(&labels, 0x08, 1, 5, five);
    store(images_path, images.data, images.length);
    store(labels_path, labels.data, labels.length);
    const uint64_t plain = fingerprint(1);

    /* XXH3 of: name, 0, size; name, 0, size; count, height, width, channels; numbers as 8 bytes, little-endian. */
    static const char due[] = "images\0"
                              "\x4c\0\0\0\0\0\0\0"
                              "labels\0"
                              "\x0d\0\0\0\0\0\0\0"
                              "\5\0\0\0\0\0\0\0"
                              "\4\0\0\0\0\0\0\0"
                              "\3\0\0\0\0\0\0\0"
                              "\1\0\0\0\0\0\0\0";
    ck_assert_uint_eq(sizeof(due) - 1, 62);
    ck_assert_uint_eq(plain, XXH3_64bits(due, sizeof(due) - 1));

    ck_assert_uint_ne(fingerprint(0), plain);
    char kept[600];
    strcpy(kept, folder);
    folder_remove();
    folder_make(); /* somewhere else */
    ck_assert_str_ne(kept, folder);
    store(images_path, images.data, images.length);
    store(labels_path, labels.data, labels.length);
    ck_assert_uint_eq(fingerprint(1), plain);

    char other[600];
    snprintf(other, sizeof(other), "%s/labels2", folder);
    ck_assert_int_eq(rename(labels_path, other), 0);
    strcpy(kept, labels_path);
    strcpy(labels_path, other);
    ck_assert_uint_ne(fingerprint(1), plain);
    ck_assert_int_eq(rename(other, kept), 0);
    strcpy(labels_path, kept);

    images_of(&images, 5, 3, 4, 0, 3); /* as many bytes, another shape */
    store(images_path, images.data, images.length);
    ck_assert_uint_ne(fingerprint(1), plain);
    images_of(&images, 5, 4, 3, 0, 3);
    store_gz(images_path, "wb", images.data, images.length);
    ck_assert_uint_ne(fingerprint(1), plain);
}
END_TEST

static void *read_all(void *argument)
{
    const struct reader *reader = argument;
    for (int round = 0; round < 20; round++)
        for (uint64_t i = 0; i < reader->sample_count; i++) {
            struct reader_sample sample;
            if (reader->ops->read(reader, i, &sample, NULL) != 0 || sample.label != five[i] ||
                memcmp(sample.pixels, images.data + 16 + i * 12, 12) != 0)
                return argument;
        }
    return NULL;
}

START_TEST(threads)
{
    pthread_t thread[4];
    images_of(&images, 5, 4, 3, 0, 3);
    labels_of(&labels, 0x08, 1, 5, five);
    store(images_path, images.data, images.length);
    store(labels_path, labels.data, labels.length);
    struct reader *reader = must_open(1, 0, ANY);
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

/* A real dataset, where its package is installed; the oracle is zlib's gzread(). */
START_TEST(fashion_mnist)
{
    static char image_file[] = "/usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz";
    static char label_file[] = "/usr/share/datasets/fashion-mnist/train-labels-idx1-ubyte.gz";
    const struct reader_config config = {.ops = &reader_idx, .images = image_file, .labels = label_file};
    if (access(image_file, R_OK) != 0 || access(label_file, R_OK) != 0) {
        printf("fashion_mnist: skipped: /usr/share/datasets/fashion-mnist isn't there (dataset-fashion-mnist)\n");
        return;
    }
    struct reader *reader;
    struct feedd_error err;
    const struct reader_limits limits = {.memory_max = 60000 * (28 * 28 + 8)};
    int rc = reader_idx.open(&config, &limits, &reader, &err);
    ck_assert_msg(rc == 0, "%s", err.message);
    ck_assert_uint_eq(reader->sample_count, 60000);
    ck_assert_uint_eq(reader->height, 28);
    ck_assert_uint_eq(reader->width, 28);
    ck_assert_uint_eq(reader->channels, 1);
    ck_assert_uint_eq(reader->class_count, 10);
    ck_assert_int_eq(reader->has_labels, 1);

    uint32_t histogram[10] = {0};
    uint8_t due[28 * 28];
    gzFile pixels = gzopen(image_file, "rb"), values = gzopen(label_file, "rb");
    ck_assert_int_eq(gzseek(pixels, 16, SEEK_SET), 16);
    ck_assert_int_eq(gzseek(values, 8, SEEK_SET), 8);
    for (uint64_t i = 0; i < 60000; i++) {
        struct reader_sample sample;
        if (reader->ops->read(reader, i, &sample, NULL) != 0 || gzread(pixels, due, sizeof(due)) != sizeof(due) ||
            memcmp(sample.pixels, due, sizeof(due)) != 0 || sample.label != gzgetc(values) || sample.label > 9)
            ck_abort_msg("sample %llu differs", (unsigned long long)i);
        histogram[sample.label]++;
    }
    for (int c = 0; c < 10; c++)
        ck_assert_uint_eq(histogram[c], 6000);
    gzclose(pixels);
    gzclose(values);
    reader->ops->close(reader);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("idx");
    TCase *tcase = tcase_create("idx");
    tcase_add_checked_fixture(tcase, folder_make, folder_remove);
    tcase_set_timeout(tcase, 120);
    tcase_add_test(tcase, round_trip);
    tcase_add_test(tcase, gzip_members);
    tcase_add_test(tcase, label_types);
    tcase_add_test(tcase, label_values);
    tcase_add_test(tcase, headers);
    tcase_add_test(tcase, sizes);
    tcase_add_test(tcase, gzip_content);
    tcase_add_test(tcase, gzip_truncated);
    tcase_add_test(tcase, gzip_bits);
    tcase_add_test(tcase, flips);
    tcase_add_test(tcase, files);
    tcase_add_test(tcase, memory);
    tcase_add_test(tcase, fingerprints);
    tcase_add_test(tcase, threads);
    tcase_add_test(tcase, fashion_mnist);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    const int failures = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failures != 0;
}
