/* idx.c - datasets in the IDX format of MNIST (http://yann.lecun.com/exdb/mnist): one file of images, one of labels.
 *
 * A file is: 00 00, element type, number of dimensions; each dimension as a big-endian uint32; the elements,
 * big-endian, last dimension fastest. Either file may be gzip'ed, in one member or several: its content says so, not
 * its name.
 *
 * Happy path: open both files -> read both headers -> reserve memory for all of it -> labels -> pixels -> the end of
 * each file, where a gzip checksum is checked. After that a sample is a pointer into memory.
 * What can fail: a file can't be read, isn't IDX, holds something that feedd doesn't do, is larger than the limit, is
 * truncated, damaged or longer than its header says; images and labels don't belong together.
 * Threads: see reader.h; nothing changes between open and close. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <zlib.h>

#include "error.h"
#include "file.h"
#include "hash.h"
#include "reader.h"

#define DIMS_MAX    4
#define BLOCK_ALIGN 64u /* of the labels behind the pixels: a cache line */

struct idx {
    struct reader reader;  /* first: what callers hold */
    const char *images;    /* the configuration's */
    uint8_t *block;        /* reader.memory_bytes, by mmap: all pixels, then all labels */
    const int64_t *labels; /* in the block; NULL without labels */
    uint64_t sample_bytes;
};

/* One file, read from its begin to its end, through inflate() where it is gzip. */
struct input {
    const char *path;
    char shown[FILE_SHOWN];
    int fd;
    uint64_t file_bytes;
    int gzip;
    int in_member;       /* gzip: a member has begun and not ended */
    uint64_t read_total; /* bytes of the file that went into the buffer */
    z_stream z;          /* next_in, avail_in: what is left of the buffer, in plain files too */
    uint8_t buffer[16384];
};

struct header {
    int type;
    uint32_t ndim;
    uint32_t dims[DIMS_MAX];
    uint64_t bytes; /* of the header */
};

/* The type codes of the format. */
static const struct {
    const char *name;
    uint32_t bytes;
    int is_label; /* what labels may be */
} types[] = {
    [0x08] = {"u8", 1, 1},  [0x09] = {"i8", 1, 1},  [0x0B] = {"i16", 2, 1},
    [0x0C] = {"i32", 4, 1}, [0x0D] = {"f32", 4, 0}, [0x0E] = {"f64", 8, 0},
};
#define TYPE_U8    0x08
#define TYPE_COUNT ((int)(sizeof(types) / sizeof(types[0])))

static int product(uint64_t a, uint64_t b, uint64_t *out)
{
    if (b != 0 && a > UINT64_MAX / b)
        return -1;
    *out = a * b;
    return 0;
}

static int input_fill(struct input *in, struct feedd_error *err)
{
    int64_t n = file_read(in->fd, in->path, in->buffer, sizeof(in->buffer), err);
    if (n < 0)
        return (int)n;
    in->z.next_in = in->buffer;
    in->z.avail_in = (uInt)n;
    in->read_total += (uint64_t)n;
    return 0;
}

static void input_done(struct input *in)
{
    if (in->gzip)
        inflateEnd(&in->z);
    if (in->fd >= 0)
        close(in->fd);
}

/* On failure input_done() still has to be called. */
static int input_init(struct input *in, const char *path, struct feedd_error *err)
{
    memset(in, 0, offsetof(struct input, buffer));
    in->path = path;
    file_shown(path, in->shown);
    in->fd = file_open(path, &in->file_bytes, err);
    if (in->fd < 0)
        return in->fd;
    int rc = input_fill(in, err);
    if (rc != 0 || in->z.avail_in < 2 || in->buffer[0] != 0x1F || in->buffer[1] != 0x8B)
        return rc;
    if (inflateInit2(&in->z, 16 + MAX_WBITS) != Z_OK) /* 16: gzip and nothing else, its checksum checked */
        return error_set(err, FEEDD_E_MEMORY, "%s: not enough memory to read gzip", in->shown);
    in->gzip = 1;
    in->in_member = 1;
    return 0;
}

