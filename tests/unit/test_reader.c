/* test_reader.c - what all dataset formats share: files are opened within their dataset's folder and nowhere else, and
 * a selection is the samples that it says.
 *
 * Happy path: a case makes a tree of files and links, or a dataset of so many samples, and says what has to come out.
 * The oracle of a fraction is a second implementation of the rule in philox.h's own terms.
 * Threads: one, but for one case that swaps links on another. */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "tree.h"

#include "error.h"
#include "file.h"
#include "philox.h"
#include "reader.h"

/* ---- files ---- */

static const struct {
    const char *path; /* below "root" */
    int status;
    const char *text; /* what is in it, or of the message */
} openings[] = {
    {"plain", 0, "plain"},
    {"a/b/deep", 0, "deep"},
    {"a/../plain", 0, "plain"},
    {"./a//b/./deep", 0, "deep"},
    {"link", 0, "plain"},
    {"a/up", 0, "plain"},
    {"folder/deep", 0, "deep"},
    {"chain", 0, "plain"},
    {"absolute", 0, "plain"},
    {"absolute-folder/b/deep", 0, "deep"},
    {"out-and-back", 0, "plain"}, /* leaves and comes back: where it ends is what counts */
    {"none", FEEDD_E_NOT_FOUND, "can't be opened: No such file or directory"},
    {"plain/x", FEEDD_E_NOT_FOUND, "can't be opened: Not a directory"},
    {"broken", FEEDD_E_NOT_FOUND, "can't be opened: No such file or directory"},
    {"self", FEEDD_E_NOT_FOUND, "can't be opened: Too many levels of symbolic links"},
    {"", FEEDD_E_NOT_FOUND, "can't be opened: No such file or directory"},
    {"../secret", FEEDD_E_ACCESS, "leads out of the dataset's folder; allowed: files and links within it"},
    {"a/../../secret", FEEDD_E_ACCESS, "leads out of"},
    {"../root-2/secret", FEEDD_E_ACCESS, "leads out of"}, /* its name begins as the root's does */
    {"secret", FEEDD_E_ACCESS, "leads out of"},
    {"absolute-secret", FEEDD_E_ACCESS, "leads out of"},
    {"absolute-2", FEEDD_E_ACCESS, "leads out of"},
    {"absolute-else", FEEDD_E_ACCESS, "leads out of"}, /* its path is as long as the root's */
    {"outside/secret", FEEDD_E_ACCESS, "leads out of"},
    {"passwd", FEEDD_E_ACCESS, "leads out of"},
    {"/etc/passwd", FEEDD_E_ACCESS, "leads out of"},
    {"zero", FEEDD_E_ACCESS, "leads out of"},
    {"a", FEEDD_E_CORRUPT, "is a directory; allowed: a regular file"},
    {".", FEEDD_E_CORRUPT, "is a directory; allowed: a regular file"},
    {"fifo", FEEDD_E_CORRUPT, "is a device or pipe; allowed: a regular file"},
    {"fifo-link", FEEDD_E_CORRUPT, "is a device or pipe; allowed: a regular file"},
    {"socket", FEEDD_E_CORRUPT, "is a socket; allowed: a regular file"},
};

