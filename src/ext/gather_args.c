/*
 * The arguments of gather(): indices, dtype, scale, crop and flips, checked as far as they can be
 * without a look at the chunks.
 */
#include "gather.h"

#include <math.h>

/* Memory for `count` things, at least one; NULL with MemoryError. */
static void *
gather_memory(Py_ssize_t count, size_t bytes)
{
    void *memory = PyMem_Calloc(count > 0 ? (size_t)count : 1, bytes);
    if (memory == NULL) {
        PyErr_NoMemory();
    }
    return memory;
}

/* ---- indices ------------------------------------------------------------------------------- */

/* The indices as a list, tuple, other sequence, or array of one dimension; a new reference. */
static PyObject *
gather_index_sequence(PyObject *indices)
{
    int known = PyList_Check(indices) || PyTuple_Check(indices) || PyArray_Check(indices);
    /* What can become an array does: a tensor is no sequence, a table's column counts by label. */
    int foreign =
        !known && (!PySequence_Check(indices) || PyObject_HasAttrString(indices, "__array__"));
    PyObject *found = foreign ? PyArray_FROM_O(indices) : Py_NewRef(indices);
    if (found == NULL || !PyArray_Check(found) || PyArray_NDIM((PyArrayObject *)found) == 1) {
        return found;
    }
    PyErr_Format(PyExc_TypeError,
                 "indices must be a sequence of integers, or an array of one dimension, found %R",
                 indices);
    Py_DECREF(found);
    return NULL;
}

/* A list of bools is a mask, and would read slots 0 and 1. */
static int
gather_fill_slot(gather_call *call, PyObject *item, uint32_t *slot)
{
    if (PyBool_Check(item) || PyArray_IsScalar(item, Bool)) {
        PyErr_SetString(PyExc_TypeError, "indices must be integers, found bool: for a mask take "
                                         "numpy.flatnonzero(mask)");
        return -1;
    }
    return segment_slot(call->self, call->handle, item, slot);
}

static int
gather_fill_slots(gather_call *call, PyObject *indices)
{
    /* Items of an integer array are NumPy scalars, which have __index__; those of others do not. */
    Py_ssize_t count = PySequence_Size(indices);
    if (count < 0) {
        return -1;
    }
    call->slots = gather_memory(count, sizeof(*call->slots));
    if (call->slots == NULL) {
        return -1;
    }
    call->count = count;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = PySequence_GetItem(indices, i);
        int failed = item == NULL || gather_fill_slot(call, item, &call->slots[i]) < 0;
        Py_XDECREF(item);
        if (failed) {
            return -1;
        }
    }
    return 0;
}

static int
gather_read_indices(gather_call *call, PyObject *indices)
{
    PyObject *found = gather_index_sequence(indices);
    int failed = found == NULL ? -1 : gather_fill_slots(call, found);
    Py_XDECREF(found);
    return failed;
}

/* ---- dtype, scale and offset --------------------------------------------------------------- */

static int
gather_read_number(PyObject *value, const char *name, double *out)
{
    if (value == NULL || value == Py_None) {
        return 0;
    }
    *out = PyFloat_AsDouble(value);
    if (*out == -1.0 && PyErr_Occurred()) {
        if (PyErr_ExceptionMatches(PyExc_TypeError)) {
            PyErr_Format(PyExc_TypeError, "%s must be a real number, found %R", name, value);
        }
        return -1;
    }
    if (!isfinite(*out)) {
        PyErr_Format(PyExc_ValueError, "%s must be a finite number, found %R", name, value);
        return -1;
    }
    return 1;
}

static int
gather_read_scale(gather_call *call, PyObject *const *values)
{
    call->scale = (sv_scale){1.0, 0.0};
    int scales = gather_read_number(values[GATHER_SCALE], "scale", &call->scale.scale);
    int shifts = gather_read_number(values[GATHER_OFFSET], "offset", &call->scale.offset);
    if (scales < 0 || shifts < 0) {
        return -1;
    }
    if (scales || shifts) {
        uint32_t type = ext_number_type(call->descr);
        if (type != SV_F16 && type != SV_F32 && type != SV_F64) {
            PyErr_Format(PyExc_ValueError,
                         "scale and offset need a batch of float16, float32 or float64, found %S: "
                         "pass dtype",
                         (PyObject *)call->descr);
            return -1;
        }
        call->how.scale = &call->scale;
    }
    return 0;
}

static int
gather_read_types(gather_call *call, PyObject *const *values)
{
    PyArray_Descr *held = call->self->descr;
    if (values[GATHER_DTYPE] == NULL || values[GATHER_DTYPE] == Py_None) {
        call->descr = (PyArray_Descr *)Py_NewRef((PyObject *)held);
    } else if (ext_dtype(values[GATHER_DTYPE], &call->descr) < 0) {
        return -1;
    }
    if (gather_read_scale(call, values) < 0) {
        return -1;
    }
    if (call->how.scale == NULL && PyArray_EquivTypes(call->descr, held)) {
        return 0;
    }
    call->how.type = ext_number_type(held);
    call->how.out_type = ext_number_type(call->descr);
    if (call->how.type == SV_OPAQUE || call->how.out_type == SV_OPAQUE) {
        PyErr_Format(PyExc_TypeError,
                     "no conversion from %S to %S: only native integers and floats are converted",
                     (PyObject *)held, (PyObject *)call->descr);
        return -1;
    }
    return 0;
}

