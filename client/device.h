/* device.h - what libfeedd does on a GPU: cuda.c and cuda_fd.c, or no_cuda.c where it is built without CUDA, in which
 * case nothing but device_find() and device_scratch_free() of NULL is ever called.
 *
 * Everything happens in the primary contexts of the process, which frameworks use too; libfeedd makes none of its own.
 * The calling thread's current device is left as it was.
 * Threads: any. */
#ifndef FEEDD_DEVICE_H
#define FEEDD_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "feedd_types.h"
#include "normalize.h"

struct CUstream_st; /* *cudaStream_t */

struct device {
    int ordinal; /* of CUDA's, in this process; -1: host memory */
    char uuid[FEEDD_UUID_TEXT];
};

#define DEVICE_HANDLE_BYTES 64 /* of a cudaIpcMemHandle_t */

/* By name: "cuda" (the calling thread's current device), "cuda:N", or a UUID.
 * @return 0 and *out; FEEDD_E_DEVICE: what is missing; FEEDD_E_ARGUMENT: no such name */
int device_find(const char *name, struct device *out, struct feedd_error *err);

/* Opens another process' memory; once in this one, and counted. @return 0 and *out, the start of that memory, to be
 * given to device_unmap() */
int device_map(const struct device *device, const uint8_t handle[DEVICE_HANDLE_BYTES], void **out,
               struct feedd_error *err);
void device_unmap(const struct device *device, void *base);

/* Maps GPU memory behind a descriptor, for reading alone: a kernel of this process that writes there is ended by the
 * GPU. Each call maps it anew.
 * @param fd     the caller's, who may close it
 * @param bytes  of that memory
 * @return 0 and *out, to be given to device_unimport(); FEEDD_E_DEVICE, FEEDD_E_MEMORY */
int device_import(const struct device *device, int fd, uint64_t bytes, void **out, struct feedd_error *err);
void device_unimport(const struct device *device, void *base, uint64_t bytes);

/* Lets the device read a read-only mapping of host memory at full speed. */
int device_register(const struct device *device, const void *memory, size_t bytes, struct feedd_error *err);
void device_unregister(const struct device *device, const void *memory);

/* Enqueues a copy from host memory that is registered to the device's. */
int device_upload(const struct device *device, void *to, const void *from, size_t bytes, struct CUstream_st *stream,
                  struct feedd_error *err);

/* Device memory that images are copied to on their way from registered host memory to the kernel: one, used again and
 * again, also by different streams, each of which waits for the last user. By one thread at a time. */
struct device_scratch;
/* As device_normalize(), by way of *scratch, which is made at the first call: NULL before.
 * @param scratch_bytes  that it is made with: at least the input's of any call, rounded up to 4 */
int device_scratch_normalize(const struct device *device, struct device_scratch **scratch, size_t scratch_bytes,
                             const struct normalize_params *params, const uint8_t *in,
                             const struct normalize_window *windows, void *out, struct CUstream_st *stream,
                             struct feedd_error *err);
void device_scratch_free(const struct device *device, struct device_scratch *scratch); /* NULL is allowed */

/* Enqueues a copy within the device's memory on `stream`. */
int device_copy(const struct device *device, void *to, const void *from, size_t bytes, struct CUstream_st *stream,
                struct feedd_error *err);

/* Copies to host memory, and waits for that copy alone. */
int device_read(const struct device *device, void *to, const void *from, size_t bytes, struct feedd_error *err);

/* Enqueues the kernel on `stream`. Parameters and windows are checked already. */
int device_normalize(const struct device *device, const struct normalize_params *params, const uint8_t *in,
                     const struct normalize_window *windows, void *out, struct CUstream_st *stream,
                     struct feedd_error *err);

/* A point in a stream that can be waited for. */
struct device_mark;

/* Marks where `stream` stands, unless it has nothing to do.
 * @param mark  one that was passed, to be used again, or NULL: then a new one is made where it is needed
 * @return 0 and *mark, owned by the caller, or *idle; FEEDD_E_STATE: the stream is being captured */
int device_mark(const struct device *device, struct CUstream_st *stream, struct device_mark **mark, bool *idle,
                struct feedd_error *err);
bool device_mark_passed(const struct device_mark *mark); /* doesn't wait */
void device_mark_wait(const struct device_mark *mark);   /* sleeps; returns also when the GPU has failed */
void device_mark_free(struct device_mark *mark);

/* Waits for everything that this process has given to the device. */
void device_finish(const struct device *device);

/* The calling thread waits on marks while others may be capturing graphs: that must not disturb them. */
void device_waiting_thread(void);

#endif
