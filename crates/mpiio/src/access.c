/* One rank's access: places of memory beside places of the file, sent as lists of pieces. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "mpiio.h"

/* Bytes that are gathered from small places of memory before a list is sent. */
#define GATHER_MAX (4 << 20)
/* Bytes of the file, at most, that are gathered from, or read for, small places of memory in one piece. */
#define RUN_MAX (1 << 20)
/* A place of memory that is at least as long goes as it is. */
#define LARGE_PLACE 4096
/* What lies between two small places that are read is read along, up to so many bytes: a piece of its own costs more. */
#define GAP_MAX 1024
/*
 * Places of at most so many bytes, with less than a page between two, are moved where they lie in memory of this
 * machine; fewer bytes of the file than SHOWN_MIN are not worth it.
 */
#define SHOWN_PLACE_MAX 2048
#define SHOWN_GAP_MAX 4095
#define SHOWN_MIN 32768
/* A file that could not be moved where it lies so often, one time after the other, is like one that never could. */
#define MISSES_MAX 16

int prepare(struct request *request)
{
    struct view *view = request->view;
    int class = flatten(request->type, NATIVE, &request->memory);
    if (class)
        return class;
    int64_t size = request->memory.size;
    if (size > 0 && request->count > INT64_MAX / size)
        return MPI_ERR_COUNT;
    request->bytes = request->count * size;
    if (view->format == EXTERNAL32 && request->bytes > 0) {
        MPI_Aint one = 0, position = 0;
        if (request->count > INT_MAX || PMPI_Pack_external_size("external32", (int)request->count, request->type, &one))
            return MPI_ERR_COUNT;
        request->bytes = one;
        request->packed = malloc((size_t)one + 1);
        if (!request->packed)
            return MPI_ERR_NO_MEM;
        if (request->is_write && PMPI_Pack_external("external32", request->buffer, (int)request->count, request->type,
                                                    request->packed, one, &position))
            return MPI_ERR_CONVERSION;
        flat_free(&request->memory);
        class = flatten(MPI_BYTE, NATIVE, &request->memory);
        if (class)
            return class;
    }
    if (request->bytes > 0 && view->flat.size == 0)
        return MPI_ERR_ARG;
    return request->bytes % view->unit ? MPI_ERR_IO : MPI_SUCCESS;
}

void request_free(struct request *request)
{
    flat_free(&request->memory);
    free(request->packed);
    request->packed = NULL;
}

int unpack(struct request *request, int64_t done)
{
    if (!request->packed || request->is_write || done == 0)
        return MPI_SUCCESS;
    /* What is short of an end is in whole elements only as far as it was there. */
    int64_t one = request->bytes / request->count, whole = done / one;
    MPI_Aint position = 0;
    if (PMPI_Unpack_external("external32", request->packed, request->bytes, &position, request->buffer, (int)whole,
                             request->type))
        return MPI_ERR_CONVERSION;
    return MPI_SUCCESS;
}

/* What is left of an access, and where. */
struct rest {
    struct cursor file, memory;
    int64_t bytes;
};

/* The places of memory that a piece with a buffer of its own is of. */
struct parts {
    size_t piece;
    struct rest rest; /* where they begin, and the bytes of all of them */
};

/* Memory that lists are made in, kept from one access of a file to the next: making it anew costs as much as using it. */
struct room {
    bivouac_piece *pieces;
    struct parts *parts; /* of the pieces that are gathered, or are to be scattered */
    char *gathered;
    size_t pieces_max, parts_max;
};

/* What is to be sent in one list. */
struct batch {
    struct file *file;
    int is_write;
    char *buffer; /* the program's */
    struct room room;
    size_t count, parts_count, gathered_bytes; /* in use */
    int64_t gap_max; /* what lies between two small places is read along up to so many bytes */
    int has_gaps;
    int is_hidden;       /* bytes of the file could not be moved where they lie */
    int64_t hidden_until; /* what is left of the access behind a run that is not worth it: it is not looked at again */
    int64_t done; /* of all that was sent */
    int is_short;    /* the end of the file was reached */
};

