/* normalize_cuda.h - the same as normalize_host() on the GPU, bit for bit; see normalize.h for what is computed.
 *
 * Plain C without a type of CUDA. Thread-safe; no state. */
#ifndef FEEDD_NORMALIZE_CUDA_H
#define FEEDD_NORMALIZE_CUDA_H

#include "normalize.h"

#ifdef __cplusplus
extern "C" {
#endif

#define NORMALIZE_CUDA_SAMPLE_MAX ((uint32_t)1 << 30) /* bytes of one sample of the input */

/* Enqueues one kernel, with windows one for each 256 samples, without waiting or allocating, so that it may be captured
 * into a CUDA graph.
 * @param params   must have passed normalize_check(); read during the call only
 * @param in       as normalize_host()'s, in memory that the GPU reads; any alignment. Aligned words of 32 bits that
 *                 hold a byte of it are read whole, so up to 3 bytes beside it are read too, but never used
 * @param windows  as normalize_host()'s: in host memory, read during the call only. They travel as parameters of the
 *                 kernel, so that there is no memory of them to keep
 * @param out      in memory that the GPU writes; aligned to the element, fastest when aligned to 16 bytes
 * @param stream   a cudaStream_t of the current device; NULL is the default stream
 * @return a cudaError_t: cudaSuccess (0), cudaErrorInvalidValue (a sample above NORMALIZE_CUDA_SAMPLE_MAX), or what the
 * launch failed with. Errors of the kernel itself show up later, as CUDA's do */
int normalize_cuda_launch(const struct normalize_params *params, const uint8_t *in,
                          const struct normalize_window *windows, void *out, void *stream);

#ifdef __cplusplus
}
#endif
#endif
