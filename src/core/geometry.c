/* The layout of a segment. Attach repeats the computation and compares: nothing else in the header
 * about places is believed. */
#include "geometry.h"

#include <string.h>

#include "error.h"

/* Rows that are reserved when nobody says for how many processes: enough for the workers of a usual node.
 * A row is 8 bytes for each buffer. */
#define GEOMETRY_LEAST_BLOCK_ROWS 4
#define GEOMETRY_LEAST_ROWS 16 /* 128 bytes for each buffer, whose header takes 576 */
#define GEOMETRY_MOST_ROWS 64
#define GEOMETRY_ROWS_FREE_BYTES (UINT64_C(1) << 20) /* nobody misses so much */
#define GEOMETRY_ROWS_PART 32                  /* beyond that, rows take this part of the payload */
#define GEOMETRY_MAX_BYTES (UINT64_C(1) << 46) /* 64 TiB; keeps every sum far from overflow */

static uint64_t
geometry_round_up(uint64_t value, uint64_t multiple)
{
    return (value + multiple - 1) / multiple * multiple;
}

/* Fill in all places from the counts. Returns 0 when the result is too large to be real. */
static int
geometry_lay_out(svi_geometry *g)
{
    uint64_t align = g->chunk_size >= SVI_PAGE ? SVI_PAGE : SVI_LINE;
    g->buffer_stride = geometry_round_up(g->chunk_size, align);
    g->header_stride = sizeof(svm_buffer) + (uint64_t)g->max_arrays * sizeof(svm_array);
    g->row_stride =
        geometry_round_up(sizeof(svm_row) + (uint64_t)g->buffer_count * sizeof(svi_word), SVI_PAGE);
    g->off_slots = SVI_PAGE;
    g->off_buffers =
        geometry_round_up(g->off_slots + (uint64_t)g->slot_count * sizeof(svm_slot), SVI_LINE);
    g->off_rows =
        geometry_round_up(g->off_buffers + (uint64_t)g->buffer_count * g->header_stride, SVI_PAGE);
    if (g->row_stride > GEOMETRY_MAX_BYTES / g->max_rows) {
        return 0;
    }
    g->off_ring = g->off_rows + (uint64_t)g->max_rows * g->row_stride;
    g->off_payload =
        geometry_round_up(g->off_ring + (uint64_t)g->stats_capacity * sizeof(uint32_t), SVI_PAGE);
    if (g->buffer_stride > GEOMETRY_MAX_BYTES / g->buffer_count) {
        return 0;
    }
    g->segment_bytes =
        geometry_round_up(g->off_payload + (uint64_t)g->buffer_count * g->buffer_stride, SVI_PAGE);
    return g->segment_bytes <= GEOMETRY_MAX_BYTES;
}

/* How many slots version 0.1.0 made of a memory size: its allocator took 752 bytes and 16 for each
 * chunk that would fit bare, and 328 bytes beside each chunk in steps of 16. Keeping the count keeps
 * the scripts that rely on it. */
static uint64_t
geometry_slots_of_size(uint64_t max_memory_size, uint64_t chunk_size)
{
    uint64_t bare = max_memory_size / chunk_size;
    if (bare > SV_MAX_BUFFERS) {
        return bare; /* refused as too many; 16 times as much may be no number */
    }
    uint64_t overhead = 752 + 16 * bare;
    if (max_memory_size <= overhead) {
        return 0;
    }
    return (max_memory_size - overhead) / geometry_round_up(chunk_size + 328, 16);
}

/* A page for each MiB of the array. */
static uint64_t
geometry_block_rows(const svi_geometry *g)
{
    uint64_t rows = g->chunk_size >> 20;
    rows = rows < GEOMETRY_LEAST_BLOCK_ROWS ? GEOMETRY_LEAST_BLOCK_ROWS : rows;
    return rows > GEOMETRY_MOST_ROWS ? GEOMETRY_MOST_ROWS : rows;
}

/* Processes, beside the maker, that a segment is made for when nobody says so; at least 1, as 0 marks a
 * segment of format 1.0. */
