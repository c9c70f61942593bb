/* Blocks: made whole, written in place, removed by their maker alone. */
#include "block.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "blocks.h"
#include "faults.h"
#include "os.h"

/* ---- names --------------------------------------------------------------------------------- */

static void
a_name_says_whose_it_is_and_what_for(void)
{
    char first[SV_MAX_NAME_BYTES + 1];
    char second[SV_MAX_NAME_BYTES + 1];
    char wanted[64];
    (void)snprintf(wanted, sizeof wanted, "sv-%u-a.b_c-9-", (unsigned)geteuid());
    EQ(sv_block_name("a.b_c-9", first, NULL), 0);
    EQ(sv_block_name("a.b_c-9", second, NULL), 0);
    EQ(strlen(first), strlen(wanted) + 16);
    CHECK(strncmp(first, wanted, strlen(wanted)) == 0);
    CHECK(strcmp(first, second) != 0);
    EQ(sv_name_check(first, NULL), 0);
    CHECK(svi_block_is_named(first, NULL));
    CHECK(svi_block_is_named(first, "a.b_c-9"));
    CHECK(!svi_block_is_named(first, "a.b_c"));
    CHECK(!svi_block_is_named(first, "a.b_c-99"));
    CHECK(!svi_block_is_named(first, ""));
    first[strlen(first) - 1] = 'g'; /* no hexadecimal digit */
    CHECK(!svi_block_is_named(first, NULL));
}

static void
other_names_are_no_blocks(void)
{
    char text[SV_MAX_NAME_BYTES + 1];
    (void)snprintf(text, sizeof text, "sv-%u-x-0123456789abcdef", (unsigned)geteuid() + 1);
    CHECK(!svi_block_is_named(text, NULL)); /* another user's */
    static const char *const tails[] = {"",
                                        "0123456789abcdef",    /* no prefix */
                                        "-0123456789abcdef",   /* an empty one */
                                        "x-0123456789abcde",   /* a digit too few */
                                        "x0123456789abcdef0",  /* no '-' */
                                        "x-0123456789ABCDEF"}; /* capitals */
    for (size_t i = 0; i < sizeof tails / sizeof tails[0]; i++) {
        tap_context("%s", tails[i]);
        (void)snprintf(text, sizeof text, "sv-%u-%s", (unsigned)geteuid(), tails[i]);
        CHECK(!svi_block_is_named(text, NULL));
    }
    tap_context("%s", "");
}

static void
bad_prefixes_are_refused(void)
{
    char name[SV_MAX_NAME_BYTES + 1] = "untouched";
    char longest[66];
    sv_error err = {.message = ""};
    static const char *const bad[] = {NULL, "", "a/b", "a b", "\xe9", "a\n"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        EQ(sv_block_name(bad[i], name, &err), SV_EINVAL);
        HAS(err.message, "1 to 64 letters");
    }
    memset(longest, 'x', 65);
    longest[65] = '\0';
    EQ(sv_block_name(longest, name, &err), SV_EINVAL);
    EQ_STR(name, "untouched");
    EQ(sv_block_name(longest + 1, name, NULL), 0);
    EQ(sv_name_check(name, NULL), 0);
}

/* ---- making -------------------------------------------------------------------------------- */

static int
note_listed(const sv_listed *item, void *context)
{
    *(sv_listed *)context = *item;
    return 0;
}

static void
a_block_is_whole_when_it_has_its_name(void)
{
    sv_segment *block = block_of(7);
    sv_view view;
    void *data = NULL;
    sv_info info;
    sv_listed listed = {.bytes = 0};
    EQ(sv_segment_info(block, &info), 0);
    EQ(info.block, 1);
    EQ(info.owned, 1);
    EQ(info.slot_count, 1);
    EQ(info.buffer_count, 1);
    EQ_STR(info.dtype, "uint64");
    EQ(sv_size(block), 1);
    EQ(sv_owner_live(block), 1);
    EQ(sv_retired_get(block), SV_RETIRED_NO);
    EQ(sv_list(NULL, note_listed, &listed, NULL), 0);
    EQ_STR(listed.name, info.name);
    EQ(listed.block, 1);
    EQ(listed.owner_live, 1);
    EQ(sv_block_pin(block, 0, &view, &data, NULL), 0);
    CHECK(data == NULL); /* set only for who writes */
    CHECK(block_shows(&view, 7));
    EQ(view.ndim, 1);
    EQ(view.shape[0], BLOCK_WORDS);
    sv_unpin(&view);
    EQ(sv_check(block, NULL), 0);
    EQ(world_files(), 1); /* no lock file beside it */
    block_drop(block);
    EQ(world_files(), 0);
}

