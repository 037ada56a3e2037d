/* plot.h - lines of a benchmark as a picture: PNG or SVG, drawn by gnuplot. Threads: one. */
#ifndef FEEDD_BENCH_PLOT_H
#define FEEDD_BENCH_PLOT_H

#include <stdbool.h>
#include <stddef.h>

#include "feedd_types.h"

#define PLOT_SERIES_MAX 12
#define PLOT_POINTS_MAX 64

/* One line. A point whose y is NAN is left out. */
struct plot_series {
    const char *name;
    size_t count;
    double x[PLOT_POINTS_MAX], y[PLOT_POINTS_MAX];
    bool dashed; /* what the others are compared with */
};

struct plot {
    char title[160];
    const char *x_label, *y_label; /* with units */
    bool log2_x, log_y;
    struct plot_series series[PLOT_SERIES_MAX];
    size_t series_count;
};

/* What would go wrong with such a file, before anything is measured for it.
 * @return 0, FEEDD_E_ARGUMENT (neither .png nor .svg), FEEDD_E_NOT_FOUND (no gnuplot) */
int plot_check(const char *path, struct feedd_error *err);

/* Adds a line without points. @return it, to add points to */
struct plot_series *plot_series_add(struct plot *plot, const char *name);
/* At most PLOT_POINTS_MAX. */
void plot_point(struct plot_series *series, double x, double y);

/* @return 0, what plot_check() finds, FEEDD_E_IO (gnuplot failed, or the file can't be written),
 * FEEDD_E_STATE (no line has a point) */
int plot_write(const struct plot *plot, const char *path, struct feedd_error *err);

#endif
