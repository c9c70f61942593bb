/* Gathering chunks into one block: order, crops, flips, conversions, metadata; what is refused; and
 * that chunks replaced meanwhile are whole or refused. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "os.h"
#include "row.h"
#include "world.h"

#define MIB (UINT64_C(1) << 20)

static sv_error err;

/* Options for items of this shape. */
static sv_gather_options
items_of(uint32_t ndim, uint64_t a, uint64_t b, uint64_t c)
{
    sv_gather_options how;
    sv_gather_options_init(&how);
    how.ndim = ndim;
    how.threads = 1;
    how.shape[0] = a;
    how.shape[1] = b;
    how.shape[2] = c;
    err = (sv_error){.message = ""};
    return how;
}

static void
nothing_is_pinned(sv_segment *segment)
{
    EQ(svi_row_own_pins(svi_mapping_of(segment)), 0);
}

/* ---- whole chunks -------------------------------------------------------------------------- */

static void
the_order_asked_for(void)
{
    sv_segment *segment = world_segment(world_name("order"), 4);
    const uint32_t slots[5] = {3, 0, 2, 2, 1};
    const sv_gather_options how = items_of(1, 64, 0, 0);
    uint64_t out[5][80];
    sv_slot_stats stats;
    memset(out, 0x55, sizeof out);
    EQ(sv_gather(segment, slots, 5, &how, out, sizeof out[0], NULL), 0);
    for (size_t i = 0; i < 5; i++) {
        for (size_t k = 0; k < 64; k++) {
            EQ(out[i][k], slots[i] + 1);
        }
        EQ(out[i][64], 0x5555555555555555); /* the rest of the stride is left alone */
    }
    EQ(sv_slot_stats_get(segment, 2, &stats), 0);
    EQ(stats.reads, 2); /* one read per item */
    EQ(sv_gather(segment, NULL, 0, &how, NULL, 512, NULL), 0);
    world_audit(segment, 0, 0);
    world_drop(segment);
}

/* Every item has the metadata of the chunk that it came from: the world's say the stamp. */
static void
metadata_of_the_chunks(void)
{
    sv_segment *segment = world_segment(world_name("meta"), 3);
    const uint32_t slots[3] = {2, 0, 1};
    uint64_t out[3][64];
    double meta[3][SV_MAX_META];
    uint32_t counts[3] = {9, 9, 9};
    sv_view view;
    sv_gather_options how = items_of(1, 64, 0, 0);
    how.meta = meta;
    how.meta_counts = counts;
    EQ(sv_gather(segment, slots, 3, &how, out, sizeof out[0], NULL), 0);
    for (size_t i = 0; i < 3; i++) {
        double wanted[SV_MAX_META];
        REQUIRE(sv_pin_quiet(segment, slots[i], &view) == 0);
        EQ(counts[i], sv_view_meta(&view, wanted));
        EQ(memcmp(meta[i], wanted, counts[i] * sizeof wanted[0]), 0);
        sv_unpin(&view);
    }
    CHECK(counts[0] > 0);
    world_drop(segment);
}

