/* test_token.c - resume tokens: the exact text, there and back, and nothing else is taken for one. */
#include <check.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "token.h"

/* Texts made by Python: struct.pack("<BBIQQQQQ"), the xxhash package's xxh3_64, base64.urlsafe_b64encode. */
static const struct {
    struct token token;
    const char *text;
} pinned[] = {
    {{2, 0, 60000, 0x0123456789ABCDEF, 42, 3, 12800},
     "feedd1.AQIAAAAAYOoAAAAAAADvzauJZ0UjASoAAAAAAAAAAwAAAAAAAAAAMgAAAAAAAJOWJdo"},
    {{0, 0, 0, 0, 0, 0, 0}, "feedd1.AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAEI7hw4"},
    {{UINT8_MAX, UINT32_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX},
     "feedd1.Af___________________________________________________________5m6vnA"},
};

static bool same_token(const struct token *a, const struct token *b)
{
    return a->order == b->order && a->order_parameter == b->order_parameter && a->sample_count == b->sample_count &&
           a->fingerprint == b->fingerprint && a->seed == b->seed && a->epoch == b->epoch && a->position == b->position;
}

/* Refused, in one line that says what is expected to be said (NULL: anything), and the token is left alone. */
static void refuse(const char *text, const char *says)
{
    struct token token, before;
    struct feedd_error err = {0};
    memset(&token, 0x5A, sizeof(token));
    memset(&before, 0x5A, sizeof(before));
    int rc = token_parse(text, &token, &err);
    if (rc != FEEDD_E_TOKEN || err.status != FEEDD_E_TOKEN || memcmp(&token, &before, sizeof(token)) != 0)
        ck_abort_msg("status %d for \"%.100s\"", rc, text);
    if (strncmp(err.message, "resume token: ", 14) != 0 || strchr(err.message, '\n') != NULL ||
        (says != NULL && strstr(err.message, says) == NULL))
        ck_abort_msg("\"%s\" for \"%.100s\"; expected: \"%s\"", err.message, text, says != NULL ? says : "");
}

START_TEST(pinned_texts)
{
    for (size_t i = 0; i < sizeof(pinned) / sizeof(pinned[0]); i++) {
        char text[FEEDD_TOKEN_TEXT];
        struct token token;
        token_format(&pinned[i].token, text);
        ck_assert_str_eq(text, pinned[i].text);
        ck_assert_int_eq(token_parse(text, &token, NULL), 0);
        ck_assert(same_token(&token, &pinned[i].token));
    }
}
END_TEST

/* Each field alone, bit by bit: none is cut or mixed up with another one. */
START_TEST(every_bit_comes_back)
{
    for (uint32_t bit = 0; bit < 8 + 32 + 5 * 64; bit++) {
        struct token token = {0}, back;
        char text[FEEDD_TOKEN_TEXT];
        if (bit < 8) {
            token.order = (uint8_t)(1u << bit);
        } else if (bit < 40) {
            token.order_parameter = 1u << (bit - 8);
        } else {
            uint64_t *fields[] = {&token.sample_count, &token.fingerprint, &token.seed, &token.epoch, &token.position};
            *fields[(bit - 40) / 64] = (uint64_t)1 << (bit - 40) % 64;
        }
        token_format(&token, text);
        ck_assert_int_eq(token_parse(text, &back, NULL), 0);
        ck_assert(same_token(&token, &back));
    }
}
END_TEST

START_TEST(mutations_are_refused)
{
    for (size_t p = 0; p < sizeof(pinned) / sizeof(pinned[0]); p++) {
        const size_t length = strlen(pinned[p].text);
        char text[FEEDD_TOKEN_TEXT];
        for (size_t at = 0; at < length; at++) {
            for (int c = CHAR_MIN; c <= CHAR_MAX; c++) { /* 0 cuts the text */
                strcpy(text, pinned[p].text);
                text[at] = (char)c;
                if (text[at] != pinned[p].text[at])
                    refuse(text, NULL);
            }
        }
        for (size_t at = 0; at + 1 < length; at++) { /* two characters swapped */
            strcpy(text, pinned[p].text);
            text[at] = pinned[p].text[at + 1];
            text[at + 1] = pinned[p].text[at];
            if (text[at] != text[at + 1])
                refuse(text, NULL);
        }
        for (size_t at = 0; at < length; at++) { /* one lost, one doubled */
            strcpy(text, pinned[p].text);
            memmove(text + at, text + at + 1, length - at);
            refuse(text, NULL);
            strcpy(text, pinned[p].text);
            memmove(text + at + 1, text + at, length - at + 1);
            refuse(text, NULL);
        }
    }
}
END_TEST

