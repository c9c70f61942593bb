/*
 * Readers and writers as processes, some of which are killed (SIGKILL) at random moments and
 * replaced by new ones. A few fork while they hold views.
 *
 * Oracle: a chunk is whole and belongs to its slot whoever was killed; nobody fails or hangs; at the
 * end no pin, claim, row or buffer is lost.
 *
 *   TORTURE_SECONDS=60   how long (3)      SEED=1234   repeat the same choices
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
#define SLOTS 4

/* Flags shared with the children. */
#define STOP (&world_flags[0])
#define TORN (&world_flags[1])
#define FOREIGN (&world_flags[2])
#define BACKWARD (&world_flags[3])
#define FAILED (&world_flags[4])
#define READS (&world_flags[5])
#define WRITES (&world_flags[6])
#define FORKS (&world_flags[7])

static const char *name;

typedef struct job {
    int (*body)(void *argument);
    pid_t pid;
    uint64_t seed;
} job;

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
        _exit(0);
    }
    svi_add_seq(FORKS, 1);
    sv_unpin(view); /* before the child has looked, perhaps */
    (void)waitpid(pid, NULL, 0);
}

static int
read_until_stopped(void *argument)
{
    uint64_t seed = ((job *)argument)->seed;
    uint64_t newest[SLOTS] = {0};
    svi_testing_separate = true;
    sv_segment *segment = world_open(name, NULL, SV_OPEN_ATTACH);
    while (svi_load_seq(STOP) == 0) {
        uint64_t random = world_random(&seed);
        sv_chunk_info info;
        sv_view view;
        int status = sv_pin(segment, (uint32_t)(random % SLOTS), &view);
        if (status != 0) {
            svi_add_seq(FAILED, status != SV_EMODIFIED);
            continue;
        }
        sv_view_info(&view, &info);
        svi_add_seq(BACKWARD, info.version < newest[view.slot]);
        newest[view.slot] = info.version;
        look(&view);
        svi_add_seq(READS, 1);
        if (random % 2000 == 7) {
            fork_with_view(&view, random >> 32);
        } else {
            look(&view);
            sv_unpin(&view);
        }
    }
    return sv_segment_close(segment, NULL);
}

static int
write_until_stopped(void *argument)
{
    uint64_t seed = ((job *)argument)->seed;
    svi_testing_separate = true;
    sv_segment *segment = world_open(name, NULL, SV_OPEN_ATTACH);
    while (svi_load_seq(STOP) == 0) {
        uint64_t random = world_random(&seed);
        uint32_t slot = (uint32_t)(random % SLOTS);
        sv_reservation reservation;
        int status = sv_reserve(segment, UINT64_C(10000000000), &reservation, NULL);
        if (status != 0) {
            svi_add_seq(FAILED, 1);
            continue;
        }
        if (random % 64 == 9) {
            memset(reservation.data, 0xff, 512);
            sv_cancel(&reservation);
            continue;
        }
        svi_add_seq(FAILED, world_fill(&reservation, stamp_for(random >> 8, slot)) != 0);
        svi_add_seq(FAILED, sv_publish(&reservation, slot, NULL) != 0);
        svi_add_seq(WRITES, 1);
    }
    return sv_segment_close(segment, NULL);
}

static void
start(job *j, uint64_t *seed)
{
    j->seed = world_random(seed);
    j->pid = world_fork(j->body, j);
}

static void
torture(void)
{
    const char *given = getenv("TORTURE_SECONDS");
    uint64_t seconds = given != NULL ? strtoull(given, NULL, 10) : 3;
    uint64_t seed = world_seed();
    uint64_t kills = 0;
    job jobs[READERS + WRITERS];
    sv_options options = world_options();
    options.slot_count = SLOTS;
    options.spare_buffers = 2 * (READERS + WRITERS);
    options.max_rows = 32;
    name = world_name("processes");
    world_flags_clear();
    sv_segment *segment = world_open(name, &options, SV_OPEN_CREATE);
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        EQ(world_append(segment, stamp_for(slot, slot)), 0);
    }
    for (size_t i = 0; i < READERS + WRITERS; i++) {
        jobs[i].body = i < READERS ? read_until_stopped : write_until_stopped;
        start(&jobs[i], &seed);
    }
    for (uint64_t began = svi_os_monotonic_ns();
         svi_os_monotonic_ns() - began < seconds * UINT64_C(1000000000);) {
        job *victim = &jobs[world_random(&seed) % (READERS + WRITERS)];
        svi_os_sleep_ns(world_random(&seed) % 10000000);
        world_kill(victim->pid);
        kills++;
        start(victim, &seed);
        EQ(sv_check(segment, NULL), 0);
        while (waitpid(-1, NULL, WNOHANG) > 0) { /* children of the killed */
        }
    }
    world_set(STOP, 1);
    for (size_t i = 0; i < READERS + WRITERS; i++) {
        EQ(world_wait(jobs[i].pid, WORLD_WAIT_MS), 0);
    }
    while (waitpid(-1, NULL, 0) > 0) {
    }
    EQ(svi_load_seq(TORN), 0);
    EQ(svi_load_seq(FOREIGN), 0);
    EQ(svi_load_seq(BACKWARD), 0);
    EQ(svi_load_seq(FAILED), 0);
    CHECK(svi_load_seq(READS) > 100);
    CHECK(svi_load_seq(WRITES) > 100);
    tap_note("%llu reads, %llu writes, %llu kills, %llu forks with a view",
             (unsigned long long)svi_load_seq(READS), (unsigned long long)svi_load_seq(WRITES),
             (unsigned long long)kills, (unsigned long long)svi_load_seq(FORKS));
    world_audit(segment, 0, 0);
    EQ(world_living(segment), 1);
    world_drop(segment);
}

int
main(void)
{
    world_begin(600);
    RUN(torture);
    return world_end();
}
