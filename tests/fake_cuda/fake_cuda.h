/* fake_cuda.h - a CUDA runtime in host memory, so that what calls CUDA is tested where there is no GPU.
 *
 * libfake_cudart.so has the functions of cudart that the project calls, with the toolkit's own declarations, those of
 * the driver that cudaGetDriverEntryPointByVersion() finds, and the kernels of kernels/normalize_cuda.h and
 * gpu_kernels.h. It is as asynchronous and as strict as the real one where a
 * caller could notice; the errors and what waits for what were read off a real GPU (tests/unit/test_fake_cuda.c runs
 * against either).
 *
 * What it is, from the environment, read at the first call of a process:
 *   FEEDD_FAKE_GPUS=N              GPUs of the machine, at most 16; 0 (default): cudaErrorNoDevice; "nodriver":
 *                                  cudaErrorInsufficientDriver. GPU i is "Fake GPU i" with the UUID
 *                                  GPU-feedd0ii-fa4e-4000-8000-0000000000ii, on bus FA4E:(i+1):00.0
 *   FEEDD_FAKE_GPU_MEMORY=256M     bytes of each (K, M, G); every process has them to itself
 *   CUDA_VISIBLE_DEVICES           as CUDA reads it: ordinals and UUIDs, or beginnings of UUIDs
 *   FEEDD_FAKE_NO_IPC=1            cudaIpcOpenMemHandle() fails, as in a container with an old driver: with
 *                                  cudaErrorMapBufferObjectFailed, or with the error that stands there
 *   FEEDD_FAKE_NO_VMM=1            GPUs without virtual memory management: no memory that is shared by descriptors
 *
 * What goes wrong, and when:
 *   FEEDD_FAKE_CUDA_FAIL=FUNCTION:N:ERROR[:sticky|:async][,...]
 *       The Nth call (from 1, counted a process; * for every one) of FUNCTION returns ERROR, a number or a name, and
 *       does nothing else. sticky: so does everything that touches the caller's GPU afterwards. async, of a copy, a
 *       cudaMemset, a host function or a kernel: the call succeeds, its execution fails, and that is sticky. Kernels
 *       are called normalize_cuda_launch, gpu_spin, gpu_checksum and gpu_fill. A driver's function is called by its own
 *       name, and its errors by CUDA_ERROR_...
 *   FEEDD_FAKE_CUDA_DELAY_US=FUNCTION:US[,...]
 *       Execution begins that much later; of a function that executes nothing, the call takes that much longer
 *
 * What it did:
 *   FEEDD_FAKE_CUDA_LOG=PATH       one line a call is appended: PID TID FUNCTION key=value... -> error's name; of
 * copies kind=H2D|D2H|D2D|H2H bytes= src= dst= stream=. Calls about errors have none. Processes may share a file
 *   FEEDD_FAKE_CUDA_LEAKS=PATH     when a process that used it exits, one line is appended of what wasn't given back:
 *                                  PID allocations=N imports=N registered=N streams=N events=N hostallocs=N handles=N
 *                                  reserved=N mapped=N; the last three of the driver's virtual memory
 *
 * A device pointer can't be read or written by the host, as a real one can't. A copy from pinned memory reads it when
 * it is executed, on a thread that nothing but CUDA's own waits synchronises with: under ThreadSanitizer a missing wait
 * is a data race every time, not by luck.
 *
 * Where it differs: what gives something back does so on a failed GPU too, although it returns the error, so that a
 * test sees what a caller would have left behind. cudaStreamDestroy() waits for the stream's work. A copy from host
 * memory of which only a later part is registered is refused; the real one takes it as pageable. A stream that joins a
 * capture by an event and isn't joined back is no error. Graphs can't be launched. Fresh memory of the GPU holds zeros.
 * cudaDeviceReset() leaves streams, events and virtual memory. cuMemUnmap() waits for nothing. A GPU can't be given
 * access to virtual memory of another one.
 *
 * The rest of this header is for the files of this folder: setup.c (the environment, what every call begins and ends
 * with), device.c, memory.c, copy.c, kernels.c, driver.c, virtual.c; and those that stream.h is for. */
#ifndef FEEDD_FAKE_CUDA_H
#define FEEDD_FAKE_CUDA_H

#include <cuda_runtime_api.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FAKE_GPUS_MAX 16

struct device {
    int ordinal, physical; /* what the process calls it; of the machine */
    size_t memory;
    _Atomic size_t allocated;
    _Atomic int failed;         /* cudaSuccess, or what everything that touches it returns from now on */
    struct CUstream_st *legacy; /* its default stream, made when first used; under the lock of the streams */
};

#pragma GCC visibility push(hidden)

/* --- setup.c --- */

/* What a function needs to do anything but return an error. */
enum call_needs {
    CALL_NOTHING,
    CALL_DRIVER,  /* a driver and a GPU */
    CALL_PROCESS, /* and that the process isn't a fork of one that has used CUDA */
    CALL_DEVICE   /* and that the current device hasn't failed */
};

