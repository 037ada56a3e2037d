/* test_index.c - the cache of image folders' lists: it gives what listing would give, or nothing.
 *
 * Happy path: a case makes a tree whose folders are older than a tick, opens it twice, and changes something. Whether
 * the second list came from the cache shows in one thing that the cache can't know: a file that was overwritten in
 * place, whose size is in the fingerprint.
 * Threads: one. */
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <xxhash.h>

#include "tree.h"

#include "error.h"
#include "reader.h"

#define ANY      (1ull << 40) /* a memory_max that doesn't matter */
#define CHECKSUM 8            /* where it stands in a cache file: of all that follows it */
#define VERSION  16           /* likewise, 8 bytes */

static char root[600], cache_dir[600];

static int old_folder(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    const struct timespec times[2] = {{.tv_sec = 1000000000}, {.tv_sec = 1000000000, .tv_nsec = 123456789}};
    (void)st, (void)ftw;
    return type == FTW_DP ? utimensat(AT_FDCWD, path, times, AT_SYMLINK_NOFOLLOW) : 0;
}

/* Folders that were made just now are not cached: these look as if they were from 2001. */
static void make_old(void)
{
    ck_assert_int_eq(nftw(root, old_folder, 16, FTW_DEPTH | FTW_PHYS), 0);
}

static void setup(void)
{
    tree_setup();
    snprintf(root, sizeof(root), "%s", at("root"));
    snprintf(cache_dir, sizeof(cache_dir), "%s", at("new/cache")); /* neither is there yet */
    put_file(at("root/b/1.jpg"), "one");
    put_file(at("root/b/2.jpg"), "two");
    put_file(at("root/a/c/d/3.jpg"), "three");
    put_file(at("root/a/4.png"), "four");
    put_link(at("root/a/5.png"), "4.png");
    put_link(at("root/b/link"), "../a/c");
    make_old();
}

static int try_open_at(const char *path, uint64_t memory_max, struct reader **out, struct feedd_error *err)
{
    static struct reader_config config; /* outlives the reader */
    const struct reader_limits limits = {.memory_max = memory_max, .cache_dir = cache_dir};
    config = (struct reader_config){.name = root, .ops = &reader_folder, .root = (char *)(uintptr_t)path};
    return reader_folder.open(&config, &limits, out, err);
}

static struct reader *must_open(void)
{
    struct reader *reader = NULL;
    struct feedd_error err = {.message = ""};
    int rc = try_open_at(root, ANY, &reader, &err);
    ck_assert_msg(rc == 0, "%s", err.message);
    return reader;
}

/* What a reader tells: everything but the pixels. Owned by the caller. */
static char *describe(const struct reader *reader)
{
    char *text = malloc(100000);
    size_t used =
        (size_t)sprintf(text, "%llu samples, %u classes, %llu bytes\n", (unsigned long long)reader->sample_count,
                        reader->class_count, (unsigned long long)reader->memory_bytes);
    for (uint32_t c = 0; c < reader->class_count; c++)
        used += (size_t)sprintf(text + used, "%s\n", reader->class_names[c]);
    for (uint64_t i = 0; i < reader->sample_count; i++) {
        struct reader_sample sample = {.label = -77};
        char path[2 * PATH_MAX];
        reader->ops->path(reader, i, path, sizeof(path));
        int rc = reader->ops->read(reader, i, &sample, NULL);
        if (rc == 0) {
            close(sample.fd);
            ck_assert(sample.label >= 0 && sample.label < (int64_t)reader->class_count);
        }
        used += (size_t)sprintf(text + used, "%s %lld %llu %d\n", path, (long long)sample.label,
                                (unsigned long long)sample.size, rc);
        ck_assert_uint_lt(used, 90000);
    }
    return text;
}

static char *describe_now(void)
{
    struct reader *reader = must_open();
    char *text = describe(reader);
    reader->ops->close(reader);
    return text;
}

static uint64_t fingerprint(void)
{
    struct reader *reader = must_open();
    const uint64_t value = reader->fingerprint;
    reader->ops->close(reader);
    return value;
}

static char cache_file[1000]; /* the first one that find_cache() met */
static int cache_files;

static int note_cache(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st, (void)ftw;
    if (type != FTW_D && cache_files++ == 0)
        snprintf(cache_file, sizeof(cache_file), "%s", path);
    return 0;
}

