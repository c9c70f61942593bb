/* Lock files: one holder, held as long as its address space lives, unlinked while held. */
#include "lockfile.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "faults.h"
#include "world.h"

static int
take(svi_lockfile *lock, const char *name, sv_error *err)
{
    return svi_lockfile_take(lock, world_directory(), ".", name, ".create", err);
}

static void
one_holder_at_a_time(void)
{
    svi_lockfile first = SVI_LOCKFILE_INIT;
    svi_lockfile second = SVI_LOCKFILE_INIT;
    sv_error err = {.message = ""};
    const char *name = world_name("one");
    EQ(take(&first, name, &err), 0);
    CHECK(first.anchor != NULL);
    EQ(take(&second, name, &err), SV_EBUSY);
    HAS(err.message, first.path);
    CHECK(second.anchor == NULL);
    svi_lockfile_drop(&first, true);
    CHECK(first.anchor == NULL);
    EQ(world_files(), 0);
    EQ(take(&second, name, NULL), 0);
    svi_lockfile_drop(&second, true);
    svi_lockfile_drop(&second, true); /* not held: nothing */
    EQ(world_files(), 0);
}

static void
dropping_can_leave_the_file(void)
{
    svi_lockfile lock = SVI_LOCKFILE_INIT;
    const char *name = world_name("keep");
    EQ(take(&lock, name, NULL), 0);
    svi_lockfile_drop(&lock, false);
    EQ(world_files(), 1);
    EQ(take(&lock, name, NULL), 0);
    svi_lockfile_drop(&lock, true);
    EQ(world_files(), 0);
}

static void
a_file_that_is_not_ours_any_more_stays(void)
{
    svi_lockfile lock = SVI_LOCKFILE_INIT;
    const char *name = world_name("other");
    EQ(svi_lockfile_take(&lock, world_directory(), "", name, "", NULL), 0);
    EQ(unlink(lock.path), 0);
    world_junk(name, 'j', 3);
    svi_lockfile_drop(&lock, true);
    CHECK(world_exists(name, ""));
    EQ(unlink(world_path(name, "")), 0);
}

static int
holder(void *name)
{
    svi_lockfile lock = SVI_LOCKFILE_INIT;
    EQ(take(&lock, name, NULL), 0);
    world_set(&world_flags[0], 1);
    return world_await(&world_flags[1], 1) ? 0 : 1;
}

static void
a_killed_holder_holds_nothing(void)
{
    svi_lockfile lock = SVI_LOCKFILE_INIT;
    const char *name = world_name("killed");
    world_flags_clear();
    pid_t pid = world_fork(holder, (void *)(uintptr_t)name);
    REQUIRE(world_await(&world_flags[0], 1));
    EQ(take(&lock, name, NULL), SV_EBUSY);
    EQ(kill(pid, SIGKILL), 0);
    EQ(world_wait(pid, WORLD_WAIT_MS), 128 + SIGKILL);
    EQ(take(&lock, name, NULL), 0);
    svi_lockfile_drop(&lock, true);
    EQ(world_files(), 0);
}

static int
sleeper(void *argument)
{
    (void)argument;
    world_set(&world_flags[0], 1);
    return world_await(&world_flags[1], 1) ? 0 : 1;
}

static void
a_forked_child_does_not_keep_the_lock(void)
{
    svi_lockfile lock = SVI_LOCKFILE_INIT;
    const char *name = world_name("forked");
    world_flags_clear();
    EQ(take(&lock, name, NULL), 0);
    pid_t pid = world_fork(sleeper, NULL);
    REQUIRE(world_await(&world_flags[0], 1));
    svi_lockfile_drop(&lock, true);
    EQ(take(&lock, name, NULL), 0);
    svi_lockfile_drop(&lock, true);
    world_set(&world_flags[1], 1);
    EQ(world_wait(pid, WORLD_WAIT_MS), 0);
}

