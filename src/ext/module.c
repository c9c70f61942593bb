/*
 * sharedvector._core: the C nouns and verbs of sharedvector.h for Python; policy lives there.
 */
#define EXT_IMPORTS_NUMPY
#include "ext.h"

#include <time.h>

/* ---- helpers ------------------------------------------------------------------------------- */

PyTypeObject *
ext_type_add(PyObject *module, PyType_Spec *spec, const char *name)
{
    PyObject *type = PyType_FromModuleAndSpec(module, spec, NULL);
    if (type != NULL && name != NULL && PyModule_AddObjectRef(module, name, type) < 0) {
        Py_CLEAR(type);
    }
    return (PyTypeObject *)type;
}

void
ext_free(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(op);
    Py_DECREF((PyObject *)type);
}

ext_state *
ext_state_of_type(PyTypeObject *type)
{
    /* A class made in Python belongs to no module; one of its bases is ours. */
    while (type != NULL) {
        PyObject *module = PyType_GetModule(type);
        if (module == NULL) {
            PyErr_Clear();
        } else if (PyModule_GetDef(module) == &ext_module) {
            return PyModule_GetState(module);
        }
        type = (PyTypeObject *)PyType_GetSlot(type, Py_tp_base);
    }
    PyErr_SetString(PyExc_SystemError, "the class has no base in sharedvector._core");
    return NULL;
}

/* ---- names and files ----------------------------------------------------------------------- */

static PyObject *
module_check_name(PyObject *module, PyObject *value)
{
    const char *name;
    if (!ext_text(value, &name)) {
        return NULL;
    }
    sv_error err;
    ext_error_clear(&err);
    int code = sv_name_check(name, &err);
    if (code != 0) {
        return ext_raise(PyModule_GetState(module), code, &err);
    }
    Py_RETURN_NONE;
}

static PyObject *
module_remove(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"name", "directory", NULL};
    const char *name;
    PyObject *directory = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O&|O&:remove", names, ext_text, &name,
                                     ext_path_or_none, &directory)) {
        return NULL;
    }
    sv_error err;
    ext_error_clear(&err);
    const char *where = directory != NULL ? PyBytes_AsString(directory) : NULL;
    int code;
    Py_BEGIN_ALLOW_THREADS code = sv_segment_remove(name, where, &err);
    Py_END_ALLOW_THREADS Py_XDECREF(directory);
    if (code != 0) {
        return ext_raise(PyModule_GetState(module), code, &err);
    }
    Py_RETURN_NONE;
}

static PyObject *
module_remove_exact(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"name", "inode", "generation", "directory", NULL};
    const char *name;
    uint64_t inode;
    const char *generation;
    PyObject *directory = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O&O&O&|O&:remove_exact", names, ext_text, &name,
                                     ext_uint64, &inode, ext_text, &generation, ext_path_or_none,
                                     &directory)) {
        return NULL;
    }
    sv_error err;
    ext_error_clear(&err);
    const char *where = directory != NULL ? PyBytes_AsString(directory) : NULL;
    int code;
    /* It may wait for another process that makes a segment. */
    Py_BEGIN_ALLOW_THREADS code = sv_segment_remove_exact(name, where, inode, generation, &err);
    Py_END_ALLOW_THREADS Py_XDECREF(directory);
    if (code != 0) {
        return ext_raise(PyModule_GetState(module), code, &err);
    }
    Py_RETURN_NONE;
}

/* ---- owners -------------------------------------------------------------------------------- */

static PyObject *
module_probe_owner(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"name", "lock_dir", NULL};
    const char *name;
    PyObject *lock_dir = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O&|O&:probe_owner", names, ext_text, &name,
                                     ext_path_or_none, &lock_dir)) {
        return NULL;
    }
    sv_error err;
    ext_error_clear(&err);
    char generation[SV_GENERATION_BYTES] = "";
    int32_t pid = 0;
    int found = sv_owner_probe(name, lock_dir != NULL ? PyBytes_AsString(lock_dir) : NULL,
                               generation, &pid, &err);
    Py_XDECREF(lock_dir);
    if (found < 0) {
        return ext_raise(PyModule_GetState(module), found, &err);
    }
    return Py_BuildValue("(NNi)", PyBool_FromLong(found), PyUnicode_DecodeFSDefault(generation),
                         (int)pid);
}

