/* device.c - the fake CUDA runtime's GPUs and versions: fake_cuda.h.
 *
 * What can fail: what setup.c makes fail; an ordinal that isn't there. Threads: any. */
#include <stdio.h>
#include <string.h>

#include "fake_cuda.h"

#define PCI_DOMAIN       0xFA4E /* no machine has it */
#define PCI_BUS_ID_BYTES 13     /* "FA4E:01:00.0" and its end */

cudaError_t cudaDriverGetVersion(int *version)
{
    struct call call;
    cudaError_t error = call_begin(&call, __func__, CALL_NOTHING);
    if (error == cudaSuccess && version == NULL)
        error = cudaErrorInvalidValue;
    if (error == cudaSuccess)
        *version = setup_absent() == cudaErrorInsufficientDriver ? 0 : CUDART_VERSION;
    return call_end(&call, error, "%s", "");
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    struct call call;
    cudaError_t error = call_begin(&call, __func__, CALL_NOTHING);
    if (error == cudaSuccess && version == NULL)
        error = cudaErrorInvalidValue;
    if (error == cudaSuccess)
        *version = CUDART_VERSION;
    return call_end(&call, error, "%s", "");
}

cudaError_t cudaGetDeviceCount(int *count)
{
    struct call call;
    cudaError_t error = call_begin(&call, __func__, CALL_DRIVER);
    if (error == cudaSuccess && count == NULL)
        error = cudaErrorInvalidValue;
    if (count != NULL)
        *count = error == cudaSuccess ? device_count() : 0;
    return call_end(&call, error, "count=%d", count != NULL ? *count : 0);
}

/* The toolkit's header may rename the function; what goes wrong is asked for by its own name. */
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int ordinal)
{
    struct call call;
    cudaError_t error = call_begin(&call, "cudaGetDeviceProperties", CALL_DRIVER);
    const struct device *device = device_at(ordinal);
    if (error == cudaSuccess && properties == NULL)
        error = cudaErrorInvalidValue;
    if (error == cudaSuccess && device == NULL)
        error = cudaErrorInvalidDevice;
    if (error == cudaSuccess) {
        const unsigned char ordinal_byte = (unsigned char)device->physical;
        const unsigned char uuid[16] = {0xfe, 0xed, 0xd0, ordinal_byte, 0xfa, 0x4e, 0x40, 0, 0x80, [15] = ordinal_byte};
        memset(properties, 0, sizeof(*properties));
        snprintf(properties->name, sizeof(properties->name), "Fake GPU %d", device->physical);
        memcpy(properties->uuid.bytes, uuid, sizeof(uuid));
        properties->totalGlobalMem = device->memory;
        properties->major = 9;
        properties->multiProcessorCount = 1;
        properties->warpSize = 32;
        properties->maxThreadsPerBlock = 1024;
        properties->asyncEngineCount = 3;
        properties->unifiedAddressing = 1;
        properties->canMapHostMemory = 1;
        properties->canUseHostPointerForRegisteredMem = 1;
        properties->hostRegisterSupported = 1;
        properties->hostRegisterReadOnlySupported = 1;
        properties->ipcEventSupported = 1;
        properties->pciDomainID = PCI_DOMAIN;
        properties->pciBusID = device->physical + 1;
    }
    return call_end(&call, error, "device=%d", ordinal);
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int ordinal)
{
    struct call call;
    cudaError_t error = call_begin(&call, __func__, CALL_DRIVER);
    const struct device *device = device_at(ordinal);
    if (error == cudaSuccess && value == NULL)
        error = cudaErrorInvalidValue;
    if (error == cudaSuccess && device == NULL)
        error = cudaErrorInvalidDevice;
    if (error == cudaSuccess)
        switch (attribute) {
        case cudaDevAttrComputeCapabilityMajor:
            *value = 9;
            break;
        case cudaDevAttrWarpSize:
            *value = 32;
            break;
        case cudaDevAttrAsyncEngineCount:
            *value = 3;
            break;
        case cudaDevAttrMultiProcessorCount:
        case cudaDevAttrUnifiedAddressing:
        case cudaDevAttrCanMapHostMemory:
        case cudaDevAttrCanUseHostPointerForRegisteredMem:
        case cudaDevAttrHostRegisterSupported:
        case cudaDevAttrHostRegisterReadOnlySupported:
        case cudaDevAttrIpcEventSupport:
            *value = 1;
            break;
        case cudaDevAttrComputeCapabilityMinor:
        case cudaDevAttrIntegrated:
        case cudaDevAttrComputeMode:
        case cudaDevAttrPageableMemoryAccess:
        case cudaDevAttrPciDeviceId:
            *value = 0;
            break;
        case cudaDevAttrPciDomainId:
            *value = PCI_DOMAIN;
            break;
        case cudaDevAttrPciBusId:
            *value = device->physical + 1;
            break;
        default:
            error = cudaErrorNotSupported; /* of a real GPU all are known; add what is asked for */
        }
    return call_end(&call, error, "attribute=%d device=%d", (int)attribute, ordinal);
}

