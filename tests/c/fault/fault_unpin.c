/* Giving views back, the last of them after the handle was closed: then it unmaps everything. */
#include "injection.h"
#include "row.h"

static sv_view views[2];

static void
arrange(const char *name)
{
    inject_attach_surely(name);
    EQ(world_publish(inject_mine, 2, 33), 0); /* the writable map is kept from now on */
    EQ(sv_pin(inject_mine, 0, &views[0]), 0);
    EQ(sv_pin(inject_mine, 1, &views[1]), 0);
}

static int
unpin(const char *name, sv_error *err)
{
    (void)name;
    (void)err;
    sv_unpin(&views[0]);
    sv_unpin(&views[1]);
    return 0;
}

static void
settle(const char *name, int status)
{
    (void)name;
    EQ(status, 0);
    EQ(svi_row_own_pins(svi_mapping_of(inject_mine)), 0);
    inject_detach();
}

static void
unpinning(void)
{
    INJECT(.what = "unpin", .before = inject_segment, .arrange = arrange, .verb = unpin,
           .settle = settle, .after = inject_audit, .steps = 2, .silent = true);
}

static void
arrange_closed(const char *name)
{
    arrange(name);
    inject_detach();
}

static void
settle_unmapped(const char *name, int status)
{
    (void)name;
    EQ(status, 0);
    EQ(world_living(inject_subject), 1); /* the test */
}

static void
unpinning_after_the_close(void)
{
    INJECT(.what = "lastview", .before = inject_segment, .arrange = arrange_closed, .verb = unpin,
           .settle = settle_unmapped, .after = inject_audit, .steps = 3, .calls = 4,
           .silent = true);
}

int
main(void)
{
    world_begin(60);
    RUN(unpinning);
    RUN(unpinning_after_the_close);
    return world_end();
}
