/* Pages of an SQLite file, read in windows with pread.
 *
 * Not mapped: a mapped file that shrinks meanwhile ends the process with SIGBUS, and all its pages count as memory of
 * ours. Format: https://www.sqlite.org/fileformat.html
 */
#ifndef TRACEABLE_PAGES_FILE_H
#define TRACEABLE_PAGES_FILE_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if SIZE_MAX < UINT64_MAX
#error "sizes of columns are computed in 64 bits; without them SQLite reads the tables"
#endif

/* Numbers are loaded eight bytes at a time, so that many bytes behind every buffer can be read as well. */
#define PADDING 8
#define WINDOW_BYTES (256u << 10)
/* SQLite keeps its locks at this place of the file and never uses the page around it. */
#define LOCK_BYTE (1u << 30)

typedef struct {
    int descriptor;
    uint32_t page_size, usable, page_count, lock_page;
    uint8_t *window;
    uint32_t first, held; /* the pages in the window: [first, first + held) */
    uint32_t most;        /* pages that the window has room for */
    const char *why;      /* why the table can't be decoded here; of damage its kind; static text */
    bool no_memory, damaged, stopped;
    int error;                    /* errno of a read that failed */
    const volatile uint8_t *stop; /* decoding ends soon after this is no longer 0 */
} File;

static inline uint16_t two(const uint8_t *p) { return (uint16_t)(p[0] << 8 | p[1]); }

static inline uint32_t four(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static inline uint64_t eight(const uint8_t *p)
{
    uint64_t value;
    memcpy(&value, p, 8);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    value = __builtin_bswap64(value);
#endif
    return value;
}

/* Read a variable-length number at `p`; returns what follows it, NULL where it would reach beyond `end`. */
static inline const uint8_t *varint(const uint8_t *p, const uint8_t *end, uint64_t *value)
{
    if (p < end && p[0] < 0x80) {
        *value = p[0];
        return p + 1;
    }
    uint64_t found = 0;
    for (int i = 0; i < 9 && p < end; i++) {
        uint8_t byte = *p++;
        if (i == 8) {
            *value = found << 8 | byte;
            return p;
        }
        found = found << 7 | (byte & 0x7f);
        if (byte < 0x80) {
            *value = found;
            return p;
        }
    }
    return NULL;
}

static bool unusual(File *file, const char *why)
{
    file->why = why;
    return false;
}

/* What no sound file holds. SQLite is not asked either: it reads some of it as rows that are there twice, or beyond the
 * page, and then says what chance left in its memory (3.40: the same file gave rows once and an error once). */
static bool damaged(File *file, const char *kind)
{
    file->damaged = true;
    return unusual(file, kind);
}

static bool out_of_memory(File *file)
{
    file->no_memory = true;
    return unusual(file, "out of memory");
}

static bool open_file(File *file)
{
    file->lock_page = LOCK_BYTE / file->page_size + 1;
    file->most = file->page_size < WINDOW_BYTES ? WINDOW_BYTES / file->page_size : 1;
    file->window = calloc(1, (size_t)file->most * file->page_size + PADDING);
    return file->window ? true : out_of_memory(file);
}

static bool fill_window(File *file, uint32_t number)
{
    /* Tables lie in long stretches, but a file that was rewritten may have them in any order. */
    uint32_t count = number == file->first + file->held ? file->held * 2 : 2;
    count = count < 2 ? 2 : count;
    count = count > file->most ? file->most : count;
    count = count > file->page_count - number + 1 ? file->page_count - number + 1 : count;
    size_t wanted = (size_t)count * file->page_size, got = 0;
    int error = 0;
    off_t offset = (off_t)(number - 1) * file->page_size;
    file->held = 0;
    if (*file->stop) {
        file->stopped = true;
        return unusual(file, "stopped");
    }
    while (got < wanted) {
        ssize_t read = pread(file->descriptor, file->window + got, wanted - got, offset + (off_t)got);
        if (read < 0 && errno == EINTR)
            continue;
        if (read < 0)
            error = errno;
        if (read <= 0)
            break;
        got += (size_t)read;
    }
    file->first = number;
    file->held = (uint32_t)(got / file->page_size);
    if (file->held)
        return true;
    file->error = error;
    return damaged(file, "page_missing");
}

/* Return page `number`, valid until the next call; NULL where there is none. */
static const uint8_t *page_at(File *file, uint32_t number)
{
    if (number < 2 || number > file->page_count || number == file->lock_page) {
        damaged(file, "page_pointer");
        return NULL;
    }
    if ((number < file->first || number - file->first >= file->held) && !fill_window(file, number))
        return NULL;
    return file->window + (size_t)(number - file->first) * file->page_size;
}

#endif
