/*
 * Writing (rules W1-W6, A1-A3): reserve a free buffer, fill it, make it current by one word.
 *
 * A writer never touches what a reader may see. "Free" is worked out from three words and stored
 * nowhere: nobody claims the buffer, no slot names it, no cell pins it, looked at in this order.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "array.h"
#include "error.h"
#include "fork.h"
#include "os.h"
#include "pin.h"
#include "row.h"
#include "stats.h"

#define RESERVATION_OPEN UINT32_C(0x52455331)
#define RESERVATION_FILLED UINT32_C(0x52455332)
#define CLAIM_ATTEMPTS 2000
#define POLL_FIRST_NS UINT64_C(20000)
#define POLL_LAST_NS UINT64_C(10000000)
#define APPEND_TIMEOUT_NS UINT64_C(1000000000)

/* ---- finding a free buffer ----------------------------------------------------------------- */

typedef enum take_result { TAKE_DONE, TAKE_BUSY, TAKE_NAMED, TAKE_PINNED } take_result;

/* Does the slot that the buffer was last published to still name it? */
static bool
publish_is_named(const svi_mapping *m, unsigned char *rw, uint32_t buffer)
{
    uint64_t slot = svi_load_seq(&svi_buffer_at(m, rw, buffer)->b_slot); /* ordered by E6 */
    if (slot == 0 || slot > m->g.slot_count) {
        return false;
    }
    uint64_t word = svi_load_seq(&svi_slots_at(m, rw)[slot - 1].s_word); /* E3 */
    return word != SVI_EMPTY && svi_slot_buffer(word) == buffer;
}

/* A scan that a hand-over of pins overlapped may have looked at the child before the copy and at
 * the parent after its unpin: then it looks again (rule F2). */
static bool
publish_is_pinned(const svi_mapping *m, uint32_t buffer)
{
    const svm_header *header = svi_header(m);
    for (;;) {
        uint64_t moves = svi_load_seq(&header->h_moves); /* E9 */
        if (svi_buffer_pins(m, buffer) != 0) {           /* E4, E8 */
            return true;
        }
        if (svi_load_seq(&header->h_moves) == moves) { /* E9 */
            SVI_STEP("reserve.scanned");
            return false;
        }
    }
}

/* Claim the buffer if it is free (rule W2: claim, then name, then pins). */
static take_result
publish_take(const svi_mapping *m, unsigned char *rw, uint32_t row, uint32_t buffer)
{
    svm_buffer *header = svi_buffer_at(m, rw, buffer);
    take_result result = TAKE_DONE;
    SVI_STEP("reserve.chosen");
    if (!svi_cas_seq(&header->b_writer, 0, (uint64_t)row + 1)) { /* E6 */
        return TAKE_BUSY;
    }
    SVI_STEP("reserve.claimed");
    if (publish_is_named(m, rw, buffer)) {
        result = TAKE_NAMED;
    } else if (publish_is_pinned(m, buffer)) {
        result = TAKE_PINNED;
    }
    if (result != TAKE_DONE) {
        svi_store_seq(&header->b_writer, 0); /* E6 */
        SVI_STEP("reserve.unclaimed");
    }
    return result;
}

/* Remember a buffer that may be free. A lost hint costs a walk, nothing else. */
static void
publish_hint(unsigned char *rw, uint32_t buffer)
{
    svm_header *header = svi_header_at(rw);
    for (uint32_t i = 0; i < SVI_HINTS; i++) {
        uint64_t hint = svi_load_relaxed(&header->h_hints[i]); /* hint (W6) */
        if (hint == (uint64_t)buffer + 1 ||
            (hint == 0 && svi_cas_seq(&header->h_hints[i], 0, (uint64_t)buffer + 1))) { /* W6 */
            return;
        }
    }
}

static bool
publish_take_hinted(const svi_mapping *m, unsigned char *rw, uint32_t row, uint32_t *buffer)
{
    svm_header *header = svi_header_at(rw);
    for (uint32_t i = 0; i < SVI_HINTS; i++) {
        uint64_t hint = svi_load_relaxed(&header->h_hints[i]);
        if (hint == 0 || !svi_cas_seq(&header->h_hints[i], hint, 0)) { /* hint (W6) */
            continue;
        }
        if (hint > m->g.buffer_count) {
            continue; /* damaged: forget it */
        }
        uint32_t b = (uint32_t)(hint - 1);
        take_result result = publish_take(m, rw, row, b);
        if (result == TAKE_DONE) {
            *buffer = b;
            return true;
        }
        if (result == TAKE_PINNED) {
            (void)svi_cas_seq(&header->h_hints[i], 0, hint); /* still a good hint for later */
        }
    }
    return false;
}

