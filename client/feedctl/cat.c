/* cat.c - feedctl cat: reads a stream as a trainer does and prints each batch, to look inside and to compare.
 *
 * One line a batch: epoch, seq, position, count, valid, a digest of every field (XXH3, 64 bits, of the bytes of all
 * samples in order), then sample indices and, where there are any, flags. At the end the rate and the resume token.
 * With --json one object a line, the last one with "end". */
#include <getopt.h>
#include <inttypes.h>
#include <jansson.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>

#include "error.h"
#include "feedctl.h"
#include "token.h"

struct cat_options {
    struct feedd_open_options open;
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
    "  --transform T     what is made of images, in place of what is configured: '{resize: 256, center_crop: 224}'\n"
    "  --reconnect       go on after a restart of the daemon\n"
    "  --pause MS        wait before each batch is given back, as a training step would\n"
    "  --json            one JSON object a line\n";

static int bad_choice(const char *option, const char *text, const char *allowed)
{
    fprintf(stderr, "feedctl: --%s %s: allowed are %s\n", option, text, allowed);
    return 2;
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

/* The digest of one field, wherever it is. @return 0, or what feedd_batch_read() says */
static int digest_field(const struct feedd_schema *schema, const struct feedd_batch *batch, uint32_t field,
                        uint64_t *digest, struct feedd_error *err)
{
    struct feedd_view view;
    feedd_batch_view(batch, field, &view);
    if (schema->device[0] == '\0') {
        *digest = XXH3_64bits(view.data, view.bytes);
        return 0;
    }
    void *bytes = malloc(view.bytes);
    if (bytes == NULL)
        return error_set(err, FEEDD_E_MEMORY, "no memory for %" PRIu64 " bytes of a field", view.bytes);
    int status = feedd_batch_read(batch, field, bytes, view.bytes, err);
    if (status == 0)
        *digest = XXH3_64bits(bytes, view.bytes);
    free(bytes);
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
            status = digest_field(schema, batch, i, &digests[i], err);
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
    feedd_stream_token(stream, token);
    double rate = sum->seconds > 0 ? (double)sum->samples / sum->seconds : 0;
    if (cat->json) {
        print_json_line(json_pack("{s:b, s:I, s:I, s:f, s:f, s:s}", "end", 1, "batches", (json_int_t)sum->batches,
                                  "samples", (json_int_t)sum->samples, "seconds", sum->seconds, "samples_per_s", rate,
                                  "token", token));
        return;
    }
    printf("%" PRIu64 " batches, %" PRIu64 " samples in %.3f s: %.0f samples/s\ntoken %s\n", sum->batches, sum->samples,
           sum->seconds, rate, token);
}

int command_cat(const char *name, const char *socket_path, int argc, char **argv)
{
    (void)name;
    struct cat_options cat = {.open = FEEDD_OPEN_OPTIONS_INIT};
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
