/*
 * Arguments: sorting of vectorcall arguments, and conversions that refuse instead of truncating.
 */
#include "ext.h"

#include <math.h>
#include <string.h>

static int
params_find(const ext_params *params, PyObject *name)
{
    for (int i = 0; i < params->count; i++) {
        if (PyUnicode_CompareWithASCIIString(name, params->names[i]) == 0) {
            return i;
        }
    }
    PyErr_Format(PyExc_TypeError, "%s() got an unexpected keyword argument %R", params->function,
                 name);
    return -1;
}

int
ext_params_sort(const ext_params *params, PyObject *const *args, Py_ssize_t nargs,
                PyObject *kwnames, PyObject **out)
{
    if (nargs > params->positional) {
        PyErr_Format(PyExc_TypeError, "%s() takes at most %d positional arguments, found %zd",
                     params->function, params->positional, nargs);
        return -1;
    }
    for (int i = 0; i < params->count; i++) {
        out[i] = i < nargs ? args[i] : NULL;
    }
    Py_ssize_t named = kwnames != NULL ? PyTuple_Size(kwnames) : 0;
    for (Py_ssize_t k = 0; k < named; k++) {
        PyObject *name = PyTuple_GetItem(kwnames, k);
        int i = params_find(params, name);
        if (i < 0) {
            return -1;
        }
        if (out[i] != NULL) {
            PyErr_Format(PyExc_TypeError, "%s() got two values for argument '%s'", params->function,
                         params->names[i]);
            return -1;
        }
        out[i] = args[nargs + k];
    }
    for (int i = 0; i < params->required; i++) {
        if (out[i] == NULL) {
            PyErr_Format(PyExc_TypeError, "%s() needs argument '%s'", params->function,
                         params->names[i]);
            return -1;
        }
    }
    return 0;
}

int
ext_number(PyObject *value, const char *what, int64_t *out)
{
    int overflow = 0;
    long long found;
    if (PyLong_Check(value)) {
        found = PyLong_AsLongLongAndOverflow(value, &overflow);
    } else {
        if (!PyIndex_Check(value)) {
            PyObject *type = PyType_GetName(Py_TYPE(value));
            if (type != NULL) {
                PyErr_Format(PyExc_TypeError, "%s must be an integer, found %U", what, type);
                Py_DECREF(type);
            }
            return -1;
        }
        PyObject *number = PyNumber_Index(value);
        if (number == NULL) {
            return -1;
        }
        found = PyLong_AsLongLongAndOverflow(number, &overflow);
        Py_DECREF(number);
    }
    if (found == -1 && overflow == 0 && PyErr_Occurred()) {
        return -1;
    }
    *out = overflow > 0 ? INT64_MAX : overflow < 0 ? INT64_MIN : (int64_t)found;
    return 0;
}

int
ext_uint64(PyObject *value, void *out)
{
    PyObject *number = PyNumber_Index(value);
    if (number == NULL) {
        return 0;
    }
    unsigned long long found = PyLong_AsUnsignedLongLong(number);
    Py_DECREF(number);
    if (found == (unsigned long long)-1 && PyErr_Occurred()) {
        if (PyErr_ExceptionMatches(PyExc_OverflowError)) {
            PyErr_Clear();
            /* TypeError, as 0.1.0 gave for a number that no unsigned type holds. */
            PyErr_Format(PyExc_TypeError, "wanted a number from 0 to 2**64 - 1, found %R", value);
        }
        return 0;
    }
    *(uint64_t *)out = found;
    return 1;
}

int
ext_uint32(PyObject *value, void *out)
{
    uint64_t found;
    if (!ext_uint64(value, &found)) {
        return 0;
    }
    if (found > UINT32_MAX) {
        PyErr_Format(PyExc_ValueError, "wanted a number from 0 to 2**32 - 1, found %R", value);
        return 0;
    }
    *(uint32_t *)out = (uint32_t)found;
    return 1;
}

int
ext_timeout(PyObject *value, void *out)
{
    double seconds = PyFloat_AsDouble(value);
    if (seconds == -1.0 && PyErr_Occurred()) {
        return 0;
    }
    if (isnan(seconds) || seconds < 0.0) {
        PyErr_Format(PyExc_ValueError, "timeout must be 0 or more seconds, found %R", value);
        return 0;
    }
    double nanoseconds = seconds * 1e9;
    *(uint64_t *)out = nanoseconds >= 9e18 ? (uint64_t)INT64_MAX : (uint64_t)nanoseconds;
    return 1;
}

int
ext_text(PyObject *value, void *out)
{
    if (!PyUnicode_Check(value)) {
        PyObject *type = PyType_GetName(Py_TYPE(value));
        if (type != NULL) {
            PyErr_Format(PyExc_TypeError, "wanted a str, found %U", type);
            Py_DECREF(type);
        }
        return 0;
    }
    Py_ssize_t length;
    const char *text = PyUnicode_AsUTF8AndSize(value, &length);
    if (text == NULL) {
        if (PyErr_ExceptionMatches(PyExc_UnicodeEncodeError)) {
            PyErr_Clear();
            PyErr_Format(PyExc_ValueError, "%A holds a lone surrogate and names no file", value);
        }
        return 0;
    }
    if ((size_t)length != strlen(text)) {
        PyErr_Format(PyExc_ValueError, "%R holds a NUL character", value);
        return 0;
    }
    *(const char **)out = text;
    return 1;
}

int
ext_text_or_none(PyObject *value, void *out)
{
    if (value == Py_None) {
        *(const char **)out = NULL;
        return 1;
    }
    return ext_text(value, out);
}

int
ext_path_or_none(PyObject *value, void *out)
{
    PyObject **bytes = out;
    if (value == NULL) {
        Py_CLEAR(*bytes);
        return 1;
    }
    if (value == Py_None) {
        *bytes = NULL;
        return Py_CLEANUP_SUPPORTED;
    }
    return PyUnicode_FSConverter(value, bytes);
}

int
ext_dtype(PyObject *value, PyArray_Descr **out)
{
    if (PyArray_DescrConverter(value, out)) {
        return 0;
    }
    if (!PyUnicode_Check(value) || !PyErr_ExceptionMatches(PyExc_TypeError)) {
        return -1;
    }
    PyErr_Clear(); /* NumPy finds bfloat16 by its name only after ml_dtypes was imported, if ever */
    PyObject *module = PyImport_ImportModule("sharedvector.dtypes");
    PyObject *found = module == NULL ? NULL : PyObject_CallMethod(module, "as_dtype", "O", value);
    Py_XDECREF(module);
    if (found == NULL) {
        return -1;
    }
    int made = PyArray_DescrConverter(found, out);
    Py_DECREF(found);
    return made ? 0 : -1;
}
