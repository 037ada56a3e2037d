/* peer.h - a process beside this one that owns the GPU's memory, copies and normalises, and says when a batch is ready:
 * what a daemon that normalises does, without its decoding.
 *
 * It is feedctl itself, run anew, so that it never shares CUDA with its parent. The two speak through a socket that is
 * the child's stdin; either ends when the other does. Threads: one. */
#ifndef FEEDD_BENCH_PEER_H
#define FEEDD_BENCH_PEER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "feedd_types.h"
#include "normalize.h"

#define PEER_COMMAND "--peer" /* feedctl bench --peer: the child; not for people */

struct peer;

/* @return 0, or FEEDD_E_IO */
int peer_start(struct peer **out, struct feedd_error *err);
/* Ends the child and waits for it; NULL is nothing. */
void peer_stop(struct peer *peer);

/* Has the child feed `count` batches and more to warm up, and opens the memory that they arrive in.
 * Serial: the median time from before its copy until this process knows that the batch is ready. Pipelined: what a
 * batch takes in the flow, from one READY to the next; a slot goes back as soon as it is ready.
 * @return 0, what ways_init() and the GPU fail with, there or here, or FEEDD_E_CONNECTION: the child has ended */
int peer_feed(struct peer *peer, const struct normalize_params *params, bool pinned, bool pipelined, size_t count,
              double *us, struct feedd_error *err);

/* The child. @return exit status */
int peer_serve(void);

#endif
