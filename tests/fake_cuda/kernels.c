/* kernels.c - the fake CUDA runtime's kernels: kernels/normalize_cuda.h and gpu_kernels.h, run by the CPU.
 *
 * Happy path: launch -> parameters are copied -> on the stream's thread the GPU's addresses become the host's -> the
 * kernel runs. What can fail: memory that the GPU can't use, when the kernel runs: cudaErrorIllegalAddress.
 * Threads: any launches; kernels run on their stream's. */
#include "gpu_kernels.h"

#include <stdlib.h>
#include <string.h>

#include "fake_cuda.h"
#include "normalize_cuda.h"

#define ACCESSES_MAX 2

/* Memory that a kernel uses, as the GPU sees it. */
struct access {
    const void *address;
    size_t bytes;
    enum memory_access access;
};

struct launch {
    void (*kernel)(const void *parameters, void *const memory[]);
    struct access accesses[ACCESSES_MAX];
    unsigned access_count;
    max_align_t parameters[];
};

static cudaError_t run(void *argument)
{
    const struct launch *launch = argument;
    void *memory[ACCESSES_MAX] = {NULL};
    for (unsigned i = 0; i < launch->access_count; i++) {
        const struct access *access = &launch->accesses[i];
        memory[i] = memory_resolve(access->address, access->bytes, access->access);
        if (memory[i] == NULL)
            return cudaErrorIllegalAddress;
    }
    launch->kernel(launch->parameters, memory);
    return cudaSuccess;
}

static struct launch *launch_new(void (*kernel)(const void *parameters, void *const memory[]), size_t parameter_bytes)
{
    struct launch *launch = setup_need(calloc(1, sizeof(*launch) + parameter_bytes));
    launch->kernel = kernel;
    return launch;
}

static void launch_access(struct launch *launch, const void *address, size_t bytes, enum memory_access access)
{
    launch->accesses[launch->access_count++] = (struct access){.address = address, .bytes = bytes, .access = access};
}

/* @param launch  owned here */
static cudaError_t launch_on(const char *function, struct launch *launch, cudaStream_t handle)
{
    const struct access in = launch->accesses[0], out = launch->accesses[1];
    struct call call;
    struct CUstream_st *stream = NULL;
    cudaError_t error = call_begin_async(&call, function);
    if (error == cudaSuccess)
        error = stream_find(handle, &stream);
    if (error == cudaSuccess)
        error = stream_execute(&call, stream, run, launch, false);
    else
        free(launch);
    return call_end(&call, error, "in=%p in_bytes=%zu out=%p out_bytes=%zu stream=%p", in.address, in.bytes,
                    out.address, out.bytes, (void *)handle);
}

struct normalize_job {
    struct normalize_params params;
    bool has_windows;
    struct normalize_window windows[];
};

static void normalize(const void *parameters, void *const memory[])
{
    const struct normalize_job *job = parameters;
    normalize_host(&job->params, memory[0], job->has_windows ? job->windows : NULL, memory[1]);
}

int normalize_cuda_launch(const struct normalize_params *params, const uint8_t *in,
                          const struct normalize_window *windows, void *out, void *stream)
{
    const uint64_t in_sample = (uint64_t)params->in_height * params->in_width * params->channels;
    if (in_sample > NORMALIZE_CUDA_SAMPLE_MAX)
        return cudaErrorInvalidValue;
    const size_t windows_bytes = windows != NULL ? params->batch * sizeof(*windows) : 0;
    struct launch *launch = launch_new(normalize, sizeof(struct normalize_job) + windows_bytes);
    struct normalize_job *job = (struct normalize_job *)launch->parameters;
    job->params = *params;
    job->has_windows = windows != NULL;
    if (windows != NULL)
        memcpy(job->windows, windows, windows_bytes);
    launch_access(launch, in, params->batch * in_sample, MEMORY_READ);
    launch_access(launch, out, normalize_bytes(params), MEMORY_WRITE);
    return launch_on(__func__, launch, stream);
}

static void spin(const void *parameters, void *const memory[])
{
    (void)memory;
    queue_sleep_us(*(const unsigned *)parameters * 1000UL);
}

int gpu_spin(unsigned ms, void *stream)
{
    struct launch *launch = launch_new(spin, sizeof(ms));
    memcpy(launch->parameters, &ms, sizeof(ms));
    return launch_on(__func__, launch, stream);
}

static void checksum(const void *parameters, void *const memory[])
{
    const size_t bytes = *(const size_t *)parameters;
    const uint8_t *in = memory[0];
    uint64_t sum = 0;
    for (size_t i = 0; i < bytes; i++)
        sum += (in[i] + (uint64_t)1) * (i * 2654435761 + 12345);
    memcpy(memory[1], &sum, sizeof(sum));
}

int gpu_checksum(const void *device, size_t bytes, uint64_t *pinned_out, void *stream)
{
    struct launch *launch = launch_new(checksum, sizeof(bytes));
    memcpy(launch->parameters, &bytes, sizeof(bytes));
    launch_access(launch, device, bytes, MEMORY_READ);
    launch_access(launch, pinned_out, sizeof(*pinned_out), MEMORY_WRITE);
    return launch_on(__func__, launch, stream);
}

struct fill_job {
    size_t bytes;
    uint8_t value;
};

static void fill(const void *parameters, void *const memory[])
{
    const struct fill_job *job = parameters;
    memset(memory[0], job->value, job->bytes);
}

int gpu_fill(void *device, size_t bytes, uint8_t value, void *stream)
{
    const struct fill_job job = {.bytes = bytes, .value = value};
    struct launch *launch = launch_new(fill, sizeof(job));
    memcpy(launch->parameters, &job, sizeof(job));
    launch_access(launch, device, bytes, MEMORY_WRITE);
    return launch_on(__func__, launch, stream);
}
