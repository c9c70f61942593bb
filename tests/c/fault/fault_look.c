/* Looking around: checking, listing, counting and resetting change nothing that they should not. */
#include "injection.h"

static int
check(const char *name, sv_error *err)
{
    (void)name;
    return sv_check(inject_mine, err);
}

static void
settle_checked(const char *name, int status)
{
    if (status != 0) {
        EQ(status, SV_ENOMEM); /* the segment itself is sound */
        EQ(check(name, NULL), 0);
    }
    inject_detach();
}

static void
checking(void)
{
    INJECT(.what = "check", .before = inject_segment_with_dead, .arrange = inject_attach_surely,
           .verb = check, .settle = settle_checked, .after = inject_audit, .steps = 6, .calls = 1);
}

static int
note_segment(const sv_listed *item, void *context)
{
    (void)item;
    ++*(unsigned *)context;
    return 0;
}

static unsigned listed;

static int
list(const char *name, sv_error *err)
{
    (void)name;
    listed = 0;
    return sv_list(NULL, note_segment, &listed, err);
}

static void
settle_listed(const char *name, int status)
{
    CHECK(status != 0 || listed <= 1); /* what cannot be read now is left out */
    EQ(list(name, NULL), 0);
    EQ(listed, 1);
    inject_detach();
}

static void
listing(void)
{
    INJECT(.what = "list", .before = inject_segment, .arrange = inject_attach_surely, .verb = list,
           .settle = settle_listed, .after = inject_audit, .calls = 6);
}

static uint32_t rows_seen;

static int
count_rows(const char *name, sv_error *err)
{
    sv_row_info rows[4];
    (void)name;
    (void)err;
    rows_seen = sv_rows(inject_mine, rows, 4);
    (void)sv_handle_count(inject_mine);
    return 0;
}

static void
settle_rows(const char *name, int status)
{
    EQ(status, 0);
    EQ(rows_seen, 2); /* unknown counts as living: nobody is taken for dead by mistake */
    EQ(count_rows(name, NULL), 0);
    inject_detach();
}

static void
counting(void)
{
    INJECT(.what = "rows", .before = inject_segment, .arrange = inject_attach_surely,
           .verb = count_rows, .settle = settle_rows, .after = inject_audit, .calls = 4,
           .silent = true);
}

static int
reset(const char *name, sv_error *err)
{
    (void)name;
    return sv_stats_reset(inject_mine, err);
}

static void
settle_reset(const char *name, int status)
{
    sv_stats stats;
    if (status != 0) {
        EQ(reset(name, NULL), 0);
    }
    sv_stats_get(inject_mine, &stats);
    EQ(stats.replace_events + stats.sample_count, 0);
    inject_detach();
}

static void
resetting(void)
{
    INJECT(.what = "reset", .before = inject_segment, .arrange = inject_attach_surely,
           .verb = reset, .settle = settle_reset, .after = inject_audit, .calls = 2);
}

/* The verbs that return nothing: they do their work or leave it. */
static int
count_and_retire(const char *name, sv_error *err)
{
    (void)name;
    (void)err;
    sv_count_blocked(inject_mine, 3);
    (void)sv_counter_add(inject_mine, SV_COUNTER_LOADS, 5);
    sv_retire(inject_mine, SV_RETIRED_PRODUCER);
    uint32_t slot = 0;
    int unread = 0;
    int status = sv_refresh_next(inject_mine, &slot, &unread);
    return status != 0 ? status : 0;
}

static void
settle_retired(const char *name, int status)
{
    sv_stats stats;
    CHECK(status <= 0);
    EQ(count_and_retire(name, NULL), 0);
    EQ(sv_retired_get(inject_mine), SV_RETIRED_PRODUCER);
    sv_stats_get(inject_mine, &stats);
    CHECK(stats.blocked_replaces == 3 || stats.blocked_replaces == 6);
    uint64_t loads = sv_counter_add(inject_mine, SV_COUNTER_LOADS, 0);
    CHECK(loads == 5 || loads == 10);
    inject_detach();
}

static void
retiring(void)
{
    INJECT(.what = "retire", .before = inject_segment, .arrange = inject_attach_surely,
           .verb = count_and_retire, .settle = settle_retired, .after = inject_audit, .steps = 1,
           .calls = 2, .silent = true);
}

int
main(void)
{
    world_begin(60);
    RUN(checking);
    RUN(listing);
    RUN(counting);
    RUN(resetting);
    RUN(retiring);
    return world_end();
}
