/* Counters: exact at rest, never negative, and reset without touching the slots'. */
#include "stats.h"

#include "row.h"
#include "world.h"

static void
read_times(sv_segment *segment, uint32_t slot, unsigned times)
{
    for (unsigned i = 0; i < times; i++) {
        sv_view view;
        (void)EQ(sv_pin(segment, slot, &view), 0);
        sv_unpin(&view);
    }
}

static void
a_fresh_pool_has_no_counts(void)
{
    sv_segment *segment = world_segment(world_name("fresh"), 2);
    sv_slot_stats slot = {.reads = 9};
    sv_stats stats;
    uint32_t samples[4];
    sv_stats_get(segment, &stats);
    EQ(stats.replace_events, 0);
    EQ(stats.reads_at_replace_total, 0);
    EQ(stats.reads_at_replace_max, 0);
    EQ(stats.blocked_replaces, 0);
    EQ(stats.sample_count, 0);
    EQ(stats.sample_capacity, 8);
    EQ(sv_stats_samples(segment, samples, 4), 0);
    EQ(sv_slot_stats_get(segment, 1, &slot), 0);
    EQ(slot.pins, 0);
    EQ(slot.reads, 0);
    EQ(slot.writes, 1);
    EQ(slot.last_reads, 0);
    slot.reads = 9;
    EQ(sv_slot_stats_get(segment, 2, &slot), SV_EINDEX);
    EQ(slot.reads, 9);
    world_drop(segment);
}

static void
replacements_record_the_reads_of_the_old_chunk(void)
{
    sv_segment *segment = world_segment(world_name("replace"), 2);
    sv_stats stats;
    uint32_t samples[8] = {0};
    read_times(segment, 0, 3);
    EQ(world_publish(segment, 0, 10), 0);
    read_times(segment, 1, 5);
    EQ(world_publish(segment, 1, 11), 0);
    EQ(world_publish(segment, 1, 12), 0);
    sv_stats_get(segment, &stats);
    EQ(stats.replace_events, 3);
    EQ(stats.reads_at_replace_total, 8);
    EQ(stats.reads_at_replace_max, 5);
    EQ(stats.sample_count, 3);
    EQ(sv_stats_samples(segment, samples, 8), 3);
    EQ(samples[0], 3); /* oldest first */
    EQ(samples[1], 5);
    EQ(samples[2], 0);
    EQ(sv_stats_samples(segment, samples, 2), 2);
    EQ(samples[0], 5); /* the newest ones */
    EQ(samples[1], 0);
    EQ(sv_stats_samples(segment, NULL, 0), 0);
    world_drop(segment);
}

static void
the_ring_keeps_the_newest(void)
{
    sv_segment *segment = world_segment(world_name("ring"), 1);
    uint32_t samples[20] = {0};
    sv_stats stats;
    for (unsigned i = 0; i < 13; i++) {
        read_times(segment, 0, i);
        EQ(world_publish(segment, 0, 10 + i), 0);
    }
    sv_stats_get(segment, &stats);
    EQ(stats.sample_count, 8);
    EQ(sv_stats_samples(segment, samples, 20), 8);
    for (uint32_t i = 0; i < 8; i++) {
        EQ(samples[i], 5 + i);
    }
    world_drop(segment);
}

static void
reset_forgets_the_pools_counts_only(void)
{
    sv_segment *segment = world_segment(world_name("reset"), 1);
    uint32_t samples[8];
    sv_slot_stats slot;
    sv_stats stats;
    read_times(segment, 0, 2);
    EQ(world_publish(segment, 0, 10), 0);
    read_times(segment, 0, 4);
    sv_count_blocked(segment, 6);
    sv_stats_get(segment, &stats);
    EQ(stats.blocked_replaces, 6);
    EQ(sv_stats_reset(segment, NULL), 0);
    sv_stats_get(segment, &stats);
    EQ(stats.replace_events, 0);
    EQ(stats.reads_at_replace_total, 0);
    EQ(stats.reads_at_replace_max, 0);
    EQ(stats.blocked_replaces, 0);
    EQ(stats.sample_count, 0);
    EQ(sv_stats_samples(segment, samples, 8), 0);
    EQ(sv_slot_stats_get(segment, 0, &slot), 0);
    EQ(slot.reads, 4);
    EQ(slot.writes, 2);
    EQ(slot.last_reads, 2);
    EQ(world_publish(segment, 0, 11), 0);
    EQ(sv_stats_samples(segment, samples, 8), 1);
    EQ(samples[0], 4);
    world_drop(segment);
}

