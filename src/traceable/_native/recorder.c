/* The embedded recorder: an NVTX injection library that writes every range and mark of a process to disk.
 *
 * NVTX loads it where NVTX_INJECTION64_PATH names it, and calls InitializeInjectionNvtx2 once for each shared library
 * that holds an NVTX instance; all of them share this one recorder. It writes to TRACEABLE_RECORDING_DIR, in the layout
 * of recorder_format.h, through maps of preallocated files: what was written is safe from any death of the process,
 * kill -9 included. It computes nothing: `traceable.collect` pairs, names and exports afterwards.
 * A gated process (TRACEABLE_RECORDING_GATED=1) records only within windows, which it opens itself. A flight recorder
 * (TRACEABLE_FLIGHT_RECORDER) keeps what came last in a ring, recorder_ring.h, and copies it when asked to.
 *
 * The extension initialiser (InitializeInjectionNvtxExtension) is left out on purpose: with one exported,
 * nvtxDomainIsEnabled asks us, without one it is true, and nvtx >= 0.2.12 for Python hands out real domains only then.
 *
 * The clock is CLOCK_MONOTONIC through the vDSO: 47 ns a push and pop, where the bare counter gave 28 and would need
 * calibration anchors and an invariant counter. Both are far below nsys's 195-400, so the simple clock it is;
 * `process_header.clock` has room for another.
 */

#define _GNU_SOURCE
#include <stddef.h>

#include "recorder_dump.h"
#include "recorder_names.h"
#include "recorder_storage.h"
#include "recorder_text.h"

#define NVTX_NO_IMPL /* the types and the tool's side of the interface, not the client's functions */
#include <nvtx3/nvToolsExt.h>

/* ---- the hot path ---- */

static bool cut(struct thread *thread, uint32_t window);

static __attribute__((noinline)) struct thread *enter_slowly(struct thread *thread) {
    uint32_t window = current_window();
    if (window % 2) /* outside of all windows: neither recorded nor lost */
        return NULL;
    if (thread && thread->busy) { /* this is a signal handler inside another event of the same thread */
        drop_event();
        return NULL;
    }
    if (thread)
        return cut(thread, window) ? thread : NULL;
    if (atomic_load(&recorder.state) == STATE_OFF)
        return NULL;
    struct surroundings saved;
    lock_recorder(&saved);
    if (self) { /* a signal handler got here first */
        thread = self;
    } else if (process_open()) {
        thread = open_thread();
        if (!thread)
            drop_event();
    }
    unlock_recorder(&saved);
    return thread;
}

static inline struct thread *enter(void) {
    struct thread *thread = self;
    uint32_t window = current_window();
    /* A thread never holds an odd number, so that a closed window is seen by the same comparison as a new one. */
    if (UNLIKELY(!thread || thread->busy || thread->window != window)) {
        thread = enter_slowly(thread);
        if (!thread)
            return NULL;
    }
    thread->busy = 1;
    atomic_signal_fence(memory_order_seq_cst);
    return thread;
}

static inline void leave(struct thread *thread) {
    atomic_signal_fence(memory_order_seq_cst);
    thread->busy = 0;
}

static __attribute__((noinline)) bool make_room(struct thread *thread) {
    bool grown = false;
    if (!thread->full) {
        struct surroundings saved;
        lock_recorder(&saved);
        grown = grow_events(thread);
        unlock_recorder(&saved);
    }
    if (!grown)
        drop_event();
    return grown;
}

/* Make room for all records of an event, so that an event is never half dropped. Counts the event where there is none. */
static inline bool room_for(struct thread *thread, size_t records) {
    size_t left = (size_t)(thread->events.end - thread->events.cursor);
    return LIKELY(left >= records * sizeof(struct record)) || make_room(thread);
}

/* Begin a window on a thread that recorded before it was opened. */
static bool cut(struct thread *thread, uint32_t window) {
    thread->busy = 1;
    atomic_signal_fence(memory_order_seq_cst);
    bool fits = room_for(thread, 1);
    if (fits) {
        put(thread, KIND_CUT, 0, 0);
        thread->window = window;
    }
    leave(thread);
    return fits;
}

/* ---- events ---- */

