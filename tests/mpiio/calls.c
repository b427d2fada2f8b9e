/*
 * What each call promises of files of the formation.
 * usage: calls DIRECTORY [full|gone]
 * With "full": writes more than there is room for, and all ranks hear of it in the same way. With "gone": writes until
 * the formation is gone, and all ranks hear of it in the same way.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"

static const char *directory;
static char path[4096];
static MPI_File not_opened;

static int class_of(int code)
{
    int class = code;
    MPI_Error_class(code, &class);
    return class;
}
#define REFUSED(call, class) CHECK(class_of(call) == (class))
/* That a file is not opened. */
#define CLOSED(name, amode, class) \
    REFUSED(MPI_File_open(MPI_COMM_WORLD, named(name), amode, MPI_INFO_NULL, &not_opened), class)

static char *named(const char *name)
{
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return path;
}

static MPI_File opened(const char *name, int amode)
{
    MPI_File file;
    OK(MPI_File_open(MPI_COMM_WORLD, named(name), amode, MPI_INFO_NULL, &file));
    return file;
}

static int count_of(MPI_Status *status, MPI_Datatype type)
{
    int count;
    MPI_Get_count(status, type, &count);
    return count;
}

/* S461, S462. */
static void opening(void)
{
    MPI_File file, other;
    int amode;
    MPI_Group group, world;
    MPI_Offset size;
    CLOSED("none", MPI_MODE_RDONLY, MPI_ERR_NO_SUCH_FILE);
    CLOSED("none", MPI_MODE_RDONLY | MPI_MODE_RDWR, MPI_ERR_AMODE);
    CLOSED("none", MPI_MODE_RDONLY | MPI_MODE_CREATE, MPI_ERR_AMODE);
    CLOSED("none", MPI_MODE_CREATE, MPI_ERR_AMODE);
    CLOSED("no/ne", MPI_MODE_RDWR | MPI_MODE_CREATE, MPI_ERR_NO_SUCH_FILE);
    CLOSED("", MPI_MODE_RDWR, MPI_ERR_BAD_FILE);
    if (ranks > 1)
        CLOSED("none", rank ? MPI_MODE_RDONLY : MPI_MODE_RDWR, MPI_ERR_NOT_SAME);
    file = opened("f", MPI_MODE_RDWR | MPI_MODE_CREATE | MPI_MODE_EXCL);
    OK(MPI_File_get_amode(file, &amode));
    CHECK(amode == (MPI_MODE_RDWR | MPI_MODE_CREATE | MPI_MODE_EXCL));
    OK(MPI_File_get_group(file, &group));
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    MPI_Group_compare(group, world, &amode);
    CHECK(amode == MPI_IDENT);
    MPI_Group_free(&group);
    MPI_Group_free(&world);
    /* Two at a time, one of them by a rank alone. */
    OK(MPI_File_open(MPI_COMM_SELF, named("f"), MPI_MODE_RDONLY, MPI_INFO_NULL, &other));
    OK(MPI_File_get_size(other, &size));
    CHECK(size == 0);
    OK(MPI_File_close(&other));
    CHECK(other == MPI_FILE_NULL);
    CLOSED("f", MPI_MODE_RDWR | MPI_MODE_CREATE | MPI_MODE_EXCL, MPI_ERR_FILE_EXISTS);
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_set_size(file, 12345));
    OK(MPI_File_get_size(file, &size));
    CHECK(size == 12345);
    OK(MPI_File_preallocate(file, 100000));
    OK(MPI_File_get_size(file, &size));
    CHECK(size == 100000);
    OK(MPI_File_set_size(file, 10));
    OK(MPI_File_close(&file));
    struct stat st;
    CHECK(stat(named("f"), &st) == 0 && st.st_size == 10);
    MPI_Barrier(MPI_COMM_WORLD);
    file = opened("f", MPI_MODE_RDONLY | MPI_MODE_DELETE_ON_CLOSE);
    OK(MPI_File_close(&file));
    MPI_Barrier(MPI_COMM_WORLD);
    CHECK(stat(named("f"), &st) != 0);
    REFUSED(MPI_File_delete(named("f"), MPI_INFO_NULL), MPI_ERR_NO_SUCH_FILE);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        OK(MPI_File_open(MPI_COMM_SELF, named("f"), MPI_MODE_WRONLY | MPI_MODE_CREATE, MPI_INFO_NULL, &file));
        OK(MPI_File_close(&file));
        OK(MPI_File_delete(named("f"), MPI_INFO_NULL));
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

