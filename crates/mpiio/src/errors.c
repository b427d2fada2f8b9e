/* Error classes and error handlers of files. Codes are classes: words go to whom prints them, the fatal handler. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "mpiio.h"

int class_of_errno(int number)
{
    switch (number) {
    case 0: return MPI_SUCCESS;
    case ENOENT: return MPI_ERR_NO_SUCH_FILE;
    case EACCES:
    case EPERM:
    case EBADF: return MPI_ERR_ACCESS;
    case EROFS: return MPI_ERR_READ_ONLY;
    case ENOSPC: return MPI_ERR_NO_SPACE;
    case EDQUOT: return MPI_ERR_QUOTA;
    case EEXIST: return MPI_ERR_FILE_EXISTS;
    case EISDIR:
    case ENOTDIR:
    case ENAMETOOLONG:
    case ELOOP:
    case EXDEV: return MPI_ERR_BAD_FILE;
    case ETXTBSY:
    case EBUSY: return MPI_ERR_FILE_IN_USE;
    case ENOMEM: return MPI_ERR_NO_MEM;
    case EINVAL: return MPI_ERR_ARG;
    default: return MPI_ERR_IO;
    }
}

static pthread_mutex_t known_lock = PTHREAD_MUTEX_INITIALIZER;
/* Functions behind the program's handlers of files: MPI does not say them. */
static struct handler *known;
static size_t known_count;
/* Of files that are opened from now on. */
static struct handler of_new_files;
static int of_new_files_is_set;

struct handler handler_of_new_files(void)
{
    pthread_mutex_lock(&known_lock);
    if (!of_new_files_is_set)
        of_new_files = (struct handler){ MPI_ERRORS_RETURN, NULL };
    of_new_files_is_set = 1;
    struct handler handler = of_new_files;
    pthread_mutex_unlock(&known_lock);
    return handler;
}

/* One thread may set the handler of a file while another one's call fails. */
static struct handler handler_of(struct file *file)
{
    if (!file)
        return handler_of_new_files();
    pthread_mutex_lock(&known_lock);
    struct handler handler = file->handler;
    pthread_mutex_unlock(&known_lock);
    return handler;
}

static struct handler handler_behind(MPI_Errhandler handle)
{
    struct handler handler = { handle, NULL };
    pthread_mutex_lock(&known_lock);
    for (size_t i = 0; i < known_count; i++)
        if (known[i].handle == handle)
            handler = known[i];
    pthread_mutex_unlock(&known_lock);
    return handler;
}

static int is_fatal(MPI_Errhandler handle)
{
#ifdef MPI_ERRORS_ABORT
    if (handle == MPI_ERRORS_ABORT)
        return 1;
#endif
    return handle == MPI_ERRORS_ARE_FATAL;
}

static int report(struct file *file, struct handler handler, int class, const char *detail)
{
    if (handler.function) {
        MPI_File handle = file ? handle_of(file) : MPI_FILE_NULL;
        handler.function(&handle, &class);
    } else if (is_fatal(handler.handle)) {
        char text[MPI_MAX_ERROR_STRING] = "";
        int length = 0;
        PMPI_Error_string(class, text, &length);
        fprintf(stderr, "bivouac: MPI-IO on %s: %s%s%s\n", file ? file->path : "a file", text,
                detail && *detail ? ": " : "", detail ? detail : "");
        PMPI_Abort(MPI_COMM_WORLD, class);
    }
    return class;
}

int failed(struct file *file, int class, const char *detail)
{
    if (class == MPI_SUCCESS)
        return class;
    return report(file, handler_of(file), class, detail);
}

int agree(struct file *file, int class)
{
    int mine[3] = { class, __atomic_load_n(&file->is_far, __ATOMIC_RELAXED),
                    __atomic_load_n(&file->was_shown, __ATOMIC_RELAXED) }, all[3];
    if (PMPI_Allreduce(mine, all, 3, MPI_INT, MPI_MAX, file->comm))
        return class ? class : MPI_ERR_OTHER;
    __atomic_store_n(&file->is_near, all[2] && !all[1], __ATOMIC_RELAXED);
    if (all[1])
        file->trials = 0;
    return all[0];
}

static int create_handler(MPI_File_errhandler_function *function, MPI_Errhandler *handle)
{
    int class = REAL(PMPI_File_create_errhandler)(function, handle);
    if (class)
        return class;
    pthread_mutex_lock(&known_lock);
    size_t i = 0;
    while (i < known_count && known[i].handle != *handle)
        i++;
    if (i == known_count) {
        struct handler *more = realloc(known, (known_count + 1) * sizeof *more);
        if (more) {
            known = more;
            known_count++;
        }
    }
    if (i < known_count)
        known[i] = (struct handler){ *handle, function };
    pthread_mutex_unlock(&known_lock);
    return MPI_SUCCESS;
}

PUBLIC int MPI_File_create_errhandler(MPI_File_errhandler_function *function, MPI_Errhandler *handle)
{
    return create_handler(function, handle);
}
ALSO(MPI_File_create_errhandler)

PUBLIC int MPI_File_set_errhandler(MPI_File handle, MPI_Errhandler errhandler)
{
    struct file *file = file_of(handle);
    if (file) {
        if (errhandler == MPI_ERRHANDLER_NULL)
            return failed(file, MPI_ERR_ARG, "no error handler");
        struct handler handler = handler_behind(errhandler);
        pthread_mutex_lock(&known_lock);
        file->handler = handler;
        pthread_mutex_unlock(&known_lock);
        return MPI_SUCCESS;
    }
    int class = REAL(PMPI_File_set_errhandler)(handle, errhandler);
    if (class == MPI_SUCCESS && handle == MPI_FILE_NULL) {
        struct handler handler = handler_behind(errhandler);
        pthread_mutex_lock(&known_lock);
        of_new_files = handler;
        of_new_files_is_set = 1;
        pthread_mutex_unlock(&known_lock);
    }
    return class;
}
ALSO(MPI_File_set_errhandler)

PUBLIC int MPI_File_get_errhandler(MPI_File handle, MPI_Errhandler *errhandler)
{
    struct file *file = file_of(handle);
    if (!file)
        return REAL(PMPI_File_get_errhandler)(handle, errhandler);
    /* The program frees what it gets, and may have freed its own: it gets a handle of its own. */
    struct handler handler = handler_of(file);
    if (handler.function)
        return create_handler(handler.function, errhandler);
    *errhandler = handler.handle;
    return MPI_SUCCESS;
}
ALSO(MPI_File_get_errhandler)

PUBLIC int MPI_File_call_errhandler(MPI_File handle, int code)
{
    struct file *file = file_of(handle);
    if (!file)
        return REAL(PMPI_File_call_errhandler)(handle, code);
    report(file, handler_of(file), code, NULL);
    return MPI_SUCCESS;
}
ALSO(MPI_File_call_errhandler)
