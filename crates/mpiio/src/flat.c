/* Datatypes as lists of places. */
#include <stdlib.h>
#include <string.h>

#include "mpiio.h"

static int add(struct flat *flat, int64_t at, int64_t length)
{
    if (length == 0)
        return MPI_SUCCESS;
    if (flat->count > 0) {
        struct place *last = &flat->places[flat->count - 1];
        if (last->at + last->length == at) {
            last->length += length;
            return MPI_SUCCESS;
        }
    }
    if (flat->count == flat->room) {
        size_t room = flat->room ? flat->room * 2 : 4;
        struct place *places = realloc(flat->places, room * sizeof *places);
        if (!places)
            return MPI_ERR_NO_MEM;
        flat->places = places;
        flat->room = room;
    }
    flat->places[flat->count++] = (struct place){ at, length };
    return MPI_SUCCESS;
}

int flat_is_dense(const struct flat *flat)
{
    return flat->count == 1 && flat->places[0].length == flat->extent && flat->places[0].at == flat->lower;
}

/* Puts `count` instances of a part one behind the other, the first at `at`. */
static int add_row(struct flat *flat, const struct flat *part, int64_t at, int64_t count)
{
    if (count <= 0 || part->size == 0)
        return MPI_SUCCESS;
    if (flat_is_dense(part))
        return add(flat, at + part->places[0].at, count * part->extent);
    for (int64_t i = 0; i < count; i++)
        for (size_t j = 0; j < part->count; j++) {
            int class = add(flat, at + i * part->extent + part->places[j].at, part->places[j].length);
            if (class)
                return class;
        }
    return MPI_SUCCESS;
}

/* What a derived type was made of; the numbers in the order in which MPI gives them, whichever array they are in. */
struct contents {
    int combiner;
    int64_t *numbers;
    MPI_Datatype *types;
    int type_count;
};

static int contents_of(MPI_Datatype type, struct contents *contents)
{
    int ints_count, adds_count, combiner, class;
    memset(contents, 0, sizeof *contents);
#ifdef LARGE_COUNTS
    MPI_Count ints_large, adds_large, counts_large, types_large;
    class = PMPI_Type_get_envelope_c(type, &ints_large, &adds_large, &counts_large, &types_large, &combiner);
    if (class)
        return class;
    ints_count = (int)ints_large;
    adds_count = (int)adds_large;
    contents->type_count = (int)types_large;
#else
    const int64_t counts_large = 0;
    class = PMPI_Type_get_envelope(type, &ints_count, &adds_count, &contents->type_count, &combiner);
    if (class)
        return class;
#endif
    contents->combiner = combiner;
    if (combiner == MPI_COMBINER_NAMED)
        return MPI_SUCCESS;
    int *ints = calloc((size_t)ints_count + 1, sizeof *ints);
    MPI_Aint *adds = calloc((size_t)adds_count + 1, sizeof *adds);
    contents->types = calloc((size_t)contents->type_count + 1, sizeof *contents->types);
    contents->numbers = calloc((size_t)ints_count + (size_t)adds_count + (size_t)counts_large + 1, sizeof(int64_t));
    class = ints && adds && contents->types && contents->numbers ? MPI_SUCCESS : MPI_ERR_NO_MEM;
    int64_t *numbers = contents->numbers;
#ifdef LARGE_COUNTS
    MPI_Count *counts = calloc((size_t)counts_large + 1, sizeof *counts);
    if (!counts)
        class = MPI_ERR_NO_MEM;
    if (!class && counts_large > 0)
        class = PMPI_Type_get_contents_c(type, ints_large, adds_large, counts_large, types_large, ints, adds, counts,
                                         contents->types);
    else if (!class)
        class = PMPI_Type_get_contents(type, ints_count, adds_count, contents->type_count, ints, adds, contents->types);
    /* Of subarrays and darrays the numbers of dimensions and the like stay integers: they come first. */
    for (int i = 0; !class && i < ints_count; i++)
        *numbers++ = ints[i];
    for (MPI_Count i = 0; !class && i < counts_large; i++)
        *numbers++ = counts[i];
    free(counts);
    /* The order of dimensions stands behind all in the small form, in front of the counts in the large one. */
    if (!class && counts_large > 0 && combiner == MPI_COMBINER_SUBARRAY) {
        int64_t order = contents->numbers[1];
        memmove(contents->numbers + 1, contents->numbers + 2, sizeof(int64_t) * (size_t)counts_large);
        contents->numbers[1 + counts_large] = order;
    }
    if (!class && counts_large > 0 && combiner == MPI_COMBINER_DARRAY) {
        /* size, rank, n, distributions, arguments, processes, order | sizes → sizes behind n. */
        int64_t dims = ints[2], *all = contents->numbers;
        for (int64_t i = 0; i < dims; i++)
            all[3 + i] = all[ints_count + i];
        for (int64_t i = 0; i < 3 * dims + 1; i++)
            all[3 + dims + i] = ints[3 + i];
    }
#else
    if (!class)
        class = PMPI_Type_get_contents(type, ints_count, adds_count, contents->type_count, ints, adds, contents->types);
    for (int i = 0; !class && i < ints_count; i++)
        *numbers++ = ints[i];
#endif
    for (int i = 0; !class && i < adds_count; i++)
        *numbers++ = adds[i];
    free(ints);
    free(adds);
    return class;
}

