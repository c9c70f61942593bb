/* One owner at a time, as long as its address space lives; the marker says which reign is ready. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "os.h"
#include "owner.h"
#include "steps.h"

static sv_owner *
acquire(const char *name, const char *generation)
{
    sv_owner *owner = NULL;
    sv_error err = {.message = ""};
    if (!EQ(sv_owner_acquire(name, NULL, generation, &owner, &err), 0)) {
        tap_note("%s", err.message);
    }
    return owner;
}

static void
an_owner_holds_the_lock_file(void)
{
    const char *name = world_name("owner");
    char generation[SV_GENERATION_BYTES] = "?";
    int32_t pid = -1;
    EQ(sv_owner_probe(name, NULL, generation, &pid, NULL), 0);
    EQ_STR(generation, "");
    EQ(pid, 0);
    sv_owner *owner = acquire(name, "reign-1");
    REQUIRE(owner != NULL);
    CHECK(world_exists(name, ".lock"));
    EQ(sv_owner_held(owner), 1);
    EQ_STR(sv_owner_generation(owner), "reign-1");
    EQ_STR(svi_owner_name(owner), name);
    EQ(sv_owner_probe(name, NULL, generation, &pid, NULL), 1);
    EQ_STR(generation, "reign-1");
    EQ(pid, getpid());
    EQ(sv_owner_probe(name, NULL, NULL, NULL, NULL), 1);
    sv_owner_release(owner);
    CHECK(!world_exists(name, ".lock"));
    EQ(sv_owner_probe(name, NULL, generation, &pid, NULL), 0);
    sv_owner_release(NULL);
    EQ(sv_owner_held(NULL), 0);
}

static void
a_second_owner_is_refused(void)
{
    const char *name = world_name("busy");
    sv_owner *owner = acquire(name, NULL);
    sv_owner *second = NULL;
    sv_error err = {.message = ""};
    char pid[16];
    EQ(strlen(sv_owner_generation(owner)), 32);
    EQ(sv_owner_acquire(name, NULL, NULL, &second, &err), SV_EBUSY);
    CHECK(second == NULL);
    EQ(err.code, SV_EBUSY);
    HAS(err.message, name);
    (void)snprintf(pid, sizeof pid, "pid %ld", (long)getpid());
    HAS(err.message, pid);
    sv_owner_release(owner);
    owner = acquire(name, NULL);
    sv_owner_release(owner);
}

static void
bad_arguments_are_refused(void)
{
    const char *name = world_name("bad");
    sv_owner *owner = NULL;
    sv_error err = {.message = ""};
    EQ(sv_owner_acquire(name, NULL, "two words", &owner, &err), SV_EINVAL);
    EQ(sv_owner_acquire(name, "/no/such/dir", NULL, &owner, &err), SV_ESYS);
    EQ(err.sys_errno, ENOENT);
    HAS(err.message, "/no/such/dir");
    CHECK(owner == NULL);
    EQ(world_files(), 0);
}

static int
own_until_killed(void *name)
{
    (void)acquire(name, "killed");
    world_set(&world_flags[0], 1);
    return world_await(&world_flags[1], 1) ? 0 : 1;
}

static void
a_killed_owner_is_followed_at_once(void)
{
    const char *name = world_name("killed");
    char generation[SV_GENERATION_BYTES];
    sv_owner *owner = NULL;
    sv_error err = {.message = ""};
    int32_t pid = 0;
    world_flags_clear();
    pid_t child = world_fork(own_until_killed, (void *)(uintptr_t)name);
    REQUIRE(world_await(&world_flags[0], 1));
    EQ(sv_owner_probe(name, NULL, generation, &pid, NULL), 1);
    EQ(pid, child);
    EQ(sv_owner_acquire(name, NULL, NULL, &owner, &err), SV_EBUSY);
    world_kill(child);
    EQ(sv_owner_probe(name, NULL, generation, &pid, NULL), 0);
    EQ_STR(generation, "killed"); /* what the file says about the last one */
    owner = acquire(name, "next");
    EQ(sv_owner_probe(name, NULL, generation, &pid, NULL), 1);
    EQ_STR(generation, "next");
    EQ(pid, getpid());
    sv_owner_release(owner);
    EQ(world_files(), 0);
}