static void put_openings(void)
{
    put_file(at("secret"), "secret");
    put_file(at("root-2/secret"), "secret");
    put_file(at("root/plain"), "plain");
    put_file(at("root/a/b/deep"), "deep");
    put_link(at("root/link"), "plain");
    put_link(at("root/a/up"), "../plain");
    put_link(at("root/folder"), "a/b");
    put_link(at("root/chain"), "a/up");
    put_link(at("root/absolute"), at("root/plain"));
    put_link(at("root/absolute-folder"), at("root/a"));
    put_link(at("root/out-and-back"), "../root/plain");
    put_link(at("root/broken"), "nowhere");
    put_link(at("root/self"), "self");
    put_link(at("root/secret"), "../secret");
    put_link(at("root/absolute-secret"), at("secret"));
    put_link(at("root/absolute-2"), at("root-2/secret"));
    put_file(at("else/secret"), "secret");
    put_link(at("root/absolute-else"), at("else/secret"));
    put_link(at("root/outside"), "..");
    put_link(at("root/passwd"), "/etc/passwd");
    put_link(at("root/zero"), "/dev/zero");
    ck_assert_int_eq(mkfifo(at("root/fifo"), 0600), 0);
    put_link(at("root/fifo-link"), "fifo");
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    ck_assert_int_lt(snprintf(address.sun_path, sizeof(address.sun_path), "%s", at("root/socket")),
                     (int)sizeof(address.sun_path));
    ck_assert_int_eq(bind(fd, (const struct sockaddr *)&address, sizeof(address)), 0);
    close(fd);
}

/* @return NULL, or the path that doesn't do what it should */
static const char *try_openings(int root_fd)
{
    static char wrong[1200];
    for (size_t i = 0; i < sizeof(openings) / sizeof(openings[0]); i++) {
        struct feedd_error err = {.message = ""};
        int fd = -77, rc;
        uint64_t size = 77;
        char text[32] = "";
        rc = reader_open_file(root_fd, openings[i].path, &fd, &size, &err);
        bool good = rc == openings[i].status;
        if (rc == 0) {
            good = good && size == strlen(openings[i].text) && read(fd, text, sizeof(text) - 1) == (ssize_t)size &&
                   strcmp(text, openings[i].text) == 0 && (fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0;
            close(fd);
        } else { /* outputs untouched; the reason alone: who reads knows the path */
            good = good && fd == -77 && size == 77 && err.status == rc &&
                   strncmp(err.message, openings[i].text, strlen(openings[i].text)) == 0 &&
                   reader_open_file(root_fd, openings[i].path, &fd, &size, NULL) == rc;
        }
        if (!good) {
            snprintf(wrong, sizeof(wrong), "'%s': %d %s%s", openings[i].path, rc, text, err.message);
            return wrong;
        }
    }
    return NULL;
}

START_TEST(files)
{
    put_openings();
    const int flags[] = {O_PATH | O_DIRECTORY, O_RDONLY | O_DIRECTORY};
    for (int i = 0; i < 2; i++) {
        int root_fd = open(at("root"), flags[i] | O_CLOEXEC);
        ck_assert_int_ge(root_fd, 0);
        const char *wrong = try_openings(root_fd);
        ck_assert_msg(wrong == NULL, "%s", wrong);
        close(root_fd);
    }
}
END_TEST

/* Makes openat2() fail in this process from now on, as old kernels and sandboxes do. */
static bool forbid_openat2(int error)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat2, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog program = {sizeof(code) / sizeof(code[0]), code};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

START_TEST(without_openat2)
{
    static const int errors[] = {ENOSYS, EPERM};
    put_openings();
    for (int i = 0; i < 2; i++) {
        int root_fd = open(at("root"), O_PATH | O_DIRECTORY | O_CLOEXEC), status;
        fflush(NULL);
        pid_t child = fork(); /* a filter can't be taken away again */
        if (child == 0) {
            if (!forbid_openat2(errors[i]))
                _exit(77);
            const char *wrong = try_openings(root_fd);
            if (wrong != NULL)
                fprintf(stderr, "without openat2(): %s\n", wrong);
            _exit(wrong != NULL);
        }
        ck_assert_int_eq(waitpid(child, &status, 0), child);
        close(root_fd);
        if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
            printf("without_openat2: skipped: no seccomp filter can be installed here\n");
            return;
        }
        ck_assert_int_eq(status, 0);
    }
}
END_TEST

