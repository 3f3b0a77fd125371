/* Loaded into nsys by LD_PRELOAD: every process's environment and command line is empty for it.
 *
 * nsys (measured with 2022.4.2 and 2023.4.4) walks /proc at the start of a recording and stores in the report the
 * environment and the command line of each process that its user may read, including the launcher's and those of
 * unrelated programs, and has no option against it. With this library they look to nsys like those of a kernel thread,
 * which has neither. Nothing else is changed, and nothing in the recorded program: `exec_shim` removes this library
 * from its LD_PRELOAD. It has no effect on an nsys that does not read files through libc; `collectors/nsys/privacy.py`
 * searches the report for what was stored nevertheless.
 *
 * `exec_shim`, which nsys starts, has both this library and nsys's own. With --trace=osrt nsys's library intercepts
 * open() and similar functions in every other library, also for dlsym(), and opens its own files through this one: if
 * this one called the next open(), the two would call each other forever. So it makes the system call directly, and
 * opens a stream by a libc function that is not intercepted.
 *
 * It is not a Python module, although the build gives it the file name of one.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))

extern FILE *_IO_fopen(const char *path, const char *mode); /* glibc's fopen, and fopen64 where `long` has 64 bits */

static const char *instead_of(const char *path)
{
    if (path == NULL || strncmp(path, "/proc/", 6) != 0)
        return path;
    const char *number = path + 6, *end = number + strspn(number, "0123456789");
    if (end == number || (strcmp(end, "/environ") != 0 && strcmp(end, "/cmdline") != 0))
        return path;
    return "/dev/null";
}

static int opened(int folder, const char *path, int flags, mode_t mode)
{
    return (int)syscall(SYS_openat, folder, instead_of(path), flags, mode);
}

/* `mode` is only passed if a file may be created; it must not be read otherwise. */
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
        return opened(AT_FDCWD, path, flags, mode);                                                                    \
    }

#define OPENAT(name)                                                                                                   \
    EXPORTED int name(int folder, const char *path, int flags, ...)                                                    \
    {                                                                                                                  \
        MODE(flags)                                                                                                    \
        return opened(folder, path, flags, mode);                                                                      \
    }

/* A compiler with _FORTIFY_SOURCE replaces open() by this if it does not know the flags. */
#define FORTIFIED(name)                                                                                                \
    EXPORTED int name(const char *path, int flags)                                                                     \
    {                                                                                                                  \
        return opened(AT_FDCWD, path, flags, 0);                                                                       \
    }

#define FOPEN(name)                                                                                                    \
    EXPORTED FILE *name(const char *path, const char *mode)                                                            \
    {                                                                                                                  \
        return _IO_fopen(instead_of(path), mode);                                                                      \
    }

FORTIFIED(__open_2)
FORTIFIED(__open64_2)
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
FOPEN(fopen)
FOPEN(fopen64)
