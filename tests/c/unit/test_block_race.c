/* Blocks among others: no hole is read, and nothing is left, whatever readers, forks, threads and signals
 * meet the removal. */
#include "block.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "blocks.h"
#include "os.h"
#include "steps.h"

/* ---- E13, staged --------------------------------------------------------------------------- */

/* In a process of its own, stopped behind its pin. */
static int
pin_slowly(void *name)
{
    sv_view view;
    sv_segment *block = block_attach(name);
    steps_pause_on("pin.added", &world_flags[0], &world_flags[1]);
    int status = sv_block_pin(block, 0, &view, NULL, NULL);
    steps_off();
    EQ(status, SV_ENOENT);
    EQ(sv_own_pins(block), 0);
    world_set(&world_flags[2], 1); /* attached still */
    CHECK(world_await(&world_flags[3], 1));
    return sv_segment_close(block, NULL);
}

static void
a_remover_sees_the_pin_of_who_has_not_looked_yet(void)
{
    sv_segment *block = block_of(5);
    int fd = block_look_behind(block);
    world_flags_clear();
    pid_t pid = world_fork(pin_slowly, (void *)(uintptr_t)block_name(block));
    REQUIRE(world_await(&world_flags[0], 1));
    EQ(sv_block_remove(block, NULL), 0);
    CHECK(block_memory(fd) >= BLOCK_BYTES);
    world_set(&world_flags[1], 1);
    CHECK(world_await(&world_flags[2], 1));
    CHECK(block_memory(fd) < BLOCK_BYTES); /* who was too late gave it back */
    world_set(&world_flags[3], 1);
    EQ(world_wait(pid, WORLD_WAIT_MS), 0);
    EQ(sv_segment_close(block, NULL), 0);
    (void)close(fd);
}

/* In a process of its own, stopped behind its last unpin, and after it still attached. */
static int
unpin_slowly(void *name)
{
    sv_view view;
    sv_segment *block = block_attach(name);
    EQ(sv_block_pin(block, 0, &view, NULL, NULL), 0);
    steps_pause_on("unpin.done", &world_flags[0], &world_flags[1]);
    sv_unpin(&view);
    steps_off();
    world_set(&world_flags[2], 1);
    CHECK(world_await(&world_flags[3], 1));
    return sv_segment_close(block, NULL);
}

/* The remover found no pin any more, or the unpin finds the removal: the memory goes in both orders. */
static void
a_removal_behind_an_unpin_gives_the_memory_back(void)
{
    sv_segment *block = block_of(5);
    int fd = block_look_behind(block);
    world_flags_clear();
    pid_t pid = world_fork(unpin_slowly, (void *)(uintptr_t)block_name(block));
    REQUIRE(world_await(&world_flags[0], 1));
    EQ(sv_block_remove(block, NULL), 0);
    world_set(&world_flags[1], 1);
    CHECK(world_await(&world_flags[2], 1));
    CHECK(block_memory(fd) < BLOCK_BYTES);
    world_set(&world_flags[3], 1);
    EQ(world_wait(pid, WORLD_WAIT_MS), 0);
    EQ(sv_segment_close(block, NULL), 0);
    (void)close(fd);
}

static void *
unpin_a_view(void *view)
{
    sv_unpin(view);
    return NULL;
}

/* The last handle is closed between an unpin and its look at the header: it must not be unmapped. */
static void
a_look_behind_an_unpin_finds_the_header(void)
{
    sv_segment *block = block_of(5);
    pthread_t thread;
    sv_view view;
    world_flags_clear();
    EQ(sv_block_pin(block, 0, &view, NULL, NULL), 0);
    EQ(sv_block_remove(block, NULL), 0);
    const svi_mapping *m = svi_mapping_of(block);
    steps_pause_on("block.unpinned", &world_flags[0], &world_flags[1]);
    EQ(pthread_create(&thread, NULL, unpin_a_view, &view), 0);
    REQUIRE(world_await(&world_flags[0], 1));
    EQ(sv_segment_close(block, NULL), 0);
    CHECK(m->mapped);
    world_set(&world_flags[1], 1);
    EQ(pthread_join(thread, NULL), 0);
    steps_off();
    CHECK(!m->mapped);
}

static void *
remove_slowly(void *block)
{
    static int status;
    status = sv_block_remove(block, NULL);
    return &status;
}

static void *
pin_a_twin(void *twin)
{
    static int status;
    sv_view view;
    status = sv_pin_quiet(twin, 0, &view);
    return &status;
}

/* The remover is stopped after it has found no pin: whoever comes now must see that it is too late, and
 * waits to look whether it held up the remover. */
