/* Waiting for filled slots, changed slots and free buffers: nobody polls, no wake is lost. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "event.h"
#include "os.h"
#include "row.h"
#include "world.h"

#define SHORT_NS UINT64_C(20000000)

enum { FLAG_READY, FLAG_DONE };

static svi_word *
word_of(sv_segment *segment, enum svi_event event)
{
    unsigned char *rw = NULL;
    EQ(svi_writable(svi_mapping_of(segment), &rw, NULL), 0);
    return &svi_header_at(rw)->h_events[event];
}

static void
what_holds_is_not_waited_for(void)
{
    sv_segment *segment = world_segment(world_name("holds"), 2);
    sv_error err = {.message = ""};
    uint64_t now = 77;
    EQ(sv_wait_filled(segment, 0, 0, NULL), 0);
    EQ(sv_wait_filled(segment, 2, WORLD_NEVER_NS, NULL), 0);
    EQ(sv_wait_changed(segment, 1, 0, WORLD_NEVER_NS, &now, NULL), 0);
    EQ(now, 1);
    EQ(sv_wait_filled(segment, 3, SHORT_NS, &err), SV_ETIMEDOUT);
    HAS(err.message, "filled");
    now = 77;
    EQ(sv_wait_changed(segment, 1, 1, SHORT_NS, &now, &err), SV_ETIMEDOUT);
    EQ(now, 77);
    EQ(sv_wait_filled(segment, 5, WORLD_NEVER_NS, &err), SV_EINVAL); /* of 4 */
    HAS(err.message, "4 slots");
    EQ(sv_wait_changed(segment, 2, 0, WORLD_NEVER_NS, NULL, NULL), SV_EINDEX);
    EQ(sv_wait_filled(NULL, 1, WORLD_NEVER_NS, NULL), SV_ECLOSED);
    world_audit(segment, 0, 0);
    world_drop(segment);
}

/* ---- sleepers in other processes ----------------------------------------------------------- */

static int
wait_for_both(void *argument)
{
    sv_segment *segment = world_open(argument, NULL, SV_OPEN_ATTACH);
    uint64_t version = 1;
    (void)svi_add_seq(&world_flags[FLAG_READY], 1);
    EQ(sv_wait_filled(segment, 4, world_limit_ns(20), NULL), 0);
    EQ(sv_size(segment), 4);
    for (uint64_t round = 0; round < 200 && version != 101; round++) {
        EQ(sv_wait_changed(segment, 0, version, world_limit_ns(20), &version, NULL), 0);
        svi_store_seq(&world_flags[FLAG_DONE], version);
    }
    EQ(version, 101);
    return sv_segment_close(segment, NULL);
}

static void
sleepers_are_woken(void)
{
    const char *name = world_name("woken");
    sv_segment *segment = world_segment(name, 2);
    pid_t pids[3];
    world_flags_clear();
    for (int i = 0; i < 3; i++) {
        pids[i] = world_fork(wait_for_both, (void *)(uintptr_t)name);
    }
    (void)world_await(&world_flags[FLAG_READY], 3);
    EQ(world_append(segment, 3), 0);
    EQ(world_append(segment, 4), 0);
    uint64_t began = svi_os_monotonic_ns();
    for (uint64_t i = 1; i <= 100; i++) {
        EQ(world_publish(segment, 0, 100 + i), 0);
        (void)world_await(&world_flags[FLAG_DONE], i + 1); /* by one of them at least */
    }
    /* By wakes, as slices alone would take 50 s. */
    CHECK(svi_os_monotonic_ns() - began < world_limit_ns(25));
    for (int i = 0; i < 3; i++) {
        EQ(world_wait(pids[i], WORLD_WAIT_MS), 0);
    }
    world_audit(segment, 0, 0);
    world_drop(segment);
}

static int
sleep_for_ever(void *argument)
{
    sv_segment *segment = world_open(argument, NULL, SV_OPEN_ATTACH);
    return sv_wait_filled(segment, 4, WORLD_NEVER_NS, NULL);
}

static void
a_killed_sleeper_costs_one_wake(void)
{
    const char *name = world_name("killed");
    sv_segment *segment = world_segment(name, 2);
    const svi_word *word = word_of(segment, SVI_EVENT_FILLED);
    pid_t pid = world_fork(sleep_for_ever, (void *)(uintptr_t)name);
    (void)world_await(word, SVI_EVENT_SLEEPERS);
    world_kill(pid);
    EQ(svi_load_relaxed(word), 1);
    EQ(world_append(segment, 3), 0);
    EQ(svi_load_relaxed(word), 2); /* the next count, without the bit */
    EQ(world_append(segment, 4), 0);
    EQ(svi_load_relaxed(word), 2);
    world_audit(segment, 0, 0);
    world_drop(segment);
}

