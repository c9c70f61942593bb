/*
 * Giving back what the dead held (rules R4-R6, A3): pins, claims, rows, and slots that were filled and
 * not counted. Whoever recovers may die at any point; the next one repeats it.
 */
#include <errno.h>

#include "error.h"
#include "fork.h"
#include "os.h"
#include "row.h"
#include "share.h"

void
svi_row_clean(const svi_mapping *m, unsigned char *rw, uint32_t row)
{
    svm_row *r = svi_row_at(m, rw, row);
    for (uint32_t b = 0; b < m->g.buffer_count; b++) {
        /* relaxed: the dead one's last store is older than the lock we took (R5) */
        if (svi_cell_pins(svi_load_relaxed(&r->r_cells[b])) != 0) {
            /* Never a store of 0: the reads stay, and repeating it is harmless. */
            svi_and_seq(&r->r_cells[b], ~SVI_PINS_MASK); /* E10 */
            SVI_STEP("recover.unpinned");
        }
    }
    for (uint32_t b = 0; b < m->g.buffer_count; b++) {
        svm_buffer *header = svi_buffer_at(m, rw, b);
        if (svi_load_relaxed(&header->b_writer) == (uint64_t)row + 1) { /* relaxed (R5) */
            (void)svi_cas_seq(&header->b_writer, (uint64_t)row + 1, 0); /* E6 */
            SVI_STEP("recover.unclaimed");
        }
    }
    svi_store_seq(&r->r_state, SVI_ROW_FREE); /* E7 */
    SVI_STEP("recover.freed");
}

bool
svi_row_alive(svi_mapping *m, uint32_t row)
{
    int probe = svi_probe(m);
    return probe < 0 || svi_os_lock_test(probe, SVI_LOCK_ROW + row) != 0;
}

/* Take the byte of a dead row through a fresh description (an own one never conflicts with itself)
 * and clean it. 1: cleaned, 0: it lives or is clean, negative: -errno. */
static int
recover_row(svi_mapping *m, unsigned char *rw, uint32_t row)
{
    int cleaned = 0;
    int fd = svi_fresh(m);
    if (fd < 0) {
        return fd;
    }
    int status = svi_os_lock_try(fd, SVI_LOCK_ROW + row, true);
    if (status == 0) {
        SVI_STEP("recover.locked");
        if (svi_load_seq(&svi_row(m, row)->r_state) != SVI_ROW_FREE) { /* E7 */
            svi_row_clean(m, rw, row);
            cleaned = 1;
        }
        /* Explicitly: a child forked in between could keep the description open. */
        (void)svi_os_unlock(fd, SVI_LOCK_ROW + row);
        SVI_STEP("recover.unlocked");
    }
    svi_os_close(fd);
    return status == -EAGAIN ? 0 : status != 0 ? status : cleaned;
}

/* Slots that a dead appender filled and did not count (rule A3). */
static void
recover_count_filled(const svi_mapping *m, unsigned char *rw)
{
    svm_header *header = svi_header_at(rw);
    for (;;) {
        uint64_t size = svi_load_seq(&header->h_size); /* E5 */
        if (size >= m->g.slot_count ||
            svi_load_seq(&svi_slots_at(m, rw)[size].s_word) == SVI_EMPTY) { /* A3 */
            return;
        }
        (void)svi_cas_seq(&header->h_size, size, size + 1); /* E5 */
        SVI_STEP("recover.counted");
    }
}

/* Does a row look dead, and as if it pinned the buffer? Hints (R5): what counts is looked at again
 * under the row's lock. */
static bool
recover_is_due(svi_mapping *m, uint32_t r, uint32_t buffer)
{
    const svm_row *row = svi_row(m, r);
    if (r == m->hold.row || svi_load_seq(&row->r_state) == SVI_ROW_FREE) { /* hint (R5) */
        return false;
    }
    bool pins = buffer == SVI_ANY_BUFFER ||
                svi_cell_pins(svi_load_relaxed(&row->r_cells[buffer])) != 0; /* hint (R5) */
    return pins && !svi_row_alive(m, r);
}

int
svi_recover(svi_mapping *m, uint32_t buffer, uint32_t *recovered, sv_error *err)
{
    uint32_t count = 0;
    unsigned char *rw = NULL;
    int status = svi_process_lock(err);
    if (status != 0) {
        return status;
    }
    if (!m->mapped) {
        status = svi_fail(err, SV_ECLOSED, 0, "recover", "the handle is closed");
        goto done;
    }
    if ((status = svi_rows_check(m, "recover", err)) != 0) {
        goto done;
    }
    if (svi_probe(m) < 0) {
        status = svi_fail(err, SV_ESYS, EBADF, "recover", "cannot open '%s' again", m->name);
        goto done;
    }
    if ((status = svi_writable_borrow(m, &rw, err)) != 0) {
        goto done;
    }
    svi_share_settle(m);
    uint32_t high = svi_high_rows(m);
    for (uint32_t r = 0; r < high; r++) {
        int cleaned = recover_is_due(m, r, buffer) ? recover_row(m, rw, r) : 0;
        if (cleaned < 0) {
            status = svi_fail(err, SV_ESYS, -cleaned, "recover", "cannot recover row %u of '%s'", r,
                              m->name);
            break;
        }
        count += (uint32_t)cleaned;
    }
    recover_count_filled(m, rw);
    svi_writable_return(m, rw);
done:
    svi_process_unlock();
    if (status == 0 && recovered != NULL) {
        *recovered = count;
    }
    return status;
}

int
sv_recover(sv_segment *segment, uint32_t *recovered, sv_error *err)
{
    svi_mapping *m = svi_mapping_of(segment);
    if (m == NULL) {
        return svi_fail(err, SV_ECLOSED, 0, "recover", "the handle is closed");
    }
    return svi_recover(m, SVI_ANY_BUFFER, recovered, err);
}
