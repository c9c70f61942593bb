/*
 * Arrays: what NumPy has to say about chunks, metadata and dtypes.
 */
#include "dlpack.h"
#include "ext.h"

#include <string.h>

/* A masked array stored without its mask would come back with invalid values as valid. */
static int
array_is_masked(PyObject *value)
{
    return PyObject_HasAttrString(value, "mask") && PyObject_HasAttrString(value, "filled");
}

/* ---- metadata ------------------------------------------------------------------------------ */

static int
meta_refuse(PyObject *value)
{
    PyObject *type = PyType_GetName(Py_TYPE(value));
    if (type != NULL) {
        PyErr_Format(PyExc_ValueError,
                     "meta must be a 1-D sequence of at most %d numbers, found %R (%U)",
                     SV_MAX_META, value, type);
        Py_DECREF(type);
    }
    return -1;
}

/* Numbers become float64; texts, dates and complex numbers do not, although NumPy could. */
static int
meta_dtype_fits(PyArrayObject *array)
{
    int type = PyArray_TYPE(array);
    return PyTypeNum_ISBOOL(type) || PyTypeNum_ISINTEGER(type) || PyTypeNum_ISFLOAT(type) ||
           PyTypeNum_ISOBJECT(type) || PyTypeNum_ISUSERDEF(type);
}

int
ext_meta(PyObject *value, double meta[SV_MAX_META])
{
    if (value == NULL || value == Py_None) {
        return 0;
    }
    if (array_is_masked(value)) {
        return meta_refuse(value);
    }
    PyArrayObject *found = (PyArrayObject *)PyArray_FROM_O(value);
    if (found == NULL) {
        return -1;
    }
    if (PyArray_NDIM(found) != 1 || !meta_dtype_fits(found)) {
        Py_DECREF(found);
        return meta_refuse(value);
    }
    if (PyArray_DIM(found, 0) > SV_MAX_META) {
        PyErr_Format(PyExc_ValueError, "meta holds at most %d values, found %zd", SV_MAX_META,
                     (Py_ssize_t)PyArray_DIM(found, 0));
        Py_DECREF(found);
        return -1;
    }
    PyArrayObject *numbers =
        (PyArrayObject *)PyArray_FROMANY((PyObject *)found, NPY_DOUBLE, 1, 1,
                                         NPY_ARRAY_CARRAY_RO | NPY_ARRAY_FORCECAST);
    Py_DECREF(found);
    if (numbers == NULL) {
        if (PyErr_ExceptionMatches(PyExc_TypeError) ||
            PyErr_ExceptionMatches(PyExc_OverflowError)) {
            PyErr_Clear();
            return meta_refuse(value);
        }
        return -1;
    }
    int count = (int)PyArray_DIM(numbers, 0);
    memcpy(meta, PyArray_DATA(numbers), (size_t)count * sizeof(double));
    Py_DECREF(numbers);
    return count;
}

PyObject *
ext_meta_array(const double *values, uint32_t count)
{
    npy_intp length = (npy_intp)count;
    PyObject *made = PyArray_SimpleNew(1, &length, NPY_DOUBLE);
    if (made != NULL && count > 0) {
        memcpy(PyArray_DATA((PyArrayObject *)made), values, count * sizeof(double));
    }
    return made;
}

/* ---- dtypes -------------------------------------------------------------------------------- */

static int
descr_is_bfloat16(PyArray_Descr *descr)
{
    PyObject *name = PyObject_GetAttrString((PyObject *)descr, "name");
    if (name == NULL || !PyUnicode_Check(name)) {
        Py_XDECREF(name);
        PyErr_Clear();
        return 0;
    }
    int same = PyUnicode_CompareWithASCIIString(name, "bfloat16") == 0;
    Py_DECREF(name);
    return same;
}

