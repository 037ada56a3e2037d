/* config.c - feedd.conf from YAML into plain structs.
 *
 * Happy path: read the file -> check its events (one document, no anchors or tags, no deep nesting) -> load it as a
 * tree -> walk the tree with one table of keys a section: daemon, then datasets, then streams, which refer to datasets.
 * What can fail: the file can't be read; it isn't YAML; a key is unknown, repeated or missing; a value isn't allowed; a
 * user or group is unknown.
 * Threads: loop only.
 *
 * Why libyaml's document and not a mapping library such as libcyaml: every node keeps its line, so what only the whole
 * file shows (a stream of an unknown dataset, a batch size of 0) is still reported with file, line and key.
 *
 * Anchors and aliases are refused: an aliased node has the line of its anchor, not of its use, and aliases of lists
 * multiply. Scalars are taken as text, quoted or not; each key says what it makes of it. */
#include "config.h"

#include <errno.h>
#include <grp.h>
#include <inttypes.h>
#include <pwd.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>
#include <yaml.h>

#include "error.h"
#include "file.h"

#define FILE_MAX_BYTES  (1u << 20)
#define ENTRIES_MAX     4096u      /* datasets; streams */
#define CLASSES_MAX     65536u     /* of a dataset */
#define SPLITS_MAX      256u       /* of a dataset */
#define SIDE_MAX        16384      /* pixels; transform_check() has the last word */
#define IDS_MAX         4096u      /* users, or groups, of a rule */
#define ID_BUFFER_MAX   (1u << 20) /* bytes of a group's entry: its members' names */
#define NESTING_MAX     16         /* more than any key needs; libyaml takes minutes over a megabyte of brackets */
#define SOCKET_PATH_MAX (sizeof(((struct sockaddr_un *)NULL)->sun_path) - 1)
#define SOCKET_DEFAULT  "/run/feedd/feedd.sock"
#define SUM_TOLERANCE   1e-9 /* of the sum of splits: 0.7 + 0.2 + 0.1 is not 1 */
#define SHOWN           64u  /* bytes of a value that messages show */

struct loader {
    const char *path;
    char file[FILE_SHOWN];            /* the path as messages show it */
    const char *section, *name, *key; /* where the walk is; NULL where it isn't on that level */
    const char *sub;                  /* the key within a key's mapping */
    struct config *config;
    yaml_document_t document;
    struct feedd_error *err;
};

enum key_flag {
    KEY_REQUIRED = 1 << 0,
    KEY_AUTO = 1 << 1, /* the text "auto" is allowed, and stored as 0 */
};

/* What may stand in one mapping: a table of these. */
struct key {
    const char *name;
    int flags; /* enum key_flag */
    int (*parse)(struct loader *l, const struct key *key, yaml_node_t *node, void *field);
    size_t offset;     /* of `field` in the section's struct */
    uint64_t min, max; /* of a number */
};

/* Errors. */

/* "FILE:LINE: section.name.key.sub: " and what is formatted. */
__attribute__((format(printf, 3, 4))) static int fail(const struct loader *l, const yaml_node_t *node,
                                                      const char *format, ...)
{
    char what[sizeof(l->err->message)];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof(what), format, args);
    va_end(args);
    const char *part[4] = {l->section, l->name, l->key, l->sub};
    char place[4 * (SHOWN + 4)] = ""; /* keys of a table are short, names come from shown() */
    size_t used = 0;
    for (int i = 0; i < 4; i++)
        if (part[i] != NULL)
            used += (size_t)snprintf(place + used, sizeof(place) - used, "%s%s", i > 0 ? "." : "", part[i]);
    return error_set(l->err, FEEDD_E_ARGUMENT, "%s:%zu: %s%s%s", l->file, node->start_mark.line + 1, place,
                     used > 0 ? ": " : "", what);
}

static int no_memory(const struct loader *l)
{
    return error_set(l->err, FEEDD_E_MEMORY, "%s: not enough memory for the configuration", l->file);
}

/* A value as messages show it: its first bytes, whole UTF-8 characters. */
static const char *shown(const char *text, char out[SHOWN + 4])
{
    size_t length = strlen(text), end = length < SHOWN ? length : SHOWN;
    while (end < length && end > 0 && ((unsigned char)text[end] & 0xC0) == 0x80)
        end--;
    snprintf(out, SHOWN + 4, "%.*s%s", (int)end, text, end < length ? "..." : "");
    return out;
}

/* "a, b, c" for messages; what doesn't fit is left out and marked. */
struct list {
    char text[384];
    size_t used;
    int full;
};

static void list_add(struct list *list, const char *word)
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

static yaml_node_t *node_at(struct loader *l, int index)
{
    return yaml_document_get_node(&l->document, index);
}

static const char *kind(const yaml_node_t *node)
{
    return node->type == YAML_MAPPING_NODE ? "a mapping" : node->type == YAML_SEQUENCE_NODE ? "a list" : "text";
}

static int node_text(struct loader *l, const yaml_node_t *node, const char **text)
{
    *text = ""; /* compilers don't know that fail() never returns 0 */
    if (node->type != YAML_SCALAR_NODE)
        return fail(l, node, "is %s; allowed: one value", kind(node));
    const char *value = (const char *)node->data.scalar.value;
    if (strlen(value) != node->data.scalar.length)
        return fail(l, node, "holds a NUL character; allowed: text without it");
    *text = value;
    return 0;
}

/* Pairs of a mapping; nothing at all ("daemon:", with every line below it commented out) is an empty one. */
static int node_pairs(struct loader *l, const yaml_node_t *node, yaml_node_pair_t **pairs, size_t *count)
{
    *pairs = NULL;
    *count = 0;
    if (node->type == YAML_SCALAR_NODE && node->data.scalar.length == 0)
        return 0;
    if (node->type != YAML_MAPPING_NODE)
        return fail(l, node, "is %s; allowed: a mapping (lines of `key: value`)", kind(node));
    *pairs = node->data.mapping.pairs.start;
    *count = (size_t)(node->data.mapping.pairs.top - node->data.mapping.pairs.start);
    return 0;
}

/* Values. */

static int text_number(const char *text, const char **end, uint64_t *out)
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