/* @return how many files are in the cache */
static int find_cache(void)
{
    cache_files = 0;
    nftw(cache_dir, note_cache, 16, FTW_PHYS);
    return cache_files;
}

/* Overwrites 4.png in place, with a size that it never had. @return whether the list still is the old one */
static bool is_from_cache(uint64_t was)
{
    int fd = open(at("root/a/4.png"), O_WRONLY | O_CLOEXEC);
    static int size = 12345;
    ck_assert_int_eq(ftruncate(fd, size++), 0);
    const bool kept = fingerprint() == was;
    ck_assert_int_eq(ftruncate(fd, 4), 0);
    close(fd);
    return kept;
}

/* ---- hits ---- */

START_TEST(second_open)
{
    struct reader *first = must_open();
    ck_assert_int_eq(find_cache(), 1);
    struct stat st;
    ck_assert_int_eq(lstat(cache_file, &st), 0);
    ck_assert(S_ISREG(st.st_mode) && (st.st_mode & 07777) == 0600);
    ck_assert_int_eq(lstat(cache_dir, &st), 0);
    ck_assert(S_ISDIR(st.st_mode) && (st.st_mode & 07777) == 0700);
    ck_assert_int_eq(lstat(at("new"), &st), 0);
    ck_assert_uint_eq(st.st_mode & 07777, 0700);

    struct reader *second = must_open();
    ck_assert_uint_eq(first->fingerprint, second->fingerprint);
    ck_assert_ptr_ne(first->class_names, second->class_names);
    char *a = describe(first), *b = describe(second);
    ck_assert_str_eq(a, b);
    ck_assert_uint_eq(second->sample_count, 6);
    const uint64_t was = first->fingerprint;
    first->ops->close(first);
    second->ops->close(second);
    free(a);
    free(b);
    ck_assert(is_from_cache(was));
    ck_assert_int_eq(unlink(cache_file), 0);
    ck_assert(!is_from_cache(was)); /* the test can tell */
    ck_assert_int_eq(find_cache(), 1);
}
END_TEST

/* Two roots, one cache. And a root that was moved is another one. */
START_TEST(roots)
{
    const uint64_t was = fingerprint();
    put_file(at("other/x/1.jpg"), "x");
    struct reader *reader = NULL;
    ck_assert_int_eq(try_open_at(at("other"), ANY, &reader, NULL), 0);
    ck_assert_uint_eq(reader->sample_count, 1);
    reader->ops->close(reader);
    ck_assert_int_eq(find_cache(), 1); /* "other" is too young */
    ck_assert(is_from_cache(was));
    ck_assert_int_eq(rename(root, at("moved")), 0);
    ck_assert_int_eq(rename(at("other"), root), 0);
    ck_assert_uint_ne(fingerprint(), was);
    strcpy(root, at("moved"));
    ck_assert_uint_eq(fingerprint(), was);
    ck_assert_int_eq(find_cache(), 2);
    char link[600];
    strcpy(link, at("link"));
    put_link(link, root);
    ck_assert_int_eq(try_open_at(link, ANY, &reader, NULL), 0);
    ck_assert_uint_eq(reader->fingerprint, was);
    char path[2 * PATH_MAX];
    reader->ops->path(reader, 0, path, sizeof(path)); /* as the configuration calls it */
    ck_assert_int_eq(strncmp(path, link, strlen(link)), 0);
    reader->ops->close(reader);
    ck_assert_int_eq(find_cache(), 2);
}
END_TEST

/* ---- changes ---- */

static void add_deep(void)
{
    put_file(at("root/a/c/d/0.jpg"), "new");
}

static void add_text(void) /* not a sample, but who can know */
{
    put_file(at("root/b/notes.txt"), "new");
}

static void remove_deep(void)
{
    ck_assert_int_eq(unlink(at("root/b/1.jpg")), 0);
}

static void rename_file(void)
{
    ck_assert_int_eq(rename(at("root/b/1.jpg"), at("root/b/3.jpg")), 0);
}

static void replace_file(void) /* as rsync and editors do */
{
    put_file(at("new.jpg"), "quite another one");
    ck_assert_int_eq(rename(at("new.jpg"), at("root/a/c/d/3.jpg")), 0);
}

static void add_folder(void)
{
    put_file(at("root/a/c/e/1.jpg"), "new");
}

static void add_class(void)
{
    put_file(at("root/c/1.jpg"), "new");
}

