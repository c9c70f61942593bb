/* Whose turn it is: a view that is held for long freezes its own slot and no other (rule W8). */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "os.h"
#include "world.h"

#define SLOTS 16
#define HELD 12

static sv_segment *
pool_of(const char *tag, uint32_t slots)
{
    sv_options options = world_options();
    options.slot_count = slots;
    sv_segment *segment = world_open(world_name(tag), &options, SV_OPEN_CREATE);
    for (uint32_t i = 0; i < slots; i++) {
        EQ(world_append(segment, i + 1), 0);
    }
    return segment;
}

/* Reserve, fill and publish where it is due; the slot, or a negative code. */
static int
refresh(sv_segment *segment, sv_turn *turn, uint64_t stamp, sv_error *err)
{
    sv_reservation reservation;
    uint32_t slot = 0;
    int status = sv_reserve(segment, 0, &reservation, err);
    if (status != 0) {
        return status;
    }
    EQ(world_fill(&reservation, stamp), 0);
    status = sv_publish_turn(&reservation, turn, &slot, err);
    if (status != 0) {
        sv_cancel(&reservation);
        return status;
    }
    return (int)slot;
}

static void
read_slot(sv_segment *segment, uint32_t slot)
{
    sv_view view;
    EQ(sv_pin(segment, slot, &view), 0);
    sv_unpin(&view);
}

static void
hold(sv_segment *segment, sv_view *views, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        EQ(sv_pin(segment, i, &views[i]), 0);
    }
}

static void
held_views_freeze_their_own_slots(void)
{
    sv_segment *segment = pool_of("freeze", SLOTS);
    sv_view views[HELD];
    sv_turn turn = {.timeout_ns = 0};
    hold(segment, views, HELD);
    for (uint64_t round = 0; round < 200; round++) {
        bool refreshed[SLOTS] = {false};
        for (uint32_t slot = HELD; slot < SLOTS; slot++) {
            read_slot(segment, slot);
        }
        for (uint32_t i = HELD; i < SLOTS; i++) {
            int slot = refresh(segment, &turn, 100 + round, NULL);
            if (!CHECK(slot >= HELD) || !CHECK(!refreshed[slot])) {
                break;
            }
            refreshed[slot] = true;
        }
    }
    for (uint32_t i = 0; i < HELD; i++) {
        uint64_t stamp = 0;
        CHECK(world_whole(&views[i], &stamp));
        EQ(stamp, i + 1);
        sv_unpin(&views[i]);
        EQ(world_stamp(segment, i), i + 1);
    }
    world_audit(segment, 0, 0);
    world_drop(segment);
}

static void
only_chunks_that_were_read_are_replaced_unless_told(void)
{
    sv_segment *segment = pool_of("unread", 4);
    sv_turn turn = {.timeout_ns = 0};
    sv_error err = {.message = ""};
    sv_view view;
    EQ(refresh(segment, &turn, 50, &err), SV_ETIMEDOUT);
    HAS(err.message, "read");
    EQ(sv_pin(segment, 2, &view), 0);
    EQ(refresh(segment, &turn, 50, NULL), SV_ETIMEDOUT); /* read, but held; the others are unread */
    turn.unread = 1;
    uint32_t seen = 0;
    for (int i = 0; i < 6; i++) {
        int slot = refresh(segment, &turn, 60, NULL);
        CHECK(slot >= 0 && slot != 2);
        seen |= 1u << slot;
    }
    EQ(seen, 0xb); /* in turn, all but the one that is held */
    sv_unpin(&view);
    turn.unread = 0;
    EQ(refresh(segment, &turn, 70, NULL), 2);
    world_audit(segment, 0, 0);
    world_drop(segment);
}

static void
a_range_keeps_its_own_turn(void)
{
    sv_segment *segment = pool_of("range", 4);
    sv_turn turn = {.first = 1, .end = 3, .unread = 1};
    EQ(refresh(segment, &turn, 50, NULL), 1);
    EQ(refresh(segment, &turn, 51, NULL), 2);
    EQ(refresh(segment, &turn, 52, NULL), 1);
    read_slot(segment, 1);
    read_slot(segment, 3);
    EQ(refresh(segment, &turn, 53, NULL), 1);              /* what was read comes first */
    turn = (sv_turn){.first = 2, .end = 900, .unread = 1}; /* what is filled of it */
    EQ(refresh(segment, &turn, 54, NULL), 3);
    turn = (sv_turn){.first = 4, .end = 5};
    EQ(refresh(segment, &turn, 55, NULL), SV_EINDEX);
    world_audit(segment, 0, 0);
    world_drop(segment);
}

