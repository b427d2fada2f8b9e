/* Which paths are a formation's, and the connections to formations. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "mpiio.h"

/* For a formation without a mount: the rest is a path in the formation of $BIVOUAC_DIR. */
#define PREFIX "bivouac:"
#define FORMATIONS_MAX 64

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* In the order of connecting; they stay until MPI is finalised. */
static bivouac *formations[FORMATIONS_MAX];
static int formation_count;
/* That of $BIVOUAC_DIR. */
static bivouac *named;

void *next_function(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);
    if (!found) {
        fprintf(stderr, "bivouac: no library has %s; link MPI behind libbivouac_mpiio, as a shared library\n", name);
        PMPI_Abort(MPI_COMM_WORLD, MPI_ERR_OTHER);
    }
    return found;
}

const char *path_within(const char *path)
{
    return strncmp(path, PREFIX, strlen(PREFIX)) == 0 ? path + strlen(PREFIX) : path;
}

/* Whether a device is a mount of a formation, as the kernel lists it. */
static int is_mount(dev_t device)
{
    FILE *list = fopen("/proc/self/mountinfo", "re");
    char *line = NULL, number[64];
    size_t room = 0;
    int found = 0;
    if (!list)
        return 0;
    snprintf(number, sizeof number, "%u:%u", major(device), minor(device));
    while (!found && getline(&line, &room, list) > 0) {
        char which[64];
        const char *type = strstr(line, " - ");
        found = sscanf(line, "%*s %*s %63s", which) == 1 && strcmp(which, number) == 0 && type &&
                strncmp(type + 3, "fuse.bivouac ", 13) == 0;
    }
    free(line);
    fclose(list);
    return found;
}

enum whose whose(const char *path)
{
    const char *off = getenv("BIVOUAC_MPIIO");
    if (off && strcmp(off, "0") == 0)
        return ALIEN;
    if (path_within(path) != path)
        return NAMED;
    struct stat st;
    if (stat(path, &st) != 0) {
        /* No path that is longer leads anywhere. */
        char directory[PATH_MAX];
        if (snprintf(directory, sizeof directory, "%s", path) >= (int)sizeof directory)
            return ALIEN;
        char *slash = strrchr(directory, '/');
        if (slash == directory)
            slash[1] = 0;
        else if (slash)
            *slash = 0;
        if (stat(slash ? directory : ".", &st) != 0)
            return ALIEN;
    } else if (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode)) {
        return ALIEN;
    }
    return major(st.st_dev) == 0 && is_mount(st.st_dev) ? MOUNTED : ALIEN;
}

bivouac *formation_named(int *class)
{
    const char *directory = getenv("BIVOUAC_DIR");
    pthread_mutex_lock(&lock);
    *class = MPI_SUCCESS;
    if (!named && !(directory && *directory)) {
        *class = MPI_ERR_BAD_FILE;
    } else if (!named) {
        named = bivouac_connect(directory, 0);
        if (!named)
            *class = errno == ENOENT ? MPI_ERR_BAD_FILE : class_of_errno(errno);
    }
    bivouac *formation = named;
    pthread_mutex_unlock(&lock);
    return formation;
}

bivouac_file *adopt(int fd, bivouac **formation, int *class)
{
    bivouac_file *file = NULL;
    pthread_mutex_lock(&lock);
    *class = MPI_SUCCESS;
    for (int i = 0; !file && i < formation_count; i++) {
        file = bivouac_open_descriptor(formations[i], fd);
        *formation = formations[i];
        if (!file && errno != EXDEV)
            break;
    }
    if (!file && (formation_count == 0 || errno == EXDEV) && formation_count < FORMATIONS_MAX) {
        bivouac *more = bivouac_connect_descriptor(fd);
        file = more ? bivouac_open_descriptor(more, fd) : NULL;
        if (more)
            formations[formation_count++] = more;
        *formation = more;
    }
    if (!file)
        *class = errno == ENOTTY || errno == EXDEV ? -1 : class_of_errno(errno);
    pthread_mutex_unlock(&lock);
    return file;
}

void leave_formations(void)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < formation_count; i++)
        bivouac_disconnect(formations[i]);
    formation_count = 0;
    bivouac_disconnect(named);
    named = NULL;
    pthread_mutex_unlock(&lock);
}
