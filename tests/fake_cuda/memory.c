/* memory.c - the fake CUDA runtime's memory and IPC: fake_cuda.h.
 *
 * Device memory is a memfd mapped twice: where the GPU sees it, without any access for the host, and where copies and
 * kernels reach it. An IPC handle names the process, the descriptor and a random tag that is also the memfd's name:
 * whoever opens it finds out whether it still is that memory.
 *
 * What can fail: memory beyond the GPU's; ranges that leave what was allocated or registered; a handle of memory or of
 * a process that is gone.
 * Threads: any. A read-write lock guards the ranges: copies only read them, so they don't order their callers. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fake_cuda.h"

#define PAGE_BYTES       4096
#define MEMFD_PREFIX     "feedd-fake-gpu-"
#define HANDLE_MAGIC     "feeddGPU"
#define HOST_ALLOC_FLAGS (cudaHostAllocPortable | cudaHostAllocMapped | cudaHostAllocWriteCombined)
#define HOST_REGISTER_FLAGS                                                                                            \
    (cudaHostRegisterPortable | cudaHostRegisterMapped | cudaHostRegisterIoMemory | cudaHostRegisterReadOnly)

enum range_kind {
    RANGE_ALLOCATION,
    RANGE_IMPORT,
    RANGE_REGISTERED,
    RANGE_HOST_ALLOCATION,
    RANGE_MAPPING, /* virtual.c */
    RANGE_KINDS
};

/* Memory that the GPU can use. */
struct range {
    struct range *next;
    enum range_kind kind;
    struct device *device;
    uint8_t *address; /* as the GPU sees it */
    uint8_t *memory;  /* as the host does; the same but for device memory */
    size_t bytes;
    unsigned refused; /* of enum memory_access: what the GPU must not do with it */
    int fd;           /* of device memory, but for a mapping, which virtual.c owns */
    uint64_t tag;
    unsigned opens; /* of an import */
};

struct handle {
    char magic[8];
    int pid, fd, physical;
    uint64_t bytes, tag;
};
_Static_assert(sizeof(struct handle) <= sizeof(cudaIpcMemHandle_t), "an IPC handle holds it");

static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
static struct range *ranges;
static pthread_mutex_t import_lock = PTHREAD_MUTEX_INITIALIZER;

static bool on_device(const struct range *range)
{
    return range->kind == RANGE_ALLOCATION || range->kind == RANGE_IMPORT || range->kind == RANGE_MAPPING;
}

/* Under the lock: the range that holds the address, or NULL. */
static struct range *range_of(const void *address)
{
    for (struct range *range = ranges; range != NULL; range = range->next)
        if ((const uint8_t *)address >= range->address &&
            (size_t)((const uint8_t *)address - range->address) < range->bytes)
            return range;
    return NULL;
}

/* Under the lock: the first range that shares a byte with these, or NULL. */
static struct range *range_overlapping(const void *address, size_t bytes)
{
    const uintptr_t first = (uintptr_t)address;
    for (struct range *range = ranges; range != NULL; range = range->next) {
        const uintptr_t other = (uintptr_t)range->address;
        if (first < other ? other - first < bytes : first - other < range->bytes)
            return range;
    }
    return NULL;
}

static void range_add(const struct range *range)
{
    struct range *copy = setup_need(malloc(sizeof(*copy)));
    *copy = *range;
    pthread_rwlock_wrlock(&lock);
    copy->next = ranges;
    ranges = copy;
    pthread_rwlock_unlock(&lock);
}

