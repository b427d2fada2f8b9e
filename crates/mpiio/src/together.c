/*
 * Collective access. Each rank can send its own list: right where all of the file is in memory of each rank's machine,
 * and where pieces are few, large, or far apart. Otherwise ranks exchange first (two-phase): each stripe has one rank
 * that reads or writes it, so that a target is spoken to by few ranks, in pieces that are as large as the pieces of all
 * ranks are together.
 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "mpiio.h"

/* Pieces that are at least as long are not exchanged: copying them costs more than sending them. */
#define LARGE_PIECE 32768
/* Bytes of the file that one round is about, at most: counts of MPI's exchanges are ints. */
#define ROUND_MAX ((int64_t)1 << 29)

const char *way_in_words(int way)
{
    switch (way) {
    case WAY_APART_NEAR: return "lists of each rank: the file is in memory of its host, or may be";
    case WAY_APART_FEW: return "lists of each rank: one piece per rank";
    case WAY_APART_LARGE: return "lists of each rank: pieces of 32 KiB or more";
    case WAY_APART_SPARSE: return "lists of each rank: less than half of the range is accessed";
    case WAY_APART_ASKED: return "lists of each rank: romio_cb_* says disable, or one rank";
    case WAY_APART_ATOMIC: return "lists of each rank: atomic mode";
    case WAY_APART_TWICE: return "lists of each rank: a view goes back, or has bytes twice";
    case WAY_EXCHANGED: return "exchanged first: small pieces that lie close together";
    default: return "no collective call yet";
    }
}

/* What each rank tells all. */
struct summary {
    int64_t class, pieces, bytes, first, end, twice;
};

static struct summary summary_of(const struct request *request, int class)
{
    struct summary mine = { class, 0, 0, INT64_MAX, 0, 0 };
    const struct view *view = request->view;
    if (class || request->bytes == 0)
        return mine;
    struct cursor first = cursor_at(&view->flat, view->disp, request->offset);
    struct cursor last = cursor_at(&view->flat, view->disp, request->offset + request->bytes - 1);
    mine.bytes = request->bytes;
    mine.first = cursor_place(&first).at;
    mine.end = cursor_place(&last).at + 1;
    /* Then pieces are not in order, or there is no bound to what a round exchanges. */
    mine.twice = mine.bytes > mine.end - mine.first || (first.tile != last.tile && flat_overlaps(&view->flat));
    mine.pieces = 1 + (last.place - first.place);
    if (first.tile != last.tile)
        mine.pieces += (last.tile - first.tile) / first.extent * (int64_t)view->flat.count;
    return mine;
}

static enum way decide(const struct file *file, const struct summary *all)
{
    if (all->twice)
        return WAY_APART_TWICE;
    if (file->exchange == 1)
        return WAY_EXCHANGED;
    if (all->pieces <= file->ranks)
        return WAY_APART_FEW;
    if (all->bytes / all->pieces >= LARGE_PIECE)
        return WAY_APART_LARGE;
    return all->bytes < (all->end - all->first) / 2 ? WAY_APART_SPARSE : WAY_EXCHANGED;
}

/* A piece of this rank's that belongs to one stripe. */
struct part {
    int64_t at, length;
    char *memory;
    int owner;
};

/* One exchange, and its memory. */
struct round {
    struct request *request;
    struct cursor file, memory;
    int64_t left;
    int owners;
    struct part *parts;
    size_t count, room;
    /* Per rank: pieces and bytes that it gets of us, and that we get of it. */
    int *out_pieces, *out_bytes, *in_pieces, *in_bytes, *offsets[4];
    int64_t *out_list, *in_list;
    char *out_data, *in_data;
    bivouac_piece *pieces;
    size_t piece_count;
    char *run;
};

static int owner_of(const struct round *round, int64_t at)
{
    const struct file *file = round->request->file;
    int64_t stripe = at / file->stripe;
    return (int)(round->owners < file->stripe_count ? stripe % file->stripe_count % round->owners
                                                    : stripe % round->owners);
}

