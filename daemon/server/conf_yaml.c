/* conf_yaml.c - walking a YAML file by tables of keys.
 *
 * Happy path: read the file -> check its events (one document, no anchors or tags, no deep nesting) -> load it as a
 * tree -> walk the tree, one table of keys a mapping.
 * What can fail: the file can't be read; it isn't YAML; a key is unknown, repeated or missing; a value isn't allowed.
 * Threads: loop only.
 *
 * Why libyaml's document and not a mapping library such as libcyaml: every node keeps its line, so what only the whole
 * file shows (a stream of an unknown dataset, a batch size of 0) is still reported with file, line and key.
 *
 * Anchors and aliases are refused: an aliased node has the line of its anchor, not of its use, and aliases of lists
 * multiply. Scalars are taken as text, quoted or not; each key says what it makes of it. */
#include "conf_yaml.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"

#define FILE_MAX_BYTES (1u << 20)
#define TEXT_MAX_BYTES 4096u
#define NESTING_MAX    16 /* more than any key needs; libyaml takes minutes over a megabyte of brackets */

/* Errors. */

int conf_fail(const struct conf_walk *w, const yaml_node_t *node, const char *format, ...)
{
    char what[sizeof(w->err->message)];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof(what), format, args);
    va_end(args);
    const char *part[] = {w->section, w->name, w->key, w->sub, w->leaf};
    const size_t part_count = sizeof(part) / sizeof(part[0]);
    char place[5 * CONF_SHOWN_SIZE] = ""; /* keys of a table are short, names come from conf_shown() */
    size_t used = 0;
    for (size_t i = 0; i < part_count; i++)
        if (part[i] != NULL)
            used += (size_t)snprintf(place + used, sizeof(place) - used, "%s%s", i > 0 ? "." : "", part[i]);
    return error_set(w->err, FEEDD_E_ARGUMENT, "%s:%zu: %s%s%s", w->file, node->start_mark.line + 1, place,
                     used > 0 ? ": " : "", what);
}

int conf_no_memory(const struct conf_walk *w)
{
    return error_set(w->err, FEEDD_E_MEMORY, "%s: not enough memory for the configuration", w->file);
}

int conf_fail_missing(const struct conf_walk *w, const yaml_node_t *owner, const struct conf_key *keys)
{
    struct conf_list required = {.used = 0};
    for (int k = 0; keys[k].name != NULL; k++)
        if (keys[k].flags & CONF_REQUIRED)
            conf_list_add(&required, keys[k].name);
    return conf_fail(w, owner, "missing; required: %s", required.text);
}

const char *conf_shown(const char *text, char out[CONF_SHOWN_SIZE])
{
    size_t length = strlen(text), end = length < CONF_SHOWN ? length : CONF_SHOWN;
    while (end < length && end > 0 && ((unsigned char)text[end] & 0xC0) == 0x80)
        end--;
    snprintf(out, CONF_SHOWN_SIZE, "%.*s%s", (int)end, text, end < length ? "..." : "");
    return out;
}

void conf_list_add(struct conf_list *list, const char *word)
{
    static const char more[] = ", ...";
    if (list->full)
        return;
    list->full = list->used + 2 + strlen(word) + sizeof(more) > sizeof(list->text);
    if (list->full)
        memcpy(list->text + list->used, more, sizeof(more));
    else
        list->used += (size_t)snprintf(list->text + list->used, sizeof(list->text) - list->used, "%s%s",
                                       list->used > 0 ? ", " : "", word);
}

/* Nodes. */

yaml_node_t *conf_node(struct conf_walk *w, int index)
{
    return yaml_document_get_node(&w->document, index);
}

const char *conf_kind(const yaml_node_t *node)
{
    return node->type == YAML_MAPPING_NODE ? "a mapping" : node->type == YAML_SEQUENCE_NODE ? "a list" : "text";
}

