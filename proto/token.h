/* token.h - the resume token: where in which order a training run stands.
 *
 * Rank-independent: it names a global position, so a run may go on with another world size or batch size.
 * Text form: "feedd1." and the base64url (RFC 4648, no padding) of 50 bytes, little endian:
 *   u8 version, u8 order, u32 order parameter, u64 sample count, u64 fingerprint, u64 seed, u64 epoch,
 *   u64 position, u32 check (low half of XXH3-64 of the bytes before it).
 * Thread-safe. */
#ifndef FEEDD_TOKEN_H
#define FEEDD_TOKEN_H

#include <stdint.h>

#include "feedd_types.h"

struct token {
    uint8_t order;            /* enum feedd_order */
    uint32_t order_parameter; /* 0 for the orders that have none */
    uint64_t sample_count;
    uint64_t fingerprint; /* of the dataset: ordered names and sizes */
    uint64_t seed;
    uint64_t epoch;
    uint64_t position; /* the first one that has not been delivered; < sample_count, else 0 of the next epoch */
};

/* Writes the text form, terminated, into text[FEEDD_TOKEN_TEXT]. */
void token_format(const struct token *token, char text[FEEDD_TOKEN_TEXT]);

/* Reads a text form. Values come back as they were written: whether they fit is for those who know the dataset.
 * @return 0, or FEEDD_E_TOKEN when it is not one: NULL, cut, mistyped, of a later version. */
int token_parse(const char *text, struct token *token, struct feedd_error *err);

#endif
