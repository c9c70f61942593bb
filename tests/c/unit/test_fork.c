/* Fork: views and handles go on in the child through a row of its own; nothing that one process
 * gives back, drops or loses touches what the other holds. */
#include "fork.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "error.h"
#include "row.h"
#include "world.h"

static sv_segment *segment;
static sv_view held[4];
static sv_reservation reservation;
static uint32_t held_buffer;

static uint64_t
pins_on(uint32_t buffer)
{
    return svi_buffer_pins(svi_mapping_of(segment), buffer);
}

/* A segment with 3 chunks and a view on slot 0, opened in this process. */
static void
begin_with_view(const char *tag)
{
    world_flags_clear();
    segment = world_segment(world_name(tag), 3);
    (void)EQ(sv_pin(segment, 0, &held[0]), 0);
    held_buffer = held[0].buffer_;
}

static void
end_with_view(void)
{
    sv_unpin(&held[0]);
    world_audit(segment, 0, 0);
    (void)EQ(world_living(segment), 1);
    world_drop(segment);
}

/* ---- what a child does --------------------------------------------------------------------- */

static int
look_and_drop(void *argument)
{
    uint64_t stamp = 0;
    (void)argument;
    EQ(world_living(segment), 2);
    EQ(pins_on(held_buffer), 2);
    CHECK(world_whole(&held[0], &stamp));
    EQ(stamp, 1);
    sv_unpin(&held[0]);
    EQ(pins_on(held_buffer), 1); /* the parent's */
    sv_unpin(&held[0]);
    EQ(pins_on(held_buffer), 1);
    return 0;
}

static void
a_child_drops_its_own_copy(void)
{
    begin_with_view("drop");
    world_child(look_and_drop, NULL);
    EQ(world_replace(segment, 0, 9), SV_EINUSE);
    uint64_t stamp = 0;
    CHECK(world_whole(&held[0], &stamp));
    end_with_view();
}

static int
get_and_drop(void *argument)
{
    sv_view mine;
    (void)argument;
    EQ(sv_pin(segment, 0, &mine), 0);
    EQ(pins_on(held_buffer), 3);
    sv_unpin(&mine);
    EQ(pins_on(held_buffer), 2);
    EQ(sv_pin(segment, 1, &mine), 0); /* and ends with it */
    return 0;
}

static void
a_childs_own_pins_count_apart(void)
{
    begin_with_view("own");
    world_child(get_and_drop, NULL);
    EQ(world_replace(segment, 0, 9), SV_EINUSE);
    EQ(world_replace(segment, 1, 9), 0); /* the child is gone, and so is its pin */
    EQ(pins_on(held_buffer), 1);
    end_with_view();
}

static int
keep_until_told(void *argument)
{
    uint64_t stamp = 0;
    (void)argument;
    world_set(&world_flags[0], 1);
    EQ(world_await(&world_flags[1], 1), true);
    CHECK(world_whole(&held[0], &stamp));
    EQ(stamp, 1);
    sv_unpin(&held[0]);
    return 0;
}

static void
a_childs_view_outlives_the_parents(void)
{
    begin_with_view("outlive");
    pid_t pid = world_fork(keep_until_told, NULL);
    REQUIRE(world_await(&world_flags[0], 1));
    sv_unpin(&held[0]);
    EQ(pins_on(held_buffer), 1);
    EQ(world_replace(segment, 0, 9), SV_EINUSE);
    for (uint64_t i = 0; i < 20; i++) {
        EQ(world_publish(segment, 0, 100 + i), 0);
    }
    world_audit(segment, 1, 1);
    world_set(&world_flags[1], 1);
    EQ(world_wait(pid, WORLD_WAIT_MS), 0);
    end_with_view();
}

static void
a_killed_child_gives_its_copy_back(void)
{
    begin_with_view("killed");
    pid_t pid = world_fork(keep_until_told, NULL);
    REQUIRE(world_await(&world_flags[0], 1));
    EQ(pins_on(held_buffer), 2);
    world_kill(pid);
    EQ(sv_recover(segment, NULL, NULL), 0);
    EQ(pins_on(held_buffer), 1);
    end_with_view();
}

/* ---- the parent is killed first ------------------------------------------------------------ */