static void
an_event_without_a_wake_costs_a_slice(void)
{
    sv_segment *segment = world_segment(world_name("slice"), 2);
    svi_word *word = word_of(segment, SVI_EVENT_CHANGED);
    svi_store_relaxed(word, UINT64_MAX); /* damage is a word like any other */
    EQ(sv_wait_changed(segment, 0, 1, SHORT_NS, NULL, NULL), SV_ETIMEDOUT);
    EQ(world_publish(segment, 0, 50), 0);
    EQ(svi_load_relaxed(word), 0); /* the count went round */
    EQ(sv_wait_changed(segment, 0, 1, WORLD_NEVER_NS, NULL, NULL), 0);
    world_audit(segment, 0, 0);
    world_drop(segment);
}

/* ---- free buffers -------------------------------------------------------------------------- */

static int
reserve_when_told(void *argument)
{
    sv_segment *segment = world_open(argument, NULL, SV_OPEN_ATTACH);
    sv_reservation reservation;
    (void)world_await(&world_flags[FLAG_READY], 1);
    EQ(sv_reserve(segment, world_limit_ns(20), &reservation, NULL), 0);
    sv_cancel(&reservation);
    return sv_segment_close(segment, NULL);
}

/* A writer sleeps until a reservation is cancelled, and until the last view of a chunk is dropped. */
static void
a_free_buffer_wakes_a_writer(void)
{
    const char *name = world_name("free");
    sv_segment *segment = world_segment(name, 4); /* of 4, with 2 spare buffers */
    const svi_word *word = word_of(segment, SVI_EVENT_FREE);
    sv_reservation first, second;
    sv_view view;
    EQ(sv_reserve(segment, 0, &first, NULL), 0);
    EQ(sv_reserve(segment, 0, &second, NULL), 0);
    world_flags_clear();
    pid_t pid = world_fork(reserve_when_told, (void *)(uintptr_t)name);
    svi_store_seq(&world_flags[FLAG_READY], 1);
    (void)world_await(word, SVI_EVENT_SLEEPERS);
    sv_cancel(&second);
    EQ(world_wait(pid, WORLD_WAIT_MS), 0);
    EQ(svi_load_relaxed(word) >> 1, 1); /* by a wake: a slice that ends counts nothing */

    world_flags_clear();
    pid = world_fork(reserve_when_told,
                     (void *)(uintptr_t)name); /* before the pin: it inherits none */
    EQ(sv_pin(segment, 0, &view), 0);
    EQ(world_publish(segment, 0, 50), 0); /* the view keeps the buffer that this displaces */
    svi_store_seq(&world_flags[FLAG_READY], 1);
    (void)world_await(word, (UINT64_C(1) << 1) | SVI_EVENT_SLEEPERS);
    sv_unpin(&view);
    EQ(world_wait(pid, WORLD_WAIT_MS), 0);
    EQ(svi_load_relaxed(word) >> 1, 2);
    sv_cancel(&first);
    world_audit(segment, 0, 0);
    world_drop(segment);
}

/* ---- what ends a wait ---------------------------------------------------------------------- */

typedef struct waiter {
    sv_segment *segment;
    int status;
    char message[1024];
} waiter;

static void *
wait_in_thread(void *argument)
{
    waiter *me = argument;
    sv_error err = {.message = ""};
    me->status = sv_wait_filled(me->segment, 4, WORLD_NEVER_NS, &err);
    (void)snprintf(me->message, sizeof me->message, "%s", err.message);
    return NULL;
}

static void
a_retired_pool_ends_a_wait(void)
{
    sv_segment *segment = world_segment(world_name("retired"), 2);
    waiter me = {.segment = segment};
    pthread_t thread;
    EQ(pthread_create(&thread, NULL, wait_in_thread, &me), 0);
    (void)world_await(word_of(segment, SVI_EVENT_FILLED), SVI_EVENT_SLEEPERS);
    sv_retire(segment, SV_RETIRED_CLOSED);
    EQ(pthread_join(thread, NULL), 0);
    EQ(me.status, SV_ESTALLED);
    HAS(me.message, "no longer refreshed");
    world_drop(segment);
}

static void
a_closed_handle_ends_a_wait(void)
{
    const char *name = world_name("closed");
    sv_segment *segment = world_segment(name, 2);
    sv_segment *other = world_open(name, NULL, SV_OPEN_ATTACH);
    waiter me = {.segment = segment};
    pthread_t thread;
    EQ(pthread_create(&thread, NULL, wait_in_thread, &me), 0);
    (void)world_await(word_of(segment, SVI_EVENT_FILLED), SVI_EVENT_SLEEPERS);
    EQ(sv_segment_close(other, NULL), 0);
    EQ(sv_segment_close(segment, NULL), 0);
    EQ(pthread_join(thread, NULL), 0);
    EQ(me.status, SV_ECLOSED);
    EQ(sv_segment_remove(name, NULL, NULL), 0);
}

int
main(void)
{
    world_begin(60);
    RUN(what_holds_is_not_waited_for);
    RUN(sleepers_are_woken);
    RUN(a_killed_sleeper_costs_one_wake);
    RUN(an_event_without_a_wake_costs_a_slice);
    RUN(a_free_buffer_wakes_a_writer);
    RUN(a_retired_pool_ends_a_wait);
    RUN(a_closed_handle_ends_a_wait);
    return world_end();
}
