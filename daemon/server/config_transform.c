/* config_transform.c - see config_transform.h.
 *
 * Happy path: a table of keys for `transform`, and one each for the transforms that may be given as a mapping.
 * What can fail: what conf_yaml.h says; a value is none; two transforms at once; what transform_check() refuses.
 * Threads: loop only. */
#include "config_transform.h"

#include <stddef.h>
#include <string.h>

#include "geometry.h"

#define SIDE_MAX 16384 /* pixels; transform_check() has the last word */

/* Values. */

/* One of two words. @param second  gets whether it is the second one */
static int parse_choice(struct conf_walk *w, yaml_node_t *node, const char *first_word, const char *second_word,
                        bool *second)
{
    const char *text;
    char buffer[CONF_SHOWN_SIZE];
    int rc = conf_text(w, node, &text);
    if (rc != 0)
        return rc;
    const bool is_second = strcmp(text, second_word) == 0;
    if (!is_second && strcmp(text, first_word) != 0)
        return conf_fail(w, node, "'%s' is not allowed; allowed: %s, %s", conf_shown(text, buffer), first_word,
                         second_word);
    *second = is_second;
    return 0;
}

/* How many values a list has; 1 for what is no list. */
static size_t value_count(const yaml_node_t *node)
{
    return node->type != YAML_SEQUENCE_NODE ? 1
                                            : (size_t)(node->data.sequence.items.top - node->data.sequence.items.start);
}

static yaml_node_t *value_at(struct conf_walk *w, yaml_node_t *node, size_t i)
{
    return node->type != YAML_SEQUENCE_NODE ? node : conf_node(w, node->data.sequence.items.start[i]);
}

/* 224, or [height, width]. */
static int parse_sides(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, uint32_t *height,
                       uint32_t *width)
{
    const size_t count = value_count(node);
    if (node->type == YAML_SEQUENCE_NODE && count != 2)
        return conf_fail(w, node, "%zu numbers; allowed: one number, or [height, width]", count);
    int rc = conf_u32(w, key, value_at(w, node, 0), height);
    return rc == 0 ? conf_u32(w, key, value_at(w, node, count - 1), width) : rc;
}

/* A decimal number, or a quotient of two. @return 0 or -1 */
static int read_quotient(const char *text, double *out)
{
    char dividend[CONF_SHOWN_SIZE];
    double value, divisor = 1;
    const size_t length = strcspn(text, "/");
    if (length >= sizeof(dividend))
        return -1;
    memcpy(dividend, text, length);
    dividend[length] = '\0';
    if (conf_decimal(dividend, &value) != 0 || (text[length] == '/' && conf_decimal(text + length + 1, &divisor) != 0))
        return -1;
    *out = value / divisor; /* infinite, or not a number, is in no range */
    return 0;
}

/* [least, most], into double[2]. */
static int parse_range(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, void *field)
{
    (void)key;
    double range[2];
    if (node->type != YAML_SEQUENCE_NODE || value_count(node) != 2)
        return conf_fail(w, node, "isn't a range; allowed: [least, most]");
    for (size_t i = 0; i < 2; i++) {
        yaml_node_t *value = value_at(w, node, i);
        const char *text;
        char buffer[CONF_SHOWN_SIZE];
        int rc = conf_text(w, value, &text);
        if (rc != 0)
            return rc;
        if (read_quotient(text, &range[i]) != 0)
            return conf_fail(w, value, "'%s' is not a number; allowed: numbers like 0.75 or 3/4",
                             conf_shown(text, buffer));
    }
    memcpy(field, range, sizeof(range));
    return 0;
}

/* torchvision's forms: of all sides; [left and right, above and below]; [left, above, right, below]. */
static int parse_padding(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, void *field)
{
    uint32_t padding[4];
    const size_t count = value_count(node);
    if (count != 1 && count != 2 && count != 4)
        return conf_fail(w, node, "%zu numbers; allowed: one, [x, y], or [left, top, right, bottom]", count);
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < 4; i++)
        rc = conf_u32(w, key, value_at(w, node, i % count), &padding[i]);
    if (rc == 0)
        memcpy(field, padding, sizeof(padding));
    return rc;
}

static int parse_probability(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, void *field)
{
    (void)key;
    const char *text;
    char buffer[CONF_SHOWN_SIZE];
    double value;
    int rc = conf_text(w, node, &text);
    if (rc != 0)
        return rc;
    if (conf_decimal(text, &value) != 0 || value < 0 || value > 1)
        return conf_fail(w, node, "'%s' is not a probability; allowed: 0 to 1", conf_shown(text, buffer));
    *(double *)field = value;
    return 0;
}

/* Transforms: `field` is the spec. */

/* A stream has one transform. */
static int take_kind(struct conf_walk *w, const yaml_node_t *node, struct transform_spec *spec, int kind)
{
    if (spec->kind != TRANSFORM_NONE)
        return conf_fail(w, node,
                         "beside %s; allowed: one of resize (with center_crop), random_resized_crop, random_crop",
                         transform_kind_name(spec->kind));
    spec->kind = kind;
    return 0;
}

