/* gpu.c - see gpu.h: what doesn't depend on how a GPU is driven. */
#include "gpu.h"

#include <string.h>

#include "error.h"

#define SLAB_ALIGN (2ull << 20)

uint64_t gpu_slab_bytes(const struct slot_layout *layout, uint32_t depth)
{
    return (slot_ring_bytes(layout, depth) + SLAB_ALIGN - 1) / SLAB_ALIGN * SLAB_ALIGN;
}

struct gpu *gpus_find(const struct gpus *gpus, const char *uuid, struct feedd_error *err)
{
    for (uint32_t i = 0; i < gpus->count; i++) {
        struct gpu *gpu = gpus->gpu[i];
        if (strcmp(gpu->uuid, uuid) != 0)
            continue;
        if (atomic_load_explicit(&gpu->state, memory_order_acquire) != GPU_DOWN)
            return gpu;
        error_set(err, FEEDD_E_DEVICE, "%s (%s) is down: %.700s", gpu->uuid, gpu->name, gpu->error.message);
        return NULL;
    }
    if (gpus->count == 0)
        error_set(err, FEEDD_E_DEVICE, "feedd drives no GPU: %s", gpus->absent);
    else
        error_set(err, FEEDD_E_DEVICE, "feedd doesn't drive GPU '%.80s'; it drives %u, the first is %s (%s)", uuid,
                  gpus->count, gpus->gpu[0]->uuid, gpus->gpu[0]->name);
    return NULL;
}

void gpu_tick(struct gpu *gpu, uint64_t span_ns)
{
    uint64_t copies = atomic_load_explicit(&gpu->stats.copies, memory_order_relaxed);
    uint64_t copied_bytes = atomic_load_explicit(&gpu->stats.copied_bytes, memory_order_relaxed);
    uint64_t copy_ns = atomic_load_explicit(&gpu->stats.copy_ns, memory_order_relaxed);
    double span = (double)span_ns;
    gpu->rate.copies_s = (double)(copies - gpu->rate.copies) * 1e9 / span;
    gpu->rate.copied_bytes_s = (double)(copied_bytes - gpu->rate.copied_bytes) * 1e9 / span;
    gpu->rate.busy = (double)(copy_ns - gpu->rate.copy_ns) / span;
    if (gpu->rate.busy > 1) /* a long copy that ended in this second */
        gpu->rate.busy = 1;
    gpu->rate.copies = copies;
    gpu->rate.copied_bytes = copied_bytes;
    gpu->rate.copy_ns = copy_ns;
}
