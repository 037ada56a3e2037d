/* config_output.c - see config_output.h.
 *
 * Happy path: a table of keys for `output`; values of channels are one number for all, or a list.
 * What can fail: what conf_yaml.h says; a value that normalize_check() would refuse for every image.
 * Threads: loop only. */
#include "config_output.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "error.h"
#include "output.h"

/* What the keys fill: values of channels that a list leaves out are known once all is read. */
struct parsed {
    struct output_spec spec;
    size_t channels; /* fewest that a list has */
};

static int parse_dtype(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, void *field)
{
    (void)key;
    const char *text;
    char buffer[CONF_SHOWN_SIZE];
    int dtype, rc = conf_text(w, node, &text);
    if (rc != 0)
        return rc;
    if (dtype_parse(text, &dtype) != 0 || dtype > FEEDD_F32)
        return conf_fail(w, node,
                         "'%s' is not a type of images; allowed: uint8, int8, float16, bfloat16, float32 (or u8, i8, "
                         "f16, bf16, f32)",
                         conf_shown(text, buffer));
    *(int *)field = dtype;
    return 0;
}

static int parse_layout(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, void *field)
{
    (void)key;
    const char *text;
    char buffer[CONF_SHOWN_SIZE];
    int rc = conf_text(w, node, &text);
    if (rc != 0)
        return rc;
    const bool nchw = strcmp(text, "nchw") == 0;
    if (!nchw && strcmp(text, "nhwc") != 0)
        return conf_fail(w, node, "'%s' is not a layout; allowed: nhwc, nchw", conf_shown(text, buffer));
    *(bool *)field = nchw;
    return 0;
}

static int parse_value(struct conf_walk *w, yaml_node_t *node, bool positive, double *out)
{
    const char *text;
    char buffer[CONF_SHOWN_SIZE];
    double value;
    int rc = conf_text(w, node, &text);
    if (rc != 0)
        return rc;
    if (conf_decimal(text, &value) != 0 || !isfinite(value) || (positive && value <= 0))
        return conf_fail(w, node, "'%s' is not allowed; allowed: a number%s", conf_shown(text, buffer),
                         positive ? " above 0" : "");
    *out = value;
    return 0;
}

/* A number for all channels, or one for each; as torchvision has it, a list of one is for all, too. */
static int parse_channels(struct conf_walk *w, yaml_node_t *node, struct parsed *parsed, bool positive, double *out)
{
    const bool list = node->type == YAML_SEQUENCE_NODE;
    const yaml_node_item_t *items = list ? node->data.sequence.items.start : NULL;
    const size_t count = list ? (size_t)(node->data.sequence.items.top - items) : 1;
    if (count == 0 || count > NORMALIZE_CHANNELS_MAX)
        return conf_fail(w, node, "%zu numbers; allowed: one, or a list of 1 to %u, one a channel", count,
                         NORMALIZE_CHANNELS_MAX);
    for (size_t c = 0; c < count; c++) {
        int rc = parse_value(w, list ? conf_node(w, items[c]) : node, positive, &out[c]);
        if (rc != 0)
            return rc;
    }
    for (size_t c = 1; count == 1 && c < NORMALIZE_CHANNELS_MAX; c++)
        out[c] = out[0];
    if (count > 1 && count < parsed->channels)
        parsed->channels = count;
    return 0;
}

/* `field` is what is parsed. */
static int parse_mean(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, void *field)
{
    (void)key;
    struct parsed *parsed = field;
    return parse_channels(w, node, parsed, false, parsed->spec.mean);
}

/* Likewise. */
static int parse_std(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, void *field)
{
    (void)key;
    struct parsed *parsed = field;
    return parse_channels(w, node, parsed, true, parsed->spec.std);
}

static int parse_scale(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, void *field)
{
    (void)key;
    return parse_value(w, node, true, field);
}

#define OUTPUT(field) offsetof(struct parsed, spec.field)

static const struct conf_key output_keys[] = {
    {"dtype", CONF_REQUIRED, parse_dtype, OUTPUT(dtype), 0, 0},
    {"layout", 0, parse_layout, OUTPUT(nchw), 0, 0},
    {"mean", 0, parse_mean, 0, 0, 0},
    {"std", 0, parse_std, 0, 0, 0},
    {"scale", 0, parse_scale, OUTPUT(scale), 0, 0},
    {NULL, 0, NULL, 0, 0, 0},
};

_Static_assert(CONF_FITS(output_keys), "raise CONF_KEYS_MAX");

int config_output(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, void *field)
{
    (void)key;
    struct parsed parsed = {.spec = *(const struct output_spec *)field, .channels = NORMALIZE_CHANNELS_MAX};
    int rc = conf_mapping(w, output_keys, node, node, &w->sub, &parsed);
    if (rc != 0)
        return rc;
    for (size_t c = parsed.channels; c < NORMALIZE_CHANNELS_MAX; c++)
        parsed.spec.std[c] = 0; /* images that have this channel are refused, once that is known */
    *(struct output_spec *)field = parsed.spec;
    return 0;
}

int config_normalize(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, void *field)
{
    (void)key;
    const char *text;
    char buffer[CONF_SHOWN_SIZE];
    int mode = 0, rc = conf_text(w, node, &text);
    if (rc != 0)
        return rc;
    if (strcmp(text, "auto") != 0 && normalize_mode_parse(text, &mode) != 0)
        return conf_fail(w, node, "'%s' is not allowed; allowed: auto, client, daemon, cpu", conf_shown(text, buffer));
    *(int *)field = mode;
    return 0;
}
