/* config.c - feedd.conf from YAML into plain structs.
 *
 * Happy path: walk the file with one table of keys a section: daemon, then datasets, then streams, which refer to
 * datasets.
 * What can fail: what conf_yaml.h says; a user or group is unknown; a value doesn't go with another one.
 * Threads: loop only. */
#include "config.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#include "conf_yaml.h"
#include "config_output.h"
#include "config_transform.h"
#include "error.h"

#define ENTRIES_MAX     4096u      /* datasets; streams */
#define CLASSES_MAX     65536u     /* of a dataset */
#define SPLITS_MAX      256u       /* of a dataset */
#define GPUS_MAX        256        /* that `gpus` lists */
#define IDS_MAX         4096u      /* users, or groups, of a rule */
#define ID_BUFFER_MAX   (1u << 20) /* bytes of a group's entry: its members' names */
#define SOCKET_PATH_MAX (sizeof(((struct sockaddr_un *)NULL)->sun_path) - 1)
#define SOCKET_DEFAULT  "/run/feedd/feedd.sock"
#define SUM_TOLERANCE   1e-9 /* of the sum of splits: 0.7 + 0.2 + 0.1 is not 1 */

static struct config *whole(const struct conf_walk *w)
{
    return w->root;
}

/* Values. */

static int parse_socket(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, void *field)
{
    int rc = conf_path(w, key, node, field);
    const size_t length = strlen(*(char **)field);
    if (rc == 0 && length > SOCKET_PATH_MAX)
        rc = conf_fail(w, node,
                       "the path has %zu bytes, the folder included; allowed: at most %zu, as in every socket address",
                       length, SOCKET_PATH_MAX);
    return rc;
}

/* What is written as a number is a fraction, and anything else a file of indices. */
static int parse_selection(struct conf_walk *w, yaml_node_t *node, struct reader_selection *selection)
{
    const char *text;
    char buffer[CONF_SHOWN_SIZE];
    double fraction;
    int rc = conf_text(w, node, &text);
    if (rc != 0)
        return rc;
    if (conf_decimal(text, &fraction) == 0) {
        if (fraction <= 0 || fraction > 1)
            return conf_fail(w, node,
                             "'%s' is not allowed; allowed: a fraction above 0 and up to 1, or a file of indices",
                             conf_shown(text, buffer));
        selection->fraction_end = fraction;
        return 0;
    }
    return conf_path(w, NULL, node, &selection->file);
}

static int parse_subset(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, void *field)
{
    (void)key;
    struct reader_config *dataset = field;
    return parse_selection(w, node, &dataset->selections[0]);
}

static int parse_reader(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, void *field)
{
    (void)key;
    const char *text = NULL, *allowed;
    char buffer[CONF_SHOWN_SIZE];
    int rc = conf_text(w, node, &text);
    if (rc != 0)
        return rc;
    const struct reader_ops *ops = reader_find(text, &allowed);
    if (ops == NULL)
        return conf_fail(w, node, "'%s' is not a reader; allowed: %s", conf_shown(text, buffer), allowed);
    *(const struct reader_ops **)field = ops;
    return 0;
}

/* Class names: any text, also the same one twice (ImageNet has two cranes). `field` is the dataset. */
static int parse_classes(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, void *field)
{
    (void)key;
    if (node->type != YAML_SEQUENCE_NODE)
        return conf_fail(w, node, "is %s; allowed: a list of names", conf_kind(node));
    struct reader_config *dataset = field;
    yaml_node_item_t *items = node->data.sequence.items.start;
    size_t count = (size_t)(node->data.sequence.items.top - items);
    if (count == 0 || count > CLASSES_MAX)
        return conf_fail(w, node, "%zu names; allowed: 1 to %u, or no such key", count, CLASSES_MAX);
    dataset->classes = calloc(count, sizeof(char *));
    if (dataset->classes == NULL)
        return conf_no_memory(w);
    for (size_t i = 0; i < count; i++) {
        const char *text;
        yaml_node_t *item = conf_node(w, items[i]);
        int rc = conf_text(w, item, &text);
        if (rc != 0)
            return rc;
        size_t length = strlen(text);
        if (length == 0 || length > FEEDD_MAX_NAME)
            return conf_fail(w, item, "name %zu of the list has %zu bytes; allowed: 1 to %u", i + 1, length,
                             FEEDD_MAX_NAME);
        dataset->classes[i] = strdup(text);
        if (dataset->classes[i] == NULL)
            return conf_no_memory(w);
        dataset->class_count++;
    }
    return 0;
}

