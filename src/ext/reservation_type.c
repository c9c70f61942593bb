/*
 * Reservation: a free buffer that is being filled, and the array over it.
 *
 *     Reservation -> array -> Buffer -> Segment
 *
 * The Buffer object is the array's base and owns the core's reservation. So memory that somebody
 * can still write to is neither unmapped nor given to another writer, however the user drops things:
 * a Reservation that is forgotten is cancelled when the last array over it is gone. No reference
 * leads back up, as NumPy arrays take no part in garbage collection.
 */
#include "ext.h"

#include <string.h>
#include <unistd.h>

typedef struct {
    PyObject_HEAD SegmentObject *segment; /* counted in segment->users */
    sv_reservation reservation;
    pid_t pid;
    int open;
} BufferObject;

typedef struct {
    PyObject_HEAD BufferObject *buffer;
    PyObject *array;
    ext_state *state;
} ReservationObject;

/* ---- buffer -------------------------------------------------------------------------------- */

/* The core's reservation has ended; the memory stays mapped as long as this object. */
static void
buffer_ended(BufferObject *self)
{
    self->open = 0;
    EXT_BEGIN_LOCKED((PyObject *)self->segment)
    if (self->segment->reserved_pid == self->pid) {
        self->segment->reserved--;
    }
    EXT_END_LOCKED()
}

static void
buffer_dealloc(PyObject *op)
{
    BufferObject *self = (BufferObject *)op;
    if (self->open) {
        sv_cancel(&self->reservation);
        buffer_ended(self);
    }
    segment_let_go(self->segment);
    Py_DECREF((PyObject *)self->segment);
    ext_free(op);
}

static BufferObject *
buffer_new(SegmentObject *segment, const sv_reservation *reservation)
{
    BufferObject *self = PyObject_New(BufferObject, segment->state->buffer_type);
    if (self == NULL) {
        return NULL;
    }
    self->segment = (SegmentObject *)Py_NewRef((PyObject *)segment);
    self->reservation = *reservation;
    self->pid = getpid();
    self->open = 1;
    EXT_BEGIN_LOCKED((PyObject *)segment)
    segment->users++;
    if (segment->reserved_pid != self->pid) {
        segment->reserved_pid = self->pid;
        segment->reserved = 0;
    }
    segment->reserved++;
    EXT_END_LOCKED()
    return self;
}

static PyType_Slot buffer_slots[] = {
    {Py_tp_doc, (void *)"Memory of a reservation: base of the arrays over it."},
    {Py_tp_dealloc, buffer_dealloc},
    {0, NULL},
};

