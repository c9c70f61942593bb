/* Cancelling a half-filled reservation. */
#include <string.h>

#include "injection.h"

static sv_reservation reservation;

static void
arrange(const char *name)
{
    inject_attach_surely(name);
    EQ(sv_reserve(inject_mine, 0, &reservation, NULL), 0);
    memset(reservation.data, 0xff, 512);
}

static int
cancel(const char *name, sv_error *err)
{
    (void)name;
    (void)err;
    sv_cancel(&reservation);
    return 0;
}

static void
settle(const char *name, int status)
{
    EQ(cancel(name, NULL), status); /* a second time: nothing happens */
    EQ(world_publish(inject_mine, 1, 77), 0);
    EQ(world_stamp(inject_mine, 1), 77);
    inject_detach();
}

static void
cancelling(void)
{
    INJECT(.what = "cancel", .before = inject_segment, .arrange = arrange, .verb = cancel,
           .settle = settle, .after = inject_audit, .steps = 1, .silent = true);
}

int
main(void)
{
    world_begin(60);
    RUN(cancelling);
    return world_end();
}
