/*
 * Ranks that write or read one file in one collective call, each a block of so many bytes, behind a shorter one before,
 * or as the first: together write|read BYTES FIRST FILE. Prints the seconds of the slowest.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int move(MPI_File file, int is_write, MPI_Offset at, char *buffer, int bytes)
{
    return is_write ? MPI_File_write_at_all(file, at, buffer, bytes, MPI_BYTE, MPI_STATUS_IGNORE)
                    : MPI_File_read_at_all(file, at, buffer, bytes, MPI_BYTE, MPI_STATUS_IGNORE);
}

int main(int count, char **arguments)
{
    int rank, class;
    MPI_File file;
    MPI_Init(&count, &arguments);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (count != 5)
        MPI_Abort(MPI_COMM_WORLD, 2);
    int is_write = strcmp(arguments[1], "write") == 0, bytes = atoi(arguments[2]), first = atoi(arguments[3]);
    char *buffer = malloc((size_t)bytes);
    memset(buffer, 'a' + rank, (size_t)bytes);
    class = MPI_File_open(MPI_COMM_WORLD, arguments[4], MPI_MODE_RDWR | MPI_MODE_CREATE, MPI_INFO_NULL, &file);
    MPI_Offset at = (MPI_Offset)rank * bytes;
    if (!class && first > 0)
        class = move(file, is_write, at, buffer, first < bytes ? first : bytes);
    if (class)
        MPI_Abort(MPI_COMM_WORLD, class);
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime(), slowest, mine;
    class = move(file, is_write, at, buffer, bytes);
    mine = MPI_Wtime() - start;
    if (class || buffer[0] != 'a' + rank || buffer[bytes - 1] != 'a' + rank)
        MPI_Abort(MPI_COMM_WORLD, 1);
    MPI_Reduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("%.6f\n", slowest);
    MPI_File_close(&file);
    MPI_Finalize();
    return 0;
}