static int parse_number(struct loader *l, const struct key *key, yaml_node_t *node, uint64_t *out)
{
    const char *text, *end;
    char buffer[SHOWN + 4];
    uint64_t value;
    int rc = node_text(l, node, &text);
    if (rc != 0)
        return rc;
    if ((key->flags & KEY_AUTO) && strcmp(text, "auto") == 0)
        value = 0;
    else if (text_number(text, &end, &value) != 0 || *end != '\0' || value < key->min || value > key->max)
        return fail(l, node, "'%s' is not allowed; allowed: a whole number from %" PRIu64 " to %" PRIu64 "%s",
                    shown(text, buffer), key->min, key->max, key->flags & KEY_AUTO ? ", or auto" : "");
    *out = value;
    return 0;
}

static int parse_u64(struct loader *l, const struct key *key, yaml_node_t *node, void *field)
{
    return parse_number(l, key, node, field);
}

static int parse_u32(struct loader *l, const struct key *key, yaml_node_t *node, void *field)
{
    uint64_t value;
    int rc = parse_number(l, key, node, &value);
    if (rc == 0)
        *(uint32_t *)field = (uint32_t)value; /* key->max is less than 2^32 */
    return rc;
}

/* Bytes: "512M", "4GiB", "1000000". */
static int parse_size(struct loader *l, const struct key *key, yaml_node_t *node, void *field)
{
    static const char *const units[][2] = {{"K", "KiB"}, {"M", "MiB"}, {"G", "GiB"}, {"T", "TiB"}};
    const char *text, *end;
    char buffer[SHOWN + 4];
    uint64_t value;
    int rc = node_text(l, node, &text), shift = 0;
    if (rc != 0)
        return rc;
    if ((key->flags & KEY_AUTO) && strcmp(text, "auto") == 0) {
        *(uint64_t *)field = 0;
        return 0;
    }
    int good = text_number(text, &end, &value) == 0;
    if (good && *end != '\0') {
        for (int i = 0; i < 4; i++)
            if (strcmp(end, units[i][0]) == 0 || strcmp(end, units[i][1]) == 0)
                shift = 10 * (i + 1);
        good = shift > 0;
    }
    if (!good || value > UINT64_MAX >> shift || value << shift < key->min || value << shift > key->max)
        return fail(l, node,
                    "'%s' is not allowed; allowed: bytes from %" PRIu64 " to %" PRIu64 ", with K, M, G or T "
                    "for powers of 1024%s",
                    shown(text, buffer), key->min, key->max, key->flags & KEY_AUTO ? ", or auto" : "");
    *(uint64_t *)field = value << shift;
    return 0;
}

/* A path; a relative one is taken from the configuration's own folder. */
static int parse_path(struct loader *l, const struct key *key, yaml_node_t *node, void *field)
{
    (void)key;
    const char *text, *slash = strrchr(l->path, '/');
    int rc = node_text(l, node, &text);
    if (rc != 0)
        return rc;
    if (text[0] == '\0')
        return fail(l, node, "empty; allowed: a path");
    size_t folder = text[0] == '/' || slash == NULL ? 0 : (size_t)(slash - l->path) + 1, length = strlen(text);
    char *joined = malloc(folder + length + 1);
    if (joined == NULL)
        return no_memory(l);
    memcpy(joined, l->path, folder);
    memcpy(joined + folder, text, length + 1);
    free(*(char **)field); /* the default */
    *(char **)field = joined;
    return 0;
}

static int parse_socket(struct loader *l, const struct key *key, yaml_node_t *node, void *field)
{
    int rc = parse_path(l, key, node, field);
    const size_t length = strlen(*(char **)field);
    if (rc == 0 && length > SOCKET_PATH_MAX)
        rc = fail(l, node,
                  "the path has %zu bytes, the folder included; allowed: at most %zu, as in every socket address",
                  length, SOCKET_PATH_MAX);
    return rc;
}

/* A decimal number and nothing else. @return 0 or -1 */
static int text_decimal(const char *text, double *out)
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

/* What is written as a number is a fraction, and anything else a file of indices. */
static int parse_selection(struct loader *l, yaml_node_t *node, struct reader_selection *selection)
{
    const char *text;
    char buffer[SHOWN + 4];
    double fraction;
    int rc = node_text(l, node, &text);
    if (rc != 0)
        return rc;
    if (text_decimal(text, &fraction) == 0) {
        if (fraction <= 0 || fraction > 1)
            return fail(l, node, "'%s' is not allowed; allowed: a fraction above 0 and up to 1, or a file of indices",
                        shown(text, buffer));
        selection->fraction_end = fraction;
        return 0;
    }
    return parse_path(l, NULL, node, &selection->file);
}

static int parse_subset(struct loader *l, const struct key *key, yaml_node_t *node, void *field)
{
    (void)key;
    struct reader_config *dataset = field;
    return parse_selection(l, node, &dataset->selections[0]);
}

static int parse_reader(struct loader *l, const struct key *key, yaml_node_t *node, void *field)
{
    (void)key;
    const char *text = NULL, *allowed;
    char buffer[SHOWN + 4];
    int rc = node_text(l, node, &text);
    if (rc != 0)
        return rc;
    const struct reader_ops *ops = reader_find(text, &allowed);
    if (ops == NULL)
        return fail(l, node, "'%s' is not a reader; allowed: %s", shown(text, buffer), allowed);
    *(const struct reader_ops **)field = ops;
    return 0;
}

