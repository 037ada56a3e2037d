/* config_transform.h - the keys of a stream that say what it makes of its images: `transform`, `decode`, `orientation`,
 * `truncated`, `channels`. config.h shows them in a file.
 *
 * Parsers for a table of keys (conf_yaml.h), which says what they return. Threads: loop only. */
#ifndef FEEDD_CONFIG_TRANSFORM_H
#define FEEDD_CONFIG_TRANSFORM_H

#include "conf_yaml.h"

/* Into a struct transform_spec that is zeroed but for kind = TRANSFORM_NONE: */
int config_transform(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, void *field);

/* Into its field fast, ignore_orientation, accept_truncated, channels: */
int config_decode(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, void *field);
int config_orientation(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, void *field);
int config_truncated(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, void *field);
int config_channels(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, void *field);

#endif
