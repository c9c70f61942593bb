/* Blocks: made, pinned, removed and swept. Whatever happens, a sweeper leaves nothing of them. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "blocks.h"
#include "injection.h"

static sv_view view;
static sv_segment *mine;
static const char *its_name;

static sv_options
impatient(void)
{
    sv_options options;
    sv_options_init(&options);
    options.max_rows = 8;
    options.timeout_ns = 20000000;
    return options;
}

/* A child was not told the name: it looks for what is there. */
static int
note_name(const sv_listed *item, void *context)
{
    (void)snprintf(context, SV_MAX_NAME_BYTES + 1, "%s", item->name);
    return 1;
}

/* What is found is whole or unfinished, never broken; then it goes. */
static void
sweep_all(const char *name)
{
    char found[SV_MAX_NAME_BYTES + 1] = "";
    sv_error err = {.message = ""};
    (void)name;
    if (sv_list(NULL, note_name, found, NULL) != 0) {
        sv_options options = impatient();
        sv_segment *block = world_open(found, &options, SV_OPEN_ATTACH);
        EQ(sv_recover(block, NULL, NULL), 0);
        if (!EQ(sv_check(block, &err), 0)) {
            tap_note("%s", err.message);
        }
        EQ(world_living(block), 1);
        sv_view whole;
        if (sv_size(block) != 0 && EQ(sv_block_pin(block, 0, &whole, NULL, NULL), 0)) {
            CHECK(block_shows(&whole, 5));
            sv_unpin(&whole);
        }
        EQ(sv_segment_close(block, NULL), 0);
    }
    EQ(sv_sweep(NULL, NULL, NULL, 0, NULL, NULL, &err), 0);
    EQ(world_files(), 0);
}

/* ---- making -------------------------------------------------------------------------------- */

static int
create(const char *name, sv_error *err)
{
    sv_options options = impatient();
    uint64_t *words = block_words(5);
    const sv_array array = block_array(words);
    (void)name;
    int status = sv_block_create("fault", &array, &options, &mine, err);
    free(words);
    return status;
}

static void
arrange_nothing(const char *name)
{
    (void)name;
    mine = NULL;
}

static void
settle_created(const char *name, int status)
{
    if (status != 0) {
        CHECK(mine == NULL);
        EQ(world_files(), 0);
        EQ(create(name, NULL), 0);
    }
    EQ(sv_block_pin(mine, 0, &view, NULL, NULL), 0);
    CHECK(block_shows(&view, 5));
    sv_unpin(&view);
    block_drop(mine);
}

static void
making(void)
{
    INJECT(.what = "create", .arrange = arrange_nothing, .verb = create, .settle = settle_created,
           .after = sweep_all, .steps = 9, .calls = 30);
}

/* ---- pinning ------------------------------------------------------------------------------- */

static void
before_block(const char *name)
{
    (void)name;
    mine = block_of(5);
    its_name = block_name(mine);
}

static void
arrange_attached(const char *name)
{
    (void)name;
    inject_mine = block_attach(its_name);
}

static int
pin_to_write(const char *name, sv_error *err)
{
    void *data = NULL;
    (void)name;
    int status = sv_block_pin(inject_mine, 1, &view, &data, err);
    CHECK((status == 0) == (data != NULL));
    return status;
}

static void
settle_pinned(const char *name, int status)
{
    if (status != 0) {
        EQ(sv_own_pins(inject_mine), 0);
        EQ(pin_to_write(name, NULL), 0);
    }
    CHECK(block_shows(&view, 5));
    sv_unpin(&view);
    inject_detach();
}

/* The maker lives: what the dead one pinned does not keep the memory. */
static void
after_use(const char *name)
{
    int fd = block_look_behind(mine);
    (void)name;
    EQ(sv_check(mine, NULL), 0);
    EQ(sv_sweep(NULL, NULL, NULL, 0, NULL, NULL, NULL), 0);
    EQ(world_files(), 1);
    block_drop(mine);
    CHECK(block_memory(fd) < BLOCK_BYTES);
    (void)close(fd);
    EQ(world_files(), 0);
}

static void
pinning(void)
{
    INJECT(.what = "blockpin", .before = before_block, .arrange = arrange_attached,
           .verb = pin_to_write, .settle = settle_pinned, .after = after_use, .steps = 1,
           .calls = 2);
}

static void *private_base;
static size_t private_bytes;

static int
map_private(const char *name, sv_error *err)
{
    (void)name;
    return sv_block_map_private(inject_mine, &private_base, &private_bytes, err);
}

static void
arrange_pinned(const char *name)
{
    arrange_attached(name);
    private_base = NULL;
    EQ(sv_block_pin(inject_mine, 0, &view, NULL, NULL), 0);
}

static void
settle_mapped(const char *name, int status)
{
    if (status != 0) {
        CHECK(private_base == NULL);
        EQ(map_private(name, NULL), 0);
    }
    memset(private_base, 0, private_bytes);
    CHECK(block_shows(&view, 5));
    EQ(munmap(private_base, private_bytes), 0);
    sv_unpin(&view);
    inject_detach();
}

static void
mapping_privately(void)
{
    INJECT(.what = "private", .before = before_block, .arrange = arrange_pinned,
           .verb = map_private, .settle = settle_mapped, .after = after_use, .calls = 2);
}

