/* How many ranges were opened, by name, in a table that outlives the process. Part of core.c.
 *
 * The table is a file of the run directory, which `annotation/counts.py` makes and describes; here one word of it is
 * counted up after each push and start. A range knows its word by its slot, 0 where nobody counts. An entry has two
 * words: what was opened while the collector was certain to record, and all else.
 *
 * A range is counted after it was emitted, so that a process which dies in between has recorded one more than it
 * counted, and never one less. With the GIL nothing comes between the two. Without it a window may: what began in
 * another phase than it ended in is not certain to be recorded.
 */
#define ENTRY_WORDS 16
#define ENTRIES_MAX 1024

/* Counts of a forked child that has no table yet, which nobody reads: the parent's is not its own. */
static uint64_t nowhere[ENTRIES_MAX * ENTRY_WORDS];
static Py_buffer counted_table;
static int watches_forks;

#ifdef Py_GIL_DISABLED
static _Atomic(uint64_t *) counted = nowhere;
static _Atomic uint32_t count_phase; /* odd while the collector is certain to record */
#define COUNT_PHASE() atomic_load_explicit(&count_phase, memory_order_acquire)

static inline void
count_range(uint32_t slot, uint32_t before)
{
    if (slot != 0) {
        uint32_t now = COUNT_PHASE();
        uint64_t *word = atomic_load_explicit(&counted, memory_order_relaxed) + slot + (now == before && now & 1 ? 0 : 1);
        atomic_fetch_add_explicit((_Atomic uint64_t *)word, 1, memory_order_relaxed);
    }
}

static void
set_counted(uint64_t *table, int certain)
{
    uint32_t phase = COUNT_PHASE() + 1; /* another one in any case */
    atomic_store_explicit(&counted, table, memory_order_relaxed);
    atomic_store_explicit(&count_phase, phase % 2 == (uint32_t)certain ? phase : phase + 1, memory_order_release);
}
#else
static uint64_t *counted = nowhere; /* the table, and the word of an entry that is counted now */
#define COUNT_PHASE() 0

static inline void
count_range(uint32_t slot, uint32_t Py_UNUSED(before))
{
    if (slot != 0) {
        counted[slot]++;
    }
}

static void
set_counted(uint64_t *table, int certain)
{
    counted = table + (certain ? 0 : 1);
}
#endif

/* In a forked child: a table of its own is made when it opens its first range. Most children never do. */
static void
count_nowhere(void)
{
    set_counted(nowhere, 0);
    count_pending = count_opener != NULL;
    thread_named = 0;
}

/* Return the slot of a new range, 0 for one that is not counted. No error comes of it. */
static uint32_t
slot_of(State *state, PyObject *domain, PyObject *message)
{
    if (state->slot_of == NULL) {
        return 0;
    }
    PyObject *number = PyObject_CallFunctionObjArgs(state->slot_of, domain, message, NULL);
    unsigned long slot = number == NULL ? 0 : PyLong_AsUnsignedLong(number);
    Py_XDECREF(number);
    if (PyErr_Occurred()) {
        PyErr_Clear();
        return 0;
    }
    return slot < ENTRIES_MAX * ENTRY_WORDS - 1 ? (uint32_t)slot : 0;
}

static PyObject *
core_count_by(PyObject *module, PyObject *args)
{
    State *state = (State *)PyModule_GetState(module);
    PyObject *callable, *opener;
    if (!PyArg_ParseTuple(args, "OO:count_by", &callable, &opener)) {
        return NULL;
    }
    if (!watches_forks && pthread_atfork(NULL, NULL, count_nowhere) != 0) {
        return PyErr_NoMemory();
    }
    watches_forks = 1;
    Py_INCREF(opener);
    Py_XSETREF(count_opener, opener);
    Py_INCREF(callable);
    Py_XSETREF(state->slot_of, callable);
    Py_RETURN_NONE;
}

static PyObject *
core_count_in(PyObject *module, PyObject *args)
{
    PyObject *table;
    int certain;
    Py_buffer buffer;
    if (!PyArg_ParseTuple(args, "Op:count_in", &table, &certain)) {
        return NULL;
    }
    if (((State *)PyModule_GetState(module))->slot_of == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "count_in needs count_by before it");
        return NULL;
    }
    if (PyObject_GetBuffer(table, &buffer, PyBUF_WRITABLE) < 0) {
        return NULL;
    }
    if (buffer.len < (Py_ssize_t)sizeof nowhere) {
        PyBuffer_Release(&buffer);
        PyErr_SetString(PyExc_ValueError, "the table is too small");
        return NULL;
    }
    /* That of before stays where it is: another thread may be counting in it. */
    counted_table = buffer;
    set_counted((uint64_t *)counted_table.buf, certain);
    Py_RETURN_NONE;
}

/* Every push and start of ours. */
static inline void
emit_push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *attributes, uint32_t slot)
{
    uint32_t phase = COUNT_PHASE();
    nvtxDomainRangePushEx(domain, attributes);
    count_range(slot, phase);
}

static inline nvtxRangeId_t
emit_start(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *attributes, uint32_t slot)
{
    uint32_t phase = COUNT_PHASE();
    nvtxRangeId_t id = nvtxDomainRangeStartEx(domain, attributes);
    count_range(slot, phase);
    return id;
}