int is_predefined(MPI_Datatype type)
{
    int combiner = MPI_COMBINER_DUP;
#ifdef LARGE_COUNTS
    MPI_Count ints, adds, counts, types;
    PMPI_Type_get_envelope_c(type, &ints, &adds, &counts, &types, &combiner);
#else
    int ints, adds, types;
    PMPI_Type_get_envelope(type, &ints, &adds, &types, &combiner);
#endif
    return combiner == MPI_COMBINER_NAMED;
}

void type_free(MPI_Datatype *type)
{
    if (*type != MPI_DATATYPE_NULL && !is_predefined(*type))
        PMPI_Type_free(type);
}

static void contents_free(struct contents *contents)
{
    for (int i = 0; contents->types && i < contents->type_count; i++)
        type_free(&contents->types[i]);
    free(contents->types);
    free(contents->numbers);
}

/* Bytes that so many elements of a predefined type have in external32. */
static int64_t external_size(MPI_Datatype type)
{
    MPI_Aint size = 0;
    return PMPI_Pack_external_size("external32", 1, type, &size) ? -1 : (int64_t)size;
}

static int flatten_named(MPI_Datatype type, enum format format, struct flat *flat)
{
    int size = 0;
    MPI_Aint lower = 0, extent = 0;
    int class = PMPI_Type_size(type, &size);
    if (!class)
        class = PMPI_Type_get_extent(type, &lower, &extent);
    if (class)
        return MPI_ERR_TYPE;
    if (format == EXTERNAL32) {
        int64_t external = size ? external_size(type) : 0;
        flat->lower = 0;
        flat->extent = external;
        return external < 0 ? MPI_ERR_UNSUPPORTED_DATAREP : add(flat, 0, external);
    }
    flat->lower = lower;
    flat->extent = extent;
    /* Pairs may have a hole in front of, or behind, their second half, which is an int. */
    int64_t first = size;
    if (type == MPI_DOUBLE_INT)
        first = sizeof(double);
    else if (type == MPI_LONG_INT)
        first = sizeof(long);
    else if (type == MPI_SHORT_INT)
        first = sizeof(short);
    else if (type == MPI_LONG_DOUBLE_INT)
        first = sizeof(long double);
    class = add(flat, 0, first);
    if (!class && first < size) {
        int64_t align = sizeof(int), second = (first + align - 1) / align * align;
        class = add(flat, second, size - first);
    }
    return class;
}

/* One dimension of a distributed array: a type of all that this process has of it, as long as the dimension. */
static int distribute(struct flat *flat, const struct flat *part, int64_t size, int64_t processes, int64_t rank,
                      int64_t kind, int64_t argument)
{
    int64_t block = argument;
    int class = MPI_SUCCESS;
    if (kind == MPI_DISTRIBUTE_NONE || processes == 1) {
        class = add_row(flat, part, 0, size);
    } else {
        if (kind == MPI_DISTRIBUTE_BLOCK && argument == MPI_DISTRIBUTE_DFLT_DARG)
            block = (size + processes - 1) / processes;
        else if (argument == MPI_DISTRIBUTE_DFLT_DARG)
            block = 1;
        if (block <= 0)
            return MPI_ERR_ARG;
        for (int64_t at = rank * block; !class && at < size; at += processes * block)
            class = add_row(flat, part, at * part->extent, at + block < size ? block : size - at);
    }
    flat->lower = 0;
    flat->extent = size * part->extent;
    return class;
}

static void finish(struct flat *flat)
{
    flat->size = 0;
    for (size_t i = 0; i < flat->count; i++)
        flat->size += flat->places[i].length;
}