ext_element
ext_element_of(PyArray_Descr *descr)
{
    ext_element none = {NULL, 0, 0};
    if (!PyDataType_ISNOTSWAPPED(descr)) {
        return none;
    }
    uint8_t bits = (uint8_t)(PyDataType_ELSIZE(descr) * 8);
    switch (descr->type_num) {
    case NPY_BOOL:
        return (ext_element){"?", DL_BOOL, bits};
    case NPY_BYTE:
        return (ext_element){"b", DL_INT, bits};
    case NPY_UBYTE:
        return (ext_element){"B", DL_UINT, bits};
    case NPY_SHORT:
        return (ext_element){"h", DL_INT, bits};
    case NPY_USHORT:
        return (ext_element){"H", DL_UINT, bits};
    case NPY_INT:
        return (ext_element){"i", DL_INT, bits};
    case NPY_UINT:
        return (ext_element){"I", DL_UINT, bits};
    case NPY_LONG:
        return (ext_element){"l", DL_INT, bits};
    case NPY_ULONG:
        return (ext_element){"L", DL_UINT, bits};
    case NPY_LONGLONG:
        return (ext_element){"q", DL_INT, bits};
    case NPY_ULONGLONG:
        return (ext_element){"Q", DL_UINT, bits};
    case NPY_HALF:
        return (ext_element){"e", DL_FLOAT, bits};
    case NPY_FLOAT:
        return (ext_element){"f", DL_FLOAT, bits};
    case NPY_DOUBLE:
        return (ext_element){"d", DL_FLOAT, bits};
    case NPY_CFLOAT:
        return (ext_element){"Zf", DL_COMPLEX, bits};
    case NPY_CDOUBLE:
        return (ext_element){"Zd", DL_COMPLEX, bits};
    default:
        break;
    }
    if (PyTypeNum_ISUSERDEF(descr->type_num) && descr_is_bfloat16(descr)) {
        return (ext_element){NULL, DL_BFLOAT, 16};
    }
    return none;
}

/* ---- arrays that are stored ---------------------------------------------------------------- */

static int
array_check_type(PyObject *op)
{
    const char *hint;
    if (!PyArray_Check(op)) {
        hint = "convert it with numpy.asarray()";
    } else {
        if (!array_is_masked(op)) {
            return 0;
        }
        hint = "the mask cannot be stored: pass .filled(value)";
    }
    PyObject *type = PyType_GetName(Py_TYPE(op));
    if (type != NULL) {
        PyErr_Format(PyExc_TypeError, "array must be a numpy.ndarray, found %U; %s", type, hint);
        Py_DECREF(type);
    }
    return -1;
}

static int
array_check_dtype(const SegmentObject *segment, PyArrayObject *array)
{
    PyArray_Descr *found = PyArray_DESCR(array);
    if (found == segment->descr || PyArray_EquivTypes(found, segment->descr)) {
        return 0;
    }
    PyErr_Format(PyExc_ValueError,
                 "dtype mismatch: the segment holds %S, the array is %S; convert it with "
                 ".astype(vector.numpy_dtype)",
                 (PyObject *)segment->descr, (PyObject *)found);
    return -1;
}

static int
array_check_layout(const SegmentObject *segment, PyArrayObject *array)
{
    if (PyArray_NDIM(array) > SV_MAX_NDIM) {
        PyErr_Format(PyExc_ValueError, "an array may have %d dimensions, found %d; reshape it",
                     SV_MAX_NDIM, PyArray_NDIM(array));
        return -1;
    }
    if (!PyArray_IS_C_CONTIGUOUS(array)) {
        PyErr_SetString(segment->state->ArraySizeError,
                        "the array is not C-contiguous; pass numpy.ascontiguousarray(array)");
        return -1;
    }
    if ((uint64_t)PyArray_NBYTES(array) > segment->info.chunk_size) {
        PyErr_Format(segment->state->MemoryError,
                     "the array has %zd bytes, a slot of '%s' holds %llu (chunk_size)",
                     (Py_ssize_t)PyArray_NBYTES(array), segment->info.name,
                     (unsigned long long)segment->info.chunk_size);
        return -1;
    }
    return 0;
}

