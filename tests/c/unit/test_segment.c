/* Segments: made, attached, replaced, removed, and mapped until the last view. */
#include "segment.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "world.h"

/* ---- making and attaching ------------------------------------------------------------------ */

static void
options_have_their_defaults(void)
{
    sv_options options;
    sv_options_init(&options);
    EQ(options.size, sizeof options);
    EQ(options.chunk_size, 1 << 20);
    EQ(options.max_memory_size, 10 << 20);
    EQ(options.spare_buffers, 2);
    EQ(options.max_rows, 1024);
    EQ(options.max_arrays, 1);
    EQ(options.mode, 0600);
    EQ(options.timeout_ns, INT64_C(5000000000));
    EQ(options.slot_count + options.stats_capacity + options.itemsize + options.owned, 0);
    CHECK(options.dtype == NULL && options.directory == NULL && options.generation == NULL);
}

static void
a_segment_knows_its_facts(void)
{
    const char *name = world_name("facts");
    sv_options options = world_options();
    struct stat st;
    sv_info info;
    options.generation = "reign-1";
    sv_segment *segment = world_open(name, &options, SV_OPEN_EXCLUSIVE);
    EQ(stat(world_path(name, ""), &st), 0);
    EQ(sv_segment_info(segment, &info), 0);
    EQ_STR(info.name, name);
    EQ_STR(info.directory, world_directory());
    EQ_STR(info.generation, "reign-1");
    EQ_STR(info.dtype, "uint64");
    EQ(info.itemsize, 8);
    EQ(info.slot_count, 4);
    EQ(info.buffer_count, 6);
    EQ(info.max_rows, 16);
    EQ(info.max_arrays, 2);
    EQ(info.stats_capacity, 8);
    EQ(info.owned, 0);
    EQ(info.mode, 0600);
    EQ(info.chunk_size, 1024);
    EQ(info.row_bytes, 4096);
    EQ(info.inode, st.st_ino);
    EQ(info.segment_bytes, st.st_blocks * 512); /* all of it reserved, and nothing else */
    EQ(sv_size(segment), 0);
    EQ(world_living(segment), 1);
    world_drop(segment);
    CHECK(!world_exists(name, ""));
}

static void
without_options_the_defaults_apply(void)
{
    const char *name = world_name("default");
    sv_segment *segment = NULL;
    sv_info info;
    sv_error err = {.code = 3};
    EQ(sv_segment_open(name, NULL, SV_OPEN_CREATE, &segment, &err), 0);
    EQ(err.code, 3);
    EQ(sv_segment_info(segment, &info), 0);
    EQ_STR(info.dtype, "float32");
    EQ(info.itemsize, 4);
    EQ(info.slot_count, 9);
    EQ(info.buffer_count, 11);
    EQ(strlen(info.generation), 32);
    world_drop(segment);
}

static void
handles_of_one_process_share_map_and_row(void)
{
    const char *name = world_name("share");
    sv_segment *first = world_segment(name, 1);
    sv_segment *second = world_open(name, NULL, SV_OPEN_CREATE);
    sv_segment *third = world_open(name, NULL, SV_OPEN_ATTACH);
    CHECK(svi_mapping_of(first) == svi_mapping_of(second));
    CHECK(svi_mapping_of(first) == svi_mapping_of(third));
    EQ(world_living(first), 1);
    EQ(sv_handle_count(first), 3);
    EQ(sv_segment_close(first, NULL), 0);
    EQ(sv_handle_count(third), 2);
    EQ(sv_segment_close(second, NULL), 0);
    EQ(sv_handle_count(third), 1);
    EQ(world_stamp(third, 0), 1);
    world_drop(third);
}

