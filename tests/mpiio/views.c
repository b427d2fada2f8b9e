/*
 * Random views, buffers and calls: run with the same seed on a file of the formation and on one of the kernel's, where
 * the MPI library's own MPI-IO vouches for the result. Says what every call said, rank by rank; the files are compared
 * outside. S467: what lies between the pieces is as it was.
 * usage: views FILE SEED ROUNDS LOG
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CELLS_MAX 64
#define BUFFER (1 << 20)

static FILE *report;
static int rank, ranks;

/* All ranks draw the same numbers from one row, and their own from another. */
static uint64_t common, own;

static uint64_t draw(uint64_t *state)
{
    *state += 0x9e3779b97f4a7c15u;
    uint64_t z = *state;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static int below(uint64_t *state, int limit)
{
    return (int)(draw(state) % (uint64_t)limit);
}

static void must(int code, const char *what)
{
    char text[MPI_MAX_ERROR_STRING];
    int length;
    if (code == MPI_SUCCESS)
        return;
    MPI_Error_string(code, text, &length);
    fprintf(stderr, "rank %d: %s: %s\n", rank, what, text);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static MPI_Datatype etype_of(int kind)
{
    MPI_Datatype type, inner;
    switch (kind) {
    case 0: return MPI_BYTE;
    case 1: return MPI_INT;
    case 2: return MPI_DOUBLE;
    case 3: MPI_Type_contiguous(3, MPI_SHORT, &type); break;
    case 4:
        MPI_Type_contiguous(5, MPI_BYTE, &inner);
        MPI_Type_dup(inner, &type);
        MPI_Type_free(&inner);
        break;
    default: {
        int lengths[2] = { 1, 2 };
        MPI_Aint at[2] = { 0, 4 };
        MPI_Datatype types[2] = { MPI_INT, MPI_DOUBLE };
        MPI_Type_create_struct(2, lengths, at, types, &type);
        break;
    }
    }
    MPI_Type_commit(&type);
    return type;
}

/* Cells of a tile, each somebody's or nobody's; the type has those of this rank, made in one of many ways. */
static MPI_Datatype cells(MPI_Datatype etype, int way)
{
    int count = 1 + below(&common, CELLS_MAX), mine = 0, at[CELLS_MAX], ones[CELLS_MAX];
    MPI_Aint lower, extent, bytes[CELLS_MAX];
    MPI_Datatype types[CELLS_MAX], type, tile;
    MPI_Type_get_extent(etype, &lower, &extent);
    for (int i = 0; i < count; i++)
        if (below(&common, ranks + 1) == rank || (i == count - 1 && mine == 0 && ranks == 1)) {
            at[mine] = i;
            bytes[mine] = i * extent;
            types[mine] = etype;
            ones[mine++] = 1;
        }
    /* Everybody has a cell of its own behind the others, so that no type is empty. */
    at[mine] = count + rank;
    bytes[mine] = (count + rank) * extent;
    types[mine] = etype;
    ones[mine++] = 1;
    switch (way) {
    case 0: MPI_Type_indexed(mine, ones, at, etype, &type); break;
    case 1: MPI_Type_create_hindexed(mine, ones, bytes, etype, &type); break;
    case 2: MPI_Type_create_indexed_block(mine, 1, at, etype, &type); break;
    case 3: MPI_Type_create_hindexed_block(mine, 1, bytes, etype, &type); break;
    default: MPI_Type_create_struct(mine, ones, bytes, types, &type); break;
    }
    MPI_Type_create_resized(type, 0, (count + ranks) * extent, &tile);
    MPI_Type_free(&type);
    MPI_Type_commit(&tile);
    return tile;
}

static MPI_Datatype filetype_of(MPI_Datatype etype)
{
    int way = below(&common, 9), order = below(&common, 2) ? MPI_ORDER_C : MPI_ORDER_FORTRAN;
    MPI_Datatype type, inner;
    MPI_Aint lower, extent;
    MPI_Type_get_extent(etype, &lower, &extent);
    if (way < 5)
        return cells(etype, way);
    if (way == 5) { /* blocks of rows */
        int sizes[2] = { 2 + below(&common, 6), ranks * (1 + below(&common, 4)) };
        int parts[2] = { sizes[0], sizes[1] / ranks }, starts[2] = { 0, rank * parts[1] };
        MPI_Type_create_subarray(2, sizes, parts, starts, order, etype, &type);
    } else if (way == 6) {
        int grid[3] = { 0, 0, 0 }, sizes[3], kinds[3], arguments[3];
        MPI_Dims_create(ranks, 3, grid);
        for (int i = 0; i < 3; i++) {
            sizes[i] = grid[i] * (1 + below(&common, 3)) + (grid[i] > 1 ? 0 : below(&common, 3));
            kinds[i] = below(&common, 2) ? MPI_DISTRIBUTE_BLOCK : MPI_DISTRIBUTE_CYCLIC;
            arguments[i] = MPI_DISTRIBUTE_DFLT_DARG;
            if (grid[i] == 1)
                kinds[i] = MPI_DISTRIBUTE_NONE;
        }
        MPI_Type_create_darray(ranks, rank, 3, sizes, kinds, arguments, grid, order, etype, &type);
    } else if (way == 7) { /* a vector with the others' parts in its holes */
        int length = 1 + below(&common, 5), count = 1 + below(&common, 6);
        MPI_Type_vector(count, length, length * ranks, etype, &inner);
        int one = 1;
        MPI_Aint at = rank * length * extent;
        MPI_Datatype moved;
        MPI_Type_create_hindexed(1, &one, &at, inner, &moved);
        MPI_Type_create_resized(moved, 0, (MPI_Aint)count * length * ranks * extent, &type);
        MPI_Type_free(&moved);
        MPI_Type_free(&inner);
    } else { /* nested: a vector of vectors, each rank's in one row */
        MPI_Datatype row, placed;
        int one = 1, count = 1 + below(&common, 4);
        MPI_Type_create_hvector(count, 1, 3 * extent, etype, &inner);
        MPI_Type_create_resized(inner, 0, 3 * count * extent, &row);
        MPI_Aint at = rank * 3 * count * extent;
        MPI_Type_create_struct(1, &one, &at, &row, &placed);
        MPI_Type_create_resized(placed, 0, (MPI_Aint)ranks * 3 * count * extent, &type);
        MPI_Type_free(&inner);
        MPI_Type_free(&row);
        MPI_Type_free(&placed);
    }
    MPI_Type_commit(&type);
    return type;
}

/* The type of a buffer: of one etype, with holes, or backwards. */
static MPI_Datatype memory_of(MPI_Datatype etype)
{
    MPI_Datatype type, inner;
    MPI_Aint lower, extent;
    MPI_Type_get_extent(etype, &lower, &extent);
    switch (below(&own, 5)) {
    case 0: MPI_Type_dup(etype, &type); break;
    case 1: MPI_Type_contiguous(2, etype, &type); break;
    case 2: MPI_Type_vector(3, 1, 2, etype, &type); break;
    case 3: {
        int lengths[2] = { 1, 1 };
        MPI_Aint at[2] = { 2 * extent, 0 };
        MPI_Type_create_hindexed(2, lengths, at, etype, &type);
        break;
    }
    default:
        MPI_Type_vector(2, 2, -2, etype, &inner);
        int one = 1;
        MPI_Aint at = 2 * extent;
        MPI_Type_create_hindexed(1, &one, &at, inner, &type);
        MPI_Type_free(&inner);
    }
    MPI_Type_commit(&type);
    return type;
}

static uint64_t digest(const unsigned char *bytes, size_t count)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < count; i++)
        hash = (hash ^ bytes[i]) * 0x100000001b3u;
    return hash;
}