static void
what_does_not_fit_together(void)
{
    sv_segment *segment = world_segment(world_name("shape"), 2);
    uint64_t words[64] = {0};
    sv_array other = {.data = words, .size_bytes = 512, .itemsize = 8, .ndim = 2, .shape = {8, 8}};
    sv_chunk chunk = {.arrays = &other, .array_count = 1};
    uint32_t slots[2] = {0, 2};
    uint64_t out[2][64];
    sv_gather_options how = items_of(1, 64, 0, 0);
    EQ(sv_append(segment, &chunk, NULL, NULL), 0);
    EQ(sv_gather(segment, slots, 2, &how, out, sizeof out[0], &err), SV_EINVAL);
    HAS(err.message, "item 1, slot 2");
    HAS(err.message, "8 x 8");
    (void)strcpy(other.dtype, "float32");
    other.itemsize = 4;
    other.ndim = 1;
    other.shape[0] = 128;
    EQ(sv_replace(segment, 2, &chunk, 0, NULL), 0);
    EQ(sv_gather(segment, slots, 2, &how, out, sizeof out[0], &err), SV_EINVAL);
    HAS(err.message, "elements of 4 bytes");
    EQ(sv_gather(segment, slots, 1, &how, out, 511, &err), SV_EINVAL);
    HAS(err.message, "511 bytes");
    EQ(sv_gather(segment, slots, 2, &how, out, UINT64_C(1) << 62, &err), SV_EINVAL);
    HAS(err.message, "beyond all memory");
    slots[1] = 3;
    EQ(sv_gather(segment, slots, 2, &how, out, sizeof out[0], &err), SV_EINDEX);
    HAS(err.message, "item 1, slot 3");
    slots[1] = 1;
    how.shape[0] = UINT64_MAX / 2;
    EQ(sv_gather(segment, slots, 2, &how, out, sizeof out[0], &err), SV_EINVAL);
    how = items_of(1, 64, 0, 0);
    how.out_type = SV_F32;
    EQ(sv_gather(segment, slots, 2, &how, out, sizeof out[0], &err), SV_ETYPE);
    how.size = 8;
    EQ(sv_gather(segment, slots, 2, &how, out, sizeof out[0], &err), SV_EINVAL);
    HAS(err.message, "sv_gather_options_init");
    nothing_is_pinned(segment);
    world_drop(segment);
}

static void
an_output_over_the_chunk_is_refused(void)
{
    sv_segment *segment = world_segment(world_name("over"), 1);
    const uint32_t slot = 0;
    const sv_gather_options how = items_of(1, 64, 0, 0);
    sv_view view;
    REQUIRE(sv_pin(segment, 0, &view) == 0);
    EQ(sv_gather(segment, &slot, 1, &how, (unsigned char *)(uintptr_t)view.data - 8, 512, &err),
       SV_EINVAL);
    HAS(err.message, "overlaps");
    sv_unpin(&view);
    world_drop(segment);
}

/* ---- parts of chunks ----------------------------------------------------------------------- */

/* A segment of int16 volumes; the voxel (z, y, x) of the one in slot s is 1000 s + 100 z + 10 y + x. */
static sv_segment *
volumes(const char *name, const uint64_t (*shapes)[3], uint32_t count)
{
    sv_options options = world_options();
    options.dtype = "int16";
    options.itemsize = 2;
    options.slot_count = count;
    sv_segment *segment = world_open(name, &options, SV_OPEN_CREATE);
    for (uint32_t slot = 0; slot < count; slot++) {
        int16_t voxels[512];
        const uint64_t *shape = shapes[slot];
        size_t filled = 0;
        for (uint64_t z = 0; z < shape[0]; z++) {
            for (uint64_t y = 0; y < shape[1]; y++) {
                for (uint64_t x = 0; x < shape[2]; x++) {
                    voxels[filled++] = (int16_t)(1000 * slot + 100 * z + 10 * y + x);
                }
            }
        }
        const sv_array array = {.data = voxels,
                                .size_bytes = filled * 2,
                                .itemsize = 2,
                                .ndim = 3,
                                .shape = {shape[0], shape[1], shape[2]}};
        const sv_chunk chunk = {.arrays = &array, .array_count = 1};
        EQ(sv_append(segment, &chunk, NULL, NULL), 0);
    }
    return segment;
}

static const uint64_t ragged[3][3] = {{4, 5, 6}, {3, 9, 8}, {7, 4, 4}};

static void
crops_of_chunks_that_differ_in_shape(void)
{
    sv_segment *segment = volumes(world_name("crop"), ragged, 3);
    const uint32_t slots[4] = {0, 1, 2, 1};
    const uint64_t origins[4][3] = {{0, 0, 0}, {1, 6, 4}, {5, 1, 0}, {0, 2, 3}};
    sv_gather_options how = items_of(3, 2, 3, 4);
    int16_t out[4][2][3][4];
    how.origins = &origins[0][0];
    EQ(sv_gather(segment, slots, 4, &how, out, sizeof out[0], &err), 0);
    for (uint64_t i = 0; i < 4; i++) {
        for (uint64_t k = 0; k < 24; k++) {
            uint64_t z = k / 12, y = k / 4 % 3, x = k % 4;
            const uint64_t *at = origins[i];
            EQ(out[i][z][y][x], 1000 * slots[i] + 100 * (at[0] + z) + 10 * (at[1] + y) + at[2] + x);
        }
    }
    nothing_is_pinned(segment);
    world_drop(segment);
}

