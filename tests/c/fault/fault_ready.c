/* The ready marker: absent or whole, never another reign's. */
#include "injection.h"

static sv_owner *owner;

static void
arrange(const char *name)
{
    EQ(sv_owner_acquire(name, NULL, "first", &owner, NULL), 0);
}

static int
mark(const char *name, sv_error *err)
{
    (void)name;
    return sv_ready_write(owner, err);
}

static void
settle(const char *name, int status)
{
    char generation[SV_GENERATION_BYTES] = "";
    if (status != 0) {
        EQ(sv_ready_read(name, NULL, generation, NULL), SV_ENOENT);
        EQ(mark(name, NULL), 0);
    }
    EQ(sv_ready_read(name, NULL, generation, NULL), 0);
    EQ_STR(generation, "first");
    EQ(sv_ready_clear(owner, NULL), 0);
    sv_owner_release(owner);
}

static void
after(const char *name)
{
    char generation[SV_GENERATION_BYTES] = "";
    sv_owner *heir = NULL;
    int status = sv_ready_read(name, NULL, generation, NULL);
    CHECK(status == SV_ENOENT || status == 0);
    EQ_STR(generation, status == 0 ? "first" : "");
    EQ(sv_owner_acquire(name, NULL, "second", &heir, NULL), 0);
    EQ(sv_ready_write(heir, NULL), 0);
    EQ(sv_ready_read(name, NULL, generation, NULL), 0);
    EQ_STR(generation, "second");
    EQ(sv_ready_clear(heir, NULL), 0);
    sv_owner_release(heir);
    EQ(world_files(), 0);
}

static void
marking(void)
{
    INJECT(.what = "ready", .arrange = arrange, .verb = mark, .settle = settle, .after = after,
           .steps = 2, .calls = 4);
}

static void
arrange_marked(const char *name)
{
    arrange(name);
    EQ(mark(name, NULL), 0);
}

static int
clear(const char *name, sv_error *err)
{
    (void)name;
    return sv_ready_clear(owner, err);
}

static void
settle_cleared(const char *name, int status)
{
    if (status != 0) {
        EQ(clear(name, NULL), 0);
    }
    EQ(world_exists(name, ".ready"), false);
    sv_owner_release(owner);
}

static void
clearing(void)
{
    INJECT(.what = "clear", .arrange = arrange_marked, .verb = clear, .settle = settle_cleared,
           .after = after, .steps = 1, .calls = 2);
}

static int
read_marker(const char *name, sv_error *err)
{
    char generation[SV_GENERATION_BYTES];
    return sv_ready_read(name, NULL, generation, err);
}

static void
settle_read(const char *name, int status)
{
    (void)status;
    settle(name, 0);
}

static void
reading(void)
{
    INJECT(.what = "readmark", .arrange = arrange_marked, .verb = read_marker,
           .settle = settle_read, .after = after, .calls = 4);
}

int
main(void)
{
    world_begin(60);
    RUN(marking);
    RUN(clearing);
    RUN(reading);
    return world_end();
}
