/* Making a segment takes seconds for gigabytes, and so does giving one back: meanwhile the rest of the
 * process goes on, and a child that is forked has nothing of it. */
#include "segment.h"

#include <dirent.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "blocks.h"
#include "error.h"
#include "faults.h"
#include "fork.h"
#include "os.h"

#define CHUNK_BYTES (UINT64_C(3) << 20) /* room for a huge page */

/* ---- a verb that stops on its way ---------------------------------------------------------- */

static const char *subject_name;
static sv_segment *subject;

/* Step or system call at which the thread of the verb stops, once. */
static const char *pause_where;
static _Thread_local bool pause_me;

static int
pause_here(const char *where)
{
    if (pause_me && strcmp(where, pause_where) == 0 && svi_load_seq(&world_flags[0]) == 0) {
        world_set(&world_flags[0], 1);
        (void)world_await(&world_flags[1], 1);
    }
    return 0;
}

static void
pause_at_step(const char *step)
{
    (void)pause_here(step);
}

static void *
run_slowly(void *verb)
{
    void (*const *run)(void) = verb;
    pause_me = true;
    (*run)();
    world_set(&world_flags[2], 1);
    return NULL;
}

/* Run the verb in a thread; `meanwhile` in this one, as soon as it has come to `where`. */
static void
run_beside(const char *where, void (*verb)(void), void (*meanwhile)(void))
{
    pthread_t thread;
    world_flags_clear();
    pause_where = where;
    svi_step_hook = pause_at_step;
    svi_fault_hook = pause_here;
    tap_context("at %s", where);
    REQUIRE(pthread_create(&thread, NULL, run_slowly, &verb) == 0);
    if (world_await(&world_flags[0], 1)) {
        meanwhile();
        EQ(svi_load_seq(&world_flags[2]), 0); /* it has not gone on because it lost patience */
    }
    world_set(&world_flags[1], 1);
    EQ(pthread_join(thread, NULL), 0);
    svi_step_hook = NULL;
    svi_fault_hook = NULL;
    tap_context("%s", "");
}

static sv_options
large_options(void)
{
    sv_options options = world_options();
    options.chunk_size = CHUNK_BYTES;
    return options;
}

static void
verb_create(void)
{
    const sv_options options = large_options();
    subject = world_open(subject_name, &options, SV_OPEN_CREATE);
}

static void
verb_replace(void)
{
    const sv_options options = large_options();
    subject = world_open(subject_name, &options, SV_OPEN_REPLACE);
}

static void
verb_close(void)
{
    EQ(sv_segment_close(subject, NULL), 0);
}

static void
verb_remove(void)
{
    EQ(sv_segment_remove(subject_name, NULL, NULL), 0);
}

static void
verb_remove_exact(void)
{
    sv_info info;
    EQ(sv_segment_info(subject, &info), 0);
    EQ(sv_segment_remove_exact(subject_name, NULL, info.inode, info.generation, NULL), 0);
}

static void
verb_remove_block(void)
{
    EQ(sv_block_remove(subject, NULL), 0);
}

static void
verb_rows(void)
{
    sv_row_info rows[16];
    EQ(sv_rows(subject, rows, 16), 1);
    EQ(rows[0].live, 1);
}

static void
verb_count_handles(void)
{
    EQ(sv_handle_count(subject), 1);
}

static void
verb_recover(void)
{
    EQ(sv_recover(subject, NULL, NULL), 0);
}

/* ---- the others go on ---------------------------------------------------------------------- */

static int
read_what_was_inherited(void *view)
{
    uint64_t stamp = 0;
    CHECK(world_whole(view, &stamp));
    EQ(stamp, 1);
    sv_unpin(view);
    return 0;
}

static void
others_go_on(void)
{
    sv_view view;
    sv_segment *other = world_segment(world_name("other"), 2);
    REQUIRE(sv_pin(other, 0, &view) == 0); /* the first, which takes a look at its cells */
    world_child(read_what_was_inherited, &view);
    sv_unpin(&view);
    EQ(world_publish(other, 0, 3), 0);
    EQ(sv_recover(other, NULL, NULL), 0);
    EQ(world_living(other), 1);
    world_drop(other);
}

static void
making_keeps_nobody_waiting(void)
{
    subject_name = world_name("large");
    run_beside("create.reserving", verb_create, others_go_on);
    EQ(sv_segment_close(subject, NULL), 0);
    run_beside("create.unlinked", verb_replace, others_go_on);
    world_drop(subject);
}

static void
giving_back_keeps_nobody_waiting(void)
{
    subject_name = world_name("large");
    verb_create();
    run_beside("detach.unmapping", verb_close, others_go_on);
    run_beside("remove.unlinked", verb_remove, others_go_on);
    verb_create();
    run_beside("remove.unlinked", verb_remove_exact, others_go_on);
    verb_close();
    subject = block_of(5);
    run_beside("block.emptied", verb_remove_block, others_go_on);
    verb_close();
}

