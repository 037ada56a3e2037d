/* test_sample.c - one sample into its cells: what lies where, who closes what, and that decoding only what a cell needs
 * gives what turning, cutting, scaling and mirroring the whole image gives.
 *
 * The photos are made here, by libjpeg: smooth with some noise, an EXIF block where one is asked for. What whole images
 * should look like is the business of tests/python/test_pixels.py, which asks Pillow.
 * Threads: one. */
#include <check.h>
#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <jpeglib.h>

#include "error.h"
#include "orient.h"
#include "resize.h"
#include "sample.h"

#define BATCH 3

static const struct sample_limits limits = {.pixels = 1000000, .encoded_bytes = 1000000};

/* A dataset in which every sample is the same one. */
struct fake {
    struct reader reader;
    struct reader_sample sample;
    struct blob file; /* of samples that are encoded */
    int status;       /* of read() */
};

static int fake_read(const struct reader *reader, uint64_t index, struct reader_sample *out, struct feedd_error *err)
{
    const struct fake *fake = (const struct fake *)reader;
    *out = fake->sample;
    out->label += (int64_t)index;
    if (fake->status != 0)
        return error_set(err, fake->status, "no luck");
    if (out->pixels != NULL)
        return 0;
    out->fd = memfd_create("sample", MFD_CLOEXEC);
    ck_assert_int_ge(out->fd, 0);
    ck_assert_int_eq(write(out->fd, fake->file.bytes, fake->file.size), (ssize_t)fake->file.size);
    return 0;
}

static void fake_path(const struct reader *reader, uint64_t index, char *text, size_t size)
{
    (void)reader;
    snprintf(text, size, "sample number %d", (int)index);
}

static const struct reader_ops fake_ops = {.name = "fake", .read = fake_read, .path = fake_path};

static struct fake fake_file(struct blob file)
{
    return (struct fake){.reader = {.ops = &fake_ops, .sample_count = 100, .label_dtype = FEEDD_I64},
                         .sample = {.fd = -1, .size = file.size, .label = 1000},
                         .file = file};
}

static struct fake fake_pixels(const uint8_t *pixels, uint32_t height, uint32_t width, uint32_t channels)
{
    struct fake fake = {.reader = {.ops = &fake_ops,
                                   .sample_count = 100,
                                   .height = height,
                                   .width = width,
                                   .channels = channels,
                                   .label_dtype = FEEDD_I64},
                        .sample = {.pixels = pixels, .fd = -1, .label = 1000}};
    return fake;
}

/* ---- photos ---- */

static double wave(uint32_t x, uint32_t y, uint32_t channel)
{
    return 128 + 50 * sin(x / (9.0 + channel)) + 50 * cos(y / (13.0 - 2 * channel) + 1) + (rand() % 9 - 4);
}

/* The caller's to free. @param orientation  0: no EXIF block. @param sampling  of the chroma's columns and rows */
static struct blob make_photo(uint32_t width, uint32_t height, int orientation, int sampling)
{
    struct jpeg_compress_struct cinfo;
    struct jpeg_error_mgr errors;
    unsigned char *bytes = NULL;
    unsigned long size = 0;
    cinfo.err = jpeg_std_error(&errors);
    jpeg_create_compress(&cinfo);
    jpeg_mem_dest(&cinfo, &bytes, &size);
    cinfo.image_width = width;
    cinfo.image_height = height;
    cinfo.input_components = 3;
    cinfo.in_color_space = JCS_RGB;
    jpeg_set_defaults(&cinfo);
    jpeg_set_quality(&cinfo, 90, TRUE);
    cinfo.comp_info[0].h_samp_factor = cinfo.comp_info[0].v_samp_factor = sampling;
    jpeg_start_compress(&cinfo, TRUE);
    if (orientation != 0) {
        const unsigned char exif[] = {'E', 'x', 'i', 'f', 0, 0, 'M', 'M', 0, 42,
                                      0,   0,   0,   8,   0, 1, /* one entry, */
                                      1,   18,  0,   3,   0, 0, 0,   1,   0, (unsigned char)orientation,
                                      0,   0,   0,   0,   0, 0};
        jpeg_write_marker(&cinfo, JPEG_APP0 + 1, exif, sizeof(exif));
    }
    uint8_t *row = malloc((size_t)width * 3);
    for (uint32_t y = 0; y < height; y++) {
        for (uint32_t x = 0; x < width; x++)
            for (uint32_t c = 0; c < 3; c++)
                row[3 * x + c] = (uint8_t)wave(x, y, c);
        jpeg_write_scanlines(&cinfo, &(JSAMPROW){row}, 1);
    }
    free(row);
    jpeg_finish_compress(&cinfo);
    jpeg_destroy_compress(&cinfo);
    return (struct blob){bytes, size};
}