static int fail_split(struct conf_walk *w, const yaml_node_t *node, const struct reader_config *dataset,
                      const char *split)
{
    char buffer[CONF_SHOWN_SIZE];
    struct conf_list allowed = {.used = 0};
    for (uint32_t i = 1; i < dataset->selection_count; i++)
        conf_list_add(&allowed, dataset->selections[i].name);
    return conf_fail(w, node, "'%s' is not a split of %.*s; allowed: %s", conf_shown(split, buffer), (int)CONF_SHOWN,
                     dataset->name, allowed.used > 0 ? allowed.text : "none, as it has no `splits:`");
}

/* `field` is the stream. */
static int parse_dataset(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, void *field)
{
    (void)key;
    struct config_stream *stream = field;
    const char *text;
    char buffer[CONF_SHOWN_SIZE];
    int rc = conf_text(w, node, &text);
    if (rc != 0 || config_dataset_selection(whole(w), text, &stream->dataset, &stream->selection))
        return rc;
    const char *slash = strchr(text, '/');
    struct conf_list allowed = {.used = 0};
    for (uint32_t i = 0; i < whole(w)->dataset_count; i++) {
        const struct reader_config *dataset = &whole(w)->datasets[i];
        if (slash != NULL && strlen(dataset->name) == (size_t)(slash - text) &&
            strncmp(dataset->name, text, (size_t)(slash - text)) == 0)
            return fail_split(w, node, dataset, slash + 1);
        conf_list_add(&allowed, dataset->name);
    }
    return conf_fail(w, node, "'%s' is not a dataset; allowed: %s", conf_shown(text, buffer),
                     allowed.used > 0 ? allowed.text : "none, as `datasets:` has none");
}

static int parse_order(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, void *field)
{
    (void)key;
    return conf_enum(w, node, "an order", order_parse, order_name, field);
}

static int parse_tail(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, void *field)
{
    (void)key;
    return conf_enum(w, node, "a tail policy", tail_parse, tail_name, field);
}

static int parse_share(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, void *field)
{
    (void)key;
    return conf_enum(w, node, "a way to share", share_parse, share_name, field);
}

static int parse_on_error(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, void *field)
{
    (void)key;
    return conf_enum(w, node, "an error policy", on_error_parse, on_error_name, field);
}

static int check_broadcast(struct conf_walk *w, const yaml_node_t *node, const struct config_stream *stream)
{
    if (stream->share == FEEDD_SHARE_BROADCAST)
        return 0;
    return conf_fail(w, node, "the stream is private; allowed: with `share: broadcast` only");
}

/* `field` is the stream, whose share is known. */
static int parse_members(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, void *field)
{
    struct config_stream *stream = field;
    int rc = check_broadcast(w, node, stream);
    return rc == 0 ? conf_u32(w, key, node, &stream->members) : rc;
}

/* Likewise, and its members. */
static int parse_join(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, void *field)
{
    (void)key;
    struct config_stream *stream = field;
    int rc = check_broadcast(w, node, stream);
    if (rc == 0)
        rc = conf_enum(w, node, "a way to join", join_parse, join_name, &stream->join);
    if (rc == 0 && stream->join == FEEDD_JOIN_GATE && stream->members == 0)
        rc = conf_fail(w, node, "gate waits until the group is complete; required: `members`, how many it has");
    return rc;
}

static int parse_numa(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, void *field)
{
    (void)key;
    const char *text;
    char buffer[CONF_SHOWN_SIZE];
    int rc = conf_text(w, node, &text);
    if (rc != 0)
        return rc;
    const bool numa = strcmp(text, "auto") == 0;
    if (!numa && strcmp(text, "off") != 0)
        return conf_fail(w, node, "'%s' is not allowed; allowed: auto, off", conf_shown(text, buffer));
    *(bool *)field = numa;
    return 0;
}

/* GPUs. */

