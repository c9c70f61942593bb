/* Writing: a free buffer is taken, filled unseen and made current by one word. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "os.h"
#include "world.h"

#define SECOND UINT64_C(1000000000)

static uint64_t
version_of(sv_segment *segment, uint32_t slot)
{
    sv_slot_stats stats = {.writes = 0};
    (void)EQ(sv_slot_stats_get(segment, slot, &stats), 0);
    return stats.writes;
}

/* ---- page faults ---------------------------------------------------------------------------- */

#define WIDE (UINT64_C(1) << 20)

/* Pages of a buffer that this process has in its page tables. */
static int
pages_present(const sv_reservation *reservation)
{
    uint64_t entries[WIDE / SVI_PAGE];
    int present = 0;
    int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    off_t at = (off_t)((uintptr_t)reservation->data / SVI_PAGE * sizeof entries[0]);
    (void)EQ(pread(fd, entries, sizeof entries, at), sizeof entries);
    (void)close(fd);
    for (size_t i = 0; i < WIDE / SVI_PAGE; i++) {
        present += (int)(entries[i] >> 63);
    }
    return present;
}

static void
a_buffer_is_faulted_in_at_once(void)
{
    const int all = (int)(WIDE / SVI_PAGE);
    sv_options options = world_options();
    options.chunk_size = WIDE;
    options.slot_count = 2;
    sv_segment *segment = world_open(world_name("prefault"), &options, SV_OPEN_CREATE);
    struct utsname kernel;
    int major = 0;
    int minor = 0;
    EQ(uname(&kernel), 0);
    EQ(sscanf(kernel.release, "%d.%d", &major, &minor), 2);
    sv_reservation first;
    sv_reservation second;
    EQ(sv_reserve(segment, 0, &first, NULL), 0);
    EQ(sv_reserve(segment, 0, &second, NULL), 0);
    EQ(pages_present(&first), 0);
    sv_prefault(&first, 4096); /* too little to be worth a call */
    EQ(pages_present(&first), 0);
    sv_prefault(&first, UINT64_MAX); /* as much as there is */
    sv_prefault(&second, WIDE / 4);
    int whole = pages_present(&first);
    int part = pages_present(&second);
    sv_prefault(&second, WIDE / 2);
    int more = pages_present(&second);
    sv_cancel(&first);
    sv_prefault(&first, WIDE); /* not open any more: nothing */
    sv_cancel(&second);
    world_audit(segment, 0, 0);
    world_drop(segment);
    if (major < 5 || (major == 5 && minor < 14)) {
        tap_skip("no MADV_POPULATE_WRITE before Linux 5.14");
        return;
    }
    EQ(whole, all);
    CHECK(part >= all / 4); /* more, where pages are huge */
    CHECK(more >= all / 2);
}

/* ---- the life of a reservation ------------------------------------------------------------- */

static void
reserve_fill_publish(void)
{
    sv_segment *segment = world_segment(world_name("life"), 2);
    sv_reservation reservation;
    sv_info info;
    sv_error err = {.code = 3};
    EQ(sv_segment_info(segment, &info), 0);
    EQ(sv_reserve(segment, 0, &reservation, &err), 0);
    EQ((uintptr_t)reservation.data % 64, 0);
    EQ(reservation.capacity_bytes, info.chunk_size);
    EQ(world_fill(&reservation, 7), 0);
    EQ(world_stamp(segment, 1), 2);     /* nobody sees it yet */
    EQ(world_fill(&reservation, 8), 0); /* filling again is allowed */
    EQ(sv_publish(&reservation, 1, &err), 0);
    EQ(world_stamp(segment, 1), 8);
    EQ(world_stamp(segment, 0), 1);
    EQ(version_of(segment, 1), 2);
    EQ(version_of(segment, 0), 1);
    EQ(err.code, 3);
    world_audit(segment, 0, 0);
    world_drop(segment);
}

