/* backend.h - where batches live: staging, which workers write, and rings of placements, which clients map; the ops
 * table of host.c and of cuda_ring.c.
 *
 *   staging: sealed host memory, depth slots          one a stream
 *   ring:    depth placements and their records       one for each place where members of the stream's group want them
 *
 * A ring on the host is the staging memory itself: a batch is placed where it was filled. A GPU's ring is a slab of its
 * memory, to which every batch is copied once; with `normalize` the daemon's kernel makes of the copy what the
 * placement holds.
 *
 * Threads: staging_new(), staging_free(), ring_new() and ring_free() run on workers and may take long; of one stream
 * several may run at a time. copy() is called on the loop thread, returns at once, and posts copy->done.run() to the
 * loop when the batch has arrived. */
#ifndef FEEDD_BACKEND_H
#define FEEDD_BACKEND_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "feedd_types.h"
#include "inbox.h"
#include "normalize.h"
#include "slot.h"

struct backend_ops;
struct gpu;

#define RING_HANDLE_BYTES 64 /* of a cudaIpcMemHandle_t */

/* How clients map the placements of a ring. */
enum transport {
    TRANSPORT_HOST, /* staging's memfd */
    TRANSPORT_IPC,  /* cudaIpcMemHandle_t */
    TRANSPORT_FD,   /* a descriptor of GPU memory, of cuMemExportToShareableHandle() */
    TRANSPORT_COUNT
};
const char *transport_name(enum transport transport); /* "host", "ipc", "fd" */

/* Where workers write. It stays until every ring of the stream has gone. */
struct staging {
    struct slot_layout layout;
    uint32_t depth;
    int node;        /* the NUMA node that its pages are on; -1: any */
    uint8_t *memory; /* depth slots, slot_bytes apart, and a proof page */
    int fd;          /* what a client maps, with TRANSPORT_HOST */
    uint64_t nonce;  /* in the proof page: who can tell it has mapped the memory */
    /* Pinned by the first ring on a GPU, for all GPUs; unpinned when the staging is freed. Under the lock, which that
     * ring's worker holds meanwhile: whoever makes another ring waits, and then finds it pinned, or does it. */
    pthread_mutex_t lock;
    struct gpu *pinned_by; /* NULL: it is not pinned */
    uint64_t pinned_step;  /* bytes of a piece, a multiple of slot_bytes: a copy never spans two registrations */
};

/* Sealed, every page there. @param node  NUMA node, or -1
 * @return 0 and *out, owned by the caller; FEEDD_E_MEMORY, FEEDD_E_IO */
int staging_new(const struct slot_layout *layout, uint32_t depth, int node, struct staging **out,
                struct feedd_error *err);
void staging_free(struct staging *staging); /* NULL is allowed */

/* What was asked for, constant for the ring's life. */
struct ring_spec {
    struct staging *staging;   /* borrowed; its depth is the ring's */
    struct slot_layout layout; /* of the placements: the staging's, but for what `normalize` changes */
    enum transport transport;
    struct gpu *gpu; /* where the placements are; NULL: TRANSPORT_HOST */
    /* The daemon's kernel makes field 0, which is the first in both layouts, out of the staging's uint8 image; all
     * other fields are alike in both. params.batch is each batch's own. */
    bool normalize;
    struct normalize_params params;
};

struct ring {
    const struct backend_ops *ops;
    struct ring_spec spec;
    uint8_t *meta;  /* depth slot records, as spec.layout has them; the loop writes here */
    int meta_fd;    /* what a client maps for the records */
    uint64_t nonce; /* stands behind the last placement: who can tell it has mapped the ring */
    /* what a client maps for the placements, by spec.transport */
    int ring_fd;                           /* HOST: the staging's; FD: the ring's own; else -1 */
    uint64_t ring_fd_bytes;                /* FD: of the memory behind it; the ring is at its start */
    uint8_t ipc_handle[RING_HANDLE_BYTES]; /* IPC */
    uint64_t ipc_offset;                   /* IPC: of the ring in the memory that the handle opens */
};

/* A copy in flight, owned by the caller. */
struct ring_copy {
    struct inbox_item done; /* run on the loop; what follows is set by then */
    int status;
    struct feedd_error error; /* of a status that is not 0 */
    uint64_t bytes;           /* that were copied */
    uint64_t done_ns;         /* when the batch had arrived */
    /* the backend's */
    struct ring_copy *next;
    struct ring *ring;
    uint32_t staging, placement, count;
    uint64_t submitted_ns;
};

struct backend_ops {
    const char *name; /* "host", "cuda" */
    /* Placement i is staging slot i: batches are never copied, and a slot stays taken until its last lease ends. */
    bool placement_is_staging;
    /* @return 0 and *out, owned by the caller; FEEDD_E_MEMORY (bytes asked for and free), FEEDD_E_DEVICE, FEEDD_E_IO,
     * FEEDD_E_UNSUPPORTED (this GPU or driver lacks what the transport needs: which) */
    int (*ring_new)(const struct ring_spec *spec, struct ring **out, struct feedd_error *err);
    /* Copies the first `count` samples of a staging slot into a placement; copies of one ring arrive in the order in
     * which they were asked for. NULL when placement_is_staging. */
    void (*copy)(struct ring *ring, uint32_t staging, uint32_t placement, uint32_t count, struct ring_copy *copy);
    void (*ring_free)(struct ring *ring);
    void (*unpin)(struct staging *staging); /* by pinned_by's backend, from staging_free(); else NULL */
};

extern const struct backend_ops backend_host, backend_cuda; /* the latter: of a struct gpu */

/* The records of a ring, a sealed memfd: every backend has them.
 * @return 0, or FEEDD_E_MEMORY, FEEDD_E_IO; ring_meta_free() undoes it, also where it wasn't made */
int ring_meta_new(struct ring *ring, struct feedd_error *err);
void ring_meta_free(struct ring *ring);

/* What nobody can guess. @return 0 or FEEDD_E_IO */
int backend_nonce(uint64_t *nonce, struct feedd_error *err);

/* A sealed memfd of the daemon's, mapped writable here and by nobody else: clients can't write, shrink or grow it.
 * @param node  NUMA node that its pages shall be on if there is room, or -1
 * @return 0, *fd and *memory (owned: backend_memfd_free(), or munmap and close); FEEDD_E_MEMORY, FEEDD_E_IO */
int backend_memfd_new(const char *name, uint64_t bytes, int node, int *fd, uint8_t **memory, struct feedd_error *err);
void backend_memfd_free(int fd, uint8_t *memory, uint64_t bytes);

#endif