static int grow(void **array, size_t *room, size_t count, size_t size)
{
    if (count < *room)
        return MPI_SUCCESS;
    size_t more = *room ? *room * 2 : 64;
    void *larger = realloc(*array, more * size);
    if (!larger)
        return MPI_ERR_NO_MEM;
    *array = larger;
    *room = more;
    return MPI_SUCCESS;
}

static bivouac_traffic traffic_so_far(void)
{
    bivouac_traffic traffic = { 0 };
    bivouac_traffic_so_far(&traffic, sizeof traffic);
    return traffic;
}

/* Counts what a list has cost. */
static void count_list(struct file *file, size_t pieces, const bivouac_traffic *before)
{
    bivouac_traffic after = traffic_so_far();
    __atomic_add_fetch(&file->tally.messages, after.messages - before->messages, __ATOMIC_RELAXED);
    __atomic_add_fetch(&file->tally.bytes_local, after.bytes_local - before->bytes_local, __ATOMIC_RELAXED);
    __atomic_add_fetch(&file->tally.bytes_remote, after.bytes_remote - before->bytes_remote, __ATOMIC_RELAXED);
    __atomic_add_fetch(&file->tally.pieces, pieces, __ATOMIC_RELAXED);
    __atomic_add_fetch(&file->tally.lists, pieces > 0, __ATOMIC_RELAXED);
}

int send_pieces(struct file *file, int is_write, bivouac_piece *pieces, size_t count)
{
    ssize_t moved;
    if (count == 0)
        return MPI_SUCCESS;
    bivouac_traffic before = traffic_so_far();
    if (count > 1)
        moved = is_write ? bivouac_write_list(file->data, pieces, count) : bivouac_read_list(file->data, pieces, count);
    else if (is_write)
        moved = bivouac_pwrite(file->data, pieces->buffer, pieces->count, pieces->offset);
    else
        moved = bivouac_pread(file->data, pieces->buffer, pieces->count, pieces->offset);
    int failure = moved < 0 ? errno : 0;
    count_list(file, failure ? 0 : count, &before);
    if (failure)
        return class_of_errno(failure);
    if (count == 1 && !is_write)
        pieces->done = (size_t)moved;
    return MPI_SUCCESS;
}

/* Counts what there was of a run of bytes, up to the first one that the file's end cuts short. */
static void count_done(struct batch *batch, int64_t there, int64_t wanted)
{
    if (batch->is_short)
        return;
    batch->done += there;
    batch->is_short = there < wanted;
}

/* A place: most are a number, for which a call costs more than the copy. */
static inline void copy(int is_write, char *in_file, char *in_memory, int64_t length)
{
    char *to = is_write ? in_file : in_memory, *from = is_write ? in_memory : in_file;
    if (length == 8)
        memcpy(to, from, 8);
    else if (length == 4)
        memcpy(to, from, 4);
    else
        memcpy(to, from, (size_t)length);
}

/*
 * Copies between a stretch of the file, from `start` to `end`, and the program's memory what is next and within it.
 * Memory mostly has no holes, and then is no cursor's to walk.
 */
static inline __attribute__((always_inline)) int64_t copy_stretch(int is_write, int is_dense, struct rest *rest,
                                                                  char *buffer, char *bytes, int64_t start, int64_t end)
{
    struct cursor there = rest->file, mine = rest->memory; /* in registers */
    int64_t left = rest->bytes, here = cursor_place(&mine).at;
    while (left > 0) {
        struct place place = cursor_place(&there);
        int64_t length = place.length < left ? place.length : left;
        if (place.at >= end)
            break;
        length = length < end - place.at ? length : end - place.at;
        if (!is_dense) {
            struct place room = cursor_place(&mine);
            here = room.at;
            length = length < room.length ? length : room.length;
            cursor_advance(&mine, length);
        }
        copy(is_write, bytes + (place.at - start), buffer + here, length);
        cursor_advance(&there, length);
        here += length;
        left -= length;
    }
    int64_t moved = rest->bytes - left;
    if (is_dense)
        cursor_advance(&mine, moved);
    *rest = (struct rest){ there, mine, left };
    return moved;
}

