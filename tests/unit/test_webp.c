/* test_webp.c - the WebP decoder: lossless files against the picture that was encoded, lossy ones against libwebp's
 * plain WebPDecodeRGB(), which knows no crops; the container's bytes are made here (RFC 9649). The comparison with
 * Pillow is in tests/python/test_codecs.py.
 *
 * Happy path: a case makes its files in memory by libwebp's encoder. What is wrong with a file has to be an error that
 * says so, and must leave nothing in the decoder, which goes on to decode the next image.
 * Threads: one, but for one case that decodes on four. */
#include "codecs.h"

#include <webp/decode.h>
#include <webp/encode.h>

enum { ALPHA = 0x10, EXIF = 0x08, ANIMATION = 0x02 }; /* flags of VP8X */

/* What a file is made of. */
struct recipe {
    const char *name;
    bool lossless, alpha, simple_filter;
    int quality, partitions, noise; /* noise: per cent of the pixels */
};

static const struct recipe kinds[] = {
    {"lossless", true, false, false, 50, 0, 0},          {"lossless, alpha", true, true, false, 50, 0, 5},
    {"lossless, noise", true, false, false, 0, 0, 100},  {"quality 0", false, false, false, 0, 0, 0},
    {"quality 60", false, false, false, 60, 0, 10},      {"quality 100", false, false, false, 100, 0, 50},
    {"simple filter", false, false, true, 5, 0, 20},     {"simple filter, 80", false, false, true, 80, 0, 20},
    {"four partitions", false, false, false, 50, 2, 30}, {"alpha", false, true, false, 70, 0, 10},
};
#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

static const uint32_t sizes[][2] = {{1, 1}, {2, 1}, {1, 2}, {3, 3}, {16, 16}, {17, 15}, {50, 1}, {1, 50}, {101, 73}};
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))

/* RGBA: slopes, in a part of it nothing, and noise. */
static uint8_t *make_picture(const struct recipe *recipe, uint32_t width, uint32_t height, uint64_t *state)
{
    const size_t bytes = (size_t)width * height * 4;
    uint8_t *rgba = allocate(bytes);
    for (size_t i = 0; i < bytes; i++) {
        const uint32_t x = (uint32_t)(i / 4 % width), y = (uint32_t)(i / 4 / width), channel = i % 4;
        rgba[i] = (uint8_t)(40 + (x * (channel + 1) + y * 3) % 180 + (x / 9 + y / 5) % 2 * 30);
        if ((int)random_below(state, 100) < recipe->noise)
            rgba[i] = (uint8_t)random_below(state, 256);
        if (channel == 3)
            rgba[i] = !recipe->alpha ? 255 : x < width / 3 ? 0 : rgba[i];
    }
    return rgba;
}

static int append(const uint8_t *data, size_t size, const WebPPicture *picture)
{
    struct file *file = picture->custom_ptr;
    file->bytes = realloc(file->bytes, file->size + size);
    ck_assert_ptr_nonnull(file->bytes);
    memcpy(file->bytes + file->size, data, size);
    file->size += size;
    return 1;
}

/* Makes a file and the pixels that it has to give. */
static struct file make(const struct recipe *recipe, uint32_t width, uint32_t height, uint64_t *state,
                        struct pixels *due)
{
    struct file file = {NULL, 0};
    uint8_t *rgba = make_picture(recipe, width, height, state);
    WebPConfig config;
    WebPPicture picture;
    ck_assert(WebPConfigInit(&config) && WebPPictureInit(&picture));
    config.lossless = recipe->lossless;
    config.exact = 1;
    config.quality = (float)recipe->quality;
    config.method = recipe->lossless ? 2 : 4;
    config.filter_type = !recipe->simple_filter;
    config.filter_strength = 90;
    config.partitions = recipe->partitions;
    picture.use_argb = recipe->lossless;
    picture.width = (int)width;
    picture.height = (int)height;
    picture.writer = append;
    picture.custom_ptr = &file;
    ck_assert(WebPPictureImportRGBA(&picture, rgba, (int)width * 4) && WebPEncode(&config, &picture));
    WebPPictureFree(&picture);

    *due = (struct pixels){width, height, allocate((size_t)width * height * 3)};
    if (recipe->lossless) {
        for (size_t i = 0; i < (size_t)width * height; i++)
            memcpy(due->rgb + 3 * i, rgba + 4 * i, 3);
    } else {
        int w, h;
        uint8_t *rgb = WebPDecodeRGB(file.bytes, file.size, &w, &h);
        ck_assert(rgb != NULL && w == (int)width && h == (int)height);
        memcpy(due->rgb, rgb, (size_t)width * height * 3);
        WebPFree(rgb);
    }
    free(rgba);
    struct file exact = copy_of(file, file.size);
    free(file.bytes);
    return exact;
}

