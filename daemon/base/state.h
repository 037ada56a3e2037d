/* state.h - state machines as tables of legal moves.
 *
 * Only the loop thread moves states; a move that is not in the table is a bug of ours and aborts. */
#ifndef FEEDD_STATE_H
#define FEEDD_STATE_H

#include <stdint.h>

struct sm_state {
    const char *name; /* as status shows it */
    uint32_t next;    /* SM(x) | SM(y): where one may go from here */
};

#define SM(state) (1u << (state))

/* Moves *state to `next` by the table. */
void sm_move(const struct sm_state *table, int *state, int next);

#endif
