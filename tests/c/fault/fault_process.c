/* The first call of a process ever, which makes the page that forks wipe and registers the fork
 * handlers. The test's own process makes no such call. */
#include "injection.h"

static int
make_and_leave(void *name)
{
    return sv_segment_close(world_segment(name, 3), NULL);
}

static void
before(const char *name)
{
    world_child(make_and_leave, (void *)(uintptr_t)name);
}

static void
settle(const char *name, int status)
{
    if (status != 0) {
        CHECK(inject_mine == NULL);
        inject_attach_surely(name);
    }
    EQ(world_living(inject_mine), 1);
    EQ(world_stamp(inject_mine, 1), 2);
    inject_detach();
}

static int
audit(void *name)
{
    inject_subject = world_open(name, NULL, SV_OPEN_ATTACH);
    inject_audit(name);
    return 0;
}

static void
after(const char *name)
{
    world_child(audit, (void *)(uintptr_t)name);
}

static void
first_call(void)
{
    INJECT(.what = "first", .before = before, .verb = inject_attach, .settle = settle,
           .after = after, .steps = 2, .calls = 15, .cold = true);
}

static int
create(const char *name, sv_error *err)
{
    sv_options options = world_options();
    options.timeout_ns = 20000000;
    return sv_segment_open(name, &options, SV_OPEN_EXCLUSIVE, &inject_mine, err);
}

static void
settle_created(const char *name, int status)
{
    if (status != 0) {
        CHECK(inject_mine == NULL);
        EQ(create(name, NULL), 0);
    }
    world_audit(inject_mine, 0, 0);
    inject_detach();
}

static int
audit_made(void *name)
{
    inject_subject = world_open(name, NULL, SV_OPEN_CREATE);
    inject_audit(name);
    return 0;
}

static void
after_made(const char *name)
{
    world_child(audit_made, (void *)(uintptr_t)name);
}

static void
first_call_creates(void)
{
    INJECT(.what = "firstmade", .verb = create, .settle = settle_created, .after = after_made,
           .steps = 6, .calls = 30, .cold = true);
}

int
main(void)
{
    world_begin(60);
    RUN(first_call);
    RUN(first_call_creates);
    return world_end();
}