static void
crops_at_fractions_of_the_free_range(void)
{
    sv_segment *segment = volumes(world_name("free"), ragged, 3);
    const uint32_t slots[3] = {1, 1, 2};
    /* Slot 1 leaves 2, 7, 5 origins free, slot 2 6, 2, 1. */
    const double fractions[3][3] = {{0.0, 0.0, 0.0}, {0.5, 0.999999, 0.1999}, {0.99, 0.49, 0.9}};
    static const int16_t first[3] = {1000, 1000 + 100 + 60 + 0, 2000 + 500 + 0 + 0};
    sv_gather_options how = items_of(3, 2, 3, 4);
    int16_t out[3][24];
    how.fractions = &fractions[0][0];
    EQ(sv_gather(segment, slots, 3, &how, out, sizeof out[0], &err), 0);
    for (size_t i = 0; i < 3; i++) {
        EQ(out[i][0], first[i]);
        EQ(out[i][23], first[i] + 100 + 20 + 3);
    }
    world_drop(segment);
}

static void
crops_outside_of_the_chunk(void)
{
    sv_segment *segment = volumes(world_name("out"), ragged, 3);
    const uint32_t slots[2] = {0, 1};
    const uint64_t far[2][3] = {{0, 0, 0}, {2, 0, 0}};
    const uint64_t wrapped[2][3] = {{0, UINT64_MAX, 0}, {0, 0, 0}};
    const double one[2][3] = {{0.0, 0.0, 1.0}, {0.0, 0.0, 0.0}};
    int16_t out[2][36];
    sv_gather_options how = items_of(3, 2, 3, 4);
    how.origins = &far[0][0];
    EQ(sv_gather(segment, slots, 2, &how, out, sizeof out[0], &err), SV_EINVAL);
    HAS(err.message, "item 1, slot 1");
    HAS(err.message, "axis 0: the crop begins at 2, at most 1");
    how.origins = &wrapped[0][0];
    EQ(sv_gather(segment, slots, 2, &how, out, sizeof out[0], &err), SV_EINVAL);
    HAS(err.message, "axis 1");
    how.fractions = &one[0][0];
    EQ(sv_gather(segment, slots, 2, &how, out, sizeof out[0], &err), SV_EINVAL);
    HAS(err.message, "fraction is 1");
    how = items_of(3, 2, 3, 6);
    how.origins = &far[0][0];
    const uint32_t thin[1] = {2};
    EQ(sv_gather(segment, thin, 1, &how, out, sizeof out[0], &err), SV_EINVAL);
    HAS(err.message, "the chunk is 7 x 4 x 4");
    HAS(err.message, "crop takes 2 x 3 x 6");
    how = items_of(2, 2, 3, 0);
    how.origins = &far[0][0];
    EQ(sv_gather(segment, slots, 1, &how, out, sizeof out[0], &err), SV_EINVAL);
    HAS(err.message, "crop takes 2 x 3,");
    nothing_is_pinned(segment);
    world_drop(segment);
}

