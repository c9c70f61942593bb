/*
 * Segment, reading many chunks at once: gather() and gather_with_meta().
 *
 * Arguments become plain numbers first; the core then pins, crops, converts and copies without the
 * GIL. It is told the shape that the output was made for, so a chunk that is replaced by one of
 * another shape meanwhile is refused there and never half copied.
 */
#include "gather.h"

#include <string.h>

/* How often a gather starts again because the chunk that gives the shape was replaced. */
#define GATHER_ROUNDS 4

/* ---- output -------------------------------------------------------------------------------- */

/* Everything about `out` but its shape. */
static int
gather_check_out(gather_call *call, PyObject *op)
{
    if (op == NULL || op == Py_None) {
        return 0;
    }
    if (!PyArray_Check(op)) {
        PyErr_Format(PyExc_TypeError, "out must be a numpy.ndarray, found %R", op);
        return -1;
    }
    call->out = (PyArrayObject *)op;
    if (!PyArray_EquivTypes(PyArray_DESCR(call->out), call->descr)) {
        PyErr_Format(PyExc_ValueError, "dtype mismatch: the batch is of %S, out of %S",
                     (PyObject *)call->descr, (PyObject *)PyArray_DESCR(call->out));
        return -1;
    }
    if (!PyArray_IS_C_CONTIGUOUS(call->out)) {
        PyErr_SetString(call->self->state->ArraySizeError, "out is not C-contiguous");
        return -1;
    }
    return PyArray_FailUnlessWriteable(call->out, "out");
}

static int
gather_check_out_shape(const gather_call *call)
{
    const sv_gather_options *how = &call->how;
    int same =
        PyArray_NDIM(call->out) == (int)how->ndim + 1 && PyArray_DIM(call->out, 0) == call->count;
    for (uint32_t i = 0; same && i < how->ndim; i++) {
        same = (uint64_t)PyArray_DIM(call->out, (int)i + 1) == how->shape[i];
    }
    if (same) {
        return 0;
    }
    PyObject *wanted = ext_shape_tuple(how->shape, how->ndim);
    PyObject *found = PyObject_GetAttrString((PyObject *)call->out, "shape");
    if (wanted != NULL && found != NULL) {
        PyErr_Format(PyExc_ValueError,
                     "out must have shape (%zd, *%R): one item per index, each of the %s shape; "
                     "found %R",
                     call->count, wanted, call->crops ? "crop's" : "chunks'", found);
    }
    Py_XDECREF(wanted);
    Py_XDECREF(found);
    return -1;
}

static PyArrayObject *
gather_make_out(const gather_call *call)
{
    npy_intp dims[SV_MAX_NDIM + 1];
    dims[0] = (npy_intp)call->count;
    for (uint32_t i = 0; i < call->how.ndim; i++) {
        dims[i + 1] = (npy_intp)call->how.shape[i];
    }
    Py_INCREF((PyObject *)call->descr);
    return (PyArrayObject *)PyArray_NewFromDescr(&PyArray_Type, call->descr,
                                                 (int)call->how.ndim + 1, dims, NULL, NULL, 0,
                                                 NULL);
}

/* ---- running ------------------------------------------------------------------------------- */

/* The shape of the first chunk as it is now; without a crop it is that of all. */
static int
gather_look(gather_call *call, uint64_t shape[SV_MAX_NDIM], uint32_t *ndim)
{
    sv_view view;
    int code = sv_pin_quiet(call->handle, call->slots[0], &view);
    if (code != 0) {
        segment_raise_slot(call->self, call->handle, code, call->slots[0]);
        return -1;
    }
    *ndim = view.ndim;
    memcpy(shape, view.shape, view.ndim * sizeof(view.shape[0]));
    sv_unpin(&view);
    return 0;
}