static PyObject *
module_read_ready(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"name", "lock_dir", NULL};
    const char *name;
    PyObject *lock_dir = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O&|O&:read_ready", names, ext_text, &name,
                                     ext_path_or_none, &lock_dir)) {
        return NULL;
    }
    sv_error err;
    ext_error_clear(&err);
    char generation[SV_GENERATION_BYTES] = "";
    int code =
        sv_ready_read(name, lock_dir != NULL ? PyBytes_AsString(lock_dir) : NULL, generation, &err);
    Py_XDECREF(lock_dir);
    return code != 0 ? ext_raise(PyModule_GetState(module), code, &err)
                     : PyUnicode_DecodeFSDefault(generation);
}

/* ---- list ---------------------------------------------------------------------------------- */

int
ext_walk_add(ext_walk *walk, PyObject *entry)
{
    int failed = PyErr_Occurred() != NULL || PyList_Append(walk->list, entry) < 0;
    Py_XDECREF(entry);
    walk->thread = PyEval_SaveThread();
    return failed;
}

static PyObject *
list_describe(const sv_listed *item)
{
    return Py_BuildValue("{sNsNsKsNsNsNsisNsNsIsK}", "name", PyUnicode_DecodeFSDefault(item->name),
                         "generation", PyUnicode_DecodeFSDefault(item->generation), "bytes",
                         (unsigned long long)item->bytes, "owned",
                         PyBool_FromLong(item->owned != 0), "block",
                         PyBool_FromLong(item->block != 0), "owner_live",
                         PyBool_FromLong(item->owner_live != 0), "owner_pid", (int)item->owner_pid,
                         "owner_command", PyUnicode_DecodeFSDefault(item->owner_command),
                         "attached", PyBool_FromLong(item->attached != 0), "uid",
                         (unsigned int)item->uid, "inode", (unsigned long long)item->inode);
}

static int
list_add(const sv_listed *item, void *context)
{
    ext_walk *walk = context;
    PyEval_RestoreThread(walk->thread);
    return ext_walk_add(walk, list_describe(item));
}

static PyObject *
module_list_segments(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"directory", NULL};
    PyObject *directory = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O&:list_segments", names, ext_path_or_none,
                                     &directory)) {
        return NULL;
    }
    PyObject *list = PyList_New(0);
    if (list != NULL) {
        sv_error err;
        ext_error_clear(&err);
        const char *where = directory != NULL ? PyBytes_AsString(directory) : NULL;
        ext_walk walk = {list, PyEval_SaveThread()};
        int code = sv_list(where, list_add, &walk, &err);
        PyEval_RestoreThread(walk.thread);
        if (code < 0 && !PyErr_Occurred()) {
            ext_raise(PyModule_GetState(module), code, &err);
        }
        if (code != 0) {
            Py_CLEAR(list);
        }
    }
    Py_XDECREF(directory);
    return list;
}

static PyObject *
module_look(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"name", "directory", NULL};
    const char *name;
    PyObject *directory = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O&|O&:look", names, ext_text, &name,
                                     ext_path_or_none, &directory)) {
        return NULL;
    }
    sv_error err;
    ext_error_clear(&err);
    sv_listed item;
    const char *where = directory != NULL ? PyBytes_AsString(directory) : NULL;
    int code;
    Py_BEGIN_ALLOW_THREADS code = sv_look(name, where, &item, &err);
    Py_END_ALLOW_THREADS Py_XDECREF(directory);
    return code != 0 ? ext_raise(PyModule_GetState(module), code, &err) : list_describe(&item);
}

/* ---- copy ---------------------------------------------------------------------------------- */

