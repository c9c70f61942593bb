/* Forks without a row for the child (rule F3): it shares its parent's, and goes on looking at what it
 * inherited, whoever of the two ends first. */
#include "share.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "error.h"
#include "fork.h"
#include "row.h"
#include "world.h"

static sv_segment *segment;
static sv_view held[1];
static uint32_t held_buffer;

static uint64_t
pins_on(uint32_t buffer)
{
    return svi_buffer_pins(svi_mapping_of(segment), buffer);
}

static void
end_with_view(void)
{
    sv_unpin(&held[0]);
    world_audit(segment, 0, 0);
    (void)EQ(world_living(segment), 1);
    world_drop(segment);
}

/* ---- no row left --------------------------------------------------------------------------- */

/* A segment of `rows` rows with a view on slot 0, in this process. */
static void
begin_with_rows(const char *tag, uint32_t rows)
{
    sv_options options = world_options();
    options.max_rows = rows;
    world_flags_clear();
    segment = world_open(world_name(tag), &options, SV_OPEN_CREATE);
    for (uint64_t i = 0; i < 3; i++) {
        EQ(world_append(segment, i + 1), 0);
    }
    EQ(sv_pin(segment, 0, &held[0]), 0);
    held_buffer = held[0].buffer_;
    tap_note("lines on stderr about rows that could not be had are meant");
}

/* A child that shares the parent's row: it sees its view, whole and described, for as long as it looks;
 * gets no other; and takes nothing away from anybody. */
static int
look_without_a_row(void *argument)
{
    uint64_t stamp = 0;
    sv_view mine;
    sv_chunk_info info;
    sv_array array;
    sv_error err = {.message = ""};
    (void)argument;
    EQ(pins_on(held_buffer), 2); /* the parent's, and the one it left behind */
    EQ(sv_pin(segment, 0, &mine), SV_EROWS);
    EQ(sv_segment_join(segment, &err), SV_EROWS);
    HAS(err.message, "max_rows");
    EQ(sv_size(segment), 3);
    world_set(&world_flags[0], 1);
    EQ(world_await(&world_flags[1], 1), true);
    for (int i = 0; i < 50; i++) {
        CHECK(world_whole(&held[0], &stamp));
        EQ(stamp, 1);
    }
    sv_view_info(&held[0], &info);
    EQ(info.version, 1);
    EQ(sv_view_array(&held[0], 0, &array), 0);
    CHECK(array.data == held[0].data);
    sv_view copy = held[0];
    uint64_t before = pins_on(held_buffer);
    sv_unpin(&held[0]);
    EQ(pins_on(held_buffer), before);
    EQ(sv_segment_close(segment, NULL), 0);
    CHECK(world_whole(&copy, &stamp)); /* mapped until this process ends */
    EQ(stamp, 1);
    return 0;
}

static void
publish_much(void)
{
    for (uint64_t i = 0; i < 20; i++) {
        EQ(world_publish(segment, 0, 100 + i), 0);
    }
}

static void
a_child_without_a_row_shares_its_parents(void)
{
    begin_with_rows("share", 1);
    pid_t pid = world_fork(look_without_a_row, NULL);
    REQUIRE(world_await(&world_flags[0], 1));
    EQ(sv_own_pins(segment), 1); /* what was left behind is the child's */
    sv_unpin(&held[0]);
    EQ(sv_own_pins(segment), 0);
    EQ(pins_on(held_buffer), 1);
    publish_much();
    EQ(sv_recover(segment, NULL, NULL), 0);
    EQ(pins_on(held_buffer), 1);
    world_set(&world_flags[1], 1);
    EQ(world_wait(pid, WORLD_WAIT_MS), 0);
    world_audit(segment, 0, 0); /* recovering takes the pin back */
    world_drop(segment);
}

static void
a_killed_child_without_a_row_leaves_nothing(void)
{
    begin_with_rows("sharekill", 1);
    pid_t pid = world_fork(look_without_a_row, NULL);
    REQUIRE(world_await(&world_flags[0], 1));
    world_kill(pid);
    EQ(pins_on(held_buffer), 2);
    sv_unpin(&held[0]); /* looks whether the child lives */
    EQ(pins_on(held_buffer), 0);
    EQ(svi_load_seq(&svi_mapping_of(segment)->closing), 0); /* and further unpins need not */
    world_audit(segment, 0, 0);
    world_drop(segment);
}

