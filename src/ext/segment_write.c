/*
 * Segment, writing: append, replace, reserve.
 *
 * Each is reserve, fill, publish of the core. The first try to reserve keeps the GIL, as nearly
 * always a buffer is free; only waiting gives it away, in slices, so that Ctrl-C works.
 */
#include "ext.h"

#include <string.h>
#include <time.h>

#define WRITE_SLICE_NS UINT64_C(50000000)
#define WRITE_TIMEOUT_NS UINT64_C(1000000000)

/* What append, replace and publish have in common. */
typedef struct {
    sv_array array;
    sv_chunk chunk;
    double meta[SV_MAX_META];
} write_request;

static int
write_request_init(const SegmentObject *self, write_request *request, PyObject *array,
                   PyObject *meta, PyObject *source_index, PyObject *source_epoch)
{
    int count = ext_meta(meta, request->meta);
    sv_chunk *chunk = &request->chunk;
    chunk->source_index = 0;
    chunk->source_epoch = 0;
    if (count < 0 || (source_index != NULL && !ext_uint64(source_index, &chunk->source_index)) ||
        (source_epoch != NULL && !ext_uint64(source_epoch, &chunk->source_epoch)) ||
        ext_chunk_array(self, array, &request->array) < 0) {
        return -1;
    }
    chunk->arrays = &request->array;
    chunk->array_count = 1;
    chunk->meta = request->meta;
    chunk->meta_count = (uint32_t)count;
    return 0;
}

static uint64_t
write_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

/* Say how long was waited in all; the core knows the last slice only. */
static void
write_raise_waited(SegmentObject *self, const sv_error *err, uint64_t waited_ns)
{
    sv_error told;
    ext_error_clear(&told);
    (void)PyOS_snprintf(told.message, sizeof(told.message), "%.900s (in all %.2f s waited)",
                        err->message, (double)waited_ns / 1e9);
    ext_raise(self->state, SV_EINUSE, &told);
}

/* Take a free buffer; waits without the GIL. 0, or -1 with an exception. */
static int
write_reserve(SegmentObject *self, sv_segment *handle, uint64_t timeout_ns,
              sv_reservation *reservation)
{
    sv_error err;
    ext_error_clear(&err);
    int code = sv_reserve(handle, 0, reservation, &err);
    uint64_t start = code == SV_EINUSE ? write_now_ns() : 0;
    uint64_t waited = 0;
    while (code == SV_EINUSE && waited < timeout_ns) {
        uint64_t left = timeout_ns - waited;
        uint64_t slice = left < WRITE_SLICE_NS ? left : WRITE_SLICE_NS;
        Py_BEGIN_ALLOW_THREADS code = sv_reserve(handle, slice, reservation, &err);
        Py_END_ALLOW_THREADS if (code == SV_EINUSE && PyErr_CheckSignals() < 0)
        {
            return -1;
        }
        waited = write_now_ns() - start;
    }
    if (code == SV_EINUSE) {
        write_raise_waited(self, &err, waited);
        return -1;
    }
    if (code != 0) {
        ext_raise(self->state, code, &err);
        return -1;
    }
    return 0;
}

/* Copy the chunk into the reserved buffer. 0 or a code. */
static int
write_fill(sv_reservation *reservation, const sv_chunk *chunk, sv_error *err)
{
    int code;
    if (chunk->arrays[0].size_bytes < EXT_RELEASE_BYTES) {
        return sv_fill(reservation, chunk, err);
    }
    Py_BEGIN_ALLOW_THREADS code = sv_fill(reservation, chunk, err);
    Py_END_ALLOW_THREADS return code;
}

