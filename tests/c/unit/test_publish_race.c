/* Writers that meet, stop or are killed at any step: nothing is lost, nothing is torn. */
#include <pthread.h>
#include <signal.h>
#include <string.h>

#include "error.h"
#include "os.h"
#include "steps.h"

static uint64_t
version_of(sv_segment *segment, uint32_t slot)
{
    sv_slot_stats stats = {.writes = 0};
    (void)EQ(sv_slot_stats_get(segment, slot, &stats), 0);
    return stats.writes;
}

static sv_segment *subject;

/* ---- two writers --------------------------------------------------------------------------- */

static uint64_t race_left;

/* Between "addressed" and the commit another publication goes into the same slot. */
static void
publish_before_the_commit(const char *name)
{
    if (strcmp(name, "publish.addressed") == 0 && race_left != 0) {
        void (*hook)(const char *) = svi_step_hook;
        race_left--;
        svi_step_hook = NULL;
        (void)EQ(world_publish(subject, 0, 500 + race_left), 0);
        svi_step_hook = hook;
    }
}

static void
a_lost_commit_is_repeated(void)
{
    subject = world_segment(world_name("commit"), 1);
    race_left = 3;
    svi_step_hook = publish_before_the_commit;
    EQ(world_publish(subject, 0, 9), 0);
    steps_off();
    EQ(race_left, 0);
    EQ(world_stamp(subject, 0), 9);
    EQ(version_of(subject, 0), 5); /* each publication counts one write */
    sv_stats stats;
    sv_stats_get(subject, &stats);
    EQ(stats.replace_events, 4);
    world_audit(subject, 0, 0);
    world_drop(subject);
}

/* Between "addressed" and the commit another append takes the slot. */
static void
append_before_the_commit(const char *name)
{
    if (strcmp(name, "append.addressed") == 0 && race_left != 0) {
        void (*hook)(const char *) = svi_step_hook;
        race_left--;
        svi_step_hook = NULL;
        (void)EQ(world_append(subject, 500 + race_left), 0);
        svi_step_hook = hook;
    }
}

static void
a_lost_append_takes_the_next_slot(void)
{
    subject = world_open(world_name("lost"), NULL, SV_OPEN_CREATE);
    race_left = 2;
    svi_step_hook = append_before_the_commit;
    EQ(world_append(subject, 9), 0);
    steps_off();
    EQ(sv_size(subject), 3);
    EQ(world_stamp(subject, 0), 501);
    EQ(world_stamp(subject, 1), 500);
    EQ(world_stamp(subject, 2), 9);
    world_audit(subject, 0, 0);
    world_drop(subject);
}

static sv_reservation other;

/* Another writer takes the very buffer that we have just chosen. */
static void
reserve_before_the_claim(const char *name)
{
    if (strcmp(name, "reserve.chosen") == 0 && race_left != 0) {
        race_left--;
        svi_step_hook = NULL;
        (void)EQ(sv_reserve(subject, 0, &other, NULL), 0);
    }
}

static void
two_writers_that_choose_one_buffer_get_two(void)
{
    sv_reservation mine;
    subject = world_segment(world_name("choice"), 2);
    race_left = 1;
    svi_step_hook = reserve_before_the_claim;
    EQ(sv_reserve(subject, 0, &mine, NULL), 0);
    steps_off();
    EQ(race_left, 0);
    CHECK(mine.data != other.data);
    sv_cancel(&mine);
    sv_cancel(&other);
    world_audit(subject, 0, 0);
    world_drop(subject);
}

static const void *published;

/* Everything that can be had just before the commit. */
static void
reserve_all_before_the_commit(const char *name)
{
    sv_reservation taken[8];
    unsigned count = 0;
    if (strcmp(name, "publish.addressed") != 0 || race_left == 0) {
        return;
    }
    race_left--;
    svi_step_hook = NULL;
    while (count < 8 && sv_reserve(subject, 0, &taken[count], NULL) == 0) {
        CHECK(taken[count].data != published);
        count++;
    }
    EQ(count, 4); /* of 6: without the current one and the one that is about to be */
    while (count != 0) {
        sv_cancel(&taken[--count]);
    }
}

static void
a_buffer_stays_claimed_until_it_is_current(void)
{
    sv_reservation mine;
    subject = world_segment(world_name("claimed"), 1);
    EQ(sv_reserve(subject, 0, &mine, NULL), 0);
    EQ(world_fill(&mine, 7), 0);
    published = mine.data;
    race_left = 1;
    svi_step_hook = reserve_all_before_the_commit;
    EQ(sv_publish(&mine, 0, NULL), 0);
    steps_off();
    EQ(race_left, 0);
    EQ(world_stamp(subject, 0), 7);
    world_audit(subject, 0, 0);
    world_drop(subject);
}

