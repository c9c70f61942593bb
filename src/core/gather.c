/*
 * Gathering chunks into one block: each is pinned, moved part by part, and unpinned, by the threads
 * of the call together. A chunk is judged when it is pinned; what is moved is what was judged.
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "array.h"
#include "copy.h"
#include "error.h"
#include "fork.h"
#include "move.h"
#include "parallel.h"
#include "pin.h"

/* No fork can happen during a round: this bounds how long one has to wait. */
#define GATHER_ROUND_BYTES (UINT64_C(64) << 20)
#define GATHER_THREAD_BYTES (UINT64_C(2) << 20) /* at least so much for each further thread */
#define GATHER_PART_BYTES (UINT64_C(4) << 20)

/* A chunk that is being moved. The next one is begun when all parts of the one before are given out:
 * no more chunks are open than there are threads, and a failure leaves none half-way. */
typedef struct gather_open {
    sv_view view;
    svi_move move;
    uint64_t left; /* parts that are not done; 0: this place is free */
} gather_open;

typedef struct gather_work {
    sv_segment *segment;
    const char *name;
    const sv_gather_options *how;
    const uint32_t *slots;
    size_t count;
    unsigned char *out;
    uint64_t stride_bytes;
    sv_strided item; /* one item of the output */
    uint32_t itemsize;
    bool stream;
    size_t end;     /* of this round */
    uint64_t parts; /* of each item */
    /* ---- under the mutex */
    pthread_mutex_t mutex;
    size_t next_item;
    uint64_t next_part;
    gather_open *last; /* the item whose parts are given out */
    gather_open open[SVI_THREADS_MAX];
    int status;
    sv_error *err;
} gather_work;

/* ---- one item ------------------------------------------------------------------------------ */

typedef struct gather_text {
    char text[SV_MAX_NDIM * 22];
} gather_text;

static const char *
gather_show(gather_text *out, const uint64_t *shape, uint32_t ndim)
{
    size_t at = 0;
    out->text[0] = '\0';
    for (uint32_t i = 0; i < ndim; i++) {
        at += (size_t)snprintf(out->text + at, sizeof out->text - at, i == 0 ? "%llu" : " x %llu",
                               (unsigned long long)shape[i]);
    }
    return ndim == 0 ? "no dimensions" : out->text;
}

static bool
gather_crops(const gather_work *work)
{
    return work->how->origins != NULL || work->how->fractions != NULL;
}

static int
gather_check_view(gather_work *work, size_t item, const sv_view *view)
{
    const sv_gather_options *how = work->how;
    gather_text found, wanted;
    bool fits = view->ndim == how->ndim && view->itemsize == work->itemsize;
    for (uint32_t i = 0; fits && i < how->ndim; i++) {
        fits =
            gather_crops(work) ? view->shape[i] >= how->shape[i] : view->shape[i] == how->shape[i];
    }
    if (!fits) {
        return svi_fail(work->err, SV_EINVAL, 0, "gather",
                        "item %zu, slot %u of '%s': the chunk is %s, elements of %u bytes; the %s "
                        "%s, elements of %u",
                        item, view->slot, work->name, gather_show(&found, view->shape, view->ndim),
                        view->itemsize, gather_crops(work) ? "crop takes" : "batch takes",
                        gather_show(&wanted, how->shape, how->ndim), work->itemsize);
    }
    const unsigned char *data = view->data;
    if (data < work->out + (item + 1) * work->stride_bytes && work->out < data + view->size_bytes) {
        return svi_fail(work->err, SV_EINVAL, 0, "gather",
                        "item %zu, slot %u of '%s': the output overlaps the chunk", item,
                        view->slot, work->name);
    }
    return 0;
}

