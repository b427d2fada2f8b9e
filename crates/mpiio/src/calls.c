/* The calls that move data, and the pointers that say where. Each has a form for large counts where MPI has those. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "mpiio.h"

/* Which offset an access begins at. */
enum where { AT, OWN, SHARED, ORDERED };

/* Split collective calls, so that each end finds its begin. */
enum split {
    SPLIT_AT_READ = 1,
    SPLIT_AT_WRITE,
    SPLIT_OWN_READ,
    SPLIT_OWN_WRITE,
    SPLIT_ORDERED_READ,
    SPLIT_ORDERED_WRITE
};

/* What a call is. */
struct call {
    int is_write;
    enum where where;
    int is_collective;
    MPI_Offset offset;
    void *buffer;
    int64_t count;
    MPI_Datatype type;
};

static int check(const struct file *file, const struct call *call)
{
    if (call->count < 0)
        return MPI_ERR_COUNT;
    if (call->type == MPI_DATATYPE_NULL)
        return MPI_ERR_TYPE;
    if (call->where == AT && call->offset < 0)
        return MPI_ERR_ARG;
    if (call->is_write && (file->amode & MPI_MODE_RDONLY))
        return MPI_ERR_READ_ONLY;
    if (!call->is_write && (file->amode & MPI_MODE_WRONLY))
        return MPI_ERR_ACCESS;
    if ((file->amode & MPI_MODE_SEQUENTIAL) && (call->where == AT || call->where == OWN))
        return MPI_ERR_UNSUPPORTED_OPERATION;
    return MPI_SUCCESS;
}

int pointer_of(struct file *file)
{
    int class = MPI_SUCCESS;
    pthread_mutex_lock(&file->lock);
    if (!file->pointer && file->pointer_ino)
        file->pointer = bivouac_open_number(file->formation, file->pointer_ino, O_RDWR);
    if (!file->pointer)
        class = file->pointer_ino ? class_of_errno(errno) : MPI_ERR_UNSUPPORTED_OPERATION;
    pthread_mutex_unlock(&file->lock);
    return class;
}

int claim(struct file *file, int64_t units, int64_t *at)
{
    int class = pointer_of(file);
    if (class)
        return class;
    *at = bivouac_claim(file->pointer, units);
    file->pointer_used = 1;
    return *at < 0 ? class_of_errno(errno) : MPI_SUCCESS;
}

/* The place of each rank of an ordered call: one rank moves the pointer for all. */
static int claim_in_order(struct file *file, int class, int64_t units, int64_t *at)
{
    int64_t mine[2] = { units, class != MPI_SUCCESS }, behind[2] = { 0, 0 }, said[2] = { 0, class };
    if (PMPI_Scan(mine, behind, 2, MPI_INT64_T, MPI_SUM, file->comm))
        return MPI_ERR_OTHER;
    int last = file->ranks - 1;
    if (file->rank == last)
        said[1] = behind[1] ? (class ? class : MPI_ERR_OTHER) : claim(file, behind[0], &said[0]);
    if (PMPI_Bcast(said, 2, MPI_INT64_T, last, file->comm))
        return MPI_ERR_OTHER;
    file->pointer_used = 1;
    *at = said[0] + behind[0] - units;
    return class ? class : (int)said[1];
}

/* Bytes in memory, of those in the file. */
static int64_t in_memory(const struct request *request, int64_t done)
{
    int size = 0;
    if (!request->packed || request->bytes == 0)
        return done;
    PMPI_Type_size(request->type, &size);
    return done / (request->bytes / request->count) * size;
}

static int64_t position_of(struct file *file)
{
    pthread_mutex_lock(&file->lock);
    int64_t position = file->position;
    pthread_mutex_unlock(&file->lock);
    return position;
}

/* Whose turn it is moves it. */
static void move_position(struct file *file, int64_t to)
{
    pthread_mutex_lock(&file->lock);
    file->position = to;
    pthread_mutex_unlock(&file->lock);
}

