/* host.c - rings in host memory: the placements are the staging slots themselves, which clients map read-only.
 *
 * Happy path: records -> the staging's descriptor and nonce are the ring's. What can fail: memory of the records.
 * Threads: a worker makes and frees; nothing here has state. */
#include <stdlib.h>

#include "backend.h"
#include "error.h"

static void host_ring_free(struct ring *ring)
{
    ring_meta_free(ring);
    free(ring);
}

static int host_ring_new(const struct ring_spec *spec, struct ring **out, struct feedd_error *err)
{
    struct ring *ring = calloc(1, sizeof(*ring));
    if (ring == NULL)
        return error_set(err, FEEDD_E_MEMORY, "no memory for a ring");
    ring->ops = &backend_host;
    ring->spec = *spec;
    ring->ring_fd = spec->staging->fd;
    ring->nonce = spec->staging->nonce;
    int status = ring_meta_new(ring, err);
    if (status == 0)
        *out = ring;
    else
        host_ring_free(ring);
    return status;
}

const struct backend_ops backend_host = {
    .name = "host",
    .placement_is_staging = true,
    .ring_new = host_ring_new,
    .copy = NULL,
    .ring_free = host_ring_free,
    .unpin = NULL,
};