static int
fork_and_be_killed(void *name)
{
    svi_testing_separate = true;
    segment = world_open(name, NULL, SV_OPEN_ATTACH);
    EQ(sv_pin(segment, 0, &held[0]), 0);
    pid_t pid = fork();
    if (pid == 0) {
        world_exit(keep_until_told(NULL));
    }
    world_set(&world_flags[2], (uint64_t)pid);
    for (;;) {
        (void)pause();
    }
    return 1;
}

static void
the_parent_is_killed_then_the_child(void)
{
    const char *name = world_name("parent");
    world_flags_clear();
    sv_segment *mine = world_segment(name, 3);
    pid_t parent = world_fork(fork_and_be_killed, (void *)(uintptr_t)name);
    REQUIRE(world_await(&world_flags[2], 1));
    REQUIRE(world_await(&world_flags[0], 1));
    pid_t child = (pid_t)svi_load_seq(&world_flags[2]);
    EQ(world_living(mine), 3);
    world_kill(parent);
    EQ(world_living(mine), 2);
    EQ(world_replace(mine, 0, 9), SV_EINUSE); /* the orphan still looks at it */
    world_kill(child);
    EQ(world_living(mine), 1);
    EQ(world_replace(mine, 0, 9), 0);
    world_audit(mine, 0, 0);
    world_drop(mine);
}

static void
the_parent_is_killed_and_the_child_goes_on(void)
{
    const char *name = world_name("orphan");
    world_flags_clear();
    sv_segment *mine = world_segment(name, 3);
    pid_t parent = world_fork(fork_and_be_killed, (void *)(uintptr_t)name);
    REQUIRE(world_await(&world_flags[2], 1));
    pid_t child = (pid_t)svi_load_seq(&world_flags[2]);
    world_kill(parent);
    EQ(world_replace(mine, 0, 9), SV_EINUSE);
    world_set(&world_flags[1], 1);
    EQ(world_wait(child, WORLD_WAIT_MS), 0); /* it comes to us, its subreaper */
    EQ(world_replace(mine, 0, 9), 0);
    world_audit(mine, 0, 0);
    world_drop(mine);
}

/* ---- generations of children --------------------------------------------------------------- */

static int
be_a_grandchild(void *argument)
{
    uint64_t stamp = 0;
    (void)argument;
    EQ(pins_on(held_buffer), 3);
    CHECK(world_whole(&held[0], &stamp));
    world_set(&world_flags[0], 1);
    EQ(world_await(&world_flags[1], 1), true);
    sv_unpin(&held[0]);
    return 0;
}

static int
fork_a_grandchild(void *argument)
{
    (void)argument;
    pid_t pid = fork();
    if (pid == 0) {
        tap_reset();
        int code = be_a_grandchild(NULL);
        world_exit(tap_failures() != 0 ? 99 : code);
    }
    world_set(&world_flags[2], (uint64_t)pid);
    EQ(world_await(&world_flags[0], 1), true);
    sv_unpin(&held[0]); /* its own; the grandchild has another */
    return 0;
}

static void
a_grandchild_has_a_row_of_its_own(void)
{
    begin_with_view("grand");
    world_child(fork_a_grandchild, NULL);
    REQUIRE(world_await(&world_flags[0], 1));
    EQ(world_living(segment), 2); /* the middle one is gone with its anchor */
    EQ(pins_on(held_buffer), 2);
    world_set(&world_flags[1], 1);
    EQ(world_wait((pid_t)svi_load_seq(&world_flags[2]), WORLD_WAIT_MS), 0);
    EQ(sv_recover(segment, NULL, NULL), 0);
    EQ(pins_on(held_buffer), 1);
    end_with_view();
}

static int
fork_without_views(void *argument)
{
    sv_view mine;
    (void)argument;
    EQ(world_living(segment), 1); /* not attached before the first use */
    EQ(sv_pin(segment, 0, &mine), 0);
    EQ(world_living(segment), 2);
    EQ(world_publish(segment, 1, 77), 0);
    EQ(pins_on(mine.buffer_), 1);
    sv_unpin(&mine);
    EQ(sv_segment_close(segment, NULL), 0);
    return 0;
}

static void
a_child_without_views_attaches_on_first_use(void)
{
    world_flags_clear();
    segment = world_segment(world_name("first"), 3);
    world_child(fork_without_views, NULL);
    EQ(world_living(segment), 1);
    EQ(world_stamp(segment, 1), 77);
    world_audit(segment, 0, 0);
    world_drop(segment);
}