static void say(const char *what, MPI_Status *status, MPI_Datatype type, MPI_Datatype etype)
{
    int count = 0, elements = 0, units = 0;
    MPI_Get_count(status, type, &count);
    MPI_Get_elements(status, type, &elements);
    MPI_Get_count(status, etype, &units);
    fprintf(report, "%s: count %d elements %d etypes %d\n", what, count, elements, units);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    uint64_t seed = strtoull(argv[2], NULL, 10);
    int rounds = atoi(argv[3]);
    char name[4096];
    snprintf(name, sizeof name, "%s.%d", argv[4], rank);
    report = fopen(name, "w");
    common = seed;
    own = seed * 1000003 + (uint64_t)rank + 1;
    unsigned char *out = malloc(BUFFER), *in = malloc(BUFFER);
    MPI_File file;
    MPI_Info hints;
    static char *const ways[] = { "automatic", "enable", "disable" };
    MPI_Info_create(&hints);
    MPI_Info_set(hints, "romio_cb_write", ways[seed % 3]);
    MPI_Info_set(hints, "romio_cb_read", ways[seed % 3]);
    MPI_Info_set(hints, "cb_buffer_size", seed % 2 ? "4096" : "65536");
    must(MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_RDWR | MPI_MODE_CREATE, hints, &file), "open");
    MPI_Info_free(&hints);
    /* ROMIO and OMPIO leave what was in their memory in holes that are behind the end: so that there is none such. */
    must(MPI_File_set_size(file, BUFFER / 2), "set_size");
    for (int round = 0; round < rounds; round++) {
        MPI_Datatype etype = etype_of(below(&common, 6)), filetype = filetype_of(etype), memory = memory_of(etype);
        MPI_Offset disp = below(&common, 3) * below(&common, 5000), offset, byte, position;
        int count = below(&common, 8) == 0 ? 0 : 1 + below(&own, 40), method = below(&common, 8);
        MPI_Aint lower, extent, first;
        MPI_Status status;
        MPI_Request requests[2];
        must(MPI_File_set_view(file, disp, etype, filetype, "native", MPI_INFO_NULL), "set_view");
        MPI_Type_get_extent(memory, &lower, &extent);
        MPI_Type_get_true_extent(memory, &first, &extent);
        for (int i = 0; i < BUFFER; i++)
            out[i] = (unsigned char)(draw(&own) >> 13);
        memset(in, 0xee, BUFFER);
        offset = below(&own, 50);
        fprintf(report, "round %d method %d count %d offset %lld\n", round, method, count, (long long)offset);
        must(MPI_File_get_byte_offset(file, offset, &byte), "get_byte_offset");
        fprintf(report, "byte %lld\n", (long long)byte);
        must(MPI_File_seek(file, offset, MPI_SEEK_SET), "seek");
        unsigned char *from = out + BUFFER / 2, *to = in + BUFFER / 2;
        switch (method) {
        case 0: must(MPI_File_write_at(file, offset, from, count, memory, &status), "write_at"); break;
        case 1: must(MPI_File_write_at_all(file, offset, from, count, memory, &status), "write_at_all"); break;
        case 2: must(MPI_File_write(file, from, count, memory, &status), "write"); break;
        case 3: must(MPI_File_write_all(file, from, count, memory, &status), "write_all"); break;
        case 4:
            must(MPI_File_iwrite_at(file, offset, from, count, memory, &requests[0]), "iwrite_at");
            must(MPI_Wait(&requests[0], &status), "wait");
            break;
        case 5:
            must(MPI_File_write_all_begin(file, from, count, memory), "write_all_begin");
            must(MPI_File_write_all_end(file, from, &status), "write_all_end");
            break;
        case 6:
            must(MPI_File_write_at_all_begin(file, offset, from, count, memory), "write_at_all_begin");
            must(MPI_File_write_at_all_end(file, from, &status), "write_at_all_end");
            break;
        default: {
            MPI_Status both[2];
            int token = rank, heard = -1;
            must(MPI_File_iwrite(file, from, count, memory, &requests[0]), "iwrite");
            MPI_Irecv(&heard, 1, MPI_INT, (rank + ranks - 1) % ranks, 7, MPI_COMM_WORLD, &requests[1]);
            MPI_Send(&token, 1, MPI_INT, (rank + 1) % ranks, 7, MPI_COMM_WORLD);
            must(MPI_Waitall(2, requests, both), "waitall");
            status = both[0];
        }
        }
        say("written", &status, memory, etype);
        must(MPI_File_get_position(file, &position), "get_position");
        fprintf(report, "position %lld\n", (long long)position);
        must(MPI_File_sync(file), "sync");
        MPI_Barrier(MPI_COMM_WORLD);
        /* What this rank wrote, by another way; all of it is there. */
        switch (below(&common, 5)) {
        case 0: must(MPI_File_read_at(file, offset, to, count, memory, &status), "read_at"); break;
        case 1: must(MPI_File_read_at_all(file, offset, to, count, memory, &status), "read_at_all"); break;
        case 2:
            must(MPI_File_seek(file, offset, MPI_SEEK_SET), "seek");
            must(MPI_File_read_all(file, to, count, memory, &status), "read_all");
            break;
        case 3:
            must(MPI_File_iread_at(file, offset, to, count, memory, &requests[0]), "iread_at");
            must(MPI_Wait(&requests[0], &status), "wait");
            break;
        default:
            must(MPI_File_read_at_all_begin(file, offset, to, count, memory), "read_at_all_begin");
            must(MPI_File_read_at_all_end(file, to, &status), "read_at_all_end");
        }
        say("read", &status, memory, etype);
        fprintf(report, "digest %016llx\n", (unsigned long long)digest(in, BUFFER));
        /* Everything, as bytes, by everybody. */
        must(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL), "set_view");
        MPI_Offset length;
        must(MPI_File_get_size(file, &length), "get_size");
        memset(in, 0xee, BUFFER);
        must(MPI_File_read_all(file, in, length < BUFFER ? (int)length : BUFFER, MPI_BYTE, &status), "read_all");
        say("whole", &status, MPI_BYTE, MPI_BYTE);
        fprintf(report, "size %lld digest %016llx\n", (long long)length, (unsigned long long)digest(in, BUFFER));
        fflush(report);
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_Type_free(&memory);
        MPI_Type_free(&filetype);
        int a, b, c, combiner;
        MPI_Type_get_envelope(etype, &a, &b, &c, &combiner);
        if (combiner != MPI_COMBINER_NAMED)
            MPI_Type_free(&etype);
    }
    must(MPI_File_close(&file), "close");
    fclose(report);
    MPI_Finalize();
    return 0;
}
