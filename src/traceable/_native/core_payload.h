/* Payloads: a number, named fields, and the identity of an instance. Part of core.c; `annotation/emission.py` tells the
 * rules that this follows. */
#define INSTANCE_BITS 0x3FFFFFFFu
#define IDENTITY_TAG (UINT64_C(1) << 62)
#define FIELDS_ROOM 512

static _Atomic uint32_t last_instance;
static _Atomic(nvtxDomainHandle_t) payload_domain;

/* The instance whose stretch this thread is in, 0 for none: the thread says that what is pushed here lies inside it. */
static THREAD_LOCAL uint32_t stretched;

/* Put an exact int or float into `attributes`: 1, or 0 where the int needs more than 64 bits, -1 on an error. */
static int
number_payload(nvtxEventAttributes_t *attributes, PyObject *number)
{
    if (PyFloat_CheckExact(number)) {
        attributes->payloadType = NVTX_PAYLOAD_TYPE_DOUBLE;
        attributes->payload.dValue = PyFloat_AS_DOUBLE(number);
        return 1;
    }
    int overflow = 0;
    attributes->payload.llValue = PyLong_AsLongLongAndOverflow(number, &overflow);
    attributes->payloadType = NVTX_PAYLOAD_TYPE_INT64;
    return overflow ? 0 : (PyErr_Occurred() ? -1 : 1);
}

/* Whether a string stands in JSON as it is. */
static int
is_plain_text(PyObject *text)
{
    if (!PyUnicode_CheckExact(text) || !PyUnicode_IS_ASCII(text)) {
        return 0;
    }
    const char *bytes = (const char *)PyUnicode_DATA(text);
    for (Py_ssize_t i = 0; i < PyUnicode_GET_LENGTH(text); i++) {
        if (bytes[i] < 0x20 || bytes[i] == 0x7F || bytes[i] == '"' || bytes[i] == '\\') {
            return 0;
        }
    }
    return 1;
}

/* Write one value as JSON: the bytes it takes, or more than there is room for; 0 where Python has to look at it. */
static Py_ssize_t
write_value(char *into, size_t room, PyObject *value)
{
    if (PyLong_CheckExact(value)) {
        int overflow = 0;
        long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
        return overflow ? 0 : PyOS_snprintf(into, room, "%lld", number);
    }
    if (PyFloat_CheckExact(value) && isfinite(PyFloat_AS_DOUBLE(value))) {
        char *text = PyOS_double_to_string(PyFloat_AS_DOUBLE(value), 'r', 0, Py_DTSF_ADD_DOT_0, NULL);
        if (text == NULL) {
            PyErr_Clear();
            return 0;
        }
        int length = PyOS_snprintf(into, room, "%s", text);
        PyMem_Free(text);
        return length;
    }
    if (is_plain_text(value)) {
        Py_ssize_t length = PyUnicode_GET_LENGTH(value) + 2;
        if ((size_t)length < room) {
            into[0] = into[length - 1] = '"';
            memcpy(into + 1, PyUnicode_DATA(value), (size_t)length - 2);
        }
        return length;
    }
    return 0;
}

/* Return the fields as compact JSON where they are simple and short; NULL without an error: Python has to look. */
static PyObject *
simple_fields(PyObject *payload)
{
    char text[FIELDS_ROOM];
    size_t length = 0;
    int simple = PyDict_GET_SIZE(payload) > 0;
    LOCKED(payload);
    PyObject *key, *value;
    Py_ssize_t place = 0;
    while (simple && PyDict_Next(payload, &place, &key, &value)) {
        size_t named = is_plain_text(key) ? (size_t)PyUnicode_GET_LENGTH(key) : FIELDS_ROOM;
        size_t room = named + 8 + length < FIELDS_ROOM ? FIELDS_ROOM - length - named - 8 : 0;
        if (room > 0) {
            text[length] = length == 0 ? '{' : ',';
            text[length + 1] = '"';
            memcpy(text + length + 2, PyUnicode_DATA(key), named);
            memcpy(text + length + 2 + named, "\":", 2);
            length += named + 4;
            Py_ssize_t written = write_value(text + length, room, value);
            simple = written > 0 && (size_t)written < room;
            length += simple ? (size_t)written : 0;
        }
        else {
            simple = 0;
        }
    }
    UNLOCKED();
    if (!simple) {
        return NULL;
    }
    text[length] = '}';
    return PyUnicode_FromStringAndSize(text, (Py_ssize_t)length + 1);
}

/* Give `self` its payload: a number, or fields. What is neither an exact int nor float nor plain is seen to in Python. */
static int
set_payload(Range *self, PyObject *payload)
{
    if (payload == Py_None) {
        return 0;
    }
    if (PyFloat_CheckExact(payload) || PyLong_CheckExact(payload)) {
        int fits = number_payload(&self->attributes, payload);
        if (fits != 0) {
            return fits < 0 ? -1 : 0;
        }
    }
    PyObject *made = PyDict_CheckExact(payload) ? simple_fields(payload) : NULL;
    if (made == NULL) {
        made = PyErr_Occurred() ? NULL : call_arguments("checked_payload", "(O)", payload);
    }
    if (made == NULL) {
        return -1;
    }
    if (PyUnicode_CheckExact(made)) {
        self->kind = self->silent ? SILENT : FIELDS;
        Py_XSETREF(self->fields, made);
        return PyUnicode_AsUTF8(made) == NULL ? -1 : 0;
    }
    int result = 0;
    if (made != Py_None) {
        result = number_payload(&self->attributes, made) > 0 ? 0 : -1;
    }
    Py_DECREF(made);
    return result;
}

