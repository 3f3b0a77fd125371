/* Where the recorder keeps what it hears: the process's directory, the files that grow under memory maps, and the
 * state of each thread. Included by recorder.c alone.
 *
 * Rules that hold everywhere here, because the program that is recorded must never notice:
 * - No file descriptor is kept. A program that closes every descriptor (daemons do) would hand our number to a file of
 *   its own, and we would write there. Each growth opens by path and closes again.
 * - Space is allocated before it is mapped. A store into a sparse file on a full disk is a SIGBUS.
 * - No malloc, which the program may have replaced by something that calls NVTX. Memory comes from mmap.
 * - In the slow paths signals are blocked (a handler may call NVTX), cancellation is off (open is a cancellation
 *   point) and errno is kept.
 */

#ifndef TRACEABLE_RECORDER_STORAGE_H
#define TRACEABLE_RECORDER_STORAGE_H

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "recorder_format.h"

#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

#define FIRST_EVENTS_SEGMENT (64 * 1024)
#define FIRST_SMALL_SEGMENT (16 * 1024)
#define LAST_SEGMENT (1024 * 1024) /* mapped memory of one thread: at most this much for events and for texts */
#define DEFAULT_MAX_BYTES (UINT64_C(2) << 30)
#define PATH_ROOM 64 /* for what is appended to the recording directory */

/* A file that grows by segments, of which the last is mapped. */
struct growing {
    uint64_t size;   /* of the file */
    char *map;       /* the mapped segment, NULL before the first */
    size_t mapped;   /* its length */
    char *cursor;    /* where the next entry goes */
    char *end;       /* of the mapped segment */
    size_t next;     /* the length that the next segment should have */
};

/* Texts seen lately, so that an unregistered message that repeats is stored once. */
#define CACHED_TEXT 55
#define CACHED_TEXTS 256
struct cached_text {
    uint64_t message; /* as in a record; 0: unused */
    uint8_t length;
    char bytes[CACHED_TEXT];
};

struct thread {
    struct growing events;
    volatile sig_atomic_t busy; /* an event is being written: a signal handler's own event is dropped */
    bool full;                  /* once an event was dropped, all later ones are: the nesting stays readable */
    uint64_t sequence;
    uint64_t ranges; /* started on this thread */
    uint64_t attributes; /* what the last KIND_ATTRIBUTES record said: its data and its word's bits */
    uint64_t attributes_set;
    uint32_t tid;
    uint32_t window; /* what `recorder.window` was at the thread's last event */
    struct growing text;
    struct thread *next;
    struct cached_text cache[CACHED_TEXTS];
};

enum recorder_state {
    STATE_NEW,     /* the injection was not initialised */
    STATE_ACTIVE,  /* the process has its directory */
    STATE_FORKED,  /* a forked child that gets its directory at its first event */
    STATE_OFF,     /* nothing can be recorded; said on stderr */
};

static struct {
    _Atomic int state;
    /* 0: everything is recorded. Else counted up at every opening and closing: odd is closed, even is open. */
    _Atomic uint32_t window;
    pthread_mutex_t lock;
    pthread_key_t thread_end;
    size_t page;
    uint64_t max_bytes;
    int64_t base_ns;
    struct process_header *header;
    struct growing names;
    struct thread *threads; /* with open files */
    struct thread *spare;   /* of threads that ended */
    uint64_t next_sequence; /* never restarts, not in a forked child either: range ids stay unique */
    char root[PATH_MAX];
    char directory[PATH_MAX + PATH_ROOM];
} recorder;

/* glibc keeps room in the static TLS block for libraries like this one; there a thread's state is one load away. */
#if defined(__GLIBC__)
#define FAST_TLS __attribute__((tls_model("initial-exec")))
#else
#define FAST_TLS
#endif
static __thread struct thread *self FAST_TLS;

static int64_t clock_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void say(const char *what, const char *detail) {
    char line[PATH_MAX + 256];
    int length = snprintf(line, sizeof line, "traceable: %s%s%s\n", what, detail[0] ? ": " : "", detail);
    if (length < 0)
        return;
    size_t room = (size_t)length < sizeof line ? (size_t)length : sizeof line - 1;
    if (write(STDERR_FILENO, line, room) < 0)
        return; /* stderr is closed: there is nobody to tell */
}

