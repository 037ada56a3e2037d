/* gpu_kernels.h - kernels for tests that need one to be slow, to say what memory held when it ran, or to spoil it.
 *
 * The same on a GPU and on the fake one. They return a cudaError_t of the launch; what a kernel itself fails with shows
 * up later, as CUDA's errors do. Plain C without a type of CUDA: `stream` is a cudaStream_t of the current device.
 * Thread-safe. */
#ifndef FEEDD_GPU_KERNELS_H
#define FEEDD_GPU_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Enqueues a kernel that runs for `ms` milliseconds. */
int gpu_spin(unsigned ms, void *stream);

/* Enqueues the sum over i of (device[i] + 1) * (i * 2654435761 + 12345), modulo 2^64: of what the bytes are when it
 * runs. The order of the sum doesn't matter, so it may run in parallel.
 * @param device      memory that the GPU reads
 * @param pinned_out  pinned host memory, or the GPU's; written when the kernel has run */
int gpu_checksum(const void *device, size_t bytes, uint64_t *pinned_out, void *stream);

/* Enqueues a kernel that writes `value` to every byte. */
int gpu_fill(void *device, size_t bytes, uint8_t value, void *stream);

#ifdef __cplusplus
}
#endif
#endif
