/* virtual.c - the fake CUDA driver's virtual memory: cuMemCreate() and what belongs to it.
 *
 * Happy path: create or import an allocation -> reserve addresses -> map -> allow access; then it is memory of the GPU
 * like any other (memory.c). An allocation is a memfd, and what is exported a descriptor of it, by whose name an
 * importer knows whose memory it is. As with all memory of the GPU the host has no access where the GPU sees it; what
 * the GPU may do is held to by copies and kernels, and by how the host's own view is mapped.
 * What can fail: arguments, with the results of a real driver; memory beyond the GPU's; FEEDD_FAKE_NO_VMM.
 * A GPU that has failed is no obstacle to any of it.
 * Threads: any. One lock guards the lists. Unmapping doesn't wait for what uses the memory: a caller that relies on
 * that crashes, as kernels of a real GPU would. */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "driver.h"
#include "fake_cuda.h"

#define GRANULARITY  ((size_t)2 << 20)             /* of an H200 */
#define MEMFD_FORMAT "feedd-fake-vmm-%02x-%016llx" /* of physical GPU and tag */

struct allocation {
    struct allocation *next;
    struct device *device;
    size_t bytes;
    int fd;
    unsigned mappings;
    bool released; /* the handle, which is its address, means nothing any more */
    bool exportable, imported;
};

struct reservation {
    struct reservation *next;
    uint8_t *address;
    size_t bytes;
};

