/* fuzz_token.c - resume tokens: text that users paste.
 *
 * Input: a flag byte. Even: the rest is the text. Odd: the values of a token (48 bytes), whose text is edited by the
 * pairs (position, character) that follow, its end a position, too: so the check at a token's end is no wall.
 * What has to hold: a text that is accepted is the text that its values have; values come back as they were written;
 * a refusal says why and leaves the token alone. */
#include "fuzz.h"
#include "token.h"

static void values_read(struct fuzz_input *in, struct token *token)
{
    const uint8_t *bytes;
    uint64_t values[6] = {0};
    size_t got = fuzz_bytes(in, sizeof(values), &bytes);
    memcpy(values, bytes, got);
    token->order = (uint8_t)values[0];
    token->order_parameter = (uint32_t)(values[0] >> 8);
    token->sample_count = values[1];
    token->fingerprint = values[2];
    token->seed = values[3];
    token->epoch = values[4];
    token->position = values[5];
}

static int equal(const struct token *a, const struct token *b)
{
    return a->order == b->order && a->order_parameter == b->order_parameter && a->sample_count == b->sample_count &&
           a->fingerprint == b->fingerprint && a->seed == b->seed && a->epoch == b->epoch && a->position == b->position;
}

static void parse(const char *text)
{
    static const struct token untouched = {1, 2, 3, 4, 5, 6, 7};
    struct token token = untouched;
    struct feedd_error err;
    char again[FEEDD_TOKEN_TEXT];
    int status = token_parse(text, &token, &err);
    if (status != 0) {
        FUZZ_CHECK(status == FEEDD_E_TOKEN && equal(&token, &untouched));
        fuzz_check_error(&err, status);
        return;
    }
    token_format(&token, again);
    FUZZ_CHECK(strcmp(again, text) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};
    if (fuzz_byte(&in) % 2 == 0) {
        char *text = malloc(in.left + 1); /* as long as it is: reading behind its end is seen */
        FUZZ_CHECK(text != NULL);
        if (in.left > 0)
            memcpy(text, in.at, in.left);
        text[in.left] = '\0';
        parse(text);
        free(text);
        return 0;
    }
    struct token token, back;
    char text[2 * FEEDD_TOKEN_TEXT];
    values_read(&in, &token);
    memset(text, 'x', sizeof(text));
    token_format(&token, text);
    size_t length = strnlen(text, sizeof(text));
    FUZZ_CHECK(length < FEEDD_TOKEN_TEXT);
    FUZZ_CHECK(token_parse(text, &back, NULL) == 0 && equal(&token, &back));
    while (in.left > 0) {
        size_t position = fuzz_byte(&in) % (length + 1);
        text[position] = (char)fuzz_byte(&in);
        if (position == length && length + 2 < sizeof(text))
            text[++length] = '\0';
    }
    text[length] = '\0';
    parse(text);
    return 0;
}
