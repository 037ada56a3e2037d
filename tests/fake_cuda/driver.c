/* driver.c - the fake CUDA driver as far as one gets at it by the runtime: the lookup of its functions, devices,
 * errors. What it does about memory is virtual.c's.
 *
 * Nobody can link these functions: they are hidden, as libcuda.so's are to who doesn't link that. Their errors have the
 * numbers of the runtime's, names of their own, and leave the runtime's last error alone.
 * What can fail: what setup.c makes fail; arguments, as a real driver says it. Threads: any. */
#include <string.h>

#include "driver.h"
#include "fake_cuda.h"

/* Those which a function here returns, or which a test asks for. Texts are the runtime's. */
static const struct {
    CUresult result;
    const char *name;
} results[] = {
#define RESULT(name)                                                                                                   \
    {                                                                                                                  \
        name, #name                                                                                                    \
    }
    RESULT(CUDA_SUCCESS),
    RESULT(CUDA_ERROR_INVALID_VALUE),
    RESULT(CUDA_ERROR_OUT_OF_MEMORY),
    RESULT(CUDA_ERROR_NOT_INITIALIZED),
    RESULT(CUDA_ERROR_DEINITIALIZED),
    RESULT(CUDA_ERROR_NO_DEVICE),
    RESULT(CUDA_ERROR_INVALID_DEVICE),
    RESULT(CUDA_ERROR_INVALID_CONTEXT),
    RESULT(CUDA_ERROR_MAP_FAILED),
    RESULT(CUDA_ERROR_OPERATING_SYSTEM),
    RESULT(CUDA_ERROR_INVALID_HANDLE),
    RESULT(CUDA_ERROR_ILLEGAL_ADDRESS),
    RESULT(CUDA_ERROR_LAUNCH_FAILED),
    RESULT(CUDA_ERROR_NOT_PERMITTED),
    RESULT(CUDA_ERROR_NOT_SUPPORTED),
    RESULT(CUDA_ERROR_UNKNOWN),
#undef RESULT
};

#define RESULT_COUNT (sizeof(results) / sizeof(results[0]))

#define VIRTUAL_SINCE 10020 /* the version of CUDA that brought cuMemCreate() and what belongs to it */

static const struct {
    const char *name;
    void (*function)(void);
    unsigned since; /* version of CUDA, as 1000 * major + 10 * minor */
} functions[] = {
#define FUNCTION(name, since)                                                                                          \
    {                                                                                                                  \
#name, (void (*)(void))name, since                                                                             \
    }
    FUNCTION(cuDeviceGet, 2000),
    FUNCTION(cuDeviceGetAttribute, 2000),
    FUNCTION(cuGetErrorName, 6000),
    FUNCTION(cuGetErrorString, 6000),
    FUNCTION(cuMemAddressFree, VIRTUAL_SINCE),
    FUNCTION(cuMemAddressReserve, VIRTUAL_SINCE),
    FUNCTION(cuMemCreate, VIRTUAL_SINCE),
    FUNCTION(cuMemExportToShareableHandle, VIRTUAL_SINCE),
    FUNCTION(cuMemGetAllocationGranularity, VIRTUAL_SINCE),
    FUNCTION(cuMemImportFromShareableHandle, VIRTUAL_SINCE),
    FUNCTION(cuMemMap, VIRTUAL_SINCE),
    FUNCTION(cuMemRelease, VIRTUAL_SINCE),
    FUNCTION(cuMemSetAccess, VIRTUAL_SINCE),
    FUNCTION(cuMemUnmap, VIRTUAL_SINCE),
#undef FUNCTION
};

#define FUNCTION_COUNT (sizeof(functions) / sizeof(functions[0]))

bool driver_has(const char *name)
{
    for (size_t i = 0; i < FUNCTION_COUNT; i++)
        if (strcmp(functions[i].name, name) == 0)
            return true;
    return false;
}

const char *driver_error_name(cudaError_t error)
{
    for (size_t i = 0; i < RESULT_COUNT; i++)
        if ((cudaError_t)results[i].result == error)
            return results[i].name;
    return NULL;
}

bool driver_error_parse(const char *name, cudaError_t *out)
{
    for (size_t i = 1; i < RESULT_COUNT; i++)
        if (strcmp(results[i].name, name) == 0) {
            *out = (cudaError_t)results[i].result;
            return true;
        }
    return false;
}

/* --- the lookup --- */

static cudaError_t find(const char *called, const char *symbol, void **out, unsigned version, unsigned long long flags,
                        enum cudaDriverEntryPointQueryResult *result)
{
    struct call call;
    cudaError_t error = call_begin(&call, called, CALL_DRIVER);
    if (error == cudaSuccess && (version > CUDART_VERSION || flags > cudaEnablePerThreadDefaultStream))
        error = cudaErrorInvalidValue;
    if (error == cudaSuccess) {
        enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
        void (*function)(void) = NULL;
        for (size_t i = 0; i < FUNCTION_COUNT; i++)
            if (strcmp(functions[i].name, symbol) == 0) {
                found = version >= functions[i].since ? cudaDriverEntryPointSuccess
                                                      : cudaDriverEntryPointVersionNotSufficent;
                function = version >= functions[i].since ? functions[i].function : NULL;
            }
        memcpy(out, &function, sizeof(function)); /* ISO C has no conversion */
        if (result != NULL)
            *result = found;
    }
    return call_end(&call, error, "symbol=%s version=%u", symbol, version);
}

#if CUDART_VERSION >= 12050
cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **out, unsigned version, unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *result)
{
    return find(__func__, symbol, out, version, flags, result);
}
#endif

cudaError_t cudaGetDriverEntryPoint(const char *symbol, void **out, unsigned long long flags,
                                    enum cudaDriverEntryPointQueryResult *result)
{
    return find(__func__, symbol, out, CUDART_VERSION, flags, result);
}

/* --- devices --- */

CUresult cuDeviceGet(CUdevice *out, int ordinal)
{
    struct call call;
    cudaError_t error = call_begin(&call, __func__, CALL_PROCESS);
    if (error == cudaSuccess && device_at(ordinal) == NULL)
        error = cudaErrorInvalidDevice;
    if (error == cudaSuccess)
        *out = ordinal;
    return (CUresult)call_end(&call, error, "device=%d", ordinal);
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    struct call call;
    cudaError_t error = call_begin(&call, __func__, CALL_PROCESS);
    if (error == cudaSuccess && device_at(device) == NULL)
        error = cudaErrorInvalidDevice;
    if (error == cudaSuccess)
        switch (attribute) {
        case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
            *value = !setup_no_virtual();
            break;
        default:
            error = cudaErrorInvalidValue; /* of a real GPU all are known; add what is asked for */
        }
    return (CUresult)call_end(&call, error, "attribute=%d device=%d", (int)attribute, device);
}

/* --- errors --- */

CUresult cuGetErrorName(CUresult result, const char **out)
{
    *out = driver_error_name((cudaError_t)result);
    return *out != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult result, const char **out)
{
    *out = driver_error_name((cudaError_t)result) != NULL ? cudaGetErrorString((cudaError_t)result) : NULL;
    return *out != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
