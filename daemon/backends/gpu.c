/* gpu.c - see gpu.h: what doesn't depend on how a GPU is driven. */
#include "gpu.h"

#include <string.h>

#include "error.h"

#define SLAB_ALIGN (2ull << 20)

static uint64_t round_up(uint64_t bytes)
{
    return (bytes + SLAB_ALIGN - 1) / SLAB_ALIGN * SLAB_ALIGN;
}

uint64_t gpu_slab_bytes(const struct ring_spec *spec)
{
    return round_up(slot_ring_bytes(&spec->layout, spec->staging->depth));
}

uint64_t gpu_scratch_stride(const struct ring_spec *spec)
{
    const struct slot_layout *layout = &spec->staging->layout;
    uint64_t image_bytes = layout->fields[0].sample_bytes * layout->batch_size;
    return (image_bytes + SLOT_ALIGN - 1) / SLOT_ALIGN * SLOT_ALIGN;
}

uint64_t gpu_scratch_bytes(const struct ring_spec *spec)
{
    return spec->normalize ? round_up(GPU_SCRATCH_IMAGES * gpu_scratch_stride(spec)) : 0;
}

uint64_t gpu_ring_bytes(const struct ring_spec *spec)
{
    return gpu_slab_bytes(spec) + gpu_scratch_bytes(spec);
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