static void put(struct file *file, const void *bytes, size_t size)
{
    file->bytes = realloc(file->bytes, file->size + size + 1);
    ck_assert_ptr_nonnull(file->bytes);
    if (size > 0)
        memcpy(file->bytes + file->size, bytes, size);
    file->size += size;
}

/* A number of 3 bytes, or 4. */
static void put_number(struct file *file, uint32_t value, size_t bytes)
{
    const uint8_t all[4] = {(uint8_t)value, (uint8_t)(value >> 8), (uint8_t)(value >> 16), (uint8_t)(value >> 24)};
    put(file, all, bytes);
}

static void put_chunk(struct file *file, const char *tag, const void *data, size_t size)
{
    put(file, tag, 4);
    put_number(file, (uint32_t)size, 4);
    put(file, data, size);
    put(file, "", size % 2);
}

static void put_head(struct file *file, uint32_t flags, uint32_t width, uint32_t height)
{
    struct file head = {NULL, 0};
    put_number(&head, flags, 4);
    put_number(&head, width - 1, 3);
    put_number(&head, height - 1, 3);
    put(file, "RIFF????WEBP", 12);
    put_chunk(file, "VP8X", head.bytes, head.size);
    free(head.bytes);
}

/* Writes the size of the whole, and cuts the memory to it. */
static struct file finish(struct file *file)
{
    const uint32_t size = (uint32_t)file->size - 8;
    memcpy(file->bytes + 4, (const uint8_t[]){(uint8_t)size, (uint8_t)(size >> 8), (uint8_t)(size >> 16), 0}, 4);
    struct file exact = copy_of(*file, file->size);
    free(file->bytes);
    return exact;
}

/* The image's chunks of a file: all behind RIFF and VP8X. */
static struct file image_of(struct file file)
{
    const size_t skipped = memcmp(file.bytes + 12, "VP8X", 4) == 0 ? 30 : 12;
    return (struct file){file.bytes + skipped, file.size - skipped};
}

/* An animation of one frame, or two. */
static struct file animate(struct file image, struct rect frame, uint32_t width, uint32_t height, bool twice)
{
    struct file file = {NULL, 0}, anmf = {NULL, 0};
    put_head(&file, ANIMATION | ALPHA, width, height);
    put_chunk(&file, "ANIM", "\x11\x22\x33\xff\0\0", 6);
    put_number(&anmf, frame.x / 2, 3);
    put_number(&anmf, frame.y / 2, 3);
    put_number(&anmf, frame.width - 1, 3);
    put_number(&anmf, frame.height - 1, 3);
    put_number(&anmf, 100, 4); /* 3 bytes of duration, one of flags */
    put(&anmf, image.bytes, image.size);
    put_chunk(&file, "ANMF", anmf.bytes, anmf.size);
    if (twice)
        put_chunk(&file, "ANMF", anmf.bytes, anmf.size);
    free(anmf.bytes);
    return finish(&file);
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
    reference.file = make(&kinds[4], 40, 30, &state, &reference.due);
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
    struct decoder *decoder = must_make(&decoder_webp, ANY_LIMIT);
    uint64_t state = 2;
    for (size_t i = 0; i < KINDS * SIZES; i++) {
        const uint32_t *size = sizes[i % SIZES];
        struct pixels due;
        struct file file = make(&kinds[i / SIZES], size[0], size[1], &state, &due);
        check_picture(decoder, file, due, &state, kinds[i / SIZES].name);
        free(file.bytes);
        free(due.rgb);
    }
    decoder_webp.decoder_free(decoder);
    decoder_webp.decoder_free(NULL);
}
END_TEST

/* Small crops everywhere, where filters and chroma reach over its edges. */
START_TEST(small_crops)
{
    struct decoder *decoder = must_make(&decoder_webp, ANY_LIMIT);
    uint64_t state = 3;
    for (size_t i = 3; i < KINDS; i++) {
        struct pixels due;
        struct file file = make(&kinds[i], 37, 35, &state, &due);
        for (uint32_t x = 0; x < 37; x++)
            for (uint32_t y = x % 3; y < 35; y += 3) {
                struct rect crop = {x, y, 1 + random_below(&state, 5), 1 + random_below(&state, 5)};
                crop.width = crop.width < 37 - x ? crop.width : 37 - x;
                crop.height = crop.height < 35 - y ? crop.height : 35 - y;
                check_crop(decoder, file, due, crop, kinds[i].name);
            }
        free(file.bytes);
        free(due.rgb);
    }
    decoder_webp.decoder_free(decoder);
}
END_TEST