/* What a program may not do says so, and by a class that the standard names. S463. */
static void refusals(void)
{
    char byte = 'x';
    MPI_Status status;
    MPI_Datatype type, hole;
    MPI_Offset at, disp;
    MPI_File file = opened("r", MPI_MODE_WRONLY | MPI_MODE_CREATE);
    CHECK(MPI_File_read(file, &byte, 1, MPI_BYTE, &status) != MPI_SUCCESS);
    OK(MPI_File_close(&file));
    file = opened("r", MPI_MODE_RDONLY);
    CHECK(MPI_File_write(file, &byte, 1, MPI_BYTE, &status) != MPI_SUCCESS);
    REFUSED(MPI_File_write(file, &byte, 1, MPI_BYTE, &status), MPI_ERR_READ_ONLY);
    REFUSED(MPI_File_set_size(file, 5), MPI_ERR_READ_ONLY);
    OK(MPI_File_close(&file));
    file = opened("r", MPI_MODE_RDWR);
    REFUSED(MPI_File_write_at(file, -1, &byte, 1, MPI_BYTE, &status), MPI_ERR_ARG);
    REFUSED(MPI_File_write_at(file, 0, &byte, -1, MPI_BYTE, &status), MPI_ERR_COUNT);
    REFUSED(MPI_File_write_at(file, 0, &byte, 1, MPI_DATATYPE_NULL, &status), MPI_ERR_TYPE);
    REFUSED(MPI_File_seek(file, -1, MPI_SEEK_SET), MPI_ERR_ARG);
    OK(MPI_File_get_position(file, &at));
    CHECK(at == 0);
    MPI_Type_contiguous(8, MPI_BYTE, &type);
    MPI_Type_commit(&type);
    int lengths[2] = { 1, 1 };
    MPI_Aint back[2] = { 8, 0 }, twice[2] = { 0, 0 }, negative[2] = { -8, 0 };
    MPI_Aint *wrong[3] = { back, twice, negative };
    for (int i = 0; i < 3; i++) {
        MPI_Type_create_hindexed(2, lengths, wrong[i], type, &hole);
        MPI_Type_commit(&hole);
        REFUSED(MPI_File_set_view(file, 0, type, hole, "native", MPI_INFO_NULL), MPI_ERR_ARG);
        MPI_Type_free(&hole);
    }
    REFUSED(MPI_File_set_view(file, 0, type, MPI_INT, "native", MPI_INFO_NULL), MPI_ERR_ARG);
    REFUSED(MPI_File_set_view(file, -1, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL), MPI_ERR_ARG);
    disp = MPI_DISPLACEMENT_CURRENT;
    REFUSED(MPI_File_set_view(file, disp, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL), MPI_ERR_ARG);
    REFUSED(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "nobody's", MPI_INFO_NULL), MPI_ERR_UNSUPPORTED_DATAREP);
    OK(MPI_File_set_view(file, 0, type, type, "native", MPI_INFO_NULL));
    REFUSED(MPI_File_write_at(file, 0, &byte, 1, MPI_BYTE, &status), MPI_ERR_IO);
    /* A rank that errs does not leave the others waiting. */
    if (ranks > 1)
        CHECK(MPI_File_write_at_all(file, 0, &byte, rank == 0 ? 0 : 1, MPI_BYTE, &status) != MPI_SUCCESS);
    OK(MPI_File_write_all_begin(file, "12345678", 8, MPI_BYTE));
    REFUSED(MPI_File_read_all_begin(file, &byte, 0, MPI_BYTE), MPI_ERR_OTHER);
    REFUSED(MPI_File_write_at_all_end(file, &byte, &status), MPI_ERR_OTHER);
    OK(MPI_File_write_all_end(file, "12345678", &status));
    CHECK(count_of(&status, type) == 1 && count_of(&status, MPI_BYTE) == 8);
    MPI_Type_free(&type);
    OK(MPI_File_close(&file));
    file = opened("r", MPI_MODE_WRONLY | MPI_MODE_SEQUENTIAL);
    CHECK(MPI_File_write_at(file, 0, &byte, 1, MPI_BYTE, &status) != MPI_SUCCESS);
    CHECK(MPI_File_seek(file, 0, MPI_SEEK_SET) != MPI_SUCCESS);
    OK(MPI_File_close(&file));
    if (rank == 0)
        OK(MPI_File_delete(named("r"), MPI_INFO_NULL));
    MPI_Barrier(MPI_COMM_WORLD);
}

/* Has the library's copy of a path fail. */
static int has_no_memory;

char *strdup(const char *text)
{
    size_t length = strlen(text) + 1;
    char *copy = has_no_memory ? NULL : malloc(length);
    return copy ? memcpy(copy, text, length) : NULL;
}

/* One rank cannot open a file: all hear of it, none waits for it, and the next call is in order. S381. */
static void without_memory(void)
{
    MPI_File file = opened("o", MPI_MODE_RDWR | MPI_MODE_CREATE);
    OK(MPI_File_close(&file));
    has_no_memory = rank == ranks - 1;
    CLOSED("o", MPI_MODE_RDWR, MPI_ERR_NO_MEM);
    has_no_memory = 0;
    file = opened("o", MPI_MODE_RDWR | MPI_MODE_DELETE_ON_CLOSE);
    OK(MPI_File_close(&file));
}