static int
wait_without_a_row(void *number)
{
    world_set((svi_word *)number, 1);
    EQ(world_await(&world_flags[1], 1), true);
    return *(const volatile uint64_t *)held[0].data == 1 ? 0 : 1;
}

/* However often, and with whatever views: one pin for each buffer, while any of the children lives. */
static void
many_children_without_rows(void)
{
    pid_t pids[6];
    sv_view more[2];
    begin_with_rows("sharemany", 1);
    for (size_t i = 0; i < 6; i++) {
        pids[i] = world_fork(wait_without_a_row, &world_flags[10 + i]);
        REQUIRE(world_await(&world_flags[10 + i], 1));
        EQ(pins_on(held_buffer), 2);
        if (i < 2) {
            EQ(sv_pin(segment, i == 0 ? 0 : 1, &more[i]), 0);
            EQ(sv_own_pins(segment), 2 + i);
        }
        if (i == 0) {
            sv_unpin(&more[0]);
            EQ(sv_pin(segment, 2, &more[0]), 0);
        }
    }
    EQ(sv_own_pins(segment), 3);
    sv_unpin(&more[0]);
    sv_unpin(&more[1]);
    EQ(world_living(segment), 1);
    world_kill(pids[3]);
    sv_unpin(&held[0]);
    EQ(pins_on(held_buffer), 1); /* five are left */
    publish_much();
    world_set(&world_flags[1], 1);
    for (size_t i = 0; i < 6; i++) {
        EQ(i == 3 ? 0 : world_wait(pids[i], WORLD_WAIT_MS), 0);
    }
    world_audit(segment, 0, 0);
    world_drop(segment);
}

/* A fork after the children of an earlier one have ended counts anew. */
static int
count_the_childs_pins(void *argument)
{
    (void)argument;
    EQ(svi_row_own_pins(svi_mapping_of(segment)), 1);
    EQ(pins_on(held_buffer), 2);
    return 0;
}

static void
a_row_is_free_again(void)
{
    begin_with_rows("shareroom", 2);
    const char *name = svi_mapping_of(segment)->name;
    svi_testing_separate = true;
    sv_segment *second = world_open(name, NULL, SV_OPEN_ATTACH); /* takes the last row */
    svi_testing_separate = false;
    pid_t pid = world_fork(wait_without_a_row, &world_flags[0]);
    REQUIRE(world_await(&world_flags[0], 1));
    EQ(pins_on(held_buffer), 2);
    EQ(sv_segment_close(second, NULL), 0);
    /* The first child still shares: what it needs is not copied to the second one, which has a row. */
    pid_t other = world_fork(wait_without_a_row, &world_flags[2]);
    REQUIRE(world_await(&world_flags[2], 1));
    EQ(pins_on(held_buffer), 3);
    world_kill(pid);
    world_kill(other);
    EQ(sv_recover(segment, NULL, NULL), 0);
    EQ(pins_on(held_buffer), 1);
    world_child(count_the_childs_pins, NULL);
    EQ(sv_recover(segment, NULL, NULL), 0);
    EQ(pins_on(held_buffer), 1);
    end_with_view();
}

static int
attach_when_there_is_room(void *argument)
{
    sv_view mine;
    uint64_t stamp = 0;
    (void)argument;
    EQ(sv_pin(segment, 1, &mine), SV_EROWS);
    world_set(&world_flags[3], 1);
    EQ(world_await(&world_flags[4], 1), true);
    EQ(sv_pin(segment, 1, &mine), 0);
    CHECK(world_whole(&mine, &stamp));
    EQ(stamp, 2);
    CHECK(world_whole(&held[0], &stamp)); /* by the row that it shares */
    sv_unpin(&held[0]);
    EQ(pins_on(held_buffer), 2);
    sv_unpin(&mine);
    EQ(world_publish(segment, 1, 44), 0);
    return 0;
}

static void
a_child_without_a_row_gets_one_later(void)
{
    begin_with_rows("sharelate", 2);
    const char *name = svi_mapping_of(segment)->name;
    svi_testing_separate = true;
    sv_segment *second = world_open(name, NULL, SV_OPEN_ATTACH);
    svi_testing_separate = false;
    pid_t late = world_fork(attach_when_there_is_room, NULL);
    REQUIRE(world_await(&world_flags[3], 1));
    EQ(sv_segment_close(second, NULL), 0);
    world_set(&world_flags[4], 1);
    EQ(world_wait(late, WORLD_WAIT_MS), 0);
    EQ(world_stamp(segment, 1), 44);
    end_with_view();
}