static void
an_ended_reservation_refuses(void)
{
    sv_segment *segment = world_segment(world_name("ended"), 2);
    sv_reservation reservation;
    sv_array array = {.size_bytes = 8, .itemsize = 8, .ndim = 1, .shape = {1}};
    sv_chunk chunk = {.arrays = &array, .array_count = 1};
    sv_error err = {.message = ""};
    uint32_t slot = 77;
    EQ(sv_reserve(segment, 0, &reservation, NULL), 0);
    EQ(sv_publish(&reservation, 0, &err), SV_EINVAL);
    HAS(err.message, "sv_fill");
    EQ(sv_publish_next(&reservation, &slot, &err), SV_EINVAL);
    EQ(slot, 77);
    EQ(world_fill(&reservation, 9), 0);
    EQ(sv_publish(&reservation, 0, NULL), 0);
    EQ(sv_publish(&reservation, 0, &err), SV_EINVAL);
    HAS(err.message, "not open");
    EQ(sv_fill(&reservation, &chunk, &err), SV_EINVAL);
    EQ(sv_publish_next(&reservation, &slot, &err), SV_EINVAL);
    sv_cancel(&reservation);
    EQ(sv_reserve(segment, 0, &reservation, NULL), 0);
    sv_cancel(&reservation);
    sv_cancel(&reservation); /* a second call does nothing */
    sv_reservation never = {.data = NULL};
    sv_cancel(&never);
    EQ(version_of(segment, 0), 2);
    world_audit(segment, 0, 0);
    world_drop(segment);
}

static void
a_failed_publish_leaves_the_reservation_open(void)
{
    sv_segment *segment = world_segment(world_name("open"), 2);
    sv_reservation reservation;
    sv_error err = {.message = ""};
    EQ(sv_reserve(segment, 0, &reservation, NULL), 0);
    EQ(world_fill(&reservation, 9), 0);
    EQ(sv_publish(&reservation, 2, &err), SV_EINDEX);
    HAS(err.message, "slot 2");
    HAS(err.message, "has 2");
    EQ(sv_publish(&reservation, UINT32_MAX, NULL), SV_EINDEX);
    EQ(sv_publish(&reservation, 1, NULL), 0);
    EQ(world_stamp(segment, 1), 9);
    world_audit(segment, 0, 0);
    world_drop(segment);
}

