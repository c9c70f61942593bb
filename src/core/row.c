/*
 * Rows (rules R1-R4): taking one, giving it back, and this process's cells in it.
 *
 * A row's lock byte is held by an open-file-description lock whose description only the map of the
 * row keeps alive (the anchor). It lives exactly as long as this address space: dropped at SIGKILL
 * and exec, not inherited by fork, not lost by closing descriptors.
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

/* What a row says about this process. Read once: /proc costs as much as all the rest of attaching. */
typedef struct row_signature {
    uint64_t process;
    uint64_t pid;
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
        self.pid = (uint64_t)getpid();
        self.start_time = svi_os_start_time();
        self.process = svi_process_token();
    }
    svi_store_relaxed(&r->r_owner, owner);
    svi_store_relaxed(&r->r_pid, self.pid);
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

/* The words of a row that decide whether to try it, read without touching its memory: a row that was
 * never taken is a hole, and on a full tmpfs touching one is fatal. Zeros say so. */
#define ROW_FRONT_WORDS (offsetof(svm_row, r_counted) / sizeof(uint64_t) + 1)
typedef struct row_front {
    uint64_t state;
    uint64_t pid;
    uint64_t counted;
} row_front;

static int
row_look(const svi_mapping *m, int fd, uint32_t row, row_front *out, sv_error *err)
{
    uint64_t words[ROW_FRONT_WORDS];
    int got = svi_os_pread(fd, words, sizeof words, m->g.off_rows + row * m->g.row_stride);
    if (got != (int)sizeof words) {
        return svi_fail(err, SV_ESYS, got < 0 ? -got : EIO, "attach", "cannot read row %u of '%s'",
                        row, m->name);
    }
    *out = (row_front){.state = words[offsetof(svm_row, r_state) / sizeof words[0]],
                       .pid = words[offsetof(svm_row, r_pid) / sizeof words[0]],
                       .counted = words[offsetof(svm_row, r_counted) / sizeof words[0]]};
    return 0;
}

/* Lock a row that no living process holds: the first that looks free or was never taken, else any.
 * The looks are hints: trying to lock every row would cost the kernel a walk over all locks for each
 * of them. */