START_TEST(unreadable)
{
    put_file(at("root/closed"), "x");
    put_file(at("root/folder/x"), "x");
    ck_assert_int_eq(chmod(at("root/closed"), 0), 0);
    ck_assert_int_eq(chmod(at("root/folder"), 0), 0);
    int root_fd = open(at("root"), O_PATH | O_DIRECTORY | O_CLOEXEC), fd = -77;
    uint64_t size;
    struct feedd_error err;
    const uid_t user = geteuid();
    if (user == 0 && seteuid(65534) != 0) {
        printf("unreadable: skipped: root reads everything, and can't become nobody\n");
    } else {
        const int closed = reader_open_file(root_fd, "closed", &fd, &size, &err);
        const int below = reader_open_file(root_fd, "folder/x", &fd, &size, NULL);
        ck_assert_int_eq(seteuid(user), 0);
        ck_assert_int_eq(closed, FEEDD_E_ACCESS);
        ck_assert_str_eq(err.message, "can't be opened: Permission denied");
        ck_assert_int_eq(below, FEEDD_E_ACCESS);
    }
    ck_assert_int_eq(chmod(at("root/folder"), 0755), 0);
    close(root_fd);
}
END_TEST

static _Atomic bool stop;

/* A link that is now one thing and now another. */
static void *swap_links(void *targets)
{
    for (unsigned i = 0; !atomic_load(&stop); i++) {
        if (symlink(((const char **)targets)[i % 2], at("root/new")) == 0)
            rename(at("root/new"), at("root/moving"));
    }
    return NULL;
}

/* Whoever swaps links while they are followed: what is outside never comes out. */
START_TEST(races)
{
    put_file(at("root/plain"), "plain");
    put_file(at("secret"), "secret");
    put_link(at("root/moving"), "plain");
    int root_fd = open(at("root"), O_PATH | O_DIRECTORY | O_CLOEXEC), opened = 0, refused = 0;
    char inside[PATH_MAX], outside[PATH_MAX];
    strcpy(inside, at("root/plain"));
    strcpy(outside, at("secret"));
    char *targets[] = {inside, outside};
    pthread_t thread;
    atomic_store(&stop, false);
    ck_assert_int_eq(pthread_create(&thread, NULL, swap_links, targets), 0);
    for (int i = 0; i < 20000 && (i < 2000 || opened == 0 || refused == 0); i++) {
        int fd;
        uint64_t size;
        char text[8] = "";
        int rc = reader_open_file(root_fd, "moving", &fd, &size, NULL);
        refused += rc == FEEDD_E_ACCESS;
        if (rc != 0)
            continue;
        opened++;
        if (read(fd, text, sizeof(text)) != 5 || memcmp(text, "plain", 5) != 0)
            ck_abort_msg("'%.8s' was read", text);
        close(fd);
    }
    atomic_store(&stop, true);
    pthread_join(thread, NULL);
    ck_assert_int_gt(opened, 0);
    ck_assert_int_gt(refused, 0);
    close(root_fd);
}
END_TEST

/* ---- selections ---- */

#define ANY (1ull << 40) /* a memory_max that doesn't matter */

static uint64_t *select_share(uint64_t n, double begin, double end, uint64_t *count)
{
    const struct reader reader = {.sample_count = n};
    const struct reader_selection selection = {.fraction_begin = begin, .fraction_end = end};
    uint64_t *indices = NULL;
    struct feedd_error err = {.message = ""};
    int rc = reader_select(&reader, &selection, ANY, &indices, count, &err);
    ck_assert_msg(rc == 0, "%s", err.message);
    return indices;
}

/* A shuffle as the rule has it, from its other end: place of each sample. Rounds of Philox with 128-bit products by
 * halves, so that nothing is shared with the code under test but the generator. */
