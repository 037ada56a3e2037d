/* fuzz_idx.c - IDX datasets: a file of images and one of labels, plain or gzip'ed.
 *
 * Input: flags (bit 0: there are labels; bits 1-2 and 3-4: how images and labels are packed), the number of classes,
 * the bytes that `cut` takes away, two bytes of length, then that many bytes of images, then labels. Content is
 * compressed here, so that gzip's checksum is no wall; a plain file that begins as gzip does is read as such.
 * What has to hold: a dataset opens exactly when a second, simpler reading of the format says so; every sample can be
 * read and is what the files say; it takes no more memory than allowed; a refusal says why; no descriptor stays open.
 */
#include <zlib.h>

#include "fuzz.h"
#include "reader.h"

#define MEMORY_MAX  65536u
#define PACKED_MAX  (1u << 20)
#define CONTENT_MAX 65536u

enum packing { PLAIN, GZIP, MEMBERS, CUT };

struct content {
    const uint8_t *bytes;
    size_t size;
    enum packing packing;
    int known; /* the file's content is `bytes`, and not what some gzip of the fuzzer's holds */
};

static uint8_t packed[PACKED_MAX];
static volatile uint8_t touched; /* every pixel is read, whether it is known or not */

/* One gzip member. @return its bytes */
static size_t gzip(const uint8_t *bytes, size_t size, uint8_t *to, size_t room)
{
    z_stream z = {
        .next_in = (uint8_t *)(uintptr_t)bytes, .avail_in = (uInt)size, .next_out = to, .avail_out = (uInt)room};
    FUZZ_CHECK(deflateInit2(&z, 1, Z_DEFLATED, 16 + 9, 1, Z_DEFAULT_STRATEGY) == Z_OK);
    FUZZ_CHECK(deflate(&z, Z_FINISH) == Z_STREAM_END);
    deflateEnd(&z);
    return room - z.avail_out;
}

static void write_file(struct fuzz_file *file, const struct content *content, size_t cut)
{
    size_t half = content->packing == MEMBERS ? content->size / 2 : content->size, size;
    if (content->packing == PLAIN) {
        fuzz_file_write(file, content->bytes, content->size);
        return;
    }
    size = gzip(content->bytes, half, packed, sizeof(packed));
    if (content->packing == MEMBERS)
        size += gzip(content->bytes + half, content->size - half, packed + size, sizeof(packed) - size);
    if (content->packing == CUT)
        size -= cut < size ? cut : size;
    fuzz_file_write(file, packed, size);
}

static uint32_t big_endian(const uint8_t *b, uint32_t bytes)
{
    uint32_t value = 0;
    for (uint32_t i = 0; i < bytes; i++)
        value = value << 8 | b[i];
    return value;
}

/* The label of sample i, by the format's description and not by the reader's code. */
static int64_t label_due(const struct content *labels, uint64_t i)
{
    const uint8_t *b = labels->bytes + 8;
    switch (labels->bytes[2]) {
    case 0x08:
        return b[i];
    case 0x09:
        return (int8_t)b[i];
    case 0x0B:
        return (int16_t)big_endian(b + 2 * i, 2);
    default:
        return (int32_t)big_endian(b + 4 * i, 4);
    }
}

/* Whether content is due to open, as far as it is known: a header of `type` and dimensions, and what it says. `total`
 * gets the product of the dimensions. */
static int is_whole(const struct content *content, uint32_t element_bytes, uint64_t *total)
{
    if (content->size < 4 || content->bytes[0] != 0 || content->bytes[1] != 0)
        return 0;
    size_t header = 4 + 4 * (size_t)content->bytes[3];
    if (content->size < header)
        return 0;
    *total = 1;
    for (size_t d = 4; d < header; d += 4) {
        *total *= big_endian(content->bytes + d, 4);
        if (*total == 0 || *total > CONTENT_MAX) /* more than any input holds */
            return 0;
    }
    return content->size - header == *total * element_bytes;
}

