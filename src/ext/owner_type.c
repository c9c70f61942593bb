/*
 * Owner: the lock that makes this process the owner of a pool, and its ready marker.
 */
#include "ext.h"

typedef struct {
    PyObject_HEAD sv_owner *owner; /* NULL: never acquired, or released */
    ext_state *state;
    PyObject *generation; /* str */
} OwnerObject;

static PyObject *
owner_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    ext_state *state = ext_state_of_type(type);
    if (state == NULL) {
        return NULL;
    }
    OwnerObject *self = PyObject_New(OwnerObject, type);
    if (self != NULL) {
        self->owner = NULL;
        self->state = state;
        self->generation = NULL;
    }
    return (PyObject *)self;
}

static int
owner_take(OwnerObject *self, const char *name, const char *lock_dir, const char *generation,
           int fd)
{
    sv_error err;
    ext_error_clear(&err);
    sv_owner *owner = NULL;
    int code;
    Py_BEGIN_ALLOW_THREADS code =
        fd < 0 ? sv_owner_acquire(name, lock_dir, generation, &owner, &err)
               : sv_owner_adopt(name, lock_dir, fd, generation, &owner, &err);
    Py_END_ALLOW_THREADS if (code != 0)
    {
        ext_raise(self->state, code, &err);
        return -1;
    }
    if (self->owner != NULL) {
        sv_owner_release(owner);
        PyErr_SetString(PyExc_ValueError, "the owner lock is held already");
        return -1;
    }
    self->owner = owner;
    Py_XDECREF(self->generation);
    self->generation = PyUnicode_DecodeFSDefault(sv_owner_generation(owner));
    return self->generation != NULL ? 0 : -1;
}

static int
owner_init(PyObject *op, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"name", "lock_dir", "generation", "fd", NULL};
    OwnerObject *self = (OwnerObject *)op;
    const char *name;
    PyObject *lock_dir = NULL;
    const char *generation = NULL;
    PyObject *descriptor = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O&|O&O&$O:Owner", names, ext_text, &name,
                                     ext_path_or_none, &lock_dir, ext_text_or_none, &generation,
                                     &descriptor)) {
        return -1;
    }
    int64_t fd = -1;
    int failed = descriptor != Py_None && ext_number(descriptor, "fd", &fd) < 0;
    if (!failed && descriptor != Py_None && (fd < 0 || fd > INT32_MAX)) {
        PyErr_Format(PyExc_ValueError, "fd must be an open descriptor, found %R", descriptor);
        failed = 1;
    }
    if (!failed) {
        failed = owner_take(self, name, lock_dir != NULL ? PyBytes_AsString(lock_dir) : NULL,
                            generation, (int)fd) < 0;
    }
    Py_XDECREF(lock_dir);
    return failed ? -1 : 0;
}

static void
owner_dealloc(PyObject *op)
{
    OwnerObject *self = (OwnerObject *)op;
    if (self->owner != NULL) {
        sv_owner_release(self->owner);
    }
    Py_XDECREF(self->generation);
    ext_free(op);
}

static PyObject *
owner_held(PyObject *op, void *Py_UNUSED(closure))
{
    OwnerObject *self = (OwnerObject *)op;
    return PyBool_FromLong(self->owner != NULL && sv_owner_held(self->owner));
}

static PyObject *
owner_generation(PyObject *op, void *Py_UNUSED(closure))
{
    OwnerObject *self = (OwnerObject *)op;
    if (self->generation == NULL) {
        PyErr_SetString(PyExc_ValueError, "the owner lock was never acquired");
        return NULL;
    }
    return Py_NewRef(self->generation);
}

static PyObject *
owner_call(PyObject *op, int (*call)(sv_owner *owner, sv_error *err))
{
    OwnerObject *self = (OwnerObject *)op;
    if (self->owner == NULL) {
        PyErr_SetString(PyExc_ValueError, "the owner lock is released");
        return NULL;
    }
    sv_error err;
    ext_error_clear(&err);
    int code = call(self->owner, &err);
    if (code != 0) {
        return ext_raise(self->state, code, &err);
    }
    Py_RETURN_NONE;
}

static PyObject *
owner_write_ready(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    return owner_call(op, sv_ready_write);
}

static PyObject *
owner_clear_ready(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    return owner_call(op, sv_ready_clear);
}

static PyObject *
owner_release(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    OwnerObject *self = (OwnerObject *)op;
    sv_owner *owner = NULL;
    EXT_BEGIN_LOCKED(op)
    owner = self->owner;
    self->owner = NULL;
    EXT_END_LOCKED()
    if (owner != NULL) {
        sv_owner_release(owner);
    }
    Py_RETURN_NONE;
}

static PyMethodDef owner_methods[] = {
    {"write_ready", owner_write_ready, METH_NOARGS,
     "write_ready($self, /)\n--\n\n"
     "Write the ready marker with this generation. RuntimeError in a forked child, OSError."},
    {"clear_ready", owner_clear_ready, METH_NOARGS,
     "clear_ready($self, /)\n--\n\nRemove the ready marker; a missing one is no error."},
    {"release", owner_release, METH_NOARGS,
     "release($self, /)\n--\n\n"
     "Remove the lock file and give the lock up; a second call does nothing. In a forked child "
     "the\n"
     "parent keeps both."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef owner_getset[] = {
    {"held", owner_held, NULL, "Does this process hold the lock? False in a forked child.", NULL},
    {"generation", owner_generation, NULL, "Token of this reign; also after release().", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyDoc_STRVAR(
    owner_doc,
    "Owner(name, lock_dir=None, generation=None, *, fd=None)\n--\n\n"
    "The lock that makes this process the owner of a pool.\n\n"
    "Held until release(), garbage collection or the end of the process, whatever ends it.\n"
    "fd adopts a descriptor of the lock file that is flock-ed already, and closes it.\n"
    "PoolBusyError when another process is the owner; ValueError for a bad name; OSError.");

static PyType_Slot owner_slots[] = {
    {Py_tp_doc, (void *)owner_doc},
    {Py_tp_new, owner_new},
    {Py_tp_init, owner_init},
    {Py_tp_dealloc, owner_dealloc},
    {Py_tp_methods, owner_methods},
    {Py_tp_getset, owner_getset},
    {0, NULL},
};

static PyType_Spec owner_spec = {
    .name = "sharedvector._core.Owner",
    .basicsize = sizeof(OwnerObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = owner_slots,
};

int
ext_owner_init(PyObject *module, ext_state *state)
{
    state->owner_type = ext_type_add(module, &owner_spec, "Owner");
    return state->owner_type != NULL ? 0 : -1;
}
