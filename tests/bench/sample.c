/* sample.c - how fast a worker makes samples of a folder of photos: read, decoded, random resized crop, flip, into
 * slots.
 *
 *   bench_sample [--size PIXELS] [--samples N] [--runs N] [--only NAME] ROOT
 *
 * Defaults: 224 pixels, 1000 samples a run, 5 runs, of which the median counts. The rows of the table, in turn in every
 * run, so that what disturbs the machine disturbs all of them:
 *   exact, fast       sample_fill() of the same samples on one thread; files from the page cache
 *   bare exact, fast  libjpeg-turbo alone, as bare as it gets: the same crops of files that lie in memory, decoded by
 *                     skip and crop functions into one row buffer, nothing scaled, nothing kept
 *   2 x exact, fast   the first row on two threads, each with half of the samples
 * Figures are of this machine: quote the ratios. Those of one thread are of CPU time, which neighbours on the machine
 * disturb less; what two threads gain is of the time that passes, on two cores that are otherwise idle. --only exact
 * (or another row) runs that row alone, for a profiler. The crops are those of seed 1, epoch 0; sample_peers.py makes
 * the same ones. */
#include <errno.h>
#include <getopt.h>
#include <pthread.h>
#include <stdio.h> /* jpeglib.h needs FILE and size_t from its includer */
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <jpeglib.h>

#include "clock.h"
#include "orient.h"
#include "sample.h"

#define SEED     1
#define BATCH    64
#define RUNS_MAX 100

static struct {
    struct reader *reader;
    struct sample_plan plans[2]; /* exact, fast */
    uint32_t samples;
    struct blob *files;         /* [reader->sample_count], in memory for the bare rows */
    struct image_info *headers; /* likewise */
} bench;

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "bench_sample: %s: %s\n", what, why);
    exit(1);
}

/* ---- what feedd does ---- */

struct worker {
    pthread_t thread;
    int fast;
    uint32_t first, end; /* positions */
    struct sample_scratch *scratch;
    uint8_t *slot;
};

static void *fill(void *arg)
{
    struct worker *worker = arg;
    struct feedd_error err;
    for (uint32_t i = worker->first; i < worker->end; i++) {
        const struct sample_place place = {
            .index = i % bench.reader->sample_count, .position = i, .slot = worker->slot, .cell = i % BATCH};
        if (sample_fill(&bench.plans[worker->fast], worker->scratch, &place, &err) != 0)
            fail("sample", err.message);
    }
    return NULL;
}

static void run_workers(uint32_t count, int fast)
{
    static struct worker workers[2]; /* scratch and slots stay warm from run to run, as a daemon's are */
    for (uint32_t i = 0; i < count; i++) {
        struct worker *worker = &workers[i];
        if (worker->scratch == NULL) {
            worker->scratch = sample_scratch_new();
            worker->slot = malloc(bench.plans[0].layout.slot_bytes);
            if (worker->scratch == NULL || worker->slot == NULL)
                fail("worker", strerror(ENOMEM));
            memset(worker->slot, 1, bench.plans[0].layout.slot_bytes);
        }
        worker->fast = fast;
        worker->first = bench.samples * i / count;
        worker->end = bench.samples * (i + 1) / count;
    }
    for (uint32_t i = 1; i < count; i++)
        if (pthread_create(&workers[i].thread, NULL, fill, &workers[i]) != 0)
            fail("thread", strerror(errno));
    fill(&workers[0]);
    for (uint32_t i = 1; i < count; i++)
        pthread_join(workers[i].thread, NULL);
}

/* ---- libjpeg-turbo alone ---- */

/* The crop of a sample as it lies in the coded image, and the geometry. */
static struct rect crop_of(uint32_t position, const struct image_info *header, struct geometry *g)
{
    const struct sample_plan *plan = &bench.plans[0];
    const struct rect all = orient_rect(header->orientation, header->width, header->height,
                                        (struct rect){0, 0, header->width, header->height});
    const struct image_info upright = {.width = all.width, .height = all.height, .orientation = 1};
    struct feedd_error err;
    if (geometry_choose(&plan->transform, plan->height, plan->width, SEED, 0, position, upright, g, &err) != 0)
        fail("geometry", err.message);
    return orient_rect(orient_inverse(header->orientation), all.width, all.height, g->crop);
}

