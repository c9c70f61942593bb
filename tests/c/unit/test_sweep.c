/* Looking around: what is listed, what is swept, and what a full file system is told. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "blocks.h"
#include "faults.h"

typedef struct listing {
    sv_listed items[8];
    unsigned count;
    int stop_with; /* returned from the first call */
} listing;

static int
collect(const sv_listed *item, void *context)
{
    listing *list = context;
    if (list->count < 8) {
        list->items[list->count] = *item;
    }
    list->count++;
    return list->stop_with;
}

static const sv_listed *
find(const listing *list, const char *name)
{
    for (unsigned i = 0; i < list->count && i < 8; i++) {
        if (strcmp(list->items[i].name, name) == 0) {
            return &list->items[i];
        }
    }
    return NULL;
}

static void
segments_are_listed_and_nothing_else(void)
{
    sv_options options = world_options();
    sv_info info;
    listing list = {.count = 0};
    char first[SV_MAX_NAME_BYTES + 1];
    char second[SV_MAX_NAME_BYTES + 1];
    (void)snprintf(first, sizeof first, "%s", world_name("first"));
    (void)snprintf(second, sizeof second, "%s", world_name("second"));
    const char *junk = world_name("junk");
    const char *fifo = world_name("fifo");
    sv_segment *segment = world_segment(first, 1);
    options.owned = 1;
    options.mode = 0644;
    sv_segment *owned = world_open(second, &options, SV_OPEN_CREATE);
    world_junk(junk, 0, 9000);
    EQ(mkfifo(world_path(fifo, ""), 0600), 0);
    EQ(mkdir(world_path("folder", ""), 0700), 0);
    world_junk("x.lock", 'x', 5000);

    EQ(sv_list(NULL, collect, &list, NULL), 0);
    EQ(list.count, 2);
    const sv_listed *item = find(&list, first);
    REQUIRE(item != NULL);
    EQ(sv_segment_info(segment, &info), 0);
    EQ_STR(item->generation, info.generation);
    EQ(item->bytes, info.segment_bytes);
    EQ(item->inode, info.inode);
    EQ(item->owned + item->owner_live, 0);
    EQ(item->owner_pid, 0);
    EQ(item->attached, 1);
    EQ(item->uid, geteuid());
    item = find(&list, second);
    REQUIRE(item != NULL);
    EQ(item->owned, 1);
    EQ(item->owner_live, 1);
    EQ(item->owner_pid, getpid());

    EQ(sv_segment_close(segment, NULL), 0);
    EQ(sv_segment_close(owned, NULL), 0);
    list.count = 0;
    EQ(sv_list(world_directory(), collect, &list, NULL), 0);
    item = find(&list, first);
    REQUIRE(item != NULL);
    EQ(item->attached, 0);
    item = find(&list, second);
    REQUIRE(item != NULL);
    EQ(item->owned, 1);
    EQ(item->owner_live, 0);

    EQ(sv_segment_remove(first, NULL, NULL), 0);
    EQ(sv_segment_remove(second, NULL, NULL), 0);
    EQ(sv_segment_remove(junk, NULL, NULL), 0);
    EQ(sv_segment_remove(fifo, NULL, NULL), 0);
    EQ(rmdir(world_path("folder", "")), 0);
    EQ(unlink(world_path("x.lock", "")), 0);
}

static void
a_walk_can_be_ended(void)
{
    listing list = {.stop_with = 42};
    sv_segment *first = world_segment(world_name("a"), 1);
    sv_segment *second = world_segment(world_name("b"), 1);
    EQ(sv_list(NULL, collect, &list, NULL), 42);
    EQ(list.count, 1);
    world_drop(first);
    world_drop(second);
}

static void
a_directory_that_cannot_be_read_is_an_error(void)
{
    listing list = {.count = 0};
    sv_error err = {.message = ""};
    EQ(sv_list("/no/such/dir", collect, &list, &err), SV_ESYS);
    EQ(err.sys_errno, ENOENT);
    HAS(err.message, "/no/such/dir");
    EQ(list.count, 0);
    EQ(sv_list(NULL, collect, &list, NULL), 0);
    EQ(list.count, 0);
}

