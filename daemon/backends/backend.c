/* backend.c - what every backend is made of: sealed shared memory, the records of a ring, the names of transports.
 *
 * Happy path: memfd -> map writable -> allocate every page -> seal -> clients map it by a passed descriptor.
 * What can fail: memory, at OPEN and not later: pages are allocated before the memory is handed out, so that no worker
 * meets a SIGBUS or an out-of-memory kill in the middle of a batch.
 * Threads: a worker makes and frees; nothing here has state but whether a warning was written. */
#include "backend.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include "error.h"
#include "log.h"
#include "numa.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010 /* Linux 5.1 */
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

/* The kernel locks a process' memory map while it maps or unmaps, and everybody who allocates waits: so not gigabytes
 * at a time. */
#define MAP_STEP (16ull << 20)

const char *transport_name(enum transport transport)
{
    static const char *const names[TRANSPORT_COUNT] = {
        [TRANSPORT_HOST] = "host", [TRANSPORT_IPC] = "ipc", [TRANSPORT_FD] = "fd"};
    return names[transport];
}

/* A node that can't be had is no reason to do without the memory. */
static void prefer_node(uint8_t *memory, uint64_t bytes, int node)
{
    static atomic_flag warned = ATOMIC_FLAG_INIT;
    int rc = numa_prefer(memory, bytes, node);
    if (rc != 0 && !atomic_flag_test_and_set(&warned))
        log_warning("shared memory isn't placed on NUMA node %d: %s", node, strerror(-rc));
}

/* Maps every page of new memory, which is all 0. */
static void populate(uint8_t *memory, uint64_t bytes)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    for (uint64_t at = 0; at < bytes; at += MAP_STEP) {
        uint64_t step = bytes - at < MAP_STEP ? bytes - at : MAP_STEP;
        if (madvise(memory + at, step, MADV_POPULATE_WRITE) == 0)
            continue;
        for (uint64_t i = at; i < at + step; i += page) /* an older kernel */
            *(volatile uint8_t *)(memory + i) = 0;
    }
}

/* Allocates the file's pages, which until then it only has room for, and maps them. */
static int allocate(int fd, uint8_t *memory, uint64_t bytes, struct feedd_error *err)
{
    int rc;
    do
        rc = posix_fallocate(fd, 0, (off_t)bytes);
    while (rc == EINTR);
    if (rc != 0)
        return error_set(err, FEEDD_E_MEMORY, "%llu bytes of shared memory: %s", (unsigned long long)bytes,
                         strerror(rc));
    populate(memory, bytes);
    return 0;
}

int backend_memfd_new(const char *name, uint64_t bytes, int node, int *fd_out, uint8_t **memory_out,
                      struct feedd_error *err)
{
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return error_set(err, FEEDD_E_IO, "memfd_create: %s", strerror(errno));
    int status = 0;
    void *memory = MAP_FAILED;
    if (ftruncate(fd, (off_t)bytes) != 0)
        status = error_set(err, FEEDD_E_MEMORY, "%llu bytes of shared memory: %s", (unsigned long long)bytes,
                           strerror(errno));
    if (status == 0) {
        memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (memory == MAP_FAILED)
            status = error_set(err, FEEDD_E_MEMORY, "mapping %llu bytes of shared memory: %s",
                               (unsigned long long)bytes, strerror(errno));
    }
    if (status == 0) {
        prefer_node(memory, bytes, node); /* it holds for pages that are allocated from now on */
        status = allocate(fd, memory, bytes, err);
    }
    /* FUTURE_WRITE: our mapping stays writable, every later one and write() are refused. */
    if (status == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) != 0)
        status =
            error_set(err, FEEDD_E_IO, "sealing shared memory: %s (Linux 5.1 or later is needed)", strerror(errno));
    if (status != 0) {
        if (memory != MAP_FAILED)
            backend_memfd_free(fd, memory, bytes);
        else
            close(fd);
        return status;
    }
    *fd_out = fd;
    *memory_out = memory;
    return 0;
}

void backend_memfd_free(int fd, uint8_t *memory, uint64_t bytes)
{
    for (uint64_t at = 0; at < bytes; at += MAP_STEP)
        munmap(memory + at, bytes - at < MAP_STEP ? bytes - at : MAP_STEP);
    close(fd);
}

int backend_nonce(uint64_t *nonce, struct feedd_error *err)
{
    if (getrandom(nonce, sizeof(*nonce), 0) != sizeof(*nonce))
        return error_set(err, FEEDD_E_IO, "getrandom: %s", strerror(errno));
    return 0;
}

int ring_meta_new(struct ring *ring, struct feedd_error *err)
{
    const struct ring_spec *spec = &ring->spec;
    return backend_memfd_new("feedd-meta", slot_meta_bytes(&spec->layout, spec->staging->depth), spec->staging->node,
                             &ring->meta_fd, &ring->meta, err);
}

void ring_meta_free(struct ring *ring)
{
    if (ring->meta != NULL)
        backend_memfd_free(ring->meta_fd, ring->meta, slot_meta_bytes(&ring->spec.layout, ring->spec.staging->depth));
}
