/* resize.c - how fast images are scaled, by every implementation that this CPU has.
 *
 *   bench_resize [--runs N] [--image NAME] [--by NAME]
 *
 * RGB, one thread. N runs (5), of which the median counts, and the least in brackets; a run goes on for 50 ms at least.
 * --image and --by are for profilers: that line of the table alone.
 * Tables of weights are kept from image to image, but for the crops, which all differ. resize_peers.py does the same
 * with Pillow and OpenCV. Figures are of this machine: quote the ratios. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "resize_internal.h"

#define RUNS_MAX    100
#define RUN_SECONDS 0.05
#define CHANNELS    3
#define SIDE        224 /* of what is made */
#define CROPS       16

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

/* What is scaled in turn: parts of an image. */
struct job {
    const char *name;
    uint32_t width, height; /* of the image */
    uint32_t count;
    struct rect parts[CROPS];
};

/* As random resized crops have them, but always the same ones; resize_peers.py has the formulas, too. */
static void crops_init(struct job *job)
{
    job->count = CROPS;
    for (uint32_t i = 0; i < CROPS; i++) {
        const uint32_t width = 100 + i * 137 % 380, height = 80 + i * 89 % 280;
        job->parts[i] =
            (struct rect){i * 53 % (job->width - width + 1), i * 71 % (job->height - height + 1), width, height};
    }
}

static void scale_all(struct resizer *resizer, const struct job *job, const uint8_t *in, uint8_t *out)
{
    const size_t stride = (size_t)job->width * CHANNELS;
    for (uint32_t i = 0; i < job->count; i++) {
        const struct rect part = job->parts[i];
        const struct resize_spec spec = {.width = part.width,
                                         .height = part.height,
                                         .box = {0, 0, part.width, part.height},
                                         .scaled_width = SIDE,
                                         .scaled_height = SIDE,
                                         .window = {0, 0, SIDE, SIDE},
                                         .channels = CHANNELS};
        struct feedd_error err;
        if (resizer_apply(resizer, &spec, in + part.y * stride + (size_t)part.x * CHANNELS,
                          (struct rect){0, 0, part.width, part.height}, stride, out, &err) != 0) {
            fprintf(stderr, "bench_resize: %s\n", err.message);
            exit(1);
        }
    }
}

/* @return seconds for all parts of the job, each run's in `seconds`, sorted */
static void measure(struct resizer *resizer, const struct job *job, const uint8_t *in, uint8_t *out, double *seconds,
                    int runs)
{
    scale_all(resizer, job, in, out);
    for (int i = 0; i < runs; i++) {
        const double start = seconds_now();
        double now = start;
        unsigned times = 0;
        for (; now - start < RUN_SECONDS; now = seconds_now()) {
            for (int n = 0; n < 10; n++)
                scale_all(resizer, job, in, out);
            times += 10;
        }
        seconds[i] = (now - start) / times;
    }
    qsort(seconds, (size_t)runs, sizeof(*seconds), compare);
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"runs", required_argument, NULL, 'n'},
                                            {"image", required_argument, NULL, 'i'},
                                            {"by", required_argument, NULL, 'b'},
                                            {NULL, 0, NULL, 0}};
    struct job jobs[] = {{"500x375", 500, 375, 1, {{0, 0, 500, 375}}},
                         {"crops of it", 500, 375, 0, {{0, 0, 0, 0}}},
                         {"256x256", 256, 256, 1, {{0, 0, 256, 256}}},
                         {"100x100", 100, 100, 1, {{0, 0, 100, 100}}}};
    const char *image = NULL, *by = NULL; /* NULL: all */
    int runs = 5, option;
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (option == 'n')
            runs = atoi(optarg);
        else if (option == 'i')
            image = optarg;
        else if (option == 'b')
            by = optarg;
        else
            return 2;
    }
    if (optind != argc || runs < 1 || runs > RUNS_MAX) {
        fprintf(stderr, "bench_resize: takes no arguments, only options; --runs 1 to 100\n");
        return 2;
    }
    crops_init(&jobs[1]);

    uint8_t *in = malloc(500 * 375 * CHANNELS), *out = malloc(SIDE * SIDE * CHANNELS);
    struct resizer *resizer = NULL;
    struct feedd_error err;
    if (in == NULL || out == NULL || resizer_new(&resizer, &err) != 0) {
        fprintf(stderr, "bench_resize: not enough memory\n");
        return 1;
    }
    for (uint32_t i = 0; i < 500 * 375 * CHANNELS; i++)
        in[i] = (uint8_t)(i * 2654435761u >> 13);
    printf("RGB to %d x %d, one thread, median (least) of %d runs\n", SIDE, SIDE, runs);
    printf("%-12s %-12s %18s %14s %14s\n", "image", "by", "us/image", "ns/output px", "ns/input px");
    for (size_t j = 0; j < sizeof(jobs) / sizeof(jobs[0]); j++) {
        double in_pixels = 0, seconds[RUNS_MAX];
        if (image != NULL && strcmp(image, jobs[j].name) != 0)
            continue;
        for (uint32_t i = 0; i < jobs[j].count; i++)
            in_pixels += (double)jobs[j].parts[i].width * jobs[j].parts[i].height;
        for (unsigned k = 0; resize_kernels_at(k) != NULL; k++) {
            if (by != NULL && strcmp(by, resize_kernels_at(k)->name) != 0)
                continue;
            resizer_use(resizer, resize_kernels_at(k));
            measure(resizer, &jobs[j], in, out, seconds, runs);
            const double median = runs % 2 ? seconds[runs / 2] : (seconds[runs / 2 - 1] + seconds[runs / 2]) / 2;
            printf("%-12s %-12s %9.1f (%6.1f) %14.2f %14.2f\n", jobs[j].name, resize_kernels_at(k)->name,
                   median * 1e6 / jobs[j].count, seconds[0] * 1e6 / jobs[j].count,
                   median * 1e9 / jobs[j].count / (SIDE * SIDE), median * 1e9 / in_pixels);
        }
    }
    resizer_free(resizer);
    free(in);
    free(out);
    return 0;
}
