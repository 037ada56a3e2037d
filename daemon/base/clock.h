/* clock.h - time for timestamps and deadlines. Thread-safe. */
#ifndef FEEDD_CLOCK_H
#define FEEDD_CLOCK_H

#include <stdint.h>

/* CLOCK_MONOTONIC in nanoseconds; never 0. */
uint64_t clock_ns(void);

#endif
