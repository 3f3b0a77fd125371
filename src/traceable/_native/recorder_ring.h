/* The flight recorder: all threads of a process write to segments of one file, of which the oldest are used again.
 *
 * Included by recorder.c alone; every function wants the lock. A thread writes its events to one segment until that is
 * full, which only the slow path notices: an event costs the same as without a ring. A full segment is retired. The one
 * that was retired first is used again when it is older than the ring is to reach back, or when there may be no more;
 * until then the file grows. The segment of a thread that ended goes on with the next thread's events.
 *
 * A segment holds all that its events need: their texts, and at its beginning what was open on its thread. So nothing
 * outlives a segment, and what is missing of a thread is always its beginning.
 */

#ifndef TRACEABLE_RECORDER_RING_H
#define TRACEABLE_RECORDER_RING_H

#include "recorder_files.h"

#define SEGMENT_BYTES_MAX (64 * 1024) /* so that places of records fit into 16 bits */
#define SEGMENT_BYTES_MIN (4 * 1024)
#define SEGMENTS_WANTED 64 /* that a small ring is divided into */
#define GROWTH_BYTES (1024 * 1024) /* what is waited for at once */
#define GROWTHS_MAX 1024           /* about as many maps: Linux allows a process 65,530 */
#define RING_NAMES_BYTES (UINT64_C(64) << 20)
#define ROOM_OF_EVENT (4 * sizeof(struct record))
#define THREAD_RECORDS 3
#define LOOKED_AT 8 /* retired segments, for one with room left */

static inline bool has_ring(void) { return recorder.ring.segment_bytes != 0; }

static inline struct segment_header *header_of(const struct segment *segment) {
    return (struct segment_header *)segment->map;
}

/* ---- its size ---- */

/* Prepare a ring of these limits, of which one may be 0. False: there is no memory for its table. */
static bool make_ring(uint64_t duration_ns, uint64_t max_bytes) {
    struct ring *ring = &recorder.ring;
    uint64_t most = max_bytes && max_bytes < recorder.max_bytes ? max_bytes : recorder.max_bytes;
    size_t size = SEGMENT_BYTES_MAX;
    while (size > SEGMENT_BYTES_MIN && most / size < SEGMENTS_WANTED)
        size /= 2;
    size = round_up(size, recorder.page);
    ring->max_count = most / size;
    ring->segments = memory(round_up((ring->max_count + 1) * sizeof *ring->segments, recorder.page));
    ring->spare = memory(size);
    ring->places = memory(round_up(2 * size / sizeof(struct record) * sizeof *ring->places, recorder.page));
    if (!ring->segments || !ring->spare || !ring->places)
        return false;
    ring->duration_ns = duration_ns;
    ring->max_bytes = max_bytes;
    ring->segment_bytes = size;
    ring->keep_ns = INT64_MAX;
    /* The ring has its own limit; this one is left for the names. */
    recorder.max_bytes = ring->max_count * size + RING_NAMES_BYTES;
    return true;
}

/* Add segments. Where the disk gives none, none is asked for again: the ring stays as large as it is. */
static bool grow_ring(void) {
    struct ring *ring = &recorder.ring;
    char path[sizeof recorder.directory + PATH_ROOM];
    uint64_t size = ring->count * ring->segment_bytes;
    uint64_t wanted = size < GROWTH_BYTES ? size : GROWTH_BYTES;
    if (wanted < size / GROWTHS_MAX)
        wanted = size / GROWTHS_MAX;
    size_t more = wanted / ring->segment_bytes;
    if (more < 1)
        more = 1;
    if (more > ring->max_count - ring->count)
        more = ring->max_count - ring->count;
    path_in_directory(path, sizeof path, "ring");
    char *map = NULL;
    while (more && !(map = extend(path, size, more * ring->segment_bytes)))
        more /= 2;
    if (!map) {
        ring->max_count = ring->count;
        return false;
    }
    atomic_fetch_add_explicit(&recorder.header->bytes, more * ring->segment_bytes, memory_order_relaxed);
    for (size_t i = 0; i < more; i++) {
        struct segment *segment = &ring->segments[ring->count++];
        *segment = (struct segment){.map = map + i * ring->segment_bytes, .newer = ring->unused};
        ring->unused = segment;
    }
    return true;
}

