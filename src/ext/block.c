/*
 * Blocks: arrays over the one buffer of a block, its removal, and the signals that end its maker.
 *
 *     array -> Memory
 *
 * The Memory object is the base of the arrays and holds the core's view, so that the memory stays
 * for as long as the last of them, whatever becomes of the handle and of the block.
 */
#include "ext.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef struct {
    PyObject_HEAD sv_view view; /* its mapping_ is NULL once it is given back */
    void *base;                 /* a private map, or NULL */
    size_t bytes;
} MemoryObject;

/* ---- memory -------------------------------------------------------------------------------- */

static void
memory_dealloc(PyObject *op)
{
    MemoryObject *self = (MemoryObject *)op;
    if (self->base != NULL) { /* perhaps gigabytes, which the kernel frees here */
        Py_BEGIN_ALLOW_THREADS(void) munmap(self->base, self->bytes);
        Py_END_ALLOW_THREADS
    }
    ext_unpin(&self->view);
    ext_free(op);
}

static PyType_Slot memory_slots[] = {
    {Py_tp_doc, (void *)"Memory of a block: base of the arrays over it."},
    {Py_tp_dealloc, memory_dealloc},
    {0, NULL},
};

static PyType_Spec memory_spec = {
    .name = "sharedvector._core._Memory",
    .basicsize = sizeof(MemoryObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = memory_slots,
};

typedef enum { BLOCK_READ, BLOCK_WRITE, BLOCK_PRIVATE } block_access;

/* The bytes of the block as a flat uint8 array; [start, stop) of it is mapped at once. */
static PyObject *
block_array(SegmentObject *self, block_access access, uint64_t start, uint64_t stop)
{
    /* Before the pin: after it only NumPy may fail, and then the base gives it back. */
    MemoryObject *memory = PyObject_New(MemoryObject, self->state->memory_type);
    if (memory == NULL) {
        return NULL;
    }
    memset(&memory->view, 0, sizeof(memory->view));
    memory->base = NULL;
    memory->bytes = 0;
    sv_segment *handle = segment_enter(self);
    if (handle == NULL) {
        Py_DECREF(memory);
        return NULL;
    }
    sv_error err;
    ext_error_clear(&err);
    void *data = NULL;
    sv_view view;
    memset(&view, 0, sizeof(view));
    int code;
    /* The pin, too: it may wait for a thread that makes a segment. */
    Py_BEGIN_ALLOW_THREADS code = sv_block_pin(handle, access == BLOCK_WRITE, &view, &data, &err);
    if (code == 0) {
        memory->view = view;
        data = access == BLOCK_READ ? (void *)(uintptr_t)view.data : data;
        if (start < stop) {
            sv_block_prefault(&view, access == BLOCK_WRITE, start, stop - start);
        }
        if (access == BLOCK_PRIVATE) {
            code = sv_block_map_private(handle, &memory->base, &memory->bytes, &err);
            data = memory->base;
        }
    }
    Py_END_ALLOW_THREADS segment_leave(self);
    if (code != 0) {
        Py_DECREF(memory);
        return ext_raise(self->state, code, &err);
    }
    npy_intp length = (npy_intp)view.size_bytes;
    PyObject *array =
        PyArray_New(&PyArray_Type, 1, &length, NPY_UINT8, NULL, data, 1,
                    access == BLOCK_READ ? NPY_ARRAY_CARRAY_RO : NPY_ARRAY_CARRAY, NULL);
    if (array == NULL) {
        Py_DECREF(memory);
        return NULL;
    }
    if (PyArray_SetBaseObject((PyArrayObject *)array, (PyObject *)memory) < 0) {
        Py_DECREF(array);
        return NULL;
    }
    return array;
}

/* ---- methods of Segment -------------------------------------------------------------------- */

static PyObject *
segment_block_array(PyObject *op, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"writable", "start", "stop", NULL};
    int writable = 0;
    uint64_t start = 0;
    uint64_t stop = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|pO&O&:block_array", names, &writable,
                                     ext_uint64, &start, ext_uint64, &stop)) {
        return NULL;
    }
    return block_array((SegmentObject *)op, writable ? BLOCK_WRITE : BLOCK_READ, start, stop);
}

static PyObject *
segment_block_private(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    return block_array((SegmentObject *)op, BLOCK_PRIVATE, 0, 0);
}

static PyObject *
segment_block_remove(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    return segment_call(op, sv_block_remove);
}

static PyObject *
segment_remove_own(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    return segment_call(op, sv_segment_remove_own);
}

static PyObject *
segment_own_pins(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    return segment_count(op, sv_own_pins);
}

#define KEYWORDS (METH_VARARGS | METH_KEYWORDS)