static void
zeros_cost_no_copy_and_an_empty_array_is_one(void)
{
    sv_array array = block_array(NULL);
    sv_segment *block = NULL;
    sv_view view;
    array.data = NULL;
    sv_error err = {.message = ""};
    if (!EQ(sv_block_create("zeros", &array, NULL, &block, &err), 0)) {
        tap_note("%s", err.message);
        return;
    }
    EQ(sv_block_pin(block, 0, &view, NULL, NULL), 0);
    CHECK(block_shows(&view, 0));
    sv_unpin(&view);
    block_drop(block);

    array.size_bytes = 0;
    array.shape[0] = 0;
    EQ(sv_block_create("none", &array, NULL, &block, NULL), 0);
    EQ(sv_block_pin(block, 0, &view, NULL, NULL), 0);
    EQ(view.size_bytes, 0);
    EQ(view.shape[0], 0);
    sv_unpin(&view);
    block_drop(block);
    EQ(world_files(), 0);
}

static void
what_cannot_be_made_leaves_nothing(void)
{
    uint64_t *words = block_words(1);
    const sv_array good = block_array(words);
    sv_segment *block = NULL;
    sv_error err = {.message = ""};
    EQ(sv_block_create("a/b", &good, NULL, &block, &err), SV_EINVAL);
    EQ(sv_block_create("x", NULL, NULL, &block, &err), SV_EINVAL);
    sv_array bad = good;
    bad.dtype[0] = '\0';
    EQ(sv_block_create("x", &bad, NULL, &block, &err), SV_EINVAL);
    HAS(err.message, "dtype");
    memset(bad.dtype, 'x', sizeof bad.dtype);
    EQ(sv_block_create("x", &bad, NULL, &block, &err), SV_EINVAL);
    bad = good;
    bad.shape[0]--;
    EQ(sv_block_create("x", &bad, NULL, &block, &err), SV_EINVAL);
    HAS(err.message, "size_bytes");
    bad = good;
    bad.itemsize = 0;
    EQ(sv_block_create("x", &bad, NULL, &block, &err), SV_EINVAL);
    bad = good;
    bad.size_bytes = UINT64_C(1) << 42;
    bad.shape[0] = bad.size_bytes / sizeof *words;
    EQ(sv_block_create("x", &bad, NULL, &block, &err), SV_ESYS);
    EQ(err.sys_errno, ENOSPC);
    sv_options options = world_options();
    options.size--;
    EQ(sv_block_create("x", &good, &options, &block, &err), SV_EINVAL);
    CHECK(block == NULL);
    EQ(world_files(), 0);
    free(words);
}

static void
options_that_fit_no_block_are_refused(void)
{
    sv_options options = world_options();
    sv_error err = {.message = ""};
    options.block = 1;
    options.max_arrays = 1;
    EQ(world_try_open("b", &options, SV_OPEN_EXCLUSIVE, &err), SV_EINVAL); /* 4 slots */
    HAS(err.message, "a block is made with");
    options.slot_count = 1;
    EQ(world_try_open("b", &options, SV_OPEN_CREATE, &err), SV_EINVAL);
    EQ(world_try_open("b", &options, SV_OPEN_REPLACE, &err), SV_EINVAL);
    EQ(world_try_open("b", &options, SV_OPEN_ATTACH, &err), SV_EINVAL);
    options.max_arrays = 2;
    EQ(world_try_open("b", &options, SV_OPEN_EXCLUSIVE, &err), SV_EINVAL);
    EQ(world_files(), 0);
}

/* ---- using --------------------------------------------------------------------------------- */