static int
own_and_die(void *name)
{
    sv_options options = world_options();
    options.owned = 1;
    (void)world_open(name, &options, SV_OPEN_CREATE);
    (void)kill(getpid(), SIGKILL);
    return 1;
}

static void
a_full_file_system_lists_the_orphans_of_this_user(void)
{
    char orphan[SV_MAX_NAME_BYTES + 1];
    sv_options options = world_options();
    sv_segment *segment = NULL;
    sv_error err = {.message = ""};
    (void)snprintf(orphan, sizeof orphan, "%s", world_name("orphan"));
    EQ(world_wait(world_fork(own_and_die, orphan), WORLD_WAIT_MS), 128 + SIGKILL);
    sv_segment *fine = world_segment(world_name("fine"), 1); /* without owner: no orphan */
    options.chunk_size = UINT64_C(1) << 41;
    options.slot_count = 1;
    EQ(sv_segment_open(world_name("big"), &options, SV_OPEN_CREATE, &segment, &err), SV_ESYS);
    EQ(err.sys_errno, ENOSPC);
    HAS(err.message, "1 pool(s) or block(s) of yours without an owner");
    HAS(err.message, orphan);
    HAS(err.message, "MiB");
    HAS(err.message, "sharedvector sweep");
    CHECK(strstr(err.message, "fine") == NULL);
    world_drop(fine);
    EQ(sv_segment_remove(orphan, NULL, NULL), 0);
}

static void
many_orphans_do_not_overflow_the_message(void)
{
    char names[12][SV_MAX_NAME_BYTES + 1];
    sv_options options = world_options();
    sv_segment *segment = NULL;
    sv_error err = {.message = ""};
    for (size_t i = 0; i < 12; i++) {
        (void)snprintf(names[i], sizeof names[i], "%s-%0100d", world_name("long"), (int)i);
        EQ(world_wait(world_fork(own_and_die, names[i]), WORLD_WAIT_MS), 128 + SIGKILL);
    }
    options.chunk_size = UINT64_C(1) << 41;
    options.slot_count = 1;
    EQ(sv_segment_open(world_name("big"), &options, SV_OPEN_CREATE, &segment, &err), SV_ESYS);
    HAS(err.message, "12 pool(s)");
    CHECK(strlen(err.message) < sizeof err.message);
    for (size_t i = 0; i < 12; i++) {
        EQ(sv_segment_remove(names[i], NULL, NULL), 0);
    }
}

/* ---- sweeping ------------------------------------------------------------------------------ */

/* Blocks with these prefixes, whose maker is dead. */
static int
make_blocks_and_die(void *prefixes)
{
    uint64_t *words = block_words(1);
    const sv_array array = block_array(words);
    for (char **prefix = prefixes; *prefix != NULL; prefix++) {
        sv_segment *block = NULL;
        EQ(sv_block_create(*prefix, &array, NULL, &block, NULL), 0);
    }
    return tap_failures() == 0 ? raise(SIGKILL) : 1;
}

static void
leave_blocks(char **prefixes)
{
    (void)EQ(world_wait(world_fork(make_blocks_and_die, prefixes), WORLD_WAIT_MS), 128 + SIGKILL);
}

/* A pool that is filled and marked; its owner dies. */
static int
reign_and_die(void *name)
{
    sv_owner *owner = NULL;
    sv_options options = world_options();
    sv_segment *segment = NULL;
    EQ(sv_owner_acquire(name, NULL, NULL, &owner, NULL), 0);
    EQ(sv_pool_create(owner, &options, &segment, NULL), 0);
    EQ(world_append(segment, 1), 0);
    EQ(sv_ready_write(owner, NULL), 0);
    return tap_failures() == 0 ? raise(SIGKILL) : 1;
}

static void
leave_pool(char *name)
{
    (void)EQ(world_wait(world_fork(reign_and_die, name), WORLD_WAIT_MS), 128 + SIGKILL);
}

static int
sweep(const char *prefix, int dry_run, listing *list)
{
    list->count = 0;
    return sv_sweep(NULL, NULL, prefix, dry_run, collect, list, NULL);
}

