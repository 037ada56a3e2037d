/* kernel_check.cu - normalize_cuda_launch() against normalize_scalar(), bit for bit.
 *
 *   kernel_check [STRIDE [SEED]]
 *
 * Happy path: every dtype, layout, number of channels, size, kind of window and offset of the input, on fresh random
 * pixels each; then a few shapes of their own; then launches in captured graphs, replayed over other pixels and
 * windows. The output lies between guards and is poisoned before; guards and all are compared. Prints a line for each
 * case that differs, and a summary last. STRIDE: only each STRIDE-th case, for tools that slow the GPU down.
 * What can fail: a comparison (exit code 1), CUDA (exit code 2). Threads: one. */
#include <string.h>

#include "device.h"
#include "normalize_cuda.h"

#define GUARD          256 /* bytes before and after the output */
#define IN_BYTES       ((size_t)64 << 20)
#define OUT_BYTES      ((size_t)64 << 20)
#define BATCH_MAX      70000
#define FAILURES_SHOWN 40

/* Where the samples lie in their input. */
enum kind { WHOLE, CORNER, CROP, FLIP, CROP_FLIP, KINDS };

struct shape {
    uint32_t height, width, channels, batch;
    int dtype, layout;
    enum kind kind;
    uint32_t in_offset, out_offset; /* bytes; elements */
};

struct buffers {
    uint8_t *pixels, *in; /* random, on the host; on the GPU */
    normalize_window *windows;
    uint8_t *expected, *actual, *out;
};

/* Usual ones, and those for which a rounding, a saturation, an infinity or a subnormal matters. */
static const struct values {
    const char *name;
    double mean[4], std[4], scale;
} all_values[] = {
    {"imagenet", {0.485, 0.456, 0.406, 0.5}, {0.229, 0.224, 0.225, 0.25}, 255},
    {"halves", {0.5, 0.5, 0.5, 0.5}, {0.5, 0.5, 0.5, 0.5}, 255},
    {"ties", {127, 100, 0, 200}, {2, 2, 4, 8}, 1},
    {"large", {0.1, 0.2, 0.3, 0.4}, {1e-5, 3e-6, 1e-36, 1e-4}, 1},
    {"bytes", {128, 128, 128, 128}, {1, 1, 1, 1}, 1}, /* -128 to 127, of which i8 saturates none */
    {"beyond", {127, 128, 127.5, 128.5}, {1, 1, 1, 1}, 1},
    {"small", {0.3, 127.25, 1e-3, 3.1}, {1e5, 3e6, 4e37, 2e7}, 1},
};

static const char *const dtypes[] = {"", "u8", "i8", "f16", "bf16", "f32"};
static const uint32_t elements[] = {0, 1, 1, 2, 2, 4}; /* bytes */
static const char *const kinds[] = {"whole", "corner", "crop", "flip", "crop+flip"};

static uint64_t state; /* of the random numbers */
static uint64_t cases, values_compared, failures;

static void fill(const struct shape *shape, const struct values *values, normalize_params *params)
{
    memset(params, 0, sizeof(*params));
    params->batch = shape->batch;
    params->channels = shape->channels;
    params->out_height = params->in_height = shape->height;
    params->out_width = params->in_width = shape->width;
    if (shape->kind == CORNER || shape->kind == CROP || shape->kind == CROP_FLIP) {
        params->in_height += shape->height == 224 ? 32 : random_below(&state, 9);
        params->in_width += shape->width == 224 ? 32 : random_below(&state, 9);
    }
    params->dtype = shape->dtype;
    params->layout = shape->layout;
    memcpy(params->mean, values->mean, sizeof(params->mean));
    memcpy(params->std, values->std, sizeof(params->std));
    params->scale = values->scale;
    const char *wrong = normalize_check(params);
    if (wrong != NULL) {
        fprintf(stderr, "kernel_check: a case doesn't make sense: %s\n", wrong);
        exit(2);
    }
}