/* 0, or the code of the core. */
static int
gather_copy(gather_call *call, PyArrayObject *out, sv_error *err)
{
    size_t count = (size_t)call->count;
    void *target = PyArray_DATA(out);
    uint64_t bytes = (uint64_t)PyArray_NBYTES(out);
    uint64_t stride = bytes / count;
    int code;
    if (bytes < EXT_RELEASE_BYTES) {
        return sv_gather(call->handle, call->slots, count, &call->how, target, stride, err);
    }
    Py_BEGIN_ALLOW_THREADS code =
        sv_gather(call->handle, call->slots, count, &call->how, target, stride, err);
    Py_END_ALLOW_THREADS return code;
}

/* Was the first chunk replaced by one of another shape since its shape was taken? */
static int
gather_is_outdated(gather_call *call)
{
    uint64_t shape[SV_MAX_NDIM];
    uint32_t ndim = 0;
    if (gather_look(call, shape, &ndim) < 0) {
        return -1;
    }
    return ndim != call->how.ndim || memcmp(shape, call->how.shape, ndim * sizeof(shape[0])) != 0;
}

/* One try; *again is set when the shape that a new output was made for is no longer the chunks'. */
static PyArrayObject *
gather_try(gather_call *call, int *again)
{
    if ((!call->crops && gather_look(call, call->how.shape, &call->how.ndim) < 0) ||
        gather_check_flip(call) < 0 || (call->out != NULL && gather_check_out_shape(call) < 0)) {
        return NULL;
    }
    PyArrayObject *out = call->out != NULL ? (PyArrayObject *)Py_NewRef((PyObject *)call->out)
                                           : gather_make_out(call);
    if (out == NULL) {
        return NULL;
    }
    sv_error err;
    ext_error_clear(&err);
    int code = gather_copy(call, out, &err);
    if (code == 0) {
        return out;
    }
    Py_DECREF(out);
    *again = code == SV_EINVAL && !call->crops ? gather_is_outdated(call) : 0;
    if (*again == 0) {
        ext_raise(call->self->state, code, &err);
    }
    return NULL;
}

static PyArrayObject *
gather_run(gather_call *call)
{
    for (int round = 0; round < GATHER_ROUNDS; round++) {
        int again = 0;
        PyArrayObject *made = gather_try(call, &again);
        if (again <= 0) {
            return made;
        }
    }
    segment_raise_slot(call->self, call->handle, SV_EMODIFIED, call->slots[0]);
    return NULL;
}

static PyArrayObject *
gather_nothing(gather_call *call)
{
    if (call->crops) {
        return call->out == NULL ? gather_make_out(call)
               : gather_check_out_shape(call) < 0
                   ? NULL
                   : (PyArrayObject *)Py_NewRef((PyObject *)call->out);
    }
    if (call->out == NULL) {
        PyErr_Format(PyExc_ValueError,
                     "no indices: the shape of an empty batch of segment '%s' is unknown; pass out "
                     "or crop",
                     call->self->info.name);
        return NULL;
    }
    if (PyArray_NDIM(call->out) < 1 || PyArray_DIM(call->out, 0) != 0) {
        PyErr_SetString(PyExc_ValueError, "no indices: out must have a first dimension of 0");
        return NULL;
    }
    return (PyArrayObject *)Py_NewRef((PyObject *)call->out);
}

/* (batch, metas); steals the batch. */
static PyObject *
gather_with_metas(const gather_call *call, PyArrayObject *batch)
{
    PyObject *metas = PyList_New(call->count);
    for (Py_ssize_t i = 0; metas != NULL && i < call->count; i++) {
        PyObject *meta = ext_meta_array(call->meta[i], call->meta_counts[i]);
        if (meta == NULL || PyList_SetItem(metas, i, meta) < 0) {
            Py_CLEAR(metas);
        }
    }
    PyObject *both = metas != NULL ? PyTuple_Pack(2, (PyObject *)batch, metas) : NULL;
    Py_XDECREF(metas);
    Py_DECREF((PyObject *)batch);
    return both;
}

