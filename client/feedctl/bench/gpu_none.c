/* gpu_none.c - in place of gpu_cuda.c where feedctl is built without CUDA: there is no GPU, and nothing else is called.
 */
#include "error.h"
#include "gpu.h"

static int absent(struct feedd_error *err)
{
    return error_set(err, FEEDD_E_DEVICE, "this feedctl was built without CUDA (cmake -DFEEDD_CUDA=ON)");
}

int gpu_identify(struct gpu_identity *out, struct feedd_error *err)
{
    (void)out;
    return absent(err);
}

int gpu_memory_free(size_t *bytes, struct feedd_error *err)
{
    (void)bytes;
    return absent(err);
}

int gpu_memory_new(size_t bytes, void **out, struct feedd_error *err)
{
    (void)bytes;
    (void)out;
    return absent(err);
}

void gpu_memory_delete(void *memory)
{
    (void)memory;
}

int gpu_memory_export(void *memory, uint8_t handle[GPU_HANDLE_BYTES], struct feedd_error *err)
{
    (void)memory;
    (void)handle;
    return absent(err);
}

int gpu_memory_import(const uint8_t handle[GPU_HANDLE_BYTES], void **out, struct feedd_error *err)
{
    (void)handle;
    (void)out;
    return absent(err);
}

void gpu_memory_close(void *imported)
{
    (void)imported;
}

int gpu_pin(void *host, size_t bytes, struct feedd_error *err)
{
    (void)host;
    (void)bytes;
    return absent(err);
}

void gpu_unpin(void *host)
{
    (void)host;
}

int gpu_stream_new(struct CUstream_st **out, struct feedd_error *err)
{
    (void)out;
    return absent(err);
}

void gpu_stream_delete(struct CUstream_st *stream)
{
    (void)stream;
}

int gpu_stream_wait(struct CUstream_st *stream, struct feedd_error *err)
{
    (void)stream;
    return absent(err);
}

int gpu_event_new(bool blocking, struct CUevent_st **out, struct feedd_error *err)
{
    (void)blocking;
    (void)out;
    return absent(err);
}

void gpu_event_delete(struct CUevent_st *event)
{
    (void)event;
}

int gpu_event_record(struct CUevent_st *event, struct CUstream_st *stream, struct feedd_error *err)
{
    (void)event;
    (void)stream;
    return absent(err);
}

int gpu_event_wait(struct CUevent_st *event, struct feedd_error *err)
{
    (void)event;
    return absent(err);
}

int gpu_event_us(struct CUevent_st *from, struct CUevent_st *to, double *us, struct feedd_error *err)
{
    (void)from;
    (void)to;
    (void)us;
    return absent(err);
}

int gpu_stream_after(struct CUstream_st *stream, struct CUevent_st *event, struct feedd_error *err)
{
    (void)stream;
    (void)event;
    return absent(err);
}

int gpu_copy(void *to, const void *from, size_t bytes, struct CUstream_st *stream, struct feedd_error *err)
{
    (void)to;
    (void)from;
    (void)bytes;
    (void)stream;
    return absent(err);
}

int gpu_normalize(const struct normalize_params *params, const uint8_t *in, void *out, struct CUstream_st *stream,
                  struct feedd_error *err)
{
    (void)params;
    (void)in;
    (void)out;
    (void)stream;
    return absent(err);
}
