/* `Range`: what it does, and its type. How it is made is core_make.h. Part of core.c. */
static int
range_traverse(Range *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->enter);
    Py_VISIT(self->leave);
    Py_VISIT(self->arguments);
    Py_VISIT(self->message);
    return 0;
}

static int
range_clear(Range *self)
{
    Py_CLEAR(self->enter);
    Py_CLEAR(self->leave);
    Py_CLEAR(self->arguments);
    return 0; /* the message stays until the end: NVTX may still be handed its bytes */
}

static void
range_dealloc(Range *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    range_clear(self);
    Py_CLEAR(self->message);
    Py_CLEAR(self->fields);
    Py_CLEAR(self->current);
    type->tp_free(self);
    Py_DECREF(type);
}

/* The same range with another payload: the instance id of a coroutine's or generator's run. */
static PyObject *
range_numbered(Range *self, PyObject *payload)
{
    return (PyObject *)range_with_payload(Py_TYPE(self), self, self->arguments, payload);
}

static PyObject *
range_push(Range *self, PyObject *Py_UNUSED(ignored))
{
    if (self->kind == PLAIN) {
        push(self);
    }
    else if (self->kind == FIELDS) {
        push_with_fields(self);
    }
    Py_RETURN_NONE;
}

static PyObject *
range_pop(Range *self, PyObject *Py_UNUSED(ignored))
{
    if (!self->silent) {
        pop(self);
    }
    Py_RETURN_NONE;
}

static PyObject *
range_start(Range *self, PyObject *Py_UNUSED(ignored))
{
    if (self->silent) {
        return PyLong_FromUnsignedLongLong(0);
    }
    uint32_t parent = innermost(self->current);
    if (self->kind == FIELDS || parent != 0) {
        return PyLong_FromUnsignedLongLong(start_as(self, new_identity(parent), 1));
    }
    NAME_THREAD();
    return PyLong_FromUnsignedLongLong(emit_start(self->domain, &self->attributes, self->slot));
}

/* Open the start/end range of an `async with` under an identity that was made before. */
static PyObject *
range_start_as(Range *self, PyObject *identity)
{
    unsigned long long number = PyLong_AsUnsignedLongLong(identity);
    if (number == (unsigned long long)-1 && PyErr_Occurred()) {
        return NULL;
    }
    return PyLong_FromUnsignedLongLong(self->silent ? 0 : start_as(self, number, 1));
}

static PyObject *
range_end(Range *self, PyObject *id)
{
    unsigned long long number = PyLong_AsUnsignedLongLong(id);
    if (number == (unsigned long long)-1 && PyErr_Occurred()) {
        return NULL;
    }
    if (!self->silent) {
        nvtxDomainRangeEnd(self->domain, number);
    }
    Py_RETURN_NONE;
}

static PyObject *
range_mark(Range *self, PyObject *Py_UNUSED(ignored))
{
    if (!self->silent) {
        nvtxEventAttributes_t attributes = self->attributes;
        NAME_THREAD();
        if (self->kind == FIELDS) {
            identify(self, &attributes, new_identity(innermost(self->current)));
        }
        nvtxDomainMarkEx(self->domain, &attributes);
    }
    Py_RETURN_NONE;
}

/* The mark with this number as its payload: one sample of a counter, nothing allocated. */
static PyObject *
range_sample(Range *self, PyObject *value)
{
    nvtxEventAttributes_t attributes = self->attributes;
    if (!PyLong_CheckExact(value) && !PyFloat_CheckExact(value)) {
        PyObject *number = call_arguments("checked_value", "(O)", value);
        PyObject *result = number == NULL ? NULL : range_sample(self, number);
        Py_XDECREF(number);
        return result;
    }
    int fits = number_payload(&attributes, value);
    if (fits <= 0) {
        return fits < 0 ? NULL : call_arguments("checked_value", "(O)", value); /* raises: more than 64 bits */
    }
    if (!self->silent) {
        NAME_THREAD();
        nvtxDomainMarkEx(self->domain, &attributes);
    }
    Py_RETURN_NONE;
}

static PyMethodDef range_methods[] = {
    {"_numbered", (PyCFunction)range_numbered, METH_O, "Return the same range with this payload."},
    {"_push", (PyCFunction)range_push, METH_NOARGS, "Open a push/pop range on this thread."},
    {"_pop", (PyCFunction)range_pop, METH_NOARGS, "Close the innermost push/pop range of this thread and domain."},
    {"_start", (PyCFunction)range_start, METH_NOARGS, "Open a start/end range; returns its id."},
    {"_start_as", (PyCFunction)range_start_as, METH_O, "Open a start/end range that has this identity."},
    {"_end", (PyCFunction)range_end, METH_O, "Close the start/end range of this id."},
    {"_mark", (PyCFunction)range_mark, METH_NOARGS, "Emit a mark."},
    {"_sample", (PyCFunction)range_sample, METH_O, "Emit a mark with this number as payload."},
    {NULL, NULL, 0, NULL},
};

/* NVTX hands out no string handles where no tool is attached, and that is decided for good at its first call. */
static PyObject *
range_heard(Range *self, void *Py_UNUSED(closure))
{
    int registered = self->attributes.messageType == NVTX_MESSAGE_TYPE_REGISTERED;
    return PyBool_FromLong(!self->silent && !(registered && self->attributes.message.registered == NULL));
}

static PyGetSetDef range_properties[] = {
    {"_heard", (getter)range_heard, NULL, "Whether what it emits can reach a tool.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef range_members[] = {
    {"_arguments", T_OBJECT_EX, offsetof(Range, arguments), READONLY, "The five arguments, as they were given."},
    {"_level", T_INT, offsetof(Range, level), READONLY, "The level it was given."},
    {"_silent", T_BOOL, offsetof(Range, silent), READONLY, "Whether it emits nothing."},
    {"_category_id", T_UINT, offsetof(Range, attributes.category), READONLY, "The category's id in its domain."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot range_slots[] = {
    {Py_tp_doc, "Range(message=None, color=None, domain=None, category=None, payload=None, *, level=None)\n--\n\n"
                "One message, colour, domain, category and payload, ready to be emitted."},
    {Py_tp_new, range_new},
    {Py_tp_traverse, range_traverse},
    {Py_tp_clear, range_clear},
    {Py_tp_dealloc, range_dealloc},
    {Py_tp_methods, range_methods},
    {Py_tp_members, range_members},
    {Py_tp_getset, range_properties},
    {0, NULL},
};

static PyType_Spec range_spec = {
    .name = "traceable._native._core.Range",
    .basicsize = sizeof(Range),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .slots = range_slots,
};
