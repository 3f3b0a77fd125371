/* How a range is made from its arguments, once for each distinct one, and found again. Part of core.c. */
static PyObject *
range_enter(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    push((Range *)object);
    Py_INCREF(object);
    return object;
}

static PyObject *
fields_enter(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    push_with_fields((Range *)object);
    Py_INCREF(object);
    return object;
}

static PyObject *
range_leave(PyObject *object, PyObject *const *Py_UNUSED(args), Py_ssize_t Py_UNUSED(count))
{
    pop((Range *)object);
    Py_RETURN_NONE;
}

static PyObject *
silent_enter(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    Py_INCREF(object);
    return object;
}

static PyObject *
silent_leave(PyObject *Py_UNUSED(object), PyObject *const *Py_UNUSED(args), Py_ssize_t Py_UNUSED(count))
{
    Py_RETURN_NONE;
}

#define LEAVE(function, text) {"__exit__", (PyCFunction)(void (*)(void))function, METH_FASTCALL, text}

/* By kind of range. */
static PyMethodDef enter_methods[] = {
    {"__enter__", range_enter, METH_NOARGS, "Open the range."},
    {"__enter__", silent_enter, METH_NOARGS, "Do nothing: this range is not recorded."},
    {"__enter__", fields_enter, METH_NOARGS, "Say the fields, then open the range."},
};

static PyMethodDef leave_methods[] = {
    LEAVE(range_leave, "Close the range; exceptions go on."),
    LEAVE(silent_leave, "Do nothing: this range is not recorded."),
    LEAVE(range_leave, "Close the range; exceptions go on."),
};

static Range *
range_allocate(PyTypeObject *type, PyObject *arguments)
{
    Range *self = (Range *)type->tp_alloc(type, 0);
    if (self != NULL) {
        Py_INCREF(arguments);
        self->arguments = arguments;
    }
    return self;
}

/* Build a range from `arguments` as given. `checked` are the same with the colour as ARGB and the payload a number. */
static Range *
range_build(State *state, PyTypeObject *type, PyObject *arguments, PyObject *checked)
{
    PyObject *message, *domain_name, *category, *payload;
    unsigned long color;
    int level;
    if (!PyArg_ParseTuple(checked, "OkOOOi", &message, &color, &domain_name, &category, &payload, &level)) {
        return NULL;
    }
    Domain *domain = domain_named(state, domain_name);
    Range *self = domain == NULL ? NULL : range_allocate(type, arguments);
    if (self == NULL) {
        Py_XDECREF(domain);
        return NULL;
    }
    self->level = level;
    self->silent = state->silent || level > state->level;
    self->kind = self->silent ? SILENT : PLAIN;
    self->domain = domain->handle;
    self->slot = self->silent ? 0 : slot_of(state, domain_name, message);
    self->attributes.version = NVTX_VERSION;
    self->attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    self->attributes.colorType = NVTX_COLOR_ARGB;
    self->attributes.color = (uint32_t)color;
    Py_INCREF(message);
    self->message = message;
    Py_INCREF(state->current);
    self->current = state->current;
    int failed = domain_category(state, domain, category, &self->attributes.category) < 0
                 || (message != Py_None && domain_message(state, domain, message, &self->attributes) < 0)
                 || set_payload(self, payload) < 0;
    Py_DECREF(domain);
    if (failed) {
        Py_CLEAR(self);
    }
    return self;
}

/* Make a copy of `base` with another payload: what `annotate("x", payload=n)` costs at each use. */
static Range *
range_with_payload(PyTypeObject *type, Range *base, PyObject *arguments, PyObject *payload)
{
    Range *self = range_allocate(type, arguments);
    if (self == NULL) {
        return NULL;
    }
    self->silent = base->silent;
    self->kind = base->silent ? SILENT : PLAIN;
    self->level = base->level;
    self->domain = base->domain;
    self->slot = base->slot;
    self->attributes = base->attributes;
    Py_INCREF(base->message);
    self->message = base->message;
    Py_XINCREF(base->current);
    self->current = base->current;
    if (set_payload(self, payload) < 0) {
        Py_CLEAR(self);
    }
    return self;
}