/* ---- the slow path's surroundings ---- */

struct surroundings {
    sigset_t signals;
    int cancel;
    int error;
};

static void lock_recorder(struct surroundings *saved) {
    sigset_t all;
    saved->error = errno;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &saved->signals);
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &saved->cancel);
    pthread_mutex_lock(&recorder.lock);
}

static void unlock_recorder(const struct surroundings *saved) {
    pthread_mutex_unlock(&recorder.lock);
    pthread_setcancelstate(saved->cancel, NULL);
    pthread_sigmask(SIG_SETMASK, &saved->signals, NULL);
    errno = saved->error;
}

static void *memory(size_t size) {
    void *got = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return got == MAP_FAILED ? NULL : got;
}

static uint64_t round_up(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

/* ---- growing files; every function below here wants the lock ---- */

/* Written zeros and not posix_fallocate: both make a later store safe from a full disk, but a store into a block that was
 * only fallocated has to convert the extent (ext4, 1 MiB segments: 20-30 ns a 32-byte range against 10), and file systems
 * without fallocate get the same code. */
static bool write_zeros(int file, uint64_t offset, uint64_t length) {
    static char zeros[64 * 1024]; /* never written, so it is the kernel's one zero page */
    while (length) {
        ssize_t wrote = pwrite(file, zeros, length < sizeof zeros ? length : sizeof zeros, (off_t)offset);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote <= 0)
            return false;
        offset += (uint64_t)wrote;
        length -= (uint64_t)wrote;
    }
    return true;
}

/* Allocate `length` bytes after `size` and map them, or return NULL and leave the file as it was. */
static char *extend(const char *path, uint64_t size, uint64_t length) {
    struct rlimit limit;
    /* Growing over this limit raises SIGXFSZ, which kills. */
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && size + length > limit.rlim_cur)
        return NULL;
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (file < 0)
        return NULL;
    char *map = MAP_FAILED;
    if (write_zeros(file, size, length))
        map = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, file, (off_t)size);
    if (map == MAP_FAILED)
        (void)!ftruncate(file, (off_t)size); /* where this fails too, the blocks stay allocated and unused */
    close(file);
    return map == MAP_FAILED ? NULL : map;
}

static void unmap(struct growing *file) {
    if (file->map)
        munmap(file->map, file->mapped);
    file->map = file->cursor = file->end = NULL;
    file->mapped = 0;
}

/* Take a segment of at least `least` bytes: the planned length, or as much as the cap and the disk still give. */
static bool grow(struct growing *file, const char *path, uint64_t least) {
    uint64_t smallest = round_up(least, recorder.page);
    uint64_t length = round_up(file->next > least ? file->next : least, recorder.page);
    for (; length >= smallest; length = length > smallest && length / 2 < smallest ? smallest : length / 2) {
        length = round_up(length, recorder.page);
        uint64_t before = atomic_load_explicit(&recorder.header->bytes, memory_order_relaxed);
        uint64_t left = before < recorder.max_bytes ? recorder.max_bytes - before : 0;
        char *map = length <= left ? extend(path, file->size, length) : NULL;
        if (map) {
            atomic_store_explicit(&recorder.header->bytes, before + length, memory_order_relaxed);
            unmap(file);
            file->map = file->cursor = map;
            file->mapped = length;
            file->end = map + length;
            file->size += length;
            file->next = length * 2 < LAST_SEGMENT ? length * 2 : LAST_SEGMENT;
            return true;
        }
        if (length == smallest)
            return false;
    }
    return false;
}

/* Unmap, and give the part that was never written back to the disk and to the cap. */
static void close_growing(struct growing *file, const char *path) {
    if (!file->map)
        return;
    uint64_t unused = (uint64_t)(file->end - file->cursor);
    unmap(file);
    if (unused && truncate(path, (off_t)(file->size - unused)) == 0)
        atomic_fetch_sub_explicit(&recorder.header->bytes, unused, memory_order_relaxed);
}

static void start_file(struct growing *file, const char *magic) {
    struct file_header *header = (struct file_header *)file->cursor;
    header->version = RECORDING_VERSION;
    atomic_thread_fence(memory_order_release);
    memcpy(header->magic, magic, sizeof header->magic);
    file->cursor += sizeof *header;
}

