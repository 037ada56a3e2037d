/* resize_glue.c - what test_resize.py calls by ctypes: a resizer for each implementation that this CPU has, which serve
 * every call, and plain numbers in place of structs.
 *
 * Built without sanitizers into every variant, for the process is Python's; the unit tests run the same code with them.
 * What can fail: memory. Threads: one. */
#include "resize_internal.h"

#define EXPORT          __attribute__((visibility("default")))
#define IMPLEMENTATIONS 8

EXPORT int scaling_open(void);
EXPORT void scaling_close(void);
EXPORT const char *scaling_name(unsigned number);
EXPORT void scaling_source(const uint32_t numbers[10], const double box[4], uint32_t out[4]);
EXPORT int scaling_apply(unsigned number, const uint32_t numbers[10], const double box[4], const uint8_t *in,
                         const uint32_t held[4], size_t in_stride, uint8_t *out);

static struct resizer *resizers[IMPLEMENTATIONS];

int scaling_open(void)
{
    int rc = 0;
    for (unsigned i = 0; rc == 0 && i < IMPLEMENTATIONS && resize_kernels_at(i) != NULL; i++) {
        rc = resizer_new(&resizers[i], NULL);
        if (rc == 0)
            resizer_use(resizers[i], resize_kernels_at(i));
    }
    return rc;
}

void scaling_close(void)
{
    for (unsigned i = 0; i < IMPLEMENTATIONS; i++)
        resizer_free(resizers[i]);
}

const char *scaling_name(unsigned number)
{
    const struct resize_kernels *kernels = resize_kernels_at(number);
    return kernels != NULL ? kernels->name : NULL;
}

/* numbers: width, height, scaled width and height, window (4), flip, channels. */
static struct resize_spec spec_of(const uint32_t n[10], const double box[4])
{
    return (struct resize_spec){.width = n[0],
                                .height = n[1],
                                .box = {box[0], box[1], box[2], box[3]},
                                .scaled_width = n[2],
                                .scaled_height = n[3],
                                .window = {n[4], n[5], n[6], n[7]},
                                .flip = n[8] != 0,
                                .channels = n[9]};
}

void scaling_source(const uint32_t numbers[10], const double box[4], uint32_t out[4])
{
    const struct resize_spec spec = spec_of(numbers, box);
    const struct rect source = resize_source(&spec);
    out[0] = source.x;
    out[1] = source.y;
    out[2] = source.width;
    out[3] = source.height;
}

int scaling_apply(unsigned number, const uint32_t numbers[10], const double box[4], const uint8_t *in,
                  const uint32_t held[4], size_t in_stride, uint8_t *out)
{
    const struct resize_spec spec = spec_of(numbers, box);
    const struct rect rect = {held[0], held[1], held[2], held[3]};
    return resizer_apply(resizers[number], &spec, in, rect, in_stride, out, NULL);
}
