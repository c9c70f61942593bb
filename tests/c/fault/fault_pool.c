/* Whole pools: created over the leftovers of a dead reign, followed, retired and closed. */
#include <signal.h>
#include <stdlib.h>

#include "injection.h"

static sv_owner *owner;

static int
create(const char *name, sv_error *err)
{
    sv_options options = world_options();
    (void)name;
    options.timeout_ns = 20000000;
    return sv_pool_create(owner, &options, &inject_mine, err);
}

static void
fill_and_mark(void)
{
    for (uint64_t i = 0; i < 3; i++) {
        EQ(world_append(inject_mine, i + 1), 0);
    }
    EQ(sv_ready_write(owner, NULL), 0);
}

static void
arrange_owner(const char *name)
{
    owner = NULL;
    inject_mine = NULL;
    EQ(sv_owner_acquire(name, NULL, NULL, &owner, NULL), 0);
}

static void
arrange_pool(const char *name)
{
    arrange_owner(name);
    EQ(create(name, NULL), 0);
    fill_and_mark();
}

static int
reign_and_die(void *name)
{
    svi_testing_separate = true;
    arrange_pool(name);
    return raise(SIGKILL);
}

static void
before_dead_reign(const char *name)
{
    EQ(world_wait(world_fork(reign_and_die, (void *)(uintptr_t)name), WORLD_WAIT_MS),
       128 + SIGKILL);
}

static int
follow(const char *name, sv_segment **out, sv_error *err)
{
    sv_options options = world_options();
    options.timeout_ns = 20000000;
    return sv_pool_attach(name, NULL, &options, 0, out, err);
}

static void
close_pool(void)
{
    EQ(sv_pool_close(owner, inject_mine, NULL), 0);
}

static void
settle_created(const char *name, int status)
{
    if (status != 0) {
        CHECK(inject_mine == NULL);
        EQ(create(name, NULL), 0);
    }
    fill_and_mark();
    sv_segment *follower = NULL;
    EQ(follow(name, &follower, NULL), 0);
    EQ(world_stamp(follower, 2), 3);
    EQ(sv_segment_close(follower, NULL), 0);
    close_pool();
}

/* Nobody follows what is left; the next owner makes a pool, and leaves nothing. */
static void
after(const char *name)
{
    sv_segment *follower = NULL;
    EQ(follow(name, &follower, NULL), SV_ETIMEDOUT);
    arrange_pool(name);
    EQ(follow(name, &follower, NULL), 0);
    EQ(sv_retired_get(follower), SV_RETIRED_NO);
    EQ(world_stamp(follower, 1), 2);
    EQ(sv_segment_close(follower, NULL), 0);
    world_audit(inject_mine, 0, 0);
    close_pool();
    EQ(world_files(), 0);
}

static void
creating(void)
{
    INJECT(.what = "newpool", .arrange = arrange_owner, .verb = create, .settle = settle_created,
           .after = after, .steps = 7, .calls = 30);
}

static void
creating_over_a_dead_reign(void)
{
    INJECT(.what = "heir", .before = before_dead_reign, .arrange = arrange_owner, .verb = create,
           .settle = settle_created, .after = after, .steps = 7, .calls = 30);
}

static int
end_reign(const char *name, sv_error *err)
{
    (void)name;
    return sv_pool_close(owner, inject_mine, err);
}

static void
settle_ended(const char *name, int status)
{
    if (status != 0) {
        EQ(end_reign(name, NULL), 0);
    }
    EQ(sv_owner_probe(name, NULL, NULL, NULL, NULL), 0);
    CHECK(!world_exists(name, ".ready"));
}

static void
ending(void)
{
    INJECT(.what = "endpool", .arrange = arrange_pool, .verb = end_reign, .settle = settle_ended,
           .after = after, .steps = 5, .calls = 12);
}

/* The reign lasts in the test; the child follows it. */
static void
before_reign(const char *name)
{
    arrange_pool(name);
    inject_subject = inject_mine;
}

static int
attach(const char *name, sv_error *err)
{
    return follow(name, &inject_mine, err);
}

static void
arrange_nothing(const char *name)
{
    (void)name;
    inject_mine = NULL;
}

static void
settle_attached(const char *name, int status)
{
    if (status != 0) {
        CHECK(inject_mine == NULL);
        EQ(attach(name, NULL), 0);
    }
    EQ(sv_retired_get(inject_mine), SV_RETIRED_NO);
    EQ(world_stamp(inject_mine, 0), 1);
    inject_detach();
}

static void
after_attached(const char *name)
{
    inject_mine = inject_subject;
    world_audit(inject_mine, 0, 0);
    EQ(world_living(inject_mine), 1);
    EQ(sv_owner_held(owner), 1);
    close_pool();
    after(name);
}

static void
following(void)
{
    INJECT(.what = "follow", .before = before_reign, .arrange = arrange_nothing, .verb = attach,
           .settle = settle_attached, .after = after_attached, .steps = 3, .calls = 15);
}

int
main(void)
{
    world_begin(115);
    RUN(creating);
    RUN(creating_over_a_dead_reign);
    RUN(ending);
    RUN(following);
    return world_end();
}
