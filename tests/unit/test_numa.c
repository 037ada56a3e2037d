/* test_numa.c - made-up sysfs trees of machines with several nodes; this machine's own nodes, CPUs and policies. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "numa.h"

#define NODES "/sys/devices/system/node"
#define PAGES 4

static char root[64];

static void write_file(const char *path, const char *text)
{
    char full[PATH_MAX];
    snprintf(full, sizeof(full), "%s%s", root, path);
    for (char *slash = strchr(full + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(full, 0700);
        *slash = '/';
    }
    FILE *file = fopen(full, "w");
    ck_assert_ptr_nonnull(file);
    fputs(text, file);
    fclose(file);
}

static void setup(void)
{
    snprintf(root, sizeof(root), "/tmp/feedd-numa-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(root));
}

static void teardown(void)
{
    char command[128];
    snprintf(command, sizeof(command), "rm -rf %s", root);
    ck_assert_int_eq(system(command), 0);
}

START_TEST(test_node_count)
{
    static const struct {
        const char *text;
        uint32_t count;
    } files[] = {
        {"0\n", 1},
        {"0-1\n", 2},
        {"0-3,8,10-11\n", 7},
        {"0-1023\n", 1024},
        {"1,3", 2},
        {"\n", 1},
        {"", 1},
        /* odd ones: nothing is known */
        {"0,many\n", 1},
        {"0-\n", 1},
        {"0-1,3-2\n", 1},
        {"-1\n", 1},
        {"0-8192\n", 1},
        {"0;1", 1},
        {"0-1-2\n", 1},
        {",0-1\n", 1},
        {"0,,1\n", 1},
        {"0-18446744073709551616\n", 1},
    };
    ck_assert_uint_eq(numa_node_count_at(root), 1);
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        write_file(NODES "/has_cpu", files[i].text);
        ck_assert_msg(numa_node_count_at(root) == files[i].count, "'%s': %u", files[i].text, numa_node_count_at(root));
    }
}
END_TEST

START_TEST(test_node_of_pci)
{
    static const struct {
        const char *id;
        int node;
    } devices[] = {
        {"0000:3b:00.0", 1},
        {"0000:3B:00.0", 1},     /* CUDA's */
        {"00000000:3B:00.0", 1}, /* NVML's */
        {"0000:AF:1f.7", 0},
        {"10000:e1:00.0", 3},
        {"0000:18:00.0", -1}, /* the firmware didn't say */
        {"0000:19:00.0", -1}, /* a node of memory alone */
        {"0000:1a:00.0", -1}, /* garbage */
        {"0000:1b:00.0", -1},
        {"0000:1c:00.0", -1}, /* no such device */
        {"", -1},
        {"3b:00.0", -1},
        {"0000:3b:00", -1},
        {"0000:3b:00.0/..", -1},
        {"../0000:3b:00.0", -1},
    };
    write_file(NODES "/has_cpu", "0-1,3\n");
    write_file("/sys/bus/pci/devices/0000:3b:00.0/numa_node", "1\n");
    write_file("/sys/bus/pci/devices/0000:af:1f.7/numa_node", "0\n");
    write_file("/sys/bus/pci/devices/10000:e1:00.0/numa_node", "3\n");
    write_file("/sys/bus/pci/devices/0000:18:00.0/numa_node", "-1\n");
    write_file("/sys/bus/pci/devices/0000:19:00.0/numa_node", "2\n");
    write_file("/sys/bus/pci/devices/0000:1a:00.0/numa_node", "one\n");
    write_file("/sys/bus/pci/devices/0000:1b:00.0/numa_node", "99999999999\n");
    for (size_t i = 0; i < sizeof(devices) / sizeof(devices[0]); i++)
        ck_assert_msg(numa_node_of_pci_at(root, devices[i].id) == devices[i].node, "'%s': %d", devices[i].id,
                      numa_node_of_pci_at(root, devices[i].id));
    write_file(NODES "/has_cpu", "1\n"); /* there is nothing to choose */
    ck_assert_int_eq(numa_node_of_pci_at(root, "0000:3b:00.0"), -1);
    write_file(NODES "/has_cpu", "?\n");
    ck_assert_int_eq(numa_node_of_pci_at(root, "0000:3b:00.0"), -1);
}
END_TEST