static int
open_in_a_child(void *name)
{
    sv_segment *mine = NULL;
    EQ(sv_segment_open(name, NULL, SV_OPEN_ATTACH, &mine, NULL), 0);
    EQ(world_living(mine), 2); /* at once, not on first use */
    EQ(sv_handle_count(mine), 3);
    return sv_segment_close(mine, NULL);
}

static void
a_child_that_opens_is_attached(void)
{
    const char *name = world_name("open");
    segment = world_segment(name, 1);
    world_child(open_in_a_child, (void *)(uintptr_t)name);
    EQ(world_living(segment), 1);
    world_audit(segment, 0, 0);
    world_drop(segment);
}

static int
close_and_go_on(void *argument)
{
    uint64_t stamp = 0;
    (void)argument;
    EQ(sv_segment_close(segment, NULL), 0); /* deferred in the child */
    CHECK(world_whole(&held[0], &stamp));
    sv_unpin(&held[0]);
    return 0;
}

static void
a_child_closes_its_own_handle(void)
{
    begin_with_view("close");
    world_child(close_and_go_on, NULL);
    EQ(world_stamp(segment, 1), 2);
    EQ(pins_on(held_buffer), 1);
    end_with_view();
}

static int
unpin_the_deferred(void *argument)
{
    uint64_t stamp = 0;
    (void)argument;
    CHECK(world_whole(&held[0], &stamp));
    sv_unpin(&held[0]);
    CHECK(!((const svi_mapping *)argument)->mapped);
    return 0;
}

static void
a_fork_after_a_deferred_close(void)
{
    begin_with_view("deferred");
    const char *name = svi_mapping_of(segment)->name;
    svi_mapping *m = svi_mapping_of(segment);
    EQ(sv_segment_close(segment, NULL), 0);
    world_child(unpin_the_deferred, m);
    uint64_t stamp = 0;
    CHECK(world_whole(&held[0], &stamp));
    CHECK(m->mapped);
    segment = world_open(name, NULL, SV_OPEN_ATTACH);
    EQ(sv_recover(segment, NULL, NULL), 0);
    EQ(pins_on(held_buffer), 1);
    end_with_view();
}

/* ---- reservations stay --------------------------------------------------------------------- */

static int
try_the_reservation(void *argument)
{
    sv_array array = {.size_bytes = 8, .itemsize = 8, .ndim = 0};
    sv_chunk chunk = {.arrays = &array, .array_count = 1};
    sv_error err = {.message = ""};
    uint32_t slot = 77;
    (void)argument;
    EQ(sv_publish(&reservation, 0, &err), SV_EFORKED);
    HAS(err.message, "fork");
    EQ(sv_publish_next(&reservation, &slot, &err), SV_EFORKED);
    EQ(sv_fill(&reservation, &chunk, &err), SV_EFORKED);
    sv_cancel(&reservation); /* does nothing */
    EQ(slot, 77);
    EQ(world_publish(segment, 1, 55), 0); /* its own writes work */
    EQ(sv_segment_close(segment, NULL), 0);
    return 0;
}

static void
a_reservation_stays_with_the_parent(void)
{
    world_flags_clear();
    segment = world_segment(world_name("reserve"), 3);
    EQ(sv_reserve(segment, 0, &reservation, NULL), 0);
    EQ(world_fill(&reservation, 66), 0);
    world_child(try_the_reservation, NULL);
    EQ(sv_publish(&reservation, 0, NULL), 0);
    EQ(world_stamp(segment, 0), 66);
    EQ(world_stamp(segment, 1), 55);
    world_audit(segment, 0, 0);
    world_drop(segment);
}

/* ---- several segments, threads, raw clones ------------------------------------------------- */

static int
drop_two(void *argument)
{
    uint64_t stamp = 0;
    sv_segment *other = argument;
    CHECK(world_whole(&held[1], &stamp));
    EQ(stamp, 2);
    CHECK(world_whole(&held[0], &stamp));
    EQ(stamp, 1);
    sv_unpin(&held[0]);
    sv_unpin(&held[1]);
    EQ(svi_row_own_pins(svi_mapping_of(segment)), 0);
    EQ(svi_row_own_pins(svi_mapping_of(other)), 0);
    return 0;
}

