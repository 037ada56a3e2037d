/* token.c - the resume token as text and back.
 *
 * Happy path: the values are packed little endian, sealed with a check, and written as base64url.
 * What can fail: parsing a text that isn't a token. It comes from users: pasted, cut, from another version.
 * Threads: any; nothing here has state. */
#include "token.h"

#include <string.h>
#include <xxhash.h>

#include "error.h"

#define TOKEN_VERSION 1
#define FAMILY        "feedd" /* begins tokens of every version */
#define FAMILY_CHARS  (sizeof(FAMILY) - 1)
#define PREFIX        FAMILY "1."
#define PREFIX_CHARS  (sizeof(PREFIX) - 1)
#define TOKEN_BYTES   50
#define CHECK_OFFSET  46
#define BASE64_CHARS  67 /* 66 full characters; of the last one 4 bits are used, the other 2 are zero */
#define TEXT_CHARS    (PREFIX_CHARS + BASE64_CHARS)

_Static_assert(TEXT_CHARS < FEEDD_TOKEN_TEXT, "a token and its terminator fit");
_Static_assert((TOKEN_BYTES * 8 + 5) / 6 == BASE64_CHARS, "base64 holds 6 bits a character");

static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"; /* RFC 4648, 5 */

/* Writes the low `bytes` bytes of value; returns where the next value goes. */
static uint8_t *put(uint8_t *to, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        to[i] = (uint8_t)(value >> (8 * i));
    return to + bytes;
}

static uint64_t get(const uint8_t **from, int bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++)
        value |= (uint64_t)(*from)[i] << (8 * i);
    *from += bytes;
    return value;
}

static uint32_t check_of(const uint8_t bytes[TOKEN_BYTES])
{
    return (uint32_t)XXH3_64bits(bytes, CHECK_OFFSET);
}

static void base64_write(const uint8_t bytes[TOKEN_BYTES], char text[BASE64_CHARS])
{
    uint32_t bits = 0;
    int bit_count = 0, byte = 0;
    for (int i = 0; i < BASE64_CHARS; i++) {
        if (bit_count < 6) {
            bits = bits << 8 | (byte < TOKEN_BYTES ? bytes[byte++] : 0u);
            bit_count += 8;
        }
        bit_count -= 6;
        text[i] = alphabet[bits >> bit_count & 63];
    }
}

/* @return -1, or the index of the first character that can't be there: not in the alphabet, or unused bits of the last
 * one that aren't zero (one value has one text) */
static int base64_read(const char text[BASE64_CHARS], uint8_t bytes[TOKEN_BYTES])
{
    uint32_t bits = 0;
    int bit_count = 0, byte = 0;
    for (int i = 0; i < BASE64_CHARS; i++) {
        const char *found = memchr(alphabet, text[i], sizeof(alphabet) - 1);
        if (found == NULL)
            return i;
        bits = bits << 6 | (uint32_t)(found - alphabet);
        bit_count += 6;
        if (bit_count >= 8) {
            bit_count -= 8;
            bytes[byte++] = (uint8_t)(bits >> bit_count);
        }
    }
    return (bits & ((1u << bit_count) - 1)) == 0 ? -1 : BASE64_CHARS - 1;
}

/* Digits of the version in a text that begins as a token of any version does, "feedd", a number, "."; else 0. */
static size_t version_digits(const char *text)
{
    if (strncmp(text, FAMILY, FAMILY_CHARS) != 0)
        return 0;
    size_t digits = strspn(text + FAMILY_CHARS, "0123456789");
    return text[FAMILY_CHARS + digits] == '.' ? digits : 0;
}

void token_format(const struct token *token, char text[FEEDD_TOKEN_TEXT])
{
    uint8_t bytes[TOKEN_BYTES];
    uint8_t *end = put(bytes, TOKEN_VERSION, 1);
    end = put(end, token->order, 1);
    end = put(end, token->order_parameter, 4);
    end = put(end, token->sample_count, 8);
    end = put(end, token->fingerprint, 8);
    end = put(end, token->seed, 8);
    end = put(end, token->epoch, 8);
    end = put(end, token->position, 8);
    put(end, check_of(bytes), 4);

    memcpy(text, PREFIX, PREFIX_CHARS);
    base64_write(bytes, text + PREFIX_CHARS);
    text[TEXT_CHARS] = '\0';
}

int token_parse(const char *text, struct token *token, struct feedd_error *err)
{
    if (text == NULL || text[0] == '\0')
        return error_set(err, FEEDD_E_TOKEN, "resume token: empty; one begins with \"" PREFIX "\"");
    if (strncmp(text, PREFIX, PREFIX_CHARS) != 0) {
        size_t digits = version_digits(text);
        if (digits == 0)
            return error_set(err, FEEDD_E_TOKEN, "resume token: not one, it doesn't begin with \"" PREFIX "\"");
        return error_set(err, FEEDD_E_TOKEN, "resume token: version %.*s, but this feedd reads only version %d",
                         digits < 8 ? (int)digits : 8, text + FAMILY_CHARS, TOKEN_VERSION);
    }
    size_t length = strnlen(text, FEEDD_TOKEN_TEXT);
    if (length != TEXT_CHARS)
        return error_set(err, FEEDD_E_TOKEN, "resume token: %s, it must have %zu characters",
                         length < TEXT_CHARS ? "cut short" : "too long", TEXT_CHARS);

    uint8_t bytes[TOKEN_BYTES];
    int bad = base64_read(text + PREFIX_CHARS, bytes);
    if (bad >= 0)
        return error_set(err, FEEDD_E_TOKEN, "resume token: mistyped, character %zu of %zu can't be there",
                         PREFIX_CHARS + (size_t)bad + 1, TEXT_CHARS);
    const uint8_t *check = bytes + CHECK_OFFSET;
    if (get(&check, 4) != check_of(bytes))
        return error_set(err, FEEDD_E_TOKEN, "resume token: mistyped, its check doesn't match the rest");

    const uint8_t *from = bytes;
    uint64_t version = get(&from, 1);
    if (version != TOKEN_VERSION)
        return error_set(err, FEEDD_E_TOKEN, "resume token: version %d, but this feedd reads only version %d",
                         (int)version, TOKEN_VERSION);
    token->order = (uint8_t)get(&from, 1);
    token->order_parameter = (uint32_t)get(&from, 4);
    token->sample_count = get(&from, 8);
    token->fingerprint = get(&from, 8);
    token->seed = get(&from, 8);
    token->epoch = get(&from, 8);
    token->position = get(&from, 8);
    return 0;
}
