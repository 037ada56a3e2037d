/* plot.c - a script for gnuplot, and the picture that it writes.
 *
 * Happy path: find gnuplot in PATH -> the script, with the points in it, is its stdin -> its stdout is a new file
 * beside the one that is asked for, which gets that name when the picture is complete. What can fail: another suffix,
 * no gnuplot, no folder, a full disk: one line, and the file is as it was. Threads: one. */
#include "plot.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "error.h"

#define PATH_BYTES 4096

extern char **environ;

/* By Okabe and Ito: told apart by the colour-blind too. */
static const char *const colours[] = {"#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"};

#define COLOURS (sizeof(colours) / sizeof(colours[0]))

static bool ends_in(const char *path, const char *suffix)
{
    const size_t length = strlen(path), n = strlen(suffix);
    return length > n && strcasecmp(path + length - n, suffix) == 0;
}

/* @param program  PATH_BYTES */
static bool find_gnuplot(char *program)
{
    const char *path = getenv("PATH");
    while (path != NULL && *path != '\0') {
        const size_t length = strcspn(path, ":");
        const int n = snprintf(program, PATH_BYTES, "%.*s/gnuplot", (int)length, path);
        if (length > 0 && n < PATH_BYTES && access(program, X_OK) == 0)
            return true;
        path += length + (path[length] == ':');
    }
    return false;
}

static int check(const char *path, char *program, struct feedd_error *err)
{
    if (!ends_in(path, ".png") && !ends_in(path, ".svg"))
        return error_set(err, FEEDD_E_ARGUMENT, "--plot %.200s: a name that ends in .png or .svg is right", path);
    if (!find_gnuplot(program))
        return error_set(err, FEEDD_E_NOT_FOUND,
                         "--plot needs gnuplot, which is not in PATH (Debian: gnuplot-nox); --csv has the data");
    return 0;
}

int plot_check(const char *path, struct feedd_error *err)
{
    char program[PATH_BYTES];
    return check(path, program, err);
}

static void bug_unless(bool right, const char *what)
{
    if (right)
        return;
    fprintf(stderr, "feedctl: bug: a plot has too many %s\n", what);
    abort();
}

struct plot_series *plot_series_add(struct plot *plot, const char *name)
{
    bug_unless(plot->series_count < PLOT_SERIES_MAX, "lines");
    struct plot_series *series = &plot->series[plot->series_count++];
    *series = (struct plot_series){.name = name};
    return series;
}

void plot_point(struct plot_series *series, double x, double y)
{
    bug_unless(series->count < PLOT_POINTS_MAX, "points");
    series->x[series->count] = x;
    series->y[series->count++] = y;
}

static bool drawn(const struct plot *plot, double x, double y)
{
    return isfinite(y) && isfinite(x) && (!plot->log_y || y > 0) && (!plot->log2_x || x > 0);
}

static size_t points_drawn(const struct plot *plot, const struct plot_series *series)
{
    size_t n = 0;
    for (size_t i = 0; i < series->count; i++)
        n += drawn(plot, series->x[i], series->y[i]);
    return n;
}

/* A text as gnuplot reads it: in single quotes, those inside doubled. */
static void print_text(const char *text, FILE *to)
{
    fputc('\'', to);
    for (; *text != '\0'; text++) {
        if (*text == '\'')
            fputc('\'', to);
        fputc((unsigned char)*text < ' ' ? ' ' : *text, to);
    }
    fputc('\'', to);
}

static void print_setting(const char *setting, const char *text, FILE *to)
{
    fprintf(to, "set %s ", setting);
    print_text(text, to);
    fputc('\n', to);
}

/* Marks on the x axis where the points are: batch sizes and counts, which there are few of. */
static void print_marks(const struct plot *plot, FILE *to)
{
    const struct plot_series *longest = &plot->series[0];
    for (size_t i = 1; i < plot->series_count; i++)
        if (plot->series[i].count > longest->count)
            longest = &plot->series[i];
    fputs("set xtics (", to);
    for (size_t i = 0; i < longest->count; i++)
        fprintf(to, "%s%.17g", i > 0 ? ", " : "", longest->x[i]);
    fputs(")\n", to);
}

