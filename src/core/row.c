/*
 * Rows (rules R1-R6): taking one, giving it back, and recovering those of the dead.
 *
 * A row's lock byte is held by an open-file-description lock whose description only a mapped page
 * keeps alive (the anchor). It lives exactly as long as this address space: dropped at SIGKILL and
 * exec, not inherited by fork, not lost by closing descriptors.
 */
#include "row.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "error.h"
#include "fork.h"
#include "os.h"

/* Take back the pins and claims of a dead row. Its lock byte is held by us; may be repeated after a
 * crash at any point. */
static void
row_clean(const svi_mapping *m, unsigned char *rw, uint32_t row)
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

/* What a row says about this process. Read once: /proc costs as much as all the rest of attaching. */
typedef struct row_signature {
    uint64_t process;
    uint64_t start_time;
    uint64_t command[8];
} row_signature;

void
svi_row_sign(svm_row *r, bool owner)
{
    static row_signature self;
    char command[sizeof self.command];
    if (self.process != svi_process_token()) {
        memset(command, 0, sizeof command);
        svi_os_command(command, sizeof command);
        memcpy(self.command, command, sizeof command);
        self.start_time = svi_os_start_time();
        self.process = svi_process_token();
    }
    svi_store_relaxed(&r->r_owner, owner);
    svi_store_relaxed(&r->r_pid, (uint64_t)getpid());
    svi_store_relaxed(&r->r_start_time, self.start_time);
    svi_store_relaxed(&r->r_attached_ns, svi_os_realtime_ns());
    for (size_t i = 0; i < 8; i++) {
        svi_store_relaxed(&r->r_command[i], self.command[i]);
    }
}

static int
row_try_lock(const svi_mapping *m, int fd, uint32_t row, sv_error *err)
{
    int status = svi_os_lock_try(fd, SVI_LOCK_ROW + row, true);
    if (status != 0 && status != -EAGAIN) {
        return svi_fail(err, SV_ESYS, -status, "attach", "cannot lock row %u of '%s'", row,
                        m->name);
    }
    return status == 0 ? 0 : SV_EROWS;
}

/* Does the row look free? A hint: trying to lock every row would cost the kernel a walk over all
 * locks for each of them. */
static bool
row_looks_free(const svi_mapping *m, uint32_t row)
{
    const svm_row *r = svi_row(m, row);
    return svi_load_relaxed(&r->r_state) == SVI_ROW_FREE || /* hint (R1) */
           svi_os_process_gone((int)svi_load_relaxed(&r->r_pid));
}

/* Lock a row that no living process holds: one that looks free, else the first that was never
 * taken, else any. */
static int
row_lock_free(const svi_mapping *m, int fd, uint32_t *row, sv_error *err)
{
    uint32_t high = svi_high_rows(m);
    int status = SV_EROWS;
    for (uint32_t pass = 0; pass < 2; pass++) {
        for (uint32_t r = 0; r < m->g.max_rows; r++) {
            if (pass == 0 && r < high && !row_looks_free(m, r)) {
                continue;
            }
            if ((status = row_try_lock(m, fd, r, err)) != SV_EROWS) {
                *row = r;
                return status;
            }
        }
    }
    return status;
}

/* Rows below the mark must have memory: a scan reads all of them, and on a full tmpfs reading a
 * hole is fatal. Whoever took the rows between the mark and ours may have died before reserving. */
static int
row_reserve(svi_mapping *m, int fd, uint32_t row, sv_error *err)
{
    uint32_t first = svi_high_rows(m);
    first = first < row ? first : row;
    uint64_t bytes = (uint64_t)(row - first + 1) * m->g.row_stride;
    int status = svi_os_allocate(fd, m->g.off_rows + first * m->g.row_stride, bytes);
    if (status == -ENOSPC) {
        uint64_t free_bytes = 0;
        uint64_t total = 0;
        (void)svi_os_free_bytes(m->directory, &free_bytes, &total);
        return svi_fail_no_space(err, "attach", m->directory, m->name, bytes, free_bytes, NULL);
    }
    return status == 0 ? 0
                       : svi_fail(err, SV_ESYS, -status, "attach", "cannot reserve row %u of '%s'",
                                  row, m->name);
}

