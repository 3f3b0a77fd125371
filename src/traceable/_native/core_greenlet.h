/* Greenlets: what `annotation/greenlets.py` opens and closes in the place of a push and a pop. Part of core.c. */
static PyObject *watch_thread;  /* called once on each thread, once greenlet is imported; NULL before */
static PyObject *greenlet_push; /* once greenlets have switched; NULL before */
static PyObject *greenlet_pop;

static THREAD_LOCAL char thread_watched;

/* Call one of these; whether it returned True. An exception, which is that of a signal's handler, is raised a little
 * later: neither a push nor a pop can fail. */
static __attribute__((cold, noinline)) int
call_greenlets(PyObject *function, PyObject *range)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *result = range == NULL ? PyObject_CallNoArgs(function) : PyObject_CallOneArg(function, range);
    if (result == NULL) {
        PyThreadState_SetAsyncExc(PyThread_get_thread_ident(), PyErr_Occurred());
        PyErr_Clear();
    }
    int done = result == Py_True;
    Py_XDECREF(result);
    PyErr_Restore(type, value, traceback);
    return done;
}

/* Whether a range was opened as one of its greenlet, so that nothing is to be pushed. */
static inline int
pushed_in_greenlet(PyObject *range)
{
    if (__builtin_expect(watch_thread == NULL, 1)) {
        return 0;
    }
    if (!thread_watched) {
        thread_watched = 1;
        call_greenlets(watch_thread, NULL);
    }
    return greenlet_push != NULL && call_greenlets(greenlet_push, range);
}

static inline void
pop(Range *range)
{
    if (__builtin_expect(greenlet_pop == NULL, 1) || !call_greenlets(greenlet_pop, (PyObject *)range)) {
        nvtxDomainRangePop(range->domain);
    }
}

static PyObject *
core_watch_greenlets(PyObject *Py_UNUSED(module), PyObject *function)
{
    atomic_store_explicit(&any_instance, 1, memory_order_relaxed);
    Py_INCREF(function);
    Py_XSETREF(watch_thread, function);
    Py_RETURN_NONE;
}

static PyObject *
core_follow_greenlets(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *push_function, *pop_function;
    if (!PyArg_ParseTuple(args, "OO:follow_greenlets", &push_function, &pop_function)) {
        return NULL;
    }
    Py_INCREF(push_function);
    Py_XSETREF(greenlet_push, push_function);
    Py_INCREF(pop_function);
    Py_XSETREF(greenlet_pop, pop_function);
    Py_RETURN_NONE;
}
