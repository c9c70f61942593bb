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
#include "fork.h"
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
    CHECK(first.held);
    EQ(take(&second, name, &err), SV_EBUSY);
    HAS(err.message, first.path);
    CHECK(!second.held);
    svi_lockfile_drop(&first, true);
    CHECK(!first.held);
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
    EQ(svi_lockfile_is_ours(&lock), 0);
    EQ(svi_lockfile_write(&lock, "not ours"), -ESTALE);
    EQ(svi_lockfile_set_mode(&lock, 0644), -ESTALE);
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
    CHECK(!lock.held);
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
    CHECK(!lock.held);
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
    CHECK(!lock.held);
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

/* ---- where a map does not keep the lock ---------------------------------------------------- */

static int
cannot_be_mapped(const char *call)
{
    return strcmp(call, "mmap") == 0 ? ENODEV : 0;
}

/* As on overlayfs, whose maps let go of the description: the descriptor stays. */
static void
take_without_map(svi_lockfile *lock, const char *name)
{
    REQUIRE(svi_process_lock(NULL) == 0); /* registers what fork calls */
    svi_fault_hook = cannot_be_mapped;
    EQ(take(lock, name, NULL), 0);
    svi_fault_hook = NULL;
    svi_process_unlock();
    CHECK(svi_lockfile_is_held(lock));
    CHECK(lock->fd >= 0);
    EQ(fcntl(lock->fd, F_GETFD), FD_CLOEXEC);
}

static void
a_descriptor_keeps_what_no_map_keeps(void)
{
    svi_lockfile lock = SVI_LOCKFILE_INIT;
    svi_lockfile second = SVI_LOCKFILE_INIT;
    const char *name = world_name("kept");
    take_without_map(&lock, name);
    int fd = lock.fd;
    EQ(take(&second, name, NULL), SV_EBUSY);
    svi_lockfile_drop(&lock, true);
    EQ(fcntl(fd, F_GETFD), -1);
    EQ(world_files(), 0);
    take_without_map(&lock, name);
    take_without_map(&second, world_name("kept2"));
    svi_lockfile_drop(&lock, true); /* neither the first nor the last of the list is lost */
    svi_lockfile_drop(&second, true);
    EQ(world_files(), 0);
}

static void
a_forked_child_does_not_keep_the_descriptor(void)
{
    svi_lockfile lock = SVI_LOCKFILE_INIT;
    const char *name = world_name("kept");
    world_flags_clear();
    take_without_map(&lock, name);
    pid_t pid = world_fork(sleeper, NULL);
    REQUIRE(world_await(&world_flags[0], 1));
    svi_lockfile_drop(&lock, true);
    int fd = open(lock.path, O_RDWR | O_CREAT, 0600);
    EQ(flock(fd, LOCK_EX | LOCK_NB), 0);
    (void)close(fd);
    EQ(take(&lock, name, NULL), 0);
    svi_lockfile_drop(&lock, true);
    world_set(&world_flags[1], 1);
    EQ(world_wait(pid, WORLD_WAIT_MS), 0);
}

static int
fork_and_be_killed(void *name)
{
    svi_lockfile lock = SVI_LOCKFILE_INIT;
    take_without_map(&lock, name);
    pid_t pid = fork();
    if (pid == 0) {
        world_set(&world_flags[2], (uint64_t)getpid());
        (void)world_await(&world_flags[1], 1);
        world_exit(0);
    }
    return world_await(&world_flags[1], 1) ? 0 : 1;
}

static void
a_fork_of_a_killed_holder_does_not_keep_the_descriptor(void)
{
    svi_lockfile lock = SVI_LOCKFILE_INIT;
    const char *name = world_name("kept");
    world_flags_clear();
    pid_t pid = world_fork(fork_and_be_killed, (void *)(uintptr_t)name);
    REQUIRE(world_await(&world_flags[2], 1));
    EQ(take(&lock, name, NULL), SV_EBUSY);
    world_kill(pid);
    EQ(take(&lock, name, NULL), 0);
    svi_lockfile_drop(&lock, true);
    world_set(&world_flags[1], 1);
    EQ(world_wait((pid_t)svi_load_seq(&world_flags[2]), WORLD_WAIT_MS), 0);
}

/* Whoever got the number of our descriptor keeps it, and we say that the lock is lost. */
static void
a_descriptor_that_somebody_closed_is_noticed(void)
{
    svi_lockfile lock = SVI_LOCKFILE_INIT;
    take_without_map(&lock, world_name("kept"));
    int fd = lock.fd;
    (void)close(fd);
    CHECK(!svi_lockfile_is_held(&lock));
    EQ(open("/dev/null", O_RDWR), fd);
    CHECK(!svi_lockfile_is_held(&lock));
    svi_lockfile_drop(&lock, true);
    CHECK(fcntl(fd, F_GETFD) >= 0);
    (void)close(fd);
    CHECK(unlink(lock.path) == 0); /* it stayed: somebody else may hold it by now */
}

static void
an_adopted_descriptor_is_kept_too(void)
{
    svi_lockfile lock = SVI_LOCKFILE_INIT;
    svi_lockfile second = SVI_LOCKFILE_INIT;
    char path[SVI_PATH_BYTES];
    const char *name = world_name("kept");
    svi_path(path, world_directory(), ".", name, ".create");
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    EQ(flock(fd, LOCK_EX | LOCK_NB), 0);
    svi_fault_hook = cannot_be_mapped;
    EQ(svi_lockfile_adopt(&lock, fd, path, NULL), 0);
    svi_fault_hook = NULL;
    (void)close(fd);
    EQ(take(&second, name, NULL), SV_EBUSY);
    EQ(fcntl(lock.fd, F_GETFD), FD_CLOEXEC);
    svi_lockfile_drop(&lock, true);
    EQ(world_files(), 0);
}

/* As on a file system that takes locks and shows them to nobody. */
static int
locks_vanish(const char *call)
{
    struct flock request = {.l_type = F_UNLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};
    for (int fd = 3; fd < 64 && strcmp(call, "fcntl.test") == 0; fd++) {
        (void)fcntl(fd, F_OFD_SETLK, &request);
    }
    return 0;
}

static void
a_lock_that_cannot_be_seen_is_refused(void)
{
    svi_lockfile lock = SVI_LOCKFILE_INIT;
    sv_error err = {.message = ""};
    const char *name = world_name("unseen");
    svi_fault_hook = locks_vanish;
    EQ(take(&lock, name, &err), SV_EUNSUPPORTED);
    svi_fault_hook = NULL;
    HAS(err.message, lock.path);
    HAS(err.message, "lock_dir");
    CHECK(!lock.held);
    EQ(take(&lock, name, NULL), 0);
    svi_lockfile_drop(&lock, true);
}

/* ---- names that change hands --------------------------------------------------------------- */

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
    RUN(a_descriptor_keeps_what_no_map_keeps);
    RUN(a_forked_child_does_not_keep_the_descriptor);
    RUN(a_fork_of_a_killed_holder_does_not_keep_the_descriptor);
    RUN(a_descriptor_that_somebody_closed_is_noticed);
    RUN(an_adopted_descriptor_is_kept_too);
    RUN(a_lock_that_cannot_be_seen_is_refused);
    RUN(contents_are_replaced);
    RUN(what_cannot_be_a_lock_file_is_an_error);
    RUN(a_locked_descriptor_is_adopted);
    RUN(a_foreign_descriptor_is_not_adopted);
    return world_end();
}