static void
closing_all_descriptors_keeps_the_lock(void)
{
    svi_lockfile lock = SVI_LOCKFILE_INIT;
    svi_lockfile second = SVI_LOCKFILE_INIT;
    const char *name = world_name("closed");
    EQ(take(&lock, name, NULL), 0);
    for (int fd = 3; fd < 64; fd++) {
        (void)close(fd);
    }
    EQ(take(&second, name, NULL), SV_EBUSY);
    svi_lockfile_drop(&lock, true);
    EQ(world_files(), 0);
}

static void
contents_are_replaced(void)
{
    svi_lockfile lock = SVI_LOCKFILE_INIT;
    char text[32] = "";
    EQ(svi_lockfile_take(&lock, world_directory(), "", world_name("text"), ".lock", NULL), 0);
    EQ(svi_lockfile_write(&lock, "a longer text"), 0);
    EQ(svi_lockfile_write(&lock, "short"), 0);
    int fd = open(lock.path, O_RDONLY);
    EQ(read(fd, text, sizeof text - 1), 5);
    (void)close(fd);
    EQ_STR(text, "short");
    svi_lockfile_drop(&lock, true);
}

static void
what_cannot_be_a_lock_file_is_an_error(void)
{
    svi_lockfile lock = SVI_LOCKFILE_INIT;
    sv_error err = {.message = ""};
    const char *name = world_name("bad");
    EQ(mkfifo(world_path(name, ".lock"), 0600), 0);
    EQ(svi_lockfile_take(&lock, world_directory(), "", name, ".lock", &err), SV_ESYS);
    HAS(err.message, name);
    EQ(unlink(world_path(name, ".lock")), 0);
    EQ(mkdir(world_path(name, ".lock"), 0700), 0);
    EQ(svi_lockfile_take(&lock, world_directory(), "", name, ".lock", &err), SV_ESYS);
    EQ(rmdir(world_path(name, ".lock")), 0);
    EQ(symlink("/dev/null", world_path(name, ".lock")), 0);
    EQ(svi_lockfile_take(&lock, world_directory(), "", name, ".lock", &err), SV_ESYS);
    EQ(unlink(world_path(name, ".lock")), 0);
    EQ(svi_lockfile_take(&lock, "/no/such/dir", "", name, ".lock", &err), SV_ESYS);
    HAS(err.message, "/no/such/dir");
    CHECK(lock.anchor == NULL);
}

static void
a_locked_descriptor_is_adopted(void)
{
    svi_lockfile lock = SVI_LOCKFILE_INIT;
    svi_lockfile second = SVI_LOCKFILE_INIT;
    sv_error err = {.message = ""};
    char path[SVI_PATH_BYTES];
    const char *name = world_name("adopt");
    svi_path(path, world_directory(), ".", name, ".create");
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    EQ(flock(fd, LOCK_EX | LOCK_NB), 0);
    EQ(take(&second, name, NULL), SV_EBUSY);
    EQ(svi_lockfile_adopt(&lock, fd, path, &err), 0);
    CHECK(fcntl(fd, F_GETFD) >= 0); /* stays the caller's */
    (void)close(fd);
    EQ(take(&second, name, NULL), SV_EBUSY); /* the anchor keeps the lock */
    svi_lockfile_drop(&lock, true);
    EQ(take(&second, name, NULL), 0);
    svi_lockfile_drop(&second, true);
    EQ(world_files(), 0);
}

static void
a_foreign_descriptor_is_not_adopted(void)
{
    svi_lockfile lock = SVI_LOCKFILE_INIT;
    svi_lockfile other = SVI_LOCKFILE_INIT;
    sv_error err = {.message = ""};
    char path[SVI_PATH_BYTES];
    const char *name = world_name("foreign");
    svi_path(path, world_directory(), ".", name, ".create");
    int null = open("/dev/null", O_RDWR);
    EQ(svi_lockfile_adopt(&lock, null, path, &err), SV_EINVAL);
    HAS(err.message, path);
    CHECK(fcntl(null, F_GETFD) >= 0); /* stays the caller's */
    (void)close(null);
    EQ(svi_lockfile_adopt(&lock, -1, path, &err), SV_EINVAL);
    EQ(take(&other, name, NULL), 0);
    int fd = open(path, O_RDWR);
    EQ(svi_lockfile_adopt(&lock, fd, path, &err), SV_EBUSY);
    CHECK(fcntl(fd, F_GETFD) >= 0);
    (void)close(fd);
    CHECK(lock.anchor == NULL);
    svi_lockfile_drop(&other, true);
}

