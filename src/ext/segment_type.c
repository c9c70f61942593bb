/*
 * Segment: a handle on an attached segment - its life. Its facts, reading, writing and counting are
 * in segment_facts.c, segment_read.c, segment_write.c and segment_stats.c.
 *
 * The core forbids to use a handle during and after its close. Whoever gives the GIL away while it
 * uses the handle is counted in `calls`, and arrays over reserved buffers are in `users`; close() then
 * closes the object at once, and the handle when the last of both is gone.
 */
#include "ext.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

/* ---- use and close ------------------------------------------------------------------------- */

PyObject *
segment_raise_closed(const SegmentObject *self)
{
    if (self->info.name[0] == '\0') {
        PyErr_SetString(PyExc_ValueError, "the segment was never opened: __init__() did not run");
    } else {
        PyErr_Format(PyExc_ValueError, "the handle on segment '%s' is closed; open a new one",
                     self->info.name);
    }
    return NULL;
}

/* Nobody is left to tell; the process's row goes with the process at the latest. Called without the
 * GIL: it may be the end of gigabytes, or wait for a thread that makes some. */
static void
segment_drop(sv_segment *handle)
{
    (void)sv_segment_close(handle, NULL);
}

/* A block that this process made goes with its handle, which an interrupt can drop at once after it
 * was made. Of all others this is refused. */
static void
segment_drop_with_block(sv_segment *handle)
{
    (void)sv_block_remove(handle, NULL);
    segment_drop(handle);
}

static uint32_t segment_forks; /* before this process, since the module was loaded */

static void
segment_forked(void)
{
    segment_forks++;
}

/* How many calls are on their way. The threads that were in one when this process was forked are the
 * parent's, and none of them will leave it here. */
static uint32_t *
segment_calls(SegmentObject *self)
{
    if (self->forks != segment_forks) {
        self->forks = segment_forks;
        self->calls = 0;
    }
    return &self->calls;
}

sv_segment *
segment_enter(SegmentObject *self)
{
    sv_segment *handle = NULL;
    EXT_BEGIN_LOCKED((PyObject *)self)
    if (self->handle != NULL && !self->closing) {
        handle = self->handle;
        ++*segment_calls(self);
    }
    EXT_END_LOCKED()
    if (handle == NULL) {
        segment_raise_closed(self);
    }
    return handle;
}

/* Take one from either; a call that was itself interrupted by a fork counts no more. */
static void
segment_take_from(SegmentObject *self, int call)
{
    sv_segment *last = NULL;
    EXT_BEGIN_LOCKED((PyObject *)self)
    uint32_t *count = call ? segment_calls(self) : &self->users;
    *count -= *count > 0;
    if (*segment_calls(self) == 0 && self->users == 0 && self->closing) {
        last = self->handle;
        self->handle = NULL;
        self->closing = 0;
    }
    EXT_END_LOCKED()
    if (last != NULL) {
        Py_BEGIN_ALLOW_THREADS segment_drop(last);
        Py_END_ALLOW_THREADS
    }
}

void
segment_leave(SegmentObject *self)
{
    segment_take_from(self, 1);
}

void
segment_let_go(SegmentObject *self)
{
    segment_take_from(self, 0);
}

PyObject *
segment_call(PyObject *op, int (*verb)(sv_segment *segment, sv_error *err))
{
    SegmentObject *self = (SegmentObject *)op;
    sv_segment *handle = segment_enter(self);
    if (handle == NULL) {
        return NULL;
    }
    sv_error err;
    ext_error_clear(&err);
    int code;
    Py_BEGIN_ALLOW_THREADS code = verb(handle, &err);
    Py_END_ALLOW_THREADS segment_leave(self);
    if (code != 0) {
        return ext_raise(self->state, code, &err);
    }
    Py_RETURN_NONE;
}

PyObject *
segment_count(PyObject *op, uint64_t (*count)(const sv_segment *segment))
{
    SegmentObject *self = (SegmentObject *)op;
    sv_segment *handle = segment_enter(self);
    if (handle == NULL) {
        return NULL;
    }
    uint64_t found;
    Py_BEGIN_ALLOW_THREADS found = count(handle);
    Py_END_ALLOW_THREADS segment_leave(self);
    return PyLong_FromUnsignedLongLong(found);
}

static PyObject *
segment_raise_reserved(const SegmentObject *self)
{
    PyErr_Format(self->state->InUseError,
                 "segment '%s' cannot be closed: %u reservations are open; publish or cancel them",
                 self->info.name, self->reserved);
    return NULL;
}