/* @return NULL for kinds without windows */
static const normalize_window *make_windows(const struct shape *shape, const normalize_params *params,
                                            normalize_window *windows)
{
    if (shape->kind == WHOLE || shape->kind == CORNER)
        return NULL;
    for (uint32_t n = 0; n < params->batch; n++) {
        windows[n].y = random_below(&state, params->in_height - params->out_height + 1);
        windows[n].x = random_below(&state, params->in_width - params->out_width + 1);
        windows[n].flip = shape->kind == CROP ? 0 : random_below(&state, 3) != 0;
    }
    return windows;
}

/* Random pixels and windows, on both sides. @return the pixels */
static const uint8_t *refresh(const struct buffers *b, const struct shape *shape, const normalize_params *params,
                              const normalize_window **windows)
{
    const size_t bytes = (size_t)params->batch * params->in_height * params->in_width * params->channels;
    const uint8_t *pixels = b->pixels + random_bits(&state) % (IN_BYTES - bytes);
    *windows = make_windows(shape, params, b->windows);
    TRY(cudaMemcpy(b->in + shape->in_offset, pixels, bytes, cudaMemcpyHostToDevice));
    return pixels;
}

/* Fetches the output and compares it, with its guards, with what the oracle makes of the same. */
static void compare(const struct buffers *b, const struct shape *shape, const normalize_params *params,
                    const struct values *values, const uint8_t *pixels, const normalize_window *windows, int poison,
                    const char *how)
{
    const size_t bytes = normalize_bytes(params), start = GUARD + shape->out_offset * elements[shape->dtype];
    const size_t all = start + bytes + GUARD;
    memset(b->expected, poison, all);
    normalize_scalar(params, pixels, windows, b->expected + start);
    TRY(cudaMemcpy(b->actual, b->out, all, cudaMemcpyDeviceToHost));
    cases++;
    values_compared += bytes / elements[shape->dtype];
    if (memcmp(b->expected, b->actual, all) == 0 || ++failures > FAILURES_SHOWN)
        return;

    size_t at = 0, wrong = 0;
    for (size_t i = all; i-- > 0;) {
        if (b->expected[i] != b->actual[i]) {
            at = i;
            wrong++;
        }
    }
    printf("FAIL %s %s %s %s, %u x %u x %u of %u x %u, batch %u, in + %u bytes, out + %u elements, %s: ", how,
           dtypes[shape->dtype], shape->layout == NORMALIZE_NCHW ? "NCHW" : "NHWC", kinds[shape->kind], shape->height,
           shape->width, shape->channels, params->in_height, params->in_width, shape->batch, shape->in_offset,
           shape->out_offset, values->name);
    if (at < start || at >= start + bytes)
        printf("%zu bytes differ, the first in a guard, ", wrong);
    else
        printf("%zu bytes differ, the first in element %zu of %zu, ", wrong, (at - start) / elements[shape->dtype],
               bytes / elements[shape->dtype]);
    printf("%02x not %02x%s\n", b->actual[at], b->expected[at], b->actual[at] == poison ? " (not written)" : "");
}

static void run_case(const struct buffers *b, const struct shape *shape)
{
    static uint64_t count;
    const struct values *values = &all_values[count % (sizeof(all_values) / sizeof(*all_values))];
    const int poison = count++ % 2 ? 0xA5 : 0x5A;
    normalize_params params;
    const normalize_window *windows;
    fill(shape, values, &params);
    const size_t start = GUARD + shape->out_offset * elements[shape->dtype];
    const uint8_t *pixels = refresh(b, shape, &params, &windows);
    TRY(cudaMemset(b->out, poison, start + normalize_bytes(&params) + GUARD));
    TRY((cudaError_t)normalize_cuda_launch(&params, b->in + shape->in_offset, windows, b->out + start, NULL));
    TRY(cudaDeviceSynchronize());
    compare(b, shape, &params, values, pixels, windows, poison, "launch");
}

