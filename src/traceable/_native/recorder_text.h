/* Messages that are not registered: stored where the thread's events are, once while they repeat. Part of recorder.c. */

#ifndef TRACEABLE_RECORDER_TEXT_H
#define TRACEABLE_RECORDER_TEXT_H

#include "recorder_names.h"

/* As `new_text`, in a ring, where room for the event itself stays in the same segment. */
static char *new_text_in_segment(struct thread *thread, size_t length, uint64_t *message) {
    uint64_t size = sizeof(uint64_t) + round_up(length, sizeof(uint64_t));
    bool fits = (uint64_t)(thread->events.end - thread->events.cursor) >= size + ROOM_OF_EVENT;
    if (!fits) {
        struct surroundings saved;
        lock_recorder(&saved);
        fits = next_segment(thread);
        unlock_recorder(&saved);
    }
    thread->texts_seen = true;
    return fits ? put_text(thread, length, message) : NULL;
}

/* Make room for a text and return where its bytes go, its number in `*message`; NULL: there is none. */
static char *new_text(struct thread *thread, size_t length, uint64_t *message) {
    uint64_t size = sizeof(uint64_t) + round_up(length, sizeof(uint64_t));
    if (has_ring())
        return new_text_in_segment(thread, length, message);
    if (thread->full)
        return NULL;
    if ((uint64_t)(thread->text.end - thread->text.cursor) < size) {
        char path[sizeof recorder.directory + PATH_ROOM];
        struct surroundings saved;
        lock_recorder(&saved);
        bool first = thread->text.size == 0;
        thread_path(path, sizeof path, thread, "text");
        bool grown = grow(&thread->text, path, size + sizeof(struct file_header));
        if (grown && first)
            start_file(&thread->text, TEXT_MAGIC);
        if (!grown) {
            thread->full = true;
            thread->events.end = thread->events.cursor;
        }
        unlock_recorder(&saved);
        if (!grown)
            return NULL;
    }
    uint64_t offset = thread->text.size - (uint64_t)(thread->text.end - thread->text.cursor);
    *message = TEXT_BIT | offset / sizeof(uint64_t);
    *(uint64_t *)thread->text.cursor = length;
    char *bytes = thread->text.cursor + sizeof(uint64_t);
    thread->text.cursor += size;
    return bytes;
}

/* How long a text may be: in a ring the events beside it must fit into its segment. */
static size_t longest_text(void) { return has_ring() ? recorder.ring.segment_bytes / 8 : SIZE_MAX; }

static uint64_t message_of_bytes(struct thread *thread, const char *bytes, size_t length, bool *stored) {
    uint64_t message = 0;
    struct cached_text *seen = NULL;
    if (UNLIKELY(length > longest_text()))
        for (length = longest_text(); length && ((unsigned char)bytes[length] & 0xC0) == 0x80;)
            length--; /* not within a character of UTF-8 */
    if (length <= CACHED_TEXT) {
        seen = &thread->cache[hash_bytes(bytes, length, UINT64_C(0xcbf29ce484222325)) % CACHED_TEXTS];
        if (seen->message && seen->length == length && memcmp(seen->bytes, bytes, length) == 0)
            return seen->message;
    }
    char *into = new_text(thread, length, &message);
    *stored = into != NULL;
    if (!into)
        return 0;
    memcpy(into, bytes, length);
    if (seen) {
        seen->message = message;
        seen->length = (uint8_t)length;
        memcpy(seen->bytes, bytes, length);
    }
    return message;
}

static uint64_t message_of_wide(struct thread *thread, const wchar_t *wide, bool *stored) {
    char small[CACHED_TEXT];
    size_t length = utf8_length(wide, longest_text());
    if (length <= sizeof small) {
        utf8_write(wide, small, length);
        return message_of_bytes(thread, small, length, stored);
    }
    uint64_t message = 0;
    char *into = new_text(thread, length, &message);
    *stored = into != NULL;
    if (into)
        utf8_write(wide, into, length);
    return message;
}

#endif