static int
copy_check(PyArrayObject *destination, PyArrayObject *source)
{
    if (PyArray_FailUnlessWriteable(destination, "destination") < 0) {
        return -1;
    }
    if (PyDataType_REFCHK(PyArray_DESCR(destination)) || PyDataType_REFCHK(PyArray_DESCR(source))) {
        PyErr_SetString(PyExc_ValueError, "arrays of objects cannot be copied as bytes");
        return -1;
    }
    if (!PyArray_IS_C_CONTIGUOUS(destination) || !PyArray_IS_C_CONTIGUOUS(source)) {
        PyErr_SetString(PyExc_ValueError, "copy() needs C-contiguous arrays");
        return -1;
    }
    if (PyArray_NBYTES(destination) != PyArray_NBYTES(source)) {
        PyErr_Format(PyExc_ValueError, "destination has %zd bytes, source %zd",
                     (Py_ssize_t)PyArray_NBYTES(destination), (Py_ssize_t)PyArray_NBYTES(source));
        return -1;
    }
    const char *start = PyArray_BYTES(destination);
    const char *other = PyArray_BYTES(source);
    Py_ssize_t bytes = (Py_ssize_t)PyArray_NBYTES(source);
    if (start < other + bytes && other < start + bytes) {
        PyErr_SetString(PyExc_ValueError, "copy() needs arrays that do not overlap");
        return -1;
    }
    return 0;
}

static PyObject *
module_copy(PyObject *Py_UNUSED(module), PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"destination", "source", "threads", NULL};
    PyArrayObject *destination;
    PyArrayObject *source;
    uint32_t threads = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!|O&:copy", names, &PyArray_Type,
                                     &destination, &PyArray_Type, &source, ext_uint32, &threads) ||
        copy_check(destination, source) < 0) {
        return NULL;
    }
    size_t bytes = (size_t)PyArray_NBYTES(source);
    if (bytes < EXT_RELEASE_BYTES) {
        sv_copy(PyArray_DATA(destination), PyArray_DATA(source), bytes, 1);
    } else {
        Py_BEGIN_ALLOW_THREADS sv_copy(PyArray_DATA(destination), PyArray_DATA(source), bytes,
                                       threads);
        Py_END_ALLOW_THREADS
    }
    Py_RETURN_NONE;
}

/* ---- module -------------------------------------------------------------------------------- */

#define KEYWORDS (METH_VARARGS | METH_KEYWORDS)

