/* test_fake_driver.c - the fake CUDA driver's functions behave as a real driver's where the project could notice.
 *
 * What is expected was read off an NVIDIA H200 with driver 580 and CUDA 13.0, call by call, or is what cuda.h says. The
 * tests of the first list know nothing of the fake: linked with the real runtime and gpu_kernels.cu they say on a GPU
 * whether that holds. The others need the fake, and are left out there.
 *
 * Another process, or one that ends badly, is this program again with the name of a scenario and a descriptor as its
 * standard input. */
#include <check.h>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gpu_kernels.h"

#define GRAIN ((size_t)2 << 20)
#define POSIX CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
#define READ  CU_MEM_ACCESS_FLAGS_PROT_READ
#define WRITE CU_MEM_ACCESS_FLAGS_PROT_READWRITE

/* The driver's functions, as the project gets at them. */
static struct {
    CUresult (*device_get)(CUdevice *, int);
    CUresult (*device_attribute)(int *, CUdevice_attribute, CUdevice);
    CUresult (*error_name)(CUresult, const char **);
    CUresult (*error_string)(CUresult, const char **);
    CUresult (*address_free)(CUdeviceptr, size_t);
    CUresult (*address_reserve)(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
    CUresult (*create)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long);
    CUresult (*export)(void *, CUmemGenericAllocationHandle, CUmemAllocationHandleType, unsigned long long);
    CUresult (*granularity)(size_t *, const CUmemAllocationProp *, CUmemAllocationGranularity_flags);
    CUresult (*import)(CUmemGenericAllocationHandle *, void *, CUmemAllocationHandleType);
    CUresult (*map)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long);
    CUresult (*release)(CUmemGenericAllocationHandle);
    CUresult (*set_access)(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t);
    CUresult (*unmap)(CUdeviceptr, size_t);
} cu;

static const struct {
    const char *name;
    void *function;
} functions[] = {
    {"cuDeviceGet", &cu.device_get},
    {"cuDeviceGetAttribute", &cu.device_attribute},
    {"cuGetErrorName", &cu.error_name},
    {"cuGetErrorString", &cu.error_string},
    {"cuMemAddressFree", &cu.address_free},
    {"cuMemAddressReserve", &cu.address_reserve},
    {"cuMemCreate", &cu.create},
    {"cuMemExportToShareableHandle", &cu.export},
    {"cuMemGetAllocationGranularity", &cu.granularity},
    {"cuMemImportFromShareableHandle", &cu.import},
    {"cuMemMap", &cu.map},
    {"cuMemRelease", &cu.release},
    {"cuMemSetAccess", &cu.set_access},
    {"cuMemUnmap", &cu.unmap},
};

#define FUNCTION_COUNT (sizeof(functions) / sizeof(functions[0]))

static bool is_fake;

