/* machine.h - what this process may use of the machine, containers and affinity considered. */
#ifndef FEEDD_MACHINE_H
#define FEEDD_MACHINE_H

#include <stdint.h>

/* CPUs: the affinity mask, cut to the CPU quota of the process' cgroup (v2, and v1's cpu controller), rounded up.
 * At least 1. */
uint32_t machine_cpu_count(void);

/* Bytes of memory still to be had: MemAvailable, cut to what the cgroups above leave (v2 memory.max and v1). */
uint64_t machine_memory_available(void);

/* The same from files below `root` in place of "/", for tests. */
uint32_t machine_cpu_quota_at(const char *root);        /* 0 = no quota */
uint64_t machine_memory_available_at(const char *root); /* UINT64_MAX = not known */

#endif
