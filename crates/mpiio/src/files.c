/* Objects behind MPI_File; opening and closing, and what is asked of an open file. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "mpiio.h"

/* Number of the first of our files in Fortran; the MPI libraries count from 0. */
#define FORTRAN_FIRST 0x20000000

static pthread_rwlock_t files_lock = PTHREAD_RWLOCK_INITIALIZER;
static struct file **files;
static int files_room;

/* A handle of ours is the address of its file, which no other handle has while the file is open. */
struct file *file_of(MPI_File handle)
{
    struct file *found = NULL;
    pthread_rwlock_rdlock(&files_lock);
    for (int i = 0; !found && i < files_room; i++)
        if (files[i] && (void *)files[i] == (void *)handle)
            found = files[i];
    pthread_rwlock_unlock(&files_lock);
    return found;
}

MPI_File handle_of(struct file *file)
{
    return (MPI_File)(void *)file;
}

static int enter(struct file *file)
{
    pthread_rwlock_wrlock(&files_lock);
    int slot = 0;
    while (slot < files_room && files[slot])
        slot++;
    if (slot == files_room) {
        struct file **more = realloc(files, sizeof *more * (size_t)(files_room + 16));
        if (!more) {
            pthread_rwlock_unlock(&files_lock);
            return MPI_ERR_NO_MEM;
        }
        memset(more + files_room, 0, 16 * sizeof *more);
        files = more;
        files_room += 16;
    }
    files[slot] = file;
    file->slot = slot;
    pthread_rwlock_unlock(&files_lock);
    return MPI_SUCCESS;
}

static void forget(struct file *file)
{
    pthread_rwlock_wrlock(&files_lock);
    files[file->slot] = NULL;
    pthread_rwlock_unlock(&files_lock);
}

/* The file with a number of ours; NULL if there is none. */
static struct file *file_numbered(int number)
{
    struct file *file = NULL;
    pthread_rwlock_rdlock(&files_lock);
    if (number >= FORTRAN_FIRST && number - FORTRAN_FIRST < files_room)
        file = files[number - FORTRAN_FIRST];
    pthread_rwlock_unlock(&files_lock);
    return file;
}

/* The standard ABI leaves these to libraries for Fortran, which call those below. */
#ifndef MPI_ABI_VERSION
PUBLIC MPI_Fint MPI_File_c2f(MPI_File handle)
{
    struct file *file = file_of(handle);
    return file ? FORTRAN_FIRST + file->slot : REAL(PMPI_File_c2f)(handle);
}
ALSO(MPI_File_c2f)

PUBLIC MPI_File MPI_File_f2c(MPI_Fint number)
{
    struct file *file = file_numbered(number);
    return file ? handle_of(file) : REAL(PMPI_File_f2c)(number);
}
ALSO(MPI_File_f2c)
#endif

#if MPI_VERSION >= 5
PUBLIC int MPI_File_toint(MPI_File handle)
{
    struct file *file = file_of(handle);
    return file ? FORTRAN_FIRST + file->slot : REAL(PMPI_File_toint)(handle);
}
ALSO(MPI_File_toint)

PUBLIC MPI_File MPI_File_fromint(int number)
{
    struct file *file = file_numbered(number);
    return file ? handle_of(file) : REAL(PMPI_File_fromint)(number);
}
ALSO(MPI_File_fromint)
#endif

static int at_finalize(MPI_Comm comm, int key, void *value, void *state)
{
    (void)comm, (void)key, (void)value, (void)state;
    leave_formations();
    return MPI_SUCCESS;
}

/* MPI deletes the attributes of MPI_COMM_SELF before anything else when it is finalised. */
static void watch_finalize(void)
{
    static int watched;
    int key;
    if (!__atomic_exchange_n(&watched, 1, __ATOMIC_SEQ_CST) &&
        PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, at_finalize, &key, NULL) == MPI_SUCCESS)
        PMPI_Comm_set_attr(MPI_COMM_SELF, key, NULL);
}

