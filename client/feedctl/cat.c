/* cat.c - feedctl cat: reads a stream as a trainer does and prints each batch, to look inside and to compare.
 *
 * One line a batch: epoch, seq, position, count, valid, a digest of every field (XXH3, 64 bits, of the bytes of all
 * samples in order), then sample indices and, where there are any, flags. At the end the rate, how batches came, and
 * the resume token. With --json one object a line, the last one with "end". With an output (--dtype and what goes with
 * it) the digest of the image is that of what a trainer computes with, whoever makes it: what this library's callers
 * would make themselves is made here by the CPU, which gives the same bits. */
#include <getopt.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>

#include "error.h"
#include "feedctl.h"
#include "normalize.h"
#include "token.h"

struct cat_options {
    struct feedd_open_options open;
    struct feedd_normalize_options output; /* that open.output points to, if there is one */
    const char *source;
    uint64_t batches;  /* 0: until the stream ends */
    uint64_t pause_ms; /* before each batch is given back */
    bool json;
};

/* What the run came to. */
struct cat_sum {
    uint64_t batches, samples;
    double seconds;
};

static volatile sig_atomic_t interrupted;

static void on_interrupt(int number)
{
    (void)number;
    interrupted = 1;
}

static const char usage[] =
    "usage: feedctl cat STREAM-or-DATASET [options]\n"
    "\n"
    "Reads batches and prints what is in them.\n"
    "\n"
    "  --batches N       stop after N batches\n"
    "  --epochs N        stop where epoch N would begin; without --batches and --epochs: to the end of the epoch\n"
    "  --batch-size B    samples of a batch\n"
    "  --order O         sequential or shuffle\n"
    "  --seed S          of shuffle\n"
    "  --rank R          this process among\n"
    "  --world W         so many\n"
    "  --tail T          drop, pad or partial: what happens to samples that don't fill a step\n"
    "  --depth D         slots of the ring\n"
    "  --resume TOKEN    begin where TOKEN says\n"
    "  --force-resume    also when it is of another dataset, order or seed\n"
    "  --share S         private, or broadcast: every member of a group gets every batch\n"
    "  --group NAME      of broadcast; without: the source's name\n"
    "  --members N       of the group\n"
    "  --join J          now, gate (wait for all members; default with --members) or next-epoch\n"
    "  --device D        where the batches are: host (default), cuda, cuda:N, a GPU's UUID, or auto\n"
    "  --transport T     how they get to a GPU: auto (default), ipc, fd, host\n"
    "  --normalize M     who makes what is wanted: auto (default), client, daemon, cpu\n"
    "  --dtype D         what is wanted: float32 (default, with any of these options), float16, bfloat16, int8, uint8\n"
    "  --layout L        nchw (default) or nhwc\n"
    "  --mean A,B,C      of each channel, or one for all: (x / scale - mean) / std\n"
    "  --std A,B,C\n"
    "  --scale S         255 (default): of what mean and std are given\n"
    "  --transform T     what is made of images, in place of what is configured: '{resize: 256, center_crop: 224}'\n"
    "  --reconnect       go on after a restart of the daemon\n"
    "  --pause MS        wait before each batch is given back, as a training step would\n"
    "  --json            one JSON object a line\n";

static int bad_choice(const char *option, const char *text, const char *allowed)
{
    fprintf(stderr, "feedctl: --%s %s: allowed are %s\n", option, text, allowed);
    return 2;
}

static bool parse_real(const char *text, char **end, double *out)
{
    *out = strtod(text, end);
    return *end != text && isfinite(*out);
}

/* One number for all channels, or one for each. */
static int parse_channels(const char *option, const char *text, double out[4])
{
    double values[4];
    char *end;
    const char *at = text;
    size_t count = 0;
    while (count < 4 && parse_real(at, &end, &values[count])) {
        count++;
        if (*end != ',')
            break;
        at = end + 1;
    }
    if (count == 0 || *end != '\0') {
        fprintf(stderr, "feedctl: --%s %s: one number is right, or up to 4 with commas between them\n", option, text);
        return 2;
    }
    for (size_t i = 0; i < 4; i++)
        if (i < count || count == 1)
            out[i] = values[count == 1 ? 0 : i];
    return 0;
}

