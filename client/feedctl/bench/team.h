/* team.h - threads that normalise a batch on the CPU together, each a part of its images. Threads: one caller at a
 * time. */
#ifndef FEEDD_BENCH_TEAM_H
#define FEEDD_BENCH_TEAM_H

#include <stdint.h>

#include "feedd_types.h"
#include "normalize.h"

#define TEAM_MAX 256u

struct team;

/* @param threads  1 to TEAM_MAX, the caller of team_normalize() among them
 * @return 0, or FEEDD_E_LIMIT (the system has no more threads) */
int team_new(unsigned threads, struct team **out, struct feedd_error *err);
void team_free(struct team *team);

/* normalize_host(), without windows. */
void team_normalize(struct team *team, const struct normalize_params *params, const uint8_t *in, void *out);

#endif
