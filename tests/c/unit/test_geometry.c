/* Layout of a segment: planned from options, repeated from a header, and refused otherwise. */
#include "geometry.h"

#include <string.h>

#include "error.h"
#include "world.h"

static svi_geometry
plan(const sv_options *options)
{
    svi_geometry g = {.chunk_size = 0};
    sv_error err = {.message = ""};
    if (!EQ(svi_geometry_plan(options, &g, &err), 0)) {
        tap_note("%s", err.message);
    }
    return g;
}

static svm_header
header_of(const svi_geometry *g)
{
    svm_header h;
    memset(&h, 0, sizeof h);
    memcpy(h.h_magic, SVI_MAGIC, sizeof h.h_magic);
    h.h_major = SV_FORMAT_MAJOR;
    h.h_byte_order = SVI_BYTE_ORDER;
    h.h_fingerprint = SVI_FINGERPRINT;
    h.h_segment_bytes = g->segment_bytes;
    h.h_chunk_size = g->chunk_size;
    h.h_buffer_stride = g->buffer_stride;
    h.h_slot_count = g->slot_count;
    h.h_buffer_count = g->buffer_count;
    h.h_max_rows = g->max_rows;
    h.h_max_arrays = g->max_arrays;
    h.h_stats_capacity = g->stats_capacity;
    h.h_itemsize = g->itemsize;
    h.h_processes = g->processes;
    h.h_off_slots = g->off_slots;
    h.h_off_buffers = g->off_buffers;
    h.h_off_rows = g->off_rows;
    h.h_off_ring = g->off_ring;
    h.h_off_payload = g->off_payload;
    h.h_row_stride = g->row_stride;
    svi_text_copy(h.h_generation, sizeof h.h_generation, "generation");
    svi_text_copy(h.h_dtype, sizeof h.h_dtype, "float32");
    return h;
}

static void
memory_sizes_give_the_slots_of_the_old_version(void)
{
    static const struct {
        uint64_t chunk;
        uint64_t memory;
        uint32_t slots;
    } rows[] = {{1u << 20, 10u << 20, 9},
                {1u << 20, 64u << 20, 63},
                {16u << 20, 128u << 20, 7},
                {4096, 1u << 20, 235}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        sv_options options;
        sv_options_init(&options);
        options.itemsize = 4;
        options.chunk_size = rows[i].chunk;
        options.max_memory_size = rows[i].memory;
        tap_context("chunks of %llu", (unsigned long long)rows[i].chunk);
        svi_geometry g = plan(&options);
        EQ(g.slot_count, rows[i].slots);
        EQ(g.buffer_count, rows[i].slots + 2);
        EQ(g.stats_capacity, 2 * rows[i].memory / rows[i].chunk);
    }
}

static void
refuse(const sv_options *options, const char *name, const char *found)
{
    svi_geometry g = {.chunk_size = 77};
    sv_error err = {.message = ""};
    EQ(svi_geometry_plan(options, &g, &err), SV_EINVAL);
    EQ(g.chunk_size, 77);
    HAS(err.message, name);
    HAS(err.message, found);
    EQ(svi_geometry_plan(options, &g, NULL), SV_EINVAL);
}