static int
row_fail_full(svi_mapping *m, sv_error *err)
{
    char pids[400];
    size_t used = 0;
    pids[0] = '\0';
    for (uint32_t r = 0; r < svi_high_rows(m) && used + 24 < sizeof pids; r++) {
        used += (size_t)snprintf(pids + used, sizeof pids - used, "%s%llu", r == 0 ? "" : ", ",
                                 (unsigned long long)svi_load_relaxed(&svi_row(m, r)->r_pid));
    }
    return svi_fail(err, SV_EROWS, 0, "attach",
                    "all %u rows of '%s' are taken by living processes (pids %s%s); end some of "
                    "them, or make the segment with a larger max_rows",
                    m->g.max_rows, m->name, pids, used + 24 < sizeof pids ? "" : ", ...");
}

int
svi_row_take(svi_mapping *m, bool inherit, bool owner, svi_hold *out, sv_error *err)
{
    svi_hold hold = {.row = SVI_NO_ROW};
    unsigned char *rw = NULL;
    int status = 0;
    int fd = svi_fresh(m);
    if (fd < 0) {
        return svi_fail(err, SV_ESYS, -fd, "attach", "cannot open '%s' again", m->name);
    }
    if ((status = svi_os_map_anchor(fd, inherit, &hold.anchor)) != 0) {
        status =
            svi_fail(err, SV_ESYS, -status, "attach", "cannot map the anchor of '%s'", m->name);
        goto fail;
    }
    if ((status = svi_os_lock_try(fd, SVI_LOCK_ATTACHED, false)) != 0) {
        status = status == -EAGAIN
                     ? svi_fail(err, SV_EBUSY, 0, "attach", "'%s' is being swept", m->name)
                     : svi_fail(err, SV_ESYS, -status, "attach", "cannot lock '%s'", m->name);
        goto fail;
    }
    if ((status = row_lock_free(m, fd, &hold.row, err)) != 0) {
        status = status == SV_EROWS ? row_fail_full(m, err) : status;
        goto fail;
    }
    if (owner && (status = svi_os_lock_try(fd, SVI_LOCK_OWNER, true)) != 0) {
        status = svi_fail(err, SV_EBUSY, -status, "attach", "cannot take the owner byte of '%s'",
                          m->name);
        goto fail;
    }
    SVI_STEP("attach.locked");
    if ((status = row_reserve(m, fd, hold.row, err)) != 0) {
        goto fail;
    }
    if ((status = svi_writable_borrow(m, &rw, err)) != 0) {
        goto fail;
    }
#ifdef SVI_TESTING
    if (svi_testing_single_map) {
        hold.map = svi_row_at(m, rw, hold.row);
    }
#endif
    if (hold.map == NULL) {
        void *map = NULL;
        status =
            svi_os_map(fd, m->g.off_rows + hold.row * m->g.row_stride, m->g.row_stride, true, &map);
        if (status != 0) {
            status = svi_fail(err, SV_ESYS, -status, "attach", "cannot map row %u of '%s'",
                              hold.row, m->name);
            goto fail;
        }
        hold.map = map;
    }
    if (svi_load_seq(&hold.map->r_state) != SVI_ROW_FREE) { /* E7 */
        row_clean(m, rw, hold.row);
    }
    svi_row_sign(hold.map, owner);
    svi_store_seq(&hold.map->r_state, SVI_ROW_LIVE); /* E8 */
    SVI_STEP("attach.live");
    svi_max_seq(&svi_header_at(rw)->h_high_rows, (uint64_t)hold.row + 1); /* E8: before any pin */
    SVI_STEP("attach.counted");
    svi_writable_return(m, rw);
    svi_os_close(fd); /* the anchor keeps the description, and with it the locks */
    *out = hold;
    return 0;

fail:
    svi_writable_return(m, rw);
    svi_os_unmap(hold.anchor, SVI_PAGE);
    svi_os_close(fd);
    return status;
}

void
svi_row_unmap(const svi_mapping *m, svi_hold *hold)
{
#ifdef SVI_TESTING
    if (svi_testing_single_map) {
        return; /* it lies in the map of the whole file */
    }
#endif
    svi_os_unmap(hold->map, m->g.row_stride);
    hold->map = NULL;
}

void
svi_row_drop(svi_mapping *m, svi_hold *hold)
{
    if (hold->row == SVI_NO_ROW) {
        return;
    }
    svi_store_seq(&hold->map->r_state, SVI_ROW_FREE); /* E7: before the lock goes */
    SVI_STEP("detach.freed");
    svi_row_unmap(m, hold);
    svi_os_unmap(hold->anchor, SVI_PAGE);
    SVI_STEP("detach.unlocked");
    *hold = (svi_hold){.row = SVI_NO_ROW};
}

void
svi_row_show_handles(const svi_mapping *m)
{
    if (m->hold.row != SVI_NO_ROW) {
        svi_store_relaxed(&m->hold.map->r_handles, m->handles);
    }
}