/* Where the crop of an item begins on one axis; `room` is the largest possible origin. */
static int
gather_origin(gather_work *work, size_t item, uint32_t axis, uint64_t room, uint64_t *out)
{
    const sv_gather_options *how = work->how;
    size_t at = item * how->ndim + axis;
    if (how->fractions != NULL) {
        double fraction = how->fractions[at];
        if (!(fraction >= 0.0 && fraction < 1.0)) {
            return svi_fail(work->err, SV_EINVAL, 0, "gather",
                            "item %zu, axis %u: the crop's fraction is %g, wanted 0 <= u < 1", item,
                            axis, fraction);
        }
        uint64_t origin = (uint64_t)(fraction * (double)(room + 1));
        *out = origin < room ? origin : room; /* the product may be rounded up */
        return 0;
    }
    *out = how->origins[at];
    if (*out > room) {
        return svi_fail(work->err, SV_EINVAL, 0, "gather",
                        "item %zu, slot %u of '%s', axis %u: the crop begins at %llu, at most %llu "
                        "leaves room for its length of %llu",
                        item, work->slots[item], work->name, axis, (unsigned long long)*out,
                        (unsigned long long)room, (unsigned long long)how->shape[axis]);
    }
    return 0;
}

/* The part of a pinned chunk that goes into the output, mirrored where asked for. */
static int
gather_source(gather_work *work, size_t item, const sv_view *view, sv_strided *from)
{
    const sv_gather_options *how = work->how;
    unsigned char *data = (unsigned char *)(uintptr_t)view->data; /* only read */
    uint32_t flips = how->flips != NULL ? how->flips[item] : 0;
    int64_t stride = view->itemsize;
    for (uint32_t i = how->ndim; i-- > 0;) {
        uint64_t origin = 0;
        if (gather_crops(work)) {
            int status = gather_origin(work, item, i, view->shape[i] - how->shape[i], &origin);
            if (status != 0) {
                return status;
            }
        }
        bool mirror = (flips >> i & 1) != 0 && how->shape[i] != 0;
        data += (int64_t)(origin + (mirror ? how->shape[i] - 1 : 0)) * stride;
        from->shape[i] = how->shape[i];
        from->strides[i] = mirror ? -stride : stride;
        stride *= (int64_t)view->shape[i];
    }
    from->data = data;
    from->type = how->type;
    from->itemsize = view->itemsize;
    from->ndim = how->ndim;
    return 0;
}

/* Pin the next item's chunk and plan its move. On failure nothing stays pinned. */
static int
gather_begin_item(gather_work *work, size_t item, gather_open *open)
{
    const sv_gather_options *how = work->how;
    sv_view *view = &open->view;
    uint32_t slot = work->slots[item];
    int status = sv_pin(work->segment, slot, view);
    if (status != 0) {
        return svi_fail(work->err, status, 0, "gather", "item %zu, slot %u of '%s': %s", item, slot,
                        work->name, sv_error_text(status));
    }
    sv_strided from;
    sv_strided to = work->item;
    to.data = work->out + item * work->stride_bytes;
    if ((status = gather_check_view(work, item, view)) != 0 ||
        (status = gather_source(work, item, view, &from)) != 0 ||
        (status = svi_move_plan(&to, &from, how->scale, &open->move, work->err)) != 0) {
        sv_unpin(view);
        return status;
    }
    svi_move_set_stream(&open->move, work->stream);
    if (how->meta != NULL) {
        how->meta_counts[item] = sv_view_meta(view, how->meta[item]);
    }
    open->left = work->parts;
    return 0;
}

/* ---- threads ------------------------------------------------------------------------------- */

/* Take the next part, of `*open`; false: nothing is left to do. Mutex held. */
static bool
gather_next_part_locked(gather_work *work, gather_open **open, uint64_t *part)
{
    if (work->status != 0 || work->next_item == work->end) {
        return false;
    }
    if (work->next_part == 0) {
        gather_open *place = work->open;
        while (place->left != 0) {
            place++;
        }
        work->status = gather_begin_item(work, work->next_item, place);
        if (work->status != 0) {
            return false;
        }
        work->last = place;
    }
    *open = work->last;
    *part = work->next_part++;
    if (work->next_part == work->parts) {
        work->next_part = 0;
        work->next_item++;
    }
    return true;
}

static void
gather_thread(void *context, uint64_t thread)
{
    gather_work *work = context;
    gather_open *open;
    uint64_t part;
    (void)thread;
    (void)pthread_mutex_lock(&work->mutex);
    while (gather_next_part_locked(work, &open, &part)) {
        (void)pthread_mutex_unlock(&work->mutex);
        svi_move_part(&open->move, part, work->parts);
        (void)pthread_mutex_lock(&work->mutex);
        if (--open->left == 0) {
            sv_unpin(&open->view);
        }
    }
    (void)pthread_mutex_unlock(&work->mutex);
}

