/*
 * Reading (rules P1-P4): pin a slot's current buffer, look at the chunk, unpin.
 *
 * A reader adds its pin first and then looks whether the slot still names the buffer. A writer
 * commits first and then scans for pins. In the single order of these four either the reader sees
 * the change or the writer sees the pin (docs/PROTOCOL.md, proof 1).
 */
#include "pin.h"

#include <errno.h>
#include <string.h>

#include "array.h"
#include "block.h"
#include "error.h"
#include "event.h"
#include "fork.h"
#include "row.h"

#define PIN_ATTEMPTS 10000

/* A field of shared memory, loaded once: what was checked is what is used. */
#define PIN_ONCE(field) (*(const volatile __typeof__(field) *)&(field))

/* Copy out of the pinned buffer's header what a view shows, believing none of it. */
static int
pin_describe(const svi_mapping *m, uint32_t buffer, sv_view *view)
{
    const svm_buffer *header = svi_buffer(m, buffer);
    const svm_array *array = &header->b_arrays[0];
    uint32_t ndim = PIN_ONCE(array->a_ndim);
    uint64_t bytes = PIN_ONCE(array->a_bytes);
    uint32_t count = PIN_ONCE(header->b_array_count);
    uint32_t itemsize = PIN_ONCE(array->a_itemsize);
    uint64_t product = 0;
    if (ndim > SV_MAX_NDIM || bytes > m->g.chunk_size || array->a_offset != 0 || count < 1 ||
        count > m->g.max_arrays || (array->a_dtype[0] == '\0' && itemsize != m->g.itemsize)) {
        return SV_EFORMAT;
    }
    for (uint32_t i = 0; i < ndim; i++) {
        view->shape[i] = PIN_ONCE(array->a_shape[i]);
    }
    if (!svi_array_bytes(itemsize, ndim, view->shape, &product) || product != bytes) {
        return SV_EFORMAT;
    }
    view->data = svi_payload(m, buffer);
    view->size_bytes = bytes;
    view->itemsize = itemsize;
    view->ndim = ndim;
    view->array_count = count;
    return 0;
}

/* A writer sleeps until a buffer is free. Without the pin the header may be unmapped at any moment: the
 * look at its word counts as one (V2, N4). */
static void
pin_take_back_and_tell(svi_mapping *m, svi_word *cell, uint64_t amount)
{
    const svi_look look = {.m = m, .probe = -1};
    unsigned char *rw = NULL;
    svi_add_seq(&m->looking, 1);                 /* E12: before the pin goes */
    uint64_t before = svi_sub_seq(cell, amount); /* E10, E12, E15 */
    if (svi_cell_pins(before) == 1 && svi_writable(m, &rw, NULL) == 0) {
        svi_event_tell(rw, SVI_EVENT_FREE);
    }
    svi_look_end(&look);
}

int
svi_pin_buffer(svi_mapping *m, uint32_t slot, uint64_t amount, uint32_t *buffer)
{
    svi_word *cells = svi_cells(m);
    if (__builtin_expect(cells == NULL, 0)) {
        int status = 0;
        if ((cells = svi_cells_slow(m, &status, NULL)) == NULL) {
            return status;
        }
    }
    if (slot >= svi_size(m)) {
        return SV_EINDEX;
    }
    const svi_word *word = &svi_slots(m)[slot].s_word;
    for (int attempt = 0; attempt < PIN_ATTEMPTS; attempt++) {
        uint64_t seen = svi_load_relaxed(word); /* E1, relaxed: the re-check counts */
        uint32_t b = svi_slot_buffer(seen);
        if (seen == SVI_EMPTY || b >= m->g.buffer_count) {
            return SV_EFORMAT;
        }
        if (__builtin_expect(!svi_cells_are_clean(m, b), 0)) {
            int status = svi_cells_clean(m, b);
            if (status != 0) {
                return status;
            }
        }
        uint64_t before = svi_add_seq(&cells[b], amount); /* E4 */
        SVI_STEP("pin.added");
        if (__builtin_expect(svi_load_seq(word) == seen, 1)) { /* E1 */
            if (__builtin_expect(svi_cell_pins(before) >= SVI_PINS_LIMIT, 0)) {
                (void)svi_sub_seq(&cells[b], amount); /* E10 */
                return SV_EINUSE;
            }
            *buffer = b;
            return 0;
        }
        if (__builtin_expect(svi_event_is_awaited(m, SVI_EVENT_FREE), 0)) {
            pin_take_back_and_tell(m, &cells[b], amount);
        } else {
            (void)svi_sub_seq(&cells[b], amount); /* E10 */
        }
        SVI_STEP("pin.undone");
    }
    return SV_EMODIFIED;
}

void
svi_unpin_buffer(svi_mapping *m, uint32_t buffer)
{
    svi_word *cells = svi_cells(m);
    if (cells == NULL || buffer >= m->g.buffer_count ||
        svi_cell_pins(svi_load_relaxed(&cells[buffer])) == 0) { /* P4, relaxed: own cell */
        return; /* a cell without pins refuses: it belongs to somebody who forgot to pin */
    }
    if (__builtin_expect(svi_event_is_awaited(m, SVI_EVENT_FREE), 0)) {
        pin_take_back_and_tell(m, &cells[buffer], SVI_PIN);
        SVI_STEP("unpin.done");
        return;
    }
    (void)svi_sub_seq(&cells[buffer], SVI_PIN); /* E10: reads stay before it; E12 */
    SVI_STEP("unpin.done");
    if (__builtin_expect(svi_load_seq(&m->closing) != 0, 0)) { /* E11 (V2) */
        svi_mapping_settle(m);
    }
}

