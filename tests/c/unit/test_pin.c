/* Pins and views: the chunk stays as it was, the counts are exact, nothing read is believed. */
#include "pin.h"

#include <pthread.h>
#include <string.h>

#include "error.h"
#include "row.h"
#include "steps.h"

static uint64_t
pins_of(sv_segment *segment, uint32_t slot)
{
    sv_slot_stats stats = {.pins = 99};
    (void)EQ(sv_slot_stats_get(segment, slot, &stats), 0);
    return stats.pins;
}

static uint64_t
reads_of(sv_segment *segment, uint32_t slot)
{
    sv_slot_stats stats = {.reads = 99};
    (void)EQ(sv_slot_stats_get(segment, slot, &stats), 0);
    return stats.reads;
}

static void
a_view_shows_its_chunk(void)
{
    sv_segment *segment = world_segment(world_name("view"), 2);
    sv_chunk_info info;
    sv_array array;
    sv_view view;
    double meta[SV_MAX_META];
    EQ(sv_pin(segment, 1, &view), 0);
    EQ((uintptr_t)view.data % 64, 0);
    EQ(view.size_bytes, 512);
    EQ(view.itemsize, 8);
    EQ(view.ndim, 1);
    EQ(view.shape[0], 64);
    EQ(view.array_count, 1);
    EQ(view.slot, 1);
    EQ(*(const uint64_t *)view.data, 2);
    EQ(sv_view_meta(&view, meta), 1);
    EQ(meta[0], 2);
    sv_view_info(&view, &info);
    EQ(info.version, 1);
    EQ(info.source_index, 2);
    EQ(info.source_epoch, ~UINT64_C(2));
    CHECK(info.published_ns > UINT64_C(1600000000000000000));
    EQ(sv_view_array(&view, 0, &array), 0);
    CHECK(array.data == view.data);
    EQ(array.size_bytes, 512);
    EQ_STR(array.name, "");
    EQ_STR(array.dtype, "");
    sv_unpin(&view);
    world_audit(segment, 0, 0);
    world_drop(segment);
}

static void
reads_and_pins_are_counted_apart(void)
{
    sv_segment *segment = world_segment(world_name("count"), 2);
    sv_view a;
    sv_view b;
    EQ(sv_pin(segment, 0, &a), 0);
    EQ(sv_pin_quiet(segment, 0, &b), 0);
    EQ(pins_of(segment, 0), 2);
    EQ(reads_of(segment, 0), 1);
    EQ(pins_of(segment, 1), 0);
    sv_unpin(&a);
    sv_unpin(&a); /* a second call does nothing */
    EQ(pins_of(segment, 0), 1);
    sv_unpin(&b);
    EQ(pins_of(segment, 0), 0);
    EQ(reads_of(segment, 0), 1);
    world_drop(segment);
}

static void
slots_out_of_range_are_refused(void)
{
    sv_segment *segment = world_open(world_name("range"), NULL, SV_OPEN_CREATE);
    sv_view view;
    memset(&view, 0xee, sizeof view);
    sv_view before = view;
    EQ(sv_pin(segment, 0, &view), SV_EINDEX);
    EQ(world_append(segment, 1), 0);
    EQ(sv_pin(segment, 1, &view), SV_EINDEX);
    EQ(sv_pin_quiet(segment, UINT32_MAX, &view), SV_EINDEX);
    EQ(memcmp(&view, &before, sizeof view), 0); /* written only on success */
    world_drop(segment);
}

static void
a_view_keeps_its_chunk_whatever_becomes_of_the_slot(void)
{
    sv_segment *segment = world_segment(world_name("keep"), 4);
    sv_view view;
    uint64_t stamp = 0;
    EQ(sv_pin(segment, 2, &view), 0);
    for (uint64_t i = 0; i < 50; i++) {
        EQ(world_publish(segment, 2, 100 + i), 0);
        EQ(world_publish(segment, (uint32_t)(i % 2), 200 + i), 0);
        CHECK(world_whole(&view, &stamp));
        EQ(stamp, 3);
    }
    EQ(world_stamp(segment, 2), 149);
    EQ(pins_of(segment, 2), 0); /* the slot's pins are those of its current chunk */
    world_audit(segment, 1, 1);
    sv_unpin(&view);
    world_audit(segment, 0, 0);
    world_drop(segment);
}