static PyObject *
segment_close(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    SegmentObject *self = (SegmentObject *)op;
    sv_segment *handle = NULL;
    int reserved = 0;
    EXT_BEGIN_LOCKED(op)
    if (self->handle != NULL) { /* closed before a fork, perhaps, by a thread that is not here */
        /* Reservations inherited by fork stay with the parent and hinder nobody here. */
        reserved = self->reserved > 0 && self->reserved_pid == getpid();
        if (!reserved && (*segment_calls(self) > 0 || self->users > 0)) {
            self->closing = 1;
        } else if (!reserved) {
            handle = self->handle;
            self->handle = NULL;
            self->closing = 0;
        }
    }
    EXT_END_LOCKED()
    if (reserved) {
        return segment_raise_reserved(self);
    }
    if (handle == NULL) {
        Py_RETURN_NONE;
    }
    sv_error err;
    ext_error_clear(&err);
    int code;
    Py_BEGIN_ALLOW_THREADS code = sv_segment_close(handle, &err);
    Py_END_ALLOW_THREADS if (code != 0)
    {
        self->handle = handle;
        return ext_raise(self->state, code, &err);
    }
    Py_RETURN_NONE;
}

static PyObject *
segment_enter_with(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    SegmentObject *self = (SegmentObject *)op;
    if (self->handle == NULL || self->closing) {
        return segment_raise_closed(self);
    }
    return Py_NewRef(op);
}

static PyObject *
segment_exit_with(PyObject *op, PyObject *Py_UNUSED(args))
{
    return segment_close(op, NULL);
}

/* ---- open ---------------------------------------------------------------------------------- */

typedef struct {
    const char *name;
    PyObject *directory; /* bytes, or NULL */
    PyObject *slot_count;
    int create;
    int exclusive;
    int replace;
    int owned;
    int block;
    sv_options options;
} segment_request;

static int
segment_parse(PyObject *args, PyObject *kwargs, segment_request *request)
{
    static char *names[] = {"name",       "create",        "exclusive",  "replace",
                            "dtype",      "itemsize",      "chunk_size", "max_memory_size",
                            "slot_count", "spare_buffers", "max_rows",   "stats_capacity",
                            "mode",       "directory",     "generation", "expect_inode",
                            "owned",      "timeout",       "block",      "processes",
                            NULL};
    sv_options *options = &request->options;
    sv_options_init(options);
    request->create = 1;
    return PyArg_ParseTupleAndKeywords(args, kwargs, "O&|$pppO&O&O&O&OO&O&O&O&O&O&O&pO&pO&:Segment",
                                       names, ext_text, &request->name, &request->create,
                                       &request->exclusive, &request->replace, ext_text_or_none,
                                       &options->dtype, ext_uint32, &options->itemsize, ext_uint64,
                                       &options->chunk_size, ext_uint64, &options->max_memory_size,
                                       &request->slot_count, ext_uint32, &options->spare_buffers,
                                       ext_uint32, &options->max_rows, ext_uint32,
                                       &options->stats_capacity, ext_uint32, &options->mode,
                                       ext_path_or_none, &request->directory, ext_text_or_none,
                                       &options->generation, ext_uint64, &options->expect_inode,
                                       &request->owned, ext_timeout, &options->timeout_ns,
                                       &request->block, ext_uint32, &options->processes)
               ? 0
               : -1;
}

static int
segment_request_finish(segment_request *request)
{
    sv_options *options = &request->options;
    if (request->slot_count != NULL && request->slot_count != Py_None) {
        if (!ext_uint32(request->slot_count, &options->slot_count)) {
            return -1;
        }
        if (options->slot_count == 0) {
            PyErr_SetString(PyExc_ValueError, "slot_count must be at least 1, found 0");
            return -1;
        }
        options->expect_slots = options->slot_count;
    }
    options->directory = request->directory != NULL ? PyBytes_AsString(request->directory) : NULL;
    options->owned = request->owned ? 1 : 0;
    options->block = request->block ? 1 : 0;
    return 0;
}

static int
segment_open(SegmentObject *self, const segment_request *request)
{
    int flags = request->replace     ? SV_OPEN_REPLACE
                : request->exclusive ? SV_OPEN_EXCLUSIVE
                : request->create    ? SV_OPEN_CREATE
                                     : SV_OPEN_ATTACH;
    sv_segment *handle = NULL;
    sv_info info;
    sv_error err;
    ext_error_clear(&err);
    int code;
    Py_BEGIN_ALLOW_THREADS code =
        sv_segment_open(request->name, &request->options, flags, &handle, &err);
    if (code == 0) {
        code = sv_segment_info(handle, &info);
        if (code != 0) {
            (void)sv_segment_close(handle, NULL);
        }
    }
    Py_END_ALLOW_THREADS if (code != 0)
    {
        ext_raise(self->state, code, &err);
        return -1;
    }
    int taken = 0;
    EXT_BEGIN_LOCKED((PyObject *)self)
    taken = self->handle != NULL;
    if (!taken) {
        self->handle = handle;
        self->info = info;
        self->itemsize = info.itemsize;
    }
    EXT_END_LOCKED()
    if (taken) {
        Py_BEGIN_ALLOW_THREADS segment_drop(handle);
        Py_END_ALLOW_THREADS PyErr_SetString(PyExc_ValueError, "the handle is open already");
        return -1;
    }
    return 0;
}

