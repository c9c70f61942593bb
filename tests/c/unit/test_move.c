/* Moves between strided arrays against element by element copies: any order, direction and size of
 * elements, converted and not; and what is refused. */
#include "move.h"

#include <stdlib.h>
#include <string.h>

#include "copy.h"
#include "world.h"

#define MIB (UINT64_C(1) << 20)

/* ---- one element at a time ----------------------------------------------------------------- */

static unsigned char *
element(const sv_strided *array, const uint64_t *index)
{
    unsigned char *at = array->data;
    for (uint32_t i = 0; i < array->ndim; i++) {
        at += (int64_t)index[i] * array->strides[i];
    }
    return at;
}

/* Advance to the next index in C order; false: that was the last one. */
static bool
next_index(const sv_strided *array, uint64_t *index)
{
    for (uint32_t i = array->ndim; i-- > 0;) {
        if (++index[i] < array->shape[i]) {
            return true;
        }
        index[i] = 0;
    }
    return false;
}

static void
move_slowly(const sv_strided *to, const sv_strided *from)
{
    uint64_t index[SV_MAX_NDIM] = {0};
    svi_conversion conversion;
    bool converts = to->type != from->type;
    for (uint32_t i = 0; i < to->ndim; i++) {
        if (to->shape[i] == 0) {
            return;
        }
    }
    if (converts && !CHECK(svi_conversion_find(to->type, from->type, NULL, &conversion))) {
        return;
    }
    do {
        if (converts) {
            svi_conversion_run(&conversion, element(to, index), element(from, index), 1);
        } else {
            memcpy(element(to, index), element(from, index), to->itemsize);
        }
    } while (next_index(to, index));
}

/* ---- random arrays ------------------------------------------------------------------------- */

#define ROOM (UINT64_C(1) << 18)

static uint32_t
below(uint32_t limit)
{
    return (uint32_t)rand() % limit;
}

/* Strides for `array` as if its axes were laid out in a random order, with gaps, some of them
 * backwards; data at `base` plus what that takes. Returns the bytes it spans. */
static uint64_t
lay_out(sv_strided *array, unsigned char *base, uint32_t gaps)
{
    uint32_t order[SV_MAX_NDIM];
    int64_t stride = array->itemsize;
    array->data = base;
    for (uint32_t i = 0; i < array->ndim; i++) {
        uint32_t k = below(i + 1);
        order[i] = order[k];
        order[k] = i;
    }
    for (uint32_t k = 0; k < array->ndim; k++) {
        uint32_t i = order[k];
        int64_t length = (int64_t)(array->shape[i] == 0 ? 1 : array->shape[i]);
        stride += gaps != 0 ? (int64_t)below(gaps) : 0;
        array->strides[i] = stride;
        if (below(3) == 0) {
            array->data = (unsigned char *)array->data + stride * (length - 1);
            array->strides[i] = -stride;
        }
        stride *= length;
    }
    return (uint64_t)stride;
}

static void
random_pair(sv_strided *to, sv_strided *from, uint32_t ndim, uint32_t longest)
{
    to->ndim = from->ndim = ndim;
    for (uint32_t i = 0; i < ndim; i++) {
        to->shape[i] = from->shape[i] = below(12) == 0 ? below(2) : 1 + below(longest);
    }
}

static unsigned char *memory[3];

static void
make_memory(void)
{
    for (size_t i = 0; i < 3; i++) {
        free(memory[i]);
        memory[i] = world_memory(ROOM);
    }
    for (size_t i = 0; i < ROOM; i++) {
        memory[0][i] = (unsigned char)rand();
    }
    memset(memory[1], 0x5a, ROOM);
    memset(memory[2], 0x5a, ROOM);
}

/* Move into memory[1], slowly into memory[2]: both hold the same afterwards, around the array too. */
static void
move_and_compare(sv_strided *to, const sv_strided *from, uint32_t threads)
{
    sv_strided slow = *to;
    slow.data = memory[2] + ((unsigned char *)to->data - memory[1]);
    sv_error err = {.message = ""};
    if (!EQ(sv_move(to, from, NULL, threads, &err), 0)) {
        tap_note("%s", err.message);
    }
    move_slowly(&slow, from);
    EQ(memcmp(memory[1], memory[2], ROOM), 0);
}

