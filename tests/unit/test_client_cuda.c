/* test_client_cuda.c - libfeedd's calls of CUDA about host memory that a GPU reads: registering it, copying from it,
 * and normalising by way of device memory that all streams of the caller share.
 *
 * The fake runtime makes kernels late, so that a missing wait shows every time. What has to come out is computed by
 * normalize_scalar(). One process: the fake counts calls in it, and every test knows how many kernels came before. */
#include <check.h>
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "device.h"

#define COUNT    4u /* images of a batch */
#define HEIGHT   6u
#define WIDTH    5u
#define CHANNELS 3u
#define PIXELS   (COUNT * HEIGHT * WIDTH * CHANNELS)
#define STREAMS  3
#define MEMORY   (64u << 10)

#define OK(call) ck_assert_int_eq((call), cudaSuccess)

static const struct normalize_params params = {.batch = COUNT,
                                               .in_height = HEIGHT,
                                               .in_width = WIDTH,
                                               .channels = CHANNELS,
                                               .out_height = HEIGHT,
                                               .out_width = WIDTH,
                                               .dtype = NORMALIZE_F32,
                                               .layout = NORMALIZE_NCHW,
                                               .mean = {0.1, 0.2, 0.3},
                                               .std = {0.5, 0.25, 0.125},
                                               .scale = 255};

static struct rig {
    struct device device;
    uint8_t *memory; /* of the host, read-only: STREAMS batches of other pixels, PIXELS apart */
    cudaStream_t streams[STREAMS];
    float *out[STREAMS]; /* of the device */
    struct device_scratch *scratch;
    struct feedd_error err;
} rig;

static void setup(void)
{
    rig = (struct rig){.scratch = NULL};
    ck_assert_int_eq(device_find("cuda", &rig.device, &rig.err), 0);
    rig.memory = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(rig.memory, MAP_FAILED);
    for (unsigned i = 0; i < STREAMS * PIXELS; i++)
        rig.memory[i] = (uint8_t)(i * 7 + i / PIXELS * 31);
    ck_assert_int_eq(mprotect(rig.memory, MEMORY, PROT_READ), 0);
    ck_assert_int_eq(device_register(&rig.device, rig.memory, MEMORY, &rig.err), 0);
    for (int i = 0; i < STREAMS; i++) {
        OK(cudaStreamCreateWithFlags(&rig.streams[i], cudaStreamNonBlocking));
        OK(cudaMalloc((void **)&rig.out[i], PIXELS * sizeof(float)));
        OK(cudaMemset(rig.out[i], 0, PIXELS * sizeof(float)));
    }
    device_finish(&rig.device); /* streams that don't block don't wait for cudaMemset() */
}

static void teardown(void)
{
    device_finish(&rig.device);
    device_scratch_free(&rig.device, rig.scratch);
    device_scratch_free(&rig.device, NULL);
    for (int i = 0; i < STREAMS; i++) {
        OK(cudaStreamDestroy(rig.streams[i]));
        OK(cudaFree(rig.out[i]));
    }
    device_unregister(&rig.device, rig.memory);
    munmap(rig.memory, MEMORY);
}

/* Batch i into output i, on a stream. */
static int normalize(int i, cudaStream_t stream)
{
    return device_scratch_normalize(&rig.device, &rig.scratch, PIXELS, &params, rig.memory + (size_t)i * PIXELS, NULL,
                                    rig.out[i], stream, &rig.err);
}

static bool is_right(int i)
{
    float expected[PIXELS], got[PIXELS];
    normalize_scalar(&params, rig.memory + (size_t)i * PIXELS, NULL, expected);
    ck_assert_int_eq(device_read(&rig.device, got, rig.out[i], sizeof(got), &rig.err), 0);
    return memcmp(expected, got, sizeof(got)) == 0;
}

START_TEST(test_streams_take_turns)
{
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < STREAMS; i++)
            ck_assert_int_eq(normalize(i, rig.streams[i]), 0);
        device_finish(&rig.device);
        for (int i = 0; i < STREAMS; i++) {
            ck_assert(is_right(i));
            OK(cudaMemset(rig.out[i], 0, PIXELS * sizeof(float)));
        }
        device_finish(&rig.device);
    }
}
END_TEST