static const char *dropped;
static int found_at_unlink;

static int
try_to_take_it(const char *call)
{
    svi_lockfile early = SVI_LOCKFILE_INIT;
    if (strcmp(call, "unlink") == 0) {
        svi_fault_hook = NULL;
        found_at_unlink = take(&early, dropped, NULL);
        svi_lockfile_drop(&early, false);
    }
    return 0;
}

/* Were it unlocked first, the next holder would lose its name to us. */
static void
the_file_goes_while_it_is_locked(void)
{
    svi_lockfile lock = SVI_LOCKFILE_INIT;
    dropped = world_name("last");
    found_at_unlink = 0;
    EQ(take(&lock, dropped, NULL), 0);
    svi_fault_hook = try_to_take_it;
    svi_lockfile_drop(&lock, true);
    svi_fault_hook = NULL;
    EQ(found_at_unlink, SV_EBUSY);
    EQ(world_files(), 0);
}

static int
cannot_be_looked_at(const char *call)
{
    return strcmp(call, "lstat") == 0 ? EACCES : 0;
}

/* Nobody else holds the file: waiting for a holder to go would be waiting for ever. */
static void
a_name_that_cannot_be_looked_at_is_told(void)
{
    svi_lockfile lock = SVI_LOCKFILE_INIT;
    sv_error err = {.message = ""};
    char path[SVI_PATH_BYTES];
    const char *name = world_name("veiled");
    svi_path(path, world_directory(), ".", name, ".create");
    svi_fault_hook = cannot_be_looked_at;
    EQ(take(&lock, name, &err), SV_ESYS);
    EQ(err.sys_errno, EACCES);
    HAS(err.message, path);
    CHECK(lock.anchor == NULL);
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    err = (sv_error){.message = ""};
    EQ(svi_lockfile_adopt(&lock, fd, path, &err), SV_ESYS);
    EQ(err.sys_errno, EACCES);
    svi_fault_hook = NULL;
    EQ(take(&lock, name, NULL), 0); /* nothing holds it */
    (void)close(fd);
    svi_lockfile_drop(&lock, true);
    EQ(world_files(), 0);
}

static svi_lockfile former;
static svi_lockfile successor;
static const char *contested;

/* Between our open and our lock the holder leaves, and somebody else makes the file anew. */
static int
change_hands_before_the_lock(const char *call)
{
    if (strcmp(call, "flock") == 0) {
        svi_fault_hook = NULL;
        svi_lockfile_drop(&former, true);
        (void)EQ(take(&successor, contested, NULL), 0);
    }
    return 0;
}

static void
the_lock_of_a_file_that_lost_its_name_is_worth_nothing(void)
{
    svi_lockfile late = SVI_LOCKFILE_INIT;
    sv_error err = {.message = ""};
    contested = world_name("lost");
    EQ(take(&former, contested, NULL), 0);
    svi_fault_hook = change_hands_before_the_lock;
    EQ(take(&late, contested, &err), SV_EBUSY);
    svi_fault_hook = NULL;
    svi_lockfile_drop(&successor, true);
    EQ(world_files(), 0);
}

int
main(void)
{
    world_begin(50);
    RUN(one_holder_at_a_time);
    RUN(dropping_can_leave_the_file);
    RUN(a_file_that_is_not_ours_any_more_stays);
    RUN(the_lock_of_a_file_that_lost_its_name_is_worth_nothing);
    RUN(the_file_goes_while_it_is_locked);
    RUN(a_name_that_cannot_be_looked_at_is_told);
    RUN(a_killed_holder_holds_nothing);
    RUN(a_forked_child_does_not_keep_the_lock);
    RUN(closing_all_descriptors_keeps_the_lock);
    RUN(contents_are_replaced);
    RUN(what_cannot_be_a_lock_file_is_an_error);
    RUN(a_locked_descriptor_is_adopted);
    RUN(a_foreign_descriptor_is_not_adopted);
    return world_end();
}
