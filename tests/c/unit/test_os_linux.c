/* The seam to the kernel: what the core relies on, tried on this very kernel. */
#include "os.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "world.h"

#define BYTE (SVI_LOCK_BASE + 7)

static int
scratch(void)
{
    int fd = svi_os_tmpfile(world_directory(), 0600);
    (void)CHECK(fd >= 0);
    (void)EQ(svi_os_truncate(fd, UINT64_C(2) * SVI_PAGE), 0);
    return fd;
}

static void
random_bytes_differ(void)
{
    unsigned char a[32] = {0};
    unsigned char b[32] = {0};
    EQ(svi_os_random(a, sizeof a), 0);
    EQ(svi_os_random(b, sizeof b), 0);
    CHECK(memcmp(a, b, sizeof a) != 0);
}

static void
clocks_and_sleep(void)
{
    uint64_t before = svi_os_monotonic_ns();
    svi_os_sleep_ns(2000000);
    CHECK(svi_os_monotonic_ns() - before >= 2000000);
    CHECK(svi_os_realtime_ns() > UINT64_C(1600000000000000000));
}

static void
opening_is_careful(void)
{
    const char *name = world_name("open");
    EQ(svi_os_open(world_path(name, ""), O_RDWR, 0), -ENOENT);
    EQ(symlink("/dev/null", world_path(name, "")), 0);
    EQ(svi_os_open(world_path(name, ""), O_RDWR, 0), -ELOOP);
    EQ(unlink(world_path(name, "")), 0);
    EQ(mkfifo(world_path(name, ""), 0600), 0);
    int fd = svi_os_open(world_path(name, ""), O_RDONLY, 0); /* does not wait for a writer */
    CHECK(fd >= 0);
    CHECK((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
    svi_os_close(fd);
    svi_os_close(-1);
    EQ(unlink(world_path(name, "")), 0);
}

static void
nameless_files_get_a_name(void)
{
    struct stat st;
    const char *name = world_name("link");
    int fd = scratch();
    EQ(svi_os_fchmod(fd, 0640), 0);
    EQ(svi_os_fstat(fd, &st), 0);
    EQ(st.st_nlink, 0);
    EQ(svi_os_link(fd, world_path(name, "")), 0);
    EQ(svi_os_link(fd, world_path(name, "")), -EEXIST);
    EQ(svi_os_stat(world_path(name, ""), &st), 0);
    EQ(st.st_mode & 07777, 0640);
    EQ(svi_os_unlink(world_path(name, "")), 0);
    EQ(svi_os_unlink(world_path(name, "")), -ENOENT);
    EQ(svi_os_stat(world_path(name, ""), &st), -ENOENT);
    EQ(svi_os_fstat(-1, &st), -EBADF);
    EQ(svi_os_fchmod(-1, 0600), -EBADF);
    EQ(svi_os_truncate(-1, 1), -EBADF);
    EQ(svi_os_tmpfile("/no/such/dir", 0600), -ENOENT);
    EQ(svi_os_rename("/no/such/dir/a", "/no/such/dir/b"), -ENOENT);
    svi_os_close(fd);
}

static void
reading_and_writing_are_complete(void)
{
    char text[16] = "";
    int fd = scratch();
    EQ(svi_os_pwrite(fd, "hello", 5, 2 * SVI_PAGE - 2), 0);
    EQ(svi_os_pread(fd, text, sizeof text, 2 * SVI_PAGE - 2), 5); /* the end of the file */
    EQ_STR(text, "hello");
    EQ(svi_os_pread(fd, text, sizeof text, 1 << 20), 0);
    EQ(svi_os_pread(-1, text, sizeof text, 0), -EBADF);
    EQ(svi_os_pwrite(-1, text, sizeof text, 0), -EBADF);
    svi_os_close(fd);
}

static void
space_is_reserved(void)
{
    struct stat st;
    int fd = scratch();
    EQ(svi_os_truncate(fd, 9u << 20), 0);
    EQ(svi_os_allocate(fd, 0, 9u << 20), 0);
    EQ(svi_os_fstat(fd, &st), 0);
    CHECK(st.st_blocks * 512 >= 9 << 20);
    EQ(svi_os_allocate(fd, 0, 0), 0);
    svi_os_close(fd);
}

static void
locks_of_two_descriptions_conflict_in_one_process(void)
{
    int first = scratch();
    int second = svi_os_reopen(first, O_RDWR);
    EQ(svi_os_lock_try(first, BYTE, true), 0);
    EQ(svi_os_lock_try(second, BYTE, true), -EAGAIN);
    EQ(svi_os_lock_try(second, BYTE, false), -EAGAIN);
    EQ(svi_os_lock_try(second, BYTE + 1, true), 0);
    EQ(svi_os_lock_test(second, BYTE), 1);
    EQ(svi_os_lock_test(first, BYTE), 0); /* an own lock never conflicts with itself */
    EQ(svi_os_unlock(first, BYTE), 0);
    EQ(svi_os_lock_test(second, BYTE), 0);
    EQ(svi_os_lock_try(first, BYTE, false), 0);
    EQ(svi_os_lock_try(second, BYTE, false), 0);
    EQ(svi_os_lock_test(second, BYTE), 1); /* a read lock stops a writer */
    EQ(svi_os_lock_try(-1, BYTE, true), -EBADF);
    EQ(svi_os_lock_test(-1, BYTE), -EBADF);
    EQ(svi_os_flock_try(first), 0);
    EQ(svi_os_flock_try(second), -EAGAIN);
    EQ(svi_os_flock_try(-1), -EBADF);
    svi_os_close(second);
    svi_os_close(first);
    EQ(svi_os_reopen(-1, O_RDWR), -ENOENT);
}

/* Lock BYTE through an anchor and close the descriptor. */
static void *
anchored(int probe, bool inherit)
{
    void *anchor = NULL;
    int fd = svi_os_reopen(probe, O_RDWR);
    (void)EQ(svi_os_map_anchor(fd, 0, SVI_PAGE, inherit, &anchor), 0);
    (void)EQ(svi_os_lock_try(fd, BYTE, true), 0);
    svi_os_close(fd);
    return anchor;
}

static int
idle(void *argument)
{
    (void)argument;
    world_set(&world_flags[0], 1);
    return world_await(&world_flags[1], 1) ? 0 : 1;
}

static void
an_anchor_keeps_the_lock_as_long_as_it_is_mapped(void)
{
    int probe = scratch();
    void *anchor = anchored(probe, false);
    EQ(svi_os_lock_test(probe, BYTE), 1);
    svi_os_unmap(anchor, SVI_PAGE);
    EQ(svi_os_lock_test(probe, BYTE), 0);
    svi_os_close(probe);
}

static void
an_anchor_is_inherited_only_when_asked(void)
{
    for (int inherit = 0; inherit < 2; inherit++) {
        int probe = scratch();
        void *anchor = anchored(probe, inherit != 0);
        world_flags_clear();
        pid_t pid = world_fork(idle, NULL);
        REQUIRE(world_await(&world_flags[0], 1));
        svi_os_unmap(anchor, SVI_PAGE);
        tap_context("inherit %d", inherit);
        EQ(svi_os_lock_test(probe, BYTE), inherit);
        world_kill(pid);
        EQ(svi_os_lock_test(probe, BYTE), 0);
        svi_os_close(probe);
    }
}

static int
anchor_and_wait(void *argument)
{
    (void)anchored(*(int *)argument, false);
    return idle(NULL);
}

static void
a_killed_process_drops_its_lock_even_as_a_zombie(void)
{
    int probe = scratch();
    siginfo_t info;
    world_flags_clear();
    pid_t pid = world_fork(anchor_and_wait, &probe);
    REQUIRE(world_await(&world_flags[0], 1));
    EQ(svi_os_lock_test(probe, BYTE), 1);
    EQ(kill(pid, SIGKILL), 0);
    EQ(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0); /* dead, and not yet reaped */
    EQ(svi_os_lock_test(probe, BYTE), 0);
    EQ(world_wait(pid, WORLD_WAIT_MS), 128 + SIGKILL);
    svi_os_close(probe);
}

static int
anchor_and_exec(void *argument)
{
    (void)anchored(*(int *)argument, false);
    world_set(&world_flags[0], 1);
    (void)world_await(&world_flags[1], 1);
    execl("/bin/sleep", "sleep", "30", (char *)NULL);
    return 1;
}

static void
exec_drops_the_lock(void)
{
    int probe = scratch();
    world_flags_clear();
    pid_t pid = world_fork(anchor_and_exec, &probe);
    REQUIRE(world_await(&world_flags[0], 1));
    EQ(svi_os_lock_test(probe, BYTE), 1);
    world_set(&world_flags[1], 1);
    int held = 1;
    for (int waited = 0; waited < WORLD_WAIT_MS && (held = svi_os_lock_test(probe, BYTE)) != 0;
         waited++) {
        svi_os_sleep_ns(1000000);
    }
    EQ(held, 0);
    EQ(kill(pid, 0), 0); /* it lives, and holds nothing */
    world_kill(pid);
    svi_os_close(probe);
}

static int
look_at_wiped(void *page)
{
    EQ(*(char *)page, 0);
    return 0;
}

static void
a_wiped_page_is_zero_in_a_child(void)
{
    void *page = NULL;
    EQ(svi_os_map_wipe_on_fork(SVI_PAGE, &page), 0);
    *(char *)page = 9;
    world_child(look_at_wiped, page);
    EQ(*(char *)page, 9);
    svi_os_unmap(page, SVI_PAGE);
    svi_os_unmap(NULL, SVI_PAGE);
}

static int
touch(void *page)
{
    struct rlimit none = {0, 0};
    (void)setrlimit(RLIMIT_CORE, &none);
    (void)signal(SIGSEGV, SIG_DFL);
    return *(volatile char *)page;
}

static void
memory_is_kept_from_children(void)
{
    void *page = NULL;
    int fd = scratch();
    EQ(svi_os_map(fd, SVI_PAGE, SVI_PAGE, true, &page), 0);
    EQ(svi_os_pass_to_children(page, SVI_PAGE, false), 0);
    EQ(world_wait(world_fork(touch, page), WORLD_WAIT_MS), 128 + SIGSEGV);
    EQ(svi_os_pass_to_children(page, SVI_PAGE, true), 0);
    EQ(world_wait(world_fork(touch, page), WORLD_WAIT_MS), 0);
    EQ(svi_os_pass_to_children((char *)page + 1, SVI_PAGE, true), -EINVAL);
    svi_os_dont_dump(page, SVI_PAGE);
    svi_os_unmap(page, SVI_PAGE);
    CHECK(svi_os_map(-1, 0, SVI_PAGE, true, &page) < 0);
    CHECK(svi_os_map_anchor(-1, 0, SVI_PAGE, false, &page) < 0);
    svi_os_close(fd);
}

static void
file_systems_and_limits_are_told(void)
{
    uint64_t free_bytes = 0;
    uint64_t total = 0;
    EQ(svi_os_is_tmpfs(world_directory()), 1);
    EQ(svi_os_is_tmpfs("/proc"), 0);
    EQ(svi_os_is_tmpfs("/no/such/dir"), -ENOENT);
    EQ(svi_os_free_bytes(world_directory(), &free_bytes, &total), 0);
    CHECK(free_bytes <= total);
    CHECK(total > 0);
    EQ(svi_os_free_bytes("/no/such/dir", &free_bytes, &total), -ENOENT);
    const char *limit = NULL;
    uint64_t allowed = 0;
    CHECK(svi_os_memory_free(&limit, &allowed) > 0);
    CHECK(limit != NULL);
    CHECK(allowed > 0);
    CHECK(svi_os_processors() >= 1);
}

static int
limit_files(void *argument)
{
    struct rlimit limit = {123456, 123456};
    (void)argument;
    EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    EQ(svi_os_file_limit(), 123456);
    return 0;
}

static void
the_file_limit_is_told(void)
{
    CHECK(svi_os_file_limit() > 0);
    world_child(limit_files, NULL);
}

static void
the_process_describes_itself(void)
{
    char command[64];
    char little[4];
    svi_os_command(command, sizeof command);
    HAS(command, "test_os_linux");
    svi_os_command(little, sizeof little);
    CHECK(strlen(little) <= 3);
    CHECK(svi_os_start_time() > 0);
    EQ(svi_os_start_time(), svi_os_start_time());
}

int
main(void)
{
    world_begin(50);
    RUN(random_bytes_differ);
    RUN(clocks_and_sleep);
    RUN(opening_is_careful);
    RUN(nameless_files_get_a_name);
    RUN(reading_and_writing_are_complete);
    RUN(space_is_reserved);
    RUN(locks_of_two_descriptions_conflict_in_one_process);
    RUN(an_anchor_keeps_the_lock_as_long_as_it_is_mapped);
    RUN(an_anchor_is_inherited_only_when_asked);
    RUN(a_killed_process_drops_its_lock_even_as_a_zombie);
    RUN(exec_drops_the_lock);
    RUN(a_wiped_page_is_zero_in_a_child);
    RUN(memory_is_kept_from_children);
    RUN(file_systems_and_limits_are_told);
    RUN(the_file_limit_is_told);
    RUN(the_process_describes_itself);
    return world_end();
}