/* Reserve, fill and publish; slot UINT32_MAX means the next empty one. */
static int
write_publish(SegmentObject *self, sv_segment *handle, const write_request *request,
              uint64_t timeout_ns, uint32_t *slot)
{
    sv_reservation reservation;
    if (write_reserve(self, handle, timeout_ns, &reservation) < 0) {
        return -1;
    }
    sv_error err;
    ext_error_clear(&err);
    int code = write_fill(&reservation, &request->chunk, &err);
    if (code == 0) {
        code = *slot == UINT32_MAX ? sv_publish_next(&reservation, slot, &err)
                                   : sv_publish(&reservation, *slot, &err);
    }
    if (code != 0) {
        sv_cancel(&reservation);
        ext_raise(self->state, code, &err);
        return -1;
    }
    return 0;
}

/* ---- append -------------------------------------------------------------------------------- */

/* A full pool stays full: no need to copy a chunk to find out. */
static int
append_check_room(SegmentObject *self, sv_segment *handle)
{
    if (sv_size(handle) < self->info.slot_count) {
        return 0;
    }
    PyErr_Format(self->state->OutOfMemoryError,
                 "all %u slots of segment '%s' are filled; replace() chunks, or make the segment "
                 "with a larger max_memory_size or slot_count",
                 self->info.slot_count, self->info.name);
    return -1;
}

static int
append_run(const char *function, PyObject *op, PyObject *const *args, Py_ssize_t nargs,
           PyObject *kwnames, uint32_t *slot)
{
    ext_params params = {function,
                         1,
                         2,
                         5,
                         {"array", "meta", "timeout", "source_index", "source_epoch"}};
    SegmentObject *self = (SegmentObject *)op;
    uint64_t timeout_ns = WRITE_TIMEOUT_NS;
    PyObject *values[5];
    if (ext_params_sort(&params, args, nargs, kwnames, values) < 0) {
        return -1;
    }
    sv_segment *handle = segment_enter(self);
    if (handle == NULL) {
        return -1;
    }
    write_request request;
    *slot = UINT32_MAX;
    int failed =
        (values[2] != NULL && !ext_timeout(values[2], &timeout_ns)) ||
        write_request_init(self, &request, values[0], values[1], values[3], values[4]) < 0 ||
        append_check_room(self, handle) < 0 ||
        write_publish(self, handle, &request, timeout_ns, slot) < 0;
    segment_leave(self);
    return failed ? -1 : 0;
}

