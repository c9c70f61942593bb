/* Reserving: what a killed writer held comes back, and a failed reservation holds nothing. */
#include "injection.h"

static sv_reservation reservation;

static int
reserve(const char *name, sv_error *err)
{
    (void)name;
    return sv_reserve(inject_mine, UINT64_C(50000000), &reservation, err);
}

static void
settle(const char *name, int status)
{
    if (status != 0) {
        EQ(reserve(name, NULL), 0);
    }
    EQ(world_fill(&reservation, 77), 0);
    EQ(sv_publish(&reservation, 1, NULL), 0);
    EQ(world_stamp(inject_mine, 1), 77);
    inject_detach();
}

static void
reserving(void)
{
    INJECT(.what = "reserve", .before = inject_segment, .arrange = inject_attach_surely,
           .verb = reserve, .settle = settle, .after = inject_audit, .steps = 1, .calls = 3);
}

/* Nothing is free but what the dead hold: reserve recovers them. */
static void
reserving_what_the_dead_hold(void)
{
    INJECT(.what = "hungry", .before = inject_segment_exhausted, .arrange = inject_attach_surely,
           .verb = reserve, .settle = settle, .after = inject_audit, .steps = 9, .calls = 8);
}

int
main(void)
{
    world_begin(115);
    RUN(reserving);
    RUN(reserving_what_the_dead_hold);
    return world_end();
}
