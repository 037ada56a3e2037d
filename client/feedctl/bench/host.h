/* host.h - host memory that benchmarks copy from, as the daemon's rings are: a memfd, mapped and filled, and registered
 * with the GPU if it is to be pinned. Threads: any. */
#ifndef FEEDD_BENCH_HOST_H
#define FEEDD_BENCH_HOST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "feedd_types.h"

struct host_memory {
    uint8_t *at; /* NULL: there is none */
    size_t bytes;
    bool pinned;
};

/* Has it hold that many bytes: what is there is kept if it is enough, else made anew. Its pages are there when this
 * returns, and hold bytes that vary. It must not be pinned.
 * @return 0; FEEDD_E_MEMORY: less than that is available, and nothing is held */
int host_memory_reserve(struct host_memory *memory, size_t bytes, struct feedd_error *err);
/* Registers the first `bytes` with the GPU, rounded up to pages. @return 0, what gpu_pin() fails with */
int host_memory_pin(struct host_memory *memory, size_t bytes, struct feedd_error *err);
void host_memory_unpin(struct host_memory *memory); /* one that isn't pinned: nothing */
/* Not pinned; one that isn't there is nothing; it isn't there afterwards. */
void host_memory_delete(struct host_memory *memory);

/* Bytes of shared memory that this process has resident: RssShmem of /proc/self/status. */
int host_resident(size_t *bytes, struct feedd_error *err);

#endif
