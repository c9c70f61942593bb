/* Who holds what, counted over all rows: pins and reads of a buffer, holders in words, lists. */
#include <stdio.h>
#include <string.h>

#include "error.h"
#include "fork.h"
#include "os.h"
#include "row.h"

#define CENSUS_COMMAND 64

uint64_t
svi_buffer_pins(const svi_mapping *m, uint32_t buffer)
{
    uint64_t sum = 0;
    uint32_t high = 0;
    if (!svi_rows_readable(m, &high)) {
        return 1; /* perhaps, in a row that cannot be read */
    }
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

/* The command line that a row shows, which may be anything. */
static void
census_command(const svm_row *row, char out[CENSUS_COMMAND])
{
    uint64_t words[CENSUS_COMMAND / sizeof(uint64_t)];
    for (size_t i = 0; i < CENSUS_COMMAND / sizeof words[0]; i++) {
        words[i] = svi_load_relaxed(&row->r_command[i]); /* relaxed: for people */
    }
    memcpy(out, words, sizeof words);
    out[CENSUS_COMMAND - 1] = '\0';
}

/* Views that a row holds of `buffer` (or of anything). *oldest_ns: when the oldest chunk among them was
 * published, so that none of these views is older; 0: it holds none. Relaxed: for people. */
static uint64_t
census_pins(const svi_mapping *m, uint32_t row, uint32_t buffer, uint64_t *oldest_ns)
{
    const svm_row *r = svi_row(m, row);
    uint32_t first = buffer == SVI_ANY_BUFFER ? 0 : buffer;
    uint32_t end = buffer == SVI_ANY_BUFFER ? m->g.buffer_count : buffer + 1;
    uint64_t sum = 0;
    *oldest_ns = 0;
    for (uint32_t b = first; b < end; b++) {
        uint64_t pins = svi_cell_pins(svi_load_relaxed(&r->r_cells[b])); /* relaxed: for people */
        if (pins != 0) {
            uint64_t published = svi_load_relaxed(&svi_buffer(m, b)->b_published_ns); /* the same */
            *oldest_ns = *oldest_ns == 0 || published < *oldest_ns ? published : *oldest_ns;
        }
        sum += pins;
    }
    return sum;
}

#define CENSUS_WRITERS 64

/* Buffers that rows have claimed, as far as there is room. */
typedef struct census_writers {
    uint32_t count;
    uint64_t rows[CENSUS_WRITERS];
    uint64_t claims[CENSUS_WRITERS];
} census_writers;

/* One pass over the buffers, as their headers are far apart. Relaxed: for people. */
static void
census_find_writers(const svi_mapping *m, census_writers *out)
{
    out->count = 0;
    for (uint32_t b = 0; b < m->g.buffer_count; b++) {
        uint64_t writer = svi_load_relaxed(&svi_buffer(m, b)->b_writer); /* relaxed: for people */
        uint32_t i = 0;
        while (writer != 0 && i < out->count && out->rows[i] != writer - 1) {
            i++;
        }
        if (writer == 0 || i == CENSUS_WRITERS) {
            continue;
        }
        if (i == out->count) {
            out->rows[i] = writer - 1;
            out->claims[i] = 0;
            out->count++;
        }
        out->claims[i]++;
    }
}

static uint64_t
census_claims(const census_writers *writers, uint32_t row)
{
    for (uint32_t i = 0; i < writers->count; i++) {
        if (writers->rows[i] == row) {
            return writers->claims[i];
        }
    }
    return 0;
}

/* "pid 12 (python train.py): 3 views of chunks from 40 s ago on, 1 reserved buffer" */
static int
census_describe(const svi_mapping *m, uint32_t row, uint64_t pins, uint64_t oldest_ns,
                uint64_t claims, char *out, size_t bytes)
{
    const svm_row *r = svi_row(m, row);
    char command[CENSUS_COMMAND];
    char views[80] = "";
    char reserved[48] = "";
    uint64_t now = svi_os_realtime_ns();
    census_command(r, command);
    for (char *c = command; *c != '\0'; c++) {
        *c = (unsigned char)*c < ' ' || *c == 127 ? '?' : *c; /* one line */
    }
    if (pins != 0) {
        (void)snprintf(views, sizeof views, "%llu view%s, the oldest of a chunk from %llu s ago",
                       (unsigned long long)pins, pins == 1 ? "" : "s",
                       (unsigned long long)(now > oldest_ns ? (now - oldest_ns) / 1000000000 : 0));
    }
    if (claims != 0) {
        (void)snprintf(reserved, sizeof reserved, "%s%llu reserved buffer%s",
                       pins == 0 ? "" : " and ", (unsigned long long)claims,
                       claims == 1 ? "" : "s");
    }
    return snprintf(out, bytes, "pid %llu (%s): %s%s",
                    (unsigned long long)svi_load_relaxed(&r->r_pid), command, views, reserved);
}

void
svi_row_holders(svi_mapping *m, uint32_t buffer, char *out, size_t bytes)
{
    uint32_t high = svi_high_rows(m);
    size_t used = 0;
    uint32_t more = 0;
    census_writers writers = {.count = 0};
    out[0] = '\0';
    if (buffer == SVI_ANY_BUFFER) {
        census_find_writers(m, &writers);
    }
    for (uint32_t r = 0; r < high; r++) {
        char text[256];
        uint64_t oldest_ns = 0;
        if (svi_load_seq(&svi_row(m, r)->r_state) == SVI_ROW_FREE) { /* a hint, for people */
            continue;
        }
        uint64_t pins = census_pins(m, r, buffer, &oldest_ns);
        uint64_t claims = census_claims(&writers, r);
        if (pins == 0 && claims == 0) {
            continue;
        }
        int length = census_describe(m, r, pins, oldest_ns, claims, text, sizeof text);
        if (length < 0 || used + (size_t)length + 24 > bytes) {
            more++;
            continue;
        }
        used += (size_t)snprintf(out + used, bytes - used, "%s%s", used == 0 ? "" : "; ", text);
    }
    if (more != 0) {
        (void)snprintf(out + used, bytes - used, " and %u more", more);
    }
    if (used == 0) {
        (void)snprintf(out, bytes, "nobody any more");
    }
}

uint32_t
sv_rows(const sv_segment *segment, sv_row_info *out, uint32_t count)
{
    svi_look look;
    if (svi_look_begin_handle(segment, &look, NULL) != 0) {
        return 0;
    }
    uint32_t found = 0;
    uint32_t high = svi_high_rows(look.m);
    census_writers writers;
    census_find_writers(look.m, &writers);
    for (uint32_t r = 0; r < high; r++) {
        const svm_row *row = svi_row(look.m, r);
        if (svi_load_seq(&row->r_state) == SVI_ROW_FREE) { /* a hint, for people */
            continue;
        }
        if (found < count) {
            sv_row_info *info = &out[found];
            census_command(row, info->command);
            info->row = r;
            info->live = svi_row_alive(look.probe, r);
            info->owner = info->live && svi_load_relaxed(&row->r_owner) != 0;
            info->pid = (int32_t)svi_load_relaxed(&row->r_pid);
            info->start_time = svi_load_relaxed(&row->r_start_time);
            info->attached_ns = svi_load_relaxed(&row->r_attached_ns);
            info->pins = census_pins(look.m, r, SVI_ANY_BUFFER, &info->oldest_ns);
            info->claims = census_claims(&writers, r);
        }
        found++;
    }
    svi_look_end(&look);
    return found;
}

uint64_t
sv_handle_count(const sv_segment *segment)
{
    svi_look look;
    if (svi_look_begin_handle(segment, &look, NULL) != 0) {
        return 0;
    }
    uint64_t count = 0;
    uint32_t high = svi_high_rows(look.m);
    for (uint32_t r = 0; r < high; r++) {
        const svm_row *row = svi_row(look.m, r);
        /* a hint, for people */
        if (svi_load_seq(&row->r_state) != SVI_ROW_FREE && svi_row_alive(look.probe, r)) {
            count += svi_load_relaxed(&row->r_handles);
        }
    }
    svi_look_end(&look);
    return count;
}