/* Keep a range for all later uses, its enter and exit bound beforehand. Returns what is kept, a new reference. */
static PyObject *
range_intern(PyObject *interned, PyObject *key, Range *range)
{
    range->enter = PyCFunction_New(&enter_methods[range->kind], (PyObject *)range);
    range->leave = PyCFunction_New(&leave_methods[range->kind], (PyObject *)range);
    if (range->enter == NULL || range->leave == NULL) {
        return NULL;
    }
#if PY_VERSION_HEX >= 0x030D0000
    PyObject *kept = NULL;
    return PyDict_SetDefaultRef(interned, key, (PyObject *)range, &kept) < 0 ? NULL : kept;
#else
    PyObject *kept = PyDict_SetDefault(interned, key, (PyObject *)range);
    Py_XINCREF(kept);
    return kept;
#endif
}

/* Return the range of these arguments, payload left out: from the interned ones, or built and interned. */
static PyObject *
range_without_payload(State *state, PyTypeObject *type, PyObject *const *values)
{
    PyObject *key = PyTuple_Pack(6, type, values[0], values[1], values[2], values[3], values[LEVEL]);
    if (key == NULL) {
        return NULL;
    }
    PyObject *range = NULL;
    int found = dict_get(state->interned, key, &range);
    int hashable = found >= 0;
    if (!hashable && PyErr_ExceptionMatches(PyExc_TypeError)) {
        PyErr_Clear(); /* a list is no colour: the check says so with the argument's name */
        found = 0;
    }
    if (found == 0) {
        PyObject *arguments = PyTuple_Pack(5, values[0], values[1], values[2], values[3], Py_None);
        PyObject *all = arguments == NULL ? NULL : PyTuple_Pack(6, values[0], values[1], values[2], values[3], Py_None,
                                                                values[LEVEL]);
        PyObject *checked = all == NULL ? NULL : call_arguments("checked", "O", all);
        Range *built = checked == NULL ? NULL : range_build(state, type, arguments, checked);
        Py_XDECREF(checked);
        Py_XDECREF(all);
        Py_XDECREF(arguments);
        range = (PyObject *)built;
        if (built != NULL && hashable && PyDict_GET_SIZE(state->interned) < INTERNED_MAX) {
            range = range_intern(state->interned, key, built);
            Py_DECREF(built);
        }
    }
    Py_DECREF(key);
    return range;
}

/* `@annotate` without brackets hands the decorated thing over as the message. */
static int
is_decorated(PyObject *message)
{
    return message != Py_None && !PyUnicode_Check(message)
           && (PyCallable_Check(message) || Py_TYPE(message)->tp_descr_get != NULL);
}

static PyObject *
decorate_bare(PyTypeObject *type, PyObject *target)
{
    PyObject *range = PyObject_CallNoArgs((PyObject *)type);
    PyObject *decorated = range == NULL ? NULL : PyObject_CallOneArg(range, target);
    Py_XDECREF(range);
    return decorated;
}

/* Return the range of these arguments; `bare` where there was a single one, by position. */
static PyObject *
range_make(State *state, PyTypeObject *type, PyObject *const *values, int bare)
{
    int by_message = bare && type == state->public_type && PyUnicode_CheckExact(values[0]);
    PyObject *range = NULL;
    if (by_message && dict_get(state->by_message, values[0], &range) != 0) {
        return range;
    }
    if (bare && is_decorated(values[0])) {
        return decorate_bare(type, values[0]);
    }
    range = range_without_payload(state, type, values);
    if (range == NULL) {
        return NULL;
    }
    if (values[4] != Py_None) {
        PyObject *arguments = PyTuple_Pack(5, values[0], values[1], values[2], values[3], values[4]);
        Range *base = (Range *)range;
        range = arguments == NULL ? NULL : (PyObject *)range_with_payload(type, base, arguments, values[4]);
        Py_XDECREF(arguments);
        Py_DECREF(base);
    }
    else if (by_message && ((Range *)range)->enter != NULL) {
        if (PyDict_SetItem(state->by_message, values[0], range) < 0) {
            Py_CLEAR(range);
        }
    }
    return range;
}