/* ---- one sample ---- */

static struct sample_scratch *scratch; /* of all tests: what is left in it may disturb no other */

static struct sample_plan must_plan(const struct fake *fake, const struct transform_spec *transform)
{
    struct sample_plan plan = {.reader = &fake->reader, .transform = *transform, .limits = limits, .seed = 77};
    struct feedd_error err = {.message = ""};
    ck_assert_msg(sample_plan_init(&plan, BATCH, scratch, &err) == 0, "%s", err.message);
    return plan;
}

static uint8_t *new_slot(const struct sample_plan *plan)
{
    uint8_t *slot = malloc(plan->layout.slot_bytes);
    memset(slot, 0x5A, plan->layout.slot_bytes);
    return slot;
}

static int fill(const struct sample_plan *plan, uint8_t *slot, uint32_t cell, uint64_t position,
                struct feedd_error *err)
{
    const struct sample_place place = {.index = 42, .epoch = 5, .position = position, .slot = slot, .cell = cell};
    return sample_fill(plan, scratch, &place, err);
}

/* The image of a sample; the caller's to free. */
static uint8_t *must_fill(const struct sample_plan *plan, uint64_t position)
{
    struct feedd_error err = {.message = ""};
    uint8_t *slot = new_slot(plan);
    ck_assert_msg(fill(plan, slot, 0, position, &err) == 0, "%s", err.message);
    const struct slot_field *image = &plan->layout.fields[0];
    uint8_t *pixels = malloc(image->sample_bytes);
    memcpy(pixels, slot + image->offset, image->sample_bytes);
    free(slot);
    return pixels;
}

/* ---- the whole image, step by step ---- */

struct picture {
    uint32_t width, height, channels;
    uint8_t *pixels; /* owned */
};

static struct picture upright_photo(struct blob file, int orientation, uint32_t channels)
{
    struct decoder *decoder;
    struct image_info info;
    struct feedd_error err = {.message = ""};
    ck_assert_int_eq(decoder_jpeg.decoder_new(&(struct decoder_limits){1000000}, &decoder, &err), 0);
    ck_assert_int_eq(decoder_jpeg.probe(decoder, file, &info, &err), 0);
    const struct decode_spec spec = {
        .crop = {0, 0, info.width, info.height}, .channels = channels, .mode = DECODE_EXACT, .shrink = 1};
    uint8_t *coded = malloc((size_t)info.width * info.height * channels);
    ck_assert_msg(decoder_jpeg.decode(decoder, file, &spec, coded, (size_t)info.width * channels, &err) == 0, "%s",
                  err.message);
    decoder_jpeg.decoder_free(decoder);
    const bool swaps = orient_swaps(orientation);
    struct picture upright = {swaps ? info.height : info.width, swaps ? info.width : info.height, channels,
                              malloc((size_t)info.width * info.height * channels)};
    orient_pixels(orientation, coded, info.width, info.height, (size_t)info.width * channels, channels, upright.pixels,
                  (size_t)upright.width * channels);
    free(coded);
    return upright;
}

static struct picture cut_out(const struct picture *from, struct rect part)
{
    struct picture cut = {part.width, part.height, from->channels,
                          malloc((size_t)part.width * part.height * from->channels)};
    for (uint32_t y = 0; y < part.height; y++)
        memcpy(cut.pixels + (size_t)y * part.width * from->channels,
               from->pixels + ((size_t)(part.y + y) * from->width + part.x) * from->channels,
               (size_t)part.width * from->channels);
    return cut;
}

