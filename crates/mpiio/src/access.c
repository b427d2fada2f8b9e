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
/* A place of memory that is at least as long goes as it is. */
#define LARGE_PLACE 4096
/* What lies between two small places that are read is read along, up to so many bytes: a piece of its own costs more. */
#define GAP_MAX 1024

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

/* A part of a gathered piece, to be copied where it belongs once it was read. */
struct copy {
    char *to;
    size_t piece, at, length;
};

/* What is to be sent in one list. */
struct batch {
    struct file *file;
    int is_write;
    bivouac_piece *pieces;
    size_t count, room;
    struct copy *copies;
    size_t copy_count, copy_room;
    char *gathered;
    size_t gathered_bytes;
    int64_t gap_max; /* what lies between two small places is read along up to so many bytes */
    int has_gaps;
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

int send_pieces(struct file *file, int is_write, bivouac_piece *pieces, size_t count)
{
    ssize_t moved;
    bivouac_traffic before, after;
    if (count == 0)
        return MPI_SUCCESS;
    bivouac_traffic_so_far(&before, sizeof before);
    if (count > 1)
        moved = is_write ? bivouac_write_list(file->data, pieces, count) : bivouac_read_list(file->data, pieces, count);
    else if (is_write)
        moved = bivouac_pwrite(file->data, pieces->buffer, pieces->count, pieces->offset);
    else
        moved = bivouac_pread(file->data, pieces->buffer, pieces->count, pieces->offset);
    int failure = moved < 0 ? errno : 0;
    bivouac_traffic_so_far(&after, sizeof after);
    __atomic_add_fetch(&file->tally.messages, after.messages - before.messages, __ATOMIC_RELAXED);
    __atomic_add_fetch(&file->tally.bytes_local, after.bytes_local - before.bytes_local, __ATOMIC_RELAXED);
    __atomic_add_fetch(&file->tally.bytes_remote, after.bytes_remote - before.bytes_remote, __ATOMIC_RELAXED);
    if (failure)
        return class_of_errno(failure);
    if (count == 1 && !is_write)
        pieces->done = (size_t)moved;
    __atomic_add_fetch(&file->tally.pieces, count, __ATOMIC_RELAXED);
    __atomic_add_fetch(&file->tally.lists, 1, __ATOMIC_RELAXED);
    return MPI_SUCCESS;
}

/* Counts what there was of a run of bytes, up to the first one that the file's end cuts short. */
static void count_done(struct batch *batch, size_t there, size_t wanted)
{
    if (batch->is_short)
        return;
    batch->done += (int64_t)there;
    batch->is_short = there < wanted;
}

static int flush(struct batch *batch)
{
    int class = send_pieces(batch->file, batch->is_write, batch->pieces, batch->count);
    if (class)
        return class;
    size_t next = 0;
    for (size_t i = 0; i < batch->count; i++) {
        const bivouac_piece *piece = &batch->pieces[i];
        if (next == batch->copy_count || batch->copies[next].piece != i)
            count_done(batch, batch->is_write ? piece->count : piece->done, piece->count);
        /* Buffers are only touched where there was something. */
        for (; next < batch->copy_count && batch->copies[next].piece == i; next++) {
            const struct copy *copy = &batch->copies[next];
            size_t there = piece->done > copy->at ? piece->done - copy->at : 0;
            there = there < copy->length ? there : copy->length;
            memcpy(copy->to, (char *)piece->buffer + copy->at, there);
            count_done(batch, there, copy->length);
        }
    }
    batch->count = batch->copy_count = batch->gathered_bytes = 0;
    return MPI_SUCCESS;
}

/* Appends a place of memory to the last piece, which is a gathered one. */
static int gather(struct batch *batch, char *memory, size_t length)
{
    bivouac_piece *last = &batch->pieces[batch->count - 1];
    if (batch->is_write) {
        memcpy((char *)last->buffer + last->count, memory, length);
    } else {
        int class = grow((void **)&batch->copies, &batch->copy_room, batch->copy_count, sizeof *batch->copies);
        if (class)
            return class;
        batch->copies[batch->copy_count++] = (struct copy){ memory, batch->count - 1, last->count, length };
    }
    last->count += length;
    batch->gathered_bytes += length;
    return MPI_SUCCESS;
}

/* Whether the last piece has its bytes among those that are gathered. */
static int is_gathered(const struct batch *batch, const bivouac_piece *piece)
{
    const char *at = piece->buffer;
    return batch->gathered && at >= batch->gathered && at < batch->gathered + GATHER_MAX;
}

/* Takes up the next run of bytes, in the order of the view. */
static int add(struct batch *batch, int64_t at, char *memory, int64_t length)
{
    bivouac_piece *last = batch->count ? &batch->pieces[batch->count - 1] : NULL;
    int64_t gap = last ? at - last->offset - (int64_t)last->count : -1;
    int class = MPI_SUCCESS;
    if (gap == 0 && !is_gathered(batch, last) && (char *)last->buffer + last->count == memory) {
        last->count += (size_t)length;
        return MPI_SUCCESS;
    }
    /* Small places of memory that are neighbours in the file travel as one piece. Nothing is written in between. */
    if (gap >= 0 && gap <= batch->gap_max && length < LARGE_PLACE &&
        (is_gathered(batch, last) || last->count < LARGE_PLACE)) {
        if (!batch->gathered && !(batch->gathered = malloc(GATHER_MAX)))
            return MPI_ERR_NO_MEM;
        size_t wanted = (size_t)(gap + length) + (is_gathered(batch, last) ? 0 : last->count);
        if (batch->gathered_bytes + wanted <= GATHER_MAX) {
            if (!is_gathered(batch, last)) {
                char *place = last->buffer;
                size_t count = last->count;
                last->buffer = batch->gathered + batch->gathered_bytes;
                last->count = 0;
                class = gather(batch, place, count);
            }
            last->count += (size_t)gap;
            batch->gathered_bytes += (size_t)gap;
            batch->has_gaps |= gap > 0;
            return class ? class : gather(batch, memory, (size_t)length);
        }
    }
    if (batch->count == BATCH_MAX || batch->gathered_bytes > GATHER_MAX / 2) {
        class = flush(batch);
        if (class)
            return class;
    }
    class = grow((void **)&batch->pieces, &batch->room, batch->count, sizeof *batch->pieces);
    if (class)
        return class;
    batch->pieces[batch->count++] = (bivouac_piece){ at, memory, (size_t)length, 0 };
    return MPI_SUCCESS;
}

static int move(struct request *request, int64_t gap_max, int *has_gaps, int64_t *done)
{
    struct view *view = request->view;
    struct batch batch = { .file = request->file, .is_write = request->is_write, .gap_max = gap_max };
    struct cursor file = cursor_at(&view->flat, view->disp, request->offset);
    struct cursor memory = cursor_at(&request->memory, 0, 0);
    char *buffer = request->packed ? request->packed : request->buffer;
    int class = MPI_SUCCESS;
    int64_t left = request->bytes;
    while (!class && left > 0 && !batch.is_short) {
        struct place there = cursor_place(&file), here = cursor_place(&memory);
        int64_t length = there.length < here.length ? there.length : here.length;
        length = length < left ? length : left;
        class = add(&batch, there.at, buffer + here.at, length);
        cursor_advance(&file, length);
        cursor_advance(&memory, length);
        left -= length;
    }
    if (!class)
        class = flush(&batch);
    free(batch.pieces);
    free(batch.copies);
    free(batch.gathered);
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
    if (flat_overlaps(&view->flat) && first.tile != last.tile)
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
