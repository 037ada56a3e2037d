/* test_permutation.c - Philox against its known answers; permutations: bijective, invertible, pinned, and as random as
 * shuffling by chance would be.
 *
 * Statistical bounds are set so that a truly random function would miss them less than once in 10^6 runs; the seeds are
 * fixed, so that a run either always passes or always fails. */
#include <check.h>
#include <stdbool.h>
#include <stdint.h>

#include "permutation.h"
#include "philox.h"

/* Points for tests, independent of the code under test: SplitMix64 (Steele, Lea, Flood 2014). */
static uint64_t random_next(uint64_t *state)
{
    uint64_t x = *state += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

static double chi_square(const uint32_t *counts, size_t cells, double expected)
{
    double sum = 0;
    for (size_t i = 0; i < cells; i++)
        sum += (counts[i] - expected) * (counts[i] - expected) / expected;
    return sum;
}

/* The three lines "philox4x32 10" of tests/kat_vectors in the Random123 distribution. */
START_TEST(philox_known_answers)
{
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } vectors[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t v = 0; v < sizeof(vectors) / sizeof(vectors[0]); v++) {
        uint32_t out[4];
        philox4x32(vectors[v].key, vectors[v].counter, out);
        for (int i = 0; i < 4; i++)
            ck_assert_uint_eq(out[i], vectors[v].out[i]);
    }
}
END_TEST

/* Orders that resume tokens in users' hands refer to: they must never change. From an implementation in Python's
 * unbounded integers, in the textbook form that swaps the halves after each round. */
START_TEST(pinned_orders)
{
    static const struct {
        uint64_t n, seed, epoch, order[10];
    } small[] = {
        {1, 1, 0, {0}},
        {2, 1, 0, {0, 1}},
        {7, 1, 0, {6, 5, 4, 2, 0, 1, 3}},
        {10, 0x0123456789ABCDEF, 0, {3, 9, 8, 7, 0, 4, 6, 5, 2, 1}},
        {10, 0x0123456789ABCDEF, 1, {6, 9, 5, 4, 8, 1, 0, 2, 3, 7}},
        {10, 0x0123456789ABCDEF, (uint64_t)1 << 32, {9, 5, 7, 1, 4, 8, 6, 3, 2, 0}},
    };
    for (size_t s = 0; s < sizeof(small) / sizeof(small[0]); s++) {
        struct permutation p;
        permutation_init(&p, small[s].n, small[s].seed, small[s].epoch);
        for (uint64_t i = 0; i < small[s].n; i++)
            ck_assert_uint_eq(permutation_index(&p, i), small[s].order[i]);
    }

    static const struct {
        uint64_t n, first, second, middle, last;
    } large[] = {
        {1281167, 913831, 1254266, 871189, 429342},
        {8589934593, 8143349651, 8513890511, 3022717437, 6199048102},
        {4611686018427387903, 799857240727365524, 1216434946898244164, 3296838857422738365, 3447825455351784379},
        {4611686018427387904, 799857240727365524, 1216434946898244164, 2744177280135938189, 246234602225514739},
    };
    for (size_t l = 0; l < sizeof(large) / sizeof(large[0]); l++) {
        struct permutation p;
        permutation_init(&p, large[l].n, 42, 7);
        ck_assert_uint_eq(permutation_index(&p, 0), large[l].first);
        ck_assert_uint_eq(permutation_index(&p, 1), large[l].second);
        ck_assert_uint_eq(permutation_index(&p, large[l].n / 2), large[l].middle);
        ck_assert_uint_eq(permutation_index(&p, large[l].n - 1), large[l].last);
    }
}
END_TEST

START_TEST(bijective_for_every_small_n)
{
    enum { MAX_N = 2000 };
    static const struct {
        uint64_t seed, epoch;
    } keys[] = {{0, 0}, {1, UINT64_MAX}, {UINT64_MAX, 12345}};
    static uint32_t seen[MAX_N]; /* the last permutation that had this index, counted from 1 */
    uint32_t permutations = 0;
    for (uint64_t n = 1; n <= MAX_N; n++) {
        for (size_t k = 0; k < sizeof(keys) / sizeof(keys[0]); k++) {
            struct permutation p;
            permutation_init(&p, n, keys[k].seed, keys[k].epoch);
            permutations++;
            for (uint64_t i = 0; i < n; i++) {
                uint64_t index = permutation_index(&p, i);
                /* plain conditions first: Check's bookkeeping for each assertion is slower than the permutation */
                if (index >= n || seen[index] == permutations || permutation_position(&p, index) != i)
                    ck_abort_msg("n %lu, key %zu: position %lu gives %lu", (unsigned long)n, k, (unsigned long)i,
                                 (unsigned long)index);
                seen[index] = permutations;
            }
        }
    }
}
END_TEST

