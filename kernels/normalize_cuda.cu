/* normalize_cuda.cu - the same as normalize_scalar.c on a GPU: one kernel a batch, at about the speed of a copy.
 *
 * Happy path: a thread reads quads, that is 4 pixels that follow one another in the output: the aligned words that hold
 * them, moved into place, and reversed where the sample is mirrored. So neither crops nor flips nor addresses cost a
 * pass. Then one of two mappings:
 *   planes  NCHW with planes that begin aligned: a quad is 4 values of each plane, stored by the thread that read it;
 *   staged  all else: a block gathers a tile of pixels in shared memory, in the order of the output, and then takes
 *           from there the values of every aligned 4-value piece of the output (NHWC; planes of odd sizes).
 * Either way a warp's stores are consecutive and 4 values wide, and each byte is read once from memory (lines that
 * several loads touch stay in L1 meanwhile; streaming hints on loads or stores cost 1 to 5 %: measured). A block stays
 * within a sample, so what windows say is the same for all of it. What can fail: the launch, nothing in the kernel.
 * Threads: any. */
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstring>

#include "normalize_cuda.h"

namespace feedd_normalize /* what profilers show of its kernels */
{

enum mapping { PLANES, STAGED_PLANES, STAGED_VALUES };

/* Of both mappings. The staged one's is a multiple of 3, so that a thread meets the same channels in all its pieces. */
constexpr uint32_t PLANES_THREADS = 256, STAGED_THREADS = 96;
constexpr uint32_t QUAD = 4;           /* pixels; also values of a piece of the output */
constexpr uint32_t STAGED_BLOCKS = 14; /* a multiprocessor, at least: leaves 48 registers, which none needs more of */
constexpr uint32_t GRID_MAX = 65535;   /* of CUDA's, in y and z */
constexpr uint32_t WINDOWS_MAX = 256;  /* samples of one launch with windows, which are its parameters */
constexpr uint32_t FLIP = 1u << 31;    /* of a window, beside its offset: a sample is smaller */
constexpr uint32_t LEAD = 4; /* pixels before the tile that are staged too when the output isn't aligned to pieces */

__host__ __device__ constexpr uint32_t bytes_of(int dtype)
{
    return dtype == NORMALIZE_F32 ? 4 : dtype == NORMALIZE_F16 || dtype == NORMALIZE_BF16 ? 2 : 1;
}

/* A thread's: measured. Enough bytes in flight, however narrow the output; i8 through shared memory is bound by
 * instructions, and has more to spread its addresses over. */
__host__ __device__ constexpr uint32_t quads_of(int dtype, mapping mapping)
{
    return dtype == NORMALIZE_F32 ? 1 : dtype == NORMALIZE_I8 && mapping == STAGED_PLANES ? 4 : 2;
}

__host__ __device__ constexpr uint32_t tile_of(int dtype, mapping mapping)
{
    return quads_of(dtype, mapping) * QUAD * (mapping == PLANES ? PLANES_THREADS : STAGED_THREADS);
}

struct job {
    const uint8_t *in;
    uint8_t *out;
    uint32_t in_sample, in_row;     /* bytes */
    uint32_t out_width, out_sample; /* pixels */
    uint32_t gapless;               /* rows without windows follow one another: one long row */
    uint32_t batch, lead;           /* samples; 0 or LEAD */
    struct normalize_constants constants;
};

/* A type of its own, for a launch takes longer with more parameters: 3 KiB are 1 us on an H200. */
struct windowed_job : job {
    uint32_t windows[WINDOWS_MAX]; /* bytes from the sample's first pixel to the window's, and FLIP */
};

/* A sample's part of the input. */
struct view {
    const uint8_t *in;   /* first row and column */
    uint32_t row, width; /* bytes from a row to the next; pixels */
    bool flip;
};

/* As read: the pixels are the bytes from `shift` bits on; in the order of the input. */
template <int CHANNELS> struct quad {
    uint32_t words[CHANNELS + 1];
    uint32_t shift;
};

/* Blocks: x is the tile, y and z the sample, because neither alone reaches far enough. */
__device__ uint32_t sample_of_block()
{
    return blockIdx.z * gridDim.y + blockIdx.y;
}

__device__ view view_of(const job &job, uint32_t sample)
{
    return {job.in + (size_t)sample * job.in_sample, job.in_row, job.gapless ? job.out_sample : job.out_width, false};
}

__device__ view view_of(const windowed_job &job, uint32_t sample)
{
    const uint32_t window = job.windows[sample];
    const bool flip = (window & FLIP) != 0;
    return {job.in + (size_t)sample * job.in_sample + (window & ~FLIP), job.in_row,
            job.gapless && !flip ? job.out_sample : job.out_width, flip};
}

/* The quad that begins with pixel `first` of the output; 0 for pixels that the sample doesn't have. What is loaded is
 * not used here, so that several loads are in flight. */
template <int CHANNELS> __device__ quad<CHANNELS> load(const job &job, const view &view, int32_t first)
{
    quad<CHANNELS> quad = {};
    uint32_t x = (uint32_t)first, y = 0;
    if (x >= view.width) {
        y = x / view.width;
        x -= y * view.width;
    }
    if (first >= 0 && first + QUAD <= job.out_sample && x + QUAD <= view.width) {
        const uint8_t *from = view.in + y * view.row + (view.flip ? view.width - QUAD - x : x) * CHANNELS;
        const uint32_t beyond = (uint32_t)(uintptr_t)from % 4;
        const uint32_t *aligned = (const uint32_t *)(from - beyond);
#pragma unroll
        for (int i = 0; i < CHANNELS; i++)
            quad.words[i] = __ldg(aligned + i);
        if (beyond != 0)
            quad.words[CHANNELS] = __ldg(aligned + CHANNELS);
        quad.shift = beyond * 8;
        return quad;
    }
    /* Across the end of a row, or of the sample: pixel by pixel, each pushed in from above. Rare, so kept small. */
#pragma unroll 1
    for (uint32_t i = 0; i < QUAD; i++) {
        const uint32_t pixel = (uint32_t)first + (view.flip ? QUAD - 1 - i : i);
        quad.words[CHANNELS] = 0;
        if (pixel < job.out_sample) { /* nor is what lies before the first */
            y = pixel / view.width;
            x = pixel - y * view.width;
            const uint8_t *from = view.in + y * view.row + (view.flip ? view.width - 1 - x : x) * CHANNELS;
#pragma unroll
            for (int channel = 0; channel < CHANNELS; channel++)
                quad.words[CHANNELS] |= (uint32_t)from[channel] << channel * 8;
        }
#pragma unroll
        for (int k = 0; k < CHANNELS; k++)
            quad.words[k] = __funnelshift_rc(quad.words[k], quad.words[k + 1], CHANNELS * 8);
    }
    return quad;
}

/* 4 bytes of an array of words, by their places, which are constants wherever this is used. */
__device__ uint32_t pick(const uint32_t *words, int a, int b, int c, int d)
{
    const uint32_t low = __byte_perm(words[a / 4], words[b / 4], a % 4 | (4 + b % 4) << 4);
    const uint32_t high = __byte_perm(words[c / 4], words[d / 4], c % 4 | (4 + d % 4) << 4);
    return __byte_perm(low, high, 0x5410);
}

/* The quad in the order of the output, NHWC without gaps. */
template <int CHANNELS> __device__ void arrange(const quad<CHANNELS> &quad, bool flip, uint32_t (&words)[CHANNELS])
{
    uint32_t straight[CHANNELS];
#pragma unroll
    for (int i = 0; i < CHANNELS; i++)
        words[i] = straight[i] = __funnelshift_r(quad.words[i], quad.words[i + 1], quad.shift);
    if (!flip)
        return;
#pragma unroll
    for (int i = 0; i < CHANNELS; i++) {
        int from[4];
#pragma unroll
        for (int byte = 0; byte < 4; byte++) {
            const int to = i * 4 + byte;
            from[byte] = ((int)QUAD - 1 - to / CHANNELS) * CHANNELS + to % CHANNELS;
        }
        words[i] = pick(straight, from[0], from[1], from[2], from[3]);
    }
}

/* Exactly (float)byte: 2^23 + byte, put together from bits, less 2^23. Conversions run at a fraction of the rate of
 * sums. */
__device__ float float_of(uint32_t word, int byte)
{
    return __fsub_rn(__uint_as_float(__byte_perm(word, 0x4B000000, 0x7540 | byte)), 8388608.0f);
}

/* Rounded half to even, saturating; in the low byte. */
__device__ uint32_t i8_of(float value)
{
    uint32_t made;
    asm("cvt.rni.sat.s8.f32 %0, %1;" : "=r"(made) : "f"(value));
    return made;
}

/* Two 16-bit values as they lie in memory. */
template <typename PAIR> __device__ uint32_t bits_of(PAIR pair)
{
    uint32_t bits;
    memcpy(&bits, &pair, sizeof(bits));
    return bits;
}

/* 4 pixel values, of the channels that offset and factor are for, into 4 elements of the output. */
template <int DTYPE>
__device__ void make(uint32_t pixels, const float (&offset)[QUAD], const float (&factor)[QUAD],
                     uint32_t (&made)[bytes_of(DTYPE)])
{
    float values[QUAD];
#pragma unroll
    for (int i = 0; i < (int)QUAD; i++)
        values[i] = __fmul_rn(__fsub_rn(float_of(pixels, i), offset[i]), factor[i]);
    if constexpr (DTYPE == NORMALIZE_F32) {
#pragma unroll
        for (int i = 0; i < (int)QUAD; i++)
            made[i] = __float_as_uint(values[i]);
    } else if constexpr (DTYPE == NORMALIZE_F16) {
#pragma unroll
        for (int i = 0; i < 2; i++)
            made[i] = bits_of(__floats2half2_rn(values[i * 2], values[i * 2 + 1]));
    } else if constexpr (DTYPE == NORMALIZE_BF16) {
#pragma unroll
        for (int i = 0; i < 2; i++)
            made[i] = bits_of(__floats2bfloat162_rn(values[i * 2], values[i * 2 + 1]));
    } else if constexpr (DTYPE == NORMALIZE_I8) {
        const uint32_t rounded[QUAD] = {i8_of(values[0]), i8_of(values[1]), i8_of(values[2]), i8_of(values[3])};
        made[0] = pick(rounded, 0, 4, 8, 12);
    } else {
        made[0] = pixels;
    }
}

template <int BYTES> __device__ void store(uint8_t *to, const uint32_t (&made)[BYTES])
{
    if constexpr (BYTES == 4)
        *(uint4 *)to = make_uint4(made[0], made[1], made[2], made[3]);
    else if constexpr (BYTES == 2)
        *(uint2 *)to = make_uint2(made[0], made[1]);
    else
        *(uint32_t *)to = made[0];
}

/* Those of the 4 elements, the first of which is number `first`, that are among the `count` that begin at `to`. */
template <int BYTES>
__device__ void store_some(uint8_t *to, int32_t first, uint32_t count, const uint32_t (&made)[BYTES])
{
#pragma unroll
    for (int i = 0; i < (int)QUAD; i++) {
        const uint32_t index = (uint32_t)(first + i), bits = made[i * BYTES / 4] >> i * BYTES % 4 * 8;
        if (index >= count) /* also what is before the first */
            continue;
        if constexpr (BYTES == 4)
            ((uint32_t *)to)[index] = bits;
        else if constexpr (BYTES == 2)
            ((uint16_t *)to)[index] = (uint16_t)bits;
        else
            to[index] = (uint8_t)bits;
    }
}

template <int DTYPE, int CHANNELS, typename JOB>
__global__ void __launch_bounds__(PLANES_THREADS) planes(const __grid_constant__ JOB job)
{
    constexpr uint32_t QUADS = quads_of(DTYPE, PLANES), BYTES = bytes_of(DTYPE);
    const uint32_t sample = sample_of_block(), tile = blockIdx.x;
    if (sample >= job.batch)
        return;
    const view view = view_of(job, sample);
    const uint32_t first = tile * tile_of(DTYPE, PLANES) + threadIdx.x * QUAD;
    uint8_t *const out = job.out + (size_t)sample * job.out_sample * CHANNELS * BYTES;
    quad<CHANNELS> quads[QUADS];
#pragma unroll
    for (uint32_t i = 0; i < QUADS; i++)
        quads[i] = load<CHANNELS>(job, view, (int32_t)(first + i * PLANES_THREADS * QUAD));
#pragma unroll
    for (uint32_t i = 0; i < QUADS; i++) {
        const uint32_t pixel = first + i * PLANES_THREADS * QUAD;
        if (pixel >= job.out_sample)
            return;
        uint32_t words[CHANNELS];
        arrange<CHANNELS>(quads[i], view.flip, words);
#pragma unroll
        for (int channel = 0; channel < CHANNELS; channel++) {
            const float o = job.constants.offset[channel], f = job.constants.factor[channel];
            const uint32_t pixels =
                pick(words, channel, CHANNELS + channel, 2 * CHANNELS + channel, 3 * CHANNELS + channel);
            uint32_t made[BYTES];
            make<DTYPE>(pixels, {o, o, o, o}, {f, f, f, f}, made);
            store<BYTES>(out + ((size_t)channel * job.out_sample + pixel) * BYTES, made);
        }
    }
}

/* Pieces of the output begin `skew` elements, 0 to 3, before the tile's, so that they are aligned: then the first
 * piece takes pixels before the tile, of which LEAD are staged. */
template <int DTYPE, int CHANNELS, bool PLANAR, typename JOB>
__global__ void __launch_bounds__(STAGED_THREADS, STAGED_BLOCKS) staged(const __grid_constant__ JOB job)
{
    constexpr uint32_t QUADS = quads_of(DTYPE, PLANAR ? STAGED_PLANES : STAGED_VALUES), BYTES = bytes_of(DTYPE),
                       TILE = QUADS * STAGED_THREADS * QUAD;
    __shared__ uint32_t words[(TILE + LEAD) / QUAD * CHANNELS + 1]; /* a piece that isn't aligned is read from two */
    const uint32_t sample = sample_of_block(), tile = blockIdx.x;
    if (sample >= job.batch)
        return;
    const view view = view_of(job, sample);
    const int32_t first = (int32_t)(tile * TILE - job.lead);

    const auto stage = [&](const quad<CHANNELS> &quad, uint32_t place) {
        uint32_t arranged[CHANNELS];
        arrange<CHANNELS>(quad, view.flip, arranged);
#pragma unroll
        for (int i = 0; i < CHANNELS; i++)
            words[place * CHANNELS + i] = arranged[i];
    };
    quad<CHANNELS> quads[QUADS];
#pragma unroll
    for (uint32_t i = 0; i < QUADS; i++)
        quads[i] = load<CHANNELS>(job, view, first + (int32_t)((i * STAGED_THREADS + threadIdx.x) * QUAD));
#pragma unroll
    for (uint32_t i = 0; i < QUADS; i++)
        stage(quads[i], i * STAGED_THREADS + threadIdx.x);
    if (job.lead != 0 && threadIdx.x == 0)
        stage(load<CHANNELS>(job, view, first + (int32_t)TILE), TILE / QUAD);
    __syncthreads();

    /* What these pieces belong to: the sample's values, or one of its planes at a time. */
    uint8_t *out = job.out + (size_t)sample * job.out_sample * CHANNELS * BYTES;
    const uint32_t count = PLANAR ? job.out_sample : job.out_sample * CHANNELS;
    uint32_t skew = (uint32_t)((uintptr_t)out / BYTES % QUAD);
    float offset[QUAD], factor[QUAD];
    if (!PLANAR) {
#pragma unroll
        for (uint32_t i = 0; i < QUAD; i++) { /* LEAD * CHANNELS: not to go below 0 */
            const uint32_t channel = (threadIdx.x * QUAD + LEAD * CHANNELS - skew + i % CHANNELS) % CHANNELS;
            offset[i] = job.constants.offset[channel];
            factor[i] = job.constants.factor[channel];
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < QUADS * CHANNELS; i++) {
        const uint32_t channel = PLANAR ? i / QUADS : 0;
        const uint32_t piece = (PLANAR ? i % QUADS : i) * STAGED_THREADS + threadIdx.x;
        uint8_t *const to = out + (size_t)channel * job.out_sample * BYTES;
        uint32_t pixels, made[BYTES];
        if (PLANAR) {
            skew = (uint32_t)((uintptr_t)to / BYTES % QUAD);
            const uint8_t *from = (const uint8_t *)words + (piece * QUAD + LEAD - skew) * CHANNELS + channel;
            pixels = from[0] | from[CHANNELS] << 8 | from[2 * CHANNELS] << 16 | (uint32_t)from[3 * CHANNELS] << 24;
#pragma unroll
            for (uint32_t k = 0; k < QUAD; k++) {
                offset[k] = job.constants.offset[channel];
                factor[k] = job.constants.factor[channel];
            }
        } else {
            const uint32_t from = piece * QUAD + job.lead * CHANNELS - skew;
            pixels = __funnelshift_r(words[from / 4], words[from / 4 + 1], from % 4 * 8);
        }
        make<DTYPE>(pixels, offset, factor, made);
        const int32_t at = (int32_t)(tile * TILE * (PLANAR ? 1 : CHANNELS) + piece * QUAD - skew);
        if (at >= 0 && at + QUAD <= count)
            store<BYTES>(to + (size_t)at * BYTES, made);
        else
            store_some<BYTES>(to, at, count, made);
    }
}

template <int DTYPE, int CHANNELS, typename JOB> const void *kernel_of(mapping mapping)
{
    if constexpr (CHANNELS > 1) {
        if (mapping == PLANES)
            return (const void *)planes<DTYPE, CHANNELS, JOB>;
        if (mapping == STAGED_PLANES)
            return (const void *)staged<DTYPE, CHANNELS, true, JOB>;
    }
    return (const void *)staged<DTYPE, CHANNELS, false, JOB>;
}

template <int DTYPE, typename JOB> const void *kernel_of(uint32_t channels, mapping mapping)
{
    return channels == 1   ? kernel_of<DTYPE, 1, JOB>(mapping)
           : channels == 2 ? kernel_of<DTYPE, 2, JOB>(mapping)
           : channels == 3 ? kernel_of<DTYPE, 3, JOB>(mapping)
                           : kernel_of<DTYPE, 4, JOB>(mapping);
}

template <typename JOB> const void *kernel_of(int dtype, uint32_t channels, mapping mapping)
{
    return dtype == NORMALIZE_U8     ? kernel_of<NORMALIZE_U8, JOB>(channels, mapping)
           : dtype == NORMALIZE_I8   ? kernel_of<NORMALIZE_I8, JOB>(channels, mapping)
           : dtype == NORMALIZE_F16  ? kernel_of<NORMALIZE_F16, JOB>(channels, mapping)
           : dtype == NORMALIZE_BF16 ? kernel_of<NORMALIZE_BF16, JOB>(channels, mapping)
                                     : kernel_of<NORMALIZE_F32, JOB>(channels, mapping);
}

} // namespace feedd_normalize

using namespace feedd_normalize;

int normalize_cuda_launch(const struct normalize_params *params, const uint8_t *in,
                          const struct normalize_window *windows, void *out, void *stream)
{
    const uint64_t in_pixels = (uint64_t)params->in_height * params->in_width;
    const uint64_t out_pixels = (uint64_t)params->out_height * params->out_width; /* at most in_pixels */
    if (in_pixels > NORMALIZE_CUDA_SAMPLE_MAX / params->channels)
        return cudaErrorInvalidValue;

    /* Whether every sample, or every plane, begins with a piece. */
    const bool planar = params->layout == NORMALIZE_NCHW && params->channels > 1; /* one channel is the same in both */
    const uint64_t unit = planar ? out_pixels : out_pixels * params->channels;
    const bool aligned = unit % QUAD == 0 && (uintptr_t)out % (QUAD * bytes_of(params->dtype)) == 0;
    const mapping mapping = !planar ? STAGED_VALUES : aligned ? PLANES : STAGED_PLANES;

    struct windowed_job job = {};
    job.in_row = params->in_width * params->channels;
    job.in_sample = (uint32_t)in_pixels * params->channels;
    job.out_width = params->out_width;
    job.out_sample = (uint32_t)out_pixels;
    job.gapless = params->out_width == params->in_width;
    job.lead = aligned ? 0 : LEAD;
    normalize_constants(params, &job.constants);

    const uint32_t tile = tile_of(params->dtype, mapping);
    const uint32_t tiles = (job.out_sample + (aligned ? 0 : QUAD - 1) + tile - 1) / tile;
    const dim3 block(mapping == PLANES ? PLANES_THREADS : STAGED_THREADS);
    const size_t out_sample_bytes = out_pixels * params->channels * bytes_of(params->dtype);
    const uint32_t step = windows != nullptr ? WINDOWS_MAX : params->batch;
    const void *kernel = windows != nullptr ? kernel_of<windowed_job>(params->dtype, params->channels, mapping)
                                            : kernel_of<struct job>(params->dtype, params->channels, mapping);
    for (uint32_t first = 0; first < params->batch; first += job.batch) {
        job.batch = params->batch - first < step ? params->batch - first : step;
        job.in = in + (size_t)first * job.in_sample;
        job.out = (uint8_t *)out + first * out_sample_bytes;
        for (uint32_t i = 0; windows != nullptr && i < job.batch; i++) {
            const normalize_window *window = &windows[first + i];
            job.windows[i] = (window->y * job.in_row + window->x * params->channels) | (window->flip ? FLIP : 0);
        }
        const uint32_t columns = job.batch < GRID_MAX ? job.batch : GRID_MAX;
        const dim3 grid(tiles, columns, job.batch / columns + (job.batch % columns != 0));
        void *arguments[] = {&job};
        const cudaError_t error = cudaLaunchKernel(kernel, grid, block, arguments, 0, (cudaStream_t)stream);
        if (error != cudaSuccess)
            return error;
    }
    return cudaSuccess;
}