static int check_amode(int amode)
{
    int ways = !!(amode & MPI_MODE_RDONLY) + !!(amode & MPI_MODE_WRONLY) + !!(amode & MPI_MODE_RDWR);
    if (ways != 1)
        return MPI_ERR_AMODE;
    if ((amode & MPI_MODE_RDONLY) && (amode & (MPI_MODE_CREATE | MPI_MODE_EXCL)))
        return MPI_ERR_AMODE;
    if ((amode & MPI_MODE_RDWR) && (amode & MPI_MODE_SEQUENTIAL))
        return MPI_ERR_AMODE;
    return MPI_SUCCESS;
}

/* Of new files, as the kernel does it for those of mounts. There is no way to ask for it and leave it. */
static mode_t mode_of_new_files(void)
{
    char line[128];
    unsigned mask = 022;
    FILE *status = fopen("/proc/self/status", "re");
    while (status && fgets(line, sizeof line, status))
        if (sscanf(line, "Umask: %o", &mask) == 1)
            break;
    if (status)
        fclose(status);
    return 0666 & ~mask;
}

static int flags_of(int amode)
{
    int flags = amode & MPI_MODE_RDONLY ? O_RDONLY : amode & MPI_MODE_WRONLY ? O_WRONLY : O_RDWR;
    return flags | O_CLOEXEC;
}

/* Opens the file itself; only one rank creates. */
static int open_data(struct file *file, int creates)
{
    int flags = flags_of(file->amode), class = MPI_SUCCESS;
    if (creates && (file->amode & MPI_MODE_CREATE))
        flags |= O_CREAT | (file->amode & MPI_MODE_EXCL ? O_EXCL : 0);
    if (!file->is_mounted) {
        file->formation = formation_named(&class);
        if (class)
            return class;
        file->data = bivouac_open(file->formation, file->path, flags, mode_of_new_files());
        return file->data ? MPI_SUCCESS : class_of_errno(errno);
    }
    int fd = open(file->path, flags, 0666);
    if (fd < 0)
        return class_of_errno(errno);
    file->data = adopt(fd, &file->formation, &class);
    close(fd);
    return class;
}

static void read_layout(struct file *file)
{
    char layout[256];
    ssize_t length = bivouac_fgetxattr(file->data, "user.bivouac.layout", layout, sizeof layout - 1);
    layout[length > 0 ? length : 0] = 0;
    file->stripe = layout_number(layout, "stripe=");
    file->stripe_count = layout_number(layout, "width=");
    file->base = layout_number(layout, "base=");
    int64_t targets = layout_number(layout, "targets=");
    file->is_far = targets <= 0 || bivouac_targets_here(file->data, NULL, 0) != targets;
    file->trials = NEAR_TRIALS;
    if (file->stripe <= 0)
        file->stripe = 1 << 20;
    if (file->stripe_count <= 0)
        file->stripe_count = 1;
}

/* Stripes of a file that this open made; a layout that cannot be is a hint like one that is not understood. */
static void set_layout(struct file *file, MPI_Info info)
{
    char layout[128];
    struct stat st;
    if (!(file->amode & MPI_MODE_CREATE) || bivouac_fstat(file->data, &st) != 0 || st.st_size > 0)
        return;
    hints_of_layout(info, layout, sizeof layout);
    if (*layout)
        bivouac_fsetxattr(file->data, "user.bivouac.layout", layout, strlen(layout), 0);
}

/* The shared pointer is the size of a file without a name, near the entry of the file that it is of. */
static int make_pointer(struct file *file)
{
    char *directory = strdup(file->path), *slash;
    struct stat st;
    int found;
    if (!directory)
        return MPI_ERR_NO_MEM;
    slash = strrchr(directory, '/');
    if (slash)
        slash[slash == directory] = 0;
    if (file->is_mounted)
        found = stat(slash ? directory : ".", &st);
    else
        found = bivouac_stat(file->formation, slash ? directory : "/", &st);
    free(directory);
    if (found == 0)
        file->pointer = bivouac_open_unnamed(file->formation, st.st_ino, 0600);
    if (!file->pointer || bivouac_fstat(file->pointer, &st) != 0)
        return class_of_errno(errno);
    file->pointer_ino = st.st_ino;
    return MPI_SUCCESS;
}