/* The message's number as it stands in a record. `*stored` becomes false where it found no room. */
static inline uint64_t message_of(struct thread *thread, int32_t type, nvtxMessageValue_t value, bool *stored) {
    if (!value.ascii)
        return 0;
    switch (type) {
    case NVTX_MESSAGE_TYPE_REGISTERED:
        return ((const struct name *)value.registered)->id;
    case NVTX_MESSAGE_TYPE_ASCII:
        return message_of_bytes(thread, value.ascii, strlen(value.ascii), stored);
    case NVTX_MESSAGE_TYPE_UNICODE:
        return message_of_wide(thread, value.unicode, stored);
    default:
        return 0;
    }
}

static inline uint32_t domain_id(nvtxDomainHandle_t domain) { return domain ? ((const struct name *)domain)->id : 0; }

static inline bool has_payload(const nvtxEventAttributes_t *attributes) {
    return attributes->payloadType >= NVTX_PAYLOAD_TYPE_UNSIGNED_INT64 && attributes->payloadType <= NVTX_PAYLOAD_TYPE_FLOAT;
}

static inline void put_attributes(struct thread *thread, const nvtxEventAttributes_t *event) {
    uint64_t set = 0, attributes = 0;
    if (event) {
        bool colored = event->colorType == NVTX_COLOR_ARGB;
        set = (uint64_t)colored | (uint64_t)(event->category != 0) << 1;
        attributes = (uint64_t)event->category << 32 | (colored ? event->color : 0);
    }
    if (UNLIKELY(set != thread->attributes_set || attributes != thread->attributes)) {
        put(thread, KIND_ATTRIBUTES, set, attributes);
        thread->attributes_set = set;
        thread->attributes = attributes;
    }
    if (event && has_payload(event))
        put(thread, KIND_PAYLOAD, (uint64_t)event->payloadType, event->payload.ullValue);
}

/* Record a push, start or mark; a start's range id is returned, in every case a new one. */
static inline uint64_t record_event(enum record_kind kind, nvtxDomainHandle_t domain, const nvtxEventAttributes_t *event) {
    struct thread *thread = enter();
    if (!thread)
        return 0;
    /* 23 bits of thread, 40 of count: unique in the process and its forks, positive in SQLite. */
    uint64_t range = kind == KIND_START ? (thread->sequence << 40 & INT64_MAX) | ++thread->ranges : 0;
    bool stored = true;
    /* Before the message is looked for: in a ring a text is known to the segment of its event alone. */
    if (room_for(thread, ROOM_OF_EVENT / sizeof(struct record))) {
        uint64_t message = event ? message_of(thread, event->messageType, event->message, &stored) : 0;
        if (!stored) {
            drop_event();
        } else {
            put_attributes(thread, event);
            if (kind == KIND_START)
                put(thread, KIND_RANGE_ID, 0, range);
            put(thread, kind, now(), (uint64_t)domain_id(domain) << MESSAGE_BITS | message);
        }
    }
    leave(thread);
    return range;
}

static inline uint64_t record_plain(enum record_kind kind, int32_t type, const void *text) {
    nvtxEventAttributes_t event = {.messageType = type, .message.ascii = text};
    return record_event(kind, NULL, &event);
}

static inline void record_close(enum record_kind kind, uint64_t data) {
    struct thread *thread = enter();
    if (!thread)
        return;
    uint64_t time = now(); /* before anything else: the range ends here */
    if (room_for(thread, 1))
        put(thread, kind, time, data);
    leave(thread);
}

/* ---- NVTX's callbacks ---- */

static void mark_ex(const nvtxEventAttributes_t *event) { record_event(KIND_MARK, NULL, event); }
static void mark_a(const char *text) { record_plain(KIND_MARK, NVTX_MESSAGE_TYPE_ASCII, text); }
static void mark_w(const wchar_t *text) { record_plain(KIND_MARK, NVTX_MESSAGE_TYPE_UNICODE, text); }

static nvtxRangeId_t start_ex(const nvtxEventAttributes_t *event) { return record_event(KIND_START, NULL, event); }
static nvtxRangeId_t start_a(const char *text) { return record_plain(KIND_START, NVTX_MESSAGE_TYPE_ASCII, text); }
static nvtxRangeId_t start_w(const wchar_t *text) { return record_plain(KIND_START, NVTX_MESSAGE_TYPE_UNICODE, text); }
static void end(nvtxRangeId_t range) { record_close(KIND_END, range); }