/* As nvidia-smi -L writes it: "GPU-" and hexadecimal digits in groups of 8, 4, 4, 4 and 12. */
static bool is_uuid(const char *text)
{
    static const char form[] = "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";
    size_t i = 0;
    for (; form[i] != '\0'; i++)
        if (form[i] == 'x' ? strchr("0123456789abcdef", text[i]) == NULL || text[i] == '\0' : text[i] != form[i])
            return false;
    return text[i] == '\0';
}

/* "all" leaves what the configuration begins with; `field` is the configuration. */
static int parse_gpus(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, void *field)
{
    (void)key;
    struct config *config = field;
    static const char allowed[] = "allowed: all, none, or a list of UUIDs as nvidia-smi -L prints them";
    const char *text;
    char shown_text[CONF_SHOWN_SIZE];
    if (node->type == YAML_SCALAR_NODE) {
        int rc = conf_text(w, node, &text);
        if (rc != 0 || strcmp(text, "all") == 0)
            return rc;
        if (strcmp(text, "none") != 0)
            return conf_fail(w, node, "'%s' is no choice of GPUs; %s", conf_shown(text, shown_text), allowed);
    } else if (node->type != YAML_SEQUENCE_NODE) {
        return conf_fail(w, node, "is %s; %s", conf_kind(node), allowed);
    }
    const bool list = node->type == YAML_SEQUENCE_NODE;
    const yaml_node_item_t *items = list ? node->data.sequence.items.start : NULL;
    const size_t count = list ? (size_t)(node->data.sequence.items.top - items) : 0;
    if (count > GPUS_MAX)
        return conf_fail(w, node, "%zu entries; allowed: at most %u", count, GPUS_MAX);
    config->gpus = calloc(count + 1, sizeof(*config->gpus));
    if (config->gpus == NULL)
        return conf_no_memory(w);
    for (size_t i = 0; i < count; i++) {
        yaml_node_t *item = conf_node(w, items[i]);
        int rc = conf_text(w, item, &text);
        if (rc != 0)
            return rc;
        if (!is_uuid(text))
            return conf_fail(w, item, "'%s' is not the UUID of a GPU; %s", conf_shown(text, shown_text), allowed);
        config->gpus[i] = strdup(text);
        if (config->gpus[i] == NULL)
            return conf_no_memory(w);
        config->gpu_count++;
    }
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
static int parse_id(struct conf_walk *w, yaml_node_t *node, const char *what, find_fn *find, uint32_t *id)
{
    const char *text, *end;
    char *buffer = NULL, shown_text[CONF_SHOWN_SIZE];
    uint64_t number;
    int rc = conf_text(w, node, &text), error = ERANGE;
    if (rc != 0)
        return rc;
    for (size_t size = 1024; error == ERANGE && size <= ID_BUFFER_MAX; size *= 2) {
        free(buffer);
        buffer = malloc(size);
        if (buffer == NULL)
            return conf_no_memory(w);
        error = find(text, buffer, size, id);
    }
    free(buffer);
    if (error == 0)
        return 0;
    if (conf_number(text, &end, &number) == 0 && *end == '\0' && number < UINT32_MAX) { /* (uid_t)-1 is nobody's */
        *id = (uint32_t)number;
        return 0;
    }
    if (error == ENOENT || error == ESRCH || error == EBADF || error == EPERM) /* getpwnam(3): not found */
        return conf_fail(w, node, "there is no %s '%s'; allowed: a name that this machine knows, or a number", what,
                         conf_shown(text, shown_text));
    return conf_fail(w, node, "%s '%s' can't be looked up: %s", what, conf_shown(text, shown_text), strerror(error));
}

static int parse_ids(struct conf_walk *w, yaml_node_t *node, const char *what, find_fn *find, uint32_t **ids,
                     uint32_t *id_count)
{
    if (node->type != YAML_SEQUENCE_NODE)
        return conf_fail(w, node, "is %s; allowed: a list of names or numbers", conf_kind(node));
    const yaml_node_item_t *items = node->data.sequence.items.start;
    size_t count = (size_t)(node->data.sequence.items.top - items);
    if (count > IDS_MAX)
        return conf_fail(w, node, "%zu entries; allowed: at most %u", count, IDS_MAX);
    *ids = calloc(count + 1, sizeof(**ids));
    if (*ids == NULL)
        return conf_no_memory(w);
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < count; i++)
        rc = parse_id(w, conf_node(w, items[i]), what, find, &(*ids)[i]);
    *id_count = (uint32_t)count;
    return rc;
}