static void print_script(const struct plot *plot, bool svg, FILE *to)
{
    fprintf(to, "set terminal %s size 860,520 noenhanced font 'sans,12' background 'white'\n",
            svg ? "svg" : "pngcairo");
    print_setting("title", plot->title, to);
    print_setting("xlabel", plot->x_label, to);
    print_setting("ylabel", plot->y_label, to);
    fputs("set grid lc rgb '#C0C0C0' lw 1\nset border lc rgb '#404040'\n", to);
    fputs("set key tmargin center horizontal maxcols 2 Left reverse samplen 3 width 2\n", to);
    fputs("set format x '%g'\nset format y '%g'\nset offsets graph 0.03, graph 0.03, 0, 0\n", to);
    print_marks(plot, to);
    if (plot->log2_x)
        fputs("set logscale x 2\n", to);
    fputs(plot->log_y ? "set logscale y 10\n" : "set yrange [0:*]\n", to);
    for (size_t s = 0; s < plot->series_count; s++) {
        const struct plot_series *series = &plot->series[s];
        fprintf(to, "$line%zu << END\n", s);
        for (size_t i = 0; i < series->count; i++)
            if (drawn(plot, series->x[i], series->y[i]))
                fprintf(to, "%.17g %.17g\n", series->x[i], series->y[i]);
        fputs("END\n", to);
    }
    bool first = true;
    for (size_t s = 0; s < plot->series_count; s++) {
        const struct plot_series *series = &plot->series[s];
        if (points_drawn(plot, series) == 0)
            continue;
        fprintf(to, "%s $line%zu using 1:2 with linespoints lw 2 pt %zu ps 0.9 lc rgb '%s' dashtype %d title ",
                first ? "plot" : ",", s, s % COLOURS * 2 + 4, colours[s % COLOURS], series->dashed ? 2 : 1);
        print_text(series->name, to);
        first = false;
    }
    fputc('\n', to);
}

/* @return what gnuplot exits with, or -1 and errno */
static int run_gnuplot(const char *program, int script, int picture)
{
    char *arguments[] = {(char[]){"gnuplot"}, NULL};
    posix_spawn_file_actions_t actions;
    pid_t pid;
    int status;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, script, STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, picture, STDOUT_FILENO);
    errno = posix_spawn(&pid, program, &actions, NULL, arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (errno != 0)
        return -1;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Draws into the open file. */
static int draw(const struct plot *plot, const char *program, bool svg, int picture, const char *path,
                struct feedd_error *err)
{
    FILE *script = tmpfile();
    if (script == NULL)
        return error_set(err, FEEDD_E_IO, "--plot: a temporary file for gnuplot: %s", strerror(errno));
    print_script(plot, svg, script);
    rewind(script); /* which writes out what is buffered, and sets the offset that gnuplot reads from */
    const int status = ferror(script) != 0 ? -1 : run_gnuplot(program, fileno(script), picture);
    int result = 0;
    if (status < 0)
        result = error_set(err, FEEDD_E_IO, "--plot: running %.200s: %s", program, strerror(errno));
    else if (status > 0)
        result = error_set(err, FEEDD_E_IO, "--plot %.200s: gnuplot failed (exit status %d)", path, status);
    fclose(script);
    return result;
}

int plot_write(const struct plot *plot, const char *path, struct feedd_error *err)
{
    char program[PATH_BYTES], draft[PATH_BYTES];
    size_t points = 0;
    int status = check(path, program, err);
    if (status != 0)
        return status;
    for (size_t i = 0; i < plot->series_count; i++)
        points += points_drawn(plot, &plot->series[i]);
    if (points == 0)
        return error_set(err, FEEDD_E_STATE, "--plot %.200s: nothing was measured that could be drawn", path);
    if (snprintf(draft, sizeof(draft), "%s.XXXXXX", path) >= (int)sizeof(draft))
        return error_set(err, FEEDD_E_ARGUMENT, "--plot: a name of at most %d bytes is right", PATH_BYTES - 8);
    const int picture = mkostemp(draft, O_CLOEXEC);
    if (picture < 0)
        return error_set(err, FEEDD_E_IO, "--plot %.200s: %s", path, strerror(errno));
    const mode_t mask = umask(0);
    umask(mask);
    status = draw(plot, program, ends_in(path, ".svg"), picture, path, err);
    if (status == 0 && (fchmod(picture, 0666 & ~mask) != 0 || rename(draft, path) != 0))
        status = error_set(err, FEEDD_E_IO, "--plot %.200s: %s", path, strerror(errno));
    if (status != 0)
        unlink(draft);
    close(picture);
    return status;
}