/* The nesting is worked out by the reader, so the level that push and pop could return is not known here. */
static int push_ex(const nvtxEventAttributes_t *event) {
    record_event(KIND_PUSH, NULL, event);
    return NVTX_NO_PUSH_POP_TRACKING;
}
static int push_a(const char *text) {
    record_plain(KIND_PUSH, NVTX_MESSAGE_TYPE_ASCII, text);
    return NVTX_NO_PUSH_POP_TRACKING;
}
static int push_w(const wchar_t *text) {
    record_plain(KIND_PUSH, NVTX_MESSAGE_TYPE_UNICODE, text);
    return NVTX_NO_PUSH_POP_TRACKING;
}
static int pop(void) {
    record_close(KIND_POP, 0);
    return NVTX_NO_PUSH_POP_TRACKING;
}

static void name_category_a(uint32_t category, const char *text) { intern_narrow(NAME_CATEGORY, 0, category, text); }
static void name_category_w(uint32_t category, const wchar_t *text) { intern_wide(NAME_CATEGORY, 0, category, text); }
static void name_thread_a(uint32_t thread, const char *text) { intern_narrow(NAME_THREAD, 0, thread, text); }
static void name_thread_w(uint32_t thread, const wchar_t *text) { intern_wide(NAME_THREAD, 0, thread, text); }

static void domain_mark_ex(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *event) {
    record_event(KIND_MARK, domain, event);
}
static nvtxRangeId_t domain_start_ex(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *event) {
    return record_event(KIND_START, domain, event);
}
static void domain_end(nvtxDomainHandle_t domain, nvtxRangeId_t range) {
    (void)domain; /* the id says it all */
    record_close(KIND_END, range);
}
static int domain_push_ex(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *event) {
    record_event(KIND_PUSH, domain, event);
    return NVTX_NO_PUSH_POP_TRACKING;
}
static int domain_pop(nvtxDomainHandle_t domain) {
    record_close(KIND_POP, domain_id(domain));
    return NVTX_NO_PUSH_POP_TRACKING;
}
static void domain_name_category_a(nvtxDomainHandle_t domain, uint32_t category, const char *text) {
    intern_narrow(NAME_CATEGORY, domain_id(domain), category, text);
}
static void domain_name_category_w(nvtxDomainHandle_t domain, uint32_t category, const wchar_t *text) {
    intern_wide(NAME_CATEGORY, domain_id(domain), category, text);
}
static nvtxStringHandle_t register_string_a(nvtxDomainHandle_t domain, const char *text) {
    return (nvtxStringHandle_t)intern_narrow(NAME_STRING, domain_id(domain), 0, text);
}
static nvtxStringHandle_t register_string_w(nvtxDomainHandle_t domain, const wchar_t *text) {
    return (nvtxStringHandle_t)intern_wide(NAME_STRING, domain_id(domain), 0, text);
}
static nvtxDomainHandle_t create_domain_a(const char *text) {
    return (nvtxDomainHandle_t)intern_narrow(NAME_DOMAIN, 0, 0, text);
}
static nvtxDomainHandle_t create_domain_w(const wchar_t *text) {
    return (nvtxDomainHandle_t)intern_wide(NAME_DOMAIN, 0, 0, text);
}
static void destroy_domain(nvtxDomainHandle_t domain) {
    struct surroundings saved;
    if (!domain)
        return;
    lock_recorder(&saved);
    ((struct name *)domain)->destroyed = true;
    unlock_recorder(&saved);
}

#define CALLBACK(id, function) [id] = (NvtxFunctionPointer)(function)