static void
a_reader_sees_the_removal_that_did_not_see_its_pin(void)
{
    svi_testing_single_map = true;
    sv_segment *block = block_of(5);
    sv_segment *twin = world_twin(block);
    pthread_t remover;
    pthread_t reader;
    sv_view view;
    void *removed = NULL;
    void *seen = NULL;
    world_flags_clear();
    EQ(sv_pin_quiet(twin, 0, &view), 0); /* its row is ready: its look waits for nobody */
    sv_unpin(&view);
    steps_pause_on("reserve.scanned", &world_flags[0], &world_flags[1]);
    EQ(pthread_create(&remover, NULL, remove_slowly, block), 0);
    REQUIRE(world_await(&world_flags[0], 1));
    EQ(pthread_create(&reader, NULL, pin_a_twin, twin), 0);
    svi_os_sleep_ns(30000000); /* it looks now */
    world_set(&world_flags[1], 1);
    EQ(pthread_join(remover, &removed), 0);
    EQ(pthread_join(reader, &seen), 0);
    steps_off();
    EQ(*(const int *)removed, 0);
    EQ(*(const int *)seen, SV_ENOENT);
    world_twin_close(twin);
    EQ(sv_segment_close(block, NULL), 0);
    svi_testing_single_map = false;
}

#define READERS 3
#define ROUNDS 200

static void *
read_until_it_is_gone(void *twin)
{
    sv_view view;
    int status;
    uintptr_t holes = 0;
    (void)svi_add_seq(&world_flags[0], 1);
    while ((status = sv_pin_quiet(twin, 0, &view)) == 0) {
        const uint64_t *words = view.data;
        for (size_t i = 0; i < BLOCK_WORDS; i += SVI_PAGE / sizeof *words) {
            holes += words[i] != 5;
        }
        sv_unpin(&view);
    }
    (void)EQ(status, SV_ENOENT);
    return (void *)holes;
}

/* Readers on rows of their own, over one map, so that ThreadSanitizer looks on. */
static void
nobody_reads_a_hole(void)
{
    svi_testing_single_map = true;
    for (unsigned round = 0; round < ROUNDS; round++) {
        sv_segment *block = block_of(5);
        sv_segment *twins[READERS];
        pthread_t threads[READERS];
        world_flags_clear();
        for (size_t i = 0; i < READERS; i++) {
            twins[i] = world_twin(block);
            EQ(pthread_create(&threads[i], NULL, read_until_it_is_gone, twins[i]), 0);
        }
        CHECK(world_await(&world_flags[0], 1 + round % READERS));
        EQ(sv_block_remove(block, NULL), 0);
        for (size_t i = 0; i < READERS; i++) {
            void *holes = NULL;
            EQ(pthread_join(threads[i], &holes), 0);
            EQ((uintptr_t)holes, 0);
            world_twin_close(twins[i]);
        }
        EQ(sv_block_remove(block, NULL), 0);
        EQ(sv_segment_close(block, NULL), 0);
    }
    svi_testing_single_map = false;
    EQ(world_files(), 0);
}

static void *
make_use_and_remove(void *stamp)
{
    for (int i = 0; i < 40; i++) {
        sv_segment *block = block_of((uintptr_t)stamp);
        sv_view view;
        void *data = NULL;
        (void)EQ(sv_block_pin(block, 1, &view, &data, NULL), 0);
        (void)CHECK(block_shows(&view, (uintptr_t)stamp));
        memset(data, 0, 64);
        if (i % 2 == 0) {
            sv_unpin(&view);
        }
        block_drop(block);
        if (i % 2 != 0) {
            (void)EQ(((const uint64_t *)view.data)[8], (uintptr_t)stamp);
            sv_unpin(&view);
        }
    }
    return NULL;
}

static void
threads_make_and_remove_blocks_of_their_own(void)
{
    pthread_t threads[4];
    for (uintptr_t i = 0; i < 4; i++) {
        EQ(pthread_create(&threads[i], NULL, make_use_and_remove, (void *)(i + 1)), 0);
    }
    for (size_t i = 0; i < 4; i++) {
        EQ(pthread_join(threads[i], NULL), 0);
    }
    EQ(world_files(), 0);
}

/* ---- fork ---------------------------------------------------------------------------------- */

static sv_segment *inherited;
static sv_view inherited_view;

static int
look_in_the_child(void *argument)
{
    (void)argument;
    world_set(&world_flags[0], 1);
    CHECK(world_await(&world_flags[1], 1));
    CHECK(block_shows(&inherited_view, 5));
    EQ(sv_own_pins(inherited), 1);
    sv_unpin(&inherited_view);
    sv_view view;
    EQ(sv_block_pin(inherited, 0, &view, NULL, NULL), SV_ENOENT);
    EQ(sv_block_remove(inherited, NULL), SV_EFORKED);
    return sv_segment_close(inherited, NULL);
}