/* A hundred thousand buffers and a thousand rows take a while to be looked at. */
static void
looking_around_keeps_nobody_waiting(void)
{
    subject_name = world_name("large");
    verb_create();
    run_beside("fcntl.test", verb_rows, others_go_on);
    run_beside("fcntl.test", verb_count_handles, others_go_on);
    run_beside("fcntl.test", verb_recover, others_go_on);
    world_drop(subject);
}

/* A look that ends after the last close unmaps in its place. */
static void
close_the_subject(void)
{
    const svi_mapping *m = svi_mapping_of(subject);
    EQ(sv_segment_close(subject, NULL), 0);
    CHECK(m->mapped);
}

static void
a_look_keeps_what_it_looks_at(void)
{
    subject_name = world_name("looked");
    verb_create();
    const svi_mapping *m = svi_mapping_of(subject);
    run_beside("fcntl.test", verb_rows, close_the_subject);
    CHECK(!m->mapped);
    verb_remove();
}

/* ---- children that are forked meanwhile ---------------------------------------------------- */

static bool
has_part(const char *text)
{
    return strstr(text, "/#") != NULL || strstr(text, subject_name) != NULL;
}

/* Descriptors and maps of this process that belong to nameless files or to the subject. */
static int
find_nothing_of_it(void *ignored)
{
    char text[PATH_MAX + 64];
    FILE *maps = fopen("/proc/self/maps", "re");
    DIR *descriptors = opendir("/proc/self/fd");
    (void)ignored;
    CHECK(maps != NULL && descriptors != NULL);
    while (maps != NULL && fgets(text, sizeof text, maps) != NULL) {
        CHECK(!has_part(text));
    }
    const struct dirent *entry;
    while (descriptors != NULL && (entry = readdir(descriptors)) != NULL) {
        ssize_t length = readlinkat(dirfd(descriptors), entry->d_name, text, sizeof text - 1);
        text[length < 0 ? 0 : length] = '\0';
        CHECK(!has_part(text));
    }
    (void)(maps != NULL && fclose(maps));
    (void)(descriptors != NULL && closedir(descriptors));
    /* The struct that was at work in the parent can be used here. */
    world_drop(world_segment(world_name("childs"), 1));
    return 0;
}

static void
fork_a_child(void)
{
    world_child(find_nothing_of_it, NULL);
}

static void
a_child_has_nothing_half_made_or_half_given_back(void)
{
    static const char *const where[] = {"create.reserving", "pwrite", "posix_fallocate",
                                        "create.reserved"};
    for (size_t i = 0; i < sizeof where / sizeof where[0]; i++) {
        subject_name = world_name("large");
        run_beside(where[i], verb_create, fork_a_child);
        run_beside("detach.unmapping", verb_close, fork_a_child);
        verb_remove();
    }
}

/* ---- two creators of one process ----------------------------------------------------------- */

static void
try_the_same_name(void)
{
    sv_options options = large_options();
    sv_error err = {.message = ""};
    options.timeout_ns = 1000000;
    EQ(world_try_open(subject_name, &options, SV_OPEN_ATTACH, NULL), SV_ENOENT);
    EQ(world_try_open(subject_name, &options, SV_OPEN_CREATE, &err), SV_ETIMEDOUT);
    HAS(err.message, subject_name);
}

static void
a_second_creator_waits_for_the_first(void)
{
    const sv_options options = large_options();
    subject_name = world_name("same");
    run_beside("create.reserving", verb_create, try_the_same_name);
    EQ(world_try_open(subject_name, &options, SV_OPEN_EXCLUSIVE, NULL), SV_EEXIST);
    EQ(world_files(), 1);
    world_drop(subject);
}

/* ---- failures on the way ------------------------------------------------------------------- */

static int
fail_to_reserve(const char *call)
{
    return strcmp(call, "posix_fallocate") == 0 ? ENOSPC : 0;
}

static void
a_failure_leaves_nothing_busy(void)
{
    const sv_options options = large_options();
    sv_error err = {.message = ""};
    svi_fault_hook = fail_to_reserve;
    EQ(world_try_open(world_name("full"), &options, SV_OPEN_CREATE, &err), SV_ESYS);
    svi_fault_hook = NULL;
    EQ(err.sys_errno, ENOSPC);
    EQ(svi_process_lock(NULL), 0);
    for (const svi_mapping *m = svi_process_mappings(); m != NULL; m = m->next) {
        CHECK(!m->busy && !m->mapped);
    }
    svi_process_unlock();
    EQ(world_files(), 0);
}

int
main(void)
{
    world_begin(55);
    RUN(making_keeps_nobody_waiting);
    RUN(giving_back_keeps_nobody_waiting);
    RUN(looking_around_keeps_nobody_waiting);
    RUN(a_look_keeps_what_it_looks_at);
    RUN(a_child_has_nothing_half_made_or_half_given_back);
    RUN(a_second_creator_waits_for_the_first);
    RUN(a_failure_leaves_nothing_busy);
    return world_end();
}
