/*
 * Several threads of each rank at once (MPI_THREAD_MULTIPLE): on one file, and each on a file of its own. S380.
 * usage: threads DIRECTORY
 */
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

enum { THREADS = 3, ROUNDS = 40, LONG = 1000 };

static const char *directory;
static MPI_File together;
static MPI_Errhandler counting;
static MPI_Datatype spread;

struct thread {
    pthread_t id;
    int index;
    MPI_Comm comm;
};

static MPI_File opened(MPI_Comm comm, const char *name, int index)
{
    char path[4096];
    MPI_File file;
    snprintf(path, sizeof path, "%s/%s%d", directory, name, index);
    OK(MPI_File_open(comm, path, MPI_MODE_RDWR | MPI_MODE_CREATE | MPI_MODE_DELETE_ON_CLOSE, MPI_INFO_NULL, &file));
    return file;
}

static void ignored(MPI_File *file, int *code, ...)
{
    (void)file;
    CHECK(*code != MPI_SUCCESS);
}

/* Blocking and nonblocking accesses, by offsets, the individual and the shared pointer. */
static void *access_together(void *state)
{
    struct thread *self = state;
    int who = rank * THREADS + self->index, said[LONG];
    MPI_Request requests[2];
    MPI_Status status, both[2];
    for (int round = 0; round < ROUNDS; round++) {
        MPI_Offset at = (MPI_Offset)(who * ROUNDS + round) * 2 * (MPI_Offset)sizeof said;
        for (int i = 0; i < LONG; i++)
            said[i] = who * ROUNDS + round;
        OK(MPI_File_iwrite_at(together, at, said, sizeof said, MPI_BYTE, &requests[0]));
        OK(MPI_File_iwrite_at(together, at + (MPI_Offset)sizeof said, said, sizeof said, MPI_BYTE, &requests[1]));
        OK(MPI_Waitall(2, requests, both));
        memset(said, 0, sizeof said);
        OK(MPI_File_read_at(together, at + (MPI_Offset)sizeof said, said, sizeof said, MPI_BYTE, &status));
        CHECK(said[0] == who * ROUNDS + round && said[LONG - 1] == said[0]);
        OK(MPI_File_write_shared(together, &who, sizeof who, MPI_BYTE, &status));
        OK(MPI_File_seek(together, 4, MPI_SEEK_CUR));
        /* Its handler is changed by others meanwhile. */
        OK(MPI_File_set_errhandler(together, round % 2 ? counting : MPI_ERRORS_RETURN));
        CHECK(MPI_File_write_at(together, -1, said, 1, MPI_BYTE, &status) != MPI_SUCCESS);
    }
    return NULL;
}

/* Collective calls on a file of its own, which the threads of the same number have. */
static void *access_own(void *state)
{
    struct thread *self = state;
    int said[8], read[8];
    MPI_Status status;
    MPI_File file = opened(self->comm, "own", self->index);
    OK(MPI_File_set_view(file, rank * (int)sizeof *said, MPI_INT, spread, "native", MPI_INFO_NULL));
    for (int round = 0; round < ROUNDS / 4; round++) {
        for (int i = 0; i < 8; i++)
            said[i] = (self->index * ROUNDS + round) * 8 + i + 1000 * rank;
        OK(MPI_File_write_all(file, said, 8, MPI_INT, &status));
        OK(MPI_File_read_at_all(file, 8 * round, read, 8, MPI_INT, &status));
        CHECK(memcmp(said, read, sizeof read) == 0);
    }
    OK(MPI_File_close(&file));
    return NULL;
}

/* A view is the one or the other, never a part of both, and stays while it is in use. */
static volatile int is_over;

