/*
 * Segment, reading: get, get_meta, get_with_meta, gather, and what can be asked about a chunk.
 *
 * get() is the call that everything is built for. It allocates the View before it pins, keeps the
 * GIL (a pin takes less time than giving the GIL away), and makes the array through NumPy's C-API.
 */
#include "ext.h"

#include <string.h>

/* How often gather() starts again because the chunk that gives the shape was replaced. */
#define GATHER_ROUNDS 4

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

/* ---- gather -------------------------------------------------------------------------------- */

typedef struct {
    uint32_t *slots;
    Py_ssize_t count;
    /* Of the first chunk, which gives shape and size to all. */
    uint64_t shape[SV_MAX_NDIM];
    uint32_t ndim;
    uint64_t size_bytes;
    uint64_t version;
} gather_plan;

static int
gather_slot(const SegmentObject *self, sv_segment *handle, PyObject *items, Py_ssize_t i,
            uint32_t *slot)
{
    PyObject *item = PySequence_GetItem(items, i);
    if (item == NULL) {
        return -1;
    }
    int failed = segment_slot(self, handle, item, slot);
    Py_DECREF(item);
    return failed;
}

/* Read the indices of a sequence or an integer array into plan->slots. */
static int
gather_read_indices(const SegmentObject *self, sv_segment *handle, PyObject *indices,
                    gather_plan *plan)
{
    /* Items of an integer array are NumPy scalars, which have __index__; those of others do not. */
    Py_ssize_t count = PySequence_Check(indices) ? PySequence_Size(indices) : -1;
    if (count < 0) {
        if (!PyErr_Occurred()) {
            PyErr_Format(PyExc_TypeError, "indices must be a sequence of integers, found %R",
                         indices);
        }
        return -1;
    }
    plan->slots = PyMem_Malloc(((size_t)count + 1) * sizeof(*plan->slots));
    if (plan->slots == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    plan->count = count;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (gather_slot(self, handle, indices, i, &plan->slots[i]) < 0) {
            return -1;
        }
    }
    return 0;
}

/* Shape, size and version of the first chunk as they are now. */
static int
gather_look(SegmentObject *self, sv_segment *handle, gather_plan *plan)
{
    sv_view view;
    int code = sv_pin_quiet(handle, plan->slots[0], &view);
    if (code != 0) {
        segment_raise_slot(self, handle, code, plan->slots[0]);
        return -1;
    }
    sv_chunk_info info = {0};
    sv_view_info(&view, &info);
    uint64_t bytes = 0;
    int broken = view.ndim > SV_MAX_NDIM ||
                 ext_size_bytes(view.shape, view.ndim, self->itemsize, &bytes) < 0 ||
                 bytes != view.size_bytes;
    if (!broken) {
        memcpy(plan->shape, view.shape, view.ndim * sizeof(view.shape[0]));
        plan->ndim = view.ndim;
        plan->size_bytes = view.size_bytes;
        plan->version = info.version;
    }
    sv_unpin(&view);
    if (broken) {
        segment_raise_slot(self, handle, SV_EFORMAT, plan->slots[0]);
        return -1;
    }
    return 0;
}

static PyObject *
gather_make_out(const SegmentObject *self, const gather_plan *plan)
{
    npy_intp dims[SV_MAX_NDIM + 1];
    dims[0] = (npy_intp)plan->count;
    for (uint32_t i = 0; i < plan->ndim; i++) {
        dims[i + 1] = (npy_intp)plan->shape[i];
    }
    Py_INCREF((PyObject *)self->descr);
    return PyArray_NewFromDescr(&PyArray_Type, self->descr, (int)plan->ndim + 1, dims, NULL, NULL,
                                0, NULL);
}

static int
gather_out_has_shape(PyArrayObject *out, const gather_plan *plan)
{
    if (PyArray_NDIM(out) != (int)plan->ndim + 1 || PyArray_DIM(out, 0) != plan->count) {
        return 0;
    }
    for (uint32_t i = 0; i < plan->ndim; i++) {
        if ((uint64_t)PyArray_DIM(out, (int)i + 1) != plan->shape[i]) {
            return 0;
        }
    }
    return 1;
}

static int
gather_check_shape(PyArrayObject *out, const gather_plan *plan)
{
    if (gather_out_has_shape(out, plan)) {
        return 0;
    }
    PyObject *wanted = ext_shape_tuple(plan->shape, plan->ndim);
    PyObject *found = PyObject_GetAttrString((PyObject *)out, "shape");
    if (wanted != NULL && found != NULL) {
        PyErr_Format(PyExc_ValueError,
                     "out must have shape (%zd, *%R): one item per index, each of the chunks' "
                     "shape; found %R",
                     plan->count, wanted, found);
    }
    Py_XDECREF(wanted);
    Py_XDECREF(found);
    return -1;
}

