/* cuda_internal.h - what cuda.c and cuda_fd.c share.
 *
 * Threads: any. */
#ifndef FEEDD_CUDA_INTERNAL_H
#define FEEDD_CUDA_INTERNAL_H

#include <cuda_runtime_api.h>

#include "device.h"

/* While another device is current, and while graphs are captured by other threads, which allow few calls. */
struct cuda_visit {
    int before; /* the device that was current */
    enum cudaStreamCaptureMode mode;
};

/* Makes the device current, and lets calls be made that a capture would forbid. @return cudaSuccess: to be ended */
cudaError_t cuda_visit_begin(const struct device *device, struct cuda_visit *visit);
void cuda_visit_end(const struct device *device, struct cuda_visit *visit);

/* @return FEEDD_E_MEMORY where the device has run out of it, else FEEDD_E_DEVICE */
int cuda_failed(cudaError_t error, const char *what, struct feedd_error *err);

#endif
