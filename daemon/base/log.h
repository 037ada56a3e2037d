/* log.h - one line an event on stderr.
 *
 * Lines begin with the level as journald reads it ("<6>", sd-daemon(3)), or in words when stderr is a terminal.
 * Thread-safe: a line is one write. */
#ifndef FEEDD_LOG_H
#define FEEDD_LOG_H

enum log_level { LOG_LEVEL_ERROR = 3, LOG_LEVEL_WARNING = 4, LOG_LEVEL_INFO = 6 };

__attribute__((format(printf, 2, 3))) void log_write(enum log_level level, const char *format, ...);

#define log_error(...)   log_write(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warning(...) log_write(LOG_LEVEL_WARNING, __VA_ARGS__)
#define log_info(...)    log_write(LOG_LEVEL_INFO, __VA_ARGS__)

/* Reports a broken assumption of ours and aborts. */
__attribute__((noreturn, cold)) void log_bug(const char *file, int line, const char *expression);

#endif
