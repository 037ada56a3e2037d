/* host.c - batches in host memory: a sealed memfd that clients map read-only.
 *
 * Happy path: memfd -> allocate every page -> map writable -> seal -> clients map it by a passed descriptor.
 * What can fail: memory, at OPEN and not later: pages are allocated before the ring is handed out, so that no worker
 * meets a SIGBUS or an out-of-memory kill in the middle of a batch.
 * Threads: a worker makes and frees; nothing here has state. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include "backend.h"
#include "error.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010 /* Linux 5.1 */
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

/* The kernel locks a process' memory map while it maps or unmaps, and everybody who allocates waits: so not gigabytes
 * at a time. */
#define MAP_STEP (16ull << 20)

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

static void unmap(uint8_t *memory, uint64_t bytes)
{
    for (uint64_t at = 0; at < bytes; at += MAP_STEP)
        munmap(memory + at, bytes - at < MAP_STEP ? bytes - at : MAP_STEP);
}

int backend_memfd_new(const char *name, uint64_t bytes, int *fd_out, uint8_t **memory_out, struct feedd_error *err)
{
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return error_set(err, FEEDD_E_IO, "memfd_create: %s", strerror(errno));
    int status = 0;
    void *memory = MAP_FAILED;
    if (ftruncate(fd, (off_t)bytes) != 0)
        status = error_set(err, FEEDD_E_MEMORY, "%llu bytes of shared memory: %s", (unsigned long long)bytes,
                           strerror(errno));
    int rc;
    while (status == 0 && (rc = posix_fallocate(fd, 0, (off_t)bytes)) != 0)
        if (rc != EINTR)
            status = error_set(err, FEEDD_E_MEMORY, "%llu bytes of shared memory: %s", (unsigned long long)bytes,
                               strerror(rc));
    if (status == 0) {
        memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (memory == MAP_FAILED)
            status = error_set(err, FEEDD_E_MEMORY, "mapping %llu bytes of shared memory: %s",
                               (unsigned long long)bytes, strerror(errno));
        else
            populate(memory, bytes);
    }
    /* FUTURE_WRITE: our mapping stays writable, every later one and write() are refused. */
    if (status == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) != 0)
        status =
            error_set(err, FEEDD_E_IO, "sealing shared memory: %s (Linux 5.1 or later is needed)", strerror(errno));
    if (status != 0) {
        if (memory != MAP_FAILED)
            unmap(memory, bytes);
        close(fd);
        return status;
    }
    *fd_out = fd;
    *memory_out = memory;
    return 0;
}

void ring_memory_free(struct ring *ring)
{
    if (ring->staging != NULL) {
        unmap(ring->staging, slot_ring_bytes(&ring->spec.layout, ring->spec.depth));
        close(ring->ring_fd);
    }
    if (ring->meta != NULL) {
        unmap(ring->meta, slot_meta_bytes(&ring->spec.layout, ring->spec.depth));
        close(ring->meta_fd);
    }
}

int ring_memory_new(struct ring *ring, struct feedd_error *err)
{
    const struct ring_spec *spec = &ring->spec;
    uint64_t ring_bytes = slot_ring_bytes(&spec->layout, spec->depth);
    uint64_t meta_bytes = slot_meta_bytes(&spec->layout, spec->depth);
    int status = backend_memfd_new("feedd-ring", ring_bytes, &ring->ring_fd, &ring->staging, err);
    if (status == 0)
        status = backend_memfd_new("feedd-meta", meta_bytes, &ring->meta_fd, &ring->meta, err);
    if (status == 0 && getrandom(&ring->nonce, sizeof(ring->nonce), 0) != sizeof(ring->nonce))
        status = error_set(err, FEEDD_E_IO, "getrandom: %s", strerror(errno));
    if (status == 0)
        memcpy(ring->staging + ring_bytes - SLOT_PROOF_BYTES, &ring->nonce, sizeof(ring->nonce));
    return status;
}

static void host_ring_free(struct ring *ring)
{
    ring_memory_free(ring);
    free(ring);
}

static int host_ring_new(const struct ring_spec *spec, struct ring **out, struct feedd_error *err)
{
    struct ring *ring = calloc(1, sizeof(*ring));
    if (ring == NULL)
        return error_set(err, FEEDD_E_MEMORY, "no memory for a ring");
    ring->ops = &backend_host;
    ring->spec = *spec;
    int status = ring_memory_new(ring, err);
    if (status == 0)
        *out = ring;
    else
        host_ring_free(ring);
    return status;
}

const struct backend_ops backend_host = {
    .name = "host",
    .transport = "host",
    .placement_is_staging = true,
    .ring_new = host_ring_new,
    .copy = NULL,
    .ring_free = host_ring_free,
};
