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

static PyObject *unusual_error, *damaged_error;

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
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = memory_slots,
};
static PyTypeObject *memory_type;

/* Move `block` into a Python object. */
static PyObject *handed_over(Block *block, size_t bytes)
{
    Memory *memory = (Memory *)memory_type->tp_alloc(memory_type, 0);
    if (!memory)
        return NULL;
    shrink(block, bytes);
    memory->block = *block;
    memory->bytes = (Py_ssize_t)bytes;
    *block = (Block){0};
    return (PyObject *)memory;
}

static PyObject *values_of(const Table *table, Column *column)
{
    Values *values = &column->values;
    if (values->block.at)
        return handed_over(&values->block, table->rows * values->width);
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

static PyObject *result_of(const Table *table, Column *column)
{
    PyObject *values = values_of(table, column), *distinct = NULL;
    if (!values || (column->kind != KEY && column->kind != TEXT))
        return values;
    if (column->kind == TEXT)
        distinct = texts_of(&column->distinct);
    else
        distinct = handed_over(&column->distinct.bytes, (size_t)column->distinct.count * column->width * 8);
    PyObject *pair = distinct ? PyTuple_Pack(2, values, distinct) : NULL;
    Py_DECREF(values);
    Py_XDECREF(distinct);
    return pair;
}

static PyObject *results_of(Table *table)
{
    PyObject *results = PyList_New(table->column_count);
    for (unsigned i = 0; results && i < table->column_count; i++) {
        PyObject *result = result_of(table, &table->columns[i]);
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

static PyObject *run(Table *table, unsigned root)
{
    File *file = &table->file;
    bool done;
    Py_BEGIN_ALLOW_THREADS
    done = decode(table, root);
    Py_END_ALLOW_THREADS
    if (done)
        return results_of(table);
    if (file->no_memory)
        return PyErr_NoMemory();
    PyErr_SetString(file->damaged ? damaged_error : unusual_error, file->why);
    return NULL;
}

PyDoc_STRVAR(decode_doc, "Decode columns of the table with the b-tree at page `root`; see _pages.pyi.");

static PyObject *decode_table(PyObject *module, PyObject *args)
{
    (void)module;
    int descriptor, rowid_column;
    unsigned page_size, usable, page_count, root;
    PyObject *wanted;
    if (!PyArg_ParseTuple(args, "iIIIIiO!", &descriptor, &page_size, &usable, &page_count, &root, &rowid_column,
                          &PyTuple_Type, &wanted))
        return NULL;
    if (page_size < 512 || page_size > 65536 || page_size & (page_size - 1) || usable < 480 || usable > page_size) {
        PyErr_SetString(PyExc_ValueError, "no such size of pages");
        return NULL;
    }
    Table *table = calloc(1, sizeof *table);
    PyObject *result = NULL;
    if (!table)
        return PyErr_NoMemory();
    table->file = (File){.descriptor = descriptor, .page_size = page_size, .usable = usable, .page_count = page_count};
    table->rowid_column = rowid_column;
    table->last_wanted = -1;
    table->columns = calloc((size_t)PyTuple_GET_SIZE(wanted) + 1, sizeof *table->columns);
    bool described = table->columns || PyErr_NoMemory();
    for (Py_ssize_t i = 0; described && i < PyTuple_GET_SIZE(wanted); i++)
        described = describe(table, &table->columns[table->column_count++], PyTuple_GET_ITEM(wanted, i));
    if (described)
        result = run(table, root);
    if (table->columns)
        clear(table);
    free(table);
    return result;
}

static PyMethodDef methods[] = {
    {"decode", decode_table, METH_VARARGS, decode_doc},
    {NULL, NULL, 0, NULL},
};

static int add_types(PyObject *module)
{
    PyObject *memory = PyType_FromSpec(&memory_spec);
    memory_type = (PyTypeObject *)memory;
    if (!memory || PyModule_AddIntMacro(module, INTEGER) || PyModule_AddIntMacro(module, SMALL) ||
        PyModule_AddIntMacro(module, REAL) || PyModule_AddIntMacro(module, KEY) || PyModule_AddIntMacro(module, TEXT))
        return -1;
    unusual_error = PyErr_NewException("traceable._native._pages.Unusual", NULL, NULL);
    damaged_error = unusual_error ? PyErr_NewException("traceable._native._pages.Damaged", unusual_error, NULL) : NULL;
    if (!damaged_error)
        return -1;
    Py_INCREF(unusual_error);
    Py_INCREF(damaged_error);
    return PyModule_AddObject(module, "Unusual", unusual_error) || PyModule_AddObject(module, "Damaged", damaged_error)
               ? -1
               : 0;
}

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "traceable._native._pages",
    .m_doc = "Columns out of the pages of an SQLite file.",
    .m_size = -1,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__pages(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (module && add_types(module) < 0)
        Py_CLEAR(module);
    return module;
}
