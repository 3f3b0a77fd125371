/* Columns that grow while a table is decoded, and numbers given to distinct keys and texts. */
#ifndef TRACEABLE_PAGES_COLUMNS_H
#define TRACEABLE_PAGES_COLUMNS_H

#include <limits.h>
#include <sys/mman.h>

#include "pages_file.h"

#define ABSENT INT64_MIN

/* Memory that grows without being copied: the kernel moves its pages. */
typedef struct {
    uint8_t *at;
    size_t bytes;
} Block;

static bool grow(Block *block, size_t bytes)
{
    if (bytes <= block->bytes)
        return true;
    bytes = (bytes + 4095) & ~(size_t)4095;
    void *at = block->at ? mremap(block->at, block->bytes, bytes, MREMAP_MAYMOVE)
                         : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return false;
    block->at = at;
    block->bytes = bytes;
    return true;
}

static void release(Block *block)
{
    if (block->at)
        munmap(block->at, block->bytes);
    block->at = NULL;
    block->bytes = 0;
}

static void shrink(Block *block, size_t bytes)
{
    bytes = (bytes + 4095) & ~(size_t)4095;
    if (!bytes)
        release(block);
    else if (bytes < block->bytes && mremap(block->at, block->bytes, bytes, 0) != MAP_FAILED)
        block->bytes = bytes;
}

/* One value a row: 8 or 4 bytes wide, and without memory as long as all rows hold the same. */
typedef struct {
    Block block;
    unsigned width;
    int64_t same;
} Values;

/* Append `count` values, each `stride` behind the one before. `capacity`: rows that there is room for. */
static bool append(Values *values, size_t row, size_t capacity, const int64_t *from, unsigned count, unsigned stride)
{
    unsigned i = 0;
    if (!values->block.at) {
        if (!row && count)
            values->same = from[0];
        while (i < count && from[(size_t)i * stride] == values->same)
            i++;
        if (i == count)
            return true;
        if (!grow(&values->block, capacity * values->width))
            return false;
        for (size_t before = 0; before < row; before++)
            values->width == 8 ? (void)(((int64_t *)values->block.at)[before] = values->same)
                               : (void)(((int32_t *)values->block.at)[before] = (int32_t)values->same);
    }
    if (values->width == 8)
        for (i = 0; i < count; i++)
            ((int64_t *)values->block.at)[row + i] = from[(size_t)i * stride];
    else
        for (i = 0; i < count; i++)
            ((int32_t *)values->block.at)[row + i] = (int32_t)from[(size_t)i * stride];
    return true;
}

/* Distinct byte strings, numbered in order of appearance. */
typedef struct {
    Block bytes, ends; /* all strings in a row; where each ends (size_t) */
    uint32_t count;
    uint32_t *slots, *hashes; /* number + 1 of the string in each slot, 0 for a free one; and its hash */
    uint32_t mask;
} Distinct;

static inline const uint8_t *string_at(const Distinct *all, uint32_t number, size_t *length)
{
    const size_t *ends = (const size_t *)all->ends.at;
    size_t begin = number ? ends[number - 1] : 0;
    *length = ends[number] - begin;
    return all->bytes.at + begin;
}

static inline uint32_t hash_of(const uint8_t *bytes, size_t length)
{
    uint64_t hash = length * 0x9e3779b97f4a7c15u, word;
    for (; length >= 8; bytes += 8, length -= 8) {
        memcpy(&word, bytes, 8);
        hash = (hash ^ word) * 0xff51afd7ed558ccdu;
        hash ^= hash >> 32;
    }
    word = 0;
    for (size_t i = 0; i < length; i++)
        word = word << 8 | bytes[i];
    hash = (hash ^ word) * 0xc4ceb9fe1a85ec53u;
    return (uint32_t)(hash ^ hash >> 32);
}

static inline uint32_t hash_of_numbers(const int64_t *numbers, unsigned count)
{
    uint64_t hash = 0, factor = 0x9e3779b97f4a7c15u;
    for (unsigned i = 0; i < count; i++, factor += 0x3c6ef372fe94f82au)
        hash += ((uint64_t)numbers[i] ^ (uint64_t)numbers[i] >> 32) * factor;
    hash = (hash ^ hash >> 29) * 0xc4ceb9fe1a85ec53u;
    return (uint32_t)(hash >> 32);
}

/* Keys are short, and a call of memcmp costs more than comparing them. */
static inline bool equal(const uint8_t *one, const uint8_t *other, size_t length)
{
    uint64_t a, b;
    if (length > 80 || length % 8)
        return !memcmp(one, other, length);
    for (size_t i = 0; i < length; i += 8) {
        memcpy(&a, one + i, 8);
        memcpy(&b, other + i, 8);
        if (a != b)
            return false;
    }
    return true;
}

static bool rehash(Distinct *all)
{
    size_t room = all->slots ? 2 * ((size_t)all->mask + 1) : 256;
    uint32_t *slots = room <= (size_t)1 << 31 ? calloc(room, sizeof *slots) : NULL;
    uint32_t *hashes = slots ? malloc(room * sizeof *hashes) : NULL;
    if (!hashes) {
        free(slots);
        return false;
    }
    for (size_t i = 0; all->slots && i <= all->mask; i++) {
        if (!all->slots[i])
            continue;
        size_t at = all->hashes[i] & (room - 1);
        while (slots[at])
            at = (at + 1) & (room - 1);
        slots[at] = all->slots[i];
        hashes[at] = all->hashes[i];
    }
    free(all->slots);
    free(all->hashes);
    all->slots = slots;
    all->hashes = hashes;
    all->mask = (uint32_t)(room - 1);
    return true;
}

/* Return the number of a string with this hash, a new one where it was not seen before; -1 without memory. */
static int32_t number_of(Distinct *all, const uint8_t *bytes, size_t length, uint32_t hash)
{
    if ((!all->slots || all->count > all->mask / 2) && !rehash(all))
        return -1;
    uint32_t at = hash & all->mask;
    for (; all->slots[at]; at = (at + 1) & all->mask) {
        size_t held = 0;
        if (all->hashes[at] != hash)
            continue;
        const uint8_t *string = string_at(all, all->slots[at] - 1, &held);
        if (held == length && equal(string, bytes, length))
            return (int32_t)(all->slots[at] - 1);
    }
    size_t begin = all->count ? ((size_t *)all->ends.at)[all->count - 1] : 0, end = begin + length;
    size_t ends = (all->count + (size_t)1) * sizeof(size_t);
    if (all->count == INT32_MAX || (all->bytes.bytes < end && !grow(&all->bytes, end + end / 2)) ||
        (all->ends.bytes < ends && !grow(&all->ends, ends + ends / 2)))
        return -1;
    if (length)
        memcpy(all->bytes.at + begin, bytes, length);
    ((size_t *)all->ends.at)[all->count] = end;
    all->slots[at] = ++all->count;
    all->hashes[at] = hash;
    return (int32_t)all->count - 1;
}

static void forget(Distinct *all)
{
    release(&all->bytes);
    release(&all->ends);
    free(all->slots);
    free(all->hashes);
    all->slots = all->hashes = NULL;
}

#endif
