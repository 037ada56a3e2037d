/* decode.c - how fast JPEG files are decoded, against a bare loop of libjpeg-turbo over the same files; and what
 * DECODE_FAST costs in accuracy.
 *
 *   bench_decode [--runs N] FILE...
 *
 * The files are read into memory first. One thread; N runs (5), of which the median counts, taken in turn, so that what
 * disturbs the machine disturbs all of them. Crops are random ones as torchvision's RandomResizedCrop chooses them (8
 * to 100 % of the area, ratio 3/4 to 4/3), but always the same; "shrunk" decodes them at the least size that is no
 * smaller than 224 x 224. ns/pixel counts the pixels of the whole image in every line: what a sample costs. Figures are
 * of this machine: quote the ratios. */
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <jpeglib.h>

#include "decoder.h"
#include "resize.h"

#define RUNS_MAX   100
#define CHANNELS   3
#define SIDE       224
#define PIXELS_MAX 100000000

struct photo {
    uint8_t *bytes;
    size_t size;
    uint32_t width, height;
    struct rect crop;
    uint32_t shrink; /* that the crop allows */
};

static struct photo *photos;
static int photo_count;
static uint8_t *pixels; /* room for any of them */
static struct decoder *decoder;

_Noreturn static void fail(const char *what, const char *why)
{
    fprintf(stderr, "bench_decode: %s: %s\n", what, why);
    exit(1);
}

/* Of this process' own time, which neighbours on the machine disturb less. */
static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof(*values), compare);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

/* As torchvision's RandomResizedCrop, but for its fallback: ten tries, then all of the image. */
static struct rect choose_crop(uint32_t width, uint32_t height)
{
    for (int i = 0; i < 10; i++) {
        const double area = width * (double)height * (0.08 + 0.92 * drand48());
        const double ratio = exp(log(3.0 / 4) + drand48() * (log(4.0 / 3) - log(3.0 / 4)));
        struct rect crop = {.width = (uint32_t)lround(sqrt(area * ratio)),
                            .height = (uint32_t)lround(sqrt(area / ratio))};
        if (crop.width == 0 || crop.height == 0 || crop.width > width || crop.height > height)
            continue;
        crop.x = (uint32_t)(drand48() * (width - crop.width + 1));
        crop.y = (uint32_t)(drand48() * (height - crop.height + 1));
        return crop;
    }
    return (struct rect){0, 0, width, height};
}

static void load(const char *path, struct photo *photo)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL || fseek(file, 0, SEEK_END) != 0)
        fail(path, "can't be opened");
    photo->size = (size_t)ftell(file);
    photo->bytes = malloc(photo->size);
    rewind(file);
    if (photo->bytes == NULL || fread(photo->bytes, 1, photo->size, file) != photo->size)
        fail(path, "can't be read");
    fclose(file);
    struct feedd_error err;
    struct image_info info;
    if (decoder_jpeg.probe(decoder, (struct blob){photo->bytes, photo->size}, &info, &err) != 0)
        fail(path, err.message);
    photo->width = info.width;
    photo->height = info.height;
    photo->crop = choose_crop(info.width, info.height);
    photo->shrink = 1;
    while (photo->shrink < decoder_jpeg.max_shrink && photo->crop.width / (2 * photo->shrink) >= SIDE &&
           photo->crop.height / (2 * photo->shrink) >= SIDE)
        photo->shrink *= 2;
}

/* The library alone, as its own example has it. */
static void decode_bare(const struct photo *photo, J_DCT_METHOD method, boolean fancy)
{
    struct jpeg_decompress_struct cinfo;
    struct jpeg_error_mgr errors;
    cinfo.err = jpeg_std_error(&errors);
    jpeg_create_decompress(&cinfo);
    jpeg_mem_src(&cinfo, photo->bytes, photo->size);
    jpeg_read_header(&cinfo, TRUE);
    cinfo.out_color_space = JCS_RGB;
    cinfo.dct_method = method;
    cinfo.do_fancy_upsampling = fancy;
    jpeg_start_decompress(&cinfo);
    const size_t stride = (size_t)cinfo.output_width * CHANNELS;
    while (cinfo.output_scanline < cinfo.output_height) {
        uint8_t *row = pixels + cinfo.output_scanline * stride;
        JSAMPROW rows[2] = {row,
                            row + stride}; /* plain upsampling gives two at a time; there is room behind the last */
        jpeg_read_scanlines(&cinfo, rows, 2);
    }
    jpeg_finish_decompress(&cinfo);
    jpeg_destroy_decompress(&cinfo);
}

static void decode(const struct photo *photo, const struct decode_spec *spec, uint8_t *out)
{
    struct feedd_error err;
    const size_t stride = (size_t)decode_region(spec).width * spec->channels;
    if (decoder_jpeg.decode(decoder, (struct blob){photo->bytes, photo->size}, spec, out, stride, &err) != 0)
        fail("a photo", err.message);
}

static struct decode_spec exact(struct rect crop, uint32_t channels)
{
    return (struct decode_spec){crop, channels, DECODE_EXACT, 1, false};
}

enum { BARE, BARE_PLAIN, PROBE, WHOLE, LUMA, CROP, SHRUNK, LINES };
static const char *const names[LINES] = {"libjpeg, whole",
                                         "libjpeg, whole, IFAST and plain upsampling",
                                         "probe",
                                         "exact, whole",
                                         "exact, whole, luma",
                                         "exact, crop",
                                         "fast, crop, shrunk"};

