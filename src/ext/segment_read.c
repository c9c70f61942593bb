/*
 * Segment, reading: get, get_meta, get_with_meta, and what can be asked about a chunk.
 *
 * get() is the call that everything is built for. It allocates the View before it pins, keeps the
 * GIL (a pin takes less time than giving the GIL away), and makes the array through NumPy's C-API.
 */
#include "ext.h"

#include <string.h>

/* The only argument `index`, by position or by name; NULL with TypeError. */
static PyObject *
read_index_argument(const char *function, PyObject *const *args, Py_ssize_t nargs,
                    PyObject *kwnames)
{
    if (nargs == 1 && kwnames == NULL) {
        return args[0];
    }
    ext_params params = {function, 1, 1, 1, {"index"}};
    PyObject *index;
    return ext_params_sort(&params, args, nargs, kwnames, &index) < 0 ? NULL : index;
}

typedef int (*read_pin)(sv_segment *segment, uint32_t slot, sv_view *view);

/* Pin slot `number`. Returns a code that read_raise() explains, together with *size. */
static int
read_pin_locked(SegmentObject *self, int64_t number, read_pin pin, ViewObject *view, uint32_t *size)
{
    sv_segment *handle = self->handle;
    if (handle == NULL || self->closing) {
        return SV_ECLOSED;
    }
    if (number < 0 && number > INT64_MIN) {
        number += (int64_t)sv_size(handle);
    }
    int code = SV_EINDEX;
    if (number >= 0 && number <= (int64_t)UINT32_MAX) {
        code = pin(handle, (uint32_t)number, &view->view);
        view->pinned = code == 0;
    }
    if (code == SV_EINDEX) {
        *size = sv_size(handle);
    }
    return code;
}

/* Take the process's row, only to learn why it cannot be had. */
static int
read_join(SegmentObject *self, sv_error *err)
{
    int code;
    EXT_BEGIN_LOCKED((PyObject *)self)
    code = self->handle == NULL || self->closing ? 0 : sv_segment_join(self->handle, err);
    EXT_END_LOCKED()
    return code;
}

static void
read_raise(SegmentObject *self, int code, PyObject *index, uint32_t size)
{
    if (code == SV_ECLOSED) {
        segment_raise_closed(self);
        return;
    }
    if (code == SV_EINDEX) {
        PyErr_Format(PyExc_IndexError,
                     "slot index %R is out of range: segment '%s' has %u slots filled", index,
                     self->info.name, size);
        return;
    }
    sv_error err;
    ext_error_clear(&err);
    /* In a forked child the pin attached first, and had no room to say why it failed. */
    int joined =
        code == SV_ESYS || code == SV_EROWS || code == SV_ENOMEM ? read_join(self, &err) : 0;
    if (joined != 0) {
        ext_raise(self->state, joined, &err);
        return;
    }
    (void)PyOS_snprintf(err.message, sizeof(err.message), "segment '%.240s': %s", self->info.name,
                        sv_error_text(code));
    ext_raise(self->state, code, &err);
}

/* A pinned View of the chunk that `index` names. */
static ViewObject *
read_view(SegmentObject *self, PyObject *index, read_pin pin)
{
    int64_t number;
    if (ext_number(index, "slot index", &number) < 0) {
        return NULL;
    }
    /* Before the pin: after it nothing may fail that would leave a pin behind. */
    ViewObject *view = view_new(self);
    if (view == NULL) {
        return NULL;
    }
    int code;
    uint32_t size = 0;
    EXT_BEGIN_LOCKED((PyObject *)self)
    code = read_pin_locked(self, number, pin, view, &size);
    EXT_END_LOCKED()
    if (code != 0) {
        read_raise(self, code, index, size);
        Py_DECREF(view);
        return NULL;
    }
    return view;
}

PyObject *
segment_getitem(PyObject *op, PyObject *index)
{
    SegmentObject *self = (SegmentObject *)op;
    if (self->descr == NULL) {
        if (self->handle == NULL) {
            return segment_raise_closed(self);
        }
        segment_require_dtype(self);
        return NULL;
    }
    ViewObject *view = read_view(self, index, sv_pin);
    return view != NULL ? ext_view_array(self, view) : NULL;
}

