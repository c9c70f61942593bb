/*
 * Readers, writers and recoverers as processes, which are killed (SIGKILL) at random moments and
 * replaced by new ones. A few readers fork while they hold views. Time is cut into rounds, each with
 * a pool of its own that begins empty, so that appenders are killed too.
 *
 * Oracle: a chunk is whole, belongs to its slot and to no older version than one seen before,
 * whoever was killed; nobody fails; no verb takes longer than 10 s; at the end of each round no pin,
 * claim, row or buffer is lost. Where a machine is so slow that hardly anything was done between the
 * kills, there are more rounds with fewer of them.
 *
 *   TORTURE_SECONDS=60   how long (3)      TORTURE_KILL_MS=50   between two kills, on average (5)
 *   SEED=1234            repeat the same choices
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "os.h"
#include "world.h"

#define READERS 4
#define WRITERS 3
#define RECOVERERS 1
#define JOBS (READERS + WRITERS + RECOVERERS)
#define SLOTS 4
#define ROUND_NS UINT64_C(2000000000)
#define VERB_LIMIT_NS world_limit_ns(10)

/* Flags shared with the children. */
#define STOP (&world_flags[0])
#define TORN (&world_flags[1])
#define FOREIGN (&world_flags[2])
#define BACKWARD (&world_flags[3])
#define FAILED (&world_flags[4])
#define READS (&world_flags[5])
#define WRITES (&world_flags[6])
#define FORKS (&world_flags[7])
#define RECOVERIES (&world_flags[8])
#define LONGEST_NS (&world_flags[9])
#define BEGAN(job) (&world_flags[16 + (job)]) /* when its present verb began; 0: none */

static const char *name;

typedef struct job {
    int (*body)(void *argument);
    pid_t pid;
    uint64_t seed;
    size_t number;
} job;

/* ---- the time that verbs take -------------------------------------------------------------- */

static void
begin_verb(const job *me)
{
    svi_store_seq(BEGAN(me->number), svi_os_monotonic_ns());
}

static void
end_verb(const job *me)
{
    uint64_t took = svi_os_monotonic_ns() - svi_load_seq(BEGAN(me->number));
    svi_max_seq(LONGEST_NS, took);
    svi_store_seq(BEGAN(me->number), 0);
}

/* A verb that is still under way counts as well. */
static void
check_verbs_under_way(void)
{
    for (size_t i = 0; i < JOBS; i++) {
        uint64_t began = svi_load_seq(BEGAN(i));
        uint64_t now = svi_os_monotonic_ns();
        if (began != 0 && now > began) {
            svi_max_seq(LONGEST_NS, now - began);
        }
    }
}

/* ---- what the processes do ----------------------------------------------------------------- */

static uint64_t
stamp_for(uint64_t random, uint32_t slot)
{
    return (random % (UINT64_C(1) << 40)) * SLOTS + slot + SLOTS;
}

static void
look(const sv_view *view)
{
    uint64_t stamp = 0;
    svi_add_seq(TORN, !world_whole(view, &stamp));
    svi_add_seq(FOREIGN, stamp % SLOTS != view->slot);
}

/* The child looks at the view that it inherited, and leaves in one of three ways. */
static void
fork_with_view(sv_view *view, uint64_t random)
{
    pid_t pid = fork();
    if (pid == 0) {
        look(view);
        if (random % 3 == 0) {
            sv_unpin(view);
        } else if (random % 3 == 1) {
            (void)kill(getpid(), SIGKILL);
        }
        world_exit(0);
    }
    svi_add_seq(FORKS, 1);
    sv_unpin(view); /* before the child has looked, perhaps */
    (void)waitpid(pid, NULL, 0);
}

static void
read_once(const job *me, sv_segment *segment, uint64_t random, uint64_t newest[SLOTS])
{
    sv_chunk_info info;
    sv_view view;
    begin_verb(me);
    int status = sv_pin(segment, (uint32_t)(random % SLOTS), &view);
    end_verb(me);
    if (status != 0) {
        svi_add_seq(FAILED, status != SV_EMODIFIED && status != SV_EINDEX);
        return;
    }
    sv_view_info(&view, &info);
    svi_add_seq(BACKWARD, info.version < newest[view.slot]);
    newest[view.slot] = info.version;
    look(&view);
    svi_add_seq(READS, 1);
    if (random % 2000 == 7) {
        fork_with_view(&view, random >> 32);
        return;
    }
    look(&view);
    begin_verb(me);
    sv_unpin(&view);
    end_verb(me);
}

