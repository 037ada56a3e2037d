/* ensure.h - checks of our own reasoning, always compiled in. Never used on what a client, a file or a GPU supplies. */
#ifndef FEEDD_ENSURE_H
#define FEEDD_ENSURE_H

#include "log.h"

#define ENSURE(expression)                                                                                             \
    do {                                                                                                               \
        if (__builtin_expect(!(expression), 0))                                                                        \
            log_bug(__FILE__, __LINE__, #expression);                                                                  \
    } while (0)

#endif