/* Look at every buffer once. Before the claim only hints are read: most buffers are named by their
 * slot, which the walk passes over without writing. */
static bool
publish_take_walking(const svi_mapping *m, unsigned char *rw, uint32_t row, uint32_t *buffer)
{
    svm_header *header = svi_header_at(rw);
    uint32_t count = m->g.buffer_count;
    uint32_t start = (uint32_t)(svi_load_relaxed(&header->h_walk) % count);
    for (uint32_t k = 0; k < count; k++) {
        uint32_t b = (uint32_t)(((uint64_t)start + k) % count);
        if (svi_load_relaxed(&svi_buffer_at(m, rw, b)->b_writer) != 0 || /* hint (W6) */
            publish_is_named(m, rw, b)) {
            continue;
        }
        if (publish_take(m, rw, row, b) == TAKE_DONE) {
            svi_store_relaxed(&header->h_walk, (uint64_t)b + 1);
            *buffer = b;
            return true;
        }
    }
    return false;
}

static int
publish_fail_none_free(svi_mapping *m, uint64_t waited_ns, sv_error *err)
{
    char holders[420];
    if (err == NULL) {
        return SV_EINUSE; /* the text takes a look at every cell */
    }
    svi_row_holders(m, SVI_ANY_BUFFER, holders, sizeof holders);
    return svi_fail(err, SV_EINUSE, 0, "reserve",
                    "no free buffer in '%s' after %.3f s: all %u buffers are current, pinned or "
                    "being filled. Views are held by %s; release some, or make the pool with more "
                    "spare_buffers",
                    m->name, (double)waited_ns / 1e9, m->g.buffer_count, holders);
}

/* The row that this process writes under, attaching a forked child first. */
static int
publish_row(svi_mapping *m, uint32_t *row, sv_error *err)
{
    int status = 0;
    if (svi_cells(m) == NULL && svi_cells_slow(m, &status, err) == NULL) {
        return status;
    }
    *row = m->hold.row;
    return *row < m->g.max_rows ? 0 : svi_fail(err, SV_ECLOSED, 0, "write", "no row is held");
}

int
sv_reserve(sv_segment *segment, uint64_t timeout_ns, sv_reservation *reservation, sv_error *err)
{
    svi_mapping *m = svi_mapping_of(segment);
    unsigned char *rw = NULL;
    uint32_t row = 0;
    uint32_t buffer = 0;
    int status;
    if (m == NULL) {
        return svi_fail(err, SV_ECLOSED, 0, "reserve", "the handle is closed");
    }
    if ((status = publish_row(m, &row, err)) != 0 || (status = svi_writable(m, &rw, err)) != 0) {
        return status;
    }
    uint64_t started = svi_os_monotonic_ns();
    uint64_t pause = POLL_FIRST_NS;
    bool recovered = false;
    while (!publish_take_hinted(m, rw, row, &buffer) &&
           !publish_take_walking(m, rw, row, &buffer)) {
        uint64_t waited = svi_os_monotonic_ns() - started;
        /* The first time, and again now and then, look for the dead. */
        if (!recovered || pause == POLL_LAST_NS) {
            uint32_t rows = 0;
            recovered = true;
            /* When recovering fails, others may still give buffers back: go on waiting. */
            if (svi_recover(m, SVI_ANY_BUFFER, &rows, NULL) == 0 && rows != 0) {
                continue;
            }
        }
        if (waited >= timeout_ns) {
            return publish_fail_none_free(m, waited, err);
        }
        svi_os_sleep_ns(pause < timeout_ns - waited ? pause : timeout_ns - waited);
        pause = pause * 2 < POLL_LAST_NS ? pause * 2 : POLL_LAST_NS;
    }
    svi_add_seq(&m->reservations, 1); /* counter of this process */
    *reservation = (sv_reservation){.data = svi_payload_at(m, rw, buffer),
                                    .capacity_bytes = m->g.chunk_size,
                                    .mapping_ = m,
                                    .buffer_ = buffer,
                                    .state_ = RESERVATION_OPEN,
                                    .process_ = svi_process_token()};
    return 0;
}

