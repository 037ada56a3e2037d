/* permutation.c - a Feistel network whose two halves take turns, and cycle walking.
 *
 * Happy path: init makes the round keys; each value takes one walk through the rounds, another one while it is >= n.
 * Nothing can fail: the callers keep n in 1..2^62 and positions below n.
 * Threads: any, once initialised.
 *
 * What comes out is part of every resume token's meaning: changing it needs a new order, not a new constant. */
#include "permutation.h"

#include "philox.h"

/* Counter word of the round keys. Its top bit is set, and positions are below 2^62: other uses of Philox with the
 * same seed, keyed by (epoch, position), never meet these. */
#define KEY_DOMAIN 0xFEEDD000u

/* The smallest domain's. With 3 bits the odds of an order of three samples are off by a fifth; with 6, by less than
 * 1 %. A handful of samples pays with more walks, 64 at most. */
#define MIN_BITS 6

static uint64_t mask(uint32_t bits)
{
    return ((uint64_t)1 << bits) - 1; /* bits: 3 to 31 */
}

/* 32 bits that all depend on all of `half` and the key: MurmurHash3's 64-bit finalizer (Appleby) up to its last shift;
 * the upper half of a product is the mixed one. Without the second multiplication successive epochs are correlated. */
static inline uint64_t mix(uint64_t half, uint64_t key)
{
    uint64_t x = (half ^ key) * 0xFF51AFD7ED558CCDu;
    x ^= x >> 33;
    x *= 0xC4CEB9FE1A85EC53u;
    return x >> 32;
}

void permutation_init(struct permutation *p, uint64_t n, uint64_t seed, uint64_t epoch)
{
    uint32_t bits = n > 1 << MIN_BITS ? 64 - (uint32_t)__builtin_clzll(n - 1) : MIN_BITS;
    p->n = n;
    p->left_bits = bits / 2;
    p->right_bits = bits - bits / 2;

    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    for (uint32_t i = 0; i < PERMUTATION_ROUNDS; i += 2) {
        const uint32_t counter[4] = {i / 2, KEY_DOMAIN, (uint32_t)epoch, (uint32_t)(epoch >> 32)};
        uint32_t random[4];
        philox4x32(key, counter, random);
        p->keys[i] = (uint64_t)random[1] << 32 | random[0];
        p->keys[i + 1] = (uint64_t)random[3] << 32 | random[2];
    }
}

/* Halves are combined by addition: exclusive or would reach even permutations only. */
uint64_t permutation_index(const struct permutation *p, uint64_t position)
{
    const uint64_t left_mask = mask(p->left_bits), right_mask = mask(p->right_bits);
    uint64_t value = position;
    do {
        uint64_t left = value >> p->right_bits, right = value & right_mask;
        for (int i = 0; i < PERMUTATION_ROUNDS; i += 2) {
            left = (left + mix(right, p->keys[i])) & left_mask;
            right = (right + mix(left, p->keys[i + 1])) & right_mask;
        }
        value = left << p->right_bits | right;
    } while (value >= p->n);
    return value;
}

uint64_t permutation_position(const struct permutation *p, uint64_t index)
{
    const uint64_t left_mask = mask(p->left_bits), right_mask = mask(p->right_bits);
    uint64_t value = index;
    do {
        uint64_t left = value >> p->right_bits, right = value & right_mask;
        for (int i = PERMUTATION_ROUNDS - 2; i >= 0; i -= 2) {
            right = (right - mix(left, p->keys[i + 1])) & right_mask;
            left = (left - mix(right, p->keys[i])) & left_mask;
        }
        value = left << p->right_bits | right;
    } while (value >= p->n);
    return value;
}
