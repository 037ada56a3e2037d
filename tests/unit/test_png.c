/* test_png.c - the PNG decoder against files that are made here by the PNG specification, with zlib and no PNG library,
 * of samples that say what the pixels have to be. The comparison with Pillow is in tests/python/test_codecs.py.
 *
 * Happy path: a case makes its files in memory. What is wrong with a file has to be an error that says so, and must
 * leave nothing in the decoder, which goes on to decode the next image. Threads: one, but for one case that decodes on
 * four. */
#include "codecs.h"

#include <zlib.h>

enum { GRAY = 0, TRUECOLOUR = 2, PALETTE = 3, GRAY_ALPHA = 4, TRUECOLOUR_ALPHA = 6 };

/* What a file is made of. */
struct recipe {
    const char *name;
    uint8_t colour, depth;
};

static const struct recipe kinds[] = {
    {"gray 1", GRAY, 1},
    {"gray 2", GRAY, 2},
    {"gray 4", GRAY, 4},
    {"gray 8", GRAY, 8},
    {"gray 16", GRAY, 16},
    {"RGB 8", TRUECOLOUR, 8},
    {"RGB 16", TRUECOLOUR, 16},
    {"palette 1", PALETTE, 1},
    {"palette 2", PALETTE, 2},
    {"palette 4", PALETTE, 4},
    {"palette 8", PALETTE, 8},
    {"gray and alpha 8", GRAY_ALPHA, 8},
    {"gray and alpha 16", GRAY_ALPHA, 16},
    {"RGBA 8", TRUECOLOUR_ALPHA, 8},
    {"RGBA 16", TRUECOLOUR_ALPHA, 16},
};
#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

static const uint32_t sizes[][2] = {{1, 1}, {2, 1}, {1, 2}, {3, 3}, {5, 2}, {4, 5}, {8, 8}, {9, 17}, {60, 43}};
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))

static uint32_t channels_of(uint8_t colour)
{
    static const uint8_t channels[] = {
        [GRAY] = 1, [TRUECOLOUR] = 3, [PALETTE] = 1, [GRAY_ALPHA] = 2, [TRUECOLOUR_ALPHA] = 4};
    return channels[colour];
}

static void put(struct file *file, const void *bytes, size_t size)
{
    file->bytes = realloc(file->bytes, file->size + size + 1);
    ck_assert_ptr_nonnull(file->bytes);
    if (size > 0)
        memcpy(file->bytes + file->size, bytes, size);
    file->size += size;
}

static void put_u32(struct file *file, uint32_t value)
{
    const uint8_t bytes[4] = {(uint8_t)(value >> 24), (uint8_t)(value >> 16), (uint8_t)(value >> 8), (uint8_t)value};
    put(file, bytes, 4);
}

static void put_chunk(struct file *file, const char *type, const void *data, size_t size)
{
    put_u32(file, (uint32_t)size);
    put(file, type, 4);
    put(file, data, size);
    put_u32(file, (uint32_t)crc32(0, file->bytes + file->size - size - 4, (uInt)size + 4));
}

static void put_header(struct file *file, uint32_t width, uint32_t height, uint8_t depth, uint8_t colour,
                       uint8_t interlaced)
{
    struct file header = {NULL, 0};
    put_u32(&header, width);
    put_u32(&header, height);
    put(&header, (const uint8_t[]){depth, colour, 0, 0, interlaced}, 5);
    put(file, "\x89PNG\r\n\x1a\n", 8);
    put_chunk(file, "IHDR", header.bytes, header.size);
    free(header.bytes);
}

/* One pass of the image: its filtered rows, each with a filter of its own. */
static void put_pass(struct file *rows, const struct recipe *recipe, const uint16_t *samples, uint32_t width,
                     uint32_t height, const uint8_t grid[4], uint64_t *state)
{
    const uint32_t channels = channels_of(recipe->colour), depth = recipe->depth;
    const uint32_t columns = width > grid[0] ? (width - grid[0] + grid[2] - 1) / grid[2] : 0;
    const size_t row_bytes = ((size_t)columns * channels * depth + 7) / 8;
    const size_t step = channels * depth >= 8 ? channels * depth / 8 : 1;
    uint8_t *buffer = allocate(2 * row_bytes), *row = buffer, *above = buffer + row_bytes;
    for (uint32_t y = grid[1]; y < height && columns > 0; y += grid[3]) {
        memset(row, 0, row_bytes);
        for (uint32_t i = 0; i < columns * channels; i++) {
            const uint32_t x = grid[0] + i / channels * grid[2];
            const uint16_t sample = samples[((size_t)y * width + x) * channels + i % channels];
            if (depth == 16)
                row[2 * i] = (uint8_t)(sample >> 8), row[2 * i + 1] = (uint8_t)sample;
            else
                row[i * depth / 8] |= (uint8_t)(sample << (8 - depth - i * depth % 8));
        }
        const uint8_t filter = (uint8_t)random_below(state, 5);
        put(rows, &filter, 1);
        for (size_t i = 0; i < row_bytes; i++) {
            const int a = i >= step ? row[i - step] : 0, b = above[i], c = i >= step ? above[i - step] : 0;
            const int pa = abs(b - c), pb = abs(a - c), pc = abs(a + b - 2 * c);
            const int predicted[5] = {0, a, b, (a + b) / 2, pa <= pb && pa <= pc ? a : pb <= pc ? b : c};
            put(rows, &(uint8_t){(uint8_t)(row[i] - predicted[filter])}, 1);
        }
        uint8_t *other = above;
        above = row;
        row = other;
    }
    free(buffer);
}