static int
segment_init(PyObject *op, PyObject *args, PyObject *kwargs)
{
    SegmentObject *self = (SegmentObject *)op;
    if (self->handle != NULL) {
        PyErr_Format(PyExc_ValueError, "the handle on segment '%s' is open already",
                     self->info.name);
        return -1;
    }
    segment_request request;
    memset(&request, 0, sizeof(request));
    int failed = segment_parse(args, kwargs, &request) < 0;
    if (!failed) {
        Py_CLEAR(self->descr);
        failed = segment_request_finish(&request) < 0 || segment_open(self, &request) < 0;
    }
    Py_XDECREF(request.directory);
    return failed ? -1 : 0;
}

static PyObject *
segment_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    ext_state *state = ext_state_of_type(type);
    if (state == NULL) {
        return NULL;
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    SegmentObject *self = (SegmentObject *)allocate(type, 0);
    if (self != NULL) {
        self->state = state;
    }
    return (PyObject *)self;
}

static int
segment_traverse(PyObject *op, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(((SegmentObject *)op)->descr);
    return 0;
}

static void
segment_dealloc(PyObject *op)
{
    SegmentObject *self = (SegmentObject *)op;
    PyObject_GC_UnTrack(op);
    if (self->handle != NULL) {
        Py_BEGIN_ALLOW_THREADS segment_drop_with_block(self->handle);
        Py_END_ALLOW_THREADS
    }
    Py_CLEAR(self->descr);
    ext_free(op);
}

/* ---- dtype --------------------------------------------------------------------------------- */

int
segment_require_dtype(const SegmentObject *self)
{
    if (self->descr != NULL) {
        return 0;
    }
    PyErr_SetString(PyExc_RuntimeError, "no dtype is bound yet: call bind_dtype() first");
    return -1;
}

static PyObject *
segment_bind_dtype(PyObject *op, PyObject *dtype)
{
    SegmentObject *self = (SegmentObject *)op;
    if (self->handle == NULL) {
        return segment_raise_closed(self);
    }
    if (!PyArray_DescrCheck(dtype)) {
        PyErr_Format(PyExc_TypeError, "bind_dtype() needs a numpy.dtype, found %R", dtype);
        return NULL;
    }
    PyArray_Descr *descr = (PyArray_Descr *)dtype;
    if (PyDataType_REFCHK(descr) || PyDataType_HASSUBARRAY(descr)) {
        PyErr_Format(PyExc_ValueError, "%R cannot live in shared memory as it is", dtype);
        return NULL;
    }
    if ((uint64_t)PyDataType_ELSIZE(descr) != self->info.itemsize) {
        PyErr_Format(self->state->FormatError,
                     "segment '%s' has elements of %u bytes, dtype %S has %zd", self->info.name,
                     self->info.itemsize, dtype, (Py_ssize_t)PyDataType_ELSIZE(descr));
        return NULL;
    }
    if (self->descr != NULL) {
        /* Arrays and other threads rely on the first one. */
        PyErr_SetString(PyExc_ValueError, "a dtype is bound already");
        return NULL;
    }
    self->element = ext_element_of(descr);
    self->descr = (PyArray_Descr *)Py_NewRef(dtype);
    Py_RETURN_NONE;
}

/* ---- slots --------------------------------------------------------------------------------- */

int
segment_slot(const SegmentObject *self, sv_segment *handle, PyObject *index, uint32_t *slot)
{
    int64_t number;
    if (ext_number(index, "slot index", &number) < 0) {
        return -1;
    }
    int64_t size = (int64_t)sv_size(handle);
    int64_t found = number < 0 && number > INT64_MIN ? number + size : number;
    if (found < 0 || found >= size) {
        PyErr_Format(PyExc_IndexError,
                     "slot index %R is out of range: segment '%s' has %lld slots "
                     "filled",
                     index, self->info.name, (long long)size);
        return -1;
    }
    *slot = (uint32_t)found;
    return 0;
}

