/* Pinning and copying out: a reader killed there leaves nothing that holds a writer up. */
#include <stdlib.h>

#include "injection.h"

static sv_view views[3];

static int
pin(const char *name, sv_error *err)
{
    (void)name;
    (void)err;
    int status = sv_pin(inject_mine, 0, &views[0]);
    status = status != 0 ? status : sv_pin(inject_mine, 0, &views[1]);
    return status != 0 ? status : sv_pin_quiet(inject_mine, 2, &views[2]);
}

static void
settle_pins(const char *name, int status)
{
    sv_slot_stats stats;
    (void)name;
    EQ(status, 0);
    EQ(sv_slot_stats_get(inject_mine, 0, &stats), 0);
    EQ(stats.pins, 2);
    EQ(stats.reads, 2);
    for (size_t i = 0; i < 3; i++) {
        uint64_t stamp = 0;
        CHECK(world_whole(&views[i], &stamp));
        sv_unpin(&views[i]);
    }
    inject_detach();
}

static void
pinning(void)
{
    INJECT(.what = "pin", .before = inject_segment, .arrange = inject_attach_surely, .verb = pin,
           .settle = settle_pins, .after = inject_audit, .steps = 3, .silent = true);
}

/* Large chunks, so that the copy runs on several threads. */
#define LARGE (UINT64_C(8) << 20)

static void
before_large(const char *name)
{
    sv_options options = world_options();
    options.chunk_size = LARGE;
    options.slot_count = 2;
    options.spare_buffers = 1;
    inject_subject = world_open(name, &options, SV_OPEN_EXCLUSIVE);
    for (uint64_t stamp = 1; stamp <= 2; stamp++) {
        uint64_t *words = world_memory(LARGE);
        for (size_t i = 0; i < LARGE / sizeof *words; i++) {
            words[i] = stamp;
        }
        const sv_array array = {.data = words,
                                .size_bytes = LARGE,
                                .itemsize = sizeof *words,
                                .ndim = 1,
                                .shape = {LARGE / sizeof *words}};
        const sv_chunk chunk = {.arrays = &array, .array_count = 1};
        EQ(sv_append(inject_subject, &chunk, NULL, NULL), 0);
        free(words);
    }
}

/* Every word of a copied chunk has its stamp. */
static bool
is_whole(const unsigned char *copy, uint64_t stamp)
{
    const uint64_t *words = (const uint64_t *)(const void *)copy;
    for (size_t i = 0; i < LARGE / sizeof *words; i++) {
        if (words[i] != stamp) {
            return false;
        }
    }
    return true;
}

static void
after_large(const char *name)
{
    (void)name;
    EQ(sv_recover(inject_subject, NULL, NULL), 0);
    EQ(sv_check(inject_subject, NULL), 0);
    EQ(world_living(inject_subject), 1);
    for (uint32_t slot = 0; slot < 2; slot++) {
        sv_slot_stats stats;
        EQ(sv_slot_stats_get(inject_subject, slot, &stats), 0);
        EQ(stats.pins, 0);
    }
    world_drop(inject_subject);
    EQ(world_files(), 0);
}

static unsigned char *copies;
static uint32_t threads; /* 0: as many as there are processors, perhaps one */

static int
gather_large(sv_segment *segment, const uint32_t *slots, size_t count, sv_error *err)
{
    sv_gather_options how;
    sv_gather_options_init(&how);
    how.ndim = 1;
    how.shape[0] = LARGE / sizeof(uint64_t);
    how.threads = threads;
    return sv_gather(segment, slots, count, &how, copies, LARGE, err);
}

static int
gather(const char *name, sv_error *err)
{
    static const uint32_t slots[] = {1, 0, 1};
    (void)name;
    copies = copies != NULL ? copies : world_memory(3 * LARGE);
    return gather_large(inject_mine, slots, 3, err);
}

static void
settle_copies(const char *name, int status)
{
    if (status != 0) {
        EQ(gather(name, NULL), 0);
    }
    CHECK(is_whole(copies, 2));
    CHECK(is_whole(copies + LARGE, 1));
    CHECK(is_whole(copies + 2 * LARGE, 2));
    free(copies);
    copies = NULL;
    inject_detach();
}

static void
gathering(void)
{
    threads = 0; /* asks for the processors, and goes on where it is not told */
    INJECT(.what = "gather", .before = before_large, .arrange = inject_attach_surely,
           .verb = gather, .settle = settle_copies, .after = after_large, .steps = 6, .calls = 1);
}

static void
gathering_with_threads(void)
{
    threads = 3; /* also where there is one processor */
    INJECT(.what = "threads", .before = before_large, .arrange = inject_attach_surely,
           .verb = gather, .settle = settle_copies, .after = after_large, .steps = 6, .calls = 2);
}

int
main(void)
{
    world_begin(60);
    RUN(pinning);
    RUN(gathering);
    RUN(gathering_with_threads);
    return world_end();
}
