/* no_cuda.c - in place of cuda.c where libfeedd is built without CUDA: no device is found, and so nothing else called.
 */
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