/* This rank's pieces up to `end`, cut where stripes begin. */
static int collect(struct round *round, int64_t end)
{
    struct file *file = round->request->file;
    char *buffer = round->request->packed ? round->request->packed : round->request->buffer;
    round->count = 0;
    while (round->left > 0) {
        int64_t at, here, length = next_run(&round->file, &round->memory, round->left, &at, &here);
        if (at >= end)
            break;
        int64_t rest = file->stripe - at % file->stripe;
        length = length < rest ? length : rest;
        length = length < end - at ? length : end - at;
        if (round->count == round->room) {
            size_t room = round->room ? round->room * 2 : 256;
            struct part *parts = realloc(round->parts, room * sizeof *parts);
            if (!parts)
                return MPI_ERR_NO_MEM;
            round->parts = parts;
            round->room = room;
        }
        round->parts[round->count++] = (struct part){ at, length, buffer + here, owner_of(round, at) };
        cursor_advance(&round->file, length);
        cursor_advance(&round->memory, length);
        round->left -= length;
    }
    return MPI_SUCCESS;
}

static size_t sum_up(const int *counts, int *offsets, int ranks)
{
    size_t sum = 0;
    for (int i = 0; i < ranks; i++) {
        offsets[i] = (int)sum;
        sum += (size_t)counts[i];
    }
    return sum;
}

/* Tells owners of pieces, with their bytes where they are written. */
static int send_parts(struct round *round, int class)
{
    struct request *request = round->request;
    int ranks = request->file->ranks;
    MPI_Comm comm = request->file->comm;
    memset(round->out_pieces, 0, sizeof(int) * 2 * (size_t)ranks);
    if (class)
        round->count = 0;
    /* Numbers of both kinds lie side by side, so that one exchange tells both. */
    for (size_t i = 0; i < round->count; i++) {
        round->out_pieces[2 * round->parts[i].owner] += 2;
        round->out_pieces[2 * round->parts[i].owner + 1] += (int)round->parts[i].length;
    }
    int *in = round->in_pieces;
    if (PMPI_Alltoall(round->out_pieces, 2, MPI_INT, in, 2, MPI_INT, comm))
        return MPI_ERR_OTHER;
    for (int i = 0; i < ranks; i++) {
        int pieces = round->out_pieces[2 * i], got = in[2 * i];
        round->out_bytes[i] = round->out_pieces[2 * i + 1];
        round->in_bytes[i] = in[2 * i + 1];
        round->offsets[0][i] = pieces;
        round->offsets[1][i] = got;
    }
    memcpy(round->out_pieces, round->offsets[0], sizeof(int) * (size_t)ranks);
    memcpy(round->in_pieces, round->offsets[1], sizeof(int) * (size_t)ranks);
    size_t list_out = sum_up(round->out_pieces, round->offsets[0], ranks);
    size_t list_in = sum_up(round->in_pieces, round->offsets[1], ranks);
    size_t data_out = sum_up(round->out_bytes, round->offsets[2], ranks);
    size_t data_in = sum_up(round->in_bytes, round->offsets[3], ranks);
    round->out_list = malloc(sizeof(int64_t) * list_out + 8);
    round->in_list = malloc(sizeof(int64_t) * list_in + 8);
    round->out_data = malloc(data_out + 1);
    round->in_data = malloc(data_in + 1);
    int *filled = calloc(2 * (size_t)ranks, sizeof *filled);
    if (!round->out_list || !round->in_list || !round->out_data || !round->in_data || !filled)
        /* The others wait for what is exchanged: there is no way on. */
        PMPI_Abort(comm, MPI_ERR_NO_MEM);
    for (size_t i = 0; i < round->count; i++) {
        const struct part *part = &round->parts[i];
        int64_t *entry = round->out_list + round->offsets[0][part->owner] + filled[2 * part->owner];
        entry[0] = part->at;
        entry[1] = part->length;
        filled[2 * part->owner] += 2;
        if (request->is_write)
            memcpy(round->out_data + round->offsets[2][part->owner] + filled[2 * part->owner + 1], part->memory,
                   (size_t)part->length);
        filled[2 * part->owner + 1] += (int)part->length;
    }
    free(filled);
    int failed = PMPI_Alltoallv(round->out_list, round->out_pieces, round->offsets[0], MPI_INT64_T, round->in_list,
                                round->in_pieces, round->offsets[1], MPI_INT64_T, comm);
    if (!failed && request->is_write)
        failed = PMPI_Alltoallv(round->out_data, round->out_bytes, round->offsets[2], MPI_BYTE, round->in_data,
                                round->in_bytes, round->offsets[3], MPI_BYTE, comm);
    return failed ? MPI_ERR_OTHER : class;
}

