/* The process's directory, what each thread writes to, and fork. Included by recorder.c alone. */

#ifndef TRACEABLE_RECORDER_STORAGE_H
#define TRACEABLE_RECORDER_STORAGE_H

#include "recorder_ring.h"
#include "recorder_secrets.h"
#include "recorder_window.h"

/* ---- the process ---- */

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
        say("recording_dir_not_writable", "nothing is recorded: can't write the recording directory", path);
        atomic_store(&recorder.state, STATE_OFF);
        return false;
    }
    struct process_header *header = (struct process_header *)page;
    header->version = RECORDING_VERSION;
    header->clock = CLOCK_KIND_MONOTONIC;
    header->pid = (uint32_t)getpid();
    header->parent_pid = (uint32_t)getppid();
    header->max_bytes = recorder.max_bytes;
    header->segment_bytes = (uint32_t)recorder.ring.segment_bytes;
    header->ring_ns = recorder.ring.duration_ns;
    header->ring_max_bytes = recorder.ring.max_bytes;
    size_t length = read_file("/proc/self/comm", header->name, sizeof header->name - 1);
    if (length && header->name[length - 1] == '\n')
        header->name[length - 1] = 0;
    char command[sizeof header->command] = {0}, shown[sizeof command] = {0};
    header->command_length = (uint32_t)read_file("/proc/self/cmdline", command, sizeof command - 1);
    hide_secrets(command, header->command_length, header->command_length == sizeof command - 1, shown);
    memcpy(header->command, shown, sizeof shown); /* hidden before it is where a file's page is */
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
    if (has_ring())
        return next_segment(thread);
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
    thread->window = current_window();
    thread->events.next = FIRST_EVENTS_SEGMENT;
    thread->text.next = FIRST_SMALL_SEGMENT;
    if (grow_events(thread) && !has_ring()) {
        struct events_header *header = (struct events_header *)thread->events.cursor;
        header->sequence = thread->sequence;
        header->tid = thread->tid;
        header->pthread = (uint64_t)pthread_self();
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
        if (has_ring()) {
            close_segment(thread);
        } else {
            thread_path(path, sizeof path, thread, "events");
            write_last_name(thread, path);
            close_growing(&thread->events, path);
            thread_path(path, sizeof path, thread, "text");
            close_growing(&thread->text, path);
        }
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
    pthread_mutex_init(&recorder.dump_lock, NULL);
}

static void after_fork_in_child(void) {
    make_lock(); /* the owner that the inherited lock remembers is the parent's thread */
    window_after_fork();
    if (atomic_load(&recorder.state) == STATE_ACTIVE) {
        munmap(recorder.header, round_up(sizeof(struct process_header), recorder.page));
        recorder.header = NULL;
        unmap(&recorder.names);
        memset(&recorder.names, 0, sizeof recorder.names);
        leave_ring();
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