/* Views of a file that is opened for sequential access begin at the shared pointer. S382. */
static void sequential(void)
{
    char bytes[64], letter = 'a' + rank;
    MPI_Datatype etype, filetype, pair;
    MPI_Offset disp;
    MPI_Status status;
    MPI_File file = opened("s", MPI_MODE_WRONLY | MPI_MODE_CREATE | MPI_MODE_SEQUENTIAL);
    REFUSED(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL), MPI_ERR_ARG);
    OK(MPI_File_write_ordered(file, &letter, 1, MPI_BYTE, &status));
    MPI_Type_contiguous(2, MPI_BYTE, &pair);
    MPI_Type_commit(&pair);
    OK(MPI_File_set_view(file, MPI_DISPLACEMENT_CURRENT, pair, pair, "native", MPI_INFO_NULL));
    OK(MPI_File_get_view(file, &disp, &etype, &filetype, bytes));
    CHECK(disp == ranks);
    MPI_Type_free(&etype);
    MPI_Type_free(&filetype);
    bytes[0] = bytes[1] = 'A' + rank;
    OK(MPI_File_write_ordered(file, bytes, 1, pair, &status));
    /* From the view's etypes to bytes. */
    OK(MPI_File_set_view(file, MPI_DISPLACEMENT_CURRENT, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
    OK(MPI_File_get_view(file, &disp, &etype, &filetype, bytes));
    CHECK(disp == 3 * ranks);
    OK(MPI_File_write_ordered(file, &letter, 1, MPI_BYTE, &status));
    OK(MPI_File_close(&file));
    MPI_Type_free(&pair);
    file = opened("s", MPI_MODE_RDONLY | MPI_MODE_DELETE_ON_CLOSE);
    OK(MPI_File_read_at_all(file, 0, bytes, 4 * ranks, MPI_BYTE, &status));
    CHECK(count_of(&status, MPI_BYTE) == 4 * ranks);
    for (int of = 0; of < ranks; of++) {
        CHECK(bytes[of] == 'a' + of && bytes[3 * ranks + of] == 'a' + of);
        CHECK(bytes[ranks + 2 * of] == 'A' + of && bytes[ranks + 2 * of + 1] == 'A' + of);
    }
    OK(MPI_File_close(&file));
}

/* Instances of a filetype that reach into the next one: each byte is where its own instance has it. */
static void interlocked(void)
{
    int lengths[2] = { 2, 2 };
    MPI_Aint at[2] = { 0, 100 };
    MPI_Datatype pair, filetype;
    char out[8] = "abcdefg", in[200];
    MPI_Status status;
    MPI_File file = opened("i", MPI_MODE_RDWR | MPI_MODE_CREATE | MPI_MODE_DELETE_ON_CLOSE);
    MPI_Type_create_hindexed(2, lengths, at, MPI_BYTE, &pair);
    MPI_Type_create_resized(pair, 0, 8 * ranks, &filetype);
    MPI_Type_commit(&filetype);
    OK(MPI_File_set_view(file, 8 * rank, MPI_BYTE, filetype, "native", MPI_INFO_NULL));
    OK(MPI_File_write_at_all(file, 0, out, 8, MPI_BYTE, &status));
    CHECK(count_of(&status, MPI_BYTE) == 8);
    OK(MPI_File_sync(file));
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
    OK(MPI_File_read_at_all(file, 8 * rank, in, 108 + 8 * ranks, MPI_BYTE, &status));
    CHECK(memcmp(in, "ab", 2) == 0 && memcmp(in + 8 * ranks, "ef", 2) == 0);
    CHECK(memcmp(in + 100, "cd", 2) == 0 && memcmp(in + 100 + 8 * ranks, "g", 2) == 0);
    MPI_Type_free(&pair);
    MPI_Type_free(&filetype);
    OK(MPI_File_close(&file));
}

static int called, code_seen;
static MPI_File file_seen;

static void handler(MPI_File *file, int *code, ...)
{
    called++;
    code_seen = *code;
    file_seen = *file;
}

static void handlers(void)
{
    MPI_Errhandler mine, found, before;
    MPI_Status status;
    MPI_File file = opened("h", MPI_MODE_RDWR | MPI_MODE_CREATE);
    OK(MPI_File_get_errhandler(file, &found));
    CHECK(found == MPI_ERRORS_RETURN);
    OK(MPI_File_create_errhandler(handler, &mine));
    OK(MPI_File_set_errhandler(file, mine));
    CHECK(MPI_File_write_at(file, -1, "x", 1, MPI_BYTE, &status) != MPI_SUCCESS);
    CHECK(called == 1 && class_of(code_seen) == MPI_ERR_ARG && file_seen == file);
    OK(MPI_File_call_errhandler(file, MPI_ERR_IO));
    CHECK(called == 2 && class_of(code_seen) == MPI_ERR_IO);
    OK(MPI_File_get_errhandler(file, &found));
    OK(MPI_File_set_errhandler(file, MPI_ERRORS_RETURN));
    CHECK(MPI_File_write_at(file, -1, "x", 1, MPI_BYTE, &status) != MPI_SUCCESS && called == 2);
    OK(MPI_File_set_errhandler(file, found));
    OK(MPI_Errhandler_free(&found));
    CHECK(MPI_File_write_at(file, -1, "x", 1, MPI_BYTE, &status) != MPI_SUCCESS && called == 3);
    OK(MPI_File_close(&file));
    OK(MPI_File_get_errhandler(MPI_FILE_NULL, &before));
    CHECK(before == MPI_ERRORS_RETURN);
    OK(MPI_File_set_errhandler(MPI_FILE_NULL, mine));
    CLOSED("none", MPI_MODE_RDONLY, MPI_ERR_NO_SUCH_FILE);
    CHECK(called == 4 && file_seen == MPI_FILE_NULL);
    file = opened("h", MPI_MODE_RDWR | MPI_MODE_DELETE_ON_CLOSE);
    CHECK(MPI_File_write_at(file, -1, "x", 1, MPI_BYTE, &status) != MPI_SUCCESS && called == 5);
    OK(MPI_File_set_errhandler(MPI_FILE_NULL, MPI_ERRORS_RETURN));
    OK(MPI_Errhandler_free(&mine));
    OK(MPI_File_close(&file));
}

static void pointers(void)
{
    int number = rank, read[64], count = 0;
    MPI_Offset at;
    MPI_Status status;
    MPI_File file = opened("p", MPI_MODE_RDWR | MPI_MODE_CREATE);
    OK(MPI_File_set_view(file, 40, MPI_INT, MPI_INT, "native", MPI_INFO_NULL));
    OK(MPI_File_seek(file, 3 * rank, MPI_SEEK_SET));
    OK(MPI_File_write(file, &number, 1, MPI_INT, &status));
    OK(MPI_File_get_position(file, &at));
    CHECK(at == 3 * rank + 1 && count_of(&status, MPI_INT) == 1);
    OK(MPI_File_seek(file, -1, MPI_SEEK_CUR));
    OK(MPI_File_get_position(file, &at));
    CHECK(at == 3 * rank);
    OK(MPI_File_sync(file));
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_seek(file, 0, MPI_SEEK_END));
    OK(MPI_File_get_position(file, &at));
    CHECK(at == 3 * (ranks - 1) + 1);
    OK(MPI_File_get_byte_offset(file, at, &at));
    CHECK(at == 40 + 4 * (3 * (ranks - 1) + 1));
    /* At the end there is less, and behind it nothing. */
    read[0] = read[1] = read[2] = -7;
    OK(MPI_File_read_at(file, 3 * (ranks - 1), read, 3, MPI_INT, &status));
    CHECK(count_of(&status, MPI_INT) == 1 && read[0] == ranks - 1 && read[1] == -7);
    OK(MPI_File_read_at_all(file, 1000, read, 3, MPI_INT, &status));
    CHECK(count_of(&status, MPI_INT) == 0 && read[1] == -7);
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_set_size(file, 0));
    /* Each rank takes its turns; together they have written each place once. S464. */
    OK(MPI_File_seek_shared(file, 2, MPI_SEEK_SET));
    for (int i = 0; i < 5; i++)
        OK(MPI_File_write_shared(file, &number, 1, MPI_INT, &status));
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_get_position_shared(file, &at));
    CHECK(at == 2 + 5 * ranks);
    OK(MPI_File_sync(file));
    MPI_Barrier(MPI_COMM_WORLD);
    int seen[16] = { 0 };
    OK(MPI_File_read_at(file, 2, read, 5 * ranks, MPI_INT, &status));
    CHECK(count_of(&status, MPI_INT) == 5 * ranks);
    for (int i = 0; i < 5 * ranks; i++)
        seen[read[i]]++;
    for (int i = 0; i < ranks; i++)
        CHECK(seen[i] == 5);
    MPI_Barrier(MPI_COMM_WORLD);
    /* In the order of the ranks, each as much as it wants. */
    int mine[8] = { rank, rank, rank, rank, rank, rank, rank, rank };
    OK(MPI_File_seek_shared(file, 0, MPI_SEEK_SET));
    OK(MPI_File_write_ordered(file, mine, rank + 1, MPI_INT, &status));
    CHECK(count_of(&status, MPI_INT) == rank + 1);
    OK(MPI_File_write_ordered_begin(file, mine, 1, MPI_INT));
    OK(MPI_File_write_ordered_end(file, mine, &status));
    OK(MPI_File_sync(file));
    MPI_Barrier(MPI_COMM_WORLD);
    int total = ranks * (ranks + 1) / 2;
    OK(MPI_File_read_at(file, 0, read, total + ranks, MPI_INT, &status));
    for (int of = 0; of < ranks; of++)
        for (int i = 0; i <= of; i++)
            CHECK(read[count++] == of);
    for (int of = 0; of < ranks; of++)
        CHECK(read[count++] == of);
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_seek_shared(file, 0, MPI_SEEK_SET));
    OK(MPI_File_read_ordered(file, read, rank + 1, MPI_INT, &status));
    CHECK(read[0] == rank && read[rank] == rank && count_of(&status, MPI_INT) == rank + 1);
    OK(MPI_File_seek_shared(file, 0, MPI_SEEK_END));
    OK(MPI_File_get_position_shared(file, &at));
    OK(MPI_File_get_byte_offset(file, at, &at));
    MPI_Offset size;
    OK(MPI_File_get_size(file, &size));
    CHECK(at == size);
    MPI_Barrier(MPI_COMM_WORLD);
    /* A view begins both pointers anew. */
    OK(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
    OK(MPI_File_get_position_shared(file, &at));
    CHECK(at == 0);
    OK(MPI_File_get_position(file, &at));
    CHECK(at == 0);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Request requests[3];
    MPI_Status several[3];
    char bytes[3][4] = { "abc", "def", "ghi" };
    OK(MPI_File_iwrite_shared(file, bytes[0], 3, MPI_BYTE, &requests[0]));
    OK(MPI_File_iwrite_at(file, 1000 + 3 * rank, bytes[1], 3, MPI_BYTE, &requests[1]));
    MPI_Ibarrier(MPI_COMM_WORLD, &requests[2]);
    OK(MPI_Waitall(3, requests, several));
    CHECK(count_of(&several[0], MPI_BYTE) == 3 && count_of(&several[1], MPI_BYTE) == 3);
    OK(MPI_File_get_position_shared(file, &at));
    CHECK(at == 3 * ranks);
    OK(MPI_File_close(&file));
    /* At the end of what is there. */
    file = opened("p", MPI_MODE_WRONLY | MPI_MODE_APPEND | MPI_MODE_DELETE_ON_CLOSE);
    OK(MPI_File_get_position(file, &at));
    CHECK(at == 1000 + 3 * ranks);
    OK(MPI_File_get_position_shared(file, &at));
    CHECK(at == 1000 + 3 * ranks);
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_close(&file));
}

