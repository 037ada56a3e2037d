/* listener.h - the listening socket: systemd's, or our own.
 *
 * Our own path is guarded by a lock file beside it (PATH.lock), so that two daemons can't take it from each other; a
 * socket file that nobody serves is replaced, anything else in its place is left alone. A socket that systemd passed
 * is never unlinked.
 * Threads: loop only. */
#ifndef FEEDD_LISTENER_H
#define FEEDD_LISTENER_H

#include <stdbool.h>
#include <sys/types.h>
#include <uv.h>

#include "feedd_types.h"

struct server;

struct listener {
    int fd;      /* -1: none */
    int lock_fd; /* -1: not ours */
    bool bound;  /* we made the file: unlink it at the end, if it is still ours */
    dev_t device;
    ino_t inode;
    char path[108]; /* sun_path; "" for a passed socket without one */
    uv_poll_t poll;
    bool polling;
    bool paused; /* out of descriptors: until the next tick */
};

/* Takes the socket of LISTEN_FDS, or makes one at `path`.
 * @return 0; FEEDD_E_STATE (a daemon serves this path), FEEDD_E_ARGUMENT (path too long, not a socket, or the passed
 * descriptor is not a listening Unix SOCK_SEQPACKET socket), FEEDD_E_ACCESS, FEEDD_E_IO */
int listener_init(struct listener *listener, const char *path, struct feedd_error *err);

/* Accepts clients from now on. */
int listener_start(struct listener *listener, struct server *server, struct feedd_error *err);

/* Out of descriptors: lets clients wait in the backlog until listener_resume(). */
void listener_pause(struct listener *listener);
void listener_resume(struct listener *listener);

/* Stops accepting; the caller runs the loop once more for the handle. */
void listener_close(struct listener *listener);

#endif