void
svi_row_install(svi_mapping *m, const svi_hold *hold)
{
    m->hold = *hold;
    svi_row_show_handles(m);
    atomic_store_explicit(m->cells, hold->row == SVI_NO_ROW ? NULL : hold->map->r_cells,
                          memory_order_release);
}

uint64_t
svi_row_own_pins(const svi_mapping *m)
{
    uint64_t sum = 0;
    if (m->hold.row != SVI_NO_ROW) {
        for (uint32_t b = 0; b < m->g.buffer_count; b++) {
            sum += svi_cell_pins(svi_load_seq(&m->hold.map->r_cells[b])); /* E12 */
        }
    }
    return sum;
}

svi_word *
svi_cells_slow(svi_mapping *m, int *status, sv_error *err)
{
    svi_word *cells = NULL;
    if ((*status = svi_process_lock(err)) != 0) {
        return NULL;
    }
    cells = svi_cells(m);
    if (cells == NULL && !m->mapped) {
        *status = svi_fail(err, SV_ECLOSED, 0, "attach", "the handle is closed");
    } else if (cells == NULL) {
        svi_hold hold;
        *status = svi_row_take(m, false, false, &hold, err);
        if (*status == 0) {
            svi_row_install(m, &hold);
            cells = svi_cells(m);
        }
    }
    svi_process_unlock();
    return cells;
}

