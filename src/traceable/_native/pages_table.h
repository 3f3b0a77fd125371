/* The b-tree of one table with rowids, decoded into columns.
 *
 * What SQLite itself accepts is the measure: on all that it might read in another way, or refuse, decoding ends with a
 * reason, and the caller lets SQLite read the table. Every access is inside a buffer whatever the file holds.
 */
#ifndef TRACEABLE_PAGES_TABLE_H
#define TRACEABLE_PAGES_TABLE_H

#include <math.h>

#include "pages_columns.h"

#define DEEPEST 19
#define MOST_COLUMNS 2000
#define LONGEST_RECORD 1000000000u
#define ROWS_AT_ONCE 128

enum { TABLE_LEAF = 0x0d, TABLE_INTERIOR = 0x05 };

/* What a column is read as. INTEGER: int64. SMALL: int32, -1 for NULL and all that is no such number. REAL: float64.
 * KEY: several columns of integers together, numbered by their distinct values. TEXT: text or bytes, numbered likewise. */
typedef enum { INTEGER, SMALL, REAL, KEY, TEXT } Kind;

/* Cells of a row: one for each column of the table that is wanted, those of a key side by side. */
typedef struct {
    Kind kind;
    Values values;
    Distinct distinct;
    unsigned first_cell, width; /* its cells: [first_cell, first_cell + width) */
    int64_t *last;              /* of a key: the cells of the last row, and their number */
    int32_t last_number;
} Column;

/* What happens to a column of the table. */
typedef struct {
    Column *column; /* NULL: not wanted */
    unsigned cell;
    bool whole; /* holds whole numbers as they stand */
} Slot;

typedef struct {
    File file;
    Column *columns;
    unsigned column_count, cell_count;
    Slot slots[MOST_COLUMNS];
    int last_wanted, rowid_column;
    size_t rows, capacity;
    int64_t *cells; /* of the rows that are not in the columns yet, ROWS_AT_ONCE at most */
    unsigned waiting;
    uint8_t *visited, *levels[DEEPEST + 1];
    Block whole; /* a record with its overflow pages */
    uint32_t most_local, least_local;
} Table;

static inline int64_t integer_at(const uint8_t *p, unsigned bytes)
{
    return (int64_t)eight(p) >> (64 - 8 * bytes);
}

static bool lacks_memory(Table *table) { return out_of_memory(&table->file); }

static int64_t bits_of(double real)
{
    int64_t bits;
    memcpy(&bits, &real, 8);
    return bits;
}

static bool take_null(const Column *column, int64_t *cell)
{
    *cell = column->kind == TEXT ? -1 : column->kind == REAL ? bits_of(NAN) : ABSENT;
    return true;
}

static bool take_integer(Table *table, const Column *column, int64_t value, int64_t *cell)
{
    *cell = column->kind == REAL ? bits_of((double)value) : value;
    return column->kind != TEXT || unusual(&table->file, "a number in a column of text");
}

static bool take_real(Table *table, const Column *column, const uint8_t *p, int64_t *cell)
{
    *cell = (int64_t)eight(p); /* The bits of it. SQLite reads NaN as NULL, which is NaN here. */
    return column->kind == REAL || unusual(&table->file, "a fraction in another column");
}

static bool take_text(Table *table, Column *column, const uint8_t *p, size_t length, int64_t *cell)
{
    Distinct *distinct = &column->distinct;
    size_t held = 0;
    if (column->kind != TEXT)
        return unusual(&table->file, "text in a column of numbers");
    const uint8_t *last = distinct->count ? string_at(distinct, (uint32_t)column->last_number, &held) : NULL;
    if (!last || held != length || !equal(last, p, length))
        column->last_number = number_of(distinct, p, length, hash_of(p, length));
    *cell = column->last_number;
    return column->last_number >= 0 || lacks_memory(table);
}

/* Take the value of one column, of serial type `type`, that lies at `p`. */
static bool take(Table *table, int index, uint64_t type, const uint8_t *p, size_t length, int64_t rowid, int64_t *cell)
{
    Column *column = table->slots[index].column;
    if (index == table->rowid_column)
        return type ? unusual(&table->file, "a row that states its own id") : take_integer(table, column, rowid, cell);
    if (type >= 12)
        return take_text(table, column, p, length, cell);
    if (type == 0)
        return take_null(column, cell);
    if (type == 7)
        return take_real(table, column, p, cell);
    int64_t value = type >= 8 ? (int64_t)type - 8 : integer_at(p, (unsigned)length);
    return take_integer(table, column, value, cell);
}