/* The first frame on a black canvas that it covers or doesn't; what follows it may be missing. */
START_TEST(animated)
{
    struct decoder *decoder = must_make(&decoder_webp, ANY_LIMIT);
    uint64_t state = 4;
    for (size_t i = 0; i < KINDS * 8; i++) {
        struct pixels due, canvas = {1 + random_below(&state, 60), 1 + random_below(&state, 60), NULL};
        struct rect frame = random_crop(&state, canvas);
        frame.x &= ~1u;
        frame.y &= ~1u;
        struct file image = make(&kinds[i / 8], frame.width, frame.height, &state, &due);
        canvas.rgb = allocate((size_t)canvas.width * canvas.height * 3);
        for (uint32_t y = 0; y < frame.height; y++)
            memcpy(canvas.rgb + ((size_t)(frame.y + y) * canvas.width + frame.x) * 3,
                   due.rgb + (size_t)y * frame.width * 3, (size_t)frame.width * 3);
        struct file one = animate(image_of(image), frame, canvas.width, canvas.height, false);
        struct file two = animate(image_of(image), frame, canvas.width, canvas.height, true);
        check_picture(decoder, one, canvas, &state, kinds[i / 8].name);
        check_picture(decoder, two, canvas, &state, kinds[i / 8].name);
        struct file cut = copy_of(two, one.size + random_below(&state, (uint32_t)(two.size - one.size)));
        check_picture(decoder, cut, canvas, &state, kinds[i / 8].name);
        free(cut.bytes);
        cut = copy_of(one, one.size - 2);
        check_refused(decoder, cut, FEEDD_E_CORRUPT, "cut short");
        free(cut.bytes);
        free(two.bytes);
        free(one.bytes);
        free(image.bytes);
        free(canvas.rgb);
        free(due.rgb);
    }
    decoder_webp.decoder_free(decoder);
}
END_TEST

/* Some 100 lengths: an error, or whole pixels; with accept_truncated the rows that are there, and black. */
START_TEST(cut_short)
{
    struct decoder *decoder = must_make(&decoder_webp, ANY_LIMIT);
    struct reference reference = reference_make();
    uint64_t state = 5;
    for (size_t i = 0; i < KINDS; i++) {
        struct pixels due;
        struct file file = make(&kinds[i], 41, 53, &state, &due);
        const size_t row = (size_t)due.width * 3;
        struct decode_spec spec = spec_of(all_of(due), 3);
        size_t most = 0;
        for (size_t size = 0; size < file.size; size += 1 + random_below(&state, (uint32_t)file.size / 50)) {
            struct file cut = copy_of(file, size);
            struct image_info info;
            struct feedd_error err;
            uint8_t *got;
            const int probed = try_probe(decoder, cut, &info, &err);
            ck_assert_msg(probed == 0 || (probed == FEEDD_E_CORRUPT && size < 800), "%s", err.message);
            spec.accept_truncated = false;
            const int status = try_decode(decoder, cut, &spec, &got, &err);
            ck_assert(status == 0 || status == FEEDD_E_CORRUPT);
            ck_assert(status != 0 || memcmp(got, due.rgb, row * due.height) == 0);
            ck_assert_msg(size < 12 || status == 0 || strstr(err.message, "cut short") != NULL, "%s", err.message);
            free(got);
            spec.accept_truncated = true;
            ck_assert_int_eq(try_decode(decoder, cut, &spec, &got, &err), probed);
            size_t there = 0, wrong = 0;
            while (probed == 0 && there < due.height && memcmp(got + there * row, due.rgb + there * row, row) == 0)
                there++;
            for (size_t p = there * row; probed == 0 && p < due.height * row; p++)
                wrong += got[p] != 0;
            ck_assert(wrong == 0 && there >= most && (status != 0 || there == due.height));
            most = there;
            free(got);
            free(cut.bytes);
        }
        ck_assert_uint_ge(most, 16);
        reference_check(&reference, decoder);
        free(file.bytes);
        free(due.rgb);
    }
    reference_free(&reference);
    decoder_webp.decoder_free(decoder);
}
END_TEST