/* All views were the child's: whoever it belongs to closes, and the child goes on looking. */
static void
the_parent_closes_before_a_child_without_a_row(void)
{
    begin_with_rows("shareclose", 1);
    svi_mapping *m = svi_mapping_of(segment);
    char name[SV_MAX_NAME_BYTES + 1];
    svi_text_copy(name, sizeof name, m->name);
    pid_t pid = world_fork(look_without_a_row, NULL);
    REQUIRE(world_await(&world_flags[0], 1));
    sv_unpin(&held[0]);
    EQ(sv_segment_close(segment, NULL), 0);
    CHECK(!m->mapped);
    sv_error err = {.message = ""};
    EQ(world_try_open(name, NULL, SV_OPEN_ATTACH, &err), SV_EROWS); /* the child keeps the row */
    world_set(&world_flags[1], 1);
    EQ(world_wait(pid, WORLD_WAIT_MS), 0);
    segment = world_open(name, NULL, SV_OPEN_ATTACH); /* over what was left */
    world_audit(segment, 0, 0);
    world_drop(segment);
}

/* ---- ... and generations ------------------------------------------------------------------- */

static int
fork_without_a_row(void *argument)
{
    (void)argument;
    pid_t pid = fork();
    if (pid == 0) {
        tap_reset();
        int code = look_without_a_row(NULL);
        world_exit(tap_failures() != 0 ? 99 : code);
    }
    world_set(&world_flags[2], (uint64_t)pid);
    EQ(world_await(&world_flags[0], 1), true);
    return 0; /* the grandchild is left alone with its grandparent's row */
}

static void
a_grandchild_shares_the_row_too(void)
{
    begin_with_rows("sharegrand", 1);
    world_child(fork_without_a_row, NULL);
    pid_t grandchild = (pid_t)svi_load_seq(&world_flags[2]);
    sv_unpin(&held[0]);
    EQ(pins_on(held_buffer), 1);
    publish_much();
    world_set(&world_flags[1], 1);
    EQ(world_wait(grandchild, WORLD_WAIT_MS), 0);
    world_audit(segment, 0, 0);
    world_drop(segment);
}

static int
fork_without_a_row_and_be_killed(void *name)
{
    svi_testing_separate = true;
    segment = world_open(name, NULL, SV_OPEN_ATTACH);
    EQ(sv_pin(segment, 0, &held[0]), 0);
    held_buffer = held[0].buffer_;
    (void)fork_without_a_row(NULL);
    world_set(&world_flags[3], 1);
    for (;;) {
        (void)pause();
    }
    return 1;
}

/* The row lives as long as anybody who shares it, though its process is dead. */
static void
the_parent_of_a_child_without_a_row_is_killed(void)
{
    sv_options options = world_options();
    const char *name = world_name("shareorphan");
    options.max_rows = 2;
    world_flags_clear();
    sv_segment *mine = world_open(name, &options, SV_OPEN_CREATE);
    for (uint64_t i = 0; i < 3; i++) {
        EQ(world_append(mine, i + 1), 0);
    }
    pid_t parent = world_fork(fork_without_a_row_and_be_killed, (void *)(uintptr_t)name);
    REQUIRE(world_await(&world_flags[3], 1));
    pid_t child = (pid_t)svi_load_seq(&world_flags[2]);
    world_kill(parent);
    EQ(sv_recover(mine, NULL, NULL), 0);
    EQ(world_living(mine), 2);
    for (uint64_t i = 0; i < 20; i++) {
        EQ(world_publish(mine, 0, 100 + i), 0);
    }
    world_set(&world_flags[1], 1);
    EQ(world_wait(child, WORLD_WAIT_MS), 0); /* it comes to us, its subreaper */
    EQ(sv_recover(mine, NULL, NULL), 0);
    EQ(world_living(mine), 1);
    world_audit(mine, 0, 0);
    world_drop(mine);
}

int
main(void)
{
    world_begin(55);
    RUN(a_child_without_a_row_shares_its_parents);
    RUN(a_killed_child_without_a_row_leaves_nothing);
    RUN(many_children_without_rows);
    RUN(a_row_is_free_again);
    RUN(a_child_without_a_row_gets_one_later);
    RUN(the_parent_closes_before_a_child_without_a_row);
    RUN(a_grandchild_shares_the_row_too);
    RUN(the_parent_of_a_child_without_a_row_is_killed);
    return world_end();
}