int conf_text(const struct conf_walk *w, const yaml_node_t *node, const char **text)
{
    *text = ""; /* compilers don't know that conf_fail() never returns 0 */
    if (node->type != YAML_SCALAR_NODE)
        return conf_fail(w, node, "is %s; allowed: one value", conf_kind(node));
    const char *value = (const char *)node->data.scalar.value;
    if (strlen(value) != node->data.scalar.length)
        return conf_fail(w, node, "holds a NUL character; allowed: text without it");
    *text = value;
    return 0;
}

int conf_pairs(const struct conf_walk *w, const yaml_node_t *node, yaml_node_pair_t **pairs, size_t *count)
{
    *pairs = NULL;
    *count = 0;
    if (node->type == YAML_SCALAR_NODE && node->data.scalar.length == 0)
        return 0;
    if (node->type != YAML_MAPPING_NODE)
        return conf_fail(w, node, "is %s; allowed: a mapping (lines of `key: value`)", conf_kind(node));
    *pairs = node->data.mapping.pairs.start;
    *count = (size_t)(node->data.mapping.pairs.top - node->data.mapping.pairs.start);
    return 0;
}

/* Values. */

int conf_number(const char *text, const char **end, uint64_t *out)
{
    uint64_t value = 0;
    const char *c = text;
    for (; *c >= '0' && *c <= '9'; c++) {
        uint64_t digit = (uint64_t)(*c - '0');
        if (value > (UINT64_MAX - digit) / 10)
            return -1;
        value = value * 10 + digit;
    }
    if (c == text)
        return -1;
    *end = c;
    *out = value;
    return 0;
}

int conf_decimal(const char *text, double *out)
{
    char *end;
    if (text[strspn(text, "0123456789+-.eE")] != '\0') /* strtod() knows blanks, nan, hexadecimal */
        return -1;
    double value = strtod(text, &end);
    if (end == text || *end != '\0')
        return -1;
    *out = value;
    return 0;
}

static int parse_number(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, uint64_t *out)
{
    const char *text, *end;
    char buffer[CONF_SHOWN_SIZE];
    uint64_t value;
    int rc = conf_text(w, node, &text);
    if (rc != 0)
        return rc;
    if ((key->flags & CONF_AUTO) && strcmp(text, "auto") == 0)
        value = 0;
    else if (conf_number(text, &end, &value) != 0 || *end != '\0' || value < key->min || value > key->max)
        return conf_fail(w, node, "'%s' is not allowed; allowed: a whole number from %" PRIu64 " to %" PRIu64 "%s",
                         conf_shown(text, buffer), key->min, key->max, key->flags & CONF_AUTO ? ", or auto" : "");
    *out = value;
    return 0;
}

int conf_u64(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, void *field)
{
    return parse_number(w, key, node, field);
}

int conf_u32(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, void *field)
{
    uint64_t value = 0; /* as in conf_text() */
    int rc = parse_number(w, key, node, &value);
    if (rc == 0)
        *(uint32_t *)field = (uint32_t)value; /* key->max is less than 2^32 */
    return rc;
}

int conf_size(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, void *field)
{
    static const char *const units[][2] = {{"K", "KiB"}, {"M", "MiB"}, {"G", "GiB"}, {"T", "TiB"}};
    const char *text, *end;
    char buffer[CONF_SHOWN_SIZE];
    uint64_t value;
    int rc = conf_text(w, node, &text), shift = 0;
    if (rc != 0)
        return rc;
    if ((key->flags & CONF_AUTO) && strcmp(text, "auto") == 0) {
        *(uint64_t *)field = 0;
        return 0;
    }
    int good = conf_number(text, &end, &value) == 0;
    if (good && *end != '\0') {
        for (int i = 0; i < 4; i++)
            if (strcmp(end, units[i][0]) == 0 || strcmp(end, units[i][1]) == 0)
                shift = 10 * (i + 1);
        good = shift > 0;
    }
    if (!good || value > UINT64_MAX >> shift || value << shift < key->min || value << shift > key->max)
        return conf_fail(w, node,
                         "'%s' is not allowed; allowed: bytes from %" PRIu64 " to %" PRIu64 ", with K, M, G or T "
                         "for powers of 1024%s",
                         conf_shown(text, buffer), key->min, key->max, key->flags & CONF_AUTO ? ", or auto" : "");
    *(uint64_t *)field = value << shift;
    return 0;
}