static PyMethodDef module_methods[] = {
    {"check_name", module_check_name, METH_O,
     "check_name($module, name, /)\n--\n\nValueError when a segment cannot have this name, and "
     "why."},
    {"remove", EXT_FAST(module_remove), KEYWORDS,
     "remove($module, /, name, directory=None)\n--\n\n"
     "Unlink a segment's name; those attached keep their data. A missing name is no error."},
    {"remove_exact", EXT_FAST(module_remove_exact), KEYWORDS,
     "remove_exact($module, /, name, inode, generation, directory=None)\n--\n\n"
     "Unlink the name only while it names this very segment, else FileNotFoundError."},
    {"probe_owner", EXT_FAST(module_probe_owner), KEYWORDS,
     "probe_owner($module, /, name, lock_dir=None)\n--\n\n"
     "Return (has an owner, generation, pid) of a pool; '' and 0 when unknown."},
    {"read_ready", EXT_FAST(module_read_ready), KEYWORDS,
     "read_ready($module, /, name, lock_dir=None)\n--\n\n"
     "Return the generation in a pool's ready marker. FileNotFoundError, FormatError."},
    {"list_segments", EXT_FAST(module_list_segments), KEYWORDS,
     "list_segments($module, /, directory=None)\n--\n\n"
     "Describe the segments in a directory: list of dicts with name, generation, bytes (memory\n"
     "taken now), owned, block, owner_live, owner_pid (0: unknown), owner_command, attached, uid,\n"
     "inode."},
    {"look", EXT_FAST(module_look), KEYWORDS,
     "look($module, /, name, directory=None)\n--\n\n"
     "Describe one segment, as list_segments(). FileNotFoundError, FormatError."},
    {"block_name", module_block_name, METH_O,
     "block_name($module, prefix, /)\n--\n\nDraw a name for a block: sv-<uid>-<prefix>-<random>."},
    {"sweep", EXT_FAST(module_sweep), KEYWORDS,
     "sweep($module, /, directory=None, lock_dir=None, prefix=None, dry_run=False)\n--\n\n"
     "Remove blocks and pools of dead owners: list of dicts with name, bytes, block."},
    {"memory_free", module_memory_free, METH_NOARGS,
     "memory_free($module, /)\n--\n\n"
     "Return the bytes that machine and control groups still have (None: unknown), whose limit "
     "that\n"
     "is, and the bytes that the control groups allow (None: no limit)."},
    {"guard_signals", module_guard_signals, METH_NOARGS,
     "guard_signals($module, /)\n--\n\n"
     "Remove this process's blocks before SIGTERM or SIGHUP end it, where nobody handles them."},
    {"guard_file_maps", module_guard_file_maps, METH_NOARGS,
     "guard_file_maps($module, /)\n--\n\n"
     "Let this process outlive the loss of what map_file() gives: a handler for SIGBUS."},
    {"map_file", module_map_file, METH_VARARGS,
     "map_file($module, fd, offset, size, /)\n--\n\n"
     "Return a FileMap of part of an open file; None when it is better read.\n\n"
     "That is when the page cache does not have it, the process has no guard, or the system gives\n"
     "no map. ValueError for an offset below 0 or a size below 1."},
    {"copy", EXT_FAST(module_copy), KEYWORDS,
     "copy($module, /, destination, source, threads=0)\n--\n\n"
     "Copy the bytes of one C-contiguous array to another, where large with several threads (0:\n"
     "chosen). The copy stays in the cache, for the caller who reads it next.\n\n"
     "ValueError when sizes differ or the arrays overlap."},
    {"move", EXT_FAST(module_move), KEYWORDS,
     "move($module, /, destination, source, threads=1)\n--\n\n"
     "Copy a strided array into another of the same shape, in one pass.\n\n"
     "Any strides, any dtype; native integers and floats are converted: to integers clipped, cut\n"
     "towards zero, NaN to 0; to floats as astype() does. Large arrays are moved without the GIL,\n"
     "on up to `threads` threads (0: chosen). TypeError for dtypes that differ and are not\n"
     "converted, ValueError when shapes differ, destination is read-only or its elements overlap\n"
     "each other or the source's. Nothing is written on failure."},
    {NULL, NULL, 0, NULL},
};

static int
module_add_constants(PyObject *module)
{
    static const struct {
        const char *name;
        long value;
    } numbers[] = {
        {"MAX_NDIM", SV_MAX_NDIM},
        {"MAX_META", SV_MAX_META},
        {"MAX_NAME_BYTES", SV_MAX_NAME_BYTES},
        {"DTYPE_BYTES", SV_DTYPE_BYTES},
        {"RETIRED_NO", SV_RETIRED_NO},
        {"RETIRED_CLOSED", SV_RETIRED_CLOSED},
        {"RETIRED_OWNER_DIED", SV_RETIRED_OWNER_DIED},
        {"RETIRED_PRODUCER", SV_RETIRED_PRODUCER},
        {"COUNTER_SOURCE", SV_COUNTER_SOURCE},
        {"COUNTER_LOADS", SV_COUNTER_LOADS},
        {"COUNTER_ERRORS", SV_COUNTER_ERRORS},
        {"COUNTER_CURSOR", SV_COUNTER_CURSOR},
        {"COUNTER_EMPTY", SV_COUNTER_EMPTY},
        {"COUNTER_RESTARTS", SV_COUNTER_RESTARTS},
        {"COUNTER_IDLE", SV_COUNTER_IDLE},
        {"COUNTER_DIRECT", SV_COUNTER_DIRECT},
        {"COUNTER_ZARR", SV_COUNTER_ZARR},
        {"COUNTER_TENSORSTORE", SV_COUNTER_TENSORSTORE},
        {"COUNTER_MISSING", SV_COUNTER_MISSING},
        {"COUNTER_HELD_MS", SV_COUNTER_HELD_MS},
    };
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        if (PyModule_AddIntConstant(module, numbers[i].name, numbers[i].value) < 0) {
            return -1;
        }
    }
    PyObject *format = Py_BuildValue("(ii)", SV_FORMAT_MAJOR, SV_FORMAT_MINOR);
    int failed = format == NULL || PyModule_AddObjectRef(module, "FORMAT_VERSION", format) < 0;
    Py_XDECREF(format);
    return failed ? -1 : PyModule_AddStringConstant(module, "__version__", sv_version());
}

