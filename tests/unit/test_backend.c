/* test_backend.c - staging and rings in host memory: who may write what, what a client finds, and what fails. */
#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "backend.h"
#include "gpu.h"

#define DEPTH 3

static struct slot_layout layout_of(uint32_t batch_size)
{
    struct slot_layout layout = {.field_count = 2, .batch_size = batch_size};
    layout.fields[0] = (struct slot_field){.name = "image", .dtype = FEEDD_U8, .ndim = 3, .shape = {20, 10, 3}};
    layout.fields[1] = (struct slot_field){.name = "label", .dtype = FEEDD_I64};
    ck_assert_int_eq(slot_layout_init(&layout, NULL), 0);
    return layout;
}

static unsigned open_fds(void)
{
    unsigned count = 0;
    DIR *dir = opendir("/proc/self/fd");
    while (readdir(dir) != NULL)
        count++;
    closedir(dir);
    return count;
}

/* What somebody who was passed the descriptor can't do, and what is on its last pages. */
static void check_sealed(int fd, const uint8_t *memory, uint64_t bytes)
{
    const uint8_t byte = 1;
    errno = 0;
    ck_assert_ptr_eq(mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
    ck_assert_int_eq(errno, EPERM);
    ck_assert_int_eq(pwrite(fd, &byte, 1, 0), -1);
    ck_assert_int_eq(errno, EPERM);
    ck_assert_int_eq(ftruncate(fd, (off_t)bytes - 4096), -1);
    ck_assert_int_eq(errno, EPERM);
    ck_assert_int_eq(ftruncate(fd, (off_t)bytes + 4096), -1);
    ck_assert_int_eq(errno, EPERM);
    ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
    ck_assert_int_eq(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    ck_assert_int_eq(lseek(fd, 0, SEEK_END), (off_t)bytes);
    uint8_t *view = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    ck_assert_ptr_ne(view, MAP_FAILED);
    ck_assert_int_eq(memcmp(view, memory, bytes), 0);
    ck_assert_int_ne(mprotect(view, bytes, PROT_READ | PROT_WRITE), 0);
    munmap(view, bytes);
}

START_TEST(test_what_a_client_maps)
{
    const struct slot_layout layout = layout_of(7);
    const uint64_t bytes = DEPTH * layout.slot_bytes + SLOT_PROOF_BYTES;
    const unsigned fds = open_fds();
    struct staging *staging;
    struct ring *ring, *other;
    ck_assert_int_eq(staging_new(&layout, DEPTH, -1, &staging, NULL), 0);
    ck_assert_ptr_null(staging->pinned_by);
    for (uint64_t i = 0; i < DEPTH * layout.slot_bytes; i++)
        ck_assert_uint_eq(staging->memory[i], 0);
    for (uint64_t i = 0; i < DEPTH * layout.slot_bytes; i++)
        staging->memory[i] = (uint8_t)(i * 7 + 1);
    check_sealed(staging->fd, staging->memory, bytes);
    ck_assert_int_eq(memcmp(staging->memory + DEPTH * layout.slot_bytes, &staging->nonce, 8), 0);

    const struct ring_spec spec = {.staging = staging, .layout = layout, .transport = TRANSPORT_HOST};
    ck_assert_int_eq(backend_host.ring_new(&spec, &ring, NULL), 0);
    ck_assert_int_eq(backend_host.ring_new(&spec, &other, NULL), 0);
    ck_assert(backend_host.placement_is_staging);
    ck_assert_int_eq(ring->ring_fd, staging->fd);
    ck_assert_uint_eq(ring->nonce, staging->nonce);
    ring->meta[0] = 1;
    check_sealed(ring->meta_fd, ring->meta, slot_meta_bytes(&layout, DEPTH));
    ck_assert_uint_eq(other->meta[0], 0);
    backend_host.ring_free(ring);
    backend_host.ring_free(other);
    ck_assert_uint_eq(staging->memory[0], 1);
    staging_free(staging);
    staging_free(NULL);
    ck_assert_uint_eq(open_fds(), fds);
}
END_TEST

START_TEST(test_nobody_can_guess_a_nonce)
{
    const struct slot_layout layout = layout_of(1);
    struct staging *one, *two;
    ck_assert_int_eq(staging_new(&layout, 1, -1, &one, NULL), 0);
    ck_assert_int_eq(staging_new(&layout, 1, -1, &two, NULL), 0);
    ck_assert_uint_ne(one->nonce, two->nonce);
    ck_assert_uint_ne(one->nonce, 0);
    staging_free(one);
    staging_free(two);
}
END_TEST

/* A node that isn't there is preferred in vain. */
START_TEST(test_memory_near_a_node)
{
    const struct slot_layout layout = layout_of(7);
    for (int node = -1; node < 64; node += 32) {
        struct staging *staging;
        ck_assert_int_eq(staging_new(&layout, DEPTH, node, &staging, NULL), 0);
        ck_assert_int_eq(staging->node, node);
        staging->memory[0] = 1;
        staging_free(staging);
    }
}
END_TEST

START_TEST(test_failures_leave_nothing)
{
    const struct slot_layout layout = layout_of(7);
    const unsigned fds = open_fds();
    struct feedd_error err = {0};
    struct staging *staging = NULL, *good;
    struct ring *ring = NULL;
    struct rlimit files, size, limit;
    getrlimit(RLIMIT_NOFILE, &files);
    getrlimit(RLIMIT_FSIZE, &size);
    ck_assert_int_eq(staging_new(&layout, DEPTH, -1, &good, NULL), 0);
    const struct ring_spec spec = {.staging = good, .layout = layout, .transport = TRANSPORT_HOST};

    limit = (struct rlimit){.rlim_cur = 0, .rlim_max = files.rlim_max};
    setrlimit(RLIMIT_NOFILE, &limit);
    ck_assert_int_eq(staging_new(&layout, DEPTH, -1, &staging, &err), FEEDD_E_IO);
    ck_assert_ptr_nonnull(strstr(err.message, "memfd_create: Too many open files"));
    ck_assert_int_eq(backend_host.ring_new(&spec, &ring, &err), FEEDD_E_IO);
    setrlimit(RLIMIT_NOFILE, &files);

    limit = (struct rlimit){.rlim_cur = 2 * layout.slot_bytes, .rlim_max = size.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(staging_new(&layout, DEPTH, -1, &staging, &err), FEEDD_E_MEMORY);
    setrlimit(RLIMIT_FSIZE, &size);
    char expected[64];
    snprintf(expected, sizeof(expected), "%llu bytes of shared memory: File too large",
             (unsigned long long)(DEPTH * layout.slot_bytes + SLOT_PROOF_BYTES));
    ck_assert_str_eq(err.message, expected);
    ck_assert_ptr_null(staging);
    ck_assert_ptr_null(ring);
    staging_free(good);
    ck_assert_uint_eq(open_fds(), fds);
}
END_TEST

START_TEST(test_transport_names)
{
    ck_assert_str_eq(transport_name(TRANSPORT_HOST), "host");
    ck_assert_str_eq(transport_name(TRANSPORT_IPC), "ipc");
    ck_assert_str_eq(transport_name(TRANSPORT_FD), "fd");
}
END_TEST

/* What a ring takes of a GPU, by hand. */
START_TEST(test_gpu_ring_bytes)
{
    struct staging staging = {.layout = layout_of(100), .depth = 35};
    struct ring_spec spec = {.staging = &staging, .layout = staging.layout, .transport = TRANSPORT_IPC};
    /* 100 images of 600 bytes, to 60160; 100 labels: 60960, to 61440 a slot; 35 of them and a page: 2154496. */
    ck_assert_uint_eq(staging.layout.slot_bytes, 61440);
    ck_assert_uint_eq(gpu_ring_bytes(&spec), 4194304);
    staging.depth = 34; /* 2093056 */
    ck_assert_uint_eq(gpu_ring_bytes(&spec), 2097152);
    /* Floats: 240000 bytes, to 240128; 240928, to 241664; 34 of them: 8220672; and scratch: 3 times 60160. */
    spec.layout.fields[0].dtype = FEEDD_F32;
    ck_assert_int_eq(slot_layout_init(&spec.layout, NULL), 0);
    spec.normalize = true;
    ck_assert_uint_eq(gpu_ring_bytes(&spec), 8388608 + 2097152);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("backend");
    TCase *tcase = tcase_create("host");
    tcase_add_test(tcase, test_what_a_client_maps);
    tcase_add_test(tcase, test_nobody_can_guess_a_nonce);
    tcase_add_test(tcase, test_memory_near_a_node);
    tcase_add_test(tcase, test_failures_leave_nothing);
    tcase_add_test(tcase, test_transport_names);
    tcase_add_test(tcase, test_gpu_ring_bytes);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
