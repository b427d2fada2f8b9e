/*
 * A job of which a rank is killed, and the next one over the same files. S661.
 * usage: killed DIRECTORY KIND LOG [after]
 * Calls of one kind over and over, until somebody kills it; who it is and which rounds are done stands in LOG.RANK.
 * KIND is together (collective calls that exchange), apart (each rank for itself, and the shared pointer) or atomic (all
 * in one place, in atomic mode). With "after": what was done before is there, and the same calls have the right result.
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"

/* Words of a call; those of a rank lie in pieces between the others'. */
enum { WORDS = 1 << 15, PIECE = 8, LAST = 1 << 30 };

static const char *directory, *kind, *journal;
static uint64_t *words;

static int is_kind(const char *name)
{
    return strcmp(kind, name) == 0;
}

/* What says whose a word is, of which round, and where in the call. */
static uint64_t word(int of, int round, int at)
{
    return (uint64_t)round << 32 | (uint64_t)of << 24 | (uint64_t)at;
}

static int round_of(uint64_t word)
{
    return (int)(word >> 32);
}

static MPI_File opened(const char *name, int amode)
{
    char path[4096], way[256];
    MPI_File file;
    MPI_Info info;
    int found;
    snprintf(path, sizeof path, "%s/%s", directory, name);
    OK(MPI_File_open(MPI_COMM_WORLD, path, amode, MPI_INFO_NULL, &file));
    /* That it is the library's. */
    OK(MPI_File_get_info(file, &info));
    MPI_Info_get(info, "bivouac_collective", sizeof way - 1, way, &found);
    MPI_Info_free(&info);
    CHECK(found);
    return file;
}

/* The place of a rank. */
static void look_at(MPI_File file, int of)
{
    MPI_Datatype filetype;
    MPI_Offset disp = is_kind("atomic") ? 0 : (MPI_Offset)of * 8 * (is_kind("together") ? PIECE : WORDS);
    MPI_Type_vector(WORDS / PIECE, PIECE, is_kind("together") ? PIECE * ranks : PIECE, MPI_UINT64_T, &filetype);
    MPI_Type_commit(&filetype);
    OK(MPI_File_set_view(file, disp, MPI_UINT64_T, filetype, "native", MPI_INFO_NULL));
    MPI_Type_free(&filetype);
}

static void write_round(MPI_File file, int round)
{
    MPI_Status status;
    int count;
    for (int at = 0; at < WORDS; at++)
        words[at] = word(rank, round, at);
    if (is_kind("together"))
        OK(MPI_File_write_at_all(file, 0, words, WORDS, MPI_UINT64_T, &status));
    else
        OK(MPI_File_write_at(file, 0, words, WORDS, MPI_UINT64_T, &status));
    MPI_Get_count(&status, MPI_UINT64_T, &count);
    CHECK(count == WORDS);
}

static void read_words(MPI_File file)
{
    MPI_Status status;
    int count;
    memset(words, 0xee, WORDS * 8);
    if (is_kind("together"))
        OK(MPI_File_read_at_all(file, 0, words, WORDS, MPI_UINT64_T, &status));
    else
        OK(MPI_File_read_at(file, 0, words, WORDS, MPI_UINT64_T, &status));
    MPI_Get_count(&status, MPI_UINT64_T, &count);
    CHECK(count == WORDS);
}

/* Each rank's part, as it is in a file that nobody changes any more. */
static void keep(int is_after)
{
    int amode = is_after ? MPI_MODE_RDONLY | MPI_MODE_DELETE_ON_CLOSE : MPI_MODE_WRONLY | MPI_MODE_CREATE;
    MPI_File file = opened("kept", amode);
    MPI_Offset at = (MPI_Offset)(is_after ? (rank + 1) % ranks : rank) * WORDS * 8;
    if (is_after) {
        OK(MPI_File_read_at(file, at, words, WORDS, MPI_UINT64_T, MPI_STATUS_IGNORE));
        for (int i = 0; i < WORDS; i++)
            CHECK(words[i] == word((rank + 1) % ranks, 0, i));
    } else {
        for (int i = 0; i < WORDS; i++)
            words[i] = word(rank, 0, i);
        OK(MPI_File_write_at(file, at, words, WORDS, MPI_UINT64_T, MPI_STATUS_IGNORE));
    }
    OK(MPI_File_close(&file));
}

