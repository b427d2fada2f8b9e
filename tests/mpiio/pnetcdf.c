/*
 * PnetCDF: what is in the file does not depend on where it is.
 * usage: pnetcdf FILE
 */
#include <mpi.h>
#include <pnetcdf.h>
#include <stdio.h>
#include <stdlib.h>

#define OK(call)                                                                     \
    do {                                                                             \
        int code = (call);                                                           \
        if (code != NC_NOERR) {                                                      \
            fprintf(stderr, "line %d: %s\n", __LINE__, ncmpi_strerror(code));        \
            MPI_Abort(MPI_COMM_WORLD, 1);                                            \
        }                                                                            \
    } while (0)

int main(int argc, char **argv)
{
    enum { ROWS = 12, WIDTH = 9, TIMES = 4 };
    int rank, ranks, file, dims[3], fixed, record, requests[TIMES], states[TIMES];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    OK(ncmpi_create(MPI_COMM_WORLD, argv[1], NC_CLOBBER | NC_64BIT_DATA, MPI_INFO_NULL, &file));
    OK(ncmpi_def_dim(file, "time", NC_UNLIMITED, &dims[0]));
    OK(ncmpi_def_dim(file, "row", ROWS, &dims[1]));
    OK(ncmpi_def_dim(file, "column", (MPI_Offset)WIDTH * ranks, &dims[2]));
    OK(ncmpi_def_var(file, "fixed", NC_DOUBLE, 2, dims + 1, &fixed));
    OK(ncmpi_def_var(file, "record", NC_INT, 3, dims, &record));
    OK(ncmpi_put_att_text(file, NC_GLOBAL, "title", 5, "tiles"));
    OK(ncmpi_enddef(file));
    double tile[ROWS][WIDTH], back[ROWS][WIDTH];
    int layers[TIMES][ROWS][WIDTH];
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < WIDTH; j++) {
            tile[i][j] = 1000.0 * rank + 10 * i + j;
            for (int t = 0; t < TIMES; t++)
                layers[t][i][j] = 100000 * t + 1000 * rank + 10 * i + j;
        }
    MPI_Offset start[3] = { 0, 0, (MPI_Offset)WIDTH * rank }, count[3] = { 1, ROWS, WIDTH };
    OK(ncmpi_put_vara_double_all(file, fixed, start + 1, count + 1, &tile[0][0]));
    for (int t = 0; t < TIMES; t++) {
        start[0] = t;
        OK(ncmpi_iput_vara_int(file, record, start, count, &layers[t][0][0], &requests[t]));
    }
    OK(ncmpi_wait_all(file, TIMES, requests, states));
    OK(ncmpi_sync(file));
    OK(ncmpi_get_vara_double_all(file, fixed, start + 1, count + 1, &back[0][0]));
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < WIDTH; j++)
            if (back[i][j] != tile[i][j])
                MPI_Abort(MPI_COMM_WORLD, 1);
    OK(ncmpi_close(file));
    MPI_Finalize();
    return 0;
}