/* Forget a ring that is the parent's. */
static void leave_ring(void) {
    struct ring *ring = &recorder.ring;
    for (size_t i = 0, next; i < ring->count; i = next) {
        const char *map = ring->segments[i].map;
        for (next = i + 1; next < ring->count && ring->segments[next].map == map + (next - i) * ring->segment_bytes; next++)
            ;
        munmap(ring->segments[i].map, (next - i) * ring->segment_bytes);
    }
    ring->count = 0;
    ring->unused = ring->oldest = ring->newest = NULL;
    ring->ordinal = 0;
    ring->keep_ns = INT64_MAX;
    ring->dump.count = 0;
}

/* ---- retired segments ---- */

static void retire_segment(struct segment *segment, char *rest) {
    struct ring *ring = &recorder.ring;
    segment->retired_ns = (int64_t)now();
    segment->rest = rest;
    segment->newer = NULL;
    segment->older = ring->newest;
    *(ring->newest ? &ring->newest->newer : &ring->oldest) = segment;
    ring->newest = segment;
}

static void take_out(struct segment *segment) {
    struct ring *ring = &recorder.ring;
    *(segment->older ? &segment->older->newer : &ring->oldest) = segment->newer;
    *(segment->newer ? &segment->newer->older : &ring->newest) = segment->older;
    segment->retired_ns = INT64_MAX;
}

/* Note what a dump that is under way loses with a segment that it has not copied yet. */
static void lose_to_dump(const struct segment *segment) {
    struct dump *dump = &recorder.ring.dump;
    size_t index = (size_t)(segment - recorder.ring.segments);
    bool old = header_of(segment)->ordinal <= dump->ordinal;
    if (index < dump->count && old && (index + dump->count - dump->first) % dump->count >= dump->done &&
        segment->retired_ns > dump->forgotten_ns)
        dump->forgotten_ns = segment->retired_ns;
}

/* Return a segment to begin: one that is no longer needed, a new one, or else the oldest. NULL: other threads have all. */
static struct segment *take_segment(void) {
    struct ring *ring = &recorder.ring;
    struct segment *oldest = ring->oldest;
    int64_t reach = (int64_t)now() - (int64_t)ring->duration_ns;
    bool over = oldest && ring->duration_ns && oldest->retired_ns < (reach < ring->keep_ns ? reach : ring->keep_ns);
    if (!over && (ring->unused || grow_ring())) {
        struct segment *segment = ring->unused;
        ring->unused = segment->newer;
        segment->retired_ns = INT64_MAX;
        return segment;
    }
    if (oldest) {
        int64_t forgotten = atomic_load_explicit(&recorder.header->forgotten_ns, memory_order_relaxed);
        if (oldest->retired_ns > forgotten)
            atomic_store_explicit(&recorder.header->forgotten_ns, oldest->retired_ns, memory_order_release);
        lose_to_dump(oldest);
        take_out(oldest);
    }
    return oldest;
}

/* ---- texts ---- */

/* Return where a text of `length` bytes goes, its number in `*message`. The room must be there. */
static char *put_text(struct thread *thread, size_t length, uint64_t *message) {
    struct segment_header *header = header_of(thread->segment);
    thread->events.end -= sizeof(uint64_t) + round_up(length, sizeof(uint64_t));
    uint64_t offset = (uint64_t)(thread->events.end - thread->segment->map);
    atomic_store_explicit(&header->text_begin, (uint32_t)offset, memory_order_relaxed);
    /* Whoever sees bytes of the text also sees that no records stand there. */
    atomic_thread_fence(memory_order_release);
    *(uint64_t *)thread->events.end = length;
    *message = TEXT_BIT | offset / sizeof(uint64_t);
    return thread->events.end + sizeof(uint64_t);
}