static PyType_Spec buffer_spec = {
    .name = "sharedvector._core._Buffer",
    .basicsize = sizeof(BufferObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = buffer_slots,
};

/* ---- reservation --------------------------------------------------------------------------- */

/* An array over the buffer, which becomes its base. Steals `buffer`, also on failure. */
static PyObject *
reservation_array_new(SegmentObject *segment, BufferObject *buffer, int ndim, const npy_intp *shape)
{
    Py_INCREF((PyObject *)segment->descr);
    PyObject *array = PyArray_NewFromDescr(&PyArray_Type, segment->descr, ndim, shape, NULL,
                                           buffer->reservation.data, NPY_ARRAY_CARRAY, NULL);
    if (array == NULL) {
        Py_DECREF(buffer);
        return NULL;
    }
    if (PyArray_SetBaseObject((PyArrayObject *)array, (PyObject *)buffer) < 0) {
        Py_DECREF(array);
        return NULL;
    }
    return array;
}

PyObject *
reservation_new(SegmentObject *segment, const sv_reservation *reservation, int ndim,
                const npy_intp *shape)
{
    BufferObject *buffer = buffer_new(segment, reservation);
    if (buffer == NULL) {
        sv_reservation unused = *reservation;
        sv_cancel(&unused);
        return NULL;
    }
    PyObject *array = reservation_array_new(segment, buffer, ndim, shape);
    if (array == NULL) {
        return NULL;
    }
    size_t bytes = (size_t)PyArray_NBYTES((PyArrayObject *)array);
    if (bytes >= EXT_RELEASE_BYTES) {
        Py_BEGIN_ALLOW_THREADS sv_prefault(&buffer->reservation, bytes);
        Py_END_ALLOW_THREADS
    }
    ReservationObject *self = PyObject_New(ReservationObject, segment->state->reservation_type);
    if (self == NULL) {
        Py_DECREF(array);
        return NULL;
    }
    self->state = segment->state;
    self->array = array;
    /* Through the array's base, which is the buffer: the array owns it. */
    self->buffer = buffer;
    return (PyObject *)self;
}

static void
reservation_dealloc(PyObject *op)
{
    Py_XDECREF(((ReservationObject *)op)->array);
    ext_free(op);
}

static int
reservation_require_open(const ReservationObject *self)
{
    if (self->array != NULL && self->buffer->open) {
        return 0;
    }
    PyErr_SetString(PyExc_ValueError, "the reservation is over: it was published or cancelled");
    return -1;
}

static int
reservation_require_process(const ReservationObject *self)
{
    if (self->buffer->pid == getpid()) {
        return 0;
    }
    PyErr_Format(PyExc_RuntimeError,
                 "the reservation belongs to process %d, which forked this one; publish or cancel "
                 "it there, and reserve a new buffer here",
                 (int)self->buffer->pid);
    return -1;
}

/* The memory belongs to readers or to another writer from now on. */
static void
reservation_finish(ReservationObject *self)
{
    buffer_ended(self->buffer);
    PyArray_CLEARFLAGS((PyArrayObject *)self->array, NPY_ARRAY_WRITEABLE);
    self->buffer = NULL;
    Py_CLEAR(self->array);
}

static int
reservation_fill(ReservationObject *self, PyObject *const *values, sv_error *err)
{
    double meta[SV_MAX_META];
    sv_array array;
    sv_chunk chunk = {0};
    int count = ext_meta(values[1], meta);
    if (count < 0 || (values[2] != NULL && !ext_uint64(values[2], &chunk.source_index)) ||
        (values[3] != NULL && !ext_uint64(values[3], &chunk.source_epoch)) ||
        reservation_require_open(self) < 0 ||
        ext_chunk_array(self->buffer->segment, self->array, &array) < 0) {
        return -1;
    }
    array.data = NULL; /* written in place */
    chunk.arrays = &array;
    chunk.array_count = 1;
    chunk.meta = meta;
    chunk.meta_count = (uint32_t)count;
    int code = sv_fill(&self->buffer->reservation, &chunk, err);
    if (code != 0) {
        ext_raise(self->state, code, err);
        return -1;
    }
    return 0;
}

/* Publish into the slot that `value` names, or into the next empty one. */
static int
reservation_publish_into(ReservationObject *self, PyObject *value, uint32_t *slot)
{
    SegmentObject *segment = self->buffer->segment;
    sv_error err;
    ext_error_clear(&err);
    int code;
    if (value == NULL || value == Py_None) {
        code = sv_publish_next(&self->buffer->reservation, slot, &err);
    } else {
        /* An open reservation keeps the handle open, but not in a thread that ends it meanwhile. */
        sv_segment *handle = segment->handle;
        /* Finding the slot may run Python code, which may end this very reservation. */
        if (handle == NULL || segment_slot(segment, handle, value, slot) < 0 ||
            reservation_require_open(self) < 0) {
            return -1;
        }
        code = sv_publish(&self->buffer->reservation, *slot, &err);
    }
    if (code != 0) {
        ext_raise(self->state, code, &err);
        return -1;
    }
    return 0;
}

static PyObject *
reservation_publish(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    static const ext_params params = {"publish",
                                      0,
                                      2,
                                      4,
                                      {"slot", "meta", "source_index", "source_epoch"}};
    ReservationObject *self = (ReservationObject *)op;
    PyObject *values[4];
    if (ext_params_sort(&params, args, nargs, kwnames, values) < 0 ||
        reservation_require_open(self) < 0 || reservation_require_process(self) < 0) {
        return NULL;
    }
    sv_error err;
    ext_error_clear(&err);
    uint32_t slot = 0;
    int failed;
    EXT_BEGIN_LOCKED(op)
    failed = reservation_fill(self, values, &err) < 0 ||
             reservation_publish_into(self, values[0], &slot) < 0;
    if (!failed) {
        reservation_finish(self);
    }
    EXT_END_LOCKED()
    return failed ? NULL : PyLong_FromUnsignedLong(slot);
}

#define TURN_SLICE_NS UINT64_C(100000000) /* without a look at signals */

/* (first, end, next), or None: all slots. */
static int
reservation_turn_slots(PyObject *value, sv_turn *turn)
{
    if (value == NULL || value == Py_None) {
        return 0;
    }
    if (!PyTuple_Check(value)) {
        PyErr_Format(PyExc_TypeError, "slots must be (first, end, next) or None, found %R", value);
        return -1;
    }
    return PyArg_ParseTuple(value, "O&O&O&:slots", ext_uint32, &turn->first, ext_uint32, &turn->end,
                            ext_uint32, &turn->next)
               ? 0
               : -1;
}

/* Publish where it is due. Waits without the GIL; meanwhile the reservation is over for others. */
static int
reservation_take_turn(ReservationObject *self, sv_turn *turn, uint32_t *slot, sv_error *err)
{
    uint64_t left = turn->timeout_ns;
    int code = SV_EINUSE;
    self->buffer->open = 0;
    do {
        turn->timeout_ns = left < TURN_SLICE_NS ? left : TURN_SLICE_NS;
        left -= turn->timeout_ns;
        Py_BEGIN_ALLOW_THREADS code = sv_publish_turn(&self->buffer->reservation, turn, slot, err);
        Py_END_ALLOW_THREADS if (code != 0 && PyErr_CheckSignals() < 0)
        {
            self->buffer->open = 1;
            return -1;
        }
    } while ((code == SV_EINUSE || code == SV_ETIMEDOUT) && left != 0);
    self->buffer->open = 1;
    if (code != 0 && code != SV_ETIMEDOUT) {
        ext_raise(self->state, code, err);
        return -1;
    }
    return code == 0;
}

static PyObject *
reservation_publish_turn(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    static const ext_params params = {"publish_turn",
                                      0,
                                      2,
                                      6,
                                      {"slots", "meta", "source_index", "source_epoch", "unread",
                                       "timeout"}};
    ReservationObject *self = (ReservationObject *)op;
    PyObject *values[6];
    sv_turn turn = {.timeout_ns = 0};
    if (ext_params_sort(&params, args, nargs, kwnames, values) < 0 ||
        reservation_turn_slots(values[0], &turn) < 0 ||
        (values[5] != NULL && !ext_timeout(values[5], &turn.timeout_ns)) ||
        reservation_require_open(self) < 0 || reservation_require_process(self) < 0) {
        return NULL;
    }
    int unread = values[4] == NULL ? 0 : PyObject_IsTrue(values[4]);
    if (unread < 0) {
        return NULL;
    }
    turn.unread = (uint32_t)unread;
    sv_error err;
    ext_error_clear(&err);
    uint32_t slot = 0;
    int done;
    EXT_BEGIN_LOCKED(op)
    done = reservation_fill(self, values, &err) < 0
               ? -1
               : reservation_take_turn(self, &turn, &slot, &err);
    if (done > 0) {
        reservation_finish(self);
    }
    EXT_END_LOCKED()
    if (done == 0) {
        Py_RETURN_NONE;
    }
    return done < 0 ? NULL : PyLong_FromUnsignedLong(slot);
}

static void
reservation_end(ReservationObject *self)
{
    EXT_BEGIN_LOCKED((PyObject *)self)
    if (self->array != NULL && self->buffer->open) {
        sv_cancel(&self->buffer->reservation);
        reservation_finish(self);
    }
    EXT_END_LOCKED()
}

static PyObject *
reservation_cancel(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    ReservationObject *self = (ReservationObject *)op;
    if (self->array != NULL && reservation_require_process(self) < 0) {
        return NULL;
    }
    reservation_end(self);
    Py_RETURN_NONE;
}

static PyObject *
reservation_enter(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    return reservation_require_open((ReservationObject *)op) < 0 ? NULL : Py_NewRef(op);
}

/* A forked child that leaves the block has nothing to give back. */
static PyObject *
reservation_exit(PyObject *op, PyObject *Py_UNUSED(args))
{
    ReservationObject *self = (ReservationObject *)op;
    if (self->array != NULL && self->buffer->pid == getpid()) {
        reservation_end(self);
    }
    Py_RETURN_NONE;
}

static PyObject *
reservation_array(PyObject *op, void *Py_UNUSED(closure))
{
    ReservationObject *self = (ReservationObject *)op;
    return reservation_require_open(self) < 0 ? NULL : Py_NewRef(self->array);
}

static PyObject *
reservation_closed(PyObject *op, void *Py_UNUSED(closure))
{
    ReservationObject *self = (ReservationObject *)op;
    return PyBool_FromLong(self->array == NULL || !self->buffer->open);
}

static PyMethodDef reservation_methods[] = {
    {"publish", EXT_FAST(reservation_publish), METH_FASTCALL | METH_KEYWORDS,
     "publish($self, /, slot=None, meta=None, *, source_index=0, source_epoch=0)\n--\n\n"
     "Make the buffer the current chunk of a filled slot, or of the next empty one (slot=None).\n\n"
     "Returns the slot's number. Views of the old chunk keep it. From now on `array` is over and\n"
     "arrays taken from it are read-only; drop views that were made of it before, as their memory\n"
     "belongs to readers now. IndexError, ValueError (bad meta), OutOfMemoryError (no slot is\n"
     "empty) and RuntimeError (in a forked child) leave the reservation open and unchanged."},
    {"publish_turn", EXT_FAST(reservation_publish_turn), METH_FASTCALL | METH_KEYWORDS,
     "publish_turn($self, /, slots=None, meta=None, *, source_index=0, source_epoch=0,"
     " unread=False,\n             timeout=0.0)\n--\n\n"
     "Make the buffer the current chunk of the slot whose turn it is: the next one that has been\n"
     "read since it was written and of which nobody has a view just now. Returns its number, or\n"
     "None when there was none within `timeout` seconds. With unread=True it is then the next one\n"
     "without a view. slots=(first, end, next) chooses among a part of the slots, beginning at\n"
     "first + next. InUseError when views are held of all of them and no other buffer is free.\n"
     "Otherwise as publish()."},
    {"cancel", reservation_cancel, METH_NOARGS,
     "cancel($self, /)\n--\n\n"
     "Give the buffer back unused; after publish() or cancel() this does nothing.\n\n"
     "RuntimeError in a forked child: the buffer belongs to the parent."},
    {"__enter__", reservation_enter, METH_NOARGS, "__enter__($self, /)\n--\n\nReturn self."},
    {"__exit__", reservation_exit, METH_VARARGS,
     "__exit__($self, exc_type, exc, tb, /)\n--\n\nCancel unless it was published."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef reservation_getset[] = {
    {"array", reservation_array, NULL,
     "Writable array over the buffer; ValueError after publish() or cancel().", NULL},
    {"closed", reservation_closed, NULL, "Was it published or cancelled?", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyDoc_STRVAR(reservation_doc,
             "A free buffer that is being filled; leaving the with block without publish cancels.");

static PyType_Slot reservation_slots[] = {
    {Py_tp_doc, (void *)reservation_doc},
    {Py_tp_dealloc, reservation_dealloc},
    {Py_tp_methods, reservation_methods},
    {Py_tp_getset, reservation_getset},
    {0, NULL},
};

static PyType_Spec reservation_spec = {
    .name = "sharedvector._core.Reservation",
    .basicsize = sizeof(ReservationObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = reservation_slots,
};

int
ext_reservation_init(PyObject *module, ext_state *state)
{
    state->buffer_type = ext_type_add(module, &buffer_spec, NULL);
    state->reservation_type = ext_type_add(module, &reservation_spec, "Reservation");
    return state->buffer_type != NULL && state->reservation_type != NULL ? 0 : -1;
}
