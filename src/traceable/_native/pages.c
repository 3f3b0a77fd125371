/* The decoder of SQLite tables: whole columns out of a file's pages, some twenty times as fast as row by row.
 *
 * Knows the file format, knows nothing of nsys. It decodes tables as almost all are and refuses the rest with `Unusual`:
 * the caller then lets SQLite read the table. The interpreter's lock is released meanwhile, so that several tables can be
 * decoded at once.
 */
#define PY_SSIZE_T_CLEAN
#define _GNU_SOURCE
#include <Python.h>

#include "pages_table.h"

/* The types of one import of the module. */
typedef struct {
    PyTypeObject *memory;
    PyObject *unusual, *damaged, *stopped;
} State;

/* Memory of a column, handed over to Python. */
typedef struct {
    PyObject_HEAD
    Block block;
    Py_ssize_t bytes;
} Memory;

static int memory_buffer(PyObject *self, Py_buffer *view, int flags)
{
    Memory *memory = (Memory *)self;
    return PyBuffer_FillInfo(view, self, memory->block.at, memory->bytes, 0, flags);
}

static void memory_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    release(&((Memory *)self)->block);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyType_Slot memory_slots[] = {
    {Py_tp_doc, "Values of one column, as a buffer."},
    {Py_tp_dealloc, memory_dealloc},
    {Py_bf_getbuffer, memory_buffer},
    {0, NULL},
};
static PyType_Spec memory_spec = {
    .name = "traceable._native._pages.Memory",
    .basicsize = sizeof(Memory),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = memory_slots,
};

/* Move `block` into a Python object. */
static PyObject *handed_over(const State *state, Block *block, size_t bytes)
{
    Memory *memory = (Memory *)state->memory->tp_alloc(state->memory, 0);
    if (!memory)
        return NULL;
    shrink(block, bytes);
    memory->block = *block;
    memory->bytes = (Py_ssize_t)bytes;
    *block = (Block){0};
    return (PyObject *)memory;
}

static PyObject *values_of(const State *state, const Table *table, Column *column)
{
    Values *values = &column->values;
    if (values->block.at)
        return handed_over(state, &values->block, table->rows * values->width);
    if (!table->rows)
        return PyLong_FromLong(0);
    if (column->kind != REAL)
        return PyLong_FromLongLong(values->same);
    double real;
    memcpy(&real, &values->same, 8);
    return PyFloat_FromDouble(real);
}

static PyObject *texts_of(const Distinct *distinct)
{
    PyObject *texts = PyList_New(distinct->count);
    for (uint32_t i = 0; texts && i < distinct->count; i++) {
        size_t length;
        const char *bytes = (const char *)string_at(distinct, i, &length);
        PyObject *text = PyUnicode_DecodeUTF8(length ? bytes : "", (Py_ssize_t)length, "backslashreplace");
        if (!text)
            Py_CLEAR(texts);
        else
            PyList_SET_ITEM(texts, i, text);
    }
    return texts;
}

static PyObject *result_of(const State *state, const Table *table, Column *column)
{
    PyObject *values = values_of(state, table, column), *distinct = NULL;
    if (!values || (column->kind != KEY && column->kind != TEXT))
        return values;
    if (column->kind == TEXT)
        distinct = texts_of(&column->distinct);
    else
        distinct = handed_over(state, &column->distinct.bytes, (size_t)column->distinct.count * column->width * 8);
    PyObject *pair = distinct ? PyTuple_Pack(2, values, distinct) : NULL;
    Py_DECREF(values);
    Py_XDECREF(distinct);
    return pair;
}

static PyObject *results_of(const State *state, Table *table)
{
    PyObject *results = PyList_New(table->column_count);
    for (unsigned i = 0; results && i < table->column_count; i++) {
        PyObject *result = result_of(state, table, &table->columns[i]);
        if (!result)
            Py_CLEAR(results);
        else
            PyList_SET_ITEM(results, i, result);
    }
    return results ? Py_BuildValue("nN", (Py_ssize_t)table->rows, results) : NULL;
}

/* Fill `column` and its slots from (kind, positions). */
static bool describe(Table *table, Column *column, PyObject *wanted)
{
    int kind;
    PyObject *positions;
    if (!PyArg_ParseTuple(wanted, "iO!", &kind, &PyTuple_Type, &positions))
        return false;
    Py_ssize_t width = PyTuple_GET_SIZE(positions);
    if (kind < INTEGER || kind > TEXT || width < 1 || (kind != KEY && width != 1)) {
        PyErr_SetString(PyExc_ValueError, "no such kind of column");
        return false;
    }
    column->kind = (Kind)kind;
    column->values.width = kind == INTEGER || kind == REAL ? 8 : 4;
    column->width = (unsigned)width;
    column->first_cell = table->cell_count;
    column->last = calloc((size_t)width, sizeof *column->last);
    if (!column->last) {
        PyErr_NoMemory();
        return false;
    }
    for (Py_ssize_t i = 0; i < width; i++) {
        long position = PyLong_AsLong(PyTuple_GET_ITEM(positions, i));
        if (PyErr_Occurred())
            return false;
        if (position < 0 || position >= MOST_COLUMNS || table->slots[position].column) {
            PyErr_SetString(PyExc_ValueError, "a position is out of range or wanted twice");
            return false;
        }
        bool whole = kind != TEXT && kind != REAL && position != table->rowid_column;
        table->slots[position] = (Slot){column, table->cell_count++, whole};
        table->last_wanted = (int)position > table->last_wanted ? (int)position : table->last_wanted;
    }
    return true;
}

