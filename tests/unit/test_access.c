/* test_access.c - who may do something. */
#include <check.h>

#include "access.h"

#define COUNT(array) ((uint32_t)(sizeof(array) / sizeof((array)[0])))

static uid_t users[] = {0, 1000, 4294967294};
static gid_t groups[] = {5, 100};

START_TEST(rules)
{
    static const struct {
        uid_t uid;
        gid_t gids[3];
        uint32_t gid_count;
        bool by_users, by_groups;
    } cases[] = {
        {0, {0}, 1, true, false},
        {1000, {1000, 5}, 2, true, true},
        {1001, {1001, 4, 100}, 3, false, true},
        {1001, {1001, 4, 100}, 2, false, false}, /* only those that count */
        {1001, {100, 4, 1000}, 3, false, true},
        {5, {0, 1000}, 2, false, false}, /* a user is no group */
        {100, {1000}, 1, false, false},
        {4294967294, {4294967294}, 1, true, false},
        {4294967295, {4294967295}, 1, false, false},
        {1001, {5}, 0, false, false},
    };
    const struct access_rule everybody = {.everybody = true};
    const struct access_rule nobody = {.everybody = false};
    const struct access_rule both = {false, users, COUNT(users), groups, COUNT(groups)};
    const struct access_rule by_users = {.users = users, .user_count = COUNT(users)};
    const struct access_rule by_groups = {.groups = groups, .group_count = COUNT(groups)};
    const struct access_rule listed_and_all = {true, users, COUNT(users), groups, COUNT(groups)};
    for (size_t i = 0; i < COUNT(cases); i++) {
        const uid_t uid = cases[i].uid;
        const gid_t *gids = cases[i].gids;
        const uint32_t count = cases[i].gid_count;
        ck_assert(access_allows(&everybody, uid, gids, count));
        ck_assert(access_allows(&listed_and_all, uid, gids, count));
        ck_assert(!access_allows(&nobody, uid, gids, count));
        ck_assert_int_eq(access_allows(&by_users, uid, gids, count), cases[i].by_users);
        ck_assert_int_eq(access_allows(&by_groups, uid, gids, count), cases[i].by_groups);
        ck_assert_int_eq(access_allows(&both, uid, gids, count), cases[i].by_users || cases[i].by_groups);
    }
    ck_assert(access_allows(&everybody, 7, NULL, 0));
    ck_assert(!access_allows(&both, 7, NULL, 0));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("access");
    TCase *tcase = tcase_create("access");
    tcase_add_test(tcase, rules);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    const int failures = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failures != 0;
}
