/* cuda_start.c - which GPUs the machine has: gpu.h.
 *
 * Happy path: count -> each one's properties, the NUMA node it is near, and what its driver can do -> its threads start
 * and bring it up.
 * What can fail: no driver, no GPU, which is said to who asks for one; a GPU that was named in the configuration and
 * isn't there; one that doesn't tell its UUID is left out.
 * Threads: loop only. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_internal.h"
#include "error.h"
#include "log.h"
#include "numa.h"
#include "uuid.h"

static bool is_wanted(const char *uuid, char *const *wanted, uint32_t wanted_count)
{
    for (uint32_t i = 0; wanted != NULL && i < wanted_count; i++)
        if (strcmp(wanted[i], uuid) == 0)
            return true;
    return wanted == NULL;
}

static struct cuda_gpu *gpu_new(int ordinal, const struct cudaDeviceProp *properties, const struct cuda_gpu *like)
{
    struct cuda_gpu *gpu = calloc(1, sizeof(*gpu));
    if (gpu == NULL)
        return NULL;
    char bus_id[32];
    snprintf(bus_id, sizeof(bus_id), "%04x:%02x:%02x.0", properties->pciDomainID, properties->pciBusID,
             properties->pciDeviceID);
    *gpu = *like;
    gpu->ordinal = ordinal;
    gpu->gpu.backend = &backend_cuda;
    gpu->gpu.memory_bytes = properties->totalGlobalMem;
    gpu->gpu.node = numa_node_of_pci(bus_id);
    uuid_text(properties->uuid.bytes, gpu->gpu.uuid);
    snprintf(gpu->gpu.name, sizeof(gpu->gpu.name), "%s", properties->name);
    gpu->fd_lacks = cuda_fd_find(&gpu->driver, ordinal);
    gpu->gpu.transports_fd = gpu->fd_lacks == NULL;
    return gpu;
}

/* @return 0 and *out, or NULL in it where it isn't wanted */
static int start_gpu(int ordinal, char *const *wanted, uint32_t wanted_count, const struct cuda_gpu *like,
                     struct gpu **out, struct feedd_error *err)
{
    struct cudaDeviceProp properties;
    char uuid[FEEDD_UUID_TEXT];
    *out = NULL;
    cudaError_t error = cudaGetDeviceProperties(&properties, ordinal);
    if (error != cudaSuccess) {
        log_error("GPU number %d is left out, without its UUID nobody can ask for it: %s", ordinal,
                  cudaGetErrorString(error));
        return 0;
    }
    uuid_text(properties.uuid.bytes, uuid);
    if (!is_wanted(uuid, wanted, wanted_count))
        return 0;
    struct cuda_gpu *gpu = gpu_new(ordinal, &properties, like);
    if (gpu == NULL)
        return error_set(err, FEEDD_E_MEMORY, "no memory for a GPU");
    int status = cuda_gpu_start(gpu, err);
    if (status == 0)
        *out = &gpu->gpu;
    return status;
}

static bool is_driven(const struct gpus *gpus, const char *uuid)
{
    for (uint32_t i = 0; i < gpus->count; i++)
        if (strcmp(gpus->gpu[i]->uuid, uuid) == 0)
            return true;
    return false;
}

int gpus_start(struct gpus *gpus, char *const *wanted, uint32_t wanted_count, struct inbox *inbox,
               void (*lost)(void *arg, const struct gpu *gpu, const struct feedd_error *err), void *arg,
               struct feedd_error *err)
{
    *gpus = (struct gpus){.count = 0};
    if (wanted != NULL && wanted_count == 0) {
        snprintf(gpus->absent, sizeof(gpus->absent), "its configuration says `gpus: none`");
        return 0;
    }
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess)
        count = 0;
    if (error == cudaErrorInsufficientDriver)
        snprintf(gpus->absent, sizeof(gpus->absent), "no NVIDIA driver is installed here, or one before CUDA 12.4");
    else
        snprintf(gpus->absent, sizeof(gpus->absent), "%s%s",
                 cudaGetErrorString(error == cudaSuccess ? cudaErrorNoDevice : error),
                 getenv("CUDA_VISIBLE_DEVICES") != NULL ? ", of those that CUDA_VISIBLE_DEVICES shows" : "");
    const struct cuda_gpu like = {.inbox = inbox, .lost = lost, .lost_arg = arg};
    int status = 0;
    gpus->gpu = calloc((size_t)count + 1, sizeof(*gpus->gpu));
    if (gpus->gpu == NULL)
        return error_set(err, FEEDD_E_MEMORY, "no memory for %d GPUs", count);
    for (int i = 0; status == 0 && i < count; i++) {
        status = start_gpu(i, wanted, wanted_count, &like, &gpus->gpu[gpus->count], err);
        gpus->count += gpus->gpu[gpus->count] != NULL;
    }
    for (uint32_t i = 0; status == 0 && wanted != NULL && i < wanted_count; i++)
        if (!is_driven(gpus, wanted[i]))
            status = error_set(err, FEEDD_E_DEVICE, "GPU %s isn't here: %s", wanted[i],
                               count > 0 ? "this machine has others (nvidia-smi -L)" : gpus->absent);
    if (status != 0)
        gpus_stop(gpus);
    return status;
}

void gpus_stop(struct gpus *gpus)
{
    for (uint32_t i = 0; i < gpus->count; i++)
        cuda_gpu_stop((struct cuda_gpu *)gpus->gpu[i]);
    free(gpus->gpu);
    *gpus = (struct gpus){.count = 0};
}