static uint32_t
geometry_usual_processes(const svi_geometry *g)
{
    uint64_t rows = GEOMETRY_MOST_ROWS;
    if (g->kind == SVI_KIND_BLOCK) {
        rows = geometry_block_rows(g);
    } else if (rows * g->row_stride > GEOMETRY_ROWS_FREE_BYTES) {
        uint64_t part = (g->segment_bytes - g->off_payload) / GEOMETRY_ROWS_PART / g->row_stride;
        rows = part < GEOMETRY_LEAST_ROWS ? GEOMETRY_LEAST_ROWS : part;
        rows = rows > GEOMETRY_MOST_ROWS ? GEOMETRY_MOST_ROWS : rows;
    }
    rows = rows > g->max_rows ? g->max_rows : rows;
    return rows < 2 ? 1 : (uint32_t)rows - 1;
}

static int
geometry_check_range(const char *name, uint64_t value, uint64_t low, uint64_t high, sv_error *err)
{
    if (value < low || value > high) {
        return svi_fail(err, SV_EINVAL, 0, "check options",
                        "%s must be from %llu to %llu, found %llu", name, (unsigned long long)low,
                        (unsigned long long)high, (unsigned long long)value);
    }
    return 0;
}

int
svi_geometry_plan(const sv_options *options, svi_geometry *out, sv_error *err)
{
    svi_geometry g = {.chunk_size = options->chunk_size,
                      .max_rows = options->max_rows,
                      .max_arrays = options->max_arrays,
                      .itemsize = options->itemsize,
                      .kind = options->block != 0 ? SVI_KIND_BLOCK : SVI_KIND_VECTOR};
    /* A block's only buffer is never replaced: none has to be free. */
    uint64_t most_slots = g.kind == SVI_KIND_BLOCK ? 1 : SV_MAX_BUFFERS - 1;
    uint64_t spares = g.kind == SVI_KIND_BLOCK ? 0 : options->spare_buffers;
    int status;
    uint64_t slots = g.kind == SVI_KIND_BLOCK ? 1 : options->slot_count;
    uint64_t bare = options->slot_count;
    if ((status = geometry_check_range("chunk_size", g.chunk_size, 1, GEOMETRY_MAX_BYTES / 4,
                                       err)) != 0) {
        return status;
    }
    if (slots == 0) {
        slots = geometry_slots_of_size(options->max_memory_size, options->chunk_size);
        bare = options->max_memory_size / options->chunk_size;
        if (slots == 0) {
            return svi_fail(err, SV_EINVAL, 0, "check options",
                            "max_memory_size=%llu leaves no slot for chunks of chunk_size=%llu "
                            "bytes; give at least %llu, or slot_count",
                            (unsigned long long)options->max_memory_size,
                            (unsigned long long)options->chunk_size,
                            (unsigned long long)(options->chunk_size + 1200));
        }
    }
    uint64_t samples = options->stats_capacity;
    if (samples == 0) {
        bare = bare > UINT32_MAX / 4 ? UINT32_MAX / 4 : bare;
        samples = bare < 8 ? 16 : 2 * bare;
    }
    if ((status = geometry_check_range("the number of slots", slots, 1, most_slots, err)) != 0 ||
        (status = geometry_check_range("spare_buffers", spares, g.kind != SVI_KIND_BLOCK,
                                       SV_MAX_BUFFERS - slots, err)) != 0 ||
        (status = geometry_check_range("max_rows", g.max_rows, 1, SV_MAX_ROWS, err)) != 0 ||
        (status = geometry_check_range("processes", options->processes, 0, g.max_rows - 1, err)) !=
            0 ||
        (status = geometry_check_range("max_arrays", g.max_arrays, 1, SV_MAX_ARRAYS, err)) != 0 ||
        (status = geometry_check_range("stats_capacity", samples, 1, UINT32_MAX / 2, err)) != 0 ||
        (status = geometry_check_range("itemsize", g.itemsize, 1, UINT32_MAX, err)) != 0) {
        return status;
    }
    g.slot_count = (uint32_t)slots;
    g.buffer_count = (uint32_t)(slots + spares);
    g.stats_capacity = (uint32_t)samples;
    if (!geometry_lay_out(&g)) {
        return svi_fail(err, SV_EINVAL, 0, "check options",
                        "%u buffers of %llu bytes and %u rows are more than a segment can have",
                        g.buffer_count, (unsigned long long)g.chunk_size, g.max_rows);
    }
    g.processes = options->processes != 0 ? options->processes : geometry_usual_processes(&g);
    *out = g;
    return 0;
}