/* As sample.c chooses it. */
static uint32_t shrink_of(const struct geometry *g, int fast)
{
    uint32_t shrink = 1;
    while (fast && shrink < 8 && g->crop.width / (2 * shrink) >= g->scaled_width &&
           g->crop.height / (2 * shrink) >= g->scaled_height)
        shrink *= 2;
    return shrink;
}

static void decode_bare(struct blob file, struct rect crop, uint32_t shrink)
{
    static uint8_t row[3 * JPEG_MAX_DIMENSION];
    struct jpeg_decompress_struct cinfo;
    struct jpeg_error_mgr errors;
    cinfo.err = jpeg_std_error(&errors);
    jpeg_create_decompress(&cinfo);
    jpeg_mem_src(&cinfo, file.bytes, file.size);
    jpeg_read_header(&cinfo, TRUE);
    cinfo.out_color_space = JCS_RGB;
    cinfo.scale_num = 1;
    cinfo.scale_denom = shrink;
    jpeg_start_decompress(&cinfo);
    const struct decode_spec spec = {.crop = crop, .shrink = shrink};
    const struct rect region = decode_region(&spec);
    JDIMENSION x = region.x, width = region.width;
    jpeg_crop_scanline(&cinfo, &x, &width);
    jpeg_skip_scanlines(&cinfo, region.y);
    for (uint32_t y = 0; y < region.height; y++)
        jpeg_read_scanlines(&cinfo, &(JSAMPROW){row}, 1);
    jpeg_destroy_decompress(&cinfo);
}

static void run_bare(int fast)
{
    for (uint32_t i = 0; i < bench.samples; i++) {
        const uint64_t index = i % bench.reader->sample_count;
        struct geometry g;
        const struct rect crop = crop_of(i, &bench.headers[index], &g);
        decode_bare(bench.files[index], crop, shrink_of(&g, fast));
    }
}

static void load_files(void)
{
    const struct decoder_limits limits = {.pixels = bench.plans[0].limits.pixels};
    struct decoder *decoder;
    struct feedd_error err;
    if (decoder_jpeg.decoder_new(&limits, &decoder, &err) != 0)
        fail("decoder", err.message);
    bench.files = calloc(bench.reader->sample_count, sizeof(*bench.files));
    bench.headers = calloc(bench.reader->sample_count, sizeof(*bench.headers));
    if (bench.files == NULL || bench.headers == NULL)
        fail("files", strerror(ENOMEM));
    for (uint64_t i = 0; i < bench.reader->sample_count; i++) {
        struct reader_sample sample;
        if (bench.reader->ops->read(bench.reader, i, &sample, &err) != 0)
            fail("file", err.message);
        uint8_t *bytes = malloc(sample.size);
        if (bytes == NULL || pread(sample.fd, bytes, sample.size, 0) != (ssize_t)sample.size)
            fail("file", strerror(errno));
        close(sample.fd);
        bench.files[i] = (struct blob){bytes, sample.size};
        if (decoder_jpeg.probe(decoder, bench.files[i], &bench.headers[i], &err) != 0)
            fail("file", err.message);
    }
    decoder_jpeg.decoder_free(decoder);
}

/* ---- the table ---- */

static const struct row {
    const char *name;
    uint32_t workers; /* 0: bare */
    int fast;
} rows[] = {{"exact", 1, 0},     {"bare exact", 0, 0}, {"fast", 1, 1},
            {"bare fast", 0, 1}, {"2 x exact", 2, 0},  {"2 x fast", 2, 1}};

#define ROWS (sizeof(rows) / sizeof(rows[0]))

struct timing {
    double wall_s, cpu_s; /* of the process: all threads */
};

