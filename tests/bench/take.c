/* take.c - how fast one client can take batches when it does nothing with them.
 *
 *   bench_take STREAM-or-DATASET [--batch-size B] [--seconds S] [--runs N]
 *
 * Takes and releases batches of an endless shuffled stream for S seconds (default 2), N times (default 5), and prints
 * each run and the median. Beside it, in the same process and the same seconds: a baseline that copies as many bytes
 * in the same pattern (random samples into consecutive cells of 64 MiB of slots) on one thread without daemon, socket
 * or order. The daemon is found as feedctl finds it. Figures are of this machine: quote the ratio. */
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "feedd.h"

#define RUNS_MAX 100

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static double cpu_seconds(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
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

/* Takes and releases for some seconds. @return samples a second, or -1 after saying why not */
static double take(struct feedd_stream *stream, double seconds, struct feedd_error *err)
{
    uint64_t samples = 0;
    double began = seconds_now(), spent = 0;
    while (spent < seconds) {
        for (int i = 0; i < 64; i++) {
            const struct feedd_batch *batch;
            struct feedd_view view;
            if (feedd_next(stream, 10000, &batch, err) != 0)
                return -1;
            feedd_batch_view(batch, 0, &view);
            samples += view.shape[0];
            if (feedd_release(batch, NULL, err) != 0)
                return -1;
        }
        spent = seconds_now() - began;
    }
    return (double)samples / spent;
}

/* The same copies without a daemon. @return samples a second */
static double copy_baseline(uint64_t sample_count, uint64_t sample_bytes, double seconds)
{
    uint64_t cells = (64ull << 20) / sample_bytes + 1;
    uint8_t *from = malloc(sample_count * sample_bytes), *to = malloc(cells * sample_bytes);
    if (from == NULL || to == NULL) {
        free(from);
        free(to);
        return -1;
    }
    memset(from, 1, sample_count * sample_bytes);
    memset(to, 1, cells * sample_bytes);
    uint64_t samples = 0, random = 88172645463325252ull;
    double began = seconds_now(), spent = 0;
    while (spent < seconds) {
        for (int i = 0; i < 4096; i++, samples++) {
            random ^= random << 13, random ^= random >> 7, random ^= random << 17; /* xorshift64 */
            memcpy(to + samples % cells * sample_bytes, from + random % sample_count * sample_bytes, sample_bytes);
        }
        spent = seconds_now() - began;
    }
    free(from);
    free(to);
    return (double)samples / spent;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"batch-size", required_argument, NULL, 'b'},
                                            {"seconds", required_argument, NULL, 's'},
                                            {"runs", required_argument, NULL, 'n'},
                                            {NULL, 0, NULL, 0}};
    struct feedd_open_options open = FEEDD_OPEN_OPTIONS_INIT;
    double seconds = 2;
    int runs = 5, option;
    open.batch_size = 64;
    open.order = FEEDD_ORDER_SHUFFLE;
    open.has_epochs = 1; /* 0: endless */
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (option == 'b')
            open.batch_size = (uint32_t)atoi(optarg);
        else if (option == 's')
            seconds = atof(optarg);
        else if (option == 'n')
            runs = atoi(optarg);
        else
            return 2;
    }
    if (optind + 1 != argc || runs < 1 || runs > RUNS_MAX || seconds <= 0) {
        fprintf(stderr, "usage: bench_take STREAM-or-DATASET [--batch-size B] [--seconds S] [--runs N]\n");
        return 2;
    }
    struct feedd_error err;
    struct feedd_client *client;
    struct feedd_stream *stream;
    if (feedd_connect(NULL, &client, &err) != 0 || feedd_open(client, argv[optind], &open, &stream, &err) != 0) {
        fprintf(stderr, "bench_take: %s\n", err.message);
        return 1;
    }
    const struct feedd_schema *schema = feedd_stream_schema(stream);
    uint64_t sample_bytes = schema->fields[0].shape[0] * schema->fields[0].shape[1] * schema->fields[0].shape[2];
    double rates[RUNS_MAX], copies[RUNS_MAX], ratios[RUNS_MAX];
    printf("%s: batch %u, %" PRIu64 " bytes a sample, ring of %u\n", schema->source, schema->batch_size, sample_bytes,
           schema->depth);
    for (int i = 0; i < runs; i++) {
        copies[i] = copy_baseline(schema->sample_count, sample_bytes, seconds / 2);
        double cpu = cpu_seconds();
        rates[i] = take(stream, seconds, &err);
        cpu = (cpu_seconds() - cpu) / seconds;
        if (rates[i] < 0) {
            fprintf(stderr, "bench_take: %s\n", err.message);
            return 1;
        }
        ratios[i] = rates[i] / copies[i];
        printf("run %d: %.0f samples/s, %.0f batches/s, client at %.0f %% CPU; plain copies on one thread %.0f/s; "
               "ratio %.2f\n",
               i + 1, rates[i], rates[i] / schema->batch_size, cpu * 100, copies[i], ratios[i]);
    }
    feedd_client_close(client);
    printf("median of %d: %.0f samples/s, ratio to plain copies %.2f\n", runs, median(rates, runs),
           median(ratios, runs));
    return 0;
}
