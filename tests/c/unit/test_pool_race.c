/* A pool that is made again and again under one name while others attach: an old handle keeps its old
 * data, an attachment gives a full pool of one generation. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "os.h"
#include "world.h"

#define REIGNS 60
#define FOLLOWERS 3

static const char *name;

/* Every chunk of reign n has stamp n. */
static int
reign_again_and_again(void *argument)
{
    (void)argument;
    for (uint64_t n = 1; n <= REIGNS; n++) {
        char generation[32];
        sv_options options = world_options();
        sv_segment *segment = NULL;
        sv_owner *owner = NULL;
        (void)snprintf(generation, sizeof generation, "reign-%llu", (unsigned long long)n);
        EQ(sv_owner_acquire(name, NULL, generation, &owner, NULL), 0);
        EQ(sv_pool_create(owner, &options, &segment, NULL), 0);
        for (int i = 0; i < 4; i++) {
            EQ(world_append(segment, n), 0);
        }
        EQ(sv_ready_write(owner, NULL), 0);
        svi_os_sleep_ns(3000000);
        if (n % 2 == 0) { /* seen; the odd ones end at any moment of an attachment */
            CHECK(world_await(&world_flags[2], n));
        }
        EQ(sv_pool_close(owner, segment, NULL), 0);
    }
    world_set(&world_flags[0], 1);
    return 0;
}

/* All four slots have the stamp of the handle's generation; returns which reign it is. */
static uint64_t
check_reign(sv_segment *segment)
{
    sv_info info;
    (void)EQ(sv_segment_info(segment, &info), 0);
    (void)EQ(sv_size(segment), 4);
    uint64_t reign = strtoull(info.generation + strlen("reign-"), NULL, 10);
    for (uint32_t slot = 0; slot < 4; slot++) {
        (void)EQ(world_stamp(segment, slot), reign);
    }
    return reign;
}

static int
follow_until_the_end(void *argument)
{
    sv_segment *before = NULL;
    unsigned generations = 0;
    (void)argument;
    while (svi_load_seq(&world_flags[0]) == 0) {
        sv_options options = world_options();
        sv_segment *now = NULL;
        sv_error err = {.message = ""};
        int status = sv_pool_attach(name, NULL, &options, UINT64_C(200000000), &now, &err);
        if (status != 0) {
            EQ(status, SV_ETIMEDOUT); /* between two reigns, or after the last */
            continue;
        }
        svi_max_seq(&world_flags[2], check_reign(now));
        if (before != NULL) {
            sv_info old;
            sv_info new;
            (void)check_reign(before); /* whatever became of its name */
            (void)sv_segment_info(before, &old);
            (void)sv_segment_info(now, &new);
            bool same = strcmp(old.generation, new.generation) == 0;
            generations += !same;
            CHECK(same || sv_retired_get(before) != SV_RETIRED_NO);
            EQ(sv_segment_close(before, NULL), 0);
        }
        before = now;
    }
    if (before != NULL) {
        EQ(sv_segment_close(before, NULL), 0);
    }
    svi_add_seq(&world_flags[1], generations);
    return 0;
}

static void
made_again_while_others_attach(void)
{
    pid_t followers[FOLLOWERS];
    name = world_name("again");
    world_flags_clear();
    for (size_t i = 0; i < FOLLOWERS; i++) {
        followers[i] = world_fork(follow_until_the_end, NULL);
    }
    world_child(reign_again_and_again, NULL);
    for (size_t i = 0; i < FOLLOWERS; i++) {
        EQ(world_wait(followers[i], WORLD_WAIT_MS), 0);
    }
    /* The even reigns were all seen; the first that a follower sees is no change. */
    CHECK(svi_load_seq(&world_flags[1]) >= REIGNS / 2 - FOLLOWERS);
    tap_note("%d reigns, %llu changes seen by %d followers", REIGNS,
             (unsigned long long)svi_load_seq(&world_flags[1]), FOLLOWERS);
    EQ(world_files(), 0);
}

int
main(void)
{
    world_begin(55);
    RUN(made_again_while_others_attach);
    return world_end();
}