static void
flags_say_what_must_be_there(void)
{
    const char *name = world_name("flags");
    sv_error err = {.message = ""};
    EQ(world_try_open(name, NULL, SV_OPEN_ATTACH, &err), SV_ENOENT);
    HAS(err.message, name);
    HAS(err.message, world_directory());
    sv_segment *segment = world_segment(name, 1);
    sv_options options = world_options();
    EQ(world_try_open(name, &options, SV_OPEN_EXCLUSIVE, &err), SV_EEXIST);
    HAS(err.message, name);
    EQ(world_try_open(name, &options, 4, &err), SV_EINVAL);
    EQ(world_try_open(name, &options, -1, &err), SV_EINVAL);
    EQ(world_try_open(name, NULL, SV_OPEN_ATTACH, NULL), 0);
    world_drop(segment);
    EQ(world_files(), 0);
}

static void
attaching_compares_what_was_asked_for(void)
{
    const char *name = world_name("wishes");
    sv_options made = world_options();
    made.generation = "first";
    sv_segment *segment = world_open(name, &made, SV_OPEN_EXCLUSIVE);
    sv_info info;
    sv_options options;
    sv_error err = {.message = ""};
    EQ(sv_segment_info(segment, &info), 0);

    sv_options_init(&options);
    options.chunk_size = 77; /* all of these are ignored */
    options.max_memory_size = 1;
    options.spare_buffers = 0;
    options.max_rows = 0;
    options.max_arrays = 99;
    options.stats_capacity = 1;
    EQ(world_try_open(name, &options, SV_OPEN_ATTACH, &err), 0);

    options.dtype = "uint64";
    options.itemsize = 8;
    options.expect_slots = 4;
    options.expect_inode = info.inode;
    options.generation = "first";
    EQ(world_try_open(name, &options, SV_OPEN_ATTACH, &err), 0);
    EQ(world_try_open(name, &options, SV_OPEN_CREATE, &err), 0);

    options.dtype = "float32";
    EQ(world_try_open(name, &options, SV_OPEN_ATTACH, &err), SV_EMISMATCH);
    HAS(err.message, "uint64");
    HAS(err.message, "float32");
    EQ(world_try_open(name, &options, SV_OPEN_CREATE, &err), SV_EMISMATCH);
    options.dtype = NULL;
    options.expect_slots = 5;
    EQ(world_try_open(name, &options, SV_OPEN_ATTACH, &err), SV_EMISMATCH);
    HAS(err.message, "has 4 slots");
    HAS(err.message, "requested were 5");
    options.expect_slots = 0;
    options.expect_inode = info.inode + 1;
    EQ(world_try_open(name, &options, SV_OPEN_ATTACH, &err), SV_EMISMATCH);
    HAS(err.message, "made anew");
    options.expect_inode = 0;
    options.generation = "second";
    EQ(world_try_open(name, &options, SV_OPEN_ATTACH, &err), SV_EMISMATCH);
    HAS(err.message, "first");
    HAS(err.message, "second");
    options.generation = NULL;
    options.itemsize = 4; /* compared without a dtype too */
    EQ(world_try_open(name, &options, SV_OPEN_ATTACH, &err), SV_EMISMATCH);
    HAS(err.message, "8 bytes each, requested were 4");
    world_drop(segment);
}

static void
bad_options_are_refused_before_anything_is_made(void)
{
    const char *name = world_name("options");
    char text[SV_DTYPE_BYTES + 1];
    sv_error err = {.message = ""};
    sv_options options = world_options();
    options.size = 8;
    EQ(world_try_open(name, &options, SV_OPEN_CREATE, &err), SV_EINVAL);
    HAS(err.message, "sv_options_init");
    options = world_options();
    options.dtype = "";
    EQ(world_try_open(name, &options, SV_OPEN_CREATE, &err), SV_EINVAL);
    HAS(err.message, "1 to 255");
    memset(text, 'd', sizeof text);
    text[SV_DTYPE_BYTES] = '\0';
    options.dtype = text;
    EQ(world_try_open(name, &options, SV_OPEN_CREATE, &err), SV_EINVAL);
    HAS(err.message, "found 256");
    options = world_options();
    options.mode = 0400;
    EQ(world_try_open(name, &options, SV_OPEN_CREATE, &err), SV_EINVAL);
    HAS(err.message, "0400");
    options.mode = 04600;
    EQ(world_try_open(name, &options, SV_OPEN_CREATE, &err), SV_EINVAL);
    options = world_options();
    options.generation = "two words";
    EQ(world_try_open(name, &options, SV_OPEN_CREATE, &err), SV_EINVAL);
    options = world_options();
    options.max_rows = 0;
    EQ(world_try_open(name, &options, SV_OPEN_CREATE, &err), SV_EINVAL);
    EQ(world_files(), 0);
}

