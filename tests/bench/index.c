/* index.c - how long an image folder takes to open: listed, and from the cache.
 *
 *   bench_index [--make FILES CLASSES] ROOT CACHE
 *
 * --make first fills ROOT, which must not be there yet, with that many empty files in that many class folders, named as
 * ImageNet's are. The cache should be empty: the first open lists and stores, the second and third read it back.
 * Folders that changed within the last two seconds aren't cached, so that it waits for that long after making them.
 * Cold figures need the kernel's caches dropped before each run (vm.drop_caches). */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "clock.h"
#include "reader.h"

static int fail(const char *path)
{
    fprintf(stderr, "bench_index: %s: %s\n", path, strerror(errno));
    return 1;
}

static int make_tree(const char *root, unsigned long files, unsigned long classes)
{
    char path[4096];
    if (mkdir(root, 0755) != 0)
        return fail(root);
    uint64_t start_ns = clock_ns();
    for (unsigned long c = 0; c < classes; c++) {
        snprintf(path, sizeof(path), "%s/n%08lu", root, 1440764 + c * 9973);
        if (mkdir(path, 0755) != 0)
            return fail(path);
        int folder = open(path, O_PATH | O_DIRECTORY);
        for (unsigned long i = c; i < files; i += classes) {
            char name[64];
            snprintf(name, sizeof(name), "n%08lu_%lu.JPEG", 1440764 + c * 9973, i * 7919 % files);
            int fd = openat(folder, name, O_WRONLY | O_CREAT | O_EXCL, 0644);
            if (fd < 0)
                return fail(name);
            close(fd);
        }
        close(folder);
    }
    printf("made %lu files in %lu folders in %.1f s\n", files, classes, (double)(clock_ns() - start_ns) / 1e9);
    sleep(3);
    return 0;
}

int main(int argc, char **argv)
{
    int made = 0;
    if (argc == 6 && strcmp(argv[1], "--make") == 0)
        made = 3;
    else if (argc != 3) {
        fputs("usage: bench_index [--make FILES CLASSES] ROOT CACHE\n", stderr);
        return 2;
    }
    char *root = argv[made + 1];
    if (made && make_tree(root, strtoul(argv[2], NULL, 10), strtoul(argv[3], NULL, 10)) != 0)
        return 1;
    const struct reader_config config = {.name = root, .ops = &reader_folder, .root = root};
    const struct reader_limits limits = {.memory_max = UINT64_MAX / 2, .cache_dir = argv[made + 2]};
    for (int i = 1; i <= 3; i++) {
        struct reader *reader;
        struct feedd_error err;
        uint64_t start_ns = clock_ns();
        if (reader_folder.open(&config, &limits, &reader, &err) != 0) {
            fprintf(stderr, "bench_index: %s\n", err.message);
            return 1;
        }
        printf("open %d: %.3f s, %llu samples, %u classes, %.1f bytes a sample, fingerprint %016llx\n", i,
               (double)(clock_ns() - start_ns) / 1e9, (unsigned long long)reader->sample_count, reader->class_count,
               (double)reader->memory_bytes / (double)reader->sample_count, (unsigned long long)reader->fingerprint);
        reader->ops->close(reader);
    }
    return 0;
}
