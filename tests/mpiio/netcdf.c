/*
 * netCDF-4 in parallel: what is in the file does not depend on where it is.
 * usage: netcdf FILE
 */
#include <mpi.h>
#include <netcdf.h>
#include <netcdf_par.h>
#include <stdio.h>
#include <stdlib.h>

#define OK(call)                                                                  \
    do {                                                                          \
        int code = (call);                                                        \
        if (code != NC_NOERR) {                                                   \
            fprintf(stderr, "line %d: %s\n", __LINE__, nc_strerror(code));        \
            MPI_Abort(MPI_COMM_WORLD, 1);                                         \
        }                                                                         \
    } while (0)

int main(int argc, char **argv)
{
    enum { ROWS = 12, WIDTH = 9, TIMES = 3 };
    int rank, ranks, file, dims[3], fixed, record;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    OK(nc_create_par(argv[1], NC_NETCDF4 | NC_CLOBBER, MPI_COMM_WORLD, MPI_INFO_NULL, &file));
    OK(nc_def_dim(file, "time", NC_UNLIMITED, &dims[0]));
    OK(nc_def_dim(file, "row", ROWS, &dims[1]));
    OK(nc_def_dim(file, "column", (size_t)(WIDTH * ranks), &dims[2]));
    OK(nc_def_var(file, "fixed", NC_DOUBLE, 2, dims + 1, &fixed));
    OK(nc_def_var(file, "record", NC_INT, 3, dims, &record));
    OK(nc_put_att_text(file, NC_GLOBAL, "title", 5, "tiles"));
    OK(nc_enddef(file));
    double tile[ROWS][WIDTH], back[ROWS][WIDTH];
    int layer[ROWS][WIDTH];
    size_t start[3] = { 0, 0, (size_t)(WIDTH * rank) }, count[3] = { 1, ROWS, WIDTH };
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < WIDTH; j++)
            tile[i][j] = 1000.0 * rank + 10 * i + j;
    /* Each rank for itself, and all together where the file grows. */
    OK(nc_var_par_access(file, fixed, NC_INDEPENDENT));
    OK(nc_put_vara_double(file, fixed, start + 1, count + 1, &tile[0][0]));
    OK(nc_var_par_access(file, record, NC_COLLECTIVE));
    for (int t = 0; t < TIMES; t++) {
        start[0] = (size_t)t;
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < WIDTH; j++)
                layer[i][j] = 100000 * t + 1000 * rank + 10 * i + j;
        OK(nc_put_vara_int(file, record, start, count, &layer[0][0]));
    }
    OK(nc_close(file));
    OK(nc_open_par(argv[1], NC_NOWRITE, MPI_COMM_WORLD, MPI_INFO_NULL, &file));
    OK(nc_inq_varid(file, "fixed", &fixed));
    start[2] = (size_t)(WIDTH * ((rank + 1) % ranks));
    OK(nc_get_vara_double(file, fixed, start + 1, count + 1, &back[0][0]));
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < WIDTH; j++)
            if (back[i][j] != 1000.0 * ((rank + 1) % ranks) + 10 * i + j)
                MPI_Abort(MPI_COMM_WORLD, 1);
    OK(nc_close(file));
    MPI_Finalize();
    return 0;
}
