/*
 * Readers and writers on threads, each with a handle and a row of its own over ONE map, so that
 * ThreadSanitizer sees every race between them. Some of them "die" now and then: their lock goes,
 * their pins and claims stay, and the others recover them.
 *
 * Oracle: a chunk is whole, belongs to its slot, and no slot ever goes back to an older version; at
 * the end no pin, claim or buffer is lost.
 *
 *   TORTURE_SECONDS=60   how long (3)      SEED=1234   repeat the same choices
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "os.h"
#include "world.h"

#define READERS 3
#define WRITERS 2
#define SLOTS 3
#define AGES 8

static sv_segment *first;
static svi_word stop;
static svi_word torn;     /* chunks that were not whole */
static svi_word foreign;  /* chunks of another slot */
static svi_word backward; /* versions that went back */
static svi_word failed;   /* calls that failed for no allowed reason */
static svi_word reads;
static svi_word writes;
static svi_word deaths;
static svi_word blocked;
static svi_word ages[AGES]; /* how many versions a view was behind when it was given back */

typedef struct worker {
    pthread_t thread;
    uint64_t seed;
} worker;

/* A stamp says which slot it was written for. */
static uint64_t
stamp_for(uint64_t random, uint32_t slot)
{
    return (random % (UINT64_C(1) << 40)) * SLOTS + slot + SLOTS;
}

static void
note_age(sv_segment *segment, const sv_view *view, uint64_t version)
{
    sv_view now;
    sv_chunk_info info;
    if (sv_pin_quiet(segment, view->slot, &now) != 0) {
        return;
    }
    sv_view_info(&now, &info);
    sv_unpin(&now);
    uint64_t age = info.version < version ? AGES - 1 : info.version - version;
    svi_add_relaxed(&backward, info.version < version);
    svi_add_relaxed(&ages[age < AGES ? age : AGES - 1], 1);
}

static void
read_once(sv_segment *segment, uint64_t *seed, uint64_t newest[SLOTS])
{
    uint32_t slot = (uint32_t)(world_random(seed) % SLOTS);
    sv_chunk_info info;
    sv_view view;
    uint64_t stamp = 0;
    int status = sv_pin(segment, slot, &view);
    if (status != 0) {
        svi_add_relaxed(&failed, status != SV_EMODIFIED);
        return;
    }
    sv_view_info(&view, &info);
    svi_add_relaxed(&backward, info.version < newest[slot]);
    newest[slot] = info.version;
    for (uint64_t looks = 1 + world_random(seed) % 3; looks != 0; looks--) {
        svi_add_relaxed(&torn, !world_whole(&view, &stamp));
        svi_add_relaxed(&foreign, stamp % SLOTS != slot);
    }
    note_age(segment, &view, info.version);
    sv_unpin(&view);
    svi_add_relaxed(&reads, 1);
}

static void *
read_and_die(void *argument)
{
    worker *me = argument;
    while (svi_load_relaxed(&stop) == 0) {
        uint64_t newest[SLOTS] = {0};
        sv_segment *twin = world_twin(first);
        for (uint64_t n = 200 + world_random(&me->seed) % 800; n != 0; n--) {
            read_once(twin, &me->seed, newest);
        }
        sv_view kept;
        if (world_random(&me->seed) % 2 == 0 && sv_pin(twin, 0, &kept) == 0) {
            svi_add_relaxed(&deaths, 1);
            world_twin_kill(twin); /* with a view in its hands */
        } else {
            world_twin_close(twin);
        }
    }
    return NULL;
}

static void
write_once(sv_segment *segment, uint64_t *seed)
{
    uint32_t slot = (uint32_t)(world_random(seed) % SLOTS);
    sv_reservation reservation;
    int status = sv_reserve(segment, UINT64_C(1000000000), &reservation, NULL);
    if (status != 0) {
        svi_add_relaxed(&blocked, 1);
        svi_add_relaxed(&failed, status != SV_EINUSE);
        return;
    }
    if (world_random(seed) % 16 == 0) {
        memset(reservation.data, 0xff, 64);
        sv_cancel(&reservation);
        return;
    }
    svi_add_relaxed(&failed, world_fill(&reservation, stamp_for(world_random(seed), slot)) != 0);
    svi_add_relaxed(&failed, sv_publish(&reservation, slot, NULL) != 0);
    svi_add_relaxed(&writes, 1);
}

