/* test_output.c - who normalises: every rule, its reason, and every refusal; what becomes of dtype and shape.
 * Threads: one. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "output.h"

static const struct output_client on_cpu = {.normalizes = true}, on_cpu_plain = {.normalizes = false};
static const struct output_client on_gpu = {.has_device = true, .maps_gpu_memory = true, .normalizes = true};
static const struct output_client on_gpu_plain = {.has_device = true, .maps_gpu_memory = true};
static const struct output_client by_host = {.has_device = true, .normalizes = true};
static const struct output_client by_host_plain = {.has_device = true};

static struct output_spec wanted(int mode, int dtype, bool nchw)
{
    struct output_spec output;
    output_init(&output);
    output.mode = mode;
    output.dtype = dtype;
    output.nchw = nchw;
    return output;
}

START_TEST(rules)
{
    enum { AUTO = 0, CLIENT = FEEDD_NORMALIZE_CLIENT, DAEMON = FEEDD_NORMALIZE_DAEMON, CPU = FEEDD_NORMALIZE_CPU };
    static const struct {
        int asked, dtype;
        bool nchw;
        const struct output_client *client;
        int mode; /* or a status */
        const char *text;
    } cases[] = {
        /* nothing to do: whatever is asked, wherever */
        {AUTO, 0, false, &on_cpu_plain, CLIENT, "nothing to normalise"},
        {AUTO, 0, true, &on_gpu, CLIENT, "nothing to normalise"},
        {CLIENT, 0, false, &on_gpu_plain, CLIENT, "nothing to normalise"},
        {DAEMON, 0, false, &on_cpu, CLIENT, "nothing to normalise"},
        {CPU, FEEDD_U8, false, &on_cpu, CLIENT, "nothing to normalise"},
        {DAEMON, FEEDD_U8, false, &by_host, CLIENT, "nothing to normalise"},
        /* asked for */
        {CLIENT, FEEDD_F32, false, &on_cpu, CLIENT, "normalised by the client: as it was asked for"},
        {CLIENT, FEEDD_F32, false, &on_gpu, CLIENT, "normalised by the client: as it was asked for"},
        {CLIENT, FEEDD_F32, false, &by_host, CLIENT, "normalised by the client: as it was asked for"},
        {CLIENT, FEEDD_F32, false, &on_gpu_plain, FEEDD_E_UNSUPPORTED,
         "normalize = client: the client says that it can't"},
        {DAEMON, FEEDD_F32, false, &on_gpu, DAEMON, "normalised by the daemon: as it was asked for"},
        {DAEMON, FEEDD_U8, true, &on_gpu_plain, DAEMON, "normalised by the daemon: as it was asked for"},
        {DAEMON, FEEDD_F16, true, &on_cpu, FEEDD_E_UNSUPPORTED,
         "normalize = daemon is a kernel on a GPU: without a device there is normalize = cpu"},
        {DAEMON, FEEDD_F16, true, &by_host, FEEDD_E_UNSUPPORTED,
         "normalize = daemon writes to a GPU's memory: transport ipc or fd is needed, and it is host"},
        {CPU, FEEDD_BF16, true, &on_cpu, CPU, "normalised by the CPU: as it was asked for"},
        {CPU, FEEDD_I8, true, &on_gpu, CPU, "normalised by the CPU: as it was asked for"},
        {CPU, FEEDD_U8, true, &by_host_plain, CPU, "normalised by the CPU: as it was asked for"},
        /* auto */
        {AUTO, FEEDD_F32, true, &on_cpu, CLIENT, "normalised by the client: auto, and it can"},
        {AUTO, FEEDD_F32, true, &on_gpu, CLIENT, "normalised by the client: auto, and it can"},
        {AUTO, FEEDD_F32, true, &by_host, CLIENT, "normalised by the client: auto, and it can"},
        {AUTO, FEEDD_F32, true, &on_gpu_plain, DAEMON, "normalised by the daemon: auto, and the client can't"},
        {AUTO, FEEDD_F32, true, &by_host_plain, CPU,
         "normalised by the CPU: auto, the client can't, and it maps host memory"},
        {AUTO, FEEDD_F32, true, &on_cpu_plain, CPU,
         "normalised by the CPU: auto, the client can't, and there is no GPU"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct output_spec output = wanted(cases[i].asked, cases[i].dtype, cases[i].nchw), before = output;
        struct feedd_error err = {.message = ""};
        int status = output_resolve(&output, cases[i].client, &err);
        if (cases[i].mode > 0) {
            ck_assert_msg(status == 0 && output.mode == cases[i].mode, "case %zu: %d, mode %d", i, status, output.mode);
            ck_assert_str_eq(output.reason, cases[i].text);
            ck_assert_uint_lt(strlen(cases[i].text), sizeof(output.reason) - 1); /* not cut */
        } else {
            ck_assert_msg(status == cases[i].mode, "case %zu: %d", i, status);
            ck_assert_str_eq(err.message, cases[i].text);
            ck_assert_mem_eq(&output, &before, sizeof(output));
        }
    }
}
END_TEST

