/* numa.h - NUMA nodes: which one a PCI device is near, memory that prefers one, threads that stay on one.
 *
 * Everything here only makes things faster: where it fails, memory and threads are where the kernel puts them, and the
 * caller logs it once. Nodes are the kernel's numbers; -1 stands for "any", and then nothing is done.
 * Threads: any. */
#ifndef FEEDD_NUMA_H
#define FEEDD_NUMA_H

#include <stddef.h>
#include <stdint.h>

/* Nodes that have CPUs; at least 1, also where the kernel doesn't tell. */
uint32_t numa_node_count(void);

/* The node that a device on the PCI bus is near.
 * @param bus_id  domain:bus:device.function, hexadecimal in either case, as CUDA and NVML write it
 * @return -1: unknown, or numa_node_count() is 1, or that node has no CPUs */
int numa_node_of_pci(const char *bus_id);

/* CPUs of a node that the process may use: as its main thread may, so cpusets and taskset count. 0: unknown node. */
uint32_t numa_cpu_count(int node);

/* Pages of [memory, memory + bytes) that are not there yet shall come from `node`, and from others when it is full
 * (mbind(2), MPOL_PREFERRED). Of a shared mapping it holds for the file: fallocate() and all who map it obey.
 * @param memory  at the start of a page
 * @return 0; -errno: no effect; -EPERM is what containers say whose seccomp filter has no mbind() */
int numa_prefer(void *memory, size_t bytes, int node);

/* Lets the calling thread run on those CPUs alone that numa_cpu_count() counts. Not for the main thread, whose CPUs are
 * the process' own.
 * @return 0; -errno: no effect; -ENOENT: there are no such CPUs */
int numa_run_on(int node);

/* The same with files below `root` in place of "/", for tests. */
uint32_t numa_node_count_at(const char *root);
int numa_node_of_pci_at(const char *root, const char *bus_id);
uint32_t numa_cpu_count_at(const char *root, int node);
int numa_run_on_at(const char *root, int node);

#endif