/* In a test and in a child alike; a child ends with it. */
#define WANT(condition) want((condition), #condition, __LINE__)
#define GIVES(call, result)                                                                                            \
    want(strcmp(name_of(call), #result) == 0, #call " isn't " #result ", but what stands above", __LINE__)
#define RUNS(call, error)                                                                                              \
    want(strcmp(cudaGetErrorName((cudaError_t)(call)), #error) == 0, #call " isn't " #error, __LINE__)

static bool in_child;

static void want(bool right, const char *what, int line)
{
    if (right)
        return;
    if (!in_child)
        ck_abort_msg("line %d: %s", line, what);
    fprintf(stderr, "%s:%d: %s\n", __FILE__, line, what);
    exit(1);
}

static const char *last_name;

static const char *name_of(CUresult result)
{
    if (cu.error_name(result, &last_name) != CUDA_SUCCESS)
        last_name = "of no name";
    return last_name;
}

static cudaError_t look_up(const char *name, void **out, unsigned version, unsigned long long flags,
                           enum cudaDriverEntryPointQueryResult *result)
{
#if CUDART_VERSION >= 12050
    return cudaGetDriverEntryPointByVersion(name, out, version, flags, result);
#else
    (void)version;
    return cudaGetDriverEntryPoint(name, out, flags, result);
#endif
}

static void load(void)
{
    for (size_t i = 0; i < FUNCTION_COUNT; i++) {
        void *found = NULL;
        enum cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
        RUNS(look_up(functions[i].name, &found, 12040, cudaEnableDefault, &result), cudaSuccess);
        WANT(result == cudaDriverEntryPointSuccess && found != NULL);
        memcpy(functions[i].function, &found, sizeof(found));
    }
}

static CUmemAllocationProp properties(void)
{
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .requestedHandleTypes = POSIX,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
}

static CUmemAccessDesc access_of(CUmemAccess_flags flags)
{
    return (CUmemAccessDesc){.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}, .flags = flags};
}

static CUmemGenericAllocationHandle create(size_t bytes)
{
    CUmemGenericAllocationHandle handle = 0;
    const CUmemAllocationProp wanted = properties();
    GIVES(cu.create(&handle, bytes, &wanted, 0), CUDA_SUCCESS);
    return handle;
}

static CUdeviceptr reserve(size_t bytes)
{
    CUdeviceptr address = 0;
    GIVES(cu.address_reserve(&address, bytes, 0, 0, 0), CUDA_SUCCESS);
    WANT(address % GRAIN == 0);
    return address;
}

/* @param flags  0: no access is given */
static CUdeviceptr map(CUmemGenericAllocationHandle handle, size_t bytes, CUmemAccess_flags flags)
{
    const CUmemAccessDesc access = access_of(flags);
    const CUdeviceptr address = reserve(bytes);
    GIVES(cu.map(address, bytes, 0, handle, 0), CUDA_SUCCESS);
    if (flags != 0)
        GIVES(cu.set_access(address, bytes, &access, 1), CUDA_SUCCESS);
    return address;
}

static void unmap(CUdeviceptr address, size_t bytes)
{
    GIVES(cu.unmap(address, bytes), CUDA_SUCCESS);
    GIVES(cu.address_free(address, bytes), CUDA_SUCCESS);
}

static void *pointer(CUdeviceptr address)
{
    return (void *)(uintptr_t)address;
}

static size_t free_bytes(void)
{
    size_t bytes = 0;
    RUNS(cudaMemGetInfo(&bytes, NULL), cudaSuccess);
    return bytes;
}

/* The byte there. */
static int read_byte(CUdeviceptr address)
{
    unsigned char byte = 0;
    RUNS(cudaMemcpy(&byte, pointer(address), 1, cudaMemcpyDeviceToHost), cudaSuccess);
    return byte;
}

extern char **environ;

/* @param fd        the child's standard input, or -1
 * @param settings  "NAME=value" of its environment, up to NULL
 * @return its exit code, or minus its signal */
static int run(const char *scenario, int fd, const char *const settings[])
{
    pid_t pid;
    int status;
    char *arguments[] = {(char *)(uintptr_t) "test_fake_driver", (char *)(uintptr_t)scenario, NULL};
    char *environment[256];
    size_t count = 0;
    for (; settings != NULL && settings[count] != NULL; count++)
        environment[count] = (char *)(uintptr_t)settings[count];
    for (char **variable = environ; *variable != NULL && count < 255; variable++) {
        bool replaced = false;
        for (size_t i = 0; settings != NULL && settings[i] != NULL; i++)
            replaced = replaced || strncmp(*variable, settings[i], strcspn(settings[i], "=") + 1) == 0;
        if (!replaced)
            environment[count++] = *variable;
    }
    environment[count] = NULL;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    if (fd >= 0)
        posix_spawn_file_actions_adddup2(&actions, fd, STDIN_FILENO);
    ck_assert_int_eq(posix_spawn(&pid, "/proc/self/exe", &actions, NULL, arguments, environment), 0);
    posix_spawn_file_actions_destroy(&actions);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/* --- as a driver --- */

START_TEST(test_the_lookup)
{
    void *found = &found;
    enum cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSuccess;
    RUNS(look_up("cuNoSuchFunction", &found, 12040, cudaEnableDefault, &result), cudaSuccess);
    ck_assert(found == NULL && result == cudaDriverEntryPointSymbolNotFound);
    RUNS(look_up("", &found, 12040, cudaEnableDefault, &result), cudaSuccess);
    ck_assert(found == NULL && result == cudaDriverEntryPointSymbolNotFound);
    RUNS(look_up("cuMemCreate", &found, 12040, cudaEnableDefault, NULL), cudaSuccess);
    ck_assert(found != NULL);
    RUNS(look_up("cuMemCreate", &found, 12040, 9, &result), cudaErrorInvalidValue);
#if CUDART_VERSION >= 12050
    RUNS(look_up("cuMemCreate", &found, 10010, cudaEnableDefault, &result), cudaSuccess);
    ck_assert(found == NULL && result == cudaDriverEntryPointVersionNotSufficent);
    found = &found;
    RUNS(look_up("cuMemCreate", &found, 99000, cudaEnableDefault, &result), cudaErrorInvalidValue);
    ck_assert(found == &found);
#endif
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations" /* all there is before CUDA 12.5 */
    RUNS(cudaGetDriverEntryPoint("cuMemCreate", &found, cudaEnableDefault, &result), cudaSuccess);
    ck_assert(found != NULL && result == cudaDriverEntryPointSuccess);
    RUNS(cudaGetDriverEntryPoint("cuNoSuchFunction", &found, cudaEnableDefault, &result), cudaSuccess);
    ck_assert(found == NULL && result == cudaDriverEntryPointSymbolNotFound);
#pragma GCC diagnostic pop
    (void)cudaGetLastError();
}
END_TEST

START_TEST(test_devices)
{
    CUdevice device = -1;
    int value = -1;
    GIVES(cu.device_get(&device, 0), CUDA_SUCCESS);
    ck_assert_int_eq(device, 0);
    GIVES(cu.device_get(&device, 99), CUDA_ERROR_INVALID_DEVICE);
    GIVES(cu.device_get(&device, -1), CUDA_ERROR_INVALID_DEVICE);
    GIVES(cu.device_attribute(&value, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0), CUDA_SUCCESS);
    ck_assert_int_eq(value, 1);
    value = -1;
    GIVES(cu.device_attribute(&value, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 0),
          CUDA_SUCCESS);
    ck_assert_int_eq(value, 1);
    GIVES(cu.device_attribute(&value, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 99),
          CUDA_ERROR_INVALID_DEVICE);
    GIVES(cu.device_attribute(&value, (CUdevice_attribute)99999, 0), CUDA_ERROR_INVALID_VALUE);
}
END_TEST

START_TEST(test_errors)
{
    static const struct {
        CUresult result;
        const char *name, *text;
    } expected[] = {
        {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
        {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
        {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
        {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
        {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
        {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
        {CUDA_ERROR_NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
        {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    };
    const char *text;
    for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++) {
        ck_assert_int_eq(cu.error_name(expected[i].result, &text), CUDA_SUCCESS);
        ck_assert_str_eq(text, expected[i].name);
        ck_assert_int_eq(cu.error_string(expected[i].result, &text), CUDA_SUCCESS);
        ck_assert_str_eq(text, expected[i].text);
    }
    ck_assert_int_eq(cu.error_name((CUresult)12345, &text), CUDA_ERROR_INVALID_VALUE);
    ck_assert_ptr_null(text);
    text = "";
    ck_assert_int_eq(cu.error_string((CUresult)12345, &text), CUDA_ERROR_INVALID_VALUE);
    ck_assert_ptr_null(text);
    (void)cudaGetLastError();
    GIVES(cu.create(NULL, 1, NULL, 0), CUDA_ERROR_INVALID_VALUE);
    RUNS(cudaPeekAtLastError(), cudaSuccess); /* the driver's errors are not the runtime's */
}
END_TEST

START_TEST(test_allocations)
{
    const CUmemAllocationProp good = properties();
    CUmemAllocationProp bad;
    CUmemGenericAllocationHandle handle = 0;
    size_t bytes = 0;
    GIVES(cu.granularity(&bytes, &good, CU_MEM_ALLOC_GRANULARITY_MINIMUM), CUDA_SUCCESS);
    ck_assert_uint_eq(bytes, GRAIN);
    GIVES(cu.granularity(&bytes, &good, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED), CUDA_SUCCESS);
    ck_assert_uint_eq(bytes, GRAIN);
    GIVES(cu.granularity(NULL, &good, CU_MEM_ALLOC_GRANULARITY_MINIMUM), CUDA_ERROR_INVALID_VALUE);
    GIVES(cu.granularity(&bytes, NULL, CU_MEM_ALLOC_GRANULARITY_MINIMUM), CUDA_ERROR_INVALID_VALUE);
    GIVES(cu.granularity(&bytes, &good, (CUmemAllocationGranularity_flags)7), CUDA_ERROR_INVALID_VALUE);

    GIVES(cu.create(&handle, 0, &good, 0), CUDA_ERROR_INVALID_VALUE);
    GIVES(cu.create(&handle, 4096, &good, 0), CUDA_ERROR_INVALID_VALUE);
    GIVES(cu.create(&handle, GRAIN + 1, &good, 0), CUDA_ERROR_INVALID_VALUE);
    GIVES(cu.create(&handle, GRAIN, &good, 1), CUDA_ERROR_INVALID_VALUE);
    GIVES(cu.create(NULL, GRAIN, &good, 0), CUDA_ERROR_INVALID_VALUE);
    GIVES(cu.create(&handle, GRAIN, NULL, 0), CUDA_ERROR_INVALID_VALUE);
    for (int id = -1; id < 100; id += 100) {
        bad = good;
        bad.location.id = id;
        GIVES(cu.create(&handle, GRAIN, &bad, 0), CUDA_ERROR_INVALID_DEVICE);
    }
    bad = good;
    bad.type = CU_MEM_ALLOCATION_TYPE_INVALID;
    GIVES(cu.create(&handle, GRAIN, &bad, 0), CUDA_ERROR_INVALID_VALUE);
    bad = good;
    bad.location.type = CU_MEM_LOCATION_TYPE_INVALID;
    GIVES(cu.create(&handle, GRAIN, &bad, 0), CUDA_ERROR_INVALID_VALUE);
    bad = good;
    bad.requestedHandleTypes = CU_MEM_HANDLE_TYPE_WIN32;
    GIVES(cu.create(&handle, GRAIN, &bad, 0), CUDA_ERROR_INVALID_VALUE);
    GIVES(cu.create(&handle, (size_t)1 << 42, &good, 0), CUDA_ERROR_OUT_OF_MEMORY);
    ck_assert_uint_eq(handle, 0);

    const size_t before = free_bytes();
    handle = create(3 * GRAIN);
    ck_assert_uint_eq(before - free_bytes(), 3 * GRAIN);
    GIVES(cu.release(handle), CUDA_SUCCESS);
    GIVES(cu.release(handle), CUDA_ERROR_INVALID_VALUE);
    GIVES(cu.release(0), CUDA_ERROR_INVALID_VALUE);
    ck_assert_uint_eq(free_bytes(), before);
}
END_TEST

START_TEST(test_addresses)
{
    CUdeviceptr address = 0;
    GIVES(cu.address_reserve(&address, 0, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
    GIVES(cu.address_reserve(&address, 4096, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
    GIVES(cu.address_reserve(&address, GRAIN + 4096, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
    GIVES(cu.address_reserve(&address, GRAIN, 3, 0, 0), CUDA_ERROR_INVALID_VALUE);
    GIVES(cu.address_reserve(&address, GRAIN, 0, 4096, 0), CUDA_ERROR_INVALID_VALUE);
    GIVES(cu.address_reserve(&address, GRAIN, 0, 0, 1), CUDA_ERROR_INVALID_VALUE);
    GIVES(cu.address_reserve(NULL, GRAIN, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
    ck_assert_uint_eq(address, 0);
    for (size_t alignment = 4096; alignment <= 64 << 20; alignment *= 4) {
        GIVES(cu.address_reserve(&address, GRAIN, alignment, 0, 0), CUDA_SUCCESS);
        ck_assert(address % alignment == 0 && address % GRAIN == 0);
        GIVES(cu.address_free(address, GRAIN), CUDA_SUCCESS);
    }
    address = reserve(4 * GRAIN);
    GIVES(cu.address_free(address, 2 * GRAIN), CUDA_ERROR_INVALID_VALUE);
    GIVES(cu.address_free(address + GRAIN, GRAIN), CUDA_ERROR_INVALID_VALUE);
    GIVES(cu.address_free(0, GRAIN), CUDA_ERROR_INVALID_VALUE);
    RUNS(cudaMemset(pointer(address), 1, 1), cudaErrorInvalidValue);
    (void)cudaGetLastError();
    GIVES(cu.address_free(address, 4 * GRAIN), CUDA_SUCCESS);
    GIVES(cu.address_free(address, 4 * GRAIN), CUDA_ERROR_INVALID_VALUE);
}
END_TEST

START_TEST(test_mapping)
{
    const size_t before = free_bytes();
    const CUmemGenericAllocationHandle handle = create(2 * GRAIN), other = create(GRAIN);
    const CUdeviceptr address = reserve(4 * GRAIN);
    GIVES(cu.map(address + 4096, 2 * GRAIN, 0, handle, 0), CUDA_ERROR_NOT_SUPPORTED);
    GIVES(cu.map(address, 4096, 0, handle, 0), CUDA_ERROR_NOT_SUPPORTED);
    GIVES(cu.map(address, GRAIN, 0, handle, 0), CUDA_ERROR_NOT_SUPPORTED); /* a part of it */
    GIVES(cu.map(address, GRAIN, GRAIN, handle, 0), CUDA_ERROR_NOT_SUPPORTED);
    GIVES(cu.map(address, 4 * GRAIN, 0, handle, 0), CUDA_ERROR_NOT_SUPPORTED);
    GIVES(cu.map(address, 0, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    GIVES(cu.map(address, 2 * GRAIN, 0, handle, 1), CUDA_ERROR_INVALID_VALUE);
    GIVES(cu.map(address, 2 * GRAIN, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
    GIVES(cu.map(0, 2 * GRAIN, 0, handle, 0), CUDA_ERROR_INVALID_VALUE); /* nobody has reserved that */
    GIVES(cu.map(address, 2 * GRAIN, 0, handle, 0), CUDA_SUCCESS);
    GIVES(cu.map(address, 2 * GRAIN, 0, handle, 0), CUDA_ERROR_INVALID_VALUE); /* taken */
    GIVES(cu.map(address + GRAIN, 2 * GRAIN, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    GIVES(cu.map(address + 2 * GRAIN, GRAIN, 0, other, 0), CUDA_SUCCESS);

    GIVES(cu.address_free(address, 4 * GRAIN), CUDA_ERROR_INVALID_VALUE);
    GIVES(cu.unmap(address, GRAIN), CUDA_ERROR_INVALID_VALUE);
    GIVES(cu.unmap(address + GRAIN, 2 * GRAIN), CUDA_ERROR_INVALID_VALUE);
    GIVES(cu.unmap(address, 0), CUDA_ERROR_INVALID_VALUE);
    GIVES(cu.unmap(address + 3 * GRAIN, GRAIN), CUDA_ERROR_INVALID_VALUE);
    GIVES(cu.unmap(address, 2 * GRAIN), CUDA_SUCCESS);
    GIVES(cu.unmap(address, 2 * GRAIN), CUDA_ERROR_INVALID_VALUE);
    GIVES(cu.map(address, 2 * GRAIN, 0, handle, 0), CUDA_SUCCESS); /* again */

    /* Without its handle memory stays as long as it is mapped. */
    GIVES(cu.release(handle), CUDA_SUCCESS);
    GIVES(cu.release(handle), CUDA_ERROR_INVALID_VALUE);
    GIVES(cu.release(other), CUDA_SUCCESS);
    ck_assert_uint_eq(before - free_bytes(), 3 * GRAIN);
    GIVES(cu.unmap(address, 2 * GRAIN), CUDA_SUCCESS);
    ck_assert_uint_eq(before - free_bytes(), GRAIN);
    GIVES(cu.unmap(address + 2 * GRAIN, GRAIN), CUDA_SUCCESS);
    GIVES(cu.address_free(address, 4 * GRAIN), CUDA_SUCCESS);
    ck_assert_uint_eq(free_bytes(), before);
}
END_TEST

START_TEST(test_access)
{
    const CUmemGenericAllocationHandle handle = create(2 * GRAIN);
    const CUdeviceptr address = map(handle, 2 * GRAIN, 0);
    CUmemAccessDesc access = access_of(WRITE), bad;
    char bytes[64] = {0};
    /* none at first */
    RUNS(cudaMemcpy(pointer(address), bytes, 64, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    RUNS(cudaMemcpy(bytes, pointer(address), 64, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
    RUNS(cudaMemset(pointer(address), 1, 64), cudaErrorInvalidValue);
    GIVES(cu.set_access(address, 4096, &access, 1), CUDA_ERROR_INVALID_VALUE);
    GIVES(cu.set_access(address, GRAIN, &access, 1), CUDA_ERROR_INVALID_VALUE);
    GIVES(cu.set_access(address + GRAIN, 2 * GRAIN, &access, 1), CUDA_ERROR_INVALID_VALUE);
    GIVES(cu.set_access(address, 0, &access, 1), CUDA_ERROR_INVALID_VALUE);
    GIVES(cu.set_access(address, 2 * GRAIN, &access, 0), CUDA_ERROR_INVALID_VALUE);
    GIVES(cu.set_access(address, 2 * GRAIN, NULL, 1), CUDA_ERROR_INVALID_VALUE);
    bad = access;
    bad.location.id = 99;
    GIVES(cu.set_access(address, 2 * GRAIN, &bad, 1), CUDA_ERROR_INVALID_VALUE);
    bad = access;
    bad.flags = (CUmemAccess_flags)2;
    GIVES(cu.set_access(address, 2 * GRAIN, &bad, 1), CUDA_ERROR_INVALID_VALUE);
    bad = access;
    bad.location.type = CU_MEM_LOCATION_TYPE_INVALID;
    GIVES(cu.set_access(address, 2 * GRAIN, &bad, 1), CUDA_ERROR_INVALID_VALUE);
    bad.location.type = CU_MEM_LOCATION_TYPE_HOST;
    GIVES(cu.set_access(address, 2 * GRAIN, &bad, 1), CUDA_ERROR_NOT_SUPPORTED);

    GIVES(cu.set_access(address, 2 * GRAIN, &access, 1), CUDA_SUCCESS);
    RUNS(cudaMemset(pointer(address), 7, 2 * GRAIN), cudaSuccess);
    ck_assert_int_eq(read_byte(address + 2 * GRAIN - 1), 7);
    RUNS(cudaMemcpy(bytes, pointer(address + 2 * GRAIN - 32), 64, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);

    access.flags = READ;
    GIVES(cu.set_access(address, 2 * GRAIN, &access, 1), CUDA_SUCCESS);
    RUNS(cudaMemset(pointer(address), 8, 64), cudaErrorInvalidValue);
    RUNS(cudaMemcpy(pointer(address), bytes, 64, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    ck_assert_int_eq(read_byte(address), 7);

    struct cudaPointerAttributes attributes;
    RUNS(cudaPointerGetAttributes(&attributes, pointer(address)), cudaSuccess);
    ck_assert_int_eq(attributes.type, cudaMemoryTypeDevice);
    ck_assert_int_eq(attributes.device, 0);
    cudaIpcMemHandle_t ipc;
    RUNS(cudaIpcGetMemHandle(&ipc, pointer(address)), cudaErrorInvalidValue);
    RUNS(cudaFree(pointer(address)), cudaErrorInvalidValue);
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    GIVES(cu.set_access(address, 2 * GRAIN, &access, 1), CUDA_SUCCESS);
    RUNS(cudaMemcpy(bytes, pointer(address), 64, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
    (void)cudaGetLastError();
    unmap(address, 2 * GRAIN);
    GIVES(cu.release(handle), CUDA_SUCCESS);
}
END_TEST

START_TEST(test_export_and_import)
{
    const size_t before = free_bytes();
    CUmemAllocationProp unshared = properties();
    CUmemGenericAllocationHandle handle = create(2 * GRAIN), private, first = 0, second = 0, none = 0;
    int fd = -1;
    unshared.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
    GIVES(cu.create(&private, GRAIN, &unshared, 0), CUDA_SUCCESS);
    GIVES(cu.export(&fd, private, POSIX, 0), CUDA_ERROR_INVALID_VALUE);
    GIVES(cu.release(private), CUDA_SUCCESS);
    GIVES(cu.export(&fd, handle, POSIX, 1), CUDA_ERROR_INVALID_VALUE);
    GIVES(cu.export(NULL, handle, POSIX, 0), CUDA_ERROR_INVALID_VALUE);
    GIVES(cu.export(&fd, handle, CU_MEM_HANDLE_TYPE_WIN32, 0), CUDA_ERROR_INVALID_VALUE);
    GIVES(cu.export(&fd, handle, CU_MEM_HANDLE_TYPE_NONE, 0), CUDA_ERROR_INVALID_VALUE);
    ck_assert_int_eq(fd, -1);
    GIVES(cu.export(&fd, handle, POSIX, 0), CUDA_SUCCESS);
    ck_assert_int_eq(fcntl(fd, F_GETFD), FD_CLOEXEC);

    const int null = open("/dev/null", O_RDWR | O_CLOEXEC), memory = memfd_create("x", MFD_CLOEXEC);
    ck_assert_int_eq(ftruncate(memory, 2 * GRAIN), 0);
    const int strangers[] = {null, memory, -1, 999};
    for (size_t i = 0; i < 4; i++)
        GIVES(cu.import(&none, (void *)(intptr_t)strangers[i], POSIX), CUDA_ERROR_UNKNOWN);
    GIVES(cu.import(&none, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_NONE), CUDA_ERROR_INVALID_VALUE);
    GIVES(cu.import(NULL, (void *)(intptr_t)fd, POSIX), CUDA_ERROR_INVALID_VALUE);
    ck_assert_uint_eq(none, 0);
    close(memory);
    close(null);

    GIVES(cu.import(&first, (void *)(intptr_t)fd, POSIX), CUDA_SUCCESS);
    GIVES(cu.import(&second, (void *)(intptr_t)fd, POSIX), CUDA_SUCCESS);
    ck_assert(first != handle && second != handle && first != second);
    close(fd);
    GIVES(cu.export(&fd, first, POSIX, 0), CUDA_ERROR_INVALID_VALUE); /* not twice */
    const CUdeviceptr ours = map(handle, 2 * GRAIN, WRITE), theirs = map(first, 2 * GRAIN, READ);
    RUNS(cudaMemset(pointer(ours), 42, 2 * GRAIN), cudaSuccess);
    ck_assert_int_eq(read_byte(theirs + 2 * GRAIN - 1), 42); /* one memory */
    GIVES(cu.release(first), CUDA_SUCCESS);
    GIVES(cu.release(second), CUDA_SUCCESS);
    unmap(ours, 2 * GRAIN);
    GIVES(cu.release(handle), CUDA_SUCCESS);
    ck_assert_int_eq(read_byte(theirs), 42); /* also when the exporter has gone */
    unmap(theirs, 2 * GRAIN);
    ck_assert_uint_eq(free_bytes(), before);
}
END_TEST

/* Standard input is two grains of memory that hold 42. */
static CUdeviceptr scenario_import(CUmemAccess_flags flags)
{
    CUmemGenericAllocationHandle handle = 0;
    load();
    GIVES(cu.import(&handle, (void *)(intptr_t)STDIN_FILENO, POSIX), CUDA_SUCCESS);
    const CUdeviceptr address = map(handle, 2 * GRAIN, flags);
    GIVES(cu.release(handle), CUDA_SUCCESS);
    return address;
}

static void scenario_reads(void)
{
    const CUdeviceptr address = scenario_import(READ);
    WANT(read_byte(address) == 42 && read_byte(address + 2 * GRAIN - 1) == 42);
    unmap(address, 2 * GRAIN);
}

static void scenario_writes(void)
{
    const CUdeviceptr address = scenario_import(READ);
    RUNS(gpu_fill(pointer(address), 2 * GRAIN, 13, NULL), cudaSuccess);
    RUNS(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
    RUNS(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
    unmap(address, 2 * GRAIN); /* that goes on */
    GIVES(cu.release(create(GRAIN)), CUDA_SUCCESS);
}

static void scenario_reads_without_access(void)
{
    const CUdeviceptr address = scenario_import(0);
    void *sum;
    RUNS(cudaMalloc(&sum, 8), cudaSuccess);
    RUNS(gpu_checksum(pointer(address), 64, sum, NULL), cudaSuccess);
    RUNS(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
}

static void scenario_host_writes(void)
{
    const CUdeviceptr address = scenario_import(WRITE);
    *(volatile char *)pointer(address) = 13;
}

START_TEST(test_another_process)
{
    const CUmemGenericAllocationHandle handle = create(2 * GRAIN);
    const CUdeviceptr address = map(handle, 2 * GRAIN, WRITE);
    int fd = -1;
    RUNS(cudaMemset(pointer(address), 42, 2 * GRAIN), cudaSuccess);
    RUNS(cudaDeviceSynchronize(), cudaSuccess);
    GIVES(cu.export(&fd, handle, POSIX, 0), CUDA_SUCCESS);
    ck_assert_int_eq(run("reads", fd, NULL), 0);
    ck_assert_int_eq(run("writes", fd, NULL), 0); /* in vain, and nobody else's GPU is lost */
    ck_assert_int_eq(run("reads-without-access", fd, NULL), 0);
    const char *const plainly[] = {"ASAN_OPTIONS=handle_segv=0", "TSAN_OPTIONS=handle_segv=0", NULL};
    ck_assert_int_eq(run("host-writes", fd, plainly), -SIGSEGV);
    ck_assert_int_eq(read_byte(address), 42);
    ck_assert_int_eq(read_byte(address + 2 * GRAIN - 1), 42);
    unmap(address, 2 * GRAIN);
    GIVES(cu.release(handle), CUDA_SUCCESS);
    ck_assert_int_eq(run("reads", fd, NULL), 0); /* the descriptor keeps it */
    close(fd);
}
END_TEST

/* --- of the fake alone --- */

static void scenario_without(void)
{
    CUmemGenericAllocationHandle handle = 0;
    const CUmemAllocationProp wanted = properties();
    size_t bytes = 0;
    int value = -1;
    load();
    GIVES(cu.device_attribute(&value, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0), CUDA_SUCCESS);
    WANT(value == 0);
    value = -1;
    GIVES(cu.device_attribute(&value, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 0),
          CUDA_SUCCESS);
    WANT(value == 0);
    GIVES(cu.granularity(&bytes, &wanted, CU_MEM_ALLOC_GRANULARITY_MINIMUM), CUDA_ERROR_NOT_SUPPORTED);
    GIVES(cu.create(&handle, GRAIN, &wanted, 0), CUDA_ERROR_NOT_SUPPORTED);
    WANT(handle == 0);
}

START_TEST(test_no_virtual_memory)
{
    const char *const settings[] = {"FEEDD_FAKE_NO_VMM=1", NULL}, *const senseless[] = {"FEEDD_FAKE_NO_VMM=yes", NULL};
    ck_assert_int_eq(run("without", -1, settings), 0);
    ck_assert_int_eq(run("without", -1, senseless), -SIGABRT);
}
END_TEST

/* Opens what is no handle: FEEDD_FAKE_NO_IPC is first to say what is wrong. */
static void scenario_no_ipc(void)
{
    void *out = NULL;
    const cudaIpcMemHandle_t handle = {{0}};
    const cudaError_t error = cudaIpcOpenMemHandle(&out, handle, cudaIpcMemLazyEnablePeerAccess);
    const char *expected = getenv("EXPECTED");
    WANT(expected != NULL && strcmp(cudaGetErrorName(error), expected) == 0 && out == NULL);
}

START_TEST(test_no_ipc)
{
    const char *const settings[][3] = {
        {"FEEDD_FAKE_NO_IPC=", "EXPECTED=cudaErrorInvalidValue", NULL},
        {"FEEDD_FAKE_NO_IPC=1", "EXPECTED=cudaErrorMapBufferObjectFailed", NULL},
        {"FEEDD_FAKE_NO_IPC=cudaErrorInvalidResourceHandle", "EXPECTED=cudaErrorInvalidResourceHandle", NULL},
    };
    for (size_t i = 0; i < 3; i++)
        ck_assert_int_eq(run("no-ipc", -1, settings[i]), 0);
    const char *const senseless[] = {"FEEDD_FAKE_NO_IPC=nonsense", NULL};
    ck_assert_int_eq(run("no-ipc", -1, senseless), -SIGABRT);
}
END_TEST

START_TEST(test_two_gpus)
{
    CUmemAllocationProp second = properties();
    CUmemGenericAllocationHandle handle = 0;
    CUmemAccessDesc access = access_of(READ);
    int fd = -1;
    second.location.id = 1;
    GIVES(cu.create(&handle, 2 * GRAIN, &second, 0), CUDA_SUCCESS);
    const CUdeviceptr address = map(handle, 2 * GRAIN, 0);
    GIVES(cu.set_access(address, 2 * GRAIN, &access, 1), CUDA_ERROR_INVALID_DEVICE);
    access.location.id = 1;
    access.flags = WRITE;
    GIVES(cu.set_access(address, 2 * GRAIN, &access, 1), CUDA_SUCCESS);
    RUNS(cudaMemset(pointer(address), 42, 2 * GRAIN), cudaSuccess);
    RUNS(cudaDeviceSynchronize(), cudaSuccess);
    GIVES(cu.export(&fd, handle, POSIX, 0), CUDA_SUCCESS);
    const char *const alone[] = {"CUDA_VISIBLE_DEVICES=1", NULL}, *const hidden[] = {"CUDA_VISIBLE_DEVICES=0", NULL};
    ck_assert_int_eq(run("reads", fd, alone), 0); /* its number is another there */
    ck_assert_int_eq(run("not-visible", fd, hidden), 0);
    close(fd);
    unmap(address, 2 * GRAIN);
    GIVES(cu.release(handle), CUDA_SUCCESS);
}
END_TEST

static void scenario_not_visible(void)
{
    CUmemGenericAllocationHandle handle = 0;
    load();
    GIVES(cu.import(&handle, (void *)(intptr_t)STDIN_FILENO, POSIX), CUDA_ERROR_NOT_SUPPORTED);
    WANT(handle == 0);
}

static void scenario_fails(void)
{
    CUmemGenericAllocationHandle handle = 0;
    const CUmemAllocationProp wanted = properties();
    load();
    GIVES(cu.create(&handle, GRAIN, &wanted, 0), CUDA_SUCCESS);
    const CUmemGenericAllocationHandle kept = handle;
    GIVES(cu.create(&handle, GRAIN, &wanted, 0), CUDA_ERROR_OUT_OF_MEMORY);
    WANT(handle == kept);
    GIVES(cu.release(kept), CUDA_ERROR_UNKNOWN); /* by its number */
    (void)map(kept, GRAIN, READ);
}

/* One line of a file holds all these words. */
static bool has_line(const char *path, const char *const words[])
{
    char line[512];
    bool found = false;
    FILE *file = fopen(path, "re");
    ck_assert_ptr_nonnull(file);
    while (!found && fgets(line, sizeof(line), file) != NULL) {
        found = true;
        for (size_t i = 0; words[i] != NULL; i++)
            found = found && strstr(line, words[i]) != NULL;
    }
    fclose(file);
    return found;
}

START_TEST(test_failures_log_and_leaks)
{
    char folder[] = "/tmp/feedd-fake-driver-XXXXXX", log[64], leaks[64], to_log[96], to_leaks[96];
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(log, sizeof(log), "%s/log", folder);
    snprintf(leaks, sizeof(leaks), "%s/leaks", folder);
    snprintf(to_log, sizeof(to_log), "FEEDD_FAKE_CUDA_LOG=%s", log);
    snprintf(to_leaks, sizeof(to_leaks), "FEEDD_FAKE_CUDA_LEAKS=%s", leaks);
    const char *const settings[] = {"FEEDD_FAKE_CUDA_FAIL=cuMemCreate:2:CUDA_ERROR_OUT_OF_MEMORY,cuMemRelease:1:999",
                                    to_log, to_leaks, NULL};
    ck_assert_int_eq(run("fails", -1, settings), 0);
    const char *const lines[][4] = {
        {" cuMemCreate bytes=2097152 handle=0x", "-> CUDA_SUCCESS"},
        {" cuMemCreate bytes=2097152 handle=(nil)", "-> CUDA_ERROR_OUT_OF_MEMORY"},
        {" cuMemRelease ", "-> CUDA_ERROR_UNKNOWN"},
        {" cuMemSetAccess ", "bytes=2097152 flags=1", "-> CUDA_SUCCESS"},
        {" cudaGetDriverEntryPoint", "symbol=cuMemMap", "-> cudaSuccess"},
    };
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++)
        ck_assert_msg(has_line(log, lines[i]), "%s ... %s", lines[i][0], lines[i][1]);
    const char *const left[] = {"allocations=0 imports=0 ", " handles=1 reserved=1 mapped=1\n", NULL};
    ck_assert(has_line(leaks, left));
    unlink(log);
    unlink(leaks);
    rmdir(folder);
    const char *const none[] = {"FEEDD_FAKE_CUDA_FAIL=cuMemCrate:1:CUDA_ERROR_UNKNOWN", NULL};
    ck_assert_int_eq(run("fails", -1, none), -SIGABRT);
    const char *const nothing[] = {"FEEDD_FAKE_CUDA_FAIL=cuMemCreate:1:CUDA_ERROR_NONSENSE", NULL};
    ck_assert_int_eq(run("fails", -1, nothing), -SIGABRT);
}
END_TEST

START_TEST(test_nobody_can_link_the_driver)
{
    void *library = dlopen(NULL, RTLD_NOW);
    for (size_t i = 0; i < FUNCTION_COUNT; i++)
        ck_assert_msg(dlsym(library, functions[i].name) == NULL, "%s", functions[i].name);
    dlclose(library);
}
END_TEST

static const struct {
    const char *name;
    void (*run)(void);
} scenarios[] = {
    {"reads", scenario_reads},
    {"writes", scenario_writes},
    {"reads-without-access", scenario_reads_without_access},
    {"without", scenario_without},
    {"no-ipc", scenario_no_ipc},
    {"host-writes", scenario_host_writes},
    {"fails", scenario_fails},
    {"not-visible", scenario_not_visible},
};

int main(int argc, char **argv)
{
    in_child = argc > 1;
    for (size_t i = 0; in_child && i < sizeof(scenarios) / sizeof(scenarios[0]); i++)
        if (strcmp(argv[1], scenarios[i].name) == 0) {
            scenarios[i].run();
            return 0;
        }
    struct cudaDeviceProp device;
    setenv("FEEDD_FAKE_GPUS", "2", 1);
    const cudaError_t absent = cudaGetDeviceProperties(&device, 0);
    if (absent == cudaErrorNoDevice || absent == cudaErrorInsufficientDriver) {
        printf("SKIP: no GPU: %s\n", cudaGetErrorString(absent));
        return 77;
    }
    is_fake = absent == cudaSuccess && strncmp(device.name, "Fake", 4) == 0;
    if (cudaFree(NULL) != cudaSuccess)
        return 1;

    Suite *suite = suite_create("fake_driver");
    TCase *driver = tcase_create("as a driver");
    tcase_set_timeout(driver, 120);
    tcase_add_checked_fixture(driver, load, NULL);
    tcase_add_test(driver, test_the_lookup);
    tcase_add_test(driver, test_devices);
    tcase_add_test(driver, test_errors);
    tcase_add_test(driver, test_allocations);
    tcase_add_test(driver, test_addresses);
    tcase_add_test(driver, test_mapping);
    tcase_add_test(driver, test_access);
    tcase_add_test(driver, test_export_and_import);
    tcase_add_test(driver, test_another_process);
    suite_add_tcase(suite, driver);
    if (is_fake) {
        TCase *fake = tcase_create("of the fake alone");
        tcase_set_timeout(fake, 120);
        tcase_add_checked_fixture(fake, load, NULL);
        tcase_add_test(fake, test_no_virtual_memory);
        tcase_add_test(fake, test_no_ipc);
        tcase_add_test(fake, test_two_gpus);
        tcase_add_test(fake, test_failures_log_and_leaks);
        tcase_add_test(fake, test_nobody_can_link_the_driver);
        suite_add_tcase(suite, fake);
    }
    SRunner *runner = srunner_create(suite);
    srunner_set_fork_status(runner, CK_NOFORK);
    srunner_run_all(runner, CK_ENV);
    const int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