static void
views_of_several_segments_are_handed_over(void)
{
    begin_with_view("several");
    sv_segment *other = world_segment(world_name("other"), 2);
    EQ(sv_pin(other, 1, &held[1]), 0);
    world_child(drop_two, other);
    EQ(svi_row_own_pins(svi_mapping_of(other)), 1);
    sv_unpin(&held[1]);
    world_audit(other, 0, 0);
    world_drop(other);
    end_with_view();
}

/* No fork handlers run: the pins are not handed over, and the child must not touch the parent's. */
static void
a_raw_clone_loses_the_pins_and_harms_nobody(void)
{
    if (WORLD_THREAD_SANITIZER) {
        tap_skip("ThreadSanitizer does not survive a raw clone");
        return;
    }
    begin_with_view("clone");
    (void)fflush(stdout);
    pid_t pid = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
    if (pid == 0) {
        sv_view mine;
        int wrong = 0;
        sv_unpin(&held[0]);
        wrong |= pins_on(held_buffer) == 1 ? 0 : 1;
        wrong |= sv_pin(segment, 1, &mine) == 0 ? 0 : 2;
        wrong |= pins_on(mine.buffer_) == 1 ? 0 : 4;
        wrong |= world_living(segment) == 2 ? 0 : 8;
        sv_unpin(&mine);
        wrong |= world_publish(segment, 2, 33) == 0 ? 0 : 16;
        world_exit(wrong);
    }
    EQ(world_wait(pid, WORLD_WAIT_MS), 0);
    EQ(pins_on(held_buffer), 1);
    EQ(world_stamp(segment, 2), 33);
    end_with_view();
}

/* ---- a hand-over that a scan overlaps ------------------------------------------------------- */

static int
hold_a_row_for_a_while(void *name)
{
    svi_testing_separate = true;
    sv_segment *mine = world_open(name, NULL, SV_OPEN_ATTACH);
    world_set(&world_flags[0], 1);
    (void)world_await(&world_flags[1], 1);
    return sv_segment_close(mine, NULL);
}

static int
fork_with_a_view_when_told(void *name)
{
    uint64_t stamp = 0;
    svi_testing_separate = true;
    sv_segment *mine = world_open(name, NULL, SV_OPEN_ATTACH);
    EQ(sv_pin(mine, 0, &held[0]), 0);
    world_set(&world_flags[2], 1);
    (void)world_await(&world_flags[3], 1);
    pid_t pid = fork();
    if (pid == 0) {
        (void)world_await(&world_flags[5], 1);
        bool whole = world_whole(&held[0], &stamp) && stamp == 1;
        sv_unpin(&held[0]);
        world_exit(whole ? 0 : 1);
    }
    sv_unpin(&held[0]);
    world_set(&world_flags[4], 1);
    EQ(world_wait(pid, WORLD_WAIT_MS), 0);
    return sv_segment_close(mine, NULL);
}

static unsigned rows_passed;

/* The scan has passed the child's row, which is the lower one, before the pins were copied there,
 * and will come to the parent's when it has given them up. */
static void
hand_over_during_the_scan(const char *step)
{
    if (strcmp(step, "scan.passed") == 0 && ++rows_passed == 2) {
        world_set(&world_flags[3], 1);
        (void)world_await(&world_flags[4], 1);
    }
}

static void
a_scan_that_a_hand_over_overlaps_looks_again(void)
{
    const char *name = world_name("overlap");
    sv_reservation taken[4];
    sv_error err = {.message = ""};
    segment = world_segment(name, 1);
    world_flags_clear();
    pid_t idle = world_fork(hold_a_row_for_a_while, (void *)(uintptr_t)name);
    REQUIRE(world_await(&world_flags[0], 1));
    pid_t parent = world_fork(fork_with_a_view_when_told, (void *)(uintptr_t)name);
    REQUIRE(world_await(&world_flags[2], 1));
    world_set(&world_flags[1], 1);
    EQ(world_wait(idle, WORLD_WAIT_MS), 0); /* row 1 is free now, for the child */
    EQ(world_publish(segment, 0, 9), 0);
    for (size_t i = 0; i < 4; i++) {
        EQ(sv_reserve(segment, 0, &taken[i], NULL), 0);
    }
    rows_passed = 0;
    svi_step_hook = hand_over_during_the_scan;
    EQ(sv_reserve(segment, 0, &reservation, &err), SV_EINUSE); /* all that is left is pinned */
    svi_step_hook = NULL;
    CHECK(rows_passed > 3);
    world_set(&world_flags[5], 1);
    EQ(world_wait(parent, WORLD_WAIT_MS), 0);
    for (size_t i = 0; i < 4; i++) {
        sv_cancel(&taken[i]);
    }
    world_audit(segment, 0, 0);
    world_drop(segment);
}

