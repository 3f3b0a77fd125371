/* Copies the ring of a process that goes on into a directory that reads like the recording of one that ended.
 *
 * Threads record meanwhile, and what they write after the moment of the dump is in the copy too, for the reader to leave
 * out. The oldest segments are copied first, many at a time: threads that record as fast as they can fill a ring of
 * 300 kB in less time than it takes to open a file. A thread that wants its next segment waits for at most that copy,
 * about a millisecond. Part of recorder.c.
 */

#ifndef TRACEABLE_RECORDER_DUMP_H
#define TRACEABLE_RECORDER_DUMP_H

#include "recorder_storage.h"

#define COPIED_AT_ONCE (4 * 1024 * 1024)

/* Write to a file that is not open between two calls: see recorder_state.h. Returns 0 or an errno. */
static int write_at(const char *path, uint64_t offset, const void *bytes, size_t length) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && offset + length > limit.rlim_cur)
        return EFBIG;
    int file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (file < 0)
        return errno;
    int error = 0;
    while (length && !error) {
        ssize_t wrote = pwrite(file, bytes, length, (off_t)offset);
        if (wrote <= 0) {
            error = wrote < 0 && errno == EINTR ? 0 : wrote < 0 ? errno : ENOSPC;
            continue;
        }
        bytes = (const char *)bytes + wrote;
        offset += (uint64_t)wrote;
        length -= (size_t)wrote;
    }
    close(file);
    return error;
}

/* Copy a segment to which its thread may be writing: whole records, and no text that came after them as one. */
static void copy_segment(const char *map, char *into) {
    const struct segment_header *header = (const struct segment_header *)map;
    const struct record *from = (const struct record *)map;
    struct record *to = (struct record *)into;
    size_t size = recorder.ring.segment_bytes, records = size / sizeof *from, i = sizeof *header / sizeof *from;
    memcpy(into, map, sizeof *header);
    for (uint64_t word; i < records; i++) {
        if (!(word = atomic_load_explicit(&from[i].word, memory_order_acquire)))
            break;
        to[i].data = from[i].data;
        atomic_store_explicit(&to[i].word, word, memory_order_relaxed);
    }
    atomic_thread_fence(memory_order_acquire);
    size_t texts = atomic_load_explicit(&header->text_begin, memory_order_acquire);
    ((struct segment_header *)into)->text_begin = (uint32_t)texts;
    if (i * sizeof *from < texts)
        memset(into + i * sizeof *from, 0, texts - i * sizeof *from);
    memcpy(into + texts, map + texts, size - texts);
}

/* Copy the next segments to `room` until it is full; return how many bytes of it are used. Wants the lock. */
static size_t copy_next(char *room, size_t room_bytes, int64_t since_ns) {
    struct dump *dump = &recorder.ring.dump;
    size_t used = 0;
    for (; dump->done < dump->count && used < room_bytes; dump->done++) {
        const struct segment *segment = &recorder.ring.segments[(dump->first + dump->done) % dump->count];
        if (header_of(segment)->ordinal && segment->retired_ns >= since_ns) {
            copy_segment(segment->map, room + used);
            used += recorder.ring.segment_bytes;
        }
    }
    return used;
}

/* Copy what is left of the ring after the `used` bytes in `room`, which were copied with the moment of the dump. */
static int dump_segments(const char *path, char *room, size_t room_bytes, size_t used, int64_t since_ns) {
    struct surroundings saved;
    uint64_t written = 0;
    int error = 0;
    while (used && !(error = write_at(path, written, room, used))) {
        written += used;
        lock_recorder(&saved);
        used = copy_next(room, room_bytes, since_ns);
        unlock_recorder(&saved);
    }
    return error;
}

/* Begin a dump at the oldest segment. Wants the lock. */
static void begin_dump(void) {
    struct ring *ring = &recorder.ring;
    int64_t forgotten = atomic_load_explicit(&recorder.header->forgotten_ns, memory_order_relaxed);
    size_t first = ring->oldest ? (size_t)(ring->oldest - ring->segments) : 0;
    ring->dump = (struct dump){.count = ring->count, .first = first, .ordinal = ring->ordinal, .forgotten_ns = forgotten};
}