static void range_release(struct range *range)
{
    if (range->kind == RANGE_ALLOCATION || range->kind == RANGE_IMPORT) {
        const size_t mapped = (range->bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
        munmap(range->address, mapped);
        munmap(range->memory, mapped);
        close(range->fd);
    }
    if (range->kind == RANGE_ALLOCATION)
        device_give_back(range->device, range->bytes);
    if (range->kind == RANGE_HOST_ALLOCATION)
        free(range->memory);
    free(range);
}

/* Takes out and releases the range of that kind that begins there.
 * @return whether there was one */
static bool range_remove(const void *address, enum range_kind kind)
{
    struct range *found = NULL;
    pthread_rwlock_wrlock(&lock);
    for (struct range **link = &ranges; *link != NULL && found == NULL; link = &(*link)->next)
        if ((*link)->address == address && (*link)->kind == kind) {
            found = *link;
            *link = found->next;
            break;
        }
    pthread_rwlock_unlock(&lock);
    if (found != NULL)
        range_release(found);
    return found != NULL;
}

/* @return whether a range of that kind begins there */
static bool range_begins(const void *address, enum range_kind kind)
{
    pthread_rwlock_rdlock(&lock);
    const struct range *range = range_of(address);
    const bool begins = range != NULL && range->address == address && range->kind == kind;
    pthread_rwlock_unlock(&lock);
    return begins;
}

void *memory_resolve(const void *address, size_t bytes, unsigned access)
{
    pthread_rwlock_rdlock(&lock);
    const struct range *range = range_of(address);
    void *memory = NULL;
    if (range != NULL && (range->refused & access) == 0) {
        const size_t offset = (size_t)((const uint8_t *)address - range->address);
        if (bytes <= range->bytes - offset)
            memory = range->memory + offset;
    }
    pthread_rwlock_unlock(&lock);
    return memory;
}

cudaError_t memory_place(const void *address, size_t bytes, bool by_gpu, enum memory_access access,
                         struct memory_place *out)
{
    cudaError_t error = cudaSuccess;
    pthread_rwlock_rdlock(&lock);
    const struct range *range = range_of(address);
    const size_t offset = range != NULL ? (size_t)((const uint8_t *)address - range->address) : 0;
    if (range != NULL ? bytes > range->bytes - offset || (range->refused & access) != 0
                      : address == NULL || range_overlapping(address, bytes) != NULL)
        error = cudaErrorInvalidValue;
    else if (range != NULL)
        *out = (struct memory_place){.memory = range->memory + offset, .device = on_device(range)};
    else if (by_gpu)
        error = cudaErrorInvalidValue;
    else
        *out = (struct memory_place){.memory = (void *)(uintptr_t)address, .pageable = true};
    pthread_rwlock_unlock(&lock);
    return error;
}

void memory_forget(const struct device *device)
{
    pthread_rwlock_wrlock(&lock);
    for (struct range **link = &ranges; *link != NULL;) {
        struct range *range = *link;
        if (range->device == device && range->kind != RANGE_MAPPING) {
            *link = range->next;
            range_release(range);
        } else {
            link = &range->next;
        }
    }
    pthread_rwlock_unlock(&lock);
}

void memory_count(unsigned *allocations, unsigned *imports, unsigned *registered, unsigned *host_allocations)
{
    unsigned counts[RANGE_KINDS] = {0};
    pthread_rwlock_rdlock(&lock);
    for (const struct range *range = ranges; range != NULL; range = range->next)
        counts[range->kind]++;
    pthread_rwlock_unlock(&lock);
    *allocations = counts[RANGE_ALLOCATION];
    *imports = counts[RANGE_IMPORT];
    *registered = counts[RANGE_REGISTERED];
    *host_allocations = counts[RANGE_HOST_ALLOCATION];
}

/* --- for virtual.c --- */

void memory_map(struct device *device, void *address, void *memory, size_t bytes)
{
    range_add(&(struct range){.kind = RANGE_MAPPING,
                              .device = device,
                              .address = address,
                              .memory = memory,
                              .bytes = bytes,
                              .refused = MEMORY_READ | MEMORY_WRITE});
}

void memory_set_access(const void *address, unsigned access)
{
    pthread_rwlock_wrlock(&lock);
    range_of(address)->refused = (MEMORY_READ | MEMORY_WRITE) & ~access;
    pthread_rwlock_unlock(&lock);
}

void memory_unmap(const void *address)
{
    range_remove(address, RANGE_MAPPING);
}

/* --- device memory --- */

static void memfd_name(uint64_t tag, char *name, size_t size)
{
    snprintf(name, size, MEMFD_PREFIX "%016llx", (unsigned long long)tag);
}

/* Maps range->fd: address without access, memory with.
 * @return false when there is no memory */
static bool map_device(struct range *range)
{
    const size_t mapped = (range->bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    range->address = mmap(NULL, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    range->memory = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, range->fd, 0);
    if (range->address != MAP_FAILED && range->memory != MAP_FAILED)
        return true;
    if (range->address != MAP_FAILED)
        munmap(range->address, mapped);
    if (range->memory != MAP_FAILED)
        munmap(range->memory, mapped);
    return false;
}

static cudaError_t allocate(struct device *device, size_t bytes, void **out)
{
    if (!device_take(device, bytes))
        return cudaErrorMemoryAllocation;
    struct range range = {.kind = RANGE_ALLOCATION, .device = device, .bytes = bytes};
    char name[64];
    if (getrandom(&range.tag, sizeof(range.tag), 0) != sizeof(range.tag))
        abort();
    memfd_name(range.tag, name, sizeof(name));
    range.fd = memfd_create(name, MFD_CLOEXEC);
    if (range.fd < 0 || ftruncate(range.fd, (off_t)bytes) != 0 || !map_device(&range)) {
        if (range.fd >= 0)
            close(range.fd);
        device_give_back(device, bytes);
        return cudaErrorMemoryAllocation;
    }
    range_add(&range);
    *out = range.address;
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **out, size_t bytes)
{
    struct call call;
    void *pointer = NULL;
    cudaError_t error = call_begin(&call, __func__, CALL_DEVICE);
    if (error == cudaSuccess)
        error = capture_forbids();
    if (error == cudaSuccess && out == NULL)
        error = cudaErrorInvalidValue;
    if (error == cudaSuccess) {
        if (bytes > 0)
            error = allocate(call.device, bytes, &pointer);
        *out = pointer; /* NULL when there is no memory */
    }
    return call_end(&call, error, "bytes=%zu pointer=%p", bytes, pointer);
}

cudaError_t cudaFree(void *pointer)
{
    struct call call;
    cudaError_t error = call_begin(&call, __func__, CALL_PROCESS);
    if (error == cudaSuccess)
        error = capture_forbids();
    if (error == cudaSuccess && pointer != NULL) {
        if (range_begins(pointer, RANGE_ALLOCATION))
            queue_wait_all(NULL);
        if (!range_remove(pointer, RANGE_ALLOCATION))
            error = cudaErrorInvalidValue;
    }
    if (error == cudaSuccess)
        error = device_error(call.device);
    return call_end(&call, error, "pointer=%p", pointer);
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    struct call call;
    cudaError_t error = call_begin(&call, __func__, CALL_DEVICE);
    if (error == cudaSuccess && free_bytes != NULL)
        *free_bytes = call.device->memory - atomic_load_explicit(&call.device->allocated, memory_order_relaxed);
    if (error == cudaSuccess && total != NULL)
        *total = call.device->memory;
    return call_end(&call, error, "%s", "");
}

/* --- host memory --- */

/* Whether the process may read, or also write, all of it: /proc/self/maps, proc(5). */
static bool mapped_for(const void *address, size_t bytes, bool writable)
{
    uintptr_t next = (uintptr_t)address;
    const uintptr_t end = next + bytes;
    FILE *maps = fopen("/proc/self/maps", "re");
    char *line = NULL;
    size_t size = 0;
    while (maps != NULL && next < end && getline(&line, &size, maps) > 0) {
        unsigned long first, last;
        char access[5];
        if (sscanf(line, "%lx-%lx %4s", &first, &last, access) == 3 && first <= next && next < last &&
            access[0] == 'r' && (!writable || access[1] == 'w'))
            next = last;
    }
    free(line);
    if (maps != NULL)
        fclose(maps);
    return next >= end;
}

cudaError_t cudaHostRegister(void *pointer, size_t bytes, unsigned flags)
{
    struct call call;
    cudaError_t error = call_begin(&call, __func__, CALL_DEVICE);
    if (error == cudaSuccess)
        error = capture_forbids();
    if (error == cudaSuccess && (pointer == NULL || bytes == 0 || (flags & ~(unsigned)HOST_REGISTER_FLAGS) != 0))
        error = cudaErrorInvalidValue;
    if (error == cudaSuccess) {
        pthread_rwlock_rdlock(&lock);
        const struct range *other = range_overlapping(pointer, bytes);
        if (other != NULL)
            error = other->kind == RANGE_REGISTERED ? cudaErrorHostMemoryAlreadyRegistered : cudaErrorInvalidValue;
        pthread_rwlock_unlock(&lock);
    }
    if (error == cudaSuccess && !mapped_for(pointer, bytes, (flags & cudaHostRegisterReadOnly) == 0))
        error = cudaErrorInvalidValue;
    if (error == cudaSuccess)
        range_add(&(struct range){.kind = RANGE_REGISTERED,
                                  .device = call.device,
                                  .address = pointer,
                                  .memory = pointer,
                                  .bytes = bytes,
                                  .refused = flags & cudaHostRegisterReadOnly ? MEMORY_WRITE : 0});
    return call_end(&call, error, "pointer=%p bytes=%zu flags=%u", pointer, bytes, flags);
}

cudaError_t cudaHostUnregister(void *pointer)
{
    struct call call;
    cudaError_t error = call_begin(&call, __func__, CALL_PROCESS);
    if (error == cudaSuccess)
        error = capture_forbids();
    if (error == cudaSuccess && !range_begins(pointer, RANGE_REGISTERED)) {
        pthread_rwlock_rdlock(&lock);
        error = pointer == NULL || range_of(pointer) != NULL ? cudaErrorInvalidValue : cudaErrorHostMemoryNotRegistered;
        pthread_rwlock_unlock(&lock);
    }
    if (error == cudaSuccess) {
        queue_wait_all(NULL);
        if (!range_remove(pointer, RANGE_REGISTERED))
            error = cudaErrorHostMemoryNotRegistered;
    }
    if (error == cudaSuccess)
        error = device_error(call.device);
    return call_end(&call, error, "pointer=%p", pointer);
}

cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned flags)
{
    struct call call;
    void *pointer = NULL;
    cudaError_t error = call_begin(&call, __func__, CALL_DEVICE);
    if (error == cudaSuccess)
        error = capture_forbids();
    if (error == cudaSuccess && (out == NULL || (flags & ~(unsigned)HOST_ALLOC_FLAGS) != 0))
        error = cudaErrorInvalidValue;
    if (error == cudaSuccess && bytes > 0) {
        if (posix_memalign(&pointer, PAGE_BYTES, bytes) != 0)
            error = cudaErrorMemoryAllocation;
        else
            range_add(&(struct range){.kind = RANGE_HOST_ALLOCATION,
                                      .device = call.device,
                                      .address = pointer,
                                      .memory = pointer,
                                      .bytes = bytes});
    }
    if (error == cudaSuccess)
        *out = pointer;
    return call_end(&call, error, "bytes=%zu flags=%u pointer=%p", bytes, flags, pointer);
}

cudaError_t cudaFreeHost(void *pointer)
{
    struct call call;
    cudaError_t error = call_begin(&call, __func__, CALL_PROCESS);
    if (error == cudaSuccess)
        error = capture_forbids();
    if (error == cudaSuccess && pointer != NULL) {
        if (range_begins(pointer, RANGE_HOST_ALLOCATION))
            queue_wait_all(NULL);
        if (!range_remove(pointer, RANGE_HOST_ALLOCATION))
            error = cudaErrorInvalidValue;
    }
    if (error == cudaSuccess)
        error = device_error(call.device);
    return call_end(&call, error, "pointer=%p", pointer);
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *pointer)
{
    struct call call;
    cudaError_t error = call_begin(&call, __func__, CALL_PROCESS);
    if (error == cudaSuccess && attributes == NULL)
        error = cudaErrorInvalidValue;
    if (error == cudaSuccess) {
        memset(attributes, 0, sizeof(*attributes));
        pthread_rwlock_rdlock(&lock);
        const struct range *range = range_of(pointer);
        attributes->type = range == NULL      ? cudaMemoryTypeUnregistered
                           : on_device(range) ? cudaMemoryTypeDevice
                                              : cudaMemoryTypeHost;
        attributes->device = range != NULL ? range->device->ordinal : cudaInvalidDeviceId;
        attributes->devicePointer =
            range != NULL && (range->refused & MEMORY_READ) == 0 ? (void *)(uintptr_t)pointer : NULL;
        attributes->hostPointer = range == NULL || !on_device(range) ? (void *)(uintptr_t)pointer : NULL;
        pthread_rwlock_unlock(&lock);
    }
    return call_end(&call, error, "pointer=%p", pointer);
}

/* --- IPC --- */

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *out, void *pointer)
{
    struct call call;
    cudaError_t error = call_begin(&call, __func__, CALL_DEVICE);
    struct handle handle = {.magic = HANDLE_MAGIC, .pid = (int)getpid()};
    if (error == cudaSuccess) {
        pthread_rwlock_rdlock(&lock);
        const struct range *range = range_of(pointer);
        if (out == NULL || range == NULL || range->kind != RANGE_ALLOCATION) {
            error = cudaErrorInvalidValue;
        } else {
            handle.fd = range->fd;
            handle.physical = range->device->physical;
            handle.bytes = range->bytes;
            handle.tag = range->tag;
        }
        pthread_rwlock_unlock(&lock);
    }
    if (error == cudaSuccess) {
        memset(out, 0, sizeof(*out));
        memcpy(out, &handle, sizeof(handle));
    }
    return call_end(&call, error, "pointer=%p tag=%016llx", pointer, (unsigned long long)handle.tag);
}