static void
options_out_of_range_are_named(void)
{
    sv_options options = world_options();
    options.chunk_size = 0;
    refuse(&options, "chunk_size", "found 0");
    options.chunk_size = UINT64_MAX;
    refuse(&options, "chunk_size", "18446744073709551615");
    options = world_options();
    options.slot_count = SV_MAX_BUFFERS;
    refuse(&options, "number of slots", "16777216");
    options.slot_count = 0;
    options.chunk_size = 1;
    options.max_memory_size = UINT64_C(1) << 60; /* 16 times as much is 0 */
    refuse(&options, "number of slots", "1152921504606846976");
    options = world_options();
    options.spare_buffers = 0;
    refuse(&options, "spare_buffers", "found 0");
    options.spare_buffers = SV_MAX_BUFFERS;
    refuse(&options, "spare_buffers", "16777212");
    options = world_options();
    options.max_rows = 0;
    refuse(&options, "max_rows", "found 0");
    options.max_rows = SV_MAX_ROWS + 1;
    refuse(&options, "max_rows", "65536");
    options = world_options();
    options.max_arrays = 0;
    refuse(&options, "max_arrays", "found 0");
    options.max_arrays = SV_MAX_ARRAYS + 1;
    refuse(&options, "max_arrays", "1 to 8");
    options = world_options();
    options.itemsize = 0;
    refuse(&options, "itemsize", "found 0");
    options = world_options();
    options.stats_capacity = UINT32_MAX;
    refuse(&options, "stats_capacity", "4294967295");
}

static void
memory_too_small_for_one_slot_says_what_is_needed(void)
{
    sv_options options = world_options();
    options.slot_count = 0;
    options.max_memory_size = 1000;
    refuse(&options, "max_memory_size=1000", "slot_count");
    options.max_memory_size = 0;
    refuse(&options, "max_memory_size=0", "2224");
    options.max_memory_size = options.chunk_size + 1200;
    EQ(plan(&options).slot_count, 1);
}

static void
impossible_totals_are_refused(void)
{
    sv_options options = world_options();
    options.chunk_size = UINT64_C(1) << 43;
    options.slot_count = 1u << 20;
    refuse(&options, "1048578 buffers", "more than");
}

static void
regions_are_ordered_and_aligned(void)
{
    uint64_t seed = 12345;
    for (int round = 0; round < 2000; round++) {
        sv_options options = world_options();
        options.chunk_size = 1 + world_random(&seed) % (1u << (round % 24));
        options.slot_count = (uint32_t)(1 + world_random(&seed) % 3000);
        options.spare_buffers = (uint32_t)(1 + world_random(&seed) % 50);
        options.max_rows = (uint32_t)(1 + world_random(&seed) % 2000);
        options.max_arrays = (uint32_t)(1 + world_random(&seed) % SV_MAX_ARRAYS);
        options.stats_capacity = (uint32_t)(1 + world_random(&seed) % 9000);
        tap_context("round %d, chunk_size %llu", round, (unsigned long long)options.chunk_size);
        svi_geometry g = plan(&options);
        CHECK(g.off_slots >= sizeof(svm_header));
        CHECK(g.off_buffers >= g.off_slots + g.slot_count * sizeof(svm_slot));
        CHECK(g.off_rows >= g.off_buffers + g.buffer_count * g.header_stride);
        CHECK(g.row_stride >= sizeof(svm_row) + g.buffer_count * sizeof(svi_word));
        CHECK(g.off_ring >= g.off_rows + g.max_rows * g.row_stride);
        CHECK(g.off_payload >= g.off_ring + g.stats_capacity * sizeof(uint32_t));
        CHECK(g.buffer_stride >= g.chunk_size);
        CHECK(g.segment_bytes >= g.off_payload + g.buffer_count * g.buffer_stride);
        EQ(g.off_rows % SVI_PAGE + g.row_stride % SVI_PAGE + g.off_payload % SVI_PAGE, 0);
        EQ(g.off_buffers % SVI_LINE + g.header_stride % SVI_LINE, 0);
        EQ(g.buffer_stride % (g.chunk_size >= SVI_PAGE ? SVI_PAGE : SVI_LINE), 0);
        uint64_t first = g.processes < g.max_rows ? g.processes + 1u : g.max_rows;
        EQ(svi_geometry_reserved(&g), g.segment_bytes - (g.max_rows - first) * g.row_stride);
        svi_geometry again = {.chunk_size = 0};
        svm_header h = header_of(&g);
        EQ(svi_geometry_read(&h, g.segment_bytes, "file", &again, NULL), 0);
        EQ(memcmp(&g, &again, sizeof g), 0);
    }
}

