/* Loaded into nsys by LD_PRELOAD: every process's environment and command line looks empty to it.
 *
 * nsys (measured with 2022.4.2 and 2023.4.4) walks /proc at the start of a recording and stores in the report the
 * environment and the command line of each process that its user may read, the launcher's and those of strangers
 * included, and has no option against it. To nsys they look as those of a kernel thread do, which has neither. Nothing
 * else is changed, and nothing of the program that is recorded: the bystander takes this library out of its LD_PRELOAD.
 * An nsys that does not ask libc for files would not notice it; what came into a report is looked for in nsys_seen.py.
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

/* libc's own functions, looked up before nsys has threads: dlsym() takes a lock that a child, forked while another thread
 * holds it, would wait for for ever. Constructors of other libraries may come before ours. */
#define NEXT(type, name)                                                                                               \
    static type *next_##name;                                                                                          \
    static type *find_##name(void)                                                                                     \
    {                                                                                                                  \
        return next_##name != NULL ? next_##name : (type *)dlsym(RTLD_NEXT, #name);                                    \
    }

typedef int open_type(const char *, int, ...);
typedef int openat_type(int, const char *, int, ...);
typedef int fortified_type(const char *, int);
typedef FILE *fopen_type(const char *, const char *);

#define OPEN(name)                                                                                                     \
    NEXT(open_type, name)                                                                                              \
    EXPORTED int name(const char *path, int flags, ...)                                                                \
    {                                                                                                                  \
        MODE(flags)                                                                                                    \
        return find_##name()(instead_of(path), flags, mode);                                                           \
    }

#define OPENAT(name)                                                                                                   \
    NEXT(openat_type, name)                                                                                            \
    EXPORTED int name(int folder, const char *path, int flags, ...)                                                    \
    {                                                                                                                  \
        MODE(flags)                                                                                                    \
        return find_##name()(folder, instead_of(path), flags, mode);                                                   \
    }

/* What a compiler with _FORTIFY_SOURCE makes of open() where it does not know the flags. */
#define FORTIFIED(name)                                                                                                \
    NEXT(fortified_type, name)                                                                                         \
    EXPORTED int name(const char *path, int flags)                                                                     \
    {                                                                                                                  \
        return find_##name()(instead_of(path), flags);                                                                 \
    }

#define FOPEN(name)                                                                                                    \
    NEXT(fopen_type, name)                                                                                             \
    EXPORTED FILE *name(const char *path, const char *mode)                                                            \
    {                                                                                                                  \
        return find_##name()(instead_of(path), mode);                                                                  \
    }

FORTIFIED(__open_2)
FORTIFIED(__open64_2)
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
FOPEN(fopen)
FOPEN(fopen64)

__attribute__((constructor)) static void look_up(void)
{
    next___open_2 = find___open_2();
    next___open64_2 = find___open64_2();
    next_open = find_open();
    next_open64 = find_open64();
    next_openat = find_openat();
    next_openat64 = find_openat64();
    next_fopen = find_fopen();
    next_fopen64 = find_fopen64();
}