static bool number_keys(Table *table, Column *column)
{
    size_t bytes = column->width * sizeof(int64_t);
    int64_t *cells = table->cells + column->first_cell;
    for (unsigned row = 0; row < table->waiting; row++, cells += table->cell_count) {
        if (!column->distinct.count || !equal((const uint8_t *)cells, (const uint8_t *)column->last, bytes)) {
            uint32_t hash = hash_of_numbers(cells, column->width);
            column->last_number = number_of(&column->distinct, (const uint8_t *)cells, bytes, hash);
            if (column->last_number < 0)
                return false;
            memcpy(column->last, cells, bytes);
        }
        *cells = column->last_number;
    }
    return true;
}

/* Move the rows that wait into the columns. */
static bool flush(Table *table)
{
    for (unsigned i = 0; i < table->column_count; i++) {
        Column *column = &table->columns[i];
        int64_t *cells = table->cells + column->first_cell;
        if (column->kind == KEY && !number_keys(table, column))
            return lacks_memory(table);
        for (unsigned row = 0; column->kind == SMALL && row < table->waiting; row++) {
            int64_t *cell = cells + (size_t)row * table->cell_count;
            *cell = *cell < 0 || *cell > INT32_MAX ? -1 : *cell;
        }
        if (!append(&column->values, table->rows, table->capacity, cells, table->waiting, table->cell_count))
            return lacks_memory(table);
    }
    table->rows += table->waiting;
    table->waiting = 0;
    return true;
}

static inline bool content_length(uint64_t type, uint64_t *length)
{
    static const uint8_t lengths[] = {0, 1, 2, 3, 4, 6, 8, 8, 0, 0};
    *length = type < 10 ? lengths[type] : (type - 12) / 2;
    return type < 10 || (type >= 12 && type <= UINT32_MAX);
}

/* Decode the record whose first `local` of `payload` bytes lie at `record`. With `need`, only find out how many of its
 * bytes the wanted columns reach to. */
static bool record(Table *table, const uint8_t *record, uint64_t local, uint64_t payload, int64_t rowid, uint64_t *need)
{
    File *file = &table->file;
    uint64_t header, type = 0, length = 0;
    int64_t *cells = table->cells + (size_t)table->waiting * table->cell_count;
    const uint8_t *type_at = varint(record, record + local, &header);
    if (!type_at || header > local || header <= (uint64_t)(type_at - record))
        return unusual(file, "the header of a record");
    const uint8_t *types_end = record + header;
    uint64_t offset = header;
    int index = 0;
    for (; index <= table->last_wanted && type_at < types_end; index++) {
        const Slot *slot = &table->slots[index];
        type_at = varint(type_at, types_end, &type);
        if (!type_at || !content_length(type, &length) || length > payload - offset)
            return unusual(file, "the header of a record");
        if (slot->column) {
            if (need)
                *need = offset + length;
            else if (offset + length > local)
                return unusual(file, "a record that is cut off");
            else if (type - 1 < 6 && slot->whole)
                cells[slot->cell] = integer_at(record + offset, (unsigned)length);
            else if (!take(table, index, type, record + offset, length, rowid, &cells[slot->cell]))
                return false;
        }
        offset += length;
    }
    if (type_at == types_end && offset != payload)
        return unusual(file, "a record longer than its columns");
    if (need)
        return true;
    /* Columns that were added to the table after the row hold NULL: those with another default don't come here. */
    for (; index <= table->last_wanted; index++) {
        if (index == table->rowid_column)
            return unusual(file, "a row without its id");
        if (table->slots[index].column)
            take_null(table->slots[index].column, &cells[table->slots[index].cell]);
    }
    return ++table->waiting < ROWS_AT_ONCE || flush(table);
}

/* Take note of a page. Each belongs to one place of one table; without this a small file could send us in circles, or
 * have every row of it hold the same gigabyte. */
static bool first_visit(Table *table, uint32_t number)
{
    uint8_t *byte = &table->visited[number / 8], bit = (uint8_t)(1 << number % 8);
    if (*byte & bit)
        return damaged(&table->file, "page_repeated");
    *byte |= bit;
    return true;
}

/* Copy the first `need` bytes of a record that goes on in overflow pages. `local` is copied, as is `next`: reading
 * another page may end the life of the one they lie on. */
static bool assemble(Table *table, const uint8_t *start, uint64_t local, uint32_t next, uint64_t need)
{
    File *file = &table->file;
    if (!grow(&table->whole, need + PADDING))
        return lacks_memory(table);
    memcpy(table->whole.at, start, local);
    for (uint64_t have = local; have < need;) {
        const uint8_t *page = page_at(file, next);
        if (!page || !first_visit(table, next))
            return false;
        uint64_t piece = file->usable - 4 < need - have ? file->usable - 4 : need - have;
        memcpy(table->whole.at + have, page + 4, piece);
        next = four(page);
        have += piece;
    }
    return true;
}

/* Decode the cell at `cell` of a leaf that ends at `end`; its bytes there are added to `used`. Sets `moved` where the
 * page has left the window. */