static PyObject *
gather_call_run(gather_call *call, PyObject *const *values, int with_meta)
{
    if (gather_read(call, values) < 0 || gather_check_out(call, values[GATHER_OUT]) < 0 ||
        (with_meta && gather_read_meta(call) < 0)) {
        return NULL;
    }
    PyArrayObject *batch = call->count == 0 ? gather_nothing(call) : gather_run(call);
    return batch == NULL || !with_meta ? (PyObject *)batch : gather_with_metas(call, batch);
}

static PyObject *
gather_method(const char *name, PyObject *op, PyObject *const *args, Py_ssize_t nargs,
              PyObject *kwnames, int with_meta)
{
    ext_params params = {name,
                         1,
                         GATHER_ARGUMENTS,
                         GATHER_ARGUMENTS,
                         {"indices", "out", "crop", "dtype", "scale", "offset", "flip"}};
    gather_call call = {.self = (SegmentObject *)op};
    PyObject *values[GATHER_ARGUMENTS];
    if (ext_params_sort(&params, args, nargs, kwnames, values) < 0) {
        return NULL;
    }
    call.handle = segment_enter(call.self);
    if (call.handle == NULL) {
        return NULL;
    }
    PyObject *made = gather_call_run(&call, values, with_meta);
    gather_clear(&call);
    segment_leave(call.self);
    return made;
}

static PyObject *
segment_gather(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    return gather_method("gather", op, args, nargs, kwnames, 0);
}

static PyObject *
segment_gather_with_meta(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    return gather_method("gather_with_meta", op, args, nargs, kwnames, 1);
}

/* ---- table --------------------------------------------------------------------------------- */

#define FAST (METH_FASTCALL | METH_KEYWORDS)

PyDoc_STRVAR(
    gather_doc,
    "gather($self, /, indices, out=None, crop=None, dtype=None, scale=None, offset=None, "
    "flip=None)\n--\n\n"
    "Copy several chunks, or a part of each, into an array of shape (len(indices), *shape).\n\n"
    "Indices are a sequence of integers, or what NumPy makes an array of one dimension of. They\n"
    "may repeat and may be negative; each counts one read. The copy is made without the\n"
    "GIL, in one pass, whatever is asked for:\n\n"
    "crop    (origins, shape): only this part of each chunk is copied. `shape` has a length >= 1\n"
    "        for each axis and is the same for all; the chunks may differ in shape. `origins` are\n"
    "        integers of shape (n, axes), or (axes,) for all items, or floats u of such a shape\n"
    "        with 0 <= u < 1: then a crop begins at floor(u * (chunk length - crop length + 1)).\n"
    "dtype   of the batch, instead of the segment's. Native integers and floats are converted:\n"
    "        to integers clipped, cut towards zero, NaN to 0; to floats as astype() does.\n"
    "scale, offset   the batch holds value * scale + offset (1 and 0 when None), computed in\n"
    "        float32, or in float64 for float64 and integers of 4 or 8 bytes; needs a float "
    "batch.\n"
    "flip    bool array of shape (n,): which items are mirrored along axis 0; or (n, axes).\n"
    "out     the array to fill: C-contiguous, writable, of the batch's shape and dtype; on "
    "failure\n"
    "        its contents are undefined.\n\n"
    "ValueError when chunks differ in shape (without crop), a crop leaves its chunk, an argument\n"
    "has another shape, or without indices when neither out nor crop tells the shape; TypeError\n"
    "for dtypes that are not converted and for other indices; IndexError for one out of range.");

PyDoc_STRVAR(
    gather_with_meta_doc,
    "gather_with_meta($self, /, indices, out=None, crop=None, dtype=None, scale=None, "
    "offset=None, flip=None)\n--\n\n"
    "As gather(), and return (batch, metas): metas[i] is the metadata, a float64 array of\n"
    "shape (0,) to (8,), of the very chunk that batch[i] was copied from.");

PyMethodDef segment_gather_methods[] = {
    {"gather", EXT_FAST(segment_gather), FAST, gather_doc},
    {"gather_with_meta", EXT_FAST(segment_gather_with_meta), FAST, gather_with_meta_doc},
    {NULL, NULL, 0, NULL},
};