/* The ranks whose next pieces are not merged yet, the one with the first piece in front: a binary heap. */
struct heap {
    const struct round *round;
    int *ranks, *next, count;
};

static int64_t key(const struct heap *heap, int i)
{
    int rank = heap->ranks[i];
    return heap->round->in_list[heap->round->offsets[1][rank] + heap->next[rank]];
}

static void sink(struct heap *heap, int i)
{
    for (;;) {
        int child = 2 * i + 1, rank = heap->ranks[i];
        if (child >= heap->count)
            return;
        if (child + 1 < heap->count && key(heap, child + 1) < key(heap, child))
            child++;
        if (key(heap, i) <= key(heap, child))
            return;
        heap->ranks[i] = heap->ranks[child];
        heap->ranks[child] = rank;
        i = child;
    }
}

/*
 * Puts the pieces that this rank owns in order, and joins neighbours. Written bytes are copied to where they then are;
 * of pieces that are to be read, `home` says where that will be.
 */
static int merge(struct round *round, size_t *home)
{
    const int ranks = round->request->file->ranks, is_write = round->request->is_write;
    const size_t room = ranks > 0 ? (size_t)ranks : 1;
    size_t entries = 0, bytes = 0, filled = 0;
    for (int i = 0; i < ranks; i++) {
        entries += (size_t)round->in_pieces[i] / 2;
        bytes += (size_t)round->in_bytes[i];
    }
    struct heap heap = { round, calloc(room, sizeof(int)), calloc(room, sizeof(int)), 0 };
    size_t *taken = calloc(room, sizeof *taken);
    round->pieces = malloc(sizeof *round->pieces * (entries + 1));
    round->run = malloc(bytes + 1);
    round->piece_count = 0;
    int class = heap.ranks && heap.next && taken && round->pieces && round->run ? MPI_SUCCESS : MPI_ERR_NO_MEM;
    for (int i = 0; !class && i < ranks; i++)
        if (round->in_pieces[i] > 0)
            heap.ranks[heap.count++] = i;
    for (int i = heap.count / 2 - 1; !class && i >= 0; i--)
        sink(&heap, i);
    while (!class && heap.count > 0) {
        int rank = heap.ranks[0];
        int index = round->offsets[1][rank] + heap.next[rank];
        int64_t at = round->in_list[index], length = round->in_list[index + 1], fresh = length;
        bivouac_piece *last = round->piece_count ? &round->pieces[round->piece_count - 1] : NULL;
        int64_t end = last ? last->offset + (int64_t)last->count : -1;
        if (last && (at == end || (!is_write && at < end))) {
            /* What several ranks read is read once. */
            fresh = at + length > end ? at + length - end : 0;
            last->count += (size_t)fresh;
        } else {
            round->pieces[round->piece_count++] = (bivouac_piece){ at, round->run + filled, (size_t)length, 0 };
            last = &round->pieces[round->piece_count - 1];
        }
        if (is_write)
            memcpy(round->run + filled, round->in_data + round->offsets[3][rank] + taken[rank], (size_t)length);
        else
            home[index / 2] = (size_t)((char *)last->buffer - round->run) + (size_t)(at - last->offset);
        taken[rank] += (size_t)length;
        filled += (size_t)fresh;
        heap.next[rank] += 2;
        if (heap.next[rank] == round->in_pieces[rank])
            heap.ranks[0] = heap.ranks[--heap.count];
        sink(&heap, 0);
    }
    free(heap.ranks);
    free(heap.next);
    free(taken);
    return class;
}

