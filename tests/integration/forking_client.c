/* forking_client.c - a client that forks while it holds a batch: forking_client SOCKET SOURCE.
 *
 * Prints "child PID" once it holds a batch and its child holds a copy of the socket. Then both wait to be killed. */
#include <stdio.h>
#include <unistd.h>

#include "feedd.h"

int main(int argc, char **argv)
{
    struct feedd_error err;
    struct feedd_client *client;
    struct feedd_stream *stream;
    const struct feedd_batch *batch;
    if (argc != 3)
        return 2;
    if (feedd_connect(argv[1], &client, &err) != 0 || feedd_open(client, argv[2], NULL, &stream, &err) != 0 ||
        feedd_next(stream, 10000, &batch, &err) != 0) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    pid_t child = fork();
    if (child > 0) {
        printf("child %d\n", (int)child);
        fflush(stdout);
    }
    for (;;)
        pause();
}
