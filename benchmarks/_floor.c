/* The controls that need C, built by `_floor.py` when the benchmark runs.
 *
 * `Bound` is the floor of `with`: enter and exit are members that hold functions made beforehand, so that nothing is
 * looked up or allocated that could be avoided. `Methods` is the same no-op with ordinary methods. `push_pop` and
 * `create` call NVTX from C alone, so they cost what the profiler costs.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#include <time.h>

#include <nvtx3/nvToolsExt.h>

typedef struct {
    PyObject_HEAD
    PyObject *enter;
    PyObject *leave;
} Bound;

static PyObject *
nothing_kept(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    Py_INCREF(self);
    return self;
}

static PyObject *
nothing(PyObject *Py_UNUSED(self), PyObject *const *Py_UNUSED(args), Py_ssize_t Py_UNUSED(count))
{
    Py_RETURN_NONE;
}

static PyMethodDef enter_method = {"__enter__", nothing_kept, METH_NOARGS, NULL};
static PyMethodDef exit_method = {"__exit__", (PyCFunction)(void (*)(void))nothing, METH_FASTCALL, NULL};

static int
bound_init(PyObject *object, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    Bound *self = (Bound *)object;
    self->enter = PyCFunction_New(&enter_method, object); /* a cycle, kept: a control exists as long as the process */
    self->leave = PyCFunction_New(&exit_method, object);
    return self->enter && self->leave ? 0 : -1;
}

static PyMemberDef bound_members[] = {
    {"__enter__", T_OBJECT_EX, offsetof(Bound, enter), READONLY, NULL},
    {"__exit__", T_OBJECT_EX, offsetof(Bound, leave), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot bound_slots[] = {{Py_tp_init, bound_init}, {Py_tp_members, bound_members}, {0, NULL}};
static PyType_Spec bound_spec = {"_floor.Bound", sizeof(Bound), 0, Py_TPFLAGS_DEFAULT, bound_slots};

static PyMethodDef methods_methods[] = {
    {"__enter__", nothing_kept, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)(void (*)(void))nothing, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot methods_slots[] = {{Py_tp_methods, methods_methods}, {0, NULL}};
static PyType_Spec methods_spec = {"_floor.Methods", sizeof(PyObject), 0, Py_TPFLAGS_DEFAULT, methods_slots};

static clockid_t clock_used = CLOCK_THREAD_CPUTIME_ID;

static PyObject *
use_wall_clock(PyObject *Py_UNUSED(module), PyObject *wanted)
{
    clock_used = PyObject_IsTrue(wanted) == 1 ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID;
    Py_RETURN_NONE;
}

static long long
now(void)
{
    struct timespec time;
    clock_gettime(clock_used, &time);
    return (long long)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* push_pop(n): ns that n pushes and pops of a registered message take. */
static PyObject *
push_pop(PyObject *Py_UNUSED(module), PyObject *argument)
{
    static nvtxDomainHandle_t domain;
    nvtxEventAttributes_t event = {.version = NVTX_VERSION, .size = NVTX_EVENT_ATTRIB_STRUCT_SIZE};
    long count = PyLong_AsLong(argument);
    if (!domain) {
        domain = nvtxDomainCreateA("floor");
    }
    event.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
    event.message.registered = nvtxDomainRegisterStringA(domain, "c");
    long long begin = now();
    for (long i = 0; i < count; i++) {
        nvtxDomainRangePushEx(domain, &event);
        nvtxDomainRangePop(domain);
    }
    return PyLong_FromLongLong(now() - begin);
}

/* create(n): the same, the domain and the string made anew each time, as a careless wrapper does. */
static PyObject *
create(PyObject *Py_UNUSED(module), PyObject *argument)
{
    nvtxEventAttributes_t event = {.version = NVTX_VERSION, .size = NVTX_EVENT_ATTRIB_STRUCT_SIZE};
    long count = PyLong_AsLong(argument);
    event.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
    long long begin = now();
    for (long i = 0; i < count; i++) {
        nvtxDomainHandle_t domain = nvtxDomainCreateA("made anew");
        event.message.registered = nvtxDomainRegisterStringA(domain, "c");
        nvtxDomainRangePushEx(domain, &event);
        nvtxDomainRangePop(domain);
        nvtxDomainDestroy(domain);
    }
    return PyLong_FromLongLong(now() - begin);
}

static PyMethodDef functions[] = {
    {"use_wall_clock", use_wall_clock, METH_O, NULL},
    {"push_pop", push_pop, METH_O, NULL},
    {"create", create, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_floor", NULL, -1, functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC
PyInit__floor(void)
{
    PyObject *made = PyModule_Create(&module);
    PyObject *bound = PyType_FromSpec(&bound_spec), *methods = PyType_FromSpec(&methods_spec);
    if (!made || !bound || !methods || PyModule_AddObject(made, "Bound", bound) < 0
        || PyModule_AddObject(made, "Methods", methods) < 0) {
        return NULL;
    }
    return made;
}