static void view_free(struct view *view)
{
    if (!view)
        return;
    type_free(&view->etype);
    type_free(&view->filetype);
    flat_free(&view->flat);
    free(view);
}

struct view *view_of(struct file *file)
{
    pthread_mutex_lock(&file->lock);
    struct view *view = file->view;
    view->users++;
    pthread_mutex_unlock(&file->lock);
    return view;
}

void view_leave(struct file *file, struct view *view)
{
    pthread_mutex_lock(&file->lock);
    int is_last = --view->users == 0;
    pthread_mutex_unlock(&file->lock);
    if (is_last)
        view_free(view);
}

int byte_offset(const struct view *view, int64_t offset, MPI_Offset *disp)
{
    if (offset < 0 || offset > INT64_MAX / view->unit || view->flat.size == 0)
        return MPI_ERR_ARG;
    struct cursor cursor = cursor_at(&view->flat, view->disp, offset * view->unit);
    *disp = cursor_place(&cursor).at;
    return MPI_SUCCESS;
}

/* Derived types may be freed by the program while the view is in use; predefined ones are nobody's. */
static int copy_type(MPI_Datatype type, MPI_Datatype *copy)
{
    *copy = type;
    return is_predefined(type) ? MPI_SUCCESS : PMPI_Type_dup(type, copy);
}

/* Places of a view go upwards, and where it is written they do not overlap. */
static int check_places(const struct flat *flat, int is_written)
{
    int64_t end = 0, last = -1;
    for (size_t i = 0; i < flat->count; i++) {
        const struct place *place = &flat->places[i];
        if (place->at < 0 || place->at < last || (is_written && place->at < end))
            return MPI_ERR_ARG;
        last = place->at;
        end = place->at + place->length;
    }
    /* Instances that reach into the next one are common where only one is used. */
    return MPI_SUCCESS;
}

static int fill_view(struct view *view, int is_written, MPI_Offset disp, MPI_Datatype etype, MPI_Datatype filetype,
                     const char *representation)
{
    struct flat unit;
    view->users = 1;
    view->etype = view->filetype = MPI_DATATYPE_NULL;
    if (etype == MPI_DATATYPE_NULL || filetype == MPI_DATATYPE_NULL)
        return MPI_ERR_TYPE;
    if (disp < 0)
        return MPI_ERR_ARG;
    if (!representation)
        return MPI_ERR_ARG;
    if (strcmp(representation, "external32") == 0)
        view->format = EXTERNAL32;
    else if (strcmp(representation, "native") != 0 && strcmp(representation, "internal") != 0)
        return MPI_ERR_UNSUPPORTED_DATAREP;
    snprintf(view->name, sizeof view->name, "%s", representation);
    view->disp = disp;
    int class = flatten(etype, view->format, &unit);
    if (class)
        return class;
    view->unit = unit.size;
    class = check_places(&unit, is_written);
    flat_free(&unit);
    if (!class)
        class = flatten(filetype, view->format, &view->flat);
    if (!class)
        class = check_places(&view->flat, is_written);
    if (!class && (view->unit == 0 || view->flat.size % view->unit != 0))
        class = MPI_ERR_ARG;
    if (!class)
        class = copy_type(etype, &view->etype);
    return class ? class : copy_type(filetype, &view->filetype);
}

static int make_view(struct file *file, struct view **made, MPI_Offset disp, MPI_Datatype etype, MPI_Datatype filetype,
                     const char *representation)
{
    struct view *view = calloc(1, sizeof *view);
    if (!view)
        return MPI_ERR_NO_MEM;
    int class = fill_view(view, !(file->amode & MPI_MODE_RDONLY), disp, etype, filetype, representation);
    if (class)
        view_free(view);
    else
        *made = view;
    return class;
}

static void file_free(struct file *file)
{
    if (!file)
        return;
    bivouac_close(file->pointer);
    bivouac_close(file->data);
    view_free(file->view);
    if (file->info != MPI_INFO_NULL)
        PMPI_Info_free(&file->info);
    if (file->comm != MPI_COMM_NULL)
        PMPI_Comm_free(&file->comm);
    pthread_mutex_destroy(&file->turn);
    pthread_mutex_destroy(&file->lock);
    room_free(file->room);
    free(file->path);
    free(file);
}