/* Moves the places of one into the other. */
static void take(struct flat *into, struct flat *from)
{
    free(into->places);
    *into = *from;
}

static int flatten_darray(const int64_t *numbers, const struct flat *old, struct flat *flat)
{
    int64_t rank = numbers[1], dims = numbers[2];
    const int64_t *sizes = numbers + 3, *kinds = sizes + dims, *arguments = kinds + dims, *grid = arguments + dims;
    int64_t order = grid[dims], behind = 1;
    struct flat inner = { 0 };
    int class = add_row(&inner, old, 0, 1);
    inner.lower = 0;
    inner.extent = old->extent;
    /* Ranks are numbered by rows, whatever the order of the array. */
    int64_t *coordinates = calloc((size_t)dims + 1, sizeof *coordinates);
    if (!coordinates)
        class = MPI_ERR_NO_MEM;
    for (int64_t i = dims - 1; !class && i >= 0; i--) {
        coordinates[i] = rank / behind % grid[i];
        behind *= grid[i];
    }
    for (int64_t i = 0; !class && i < dims; i++) {
        int64_t dim = order == MPI_ORDER_C ? dims - 1 - i : i;
        struct flat outer = { 0 };
        finish(&inner);
        class = distribute(&outer, &inner, sizes[dim], grid[dim], coordinates[dim], kinds[dim], arguments[dim]);
        take(&inner, &outer);
    }
    free(coordinates);
    take(flat, &inner);
    return class;
}

static int flatten_subarray(const int64_t *numbers, const struct flat *old, struct flat *flat)
{
    int64_t dims = numbers[0];
    const int64_t *sizes = numbers + 1, *parts = sizes + dims, *starts = parts + dims;
    int64_t order = starts[dims];
    struct flat inner = { 0 };
    int class = add_row(&inner, old, 0, 1);
    inner.extent = old->extent;
    for (int64_t i = 0; !class && i < dims; i++) {
        int64_t dim = order == MPI_ORDER_C ? dims - 1 - i : i;
        struct flat outer = { 0 };
        finish(&inner);
        class = add_row(&outer, &inner, starts[dim] * inner.extent, parts[dim]);
        outer.extent = sizes[dim] * inner.extent;
        take(&inner, &outer);
    }
    take(flat, &inner);
    return class;
}

/* Types that are made of several others, or the same one at places. */
static int flatten_list(const struct contents *contents, const struct flat *olds, struct flat *flat)
{
    const int64_t *n = contents->numbers;
    const struct flat *old = &olds[0];
    int class = MPI_SUCCESS;
    switch (contents->combiner) {
    case MPI_COMBINER_CONTIGUOUS:
        return add_row(flat, old, 0, n[0]);
    case MPI_COMBINER_VECTOR:
    case MPI_COMBINER_HVECTOR: {
        int64_t step = contents->combiner == MPI_COMBINER_VECTOR ? n[2] * old->extent : n[2];
        for (int64_t i = 0; !class && i < n[0]; i++)
            class = add_row(flat, old, i * step, n[1]);
        return class;
    }
    case MPI_COMBINER_INDEXED:
    case MPI_COMBINER_HINDEXED: {
        int64_t unit = contents->combiner == MPI_COMBINER_INDEXED ? old->extent : 1;
        for (int64_t i = 0; !class && i < n[0]; i++)
            class = add_row(flat, old, n[1 + n[0] + i] * unit, n[1 + i]);
        return class;
    }
    case MPI_COMBINER_INDEXED_BLOCK:
    case MPI_COMBINER_HINDEXED_BLOCK: {
        int64_t unit = contents->combiner == MPI_COMBINER_INDEXED_BLOCK ? old->extent : 1;
        for (int64_t i = 0; !class && i < n[0]; i++)
            class = add_row(flat, old, n[2 + i] * unit, n[1]);
        return class;
    }
    case MPI_COMBINER_STRUCT:
        for (int64_t i = 0; !class && i < n[0]; i++)
            class = add_row(flat, &olds[i], n[1 + n[0] + i], n[1 + i]);
        return class;
    case MPI_COMBINER_SUBARRAY:
        return flatten_subarray(n, old, flat);
    case MPI_COMBINER_DARRAY:
        return flatten_darray(n, old, flat);
    case MPI_COMBINER_DUP:
    case MPI_COMBINER_RESIZED:
        return add_row(flat, old, 0, 1);
    default:
        return MPI_ERR_TYPE;
    }
}