/* Answers readers, and takes what others have read for us, up to the end of the file. */
static int answer(struct round *round, const size_t *home, int64_t end)
{
    struct file *file = round->request->file;
    for (int rank = 0; rank < file->ranks; rank++) {
        char *to = round->in_data + round->offsets[3][rank];
        int first = round->offsets[1][rank];
        for (int i = first; i < first + round->in_pieces[rank]; i += 2) {
            memcpy(to, round->run + home[i / 2], (size_t)round->in_list[i + 1]);
            to += round->in_list[i + 1];
        }
    }
    if (PMPI_Alltoallv(round->in_data, round->in_bytes, round->offsets[3], MPI_BYTE, round->out_data, round->out_bytes,
                       round->offsets[2], MPI_BYTE, file->comm))
        return MPI_ERR_OTHER;
    int *next = round->offsets[2];
    for (size_t i = 0; i < round->count; i++) {
        const struct part *part = &round->parts[i];
        int64_t there = end - part->at < part->length ? end - part->at : part->length;
        if (there > 0)
            memcpy(part->memory, round->out_data + next[part->owner], (size_t)there);
        next[part->owner] += (int)part->length;
    }
    return MPI_SUCCESS;
}

/* One exchange of what lies in front of `end`. Where the file ends is told if it is seen. */
static int exchange(struct round *round, int64_t end, int64_t *file_end)
{
    struct file *file = round->request->file;
    size_t *home = NULL;
    int class = send_parts(round, collect(round, end));
    if (!class) {
        size_t entries = 0;
        for (int i = 0; i < file->ranks; i++)
            entries += (size_t)round->in_pieces[i] / 2;
        home = malloc(sizeof *home * (entries + 1));
        class = home ? merge(round, home) : MPI_ERR_NO_MEM;
    }
    if (!class)
        class = send_pieces(file, round->request->is_write, round->pieces, round->piece_count);
    int64_t mine[2] = { -class, INT64_MAX }, all[2];
    for (size_t i = 0; !class && !round->request->is_write && i < round->piece_count; i++) {
        int64_t seen = round->pieces[i].offset + (int64_t)round->pieces[i].done;
        if (round->pieces[i].done < round->pieces[i].count && seen < mine[1])
            mine[1] = seen;
    }
    if (PMPI_Allreduce(mine, all, 2, MPI_INT64_T, MPI_MIN, file->comm))
        class = MPI_ERR_OTHER;
    else
        class = (int)-all[0];
    *file_end = all[1] < *file_end ? all[1] : *file_end;
    if (!class && !round->request->is_write)
        class = answer(round, home, *file_end);
    free(home);
    free(round->out_list);
    free(round->in_list);
    free(round->out_data);
    free(round->in_data);
    free(round->pieces);
    free(round->run);
    round->pieces = NULL;
    round->out_list = round->in_list = NULL;
    round->run = round->out_data = round->in_data = NULL;
    return class;
}