static void
a_held_chunk_is_displaced_only_while_a_buffer_remains(void)
{
    sv_segment *segment = pool_of("remains", 4); /* and 2 spares */
    sv_turn turn = {.unread = 1, .timeout_ns = UINT64_C(300000000)};
    sv_error err = {.message = ""};
    sv_view views[4];
    sv_reservation reservation;
    uint32_t slot = 77;
    char wanted[32];
    hold(segment, views, 4);
    CHECK(refresh(segment, &turn, 50, NULL) >= 0); /* the other spare remains */
    EQ(sv_reserve(segment, 0, &reservation, NULL), 0);
    EQ(world_fill(&reservation, 51), 0);
    turn.unread = 0;
    /* The displaced slot has a chunk that nobody has seen. */
    EQ(sv_publish_turn(&reservation, &turn, &slot, &err), SV_ETIMEDOUT);
    sv_view fresh;
    for (uint32_t i = 0; i < 4; i++) {
        if (world_stamp(segment, i) == 50) {
            EQ(sv_pin(segment, i, &fresh), 0);
        }
    }
    EQ(sv_publish_turn(&reservation, &turn, &slot, &err), SV_EINUSE);
    EQ(slot, 77);
    (void)snprintf(wanted, sizeof wanted, "pid %ld (", (long)getpid());
    HAS(err.message, wanted);
    HAS(err.message, "): 5 views");
    HAS(err.message, "1 reserved buffer");
    EQ(sv_publish_turn(&reservation, &turn, &slot, NULL), SV_EINUSE);
    sv_unpin(&views[1]); /* of one that is current, or of the one that was displaced */
    EQ(sv_publish_turn(&reservation, &turn, &slot, NULL), 0);
    sv_unpin(&fresh);
    for (uint32_t i = 0; i < 4; i++) {
        sv_unpin(&views[i]);
    }
    world_audit(segment, 0, 0);
    world_drop(segment);
}

/* ---- readers that come and go -------------------------------------------------------------- */

enum { FLAG_READY, FLAG_STOP };

/* Have a view of every slot at any moment, and hold none of them for long. */
static int
overlap(void *argument)
{
    sv_segment *segment = world_open(argument, NULL, SV_OPEN_ATTACH);
    sv_view views[4];
    hold(segment, views, 4);
    (void)svi_add_seq(&world_flags[FLAG_READY], 1);
    while (svi_load_seq(&world_flags[FLAG_STOP]) == 0) {
        for (uint32_t i = 0; i < 4; i++) {
            sv_unpin(&views[i]);
            svi_os_sleep_ns(300000);
            EQ(sv_pin(segment, i, &views[i]), 0);
        }
    }
    for (uint32_t i = 0; i < 4; i++) {
        sv_unpin(&views[i]);
    }
    return sv_segment_close(segment, NULL);
}

static void
readers_that_come_and_go_starve_nobody(void)
{
    sv_options options = world_options();
    options.spare_buffers = 1; /* no other buffer can remain */
    const char *name = world_name("overlap");
    sv_segment *segment = world_open(name, &options, SV_OPEN_CREATE);
    pid_t pids[3];
    for (uint32_t i = 0; i < 4; i++) {
        EQ(world_append(segment, i + 1), 0);
    }
    world_flags_clear();
    for (int i = 0; i < 3; i++) {
        pids[i] = world_fork(overlap, (void *)(uintptr_t)name);
    }
    (void)world_await(&world_flags[FLAG_READY], 3);
    for (uint64_t i = 0; i < 5; i++) {
        sv_reservation reservation;
        sv_turn turn = {.timeout_ns = world_limit_ns(20)};
        uint32_t slot = 0;
        EQ(sv_reserve(segment, world_limit_ns(20), &reservation, NULL), 0);
        EQ(world_fill(&reservation, 100 + i), 0);
        EQ(sv_publish_turn(&reservation, &turn, &slot, NULL), 0);
    }
    world_set(&world_flags[FLAG_STOP], 1);
    for (int i = 0; i < 3; i++) {
        EQ(world_wait(pids[i], WORLD_WAIT_MS), 0);
    }
    world_audit(segment, 0, 0);
    world_drop(segment);
}

static int
hold_and_die(void *argument)
{
    sv_segment *segment = world_open(argument, NULL, SV_OPEN_ATTACH);
    sv_view views[4];
    hold(segment, views, 4);
    _exit(tap_failures() == 0 ? 0 : 99);
}

static void
views_of_the_dead_hold_nothing(void)
{
    sv_options options = world_options();
    options.spare_buffers = 1;
    const char *name = world_name("dead");
    sv_segment *segment = world_open(name, &options, SV_OPEN_CREATE);
    for (uint32_t i = 0; i < 4; i++) {
        EQ(world_append(segment, i + 1), 0);
    }
    world_child(hold_and_die, (void *)(uintptr_t)name);
    sv_turn turn = {.timeout_ns = WORLD_NEVER_NS};
    CHECK(refresh(segment, &turn, 50, NULL) >= 0);
    world_audit(segment, 0, 0);
    world_drop(segment);
}

int
main(void)
{
    world_begin(60);
    RUN(held_views_freeze_their_own_slots);
    RUN(only_chunks_that_were_read_are_replaced_unless_told);
    RUN(a_range_keeps_its_own_turn);
    RUN(a_held_chunk_is_displaced_only_while_a_buffer_remains);
    RUN(views_of_the_dead_hold_nothing);
    RUN(readers_that_come_and_go_starve_nobody);
    return world_end();
}