static void
the_row_refuses_an_unpin_without_a_pin(void)
{
    sv_segment *segment = world_segment(world_name("refuse"), 1);
    svi_mapping *m = svi_mapping_of(segment);
    sv_view view;
    sv_view copy;
    EQ(sv_pin(segment, 0, &view), 0);
    copy = view;
    sv_unpin(&view);
    sv_unpin(&copy); /* a copied view was given back already */
    EQ(svi_row_own_pins(m), 0);
    svi_unpin_buffer(m, m->g.buffer_count);
    svi_unpin_buffer(m, UINT32_MAX);
    EQ(reads_of(segment, 0), 1);
    world_audit(segment, 0, 0);
    world_drop(segment);
}

static void
several_arrays_lie_on_their_boundaries(void)
{
    sv_segment *segment = world_open(world_name("arrays"), NULL, SV_OPEN_CREATE);
    unsigned char image[7] = {1, 2, 3, 4, 5, 6, 7};
    uint16_t label[6] = {9, 8, 7, 6, 5, 4};
    sv_array arrays[2] = {{.data = image,
                           .size_bytes = 7,
                           .itemsize = 1,
                           .ndim = 1,
                           .shape = {7},
                           .name = "image",
                           .dtype = "uint8"},
                          {.data = label,
                           .size_bytes = 12,
                           .itemsize = 2,
                           .ndim = 2,
                           .shape = {2, 3},
                           .name = "label",
                           .dtype = "uint16"}};
    double values[SV_MAX_META] = {1, 2, 3, 4, 5, 6, 7, 8};
    double meta[SV_MAX_META] = {0};
    sv_chunk chunk = {.arrays = arrays, .array_count = 2, .meta = values, .meta_count = 8};
    sv_array found = {.itemsize = 77};
    sv_view view;
    EQ(sv_append(segment, &chunk, NULL, NULL), 0);
    EQ(sv_pin(segment, 0, &view), 0);
    EQ(view.array_count, 2);
    EQ(view.size_bytes, 7);
    EQ(sv_view_array(&view, 1, &found), 0);
    EQ((uintptr_t)found.data % 64, 0);
    EQ((uintptr_t)found.data - (uintptr_t)view.data, 64);
    EQ(memcmp(found.data, label, sizeof label), 0);
    EQ(found.ndim, 2);
    EQ(found.shape[0], 2);
    EQ(found.shape[1], 3);
    EQ(found.itemsize, 2);
    EQ_STR(found.name, "label");
    EQ_STR(found.dtype, "uint16");
    found.itemsize = 77;
    EQ(sv_view_array(&view, 2, &found), SV_EINDEX);
    EQ(found.itemsize, 77);
    EQ(sv_view_meta(&view, meta), 8);
    for (size_t i = 0; i < SV_MAX_META; i++) {
        CHECK(meta[i] == values[i]);
    }
    sv_unpin(&view);
    EQ(sv_view_array(&view, 0, &found), SV_ECLOSED); /* given back */
    EQ(sv_view_meta(&view, meta), 0);
    sv_chunk_info info = {.version = 5};
    sv_view_info(&view, &info);
    EQ(info.version, 0);
    world_drop(segment);
}