/* How many rounds a rank of the job before has done. */
static int done_by(int of)
{
    char name[4096];
    int done = 0, next;
    snprintf(name, sizeof name, "%s.%d", journal, of);
    FILE *said = fopen(name, "r");
    CHECK(said && fscanf(said, "%*s %*d") == 0);
    while (fscanf(said, "%d", &next) == 1)
        done = next;
    fclose(said);
    return done;
}

/* Of each call that returned all is there; of the one after it as much as was done of it. */
static void check_part(int of)
{
    int done = done_by(of);
    for (int at = 0; at < WORDS; at++) {
        int round = round_of(words[at]);
        CHECK(words[at] == word(of, round, at) && (round == done || round == done + 1));
    }
}

/* The last access in atomic mode may have been cut off; below it is a whole one. */
static void check_atomic(void)
{
    uint64_t seen[2] = { words[0], words[0] };
    for (int at = 0; at < WORDS; at++) {
        uint64_t whose = words[at] - (uint64_t)at;
        if (whose != seen[0] && seen[1] == seen[0])
            seen[1] = whose;
        CHECK(whose == seen[0] || whose == seen[1]);
    }
    for (int i = 0; i < 2; i++) {
        int of = (int)(seen[i] >> 24 & 0xff);
        CHECK(of < ranks && seen[i] == word(of, round_of(seen[i]), 0) && round_of(seen[i]) <= done_by(of) + 1);
    }
}

/* Every place of the shared pointer is one call's, or was given to one that did not come to use it. */
static void check_shared(MPI_File file)
{
    MPI_Offset size;
    int unused = 0, *next = calloc((size_t)ranks, sizeof *next);
    OK(MPI_File_get_size(file, &size));
    CHECK(size % 8 == 0);
    uint64_t *all = malloc((size_t)size + 1);
    OK(MPI_File_read_at(file, 0, all, (int)(size / 8), MPI_UINT64_T, MPI_STATUS_IGNORE));
    for (int i = 0; i < size / 8; i++) {
        int of = (int)(all[i] >> 24 & 0xff);
        if (all[i])
            CHECK(of < ranks && all[i] == word(of, ++next[of], 0));
        else
            unused++;
    }
    CHECK(unused <= ranks);
    for (int of = 0; of < ranks; of++)
        CHECK(next[of] == done_by(of) || next[of] == done_by(of) + 1);
    free(next);
    free(all);
}

static void until_killed(MPI_File file, MPI_File shared)
{
    char name[4096], host[256];
    snprintf(name, sizeof name, "%s.%d", journal, rank);
    gethostname(host, sizeof host);
    FILE *said = fopen(name, "w");
    CHECK(said);
    fprintf(said, "%s %d\n", host, (int)getpid());
    for (int round = 1;; round++) {
        write_round(file, round);
        if (shared != MPI_FILE_NULL) {
            uint64_t mine = word(rank, round, 0);
            OK(MPI_File_write_shared(shared, &mine, 1, MPI_UINT64_T, MPI_STATUS_IGNORE));
        }
        fprintf(said, "%d\n", round);
        fflush(said);
    }
}

static void after(MPI_File file, MPI_File shared)
{
    int part = (rank + 1) % ranks;
    look_at(file, part);
    read_words(file);
    if (is_kind("atomic"))
        check_atomic();
    else
        check_part(part);
    if (shared != MPI_FILE_NULL && rank == 0)
        check_shared(shared);
    MPI_Barrier(MPI_COMM_WORLD);
    look_at(file, rank);
    write_round(file, LAST);
    OK(MPI_File_sync(file));
    MPI_Barrier(MPI_COMM_WORLD);
    look_at(file, part);
    read_words(file);
    int of = is_kind("atomic") ? (int)(words[0] >> 24 & 0xff) : part;
    for (int at = 0; at < WORDS; at++)
        CHECK(words[at] == word(of, LAST, at));
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    directory = argv[1], kind = argv[2], journal = argv[3];
    words = malloc(WORDS * 8);
    int is_after = argc > 4, amode = MPI_MODE_RDWR | (is_after ? MPI_MODE_DELETE_ON_CLOSE : MPI_MODE_CREATE);
    keep(is_after);
    MPI_File file = opened("killed", amode), shared = is_kind("apart") ? opened("shared", amode) : MPI_FILE_NULL;
    OK(MPI_File_set_atomicity(file, is_kind("atomic")));
    if (!is_after) {
        look_at(file, rank);
        MPI_Barrier(MPI_COMM_WORLD);
        until_killed(file, shared);
    }
    after(file, shared);
    OK(MPI_File_close(&file));
    if (shared != MPI_FILE_NULL)
        OK(MPI_File_close(&shared));
    MPI_Finalize();
    return 0;
}
