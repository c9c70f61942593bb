/*
 * What the files of the extension share: module state, object layouts, helpers.
 *
 * The extension sees the core only through sharedvector.h. It is written for the limited API 3.11
 * and compiles without it too (free-threaded interpreters). Nothing here is a static PyObject;
 * everything hangs on the module's state, which the types keep alive.
 */
#ifndef SHAREDVECTOR_EXT_H
#define SHAREDVECTOR_EXT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#ifndef NPY_NO_DEPRECATED_API
#define NPY_NO_DEPRECATED_API NPY_1_25_API_VERSION
#endif
#ifndef NPY_TARGET_VERSION
#define NPY_TARGET_VERSION NPY_1_25_API_VERSION
#endif
#define PY_ARRAY_UNIQUE_SYMBOL sharedvector_numpy_api
#ifndef EXT_IMPORTS_NUMPY
#define NO_IMPORT_ARRAY
#endif
#include <numpy/arrayobject.h>

#include <stdint.h>
#include <sys/types.h>

#include "sharedvector/sharedvector.h"

/* Copies shorter than this are over before another thread could have taken the GIL. */
#define EXT_RELEASE_BYTES 65536

/* With the GIL one thread at a time is inside a method until it releases the GIL on purpose;
 * without it the object's own critical section takes that part. */
