/* backend.h - where batches live: the ops table of host.c, and of the GPU's.
 *
 * A ring has staging slots, in host memory that workers write, and placements, in memory that clients map. On the host
 * backend they are the same memory; a GPU's placements lie in a slab of its own and every batch is copied once.
 *
 * Threads: ring_new() and ring_free() run on a worker and may take long. copy() is called on the loop thread, returns
 * at once, and posts item->run() to the loop when the bytes have arrived. */
#ifndef FEEDD_BACKEND_H
#define FEEDD_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "feedd_types.h"
#include "inbox.h"
#include "slot.h"

struct backend_ops;
struct gpu;

#define RING_HANDLE_BYTES 64 /* of a cudaIpcMemHandle_t */

/* What was asked for, constant for the ring's life. */
struct ring_spec {
    struct slot_layout layout;
    uint32_t depth;  /* placements, and staging slots */
    struct gpu *gpu; /* where the placements are; NULL: in host memory */
};

struct ring {
    const struct backend_ops *ops;
    struct ring_spec spec;
    uint8_t *staging; /* depth slots, slot_bytes apart; workers write here */
    uint8_t *meta;    /* depth slot records; the loop writes here */
    int meta_fd;      /* what a client maps for the records */
    uint64_t nonce;   /* stands behind the last placement: who can tell it has mapped the ring */
    /* what a client maps for the placements, by ops->transport */
    int ring_fd;                           /* "host"; else nothing that leaves the daemon */
    uint8_t ipc_handle[RING_HANDLE_BYTES]; /* "ipc" */
    uint64_t ipc_offset;                   /* "ipc": of the ring in the memory that the handle opens */
};

/* A copy in flight, owned by the caller. */
struct ring_copy {
    struct inbox_item done; /* run on the loop; what follows is set by then */
    int status;
    struct feedd_error error; /* of a status that is not 0 */
    uint64_t done_ns;         /* when the bytes had arrived */
    /* the backend's */
    struct ring_copy *next;
    struct ring *ring;
    uint32_t staging, placement;
    size_t bytes;
    uint64_t submitted_ns;
};

struct backend_ops {
    const char *name;      /* "host", "cuda" */
    const char *transport; /* how clients map placements: "host", "ipc", "fd" */
    /* Placement i is staging slot i: batches are never copied, and a slot stays taken until its last lease ends. */
    bool placement_is_staging;
    /* @return 0 and *out, owned by the caller; FEEDD_E_MEMORY (bytes asked for and free), FEEDD_E_DEVICE, FEEDD_E_IO */
    int (*ring_new)(const struct ring_spec *spec, struct ring **out, struct feedd_error *err);
    /* Copies [0, used_bytes) of a staging slot into a placement; copies of one ring arrive in the order in which they
     * were asked for. NULL when placement_is_staging. */
    void (*copy)(struct ring *ring, uint32_t staging, uint32_t placement, size_t used_bytes, struct ring_copy *copy);
    void (*ring_free)(struct ring *ring);
};

extern const struct backend_ops backend_host, backend_cuda; /* the latter: of a struct gpu */

/* The part of a ring that every backend has: staging slots and records, sealed memfds, allocated in full.
 * @return 0, or FEEDD_E_MEMORY, FEEDD_E_IO; ring_memory_free() undoes what was done */
int ring_memory_new(struct ring *ring, struct feedd_error *err);
void ring_memory_free(struct ring *ring);

/* A sealed memfd of the daemon's, mapped writable here and by nobody else: clients can't write, shrink or grow it.
 * @return 0, *fd and *memory (owned: munmap, close); FEEDD_E_MEMORY, FEEDD_E_IO */
int backend_memfd_new(const char *name, uint64_t bytes, int *fd, uint8_t **memory, struct feedd_error *err);

#endif