static int exchange_all(struct request *request, const struct summary *all, int64_t *done)
{
    struct file *file = request->file;
    size_t ranks = (size_t)file->ranks;
    struct round round = { .request = request, .left = request->bytes, .owners = file->aggregators };
    int *numbers = calloc(10 * ranks, sizeof *numbers);
    int64_t file_end = INT64_MAX;
    int class = MPI_SUCCESS;
    if (!numbers)
        PMPI_Abort(file->comm, MPI_ERR_NO_MEM);
    round.out_pieces = numbers;
    round.in_pieces = numbers + 2 * ranks;
    round.out_bytes = numbers + 4 * ranks;
    round.in_bytes = numbers + 5 * ranks;
    for (int i = 0; i < 4; i++)
        round.offsets[i] = numbers + (6 + (size_t)i) * ranks;
    /* Each target is some owners', and nobody else's. */
    if (round.owners > file->stripe_count)
        round.owners -= round.owners % (int)file->stripe_count;
    round.file = cursor_at(&request->view->flat, request->view->disp, request->offset);
    round.memory = cursor_at(&request->memory, 0, 0);
    int64_t step = file->window * round.owners < ROUND_MAX ? file->window * round.owners : ROUND_MAX;
    for (int64_t at = all->first; !class && at < all->end; at = all->end - at > step ? at + step : all->end)
        class = exchange(&round, all->end - at > step ? at + step : all->end, &file_end);
    free(round.parts);
    free(numbers);
    int64_t there = file_end == INT64_MAX ? request->bytes : bytes_below(request->view, file_end) - request->offset;
    there = there < 0 ? 0 : there;
    *done = class ? 0 : there < request->bytes ? there : request->bytes;
    __atomic_add_fetch(&file->tally.exchanged, 1, __ATOMIC_RELAXED);
    __atomic_add_fetch(request->is_write ? &file->tally.bytes_written : &file->tally.bytes_read, (uint64_t)*done,
                       __ATOMIC_RELAXED);
    return class;
}

/* Adds up what the ranks said. */
static int gather(const struct request *request, int class, struct summary *all)
{
    struct file *file = request->file;
    struct summary mine = summary_of(request, class);
    struct summary *each = calloc((size_t)file->ranks, sizeof *each);
    if (!each)
        PMPI_Abort(file->comm, MPI_ERR_NO_MEM);
    int failed = PMPI_Allgather(&mine, sizeof mine, MPI_BYTE, each, sizeof mine, MPI_BYTE, file->comm);
    *all = (struct summary){ failed ? MPI_ERR_OTHER : 0, 0, 0, INT64_MAX, 0, 0 };
    for (int i = 0; !failed && i < file->ranks; i++) {
        all->class = each[i].class > all->class ? each[i].class : all->class;
        all->pieces += each[i].pieces;
        all->bytes += each[i].bytes;
        all->twice += each[i].twice;
        all->first = each[i].first < all->first ? each[i].first : all->first;
        all->end = each[i].end > all->end ? each[i].end : all->end;
    }
    free(each);
    return (int)all->class;
}

int transfer_together(struct request *request, int class, int64_t *done)
{
    struct file *file = request->file;
    struct summary all;
    *done = 0;
    enum way way = file->atomic ? WAY_APART_ATOMIC : WAY_NONE;
    if (file->ranks == 1 || file->exchange == 0)
        way = WAY_APART_ASKED;
    /* Nothing is exchanged but what came of it: not even what the pieces are. */
    int is_near = __atomic_load_n(&file->is_near, __ATOMIC_RELAXED);
    if (way == WAY_NONE && file->exchange < 0 && (is_near || file->trials > 0)) {
        file->trials -= !is_near;
        way = WAY_APART_NEAR;
    }
    if (way == WAY_NONE) {
        int theirs = gather(request, class, &all);
        if (theirs)
            return theirs;
        if (all.bytes == 0)
            return MPI_SUCCESS;
        way = decide(file, &all);
    }
    file->explained = way;
    if (way == WAY_EXCHANGED)
        return exchange_all(request, &all, done);
    if (!class)
        class = transfer(request, done);
    if (way == WAY_APART_NEAR && !class && request->bytes > 0)
        look_where_it_lies(request);
    __atomic_add_fetch(&file->tally.apart, 1, __ATOMIC_RELAXED);
    return file->ranks == 1 ? class : agree(file, class);
}
