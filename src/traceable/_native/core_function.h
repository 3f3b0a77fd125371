/* `Function` and `Callable`: a callable between a push and a pop. Part of core.c. */

#if PY_VERSION_HEX >= 0x030C0000 && PY_VERSION_HEX < 0x030D0000
#define C_CALLS_OF_A_WRAPPER 2
#else
#define C_CALLS_OF_A_WRAPPER 0
#endif

/* CPython 3.12 counts calls that pass through C apart, and ends them with a RecursionError at 1500 (3.12.1): with two
 * for each of ours, a decorated function got there at a depth of 748, before Python's own limit of 1000. What a wrapper
 * takes is given back while it waits, so that Python's limit is the one that holds. */
static inline PyObject *
call_wrapped(PyObject *wrapped, PyObject *const *args, size_t nargsf, PyObject *names)
{
#if C_CALLS_OF_A_WRAPPER
    PyThreadState *thread = PyThreadState_Get();
    thread->c_recursion_remaining += C_CALLS_OF_A_WRAPPER;
    PyObject *result = PyObject_Vectorcall(wrapped, args, nargsf, names);
    thread->c_recursion_remaining -= C_CALLS_OF_A_WRAPPER;
    return result;
#else
    return PyObject_Vectorcall(wrapped, args, nargsf, names);
#endif
}

static PyObject *
function_vectorcall(PyObject *object, PyObject *const *args, size_t nargsf, PyObject *names)
{
    Function *self = (Function *)object;
    Range *range = self->range;
    push(range);
    PyObject *result = call_wrapped(self->wrapped, args, nargsf, names);
    pop(range);
    return result;
}

static PyObject *
function_vectorcall_fields(PyObject *object, PyObject *const *args, size_t nargsf, PyObject *names)
{
    Function *self = (Function *)object;
    push_with_fields(self->range);
    PyObject *result = call_wrapped(self->wrapped, args, nargsf, names);
    pop(self->range);
    return result;
}

static PyObject *
function_get(PyObject *self, PyObject *instance, PyObject *Py_UNUSED(owner))
{
    if (instance == NULL || instance == Py_None) {
        Py_INCREF(self);
        return self;
    }
    return PyMethod_New(self, instance);
}

/* What the wrapper does not have is the wrapped one's: `__code__`, `__globals__`, `cache_info`, ... */
static PyObject *
function_getattro(PyObject *object, PyObject *name)
{
    PyObject *value = PyObject_GenericGetAttr(object, name);
    PyObject *wrapped = ((Function *)object)->wrapped;
    if (value == NULL && wrapped != NULL && PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyErr_Clear();
        value = PyObject_GetAttr(wrapped, name);
    }
    return value;
}

static PyObject *
function_repr(PyObject *object)
{
    return PyUnicode_FromFormat("<annotated %R>", ((Function *)object)->wrapped);
}

/* Pickled, and copied, by its qualified name, as a function is. What does not bind (a partial) may have none: by parts. */
static PyObject *
function_reduce(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    Function *self = (Function *)object;
    if (PyType_HasFeature(Py_TYPE(object), Py_TPFLAGS_METHOD_DESCRIPTOR)) {
        return PyObject_GetAttrString(object, "__qualname__");
    }
    return Py_BuildValue("(O(O))", (PyObject *)self->range, self->wrapped);
}

static int
function_traverse(Function *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->wrapped);
    Py_VISIT(self->range);
    Py_VISIT(self->dict);
    return 0;
}

static int
function_clear(Function *self)
{
    Py_CLEAR(self->dict);
    return 0; /* a wrapper reached again while its cycle is taken apart must still be callable */
}

static void
function_dealloc(Function *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    if (self->weak_references != NULL) {
        PyObject_ClearWeakRefs((PyObject *)self);
    }
    Py_CLEAR(self->dict);
    Py_CLEAR(self->wrapped);
    Py_CLEAR(self->range);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef function_methods[] = {
    {"__reduce__", function_reduce, METH_NOARGS, "Pickle by qualified name."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef function_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Function, call), READONLY, NULL},
    {"__dictoffset__", T_PYSSIZET, offsetof(Function, dict), READONLY, NULL},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Function, weak_references), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

/* To `isinstance` it is what it wraps, as wrapt's proxies are: inspect and torch.compile take it for the function. */
static PyObject *
function_class(Function *self, void *Py_UNUSED(closure))
{
    return PyObject_GetAttrString(self->wrapped, "__class__");
}

static PyGetSetDef function_getset[] = {
    {"__class__", (getter)function_class, NULL, NULL, NULL},
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

#define FUNCTION_SLOTS \
    {Py_tp_call, PyVectorcall_Call}, {Py_tp_getattro, function_getattro}, {Py_tp_repr, function_repr}, \
    {Py_tp_traverse, function_traverse}, {Py_tp_clear, function_clear}, {Py_tp_dealloc, function_dealloc}, \
    {Py_tp_methods, function_methods}, {Py_tp_members, function_members}, {Py_tp_getset, function_getset}

static PyType_Slot function_slots[] = {FUNCTION_SLOTS, {Py_tp_descr_get, function_get}, {0, NULL}};
static PyType_Slot callable_slots[] = {FUNCTION_SLOTS, {0, NULL}};

#define FUNCTION_FLAGS \
    (Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION)

static PyType_Spec function_spec = {
    .name = "traceable._native._core.Function",
    .basicsize = sizeof(Function),
    .flags = FUNCTION_FLAGS | Py_TPFLAGS_METHOD_DESCRIPTOR,
    .slots = function_slots,
};

static PyType_Spec callable_spec = {
    .name = "traceable._native._core.Callable",
    .basicsize = sizeof(Function),
    .flags = FUNCTION_FLAGS,
    .slots = callable_slots,
};
