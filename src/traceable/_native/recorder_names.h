/* What the recorder knows by number: domains, registered strings, category and thread names. Included by recorder.c alone.
 *
 * An NVTX handle that we give out is the address of a `struct name`: valid for the life of the process and in forked
 * children, whose own recording gets all names again. Looking one up on the hot path is one load of `id`. Equal
 * registrations share one entry, and a domain that was destroyed is taken up again by the next of that name, so a
 * program that registers the same things in a loop stays flat.
 */

#ifndef TRACEABLE_RECORDER_NAMES_H
#define TRACEABLE_RECORDER_NAMES_H

#include "recorder_storage.h"

#include <wchar.h>

#define ARENA_BLOCK (64 * 1024)

struct name {
    uint32_t id;
    uint32_t kind; /* enum name_kind */
    uint32_t domain;
    uint32_t tid;
    bool destroyed;
    int64_t monotonic_ns;
    uint64_t hash;
    size_t length;
    struct name *same_bucket;
    struct name *later;
    char text[];
};

static struct {
    struct name **buckets;
    size_t bucket_count;
    size_t count;
    struct name *first;
    struct name **last;
    uint32_t domains;
    uint32_t strings;
    char *arena;
    size_t arena_left;
} names = {.last = &names.first};

/* ---- memory that is never given back ---- */

static void *arena(size_t size) {
    size = round_up(size, 16);
    if (size > ARENA_BLOCK / 4)
        return memory(round_up(size, recorder.page));
    if (size > names.arena_left) {
        char *block = memory(ARENA_BLOCK);
        if (!block)
            return NULL;
        names.arena = block;
        names.arena_left = ARENA_BLOCK;
    }
    void *got = names.arena;
    names.arena += size;
    names.arena_left -= size;
    return got;
}

/* ---- wide characters: UTF-32 in, UTF-8 out; what is no character becomes U+FFFD ---- */

static size_t utf8_put(uint32_t character, char *out) {
    if (character > 0x10FFFF || (character >= 0xD800 && character <= 0xDFFF))
        character = 0xFFFD;
    if (character < 0x80) {
        out[0] = (char)character;
        return 1;
    }
    size_t more = character < 0x800 ? 1 : character < 0x10000 ? 2 : 3;
    static const unsigned char lead[] = {0, 0xC0, 0xE0, 0xF0};
    out[0] = (char)(lead[more] | (character >> (6 * more)));
    for (size_t i = 1; i <= more; i++)
        out[i] = (char)(0x80 | ((character >> (6 * (more - i))) & 0x3F));
    return more + 1;
}

/* The length of the whole characters that fit into `room` bytes. */
static size_t utf8_length(const wchar_t *wide, size_t room) {
    char unused[4];
    size_t length = 0;
    for (; *wide; wide++) {
        size_t more = utf8_put((uint32_t)*wide, unused);
        if (more > room - length)
            break;
        length += more;
    }
    return length;
}

static void utf8_write(const wchar_t *wide, char *out, size_t length) {
    for (const char *end = out + length; out < end; wide++)
        out += utf8_put((uint32_t)*wide, out);
}

/* ---- the log on disk ---- */

static void log_lost(void) { atomic_fetch_add_explicit(&recorder.header->lost_names, 1, memory_order_relaxed); }

static bool grow_names(uint64_t least) {
    char path[sizeof recorder.directory + PATH_ROOM];
    path_in_directory(path, sizeof path, "names");
    bool first = recorder.names.size == 0;
    if (recorder.names.cursor < recorder.names.end) {
        struct name_entry *rest = (struct name_entry *)recorder.names.cursor;
        rest->length = (uint64_t)(recorder.names.end - recorder.names.cursor) - sizeof *rest;
        atomic_store_explicit(&rest->kind, NAME_SKIP, memory_order_release);
        recorder.names.cursor = recorder.names.end;
    }
    if (!grow(&recorder.names, path, least + 2 * sizeof(struct file_header)))
        return false;
    if (first) {
        start_file(&recorder.names, NAMES_MAGIC);
        recorder.names.cursor += sizeof(struct file_header); /* entries stand at multiples of 32 */
    }
    return true;
}

