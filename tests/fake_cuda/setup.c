/* setup.c - the fake CUDA runtime's environment, and what every call begins and ends with: fake_cuda.h.
 *
 * Happy path: the first call reads the environment -> each call counts itself against what has to go wrong -> does its
 * work -> appends its line to the log. At exit: threads end, one line says what wasn't given back.
 * What can fail: an environment that makes no sense ends the program; a test must not run with half of what it asked.
 * Threads: any. Nothing here synchronises the callers with one another, or with what executes: see fake_cuda.h. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include "fake_cuda.h"

#define RULES_MAX 32

enum rule_kind { RULE_FAIL, RULE_FAIL_STICKY, RULE_FAIL_ASYNC, RULE_DELAY };

/* One item of FEEDD_FAKE_CUDA_FAIL or FEEDD_FAKE_CUDA_DELAY_US. */
struct rule {
    char function[48];
    enum rule_kind kind;
    unsigned long nth; /* 0: every call */
    _Atomic unsigned long calls;
    cudaError_t error;
    unsigned long delay_us;
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct device devices[FAKE_GPUS_MAX];
static int visible_count;
static cudaError_t absent; /* what keeps CUDA from working at all */
static cudaError_t no_ipc; /* what opening an IPC handle returns, or cudaSuccess */
static bool no_virtual;
static struct rule rules[RULES_MAX];
static unsigned rule_count;
static int log_fd = -1;
static _Atomic pid_t user; /* the process that has used CUDA */
static _Atomic bool ending;

static _Thread_local int current;
static _Thread_local cudaError_t last_error;

/* Names and texts as CUDA's; those which the project, or a test of it, has to do with. */
static const struct {
    cudaError_t error;
    const char *name, *text;
} errors[] = {
#define ERROR(name, text)                                                                                              \
    {                                                                                                                  \
        name, #name, text                                                                                              \
    }
    ERROR(cudaSuccess, "no error"),
    ERROR(cudaErrorInvalidValue, "invalid argument"),
    ERROR(cudaErrorMemoryAllocation, "out of memory"),
    ERROR(cudaErrorInitializationError, "initialization error"),
    ERROR(cudaErrorCudartUnloading, "driver shutting down"),
    ERROR(cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy"),
    ERROR(cudaErrorStubLibrary, "CUDA driver is a stub library"),
    ERROR(cudaErrorInsufficientDriver, "CUDA driver version is insufficient for CUDA runtime version"),
    ERROR(cudaErrorCallRequiresNewerDriver, "API call is not supported in the installed CUDA driver"),
    ERROR(cudaErrorDevicesUnavailable, "CUDA-capable device(s) is/are busy or unavailable"),
    ERROR(cudaErrorNoDevice, "no CUDA-capable device is detected"),
    ERROR(cudaErrorInvalidDevice, "invalid device ordinal"),
    ERROR(cudaErrorDeviceUninitialized, "invalid device context"),
    ERROR(cudaErrorMapBufferObjectFailed, "mapping of buffer object failed"),
    ERROR(cudaErrorNoKernelImageForDevice, "no kernel image is available for execution on the device"),
    ERROR(cudaErrorECCUncorrectable, "uncorrectable ECC error encountered"),
    ERROR(cudaErrorUnsupportedPtxVersion, "the provided PTX was compiled with an unsupported toolchain."),
    ERROR(cudaErrorOperatingSystem, "OS call failed or operation not supported on this OS"),
    ERROR(cudaErrorInvalidResourceHandle, "invalid resource handle"),
    ERROR(cudaErrorIllegalState, "the operation cannot be performed in the present state"),
    ERROR(cudaErrorNotReady, "device not ready"),
    ERROR(cudaErrorIllegalAddress, "an illegal memory access was encountered"),
    ERROR(cudaErrorLaunchOutOfResources, "too many resources requested for launch"),
    ERROR(cudaErrorLaunchTimeout, "the launch timed out and was terminated"),
    ERROR(cudaErrorContextIsDestroyed, "context is destroyed"),
    ERROR(cudaErrorTooManyPeers, "peer mapping resources exhausted"),
    ERROR(cudaErrorHostMemoryAlreadyRegistered, "part or all of the requested memory range is already mapped"),
    ERROR(cudaErrorHostMemoryNotRegistered, "pointer does not correspond to a registered memory region"),
    ERROR(cudaErrorHardwareStackError, "hardware stack error"),
    ERROR(cudaErrorIllegalInstruction, "an illegal instruction was encountered"),
    ERROR(cudaErrorMisalignedAddress, "misaligned address"),
    ERROR(cudaErrorLaunchFailure, "unspecified launch failure"),
    ERROR(cudaErrorNotPermitted, "operation not permitted"),
    ERROR(cudaErrorNotSupported, "operation not supported"),
    ERROR(cudaErrorSystemNotReady, "system not yet initialized"),
    ERROR(cudaErrorSystemDriverMismatch, "system has unsupported display driver / cuda driver combination"),
    ERROR(cudaErrorMpsClientTerminated, "the MPS client has been terminated by the server"),
    ERROR(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing"),
    ERROR(cudaErrorStreamCaptureInvalidated, "operation failed due to a previous error during capture"),
    ERROR(cudaErrorStreamCaptureMerge, "operation would result in a merge of separate capture sequences"),
    ERROR(cudaErrorStreamCaptureUnmatched, "capture was not ended in the same stream as it began"),
    ERROR(cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work"),
    ERROR(cudaErrorStreamCaptureIsolation, "dependency created on uncaptured work in another stream"),
    ERROR(cudaErrorStreamCaptureImplicit,
          "operation would make the legacy stream depend on a capturing blocking stream"),
    ERROR(cudaErrorCapturedEvent, "operation not permitted on an event last recorded in a capturing stream"),
    ERROR(cudaErrorStreamCaptureWrongThread,
          "attempt to terminate a thread-local capture sequence from another thread"),
    ERROR(cudaErrorTimeout, "wait operation timed out"),
    ERROR(cudaErrorUnknown, "unknown error"),
#undef ERROR
};

#define ERROR_COUNT       (sizeof(errors) / sizeof(errors[0]))
#define ERROR_UNKNOWN     "unrecognized error code"
#define ERROR_NUMBER_LAST 9999
#define ERROR_NAME_MAX    64 /* bytes, with what stands around it in a line of the log */

static _Noreturn void senseless(const char *variable, const char *value, const char *expected)
{
    fprintf(stderr, "fake CUDA: %s=%s: expected %s\n", variable, value, expected);
    abort();
}

void *setup_need(void *pointer)
{
    if (pointer == NULL) {
        fprintf(stderr, "fake CUDA: out of memory\n");
        abort();
    }
    return pointer;
}

/* @return whether all of text is a number */
static bool parse_number(const char *text, unsigned long *out)
{
    char *end;
    errno = 0;
    *out = strtoul(text, &end, 10);
    return *text >= '0' && *text <= '9' && *end == '\0' && errno == 0;
}

static bool parse_error(const char *text, cudaError_t *out)
{
    unsigned long number;
    if (parse_number(text, &number)) {
        *out = (cudaError_t)number;
        return number > 0 && number <= ERROR_NUMBER_LAST;
    }
    for (size_t i = 1; i < ERROR_COUNT; i++)
        if (strcmp(errors[i].name, text) == 0) {
            *out = errors[i].error;
            return true;
        }
    return driver_error_parse(text, out);
}

/* Whether this library has such a function: a rule for another would never apply, and its test pass unseen. */
static bool is_function(const char *name)
{
    Dl_info self;
    char renamed[64]; /* as some headers do it */
    if (driver_has(name))
        return true;
    snprintf(renamed, sizeof(renamed), "%s_v2", name);
    void *library = dladdr(&once, &self) != 0 ? dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD) : NULL;
    const bool found = library != NULL && (dlsym(library, name) != NULL || dlsym(library, renamed) != NULL);
    if (library != NULL)
        dlclose(library);
    return found;
}

static bool parse_fail(char *text, struct rule *rule)
{
    const char *function = strsep(&text, ":"), *nth = strsep(&text, ":"), *error = strsep(&text, ":");
    if (error == NULL || strlen(function) >= sizeof(rule->function) || !is_function(function))
        return false;
    strcpy(rule->function, function);
    rule->kind = text == NULL                  ? RULE_FAIL
                 : strcmp(text, "sticky") == 0 ? RULE_FAIL_STICKY
                 : strcmp(text, "async") == 0  ? RULE_FAIL_ASYNC
                                               : RULE_DELAY;
    const bool every = strcmp(nth, "*") == 0;
    return rule->kind != RULE_DELAY && (every || (parse_number(nth, &rule->nth) && rule->nth > 0)) &&
           parse_error(error, &rule->error);
}

static bool parse_delay(char *text, struct rule *rule)
{
    const char *function = strsep(&text, ":");
    if (text == NULL || strlen(function) >= sizeof(rule->function) || !is_function(function))
        return false;
    strcpy(rule->function, function);
    rule->kind = RULE_DELAY;
    return parse_number(text, &rule->delay_us);
}

static void read_rules(const char *variable, bool (*parse)(char *text, struct rule *rule), const char *expected)
{
    const char *value = getenv(variable);
    if (value == NULL || *value == '\0')
        return;
    char *copy = setup_need(strdup(value)), *rest = copy, *item;
    while ((item = strsep(&rest, ",")) != NULL)
        if (rule_count == RULES_MAX || !parse(item, &rules[rule_count++]))
            senseless(variable, value, expected);
    free(copy);
}

static size_t read_memory(void)
{
    const char *value = getenv("FEEDD_FAKE_GPU_MEMORY");
    if (value == NULL)
        return (size_t)256 << 20;
    char *end;
    const unsigned long long number = strtoull(value, &end, 10);
    const char *const units = "KMG", *const unit = *end != '\0' ? strchr(units, *end) : NULL;
    const unsigned shift = unit != NULL ? 10 * (unsigned)(unit - units + 1) : 0;
    if (*value < '0' || *value > '9' || strlen(end) != (unit != NULL) || number > SIZE_MAX >> shift)
        senseless("FEEDD_FAKE_GPU_MEMORY", value, "bytes, with K, M or G");
    return (size_t)number << shift;
}

/* @return the physical ordinal of the GPU that an item of CUDA_VISIBLE_DEVICES names, or -1 */
static int named(const char *item, int count)
{
    unsigned long ordinal;
    if (parse_number(item, &ordinal))
        return ordinal < (unsigned long)count ? (int)ordinal : -1;
    int found = -1;
    for (int i = 0; i < count; i++) {
        char uuid[64];
        snprintf(uuid, sizeof(uuid), "GPU-feedd0%02x-fa4e-4000-8000-0000000000%02x", i, i);
        if (strlen(item) > strlen("GPU-") && strncasecmp(uuid, item, strlen(item)) == 0) {
            if (found >= 0)
                return -1;
            found = i;
        }
    }
    return found;
}

static void add_device(int physical, size_t memory)
{
    for (int i = 0; i < visible_count; i++)
        if (devices[i].physical == physical)
            absent = cudaErrorInvalidDevice; /* named twice: CUDA sees none */
    if (absent != cudaSuccess)
        return;
    devices[visible_count] = (struct device){.ordinal = visible_count, .physical = physical, .memory = memory};
    visible_count++;
}

static void read_devices(void)
{
    const char *value = getenv("FEEDD_FAKE_GPUS"), *visible = getenv("CUDA_VISIBLE_DEVICES");
    unsigned long count = 0;
    if (value != NULL && strcmp(value, "nodriver") == 0) {
        absent = cudaErrorInsufficientDriver;
        return;
    }
    if (value != NULL && (!parse_number(value, &count) || count > FAKE_GPUS_MAX))
        senseless("FEEDD_FAKE_GPUS", value, "0 to 16, or nodriver");
    const size_t memory = read_memory();
    if (visible == NULL) {
        for (int i = 0; i < (int)count; i++)
            add_device(i, memory);
    } else {
        /* The first item that names none ends the list. */
        char *copy = setup_need(strdup(visible)), *rest = copy, *item;
        while ((item = strsep(&rest, ",")) != NULL) {
            item += strspn(item, " ");
            item[strcspn(item, " ")] = '\0';
            const int physical = named(item, (int)count);
            if (physical < 0)
                break;
            add_device(physical, memory);
        }
        free(copy);
    }
    if (absent == cudaSuccess && visible_count == 0)
        absent = cudaErrorNoDevice;
}

static int open_append(const char *variable)
{
    const char *path = getenv(variable);
    if (path == NULL || *path == '\0')
        return -1;
    const int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0)
        senseless(variable, path, "a file that can be written");
    return fd;
}

/* @return cudaSuccess where the variable isn't set or empty, `refusal` for "1", or the error that it names */
static cudaError_t read_refusal(const char *variable, cudaError_t refusal)
{
    const char *value = getenv(variable);
    if (value == NULL || *value == '\0')
        return cudaSuccess;
    if (strcmp(value, "1") != 0 && !parse_error(value, &refusal))
        senseless(variable, value, "1, or an error");
    return refusal;
}

static void setup(void)
{
    read_devices();
    read_rules("FEEDD_FAKE_CUDA_FAIL", parse_fail, "FUNCTION:N:ERROR[:sticky|:async][,...]");
    read_rules("FEEDD_FAKE_CUDA_DELAY_US", parse_delay, "FUNCTION:US[,...]");
    log_fd = open_append("FEEDD_FAKE_CUDA_LOG");
    no_ipc = read_refusal("FEEDD_FAKE_NO_IPC", cudaErrorMapBufferObjectFailed);
    no_virtual = read_refusal("FEEDD_FAKE_NO_VMM", cudaErrorNotSupported) != cudaSuccess;
}

/* One write(), so that lines of several threads and processes don't mix. */
static void append(int fd, const char *line, int length)
{
    if (fd >= 0 && write(fd, line, (size_t)length) != length)
        fprintf(stderr, "fake CUDA: a line of the log is lost: %s\n", strerror(errno));
}

static void sleep_us(unsigned long us)
{
    if (us == 0)
        return;
    struct timespec left = {.tv_sec = (time_t)(us / 1000000), .tv_nsec = (long)(us % 1000000) * 1000};
    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        ;
}

static bool forked(void)
{
    const pid_t pid = atomic_load_explicit(&user, memory_order_relaxed);
    return pid != 0 && pid != getpid();
}

cudaError_t setup_no_ipc(void)
{
    return no_ipc;
}

bool setup_no_virtual(void)
{
    return no_virtual;
}

cudaError_t setup_absent(void)
{
    return absent;
}

bool setup_ending(void)
{
    return atomic_load_explicit(&ending, memory_order_relaxed);
}

/* What the environment wants of this call. */
static cudaError_t apply_rules(struct call *call)
{
    cudaError_t error = cudaSuccess;
    for (unsigned i = 0; i < rule_count; i++) {
        struct rule *rule = &rules[i];
        if (strcmp(rule->function, call->function) != 0)
            continue;
        if (rule->kind == RULE_DELAY) {
            call->delay_us = rule->delay_us;
            continue;
        }
        const unsigned long nth = atomic_fetch_add_explicit(&rule->calls, 1, memory_order_relaxed) + 1;
        if (rule->nth != 0 && rule->nth != nth)
            continue;
        if (rule->kind == RULE_FAIL_ASYNC) {
            call->failure = rule->error;
            continue;
        }
        if (rule->kind == RULE_FAIL_STICKY && call->device != NULL)
            device_fail(call->device, rule->error);
        error = rule->error;
    }
    return error;
}

static cudaError_t begin(struct call *call, const char *function, enum call_needs needs)
{
    pthread_once(&once, setup);
    *call = (struct call){.function = function};
    pid_t unused = 0;
    atomic_compare_exchange_strong_explicit(&user, &unused, getpid(), memory_order_relaxed, memory_order_relaxed);
    if (setup_ending())
        return cudaErrorCudartUnloading;
    if (needs != CALL_NOTHING) {
        if (absent != cudaSuccess)
            return absent;
        if (needs != CALL_DRIVER && forked())
            return cudaErrorInitializationError;
        if (needs != CALL_DRIVER && queue_is_executing())
            return cudaErrorNotPermitted; /* from a host function */
        call->device = &devices[current];
    }
    const cudaError_t error = apply_rules(call);
    return error == cudaSuccess && needs == CALL_DEVICE ? device_error(call->device) : error;
}

cudaError_t call_begin(struct call *call, const char *function, enum call_needs needs)
{
    const cudaError_t error = begin(call, function, needs);
    if (call->failure != cudaSuccess) {
        fprintf(stderr, "fake CUDA: FEEDD_FAKE_CUDA_FAIL: %s executes nothing that could fail later\n", function);
        abort();
    }
    sleep_us(call->delay_us);
    return error;
}

cudaError_t call_begin_async(struct call *call, const char *function)
{
    return begin(call, function, CALL_PROCESS);
}

cudaError_t call_end(const struct call *call, cudaError_t error, const char *format, ...)
{
    const bool driver = driver_has(call->function);
    if (error != cudaSuccess && error != cudaErrorNotReady && !driver)
        last_error = error;
    if (log_fd < 0)
        return error;
    char line[512];
    int length = snprintf(line, sizeof(line), "%d %d %s", (int)getpid(), (int)gettid(), call->function);
    va_list arguments;
    va_start(arguments, format);
    if (*format != '\0') {
        line[length++] = ' ';
        length += vsnprintf(line + length, sizeof(line) - (size_t)length, format, arguments);
    }
    va_end(arguments);
    if (length > (int)sizeof(line) - ERROR_NAME_MAX)
        length = (int)sizeof(line) - ERROR_NAME_MAX;
    length += snprintf(line + length, sizeof(line) - (size_t)length, " -> %s\n",
                       driver && driver_error_name(error) != NULL ? driver_error_name(error) : cudaGetErrorName(error));
    append(log_fd, line, length);
    return error;
}

struct device *device_at(int ordinal)
{
    return ordinal >= 0 && ordinal < visible_count ? &devices[ordinal] : NULL;
}

struct device *device_of(int physical)
{
    for (int i = 0; i < visible_count; i++)
        if (devices[i].physical == physical)
            return &devices[i];
    return NULL;
}

int device_count(void)
{
    return visible_count;
}

int device_current(void)
{
    return current;
}

bool device_select(int ordinal)
{
    if (device_at(ordinal) == NULL)
        return false;
    current = ordinal;
    return true;
}

cudaError_t device_error(const struct device *device)
{
    return (cudaError_t)atomic_load_explicit(&device->failed, memory_order_relaxed);
}

void device_fail(struct device *device, cudaError_t error)
{
    int healthy = cudaSuccess;
    atomic_compare_exchange_strong_explicit(&device->failed, &healthy, (int)error, memory_order_relaxed,
                                            memory_order_relaxed);
}

bool device_take(struct device *device, size_t bytes)
{
    size_t allocated = atomic_load_explicit(&device->allocated, memory_order_relaxed);
    do {
        if (bytes > device->memory - allocated)
            return false;
    } while (!atomic_compare_exchange_weak_explicit(&device->allocated, &allocated, allocated + bytes,
                                                    memory_order_relaxed, memory_order_relaxed));
    return true;
}

void device_give_back(struct device *device, size_t bytes)
{
    atomic_fetch_sub_explicit(&device->allocated, bytes, memory_order_relaxed);
}

cudaError_t cudaGetLastError(void)
{
    const cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError(void)
{
    return last_error;
}

const char *cudaGetErrorName(cudaError_t error)
{
    for (size_t i = 0; i < ERROR_COUNT; i++)
        if (errors[i].error == error)
            return errors[i].name;
    return ERROR_UNKNOWN;
}

const char *cudaGetErrorString(cudaError_t error)
{
    for (size_t i = 0; i < ERROR_COUNT; i++)
        if (errors[i].error == error)
            return errors[i].text;
    return ERROR_UNKNOWN;
}

/* Threads of the program may still be in calls: they return, and what they hold stays. */
__attribute__((destructor)) static void finish(void)
{
    if (atomic_load(&user) != getpid())
        return;
    atomic_store(&ending, true);
    queue_stop_all();
    const int fd = open_append("FEEDD_FAKE_CUDA_LEAKS");
    if (fd < 0)
        return;
    unsigned allocations, imports, registered, host_allocations;
    memory_count(&allocations, &imports, &registered, &host_allocations);
    unsigned handles, reserved, mapped;
    virtual_count(&handles, &reserved, &mapped);
    char line[256];
    const int length = snprintf(line, sizeof(line),
                                "%d allocations=%u imports=%u registered=%u streams=%u events=%u hostallocs=%u "
                                "handles=%u reserved=%u mapped=%u\n",
                                (int)getpid(), allocations, imports, registered, stream_count(), event_count(),
                                host_allocations, handles, reserved, mapped);
    append(fd, line, length);
    close(fd);
}