struct mapping {
    struct mapping *next;
    uint8_t *address, *memory; /* the GPU's, the host's */
    struct allocation *allocation;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct allocation *allocations;
static struct reservation *reservations;
static struct mapping *mappings;

void virtual_count(unsigned *handles, unsigned *reserved, unsigned *mapped)
{
    *handles = *reserved = *mapped = 0;
    pthread_mutex_lock(&lock);
    for (const struct allocation *allocation = allocations; allocation != NULL; allocation = allocation->next)
        *handles += !allocation->released;
    for (const struct reservation *reservation = reservations; reservation != NULL; reservation = reservation->next)
        ++*reserved;
    for (const struct mapping *mapping = mappings; mapping != NULL; mapping = mapping->next)
        ++*mapped;
    pthread_mutex_unlock(&lock);
}

static cudaError_t begin(struct call *call, const char *function)
{
    const cudaError_t error = call_begin(call, function, CALL_PROCESS);
    return error == cudaSuccess && setup_no_virtual() ? cudaErrorNotSupported : error;
}

static uint8_t *pointer_of(CUdeviceptr address)
{
    return (uint8_t *)(uintptr_t)address;
}

/* --- allocations; under the lock --- */

static struct allocation *allocation_of(CUmemGenericAllocationHandle handle)
{
    struct allocation *allocation = allocations;
    while (allocation != NULL && ((uintptr_t)allocation != handle || allocation->released))
        allocation = allocation->next;
    return allocation;
}

static struct allocation *allocation_add(const struct allocation *like)
{
    struct allocation *allocation = setup_need(malloc(sizeof(*allocation)));
    *allocation = *like;
    allocation->next = allocations;
    allocations = allocation;
    return allocation;
}

/* Frees it if neither its handle nor a mapping is there any more. */
static void allocation_settle(struct allocation *allocation)
{
    if (!allocation->released || allocation->mappings > 0)
        return;
    struct allocation **link = &allocations;
    while (*link != allocation)
        link = &(*link)->next;
    *link = allocation->next;
    if (!allocation->imported)
        device_give_back(allocation->device, allocation->bytes);
    close(allocation->fd);
    free(allocation);
}

/* @return a memfd of that size, or -1 */
static int memory_file(const struct device *device, size_t bytes)
{
    char name[64];
    unsigned long long tag;
    if (getrandom(&tag, sizeof(tag), 0) != sizeof(tag))
        abort();
    snprintf(name, sizeof(name), MEMFD_FORMAT, (unsigned)device->physical, tag);
    const int fd = memfd_create(name, MFD_CLOEXEC);
    if (fd >= 0 && ftruncate(fd, (off_t)bytes) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static cudaError_t check_properties(const CUmemAllocationProp *properties)
{
    if (properties == NULL || properties->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
        properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        (properties->requestedHandleTypes & ~(unsigned)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0)
        return cudaErrorInvalidValue;
    return device_at(properties->location.id) != NULL ? cudaSuccess : cudaErrorInvalidDevice;
}

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *properties,
                                       CUmemAllocationGranularity_flags option)
{
    struct call call;
    cudaError_t error = begin(&call, __func__);
    if (error == cudaSuccess && (granularity == NULL || (unsigned)option > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED))
        error = cudaErrorInvalidValue;
    if (error == cudaSuccess)
        error = check_properties(properties);
    if (error == cudaSuccess)
        *granularity = GRANULARITY;
    return (CUresult)call_end(&call, error, "%s", "");
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *out, size_t bytes, const CUmemAllocationProp *properties,
                     unsigned long long flags)
{
    struct call call;
    struct allocation *allocation = NULL;
    cudaError_t error = begin(&call, __func__);
    if (error == cudaSuccess && (out == NULL || bytes == 0 || bytes % GRANULARITY != 0 || flags != 0))
        error = cudaErrorInvalidValue;
    if (error == cudaSuccess)
        error = check_properties(properties);
    if (error == cudaSuccess) {
        struct device *device = device_at(properties->location.id);
        const bool fits = device_take(device, bytes);
        const int fd = fits ? memory_file(device, bytes) : -1;
        if (fits && fd < 0)
            device_give_back(device, bytes);
        if (fd < 0) {
            error = cudaErrorMemoryAllocation;
        } else {
            pthread_mutex_lock(&lock);
            allocation = allocation_add(&(struct allocation){
                .device = device, .bytes = bytes, .fd = fd, .exportable = properties->requestedHandleTypes != 0});
            pthread_mutex_unlock(&lock);
            *out = (uintptr_t)allocation;
        }
    }
    return (CUresult)call_end(&call, error, "bytes=%zu handle=%p", bytes, (void *)allocation);
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    struct call call;
    cudaError_t error = begin(&call, __func__);
    if (error == cudaSuccess) {
        pthread_mutex_lock(&lock);
        struct allocation *allocation = allocation_of(handle);
        if (allocation == NULL) {
            error = cudaErrorInvalidValue;
        } else {
            allocation->released = true;
            allocation_settle(allocation);
        }
        pthread_mutex_unlock(&lock);
    }
    return (CUresult)call_end(&call, error, "handle=%#llx", handle);
}

CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                                      unsigned long long flags)
{
    struct call call;
    int fd = -1;
    cudaError_t error = begin(&call, __func__);
    if (error == cudaSuccess && (out == NULL || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || flags != 0))
        error = cudaErrorInvalidValue;
    if (error == cudaSuccess) {
        pthread_mutex_lock(&lock);
        const struct allocation *allocation = allocation_of(handle);
        if (allocation == NULL || !allocation->exportable)
            error = cudaErrorInvalidValue;
        else if ((fd = fcntl(allocation->fd, F_DUPFD_CLOEXEC, 0)) < 0)
            error = cudaErrorOperatingSystem;
        pthread_mutex_unlock(&lock);
    }
    if (error == cudaSuccess)
        memcpy(out, &fd, sizeof(fd));
    return (CUresult)call_end(&call, error, "handle=%#llx fd=%d", handle, fd);
}

/* @return 0 and *out; cudaErrorUnknown for a descriptor that no allocation was exported to */
static cudaError_t import(int fd, struct allocation *out)
{
    char path[64], link[96] = "";
    unsigned physical;
    unsigned long long tag;
    struct stat status;
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    if (readlink(path, link, sizeof(link) - 1) < 0 || fstat(fd, &status) != 0 ||
        sscanf(link, "/memfd:" MEMFD_FORMAT, &physical, &tag) != 2)
        return cudaErrorUnknown;
    *out = (struct allocation){.device = device_of((int)physical), .bytes = (size_t)status.st_size, .imported = true};
    if (out->device == NULL)
        return cudaErrorNotSupported;
    out->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    return out->fd >= 0 ? cudaSuccess : cudaErrorOperatingSystem;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *out, void *packed, CUmemAllocationHandleType type)
{
    struct call call;
    const int fd = (int)(intptr_t)packed;
    struct allocation *allocation = NULL;
    cudaError_t error = begin(&call, __func__);
    if (error == cudaSuccess && (out == NULL || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
        error = cudaErrorInvalidValue;
    if (error == cudaSuccess) {
        struct allocation imported;
        error = import(fd, &imported);
        if (error == cudaSuccess) {
            pthread_mutex_lock(&lock);
            allocation = allocation_add(&imported);
            pthread_mutex_unlock(&lock);
            *out = (uintptr_t)allocation;
        }
    }
    return (CUresult)call_end(&call, error, "fd=%d handle=%p", fd, (void *)allocation);
}

/* --- addresses --- */

CUresult cuMemAddressReserve(CUdeviceptr *out, size_t bytes, size_t alignment, CUdeviceptr wanted,
                             unsigned long long flags)
{
    struct call call;
    uint8_t *address = NULL;
    cudaError_t error = begin(&call, __func__);
    if (error == cudaSuccess && (out == NULL || bytes == 0 || bytes % GRANULARITY != 0 ||
                                 (alignment & (alignment - 1)) != 0 || wanted % GRANULARITY != 0 || flags != 0))
        error = cudaErrorInvalidValue;
    if (error == cudaSuccess) {
        const size_t aligned = alignment > GRANULARITY ? alignment : GRANULARITY;
        uint8_t *all = mmap(NULL, bytes + aligned, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (all == MAP_FAILED) {
            error = cudaErrorMemoryAllocation;
        } else {
            const size_t before = (aligned - (uintptr_t)all % aligned) % aligned;
            address = all + before;
            if (before > 0)
                munmap(all, before);
            munmap(address + bytes, aligned - before);
            struct reservation *reservation = setup_need(malloc(sizeof(*reservation)));
            pthread_mutex_lock(&lock);
            *reservation = (struct reservation){.next = reservations, .address = address, .bytes = bytes};
            reservations = reservation;
            pthread_mutex_unlock(&lock);
            *out = (uintptr_t)address;
        }
    }
    return (CUresult)call_end(&call, error, "bytes=%zu pointer=%p", bytes, (void *)address);
}

/* Under the lock: the first mapping that shares a byte with these, or NULL. */
static struct mapping *mapping_overlapping(const uint8_t *address, size_t bytes)
{
    struct mapping *mapping = mappings;
    while (mapping != NULL &&
           (mapping->address >= address + bytes || address >= mapping->address + mapping->allocation->bytes))
        mapping = mapping->next;
    return mapping;
}

CUresult cuMemAddressFree(CUdeviceptr pointer, size_t bytes)
{
    struct call call;
    uint8_t *const address = pointer_of(pointer);
    cudaError_t error = begin(&call, __func__);
    if (error == cudaSuccess) {
        pthread_mutex_lock(&lock);
        struct reservation **link = &reservations;
        while (*link != NULL && ((*link)->address != address || (*link)->bytes != bytes))
            link = &(*link)->next;
        struct reservation *reservation = *link;
        if (reservation == NULL || mapping_overlapping(address, bytes) != NULL) {
            error = cudaErrorInvalidValue;
        } else {
            *link = reservation->next;
            free(reservation);
            munmap(address, bytes);
        }
        pthread_mutex_unlock(&lock);
    }
    return (CUresult)call_end(&call, error, "pointer=%p bytes=%zu", (void *)address, bytes);
}

/* --- mappings --- */

/* Under the lock. */
static cudaError_t map(uint8_t *address, size_t bytes, size_t offset, struct allocation *allocation)
{
    const struct reservation *reservation = reservations;
    while (reservation != NULL &&
           (address < reservation->address || (size_t)(address - reservation->address) >= reservation->bytes))
        reservation = reservation->next;
    if (allocation == NULL || bytes == 0 || reservation == NULL)
        return cudaErrorInvalidValue;
    if ((uintptr_t)address % GRANULARITY != 0 || offset != 0 || bytes != allocation->bytes)
        return cudaErrorNotSupported;
    if (bytes > reservation->bytes - (size_t)(address - reservation->address) ||
        mapping_overlapping(address, bytes) != NULL)
        return cudaErrorInvalidValue;
    uint8_t *memory = mmap(NULL, bytes, PROT_NONE, MAP_SHARED, allocation->fd, 0);
    if (memory == MAP_FAILED)
        return cudaErrorMemoryAllocation;
    struct mapping *mapping = setup_need(malloc(sizeof(*mapping)));
    *mapping = (struct mapping){.next = mappings, .address = address, .memory = memory, .allocation = allocation};
    mappings = mapping;
    allocation->mappings++;
    memory_map(allocation->device, address, memory, bytes);
    return cudaSuccess;
}

CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags)
{
    struct call call;
    cudaError_t error = begin(&call, __func__);
    if (error == cudaSuccess && flags != 0)
        error = cudaErrorInvalidValue;
    if (error == cudaSuccess) {
        pthread_mutex_lock(&lock);
        error = map(pointer_of(pointer), bytes, offset, allocation_of(handle));
        pthread_mutex_unlock(&lock);
    }
    return (CUresult)call_end(&call, error, "pointer=%#llx bytes=%zu handle=%#llx", pointer, bytes, handle);
}

/* Under the lock: whether the bytes are whole mappings, one behind the other. */
static bool whole_mappings(const uint8_t *address, size_t bytes)
{
    while (bytes > 0) {
        const struct mapping *mapping = mapping_overlapping(address, 1);
        if (mapping == NULL || mapping->address != address || mapping->allocation->bytes > bytes)
            return false;
        address += mapping->allocation->bytes;
        bytes -= mapping->allocation->bytes;
    }
    return true;
}

CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes)
{
    struct call call;
    uint8_t *const address = pointer_of(pointer);
    cudaError_t error = begin(&call, __func__);
    if (error == cudaSuccess) {
        pthread_mutex_lock(&lock);
        if (bytes == 0 || !whole_mappings(address, bytes))
            error = cudaErrorInvalidValue;
        for (struct mapping **link = &mappings; error == cudaSuccess && *link != NULL;) {
            struct mapping *mapping = *link;
            if (mapping->address < address || mapping->address >= address + bytes) {
                link = &mapping->next;
                continue;
            }
            *link = mapping->next;
            memory_unmap(mapping->address);
            munmap(mapping->memory, mapping->allocation->bytes);
            mapping->allocation->mappings--;
            allocation_settle(mapping->allocation);
            free(mapping);
        }
        pthread_mutex_unlock(&lock);
    }
    return (CUresult)call_end(&call, error, "pointer=%p bytes=%zu", (void *)address, bytes);
}

/* What one description says of the mappings there. Under the lock. */
static cudaError_t set_access(const uint8_t *address, size_t bytes, const CUmemAccessDesc *description)
{
    const CUmemAccess_flags flags = description->flags;
    if (flags != CU_MEM_ACCESS_FLAGS_PROT_NONE && flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
        flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
        return cudaErrorInvalidValue;
    if (description->location.type == CU_MEM_LOCATION_TYPE_HOST)
        return cudaErrorNotSupported;
    const struct device *device =
        description->location.type == CU_MEM_LOCATION_TYPE_DEVICE ? device_at(description->location.id) : NULL;
    if (device == NULL)
        return cudaErrorInvalidValue;
    for (struct mapping *mapping = mappings; mapping != NULL; mapping = mapping->next) {
        if (mapping->address < address || mapping->address >= address + bytes)
            continue;
        if (mapping->allocation->device != device)
            return cudaErrorInvalidDevice; /* these GPUs can't reach one another's memory */
        _Static_assert((int)CU_MEM_ACCESS_FLAGS_PROT_READ == MEMORY_READ &&
                           (int)CU_MEM_ACCESS_FLAGS_PROT_READWRITE == (MEMORY_READ | MEMORY_WRITE),
                       "one number for both");
        mprotect(mapping->memory, mapping->allocation->bytes,
                 (flags & MEMORY_READ ? PROT_READ : PROT_NONE) | (flags & MEMORY_WRITE ? PROT_WRITE : PROT_NONE));
        memory_set_access(mapping->address, (unsigned)flags);
    }
    return cudaSuccess;
}

CUresult cuMemSetAccess(CUdeviceptr pointer, size_t bytes, const CUmemAccessDesc *descriptions, size_t count)
{
    struct call call;
    const uint8_t *const address = pointer_of(pointer);
    cudaError_t error = begin(&call, __func__);
    if (error == cudaSuccess && (bytes == 0 || descriptions == NULL || count == 0))
        error = cudaErrorInvalidValue;
    if (error == cudaSuccess) {
        pthread_mutex_lock(&lock);
        if (!whole_mappings(address, bytes))
            error = cudaErrorInvalidValue;
        for (size_t i = 0; error == cudaSuccess && i < count; i++)
            error = set_access(address, bytes, &descriptions[i]);
        pthread_mutex_unlock(&lock);
    }
    return (CUresult)call_end(&call, error, "pointer=%p bytes=%zu flags=%d", (const void *)address, bytes,
                              descriptions != NULL && count > 0 ? (int)descriptions[0].flags : -1);
}