static void
all_slots_at_once(void)
{
    sv_segment *segment = world_segment(world_name("all"), 3);
    uint64_t reads[4] = {9, 9, 9, 9};
    uint64_t writes[4] = {9, 9, 9, 9};
    uint64_t last[4] = {9, 9, 9, 9};
    read_times(segment, 1, 2);
    EQ(world_publish(segment, 1, 10), 0);
    read_times(segment, 2, 1);
    EQ(sv_slot_stats_all(segment, 4, reads, writes, last), 3);
    EQ(reads[0] + reads[1], 0);
    EQ(reads[2], 1);
    EQ(writes[0], 1);
    EQ(writes[1], 2);
    EQ(last[1], 2);
    EQ(reads[3] + writes[3] + last[3], 27); /* beyond the size nothing is written */
    EQ(sv_slot_stats_all(segment, 2, NULL, NULL, NULL), 2);
    world_drop(segment);
}

static int
read_in_child(void *argument)
{
    sv_segment *segment = argument;
    read_times(segment, 0, 10);
    EQ(sv_counter_add(segment, SV_COUNTER_LOADS, 5), 7);
    return 0;
}

static void
reads_of_other_processes_count_also_when_they_are_gone(void)
{
    sv_segment *segment = world_segment(world_name("others"), 1);
    sv_slot_stats slot;
    EQ(sv_counter_add(segment, SV_COUNTER_LOADS, 7), 0);
    read_times(segment, 0, 1);
    world_child(read_in_child, segment);
    EQ(sv_slot_stats_get(segment, 0, &slot), 0);
    EQ(slot.reads, 11);
    EQ(sv_recover(segment, NULL, NULL), 0);
    EQ(sv_slot_stats_get(segment, 0, &slot), 0);
    EQ(slot.reads, 11);
    EQ(sv_counter_add(segment, SV_COUNTER_LOADS, 0), 12);
    world_drop(segment);
}

static void
counters_are_shared_and_apart(void)
{
    sv_segment *segment = world_segment(world_name("counters"), 1);
    for (int i = 0; i < SV_COUNTER_COUNT; i++) {
        EQ(sv_counter_add(segment, (sv_counter)i, 0), 0);
        EQ(sv_counter_add(segment, (sv_counter)i, (uint64_t)i + 1), 0);
    }
    for (int i = 0; i < SV_COUNTER_COUNT; i++) {
        EQ(sv_counter_add(segment, (sv_counter)i, 0), i + 1);
    }
    EQ(sv_counter_add(segment, SV_COUNTER_COUNT, 1), 0);
    EQ(sv_counter_add(segment, (sv_counter)-1, 1), 0);
    EQ(sv_counter_add(segment, (sv_counter)7, 0), 8);
    world_drop(segment);
}