/* Opens the memory that the handle names, of another process. */
static cudaError_t open_handle(const struct handle *handle, struct range *range)
{
    const char prefix[] = "/memfd:" MEMFD_PREFIX;
    char path[64], name[64], expected[96], link[96];
    snprintf(path, sizeof(path), "/proc/%d", handle->pid);
    if (access(path, F_OK) != 0)
        return cudaErrorInvalidResourceHandle;
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", handle->pid, handle->fd);
    memfd_name(handle->tag, name, sizeof(name));
    snprintf(expected, sizeof(expected), "/memfd:%s (deleted)", name);
    const ssize_t length = readlink(path, link, sizeof(link) - 1);
    if (length < 0)
        return errno == EACCES ? cudaErrorMapBufferObjectFailed : cudaErrorInvalidValue;
    link[length] = '\0';
    if (strcmp(link, expected) != 0) /* other memory may have taken its place */
        return strncmp(link, prefix, strlen(prefix)) == 0 ? cudaErrorNotPermitted : cudaErrorInvalidValue;
    range->fd = open(path, O_RDWR | O_CLOEXEC);
    if (range->fd < 0)
        return errno == EACCES ? cudaErrorMapBufferObjectFailed : cudaErrorInvalidValue;
    struct stat status;
    if (fstat(range->fd, &status) != 0 || (uint64_t)status.st_size != handle->bytes || !map_device(range)) {
        close(range->fd);
        return cudaErrorMapBufferObjectFailed;
    }
    return cudaSuccess;
}