static int read_plain(struct input *in, uint8_t *to, uint64_t count, uint64_t *got, struct feedd_error *err)
{
    uint64_t buffered = in->z.avail_in < count ? in->z.avail_in : count;
    memcpy(to, in->z.next_in, buffered);
    in->z.next_in += buffered;
    in->z.avail_in -= (uInt)buffered;
    int64_t n = file_read(in->fd, in->path, to + buffered, count - buffered, err);
    if (n < 0)
        return (int)n;
    *got = buffered + (uint64_t)n;
    return 0;
}

static int read_gzip(struct input *in, uint8_t *to, uint64_t count, uint64_t *got, struct feedd_error *err)
{
    uint64_t done = 0;
    while (done < count) {
        if (in->z.avail_in == 0) {
            int rc = input_fill(in, err);
            if (rc != 0)
                return rc;
            if (in->z.avail_in == 0) /* the end, or a truncated member: in_member tells */
                break;
        }
        if (!in->in_member) { /* whatever follows a member has to be another one */
            inflateReset(&in->z);
            in->in_member = 1;
        }
        uInt room = count - done < (1u << 30) ? (uInt)(count - done) : 1u << 30;
        in->z.next_out = to + done;
        in->z.avail_out = room;
        int status = inflate(&in->z, Z_NO_FLUSH);
        done += room - in->z.avail_out;
        if (status == Z_STREAM_END)
            in->in_member = 0;
        else if (status == Z_MEM_ERROR)
            return error_set(err, FEEDD_E_MEMORY, "%s: not enough memory to read gzip", in->shown);
        else if (status != Z_OK && status != Z_BUF_ERROR) /* BUF_ERROR: wants more input, gets it above */
            return error_set(err, FEEDD_E_CORRUPT, "%s: damaged gzip data before byte %llu: %s", in->shown,
                             (unsigned long long)(in->read_total - in->z.avail_in),
                             in->z.msg != NULL ? in->z.msg : "unexpected dictionary");
    }
    *got = done;
    return 0;
}

/* Reads `count` bytes of content. *got is less only where the content ends. */
static int input_read(struct input *in, void *to, uint64_t count, uint64_t *got, struct feedd_error *err)
{
    return in->gzip ? read_gzip(in, to, count, got, err) : read_plain(in, to, count, got, err);
}

static int truncated(const struct input *in, uint64_t got, uint64_t due, struct feedd_error *err)
{
    return error_set(err, FEEDD_E_CORRUPT, "%s: truncated: %llu of %llu bytes%s", in->shown, (unsigned long long)got,
                     (unsigned long long)due, in->gzip ? " after decompression" : "");
}

static int trailing(const struct input *in, uint64_t due, struct feedd_error *err)
{
    return error_set(err, FEEDD_E_CORRUPT, "%s: trailing data: its header says %llu bytes%s, and there are more",
                     in->shown, (unsigned long long)due, in->gzip ? " after decompression" : "");
}

/* Everything that was due has been read: nothing more may follow. Takes inflate() through the checksum. */
static int input_end(struct input *in, uint64_t due, struct feedd_error *err)
{
    uint8_t more;
    uint64_t got;
    int rc = input_read(in, &more, 1, &got, err);
    if (rc != 0)
        return rc;
    if (got != 0)
        return trailing(in, due, err);
    if (in->in_member)
        return error_set(err, FEEDD_E_CORRUPT,
                         "%s: truncated: all %llu bytes after decompression, but the gzip checksum "
                         "at its end is missing",
                         in->shown, (unsigned long long)due);
    return 0;
}