/* ---- the process ---- */

static size_t read_file(const char *path, char *into, size_t room) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return 0;
    ssize_t got = read(file, into, room);
    close(file);
    return got > 0 ? (size_t)got : 0;
}

/* Read both clocks at one moment: of several tries the one that was interrupted least. */
static void read_clocks(struct process_header *header) {
    int64_t narrowest = INT64_MAX;
    for (int i = 0; i < 5; i++) {
        int64_t before = clock_ns(CLOCK_MONOTONIC);
        int64_t real = clock_ns(CLOCK_REALTIME);
        int64_t after = clock_ns(CLOCK_MONOTONIC);
        if (after - before < narrowest) {
            narrowest = after - before;
            header->monotonic_ns = before + (after - before) / 2;
            header->realtime_ns = real;
        }
    }
}

static bool make_directory(void) {
    unsigned long long start = (unsigned long long)clock_ns(CLOCK_REALTIME);
    for (int i = 0; i < 100; i++) {
        snprintf(recorder.directory, sizeof recorder.directory, "%s/%ld-%llu", recorder.root, (long)getpid(), start + i);
        if (mkdir(recorder.directory, 0777) == 0)
            return true;
        if (errno != EEXIST)
            return false;
    }
    return false;
}

static void path_in_directory(char *path, size_t room, const char *name) {
    /* The room is there by construction; snprintf's result says so to the compiler. */
    if (snprintf(path, room, "%s/%s", recorder.directory, name) < 0)
        path[0] = 0;
}

static void replay_names(void);

/* Give this process its directory and header. Says why on stderr and turns the recorder off where that fails. */
static bool open_process(void) {
    char path[sizeof recorder.directory + PATH_ROOM];
    char *page = NULL;
    errno = 0;
    if (make_directory()) {
        path_in_directory(path, sizeof path, "process");
        page = extend(path, 0, round_up(sizeof(struct process_header), recorder.page));
    }
    if (!page) {
        snprintf(path, sizeof path, "%s: %s", recorder.root, errno ? strerror(errno) : "no room");
        say("nothing is recorded: can't write the recording directory", path);
        atomic_store(&recorder.state, STATE_OFF);
        return false;
    }
    struct process_header *header = (struct process_header *)page;
    header->version = RECORDING_VERSION;
    header->clock = CLOCK_KIND_MONOTONIC;
    header->pid = (uint32_t)getpid();
    header->parent_pid = (uint32_t)getppid();
    header->max_bytes = recorder.max_bytes;
    size_t length = read_file("/proc/self/comm", header->name, sizeof header->name - 1);
    if (length && header->name[length - 1] == '\n')
        header->name[length - 1] = 0;
    header->command_length = (uint32_t)read_file("/proc/self/cmdline", header->command, sizeof header->command);
    read_clocks(header);
    atomic_thread_fence(memory_order_release);
    memcpy(header->magic, PROCESS_MAGIC, sizeof header->magic);
    recorder.header = header;
    recorder.base_ns = header->monotonic_ns;
    recorder.names.next = FIRST_SMALL_SEGMENT;
    atomic_store(&recorder.state, STATE_ACTIVE);
    replay_names();
    return true;
}

static bool process_open(void) {
    int state = atomic_load(&recorder.state);
    return state == STATE_ACTIVE || (state == STATE_FORKED && open_process());
}

/* ---- threads ---- */

static void thread_path(char *path, size_t room, const struct thread *thread, const char *kind) {
    char name[PATH_ROOM];
    snprintf(name, sizeof name, "%06llu.%s", (unsigned long long)thread->sequence, kind);
    path_in_directory(path, room, name);
}

/* Forget a thread's recording; its memory waits for the next thread. */
static void retire(struct thread *thread) {
    memset(thread->cache, 0, sizeof thread->cache);
    thread->next = recorder.spare;
    recorder.spare = thread;
}

