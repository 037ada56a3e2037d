/* steady_client.c - a client that takes batches and gives them back: steady_client SOCKET SOURCE BATCHES BATCHES ...
 *
 * After each number of batches it prints "taken N", N counted from the start, and waits for a line on standard input.
 * From the second number on it takes some of the batches slowly, so that the daemon's one-second tick and waiting for
 * batches are part of what is seen. Between two of its lines it calls nothing that might allocate but libfeedd. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "feedd.h"

static void pace(int count)
{
    const struct timespec pause = {0, 5000000};
    if (count % 2 == 0)
        nanosleep(&pause, NULL);
}

static int report_and_wait(long taken)
{
    char line[64];
    int length = snprintf(line, sizeof(line), "taken %ld\n", taken);
    if (write(STDOUT_FILENO, line, (size_t)length) != length)
        return -1;
    return read(STDIN_FILENO, line, sizeof(line)) > 0 ? 0 : -1;
}

int main(int argc, char **argv)
{
    struct feedd_error err;
    struct feedd_client *client;
    struct feedd_stream *stream;
    if (argc < 4)
        return 2;
    int status = feedd_connect(argv[1], &client, &err);
    if (status == 0)
        status = feedd_open(client, argv[2], NULL, &stream, &err);
    long taken = 0;
    for (int i = 3; status == 0 && i < argc; i++) {
        for (long left = strtol(argv[i], NULL, 10); status == 0 && left > 0; left--) {
            const struct feedd_batch *batch;
            status = feedd_next(stream, 10000, &batch, &err);
            if (status == 0)
                status = feedd_release(batch, NULL, &err);
            taken++;
            if (i > 3)
                pace((int)left);
        }
        if (status == 0 && report_and_wait(taken) != 0)
            break;
    }
    if (status != 0) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    feedd_client_close(client);
    return 0;
}