static void
random_moves_of_bytes(void)
{
    static const uint32_t sizes[] = {1, 2, 3, 4, 8, 12, 16, 100};
    make_memory();
    for (int round = 0; round < 3000; round++) {
        sv_strided to = {.type = SV_OPAQUE}, from = {.type = SV_OPAQUE};
        to.itemsize = from.itemsize = sizes[below(8)];
        random_pair(&to, &from, below(5), to.itemsize > 16 ? 4 : 7);
        CHECK(lay_out(&to, memory[1] + 64 + below(64), below(2) * 5) < ROOM / 2);
        CHECK(lay_out(&from, memory[0] + 64 + below(64), below(2) * 5) < ROOM / 2);
        if (from.ndim > 0 && below(5) == 0) {
            from.strides[0] = 0; /* one part for all */
        }
        tap_context("round %d, %u dimensions, %u bytes", round, to.ndim, to.itemsize);
        move_and_compare(&to, &from, below(3));
    }
}

static void
random_conversions(void)
{
    make_memory();
    for (int round = 0; round < 3000; round++) {
        sv_strided to = {.type = SV_U8 + below(11)}, from = {.type = SV_U8 + below(11)};
        to.itemsize = svi_type_bytes(to.type);
        from.itemsize = svi_type_bytes(from.type);
        random_pair(&to, &from, below(4), 12);
        CHECK(lay_out(&to, memory[1] + 64 + below(64), below(2) * 5) < ROOM / 2);
        CHECK(lay_out(&from, memory[0] + 64 + below(64), below(2) * 5) < ROOM / 2);
        tap_context("round %d, type %u to %u", round, from.type, to.type);
        move_and_compare(&to, &from, 1);
    }
}

/* ---- large ones ---------------------------------------------------------------------------- */

/* (depth, rows, columns) of int16 to float32, far above what is streamed and spread over threads; the
 * source mirrored along its first axis, then along its last. */
static void
large_conversions_with_a_flip(void)
{
    enum { DEPTH = 37, ROWS = 256, COLUMNS = 531 };
    const uint64_t count = (uint64_t)DEPTH * ROWS * COLUMNS;
    int16_t *in = world_memory(count * sizeof *in);
    float *out = world_memory(count * sizeof *out + 64);
    for (uint64_t i = 0; i < count; i++) {
        in[i] = (int16_t)(i * 7);
    }
    for (uint32_t threads = 1; threads <= 4; threads += 3) {
        for (size_t axis = 0; axis < 3; axis += 2) {
            unsigned wrong = 0;
            sv_strided to = {.data = (unsigned char *)out + 4,
                             .type = SV_F32,
                             .itemsize = 4,
                             .ndim = 3,
                             .shape = {DEPTH, ROWS, COLUMNS},
                             .strides = {ROWS * COLUMNS * 4, COLUMNS * 4, 4}};
            sv_strided from = {.data = in,
                               .type = SV_I16,
                               .itemsize = 2,
                               .ndim = 3,
                               .shape = {DEPTH, ROWS, COLUMNS},
                               .strides = {ROWS * COLUMNS * 2, COLUMNS * 2, 2}};
            from.data = in + (int64_t)(from.shape[axis] - 1) * (from.strides[axis] / 2);
            from.strides[axis] = -from.strides[axis];
            EQ(sv_move(&to, &from, NULL, threads, NULL), 0);
            for (uint64_t i = 0; i < count; i++) {
                uint64_t plane = i / (ROWS * COLUMNS), column = i % COLUMNS;
                uint64_t at = axis == 0
                                  ? (DEPTH - 1 - plane) * ROWS * COLUMNS + i % (ROWS * COLUMNS)
                                  : i - column + COLUMNS - 1 - column;
                wrong += out[1 + i] != (float)in[at];
            }
            tap_context("axis %zu, %u threads", axis, threads);
            EQ(wrong, 0);
        }
    }
    free(in);
    free(out);
}