static void remove_folder(void)
{
    ck_assert_int_eq(unlink(at("root/b/link")), 0);
    tree_remove(at("root/a/c"));
}

static void rename_folder(void)
{
    ck_assert_int_eq(rename(at("root/b"), at("root/z")), 0);
}

static void move_link(void)
{
    ck_assert_int_eq(unlink(at("root/b/link")), 0);
    put_link(at("root/b/link"), "../a/c/d");
}

static void swap_folders(void) /* another folder of that name, no younger than the first */
{
    ck_assert_int_eq(rename(at("root/a/c"), at("kept")), 0);
    put_file(at("root/a/c/d/x.jpg"), "new");
    make_old();
}

static void hide_change(void) /* mtime is as it was, as after rsync -a or tar */
{
    add_deep();
    make_old();
}

START_TEST(changes)
{
    static void (*const change[])(void) = {add_deep,      add_text,   remove_deep,  rename_file,
                                           replace_file,  add_folder, add_class,    remove_folder,
                                           rename_folder, move_link,  swap_folders, hide_change};
    for (size_t i = 0; i < sizeof(change) / sizeof(change[0]); i++) {
        char *before = describe_now(), *again = describe_now();
        ck_assert_str_eq(before, again);
        change[i]();
        char *after = describe_now();
        find_cache();
        unlink(cache_file);
        char *due = describe_now(); /* listed, whatever the cache says */
        ck_assert_msg(strcmp(after, due) == 0, "change %zu: %s", i, after);
        ck_assert_msg((strcmp(after, before) == 0) == (change[i] == add_text), "change %zu", i);
        free(before);
        free(again);
        free(after);
        free(due);
        tree_teardown();
        setup();
    }
}
END_TEST

/* A folder that may change within the tick of its clock in which it was listed. */
START_TEST(young)
{
    put_file(at("root/b/3.jpg"), "new");
    uint64_t was = fingerprint();
    ck_assert_int_eq(find_cache(), 0);
    ck_assert(!is_from_cache(was));
    const struct timespec future[2] = {{.tv_sec = 10000000000}, {.tv_sec = 10000000000}};
    make_old();
    ck_assert_int_eq(utimensat(AT_FDCWD, at("root/a/c"), future, 0), 0); /* a clock that is wrong */
    fingerprint();
    ck_assert_int_eq(find_cache(), 0);
    const struct timespec past[2] = {{.tv_sec = -1000}, {.tv_sec = -1000}};
    make_old();
    ck_assert_int_eq(utimensat(AT_FDCWD, at("root/a/c"), past, 0), 0);
    fingerprint();
    find_cache(); /* either way */
    make_old();
    was = fingerprint();
    ck_assert_int_eq(find_cache(), 1);
    ck_assert(is_from_cache(was));
}
END_TEST

/* ---- caches that can't be used ---- */

static int quiet_begin(void)
{
    fflush(NULL);
    int kept = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3), null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    dup2(null, STDERR_FILENO); /* warnings are expected */
    close(null);
    return kept;
}

static void quiet_end(int kept)
{
    dup2(kept, STDERR_FILENO);
    close(kept);
}

START_TEST(unusable)
{
    char *due = describe_now();
    char kept[600];
    strcpy(kept, cache_dir);
    put_file(at("file"), "x");
    put_link(at("circle"), "circle");
    const char *const places[] = {"file", "file/cache", "circle/cache"};
    int stderr_fd = quiet_begin();
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        snprintf(cache_dir, sizeof(cache_dir), "%s", at("%s", places[i]));
        char *text = describe_now();
        ck_assert_str_eq(text, due);
        free(text);
    }
    memset(cache_dir, 'x', sizeof(cache_dir) - 1); /* no name may be that long */
    memcpy(cache_dir, at("%s", ""), strlen(at("%s", "")));
    char *text = describe_now();
    ck_assert_str_eq(text, due);
    free(text);

    snprintf(cache_dir, sizeof(cache_dir), "%s", at("read-only"));
    put_folder(cache_dir);
    ck_assert_int_eq(chmod(cache_dir, 0555), 0);
    const uid_t user = geteuid();
    if (user == 0 && seteuid(65534) != 0) {
        printf("unusable: skipped: root writes everywhere, and can't become nobody\n");
    } else {
        text = describe_now();
        ck_assert_int_eq(seteuid(user), 0);
        ck_assert_str_eq(text, due);
        ck_assert_int_eq(find_cache(), 0);
        free(text);
    }
    ck_assert_int_eq(chmod(cache_dir, 0755), 0);
    quiet_end(stderr_fd);
    strcpy(cache_dir, kept);
    free(due);
}
END_TEST

