/* Recovering: who recovers may die as well, and the next one finishes it. */
#include <signal.h>

#include "injection.h"
#include "steps.h"

static int
append_and_die(void *name)
{
    svi_testing_separate = true;
    sv_segment *segment = world_open(name, NULL, SV_OPEN_ATTACH);
    steps_kill_on("append.committed", 1); /* filled, not counted */
    return world_append(segment, 4);
}

/* Dead rows with pins and claims, and a slot that a dead appender filled and did not count. */
static void
before(const char *name)
{
    inject_segment_with_two_dead(name);
    EQ(world_wait(world_fork(append_and_die, (void *)(uintptr_t)name), WORLD_WAIT_MS),
       128 + SIGKILL);
    EQ(sv_size(inject_subject), 3);
}

static void
arrange(const char *name)
{
    inject_attach_surely(name); /* takes one of the dead rows, the others are for the verb */
}

static int
recover(const char *name, sv_error *err)
{
    (void)name;
    return sv_recover(inject_mine, NULL, err);
}

static void
settle(const char *name, int status)
{
    if (status != 0) {
        EQ(recover(name, NULL), 0);
    }
    EQ(sv_size(inject_mine), 4);
    EQ(world_living(inject_mine), 2);
    inject_detach();
}

static void
after(const char *name)
{
    EQ(sv_recover(inject_subject, NULL, NULL), 0);
    EQ(sv_size(inject_subject), 4);
    EQ(world_stamp(inject_subject, 3), 4);
    inject_audit(name);
}

static void
recovering(void)
{
    INJECT(.what = "recover", .before = before, .arrange = arrange, .verb = recover,
           .settle = settle, .after = after, .steps = 3, .calls = 6);
}

static void
settle_many(const char *name, int status)
{
    if (status != 0) {
        EQ(recover(name, NULL), 0);
    }
    world_audit(inject_mine, 0, 0);
    inject_detach();
}

/* Everything that is free is held by the dead. */
static void
recovering_many(void)
{
    INJECT(.what = "many", .before = inject_segment_exhausted, .arrange = arrange, .verb = recover,
           .settle = settle_many, .after = inject_audit, .steps = 8, .calls = 8);
}

int
main(void)
{
    world_begin(115);
    RUN(recovering);
    RUN(recovering_many);
    return world_end();
}