/* ---- filling ------------------------------------------------------------------------------- */

/* The mapping of a reservation that is open and made by this very process. */
static int
publish_check(const sv_reservation *reservation, const char *operation, svi_mapping **m,
              sv_error *err)
{
    if (reservation->state_ != RESERVATION_OPEN && reservation->state_ != RESERVATION_FILLED) {
        return svi_fail(err, SV_EINVAL, 0, operation, "the reservation is not open any more");
    }
    if (reservation->process_ != svi_process_token()) {
        return svi_fail(err, SV_EFORKED, 0, operation,
                        "the reservation was made before a fork and stays with the parent; reserve "
                        "again in this process");
    }
    *m = reservation->mapping_;
    return 0;
}

static int
publish_check_array(const svi_mapping *m, const sv_array *array, uint32_t index, uint64_t *end,
                    sv_error *err)
{
    uint64_t product = 0;
    if (!svi_array_bytes(array->itemsize, array->ndim, array->shape, &product)) {
        return svi_fail(err, SV_EINVAL, 0, "fill",
                        "array %u has %u dimensions (at most %d), itemsize %u (at least 1), or a "
                        "shape that overflows",
                        index, array->ndim, SV_MAX_NDIM, array->itemsize);
    }
    if (array->dtype[0] == '\0' && array->itemsize != m->g.itemsize) {
        return svi_fail(err, SV_EINVAL, 0, "fill",
                        "array %u has itemsize %u, the dtype of '%s' (%s) has %u", index,
                        array->itemsize, m->name, m->dtype, m->g.itemsize);
    }
    if (product != array->size_bytes) {
        return svi_fail(err, SV_EINVAL, 0, "fill",
                        "array %u has size_bytes %llu, its shape and itemsize give %llu", index,
                        (unsigned long long)array->size_bytes, (unsigned long long)product);
    }
    uint64_t offset = (*end + SVI_LINE - 1) / SVI_LINE * SVI_LINE;
    if (offset > m->g.chunk_size || array->size_bytes > m->g.chunk_size - offset) {
        return svi_fail(err, SV_ETOOBIG, 0, "fill",
                        "the chunk needs %llu bytes, chunk_size of '%s' is %llu",
                        (unsigned long long)(offset + array->size_bytes), m->name,
                        (unsigned long long)m->g.chunk_size);
    }
    if (memchr(array->name, '\0', sizeof array->name) == NULL ||
        memchr(array->dtype, '\0', sizeof array->dtype) == NULL) {
        return svi_fail(err, SV_EINVAL, 0, "fill", "name or dtype of array %u is not terminated",
                        index);
    }
    *end = offset + array->size_bytes;
    return 0;
}

static int
publish_check_chunk(const svi_mapping *m, const sv_chunk *chunk, sv_error *err)
{
    if (chunk->array_count < 1 || chunk->array_count > m->g.max_arrays || chunk->arrays == NULL) {
        return svi_fail(err, SV_EINVAL, 0, "fill",
                        "a chunk of '%s' has 1 to %u arrays (max_arrays), found %u", m->name,
                        m->g.max_arrays, chunk->array_count);
    }
    if (chunk->meta_count > SV_MAX_META || (chunk->meta_count != 0 && chunk->meta == NULL)) {
        return svi_fail(err, SV_EINVAL, 0, "fill", "meta holds at most %d values, found %u",
                        SV_MAX_META, chunk->meta_count);
    }
    uint64_t end = 0;
    int status = 0;
    for (uint32_t i = 0; i < chunk->array_count && status == 0; i++) {
        status = publish_check_array(m, &chunk->arrays[i], i, &end, err);
    }
    return status;
}