/* What stands where the cache file should, and isn't ours or isn't a file. */
START_TEST(strangers)
{
    uint64_t was = fingerprint();
    ck_assert_int_eq(find_cache(), 1);
    if (geteuid() == 0) {
        ck_assert_int_eq(chown(cache_file, 65534, (gid_t)-1), 0);
        ck_assert(!is_from_cache(was));
    } else {
        printf("strangers: skipped: only root can give a file to another user\n");
    }
    was = fingerprint();
    ck_assert(is_from_cache(was));
    for (mode_t mode = 0620; mode >= 0602; mode -= 0016) {
        ck_assert_int_eq(chmod(cache_file, mode), 0);
        ck_assert(!is_from_cache(was));
        was = fingerprint();
        ck_assert(is_from_cache(was));
    }
    char moved[1010];
    snprintf(moved, sizeof(moved), "%s.moved", cache_file);
    ck_assert_int_eq(rename(cache_file, moved), 0);
    put_link(cache_file, moved);
    ck_assert(!is_from_cache(was));
    struct stat st;
    ck_assert(lstat(cache_file, &st) == 0 && S_ISREG(st.st_mode)); /* replaced, and not followed */
    ck_assert_int_eq(unlink(cache_file), 0);
    ck_assert_int_eq(mkfifo(cache_file, 0600), 0);
    ck_assert(!is_from_cache(was));
    ck_assert_int_eq(unlink(cache_file), 0);
    ck_assert_int_eq(mkdir(cache_file, 0700), 0);
    int stderr_fd = quiet_begin();
    ck_assert(!is_from_cache(was));
    quiet_end(stderr_fd);
    ck_assert_int_eq(rmdir(cache_file), 0);
    ck_assert_int_eq(find_cache(), 1); /* moved, and no temporary file is left */
}
END_TEST

START_TEST(limit)
{
    struct reader *reader = must_open(), *none = NULL;
    const uint64_t bytes = reader->memory_bytes, was = reader->fingerprint;
    reader->ops->close(reader);
    ck_assert_int_eq(try_open_at(root, bytes - 1, &none, NULL), FEEDD_E_LIMIT);
    ck_assert_ptr_null(none);
    ck_assert_int_eq(try_open_at(root, 0, &none, NULL), FEEDD_E_LIMIT);
    ck_assert_int_eq(try_open_at(root, bytes, &reader, NULL), 0); /* listing would need some more meanwhile */
    ck_assert_uint_eq(reader->memory_bytes, bytes);
    ck_assert_uint_eq(reader->fingerprint, was);
    reader->ops->close(reader);
}
END_TEST

/* ---- damage ---- */

static uint8_t cached[4096], damaged[8192];
static size_t cached_bytes;

static void keep_cache(void)
{
    ck_assert_int_eq(find_cache(), 1);
    FILE *f = fopen(cache_file, "rb");
    ck_assert_ptr_nonnull(f);
    cached_bytes = fread(cached, 1, sizeof(cached), f);
    ck_assert(cached_bytes > 200 && cached_bytes < sizeof(cached));
    fclose(f);
}

/* The cache file is as it was kept: it has been written again. */
static bool is_restored(void)
{
    static uint8_t now[sizeof(damaged)];
    FILE *f = fopen(cache_file, "rb");
    ck_assert_ptr_nonnull(f);
    const size_t bytes = fread(now, 1, sizeof(now), f);
    fclose(f);
    return bytes == cached_bytes && memcmp(now, cached, bytes) == 0;
}

static void put_cache(const void *bytes, size_t size)
{
    put_bytes(cache_file, bytes, size);
    ck_assert_int_eq(chmod(cache_file, 0600), 0);
}

