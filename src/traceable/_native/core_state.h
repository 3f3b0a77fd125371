/* The objects of the range core, the module's state, and how it is found. Part of core.c: included there, once. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <nvtx3/nvToolsExt.h>

/* Distinct ranges and registered strings kept for ever. What comes after them still arrives, built at each use: a
 * message made from a request id must not grow the process without end. */
#define INTERNED_MAX 4096

/* message, color, domain, category, payload; then the level, by keyword alone */
#define ARGUMENTS 5
#define LEVEL 5

/* What a range does when it is entered: emit; nothing (disabled, or its level is not recorded); emit with fields. */
enum { PLAIN, SILENT, FIELDS };

#if PY_VERSION_HEX >= 0x030D0000
#define LOCKED(object) Py_BEGIN_CRITICAL_SECTION(object)
#define UNLOCKED() Py_END_CRITICAL_SECTION()
#else
#define LOCKED(object) {
#define UNLOCKED() }
#endif

typedef struct {
    PyObject_HEAD
    nvtxDomainHandle_t handle;
    PyObject *strings;    /* {str: int}: the handles of registered strings */
    PyObject *categories; /* {str: int} */
} Domain;

typedef struct {
    PyObject_HEAD
    nvtxDomainHandle_t domain;
    nvtxEventAttributes_t attributes;
    int kind;
    int level;
    uint32_t slot; /* where it is counted (core_count.h), 0 for nowhere */
    char silent; /* kind == SILENT, for Python */
    PyObject *enter;     /* bound beforehand, in interned ranges alone: a cycle, so never in short-lived ones */
    PyObject *leave;
    PyObject *arguments; /* (message, color, domain, category, payload), as they were given */
    PyObject *message;   /* owns the bytes of a message that is not registered */
    PyObject *fields;    /* the payload's named fields as JSON, or NULL */
    PyObject *current;   /* the context variable of its module */
} Range;

typedef struct {
    PyObject_HEAD
    PyTypeObject *range_type;
    int leaves;
} Hook;

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *wrapped;
    Range *range;
    PyObject *dict;
    PyObject *weak_references;
} Function;

typedef struct {
    PyObject_HEAD
    nvtxDomainHandle_t domain; /* of the stretches */
    nvtxEventAttributes_t stretch;
    uint32_t slot; /* of the stretches */
    nvtxDomainHandle_t whole_domain;
    nvtxRangeId_t whole;
    int open;
    PyObject *current; /* the context variable */
    PyObject *inside;  /* its value while the code runs, and outside of it */
    PyObject *outside;
    uint32_t around;   /* the instance whose stretch the thread was in before this one's */
    PyObject *message; /* owns the bytes of a message that is not registered */
} Run;

typedef struct {
    PyTypeObject *domain_type;
    PyTypeObject *range_type;
    PyTypeObject *hook_type;
    PyTypeObject *function_type;
    PyTypeObject *callable_type;
    PyTypeObject *run_type;
    PyObject *current; /* context variable: the number of the innermost instance, 0 outside of all */
    PyObject *domains;  /* {str or None: Domain} */
    PyObject *interned; /* {(type, message, color, domain, category, level): Range} */
    PyObject *by_message; /* {message: Range} of the public type with nothing but a message */
    PyTypeObject *public_type;
    PyObject *spare; /* a silent range of the public type */
    PyObject *slot_of; /* returns the slot of a range by domain and message; NULL where nobody counts */
    PyObject *names[ARGUMENTS + 1];
    int silent;
    int level; /* ranges of a higher one are silent */
} State;

static struct PyModuleDef core_module;

/* Look `key` up: 1 and a new reference, 0 and NULL where it is missing, -1 on an error. */
static int
dict_get(PyObject *dict, PyObject *key, PyObject **value)
{
#if PY_VERSION_HEX >= 0x030D0000
    return PyDict_GetItemRef(dict, key, value);
#else
    PyObject *found = PyDict_GetItemWithError(dict, key);
    *value = found;
    Py_XINCREF(found);
    return found != NULL ? 1 : (PyErr_Occurred() ? -1 : 0);
#endif
}

/* The module's state from a type of ours or a Python subclass of one. */
static State *
state_of(PyTypeObject *type)
{
    State *state = NULL;
#if PY_VERSION_HEX >= 0x030B0000
    PyObject *module = PyType_GetModuleByDef(type, &core_module);
    if (module == NULL) {
        return NULL;
    }
    state = (State *)PyModule_GetState(module);
#else
    for (; type != NULL; type = type->tp_base) {
        PyObject *module = PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) ? PyType_GetModule(type) : NULL;
        if (module != NULL && PyModule_GetDef(module) == &core_module) {
            state = (State *)PyModule_GetState(module);
            break;
        }
        PyErr_Clear();
    }
#endif
    if (state == NULL || state->interned == NULL) { /* a finaliser that runs after the modules were cleared */
        PyErr_SetString(PyExc_RuntimeError, "the interpreter is shutting down");
        return NULL;
    }
    return state;
}

/* Call `traceable.annotation.arguments.<name>`: the checks are Python and run once for each distinct range. */
static PyObject *
call_arguments(const char *name, const char *format, PyObject *argument)
{
    PyObject *module = PyImport_ImportModule("traceable.annotation.arguments");
    if (module == NULL) {
        return NULL;
    }
    PyObject *result = PyObject_CallMethod(module, name, format, argument);
    Py_DECREF(module);
    return result;
}
