/* `Run`: one run of a coroutine or generator, from its first step to its end. Part of core.c. */
static PyObject *
run_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *whole, *stretch;
    State *state = state_of(type);
    if (state == NULL) {
        return NULL;
    }
    if (kwargs != NULL || !PyArg_ParseTuple(args, "O!O!:Run", state->range_type, &whole, state->range_type, &stretch)) {
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "Run takes two ranges");
    }
    Run *self = (Run *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    uint64_t identity = new_identity(innermost(state->current));
    atomic_store_explicit(&any_instance, 1, memory_order_relaxed);
    self->inside = PyLong_FromUnsignedLong((unsigned long)(identity & INSTANCE_BITS));
    if (self->inside == NULL) {
        Py_DECREF(self);
        return NULL;
    }
    Py_INCREF(state->current);
    self->current = state->current;
    self->message = ((Range *)stretch)->message;
    Py_XINCREF(self->message);
    self->domain = ((Range *)stretch)->domain;
    self->stretch = ((Range *)stretch)->attributes;
    self->slot = ((Range *)stretch)->slot;
    self->stretch.payloadType = NVTX_PAYLOAD_TYPE_INT64;
    self->stretch.payload.llValue = (int64_t)identity;
    self->whole_domain = ((Range *)whole)->domain;
    if (!((Range *)whole)->silent) {
        self->open = 1;
        self->whole = start_as((Range *)whole, identity, 0);
    }
    return (PyObject *)self;
}

/* Set the context variable to `value`, and return what it was, or NULL. No error comes of it. */
static PyObject *
exchange(PyObject *variable, PyObject *value)
{
    PyObject *before = NULL;
    PyObject *token = PyContextVar_Get(variable, NULL, &before) < 0 ? NULL : PyContextVar_Set(variable, value);
    if (token == NULL) {
        PyErr_Clear();
    }
    Py_XDECREF(token);
    return before;
}

/* Open a stretch in a context that is the code's own: of a greenlet. */
static PyObject *
run_show(Run *self, PyObject *Py_UNUSED(ignored))
{
    if (self->open) {
        self->around = stretched;
        stretched = (uint32_t)(self->stretch.payload.llValue & INSTANCE_BITS);
        NAME_THREAD();
        emit_push(self->domain, &self->stretch, self->slot);
    }
    Py_RETURN_NONE;
}

static PyObject *
run_hide(Run *self, PyObject *Py_UNUSED(ignored))
{
    if (self->open) {
        nvtxDomainRangePop(self->domain);
        stretched = self->around;
    }
    Py_RETURN_NONE;
}

static PyObject *
run_resume(Run *self, PyObject *ignored)
{
    if (self->open) {
        PyObject *outside = exchange(self->current, self->inside);
        Py_XSETREF(self->outside, outside);
    }
    return run_show(self, ignored);
}

static PyObject *
run_suspend(Run *self, PyObject *ignored)
{
    if (self->open) {
        Py_DECREF(run_hide(self, ignored));
        if (self->outside != NULL) { /* what an `async with` inside has set stays the code's own */
            PyObject *inside = exchange(self->current, self->outside);
            if (inside != NULL) {
                Py_XSETREF(self->inside, inside);
            }
            Py_CLEAR(self->outside);
        }
    }
    Py_RETURN_NONE;
}

static PyObject *
run_end(Run *self, PyObject *Py_UNUSED(ignored))
{
    if (self->open) {
        self->open = 0;
        nvtxDomainRangeEnd(self->whole_domain, self->whole);
    }
    Py_RETURN_NONE;
}

static void
run_dealloc(Run *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Py_CLEAR(self->current);
    Py_CLEAR(self->inside);
    Py_CLEAR(self->outside);
    Py_CLEAR(self->message);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef run_methods[] = {
    {"resume", (PyCFunction)run_resume, METH_NOARGS, "Open a stretch: the code runs from here on."},
    {"suspend", (PyCFunction)run_suspend, METH_NOARGS, "Close the stretch: the code is suspended, or over."},
    {"show", (PyCFunction)run_show, METH_NOARGS, "Open a stretch in a context of the code's own."},
    {"hide", (PyCFunction)run_hide, METH_NOARGS, "Close it."},
    {"end", (PyCFunction)run_end, METH_NOARGS, "End the whole."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot run_slots[] = {
    {Py_tp_doc, "Run(whole, stretch)\n--\n\nOne run of code that stops and goes on; its whole is open from here on."},
    {Py_tp_new, run_new},
    {Py_tp_dealloc, run_dealloc},
    {Py_tp_methods, run_methods},
    {0, NULL},
};

static PyType_Spec run_spec = {
    .name = "traceable._native._core.Run",
    .basicsize = sizeof(Run),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = run_slots,
};
