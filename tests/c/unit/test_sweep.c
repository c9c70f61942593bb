/* Looking around: what is listed, and what a full file system is told. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "world.h"

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
    EQ(item->attached, 1);
    EQ(item->uid, geteuid());
    item = find(&list, second);
    REQUIRE(item != NULL);
    EQ(item->owned, 1);
    EQ(item->owner_live, 1);

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
    HAS(err.message, "1 pool(s) of yours without an owner");
    HAS(err.message, orphan);
    HAS(err.message, "MiB");
    HAS(err.message, "remove");
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

int
main(void)
{
    world_begin(50);
    RUN(segments_are_listed_and_nothing_else);
    RUN(a_walk_can_be_ended);
    RUN(a_directory_that_cannot_be_read_is_an_error);
    RUN(a_full_file_system_lists_the_orphans_of_this_user);
    RUN(many_orphans_do_not_overflow_the_message);
    return world_end();
}
