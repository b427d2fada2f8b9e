/* Hints: what is heeded, and what is read back. Unknown ones are ignored. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mpiio.h"

/* Those that are read back as they were given; what the others have become is said instead. */
static const char *const kept[] = { "access_style", "cb_block_size", "file_perm", "io_node_list", "nb_proc",
                                    "num_io_nodes", "romio_no_indep_rw", "start_iodevice", NULL };

static int value_of(MPI_Info info, const char *key, char *value, int room)
{
    int found = 0;
    if (info == MPI_INFO_NULL || PMPI_Info_get(info, (char *)key, room - 1, value, &found))
        return 0;
    return found;
}

static int64_t number_of(MPI_Info info, const char *key)
{
    char value[MPI_MAX_INFO_VAL + 1], *end;
    if (!value_of(info, key, value, sizeof value))
        return 0;
    long long number = strtoll(value, &end, 10);
    return *end == 0 && number > 0 ? number : 0;
}

int64_t layout_number(const char *layout, const char *key)
{
    const char *at = strstr(layout, key);
    return at ? strtoll(at + strlen(key), NULL, 10) : 0;
}

void hints_of_layout(MPI_Info info, char *layout, size_t room)
{
    int64_t stripe = number_of(info, "striping_unit"), width = number_of(info, "striping_factor");
    char base[32];
    size_t length = 0;
    *layout = 0;
    if (stripe)
        length += (size_t)snprintf(layout + length, room - length, "stripe=%" PRId64 " ", stripe);
    if (width)
        length += (size_t)snprintf(layout + length, room - length, "width=%" PRId64 " ", width);
    if (value_of(info, "start_iodevice", base, sizeof base) && *base >= '0' && *base <= '9')
        snprintf(layout + length, room - length, "base=%" PRId64, (int64_t)strtoll(base, NULL, 10));
    length = strlen(layout);
    if (length > 0 && layout[length - 1] == ' ')
        layout[length - 1] = 0;
}

void hints_read(struct file *file, MPI_Info info)
{
    char value[MPI_MAX_INFO_VAL + 1];
    if (file->window == 0) {
        file->window = 16 << 20;
        file->aggregators = file->ranks;
        file->exchange = -1;
    }
    if (file->info == MPI_INFO_NULL)
        PMPI_Info_create(&file->info);
    if (info == MPI_INFO_NULL)
        return;
    static const char *const switches[] = { "romio_cb_write", "romio_cb_read", "collective_buffering", NULL };
    for (int i = 0; switches[i]; i++)
        if (value_of(info, switches[i], value, sizeof value)) {
            if (strcmp(value, "enable") == 0 || strcmp(value, "true") == 0)
                file->exchange = 1;
            else if (strcmp(value, "disable") == 0 || strcmp(value, "false") == 0)
                file->exchange = 0;
            else if (strcmp(value, "automatic") == 0)
                file->exchange = -1;
        }
    int64_t number = number_of(info, "cb_nodes");
    if (number)
        file->aggregators = number < file->ranks ? (int)number : file->ranks;
    number = number_of(info, "cb_buffer_size");
    if (number)
        file->window = number < 4096 ? 4096 : number < (1 << 30) ? number : 1 << 30;
    /* Only of use before the file has anything. */
    if (!file->view && value_of(info, "bivouac_placement", value, sizeof value))
        for (int i = 0; i < PLACEMENTS; i++)
            if (strcmp(value, placement_names[i]) == 0)
                file->placement = i;
    number = number_of(info, "bivouac_block");
    if (number && !file->view)
        file->block = number;
    for (int i = 0; kept[i]; i++)
        if (value_of(info, kept[i], value, sizeof value))
            PMPI_Info_set(file->info, (char *)kept[i], value);
}

static void say(MPI_Info info, const char *key, int64_t number)
{
    char text[32];
    snprintf(text, sizeof text, "%" PRId64, number);
    PMPI_Info_set(info, (char *)key, text);
}

/* The partition that the file is in, and what readers may expect of its writers: the first word of the attribute; what
   cannot be read is not said. */
static void say_partition(struct file *file, MPI_Info info)
{
    char settings[1024], text[64], contract[32];
    ssize_t length = bivouac_fgetxattr(file->data, "user.bivouac.partition", settings, sizeof settings - 1);
    settings[length > 0 ? length : 0] = 0;
    say(info, "bivouac_partition", layout_number(settings, "id="));
    length = bivouac_fgetxattr(file->data, "user.bivouac.contract", text, sizeof text - 1);
    text[length > 0 ? length : 0] = 0;
    if (sscanf(text, "%31s", contract) == 1)
        PMPI_Info_set(info, "bivouac_contract", contract);
}

MPI_Info hints_used(struct file *file)
{
    static const char *const switched[] = { "automatic", "disable", "enable" };
    MPI_Info info;
    if (PMPI_Info_dup(file->info, &info))
        return MPI_INFO_NULL;
    say(info, "striping_unit", file->stripe);
    say(info, "striping_factor", file->stripe_count);
    say(info, "start_iodevice", file->base);
    say(info, "cb_nodes", file->aggregators);
    say(info, "cb_buffer_size", file->window);
    PMPI_Info_set(info, "romio_cb_write", (char *)switched[file->exchange + 1]);
    PMPI_Info_set(info, "romio_cb_read", (char *)switched[file->exchange + 1]);
    PMPI_Info_set(info, "bivouac_collective", (char *)way_in_words(file->explained));
    PMPI_Info_set(info, "bivouac_placement", (char *)placement_names[file->placement]);
    if (file->block)
        say(info, "bivouac_block", file->block);
    if (*file->placed)
        PMPI_Info_set(info, "bivouac_placed", file->placed);
    say_partition(file, info);
    return info;
}
