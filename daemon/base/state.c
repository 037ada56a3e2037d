/* state.c - see state.h. */
#include "state.h"

#include "ensure.h"

void sm_move(const struct sm_state *table, int *state, int next)
{
    if (!(table[*state].next & SM(next)))
        log_error("illegal move from \"%s\" to \"%s\"", table[*state].name, table[next].name);
    ENSURE(table[*state].next & SM(next));
    *state = next;
}