static int64_t copy_next(const struct batch *batch, struct rest *rest, char *bytes, int64_t start, int64_t end)
{
    if (batch->is_write)
        return rest->memory.is_dense ? copy_stretch(1, 1, rest, batch->buffer, bytes, start, end)
                                     : copy_stretch(1, 0, rest, batch->buffer, bytes, start, end);
    return rest->memory.is_dense ? copy_stretch(0, 1, rest, batch->buffer, bytes, start, end)
                                 : copy_stretch(0, 0, rest, batch->buffer, bytes, start, end);
}

/* Copies between a piece's buffer and the places of memory that it is of; of what was read, as much as there was. */
static void copy_parts(struct batch *batch, const struct parts *parts)
{
    const bivouac_piece *piece = &batch->room.pieces[parts->piece];
    struct rest rest = parts->rest;
    int64_t end = piece->offset + (int64_t)(batch->is_write ? piece->count : piece->done);
    int64_t done = copy_next(batch, &rest, piece->buffer, piece->offset, end);
    if (!batch->is_write)
        count_done(batch, done, parts->rest.bytes);
}

static int flush(struct batch *batch)
{
    int class = send_pieces(batch->file, batch->is_write, batch->room.pieces, batch->count);
    if (class)
        return class;
    size_t next = 0;
    for (size_t i = 0; i < batch->count; i++) {
        const bivouac_piece *piece = &batch->room.pieces[i];
        if (next < batch->parts_count && batch->room.parts[next].piece == i)
            copy_parts(batch, &batch->room.parts[next++]);
        else
            count_done(batch, (int64_t)(batch->is_write ? piece->count : piece->done), (int64_t)piece->count);
    }
    batch->count = batch->parts_count = batch->gathered_bytes = 0;
    return MPI_SUCCESS;
}

/* One piece of a list: where it is in the file and, if all its bytes are neighbours there, in memory. */
struct run {
    int64_t at, end;
    int64_t here;
    int64_t bytes; /* of content */
    int is_straight;
    int has_gaps;
};

/*
 * Takes the bytes that are next as one run, and puts the cursors behind it. Small places that are neighbours in the file
 * travel together; what lies between them, if it is little, is read along. Nothing is written in between.
 */
static struct run take_run(struct rest *rest, int64_t gap_max)
{
    struct cursor there = rest->file, mine = rest->memory; /* in registers */
    int64_t left = rest->bytes, at, here, length = next_run(&there, &mine, left, &at, &here);
    struct run run = { .at = at, .end = at, .here = here, .is_straight = 1 };
    int is_small = 1;
    for (;;) {
        is_small &= length < LARGE_PLACE;
        run.end = at + length;
        run.bytes += length;
        cursor_advance(&there, length);
        cursor_advance(&mine, length);
        if (run.bytes == left)
            break;
        length = next_run(&there, &mine, left - run.bytes, &at, &here);
        if (run.is_straight && at == run.end && here == run.here + run.bytes)
            continue;
        int is_near = at >= run.end && at - run.end <= gap_max && at + length - run.at <= RUN_MAX;
        if (!is_near || !is_small || length >= LARGE_PLACE)
            break;
        run.has_gaps |= at > run.end;
        run.is_straight = 0;
    }
    *rest = (struct rest){ there, mine, left - run.bytes };
    return run;
}

/* The next bytes that can be moved where they lie: short places, of which each page has a part. What is left behind. */
static struct place shown_run(const struct rest *rest, int64_t *behind)
{
    struct cursor there = rest->file;
    struct place place = cursor_place(&there), run = { place.at, 0 };
    int64_t left = rest->bytes;
    for (; left > 0; place = cursor_place(&there)) {
        int64_t length = place.length < left ? place.length : left, gap = place.at - (run.at + run.length);
        if (length > SHOWN_PLACE_MAX || gap < 0 || gap > SHOWN_GAP_MAX || run.length + gap + length > RUN_MAX)
            break;
        run.length += gap + length;
        cursor_advance(&there, length);
        left -= length;
    }
    *behind = left;
    return run;
}

/* An access while bytes of the file are shown. */
struct showing {
    const struct batch *batch;
    struct rest rest;
};

static size_t move_shown(void *context, off_t offset, void *bytes, size_t count)
{
    struct showing *showing = context;
    return (size_t)copy_next(showing->batch, &showing->rest, bytes, offset, offset + (int64_t)count);
}