/* The image data, compressed. */
static struct file make_data(const struct recipe *recipe, const uint16_t *samples, uint32_t width, uint32_t height,
                             uint8_t interlaced, uint64_t *state)
{
    static const uint8_t adam7[7][4] = {{0, 0, 8, 8}, {4, 0, 8, 8}, {0, 4, 4, 8}, {2, 0, 4, 4},
                                        {0, 2, 2, 4}, {1, 0, 2, 2}, {0, 1, 1, 2}};
    static const uint8_t all[4] = {0, 0, 1, 1};
    struct file rows = {NULL, 0}, data;
    for (int pass = 0; pass < (interlaced ? 7 : 1); pass++)
        put_pass(&rows, recipe, samples, width, height, interlaced ? adam7[pass] : all, state);
    uLongf size = compressBound(rows.size);
    data.bytes = allocate(size);
    ck_assert_int_eq(compress2(data.bytes, &size, rows.bytes, rows.size, (int)random_below(state, 10)), Z_OK);
    data.size = size;
    free(rows.bytes);
    return data;
}

/* Makes a file, chunks of which end anywhere, and the pixels that it has to give. */
static struct file make(const struct recipe *recipe, uint32_t width, uint32_t height, uint8_t interlaced,
                        uint64_t *state, struct pixels *due)
{
    const uint32_t channels = channels_of(recipe->colour), most = (1u << recipe->depth) - 1;
    const size_t count = (size_t)width * height;
    uint16_t *samples = allocate(count * channels * sizeof(*samples));
    uint8_t palette[256 * 3];
    const uint32_t colours = 1 + random_below(state, most + 1);
    for (uint32_t i = 0; i < sizeof(palette); i++)
        palette[i] = i < colours % 257 * 3 ? (uint8_t)random_below(state, 256) : 0;
    *due = (struct pixels){width, height, allocate(count * 3)};
    for (size_t i = 0; i < count * channels; i++)
        samples[i] = (uint16_t)random_below(state, most + 1);
    for (size_t i = 0; i < count * 3; i++) {
        const uint16_t *pixel = samples + i / 3 * channels;
        const uint32_t sample = pixel[channels >= 3 ? i % 3 : 0];
        due->rgb[i] = recipe->colour == PALETTE ? palette[pixel[0] * 3 + i % 3]
                      : recipe->depth == 16     ? (uint8_t)(sample >> 8)
                                                : (uint8_t)(sample * (255 / most));
    }

    struct file file = {NULL, 0}, data = make_data(recipe, samples, width, height, interlaced, state);
    put_header(&file, width, height, recipe->depth, recipe->colour, interlaced);
    if (recipe->colour == PALETTE) {
        put_chunk(&file, "PLTE", palette, (colours < 256 ? colours : 256) * 3);
        put_chunk(&file, "tRNS", "\0\x80", colours >= 2 ? 2 : 1);
    }
    const uint32_t chunk_max = 1 + random_below(state, 300);
    for (size_t at = 0, size; at < data.size; at += size) {
        size = random_below(state, chunk_max + 1);
        if (size > data.size - at)
            size = data.size - at;
        put_chunk(&file, "IDAT", data.bytes + at, size);
    }
    put_chunk(&file, "IEND", NULL, 0);
    free(data.bytes);
    free(samples);
    struct file exact = copy_of(file, file.size);
    free(file.bytes);
    return exact;
}

/* A decoder that has failed must decode the next image as if nothing had been. */
struct reference {
    struct file file;
    struct pixels due;
};

