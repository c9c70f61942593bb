/* Rows: one per living process; what the dead held comes back, whoever looks and dies meanwhile. */
#include "row.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "os.h"
#include "steps.h"

/* Attach in a child, pin slot 0 `pins` times, say so in flag 0, and wait for flag 1. */
typedef struct reader {
    const char *name;
    unsigned pins;
    bool reserve;
} reader;

static int
read_and_wait(void *argument)
{
    const reader *me = argument;
    svi_testing_separate = true; /* a map and a row of its own, as in a fresh program */
    sv_segment *segment = world_open(me->name, NULL, SV_OPEN_ATTACH);
    sv_reservation reservation;
    sv_view view;
    for (unsigned i = 0; i < me->pins; i++) {
        EQ(sv_pin(segment, 0, &view), 0);
    }
    if (me->reserve) {
        EQ(sv_reserve(segment, 0, &reservation, NULL), 0);
    }
    svi_add_seq(&world_flags[0], 1);
    return world_await(&world_flags[1], 1) ? 0 : 1;
}

static pid_t
start_reader(reader *me)
{
    world_flags_clear();
    pid_t pid = world_fork(read_and_wait, me);
    (void)CHECK(world_await(&world_flags[0], 1));
    return pid;
}

static void
rows_describe_their_processes(void)
{
    const char *name = world_name("rows");
    sv_segment *segment = world_segment(name, 1);
    reader me = {name, 3, true};
    sv_row_info rows[8];
    memset(rows, 0xee, sizeof rows);
    pid_t pid = start_reader(&me);
    EQ(sv_rows(segment, rows, 8), 2);
    EQ(world_living(segment), 2);
    EQ(rows[0].row, 0);
    EQ(rows[0].live, 1);
    EQ(rows[0].owner, 0);
    EQ(rows[0].pid, getpid());
    EQ(rows[0].start_time, svi_os_start_time());
    EQ(rows[0].pins, 0);
    EQ(rows[0].claims, 0);
    HAS(rows[0].command, "test_row");
    EQ(rows[1].row, 1);
    EQ(rows[1].pid, pid);
    EQ(rows[1].pins, 3);
    EQ(rows[1].claims, 1);
    CHECK(rows[1].attached_ns >= rows[0].attached_ns);
    CHECK(svi_os_realtime_ns() - rows[1].attached_ns < UINT64_C(60000000000));
    EQ(sv_rows(segment, rows, 1), 2); /* says how many there are, writes what fits */
    EQ(sv_rows(segment, NULL, 0), 2);
    world_kill(pid);
    EQ(sv_rows(segment, rows, 8), 2); /* the dead included */
    EQ(rows[1].live, 0);
    EQ(world_living(segment), 1);
    world_audit(segment, 0, 0);
    EQ(sv_rows(segment, rows, 8), 1);
    world_drop(segment);
}

static void
recover_counts_the_rows_that_it_gave_back(void)
{
    const char *name = world_name("count");
    sv_segment *segment = world_segment(name, 2);
    reader me = {name, 2, true};
    uint32_t recovered = 99;
    EQ(sv_recover(segment, &recovered, NULL), 0);
    EQ(recovered, 0);
    pid_t pid = start_reader(&me);
    EQ(sv_recover(segment, &recovered, NULL), 0);
    EQ(recovered, 0); /* never touches the living */
    sv_slot_stats stats;
    EQ(sv_slot_stats_get(segment, 0, &stats), 0);
    EQ(stats.pins, 2);
    EQ(stats.reads, 2);
    world_kill(pid);
    EQ(sv_recover(segment, &recovered, NULL), 0);
    EQ(recovered, 1);
    EQ(sv_slot_stats_get(segment, 0, &stats), 0);
    EQ(stats.pins, 0);
    EQ(stats.reads, 2); /* the reads stay */
    EQ(sv_recover(segment, &recovered, NULL), 0);
    EQ(recovered, 0);
    world_audit(segment, 0, 0);
    world_drop(segment);
}