_Static_assert(sizeof(uid_t) == sizeof(uint32_t) && sizeof(gid_t) == sizeof(uint32_t), "as on all Linux machines");

/* `field` is the rule. */
static int parse_users(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, void *field)
{
    (void)key;
    struct access_rule *rule = field;
    return parse_ids(w, node, "user", find_user, &rule->users, &rule->user_count);
}

static int parse_groups(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, void *field)
{
    (void)key;
    struct access_rule *rule = field;
    return parse_ids(w, node, "group", find_group, &rule->groups, &rule->group_count);
}

/* Sections. */

static int parse_daemon(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, void *field);
static int parse_datasets(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, void *field);
static int parse_streams(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, void *field);
static int parse_splits(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, void *field);
static int parse_allow(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, void *field);
static int parse_admin(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, void *field);
static int parse_dataset_allow(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, void *field);

#define DAEMON(field)  offsetof(struct config, field)
#define DATASET(field) offsetof(struct reader_config, field)
#define STREAM(field)  offsetof(struct config_stream, field)

static const struct conf_key file_keys[] = {
    {"daemon", 0, parse_daemon, 0, 0, 0},
    {"datasets", 0, parse_datasets, 0, 0, 0},
    {"streams", 0, parse_streams, 0, 0, 0},
    {NULL, 0, NULL, 0, 0, 0},
};
static const struct conf_key daemon_keys[] = {
    {"socket", 0, parse_socket, DAEMON(socket), 0, 0},
    {"workers", CONF_AUTO, conf_u32, DAEMON(workers), 1, 1024},
    {"numa", 0, parse_numa, DAEMON(numa), 0, 0},
    {"ring_memory_max", CONF_AUTO, conf_size, DAEMON(ring_memory_max), 1, UINT64_MAX},
    {"dataset_memory_max", CONF_AUTO, conf_size, DAEMON(dataset_memory_max), 1, UINT64_MAX},
    {"gpus", 0, parse_gpus, 0, 0, 0},
    {"gpu_memory_max", CONF_AUTO, conf_size, DAEMON(gpu_memory_max), 1, UINT64_MAX},
    {"pinned_max", CONF_AUTO, conf_size, DAEMON(pinned_max), 1, UINT64_MAX},
    {"clients_max", 0, conf_u32, DAEMON(clients_max), 1, 65536},
    {"streams_per_client_max", 0, conf_u32, DAEMON(streams_per_client_max), 1, 1024},
    {"leases_per_client_max", 0, conf_u32, DAEMON(leases_per_client_max), 1, 1048576},
    {"ring_memory_per_client_max", CONF_AUTO, conf_size, DAEMON(ring_memory_per_client_max), 1, UINT64_MAX},
    {"image_pixels_max", 0, conf_u64, DAEMON(image_pixels_max), 1, 1000000000000},
    {"image_bytes_max", 0, conf_size, DAEMON(image_bytes_max), 1, UINT64_C(1) << 40},
    {"read_timeout_ms", 0, conf_u32, DAEMON(read_timeout_ms), 100, 3600000},
    {"linger_s", 0, conf_u32, DAEMON(linger_s), 0, 86400},
    {"cache_dir", 0, conf_path, DAEMON(cache_dir), 0, 0},
    {"allow", 0, parse_allow, DAEMON(allow), 0, 0},
    {"admin", 0, parse_admin, DAEMON(admin), 0, 0},
    {NULL, 0, NULL, 0, 0, 0},
};
static const struct conf_key rule_keys[] = {
    {"users", 0, parse_users, 0, 0, 0},
    {"groups", 0, parse_groups, 0, 0, 0},
    {NULL, 0, NULL, 0, 0, 0},
};

