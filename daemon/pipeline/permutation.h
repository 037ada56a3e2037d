/* permutation.h - a keyed permutation of 0..n-1 with O(1) state, for shuffling without a list.
 *
 * A balanced-as-can-be Feistel network over the smallest power of two (64 or more) that holds n, with cycle walking
 * (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002): any n, invertible, at most two walks on average
 * from n = 32 on. Round keys are Philox4x32-10 (Salmon et al., SC'11) of (seed, epoch).
 * Thread-safe once initialised: a pure function. */
#ifndef FEEDD_PERMUTATION_H
#define FEEDD_PERMUTATION_H

#include <stdint.h>

#define PERMUTATION_ROUNDS 8

struct permutation {
    uint64_t n;
    uint32_t left_bits, right_bits; /* left_bits + right_bits: the domain's bits; differ by at most 1 */
    uint64_t keys[PERMUTATION_ROUNDS];
};

/* @param n  at least 1, at most 2^62 */
void permutation_init(struct permutation *p, uint64_t n, uint64_t seed, uint64_t epoch);

/* The value at `position` < n. */
uint64_t permutation_index(const struct permutation *p, uint64_t position);

/* The inverse: the position of `index` < n. */
uint64_t permutation_position(const struct permutation *p, uint64_t index);

#endif