static sv_view late;

/* After the scan somebody pins a slot's chunk and somebody else replaces it. */
static void
pin_and_replace_after_the_scan(const char *name)
{
    if (strcmp(name, "reserve.scanned") == 0 && race_left != 0) {
        race_left--;
        svi_step_hook = NULL;
        (void)EQ(sv_pin(subject, 0, &late), 0);
        (void)EQ(world_publish(subject, 0, 70), 0);
    }
}

/* A hint leads to a current buffer. Had it been scanned before the look whether a slot names it, it
 * could be displaced in between, and be taken with the view on it. */
static void
a_current_buffer_is_not_taken_when_it_is_displaced_meanwhile(void)
{
    sv_reservation mine;
    uint64_t stamp = 0;
    subject = world_segment(world_name("order"), 2);
    svi_mapping *m = svi_mapping_of(subject);
    unsigned char *rw = NULL;
    EQ(svi_writable(m, &rw, NULL), 0);
    uint32_t current = svi_slot_buffer(svi_load_seq(&svi_slots(m)[0].s_word));
    svi_store_seq(&svi_header_at(rw)->h_hints[0], (uint64_t)current + 1);
    race_left = 1;
    svi_step_hook = pin_and_replace_after_the_scan;
    EQ(sv_reserve(subject, 0, &mine, NULL), 0);
    steps_off();
    EQ(race_left, 0);
    CHECK(mine.data != late.data);
    EQ(world_fill(&mine, 80), 0);
    CHECK(world_whole(&late, &stamp));
    EQ(stamp, 1);
    EQ(sv_publish(&mine, 1, NULL), 0);
    sv_unpin(&late);
    world_audit(subject, 0, 0);
    world_drop(subject);
}

static int
claim_current_and_wait(void *name)
{
    sv_segment *segment = world_open(name, NULL, SV_OPEN_ATTACH);
    steps_pause_on("publish.claimed", &world_flags[0], &world_flags[1]);
    return world_publish(segment, 0, 50);
}

static void
a_writer_that_stopped_does_not_stop_the_others(void)
{
    const char *name = world_name("stopped");
    sv_segment *segment = world_segment(name, 1);
    world_flags_clear();
    pid_t pid = world_fork(claim_current_and_wait, (void *)(uintptr_t)name);
    REQUIRE(world_await(&world_flags[0], 1));
    EQ(world_publish(segment, 0, 60), 0);
    EQ(world_stamp(segment, 0), 60);
    world_set(&world_flags[1], 1);
    EQ(world_wait(pid, WORLD_WAIT_MS), 0);
    EQ(world_stamp(segment, 0), 50);
    world_audit(segment, 0, 0);
    world_drop(segment);
}

static void *
publish_many_times(void *argument)
{
    uintptr_t failures = 0;
    for (uint64_t i = 0; i < 500; i++) {
        failures += world_publish(argument, (uint32_t)(i % 2), 10 + i) != 0;
    }
    return (void *)failures;
}

static void
threads_publish_through_one_handle(void)
{
    sv_options options = world_options();
    options.spare_buffers = 6;
    sv_segment *segment = world_open(world_name("threads"), &options, SV_OPEN_CREATE);
    pthread_t threads[3];
    EQ(world_append(segment, 1), 0);
    EQ(world_append(segment, 2), 0);
    for (size_t i = 0; i < 3; i++) {
        EQ(pthread_create(&threads[i], NULL, publish_many_times, segment), 0);
    }
    for (size_t i = 0; i < 3; i++) {
        void *failures = NULL;
        EQ(pthread_join(threads[i], &failures), 0);
        EQ((uintptr_t)failures, 0);
    }
    EQ(version_of(segment, 0) + version_of(segment, 1), 2 + 3 * 500);
    world_audit(segment, 0, 0);
    world_drop(segment);
}

/* ---- killed writers ------------------------------------------------------------------------ */

static void
before_writer(const char *name)
{
    subject = world_segment(name, 2);
}

static int
victim_appends(void *name)
{
    return world_append(world_open(name, NULL, SV_OPEN_ATTACH), 3);
}