/* Bounds in a representation of the file's, in which MPI does not tell them. */
static void bounds(const struct contents *contents, const struct flat *olds, struct flat *flat)
{
    int combiner = contents->combiner;
    if (combiner == MPI_COMBINER_RESIZED) {
        flat->lower = contents->numbers[0];
        flat->extent = contents->numbers[1];
    } else if (combiner == MPI_COMBINER_DUP) {
        flat->lower = olds[0].lower;
        flat->extent = olds[0].extent;
    } else if (combiner == MPI_COMBINER_CONTIGUOUS) {
        flat->lower = olds[0].lower;
        flat->extent = contents->numbers[0] * olds[0].extent;
    } else if (combiner != MPI_COMBINER_SUBARRAY && combiner != MPI_COMBINER_DARRAY) {
        int64_t lower = 0, upper = 0;
        for (size_t i = 0; i < flat->count; i++) {
            const struct place *place = &flat->places[i];
            lower = i == 0 || place->at < lower ? place->at : lower;
            upper = i == 0 || place->at + place->length > upper ? place->at + place->length : upper;
        }
        flat->lower = lower;
        flat->extent = upper - lower;
    }
}

static int flatten_part(MPI_Datatype type, enum format format, struct flat *flat)
{
    struct contents contents;
    memset(flat, 0, sizeof *flat);
    int class = contents_of(type, &contents);
    if (class)
        return class == MPI_ERR_NO_MEM ? class : MPI_ERR_TYPE;
    switch (contents.combiner) {
    case MPI_COMBINER_NAMED:
    case MPI_COMBINER_F90_INTEGER:
    case MPI_COMBINER_F90_REAL:
    case MPI_COMBINER_F90_COMPLEX:
        class = flatten_named(type, format, flat);
        finish(flat);
        contents_free(&contents);
        return class;
    default:
        break;
    }
    struct flat *olds = calloc((size_t)contents.type_count + 1, sizeof *olds);
    if (!olds)
        class = MPI_ERR_NO_MEM;
    for (int i = 0; !class && i < contents.type_count; i++)
        class = flatten_part(contents.types[i], format, &olds[i]);
    if (!class)
        class = flatten_list(&contents, olds, flat);
    if (!class && format == NATIVE) {
        MPI_Aint lower, extent;
        class = PMPI_Type_get_extent(type, &lower, &extent);
        flat->lower = lower;
        flat->extent = extent;
    } else if (!class) {
        bounds(&contents, olds, flat);
    }
    finish(flat);
    for (int i = 0; olds && i < contents.type_count; i++)
        flat_free(&olds[i]);
    free(olds);
    contents_free(&contents);
    return class;
}

int flatten(MPI_Datatype type, enum format format, struct flat *flat)
{
    memset(flat, 0, sizeof *flat);
    if (type == MPI_DATATYPE_NULL)
        return MPI_ERR_TYPE;
    int class = flatten_part(type, format, flat);
    if (class) {
        flat_free(flat);
        return class;
    }
    flat->before = calloc(flat->count + 1, sizeof *flat->before);
    if (!flat->before) {
        flat_free(flat);
        return MPI_ERR_NO_MEM;
    }
    for (size_t i = 0; i < flat->count; i++)
        flat->before[i + 1] = flat->before[i] + flat->places[i].length;
    return MPI_SUCCESS;
}

int flat_overlaps(const struct flat *flat)
{
    if (flat->count == 0)
        return 0;
    const struct place *last = &flat->places[flat->count - 1];
    return flat->places[0].at + flat->extent < last->at + last->length;
}

void flat_free(struct flat *flat)
{
    free(flat->places);
    free(flat->before);
    memset(flat, 0, sizeof *flat);
}

struct cursor cursor_at(const struct flat *flat, int64_t base, int64_t bytes)
{
    struct cursor cursor = { .place = flat->places, .first = flat->places, .behind = flat->places + flat->count,
                             .tile = base, .extent = flat->extent, .is_dense = flat_is_dense(flat) };
    if (flat->size == 0)
        return cursor;
    if (cursor.is_dense) {
        cursor.within = bytes;
        return cursor;
    }
    cursor.tile += bytes / flat->size * flat->extent;
    int64_t rest = bytes % flat->size;
    size_t low = 0, high = flat->count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (flat->before[middle] <= rest)
            low = middle;
        else
            high = middle;
    }
    cursor.place += low;
    cursor.within = rest - flat->before[low];
    return cursor;
}
