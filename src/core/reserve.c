/*
 * Reserving (rules W1, W2, W6): find a free buffer, claim it, give it back unused.
 *
 * A writer never touches what a reader may see. "Free" is worked out from three words and stored
 * nowhere: nobody claims the buffer, no slot names it, no cell pins it, looked at in this order.
 */
#include "reserve.h"

#include <errno.h>
#include <stdlib.h>

#include "error.h"
#include "event.h"
#include "fork.h"
#include "os.h"
#include "row.h"

/* Reservations that this process ever made; a forked child goes on from its parent's. */
static svi_word reserve_numbers;

typedef enum take_result { TAKE_DONE, TAKE_BUSY, TAKE_NAMED, TAKE_PINNED } take_result;

/* Does the slot that the buffer was last published to still name it? */
static bool
reserve_is_named(const svi_mapping *m, unsigned char *rw, uint32_t buffer)
{
    uint64_t slot = svi_load_seq(&svi_buffer_at(m, rw, buffer)->b_slot); /* ordered by E6 */
    if (slot == 0 || slot > m->g.slot_count) {
        return false;
    }
    uint64_t word = svi_load_seq(&svi_slots_at(m, rw)[slot - 1].s_word); /* E3 */
    return word != SVI_EMPTY && svi_slot_buffer(word) == buffer;
}

/* Such a scan may have looked at the child before the copy and at the parent after its unpin. */
bool
svi_buffer_is_pinned(const svi_mapping *m, uint32_t buffer)
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
reserve_take(const svi_mapping *m, unsigned char *rw, uint32_t row, uint32_t buffer)
{
    svm_buffer *header = svi_buffer_at(m, rw, buffer);
    take_result result = TAKE_DONE;
    SVI_STEP("reserve.chosen");
    if (!svi_cas_seq(&header->b_writer, 0, (uint64_t)row + 1)) { /* E6 */
        return TAKE_BUSY;
    }
    SVI_STEP("reserve.claimed");
    if (reserve_is_named(m, rw, buffer)) {
        result = TAKE_NAMED;
    } else if (svi_buffer_is_pinned(m, buffer)) {
        result = TAKE_PINNED;
    }
    if (result != TAKE_DONE) {
        svi_store_seq(&header->b_writer, 0); /* E6 */
        SVI_STEP("reserve.unclaimed");
    }
    return result;
}

void
svi_hint(unsigned char *rw, uint32_t buffer)
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
reserve_take_hinted(const svi_mapping *m, unsigned char *rw, uint32_t row, uint32_t *buffer)
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
        take_result result = reserve_take(m, rw, row, b);
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
reserve_take_walking(const svi_mapping *m, unsigned char *rw, uint32_t row, uint32_t *buffer)
{
    svm_header *header = svi_header_at(rw);
    uint32_t count = m->g.buffer_count;
    uint32_t start = (uint32_t)(svi_load_relaxed(&header->h_walk) % count);
    for (uint32_t k = 0; k < count; k++) {
        uint32_t b = (uint32_t)(((uint64_t)start + k) % count);
        if (svi_load_relaxed(&svi_buffer_at(m, rw, b)->b_writer) != 0 || /* hint (W6) */
            reserve_is_named(m, rw, b)) {
            continue;
        }
        if (reserve_take(m, rw, row, b) == TAKE_DONE) {
            svi_store_relaxed(&header->h_walk, (uint64_t)b + 1);
            *buffer = b;
            return true;
        }
    }
    return false;
}

bool
svi_is_any_free(const svi_mapping *m, unsigned char *rw)
{
    for (uint32_t b = 0; b < m->g.buffer_count; b++) {
        if (svi_load_relaxed(&svi_buffer_at(m, rw, b)->b_writer) == 0 && /* hint (W6) */
            !reserve_is_named(m, rw, b) && !svi_buffer_is_pinned(m, b)) {
            return true;
        }
    }
    return false;
}

static int
reserve_fail_none_free(svi_mapping *m, uint64_t waited_ns, sv_error *err)
{
    char holders[SVI_HOLDERS_BYTES];
    if (err == NULL) {
        return SV_EINUSE; /* the text takes a look at every cell */
    }
    svi_row_holders(m, SVI_ANY_BUFFER, holders, sizeof holders);
    return svi_fail(
        err, SV_EINUSE, 0, "reserve",
        "no free buffer in '%s' after %.3f s: all %u buffers are current, pinned or being "
        "filled, by %s; drop views, publish or cancel, or give the pool more spare_buffers",
        m->name, (double)waited_ns / 1e9, m->g.buffer_count, holders);
}

