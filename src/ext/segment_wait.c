/* Segment, waiting: for slots that are filled, for a slot that changes. Without the GIL, in slices. */
#include "ext.h"

#define WAIT_SLICE_NS UINT64_C(100000000) /* without a look at signals */

/* The timeout of a wait: None is for ever. */
static int
wait_timeout(PyObject *value, uint64_t *timeout_ns)
{
    *timeout_ns = UINT64_MAX;
    return value == NULL || value == Py_None || ext_timeout(value, timeout_ns);
}

PyObject *
segment_wait_filled(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    static const ext_params params = {"wait_filled", 1, 2, 2, {"count", "timeout"}};
    SegmentObject *self = (SegmentObject *)op;
    PyObject *values[2];
    uint32_t count;
    uint64_t left;
    if (ext_params_sort(&params, args, nargs, kwnames, values) < 0 ||
        !ext_uint32(values[0], &count) || !wait_timeout(values[1], &left)) {
        return NULL;
    }
    sv_segment *handle = segment_enter(self);
    if (handle == NULL) {
        return NULL;
    }
    sv_error err;
    ext_error_clear(&err);
    int code;
    do {
        uint64_t slice = left < WAIT_SLICE_NS ? left : WAIT_SLICE_NS;
        left -= left == UINT64_MAX ? 0 : slice;
        Py_BEGIN_ALLOW_THREADS code = sv_wait_filled(handle, count, slice, &err);
        Py_END_ALLOW_THREADS
    } while (code == SV_ETIMEDOUT && left != 0 && PyErr_CheckSignals() == 0);
    segment_leave(self);
    if (code == 0) {
        Py_RETURN_NONE;
    }
    return PyErr_Occurred() != NULL ? NULL : ext_raise(self->state, code, &err);
}

PyObject *
segment_wait_changed(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    static const ext_params params = {"wait_changed", 2, 3, 3, {"slot", "version", "timeout"}};
    SegmentObject *self = (SegmentObject *)op;
    PyObject *values[3];
    uint64_t version;
    uint64_t left;
    if (ext_params_sort(&params, args, nargs, kwnames, values) < 0 ||
        !ext_uint64(values[1], &version) || !wait_timeout(values[2], &left)) {
        return NULL;
    }
    sv_segment *handle = segment_enter(self);
    if (handle == NULL) {
        return NULL;
    }
    uint32_t slot = 0;
    sv_error err;
    ext_error_clear(&err);
    int code = segment_slot(self, handle, values[0], &slot) < 0 ? SV_EINDEX : SV_ETIMEDOUT;
    while (code == SV_ETIMEDOUT && PyErr_CheckSignals() == 0) {
        uint64_t slice = left < WAIT_SLICE_NS ? left : WAIT_SLICE_NS;
        left -= left == UINT64_MAX ? 0 : slice;
        Py_BEGIN_ALLOW_THREADS code = sv_wait_changed(handle, slot, version, slice, &version, &err);
        Py_END_ALLOW_THREADS if (left == 0)
        {
            break;
        }
    }
    segment_leave(self);
    if (code == 0) {
        return PyLong_FromUnsignedLongLong(version);
    }
    return PyErr_Occurred() != NULL ? NULL : ext_raise(self->state, code, &err);
}