#ifdef Py_GIL_DISABLED
#define EXT_BEGIN_LOCKED(op) Py_BEGIN_CRITICAL_SECTION(op)
#define EXT_END_LOCKED() Py_END_CRITICAL_SECTION()
#else
#define EXT_BEGIN_LOCKED(op)                                                                       \
    {                                                                                              \
        (void)(op);
#define EXT_END_LOCKED() }
#endif

/* ---- module state -------------------------------------------------------------------------- */

/* X(name, bases, doc): the exceptions that this module defines. */
/* clang-format off */
#define EXT_CLASS_TABLE(X)                                                                         \
    X(MemoryError, PyExc_MemoryError, NULL,                                                        \
      "A chunk is larger than a buffer of the segment, or the process is out of memory.")          \
    X(OutOfMemoryError, PyExc_MemoryError, NULL, "Every slot of the segment is filled.")           \
    X(ArraySizeError, PyExc_ValueError, PyExc_RuntimeError,                                        \
      "An array has a memory layout that cannot be stored.")                                       \
    X(InUseError, PyExc_RuntimeError, NULL,                                                        \
      "Views or reservations hold what the call needs.")                                           \
    X(DataModifiedError, PyExc_RuntimeError, NULL,                                                 \
      "A slot was replaced faster than it could be read.")                                         \
    X(FormatError, PyExc_RuntimeError, NULL,                                                       \
      "A file is not a usable segment: foreign, damaged, unsafe or of another format.")            \
    X(PoolStalledError, PyExc_RuntimeError, NULL,                                                  \
      "A pool is no longer refreshed: its owner or its producer is gone.")                         \
    X(PoolBusyError, PyExc_RuntimeError, NULL, "Another process owns the pool.")
/* clang-format on */

#define EXT_CLASS_FIELD(name, first, second, doc) PyObject *name;
typedef struct {
    EXT_CLASS_TABLE(EXT_CLASS_FIELD)
    PyTypeObject *segment_type;
    PyTypeObject *view_type;
    PyTypeObject *reservation_type;
    PyTypeObject *buffer_type;
    PyTypeObject *memory_type;
    PyTypeObject *owner_type;
    PyTypeObject *file_map_type;
} ext_state;
#undef EXT_CLASS_FIELD

extern struct PyModuleDef ext_module;

/* The state of the module that made `type` or one of its bases. */
ext_state *ext_state_of_type(PyTypeObject *type);

/* ---- objects ------------------------------------------------------------------------------- */

/* What an array interchange protocol has to know about a dtype. */
typedef struct {
    const char *format; /* struct-module code, or NULL: raw bytes */
    uint8_t dl_code;    /* DLPack type code, valid when dl_bits is not 0 */
    uint8_t dl_bits;
} ext_element;

typedef struct {
    PyObject_HEAD sv_segment *handle; /* NULL: never opened, or closed */
    ext_state *state;                 /* lives as long as the type, so as long as this object */
    PyArray_Descr *descr;             /* NULL until bind_dtype() */
    uint64_t itemsize;
    ext_element element;
    uint32_t calls;    /* of this process, without the GIL; see segment_calls() */
    uint32_t forks;    /* `calls` counts since so many forks */
    uint32_t users;    /* arrays over reserved buffers */
    uint32_t reserved; /* open reservations made by process `reserved_pid` */
    pid_t reserved_pid;
    int closing; /* closed; the handle goes with the last call and user */
    sv_info info;
} SegmentObject;

typedef struct {
    PyObject_HEAD sv_view view;
    uint64_t itemsize;
    ext_element element;
    int pinned;
} ViewObject;

/* ---- module.c, errors.c -------------------------------------------------------------------- */

int ext_errors_init(PyObject *module, ext_state *state);

/* Raise what error_table.h says for `code`; err may be NULL. Returns NULL. */
PyObject *ext_raise(ext_state *state, int code, const sv_error *err);

/* Start of every call that fills an sv_error: the rest of it is written by the core. */
static inline void
ext_error_clear(sv_error *err)
{
    err->code = 0;
    err->sys_errno = 0;
    err->operation[0] = '\0';
    err->message[0] = '\0';
}

/* A walk over a directory's segments: without the GIL, as it looks at many files and may wait for who is
 * at work on one; its items take the GIL back. */
typedef struct {
    PyObject *list;
    PyThreadState *thread;
} ext_walk;

/* Append an entry (stolen; NULL: it could not be made) and give the GIL up again. Not 0: end the walk. */
int ext_walk_add(ext_walk *walk, PyObject *entry);

/* ---- args.c -------------------------------------------------------------------------------- */

#define EXT_MAX_PARAMS 8

typedef struct {
    const char *function;
    int required;
    int positional; /* how many may be given by position */
    int count;
    const char *names[EXT_MAX_PARAMS];
} ext_params;

/* Sort vectorcall arguments into out[count]; missing ones are NULL, references borrowed. */
int ext_params_sort(const ext_params *params, PyObject *const *args, Py_ssize_t nargs,
                    PyObject *kwnames, PyObject **out);

/* Any object with __index__ as a number; TypeError names `what`. Out of range is INT64_MIN/MAX. */
int ext_number(PyObject *value, const char *what, int64_t *out);

/* O& converters: ValueError for numbers that do not fit. */
int ext_uint64(PyObject *value, void *out);
int ext_uint32(PyObject *value, void *out);
/* Seconds as nanoseconds; ValueError when negative or not a number. */
int ext_timeout(PyObject *value, void *out);
/* A str without NUL and lone surrogates; *out lives as long as value. */
int ext_text(PyObject *value, void *out);
/* As ext_text(); None gives NULL. */
int ext_text_or_none(PyObject *value, void *out);
/* A dtype, also one that only sharedvector.dtypes knows by its name; *out is a new reference. */
int ext_dtype(PyObject *value, PyArray_Descr **out);
/* A path as bytes object, a new reference; None gives NULL. Called with NULL to clean up. */
int ext_path_or_none(PyObject *value, void *out);

/* ---- array.c ------------------------------------------------------------------------------- */

/* Fill meta[] from a meta argument (NULL and None: none) and return how many, or -1. */
int ext_meta(PyObject *value, double meta[SV_MAX_META]);

/* Fresh float64 array of `count` values. */
PyObject *ext_meta_array(const double *values, uint32_t count);

/* The facts of a dtype that View needs. */
ext_element ext_element_of(PyArray_Descr *descr);

/* Describe `array` for the core, after all checks that append and replace promise. The data stay
 * the array's own. */
int ext_chunk_array(const SegmentObject *segment, PyObject *array, sv_array *out);

/* Product of shape and itemsize; 0, or -1 without an exception when it does not fit 64 bits. */
int ext_size_bytes(const uint64_t *shape, uint32_t ndim, uint64_t itemsize, uint64_t *out);

/* A read-only array over a pinned view. Steals `view`, also on failure. */
PyObject *ext_view_array(SegmentObject *segment, ViewObject *view);

/* shape as a tuple of int. */
PyObject *ext_shape_tuple(const uint64_t *shape, uint32_t ndim);

/* ---- move.c -------------------------------------------------------------------------------- */

/* The sv_type of a dtype; SV_OPAQUE for all but native integers and floats. */
uint32_t ext_number_type(PyArray_Descr *descr);

PyObject *module_move(PyObject *module, PyObject *args, PyObject *kwargs);

/* ---- block.c ------------------------------------------------------------------------------- */

int ext_block_init(PyObject *module, ext_state *state);

PyObject *module_block_name(PyObject *module, PyObject *value);
PyObject *module_sweep(PyObject *module, PyObject *args, PyObject *kwargs);
PyObject *module_memory_free(PyObject *module, PyObject *ignored);
PyObject *module_guard_signals(PyObject *module, PyObject *ignored);

/* ---- file_map.c ---------------------------------------------------------------------------- */

int ext_file_map_init(PyObject *module, ext_state *state);

PyObject *module_guard_file_maps(PyObject *module, PyObject *ignored);
PyObject *module_map_file(PyObject *module, PyObject *args);

/* ---- segment_type.c ------------------------------------------------------------------------ */

int ext_segment_init(PyObject *module, ext_state *state);

/* Return the handle and keep it open until segment_leave(), or raise ValueError. */
sv_segment *segment_enter(SegmentObject *self);
void segment_leave(SegmentObject *self);

/* One of `users` less. */
void segment_let_go(SegmentObject *self);

/* Raise that the handle is closed. Returns NULL. */
PyObject *segment_raise_closed(const SegmentObject *self);

/* A verb without arguments, called without the GIL: None, or its error raised. */
PyObject *segment_call(PyObject *op, int (*verb)(sv_segment *segment, sv_error *err));

/* A number that never fails on an open handle. */
PyObject *segment_count(PyObject *op, uint64_t (*count)(const sv_segment *segment));

/* 0 when a dtype is bound, else -1 with RuntimeError. */
int segment_require_dtype(const SegmentObject *self);

/* Turn an index argument into a slot number; negative ones count from the end. */
int segment_slot(const SegmentObject *self, sv_segment *handle, PyObject *index, uint32_t *slot);

/* Raise a code that a call without sv_error returned for `slot`. Returns NULL. */
PyObject *segment_raise_slot(const SegmentObject *self, sv_segment *handle, int code,
                             uint32_t slot);

extern PyMethodDef segment_read_methods[];
extern PyMethodDef segment_gather_methods[];
extern PyMethodDef segment_write_methods[];
extern PyMethodDef segment_stats_methods[];
extern PyMethodDef segment_block_methods[];
extern PyGetSetDef segment_stats_getset[];
extern PyGetSetDef segment_facts_getset[];

/* segment_read.c: also the mapping slot of the type. */
PyObject *segment_getitem(PyObject *op, PyObject *index);

/* segment_wait.c */
PyObject *segment_wait_filled(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                              PyObject *kwnames);
PyObject *segment_wait_changed(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                               PyObject *kwnames);

/* ---- view_type.c, reservation_type.c, owner_type.c, dlpack.c ------------------------------- */

int ext_view_init(PyObject *module, ext_state *state);
ViewObject *view_new(SegmentObject *segment);
PyObject *view_dlpack(ViewObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);

int ext_reservation_init(PyObject *module, ext_state *state);

/* Wrap an open reservation; takes it over, also on failure (then it is cancelled). */
PyObject *reservation_new(SegmentObject *segment, const sv_reservation *reservation, int ndim,
                          const npy_intp *shape);

int ext_owner_init(PyObject *module, ext_state *state);

/* ---- small helpers ------------------------------------------------------------------------- */

/* Give a view back; not with the GIL where that waits for threads that make segments. */
static inline void
ext_unpin(sv_view *view)
{
    if (sv_unpin_waits(view)) {
        Py_BEGIN_ALLOW_THREADS sv_unpin(view);
        Py_END_ALLOW_THREADS
    } else {
        sv_unpin(view);
    }
}

#define EXT_FAST(function) ((PyCFunction)(void (*)(void))(function))

/* Make a type of the module and, unless name is NULL, an attribute of it. */
PyTypeObject *ext_type_add(PyObject *module, PyType_Spec *spec, const char *name);

/* Give memory and type of an object without GC back. */
void ext_free(PyObject *op);

#endif