static void
scalars_and_empty_arrays_survive(void)
{
    sv_segment *segment = world_open(world_name("shapes"), NULL, SV_OPEN_CREATE);
    uint64_t value = 42;
    sv_array scalar = {.data = &value, .size_bytes = 8, .itemsize = 8, .ndim = 0};
    sv_array none = {.data = NULL, .size_bytes = 0, .itemsize = 8, .ndim = 3, .shape = {5, 0, 3}};
    sv_array deep = {.data = &value, .size_bytes = 8, .itemsize = 8, .ndim = SV_MAX_NDIM};
    for (size_t i = 0; i < SV_MAX_NDIM; i++) {
        deep.shape[i] = 1;
    }
    sv_chunk chunk = {.arrays = &scalar, .array_count = 1};
    sv_view view;
    EQ(sv_append(segment, &chunk, NULL, NULL), 0);
    chunk.arrays = &none;
    EQ(sv_append(segment, &chunk, NULL, NULL), 0);
    none.shape[0] = UINT64_MAX; /* overflows without the 0 */
    EQ(sv_append(segment, &chunk, NULL, NULL), SV_EINVAL);
    chunk.arrays = &deep;
    EQ(sv_append(segment, &chunk, NULL, NULL), 0);
    EQ(sv_pin(segment, 0, &view), 0);
    EQ(view.ndim, 0);
    EQ(view.size_bytes, 8);
    EQ(*(const uint64_t *)view.data, 42);
    sv_unpin(&view);
    EQ(sv_pin(segment, 1, &view), 0);
    EQ(view.ndim, 3);
    EQ(view.shape[1], 0);
    EQ(view.size_bytes, 0);
    CHECK(view.data != NULL);
    sv_unpin(&view);
    EQ(sv_pin(segment, 2, &view), 0);
    EQ(view.ndim, SV_MAX_NDIM);
    sv_unpin(&view);
    world_drop(segment);
}

/* ---- races, played in one thread through the step hook ------------------------------------- */

static sv_segment *racing;
static uint64_t race_left;
static uint64_t race_undone;

static void
publish_after_each_pin(const char *name)
{
    race_undone += strcmp(name, "pin.undone") == 0;
    if (strcmp(name, "pin.added") == 0 && race_left != 0) {
        void (*hook)(const char *) = svi_step_hook;
        race_left--;
        svi_step_hook = NULL;
        (void)EQ(world_publish(racing, 0, 1000 + race_left), 0);
        svi_step_hook = hook;
    }
}

static void
a_pin_that_lost_the_race_tries_again(void)
{
    sv_view view;
    uint64_t stamp = 0;
    racing = world_segment(world_name("race"), 1);
    race_left = 5;
    race_undone = 0;
    svi_step_hook = publish_after_each_pin;
    EQ(sv_pin(racing, 0, &view), 0);
    steps_off();
    EQ(race_undone, 5);
    CHECK(world_whole(&view, &stamp));
    EQ(stamp, 1000); /* the last one published */
    EQ(reads_of(racing, 0), 1);
    sv_unpin(&view);
    world_audit(racing, 0, 0);
    world_drop(racing);
}

static void
a_slot_that_never_rests_is_given_up(void)
{
    sv_view view = {.slot = 7};
    racing = world_segment(world_name("endless"), 1);
    race_left = 1000000;
    race_undone = 0;
    svi_step_hook = publish_after_each_pin;
    EQ(sv_pin(racing, 0, &view), SV_EMODIFIED);
    steps_off();
    EQ(race_undone, 10000);
    EQ(view.slot, 7);
    world_audit(racing, 0, 0);
    world_drop(racing);
}

static void
pins_stop_at_the_limit(void)
{
    sv_segment *segment = world_segment(world_name("limit"), 1);
    svi_mapping *m = svi_mapping_of(segment);
    uint32_t buffer = svi_slot_buffer(svi_load_seq(&svi_slots(m)[0].s_word));
    sv_view view = {.slot = 7};
    EQ(svi_cells_clean(m, buffer), 0); /* or the first pin would do it */
    svi_add_seq(&svi_cells(m)[buffer], SVI_PINS_LIMIT - 1);
    EQ(sv_pin(segment, 0, &view), 0);
    sv_unpin(&view);
    svi_add_seq(&svi_cells(m)[buffer], SVI_PIN);
    EQ(sv_pin(segment, 0, &view), SV_EINUSE);
    EQ(svi_cell_pins(svi_load_seq(&svi_cells(m)[buffer])), SVI_PINS_LIMIT);
    svi_sub_seq(&svi_cells(m)[buffer], SVI_PINS_LIMIT);
    EQ(reads_of(segment, 0), 1);
    world_audit(segment, 0, 0);
    world_drop(segment);
}

