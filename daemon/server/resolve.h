/* resolve.h - what an OPEN comes to: the configured stream or dataset, and over it what the client asks for.
 * Threads: loop only. */
#ifndef FEEDD_RESOLVE_H
#define FEEDD_RESOLVE_H

#include "feedd_types.h"
#include "group.h"
#include "output.h"
#include "wire.h"

struct connection;

/* How batches get to one client. */
struct delivery {
    char device[FEEDD_UUID_TEXT]; /* UUID of the GPU that they are for, with any transport; "": none */
    char reason[152];             /* of the transport, for a person */
    struct output_spec output;    /* as the client wants images: the mode is the stream's, the reason its own */
};

/* The dataset behind a name, a stream's or its own, or a path, where this client may use it: spec->dataset and
 * spec->selection. @return also in a failure, spec->dataset is NULL or held; FEEDD_E_NOT_FOUND, _ACCESS, _MEMORY */
int resolve_source(const struct connection *connection, const char *source, struct stream_spec *spec,
                   struct feedd_error *err);

/* All of it. @return likewise; FEEDD_E_ARGUMENT, FEEDD_E_DEVICE, FEEDD_E_UNSUPPORTED, FEEDD_E_TOKEN as well */
int resolve_open(const struct connection *connection, const Feedd__Open *open, struct group_spec *group,
                 struct delivery *delivery, struct feedd_error *err);

#endif