static void
flips_of_any_axes(void)
{
    sv_segment *segment = volumes(world_name("flip"), ragged, 3);
    uint32_t slots[8];
    uint32_t flips[8];
    uint64_t origins[8][3];
    int16_t out[8][2][3][4];
    sv_gather_options how = items_of(3, 2, 3, 4);
    for (uint32_t i = 0; i < 8; i++) {
        slots[i] = 1;
        flips[i] = i; /* every mask */
        origins[i][0] = 1;
        origins[i][1] = 2;
        origins[i][2] = 3;
    }
    how.origins = &origins[0][0];
    how.flips = flips;
    EQ(sv_gather(segment, slots, 8, &how, out, sizeof out[0], &err), 0);
    for (uint64_t i = 0; i < 8; i++) {
        for (uint64_t k = 0; k < 24; k++) {
            uint64_t z = k / 12, y = k / 4 % 3, x = k % 4;
            uint64_t from_z = (i & 1) != 0 ? 1 - z : z;
            uint64_t from_y = (i & 2) != 0 ? 2 - y : y;
            uint64_t from_x = (i & 4) != 0 ? 3 - x : x;
            EQ(out[i][z][y][x], 1000 + 100 * (1 + from_z) + 10 * (2 + from_y) + 3 + from_x);
        }
    }
    world_drop(segment);
}

static void
converted_and_scaled(void)
{
    sv_segment *segment = volumes(world_name("scale"), ragged, 3);
    const uint32_t slots[2] = {0, 0};
    const sv_scale scale = {0.5, -3.0};
    const uint32_t flips[2] = {0, 1};
    float out[2][4][5][6];
    sv_gather_options how = items_of(3, 4, 5, 6);
    how.type = SV_I16;
    how.out_type = SV_F32;
    how.scale = &scale;
    how.flips = flips;
    EQ(sv_gather(segment, slots, 2, &how, out, sizeof out[0], &err), 0);
    EQ(out[0][1][2][3] == 123 * 0.5f - 3, 1);
    EQ(out[1][0][4][5] == 345 * 0.5f - 3, 1);
    uint8_t bytes[2][4][5][6];
    how.scale = NULL;
    how.out_type = SV_U8;
    EQ(sv_gather(segment, slots, 2, &how, bytes, sizeof bytes[0], &err), 0);
    EQ(bytes[0][2][4][5], 245);
    EQ(bytes[0][3][0][0], 255); /* 300: clipped */
    how.scale = &scale;
    EQ(sv_gather(segment, slots, 2, &how, bytes, sizeof bytes[0], &err), SV_ETYPE);
    HAS(err.message, "scale");
    world_drop(segment);
}

/* ---- many bytes, many threads -------------------------------------------------------------- */

/* Chunks of 9 MiB and a bit: several parts each, several rounds of the fork gate in all. */
static void
large_chunks_on_several_threads(void)
{
    const uint64_t words = 9 * MIB / 8 + 3;
    sv_options options = world_options();
    options.chunk_size = words * 8;
    options.slot_count = 3;
    options.spare_buffers = 1;
    sv_segment *segment = world_open(world_name("large"), &options, SV_OPEN_CREATE);
    uint64_t *data = world_memory(words * 8);
    for (uint64_t slot = 0; slot < 3; slot++) {
        for (uint64_t i = 0; i < words; i++) {
            data[i] = i * 7 + slot;
        }
        const sv_array array = {.data = data,
                                .size_bytes = words * 8,
                                .itemsize = 8,
                                .ndim = 1,
                                .shape = {words}};
        const sv_chunk chunk = {.arrays = &array, .array_count = 1};
        EQ(sv_append(segment, &chunk, NULL, NULL), 0);
    }
    enum { COUNT = 17 };
    uint64_t *out = world_memory(COUNT * words * 8);
    uint32_t slots[COUNT];
    for (uint32_t i = 0; i < COUNT; i++) {
        slots[i] = (i * 5) % 3;
    }
    for (uint32_t threads = 1; threads <= 9; threads += 4) {
        sv_gather_options how = items_of(1, words, 0, 0);
        unsigned wrong = 0;
        how.threads = threads;
        memset(out, 0, COUNT * words * 8);
        EQ(sv_gather(segment, slots, COUNT, &how, out, words * 8, &err), 0);
        for (uint32_t k = 0; k < COUNT; k++) {
            for (uint64_t i = 0; i < words; i++) {
                wrong += out[k * words + i] != i * 7 + slots[k];
            }
        }
        tap_context("%u threads", threads);
        EQ(wrong, 0);
        nothing_is_pinned(segment);
        /* One of the last items is missing: what was begun is given back. */
        slots[COUNT - 2] = 3;
        EQ(sv_gather(segment, slots, COUNT, &how, out, words * 8, &err), SV_EINDEX);
        HAS(err.message, "item 15");
        nothing_is_pinned(segment);
        slots[COUNT - 2] = 0;
    }
    free(data);
    free(out);
    world_drop(segment);
}