static void
the_next_slot_to_refresh_is_one_that_was_read(void)
{
    sv_segment *segment = world_open(world_name("next"), NULL, SV_OPEN_CREATE);
    uint32_t slot = 77;
    int unread = 77;
    EQ(sv_refresh_next(segment, &slot, &unread), SV_EINDEX);
    EQ(slot, 77);
    EQ(unread, 77);
    for (uint64_t i = 1; i <= 4; i++) {
        EQ(world_append(segment, i), 0);
    }
    uint32_t seen = 0;
    for (int i = 0; i < 4; i++) {
        EQ(sv_refresh_next(segment, &slot, &unread), 0);
        EQ(unread, 1); /* nobody reads: the next in turn */
        CHECK(slot < 4);
        seen |= 1u << slot;
    }
    EQ(seen, 15); /* all of them, not the same one again */
    read_times(segment, 2, 1);
    for (int i = 0; i < 3; i++) {
        EQ(sv_refresh_next(segment, &slot, &unread), 0);
        EQ(slot, 2);
        EQ(unread, 0);
    }
    EQ(world_publish(segment, 2, 10), 0);
    EQ(sv_refresh_next(segment, &slot, &unread), 0);
    EQ(unread, 1);
    for (uint32_t i = 0; i < 4; i++) {
        read_times(segment, i, 1);
    }
    seen = 0;
    for (int i = 0; i < 4; i++) {
        EQ(sv_refresh_next(segment, &slot, &unread), 0);
        EQ(unread, 0);
        seen |= 1u << slot;
    }
    EQ(seen, 15); /* each one in turn */
    world_drop(segment);
}

static void
reads_wrap_without_a_jump(void)
{
    sv_segment *segment = world_segment(world_name("wrap"), 1);
    svi_mapping *m = svi_mapping_of(segment);
    unsigned char *rw = NULL;
    sv_slot_stats slot;
    EQ(svi_writable(m, &rw, NULL), 0);
    uint32_t buffer = svi_slot_buffer(svi_load_seq(&svi_slots(m)[0].s_word));
    /* 2^40 - 3 reads long ago, all before the publication. */
    svi_store_seq(&svi_cells(m)[buffer], (SVI_READS_MASK - 2) << SVI_PIN_BITS);
    svi_store_seq(&svi_buffer_at(m, rw, buffer)->b_read_base, SVI_READS_MASK - 2);
    read_times(segment, 0, 6);
    EQ(sv_slot_stats_get(segment, 0, &slot), 0);
    EQ(slot.reads, 6);
    EQ(slot.pins, 0);
    EQ(world_publish(segment, 0, 9), 0);
    EQ(sv_slot_stats_get(segment, 0, &slot), 0);
    EQ(slot.last_reads, 6);
    world_audit(segment, 0, 0);
    world_drop(segment);
}

static void
damaged_counters_stay_in_range(void)
{
    sv_segment *segment = world_segment(world_name("damaged"), 1);
    unsigned char *rw = NULL;
    uint32_t samples[8];
    sv_stats stats;
    EQ(svi_writable(svi_mapping_of(segment), &rw, NULL), 0);
    svi_store_seq(&svi_header_at(rw)->h_ring_head, 5);
    svi_store_seq(&svi_header_at(rw)->h_ring_reset, 9);
    sv_stats_get(segment, &stats);
    EQ(stats.sample_count, 0);
    EQ(sv_stats_samples(segment, samples, 8), 0);
    svi_store_seq(&svi_header_at(rw)->h_ring_head, UINT64_MAX);
    EQ(sv_stats_samples(segment, samples, 8), 8);
    svi_stats_count(svi_mapping_of(segment), rw, 0, UINT64_MAX);
    EQ(sv_stats_samples(segment, samples, 8), 0); /* the head has wrapped to 0 */
    sv_stats_get(segment, &stats);
    EQ(stats.reads_at_replace_max, -1);
    world_drop(segment);
}

int
main(void)
{
    world_begin(50);
    RUN(a_fresh_pool_has_no_counts);
    RUN(replacements_record_the_reads_of_the_old_chunk);
    RUN(the_ring_keeps_the_newest);
    RUN(reset_forgets_the_pools_counts_only);
    RUN(all_slots_at_once);
    RUN(reads_of_other_processes_count_also_when_they_are_gone);
    RUN(counters_are_shared_and_apart);
    RUN(the_next_slot_to_refresh_is_one_that_was_read);
    RUN(reads_wrap_without_a_jump);
    RUN(damaged_counters_stay_in_range);
    return world_end();
}