int
ext_chunk_array(const SegmentObject *segment, PyObject *op, sv_array *out)
{
    if (segment_require_dtype(segment) < 0) {
        return -1;
    }
    if (!PyArray_CheckExact(op) && array_check_type(op) < 0) {
        return -1;
    }
    PyArrayObject *array = (PyArrayObject *)op;
    if (array_check_dtype(segment, array) < 0 || array_check_layout(segment, array) < 0) {
        return -1;
    }
    out->data = PyArray_DATA(array);
    out->size_bytes = (uint64_t)PyArray_NBYTES(array);
    out->itemsize = (uint32_t)segment->itemsize;
    out->ndim = (uint32_t)PyArray_NDIM(array);
    for (uint32_t i = 0; i < out->ndim; i++) {
        out->shape[i] = (uint64_t)PyArray_DIM(array, (int)i);
    }
    /* Whole, as whole they go into shared memory. */
    memset(out->name, 0, sizeof(out->name));
    memset(out->dtype, 0, sizeof(out->dtype));
    return 0;
}

/* ---- arrays that are read ------------------------------------------------------------------ */

int
ext_size_bytes(const uint64_t *shape, uint32_t ndim, uint64_t itemsize, uint64_t *out)
{
    uint64_t bytes = itemsize;
    for (uint32_t i = 0; i < ndim; i++) {
        if (shape[i] > (uint64_t)PY_SSIZE_T_MAX ||
            __builtin_mul_overflow(bytes, shape[i], &bytes)) {
            return -1;
        }
    }
    *out = bytes;
    return 0;
}

static PyObject *
view_refuse(SegmentObject *segment, ViewObject *view)
{
    PyErr_Format(segment->state->FormatError,
                 "slot %u of '%s' holds %llu bytes, which its shape and dtype %S do not give; "
                 "the segment is damaged, or was filled by a program that uses another dtype",
                 view->view.slot, segment->info.name, (unsigned long long)view->view.size_bytes,
                 (PyObject *)segment->descr);
    Py_DECREF(view);
    return NULL;
}

PyObject *
ext_view_array(SegmentObject *segment, ViewObject *view)
{
    const sv_view *pinned = &view->view;
    uint64_t bytes;
    /* Shape and size come from shared memory; an array must never reach beyond its buffer. */
    if (pinned->ndim > SV_MAX_NDIM ||
        ext_size_bytes(pinned->shape, pinned->ndim, view->itemsize, &bytes) < 0 ||
        bytes != pinned->size_bytes) {
        return view_refuse(segment, view);
    }
    Py_INCREF((PyObject *)segment->descr);
    PyObject *array =
        PyArray_NewFromDescr(&PyArray_Type, segment->descr, (int)pinned->ndim,
                             (const npy_intp *)pinned->shape, NULL, (void *)(uintptr_t)pinned->data,
                             NPY_ARRAY_CARRAY_RO, NULL);
    if (array == NULL) {
        Py_DECREF(view);
        return NULL;
    }
    if (PyArray_SetBaseObject((PyArrayObject *)array, (PyObject *)view) < 0) {
        Py_DECREF(array);
        return NULL;
    }
    return array;
}

PyObject *
ext_shape_tuple(const uint64_t *shape, uint32_t ndim)
{
    PyObject *tuple = PyTuple_New((Py_ssize_t)ndim);
    for (uint32_t i = 0; tuple != NULL && i < ndim; i++) {
        PyObject *length = PyLong_FromUnsignedLongLong(shape[i]);
        if (length == NULL || PyTuple_SetItem(tuple, (Py_ssize_t)i, length) < 0) {
            Py_DECREF(tuple);
            return NULL;
        }
    }
    return tuple;
}
