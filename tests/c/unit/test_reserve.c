/* Reservations and views prove what they stand for: stale copies of them are refused. */
#include <string.h>

#include "error.h"
#include "world.h"

/* ---- reservations (rule W7) ---------------------------------------------------------------- */

/* Every verb that takes a reservation refuses this one, and the buffer is left alone. */
static void
is_refused(sv_reservation *stale)
{
    sv_array array = {.size_bytes = 8, .itemsize = 8, .ndim = 1, .shape = {1}};
    sv_chunk chunk = {.arrays = &array, .array_count = 1};
    sv_error err = {.message = ""};
    uint32_t slot = 77;
    EQ(sv_publish(stale, 1, &err), SV_EINVAL);
    HAS(err.message, "copy");
    EQ(sv_publish_next(stale, &slot, NULL), SV_EINVAL);
    EQ(slot, 77);
    EQ(sv_fill(stale, &chunk, NULL), SV_EINVAL);
    sv_prefault(stale, 64);
    sv_cancel(stale);
}

static void
a_copy_of_a_published_reservation_is_refused(void)
{
    sv_segment *segment = world_segment(world_name("published"), 2);
    sv_reservation reservation;
    EQ(sv_reserve(segment, 0, &reservation, NULL), 0);
    EQ(world_fill(&reservation, 7), 0);
    sv_reservation copy = reservation;
    EQ(sv_publish(&reservation, 0, NULL), 0);
    is_refused(&copy);
    EQ(world_stamp(segment, 0), 7);
    EQ(world_stamp(segment, 1), 2);
    EQ(sv_check(segment, NULL), 0);
    world_audit(segment, 0, 0);
    world_drop(segment);
}

static void
a_copy_is_refused_after_its_buffer_was_reserved_again(void)
{
    sv_segment *segment = world_segment(world_name("again"), 2);
    sv_reservation first;
    sv_reservation all[6];
    uint32_t count = 0;
    EQ(sv_reserve(segment, 0, &first, NULL), 0);
    EQ(world_fill(&first, 7), 0);
    sv_reservation copy = first;
    sv_cancel(&first);
    /* Every buffer that is free: the copy's is one of them. */
    while (count < 6 && sv_reserve(segment, 0, &all[count], NULL) == 0) {
        EQ(world_fill(&all[count], 100 + count), 0);
        count++;
    }
    EQ(count, 4);
    is_refused(&copy);
    EQ(sv_reserve(segment, 0, &first, NULL), SV_EINUSE); /* the copy freed nothing */
    EQ(sv_publish(&all[0], 0, NULL), 0);
    EQ(world_stamp(segment, 0), 100);
    for (uint32_t i = 1; i < count; i++) {
        sv_cancel(&all[i]);
    }
    world_audit(segment, 0, 0);
    world_drop(segment);
}

static void
a_failed_publication_leaves_the_proof(void)
{
    sv_segment *segment = world_segment(world_name("proof"), 4);
    sv_reservation reservation;
    uint32_t slot = 77;
    EQ(sv_reserve(segment, 0, &reservation, NULL), 0);
    EQ(world_fill(&reservation, 9), 0);
    EQ(sv_publish_next(&reservation, &slot, NULL), SV_EFULL);
    EQ(sv_publish(&reservation, 4, NULL), SV_EINDEX);
    EQ(world_fill(&reservation, 10), 0);
    EQ(sv_publish(&reservation, 3, NULL), 0);
    EQ(world_stamp(segment, 3), 10);
    world_audit(segment, 0, 0);
    world_drop(segment);
}

static void
a_copy_is_refused_after_the_segment_was_closed(void)
{
    sv_segment *segment = world_segment(world_name("closed"), 2);
    sv_reservation reservation;
    EQ(sv_reserve(segment, 0, &reservation, NULL), 0);
    EQ(world_fill(&reservation, 7), 0);
    sv_reservation copy = reservation;
    sv_cancel(&reservation);
    world_drop(segment);
    EQ(sv_publish(&copy, 0, NULL), SV_ECLOSED);
    /* The mapping's struct serves another segment now (rule V3). */
    segment = world_segment(world_name("another"), 2);
    sv_error err = {.message = ""};
    EQ(sv_publish(&copy, 0, &err), SV_EINVAL);
    sv_cancel(&copy);
    EQ(world_stamp(segment, 0), 1);
    world_audit(segment, 0, 0);
    world_drop(segment);
}

static sv_segment *taker;
static sv_reservation taken;

static void
take_what_was_released(const char *step)
{
    if (strcmp(step, "cancel.released") == 0) {
        svi_step_hook = NULL;
        EQ(sv_reserve(taker, 0, &taken, NULL), 0);
    }
}

/* A buffer is given back before its reservation has ended here: another thread may have it by then. */
static void
the_end_of_a_reservation_leaves_the_next_one_alone(void)
{
    sv_reservation first, second;
    taker = world_segment(world_name("thread"), 4); /* of 4, with 2 spare buffers */
    EQ(sv_reserve(taker, 0, &first, NULL), 0);
    EQ(sv_reserve(taker, 0, &second, NULL), 0);
    svi_step_hook = take_what_was_released;
    sv_cancel(&first);
    CHECK(svi_step_hook == NULL);
    EQ(world_fill(&taken, 9), 0);
    EQ(sv_publish(&taken, 3, NULL), 0);
    EQ(world_stamp(taker, 3), 9);
    sv_cancel(&second);
    world_audit(taker, 0, 0);
    world_drop(taker);
}

/* ---- views (rule P4) ----------------------------------------------------------------------- */

static void
a_copy_of_a_view_shows_nothing_once_nothing_is_pinned(void)
{
    sv_segment *segment = world_segment(world_name("view"), 2);
    sv_view view;
    sv_array array;
    sv_chunk_info info;
    double meta[SV_MAX_META];
    EQ(sv_pin(segment, 0, &view), 0);
    sv_view copy = view;
    EQ(sv_view_array(&copy, 0, &array), 0);
    CHECK(sv_view_meta(&copy, meta) != 0);
    sv_unpin(&view);
    EQ(sv_view_array(&copy, 0, &array), SV_ECLOSED);
    EQ(sv_view_meta(&copy, meta), 0);
    sv_view_info(&copy, &info);
    EQ(info.version, 0);
    sv_unpin(&copy); /* takes no pin away: none is there */
    sv_unpin(NULL);
    sv_cancel(NULL);
    world_audit(segment, 0, 0);
    world_drop(segment);
}

int
main(void)
{
    world_begin(50);
    RUN(a_copy_of_a_published_reservation_is_refused);
    RUN(a_copy_is_refused_after_its_buffer_was_reserved_again);
    RUN(a_failed_publication_leaves_the_proof);
    RUN(a_copy_is_refused_after_the_segment_was_closed);
    RUN(the_end_of_a_reservation_leaves_the_next_one_alone);
    RUN(a_copy_of_a_view_shows_nothing_once_nothing_is_pinned);
    return world_end();
}
