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

/* Its pages are there when this returns, and hold bytes that vary.
 * @return 0; FEEDD_E_MEMORY: less than that is available; what gpu_pin() fails with */
int host_memory_new(size_t bytes, bool pinned, struct host_memory *out, struct feedd_error *err);
/* One that isn't there is nothing; it isn't there afterwards. */
void host_memory_delete(struct host_memory *memory);

/* Bytes of shared memory that this process has resident: RssShmem of /proc/self/status. */
int host_resident(size_t *bytes, struct feedd_error *err);

#endif