/* What came of it that bytes of a file were to be shown, right after that. */
static void note_shown(struct file *file, ssize_t moved)
{
    if (moved < 0 && errno == EOPNOTSUPP)
        __atomic_store_n(&file->is_far, 1, __ATOMIC_RELAXED);
    if (moved > 0) {
        __atomic_store_n(&file->was_shown, 1, __ATOMIC_RELAXED);
        __atomic_store_n(&file->misses, 0, __ATOMIC_RELAXED);
    } else if (__atomic_add_fetch(&file->misses, 1, __ATOMIC_RELAXED) >= MISSES_MAX) {
        /* Not now: from which nothing follows, unless it goes on so. */
        __atomic_store_n(&file->was_shown, 0, __ATOMIC_RELAXED);
    }
}

static size_t move_nothing(void *context, off_t offset, void *bytes, size_t count)
{
    (void)context, (void)offset, (void)bytes;
    return count;
}

void look_where_it_lies(const struct request *request)
{
    const struct view *view = request->view;
    struct cursor first = cursor_at(&view->flat, view->disp, request->offset);
    if (!__atomic_load_n(&request->file->was_shown, __ATOMIC_RELAXED))
        note_shown(request->file,
                   bivouac_show(request->file->data, request->is_write, cursor_place(&first).at, 1, move_nothing, NULL));
}

/* Moves the bytes that are next where they lie, if that is in memory here; what is in the list goes first. */
static int add_shown(struct batch *batch, struct rest *rest)
{
    struct file *file = batch->file;
    int64_t behind;
    if (batch->is_hidden || rest->bytes > batch->hidden_until)
        return MPI_SUCCESS;
    struct place run = shown_run(rest, &behind);
    if (run.length < SHOWN_MIN) {
        batch->hidden_until = behind;
        return MPI_SUCCESS;
    }
    int class = flush(batch);
    if (class || batch->is_short)
        return class;
    struct showing showing = { batch, *rest };
    bivouac_traffic before = traffic_so_far();
    ssize_t moved = bivouac_show(file->data, batch->is_write, run.at, (size_t)run.length, move_shown, &showing);
    note_shown(file, moved);
    count_list(file, moved > 0, &before);
    batch->is_hidden = moved <= 0;
    if (batch->is_hidden)
        return MPI_SUCCESS;
    *rest = showing.rest;
    batch->done += moved;
    return MPI_SUCCESS;
}

/* Adds the bytes that are next to the list. */
static int add(struct batch *batch, struct rest *rest)
{
    int64_t before = rest->bytes;
    int class = add_shown(batch, rest);
    if (class || rest->bytes < before || batch->is_short)
        return class;
    struct parts parts = { .rest = *rest };
    struct run run = take_run(rest, batch->gap_max);
    size_t length = (size_t)(run.end - run.at);
    parts.rest.bytes = run.bytes;
    if (batch->count == BATCH_MAX || (!run.is_straight && batch->gathered_bytes + length > GATHER_MAX))
        class = flush(batch);
    if (!class)
        class = grow((void **)&batch->room.pieces, &batch->room.pieces_max, batch->count, sizeof *batch->room.pieces);
    if (class)
        return class;
    bivouac_piece *piece = &batch->room.pieces[batch->count++];
    *piece = (bivouac_piece){ run.at, batch->buffer + run.here, length, 0 };
    if (run.is_straight)
        return MPI_SUCCESS;
    if (!batch->room.gathered && !(batch->room.gathered = malloc(GATHER_MAX)))
        return MPI_ERR_NO_MEM;
    class = grow((void **)&batch->room.parts, &batch->room.parts_max, batch->parts_count, sizeof *batch->room.parts);
    if (class)
        return class;
    piece->buffer = batch->room.gathered + batch->gathered_bytes;
    batch->gathered_bytes += length;
    batch->has_gaps |= run.has_gaps;
    parts.piece = batch->count - 1;
    if (batch->is_write)
        copy_parts(batch, &parts);
    else
        batch->room.parts[batch->parts_count++] = parts;
    return MPI_SUCCESS;
}