/* Class names: any text, also the same one twice (ImageNet has two cranes). `field` is the dataset. */
static int parse_classes(struct loader *l, const struct key *key, yaml_node_t *node, void *field)
{
    (void)key;
    if (node->type != YAML_SEQUENCE_NODE)
        return fail(l, node, "is %s; allowed: a list of names", kind(node));
    struct reader_config *dataset = field;
    yaml_node_item_t *items = node->data.sequence.items.start;
    size_t count = (size_t)(node->data.sequence.items.top - items);
    if (count == 0 || count > CLASSES_MAX)
        return fail(l, node, "%zu names; allowed: 1 to %u, or no such key", count, CLASSES_MAX);
    dataset->classes = calloc(count, sizeof(char *));
    if (dataset->classes == NULL)
        return no_memory(l);
    for (size_t i = 0; i < count; i++) {
        const char *text;
        yaml_node_t *item = node_at(l, items[i]);
        int rc = node_text(l, item, &text);
        if (rc != 0)
            return rc;
        size_t length = strlen(text);
        if (length == 0 || length > FEEDD_MAX_NAME)
            return fail(l, item, "name %zu of the list has %zu bytes; allowed: 1 to %u", i + 1, length, FEEDD_MAX_NAME);
        dataset->classes[i] = strdup(text);
        if (dataset->classes[i] == NULL)
            return no_memory(l);
        dataset->class_count++;
    }
    return 0;
}

static int fail_split(struct loader *l, const yaml_node_t *node, const struct reader_config *dataset, const char *split)
{
    char buffer[SHOWN + 4];
    struct list allowed = {.used = 0};
    for (uint32_t i = 1; i < dataset->selection_count; i++)
        list_add(&allowed, dataset->selections[i].name);
    return fail(l, node, "'%s' is not a split of %.*s; allowed: %s", shown(split, buffer), (int)SHOWN, dataset->name,
                allowed.used > 0 ? allowed.text : "none, as it has no `splits:`");
}

/* `field` is the stream. */
static int parse_dataset(struct loader *l, const struct key *key, yaml_node_t *node, void *field)
{
    (void)key;
    struct config_stream *stream = field;
    const char *text;
    char buffer[SHOWN + 4];
    int rc = node_text(l, node, &text);
    if (rc != 0 || config_dataset_selection(l->config, text, &stream->dataset, &stream->selection))
        return rc;
    const char *slash = strchr(text, '/');
    struct list allowed = {.used = 0};
    for (uint32_t i = 0; i < l->config->dataset_count; i++) {
        const struct reader_config *dataset = &l->config->datasets[i];
        if (slash != NULL && strlen(dataset->name) == (size_t)(slash - text) &&
            strncmp(dataset->name, text, (size_t)(slash - text)) == 0)
            return fail_split(l, node, dataset, slash + 1);
        list_add(&allowed, dataset->name);
    }
    return fail(l, node, "'%s' is not a dataset; allowed: %s", shown(text, buffer),
                allowed.used > 0 ? allowed.text : "none, as `datasets:` has none");
}

/* One of an enumeration's names; `what` with its article. */
static int parse_enum(struct loader *l, yaml_node_t *node, const char *what, int (*parse)(const char *, int *),
                      const char *(*name)(int), void *field)
{
    const char *text;
    char buffer[SHOWN + 4];
    int value, rc = node_text(l, node, &text);
    if (rc != 0)
        return rc;
    if (parse(text, &value) != 0) {
        struct list allowed = {.used = 0};
        for (int i = 1; name(i) != NULL; i++)
            list_add(&allowed, name(i));
        return fail(l, node, "'%s' is not %s; allowed: %s", shown(text, buffer), what, allowed.text);
    }
    *(int *)field = value;
    return 0;
}

static int parse_order(struct loader *l, const struct key *key, yaml_node_t *node, void *field)
{
    (void)key;
    return parse_enum(l, node, "an order", order_parse, order_name, field);
}

static int parse_tail(struct loader *l, const struct key *key, yaml_node_t *node, void *field)
{
    (void)key;
    return parse_enum(l, node, "a tail policy", tail_parse, tail_name, field);
}

static int parse_share(struct loader *l, const struct key *key, yaml_node_t *node, void *field)
{
    (void)key;
    return parse_enum(l, node, "a way to share", share_parse, share_name, field);
}

static int parse_on_error(struct loader *l, const struct key *key, yaml_node_t *node, void *field)
{
    (void)key;
    return parse_enum(l, node, "an error policy", on_error_parse, on_error_name, field);
}

static int check_broadcast(struct loader *l, const yaml_node_t *node, const struct config_stream *stream)
{
    if (stream->share == FEEDD_SHARE_BROADCAST)
        return 0;
    return fail(l, node, "the stream is private; allowed: with `share: broadcast` only");
}

/* `field` is the stream, whose share is known. */
static int parse_members(struct loader *l, const struct key *key, yaml_node_t *node, void *field)
{
    struct config_stream *stream = field;
    int rc = check_broadcast(l, node, stream);
    return rc == 0 ? parse_u32(l, key, node, &stream->members) : rc;
}

/* Likewise, and its members. */
static int parse_join(struct loader *l, const struct key *key, yaml_node_t *node, void *field)
{
    (void)key;
    struct config_stream *stream = field;
    int rc = check_broadcast(l, node, stream);
    if (rc == 0)
        rc = parse_enum(l, node, "a way to join", join_parse, join_name, &stream->join);
    if (rc == 0 && stream->join == FEEDD_JOIN_GATE && stream->members == 0)
        rc = fail(l, node, "gate waits until the group is complete; required: `members`, how many it has");
    return rc;
}

/* 224, or [height, width]. `field` is the transform. */
static int parse_crop(struct loader *l, const struct key *key, yaml_node_t *node, void *field)
{
    struct transform_spec *spec = field;
    yaml_node_t *sides[2] = {node, node};
    if (node->type == YAML_SEQUENCE_NODE) {
        const yaml_node_item_t *items = node->data.sequence.items.start;
        size_t count = (size_t)(node->data.sequence.items.top - items);
        if (count != 2)
            return fail(l, node, "%zu numbers; allowed: one number, or [height, width]", count);
        for (int i = 0; i < 2; i++)
            sides[i] = node_at(l, items[i]);
    }
    int rc = parse_u32(l, key, sides[0], &spec->height);
    return rc == 0 ? parse_u32(l, key, sides[1], &spec->width) : rc;
}

static int parse_probability(struct loader *l, const struct key *key, yaml_node_t *node, void *field)
{
    (void)key;
    const char *text;
    char buffer[SHOWN + 4];
    double value;
    int rc = node_text(l, node, &text);
    if (rc != 0)
        return rc;
    if (text_decimal(text, &value) != 0 || value < 0 || value > 1)
        return fail(l, node, "'%s' is not a probability; allowed: 0 to 1", shown(text, buffer));
    *(double *)field = value;
    return 0;
}

