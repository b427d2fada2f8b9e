/* Reads 4 KiB each of many places of a file in one call of the library. Prints the seconds that the call took, and the
 * sum of the bytes.
 *
 * usage: list DIRECTORY PATH <PLACES: that of the formation, the path in it, and offsets, one a line */
#include <bivouac.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { SIZE = 4096, MOST = 100000 };

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
    static bivouac_piece pieces[MOST];
    size_t count = 0;
    long long offset;
    unsigned long long sum = 0;
    char *bytes = malloc((size_t)MOST * SIZE);
    bivouac *formation = argc == 3 ? bivouac_connect(argv[1], 60000) : NULL;
    bivouac_file *file = formation ? bivouac_open(formation, argv[2], O_RDONLY, 0) : NULL;
    if (!file || !bytes) {
        fprintf(stderr, "%s\n", argc == 3 ? bivouac_error() : "usage: list DIRECTORY PATH");
        return 1;
    }
    while (count < MOST && scanf("%lld", &offset) == 1) {
        pieces[count] = (bivouac_piece){ offset, bytes + count * SIZE, SIZE, 0 };
        count++;
    }
    double begun = now();
    ssize_t read = bivouac_read_list(file, pieces, count);
    double took = now() - begun;
    if (read != (ssize_t)(count * SIZE)) {
        fprintf(stderr, "%zd bytes of %zu: %s\n", read, count * SIZE, bivouac_error());
        return 1;
    }
    for (size_t at = 0; at < count * SIZE; at++)
        sum += (unsigned char)bytes[at];
    printf("%.6f %llu\n", took, sum);
    bivouac_close(file);
    bivouac_disconnect(formation);
    return 0;
}
