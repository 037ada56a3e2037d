/* log.c - see log.h. Lines longer than the buffer are cut: no allocation, so that it works when memory has run out. */
#include "log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *level_prefix(enum log_level level)
{
    if (!isatty(STDERR_FILENO))
        return level == LOG_LEVEL_ERROR ? "<3>" : level == LOG_LEVEL_WARNING ? "<4>" : "<6>";
    return level == LOG_LEVEL_ERROR ? "error: " : level == LOG_LEVEL_WARNING ? "warning: " : "";
}

void log_write(enum log_level level, const char *format, ...)
{
    char line[2048];
    size_t start = (size_t)snprintf(line, sizeof(line), "%s", level_prefix(level));
    va_list args;
    va_start(args, format);
    int length = vsnprintf(line + start, sizeof(line) - start - 1, format, args);
    va_end(args);
    size_t end = start + (length < 0 ? 0 : (size_t)length);
    if (end > sizeof(line) - 2)
        end = sizeof(line) - 2;
    for (size_t i = start; i < end; i++) /* a file's or client's name must not forge lines */
        if ((unsigned char)line[i] < 0x20 || line[i] == 0x7F)
            line[i] = '?';
    line[end] = '\n';
    ssize_t written = write(STDERR_FILENO, line, end + 1);
    (void)written; /* where else could one complain */
}

void log_bug(const char *file, int line, const char *expression)
{
    log_write(LOG_LEVEL_ERROR, "bug at %s:%d: not true: %s", file, line, expression);
    abort();
}