static int perform(struct file *file, const struct call *call, int64_t *bytes)
{
    struct request request = { .file = file, .is_write = call->is_write, .buffer = call->buffer, .count = call->count,
                               .type = call->type };
    int64_t done = 0, start = call->offset;
    int class = check(file, call);
    if (call->where == OWN)
        pthread_mutex_lock(&file->turn);
    request.view = view_of(file);
    int64_t unit = request.view->unit;
    *bytes = 0;
    __atomic_add_fetch(&file->tally.calls, 1, __ATOMIC_RELAXED);
    if (!class)
        class = prepare(&request);
    int64_t units = class ? 0 : request.bytes / unit;
    if (call->where == SHARED && !class)
        class = claim(file, units, &start);
    if (call->where == ORDERED)
        class = claim_in_order(file, class, units, &start);
    if (call->where == OWN)
        start = position_of(file);
    if (!class && start > INT64_MAX / unit)
        class = MPI_ERR_ARG;
    request.offset = class ? 0 : start * unit;
    if (call->is_collective)
        class = transfer_together(&request, class, &done);
    else if (!class)
        class = transfer(&request, &done);
    if (!class)
        class = unpack(&request, done);
    if (call->where == OWN) {
        /* Beyond what was there to be read it does not go. */
        if (!class)
            move_position(file, start + done / unit);
        pthread_mutex_unlock(&file->turn);
    }
    *bytes = class ? 0 : in_memory(&request, done);
    request_free(&request);
    view_leave(file, request.view);
    return class;
}

static void tell(MPI_Status *status, int64_t bytes)
{
    if (status == MPI_STATUS_IGNORE)
        return;
    PMPI_Status_set_elements_x(status, MPI_BYTE, bytes);
    PMPI_Status_set_cancelled(status, 0);
}

static int now(struct file *file, const struct call *call, MPI_Status *status)
{
    int64_t bytes;
    int class = perform(file, call, &bytes);
    tell(status, bytes);
    return failed(file, class, class ? bivouac_error() : NULL);
}

static int query(void *state, MPI_Status *status)
{
    PMPI_Status_set_elements_x(status, MPI_BYTE, *(int64_t *)state);
    PMPI_Status_set_cancelled(status, 0);
    status->MPI_SOURCE = MPI_UNDEFINED;
    status->MPI_TAG = MPI_UNDEFINED;
    return MPI_SUCCESS;
}

static int release(void *state)
{
    free(state);
    return MPI_SUCCESS;
}

static int cancel(void *state, int is_complete)
{
    (void)state, (void)is_complete;
    return MPI_SUCCESS;
}

/* A nonblocking call is done when it returns; its request is like any other, and complete. */
static int later(struct file *file, const struct call *call, MPI_Request *request)
{
    int64_t *bytes = malloc(sizeof *bytes);
    *request = MPI_REQUEST_NULL;
    if (!bytes)
        return failed(file, MPI_ERR_NO_MEM, NULL);
    int class = perform(file, call, bytes);
    if (!class)
        class = PMPI_Grequest_start(query, release, cancel, bytes, request);
    if (class) {
        free(bytes);
        return failed(file, class, bivouac_error());
    }
    return PMPI_Grequest_complete(*request);
}

static int begin(struct file *file, const struct call *call, enum split split)
{
    if (file->split)
        return failed(file, MPI_ERR_OTHER, "another split collective call is under way");
    int class = perform(file, call, &file->split_bytes);
    if (!class)
        file->split = split;
    return failed(file, class, class ? bivouac_error() : NULL);
}

static int end(struct file *file, enum split split, MPI_Status *status)
{
    if (file->split != (int)split)
        return failed(file, MPI_ERR_OTHER, "no such split collective call is under way");
    file->split = 0;
    tell(status, file->split_bytes);
    return MPI_SUCCESS;
}

/* A call and its form for large counts; whatever is not ours is MPI's. */
#ifdef LARGE_COUNTS
#define BOTH(define, ...) define(, int, __VA_ARGS__) define(_c, MPI_Count, __VA_ARGS__)
#else
#define BOTH(define, ...) define(, int, __VA_ARGS__)
#endif