START_TEST(test_a_kernel_that_was_not_launched)
{
    ck_assert_int_eq(normalize(0, rig.streams[0]), FEEDD_E_DEVICE);
    ck_assert_ptr_nonnull(strstr(rig.err.message, "normalising: "));
    ck_assert_int_eq(normalize(1, rig.streams[1]), 0);
    ck_assert_int_eq(normalize(2, rig.streams[2]), 0);
    device_finish(&rig.device);
    ck_assert(!is_right(0));
    ck_assert(is_right(1));
    ck_assert(is_right(2));
}
END_TEST

/* Refused on the stream that is captured; beside it allowed, with all that has to be allocated, and no harm to it. */
START_TEST(test_captures)
{
    cudaGraph_t graph;
    OK(cudaStreamBeginCapture(rig.streams[0], cudaStreamCaptureModeGlobal));
    ck_assert_int_eq(normalize(0, rig.streams[0]), FEEDD_E_STATE);
    ck_assert_ptr_nonnull(strstr(rig.err.message, "captured into a CUDA graph"));
    ck_assert_ptr_null(rig.scratch);
    ck_assert_int_eq(device_upload(&rig.device, rig.out[0], rig.memory, PIXELS, rig.streams[0], &rig.err),
                     FEEDD_E_STATE);
    ck_assert_int_eq(normalize(1, rig.streams[1]), 0);
    OK(cudaStreamEndCapture(rig.streams[0], &graph));
    OK(cudaGraphDestroy(graph));
    device_finish(&rig.device);
    ck_assert(is_right(1));
}
END_TEST

START_TEST(test_no_memory)
{
    ck_assert_int_eq(normalize(0, rig.streams[0]), FEEDD_E_MEMORY);
    ck_assert_ptr_null(rig.scratch);
    ck_assert_int_eq(normalize(0, rig.streams[0]), 0);
    device_finish(&rig.device);
    ck_assert(is_right(0));
}
END_TEST

START_TEST(test_upload)
{
    uint8_t got[PIXELS];
    ck_assert_int_eq(device_upload(&rig.device, rig.out[0], rig.memory + PIXELS, PIXELS, rig.streams[0], &rig.err), 0);
    OK(cudaStreamSynchronize(rig.streams[0]));
    ck_assert_int_eq(device_read(&rig.device, got, rig.out[0], sizeof(got), &rig.err), 0);
    ck_assert_mem_eq(got, rig.memory + PIXELS, sizeof(got));
}
END_TEST

START_TEST(test_register_twice)
{
    ck_assert_int_eq(device_register(&rig.device, rig.memory, MEMORY, &rig.err), FEEDD_E_DEVICE);
    ck_assert_ptr_nonnull(strstr(rig.err.message, "registering the daemon's memory with the GPU: "));
    device_unregister(&rig.device, rig.memory);
    ck_assert_int_eq(device_register(&rig.device, rig.memory, MEMORY, &rig.err), 0);
}
END_TEST

START_TEST(test_import_of_what_is_none)
{
    void *out = &rig;
    int fd = memfd_create("none", 0);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(device_import(&rig.device, fd, 2u << 20, &out, &rig.err), FEEDD_E_DEVICE);
    ck_assert_ptr_nonnull(strstr(rig.err.message, "by its descriptor: "));
    ck_assert_ptr_eq(out, &rig);
    close(fd);
}
END_TEST

int main(void)
{
    /* Of the calls: the tests run in this order. 9 kernels of the first test come before the one that fails; the
     * outputs of 3 tests, and of the two with a scratch before, come before the memory that isn't there. */
    setenv("FEEDD_FAKE_GPUS", "1", 1);
    setenv("FEEDD_FAKE_CUDA_DELAY_US", "normalize_cuda_launch:5000", 1);
    setenv("FEEDD_FAKE_CUDA_FAIL",
           "normalize_cuda_launch:10:cudaErrorInvalidValue,cudaMalloc:16:cudaErrorMemoryAllocation", 1);
    Suite *suite = suite_create("client_cuda");
    TCase *tests = tcase_create("host memory");
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, test_streams_take_turns);
    tcase_add_test(tests, test_a_kernel_that_was_not_launched);
    tcase_add_test(tests, test_captures);
    tcase_add_test(tests, test_no_memory);
    tcase_add_test(tests, test_upload);
    tcase_add_test(tests, test_register_twice);
    tcase_add_test(tests, test_import_of_what_is_none);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