static bool leaf_cell(Table *table, const uint8_t *cell, const uint8_t *end, uint64_t *used, bool *moved)
{
    File *file = &table->file;
    uint64_t payload, rowid, need = 0;
    const uint8_t *p = varint(cell, end, &payload);
    p = p ? varint(p, end, &rowid) : NULL;
    if (!p || payload > LONGEST_RECORD)
        return damaged(file, "cell");
    *used += (uint64_t)(p - cell);
    if (payload <= table->most_local) {
        *used += payload;
        return (uint64_t)(end - p) >= payload ? record(table, p, payload, payload, (int64_t)rowid, NULL)
                                              : damaged(file, "cell_too_long");
    }
    uint64_t local = table->least_local + (payload - table->least_local) % (file->usable - 4);
    local = local > table->most_local ? table->least_local : local;
    if ((uint64_t)(end - p) < local + 4 || payload / file->usable > file->page_count)
        return damaged(file, "cell_too_long");
    *used += local + 4;
    if (!record(table, p, local, payload, (int64_t)rowid, &need))
        return false;
    if (need <= local)
        return record(table, p, local, payload, (int64_t)rowid, NULL);
    *moved = true;
    return assemble(table, p, local, four(p + local), need) &&
           record(table, table->whole.at, need, payload, (int64_t)rowid, NULL);
}

static bool make_room(Table *table, size_t more)
{
    more += table->rows + table->waiting;
    if (more <= table->capacity)
        return true;
    table->capacity = more + more / 2 + 64;
    for (unsigned i = 0; i < table->column_count; i++) {
        Values *values = &table->columns[i].values;
        if (values->block.at && !grow(&values->block, table->capacity * values->width))
            return lacks_memory(table);
    }
    return true;
}

static bool leaf(Table *table, const uint8_t *page, uint32_t number, bool root)
{
    File *file = &table->file;
    unsigned cells = two(page + 3);
    uint32_t first = 8 + 2 * cells;
    uint64_t used = first;
    if (first > file->usable || (!cells && !root))
        return damaged(file, "cell_count");
    if (!make_room(table, cells))
        return false;
    for (unsigned i = 0; i < cells; i++) {
        uint32_t at = two(page + 8 + 2 * i);
        bool moved = false;
        if (at < first || at >= file->usable)
            return damaged(file, "cell_pointer");
        if (!leaf_cell(table, page + at, page + file->usable, &used, &moved))
            return false;
        if (moved && !(page = page_at(file, number)))
            return false;
    }
    /* Else two bytes of a file would be a row of dozens, and a small file fill the memory. */
    return used <= file->usable || damaged(file, "cells_overlap");
}

static bool subtree(Table *table, uint32_t number, int depth);

static bool interior(Table *table, const uint8_t *page, int depth)
{
    File *file = &table->file;
    if (!table->levels[depth] && !(table->levels[depth] = malloc(file->page_size)))
        return lacks_memory(table);
    page = memcpy(table->levels[depth], page, file->page_size);
    unsigned cells = two(page + 3);
    uint32_t first = 12 + 2 * cells;
    if (!cells || first > file->usable)
        return damaged(file, "cell_count");
    for (unsigned i = 0; i < cells; i++) {
        uint32_t at = two(page + 12 + 2 * i);
        if (at < first || at + 5 > file->usable)
            return damaged(file, "cell_pointer");
        if (!subtree(table, four(page + at), depth + 1))
            return false;
    }
    return subtree(table, four(page + 8), depth + 1);
}

static bool subtree(Table *table, uint32_t number, int depth)
{
    File *file = &table->file;
    const uint8_t *page = page_at(file, number);
    if (!page || !first_visit(table, number))
        return false;
    if (page[0] == TABLE_LEAF)
        return leaf(table, page, number, depth == 0);
    if (page[0] != TABLE_INTERIOR)
        return unusual(file, "a page of another kind");
    return depth < DEEPEST ? interior(table, page, depth) : unusual(file, "the depth of the table");
}

/* Decode the table at page `root`. On false `file.why` says the reason. */
static bool decode(Table *table, uint32_t root)
{
    File *file = &table->file;
    table->most_local = file->usable - 35;
    table->least_local = (file->usable - 12) * 32 / 255 - 23;
    table->visited = calloc(1, file->page_count / 8 + (size_t)1);
    table->cells = calloc((size_t)table->cell_count * ROWS_AT_ONCE + 1, sizeof *table->cells);
    if (!table->visited || !table->cells || !open_file(file))
        return lacks_memory(table);
    return subtree(table, root, 0) && flush(table);
}

static void clear(Table *table)
{
    free(table->file.window);
    free(table->visited);
    free(table->cells);
    release(&table->whole);
    for (int i = 0; i <= DEEPEST; i++)
        free(table->levels[i]);
    for (unsigned i = 0; i < table->column_count; i++) {
        release(&table->columns[i].values.block);
        forget(&table->columns[i].distinct);
        free(table->columns[i].last);
    }
    free(table->columns);
}

#endif
