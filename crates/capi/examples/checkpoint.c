/*
 * A checkpoint of a grid that is distributed by columns: every thread writes its columns, which are scattered over
 * the file, with one call, and all is read back and compared.
 *
 *   cc -o checkpoint checkpoint.c $(pkg-config --cflags --libs bivouac) -lpthread
 *   bivouac run -- sh -c './checkpoint "$BIVOUAC_DIR" /state'
 */
#include <bivouac.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 500, COLUMNS = 96, THREADS = 4, CELL = 512, OWN = COLUMNS / THREADS };

static bivouac_file *file;

/* What a cell holds. */
static unsigned char content(int row, int column)
{
    return (unsigned char)(row * 31 + column * 7 + 1);
}

static off_t offset(int row, int column)
{
    return ((off_t)row * COLUMNS + column) * CELL;
}

static void fail(const char *what)
{
    fprintf(stderr, "%s: %s: %s\n", what, strerror(errno), bivouac_error());
    exit(1);
}

static void *write_columns(void *argument)
{
    int first = *(int *)argument * OWN;
    unsigned char *cells = malloc((size_t)ROWS * OWN * CELL);
    bivouac_piece *pieces = calloc((size_t)ROWS, sizeof *pieces);
    if (!cells || !pieces)
        fail("memory");
    for (int row = 0; row < ROWS; row++) {
        unsigned char *line = cells + (size_t)row * OWN * CELL;
        for (int column = 0; column < OWN; column++)
            memset(line + (size_t)column * CELL, content(row, first + column), CELL);
        pieces[row].offset = offset(row, first);
        pieces[row].buffer = line;
        pieces[row].count = (size_t)OWN * CELL;
    }
    if (bivouac_write_list(file, pieces, ROWS) != (ssize_t)ROWS * OWN * CELL)
        fail("write");
    free(pieces);
    free(cells);
    return NULL;
}

static void compare(void)
{
    unsigned char cell[CELL], expected[CELL];
    for (int row = 0; row < ROWS; row++)
        for (int column = 0; column < COLUMNS; column++) {
            memset(expected, content(row, column), CELL);
            if (bivouac_pread(file, cell, CELL, offset(row, column)) != CELL)
                fail("read");
            if (memcmp(cell, expected, CELL) != 0) {
                fprintf(stderr, "row %d, column %d: not what was written\n", row, column);
                exit(1);
            }
        }
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS];
    int ranks[THREADS];
    struct stat attributes;
    if (argc != 3) {
        fprintf(stderr, "usage: %s DIRECTORY PATH\n", argv[0]);
        return 2;
    }
    bivouac *formation = bivouac_connect(argv[1], 0);
    if (!formation)
        fail(argv[1]);
    file = bivouac_open(formation, argv[2], O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (!file)
        fail(argv[2]);
    for (int rank = 0; rank < THREADS; rank++) {
        ranks[rank] = rank;
        if (pthread_create(&threads[rank], NULL, write_columns, &ranks[rank]) != 0)
            fail("thread");
    }
    for (int rank = 0; rank < THREADS; rank++)
        pthread_join(threads[rank], NULL);
    compare();
    if (bivouac_fsync(file) != 0 || bivouac_fstat(file, &attributes) != 0)
        fail("sync");
    printf("%lld bytes written and compared\n", (long long)attributes.st_size);
    bivouac_close(file);
    bivouac_disconnect(formation);
    return 0;
}
