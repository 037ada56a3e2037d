/* progress.c - the progress line. What can fail: nothing that matters; a line that can't be written isn't.
 * Threads: one. */
#include "progress.h"

#include <stdarg.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "bench.h"

#define QUIET_S      2.0
#define LINE_BYTES   256
#define WIDTH        80u /* of a terminal that doesn't say */
#define ERASE        "\r\033[K"
#define ESTIMATE_MIN 0.05 /* share that has to be done before the rest can be told from it */

void progress_begin(struct progress *progress, size_t total)
{
    *progress = (struct progress){.total = total, .began_s = bench_now_s(), .terminal = isatty(STDERR_FILENO) == 1};
}

static unsigned terminal_width(void)
{
    struct winsize size;
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : WIDTH;
}

void progress_step(struct progress *progress, const char *format, ...)
{
    const double taken = bench_now_s() - progress->began_s;
    const size_t done = progress->done++;
    if (!progress->terminal || taken < QUIET_S)
        return;
    char line[LINE_BYTES], left[32];
    int length = 0;
    if (progress->total > 0) { /* in front: a narrow terminal cuts the end off */
        const double share = (double)done / (double)progress->total;
        length = snprintf(line, sizeof(line), "%zu of %zu", done + 1, progress->total);
        if (share >= ESTIMATE_MIN)
            length += snprintf(line + length, sizeof(line) - (size_t)length, ", %s left",
                               human_time(taken / share - taken, left));
        length += snprintf(line + length, sizeof(line) - (size_t)length, ": ");
    }
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line + length, sizeof(line) - (size_t)length, format, arguments);
    va_end(arguments);
    fprintf(stderr, ERASE "%.*s", (int)terminal_width() - 1, line);
    fflush(stderr);
    progress->shown = true;
}

void progress_end(struct progress *progress)
{
    if (progress->shown)
        fputs(ERASE, stderr);
    progress->shown = false;
}