static PyObject *
segment_get(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *index = read_index_argument("get", args, nargs, kwnames);
    return index != NULL ? segment_getitem(op, index) : NULL;
}

static PyObject *
read_meta_of(const ViewObject *view)
{
    double values[SV_MAX_META];
    uint32_t count = sv_view_meta(&view->view, values);
    return ext_meta_array(values, count);
}

static PyObject *
segment_get_meta(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *index = read_index_argument("get_meta", args, nargs, kwnames);
    if (index == NULL) {
        return NULL;
    }
    ViewObject *view = read_view((SegmentObject *)op, index, sv_pin_quiet);
    if (view == NULL) {
        return NULL;
    }
    PyObject *meta = read_meta_of(view);
    Py_DECREF(view);
    return meta;
}

static PyObject *
segment_get_with_meta(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    SegmentObject *self = (SegmentObject *)op;
    PyObject *index = read_index_argument("get_with_meta", args, nargs, kwnames);
    if (index == NULL || (self->handle != NULL && segment_require_dtype(self) < 0)) {
        return NULL;
    }
    ViewObject *view = read_view(self, index, sv_pin);
    if (view == NULL) {
        return NULL;
    }
    PyObject *meta = read_meta_of(view);
    PyObject *array = ext_view_array(self, view);
    PyObject *both = meta != NULL && array != NULL ? PyTuple_Pack(2, array, meta) : NULL;
    Py_XDECREF(array);
    Py_XDECREF(meta);
    return both;
}

static PyObject *
segment_get_chunk_pointer(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *index = read_index_argument("get_chunk_pointer", args, nargs, kwnames);
    ViewObject *view = index != NULL ? read_view((SegmentObject *)op, index, sv_pin_quiet) : NULL;
    if (view == NULL) {
        return NULL;
    }
    PyObject *address = PyLong_FromVoidPtr((void *)(uintptr_t)view->view.data);
    Py_DECREF(view);
    return address;
}

static PyObject *
segment_get_chunk_shape(PyObject *op, PyObject *index)
{
    ViewObject *view = read_view((SegmentObject *)op, index, sv_pin_quiet);
    if (view == NULL) {
        return NULL;
    }
    PyObject *shape = ext_shape_tuple(view->view.shape, view->view.ndim);
    Py_DECREF(view);
    return shape;
}

/* ---- table --------------------------------------------------------------------------------- */

#define FAST (METH_FASTCALL | METH_KEYWORDS)

PyMethodDef segment_read_methods[] = {
    {"get", EXT_FAST(segment_get), FAST,
     "get($self, /, index)\n--\n\n"
     "Return the chunk of a slot as a read-only array, without a copy, and count one read.\n\n"
     "The array shows this chunk for as long as it or a view of it lives, whatever becomes of the\n"
     "slot. IndexError out of range, DataModifiedError when the slot is replaced too fast,\n"
     "FormatError when the segment is damaged."},
    {"get_meta", EXT_FAST(segment_get_meta), FAST,
     "get_meta($self, /, index)\n--\n\n"
     "Return a slot's metadata as a fresh float64 array of shape (n,), n = 0 to 8. Counts no "
     "read."},
    {"get_with_meta", EXT_FAST(segment_get_with_meta), FAST,
     "get_with_meta($self, /, index)\n--\n\n"
     "Return get() and get_meta() of one and the same chunk."},
    {"get_chunk_pointer", EXT_FAST(segment_get_chunk_pointer), FAST,
     "get_chunk_pointer($self, /, index)\n--\n\n"
     "Return the address of a slot's chunk in this process; nothing keeps the chunk there."},
    {"get_chunk_shape", segment_get_chunk_shape, METH_O,
     "get_chunk_shape($self, index, /)\n--\n\nReturn the shape of a slot's chunk."},
    {NULL, NULL, 0, NULL},
};