/* The number of the innermost instance of this context, 0 outside of all. */
static uint32_t
innermost(PyObject *variable)
{
    PyObject *value = NULL;
    if (variable == NULL || PyContextVar_Get(variable, NULL, &value) < 0) {
        PyErr_Clear();
    }
    uint64_t number = value == NULL ? 0 : PyLong_AsUnsignedLongLongMask(value);
    Py_XDECREF(value);
    return (uint32_t)(number & INSTANCE_BITS);
}

/* The identity of a new instance that began in `parent`. */
static uint64_t
new_identity(uint32_t parent)
{
    uint32_t instance;
    do {
        instance = (atomic_fetch_add_explicit(&last_instance, 1, memory_order_relaxed) + 1) & INSTANCE_BITS;
    } while (instance == 0);
    return IDENTITY_TAG | (uint64_t)parent << 32 | instance;
}

/* Emit the companion mark of the range that comes next. */
static void
announce(const char *text, uint64_t identity)
{
    nvtxDomainHandle_t domain = atomic_load_explicit(&payload_domain, memory_order_acquire);
    if (domain == NULL) { /* by two threads at once: both marks are right, in two domains of one name */
        domain = nvtxDomainCreateA("traceable.payload");
        atomic_store_explicit(&payload_domain, domain, memory_order_release);
    }
    nvtxEventAttributes_t mark = {.version = NVTX_VERSION, .size = NVTX_EVENT_ATTRIB_STRUCT_SIZE};
    mark.messageType = NVTX_MESSAGE_TYPE_ASCII;
    mark.message.ascii = text;
    mark.payloadType = NVTX_PAYLOAD_TYPE_INT64;
    mark.payload.llValue = (int64_t)identity;
    nvtxDomainMarkEx(domain, &mark);
}

/* Return the fields as JSON, a new reference. A list or an array is read anew at each use, as in the nvtx package; what
 * is no payload any more leaves them as they were. */
static PyObject *
fields_now(Range *range)
{
    PyObject *given = range->arguments == NULL ? Py_None : PyTuple_GET_ITEM(range->arguments, 4);
    if (PyDict_CheckExact(given) || (!PyList_Check(given) && !PyObject_HasAttrString(given, "tolist"))) {
        Py_INCREF(range->fields);
        return range->fields;
    }
    PyObject *made = call_arguments("checked_payload", "(O)", given);
    if (made != NULL && PyUnicode_CheckExact(made) && PyUnicode_AsUTF8(made) != NULL) {
        return made;
    }
    PyErr_Clear();
    Py_XDECREF(made);
    Py_INCREF(range->fields);
    return range->fields;
}

/* Make `attributes` carry the identity; a range with fields says them first. */
static void
identify(Range *range, nvtxEventAttributes_t *attributes, uint64_t identity)
{
    if (range->kind == FIELDS) {
        PyObject *fields = fields_now(range);
        announce(PyUnicode_AsUTF8(fields), identity);
        Py_DECREF(fields);
    }
    attributes->payloadType = NVTX_PAYLOAD_TYPE_INT64;
    attributes->payload.llValue = (int64_t)identity;
}

/* Make `attributes` carry the identity. A number of the user's stays in its place: an empty mark then says who it is. */
static void
carry(Range *range, nvtxEventAttributes_t *attributes, uint64_t identity)
{
    if (attributes->payloadType == NVTX_PAYLOAD_UNKNOWN) {
        identify(range, attributes, identity);
    }
    else {
        announce("{}", identity);
    }
}

static void
push_with_fields(Range *range)
{
    if (pushed_in_greenlet((PyObject *)range)) {
        return;
    }
    nvtxEventAttributes_t attributes = range->attributes;
    NAME_THREAD();
    identify(range, &attributes, new_identity(innermost(range->current)));
    emit_push(range->domain, &attributes, range->slot);
}

/* Push a range that has no fields, where this context may be that of an instance. */
static __attribute__((noinline)) void
push_in_context(Range *range)
{
    if (pushed_in_greenlet((PyObject *)range)) {
        return;
    }
    uint32_t parent = innermost(range->current);
    if (parent == 0 || parent == stretched) {
        emit_push(range->domain, &range->attributes, range->slot);
        return;
    }
    nvtxEventAttributes_t attributes = range->attributes;
    carry(range, &attributes, new_identity(parent));
    emit_push(range->domain, &attributes, range->slot);
}

static inline void
push(Range *range)
{
    NAME_THREAD();
    if (__builtin_expect(atomic_load_explicit(&any_instance, memory_order_relaxed), 0)) {
        push_in_context(range);
    }
    else {
        emit_push(range->domain, &range->attributes, range->slot);
    }
}

/* Open the whole of an instance. `told`: where it carries a number of the user's, a mark says who it is. */
static nvtxRangeId_t
start_as(Range *range, uint64_t identity, int told)
{
    nvtxEventAttributes_t attributes = range->attributes;
    NAME_THREAD();
    if (told || attributes.payloadType == NVTX_PAYLOAD_UNKNOWN) {
        carry(range, &attributes, identity);
    }
    return emit_start(range->domain, &attributes, range->slot);
}
