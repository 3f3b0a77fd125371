/* The range core: annotated code becomes NVTX calls with nothing in between.
 *
 * `Range` is one message, colour, domain, category and payload, turned into NVTX's attributes once. It is the base of
 * `traceable.annotate`. `with` on it costs what a no-op C object costs: its `__enter__` and `__exit__` are descriptors
 * that hand out C functions bound to the object beforehand, so that nothing is allocated. `Function` is a callable
 * wrapped in a push and a pop, called by vectorcall and bound as a method without allocation.
 *
 * `Run` is one run of a coroutine or generator: its whole, and each stretch. It does not know how such code is driven,
 * nor classes or argument checks: those are Python, beside it in `annotation`. What is emitted for named fields and for
 * identities is told in `annotation/emission.py`.
 *
 * The plain nvtxDomain*Ex calls are made whatever nvtxDomainIsEnabled says: the injection of nsys 2022.4 and 2023.4
 * refuses the payload extension, and that function then answers 0 although ranges are heard.
 */
/* In the order in which they need each other. */
#include "core_state.h"
#include "core_domain.h"
#include "core_thread.h"
#include "core_greenlet.h"
#include "core_count.h"
#include "core_payload.h"
#include "core_make.h"
#include "core_range.h"
#include "core_hook.h"
#include "core_function.h"
#include "core_run.h"
#include "core_exit.h"

static State *
module_state(PyObject *module)
{
    return (State *)PyModule_GetState(module);
}

static PyObject *
core_wrap(PyObject *module, PyObject *args)
{
    State *state = module_state(module);
    PyObject *wrapped, *range;
    if (!PyArg_ParseTuple(args, "OO!:wrap", &wrapped, state->range_type, &range)) {
        return NULL;
    }
    /* A functools.partial or a builtin in a class body does not bind as a method; its wrapper must not either. */
    int binds = PyType_HasFeature(Py_TYPE(wrapped), Py_TPFLAGS_METHOD_DESCRIPTOR);
    PyTypeObject *type = binds ? state->function_type : state->callable_type;
    Function *self = (Function *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->call = ((Range *)range)->kind == FIELDS ? function_vectorcall_fields : function_vectorcall;
    Py_INCREF(wrapped);
    self->wrapped = wrapped;
    Py_INCREF(range);
    self->range = (Range *)range;
    return (PyObject *)self;
}

static PyObject *
core_publish(PyObject *module, PyObject *type)
{
    State *state = module_state(module);
    if (!PyType_Check(type) || !PyType_IsSubtype((PyTypeObject *)type, state->range_type)) {
        PyErr_SetString(PyExc_TypeError, "publish needs a subclass of Range");
        return NULL;
    }
    PyObject *spare = silent_range((PyTypeObject *)type);
    if (spare == NULL) {
        return NULL;
    }
    Py_XSETREF(state->spare, spare);
    Py_INCREF(type);
    Py_XSETREF(state->public_type, (PyTypeObject *)type);
    PyDict_Clear(state->by_message);
    ((PyTypeObject *)type)->tp_vectorcall = range_vectorcall;
    Py_RETURN_NONE;
}

static PyObject *
core_silence(PyObject *module, PyObject *Py_UNUSED(ignored))
{
    module_state(module)->silent = 1;
    Py_RETURN_NONE;
}

static PyObject *
core_record_up_to(PyObject *module, PyObject *level)
{
    long number = PyLong_AsLong(level);
    if (number == -1 && PyErr_Occurred()) {
        return NULL;
    }
    module_state(module)->level = (int)number;
    Py_RETURN_NONE;
}

static PyObject *
core_identify(PyObject *module, PyObject *Py_UNUSED(ignored))
{
    atomic_store_explicit(&any_instance, 1, memory_order_relaxed);
    return PyLong_FromUnsignedLongLong(new_identity(innermost(module_state(module)->current)));
}

/* A list of tuples (type, message, color, domain, category, level): the keys of what is interned. */
static PyObject *
core_kept(PyObject *module, PyObject *Py_UNUSED(ignored))
{
    return PyDict_Keys(module_state(module)->interned);
}

static PyMethodDef core_methods[] = {
    {"wrap", core_wrap, METH_VARARGS, "Return a callable that runs `function` inside `range`."},
    {"publish", core_publish, METH_O, "Say which subclass of Range is built by message alone, fastest."},
    {"record_up_to", core_record_up_to, METH_O, "Make every range of a higher level that is built from now on a no-op."},
    {"identify", core_identify, METH_NOARGS, "Return the identity of a new instance, its parent in it."},
    {"kept", core_kept, METH_NOARGS, "Return the type and arguments of each range that is kept for ever."},
    {"when_annotated", core_when_annotated, METH_O, "Call what is given once, when something is annotated next."},
    {"watch_greenlets", core_watch_greenlets, METH_O, "Call what is given once on each thread that pushes a range."},
    {"follow_greenlets", core_follow_greenlets, METH_VARARGS, "Ask two functions before each push and each pop."},
    {"count_by", core_count_by, METH_VARARGS, "Have ranges counted: what returns the slot of one, what opens a table."},
    {"count_in", core_count_in, METH_VARARGS, "Count in this table from here on; whether the collector records."},
    {"silence", core_silence, METH_NOARGS, "Make every range built from now on a no-op."},
    {NULL, NULL, 0, NULL},
};

static int
core_exec(PyObject *module)
{
    watch_exit();
    State *state = module_state(module);
    struct {
        PyTypeObject **type;
        PyType_Spec *spec;
    } types[] = {
        {&state->domain_type, &domain_spec},     {&state->range_type, &range_spec},
        {&state->hook_type, &hook_spec},         {&state->function_type, &function_spec},
        {&state->callable_type, &callable_spec}, {&state->run_type, &run_spec},
    };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        *types[i].type = (PyTypeObject *)PyType_FromModuleAndSpec(module, types[i].spec, NULL);
        if (*types[i].type == NULL) {
            return -1;
        }
    }
    state->domains = PyDict_New();
    state->interned = PyDict_New();
    state->by_message = PyDict_New();
    if (state->domains == NULL || state->interned == NULL || state->by_message == NULL) {
        return -1;
    }
    static const char *const names[] = {"message", "color", "domain", "category", "payload", "level"};
    for (int i = 0; i <= LEVEL; i++) {
        state->names[i] = PyUnicode_InternFromString(names[i]);
        if (state->names[i] == NULL) {
            return -1;
        }
    }
    if (add_hook(state, "__enter__", 0) < 0 || add_hook(state, "__exit__", 1) < 0) {
        return -1;
    }
    state->level = INT_MAX;
    PyObject *outside = PyLong_FromLong(0);
    state->current = outside == NULL ? NULL : PyContextVar_New("traceable_instance", outside);
    Py_XDECREF(outside);
    if (state->current == NULL || PyModule_AddType(module, state->run_type) < 0) {
        return -1;
    }
    Py_INCREF(state->current);
    if (PyModule_AddObject(module, "current", state->current) < 0) {
        Py_DECREF(state->current);
        return -1;
    }
    return PyModule_AddType(module, state->range_type);
}

