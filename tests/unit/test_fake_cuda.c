/* test_fake_cuda.c - the fake CUDA runtime behaves as a real one where the project could notice, and fails as asked.
 *
 * What is expected was read off an NVIDIA H200 with driver 580 and CUDA 13.0, and the tests of the first list know
 * nothing of the fake: linked with the real runtime, normalize_cuda.cu and gpu_kernels.cu, they run on a GPU and say
 * whether that still holds. The others need the fake, and are left out there.
 *
 * What happens once a process (an environment, a failed GPU, a fork, IPC) happens in a child: this program again, with
 * the name of a scenario. */
#include <check.h>
#include <cuda_runtime_api.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "gpu_kernels.h"
#include "normalize_cuda.h"

#if defined(__SANITIZE_THREAD__)
#define WITH_TSAN true
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define WITH_TSAN true
#endif
#endif
#ifndef WITH_TSAN
#define WITH_TSAN false
#endif

#define MIB     ((size_t)1 << 20)
#define SPIN_MS 150 /* long enough for a call meanwhile, whatever else the machine does */

/* In a test. */
#define IS(call, error) ck_assert_str_eq(cudaGetErrorName((cudaError_t)(call)), #error)
#define OK(call)        IS(call, cudaSuccess)

/* In a child, or on a thread. */
#define WANT(call, error)                                                                                              \
    want(strcmp(cudaGetErrorName((cudaError_t)(call)), #error) == 0, #call " isn't " #error, __LINE__)
#define WANT_TRUE(condition) want((condition), #condition, __LINE__)

static void want(bool true_, const char *what, int line)
{
    if (true_)
        return;
    fprintf(stderr, "%s:%d: %s\n", __FILE__, line, what);
    exit(1);
}

static uint64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* --- children --- */

struct child {
    pid_t pid;
    int to, from; /* its standard input and output */
};

extern char **environ;

/* @param settings  "NAME=value" of its environment, up to NULL */
static struct child child_start(const char *scenario, const char *const settings[])
{
    struct child child;
    int to[2], from[2];
    ck_assert_int_eq(pipe2(to, O_CLOEXEC), 0);
    ck_assert_int_eq(pipe2(from, O_CLOEXEC), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, to[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, from[1], STDOUT_FILENO);
    char *arguments[] = {(char *)(uintptr_t) "test_fake_cuda", (char *)(uintptr_t)scenario, NULL};
    char *environment[256];
    size_t count = 0, given = 0;
    for (; settings != NULL && settings[given] != NULL; given++)
        environment[count++] = (char *)(uintptr_t)settings[given];
    for (char **variable = environ; *variable != NULL && count < 255; variable++) {
        bool replaced = false;
        for (size_t i = 0; i < given; i++)
            replaced = replaced || strncmp(*variable, settings[i], strcspn(settings[i], "=") + 1) == 0;
        if (!replaced)
            environment[count++] = *variable;
    }
    environment[count] = NULL;
    ck_assert_int_eq(posix_spawn(&child.pid, "/proc/self/exe", &actions, NULL, arguments, environment), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(to[0]);
    close(from[1]);
    child.to = to[1];
    child.from = from[0];
    return child;
}

/* @return its exit code, or minus its signal */
static int child_end(struct child *child)
{
    int status;
    close(child->to);
    while (waitpid(child->pid, &status, 0) < 0 && errno == EINTR)
        ;
    close(child->from);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static int run(const char *scenario, const char *const settings[])
{
    struct child child = child_start(scenario, settings);
    return child_end(&child);
}

/* Both ends of a child's pipes. */
static void send_bytes(int fd, const void *from, size_t bytes)
{
    want(write(fd, from, bytes) == (ssize_t)bytes, "a write to a pipe", __LINE__);
}

static void receive_bytes(int fd, void *to, size_t bytes)
{
    want(read(fd, to, bytes) == (ssize_t)bytes, "a read from a pipe", __LINE__);
}

static void tell(int fd)
{
    send_bytes(fd, "", 1);
}

static void hear(int fd)
{
    char byte;
    receive_bytes(fd, &byte, 1);
}

/* --- what most tests use --- */

static void *device, *device_other; /* a MiB each */
static char *pinned, *pageable;     /* 4 MiB each; the first two of `pinned` are registered */
static cudaStream_t stream, other;  /* not blocking */
static cudaEvent_t event;
static bool is_fake;

/* gpu_spin(), whatever failed before: a launch may return the thread's last error. */
static int spin(unsigned ms, cudaStream_t on)
{
    (void)cudaGetLastError();
    return gpu_spin(ms, on);
}

static void setup(void)
{
    pinned = mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pageable = mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    OK(cudaSetDevice(0));
    OK(cudaMalloc(&device, MIB));
    OK(cudaMalloc(&device_other, MIB));
    OK(cudaHostRegister(pinned, 2 * MIB, cudaHostRegisterDefault));
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync));
    OK(spin(0, stream)); /* a GPU loads its kernels at the first launch, and waits for that */
    OK(gpu_checksum(device, 1, (uint64_t *)(void *)pinned, stream));
    OK(cudaDeviceSynchronize());
    (void)cudaGetLastError();
}

static void teardown(void)
{
    OK(cudaDeviceSynchronize());
    OK(cudaEventDestroy(event));
    OK(cudaStreamDestroy(other));
    OK(cudaStreamDestroy(stream));
    OK(cudaHostUnregister(pinned));
    OK(cudaFree(device_other));
    OK(cudaFree(device));
    munmap(pageable, 4 * MIB);
    munmap(pinned, 4 * MIB);
}

/* The first byte of device memory, when everything in the streams has been executed. */
static int byte_of(const void *address)
{
    unsigned char byte;
    OK(cudaStreamSynchronize(stream));
    OK(cudaStreamSynchronize(other));
    OK(cudaMemcpy(&byte, address, 1, cudaMemcpyDeviceToHost));
    return byte;
}

/* --- as a GPU --- */

START_TEST(test_devices)
{
    int count = 0, version = 0, current = -1, value = 0;
    char bus[32];
    struct cudaDeviceProp properties;
    OK(cudaGetDeviceCount(&count));
    ck_assert_int_ge(count, 1);
    OK(cudaRuntimeGetVersion(&version));
    ck_assert_int_eq(version, CUDART_VERSION);
    OK(cudaDriverGetVersion(&version));
    ck_assert_int_ge(version, 12040);
    OK(cudaGetDevice(&current));
    ck_assert_int_eq(current, 0);
    IS(cudaSetDevice(count), cudaErrorInvalidDevice);
    IS(cudaPeekAtLastError(), cudaErrorInvalidDevice);
    IS(cudaGetLastError(), cudaErrorInvalidDevice);
    IS(cudaGetLastError(), cudaSuccess);
    IS(cudaSetDevice(-1), cudaErrorInvalidDevice);
    IS(cudaGetDeviceProperties(&properties, count), cudaErrorInvalidDevice);
    IS(cudaGetDeviceCount(NULL), cudaErrorInvalidValue);
    OK(cudaGetDeviceProperties(&properties, 0));
    ck_assert_uint_gt(properties.totalGlobalMem, 0);
    OK(cudaDeviceGetPCIBusId(bus, 13, 0));
    ck_assert_uint_eq(strlen(bus), 12);
    IS(cudaDeviceGetPCIBusId(bus, 12, 0), cudaErrorInvalidValue);
    OK(cudaDeviceGetAttribute(&value, cudaDevAttrHostRegisterReadOnlySupported, 0));
    ck_assert_int_eq(value, 1);
    ck_assert_str_eq(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory");
    ck_assert_str_eq(cudaGetErrorString((cudaError_t)12345), "unrecognized error code");
    ck_assert_str_eq(cudaGetErrorName((cudaError_t)12345), "unrecognized error code");
    OK(cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync));
    IS(cudaSetDeviceFlags(0xffff), cudaErrorInvalidValue);
}
END_TEST

START_TEST(test_allocations)
{
    void *pointer = device;
    char on_stack;
    size_t before, after, total;
    OK(cudaMemGetInfo(&before, &total));
    ck_assert_uint_ge(total, before);
    OK(cudaMalloc(&pointer, 64 * MIB));
    OK(cudaMemGetInfo(&after, NULL));
    ck_assert_uint_eq(before - after, 64 * MIB);
    OK(cudaFree(pointer));
    OK(cudaMemGetInfo(&after, NULL));
    ck_assert_uint_eq(before, after);
    OK(cudaMalloc(&pointer, 0));
    ck_assert_ptr_null(pointer);
    pointer = device;
    IS(cudaMalloc(&pointer, total + 1), cudaErrorMemoryAllocation);
    ck_assert_ptr_null(pointer);
    IS(cudaMalloc(NULL, 1), cudaErrorInvalidValue);
    OK(cudaFree(NULL));
    IS(cudaFree((char *)device + 256), cudaErrorInvalidValue);
    IS(cudaFree(&on_stack), cudaErrorInvalidValue);
    OK(cudaFreeHost(NULL));
    IS(cudaFreeHost(&on_stack), cudaErrorInvalidValue);
    OK(cudaHostAlloc(&pointer, MIB, cudaHostAllocPortable));
    IS(cudaFreeHost((char *)pointer + 4096), cudaErrorInvalidValue);
    IS(cudaHostRegister(pointer, MIB, cudaHostRegisterDefault), cudaErrorInvalidValue);
    IS(cudaHostUnregister(pointer), cudaErrorInvalidValue);
    OK(cudaFreeHost(pointer));
    IS(cudaHostAlloc(&pointer, MIB, 0x1000), cudaErrorInvalidValue);
}
END_TEST

START_TEST(test_the_host_has_no_access_to_device_memory)
{
    int fds[2];
    ck_assert_int_eq(pipe(fds), 0);
    ck_assert_int_eq(write(fds[1], device, 1), -1);
    ck_assert_int_eq(errno, EFAULT);
    close(fds[0]);
    close(fds[1]);
}
END_TEST

START_TEST(test_registration)
{
    char *more = pinned + 2 * MIB; /* not registered */
    char *read_only = mmap(NULL, MIB, PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    char *gone = mmap(NULL, 2 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    munmap(gone + MIB, MIB);
    IS(cudaHostRegister(more, 0, 0), cudaErrorInvalidValue);
    IS(cudaHostRegister(NULL, MIB, 0), cudaErrorInvalidValue);
    IS(cudaHostRegister(more, MIB, 0x1000), cudaErrorInvalidValue);
    IS(cudaHostRegister(device, MIB, 0), cudaErrorInvalidValue);
    IS(cudaHostRegister(gone, 2 * MIB, 0), cudaErrorInvalidValue);
    IS(cudaHostRegister(read_only, MIB, 0), cudaErrorInvalidValue);
    OK(cudaHostRegister(read_only, MIB, cudaHostRegisterReadOnly | cudaHostRegisterPortable | cudaHostRegisterMapped));
    OK(cudaMemcpyAsync(device, read_only, MIB, cudaMemcpyHostToDevice, stream));
    ck_assert_int_eq(byte_of(device), 0);
    IS(cudaMemcpyAsync(read_only, device, 64, cudaMemcpyDeviceToHost, stream), cudaErrorInvalidValue);
    OK(cudaHostUnregister(read_only));
    IS(cudaHostRegister(pinned, 2 * MIB, 0), cudaErrorHostMemoryAlreadyRegistered);
    IS(cudaHostRegister(pinned + MIB, MIB / 2, 0), cudaErrorHostMemoryAlreadyRegistered);
    IS(cudaHostRegister(pinned + MIB, 2 * MIB, 0), cudaErrorHostMemoryAlreadyRegistered);
    OK(cudaHostRegister(more + MIB, MIB, 0));
    IS(cudaHostRegister(more, 2 * MIB, 0), cudaErrorHostMemoryAlreadyRegistered);
    OK(cudaHostRegister(more, MIB, 0)); /* between two others */
    IS(cudaHostUnregister(more + 4096), cudaErrorInvalidValue);
    OK(cudaHostUnregister(more));
    OK(cudaHostUnregister(more + MIB));
    IS(cudaHostUnregister(more), cudaErrorHostMemoryNotRegistered);
    IS(cudaHostUnregister(NULL), cudaErrorInvalidValue);
    IS(cudaHostUnregister(device), cudaErrorInvalidValue);
    munmap(read_only, MIB);
    munmap(gone, MIB);
}
END_TEST

static void attributes_are(const void *pointer, enum cudaMemoryType type, int ordinal, bool on_device, bool on_host)
{
    struct cudaPointerAttributes attributes;
    OK(cudaPointerGetAttributes(&attributes, pointer));
    ck_assert_int_eq(attributes.type, type);
    ck_assert_int_eq(attributes.device, ordinal);
    ck_assert_ptr_eq(attributes.devicePointer, on_device ? pointer : NULL);
    ck_assert_ptr_eq(attributes.hostPointer, on_host ? pointer : NULL);
}

START_TEST(test_pointer_attributes)
{
    attributes_are(device, cudaMemoryTypeDevice, 0, true, false);
    attributes_are((char *)device + 256, cudaMemoryTypeDevice, 0, true, false);
    attributes_are(pinned + 5, cudaMemoryTypeHost, 0, true, true);
    attributes_are(pageable, cudaMemoryTypeUnregistered, cudaInvalidDeviceId, false, true);
}
END_TEST

START_TEST(test_copies_stay_within_memory)
{
    char *const inner = (char *)device + MIB / 2;
    const enum cudaMemcpyKind h2d = cudaMemcpyHostToDevice, d2h = cudaMemcpyDeviceToHost;
    void *large;
    OK(cudaMalloc(&large, 4 * MIB)); /* of a GPU, smaller ones share a block */
    OK(cudaMemcpyAsync(device, pinned, MIB, h2d, stream));
    OK(cudaMemcpyAsync(device, pageable, MIB, h2d, stream));
    IS(cudaMemcpyAsync(large, pageable, 4 * MIB + 1, h2d, stream), cudaErrorInvalidValue);
    IS(cudaMemcpyAsync((char *)large + 2 * MIB, pageable, 3 * MIB, h2d, stream), cudaErrorInvalidValue);
    IS(cudaMemcpyAsync(pageable, large, 4 * MIB + 1, d2h, stream), cudaErrorInvalidValue);
    IS(cudaMemsetAsync(large, 0, 4 * MIB + 1, stream), cudaErrorInvalidValue);
    IS(cudaMemset(pageable, 0, 1), cudaErrorInvalidValue);
    /* Begins in registered memory, and leaves it. */
    IS(cudaMemcpyAsync(large, pinned + MIB, 2 * MIB, h2d, stream), cudaErrorInvalidValue);
    IS(cudaMemcpyAsync(pinned + MIB, large, 2 * MIB, d2h, stream), cudaErrorInvalidValue);
    IS(cudaMemcpy(large, pinned + MIB, 2 * MIB, h2d), cudaErrorInvalidValue);
    /* Where the kind says GPU it must be memory that the GPU can use; where it says host it may be. */
    IS(cudaMemcpyAsync(pageable, pageable + MIB, 1, h2d, stream), cudaErrorInvalidValue);
    IS(cudaMemcpyAsync(pageable, device, 1, h2d, stream), cudaErrorInvalidValue);
    IS(cudaMemcpyAsync(device, pageable, 1, d2h, stream), cudaErrorInvalidValue);
    IS(cudaMemcpyAsync(device, pageable, 1, cudaMemcpyDeviceToDevice, stream), cudaErrorInvalidValue);
    OK(cudaMemcpyAsync(device, pinned, 1, cudaMemcpyDeviceToDevice, stream));
    OK(cudaMemcpyAsync(inner, device, 1, h2d, stream));
    OK(cudaMemcpyAsync(inner, device, 1, cudaMemcpyDeviceToDevice, stream));
    OK(cudaMemcpyAsync(device, pageable, 1, cudaMemcpyDefault, stream));
    OK(cudaMemcpyAsync(pageable, pageable + MIB, 1, cudaMemcpyHostToHost, stream));
    IS(cudaMemcpyAsync(device, pageable, 1, (enum cudaMemcpyKind)9, stream), cudaErrorInvalidMemcpyDirection);
    OK(cudaMemcpyAsync(NULL, NULL, 0, h2d, stream));
    IS(cudaMemcpyAsync(NULL, pageable, 1, h2d, stream), cudaErrorInvalidValue);
    IS(cudaMemcpyAsync(device, NULL, 1, h2d, stream), cudaErrorInvalidValue);
    OK(cudaStreamSynchronize(stream));
    OK(cudaFree(large));
    IS(cudaMemcpyAsync(large, pageable, 1, h2d, stream), cudaErrorInvalidValue);
}
END_TEST

START_TEST(test_copies_and_order_within_a_stream)
{
    for (size_t i = 0; i < MIB; i++)
        pinned[i] = (char)(i * 7 % 251);
    OK(cudaMemsetAsync(device_other, 0xee, MIB, stream));
    OK(cudaMemcpyAsync(device, pinned, MIB, cudaMemcpyHostToDevice, stream));
    OK(cudaMemcpyAsync((char *)device_other + 100, (char *)device + 1000, 50000, cudaMemcpyDeviceToDevice, stream));
    OK(cudaMemcpyAsync(pinned + MIB, device_other, MIB, cudaMemcpyDeviceToHost, stream));
    OK(cudaStreamSynchronize(stream));
    for (size_t i = 0; i < MIB; i++) {
        const char expected = i < 100 || i >= 50100 ? (char)0xee : (char)((i + 900) * 7 % 251);
        if (pinned[MIB + i] != expected)
            ck_abort_msg("byte %zu is %d, not %d", i, pinned[MIB + i], expected);
    }
}
END_TEST

/* From which memory a copy has been read when the call returns. */
START_TEST(test_pageable_memory_is_read_by_the_call)
{
    memset(pageable, 'a', 65536);
    OK(spin(SPIN_MS, stream));
    const uint64_t began = now_ms();
    OK(cudaMemcpyAsync(device, pageable, 65536, cudaMemcpyHostToDevice, stream));
    IS(cudaStreamQuery(stream), cudaErrorNotReady);
    ck_assert_uint_lt(now_ms() - began, SPIN_MS);
    memset(pageable, 'b', 65536);
    ck_assert_int_eq(byte_of(device), 'a');
    ck_assert_int_eq(byte_of((char *)device + 65535), 'a');
    memset(pageable, 'c', 4 * MIB);
    OK(spin(SPIN_MS, stream));
    OK(cudaMemcpyAsync(device, pageable, MIB, cudaMemcpyHostToDevice, stream)); /* waits: it is too large */
    memset(pageable, 'd', 4 * MIB);
    ck_assert_int_eq(byte_of(device), 'c');
    OK(spin(SPIN_MS, stream));
    OK(cudaMemcpyAsync(pageable, device, 1, cudaMemcpyDeviceToHost, stream)); /* waits: it is written by the call */
    ck_assert_int_eq(*pageable, 'c');
}
END_TEST

START_TEST(test_pinned_memory_is_read_when_executed)
{
    *pinned = 'a';
    OK(cudaMemsetAsync(device, 'x', 1, stream));
    OK(spin(SPIN_MS, stream));
    OK(cudaMemcpyAsync(device, pinned, 1, cudaMemcpyHostToDevice, stream));
    IS(cudaStreamQuery(stream), cudaErrorNotReady);
    if (!WITH_TSAN) /* the mistake that a test is to find: see test_a_missing_wait_is_a_race */
        *(volatile char *)pinned = 'b';
    ck_assert_int_eq(byte_of(device), WITH_TSAN ? 'a' : 'b');
}
END_TEST

START_TEST(test_events)
{
    cudaEvent_t unused;
    IS(cudaEventCreateWithFlags(&unused, 0x100), cudaErrorInvalidValue);
    IS(cudaEventCreateWithFlags(&unused, cudaEventInterprocess), cudaErrorInvalidValue);
    OK(cudaEventCreateWithFlags(&unused, cudaEventDisableTiming));
    OK(cudaEventQuery(unused));
    OK(cudaEventSynchronize(unused));
    OK(cudaStreamWaitEvent(stream, unused, 0));
    IS(cudaStreamWaitEvent(stream, unused, 5), cudaErrorInvalidValue);
    IS(cudaEventQuery(NULL), cudaErrorInvalidResourceHandle);
    IS(cudaEventRecord(NULL, stream), cudaErrorInvalidResourceHandle);
    IS(cudaEventDestroy(NULL), cudaErrorInvalidResourceHandle);
    (void)cudaGetLastError();

    OK(cudaEventRecord(event, stream));
    OK(cudaEventSynchronize(event));
    OK(cudaEventQuery(event));
    OK(spin(SPIN_MS, stream));
    OK(cudaEventQuery(event)); /* of what came before the spin */
    OK(cudaEventRecord(event, stream));
    IS(cudaEventQuery(event), cudaErrorNotReady);
    IS(cudaStreamQuery(stream), cudaErrorNotReady);
    IS(cudaPeekAtLastError(), cudaSuccess); /* not ready is no error */
    OK(cudaStreamQuery(other));
    const uint64_t began = now_ms();
    OK(cudaEventSynchronize(event));
    ck_assert_uint_ge(now_ms() - began + 20, SPIN_MS);
    OK(cudaEventQuery(event));
    OK(cudaStreamQuery(stream));

    OK(spin(SPIN_MS, stream));
    OK(cudaEventRecord(unused, stream));
    OK(cudaEventDestroy(unused)); /* while it is pending */
    IS(cudaStreamQuery(stream), cudaErrorNotReady);
    OK(cudaStreamSynchronize(stream));
}
END_TEST

START_TEST(test_streams_wait_for_events)
{
    OK(cudaMemset(device, 1, 2));
    OK(cudaDeviceSynchronize());
    OK(spin(SPIN_MS, stream));
    OK(cudaMemsetAsync(device, 2, 1, stream));
    OK(cudaEventRecord(event, stream));
    OK(cudaMemcpyAsync(device_other, (char *)device + 1, 1, cudaMemcpyDeviceToDevice, other));
    OK(cudaStreamSynchronize(other)); /* doesn't wait */
    IS(cudaEventQuery(event), cudaErrorNotReady);
    OK(cudaStreamWaitEvent(other, event, 0));
    OK(cudaMemcpyAsync((char *)device_other + 1, device, 1, cudaMemcpyDeviceToDevice, other));
    OK(cudaEventRecord(event, other)); /* what is waited for was decided by the call */
    OK(cudaEventSynchronize(event));
    ck_assert_int_eq(byte_of(device_other), 1);
    ck_assert_int_eq(byte_of((char *)device_other + 1), 2);
}
END_TEST

START_TEST(test_default_streams)
{
    cudaStream_t blocking;
    unsigned flags = 9;
    IS(cudaStreamCreateWithFlags(&blocking, 7), cudaErrorInvalidValue);
    OK(cudaStreamCreate(&blocking));
    OK(cudaStreamGetFlags(blocking, &flags));
    ck_assert_uint_eq(flags, cudaStreamDefault);
    OK(cudaStreamGetFlags(stream, &flags));
    ck_assert_uint_eq(flags, cudaStreamNonBlocking);
    OK(cudaStreamQuery(NULL));
    OK(cudaStreamQuery(cudaStreamPerThread));
    IS(cudaStreamDestroy(NULL), cudaErrorInvalidResourceHandle);
    IS(cudaStreamDestroy(cudaStreamLegacy), cudaErrorInvalidResourceHandle);
    IS(cudaStreamDestroy(cudaStreamPerThread), cudaErrorInvalidResourceHandle);

    const cudaStream_t blocks[] = {blocking, cudaStreamPerThread};
    for (size_t i = 0; i < 2; i++) {
        OK(spin(SPIN_MS, blocks[i]));
        IS(cudaStreamQuery(NULL), cudaErrorNotReady); /* the legacy stream waits for blocking ones */
        OK(cudaMemsetAsync(device, 1, 1, NULL));
        OK(cudaStreamSynchronize(NULL));
        OK(cudaStreamQuery(blocks[i]));
        OK(spin(SPIN_MS, cudaStreamLegacy));
        OK(cudaMemsetAsync(device, 2, 1, blocks[i])); /* and they for it */
        IS(cudaStreamQuery(blocks[i]), cudaErrorNotReady);
        OK(cudaMemsetAsync(device, 3, 1, stream)); /* those that don't block neither */
        OK(cudaStreamSynchronize(stream));
        IS(cudaStreamQuery(NULL), cudaErrorNotReady);
        OK(cudaStreamSynchronize(blocks[i]));
        OK(cudaStreamQuery(NULL));
        ck_assert_int_eq(byte_of(device), 2);
    }
    OK(cudaStreamDestroy(blocking));
}
END_TEST

static unsigned thread_count(void)
{
    unsigned count = 0;
    DIR *tasks = opendir("/proc/self/task");
    while (readdir(tasks) != NULL)
        count++;
    closedir(tasks);
    return count;
}

static void *use_per_thread(void *argument)
{
    (void)spin(SPIN_MS, cudaStreamPerThread);
    (void)cudaMemsetAsync(argument, 4, 1, cudaStreamPerThread);
    return NULL;
}

START_TEST(test_a_thread_ends_before_its_stream)
{
    pthread_t threads[3];
    OK(cudaMemset(device, 1, 3));
    OK(cudaDeviceSynchronize());
    const unsigned before = thread_count();
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, use_per_thread, (char *)device + i), 0);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    OK(cudaDeviceSynchronize());
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(byte_of((char *)device + i), 4);
    const uint64_t end = now_ms() + 5000; /* a thread is listed a little longer than it is joined */
    while (is_fake && thread_count() > before && now_ms() < end)
        usleep(1000);
    ck_assert(!is_fake || thread_count() <= before);
}
END_TEST

/* @return whether the stream that was busy before the call was so after it */
static bool still_busy(cudaError_t error)
{
    ck_assert_str_eq(cudaGetErrorName(error), "cudaSuccess");
    const cudaError_t state = cudaStreamQuery(stream);
    OK(cudaDeviceSynchronize());
    return state == cudaErrorNotReady;
}

#define WAITS(call)                                                                                                    \
    do {                                                                                                               \
        OK(spin(SPIN_MS, stream));                                                                                     \
        ck_assert_msg(!still_busy(call), "%s doesn't wait for the stream", #call);                                     \
    } while (0)
#define PASSES(call)                                                                                                   \
    do {                                                                                                               \
        OK(spin(SPIN_MS, stream));                                                                                     \
        ck_assert_msg(still_busy(call), "%s waits for the stream", #call);                                             \
    } while (0)

START_TEST(test_what_waits)
{
    void *pointer, *host;
    cudaEvent_t unused;
    cudaIpcMemHandle_t handle;
    PASSES(cudaMemcpyAsync(device, pinned, MIB, cudaMemcpyHostToDevice, stream));
    PASSES(cudaMemsetAsync(device, 0, MIB, stream));
    PASSES(cudaEventRecord(event, stream));
    PASSES(cudaMemset(device, 0, 1));
    PASSES(cudaMemcpy(device, pageable, 1, cudaMemcpyHostToDevice));
    PASSES(cudaMalloc(&pointer, 4 * MIB));
    WAITS(cudaFree(pointer));
    OK(cudaHostAlloc(&host, MIB, cudaHostAllocDefault));
    WAITS(cudaFreeHost(host));
    PASSES(cudaHostRegister(pinned + 3 * MIB, MIB, cudaHostRegisterDefault));
    WAITS(cudaHostUnregister(pinned + 3 * MIB));
    PASSES(cudaEventCreateWithFlags(&unused, cudaEventDisableTiming));
    PASSES(cudaEventDestroy(unused));
    PASSES(cudaIpcGetMemHandle(&handle, device));
    WAITS(cudaDeviceSynchronize());
    OK(spin(SPIN_MS, cudaStreamLegacy));
    OK(cudaMemcpy(device, device_other, 1, cudaMemcpyDeviceToDevice));
    IS(cudaStreamQuery(NULL), cudaErrorNotReady); /* within the GPU there is nobody to wait for */
    OK(cudaMemcpy(device, pageable, 1, cudaMemcpyHostToDevice));
    OK(cudaStreamQuery(NULL));
}
END_TEST

struct host_function {
    _Atomic int calls;
    cudaError_t error; /* of CUDA, called from there */
};

static void host_function(void *argument)
{
    struct host_function *host = argument;
    void *pointer;
    host->error = cudaMalloc(&pointer, 1);
    atomic_fetch_add(&host->calls, 1);
}

START_TEST(test_host_functions)
{
    struct host_function host = {0};
    IS(cudaLaunchHostFunc(stream, NULL, NULL), cudaErrorInvalidValue);
    OK(spin(SPIN_MS, stream));
    OK(cudaLaunchHostFunc(stream, host_function, &host));
    ck_assert_int_eq(atomic_load(&host.calls), 0);
    OK(cudaStreamSynchronize(stream));
    ck_assert_int_eq(atomic_load(&host.calls), 1);
    IS(host.error, cudaErrorNotPermitted);
}
END_TEST

START_TEST(test_checksum_kernel)
{
    uint64_t *out = (uint64_t *)(void *)(pinned + MIB);
    for (size_t i = 0; i < 1000; i++)
        pinned[i] = (char)(i * i % 256);
    OK(cudaMemcpyAsync(device, pinned, 1000, cudaMemcpyHostToDevice, stream));
    OK(gpu_checksum(device, 1000, out, stream));
    OK(gpu_checksum(pinned, 1, out + 1, stream)); /* registered memory is the GPU's too */
    OK(cudaStreamSynchronize(stream));
    /* Python: sum((i * i % 256 + 1) * (i * 2654435761 + 12345) for i in range(1000)) % 2**64 */
    ck_assert_uint_eq(out[0], 142569098361257376);
    ck_assert_uint_eq(out[1], 12345);
}
END_TEST

START_TEST(test_normalize_kernel)
{
    const struct normalize_params params = {.batch = 3,
                                            .in_height = 9,
                                            .in_width = 8,
                                            .channels = 3,
                                            .out_height = 5,
                                            .out_width = 6,
                                            .dtype = NORMALIZE_F32,
                                            .layout = NORMALIZE_NCHW,
                                            .mean = {0.485, 0.456, 0.406},
                                            .std = {0.229, 0.224, 0.225},
                                            .scale = 255};
    struct normalize_window windows[3] = {{0, 0, 0}, {4, 2, 1}, {1, 1, 0}};
    float expected[3 * 3 * 5 * 6];
    float *actual = (float *)(void *)(pinned + MIB);
    ck_assert_uint_eq(normalize_bytes(&params), sizeof(expected));
    for (size_t i = 0; i < (size_t)3 * 9 * 8 * 3; i++)
        pinned[i] = (char)(i * 31 % 256);
    normalize_scalar(&params, (uint8_t *)pinned, windows, expected);
    OK(cudaMemcpyAsync(device, pinned, MIB, cudaMemcpyHostToDevice, stream));
    OK(spin(SPIN_MS, stream));
    OK(normalize_cuda_launch(&params, device, windows, device_other, stream));
    memset(windows, 0xff, sizeof(windows)); /* read during the call */
    OK(cudaMemcpyAsync(actual, device_other, sizeof(expected), cudaMemcpyDeviceToHost, stream));
    OK(cudaStreamSynchronize(stream));
    ck_assert_mem_eq(actual, expected, sizeof(expected));
    normalize_scalar(&params, (uint8_t *)pinned, NULL, expected);
    OK(normalize_cuda_launch(&params, device, NULL, device_other, stream));
    OK(cudaMemcpyAsync(actual, device_other, sizeof(expected), cudaMemcpyDeviceToHost, stream));
    OK(cudaStreamSynchronize(stream));
    ck_assert_mem_eq(actual, expected, sizeof(expected));
}
END_TEST

/* --- capture --- */

/* One call that a capture may forbid, on memory and objects of its own. */
static void *spare_device, *spare_host, *import;
static cudaIpcMemHandle_t import_handle;
static cudaStream_t spare_stream;
static cudaEvent_t spare_event;
static struct host_function captured_host;

#define CALL(name, call)                                                                                               \
    static cudaError_t name(void)                                                                                      \
    {                                                                                                                  \
        return call;                                                                                                   \
    }

CALL(call_malloc, cudaMalloc(&spare_device, MIB))
CALL(call_free, cudaFree(spare_device))
CALL(call_host_alloc, cudaHostAlloc(&spare_host, MIB, cudaHostAllocDefault))
CALL(call_free_host, cudaFreeHost(spare_host))
CALL(call_register, cudaHostRegister(pinned + 3 * MIB, MIB, cudaHostRegisterDefault))
CALL(call_unregister, cudaHostUnregister(pinned + 3 * MIB))
CALL(call_import, cudaIpcOpenMemHandle(&import, import_handle, cudaIpcMemLazyEnablePeerAccess))
CALL(call_close_import, cudaIpcCloseMemHandle(import))
CALL(call_export, cudaIpcGetMemHandle(&(cudaIpcMemHandle_t){0}, device))
CALL(call_memory_info, cudaMemGetInfo(&(size_t){0}, &(size_t){0}))
CALL(call_event_create, cudaEventCreateWithFlags(&spare_event, cudaEventDisableTiming))
CALL(call_event_record, cudaEventRecord(spare_event, stream))
CALL(call_event_query, cudaEventQuery(event))
CALL(call_event_synchronize, cudaEventSynchronize(event))
CALL(call_wait_event, cudaStreamWaitEvent(stream, event, 0))
CALL(call_event_destroy, cudaEventDestroy(spare_event))
CALL(call_stream_create, cudaStreamCreateWithFlags(&spare_stream, cudaStreamNonBlocking))
CALL(call_stream_query, cudaStreamQuery(stream))
CALL(call_stream_synchronize, cudaStreamSynchronize(stream))
CALL(call_stream_destroy, cudaStreamDestroy(spare_stream))
CALL(call_copy, cudaMemcpyAsync(device, pinned, 64, cudaMemcpyHostToDevice, stream))
CALL(call_copy_pageable, cudaMemcpyAsync(device, pageable, 64, cudaMemcpyHostToDevice, stream))
CALL(call_set, cudaMemsetAsync(device, 0, 64, stream))
CALL(call_launch, (cudaError_t)spin(0, stream))
CALL(call_host_function, cudaLaunchHostFunc(stream, host_function, &captured_host))
CALL(call_get_device, cudaGetDevice(&(int){0}))
CALL(call_set_device, cudaSetDevice(0))
CALL(call_device_synchronize, cudaDeviceSynchronize())
CALL(call_legacy_copy, cudaMemcpy(device_other, pinned, 64, cudaMemcpyHostToDevice))
CALL(call_legacy_copy_async, cudaMemcpyAsync(device_other, pinned, 64, cudaMemcpyHostToDevice, NULL))
CALL(call_legacy_set, cudaMemset(device_other, 0, 64))
CALL(call_legacy_record, cudaEventRecord(event, NULL))
CALL(call_legacy_query, cudaStreamQuery(NULL))
CALL(call_legacy_synchronize, cudaStreamSynchronize(NULL))

enum column {
    STRICT,  /* while a stream that doesn't block captures */
    RELAXED, /* the same, in a thread that says that it knows what it does */
    BLOCKING /* as STRICT, while a stream that blocks captures */
};

static const struct forbidden {
    const char *name;
    cudaError_t (*call)(void);
    cudaError_t expected[3]; /* by column */
} calls[] = {
#define UNSUPPORTED cudaErrorStreamCaptureUnsupported
#define IMPLICIT    cudaErrorStreamCaptureImplicit
#define ALWAYS                                                                                                         \
    {                                                                                                                  \
        cudaSuccess, cudaSuccess, cudaSuccess                                                                          \
    }
#define NOT_NOW                                                                                                        \
    {                                                                                                                  \
        UNSUPPORTED, cudaSuccess, UNSUPPORTED                                                                          \
    }
#define NEVER                                                                                                          \
    {                                                                                                                  \
        UNSUPPORTED, UNSUPPORTED, UNSUPPORTED                                                                          \
    }
#define LEGACY                                                                                                         \
    {                                                                                                                  \
        cudaSuccess, cudaSuccess, IMPLICIT                                                                             \
    }
#define LEGACY_WAIT                                                                                                    \
    {                                                                                                                  \
        UNSUPPORTED, cudaSuccess, IMPLICIT                                                                             \
    }
    {"cudaMalloc", call_malloc, NOT_NOW},
    {"cudaFree", call_free, NOT_NOW},
    {"cudaHostAlloc", call_host_alloc, NOT_NOW},
    {"cudaFreeHost", call_free_host, NOT_NOW},
    {"cudaHostRegister", call_register, NOT_NOW},
    {"cudaHostUnregister", call_unregister, NOT_NOW},
    {"cudaIpcOpenMemHandle", call_import, ALWAYS},
    {"cudaIpcCloseMemHandle", call_close_import, ALWAYS},
    {"cudaIpcGetMemHandle", call_export, ALWAYS},
    {"cudaMemGetInfo", call_memory_info, ALWAYS},
    {"cudaEventCreateWithFlags", call_event_create, ALWAYS},
    {"cudaEventRecord", call_event_record, ALWAYS},
    {"cudaEventQuery", call_event_query, NOT_NOW},
    {"cudaEventSynchronize", call_event_synchronize, NOT_NOW},
    {"cudaStreamWaitEvent", call_wait_event, ALWAYS},
    {"cudaEventDestroy", call_event_destroy, ALWAYS},
    {"cudaStreamCreateWithFlags", call_stream_create, ALWAYS},
    {"cudaStreamQuery", call_stream_query, NOT_NOW},
    {"cudaStreamSynchronize", call_stream_synchronize, NOT_NOW},
    {"cudaStreamDestroy", call_stream_destroy, ALWAYS},
    {"cudaMemcpyAsync", call_copy, ALWAYS},
    {"cudaMemcpyAsync (pageable)", call_copy_pageable, ALWAYS},
    {"cudaMemsetAsync", call_set, ALWAYS},
    {"a kernel", call_launch, ALWAYS},
    {"cudaLaunchHostFunc", call_host_function, ALWAYS},
    {"cudaGetDevice", call_get_device, ALWAYS},
    {"cudaSetDevice", call_set_device, ALWAYS},
    {"cudaDeviceSynchronize", call_device_synchronize, NEVER},
    {"cudaMemcpy", call_legacy_copy, LEGACY},
    {"cudaMemcpyAsync (legacy stream)", call_legacy_copy_async, LEGACY},
    {"cudaMemset", call_legacy_set, LEGACY},
    {"cudaEventRecord (legacy stream)", call_legacy_record, LEGACY},
    {"cudaStreamQuery (legacy stream)", call_legacy_query, LEGACY_WAIT},
    {"cudaStreamSynchronize (legacy stream)", call_legacy_synchronize, LEGACY_WAIT},
};

/* A forbidden call leaves undone what the next in the list undoes: it is then done here, or undone. */
static void make_up_for(const struct forbidden *one, cudaError_t error)
{
    if (error == cudaSuccess)
        return;
    if (one->call == call_malloc || one->call == call_free || one->call == call_host_alloc ||
        one->call == call_free_host || one->call == call_register || one->call == call_unregister ||
        one->call == call_import || one->call == call_close_import)
        OK(one->call());
}

struct caller {
    cudaError_t (*call)(void);
    bool relaxed;
    cudaError_t error;
};

static void *call_it(void *argument)
{
    struct caller *caller = argument;
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    if (caller->relaxed)
        (void)cudaThreadExchangeStreamCaptureMode(&mode);
    caller->error = caller->call();
    if (caller->relaxed)
        (void)cudaThreadExchangeStreamCaptureMode(&mode);
    return NULL;
}

/* Every call, while `capturing` captures.
 * @return how many didn't do what column says */
static unsigned try_calls(cudaStream_t capturing, enum cudaStreamCaptureMode mode, bool other_thread, bool relaxed,
                          enum column column)
{
    unsigned wrong = 0;
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        struct caller caller = {.call = calls[i].call, .relaxed = relaxed};
        enum cudaStreamCaptureStatus status;
        cudaGraph_t graph;
        pthread_t thread;
        OK(cudaDeviceSynchronize());
        OK(cudaStreamBeginCapture(capturing, mode));
        if (other_thread) {
            ck_assert_int_eq(pthread_create(&thread, NULL, call_it, &caller), 0);
            pthread_join(thread, NULL);
        } else {
            call_it(&caller);
        }
        const cudaError_t expected = calls[i].expected[column];
        OK(cudaStreamIsCapturing(capturing, &status));
        const cudaError_t ended = cudaStreamEndCapture(capturing, &graph);
        const bool went_on = status == cudaStreamCaptureStatusActive && ended == cudaSuccess && graph != NULL;
        const bool spoilt =
            status == cudaStreamCaptureStatusInvalidated && ended == cudaErrorStreamCaptureInvalidated && graph == NULL;
        if (caller.error != expected || (expected == cudaSuccess ? !went_on : !spoilt)) {
            printf("column %d, %s: %s, not %s; then the capture was %d, its end %s\n", (int)column, calls[i].name,
                   cudaGetErrorName(caller.error), cudaGetErrorName(expected), (int)status, cudaGetErrorName(ended));
            wrong++;
        }
        if (graph != NULL)
            OK(cudaGraphDestroy(graph));
        make_up_for(&calls[i], caller.error);
    }
    return wrong;
}

START_TEST(test_what_a_capture_forbids)
{
    struct child child = child_start("export", NULL);
    cudaStream_t blocking;
    receive_bytes(child.from, &import_handle, sizeof(import_handle));
    OK(cudaStreamCreate(&blocking));
    OK(cudaEventRecord(event, stream));
    const enum cudaStreamCaptureMode global = cudaStreamCaptureModeGlobal, local = cudaStreamCaptureModeThreadLocal;
    unsigned wrong = try_calls(other, global, false, false, STRICT);
    wrong += try_calls(other, global, true, false, STRICT);
    wrong += try_calls(other, local, false, false, STRICT);
    wrong += try_calls(other, global, false, true, RELAXED);
    wrong += try_calls(other, global, true, true, RELAXED);
    wrong += try_calls(other, local, true, false, RELAXED);
    wrong += try_calls(other, cudaStreamCaptureModeRelaxed, false, false, RELAXED);
    wrong += try_calls(blocking, global, false, false, BLOCKING);
    ck_assert_uint_eq(wrong, 0);
    enum cudaStreamCaptureStatus status;
    cudaGraph_t graph;
    OK(cudaStreamBeginCapture(blocking, global));
    IS(cudaStreamIsCapturing(NULL, &status), cudaErrorStreamCaptureImplicit);
    OK(cudaStreamIsCapturing(stream, &status));
    ck_assert_int_eq(status, cudaStreamCaptureStatusNone);
    OK(cudaStreamEndCapture(blocking, &graph)); /* to ask doesn't invalidate */
    OK(cudaGraphDestroy(graph));
    OK(cudaStreamDestroy(blocking));
    tell(child.to);
    ck_assert_int_eq(child_end(&child), 0);
}
END_TEST

static void *end_capture(void *graph)
{
    static cudaError_t error;
    error = cudaStreamEndCapture(stream, graph);
    return &error;
}

/* Calls on the capturing stream itself; each invalidates. */
#define SPOILS(call, error)                                                                                            \
    do {                                                                                                               \
        OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));                                               \
        OK(cudaEventRecord(captured, stream));                                                                         \
        IS(call, error);                                                                                               \
        IS(cudaMemsetAsync(device, 0, 1, stream), cudaErrorStreamCaptureInvalidated);                                  \
        IS(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);                                   \
        ck_assert_ptr_null(graph);                                                                                     \
    } while (0)

START_TEST(test_a_capturing_stream)
{
    enum cudaStreamCaptureStatus status;
    cudaEvent_t captured;
    cudaGraph_t graph;
    pthread_t thread;
    void *error;
    unsigned flags;
    OK(cudaEventCreateWithFlags(&captured, cudaEventDisableTiming));
    OK(cudaEventRecord(event, other));
    OK(cudaMemset(device, 1, 1));
    OK(cudaDeviceSynchronize());

    IS(cudaStreamBeginCapture(NULL, cudaStreamCaptureModeGlobal), cudaErrorStreamCaptureUnsupported);
    IS(cudaStreamBeginCapture(stream, (enum cudaStreamCaptureMode)9), cudaErrorInvalidValue);
    IS(cudaStreamEndCapture(stream, &graph), cudaErrorIllegalState);
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    IS(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaErrorIllegalState);
    OK(cudaMemsetAsync(device, 2, 1, stream));
    OK(cudaMemcpyAsync(device, pageable, 1, cudaMemcpyHostToDevice, stream));
    OK(spin(0, stream));
    OK(cudaLaunchHostFunc(stream, host_function, &captured_host));
    OK(cudaEventRecord(captured, stream));
    OK(cudaStreamIsCapturing(stream, &status));
    ck_assert_int_eq(status, cudaStreamCaptureStatusActive);
    OK(cudaStreamEndCapture(stream, &graph));
    ck_assert_ptr_nonnull(graph);
    OK(cudaGraphDestroy(graph));
    IS(cudaGraphDestroy(NULL), cudaErrorInvalidValue);
    OK(cudaStreamIsCapturing(stream, &status));
    ck_assert_int_eq(status, cudaStreamCaptureStatusNone);
    ck_assert_int_eq(byte_of(device), 1); /* nothing was executed */

    IS(cudaEventQuery(captured), cudaErrorInvalidValue); /* of a capture that has ended */
    IS(cudaEventSynchronize(captured), cudaErrorInvalidValue);
    IS(cudaStreamWaitEvent(other, captured, 0), cudaErrorInvalidValue);
    OK(cudaEventRecord(captured, stream));
    OK(cudaEventSynchronize(captured));

    SPOILS(cudaStreamSynchronize(stream), cudaErrorStreamCaptureUnsupported);
    SPOILS(cudaStreamQuery(stream), cudaErrorStreamCaptureUnsupported);
    SPOILS(cudaStreamGetFlags(stream, &flags), cudaErrorStreamCaptureUnsupported);
    SPOILS(cudaEventQuery(captured), cudaErrorCapturedEvent);
    SPOILS(cudaEventSynchronize(captured), cudaErrorCapturedEvent);
    SPOILS(cudaStreamWaitEvent(stream, event, 0), cudaErrorStreamCaptureIsolation);

    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    OK(cudaEventRecord(captured, stream));
    OK(cudaStreamWaitEvent(other, captured, 0)); /* joins the capture */
    OK(cudaStreamIsCapturing(other, &status));
    ck_assert_int_eq(status, cudaStreamCaptureStatusActive);
    OK(cudaStreamEndCapture(stream, &graph)); /* nothing was added there that would have to be joined back */
    OK(cudaGraphDestroy(graph));
    OK(cudaStreamIsCapturing(other, &status));
    ck_assert_int_eq(status, cudaStreamCaptureStatusNone);
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    OK(cudaEventRecord(captured, stream));
    OK(cudaStreamWaitEvent(other, captured, 0));
    IS(cudaStreamEndCapture(other, &graph), cudaErrorStreamCaptureUnmatched);
    IS(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
    OK(cudaStreamIsCapturing(other, &status));
    ck_assert_int_eq(status, cudaStreamCaptureStatusNone);

    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    ck_assert_int_eq(pthread_create(&thread, NULL, end_capture, &graph), 0);
    pthread_join(thread, &error);
    IS(*(cudaError_t *)error, cudaErrorStreamCaptureWrongThread);
    IS(cudaStreamEndCapture(stream, &graph), cudaErrorIllegalState);
    OK(cudaEventDestroy(captured));
}
END_TEST

/* --- children: what happens once a process --- */

/* Exports 4 MiB, of which byte i is i % 251, until its input is closed or says so. */
static void scenario_export(void)
{
    cudaIpcMemHandle_t handle, inner;
    void *memory;
    unsigned char *bytes = malloc(4 * MIB);
    for (size_t i = 0; i < 4 * MIB; i++)
        bytes[i] = (unsigned char)(i % 251);
    WANT(cudaMalloc(&memory, 4 * MIB), cudaSuccess);
    WANT(cudaMemcpy(memory, bytes, 4 * MIB, cudaMemcpyHostToDevice), cudaSuccess);
    WANT(cudaIpcGetMemHandle(&handle, memory), cudaSuccess);
    WANT(cudaIpcGetMemHandle(&inner, (char *)memory + 3 * MIB), cudaSuccess);
    WANT_TRUE(memcmp(&handle, &inner, sizeof(handle)) == 0);
    send_bytes(STDOUT_FILENO, &handle, sizeof(handle));
    hear(STDIN_FILENO);
    WANT(cudaFree(memory), cudaSuccess);
    free(bytes);
}

/* As that, but frees when told, takes other memory when told, and stays until told again. */
static void scenario_export_and_free(void)
{
    cudaIpcMemHandle_t handle;
    void *memory;
    WANT(cudaMalloc(&memory, 4 * MIB), cudaSuccess);
    WANT(cudaMemset(memory, 7, 4 * MIB), cudaSuccess);
    WANT(cudaDeviceSynchronize(), cudaSuccess);
    WANT(cudaIpcGetMemHandle(&handle, memory), cudaSuccess);
    send_bytes(STDOUT_FILENO, &handle, sizeof(handle));
    hear(STDIN_FILENO);
    WANT(cudaFree(memory), cudaSuccess);
    tell(STDOUT_FILENO);
    hear(STDIN_FILENO);
    WANT(cudaMalloc(&memory, 4 * MIB), cudaSuccess);
    tell(STDOUT_FILENO);
    hear(STDIN_FILENO);
}

START_TEST(test_ipc)
{
    struct child child = child_start("export", NULL);
    cudaIpcMemHandle_t handle, own, garbage;
    void *first, *second;
    unsigned char *bytes = malloc(4 * MIB);
    const enum cudaMemcpyKind d2h = cudaMemcpyDeviceToHost;
    const unsigned lazy = cudaIpcMemLazyEnablePeerAccess;
    size_t before, after;
    receive_bytes(child.from, &handle, sizeof(handle));
    IS(cudaIpcOpenMemHandle(&first, handle, 0), cudaErrorInvalidValue);
    OK(cudaMemGetInfo(&before, NULL));
    OK(cudaIpcOpenMemHandle(&first, handle, lazy));
    OK(cudaMemGetInfo(&after, NULL));
    ck_assert_uint_eq(before, after);
    OK(cudaIpcOpenMemHandle(&second, handle, lazy));
    ck_assert_ptr_eq(first, second);
    attributes_are(first, cudaMemoryTypeDevice, 0, true, false);
    OK(cudaMemcpy(bytes, first, 4 * MIB, d2h));
    for (size_t i = 0; i < 4 * MIB; i++)
        if (bytes[i] != i % 251)
            ck_abort_msg("byte %zu is %d", i, bytes[i]);
    IS(cudaMemcpy(bytes, (char *)first + 1, 4 * MIB, d2h), cudaErrorInvalidValue);
    IS(cudaIpcGetMemHandle(&own, first), cudaErrorInvalidValue); /* not to be passed on */
    IS(cudaFree(first), cudaErrorInvalidValue);
    IS(cudaIpcCloseMemHandle((char *)first + 256), cudaErrorInvalidValue);
    WAITS(cudaIpcCloseMemHandle(first));
    OK(cudaMemcpy(bytes, first, 1, d2h)); /* opened twice */
    WAITS(cudaIpcCloseMemHandle(first));
    IS(cudaMemcpy(bytes, first, 1, d2h), cudaErrorInvalidValue);
    IS(cudaIpcCloseMemHandle(first), cudaErrorInvalidValue);
    PASSES(cudaIpcOpenMemHandle(&first, handle, lazy));
    OK(cudaIpcCloseMemHandle(first));

    IS(cudaIpcGetMemHandle(&own, pinned), cudaErrorInvalidValue);
    OK(cudaIpcGetMemHandle(&own, device));
    IS(cudaIpcOpenMemHandle(&first, own, lazy), cudaErrorDeviceUninitialized); /* of this process */
    IS(cudaIpcCloseMemHandle(device), cudaErrorInvalidValue);
    memset(&garbage, 0x77, sizeof(garbage));
    IS(cudaIpcOpenMemHandle(&first, garbage, lazy), cudaErrorInvalidValue);
    tell(child.to);
    ck_assert_int_eq(child_end(&child), 0);
    IS(cudaIpcOpenMemHandle(&first, handle, lazy), cudaErrorInvalidResourceHandle);
    free(bytes);
}
END_TEST

START_TEST(test_ipc_outlives_the_exporter)
{
    struct child child = child_start("export-and-free", NULL);
    cudaIpcMemHandle_t handle;
    void *memory, *again;
    unsigned char byte = 0;
    const unsigned lazy = cudaIpcMemLazyEnablePeerAccess;
    receive_bytes(child.from, &handle, sizeof(handle));
    OK(cudaIpcOpenMemHandle(&memory, handle, lazy));
    tell(child.to);
    hear(child.from); /* freed */
    OK(cudaMemcpy(&byte, memory, 1, cudaMemcpyDeviceToHost));
    ck_assert_int_eq(byte, 7);
    OK(cudaIpcOpenMemHandle(&again, handle, lazy));
    OK(cudaIpcCloseMemHandle(again));
    OK(cudaIpcCloseMemHandle(memory));
    IS(cudaIpcOpenMemHandle(&memory, handle, lazy), cudaErrorInvalidValue);
    tell(child.to);
    hear(child.from); /* other memory has taken its place */
    IS(cudaIpcOpenMemHandle(&memory, handle, lazy), cudaErrorNotPermitted);
    tell(child.to);
    ck_assert_int_eq(child_end(&child), 0);
    IS(cudaIpcOpenMemHandle(&memory, handle, lazy), cudaErrorInvalidResourceHandle);
}
END_TEST

/* A fork of a process that has used CUDA; of one that hasn't; neither hangs. */
static void scenario_fork(void)
{
    int value, status;
    cudaStream_t busy;
    void *memory;
    pid_t pid = fork();
    if (pid == 0) {
        WANT(cudaMalloc(&memory, MIB), cudaSuccess);
        WANT(cudaMemset(memory, 0, MIB), cudaSuccess);
        WANT(cudaFree(memory), cudaSuccess);
        exit(0);
    }
    WANT_TRUE(waitpid(pid, &status, 0) == pid && status == 0);
    WANT(cudaStreamCreateWithFlags(&busy, cudaStreamNonBlocking), cudaSuccess);
    WANT(cudaMalloc(&memory, MIB), cudaSuccess);
    WANT(spin(SPIN_MS, busy), cudaSuccess);
    usleep(SPIN_MS * 200); /* the kernel runs: a sanitizer's heap must not be forked in the middle of a call */
    pid = fork();
    if (pid == 0) {
        struct cudaDeviceProp properties;
        WANT(cudaDriverGetVersion(&value), cudaSuccess);
        WANT(cudaGetDeviceCount(&value), cudaSuccess);
        WANT(cudaGetDeviceProperties(&properties, 0), cudaSuccess);
        WANT(cudaGetDevice(&value), cudaErrorInitializationError);
        WANT(cudaSetDevice(0), cudaErrorInitializationError);
        WANT(cudaMalloc(&memory, MIB), cudaErrorInitializationError);
        WANT(cudaFree(memory), cudaErrorInitializationError);
        WANT(cudaStreamQuery(busy), cudaErrorInitializationError);
        WANT(cudaStreamSynchronize(busy), cudaErrorInitializationError);
        WANT(cudaStreamDestroy(busy), cudaErrorInitializationError);
        WANT(cudaDeviceSynchronize(), cudaErrorInitializationError);
        WANT(cudaGetLastError(), cudaErrorInitializationError);
        WANT(cudaGetLastError(), cudaSuccess);
        exit(0);
    }
    WANT_TRUE(waitpid(pid, &status, 0) == pid && status == 0);
    WANT(cudaStreamSynchronize(busy), cudaSuccess);
    WANT(cudaStreamDestroy(busy), cudaSuccess);
    WANT(cudaFree(memory), cudaSuccess);
}

START_TEST(test_forks)
{
    ck_assert_int_eq(run("fork", NULL), 0);
}
END_TEST

/* A kernel that the GPU stops: all that touches the GPU fails from then on. */
static void scenario_illegal_address(void)
{
    cudaStream_t bad, good;
    cudaEvent_t early, late;
    void *memory, *host, *more;
    int value;
    size_t free_bytes;
    struct cudaDeviceProp properties;
    struct cudaPointerAttributes attributes;
    enum cudaStreamCaptureStatus status;
    cudaIpcMemHandle_t handle;
    WANT(cudaMalloc(&memory, MIB), cudaSuccess);
    WANT(cudaHostAlloc(&host, MIB, cudaHostAllocDefault), cudaSuccess);
    WANT(cudaStreamCreateWithFlags(&bad, cudaStreamNonBlocking), cudaSuccess);
    WANT(cudaStreamCreateWithFlags(&good, cudaStreamNonBlocking), cudaSuccess);
    WANT(cudaEventCreateWithFlags(&early, cudaEventDisableTiming), cudaSuccess);
    WANT(cudaEventCreateWithFlags(&late, cudaEventDisableTiming), cudaSuccess);
    WANT(cudaEventRecord(early, good), cudaSuccess);
    WANT(cudaEventSynchronize(early), cudaSuccess);
    WANT(spin(SPIN_MS, bad), cudaSuccess);
    WANT(gpu_checksum((void *)(uintptr_t)8, 1, host, bad), cudaSuccess);
    WANT(cudaEventRecord(late, bad), cudaSuccess);
    WANT(cudaEventQuery(late), cudaErrorNotReady);
    WANT(cudaEventSynchronize(late), cudaErrorIllegalAddress);
    WANT(cudaPeekAtLastError(), cudaErrorIllegalAddress);
    WANT(cudaGetLastError(), cudaErrorIllegalAddress);
    WANT(cudaGetLastError(), cudaSuccess);
    WANT(cudaEventQuery(late), cudaErrorIllegalAddress);
    WANT(cudaEventQuery(early), cudaErrorIllegalAddress);
    WANT(cudaEventSynchronize(early), cudaErrorIllegalAddress);
    WANT(cudaStreamQuery(good), cudaErrorIllegalAddress);
    WANT(cudaStreamSynchronize(good), cudaErrorIllegalAddress);
    WANT(cudaStreamIsCapturing(good, &status), cudaErrorIllegalAddress);
    WANT(cudaMemGetInfo(&free_bytes, NULL), cudaErrorIllegalAddress);
    WANT(cudaMalloc(&more, MIB), cudaErrorIllegalAddress);
    WANT(cudaHostAlloc(&more, MIB, cudaHostAllocDefault), cudaErrorIllegalAddress);
    WANT(cudaMemcpyAsync(memory, host, 64, cudaMemcpyHostToDevice, good), cudaErrorIllegalAddress);
    WANT(cudaMemcpy(host, memory, 64, cudaMemcpyDeviceToHost), cudaErrorIllegalAddress);
    WANT(cudaMemset(memory, 0, 64), cudaErrorIllegalAddress);
    WANT(spin(0, good), cudaErrorIllegalAddress);
    WANT(cudaEventRecord(early, good), cudaErrorIllegalAddress);
    WANT(cudaStreamWaitEvent(good, late, 0), cudaErrorIllegalAddress);
    WANT(cudaIpcGetMemHandle(&handle, memory), cudaErrorIllegalAddress);
    WANT(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
    WANT(cudaGetDevice(&value), cudaSuccess);
    WANT(cudaGetDeviceCount(&value), cudaSuccess);
    WANT(cudaGetDeviceProperties(&properties, 0), cudaSuccess);
    WANT(cudaPointerGetAttributes(&attributes, memory), cudaSuccess);
    WANT(cudaSetDevice(0), cudaSuccess);
    WANT(cudaEventDestroy(early), cudaErrorIllegalAddress);
    WANT(cudaEventDestroy(late), cudaErrorIllegalAddress);
    WANT(cudaStreamDestroy(good), cudaErrorIllegalAddress);
    WANT(cudaStreamDestroy(bad), cudaErrorIllegalAddress);
    WANT(cudaFree(memory), cudaErrorIllegalAddress);
    WANT(cudaFreeHost(host), cudaErrorIllegalAddress);
    WANT(cudaDeviceReset(), cudaSuccess);
    WANT(cudaMalloc(&more, MIB), cudaErrorDevicesUnavailable);
}

START_TEST(test_a_failed_gpu)
{
    char leaks[] = "/tmp/feedd-fake-cuda-XXXXXX", setting[64], line[256] = "", expected[256];
    const int fd = mkstemp(leaks);
    ck_assert_int_ge(fd, 0);
    snprintf(setting, sizeof(setting), "FEEDD_FAKE_CUDA_LEAKS=%s", leaks);
    const char *const settings[] = {setting, NULL};
    struct child child = child_start("illegal-address", settings);
    const int pid = child.pid;
    ck_assert_int_eq(child_end(&child), 0);
    if (is_fake) { /* what was given back is, although the GPU has failed */
        ck_assert_int_ge(read(fd, line, sizeof(line) - 1), 0);
        snprintf(
            expected, sizeof(expected),
            "%d allocations=0 imports=0 registered=0 streams=0 events=0 hostallocs=0 handles=0 reserved=0 mapped=0\n",
            pid);
        ck_assert_str_eq(line, expected);
    }
    close(fd);
    unlink(leaks);
}
END_TEST

static void scenario_read_only(void)
{
    char *memory = mmap(NULL, MIB, PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    void *sum;
    WANT(cudaMalloc(&sum, 8), cudaSuccess);
    WANT(cudaHostRegister(memory, MIB, cudaHostRegisterReadOnly | cudaHostRegisterPortable), cudaSuccess);
    WANT(gpu_checksum(memory, MIB, sum, NULL), cudaSuccess);
    WANT(cudaDeviceSynchronize(), cudaSuccess);
    WANT(gpu_fill(memory, 64, 1, NULL), cudaSuccess);
    WANT(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
}

START_TEST(test_a_kernel_that_writes_what_is_read_only)
{
    ck_assert_int_eq(run("read-only", NULL), 0);
}
END_TEST

static void scenario_reset(void)
{
    void *memory;
    WANT(cudaMalloc(&memory, MIB), cudaSuccess);
    WANT(cudaDeviceReset(), cudaSuccess);
    WANT(cudaFree(memory), cudaErrorInvalidValue);
    WANT(cudaMalloc(&memory, MIB), cudaSuccess);
}

START_TEST(test_reset)
{
    ck_assert_int_eq(run("reset", NULL), 0);
}
END_TEST

/* --- of the fake alone --- */

static void scenario_absent(void)
{
    const char *expected = getenv("EXPECTED");
    int value = 7;
    void *memory;
    const cudaError_t error = cudaGetDeviceCount(&value);
    WANT_TRUE(strcmp(cudaGetErrorName(error), expected) == 0);
    WANT_TRUE(value == 0);
    WANT_TRUE(cudaGetLastError() == error);
    WANT_TRUE(cudaMalloc(&memory, 1) == error);
    WANT_TRUE(cudaSetDevice(0) == error);
    WANT_TRUE(cudaGetDevice(&value) == error);
    WANT_TRUE(cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync) == error);
    WANT(cudaDriverGetVersion(&value), cudaSuccess);
    WANT_TRUE((value == 0) == (error == cudaErrorInsufficientDriver));
}

START_TEST(test_no_gpu)
{
    const char *const cases[][3] = {
        {"FEEDD_FAKE_GPUS=0", "EXPECTED=cudaErrorNoDevice"},
        {"FEEDD_FAKE_GPUS=nodriver", "EXPECTED=cudaErrorInsufficientDriver"},
        {"CUDA_VISIBLE_DEVICES=", "EXPECTED=cudaErrorNoDevice"},
        {"CUDA_VISIBLE_DEVICES=-1", "EXPECTED=cudaErrorNoDevice"},
        {"CUDA_VISIBLE_DEVICES=2,0", "EXPECTED=cudaErrorNoDevice"},
        {"CUDA_VISIBLE_DEVICES=GPU-feedd0", "EXPECTED=cudaErrorNoDevice"}, /* both */
        {"CUDA_VISIBLE_DEVICES=0,0", "EXPECTED=cudaErrorInvalidDevice"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        ck_assert_msg(run("absent", cases[i]) == 0, "%s", cases[i][0]);
}
END_TEST

/* EXPECTED: the physical ordinals of what is visible, a digit each. */
static void scenario_visible(void)
{
    const char *expected = getenv("EXPECTED");
    int count;
    WANT(cudaGetDeviceCount(&count), cudaSuccess);
    WANT_TRUE(count == (int)strlen(expected));
    for (int i = 0; i < count; i++) {
        struct cudaDeviceProp properties;
        char name[32], bus[32], expected_bus[32];
        const int physical = expected[i] - '0';
        snprintf(name, sizeof(name), "Fake GPU %d", physical);
        snprintf(expected_bus, sizeof(expected_bus), "FA4E:%02X:00.0", (unsigned)physical + 1);
        WANT(cudaGetDeviceProperties(&properties, i), cudaSuccess);
        WANT(cudaDeviceGetPCIBusId(bus, sizeof(bus), i), cudaSuccess);
        WANT_TRUE(strcmp(properties.name, name) == 0 && strcmp(bus, expected_bus) == 0);
        const unsigned char uuid[16] = {0xfe, 0xed, 0xd0, (unsigned char)physical,       0xfa, 0x4e,
                                        0x40, 0,    0x80, [15] = (unsigned char)physical};
        WANT_TRUE(memcmp(properties.uuid.bytes, uuid, 16) == 0);
        WANT_TRUE(properties.totalGlobalMem == 3 * MIB / 2);
        void *memory;
        struct cudaPointerAttributes attributes;
        size_t free_bytes, total;
        WANT(cudaSetDevice(i), cudaSuccess);
        WANT(cudaMalloc(&memory, MIB), cudaSuccess);
        WANT(cudaPointerGetAttributes(&attributes, memory), cudaSuccess);
        WANT_TRUE(attributes.device == i);
        WANT(cudaMemGetInfo(&free_bytes, &total), cudaSuccess);
        WANT_TRUE(free_bytes == MIB / 2 && total == 3 * MIB / 2);
    }
}

START_TEST(test_visible_devices)
{
    const char *const cases[][4] = {
        {"CUDA_VISIBLE_DEVICES=1,0", "EXPECTED=10"},
        {"CUDA_VISIBLE_DEVICES= 1 ,2,0", "EXPECTED=1"}, /* what comes after one that isn't there doesn't count */
        {"CUDA_VISIBLE_DEVICES=GPU-feedd001-fa4e-4000-8000-000000000001,gpu-FEEDD000", "EXPECTED=10"},
        {"CUDA_VISIBLE_DEVICES=0,1", "EXPECTED=01"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const char *const settings[] = {cases[i][0], cases[i][1], "FEEDD_FAKE_GPU_MEMORY=1536K", NULL};
        ck_assert_msg(run("visible", settings) == 0, "%s", cases[i][0]);
    }
}
END_TEST

/* The importer sees the GPUs the other way round; its current one isn't the memory's. */
static void scenario_import_elsewhere(void)
{
    cudaIpcMemHandle_t handle;
    struct cudaPointerAttributes attributes;
    void *memory;
    receive_bytes(STDIN_FILENO, &handle, sizeof(handle));
    WANT(cudaIpcOpenMemHandle(&memory, handle, cudaIpcMemLazyEnablePeerAccess), cudaSuccess);
    WANT(cudaPointerGetAttributes(&attributes, memory), cudaSuccess);
    WANT_TRUE(attributes.device == 1);
    WANT(cudaIpcCloseMemHandle(memory), cudaSuccess);
}

START_TEST(test_ipc_between_numberings)
{
    const char *const settings[] = {"CUDA_VISIBLE_DEVICES=1,0", NULL};
    struct child child = child_start("import-elsewhere", settings);
    cudaIpcMemHandle_t handle;
    OK(cudaIpcGetMemHandle(&handle, device)); /* of GPU 0 */
    send_bytes(child.to, &handle, sizeof(handle));
    ck_assert_int_eq(child_end(&child), 0);
}
END_TEST

START_TEST(test_devices_are_apart)
{
    void *memory;
    cudaStream_t second;
    cudaEvent_t second_event;
    OK(cudaSetDevice(1));
    OK(cudaMalloc(&memory, MIB));
    OK(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
    OK(cudaEventCreateWithFlags(&second_event, cudaEventDisableTiming));
    attributes_are(memory, cudaMemoryTypeDevice, 1, true, false);
    IS(cudaEventRecord(second_event, stream), cudaErrorInvalidResourceHandle);
    OK(spin(SPIN_MS, second));
    OK(cudaEventRecord(second_event, second));
    OK(cudaStreamWaitEvent(stream, second_event, 0)); /* but they may wait for each other */
    OK(cudaSetDevice(0));
    OK(cudaStreamQuery(NULL));
    IS(cudaStreamQuery(stream), cudaErrorNotReady);
    OK(cudaStreamSynchronize(stream));
    OK(cudaEventQuery(second_event));
    OK(cudaEventDestroy(second_event));
    OK(cudaStreamDestroy(second));
    OK(cudaFree(memory));
}
END_TEST

START_TEST(test_memory_registered_in_part)
{
    OK(cudaHostRegister(pageable + MIB, MIB, cudaHostRegisterDefault));
    IS(cudaMemcpyAsync(device, pageable + MIB / 2, MIB, cudaMemcpyHostToDevice, stream), cudaErrorInvalidValue);
    IS(cudaMemcpyAsync(device, pageable + 2 * MIB - 1, 2, cudaMemcpyHostToDevice, stream), cudaErrorInvalidValue);
    OK(cudaMemcpyAsync(device, pageable + MIB / 2, MIB / 2, cudaMemcpyHostToDevice, stream));
    OK(cudaStreamSynchronize(stream));
    OK(cudaHostUnregister(pageable + MIB));
}
END_TEST

static void scenario_fail(void)
{
    void *memory;
    cudaStream_t busy;
    cudaEvent_t unused = NULL;
    size_t free_bytes;
    int count;
    WANT(cudaMalloc(&memory, 1), cudaSuccess);
    WANT(cudaMalloc(&memory, 1), cudaErrorMemoryAllocation);
    WANT(cudaGetLastError(), cudaErrorMemoryAllocation);
    WANT(cudaMalloc(&memory, 1), cudaSuccess);
    WANT(cudaMalloc(&memory, 1), cudaErrorUnknown); /* two rules for one function */
    WANT(cudaStreamCreateWithFlags(&busy, cudaStreamNonBlocking), cudaSuccess);
    for (int i = 0; i < 3; i++)
        WANT(cudaStreamQuery(busy), cudaErrorLaunchFailure);
    WANT(cudaEventCreateWithFlags(&unused, cudaEventDisableTiming), cudaErrorNotPermitted);
    WANT_TRUE(unused == NULL);
    WANT(spin(0, busy), cudaErrorLaunchOutOfResources);
    WANT(spin(0, busy), cudaSuccess);
    WANT(cudaGetDeviceCount(&count), cudaErrorSystemNotReady);
    struct cudaDeviceProp properties;
    WANT(cudaGetDeviceProperties(&properties, 0), cudaErrorInvalidDevice);
    WANT(cudaMemGetInfo(&free_bytes, NULL), cudaSuccess);
}

static void scenario_fail_sticky(void)
{
    void *memory;
    size_t free_bytes;
    int count;
    WANT(cudaMalloc(&memory, 1), cudaSuccess);
    WANT(cudaMemGetInfo(&free_bytes, NULL), cudaErrorECCUncorrectable);
    WANT(cudaMalloc(&memory, 1), cudaErrorECCUncorrectable);
    WANT(cudaDeviceSynchronize(), cudaErrorECCUncorrectable);
    WANT(cudaGetDeviceCount(&count), cudaSuccess);
    WANT(cudaSetDevice(1), cudaSuccess);
    WANT(cudaMalloc(&memory, 1), cudaSuccess); /* another GPU works on */
    WANT(cudaDeviceSynchronize(), cudaSuccess);
}

static void scenario_fail_async(void)
{
    void *memory;
    char *host;
    cudaStream_t bad, good;
    cudaEvent_t before, after;
    WANT(cudaMalloc(&memory, MIB), cudaSuccess);
    WANT(cudaHostAlloc((void **)&host, MIB, cudaHostAllocDefault), cudaSuccess);
    WANT(cudaStreamCreateWithFlags(&bad, cudaStreamNonBlocking), cudaSuccess);
    WANT(cudaStreamCreateWithFlags(&good, cudaStreamNonBlocking), cudaSuccess);
    WANT(cudaEventCreateWithFlags(&before, cudaEventDisableTiming), cudaSuccess);
    WANT(cudaEventCreateWithFlags(&after, cudaEventDisableTiming), cudaSuccess);
    memset(host, 'a', MIB);
    WANT(cudaMemcpyAsync(memory, host, MIB, cudaMemcpyHostToDevice, bad), cudaSuccess);
    WANT(cudaEventRecord(before, bad), cudaSuccess);
    WANT(cudaEventSynchronize(before), cudaSuccess);
    WANT(spin(SPIN_MS, bad), cudaSuccess);
    WANT(cudaMemcpyAsync(memory, host, MIB, cudaMemcpyHostToDevice, bad), cudaSuccess); /* this one fails */
    WANT(cudaMemcpyAsync(host, memory, MIB, cudaMemcpyDeviceToHost, bad), cudaSuccess);
    WANT(cudaEventRecord(after, bad), cudaSuccess);
    WANT(cudaEventQuery(after), cudaErrorNotReady);
    WANT(spin(60000, good), cudaSuccess);
    const uint64_t began = now_ms();
    WANT(cudaEventSynchronize(after), cudaErrorHardwareStackError);
    WANT(cudaEventQuery(before), cudaErrorHardwareStackError);
    WANT(cudaStreamSynchronize(good), cudaErrorHardwareStackError);
    WANT(cudaStreamDestroy(good), cudaErrorHardwareStackError); /* what it was doing has ended */
    WANT_TRUE(now_ms() - began < 10000);
    WANT_TRUE(host[0] == 'a');
}

START_TEST(test_failures_as_asked)
{
    const char *const fail[] = {"FEEDD_FAKE_CUDA_FAIL=cudaMalloc:2:cudaErrorMemoryAllocation,cudaMalloc:4:999,"
                                "cudaStreamQuery:*:719,cudaEventCreateWithFlags:1:800,gpu_spin:1:701,"
                                "cudaGetDeviceCount:1:802,cudaGetDeviceProperties:1:101,cudaMemGetInfo:2:1",
                                NULL};
    const char *const sticky[] = {"FEEDD_FAKE_CUDA_FAIL=cudaMemGetInfo:1:cudaErrorECCUncorrectable:sticky", NULL};
    const char *const async[] = {"FEEDD_FAKE_CUDA_FAIL=cudaMemcpyAsync:2:cudaErrorHardwareStackError:async", NULL};
    ck_assert_int_eq(run("fail", fail), 0);
    ck_assert_int_eq(run("fail-sticky", sticky), 0);
    ck_assert_int_eq(run("fail-async", async), 0);
}
END_TEST

static void scenario_use(void)
{
    int count;
    freopen("/dev/null", "w", stderr);
    WANT(cudaGetDeviceCount(&count), cudaSuccess);
}

START_TEST(test_settings_without_sense)
{
    const char *const cases[][2] = {
        {"FEEDD_FAKE_GPUS=two"},
        {"FEEDD_FAKE_GPUS=17"},
        {"FEEDD_FAKE_GPU_MEMORY=1T"},
        {"FEEDD_FAKE_GPU_MEMORY=1MB"},
        {"FEEDD_FAKE_GPU_MEMORY="},
        {"FEEDD_FAKE_CUDA_FAIL=cudaMalloc"},
        {"FEEDD_FAKE_CUDA_FAIL=cudaMalloc:1"},
        {"FEEDD_FAKE_CUDA_FAIL=cudaMalloc:0:2"},
        {"FEEDD_FAKE_CUDA_FAIL=cudaMalloc:x:2"},
        {"FEEDD_FAKE_CUDA_FAIL=cudaMalloc:1:cudaErrorNone"},
        {"FEEDD_FAKE_CUDA_FAIL=cudaMalloc:1:0"},
        {"FEEDD_FAKE_CUDA_FAIL=cudaMalloc:1:2:later"},
        {"FEEDD_FAKE_CUDA_FAIL=cudaMalloc:1:2,"},
        {"FEEDD_FAKE_CUDA_FAIL=cudaMallok:1:2"},
        {"FEEDD_FAKE_CUDA_FAIL=cudaGetDeviceCount:1:2:async"},
        {"FEEDD_FAKE_CUDA_DELAY_US=cudaMalloc"},
        {"FEEDD_FAKE_CUDA_DELAY_US=cudaMalloc:1ms"},
        {"FEEDD_FAKE_CUDA_LOG=/nowhere/at/all"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const int ended = run("use", cases[i]);
        ck_assert_msg(ended == -SIGABRT, "%s: %d", cases[i][0], ended);
    }
}
END_TEST

static void scenario_delay(void)
{
    void *memory;
    char host[16] = "";
    cudaStream_t slow;
    uint64_t began = now_ms();
    WANT(cudaMalloc(&memory, 1), cudaSuccess);
    WANT_TRUE(now_ms() - began >= 100);
    WANT(cudaStreamCreateWithFlags(&slow, cudaStreamNonBlocking), cudaSuccess);
    began = now_ms();
    WANT(cudaMemcpyAsync(memory, host, 1, cudaMemcpyHostToDevice, slow), cudaSuccess);
    WANT(cudaStreamQuery(slow), cudaErrorNotReady);
    WANT_TRUE(now_ms() - began < 200);
    WANT(cudaStreamSynchronize(slow), cudaSuccess);
    WANT_TRUE(now_ms() - began >= 200);
}

START_TEST(test_delays)
{
    const char *const settings[] = {"FEEDD_FAKE_CUDA_DELAY_US=cudaMemcpyAsync:200000,cudaMalloc:100000", NULL};
    ck_assert_int_eq(run("delay", settings), 0);
}
END_TEST

/* Leaves one of each kind behind but imports, which "import" does. */
static void scenario_leak(void)
{
    static char host[8192] __attribute__((aligned(4096)));
    void *memory, *allocated;
    cudaStream_t left;
    cudaEvent_t event_left, second;
    cudaIpcMemHandle_t handle;
    receive_bytes(STDIN_FILENO, &handle, sizeof(handle));
    WANT(cudaMalloc(&memory, 100), cudaSuccess);
    WANT(cudaIpcOpenMemHandle(&allocated, handle, cudaIpcMemLazyEnablePeerAccess), cudaSuccess);
    WANT(cudaHostRegister(host, sizeof(host), cudaHostRegisterDefault), cudaSuccess);
    WANT(cudaStreamCreateWithFlags(&left, cudaStreamNonBlocking), cudaSuccess);
    WANT(cudaEventCreateWithFlags(&event_left, cudaEventDisableTiming), cudaSuccess);
    WANT(cudaEventCreateWithFlags(&second, cudaEventDisableTiming), cudaSuccess);
    WANT(cudaHostAlloc(&allocated, 100, cudaHostAllocDefault), cudaSuccess);
    WANT(cudaMemcpyAsync(memory, host, 100, cudaMemcpyHostToDevice, left), cudaSuccess);
    WANT(cudaMemcpyAsync(memory, host, 101, cudaMemcpyHostToDevice, left), cudaErrorInvalidValue);
    WANT(cudaMemset(host + 4096, 0, 1), cudaSuccess); /* default streams are nobody's leak */
}

START_TEST(test_log_and_leaks)
{
    char folder[] = "/tmp/feedd-fake-cuda-XXXXXX", log_path[64], leaks_path[64], log[128], leaks[128];
    char text[16384] = "", prefix[32], expected[256];
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(log_path, sizeof(log_path), "%s/log", folder);
    snprintf(leaks_path, sizeof(leaks_path), "%s/leaks", folder);
    snprintf(log, sizeof(log), "FEEDD_FAKE_CUDA_LOG=%s", log_path);
    snprintf(leaks, sizeof(leaks), "FEEDD_FAKE_CUDA_LEAKS=%s", leaks_path);
    const char *const settings[] = {log, leaks, NULL};
    cudaIpcMemHandle_t handle;
    OK(cudaIpcGetMemHandle(&handle, device));
    struct child children[2];
    for (int i = 0; i < 2; i++) { /* at once, into one file */
        children[i] = child_start("leak", settings);
        send_bytes(children[i].to, &handle, sizeof(handle));
    }
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(child_end(&children[i]), 0);

    FILE *file = fopen(log_path, "r");
    ck_assert_ptr_nonnull(file);
    unsigned lines = 0, copies = 0, of[2] = {0};
    char line[1024];
    while (fgets(line, sizeof(line), file) != NULL) {
        int pid, tid, used = 0, end = 0;
        char function[64], error[64];
        ck_assert_msg(sscanf(line, "%d %d %63s%n", &pid, &tid, function, &used) == 3, "%s", line);
        ck_assert_int_eq(tid, pid);
        const char *arrow = strstr(line + used, " -> ");
        ck_assert_msg(arrow != NULL && sscanf(arrow, " -> %63s\n%n", error, &end) == 1 && arrow[end] == '\0', "%s",
                      line);
        lines++;
        for (int i = 0; i < 2; i++)
            of[i] += pid == children[i].pid;
        size_t bytes;
        if (strcmp(function, "cudaMemcpyAsync") == 0) {
            void *from, *to, *on;
            ck_assert_msg(
                sscanf(line + used, " kind=H2D bytes=%zu src=%p dst=%p stream=%p ->", &bytes, &from, &to, &on) == 4,
                "%s", line);
            ck_assert_uint_eq(bytes, strcmp(error, "cudaSuccess") == 0 ? 100 : 101);
            copies++;
        }
    }
    fclose(file);
    ck_assert_uint_eq(lines, 20); /* ten calls a process */
    ck_assert_uint_eq(of[0], 10);
    ck_assert_uint_eq(of[1], 10);
    ck_assert_uint_eq(copies, 4);

    file = fopen(leaks_path, "r");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_gt(fread(text, 1, sizeof(text) - 1, file), 0);
    fclose(file);
    for (int i = 0; i < 2; i++) {
        snprintf(prefix, sizeof(prefix), "%d ", (int)children[i].pid);
        snprintf(
            expected, sizeof(expected),
            "%sallocations=1 imports=1 registered=1 streams=1 events=2 hostallocs=1 handles=0 reserved=0 mapped=0\n",
            prefix);
        ck_assert_ptr_nonnull(strstr(text, expected));
    }
    unlink(log_path);
    unlink(leaks_path);
    rmdir(folder);
}
END_TEST

static void *wait_for_event(void *argument)
{
    (void)cudaEventSynchronize(argument);
    return NULL;
}

/* Streams are busy, others wait for them, one has a host function queued, and a thread waits for it all. */
static void scenario_exit_busy(void)
{
    cudaStream_t busy[3];
    cudaEvent_t late;
    pthread_t thread;
    void *memory;
    WANT(cudaMalloc(&memory, MIB), cudaSuccess);
    for (int i = 0; i < 3; i++)
        WANT(cudaStreamCreateWithFlags(&busy[i], i < 2 ? cudaStreamNonBlocking : cudaStreamDefault), cudaSuccess);
    WANT(cudaEventCreateWithFlags(&late, cudaEventDisableTiming), cudaSuccess);
    WANT(spin(600000, busy[0]), cudaSuccess);
    WANT(cudaEventRecord(late, busy[0]), cudaSuccess);
    WANT(cudaStreamWaitEvent(busy[1], late, 0), cudaSuccess);
    WANT(cudaStreamWaitEvent(busy[2], late, 0), cudaSuccess);
    WANT(cudaLaunchHostFunc(busy[1], host_function, &captured_host), cudaSuccess);
    WANT(cudaMemsetAsync(memory, 0, MIB, busy[2]), cudaSuccess);
    WANT(cudaMemsetAsync(memory, 0, MIB, cudaStreamPerThread), cudaSuccess);
    WANT(cudaMemsetAsync(memory, 0, MIB, NULL), cudaSuccess);
    WANT_TRUE(pthread_create(&thread, NULL, wait_for_event, late) == 0);
    pthread_detach(thread);
    usleep(20000);
}

START_TEST(test_exit_doesnt_wait)
{
    const uint64_t began = now_ms();
    ck_assert_int_eq(run("exit-busy", NULL), 0);
    ck_assert_uint_lt(now_ms() - began, 20000);
}
END_TEST

/* MISTAKE: what the caller of a copy does wrong, or "" for one who waits. */
static void scenario_copies(void)
{
    const char *mistake = getenv("MISTAKE");
    char *host;
    void *memory, *unused;
    cudaStream_t on;
    cudaEvent_t done;
    freopen("/dev/null", "w", stderr);
    WANT(cudaMalloc(&memory, MIB), cudaSuccess);
    WANT(cudaHostAlloc((void **)&host, 2 * MIB, cudaHostAllocDefault), cudaSuccess);
    WANT(cudaStreamCreateWithFlags(&on, cudaStreamNonBlocking), cudaSuccess);
    WANT(cudaEventCreateWithFlags(&done, cudaEventDisableTiming), cudaSuccess);
    memset(host, 1, 2 * MIB);
    WANT(cudaMemcpyAsync(memory, host, 4096, cudaMemcpyHostToDevice, on), cudaSuccess);
    if (strcmp(mistake, "") == 0) {
        WANT(cudaEventRecord(done, on), cudaSuccess);
        WANT(cudaEventSynchronize(done), cudaSuccess);
        host[0] = 2;
        WANT(cudaMemcpyAsync(memory, host, 4096, cudaMemcpyHostToDevice, on), cudaSuccess);
        while (cudaStreamQuery(on) == cudaErrorNotReady)
            usleep(1000);
        host[0] = 3;
        WANT(cudaMemcpyAsync(memory, host, 4096, cudaMemcpyHostToDevice, on), cudaSuccess);
        WANT(cudaEventRecord(done, on), cudaSuccess);
        while (cudaEventQuery(done) == cudaErrorNotReady)
            usleep(1000);
        host[0] = 4;
        WANT(cudaMemcpyAsync(host, memory, 4096, cudaMemcpyDeviceToHost, on), cudaSuccess);
        WANT(cudaStreamSynchronize(on), cudaSuccess);
        WANT_TRUE(host[0] == 3);
    } else if (strcmp(mistake, "write") == 0) {
        host[0] = 2;
        usleep(100000);
    } else if (strcmp(mistake, "write-late") == 0) {
        /* It has long been executed, and the caller has called a lot since, but never waited. */
        usleep(100000);
        WANT(cudaMemcpyAsync(memory, host + MIB, 4096, cudaMemcpyHostToDevice, on), cudaSuccess);
        WANT(cudaEventRecord(done, on), cudaSuccess);
        WANT(cudaMalloc(&unused, 1), cudaSuccess);
        WANT(cudaEventCreateWithFlags(&done, cudaEventDisableTiming), cudaSuccess);
        WANT(cudaGetDevice(&(int){0}), cudaSuccess);
        host[0] = 2;
    } else { /* "wrong-event": it waits, for what came before the copy */
        WANT(cudaEventRecord(done, on), cudaSuccess);
        WANT(cudaMemcpyAsync(host + MIB, memory, 4096, cudaMemcpyDeviceToHost, on), cudaSuccess);
        usleep(100000);
        WANT(cudaEventSynchronize(done), cudaSuccess);
        WANT_TRUE(host[MIB] == 1);
    }
}

START_TEST(test_a_missing_wait_is_a_race)
{
    const char *const none[] = {"MISTAKE=", NULL};
    ck_assert_int_eq(run("copies", none), 0);
    if (!WITH_TSAN) {
        puts("only ThreadSanitizer sees a missing wait: left out");
        return;
    }
    const char *const mistakes[] = {"MISTAKE=write", "MISTAKE=write-late", "MISTAKE=wrong-event"};
    for (size_t i = 0; i < sizeof(mistakes) / sizeof(mistakes[0]); i++) {
        const char *const settings[] = {mistakes[i], "TSAN_OPTIONS=exitcode=66", NULL};
        const int ended = run("copies", settings);
        ck_assert_msg(ended == 66, "%s: %d", mistakes[i], ended);
    }
}
END_TEST

static const struct {
    const char *name;
    void (*run)(void);
} scenarios[] = {
    {"export", scenario_export},
    {"export-and-free", scenario_export_and_free},
    {"fork", scenario_fork},
    {"illegal-address", scenario_illegal_address},
    {"read-only", scenario_read_only},
    {"reset", scenario_reset},
    {"absent", scenario_absent},
    {"visible", scenario_visible},
    {"import-elsewhere", scenario_import_elsewhere},
    {"fail", scenario_fail},
    {"fail-sticky", scenario_fail_sticky},
    {"fail-async", scenario_fail_async},
    {"use", scenario_use},
    {"delay", scenario_delay},
    {"leak", scenario_leak},
    {"exit-busy", scenario_exit_busy},
    {"copies", scenario_copies},
};

int main(int argc, char **argv)
{
    for (size_t i = 0; argc > 1 && i < sizeof(scenarios) / sizeof(scenarios[0]); i++)
        if (strcmp(argv[1], scenarios[i].name) == 0) {
            scenarios[i].run();
            return 0;
        }
    struct cudaDeviceProp properties;
    setenv("FEEDD_FAKE_GPUS", "2", 1);
    signal(SIGPIPE, SIG_IGN);
    const cudaError_t absent = cudaGetDeviceProperties(&properties, 0);
    if (absent == cudaErrorNoDevice || absent == cudaErrorInsufficientDriver) {
        printf("SKIP: no GPU: %s\n", cudaGetErrorString(absent));
        return 77;
    }
    is_fake = absent == cudaSuccess && strncmp(properties.name, "Fake", 4) == 0;

    Suite *suite = suite_create("fake_cuda");
    TCase *gpu = tcase_create("as a GPU");
    tcase_set_timeout(gpu, 120);
    tcase_add_checked_fixture(gpu, setup, teardown);
    tcase_add_test(gpu, test_devices);
    tcase_add_test(gpu, test_allocations);
    tcase_add_test(gpu, test_the_host_has_no_access_to_device_memory);
    tcase_add_test(gpu, test_registration);
    tcase_add_test(gpu, test_pointer_attributes);
    tcase_add_test(gpu, test_copies_stay_within_memory);
    tcase_add_test(gpu, test_copies_and_order_within_a_stream);
    tcase_add_test(gpu, test_pageable_memory_is_read_by_the_call);
    tcase_add_test(gpu, test_pinned_memory_is_read_when_executed);
    tcase_add_test(gpu, test_events);
    tcase_add_test(gpu, test_streams_wait_for_events);
    tcase_add_test(gpu, test_default_streams);
    tcase_add_test(gpu, test_a_thread_ends_before_its_stream);
    tcase_add_test(gpu, test_what_waits);
    tcase_add_test(gpu, test_host_functions);
    tcase_add_test(gpu, test_checksum_kernel);
    tcase_add_test(gpu, test_normalize_kernel);
    tcase_add_test(gpu, test_what_a_capture_forbids);
    tcase_add_test(gpu, test_a_capturing_stream);
    tcase_add_test(gpu, test_ipc);
    tcase_add_test(gpu, test_ipc_outlives_the_exporter);
    tcase_add_test(gpu, test_forks);
    tcase_add_test(gpu, test_a_failed_gpu);
    tcase_add_test(gpu, test_a_kernel_that_writes_what_is_read_only);
    tcase_add_test(gpu, test_reset);
    suite_add_tcase(suite, gpu);
    if (is_fake) {
        TCase *fake = tcase_create("of the fake alone");
        tcase_set_timeout(fake, 120);
        tcase_add_checked_fixture(fake, setup, teardown);
        tcase_add_test(fake, test_no_gpu);
        tcase_add_test(fake, test_visible_devices);
        tcase_add_test(fake, test_ipc_between_numberings);
        tcase_add_test(fake, test_devices_are_apart);
        tcase_add_test(fake, test_memory_registered_in_part);
        tcase_add_test(fake, test_failures_as_asked);
        tcase_add_test(fake, test_settings_without_sense);
        tcase_add_test(fake, test_delays);
        tcase_add_test(fake, test_log_and_leaks);
        tcase_add_test(fake, test_exit_doesnt_wait);
        tcase_add_test(fake, test_a_missing_wait_is_a_race);
        suite_add_tcase(suite, fake);
    }
    SRunner *runner = srunner_create(suite);
    srunner_set_fork_status(runner, CK_NOFORK);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
