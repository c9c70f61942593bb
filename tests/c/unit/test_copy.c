/* Copies of every size and alignment, and gathering chunks into one block. */
#include <stdlib.h>
#include <string.h>

#include "row.h"
#include "world.h"

#define MIB (UINT64_C(1) << 20)

static void
copy_and_compare(size_t bytes, size_t to_offset, size_t from_offset, uint32_t threads)
{
    unsigned char *from = world_memory(bytes + from_offset + 64);
    unsigned char *to = world_memory(bytes + to_offset + 64);
    for (size_t i = 0; i < bytes + from_offset; i++) {
        from[i] = (unsigned char)(i * 31 + i / 251);
    }
    memset(to, 0x77, bytes + to_offset + 64);
    sv_copy(to + to_offset, from + from_offset, bytes, threads);
    tap_context("%zu bytes, to +%zu, from +%zu, %u threads", bytes, to_offset, from_offset,
                threads);
    EQ(memcmp(to + to_offset, from + from_offset, bytes), 0);
    for (size_t i = 0; i < to_offset; i++) {
        EQ(to[i], 0x77);
    }
    for (size_t i = 0; i < 64; i++) {
        EQ(to[to_offset + bytes + i], 0x77); /* nothing beyond the end */
    }
    free(from);
    free(to);
}

static void
small_copies(void)
{
    for (size_t bytes = 0; bytes < 300; bytes += 7) {
        copy_and_compare(bytes, bytes % 5, bytes % 3, 1);
    }
    sv_copy(NULL, NULL, 0, 0);
}

static void
streaming_copies(void)
{
    static const size_t extra[] = {0, 1, 31, 64, 127, 129};
    for (size_t i = 0; i < sizeof extra / sizeof extra[0]; i++) {
        copy_and_compare(MIB + extra[i], 0, 0, 1);
        copy_and_compare(MIB + extra[i], 1 + i, 3 * i, 1);
        copy_and_compare(MIB - 1 - extra[i], i, 0, 1);
    }
}

static void
copies_on_several_threads(void)
{
    copy_and_compare(17 * MIB + 77, 0, 5, 2);
    copy_and_compare(33 * MIB + 1, 8, 0, 4);
    copy_and_compare(16 * MIB, 0, 0, 0);
    copy_and_compare(20 * MIB, 0, 0, 1000);
}

/* ---- gather -------------------------------------------------------------------------------- */

static void
gather_copies_in_the_order_asked_for(void)
{
    sv_segment *segment = world_segment(world_name("order"), 4);
    const uint32_t slots[5] = {3, 0, 2, 2, 1};
    uint64_t out[5][80];
    sv_slot_stats stats;
    memset(out, 0x55, sizeof out);
    EQ(sv_gather(segment, slots, 5, out, sizeof out[0], 1, NULL), 0);
    for (size_t i = 0; i < 5; i++) {
        for (size_t k = 0; k < 64; k++) {
            EQ(out[i][k], slots[i] + 1);
        }
        EQ(out[i][64], 0x5555555555555555); /* the rest of the stride is left alone */
    }
    EQ(sv_slot_stats_get(segment, 2, &stats), 0);
    EQ(stats.reads, 2); /* one read per item */
    EQ(sv_gather(segment, NULL, 0, NULL, 0, 0, NULL), 0);
    world_audit(segment, 0, 0);
    world_drop(segment);
}

static void
gather_refuses_what_does_not_fit_together(void)
{
    sv_segment *segment = world_segment(world_name("shape"), 2);
    uint64_t words[64] = {0};
    sv_array other = {.data = words, .size_bytes = 512, .itemsize = 8, .ndim = 2, .shape = {8, 8}};
    sv_chunk chunk = {.arrays = &other, .array_count = 1};
    uint32_t slots[2] = {0, 2};
    uint64_t out[2][64];
    sv_error err = {.message = ""};
    EQ(sv_append(segment, &chunk, NULL, NULL), 0);
    EQ(sv_gather(segment, slots, 2, out, sizeof out[0], 1, &err), SV_EINVAL);
    HAS(err.message, "slot 2");
    (void)strcpy(other.dtype, "float32");
    other.itemsize = 4;
    other.ndim = 1;
    other.shape[0] = 128;
    EQ(sv_replace(segment, 2, &chunk, 0, NULL), 0);
    EQ(sv_gather(segment, slots, 2, out, sizeof out[0], 1, &err), SV_EINVAL);
    EQ(sv_gather(segment, slots, 1, out, 511, 1, &err), SV_EINVAL);
    HAS(err.message, "512");
    HAS(err.message, "511");
    slots[1] = 3;
    EQ(sv_gather(segment, slots, 2, out, sizeof out[0], 1, &err), SV_EINDEX);
    HAS(err.message, "item 1");
    HAS(err.message, "slot 3");
    EQ(svi_row_own_pins(svi_mapping_of(segment)), 0); /* nothing stays pinned */
    world_drop(segment);
}

static void
gather_of_large_chunks_uses_threads(void)
{
    sv_options options = world_options();
    options.chunk_size = 17 * MIB;
    options.slot_count = 1;
    options.spare_buffers = 1;
    sv_segment *segment = world_open(world_name("large"), &options, SV_OPEN_CREATE);
    uint64_t words = 17 * MIB / 8;
    uint64_t *data = world_memory(17 * MIB);
    uint64_t *out = world_memory(17 * MIB);
    const uint32_t slot = 0;
    for (uint64_t i = 0; i < words; i++) {
        data[i] = i * 7;
    }
    sv_array array = {.data = data,
                      .size_bytes = 17 * MIB,
                      .itemsize = 8,
                      .ndim = 1,
                      .shape = {words}};
    sv_chunk chunk = {.arrays = &array, .array_count = 1};
    EQ(sv_append(segment, &chunk, NULL, NULL), 0);
    EQ(sv_gather(segment, &slot, 1, out, 17 * MIB, 2, NULL), 0);
    EQ(memcmp(data, out, 17 * MIB), 0);
    free(data);
    free(out);
    world_drop(segment);
}

int
main(void)
{
    world_begin(50);
    RUN(small_copies);
    RUN(streaming_copies);
    RUN(copies_on_several_threads);
    RUN(gather_copies_in_the_order_asked_for);
    RUN(gather_refuses_what_does_not_fit_together);
    RUN(gather_of_large_chunks_uses_threads);
    return world_end();
}
