/*
 * View.__dlpack__: the chunk as a read-only DLPack tensor that keeps the pin.
 */
#include "dlpack.h"
#include "ext.h"

#define DLPACK_CAPSULE "dltensor_versioned"

typedef struct {
    dl_managed managed; /* first: consumers see only this */
    int64_t shape[SV_MAX_NDIM];
    int64_t strides[SV_MAX_NDIM];
} dlpack_block;

/* Consumers call this from any thread, with or without the GIL. */
static void
dlpack_delete(dl_managed *managed)
{
    PyGILState_STATE gil = PyGILState_Ensure();
    Py_DECREF((PyObject *)managed->manager_ctx);
    PyMem_Free(managed);
    PyGILState_Release(gil);
}

/* A capsule that was consumed has another name; then the consumer owns the tensor. */
static void
dlpack_capsule_free(PyObject *capsule)
{
    if (!PyCapsule_IsValid(capsule, DLPACK_CAPSULE)) {
        return;
    }
    dl_managed *managed = PyCapsule_GetPointer(capsule, DLPACK_CAPSULE);
    managed->deleter(managed);
}

static dlpack_block *
dlpack_block_new(ViewObject *view)
{
    dlpack_block *block = PyMem_Calloc(1, sizeof(*block));
    if (block == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    int64_t stride = 1;
    for (int i = (int)view->view.ndim - 1; i >= 0; i--) {
        block->shape[i] = (int64_t)view->view.shape[i];
        block->strides[i] = stride;
        stride *= block->shape[i];
    }
    dl_managed *managed = &block->managed;
    managed->version.major = DL_MAJOR;
    managed->version.minor = DL_MINOR;
    managed->manager_ctx = Py_NewRef((PyObject *)view);
    managed->deleter = dlpack_delete;
    managed->flags = DL_FLAG_READONLY;
    managed->tensor = (dl_tensor){
        .data = (void *)(uintptr_t)view->view.data,
        .device = {DL_DEVICE_CPU, 0},
        .ndim = (int32_t)view->view.ndim,
        .dtype = {view->element.dl_code, view->element.dl_bits, 1},
        .shape = block->shape,
        .strides = block->strides,
    };
    return block;
}

/* First number of a version or device tuple; -1 with an exception. */
static int
dlpack_pair(PyObject *value, const char *what, long long out[2])
{
    PyObject *pair = PySequence_Tuple(value);
    if (pair == NULL) {
        return -1;
    }
    int64_t numbers[2];
    int failed = PyTuple_Size(pair) != 2;
    if (failed) {
        PyErr_Format(PyExc_TypeError, "%s must be two integers, found %R", what, value);
    }
    for (int i = 0; i < 2 && !failed; i++) {
        failed = ext_number(PyTuple_GetItem(pair, i), what, &numbers[i]) < 0;
        out[i] = failed ? 0 : numbers[i];
    }
    Py_DECREF(pair);
    return failed ? -1 : 0;
}

/* Can the request be answered without a copy, and as read-only? */
static int
dlpack_check(const ViewObject *view, PyObject *const values[4])
{
    PyObject *stream = values[0];
    PyObject *max_version = values[1];
    PyObject *device = values[2];
    PyObject *copy = values[3];
    long long pair[2];
    if (stream != NULL && stream != Py_None) {
        PyErr_SetString(PyExc_BufferError, "a chunk lies in main memory: stream must be None");
        return -1;
    }
    if (device != NULL && device != Py_None) {
        if (dlpack_pair(device, "dl_device", pair) < 0) {
            return -1;
        }
        if (pair[0] != DL_DEVICE_CPU || pair[1] != 0) {
            PyErr_SetString(PyExc_BufferError, "a chunk lies in main memory: dl_device is (1, 0)");
            return -1;
        }
    }
    if (copy == Py_True) {
        PyErr_SetString(PyExc_BufferError, "copy=True: copy the array first, with .copy()");
        return -1;
    }
    if (max_version == NULL || max_version == Py_None) {
        pair[0] = 0;
    } else if (dlpack_pair(max_version, "max_version", pair) < 0) {
        return -1;
    }
    if (pair[0] < DL_MAJOR) {
        PyErr_SetString(PyExc_BufferError,
                        "a chunk is read-only, which DLPack before 1.0 cannot say: ask with "
                        "max_version=(1, 0), or copy the array first");
        return -1;
    }
    if (view->element.dl_bits == 0) {
        PyErr_SetString(PyExc_BufferError, "DLPack has no type for the dtype of this chunk");
        return -1;
    }
    return 0;
}

PyObject *
view_dlpack(ViewObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    static const ext_params params = {"__dlpack__",
                                      0,
                                      0,
                                      4,
                                      {"stream", "max_version", "dl_device", "copy"}};
    PyObject *values[4];
    if (ext_params_sort(&params, args, nargs, kwnames, values) < 0 ||
        dlpack_check(self, values) < 0) {
        return NULL;
    }
    dlpack_block *block = dlpack_block_new(self);
    if (block == NULL) {
        return NULL;
    }
    PyObject *capsule = PyCapsule_New(block, DLPACK_CAPSULE, dlpack_capsule_free);
    if (capsule == NULL) {
        dlpack_delete(&block->managed);
    }
    return capsule;
}
