/* normalize.c - how fast the host kernel makes batches, for every dtype and layout.
 *
 *   bench_normalize [--batch-size B] [--size PIXELS] [--channels C] [--mirrored] [--runs N]
 *
 * Defaults: 256 images of 224 x 224 x 3, not mirrored, 7 runs, of which the median counts. One thread. Beside each,
 * alternating with it in the same run: memcpy of as many bytes (what it reads and writes together is what the kernel
 * reads and writes together), and the plain C kernel. Figures are of this machine: quote the ratios. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "normalize.h"

#define RUNS_MAX 100

/* Of this process' own time, which neighbours on the machine disturb less. */
static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Aligned as slots are. */
static void *allocate(size_t bytes)
{
    return aligned_alloc(256, (bytes + 255) / 256 * 256);
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

static void measure(const struct normalize_params *params, const uint8_t *in, const struct normalize_window *windows,
                    void *out, uint8_t *copy_from, uint8_t *copy_to, int runs)
{
    static const char *const dtypes[] = {"", "u8", "i8", "f16", "bf16", "f32"};
    const size_t values = (size_t)params->batch * params->in_height * params->in_width * params->channels;
    const size_t bytes = values + normalize_bytes(params);
    double host[RUNS_MAX], scalar[RUNS_MAX], copy[RUNS_MAX], ratios[RUNS_MAX];
    for (int i = 0; i < runs; i++) {
        double t0 = seconds_now();
        memcpy(copy_to, copy_from, bytes / 2);
        double t1 = seconds_now();
        normalize_host(params, in, windows, out);
        double t2 = seconds_now();
        normalize_scalar(params, in, windows, out);
        double t3 = seconds_now();
        __asm__ volatile("" : : "r"(copy_to) : "memory"); /* what nobody reads might not be copied */
        copy[i] = t1 - t0;
        host[i] = t2 - t1;
        scalar[i] = t3 - t2;
        ratios[i] = copy[i] / host[i];
    }
    double typical = median(host, runs), plain = median(scalar, runs);
    printf("%-5s %-5s %10.0f %8.3f %7.1f %8.1f %8.2f %8.1f %8.1f\n", dtypes[params->dtype],
           params->layout == NORMALIZE_NCHW ? "NCHW" : "NHWC", typical * 1e9 / params->batch,
           typical * 1e9 / (double)values, (double)bytes / typical / 1e9, (double)bytes / median(copy, runs) / 1e9,
           median(ratios, runs), (double)bytes / plain / 1e9, plain / typical);
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"batch-size", required_argument, NULL, 'b'}, {"size", required_argument, NULL, 's'},
        {"channels", required_argument, NULL, 'c'},   {"mirrored", no_argument, NULL, 'm'},
        {"runs", required_argument, NULL, 'n'},       {NULL, 0, NULL, 0}};
    struct normalize_params params = {.batch = 256,
                                      .in_height = 224,
                                      .in_width = 224,
                                      .channels = 3,
                                      .dtype = NORMALIZE_F32, /* the largest; each in turn below */
                                      .layout = NORMALIZE_NCHW,
                                      .mean = {0.485, 0.456, 0.406, 0.5},
                                      .std = {0.229, 0.224, 0.225, 0.25},
                                      .scale = 255};
    int runs = 7, mirrored = 0, option;
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (option == 'b')
            params.batch = (uint32_t)atoi(optarg);
        else if (option == 's')
            params.in_height = params.in_width = (uint32_t)atoi(optarg);
        else if (option == 'c')
            params.channels = (uint32_t)atoi(optarg);
        else if (option == 'm')
            mirrored = 1;
        else if (option == 'n')
            runs = atoi(optarg);
        else
            return 2;
    }
    params.out_height = params.in_height;
    params.out_width = params.in_width;
    const char *wrong = runs < 1 || runs > RUNS_MAX ? "runs must be 1 to 100" : normalize_check(&params);
    if (optind != argc || wrong != NULL) {
        fprintf(stderr, "bench_normalize: %s\n", wrong != NULL ? wrong : "takes no arguments, only options");
        return 2;
    }

    const size_t out_bytes = normalize_bytes(&params), in_bytes = out_bytes / sizeof(float);
    const size_t copy_bytes = (in_bytes + out_bytes) / 2;
    uint8_t *in = allocate(in_bytes), *out = allocate(out_bytes);
    uint8_t *from = allocate(copy_bytes), *to = allocate(copy_bytes);
    struct normalize_window *windows = calloc(params.batch, sizeof(*windows));
    if (in == NULL || out == NULL || from == NULL || to == NULL || windows == NULL) {
        fprintf(stderr, "bench_normalize: %zu bytes of memory are not to be had\n",
                in_bytes + out_bytes + 2 * copy_bytes);
        return 1;
    }
    for (size_t i = 0; i < in_bytes; i++)
        in[i] = (uint8_t)(i * 2654435761u >> 13);
    memset(out, 1, out_bytes); /* pages are made here and not while it is measured */
    memset(from, 1, copy_bytes);
    memset(to, 1, copy_bytes);
    for (uint32_t n = 0; n < params.batch; n++)
        windows[n].flip = (uint32_t)mirrored;

    printf("%u x %u x %u x %u%s, %s, one thread, median of %d runs; GB/s count bytes read and written\n", params.batch,
           params.in_height, params.in_width, params.channels, mirrored ? ", mirrored" : "", normalize_host_name(),
           runs);
    printf("dtype layout ns/sample ns/value    GB/s   memcpy  /memcpy   scalar  /scalar\n");
    for (int dtype = NORMALIZE_F32; dtype >= NORMALIZE_U8; dtype--) {
        for (int layout = NORMALIZE_NCHW; layout >= NORMALIZE_NHWC; layout--) {
            params.dtype = dtype;
            params.layout = layout;
            measure(&params, in, windows, out, from, to, runs);
        }
    }
    free(in);
    free(out);
    free(from);
    free(to);
    free(windows);
    return 0;
}