static int
write_a_half(void *name)
{
    sv_view view;
    void *data = NULL;
    sv_segment *block = block_attach(name);
    EQ(sv_block_pin(block, 1, &view, &data, NULL), 0);
    uint64_t *words = data;
    for (size_t i = BLOCK_WORDS / 2; words != NULL && i < BLOCK_WORDS; i++) {
        words[i] = 9;
    }
    sv_unpin(&view);
    EQ(sv_block_remove(block, NULL), SV_EFORKED);
    return sv_segment_close(block, NULL);
}

static void
a_block_is_written_in_place(void)
{
    sv_segment *block = block_of(3);
    sv_view view;
    void *data = NULL;
    EQ(sv_block_pin(block, 1, &view, &data, NULL), 0);
    REQUIRE(data != NULL);
    memset(data, 0, sizeof(uint64_t));
    const uint64_t *words = view.data;
    EQ(words[0], 0); /* both maps show one file */
    EQ(words[1], 3);
    EQ(sv_own_pins(block), 1);
    world_child(write_a_half, (void *)(uintptr_t)block_name(block));
    EQ(words[BLOCK_WORDS / 2 - 1], 3);
    EQ(words[BLOCK_WORDS / 2], 9);
    EQ(words[BLOCK_WORDS - 1], 9);
    CHECK(world_exists(block_name(block), ""));
    sv_unpin(&view);
    EQ(sv_own_pins(block), 0);
    sv_slot_stats stats;
    EQ(sv_slot_stats_get(block, 0, &stats), 0);
    EQ(stats.reads, 0); /* a block counts none */
    block_drop(block);
}

static void
a_block_is_never_replaced(void)
{
    sv_segment *block = block_of(3);
    uint64_t *words = block_words(4);
    sv_array array = block_array(words);
    const sv_chunk chunk = {.arrays = &array, .array_count = 1};
    sv_reservation reservation;
    sv_view view;
    sv_error err = {.message = ""};
    array.dtype[0] = '\0';
    EQ(sv_append(block, &chunk, NULL, &err), SV_EFULL);
    EQ(sv_reserve(block, 0, &reservation, &err), SV_EINVAL);
    HAS(err.message, "written in place");
    EQ(sv_replace(block, 0, &chunk, 0, &err), SV_EINVAL);
    EQ(sv_pin(block, 0, &view), 0);
    CHECK(block_shows(&view, 3));
    sv_unpin(&view);
    free(words);
    block_drop(block);
}

static void
only_finished_blocks_are_pinned(void)
{
    sv_options options = world_options();
    sv_error err = {.message = ""};
    sv_view view;
    void *base = NULL;
    size_t bytes = 0;
    sv_segment *plain = world_segment(world_name("plain"), 1);
    EQ(sv_block_pin(plain, 0, &view, NULL, &err), SV_EINVAL);
    HAS(err.message, "is no block");
    EQ(sv_block_map_private(plain, &base, &bytes, NULL), SV_EINVAL);
    EQ(sv_block_remove(plain, NULL), SV_EINVAL);
    EQ(sv_own_pins(plain), 0);
    world_drop(plain);
    EQ(sv_block_pin(NULL, 0, &view, NULL, &err), SV_ECLOSED);
    EQ(sv_block_map_private(NULL, &base, &bytes, NULL), SV_ECLOSED);
    EQ(sv_block_remove(NULL, NULL), SV_ECLOSED);
    EQ(sv_own_pins(NULL), 0);
    CHECK(base == NULL && bytes == 0);

    options.block = 1;
    options.owned = 1;
    options.slot_count = 1;
    options.max_arrays = 1;
    sv_segment *empty = world_open(world_name("empty"), &options, SV_OPEN_EXCLUSIVE);
    EQ(sv_block_pin(empty, 0, &view, NULL, &err), SV_EINVAL);
    HAS(err.message, "is not finished");
    EQ(sv_check(empty, NULL), 0);
    block_drop(empty); /* never written to: it has no writable map yet */
    EQ(world_files(), 0);
}

