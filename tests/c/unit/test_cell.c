/* Arithmetic of the packed words: counts never carry into each other. */
#include "cell.h"

#include "world.h"

static void
pins_and_reads_are_apart(void)
{
    uint64_t cell = 0;
    cell += SVI_PIN + SVI_READ;
    cell += SVI_PIN + SVI_READ;
    cell += SVI_PIN;
    EQ(svi_cell_pins(cell), 3);
    EQ(svi_cell_reads(cell), 2);
    cell -= SVI_PIN;
    EQ(svi_cell_pins(cell), 2);
    EQ(svi_cell_reads(cell), 2);
}

static void
wrapped_reads_leave_the_pins(void)
{
    uint64_t cell = (SVI_READS_MASK << SVI_PIN_BITS) | 5;
    EQ(svi_cell_reads(cell), SVI_READS_MASK);
    cell += SVI_PIN + SVI_READ;
    EQ(svi_cell_pins(cell), 6);
    EQ(svi_cell_reads(cell), 0);
}

static void
cleaning_keeps_the_reads(void)
{
    uint64_t cell = 7 * SVI_READ + 3 * SVI_PIN;
    cell &= ~SVI_PINS_MASK;
    EQ(svi_cell_pins(cell), 0);
    EQ(svi_cell_reads(cell), 7);
}

static void
pins_have_room_beyond_the_limit(void)
{
    CHECK(SVI_PINS_LIMIT < SVI_PINS_MASK);
    EQ(svi_cell_reads(SVI_PINS_LIMIT + SVI_PINS_LIMIT / 2), 0);
}

static void
reads_since_is_modular_and_never_negative(void)
{
    EQ(svi_reads_since(10, 4), 6);
    EQ(svi_reads_since(4, 4), 0);
    EQ(svi_reads_since(2, SVI_READS_MASK - 2), 5);
    EQ(svi_reads_since(3, 4), 0);
    EQ(svi_reads_since(0, SVI_READS_MASK / 2), 0);
    EQ(svi_reads_since(SVI_READS_MASK / 2, 0), SVI_READS_MASK / 2);
}

static void
slot_words_hold_buffer_and_stamp(void)
{
    uint64_t word = svi_slot_word(UINT32_C(16777215), 9);
    EQ(svi_slot_buffer(word), 16777215);
    EQ(svi_slot_stamp(word), 9);
    word = svi_slot_successor(word, 3);
    EQ(svi_slot_buffer(word), 3);
    EQ(svi_slot_stamp(word), 10);
}

static void
no_slot_word_is_empty(void)
{
    CHECK(svi_slot_word(0, 0) != SVI_EMPTY);
    CHECK(svi_slot_word(0, 1) != SVI_EMPTY);
    uint64_t last = svi_slot_word(0, UINT32_MAX);
    CHECK(svi_slot_successor(last, 0) != SVI_EMPTY);
    EQ(svi_slot_stamp(svi_slot_successor(last, 0)), 1);
}

int
main(void)
{
    world_begin(50);
    RUN(pins_and_reads_are_apart);
    RUN(wrapped_reads_leave_the_pins);
    RUN(cleaning_keeps_the_reads);
    RUN(pins_have_room_beyond_the_limit);
    RUN(reads_since_is_modular_and_never_negative);
    RUN(slot_words_hold_buffer_and_stamp);
    RUN(no_slot_word_is_empty);
    return world_end();
}