/* Cut at each length, in a block of just that size: reading past the end would show. */
START_TEST(cut_texts_are_refused)
{
    const char *whole = pinned[0].text;
    for (size_t length = 0; length < strlen(whole); length++) {
        char *text = malloc(length + 1);
        ck_assert_ptr_nonnull(text);
        memcpy(text, whole, length);
        text[length] = '\0';
        refuse(text, length == 0 ? "empty" : length < 7 ? "doesn't begin with \"feedd1.\"" : "cut short");
        free(text);
    }
}
END_TEST

START_TEST(texts_that_are_no_tokens)
{
    char text[FEEDD_TOKEN_TEXT];
    refuse(NULL, "empty");
    refuse("", "empty");
    refuse("epoch 3", "doesn't begin with");
    refuse("feedd", "doesn't begin with");
    refuse("feedd.AQ", "doesn't begin with");
    refuse("FEEDD1.AQ", "doesn't begin with");
    refuse("\xC3\xA9\n\x01", "doesn't begin with");

    strcpy(text, pinned[0].text);
    refuse(strcat(text, "\n"), "too long, it must have 74 characters");
    strcpy(text, pinned[0].text);
    refuse(strcat(text, "="), "too long"); /* base64's padding isn't written, so not read either */
    strcpy(text, pinned[0].text);
    text[11] = '+'; /* plain base64's alphabet */
    refuse(text, "character 12 of 74");
    strcpy(text, pinned[0].text);
    text[73] = 'p'; /* one more than 'o': only unused bits differ */
    refuse(text, "character 74 of 74");
    strcpy(text, pinned[0].text);
    text[30] ^= 'a' ^ 'b';
    refuse(text, "check doesn't match");

    const size_t length = 1 << 20;
    static const char *begins[] = {"", "feedd1.", "feedd1"}; /* "feedd1" + As, and the version 1111... */
    for (size_t i = 0; i < sizeof(begins) / sizeof(begins[0]); i++) {
        for (const char *fill = "A1"; *fill != '\0'; fill++) {
            char *large = malloc(length + 1);
            ck_assert_ptr_nonnull(large);
            memset(large, *fill, length);
            memcpy(large, begins[i], strlen(begins[i]));
            large[length] = '\0';
            refuse(large, i == 1 ? "too long" : "doesn't begin with");
            large[length - 1] = '.';
            refuse(large, i == 2 && *fill == '1' ? "version 11111111," : i == 1 ? "too long" : "doesn't begin with");
            free(large);
        }
    }
}
END_TEST

START_TEST(later_versions_are_named)
{
    refuse("feedd2.AQIAAAAA", "version 2, but this feedd reads only version 1");
    refuse("feedd10.", "version 10, but this feedd reads only version 1");
    refuse("feedd1234567890.x", "version 12345678,"); /* named as far as it makes sense */
    /* the text form stayed, but not the version inside; its check is right */
    refuse("feedd1.AgIAAAAAYOoAAAAAAADvzauJZ0UjASoAAAAAAAAAAwAAAAAAAAAAMgAAAAAAABl3ios",
           "version 2, but this feedd reads only version 1");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("token");
    TCase *text = tcase_create("text");
    tcase_add_test(text, pinned_texts);
    tcase_add_test(text, every_bit_comes_back);
    tcase_add_test(text, mutations_are_refused);
    tcase_add_test(text, cut_texts_are_refused);
    tcase_add_test(text, texts_that_are_no_tokens);
    tcase_add_test(text, later_versions_are_named);
    suite_add_tcase(suite, text);

    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failures = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failures != 0;
}