static void
chunks_are_checked_before_anything_is_written(void)
{
    sv_segment *segment = world_segment(world_name("check"), 1);
    sv_reservation reservation;
    sv_error err = {.message = ""};
    unsigned char bytes[2048] = {0};
    double meta[SV_MAX_META] = {0};
    sv_array arrays[3];
    sv_chunk chunk = {.arrays = arrays, .array_count = 1};
    for (size_t i = 0; i < 3; i++) {
        arrays[i] =
            (sv_array){.data = bytes, .size_bytes = 16, .itemsize = 8, .ndim = 1, .shape = {2}};
    }
    chunk.array_count = 3; /* of at most 2 */
    EQ(sv_replace(segment, 0, &chunk, 0, &err), SV_EINVAL);
    HAS(err.message, "max_arrays");
    EQ(world_stamp(segment, 0), 1);
    chunk.array_count = 1;
    EQ(sv_reserve(segment, 0, &reservation, NULL), 0);
    memset(reservation.data, 0x5a, 64);

    chunk.array_count = 0;
    EQ(sv_fill(&reservation, &chunk, &err), SV_EINVAL);
    HAS(err.message, "1 to 2 arrays");
    chunk.array_count = 3;
    EQ(sv_fill(&reservation, &chunk, &err), SV_EINVAL);
    HAS(err.message, "found 3");
    chunk.array_count = 1;
    chunk.arrays = NULL;
    EQ(sv_fill(&reservation, &chunk, &err), SV_EINVAL);
    chunk.arrays = arrays;
    chunk.meta_count = 9;
    chunk.meta = meta;
    EQ(sv_fill(&reservation, &chunk, &err), SV_EINVAL);
    HAS(err.message, "8 values, found 9");
    chunk.meta_count = 1;
    chunk.meta = NULL;
    EQ(sv_fill(&reservation, &chunk, &err), SV_EINVAL);
    chunk.meta_count = 0;
    arrays[0].ndim = 17;
    EQ(sv_fill(&reservation, &chunk, &err), SV_EINVAL);
    HAS(err.message, "17 dimensions");
    arrays[0].ndim = 1;
    arrays[0].itemsize = 0;
    EQ(sv_fill(&reservation, &chunk, &err), SV_EINVAL);
    arrays[0].itemsize = 8;
    arrays[0].size_bytes = 24;
    EQ(sv_fill(&reservation, &chunk, &err), SV_EINVAL);
    HAS(err.message, "size_bytes 24");
    HAS(err.message, "give 16");
    arrays[0].shape[0] = UINT64_MAX;
    EQ(sv_fill(&reservation, &chunk, &err), SV_EINVAL);
    arrays[0].size_bytes = 1032;
    arrays[0].shape[0] = 129;
    EQ(sv_fill(&reservation, &chunk, &err), SV_ETOOBIG);
    HAS(err.message, "1032");
    HAS(err.message, "1024");
    arrays[0].size_bytes = 16;
    arrays[0].shape[0] = 2;
    chunk.array_count = 2;
    arrays[1].size_bytes = 968; /* 64 + 968 > 1024 */
    arrays[1].shape[0] = 121;
    EQ(sv_fill(&reservation, &chunk, &err), SV_ETOOBIG);
    HAS(err.message, "1032");
    arrays[1].size_bytes = 960;
    arrays[1].shape[0] = 120;
    memset(arrays[1].name, 'n', sizeof arrays[1].name);
    EQ(sv_fill(&reservation, &chunk, &err), SV_EINVAL);
    HAS(err.message, "array 1");
    EQ(*(unsigned char *)reservation.data, 0x5a);
    EQ(sv_publish(&reservation, 0, NULL), SV_EINVAL); /* still nothing is filled */

    arrays[1].name[0] = '\0';
    EQ(sv_fill(&reservation, &chunk, &err), 0);
    EQ(*(unsigned char *)reservation.data, 0);
    sv_cancel(&reservation);
    EQ(sv_append(segment, &chunk, NULL, NULL), 0);
    EQ(sv_replace(segment, 0, &chunk, 0, NULL), 0);
    arrays[0].data = NULL; /* in place is for reservations */
    EQ(sv_append(segment, &chunk, NULL, &err), SV_EINVAL);
    HAS(err.message, "array 0");
    EQ(sv_size(segment), 2);
    EQ(sv_replace(segment, 0, &chunk, 0, NULL), SV_EINVAL);
    EQ(version_of(segment, 0), 2);
    world_drop(segment);
}

/* ---- finding a free buffer ----------------------------------------------------------------- */

static void
every_buffer_can_be_reserved_once(void)
{
    sv_segment *segment = world_open(world_name("all"), NULL, SV_OPEN_CREATE);
    sv_reservation all[6];
    sv_reservation more = {.buffer_ = 77};
    sv_error err = {.message = ""};
    for (size_t i = 0; i < 6; i++) {
        EQ(sv_reserve(segment, 0, &all[i], NULL), 0);
        for (size_t k = 0; k < i; k++) {
            CHECK(all[k].data != all[i].data);
        }
    }
    uint64_t started = svi_os_monotonic_ns();
    EQ(sv_reserve(segment, SECOND / 20, &more, &err), SV_EINUSE);
    uint64_t waited = svi_os_monotonic_ns() - started;
    CHECK(waited >= SECOND / 20);
    EQ(more.buffer_, 77);
    HAS(err.message, "6 buffers");
    double told = 0;
    const char *after = strstr(err.message, " after ");
    CHECK(after != NULL && sscanf(after, " after %lf s", &told) == 1);
    CHECK(told >= 0.049 && told * 1e9 <= (double)waited + 1e6); /* in seconds, rounded */
    HAS(err.message, "spare_buffers");
    for (size_t i = 0; i < 6; i++) {
        sv_cancel(&all[i]);
    }
    world_audit(segment, 0, 0);
    world_drop(segment);
}