/* The first CPUs that the process may use. @return how many, at most 2 */
static int first_cpus(int cpus[2])
{
    cpu_set_t set;
    int count = 0;
    ck_assert_int_eq(sched_getaffinity(0, sizeof(set), &set), 0);
    for (int cpu = 0; cpu < CPU_SETSIZE && count < 2; cpu++)
        if (CPU_ISSET(cpu, &set))
            cpus[count++] = cpu;
    return count;
}

static void write_cpus(int node, int cpu)
{
    char path[64], text[64];
    snprintf(path, sizeof(path), NODES "/node%d/cpulist", node);
    snprintf(text, sizeof(text), "%d,4000-4095,8191\n", cpu); /* and many that aren't there */
    write_file(path, text);
}

struct run {
    int node, rc;
    cpu_set_t before, after;
    struct run *then; /* run after it on the same thread */
};

static void *run_on(void *arg)
{
    struct run *run = arg;
    ck_assert_int_eq(sched_getaffinity(0, sizeof(run->before), &run->before), 0);
    run->rc = numa_run_on_at(root, run->node);
    ck_assert_int_eq(sched_getaffinity(0, sizeof(run->after), &run->after), 0);
    return run->then != NULL ? run_on(run->then) : NULL;
}

static void run_in_thread(struct run *run)
{
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, run_on, run), 0);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
}

static bool is_just(const cpu_set_t *set, int cpu)
{
    return CPU_COUNT(set) == 1 && CPU_ISSET(cpu, set);
}

START_TEST(test_run_on)
{
    int cpus[2];
    cpu_set_t all, now;
    ck_assert_int_eq(sched_getaffinity(0, sizeof(all), &all), 0);
    if (first_cpus(cpus) < 2) {
        printf("test_numa: test_run_on: skipped: the process may use one CPU only\n");
        return;
    }
    write_cpus(0, cpus[0]);
    write_cpus(1, cpus[1]);
    write_file(NODES "/node2/cpulist", "4000-4095\n");
    write_file(NODES "/node3/cpulist", "\n");
    write_file(NODES "/node4/cpulist", "0-8191\n");
    ck_assert_uint_eq(numa_cpu_count_at(root, 0), 1);
    ck_assert_uint_eq(numa_cpu_count_at(root, 2), 0);
    ck_assert_uint_eq(numa_cpu_count_at(root, 3), 0);
    ck_assert_uint_eq(numa_cpu_count_at(root, 4), (uint32_t)CPU_COUNT(&all));
    ck_assert_uint_eq(numa_cpu_count_at(root, 5), 0);
    ck_assert_uint_eq(numa_cpu_count_at(root, -1), 0);

    struct run second = {.node = 1}, first = {.node = 0, .then = &second}; /* from one node to another */
    run_in_thread(&first);
    ck_assert_int_eq(first.rc, 0);
    ck_assert(CPU_EQUAL(&first.before, &all) && is_just(&first.after, cpus[0]));
    ck_assert_int_eq(second.rc, 0);
    ck_assert(is_just(&second.after, cpus[1]));

    static const int nothing[] = {2, 3, 5, INT_MAX, -1};
    for (size_t i = 0; i < sizeof(nothing) / sizeof(nothing[0]); i++) {
        struct run run = {.node = nothing[i]};
        run_in_thread(&run);
        ck_assert_int_eq(run.rc, nothing[i] < 0 ? 0 : -ENOENT);
        ck_assert(CPU_EQUAL(&run.after, &all));
    }

    /* As taskset does. */
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpus[0], &one);
    ck_assert_int_eq(sched_setaffinity(0, sizeof(one), &one), 0);
    ck_assert_uint_eq(numa_cpu_count_at(root, 4), 1);
    ck_assert_uint_eq(numa_cpu_count_at(root, 1), 0);
    struct run whole = {.node = 4}, other = {.node = 1, .then = &whole};
    run_in_thread(&other);
    ck_assert_int_eq(sched_setaffinity(0, sizeof(all), &all), 0);
    ck_assert_int_eq(other.rc, -ENOENT);
    ck_assert(is_just(&other.after, cpus[0]));
    ck_assert_int_eq(whole.rc, 0);
    ck_assert(is_just(&whole.after, cpus[0]));
    ck_assert_int_eq(sched_getaffinity(0, sizeof(now), &now), 0);
    ck_assert(CPU_EQUAL(&now, &all));
}
END_TEST

