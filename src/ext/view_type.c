/*
 * View: a pinned chunk. It is the base of the arrays that get() returns, so that the pin lives as
 * long as the last of them.
 *
 * A View refers to no other object: the core keeps the memory mapped while it is pinned, whatever
 * becomes of the handle. That makes it free of cycles and cheap. The buffer protocol hands it out
 * read-only, which is also what keeps NumPy from setting an array's WRITEABLE flag again.
 */
#include "ext.h"

ViewObject *
view_new(SegmentObject *segment)
{
    ViewObject *self = PyObject_New(ViewObject, segment->state->view_type);
    if (self != NULL) {
        self->pinned = 0;
        self->itemsize = segment->itemsize;
        self->element = segment->element;
    }
    return self;
}

static void
view_dealloc(PyObject *op)
{
    ViewObject *self = (ViewObject *)op;
    if (self->pinned) {
        ext_unpin(&self->view);
    }
    ext_free(op);
}

static sv_chunk_info
view_info(PyObject *op)
{
    sv_chunk_info info = {0};
    sv_view_info(&((ViewObject *)op)->view, &info);
    return info;
}

static PyObject *
view_slot(PyObject *op, void *Py_UNUSED(closure))
{
    return PyLong_FromUnsignedLong(((ViewObject *)op)->view.slot);
}

static PyObject *
view_version(PyObject *op, void *Py_UNUSED(closure))
{
    return PyLong_FromUnsignedLongLong(view_info(op).version);
}

static PyObject *
view_source_index(PyObject *op, void *Py_UNUSED(closure))
{
    return PyLong_FromUnsignedLongLong(view_info(op).source_index);
}

static PyObject *
view_source_epoch(PyObject *op, void *Py_UNUSED(closure))
{
    return PyLong_FromUnsignedLongLong(view_info(op).source_epoch);
}

static PyObject *
view_published_ns(PyObject *op, void *Py_UNUSED(closure))
{
    return PyLong_FromUnsignedLongLong(view_info(op).published_ns);
}

/* Shape and strides of an exported buffer, in buffer->internal. */
typedef struct {
    Py_ssize_t shape[SV_MAX_NDIM];
    Py_ssize_t strides[SV_MAX_NDIM];
} view_layout;

static void
view_layout_fill(const ViewObject *self, view_layout *layout, int ndim)
{
    Py_ssize_t stride = (Py_ssize_t)self->itemsize;
    for (int i = ndim - 1; i >= 0; i--) {
        layout->shape[i] = (Py_ssize_t)self->view.shape[i];
        layout->strides[i] = stride;
        stride *= layout->shape[i];
    }
}

static int
view_getbuffer(PyObject *op, Py_buffer *buffer, int flags)
{
    ViewObject *self = (ViewObject *)op;
    /* The core's memory is const on purpose; the buffer says read-only. */
    void *data = (void *)(uintptr_t)self->view.data;
    if (PyBuffer_FillInfo(buffer, op, data, (Py_ssize_t)self->view.size_bytes, 1, flags) < 0) {
        return -1;
    }
    int ndim = (int)self->view.ndim;
    if (self->element.format == NULL || (flags & PyBUF_ND) != PyBUF_ND) {
        return 0;
    }
    int wants_fortran = (flags & PyBUF_F_CONTIGUOUS) == PyBUF_F_CONTIGUOUS;
    if (wants_fortran && ndim > 1) {
        PyBuffer_Release(buffer);
        PyErr_SetString(PyExc_BufferError, "a chunk is stored in C order");
        return -1;
    }
    view_layout *layout = PyMem_Malloc(sizeof(*layout));
    if (layout == NULL) {
        PyBuffer_Release(buffer);
        PyErr_NoMemory();
        return -1;
    }
    view_layout_fill(self, layout, ndim);
    buffer->internal = layout;
    buffer->itemsize = (Py_ssize_t)self->itemsize;
    buffer->ndim = ndim;
    buffer->shape = ndim > 0 ? layout->shape : NULL;
    buffer->strides = ndim > 0 && (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? layout->strides : NULL;
    buffer->format = NULL;
    if ((flags & PyBUF_FORMAT) == PyBUF_FORMAT) {
        buffer->format = (char *)(uintptr_t)self->element.format;
    }
    return 0;
}

static void
view_releasebuffer(PyObject *Py_UNUSED(op), Py_buffer *buffer)
{
    PyMem_Free(buffer->internal);
    buffer->internal = NULL;
}

static PyObject *
view_dlpack_device(PyObject *Py_UNUSED(op), PyObject *Py_UNUSED(ignored))
{
    return Py_BuildValue("(ii)", 1, 0);
}

static PyObject *
view_dlpack_method(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    return view_dlpack((ViewObject *)op, args, nargs, kwnames);
}

PyDoc_STRVAR(view_dlpack_doc,
             "__dlpack__($self, /, *, stream=None, max_version=None, dl_device=None, copy=None)\n"
             "--\n\n"
             "Share the chunk by DLPack, read-only.\n\n"
             "Needs max_version >= (1, 0): older capsules cannot say that memory is read-only, so\n"
             "without it, and for dtypes that DLPack lacks, this raises BufferError.");

static PyMethodDef view_methods[] = {
    {"__dlpack__", EXT_FAST(view_dlpack_method), METH_FASTCALL | METH_KEYWORDS, view_dlpack_doc},
    {"__dlpack_device__", view_dlpack_device, METH_NOARGS,
     "__dlpack_device__($self, /)\n--\n\nThe CPU: (1, 0)."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef view_getset[] = {
    {"slot", view_slot, NULL, "Number of the slot that was read.", NULL},
    {"version", view_version, NULL, "Writes to the slot up to this chunk, the append included.",
     NULL},
    {"source_index", view_source_index, NULL, "Source that the chunk came from.", NULL},
    {"source_epoch", view_source_epoch, NULL, "Pass over the sources in which it was loaded.",
     NULL},
    {"published_ns", view_published_ns, NULL, "Time of publication, ns since 1970.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyDoc_STRVAR(view_doc, "A pinned chunk: base of the arrays that get() returns.\n\n"
                       "The chunk stays as it is until the last array over it is gone. Also a\n"
                       "read-only buffer and a DLPack source of the chunk's shape and dtype.");

static PyType_Slot view_slots[] = {
    {Py_tp_doc, (void *)view_doc},
    {Py_tp_dealloc, view_dealloc},
    {Py_tp_methods, view_methods},
    {Py_tp_getset, view_getset},
    {Py_bf_getbuffer, view_getbuffer},
    {Py_bf_releasebuffer, view_releasebuffer},
    {0, NULL},
};

static PyType_Spec view_spec = {
    .name = "sharedvector._core.View",
    .basicsize = sizeof(ViewObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = view_slots,
};

int
ext_view_init(PyObject *module, ext_state *state)
{
    state->view_type = ext_type_add(module, &view_spec, "View");
    return state->view_type != NULL ? 0 : -1;
}