/* The shorter side, or [height, width], which are delivered unless a center_crop says otherwise. */
static int parse_resize(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, void *field)
{
    struct transform_spec *spec = field;
    int rc = take_kind(w, node, spec, TRANSFORM_RESIZE_CENTER_CROP);
    if (rc != 0)
        return rc;
    if (node->type != YAML_SEQUENCE_NODE)
        return conf_u32(w, key, node, &spec->resize);
    rc = parse_sides(w, key, node, &spec->resize_height, &spec->resize_width);
    spec->height = spec->resize_height;
    spec->width = spec->resize_width;
    return rc;
}

static int parse_size(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, void *field)
{
    struct transform_spec *spec = field;
    return parse_sides(w, key, node, &spec->height, &spec->width);
}

static int parse_center_crop(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, void *field)
{
    const struct transform_spec *spec = field;
    if (spec->kind != TRANSFORM_RESIZE_CENTER_CROP)
        return conf_fail(w, node, "alone; required: resize and center_crop together");
    return parse_size(w, key, node, field);
}

#define TRANSFORM(field) offsetof(struct transform_spec, field)

static const struct conf_key random_resized_crop_keys[] = {
    {"size", CONF_REQUIRED, parse_size, 0, 1, SIDE_MAX},
    {"scale", 0, parse_range, TRANSFORM(scale), 0, 0},
    {"ratio", 0, parse_range, TRANSFORM(ratio), 0, 0},
    {NULL, 0, NULL, 0, 0, 0},
};
static const struct conf_key random_crop_keys[] = {
    {"size", CONF_REQUIRED, parse_size, 0, 1, SIDE_MAX},
    {"padding", 0, parse_padding, TRANSFORM(padding), 0, SIDE_MAX},
    {NULL, 0, NULL, 0, 0, 0},
};

/* A size alone, or a mapping. */
static int parse_random(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node,
                        const struct conf_key *mapping_keys, void *field)
{
    return node->type == YAML_MAPPING_NODE ? conf_mapping(w, mapping_keys, node, node, &w->leaf, field)
                                           : parse_size(w, key, node, field);
}

static int parse_random_resized_crop(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, void *field)
{
    static const double scale[2] = {0.08, 1}, ratio[2] = {3.0 / 4, 4.0 / 3}; /* torchvision's defaults */
    struct transform_spec *spec = field;
    int rc = take_kind(w, node, spec, TRANSFORM_RANDOM_RESIZED_CROP);
    if (rc != 0)
        return rc;
    memcpy(spec->scale, scale, sizeof(scale));
    memcpy(spec->ratio, ratio, sizeof(ratio));
    return parse_random(w, key, node, random_resized_crop_keys, field);
}

static int parse_random_crop(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, void *field)
{
    int rc = take_kind(w, node, field, TRANSFORM_RANDOM_CROP);
    return rc == 0 ? parse_random(w, key, node, random_crop_keys, field) : rc;
}

static const struct conf_key transform_keys[] = {
    {"resize", 0, parse_resize, 0, 1, SIDE_MAX},
    {"center_crop", 0, parse_center_crop, 0, 1, SIDE_MAX},
    {"random_resized_crop", 0, parse_random_resized_crop, 0, 1, SIDE_MAX},
    {"random_crop", 0, parse_random_crop, 0, 1, SIDE_MAX},
    {"flip", 0, parse_probability, TRANSFORM(flip), 0, 0},
    {NULL, 0, NULL, 0, 0, 0},
};

_Static_assert(CONF_FITS(transform_keys) && CONF_FITS(random_resized_crop_keys) && CONF_FITS(random_crop_keys),
               "raise CONF_KEYS_MAX");

int config_transform(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, void *field)
{
    (void)key;
    struct transform_spec *spec = field;
    int rc = conf_mapping(w, transform_keys, node, node, &w->sub, spec);
    if (rc != 0)
        return rc;
    if (spec->resize != 0 && spec->height == 0)
        return conf_fail(w, node,
                         "resize of the shorter side alone; required: resize and center_crop together, or "
                         "resize: [height, width]");
    const char *problem = transform_check(spec);
    return problem != NULL ? conf_fail(w, node, "%s", problem) : 0;
}

int config_decode(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, void *field)
{
    (void)key;
    return parse_choice(w, node, "exact", "fast", field);
}

int config_orientation(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, void *field)
{
    (void)key;
    return parse_choice(w, node, "exif", "ignore", field);
}

int config_truncated(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, void *field)
{
    (void)key;
    return parse_choice(w, node, "fail", "accept", field);
}

int config_channels(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, void *field)
{
    (void)key;
    bool luma;
    int rc = parse_choice(w, node, "3", "1", &luma);
    if (rc == 0)
        *(uint32_t *)field = luma ? 1 : 3;
    return rc;
}