static int check_magic(const struct input *in, const uint8_t magic[4], int labels, struct feedd_error *err)
{
    int type = magic[2], ndim = magic[3];
    const char *right = labels
                            ? "labels begin with 00 00 08 01 (u8), 00 00 09 01 (i8), 00 00 0b 01 (i16) or 00 00 0c 01 "
                              "(i32)"
                            : "images begin with 00 00 08 03 or 00 00 08 04";
    if (magic[0] != 0 || magic[1] != 0 || type >= TYPE_COUNT || types[type].name == NULL || ndim == 0)
        return error_set(err, FEEDD_E_CORRUPT, "%s: not an IDX file: it begins with %02x %02x %02x %02x; IDX %s",
                         in->shown, magic[0], magic[1], magic[2], magic[3], right);
    if (!labels && ndim == 1)
        return error_set(err, FEEDD_E_UNSUPPORTED,
                         "%s: labels (1 dimension) where images are due (3 or 4): `images:` "
                         "and `labels:` may be the wrong way round",
                         in->shown);
    if (labels && (ndim == 3 || ndim == 4))
        return error_set(err, FEEDD_E_UNSUPPORTED,
                         "%s: images (%d dimensions) where labels are due (1): `images:` and "
                         "`labels:` may be the wrong way round",
                         in->shown, ndim);
    if (labels ? ndim != 1 : ndim != 3 && ndim != 4)
        return error_set(err, FEEDD_E_UNSUPPORTED, "%s: %d dimensions; allowed: %s", in->shown, ndim,
                         labels ? "1 (samples)" : "3 (samples, height, width) or 4 (samples, height, width, channels)");
    if (labels ? !types[type].is_label : type != TYPE_U8)
        return error_set(err, FEEDD_E_UNSUPPORTED, "%s: elements are %s; allowed: %s", in->shown, types[type].name,
                         labels ? "u8, i8, i16, i32" : "u8");
    return 0;
}