/* ---- removing ------------------------------------------------------------------------------ */

static void
arrange_made(const char *name)
{
    mine = NULL;
    EQ(create(name, NULL), 0);
}

static int
hold_and_die(void *name)
{
    sv_segment *block = block_attach(name);
    EQ(sv_block_pin(block, 0, &view, NULL, NULL), 0);
    return raise(SIGKILL);
}

static void
arrange_made_and_pinned_by_the_dead(const char *name)
{
    arrange_made(name);
    EQ(world_wait(world_fork(hold_and_die, (void *)(uintptr_t)block_name(mine)), WORLD_WAIT_MS),
       128 + SIGKILL);
}

static void
arrange_unfinished(const char *name)
{
    sv_options options = impatient();
    options.block = options.owned = options.slot_count = 1;
    char unfinished[SV_MAX_NAME_BYTES + 1];
    (void)name;
    EQ(sv_block_name("fault", unfinished, NULL), 0);
    mine = world_open(unfinished, &options, SV_OPEN_EXCLUSIVE);
}

static int
remove_it(const char *name, sv_error *err)
{
    (void)name;
    return sv_block_remove(mine, err);
}

static void
settle_removed(const char *name, int status)
{
    if (status != 0) {
        EQ(remove_it(name, NULL), 0);
    }
    CHECK(!world_exists(block_name(mine), ""));
    EQ(sv_retired_get(mine), SV_RETIRED_CLOSED);
    EQ(sv_block_pin(mine, 0, &view, NULL, NULL), SV_ENOENT);
    EQ(sv_segment_close(mine, NULL), 0);
}

/* With its name and its descriptor gone nobody can map the header: the memory goes at the end. */
static void
settle_unfinished(const char *name, int status)
{
    bool lost = status != 0 && svi_mapping_of(mine)->probe < 0;
    if (status != 0) {
        EQ(remove_it(name, NULL), lost ? SV_ESYS : 0);
    }
    CHECK(!world_exists(block_name(mine), ""));
    EQ(sv_retired_get(mine), lost ? SV_RETIRED_NO : SV_RETIRED_CLOSED);
    EQ(sv_segment_close(mine, NULL), 0);
}

static void
removing(void)
{
    INJECT(.what = "blockremove", .arrange = arrange_made, .verb = remove_it,
           .settle = settle_removed, .after = sweep_all, .steps = 4, .calls = 3);
}

static void
removing_what_the_dead_pin(void)
{
    INJECT(.what = "deadpins", .arrange = arrange_made_and_pinned_by_the_dead, .verb = remove_it,
           .settle = settle_removed, .after = sweep_all, .steps = 7, .calls = 6);
}

static void
removing_what_was_never_written(void)
{
    INJECT(.what = "unfinished", .arrange = arrange_unfinished, .verb = remove_it,
           .settle = settle_unfinished, .after = sweep_all, .steps = 4, .calls = 4);
}

/* ---- sweeping ------------------------------------------------------------------------------ */

static int
leave_block_and_pool(void *name)
{
    sv_owner *owner = NULL;
    sv_options options = world_options();
    EQ(sv_owner_acquire(name, NULL, NULL, &owner, NULL), 0);
    EQ(sv_pool_create(owner, &options, &inject_mine, NULL), 0);
    EQ(world_append(inject_mine, 1), 0);
    EQ(sv_ready_write(owner, NULL), 0);
    EQ(create(name, NULL), 0);
    return raise(SIGKILL);
}

static void
before_orphans(const char *name)
{
    EQ(world_wait(world_fork(leave_block_and_pool, (void *)(uintptr_t)name), WORLD_WAIT_MS),
       128 + SIGKILL);
}

static int
sweep(const char *name, sv_error *err)
{
    (void)name;
    return sv_sweep(NULL, NULL, NULL, 0, NULL, NULL, err);
}

/* A sweeper that was killed leaves at most lock files of the pool's name, whose locks are free. */
static void
after_sweeping(const char *name)
{
    sv_owner *owner = NULL;
    char found[SV_MAX_NAME_BYTES + 1];
    EQ(sweep(name, NULL), 0);
    EQ(sv_list(NULL, note_name, found, NULL), 0);
    CHECK(!world_exists(name, ".ready"));
    EQ(sv_segment_remove(name, NULL, NULL), 0);
    EQ(sv_owner_acquire(name, NULL, NULL, &owner, NULL), 0);
    sv_owner_release(owner);
    EQ(world_files(), 0);
}

/* Of what cannot be looked at a sweeper knows nothing: it may say that all went well. */
static void
settle_swept(const char *name, int status)
{
    (void)status;
    after_sweeping(name);
}

static void
sweeping(void)
{
    INJECT(.what = "sweep", .before = before_orphans, .verb = sweep, .settle = settle_swept,
           .after = after_sweeping, .steps = 4, .calls = 20);
}

int
main(void)
{
    world_begin(110);
    RUN(making);
    RUN(pinning);
    RUN(mapping_privately);
    RUN(removing);
    RUN(removing_what_the_dead_pin);
    RUN(removing_what_was_never_written);
    RUN(sweeping);
    return world_end();
}