/* ---- crop ---------------------------------------------------------------------------------- */

static int
gather_read_crop_shape(gather_call *call, PyObject *value)
{
    Py_ssize_t ndim = PySequence_Check(value) ? PySequence_Size(value) : -1;
    if (ndim < 0 || ndim > SV_MAX_NDIM) {
        if (!PyErr_Occurred()) {
            PyErr_Format(PyExc_ValueError,
                         "the crop's shape must be a sequence of at most %d lengths, found %R",
                         SV_MAX_NDIM, value);
        }
        return -1;
    }
    for (Py_ssize_t i = 0; i < ndim; i++) {
        PyObject *item = PySequence_GetItem(value, i);
        int64_t length = 0;
        int failed = item == NULL || ext_number(item, "a length of the crop", &length) < 0;
        Py_XDECREF(item);
        if (failed) {
            return -1;
        }
        if (length < 1) {
            PyErr_Format(PyExc_ValueError, "lengths of the crop must be 1 or more, found %R",
                         value);
            return -1;
        }
        call->how.shape[i] = (uint64_t)length;
    }
    call->how.ndim = (uint32_t)ndim;
    return 0;
}

/* An array of (ndim,), the same for all items, or of (count, ndim); a new reference. */
static PyArrayObject *
gather_origin_array(const gather_call *call, PyObject *value)
{
    PyArrayObject *found = (PyArrayObject *)PyArray_FROM_O(value);
    if (found == NULL) {
        return NULL;
    }
    int type = PyArray_TYPE(found);
    if (!PyTypeNum_ISINTEGER(type) && !PyTypeNum_ISFLOAT(type)) {
        PyErr_Format(PyExc_TypeError,
                     "the crop's origins must be integers, or fractions of the free range, found "
                     "an array of %S",
                     (PyObject *)PyArray_DESCR(found));
        Py_DECREF(found);
        return NULL;
    }
    int ndim = PyArray_NDIM(found);
    npy_intp rank = (npy_intp)call->how.ndim;
    if ((ndim != 1 || PyArray_DIM(found, 0) != rank) &&
        (ndim != 2 || PyArray_DIM(found, 0) != call->count || PyArray_DIM(found, 1) != rank)) {
        PyObject *shape = PyObject_GetAttrString((PyObject *)found, "shape");
        if (shape != NULL) {
            PyErr_Format(PyExc_ValueError,
                         "the crop's origins must have shape (%zd, %zd) or (%zd,), found %R",
                         call->count, (Py_ssize_t)rank, (Py_ssize_t)rank, shape);
            Py_DECREF(shape);
        }
        Py_DECREF(found);
        return NULL;
    }
    int wanted = PyTypeNum_ISFLOAT(type) ? NPY_DOUBLE : NPY_INT64;
    PyArrayObject *made =
        (PyArrayObject *)PyArray_FROMANY((PyObject *)found, wanted, 1, 2,
                                         NPY_ARRAY_CARRAY_RO | NPY_ARRAY_FORCECAST);
    Py_DECREF(found);
    return made;
}

static int
gather_read_fractions(gather_call *call, PyArrayObject *array)
{
    const double *from = PyArray_DATA(array);
    Py_ssize_t given = (Py_ssize_t)PyArray_SIZE(array);
    Py_ssize_t total = call->count * (Py_ssize_t)call->how.ndim;
    call->fractions = gather_memory(total, sizeof(*call->fractions));
    if (call->fractions == NULL) {
        return -1;
    }
    for (Py_ssize_t i = 0; i < total; i++) {
        double fraction = from[i % given];
        if (!(fraction >= 0.0 && fraction < 1.0)) {
            PyErr_Format(PyExc_ValueError,
                         "the crop's origins are fractions of the free range, 0 <= u < 1, found %R",
                         (PyObject *)array);
            return -1;
        }
        call->fractions[i] = fraction;
    }
    call->how.fractions = call->fractions;
    return 0;
}

static int
gather_read_origins(gather_call *call, PyArrayObject *array)
{
    const int64_t *from = PyArray_DATA(array);
    Py_ssize_t given = (Py_ssize_t)PyArray_SIZE(array);
    Py_ssize_t total = call->count * (Py_ssize_t)call->how.ndim;
    call->origins = gather_memory(total, sizeof(*call->origins));
    if (call->origins == NULL) {
        return -1;
    }
    for (Py_ssize_t i = 0; i < total; i++) {
        int64_t origin = from[i % given];
        if (origin < 0) {
            PyErr_Format(PyExc_ValueError, "the crop's origins must be 0 or more, found %R",
                         (PyObject *)array);
            return -1;
        }
        call->origins[i] = (uint64_t)origin;
    }
    call->how.origins = call->origins;
    return 0;
}

