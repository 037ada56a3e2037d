/* private.h - where a user's own daemon listens: one daemon a (user, configuration).
 * Threads: before any is started. */
#ifndef FEEDD_PRIVATE_H
#define FEEDD_PRIVATE_H

#include "feedd_types.h"

#define PRIVATE_PATH_MAX 108 /* sun_path */

/* $XDG_RUNTIME_DIR/feedd/HASH.sock, or /tmp/feedd-UID/HASH.sock where there is no such folder; HASH is of the
 * configuration's real path. The folder is made, for this user alone; one that others can write is refused.
 * @param config_path  NULL: no configuration */
int private_socket(const char *config_path, char path[PRIVATE_PATH_MAX], struct feedd_error *err);

#endif