static void shuffle(uint64_t n, uint64_t *place)
{
    for (uint64_t i = 0; i < n; i++)
        place[i] = i;
    for (uint64_t left = n; left > 1; left--) {
        const uint32_t key[2] = {0xFEEDD5E1, 0x1EC7ED00}, counter[4] = {(uint32_t)left, (uint32_t)(left >> 32), 0, 0};
        uint32_t r[4];
        philox4x32(key, counter, r);
        const uint64_t low = r[0] * left, high = r[1] * left; /* left < 2^32 here */
        const uint64_t j = (high + (low >> 32)) >> 32;
        uint64_t kept = place[left - 1];
        place[left - 1] = place[j];
        place[j] = kept;
    }
}

START_TEST(fractions)
{
    static const uint64_t sizes[] = {1, 2, 3, 10, 1000, 60000};
    static const double cuts[] = {0, 0.1, 0.29, 0.5, 0.999, 1};
    uint64_t *place = malloc(60000 * sizeof(*place));
    for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
        const uint64_t n = sizes[s];
        shuffle(n, place);
        for (int a = 0; a < 6; a++)
            for (int b = a + 1; b < 6; b++) {
                /* To the nearest: by integers, in thousandths. */
                const uint64_t from = (uint64_t)(cuts[a] * 1000 + 0.5), to = (uint64_t)(cuts[b] * 1000 + 0.5);
                const uint64_t begin = (n * from + 500) / 1000, end = (n * to + 500) / 1000;
                if (begin == end || (from == 0 && to == 1000))
                    continue;
                uint64_t count = 77, used = 0, *indices = select_share(n, cuts[a], cuts[b], &count);
                ck_assert_uint_eq(count, end - begin);
                ck_assert_ptr_nonnull(indices);
                for (uint64_t i = 0; i < n; i++)
                    if (place[i] >= begin && place[i] < end && (used >= count || indices[used++] != i))
                        ck_abort_msg("%g to %g of %llu: sample %llu is missing", cuts[a], cuts[b],
                                     (unsigned long long)n, (unsigned long long)i);
                ck_assert_uint_eq(used, count);
                free(indices);
            }
    }
    free(place);
}
END_TEST

/* Splits that touch share nothing and leave nothing out, and each class of an ordered dataset has its part. */
START_TEST(splits)
{
    const uint64_t n = 50000;
    static const double cuts[] = {0, 0.7, 0.7 + 0.2, 1};
    uint8_t *seen = calloc(n, 1);
    for (int s = 0; s < 3; s++) {
        uint64_t count, *indices = select_share(n, cuts[s], cuts[s + 1], &count), classes[10] = {0};
        for (uint64_t i = 0; i < count; i++) {
            ck_assert_uint_lt(indices[i], n);
            seen[indices[i]]++;
            classes[indices[i] / 5000]++;
        }
        for (int c = 0; c < 10; c++) { /* hypergeometric: 5 standard deviations */
            const double share = (double)count / (double)n, mean = 5000 * share;
            const double variance = 5000 * share * (1 - share) * 0.9;
            const double off = (double)classes[c] - mean;
            ck_assert_double_lt(off * off, 25 * variance);
        }
        free(indices);
    }
    for (uint64_t i = 0; i < n; i++)
        ck_assert_uint_eq(seen[i], 1);
    free(seen);
}
END_TEST

/* What users have published results on: it never changes. */
START_TEST(fraction_kept)
{
    static const uint64_t due[] = {4, 6, 9, 18, 54, 59, 67, 71, 94, 96};
    uint64_t count, *indices = select_share(100, 0, 0.1, &count);
    ck_assert_uint_eq(count, 10);
    for (int i = 0; i < 10; i++)
        ck_assert_uint_eq(indices[i], due[i]);
    free(indices);
}
END_TEST

START_TEST(whole)
{
    static const struct reader_selection all[] = {{.name = NULL},
                                                  {.name = (char *)(uintptr_t) "all", .fraction_end = 1}};
    const struct reader reader = {.sample_count = 1ull << 40}; /* nothing is allocated for it */
    for (int i = 0; i < 2; i++) {
        uint64_t count = 0, *indices = &count;
        ck_assert_int_eq(reader_select(&reader, &all[i], 0, &indices, &count, NULL), 0);
        ck_assert_ptr_null(indices);
        ck_assert_uint_eq(count, 1ull << 40);
    }
}
END_TEST

