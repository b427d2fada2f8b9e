/* What was done, for who asks with BIVOUAC_REPORT=1: of each file, when it is closed, summed over its ranks. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mpiio.h"

int reports(void)
{
    const char *asked = getenv("BIVOUAC_REPORT");
    return asked && *asked && strcmp(asked, "0") != 0;
}

void report_file(struct file *file)
{
    const struct tally *tally = &file->tally;
    enum { CALLS, LISTS, PIECES, READ, WRITTEN, EXCHANGED, APART, MESSAGES, LOCAL, REMOTE, COUNTS };
    uint64_t mine[COUNTS] = { tally->calls,     tally->lists, tally->pieces,   tally->bytes_read,  tally->bytes_written,
                              tally->exchanged, tally->apart, tally->messages, tally->bytes_local, tally->bytes_remote };
    uint64_t all[COUNTS] = { 0 };
    if (!file->reports || PMPI_Reduce(mine, all, COUNTS, MPI_UINT64_T, MPI_SUM, 0, file->comm) || file->rank != 0)
        return;
    /* In one piece: other programs may write there, too. */
    fprintf(stderr,
            "bivouac: MPI-IO on %s by %d rank%s\n"
            "  calls           %12" PRIu64 "\n"
            "  read            %12" PRIu64 " bytes\n"
            "  written         %12" PRIu64 " bytes\n"
            "  to the file in  %12" PRIu64 " pieces, %" PRIu64 " lists, %" PRIu64 " messages\n"
            "  on own host     %12" PRIu64 " bytes, %" PRIu64 " over the network\n"
            "  collective      %12" PRIu64 " exchanged first, %" PRIu64 " as each rank's lists\n"
            "  the last one    %s\n",
            file->path, file->ranks, file->ranks == 1 ? "" : "s", all[CALLS], all[READ], all[WRITTEN], all[PIECES],
            all[LISTS], all[MESSAGES], all[LOCAL], all[REMOTE], all[EXCHANGED] / (uint64_t)file->ranks, all[APART] / (uint64_t)file->ranks,
            way_in_words(file->explained));
}
