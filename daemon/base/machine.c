/* machine.c - reading affinity, /proc/meminfo and the cgroup files (Linux: cgroups(7), cgroup-v2.rst).
 *
 * A limit may stand at any level above the process, so every ancestor is read and the least counts. Files that are
 * missing or odd count as "no limit": an unusual machine must not keep the daemon from starting. */
#include "machine.h"

#include <limits.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool read_text(const char *root, const char *path, char *text, size_t size)
{
    char full[PATH_MAX];
    if (snprintf(full, sizeof(full), "%s%s", root, path) >= (int)sizeof(full))
        return false;
    FILE *file = fopen(full, "re");
    if (file == NULL)
        return false;
    size_t length = fread(text, 1, size - 1, file);
    fclose(file);
    text[length] = '\0';
    return length > 0;
}

/* The path of the process' cgroup: of v2 ("0::/a/b"), or of the v1 hierarchy that has `controller`. */
static bool cgroup_path(const char *root, const char *controller, char *path, size_t size)
{
    char text[8192];
    if (!read_text(root, "/proc/self/cgroup", text, sizeof(text)))
        return false;
    char *rest = text, *line;
    while ((line = strsep(&rest, "\n")) != NULL) {
        char *controllers = strchr(line, ':');
        char *name = controllers != NULL ? strchr(controllers + 1, ':') : NULL;
        if (name == NULL)
            continue;
        *name++ = '\0';
        controllers++;
        bool found = controller == NULL && *controllers == '\0';
        char *item;
        while (!found && controller != NULL && (item = strsep(&controllers, ",")) != NULL)
            found = strcmp(item, controller) == 0;
        if (found)
            return snprintf(path, size, "%s", strcmp(name, "/") == 0 ? "" : name) < (int)size;
    }
    return false;
}

/* Calls visit(text of `file`) for the process' cgroup and each of its ancestors below `mount`. */
static void each_level(const char *root, const char *controller, const char *mount, const char *file,
                       void (*visit)(const char *root, const char *folder, const char *text, void *arg), void *arg)
{
    char group[PATH_MAX / 2], folder[PATH_MAX], path[PATH_MAX + 64], text[256];
    if (!cgroup_path(root, controller, group, sizeof(group)))
        return;
    for (;;) {
        snprintf(folder, sizeof(folder), "%s%s", mount, group);
        snprintf(path, sizeof(path), "%s/%s", folder, file);
        if (read_text(root, path, text, sizeof(text)))
            visit(root, folder, text, arg);
        char *slash = strrchr(group, '/');
        if (slash == NULL)
            return;
        *slash = '\0';
    }
}

static void least_quota(uint32_t *least, long long quota, long long period)
{
    if (quota <= 0 || period <= 0)
        return;
    long long cpus = quota / period + (quota % period != 0);
    if (cpus < UINT32_MAX && (*least == 0 || (uint32_t)cpus < *least))
        *least = (uint32_t)cpus;
}

static void visit_cpu_v2(const char *root, const char *folder, const char *text, void *arg)
{
    (void)root, (void)folder;
    long long quota, period;
    if (sscanf(text, "%lld %lld", &quota, &period) == 2) /* "max 100000" has no number first */
        least_quota(arg, quota, period);
}

static void visit_cpu_v1(const char *root, const char *folder, const char *text, void *arg)
{
    char path[PATH_MAX + 64], period[64];
    snprintf(path, sizeof(path), "%s/cpu.cfs_period_us", folder);
    if (read_text(root, path, period, sizeof(period)))
        least_quota(arg, atoll(text), atoll(period));
}

uint32_t machine_cpu_quota_at(const char *root)
{
    uint32_t least = 0;
    each_level(root, NULL, "/sys/fs/cgroup", "cpu.max", visit_cpu_v2, &least);
    each_level(root, "cpu", "/sys/fs/cgroup/cpu", "cpu.cfs_quota_us", visit_cpu_v1, &least);
    return least;
}

uint32_t machine_cpu_count(void)
{
    uint32_t count = 0;
    cpu_set_t *set = CPU_ALLOC(65536);
    size_t size = CPU_ALLOC_SIZE(65536);
    if (set != NULL && sched_getaffinity(0, size, set) == 0)
        count = (uint32_t)CPU_COUNT_S(size, set);
    CPU_FREE(set);
    uint32_t quota = machine_cpu_quota_at("");
    if (quota != 0 && quota < count)
        count = quota;
    return count == 0 ? 1 : count;
}

struct memory_files {
    const char *used; /* the file beside the limit that says what is used */
    uint64_t available;
};

static void visit_memory(const char *root, const char *folder, const char *text, void *arg)
{
    struct memory_files *files = arg;
    char path[PATH_MAX + 64], used[64];
    unsigned long long limit;
    if (sscanf(text, "%llu", &limit) != 1) /* "max" */
        return;
    snprintf(path, sizeof(path), "%s/%s", folder, files->used);
    unsigned long long taken = read_text(root, path, used, sizeof(used)) ? strtoull(used, NULL, 10) : 0;
    uint64_t left = limit > taken ? limit - taken : 0;
    if (left < files->available)
        files->available = left;
}

uint64_t machine_memory_available_at(const char *root)
{
    struct memory_files v2 = {"memory.current", UINT64_MAX}, v1 = {"memory.usage_in_bytes", UINT64_MAX};
    each_level(root, NULL, "/sys/fs/cgroup", "memory.max", visit_memory, &v2);
    each_level(root, "memory", "/sys/fs/cgroup/memory", "memory.limit_in_bytes", visit_memory, &v1);
    uint64_t available = v2.available < v1.available ? v2.available : v1.available;

    char text[8192];
    const char *line = read_text(root, "/proc/meminfo", text, sizeof(text)) ? strstr(text, "MemAvailable:") : NULL;
    unsigned long long kib;
    if (line != NULL && sscanf(line, "MemAvailable: %llu kB", &kib) == 1 && kib < (1ull << 50) && kib << 10 < available)
        available = kib << 10;
    return available;
}

uint64_t machine_memory_available(void)
{
    return machine_memory_available_at("");
}