void room_free(struct room *room)
{
    if (room) {
        free(room->pieces);
        free(room->parts);
        free(room->gathered);
    }
    free(room);
}

/* The file's, unless another thread has it. */
static struct room *room_take(struct file *file)
{
    struct room *room = __atomic_exchange_n(&file->room, NULL, __ATOMIC_ACQUIRE);
    return room ? room : calloc(1, sizeof *room);
}

static void room_return(struct file *file, struct room *room)
{
    room_free(__atomic_exchange_n(&file->room, room, __ATOMIC_ACQ_REL));
}

static int move(struct request *request, int64_t gap_max, int *has_gaps, int64_t *done)
{
    struct view *view = request->view;
    struct room *kept = room_take(request->file);
    if (!kept)
        return MPI_ERR_NO_MEM;
    struct batch batch = { .file = request->file, .is_write = request->is_write, .gap_max = gap_max, .room = *kept,
                           .buffer = request->packed ? request->packed : request->buffer,
                           .hidden_until = request->bytes };
    struct rest rest = { cursor_at(&view->flat, view->disp, request->offset), cursor_at(&request->memory, 0, 0),
                         request->bytes };
    int class = MPI_SUCCESS;
    while (!class && rest.bytes > 0 && !batch.is_short)
        class = add(&batch, &rest);
    if (!class)
        class = flush(&batch);
    *kept = batch.room;
    room_return(request->file, kept);
    *has_gaps = batch.has_gaps;
    *done = batch.done;
    return class;
}

int carry_out(struct request *request, int64_t *done)
{
    int has_gaps;
    int class = move(request, request->is_write ? 0 : GAP_MAX, &has_gaps, done);
    /* It may be what lies between that cannot be read, and nobody asked for that. */
    if (class && has_gaps)
        class = move(request, 0, &has_gaps, done);
    __atomic_add_fetch(request->is_write ? &request->file->tally.bytes_written : &request->file->tally.bytes_read,
                       (uint64_t)*done, __ATOMIC_RELAXED);
    return class;
}

int64_t bytes_below(const struct view *view, int64_t end)
{
    const struct flat *flat = &view->flat;
    int64_t rest = end - view->disp;
    if (rest <= 0 || flat->size == 0 || flat->extent <= 0)
        return 0;
    int64_t tiles = rest / flat->extent, bytes;
    /* Places of a tile may lie in the next one's extent: the last two are looked through. */
    tiles = tiles > 0 ? tiles - 1 : 0;
    bytes = tiles * flat->size;
    for (int64_t tile = tiles; tile <= tiles + 2; tile++)
        for (size_t i = 0; i < flat->count; i++) {
            int64_t at = tile * flat->extent + flat->places[i].at, length = flat->places[i].length;
            if (at >= rest)
                return bytes;
            bytes += at + length <= rest ? length : rest - at;
        }
    return bytes;
}

/* What an access touches, from the first byte to the last. */
static struct place span(const struct request *request)
{
    const struct view *view = request->view;
    struct cursor first = cursor_at(&view->flat, view->disp, request->offset);
    struct cursor last = cursor_at(&view->flat, view->disp, request->offset + request->bytes - 1);
    int64_t start = cursor_place(&first).at;
    /* A length of 0 is to the end of the file. */
    if (flat_overlaps(&view->flat) && first.tile < last.tile)
        return (struct place){ 0, 0 };
    return (struct place){ start, cursor_place(&last).at + 1 - start };
}

int transfer(struct request *request, int64_t *done)
{
    /* Accesses of one process exclude each other too, where its threads make them. */
    static _Atomic uint64_t owners;
    struct file *file = request->file;
    *done = 0;
    if (request->bytes == 0)
        return MPI_SUCCESS;
    if (!file->atomic)
        return carry_out(request, done);
    uint64_t owner = atomic_fetch_add(&owners, 1) + 1;
    struct place range = span(request);
    if (bivouac_lock(file->data, request->is_write ? F_WRLCK : F_RDLCK, range.at, range.length, owner, 1) != 0)
        return class_of_errno(errno);
    int class = carry_out(request, done);
    /* What cannot be unlocked is when the file is closed. */
    bivouac_lock(file->data, F_UNLCK, range.at, range.length, owner, 0);
    return class;
}