/* A shape's output begins at an element of its own in each third case: otherwise the fast mapping would be rare. */
static void run_shape(const struct buffers *b, struct shape *shape, uint64_t stride)
{
    static uint64_t count;
    if (count++ % stride != 0)
        return;
    shape->out_offset = random_below(&state, 3) == 0 ? 1 + random_below(&state, 3) : 0;
    run_case(b, shape);
}

static void check_all(const struct buffers *b, uint64_t stride)
{
    static const uint32_t sizes[][2] = {{1, 1}, {3, 5}, {7, 13}, {64, 64}, {223, 225}, {224, 224}};
    struct shape shape = {};
    uint32_t next = 0;
    for (shape.dtype = NORMALIZE_U8; shape.dtype <= NORMALIZE_F32; shape.dtype++)
        for (shape.layout = NORMALIZE_NHWC; shape.layout <= NORMALIZE_NCHW; shape.layout++)
            for (shape.channels = 1; shape.channels <= NORMALIZE_CHANNELS_MAX; shape.channels++)
                for (const uint32_t *size = sizes[0]; size < sizes[6]; size += 2)
                    for (int kind = 0; kind < KINDS; kind++)
                        for (shape.in_offset = 0; shape.in_offset < 4; shape.in_offset++) {
                            shape.height = size[0];
                            shape.width = size[1];
                            shape.kind = (enum kind)kind;
                            if (shape.height < 64) {
                                for (shape.batch = 1; shape.batch <= 17; shape.batch++)
                                    run_shape(b, &shape, stride);
                                continue;
                            }
                            shape.batch = 1 + next++ % (shape.height == 64 ? 17 : 3);
                            if (kind == CROP_FLIP && shape.in_offset == 3)
                                shape.batch = 17;
                            run_shape(b, &shape, stride);
                        }
}

/* Long and short rows, more samples than a grid is wide, few pixels in many tiles. */
static void check_odd_ones(const struct buffers *b, uint64_t stride)
{
    static const uint32_t sizes[][3] = {{1, 1, BATCH_MAX}, {2, 2, BATCH_MAX}, {1, 100000, 2},
                                        {5000, 3, 2},      {4000, 4, 2},      {257, 1023, 2}};
    struct shape shape = {};
    for (shape.dtype = NORMALIZE_U8; shape.dtype <= NORMALIZE_F32; shape.dtype++)
        for (shape.layout = NORMALIZE_NHWC; shape.layout <= NORMALIZE_NCHW; shape.layout++)
            for (shape.channels = 1; shape.channels <= NORMALIZE_CHANNELS_MAX; shape.channels++)
                for (const uint32_t *size = sizes[0]; size < sizes[6]; size += 3)
                    for (int kind = 0; kind < KINDS; kind += CROP_FLIP) {
                        shape.height = size[0];
                        shape.width = size[1];
                        shape.batch = size[2];
                        shape.kind = (enum kind)kind;
                        shape.in_offset = random_below(&state, 4);
                        run_shape(b, &shape, stride);
                    }
}