/* Access rules. */

/* @return 0 and *id, ERANGE (a larger buffer is needed), or another errno */
static int find_user(const char *name, char *buffer, size_t size, uint32_t *id)
{
    struct passwd entry, *found = NULL;
    int error = getpwnam_r(name, &entry, buffer, size, &found);
    if (error == 0 && found != NULL)
        *id = entry.pw_uid;
    return error == 0 && found == NULL ? ENOENT : error;
}

static int find_group(const char *name, char *buffer, size_t size, uint32_t *id)
{
    struct group entry, *found = NULL;
    int error = getgrnam_r(name, &entry, buffer, size, &found);
    if (error == 0 && found != NULL)
        *id = entry.gr_gid;
    return error == 0 && found == NULL ? ENOENT : error;
}

typedef int find_fn(const char *name, char *buffer, size_t size, uint32_t *id);

/* A name first, as chown(1) does: a name may consist of digits. */
static int parse_id(struct loader *l, yaml_node_t *node, const char *what, find_fn *find, uint32_t *id)
{
    const char *text, *end;
    char *buffer = NULL, shown_text[SHOWN + 4];
    uint64_t number;
    int rc = node_text(l, node, &text), error = ERANGE;
    if (rc != 0)
        return rc;
    for (size_t size = 1024; error == ERANGE && size <= ID_BUFFER_MAX; size *= 2) {
        free(buffer);
        buffer = malloc(size);
        if (buffer == NULL)
            return no_memory(l);
        error = find(text, buffer, size, id);
    }
    free(buffer);
    if (error == 0)
        return 0;
    if (text_number(text, &end, &number) == 0 && *end == '\0' && number < UINT32_MAX) { /* (uid_t)-1 is nobody's */
        *id = (uint32_t)number;
        return 0;
    }
    if (error == ENOENT || error == ESRCH || error == EBADF || error == EPERM) /* getpwnam(3): not found */
        return fail(l, node, "there is no %s '%s'; allowed: a name that this machine knows, or a number", what,
                    shown(text, shown_text));
    return fail(l, node, "%s '%s' can't be looked up: %s", what, shown(text, shown_text), strerror(error));
}

static int parse_ids(struct loader *l, yaml_node_t *node, const char *what, find_fn *find, uint32_t **ids,
                     uint32_t *id_count)
{
    if (node->type != YAML_SEQUENCE_NODE)
        return fail(l, node, "is %s; allowed: a list of names or numbers", kind(node));
    const yaml_node_item_t *items = node->data.sequence.items.start;
    size_t count = (size_t)(node->data.sequence.items.top - items);
    if (count > IDS_MAX)
        return fail(l, node, "%zu entries; allowed: at most %u", count, IDS_MAX);
    *ids = calloc(count + 1, sizeof(**ids));
    if (*ids == NULL)
        return no_memory(l);
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < count; i++)
        rc = parse_id(l, node_at(l, items[i]), what, find, &(*ids)[i]);
    *id_count = (uint32_t)count;
    return rc;
}

_Static_assert(sizeof(uid_t) == sizeof(uint32_t) && sizeof(gid_t) == sizeof(uint32_t), "as on all Linux machines");

/* `field` is the rule. */
static int parse_users(struct loader *l, const struct key *key, yaml_node_t *node, void *field)
{
    (void)key;
    struct access_rule *rule = field;
    return parse_ids(l, node, "user", find_user, &rule->users, &rule->user_count);
}

static int parse_groups(struct loader *l, const struct key *key, yaml_node_t *node, void *field)
{
    (void)key;
    struct access_rule *rule = field;
    return parse_ids(l, node, "group", find_group, &rule->groups, &rule->group_count);
}

/* Sections. */

static int parse_daemon(struct loader *l, const struct key *key, yaml_node_t *node, void *field);
static int parse_datasets(struct loader *l, const struct key *key, yaml_node_t *node, void *field);
static int parse_streams(struct loader *l, const struct key *key, yaml_node_t *node, void *field);
static int parse_splits(struct loader *l, const struct key *key, yaml_node_t *node, void *field);
static int parse_allow(struct loader *l, const struct key *key, yaml_node_t *node, void *field);
static int parse_admin(struct loader *l, const struct key *key, yaml_node_t *node, void *field);
static int parse_dataset_allow(struct loader *l, const struct key *key, yaml_node_t *node, void *field);
static int parse_transform(struct loader *l, const struct key *key, yaml_node_t *node, void *field);

#define DAEMON(field)    offsetof(struct config, field)
#define DATASET(field)   offsetof(struct reader_config, field)
#define STREAM(field)    offsetof(struct config_stream, field)
#define TRANSFORM(field) offsetof(struct transform_spec, field)

/* In the order in which they are parsed, wherever they stand in the file. The last entry has no name. */
static const struct key file_keys[] = {
    {"daemon", 0, parse_daemon, 0, 0, 0},
    {"datasets", 0, parse_datasets, 0, 0, 0},
    {"streams", 0, parse_streams, 0, 0, 0},
    {NULL, 0, NULL, 0, 0, 0},
};
static const struct key daemon_keys[] = {
    {"socket", 0, parse_socket, DAEMON(socket), 0, 0},
    {"workers", KEY_AUTO, parse_u32, DAEMON(workers), 1, 1024},
    {"ring_memory_max", KEY_AUTO, parse_size, DAEMON(ring_memory_max), 1, UINT64_MAX},
    {"dataset_memory_max", KEY_AUTO, parse_size, DAEMON(dataset_memory_max), 1, UINT64_MAX},
    {"clients_max", 0, parse_u32, DAEMON(clients_max), 1, 65536},
    {"streams_per_client_max", 0, parse_u32, DAEMON(streams_per_client_max), 1, 1024},
    {"leases_per_client_max", 0, parse_u32, DAEMON(leases_per_client_max), 1, 1048576},
    {"ring_memory_per_client_max", KEY_AUTO, parse_size, DAEMON(ring_memory_per_client_max), 1, UINT64_MAX},
    {"read_timeout_ms", 0, parse_u32, DAEMON(read_timeout_ms), 100, 3600000},
    {"linger_s", 0, parse_u32, DAEMON(linger_s), 0, 86400},
    {"cache_dir", 0, parse_path, DAEMON(cache_dir), 0, 0},
    {"allow", 0, parse_allow, DAEMON(allow), 0, 0},
    {"admin", 0, parse_admin, DAEMON(admin), 0, 0},
    {NULL, 0, NULL, 0, 0, 0},
};
static const struct key rule_keys[] = {
    {"users", 0, parse_users, 0, 0, 0},
    {"groups", 0, parse_groups, 0, 0, 0},
    {NULL, 0, NULL, 0, 0, 0},
};