/* A crop in the upper third doesn't need the lower third of the bytes. */
START_TEST(damage_below_the_crop)
{
    struct decoder *decoder = must_make(&decoder_webp, ANY_LIMIT);
    uint64_t state = 6;
    for (size_t i = 0; i + 1 < KINDS; i++) { /* but for alpha, which would be the first two thirds */
        struct recipe noisy = kinds[i];
        struct pixels due;
        noisy.noise = 60; /* all rows take about as many bytes */
        struct file file = make(&noisy, 64, 192, &state, &due);
        struct file cut = copy_of(file, file.size * 2 / 3);
        const struct decode_spec whole = spec_of(all_of(due), 3);
        struct feedd_error err;
        uint8_t *got;
        ck_assert_int_eq(try_decode(decoder, cut, &whole, &got, &err), FEEDD_E_CORRUPT);
        if (kinds[i].partitions == 0) /* where rows take turns in partitions, the last one is in the last third */
            check_crop(decoder, cut, due, (struct rect){5, 3, 50, 50}, kinds[i].name);
        memset(file.bytes + file.size * 2 / 3, 0x5A, file.size / 4);
        check_crop(decoder, file, due, (struct rect){5, 3, 50, kinds[i].partitions == 0 ? 50 : 1}, kinds[i].name);
        free(cut.bytes);
        free(file.bytes);
        free(due.rgb);
    }
    decoder_webp.decoder_free(decoder);
}
END_TEST

/* Any byte of a file is changed: no more than an error, which leaves nothing behind. */
START_TEST(damaged_bytes)
{
    struct decoder *decoder = must_make(&decoder_webp, 100000);
    struct reference reference = reference_make();
    uint64_t state = 7;
    int refused = 0;
    for (size_t i = 0; i < KINDS * 2; i++) {
        struct pixels due;
        struct file still = make(&kinds[i / 2], 25, 21, &state, &due);
        struct file file = i % 2 == 0 ? copy_of(still, still.size)
                                      : animate(image_of(still), (struct rect){2, 4, 25, 21}, 30, 30, true);
        for (int n = 0; n < 100; n++) {
            struct file bad = copy_of(file, file.size);
            for (uint32_t k = 0; k <= random_below(&state, 3); k++)
                bad.bytes[random_below(&state, (uint32_t)bad.size)] = (uint8_t)random_below(&state, 256);
            struct image_info info = {25, 21, 1};
            struct feedd_error err;
            uint8_t *got;
            const int probed = try_probe(decoder, bad, &info, &err);
            struct decode_spec spec = spec_of((struct rect){0, 0, info.width, info.height}, 1 + n % 2 * 2);
            spec.accept_truncated = n % 3 == 0;
            const int status = try_decode(decoder, bad, &spec, &got, &err);
            ck_assert(probed == 0 || status == probed);
            ck_assert(status == 0 || status == FEEDD_E_CORRUPT || status == FEEDD_E_LIMIT);
            refused += status != 0;
            free(got);
            free(bad.bytes);
        }
        reference_check(&reference, decoder);
        free(file.bytes);
        free(still.bytes);
        free(due.rgb);
    }
    ck_assert_int_gt(refused, 300);
    reference_free(&reference);
    decoder_webp.decoder_free(decoder);
}
END_TEST

START_TEST(refused)
{
    struct decoder *decoder = must_make(&decoder_webp, 1200);
    struct reference reference = reference_make();
    const struct file image = image_of(reference.file);
    check_refused(decoder, (struct file){NULL, 0}, FEEDD_E_CORRUPT, "RIFF, WEBP and chunks");
    check_refused(decoder, (struct file){(uint8_t *)"RIFF\x10\0\0\0WEBP", 12}, FEEDD_E_CORRUPT, "cut short: its 12 b");
    check_refused(decoder, image, FEEDD_E_CORRUPT, "RIFF, WEBP and chunks"); /* without the container */
    reference_check(&reference, decoder);
    check_arguments(decoder, reference.file, reference.due);

    static const uint32_t canvases[][2] = {{1201, 1}, {40, 31}, {1 << 24, 255}};
    for (size_t i = 0; i < 3; i++) {
        const uint32_t width = canvases[i][0], height = canvases[i][1];
        struct file file = animate(image, (struct rect){0, 0, 40, 30}, width, height, false);
        if (width >= 40 && height >= 30)
            check_refused(decoder, file, FEEDD_E_LIMIT, "allowed: 1200");
        else
            check_refused(decoder, file, FEEDD_E_CORRUPT, "RIFF, WEBP and chunks");
        free(file.bytes);
    }
    struct file file = animate(image, (struct rect){2, 0, 40, 30}, 40, 30, false); /* beyond the canvas */
    check_refused(decoder, file, FEEDD_E_CORRUPT, "RIFF, WEBP and chunks");
    free(file.bytes);
    file = (struct file){NULL, 0};
    put_head(&file, 0, 40, 30);
    file = finish(&file); /* no image */
    check_refused(decoder, file, FEEDD_E_CORRUPT, "RIFF, WEBP and chunks");
    free(file.bytes);

    struct decoder *strict = must_make(&decoder_webp, 1199);
    check_refused(strict, reference.file, FEEDD_E_LIMIT, "40 x 30 are 1200 pixels; allowed: 1199");
    decoder_webp.decoder_free(strict);
    reference_free(&reference);
    decoder_webp.decoder_free(decoder);
}
END_TEST

