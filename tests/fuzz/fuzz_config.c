/* fuzz_config.c - feedd.conf: YAML that people write.
 *
 * Input: the file.
 * What has to hold: a configuration that loads keeps to its documented limits and refers only to itself; a refusal
 * names the file, and the line where the content is at fault; no descriptor stays open. */
#include <ctype.h>

#include "config.h"
#include "fuzz.h"

static int is_name(const char *name)
{
    size_t length = strlen(name);
    return length >= 1 && length <= FEEDD_MAX_NAME &&
           strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") == length;
}

static void check_dataset(const struct config *config, const struct reader_config *dataset)
{
    FUZZ_CHECK(is_name(dataset->name) && config_dataset(config, dataset->name) == dataset);
    FUZZ_CHECK(dataset->ops != NULL && dataset->images != NULL && dataset->images[0] != '\0');
    FUZZ_CHECK(dataset->labels == NULL || dataset->labels[0] != '\0');
    for (uint32_t c = 0; c < dataset->class_count; c++)
        FUZZ_CHECK(strlen(dataset->classes[c]) >= 1 && strlen(dataset->classes[c]) <= FEEDD_MAX_NAME);
}

static void check_stream(const struct config *config, const struct config_stream *stream)
{
    FUZZ_CHECK(is_name(stream->name) && config_stream(config, stream->name) == stream);
    FUZZ_CHECK(stream->dataset >= config->datasets && stream->dataset < config->datasets + config->dataset_count);
    FUZZ_CHECK(stream->batch_size >= 1 && stream->batch_size <= FEEDD_MAX_BATCH);
    FUZZ_CHECK(stream->order == FEEDD_ORDER_SEQUENTIAL || stream->order == FEEDD_ORDER_SHUFFLE);
    FUZZ_CHECK(stream->tail >= FEEDD_TAIL_DROP && stream->tail <= FEEDD_TAIL_PARTIAL);
    FUZZ_CHECK(stream->depth == 0 || (stream->depth >= 2 && stream->depth <= FEEDD_MAX_DEPTH));
}

static void check_config(const struct config *config)
{
    FUZZ_CHECK(config->socket[0] != '\0' && strlen(config->socket) < 108);
    FUZZ_CHECK(config->clients_max > 0 && config->streams_per_client_max > 0);
    for (uint32_t i = 0; i < config->dataset_count; i++)
        check_dataset(config, &config->datasets[i]);
    for (uint32_t i = 0; i < config->stream_count; i++)
        check_stream(config, &config->streams[i]);
}

/* "FILE:LINE: ..." for what stands in the file, "FILE: ..." else. */
static void check_refusal(const struct feedd_error *err, int status, const char *path)
{
    size_t length = strlen(path);
    fuzz_check_error(err, status);
    FUZZ_CHECK(status == FEEDD_E_ARGUMENT || status == FEEDD_E_LIMIT);
    FUZZ_CHECK(strncmp(err->message, path, length) == 0 && err->message[length] == ':');
    FUZZ_CHECK(status != FEEDD_E_ARGUMENT || isdigit((unsigned char)err->message[length + 1]));
}

/* The same bytes as a transform that a client sends. */
static void check_text(const uint8_t *data, size_t size)
{
    struct transform_spec spec = {.kind = 77};
    struct feedd_error err;
    char *text = strndup((const char *)data, size);
    FUZZ_CHECK(text != NULL);
    int status = config_transform_text(text, &spec, &err);
    free(text);
    if (status == 0) {
        FUZZ_CHECK(transform_check(&spec) == NULL);
        return;
    }
    FUZZ_CHECK(spec.kind == 77);
    check_refusal(&err, status, "request");
    for (const char *c = err.message; *c != '\0'; c++)
        FUZZ_CHECK(*c >= 0x20 && *c < 0x7F);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct fuzz_file file;
    struct config *config = NULL;
    struct feedd_error err;
    fuzz_file_write(&file, data, size);
    int next_fd = fuzz_next_fd();
    int status = config_load(file.path, &config, &err);
    if (status == 0) {
        check_config(config);
        config_free(config);
    } else {
        FUZZ_CHECK(config == NULL);
        check_refusal(&err, status, file.path);
    }
    check_text(data, size);
    FUZZ_CHECK(fuzz_next_fd() == next_fd);
    return 0;
}
