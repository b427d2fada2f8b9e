/*
 * How long calls of MPI-IO take, by the pattern of the pieces: patterns FILE REPEATS [PATTERN]. Each line is a pattern, a call, and
 * the median of so many calls in seconds, the slowest rank's; what was read is compared with what was written.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OK(call)                                                       \
    do {                                                               \
        int class = (call);                                            \
        if (class != MPI_SUCCESS) {                                    \
            fprintf(stderr, "line %d: class %d\n", __LINE__, class);   \
            MPI_Abort(MPI_COMM_WORLD, 1);                              \
        }                                                              \
    } while (0)

static int rank, ranks, repeats;
static const char *path, *only;

/* What a rank has of a file, and where it is in memory. */
struct pattern {
    const char *name;
    MPI_Datatype file, memory;
    size_t room; /* bytes of memory that the type reaches over */
    int bytes;   /* of content */
};

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *times)
{
    qsort(times, (size_t)repeats, sizeof *times, by_value);
    return times[repeats / 2];
}

static void fill(unsigned char *bytes, size_t count)
{
    unsigned long state = 88172645463325252UL + (unsigned long)rank;
    for (size_t i = 0; i < count; i++) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        bytes[i] = (unsigned char)state;
    }
}

/* Whether the content of two buffers is the same; what lies between does not matter. */
static int are_same(const struct pattern *pattern, const void *a, const void *b)
{
    int position = 0, same;
    char *packed[2] = { malloc((size_t)pattern->bytes), malloc((size_t)pattern->bytes) };
    OK(MPI_Pack(a, 1, pattern->memory, packed[0], pattern->bytes, &position, MPI_COMM_SELF));
    position = 0;
    OK(MPI_Pack(b, 1, pattern->memory, packed[1], pattern->bytes, &position, MPI_COMM_SELF));
    same = memcmp(packed[0], packed[1], (size_t)pattern->bytes) == 0;
    free(packed[0]);
    free(packed[1]);
    return same;
}

static double timed(MPI_File file, const struct pattern *pattern, void *buffer, int is_write, int is_together)
{
    MPI_Status status;
    double start, mine, slowest;
    MPI_Barrier(MPI_COMM_WORLD);
    start = MPI_Wtime();
    if (is_write && is_together)
        OK(MPI_File_write_at_all(file, 0, buffer, 1, pattern->memory, &status));
    else if (is_write)
        OK(MPI_File_write_at(file, 0, buffer, 1, pattern->memory, &status));
    else if (is_together)
        OK(MPI_File_read_at_all(file, 0, buffer, 1, pattern->memory, &status));
    else
        OK(MPI_File_read_at(file, 0, buffer, 1, pattern->memory, &status));
    mine = MPI_Wtime() - start;
    MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return slowest;
}

static void measure(struct pattern *pattern, MPI_Comm comm)
{
    static const char *const names[] = { "read", "write", "read_all", "write_all" };
    char own[4096];
    MPI_File file;
    MPI_Aint lower, extent;
    if (only && strcmp(only, pattern->name) != 0)
        return;
    MPI_Type_commit(&pattern->file);
    MPI_Type_commit(&pattern->memory);
    MPI_Type_size(pattern->memory, &pattern->bytes);
    MPI_Type_get_extent(pattern->memory, &lower, &extent);
    pattern->room = (size_t)extent;
    unsigned char *out = malloc(pattern->room), *in = malloc(pattern->room);
    double *times = malloc((size_t)repeats * sizeof *times);
    fill(out, pattern->room);
    snprintf(own, sizeof own, comm == MPI_COMM_SELF ? "%s.%d" : "%s", path, rank);
    OK(MPI_File_open(comm, own, MPI_MODE_RDWR | MPI_MODE_CREATE | MPI_MODE_DELETE_ON_CLOSE, MPI_INFO_NULL, &file));
    OK(MPI_File_set_view(file, 0, MPI_BYTE, pattern->file, "native", MPI_INFO_NULL));
    for (int together = 0; together < 2; together++)
        for (int is_write = 1; is_write >= 0; is_write--) {
            /* The first call also makes room, and is not counted. */
            for (int i = -1; i < repeats; i++) {
                double taken = timed(file, pattern, is_write ? out : in, is_write, together);
                if (i >= 0)
                    times[i] = taken;
            }
            if (!is_write && !are_same(pattern, in, out)) {
                fprintf(stderr, "%s: rank %d reads other bytes than it wrote\n", pattern->name, rank);
                MPI_Abort(MPI_COMM_WORLD, 1);
            }
            if (rank == 0)
                printf("%s %s %.9f %d\n", pattern->name, names[together * 2 + is_write], median(times), pattern->bytes);
            memset(in, 0, pattern->room);
        }
    OK(MPI_File_close(&file));
    MPI_Type_free(&pattern->file);
    MPI_Type_free(&pattern->memory);
    free(times);
    free(in);
    free(out);
    fflush(stdout);
}