/* Of a dataset: by its reader. */
static const struct conf_key dataset_keys[] = {
    {"reader", CONF_REQUIRED, parse_reader, DATASET(ops), 0, 0},
    {NULL, 0, NULL, 0, 0, 0},
};
static const struct conf_key idx_keys[] = {
    {"reader", CONF_REQUIRED, parse_reader, DATASET(ops), 0, 0},
    {"images", CONF_REQUIRED, conf_path, DATASET(images), 0, 0},
    {"labels", 0, conf_path, DATASET(labels), 0, 0},
    {"classes", 0, parse_classes, 0, 0, 0},
    {"subset", 0, parse_subset, 0, 0, 0},
    {"splits", 0, parse_splits, 0, 0, 0},
    {"allow", 0, parse_dataset_allow, 0, 0, 0},
    {NULL, 0, NULL, 0, 0, 0},
};
static const struct conf_key folder_keys[] = {
    {"reader", CONF_REQUIRED, parse_reader, DATASET(ops), 0, 0},
    {"root", CONF_REQUIRED, conf_path, DATASET(root), 0, 0},
    {"subset", 0, parse_subset, 0, 0, 0},
    {"splits", 0, parse_splits, 0, 0, 0},
    {"allow", 0, parse_dataset_allow, 0, 0, 0},
    {NULL, 0, NULL, 0, 0, 0},
};
static const struct conf_key list_keys[] = {
    {"reader", CONF_REQUIRED, parse_reader, DATASET(ops), 0, 0},
    {"list", CONF_REQUIRED, conf_path, DATASET(list), 0, 0},
    {"root", 0, conf_path, DATASET(root), 0, 0},
    {"classes", 0, parse_classes, 0, 0, 0},
    {"subset", 0, parse_subset, 0, 0, 0},
    {"splits", 0, parse_splits, 0, 0, 0},
    {"allow", 0, parse_dataset_allow, 0, 0, 0},
    {NULL, 0, NULL, 0, 0, 0},
};
static const struct {
    const struct reader_ops *ops;
    const struct conf_key *keys;
} reader_tables[] = {{&reader_idx, idx_keys}, {&reader_folder, folder_keys}, {&reader_list, list_keys}};

static const struct conf_key stream_keys[] = {
    {"dataset", CONF_REQUIRED, parse_dataset, 0, 0, 0},
    {"batch_size", CONF_REQUIRED, conf_u32, STREAM(batch_size), 1, FEEDD_MAX_BATCH},
    {"order", 0, parse_order, STREAM(order), 0, 0},
    {"seed", 0, conf_u64, STREAM(seed), 0, UINT64_MAX},
    {"epochs", 0, conf_u64, STREAM(epochs), 0, UINT64_MAX},
    {"tail", 0, parse_tail, STREAM(tail), 0, 0},
    {"depth", CONF_AUTO, conf_u32, STREAM(depth), 2, FEEDD_MAX_DEPTH},
    {"share", 0, parse_share, STREAM(share), 0, 0},
    {"members", 0, parse_members, 0, 1, FEEDD_MAX_MEMBERS},
    {"join", 0, parse_join, 0, 0, 0},
    {"on_error", 0, parse_on_error, STREAM(on_error), 0, 0},
    {"transform", 0, config_transform, STREAM(transform), 0, 0},
    {"decode", 0, config_decode, STREAM(transform.fast), 0, 0},
    {"orientation", 0, config_orientation, STREAM(transform.ignore_orientation), 0, 0},
    {"truncated", 0, config_truncated, STREAM(transform.accept_truncated), 0, 0},
    {"channels", 0, config_channels, STREAM(transform.channels), 0, 0},
    {"output", 0, config_output, STREAM(output), 0, 0},
    {"normalize", 0, config_normalize, STREAM(output.mode), 0, 0},
    {NULL, 0, NULL, 0, 0, 0},
};

_Static_assert(CONF_FITS(file_keys) && CONF_FITS(daemon_keys) && CONF_FITS(idx_keys) && CONF_FITS(folder_keys) &&
                   CONF_FITS(list_keys) && CONF_FITS(stream_keys),
               "raise CONF_KEYS_MAX");

