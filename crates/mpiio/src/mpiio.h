/*
 * libbivouac_mpiio: MPI_File_* for files of a formation, by MPI's profiling interface. What each part is for:
 *
 *   flat.c        a datatype as a list of places: what the type of a buffer or of a view says
 *   formations.c  which paths are a formation's, and connections
 *   access.c      one rank's access: memory places beside file places, sent as lists
 *   together.c    collective access: each its own list, or exchanged first (two-phase, by stripes)
 *   files.c       objects behind MPI_File, opening and closing, and what is asked of an open file
 *   hints.c       info objects
 *   place.c       stripes of a new file beside the ranks that use them
 *   errors.c      classes and error handlers
 *   report.c      what BIVOUAC_REPORT=1 shows
 *   calls.c       the calls that move data, pointers
 *
 * Nothing here calls MPI_*: only PMPI_*, so that a tool beside it sees the program's calls once. PMPI_File_* are taken
 * over as well: Open MPI's Fortran calls those, MPICH's calls MPI_File_*, and so do tools. What is not ours goes to the
 * next library that has the function, which is MPI's.
 */
#ifndef BIVOUAC_MPIIO_H
#define BIVOUAC_MPIIO_H

#include <mpi.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "bivouac.h"

#define PUBLIC __attribute__((visibility("default")))

