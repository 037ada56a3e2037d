/* normalize_host.c - what to compute with: checks of the parameters, the constants, the choice of instructions.
 *
 * Happy path: normalize_check() once, then normalize_host() for every batch.
 * What can fail: normalize_check() alone; the others rely on it.
 * Threads: any. Two that choose at the same time choose the same. */
#include <float.h>
#include <math.h>
#include <string.h>

#ifdef NORMALIZE_AVX2
#include <cpuid.h>
#endif

#include "normalize_internal.h"

#define BYTES_MAX ((uint64_t)1 << 62)

/* Whether a batch of such images, none of the factors 0, takes at most BYTES_MAX. */
static int fits(const struct normalize_params *p, uint32_t height, uint32_t width, size_t element)
{
    return BYTES_MAX / p->batch / height / width / p->channels / element > 0;
}

const char *normalize_check(const struct normalize_params *p)
{
    if (p->batch == 0 || p->in_height == 0 || p->in_width == 0 || p->out_height == 0 || p->out_width == 0)
        return "batch, heights and widths must be at least 1";
    if (p->channels == 0 || p->channels > NORMALIZE_CHANNELS_MAX)
        return "channels must be 1 to 4";
    if (p->out_height > p->in_height || p->out_width > p->in_width)
        return "the output must not be higher or wider than the input";
    if (p->dtype < NORMALIZE_U8 || p->dtype > NORMALIZE_F32)
        return "dtype must be u8, i8, f16, bf16 or f32";
    if (p->layout != NORMALIZE_NHWC && p->layout != NORMALIZE_NCHW)
        return "layout must be NHWC or NCHW";
    if (!fits(p, p->in_height, p->in_width, 1) || !fits(p, p->out_height, p->out_width, element_bytes(p->dtype)))
        return "a batch must not take more than 2^62 bytes";
    if (p->dtype == NORMALIZE_U8)
        return NULL;

    if (!isfinite(p->scale) || p->scale <= 0)
        return "scale must be finite and above 0";
    for (uint32_t c = 0; c < p->channels; c++) {
        if (!isfinite(p->mean[c]))
            return "mean must be finite";
        if (!isfinite(p->std[c]) || p->std[c] <= 0)
            return "std must be finite and above 0";
        double factor = 1 / (p->std[c] * p->scale);
        if (fabs(p->mean[c] * p->scale) > FLT_MAX || !(factor >= FLT_MIN && factor <= FLT_MAX))
            return "mean * scale and 1 / (std * scale) must be in the range of a float";
    }
    return NULL;
}

size_t normalize_bytes(const struct normalize_params *p)
{
    return (size_t)p->batch * p->out_height * p->out_width * p->channels * element_bytes(p->dtype);
}

void normalize_constants(const struct normalize_params *p, struct normalize_constants *out)
{
    memset(out, 0, sizeof(*out));
    if (p->dtype == NORMALIZE_U8)
        return;
    for (uint32_t c = 0; c < p->channels; c++) {
        out->offset[c] = (float)(p->mean[c] * p->scale);
        out->factor[c] = (float)(1 / (p->std[c] * p->scale));
    }
}

typedef void kernel(const struct normalize_params *, const uint8_t *, const struct normalize_window *, void *);

static kernel *choose(void)
{
#ifdef NORMALIZE_AVX2
    /* F16C by hand: clang 14 doesn't know its name. */
    unsigned eax, ebx, ecx, edx;
    if (__builtin_cpu_supports("avx2") && __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C))
        return normalize_avx2;
#endif
    return normalize_scalar;
}

/* Kept because CPUID is an instruction that hypervisors emulate. */
static kernel *chosen(void)
{
    static kernel *_Atomic choice;
    kernel *known = choice;
    if (known == NULL)
        choice = known = choose();
    return known;
}

void normalize_host(const struct normalize_params *params, const uint8_t *in, const struct normalize_window *windows,
                    void *out)
{
    chosen()(params, in, windows, out);
}

const char *normalize_host_name(void)
{
    return chosen() == normalize_scalar ? "scalar" : "avx2";
}
