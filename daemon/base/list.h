/* list.h - an intrusive doubly linked list with a head node. No threads, no allocation. */
#ifndef FEEDD_LIST_H
#define FEEDD_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct list {
    struct list *next, *prev;
};

/* The structure that holds `member` at `node`. */
#define container_of(node, type, member) ((type *)((char *)(node)-offsetof(type, member)))

/* For each node; the body may remove the current one. */
#define list_each(node, after, head)                                                                                   \
    for (struct list *node = (head)->next, *after = node->next; node != (head); node = after, after = node->next)

static inline void list_init(struct list *head)
{
    head->next = head->prev = head;
}

static inline bool list_empty(const struct list *head)
{
    return head->next == head;
}

static inline void list_append(struct list *head, struct list *node)
{
    node->prev = head->prev;
    node->next = head;
    head->prev->next = node;
    head->prev = node;
}

/* Removing twice is harmless: a removed node is a list of its own. */
static inline void list_remove(struct list *node)
{
    node->prev->next = node->next;
    node->next->prev = node->prev;
    list_init(node);
}

static inline struct list *list_take_first(struct list *head)
{
    if (list_empty(head))
        return NULL;
    struct list *node = head->next;
    list_remove(node);
    return node;
}

#endif