static int
core_traverse(PyObject *module, visitproc visit, void *arg)
{
    State *state = module_state(module);
    Py_VISIT(state->domain_type);
    Py_VISIT(state->range_type);
    Py_VISIT(state->hook_type);
    Py_VISIT(state->function_type);
    Py_VISIT(state->callable_type);
    Py_VISIT(state->run_type);
    Py_VISIT(state->current);
    Py_VISIT(state->domains);
    Py_VISIT(state->interned);
    Py_VISIT(state->by_message);
    Py_VISIT(state->public_type);
    Py_VISIT(state->spare);
    Py_VISIT(state->slot_of);
    return 0;
}

static int
core_clear(PyObject *module)
{
    State *state = module_state(module);
    Py_CLEAR(state->domain_type);
    Py_CLEAR(state->range_type);
    Py_CLEAR(state->hook_type);
    Py_CLEAR(state->function_type);
    Py_CLEAR(state->callable_type);
    Py_CLEAR(state->run_type);
    Py_CLEAR(state->current);
    Py_CLEAR(state->domains);
    Py_CLEAR(state->interned);
    Py_CLEAR(state->by_message);
    Py_CLEAR(state->public_type);
    Py_CLEAR(state->spare);
    Py_CLEAR(state->slot_of);
    for (int i = 0; i <= LEVEL; i++) {
        Py_CLEAR(state->names[i]);
    }
    return 0;
}

static void
core_free(void *module)
{
    core_clear((PyObject *)module);
}

static PyModuleDef_Slot core_slots[] = {
    {Py_mod_exec, core_exec},
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED},
#endif
#if PY_VERSION_HEX >= 0x030D0000
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef core_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "traceable._native._core",
    .m_doc = "Ranges and annotated callables, emitted straight to NVTX.",
    .m_size = sizeof(State),
    .m_methods = core_methods,
    .m_slots = core_slots,
    .m_traverse = core_traverse,
    .m_clear = core_clear,
    .m_free = core_free,
};

PyMODINIT_FUNC
PyInit__core(void)
{
    return PyModuleDef_Init(&core_module);
}
