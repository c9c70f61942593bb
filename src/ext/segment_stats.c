/*
 * Segment, counting and looking around: sizes, counters of slots and pool, attached processes.
 */
#include "ext.h"

#include <string.h>

/* ---- slots --------------------------------------------------------------------------------- */

static PyObject *
segment_size(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    Py_ssize_t size = PyObject_Size(op);
    return size < 0 ? NULL : PyLong_FromSsize_t(size);
}

/* Counters of a slot. Pins that the dead left are given back first, so that `pins` counts views that
 * are alive. */
static int
stats_read(sv_segment *handle, uint32_t slot, int of_the_living, sv_slot_stats *out)
{
    int code = sv_slot_stats_get(handle, slot, out);
    uint32_t recovered = 0;
    if (code == 0 && of_the_living && out->pins > 0 && sv_recover(handle, &recovered, NULL) == 0 &&
        recovered > 0) {
        code = sv_slot_stats_get(handle, slot, out);
    }
    return code;
}

/* The counters of the slot that the only argument `index` names. */
static int
stats_of_slot(const char *function, int of_the_living, PyObject *op, PyObject *const *args,
              Py_ssize_t nargs, PyObject *kwnames, sv_slot_stats *out)
{
    ext_params params = {function, 1, 1, 1, {"index"}};
    SegmentObject *self = (SegmentObject *)op;
    PyObject *index;
    if (ext_params_sort(&params, args, nargs, kwnames, &index) < 0) {
        return -1;
    }
    sv_segment *handle = segment_enter(self);
    if (handle == NULL) {
        return -1;
    }
    uint32_t slot;
    int failed = segment_slot(self, handle, index, &slot) < 0;
    if (!failed) {
        int code = stats_read(handle, slot, of_the_living, out);
        failed = code != 0;
        if (failed) {
            segment_raise_slot(self, handle, code, slot);
        }
    }
    segment_leave(self);
    return failed ? -1 : 0;
}