/* ---- replacing and removing ---------------------------------------------------------------- */

static void
replacing_leaves_those_attached_alone(void)
{
    const char *name = world_name("anew");
    sv_segment *old = world_segment(name, 2);
    sv_segment *fresh = world_open(name, NULL, SV_OPEN_REPLACE);
    sv_info a;
    sv_info b;
    EQ(sv_segment_info(old, &a), 0);
    EQ(sv_segment_info(fresh, &b), 0);
    CHECK(strcmp(a.generation, b.generation) != 0);
    CHECK(a.inode != b.inode);
    EQ(sv_size(old), 2);
    EQ(sv_size(fresh), 0);
    EQ(world_append(old, 3), 0);
    EQ(world_stamp(old, 2), 3);
    world_audit(old, 0, 0); /* rows, locks and recovery do not need the name */
    EQ(sv_segment_close(old, NULL), 0);
    EQ(world_append(fresh, 9), 0);
    EQ(world_stamp(fresh, 0), 9);
    world_drop(fresh);
}

static void
removing_is_forgiving_and_exact(void)
{
    const char *name = world_name("remove");
    sv_info info;
    sv_error err = {.message = ""};
    EQ(sv_segment_remove(name, NULL, &err), 0); /* a missing name is no error */
    sv_segment *segment = world_segment(name, 1);
    EQ(sv_segment_info(segment, &info), 0);
    EQ(sv_segment_remove_exact(name, NULL, info.inode + 1, info.generation, &err), SV_ENOENT);
    EQ(sv_segment_remove_exact(name, NULL, info.inode, "other", &err), SV_ENOENT);
    HAS(err.message, "other");
    CHECK(world_exists(name, ""));
    EQ(sv_segment_remove_exact(name, NULL, info.inode, info.generation, &err), 0);
    CHECK(!world_exists(name, ""));
    EQ(sv_segment_remove_exact(name, NULL, info.inode, info.generation, &err), SV_ENOENT);
    EQ(world_stamp(segment, 0), 1);
    world_audit(segment, 0, 0);
    EQ(sv_segment_close(segment, NULL), 0);
}

/* ---- closing ------------------------------------------------------------------------------- */

static void
closing_with_live_views_defers(void)
{
    const char *name = world_name("defer");
    sv_segment *segment = world_segment(name, 2);
    const svi_mapping *m = svi_mapping_of(segment);
    uint64_t stamp = 0;
    sv_view first;
    sv_view second;
    EQ(sv_pin(segment, 0, &first), 0);
    EQ(sv_pin(segment, 1, &second), 0);
    EQ(sv_segment_close(segment, NULL), 0);
    CHECK(m->mapped);
    CHECK(world_whole(&first, &stamp));
    EQ(stamp, 1);
    sv_unpin(&first);
    CHECK(m->mapped);
    CHECK(world_whole(&second, &stamp));
    EQ(stamp, 2);

    segment = world_open(name, NULL, SV_OPEN_ATTACH); /* joins what is still mapped */
    CHECK(svi_mapping_of(segment) == m);
    EQ(world_living(segment), 1);
    EQ(sv_segment_close(segment, NULL), 0);
    CHECK(m->mapped);
    sv_unpin(&second);
    CHECK(!m->mapped);
    sv_unpin(&second); /* a second call does nothing */

    segment = world_open(name, NULL, SV_OPEN_ATTACH);
    world_audit(segment, 0, 0);
    world_drop(segment);
}

static void
closing_with_a_reservation_is_refused(void)
{
    sv_segment *segment = world_segment(world_name("held"), 1);
    sv_reservation reservation;
    sv_error err = {.message = ""};
    EQ(sv_reserve(segment, 0, &reservation, NULL), 0);
    EQ(sv_segment_close(segment, &err), SV_EINUSE);
    HAS(err.message, "1 reservation");
    EQ(world_stamp(segment, 0), 1); /* still open */
    sv_cancel(&reservation);
    world_audit(segment, 0, 0);
    world_drop(segment);
}

