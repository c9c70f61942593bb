/* Whole pools: an owner's reign from the lock to the last unlink, and those who follow it. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "error.h"
#include "os.h"
#include "segment.h"
#include "steps.h"

#define SECOND UINT64_C(1000000000)

typedef struct reign {
    sv_owner *owner;
    sv_segment *segment;
} reign;

/* Own and make the pool, with two chunks; not ready yet. */
static reign
begin_reign(const char *name, const char *generation)
{
    reign r = {NULL, NULL};
    sv_options options = world_options();
    sv_error err = {.message = ""};
    if (!EQ(sv_owner_acquire(name, NULL, generation, &r.owner, &err), 0) ||
        !EQ(sv_pool_create(r.owner, &options, &r.segment, &err), 0)) {
        printf("# %s\nBail out!\n", err.message);
        _exit(1);
    }
    (void)EQ(world_append(r.segment, 1), 0);
    (void)EQ(world_append(r.segment, 2), 0);
    return r;
}

static int
attach(const char *name, uint64_t timeout_ns, sv_segment **out, sv_error *err)
{
    return sv_pool_attach(name, NULL, NULL, timeout_ns, out, err);
}

static void
a_reign_from_begin_to_end(void)
{
    const char *name = world_name("reign");
    sv_segment *follower = NULL;
    sv_error err = {.message = ""};
    sv_info info;
    reign r = begin_reign(name, "first");
    EQ(sv_segment_info(r.segment, &info), 0);
    EQ(info.owned, 1);
    EQ_STR(info.generation, "first");
    EQ(sv_owner_live(r.segment), 1);
    EQ(sv_retired_get(r.segment), SV_RETIRED_NO);
    EQ(attach(name, 0, &follower, &err), SV_ETIMEDOUT); /* not ready */
    HAS(err.message, "not marked ready");
    CHECK(follower == NULL);
    EQ(sv_ready_write(r.owner, NULL), 0);
    EQ(attach(name, 0, &follower, &err), 0);
    EQ(world_stamp(follower, 1), 2);
    EQ(world_files(), 3);
    EQ(sv_pool_close(r.owner, r.segment, &err), 0);
    EQ(world_files(), 0);
    EQ(world_stamp(follower, 1), 2); /* those attached keep their data */
    EQ(sv_retired_get(follower), SV_RETIRED_CLOSED);
    EQ(sv_segment_close(follower, NULL), 0);
    EQ(attach(name, 0, &follower, &err), SV_ETIMEDOUT);
}

static void
rows_show_who_the_owner_is(void)
{
    const char *name = world_name("who");
    sv_row_info row = {.owner = 9};
    reign r = begin_reign(name, NULL);
    EQ(sv_rows(r.segment, &row, 1), 1);
    EQ(row.owner, 1);
    EQ(row.live, 1);
    EQ(sv_pool_close(r.owner, r.segment, NULL), 0);
}

static int
try_without_owning(void *argument)
{
    const reign *r = argument;
    sv_segment *segment = NULL;
    EQ(sv_pool_create(r->owner, NULL, &segment, NULL), SV_EFORKED);
    EQ(sv_pool_close(r->owner, r->segment, NULL), SV_EFORKED);
    EQ(sv_owner_live(r->segment), 1);
    EQ(sv_retired_get(r->segment), SV_RETIRED_NO);
    EQ(world_stamp(r->segment, 0), 1);
    EQ(sv_segment_close(r->segment, NULL), 0);
    return 0;
}

static void
a_child_cannot_reign(void)
{
    const char *name = world_name("child");
    sv_segment *segment = NULL;
    reign r = begin_reign(name, NULL);
    EQ(sv_ready_write(r.owner, NULL), 0);
    world_child(try_without_owning, &r);
    EQ(sv_owner_live(r.segment), 1);
    EQ(world_files(), 3);
    EQ(sv_pool_create(NULL, NULL, &segment, NULL), SV_EFORKED);
    EQ(sv_pool_close(NULL, NULL, NULL), SV_EFORKED);
    EQ(sv_pool_close(r.owner, r.segment, NULL), 0);
    EQ(world_files(), 0);
}

static void
a_reservation_holds_up_the_close(void)
{
    const char *name = world_name("held");
    sv_reservation reservation;
    sv_error err = {.message = ""};
    reign r = begin_reign(name, NULL);
    EQ(sv_reserve(r.segment, 0, &reservation, NULL), 0);
    EQ(sv_pool_close(r.owner, r.segment, &err), SV_EINUSE);
    EQ(sv_owner_held(r.owner), 1);
    sv_cancel(&reservation);
    EQ(sv_pool_close(r.owner, r.segment, &err), 0);
    EQ(world_files(), 0);
}

static void
closing_removes_only_this_reigns_segment(void)
{
    const char *name = world_name("exact");
    reign r = begin_reign(name, NULL);
    /* Somebody removed it and took the name over. */
    EQ(sv_segment_remove(name, world_directory(), NULL), 0);
    sv_segment *other = world_open(name, NULL, SV_OPEN_EXCLUSIVE);
    EQ(sv_pool_close(r.owner, r.segment, NULL), 0);
    CHECK(world_exists(name, ""));
    world_drop(other);
}

