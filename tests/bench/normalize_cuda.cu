/* normalize_cuda.cu - how near to a copy the GPU's kernel is.
 *
 *   bench_normalize_cuda
 *
 * 256 samples of 3 channels, into every dtype and layout: 224 x 224 whole; 224 x 224 out of 256 x 256 at random places
 * and mirrored; 223 x 225 whole. Beside each, in turns of a few launches, a device-to-device cudaMemcpyAsync that reads
 * and writes as many bytes in all. Both rotate through buffers that together are many times the L2. Each launch is
 * timed by events; the medians are printed, and beside the goal how many percent of the copy's rate the kernel has.
 * What can fail: CUDA (exit code 2), a goal (exit code 1). Threads: one. */
#include "../gpu/device.h"
#include "normalize_cuda.h"

#define BATCH    256
#define CHANNELS 3
#define BUFFERS  6
#define ROUNDS   12
#define TURN     7 /* launches in a row; the first doesn't count: it pays for what the other left in the L2 */
#define TIMES    (ROUNDS * (TURN - 1))

#define IN_BYTES   ((size_t)BATCH * 256 * 256 * CHANNELS)
#define OUT_BYTES  ((size_t)BATCH * 224 * 224 * CHANNELS * 4)
#define COPY_BYTES ((OUT_BYTES / 4 + OUT_BYTES) / 2 + 256)

enum work { PLAIN, FLIP_CROP, ODD, WORKS };

struct buffers {
    uint8_t *in[BUFFERS], *out[BUFFERS], *from[BUFFERS], *to[BUFFERS];
    normalize_window windows[BATCH];
};

static const char *const works[] = {"224 x 224", "flip + crop of 256", "223 x 225"};

static void fill(normalize_params *params, int dtype, int layout, enum work work)
{
    *params = {};
    params->batch = BATCH;
    params->channels = CHANNELS;
    params->out_height = work == ODD ? 223 : 224;
    params->out_width = work == ODD ? 225 : 224;
    params->in_height = work == FLIP_CROP ? 256 : params->out_height;
    params->in_width = work == FLIP_CROP ? 256 : params->out_width;
    params->dtype = dtype;
    params->layout = layout;
    params->scale = 255;
    for (int channel = 0; channel < CHANNELS; channel++) {
        params->mean[channel] = 0.45;
        params->std[channel] = 0.225;
    }
}