/* However it is cut or changed: the right list, and a right cache again. */
START_TEST(damage)
{
    char *due = describe_now();
    const uint64_t was = fingerprint();
    keep_cache();
    for (size_t i = 0; i < 2 * cached_bytes + 50; i++) {
        size_t size = cached_bytes;
        memcpy(damaged, cached, cached_bytes);
        memset(damaged + cached_bytes, 0, 100);
        if (i < cached_bytes)
            size = i;
        else if (i < 2 * cached_bytes)
            damaged[i - cached_bytes] ^= (uint8_t)(1 << i % 8);
        else
            size += 1 + i - 2 * cached_bytes;
        put_cache(damaged, size);
        struct reader *reader = must_open();
        char *text = describe(reader);
        ck_assert_msg(strcmp(text, due) == 0 && reader->fingerprint == was, "damage %zu: %s", i, text);
        reader->ops->close(reader);
        free(text);
        ck_assert_msg(is_restored(), "damage %zu", i);
    }
    free(due);
}
END_TEST

/* With a checksum that fits: whatever numbers it holds, nothing is read out of bounds, and nothing outside of the root
 * is opened. */
START_TEST(forged)
{
    uint64_t state = 17, unchanged = 0;
    put_file(at("root/b/secret-name.jpg"), "x");
    put_file(at("secret"), "secret");
    make_old();
    const uint64_t was = fingerprint();
    keep_cache();
    for (size_t i = 0; i < 2 * cached_bytes + 2000; i++) {
        size_t size = cached_bytes;
        memcpy(damaged, cached, cached_bytes);
        if (i < 2 * cached_bytes) { /* every byte after the checksum, a little and a lot */
            if (i / 2 < CHECKSUM + 8)
                continue;
            damaged[i / 2] = i % 2 ? (uint8_t)(damaged[i / 2] + 1) : (uint8_t)~damaged[i / 2];
        } else {
            for (uint32_t n = 1 + random_next(&state) % 3; n > 0; n--) {
                size_t where = CHECKSUM + 8 + random_next(&state) % (cached_bytes - CHECKSUM - 8);
                if (random_next(&state) % 2) { /* a whole number */
                    where &= ~(size_t)7;
                    uint64_t value = (uint64_t)random_next(&state) << 32 | random_next(&state);
                    value >>= random_next(&state) % 64;
                    memcpy(damaged + where, &value, where + 8 <= cached_bytes ? 8 : cached_bytes - where);
                } else {
                    damaged[where] = (uint8_t)random_next(&state);
                }
            }
            if (i % 16 == 0)
                size = CHECKSUM + 8 + random_next(&state) % (cached_bytes - CHECKSUM - 8);
        }
        const uint64_t sum = XXH3_64bits(damaged + CHECKSUM + 8, size - CHECKSUM - 8);
        memcpy(damaged + CHECKSUM, &sum, sizeof(sum));
        put_cache(damaged, size);
        struct reader *reader = must_open();
        free(describe(reader));
        unchanged += reader->fingerprint == was;
        reader->ops->close(reader);
        if (i / 2 >= VERSION && i / 2 < VERSION + 8)
            ck_assert(is_restored());
    }
    ck_assert_uint_gt(unchanged, cached_bytes);

    /* A name that leads elsewhere, of as many bytes. */
    memcpy(damaged, cached, cached_bytes);
    uint8_t *name = memmem(damaged, cached_bytes, "secret-name.jpg", 15);
    ck_assert_ptr_nonnull(name);
    memcpy(name, "../../secret\0\0\0", 15);
    const uint64_t sum = XXH3_64bits(damaged + CHECKSUM + 8, cached_bytes - CHECKSUM - 8);
    memcpy(damaged + CHECKSUM, &sum, sizeof(sum));
    put_cache(damaged, cached_bytes);
    struct reader *reader = must_open();
    uint64_t refused = 0;
    for (uint64_t i = 0; i < reader->sample_count; i++) {
        struct reader_sample sample;
        int rc = reader->ops->read(reader, i, &sample, NULL);
        refused += rc == FEEDD_E_ACCESS;
        if (rc == 0)
            close(sample.fd);
    }
    ck_assert_uint_eq(refused, 1);
    reader->ops->close(reader);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("index");
    TCase *tcase = tcase_create("index");
    tcase_add_checked_fixture(tcase, setup, tree_teardown);
    tcase_set_timeout(tcase, 120);
    tcase_add_test(tcase, second_open);
    tcase_add_test(tcase, roots);
    tcase_add_test(tcase, changes);
    tcase_add_test(tcase, young);
    tcase_add_test(tcase, unusable);
    tcase_add_test(tcase, strangers);
    tcase_add_test(tcase, limit);
    tcase_add_test(tcase, damage);
    tcase_add_test(tcase, forged);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    const int failures = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failures != 0;
}