static int read_header(struct input *in, int labels, struct header *out, struct feedd_error *err)
{
    uint8_t magic[4], raw[4 * DIMS_MAX];
    uint64_t got;
    int rc = input_read(in, magic, sizeof(magic), &got, err);
    if (rc != 0)
        return rc;
    if (got < sizeof(magic))
        return truncated(in, got, sizeof(magic), err);
    rc = check_magic(in, magic, labels, err);
    if (rc != 0)
        return rc;

    struct header h = {.type = magic[2], .ndim = magic[3], .bytes = 4 + 4u * magic[3]};
    rc = input_read(in, raw, 4u * h.ndim, &got, err);
    if (rc != 0)
        return rc;
    if (got < 4u * h.ndim)
        return truncated(in, 4 + got, h.bytes, err);
    for (uint32_t d = 0; d < h.ndim; d++) {
        const uint8_t *b = raw + (size_t)4 * d;
        h.dims[d] = (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
        if (h.dims[d] == 0)
            return error_set(err, FEEDD_E_CORRUPT, "%s: dimension %u of %u is 0; allowed: 1 or more", in->shown, d + 1,
                             h.ndim);
    }
    *out = h;
    return 0;
}

static int read_pixels(struct input *in, const struct header *h, uint8_t *pixels, uint64_t bytes,
                       struct feedd_error *err)
{
    uint64_t got;
    int rc = input_read(in, pixels, bytes, &got, err);
    if (rc != 0)
        return rc;
    if (got < bytes)
        return truncated(in, h->bytes + got, h->bytes + bytes, err);
    return input_end(in, h->bytes + bytes, err);
}

static int64_t label_at(const uint8_t *b, int type)
{
    switch (types[type].bytes) {
    case 1:
        return type == TYPE_U8 ? (int64_t)b[0] : (int8_t)b[0];
    case 2:
        return (int16_t)((uint16_t)b[0] << 8 | b[1]);
    default:
        return (int32_t)((uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3]);
    }
}

/* @param class_count  of the configuration, 0 = it names no classes; gets largest label + 1 then */
static int read_labels(struct input *in, const struct header *h, int64_t *labels, uint32_t *class_count,
                       struct feedd_error *err)
{
    const uint64_t count = h->dims[0], size = types[h->type].bytes, due = h->bytes + count * size;
    const int64_t classes = *class_count;
    int64_t largest = -1;
    uint8_t raw[8192];
    for (uint64_t i = 0; i < count;) {
        uint64_t want = (count - i) * size < sizeof(raw) ? (count - i) * size : sizeof(raw), got;
        int rc = input_read(in, raw, want, &got, err);
        if (rc != 0)
            return rc;
        if (got < want)
            return truncated(in, h->bytes + i * size + got, due, err);
        for (const uint8_t *b = raw; b < raw + want; b += size, i++) {
            int64_t label = label_at(b, h->type);
            if (label < -1)
                return error_set(err, FEEDD_E_CORRUPT,
                                 "%s: sample %llu has label %lld; allowed: 0 or more, or -1 for "
                                 "none",
                                 in->shown, (unsigned long long)i, (long long)label);
            if (classes > 0 && label >= classes)
                return error_set(err, FEEDD_E_CORRUPT,
                                 "%s: sample %llu has label %lld, but %lld classes are configured; "
                                 "allowed: 0 to %lld, or -1 for none",
                                 in->shown, (unsigned long long)i, (long long)label, (long long)classes,
                                 (long long)classes - 1);
            if (label > largest)
                largest = label;
            labels[i] = label;
        }
    }
    int rc = input_end(in, due, err);
    if (rc == 0 && classes == 0)
        *class_count = (uint32_t)(largest + 1);
    return rc;
}

/* A plain file's size must be what its header says: known before anything is allocated for it. */
static int check_size(const struct input *in, uint64_t due, struct feedd_error *err)
{
    if (in->gzip || in->file_bytes == due)
        return 0;
    return in->file_bytes < due ? truncated(in, in->file_bytes, due, err) : trailing(in, due, err);
}

static void hash_file(XXH3_state_t *state, const struct input *in)
{
    const char *slash = strrchr(in->path, '/'), *name = slash != NULL ? slash + 1 : in->path;
    XXH3_64bits_update(state, name, strlen(name) + 1);
    hash_u64(state, in->file_bytes);
}

/* Base names, not paths: the dataset may move, and stand elsewhere on another node. */
static int hash_dataset(const struct input *images, const struct input *labels, struct reader *reader,
                        struct feedd_error *err)
{
    XXH3_state_t *state = XXH3_createState();
    if (state == NULL)
        return error_set(err, FEEDD_E_MEMORY, "%s: not enough memory for a hash", images->shown);
    XXH3_64bits_reset(state);
    hash_file(state, images);
    if (labels != NULL)
        hash_file(state, labels);
    hash_u64(state, reader->sample_count);
    hash_u64(state, reader->height);
    hash_u64(state, reader->width);
    hash_u64(state, reader->channels);
    reader->fingerprint = XXH3_64bits_digest(state);
    XXH3_freeState(state);
    return 0;
}

static void idx_close(struct reader *reader)
{
    struct idx *idx = (struct idx *)reader;
    if (idx == NULL)
        return;
    if (idx->block != NULL)
        munmap(idx->block, reader->memory_bytes);
    free(idx);
}

/* Both files are open and at their headers. */
static int load(struct idx *idx, struct input *images, struct input *labels, uint64_t memory_max,
                struct feedd_error *err)
{
    struct reader *reader = &idx->reader;
    struct header ih, lh = {0};
    int rc = read_header(images, 0, &ih, err);
    if (rc == 0 && labels != NULL)
        rc = read_header(labels, 1, &lh, err);
    if (rc != 0)
        return rc;
    reader->sample_count = ih.dims[0];
    reader->height = ih.dims[1];
    reader->width = ih.dims[2];
    reader->channels = ih.ndim == 4 ? ih.dims[3] : 1;
    if (reader->channels > 4)
        return error_set(err, FEEDD_E_UNSUPPORTED, "%s: %u channels (dimension 4 of 4); allowed: 1 to 4", images->shown,
                         reader->channels);
    if (labels != NULL && lh.dims[0] != ih.dims[0])
        return error_set(err, FEEDD_E_CORRUPT, "%s has %u images, %s has %u labels; allowed: as many labels as images",
                         images->shown, ih.dims[0], labels->shown, lh.dims[0]);

    uint64_t pixel_bytes, label_bytes = labels != NULL ? reader->sample_count * sizeof(int64_t) : 0;
    if (product(reader->height, reader->width, &idx->sample_bytes) != 0 ||
        product(idx->sample_bytes, reader->channels, &idx->sample_bytes) != 0 ||
        product(idx->sample_bytes, reader->sample_count, &pixel_bytes) != 0 ||
        pixel_bytes > UINT64_MAX - label_bytes - BLOCK_ALIGN)
        return error_set(err, FEEDD_E_LIMIT,
                         "%s: %u x %u x %u x %u bytes of pixels are more than 2^64; allowed: %llu "
                         "(daemon.dataset_memory_max)",
                         images->shown, ih.dims[0], reader->height, reader->width, reader->channels,
                         (unsigned long long)memory_max);
    uint64_t label_offset = (pixel_bytes + BLOCK_ALIGN - 1) / BLOCK_ALIGN * BLOCK_ALIGN;
    uint64_t total = labels != NULL ? label_offset + label_bytes : pixel_bytes;
    if (total > memory_max)
        return error_set(err, FEEDD_E_LIMIT,
                         "%s: %u samples of %u x %u x %u take %llu bytes of memory with their labels; "
                         "allowed: %llu (daemon.dataset_memory_max)",
                         images->shown, ih.dims[0], reader->height, reader->width, reader->channels,
                         (unsigned long long)total, (unsigned long long)memory_max);
    rc = check_size(images, ih.bytes + pixel_bytes, err);
    if (rc == 0 && labels != NULL)
        rc = check_size(labels, lh.bytes + reader->sample_count * types[lh.type].bytes, err);
    if (rc != 0)
        return rc;

    /* mmap, for pages that are touched only as bytes arrive: a header that lies about its size costs nothing. */
    void *block = total > PTRDIFF_MAX ? MAP_FAILED
                                      : mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED)
        return error_set(err, FEEDD_E_MEMORY, "%s: not enough memory for %llu bytes", images->shown,
                         (unsigned long long)total);
    idx->block = block;
    reader->memory_bytes = total;
    if (labels != NULL) {
        int64_t *values = (int64_t *)(void *)(idx->block + label_offset);
        rc = read_labels(labels, &lh, values, &reader->class_count, err);
        if (rc != 0)
            return rc;
        idx->labels = values;
        reader->has_labels = true;
    }
    rc = read_pixels(images, &ih, idx->block, pixel_bytes, err);
    return rc != 0 ? rc : hash_dataset(images, labels, reader, err);
}