/* The row that this process writes under, attaching a forked child first. */
static int
reserve_row(svi_mapping *m, uint32_t *row, sv_error *err)
{
    int status = 0;
    if (svi_cells(m) == NULL && svi_cells_slow(m, &status, err) == NULL) {
        return status;
    }
    *row = m->hold.row;
    return *row < m->g.max_rows ? 0 : svi_fail(err, SV_ECLOSED, 0, "write", "no row is held");
}

/* The numbers of this process's open reservations, made by the first of them; NULL with *status set. */
static svi_word *
reservation_numbers(svi_mapping *m, int *status, sv_error *err)
{
    /* acquire: pairs with the release below */
    svi_word *numbers = atomic_load_explicit(&m->numbers, memory_order_acquire);
    if (numbers != NULL || (*status = svi_process_lock(err)) != 0) {
        return numbers;
    }
    numbers = atomic_load_explicit(&m->numbers, memory_order_relaxed);
    if (numbers == NULL && (numbers = calloc(m->g.buffer_count, sizeof *numbers)) != NULL) {
        atomic_store_explicit(&m->numbers, numbers, memory_order_release);
    }
    svi_process_unlock();
    if (numbers == NULL) {
        *status = svi_fail(err, SV_ENOMEM, ENOMEM, "reserve", "no memory for reservations");
    }
    return numbers;
}

static bool
reserve_take_free(const svi_mapping *m, unsigned char *rw, uint32_t row, uint32_t *buffer)
{
    return reserve_take_hinted(m, rw, row, buffer) || reserve_take_walking(m, rw, row, buffer);
}

/* Sleep until a buffer is free (rules N1, N4), and look for the dead whenever a sleep ends by itself. */
static int
reserve_wait(svi_mapping *m, unsigned char *rw, uint32_t row, uint64_t timeout_ns, uint32_t *buffer,
             sv_error *err)
{
    uint64_t started = svi_os_monotonic_ns();
    for (bool woken = false;;) {
        int status = svi_rows_check(m, "reserve", err);
        if (status != 0) {
            return status; /* no buffer will ever look free */
        }
        uint32_t rows = 0;
        /* When recovering fails, others may still give buffers back: go on waiting. */
        if (!woken && svi_recover(m, SVI_ANY_BUFFER, &rows, NULL) == 0 && rows != 0 &&
            reserve_take_free(m, rw, row, buffer)) {
            return 0;
        }
        uint64_t waited = svi_os_monotonic_ns() - started;
        if (waited >= timeout_ns) {
            return reserve_fail_none_free(m, waited, err);
        }
        uint64_t armed = svi_event_arm(rw, SVI_EVENT_FREE);
        if (reserve_take_free(m, rw, row, buffer)) { /* E15 */
            return 0;
        }
        woken = svi_event_sleep(rw, SVI_EVENT_FREE, armed, timeout_ns - waited);
        if (reserve_take_free(m, rw, row, buffer)) {
            return 0;
        }
        if (woken) {
            svi_os_sleep_ns(SVI_EVENT_PAUSE_NS);
        }
    }
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
    if (m->g.kind == SVI_KIND_BLOCK && svi_size(m) != 0) {
        return svi_fail(err, SV_EINVAL, 0, "reserve",
                        "'%s' is a block: its array is written in place and never replaced",
                        m->name);
    }
    if ((status = reserve_row(m, &row, err)) != 0 || (status = svi_writable(m, &rw, err)) != 0) {
        return status;
    }
    svi_word *numbers = reservation_numbers(m, &status, err);
    if (numbers == NULL) {
        return status;
    }
    if (!reserve_take_free(m, rw, row, &buffer) &&
        (status = reserve_wait(m, rw, row, timeout_ns, &buffer, err)) != 0) {
        return status;
    }
    uint64_t number = svi_add_seq(&reserve_numbers, 1) + 1; /* counter of this process */
    svi_store_relaxed(&numbers[buffer], number);            /* relaxed: of this process (W7) */
    svi_add_seq(&m->reservations, 1);                       /* counter of this process */
    *reservation = (sv_reservation){.data = svi_payload_at(m, rw, buffer),
                                    .capacity_bytes = m->g.chunk_size,
                                    .mapping_ = m,
                                    .buffer_ = buffer,
                                    .state_ = SVI_RESERVATION_OPEN,
                                    .process_ = svi_process_token(),
                                    .number_ = number};
    return 0;
}