static const NvtxFunctionPointer core[NVTX_CBID_CORE_SIZE] = {
    CALLBACK(NVTX_CBID_CORE_MarkEx, mark_ex),
    CALLBACK(NVTX_CBID_CORE_MarkA, mark_a),
    CALLBACK(NVTX_CBID_CORE_MarkW, mark_w),
    CALLBACK(NVTX_CBID_CORE_RangeStartEx, start_ex),
    CALLBACK(NVTX_CBID_CORE_RangeStartA, start_a),
    CALLBACK(NVTX_CBID_CORE_RangeStartW, start_w),
    CALLBACK(NVTX_CBID_CORE_RangeEnd, end),
    CALLBACK(NVTX_CBID_CORE_RangePushEx, push_ex),
    CALLBACK(NVTX_CBID_CORE_RangePushA, push_a),
    CALLBACK(NVTX_CBID_CORE_RangePushW, push_w),
    CALLBACK(NVTX_CBID_CORE_RangePop, pop),
    CALLBACK(NVTX_CBID_CORE_NameCategoryA, name_category_a),
    CALLBACK(NVTX_CBID_CORE_NameCategoryW, name_category_w),
    CALLBACK(NVTX_CBID_CORE_NameOsThreadA, name_thread_a),
    CALLBACK(NVTX_CBID_CORE_NameOsThreadW, name_thread_w),
};

static const NvtxFunctionPointer core2[NVTX_CBID_CORE2_SIZE] = {
    CALLBACK(NVTX_CBID_CORE2_DomainMarkEx, domain_mark_ex),
    CALLBACK(NVTX_CBID_CORE2_DomainRangeStartEx, domain_start_ex),
    CALLBACK(NVTX_CBID_CORE2_DomainRangeEnd, domain_end),
    CALLBACK(NVTX_CBID_CORE2_DomainRangePushEx, domain_push_ex),
    CALLBACK(NVTX_CBID_CORE2_DomainRangePop, domain_pop),
    CALLBACK(NVTX_CBID_CORE2_DomainNameCategoryA, domain_name_category_a),
    CALLBACK(NVTX_CBID_CORE2_DomainNameCategoryW, domain_name_category_w),
    CALLBACK(NVTX_CBID_CORE2_DomainRegisterStringA, register_string_a),
    CALLBACK(NVTX_CBID_CORE2_DomainRegisterStringW, register_string_w),
    CALLBACK(NVTX_CBID_CORE2_DomainCreateA, create_domain_a),
    CALLBACK(NVTX_CBID_CORE2_DomainCreateW, create_domain_w),
    CALLBACK(NVTX_CBID_CORE2_DomainDestroy, destroy_domain),
};

/* ---- windows ---- */

static pthread_once_t lock_made = PTHREAD_ONCE_INIT;

/* Record everything from here on (open), or nothing until the next opening. Called by `traceable.capture` at the
 * boundaries of steps; names are recorded in any case. A process that calls this follows no other from here on. */
__attribute__((visibility("default"))) void traceable_recorder_gate(int open) {
    struct surroundings saved;
    if (has_ring()) /* a flight recorder records all the time */
        return;
    pthread_once(&lock_made, make_lock);
    lock_recorder(&saved);
    set_window(open);
    unlock_recorder(&saved);
}

/* Record while the nearest ancestor that gates itself records, until this process does. Returns 0 where there is none,
 * or where this process does already. */
__attribute__((visibility("default"))) int traceable_recorder_follow(void) {
    struct surroundings saved;
    if (has_ring())
        return 0;
    pthread_once(&lock_made, make_lock);
    lock_recorder(&saved);
    bool follows = follow_window();
    unlock_recorder(&saved);
    return follows;
}

#include "recorder_timer.h"

/* ---- copies of the ring ---- */

/* Write what the ring holds to `directory`/<pid>-<start>, as the recording of a process of its own. `by`: who asks.
 * Returns 0, ENODATA where there is no ring or nothing was recorded yet, or why it can't be written. */
__attribute__((visibility("default"))) int traceable_recorder_dump(const char *directory, const char *by) {
    return dump_ring(directory, by);
}

/* ---- start ---- */

static uint64_t read_max_bytes(void) {
    const char *text = getenv("TRACEABLE_RECORDING_MAX_BYTES");
    if (!text || !text[0])
        return DEFAULT_MAX_BYTES;
    char *rest;
    errno = 0;
    unsigned long long value = strtoull(text, &rest, 10);
    if (errno || *rest || text[0] < '0' || text[0] > '9') {
        say("variable_invalid", "TRACEABLE_RECORDING_MAX_BYTES is not a number of bytes, 2 GiB are used", text);
        return DEFAULT_MAX_BYTES;
    }
    return value;
}