/* The keys of a dataset are those of its reader, which is looked for first. */
static int parse_reader_keys(struct conf_walk *w, struct reader_config *dataset, yaml_node_t *owner, yaml_node_t *node)
{
    yaml_node_pair_t *pairs;
    size_t count;
    int rc = conf_pairs(w, node, &pairs, &count);
    for (size_t i = 0; rc == 0 && dataset->ops == NULL && i < count; i++) {
        const yaml_node_t *name = conf_node(w, pairs[i].key);
        if (name->type != YAML_SCALAR_NODE || strcmp((const char *)name->data.scalar.value, "reader") != 0)
            continue;
        w->key = "reader";
        rc = parse_reader(w, NULL, conf_node(w, pairs[i].value), &dataset->ops);
        w->key = NULL;
    }
    if (rc == 0 && dataset->ops == NULL) {
        w->key = "reader";
        rc = conf_fail_missing(w, owner, dataset_keys);
        w->key = NULL;
    }
    const struct conf_key *keys = dataset_keys;
    for (size_t i = 0; i < sizeof(reader_tables) / sizeof(reader_tables[0]); i++)
        if (dataset->ops == reader_tables[i].ops)
            keys = reader_tables[i].keys;
    return rc == 0 ? conf_mapping(w, keys, node, owner, &w->key, dataset) : rc;
}

static int dataset_entry(struct conf_walk *w, const char *name, yaml_node_t *owner, yaml_node_t *node)
{
    whole(w)->dataset_access[whole(w)->dataset_count].everybody = true;
    struct reader_config *dataset = &whole(w)->datasets[whole(w)->dataset_count++];
    dataset->name = strdup(name);
    dataset->selections = calloc(1, sizeof(*dataset->selections));
    dataset->selection_count = dataset->selections != NULL;
    if (dataset->name == NULL || dataset->selections == NULL)
        return conf_no_memory(w);
    return parse_reader_keys(w, dataset, owner, node);
}

static int stream_entry(struct conf_walk *w, const char *name, yaml_node_t *owner, yaml_node_t *node)
{
    struct config_stream *stream = &whole(w)->streams[whole(w)->stream_count++];
    stream->order = FEEDD_ORDER_SEQUENTIAL;
    stream->tail = FEEDD_TAIL_DROP;
    stream->share = FEEDD_SHARE_PRIVATE;
    stream->on_error = FEEDD_ON_ERROR_SUBSTITUTE;
    stream->transform.kind = TRANSFORM_NONE;
    output_init(&stream->output);
    stream->name = strdup(name);
    return stream->name != NULL ? conf_mapping(w, stream_keys, node, owner, &w->key, stream) : conf_no_memory(w);
}

static struct reader_config *current_dataset(const struct conf_walk *w)
{
    return &whole(w)->datasets[whole(w)->dataset_count - 1];
}

static int split_entry(struct conf_walk *w, const char *name, yaml_node_t *owner, yaml_node_t *node)
{
    (void)owner;
    struct reader_config *dataset = current_dataset(w);
    struct reader_selection *split = &dataset->selections[dataset->selection_count++];
    split->name = strdup(name);
    if (split->name == NULL)
        return conf_no_memory(w);
    int rc = parse_selection(w, node, split);
    if (rc != 0 || dataset->selection_count == 2) /* the first one */
        return rc;
    const struct reader_selection *before = split - 1;
    if ((before->file != NULL) != (split->file != NULL))
        return conf_fail(w, node,
                         "fractions and files together; allowed: a fraction for every split, or a file for each");
    split->fraction_begin = before->fraction_end;
    split->fraction_end += before->fraction_end;
    if (split->fraction_end > 1 + SUM_TOLERANCE)
        return conf_fail(w, node, "the splits up to this one are %g of the dataset; allowed: at most 1",
                         split->fraction_end);
    if (split->fraction_end > 1 - SUM_TOLERANCE)
        split->fraction_end = 1;
    return 0;
}

/* `field` is the dataset, whose subset is known. */
static int parse_splits(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, void *field)
{
    (void)key;
    struct reader_config *dataset = field;
    yaml_node_pair_t *pairs;
    size_t count;
    int rc = conf_pairs(w, node, &pairs, &count);
    if (rc != 0)
        return rc;
    if (dataset->selections[0].file != NULL || dataset->selections[0].fraction_end > 0)
        return conf_fail(w, node, "the dataset has a `subset` already; allowed: one of the two");
    struct reader_selection *selections = calloc(count + 1, sizeof(*selections));
    if (selections == NULL)
        return conf_no_memory(w);
    free(dataset->selections); /* [0] is all of the dataset, in the new list as well */
    dataset->selections = selections;
    return conf_entries(w, node, &w->sub, SPLITS_MAX, split_entry);
}