/* Under import_lock: a handle that two threads open at once is imported once. */
static cudaError_t import(struct device *device, const cudaIpcMemHandle_t *packed, void **out)
{
    struct handle handle;
    memcpy(&handle, packed, sizeof(handle));
    if (memcmp(handle.magic, HANDLE_MAGIC, sizeof(handle.magic)) != 0 || handle.bytes == 0)
        return cudaErrorInvalidValue;
    if (handle.pid == (int)getpid())
        return cudaErrorDeviceUninitialized;
    pthread_rwlock_wrlock(&lock);
    for (struct range *range = ranges; range != NULL; range = range->next)
        if (range->kind == RANGE_IMPORT && range->tag == handle.tag) {
            range->opens++;
            *out = range->address;
            pthread_rwlock_unlock(&lock);
            return cudaSuccess;
        }
    pthread_rwlock_unlock(&lock);
    struct device *owner = device_of(handle.physical);
    struct range range = {.kind = RANGE_IMPORT,
                          .device = owner != NULL ? owner : device,
                          .bytes = (size_t)handle.bytes,
                          .tag = handle.tag,
                          .opens = 1};
    const cudaError_t error = open_handle(&handle, &range);
    if (error == cudaSuccess) {
        range_add(&range);
        *out = range.address;
    }
    return error;
}