/* The text of a message in the segment at `map`; NULL where it has none there. */
static const char *text_in(const char *map, uint64_t message, size_t *length) {
    if (!(message & TEXT_BIT))
        return NULL;
    const char *text = map + (message ^ TEXT_BIT) * sizeof(uint64_t);
    *length = *(const uint64_t *)text;
    return text + sizeof(uint64_t);
}

/* ---- what is open at a segment's end ---- */

#define MESSAGE_MASK ((UINT64_C(1) << MESSAGE_BITS) - 1)

static inline enum record_kind kind_of(const struct record *record) {
    return (enum record_kind)(atomic_load_explicit(&record->word, memory_order_relaxed) >> KIND_SHIFT);
}

/* Find the pushes of the thread that wrote last without a pop, outermost first: `places` gets their places, counted in
 * records, and `attributes` that of what was said of each, 0 for nothing. */
static size_t find_open(const struct record *records, size_t count, uint16_t *places, uint16_t *attributes) {
    size_t depth = 0;
    uint16_t said = 0;
    for (size_t i = sizeof(struct segment_header) / sizeof *records; i < count; i++) {
        enum record_kind kind = kind_of(&records[i]);
        if (kind == KIND_PUSH) {
            places[depth] = (uint16_t)i;
            attributes[depth++] = said;
        } else if (kind == KIND_POP) {
            size_t k = depth;
            while (k > 0 && records[places[k - 1]].data >> MESSAGE_BITS != records[i].data)
                k--;
            if (k == 0)
                continue;
            if (UNLIKELY(k < depth)) { /* ranges of different domains may cross */
                memmove(places + k - 1, places + k, (depth - k) * sizeof *places);
                memmove(attributes + k - 1, attributes + k, (depth - k) * sizeof *attributes);
            }
            depth--;
        } else if (kind == KIND_ATTRIBUTES) {
            said = (uint16_t)i;
        } else if (kind == KIND_THREAD || kind == KIND_CUT) {
            depth = 0;
            said = kind == KIND_CUT ? said : 0;
        }
    }
    return depth;
}

/* Repeat in the thread's new segment what was open at the end of the one at `map`, with the time at which it was opened.
 * What takes more than a quarter of the room is left out from the outside: pops that find nothing mean nothing. */
static void carry_open(struct thread *thread, const char *map, size_t count) {
    const struct record *records = (const struct record *)map;
    uint16_t *places = recorder.ring.places, *attributes = places + recorder.ring.segment_bytes / sizeof *records;
    size_t depth = find_open(records, count, places, attributes), room = recorder.ring.segment_bytes / 4, first = depth;
    for (; first > 0; first--) {
        size_t length = 0, size = ROOM_OF_EVENT;
        if (text_in(map, records[places[first - 1]].data & MESSAGE_MASK, &length))
            size += sizeof(uint64_t) + round_up(length, sizeof(uint64_t));
        if (size > room)
            break;
        room -= size;
    }
    for (size_t i = first; i < depth; i++) {
        const struct record *push = &records[places[i]], *said = attributes[i] ? &records[attributes[i]] : NULL;
        uint64_t set = said ? said->word & VALUE_MASK : 0, values = said ? said->data : 0, message = push->data & MESSAGE_MASK;
        if (set != thread->attributes_set || values != thread->attributes) {
            put(thread, KIND_ATTRIBUTES, set, values);
            thread->attributes_set = set;
            thread->attributes = values;
        }
        if (kind_of(push - 1) == KIND_PAYLOAD)
            put(thread, KIND_PAYLOAD, push[-1].word, push[-1].data);
        size_t length;
        const char *text = text_in(map, message, &length);
        if (text)
            memcpy(put_text(thread, length, &message), text, length);
        put(thread, KIND_PUSH, push->word, (push->data & ~MESSAGE_MASK) | message);
    }
}