/*
 * Add 1 to each byte of a field and read: SV_EFORMAT, out untouched. A count that may grow a little
 * inside the rounding of its region (`slack`) can be taken as well; it still ends inside the file.
 */
static void
damage(size_t offset, size_t bytes, bool slack, const char *field)
{
    sv_options options = world_options();
    svi_geometry g = plan(&options);
    for (size_t i = 0; i < bytes; i++) {
        svm_header h = header_of(&g);
        svi_geometry out = {.chunk_size = 77};
        sv_error err = {.message = ""};
        unsigned char *raw = (unsigned char *)&h;
        tap_context("%s, byte %zu", field, i);
        raw[offset + i]++;
        int status = svi_geometry_read(&h, g.segment_bytes, "/path/file", &out, &err);
        if (slack && status == 0) {
            CHECK(out.off_payload + out.buffer_count * out.buffer_stride <= g.segment_bytes);
            CHECK(out.off_ring + out.stats_capacity * sizeof(uint32_t) <= out.off_payload);
            CHECK(out.off_buffers + out.buffer_count * out.header_stride <= out.off_rows);
            continue;
        }
        EQ(status, SV_EFORMAT);
        EQ(out.chunk_size, 77);
        HAS(err.message, "/path/file");
        HAS(err.message, "remove_shared_memory");
    }
}