/* MPI's own function, behind the one of the same name here. */
#define REAL(name)                                                \
    __extension__({                                               \
        static __typeof__(&name) found;                           \
        if (!found)                                               \
            found = (__typeof__(&name))next_function(#name);      \
        found;                                                    \
    })
/* Gives a function its second name. */
#define ALSO(name) PUBLIC extern __typeof__(name) P##name __attribute__((alias(#name)));

/* Large counts came with MPI 4. */
#if MPI_VERSION >= 4
#define LARGE_COUNTS 1
#endif

/* A run of bytes. */
struct place {
    int64_t at;
    int64_t length;
};

/* What one instance of a datatype covers. The next one begins `extent` later. */
struct flat {
    struct place *places; /* in the order of the type map, neighbours joined */
    size_t count, room;
    int64_t *before; /* bytes of data in front of each place */
    int64_t size;    /* bytes of data */
    int64_t lower, extent;
};

/* How elements are represented in the file. */
enum format { NATIVE, EXTERNAL32 };

/* Errors are MPI's classes, MPI_SUCCESS if there is none. */
int flatten(MPI_Datatype type, enum format format, struct flat *flat);
void flat_free(struct flat *flat);
int is_predefined(MPI_Datatype type);
/* Frees what MPI or the program handed out, but for predefined types. */
void type_free(MPI_Datatype *type);
/* Whether it is data without holes, in order. */
int flat_is_dense(const struct flat *flat);
/* Whether an instance reaches into the next one. */
int flat_overlaps(const struct flat *flat);

/* A place in an endless row of instances. Of what has no holes all is one place, which does not end. */
struct cursor {
    const struct place *place, *first, *behind; /* where it is, and those of an instance */
    int64_t tile;   /* where the instance begins */
    int64_t extent; /* of an instance; the next one begins so much later */
    int64_t within; /* bytes of the place that are behind us */
    int is_dense;
};

struct cursor cursor_at(const struct flat *flat, int64_t base, int64_t bytes);

/* The rest of the place that it is in. */
static inline struct place cursor_place(const struct cursor *cursor)
{
    int64_t at = cursor->tile + cursor->place->at + cursor->within;
    if (cursor->is_dense)
        return (struct place){ at, INT64_MAX - (at > 0 ? at : 0) };
    return (struct place){ at, cursor->place->length - cursor->within };
}

/* At most as far as the place reaches. */
static inline void cursor_advance(struct cursor *cursor, int64_t bytes)
{
    cursor->within += bytes;
    if (cursor->is_dense || cursor->within < cursor->place->length)
        return;
    cursor->within = 0;
    if (++cursor->place == cursor->behind) {
        cursor->place = cursor->first;
        cursor->tile += cursor->extent;
    }
}

/* What is next on both sides of an access, at most so many bytes: where it is in the file, and where in memory. */
static inline int64_t next_run(const struct cursor *file, const struct cursor *memory, int64_t left, int64_t *at,
                               int64_t *here)
{
    struct place there = cursor_place(file), mine = cursor_place(memory);
    *at = there.at;
    *here = mine.at;
    int64_t length = there.length < mine.length ? there.length : mine.length;
    return length < left ? length : left;
}

/* A view of a file. It stays as it is, and while somebody uses it. */
struct view {
    int users;
    int64_t disp;
    MPI_Datatype etype, filetype; /* copies of the program's, or predefined */
    struct flat flat;             /* of the filetype */
    int64_t unit;                 /* bytes of an etype in the file */
    enum format format;
    char name[16]; /* of the data representation, as the program said it */
};

/* Frees what is kept for the lists of a file, if there is any. */
struct room;
void room_free(struct room *room);

/* What is counted for the report. */
struct tally {
    uint64_t calls, pieces, lists, bytes_read, bytes_written, exchanged, apart;
    uint64_t messages, bytes_local, bytes_remote; /* of the file's content, between this rank and nodes */
};

struct handler {
    MPI_Errhandler handle;
    MPI_File_errhandler_function *function; /* of the program's own handlers */
};

/*
 * So many collective calls are made as each rank's own accesses to learn whether they can move bytes where they lie: the
 * first one may make the file longer, the next one be the first of its kind at a target.
 */
#define NEAR_TRIALS 3

/* An open file. */
struct file {
    MPI_Comm comm; /* a copy of the program's */
    int rank, ranks;
    int amode;
    char *path; /* as the kernel, or the formation, takes it */
    struct room *room; /* memory that lists are made in */
    bivouac *formation;
    int is_mounted; /* the path leads through a mount */
    bivouac_file *data;
    bivouac_file *pointer; /* whose size is the shared pointer; opened when it is first used */
    uint64_t pointer_ino;
    int pointer_used;
    MPI_Info info;
    int64_t stripe;
    int64_t stripe_count; /* targets it is on */
    int64_t base;
    int exchange; /* of collective calls: -1 as the pieces say, 0 never, 1 always */
    int is_far;    /* some of the file is not in memory of this rank's machine */
    int was_shown; /* bytes of it were moved where they lie, */
    int misses;    /* or could not be so often since */
    int is_near;   /* it was on some rank, and is not far from any; all agree on it */
    int trials;    /* collective calls that may yet show whether it is; the same on all ranks */
    int64_t window;
    int aggregators;
    int64_t block;  /* bytes of each rank that lie together, as the program says; 0 if it does not */
    int placement;  /* where stripes of this file are to be, if this open makes it */
    char placed[64]; /* what came of it */
    int explained; /* which way the last collective call went, and why */
    pthread_mutex_t turn; /* who moves the individual pointer, until the bytes are moved */
    pthread_mutex_t lock; /* of all that follows but the handler; nobody waits for another rank with it */
    struct view *view;
    int64_t position; /* individual pointer, in etypes */
    int atomic;
    struct handler handler;
    int split; /* which split collective call is under way; 0 is none */
    int64_t split_bytes;
    struct tally tally;
    int reports; /* all ranks, or none */
    int slot;
};

/* errors.c */
int class_of_errno(int number);
/* Has the file's handler, or that of MPI_FILE_NULL, deal with an error; answers what the call returns. */
int failed(struct file *file, int class, const char *detail);
/* The class that all agree on: the greatest. And whether the file is near. */
int agree(struct file *file, int class);
struct handler handler_of_new_files(void);

/* files.c */
struct file *file_of(MPI_File handle);
MPI_File handle_of(struct file *file);
/* The view, which stays until it is let go. */
struct view *view_of(struct file *file);
void view_leave(struct file *file, struct view *view);
/* How far instances of a type lie apart in the file. */
int extent_of(struct file *file, MPI_Datatype type, MPI_Count *extent);
/* Where an etype of a view begins in the file. */
int byte_offset(const struct view *view, int64_t offset, MPI_Offset *disp);
int64_t layout_number(const char *layout, const char *key);

/* formations.c */
void *next_function(const char *name);
enum whose { ALIEN, MOUNTED, NAMED };
enum whose whose(const char *path);
/* The path without its prefix. */
const char *path_within(const char *path);
bivouac *formation_named(int *class);
/* The file of a descriptor of a mount; NULL with class -1 if the mount does not give it away. */
bivouac_file *adopt(int fd, bivouac **formation, int *class);
void leave_formations(void);

/* report.c */
int reports(void);
void report_file(struct file *file);

/* hints.c */
void hints_read(struct file *file, MPI_Info info);
void hints_of_layout(MPI_Info info, char *layout, size_t room);
MPI_Info hints_used(struct file *file);

/* place.c */
enum placement { PLACE_STRIPED, PLACE_LOCAL, PLACE_RANKS, PLACEMENTS };
extern const char *const placement_names[PLACEMENTS];
/* What the first rank's hints ask for; PLACE_STRIPED for a file that has data. */
enum placement placement_wanted(struct file *file);
/* Has a new file's stripes lie so; a collective call. What cannot be is as without the hint. */
int place_stripes(struct file *file, enum placement wanted);

/* access.c */
/* What is to be moved: bytes of a view, to or from a buffer. */
struct request {
    struct file *file;
    struct view *view;
    int is_write;
    int64_t offset; /* in bytes of the view's data */
    char *buffer;
    int64_t count;
    MPI_Datatype type;
    /* Made by prepare. */
    struct flat memory;
    char *packed; /* in the file's representation, if that is not the memory's */
    int64_t bytes;
};
int prepare(struct request *request);
void request_free(struct request *request);
/* Moves it; the number of bytes that there were. */
int carry_out(struct request *request, int64_t *done);
/* Takes over what was read in the file's representation. */
int unpack(struct request *request, int64_t done);
int transfer(struct request *request, int64_t *done);
/* Whether the first byte of an access that was made lies in memory here, if that is not known yet. */
void look_where_it_lies(const struct request *request);
int64_t bytes_below(const struct view *view, int64_t end);
/* Pieces, gathered until they are sent. */
#define BATCH_MAX 65536
int send_pieces(struct file *file, int is_write, bivouac_piece *pieces, size_t count);

/* calls.c */
/* The file whose size is the shared pointer. */
int pointer_of(struct file *file);
/* Moves the shared pointer on, by etypes; where it was. */
int claim(struct file *file, int64_t units, int64_t *at);

/* together.c */
/* A collective call; class is what is wrong with this rank's part already. All ranks answer alike. */
int transfer_together(struct request *request, int class, int64_t *done);
const char *way_in_words(int way);
enum way {
    WAY_NONE,
    WAY_APART_NEAR,
    WAY_APART_FEW,
    WAY_APART_LARGE,
    WAY_APART_SPARSE,
    WAY_APART_ASKED,
    WAY_APART_ATOMIC,
    WAY_APART_TWICE,
    WAY_EXCHANGED
};

#endif