/* Positions of both ends and of everywhere: 250,000 for each n, so 10^6 of them around 2^33. */
static void check_inverse(uint64_t n, uint32_t points)
{
    struct permutation p;
    permutation_init(&p, n, n, 5);
    uint64_t state = n;
    for (uint32_t i = 0; i < points; i++) {
        uint64_t position = i % 8 == 0 ? i / 8 : i % 8 == 1 ? n - 1 - i / 8 : random_next(&state) % n;
        uint64_t index = permutation_index(&p, position);
        if (index >= n || permutation_position(&p, index) != position)
            ck_abort_msg("n %lu: position %lu gives %lu", (unsigned long)n, (unsigned long)position,
                         (unsigned long)index);
    }
}

START_TEST(invertible_for_large_n)
{
    const uint64_t n = (uint64_t)1 << 33;
    check_inverse(n - 1, 250000);
    check_inverse(n, 250000);
    check_inverse(n + 1, 250000);
    check_inverse(n + n / 3, 250000);
    /* the largest domains that permutation_init() allows */
    check_inverse(((uint64_t)1 << 61) + 1, 10000);
    check_inverse(((uint64_t)1 << 62) - 1, 10000);
    check_inverse((uint64_t)1 << 62, 10000);
}
END_TEST

/* The number of the order of n samples among the n! ones (Lehmer code). */
static uint32_t order_number(const struct permutation *p, uint32_t n)
{
    uint32_t order[8], number = 0;
    for (uint32_t i = 0; i < n; i++)
        order[i] = (uint32_t)permutation_index(p, i);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t smaller = 0;
        for (uint32_t j = i + 1; j < n; j++)
            smaller += order[j] < order[i];
        number = number * (n - i) + smaller;
    }
    return number;
}

/* 1,000 permutations for each possible order, over seeds or over epochs. */
static double order_chi_square(uint32_t n, uint32_t orders, bool over_epochs)
{
    static uint32_t counts[720];
    for (uint32_t i = 0; i < orders; i++)
        counts[i] = 0;
    for (uint32_t i = 0; i < orders * 1000; i++) {
        struct permutation p;
        permutation_init(&p, n, over_epochs ? 99 : i, over_epochs ? i : 0);
        counts[order_number(&p, n)]++;
    }
    return chi_square(counts, orders, 1000);
}

/* Bounds: quantiles 10^-7 and 1 - 10^-7 of chi-square of n! - 1 degrees of freedom. */
START_TEST(all_orders_equally_often)
{
    static const struct {
        uint32_t n, orders;
        double low, high;
    } cases[] = {{2, 2, 0, 28.4}, {3, 6, 0.01, 40.9}, {4, 24, 2.8, 76.9}, {5, 120, 55.2, 217.3}, {6, 720, 538, 935}};
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        for (int over_epochs = 0; over_epochs < 2; over_epochs++) {
            double x = order_chi_square(cases[c].n, cases[c].orders, over_epochs);
            ck_assert_msg(x >= cases[c].low && x <= cases[c].high, "n %u: chi-square %.2f, not %.2f to %.2f",
                          cases[c].n, x, cases[c].low, cases[c].high);
        }
    }
}
END_TEST

/* Where one sample lands, and which sample comes at one position, are uniform over seeds and over epochs. */
START_TEST(each_position_is_uniform)
{
    enum { N = 1000, PER_CELL = 100 };
    static const uint64_t positions[] = {0, 1, N / 2, N - 1};
    static uint32_t counts[4][N];
    for (size_t i = 0; i < sizeof(positions) / sizeof(positions[0]); i++) {
        for (uint32_t c = 0; c < 4 * N; c++)
            counts[c / N][c % N] = 0;
        for (uint64_t key = 0; key < N * PER_CELL; key++) {
            struct permutation by_seed, by_epoch;
            permutation_init(&by_seed, N, key, 3);
            permutation_init(&by_epoch, N, 3, key);
            counts[0][permutation_index(&by_seed, positions[i])]++;
            counts[1][permutation_position(&by_seed, positions[i])]++;
            counts[2][permutation_index(&by_epoch, positions[i])]++;
            counts[3][permutation_position(&by_epoch, positions[i])]++;
        }
        for (int c = 0; c < 4; c++) {
            double x = chi_square(counts[c], N, PER_CELL);
            ck_assert_msg(x > 783 && x < 1250, "position %lu, count %d: chi-square %.1f, expected about 999",
                          (unsigned long)positions[i], c, x);
        }
    }
}
END_TEST

/* How one order of n samples resembles another. For two random orders: the rank correlation (Spearman) has mean 0
 * and variance 1 / (n - 1); fixed points and kept neighbours are each Poisson-distributed with mean 1. */
struct likeness {
    double correlation; /* of a sample's positions in the two orders */
    uint32_t fixed;     /* samples at the same position in both */
    uint32_t kept;      /* samples whose successor is the same in both */
};

