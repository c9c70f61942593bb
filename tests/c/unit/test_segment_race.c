/* Making a segment while others make, sweep or die: whole or not at all, and one for all. */
#include "segment.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "faults.h"
#include "lockfile.h"
#include "os.h"
#include "steps.h"

/* ---- many at once -------------------------------------------------------------------------- */

static int
open_at_once(void *name)
{
    sv_info info;
    svi_add_seq(&world_flags[0], 1);
    EQ(world_await(&world_flags[1], 1), true);
    sv_segment *segment = world_open(name, NULL, SV_OPEN_CREATE);
    EQ(sv_segment_info(segment, &info), 0);
    if (!svi_cas_seq(&world_flags[2], 0, info.inode)) {
        EQ(svi_load_seq(&world_flags[2]), info.inode); /* one segment for all */
    }
    uint64_t me = svi_add_seq(&world_flags[3], 1);
    if (me < 4) {
        EQ(world_append(segment, me + 1), 0);
    }
    return 0;
}

static void
many_creators_at_once_make_one_segment(void)
{
    for (int round = 0; round < 10; round++) {
        const char *name = world_name("many");
        pid_t pids[8];
        world_flags_clear();
        for (size_t i = 0; i < 8; i++) {
            pids[i] = world_fork(open_at_once, (void *)(uintptr_t)name);
        }
        REQUIRE(world_await(&world_flags[0], 8));
        world_set(&world_flags[1], 1);
        for (size_t i = 0; i < 8; i++) {
            EQ(world_wait(pids[i], WORLD_WAIT_MS), 0);
        }
        EQ(world_files(), 1);
        sv_segment *segment = world_open(name, NULL, SV_OPEN_ATTACH);
        EQ(sv_size(segment), 4);
        world_audit(segment, 0, 0);
        world_drop(segment);
    }
}

static int
pause_while_creating(void *name)
{
    steps_pause_on("create.made", &world_flags[0], &world_flags[1]);
    return world_open(name, NULL, SV_OPEN_CREATE) == NULL;
}

static void
a_half_made_segment_cannot_be_seen(void)
{
    const char *name = world_name("half");
    sv_options options = world_options();
    sv_error err = {.message = ""};
    world_flags_clear();
    pid_t pid = world_fork(pause_while_creating, (void *)(uintptr_t)name);
    REQUIRE(world_await(&world_flags[0], 1));
    CHECK(!world_exists(name, ""));
    EQ(world_try_open(name, &options, SV_OPEN_ATTACH, &err), SV_ENOENT);
    options.timeout_ns = 50000000;
    EQ(world_try_open(name, &options, SV_OPEN_CREATE, &err), SV_ETIMEDOUT);
    HAS(err.message, name);
    HAS(err.message, ".create");
    world_set(&world_flags[1], 1);
    EQ(world_wait(pid, WORLD_WAIT_MS), 0);
    EQ(world_try_open(name, &options, SV_OPEN_ATTACH, &err), 0);
    EQ(sv_segment_remove(name, NULL, NULL), 0);
}

static int
create_whatever_it_takes(void *name)
{
    sv_options options = world_options();
    sv_error err = {.code = 7, .message = "untouched"};
    options.timeout_ns = UINT64_MAX;
    world_set(&world_flags[0], 1);
    EQ(world_try_open(name, &options, SV_OPEN_CREATE, &err), 0);
    EQ(err.code, 7); /* a success after a retry leaves it alone */
    EQ_STR(err.message, "untouched");
    return 0;
}

static void
an_endless_patience_is_none_too_short(void)
{
    const char *name = world_name("endless");
    svi_lockfile creating = SVI_LOCKFILE_INIT;
    world_flags_clear();
    EQ(svi_lockfile_take(&creating, world_directory(), ".", name, ".create", NULL), 0);
    pid_t pid = world_fork(create_whatever_it_takes, (void *)(uintptr_t)name);
    REQUIRE(world_await(&world_flags[0], 1));
    svi_os_sleep_ns(50000000);
    svi_lockfile_drop(&creating, true);
    EQ(world_wait(pid, WORLD_WAIT_MS), 0);
    EQ(sv_segment_remove(name, NULL, NULL), 0);
}

/* Another process at work under the lock of creators, until flag 1. */
static int
hold_the_creators_lock(void *name)
{
    svi_lockfile creating = SVI_LOCKFILE_INIT;
    EQ(svi_lockfile_take(&creating, world_directory(), ".", name, ".create", NULL), 0);
    world_set(&world_flags[0], 1);
    (void)world_await(&world_flags[1], 1);
    svi_lockfile_drop(&creating, true);
    world_set(&world_flags[2], 1);
    return 0;
}

static unsigned lock_tries;

/* The creator gives way between the first try to get its lock and the second. */
static int
give_way_at_the_second_try(const char *call)
{
    if (strcmp(call, "flock") == 0 && ++lock_tries == 2) {
        world_set(&world_flags[1], 1);
        (void)world_await(&world_flags[2], 1);
    }
    return 0;
}