static void
a_pinned_buffer_is_never_taken(void)
{
    sv_segment *segment = world_segment(world_name("pinned"), 4);
    sv_view views[2];
    sv_reservation reservation;
    sv_error err = {.message = ""};
    char wanted[32];
    for (uint32_t i = 0; i < 2; i++) {
        EQ(sv_pin(segment, 0, &views[i]), 0);
        EQ(world_publish(segment, 0, 50 + i), 0);
    }
    EQ(sv_reserve(segment, 0, &reservation, &err), SV_EINUSE);
    (void)snprintf(wanted, sizeof wanted, "pid %ld (", (long)getpid());
    HAS(err.message, wanted);
    HAS(err.message, "): 2 views");
    sv_unpin(&views[0]);
    EQ(sv_reserve(segment, 0, &reservation, &err), 0);
    EQ(reservation.buffer_, 0);
    sv_cancel(&reservation);
    sv_unpin(&views[1]);
    world_audit(segment, 0, 0);
    world_drop(segment);
}

static int
unpin_after_a_while(void *argument)
{
    sv_view view;
    sv_segment *segment = world_open(argument, NULL, SV_OPEN_ATTACH);
    EQ(sv_pin(segment, 0, &view), 0);
    world_set(&world_flags[0], 1);
    EQ(world_await(&world_flags[1], 1), true);
    svi_os_sleep_ns(SECOND / 10);
    sv_unpin(&view);
    return 0;
}

static void
reserve_waits_for_a_reader(void)
{
    const char *name = world_name("wait");
    sv_options options = world_options();
    options.slot_count = 1;
    options.spare_buffers = 1;
    sv_segment *segment = world_open(name, &options, SV_OPEN_CREATE);
    sv_reservation reservation;
    EQ(world_append(segment, 1), 0);
    world_flags_clear();
    pid_t pid = world_fork(unpin_after_a_while, (void *)(uintptr_t)name);
    REQUIRE(world_await(&world_flags[0], 1));
    EQ(world_publish(segment, 0, 2), 0);
    EQ(sv_reserve(segment, 0, &reservation, NULL), SV_EINUSE);
    world_set(&world_flags[1], 1);
    EQ(sv_reserve(segment, 10 * SECOND, &reservation, NULL), 0);
    sv_cancel(&reservation);
    EQ(world_wait(pid, WORLD_WAIT_MS), 0);
    world_audit(segment, 0, 0);
    world_drop(segment);
}

static void
damaged_hints_are_forgotten(void)
{
    sv_segment *segment = world_segment(world_name("hints"), 4);
    unsigned char *rw = NULL;
    EQ(svi_writable(svi_mapping_of(segment), &rw, NULL), 0);
    for (size_t i = 0; i < SVI_HINTS; i++) {
        svi_store_seq(&svi_header_at(rw)->h_hints[i], i % 2 == 0 ? UINT64_MAX : 1 + i % 6);
    }
    svi_store_seq(&svi_header_at(rw)->h_walk, UINT64_MAX);
    for (uint64_t i = 0; i < 100; i++) {
        EQ(world_publish(segment, (uint32_t)(i % 4), 100 + i), 0);
    }
    for (uint32_t b = 0; b < 6; b++) {
        svi_store_seq(&svi_buffer_at(svi_mapping_of(segment), rw, b)->b_slot, b == 3 ? 3 : 99);
    }
    EQ(sv_check(segment, NULL), SV_EFORMAT);
    world_drop(segment);
}

static void
a_damaged_slot_is_not_published_to(void)
{
    sv_segment *segment = world_segment(world_name("slot"), 2);
    unsigned char *rw = NULL;
    sv_reservation reservation;
    sv_error err = {.message = ""};
    EQ(svi_writable(svi_mapping_of(segment), &rw, NULL), 0);
    svm_slot *slot = svi_slots_at(svi_mapping_of(segment), rw);
    uint64_t word = svi_load_seq(&slot->s_word);
    EQ(sv_reserve(segment, 0, &reservation, NULL), 0);
    EQ(world_fill(&reservation, 9), 0);
    svi_store_seq(&slot->s_word, svi_slot_word(6, 4));
    EQ(sv_publish(&reservation, 0, &err), SV_EFORMAT);
    HAS(err.message, "slot 0");
    EQ(world_replace(segment, 0, 5), SV_EFORMAT);
    svi_store_seq(&slot->s_word, SVI_EMPTY);
    EQ(sv_publish(&reservation, 0, &err), SV_EFORMAT);
    svi_store_seq(&slot->s_word, word);
    EQ(sv_publish(&reservation, 0, &err), 0);
    world_audit(segment, 0, 0);
    world_drop(segment);
}