static struct likeness compare_orders(const uint32_t *a, const uint32_t *b, uint32_t *b_position, uint32_t n)
{
    struct likeness like = {0, 0, 0};
    double sum = 0, mean = (n - 1) / 2.0;
    for (uint32_t i = 0; i < n; i++)
        b_position[b[i]] = i;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t in_b = b_position[a[i]];
        sum += (i - mean) * (in_b - mean);
        like.fixed += in_b == i;
        like.kept += i + 1 < n && in_b + 1 < n && b[in_b + 1] == a[i + 1];
    }
    like.correlation = sum / (n * ((double)n * n - 1) / 12);
    return like;
}

static void write_order(uint32_t *order, uint32_t n, uint64_t seed, uint64_t epoch)
{
    struct permutation p;
    permutation_init(&p, n, seed, epoch);
    for (uint32_t i = 0; i < n; i++)
        order[i] = (uint32_t)permutation_index(&p, i);
}

/* PAIRS pairs of orders. A single correlation r must have r^2 (n - 1) < 36 (6 sigma); r^2 (n - 1) is chi-square of one
 * degree over pairs, so its mean is 1 with sigma sqrt(2 / PAIRS) = 0.1; the counts sum to PAIRS with sigma
 * sqrt(PAIRS) = 14. Orders that are too alike and ones that avoid each other both fail. */
enum { PAIRS = 200, MAX_ORDER = 5000 };

static void check_unlike(uint32_t n, const char *what, void (*write_pair)(int, uint32_t, uint32_t *, uint32_t *))
{
    static uint32_t a[MAX_ORDER], b[MAX_ORDER], b_position[MAX_ORDER];
    double squares = 0, correlations = 0;
    uint32_t fixed = 0, kept = 0;
    for (int i = 0; i < PAIRS; i++) {
        write_pair(i, n, a, b);
        struct likeness like = compare_orders(a, b, b_position, n);
        double square = like.correlation * like.correlation * (n - 1);
        ck_assert_msg(square < 36, "%s, n %u, pair %d: rank correlation %.4f", what, n, i, like.correlation);
        squares += square;
        correlations += like.correlation;
        fixed += like.fixed;
        kept += like.kept;
    }
    double sum_square = correlations * correlations * (n - 1) / PAIRS; /* chi-square of one degree as well */
    ck_assert_msg(squares / PAIRS > 0.5 && squares / PAIRS < 1.5, "%s, n %u: correlations vary %.2f times as expected",
                  what, n, squares / PAIRS);
    ck_assert_msg(sum_square < 36, "%s, n %u: mean rank correlation %.5f", what, n, correlations / PAIRS);
    ck_assert_msg(fixed > 130 && fixed < 270, "%s, n %u: %u fixed points, expected about 200", what, n, fixed);
    ck_assert_msg(kept > 130 && kept < 270, "%s, n %u: %u neighbours kept, expected about 200", what, n, kept);
}

static void write_epochs(int i, uint32_t n, uint32_t *a, uint32_t *b)
{
    write_order(a, n, 1234, (uint64_t)i);
    write_order(b, n, 1234, (uint64_t)i + 1);
}

static void write_seeds(int i, uint32_t n, uint32_t *a, uint32_t *b)
{
    write_order(a, n, (uint64_t)i, 5);
    write_order(b, n, (uint64_t)i + 1, 5);
}

static void write_far_epochs(int i, uint32_t n, uint32_t *a, uint32_t *b) /* only the upper half of the word differs */
{
    write_order(a, n, 7, (uint64_t)i);
    write_order(b, n, 7, (uint64_t)i + ((uint64_t)1 << 32));
}

static void write_dataset(int i, uint32_t n, uint32_t *a, uint32_t *b) /* the dataset's own order, and a shuffled one */
{
    for (uint32_t j = 0; j < n; j++)
        a[j] = j;
    write_order(b, n, (uint64_t)i, 0);
}

START_TEST(orders_are_unlike)
{
    static const uint32_t sizes[] = {500, 1024, 5000}; /* below, at and far above a power of two */
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        check_unlike(sizes[i], "epochs e, e + 1", write_epochs);
        check_unlike(sizes[i], "seeds s, s + 1", write_seeds);
        check_unlike(sizes[i], "epochs e, e + 2^32", write_far_epochs);
        check_unlike(sizes[i], "the dataset's order", write_dataset);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("permutation");
    TCase *exact = tcase_create("exact");
    tcase_add_test(exact, philox_known_answers);
    tcase_add_test(exact, pinned_orders);
    tcase_add_test(exact, bijective_for_every_small_n);
    tcase_add_test(exact, invertible_for_large_n);
    suite_add_tcase(suite, exact);
    TCase *statistics = tcase_create("statistics");
    tcase_add_test(statistics, all_orders_equally_often);
    tcase_add_test(statistics, each_position_is_uniform);
    tcase_add_test(statistics, orders_are_unlike);
    suite_add_tcase(suite, statistics);

    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failures = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failures != 0;
}
