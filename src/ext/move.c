/*
 * move(): one strided array into another, converted on the way.
 */
#include "ext.h"

uint32_t
ext_number_type(PyArray_Descr *descr)
{
    static const uint32_t of_size[3][9] = {
        {[1] = SV_U8, [2] = SV_U16, [4] = SV_U32, [8] = SV_U64},
        {[1] = SV_I8, [2] = SV_I16, [4] = SV_I32, [8] = SV_I64},
        {[2] = SV_F16, [4] = SV_F32, [8] = SV_F64},
    };
    npy_intp size = PyDataType_ELSIZE(descr);
    int type = descr->type_num;
    if (size > 8 || !PyDataType_ISNOTSWAPPED(descr)) {
        return SV_OPAQUE;
    }
    return PyTypeNum_ISUNSIGNED(type) ? of_size[0][size]
           : PyTypeNum_ISSIGNED(type) ? of_size[1][size]
           : PyTypeNum_ISFLOAT(type)  ? of_size[2][size]
                                      : SV_OPAQUE;
}

static void
move_describe(PyArrayObject *array, uint32_t type, sv_strided *out)
{
    out->data = PyArray_DATA(array);
    out->type = type;
    out->itemsize = (uint32_t)PyArray_ITEMSIZE(array);
    out->ndim = (uint32_t)PyArray_NDIM(array);
    for (uint32_t i = 0; i < out->ndim && i < SV_MAX_NDIM; i++) {
        out->shape[i] = (uint64_t)PyArray_DIM(array, (int)i);
        out->strides[i] = (int64_t)PyArray_STRIDE(array, (int)i);
    }
}

/* The sv_types of both; -1 with TypeError when there is no way from one to the other. */
static int
move_types(PyArrayObject *destination, PyArrayObject *source, uint32_t *to, uint32_t *from)
{
    PyArray_Descr *into = PyArray_DESCR(destination);
    PyArray_Descr *of = PyArray_DESCR(source);
    *to = ext_number_type(into);
    *from = ext_number_type(of);
    if (PyDataType_REFCHK(into) || PyDataType_REFCHK(of)) {
        PyErr_SetString(PyExc_TypeError, "arrays of objects cannot be moved");
        return -1;
    }
    if (*to != SV_OPAQUE && *from != SV_OPAQUE) {
        return 0;
    }
    if (!PyArray_EquivTypes(into, of)) {
        PyErr_Format(PyExc_TypeError,
                     "no conversion from %S to %S: only native integers and floats are converted",
                     (PyObject *)of, (PyObject *)into);
        return -1;
    }
    *to = *from = SV_OPAQUE;
    return 0;
}

static int
move_check_shapes(PyArrayObject *destination, PyArrayObject *source)
{
    if (PyArray_SAMESHAPE(destination, source)) {
        return 0;
    }
    PyObject *wanted = PyObject_GetAttrString((PyObject *)destination, "shape");
    PyObject *found = PyObject_GetAttrString((PyObject *)source, "shape");
    if (wanted != NULL && found != NULL) {
        PyErr_Format(PyExc_ValueError, "destination has shape %R, source %R", wanted, found);
    }
    Py_XDECREF(wanted);
    Py_XDECREF(found);
    return -1;
}

/* First byte of an array and the one after its last; the array has elements. 0: there are no such
 * addresses, as any strides can be made up; sv_move() says so. */
static int
move_bounds(const sv_strided *array, int64_t *begin, int64_t *end)
{
    *begin = (int64_t)(intptr_t)array->data;
    int fits = !__builtin_add_overflow(*begin, (int64_t)array->itemsize, end);
    for (uint32_t i = 0; fits && i < array->ndim; i++) {
        int64_t reach = 0;
        fits = !__builtin_mul_overflow((int64_t)array->shape[i] - 1, array->strides[i], &reach);
        int64_t *side = reach < 0 ? begin : end;
        fits = fits && !__builtin_add_overflow(*side, reach, side);
    }
    return fits;
}

/* Arrays whose bounds overlap may still have no element in common, such as two halves of rows. */
static int
move_check_overlap(PyArrayObject *destination, PyArrayObject *source, const sv_strided *to,
                   const sv_strided *from)
{
    int64_t first[2];
    int64_t last[2];
    if (PyArray_SIZE(destination) == 0) {
        return 0;
    }
    if (!move_bounds(to, &first[0], &last[0]) || !move_bounds(from, &first[1], &last[1]) ||
        last[0] <= first[1] || last[1] <= first[0]) {
        return 0;
    }
    PyObject *numpy = PyImport_ImportModule("numpy");
    PyObject *answer =
        numpy == NULL ? NULL
                      : PyObject_CallMethod(numpy, "shares_memory", "OOi", (PyObject *)destination,
                                            (PyObject *)source, 100000);
    Py_XDECREF(numpy);
    int shared = answer == NULL ? -1 : PyObject_IsTrue(answer);
    Py_XDECREF(answer);
    if (shared > 0) {
        PyErr_SetString(PyExc_ValueError, "destination and source overlap; move a copy of source");
    }
    return shared == 0 ? 0 : -1;
}

PyObject *
module_move(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"destination", "source", "threads", NULL};
    PyArrayObject *destination;
    PyArrayObject *source;
    uint32_t threads = 1;
    sv_strided to;
    sv_strided from;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!|O&:move", names, &PyArray_Type,
                                     &destination, &PyArray_Type, &source, ext_uint32, &threads) ||
        move_types(destination, source, &to.type, &from.type) < 0 ||
        PyArray_FailUnlessWriteable(destination, "destination") < 0 ||
        move_check_shapes(destination, source) < 0) {
        return NULL;
    }
    if (PyArray_ITEMSIZE(destination) == 0) {
        Py_RETURN_NONE;
    }
    move_describe(destination, to.type, &to);
    move_describe(source, from.type, &from);
    sv_error err;
    ext_error_clear(&err);
    int code;
    if (to.ndim <= SV_MAX_NDIM && move_check_overlap(destination, source, &to, &from) < 0) {
        return NULL;
    }
    if (PyArray_NBYTES(destination) < EXT_RELEASE_BYTES) {
        code = sv_move(&to, &from, NULL, 1, &err);
    } else {
        Py_BEGIN_ALLOW_THREADS code = sv_move(&to, &from, NULL, threads, &err);
        Py_END_ALLOW_THREADS
    }
    if (code != 0) {
        return ext_raise(PyModule_GetState(module), code, &err);
    }
    Py_RETURN_NONE;
}
