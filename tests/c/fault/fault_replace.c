/* Replacing in one call: of a free slot, and of one that a dead process has pinned. */
#include "injection.h"

static int
replace(const char *name, sv_error *err)
{
    (void)name;
    (void)err;
    return world_replace(inject_mine, 1, 77);
}

static void
settle(const char *name, int status)
{
    if (status != 0) {
        EQ(world_stamp(inject_mine, 1), 2);
        EQ(replace(name, NULL), 0);
    }
    EQ(world_stamp(inject_mine, 1), 77);
    inject_detach();
}

static void
after(const char *name)
{
    uint64_t stamp = world_stamp(inject_subject, 1);
    CHECK(stamp == 2 || stamp == 77);
    EQ(world_replace(inject_subject, 1, 5), 0);
    EQ(world_stamp(inject_subject, 1), 5);
    inject_audit(name);
}

static void
replacing(void)
{
    INJECT(.what = "replace", .before = inject_segment, .arrange = inject_attach_surely,
           .verb = replace, .settle = settle, .after = after, .steps = 7, .calls = 3,
           .silent = true);
}

static void
replacing_what_the_dead_have_pinned(void)
{
    INJECT(.what = "deadpins", .before = inject_segment_with_dead, .arrange = inject_attach_surely,
           .verb = replace, .settle = settle, .after = after, .steps = 7, .calls = 3,
           .silent = true);
}

int
main(void)
{
    world_begin(115);
    RUN(replacing);
    RUN(replacing_what_the_dead_have_pinned);
    return world_end();
}