static void refuse_select(uint64_t n, const struct reader_selection *selection, uint64_t memory_max, int status,
                          const char *message)
{
    const struct reader reader = {.sample_count = n};
    uint64_t untouched = 77, *indices = &untouched, count = 77;
    struct feedd_error err = {.message = ""};
    ck_assert_int_eq(reader_select(&reader, selection, memory_max, &indices, &count, &err), status);
    ck_assert_str_eq(err.message, message);
    ck_assert_int_eq(err.status, status);
    ck_assert_ptr_eq(indices, &untouched);
    ck_assert_uint_eq(count, 77);
    ck_assert_int_eq(reader_select(&reader, selection, memory_max, &indices, &count, NULL), status);
}

START_TEST(fraction_errors)
{
    struct reader_selection subset = {.fraction_end = 0.01};
    struct reader_selection split = {.name = (char *)(uintptr_t) "val", .fraction_begin = 0.1, .fraction_end = 0.2};
    refuse_select(10, &subset, ANY, FEEDD_E_ARGUMENT,
                  "subset: 0 to 0.01 of 10 samples are none; allowed: at least one "
                  "sample");
    refuse_select(2, &split, ANY, FEEDD_E_ARGUMENT,
                  "split val: 0.1 to 0.2 of 2 samples are none; allowed: at least one "
                  "sample");
    refuse_select(100, &split, 799, FEEDD_E_LIMIT,
                  "a share of 100 samples needs 8 bytes of memory for each; allowed: 799 bytes "
                  "(daemon.dataset_memory_max)");
    refuse_select(1ull << 62, &split, UINT64_MAX, FEEDD_E_LIMIT,
                  "a share of 4611686018427387904 samples needs 8 bytes of memory for each; allowed: "
                  "18446744073709551615 bytes (daemon.dataset_memory_max)");
    const struct reader reader = {.sample_count = 100};
    uint64_t *indices, count;
    ck_assert_int_eq(reader_select(&reader, &split, 800, &indices, &count, NULL), 0);
    free(indices);
}
END_TEST