static int parse_scale(const char *text, double *out)
{
    char *end;
    if (parse_real(text, &end, out) && *end == '\0')
        return 0;
    fprintf(stderr, "feedctl: --scale %s: a number is right\n", text);
    return 2;
}

static int parse_normalize(const char *text, int32_t *out)
{
    int value = 0;
    if (strcmp(text, "auto") != 0 && normalize_mode_parse(text, &value) != 0)
        return bad_choice("normalize", text, "auto, client, daemon, cpu");
    *out = value;
    return 0;
}

static int parse_layout(const char *text, int32_t *nchw)
{
    *nchw = strcmp(text, "nchw") == 0;
    return *nchw || strcmp(text, "nhwc") == 0 ? 0 : bad_choice("layout", text, "nchw, nhwc");
}

/* @return 0, 2 after saying what is wrong, -1 after help */
static int parse_options(int argc, char **argv, struct cat_options *cat)
{
    static const struct option options[] = {
        {"batches", required_argument, NULL, 'n'},
        {"epochs", required_argument, NULL, 'e'},
        {"batch-size", required_argument, NULL, 'b'},
        {"order", required_argument, NULL, 'o'},
        {"seed", required_argument, NULL, 's'},
        {"rank", required_argument, NULL, 'r'},
        {"world", required_argument, NULL, 'w'},
        {"tail", required_argument, NULL, 't'},
        {"depth", required_argument, NULL, 'd'},
        {"resume", required_argument, NULL, 'R'},
        {"force-resume", no_argument, NULL, 'F'},
        {"share", required_argument, NULL, 'S'},
        {"group", required_argument, NULL, 'G'},
        {"members", required_argument, NULL, 'M'},
        {"join", required_argument, NULL, 'J'},
        {"device", required_argument, NULL, 'D'},
        {"transport", required_argument, NULL, 'p'},
        {"normalize", required_argument, NULL, 'N'},
        {"dtype", required_argument, NULL, 'y'},
        {"layout", required_argument, NULL, 'l'},
        {"mean", required_argument, NULL, 'm'},
        {"std", required_argument, NULL, 'v'},
        {"scale", required_argument, NULL, 'c'},
        {"transform", required_argument, NULL, 'T'},
        {"reconnect", no_argument, NULL, 'C'},
        {"pause", required_argument, NULL, 'P'},
        {"json", no_argument, NULL, 'j'},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    struct feedd_open_options *open = &cat->open;
    uint64_t number = 0;
    int option, wrong = 0, value;
    while (wrong == 0 && (option = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        if (strchr("Nylmvc", option) != NULL) /* any of them asks for an output; the rest of it has defaults */
            open->output = &cat->output;
        switch (option) {
        case 'n':
            wrong = parse_number("batches", optarg, 1, UINT64_MAX, &cat->batches);
            break;
        case 'e':
            wrong = parse_number("epochs", optarg, 0, UINT64_MAX, &open->epochs);
            open->has_epochs = 1;
            break;
        case 'b':
            wrong = parse_number("batch-size", optarg, 1, FEEDD_MAX_BATCH, &number);
            open->batch_size = (uint32_t)number;
            break;
        case 'o':
            if (order_parse(optarg, &value) != 0)
                wrong = bad_choice("order", optarg, "sequential, shuffle");
            else
                open->order = value;
            break;
        case 's':
            wrong = parse_number("seed", optarg, 0, UINT64_MAX, &open->seed);
            open->has_seed = 1;
            break;
        case 'r':
            wrong = parse_number("rank", optarg, 0, FEEDD_MAX_WORLD - 1, &number);
            open->rank = (uint32_t)number;
            break;
        case 'w':
            wrong = parse_number("world", optarg, 1, FEEDD_MAX_WORLD, &number);
            open->world_size = (uint32_t)number;
            break;
        case 't':
            if (tail_parse(optarg, &value) != 0)
                wrong = bad_choice("tail", optarg, "drop, pad, partial");
            else
                open->tail = value;
            break;
        case 'd':
            wrong = parse_number("depth", optarg, 2, FEEDD_MAX_DEPTH, &number);
            open->depth = (uint32_t)number;
            break;
        case 'R':
            open->resume = optarg;
            break;
        case 'F':
            open->resume_force = 1;
            break;
        case 'S':
            if (share_parse(optarg, &value) != 0)
                wrong = bad_choice("share", optarg, "private, broadcast");
            else
                open->share = value;
            break;
        case 'G':
            open->group = optarg;
            break;
        case 'M':
            wrong = parse_number("members", optarg, 1, FEEDD_MAX_MEMBERS, &number);
            open->members = (uint32_t)number;
            break;
        case 'J':
            if (join_parse(optarg, &value) != 0)
                wrong = bad_choice("join", optarg, "now, gate, next-epoch");
            else
                open->join = value;
            break;
        case 'D':
            open->device = optarg;
            break;
        case 'p':
            open->transport = optarg;
            break;
        case 'N':
            wrong = parse_normalize(optarg, &open->normalize);
            break;
        case 'y':
            if (dtype_parse(optarg, &value) != 0)
                wrong = bad_choice("dtype", optarg, "float32, float16, bfloat16, int8, uint8");
            else
                cat->output.dtype = value;
            break;
        case 'l':
            wrong = parse_layout(optarg, &cat->output.nchw);
            break;
        case 'm':
            wrong = parse_channels("mean", optarg, cat->output.mean);
            break;
        case 'v':
            wrong = parse_channels("std", optarg, cat->output.std);
            break;
        case 'c':
            wrong = parse_scale(optarg, &cat->output.scale);
            break;
        case 'T':
            open->transform = optarg;
            break;
        case 'C':
            open->reconnect = 1;
            break;
        case 'P':
            wrong = parse_number("pause", optarg, 0, 3600000, &cat->pause_ms);
            break;
        case 'j':
            cat->json = true;
            break;
        case 'h':
            fputs(usage, stdout);
            return -1;
        default:
            return 2;
        }
    }
    if (wrong != 0)
        return wrong;
    if (optind + 1 != argc) {
        fputs(optind == argc ? "feedctl: cat needs the name of a stream or dataset\n"
                             : "feedctl: cat takes one stream or dataset\n",
              stderr);
        return 2;
    }
    cat->source = argv[optind];
    if (!open->has_epochs && cat->batches == 0) { /* one epoch; with a token, the rest of the one that it stands in */
        struct token token = {.epoch = 0};
        struct feedd_error err;
        if (open->resume != NULL && token_parse(open->resume, &token, &err) != 0)
            return fail(&err);
        open->has_epochs = 1;
        open->epochs = token.epoch + 1;
    }
    return 0;
}

/* What a trainer makes of an image field itself. @return 0 and *out, to be freed; FEEDD_E_ARGUMENT, FEEDD_E_MEMORY */
static int make_output(const struct feedd_normalize_options *output, const struct feedd_view *view, const void *pixels,
                       void **out, size_t *out_bytes, struct feedd_error *err)
{
    struct normalize_params params = {.batch = (uint32_t)view->shape[0],
                                      .in_height = (uint32_t)view->shape[1],
                                      .in_width = (uint32_t)view->shape[2],
                                      .channels = (uint32_t)view->shape[3],
                                      .out_height = (uint32_t)view->shape[1],
                                      .out_width = (uint32_t)view->shape[2],
                                      .dtype = output->dtype,
                                      .layout = output->nchw ? NORMALIZE_NCHW : NORMALIZE_NHWC,
                                      .scale = output->scale};
    memcpy(params.mean, output->mean, sizeof(params.mean));
    memcpy(params.std, output->std, sizeof(params.std));
    const char *wrong = normalize_check(&params);
    if (wrong != NULL)
        return error_set(err, FEEDD_E_ARGUMENT, "output: %s", wrong);
    const size_t bytes = normalize_bytes(&params);
    void *memory = malloc(bytes);
    if (memory == NULL)
        return error_set(err, FEEDD_E_MEMORY, "no memory for %zu bytes of a field", bytes);
    normalize_host(&params, pixels, NULL, memory);
    *out = memory;
    *out_bytes = bytes;
    return 0;
}

/* The digest of one field, wherever it is, as it is or as it is wanted.
 * @param output  what is to be made of it; NULL: nothing
 * @return 0, or what feedd_batch_read() and make_output() say */
static int digest_field(const struct feedd_schema *schema, const struct feedd_batch *batch, uint32_t field,
                        const struct feedd_normalize_options *output, uint64_t *digest, struct feedd_error *err)
{
    struct feedd_view view;
    void *read = NULL, *made = NULL;
    int status = 0;
    feedd_batch_view(batch, field, &view);
    const void *bytes = view.data;
    size_t byte_count = view.bytes;
    if (!schema->views_on_host) {
        bytes = read = malloc(byte_count);
        status = read == NULL ? error_set(err, FEEDD_E_MEMORY, "no memory for %zu bytes of a field", byte_count)
                              : feedd_batch_read(batch, field, read, byte_count, err);
    }
    if (status == 0 && output != NULL) {
        status = make_output(output, &view, bytes, &made, &byte_count, err);
        bytes = made;
    }
    if (status == 0)
        *digest = XXH3_64bits(bytes, byte_count);
    free(read);
    free(made);
    return status;
}

static void print_json_line(json_t *line)
{
    json_dumpf(line, stdout, JSON_COMPACT);
    putchar('\n');
    json_decref(line);
}

static void print_batch_json(const struct feedd_schema *schema, const uint64_t *field_digests,
                             const struct feedd_batch_info *info)
{
    json_t *digests = json_object(), *indices = json_array(), *flags = json_array();
    for (uint32_t i = 0; i < schema->field_count; i++) {
        char hex[17];
        snprintf(hex, sizeof(hex), "%016" PRIx64, field_digests[i]);
        json_object_set_new(digests, schema->fields[i].name, json_string(hex));
    }
    for (uint32_t i = 0; i < info->count; i++) {
        json_array_append_new(indices, json_integer(info->indices[i]));
        json_array_append_new(flags, json_integer(info->flags[i]));
    }
    print_json_line(json_pack("{s:I, s:I, s:I, s:i, s:i, s:o, s:o, s:o}", "epoch", (json_int_t)info->epoch, "seq",
                              (json_int_t)info->seq, "position", (json_int_t)info->position, "count", (int)info->count,
                              "valid", (int)info->valid, "digests", digests, "indices", indices, "flags", flags));
}

static void print_batch(const struct feedd_schema *schema, const uint64_t *digests, const struct feedd_batch_info *info)
{
    printf("epoch %" PRIu64 " seq %" PRIu64 " position %" PRIu64 " count %u valid %u", info->epoch, info->seq,
           info->position, info->count, info->valid);
    for (uint32_t i = 0; i < schema->field_count; i++)
        printf(" %s %016" PRIx64, schema->fields[i].name, digests[i]);
    fputs(" indices", stdout);
    uint32_t all_flags = 0;
    for (uint32_t i = 0; i < info->count; i++) {
        printf("%c%" PRId64, i == 0 ? ' ' : ',', info->indices[i]);
        all_flags |= info->flags[i];
    }
    fputs(" flags", stdout);
    for (uint32_t i = 0; i < info->count && all_flags != 0; i++)
        printf("%c%u", i == 0 ? ' ' : ',', info->flags[i]);
    puts(all_flags == 0 ? " -" : "");
}

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static int read_batches(struct feedd_stream *stream, const struct cat_options *cat, struct cat_sum *sum,
                        struct feedd_error *err)
{
    const struct feedd_schema *schema = feedd_stream_schema(stream);
    const struct feedd_field *first = &schema->fields[0];
    const bool to_make = cat->open.output != NULL && schema->normalize == FEEDD_NORMALIZE_CLIENT &&
                         first->dtype == FEEDD_U8 && first->ndim == 3;
    double began = seconds_now();
    int status = 0;
    while (!interrupted && (cat->batches == 0 || sum->batches < cat->batches)) {
        const struct feedd_batch *batch;
        status = feedd_next(stream, 200, &batch, err);
        if (status == FEEDD_E_TIMEOUT)
            continue; /* look whether somebody has interrupted */
        if (status != 0)
            break;
        struct feedd_batch_info info;
        uint64_t digests[FEEDD_MAX_FIELDS];
        feedd_batch_info(batch, &info);
        for (uint32_t i = 0; status == 0 && i < schema->field_count; i++)
            status = digest_field(schema, batch, i, i == 0 && to_make ? &cat->output : NULL, &digests[i], err);
        if (status != 0)
            break;
        if (cat->json)
            print_batch_json(schema, digests, &info);
        else
            print_batch(schema, digests, &info);
        sum->batches++;
        sum->samples += info.valid;
        if (cat->pause_ms > 0) {
            fflush(stdout);
            nanosleep(&(struct timespec){(time_t)(cat->pause_ms / 1000), (long)(cat->pause_ms % 1000) * 1000000}, NULL);
        }
        status = feedd_release(batch, NULL, err);
        if (status != 0)
            break;
        if (ferror(stdout)) /* a pipe that closed: nobody wants more */
            return error_set(err, FEEDD_E_IO, "standard output can't be written");
    }
    sum->seconds = seconds_now() - began;
    return status == FEEDD_E_END || status == FEEDD_E_TIMEOUT ? 0 : status;
}

static void print_sum(struct feedd_stream *stream, const struct cat_options *cat, const struct cat_sum *sum)
{
    char token[FEEDD_TOKEN_TEXT];
    const struct feedd_schema *schema = feedd_stream_schema(stream);
    const char *normalize = normalize_mode_name(schema->normalize);
    feedd_stream_token(stream, token);
    double rate = sum->seconds > 0 ? (double)sum->samples / sum->seconds : 0;
    if (cat->json) {
        print_json_line(json_pack("{s:b, s:I, s:I, s:f, s:f, s:s, s:s, s:s?, s:s, s:s}", "end", 1, "batches",
                                  (json_int_t)sum->batches, "samples", (json_int_t)sum->samples, "seconds",
                                  sum->seconds, "samples_per_s", rate, "token", token, "transport", schema->transport,
                                  "device", schema->device[0] != '\0' ? schema->device : NULL, "normalize", normalize,
                                  "mode_reason", schema->mode_reason));
        return;
    }
    printf("%" PRIu64 " batches, %" PRIu64 " samples in %.3f s: %.0f samples/s\n"
           "transport %s, normalize %s: %s\ntoken %s\n",
           sum->batches, sum->samples, sum->seconds, rate, schema->transport, normalize, schema->mode_reason, token);
}

int command_cat(const char *name, const char *socket_path, int argc, char **argv)
{
    (void)name;
    struct cat_options cat = {.open = FEEDD_OPEN_OPTIONS_INIT, .output = FEEDD_NORMALIZE_OPTIONS_INIT};
    int wrong = parse_options(argc, argv, &cat);
    if (wrong != 0)
        return wrong == -1 ? 0 : wrong;
    struct sigaction action = {.sa_handler = on_interrupt};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    signal(SIGPIPE, SIG_IGN);
    struct feedd_error err;
    struct feedd_client *client;
    struct feedd_stream *stream;
    struct cat_sum sum = {0};
    if (feedd_connect(socket_path, &client, &err) != 0)
        return fail(&err);
    int status = feedd_open(client, cat.source, &cat.open, &stream, &err);
    if (status == 0) {
        status = read_batches(stream, &cat, &sum, &err);
        print_sum(stream, &cat, &sum); /* also after a failure: the token says how far it came */
    }
    feedd_client_close(client);
    if (status != 0)
        return fail(&err);
    return fflush(stdout) == 0 ? 0 : 1;
}