static int idx_open(const struct reader_config *config, const struct reader_limits *limits, struct reader **out,
                    struct feedd_error *err)
{
    struct idx *idx = calloc(1, sizeof(*idx));
    if (idx == NULL)
        return error_set(err, FEEDD_E_MEMORY, "dataset %s: not enough memory", config->name);
    idx->images = config->images;
    idx->reader.ops = &reader_idx;
    idx->reader.label_dtype = FEEDD_I64;
    idx->reader.class_count = config->class_count;
    idx->reader.class_names = (const char *const *)config->classes;

    struct input images, labels;
    const int has_labels = config->labels != NULL;
    int rc = input_init(&images, config->images, err);
    if (rc == 0 && has_labels) {
        rc = input_init(&labels, config->labels, err);
        if (rc == 0)
            rc = load(idx, &images, &labels, limits->memory_max, err);
        input_done(&labels);
    } else if (rc == 0) {
        rc = load(idx, &images, NULL, limits->memory_max, err);
    }
    input_done(&images);
    if (rc != 0) {
        idx_close(&idx->reader);
        return rc;
    }
    *out = &idx->reader;
    return 0;
}

static int idx_read(const struct reader *reader, uint64_t index, struct reader_sample *out, struct feedd_error *err)
{
    const struct idx *idx = (const struct idx *)reader;
    if (index >= reader->sample_count)
        return error_set(err, FEEDD_E_ARGUMENT, "sample %llu of a dataset of %llu", (unsigned long long)index,
                         (unsigned long long)reader->sample_count);
    *out = (struct reader_sample){.pixels = idx->block + index * idx->sample_bytes,
                                  .fd = -1,
                                  .label = idx->labels != NULL ? idx->labels[index] : -1};
    return 0;
}

static void idx_path(const struct reader *reader, uint64_t index, char *text, size_t size)
{
    const struct idx *idx = (const struct idx *)reader;
    snprintf(text, size, "%s[%llu]", idx->images, (unsigned long long)index);
}

const struct reader_ops reader_idx = {
    .name = "idx", .open = idx_open, .read = idx_read, .path = idx_path, .close = idx_close};
