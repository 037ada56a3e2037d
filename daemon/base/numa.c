/* numa.c - see numa.h: sysfs (sysfs-devices-node, sysfs-bus-pci of the kernel's ABI documents) and system calls.
 *
 * Happy path: read a small file of sysfs, parse it, make one call.
 * What can fail: a file isn't there or is odd: then nothing is known of the node; the calls, for reasons of the kernel.
 * Not libnuma: it binds threads to CPUs that taskset took from the process, writes its errors to stderr, and can't be
 * shown another machine than this one, for a test. What is left of it are two system calls and a list of numbers.
 * Threads: any. */
#include "numa.h"

#include <errno.h>
#include <limits.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CPUS_MAX  8192 /* of Linux on any machine that has GPUs: CONFIG_NR_CPUS */
#define NODES_MAX 1024 /* CONFIG_NODES_SHIFT is at most 10 */
#define LONG_BITS (CHAR_BIT * sizeof(unsigned long))

/* A set of CPUs or nodes. */
struct set {
    unsigned long bits[CPUS_MAX / LONG_BITS];
};

static void set_add(struct set *set, unsigned long number)
{
    set->bits[number / LONG_BITS] |= 1ul << number % LONG_BITS;
}

static bool set_has(const struct set *set, unsigned long number)
{
    return set->bits[number / LONG_BITS] >> number % LONG_BITS & 1;
}

static uint32_t set_count(const struct set *set)
{
    int count = 0;
    for (size_t i = 0; i < sizeof(set->bits) / sizeof(set->bits[0]); i++)
        count += __builtin_popcountl(set->bits[i]);
    return (uint32_t)count;
}

static bool read_line(const char *path, char *text, size_t size)
{
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return false;
    bool read = fgets(text, (int)size, file) != NULL;
    fclose(file);
    return read;
}

/* A file with a list of numbers as the kernel writes them: "0-3,8,10-11"; an empty line is an empty set.
 * @return false: no such file, or something else in it */
static bool read_set(const char *path, struct set *set)
{
    char text[16384];
    if (!read_line(path, text, sizeof(text)))
        return false;
    memset(set, 0, sizeof(*set));
    char *at = text;
    while (*at != '\n' && *at != '\0') {
        char *end;
        unsigned long first = strtoul(at, &end, 10), last = first;
        if (end == at)
            return false;
        if (*end == '-') {
            at = end + 1;
            last = strtoul(at, &end, 10);
            if (end == at)
                return false;
        }
        if (last < first || last >= CPUS_MAX || (*end != ',' && *end != '\n' && *end != '\0'))
            return false;
        for (unsigned long i = first; i <= last; i++)
            set_add(set, i);
        at = *end == ',' ? end + 1 : end;
    }
    return true;
}

/* The nodes that have CPUs. */
static bool read_nodes(const char *root, struct set *nodes)
{
    char path[PATH_MAX];
    return snprintf(path, sizeof(path), "%s/sys/devices/system/node/has_cpu", root) < (int)sizeof(path) &&
           read_set(path, nodes);
}

uint32_t numa_node_count_at(const char *root)
{
    struct set nodes;
    uint32_t count = read_nodes(root, &nodes) ? set_count(&nodes) : 1;
    return count == 0 ? 1 : count;
}

int numa_node_of_pci_at(const char *root, const char *bus_id)
{
    char path[PATH_MAX], text[32], rest;
    unsigned domain, bus, device, function;
    struct set nodes;
    /* parsed and written anew: sysfs has four digits of the domain and lower case, NVML eight and upper case */
    if (sscanf(bus_id, "%8x:%2x:%2x.%1x%c", &domain, &bus, &device, &function, &rest) != 4 ||
        snprintf(path, sizeof(path), "%s/sys/bus/pci/devices/%04x:%02x:%02x.%x/numa_node", root, domain, bus, device,
                 function) >= (int)sizeof(path) ||
        !read_line(path, text, sizeof(text)) || !read_nodes(root, &nodes))
        return -1;
    char *end;
    long node = strtol(text, &end, 10);
    if (end == text || (*end != '\n' && *end != '\0') || node < 0 || node >= NODES_MAX)
        return -1;
    return set_count(&nodes) > 1 && set_has(&nodes, (unsigned long)node) ? (int)node : -1;
}

/* CPUs of the node that the main thread may run on. */
static bool usable_cpus(const char *root, int node, struct set *cpus)
{
    char path[PATH_MAX];
    struct set allowed = {{0}};
    if (node < 0 || snprintf(path, sizeof(path), "%s/sys/devices/system/node/node%d/cpulist", root, node) >= PATH_MAX ||
        !read_set(path, cpus) || sched_getaffinity(getpid(), sizeof(allowed), (cpu_set_t *)&allowed) != 0)
        return false;
    for (size_t i = 0; i < sizeof(cpus->bits) / sizeof(cpus->bits[0]); i++)
        cpus->bits[i] &= allowed.bits[i];
    return true;
}

uint32_t numa_cpu_count_at(const char *root, int node)
{
    struct set cpus;
    return usable_cpus(root, node, &cpus) ? set_count(&cpus) : 0;
}

int numa_prefer(void *memory, size_t bytes, int node)
{
    unsigned long nodes[NODES_MAX / LONG_BITS] = {0};
    if (node < 0)
        return 0;
    if (node >= NODES_MAX)
        return -EINVAL;
    nodes[(unsigned)node / LONG_BITS] = 1ul << (unsigned)node % LONG_BITS;
    /* + 1: the kernel takes one off what mbind(2) says is the number of bits */
    return syscall(SYS_mbind, memory, bytes, MPOL_PREFERRED, nodes, NODES_MAX + 1ul, 0u) == 0 ? 0 : -errno;
}

int numa_run_on_at(const char *root, int node)
{
    struct set cpus;
    if (node < 0)
        return 0;
    if (!usable_cpus(root, node, &cpus) || set_count(&cpus) == 0)
        return -ENOENT;
    return sched_setaffinity(0, sizeof(cpus), (cpu_set_t *)&cpus) == 0 ? 0 : -errno;
}

uint32_t numa_node_count(void)
{
    return numa_node_count_at("");
}

int numa_node_of_pci(const char *bus_id)
{
    return numa_node_of_pci_at("", bus_id);
}

uint32_t numa_cpu_count(int node)
{
    return numa_cpu_count_at("", node);
}

int numa_run_on(int node)
{
    return numa_run_on_at("", node);
}
