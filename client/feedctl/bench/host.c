/* host.c - memfds of the size of a ring.
 *
 * What can fail: the machine's memory, which is asked for first, as a killed process is no measurement. Threads: any.
 */
#include "host.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "error.h"
#include "gpu.h"

#define LINE_BYTES 256
#define HEADROOM   (256ull << 20) /* bytes that are left to everybody else */
#define PAGE       4096u

/* The number of kB on a line of a file of proc(5), as bytes. */
static int read_kb(const char *path, const char *key, size_t *bytes, struct feedd_error *err)
{
    char line[LINE_BYTES];
    bool found = false;
    unsigned long long kb = 0;
    FILE *file = fopen(path, "re");
    while (file != NULL && !found && fgets(line, sizeof(line), file) != NULL)
        found = strncmp(line, key, strlen(key)) == 0 && sscanf(line + strlen(key), ": %llu kB", &kb) == 1;
    if (file != NULL)
        fclose(file);
    if (!found)
        return error_set(err, FEEDD_E_IO, "%s has no %s", path, key);
    *bytes = (size_t)kb * 1024;
    return 0;
}

int host_resident(size_t *bytes, struct feedd_error *err)
{
    return read_kb("/proc/self/status", "RssShmem", bytes, err);
}

/* Knuth's multiplicative hash: bytes that vary. */
static void fill(uint8_t *at, size_t bytes)
{
    for (size_t i = 0; i + sizeof(uint32_t) <= bytes; i += sizeof(uint32_t)) {
        const uint32_t value = (uint32_t)i * 0x9E3779B1u;
        memcpy(at + i, &value, sizeof(value));
    }
}

int host_memory_reserve(struct host_memory *memory, size_t bytes, struct feedd_error *err)
{
    size_t available;
    if (bytes <= memory->bytes)
        return 0;
    host_memory_delete(memory);
    const int status = read_kb("/proc/meminfo", "MemAvailable", &available, err);
    if (status != 0)
        return status;
    if (bytes + HEADROOM > available)
        return error_set(err, FEEDD_E_MEMORY, "host out of memory: %zu bytes and %llu to spare, %zu are available",
                         bytes, HEADROOM, available);
    const int fd = memfd_create("feedctl-bench", MFD_CLOEXEC);
    void *at = MAP_FAILED;
    if (fd >= 0 && ftruncate(fd, (off_t)bytes) == 0)
        at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    const int error = errno;
    if (fd >= 0)
        close(fd);
    if (at == MAP_FAILED)
        return error_set(err, FEEDD_E_MEMORY, "host memory of %zu bytes: %s", bytes, strerror(error));
    fill(at, bytes);
    *memory = (struct host_memory){.at = at, .bytes = bytes};
    return 0;
}

int host_memory_pin(struct host_memory *memory, size_t bytes, struct feedd_error *err)
{
    const int status = gpu_pin(memory->at, (bytes + PAGE - 1) / PAGE * PAGE, err);
    memory->pinned = status == 0;
    return status;
}

void host_memory_unpin(struct host_memory *memory)
{
    if (memory->pinned)
        gpu_unpin(memory->at);
    memory->pinned = false;
}

void host_memory_delete(struct host_memory *memory)
{
    if (memory->at != NULL)
        munmap(memory->at, memory->bytes);
    *memory = (struct host_memory){.at = NULL};
}