/* Every CPU is of one node. */
START_TEST(test_this_machine)
{
    glob_t nodes;
    if (glob(NODES "/node[0-9]*", 0, NULL, &nodes) != 0) {
        ck_assert_uint_eq(numa_node_count(), 1);
        printf("test_numa: test_this_machine: skipped: the kernel shows no nodes\n");
        return;
    }
    uint32_t cpus = 0, with_cpus = 0;
    cpu_set_t all;
    ck_assert_int_eq(sched_getaffinity(0, sizeof(all), &all), 0);
    for (size_t i = 0; i < nodes.gl_pathc; i++) {
        int node = atoi(strrchr(nodes.gl_pathv[i], '/') + strlen("/node"));
        char path[PATH_MAX];
        glob_t links = {0};
        snprintf(path, sizeof(path), "%s/cpu[0-9]*", nodes.gl_pathv[i]);
        with_cpus += glob(path, 0, NULL, &links) == 0;
        globfree(&links);
        cpus += numa_cpu_count(node);
    }
    globfree(&nodes);
    ck_assert_uint_eq(numa_node_count(), with_cpus);
    ck_assert_uint_eq(cpus, (uint32_t)CPU_COUNT(&all));
}
END_TEST

/* What /proc/self/numa_maps says of the mapping at an address. @return false: it isn't there */
static bool find_policy(const void *memory, char policy[64])
{
    char line[8192];
    unsigned long long start;
    FILE *maps = fopen("/proc/self/numa_maps", "r");
    ck_assert_ptr_nonnull(maps);
    bool found = false;
    while (!found && fgets(line, sizeof(line), maps) != NULL)
        found = sscanf(line, "%llx %63s", &start, policy) == 2 && start == (uintptr_t)memory;
    fclose(maps);
    return found;
}

static int first_node_with_memory(void)
{
    char text[64];
    FILE *file = fopen(NODES "/has_memory", "r");
    if (file == NULL)
        return -1;
    int node = fgets(text, sizeof(text), file) != NULL ? atoi(text) : -1;
    fclose(file);
    return node;
}

START_TEST(test_prefer)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char policy[64], due[64];
    int node = first_node_with_memory();
    uint8_t *memory = mmap(NULL, PAGES * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(memory, MAP_FAILED);
    ck_assert_int_eq(numa_prefer(memory, PAGES * page, -1), 0);
    ck_assert_int_eq(numa_prefer(memory, PAGES * page, 1024), -EINVAL);
    int rc = node < 0 || access("/proc/self/numa_maps", R_OK) != 0 ? -ENOSYS : numa_prefer(memory, PAGES * page, node);
    if (rc == -ENOSYS || rc == -EPERM) {
        printf("test_numa: test_prefer: skipped: %s\n",
               rc == -EPERM ? "this container has no mbind()" : "the kernel has no NUMA");
        munmap(memory, PAGES * page);
        return;
    }
    ck_assert_int_eq(rc, 0);
    memset(memory, 1, PAGES * page);
    snprintf(due, sizeof(due), "prefer:%d", node);
    ck_assert(find_policy(memory, policy));
    ck_assert_str_eq(policy, due);
    ck_assert_int_eq(numa_prefer(memory + 1, page, node), -EINVAL); /* not at the start of a page */
    ck_assert_int_eq(numa_prefer(memory, page, 1023), -EINVAL);     /* no such node */

    int fd = memfd_create("test", MFD_CLOEXEC); /* the file has the policy, not the mapping */
    ck_assert_int_eq(ftruncate(fd, (off_t)(PAGES * page)), 0);
    uint8_t *one = mmap(NULL, PAGES * page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ck_assert_ptr_ne(one, MAP_FAILED);
    ck_assert_int_eq(numa_prefer(one, PAGES * page, node), 0);
    ck_assert_int_eq(fallocate(fd, 0, 0, (off_t)(PAGES * page)), 0);
    uint8_t *other = mmap(NULL, PAGES * page, PROT_READ, MAP_SHARED, fd, 0);
    ck_assert_ptr_ne(other, MAP_FAILED);
    ck_assert(find_policy(other, policy));
    ck_assert_str_eq(policy, due);
    munmap(one, PAGES * page);
    munmap(other, PAGES * page);
    munmap(memory, PAGES * page);
    close(fd);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("numa");
    TCase *tests = tcase_create("numa");
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, test_node_count);
    tcase_add_test(tests, test_node_of_pci);
    tcase_add_test(tests, test_run_on);
    tcase_add_test(tests, test_this_machine);
    tcase_add_test(tests, test_prefer);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