static int
gather_read_crop(gather_call *call, PyObject *value)
{
    if (value == NULL || value == Py_None) {
        return 0;
    }
    if (!PyTuple_Check(value) || PyTuple_Size(value) != 2) {
        PyErr_Format(PyExc_TypeError, "crop must be a tuple (origins, shape), found %R", value);
        return -1;
    }
    if (gather_read_crop_shape(call, PyTuple_GetItem(value, 1)) < 0) {
        return -1;
    }
    PyArrayObject *array = gather_origin_array(call, PyTuple_GetItem(value, 0));
    if (array == NULL) {
        return -1;
    }
    int failed = PyArray_TYPE(array) == NPY_DOUBLE ? gather_read_fractions(call, array)
                                                   : gather_read_origins(call, array);
    Py_DECREF(array);
    call->crops = 1;
    return failed;
}

/* ---- flip ---------------------------------------------------------------------------------- */

static int
gather_flip_has_shape(const gather_call *call, PyArrayObject *array)
{
    int ndim = PyArray_NDIM(array);
    return (ndim == 1 || (ndim == 2 && PyArray_DIM(array, 1) <= SV_MAX_NDIM)) &&
           PyArray_DIM(array, 0) == call->count;
}

/* Masks of axes. Whether their number is that of the chunks' axes is checked with the shape. */
static int
gather_read_flip(gather_call *call, PyObject *value)
{
    call->flip_axes = GATHER_NO_FLIP;
    if (value == NULL || value == Py_None) {
        return 0;
    }
    PyArrayObject *found = (PyArrayObject *)PyArray_FROM_O(value);
    if (found == NULL) {
        return -1;
    }
    PyArrayObject *array = NULL;
    if (!PyArray_ISBOOL(found)) {
        PyErr_Format(PyExc_TypeError, "flip must be an array of bool, found %S",
                     (PyObject *)PyArray_DESCR(found));
    } else if (!gather_flip_has_shape(call, found)) {
        PyErr_Format(PyExc_ValueError,
                     "flip must have shape (%zd,), for axis 0, or (%zd, axes of a chunk), found %R",
                     call->count, call->count, (PyObject *)found);
    } else {
        array = (PyArrayObject *)PyArray_FROMANY((PyObject *)found, NPY_BOOL, 1, 2,
                                                 NPY_ARRAY_CARRAY_RO);
    }
    Py_DECREF(found);
    call->flips = array == NULL ? NULL : gather_memory(call->count, sizeof(*call->flips));
    if (call->flips == NULL) {
        Py_XDECREF((PyObject *)array);
        return -1;
    }
    Py_ssize_t each = PyArray_NDIM(array) == 1 ? 1 : (Py_ssize_t)PyArray_DIM(array, 1);
    const npy_bool *from = PyArray_DATA(array);
    for (Py_ssize_t i = 0; i < call->count * each; i++) {
        call->flips[i / each] |= (uint32_t)(from[i] != 0) << (i % each);
    }
    call->flip_axes = PyArray_NDIM(array) == 1 ? GATHER_FLIP_FIRST : (int)each;
    call->how.flips = call->flips;
    Py_DECREF(array);
    return 0;
}

int
gather_check_flip(const gather_call *call)
{
    int axes = call->flip_axes;
    uint32_t ndim = call->how.ndim;
    if (axes == GATHER_NO_FLIP || axes == (int)ndim || (axes == GATHER_FLIP_FIRST && ndim > 0)) {
        return 0;
    }
    PyErr_Format(PyExc_ValueError, "flip is for %d axes, the chunks have %u",
                 axes == GATHER_FLIP_FIRST ? 1 : axes, ndim);
    return -1;
}

/* ---- all ----------------------------------------------------------------------------------- */

int
gather_read_meta(gather_call *call)
{
    call->meta = gather_memory(call->count, sizeof(*call->meta));
    call->meta_counts = gather_memory(call->count, sizeof(*call->meta_counts));
    call->how.meta = call->meta;
    call->how.meta_counts = call->meta_counts;
    return call->meta == NULL || call->meta_counts == NULL ? -1 : 0;
}

int
gather_read(gather_call *call, PyObject *const values[GATHER_ARGUMENTS])
{
    sv_gather_options_init(&call->how);
    return segment_require_dtype(call->self) < 0 || gather_read_types(call, values) < 0 ||
                   gather_read_indices(call, values[GATHER_INDICES]) < 0 ||
                   gather_read_crop(call, values[GATHER_CROP]) < 0 ||
                   gather_read_flip(call, values[GATHER_FLIP]) < 0
               ? -1
               : 0;
}

void
gather_clear(gather_call *call)
{
    PyMem_Free(call->slots);
    PyMem_Free(call->origins);
    PyMem_Free(call->fractions);
    PyMem_Free(call->flips);
    PyMem_Free(call->meta);
    PyMem_Free(call->meta_counts);
    Py_XDECREF((PyObject *)call->descr);
}