int conf_path(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, void *field)
{
    (void)key;
    const char *text, *slash = strrchr(w->path, '/');
    int rc = conf_text(w, node, &text);
    if (rc != 0)
        return rc;
    if (text[0] == '\0')
        return conf_fail(w, node, "empty; allowed: a path");
    size_t folder = text[0] == '/' || slash == NULL ? 0 : (size_t)(slash - w->path) + 1, length = strlen(text);
    char *joined = malloc(folder + length + 1);
    if (joined == NULL)
        return conf_no_memory(w);
    memcpy(joined, w->path, folder);
    memcpy(joined + folder, text, length + 1);
    free(*(char **)field); /* the default */
    *(char **)field = joined;
    return 0;
}

int conf_enum(const struct conf_walk *w, const yaml_node_t *node, const char *what, int (*parse)(const char *, int *),
              const char *(*name)(int), void *field)
{
    const char *text;
    char buffer[CONF_SHOWN_SIZE];
    int value, rc = conf_text(w, node, &text);
    if (rc != 0)
        return rc;
    if (parse(text, &value) != 0) {
        struct conf_list allowed = {.used = 0};
        for (int i = 1; name(i) != NULL; i++)
            conf_list_add(&allowed, name(i));
        return conf_fail(w, node, "'%s' is not %s; allowed: %s", conf_shown(text, buffer), what, allowed.text);
    }
    *(int *)field = value;
    return 0;
}

/* Mappings. */

/* The key of a pair, with w->*place set to it, for messages. `buffer` has to live as long as it is there. */
static int key_text(struct conf_walk *w, yaml_node_t *node, const char **place, char buffer[CONF_SHOWN_SIZE],
                    const char **text)
{
    int rc = conf_text(w, node, text);
    if (rc == 0)
        *place = conf_shown(*text, buffer);
    return rc;
}

int conf_mapping(struct conf_walk *w, const struct conf_key *keys, yaml_node_t *node, const yaml_node_t *owner,
                 const char **place, void *fields)
{
    yaml_node_t *values[CONF_KEYS_MAX] = {NULL}, *names[CONF_KEYS_MAX] = {NULL};
    yaml_node_pair_t *pairs;
    size_t count;
    int rc = conf_pairs(w, node, &pairs, &count);
    for (size_t i = 0; rc == 0 && i < count; i++) {
        yaml_node_t *name = conf_node(w, pairs[i].key);
        const char *text;
        char buffer[CONF_SHOWN_SIZE];
        int k = 0;
        rc = key_text(w, name, place, buffer, &text);
        if (rc != 0)
            break;
        while (keys[k].name != NULL && strcmp(keys[k].name, text) != 0)
            k++;
        if (keys[k].name == NULL) {
            struct conf_list allowed = {.used = 0};
            for (int j = 0; keys[j].name != NULL; j++)
                conf_list_add(&allowed, keys[j].name);
            rc = conf_fail(w, name, "unknown key; allowed: %s", allowed.text);
        } else if (values[k] != NULL) {
            rc = conf_fail(w, name, "repeated key; allowed: once, and it stands in line %zu",
                           names[k]->start_mark.line + 1);
        } else {
            names[k] = name;
            values[k] = conf_node(w, pairs[i].value);
        }
        *place = NULL;
    }
    for (int k = 0; rc == 0 && keys[k].name != NULL; k++) {
        *place = keys[k].name;
        if (values[k] != NULL)
            rc = keys[k].parse(w, &keys[k], values[k], (char *)fields + keys[k].offset);
        else if (keys[k].flags & CONF_REQUIRED)
            rc = conf_fail_missing(w, owner, keys);
        *place = NULL;
    }
    return rc;
}