START_TEST(index_files)
{
    static const struct {
        const char *text;
        uint64_t count, indices[6];
    } good[] = {
        {"0\n", 1, {0}},
        {"99", 1, {99}},
        {"5\n4\n3\n", 3, {5, 4, 3}},
        {"7\n7\n", 2, {7, 7}}, /* as often as they stand there */
        {"# a comment\n\n 12 \n\t13\t\n14\r\n  # more\n15\n\n", 4, {12, 13, 14, 15}},
        {"007\n", 1, {7}},
    };
    static const struct {
        const char *text;
        size_t size; /* 0: a string's */
        const char *message;
    } bad[] = {
        {"100\n", 0, ":1: '100' is not an index; allowed: 0 to 99"},
        {"1\n#\n\n-1\n", 0, ":4: '-1' is not an index; allowed: 0 to 99"},
        {"1 2\n", 0, ":1: '1 2' is not an index; allowed: 0 to 99"},
        {"1,2\n", 0, ":1: '1,2' is not an index; allowed: 0 to 99"},
        {"1.0\n", 0, ":1: '1.0' is not an index; allowed: 0 to 99"},
        {"1 # x\n", 0, ":1: '1 # x' is not an index; allowed: 0 to 99"},
        {"18446744073709551617\n", 0, ":1: '18446744073709551617' is not an index; allowed: 0 to 99"},
        {"99999999999999999999999999999999\n", 0,
         ":1: '99999999999999999999999999999999' is not an index; allowed: 0 to 99"},
        {"1\n2\0\n", 4, ":2: '2' is not an index; allowed: 0 to 99"},
        {"1\nx\ty\n", 0, ":2: 'x?y' is not an index; allowed: 0 to 99"},
    };
    char path[PATH_MAX], due[PATH_MAX + 200];
    strcpy(path, at("indices"));
    const struct reader_selection selection = {.file = path};
    const struct reader reader = {.sample_count = 100};
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        uint64_t *indices = NULL, count = 0;
        put_file(path, good[i].text);
        ck_assert_int_eq(reader_select(&reader, &selection, ANY, &indices, &count, NULL), 0);
        ck_assert_uint_eq(count, good[i].count);
        for (uint64_t k = 0; k < count; k++)
            ck_assert_uint_eq(indices[k], good[i].indices[k]);
        free(indices);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        put_bytes(path, bad[i].text, bad[i].size > 0 ? bad[i].size : strlen(bad[i].text));
        snprintf(due, sizeof(due), "%s%s", path, bad[i].message);
        refuse_select(100, &selection, ANY, FEEDD_E_CORRUPT, due);
    }
    put_file(path, "94\n95\n"); /* as many digits as the last one has */
    snprintf(due, sizeof(due), "%s:2: '95' is not an index; allowed: 0 to 94", path);
    refuse_select(95, &selection, ANY, FEEDD_E_CORRUPT, due);
    put_file(path, "\n# 1\n");
    snprintf(due, sizeof(due), "%s: no indices; allowed: one a line, at least one", path);
    refuse_select(100, &selection, ANY, FEEDD_E_ARGUMENT, due);
    put_file(path, "");
    refuse_select(100, &selection, ANY, FEEDD_E_ARGUMENT, due);
    put_file(path, "1\n2\n3\n"); /* 6 bytes, and 4 lines, the last one empty */
    snprintf(due, sizeof(due),
             "%s: 4 lines need 8 bytes of memory for each; allowed: 31 bytes beside the text "
             "(daemon.dataset_memory_max)",
             path);
    refuse_select(100, &selection, 37, FEEDD_E_LIMIT, due);
    snprintf(due, sizeof(due), "%s: 6 bytes; allowed: at most 5 (daemon.dataset_memory_max)", path);
    refuse_select(100, &selection, 5, FEEDD_E_LIMIT, due);
    uint64_t *indices, count;
    ck_assert_int_eq(reader_select(&reader, &selection, 38, &indices, &count, NULL), 0);
    free(indices);
    ck_assert_int_eq(unlink(path), 0);
    snprintf(due, sizeof(due), "%s: can't be opened: No such file or directory", path);
    refuse_select(100, &selection, ANY, FEEDD_E_NOT_FOUND, due);

    /* Whatever stands in it: indices or an error. */
    uint64_t state = 3;
    for (int i = 0; i < 3000; i++) {
        char text[64];
        size_t size = random_next(&state) % sizeof(text);
        for (size_t b = 0; b < size; b++)
            text[b] = i % 2 ? (char)random_next(&state) : "0123456789\n\n# \r"[random_next(&state) % 15];
        put_bytes(path, text, size);
        if (reader_select(&reader, &selection, 4096, &indices, &count, NULL) != 0)
            continue;
        ck_assert_uint_gt(count, 0);
        for (uint64_t k = 0; k < count; k++)
            ck_assert_uint_lt(indices[k], 100);
        free(indices);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("reader");
    TCase *tcase = tcase_create("reader");
    tcase_add_checked_fixture(tcase, tree_setup, tree_teardown);
    tcase_set_timeout(tcase, 120);
    tcase_add_test(tcase, files);
    tcase_add_test(tcase, without_openat2);
    tcase_add_test(tcase, unreadable);
    tcase_add_test(tcase, races);
    tcase_add_test(tcase, fractions);
    tcase_add_test(tcase, splits);
    tcase_add_test(tcase, fraction_kept);
    tcase_add_test(tcase, whole);
    tcase_add_test(tcase, fraction_errors);
    tcase_add_test(tcase, index_files);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    const int failures = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failures != 0;
}
