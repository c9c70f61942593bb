/* Sweepers among others: other sweepers, owners that come up meanwhile, other users, other containers. */
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "blocks.h"
#include "faults.h"
#include "machine.h"
#include "os.h"

static int
count(const sv_listed *item, void *context)
{
    (void)item;
    ++*(uint64_t *)context;
    return 0;
}

static uint64_t
sweep_here(void)
{
    uint64_t swept = 0;
    sv_error err = {.message = ""};
    if (!EQ(sv_sweep(NULL, NULL, NULL, 0, count, &swept, &err), 0)) {
        tap_note("%s", err.message);
    }
    return swept;
}

/* ---- many of them -------------------------------------------------------------------------- */

#define ORPHANS 600 /* more than one reading of the directory tells */
#define SWEEPERS 3

static int
make_many_and_die(void *argument)
{
    sv_array array = block_array(NULL);
    (void)argument;
    array.size_bytes = 64;
    array.shape[0] = 8;
    for (int i = 0; i < ORPHANS; i++) {
        sv_segment *block = NULL;
        if (!EQ(sv_block_create("many", &array, NULL, &block, NULL), 0)) {
            return 1;
        }
    }
    return raise(SIGKILL);
}

static int
sweep_at_once(void *argument)
{
    (void)argument;
    svi_add_seq(&world_flags[0], 1);
    CHECK(world_await(&world_flags[0], SWEEPERS));
    svi_add_seq(&world_flags[1], sweep_here());
    return 0;
}

static void
sweepers_share_the_work(void)
{
    pid_t pids[SWEEPERS];
    world_flags_clear();
    EQ(world_wait(world_fork(make_many_and_die, NULL), WORLD_WAIT_MS), 128 + SIGKILL);
    EQ(world_files(), ORPHANS);
    for (size_t i = 0; i < SWEEPERS; i++) {
        pids[i] = world_fork(sweep_at_once, NULL);
    }
    for (size_t i = 0; i < SWEEPERS; i++) {
        EQ(world_wait(pids[i], WORLD_WAIT_MS), 0);
    }
    EQ(svi_load_seq(&world_flags[1]), ORPHANS); /* each told once, by whoever removed it */
    EQ(world_files(), 0);
}

/* ---- an owner that comes up ---------------------------------------------------------------- */

#define REIGNS 60

static const char *pool_name;

/* Takes over what is there, sees that it keeps it, and dies or ends. */
static int
reign(void *mortal)
{
    sv_owner *owner = NULL;
    sv_options options = world_options();
    sv_segment *segment = NULL;
    while (sv_owner_acquire(pool_name, NULL, NULL, &owner, NULL) == SV_EBUSY) {
        svi_os_sleep_ns(10000); /* a sweeper has it for a moment */
    }
    EQ(sv_pool_create(owner, &options, &segment, NULL), 0);
    EQ(world_append(segment, 1), 0);
    EQ(sv_ready_write(owner, NULL), 0);
    for (int look = 0; look < 20; look++) {
        sv_segment *follower = NULL;
        CHECK(world_exists(pool_name, "") && world_exists(pool_name, ".ready"));
        CHECK(world_exists(pool_name, ".lock"));
        EQ(sv_pool_attach(pool_name, NULL, &options, 0, &follower, NULL), 0);
        EQ(sv_segment_close(follower, NULL), 0);
        svi_os_sleep_ns(50000);
    }
    if (tap_failures() != 0) {
        return 1;
    }
    return mortal != NULL ? raise(SIGKILL) : sv_pool_close(owner, segment, NULL);
}

static int
sweep_all_the_time(void *argument)
{
    (void)argument;
    while (svi_load_seq(&world_flags[0]) == 0) {
        svi_add_seq(&world_flags[1], sweep_here());
        svi_add_seq(&world_flags[2], 1);
    }
    return 0;
}

static void
an_owner_that_comes_up_keeps_its_pool(void)
{
    char dies;
    pool_name = world_name("rising");
    world_flags_clear();
    pid_t sweeper = world_fork(sweep_all_the_time, NULL);
    unsigned deaths = 0;
    for (int i = 0; i < REIGNS; i++) {
        bool mortal = i % 3 != 0;
        int status = world_wait(world_fork(reign, mortal ? &dies : NULL), WORLD_WAIT_MS);
        EQ(status, mortal ? 128 + SIGKILL : 0);
        deaths += mortal;
        if (i % 3 == 1) { /* else the next one comes at once */
            uint64_t passes = svi_load_seq(&world_flags[2]);
            CHECK(world_await(&world_flags[2], passes + 2));
            EQ(world_files(), 0);
        }
    }
    world_set(&world_flags[0], 1);
    EQ(world_wait(sweeper, WORLD_WAIT_MS), 0);
    (void)sweep_here();
    CHECK(svi_load_seq(&world_flags[1]) >= REIGNS / 3);
    tap_note("%u owners died, %llu pools swept in %llu passes", deaths,
             (unsigned long long)svi_load_seq(&world_flags[1]),
             (unsigned long long)svi_load_seq(&world_flags[2]));
    EQ(world_files(), 0);
}

/* A sweeper that has found the owner dead, stopped before it asks for the owner's lock. */
static int
wait_at_flock(const char *call)
{
    if (strcmp(call, "flock") == 0 && svi_load_seq(&world_flags[0]) == 0) {
        world_set(&world_flags[0], 1);
        (void)world_await(&world_flags[1], 1);
    }
    return 0;
}