struct call {
    const char *function;
    struct device *device;  /* the current one; NULL with CALL_NOTHING */
    cudaError_t failure;    /* what its execution has to fail with */
    unsigned long delay_us; /* of its execution */
};

/* @param function  its name; the one that launches, for a kernel
 * @return what it has to return at once: cudaSuccess to go on */
cudaError_t call_begin(struct call *call, const char *function, enum call_needs needs);
/* Instead, for what executes something on a stream: delays and failures are left to stream_execute(). */
cudaError_t call_begin_async(struct call *call, const char *function);

/* Logs, and keeps the thread's last error. @return error */
__attribute__((format(printf, 3, 4))) cudaError_t call_end(const struct call *call, cudaError_t error,
                                                           const char *format, ...);

/* The visible one, or NULL. */
struct device *device_at(int ordinal);
/* The one of that physical ordinal if it is visible, or NULL. */
struct device *device_of(int physical);
int device_count(void);
/* The calling thread's. */
int device_current(void);
/* @return false when there is none of that ordinal */
bool device_select(int ordinal);
cudaError_t device_error(const struct device *device);
/* From now on all that touches it returns the first such error. */
void device_fail(struct device *device, cudaError_t error);
/* Bytes of its memory. @return false when fewer are free */
bool device_take(struct device *device, size_t bytes);
void device_give_back(struct device *device, size_t bytes);

/* What keeps CUDA from working in this process at all, or cudaSuccess. */
cudaError_t setup_absent(void);
/* What cudaIpcOpenMemHandle() fails with, or cudaSuccess. */
cudaError_t setup_no_ipc(void);
/* Whether virtual memory management is missing. */
bool setup_no_virtual(void);
/* Whether the process is ending: nothing is executed any more. */
bool setup_ending(void);
/* pointer, or the end of the program when there was no memory for it. */
void *setup_need(void *pointer);

/* --- memory.c --- */

/* What a GPU does with memory. */
enum memory_access { MEMORY_READ = 1, MEMORY_WRITE = 2 };

/* What the host reaches the GPU's view [address, address + bytes) by, or NULL if the GPU can't use all of it so. */
void *memory_resolve(const void *address, size_t bytes, unsigned access);

/* One end of a copy. */
struct memory_place {
    void *memory; /* as the host reaches it */
    bool device, pageable;
};

/* @param by_gpu  the caller says that it is memory of the GPU; then it has to be memory that the GPU can use
 * @return cudaErrorInvalidValue for that, for NULL, for bytes that lie in an allocation or registration in part, and
 * for what must not be read or written */
cudaError_t memory_place(const void *address, size_t bytes, bool by_gpu, enum memory_access access,
                         struct memory_place *out);

/* Memory of the GPU that virtual.c maps and owns; without access at first. access: of enum memory_access */
void memory_map(struct device *device, void *address, void *memory, size_t bytes);
void memory_set_access(const void *address, unsigned access);
void memory_unmap(const void *address);

/* Frees the device's memory, imports and registrations; nothing is being executed. */
void memory_forget(const struct device *device);
void memory_count(unsigned *allocations, unsigned *imports, unsigned *registered, unsigned *host_allocations);

/* --- virtual.c --- */

void virtual_count(unsigned *handles, unsigned *reserved, unsigned *mapped);

/* --- driver.c --- */

/* Whether the driver has a function of that name. */
bool driver_has(const char *name);
/* Of an error that the driver returns: "CUDA_ERROR_...", NULL for others; and back. */
const char *driver_error_name(cudaError_t error);
bool driver_error_parse(const char *name, cudaError_t *out);

/* --- stream.c, event.c --- */

/* @param handle  as callers name it
 * @return cudaSuccess and *out; what its device failed with; cudaErrorStreamCaptureImplicit for the legacy stream while
 * a blocking one captures; that capture is invalid then */
cudaError_t stream_find(cudaStream_t handle, struct CUstream_st **out);

/* Enqueues run(argument), or adds it to a capture.
 * @param run       executed on the stream's thread; what it returns but cudaSuccess fails the device
 * @param argument  from malloc(); freed in any case
 * @param wait      returns when it has been executed, unless it is captured */
cudaError_t stream_execute(const struct call *call, struct CUstream_st *stream, cudaError_t (*run)(void *argument),
                           void *argument, bool wait);

/* How many callers have made and not destroyed. */
unsigned stream_count(void);
unsigned event_count(void);

/* --- queue.c --- */

/* Waits until everything enqueued so far has been executed; on all devices if NULL. */
void queue_wait_all(const struct device *device);
/* Ends all threads; what is still queued isn't executed. */
void queue_stop_all(void);
/* Whether this thread is a stream's. */
bool queue_is_executing(void);
/* On such a thread: sleeps that long, unless the device fails or the process ends before. */
void queue_sleep_us(unsigned long us);

/* --- capture.c --- */

/* @return cudaErrorStreamCaptureUnsupported while a capture forbids this thread what isn't ordered by a stream; the
 * capture is invalid then */
cudaError_t capture_forbids(void);
/* The same for what waits for the whole device, which every capture forbids. */
cudaError_t capture_forbids_device(const struct device *device);

#pragma GCC visibility pop

#endif
