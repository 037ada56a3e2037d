/* no_cuda.c - in place of cuda.c where feedd is built without CUDA: there are no GPUs, and status says why. */
#include <stdio.h>

#include "error.h"
#include "gpu.h"

int gpus_start(struct gpus *gpus, char *const *wanted, uint32_t wanted_count, struct inbox *inbox,
               void (*lost)(void *arg, const struct gpu *gpu, const struct feedd_error *err), void *arg,
               struct feedd_error *err)
{
    (void)inbox;
    (void)lost;
    (void)arg;
    *gpus = (struct gpus){.count = 0};
    snprintf(gpus->absent, sizeof(gpus->absent), "it was built without CUDA (cmake -DFEEDD_CUDA=ON)");
    if (wanted != NULL && wanted_count > 0)
        return error_set(err, FEEDD_E_DEVICE, "GPU %s: feedd was built without CUDA (cmake -DFEEDD_CUDA=ON)",
                         wanted[0]);
    return 0;
}

void gpus_stop(struct gpus *gpus)
{
    (void)gpus;
}
