/* sv_check finds each broken invariant, and none while others go on. */

#include <string.h>

#include "error.h"
#include "row.h"
#include "world.h"

static sv_segment *segment;
static svi_mapping *m;
static unsigned char *rw;

static void
begin(const char *tag)
{
    segment = world_segment(world_name(tag), 3);
    m = svi_mapping_of(segment);
    (void)EQ(svi_writable(m, &rw, NULL), 0);
    (void)EQ(sv_check(segment, NULL), 0);
}

static void
end(void)
{
    (void)EQ(sv_check(segment, NULL), 0);
    world_audit(segment, 0, 0);
    world_drop(segment);
}

static void
broken(const char *part)
{
    sv_error err = {.message = ""};
    EQ(sv_check(segment, &err), SV_EFORMAT);
    EQ(err.code, SV_EFORMAT);
    HAS(err.message, part);
    EQ(sv_check(segment, NULL), SV_EFORMAT);
}

/* Write `value` there, expect `part` in the message, put the old value back. */
static void
break_word(svi_word *word, uint64_t value, const char *part)
{
    uint64_t good = svi_load_seq(word);
    tap_context("%s", part);
    svi_store_seq(word, value);
    broken(part);
    svi_store_seq(word, good);
}

static void
header_words_are_checked(void)
{
    begin("header");
    break_word(&svi_header_at(rw)->h_size, 5, "size is 5");
    break_word(&svi_header_at(rw)->h_size, UINT64_MAX, "size is");
    break_word(&svi_header_at(rw)->h_high_rows, 17, "17 of 16 rows");
    end();
}

static void
slots_are_checked(void)
{
    begin("slots");
    svm_slot *slots = svi_slots_at(m, rw);
    break_word(&slots[1].s_word, SVI_EMPTY, "slot 1");
    break_word(&slots[1].s_word, svi_slot_word(6, 1), "slot 1");
    break_word(&slots[1].s_word, svi_load_seq(&slots[0].s_word), "slot 1");
    break_word(&svi_buffer_at(m, rw, 2)->b_slot, 1, "slot 2");
    break_word(&svi_buffer_at(m, rw, 2)->b_version, 0, "slot 2");
    end();
}

static void
arrays_are_checked(void)
{
    begin("arrays");
    svm_buffer *header = svi_buffer_at(m, rw, 1);
    header->b_array_count = 2; /* the second descriptor was never filled in */
    header->b_arrays[1].a_offset = 7;
    broken("slot 1");
    header->b_array_count = 1;
    end();
}

static void
rows_and_claims_are_checked(void)
{
    begin("rows");
    break_word(&svi_row_at(m, rw, 0)->r_state, 7, "row 0");
    break_word(&svi_buffer_at(m, rw, 5)->b_writer, 17, "buffer 5");
    end();
}

static unsigned looks_left;
static uint64_t good_word;

/* After the last slot was looked at by itself, slot 1 comes to name slot 0's buffer. */
static void
break_after_the_looks(const char *step)
{
    if (strcmp(step, "unpin.done") == 0 && --looks_left == 0) {
        svm_slot *slots = svi_slots_at(m, rw);
        good_word = svi_load_seq(&slots[1].s_word);
        svi_store_seq(&slots[1].s_word, svi_load_seq(&slots[0].s_word));
    }
}

static void
two_slots_never_name_one_buffer(void)
{
    sv_error err = {.message = ""};
    begin("distinct");
    looks_left = 3;
    svi_step_hook = break_after_the_looks;
    EQ(sv_check(segment, &err), SV_EFORMAT);
    svi_step_hook = NULL;
    HAS(err.message, "slots 0 and 1 name buffer");
    svi_store_seq(&svi_slots_at(m, rw)[1].s_word, good_word);
    end();
}

/* A slot that is published to all the time cannot be looked at; that is no damage. */
static void
republish(const char *step)
{
    svi_word *word = &svi_slots_at(m, rw)[2].s_word;
    uint64_t now = svi_load_seq(word);
    if (strcmp(step, "pin.added") == 0) {
        svi_store_seq(word, svi_slot_successor(now, svi_slot_buffer(now)));
    }
}

static void
a_slot_that_never_rests_is_passed_over(void)
{
    begin("restless");
    svi_step_hook = republish;
    EQ(sv_check(segment, NULL), 0);
    svi_step_hook = NULL;
    end();
}

static int
write_and_read_all_the_time(void *argument)
{
    for (uint64_t i = 0; svi_load_seq(&world_flags[0]) == 0; i++) {
        sv_view view;
        EQ(world_publish(argument, (uint32_t)(i % 3), 100 + i), 0);
        EQ(sv_pin(argument, (uint32_t)((i + 1) % 3), &view), 0);
        sv_unpin(&view);
    }
    return 0;
}

static void
others_may_go_on_meanwhile(void)
{
    sv_error err = {.message = ""};
    begin("busy");
    world_flags_clear();
    pid_t first = world_fork(write_and_read_all_the_time, segment);
    pid_t second = world_fork(write_and_read_all_the_time, segment);
    for (int i = 0; i < 2000; i++) {
        if (!EQ(sv_check(segment, &err), 0)) {
            tap_note("%s", err.message);
            break;
        }
    }
    world_set(&world_flags[0], 1);
    EQ(world_wait(first, WORLD_WAIT_MS), 0);
    EQ(world_wait(second, WORLD_WAIT_MS), 0);
    end();
}

int
main(void)
{
    world_begin(50);
    RUN(header_words_are_checked);
    RUN(slots_are_checked);
    RUN(arrays_are_checked);
    RUN(rows_and_claims_are_checked);
    RUN(two_slots_never_name_one_buffer);
    RUN(a_slot_that_never_rests_is_passed_over);
    RUN(others_may_go_on_meanwhile);
    return world_end();
}