/* Everything about `out` but its shape. */
static int
gather_check_out(const SegmentObject *self, PyObject *op)
{
    if (!PyArray_Check(op)) {
        PyErr_Format(PyExc_TypeError, "out must be a numpy.ndarray, found %R", op);
        return -1;
    }
    PyArrayObject *out = (PyArrayObject *)op;
    if (!PyArray_EquivTypes(PyArray_DESCR(out), self->descr)) {
        PyErr_Format(PyExc_ValueError, "dtype mismatch: the segment holds %S, out is %S",
                     (PyObject *)self->descr, (PyObject *)PyArray_DESCR(out));
        return -1;
    }
    if (!PyArray_IS_C_CONTIGUOUS(out)) {
        PyErr_SetString(self->state->ArraySizeError, "out is not C-contiguous");
        return -1;
    }
    return PyArray_FailUnlessWriteable(out, "out");
}

/* One copy of all chunks into out. */
static int
gather_copy(SegmentObject *self, sv_segment *handle, const gather_plan *plan, PyArrayObject *out)
{
    sv_error err;
    ext_error_clear(&err);
    int code;
    size_t count = (size_t)plan->count;
    void *target = PyArray_DATA(out);
    if (PyArray_NBYTES(out) < EXT_RELEASE_BYTES) {
        code = sv_gather(handle, plan->slots, count, target, plan->size_bytes, 1, &err);
    } else {
        Py_BEGIN_ALLOW_THREADS code =
            sv_gather(handle, plan->slots, count, target, plan->size_bytes, 0, &err);
        Py_END_ALLOW_THREADS
    }
    if (code != 0) {
        ext_raise(self->state, code, &err);
        return -1;
    }
    return 0;
}

/*
 * sv_gather() compares the chunks with each other, not with the shape that `out` was made for. When
 * the first chunk is still the same one after the copy, it was the measure of all. Otherwise look
 * and copy again.
 */
static PyObject *
gather_run(SegmentObject *self, sv_segment *handle, gather_plan *plan, PyObject *given)
{
    for (int round = 0; round < GATHER_ROUNDS; round++) {
        if (gather_look(self, handle, plan) < 0) {
            return NULL;
        }
        PyObject *out = given != NULL ? Py_NewRef(given) : gather_make_out(self, plan);
        if (out == NULL) {
            return NULL;
        }
        gather_plan after = *plan;
        if (gather_check_shape((PyArrayObject *)out, plan) < 0 ||
            gather_copy(self, handle, plan, (PyArrayObject *)out) < 0 ||
            gather_look(self, handle, &after) < 0) {
            Py_DECREF(out);
            return NULL;
        }
        if (after.version == plan->version || gather_out_has_shape((PyArrayObject *)out, &after)) {
            return out;
        }
        Py_DECREF(out);
    }
    segment_raise_slot(self, handle, SV_EMODIFIED, plan->slots[0]);
    return NULL;
}

static PyObject *
gather_nothing(const SegmentObject *self, PyObject *given)
{
    if (given == NULL) {
        PyErr_Format(PyExc_ValueError,
                     "no indices: the shape of an empty batch of segment '%s' is unknown; pass out",
                     self->info.name);
        return NULL;
    }
    PyArrayObject *out = (PyArrayObject *)given;
    if (PyArray_NDIM(out) < 1 || PyArray_DIM(out, 0) != 0) {
        PyErr_SetString(PyExc_ValueError, "no indices: out must have a first dimension of 0");
        return NULL;
    }
    return Py_NewRef(given);
}

static PyObject *
segment_gather(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    static const ext_params params = {"gather", 1, 2, 2, {"indices", "out"}};
    SegmentObject *self = (SegmentObject *)op;
    PyObject *values[2];
    if (ext_params_sort(&params, args, nargs, kwnames, values) < 0) {
        return NULL;
    }
    sv_segment *handle = segment_enter(self);
    if (handle == NULL) {
        return NULL;
    }
    PyObject *given = values[1] == Py_None ? NULL : values[1];
    gather_plan plan = {0};
    PyObject *made = NULL;
    if (segment_require_dtype(self) == 0 && (given == NULL || gather_check_out(self, given) == 0) &&
        gather_read_indices(self, handle, values[0], &plan) == 0) {
        made =
            plan.count == 0 ? gather_nothing(self, given) : gather_run(self, handle, &plan, given);
    }
    PyMem_Free(plan.slots);
    segment_leave(self);
    return made;
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
    {"gather", EXT_FAST(segment_gather), FAST,
     "gather($self, /, indices, out=None)\n--\n\n"
     "Copy several chunks of one shape into an array of shape (len(indices), *shape).\n\n"
     "Indices may repeat and may be negative; each counts one read. `out` must be C-contiguous,\n"
     "writable, of that shape and of the segment's dtype; on failure its contents are undefined.\n"
     "ValueError when the chunks differ in shape, or without indices when out is None."},
    {NULL, NULL, 0, NULL},
};
