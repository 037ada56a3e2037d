/* private.c - see private.h. The folder decides who can reach the socket; listener.c's lock keeps it to one daemon. */
#include "private.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "error.h"

/* Makes a folder that is this user's alone, or sees that it is. */
static int own_folder(const char *folder, struct feedd_error *err)
{
    struct stat st;
    if (mkdir(folder, 0700) != 0 && errno != EEXIST)
        return error_set(err, FEEDD_E_IO, "making %s: %s", folder, strerror(errno));
    if (lstat(folder, &st) != 0 || !S_ISDIR(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 0022) != 0)
        return error_set(err, FEEDD_E_ACCESS, "%s has to be a folder of user %u that nobody else can write", folder,
                         (unsigned)geteuid());
    return 0;
}

int private_socket(const char *config_path, char path[PRIVATE_PATH_MAX], struct feedd_error *err)
{
    char real[PATH_MAX] = "", folder[PATH_MAX];
    if (config_path != NULL && realpath(config_path, real) == NULL)
        return error_set(err, FEEDD_E_NOT_FOUND, "%s: %s", config_path, strerror(errno));
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    int length = runtime != NULL && runtime[0] == '/' && access(runtime, W_OK) == 0
                     ? snprintf(folder, sizeof(folder), "%s/feedd", runtime)
                     : snprintf(folder, sizeof(folder), "/tmp/feedd-%u", (unsigned)geteuid());
    if (length >= PRIVATE_PATH_MAX - 22) /* "/", 16 digits, ".sock" */
        return error_set(err, FEEDD_E_ARGUMENT, "XDG_RUNTIME_DIR is too long for a socket's path: %s", runtime);
    int status = own_folder(folder, err);
    if (status == 0)
        snprintf(path, PRIVATE_PATH_MAX, "%.80s/%016llx.sock", folder,
                 (unsigned long long)XXH3_64bits(real, strlen(real)));
    return status;
}
