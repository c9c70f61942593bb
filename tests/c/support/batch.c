#include "batch.h"

#include <string.h>

int
batch_gather(sv_segment *segment, const uint32_t *slots, size_t count, void *out,
             uint64_t stride_bytes, uint32_t threads, sv_error *err)
{
    sv_gather_options how;
    sv_view view;
    sv_gather_options_init(&how);
    how.threads = threads;
    if (count > 0) {
        int status = sv_pin_quiet(segment, slots[0], &view);
        if (status != 0) {
            return status;
        }
        how.ndim = view.ndim;
        memcpy(how.shape, view.shape, view.ndim * sizeof view.shape[0]);
        sv_unpin(&view);
    }
    return sv_gather(segment, slots, count, &how, out, stride_bytes, err);
}