int
sv_fill(sv_reservation *reservation, const sv_chunk *chunk, sv_error *err)
{
    svi_mapping *m = NULL;
    unsigned char *rw = NULL;
    int status;
    if ((status = publish_check(reservation, "fill", &m, err)) != 0 ||
        (status = publish_check_chunk(m, chunk, err)) != 0 ||
        (status = svi_writable(m, &rw, err)) != 0) {
        return status;
    }
    svm_buffer *header = svi_buffer_at(m, rw, reservation->buffer_);
    uint64_t end = 0;
    for (uint32_t i = 0; i < chunk->array_count; i++) {
        const sv_array *from = &chunk->arrays[i];
        svm_array *to = &header->b_arrays[i];
        uint64_t offset = (end + SVI_LINE - 1) / SVI_LINE * SVI_LINE;
        to->a_offset = offset;
        to->a_bytes = from->size_bytes;
        to->a_itemsize = from->itemsize;
        to->a_ndim = from->ndim;
        memcpy(to->a_shape, from->shape, from->ndim * sizeof from->shape[0]);
        memcpy(to->a_name, from->name, sizeof to->a_name);
        memcpy(to->a_dtype, from->dtype, sizeof to->a_dtype);
        if (from->data != NULL) {
            sv_copy((unsigned char *)reservation->data + offset, from->data, from->size_bytes, 1);
        }
        end = offset + from->size_bytes;
    }
    header->b_array_count = chunk->array_count;
    header->b_meta_count = chunk->meta_count;
    if (chunk->meta_count != 0) {
        memcpy(header->b_meta, chunk->meta, chunk->meta_count * sizeof chunk->meta[0]);
    }
    header->b_source_index = chunk->source_index;
    header->b_source_epoch = chunk->source_epoch;
    reservation->state_ = RESERVATION_FILLED;
    return 0;
}

/* ---- publishing ---------------------------------------------------------------------------- */

static void
publish_end(svi_mapping *m, sv_reservation *reservation)
{
    reservation->state_ = 0;
    reservation->mapping_ = NULL;
    reservation->data = NULL;
    (void)svi_sub_seq(&m->reservations, 1); /* counter of this process */
}

/* Claim the current buffer as well, so that nobody refills it while its reads are counted. Another
 * writer's claim is short; a dead one's must not hold us up: then we count without it. */
static bool
publish_claim_current(svm_buffer *header, uint32_t row)
{
    for (int attempt = 0; attempt < CLAIM_ATTEMPTS; attempt++) {
        if (svi_cas_seq(&header->b_writer, 0, (uint64_t)row + 1)) { /* E6 */
            SVI_STEP("publish.claimed");
            return true;
        }
        if (attempt % 64 == 63) {
            svi_os_sleep_ns(1000);
        }
    }
    return false;
}

static int
publish_check_filled(const sv_reservation *reservation, const char *operation, svi_mapping **m,
                     sv_error *err)
{
    int status = publish_check(reservation, operation, m, err);
    if (status == 0 && reservation->state_ != RESERVATION_FILLED) {
        status = svi_fail(err, SV_EINVAL, 0, operation,
                          "nothing was filled into the reservation; call sv_fill() first");
    }
    return status;
}