/* S384. Nobody waits where one begins: each rank begins only after the one in front of it has. */
static void nonblocking_together(void)
{
    int token = 0, next = (rank + 1) % ranks;
    char mine[4] = { 'a', 'b', 'c', (char)('0' + rank % 10) }, read[4] = "";
    MPI_Request request;
    MPI_Status status;
    MPI_File file = opened("n", MPI_MODE_RDWR | MPI_MODE_CREATE | MPI_MODE_DELETE_ON_CLOSE);
    for (int turn = 0; turn < 4; turn++) {
        if (turn == 2)
            OK(MPI_File_set_view(file, 4 * next, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
        if (rank > 0)
            MPI_Recv(&token, 1, MPI_INT, rank - 1, turn, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (turn == 0)
            OK(MPI_File_iwrite_at_all(file, 4 * rank, mine, 4, MPI_BYTE, &request));
        else if (turn == 1)
            OK(MPI_File_iread_at_all(file, 4 * next, read, 4, MPI_BYTE, &request));
        else if (turn == 2)
            OK(MPI_File_iread_all(file, read, 4, MPI_BYTE, &request));
        else
            OK(MPI_File_iwrite_all(file, mine, 4, MPI_BYTE, &request));
        if (rank + 1 < ranks)
            MPI_Send(&token, 1, MPI_INT, rank + 1, turn, MPI_COMM_WORLD);
        OK(MPI_Wait(&request, &status));
        CHECK(count_of(&status, MPI_BYTE) == 4);
        if (turn == 1 || turn == 2)
            CHECK(memcmp(read, "abc", 3) == 0 && read[3] == (char)('0' + next % 10));
        memset(read, 0, sizeof read);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    OK(MPI_File_close(&file));
}

/* What external32 says is the same on every machine. */
static void representations(void)
{
    int number = 0x01020304, read = 0;
    double half = 0.5, back = 0;
    char name[64];
    MPI_Aint extent;
    MPI_Datatype etype, filetype;
    MPI_Offset disp;
    unsigned char bytes[16];
    MPI_Status status;
    MPI_File file = opened("x", MPI_MODE_RDWR | MPI_MODE_CREATE | MPI_MODE_DELETE_ON_CLOSE);
    OK(MPI_File_set_view(file, 8, MPI_INT, MPI_INT, "external32", MPI_INFO_NULL));
    OK(MPI_File_get_view(file, &disp, &etype, &filetype, name));
    CHECK(disp == 8 && etype == MPI_INT && filetype == MPI_INT && strcmp(name, "external32") == 0);
    OK(MPI_File_get_type_extent(file, MPI_INT, &extent));
    CHECK(extent == 4);
    if (rank == 0) {
        OK(MPI_File_write_at(file, 1, &number, 1, MPI_INT, &status));
        CHECK(count_of(&status, MPI_INT) == 1);
        OK(MPI_File_read_at(file, 1, &read, 1, MPI_INT, &status));
        CHECK(read == number && count_of(&status, MPI_INT) == 1);
    }
    OK(MPI_File_set_view(file, 8, MPI_DOUBLE, MPI_DOUBLE, "external32", MPI_INFO_NULL));
    if (rank == 0)
        OK(MPI_File_write_at(file, 1, &half, 1, MPI_DOUBLE, &status));
    OK(MPI_File_sync(file));
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_sync(file));
    OK(MPI_File_read_at_all(file, 1, &back, 1, MPI_DOUBLE, &status));
    CHECK(back == half && count_of(&status, MPI_DOUBLE) == 1);
    OK(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "internal", MPI_INFO_NULL));
    OK(MPI_File_read_at(file, 12, bytes, 12, MPI_BYTE, &status));
    CHECK(memcmp(bytes, "\1\2\3\4\x3f\xe0\0\0\0\0\0\0", 12) == 0);
    OK(MPI_File_close(&file));
}

static void modes(void)
{
    enum { LONG = 300000 };
    int flag = -1;
    char *bytes = malloc(LONG), value[MPI_MAX_INFO_VAL + 1];
    MPI_Status status;
    MPI_Info info, used;
    MPI_Info_create(&info);
    MPI_Info_set(info, "striping_unit", "8192");
    MPI_Info_set(info, "striping_factor", "2");
    MPI_Info_set(info, "cb_nodes", "1");
    MPI_Info_set(info, "nobody_knows", "this");
    MPI_File file;
    int amode = MPI_MODE_RDWR | MPI_MODE_CREATE | MPI_MODE_DELETE_ON_CLOSE;
    OK(MPI_File_open(MPI_COMM_WORLD, named("m"), amode, info, &file));
    MPI_Info_free(&info);
    OK(MPI_File_get_info(file, &used));
    MPI_Info_get(used, "striping_unit", MPI_MAX_INFO_VAL, value, &flag);
    CHECK(flag && strcmp(value, "8192") == 0);
    MPI_Info_get(used, "striping_factor", MPI_MAX_INFO_VAL, value, &flag);
    CHECK(flag && strcmp(value, "2") == 0);
    MPI_Info_get(used, "cb_nodes", MPI_MAX_INFO_VAL, value, &flag);
    CHECK(flag && strcmp(value, "1") == 0);
    MPI_Info_get(used, "nobody_knows", MPI_MAX_INFO_VAL, value, &flag);
    CHECK(!flag);
    MPI_Info_get(used, "bivouac_collective", MPI_MAX_INFO_VAL, value, &flag);
    CHECK(flag);
    MPI_Info_free(&used);
    OK(MPI_File_get_atomicity(file, &flag));
    CHECK(flag == 0);
    OK(MPI_File_set_atomicity(file, 1));
    OK(MPI_File_get_atomicity(file, &flag));
    CHECK(flag == 1);
    /* Overlapping writes are one or the other, wholly; over many stripes. S465. */
    for (int round = 0; round < 4; round++) {
        memset(bytes, 'a' + rank, LONG);
        OK(MPI_File_write_at(file, 100, bytes, LONG, MPI_BYTE, &status));
        OK(MPI_File_read_at(file, 100, bytes, LONG, MPI_BYTE, &status));
        for (int i = 1; i < LONG; i++)
            CHECK(bytes[i] == bytes[0]);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    OK(MPI_File_set_atomicity(file, 0));
    OK(MPI_File_close(&file));
    free(bytes);
}

/* Whether info has this value. */
static int has(MPI_File file, const char *key, const char *wanted)
{
    char value[MPI_MAX_INFO_VAL + 1];
    int flag = 0;
    MPI_Info info;
    OK(MPI_File_get_info(file, &info));
    MPI_Info_get(info, (char *)key, MPI_MAX_INFO_VAL, value, &flag);
    MPI_Info_free(&info);
    if (!flag || strcmp(value, wanted) != 0)
        fprintf(stderr, "%s is %s, not %s\n", key, flag ? value : "missing", wanted);
    return flag && strcmp(value, wanted) == 0;
}

/* Stripes beside the ranks that use them. All targets are on this host here: tests/mpiio/hosts has several. S454. */
static void placement(void)
{
    int amode = MPI_MODE_RDWR | MPI_MODE_CREATE | MPI_MODE_DELETE_ON_CLOSE;
    char wanted[64];
    MPI_File file;
    MPI_Info info;
    MPI_Info_create(&info);
    MPI_Info_set(info, "bivouac_placement", "ranks");
    MPI_Info_set(info, "bivouac_block", "65536");
    OK(MPI_File_open(MPI_COMM_WORLD, named("p"), amode, info, &file));
    snprintf(wanted, sizeof wanted, "%d of %d ranks have their blocks on their host", ranks, ranks);
    CHECK(has(file, "bivouac_placement", "ranks") && has(file, "bivouac_placed", wanted));
    CHECK(has(file, "striping_unit", "65536") && has(file, "bivouac_contract", "coherent"));
    const char *partition = getenv("CALLS_PARTITION");
    CHECK(has(file, "bivouac_partition", partition ? partition : "0"));
    OK(MPI_File_write_at(file, 65536 * rank, &rank, 1, MPI_INT, MPI_STATUS_IGNORE));
    OK(MPI_File_sync(file));
    MPI_Barrier(MPI_COMM_WORLD);
    int read = -1, next = (rank + 1) % ranks;
    OK(MPI_File_read_at(file, 65536 * next, &read, 1, MPI_INT, MPI_STATUS_IGNORE));
    CHECK(read == next);
    OK(MPI_File_close(&file));
    /* A block that no stripe can be. */
    MPI_Info_set(info, "bivouac_block", "1000");
    OK(MPI_File_open(MPI_COMM_WORLD, named("p"), amode, info, &file));
    if (ranks < 4)
        CHECK(has(file, "bivouac_placed", "striped: no stripe can be where it is used"));
    OK(MPI_File_close(&file));
    MPI_Info_set(info, "bivouac_placement", "local");
    char mine[32];
    snprintf(mine, sizeof mine, "p%d", rank);
    OK(MPI_File_open(MPI_COMM_SELF, named(mine), amode, info, &file));
    CHECK(has(file, "striping_factor", "1") && has(file, "bivouac_placed", "on rank 0's host"));
    OK(MPI_File_write_at(file, 0, "x", 1, MPI_BYTE, MPI_STATUS_IGNORE));
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_close(&file));
    MPI_Info_free(&info);
}

/* Each rank writes and reads a block of its own, of a file whose stripes are placed so. */
static void placed(const char *placement)
{
    enum { BLOCK = 1 << 20 };
    char *out = malloc(BLOCK), *in = malloc(BLOCK);
    MPI_File file;
    MPI_Info info;
    MPI_Info_create(&info);
    MPI_Info_set(info, "bivouac_placement", placement);
    MPI_Info_set(info, "bivouac_block", "1048576");
    memset(out, 'a' + rank, BLOCK);
    OK(MPI_File_open(MPI_COMM_WORLD, named("placed"), MPI_MODE_RDWR | MPI_MODE_CREATE | MPI_MODE_DELETE_ON_CLOSE, info,
                     &file));
    OK(MPI_File_write_at_all(file, (MPI_Offset)BLOCK * rank, out, BLOCK, MPI_BYTE, MPI_STATUS_IGNORE));
    OK(MPI_File_read_at(file, (MPI_Offset)BLOCK * rank, in, BLOCK, MPI_BYTE, MPI_STATUS_IGNORE));
    CHECK(memcmp(out, in, BLOCK) == 0);
    OK(MPI_File_close(&file));
    MPI_Info_free(&info);
    free(in);
    free(out);
}

/* What rank `who` writes in a round; the one behind the last is nobody, and writes nothing. */
static unsigned char written(int who, int round, int i)
{
    return who == ranks ? 0 : (unsigned char)(who * 31 + round * 7 + i % 251 + 1);
}

/*
 * Many short pieces in turn with the other ranks', who write at the same time, and with nobody's, over several stripes:
 * once the file is long enough they are moved where they lie. In the end each rank has nothing but its own bytes. S467.
 */
static void close_pieces(void)
{
    enum { PIECE = 24, BYTES = 4000 * PIECE };
    static unsigned char out[2 * BYTES], in[2 * BYTES];
    MPI_Datatype piece, pieces, spread;
    MPI_Status status;
    MPI_File file = opened("pieces", MPI_MODE_RDWR | MPI_MODE_CREATE | MPI_MODE_DELETE_ON_CLOSE);
    MPI_Type_contiguous(PIECE, MPI_BYTE, &piece);
    MPI_Type_create_resized(piece, 0, PIECE * (ranks + 1), &pieces);
    MPI_Type_vector(BYTES / 8, 8, 16, MPI_BYTE, &spread);
    MPI_Type_commit(&pieces);
    MPI_Type_commit(&spread);
    for (int round = 0; round < 5; round++) {
        /* In memory with holes by turns, and read the other way; not all of it in the end. */
        int first = round < 4 ? 0 : 1001, last = BYTES - first, step = round % 2 ? 2 : 1;
        OK(MPI_File_set_view(file, 5 + rank * PIECE, MPI_BYTE, pieces, "native", MPI_INFO_NULL));
        for (int i = 0; i < BYTES; i++)
            out[step * (i - i % 8) + i % 8] = written(rank, round, first + i);
        if (step == 2)
            OK(MPI_File_write_at(file, 0, out, 1, spread, &status));
        else if (round == 2)
            OK(MPI_File_write_at_all(file, first, out, last - first, MPI_BYTE, &status));
        else
            OK(MPI_File_write_at(file, first, out, last - first, MPI_BYTE, &status));
        MPI_Barrier(MPI_COMM_WORLD);
        /* Those of the next rank, or nobody's; twice, since the first read after others have written is a message. */
        int who = rank + 1, there = who == ranks ? BYTES - PIECE : BYTES;
        OK(MPI_File_set_view(file, 5 + who * PIECE, MPI_BYTE, pieces, "native", MPI_INFO_NULL));
        for (int again = 0; again < 2; again++) {
            memset(in, 9, sizeof in);
            OK(MPI_File_read_at(file, 0, in, step == 2 ? BYTES : 1, step == 2 ? MPI_BYTE : spread, &status));
            CHECK(count_of(&status, MPI_BYTE) == there);
            for (int i = 0; i < there; i++) {
                int age = i < first || i >= last ? 3 : round;
                CHECK(in[step == 2 ? i : 2 * (i - i % 8) + i % 8] == written(who, age, i));
            }
        }
        MPI_Barrier(MPI_COMM_WORLD);
    }
    /* Across the end, also of a file that is shorter now: there are fewer, and the rest of the buffer stays. */
    OK(MPI_File_set_view(file, 5 + rank * PIECE, MPI_BYTE, pieces, "native", MPI_INFO_NULL));
    OK(MPI_File_read_at(file, 0, in, 2 * BYTES, MPI_BYTE, &status));
    CHECK(count_of(&status, MPI_BYTE) == BYTES);
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_set_size(file, 5 + BYTES / 2 * (ranks + 1)));
    memset(in, 9, sizeof in);
    OK(MPI_File_read_at_all(file, 0, in, BYTES, MPI_BYTE, &status));
    CHECK(count_of(&status, MPI_BYTE) == BYTES / 2 && in[BYTES / 2] == 9);
    CHECK(in[BYTES / 2 - 1] == written(rank, 4, BYTES / 2 - 1));
    OK(MPI_File_close(&file));
    MPI_Type_free(&piece);
    MPI_Type_free(&pieces);
    MPI_Type_free(&spread);
}

static void numbers(void)
{
    MPI_File file = opened("c", MPI_MODE_RDWR | MPI_MODE_CREATE | MPI_MODE_DELETE_ON_CLOSE);
#ifndef MPI_ABI_VERSION
    CHECK(MPI_File_f2c(MPI_File_c2f(file)) == file);
    CHECK(MPI_File_f2c(MPI_File_c2f(MPI_FILE_NULL)) == MPI_FILE_NULL);
#endif
#if MPI_VERSION >= 5
    CHECK(MPI_File_fromint(MPI_File_toint(file)) == file);
    CHECK(MPI_File_fromint(MPI_File_toint(MPI_FILE_NULL)) == MPI_FILE_NULL);
#endif
    OK(MPI_File_close(&file));
}

#if MPI_VERSION >= 4
static void large_counts(void)
{
    MPI_Datatype vector;
    MPI_Count extent;
    MPI_Status status;
    short out[4] = { 1, 2, 3, 4 }, in[8] = { 0 };
    MPI_File file = opened("l", MPI_MODE_RDWR | MPI_MODE_CREATE | MPI_MODE_DELETE_ON_CLOSE);
    MPI_Type_vector_c(4, 1, 2, MPI_SHORT, &vector);
    MPI_Type_commit(&vector);
    OK(MPI_File_get_type_extent_c(file, vector, &extent));
    CHECK(extent == 14);
    OK(MPI_File_set_view(file, 0, MPI_SHORT, vector, "native", MPI_INFO_NULL));
    if (rank == 0)
        OK(MPI_File_write_at_c(file, 0, out, 4, MPI_SHORT, &status));
    OK(MPI_File_sync(file));
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
    OK(MPI_File_read_at_all_c(file, 0, in, 14, MPI_BYTE, &status));
    CHECK(in[0] == 1 && in[2] == 2 && in[4] == 3 && in[6] == 4 && count_of(&status, MPI_BYTE) == 14);
    MPI_Type_free(&vector);
    OK(MPI_File_close(&file));
}
#endif

/* S466. */
static void full(void)
{
    enum { LONG = 1 << 20, MANY = 200 };
    char *bytes = calloc(1, LONG);
    int class = MPI_SUCCESS, least, most;
    MPI_Status status;
    MPI_File file = opened("full", MPI_MODE_RDWR | MPI_MODE_CREATE);
    for (int round = 0; round < MANY && class == MPI_SUCCESS; round++) {
        MPI_Offset at = (MPI_Offset)(round * ranks + rank) * LONG;
        class = class_of(MPI_File_write_at_all(file, at, bytes, LONG, MPI_BYTE, &status));
        MPI_Allreduce(&class, &least, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
        MPI_Allreduce(&class, &most, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
        CHECK(least == most);
    }
    CHECK(class == MPI_ERR_NO_SPACE);
    OK(MPI_File_set_size(file, 0));
    OK(MPI_File_write_at_all(file, rank, bytes, 1, MPI_BYTE, &status));
    OK(MPI_File_close(&file));
    free(bytes);
}

/* S383. */
static void gone(void)
{
    enum { LONG = 1 << 18 };
    char *bytes = calloc(1, LONG);
    int class = MPI_SUCCESS, least, most;
    MPI_Status status;
    MPI_File file = opened("gone", MPI_MODE_RDWR | MPI_MODE_CREATE);
    for (int round = 0; class == MPI_SUCCESS; round++) {
        class = class_of(MPI_File_write_at_all(file, (MPI_Offset)rank * LONG, bytes, LONG, MPI_BYTE, &status));
        MPI_Allreduce(&class, &least, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
        MPI_Allreduce(&class, &most, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
        CHECK(least == most);
        if (rank == 0 && round == 3) {
            puts("under way");
            fflush(stdout);
        }
    }
    CHECK(MPI_File_read_at(file, 0, bytes, LONG, MPI_BYTE, &status) != MPI_SUCCESS);
    CHECK(MPI_File_set_size(file, 1) != MPI_SUCCESS);
    MPI_File_close(&file);
    CHECK(file == MPI_FILE_NULL);
    free(bytes);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    directory = argv[1];
    if (argc > 2) {
        const char *what = argv[2];
        if (strcmp(what, "gone") == 0)
            gone();
        else if (strcmp(what, "full") == 0)
            full();
        else
            placed(what);
        MPI_Finalize();
        return 0;
    }
    opening();
    refusals();
    without_memory();
    sequential();
    interlocked();
    handlers();
    pointers();
    nonblocking_together();
    representations();
    modes();
    placement();
    close_pieces();
    numbers();
#if MPI_VERSION >= 4
    large_counts();
#endif
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        puts("all calls kept their promises");
    MPI_Finalize();
    return 0;
}