/* What the first rank has to say to the others. */
struct news {
    int64_t class;
    uint64_t pointer;
    int64_t position;
    int64_t reports;
    int64_t placement;
};

static int open_together(struct file *file, MPI_Info info)
{
    struct news news = { 0 };
    int class = MPI_SUCCESS, words[2];
    hints_read(file, info);
    if (file->rank == 0) {
        news.reports = reports();
        news.class = open_data(file, 1);
        if (!news.class) {
            set_layout(file, info);
            news.placement = placement_wanted(file);
            /* Where none can be made, only calls with shared pointers fail. */
            if (make_pointer(file) == MPI_SUCCESS)
                news.pointer = file->pointer_ino;
        }
        struct stat st;
        if (!news.class && (file->amode & MPI_MODE_APPEND)) {
            if (bivouac_fstat(file->data, &st) != 0)
                news.class = class_of_errno(errno);
            else if (st.st_size > 0 && news.pointer && bivouac_ftruncate(file->pointer, st.st_size) != 0)
                news.class = class_of_errno(errno);
            else
                news.position = st.st_size;
        }
        class = (int)news.class;
    }
    if (PMPI_Bcast(&news, sizeof news, MPI_BYTE, 0, file->comm))
        return MPI_ERR_OTHER;
    if (file->rank != 0) {
        file->pointer_ino = news.pointer;
        class = news.class ? (int)news.class : open_data(file, 0);
    }
    file->position = news.position;
    file->reports = (int)news.reports;
    file->pointer_used = news.position != 0;
    if (!class)
        class = make_view(file, &file->view, 0, MPI_BYTE, MPI_BYTE, "native");
    /* Who may not take its file away from the mount has the others leave it there, too. */
    words[0] = class;
    words[1] = class < 0;
    int all[2] = { 0 };
    if (PMPI_Allreduce(words, all, 2, MPI_INT, MPI_MAX, file->comm))
        return MPI_ERR_OTHER;
    if (all[0] <= 0 && all[1])
        return -1;
    if (all[0])
        return all[0];
    class = place_stripes(file, (enum placement)news.placement);
    read_layout(file);
    return class;
}

/* All have the file in their tables, or none: who had not would leave the others waiting in their next call. */
static int enter_together(struct file *file)
{
    int mine = enter(file);
    int class = agree(file, mine);
    if (class && !mine)
        forget(file);
    return class;
}

static struct file *file_new(const char *path, int amode, enum whose whose)
{
    struct file *file = calloc(1, sizeof *file);
    if (!file)
        return NULL;
    file->comm = MPI_COMM_NULL;
    file->info = MPI_INFO_NULL;
    file->handler = handler_of_new_files();
    file->amode = amode;
    file->is_mounted = whose == MOUNTED;
    file->path = strdup(path_within(path));
    pthread_mutex_init(&file->turn, NULL);
    pthread_mutex_init(&file->lock, NULL);
    if (file->path)
        return file;
    file_free(file);
    return NULL;
}

static int join(struct file *file, MPI_Comm comm)
{
    if (PMPI_Comm_dup(comm, &file->comm))
        return MPI_ERR_COMM;
    PMPI_Comm_set_errhandler(file->comm, MPI_ERRORS_RETURN);
    PMPI_Comm_rank(file->comm, &file->rank);
    PMPI_Comm_size(file->comm, &file->ranks);
    return MPI_SUCCESS;
}