int
sv_segment_join(sv_segment *segment, sv_error *err)
{
    svi_mapping *m = svi_mapping_of(segment);
    int status = 0;
    if (m == NULL) {
        return svi_fail(err, SV_ECLOSED, 0, "attach", "the handle is closed");
    }
    return svi_cells(m) != NULL || svi_cells_slow(m, &status, err) != NULL ? 0 : status;
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
row_recover(svi_mapping *m, unsigned char *rw, uint32_t row)
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
            row_clean(m, rw, row);
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
row_count_filled(const svi_mapping *m, unsigned char *rw)
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
    if (svi_probe(m) < 0) {
        status = svi_fail(err, SV_ESYS, EBADF, "recover", "cannot open '%s' again", m->name);
        goto done;
    }
    if ((status = svi_writable_borrow(m, &rw, err)) != 0) {
        goto done;
    }
    uint32_t high = svi_high_rows(m);
    for (uint32_t r = 0; r < high; r++) {
        const svm_row *row = svi_row(m, r);
        /* hints (R5): what counts is looked at again under the row's lock */
        if (r == m->hold.row || svi_load_seq(&row->r_state) == SVI_ROW_FREE ||
            (buffer != SVI_ANY_BUFFER &&
             svi_cell_pins(svi_load_relaxed(&row->r_cells[buffer])) == 0) ||
            svi_row_alive(m, r)) {
            continue;
        }
        int cleaned = row_recover(m, rw, r);
        if (cleaned < 0) {
            status = svi_fail(err, SV_ESYS, -cleaned, "recover", "cannot recover row %u of '%s'", r,
                              m->name);
            break;
        }
        count += (uint32_t)cleaned;
    }
    row_count_filled(m, rw);
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

uint64_t
svi_buffer_pins(const svi_mapping *m, uint32_t buffer)
{
    uint64_t sum = 0;
    uint32_t high = svi_high_rows(m);
    for (uint32_t r = 0; r < high; r++) {
        sum += svi_cell_pins(svi_load_seq(&svi_row(m, r)->r_cells[buffer])); /* E4, E10 */
        SVI_STEP("scan.passed");
    }
    return sum;
}

uint64_t
svi_buffer_reads(const svi_mapping *m, uint32_t buffer)
{
    uint64_t sum = 0;
    uint32_t high = svi_high_rows(m);
    for (uint32_t r = 0; r < high; r++) {
        sum += svi_cell_reads(svi_load_relaxed(&svi_row(m, r)->r_cells[buffer])); /* counter only */
    }
    return sum & SVI_READS_MASK;
}

uint64_t
svi_buffer_reads_settled(const svi_mapping *m, uint32_t buffer)
{
    uint64_t sum = 0;
    uint32_t high = svi_high_rows(m);
    for (uint32_t r = 0; r < high; r++) {
        uint64_t cell = svi_load_seq(&svi_row(m, r)->r_cells[buffer]); /* counter (C1) */
        for (int wait = 0; svi_cell_pins(cell) != 0 && wait < 1000; wait++) {
            cell = svi_load_seq(&svi_row(m, r)->r_cells[buffer]); /* counter (C1) */
        }
        sum += svi_cell_reads(cell);
    }
    return sum & SVI_READS_MASK;
}

static uint64_t
row_pins(const svi_mapping *m, uint32_t row, uint32_t buffer)
{
    const svm_row *r = svi_row(m, row);
    if (buffer != SVI_ANY_BUFFER) {
        return svi_cell_pins(svi_load_relaxed(&r->r_cells[buffer])); /* relaxed: for people */
    }
    uint64_t sum = 0;
    for (uint32_t b = 0; b < m->g.buffer_count; b++) {
        sum += svi_cell_pins(svi_load_relaxed(&r->r_cells[b])); /* relaxed: for people */
    }
    return sum;
}

void
svi_row_holders(svi_mapping *m, uint32_t buffer, char *out, size_t bytes)
{
    uint32_t high = svi_high_rows(m);
    size_t used = 0;
    uint32_t more = 0;
    out[0] = '\0';
    for (uint32_t r = 0; r < high; r++) {
        /* a hint, for people */
        uint64_t pins =
            svi_load_seq(&svi_row(m, r)->r_state) == SVI_ROW_FREE ? 0 : row_pins(m, r, buffer);
        if (pins == 0) {
            continue;
        }
        if (used + 64 > bytes) {
            more++;
            continue;
        }
        used += (size_t)snprintf(out + used, bytes - used, "%spid %llu (%llu pin%s)",
                                 used == 0 ? "" : ", ",
                                 (unsigned long long)svi_load_relaxed(&svi_row(m, r)->r_pid),
                                 (unsigned long long)pins, pins == 1 ? "" : "s");
    }
    if (more != 0) {
        (void)snprintf(out + used, bytes - used, " and %u more", more);
    }
    if (used == 0) {
        (void)snprintf(out, bytes, "nobody any more");
    }
}

/* Add the claims of all rows to what was listed, in one pass over the buffers. */
static void
row_count_claims(const svi_mapping *m, sv_row_info *out, uint32_t count)
{
    for (uint32_t b = 0; b < m->g.buffer_count; b++) {
        uint64_t writer = svi_load_relaxed(&svi_buffer(m, b)->b_writer); /* relaxed: for people */
        for (uint32_t i = 0; writer != 0 && i < count; i++) {
            out[i].claims += writer == (uint64_t)out[i].row + 1;
        }
    }
}

uint32_t
sv_rows(const sv_segment *segment, sv_row_info *out, uint32_t count)
{
    svi_mapping *m = svi_mapping_of(segment);
    if (m == NULL || svi_process_lock(NULL) != 0) {
        return 0;
    }
    uint32_t found = 0;
    uint32_t high = svi_high_rows(m);
    int probe = svi_probe(m);
    for (uint32_t r = 0; r < high; r++) {
        const svm_row *row = svi_row(m, r);
        if (svi_load_seq(&row->r_state) == SVI_ROW_FREE) { /* a hint, for people */
            continue;
        }
        if (found < count) {
            sv_row_info *info = &out[found];
            uint64_t words[8];
            for (size_t i = 0; i < 8; i++) {
                words[i] = svi_load_relaxed(&row->r_command[i]);
            }
            memcpy(info->command, words, sizeof info->command);
            info->command[sizeof info->command - 1] = '\0';
            info->row = r;
            info->live = probe < 0 || svi_os_lock_test(probe, SVI_LOCK_ROW + r) != 0;
            info->owner = info->live && svi_load_relaxed(&row->r_owner) != 0;
            info->pid = (int32_t)svi_load_relaxed(&row->r_pid);
            info->start_time = svi_load_relaxed(&row->r_start_time);
            info->attached_ns = svi_load_relaxed(&row->r_attached_ns);
            info->pins = row_pins(m, r, SVI_ANY_BUFFER);
            info->claims = 0;
        }
        found++;
    }
    row_count_claims(m, out, found < count ? found : count);
    svi_process_unlock();
    return found;
}

uint64_t
sv_handle_count(const sv_segment *segment)
{
    svi_mapping *m = svi_mapping_of(segment);
    if (m == NULL || svi_process_lock(NULL) != 0) {
        return 0;
    }
    uint64_t count = 0;
    uint32_t high = svi_high_rows(m);
    for (uint32_t r = 0; r < high; r++) {
        const svm_row *row = svi_row(m, r);
        /* a hint, for people */
        if (svi_load_seq(&row->r_state) != SVI_ROW_FREE && svi_row_alive(m, r)) {
            count += svi_load_relaxed(&row->r_handles);
        }
    }
    svi_process_unlock();
    return count;
}
