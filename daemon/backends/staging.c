/* staging.c - where workers write: depth slots in a sealed memfd, and a page with a nonce behind them.
 *
 * Happy path: memory -> a nonce in its proof page -> rings on GPUs may pin it -> unpinned, freed.
 * What can fail: memory, at OPEN; unpinning, which is worth a line in the log and no more.
 * Threads: backend.h. */
#include <stdlib.h>
#include <string.h>

#include "backend.h"
#include "error.h"
#include "gpu.h"

int staging_new(const struct slot_layout *layout, uint32_t depth, int node, struct staging **out,
                struct feedd_error *err)
{
    const uint64_t bytes = slot_ring_bytes(layout, depth);
    struct staging *staging = calloc(1, sizeof(*staging));
    if (staging == NULL)
        return error_set(err, FEEDD_E_MEMORY, "no memory for a ring");
    staging->layout = *layout;
    staging->depth = depth;
    staging->node = node;
    int status = backend_nonce(&staging->nonce, err);
    if (status == 0)
        status = backend_memfd_new("feedd-ring", bytes, node, &staging->fd, &staging->memory, err);
    if (status != 0) {
        free(staging);
        return status;
    }
    memcpy(staging->memory + bytes - SLOT_PROOF_BYTES, &staging->nonce, sizeof(staging->nonce));
    pthread_mutex_init(&staging->lock, NULL);
    *out = staging;
    return 0;
}

void staging_free(struct staging *staging)
{
    if (staging == NULL)
        return;
    if (staging->pinned_by != NULL)
        staging->pinned_by->backend->unpin(staging);
    pthread_mutex_destroy(&staging->lock);
    backend_memfd_free(staging->fd, staging->memory, slot_ring_bytes(&staging->layout, staging->depth));
    free(staging);
}
