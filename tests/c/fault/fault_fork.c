/*
 * Fork with views: the child sees its chunks, by a row of its own or by its parent's; whichever of the
 * two is killed, and wherever, nothing stays pinned.
 */
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "fork.h"
#include "injection.h"
#include "row.h"

static sv_view held[2];

/* What the child says on standard error about a hand-over that failed is not for this report. */
static void
be_quiet(void)
{
    int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    (void)dup2(null, STDERR_FILENO);
    (void)close(null);
}

static void
arrange(const char *name)
{
    be_quiet();
    inject_attach_surely(name);
    EQ(sv_pin(inject_mine, 0, &held[0]), 0);
    EQ(sv_pin(inject_mine, 2, &held[1]), 0);
}

/* One who writes keeps a writable map, which the hand-over uses. */
static void
arrange_writer(const char *name)
{
    arrange(name);
    EQ(world_publish(inject_mine, 2, 33), 0);
}

/* 0 when both views are whole, whether they were handed over or not. */
static int
look(void)
{
    static const uint64_t stamps[] = {1, 3};
    int wrong = 0;
    for (size_t i = 0; i < 2; i++) {
        sv_chunk_info info;
        uint64_t stamp = 0;
        sv_view_info(&held[i], &info);
        wrong += info.version == 0 || !world_whole(&held[i], &stamp) || stamp != stamps[i];
    }
    return wrong;
}

static int
fork_and_go_on(const char *name, sv_error *err)
{
    (void)name;
    (void)err;
    pid_t pid = fork();
    if (pid < 0) {
        return SV_ESYS;
    }
    if (pid == 0) {
        int wrong = look();
        sv_unpin(&held[0]);
        sv_unpin(&held[1]);
        sv_view mine;
        int status = sv_pin(inject_mine, 1, &mine); /* the handle works, by a row of its own */
        if (status == 0) {
            wrong += world_whole(&mine, &(uint64_t){0}) ? 0 : 8;
            sv_unpin(&mine);
        } else {
            wrong += status == SV_ESYS || status == SV_ENOMEM || status == SV_EROWS ? 0 : 16;
        }
        world_exit(wrong);
    }
    sv_unpin(&held[0]); /* before the child has looked, perhaps */
    int status = world_wait(pid, WORLD_WAIT_MS);
    CHECK(status == 0 || status == 128 + SIGKILL);
    return 0;
}

static void
settle(const char *name, int status)
{
    uint64_t stamp = 0;
    (void)name;
    EQ(status, 0);
    CHECK(world_whole(&held[1], &stamp));
    EQ(stamp, 3);
    sv_unpin(&held[1]);
    EQ(svi_row_own_pins(svi_mapping_of(inject_mine)), 0);
    inject_detach();
}

static void
a_reader_who_forks(void)
{
    INJECT(.what = "fork", .before = inject_segment, .arrange = arrange, .verb = fork_and_go_on,
           .settle = settle, .after = inject_audit, .steps = 5, .calls = 6, .who = INJECT_VICTIM,
           .silent = true);
}

static void
a_writer_who_forks(void)
{
    INJECT(.what = "writer", .before = inject_segment, .arrange = arrange_writer,
           .verb = fork_and_go_on, .settle = settle, .after = inject_audit, .steps = 5, .calls = 6,
           .who = INJECT_VICTIM, .silent = true);
}

static void
the_one_who_is_born(void)
{
    INJECT(.what = "born", .before = inject_segment, .arrange = arrange_writer,
           .verb = fork_and_go_on, .settle = settle, .after = inject_audit, .steps = 4, .calls = 6,
           .who = INJECT_ITS_CHILD, .silent = true);
}

static void
segment_of_two_rows(const char *name)
{
    sv_options options = world_options();
    options.max_rows = 2; /* the subject's and the victim's */
    inject_subject = world_open(name, &options, SV_OPEN_CREATE);
    for (uint64_t i = 0; i < 3; i++) {
        EQ(world_append(inject_subject, i + 1), 0);
    }
}

static void
a_reader_without_a_row_for_its_child(void)
{
    INJECT(.what = "share", .before = segment_of_two_rows, .arrange = arrange,
           .verb = fork_and_go_on, .settle = settle, .after = inject_audit, .steps = 2, .calls = 6,
           .who = INJECT_VICTIM, .silent = true);
}

static void
the_one_who_is_born_without_a_row(void)
{
    INJECT(.what = "shared", .before = segment_of_two_rows, .arrange = arrange_writer,
           .verb = fork_and_go_on, .settle = settle, .after = inject_audit, .steps = 0, .calls = 6,
           .who = INJECT_ITS_CHILD, .silent = true);
}

int
main(void)
{
    world_begin(115);
    RUN(a_reader_who_forks);
    RUN(a_writer_who_forks);
    RUN(the_one_who_is_born);
    RUN(a_reader_without_a_row_for_its_child);
    RUN(the_one_who_is_born_without_a_row);
    return world_end();
}