static PyObject *run(const State *state, Table *table, unsigned root)
{
    File *file = &table->file;
    bool done;
    Py_BEGIN_ALLOW_THREADS
    done = decode(table, root);
    Py_END_ALLOW_THREADS
    if (done)
        return results_of(state, table);
    if (file->no_memory)
        return PyErr_NoMemory();
    if (file->error) {
        errno = file->error;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    PyErr_SetString(file->stopped ? state->stopped : file->damaged ? state->damaged : state->unusual, file->why);
    return NULL;
}

PyDoc_STRVAR(decode_doc, "Decode columns of the table with the b-tree at page `root`; see _pages.pyi.");

/* As `decode_table`, with the arguments taken apart. */
static PyObject *decoded(const State *state, File file, unsigned root, int rowid_column, PyObject *wanted)
{
    Table *table = calloc(1, sizeof *table);
    PyObject *result = NULL;
    if (!table)
        return PyErr_NoMemory();
    table->file = file;
    table->rowid_column = rowid_column;
    table->last_wanted = -1;
    table->columns = calloc((size_t)PyTuple_GET_SIZE(wanted) + 1, sizeof *table->columns);
    bool described = table->columns || PyErr_NoMemory();
    for (Py_ssize_t i = 0; described && i < PyTuple_GET_SIZE(wanted); i++)
        described = describe(table, &table->columns[table->column_count++], PyTuple_GET_ITEM(wanted, i));
    if (described)
        result = run(state, table, root);
    if (table->columns)
        clear(table);
    free(table);
    return result;
}

static PyObject *decode_table(PyObject *module, PyObject *args)
{
    int descriptor, rowid_column;
    unsigned page_size, usable, page_count, root;
    PyObject *wanted, *result = NULL;
    Py_buffer stop;
    if (!PyArg_ParseTuple(args, "iIIIIiO!y*", &descriptor, &page_size, &usable, &page_count, &root, &rowid_column,
                          &PyTuple_Type, &wanted, &stop))
        return NULL;
    if (page_size < 512 || page_size > 65536 || page_size & (page_size - 1) || usable < 480 || usable > page_size)
        PyErr_SetString(PyExc_ValueError, "no such size of pages");
    else if (stop.len < 1)
        PyErr_SetString(PyExc_ValueError, "nothing to be stopped by");
    else {
        File file = {.descriptor = descriptor, .page_size = page_size, .usable = usable, .page_count = page_count};
        file.stop = stop.buf;
        result = decoded(PyModule_GetState(module), file, root, rowid_column, wanted);
    }
    PyBuffer_Release(&stop);
    return result;
}

static PyMethodDef methods[] = {
    {"decode", decode_table, METH_VARARGS, decode_doc},
    {NULL, NULL, 0, NULL},
};

static int add_types(PyObject *module)
{
    State *state = PyModule_GetState(module);
    state->memory = (PyTypeObject *)PyType_FromSpec(&memory_spec);
    state->unusual = PyErr_NewException("traceable._native._pages.Unusual", NULL, NULL);
    state->damaged = PyErr_NewException("traceable._native._pages.Damaged", state->unusual, NULL);
    state->stopped = PyErr_NewException("traceable._native._pages.Stopped", NULL, NULL);
    if (!state->memory || !state->unusual || !state->damaged || !state->stopped)
        return -1;
    return PyModule_AddIntMacro(module, INTEGER) || PyModule_AddIntMacro(module, SMALL) ||
                   PyModule_AddIntMacro(module, REAL) || PyModule_AddIntMacro(module, KEY) ||
                   PyModule_AddIntMacro(module, TEXT) || PyModule_AddObjectRef(module, "Unusual", state->unusual) ||
                   PyModule_AddObjectRef(module, "Damaged", state->damaged) ||
                   PyModule_AddObjectRef(module, "Stopped", state->stopped)
               ? -1
               : 0;
}

static int traverse(PyObject *module, visitproc visit, void *arg)
{
    State *state = PyModule_GetState(module);
    Py_VISIT(state->memory);
    Py_VISIT(state->unusual);
    Py_VISIT(state->damaged);
    Py_VISIT(state->stopped);
    return 0;
}

static int clear_types(PyObject *module)
{
    State *state = PyModule_GetState(module);
    Py_CLEAR(state->memory);
    Py_CLEAR(state->unusual);
    Py_CLEAR(state->damaged);
    Py_CLEAR(state->stopped);
    return 0;
}

static void free_types(void *module) { (void)clear_types((PyObject *)module); }

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, add_types},
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED},
#endif
#if PY_VERSION_HEX >= 0x030D0000
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "traceable._native._pages",
    .m_doc = "Columns out of the pages of an SQLite file.",
    .m_size = sizeof(State),
    .m_methods = methods,
    .m_slots = slots,
    .m_traverse = traverse,
    .m_clear = clear_types,
    .m_free = free_types,
};

PyMODINIT_FUNC PyInit__pages(void) { return PyModuleDef_Init(&definition); }
