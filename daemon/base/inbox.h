/* inbox.h - how other threads hand things to the loop thread.
 *
 * A lock-free stack of intrusive items (many producers, one consumer), turned round when it is drained, so that items
 * of one thread run in the order in which they were posted. The sender's writes before inbox_post() are visible to
 * item->run(). Nothing is allocated; an item may be posted again once its run() has begun. */
#ifndef FEEDD_INBOX_H
#define FEEDD_INBOX_H

#include <stdatomic.h>

struct inbox_item {
    struct inbox_item *next;
    void (*run)(struct inbox_item *item); /* on the loop thread */
};

struct inbox {
    _Atomic(struct inbox_item *) newest;
    void (*wake)(void *arg); /* any thread: make the loop call inbox_drain() soon */
    void *wake_arg;
};

void inbox_init(struct inbox *inbox, void (*wake)(void *arg), void *wake_arg);
void inbox_post(struct inbox *inbox, struct inbox_item *item); /* any thread */
void inbox_drain(struct inbox *inbox);                         /* loop thread */

#endif