static int is_due(const struct content *images, const struct content *labels, uint32_t classes)
{
    static const uint8_t label_bytes[256] = {[0x08] = 1, [0x09] = 1, [0x0B] = 2, [0x0C] = 4};
    uint64_t pixels, count;
    if (!is_whole(images, 1, &pixels) || images->bytes[2] != 8 || (images->bytes[3] != 3 && images->bytes[3] != 4))
        return 0;
    if (images->bytes[3] == 4 && big_endian(images->bytes + 16, 4) > 4)
        return 0;
    if (labels == NULL)
        return 1;
    if (labels->size < 4 || labels->bytes[3] != 1 || label_bytes[labels->bytes[2]] == 0)
        return 0;
    if (!is_whole(labels, label_bytes[labels->bytes[2]], &count) || count != big_endian(images->bytes + 4, 4))
        return 0;
    for (uint64_t i = 0; i < count; i++)
        if (label_due(labels, i) < -1 || (classes > 0 && label_due(labels, i) >= classes))
            return 0;
    return 1;
}

static void check_samples(const struct reader *reader, const struct content *images, const struct content *labels)
{
    uint64_t bytes = (uint64_t)reader->height * reader->width * reader->channels;
    const uint8_t *pixels = images->bytes + 4 + 4 * (size_t)(images->size > 3 ? images->bytes[3] : 0);
    struct reader_sample sample;
    struct feedd_error err;
    FUZZ_CHECK(reader->sample_count > 0 && bytes > 0 && reader->memory_bytes <= MEMORY_MAX);
    if (images->known)
        FUZZ_CHECK(pixels + reader->sample_count * bytes == images->bytes + images->size);
    for (uint64_t i = 0; i < reader->sample_count; i++) {
        FUZZ_CHECK(reader->ops->read(reader, i, &sample, &err) == 0);
        FUZZ_CHECK(sample.label >= -1 && (labels != NULL || sample.label == -1));
        FUZZ_CHECK(labels == NULL || sample.label < (int64_t)reader->class_count);
        if (images->known)
            FUZZ_CHECK(memcmp(sample.pixels, pixels + i * bytes, bytes) == 0);
        if (labels != NULL && labels->known)
            FUZZ_CHECK(sample.label == label_due(labels, i));
        for (uint64_t b = 0; b < bytes; b++)
            touched += sample.pixels[b];
    }
    FUZZ_CHECK(reader->ops->read(reader, reader->sample_count, &sample, &err) == FEEDD_E_ARGUMENT);
}

static struct content content_of(const uint8_t *bytes, size_t size, int packing)
{
    int is_gzip = size >= 2 && bytes[0] == 0x1F && bytes[1] == 0x8B;
    return (struct content){bytes, size, (enum packing)(packing & 3), (packing & 3) != PLAIN || !is_gzip};
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct fuzz_file image_file, label_file;
    struct fuzz_input in = {data, size};
    uint8_t flags = fuzz_byte(&in), classes = fuzz_byte(&in), cut = fuzz_byte(&in);
    size_t want = (size_t)fuzz_byte(&in) << 8;
    want |= fuzz_byte(&in);
    const uint8_t *bytes;
    size_t got = fuzz_bytes(&in, want, &bytes);
    struct content images = content_of(bytes, got, flags >> 1);
    got = fuzz_bytes(&in, CONTENT_MAX, &bytes);
    struct content labels = content_of(bytes, got, flags >> 3);
    int has_labels = flags & 1;
    write_file(&image_file, &images, cut);
    write_file(&label_file, &labels, cut);

    char name[] = "fuzz";
    struct reader_config config = {.name = name,
                                   .ops = reader_find("idx", NULL),
                                   .images = image_file.path,
                                   .labels = has_labels ? label_file.path : NULL,
                                   .class_count = classes};
    struct reader *reader = NULL;
    struct feedd_error err;
    int next_fd = fuzz_next_fd();
    int status = config.ops->open(&config, &(struct reader_limits){MEMORY_MAX, NULL}, &reader, &err);
    int is_cut = cut > 0 && (images.packing == CUT || (has_labels && labels.packing == CUT));
    if (images.known && (!has_labels || labels.known) && status != FEEDD_E_LIMIT)
        FUZZ_CHECK((status == 0) == (!is_cut && is_due(&images, has_labels ? &labels : NULL, classes)));
    if (status == 0) {
        check_samples(reader, &images, has_labels ? &labels : NULL);
        reader->ops->close(reader);
    } else {
        FUZZ_CHECK(reader == NULL && status != FEEDD_E_MEMORY && status != FEEDD_E_IO);
        fuzz_check_error(&err, status);
    }
    FUZZ_CHECK(fuzz_next_fd() == next_fd);
    return 0;
}
