/* Removing a segment: the name is there or gone, and those attached keep their data. */
#include "injection.h"

static sv_info info;

static void
before(const char *name)
{
    inject_segment(name);
    EQ(sv_segment_info(inject_subject, &info), 0);
}

static int
remove_it(const char *name, sv_error *err)
{
    return sv_segment_remove(name, NULL, err);
}

static int
remove_exactly(const char *name, sv_error *err)
{
    return sv_segment_remove_exact(name, NULL, info.inode, info.generation, err);
}

static void
settle(const char *name, int status)
{
    if (status != 0) {
        CHECK(world_exists(name, ""));
        EQ(remove_it(name, NULL), 0);
    }
    CHECK(!world_exists(name, ""));
}

static void
removing(void)
{
    INJECT(.what = "remove", .before = before, .verb = remove_it, .settle = settle,
           .after = inject_audit, .calls = 2);
}

static void
removing_exactly(void)
{
    INJECT(.what = "exact", .before = before, .verb = remove_exactly, .settle = settle,
           .after = inject_audit, .steps = 1, .calls = 10);
}

int
main(void)
{
    world_begin(60);
    RUN(removing);
    RUN(removing_exactly);
    return world_end();
}
