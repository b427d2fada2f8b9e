/* What the programs here assert, and who they are. */
#include <mpi.h>
#include <stdio.h>

static int rank, ranks;

#define CHECK(what)                                                                                                 \
    do {                                                                                                            \
        if (!(what)) {                                                                                              \
            fprintf(stderr, "rank %d, line %d: %s\n", rank, __LINE__, #what);                                       \
            MPI_Abort(MPI_COMM_WORLD, 1);                                                                           \
        }                                                                                                           \
    } while (0)
#define OK(call) CHECK((call) == MPI_SUCCESS)