static void *
write_and_die(void *argument)
{
    worker *me = argument;
    while (svi_load_relaxed(&stop) == 0) {
        sv_segment *twin = world_twin(first);
        for (uint64_t n = 50 + world_random(&me->seed) % 200; n != 0; n--) {
            write_once(twin, &me->seed);
        }
        sv_reservation kept;
        if (world_random(&me->seed) % 2 == 0 && sv_reserve(twin, 0, &kept, NULL) == 0) {
            memset(kept.data, 0xee, 64);
            svi_add_relaxed(&deaths, 1);
            world_twin_kill(twin); /* half-way through a chunk */
        } else {
            world_twin_close(twin);
        }
    }
    return NULL;
}

static bool
enough_is_done(void)
{
    return svi_load_relaxed(&reads) > 100 && svi_load_relaxed(&writes) > 100;
}

static void
torture(void)
{
    const char *given = getenv("TORTURE_SECONDS");
    uint64_t seconds = given != NULL ? strtoull(given, NULL, 10) : 3;
    uint64_t seed = world_seed();
    worker workers[READERS + WRITERS];
    sv_options options = world_options();
    options.slot_count = SLOTS;
    options.spare_buffers = READERS + WRITERS + 1;
    options.max_rows = 12;
    svi_testing_single_map = true;
    first = world_open(world_name("threads"), &options, SV_OPEN_CREATE);
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        EQ(world_append(first, stamp_for(slot, slot)), 0);
    }
    for (size_t i = 0; i < READERS + WRITERS; i++) {
        workers[i].seed = world_random(&seed);
        EQ(pthread_create(&workers[i].thread, NULL, i < READERS ? read_and_die : write_and_die,
                          &workers[i]),
           0);
    }
    uint64_t end = svi_os_monotonic_ns() + seconds * UINT64_C(1000000000);
    uint64_t end_of_patience = end + world_limit_ns(60);
    for (uint64_t now = 0; now < end || (!enough_is_done() && now < end_of_patience);
         now = svi_os_monotonic_ns()) {
        svi_os_sleep_ns(10000000);
        EQ(sv_check(first, NULL), 0);
    }
    svi_store_relaxed(&stop, 1);
    for (size_t i = 0; i < READERS + WRITERS; i++) {
        EQ(pthread_join(workers[i].thread, NULL), 0);
    }
    EQ(svi_load_relaxed(&torn), 0);
    EQ(svi_load_relaxed(&foreign), 0);
    EQ(svi_load_relaxed(&backward), 0);
    EQ(svi_load_relaxed(&failed), 0);
    CHECK(enough_is_done());
    tap_note("deaths=%llu publishes=%llu reads=%llu torn=%llu blocked=%llu",
             (unsigned long long)svi_load_relaxed(&deaths),
             (unsigned long long)svi_load_relaxed(&writes),
             (unsigned long long)svi_load_relaxed(&reads),
             (unsigned long long)svi_load_relaxed(&torn),
             (unsigned long long)svi_load_relaxed(&blocked));
    for (size_t age = 0; age < AGES; age++) {
        tap_note("views %zu%s versions old: %llu", age, age + 1 == AGES ? " or more" : "",
                 (unsigned long long)svi_load_relaxed(&ages[age]));
    }
    world_audit(first, 0, 0);
    world_drop(first);
}

int
main(void)
{
    const char *given = getenv("TORTURE_SECONDS");
    world_begin((given != NULL ? (unsigned)strtoul(given, NULL, 10) : 3) + 120);
    RUN(torture);
    return world_end();
}