static void run(int line, const struct photo *photo)
{
    const struct rect all = {0, 0, photo->width, photo->height};
    struct decode_spec spec = exact(line == WHOLE || line == LUMA ? all : photo->crop, line == LUMA ? 1 : CHANNELS);
    struct image_info info;
    switch (line) {
    case BARE:
        decode_bare(photo, JDCT_ISLOW, TRUE);
        return;
    case BARE_PLAIN:
        decode_bare(photo, JDCT_IFAST, FALSE);
        return;
    case PROBE:
        decoder_jpeg.probe(decoder, (struct blob){photo->bytes, photo->size}, &info, NULL);
        return;
    case SHRUNK:
        spec.mode = DECODE_FAST;
        spec.shrink = photo->shrink;
        break;
    default:
        break;
    }
    decode(photo, &spec, pixels);
}

static void measure(int runs)
{
    double seconds[LINES][RUNS_MAX], total = 0;
    for (int i = 0; i < photo_count; i++)
        total += (double)photos[i].width * photos[i].height;
    for (int r = 0; r < runs; r++)
        for (int line = 0; line < LINES; line++) {
            const double begin = seconds_now();
            for (int i = 0; i < photo_count; i++)
                run(line, &photos[i]);
            seconds[line][r] = seconds_now() - begin;
        }
    const double bare = median(seconds[BARE], runs);
    printf("%d files, %.0f pixels each on average, one thread, median of %d runs\n", photo_count, total / photo_count,
           runs);
    printf("%-44s %8s %9s %7s\n", "", "ns/pixel", "images/s", "/bare");
    for (int line = 0; line < LINES; line++) {
        const double typical = median(seconds[line], runs);
        printf("%-44s %8.2f %9.0f %7.3f\n", names[line], typical * 1e9 / total, photo_count / typical, typical / bare);
    }
}

/* All of a photo in 1/shrink of its size, both ways. @return the number of values */
static size_t both_ways(struct resizer *resizer, const struct photo *photo, uint32_t shrink, uint8_t *due, uint8_t *got)
{
    const struct rect all = {0, 0, photo->width, photo->height};
    const struct rect small = {0, 0, photo->width / shrink, photo->height / shrink};
    struct decode_spec spec = exact(all, CHANNELS);
    struct resize_spec resize = {.width = all.width,
                                 .height = all.height,
                                 .box = {0, 0, all.width, all.height},
                                 .scaled_width = small.width,
                                 .scaled_height = small.height,
                                 .window = small,
                                 .channels = CHANNELS};
    decode(photo, &spec, pixels);
    int status = resizer_apply(resizer, &resize, pixels, all, (size_t)all.width * CHANNELS, due, NULL);
    spec.mode = DECODE_FAST;
    spec.shrink = shrink;
    const struct rect region = decode_region(&spec);
    resize.width = region.width;
    resize.height = region.height;
    resize.box.width = (double)all.width / shrink;
    resize.box.height = (double)all.height / shrink;
    decode(photo, &spec, pixels);
    if (status == 0)
        status = resizer_apply(resizer, &resize, pixels, region, (size_t)region.width * CHANNELS, got, NULL);
    if (status != 0)
        fail("resizing", "no memory");
    return (size_t)small.width * small.height * CHANNELS;
}

static void compare_accuracy(void)
{
    struct resizer *resizer;
    uint8_t *due = malloc(PIXELS_MAX), *got = malloc(PIXELS_MAX);
    if (due == NULL || got == NULL || resizer_new(&resizer, NULL) != 0)
        fail("resizing", "no memory");
    printf("\nfast against exact, in levels of 255, when both are scaled to 1/n\n%-5s %8s %8s %8s\n", "", "mean", "max",
           "PSNR/dB");
    for (uint32_t shrink = 2; shrink <= decoder_jpeg.max_shrink; shrink *= 2) {
        double sum = 0, squares = 0, values = 0;
        int most = 0;
        for (int i = 0; i < photo_count; i++) {
            if (photos[i].width < shrink || photos[i].height < shrink)
                continue;
            const size_t count = both_ways(resizer, &photos[i], shrink, due, got);
            for (size_t k = 0; k < count; k++) {
                const int difference = abs(due[k] - got[k]);
                most = difference > most ? difference : most;
                sum += difference;
                squares += (double)difference * difference;
            }
            values += (double)count;
        }
        printf("1/%-3u %8.2f %8d %8.1f\n", shrink, sum / values, most, 10 * log10(255 * 255 / (squares / values)));
    }
    resizer_free(resizer);
    free(due);
    free(got);
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"runs", required_argument, NULL, 'n'}, {NULL, 0, NULL, 0}};
    int runs = 5;
    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        runs = option == 'n' ? atoi(optarg) : 0;
        if (runs < 1 || runs > RUNS_MAX)
            optind = argc;
    }
    photo_count = argc - optind;
    if (photo_count < 1) {
        fprintf(stderr, "usage: bench_decode [--runs 1..%d] FILE...\n", RUNS_MAX);
        return 2;
    }
    photos = calloc((size_t)photo_count, sizeof(*photos));
    if (photos == NULL || decoder_jpeg.decoder_new(&(struct decoder_limits){PIXELS_MAX}, &decoder, NULL) != 0)
        fail("photos", "no memory");
    size_t room = 0;
    for (int i = 0; i < photo_count; i++) {
        load(argv[optind + i], &photos[i]);
        const size_t bytes = (size_t)photos[i].width * (photos[i].height + 1) * CHANNELS;
        room = bytes > room ? bytes : room;
    }
    pixels = malloc(room);
    if (pixels == NULL)
        fail("pixels", "no memory");
    measure(runs);
    compare_accuracy();
    for (int i = 0; i < photo_count; i++)
        free(photos[i].bytes);
    free(photos);
    free(pixels);
    decoder_jpeg.decoder_free(decoder);
    return 0;
}
