/* Attaching, whatever fails and wherever it is killed: to a healthy segment, over the row of a dead
 * process, and in a forked child that uses a handle for the first time. */
#include "injection.h"

static void
settle(const char *name, int status)
{
    if (status != 0) {
        CHECK(inject_mine == NULL);
        inject_attach_surely(name);
    }
    EQ(world_living(inject_mine), 2);
    EQ(world_stamp(inject_mine, 1), 2);
    inject_detach();
}

static void
attaching(void)
{
    INJECT(.what = "attach", .before = inject_segment, .verb = inject_attach, .settle = settle,
           .after = inject_audit, .steps = 4, .calls = 12);
}

static void
attaching_over_the_row_of_the_dead(void)
{
    INJECT(.what = "takeover", .before = inject_segment_with_dead, .verb = inject_attach,
           .settle = settle, .after = inject_audit, .steps = 6, .calls = 12);
}

static sv_view view;

static int
pin_for_the_first_time(const char *name, sv_error *err)
{
    (void)name;
    (void)err;
    return sv_pin(inject_subject, 0, &view); /* the test's handle, inherited */
}

static void
settle_first_use(const char *name, int status)
{
    uint64_t stamp = 0;
    if (status != 0) {
        EQ(pin_for_the_first_time(name, NULL), 0);
    }
    CHECK(world_whole(&view, &stamp));
    EQ(stamp, 1);
    EQ(world_living(inject_subject), 2);
    sv_unpin(&view);
    EQ(sv_segment_close(inject_subject, NULL), 0);
}

static void
first_use_in_a_child(void)
{
    INJECT(.what = "firstuse", .before = inject_segment, .verb = pin_for_the_first_time,
           .settle = settle_first_use, .after = inject_audit, .steps = 4, .calls = 6,
           .silent = true, .inherits = true);
}

static int
join(const char *name, sv_error *err)
{
    (void)name;
    return sv_segment_join(inject_subject, err); /* the same, and says what is in the way */
}

static void
settle_joined(const char *name, int status)
{
    if (status != 0) {
        EQ(join(name, NULL), 0);
    }
    EQ(join(name, NULL), 0);
    EQ(pin_for_the_first_time(name, NULL), 0);
    settle_first_use(name, 0);
}

static void
joining_in_a_child(void)
{
    INJECT(.what = "join", .before = inject_segment, .verb = join, .settle = settle_joined,
           .after = inject_audit, .steps = 3, .calls = 6, .inherits = true);
}

/* The child opens what it inherited a handle of: one map, and a row of its own. */
static void
arrange_together(const char *name)
{
    (void)name;
    svi_testing_separate = false;
}

static void
settle_together(const char *name, int status)
{
    if (status != 0) {
        CHECK(inject_mine == NULL);
        EQ(inject_attach(name, NULL), 0);
    }
    EQ(world_living(inject_mine), 2);
    EQ(world_stamp(inject_mine, 1), 2);
    inject_detach();
    EQ(sv_segment_close(inject_subject, NULL), 0);
}

static void
opening_again_in_a_child(void)
{
    INJECT(.what = "reopen", .before = inject_segment, .arrange = arrange_together,
           .verb = inject_attach, .settle = settle_together, .after = inject_audit, .steps = 3,
           .calls = 12, .inherits = true);
}

int
main(void)
{
    world_begin(115);
    RUN(attaching);
    RUN(attaching_over_the_row_of_the_dead);
    RUN(first_use_in_a_child);
    RUN(joining_in_a_child);
    RUN(opening_again_in_a_child);
    return world_end();
}
