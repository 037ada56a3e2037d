/* access.h - who may do something: users and groups, as the configuration names them and SO_PEERCRED tells them.
 * Thread-safe: rules are constant once loaded. */
#ifndef FEEDD_ACCESS_H
#define FEEDD_ACCESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct access_rule {
    bool everybody; /* whatever the lists say */
    uid_t *users;
    uint32_t user_count;
    gid_t *groups;
    uint32_t group_count;
};

/* @param gids  all of the process's groups, the effective one included */
bool access_allows(const struct access_rule *rule, uid_t uid, const gid_t *gids, uint32_t gid_count);

void access_done(struct access_rule *rule);

#endif