PyMethodDef segment_block_methods[] = {
    {"block_array", EXT_FAST(segment_block_array), KEYWORDS,
     "block_array($self, /, writable=False, start=0, stop=0)\n--\n\n"
     "Return the bytes of a block as a flat uint8 array, without a copy; [start, stop) of it has\n"
     "its page faults now.\n\n"
     "The memory stays for as long as the array. FileNotFoundError when the block was removed,\n"
     "ValueError when this is no block or it is not finished."},
    {"block_private", segment_block_private, METH_NOARGS,
     "block_private($self, /)\n--\n\n"
     "Return the bytes of a block as a writable array whose changes stay private to it.\n\n"
     "Pages are copied when they are written to. Errors as block_array()."},
    {"block_remove", segment_block_remove, METH_NOARGS,
     "block_remove($self, /)\n--\n\n"
     "Remove a block that this process made; a second call does nothing.\n\n"
     "Arrays over it stay as they are. RuntimeError in any other process."},
    {"remove_own", segment_remove_own, METH_NOARGS,
     "remove_own($self, /)\n--\n\n"
     "Unlink the name while it leads to this very segment, whatever its header says.\n\n"
     "FileNotFoundError when it leads to another file, or to none."},
    {"own_pins", segment_own_pins, METH_NOARGS,
     "own_pins($self, /)\n--\n\nReturn how many views this process holds on the segment."},
    {NULL, NULL, 0, NULL},
};

/* ---- functions of the module --------------------------------------------------------------- */

PyObject *
module_block_name(PyObject *module, PyObject *value)
{
    const char *prefix;
    char name[SV_MAX_NAME_BYTES + 1];
    if (!ext_text(value, &prefix)) {
        return NULL;
    }
    sv_error err;
    ext_error_clear(&err);
    int code = sv_block_name(prefix, name, &err);
    return code != 0 ? ext_raise(PyModule_GetState(module), code, &err)
                     : PyUnicode_DecodeFSDefault(name);
}

static int
sweep_add(const sv_listed *item, void *context)
{
    ext_walk *walk = context;
    PyEval_RestoreThread(walk->thread);
    return ext_walk_add(walk,
                        Py_BuildValue("{sNsKsN}", "name", PyUnicode_DecodeFSDefault(item->name),
                                      "bytes", (unsigned long long)item->bytes, "block",
                                      PyBool_FromLong(item->block != 0)));
}

PyObject *
module_sweep(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"directory", "lock_dir", "prefix", "dry_run", NULL};
    PyObject *directory = NULL;
    PyObject *lock_dir = NULL;
    const char *prefix = NULL;
    int dry_run = 0;
    PyObject *list = NULL;
    if (PyArg_ParseTupleAndKeywords(args, kwargs, "|O&O&O&p:sweep", names, ext_path_or_none,
                                    &directory, ext_path_or_none, &lock_dir, ext_text_or_none,
                                    &prefix, &dry_run)) {
        list = PyList_New(0);
    }
    if (list != NULL) {
        sv_error err;
        ext_error_clear(&err);
        const char *where = directory != NULL ? PyBytes_AsString(directory) : NULL;
        const char *locks = lock_dir != NULL ? PyBytes_AsString(lock_dir) : NULL;
        ext_walk walk = {list, PyEval_SaveThread()};
        int code = sv_sweep(where, locks, prefix, dry_run, sweep_add, &walk, &err);
        PyEval_RestoreThread(walk.thread);
        if (code < 0 && !PyErr_Occurred()) {
            ext_raise(PyModule_GetState(module), code, &err);
        }
        if (code != 0) {
            Py_CLEAR(list);
        }
    }
    Py_XDECREF(directory);
    Py_XDECREF(lock_dir);
    return list;
}

/* None for UINT64_MAX, which the core says of what it does not know or what has no limit. */
static PyObject *
block_bytes(uint64_t bytes)
{
    return bytes == UINT64_MAX ? Py_NewRef(Py_None) : PyLong_FromUnsignedLongLong(bytes);
}

PyObject *
module_memory_free(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    const char *limit;
    uint64_t allowed;
    uint64_t bytes = sv_memory_free(&limit, &allowed);
    return Py_BuildValue("(NsN)", block_bytes(bytes), limit, block_bytes(allowed));
}

/* ---- signals that end the process ---------------------------------------------------------- */

static void
block_signal(int number)
{
    struct sigaction fallback;
    memset(&fallback, 0, sizeof(fallback));
    fallback.sa_handler = SIG_DFL;
    sv_block_unlink_all();
    (void)sigaction(number, &fallback, NULL);
    (void)raise(number); /* blocked while we are here, and delivered when we return */
}

/* Python does not know of this handler: whoever sets one of their own replaces it, as they would the
 * default, and is then responsible for a normal end. */
PyObject *
module_guard_signals(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    static const int numbers[] = {SIGTERM, SIGHUP};
    static atomic_flag at_exit = ATOMIC_FLAG_INIT;
    /* Behind Python's own end: what a daemon thread was about to make. */
    if (!atomic_flag_test_and_set(&at_exit) && atexit(sv_block_unlink_all) != 0) {
        atomic_flag_clear(&at_exit);
    }
    if (getpid() == 1) {
        Py_RETURN_NONE; /* the kernel spares the first process of a container the default action */
    }
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        struct sigaction now;
        if (sigaction(numbers[i], NULL, &now) == 0 && (now.sa_flags & SA_SIGINFO) == 0 &&
            now.sa_handler == SIG_DFL) {
            memset(&now, 0, sizeof(now));
            now.sa_handler = block_signal;
            (void)sigemptyset(&now.sa_mask);
            (void)sigaction(numbers[i], &now, NULL);
        }
    }
    Py_RETURN_NONE;
}

int
ext_block_init(PyObject *module, ext_state *state)
{
    state->memory_type = ext_type_add(module, &memory_spec, NULL);
    return state->memory_type != NULL ? 0 : -1;
}