/* Move the items from `next_item` to `end`. Between enter and leave no fork happens, so that a child
 * never inherits these pins. */
static int
gather_round(gather_work *work, uint32_t threads)
{
    svi_gate_enter();
    svi_parallel(threads, threads, gather_thread, work);
    svi_gate_leave();
    return work->status;
}

/* ---- all ----------------------------------------------------------------------------------- */

void
sv_gather_options_init(sv_gather_options *options)
{
    if (options != NULL) {
        *options = (sv_gather_options){.size = sizeof *options};
    }
}

/* Describe one item of the output. */
static int
gather_check(gather_work *work, uint64_t *bytes)
{
    const sv_gather_options *how = work->how;
    if (how->size != sizeof *how) {
        return svi_fail(work->err, SV_EINVAL, 0, "gather",
                        "sv_gather_options has %zu bytes here, the caller says %zu: use "
                        "sv_gather_options_init() and build against this header",
                        sizeof *how, how->size);
    }
    sv_strided *item = &work->item;
    bool converts = how->out_type != how->type || how->scale != NULL;
    item->type = how->out_type;
    item->itemsize = converts ? svi_type_bytes(how->out_type) : work->itemsize;
    item->ndim = how->ndim;
    svi_conversion ignored;
    if (converts && !svi_conversion_find(how->out_type, how->type, how->scale, &ignored)) {
        return svi_fail(work->err, SV_ETYPE, 0, "gather",
                        "there is no conversion from type %u to type %u%s", how->type,
                        how->out_type, how->scale != NULL ? " with scale and offset" : "");
    }
    if (!svi_array_bytes(item->itemsize, how->ndim, how->shape, bytes) ||
        *bytes > work->stride_bytes) {
        return svi_fail(work->err, SV_EINVAL, 0, "gather",
                        "an item of the batch takes more than the %llu bytes from one to the next",
                        (unsigned long long)work->stride_bytes);
    }
    int64_t stride = item->itemsize;
    for (uint32_t i = how->ndim; i-- > 0;) {
        item->shape[i] = how->shape[i];
        item->strides[i] = stride;
        stride *= (int64_t)how->shape[i];
    }
    return 0;
}

int
sv_gather(sv_segment *segment, const uint32_t *slots, size_t count, const sv_gather_options *how,
          void *out, uint64_t stride_bytes, sv_error *err)
{
    svi_mapping *m = svi_mapping_of(segment);
    gather_work work = {.segment = segment, .how = how, .slots = slots, .out = out, .err = err};
    uint64_t bytes = 0;
    if (m == NULL) {
        return svi_fail(err, SV_ECLOSED, 0, "gather", "the handle is closed");
    }
    work.name = m->name;
    work.count = count;
    work.stride_bytes = stride_bytes;
    work.itemsize = m->g.itemsize;
    int status = gather_check(&work, &bytes);
    if (status != 0 || count == 0) {
        return status;
    }
    if (stride_bytes > INT64_MAX / count) {
        return svi_fail(err, SV_EINVAL, 0, "gather",
                        "%zu items of %llu bytes each lie beyond all memory", count,
                        (unsigned long long)stride_bytes);
    }
    uint64_t total = bytes * count;
    uint32_t threads = svi_parallel_threads(how->threads, total, GATHER_THREAD_BYTES);
    uint64_t each = bytes == 0 ? count : GATHER_ROUND_BYTES / bytes + 1;
    work.stream = svi_copy_streams(total, 0);
    work.parts = threads == 1 ? 1 : bytes / GATHER_PART_BYTES + 1;
    (void)pthread_mutex_init(&work.mutex, NULL);
    while (status == 0 && work.next_item < count) {
        work.end = count - work.next_item < each ? count : work.next_item + (size_t)each;
        status = gather_round(&work, threads);
    }
    (void)pthread_mutex_destroy(&work.mutex);
    return status;
}
