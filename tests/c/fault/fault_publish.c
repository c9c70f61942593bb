/* Publishing: the slot holds the old chunk or the new one, whole. */
#include "injection.h"

static sv_reservation reservation;

static void
arrange(const char *name)
{
    inject_attach_surely(name);
    EQ(sv_reserve(inject_mine, 0, &reservation, NULL), 0);
    EQ(world_fill(&reservation, 77), 0);
}

static int
publish(const char *name, sv_error *err)
{
    (void)name;
    return sv_publish(&reservation, 1, err);
}

static void
settle(const char *name, int status)
{
    if (status != 0) {
        EQ(world_stamp(inject_mine, 1), 2);
        EQ(publish(name, NULL), 0); /* the reservation was left as it was */
    }
    EQ(world_stamp(inject_mine, 1), 77);
    inject_detach();
}

static void
after(const char *name)
{
    uint64_t stamp = world_stamp(inject_subject, 1);
    CHECK(stamp == 2 || stamp == 77);
    EQ(world_publish(inject_subject, 1, 5), 0);
    EQ(world_stamp(inject_subject, 1), 5);
    inject_audit(name);
}

static void
publishing(void)
{
    INJECT(.what = "publish", .before = inject_segment, .arrange = arrange, .verb = publish,
           .settle = settle, .after = after, .steps = 6);
}

/* Views of the old chunk are alive, in a dead process and in the test: both keep it. */
static sv_view kept;

static void
before_pinned(const char *name)
{
    inject_segment_with_dead(name);
    EQ(sv_pin(inject_subject, 1, &kept), 0);
}

static void
after_pinned(const char *name)
{
    uint64_t stamp = 0;
    CHECK(world_whole(&kept, &stamp));
    EQ(stamp, 2);
    sv_unpin(&kept);
    after(name);
}

static void
publishing_under_a_view(void)
{
    INJECT(.what = "underview", .before = before_pinned, .arrange = arrange, .verb = publish,
           .settle = settle, .after = after_pinned, .steps = 6);
}

int
main(void)
{
    world_begin(115);
    RUN(publishing);
    RUN(publishing_under_a_view);
    return world_end();
}
