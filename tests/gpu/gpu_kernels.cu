/* gpu_kernels.cu - see gpu_kernels.h: its kernels on a real GPU.
 *
 * gpu_spin() takes the whole GPU, a block on each multiprocessor, and lasts `ms` of the time in which it runs: a time
 * slice that another process gets in between is seen as a jump of the clock, and not counted. So the number of such
 * kernels, one after the other, shows what others take from this process, as it would of kernels with real work.
 * gpu_checksum() adds up in a word of the GPU's, one of a few thousand in turn: so many may be queued at a time.
 * What can fail: the launch. Threads: any. */
#include <atomic>
#include <cuda_runtime.h>

#include "gpu_kernels.h"

#define BLOCK       1024
#define STEP_MAX_NS 10000 /* between two looks at the clock; what is beyond was somebody else's */
#define SUMS        4096

__device__ static unsigned long long sums[SUMS];
static std::atomic<unsigned> next_sum;

__device__ static uint64_t clock_ns(void)
{
    uint64_t ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
}

__global__ static void spin(uint64_t duration_ns)
{
    if (threadIdx.x == 0) {
        uint64_t spent = 0, last = clock_ns();
        while (spent < duration_ns) {
            const uint64_t now = clock_ns(), step = now - last;
            spent += step < STEP_MAX_NS ? step : STEP_MAX_NS;
            last = now;
        }
    }
    __syncthreads();
}

__global__ static void checksum(const uint8_t *bytes, size_t count, unsigned long long *sum)
{
    const size_t stride = (size_t)gridDim.x * blockDim.x;
    uint64_t part = 0;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride)
        part += (uint64_t)(bytes[i] + 1) * (i * 2654435761u + 12345);
    for (int lanes = 16; lanes > 0; lanes /= 2)
        part += __shfl_down_sync(0xFFFFFFFF, part, lanes);
    if (threadIdx.x % 32 == 0)
        atomicAdd(sum, (unsigned long long)part);
}

__global__ static void fill(uint8_t *bytes, size_t count, uint8_t value)
{
    const size_t stride = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride)
        bytes[i] = value;
}

static cudaError_t multiprocessors(int *count)
{
    int device;
    const cudaError_t error = cudaGetDevice(&device);
    return error == cudaSuccess ? cudaDeviceGetAttribute(count, cudaDevAttrMultiProcessorCount, device) : error;
}

int gpu_spin(unsigned ms, void *stream)
{
    int count;
    cudaError_t error = multiprocessors(&count);
    if (error == cudaSuccess) {
        uint64_t ns = ms * (uint64_t)1000000;
        void *arguments[] = {&ns};
        error = cudaLaunchKernel((const void *)spin, count, BLOCK, arguments, 0, (cudaStream_t)stream);
    }
    return error;
}

int gpu_checksum(const void *device, size_t bytes, uint64_t *pinned_out, void *to)
{
    cudaStream_t stream = (cudaStream_t)to;
    void *all_sums;
    int count;
    cudaError_t error = multiprocessors(&count);
    if (error == cudaSuccess)
        error = cudaGetSymbolAddress(&all_sums, sums);
    if (error != cudaSuccess)
        return error;
    unsigned long long *sum = (unsigned long long *)all_sums + next_sum++ % SUMS;
    error = cudaMemsetAsync(sum, 0, sizeof(*sum), stream);
    if (error == cudaSuccess) {
        void *arguments[] = {&device, &bytes, &sum};
        error = cudaLaunchKernel((const void *)checksum, 2 * count, BLOCK, arguments, 0, stream);
    }
    return error == cudaSuccess ? cudaMemcpyAsync(pinned_out, sum, sizeof(*sum), cudaMemcpyDefault, stream) : error;
}

int gpu_fill(void *device, size_t bytes, uint8_t value, void *stream)
{
    int count;
    cudaError_t error = multiprocessors(&count);
    if (error == cudaSuccess) {
        void *arguments[] = {&device, &bytes, &value};
        error = cudaLaunchKernel((const void *)fill, 2 * count, BLOCK, arguments, 0, (cudaStream_t)stream);
    }
    return error;
}
