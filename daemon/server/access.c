/* access.c - see access.h. Lists are short; nothing can fail. */
#include "access.h"

#include <stdlib.h>

bool access_allows(const struct access_rule *rule, uid_t uid, const gid_t *gids, uint32_t gid_count)
{
    if (rule->everybody)
        return true;
    for (uint32_t i = 0; i < rule->user_count; i++)
        if (rule->users[i] == uid)
            return true;
    for (uint32_t i = 0; i < rule->group_count; i++)
        for (uint32_t j = 0; j < gid_count; j++)
            if (rule->groups[i] == gids[j])
                return true;
    return false;
}

void access_done(struct access_rule *rule)
{
    free(rule->users);
    free(rule->groups);
}