/* Of a dataset: by its reader. */
static const struct key dataset_keys[] = {
    {"reader", KEY_REQUIRED, parse_reader, DATASET(ops), 0, 0},
    {NULL, 0, NULL, 0, 0, 0},
};
static const struct key idx_keys[] = {
    {"reader", KEY_REQUIRED, parse_reader, DATASET(ops), 0, 0},
    {"images", KEY_REQUIRED, parse_path, DATASET(images), 0, 0},
    {"labels", 0, parse_path, DATASET(labels), 0, 0},
    {"classes", 0, parse_classes, 0, 0, 0},
    {"subset", 0, parse_subset, 0, 0, 0},
    {"splits", 0, parse_splits, 0, 0, 0},
    {"allow", 0, parse_dataset_allow, 0, 0, 0},
    {NULL, 0, NULL, 0, 0, 0},
};
static const struct key folder_keys[] = {
    {"reader", KEY_REQUIRED, parse_reader, DATASET(ops), 0, 0},
    {"root", KEY_REQUIRED, parse_path, DATASET(root), 0, 0},
    {"subset", 0, parse_subset, 0, 0, 0},
    {"splits", 0, parse_splits, 0, 0, 0},
    {"allow", 0, parse_dataset_allow, 0, 0, 0},
    {NULL, 0, NULL, 0, 0, 0},
};
static const struct key list_keys[] = {
    {"reader", KEY_REQUIRED, parse_reader, DATASET(ops), 0, 0},
    {"list", KEY_REQUIRED, parse_path, DATASET(list), 0, 0},
    {"root", 0, parse_path, DATASET(root), 0, 0},
    {"classes", 0, parse_classes, 0, 0, 0},
    {"subset", 0, parse_subset, 0, 0, 0},
    {"splits", 0, parse_splits, 0, 0, 0},
    {"allow", 0, parse_dataset_allow, 0, 0, 0},
    {NULL, 0, NULL, 0, 0, 0},
};
static const struct {
    const struct reader_ops *ops;
    const struct key *keys;
} reader_tables[] = {{&reader_idx, idx_keys}, {&reader_folder, folder_keys}, {&reader_list, list_keys}};

static const struct key stream_keys[] = {
    {"dataset", KEY_REQUIRED, parse_dataset, 0, 0, 0},
    {"batch_size", KEY_REQUIRED, parse_u32, STREAM(batch_size), 1, FEEDD_MAX_BATCH},
    {"order", 0, parse_order, STREAM(order), 0, 0},
    {"seed", 0, parse_u64, STREAM(seed), 0, UINT64_MAX},
    {"epochs", 0, parse_u64, STREAM(epochs), 0, UINT64_MAX},
    {"tail", 0, parse_tail, STREAM(tail), 0, 0},
    {"depth", KEY_AUTO, parse_u32, STREAM(depth), 2, FEEDD_MAX_DEPTH},
    {"share", 0, parse_share, STREAM(share), 0, 0},
    {"members", 0, parse_members, 0, 1, FEEDD_MAX_MEMBERS},
    {"join", 0, parse_join, 0, 0, 0},
    {"on_error", 0, parse_on_error, STREAM(on_error), 0, 0},
    {"transform", 0, parse_transform, STREAM(transform), 0, 0},
    {NULL, 0, NULL, 0, 0, 0},
};
static const struct key transform_keys[] = {
    {"resize", 0, parse_u32, TRANSFORM(resize), 1, SIDE_MAX},
    {"center_crop", 0, parse_crop, 0, 1, SIDE_MAX},
    {"flip", 0, parse_probability, TRANSFORM(flip), 0, 0},
    {NULL, 0, NULL, 0, 0, 0},
};

#define KEYS_MAX   16 /* of a table, its last entry included */
#define FITS(keys) (sizeof(keys) <= KEYS_MAX * sizeof((keys)[0]))
_Static_assert(FITS(file_keys) && FITS(daemon_keys) && FITS(idx_keys) && FITS(folder_keys) && FITS(list_keys) &&
                   FITS(stream_keys) && FITS(transform_keys),
               "raise KEYS_MAX");

/* The key of a pair, with l->*place set to it, for messages. `buffer` has to live as long as it is there. */
static int key_text(struct loader *l, yaml_node_t *node, const char **place, char buffer[SHOWN + 4], const char **text)
{
    int rc = node_text(l, node, text);
    if (rc == 0)
        *place = shown(*text, buffer);
    return rc;
}

static int fail_missing(struct loader *l, const yaml_node_t *owner, const struct key *keys)
{
    struct list required = {.used = 0};
    for (int k = 0; keys[k].name != NULL; k++)
        if (keys[k].flags & KEY_REQUIRED)
            list_add(&required, keys[k].name);
    return fail(l, owner, "missing; required: %s", required.text);
}

/* Fills `fields` from a mapping by a table: first every key is found, then the table's parsers run in its order.
 * @param place  l->section or l->key: the level of these keys
 * @param owner  the node whose line a missing key is reported with */