static struct reference reference_make(void)
{
    uint64_t state = 1;
    struct reference reference;
    reference.file = make(&kinds[5], 40, 30, 0, &state, &reference.due);
    return reference;
}

static void reference_free(struct reference *reference)
{
    free(reference->file.bytes);
    free(reference->due.rgb);
}

static void reference_check(const struct reference *reference, struct decoder *decoder)
{
    check_crop(decoder, reference->file, reference->due, all_of(reference->due), "after another image");
}

START_TEST(all_kinds)
{
    struct decoder *decoder = must_make(&decoder_png, ANY_LIMIT);
    uint64_t state = 2;
    for (size_t i = 0; i < KINDS * SIZES * 2; i++) {
        const uint32_t *size = sizes[i / 2 % SIZES];
        struct pixels due;
        struct file file = make(&kinds[i / 2 / SIZES], size[0], size[1], i % 2, &state, &due);
        check_picture(decoder, file, due, &state, kinds[i / 2 / SIZES].name);
        free(file.bytes);
        free(due.rgb);
    }
    decoder_png.decoder_free(decoder);
    decoder_png.decoder_free(NULL);
}
END_TEST

/* Where a chunk's length stands. */
static size_t find_chunk(struct file file, const char *type)
{
    for (size_t i = 8; i + 8 <= file.size; i++)
        if (memcmp(file.bytes + i + 4, type, 4) == 0)
            return i;
    ck_abort_msg("no chunk %s", type);
    return 0;
}

/* Some 100 lengths: an error, or whole pixels; with accept_truncated what is there, and black. */
START_TEST(cut_short)
{
    struct decoder *decoder = must_make(&decoder_png, ANY_LIMIT);
    struct reference reference = reference_make();
    uint64_t state = 3;
    for (size_t i = 0; i < KINDS * 2; i++) {
        struct pixels due;
        struct file file = make(&kinds[i / 2], 9, 13, i % 2, &state, &due);
        const size_t begun = find_chunk(file, "IDAT") + 8;
        struct decode_spec spec = spec_of(all_of(due), 3);
        size_t most = 0;
        for (size_t size = 0; size < file.size; size += 1 + random_below(&state, (uint32_t)file.size / 50)) {
            struct file cut = copy_of(file, size);
            struct image_info info;
            struct feedd_error err;
            uint8_t *got;
            spec.accept_truncated = false;
            ck_assert_int_eq(try_probe(decoder, cut, &info, &err), size < begun ? FEEDD_E_CORRUPT : 0);
            const int status = try_decode(decoder, cut, &spec, &got, &err);
            ck_assert(status == 0 || status == FEEDD_E_CORRUPT);
            ck_assert_msg(status == 0 || strstr(err.message, "cut short") != NULL, "%s", err.message);
            ck_assert(status != 0 || memcmp(got, due.rgb, (size_t)due.width * due.height * 3) == 0);
            free(got);
            spec.accept_truncated = true;
            const int accepted = try_decode(decoder, cut, &spec, &got, &err);
            ck_assert_int_eq(accepted, size < begun ? FEEDD_E_CORRUPT : 0);
            size_t there = 0, wrong = 0;
            for (size_t p = 0; accepted == 0 && p < (size_t)due.width * due.height * 3; p += 3) {
                const bool same = memcmp(got + p, due.rgb + p, 3) == 0;
                wrong += !same && memcmp(got + p, "\0\0\0", 3) != 0;
                there += same;
            }
            ck_assert(wrong == 0 && there >= most && (status != 0 || there == (size_t)due.width * due.height));
            most = there;
            free(got);
            free(cut.bytes);
        }
        struct file cut = copy_of(file, file.size - 12); /* IEND may be missing */
        check_picture(decoder, cut, due, &state, kinds[i / 2].name);
        free(cut.bytes);
        reference_check(&reference, decoder);
        free(file.bytes);
        free(due.rgb);
    }
    reference_free(&reference);
    decoder_png.decoder_free(decoder);
}
END_TEST