static void mirror(struct picture *picture)
{
    uint8_t *mirrored = malloc((size_t)picture->width * picture->height * picture->channels);
    for (uint32_t y = 0; y < picture->height; y++)
        for (uint32_t x = 0; x < picture->width; x++)
            memcpy(mirrored + ((size_t)y * picture->width + x) * picture->channels,
                   picture->pixels + ((size_t)y * picture->width + picture->width - 1 - x) * picture->channels,
                   picture->channels);
    free(picture->pixels);
    picture->pixels = mirrored;
}

static struct picture scaled(const struct picture *from, uint32_t width, uint32_t height)
{
    const struct resize_spec spec = {.width = from->width,
                                     .height = from->height,
                                     .box = {0, 0, from->width, from->height},
                                     .scaled_width = width,
                                     .scaled_height = height,
                                     .window = {0, 0, width, height},
                                     .channels = from->channels};
    struct picture to = {width, height, from->channels, malloc((size_t)width * height * from->channels)};
    struct resizer *resizer;
    ck_assert_int_eq(resizer_new(&resizer, NULL), 0);
    ck_assert_int_eq(resizer_apply(resizer, &spec, from->pixels, (struct rect){0, 0, from->width, from->height},
                                   (size_t)from->width * from->channels, to.pixels, NULL),
                     0);
    resizer_free(resizer);
    return to;
}

/* What a sample should be: each step on the whole picture before the next. The caller's to free. */
static uint8_t *step_by_step(const struct sample_plan *plan, uint64_t position, const struct picture *upright)
{
    struct geometry g;
    ck_assert_int_eq(geometry_choose(&plan->transform, plan->height, plan->width, plan->seed, 5, position,
                                     (struct image_info){upright->width, upright->height, 1}, &g, NULL),
                     0);
    uint8_t *due = calloc((size_t)plan->height * plan->width, plan->channels);
    if (g.crop.width == 0)
        return due;
    struct picture crop = cut_out(upright, g.crop), all = scaled(&crop, g.scaled_width, g.scaled_height),
                   window = cut_out(&all, g.window);
    if (g.flip)
        mirror(&window);
    for (uint32_t y = 0; y < window.height; y++)
        memcpy(due + ((size_t)(g.y + y) * plan->width + g.x) * plan->channels,
               window.pixels + (size_t)y * window.width * plan->channels, (size_t)window.width * plan->channels);
    free(crop.pixels);
    free(all.pixels);
    free(window.pixels);
    return due;
}

static struct transform_spec random_transform(uint32_t width, uint32_t height)
{
    struct transform_spec spec = {.kind = 1 + rand() % 4, .flip = 0.5, .channels = rand() % 2 == 0 ? 3 : 1};
    spec.height = 1 + (uint32_t)rand() % 90;
    spec.width = 1 + (uint32_t)rand() % 90;
    switch (spec.kind) {
    case TRANSFORM_NONE:
        spec.height = spec.width = 0;
        break;
    case TRANSFORM_RESIZE_CENTER_CROP:
        if (rand() % 2 == 0) {
            spec.resize = 90 + (uint32_t)rand() % 30;
        } else {
            spec.resize_height = spec.height + (uint32_t)rand() % 60;
            spec.resize_width = spec.width + (uint32_t)rand() % 60;
        }
        break;
    case TRANSFORM_RANDOM_RESIZED_CROP:
        spec.scale[0] = 0.01;
        spec.scale[1] = rand() % 2 == 0 ? 0.3 : 1;
        spec.ratio[0] = 0.3;
        spec.ratio[1] = 3;
        break;
    default:
        for (int i = 0; i < 4; i++)
            spec.padding[i] = rand() % 2 == 0 ? 0 : (uint32_t)rand() % 20;
        spec.width = 1 + (uint32_t)rand() % (width + spec.padding[0] + spec.padding[2]);
        spec.height = 1 + (uint32_t)rand() % (height + spec.padding[1] + spec.padding[3]);
    }
    return spec;
}