static int check_name(struct conf_walk *w, const yaml_node_t *node, const char *name)
{
    size_t length = strlen(name);
    if (length == 0 || length > FEEDD_MAX_NAME)
        return conf_fail(w, node, "a name of %zu bytes; allowed: 1 to %u", length, FEEDD_MAX_NAME);
    if (strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") != length)
        return conf_fail(w, node, "not a name; allowed: letters A-Z and a-z, digits, '.', '_' and '-'");
    return 0;
}

int conf_entries(struct conf_walk *w, yaml_node_t *node, const char **place, size_t count_max,
                 int (*entry)(struct conf_walk *w, const char *name, yaml_node_t *owner, yaml_node_t *node))
{
    yaml_node_pair_t *pairs;
    size_t count;
    int rc = conf_pairs(w, node, &pairs, &count);
    if (rc == 0 && count > count_max)
        rc = conf_fail(w, node, "%zu entries; allowed: at most %zu", count, count_max);
    for (size_t i = 0; rc == 0 && i < count; i++) {
        yaml_node_t *owner = conf_node(w, pairs[i].key);
        const char *name;
        char buffer[CONF_SHOWN_SIZE];
        rc = key_text(w, owner, place, buffer, &name);
        if (rc == 0)
            rc = check_name(w, owner, name);
        for (size_t j = 0; rc == 0 && j < i; j++) {
            yaml_node_t *other = conf_node(w, pairs[j].key);
            if (strcmp((const char *)other->data.scalar.value, name) == 0)
                rc = conf_fail(w, owner, "repeated name; allowed: once, and it stands in line %zu",
                               other->start_mark.line + 1);
        }
        if (rc == 0)
            rc = entry(w, name, owner, conf_node(w, pairs[i].value));
        *place = NULL;
    }
    return rc;
}

/* The file. */

static int parser_init(const struct conf_walk *w, yaml_parser_t *parser)
{
    if (!yaml_parser_initialize(parser))
        return conf_no_memory(w);
    yaml_parser_set_input_string(parser, (const unsigned char *)w->text, w->text_bytes);
    yaml_parser_set_encoding(parser, YAML_UTF8_ENCODING); /* no guessing: offsets of errors are bytes of the file */
    return 0;
}

static int parser_error(const struct conf_walk *w, const yaml_parser_t *parser)
{
    if (parser->error == YAML_MEMORY_ERROR)
        return conf_no_memory(w);
    size_t line = parser->problem_mark.line + 1;
    if (parser->error == YAML_READER_ERROR) { /* knows its offset only */
        line = 1;
        for (size_t i = 0; i < parser->problem_offset && i < w->text_bytes; i++)
            line += w->text[i] == '\n';
    }
    return error_set(w->err, FEEDD_E_ARGUMENT, "%s:%zu: not YAML: %s%s%s", w->file, line,
                     parser->context != NULL ? parser->context : "", parser->context != NULL ? ": " : "",
                     parser->problem != NULL ? parser->problem : "unknown problem");
}

/* What the tree wouldn't show any more, or could cost too much to build.
 * @return the reason why feedd.conf may not have this event, or NULL */
static const char *refused(const yaml_event_t *event, int *documents, int *depth)
{
    const yaml_char_t *anchor = NULL, *tag = NULL;
    switch (event->type) {
    case YAML_DOCUMENT_START_EVENT:
        return ++*documents > 1 ? "a second document begins; allowed: one" : NULL;
    case YAML_ALIAS_EVENT:
        return "an alias (*name); allowed: write the value out";
    case YAML_SCALAR_EVENT:
        anchor = event->data.scalar.anchor;
        tag = event->data.scalar.tag;
        break;
    case YAML_SEQUENCE_START_EVENT:
        anchor = event->data.sequence_start.anchor;
        tag = event->data.sequence_start.tag;
        ++*depth;
        break;
    case YAML_MAPPING_START_EVENT:
        anchor = event->data.mapping_start.anchor;
        tag = event->data.mapping_start.tag;
        ++*depth;
        break;
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT:
        --*depth;
        break;
    default:
        break;
    }
    if (anchor != NULL)
        return "an anchor (&name); allowed: values without one";
    if (tag != NULL)
        return "a tag (!name); allowed: values without one";
    return *depth > NESTING_MAX ? "nested more than 16 levels deep; allowed: as deep as the keys need" : NULL;
}

static int check_events(const struct conf_walk *w)
{
    yaml_parser_t parser;
    int documents = 0, depth = 0, end = 0, rc = parser_init(w, &parser);
    if (rc != 0)
        return rc;
    while (rc == 0 && !end) {
        yaml_event_t event;
        if (!yaml_parser_parse(&parser, &event)) {
            rc = parser_error(w, &parser);
            break;
        }
        const char *reason = refused(&event, &documents, &depth);
        if (reason != NULL)
            rc = error_set(w->err, FEEDD_E_ARGUMENT, "%s:%zu: %s", w->file, event.start_mark.line + 1, reason);
        end = event.type == YAML_STREAM_END_EVENT;
        yaml_event_delete(&event);
    }
    yaml_parser_delete(&parser);
    return rc;
}

int conf_init(struct conf_walk *w, const char *path, struct feedd_error *err)
{
    *w = (struct conf_walk){.path = path, .err = err};
    file_shown(path, w->file);
    return file_load(path, FILE_MAX_BYTES, "a configuration's limit", &w->text, &w->text_bytes, err);
}

int conf_init_text(struct conf_walk *w, const char *name, const char *text, struct feedd_error *err)
{
    *w = (struct conf_walk){.path = name, .text_bytes = strlen(text), .err = err};
    file_shown(name, w->file);
    if (w->text_bytes > TEXT_MAX_BYTES)
        return error_set(err, FEEDD_E_LIMIT, "%s: a text of %" PRIu64 " bytes; allowed: at most %u", name,
                         w->text_bytes, TEXT_MAX_BYTES);
    w->text = strdup(text);
    return w->text != NULL ? 0 : conf_no_memory(w);
}

/* @param root_parse  gets the document's root; is not called for nothing but comments */
static int parse(struct conf_walk *w, const struct conf_key *keys,
                 int (*root_parse)(struct conf_walk *w, const struct conf_key *keys, yaml_node_t *node, void *field),
                 void *root)
{
    yaml_parser_t parser;
    int rc = check_events(w);
    w->root = root;
    if (rc == 0)
        rc = parser_init(w, &parser);
    if (rc != 0)
        return rc;
    if (yaml_parser_load(&parser, &w->document)) {
        yaml_node_t *node = yaml_document_get_root_node(&w->document);
        if (node != NULL)
            rc = root_parse(w, keys, node, root);
        yaml_document_delete(&w->document);
    } else {
        rc = parser_error(w, &parser);
    }
    yaml_parser_delete(&parser);
    return rc;
}

static int parse_sections(struct conf_walk *w, const struct conf_key *keys, yaml_node_t *node, void *root)
{
    return conf_mapping(w, keys, node, node, &w->section, root);
}

int conf_parse(struct conf_walk *w, const struct conf_key *keys, void *root)
{
    return parse(w, keys, parse_sections, root);
}

int conf_parse_value(struct conf_walk *w, const struct conf_key *key, void *field)
{
    w->section = key->name;
    return parse(w, key, key->parse, field);
}

void conf_done(struct conf_walk *w)
{
    free(w->text);
}