/* ---- against writers ----------------------------------------------------------------------- */

static svi_word stop;

/* Replace slot 0 by chunks of two shapes in turn, all of one stamp. */
static void *
replace_all_the_time(void *argument)
{
    sv_segment *segment = argument;
    uint64_t words[64];
    for (uint64_t stamp = 1; svi_load_seq(&stop) == 0; stamp++) {
        for (size_t i = 0; i < 64; i++) {
            words[i] = stamp;
        }
        const double meta = (double)stamp;
        const sv_array array = {.data = words,
                                .size_bytes = 512,
                                .itemsize = 8,
                                .ndim = stamp % 2 == 0 ? 1 : 2,
                                .shape = {stamp % 2 == 0 ? 64 : 8, 8}};
        const sv_chunk chunk = {.arrays = &array, .array_count = 1, .meta = &meta, .meta_count = 1};
        int status = sv_replace(segment, 0, &chunk, UINT64_C(1000000000), NULL);
        if (status != 0 && status != SV_EINUSE) {
            return (void *)(uintptr_t)1;
        }
    }
    return NULL;
}

static void
a_chunk_that_is_replaced_meanwhile_is_whole_or_refused(void)
{
    sv_segment *segment = world_segment(world_name("race"), 1);
    const uint32_t slots[2] = {0, 0};
    uint64_t out[2][64];
    double meta[2][SV_MAX_META];
    uint32_t counts[2];
    unsigned good = 0, refused = 0, wrong = 0;
    pthread_t writer;
    void *failed = NULL;
    svi_store_seq(&stop, 0);
    REQUIRE(pthread_create(&writer, NULL, replace_all_the_time, segment) == 0);
    /* With one processor they take long turns, and one turn sees nothing but one of the two. */
    uint64_t until = svi_os_monotonic_ns() + world_limit_ns(10);
    for (int round = 0; good < 200 || refused < 200 || round < 2000; round++) {
        if (svi_os_monotonic_ns() > until) {
            break;
        }
        sv_gather_options how = items_of(1, 64, 0, 0);
        how.meta = meta;
        how.meta_counts = counts;
        int status = sv_gather(segment, slots, 2, &how, out, sizeof out[0], &err);
        if (status != 0) {
            wrong += status != SV_EINVAL;
            refused++;
            continue;
        }
        good++;
        for (size_t item = 0; item < 2; item++) {
            for (size_t i = 1; i < 64; i++) {
                wrong += out[item][i] != out[item][0];
            }
            wrong += counts[item] > 0 && meta[item][0] != (double)out[item][0];
        }
    }
    svi_store_seq(&stop, 1);
    (void)pthread_join(writer, &failed);
    tap_note("%u batches, %u refused", good, refused);
    EQ(wrong, 0);
    CHECK(failed == NULL && good > 0 && refused > 0);
    nothing_is_pinned(segment);
    world_drop(segment);
}

int
main(void)
{
    world_begin(50);
    RUN(the_order_asked_for);
    RUN(metadata_of_the_chunks);
    RUN(what_does_not_fit_together);
    RUN(an_output_over_the_chunk_is_refused);
    RUN(crops_of_chunks_that_differ_in_shape);
    RUN(crops_at_fractions_of_the_free_range);
    RUN(crops_outside_of_the_chunk);
    RUN(flips_of_any_axes);
    RUN(converted_and_scaled);
    RUN(large_chunks_on_several_threads);
    RUN(a_chunk_that_is_replaced_meanwhile_is_whole_or_refused);
    return world_end();
}