START_TEST(photos)
{
    srand(1);
    for (int i = 0; i < 240; i++) {
        const int orientation = i % 9;
        const struct blob file =
            make_photo(20 + (uint32_t)rand() % 180, 20 + (uint32_t)rand() % 180, orientation, 1 + i % 2);
        const struct fake fake = fake_file(file);
        const bool ignore = i % 5 == 0;
        struct picture upright = upright_photo(file, ignore || orientation == 0 ? 1 : orientation, 3);
        for (uint64_t position = 0; position < 6; position++) {
            struct transform_spec transform = random_transform(upright.width, upright.height);
            transform.ignore_orientation = ignore;
            const struct sample_plan plan = must_plan(&fake, &transform);
            ck_assert_uint_eq(plan.channels, transform.channels);
            if (upright.channels != plan.channels) {
                free(upright.pixels);
                upright = upright_photo(file, ignore || orientation == 0 ? 1 : orientation, plan.channels);
            }
            uint8_t *got = must_fill(&plan, position), *due = step_by_step(&plan, position, &upright);
            ck_assert_msg(memcmp(got, due, plan.layout.fields[0].sample_bytes) == 0,
                          "photo %d, position %d: orientation %d, transform %d", i, (int)position, orientation,
                          transform.kind);
            free(got);
            free(due);
        }
        free(upright.pixels);
        free((void *)(uintptr_t)file.bytes);
    }
}
END_TEST

/* Shrunk by the codec, a crop is where it is without: a smooth picture differs by little, one that is turned or
 * displaced by more. */
START_TEST(fast)
{
    srand(2);
    int shrunk = 0;
    for (int i = 0; i < 160; i++) {
        const int orientation = 1 + i % 8;
        const struct blob file =
            make_photo(200 + (uint32_t)rand() % 200, 200 + (uint32_t)rand() % 200, orientation, 1 + i % 2);
        const struct fake fake = fake_file(file);
        struct transform_spec transform = {.kind = TRANSFORM_RANDOM_RESIZED_CROP,
                                           .height = 15 + (uint32_t)rand() % 60,
                                           .width = 15 + (uint32_t)rand() % 60,
                                           .scale = {0.3, 1},
                                           .ratio = {0.7, 1.4},
                                           .flip = 0.5};
        const struct sample_plan exact_plan = must_plan(&fake, &transform);
        transform.fast = true;
        const struct sample_plan fast_plan = must_plan(&fake, &transform);
        uint8_t *exact = must_fill(&exact_plan, (uint64_t)i), *got = must_fill(&fast_plan, (uint64_t)i);
        const size_t bytes = exact_plan.layout.fields[0].sample_bytes;
        int64_t sum = 0;
        for (size_t n = 0; n < bytes; n++)
            sum += abs(exact[n] - got[n]);
        shrunk += sum > 0;
        ck_assert_msg(sum < 4 * (int64_t)bytes, "photo %d, orientation %d: %.2f levels", i, orientation,
                      (double)sum / (double)bytes);
        free(exact);
        free(got);
        free((void *)(uintptr_t)file.bytes);
    }
    ck_assert_int_gt(shrunk, 100);
}
END_TEST

static uint8_t luma(const uint8_t *rgb)
{
    return (uint8_t)((rgb[0] * 19595 + rgb[1] * 38470 + rgb[2] * 7471 + 32768) / 65536);
}

START_TEST(memory)
{
    srand(3);
    for (int i = 0; i < 3000; i++) {
        const uint32_t width = 1 + (uint32_t)rand() % 40, height = 1 + (uint32_t)rand() % 40;
        const uint32_t channels = 1 + (uint32_t)i % 4;
        const size_t count = (size_t)width * height;
        uint8_t *pixels = malloc(count * channels);
        for (size_t n = 0; n < count * channels; n++)
            pixels[n] = (uint8_t)rand();
        const struct fake fake = fake_pixels(pixels, height, width, channels);
        struct transform_spec transform = random_transform(width, height);
        if (channels == 2 || channels == 4 || rand() % 2 == 0)
            transform.channels = 0;
        transform.fast = rand() % 2 == 0;
        const struct sample_plan plan = must_plan(&fake, &transform);
        ck_assert_uint_eq(plan.channels, transform.channels != 0 ? transform.channels : channels);
        struct picture due_picture = {width, height, plan.channels, malloc(count * plan.channels)};
        for (size_t n = 0; n < count; n++)
            for (uint32_t c = 0; c < plan.channels; c++)
                due_picture.pixels[n * plan.channels + c] = plan.channels == channels ? pixels[n * channels + c]
                                                            : channels == 1           ? pixels[n]
                                                                                      : luma(pixels + 3 * n);
        uint8_t *got = must_fill(&plan, (uint64_t)i), *due = step_by_step(&plan, (uint64_t)i, &due_picture);
        ck_assert_msg(memcmp(got, due, plan.layout.fields[0].sample_bytes) == 0,
                      "sample %d: %u x %u, %u channels, transform %d", i, width, height, channels, transform.kind);
        free(got);
        free(due);
        free(due_picture.pixels);
        free(pixels);
    }
}
END_TEST