cudaError_t cudaIpcOpenMemHandle(void **out, cudaIpcMemHandle_t handle, unsigned flags)
{
    struct call call;
    void *pointer = NULL;
    cudaError_t error = call_begin(&call, __func__, CALL_DEVICE);
    if (error == cudaSuccess && (out == NULL || flags != cudaIpcMemLazyEnablePeerAccess))
        error = cudaErrorInvalidValue;
    if (error == cudaSuccess)
        error = setup_no_ipc();
    if (error == cudaSuccess) {
        pthread_mutex_lock(&import_lock);
        error = import(call.device, &handle, &pointer);
        pthread_mutex_unlock(&import_lock);
    }
    if (error == cudaSuccess)
        *out = pointer;
    return call_end(&call, error, "pointer=%p flags=%u", pointer, flags);
}

cudaError_t cudaIpcCloseMemHandle(void *pointer)
{
    struct call call;
    cudaError_t error = call_begin(&call, __func__, CALL_PROCESS);
    if (error == cudaSuccess && !range_begins(pointer, RANGE_IMPORT))
        error = cudaErrorInvalidValue;
    if (error == cudaSuccess) {
        queue_wait_all(NULL);
        pthread_rwlock_wrlock(&lock);
        struct range *range = range_of(pointer);
        const bool last = range != NULL && range->opens == 1;
        if (range != NULL && !last)
            range->opens--;
        pthread_rwlock_unlock(&lock);
        if (last)
            range_remove(pointer, RANGE_IMPORT);
    }
    if (error == cudaSuccess)
        error = device_error(call.device);
    return call_end(&call, error, "pointer=%p", pointer);
}