static void
after_append(const char *name)
{
    (void)name;
    EQ(sv_recover(subject, NULL, NULL), 0);
    CHECK(sv_size(subject) == 2 || sv_size(subject) == 3);
    EQ(world_append(subject, 4), 0);
    EQ(world_stamp(subject, sv_size(subject) - 1), 4);
    if (sv_size(subject) == 4) {
        EQ(world_stamp(subject, 2), 3);
    }
    EQ(world_stamp(subject, 0), 1);
    EQ(world_stamp(subject, 1), 2);
    world_audit(subject, 0, 0);
    world_drop(subject);
}

static int
victim_publishes(void *name)
{
    sv_segment *segment = world_open(name, NULL, SV_OPEN_ATTACH);
    EQ(world_publish(segment, 0, 11), 0);
    return world_publish(segment, 0, 21);
}

static int
victim_replaces(void *name)
{
    sv_segment *segment = world_open(name, NULL, SV_OPEN_ATTACH);
    EQ(world_replace(segment, 0, 11), 0);
    return world_replace(segment, 0, 21);
}

static void
after_publish(const char *name)
{
    (void)name;
    uint64_t version = version_of(subject, 0);
    EQ(world_stamp(subject, 0), version == 1 ? 1 : 10 * version - 9); /* 1, 11, 21 */
    EQ(world_stamp(subject, 1), 2);
    EQ(world_publish(subject, 0, 31), 0);
    EQ(version_of(subject, 0), version + 1);
    world_audit(subject, 0, 0);
    world_drop(subject);
}

static int
victim_reserves(void *name)
{
    sv_segment *segment = world_open(name, NULL, SV_OPEN_ATTACH);
    sv_reservation first;
    sv_reservation second;
    EQ(sv_reserve(segment, 0, &first, NULL), 0);
    EQ(world_fill(&first, 9), 0);
    EQ(sv_reserve(segment, 0, &second, NULL), 0);
    sv_cancel(&first);
    memset(second.data, 0xff, 1024);
    sv_cancel(&second);
    return 0;
}

static void
after_reserve(const char *name)
{
    (void)name;
    EQ(sv_size(subject), 2);
    EQ(version_of(subject, 0), 1);
    world_audit(subject, 0, 0);
    world_drop(subject);
}

static void
killed_while_appending(void)
{
    CHECK(steps_kill_everywhere("append", before_writer, victim_appends, after_append) >= 7);
}

static void
killed_while_publishing(void)
{
    CHECK(steps_kill_everywhere("publish", before_writer, victim_publishes, after_publish) >= 15);
    CHECK(steps_kill_everywhere("replace", before_writer, victim_replaces, after_publish) >= 15);
}

static void
killed_while_reserving(void)
{
    CHECK(steps_kill_everywhere("reserve", before_writer, victim_reserves, after_reserve) >= 7);
}

static int
write_until_killed(void *name)
{
    sv_segment *segment = world_open(name, NULL, SV_OPEN_ATTACH);
    for (uint64_t i = 1; svi_load_seq(&world_flags[1]) == 0; i++) {
        world_set(&world_flags[0], i);
        EQ(world_publish(segment, (uint32_t)(i % 2), 100 + i), 0);
    }
    return 0;
}

/* The kill comes at any instruction, not only at a step. */
static void
killed_anywhere_200_times(void)
{
    const char *name = world_name("anywhere");
    uint64_t seed = world_seed();
    subject = world_segment(name, 2);
    for (int i = 0; i < 200; i++) {
        world_flags_clear();
        pid_t pid = world_fork(write_until_killed, (void *)(uintptr_t)name);
        REQUIRE(world_await(&world_flags[0], 1));
        svi_os_sleep_ns(world_random(&seed) % 1000000);
        world_kill(pid);
        tap_context("kill %d", i);
        EQ(world_publish(subject, 0, 7), 0);
        world_audit(subject, 0, 0);
    }
    world_drop(subject);
}

int
main(void)
{
    world_begin(55);
    RUN(a_lost_commit_is_repeated);
    RUN(a_lost_append_takes_the_next_slot);
    RUN(two_writers_that_choose_one_buffer_get_two);
    RUN(a_current_buffer_is_not_taken_when_it_is_displaced_meanwhile);
    RUN(a_buffer_stays_claimed_until_it_is_current);
    RUN(a_writer_that_stopped_does_not_stop_the_others);
    RUN(threads_publish_through_one_handle);
    RUN(killed_while_appending);
    RUN(killed_while_publishing);
    RUN(killed_while_reserving);
    RUN(killed_anywhere_200_times);
    return world_end();
}
