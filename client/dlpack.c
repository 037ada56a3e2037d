/* dlpack.c - fields of batches as DLPack tensors: how frameworks read a slot where it is.
 *
 * Happy path: feedd_batch_dlpack() -> the framework makes an array of it -> the last reference to that goes -> the
 * deleter tells the releaser, which gives the batch back.
 * What can fail: making one; then nothing is lent. Deleting can't.
 *
 * The structures are those of dlpack.h, written out here: DLPack 0.8 (DLManagedTensor) and 1.0
 * (DLManagedTensorVersioned), https://dmlc.github.io/dlpack/latest/c_api.html. Strides are given although the tensors
 * are compact: from 1.2 on they have to be.
 * Threads: making is the caller's of the stream; deleters run anywhere. */
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "internal.h"

enum { DL_CPU = 1, DL_CUDA = 2 };                              /* DLDeviceType */
enum { DL_INT = 0, DL_UINT = 1, DL_FLOAT = 2, DL_BFLOAT = 4 }; /* DLDataTypeCode */
#define DL_MAJOR     1u
#define DL_READ_ONLY 1u /* DLPACK_FLAG_BITMASK_READ_ONLY */

struct dl_tensor {
    void *data;
    int32_t device_type, device_id;
    int32_t ndim;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides; /* strides in elements */
    uint64_t byte_offset;
};

struct dl_managed {
    struct dl_tensor tensor;
    void *context;
    void (*deleter)(struct dl_managed *self);
};

struct dl_versioned {
    uint32_t major, minor;
    void *context;
    void (*deleter)(struct dl_versioned *self);
    uint64_t flags;
    struct dl_tensor tensor;
};

struct lent {
    union {
        struct dl_managed managed;
        struct dl_versioned versioned;
    };
    struct feedd_batch *batch;
    int64_t shape[FEEDD_MAX_DIMS + 1], strides[FEEDD_MAX_DIMS + 1];
};

static void delete_lent(struct lent *lent)
{
    releaser_return(lent->batch);
    free(lent);
}

static void delete_managed(struct dl_managed *self)
{
    delete_lent(self->context);
}

static void delete_versioned(struct dl_versioned *self)
{
    delete_lent(self->context);
}

static uint8_t type_code(int dtype)
{
    switch (dtype) {
    case FEEDD_U8:
        return DL_UINT;
    case FEEDD_F16:
    case FEEDD_F32:
        return DL_FLOAT;
    case FEEDD_BF16:
        return DL_BFLOAT;
    default:
        return DL_INT;
    }
}

static struct lent *lent_new(struct feedd_batch *batch, const struct feedd_view *view, bool versioned)
{
    const struct device *device = &batch->map->stream->device;
    bool on_gpu = !batch->map->on_host;
    struct lent *lent = calloc(1, sizeof(*lent));
    if (lent == NULL)
        return NULL;
    struct dl_tensor tensor = {.data = (void *)(uintptr_t)view->data,
                               .device_type = on_gpu ? DL_CUDA : DL_CPU,
                               .device_id = on_gpu ? device->ordinal : 0,
                               .ndim = (int32_t)view->ndim,
                               .code = type_code(view->dtype),
                               .bits = (uint8_t)(8 * dtype_bytes(view->dtype)),
                               .lanes = 1,
                               .shape = lent->shape,
                               .strides = lent->strides};
    int64_t stride = 1;
    for (uint32_t d = view->ndim; d-- > 0;) {
        lent->shape[d] = (int64_t)view->shape[d];
        lent->strides[d] = stride;
        stride *= lent->shape[d];
    }
    lent->batch = batch;
    if (versioned)
        lent->versioned = (struct dl_versioned){
            .major = DL_MAJOR, .context = lent, .deleter = delete_versioned, .flags = DL_READ_ONLY, .tensor = tensor};
    else
        lent->managed = (struct dl_managed){.tensor = tensor, .context = lent, .deleter = delete_managed};
    return lent;
}

FEEDD_API int feedd_batch_dlpack(const struct feedd_batch *handle, uint32_t field, int versioned,
                                 struct CUstream_st *cuda_stream, void **out, struct feedd_error *err)
{
    struct ring_map *map = handle->map;
    struct feedd_client *client = map->stream->client;
    struct feedd_batch *batch = &map->batches[handle->slot];
    struct feedd_view view;
    if (client_check(client, err) == FEEDD_E_FORK)
        return FEEDD_E_FORK;
    if (feedd_batch_view(batch, field, &view) != 0)
        return error_set(err, FEEDD_E_NOT_FOUND, "field %u: there are %u", field, map->layout.field_count);
    if (batch->state != BATCH_HELD)
        return error_set(err, FEEDD_E_STATE, "a batch that is not held is lent");
    struct lent *lent = lent_new(batch, &view, versioned != 0);
    if (lent == NULL)
        return error_set(err, FEEDD_E_MEMORY, "no memory for a tensor");
    int status = releaser_lend(client, batch, cuda_stream, err);
    if (status == 0)
        *out = lent;
    else
        free(lent);
    return status;
}

FEEDD_API int feedd_batch_record(const struct feedd_batch *handle, struct CUstream_st *cuda_stream,
                                 struct feedd_error *err)
{
    struct ring_map *map = handle->map;
    struct feedd_client *client = map->stream->client;
    if (client_check(client, err) == FEEDD_E_FORK)
        return FEEDD_E_FORK;
    return releaser_record(client, &map->batches[handle->slot], cuda_stream, err);
}

/* ---- capsules of Python ---- */

static int (*capsule_is_valid)(void *capsule, const char *name);
static void *(*capsule_get_pointer)(void *capsule, const char *name);

/* Who takes a tensor out of its capsule gives that another name. */
static void destroy_capsule(void *capsule)
{
    if (capsule_is_valid(capsule, "dltensor")) {
        struct dl_managed *managed = capsule_get_pointer(capsule, "dltensor");
        managed->deleter(managed);
    } else if (capsule_is_valid(capsule, "dltensor_versioned")) {
        struct dl_versioned *versioned = capsule_get_pointer(capsule, "dltensor_versioned");
        versioned->deleter(versioned);
    }
}

FEEDD_API void *feedd_capsule_destructor(int (*is_valid)(void *capsule, const char *name),
                                         void *(*get_pointer)(void *capsule, const char *name))
{
    capsule_is_valid = is_valid;
    capsule_get_pointer = get_pointer;
    return (void *)(uintptr_t)destroy_capsule;
}
