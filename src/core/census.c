/* Who holds what, counted over all rows: pins and reads of a buffer, holders in words, lists. */
#include <stdio.h>
#include <string.h>

#include "error.h"
#include "fork.h"
#include "os.h"
#include "row.h"

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
census_pins(const svi_mapping *m, uint32_t row, uint32_t buffer)
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
            svi_load_seq(&svi_row(m, r)->r_state) == SVI_ROW_FREE ? 0 : census_pins(m, r, buffer);
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
census_claims(const svi_mapping *m, sv_row_info *out, uint32_t count)
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
            info->pins = census_pins(m, r, SVI_ANY_BUFFER);
            info->claims = 0;
        }
        found++;
    }
    census_claims(m, out, found < count ? found : count);
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
