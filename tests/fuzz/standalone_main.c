/* standalone_main.c - replays inputs through a fuzz target without libFuzzer: any compiler, any sanitizer.
 *
 * usage: replay_NAME FILE-OR-FOLDER...     a folder's files in the order of their names, its folders too
 * Happy path: each file is read, named on stderr and given to the target once; exit 0.
 * What can fail: the target aborts (the name that was printed last is the input), a path can't be read, or there was
 * nothing to replay: exit 1, so that a lost corpus doesn't pass as a good one.
 * Threads: one, and those of the target. */
#include <fts.h>
#include <sys/stat.h>

#include "fuzz.h"

static int replay(const char *path, size_t bytes)
{
    fprintf(stderr, "%s\n", path);
    FILE *file = fopen(path, "rb");
    uint8_t *data = malloc(bytes + (bytes == 0)); /* exactly: a sanitizer sees the first byte too many */
    int ok = file != NULL && data != NULL && fread(data, 1, bytes, file) == bytes;
    if (ok)
        LLVMFuzzerTestOneInput(data, bytes);
    else
        perror(path);
    free(data);
    if (file != NULL)
        fclose(file);
    return ok ? 0 : -1;
}

static int by_name(const FTSENT **a, const FTSENT **b)
{
    return strcmp((*a)->fts_name, (*b)->fts_name);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: %s FILE-OR-FOLDER...\n", argv[0]);
        return 2;
    }
    FTS *tree = fts_open(argv + 1, FTS_LOGICAL | FTS_NOCHDIR, by_name);
    if (tree == NULL) {
        perror(argv[1]);
        return 1;
    }
    int failed = 0;
    size_t count = 0;
    FTSENT *entry;
    while ((entry = fts_read(tree)) != NULL) {
        if (entry->fts_info == FTS_F) {
            failed |= replay(entry->fts_path, (size_t)entry->fts_statp->st_size);
            count++;
        } else if (entry->fts_info != FTS_D && entry->fts_info != FTS_DP) {
            fprintf(stderr, "%s: %s\n", entry->fts_path,
                    entry->fts_errno != 0 ? strerror(entry->fts_errno) : "neither a file nor a folder");
            failed = 1;
        }
    }
    fts_close(tree);
    fprintf(stderr, "%zu inputs\n", count);
    return failed || count == 0;
}