static int parse_mapping(struct loader *l, const struct key *keys, yaml_node_t *node, const yaml_node_t *owner,
                         const char **place, void *fields)
{
    yaml_node_t *values[KEYS_MAX] = {NULL}, *names[KEYS_MAX] = {NULL};
    yaml_node_pair_t *pairs;
    size_t count;
    int rc = node_pairs(l, node, &pairs, &count);
    for (size_t i = 0; rc == 0 && i < count; i++) {
        yaml_node_t *name = node_at(l, pairs[i].key);
        const char *text;
        char buffer[SHOWN + 4];
        int k = 0;
        rc = key_text(l, name, place, buffer, &text);
        if (rc != 0)
            break;
        while (keys[k].name != NULL && strcmp(keys[k].name, text) != 0)
            k++;
        if (keys[k].name == NULL) {
            struct list allowed = {.used = 0};
            for (int j = 0; keys[j].name != NULL; j++)
                list_add(&allowed, keys[j].name);
            rc = fail(l, name, "unknown key; allowed: %s", allowed.text);
        } else if (values[k] != NULL) {
            rc = fail(l, name, "repeated key; allowed: once, and it stands in line %zu", names[k]->start_mark.line + 1);
        } else {
            names[k] = name;
            values[k] = node_at(l, pairs[i].value);
        }
        *place = NULL;
    }
    for (int k = 0; rc == 0 && keys[k].name != NULL; k++) {
        *place = keys[k].name;
        if (values[k] != NULL)
            rc = keys[k].parse(l, &keys[k], values[k], (char *)fields + keys[k].offset);
        else if (keys[k].flags & KEY_REQUIRED)
            rc = fail_missing(l, owner, keys);
        *place = NULL;
    }
    return rc;
}