int
sv_publish(sv_reservation *reservation, uint32_t slot, sv_error *err)
{
    svi_mapping *m = NULL;
    unsigned char *rw = NULL;
    int status;
    if ((status = publish_check_filled(reservation, "publish", &m, err)) != 0 ||
        (status = svi_writable(m, &rw, err)) != 0) {
        return status;
    }
    if (slot >= svi_size(m)) {
        return svi_fail(err, SV_EINDEX, 0, "publish", "slot %u of '%s' is not there: it has %u",
                        slot, m->name, svi_size(m));
    }
    svm_slot *target = &svi_slots_at(m, rw)[slot];
    svm_buffer *fresh = svi_buffer_at(m, rw, reservation->buffer_);
    svm_buffer *old = NULL;
    bool claimed = false;
    uint32_t old_buffer = 0;
    uint64_t base = 0;
    for (;;) {
        uint64_t seen = svi_load_seq(&target->s_word); /* E2 */
        old_buffer = svi_slot_buffer(seen);
        if (seen == SVI_EMPTY || old_buffer >= m->g.buffer_count) {
            return svi_fail(err, SV_EFORMAT, 0, "publish", "slot %u of '%s' is damaged", slot,
                            m->name);
        }
        old = svi_buffer_at(m, rw, old_buffer);
        claimed = publish_claim_current(old, m->hold.row);
        base = svi_load_relaxed(&old->b_read_base);
        /* Release, for who counts without a pin: a number that is seen early shows the change too. */
        svi_store_release(&fresh->b_version, svi_load_relaxed(&old->b_version) + 1); /* C4 */
        svi_store_release(&fresh->b_read_base,
                          svi_buffer_reads_settled(m, reservation->buffer_)); /* C4 */
        fresh->b_published_ns = svi_os_realtime_ns();
        svi_store_seq(&fresh->b_slot, (uint64_t)slot + 1); /* ordered by E6 */
        SVI_STEP("publish.addressed");
        /* The commit: everything above is visible to who sees it. */
        if (svi_cas_seq(&target->s_word, seen,
                        svi_slot_successor(seen, reservation->buffer_))) { /* E1, E2, E3 */
            break;
        }
        if (claimed) {
            svi_store_seq(&old->b_writer, 0); /* E6 */
            SVI_STEP("publish.dropped");
        }
    }
    SVI_STEP("publish.committed");
    svi_stats_count(m, rw, slot, svi_reads_since(svi_buffer_reads(m, old_buffer), base));
    SVI_STEP("publish.counted");
    /* Only now, and the old one too: a claim dropped before the commit lets two writers meet. */
    svi_store_seq(&fresh->b_writer, 0); /* E6 */
    SVI_STEP("publish.released");
    if (claimed) {
        svi_store_seq(&old->b_writer, 0); /* E6 */
        SVI_STEP("publish.finished");
    }
    publish_hint(rw, old_buffer);
    publish_end(m, reservation);
    return 0;
}

int
sv_publish_next(sv_reservation *reservation, uint32_t *slot, sv_error *err)
{
    svi_mapping *m = NULL;
    unsigned char *rw = NULL;
    int status;
    if ((status = publish_check_filled(reservation, "append", &m, err)) != 0 ||
        (status = svi_writable(m, &rw, err)) != 0) {
        return status;
    }
    svm_header *header = svi_header_at(rw);
    svm_buffer *fresh = svi_buffer_at(m, rw, reservation->buffer_);
    uint64_t index = 0;
    bool won = false;
    svi_store_release(&fresh->b_version, 1); /* C4 */
    svi_store_release(&fresh->b_read_base,
                      svi_buffer_reads_settled(m, reservation->buffer_)); /* C4 */
    fresh->b_published_ns = svi_os_realtime_ns();
    while (!won) {
        index = svi_load_seq(&header->h_size); /* E5 */
        if (index >= m->g.slot_count) {
            sv_cancel(reservation);
            return svi_fail(err, SV_EFULL, 0, "append",
                            "all %u slots of '%s' are filled; replace one, or make the pool larger "
                            "(max_memory_size or slot_count)",
                            m->g.slot_count, m->name);
        }
        svi_store_seq(&fresh->b_slot, index + 1); /* ordered by E6 */
        SVI_STEP("append.addressed");
        won = svi_cas_seq(&svi_slots_at(m, rw)[index].s_word, SVI_EMPTY,
                          svi_slot_word(reservation->buffer_, 1)); /* E1, E3 */
        SVI_STEP("append.committed");
        /* Won or lost: the slot is filled, and whoever filled it may be dead. */
        (void)svi_cas_seq(&header->h_size, index, index + 1); /* E5 */
        SVI_STEP("append.counted");
    }
    svi_store_seq(&fresh->b_writer, 0); /* E6 */
    SVI_STEP("append.released");
    publish_end(m, reservation);
    *slot = (uint32_t)index;
    return 0;
}

void
sv_cancel(sv_reservation *reservation)
{
    svi_mapping *m = NULL;
    unsigned char *rw = NULL;
    if (publish_check(reservation, "cancel", &m, NULL) != 0 || svi_writable(m, &rw, NULL) != 0) {
        return;
    }
    svi_store_seq(&svi_buffer_at(m, rw, reservation->buffer_)->b_writer, 0); /* E6 */
    SVI_STEP("cancel.released");
    publish_hint(rw, reservation->buffer_);
    publish_end(m, reservation);
}

/* ---- whole chunks -------------------------------------------------------------------------- */