static int
pin_without_a_row(void *block)
{
    sv_view view;
    sv_error err = {.message = ""};
    EQ(sv_block_pin(block, 0, &view, NULL, &err), SV_EROWS);
    HAS(err.message, "max_rows");
    return sv_segment_close(block, NULL);
}

static void
what_keeps_a_child_from_pinning_is_said(void)
{
    uint64_t *words = block_words(1);
    const sv_array array = block_array(words);
    sv_options options = world_options();
    sv_segment *block = NULL;
    options.max_rows = 1;
    EQ(sv_block_create("full", &array, &options, &block, NULL), 0);
    world_child(pin_without_a_row, block);
    block_drop(block);
    free(words);
}

static void
a_damaged_block_is_not_shown(void)
{
    sv_segment *block = block_of(1);
    const svi_mapping *m = svi_mapping_of(block);
    sv_error err = {.message = ""};
    sv_view view;
    svi_buffer_at(m, atomic_load(&m->rw), 0)->b_arrays[0].a_bytes = BLOCK_BYTES * 2;
    EQ(sv_block_pin(block, 0, &view, NULL, &err), SV_EFORMAT);
    HAS(err.message, block_name(block));
    EQ(sv_own_pins(block), 0);
    block_drop(block);
}

/* Kind and counts of a file are checked against each other, whoever wrote them. */
static void
headers_that_contradict_themselves_are_refused(void)
{
    static const struct {
        size_t offset;
        uint32_t value;
    } wrong[] = {{offsetof(svm_header, h_kind), SVI_KIND_VECTOR},
                 {offsetof(svm_header, h_kind), 2},
                 {offsetof(svm_header, h_kind), UINT32_MAX},
                 {offsetof(svm_header, h_slot_count), 0},
                 {offsetof(svm_header, h_slot_count), 2},
                 {offsetof(svm_header, h_buffer_count), 0},
                 {offsetof(svm_header, h_buffer_count), 2}};
    sv_options options = world_options();
    options.dtype = NULL;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        sv_segment *block = block_of(1);
        char name[SV_MAX_NAME_BYTES + 1];
        (void)snprintf(name, sizeof name, "%s", block_name(block));
        EQ(sv_segment_close(block, NULL), 0);
        int fd = svi_os_open(world_path(name, ""), O_RDWR, 0);
        EQ(svi_os_pwrite(fd, &wrong[i].value, sizeof wrong[i].value, wrong[i].offset), 0);
        (void)close(fd);
        EQ(world_try_open(name, &options, SV_OPEN_ATTACH, NULL), SV_EFORMAT);
        EQ(sv_segment_remove(name, NULL, NULL), 0);
    }
}

static int madvised;

static int
count_madvise(const char *call)
{
    madvised += strcmp(call, "madvise") == 0;
    return 0;
}

static void
prefaulting_is_a_hint_about_the_block_alone(void)
{
    sv_segment *block = block_of(5);
    sv_view none = {.data = NULL};
    sv_view view;
    void *data = NULL;
    EQ(sv_block_pin(block, 1, &view, &data, NULL), 0);
    madvised = 0;
    svi_fault_hook = count_madvise;
    sv_block_prefault(&none, 0, 0, BLOCK_BYTES);
    sv_block_prefault(&view, 0, BLOCK_BYTES, 1);
    sv_block_prefault(&view, 1, UINT64_MAX, UINT64_MAX);
    EQ(madvised, 0);
    sv_block_prefault(&view, 0, 5000, 100);
    sv_block_prefault(&view, 1, 0, UINT64_MAX);
    sv_block_prefault(&view, 0, BLOCK_BYTES - 1, UINT64_MAX);
    EQ(madvised, 3);
    svi_fault_hook = NULL;
    CHECK(block_shows(&view, 5));
    sv_unpin(&view);
    block_drop(block);
}

static void
a_private_copy_stays_private(void)
{
    sv_segment *block = block_of(5);
    sv_view view;
    void *base = NULL;
    size_t bytes = 0;
    EQ(sv_block_pin(block, 0, &view, NULL, NULL), 0);
    EQ(sv_block_map_private(block, &base, &bytes, NULL), 0);
    REQUIRE(base != NULL && bytes >= BLOCK_BYTES);
    uint64_t *words = base;
    EQ(words[BLOCK_WORDS - 1], 5);
    words[0] = 6;
    CHECK(block_shows(&view, 5));
    block_drop(block); /* the view keeps the memory under the copy */
    EQ(words[0], 6);
    EQ(words[BLOCK_WORDS - 1], 5);
    EQ(munmap(base, bytes), 0);
    sv_unpin(&view);
}