#define DAMAGE_SLACK(field, slack)                                                                 \
    damage(offsetof(svm_header, field), sizeof(((svm_header *)NULL)->field), slack, #field)
#define DAMAGE(field) DAMAGE_SLACK(field, false)

static void
damaged_headers_are_refused(void)
{
    DAMAGE(h_magic);
    DAMAGE(h_major);
    DAMAGE(h_byte_order);
    DAMAGE(h_features_incompatible);
    DAMAGE(h_fingerprint);
    DAMAGE(h_segment_bytes);
    DAMAGE(h_chunk_size);
    DAMAGE(h_buffer_stride);
    DAMAGE(h_slot_count);
    DAMAGE_SLACK(h_buffer_count, true);
    DAMAGE(h_max_rows);
    DAMAGE(h_max_arrays);
    DAMAGE_SLACK(h_stats_capacity, true);
    DAMAGE(h_off_slots);
    DAMAGE(h_off_buffers);
    DAMAGE(h_off_rows);
    DAMAGE(h_off_ring);
    DAMAGE(h_off_payload);
    DAMAGE(h_row_stride);
}

static void
texts_without_end_are_refused(void)
{
    sv_options options = world_options();
    svi_geometry g = plan(&options);
    svi_geometry out;
    svm_header h = header_of(&g);
    memset(h.h_generation, 'g', sizeof h.h_generation);
    EQ(svi_geometry_read(&h, g.segment_bytes, "f", &out, NULL), SV_EFORMAT);
    h = header_of(&g);
    h.h_generation[0] = '\0';
    EQ(svi_geometry_read(&h, g.segment_bytes, "f", &out, NULL), SV_EFORMAT);
    h = header_of(&g);
    memset(h.h_dtype, 'd', sizeof h.h_dtype);
    EQ(svi_geometry_read(&h, g.segment_bytes, "f", &out, NULL), SV_EFORMAT);
    h = header_of(&g);
    h.h_dtype[0] = '\0';
    EQ(svi_geometry_read(&h, g.segment_bytes, "f", &out, NULL), SV_EFORMAT);
    h = header_of(&g);
    h.h_itemsize = 0;
    EQ(svi_geometry_read(&h, g.segment_bytes, "f", &out, NULL), SV_EFORMAT);
}

static void
messages_name_both_formats_and_both_sizes(void)
{
    sv_options options = world_options();
    svi_geometry g = plan(&options);
    svi_geometry out;
    sv_error err = {.message = ""};
    svm_header h = header_of(&g);
    h.h_major = 9;
    h.h_minor = 4;
    EQ(svi_geometry_read(&h, g.segment_bytes, "f", &out, &err), SV_EFORMAT);
    HAS(err.message, "format 9.4");
    HAS(err.message, "reads 1.1");
    h = header_of(&g);
    EQ(svi_geometry_read(&h, g.segment_bytes - 4096, "f", &out, &err), SV_EFORMAT);
    HAS(err.message, "header says");
    EQ(svi_geometry_read(&h, g.segment_bytes + 4096, "f", &out, &err), SV_EFORMAT);
    h.h_minor = 7;
    EQ(svi_geometry_read(&h, g.segment_bytes, "f", &out, &err), 0); /* minor versions get along */
}

/* Rows are reserved for the processes of a usual node, for little: 3 per cent of the payload, or 1 MiB,
 * or (of pools of many tiny chunks) a quarter of what the buffers' headers take. */
static void
rows_are_reserved_for_a_usual_node(void)
{
    static const struct {
        uint64_t chunk;
        uint32_t slots;
        uint32_t max_rows;
        uint32_t rows;
    } pools[] = {{1024, 4, 1024, 64},         {1u << 20, 64, 1024, 64},
                 {1u << 20, 64, 16, 16},      {1u << 20, 64, 1, 1},
                 {1u << 20, 64, 2, 2},        {1u << 20, 100000, 1024, 64},
                 {16384, 1u << 20, 1024, 63}, {4096, 1u << 20, 1024, 16},
                 {512, 1u << 20, 1024, 16}};
    for (size_t i = 0; i < sizeof pools / sizeof pools[0]; i++) {
        sv_options options = world_options();
        options.chunk_size = pools[i].chunk;
        options.slot_count = pools[i].slots;
        options.max_rows = pools[i].max_rows;
        tap_context("%u chunks of %llu bytes", pools[i].slots, (unsigned long long)pools[i].chunk);
        svi_geometry g = plan(&options);
        EQ(svi_geometry_first_rows(&g), pools[i].rows);
        CHECK(g.processes >= 1);
        uint64_t bytes = svi_geometry_first_rows(&g) * g.row_stride;
        CHECK(bytes <= (UINT64_C(1) << 20) || bytes <= g.buffer_count * g.buffer_stride / 32 ||
              bytes <= g.buffer_count * g.header_stride / 4);
    }
}

static void
rows_are_reserved_as_asked_for(void)
{
    sv_options options = world_options();
    options.max_rows = 1024;
    options.processes = 200;
    svi_geometry g = plan(&options);
    EQ(g.processes, 200);
    EQ(svi_geometry_first_rows(&g), 201);
    options.processes = 1024;
    refuse(&options, "processes", "found 1024");
    svm_header h = header_of(&g); /* format 1.0: a row when it was made, for a block some more */
    svi_geometry old;
    h.h_minor = 0;
    h.h_processes = 0;
    REQUIRE(svi_geometry_read(&h, g.segment_bytes, "f", &old, NULL) == 0);
    EQ(svi_geometry_first_rows(&old), 1);
    h.h_processes = UINT32_MAX; /* damage: a number for people */
    REQUIRE(svi_geometry_read(&h, g.segment_bytes, "f", &old, NULL) == 0);
    EQ(svi_geometry_first_rows(&old), 1024);
}

int
main(void)
{
    world_begin(50);
    RUN(memory_sizes_give_the_slots_of_the_old_version);
    RUN(options_out_of_range_are_named);
    RUN(memory_too_small_for_one_slot_says_what_is_needed);
    RUN(impossible_totals_are_refused);
    RUN(regions_are_ordered_and_aligned);
    RUN(damaged_headers_are_refused);
    RUN(texts_without_end_are_refused);
    RUN(messages_name_both_formats_and_both_sizes);
    RUN(rows_are_reserved_for_a_usual_node);
    RUN(rows_are_reserved_as_asked_for);
    return world_end();
}
