/*
 * Segment, facts: what never changes while a segment lives. They were copied when the handle was
 * opened and can be asked after its close; only `free_memory` needs an open handle.
 */
#include "ext.h"

#include <stddef.h>
#include <string.h>

#define SEGMENT_INFO(op) (&((SegmentObject *)(op))->info)

static PyObject *
segment_text_fact(PyObject *op, void *closure)
{
    const char *text = (const char *)SEGMENT_INFO(op) + (uintptr_t)closure;
    return PyUnicode_DecodeFSDefault(text);
}

static PyObject *
segment_u32_fact(PyObject *op, void *closure)
{
    const char *field = (const char *)SEGMENT_INFO(op) + (uintptr_t)closure;
    uint32_t value;
    memcpy(&value, field, sizeof(value));
    return PyLong_FromUnsignedLong(value);
}

static PyObject *
segment_u64_fact(PyObject *op, void *closure)
{
    const char *field = (const char *)SEGMENT_INFO(op) + (uintptr_t)closure;
    uint64_t value;
    memcpy(&value, field, sizeof(value));
    return PyLong_FromUnsignedLongLong(value);
}

static PyObject *
segment_numpy_dtype(PyObject *op, void *Py_UNUSED(closure))
{
    SegmentObject *self = (SegmentObject *)op;
    return segment_require_dtype(self) < 0 ? NULL : Py_NewRef((PyObject *)self->descr);
}

static PyObject *
segment_block(PyObject *op, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(SEGMENT_INFO(op)->block != 0);
}

static PyObject *
segment_owned(PyObject *op, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(SEGMENT_INFO(op)->owned != 0);
}

static PyObject *
segment_spare_buffers(PyObject *op, void *Py_UNUSED(closure))
{
    const sv_info *info = SEGMENT_INFO(op);
    return PyLong_FromUnsignedLong(info->buffer_count - info->slot_count);
}

static PyObject *
segment_closed(PyObject *op, void *Py_UNUSED(closure))
{
    SegmentObject *self = (SegmentObject *)op;
    return PyBool_FromLong(self->handle == NULL || self->closing);
}

static PyObject *
segment_free_memory(PyObject *op, void *Py_UNUSED(closure))
{
    SegmentObject *self = (SegmentObject *)op;
    sv_segment *handle = segment_enter(self);
    if (handle == NULL) {
        return NULL;
    }
    uint64_t left = self->info.slot_count - sv_size(handle);
    segment_leave(self);
    return PyLong_FromUnsignedLongLong(left * self->info.chunk_size);
}

#define FACT(name, getter, field, doc)                                                             \
    {name, getter, NULL, doc, (void *)(uintptr_t)offsetof(sv_info, field)}

PyGetSetDef segment_facts_getset[] = {
    FACT("name", segment_text_fact, name, "Name of the segment."),
    FACT("directory", segment_text_fact, directory, "Directory that holds its file."),
    FACT("generation", segment_text_fact, generation, "Token of the reign that made it."),
    FACT("inode", segment_u64_fact, inode, "Inode of its file."),
    FACT("dtype_text", segment_text_fact, dtype, "Its dtype as stored."),
    FACT("mode", segment_u32_fact, mode, "Permission bits of its file."),
    FACT("itemsize", segment_u32_fact, itemsize, "Bytes of one element."),
    FACT("chunk_size", segment_u64_fact, chunk_size, "Bytes that one slot holds."),
    FACT("capacity", segment_u32_fact, slot_count, "Number of slots, filled or not."),
    FACT("stats_capacity", segment_u32_fact, stats_capacity, "Samples that the ring holds."),
    FACT("segment_bytes", segment_u64_fact, segment_bytes,
         "Bytes of memory reserved in total: slots, spares, headers, ring and processes."),
    FACT("row_bytes", segment_u64_fact, row_bytes,
         "Bytes that an attached process takes, beyond those it is made for."),
    FACT("processes", segment_u32_fact, processes,
         "Processes beside the maker whose memory is reserved; 0: format 1.0, one that did not "
         "say."),
    {"numpy_dtype", segment_numpy_dtype, NULL, "The bound numpy.dtype.", NULL},
    {"spare_buffers", segment_spare_buffers, NULL, "Buffers beyond the slots.", NULL},
    {"block", segment_block, NULL, "Is it a block?", NULL},
    {"owned", segment_owned, NULL, "Is it a pool or block, whose life is tied to an owner?", NULL},
    {"free_memory", segment_free_memory, NULL, "Bytes left for further slots.", NULL},
    {"closed", segment_closed, NULL, "Is this handle closed?", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