static void *look(void *state)
{
    char name[MPI_MAX_DATAREP_STRING];
    int read[8];
    MPI_Offset disp, at;
    MPI_Datatype etype, filetype;
    MPI_Aint extent;
    MPI_Status status;
    (void)state;
    while (!is_over) {
        OK(MPI_File_get_view(together, &disp, &etype, &filetype, name));
        CHECK(etype == (disp == 0 ? MPI_INT : MPI_BYTE));
        CHECK(strcmp(name, disp == 0 ? "native" : "external32") == 0);
        if (disp == 0)
            MPI_Type_free(&filetype);
        OK(MPI_File_get_type_extent(together, MPI_INT, &extent));
        CHECK(extent == 4);
        OK(MPI_File_get_byte_offset(together, 8, &at));
        CHECK(at == 8 * 4 * ranks || at == 64 + 8);
        OK(MPI_File_read_at(together, 8, read, sizeof read / 4, MPI_BYTE, &status));
    }
    return NULL;
}

static void with(void *(*act)(void *), struct thread *threads, int count)
{
    for (int i = 0; i < count; i++)
        CHECK(pthread_create(&threads[i].id, NULL, act, &threads[i]) == 0);
}

static void wait_for(struct thread *threads, int count)
{
    for (int i = 0; i < count; i++)
        CHECK(pthread_join(threads[i].id, NULL) == 0);
}

int main(int argc, char **argv)
{
    struct thread threads[2 * THREADS] = { 0 };
    int provided, claimed[16 * THREADS * ROUNDS], seen[16 * THREADS] = { 0 };
    MPI_Offset at;
    MPI_Status status;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    CHECK(provided == MPI_THREAD_MULTIPLE && argc == 2);
    directory = argv[1];
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Type_create_resized(MPI_INT, 0, (MPI_Aint)sizeof(int) * ranks, &spread);
    MPI_Type_commit(&spread);
    MPI_File_create_errhandler(ignored, &counting);
    for (int i = 0; i < 2 * THREADS; i++) {
        threads[i].index = i % THREADS;
        MPI_Comm_dup(MPI_COMM_WORLD, &threads[i].comm);
    }
    together = opened(MPI_COMM_WORLD, "together", 0);
    MPI_Offset shared_at = (MPI_Offset)ranks * THREADS * ROUNDS * 2 * LONG * (MPI_Offset)sizeof(int);
    OK(MPI_File_seek_shared(together, shared_at, MPI_SEEK_SET));
    with(access_together, threads, THREADS);
    with(access_own, threads + THREADS, THREADS);
    wait_for(threads, 2 * THREADS);
    OK(MPI_File_sync(together));
    OK(MPI_File_get_position(together, &at));
    CHECK(at == 4 * THREADS * ROUNDS);
    OK(MPI_File_get_position_shared(together, &at));
    int count = ranks * THREADS * ROUNDS;
    CHECK(at == shared_at + count * (int)sizeof *claimed);
    OK(MPI_File_read_at_all(together, shared_at, claimed, count * (int)sizeof *claimed, MPI_BYTE, &status));
    for (int i = 0; i < count; i++)
        seen[claimed[i]]++;
    for (int i = 0; i < ranks * THREADS; i++)
        CHECK(seen[i] == ROUNDS);
    OK(MPI_File_set_errhandler(together, MPI_ERRORS_RETURN));
    OK(MPI_File_set_view(together, 0, MPI_INT, spread, "native", MPI_INFO_NULL));
    with(look, threads, 1);
    for (int round = 0; round < 200; round++) {
        OK(MPI_File_set_view(together, 64, MPI_BYTE, MPI_BYTE, "external32", MPI_INFO_NULL));
        OK(MPI_File_set_view(together, 0, MPI_INT, spread, "native", MPI_INFO_NULL));
    }
    is_over = 1;
    wait_for(threads, 1);
    OK(MPI_File_close(&together));
    for (int i = 0; i < 2 * THREADS; i++)
        MPI_Comm_free(&threads[i].comm);
    MPI_Type_free(&spread);
    MPI_Errhandler_free(&counting);
    MPI_Finalize();
    return 0;
}