/* ---- removing ------------------------------------------------------------------------------ */

static void
removing_gives_the_memory_back_at_once(void)
{
    sv_segment *block = block_of(5);
    sv_error err = {.message = ""};
    sv_options options = world_options();
    sv_view view;
    char name[SV_MAX_NAME_BYTES + 1];
    (void)snprintf(name, sizeof name, "%s", block_name(block));
    int fd = block_look_behind(block);
    CHECK(block_memory(fd) >= BLOCK_BYTES);
    EQ(sv_block_remove(block, &err), 0);
    EQ(world_files(), 0);
    CHECK(block_memory(fd) < BLOCK_BYTES);
    EQ(sv_retired_get(block), SV_RETIRED_CLOSED);
    EQ(sv_block_pin(block, 0, &view, NULL, &err), SV_ENOENT);
    HAS(err.message, "was removed by its maker");
    EQ(sv_pin(block, 0, &view), SV_ENOENT);
    EQ(sv_own_pins(block), 0);
    EQ(sv_check(block, NULL), 0);
    EQ(sv_block_remove(block, NULL), 0);
    EQ(sv_segment_open(name, &options, SV_OPEN_ATTACH, &block, &err), SV_ENOENT);
    EQ(sv_segment_close(block, NULL), 0);
    (void)close(fd);
}

static void
a_view_outlives_block_and_handle(void)
{
    sv_segment *block = block_of(5);
    sv_view view;
    void *data = NULL;
    int fd = block_look_behind(block);
    EQ(sv_block_pin(block, 1, &view, &data, NULL), 0);
    block_drop(block);
    CHECK(block_memory(fd) >= BLOCK_BYTES);
    CHECK(block_shows(&view, 5));
    memset(data, 0, sizeof(uint64_t));
    EQ(*(const uint64_t *)view.data, 0);
    sv_unpin(&view);
    CHECK(block_memory(fd) < BLOCK_BYTES); /* although the file is open */
    (void)close(fd);
    EQ(world_files(), 0);
}

/* Its word is the remover's: readers give memory back because of it. */
static void
a_block_is_not_retired(void)
{
    sv_segment *block = block_of(5);
    sv_view view;
    sv_retire(block, SV_RETIRED_PRODUCER);
    EQ(sv_retired_get(block), SV_RETIRED_NO);
    EQ(sv_block_pin(block, 0, &view, NULL, NULL), 0);
    sv_unpin(&view);
    EQ(sv_block_pin(block, 0, &view, NULL, NULL), 0);
    CHECK(block_shows(&view, 5));
    sv_unpin(&view);
    block_drop(block);
}

static void
who_may_have_to_wait_is_told(void)
{
    sv_segment *block = block_of(5);
    sv_segment *vector = world_segment("waits", 1);
    sv_view views[2];
    memset(views, 0, sizeof views);
    EQ(sv_unpin_waits(&views[0]), 0);
    EQ(sv_block_pin(block, 0, &views[0], NULL, NULL), 0);
    EQ(sv_unpin_waits(&views[0]), 0);
    EQ(sv_block_remove(block, NULL), 0);
    EQ(sv_unpin_waits(&views[0]), 1);
    sv_unpin(&views[0]);
    EQ(sv_unpin_waits(&views[0]), 0);
    EQ(sv_segment_close(block, NULL), 0);
    EQ(world_append(vector, 1), 0);
    EQ(sv_pin(vector, 0, &views[1]), 0);
    EQ(sv_unpin_waits(&views[1]), 0);
    EQ(sv_segment_close(vector, NULL), 0);
    EQ(sv_unpin_waits(&views[1]), 1);
    sv_unpin(&views[1]);
    EQ(sv_segment_remove("waits", NULL, NULL), 0);
}

