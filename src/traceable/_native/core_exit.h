/* The exit of a program that has closed the descriptors of nsys's library. Part of core.c.
 *
 * A program that closes descriptors which it has not opened (`os.closerange(3, ...)`, as daemons do) closes those of
 * nsys's library too (2022.4.2). Its threads wait at them on; its destructor tells them to end, which they don't hear,
 * and waits for that for ever. So such a program ends before that destructor: everything that was registered since
 * this module was loaded has been called by then, and Python is over.
 *
 * Said to the launcher by an empty file, which becomes a note of the run. Where a descriptor has been opened again under
 * the same number, and in programs without this module, the launcher does what it can (launch/release.py).
 */
#ifdef __GLIBC__
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static size_t
exit_read(const char *task, const char *name, char *text, size_t size)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%.16s/%s", task, name);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? -1 : read(file, text, size - 1);
    if (file >= 0) {
        close(file);
    }
    text[length > 0 ? length : 0] = '\0';
    return length > 0 ? (size_t)length : 0;
}

/* Whether a thread of nsys's library waits at a descriptor that is closed: its system call's first argument. */
static int
exit_is_deaf(void)
{
    DIR *tasks = opendir("/proc/self/task");
    int deaf = 0;
    for (struct dirent *task; tasks != NULL && !deaf && (task = readdir(tasks)) != NULL;) {
        char text[256];
        unsigned long first;
        if (exit_read(task->d_name, "comm", text, sizeof text) && strncmp(text, "[NSys", 5) == 0
            && exit_read(task->d_name, "syscall", text, sizeof text) && sscanf(text, "%*s %lx", &first) == 1) {
            deaf = first < 1UL << 20 && fcntl((int)first, F_GETFD) < 0 && errno == EBADF;
        }
    }
    if (tasks != NULL) {
        closedir(tasks);
    }
    return deaf;
}

static void
exit_left(int status, void *Py_UNUSED(unused))
{
    if (!exit_is_deaf()) {
        return;
    }
    const char *run_dir = getenv("TRACEABLE_RUN_DIR");
    char path[4096];
    if (run_dir != NULL && snprintf(path, sizeof path, "%s/status.%d.closed", run_dir, (int)getpid()) < (int)sizeof path) {
        int file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
        if (file >= 0) {
            close(file);
        }
    }
    fflush(NULL);
    _exit(status);
}
#endif

/* Watch the exit of this process, where nsys's library is in it. */
static void
watch_exit(void)
{
#ifdef __GLIBC__
    static int watched;
    if (!watched && getenv("QUADD_INJECTION_PROXY") != NULL) {
        watched = 1;
        on_exit(exit_left, NULL);
    }
#endif
}