/* Make the ring that is asked for, if one is: `<number>ns`, `<number>B` or both. */
static bool read_ring(void) {
    const char *text = getenv("TRACEABLE_FLIGHT_RECORDER");
    uint64_t duration_ns = 0, max_bytes = 0;
    if (!text || !text[0])
        return true;
    for (char *rest;; text = rest + 1) {
        errno = 0;
        unsigned long long value = strtoull(text, &rest, 10);
        if (errno || !value || value > INT64_MAX || text[0] < '0' || text[0] > '9')
            return false;
        bool is_time = strncmp(rest, "ns", 2) == 0;
        if (!is_time && rest[0] != 'B')
            return false;
        *(is_time ? &duration_ns : &max_bytes) = value;
        rest += is_time ? 2 : 1;
        if (!*rest)
            return make_ring(duration_ns, max_bytes);
        if (*rest != ',')
            return false;
    }
}

static bool read_root(void) {
    const char *root = getenv("TRACEABLE_RECORDING_DIR");
    if (!root || root[0] != '/' || strlen(root) >= sizeof recorder.root) {
        say("recording_dir_invalid", "nothing is recorded: TRACEABLE_RECORDING_DIR is not an absolute path",
            root ? root : "unset");
        return false;
    }
    strcpy(recorder.root, root);
    (void)!mkdir(root, 0777); /* a failure shows where the process's own directory is made */
    return true;
}

/* Keep this library loaded: NVTX unloads what declines, and with it the memory of what was said. */
static void stay_loaded(void) {
    Dl_info here;
    if (dladdr((const void *)&recorder, &here) && here.dli_fname)
        dlopen(here.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
}

static void start_recorder(void) {
    struct surroundings saved;
    stay_loaded();
    recorder.page = (size_t)sysconf(_SC_PAGESIZE);
    pthread_once(&lock_made, make_lock);
    lock_recorder(&saved);
    recorder.max_bytes = read_max_bytes();
    if (!read_ring())
        say("variable_invalid", "TRACEABLE_FLIGHT_RECORDER is not like 5000000000ns,64000000B, and everything is kept",
            getenv("TRACEABLE_FLIGHT_RECORDER"));
    const char *gated = getenv("TRACEABLE_RECORDING_GATED");
    if (gated && gated[0] == '1' && !has_ring() && !recorder.window_owner && !follow_window())
        atomic_store(&recorder.unshared_window, 1);
    bool hooked = pthread_key_create(&recorder.thread_end, end_thread) == 0 &&
                  pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child) == 0;
    if (!hooked)
        say("recorder_not_started", "nothing is recorded: no room for the recorder's thread and fork hooks", "");
    if (!hooked || !read_root() || !open_process())
        atomic_store(&recorder.state, STATE_OFF);
    else
        start_timer();
    unlock_recorder(&saved);
}

static void attach(const NvtxExportTableCallbacks *table, NvtxCallbackModule module, const NvtxFunctionPointer *ours,
                   unsigned int count) {
    NvtxFunctionTable theirs = NULL;
    unsigned int size = 0;
    if (!table->GetModuleFunctionTable(module, &theirs, &size) || !theirs)
        return;
    for (unsigned int i = 1; i < count && i < size; i++)
        if (ours[i] && theirs[i])
            *theirs[i] = ours[i];
}

/* Called by NVTX. Returns 0 to decline, upon which NVTX makes its functions no-ops and the program runs as ever. */
__attribute__((visibility("default"))) int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_export_table) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, start_recorder);
    if (atomic_load(&recorder.state) == STATE_OFF)
        return 0;
    const NvtxExportTableCallbacks *table = get_export_table(NVTX_ETID_CALLBACKS);
    if (!table || table->struct_size < sizeof *table)
        return 0;
    attach(table, NVTX_CB_MODULE_CORE, core, NVTX_CBID_CORE_SIZE);
    attach(table, NVTX_CB_MODULE_CORE2, core2, NVTX_CBID_CORE2_SIZE);
    return 1;
}