static void
blocks_of_dead_makers_are_swept_and_nothing_else(void)
{
    static char *dead[] = {"left", NULL};
    listing list = {.count = 0};
    sv_options options = world_options();
    sv_segment *alive = block_of(1);
    sv_segment *plain = world_segment("plain", 1);
    options.block = options.slot_count = options.max_arrays = 1;
    sv_segment *unowned = world_open("sv-0-unowned-0123456789abcdef", &options, SV_OPEN_EXCLUSIVE);
    options.owned = 1;
    sv_segment *renamed = world_open("another-name", &options, SV_OPEN_EXCLUSIVE);
    EQ(sv_segment_close(plain, NULL), 0); /* nobody is attached to these, nobody owns them */
    EQ(sv_segment_close(unowned, NULL), 0);
    EQ(sv_segment_close(renamed, NULL), 0);
    leave_blocks(dead);
    EQ(world_files(), 5);

    EQ(sweep(NULL, 1, &list), 0);
    EQ(list.count, 1);
    EQ(list.items[0].block, 1);
    HAS(list.items[0].name, "-left-");
    CHECK(list.items[0].bytes >= BLOCK_BYTES);
    EQ(world_files(), 5);
    EQ(sweep(NULL, 0, &list), 0);
    EQ(list.count, 1);
    CHECK(!world_exists(list.items[0].name, ""));
    EQ(world_files(), 4);
    EQ(sweep(NULL, 0, &list), 0);
    EQ(list.count, 0);
    EQ(sv_retired_get(alive), SV_RETIRED_NO);
    block_drop(alive);
    EQ(sv_segment_remove("plain", NULL, NULL), 0);
    EQ(sv_segment_remove("another-name", NULL, NULL), 0);
    EQ(sv_segment_remove("sv-0-unowned-0123456789abcdef", NULL, NULL), 0);
}

static void
a_prefix_chooses(void)
{
    static char *dead[] = {"job", "job-2", "other", NULL};
    listing list = {.count = 0};
    sv_error err = {.message = ""};
    leave_blocks(dead);
    leave_pool("job-pool");
    leave_pool("a-job-pool");
    EQ(sv_sweep(NULL, NULL, "", 0, collect, &list, &err), SV_EINVAL);
    HAS(err.message, "empty");
    EQ(sweep("job", 0, &list), 0);
    EQ(list.count, 2); /* the block of just this prefix, and the pool that begins with it */
    CHECK(find(&list, "job-pool") != NULL);
    EQ(sweep("no", 0, &list), 0);
    EQ(list.count, 0);
    EQ(sweep("job-2", 0, &list), 0);
    EQ(list.count, 1);
    EQ(sweep(NULL, 0, &list), 0);
    EQ(list.count, 2);
    CHECK(find(&list, "a-job-pool") != NULL);
    EQ(world_files(), 0);
}

static void
a_sweep_can_be_ended(void)
{
    static char *dead[] = {"a", "b", NULL};
    listing list = {.stop_with = 42};
    leave_blocks(dead);
    EQ(sweep(NULL, 0, &list), 42);
    EQ(list.count, 1);
    EQ(world_files(), 1);
    EQ(sv_sweep(NULL, NULL, NULL, 0, NULL, NULL, NULL), 0); /* nobody asks */
    EQ(world_files(), 0);
}

static void
pools_of_dead_owners_are_swept_whole(void)
{
    listing list = {.count = 0};
    sv_owner *owner = NULL;
    sv_options options = world_options();
    sv_segment *pool = NULL;
    EQ(sv_owner_acquire("living", NULL, NULL, &owner, NULL), 0);
    EQ(sv_pool_create(owner, &options, &pool, NULL), 0);
    EQ(sv_ready_write(owner, NULL), 0);
    unsigned files = world_files();
    leave_pool("fallen");
    CHECK(world_exists("fallen", "") && world_exists("fallen", ".ready"));
    EQ(sweep(NULL, 0, &list), 0);
    EQ(list.count, 1);
    EQ_STR(list.items[0].name, "fallen");
    EQ(list.items[0].block, 0);
    EQ(world_files(), files); /* segment, marker and lock file */
    EQ(sv_owner_live(pool), 1);
    CHECK(world_exists("living", "") && world_exists("living", ".ready"));
    EQ(sv_pool_close(owner, pool, NULL), 0);
    EQ(world_files(), 0);
}