static sv_owner *inherited;

static int
look_and_release(void *argument)
{
    (void)argument;
    sv_error err = {.message = ""};
    EQ(sv_owner_held(inherited), 0);
    EQ(sv_ready_write(inherited, &err), SV_EFORKED);
    HAS(err.message, "does not own");
    EQ(sv_ready_clear(inherited, &err), SV_EFORKED);
    sv_owner_release(inherited); /* frees memory, nothing else */
    world_set(&world_flags[0], 1);
    return world_await(&world_flags[1], 1) ? 0 : 1;
}

static void
a_forked_child_is_not_the_owner(void)
{
    const char *name = world_name("fork");
    world_flags_clear();
    inherited = acquire(name, "parent");
    pid_t pid = world_fork(look_and_release, NULL);
    REQUIRE(world_await(&world_flags[0], 1));
    EQ(sv_owner_held(inherited), 1);
    EQ(sv_owner_probe(name, NULL, NULL, NULL, NULL), 1);
    CHECK(world_exists(name, ".lock"));
    sv_owner_release(inherited);
    EQ(sv_owner_probe(name, NULL, NULL, NULL, NULL), 0); /* the living child keeps nothing */
    inherited = acquire(name, "again");
    sv_owner_release(inherited);
    world_set(&world_flags[1], 1);
    EQ(world_wait(pid, WORLD_WAIT_MS), 0);
}

static int
fork_a_sleeper_and_be_killed(void *name)
{
    (void)acquire(name, "father");
    pid_t pid = fork();
    if (pid == 0) {
        world_set(&world_flags[2], (uint64_t)getpid());
        (void)world_await(&world_flags[1], 1);
        world_exit(0);
    }
    return world_await(&world_flags[1], 1) ? 0 : 1;
}

static void
a_fork_of_a_killed_owner_does_not_keep_the_pool(void)
{
    const char *name = world_name("sleeper");
    world_flags_clear();
    pid_t pid = world_fork(fork_a_sleeper_and_be_killed, (void *)(uintptr_t)name);
    REQUIRE(world_await(&world_flags[2], 1));
    world_kill(pid);
    sv_owner *owner = acquire(name, "next");
    REQUIRE(owner != NULL);
    sv_owner_release(owner);
    world_set(&world_flags[1], 1);
    EQ(world_wait((pid_t)svi_load_seq(&world_flags[2]), WORLD_WAIT_MS), 0);
}

static int
own_and_exec(void *name)
{
    (void)acquire(name, "exec");
    world_set(&world_flags[0], 1);
    execl("/bin/sleep", "sleep", "30", (char *)NULL);
    return 1;
}

static void
exec_gives_the_pool_up(void)
{
    const char *name = world_name("exec");
    int held = 1;
    world_flags_clear();
    pid_t pid = world_fork(own_and_exec, (void *)(uintptr_t)name);
    REQUIRE(world_await(&world_flags[0], 1));
    for (int waited = 0; waited < WORLD_WAIT_MS && held != 0; waited++) {
        held = sv_owner_probe(name, NULL, NULL, NULL, NULL);
        svi_os_sleep_ns(1000000);
    }
    EQ(held, 0);
    EQ(kill(pid, 0), 0);
    sv_owner_release(acquire(name, "next"));
    world_kill(pid);
}

