/* Copies of every size and alignment, past the cache and through it, on one thread and on many. */
#include "copy.h"

#include <stdlib.h>
#include <string.h>

#include "world.h"

#define KIB (UINT64_C(1) << 10)
#define MIB (UINT64_C(1) << 20)
#define MARGIN 128 /* bytes around the destination that nobody may touch */

typedef void copier(void *to, const void *from, size_t bytes);

static void
copy_streaming(void *to, const void *from, size_t bytes)
{
    svi_copy_block(to, from, bytes, true);
    svi_copy_fence();
}

static void
copy_through_cache(void *to, const void *from, size_t bytes)
{
    svi_copy_block(to, from, bytes, false);
}

static void
copy_on_two(void *to, const void *from, size_t bytes)
{
    sv_copy(to, from, bytes, 2);
}

static void
copy_on_many(void *to, const void *from, size_t bytes)
{
    sv_copy(to, from, bytes, 1000);
}

static void
copy_as_chosen(void *to, const void *from, size_t bytes)
{
    sv_copy(to, from, bytes, 0);
}

static unsigned char *source;
static unsigned char *target;

static void
make_room(size_t bytes)
{
    free(source);
    free(target);
    source = world_memory(bytes);
    target = world_memory(bytes + 2 * MARGIN);
    for (size_t i = 0; i < bytes; i++) {
        source[i] = (unsigned char)(i * 31 + i / 251);
    }
    memset(target, 0x77, bytes + 2 * MARGIN);
}

static bool
untouched(const unsigned char *from, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        if (from[i] != 0x77) {
            return false;
        }
    }
    return true;
}

/* The source begins `from` bytes into its memory, the destination `to` bytes behind its margin. */
static void
copy_and_compare(copier *copy, size_t bytes, size_t to, size_t from)
{
    unsigned char *begin = target + MARGIN + to;
    copy(begin, source + from, bytes);
    tap_context("%zu bytes, to +%zu, from +%zu", bytes, to, from);
    EQ(memcmp(begin, source + from, bytes), 0);
    CHECK(untouched(begin - MARGIN, MARGIN));
    CHECK(untouched(begin + bytes, MARGIN - to));
    memset(begin, 0x77, bytes);
}

static void
every_small_size(void)
{
    make_room(KIB);
    for (size_t bytes = 0; bytes < 800; bytes++) {
        copy_and_compare(copy_streaming, bytes, bytes % 67, bytes % 3);
        copy_and_compare(copy_through_cache, bytes, bytes % 67, bytes % 3);
        copy_and_compare(copy_as_chosen, bytes, bytes % 67, bytes % 3);
    }
    sv_copy(NULL, NULL, 0, 0);
}

static void
copy_streaming_avx2(void *to, const void *from, size_t bytes)
{
#ifdef __x86_64__
    svi_testing_avx2_only = true;
    copy_streaming(to, from, bytes);
    svi_testing_avx2_only = false;
#else
    copy_streaming(to, from, bytes);
#endif
}

static void
every_alignment(void)
{
    make_room(70 * KIB);
    for (size_t to = 0; to < 64; to++) {
        copy_and_compare(copy_streaming, 33 * KIB + to, to, 0);
        copy_and_compare(copy_streaming, 20 * KIB, to, 1 + to * 7);
        copy_and_compare(copy_streaming_avx2, 33 * KIB + to, to, 3);
    }
}

/* Groups of four pages, single lines and the rest: sizes around every border between them. */
static void
around_the_groups_of_pages(void)
{
    static const size_t borders[] = {128, 256, 16 * KIB, 32 * KIB, 48 * KIB};
    make_room(50 * KIB);
    for (size_t i = 0; i < sizeof borders / sizeof borders[0]; i++) {
        for (size_t bytes = borders[i] - 66; bytes <= borders[i] + 66; bytes++) {
            copy_and_compare(copy_streaming, bytes, 0, 0);
            copy_and_compare(copy_streaming, bytes, bytes % 64, 5);
            copy_and_compare(copy_streaming_avx2, bytes, 1, bytes % 7);
        }
    }
}

/* The size from which on copies are streamed is the machine's. */
static void
around_the_size_that_is_streamed(void)
{
    size_t least = 0;
    for (size_t bytes = 4 * KIB; least == 0; bytes += 4 * KIB) {
        least = svi_copy_streams(bytes, 0) ? bytes : 0;
    }
    tap_note("copies are streamed from %zu KiB on", least / KIB);
    CHECK(least >= 128 * KIB && least <= MIB);
    CHECK(!svi_copy_streams(least - 1, 0) && svi_copy_streams(UINT64_MAX, 0));
    make_room(least + KIB);
    for (size_t i = 0; i < 130; i += 13) {
        copy_and_compare(copy_as_chosen, least - 1 - i, i % 64, i % 5);
        copy_and_compare(copy_as_chosen, least + i, i % 64, i % 5);
    }
}

/* Chunks of a pool that no cache holds are streamed from a smaller size on; tiny ones never. */
static void
chunks_of_a_large_pool_are_streamed(void)
{
    CHECK(svi_copy_streams(32 * KIB, 64 * MIB));
    CHECK(!svi_copy_streams(4 * KIB, UINT64_MAX));
    CHECK(!svi_copy_streams(32 * KIB, MIB));
    CHECK(!svi_copy_streams(0, 0));
}

static void
on_several_threads(void)
{
    make_room(33 * MIB + KIB);
    copy_and_compare(copy_on_two, 17 * MIB + 77, 0, 5);
    copy_and_compare(copy_on_two, 16 * MIB - 1, 3, 0);
    copy_and_compare(copy_on_many, 33 * MIB + 1, 8, 0);
    copy_and_compare(copy_as_chosen, 16 * MIB, 0, 0);
}

int
main(void)
{
    world_begin(50);
    RUN(every_small_size);
    RUN(every_alignment);
    RUN(around_the_groups_of_pages);
    RUN(around_the_size_that_is_streamed);
    RUN(chunks_of_a_large_pool_are_streamed);
    RUN(on_several_threads);
    free(source);
    free(target);
    return world_end();
}
