/* Becoming the owner of a pool and giving that up: a killed owner is followed at once. */
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "injection.h"

static sv_owner *owner;

static int
own_and_die(void *name)
{
    sv_owner *mine = NULL;
    EQ(sv_owner_acquire(name, NULL, "dead", &mine, NULL), 0);
    EQ(sv_ready_write(mine, NULL), 0);
    return raise(SIGKILL);
}

static void
before_dead_owner(const char *name)
{
    EQ(world_wait(world_fork(own_and_die, (void *)(uintptr_t)name), WORLD_WAIT_MS), 128 + SIGKILL);
}

static int
acquire(const char *name, sv_error *err)
{
    return sv_owner_acquire(name, NULL, NULL, &owner, err);
}

static void
settle(const char *name, int status)
{
    if (status != 0) {
        CHECK(owner == NULL);
        EQ(acquire(name, NULL), 0); /* nobody owns it */
    }
    EQ(sv_owner_held(owner), 1);
    EQ(sv_owner_probe(name, NULL, NULL, NULL, NULL), 1);
    EQ(sv_ready_clear(owner, NULL), 0);
    sv_owner_release(owner);
    owner = NULL;
}

/* Nobody is the owner, the next one is it at once, and leaves nothing. */
static void
after(const char *name)
{
    sv_owner *heir = NULL;
    EQ(sv_owner_probe(name, NULL, NULL, NULL, NULL), 0);
    EQ(sv_owner_acquire(name, NULL, NULL, &heir, NULL), 0);
    EQ(sv_ready_clear(heir, NULL), 0);
    sv_owner_release(heir);
    EQ(world_files(), 0);
}

static void
acquiring(void)
{
    INJECT(.what = "acquire", .verb = acquire, .settle = settle, .after = after, .calls = 12);
}

static void
acquiring_after_a_dead_owner(void)
{
    INJECT(.what = "inherit", .before = before_dead_owner, .verb = acquire, .settle = settle,
           .after = after, .calls = 12);
}

static void
arrange_owner(const char *name)
{
    EQ(sv_owner_acquire(name, NULL, NULL, &owner, NULL), 0);
}

static int
release(const char *name, sv_error *err)
{
    (void)name;
    (void)err;
    sv_owner_release(owner);
    owner = NULL;
    return 0;
}

static void
settle_released(const char *name, int status)
{
    EQ(status, 0);
    EQ(sv_owner_probe(name, NULL, NULL, NULL, NULL), 0);
}

static void
releasing(void)
{
    INJECT(.what = "release", .arrange = arrange_owner, .verb = release, .settle = settle_released,
           .after = after, .steps = 1, .calls = 3, .silent = true);
}

static int lock_fd = -1;

static void
arrange_locked(const char *name)
{
    lock_fd = open(world_path(name, ".lock"), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    EQ(flock(lock_fd, LOCK_EX | LOCK_NB), 0);
}

static int
adopt(const char *name, sv_error *err)
{
    return sv_owner_adopt(name, NULL, lock_fd, "adopted", &owner, err);
}

static void
settle_adopted(const char *name, int status)
{
    if (status != 0) {
        CHECK(fcntl(lock_fd, F_GETFD) >= 0); /* still the caller's */
        if (!world_exists(name, ".lock")) {
            (void)close(lock_fd);
            arrange_locked(name);
        }
        EQ(adopt(name, NULL), 0);
    }
    settle(name, 0);
}

static void
adopting(void)
{
    INJECT(.what = "adopt", .arrange = arrange_locked, .verb = adopt, .settle = settle_adopted,
           .after = after, .calls = 8);
}

/* An owner in the test, looked for from the child. */
static sv_owner *reigning;

static void
before_reign(const char *name)
{
    EQ(sv_owner_acquire(name, NULL, "reign", &reigning, NULL), 0);
}

static int
probe(const char *name, sv_error *err)
{
    char generation[SV_GENERATION_BYTES];
    int32_t pid = 0;
    int held = sv_owner_probe(name, NULL, generation, &pid, err);
    return held > 0 ? 0 : held;
}

static void
settle_probed(const char *name, int status)
{
    char generation[SV_GENERATION_BYTES];
    int32_t pid = 0;
    (void)status;
    EQ(sv_owner_probe(name, NULL, generation, &pid, NULL), 1);
    EQ(pid, getppid());
    EQ_STR(generation, "reign");
}

static void
after_reign(const char *name)
{
    EQ(sv_owner_held(reigning), 1);
    sv_owner_release(reigning);
    after(name);
}

static void
probing(void)
{
    INJECT(.what = "probe", .before = before_reign, .verb = probe, .settle = settle_probed,
           .after = after_reign, .calls = 4);
}

int
main(void)
{
    world_begin(115);
    RUN(acquiring);
    RUN(acquiring_after_a_dead_owner);
    RUN(releasing);
    RUN(adopting);
    RUN(probing);
    return world_end();
}
