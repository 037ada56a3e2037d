/* test_machine.c - what the process may use, read from made-up /proc and cgroup files. */
#include <check.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "machine.h"

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
    snprintf(root, sizeof(root), "/tmp/feedd-machine-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(root));
}

static void teardown(void)
{
    char command[128];
    snprintf(command, sizeof(command), "rm -rf %s", root);
    ck_assert_int_eq(system(command), 0);
}

START_TEST(test_no_files_means_no_limit)
{
    ck_assert_uint_eq(machine_cpu_quota_at(root), 0);
    ck_assert_uint_eq(machine_memory_available_at(root), UINT64_MAX);
}
END_TEST

START_TEST(test_v2_least_of_all_levels)
{
    write_file("/proc/self/cgroup", "0::/job/step\n");
    write_file("/proc/meminfo", "MemTotal: 32000000 kB\nMemAvailable:   16000000 kB\n");
    write_file("/sys/fs/cgroup/job/step/cpu.max", "max 100000\n");
    write_file("/sys/fs/cgroup/job/cpu.max", "250000 100000\n"); /* 2.5 CPUs: 3 */
    write_file("/sys/fs/cgroup/job/step/memory.max", "8000000000\n");
    write_file("/sys/fs/cgroup/job/step/memory.current", "1000000000\n");
    write_file("/sys/fs/cgroup/job/memory.max", "max\n");
    ck_assert_uint_eq(machine_cpu_quota_at(root), 3);
    ck_assert_uint_eq(machine_memory_available_at(root), 7000000000);
    write_file("/sys/fs/cgroup/job/step/memory.current", "9000000000\n"); /* over it: nothing is left */
    ck_assert_uint_eq(machine_memory_available_at(root), 0);
}
END_TEST

START_TEST(test_v1)
{
    write_file("/proc/self/cgroup", "9:cpu,cpuacct:/docker/x\n7:memory:/docker/x\n1:name=systemd:/\n");
    write_file("/proc/meminfo", "MemAvailable: 1000 kB\n");
    write_file("/sys/fs/cgroup/cpu/docker/x/cpu.cfs_quota_us", "150000\n");
    write_file("/sys/fs/cgroup/cpu/docker/x/cpu.cfs_period_us", "100000\n");
    write_file("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
    write_file("/sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes", "9223372036854771712\n");
    ck_assert_uint_eq(machine_cpu_quota_at(root), 2);
    ck_assert_uint_eq(machine_memory_available_at(root), 1024000);
}
END_TEST

START_TEST(test_odd_files_mean_no_limit)
{
    write_file("/proc/self/cgroup", "garbage\n::\n0::\n");
    write_file("/sys/fs/cgroup/cpu.max", "0 0\n");
    write_file("/sys/fs/cgroup/memory.max", "many\n");
    write_file("/proc/meminfo", "MemAvailable: many\n");
    ck_assert_uint_eq(machine_cpu_quota_at(root), 0);
    ck_assert_uint_eq(machine_memory_available_at(root), UINT64_MAX);
}
END_TEST

START_TEST(test_affinity_counts)
{
    cpu_set_t before, one;
    ck_assert_int_eq(sched_getaffinity(0, sizeof(before), &before), 0);
    ck_assert_uint_le(machine_cpu_count(), (uint32_t)CPU_COUNT(&before));
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &before)) {
            CPU_SET(cpu, &one);
            break;
        }
    ck_assert_int_eq(sched_setaffinity(0, sizeof(one), &one), 0);
    ck_assert_uint_eq(machine_cpu_count(), 1);
    ck_assert_int_eq(sched_setaffinity(0, sizeof(before), &before), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("machine");
    TCase *tests = tcase_create("machine");
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, test_no_files_means_no_limit);
    tcase_add_test(tests, test_v2_least_of_all_levels);
    tcase_add_test(tests, test_v1);
    tcase_add_test(tests, test_odd_files_mean_no_limit);
    tcase_add_test(tests, test_affinity_counts);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