static void
a_pool_whose_owner_lives_is_not_replaced(void)
{
    const char *name = world_name("twice");
    reign r = begin_reign(name, NULL);
    sv_options options;
    sv_segment *other = NULL;
    sv_error err = {.code = 7};
    sv_options_init(&options);
    options.directory = world_directory();
    options.slot_count = 1;
    options.timeout_ns = WORLD_NEVER_NS; /* at once, or the program would take too long */
    EQ(sv_segment_open(name, &options, SV_OPEN_REPLACE, &other, &err), SV_EBUSY);
    HAS(err.message, "living owner");
    HAS(err.message, sv_owner_generation(r.owner));
    CHECK(other == NULL);
    CHECK(world_exists(name, ""));
    EQ(sv_pool_close(r.owner, r.segment, NULL), 0);
    EQ(sv_segment_open(name, &options, SV_OPEN_REPLACE, &other, &err), 0);
    world_drop(other);
}

static void
a_follower_waits_for_the_marker(void)
{
    const char *name = world_name("late");
    sv_segment *follower = NULL;
    sv_error err = {.code = 7};
    uint64_t started = svi_os_monotonic_ns();
    EQ(attach(name, SECOND / 10, &follower, &err), SV_ETIMEDOUT);
    uint64_t waited = svi_os_monotonic_ns() - started;
    CHECK(waited >= SECOND / 10);
    HAS(err.message, name);
    HAS(err.message, "0.1 s");
}

static int
own_a_little_later(void *name)
{
    svi_os_sleep_ns(SECOND / 10);
    reign r = begin_reign(name, NULL);
    svi_os_sleep_ns(SECOND / 10);
    EQ(sv_ready_write(r.owner, NULL), 0);
    EQ(world_await(&world_flags[0], 1), true);
    return sv_pool_close(r.owner, r.segment, NULL);
}

static void
a_follower_comes_in_as_soon_as_it_is_ready(void)
{
    const char *name = world_name("soon");
    sv_segment *follower = NULL;
    sv_error err = {.code = 7};
    world_flags_clear();
    pid_t pid = world_fork(own_a_little_later, (void *)(uintptr_t)name);
    EQ(attach(name, 20 * SECOND, &follower, &err), 0);
    EQ(err.code, 7); /* untouched on success */
    EQ(sv_size(follower), 2);
    EQ(sv_owner_live(follower), 1);
    world_set(&world_flags[0], 1);
    EQ(world_wait(pid, WORLD_WAIT_MS), 0);
    EQ(sv_retired_get(follower), SV_RETIRED_CLOSED);
    EQ(sv_segment_close(follower, NULL), 0);
    EQ(world_files(), 0);
}

static void
what_waiting_does_not_help_is_told_at_once(void)
{
    const char *name = world_name("wishes");
    sv_segment *follower = NULL;
    sv_options options;
    sv_error err = {.message = ""};
    reign r = begin_reign(name, NULL);
    EQ(sv_ready_write(r.owner, NULL), 0);
    sv_options_init(&options);
    options.dtype = "float32";
    EQ(sv_pool_attach(name, NULL, &options, WORLD_NEVER_NS, &follower, &err), SV_EMISMATCH);
    HAS(err.message, "uint64");
    EQ(sv_pool_attach("a/b", NULL, NULL, WORLD_NEVER_NS, &follower, NULL), SV_EINVAL);
    CHECK(follower == NULL);
    EQ(sv_pool_close(r.owner, r.segment, NULL), 0);
}

/* ---- an owner that dies -------------------------------------------------------------------- */

static int
reign_until_killed(void *name)
{
    reign r = begin_reign(name, "doomed");
    EQ(sv_ready_write(r.owner, NULL), 0);
    world_set(&world_flags[0], 1);
    return world_await(&world_flags[1], 1) ? 0 : 1;
}

static void
those_attached_learn_of_the_owners_death(void)
{
    const char *name = world_name("dead");
    sv_segment *follower = NULL;
    sv_segment *late = NULL;
    sv_error err = {.message = ""};
    world_flags_clear();
    pid_t pid = world_fork(reign_until_killed, (void *)(uintptr_t)name);
    REQUIRE(world_await(&world_flags[0], 1));
    EQ(attach(name, 0, &follower, &err), 0);
    EQ(sv_retired_get(follower), SV_RETIRED_NO);
    world_kill(pid);
    EQ(sv_owner_live(follower), 0);
    EQ(sv_retired_get(follower), SV_RETIRED_OWNER_DIED);
    EQ(world_stamp(follower, 0), 1);
    EQ(attach(name, 0, &late, &err), SV_ETIMEDOUT);
    HAS(err.message, "dead");

    reign r = begin_reign(name, "heir"); /* takes the leftovers over */
    EQ(attach(name, 0, &late, &err), SV_ETIMEDOUT);
    EQ(sv_ready_write(r.owner, NULL), 0);
    EQ(attach(name, 0, &late, &err), 0);
    EQ(sv_retired_get(late), SV_RETIRED_NO);
    EQ(sv_retired_get(follower), SV_RETIRED_OWNER_DIED);
    EQ(sv_segment_close(late, NULL), 0);
    EQ(sv_segment_close(follower, NULL), 0);
    EQ(sv_pool_close(r.owner, r.segment, NULL), 0);
    EQ(world_files(), 0);
}