/* The pointers to a process's cells lie in wiped pages of 512 each. */
static void
one_process_attaches_to_many(void)
{
    static sv_segment *handles[600];
    sv_options options = world_options();
    options.max_rows = 700;
    const char *name = world_name("pages");
    svi_testing_separate = true;
    sv_segment *first = world_open(name, &options, SV_OPEN_CREATE);
    EQ(world_append(first, 1), 0);
    for (size_t i = 0; i < 600; i++) {
        handles[i] = world_open(name, &options, SV_OPEN_ATTACH);
        EQ(world_stamp(handles[i], 0), 1);
    }
    for (size_t i = 0; i < 600; i++) {
        EQ(sv_segment_close(handles[i], NULL), 0);
    }
    svi_testing_separate = false;
    EQ(sv_handle_count(first), 1);
    world_audit(first, 0, 0);
    world_drop(first);
}

static void
what_is_no_open_handle_is_refused(void)
{
    sv_segment closed = {.mapping = NULL};
    sv_info info = {.slot_count = 3};
    sv_view view = {.slot = 3};
    sv_error err = {.message = ""};
    sv_reservation reservation = {.buffer_ = 3};
    sv_slot_stats stats = {.reads = 3};
    sv_row_info row;
    sv_stats counts = {.blocked_replaces = 3};
    uint32_t slot = 3;
    int unread = 3;
    sv_array array = {.itemsize = 1};
    sv_chunk chunk = {.arrays = &array, .array_count = 1};
    sv_gather_options how;
    sv_gather_options_init(&how);
    EQ(sv_segment_close(NULL, &err), SV_EINVAL);
    EQ(sv_segment_close(&closed, &err), SV_EINVAL);
    EQ(sv_segment_info(&closed, &info), SV_ECLOSED);
    EQ(sv_size(&closed), 0);
    EQ(sv_pin(&closed, 0, &view), SV_ECLOSED);
    EQ(sv_pin_quiet(&closed, 0, &view), SV_ECLOSED);
    EQ(sv_reserve(&closed, 0, &reservation, &err), SV_ECLOSED);
    EQ(sv_append(&closed, &chunk, &slot, &err), SV_ECLOSED);
    EQ(sv_replace(&closed, 0, &chunk, 0, &err), SV_ECLOSED);
    EQ(sv_gather(&closed, &slot, 1, &how, &stats, 8, &err), SV_ECLOSED);
    EQ(sv_slot_stats_get(&closed, 0, &stats), SV_ECLOSED);
    EQ(sv_slot_stats_all(&closed, 1, NULL, NULL, NULL), 0);
    EQ(sv_stats_reset(&closed, &err), SV_ECLOSED);
    EQ(sv_stats_samples(&closed, &slot, 1), 0);
    EQ(sv_counter_add(&closed, SV_COUNTER_LOADS, 1), 0);
    EQ(sv_refresh_next(&closed, &slot, &unread), SV_ECLOSED);
    EQ(sv_rows(&closed, &row, 1), 0);
    EQ(sv_handle_count(&closed), 0);
    EQ(sv_recover(&closed, &slot, &err), SV_ECLOSED);
    EQ(sv_check(&closed, &err), SV_ECLOSED);
    EQ(sv_segment_join(&closed, &err), SV_ECLOSED);
    sv_stats_get(&closed, &counts);
    EQ(counts.blocked_replaces, 0);
    EQ(sv_owner_live(&closed), 0);
    EQ(sv_retired_get(&closed), SV_RETIRED_NO);
    sv_retire(&closed, SV_RETIRED_CLOSED);
    sv_count_blocked(&closed, 1);
    EQ(info.slot_count + view.slot + reservation.buffer_ + slot, 12);
    EQ(stats.reads + (uint64_t)unread, 6);
}