static void log_name(const struct name *name) {
    uint64_t size = sizeof(struct name_entry) + round_up(name->length, sizeof(struct name_entry));
    if ((uint64_t)(recorder.names.end - recorder.names.cursor) < size && !grow_names(size)) {
        log_lost();
        return;
    }
    struct name_entry *entry = (struct name_entry *)recorder.names.cursor;
    entry->tid = name->tid;
    entry->id = name->id;
    entry->domain = name->domain;
    entry->time_ns = name->monotonic_ns > recorder.base_ns ? name->monotonic_ns - recorder.base_ns : 0;
    entry->length = name->length;
    memcpy(entry + 1, name->text, name->length);
    atomic_store_explicit(&entry->kind, name->kind, memory_order_release);
    recorder.names.cursor += size;
}

static void replay_names(void) {
    for (const struct name *name = names.first; name; name = name->later)
        log_name(name);
}

/* ---- the table ---- */

static uint64_t hash_bytes(const char *bytes, size_t length, uint64_t hash) {
    for (size_t i = 0; i < length; i++)
        hash = (hash ^ (unsigned char)bytes[i]) * UINT64_C(0x100000001b3);
    return hash ^ hash >> 29;
}

static bool more_buckets(void) {
    size_t count = names.bucket_count ? names.bucket_count * 4 : 256;
    struct name **buckets = memory(round_up(count * sizeof *buckets, recorder.page));
    if (!buckets)
        return names.bucket_count != 0;
    for (struct name *name = names.first; name; name = name->later) {
        name->same_bucket = buckets[name->hash % count];
        buckets[name->hash % count] = name;
    }
    if (names.buckets)
        munmap(names.buckets, round_up(names.bucket_count * sizeof *buckets, recorder.page));
    names.buckets = buckets;
    names.bucket_count = count;
    return true;
}

static struct name *find(const struct name *wanted, const char *text) {
    struct name *name = names.bucket_count ? names.buckets[wanted->hash % names.bucket_count] : NULL;
    for (; name; name = name->same_bucket)
        if (name->hash == wanted->hash && name->kind == wanted->kind && name->domain == wanted->domain &&
            name->length == wanted->length && memcmp(name->text, text, wanted->length) == 0 &&
            (name->kind == NAME_DOMAIN ? name->destroyed : name->kind == NAME_STRING || name->id == wanted->id))
            return name;
    return NULL;
}

static struct name *add(const struct name *wanted, const char *text) {
    if (names.count >= names.bucket_count * 2 && !more_buckets())
        return NULL;
    if (wanted->kind == NAME_DOMAIN && names.domains + 1 >= MAX_DOMAINS)
        return NULL; /* later domains count as the default one */
    struct name *name = arena(sizeof *name + wanted->length);
    if (!name)
        return NULL;
    *name = *wanted;
    memcpy(name->text, text, wanted->length);
    if (name->kind == NAME_DOMAIN)
        name->id = ++names.domains;
    if (name->kind == NAME_STRING)
        name->id = ++names.strings;
    name->same_bucket = names.buckets[name->hash % names.bucket_count];
    names.buckets[name->hash % names.bucket_count] = name;
    name->later = NULL;
    *names.last = name;
    names.last = &name->later;
    names.count++;
    return name;
}

/* Return the entry of this name, made where there is none. NULL: no text, no memory, or the recorder is off. */
static struct name *intern(uint32_t kind, uint32_t domain, uint32_t id, const char *text, size_t length) {
    struct surroundings saved;
    struct name *name = NULL;
    if (!text)
        return NULL;
    lock_recorder(&saved);
    if (process_open()) {
        struct name wanted = {.id = id, .kind = kind, .domain = domain, .length = length};
        wanted.tid = (uint32_t)syscall(SYS_gettid);
        wanted.monotonic_ns = clock_ns(CLOCK_MONOTONIC);
        wanted.hash = hash_bytes(text, length, UINT64_C(0xcbf29ce484222325) ^ kind ^ (uint64_t)domain << 8);
        name = find(&wanted, text);
        if (name) {
            name->destroyed = false;
        } else {
            name = add(&wanted, text);
            if (name)
                log_name(name);
            else
                log_lost();
        }
    }
    unlock_recorder(&saved);
    return name;
}

static struct name *intern_wide(uint32_t kind, uint32_t domain, uint32_t id, const wchar_t *wide) {
    if (!wide)
        return NULL;
    size_t length = utf8_length(wide, SIZE_MAX);
    char *text = memory(length + 1); /* mmap takes no length of zero */
    if (!text)
        return NULL;
    utf8_write(wide, text, length);
    struct name *name = intern(kind, domain, id, text, length);
    munmap(text, length + 1);
    return name;
}

static struct name *intern_narrow(uint32_t kind, uint32_t domain, uint32_t id, const char *text) {
    return intern(kind, domain, id, text, text ? strlen(text) : 0);
}

#endif