static void
nothing_is_unlinked_beside_a_creator(void)
{
    const char *name = world_name("beside");
    sv_error err = {.message = ""};
    sv_info info;
    sv_segment *segment = world_segment(name, 1);
    EQ(sv_segment_info(segment, &info), 0);
    world_flags_clear();
    pid_t pid = world_fork(hold_the_creators_lock, (void *)(uintptr_t)name);
    REQUIRE(world_await(&world_flags[0], 1));
    EQ(sv_segment_remove_exact(name, NULL, info.inode, info.generation, &err), SV_EBUSY);
    HAS(err.message, "in place of");
    CHECK(world_exists(name, ""));
    EQ(sv_segment_remove_exact(name, NULL, info.inode, "other", &err), SV_ENOENT);
    lock_tries = 0;
    err = (sv_error){.code = 7, .message = "untouched"};
    svi_fault_hook = give_way_at_the_second_try;
    EQ(sv_segment_remove_exact(name, NULL, info.inode, info.generation, &err), 0); /* waits */
    svi_fault_hook = NULL;
    CHECK(lock_tries >= 2);
    EQ(err.code, 7); /* also after a try that failed */
    EQ_STR(err.message, "untouched");
    EQ(world_wait(pid, WORLD_WAIT_MS), 0);
    EQ(sv_segment_close(segment, NULL), 0);
}

static void
a_strangers_lock_is_waited_for(void)
{
    const char *name = world_name("stranger");
    sv_options options = world_options();
    sv_error err = {.message = ""};
    EQ(sv_segment_close(world_segment(name, 1), NULL), 0);
    int fd = open(world_path(name, ""), O_RDWR);
    EQ(svi_os_lock_try(fd, SVI_LOCK_ATTACHED, true), 0);
    options.timeout_ns = 30000000;
    EQ(world_try_open(name, &options, SV_OPEN_ATTACH, &err), SV_ETIMEDOUT);
    HAS(err.message, "at work on");
    (void)close(fd);
    EQ(world_try_open(name, &options, SV_OPEN_ATTACH, &err), 0);
    EQ(sv_segment_remove(name, NULL, NULL), 0);
}

/* ---- killed while making ------------------------------------------------------------------- */

static void
before_nothing(const char *name)
{
    (void)name;
}

static void
before_old_segment(const char *name)
{
    EQ(sv_segment_close(world_segment(name, 2), NULL), 0);
}

static int
victim_creates(void *name)
{
    sv_segment *segment = world_open(name, NULL, SV_OPEN_EXCLUSIVE);
    return sv_segment_close(segment, NULL);
}

static int
victim_replaces(void *name)
{
    sv_segment *segment = world_open(name, NULL, SV_OPEN_REPLACE);
    return sv_segment_close(segment, NULL);
}

/* The name is absent or whole; whoever comes next gets a good segment, and nothing is left. */
static void
after_making(const char *name)
{
    sv_info info;
    CHECK(!world_exists(name, "") || world_try_open(name, NULL, SV_OPEN_ATTACH, NULL) == 0);
    sv_segment *segment = world_open(name, NULL, SV_OPEN_CREATE);
    while (sv_size(segment) < 4) {
        EQ(world_append(segment, 1 + sv_size(segment)), 0);
    }
    EQ(world_living(segment), 1);
    world_audit(segment, 0, 0);
    EQ(sv_segment_info(segment, &info), 0);
    EQ(sv_segment_close(segment, NULL), 0);
    EQ(sv_segment_remove_exact(name, NULL, info.inode, info.generation, NULL), 0);
    EQ(world_files(), 0);
}

static int
die_before_the_link(void *name)
{
    steps_kill_on("create.made", 1);
    return world_open(name, NULL, SV_OPEN_CREATE) == NULL;
}

static void
removing_takes_what_a_killed_creator_left(void)
{
    const char *name = world_name("left");
    EQ(world_wait(world_fork(die_before_the_link, (void *)(uintptr_t)name), WORLD_WAIT_MS), 137);
    EQ(world_files(), 1); /* its lock file, held by nobody */
    EQ(sv_segment_remove(name, NULL, NULL), 0);
    EQ(world_files(), 0);
}

static void
a_killed_creator_leaves_a_whole_segment_or_none(void)
{
    CHECK(steps_kill_everywhere("create", before_nothing, victim_creates, after_making) >= 6);
    CHECK(steps_kill_everywhere("replace", before_old_segment, victim_replaces, after_making) >= 7);
}

int
main(void)
{
    world_begin(55);
    RUN(many_creators_at_once_make_one_segment);
    RUN(a_half_made_segment_cannot_be_seen);
    RUN(an_endless_patience_is_none_too_short);
    RUN(nothing_is_unlinked_beside_a_creator);
    RUN(a_strangers_lock_is_waited_for);
    RUN(removing_takes_what_a_killed_creator_left);
    RUN(a_killed_creator_leaves_a_whole_segment_or_none);
    return world_end();
}