/* A cell gets its sample, and the others keep what they have. */
START_TEST(cells)
{
    uint8_t pixels[4 * 5 * 3];
    for (size_t i = 0; i < sizeof(pixels); i++)
        pixels[i] = (uint8_t)(100 + i);
    struct fake fake = fake_pixels(pixels, 4, 5, 3);
    fake.sample.value = 0.25f;
    for (int floats = 0; floats < 2; floats++) {
        fake.reader.label_dtype = floats ? FEEDD_F32 : FEEDD_I64;
        const struct sample_plan plan = must_plan(&fake, &(struct transform_spec){.kind = TRANSFORM_NONE});
        uint8_t *slot = new_slot(&plan), *due = new_slot(&plan);
        const struct slot_field *fields = plan.layout.fields;
        const int64_t label = 1042, index = 42;
        memcpy(due + fields[0].offset + sizeof(pixels), pixels, sizeof(pixels));
        if (floats)
            memcpy(due + fields[1].offset + 4, &fake.sample.value, 4);
        else
            memcpy(due + fields[1].offset + 8, &label, 8);
        memcpy(due + fields[2].offset + 8, &index, 8);
        ck_assert_int_eq(fill(&plan, slot, 1, 0, NULL), 0);
        ck_assert_mem_eq(slot, due, plan.layout.slot_bytes);

        const float no_value = -1;
        const int64_t no_label = -1;
        memset(due + fields[0].offset + 2 * sizeof(pixels), 0, sizeof(pixels));
        if (floats)
            memcpy(due + fields[1].offset + 8, &no_value, 4);
        else
            memcpy(due + fields[1].offset + 16, &no_label, 8);
        memcpy(due + fields[2].offset + 16, &index, 8);
        const struct sample_place place = {.index = 42, .slot = slot, .cell = 2};
        ck_assert_int_eq(sample_zero(&plan, scratch, &place, NULL), 0);
        ck_assert_mem_eq(slot, due, plan.layout.slot_bytes);
        free(slot);
        free(due);
    }
}
END_TEST

static int open_fds(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (readdir(folder) != NULL)
        count++;
    closedir(folder);
    return count;
}

static void refuse(const struct fake *fake, const struct transform_spec *transform, int status, const char *part)
{
    struct sample_plan plan = {
        .reader = &fake->reader, .transform = *transform, .limits = limits, .seed = 77, .height = 9, .width = 9};
    struct feedd_error err = {.message = ""};
    const int fds = open_fds();
    int rc = sample_plan_init(&plan, BATCH, scratch, &err);
    if (rc == 0) {
        uint8_t *slot = new_slot(&plan);
        rc = fill(&plan, slot, 0, 0, &err);
        free(slot);
    }
    ck_assert_msg(rc == status && err.status == status && strstr(err.message, part) != NULL, "%d: %s", rc, err.message);
    ck_assert_int_eq(open_fds(), fds);
}

static const struct transform_spec none = {.kind = TRANSFORM_NONE};
static const struct transform_spec some = {
    .kind = TRANSFORM_RANDOM_RESIZED_CROP, .height = 9, .width = 9, .scale = {0.08, 1}, .ratio = {1, 1}};