/* Only `size` of the struct is there, at the end of what can be read. */
static void *
short_struct(size_t size)
{
    char *page =
        mmap(NULL, 2 * SVI_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    (void)CHECK(page != MAP_FAILED && mprotect(page + SVI_PAGE, SVI_PAGE, PROT_NONE) == 0);
    memcpy(page + SVI_PAGE - sizeof size, &size, sizeof size);
    return page + SVI_PAGE - sizeof size;
}

static void
a_shorter_struct_is_not_read_beyond_its_size(void)
{
    const char *name = world_name("short");
    const sv_options *options = short_struct(sizeof(size_t));
    const sv_gather_options *how = short_struct(sizeof(size_t));
    const sv_array array = {.itemsize = 4, .dtype = "float32"};
    sv_segment *segment = world_segment(name, 1);
    sv_segment *other = NULL;
    sv_owner *owner = NULL;
    uint32_t slot = 0;
    uint64_t out = 0;
    sv_error err = {.message = ""};
    EQ(sv_segment_open(name, options, SV_OPEN_ATTACH, &other, &err), SV_EINVAL);
    HAS(err.message, "sv_options_init");
    EQ(sv_block_create("short", &array, options, &other, NULL), SV_EINVAL);
    REQUIRE(sv_owner_acquire(name, NULL, NULL, &owner, NULL) == 0);
    EQ(sv_ready_write(owner, NULL), 0);
    EQ(sv_pool_create(owner, options, &other, NULL), SV_EINVAL);
    CHECK(world_exists(name, ".ready")); /* a failure changes nothing */
    EQ(sv_pool_attach(name, NULL, options, 0, &other, NULL), SV_EINVAL);
    EQ(sv_ready_clear(owner, NULL), 0);
    sv_owner_release(owner);
    EQ(sv_gather(segment, &slot, 1, how, &out, sizeof out, NULL), SV_EINVAL);
    CHECK(other == NULL);
    world_drop(segment);
}

/* ---- closed handles ------------------------------------------------------------------------ */

/* A handle that was closed leads nowhere, also when another one has been opened since. */
static void
a_closed_handle_leads_to_no_other_segment(void)
{
    const char *name = world_name("other");
    sv_segment *other = world_segment(name, 1);
    sv_segment *closed = world_open(name, NULL, SV_OPEN_ATTACH);
    sv_reservation reservation;
    sv_view view;
    EQ(sv_segment_close(closed, NULL), 0);
    for (uint32_t i = 0; i + 1 < SVI_HANDLES_KEPT; i++) { /* the memory of none is used again */
        sv_segment *handle = world_open(name, NULL, SV_OPEN_ATTACH);
        CHECK(handle != closed);
        EQ(sv_segment_close(handle, NULL), 0);
    }
    sv_segment *next = world_open(name, NULL, SV_OPEN_ATTACH);
    EQ(sv_pin(closed, 0, &view), SV_ECLOSED);
    EQ(sv_reserve(closed, 0, &reservation, NULL), SV_ECLOSED);
    EQ(sv_size(closed), 0);
    EQ(sv_segment_close(closed, NULL), SV_EINVAL);
    EQ(sv_handle_count(other), 2);
    EQ(sv_segment_close(next, NULL), 0);
    world_drop(other);
}

int
main(void)
{
    world_begin(50);
    RUN(options_have_their_defaults);
    RUN(a_segment_knows_its_facts);
    RUN(without_options_the_defaults_apply);
    RUN(handles_of_one_process_share_map_and_row);
    RUN(flags_say_what_must_be_there);
    RUN(attaching_compares_what_was_asked_for);
    RUN(bad_options_are_refused_before_anything_is_made);
    RUN(replacing_leaves_those_attached_alone);
    RUN(removing_is_forgiving_and_exact);
    RUN(closing_with_live_views_defers);
    RUN(closing_with_a_reservation_is_refused);
    RUN(one_process_attaches_to_many);
    RUN(what_is_no_open_handle_is_refused);
    RUN(a_closed_handle_leads_to_no_other_segment);
    RUN(a_shorter_struct_is_not_read_beyond_its_size);
    return world_end();
}