cudaError_t cudaDeviceGetPCIBusId(char *id, int length, int ordinal)
{
    struct call call;
    cudaError_t error = call_begin(&call, __func__, CALL_DRIVER);
    const struct device *device = device_at(ordinal);
    if (error == cudaSuccess && (id == NULL || length < PCI_BUS_ID_BYTES))
        error = cudaErrorInvalidValue;
    if (error == cudaSuccess && device == NULL)
        error = cudaErrorInvalidDevice;
    if (error == cudaSuccess)
        snprintf(id, (size_t)length, "%04X:%02X:00.0", PCI_DOMAIN, (unsigned)device->physical + 1);
    return call_end(&call, error, "device=%d", ordinal);
}

cudaError_t cudaSetDevice(int ordinal)
{
    struct call call;
    cudaError_t error = call_begin(&call, __func__, CALL_PROCESS);
    if (error == cudaSuccess && !device_select(ordinal))
        error = cudaErrorInvalidDevice;
    return call_end(&call, error, "device=%d", ordinal);
}

cudaError_t cudaGetDevice(int *ordinal)
{
    struct call call;
    cudaError_t error = call_begin(&call, __func__, CALL_PROCESS);
    if (error == cudaSuccess && ordinal == NULL)
        error = cudaErrorInvalidValue;
    if (error == cudaSuccess)
        *ordinal = call.device->ordinal;
    return call_end(&call, error, "%s", "");
}

cudaError_t cudaSetDeviceFlags(unsigned flags)
{
    const unsigned schedule = flags & cudaDeviceScheduleMask;
    struct call call;
    cudaError_t error = call_begin(&call, __func__, CALL_PROCESS);
    if (error == cudaSuccess && ((flags & ~(unsigned)cudaDeviceMask) != 0 || (schedule & (schedule - 1)) != 0))
        error = cudaErrorInvalidValue;
    return call_end(&call, error, "flags=%u", flags);
}

cudaError_t cudaDeviceSynchronize(void)
{
    struct call call;
    cudaError_t error = call_begin(&call, __func__, CALL_DEVICE);
    if (error == cudaSuccess)
        error = capture_forbids_device(call.device);
    if (error == cudaSuccess) {
        queue_wait_all(call.device);
        error = device_error(call.device);
    }
    return call_end(&call, error, "%s", "");
}

cudaError_t cudaDeviceReset(void)
{
    struct call call;
    cudaError_t error = call_begin(&call, __func__, CALL_PROCESS);
    if (error == cudaSuccess) {
        queue_wait_all(call.device);
        memory_forget(call.device);
        if (device_error(call.device) != cudaSuccess) /* a failed GPU stays lost to the process */
            atomic_store(&call.device->failed, (int)cudaErrorDevicesUnavailable);
    }
    return call_end(&call, error, "%s", "");
}