/* ---- append and replace -------------------------------------------------------------------- */

static void
append_fills_the_slots_in_order(void)
{
    sv_segment *segment = world_open(world_name("append"), NULL, SV_OPEN_CREATE);
    uint64_t words[2] = {5, 6};
    sv_array array = {.data = words, .size_bytes = 16, .itemsize = 8, .ndim = 1, .shape = {2}};
    sv_chunk chunk = {.arrays = &array, .array_count = 1};
    sv_reservation reservation;
    sv_error err = {.message = ""};
    uint32_t slot = 77;
    for (uint32_t i = 0; i < 4; i++) {
        EQ(sv_append(segment, &chunk, &slot, NULL), 0);
        EQ(slot, i);
        EQ(sv_size(segment), i + 1);
    }
    slot = 77;
    EQ(sv_append(segment, &chunk, &slot, &err), SV_EFULL);
    HAS(err.message, "all 4 slots");
    HAS(err.message, "slot_count");
    EQ(slot, 77);
    EQ(sv_reserve(segment, 0, &reservation, NULL), 0);
    EQ(world_fill(&reservation, 5), 0);
    EQ(sv_publish_next(&reservation, &slot, &err), SV_EFULL);
    EQ(slot, 77);
    EQ(sv_publish(&reservation, 0, NULL), 0); /* the reservation is as it was */
    EQ(world_stamp(segment, 0), 5);
    world_drop(segment);
}

static int
append_until_full(void *name)
{
    sv_segment *segment = world_open(name, NULL, SV_OPEN_ATTACH);
    uint64_t mine = 0;
    int status = 0;
    svi_add_seq(&world_flags[0], 1);
    EQ(world_await(&world_flags[1], 1), true);
    while (status == 0) {
        status = world_append(segment, 1000 * (uint64_t)getpid() + mine);
        mine += status == 0;
    }
    EQ(status, SV_EFULL);
    svi_add_seq(&world_flags[2], mine);
    return 0;
}

static void
many_appenders_fill_every_slot_once(void)
{
    for (int round = 0; round < 5; round++) {
        const char *name = world_name("appenders");
        sv_options options = world_options();
        pid_t pids[4];
        options.slot_count = 50;
        options.spare_buffers = 4;
        sv_segment *segment = world_open(name, &options, SV_OPEN_CREATE);
        world_flags_clear();
        for (size_t i = 0; i < 4; i++) {
            pids[i] = world_fork(append_until_full, (void *)(uintptr_t)name);
        }
        REQUIRE(world_await(&world_flags[0], 4));
        world_set(&world_flags[1], 1);
        for (size_t i = 0; i < 4; i++) {
            EQ(world_wait(pids[i], WORLD_WAIT_MS), 0);
        }
        EQ(svi_load_seq(&world_flags[2]), 50);
        for (uint32_t i = 0; i < 50; i++) {
            for (uint32_t k = 0; k < i; k++) {
                CHECK(world_stamp(segment, i) != world_stamp(segment, k));
            }
        }
        world_audit(segment, 0, 0);
        world_drop(segment);
    }
}