/* Copies the chunk of a slot without looking at it first. */
static int
gather_one(uint32_t slot, uint64_t out[64])
{
    sv_gather_options how;
    sv_gather_options_init(&how);
    how.ndim = 1;
    how.shape[0] = 64;
    return sv_gather(segment, &slot, 1, &how, out, 64 * sizeof out[0], NULL);
}

/* Whatever such a child calls first mends its copy of this library's state. */
static void
a_raw_clone_may_begin_with_anything(void)
{
    if (WORLD_THREAD_SANITIZER) {
        tap_skip("ThreadSanitizer does not follow a raw clone");
        return;
    }
    begin_with_view("begin");
    EQ(sv_reserve(segment, 0, &reservation, NULL), 0);
    (void)fflush(stdout);
    for (int first = 0; first < 2; first++) {
        pid_t pid = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
        if (pid == 0) {
            uint64_t out[64];
            const uint32_t slot = 1;
            int wrong = 0;
            if (first == 0) {
                wrong |= gather_one(slot, out) == 0 ? 0 : 1;
                wrong |= out[0] == 2 ? 0 : 2;
            }
            sv_cancel(&reservation); /* the parent's: nothing happens */
            wrong |= sv_pin(segment, 1, &held[1]) == 0 ? 0 : 4;
            world_exit(wrong);
        }
        EQ(world_wait(pid, WORLD_WAIT_MS), 0);
    }
    EQ(world_fill(&reservation, 44), 0);
    EQ(sv_publish(&reservation, 2, NULL), 0);
    EQ(world_stamp(segment, 2), 44);
    end_with_view();
}

static svi_word stop_reading;

static void *
gather_all_the_time(void *argument)
{
    uint64_t out[64];
    const uint32_t slot = 1;
    uintptr_t failures = 0;
    (void)argument;
    while (svi_load_seq(&stop_reading) == 0) {
        failures += gather_one(slot, out) != 0;
    }
    return (void *)failures;
}

static int
count_copied_pins(void *argument)
{
    (void)argument;
    return (int)svi_row_own_pins(svi_mapping_of(segment));
}

/* gather pins for a moment in another thread; a child that inherited that pin would keep it. */
static void
pins_of_a_gather_are_not_handed_over(void)
{
    if (WORLD_THREAD_SANITIZER) {
        tap_skip("ThreadSanitizer ends children of programs with threads");
        return;
    }
    pthread_t thread;
    void *failures = NULL;
    begin_with_view("gather");
    svi_store_seq(&stop_reading, 0);
    EQ(pthread_create(&thread, NULL, gather_all_the_time, NULL), 0);
    for (int i = 0; i < 200; i++) {
        EQ(world_wait(world_fork(count_copied_pins, NULL), WORLD_WAIT_MS), 1); /* held[0] alone */
    }
    svi_store_seq(&stop_reading, 1);
    EQ(pthread_join(thread, &failures), 0);
    EQ((uintptr_t)failures, 0);
    end_with_view();
}

int
main(void)
{
    world_begin(55);
    RUN(a_child_drops_its_own_copy);
    RUN(a_childs_own_pins_count_apart);
    RUN(a_childs_view_outlives_the_parents);
    RUN(a_killed_child_gives_its_copy_back);
    RUN(the_parent_is_killed_then_the_child);
    RUN(the_parent_is_killed_and_the_child_goes_on);
    RUN(a_grandchild_has_a_row_of_its_own);
    RUN(a_child_without_views_attaches_on_first_use);
    RUN(a_child_that_opens_is_attached);
    RUN(a_child_closes_its_own_handle);
    RUN(a_fork_after_a_deferred_close);
    RUN(a_reservation_stays_with_the_parent);
    RUN(views_of_several_segments_are_handed_over);
    RUN(a_raw_clone_loses_the_pins_and_harms_nobody);
    RUN(a_scan_that_a_hand_over_overlaps_looks_again);
    RUN(a_raw_clone_may_begin_with_anything);
    RUN(pins_of_a_gather_are_not_handed_over);
    return world_end();
}