static int
sweep_slowly(void *argument)
{
    (void)argument;
    svi_fault_hook = wait_at_flock;
    EQ(sweep_here(), 0); /* somebody else was first */
    return 0;
}

/* The pool is made anew behind the sweeper's look, by an owner with this lock directory. */
static void
take_over_behind_a_sweepers_back(const char *lock_dir)
{
    char dies;
    sv_owner *owner = NULL;
    sv_options options = world_options();
    sv_segment *segment = NULL;
    sv_segment *follower = NULL;
    pool_name = world_name("behind");
    world_flags_clear();
    (void)EQ(world_wait(world_fork(reign, &dies), WORLD_WAIT_MS), 128 + SIGKILL);
    pid_t sweeper = world_fork(sweep_slowly, NULL);
    (void)world_await(&world_flags[0], 1);
    (void)EQ(sv_owner_acquire(pool_name, lock_dir, NULL, &owner, NULL), 0);
    (void)EQ(sv_pool_create(owner, &options, &segment, NULL), 0);
    (void)EQ(sv_ready_write(owner, NULL), 0);
    world_set(&world_flags[1], 1);
    (void)EQ(world_wait(sweeper, WORLD_WAIT_MS), 0);
    (void)EQ(sv_pool_attach(pool_name, lock_dir, &options, 0, &follower, NULL), 0);
    (void)EQ(sv_segment_close(follower, NULL), 0);
    (void)EQ(sv_pool_close(owner, segment, NULL), 0);
}

static void
an_owner_that_came_behind_the_look_keeps_its_pool(void)
{
    take_over_behind_a_sweepers_back(NULL);
    EQ(world_files(), 0);
}

static void
so_does_one_with_another_lock_directory(void)
{
    char other[128];
    (void)snprintf(other, sizeof other, "%s/locks", world_directory());
    EQ(mkdir(other, 0700), 0);
    take_over_behind_a_sweepers_back(other);
    EQ(rmdir(other), 0);
    EQ(world_files(), 0);
}

/* ---- other users --------------------------------------------------------------------------- */

#define NOBODY 65534

static bool
become_nobody(void)
{
    return CHECK(setgroups(0, NULL) == 0 && setgid(NOBODY) == 0 && setuid(NOBODY) == 0 &&
                 prctl(PR_SET_DUMPABLE, 1) == 0);
}

static int
make_as_nobody_and_die(void *argument)
{
    (void)argument;
    return become_nobody() && block_of(1) != NULL ? raise(SIGKILL) : 1;
}

static int
make_and_die(void *argument)
{
    (void)argument;
    return block_of(1) != NULL ? raise(SIGKILL) : 1;
}

static int
sweep_as_nobody(void *argument)
{
    (void)argument;
    (void)become_nobody();
    EQ(sweep_here(), 1); /* its own, not the other */
    return 0;
}

static void
what_another_user_left_is_not_ours_to_remove(void)
{
    if (geteuid() != 0) {
        tap_skip("becoming another user needs root");
        return;
    }
    EQ(chmod(world_directory(), 0777), 0); /* not sticky: only our own care keeps others' files */
    EQ(world_wait(world_fork(make_as_nobody_and_die, NULL), WORLD_WAIT_MS), 128 + SIGKILL);
    EQ(world_files(), 1);
    EQ(sweep_here(), 0);
    EQ(world_files(), 1);
    EQ(world_wait(world_fork(make_and_die, NULL), WORLD_WAIT_MS), 128 + SIGKILL);
    EQ(world_files(), 2);
    world_child(sweep_as_nobody, NULL);
    EQ(world_files(), 1);
    EQ(sweep_here(), 1);
    EQ(world_files(), 0);
    EQ(chmod(world_directory(), 0700), 0);
}

/* ---- other containers ---------------------------------------------------------------------- */

/* Number 1 of a pid namespace, in which no maker outside has a number. */
static int
sweep_as_number_one(void *argument)
{
    (void)argument;
    if (unshare(CLONE_NEWPID) != 0) {
        return CANNOT;
    }
    pid_t pid = fork(); /* not world_fork: there the child looks for its parent's pid */
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        tap_reset();
        EQ(getpid(), 1);
        EQ(sweep_here(), 1);
        (void)fflush(stdout);
        world_exit(tap_failures() != 0 ? 99 : 0);
    }
    return world_wait(pid, WORLD_WAIT_MS);
}

static void
a_sweeper_in_a_container_knows_who_lives(void)
{
    sv_segment *alive = block_of(2);
    EQ(world_wait(world_fork(make_and_die, NULL), WORLD_WAIT_MS), 128 + SIGKILL);
    EQ(world_files(), 2);
    int status = world_wait(world_fork(sweep_as_number_one, NULL), WORLD_WAIT_MS);
    if (status == CANNOT) {
        tap_skip("pid namespaces need CAP_SYS_ADMIN");
        (void)sweep_here();
    } else {
        EQ(status, 0);
    }
    CHECK(world_exists(block_name(alive), ""));
    block_drop(alive);
    EQ(world_files(), 0);
}

int
main(void)
{
    world_begin(58);
    RUN(sweepers_share_the_work);
    RUN(an_owner_that_comes_up_keeps_its_pool);
    RUN(an_owner_that_came_behind_the_look_keeps_its_pool);
    RUN(so_does_one_with_another_lock_directory);
    RUN(what_another_user_left_is_not_ours_to_remove);
    RUN(a_sweeper_in_a_container_knows_who_lives);
    return world_end();
}