static int
row_lock_free(const svi_mapping *m, int fd, uint32_t *row, bool *counted, sv_error *err)
{
    int status = SV_EROWS;
    for (uint32_t pass = 0; pass < 2; pass++) {
        for (uint32_t r = 0; r < m->g.max_rows; r++) {
            row_front front = {0};
            if ((status = row_look(m, fd, r, &front, err)) != 0) {
                return status;
            }
            if (pass == 0 && front.state != SVI_ROW_FREE && !svi_os_process_gone((int)front.pid)) {
                status = SV_EROWS;
                continue;
            }
            if ((status = row_try_lock(m, fd, r, err)) != SV_EROWS) {
                *row = r;
                *counted = front.counted != 0 && r < svi_high_rows(m); /* not in a damaged row */
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
        status = svi_fail_no_space(err, "attach", m->directory, m->name, bytes, free_bytes, NULL);
        if (err != NULL) {
            size_t used = strlen(err->message);
            (void)snprintf(err->message + used, sizeof err->message - used,
                           "; it was made for %u processes, whose memory is reserved: make it for "
                           "more (`processes`)",
                           m->g.processes);
        }
        return status;
    }
    return status == 0 ? 0
                       : svi_fail(err, SV_ESYS, -status, "attach", "cannot reserve row %u of '%s'",
                                  row, m->name);
}

bool
svi_rows_look(const svi_mapping *m, uint32_t *high)
{
    svi_word *known =
        (svi_word *)(uintptr_t)&m->rows_seen; /* what is known of the file, not of m */
    uint64_t seen = svi_load_relaxed(known);  /* relaxed: it only grows */
    uint64_t mark = svi_load_seq(&svi_header(m)->h_high_rows); /* E8 */
    mark = mark < m->g.max_rows ? mark : m->g.max_rows;
    if (mark > seen) {
        const void *rows = svi_row(m, (uint32_t)seen);
        int status = svi_os_prefault_read((void *)(uintptr_t)rows, (mark - seen) * m->g.row_stride);
        if (status == -EFAULT) { /* reading there would be a SIGBUS */
            *high = (uint32_t)seen;
            return false;
        }
        if (status == 0 || status == -EINVAL) { /* before Linux 5.14 nobody can tell */
            svi_max_seq(known, mark);           /* counter of this process */
        }
    }
    *high = (uint32_t)mark;
    return true;
}

int
svi_rows_check(const svi_mapping *m, const char *operation, sv_error *err)
{
    uint32_t high = 0;
    return svi_rows_readable(m, &high)
               ? 0
               : svi_fail(err, SV_EFORMAT, 0, operation,
                          "'%s' is damaged: it says that %llu rows were taken, and %u have memory; "
                          "remove it with remove_shared_memory() and make it anew",
                          m->name,
                          (unsigned long long)svi_load_seq(&svi_header(m)->h_high_rows), /* E8 */
                          high);
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

/* Everybody attached read-locks one byte (rule S5); then a row, and the owner's byte if asked for. */
static int
row_lock(svi_mapping *m, int fd, bool owner, uint32_t *row, bool *counted, sv_error *err)
{
    int status = svi_os_lock_try(fd, SVI_LOCK_ATTACHED, false);
    if (status != 0) {
        return status == -EAGAIN
                   ? svi_fail(err, SV_EBUSY, 0, "attach", "'%s' is locked by another program",
                              m->name)
                   : svi_fail(err, SV_ESYS, -status, "attach", "cannot lock '%s'", m->name);
    }
    if ((status = row_lock_free(m, fd, row, counted, err)) != 0) {
        return status == SV_EROWS ? row_fail_full(m, err) : status;
    }
    if (owner && (status = svi_os_lock_try(fd, SVI_LOCK_OWNER, true)) != 0) {
        return svi_fail(err, status == -EAGAIN ? SV_EBUSY : SV_ESYS, -status, "attach",
                        "cannot take the owner byte of '%s'", m->name);
    }
    SVI_STEP("attach.locked");
    return 0;
}

/* Map the row. The map is the anchor too: it keeps the description of fd, and with it the locks. */
static int
row_map(svi_mapping *m, int fd, bool inherit, svi_hold *hold, sv_error *err)
{
    int status = svi_os_map_anchor(fd, m->g.off_rows + hold->row * m->g.row_stride, m->g.row_stride,
                                   inherit, &hold->anchor);
    if (status != 0) {
        return svi_fail(err, SV_ESYS, -status, "attach", "cannot map row %u of '%s'", hold->row,
                        m->name);
    }
    hold->map = hold->anchor;
#ifdef SVI_TESTING
    if (svi_testing_single_map) {
        hold->map = svi_row_at(m, atomic_load_explicit(&m->rw, memory_order_relaxed), hold->row);
    }
#endif
    return 0;
}

/* Raise the high-water mark above a row, so that scans look at it. The row remembers that. */
static int
row_count(svi_mapping *m, int fd, const svi_hold *hold, sv_error *err)
{
    unsigned char *kept = atomic_load_explicit(&m->rw, memory_order_acquire);
    void *page = kept;
    int status = kept != NULL ? 0 : svi_os_map(fd, 0, SVI_PAGE, true, &page);
    if (status != 0) {
        return svi_fail(err, SV_ESYS, -status, "attach", "cannot map the header of '%s'", m->name);
    }
    svi_max_seq(&svi_header_at(page)->h_high_rows,
                (uint64_t)hold->row + 1); /* E8: before any pin */
    SVI_STEP("attach.counted");
    svi_store_seq(&hold->map->r_counted, 1); /* E8: after the mark, for who takes the row next */
    SVI_STEP("attach.remembered");
    svi_os_unmap(kept != NULL ? NULL : page, SVI_PAGE);
    return 0;
}

/* Make a locked and mapped row live and scanned. */
static int
row_enter(svi_mapping *m, int fd, bool owner, const svi_hold *hold, sv_error *err)
{
    int status = 0;
    if (svi_load_seq(&hold->map->r_state) != SVI_ROW_FREE) { /* E7 */
        unsigned char *rw = NULL;
        if ((status = svi_writable_borrow(m, &rw, err)) != 0) {
            return status;
        }
        svi_row_clean(m, rw, hold->row);
        svi_writable_return(m, rw);
    }
    svi_row_sign(hold->map, owner);
    svi_store_seq(&hold->map->r_state, SVI_ROW_LIVE); /* E8 */
    SVI_STEP("attach.live");
    if (svi_load_seq(&hold->map->r_counted) == 0 || /* E8 */
        hold->row >= svi_high_rows(m)) {            /* a damaged row says that it was */
        status = row_count(m, fd, hold, err);
    }
    if (status != 0) {
        svi_store_seq(&hold->map->r_state, SVI_ROW_FREE); /* E7: it holds nothing */
    }
    return status;
}

int
svi_row_take(svi_mapping *m, int fd, uint32_t flags, svi_hold *out, sv_error *err)
{
    svi_hold hold = {.row = SVI_NO_ROW};
    bool owner = (flags & SVI_ROW_OWNER) != 0;
    bool counted = false;
    if (fd < 0 && (fd = svi_fresh(m)) < 0) {
        return svi_fail(err, SV_ESYS, -fd, "attach", "cannot open '%s' again", m->name);
    }
    int status = row_lock(m, fd, owner, &hold.row, &counted, err);
    if (status == 0 && !counted) {
        status = row_reserve(m, fd, hold.row, err);
    }
    if (status == 0) {
        status = row_map(m, fd, (flags & SVI_ROW_INHERIT) != 0, &hold, err);
    }
    if (status == 0) {
        status = row_enter(m, fd, owner, &hold, err);
    }
    svi_os_close(fd);
    if (status != 0) {
        svi_os_unmap(hold.anchor, m->g.row_stride);
        return status;
    }
    *out = hold;
    return 0;
}

void
svi_row_drop(svi_mapping *m, svi_hold *hold)
{
    if (hold->row == SVI_NO_ROW) {
        return;
    }
    svi_store_seq(&hold->map->r_state, SVI_ROW_FREE); /* E7: before the lock goes */
    SVI_STEP("detach.freed");
    svi_os_unmap(hold->anchor, m->g.row_stride);
    SVI_STEP("detach.unlocked");
    *hold = (svi_hold){.row = SVI_NO_ROW};
}

void
svi_row_leave(svi_mapping *m, svi_hold *hold)
{
    svi_os_unmap(hold->anchor, m->g.row_stride);
    SVI_STEP("detach.left");
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
svi_row_clear(const svi_mapping *m, svm_row *row, uint32_t group)
{
    uint32_t end = svi_cell_group_end(m, group);
    for (uint32_t b = group * SVI_CELL_GROUP; b < end; b++) {
        /* relaxed: nobody else writes to the cells of a row that we hold and have not used yet */
        if (svi_cell_pins(svi_load_relaxed(&row->r_cells[b])) != 0) { /* R4 */
            svi_and_seq(&row->r_cells[b], ~SVI_PINS_MASK);            /* E10 */
        }
    }
}

void
svi_row_open(svi_mapping *m)
{
    atomic_store_explicit(m->cells, m->hold.map->r_cells, memory_order_release);
}

int
svi_cells_clean(svi_mapping *m, uint32_t buffer)
{
    int status = svi_process_lock(NULL);
    if (status != 0) {
        return status;
    }
    if (svi_cells(m) == NULL) {
        status = SV_ECLOSED;
    } else if (!svi_cells_are_clean(m, buffer)) {
        svi_row_clear(m, m->hold.map, buffer / SVI_CELL_GROUP);
        /* release: who sees the flag adds its pin after the cleaning (R4) */
        atomic_store_explicit(&m->used[buffer / SVI_CELL_GROUP], 1, memory_order_release);
    }
    svi_process_unlock();
    return status;
}

uint64_t
svi_row_own_pins(const svi_mapping *m)
{
    const svi_word *cells = svi_cells(m);
    uint64_t sum = 0;
    for (uint32_t group = 0; cells != NULL && group < svi_cell_groups(m); group++) {
        if (!svi_cells_are_clean(m, group * SVI_CELL_GROUP)) {
            continue; /* never used */
        }
        for (uint32_t b = group * SVI_CELL_GROUP; b < svi_cell_group_end(m, group); b++) {
            sum += svi_cell_pins(svi_load_seq(&cells[b])); /* E12 */
        }
    }
    return sum - svi_load_relaxed(&m->left_pins); /* relaxed: their cells were read before */
}

int
svi_row_join(svi_mapping *m, int fd, uint32_t flags, sv_error *err)
{
    int status = 0;
    if (m->hold.row == SVI_NO_ROW && (status = svi_row_take(m, fd, flags, &m->hold, err)) == 0) {
        svi_row_show_handles(m);
    }
    return status;
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
    } else if (cells == NULL && (*status = svi_row_join(m, -1, 0, err)) == 0) {
        memset((void *)m->used, 0,
               svi_cell_groups(m) * sizeof *m->used); /* a child's: the parent's */
        svi_row_open(m);
        cells = svi_cells(m);
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
