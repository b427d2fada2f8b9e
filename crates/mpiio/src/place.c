/*
 * Stripes of a new file beside the ranks that use them (hint bivouac_placement): what a rank accesses most is then on its
 * own host, and does not cross the network.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mpiio.h"

/* Of a stripe, in bytes: what its size is a multiple of, and the most. */
#define STRIPE_UNIT 4096
#define STRIPE_MOST (1 << 30)

const char *const placement_names[PLACEMENTS] = { "striped", "local", "ranks" };

/* Which targets are on whose host: a byte for each rank and target. */
struct hosts {
    const char *here;
    int ranks;
    uint32_t targets;
};

static int is_on_host(const struct hosts *hosts, int rank, uint32_t target)
{
    return hosts->here[(size_t)rank * hosts->targets + target];
}

/* How many ranks have their block on their own host if so many ranks share a stripe and the first is on this target. */
static int ranks_at_home(const struct hosts *hosts, int share, uint32_t base)
{
    int count = 0;
    for (int rank = 0; rank < hosts->ranks; rank++)
        count += is_on_host(hosts, rank, (base + (uint32_t)(rank / share)) % hosts->targets);
    return count;
}

/* How many ranks from the first one on are on one host, and how many targets that has. */
static void first_host(const struct hosts *hosts, int *ranks, int *targets)
{
    *ranks = 1;
    while (*ranks < hosts->ranks && memcmp(hosts->here, hosts->here + (size_t)*ranks * hosts->targets, hosts->targets) == 0)
        ++*ranks;
    *targets = 0;
    for (uint32_t target = 0; target < hosts->targets; target++)
        *targets += is_on_host(hosts, 0, target);
}

/* Blocks of ranks: stripes of so many blocks that most ranks have theirs on their own host; whether any has. */
static int by_ranks(struct file *file, const struct hosts *hosts, char *layout, size_t room)
{
    int ranks, targets, best = 0, shares[3];
    uint32_t base = 0;
    int64_t stripe = 0;
    first_host(hosts, &ranks, &targets);
    shares[0] = 1;
    shares[1] = targets > 1 && ranks % targets == 0 ? ranks / targets : ranks;
    shares[2] = ranks;
    for (int i = 0; i < 3; i++) {
        int64_t wanted = file->block * shares[i];
        if (wanted % STRIPE_UNIT || wanted > STRIPE_MOST)
            continue;
        for (uint32_t target = 0; target < hosts->targets; target++) {
            int count = ranks_at_home(hosts, shares[i], target);
            if (count > best) {
                best = count;
                base = target;
                stripe = wanted;
            }
        }
    }
    snprintf(layout, room, "stripe=%lld width=%u base=%u", (long long)stripe, hosts->targets, base);
    snprintf(file->placed, sizeof file->placed, "%d of %d ranks have their blocks on their host", best, hosts->ranks);
    return best > 0;
}

/* Wholly on a target of the first rank's host; files of one process each take turns. */
static int by_first_rank(struct file *file, const struct hosts *hosts, char *layout, size_t room)
{
    uint32_t usable = 0, turn = 0;
    int world = 0;
    for (uint32_t target = 0; target < hosts->targets; target++)
        usable += (uint32_t)is_on_host(hosts, 0, target);
    if (usable == 0)
        return 0;
    PMPI_Comm_rank(MPI_COMM_WORLD, &world);
    turn = (uint32_t)world % usable;
    for (uint32_t target = 0; target < hosts->targets; target++)
        if (is_on_host(hosts, 0, target) && turn-- == 0)
            snprintf(layout, room, "width=1 base=%u", target);
    snprintf(file->placed, sizeof file->placed, "on rank 0's host");
    return 1;
}

/* The first rank's part: sets the layout. */
static void decide(struct file *file, const struct hosts *hosts, enum placement wanted)
{
    char layout[96] = "";
    int found = wanted == PLACE_LOCAL ? by_first_rank(file, hosts, layout, sizeof layout)
                                      : by_ranks(file, hosts, layout, sizeof layout);
    if (!found)
        snprintf(file->placed, sizeof file->placed, "striped: no stripe can be where it is used");
    else if (bivouac_fsetxattr(file->data, "user.bivouac.layout", layout, strlen(layout), 0) != 0)
        snprintf(file->placed, sizeof file->placed, "striped: the layout cannot be set");
}

enum placement placement_wanted(struct file *file)
{
    struct stat st;
    int is_new = (file->amode & MPI_MODE_CREATE) && bivouac_fstat(file->data, &st) == 0 && st.st_size == 0;
    int is_possible = file->placement == PLACE_LOCAL || (file->placement == PLACE_RANKS && file->block > 0);
    return is_new && is_possible ? file->placement : PLACE_STRIPED;
}

int place_stripes(struct file *file, enum placement wanted)
{
    if (wanted == PLACE_STRIPED)
        return MPI_SUCCESS;
    char layout[256];
    ssize_t length = bivouac_fgetxattr(file->data, "user.bivouac.layout", layout, sizeof layout - 1);
    layout[length > 0 ? length : 0] = 0;
    size_t targets = (size_t)layout_number(layout, "targets=");
    uint32_t *numbers = malloc(targets * sizeof *numbers);
    char *mine = calloc(targets, 1), *all = file->rank == 0 ? calloc((size_t)file->ranks, targets) : NULL;
    int class = targets == 0 ? MPI_ERR_IO : !numbers || !mine || (file->rank == 0 && !all) ? MPI_ERR_NO_MEM : MPI_SUCCESS;
    class = agree(file, class);
    if (!class) {
        ssize_t count = bivouac_targets_here(file->data, numbers, targets);
        for (ssize_t i = 0; i < count && (size_t)i < targets; i++)
            if (numbers[i] < targets)
                mine[numbers[i]] = 1;
        if (PMPI_Gather(mine, (int)targets, MPI_BYTE, all, (int)targets, MPI_BYTE, 0, file->comm))
            class = MPI_ERR_OTHER;
    }
    if (!class && file->rank == 0)
        decide(file, &(struct hosts){ all, file->ranks, (uint32_t)targets }, wanted);
    if (!class && PMPI_Bcast(file->placed, sizeof file->placed, MPI_CHAR, 0, file->comm))
        class = MPI_ERR_OTHER;
    /* What this rank knows of the file is from before. */
    struct stat st;
    if (!class && bivouac_fstat(file->data, &st) != 0)
        class = MPI_ERR_IO;
    free(numbers);
    free(mine);
    free(all);
    return agree(file, class);
}