static void
rows_that_are_streamed(void)
{
    enum { ROWS = 300 };
    const uint64_t columns = 5000, pitch = 5003;
    unsigned char *in = world_memory(ROWS * pitch);
    unsigned char *out = world_memory(ROWS * pitch);
    for (uint64_t i = 0; i < ROWS * pitch; i++) {
        in[i] = (unsigned char)(i % 253);
    }
    memset(out, 0xee, ROWS * pitch);
    sv_strided to = {.data = out,
                     .itemsize = 1,
                     .ndim = 2,
                     .shape = {ROWS, columns},
                     .strides = {(int64_t)pitch, 1}};
    sv_strided from = to;
    from.data = in;
    CHECK(svi_copy_streams(ROWS * columns, 0));
    EQ(sv_move(&to, &from, NULL, 1, NULL), 0);
    for (uint64_t row = 0; row < ROWS; row++) {
        EQ(memcmp(out + row * pitch, in + row * pitch, columns), 0);
        CHECK(out[row * pitch + columns] == 0xee && out[row * pitch + columns + 2] == 0xee);
    }
    free(in);
    free(out);
}

/* ---- how it is done ------------------------------------------------------------------------ */

static void
neighbouring_axes_are_merged(void)
{
    unsigned char in[24], out[24];
    svi_move move;
    sv_strided to = {.data = out,
                     .itemsize = 1,
                     .ndim = 4,
                     .shape = {2, 3, 1, 4},
                     .strides = {12, 4, 99, 1}};
    sv_strided from = to;
    from.data = in;
    EQ(svi_move_plan(&to, &from, NULL, &move, NULL), 0);
    EQ(move.axis_count, 1);
    EQ(svi_move_bytes(&move), 24);
    /* Mirrored on both sides: the same as not at all. */
    to.data = out + 12;
    to.strides[0] = -12;
    from.data = in + 12;
    from.strides[0] = -12;
    EQ(svi_move_plan(&to, &from, NULL, &move, NULL), 0);
    EQ(move.axis_count, 1);
    CHECK(move.to == out && move.from == in);
    /* On one side only. */
    from.data = in;
    from.strides[0] = 12;
    EQ(svi_move_plan(&to, &from, NULL, &move, NULL), 0);
    EQ(move.axis_count, 2);
    to.shape[1] = from.shape[1] = 0;
    EQ(svi_move_plan(&to, &from, NULL, &move, NULL), 0);
    EQ(svi_move_bytes(&move), 0);
}

static void
parts_cover_everything_once(void)
{
    for (uint64_t parts = 1; parts < 12; parts++) {
        unsigned char in[7 * 5], out[7 * 5] = {0};
        svi_move move;
        sv_strided to = {.data = out, .itemsize = 1, .ndim = 2, .shape = {7, 5}, .strides = {1, 7}};
        sv_strided from = {.data = in,
                           .itemsize = 1,
                           .ndim = 2,
                           .shape = {7, 5},
                           .strides = {5, 1}};
        memset(in, 1, sizeof in);
        EQ(svi_move_plan(&to, &from, NULL, &move, NULL), 0);
        for (uint64_t part = 0; part < parts; part++) {
            memset(in, (int)part + 1, sizeof in);
            svi_move_part(&move, part, parts);
        }
        tap_context("%llu parts", (unsigned long long)parts);
        CHECK(memchr(out, 0, sizeof out) == NULL);
        EQ(out[0], 1);
    }
}

/* ---- refused ------------------------------------------------------------------------------- */

static sv_error err;
static uint32_t numbers[24];
static uint32_t others[24];

static int
refusal(const sv_strided *to, const sv_strided *from, const sv_scale *scale)
{
    memset(others, 0x11, sizeof others);
    err.message[0] = '\0';
    int status = sv_move(to, from, scale, 1, &err);
    for (size_t i = 0; i < 24; i++) {
        EQ(others[i], 0x11111111); /* nothing is written */
    }
    return status;
}