static void
a_stale_marker_leads_nobody_to_a_new_segment(void)
{
    const char *name = world_name("stale");
    sv_segment *follower = NULL;
    sv_error err = {.message = ""};
    reign r = begin_reign(name, "new");
    int32_t pid = (int32_t)getpid();
    char text[128];
    (void)snprintf(text, sizeof text, "{\"generation\": \"old\", \"pid\": %d}\n", (int)pid);
    int fd = open(world_path(name, ".ready"), O_WRONLY | O_CREAT, 0600);
    EQ(write(fd, text, strlen(text)), strlen(text));
    (void)close(fd);
    EQ(attach(name, 0, &follower, &err), SV_ETIMEDOUT);
    HAS(err.message, "old");
    HAS(err.message, "new");
    EQ(world_living(r.segment), 1);
    EQ(sv_pool_close(r.owner, r.segment, NULL), 0);
    EQ(world_files(), 0);
}

static void
the_first_reason_stays(void)
{
    sv_segment *segment = world_segment(world_name("retire"), 1);
    EQ(sv_owner_live(segment), 0);
    EQ(sv_retired_get(segment), SV_RETIRED_NO); /* it never had an owner */
    sv_retire(segment, SV_RETIRED_PRODUCER);
    sv_retire(segment, SV_RETIRED_CLOSED);
    EQ(sv_retired_get(segment), SV_RETIRED_PRODUCER);
    world_drop(segment);
}

static const char *reigned;
static unsigned markers_seen;
static unsigned unlinks_seen;

static void
look_for_the_marker(const char *step)
{
    if (strcmp(step, "create.unlinked") == 0) {
        unlinks_seen++;
        markers_seen += world_exists(reigned, ".ready");
    }
}

static int
reign_and_die(void *name)
{
    reign r = begin_reign(name, "same");
    EQ(sv_ready_write(r.owner, NULL), 0);
    return raise(SIGKILL);
}

/* Generations alone would not do: here the heir has that of the dead owner, whose marker would lead
 * followers to a segment that is not filled yet. */
static void
the_marker_goes_before_the_segment(void)
{
    reigned = world_name("order");
    EQ(world_wait(world_fork(reign_and_die, (void *)(uintptr_t)reigned), WORLD_WAIT_MS),
       128 + SIGKILL);
    EQ(world_exists(reigned, ".ready"), true);
    svi_step_hook = look_for_the_marker;
    reign r = begin_reign(reigned, "same");
    svi_step_hook = NULL;
    EQ(unlinks_seen, 1);
    EQ(markers_seen, 0);
    EQ(sv_pool_close(r.owner, r.segment, NULL), 0);
    EQ(world_files(), 0);
}

/* ---- killed at every step ------------------------------------------------------------------ */

static void
before_nothing(const char *name)
{
    (void)name;
}

static int
victim_reigns(void *name)
{
    reign r = begin_reign(name, "victim");
    EQ(sv_ready_write(r.owner, NULL), 0);
    return sv_pool_close(r.owner, r.segment, NULL);
}

/* Whatever is left, nobody follows it, and the next owner makes a pool and leaves nothing. */
static void
after_reign(const char *name)
{
    sv_segment *follower = NULL;
    int status = attach(name, 0, &follower, NULL);
    CHECK(status == SV_ETIMEDOUT);
    reign r = begin_reign(name, "heir");
    EQ(sv_ready_write(r.owner, NULL), 0);
    EQ(attach(name, 0, &follower, NULL), 0);
    EQ(world_stamp(follower, 1), 2);
    EQ(sv_segment_close(follower, NULL), 0);
    world_audit(r.segment, 0, 0);
    EQ(sv_pool_close(r.owner, r.segment, NULL), 0);
    EQ(world_files(), 0);
}

static void
killed_while_reigning(void)
{
    CHECK(steps_kill_everywhere("pool", before_nothing, victim_reigns, after_reign) >= 20);
}

int
main(void)
{
    world_begin(55);
    RUN(a_reign_from_begin_to_end);
    RUN(rows_show_who_the_owner_is);
    RUN(a_child_cannot_reign);
    RUN(a_reservation_holds_up_the_close);
    RUN(closing_removes_only_this_reigns_segment);
    RUN(a_pool_whose_owner_lives_is_not_replaced);
    RUN(a_follower_waits_for_the_marker);
    RUN(a_follower_comes_in_as_soon_as_it_is_ready);
    RUN(what_waiting_does_not_help_is_told_at_once);
    RUN(those_attached_learn_of_the_owners_death);
    RUN(a_stale_marker_leads_nobody_to_a_new_segment);
    RUN(the_first_reason_stays);
    RUN(the_marker_goes_before_the_segment);
    RUN(killed_while_reigning);
    return world_end();
}
