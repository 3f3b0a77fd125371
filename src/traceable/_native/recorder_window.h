/* Windows: whether this process records, which it decides itself or takes from the process that started it.
 *
 * `recorder.window` points to a counter: of this process, or of an ancestor. A process that gates itself has its counter
 * in a page that its forked children share, backed by `.window.<pid>` in the recording directory, where all others that
 * descend from it find it. A child follows the nearest ancestor that has one until it calls traceable_recorder_gate()
 * itself. Included by recorder_storage.h alone.
 */

#ifndef TRACEABLE_RECORDER_WINDOW_H
#define TRACEABLE_RECORDER_WINDOW_H

#include "recorder_files.h"

#define MOST_ANCESTORS 16

struct window_page {
    _Atomic uint32_t window;
    uint64_t started; /* when its process was, as /proc has it: numbers of processes come again */
};

static inline uint32_t current_window(void) {
    return atomic_load_explicit(atomic_load_explicit(&recorder.window, memory_order_acquire), memory_order_relaxed);
}

static bool is_shared(void) { return atomic_load(&recorder.window) != &recorder.unshared_window; }

/* Read the parent of a process and when it was started; false where there is no such process. */
static bool read_process(long pid, long *parent, uint64_t *started) {
    char path[64], stat[1024];
    unsigned long long ticks = 0;
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    size_t length = read_file(path, stat, sizeof stat - 1);
    stat[length] = 0;
    const char *fields = strrchr(stat, ')'); /* the name before it may hold anything */
    if (!fields || sscanf(fields, ") %*c %ld %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu",
                          parent, &ticks) != 2)
        return false;
    *started = ticks;
    return true;
}

static bool window_path(char *path, size_t room, long pid) {
    const char *root = getenv("TRACEABLE_RECORDING_DIR");
    if (!root || root[0] != '/')
        return false;
    int length = snprintf(path, room, "%s/.window.%ld", root, pid);
    return length > 0 && (size_t)length < room;
}

/* A page for a counter of this process, for its children to map; where there is no file, for those that it forks. */
static _Atomic uint32_t *make_window_page(void) {
    char path[PATH_MAX];
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    void *map = NULL;
    if (window_path(path, sizeof path, (long)getpid())) {
        char *name = strrchr(path, '/');
        *name = 0;
        (void)!mkdir(path, 0777);
        *name = '/';
        unlink(path); /* of an earlier process of this number, which others may still have mapped */
        map = extend(path, 0, page);
        long parent;
        uint64_t started;
        if (map && read_process((long)getpid(), &parent, &started))
            ((struct window_page *)map)->started = started;
    }
    if (!map)
        map = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return map == MAP_FAILED ? &recorder.unshared_window : &((struct window_page *)map)->window;
}

/* Decide for this process from here on. What it follows by then stays mapped: a thread may be looking at it. */
static void lead_window(void) {
    uint32_t window = current_window();
    _Atomic uint32_t *own = make_window_page();
    atomic_store(own, window ? window | 1 : 0);
    atomic_store(&recorder.window, own);
    recorder.window_owner = getpid();
}

static const struct window_page *map_window_page(long pid) {
    char path[PATH_MAX];
    struct stat status;
    int file = window_path(path, sizeof path, pid) ? open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW) : -1;
    if (file < 0)
        return NULL;
    bool whole = fstat(file, &status) == 0 && status.st_size >= (off_t)sizeof(struct window_page);
    void *map = whole ? mmap(NULL, sizeof(struct window_page), PROT_READ, MAP_SHARED, file, 0) : MAP_FAILED;
    close(file);
    return map == MAP_FAILED ? NULL : map;
}

/* Follow the nearest ancestor that gates itself; whether this process follows one. */
static bool follow_window(void) {
    if (recorder.window_owner == getpid())
        return false;
    if (is_shared()) /* a forked child of one that does */
        return true;
    long pid = (long)getppid(), parent = 0;
    uint64_t started = 0;
    for (int i = 0; i < MOST_ANCESTORS && pid > 1 && read_process(pid, &parent, &started); i++, pid = parent) {
        const struct window_page *page = map_window_page(pid);
        if (page && page->started == started) {
            atomic_store(&recorder.window, (_Atomic uint32_t *)&page->window);
            return true;
        }
        if (page)
            munmap((void *)page, sizeof *page);
    }
    return false;
}

/* Open or close the window of this process. */
static void set_window(bool open) {
    if (recorder.window_owner != getpid())
        lead_window();
    _Atomic uint32_t *own = atomic_load(&recorder.window);
    uint32_t window = atomic_load(own);
    if ((window % 2 == 1 || window == 0) && open)
        atomic_store(own, window % 2 ? window + 1 : 2);
    else if (!open && window % 2 == 0)
        atomic_store(own, window + 1);
}

/* Close the window in a forked child that shares none: it has not opened it. */
static void window_after_fork(void) {
    uint32_t window = current_window();
    if (!is_shared() && window && window % 2 == 0)
        atomic_store(&recorder.unshared_window, window + 1);
}

#endif