PUBLIC int MPI_File_open(MPI_Comm comm, const char *path, int amode, MPI_Info info, MPI_File *handle)
{
    int between = 0;
    if (comm == MPI_COMM_NULL || !path || PMPI_Comm_test_inter(comm, &between) || between)
        return REAL(PMPI_File_open)(comm, path, amode, info, handle);
    enum whose mine = whose(path);
    /* All ranks, or none: a host without the mount leaves all to the MPI library. */
    struct file *file = mine == ALIEN ? NULL : file_new(path, amode, mine);
    int words[4] = { -(int)mine, amode, -amode, mine != ALIEN && !file }, all[4];
    int class = PMPI_Allreduce(words, all, 4, MPI_INT, MPI_MAX, comm) ? MPI_ERR_COMM : check_amode(amode);
    if (class != MPI_ERR_COMM && all[0] == ALIEN) {
        file_free(file);
        return REAL(PMPI_File_open)(comm, path, amode, info, handle);
    }
    *handle = MPI_FILE_NULL;
    if (!class && all[1] != -all[2])
        class = MPI_ERR_NOT_SAME;
    if (!class && all[3])
        class = MPI_ERR_NO_MEM;
    if (!class)
        class = join(file, comm);
    if (class) {
        file_free(file);
        return failed(NULL, class, path);
    }
    watch_finalize();
    class = open_together(file, info);
    if (class > 0)
        class = failed(NULL, class, path);
    if (!class)
        class = enter_together(file);
    if (class) {
        file_free(file);
        /* Ours has made it by now, if it was to be made. */
        return class > 0 ? class : REAL(PMPI_File_open)(comm, path, amode & ~MPI_MODE_EXCL, info, handle);
    }
    *handle = handle_of(file);
    return MPI_SUCCESS;
}
ALSO(MPI_File_open)

static int remove_path(int is_mounted, const char *path)
{
    int class = MPI_SUCCESS;
    if (is_mounted)
        return unlink(path) == 0 ? MPI_SUCCESS : class_of_errno(errno);
    bivouac *formation = formation_named(&class);
    if (!class && bivouac_unlink(formation, path) != 0)
        class = class_of_errno(errno);
    return class;
}

PUBLIC int MPI_File_close(MPI_File *handle)
{
    struct file *file = file_of(*handle);
    if (!file)
        return REAL(PMPI_File_close)(handle);
    if (file->split)
        return failed(file, MPI_ERR_OTHER, "a split collective call is under way");
    /* Others may still need the pointer, which is there while the first rank has it open. */
    int class = bivouac_close(file->data) == 0 ? MPI_SUCCESS : class_of_errno(errno);
    file->data = NULL;
    class = agree(file, class);
    if (file->amode & MPI_MODE_DELETE_ON_CLOSE) {
        int removed = file->rank == 0 ? remove_path(file->is_mounted, file->path) : MPI_SUCCESS;
        removed = agree(file, removed);
        class = class ? class : removed;
    }
    *handle = MPI_FILE_NULL;
    report_file(file);
    class = failed(file, class, "closing");
    forget(file);
    file_free(file);
    return class;
}
ALSO(MPI_File_close)

PUBLIC int MPI_File_delete(const char *path, MPI_Info info)
{
    enum whose mine = path ? whose(path) : ALIEN;
    if (mine == ALIEN)
        return REAL(PMPI_File_delete)(path, info);
    return failed(NULL, remove_path(mine == MOUNTED, path_within(path)), path);
}
ALSO(MPI_File_delete)

/* Has the first rank do what is done once, and all hear what came of it. */
static int once(struct file *file, int (*act)(struct file *, int64_t), int64_t argument)
{
    int class = file->rank == 0 ? act(file, argument) : MPI_SUCCESS;
    return agree(file, class);
}

static int cut(struct file *file, int64_t size)
{
    return bivouac_ftruncate(file->data, size) == 0 ? MPI_SUCCESS : class_of_errno(errno);
}

static int reserve(struct file *file, int64_t size)
{
    return bivouac_allocate(file->data, 0, size) == 0 ? MPI_SUCCESS : class_of_errno(errno);
}

static int resize(struct file *file, MPI_Offset size, int (*act)(struct file *, int64_t))
{
    int class = MPI_SUCCESS;
    int64_t bounds[2] = { size, -size }, all[2] = { 0 };
    if (PMPI_Allreduce(bounds, all, 2, MPI_INT64_T, MPI_MAX, file->comm))
        class = MPI_ERR_OTHER;
    else if (all[0] != -all[1])
        class = MPI_ERR_NOT_SAME;
    else if (size < 0)
        class = MPI_ERR_ARG;
    else if (file->amode & MPI_MODE_RDONLY)
        class = MPI_ERR_READ_ONLY;
    if (!class && !(act == reserve && size == 0))
        class = once(file, act, size);
    return failed(file, class, "size");
}

