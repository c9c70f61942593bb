/*
 * The error codes of sharedvector: one row per reaction that a caller can have.
 *
 * X(symbol, value, text, python_class)
 *
 * `text` is what sv_error_text() returns when there is no message of its own. `python_class` is the
 * name of the exception that the Python package raises; classes that are not built in are defined
 * by the extension. The table is the only place where codes, texts and classes meet.
 */
#ifndef SHAREDVECTOR_ERROR_TABLE_H
#define SHAREDVECTOR_ERROR_TABLE_H

/* clang-format off */
#define SV_ERROR_TABLE(X)                                                                          \
    X(SV_EINVAL,       -1, "invalid argument",                                  ValueError)        \
    X(SV_EINDEX,       -2, "slot index out of range",                           IndexError)        \
    X(SV_EMISMATCH,    -3, "the segment was made with other settings",          ValueError)        \
    X(SV_ENOENT,       -4, "no such segment",                                   FileNotFoundError) \
    X(SV_EEXIST,       -5, "the name is taken",                                 FileExistsError)   \
    X(SV_EFORMAT,      -6, "not a usable segment",                              FormatError)       \
    X(SV_ETOOBIG,      -7, "the chunk is larger than chunk_size",               MemoryError)       \
    X(SV_EFULL,        -8, "no slot is left",                                   OutOfMemoryError)  \
    X(SV_EINUSE,       -9, "in use by a view",                                  InUseError)        \
    X(SV_EROWS,       -10, "every row of the segment is taken",                 InUseError)        \
    X(SV_EMODIFIED,   -11, "the slot changed faster than it could be pinned",   DataModifiedError) \
    X(SV_ESTALLED,    -12, "the pool has no live owner",                        PoolStalledError)  \
    X(SV_EBUSY,       -13, "another process owns the pool",                     PoolBusyError)     \
    X(SV_ETIMEDOUT,   -14, "not done within the time limit",                    TimeoutError)      \
    X(SV_ECLOSED,     -15, "the handle is closed",                              ValueError)        \
    X(SV_EFORKED,     -16, "belongs to the process before the fork",            RuntimeError)      \
    X(SV_EUNSUPPORTED,-17, "this kernel or sandbox lacks what the pool needs",  OSError)           \
    X(SV_ESYS,        -18, "a system call failed",                              OSError)           \
    X(SV_ENOMEM,      -19, "this process is out of memory",                     MemoryError)       \
    X(SV_ETYPE,       -20, "there is no conversion between these types",        TypeError)
/* clang-format on */

#endif