static int
pin_slot(sv_segment *segment, uint32_t slot, uint64_t amount, sv_view *view)
{
    svi_mapping *m = svi_mapping_of(segment);
    if (m == NULL) {
        return SV_ECLOSED;
    }
    uint32_t buffer = 0;
    int status = svi_pin_buffer(m, slot, amount, &buffer);
    if (status != 0) {
        return status;
    }
    if (__builtin_expect(m->g.kind == SVI_KIND_BLOCK, 0) && svi_block_is_removed(m)) {
        svi_block_unpin(m, buffer);
        return SV_ENOENT;
    }
    status = pin_describe(m, buffer, view);
    if (status != 0) {
        svi_unpin_buffer(m, buffer);
        return status;
    }
    view->slot = slot;
    view->mapping_ = m;
    view->buffer_ = buffer;
    view->state_ = (uint32_t)svi_process_token_quick();
    return 0;
}

int
sv_pin(sv_segment *segment, uint32_t slot, sv_view *view)
{
    return pin_slot(segment, slot, SVI_PIN + SVI_READ, view);
}

int
sv_pin_quiet(sv_segment *segment, uint32_t slot, sv_view *view)
{
    return pin_slot(segment, slot, SVI_PIN, view);
}

void
sv_unpin(sv_view *view)
{
    svi_mapping *m = view == NULL ? NULL : view->mapping_;
    if (m == NULL) {
        return;
    }
    view->mapping_ = NULL;
    /* A view that came with a fork, but without a pin of ours, holds nothing here (F3). */
    if (__builtin_expect(view->state_ < m->views_since, 0)) {
        return;
    }
    if (__builtin_expect(m->g.kind == SVI_KIND_BLOCK, 0)) {
        svi_block_unpin(m, view->buffer_);
    } else {
        svi_unpin_buffer(m, view->buffer_);
    }
}

int
sv_unpin_waits(const sv_view *view)
{
    const svi_mapping *m = view == NULL ? NULL : view->mapping_;
    /* Hints. While the view is pinned its header is mapped. */
    return m != NULL && view->state_ >= m->views_since &&
           (svi_load_relaxed(&m->closing) != 0 || /* E11, relaxed: a hint */
            svi_event_is_awaited(m, SVI_EVENT_FREE) ||
            (m->g.kind == SVI_KIND_BLOCK && svi_block_is_removed(m)));
}

/* The mapping of a view that shows something in this process: not of one whose pin no fork could hand
 * over, nor of a copy of a view that was given back, unless another view of this process pins the same
 * chunk (P4). */
static const svi_mapping *
pin_mapping(const sv_view *view)
{
    const svi_mapping *m = view == NULL ? NULL : view->mapping_;
    if (m == NULL || view->state_ < m->shown_since || view->buffer_ >= m->g.buffer_count) {
        return NULL;
    }
    if (view->state_ < m->views_since) {
        return m; /* its pin is in the row of an ancestor (F3, B5) */
    }
    const svi_word *cells = svi_cells(m);
    return cells != NULL && svi_cell_pins(svi_load_relaxed(&cells[view->buffer_])) != 0
               ? m
               : NULL; /* P4, relaxed: own cell */
}

int
sv_view_array(const sv_view *view, uint32_t index, sv_array *out)
{
    const svi_mapping *m = pin_mapping(view);
    if (m == NULL) {
        return SV_ECLOSED;
    }
    if (index >= view->array_count || index >= m->g.max_arrays) {
        return SV_EINDEX;
    }
    const svm_array *array = &svi_buffer(m, view->buffer_)->b_arrays[index];
    sv_array result;
    memset(&result, 0, sizeof result);
    uint64_t offset = PIN_ONCE(array->a_offset);
    result.size_bytes = PIN_ONCE(array->a_bytes);
    result.itemsize = PIN_ONCE(array->a_itemsize);
    result.ndim = PIN_ONCE(array->a_ndim);
    uint64_t product = 0;
    memcpy(result.shape, array->a_shape, sizeof result.shape);
    if (!svi_array_bytes(result.itemsize, result.ndim, result.shape, &product) ||
        product != result.size_bytes || offset % SVI_LINE != 0 || offset > m->g.chunk_size ||
        result.size_bytes > m->g.chunk_size - offset) {
        return SV_EFORMAT;
    }
    memcpy(result.name, array->a_name, sizeof result.name);
    memcpy(result.dtype, array->a_dtype, sizeof result.dtype);
    result.name[sizeof result.name - 1] = '\0';
    result.dtype[sizeof result.dtype - 1] = '\0';
    result.data = svi_payload(m, view->buffer_) + offset;
    *out = result;
    return 0;
}

uint32_t
sv_view_meta(const sv_view *view, double out[SV_MAX_META])
{
    const svi_mapping *m = pin_mapping(view);
    if (m == NULL) {
        return 0;
    }
    const svm_buffer *header = svi_buffer(m, view->buffer_);
    uint32_t count = PIN_ONCE(header->b_meta_count);
    count = count > SV_MAX_META ? SV_MAX_META : count;
    memcpy(out, header->b_meta, count * sizeof out[0]);
    return count;
}

void
sv_view_info(const sv_view *view, sv_chunk_info *out)
{
    const svi_mapping *m = pin_mapping(view);
    if (out == NULL) {
        return;
    }
    *out = (sv_chunk_info){.version = 0};
    if (m != NULL) {
        const svm_buffer *header = svi_buffer(m, view->buffer_);
        out->version = svi_load_relaxed(&header->b_version);
        out->source_index = header->b_source_index;
        out->source_epoch = header->b_source_epoch;
        out->published_ns = svi_load_relaxed(&header->b_published_ns); /* constant while pinned */
    }
}
