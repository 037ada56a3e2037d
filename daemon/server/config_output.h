/* config_output.h - the keys of a stream that say what its images are delivered as, and who makes them so: `output`,
 * `normalize`. config.h shows them in a file.
 *
 * Parsers for a table of keys (conf_yaml.h), which says what they return. Threads: loop only. */
#ifndef FEEDD_CONFIG_OUTPUT_H
#define FEEDD_CONFIG_OUTPUT_H

#include "conf_yaml.h"

/* Into a struct output_spec as output_init() makes it: */
int config_output(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, void *field);

/* Into its field mode; auto is 0. */
int config_normalize(struct conf_walk *w, const struct conf_key *key, yaml_node_t *node, void *field);

#endif