START_TEST(bad_samples)
{
    const struct blob file = make_photo(90, 60, 6, 2);
    struct fake fake = fake_file(file);
    const struct transform_spec *const both[] = {&none, &some};
    for (int i = 0; i < 2; i++) {
        const struct transform_spec *spec = both[i];
        const char *number = i == 0 ? "sample number 0: " : "sample number 42: "; /* the size is the first one's */
        char part[100];
        fake.sample.size = file.size + 5;
        snprintf(part, sizeof(part), "%sends after %zu of %zu bytes", number, file.size, file.size + 5);
        refuse(&fake, spec, FEEDD_E_CORRUPT, part);
        fake.sample.size = limits.encoded_bytes + 1;
        snprintf(part, sizeof(part), "%s1000001 bytes; allowed: 1000000", number);
        refuse(&fake, spec, FEEDD_E_LIMIT, part);
        fake.sample.size = 0;
        refuse(&fake, spec, FEEDD_E_UNSUPPORTED, "empty");
        fake.sample.size = file.size;
        fake.sample.offset = 1;
        fake.sample.size--;
        refuse(&fake, spec, FEEDD_E_UNSUPPORTED, number);
        fake.sample.offset = 0;
        fake.sample.size = file.size;
        fake.status = FEEDD_E_IO;
        snprintf(part, sizeof(part), "%sno luck", number);
        refuse(&fake, spec, FEEDD_E_IO, part);
        fake.status = 0;
    }
    struct transform_spec other = none;
    other.height = 60;
    other.width = 90; /* as it is coded, but the photo stands */
    refuse(&fake, &other, FEEDD_E_UNSUPPORTED, "60 x 90");
    other.ignore_orientation = true;
    const struct sample_plan lying = must_plan(&fake, &other);
    free(must_fill(&lying, 0));

    const struct blob large = make_photo(1001, 1000, 0, 1);
    fake = fake_file(large);
    refuse(&fake, &some, FEEDD_E_LIMIT, "1001 x 1000");
    refuse(&fake, &none, FEEDD_E_LIMIT, "sample number 0: ");

    fake = fake_pixels(file.bytes, 2, 3, 4);
    struct transform_spec luma_of_four = none;
    luma_of_four.channels = 1;
    refuse(&fake, &luma_of_four, FEEDD_E_UNSUPPORTED, "have 4");
    free((void *)(uintptr_t)file.bytes);
    free((void *)(uintptr_t)large.bytes);
}
END_TEST

/* A descriptor that can't be read: the file system's fault, which may pass. */
static int unreadable_read(const struct reader *reader, uint64_t index, struct reader_sample *out,
                           struct feedd_error *err)
{
    (void)reader;
    (void)index;
    (void)err;
    *out = (struct reader_sample){.fd = open("/dev/null", O_WRONLY | O_CLOEXEC), .size = 10};
    return 0;
}

START_TEST(unreadable)
{
    const struct reader_ops ops = {.read = unreadable_read, .path = fake_path};
    struct fake fake = fake_file((struct blob){NULL, 0});
    fake.reader.ops = &ops;
    refuse(&fake, &some, FEEDD_E_IO, "sample number 42: reading: ");
}
END_TEST

/* Without a transform images have the size of the first one, as it is seen upright. */
START_TEST(first_size)
{
    for (int orientation = 0; orientation <= 8; orientation++)
        for (int ignore = 0; ignore < 2; ignore++) {
            const struct blob file = make_photo(90, 60, orientation, 1);
            const struct fake fake = fake_file(file);
            struct transform_spec spec = none;
            spec.ignore_orientation = ignore;
            const struct sample_plan plan = must_plan(&fake, &spec);
            const bool swaps = orientation >= 5 && !ignore;
            ck_assert_uint_eq(plan.width, swaps ? 60 : 90);
            ck_assert_uint_eq(plan.height, swaps ? 90 : 60);
            ck_assert_uint_eq(plan.channels, 3);
            free((void *)(uintptr_t)file.bytes);
        }
}
END_TEST

/* With normalize = cpu a cell holds what the formula of normalize.h, in double, makes of the pixels that a cell without
 * it holds; also of the black ones around an image, and of those that stand in for a bad sample. */