/* Check before anything is taken, so that a bad chunk costs nothing. */
static int
publish_prepare(sv_segment *segment, const sv_chunk *chunk, uint64_t timeout_ns,
                sv_reservation *reservation, sv_error *err)
{
    const svi_mapping *m = svi_mapping_of(segment);
    int status;
    if (m == NULL) {
        return svi_fail(err, SV_ECLOSED, 0, "write", "the handle is closed");
    }
    if ((status = publish_check_chunk(m, chunk, err)) != 0) {
        return status;
    }
    for (uint32_t i = 0; i < chunk->array_count; i++) {
        if (chunk->arrays[i].data == NULL && chunk->arrays[i].size_bytes != 0) {
            return svi_fail(err, SV_EINVAL, 0, "write", "array %u has no data", i);
        }
    }
    if ((status = sv_reserve(segment, timeout_ns, reservation, err)) != 0) {
        return status;
    }
    if ((status = sv_fill(reservation, chunk, err)) != 0) {
        sv_cancel(reservation);
    }
    return status;
}

int
sv_append(sv_segment *segment, const sv_chunk *chunk, uint32_t *slot, sv_error *err)
{
    sv_reservation reservation;
    const svi_mapping *m = svi_mapping_of(segment);
    uint32_t index = 0;
    if (m != NULL && svi_size(m) >= m->g.slot_count) {
        return svi_fail(err, SV_EFULL, 0, "append",
                        "all %u slots of '%s' are filled; replace one, or make the pool larger "
                        "(max_memory_size or slot_count)",
                        m->g.slot_count, m->name);
    }
    int status = publish_prepare(segment, chunk, APPEND_TIMEOUT_NS, &reservation, err);
    if (status != 0) {
        return status;
    }
    if ((status = sv_publish_next(&reservation, &index, err)) != 0) {
        sv_cancel(&reservation);
        return status;
    }
    if (slot != NULL) {
        *slot = index;
    }
    return 0;
}

/* Is the slot's current chunk pinned by the living? */
static int
publish_refuse_pinned(svi_mapping *m, uint32_t slot, sv_error *err)
{
    uint64_t word = svi_load_seq(&svi_slots(m)[slot].s_word); /* advice: a hint */
    uint32_t buffer = svi_slot_buffer(word);
    if (word == SVI_EMPTY || buffer >= m->g.buffer_count) {
        return svi_fail(err, SV_EFORMAT, 0, "replace", "slot %u of '%s' is damaged", slot, m->name);
    }
    if (svi_buffer_pins(m, buffer) == 0) {
        return 0;
    }
    int status = svi_recover(m, buffer, NULL, err);
    for (int look = 0; look < 50 && status == 0 && svi_buffer_pins(m, buffer) != 0; look++) {
        if (look == 49) {
            status = SV_EINUSE;
        }
        /* A pin that is being undone, or one around a look at the metadata, is gone in no time. */
        svi_os_sleep_ns(1000);
    }
    if (status != SV_EINUSE) {
        return status;
    }
    char holders[420];
    if (err == NULL) {
        return SV_EINUSE;
    }
    svi_row_holders(m, buffer, holders, sizeof holders);
    return svi_fail(err, SV_EINUSE, 0, "replace",
                    "slot %u of '%s' is in use: its chunk is pinned by %s; drop those views, or "
                    "publish into it without refusing",
                    slot, m->name, holders);
}

int
sv_replace(sv_segment *segment, uint32_t slot, const sv_chunk *chunk, uint64_t timeout_ns,
           sv_error *err)
{
    sv_reservation reservation;
    svi_mapping *m = svi_mapping_of(segment);
    if (m == NULL) {
        return svi_fail(err, SV_ECLOSED, 0, "replace", "the handle is closed");
    }
    if (slot >= svi_size(m)) {
        return svi_fail(err, SV_EINDEX, 0, "replace", "slot %u of '%s' is not there: it has %u",
                        slot, m->name, svi_size(m));
    }
    int status;
    if ((status = publish_check_chunk(m, chunk, err)) != 0) {
        return status;
    }
    if ((status = publish_refuse_pinned(m, slot, err)) != 0) {
        if (status == SV_EINUSE) {
            sv_count_blocked(segment, 1);
        }
        return status;
    }
    if ((status = publish_prepare(segment, chunk, timeout_ns, &reservation, err)) != 0) {
        return status;
    }
    if ((status = sv_publish(&reservation, slot, err)) != 0) {
        sv_cancel(&reservation);
    }
    return status;
}
