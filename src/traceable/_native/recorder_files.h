/* Files that grow by segments, of which the last is mapped. Every function here wants the lock. Part of recorder.c. */

#ifndef TRACEABLE_RECORDER_FILES_H
#define TRACEABLE_RECORDER_FILES_H

#include "recorder_state.h"

/* Written zeros and not posix_fallocate: both make a later store safe from a full disk, but a store into a block that was
 * only fallocated has to convert the extent (ext4, 1 MiB segments: 20-30 ns a 32-byte range against 10), and file systems
 * without fallocate get the same code. */
static bool write_zeros(int file, uint64_t offset, uint64_t length) {
    static char zeros[64 * 1024]; /* never written, so it is the kernel's one zero page */
    while (length) {
        ssize_t wrote = pwrite(file, zeros, length < sizeof zeros ? length : sizeof zeros, (off_t)offset);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote <= 0) {
            errno = wrote < 0 ? errno : ENOSPC;
            return false;
        }
        offset += (uint64_t)wrote;
        length -= (uint64_t)wrote;
    }
    return true;
}

/* Note why something is dropped; the first reason stays. */
static void note_reason(uint64_t reason) {
    uint64_t none = 0;
    atomic_compare_exchange_strong(&recorder.header->drop_reason, &none, reason);
}

/* Allocate `length` bytes after `size` and map them, or return NULL, with errno, and leave the file as it was. */
static char *extend(const char *path, uint64_t size, uint64_t length) {
    struct rlimit limit;
    /* Growing over this limit raises SIGXFSZ, which kills. */
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && size + length > limit.rlim_cur) {
        errno = EFBIG;
        return NULL;
    }
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (file < 0)
        return NULL;
    char *map = MAP_FAILED;
    if (write_zeros(file, size, length))
        map = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, file, (off_t)size);
    if (map == MAP_FAILED) {
        int error = errno;
        (void)!ftruncate(file, (off_t)size); /* where this fails too, the blocks stay allocated and unused */
        errno = error;
    }
    int reason = errno;
    close(file);
    errno = reason;
    return map == MAP_FAILED ? NULL : map;
}

static size_t read_file(const char *path, char *into, size_t room) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return 0;
    ssize_t got = read(file, into, room);
    close(file);
    return got > 0 ? (size_t)got : 0;
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
        if (length == smallest) {
            note_reason(length <= left ? (uint64_t)errno : DROPPED_BY_CAP);
            return false;
        }
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

#endif
