/* The name of a thread, told to NVTX at its first annotation. Part of core.c.
 *
 * Python's own names reach the operating system from 3.14 on. The main thread keeps the name of its process. A thread
 * that Python's threading does not know has no name to tell.
 */
#ifdef __GLIBC__
/* One byte out of what glibc keeps for libraries loaded late: the check on the hot path is then a single load. */
#define THREAD_LOCAL _Thread_local __attribute__((tls_model("initial-exec")))
#else
#define THREAD_LOCAL _Thread_local
#endif

static THREAD_LOCAL char thread_named;

/* Whether this process ever had an instance that others can begin in, or has greenlets. Until then no context is worth
 * a look. */
static _Atomic int any_instance;

static PyObject *first_heard; /* called once, before the next first annotation of a thread; NULL for nothing */

static PyObject *count_opener; /* makes the table of this process, where nothing is counted yet (core_count.h) */
static int count_pending;      /* it is to be called before the next first annotation of a thread */

/* `threading.current_thread()` makes an object for a foreign thread, and `enumerate()` takes a lock that this very
 * thread may hold; the dictionary behind both does neither. */
static PyObject *
threading_name(void)
{
    PyObject *module_name = PyUnicode_FromString("threading");
    PyObject *module = module_name == NULL ? NULL : PyImport_GetModule(module_name);
    PyObject *active = module == NULL ? NULL : PyObject_GetAttrString(module, "_active");
    PyObject *ident = PyLong_FromUnsignedLong(PyThread_get_thread_ident());
    PyObject *thread = active == NULL || ident == NULL ? NULL : PyObject_GetItem(active, ident);
    PyObject *name = thread == NULL ? NULL : PyObject_GetAttrString(thread, "name");
    Py_XDECREF(thread);
    Py_XDECREF(ident);
    Py_XDECREF(active);
    Py_XDECREF(module);
    Py_XDECREF(module_name);
    return name;
}

static void
call_first_heard(void)
{
    PyObject *heard = first_heard;
    PyObject *type, *value, *traceback;
    first_heard = NULL;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *result = PyObject_CallNoArgs(heard);
    if (result == NULL) {
        PyErr_WriteUnraisable(heard);
    }
    Py_XDECREF(result);
    Py_DECREF(heard);
    PyErr_Restore(type, value, traceback);
}

static void
open_counts(void)
{
    PyObject *type, *value, *traceback;
    count_pending = 0;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *result = PyObject_CallNoArgs(count_opener);
    if (result == NULL) {
        PyErr_WriteUnraisable(count_opener);
    }
    Py_XDECREF(result);
    PyErr_Restore(type, value, traceback);
}

static __attribute__((cold, noinline)) void
name_thread(void)
{
    thread_named = 1;
    if (count_pending) {
        open_counts();
    }
    if (first_heard != NULL) {
        call_first_heard();
    }
    long tid = syscall(SYS_gettid);
    const char *injection = getenv("NVTX_INJECTION64_PATH");
    if (injection == NULL || *injection == '\0' || tid == (long)getpid()) {
        return;
    }
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *name = threading_name();
    PyObject *checked = name == NULL ? NULL : call_arguments("thread_name", "(O)", name);
    const char *text = checked == NULL || !PyUnicode_Check(checked) ? NULL : PyUnicode_AsUTF8(checked);
    if (text != NULL) {
        nvtxNameOsThreadA((uint32_t)tid, text);
    }
    Py_XDECREF(checked);
    Py_XDECREF(name);
    PyErr_Restore(type, value, traceback);
}

#define NAME_THREAD() do { if (__builtin_expect(!thread_named, 0)) { name_thread(); } } while (0)

static PyObject *
core_when_annotated(PyObject *Py_UNUSED(module), PyObject *heard)
{
    PyObject *before = first_heard;
    Py_INCREF(heard);
    first_heard = heard;
    thread_named = 0; /* this thread may have annotated before, above all in a forked child */
    Py_XDECREF(before);
    Py_RETURN_NONE;
}