static int
read_until_stopped(void *argument)
{
    job *me = argument;
    uint64_t newest[SLOTS] = {0};
    svi_testing_separate = true;
    sv_segment *segment = world_open(name, NULL, SV_OPEN_ATTACH);
    while (svi_load_seq(STOP) == 0) {
        read_once(me, segment, world_random(&me->seed), newest);
    }
    return sv_segment_close(segment, NULL);
}

/* Append while there is room, else publish. */
static void
write_once(const job *me, sv_segment *segment, uint64_t random)
{
    sv_reservation reservation;
    if (sv_size(segment) < SLOTS) { /* a killed appender may have filled one that is not counted */
        svi_add_seq(FAILED, sv_recover(segment, NULL, NULL) != 0);
    }
    uint32_t size = sv_size(segment);
    uint32_t slot = size < SLOTS ? size : (uint32_t)(random % SLOTS);
    begin_verb(me);
    int status = sv_reserve(segment, VERB_LIMIT_NS, &reservation, NULL);
    end_verb(me);
    if (status != 0) {
        svi_add_seq(FAILED, 1);
        return;
    }
    if (random % 64 == 9) {
        memset(reservation.data, 0xff, 512);
        sv_cancel(&reservation);
        return;
    }
    svi_add_seq(FAILED, world_fill(&reservation, stamp_for(random >> 8, slot)) != 0);
    begin_verb(me);
    if (size < SLOTS) {
        /* The stamp names a slot, so that only this one will do: nobody else appends now. */
        uint32_t taken = 0;
        status = sv_publish_next(&reservation, &taken, NULL);
        svi_add_seq(FAILED, status == 0 && taken != slot);
    } else if (random % 2 == 0) {
        status = sv_publish(&reservation, slot, NULL);
    } else {
        sv_turn turn = {.first = slot, .end = slot + 1, .unread = 1, .timeout_ns = VERB_LIMIT_NS};
        status = sv_publish_turn(&reservation, &turn, &slot, NULL);
    }
    end_verb(me);
    svi_add_seq(FAILED, status != 0);
    svi_add_seq(WRITES, 1);
}

static int
write_until_stopped(void *argument)
{
    job *me = argument;
    svi_testing_separate = true;
    sv_segment *segment = world_open(name, NULL, SV_OPEN_ATTACH);
    while (svi_load_seq(STOP) == 0) {
        if (me->number != READERS && sv_size(segment) < SLOTS) {
            svi_os_sleep_ns(100000); /* the first writer appends */
            continue;
        }
        write_once(me, segment, world_random(&me->seed));
    }
    return sv_segment_close(segment, NULL);
}

static int
recover_until_stopped(void *argument)
{
    job *me = argument;
    svi_testing_separate = true;
    while (svi_load_seq(STOP) == 0) {
        sv_row_info rows[32];
        begin_verb(me); /* attaching and leaving, too */
        sv_segment *segment = world_open(name, NULL, SV_OPEN_ATTACH);
        end_verb(me);
        for (int i = 0; i < 20 && svi_load_seq(STOP) == 0; i++) {
            uint32_t recovered = 0;
            begin_verb(me);
            svi_add_seq(FAILED, sv_recover(segment, &recovered, NULL) != 0);
            end_verb(me);
            svi_add_seq(RECOVERIES, recovered);
            begin_verb(me);
            svi_add_seq(FAILED, sv_check(segment, NULL) != 0);
            (void)sv_rows(segment, rows, 32);
            end_verb(me);
            svi_os_sleep_ns(world_random(&me->seed) % 1000000);
        }
        svi_add_seq(FAILED, sv_segment_close(segment, NULL) != 0);
    }
    return 0;
}

/* ---- rounds -------------------------------------------------------------------------------- */

static void
start(job *j, uint64_t *seed)
{
    j->seed = world_random(seed);
    svi_store_seq(BEGAN(j->number), 0);
    j->pid = world_fork(j->body, j);
}