/* ---- open reservations --------------------------------------------------------------------- */

/* Is it one that this process has open? A stale copy of one that has ended looks open, and its buffer
 * may have been reserved again meanwhile (rule W7). */
static bool
reservation_is_known(svi_mapping *m, const sv_reservation *reservation)
{
    const svi_word *numbers =
        atomic_load_explicit(&m->numbers, memory_order_acquire); /* as above */
    return numbers != NULL && reservation->buffer_ < m->g.buffer_count &&
           svi_load_relaxed(&numbers[reservation->buffer_]) == /* relaxed: of this process (W7) */
               reservation->number_;
}

/* Does the segment say so too? It does not when it was damaged (rule W7). */
static bool
reservation_is_claimed(const svi_mapping *m, unsigned char *rw, uint32_t buffer)
{
    /* relaxed: this process's own store while it holds the claim (W7) */
    return svi_load_relaxed(&svi_buffer_at(m, rw, buffer)->b_writer) == (uint64_t)m->hold.row + 1;
}

/* The mapping of a reservation that this process has open. */
static int
reservation_find(const sv_reservation *reservation, const char *operation, svi_mapping **m,
                 unsigned char **rw, sv_error *err)
{
    int status;
    if (reservation == NULL || (reservation->state_ != SVI_RESERVATION_OPEN &&
                                reservation->state_ != SVI_RESERVATION_FILLED)) {
        return svi_fail(err, SV_EINVAL, 0, operation, "the reservation is not open any more");
    }
    if (reservation->process_ != svi_process_token()) {
        return svi_fail(err, SV_EFORKED, 0, operation,
                        "the reservation was made before a fork and stays with the parent; reserve "
                        "again in this process");
    }
    if ((status = svi_writable(reservation->mapping_, rw, err)) != 0) {
        return status;
    }
    *m = reservation->mapping_;
    if (!reservation_is_known(*m, reservation)) {
        return svi_fail(
            err, SV_EINVAL, 0, operation,
            "the reservation is a copy of one that was published or cancelled; keep one "
            "sv_reservation for each buffer, and pass it by its address");
    }
    return 0;
}

int
svi_reservation_check(const sv_reservation *reservation, const char *operation, svi_mapping **m,
                      unsigned char **rw, sv_error *err)
{
    int status = reservation_find(reservation, operation, m, rw, err);
    if (status == 0 && !reservation_is_claimed(*m, *rw, reservation->buffer_)) {
        status = svi_fail(err, SV_EFORMAT, 0, operation,
                          "'%s' is damaged: buffer %u, which this process has reserved, is claimed "
                          "by another one",
                          (*m)->name, reservation->buffer_);
    }
    return status;
}

void
svi_reservation_end(svi_mapping *m, sv_reservation *reservation)
{
    svi_word *numbers = atomic_load_explicit(&m->numbers, memory_order_acquire); /* as above */
    /* Of this process (W7). Only our own number: the claim is gone, and another thread may have the
     * buffer by now. */
    (void)svi_cas_seq(&numbers[reservation->buffer_], reservation->number_, 0); /* W7 */
    reservation->state_ = 0;
    reservation->mapping_ = NULL;
    reservation->data = NULL;
    (void)svi_sub_seq(&m->reservations, 1); /* counter of this process */
}

void
sv_prefault(sv_reservation *reservation, uint64_t size_bytes)
{
    svi_mapping *m = NULL;
    unsigned char *rw = NULL;
    if (svi_reservation_check(reservation, "prefault", &m, &rw, NULL) == 0) {
        svi_prefault(m, rw, reservation->buffer_,
                     size_bytes < m->g.chunk_size ? size_bytes : m->g.chunk_size);
    }
}

void
sv_cancel(sv_reservation *reservation)
{
    svi_mapping *m = NULL;
    unsigned char *rw = NULL;
    if (reservation_find(reservation, "cancel", &m, &rw, NULL) != 0) {
        return;
    }
    if (reservation_is_claimed(m, rw, reservation->buffer_)) { /* else the segment is damaged */
        svi_store_seq(&svi_buffer_at(m, rw, reservation->buffer_)->b_writer, 0); /* E6 */
        SVI_STEP("cancel.released");
        svi_hint(rw, reservation->buffer_);
        svi_event_tell(rw, SVI_EVENT_FREE); /* while the reservation keeps the map */
    }
    svi_reservation_end(m, reservation);
}
