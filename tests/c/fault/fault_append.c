/* Appending: the fourth slot is empty or whole, and counted as soon as anybody looks after it. */
#include "injection.h"

static int
append(const char *name, sv_error *err)
{
    sv_reservation reservation;
    uint32_t slot = 99;
    (void)name;
    int status = sv_reserve(inject_mine, 0, &reservation, err);
    if (status != 0) {
        return status;
    }
    EQ(world_fill(&reservation, 4), 0);
    if ((status = sv_publish_next(&reservation, &slot, err)) != 0) {
        sv_cancel(&reservation);
        return status;
    }
    EQ(slot, 3);
    return 0;
}

static void
settle(const char *name, int status)
{
    if (status != 0) {
        EQ(sv_size(inject_mine), 3);
        EQ(append(name, NULL), 0);
    }
    EQ(sv_size(inject_mine), 4);
    EQ(world_stamp(inject_mine, 3), 4);
    inject_detach();
}

static void
after(const char *name)
{
    EQ(sv_recover(inject_subject, NULL, NULL), 0);
    if (sv_size(inject_subject) == 3) {
        EQ(world_append(inject_subject, 4), 0); /* the slot is not lost */
    }
    EQ(sv_size(inject_subject), 4);
    EQ(world_stamp(inject_subject, 3), 4);
    inject_audit(name);
}

static void
appending(void)
{
    INJECT(.what = "append", .before = inject_segment, .arrange = inject_attach_surely,
           .verb = append, .settle = settle, .after = after, .steps = 5, .calls = 3);
}

/* The whole verb at once, in a segment whose free buffers are all held by the dead. */
static int
append_whole(const char *name, sv_error *err)
{
    (void)name;
    (void)err;
    return world_append(inject_mine, 4);
}

static void
settle_whole(const char *name, int status)
{
    if (status != 0) {
        EQ(append_whole(name, NULL), 0);
    }
    EQ(world_stamp(inject_mine, 3), 4);
    inject_detach();
}

static void
appending_among_the_dead(void)
{
    INJECT(.what = "deadappend", .before = inject_segment_exhausted,
           .arrange = inject_attach_surely, .verb = append_whole, .settle = settle_whole,
           .after = after, .steps = 12, .calls = 8, .silent = true);
}

int
main(void)
{
    world_begin(115);
    RUN(appending);
    RUN(appending_among_the_dead);
    return world_end();
}