/* ---- damage -------------------------------------------------------------------------------- */

static void
refuse_pin(sv_segment *segment, const char *what)
{
    sv_view view = {.slot = 7};
    tap_context("%s", what);
    EQ(sv_pin(segment, 0, &view), SV_EFORMAT);
    EQ(view.slot, 7);
    EQ(svi_row_own_pins(svi_mapping_of(segment)), 0);
    EQ(sv_check(segment, NULL), SV_EFORMAT);
}

static void
a_damaged_slot_or_header_is_no_view(void)
{
    sv_segment *segment = world_segment(world_name("damage"), 1);
    svi_mapping *m = svi_mapping_of(segment);
    unsigned char *rw = NULL;
    EQ(svi_writable(m, &rw, NULL), 0);
    svm_slot *slot = svi_slots_at(m, rw);
    uint64_t word = svi_load_seq(&slot->s_word);
    svm_buffer *header = svi_buffer_at(m, rw, svi_slot_buffer(word));
    svm_array good = header->b_arrays[0];

    svi_store_seq(&slot->s_word, SVI_EMPTY);
    refuse_pin(segment, "empty slot");
    svi_store_seq(&slot->s_word, svi_slot_word(6, 1));
    refuse_pin(segment, "buffer 6 of 6");
    svi_store_seq(&slot->s_word, UINT64_MAX);
    refuse_pin(segment, "slot of ones");
    svi_store_seq(&slot->s_word, word);

    header->b_arrays[0].a_ndim = SV_MAX_NDIM + 1;
    refuse_pin(segment, "ndim");
    header->b_arrays[0] = good;
    header->b_arrays[0].a_bytes = 1025;
    refuse_pin(segment, "bytes over chunk_size");
    header->b_arrays[0] = good;
    header->b_arrays[0].a_bytes = 8;
    refuse_pin(segment, "bytes unlike the shape");
    header->b_arrays[0] = good;
    header->b_arrays[0].a_offset = 64;
    refuse_pin(segment, "offset");
    header->b_arrays[0] = good;
    header->b_arrays[0].a_shape[0] = UINT64_MAX;
    refuse_pin(segment, "shape that overflows");
    header->b_arrays[0] = good;
    header->b_array_count = 0;
    refuse_pin(segment, "no arrays");
    header->b_array_count = 3;
    refuse_pin(segment, "too many arrays");
    header->b_array_count = 1;

    header->b_meta_count = 4000;
    double meta[SV_MAX_META];
    sv_view view;
    EQ(sv_pin(segment, 0, &view), 0);
    EQ(sv_view_meta(&view, meta), SV_MAX_META);
    header->b_meta_count = 1;
    sv_unpin(&view);
    world_audit(segment, 0, 0);
    world_drop(segment);
}

static void
a_damaged_second_array_is_refused(void)
{
    sv_segment *segment = world_open(world_name("second"), NULL, SV_OPEN_CREATE);
    svi_mapping *m = svi_mapping_of(segment);
    unsigned char bytes[8] = {0};
    sv_array one =
        {.data = bytes, .size_bytes = 8, .itemsize = 1, .ndim = 1, .shape = {8}, .dtype = "uint8"};
    sv_array arrays[2] = {one, one};
    sv_chunk chunk = {.arrays = arrays, .array_count = 2};
    sv_array found;
    sv_view view;
    unsigned char *rw = NULL;
    EQ(sv_append(segment, &chunk, NULL, NULL), 0);
    EQ(svi_writable(m, &rw, NULL), 0);
    EQ(sv_pin(segment, 0, &view), 0);
    svm_array *array = &svi_buffer_at(m, rw, view.buffer_)->b_arrays[1];
    svm_array good = *array;
    array->a_offset = 65;
    EQ(sv_view_array(&view, 1, &found), SV_EFORMAT);
    array->a_offset = 1088;
    EQ(sv_view_array(&view, 1, &found), SV_EFORMAT);
    *array = good;
    array->a_bytes = 1024;
    EQ(sv_view_array(&view, 1, &found), SV_EFORMAT);
    *array = good;
    array->a_ndim = 17;
    EQ(sv_view_array(&view, 1, &found), SV_EFORMAT);
    *array = good;
    array->a_shape[0] = 9; /* more than its bytes */
    EQ(sv_view_array(&view, 1, &found), SV_EFORMAT);
    *array = good;
    array->a_itemsize = 2;
    EQ(sv_view_array(&view, 1, &found), SV_EFORMAT);
    *array = good;
    memset(array->a_name, 'n', sizeof array->a_name);
    memset(array->a_dtype, 'd', sizeof array->a_dtype);
    EQ(sv_view_array(&view, 1, &found), 0);
    EQ(strlen(found.name), SV_ARRAY_NAME_BYTES - 1);
    EQ(strlen(found.dtype), SV_DTYPE_BYTES - 1);
    *array = good;
    sv_unpin(&view);
    world_drop(segment);
}