START_TEST(normalised)
{
    static const struct output_spec outputs[] = {
        {.dtype = FEEDD_F32, .mean = {0.485, 0.456, 0.406}, .std = {0.229, 0.224, 0.225}, .scale = 255},
        {.dtype = FEEDD_F32, .nchw = true, .mean = {0.5, -1, 2}, .std = {0.5, 3, 0.125}, .scale = 255},
        {.dtype = FEEDD_I8, .nchw = true, .mean = {0.5, 0.5, 0.5}, .std = {1.0 / 255, 1.0 / 128, 1}, .scale = 255},
        {.dtype = FEEDD_U8, .nchw = true},
    };
    const struct blob file = make_photo(93, 61, 6, 2);
    const struct fake fake = fake_file(file);
    const struct transform_spec spec = {
        .kind = TRANSFORM_RANDOM_CROP, .height = 70, .width = 75, .padding = {8, 8, 8, 8}, .flip = 0.5};
    const struct sample_plan plain = must_plan(&fake, &spec);
    const uint64_t pixels = 70 * 75;
    for (size_t i = 0; i < sizeof(outputs) / sizeof(outputs[0]); i++) {
        struct sample_plan plan = plain;
        plan.output = outputs[i];
        plan.output.mode = FEEDD_NORMALIZE_CPU;
        ck_assert_int_eq(sample_plan_init(&plan, BATCH, scratch, NULL), 0);
        ck_assert_uint_eq(plan.layout.fields[0].sample_bytes, pixels * 3 * dtype_bytes(outputs[i].dtype));
        for (uint64_t position = 0; position < 8; position++) {
            uint8_t *due = new_slot(&plain), *got = new_slot(&plan);
            const struct sample_place due_place = {.index = 42, .slot = due, .cell = 1};
            const struct sample_place place = {.index = 42, .slot = got, .cell = 1};
            if (position == 7) {
                ck_assert_int_eq(sample_zero(&plain, scratch, &due_place, NULL), 0);
                ck_assert_int_eq(sample_zero(&plan, scratch, &place, NULL), 0);
            } else {
                ck_assert_int_eq(fill(&plain, due, 1, position, NULL), 0);
                ck_assert_int_eq(fill(&plan, got, 1, position, NULL), 0);
            }
            const uint8_t *in = due + pixels * 3, *out = got + plan.layout.fields[0].sample_bytes;
            for (uint64_t p = 0; p < pixels; p++)
                for (uint32_t c = 0; c < 3; c++) {
                    const uint64_t at = outputs[i].nchw ? c * pixels + p : p * 3 + c;
                    const double x = in[p * 3 + c], scale = outputs[i].scale;
                    const double value = (x - outputs[i].mean[c] * scale) / (outputs[i].std[c] * scale);
                    if (outputs[i].dtype == FEEDD_F32)
                        ck_assert_double_le(fabs(((const float *)(const void *)out)[at] - value),
                                            1e-6 * fmax(1, fabs(value)));
                    else if (outputs[i].dtype == FEEDD_I8) /* not between two: single and double may differ */
                        ck_assert_double_le(fabs((int8_t)out[at] - fmin(fmax(value, -128), 127)), 0.5 + 1e-4);
                    else
                        ck_assert_uint_eq(out[at], in[p * 3 + c]);
                }
            for (uint64_t b = 0; b < plan.layout.fields[0].sample_bytes; b++) /* the other cells */
                ck_assert(got[b] == 0x5A && out[plan.layout.fields[0].sample_bytes + b] == 0x5A);
            ck_assert_mem_eq(got + plan.layout.fields[1].offset, due + plain.layout.fields[1].offset, 2 * 8);
            free(due);
            free(got);
        }
    }
    struct sample_plan bad = plain;
    struct feedd_error err;
    bad.output = outputs[0];
    bad.output.mode = FEEDD_NORMALIZE_DAEMON;
    bad.output.std[2] = 0;
    ck_assert_int_eq(sample_plan_init(&bad, BATCH, scratch, &err), FEEDD_E_ARGUMENT);
    ck_assert_str_eq(err.message, "output: std must be finite and above 0");
    free((void *)(uintptr_t)file.bytes);
}
END_TEST

int main(void)
{
    scratch = sample_scratch_new();
    Suite *suite = suite_create("sample");
    TCase *tcase = tcase_create("sample");
    tcase_add_test(tcase, photos);
    tcase_add_test(tcase, fast);
    tcase_add_test(tcase, memory);
    tcase_add_test(tcase, cells);
    tcase_add_test(tcase, bad_samples);
    tcase_add_test(tcase, unreadable);
    tcase_add_test(tcase, first_size);
    tcase_add_test(tcase, normalised);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    const int failures = srunner_ntests_failed(runner);
    srunner_free(runner);
    sample_scratch_free(scratch);
    sample_scratch_free(NULL);
    return failures != 0;
}