/* A filter that there isn't in row 12 stops what needs that row, and nothing above it. */
START_TEST(damage_below_the_crop)
{
    struct decoder *decoder = must_make(&decoder_png, ANY_LIMIT);
    struct file file = {NULL, 0};
    uint8_t rows[20 * (1 + 30)], data[sizeof(rows) + 100];
    for (size_t i = 0; i < sizeof(rows); i++)
        rows[i] = i % 31 == 0 ? (i / 31 == 12 ? 5 : 0) : (uint8_t)(i * 7);
    uLongf size = sizeof(data);
    ck_assert_int_eq(compress(data, &size, rows, sizeof(rows)), Z_OK);
    put_header(&file, 10, 20, 8, TRUECOLOUR, 0);
    put_chunk(&file, "IDAT", data, size);
    for (uint32_t height = 1; height <= 20; height++) {
        const struct decode_spec strict = spec_of((struct rect){1, 0, 9, height}, 3);
        struct decode_spec lax = strict;
        struct feedd_error err;
        uint8_t *got;
        const int status = try_decode(decoder, file, &strict, &got, &err);
        ck_assert_int_eq(status, height <= 12 ? 0 : FEEDD_E_CORRUPT);
        free(got);
        lax.accept_truncated = true;
        ck_assert_int_eq(try_decode(decoder, file, &lax, &got, &err), 0);
        int wrong = 0;
        for (uint32_t y = 0; y < height; y++)
            for (uint32_t x = 0; x < 27; x++)
                wrong += got[y * 27 + x] != (y < 12 ? rows[y * 31 + 4 + x] : 0);
        ck_assert_int_eq(wrong, 0);
        free(got);
    }
    free(file.bytes);
    decoder_png.decoder_free(decoder);
}
END_TEST

/* Any byte of a file is changed: no more than an error, which leaves nothing behind. */
START_TEST(damaged_bytes)
{
    struct decoder *decoder = must_make(&decoder_png, 100000);
    struct reference reference = reference_make();
    uint64_t state = 4;
    int refused = 0;
    for (size_t i = 0; i < KINDS * 2; i++) {
        struct pixels due;
        struct file file = make(&kinds[i / 2], 15, 11, i % 2, &state, &due);
        for (int n = 0; n < 100; n++) {
            struct file bad = copy_of(file, file.size);
            for (uint32_t k = 0; k <= random_below(&state, 3); k++)
                bad.bytes[random_below(&state, (uint32_t)bad.size)] = (uint8_t)random_below(&state, 256);
            struct image_info info = {15, 11, 1};
            struct feedd_error err;
            uint8_t *got;
            const int probed = try_probe(decoder, bad, &info, &err);
            struct decode_spec spec = spec_of((struct rect){0, 0, info.width, info.height}, 1 + n % 2 * 2);
            spec.accept_truncated = n % 3 == 0;
            const int status = try_decode(decoder, bad, &spec, &got, &err);
            ck_assert(probed == 0 || status != 0);
            ck_assert(status == 0 || status == FEEDD_E_CORRUPT || status == FEEDD_E_LIMIT);
            refused += status != 0;
            free(got);
            free(bad.bytes);
        }
        reference_check(&reference, decoder);
        free(file.bytes);
        free(due.rgb);
    }
    ck_assert_int_gt(refused, 500);
    reference_free(&reference);
    decoder_png.decoder_free(decoder);
}
END_TEST

START_TEST(refused)
{
    struct decoder *decoder = must_make(&decoder_png, 1000);
    static const struct {
        uint32_t width, height;
        uint8_t depth, colour, interlaced;
        int status;
        const char *part;
    } headers[] = {
        {0, 1, 8, 0, 0, FEEDD_E_CORRUPT, "width is zero"},
        {1, 0, 8, 0, 0, FEEDD_E_CORRUPT, "height is zero"},
        {1, 1, 5, 0, 0, FEEDD_E_CORRUPT, "bit depth"},
        {1, 1, 4, 2, 0, FEEDD_E_CORRUPT, "color type/bit depth"},
        {1, 1, 8, 5, 0, FEEDD_E_CORRUPT, "color type"},
        {1, 1, 8, 0, 2, FEEDD_E_CORRUPT, "interlace"},
        {1, 1, 8, 3, 0, FEEDD_E_CORRUPT, "Missing PLTE"},
        {1001, 1, 8, 0, 0, FEEDD_E_LIMIT, "1001 x 1 are 1001 pixels; allowed: 1000"},
        {32, 32, 16, 6, 1, FEEDD_E_LIMIT, "1024"},
        {0x7fffffff, 0x7fffffff, 16, 6, 1, FEEDD_E_LIMIT, "4611686014132420609"},
        {0xffffffff, 1, 8, 0, 0, FEEDD_E_CORRUPT, "PNG: "},
    };
    for (size_t i = 0; i < sizeof(headers) / sizeof(headers[0]); i++) {
        struct file file = {NULL, 0};
        put_header(&file, headers[i].width, headers[i].height, headers[i].depth, headers[i].colour,
                   headers[i].interlaced);
        put_chunk(&file, "IDAT", "x", 1);
        check_refused(decoder, file, headers[i].status, headers[i].part);
        free(file.bytes);
    }
    check_refused(decoder, (struct file){NULL, 0}, FEEDD_E_CORRUPT, "cut short: its 0 bytes");
    check_refused(decoder, (struct file){(uint8_t *)"GIF89a", 6}, FEEDD_E_CORRUPT, "Not a PNG file");

    struct reference reference = reference_make();
    struct decoder *other = must_make(&decoder_png, 1200);
    reference_check(&reference, other);
    check_arguments(other, reference.file, reference.due);
    reference_check(&reference, other);
    reference_free(&reference);
    decoder_png.decoder_free(other);

    struct file wide = {NULL, 0};
    other = must_make(&decoder_png, ANY_LIMIT);
    put_header(&wide, 1000001, 1, 1, GRAY, 0);
    put_chunk(&wide, "IDAT", "x", 1);
    check_refused(other, wide, FEEDD_E_LIMIT, "1000001 pixels wide; allowed: 1000000");
    free(wide.bytes);
    decoder_png.decoder_free(other);
    decoder_png.decoder_free(decoder);
}
END_TEST