/* Values are the daemon's business only where it uses them; those of absent channels are nobody's. */
START_TEST(values)
{
    struct feedd_error err;
    struct output_spec bad = wanted(FEEDD_NORMALIZE_CPU, FEEDD_F32, false), other;
    bad.scale = 0;
    ck_assert_int_eq(output_resolve(&bad, &on_gpu, &err), FEEDD_E_ARGUMENT);
    ck_assert_str_eq(err.message, "output: scale must be finite and above 0");
    bad.mode = FEEDD_NORMALIZE_DAEMON;
    ck_assert_int_eq(output_resolve(&bad, &on_gpu, &err), FEEDD_E_ARGUMENT);
    bad.mode = 0;
    other = bad;
    ck_assert_int_eq(output_resolve(&other, &on_gpu_plain, &err), FEEDD_E_ARGUMENT);
    ck_assert_int_eq(output_resolve(&bad, &on_gpu, &err), 0); /* the client's own */
    bad = wanted(FEEDD_NORMALIZE_CPU, FEEDD_I32, false);
    ck_assert_int_eq(output_resolve(&bad, &on_gpu, &err), FEEDD_E_ARGUMENT);
    ck_assert_str_eq(err.message, "output: dtype must be u8, i8, f16, bf16 or f32");

    struct output_spec output = wanted(FEEDD_NORMALIZE_CPU, FEEDD_F32, false);
    struct normalize_params params;
    output.std[2] = NAN;
    output.mean[3] = INFINITY;
    ck_assert_int_eq(output_resolve(&output, &on_cpu, &err), 0);
    ck_assert_int_eq(output_params(&output, 1, 5, 6, 1, &params, &err), 0);
    ck_assert_int_eq(output_params(&output, 1, 5, 6, 3, &params, &err), FEEDD_E_ARGUMENT);
    ck_assert_str_eq(err.message, "output: std must be finite and above 0");
    output.std[2] = 1;
    ck_assert_int_eq(output_params(&output, 1, 5, 6, 3, &params, &err), 0);
    ck_assert_int_eq(output_params(&output, 1, 5, 6, 4, &params, &err), FEEDD_E_ARGUMENT);
    ck_assert_str_eq(err.message, "output: mean must be finite");
}
END_TEST

START_TEST(fields)
{
    for (int nchw = 0; nchw < 2; nchw++)
        for (int dtype = FEEDD_U8; dtype <= FEEDD_F32; dtype++) {
            const struct output_spec output = wanted(FEEDD_NORMALIZE_CPU, dtype, nchw);
            struct slot_field field = {.name = "image", .dtype = FEEDD_U8, .ndim = 3, .shape = {5, 6, 3}};
            struct normalize_params params;
            ck_assert_int_eq(output_params(&output, 2, 5, 6, 3, &params, NULL), 0);
            ck_assert_uint_eq(params.batch, 2);
            output_field(&params, &field);
            const uint64_t due[2][3] = {{5, 6, 3}, {3, 5, 6}};
            ck_assert_mem_eq(field.shape, due[nchw], sizeof(due[0]));
            ck_assert_uint_eq(field.dtype, dtype);
            ck_assert_uint_eq(field.ndim, 3);
            ck_assert_str_eq(field.name, "image");
            ck_assert_uint_eq(normalize_bytes(&params), 2 * 5 * 6 * 3 * dtype_bytes(dtype));
        }
}
END_TEST