#if PY_VERSION_HEX >= 0x030D0000
#define IS_FINALIZING() Py_IsFinalizing()
#else
#define IS_FINALIZING() _Py_IsFinalizing()
#endif

static PyObject *
silent_range(PyTypeObject *type)
{
    PyObject *arguments = PyTuple_Pack(5, Py_None, Py_None, Py_None, Py_None, Py_None);
    Range *silent = arguments == NULL ? NULL : range_allocate(type, arguments);
    Py_XDECREF(arguments);
    if (silent != NULL) {
        silent->kind = SILENT;
        silent->silent = 1;
        silent->level = 1;
        Py_INCREF(Py_None);
        silent->message = Py_None;
    }
    return (PyObject *)silent;
}

/* What could not be made because the interpreter takes itself apart, or because there is no memory, is silent, and a
 * function is left as it is: the program goes on. `spare`: a silent range, made while there was memory. */
static PyObject *
range_or_silent(PyTypeObject *type, PyObject *range, PyObject *message, PyObject *spare)
{
    if (range != NULL || !(IS_FINALIZING() || PyErr_ExceptionMatches(PyExc_MemoryError))) {
        return range;
    }
    PyErr_Clear();
    Py_XDECREF(call_arguments("log_lost_range", NULL, NULL));
    PyErr_Clear();
    PyObject *instead = is_decorated(message) ? message : spare;
    if (instead == NULL) {
        return silent_range(type);
    }
    Py_INCREF(instead);
    return instead;
}

static PyObject *
range_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"message", "color", "domain", "category", "payload", "level", NULL};
    PyObject *values[ARGUMENTS + 1] = {Py_None, Py_None, Py_None, Py_None, Py_None, Py_None};
    State *state = state_of(type);
    if (state == NULL) {
        return range_or_silent(type, NULL, Py_None, NULL);
    }
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|OOOOO$O:annotate", names, &values[0], &values[1], &values[2],
                                     &values[3], &values[4], &values[LEVEL])) {
        return NULL;
    }
    PyObject *range = range_make(state, type, values, kwargs == NULL && PyTuple_GET_SIZE(args) == 1);
    return range_or_silent(type, range, values[0], type == state->public_type ? state->spare : NULL);
}

/* The same for the public type, without a tuple and a dict for each call. */
static PyObject *
range_vectorcall(PyObject *object, PyObject *const *args, size_t nargsf, PyObject *keywords)
{
    PyTypeObject *type = (PyTypeObject *)object;
    PyObject *values[ARGUMENTS + 1] = {Py_None, Py_None, Py_None, Py_None, Py_None, Py_None};
    Py_ssize_t count = PyVectorcall_NARGS(nargsf);
    Py_ssize_t named = keywords == NULL ? 0 : PyTuple_GET_SIZE(keywords);
    State *state = state_of(type);
    if (state == NULL) {
        return range_or_silent(type, NULL, Py_None, NULL);
    }
    if (count > ARGUMENTS) {
        return PyErr_Format(PyExc_TypeError, "annotate() takes at most %d positional arguments (%zd given)", ARGUMENTS, count);
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        values[i] = args[i];
    }
    for (Py_ssize_t i = 0; i < named; i++) {
        PyObject *keyword = PyTuple_GET_ITEM(keywords, i);
        Py_ssize_t place = 0;
        while (place <= LEVEL && keyword != state->names[place]) { /* keywords in code are interned strings */
            place++;
        }
        for (Py_ssize_t other = 0; place > LEVEL && other <= LEVEL; other++) {
            place = PyUnicode_Compare(keyword, state->names[other]) == 0 ? other : place;
        }
        if (place > LEVEL) {
            return PyErr_Format(PyExc_TypeError, "annotate() got an unexpected keyword argument %R", keyword);
        }
        if (place < count) {
            return PyErr_Format(PyExc_TypeError, "annotate() got multiple values for argument %R", keyword);
        }
        values[place] = args[count + i];
    }
    PyObject *range = range_make(state, type, values, count == 1 && named == 0);
    return __builtin_expect(range != NULL, 1) ? range : range_or_silent(type, NULL, values[0], state->spare);
}