static void contiguous(const char *name, int bytes, MPI_Comm comm)
{
    struct pattern pattern = { .name = name };
    MPI_Datatype block;
    MPI_Type_contiguous(bytes, MPI_BYTE, &pattern.memory);
    MPI_Aint at = comm == MPI_COMM_SELF ? 0 : (MPI_Aint)rank * bytes;
    MPI_Type_create_hindexed(1, &bytes, &at, MPI_BYTE, &block);
    MPI_Type_create_resized(block, 0, (MPI_Aint)bytes * ranks, &pattern.file);
    MPI_Type_free(&block);
    measure(&pattern, comm);
}

/* Pieces in turn with the other ranks'. */
static void vector(const char *name, int piece, int total)
{
    struct pattern pattern = { .name = name };
    MPI_Datatype pieces;
    MPI_Aint at = (MPI_Aint)rank * piece;
    int one = 1;
    MPI_Type_contiguous(total, MPI_BYTE, &pattern.memory);
    MPI_Type_create_hvector(total / piece, piece, (MPI_Aint)piece * ranks, MPI_BYTE, &pieces);
    MPI_Type_create_hindexed(1, &one, &at, pieces, &pattern.file);
    MPI_Type_free(&pieces);
    measure(&pattern, MPI_COMM_WORLD);
}

/* A tile of 100 x 100 doubles out of a matrix of 1,000 x 1,000. */
static void tile(void)
{
    struct pattern pattern = { .name = "tile" };
    int sizes[2] = { 1000, 1000 }, part[2] = { 100, 100 }, start[2] = { 100 * (rank / 10), 100 * (rank % 10) };
    MPI_Type_create_subarray(2, sizes, part, start, MPI_ORDER_C, MPI_DOUBLE, &pattern.file);
    MPI_Type_contiguous(100 * 100, MPI_DOUBLE, &pattern.memory);
    measure(&pattern, MPI_COMM_WORLD);
}

/* A block of 32 x 32 x 32 doubles, with a layer of ghost cells around it in memory. */
static void block(void)
{
    struct pattern pattern = { .name = "block" };
    int dims[3] = { 0, 0, 0 }, sizes[3], part[3] = { 32, 32, 32 }, start[3], around[3] = { 34, 34, 34 };
    int inner[3] = { 1, 1, 1 };
    MPI_Dims_create(ranks, 3, dims);
    int place[3] = { rank / (dims[1] * dims[2]), rank / dims[2] % dims[1], rank % dims[2] };
    for (int i = 0; i < 3; i++) {
        sizes[i] = dims[i] * 32;
        start[i] = place[i] * 32;
    }
    MPI_Type_create_subarray(3, sizes, part, start, MPI_ORDER_C, MPI_DOUBLE, &pattern.file);
    MPI_Type_create_subarray(3, around, part, inner, MPI_ORDER_C, MPI_DOUBLE, &pattern.memory);
    measure(&pattern, MPI_COMM_WORLD);
}

/* The pattern of BTIO (NAS Parallel Benchmarks): diagonal multi-partitioning, five doubles per point, for q x q ranks. */
static void btio(void)
{
    struct pattern pattern = { .name = "btio" };
    int q = 1, cell = 24;
    while ((q + 1) * (q + 1) <= ranks)
        q++;
    if (q * q != ranks)
        return;
    MPI_Datatype point, *cells = malloc((size_t)q * sizeof *cells);
    MPI_Aint *at = calloc((size_t)q, sizeof *at);
    int *ones = malloc((size_t)q * sizeof *ones);
    MPI_Type_contiguous(5, MPI_DOUBLE, &point);
    for (int i = 0; i < q; i++) {
        int sizes[3] = { q * cell, q * cell, q * cell }, part[3] = { cell, cell, cell };
        int start[3] = { i * cell, (rank / q + i) % q * cell, (rank % q + i) % q * cell };
        MPI_Type_create_subarray(3, sizes, part, start, MPI_ORDER_C, point, &cells[i]);
        ones[i] = 1;
    }
    MPI_Type_create_struct(q, ones, at, cells, &pattern.file);
    MPI_Type_contiguous(q * cell * cell * cell * 5, MPI_DOUBLE, &pattern.memory);
    for (int i = 0; i < q; i++)
        MPI_Type_free(&cells[i]);
    MPI_Type_free(&point);
    free(cells);
    free(at);
    free(ones);
    measure(&pattern, MPI_COMM_WORLD);
}

int main(int count, char **arguments)
{
    MPI_Init(&count, &arguments);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (count != 3 && count != 4) {
        fprintf(stderr, "usage: patterns FILE REPEATS [PATTERN]\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    path = arguments[1];
    only = arguments[3];
    repeats = atoi(arguments[2]) > 0 ? atoi(arguments[2]) : 1;
    contiguous("own-1MiB", 1 << 20, MPI_COMM_SELF);
    contiguous("shared-1MiB", 1 << 20, MPI_COMM_WORLD);
    vector("vector-8B", 8, 1 << 18);
    vector("vector-64B", 64, 1 << 20);
    vector("vector-1KiB", 1024, 1 << 22);
    vector("vector-64KiB", 65536, 1 << 23);
    tile();
    block();
    btio();
    MPI_Finalize();
    return 0;
}