/* One launch is one kernel; its windows are those of the capture, its pixels those of each replay. */
static void check_graphs(const struct buffers *b)
{
    cudaStream_t stream;
    TRY(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    struct shape shape = {};
    shape.channels = 3;
    shape.kind = CROP_FLIP;
    shape.batch = 5;
    for (uint32_t i = 0; i < 20; i++) {
        const struct values *values = &all_values[0];
        const normalize_window *windows;
        normalize_params params;
        shape.dtype = (int)(NORMALIZE_U8 + i % 5);
        shape.layout = i % 10 < 5 ? NORMALIZE_NHWC : NORMALIZE_NCHW;
        shape.height = shape.width = i < 10 ? 64 : 61;
        fill(&shape, values, &params);

        cudaGraph_t graph;
        cudaGraphExec_t executable;
        cudaGraphNode_t nodes[2];
        cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
        size_t count = 0;
        refresh(b, &shape, &params, &windows);
        normalize_window captured[5];
        memcpy(captured, windows, sizeof(captured));
        TRY(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        TRY((cudaError_t)normalize_cuda_launch(&params, b->in, windows, b->out + GUARD, stream));
        TRY(cudaStreamEndCapture(stream, &graph));
        TRY(cudaGraphGetNodes(graph, NULL, &count));
        if (count == 1) {
            TRY(cudaGraphGetNodes(graph, nodes, &count));
            TRY(cudaGraphNodeGetType(nodes[0], &type));
        }
        if (count != 1 || type != cudaGraphNodeTypeKernel) {
            failures++;
            printf("FAIL graph: %zu nodes, the first of type %d, instead of one kernel\n", count, (int)type);
        }
        TRY(cudaGraphInstantiate(&executable, graph, 0));
        for (int replay = 0; replay < 3; replay++) {
            const uint8_t *pixels = refresh(b, &shape, &params, &windows);
            TRY(cudaMemset(b->out, 0xA5, 2 * GUARD + normalize_bytes(&params)));
            TRY(cudaDeviceSynchronize());
            TRY(cudaGraphLaunch(executable, stream));
            TRY(cudaStreamSynchronize(stream));
            compare(b, &shape, &params, values, pixels, captured, 0xA5, "replay");
        }
        TRY(cudaGraphExecDestroy(executable));
        TRY(cudaGraphDestroy(graph));
    }
    TRY(cudaStreamDestroy(stream));
}

/* A sample that 32-bit offsets can't address is refused before anything is enqueued. */
static void check_limit(const struct buffers *b)
{
    struct shape shape = {};
    normalize_params params;
    shape.height = 32768;
    shape.width = 32768;
    shape.channels = 1;
    shape.batch = 1;
    shape.dtype = NORMALIZE_U8;
    shape.layout = NORMALIZE_NHWC;
    fill(&shape, &all_values[0], &params);
    params.out_height = params.out_width = 8;
    params.in_width++; /* 2^30 bytes and a row's worth */
    const int status = normalize_cuda_launch(&params, b->in, NULL, b->out, NULL);
    TRY(cudaDeviceSynchronize());
    cases++;
    if (status != cudaErrorInvalidValue) {
        failures++;
        printf("FAIL a sample of more than 2^30 bytes: status %d, not cudaErrorInvalidValue\n", status);
    }
}

int main(int argc, char **argv)
{
    const uint64_t stride = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    state = argc > 2 ? strtoull(argv[2], NULL, 10) : (uint64_t)time(NULL);
    if (stride == 0) {
        fprintf(stderr, "usage: kernel_check [STRIDE [SEED]]\n");
        return 2;
    }
    print_device();
    printf("seed %llu\n", (unsigned long long)state);

    struct buffers b;
    TRY(cudaMallocHost((void **)&b.pixels, IN_BYTES));
    TRY(cudaMallocHost((void **)&b.windows, BATCH_MAX * sizeof(*b.windows)));
    TRY(cudaMallocHost((void **)&b.actual, OUT_BYTES));
    TRY(cudaMallocHost((void **)&b.expected, OUT_BYTES));
    TRY(cudaMalloc((void **)&b.in, IN_BYTES + 8));
    TRY(cudaMalloc((void **)&b.out, OUT_BYTES));
    random_fill(&state, b.pixels, IN_BYTES);

    check_all(&b, stride);
    check_odd_ones(&b, stride);
    check_graphs(&b);
    check_limit(&b);
    printf("kernel_check: %llu cases, %llu values, %llu failed\n", (unsigned long long)cases,
           (unsigned long long)values_compared, (unsigned long long)failures);

    TRY(cudaFree(b.out));
    TRY(cudaFree(b.in));
    TRY(cudaFreeHost(b.expected));
    TRY(cudaFreeHost(b.actual));
    TRY(cudaFreeHost(b.windows));
    TRY(cudaFreeHost(b.pixels));
    return failures != 0;
}