static void
replace_refuses_while_a_view_is_alive(void)
{
    sv_segment *segment = world_segment(world_name("replace"), 2);
    uint64_t word = 5;
    sv_array array = {.data = &word, .size_bytes = 8, .itemsize = 8, .ndim = 0};
    sv_chunk chunk = {.arrays = &array, .array_count = 1};
    sv_error err = {.message = ""};
    sv_stats stats;
    sv_view view;
    char wanted[32];
    EQ(sv_pin(segment, 1, &view), 0);
    EQ(sv_replace(segment, 1, &chunk, SECOND, &err), SV_EINUSE);
    HAS(err.message, "slot 1");
    (void)snprintf(wanted, sizeof wanted, "pid %ld (", (long)getpid());
    HAS(err.message, wanted);
    HAS(err.message, "): 1 view");
    EQ(sv_replace(segment, 1, &chunk, SECOND, NULL), SV_EINUSE);
    sv_stats_get(segment, &stats);
    EQ(stats.blocked_replaces, 2);
    EQ(stats.replace_events, 0);
    EQ(sv_replace(segment, 0, &chunk, 0, NULL), 0); /* another slot is another matter */
    sv_unpin(&view);
    EQ(sv_replace(segment, 1, &chunk, 0, NULL), 0);
    EQ(sv_replace(segment, 2, &chunk, 0, &err), SV_EINDEX);
    HAS(err.message, "has 2");
    sv_stats_get(segment, &stats);
    EQ(stats.blocked_replaces, 2);
    EQ(stats.replace_events, 2);
    world_drop(segment);
}

static void
statistics_follow_the_buffer_through_its_lives(void)
{
    sv_segment *segment = world_segment(world_name("lives"), 1);
    for (uint64_t round = 1; round <= 30; round++) {
        sv_slot_stats stats;
        for (uint64_t i = 0; i < round % 5; i++) {
            sv_view view;
            EQ(sv_pin(segment, 0, &view), 0);
            sv_unpin(&view);
        }
        EQ(sv_slot_stats_get(segment, 0, &stats), 0);
        EQ(stats.reads, round % 5);
        EQ(stats.writes, round);
        EQ(world_publish(segment, 0, 100 + round), 0);
        EQ(sv_slot_stats_get(segment, 0, &stats), 0);
        EQ(stats.reads, 0);
        EQ(stats.last_reads, round % 5);
    }
    world_audit(segment, 0, 0);
    world_drop(segment);
}

/* So large that several threads copy it; its size is no multiple of anything they share out. */
static void
a_large_chunk_arrives_whole(void)
{
    const uint64_t bytes = (UINT64_C(17) << 20) + 12;
    sv_options options = world_options();
    options.chunk_size = bytes;
    options.itemsize = 4;
    options.slot_count = 1;
    sv_segment *segment = world_open(world_name("large"), &options, SV_OPEN_CREATE);
    uint32_t *words = malloc(bytes);
    sv_array array = {.data = words,
                      .size_bytes = bytes,
                      .itemsize = 4,
                      .ndim = 1,
                      .shape = {bytes / 4}};
    sv_chunk chunk = {.arrays = &array, .array_count = 1};
    for (uint32_t round = 1; round <= 3; round++) {
        sv_view view;
        for (uint64_t i = 0; i < bytes / 4; i++) {
            words[i] = (uint32_t)i * 2654435761u + round;
        }
        uint32_t slot = 0;
        EQ(round == 1 ? sv_append(segment, &chunk, &slot, NULL)
                      : sv_replace(segment, 0, &chunk, 0, NULL),
           0);
        EQ(sv_pin(segment, 0, &view), 0);
        EQ(memcmp(view.data, words, bytes), 0);
        sv_unpin(&view);
    }
    free(words);
    EQ(sv_check(segment, NULL), 0);
    world_drop(segment);
}

int
main(void)
{
    world_begin(50);
    RUN(a_large_chunk_arrives_whole);
    RUN(a_buffer_is_faulted_in_at_once);
    RUN(reserve_fill_publish);
    RUN(an_ended_reservation_refuses);
    RUN(a_failed_publish_leaves_the_reservation_open);
    RUN(chunks_are_checked_before_anything_is_written);
    RUN(every_buffer_can_be_reserved_once);
    RUN(a_pinned_buffer_is_never_taken);
    RUN(reserve_waits_for_a_reader);
    RUN(damaged_hints_are_forgotten);
    RUN(a_damaged_slot_is_not_published_to);
    RUN(append_fills_the_slots_in_order);
    RUN(many_appenders_fill_every_slot_once);
    RUN(replace_refuses_while_a_view_is_alive);
    RUN(statistics_follow_the_buffer_through_its_lives);
    return world_end();
}