PyObject *
segment_raise_slot(const SegmentObject *self, sv_segment *handle, int code, uint32_t slot)
{
    if (code == SV_EINDEX) {
        PyErr_Format(PyExc_IndexError,
                     "slot index %u is out of range: segment '%s' has %u slots "
                     "filled",
                     slot, self->info.name, sv_size(handle));
        return NULL;
    }
    sv_error err;
    ext_error_clear(&err);
    (void)PyOS_snprintf(err.message, sizeof(err.message), "slot %u of segment '%.240s': %s", slot,
                        self->info.name, sv_error_text(code));
    return ext_raise(self->state, code, &err);
}

/* ---- type ---------------------------------------------------------------------------------- */

static PyMethodDef segment_life_methods[] = {
    {"bind_dtype", segment_bind_dtype, METH_O,
     "bind_dtype($self, dtype, /)\n--\n\n"
     "Fix the numpy.dtype of the arrays, once. FormatError when its item size is another one than\n"
     "the segment's; ValueError for dtypes with references."},
    {"close", segment_close, METH_NOARGS,
     "close($self, /)\n--\n\n"
     "Give the handle back; a second call does nothing.\n\n"
     "Arrays from get() stay valid. InUseError while a reservation of this handle is open; the\n"
     "handle then stays open."},
    {"__enter__", segment_enter_with, METH_NOARGS, "__enter__($self, /)\n--\n\nReturn self."},
    {"__exit__", segment_exit_with, METH_VARARGS,
     "__exit__($self, exc_type, exc, tb, /)\n--\n\nClose the handle."},
    {NULL, NULL, 0, NULL},
};

static Py_ssize_t
segment_length(PyObject *op)
{
    SegmentObject *self = (SegmentObject *)op;
    sv_segment *handle = segment_enter(self);
    if (handle == NULL) {
        return -1;
    }
    Py_ssize_t size = (Py_ssize_t)sv_size(handle);
    segment_leave(self);
    return size;
}

PyDoc_STRVAR(segment_doc, "A handle on an attached segment.\n\n"
                          "Handles of one process on one segment share its mapping and its row.");

static PyType_Slot segment_slots[] = {
    {Py_tp_doc, (void *)segment_doc},     {Py_tp_new, segment_new},
    {Py_tp_init, segment_init},           {Py_tp_dealloc, segment_dealloc},
    {Py_tp_traverse, segment_traverse},   {Py_tp_methods, segment_life_methods},
    {Py_tp_getset, segment_facts_getset}, {Py_mp_length, segment_length},
    {Py_mp_subscript, segment_getitem},   {0, NULL},
};

static PyType_Spec segment_spec = {
    .name = "sharedvector._core.Segment",
    .basicsize = sizeof(SegmentObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = segment_slots,
};

/* Methods and properties live in several files, and a type takes one table of each. */
static int
segment_add_methods(PyTypeObject *type, PyMethodDef *methods)
{
    for (PyMethodDef *method = methods; method->ml_name != NULL; method++) {
        PyObject *descriptor = PyDescr_NewMethod(type, method);
        if (descriptor == NULL) {
            return -1;
        }
        int failed = PyObject_SetAttrString((PyObject *)type, method->ml_name, descriptor);
        Py_DECREF(descriptor);
        if (failed < 0) {
            return -1;
        }
    }
    return 0;
}

static int
segment_add_properties(PyTypeObject *type, PyGetSetDef *properties)
{
    for (PyGetSetDef *property = properties; property->name != NULL; property++) {
        PyObject *descriptor = PyDescr_NewGetSet(type, property);
        if (descriptor == NULL) {
            return -1;
        }
        int failed = PyObject_SetAttrString((PyObject *)type, property->name, descriptor);
        Py_DECREF(descriptor);
        if (failed < 0) {
            return -1;
        }
    }
    return 0;
}

int
ext_segment_init(PyObject *module, ext_state *state)
{
    static int registered;
    if (!registered && pthread_atfork(NULL, NULL, segment_forked) != 0) {
        PyErr_NoMemory();
        return -1;
    }
    registered = 1;
    state->segment_type = ext_type_add(module, &segment_spec, "Segment");
    if (state->segment_type == NULL) {
        return -1;
    }
    PyTypeObject *type = state->segment_type;
    return segment_add_methods(type, segment_read_methods) < 0 ||
                   segment_add_methods(type, segment_gather_methods) < 0 ||
                   segment_add_methods(type, segment_write_methods) < 0 ||
                   segment_add_methods(type, segment_block_methods) < 0 ||
                   segment_add_methods(type, segment_stats_methods) < 0 ||
                   segment_add_properties(type, segment_stats_getset) < 0
               ? -1
               : 0;
}