static double cpu_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static struct timing run(const struct row *row)
{
    const double cpu = cpu_now();
    const uint64_t wall_ns = clock_ns();
    if (row->workers > 0)
        run_workers(row->workers, row->fast);
    else
        run_bare(row->fast);
    return (struct timing){(double)(clock_ns() - wall_ns) / 1e9, cpu_now() - cpu};
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

static void open_dataset(char *root, uint32_t side)
{
    const struct reader_config config = {.name = root, .ops = &reader_folder, .root = root};
    const struct reader_limits limits = {.memory_max = UINT64_MAX / 2};
    struct sample_scratch *scratch = sample_scratch_new();
    struct feedd_error err;
    if (scratch == NULL || reader_folder.open(&config, &limits, &bench.reader, &err) != 0)
        fail(root, scratch == NULL ? strerror(ENOMEM) : err.message);
    for (int fast = 0; fast < 2; fast++) {
        bench.plans[fast] = (struct sample_plan){.reader = bench.reader,
                                                 .transform = {.kind = TRANSFORM_RANDOM_RESIZED_CROP,
                                                               .height = side,
                                                               .width = side,
                                                               .scale = {0.08, 1},
                                                               .ratio = {3.0 / 4, 4.0 / 3},
                                                               .flip = 0.5,
                                                               .fast = fast},
                                                 .limits = {.pixels = 100000000, .encoded_bytes = 256 << 20},
                                                 .seed = SEED};
        const char *problem = transform_check(&bench.plans[fast].transform);
        if (problem != NULL)
            fail("size", problem);
        if (sample_plan_init(&bench.plans[fast], BATCH, scratch, &err) != 0)
            fail(root, err.message);
    }
    sample_scratch_free(scratch);
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"size", required_argument, NULL, 's'},
                                            {"samples", required_argument, NULL, 'n'},
                                            {"runs", required_argument, NULL, 'r'},
                                            {"only", required_argument, NULL, 'o'},
                                            {NULL, 0, NULL, 0}};
    uint32_t side = 224;
    int runs = 5, option;
    const char *only = NULL;
    bench.samples = 1000;
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (option == 's')
            side = (uint32_t)atoi(optarg);
        else if (option == 'n')
            bench.samples = (uint32_t)atoi(optarg);
        else if (option == 'r')
            runs = atoi(optarg);
        else if (option == 'o')
            only = optarg;
        else
            return 2;
    }
    if (optind != argc - 1 || runs < 1 || runs > RUNS_MAX || bench.samples < 1) {
        fputs("usage: bench_sample [--size PIXELS] [--samples N] [--runs 1..100] [--only NAME] ROOT\n", stderr);
        return 2;
    }
    open_dataset(argv[optind], side);
    load_files();

    static double wall[ROWS][RUNS_MAX], cpu[ROWS][RUNS_MAX];
    for (int i = -1; i < runs; i++) /* the first is for the caches, and doesn't count */
        for (size_t r = 0; r < ROWS; r++) {
            if (only != NULL && strcmp(only, rows[r].name) != 0)
                continue;
            const struct timing timing = run(&rows[r]);
            wall[r][i < 0 ? 0 : i] = timing.wall_s;
            cpu[r][i < 0 ? 0 : i] = timing.cpu_s;
        }

    printf("%llu photos, %u samples of %u x %u, median of %d runs\n", (unsigned long long)bench.reader->sample_count,
           bench.samples, side, side, runs);
    printf("row          images/s  images/CPU second  CPU us/image\n");
    double rate[ROWS], cpu_rate[ROWS];
    for (size_t r = 0; r < ROWS; r++) {
        if (only != NULL && strcmp(only, rows[r].name) != 0)
            continue;
        rate[r] = bench.samples / median(wall[r], runs);
        cpu_rate[r] = bench.samples / median(cpu[r], runs);
        printf("%-10s %10.0f %18.0f %13.0f\n", rows[r].name, rate[r], cpu_rate[r], 1e6 / cpu_rate[r]);
    }
    if (only == NULL) {
        printf("exact / bare exact: %.2f, fast / bare fast: %.2f, fast / exact: %.2f\n", cpu_rate[0] / cpu_rate[1],
               cpu_rate[2] / cpu_rate[3], cpu_rate[2] / cpu_rate[0]);
        printf("two threads / one: exact %.2f, fast %.2f; CPU time a sample: %.2f and %.2f times that of one\n",
               rate[4] / rate[0], rate[5] / rate[2], cpu_rate[0] / cpu_rate[4], cpu_rate[2] / cpu_rate[5]);
    }
    return 0;
}