static void
a_pool_that_has_an_heir_is_left_to_it(void)
{
    listing list = {.count = 0};
    sv_owner *heir = NULL;
    leave_pool("estate");
    EQ(sv_owner_acquire("estate", NULL, NULL, &heir, NULL), 0); /* has made nothing yet */
    EQ(sweep(NULL, 0, &list), 0);
    EQ(list.count, 0);
    CHECK(world_exists("estate", "") && world_exists("estate", ".ready"));
    sv_owner_release(heir);
    EQ(sweep(NULL, 0, &list), 0);
    EQ(list.count, 1);
    EQ(world_files(), 0);
}

static unsigned refusals;

static int
refuse_unlinks(const char *call)
{
    return strcmp(call, "unlink") == 0 && refusals != 0 && refusals-- != 0 ? EACCES : 0;
}

static void
what_cannot_be_removed_holds_nothing_else_up(void)
{
    static char *dead[] = {"a", "b", "c", NULL};
    listing list = {.count = 0};
    sv_error err = {.message = ""};
    leave_blocks(dead);
    refusals = 2;
    svi_fault_hook = refuse_unlinks;
    EQ(sv_sweep(NULL, NULL, NULL, 0, collect, &list, &err), SV_ESYS);
    svi_fault_hook = NULL;
    EQ(err.sys_errno, EACCES);
    HAS(err.message, "cannot unlink");
    EQ(list.count, 1);
    EQ(world_files(), 2);
    EQ(sweep(NULL, 0, &list), 0);
    EQ(list.count, 2);
    EQ(world_files(), 0);
}

static void
a_sweep_needs_its_directories(void)
{
    static char *dead[] = {"a", NULL};
    listing list = {.count = 0};
    sv_error err = {.message = ""};
    EQ(sv_sweep("/no/such/dir", NULL, NULL, 0, collect, &list, &err), SV_ESYS);
    char far[SVI_DIRECTORY_BYTES + 1];
    memset(far, 'x', sizeof far - 1);
    far[sizeof far - 1] = '\0';
    EQ(sv_sweep(far, NULL, NULL, 0, collect, &list, &err), SV_EINVAL);
    EQ(sv_list(far, collect, &list, &err), SV_EINVAL);
    EQ(list.count, 0);
    leave_pool("locked");
    leave_blocks(dead);
    /* A pool needs its lock; a block needs none. */
    EQ(sv_sweep(NULL, "/no/such/dir", NULL, 0, collect, &list, &err), SV_ESYS);
    HAS(err.message, "/no/such/dir");
    EQ(list.count, 1);
    EQ(list.items[0].block, 1);
    EQ(sweep(NULL, 0, &list), 0);
    EQ(world_files(), 0);
}

static void
free_memory_is_a_number_with_words(void)
{
    const char *limit = NULL;
    uint64_t allowed = 0;
    CHECK(sv_memory_free(&limit, &allowed) != 0);
    CHECK(limit != NULL);
    CHECK(allowed != 0);
    CHECK(sv_memory_free(NULL, NULL) != 0);
}

int
main(void)
{
    world_begin(50);
    RUN(segments_are_listed_and_nothing_else);
    RUN(a_walk_can_be_ended);
    RUN(a_directory_that_cannot_be_read_is_an_error);
    RUN(a_full_file_system_lists_the_orphans_of_this_user);
    RUN(many_orphans_do_not_overflow_the_message);
    RUN(blocks_of_dead_makers_are_swept_and_nothing_else);
    RUN(a_prefix_chooses);
    RUN(a_sweep_can_be_ended);
    RUN(pools_of_dead_owners_are_swept_whole);
    RUN(a_pool_that_has_an_heir_is_left_to_it);
    RUN(what_cannot_be_removed_holds_nothing_else_up);
    RUN(a_sweep_needs_its_directories);
    RUN(free_memory_is_a_number_with_words);
    return world_end();
}