/* A program may close every descriptor that it finds. */
static void
a_lost_descriptor_keeps_no_memory(void)
{
    sv_segment *block = block_of(5);
    int fd = block_look_behind(block);
    EQ(close(svi_mapping_of(block)->probe), 0);
    EQ(sv_block_remove(block, NULL), 0);
    CHECK(block_memory(fd) < BLOCK_BYTES);
    EQ(sv_segment_close(block, NULL), 0);
    (void)close(fd);
}

/* The maker goes elsewhere before the block does. */
static void
a_relative_directory_is_that_of_the_beginning(void)
{
    char before[4096];
    uint64_t *words = block_words(5);
    const sv_array array = block_array(words);
    sv_options options = world_options();
    sv_segment *block = NULL;
    REQUIRE(getcwd(before, sizeof before) != NULL);
    EQ(chdir(world_directory()), 0);
    options.directory = ".";
    EQ(sv_block_create("test", &array, &options, &block, NULL), 0);
    free(words);
    EQ(world_files(), 1);
    EQ(chdir("/"), 0);
    EQ(sv_block_remove(block, NULL), 0);
    EQ(world_files(), 0);
    EQ(sv_segment_close(block, NULL), 0);
    EQ(chdir(before), 0);
}

static void
what_took_the_name_is_left_alone(void)
{
    sv_segment *block = block_of(5);
    char name[SV_MAX_NAME_BYTES + 1];
    (void)snprintf(name, sizeof name, "%s", block_name(block));
    EQ(sv_segment_remove(name, NULL, NULL), 0);
    world_junk(name, 'x', 100);
    block_drop(block);
    CHECK(world_exists(name, ""));
    EQ(unlink(world_path(name, "")), 0);
}

/* Attached, with a view from flag 0 on; until flag 1. */
static int
look_and_wait(void *name)
{
    sv_view view;
    sv_segment *block = block_attach(name);
    EQ(sv_block_pin(block, 0, &view, NULL, NULL), 0);
    world_set(&world_flags[0], 1);
    (void)world_await(&world_flags[1], 1);
    CHECK(block_shows(&view, 5));
    sv_view second;
    sv_error err = {.message = ""};
    EQ(sv_block_pin(block, 0, &second, NULL, &err), SV_ENOENT);
    EQ(sv_check(block, NULL), 0);
    sv_unpin(&view);
    world_set(&world_flags[2], 1); /* without a view, but attached */
    (void)world_await(&world_flags[3], 1);
    EQ(sv_block_remove(block, &err), SV_EFORKED);
    HAS(err.message, "was made by another process");
    return sv_segment_close(block, NULL);
}

static void
anothers_view_keeps_the_memory(void)
{
    sv_segment *block = block_of(5);
    int fd = block_look_behind(block);
    world_flags_clear();
    pid_t pid = world_fork(look_and_wait, (void *)(uintptr_t)block_name(block));
    REQUIRE(world_await(&world_flags[0], 1));
    block_drop(block);
    CHECK(block_memory(fd) >= BLOCK_BYTES);
    world_set(&world_flags[1], 1);
    REQUIRE(world_await(&world_flags[2], 1));
    CHECK(block_memory(fd) < BLOCK_BYTES);
    world_set(&world_flags[3], 1);
    EQ(world_wait(pid, WORLD_WAIT_MS), 0);
    (void)close(fd);
}

static void
the_view_of_a_dead_process_keeps_nothing(void)
{
    sv_segment *block = block_of(5);
    int fd = block_look_behind(block);
    world_flags_clear();
    pid_t pid = world_fork(look_and_wait, (void *)(uintptr_t)block_name(block));
    REQUIRE(world_await(&world_flags[0], 1));
    world_kill(pid);
    EQ(sv_block_remove(block, NULL), 0);
    CHECK(block_memory(fd) < BLOCK_BYTES);
    EQ(sv_segment_close(block, NULL), 0);
    (void)close(fd);
}

static sv_view inherited;

