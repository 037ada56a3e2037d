/* cuda_fd.c - a GPU's memory behind a descriptor, mapped for reading: the driver's virtual memory management.
 *
 * Happy path: the descriptor is imported -> a range of addresses -> mapped there -> readable for our device.
 * The runtime has nothing for it, but knows the driver's functions by name: nothing is linked to a driver, which may
 * not be there. What can fail: an old driver lacks the functions; the driver refuses what was passed; memory and
 * addresses run out. Threads: any. */
#include <cuda.h>
#include <cudaTypedefs.h>
#include <pthread.h>
#include <stddef.h>
#include <string.h>

#include "cuda_internal.h"
#include "error.h"

/* That of CUDA 10.2, where the functions came: a later one might ask for other signatures. */
#define DRIVER_API 10020

/* CUresult and cudaError_t are numbered alike, so that the runtime names errors of either. */
_Static_assert((int)CUDA_ERROR_OUT_OF_MEMORY == (int)cudaErrorMemoryAllocation, "numbered alike");
_Static_assert((int)CUDA_ERROR_INVALID_VALUE == (int)cudaErrorInvalidValue, "numbered alike");
_Static_assert((int)CUDA_ERROR_NOT_SUPPORTED == (int)cudaErrorNotSupported, "numbered alike");

static struct driver {
    PFN_cuMemImportFromShareableHandle_v10020 import;
    PFN_cuMemAddressReserve_v10020 reserve;
    PFN_cuMemMap_v10020 map;
    PFN_cuMemSetAccess_v10020 set_access;
    PFN_cuMemUnmap_v10020 unmap;
    PFN_cuMemAddressFree_v10020 free;
    PFN_cuMemRelease_v10020 release;
} driver;
static pthread_mutex_t driver_lock = PTHREAD_MUTEX_INITIALIZER;
static bool driver_found; /* under the lock: the table is filled, and constant from then on */

static const struct {
    const char *name;
    size_t offset;
} functions[] = {
    {"cuMemImportFromShareableHandle", offsetof(struct driver, import)},
    {"cuMemAddressReserve", offsetof(struct driver, reserve)},
    {"cuMemMap", offsetof(struct driver, map)},
    {"cuMemSetAccess", offsetof(struct driver, set_access)},
    {"cuMemUnmap", offsetof(struct driver, unmap)},
    {"cuMemAddressFree", offsetof(struct driver, free)},
    {"cuMemRelease", offsetof(struct driver, release)},
};

static int find_function(const char *name, void **out, struct feedd_error *err)
{
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
    cudaError_t error = cudaGetDriverEntryPointByVersion(name, out, DRIVER_API, cudaEnableDefault, &found);
#else
    cudaError_t error = cudaGetDriverEntryPoint(name, out, cudaEnableDefault, &found);
#endif
    if (error != cudaSuccess)
        return cuda_failed(error, name, err);
    return found == cudaDriverEntryPointSuccess ? 0 : error_set(err, FEEDD_E_DEVICE, "the driver has no %s()", name);
}

static int find_driver(struct feedd_error *err)
{
    int status = 0;
    pthread_mutex_lock(&driver_lock);
    for (size_t i = 0; status == 0 && !driver_found && i < sizeof(functions) / sizeof(functions[0]); i++) {
        void *function = NULL;
        status = find_function(functions[i].name, &function, err);
        if (status == 0)
            memcpy((char *)&driver + functions[i].offset, &function, sizeof(function));
    }
    driver_found = status == 0;
    pthread_mutex_unlock(&driver_lock);
    return status;
}

/* Gives the addresses back, too. */
static void unmap(CUdeviceptr address, size_t bytes, bool mapped)
{
    if (mapped)
        driver.unmap(address, bytes);
    driver.free(address, bytes);
}

static CUresult map(const struct device *device, CUmemGenericAllocationHandle memory, size_t bytes, CUdeviceptr *out)
{
    const CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device->ordinal},
                                    .flags = CU_MEM_ACCESS_FLAGS_PROT_READ};
    CUdeviceptr address = 0;
    CUresult result = driver.reserve(&address, bytes, 0, 0, 0);
    if (result != CUDA_SUCCESS)
        return result;
    result = driver.map(address, bytes, 0, memory, 0);
    const bool mapped = result == CUDA_SUCCESS;
    if (mapped)
        result = driver.set_access(address, bytes, &access, 1);
    if (result == CUDA_SUCCESS)
        *out = address;
    else
        unmap(address, bytes, mapped);
    return result;
}

static int import(const struct device *device, int fd, size_t bytes, CUdeviceptr *out, struct feedd_error *err)
{
    CUmemGenericAllocationHandle memory;
    CUresult result = driver.import(&memory, (void *)(uintptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (result != CUDA_SUCCESS)
        return cuda_failed((cudaError_t)result, "importing the daemon's GPU memory by its descriptor", err);
    result = map(device, memory, bytes, out);
    driver.release(memory); /* what is mapped stays */
    if (result != CUDA_SUCCESS)
        return cuda_failed((cudaError_t)result, "mapping the daemon's GPU memory by its descriptor", err);
    return 0;
}

int device_import(const struct device *device, int fd, uint64_t bytes, void **out, struct feedd_error *err)
{
    struct cuda_visit visit;
    CUdeviceptr address = 0;
    cudaError_t error = cuda_visit_begin(device, &visit);
    if (error != cudaSuccess)
        return cuda_failed(error, "mapping the daemon's GPU memory", err);
    error = cudaSetDevice(device->ordinal); /* also makes the primary context, which the driver needs */
    int status = error == cudaSuccess ? find_driver(err) : cuda_failed(error, "mapping the daemon's GPU memory", err);
    if (status == 0)
        status = import(device, fd, bytes, &address, err);
    cuda_visit_end(device, &visit);
    if (status == 0)
        *out = (void *)(uintptr_t)address;
    return status;
}

void device_unimport(const struct device *device, void *base, uint64_t bytes)
{
    struct cuda_visit visit;
    if (cuda_visit_begin(device, &visit) != cudaSuccess)
        return;
    unmap((CUdeviceptr)(uintptr_t)base, bytes, true);
    cuda_visit_end(device, &visit);
}
