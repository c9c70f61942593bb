/* Closing the last handle: the row is given back, or recovered. */
#include "injection.h"

static void
arrange(const char *name)
{
    inject_attach_surely(name);
    EQ(world_publish(inject_mine, 0, 11), 0); /* with the writable map kept */
}

static int
detach(const char *name, sv_error *err)
{
    (void)name;
    return sv_segment_close(inject_mine, err);
}

static void
settle(const char *name, int status)
{
    (void)name;
    EQ(status, 0);                       /* closing cannot fail */
    EQ(world_living(inject_subject), 1); /* the test */
}

static void
detaching(void)
{
    INJECT(.what = "detach", .before = inject_segment, .arrange = arrange, .verb = detach,
           .settle = settle, .after = inject_audit, .steps = 1, .calls = 5);
}

int
main(void)
{
    world_begin(60);
    RUN(detaching);
    return world_end();
}
