/* What gather() was asked for, as plain numbers. */
#ifndef SHAREDVECTOR_GATHER_H
#define SHAREDVECTOR_GATHER_H

#include "ext.h"

#define GATHER_NO_FLIP (-2)
#define GATHER_FLIP_FIRST (-1)

typedef struct {
    SegmentObject *self;
    sv_segment *handle;
    PyArrayObject *out;   /* given by the caller, borrowed; or NULL */
    PyArray_Descr *descr; /* of the output */
    Py_ssize_t count;
    uint32_t *slots;
    uint64_t *origins;
    double *fractions;
    uint32_t *flips;
    double (*meta)[SV_MAX_META];
    uint32_t *meta_counts;
    int crops;
    int flip_axes; /* GATHER_NO_FLIP, GATHER_FLIP_FIRST, or the axes that `flips` speaks of */
    sv_scale scale;
    sv_gather_options how;
} gather_call;

/* Order of the arguments. */
enum {
    GATHER_INDICES,
    GATHER_OUT,
    GATHER_CROP,
    GATHER_DTYPE,
    GATHER_SCALE,
    GATHER_OFFSET,
    GATHER_FLIP,
    GATHER_ARGUMENTS
};

/* Read all arguments but `out` into a call whose `self` and `handle` are set. 0, or -1 with an
 * exception; the call is to be cleared in both cases. */
int gather_read(gather_call *call, PyObject *const values[GATHER_ARGUMENTS]);

/* Room for metadata. 0, or -1 with MemoryError. */
int gather_read_meta(gather_call *call);

/* Do the flips fit the number of axes, which a crop or the chunks have told? -1 with ValueError. */
int gather_check_flip(const gather_call *call);

void gather_clear(gather_call *call);

#endif