static void
wrong_calls_are_refused(void)
{
    const sv_scale scale = {2.0, 1.0};
    const sv_strided good = {.data = numbers,
                             .type = SV_U32,
                             .itemsize = 4,
                             .ndim = 2,
                             .shape = {4, 6},
                             .strides = {24, 4}};
    sv_strided to = good, from = good;
    to.data = others;
    from.ndim = 1;
    EQ(refusal(&to, &from, NULL), SV_EINVAL);
    HAS(err.message, "2 dimensions, the source 1");
    from = good;
    from.shape[1] = 5;
    EQ(refusal(&to, &from, NULL), SV_EINVAL);
    HAS(err.message, "axis 1 has length 6 in the destination, 5 in the source");
    from = good;
    from.itemsize = 8;
    EQ(refusal(&to, &from, NULL), SV_EINVAL);
    HAS(err.message, "source: type 5 with elements of 8 bytes");
    from = good;
    from.type = SV_OPAQUE;
    from.itemsize = 0;
    EQ(refusal(&to, &from, NULL), SV_EINVAL);
    from.itemsize = 4;
    EQ(refusal(&to, &from, NULL), SV_ETYPE);
    to.type = SV_OPAQUE;
    to.itemsize = 2;
    EQ(refusal(&to, &from, NULL), SV_ETYPE);
    HAS(err.message, "4 bytes");
    to = good;
    to.data = others;
    EQ(refusal(&to, &good, &scale), SV_ETYPE);
    HAS(err.message, "scale");
    to.ndim = from.ndim = SV_MAX_NDIM + 1;
    EQ(refusal(&to, &from, NULL), SV_EINVAL);
    HAS(err.message, "17 dimensions");
}

static void
a_destination_that_overlaps_itself_is_refused(void)
{
    static const int64_t strides[][2] = {{0, 4}, {24, 0}, {4, 4}, {8, 4}, {-8, 4}, {24, 3}};
    for (size_t i = 0; i < sizeof strides / sizeof strides[0]; i++) {
        const sv_strided from = {.data = numbers,
                                 .type = SV_U32,
                                 .itemsize = 4,
                                 .ndim = 2,
                                 .shape = {4, 6},
                                 .strides = {24, 4}};
        sv_strided to = from;
        to.data = others;
        memcpy(to.strides, strides[i], sizeof strides[i]);
        tap_context("strides %lld, %lld", (long long)strides[i][0], (long long)strides[i][1]);
        EQ(refusal(&to, &from, NULL), SV_EINVAL);
        HAS(err.message, "overlap");
    }
}

/* Strides that no array has: each is looked at before anything is multiplied by it. */
static void
strides_beyond_all_memory_are_refused(void)
{
    static const int64_t strides[][2] = {{INT64_MAX / 2, 4}, {INT64_MAX, 4},
                                         {INT64_MIN, 4},     {24, INT64_MIN},
                                         {INT64_MIN / 4, 4}, {INT64_MAX / 6, INT64_MAX / 6}};
    for (size_t i = 0; i < 2 * sizeof strides / sizeof strides[0]; i++) {
        sv_strided from = {.data = numbers,
                           .type = SV_U32,
                           .itemsize = 4,
                           .ndim = 2,
                           .shape = {4, 6},
                           .strides = {24, 4}};
        sv_strided to = from;
        to.data = others;
        memcpy(i % 2 == 0 ? to.strides : from.strides, strides[i / 2], sizeof strides[0]);
        tap_context("case %zu", i);
        EQ(refusal(&to, &from, NULL), SV_EINVAL);
        HAS(err.message, "beyond all memory");
        HAS(err.message, i % 2 == 0 ? "destination" : "source");
        from.shape[1] = to.shape[1] = 0; /* nothing to move: any strides do */
        EQ(sv_move(&to, &from, NULL, 1, NULL), 0);
    }
}

int
main(void)
{
    world_begin(50);
    srand(1);
    RUN(random_moves_of_bytes);
    RUN(random_conversions);
    RUN(large_conversions_with_a_flip);
    RUN(rows_that_are_streamed);
    RUN(neighbouring_axes_are_merged);
    RUN(parts_cover_everything_once);
    RUN(wrong_calls_are_refused);
    RUN(a_destination_that_overlaps_itself_is_refused);
    RUN(strides_beyond_all_memory_are_refused);
    for (size_t i = 0; i < 3; i++) {
        free(memory[i]);
    }
    return world_end();
}