PUBLIC int MPI_File_set_size(MPI_File handle, MPI_Offset size)
{
    struct file *file = file_of(handle);
    return file ? resize(file, size, cut) : REAL(PMPI_File_set_size)(handle, size);
}
ALSO(MPI_File_set_size)

PUBLIC int MPI_File_preallocate(MPI_File handle, MPI_Offset size)
{
    struct file *file = file_of(handle);
    return file ? resize(file, size, reserve) : REAL(PMPI_File_preallocate)(handle, size);
}
ALSO(MPI_File_preallocate)

PUBLIC int MPI_File_get_size(MPI_File handle, MPI_Offset *size)
{
    struct file *file = file_of(handle);
    struct stat st;
    if (!file)
        return REAL(PMPI_File_get_size)(handle, size);
    if (bivouac_fstat(file->data, &st) != 0)
        return failed(file, class_of_errno(errno), bivouac_error());
    *size = st.st_size;
    return MPI_SUCCESS;
}
ALSO(MPI_File_get_size)

PUBLIC int MPI_File_get_group(MPI_File handle, MPI_Group *group)
{
    struct file *file = file_of(handle);
    return file ? PMPI_Comm_group(file->comm, group) : REAL(PMPI_File_get_group)(handle, group);
}
ALSO(MPI_File_get_group)

PUBLIC int MPI_File_get_amode(MPI_File handle, int *amode)
{
    struct file *file = file_of(handle);
    if (!file)
        return REAL(PMPI_File_get_amode)(handle, amode);
    *amode = file->amode;
    return MPI_SUCCESS;
}
ALSO(MPI_File_get_amode)

PUBLIC int MPI_File_set_info(MPI_File handle, MPI_Info info)
{
    struct file *file = file_of(handle);
    if (!file)
        return REAL(PMPI_File_set_info)(handle, info);
    hints_read(file, info);
    return MPI_SUCCESS;
}
ALSO(MPI_File_set_info)

PUBLIC int MPI_File_get_info(MPI_File handle, MPI_Info *info)
{
    struct file *file = file_of(handle);
    if (!file)
        return REAL(PMPI_File_get_info)(handle, info);
    *info = hints_used(file);
    return *info == MPI_INFO_NULL ? failed(file, MPI_ERR_NO_MEM, "info") : MPI_SUCCESS;
}
ALSO(MPI_File_get_info)

static int seek_pointer(struct file *file, int64_t to)
{
    int class = file->pointer_ino ? pointer_of(file) : MPI_SUCCESS;
    if (class || !file->pointer_ino)
        return class;
    return bivouac_ftruncate(file->pointer, to) == 0 ? MPI_SUCCESS : class_of_errno(errno);
}

/* In sequential mode a view begins where the shared pointer is, and nowhere else. */
static int current_displacement(struct file *file, MPI_Offset *disp)
{
    int64_t at = 0, said[2] = { 0, 0 };
    int class = agree(file, *disp == MPI_DISPLACEMENT_CURRENT ? MPI_SUCCESS : MPI_ERR_ARG);
    if (class)
        return class;
    if (file->rank == 0) {
        class = claim(file, 0, &at);
        struct view *view = view_of(file);
        if (!class)
            class = byte_offset(view, at, disp);
        view_leave(file, view);
        said[0] = class;
        said[1] = *disp;
    }
    if (PMPI_Bcast(said, 2, MPI_INT64_T, 0, file->comm))
        return MPI_ERR_OTHER;
    *disp = said[1];
    return (int)said[0];
}