static void
closing_every_descriptor_keeps_the_pool(void)
{
    const char *name = world_name("closefrom");
    sv_owner *owner = acquire(name, NULL);
    for (int fd = 3; fd < 256; fd++) {
        (void)close(fd);
    }
    EQ(sv_owner_held(owner), 1);
    EQ(sv_owner_probe(name, NULL, NULL, NULL, NULL), 1);
    EQ(sv_ready_write(owner, NULL), 0);
    EQ(sv_ready_clear(owner, NULL), 0);
    sv_owner_release(owner);
    EQ(world_files(), 0);
}

static void
a_locked_descriptor_is_adopted(void)
{
    const char *name = world_name("adopt");
    char generation[SV_GENERATION_BYTES];
    sv_owner *owner = NULL;
    sv_error err = {.message = ""};
    int32_t pid = 0;
    int fd = open(world_path(name, ".lock"), O_RDWR | O_CREAT, 0600);
    EQ(flock(fd, LOCK_EX | LOCK_NB), 0);
    EQ(sv_owner_adopt(name, NULL, fd, "adopted", &owner, &err), 0);
    EQ(fcntl(fd, F_GETFD), -1); /* closed on success */
    EQ(sv_owner_held(owner), 1);
    EQ(sv_owner_probe(name, NULL, generation, &pid, NULL), 1);
    EQ_STR(generation, "adopted");
    EQ(pid, getpid());
    sv_owner *second = NULL;
    EQ(sv_owner_acquire(name, NULL, NULL, &second, NULL), SV_EBUSY);
    sv_owner_release(owner);
    EQ(world_files(), 0);

    owner = NULL;
    fd = open("/dev/null", O_RDWR);
    EQ(sv_owner_adopt(name, NULL, fd, NULL, &owner, &err), SV_EINVAL);
    CHECK(owner == NULL);
    CHECK(fcntl(fd, F_GETFD) >= 0);
    (void)close(fd);
}

static void
a_marker_is_written_read_and_cleared(void)
{
    const char *name = world_name("marker");
    char generation[SV_GENERATION_BYTES] = "same";
    sv_error err = {.message = ""};
    sv_owner *owner = acquire(name, "reign-7");
    EQ(sv_ready_read(name, NULL, generation, &err), SV_ENOENT);
    HAS(err.message, name);
    EQ_STR(generation, "same");
    EQ(sv_ready_clear(owner, &err), 0); /* a missing one is no error */
    EQ(sv_ready_write(owner, &err), 0);
    EQ(sv_ready_read(name, NULL, generation, &err), 0);
    EQ_STR(generation, "reign-7");
    EQ(world_files(), 2);
    EQ(sv_ready_write(owner, &err), 0); /* again is fine */
    EQ(sv_ready_clear(owner, &err), 0);
    EQ(world_files(), 1);
    sv_owner_release(owner);
    EQ(sv_ready_write(NULL, &err), SV_EFORKED);
    EQ(sv_ready_clear(NULL, &err), SV_EFORKED);
}

static void
a_strange_marker_is_no_marker(void)
{
    static const char *const texts[] = {"",
                                        "{}",
                                        "hello",
                                        "{\"generation\": \"\", \"pid\": 1}",
                                        "{\"generation\": \"a b\", \"pid\": 1}",
                                        "{\"generation\": \"unended"};
    const char *name = world_name("strange");
    char generation[SV_GENERATION_BYTES] = "same";
    sv_error err = {.message = ""};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        int fd = open(world_path(name, ".ready"), O_WRONLY | O_CREAT | O_TRUNC, 0600);
        EQ(write(fd, texts[i], strlen(texts[i])), strlen(texts[i]));
        (void)close(fd);
        tap_context("marker %s", texts[i]);
        bool unended = i == 5; /* cut short, but its generation is there to be read */
        int status = sv_ready_read(name, NULL, generation, &err);
        CHECK(status == SV_EFORMAT || (unended && status == 0));
        EQ_STR(generation, unended && status == 0 ? "unended" : "same");
    }
    EQ(unlink(world_path(name, ".ready")), 0);
    EQ(mkfifo(world_path(name, ".ready"), 0600), 0);
    CHECK(sv_ready_read(name, NULL, generation, &err) < 0); /* and does not wait for a writer */
    EQ(unlink(world_path(name, ".ready")), 0);
    EQ(mkdir(world_path(name, ".ready"), 0700), 0);
    EQ(sv_ready_read(name, NULL, generation, &err), SV_EFORMAT);
    HAS(err.message, "not a regular file");
    EQ(rmdir(world_path(name, ".ready")), 0);
    EQ(mkfifo(world_path(name, ".lock"), 0600), 0);
    CHECK(sv_owner_probe(name, NULL, generation, NULL, &err) <= 0);
    EQ(unlink(world_path(name, ".lock")), 0);
}