static int
geometry_text_ends(const char *text, size_t size)
{
    return memchr(text, '\0', size) != NULL && text[0] != '\0';
}

int
svi_geometry_read(const svm_header *h, uint64_t file_bytes, const char *path, svi_geometry *out,
                  sv_error *err)
{
    static const char operation[] = "read header";
    static const char remedy[] = "remove it with remove_shared_memory() if nobody needs it";
    if (memcmp(h->h_magic, SVI_MAGIC, sizeof h->h_magic) != 0) {
        return svi_fail(err, SV_EFORMAT, 0, operation,
                        "%s is not a segment of sharedvector, or it was never finished; %s", path,
                        remedy);
    }
    if (h->h_byte_order != SVI_BYTE_ORDER || h->h_major != SV_FORMAT_MAJOR ||
        h->h_features_incompatible != 0 || h->h_features_read_only != 0 ||
        h->h_fingerprint != SVI_FINGERPRINT) {
        return svi_fail(err, SV_EFORMAT, 0, operation,
                        "%s has format %u.%u (layout %08x, features %x), this library reads %d.%d "
                        "(layout %08x); use the version that made it, or %s",
                        path, h->h_major, h->h_minor, h->h_fingerprint, h->h_features_incompatible,
                        SV_FORMAT_MAJOR, SV_FORMAT_MINOR, SVI_FINGERPRINT, remedy);
    }
    svi_geometry g = {.chunk_size = h->h_chunk_size,
                      .slot_count = h->h_slot_count,
                      .buffer_count = h->h_buffer_count,
                      .max_rows = h->h_max_rows,
                      .max_arrays = h->h_max_arrays,
                      .stats_capacity = h->h_stats_capacity,
                      .itemsize = h->h_itemsize,
                      .kind = h->h_kind,
                      .processes = h->h_processes};
    int counts = g.kind == SVI_KIND_BLOCK ? g.slot_count == 1 && g.buffer_count == 1
                                          : g.kind == SVI_KIND_VECTOR && g.slot_count >= 1 &&
                                                g.buffer_count > g.slot_count;
    int sane = g.chunk_size >= 1 && g.chunk_size <= GEOMETRY_MAX_BYTES / 4 && counts &&
               g.buffer_count <= SV_MAX_BUFFERS && g.max_rows >= 1 && g.max_rows <= SV_MAX_ROWS &&
               g.max_arrays >= 1 && g.max_arrays <= SV_MAX_ARRAYS && g.stats_capacity >= 1 &&
               g.stats_capacity <= UINT32_MAX / 2 && g.itemsize >= 1 &&
               geometry_text_ends(h->h_generation, sizeof h->h_generation) &&
               geometry_text_ends(h->h_dtype, sizeof h->h_dtype) && geometry_lay_out(&g);
    if (!sane || g.buffer_stride != h->h_buffer_stride || g.row_stride != h->h_row_stride ||
        g.off_slots != h->h_off_slots || g.off_buffers != h->h_off_buffers ||
        g.off_rows != h->h_off_rows || g.off_ring != h->h_off_ring ||
        g.off_payload != h->h_off_payload || g.segment_bytes != h->h_segment_bytes) {
        return svi_fail(err, SV_EFORMAT, 0, operation,
                        "the header of %s is damaged: its numbers contradict each other; %s", path,
                        remedy);
    }
    if (file_bytes != g.segment_bytes) {
        return svi_fail(err, SV_EFORMAT, 0, operation,
                        "%s has %llu bytes where its header says %llu; %s", path,
                        (unsigned long long)file_bytes, (unsigned long long)g.segment_bytes,
                        remedy);
    }
    *out = g;
    return 0;
}

uint32_t
svi_geometry_first_rows(const svi_geometry *g)
{
    uint64_t rows = (uint64_t)g->processes + 1;
    if (g->processes == 0 && g->kind == SVI_KIND_BLOCK) {
        rows = geometry_block_rows(g); /* what format 1.0 reserved */
    }
    return rows < g->max_rows ? (uint32_t)rows : g->max_rows;
}

uint64_t
svi_geometry_reserved(const svi_geometry *g)
{
    return g->segment_bytes - (uint64_t)(g->max_rows - svi_geometry_first_rows(g)) * g->row_stride;
}