static int
look_without_a_row(void *block)
{
    EQ(sv_own_pins(block), 0);
    EQ(sv_segment_close(block, NULL), 0); /* the maps stay: the view has no pin to keep them */
    world_set(&world_flags[0], 1);
    (void)world_await(&world_flags[1], 1);
    CHECK(block_shows(&inherited, 5)); /* removed meanwhile, and nobody has a pin */
    sv_unpin(&inherited);
    return 0;
}

static void
a_child_without_a_row_goes_on_looking(void)
{
    sv_options options = world_options();
    options.max_rows = 1;
    uint64_t *words = block_words(5);
    const sv_array array = block_array(words);
    sv_segment *block = NULL;
    EQ(sv_block_create("test", &array, &options, &block, NULL), 0);
    free(words);
    world_flags_clear();
    EQ(sv_block_pin(block, 0, &inherited, NULL, NULL), 0);
    pid_t pid = world_fork(look_without_a_row, block);
    REQUIRE(world_await(&world_flags[0], 1));
    sv_unpin(&inherited);
    block_drop(block);
    world_set(&world_flags[1], 1);
    EQ(world_wait(pid, WORLD_WAIT_MS), 0);
}

static int refused_call;

static int
refuse_unlink(const char *call)
{
    return refused_call == 1 && strcmp(call, "unlink") == 0 ? EACCES
           : refused_call == 2 && strcmp(call, "mmap") == 0 ? ENOMEM
                                                            : 0;
}

static void
a_failed_removal_is_finished_by_the_next(void)
{
    sv_segment *block = block_of(5);
    sv_error err = {.message = ""};
    sv_view view;
    refused_call = 1;
    svi_fault_hook = refuse_unlink;
    EQ(sv_block_remove(block, &err), SV_ESYS);
    svi_fault_hook = NULL;
    EQ(err.sys_errno, EACCES);
    EQ(sv_block_pin(block, 0, &view, NULL, NULL), 0); /* nothing happened */
    sv_unpin(&view);
    block_drop(block);

    sv_options options = world_options();
    options.block = options.owned = options.slot_count = options.max_arrays = 1;
    block = world_open(world_name("lazy"), &options, SV_OPEN_EXCLUSIVE);
    refused_call = 2;
    svi_fault_hook = refuse_unlink;
    EQ(sv_block_remove(block, &err), SV_ENOMEM);
    svi_fault_hook = NULL;
    EQ(world_files(), 0); /* the name goes first */
    EQ(sv_retired_get(block), SV_RETIRED_NO);
    EQ(sv_block_remove(block, NULL), 0);
    EQ(sv_retired_get(block), SV_RETIRED_CLOSED);
    EQ(sv_segment_close(block, NULL), 0);
}

int
main(void)
{
    world_begin(58);
    RUN(a_name_says_whose_it_is_and_what_for);
    RUN(other_names_are_no_blocks);
    RUN(bad_prefixes_are_refused);
    RUN(a_block_is_whole_when_it_has_its_name);
    RUN(zeros_cost_no_copy_and_an_empty_array_is_one);
    RUN(what_cannot_be_made_leaves_nothing);
    RUN(options_that_fit_no_block_are_refused);
    RUN(a_block_is_written_in_place);
    RUN(a_block_is_never_replaced);
    RUN(only_finished_blocks_are_pinned);
    RUN(what_keeps_a_child_from_pinning_is_said);
    RUN(a_damaged_block_is_not_shown);
    RUN(headers_that_contradict_themselves_are_refused);
    RUN(prefaulting_is_a_hint_about_the_block_alone);
    RUN(a_private_copy_stays_private);
    RUN(removing_gives_the_memory_back_at_once);
    RUN(a_view_outlives_block_and_handle);
    RUN(a_block_is_not_retired);
    RUN(who_may_have_to_wait_is_told);
    RUN(a_lost_descriptor_keeps_no_memory);
    RUN(a_relative_directory_is_that_of_the_beginning);
    RUN(what_took_the_name_is_left_alone);
    RUN(anothers_view_keeps_the_memory);
    RUN(a_child_without_a_row_goes_on_looking);
    RUN(the_view_of_a_dead_process_keeps_nothing);
    RUN(a_failed_removal_is_finished_by_the_next);
    return world_end();
}