static PyObject *
segment_append(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    uint32_t slot;
    if (append_run("append", op, args, nargs, kwnames, &slot) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
segment_append_slot(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    uint32_t slot;
    if (append_run("append_slot", op, args, nargs, kwnames, &slot) < 0) {
        return NULL;
    }
    return PyLong_FromUnsignedLong(slot);
}

/* ---- replace ------------------------------------------------------------------------------- */

/* Is a view of the slot's current chunk alive somewhere? -1 with an exception. */
static int
replace_is_pinned(SegmentObject *self, sv_segment *handle, uint32_t slot)
{
    sv_slot_stats stats;
    int code = sv_slot_stats_get(handle, slot, &stats);
    if (code != 0) {
        segment_raise_slot(self, handle, code, slot);
        return -1;
    }
    return stats.pins > 0;
}

/* sv_replace() gives back what the dead hold, refuses with the holders' names and counts that. When the
 * views are gone by then but no buffer is free, it is a matter of waiting for one. */
static int
replace_pinned(SegmentObject *self, sv_segment *handle, const write_request *request,
               uint64_t timeout_ns, uint32_t slot)
{
    sv_error err;
    ext_error_clear(&err);
    int code;
    Py_BEGIN_ALLOW_THREADS code = sv_replace(handle, slot, &request->chunk, 0, &err);
    Py_END_ALLOW_THREADS int pinned = code == SV_EINUSE ? replace_is_pinned(self, handle, slot) : 1;
    if (pinned == 0) {
        return write_publish(self, handle, request, timeout_ns, &slot);
    }
    if (code != 0 && pinned > 0) {
        ext_raise(self->state, code, &err);
    }
    return code != 0 ? -1 : 0;
}

static int
replace_run(SegmentObject *self, sv_segment *handle, PyObject *const *values)
{
    uint32_t slot;
    write_request request;
    uint64_t timeout_ns = WRITE_TIMEOUT_NS;
    if (segment_slot(self, handle, values[0], &slot) < 0 ||
        (values[4] != NULL && !ext_timeout(values[4], &timeout_ns)) ||
        write_request_init(self, &request, values[1], values[2], values[5], values[6]) < 0) {
        return -1;
    }
    int refuse = values[3] == NULL ? 1 : PyObject_IsTrue(values[3]);
    int pinned = refuse > 0 ? replace_is_pinned(self, handle, slot) : 0;
    if (refuse < 0 || pinned < 0) {
        return -1;
    }
    return pinned ? replace_pinned(self, handle, &request, timeout_ns, slot)
                  : write_publish(self, handle, &request, timeout_ns, &slot);
}

static PyObject *
segment_replace(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    static const ext_params params = {"replace",
                                      2,
                                      3,
                                      7,
                                      {"index", "array", "meta", "refuse", "timeout",
                                       "source_index", "source_epoch"}};
    SegmentObject *self = (SegmentObject *)op;
    PyObject *values[7];
    if (ext_params_sort(&params, args, nargs, kwnames, values) < 0) {
        return NULL;
    }
    sv_segment *handle = segment_enter(self);
    if (handle == NULL) {
        return NULL;
    }
    int failed = replace_run(self, handle, values);
    segment_leave(self);
    if (failed) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* ---- reserve ------------------------------------------------------------------------------- */

/* A shape argument: one integer, or a sequence of them. Returns the dimensions, or -1. */
static int
reserve_shape(PyObject *value, npy_intp shape[SV_MAX_NDIM])
{
    int single = PyIndex_Check(value);
    Py_ssize_t ndim = single ? 1 : PySequence_Size(value);
    if (ndim < 0) {
        return -1;
    }
    if (ndim > SV_MAX_NDIM) {
        PyErr_Format(PyExc_ValueError, "an array may have %d dimensions, found %zd", SV_MAX_NDIM,
                     ndim);
        return -1;
    }
    for (Py_ssize_t i = 0; i < ndim; i++) {
        PyObject *item = single ? Py_NewRef(value) : PySequence_GetItem(value, i);
        int64_t length = 0;
        int failed = item == NULL || ext_number(item, "a length in shape", &length) < 0;
        Py_XDECREF(item);
        if (failed) {
            return -1;
        }
        if (length < 0) {
            PyErr_Format(PyExc_ValueError, "lengths in shape must be 0 or more, found %R", value);
            return -1;
        }
        shape[i] = (npy_intp)length;
    }
    return (int)ndim;
}

static int
reserve_check_dtype(const SegmentObject *self, PyObject *value)
{
    if (segment_require_dtype(self) < 0) {
        return -1;
    }
    if (value == NULL || value == Py_None) {
        return 0;
    }
    PyArray_Descr *descr = NULL;
    if (ext_dtype(value, &descr) < 0) {
        return -1;
    }
    int same = PyArray_EquivTypes(descr, self->descr);
    if (!same) {
        PyErr_Format(PyExc_ValueError,
                     "dtype mismatch: the segment holds %S, reserve() asks for %S",
                     (PyObject *)self->descr, (PyObject *)descr);
    }
    Py_DECREF(descr);
    return same ? 0 : -1;
}

static int
reserve_check_size(const SegmentObject *self, PyObject *value, int ndim, const npy_intp *shape)
{
    uint64_t lengths[SV_MAX_NDIM];
    for (int i = 0; i < ndim; i++) {
        lengths[i] = (uint64_t)shape[i];
    }
    uint64_t bytes = UINT64_MAX;
    if (ext_size_bytes(lengths, (uint32_t)ndim, self->itemsize, &bytes) == 0 &&
        bytes <= self->info.chunk_size) {
        return 0;
    }
    PyErr_Format(self->state->MemoryError,
                 "shape %R of %S does not fit: a slot of '%s' holds %llu bytes (chunk_size)", value,
                 (PyObject *)self->descr, self->info.name,
                 (unsigned long long)self->info.chunk_size);
    return -1;
}

static PyObject *
segment_reserve(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    static const ext_params params = {"reserve", 1, 2, 3, {"shape", "dtype", "timeout"}};
    SegmentObject *self = (SegmentObject *)op;
    PyObject *values[3];
    npy_intp shape[SV_MAX_NDIM];
    uint64_t timeout_ns = WRITE_TIMEOUT_NS;
    if (ext_params_sort(&params, args, nargs, kwnames, values) < 0 ||
        (values[2] != NULL && !ext_timeout(values[2], &timeout_ns))) {
        return NULL;
    }
    sv_segment *handle = segment_enter(self);
    if (handle == NULL) {
        return NULL;
    }
    PyObject *made = NULL;
    int ndim = reserve_check_dtype(self, values[1]) < 0 ? -1 : reserve_shape(values[0], shape);
    sv_reservation reservation;
    if (ndim >= 0 && reserve_check_size(self, values[0], ndim, shape) == 0 &&
        write_reserve(self, handle, timeout_ns, &reservation) == 0) {
        made = reservation_new(self, &reservation, ndim, shape);
    }
    segment_leave(self);
    return made;
}

static PyObject *
segment_count_blocked(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    static const ext_params params = {"count_blocked", 0, 1, 1, {"count"}};
    SegmentObject *self = (SegmentObject *)op;
    PyObject *value;
    uint64_t count = 1;
    if (ext_params_sort(&params, args, nargs, kwnames, &value) < 0 ||
        (value != NULL && !ext_uint64(value, &count))) {
        return NULL;
    }
    sv_segment *handle = segment_enter(self);
    if (handle == NULL) {
        return NULL;
    }
    sv_count_blocked(handle, count);
    segment_leave(self);
    Py_RETURN_NONE;
}

/* ---- table --------------------------------------------------------------------------------- */

#define FAST (METH_FASTCALL | METH_KEYWORDS)

PyMethodDef segment_write_methods[] = {
    {"append", EXT_FAST(segment_append), FAST,
     "append($self, /, array, meta=None, *, timeout=1.0, source_index=0, source_epoch=0)\n--\n\n"
     "Copy an array into the next empty slot.\n\n"
     "The array must be C-contiguous and of the segment's dtype. TypeError for what is no ndarray\n"
     "or is masked, ValueError for another dtype or bad meta, ArraySizeError for another layout,\n"
     "MemoryError when larger than chunk_size, OutOfMemoryError when every slot is filled,\n"
     "InUseError when no buffer became free within `timeout` seconds. Nothing changes on failure."},
    {"append_slot", EXT_FAST(segment_append_slot), FAST,
     "append_slot($self, /, array, meta=None, *, timeout=1.0, source_index=0,"
     " source_epoch=0)\n--\n\n"
     "As append(), and return the number of the slot that was filled."},
    {"replace", EXT_FAST(segment_replace), FAST,
     "replace($self, /, index, array, meta=None, *, refuse=True, timeout=1.0, source_index=0,"
     " source_epoch=0)\n--\n\n"
     "Copy an array into a filled slot; without meta the slot has none afterwards.\n\n"
     "InUseError while a view of the slot's chunk is alive. With refuse=False such views keep "
     "their\n"
     "old chunk and the slot moves on; InUseError then means that no buffer became free within\n"
     "`timeout` seconds. Other errors as append(). Nothing changes on failure."},
    {"reserve", EXT_FAST(segment_reserve), FAST,
     "reserve($self, /, shape, dtype=None, *, timeout=1.0)\n--\n\n"
     "Take a free buffer to fill it in its final place; returns a Reservation.\n\n"
     "Waits up to `timeout` seconds for one, then InUseError. MemoryError when the shape needs "
     "more\n"
     "than chunk_size bytes, ValueError for a dtype other than the segment's."},
    {"count_blocked", EXT_FAST(segment_count_blocked), FAST,
     "count_blocked($self, /, count=1)\n--\n\n"
     "Add to the pool's count of replacements that found no free buffer."},
    {NULL, NULL, 0, NULL},
};