static int check_name(struct loader *l, const yaml_node_t *node, const char *name)
{
    size_t length = strlen(name);
    if (length == 0 || length > FEEDD_MAX_NAME)
        return fail(l, node, "a name of %zu bytes; allowed: 1 to %u", length, FEEDD_MAX_NAME);
    if (strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") != length)
        return fail(l, node, "not a name; allowed: letters A-Z and a-z, digits, '.', '_' and '-'");
    return 0;
}

/* Walks `datasets:`, `streams:` or `splits:`: names, and a value each.
 * @param place  l->name or l->sub: the level of these names
 * @param entry  parses entry i, whose name is new and allowed, and counts it as soon as it owns something */
static int parse_entries(struct loader *l, yaml_node_t *node, const char **place, size_t count_max,
                         int (*entry)(struct loader *l, const char *name, yaml_node_t *owner, yaml_node_t *node))
{
    yaml_node_pair_t *pairs;
    size_t count;
    int rc = node_pairs(l, node, &pairs, &count);
    if (rc == 0 && count > count_max)
        rc = fail(l, node, "%zu entries; allowed: at most %zu", count, count_max);
    for (size_t i = 0; rc == 0 && i < count; i++) {
        yaml_node_t *owner = node_at(l, pairs[i].key);
        const char *name;
        char buffer[SHOWN + 4];
        rc = key_text(l, owner, place, buffer, &name);
        if (rc == 0)
            rc = check_name(l, owner, name);
        for (size_t j = 0; rc == 0 && j < i; j++) {
            yaml_node_t *other = node_at(l, pairs[j].key);
            if (strcmp((const char *)other->data.scalar.value, name) == 0)
                rc = fail(l, owner, "repeated name; allowed: once, and it stands in line %zu",
                          other->start_mark.line + 1);
        }
        if (rc == 0)
            rc = entry(l, name, owner, node_at(l, pairs[i].value));
        *place = NULL;
    }
    return rc;
}

/* The keys of a dataset are those of its reader, which is looked for first. */
static int parse_reader_keys(struct loader *l, struct reader_config *dataset, yaml_node_t *owner, yaml_node_t *node)
{
    yaml_node_pair_t *pairs;
    size_t count;
    int rc = node_pairs(l, node, &pairs, &count);
    for (size_t i = 0; rc == 0 && dataset->ops == NULL && i < count; i++) {
        const yaml_node_t *name = node_at(l, pairs[i].key);
        if (name->type != YAML_SCALAR_NODE || strcmp((const char *)name->data.scalar.value, "reader") != 0)
            continue;
        l->key = "reader";
        rc = parse_reader(l, NULL, node_at(l, pairs[i].value), &dataset->ops);
        l->key = NULL;
    }
    if (rc == 0 && dataset->ops == NULL) {
        l->key = "reader";
        rc = fail_missing(l, owner, dataset_keys);
        l->key = NULL;
    }
    const struct key *keys = dataset_keys;
    for (size_t i = 0; i < sizeof(reader_tables) / sizeof(reader_tables[0]); i++)
        if (dataset->ops == reader_tables[i].ops)
            keys = reader_tables[i].keys;
    return rc == 0 ? parse_mapping(l, keys, node, owner, &l->key, dataset) : rc;
}

static int dataset_entry(struct loader *l, const char *name, yaml_node_t *owner, yaml_node_t *node)
{
    l->config->dataset_access[l->config->dataset_count].everybody = true;
    struct reader_config *dataset = &l->config->datasets[l->config->dataset_count++];
    dataset->name = strdup(name);
    dataset->selections = calloc(1, sizeof(*dataset->selections));
    dataset->selection_count = dataset->selections != NULL;
    if (dataset->name == NULL || dataset->selections == NULL)
        return no_memory(l);
    return parse_reader_keys(l, dataset, owner, node);
}

static int stream_entry(struct loader *l, const char *name, yaml_node_t *owner, yaml_node_t *node)
{
    struct config_stream *stream = &l->config->streams[l->config->stream_count++];
    stream->order = FEEDD_ORDER_SEQUENTIAL;
    stream->tail = FEEDD_TAIL_DROP;
    stream->share = FEEDD_SHARE_PRIVATE;
    stream->on_error = FEEDD_ON_ERROR_SUBSTITUTE;
    stream->transform.kind = TRANSFORM_NONE;
    stream->name = strdup(name);
    return stream->name != NULL ? parse_mapping(l, stream_keys, node, owner, &l->key, stream) : no_memory(l);
}

static struct reader_config *current_dataset(const struct loader *l)
{
    return &l->config->datasets[l->config->dataset_count - 1];
}

static int split_entry(struct loader *l, const char *name, yaml_node_t *owner, yaml_node_t *node)
{
    (void)owner;
    struct reader_config *dataset = current_dataset(l);
    struct reader_selection *split = &dataset->selections[dataset->selection_count++];
    split->name = strdup(name);
    if (split->name == NULL)
        return no_memory(l);
    int rc = parse_selection(l, node, split);
    if (rc != 0 || dataset->selection_count == 2) /* the first one */
        return rc;
    const struct reader_selection *before = split - 1;
    if ((before->file != NULL) != (split->file != NULL))
        return fail(l, node, "fractions and files together; allowed: a fraction for every split, or a file for each");
    split->fraction_begin = before->fraction_end;
    split->fraction_end += before->fraction_end;
    if (split->fraction_end > 1 + SUM_TOLERANCE)
        return fail(l, node, "the splits up to this one are %g of the dataset; allowed: at most 1",
                    split->fraction_end);
    if (split->fraction_end > 1 - SUM_TOLERANCE)
        split->fraction_end = 1;
    return 0;
}

/* `field` is the dataset, whose subset is known. */
static int parse_splits(struct loader *l, const struct key *key, yaml_node_t *node, void *field)
{
    (void)key;
    struct reader_config *dataset = field;
    yaml_node_pair_t *pairs;
    size_t count;
    int rc = node_pairs(l, node, &pairs, &count);
    if (rc != 0)
        return rc;
    if (dataset->selections[0].file != NULL || dataset->selections[0].fraction_end > 0)
        return fail(l, node, "the dataset has a `subset` already; allowed: one of the two");
    struct reader_selection *selections = calloc(count + 1, sizeof(*selections));
    if (selections == NULL)
        return no_memory(l);
    free(dataset->selections); /* [0] is all of the dataset, in the new list as well */
    dataset->selections = selections;
    return parse_entries(l, node, &l->sub, SPLITS_MAX, split_entry);
}

static int parse_transform(struct loader *l, const struct key *key, yaml_node_t *node, void *field)
{
    (void)key;
    struct transform_spec *spec = field;
    int rc = parse_mapping(l, transform_keys, node, node, &l->sub, spec);
    if (rc != 0)
        return rc;
    if ((spec->resize != 0) != (spec->height != 0))
        return fail(l, node, "%s alone; required: resize and center_crop together",
                    spec->resize != 0 ? "resize" : "center_crop");
    if (spec->resize != 0)
        spec->kind = TRANSFORM_RESIZE_CENTER_CROP;
    const char *problem = transform_check(spec);
    return problem != NULL ? fail(l, node, "%s", problem) : 0;
}

/* `field` is the rule. */
static int parse_allow(struct loader *l, const struct key *key, yaml_node_t *node, void *field)
{
    (void)key;
    struct access_rule *rule = field;
    int rc = parse_mapping(l, rule_keys, node, node, &l->sub, rule);
    if (rc == 0 && rule->user_count + rule->group_count == 0)
        rc = fail(l, node, "names nobody; allowed: users, groups or both, or no such key");
    rule->everybody = false;
    return rc;
}

static int parse_admin(struct loader *l, const struct key *key, yaml_node_t *node, void *field)
{
    (void)key;
    return parse_mapping(l, rule_keys, node, node, &l->sub, field);
}

static int parse_dataset_allow(struct loader *l, const struct key *key, yaml_node_t *node, void *field)
{
    (void)field;
    return parse_allow(l, key, node, &l->config->dataset_access[l->config->dataset_count - 1]);
}

static int parse_daemon(struct loader *l, const struct key *key, yaml_node_t *node, void *field)
{
    (void)key;
    return parse_mapping(l, daemon_keys, node, node, &l->key, field);
}

static int parse_datasets(struct loader *l, const struct key *key, yaml_node_t *node, void *field)
{
    (void)key;
    struct config *config = field;
    yaml_node_pair_t *pairs;
    size_t count;
    int rc = node_pairs(l, node, &pairs, &count);
    if (rc != 0 || count == 0)
        return rc;
    config->datasets = calloc(count, sizeof(*config->datasets));
    config->dataset_access = calloc(count, sizeof(*config->dataset_access));
    if (config->datasets == NULL || config->dataset_access == NULL)
        return no_memory(l);
    return parse_entries(l, node, &l->name, ENTRIES_MAX, dataset_entry);
}

static int parse_streams(struct loader *l, const struct key *key, yaml_node_t *node, void *field)
{
    (void)key;
    struct config *config = field;
    yaml_node_pair_t *pairs;
    size_t count;
    int rc = node_pairs(l, node, &pairs, &count);
    if (rc != 0 || count == 0)
        return rc;
    config->streams = calloc(count, sizeof(*config->streams));
    return config->streams != NULL ? parse_entries(l, node, &l->name, ENTRIES_MAX, stream_entry) : no_memory(l);
}

/* The file. */

struct text {
    char *bytes;
    uint64_t length;
};

static int parser_init(const struct loader *l, yaml_parser_t *parser, const struct text *text)
{
    if (!yaml_parser_initialize(parser))
        return no_memory(l);
    yaml_parser_set_input_string(parser, (const unsigned char *)text->bytes, text->length);
    yaml_parser_set_encoding(parser, YAML_UTF8_ENCODING); /* no guessing: offsets of errors are bytes of the file */
    return 0;
}

static int parser_error(const struct loader *l, const yaml_parser_t *parser, const struct text *text)
{
    if (parser->error == YAML_MEMORY_ERROR)
        return no_memory(l);
    size_t line = parser->problem_mark.line + 1;
    if (parser->error == YAML_READER_ERROR) { /* knows its offset only */
        line = 1;
        for (size_t i = 0; i < parser->problem_offset && i < text->length; i++)
            line += text->bytes[i] == '\n';
    }
    return error_set(l->err, FEEDD_E_ARGUMENT, "%s:%zu: not YAML: %s%s%s", l->file, line,
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

static int check_events(const struct loader *l, const struct text *text)
{
    yaml_parser_t parser;
    int documents = 0, depth = 0, end = 0, rc = parser_init(l, &parser, text);
    if (rc != 0)
        return rc;
    while (rc == 0 && !end) {
        yaml_event_t event;
        if (!yaml_parser_parse(&parser, &event)) {
            rc = parser_error(l, &parser, text);
            break;
        }
        const char *reason = refused(&event, &documents, &depth);
        if (reason != NULL)
            rc = error_set(l->err, FEEDD_E_ARGUMENT, "%s:%zu: %s", l->file, event.start_mark.line + 1, reason);
        end = event.type == YAML_STREAM_END_EVENT;
        yaml_event_delete(&event);
    }
    yaml_parser_delete(&parser);
    return rc;
}

static int parse_file(struct loader *l, const struct text *text)
{
    yaml_parser_t parser;
    int rc = check_events(l, text);
    if (rc == 0)
        rc = parser_init(l, &parser, text);
    if (rc != 0)
        return rc;
    if (yaml_parser_load(&parser, &l->document)) {
        yaml_node_t *root = yaml_document_get_root_node(&l->document); /* NULL: nothing but comments */
        if (root != NULL)
            rc = parse_mapping(l, file_keys, root, root, &l->section, l->config);
        yaml_document_delete(&l->document);
    } else {
        rc = parser_error(l, &parser, text);
    }
    yaml_parser_delete(&parser);
    return rc;
}

/* Defaults. */

/* Environment variables that hold an absolute path; anything else isn't one for us. */
static const char *path_variable(const char *name)
{
    const char *value = getenv(name);
    return value != NULL && value[0] == '/' ? value : NULL;
}

/* @return what config_load() says, or NULL: no memory, or none to be had */
static char *default_cache_dir(void)
{
    const char *systemd = path_variable("CACHE_DIRECTORY"), *xdg = path_variable("XDG_CACHE_HOME");
    const char *home = geteuid() != 0 ? path_variable("HOME") : NULL;
    char *path = NULL;
    if (systemd != NULL)
        return strndup(systemd, strcspn(systemd, ":")); /* the first of several */
    if (xdg == NULL && home == NULL)
        return geteuid() == 0 ? strdup("/var/cache/feedd") : NULL;
    return asprintf(&path, "%s/%s", xdg != NULL ? xdg : home, xdg != NULL ? "feedd" : ".cache/feedd") > 0 ? path : NULL;
}

static struct config *config_new(const char *path)
{
    struct config *config = calloc(1, sizeof(*config));
    if (config == NULL)
        return NULL;
    config->path = strdup(path);
    config->socket = strdup(SOCKET_DEFAULT);
    config->cache_dir = default_cache_dir();
    config->clients_max = 256;
    config->streams_per_client_max = 16;
    config->leases_per_client_max = 1024;
    config->read_timeout_ms = 30000;
    config->linger_s = 30;
    config->allow.everybody = true;
    if (config->path != NULL && config->socket != NULL)
        return config;
    config_free(config);
    return NULL;
}

/* Root and the daemon's own user are always admins. @return false: no memory */
static bool complete_admin(struct access_rule *admin)
{
    uid_t *users = realloc(admin->users, (admin->user_count + 2) * sizeof(*users));
    if (users == NULL)
        return false;
    users[admin->user_count++] = 0;
    users[admin->user_count++] = geteuid();
    admin->users = users;
    return true;
}

int config_empty(struct config **out, struct feedd_error *err)
{
    struct config *config = config_new("the built-in defaults");
    if (config == NULL || !complete_admin(&config->admin)) {
        config_free(config);
        return error_set(err, FEEDD_E_MEMORY, "not enough memory for the configuration");
    }
    *out = config;
    return 0;
}

int config_load(const char *path, struct config **out, struct feedd_error *err)
{
    struct loader l = {.path = path, .err = err};
    struct text text;
    file_shown(path, l.file);
    int rc = file_load(path, FILE_MAX_BYTES, "a configuration's limit", &text.bytes, &text.length, err);
    if (rc != 0)
        return rc;
    l.config = config_new(path);
    rc = l.config != NULL ? parse_file(&l, &text) : no_memory(&l);
    free(text.bytes);
    if (rc == 0 && !complete_admin(&l.config->admin))
        rc = no_memory(&l);
    if (rc != 0) {
        config_free(l.config);
        return rc;
    }
    *out = l.config;
    return 0;
}

void config_free(struct config *config)
{
    if (config == NULL)
        return;
    for (uint32_t i = 0; i < config->dataset_count; i++) {
        struct reader_config *dataset = &config->datasets[i];
        for (uint32_t c = 0; c < dataset->class_count; c++)
            free(dataset->classes[c]);
        for (uint32_t c = 0; c < dataset->selection_count; c++) {
            free(dataset->selections[c].name);
            free(dataset->selections[c].file);
        }
        free(dataset->classes);
        free(dataset->selections);
        free(dataset->images);
        free(dataset->labels);
        free(dataset->root);
        free(dataset->list);
        free(dataset->name);
        access_done(&config->dataset_access[i]);
    }
    for (uint32_t i = 0; i < config->stream_count; i++)
        free(config->streams[i].name);
    access_done(&config->allow);
    access_done(&config->admin);
    free(config->datasets);
    free(config->dataset_access);
    free(config->streams);
    free(config->cache_dir);
    free(config->socket);
    free(config->path);
    free(config);
}

const struct reader_config *config_dataset(const struct config *config, const char *name)
{
    for (uint32_t i = 0; i < config->dataset_count; i++)
        if (strcmp(config->datasets[i].name, name) == 0)
            return &config->datasets[i];
    return NULL;
}

const struct config_stream *config_stream(const struct config *config, const char *name)
{
    for (uint32_t i = 0; i < config->stream_count; i++)
        if (strcmp(config->streams[i].name, name) == 0)
            return &config->streams[i];
    return NULL;
}

bool config_dataset_selection(const struct config *config, const char *name, const struct reader_config **dataset,
                              uint32_t *selection)
{
    const size_t length = strcspn(name, "/");
    for (uint32_t i = 0; i < config->dataset_count; i++) {
        const struct reader_config *found = &config->datasets[i];
        if (strlen(found->name) != length || memcmp(found->name, name, length) != 0)
            continue;
        for (uint32_t s = name[length] == '/' ? 1 : 0; s < found->selection_count; s++)
            if (s == 0 || strcmp(found->selections[s].name, name + length + 1) == 0) {
                *dataset = found;
                *selection = s;
                return true;
            }
    }
    return false;
}