/* ---- threads and killed readers ------------------------------------------------------------ */

#define ROUNDS 2000

static void *
pin_many_times(void *segment)
{
    uintptr_t failures = 0;
    for (int i = 0; i < ROUNDS; i++) {
        sv_view view;
        uint64_t stamp = 0;
        if (sv_pin(segment, (uint32_t)(i % 2), &view) != 0) {
            failures++;
            continue;
        }
        failures += !world_whole(&view, &stamp);
        sv_unpin(&view);
    }
    return (void *)failures;
}

static void
threads_share_a_handle(void)
{
    sv_segment *segment = world_segment(world_name("threads"), 2);
    pthread_t threads[4];
    for (size_t i = 0; i < 4; i++) {
        EQ(pthread_create(&threads[i], NULL, pin_many_times, segment), 0);
    }
    for (size_t i = 0; i < 4; i++) {
        void *failures = NULL;
        EQ(pthread_join(threads[i], &failures), 0);
        EQ((uintptr_t)failures, 0);
    }
    EQ(reads_of(segment, 0) + reads_of(segment, 1), 4 * ROUNDS);
    world_audit(segment, 0, 0);
    world_drop(segment);
}

static void
before_reader(const char *name)
{
    racing = world_segment(name, 3);
}

static int
victim_reads(void *name)
{
    sv_segment *segment = world_open(name, NULL, SV_OPEN_ATTACH);
    sv_view view;
    sv_view other;
    EQ(sv_pin(segment, 0, &view), 0);
    EQ(sv_pin_quiet(segment, 1, &other), 0);
    sv_unpin(&view);
    EQ(sv_pin(segment, 0, &view), 0);
    return 0;
}

static void
after_reader(const char *name)
{
    (void)name;
    EQ(world_replace(racing, 0, 10), 0);
    EQ(world_replace(racing, 1, 11), 0);
    world_audit(racing, 0, 0);
    world_drop(racing);
}

static void
killed_readers_block_nobody(void)
{
    CHECK(steps_kill_everywhere("reader", before_reader, victim_reads, after_reader) >= 7);
}

int
main(void)
{
    world_begin(55);
    RUN(a_view_shows_its_chunk);
    RUN(reads_and_pins_are_counted_apart);
    RUN(slots_out_of_range_are_refused);
    RUN(a_view_keeps_its_chunk_whatever_becomes_of_the_slot);
    RUN(the_row_refuses_an_unpin_without_a_pin);
    RUN(several_arrays_lie_on_their_boundaries);
    RUN(scalars_and_empty_arrays_survive);
    RUN(a_pin_that_lost_the_race_tries_again);
    RUN(a_slot_that_never_rests_is_given_up);
    RUN(pins_stop_at_the_limit);
    RUN(a_damaged_slot_or_header_is_no_view);
    RUN(a_damaged_second_array_is_refused);
    RUN(threads_share_a_handle);
    RUN(killed_readers_block_nobody);
    return world_end();
}