/* eXIf before and behind the image, several, with and without a prefix, behind the end. */
START_TEST(orientation)
{
    static const char exif[] = "Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0?\0\0\0\0\0\0";
    struct decoder *decoder = must_make(&decoder_png, ANY_LIMIT);
    for (int i = 0; i < 16; i++) {
        struct file file = {NULL, 0};
        char six[sizeof(exif)], three[sizeof(exif)];
        memcpy(six, exif, sizeof(exif));
        memcpy(three, exif, sizeof(exif));
        *(char *)memchr(six, '?', sizeof(six)) = 6;
        *(char *)memchr(three, '?', sizeof(three)) = 3;
        put_header(&file, 1, 1, 8, GRAY, 0);
        if (i & 1)
            put_chunk(&file, "eXIf", three + 6, sizeof(exif) - 7);
        if (i & 2)
            put_chunk(&file, "eXIf", six, sizeof(exif) - 1);
        put_chunk(&file, "IDAT", "x\x9c\x63\x60\0\0\0\2\0\1", 10); /* zlib's: two zeros */
        if (i & 4)
            put_chunk(&file, "eXIf", three, sizeof(exif) - 1);
        put_chunk(&file, "IEND", NULL, 0);
        if (i & 8)
            put_chunk(&file, "eXIf", six, sizeof(exif) - 1);
        struct image_info info;
        struct feedd_error err;
        ck_assert_int_eq(try_probe(decoder, file, &info, &err), 0);
        ck_assert_uint_eq(info.orientation, i & 4 ? 3 : i & 2 ? 6 : i & 1 ? 3 : 1);
        check_crop(decoder, file, (struct pixels){1, 1, (uint8_t *)"\0\0\0"}, (struct rect){0, 0, 1, 1}, "black");
        free(file.bytes);
    }
    decoder_png.decoder_free(decoder);
}
END_TEST

/* Nothing stays allocated from image to image, good or bad. */
START_TEST(memory_stays)
{
    struct reference reference = reference_make();
    struct decoder *decoder = must_make(&decoder_png, ANY_LIMIT);
    size_t before = 0;
    for (int round = 0; round < 30; round++) {
        reference_check(&reference, decoder);
        struct file bad = copy_of(reference.file, reference.file.size - (size_t)round * 90);
        bad.bytes[bad.size / 2] ^= (uint8_t)(round % 3);
        struct decode_spec spec = spec_of(all_of(reference.due), 1 + round % 2 * 2);
        struct feedd_error err;
        uint8_t *got;
        try_decode(decoder, bad, &spec, &got, &err);
        free(got);
        free(bad.bytes);
        if (round == 2)
            before = allocated_bytes();
    }
    ck_assert_uint_eq(allocated_bytes(), before);
    decoder_png.decoder_free(decoder);
    reference_free(&reference);
}
END_TEST

START_TEST(out_of_memory)
{
    struct reference reference = reference_make();
    ck_assert_uint_ge(check_out_of_memory(&decoder_png, reference.file, reference.due), 7);
    reference_free(&reference);
}
END_TEST

START_TEST(threads)
{
    struct reference reference = reference_make();
    check_threads((struct threads_task){&decoder_png, reference.file, reference.due});
    reference_free(&reference);
}
END_TEST

int main(void)
{
    const TTest *const cases[] = {all_kinds,   cut_short,    damage_below_the_crop, damaged_bytes, refused,
                                  orientation, memory_stays, out_of_memory,         threads};
    return run_cases("png", cases, sizeof(cases) / sizeof(cases[0]));
}