/* Planes of one channel are what is decoded, which is known late. */
START_TEST(one_channel)
{
    struct output_spec output = wanted(FEEDD_NORMALIZE_DAEMON, FEEDD_U8, true);
    ck_assert_int_eq(output_resolve(&output, &on_gpu, NULL), 0);
    ck_assert_int_eq(output.mode, FEEDD_NORMALIZE_DAEMON);
    output_settle(&output, 3);
    ck_assert_int_eq(output.mode, FEEDD_NORMALIZE_DAEMON);
    output_settle(&output, 1);
    ck_assert_int_eq(output.mode, FEEDD_NORMALIZE_CLIENT);
    ck_assert_str_eq(output.reason, "nothing to normalise");
    output = wanted(FEEDD_NORMALIZE_DAEMON, FEEDD_F32, true);
    output_settle(&output, 1);
    ck_assert_int_eq(output.mode, FEEDD_NORMALIZE_DAEMON);
}
END_TEST

/* Each field that makes other bytes is in the list, and none that doesn't. */
START_TEST(lists)
{
    static const struct {
        struct output_spec spec;
        const char *name; /* of what differs; NULL: nothing */
    } cases[] = {
        {{.mode = FEEDD_NORMALIZE_DAEMON, .dtype = FEEDD_F32, .std = {1, 1, 1, 1}, .scale = 255}, "normalize"},
        {{.mode = FEEDD_NORMALIZE_CPU, .dtype = FEEDD_F16, .std = {1, 1, 1, 1}, .scale = 255}, "output.dtype"},
        {{.mode = FEEDD_NORMALIZE_CPU, .dtype = FEEDD_F32, .nchw = true, .std = {1, 1, 1, 1}, .scale = 255},
         "output.layout"},
        {{.mode = FEEDD_NORMALIZE_CPU, .dtype = FEEDD_F32, .std = {1, 1, 1, 1}, .scale = 1}, "output.scale"},
        {{.mode = FEEDD_NORMALIZE_CPU, .dtype = FEEDD_F32, .mean = {0, 0, 2}, .std = {1, 1, 1, 1}, .scale = 255},
         "output.mean[2]"},
        {{.mode = FEEDD_NORMALIZE_CPU, .dtype = FEEDD_F32, .std = {1, 2, 1, 1}, .scale = 255}, "output.std[1]"},
        {{.mode = FEEDD_NORMALIZE_CPU, .dtype = FEEDD_F32, .std = {1, 1, 1, 9}, .scale = 255}, NULL},
        {{.mode = FEEDD_NORMALIZE_CPU, .dtype = FEEDD_F32, .std = {1, 1, 1, 1}, .scale = 255, .reason = "x"}, NULL},
    };
    const struct output_spec base = wanted(FEEDD_NORMALIZE_CPU, FEEDD_F32, false);
    struct transform_field is[OUTPUT_FIELDS], other[OUTPUT_FIELDS];
    output_list(&base, 3, is);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const char *differs = NULL;
        output_list(&cases[i].spec, 3, other);
        for (int f = 0; f < OUTPUT_FIELDS; f++)
            if (is[f].value != other[f].value) {
                ck_assert_msg(differs == NULL, "case %zu", i);
                differs = other[f].name;
            }
        if (cases[i].name == NULL)
            ck_assert_ptr_null(differs);
        else
            ck_assert_str_eq(differs, cases[i].name);
    }
    struct output_spec plain = wanted(FEEDD_NORMALIZE_CLIENT, 0, false), mine = wanted(FEEDD_NORMALIZE_CLIENT, 5, true);
    output_list(&plain, 3, is);
    output_list(&mine, 3, other);
    for (int f = 0; f < OUTPUT_FIELDS; f++)
        ck_assert_double_eq(is[f].value, other[f].value);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("output");
    TCase *tcase = tcase_create("output");
    tcase_add_test(tcase, rules);
    tcase_add_test(tcase, values);
    tcase_add_test(tcase, fields);
    tcase_add_test(tcase, one_channel);
    tcase_add_test(tcase, lists);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    const int failures = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failures != 0;
}