#define SLOT_COUNTER(function, field, of_the_living)                                               \
    static PyObject *segment_##function(PyObject *op, PyObject *const *args, Py_ssize_t nargs,     \
                                        PyObject *kwnames)                                         \
    {                                                                                              \
        sv_slot_stats stats = {0};                                                                 \
        int failed =                                                                               \
            stats_of_slot(#function, of_the_living, op, args, nargs, kwnames, &stats) < 0;         \
        return failed ? NULL : PyLong_FromUnsignedLongLong(stats.field);                           \
    }

SLOT_COUNTER(get_chunk_ref_count, pins, 1)
SLOT_COUNTER(get_chunk_read_count, reads, 0)
SLOT_COUNTER(get_chunk_write_count, writes, 0)
SLOT_COUNTER(get_chunk_last_reads, last_reads, 0)

typedef enum { STATS_READS, STATS_WRITES, STATS_LAST_READS } stats_column;

/* One counter of all filled slots as a uint64 array. */
static PyObject *
stats_all(PyObject *op, stats_column column)
{
    SegmentObject *self = (SegmentObject *)op;
    sv_segment *handle = segment_enter(self);
    if (handle == NULL) {
        return NULL;
    }
    npy_intp length = (npy_intp)sv_size(handle);
    PyObject *made = PyArray_ZEROS(1, &length, NPY_UINT64, 0);
    if (made != NULL) {
        uint64_t *values = PyArray_DATA((PyArrayObject *)made);
        uint32_t count = (uint32_t)length;
        Py_BEGIN_ALLOW_THREADS(void)
            sv_slot_stats_all(handle, count, column == STATS_READS ? values : NULL,
                              column == STATS_WRITES ? values : NULL,
                              column == STATS_LAST_READS ? values : NULL);
        Py_END_ALLOW_THREADS
    }
    segment_leave(self);
    return made;
}

static PyObject *
segment_read_counts(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    return stats_all(op, STATS_READS);
}

static PyObject *
segment_write_counts(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    return stats_all(op, STATS_WRITES);
}

static PyObject *
segment_last_reads(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    return stats_all(op, STATS_LAST_READS);
}

/* ---- pool ---------------------------------------------------------------------------------- */

static PyObject *
segment_read_samples(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    SegmentObject *self = (SegmentObject *)op;
    sv_segment *handle = segment_enter(self);
    if (handle == NULL) {
        return NULL;
    }
    PyObject *made = NULL;
    uint32_t *values = PyMem_Malloc(((size_t)self->info.stats_capacity + 1) * sizeof(*values));
    if (values == NULL) {
        PyErr_NoMemory();
    } else {
        /* How many there are is known only after the copy: writers go on. */
        npy_intp count = (npy_intp)sv_stats_samples(handle, values, self->info.stats_capacity);
        made = PyArray_SimpleNew(1, &count, NPY_UINT32);
        if (made != NULL) {
            memcpy(PyArray_DATA((PyArrayObject *)made), values, (size_t)count * sizeof(*values));
        }
    }
    PyMem_Free(values);
    segment_leave(self);
    return made;
}

static PyObject *
segment_reset_stats(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    SegmentObject *self = (SegmentObject *)op;
    sv_segment *handle = segment_enter(self);
    if (handle == NULL) {
        return NULL;
    }
    sv_error err;
    ext_error_clear(&err);
    int code = sv_stats_reset(handle, &err);
    segment_leave(self);
    if (code != 0) {
        return ext_raise(self->state, code, &err);
    }
    Py_RETURN_NONE;
}

static PyObject *
segment_stats(PyObject *op, void *Py_UNUSED(closure))
{
    SegmentObject *self = (SegmentObject *)op;
    sv_segment *handle = segment_enter(self);
    if (handle == NULL) {
        return NULL;
    }
    sv_stats stats = {0};
    sv_stats_get(handle, &stats);
    segment_leave(self);
    return Py_BuildValue("{sKsKsKsKsKsK}", "replace_events",
                         (unsigned long long)stats.replace_events, "reads_at_replace_total",
                         (unsigned long long)stats.reads_at_replace_total, "reads_at_replace_max",
                         (unsigned long long)stats.reads_at_replace_max, "blocked_replaces",
                         (unsigned long long)stats.blocked_replaces, "sample_count",
                         (unsigned long long)stats.sample_count, "sample_capacity",
                         (unsigned long long)stats.sample_capacity);
}

static PyObject *
segment_counter_add(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    static const ext_params params = {"counter_add", 1, 2, 2, {"counter", "amount"}};
    SegmentObject *self = (SegmentObject *)op;
    PyObject *values[2];
    uint32_t counter;
    uint64_t amount = 1;
    if (ext_params_sort(&params, args, nargs, kwnames, values) < 0 ||
        !ext_uint32(values[0], &counter) ||
        (values[1] != NULL && !ext_uint64(values[1], &amount))) {
        return NULL;
    }
    if (counter >= SV_COUNTER_COUNT) {
        PyErr_Format(PyExc_ValueError, "there are %d counters, found number %u", SV_COUNTER_COUNT,
                     counter);
        return NULL;
    }
    sv_segment *handle = segment_enter(self);
    if (handle == NULL) {
        return NULL;
    }
    uint64_t before = sv_counter_add(handle, (sv_counter)counter, amount);
    segment_leave(self);
    return PyLong_FromUnsignedLongLong(before);
}

static PyObject *
segment_refresh_next(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    SegmentObject *self = (SegmentObject *)op;
    sv_segment *handle = segment_enter(self);
    if (handle == NULL) {
        return NULL;
    }
    uint32_t slot = 0;
    int unread = 0;
    int code = sv_refresh_next(handle, &slot, &unread);
    PyObject *made = NULL;
    if (code == SV_EINDEX) {
        PyErr_Format(PyExc_IndexError, "segment '%s' has no filled slot to refresh",
                     self->info.name);
    } else if (code != 0) {
        segment_raise_slot(self, handle, code, slot);
    } else {
        made = Py_BuildValue("(IN)", slot, PyBool_FromLong(unread));
    }
    segment_leave(self);
    return made;
}

/* ---- processes ----------------------------------------------------------------------------- */

static PyObject *
rows_entry(const sv_row_info *row)
{
    return Py_BuildValue("{sIsNsNsisKsKsKsKsKsN}", "row", row->row, "live",
                         PyBool_FromLong(row->live != 0), "owner", PyBool_FromLong(row->owner != 0),
                         "pid", (int)row->pid, "start_time", (unsigned long long)row->start_time,
                         "attached_ns", (unsigned long long)row->attached_ns, "pins",
                         (unsigned long long)row->pins, "claims", (unsigned long long)row->claims,
                         "oldest_ns", (unsigned long long)row->oldest_ns, "command",
                         PyUnicode_DecodeFSDefault(row->command));
}

static PyObject *
rows_list(const sv_row_info *rows, uint32_t count)
{
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list != NULL && i < count; i++) {
        PyObject *entry = rows_entry(&rows[i]);
        if (entry == NULL || PyList_Append(list, entry) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(entry);
    }
    return list;
}

static PyObject *
segment_rows(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    SegmentObject *self = (SegmentObject *)op;
    sv_segment *handle = segment_enter(self);
    if (handle == NULL) {
        return NULL;
    }
    PyObject *list = NULL;
    /* Never more than the table has, and rows that are taken meanwhile may be missed. */
    sv_row_info *rows = PyMem_Malloc((size_t)self->info.max_rows * sizeof(*rows));
    if (rows == NULL) {
        PyErr_NoMemory();
    } else {
        uint32_t found;
        Py_BEGIN_ALLOW_THREADS found = sv_rows(handle, rows, self->info.max_rows);
        Py_END_ALLOW_THREADS list =
            rows_list(rows, found < self->info.max_rows ? found : self->info.max_rows);
    }
    PyMem_Free(rows);
    segment_leave(self);
    return list;
}

static PyObject *
segment_recover(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    SegmentObject *self = (SegmentObject *)op;
    sv_segment *handle = segment_enter(self);
    if (handle == NULL) {
        return NULL;
    }
    sv_error err;
    ext_error_clear(&err);
    uint32_t recovered = 0;
    int code;
    Py_BEGIN_ALLOW_THREADS code = sv_recover(handle, &recovered, &err);
    Py_END_ALLOW_THREADS segment_leave(self);
    return code != 0 ? ext_raise(self->state, code, &err) : PyLong_FromUnsignedLong(recovered);
}

static PyObject *
segment_owner_live(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    SegmentObject *self = (SegmentObject *)op;
    sv_segment *handle = segment_enter(self);
    if (handle == NULL) {
        return NULL;
    }
    int live = sv_owner_live(handle);
    segment_leave(self);
    return PyBool_FromLong(live);
}

static PyObject *
segment_retired_get(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    SegmentObject *self = (SegmentObject *)op;
    sv_segment *handle = segment_enter(self);
    if (handle == NULL) {
        return NULL;
    }
    int reason = sv_retired_get(handle);
    segment_leave(self);
    return PyLong_FromLong(reason);
}

static PyObject *
segment_retire(PyObject *op, PyObject *value)
{
    SegmentObject *self = (SegmentObject *)op;
    uint32_t reason;
    if (!ext_uint32(value, &reason)) {
        return NULL;
    }
    if (reason == SV_RETIRED_NO || reason > SV_RETIRED_PRODUCER) {
        PyErr_Format(PyExc_ValueError, "reason must be one of RETIRED_*, from %d to %d, found %u",
                     SV_RETIRED_CLOSED, SV_RETIRED_PRODUCER, reason);
        return NULL;
    }
    sv_segment *handle = segment_enter(self);
    if (handle == NULL) {
        return NULL;
    }
    sv_retire(handle, (sv_retired)reason);
    segment_leave(self);
    Py_RETURN_NONE;
}

static PyObject *
segment_ref_count(PyObject *op, void *Py_UNUSED(closure))
{
    return segment_count(op, sv_handle_count);
}

static PyObject *
segment_check(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    return segment_call(op, sv_check);
}

/* ---- tables -------------------------------------------------------------------------------- */

#define FAST (METH_FASTCALL | METH_KEYWORDS)

PyMethodDef segment_stats_methods[] = {
    {"size", segment_size, METH_NOARGS, "size($self, /)\n--\n\nReturn the number of filled slots."},
    {"get_chunk_ref_count", EXT_FAST(segment_get_chunk_ref_count), FAST,
     "get_chunk_ref_count($self, /, index)\n--\n\n"
     "Return how many views of a slot's current chunk are alive in all processes."},
    {"get_chunk_read_count", EXT_FAST(segment_get_chunk_read_count), FAST,
     "get_chunk_read_count($self, /, index)\n--\n\nReturn the reads of a slot since its last "
     "write."},
    {"get_chunk_write_count", EXT_FAST(segment_get_chunk_write_count), FAST,
     "get_chunk_write_count($self, /, index)\n--\n\n"
     "Return the writes to a slot, the append included."},
    {"get_chunk_last_reads", EXT_FAST(segment_get_chunk_last_reads), FAST,
     "get_chunk_last_reads($self, /, index)\n--\n\n"
     "Return how often the previous chunk of a slot had been read when it was replaced."},
    {"read_counts", segment_read_counts, METH_NOARGS,
     "read_counts($self, /)\n--\n\nReads since the last write, uint64, one per filled slot."},
    {"write_counts", segment_write_counts, METH_NOARGS,
     "write_counts($self, /)\n--\n\nWrites, uint64, one per filled slot."},
    {"last_reads", segment_last_reads, METH_NOARGS,
     "last_reads($self, /)\n--\n\n"
     "Reads of the previous chunk when it was replaced, uint64, one per filled slot."},
    {"read_samples", segment_read_samples, METH_NOARGS,
     "read_samples($self, /)\n--\n\n"
     "The newest reads-at-replacement samples, uint32, oldest first, at most stats_capacity."},
    {"reset_stats", segment_reset_stats, METH_NOARGS,
     "reset_stats($self, /)\n--\n\n"
     "Zero the counters of the pool and forget the samples; the slots' counters stay."},
    {"counter_add", EXT_FAST(segment_counter_add), FAST,
     "counter_add($self, /, counter, amount=1)\n--\n\n"
     "Add to a counter that all processes share (COUNTER_*); returns its value before."},
    {"wait_filled", EXT_FAST(segment_wait_filled), METH_FASTCALL | METH_KEYWORDS,
     "wait_filled($self, /, count, timeout=None)\n--\n\n"
     "Sleep until at least `count` slots are filled, at most `timeout` seconds (None: for "
     "ever).\n\n"
     "TimeoutError when they are not by then, PoolStalledError when the pool is no longer\n"
     "refreshed, ValueError when there are fewer slots or the handle is closed meanwhile."},
    {"wait_changed", EXT_FAST(segment_wait_changed), METH_FASTCALL | METH_KEYWORDS,
     "wait_changed($self, /, slot, version, timeout=None)\n--\n\n"
     "Sleep until a slot's chunk has another version than `version`, and return that version.\n\n"
     "The version is the slot's number of writes (write_counts()), or that of a view's chunk.\n"
     "`timeout` is in seconds; None waits for ever. IndexError for a slot that is not filled;\n"
     "otherwise as wait_filled()."},
    {"refresh_next", segment_refresh_next, METH_NOARGS,
     "refresh_next($self, /)\n--\n\n"
     "Return (slot, unread): the slot to refresh next. unread=True: none was read since its last\n"
     "write, so a producer does well to slow down. IndexError while no slot is filled."},
    {"rows", segment_rows, METH_NOARGS,
     "rows($self, /)\n--\n\n"
     "Describe the attached processes, dead ones included: list of dicts with row, live, owner,\n"
     "pid, start_time (clock ticks after boot), attached_ns (since 1970), pins, claims, command."},
    {"recover", segment_recover, METH_NOARGS,
     "recover($self, /)\n--\n\n"
     "Give back what dead processes held; returns how many rows that were. OSError on failure."},
    {"owner_live", segment_owner_live, METH_NOARGS,
     "owner_live($self, /)\n--\n\nDoes a living process hold the owner's lock of this segment?"},
    {"retired_get", segment_retired_get, METH_NOARGS,
     "retired_get($self, /)\n--\n\nWhy the pool is no longer refreshed: one of RETIRED_*."},
    {"retire", segment_retire, METH_O,
     "retire($self, reason, /)\n--\n\n"
     "Tell everybody attached that the pool is no longer refreshed; the first reason stays."},
    {"check", segment_check, METH_NOARGS,
     "check($self, /)\n--\n\nCheck the segment's invariants; FormatError names a broken one."},
    {NULL, NULL, 0, NULL},
};

PyGetSetDef segment_stats_getset[] = {
    {"stats", segment_stats, NULL,
     "Counters of the pool: dict of replace_events, reads_at_replace_total, reads_at_replace_max,\n"
     "blocked_replaces, sample_count, sample_capacity.",
     NULL},
    {"ref_count", segment_ref_count, NULL, "Open handles of all living processes.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