static bool grow_events(struct thread *thread) {
    char path[sizeof recorder.directory + PATH_ROOM];
    thread_path(path, sizeof path, thread, "events");
    while (thread->events.cursor < thread->events.end) {
        struct record *rest = (struct record *)thread->events.cursor;
        atomic_store_explicit(&rest->word, (uint64_t)KIND_SKIP << KIND_SHIFT, memory_order_release);
        thread->events.cursor += sizeof *rest;
    }
    if (grow(&thread->events, path, 1))
        return true;
    unmap(&thread->events);
    thread->full = true;
    return false;
}

/* Make the calling thread's state and file. A thread that finds no room for its file has a state that is full. */
static struct thread *open_thread(void) {
    struct thread *thread = recorder.spare;
    if (thread)
        recorder.spare = thread->next;
    else
        thread = memory(round_up(sizeof *thread, recorder.page));
    if (!thread)
        return NULL;
    memset(thread, 0, offsetof(struct thread, cache));
    thread->sequence = ++recorder.next_sequence;
    thread->tid = (uint32_t)syscall(SYS_gettid);
    thread->window = atomic_load_explicit(&recorder.window, memory_order_relaxed);
    thread->events.next = FIRST_EVENTS_SEGMENT;
    thread->text.next = FIRST_SMALL_SEGMENT;
    if (grow_events(thread)) {
        struct events_header *header = (struct events_header *)thread->events.cursor;
        header->sequence = thread->sequence;
        header->tid = thread->tid;
        prctl(PR_GET_NAME, header->name, 0, 0, 0);
        start_file(&thread->events, EVENTS_MAGIC);
        thread->events.cursor = thread->events.map + sizeof *header;
    }
    thread->next = recorder.threads;
    recorder.threads = thread;
    pthread_setspecific(recorder.thread_end, thread);
    self = thread;
    return thread;
}

/* Programs name their threads after starting them, so the name that stands at the end is the better one. */
static void write_last_name(const struct thread *thread, const char *path) {
    char name[16] = {0};
    int file = open(path, O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
    if (file < 0)
        return;
    if (prctl(PR_GET_NAME, name, 0, 0, 0) == 0 && thread->events.size)
        (void)!pwrite(file, name, sizeof name, offsetof(struct events_header, name));
    close(file);
}

/* Run by pthread when a thread ends. An event after this (other destructors run late) opens a new file. */
static void end_thread(void *state) {
    struct thread *thread = state;
    struct surroundings saved;
    char path[sizeof recorder.directory + PATH_ROOM];
    lock_recorder(&saved);
    self = NULL;
    struct thread **link = &recorder.threads;
    while (*link && *link != thread)
        link = &(*link)->next;
    if (*link) {
        *link = thread->next;
        thread_path(path, sizeof path, thread, "events");
        write_last_name(thread, path);
        close_growing(&thread->events, path);
        thread_path(path, sizeof path, thread, "text");
        close_growing(&thread->text, path);
        retire(thread);
    }
    unlock_recorder(&saved);
}

/* ---- fork: the child inherits the parent's maps, and a store into one would land in the parent's file ---- */

static void before_fork(void) { pthread_mutex_lock(&recorder.lock); }

static void after_fork_in_parent(void) { pthread_mutex_unlock(&recorder.lock); }

static void make_lock(void) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    /* Another library's fork handler may register a name while ours holds the lock. */
    pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&recorder.lock, &attributes);
    pthread_mutexattr_destroy(&attributes);
}

/* Close the window for a process that has not opened it: a forked child counts steps of its own. */
static void close_window(void) {
    uint32_t window = atomic_load(&recorder.window);
    if (window && window % 2 == 0)
        atomic_store(&recorder.window, window + 1);
}

static void after_fork_in_child(void) {
    make_lock(); /* the owner that the inherited lock remembers is the parent's thread */
    close_window();
    if (atomic_load(&recorder.state) == STATE_ACTIVE) {
        munmap(recorder.header, round_up(sizeof(struct process_header), recorder.page));
        recorder.header = NULL;
        unmap(&recorder.names);
        memset(&recorder.names, 0, sizeof recorder.names);
        atomic_store(&recorder.state, STATE_FORKED);
    }
    while (recorder.threads) {
        struct thread *thread = recorder.threads;
        recorder.threads = thread->next;
        unmap(&thread->events);
        unmap(&thread->text);
        retire(thread);
    }
    pthread_setspecific(recorder.thread_end, NULL);
    self = NULL;
}

#endif