static int ascending(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

static double median(float *times)
{
    qsort(times, TIMES, sizeof(*times), ascending);
    return (times[TIMES / 2 - 1] + times[TIMES / 2]) / 2;
}

/* @param bytes  that are copied: half of what the kernel reads and writes */
static void measure(const struct buffers *b, const normalize_params *params, bool windows, size_t bytes,
                    double *kernel_us, double *copy_us)
{
    static cudaEvent_t events[2 * TURN + 1];
    float kernel[TIMES], copy[TIMES];
    uint32_t next = 0, taken = 0;
    for (int i = 0; events[0] == NULL || (i > 0 && i <= 2 * TURN); i++)
        TRY(cudaEventCreate(&events[i]));
    for (int round = -1; round < ROUNDS; round++) { /* the first warms up */
        /* Keeps the GPU busy until all of the round is enqueued, so that it waits for nobody in between. */
        for (int i = 0; i < BUFFERS; i++)
            TRY(cudaMemsetAsync(b->out[i], round, OUT_BYTES, NULL));
        TRY(cudaEventRecord(events[0], NULL));
        for (int i = 0; i < TURN; i++, next = (next + 1) % BUFFERS) {
            TRY((cudaError_t)normalize_cuda_launch(params, b->in[next], windows ? b->windows : NULL, b->out[next],
                                                   NULL));
            TRY(cudaEventRecord(events[i + 1], NULL));
        }
        for (int i = 0; i < TURN; i++, next = (next + 1) % BUFFERS) {
            TRY(cudaMemcpyAsync(b->to[next], b->from[next], bytes, cudaMemcpyDeviceToDevice, NULL));
            TRY(cudaEventRecord(events[TURN + i + 1], NULL));
        }
        TRY(cudaDeviceSynchronize());
        for (int i = 1; i < TURN && round >= 0; i++, taken++) {
            TRY(cudaEventElapsedTime(&kernel[taken], events[i], events[i + 1]));
            TRY(cudaEventElapsedTime(&copy[taken], events[TURN + i], events[TURN + i + 1]));
        }
    }
    *kernel_us = median(kernel) * 1e3;
    *copy_us = median(copy) * 1e3;
}

static void allocate(struct buffers *b)
{
    uint64_t state = (uint64_t)time(NULL);
    uint8_t *pixels;
    for (int i = 0; i < BATCH; i++)
        b->windows[i] = {random_below(&state, 33), random_below(&state, 33), 1};
    TRY(cudaMallocHost((void **)&pixels, IN_BYTES));
    random_fill(&state, pixels, IN_BYTES);
    for (int i = 0; i < BUFFERS; i++) {
        TRY(cudaMalloc((void **)&b->in[i], IN_BYTES));
        TRY(cudaMalloc((void **)&b->out[i], OUT_BYTES));
        TRY(cudaMalloc((void **)&b->from[i], COPY_BYTES));
        TRY(cudaMalloc((void **)&b->to[i], COPY_BYTES));
        TRY(cudaMemcpy(b->in[i], pixels, IN_BYTES, cudaMemcpyHostToDevice));
        TRY(cudaMemcpy(b->from[i], pixels, IN_BYTES, cudaMemcpyHostToDevice));
        TRY(cudaMemcpy(b->from[i] + IN_BYTES, pixels, COPY_BYTES - IN_BYTES, cudaMemcpyHostToDevice));
    }
    TRY(cudaFreeHost(pixels));
}

int main(void)
{
    static const char *const dtypes[] = {"", "u8", "i8", "f16", "bf16", "f32"};
    static const int element[] = {0, 1, 1, 2, 2, 4};
    struct buffers b;
    int missed = 0;
    print_device();
    allocate(&b);
    printf("median of %d launches, batch %d; GB/s of bytes read and written; copy: device to device, as many bytes\n",
           TIMES, BATCH);
    printf("%-5s %-5s %-18s %8s %7s %8s %6s %5s\n", "dtype", "to", "from", "us", "GB/s", "copy us", "%", "goal");
    for (int dtype = NORMALIZE_F32; dtype >= NORMALIZE_U8; dtype--)
        for (int layout = NORMALIZE_NCHW; layout >= NORMALIZE_NHWC; layout--)
            for (int work = 0; work < WORKS; work++) {
                const int best = dtype == NORMALIZE_F32 && layout == NORMALIZE_NCHW && work == PLAIN;
                const int goal = best ? 95 : work == ODD ? 70 : 90;
                normalize_params params;
                double kernel_us, copy_us;
                fill(&params, dtype, layout, (enum work)work);
                const size_t bytes = normalize_bytes(&params) / element[dtype] * (1 + element[dtype]);
                measure(&b, &params, work == FLIP_CROP, bytes / 2, &kernel_us, &copy_us);
                const double percent = copy_us / kernel_us * 100;
                missed += percent < goal;
                printf("%-5s %-5s %-18s %8.1f %7.0f %8.1f %6.1f %5d %s\n", dtypes[dtype],
                       layout == NORMALIZE_NCHW ? "NCHW" : "NHWC", works[work], kernel_us, bytes / kernel_us / 1e3,
                       copy_us, percent, goal, percent < goal ? "MISS" : "PASS");
            }
    printf("bench_normalize_cuda: %d missed\n", missed);
    for (int i = 0; i < BUFFERS; i++) {
        TRY(cudaFree(b.in[i]));
        TRY(cudaFree(b.out[i]));
        TRY(cudaFree(b.from[i]));
        TRY(cudaFree(b.to[i]));
    }
    return missed != 0;
}
