/*
 * Exceptions: error_table.h decides which class a code becomes, EXT_CLASS_TABLE makes our own.
 */
#include "ext.h"

#include <errno.h>

static PyObject *
errors_class_new(const char *name, const char *doc, PyObject *first, PyObject *second)
{
    PyObject *bases = second != NULL ? PyTuple_Pack(2, first, second) : PyTuple_Pack(1, first);
    if (bases == NULL) {
        return NULL;
    }
    PyObject *made = PyErr_NewExceptionWithDoc(name, doc, bases, NULL);
    Py_DECREF(bases);
    return made;
}

int
ext_errors_init(PyObject *module, ext_state *state)
{
#define EXT_CLASS_MAKE(name, first, second, doc)                                                   \
    state->name = errors_class_new("sharedvector." #name, doc, first, second);                     \
    if (state->name == NULL || PyModule_AddObjectRef(module, #name, state->name) < 0) {            \
        return -1;                                                                                 \
    }
    EXT_CLASS_TABLE(EXT_CLASS_MAKE)
#undef EXT_CLASS_MAKE
    return 0;
}

/* One name per class that error_table.h mentions. */
#define CLASS_ValueError PyExc_ValueError
#define CLASS_TypeError PyExc_TypeError
#define CLASS_IndexError PyExc_IndexError
#define CLASS_RuntimeError PyExc_RuntimeError
#define CLASS_TimeoutError PyExc_TimeoutError
#define CLASS_OSError PyExc_OSError
#define CLASS_FileNotFoundError PyExc_FileNotFoundError
#define CLASS_FileExistsError PyExc_FileExistsError
#define CLASS_MemoryError state->MemoryError
#define CLASS_OutOfMemoryError state->OutOfMemoryError
#define CLASS_InUseError state->InUseError
#define CLASS_DataModifiedError state->DataModifiedError
#define CLASS_FormatError state->FormatError
#define CLASS_PoolStalledError state->PoolStalledError
#define CLASS_PoolBusyError state->PoolBusyError

static PyObject *
errors_class_of(const ext_state *state, int code)
{
    switch (code) {
#define ERRORS_CASE(symbol, value, text, python_class)                                             \
    case symbol:                                                                                   \
        return CLASS_##python_class;
        SV_ERROR_TABLE(ERRORS_CASE)
#undef ERRORS_CASE
    default:
        return PyExc_SystemError;
    }
}

/* The errno that an OSError of this code carries, or 0: the class takes a message alone. */
static int
errors_errno_of(int code, const sv_error *err)
{
    int found = err != NULL ? err->sys_errno : 0;
    switch (code) {
    case SV_ENOENT:
        return ENOENT;
    case SV_EEXIST:
        return EEXIST;
    case SV_EUNSUPPORTED:
        return found != 0 ? found : EOPNOTSUPP;
    case SV_ESYS:
        return found != 0 ? found : EIO;
    default:
        return 0;
    }
}

PyObject *
ext_raise(ext_state *state, int code, const sv_error *err)
{
    if (PyErr_Occurred() != NULL) {
        return NULL; /* a signal's handler raised it, which ended the call */
    }
    const char *message =
        err != NULL && err->message[0] != '\0' ? err->message : sv_error_text(code);
    PyObject *class = errors_class_of(state, code);
    int number = errors_errno_of(code, err);
    /* Names that are not valid UTF-8 may be quoted in messages. */
    PyObject *text = PyUnicode_DecodeFSDefault(message);
    if (text == NULL) {
        return NULL;
    }
    if (number == 0) {
        PyErr_SetObject(class, text);
    } else {
        /* OSError itself picks the subclass that belongs to the number. */
        PyObject *value = PyObject_CallFunction(class, "iO", number, text);
        if (value != NULL) {
            PyErr_SetObject((PyObject *)Py_TYPE(value), value);
            Py_DECREF(value);
        }
    }
    Py_DECREF(text);
    return NULL;
}