/* Copy the names that were registered by now; entries are never changed once they are there. */
static int dump_names(const char *from, const char *to, char *room) {
    struct surroundings saved;
    lock_recorder(&saved);
    uint64_t length = recorder.names.size - (uint64_t)(recorder.names.end - recorder.names.cursor);
    unlock_recorder(&saved);
    int error = 0;
    for (uint64_t done = 0; done < length && !error;) {
        size_t wanted = length - done < recorder.ring.segment_bytes ? length - done : recorder.ring.segment_bytes;
        int file = open(from, O_RDONLY | O_CLOEXEC);
        ssize_t got = file < 0 ? -1 : pread(file, room, wanted, (off_t)done);
        error = got < 0 ? errno : got == 0 ? EIO : 0;
        if (file >= 0)
            close(file);
        if (!error)
            error = write_at(to, done, room, (size_t)got);
        done += got > 0 ? (uint64_t)got : 0;
    }
    return error;
}

static int dump_files(const char *part, char *room, size_t room_bytes, const char *by) {
    char path[PATH_MAX + 2 * PATH_ROOM], names[sizeof recorder.directory + PATH_ROOM];
    struct process_header *copy = (struct process_header *)room;
    struct surroundings saved;
    int64_t dump_ns, since_ns = INT64_MIN;
    lock_recorder(&saved);
    dump_ns = (int64_t)now();
    if (recorder.ring.duration_ns)
        recorder.ring.keep_ns = since_ns = dump_ns - (int64_t)recorder.ring.duration_ns;
    begin_dump();
    size_t used = copy_next(room, room_bytes, since_ns);
    unlock_recorder(&saved);
    snprintf(path, sizeof path, "%s/ring", part);
    int error = dump_segments(path, room, room_bytes, used, since_ns);
    path_in_directory(names, sizeof names, "names");
    snprintf(path, sizeof path, "%s/names", part);
    /* After the events, so that every name in them is there. */
    if (!error)
        error = dump_names(names, path, room);
    lock_recorder(&saved);
    recorder.ring.keep_ns = INT64_MAX;
    memcpy(copy, recorder.header, sizeof *copy);
    copy->forgotten_ns = recorder.ring.dump.forgotten_ns;
    recorder.ring.dump.count = 0;
    unlock_recorder(&saved);
    copy->dump_ns = dump_ns;
    memset(copy->dump_by, 0, sizeof copy->dump_by);
    memcpy(copy->dump_by, by, strnlen(by, sizeof copy->dump_by - 1));
    snprintf(path, sizeof path, "%s/process", part);
    return error ? error : write_at(path, 0, copy, sizeof *copy);
}

/* The directory appears under its name when it is whole. */
static int dump_ring(const char *directory, const char *by) {
    char part[PATH_MAX + PATH_ROOM], whole[PATH_MAX + PATH_ROOM];
    if (!has_ring() || atomic_load(&recorder.state) != STATE_ACTIVE)
        return ENODATA;
    const char *name = strrchr(recorder.directory, '/') + 1;
    if (strlen(directory) >= PATH_MAX - PATH_ROOM)
        return ENAMETOOLONG;
    snprintf(part, sizeof part, "%s/.%s", directory, name);
    snprintf(whole, sizeof whole, "%s/%s", directory, name);
    size_t room_bytes = recorder.ring.max_count * recorder.ring.segment_bytes;
    room_bytes = room_bytes < COPIED_AT_ONCE ? room_bytes : COPIED_AT_ONCE;
    char *room = memory(room_bytes);
    if (!room)
        return ENOMEM;
    memset(room, 1, room_bytes); /* its pages are there before others wait for what is copied to them */
    pthread_mutex_lock(&recorder.dump_lock);
    int error = mkdir(part, 0777) ? errno : dump_files(part, room, room_bytes, by);
    pthread_mutex_unlock(&recorder.dump_lock);
    if (!error && rename(part, whole))
        error = errno;
    munmap(room, room_bytes);
    return error;
}

#endif
