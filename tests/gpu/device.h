/* device.h - what the GPU programs of the tests share: calls that must succeed, random bytes, and which GPU this is.
 *
 * What can fail: everything of CUDA; the program then says what and ends with 2, or with 77, which ctest counts as
 * skipped, where there is no GPU. C and C++. Threads: one. */
#ifndef FEEDD_TESTS_DEVICE_H
#define FEEDD_TESTS_DEVICE_H

#include <cuda_runtime_api.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define TRY(call) try_call((call), #call, __FILE__, __LINE__)

static inline void try_call(cudaError_t error, const char *call, const char *file, int line)
{
    if (error == cudaSuccess)
        return;
    fprintf(stderr, "%s:%d: %s: %s\n", file, line, call, cudaGetErrorString(error));
    exit(2);
}

/* SplitMix64, as by Vigna. */
static inline uint64_t random_bits(uint64_t *state)
{
    uint64_t z = (*state += 0x9E3779B97F4A7C15);
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
    z = (z ^ z >> 27) * 0x94D049BB133111EB;
    return z ^ z >> 31;
}

static inline uint32_t random_below(uint64_t *state, uint32_t limit)
{
    return (uint32_t)(random_bits(state) % limit);
}

/* @param bytes  a multiple of 8 */
static inline void random_fill(uint64_t *state, void *to, size_t bytes)
{
    for (size_t i = 0; i < bytes / 8; i++)
        ((uint64_t *)to)[i] = random_bits(state);
}

/* First of all CUDA calls: ends the program where there is no GPU. */
static inline void need_device(void)
{
    int count;
    const cudaError_t absent = cudaGetDeviceCount(&count);
    if (absent == cudaErrorNoDevice || absent == cudaErrorInsufficientDriver) {
        fflush(stdout);
        fprintf(stderr, "SKIP: no GPU: %s\n",
                absent == cudaErrorNoDevice ? cudaGetErrorString(absent) : "no NVIDIA driver, or one before CUDA 12.4");
        exit(77);
    }
    TRY(absent);
}

static inline void print_device(void)
{
    struct cudaDeviceProp properties;
    int device, driver, runtime;
    char date[32];
    const time_t now = time(NULL);
    need_device();
    TRY(cudaGetDevice(&device));
    TRY(cudaGetDeviceProperties(&properties, device));
    TRY(cudaDriverGetVersion(&driver));
    TRY(cudaRuntimeGetVersion(&runtime));
    strftime(date, sizeof(date), "%Y-%m-%d %H:%M:%S UTC", gmtime(&now));
    printf("%s, sm_%d%d, %d multiprocessors, L2 %d MiB; driver for CUDA %d.%d, runtime %d.%d; %s\n", properties.name,
           properties.major, properties.minor, properties.multiProcessorCount, properties.l2CacheSize >> 20,
           driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10, date);
}

#endif
