/* philox.h - Philox4x32-10, a counter-based random function (Salmon, Moraes, Dror, Shaw: "Parallel Random Numbers: As
 * Easy as 1, 2, 3", SC'11). The same key and counter give the same bits on every machine and thread; no state. */
#ifndef FEEDD_PHILOX_H
#define FEEDD_PHILOX_H

#include <stdint.h>

void philox4x32(const uint32_t key[2], const uint32_t counter[4], uint32_t out[4]);

#endif