#define MODULE_LOOK_NS UINT64_C(50000000)

/* Has the handler of a signal raised? Asked by the core while it waits, and looked at every 50 ms, as
 * other threads may be slow to give the GIL away. */
static int
module_interrupted(void)
{
    static _Thread_local uint64_t looked_ns;
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    uint64_t now_ns = (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
    if (now_ns - looked_ns < MODULE_LOOK_NS) {
        return 0;
    }
    looked_ns = now_ns;
    PyGILState_STATE gil = PyGILState_Ensure();
    int raised = PyErr_Occurred() != NULL || PyErr_CheckSignals() < 0;
    PyGILState_Release(gil);
    return raised;
}

static int
module_exec(PyObject *module)
{
    sv_interrupts(module_interrupted);
    /* The table of NumPy's functions, one per process. */
    if (_import_array() < 0) {
        return -1;
    }
    ext_state *state = PyModule_GetState(module);
    return ext_errors_init(module, state) < 0 || ext_view_init(module, state) < 0 ||
                   ext_reservation_init(module, state) < 0 || ext_block_init(module, state) < 0 ||
                   ext_segment_init(module, state) < 0 || ext_owner_init(module, state) < 0 ||
                   ext_file_map_init(module, state) < 0 || module_add_constants(module) < 0
               ? -1
               : 0;
}

static int
module_traverse(PyObject *module, visitproc visit, void *arg)
{
    ext_state *state = PyModule_GetState(module);
    if (state == NULL) {
        return 0;
    }
#define MODULE_VISIT(name, first, second, doc) Py_VISIT(state->name);
    EXT_CLASS_TABLE(MODULE_VISIT)
#undef MODULE_VISIT
    Py_VISIT(state->segment_type);
    Py_VISIT(state->view_type);
    Py_VISIT(state->reservation_type);
    Py_VISIT(state->buffer_type);
    Py_VISIT(state->memory_type);
    Py_VISIT(state->owner_type);
    Py_VISIT(state->file_map_type);
    return 0;
}

static int
module_clear(PyObject *module)
{
    ext_state *state = PyModule_GetState(module);
    if (state == NULL) {
        return 0;
    }
#define MODULE_CLEAR(name, first, second, doc) Py_CLEAR(state->name);
    EXT_CLASS_TABLE(MODULE_CLEAR)
#undef MODULE_CLEAR
    Py_CLEAR(state->segment_type);
    Py_CLEAR(state->view_type);
    Py_CLEAR(state->reservation_type);
    Py_CLEAR(state->buffer_type);
    Py_CLEAR(state->memory_type);
    Py_CLEAR(state->owner_type);
    Py_CLEAR(state->file_map_type);
    return 0;
}

static void
module_free(void *module)
{
    (void)module_clear(module);
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
#if !defined(Py_LIMITED_API) && PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
#ifdef Py_GIL_DISABLED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

struct PyModuleDef ext_module = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "sharedvector._core",
    .m_doc = "C nouns and verbs of sharedvector; no policy. See sharedvector.h.",
    .m_size = sizeof(ext_state),
    .m_methods = module_methods,
    .m_slots = module_slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
    .m_free = module_free,
};

PyMODINIT_FUNC PyInit__core(void);

PyMODINIT_FUNC
PyInit__core(void)
{
    return PyModuleDef_Init(&ext_module);
}