/* The pin that the parent hands over is seen by its own removal. */
static void
an_inherited_view_keeps_the_memory(void)
{
    inherited = block_of(5);
    int fd = block_look_behind(inherited);
    world_flags_clear();
    EQ(sv_block_pin(inherited, 0, &inherited_view, NULL, NULL), 0);
    pid_t pid = world_fork(look_in_the_child, NULL);
    sv_unpin(&inherited_view);
    EQ(sv_block_remove(inherited, NULL), 0);
    CHECK(block_memory(fd) >= BLOCK_BYTES);
    CHECK(world_await(&world_flags[0], 1));
    world_set(&world_flags[1], 1);
    EQ(world_wait(pid, WORLD_WAIT_MS), 0);
    EQ(sv_block_remove(inherited, NULL), 0);
    CHECK(block_memory(fd) < BLOCK_BYTES);
    EQ(sv_segment_close(inherited, NULL), 0);
    (void)close(fd);
}

static int
leave_it_alone(void *argument)
{
    sv_view view;
    (void)argument;
    EQ(sv_block_remove(inherited, NULL), SV_EFORKED);
    sv_block_unlink_all();
    EQ(sv_block_pin(inherited, 0, &view, NULL, NULL), 0); /* on a row of its own */
    CHECK(block_shows(&view, 5));
    sv_segment *own = block_of(6);
    char name[SV_MAX_NAME_BYTES + 1];
    (void)snprintf(name, sizeof name, "%s", block_name(own));
    sv_block_unlink_all();
    CHECK(!world_exists(name, ""));
    block_drop(own);
    sv_unpin(&view);
    return sv_segment_close(inherited, NULL);
}

static void
a_child_takes_nothing_of_its_parents(void)
{
    inherited = block_of(5);
    world_child(leave_it_alone, NULL);
    CHECK(world_exists(block_name(inherited), ""));
    block_drop(inherited);
    EQ(world_files(), 0);
}

/* A child whose fork handlers did not run has the list as its parent left it. */
static void
a_raw_child_takes_nothing_either(void)
{
    sv_segment *block = block_of(5);
    pid_t pid = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
    if (pid == 0) {
        sv_block_unlink_all();
        _exit(0);
    }
    EQ(world_wait(pid, WORLD_WAIT_MS), 0);
    CHECK(world_exists(block_name(block), ""));
    block_drop(block);
}

/* A reader forks again and again; each child has a view when its parent has none any more. */
static int
pass_a_view_on(void *name)
{
    sv_view view;
    sv_segment *block = block_attach(name);
    if (sv_block_pin(block, 0, &view, NULL, NULL) != 0) {
        return sv_segment_close(block, NULL);
    }
    world_set(&world_flags[0], 1);
    for (int generation = 0; generation < 6; generation++) {
        pid_t pid = fork();
        if (pid != 0) { /* the child goes on */
            int status = 0;
            sv_unpin(&view);
            while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
            }
            return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
        }
        for (int look = 0; look < 20; look++) {
            CHECK(block_shows(&view, 5));
        }
        if (tap_failures() != 0) {
            world_exit(99);
        }
    }
    sv_unpin(&view);
    return sv_segment_close(block, NULL);
}

static void
a_view_on_its_way_to_a_child_is_seen(void)
{
    for (uint64_t round = 0; round < 15; round++) {
        sv_segment *block = block_of(5);
        world_flags_clear();
        pid_t pid = world_fork(pass_a_view_on, (void *)(uintptr_t)block_name(block));
        CHECK(world_await(&world_flags[0], 1));
        svi_os_sleep_ns(round * 400000);
        block_drop(block);
        EQ(world_wait(pid, WORLD_WAIT_MS), 0);
    }
}

/* ---- signals ------------------------------------------------------------------------------- */

static void
a_handler_unlinks_what_is_left(void)
{
    sv_segment *blocks[3] = {block_of(1), block_of(2), block_of(3)};
    sv_view view;
    block_drop(blocks[1]);
    errno = EDOM;
    sv_block_unlink_all();
    EQ(errno, EDOM);
    EQ(world_files(), 0);
    sv_block_unlink_all();
    EQ(sv_block_pin(blocks[2], 0, &view, NULL, NULL), 0); /* the name is gone, nothing else */
    CHECK(block_shows(&view, 3));
    sv_unpin(&view);
    sv_segment *later = block_of(4);
    EQ(world_files(), 1);
    sv_block_unlink_all();
    EQ(world_files(), 0);
    block_drop(blocks[0]);
    block_drop(blocks[2]);
    block_drop(later);
}

/* The same place serves again, but not after the handler has had it. */
static void
a_place_in_the_list_is_used_again(void)
{
    sv_segment *block = block_of(1);
    const struct svi_listing *first = svi_mapping_of(block)->listing;
    block_drop(block);
    block = block_of(2);
    CHECK(svi_mapping_of(block)->listing == first);
    sv_block_unlink_all();
    block_drop(block);
    block = block_of(3);
    CHECK(svi_mapping_of(block)->listing != first);
    block_drop(block);
}

