/* conf_yaml.h - walking a YAML file by tables of keys.
 *
 * A table says what may stand in one mapping: each key with its parser and the field that it fills. The walk knows the
 * levels section, name, key, sub and leaf, as in `streams.train.transform.random_crop.size`; what they mean is the
 * tables' business.
 *
 * Errors: every int is 0 or a negative status. FEEDD_E_ARGUMENT (the file's content) reads "FILE:LINE: PLACE: what is
 * wrong; what is allowed", with the walk's place as above, FEEDD_E_MEMORY "FILE: not enough memory for the
 * configuration". The first error ends the walk; what was filled before it stays filled. Of the parsers here, one that
 * fails leaves its field as it was, but for conf_mapping() and conf_entries().
 * Ownership: nodes and their text belong to the walk and end with conf_parse(); what a parser stores is a copy that the
 * struct it fills owns, also when the walk fails later.
 * Threads: loop only. */
#ifndef FEEDD_CONF_YAML_H
#define FEEDD_CONF_YAML_H

#include <stddef.h>
#include <stdint.h>
#include <yaml.h>

#include "feedd_types.h"
#include "file.h"

struct conf_walk {
    const char *path;                 /* borrowed */
    char file[FILE_SHOWN];            /* the path as messages show it */
    const char *section, *name, *key; /* where the walk is; NULL where it isn't on that level */
    const char *sub, *leaf;           /* the key within a key's mapping, and within that one's */
    void *root;                       /* what conf_parse() fills */
    char *text;                       /* of the file; owned */
    uint64_t text_bytes;
    yaml_document_t document; /* within conf_parse() */
    struct feedd_error *err;  /* borrowed */
};

enum conf_flag {
    CONF_REQUIRED = 1 << 0,
    CONF_AUTO = 1 << 1, /* the text "auto" is allowed, and stored as 0 */
};

/* What may stand in one mapping: a table of these, in the order in which they are parsed, wherever they stand in the
 * file. The last entry has no name. */
struct conf_key {
    const char *name;
    int flags; /* enum conf_flag */
    int (*parse)(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, void *field);
    size_t offset;     /* of `field` in the struct that the mapping fills */
    uint64_t min, max; /* of a number */
};

#define CONF_KEYS_MAX   24 /* of a table, its last entry included */
#define CONF_FITS(keys) (sizeof(keys) <= CONF_KEYS_MAX * sizeof((keys)[0]))

/* The file. */

/* Reads the file, and checks nothing of its content. `path` and `err` are borrowed until conf_done().
 * @return 0; FEEDD_E_NOT_FOUND, _ACCESS, _IO, _LIMIT (larger than 1 MiB), _MEMORY. conf_done() is due either way */
int conf_init(struct conf_walk *w, const char *path, struct feedd_error *err);

/* In place of a file: a text, which is copied. @param name  stands for the path, in messages; borrowed likewise
 * @return 0; FEEDD_E_LIMIT (longer than 4 KiB), FEEDD_E_MEMORY. conf_done() is due either way */
int conf_init_text(struct conf_walk *w, const char *name, const char *text, struct feedd_error *err);

/* Walks the file: one document, without anchors, aliases and tags, not nested deeply; its root by `keys`. A file of
 * nothing but comments fills nothing.
 * @param root  the struct of `keys`; parsers find it in w->root */
int conf_parse(struct conf_walk *w, const struct conf_key *keys, void *root);

/* Walks a text that is one value, in place of a mapping of sections: by `key`, which messages name. */
int conf_parse_value(struct conf_walk *w, const struct conf_key *key, void *field);
void conf_done(struct conf_walk *w);

/* Errors. */

/* Fails with the node's line and the walk's place. */
__attribute__((format(printf, 3, 4))) int conf_fail(const struct conf_walk *w, const yaml_node_t *node,
                                                    const char *format, ...);
int conf_no_memory(const struct conf_walk *w);

/* Fails as a table does whose required keys are missing. @param owner  the node whose line is named */
int conf_fail_missing(const struct conf_walk *w, const yaml_node_t *owner, const struct conf_key *keys);

/* A value as messages show it: its first bytes, whole UTF-8 characters. @return out */
#define CONF_SHOWN      64u              /* bytes of a value that messages show */
#define CONF_SHOWN_SIZE (CONF_SHOWN + 4) /* with "..." and a NUL */
const char *conf_shown(const char *text, char out[CONF_SHOWN_SIZE]);

/* "a, b, c" for messages; what doesn't fit is left out and marked. Starts as zeros. */
struct conf_list {
    char text[384];
    size_t used;
    int full;
};
void conf_list_add(struct conf_list *list, const char *word);

/* Nodes. */

yaml_node_t *conf_node(struct conf_walk *w, int index);
const char *conf_kind(const yaml_node_t *node); /* with its article */

/* The text of a scalar, quoted or not, without NUL. */
int conf_text(const struct conf_walk *w, const yaml_node_t *node, const char **text);

/* Pairs of a mapping; nothing at all ("daemon:", with every line below it commented out) is an empty one. */
int conf_pairs(const struct conf_walk *w, const yaml_node_t *node, yaml_node_pair_t **pairs, size_t *count);

/* Values. */

/* Digits at the start of a text. @param end  gets what follows them. @return 0, or -1: none, or too large */
int conf_number(const char *text, const char **end, uint64_t *out);

/* A decimal number and nothing else. @return 0 or -1 */
int conf_decimal(const char *text, double *out);

/* Parsers for tables: a whole number from key->min to key->max into a uint64_t, or a uint32_t (whose max fits) */
int conf_u64(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, void *field);
int conf_u32(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, void *field);

/* Bytes, likewise, into a uint64_t: "512M", "4GiB", "1000000". */
int conf_size(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, void *field);

/* A path into a char *, whose old value is freed; a relative one is taken from the file's own folder.
 * @param key  not used */
int conf_path(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, void *field);

/* One of an enumeration's names, which are those of 1, 2, 3... until NULL, into an int.
 * @param what  the enumeration, with its article */
int conf_enum(const struct conf_walk *w, const yaml_node_t *node, const char *what, int (*parse)(const char *, int *),
              const char *(*name)(int), void *field);

/* Mappings. */

/* Fills `fields` from a mapping by a table: first every key is found, then the table's parsers run in its order.
 * @param place  &w->section, &w->key, &w->sub or &w->leaf: the level of these keys
 * @param owner  the node whose line a missing key is reported with */
int conf_mapping(struct conf_walk *w, const struct conf_key *keys, yaml_node_t *node, const yaml_node_t *owner,
                 const char **place, void *fields);

/* Walks a mapping whose keys are names, with a value each.
 * @param place  &w->name or &w->sub: the level of these names
 * @param entry  parses an entry, whose name is new and allowed, and counts it as soon as it owns something; `owner` is
 *               the name's node */
int conf_entries(struct conf_walk *w, yaml_node_t *node, const char **place, size_t count_max,
                 int (*entry)(struct conf_walk *w, const char *name, yaml_node_t *owner, yaml_node_t *node));

#endif