/* ---- killed at every step ------------------------------------------------------------------ */

static void
before_nothing(const char *name)
{
    (void)name;
}

static int
victim_reigns(void *name)
{
    sv_owner *owner = acquire(name, "victim");
    EQ(sv_ready_write(owner, NULL), 0);
    EQ(sv_ready_clear(owner, NULL), 0);
    sv_owner_release(owner);
    return 0;
}

static void
after_reign(const char *name)
{
    char generation[SV_GENERATION_BYTES];
    EQ(sv_owner_probe(name, NULL, NULL, NULL, NULL), 0);
    sv_owner *owner = acquire(name, "heir");
    EQ(sv_ready_write(owner, NULL), 0);
    EQ(sv_ready_read(name, NULL, generation, NULL), 0);
    EQ_STR(generation, "heir");
    EQ(sv_ready_clear(owner, NULL), 0);
    sv_owner_release(owner);
    EQ(world_files(), 0);
}

static void
killed_while_reigning(void)
{
    CHECK(steps_kill_everywhere("reign", before_nothing, victim_reigns, after_reign) >= 4);
}

static int
try_to_own(void *name)
{
    sv_owner *owner = NULL;
    svi_add_seq(&world_flags[0], 1);
    EQ(world_await(&world_flags[1], 1), true);
    int status = sv_owner_acquire(name, NULL, NULL, &owner, NULL);
    svi_add_seq(&world_flags[2], status == 0);
    svi_add_seq(&world_flags[3], 1);
    EQ(world_await(&world_flags[3], 6), true); /* all of them have tried */
    if (status == 0) {
        sv_owner_release(owner);
    } else {
        EQ(status, SV_EBUSY);
    }
    return 0;
}

static void
of_many_at_once_one_is_the_owner(void)
{
    for (int round = 0; round < 20; round++) {
        const char *name = world_name("many");
        pid_t pids[6];
        world_flags_clear();
        for (size_t i = 0; i < 6; i++) {
            pids[i] = world_fork(try_to_own, (void *)(uintptr_t)name);
        }
        REQUIRE(world_await(&world_flags[0], 6));
        world_set(&world_flags[1], 1);
        for (size_t i = 0; i < 6; i++) {
            EQ(world_wait(pids[i], WORLD_WAIT_MS), 0);
        }
        EQ(svi_load_seq(&world_flags[2]), 1);
        EQ(world_files(), 0);
    }
}

int
main(void)
{
    world_begin(55);
    RUN(an_owner_holds_the_lock_file);
    RUN(a_second_owner_is_refused);
    RUN(bad_arguments_are_refused);
    RUN(a_killed_owner_is_followed_at_once);
    RUN(a_forked_child_is_not_the_owner);
    RUN(a_fork_of_a_killed_owner_does_not_keep_the_pool);
    RUN(exec_gives_the_pool_up);
    RUN(closing_every_descriptor_keeps_the_pool);
    RUN(a_locked_descriptor_is_adopted);
    RUN(a_marker_is_written_read_and_cleared);
    RUN(a_strange_marker_is_no_marker);
    RUN(killed_while_reigning);
    RUN(of_many_at_once_one_is_the_owner);
    return world_end();
}
