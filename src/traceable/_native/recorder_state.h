/* What the recorder knows of its process and of each thread, and what every part of it does the same way.
 *
 * Rules that hold everywhere here, because the program that is recorded must never notice:
 * - No file descriptor is kept. A program that closes every descriptor (daemons do) would hand our number to a file of
 *   its own, and we would write there. Each growth opens by path and closes again.
 * - Space is allocated before it is mapped. A store into a sparse file on a full disk is a SIGBUS.
 * - No malloc, which the program may have replaced by something that calls NVTX. Memory comes from mmap.
 * - In the slow paths signals are blocked (a handler may call NVTX), cancellation is off (open is a cancellation
 *   point) and errno is kept.
 */

#ifndef TRACEABLE_RECORDER_STATE_H
#define TRACEABLE_RECORDER_STATE_H

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

struct segment;

struct thread {
    struct growing events; /* with a flight recorder `cursor` and `end` alone, which lie in the segment */
    struct segment *segment;
    volatile sig_atomic_t busy; /* an event is being written: a signal handler's own event is dropped */
    bool texts_seen;            /* the cache holds something */
    bool full;                  /* once an event was dropped, all later ones are: the nesting stays readable */
    uint64_t sequence;
    uint64_t ranges; /* started on this thread */
    uint64_t attributes; /* what the last KIND_ATTRIBUTES record said: its data and its word's bits */
    uint64_t attributes_set;
    uint32_t tid;
    uint32_t window; /* what `*recorder.window` was at the thread's last event */
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

/* A piece of the flight recorder's memory, which one thread at a time writes to. */
struct segment {
    char *map;
    struct segment *older, *newer; /* among the retired ones; `newer` alone among the unused ones */
    char *rest;          /* of a retired one: where the next thread may go on, NULL where it is full */
    int64_t retired_ns;  /* no event in it is later; INT64_MAX while a thread has it */
};

struct ring {
    size_t segment_bytes; /* 0: there is no flight recorder, everything is kept */
    uint64_t duration_ns; /* 0: as long as there is room */
    uint64_t max_bytes;   /* 0: as much as the duration takes */
    struct segment *segments;
    size_t count, max_count;
    struct segment *unused;
    struct segment *oldest, *newest; /* retired, in the order in which they were */
    uint64_t ordinal;
    int64_t keep_ns; /* while a dump copies: what is not older than this stays */
    struct dump {
        size_t count; /* how many segments there were when it began; 0: no dump is under way */
        size_t first, done; /* with which one it began, and how many it has copied from there on, around the end */
        uint64_t ordinal;   /* of the segment that was begun last before it */
        int64_t forgotten_ns; /* what is not later than this is not in the copy */
    } dump;
    char *spare;     /* room for one segment */
    uint16_t *places;
};

static struct {
    _Atomic int state;
    /* Whose window it is, recorder_window.h. 0: everything is recorded. Else counted up at every opening and closing:
     * odd is closed, even is open. */
    _Atomic(_Atomic uint32_t *) window;
    _Atomic uint32_t unshared_window; /* before there is a page for it */
    pid_t window_owner;               /* the process that `window` is of; another one follows it. 0: of none yet */
    pthread_mutex_t lock;
    pthread_mutex_t dump_lock; /* one dump at a time */
    pthread_key_t thread_end;
    size_t page;
    uint64_t max_bytes;
    int64_t base_ns;
    struct process_header *header;
    struct growing names;
    struct ring ring;
    struct thread *threads; /* with open files */
    struct thread *spare;   /* of threads that ended */
    uint64_t next_sequence; /* never restarts, not in a forked child either: range ids stay unique */
    char root[PATH_MAX];
    char directory[PATH_MAX + PATH_ROOM];
} recorder = {.window = &recorder.unshared_window};

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

static void say(const char *code, const char *what, const char *detail) {
    char line[PATH_MAX + 256];
    int length = snprintf(line, sizeof line, "traceable: %s%s%.*s [%s]\n", what, detail[0] ? ": " : "", PATH_MAX, detail,
                          code); /* however long the detail, the code is there */
    if (length < 0)
        return;
    size_t room = (size_t)length < sizeof line ? (size_t)length : sizeof line - 1;
    for (size_t i = 0; i < room - 1; i++) /* whatever a path or a variable holds, it steers no terminal */
        if ((unsigned char)line[i] < ' ' || line[i] == 0x7f)
            line[i] = '?';
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

static void drop_event(void) {
    if (atomic_load(&recorder.state) == STATE_ACTIVE)
        atomic_fetch_add_explicit(&recorder.header->dropped, 1, memory_order_relaxed);
}

static inline uint64_t now(void) { return (uint64_t)(clock_ns(CLOCK_MONOTONIC) - recorder.base_ns); }

static inline void put(struct thread *thread, enum record_kind kind, uint64_t value, uint64_t data) {
    struct record *record = (struct record *)thread->events.cursor;
    record->data = data;
    atomic_store_explicit(&record->word, (uint64_t)kind << KIND_SHIFT | (value & VALUE_MASK), memory_order_release);
    thread->events.cursor += sizeof *record;
}

static void path_in_directory(char *path, size_t room, const char *name) {
    /* The room is there by construction; snprintf's result says so to the compiler. */
    if (snprintf(path, room, "%s/%s", recorder.directory, name) < 0)
        path[0] = 0;
}

#endif