static void
a_zombie_is_dead(void)
{
    const char *name = world_name("zombie");
    sv_segment *segment = world_segment(name, 1);
    reader me = {name, 1, false};
    siginfo_t info;
    pid_t pid = start_reader(&me);
    EQ(world_replace(segment, 0, 5), SV_EINUSE);
    EQ(kill(pid, SIGKILL), 0);
    EQ(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
    EQ(world_living(segment), 1);
    EQ(world_replace(segment, 0, 5), 0); /* gives back the dead one's pin by itself */
    EQ(world_wait(pid, WORLD_WAIT_MS), 128 + SIGKILL);
    world_audit(segment, 0, 0);
    world_drop(segment);
}

static int
die_with_a_pin(void *name)
{
    sv_view view;
    sv_segment *segment = world_open(name, NULL, SV_OPEN_ATTACH);
    EQ(sv_pin(segment, 0, &view), 0);
    (void)kill(getpid(), SIGKILL);
    return 1;
}

static void
three_hundred_killed_readers_use_up_no_rows(void)
{
    const char *name = world_name("300");
    sv_options options = world_options();
    options.max_rows = 4;
    sv_segment *segment = world_open(name, &options, SV_OPEN_CREATE);
    EQ(world_append(segment, 1), 0);
    for (int i = 0; i < 300; i++) {
        EQ(world_wait(world_fork(die_with_a_pin, (void *)(uintptr_t)name), WORLD_WAIT_MS),
           128 + SIGKILL);
    }
    EQ(world_living(segment), 1);
    EQ(world_replace(segment, 0, 5), 0);
    sv_slot_stats stats;
    EQ(sv_slot_stats_get(segment, 0, &stats), 0);
    EQ(stats.last_reads, 300);
    world_audit(segment, 0, 0);
    CHECK(svi_high_rows(svi_mapping_of(segment)) <= 4);
    world_drop(segment);
}

static int
find_it_full(void *name)
{
    sv_error err = {.message = ""};
    sv_segment *segment = NULL;
    char pid[24];
    svi_testing_separate = true;
    (void)snprintf(pid, sizeof pid, "%ld", (long)getppid());
    EQ(sv_segment_open(name, NULL, SV_OPEN_ATTACH, &segment, &err), SV_EROWS);
    CHECK(segment == NULL);
    HAS(err.message, "all 2 rows");
    HAS(err.message, pid);
    HAS(err.message, "max_rows");
    return 0;
}

/* As find_it_full, through a handle that came with the fork. */
static sv_segment *inherited;

static int
use_without_a_row(void *argument)
{
    sv_view view = {.slot = 9};
    sv_reservation reservation = {.buffer_ = 9};
    sv_error err = {.message = ""};
    (void)argument;
    EQ(sv_pin(inherited, 0, &view), SV_EROWS);
    EQ(view.slot, 9);
    EQ(sv_reserve(inherited, 0, &reservation, &err), SV_EROWS);
    EQ(reservation.buffer_, 9);
    HAS(err.message, "max_rows");
    EQ(sv_size(inherited), 1); /* what needs no row works */
    EQ(sv_segment_close(inherited, NULL), 0);
    return 0;
}

static void
a_full_table_names_the_holders(void)
{
    const char *name = world_name("full");
    sv_options options = world_options();
    options.max_rows = 2;
    sv_segment *segment = world_open(name, &options, SV_OPEN_CREATE);
    EQ(world_append(segment, 1), 0);
    reader me = {name, 1, false};
    pid_t pid = start_reader(&me);
    world_child(find_it_full, (void *)(uintptr_t)name);
    inherited = segment;
    world_child(use_without_a_row, NULL);
    world_kill(pid); /* one death, one row */
    pid = start_reader(&me);
    world_kill(pid);
    world_audit(segment, 0, 0);
    world_drop(segment);
}

static void
the_lowest_free_row_is_taken_and_only_used_rows_take_memory(void)
{
    const char *name = world_name("low");
    sv_options options = world_options();
    options.max_rows = 1000;
    options.processes = 1; /* the row below has no memory of its own yet */
    sv_segment *segment = world_open(name, &options, SV_OPEN_CREATE);
    struct stat before;
    struct stat after;
    sv_info info;
    EQ(world_append(segment, 1), 0);
    EQ(sv_segment_info(segment, &info), 0);
    EQ(stat(world_path(name, ""), &before), 0);
    EQ(before.st_blocks * 512, info.segment_bytes);
    reader me = {name, 1, false};
    pid_t lower = start_reader(&me);
    for (int i = 0; i < 3; i++) {
        pid_t pid = start_reader(&me);
        EQ(svi_high_rows(svi_mapping_of(segment)), 3);
        world_kill(pid);
    }
    world_kill(lower);
    world_audit(segment, 0, 0);
    EQ(stat(world_path(name, ""), &after), 0);
    EQ((after.st_blocks - before.st_blocks) * 512, info.row_bytes); /* holes stay holes */
    world_drop(segment);
}

static void
holders_are_written_for_people(void)
{
    const char *name = world_name("holders");
    sv_segment *segment = world_segment(name, 2);
    svi_mapping *m = svi_mapping_of(segment);
    char text[SVI_HOLDERS_BYTES];
    char wanted[128];
    svi_row_holders(m, SVI_ANY_BUFFER, text, sizeof text);
    EQ_STR(text, "nobody any more");
    reader me = {name, 2, false};
    pid_t pid = start_reader(&me);
    sv_view view;
    sv_reservation reservation;
    EQ(sv_pin(segment, 1, &view), 0);
    EQ(sv_reserve(segment, 0, &reservation, NULL), 0);
    svi_row_holders(m, SVI_ANY_BUFFER, text, sizeof text);
    (void)snprintf(wanted, sizeof wanted, "pid %ld (", (long)getpid());
    HAS(text, wanted);
    HAS(text, "test_row"); /* the command */
    HAS(text, "): 1 view, the oldest of a chunk from 0 s ago and 1 reserved buffer; ");
    (void)snprintf(wanted, sizeof wanted, "pid %ld (", (long)pid);
    HAS(text, wanted);
    HAS(text, "): 2 views, the oldest of a chunk from 0 s ago");
    svi_row_holders(m, view.buffer_, text, sizeof text);
    CHECK(strstr(text, "reserved") == NULL);
    CHECK(strstr(text, wanted) == NULL);
    svi_row_holders(m, SVI_ANY_BUFFER, text, 150); /* room for one */
    HAS(text, "and 1 more");
    sv_cancel(&reservation);
    sv_unpin(&view);
    world_kill(pid);
    world_drop(segment);
}

static void
a_slot_that_a_dead_appender_filled_is_counted(void)
{
    const char *name = world_name("uncounted");
    sv_segment *segment = world_segment(name, 2);
    unsigned char *rw = NULL;
    EQ(svi_writable(svi_mapping_of(segment), &rw, NULL), 0);
    svi_store_seq(&svi_header_at(rw)->h_size, 1); /* as if killed between commit and count */
    EQ(sv_recover(segment, NULL, NULL), 0);
    EQ(sv_size(segment), 2);
    svi_store_seq(&svi_header_at(rw)->h_size, 1);
    EQ(world_append(segment, 3), 0); /* the next append counts it too */
    EQ(sv_size(segment), 3);
    EQ(world_stamp(segment, 1), 2);
    EQ(world_stamp(segment, 2), 3);
    world_audit(segment, 0, 0);
    world_drop(segment);
}

static int
exec_with_a_pin(void *name)
{
    sv_view view;
    sv_segment *segment = world_open(name, NULL, SV_OPEN_ATTACH);
    EQ(sv_pin(segment, 0, &view), 0);
    world_set(&world_flags[0], 1);
    execl("/bin/sleep", "sleep", "30", (char *)NULL);
    return 1;
}

static void
exec_gives_up_the_row(void)
{
    const char *name = world_name("exec");
    sv_segment *segment = world_segment(name, 1);
    world_flags_clear();
    pid_t pid = world_fork(exec_with_a_pin, (void *)(uintptr_t)name);
    REQUIRE(world_await(&world_flags[0], 1));
    int status = SV_EINUSE;
    for (int waited = 0; waited < WORLD_WAIT_MS && status == SV_EINUSE; waited++) {
        status = world_replace(segment, 0, 5);
        svi_os_sleep_ns(1000000);
    }
    EQ(status, 0);
    EQ(kill(pid, 0), 0);
    world_audit(segment, 0, 0);
    world_kill(pid);
    world_drop(segment);
}

static void
a_row_that_died_is_cleaned_by_the_next_who_takes_it(void)
{
    const char *name = world_name("reuse");
    sv_options options = world_options();
    options.max_rows = 2;
    sv_segment *segment = world_open(name, &options, SV_OPEN_CREATE);
    EQ(world_append(segment, 1), 0);
    reader me = {name, 5, true};
    world_kill(start_reader(&me));
    reader next = {name, 0, false};
    pid_t pid = start_reader(&next); /* the same row, and no recover in between */
    sv_row_info rows[2];
    EQ(sv_rows(segment, rows, 2), 2);
    EQ(rows[1].pid, pid);
    EQ(rows[1].pins, 0);
    EQ(rows[1].claims, 0);
    world_set(&world_flags[1], 1);
    EQ(world_wait(pid, WORLD_WAIT_MS), 0);
    world_audit(segment, 0, 0);
    world_drop(segment);
}

static int
recover_and_pause(void *name)
{
    svi_testing_separate = true;
    sv_segment *segment = world_open(name, NULL, SV_OPEN_ATTACH);
    steps_pause_on("recover.locked", &world_flags[2], &world_flags[3]);
    EQ(sv_recover(segment, NULL, NULL), 0);
    return sv_segment_close(segment, NULL);
}

static void
pins_that_a_free_row_has_are_nobodys(void)
{
    const char *name = world_name("damaged");
    sv_segment *segment = world_segment(name, 1);
    unsigned char *rw = NULL;
    EQ(svi_writable(svi_mapping_of(segment), &rw, NULL), 0);
    svm_row *row = svi_row_at(svi_mapping_of(segment), rw, 1);
    for (uint32_t b = 0; b < svi_mapping_of(segment)->g.buffer_count; b++) {
        svi_store_seq(&row->r_cells[b], 5 * SVI_READ + 7 * SVI_PIN);
    }
    for (int pinning = 0; pinning < 2; pinning++) {
        svi_testing_separate = true;
        sv_segment *second = world_open(name, NULL, SV_OPEN_ATTACH);
        svi_testing_separate = false;
        const svi_mapping *m = svi_mapping_of(second);
        EQ(m->hold.row, 1);
        sv_view view;
        if (pinning == 1) {
            EQ(sv_pin(second, 0, &view), 0);
            EQ(svi_row_own_pins(m), 1);
            EQ(svi_cell_reads(svi_load_seq(&row->r_cells[view.buffer_])), 6); /* the reads stay */
            sv_unpin(&view);
            EQ(svi_row_own_pins(m), 0);
        }
        EQ(sv_segment_close(second, NULL), 0);
        CHECK(!m->mapped); /* nothing holds the map back */
    }
    EQ(world_replace(segment, 0, 5), 0);
    world_audit(segment, 0, 0);
    world_drop(segment);
}

/* A row that was never taken is not believed when it says that scans look at it. */
static void
a_damaged_row_is_counted_all_the_same(void)
{
    const char *name = world_name("damaged");
    sv_segment *segment = world_segment(name, 1);
    svi_mapping *m = svi_mapping_of(segment);
    unsigned char *rw = NULL;
    sv_view view;
    EQ(svi_writable(m, &rw, NULL), 0);
    svi_store_seq(&svi_row_at(m, rw, 1)->r_counted, 1);
    svi_testing_separate = true;
    sv_segment *other = world_open(name, NULL, SV_OPEN_ATTACH);
    svi_testing_separate = false;
    EQ(svi_mapping_of(other)->hold.row, 1);
    EQ(sv_pin(other, 0, &view), 0);
    EQ(world_replace(segment, 0, 9), SV_EINUSE); /* a scan saw the pin */
    sv_unpin(&view);
    EQ(sv_segment_close(other, NULL), 0);
    world_audit(segment, 0, 0);
    world_drop(segment);
}

static int
attach_slowly(void *name)
{
    svi_testing_separate = true;
    steps_pause_on("attach.live", &world_flags[0], &world_flags[1]);
    sv_segment *segment = world_open(name, NULL, SV_OPEN_ATTACH);
    steps_off();
    world_set(&world_flags[2], 1);
    EQ(world_await(&world_flags[3], 1), true);
    return sv_segment_close(segment, NULL);
}

/* Who took the lower row first raises the mark last. */
static void
a_slow_one_does_not_lower_the_mark(void)
{
    const char *name = world_name("slow");
    sv_segment *segment = world_segment(name, 1);
    sv_view view;
    world_flags_clear();
    pid_t pid = world_fork(attach_slowly, (void *)(uintptr_t)name);
    REQUIRE(world_await(&world_flags[0], 1));
    svi_testing_separate = true;
    sv_segment *quick = world_open(name, NULL, SV_OPEN_ATTACH);
    svi_testing_separate = false;
    EQ(svi_mapping_of(quick)->hold.row, 2);
    EQ(sv_pin(quick, 0, &view), 0);
    world_set(&world_flags[1], 1);
    REQUIRE(world_await(&world_flags[2], 1));
    EQ(svi_high_rows(svi_mapping_of(segment)), 3);
    EQ(world_replace(segment, 0, 9), SV_EINUSE);
    sv_unpin(&view);
    world_set(&world_flags[3], 1);
    EQ(world_wait(pid, WORLD_WAIT_MS), 0);
    EQ(sv_segment_close(quick, NULL), 0);
    world_audit(segment, 0, 0);
    world_drop(segment);
}

/* Who attaches while a dead row is being cleaned gets another one, or it would lose its pins. */
static void
a_row_that_is_being_cleaned_is_not_taken(void)
{
    const char *name = world_name("cleaning");
    sv_segment *segment = world_segment(name, 3);
    sv_view view;
    sv_slot_stats stats;
    reader me = {name, 2, true};
    world_flags_clear();
    pid_t first = world_fork(read_and_wait, &me);
    REQUIRE(world_await(&world_flags[0], 1));
    pid_t second = world_fork(read_and_wait, &me);
    REQUIRE(world_await(&world_flags[0], 2));
    world_kill(first); /* its row goes to the one who recovers */
    world_kill(second);
    pid_t pid = world_fork(recover_and_pause, (void *)(uintptr_t)name);
    REQUIRE(world_await(&world_flags[2], 1));
    svi_testing_separate = true;
    sv_segment *late = world_open(name, NULL, SV_OPEN_ATTACH);
    svi_testing_separate = false;
    EQ(sv_pin(late, 1, &view), 0);
    world_set(&world_flags[3], 1);
    EQ(world_wait(pid, WORLD_WAIT_MS), 0);
    EQ(world_living(segment), 2);
    EQ(sv_slot_stats_get(segment, 1, &stats), 0);
    EQ(stats.pins, 1);
    sv_unpin(&view);
    EQ(sv_segment_close(late, NULL), 0);
    world_audit(segment, 0, 0);
    world_drop(segment);
}

/* ---- killed at every step ------------------------------------------------------------------ */

static sv_segment *subject;

static void
before_subject(const char *name)
{
    subject = world_segment(name, 3);
}

static void
after_subject(const char *name)
{
    EQ(sv_size(subject), 3);
    world_audit(subject, 0, 0);
    EQ(world_living(subject), 1);
    /* Whatever the row went through, its next holder is seen. */
    sv_view view;
    svi_testing_separate = true;
    sv_segment *next = world_open(name, NULL, SV_OPEN_ATTACH);
    svi_testing_separate = false;
    EQ(sv_pin(next, 0, &view), 0);
    EQ(world_living(subject), 2);
    EQ(world_replace(subject, 0, 9), SV_EINUSE);
    sv_unpin(&view);
    EQ(sv_segment_close(next, NULL), 0);
    world_drop(subject);
}

static int
victim_attaches_and_leaves(void *name)
{
    sv_view view;
    svi_testing_separate = true;
    sv_segment *segment = world_open(name, NULL, SV_OPEN_ATTACH);
    EQ(sv_pin(segment, 1, &view), 0);
    sv_unpin(&view);
    return sv_segment_close(segment, NULL);
}

/* A dead process that held pins and claims, still to be recovered. */
static void
before_with_a_dead(const char *name)
{
    before_subject(name);
    reader me = {name, 2, true};
    world_kill(start_reader(&me));
}

static int
victim_recovers(void *name)
{
    svi_testing_separate = true;
    sv_segment *segment = world_open(name, NULL, SV_OPEN_ATTACH);
    return sv_recover(segment, NULL, NULL);
}

/* Attaching cleans the dead row as well, when it is the lowest free one. */
static int
victim_takes_the_dead_row(void *name)
{
    svi_testing_separate = true;
    return sv_segment_close(world_open(name, NULL, SV_OPEN_ATTACH), NULL);
}

/* Two dead rows, so that the one who recovers does not take both of them by attaching. */
static void
before_with_two_dead(const char *name)
{
    before_subject(name);
    reader me = {name, 2, true};
    world_flags_clear();
    pid_t first = world_fork(read_and_wait, &me);
    pid_t second = world_fork(read_and_wait, &me);
    (void)CHECK(world_await(&world_flags[0], 2));
    world_kill(first);
    world_kill(second);
}

static void
killed_while_attaching_or_leaving(void)
{
    CHECK(steps_kill_everywhere("attach", before_subject, victim_attaches_and_leaves,
                                after_subject) >= 5);
}

static void
killed_while_recovering(void)
{
    CHECK(steps_kill_everywhere("recover", before_with_two_dead, victim_recovers, after_subject) >=
          7);
    CHECK(steps_kill_everywhere("takeover", before_with_a_dead, victim_takes_the_dead_row,
                                after_subject) >= 6);
}

int
main(void)
{
    world_begin(55);
    RUN(rows_describe_their_processes);
    RUN(recover_counts_the_rows_that_it_gave_back);
    RUN(a_zombie_is_dead);
    RUN(three_hundred_killed_readers_use_up_no_rows);
    RUN(a_full_table_names_the_holders);
    RUN(the_lowest_free_row_is_taken_and_only_used_rows_take_memory);
    RUN(holders_are_written_for_people);
    RUN(a_slot_that_a_dead_appender_filled_is_counted);
    RUN(exec_gives_up_the_row);
    RUN(a_row_that_died_is_cleaned_by_the_next_who_takes_it);
    RUN(pins_that_a_free_row_has_are_nobodys);
    RUN(a_damaged_row_is_counted_all_the_same);
    RUN(a_slow_one_does_not_lower_the_mark);
    RUN(a_row_that_is_being_cleaned_is_not_taken);
    RUN(killed_while_attaching_or_leaving);
    RUN(killed_while_recovering);
    return world_end();
}