PUBLIC int MPI_File_set_view(MPI_File handle, MPI_Offset disp, MPI_Datatype etype, MPI_Datatype filetype,
                             const char *representation, MPI_Info info)
{
    struct file *file = file_of(handle);
    if (!file)
        return REAL(PMPI_File_set_view)(handle, disp, etype, filetype, representation, info);
    struct view *view = NULL;
    int class = MPI_SUCCESS;
    if (file->amode & MPI_MODE_SEQUENTIAL)
        class = current_displacement(file, &disp);
    if (!class)
        class = make_view(file, &view, disp, etype, filetype, representation);
    int mine[2] = { class, file->pointer_used }, all[2] = { 0 };
    if (PMPI_Allreduce(mine, all, 2, MPI_INT, MPI_MAX, file->comm))
        all[0] = MPI_ERR_OTHER;
    if (!all[0] && all[1])
        all[0] = once(file, seek_pointer, 0);
    if (all[0]) {
        view_free(view);
        return failed(file, class ? class : all[0], "view");
    }
    pthread_mutex_lock(&file->turn);
    pthread_mutex_lock(&file->lock);
    struct view *old = file->view;
    file->view = view;
    file->position = 0;
    file->pointer_used = 0;
    pthread_mutex_unlock(&file->lock);
    pthread_mutex_unlock(&file->turn);
    view_leave(file, old);
    if (info != MPI_INFO_NULL)
        hints_read(file, info);
    return MPI_SUCCESS;
}
ALSO(MPI_File_set_view)

PUBLIC int MPI_File_get_view(MPI_File handle, MPI_Offset *disp, MPI_Datatype *etype, MPI_Datatype *filetype,
                             char *representation)
{
    struct file *file = file_of(handle);
    if (!file)
        return REAL(PMPI_File_get_view)(handle, disp, etype, filetype, representation);
    struct view *view = view_of(file);
    *disp = view->disp;
    strcpy(representation, view->name);
    int class = copy_type(view->etype, etype);
    if (!class && (class = copy_type(view->filetype, filetype)))
        type_free(etype);
    view_leave(file, view);
    return failed(file, class, "view");
}
ALSO(MPI_File_get_view)

int extent_of(struct file *file, MPI_Datatype type, MPI_Count *extent)
{
    struct flat flat;
    struct view *view = view_of(file);
    int class = flatten(type, view->format, &flat);
    view_leave(file, view);
    if (class)
        return failed(file, class, "type");
    *extent = flat.extent;
    flat_free(&flat);
    return MPI_SUCCESS;
}

PUBLIC int MPI_File_get_type_extent(MPI_File handle, MPI_Datatype type, MPI_Aint *extent)
{
    struct file *file = file_of(handle);
    MPI_Count wide = 0;
    if (!file)
        return REAL(PMPI_File_get_type_extent)(handle, type, extent);
    int class = extent_of(file, type, &wide);
    *extent = (MPI_Aint)wide;
    return class;
}
ALSO(MPI_File_get_type_extent)

PUBLIC int MPI_File_set_atomicity(MPI_File handle, int flag)
{
    struct file *file = file_of(handle);
    if (!file)
        return REAL(PMPI_File_set_atomicity)(handle, flag);
    int words[2] = { !!flag, -!!flag }, all[2] = { 0 };
    if (PMPI_Allreduce(words, all, 2, MPI_INT, MPI_MAX, file->comm))
        return failed(file, MPI_ERR_OTHER, "atomicity");
    if (all[0] != -all[1])
        return failed(file, MPI_ERR_NOT_SAME, "atomicity");
    file->atomic = !!flag;
    return MPI_SUCCESS;
}
ALSO(MPI_File_set_atomicity)

PUBLIC int MPI_File_get_atomicity(MPI_File handle, int *flag)
{
    struct file *file = file_of(handle);
    if (!file)
        return REAL(PMPI_File_get_atomicity)(handle, flag);
    *flag = file->atomic;
    return MPI_SUCCESS;
}
ALSO(MPI_File_get_atomicity)

PUBLIC int MPI_File_sync(MPI_File handle)
{
    struct file *file = file_of(handle);
    if (!file)
        return REAL(PMPI_File_sync)(handle);
    int class = bivouac_fsync(file->data) == 0 ? MPI_SUCCESS : class_of_errno(errno);
    return failed(file, agree(file, class), "sync");
}
ALSO(MPI_File_sync)