static void
end_by_signal(int number)
{
    sv_block_unlink_all(); /* made for this. NOLINT(bugprone-signal-handler) */
    (void)signal(number, SIG_DFL);
    (void)raise(number);
}

static void *
make_and_remove_for_ever(void *argument)
{
    sv_segment *kept[4] = {NULL};
    for (size_t i = 0;; i = (i + 1) % 4) {
        if (kept[i] != NULL) {
            block_drop(kept[i]);
        }
        kept[i] = block_of(i);
    }
    return argument;
}

static int
be_ended(void *threads)
{
    (void)signal(SIGTERM, end_by_signal);
    for (uintptr_t i = 1; i < *(const unsigned *)threads; i++) {
        pthread_t thread;
        EQ(pthread_create(&thread, NULL, make_and_remove_for_ever, NULL), 0);
    }
    world_set(&world_flags[0], 1);
    return make_and_remove_for_ever(NULL) == NULL;
}

/* `number` ends makers at random moments; what is left, and what a sweeper leaves. */
static void
end_makers(int number, unsigned makers, unsigned threads, unsigned *left)
{
    uint64_t random = world_seed();
    sv_segment *alive = block_of(8);
    *left = 0;
    for (unsigned i = 0; i < makers; i++) {
        world_flags_clear();
        pid_t pid = world_fork(be_ended, &threads);
        (void)world_await(&world_flags[0], 1);
        svi_os_sleep_ns(world_random(&random) % 2000000);
        (void)kill(pid, number);
        (void)EQ(world_wait(pid, WORLD_WAIT_MS), 128 + number);
        *left += world_files() - 1;
        (void)EQ(sv_sweep(NULL, NULL, NULL, 0, NULL, NULL, NULL), 0);
        (void)EQ(world_files(), 1);
    }
    (void)CHECK(world_exists(block_name(alive), ""));
    block_drop(alive);
}

static void
a_signal_at_any_moment_leaves_nothing(void)
{
    unsigned left = 0;
    end_makers(SIGTERM, 200, 1, &left);
    EQ(left, 0);
}

/* The handler runs in one thread while others make and remove: what they link behind its back waits for
 * a sweeper. */
static void
a_signal_among_threads_leaves_little(void)
{
    unsigned left = 0;
    end_makers(SIGTERM, 100, 3, &left);
    CHECK(left < 300); /* of a thousand */
    tap_note("%u blocks of 100 makers with 3 threads were linked behind the handler", left);
}

static void
a_kill_at_any_moment_leaves_nothing_to_a_sweeper(void)
{
    unsigned left = 0;
    end_makers(SIGKILL, 200, 1, &left);
    CHECK(left != 0); /* the killed could not clean up */
    tap_note("%u blocks of 200 killed makers swept", left);
}

/* ---- leaks --------------------------------------------------------------------------------- */

static unsigned
belongings(void)
{
    unsigned count = 0;
    char line[1024];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL) {
        count += strstr(line, world_directory()) != NULL;
    }
    if (maps != NULL) {
        (void)fclose(maps);
    }
    for (int fd = 0; fd < 256; fd++) {
        struct stat st;
        count += fstat(fd, &st) == 0;
    }
    return count;
}

static void
a_thousand_blocks_leak_nothing(void)
{
    unsigned before = belongings();
    for (uint64_t i = 0; i < 1000; i++) {
        sv_segment *block = block_of(i);
        sv_view view;
        (void)EQ(sv_block_pin(block, 0, &view, NULL, NULL), 0);
        block_drop(block);
        sv_unpin(&view);
    }
    EQ(belongings(), before);
    EQ(world_files(), 0);
}

int
main(void)
{
    world_begin(58);
    RUN(a_remover_sees_the_pin_of_who_has_not_looked_yet);
    RUN(a_reader_sees_the_removal_that_did_not_see_its_pin);
    RUN(a_removal_behind_an_unpin_gives_the_memory_back);
    RUN(a_look_behind_an_unpin_finds_the_header);
    RUN(nobody_reads_a_hole);
    RUN(threads_make_and_remove_blocks_of_their_own);
    RUN(an_inherited_view_keeps_the_memory);
    RUN(a_child_takes_nothing_of_its_parents);
    RUN(a_raw_child_takes_nothing_either);
    RUN(a_view_on_its_way_to_a_child_is_seen);
    RUN(a_handler_unlinks_what_is_left);
    RUN(a_place_in_the_list_is_used_again);
    RUN(a_signal_at_any_moment_leaves_nothing);
    RUN(a_signal_among_threads_leaves_little);
    RUN(a_kill_at_any_moment_leaves_nothing_to_a_sweeper);
    RUN(a_thousand_blocks_leak_nothing);
    return world_end();
}
