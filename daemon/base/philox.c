/* philox.c - Philox4x32-10: ten rounds of two multiplications, as in the paper's section 4.3 and in Random123.
 * Nothing can fail. Thread-safe: a pure function. */
#include "philox.h"

#define ROUNDS 10

/* Multipliers, and what is added to the key each round (golden ratio and sqrt(3) - 1): the paper's. */
#define MULTIPLIER_0 0xD2511F53u
#define MULTIPLIER_1 0xCD9E8D57u
#define WEYL_0       0x9E3779B9u
#define WEYL_1       0xBB67AE85u

void philox4x32(const uint32_t key[2], const uint32_t counter[4], uint32_t out[4])
{
    uint32_t k0 = key[0], k1 = key[1];
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t product0 = (uint64_t)MULTIPLIER_0 * c0;
        uint64_t product1 = (uint64_t)MULTIPLIER_1 * c2;
        c0 = (uint32_t)(product1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)product1;
        c2 = (uint32_t)(product0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)product0;
        k0 += WEYL_0;
        k1 += WEYL_1;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}
