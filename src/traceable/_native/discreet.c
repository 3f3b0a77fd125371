/* Loaded into nsys by LD_PRELOAD: every process's environment and command line looks empty to it.
 *
 * nsys (measured with 2022.4.2) walks /proc at the start of a recording and stores in the report the environment and the command
 * line of each process that its user may read, the launcher's and those of strangers included, and has no option against
 * it. To nsys they look as those of a kernel thread do, which has neither. Nothing else is changed, and nothing of the
 * program that is recorded: the bystander takes this library out of its LD_PRELOAD.
 *
 * It is no Python module, although the build gives it the file name of one.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define EXPORTED __attribute__((visibility("default")))

static const char *instead_of(const char *path)
{
    if (path == NULL || strncmp(path, "/proc/", 6) != 0)
        return path;
    const char *number = path + 6, *end = number + strspn(number, "0123456789");
    if (end == number || (strcmp(end, "/environ") != 0 && strcmp(end, "/cmdline") != 0))
        return path;
    return "/dev/null";
}

/* `mode` is there only where a file may be made; reading it where it is not would read what was never passed. */
#define MODE(flags)                                                                                                    \
    mode_t mode = 0;                                                                                                   \
    if ((flags) & (O_CREAT | __O_TMPFILE)) {                                                                           \
        va_list more;                                                                                                  \
        va_start(more, flags);                                                                                         \
        mode = va_arg(more, mode_t);                                                                                   \
        va_end(more);                                                                                                  \
    }

#define OPEN(name)                                                                                                     \
    EXPORTED int name(const char *path, int flags, ...)                                                                \
    {                                                                                                                  \
        MODE(flags)                                                                                                    \
        int (*next)(const char *, int, ...) = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, #name);                \
        return next(instead_of(path), flags, mode);                                                                    \
    }

#define OPENAT(name)                                                                                                   \
    EXPORTED int name(int folder, const char *path, int flags, ...)                                                    \
    {                                                                                                                  \
        MODE(flags)                                                                                                    \
        int (*next)(int, const char *, int, ...) = (int (*)(int, const char *, int, ...))dlsym(RTLD_NEXT, #name);      \
        return next(folder, instead_of(path), flags, mode);                                                            \
    }

#define FOPEN(name)                                                                                                    \
    EXPORTED FILE *name(const char *path, const char *mode)                                                            \
    {                                                                                                                  \
        FILE *(*next)(const char *, const char *) = (FILE * (*)(const char *, const char *)) dlsym(RTLD_NEXT, #name);  \
        return next(instead_of(path), mode);                                                                           \
    }

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
FOPEN(fopen)
FOPEN(fopen64)
