/* Making a segment: under a free name, over an old one, and as the recorded owner. */
#include "injection.h"

static int open_flags;
static sv_options open_options;

static void
before_old(const char *name)
{
    EQ(sv_segment_close(world_segment(name, 2), NULL), 0);
}

static int
create(const char *name, sv_error *err)
{
    open_options.timeout_ns = 20000000;
    return sv_segment_open(name, &open_options, open_flags, &inject_mine, err);
}

static void
settle(const char *name, int status)
{
    if (status != 0) {
        CHECK(inject_mine == NULL);
        CHECK(!world_exists(name, "") || open_flags == SV_OPEN_REPLACE);
        EQ(create(name, NULL), 0); /* nothing stands in its way */
    }
    EQ(sv_size(inject_mine), 0);
    EQ(world_append(inject_mine, 1), 0);
    world_audit(inject_mine, 0, 0);
    inject_detach();
}

/* The name is absent or whole; whoever comes next gets a good segment, and nothing is left. */
static void
after_making(const char *name)
{
    CHECK(!world_exists(name, "") || world_try_open(name, NULL, SV_OPEN_ATTACH, NULL) == 0);
    sv_segment *segment = world_open(name, NULL, SV_OPEN_CREATE);
    while (sv_size(segment) < 3) {
        EQ(world_append(segment, 1 + sv_size(segment)), 0);
    }
    inject_subject = segment;
    inject_audit(name);
}

static void
make_everywhere(const char *what, int flags, void (*before)(const char *name), unsigned steps)
{
    const injection all = {.what = what,
                           .before = before,
                           .verb = create,
                           .settle = settle,
                           .after = after_making,
                           .steps = steps,
                           .calls = 30};
    open_flags = flags;
    inject_everywhere(&all);
}

static void
under_a_free_name(void)
{
    open_options = world_options();
    make_everywhere("exclusive", SV_OPEN_EXCLUSIVE, NULL, 6);
}

static void
as_the_recorded_owner(void)
{
    open_options = world_options();
    open_options.owned = 1;
    make_everywhere("owned", SV_OPEN_CREATE, NULL, 6);
}

static void
over_an_old_one(void)
{
    open_options = world_options();
    make_everywhere("replace", SV_OPEN_REPLACE, before_old, 7);
}

int
main(void)
{
    world_begin(115);
    RUN(under_a_free_name);
    RUN(as_the_recorded_owner);
    RUN(over_an_old_one);
    return world_end();
}