/* `field` is the rule. */
static int parse_allow(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, void *field)
{
    (void)key;
    struct access_rule *rule = field;
    int rc = conf_mapping(w, rule_keys, node, node, &w->sub, rule);
    if (rc == 0 && rule->user_count + rule->group_count == 0)
        rc = conf_fail(w, node, "names nobody; allowed: users, groups or both, or no such key");
    rule->everybody = false;
    return rc;
}

static int parse_admin(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, void *field)
{
    (void)key;
    return conf_mapping(w, rule_keys, node, node, &w->sub, field);
}

static int parse_dataset_allow(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, void *field)
{
    (void)field;
    return parse_allow(w, key, node, &whole(w)->dataset_access[whole(w)->dataset_count - 1]);
}

static int parse_daemon(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, void *field)
{
    (void)key;
    return conf_mapping(w, daemon_keys, node, node, &w->key, field);
}

static int parse_datasets(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, void *field)
{
    (void)key;
    struct config *config = field;
    yaml_node_pair_t *pairs;
    size_t count;
    int rc = conf_pairs(w, node, &pairs, &count);
    if (rc != 0 || count == 0)
        return rc;
    config->datasets = calloc(count, sizeof(*config->datasets));
    config->dataset_access = calloc(count, sizeof(*config->dataset_access));
    if (config->datasets == NULL || config->dataset_access == NULL)
        return conf_no_memory(w);
    return conf_entries(w, node, &w->name, ENTRIES_MAX, dataset_entry);
}

static int parse_streams(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, void *field)
{
    (void)key;
    struct config *config = field;
    yaml_node_pair_t *pairs;
    size_t count;
    int rc = conf_pairs(w, node, &pairs, &count);
    if (rc != 0 || count == 0)
        return rc;
    config->streams = calloc(count, sizeof(*config->streams));
    return config->streams != NULL ? conf_entries(w, node, &w->name, ENTRIES_MAX, stream_entry) : conf_no_memory(w);
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
    config->numa = true;
    config->clients_max = 256;
    config->streams_per_client_max = 16;
    config->leases_per_client_max = 1024;
    config->image_pixels_max = 100000000;
    config->image_bytes_max = UINT64_C(256) << 20;
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
    struct conf_walk w;
    struct config *config = NULL;
    int rc = conf_init(&w, path, err);
    if (rc != 0)
        goto out;
    config = config_new(path);
    rc = config != NULL ? conf_parse(&w, file_keys, config) : conf_no_memory(&w);
    if (rc == 0 && !complete_admin(&config->admin))
        rc = conf_no_memory(&w);
    if (rc != 0)
        goto out;
    *out = config;
    config = NULL;
out:
    config_free(config);
    conf_done(&w);
    return rc;
}

int config_transform_text(const char *text, struct transform_spec *out, struct feedd_error *err)
{
    static const struct conf_key key = {"transform", 0, config_transform, 0, 0, 0};
    struct transform_spec spec = {.kind = TRANSFORM_NONE};
    struct conf_walk w;
    int rc = conf_init_text(&w, "request", text, err);
    if (rc == 0)
        rc = conf_parse_value(&w, &key, &spec);
    conf_done(&w);
    if (rc == 0) { /* how images are read stands beside it, and stays */
        spec.fast = out->fast;
        spec.ignore_orientation = out->ignore_orientation;
        spec.accept_truncated = out->accept_truncated;
        spec.channels = out->channels;
        *out = spec;
    }
    if (rc != 0 && err != NULL) /* it is logged, and quotes what a client has sent */
        for (char *c = err->message; *c != '\0'; c++)
            if ((unsigned char)*c < 0x20 || (unsigned char)*c >= 0x7F)
                *c = '?';
    return rc;
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
    for (uint32_t i = 0; i < config->gpu_count; i++)
        free(config->gpus[i]);
    free(config->gpus);
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
