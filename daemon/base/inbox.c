/* inbox.c - see inbox.h. The loop is woken only when the stack was empty: one event for many items. */
#include "inbox.h"

#include <stddef.h>

void inbox_init(struct inbox *inbox, void (*wake)(void *arg), void *wake_arg)
{
    atomic_init(&inbox->newest, NULL);
    inbox->wake = wake;
    inbox->wake_arg = wake_arg;
}

void inbox_post(struct inbox *inbox, struct inbox_item *item)
{
    struct inbox_item *newest = atomic_load_explicit(&inbox->newest, memory_order_relaxed);
    do {
        item->next = newest;
    } while (!atomic_compare_exchange_weak_explicit(&inbox->newest, &newest, item, memory_order_release,
                                                    memory_order_relaxed));
    if (newest == NULL)
        inbox->wake(inbox->wake_arg);
}

void inbox_drain(struct inbox *inbox)
{
    struct inbox_item *item = atomic_exchange_explicit(&inbox->newest, NULL, memory_order_acquire);
    struct inbox_item *oldest = NULL;
    while (item != NULL) {
        struct inbox_item *next = item->next;
        item->next = oldest;
        oldest = item;
        item = next;
    }
    while (oldest != NULL) {
        struct inbox_item *next = oldest->next; /* run() may free or post it again */
        oldest->run(oldest);
        oldest = next;
    }
}