static uint64_t
number_from(const char *variable, uint64_t otherwise)
{
    const char *given = getenv(variable);
    return given != NULL ? strtoull(given, NULL, 10) : otherwise;
}

/* One pool, from empty to its audit; returns how many were killed. */
static uint64_t
one_round(uint64_t until_ns, uint64_t mean_kill_ns, uint64_t *seed)
{
    job jobs[JOBS];
    uint64_t kills = 0;
    sv_options options = world_options();
    options.slot_count = SLOTS;
    options.spare_buffers = 2 * (READERS + WRITERS);
    options.max_rows = 32;
    name = world_name("processes");
    svi_store_seq(STOP, 0);
    sv_segment *segment = world_open(name, &options, SV_OPEN_CREATE);
    for (size_t i = 0; i < JOBS; i++) {
        jobs[i].number = i;
        jobs[i].body = i < READERS             ? read_until_stopped
                       : i < READERS + WRITERS ? write_until_stopped
                                               : recover_until_stopped;
        start(&jobs[i], seed);
    }
    while (svi_os_monotonic_ns() < until_ns) {
        job *victim = &jobs[world_random(seed) % JOBS];
        svi_os_sleep_ns(world_random(seed) % (2 * mean_kill_ns));
        world_kill(victim->pid);
        kills++;
        check_verbs_under_way();
        start(victim, seed);
        EQ(sv_check(segment, NULL), 0);
        while (waitpid(-1, NULL, WNOHANG) > 0) { /* children of the killed */
        }
    }
    svi_store_seq(STOP, 1);
    for (size_t i = 0; i < JOBS; i++) {
        EQ(world_wait(jobs[i].pid, WORLD_WAIT_MS), 0);
    }
    while (waitpid(-1, NULL, 0) > 0) {
    }
    world_audit(segment, 0, 0);
    EQ(world_living(segment), 1);
    world_drop(segment);
    return kills;
}

static bool
enough_is_done(void)
{
    return svi_load_seq(READS) > 100 && svi_load_seq(WRITES) > 100;
}

static void
torture(void)
{
    uint64_t seconds = number_from("TORTURE_SECONDS", 3);
    uint64_t mean_kill_ns = number_from("TORTURE_KILL_MS", 5) * 1000000 + 1;
    uint64_t seed = world_seed();
    uint64_t kills = 0;
    unsigned rounds = 0;
    unsigned lost = 0;
    world_flags_clear();
    uint64_t now = svi_os_monotonic_ns();
    uint64_t end = now + seconds * UINT64_C(1000000000);
    uint64_t end_of_patience = end + world_limit_ns(60);
    for (; now < end || (!enough_is_done() && now < end_of_patience); rounds++) {
        unsigned before = tap_failures();
        uint64_t until = now < end && end < now + ROUND_NS ? end : now + ROUND_NS;
        mean_kill_ns *= now < end ? 1 : 2;
        kills += one_round(until, mean_kill_ns, &seed);
        lost += tap_failures() != before;
        now = svi_os_monotonic_ns();
    }
    EQ(svi_load_seq(TORN), 0);
    EQ(svi_load_seq(FOREIGN), 0);
    EQ(svi_load_seq(BACKWARD), 0);
    EQ(svi_load_seq(FAILED), 0);
    CHECK(enough_is_done());
    CHECK(svi_load_seq(LONGEST_NS) < VERB_LIMIT_NS);
    tap_note("kills=%llu publishes=%llu reads=%llu torn=%llu lost=%u longest_verb=%.3fs",
             (unsigned long long)kills, (unsigned long long)svi_load_seq(WRITES),
             (unsigned long long)svi_load_seq(READS), (unsigned long long)svi_load_seq(TORN), lost,
             (double)svi_load_seq(LONGEST_NS) / 1e9);
    tap_note("%u rounds, %llu forks with a view, %llu rows recovered by the recoverers", rounds,
             (unsigned long long)svi_load_seq(FORKS), (unsigned long long)svi_load_seq(RECOVERIES));
}

int
main(void)
{
    world_begin((unsigned)number_from("TORTURE_SECONDS", 3) + 120);
    RUN(torture);
    return world_end();
}
