/* cuda_fd.c - GPU memory that others map by a descriptor: the driver's virtual memory management.
 *
 * Happy path: memory of the GPU -> a range of addresses -> mapped there, readable and writable for us -> exported as a
 * descriptor, with which others map it as they like: libfeedd for reading alone.
 * What can fail: a driver or GPU that can't do it, which is known from the start; everything else, when a ring is made.
 * Threads: cuda_fd_find() before the GPU's threads start; the others on the device thread. */
#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "cuda_internal.h"

/* That of CUDA 10.2, where the newest of the functions came: a later one would ask for other signatures. */
#define DRIVER_API 10020

/* CUresult and cudaError_t are numbered alike (CUDA 10.1 and later), so that the runtime names errors of either. */
_Static_assert((int)CUDA_ERROR_OUT_OF_MEMORY == (int)cudaErrorMemoryAllocation, "numbered alike");
_Static_assert((int)CUDA_ERROR_NOT_SUPPORTED == (int)cudaErrorNotSupported, "numbered alike");
_Static_assert((int)CUDA_ERROR_ILLEGAL_ADDRESS == (int)cudaErrorIllegalAddress, "numbered alike");
_Static_assert((int)CUDA_ERROR_INVALID_HANDLE == (int)cudaErrorInvalidResourceHandle, "numbered alike");

static const struct {
    const char *name;
    size_t offset;
} functions[] = {
    {"cuDeviceGet", offsetof(struct cuda_driver, device_get)},
    {"cuDeviceGetAttribute", offsetof(struct cuda_driver, device_get_attribute)},
    {"cuMemGetAllocationGranularity", offsetof(struct cuda_driver, mem_get_allocation_granularity)},
    {"cuMemCreate", offsetof(struct cuda_driver, mem_create)},
    {"cuMemRelease", offsetof(struct cuda_driver, mem_release)},
    {"cuMemAddressReserve", offsetof(struct cuda_driver, mem_address_reserve)},
    {"cuMemAddressFree", offsetof(struct cuda_driver, mem_address_free)},
    {"cuMemMap", offsetof(struct cuda_driver, mem_map)},
    {"cuMemUnmap", offsetof(struct cuda_driver, mem_unmap)},
    {"cuMemSetAccess", offsetof(struct cuda_driver, mem_set_access)},
    {"cuMemExportToShareableHandle", offsetof(struct cuda_driver, mem_export)},
};

static void *find_function(const char *name)
{
    void *function = NULL;
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
    cudaError_t error = cudaGetDriverEntryPointByVersion(name, &function, DRIVER_API, cudaEnableDefault, &found);
#else
    cudaError_t error = cudaGetDriverEntryPoint(name, &function, cudaEnableDefault, &found);
#endif
    return error == cudaSuccess && found == cudaDriverEntryPointSuccess ? function : NULL;
}

static bool has(const struct cuda_driver *driver, CUdevice_attribute attribute, CUdevice device)
{
    int value = 0;
    return driver->device_get_attribute(&value, attribute, device) == CUDA_SUCCESS && value != 0;
}

const char *cuda_fd_find(struct cuda_driver *driver, int ordinal)
{
    for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
        void *function = find_function(functions[i].name);
        if (function == NULL)
            return functions[i].name;
        memcpy((char *)driver + functions[i].offset, &function, sizeof(function));
    }
    CUdevice device;
    if (driver->device_get(&device, ordinal) != CUDA_SUCCESS ||
        !has(driver, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device))
        return "virtual memory management";
    if (!has(driver, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, device))
        return "memory that is exported as a descriptor";
    return NULL;
}

cudaError_t cuda_fd_allocate(struct cuda_gpu *gpu, uint64_t bytes, struct cuda_fd_memory *out, const char **what)
{
    const struct cuda_driver *driver = &gpu->driver;
    size_t granularity = 0;
    CUdevice device;
    *out = (struct cuda_fd_memory){.fd = -1};
    *what = "asking how memory is handed out";
    CUresult result = driver->device_get(&device, gpu->ordinal);
    if (result != CUDA_SUCCESS)
        return (cudaError_t)result;
    const CUmemLocation here = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
    const CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                            .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                            .location = here};
    const CUmemAccessDesc access = {.location = here, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    result = driver->mem_get_allocation_granularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    if (result != CUDA_SUCCESS)
        return (cudaError_t)result;
    out->bytes = (bytes + granularity - 1) / granularity * granularity;

    *what = "allocating a ring";
    result = driver->mem_create(&out->handle, out->bytes, &properties, 0);
    if (result != CUDA_SUCCESS)
        return (cudaError_t)result;
    out->created = true;

    *what = "mapping a ring";
    CUdeviceptr address;
    result = driver->mem_address_reserve(&address, out->bytes, 0, 0, 0);
    if (result != CUDA_SUCCESS)
        return (cudaError_t)result;
    out->address = address;
    result = driver->mem_map(address, out->bytes, 0, out->handle, 0);
    if (result != CUDA_SUCCESS)
        return (cudaError_t)result;
    out->mapped = true;
    result = driver->mem_set_access(address, out->bytes, &access, 1);
    if (result != CUDA_SUCCESS)
        return (cudaError_t)result;

    *what = "sharing a ring by a descriptor";
    int fd = -1;
    result = driver->mem_export(&fd, out->handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (result != CUDA_SUCCESS)
        return (cudaError_t)result;
    out->fd = fd;
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    return cudaSuccess;
}

void cuda_fd_free(struct cuda_gpu *gpu, struct cuda_fd_memory *memory)
{
    const struct cuda_driver *driver = &gpu->driver;
    if (memory->fd >= 0)
        close(memory->fd);
    if (memory->mapped)
        cuda_check_freed(gpu, (cudaError_t)driver->mem_unmap(memory->address, memory->bytes), "unmapping a ring");
    if (memory->address != 0)
        cuda_check_freed(gpu, (cudaError_t)driver->mem_address_free(memory->address, memory->bytes),
                         "freeing the addresses of a ring");
    if (memory->created)
        cuda_check_freed(gpu, (cudaError_t)driver->mem_release(memory->handle), "freeing a ring");
    *memory = (struct cuda_fd_memory){.fd = -1};
}
