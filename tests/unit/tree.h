/* tree.h - a folder of files that a test makes, changes and takes away again. For one test program each. */
#ifndef FEEDD_TREE_H
#define FEEDD_TREE_H

#include <check.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char tree[512]; /* its real path */

static int tree_descriptors; /* open when a case began */

static int tree_descriptors_open(void)
{
    int count = 0;
    for (int fd = 0; fd < 256; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

static int tree_remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

static inline void tree_remove(const char *path)
{
    ck_assert_int_eq(nftw(path, tree_remove_entry, 16, FTW_DEPTH | FTW_PHYS), 0);
}

/* For tcase_add_checked_fixture(). */
static void tree_setup(void)
{
    const char *tmp = getenv("TMPDIR");
    char made[400];
    snprintf(made, sizeof(made), "%s/feedd-tree-XXXXXX", tmp != NULL && tmp[0] == '/' ? tmp : "/tmp");
    ck_assert_ptr_nonnull(mkdtemp(made));
    ck_assert_int_eq(chmod(made, 0755), 0);
    char *real = realpath(made, NULL);
    ck_assert_ptr_nonnull(real);
    snprintf(tree, sizeof(tree), "%s", real);
    free(real);
    tree_descriptors = tree_descriptors_open();
}

static void tree_teardown(void)
{
    tree_remove(tree);
    ck_assert_int_eq(tree_descriptors_open(), tree_descriptors); /* whatever a case does, it leaves none open */
}

/* The path of something in the tree; the last eight results stay. */
__attribute__((format(printf, 1, 2))) static const char *at(const char *format, ...)
{
    static char paths[8][2 * PATH_MAX];
    static int number;
    char *path = paths[number++ % 8];
    int used = snprintf(path, PATH_MAX, "%s/", tree);
    va_list args;
    va_start(args, format);
    vsnprintf(path + used, PATH_MAX, format, args);
    va_end(args);
    return path;
}

/* A folder, and those above it. */
static inline void put_folder(const char *path)
{
    char part[2 * PATH_MAX];
    snprintf(part, sizeof(part), "%s", path);
    for (char *slash = part + strlen(tree); (slash = strchr(slash + 1, '/')) != NULL; *slash = '/') {
        *slash = '\0';
        mkdir(part, 0755);
    }
    ck_assert(mkdir(part, 0755) == 0 || access(part, F_OK) == 0);
}

/* A file of these bytes, and the folders above it. */
static inline void put_bytes(const char *path, const void *bytes, size_t size)
{
    char folder[2 * PATH_MAX];
    snprintf(folder, sizeof(folder), "%s", path);
    *strrchr(folder, '/') = '\0';
    put_folder(folder);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644); /* with O_TRUNC ext4 would wait for the disk */
    ck_assert_msg(fd >= 0, "%s", path);
    ck_assert_int_eq(write(fd, bytes, size), (ssize_t)size);
    ck_assert_int_eq(ftruncate(fd, (off_t)size), 0);
    ck_assert_int_eq(close(fd), 0);
}

static inline void put_file(const char *path, const char *text)
{
    put_bytes(path, text, strlen(text));
}

static inline void put_link(const char *path, const char *target)
{
    ck_assert_msg(symlink(target, path) == 0, "%s", path);
}

static inline uint32_t random_next(uint64_t *state) /* xorshift64*, Vigna 2016 */
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return (uint32_t)((*state * 2685821657736338717u) >> 32);
}

#endif