/* ---- a thread's segment ---- */

static void forget_texts(struct thread *thread) {
    if (thread->texts_seen)
        for (size_t i = 0; i < CACHED_TEXTS; i++)
            thread->cache[i].message = 0;
    thread->texts_seen = false;
}

static void put_thread(struct thread *thread) {
    uint64_t name[2] = {0};
    prctl(PR_GET_NAME, name, 0, 0, 0);
    put(thread, KIND_THREAD, thread->tid, thread->sequence);
    put(thread, KIND_NAME, 0, name[0]);
    put(thread, KIND_NAME, 0, name[1]);
}

/* Let a thread begin where one that ended left off. */
static bool go_on_in(struct thread *thread) {
    struct segment *segment = recorder.ring.newest;
    for (int i = 0; segment && !segment->rest && i < LOOKED_AT; i++)
        segment = segment->older;
    if (!segment || !segment->rest)
        return false;
    take_out(segment);
    thread->segment = segment;
    thread->events.cursor = segment->rest;
    thread->events.end = segment->map + header_of(segment)->text_begin;
    put_thread(thread);
    return true;
}

/* Give the thread an empty segment, its full one being retired. False: it has none, and may ask again. */
static bool next_segment(struct thread *thread) {
    struct ring *ring = &recorder.ring;
    struct segment *full = thread->segment;
    if (!full && go_on_in(thread))
        return true;
    const char *before = full ? full->map : NULL;
    size_t count = full ? (size_t)(thread->events.cursor - full->map) / sizeof(struct record) : 0;
    if (full)
        retire_segment(full, NULL);
    struct segment *segment = thread->segment = take_segment();
    thread->events.cursor = thread->events.end = NULL;
    forget_texts(thread);
    thread->attributes = thread->attributes_set = 0;
    if (!segment)
        return false;
    if (segment == full)
        before = memcpy(ring->spare, full->map, ring->segment_bytes);
    struct segment_header *header = header_of(segment);
    if (atomic_load_explicit(&header->ordinal, memory_order_relaxed)) { /* else it is new, and holds zeros */
        atomic_store_explicit(&header->ordinal, 0, memory_order_relaxed);
        atomic_thread_fence(memory_order_seq_cst);
        memset(segment->map + sizeof header->ordinal, 0, ring->segment_bytes - sizeof header->ordinal);
    }
    header->magic = SEGMENT_MAGIC;
    header->sequence = thread->sequence;
    header->tid = thread->tid;
    prctl(PR_GET_NAME, header->name, 0, 0, 0);
    atomic_store_explicit(&header->text_begin, (uint32_t)ring->segment_bytes, memory_order_relaxed);
    thread->events.cursor = segment->map + sizeof *header;
    thread->events.end = segment->map + ring->segment_bytes;
    if (before)
        carry_open(thread, before, count);
    header->carried = (uint32_t)((size_t)(thread->events.cursor - segment->map - sizeof *header) / sizeof(struct record));
    atomic_store_explicit(&header->ordinal, ++ring->ordinal, memory_order_release);
    return true;
}

/* Retire the segment of a thread that ends; what is left of it is for the next one. */
static void close_segment(struct thread *thread) {
    if (!thread->segment)
        return;
    size_t left = (size_t)(thread->events.end - thread->events.cursor);
    bool enough = left >= recorder.ring.segment_bytes / 8 + THREAD_RECORDS * sizeof(struct record);
    if (left >= THREAD_RECORDS * sizeof(struct record))
        put_thread(thread);
    retire_segment(thread->segment, enough ? thread->events.cursor : NULL);
    thread->segment = NULL;
}

#endif
