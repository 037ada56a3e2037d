/* no_cuda.c - in place of cuda.c where libfeedd is built without CUDA: no device is found, and so nothing else called
 * but what frees nothing. */
#include "device.h"
#include "error.h"

int device_find(const char *name, struct device *out, struct feedd_error *err)
{
    (void)out;
    return error_set(err, FEEDD_E_DEVICE,
                     "device %.80s: this libfeedd was built without CUDA (cmake -DFEEDD_CUDA=ON); host memory works",
                     name);
}

int device_map(const struct device *device, const uint8_t handle[DEVICE_HANDLE_BYTES], void **out,
               struct feedd_error *err)
{
    (void)device;
    (void)handle;
    (void)out;
    return error_set(err, FEEDD_E_INTERNAL, "no CUDA");
}

void device_unmap(const struct device *device, void *base)
{
    (void)device;
    (void)base;
}

int device_import(const struct device *device, int fd, uint64_t bytes, void **out, struct feedd_error *err)
{
    (void)device;
    (void)fd;
    (void)bytes;
    (void)out;
    return error_set(err, FEEDD_E_INTERNAL, "no CUDA");
}

void device_unimport(const struct device *device, void *base, uint64_t bytes)
{
    (void)device;
    (void)base;
    (void)bytes;
}

int device_register(const struct device *device, const void *memory, size_t bytes, struct feedd_error *err)
{
    (void)device;
    (void)memory;
    (void)bytes;
    return error_set(err, FEEDD_E_INTERNAL, "no CUDA");
}

void device_unregister(const struct device *device, const void *memory)
{
    (void)device;
    (void)memory;
}

int device_upload(const struct device *device, void *to, const void *from, size_t bytes, struct CUstream_st *stream,
                  struct feedd_error *err)
{
    (void)device;
    (void)to;
    (void)from;
    (void)bytes;
    (void)stream;
    return error_set(err, FEEDD_E_INTERNAL, "no CUDA");
}

int device_scratch_normalize(const struct device *device, struct device_scratch **scratch, size_t scratch_bytes,
                             const struct normalize_params *params, const uint8_t *in,
                             const struct normalize_window *windows, void *out, struct CUstream_st *stream,
                             struct feedd_error *err)
{
    (void)device;
    (void)scratch;
    (void)scratch_bytes;
    (void)params;
    (void)in;
    (void)windows;
    (void)out;
    (void)stream;
    return error_set(err, FEEDD_E_INTERNAL, "no CUDA");
}

void device_scratch_free(const struct device *device, struct device_scratch *scratch)
{
    (void)device;
    (void)scratch;
}

int device_copy(const struct device *device, void *to, const void *from, size_t bytes, struct CUstream_st *stream,
                struct feedd_error *err)
{
    (void)device;
    (void)to;
    (void)from;
    (void)bytes;
    (void)stream;
    return error_set(err, FEEDD_E_INTERNAL, "no CUDA");
}

int device_read(const struct device *device, void *to, const void *from, size_t bytes, struct feedd_error *err)
{
    (void)device;
    (void)to;
    (void)from;
    (void)bytes;
    return error_set(err, FEEDD_E_INTERNAL, "no CUDA");
}

int device_normalize(const struct device *device, const struct normalize_params *params, const uint8_t *in,
                     const struct normalize_window *windows, void *out, struct CUstream_st *stream,
                     struct feedd_error *err)
{
    (void)device;
    (void)params;
    (void)in;
    (void)windows;
    (void)out;
    (void)stream;
    return error_set(err, FEEDD_E_INTERNAL, "no CUDA");
}

int device_mark(const struct device *device, struct CUstream_st *stream, struct device_mark **mark, bool *idle,
                struct feedd_error *err)
{
    (void)device;
    (void)stream;
    (void)mark;
    (void)idle;
    return error_set(err, FEEDD_E_INTERNAL, "no CUDA");
}

bool device_mark_passed(const struct device_mark *mark)
{
    (void)mark;
    return true;
}

void device_mark_wait(const struct device_mark *mark)
{
    (void)mark;
}

void device_mark_free(struct device_mark *mark)
{
    (void)mark;
}

void device_finish(const struct device *device)
{
    (void)device;
}

void device_waiting_thread(void)
{
}