/* The first EXIF chunk, before or behind the image, when VP8X says that there is one. */
START_TEST(orientation)
{
    static const char six[] = "Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0";
    static const char three[] = "MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x03\0\0\0\0\0\0";
    struct decoder *decoder = must_make(&decoder_webp, ANY_LIMIT);
    struct reference reference = reference_make();
    const struct file image = image_of(reference.file);
    for (int i = 0; i < 8; i++) {
        struct file file = {NULL, 0};
        put_head(&file, i & 4 ? EXIF : 0, 40, 30);
        if (i & 1)
            put_chunk(&file, "EXIF", six, sizeof(six) - 1);
        put(&file, image.bytes, image.size);
        if (i & 2)
            put_chunk(&file, "EXIF", three, sizeof(three) - 1);
        file = finish(&file);
        struct image_info info;
        struct feedd_error err;
        ck_assert_int_eq(try_probe(decoder, file, &info, &err), 0);
        ck_assert_uint_eq(info.orientation, !(i & 4) ? 1 : i & 1 ? 6 : i & 2 ? 3 : 1);
        check_crop(decoder, file, reference.due, all_of(reference.due), "with EXIF");
        free(file.bytes);
    }
    reference_free(&reference);
    decoder_webp.decoder_free(decoder);
}
END_TEST

/* What is behind a lossy image's alpha isn't decoded, so that its damage doesn't count. */
START_TEST(alpha_is_not_read)
{
    struct decoder *decoder = must_make(&decoder_webp, ANY_LIMIT);
    uint64_t state = 8;
    struct pixels due;
    struct file file = make(&kinds[9], 60, 50, &state, &due);
    ck_assert_mem_eq(file.bytes + 30, "ALPH", 4);
    memset(file.bytes + 38, 0xff, file.bytes[34] | (size_t)file.bytes[35] << 8);
    int width, height;
    uint8_t *plain = WebPDecodeRGBA(file.bytes, file.size, &width, &height);
    ck_assert_ptr_null(plain);
    check_picture(decoder, file, due, &state, "damaged alpha");
    free(file.bytes);
    free(due.rgb);
    decoder_webp.decoder_free(decoder);
}
END_TEST

/* Nothing stays allocated from image to image, good or bad. */
START_TEST(memory_stays)
{
    struct reference reference = reference_make();
    struct decoder *decoder = must_make(&decoder_webp, ANY_LIMIT);
    size_t before = 0;
    for (int i = 0; i < 90; i++) { /* the same three times: an allocator keeps some of what it has freed, by size */
        const int round = i % 30;
        reference_check(&reference, decoder);
        struct file bad = copy_of(reference.file, reference.file.size - (size_t)round * 10);
        bad.bytes[bad.size / 2] ^= (uint8_t)(round % 3);
        struct decode_spec spec = spec_of(all_of(reference.due), 1 + round % 2 * 2);
        struct feedd_error err;
        uint8_t *got;
        try_decode(decoder, bad, &spec, &got, &err);
        free(got);
        free(bad.bytes);
        if (i == 59)
            before = allocated_bytes();
    }
    ck_assert_uint_eq(allocated_bytes(), before);
    decoder_webp.decoder_free(decoder);
    reference_free(&reference);
}
END_TEST

START_TEST(out_of_memory)
{
    struct reference reference = reference_make();
    ck_assert_uint_ge(check_out_of_memory(&decoder_webp, reference.file, reference.due), 1);
    reference_free(&reference);
}
END_TEST

START_TEST(threads)
{
    struct reference reference = reference_make();
    check_threads((struct threads_task){&decoder_webp, reference.file, reference.due});
    reference_free(&reference);
}
END_TEST

int main(void)
{
    const TTest *const cases[] = {all_kinds,     small_crops, animated,    cut_short,         damage_below_the_crop,
                                  damaged_bytes, refused,     orientation, alpha_is_not_read, memory_stays,
                                  out_of_memory, threads};
    return run_cases("webp", cases, sizeof(cases) / sizeof(cases[0]));
}
