/* gpu.h - what benchmarks do on a GPU: gpu_cuda.c, or gpu_none.c where feedctl is built without CUDA, in which case
 * gpu_identify() says so and nothing else is ever called.
 *
 * All on the GPU that the process sees first (CUDA_VISIBLE_DEVICES chooses). Every function returns 0 or
 * FEEDD_E_DEVICE, FEEDD_E_MEMORY (the GPU's, or what may be pinned) and the reason. Threads: any. */
#ifndef FEEDD_BENCH_GPU_H
#define FEEDD_BENCH_GPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "feedd_types.h"
#include "normalize.h"

#define GPU_HANDLE_BYTES 64 /* of memory that another process may open */

struct CUstream_st; /* *cudaStream_t */
struct CUevent_st;  /* *cudaEvent_t */

struct gpu_identity {
    char name[256];
    char uuid[FEEDD_UUID_TEXT];
    char driver[32];  /* the CUDA version that the driver is for, "12.4" */
    char runtime[32]; /* the CUDA version of the runtime */
};

int gpu_identify(struct gpu_identity *out, struct feedd_error *err);

/* Bytes that are free, of all processes' together. */
int gpu_memory_free(size_t *bytes, struct feedd_error *err);

int gpu_memory_new(size_t bytes, void **out, struct feedd_error *err);
void gpu_memory_delete(void *memory);

/* Lets another process open it: the handle goes there, and the memory must outlive what is opened. */
int gpu_memory_export(void *memory, uint8_t handle[GPU_HANDLE_BYTES], struct feedd_error *err);
int gpu_memory_import(const uint8_t handle[GPU_HANDLE_BYTES], void **out, struct feedd_error *err);
void gpu_memory_close(void *imported);

/* Host memory, in whole pages, is registered with the GPU, as the daemon does with its rings. */
int gpu_pin(void *host, size_t bytes, struct feedd_error *err);
void gpu_unpin(void *host);

int gpu_stream_new(struct CUstream_st **out, struct feedd_error *err);
void gpu_stream_delete(struct CUstream_st *stream); /* NULL is nothing */
int gpu_stream_wait(struct CUstream_st *stream, struct feedd_error *err);

/* Events that time. @param blocking  who waits for it sleeps, else it spins */
int gpu_event_new(bool blocking, struct CUevent_st **out, struct feedd_error *err);
void gpu_event_delete(struct CUevent_st *event); /* NULL is nothing */
int gpu_event_record(struct CUevent_st *event, struct CUstream_st *stream, struct feedd_error *err);
int gpu_event_wait(struct CUevent_st *event, struct feedd_error *err); /* one never recorded has passed */
int gpu_event_us(struct CUevent_st *from, struct CUevent_st *to, double *us, struct feedd_error *err);
/* What is given to the stream from now on waits for the event. */
int gpu_stream_after(struct CUstream_st *stream, struct CUevent_st *event, struct feedd_error *err);

/* Enqueues a copy of host memory. */
int gpu_copy(void *to, const void *from, size_t bytes, struct CUstream_st *stream, struct feedd_error *err);
/* Enqueues the kernel; the parameters are checked already. */
int gpu_normalize(const struct normalize_params *params, const uint8_t *in, void *out, struct CUstream_st *stream,
                  struct feedd_error *err);

#endif