#define WITH_STATUS(suffix, number, name, constant, is_write, where, together)                                      \
    PUBLIC int MPI_File_##name##suffix(MPI_File handle, constant void *buffer, number count, MPI_Datatype type,     \
                                       MPI_Status *status)                                                          \
    {                                                                                                               \
        struct file *file = file_of(handle);                                                                        \
        struct call call = { is_write, where, together, 0, (void *)buffer, count, type };                           \
        return file ? now(file, &call, status) : REAL(PMPI_File_##name##suffix)(handle, buffer, count, type, status);\
    }                                                                                                               \
    ALSO(MPI_File_##name##suffix)
#define AT_STATUS(suffix, number, name, constant, is_write, together)                                               \
    PUBLIC int MPI_File_##name##suffix(MPI_File handle, MPI_Offset offset, constant void *buffer, number count,     \
                                       MPI_Datatype type, MPI_Status *status)                                       \
    {                                                                                                               \
        struct file *file = file_of(handle);                                                                        \
        struct call call = { is_write, AT, together, offset, (void *)buffer, count, type };                         \
        return file ? now(file, &call, status)                                                                      \
                    : REAL(PMPI_File_##name##suffix)(handle, offset, buffer, count, type, status);                  \
    }                                                                                                               \
    ALSO(MPI_File_##name##suffix)
#define WITH_REQUEST(suffix, number, name, constant, is_write, where)                                               \
    PUBLIC int MPI_File_##name##suffix(MPI_File handle, constant void *buffer, number count, MPI_Datatype type,     \
                                       MPI_Request *request)                                                        \
    {                                                                                                               \
        struct file *file = file_of(handle);                                                                        \
        struct call call = { is_write, where, 0, 0, (void *)buffer, count, type };                                  \
        return file ? later(file, &call, request)                                                                   \
                    : REAL(PMPI_File_##name##suffix)(handle, buffer, count, type, request);                         \
    }                                                                                                               \
    ALSO(MPI_File_##name##suffix)
#define AT_REQUEST(suffix, number, name, constant, is_write)                                                        \
    PUBLIC int MPI_File_##name##suffix(MPI_File handle, MPI_Offset offset, constant void *buffer, number count,     \
                                       MPI_Datatype type, MPI_Request *request)                                     \
    {                                                                                                               \
        struct file *file = file_of(handle);                                                                        \
        struct call call = { is_write, AT, 0, offset, (void *)buffer, count, type };                                \
        return file ? later(file, &call, request)                                                                   \
                    : REAL(PMPI_File_##name##suffix)(handle, offset, buffer, count, type, request);                 \
    }                                                                                                               \
    ALSO(MPI_File_##name##suffix)
#define BEGIN(suffix, number, name, constant, is_write, where, split)                                               \
    PUBLIC int MPI_File_##name##suffix(MPI_File handle, constant void *buffer, number count, MPI_Datatype type)     \
    {                                                                                                               \
        struct file *file = file_of(handle);                                                                        \
        struct call call = { is_write, where, 1, 0, (void *)buffer, count, type };                                  \
        return file ? begin(file, &call, split) : REAL(PMPI_File_##name##suffix)(handle, buffer, count, type);      \
    }                                                                                                               \
    ALSO(MPI_File_##name##suffix)
#define AT_BEGIN(suffix, number, name, constant, is_write, split)                                                   \
    PUBLIC int MPI_File_##name##suffix(MPI_File handle, MPI_Offset offset, constant void *buffer, number count,     \
                                       MPI_Datatype type)                                                           \
    {                                                                                                               \
        struct file *file = file_of(handle);                                                                        \
        struct call call = { is_write, AT, 1, offset, (void *)buffer, count, type };                                \
        return file ? begin(file, &call, split) : REAL(PMPI_File_##name##suffix)(handle, offset, buffer, count, type);\
    }                                                                                                               \
    ALSO(MPI_File_##name##suffix)
#define END(name, constant, split)                                                                                  \
    PUBLIC int MPI_File_##name(MPI_File handle, constant void *buffer, MPI_Status *status)                          \
    {                                                                                                               \
        struct file *file = file_of(handle);                                                                        \
        return file ? end(file, split, status) : REAL(PMPI_File_##name)(handle, buffer, status);                    \
    }                                                                                                               \
    ALSO(MPI_File_##name)

BOTH(AT_STATUS, read_at, , 0, 0)
BOTH(AT_STATUS, read_at_all, , 0, 1)
BOTH(AT_STATUS, write_at, const, 1, 0)
BOTH(AT_STATUS, write_at_all, const, 1, 1)
BOTH(AT_REQUEST, iread_at, , 0)
BOTH(AT_REQUEST, iread_at_all, , 0)
BOTH(AT_REQUEST, iwrite_at, const, 1)
BOTH(AT_REQUEST, iwrite_at_all, const, 1)
BOTH(WITH_STATUS, read, , 0, OWN, 0)
BOTH(WITH_STATUS, read_all, , 0, OWN, 1)
BOTH(WITH_STATUS, write, const, 1, OWN, 0)
BOTH(WITH_STATUS, write_all, const, 1, OWN, 1)
BOTH(WITH_REQUEST, iread, , 0, OWN)
BOTH(WITH_REQUEST, iread_all, , 0, OWN)
BOTH(WITH_REQUEST, iwrite, const, 1, OWN)
BOTH(WITH_REQUEST, iwrite_all, const, 1, OWN)
BOTH(WITH_STATUS, read_shared, , 0, SHARED, 0)
BOTH(WITH_STATUS, write_shared, const, 1, SHARED, 0)
BOTH(WITH_REQUEST, iread_shared, , 0, SHARED)
BOTH(WITH_REQUEST, iwrite_shared, const, 1, SHARED)
BOTH(WITH_STATUS, read_ordered, , 0, ORDERED, 1)
BOTH(WITH_STATUS, write_ordered, const, 1, ORDERED, 1)
BOTH(AT_BEGIN, read_at_all_begin, , 0, SPLIT_AT_READ)
BOTH(AT_BEGIN, write_at_all_begin, const, 1, SPLIT_AT_WRITE)
BOTH(BEGIN, read_all_begin, , 0, OWN, SPLIT_OWN_READ)
BOTH(BEGIN, write_all_begin, const, 1, OWN, SPLIT_OWN_WRITE)
BOTH(BEGIN, read_ordered_begin, , 0, ORDERED, SPLIT_ORDERED_READ)
BOTH(BEGIN, write_ordered_begin, const, 1, ORDERED, SPLIT_ORDERED_WRITE)
END(read_at_all_end, , SPLIT_AT_READ)
END(write_at_all_end, const, SPLIT_AT_WRITE)
END(read_all_end, , SPLIT_OWN_READ)
END(write_all_end, const, SPLIT_OWN_WRITE)
END(read_ordered_end, , SPLIT_ORDERED_READ)
END(write_ordered_end, const, SPLIT_ORDERED_WRITE)

/* Etypes of the view in front of the end of the file, one that is cut by it counted. */
static int end_of(struct file *file, int64_t *units)
{
    struct stat st;
    if (bivouac_fstat(file->data, &st) != 0)
        return class_of_errno(errno);
    struct view *view = view_of(file);
    *units = (bytes_below(view, st.st_size) + view->unit - 1) / view->unit;
    view_leave(file, view);
    return MPI_SUCCESS;
}

static int sought(struct file *file, int64_t from, MPI_Offset offset, int whence, int64_t *to)
{
    int class = MPI_SUCCESS;
    if (whence == MPI_SEEK_SET)
        from = 0;
    else if (whence == MPI_SEEK_END)
        class = end_of(file, &from);
    else if (whence != MPI_SEEK_CUR)
        class = MPI_ERR_ARG;
    if (class)
        return class;
    return __builtin_add_overflow(from, offset, to) || *to < 0 ? MPI_ERR_ARG : MPI_SUCCESS;
}

PUBLIC int MPI_File_seek(MPI_File handle, MPI_Offset offset, int whence)
{
    struct file *file = file_of(handle);
    int64_t to = 0;
    if (!file)
        return REAL(PMPI_File_seek)(handle, offset, whence);
    if (file->amode & MPI_MODE_SEQUENTIAL)
        return failed(file, MPI_ERR_UNSUPPORTED_OPERATION, "seek in sequential mode");
    pthread_mutex_lock(&file->turn);
    int class = sought(file, position_of(file), offset, whence, &to);
    if (!class)
        move_position(file, to);
    pthread_mutex_unlock(&file->turn);
    return failed(file, class, "seek");
}
ALSO(MPI_File_seek)

PUBLIC int MPI_File_get_position(MPI_File handle, MPI_Offset *offset)
{
    struct file *file = file_of(handle);
    if (!file)
        return REAL(PMPI_File_get_position)(handle, offset);
    *offset = position_of(file);
    return MPI_SUCCESS;
}
ALSO(MPI_File_get_position)

PUBLIC int MPI_File_get_byte_offset(MPI_File handle, MPI_Offset offset, MPI_Offset *disp)
{
    struct file *file = file_of(handle);
    if (!file)
        return REAL(PMPI_File_get_byte_offset)(handle, offset, disp);
    struct view *view = view_of(file);
    int class = byte_offset(view, offset, disp);
    view_leave(file, view);
    return failed(file, class, "offset");
}
ALSO(MPI_File_get_byte_offset)

PUBLIC int MPI_File_seek_shared(MPI_File handle, MPI_Offset offset, int whence)
{
    struct file *file = file_of(handle);
    if (!file)
        return REAL(PMPI_File_seek_shared)(handle, offset, whence);
    int64_t said[3] = { offset, whence, 0 }, from = 0, to = 0, mine[2] = { offset, whence };
    int class = MPI_SUCCESS;
    if (PMPI_Bcast(said, 2, MPI_INT64_T, 0, file->comm))
        return failed(file, MPI_ERR_OTHER, "seek");
    if (mine[0] != said[0] || mine[1] != said[1])
        class = MPI_ERR_NOT_SAME;
    else if (file->amode & MPI_MODE_SEQUENTIAL)
        class = MPI_ERR_UNSUPPORTED_OPERATION;
    /* All that was begun before is over, so that the pointer stands still. */
    class = agree(file, class);
    if (!class && file->rank == 0) {
        if (whence == MPI_SEEK_CUR)
            class = claim(file, 0, &from);
        if (!class)
            class = pointer_of(file);
        if (!class)
            class = sought(file, from, offset, whence, &to);
        if (!class && bivouac_ftruncate(file->pointer, to) != 0)
            class = class_of_errno(errno);
    }
    file->pointer_used = 1;
    return failed(file, agree(file, class), "seek");
}
ALSO(MPI_File_seek_shared)

PUBLIC int MPI_File_get_position_shared(MPI_File handle, MPI_Offset *offset)
{
    struct file *file = file_of(handle);
    int64_t at = 0;
    if (!file)
        return REAL(PMPI_File_get_position_shared)(handle, offset);
    int class = file->amode & MPI_MODE_SEQUENTIAL ? MPI_ERR_UNSUPPORTED_OPERATION : claim(file, 0, &at);
    if (class)
        return failed(file, class, "position");
    *offset = at;
    return MPI_SUCCESS;
}
ALSO(MPI_File_get_position_shared)

#ifdef LARGE_COUNTS
PUBLIC int MPI_File_get_type_extent_c(MPI_File handle, MPI_Datatype type, MPI_Count *extent)
{
    struct file *file = file_of(handle);
    return file ? extent_of(file, type, extent) : REAL(PMPI_File_get_type_extent_c)(handle, type, extent);
}
ALSO(MPI_File_get_type_extent_c)
#endif
