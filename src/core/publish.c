/*
 * Writing (rules W3-W5, A1-A3): fill a reserved buffer, make it current by one word.
 */
#include <errno.h>
#include <string.h>

#include "array.h"
#include "copy.h"
#include "error.h"
#include "event.h"
#include "os.h"
#include "parallel.h"
#include "reserve.h"
#include "row.h"
#include "stats.h"

#define CLAIM_ATTEMPTS 2000
#define PUBLISH_THREAD_BYTES (UINT64_C(8) << 20) /* at least so much for each further thread */

/* ---- filling ------------------------------------------------------------------------------- */

static int
publish_check_array(const svi_mapping *m, const sv_array *array, uint32_t index, uint64_t *end,
                    sv_error *err)
{
    uint64_t product = 0;
    if (!svi_array_bytes(array->itemsize, array->ndim, array->shape, &product)) {
        return svi_fail(err, SV_EINVAL, 0, "fill",
                        "array %u has %u dimensions (at most %d), itemsize %u (at least 1), or a "
                        "shape that overflows",
                        index, array->ndim, SV_MAX_NDIM, array->itemsize);
    }
    if (array->dtype[0] == '\0' && array->itemsize != m->g.itemsize) {
        return svi_fail(err, SV_EINVAL, 0, "fill",
                        "array %u has itemsize %u, the dtype of '%s' (%s) has %u", index,
                        array->itemsize, m->name, m->dtype, m->g.itemsize);
    }
    if (product != array->size_bytes) {
        return svi_fail(err, SV_EINVAL, 0, "fill",
                        "array %u has size_bytes %llu, its shape and itemsize give %llu", index,
                        (unsigned long long)array->size_bytes, (unsigned long long)product);
    }
    uint64_t offset = (*end + SVI_LINE - 1) / SVI_LINE * SVI_LINE;
    if (offset > m->g.chunk_size || array->size_bytes > m->g.chunk_size - offset) {
        return svi_fail(err, SV_ETOOBIG, 0, "fill",
                        "the chunk needs %llu bytes, chunk_size of '%s' is %llu",
                        (unsigned long long)(offset + array->size_bytes), m->name,
                        (unsigned long long)m->g.chunk_size);
    }
    if (memchr(array->name, '\0', sizeof array->name) == NULL ||
        memchr(array->dtype, '\0', sizeof array->dtype) == NULL) {
        return svi_fail(err, SV_EINVAL, 0, "fill", "name or dtype of array %u is not terminated",
                        index);
    }
    *end = offset + array->size_bytes;
    return 0;
}

int
svi_chunk_check(const svi_mapping *m, const sv_chunk *chunk, sv_error *err)
{
    if (chunk->array_count < 1 || chunk->array_count > m->g.max_arrays || chunk->arrays == NULL) {
        return svi_fail(err, SV_EINVAL, 0, "fill",
                        "a chunk of '%s' has 1 to %u arrays (max_arrays), found %u", m->name,
                        m->g.max_arrays, chunk->array_count);
    }
    if (chunk->meta_count > SV_MAX_META || (chunk->meta_count != 0 && chunk->meta == NULL)) {
        return svi_fail(err, SV_EINVAL, 0, "fill", "meta holds at most %d values, found %u",
                        SV_MAX_META, chunk->meta_count);
    }
    uint64_t end = 0;
    int status = 0;
    for (uint32_t i = 0; i < chunk->array_count && status == 0; i++) {
        status = publish_check_array(m, &chunk->arrays[i], i, &end, err);
    }
    return status;
}

static void
publish_copy(const svi_mapping *m, void *to, const sv_array *from)
{
    bool stream = svi_copy_streams(from->size_bytes, m->g.segment_bytes - m->g.off_payload);
    uint32_t threads = svi_parallel_threads(0, from->size_bytes, PUBLISH_THREAD_BYTES);
    svi_copy_parallel(to, from->data, from->size_bytes, stream, threads); /* fenced, W5 */
}

static void
publish_describe(svm_array *to, const sv_array *from, uint64_t offset)
{
    to->a_offset = offset;
    to->a_bytes = from->size_bytes;
    to->a_itemsize = from->itemsize;
    to->a_ndim = from->ndim;
    memcpy(to->a_shape, from->shape, from->ndim * sizeof from->shape[0]);
    memcpy(to->a_name, from->name, sizeof to->a_name);
    memcpy(to->a_dtype, from->dtype, sizeof to->a_dtype);
}

int
sv_fill(sv_reservation *reservation, const sv_chunk *chunk, sv_error *err)
{
    svi_mapping *m = NULL;
    unsigned char *rw = NULL;
    int status;
    if ((status = svi_reservation_check(reservation, "fill", &m, &rw, err)) != 0 ||
        (status = svi_chunk_check(m, chunk, err)) != 0) {
        return status;
    }
    svm_buffer *header = svi_buffer_at(m, rw, reservation->buffer_);
    uint64_t end = 0;
    for (uint32_t i = 0; i < chunk->array_count; i++) {
        const sv_array *from = &chunk->arrays[i];
        uint64_t offset = (end + SVI_LINE - 1) / SVI_LINE * SVI_LINE;
        end = offset + from->size_bytes;
        publish_describe(&header->b_arrays[i], from, offset);
        if (from->data != NULL) {
            svi_prefault(m, rw, reservation->buffer_, end);
            publish_copy(m, (unsigned char *)reservation->data + offset, from);
        }
    }
    header->b_array_count = chunk->array_count;
    header->b_meta_count = chunk->meta_count;
    if (chunk->meta_count != 0) {
        memcpy(header->b_meta, chunk->meta, chunk->meta_count * sizeof chunk->meta[0]);
    }
    header->b_source_index = chunk->source_index;
    header->b_source_epoch = chunk->source_epoch;
    reservation->state_ = SVI_RESERVATION_FILLED;
    return 0;
}

/* ---- publishing ---------------------------------------------------------------------------- */

/* Claim the current buffer as well, so that nobody refills it while its reads are counted. Another
 * writer's claim is short; a dead one's must not hold us up: then we count without it. */
static bool
publish_claim_current(svm_buffer *header, uint32_t row)
{
    for (int attempt = 0; attempt < CLAIM_ATTEMPTS; attempt++) {
        if (svi_cas_seq(&header->b_writer, 0, (uint64_t)row + 1)) { /* E6 */
            SVI_STEP("publish.claimed");
            return true;
        }
        if (attempt % 64 == 63) {
            svi_os_sleep_ns(1000);
        }
    }
    return false;
}

static int
publish_check_filled(const sv_reservation *reservation, const char *operation, svi_mapping **m,
                     unsigned char **rw, sv_error *err)
{
    int status = svi_reservation_check(reservation, operation, m, rw, err);
    if (status == 0 && reservation->state_ != SVI_RESERVATION_FILLED) {
        status = svi_fail(err, SV_EINVAL, 0, operation,
                          "nothing was filled into the reservation; call sv_fill() first");
    }
    return status;
}

/* The buffer that a publication displaces. */
typedef struct publish_old {
    svm_buffer *header;
    uint32_t buffer;
    bool claimed;
    uint64_t read_base;
} publish_old;

/* Make the reserved buffer current in a slot that is filled (rules W3, W4). Both claims stay. */
static int
publish_commit(const svi_mapping *m, unsigned char *rw, uint32_t slot, uint32_t buffer,
               publish_old *old, sv_error *err)
{
    svm_slot *target = &svi_slots_at(m, rw)[slot];
    svm_buffer *fresh = svi_buffer_at(m, rw, buffer);
    for (;;) {
        uint64_t seen = svi_load_seq(&target->s_word); /* E2 */
        old->buffer = svi_slot_buffer(seen);
        if (seen == SVI_EMPTY || old->buffer >= m->g.buffer_count) {
            return svi_fail(err, SV_EFORMAT, 0, "publish", "slot %u of '%s' is damaged", slot,
                            m->name);
        }
        old->header = svi_buffer_at(m, rw, old->buffer);
        old->claimed = publish_claim_current(old->header, m->hold.row);
        old->read_base = svi_load_relaxed(&old->header->b_read_base);
        uint64_t version = svi_load_relaxed(&old->header->b_version) + 1;
        /* Release, for who counts without a pin: a number that is seen early shows the change too. */
        svi_store_release(&fresh->b_version, version);                               /* C4 */
        svi_store_release(&fresh->b_read_base, svi_buffer_reads_settled(m, buffer)); /* C4 */
        svi_store_relaxed(&fresh->b_published_ns, svi_os_realtime_ns()); /* relaxed: for people */
        svi_store_seq(&fresh->b_slot, (uint64_t)slot + 1);               /* ordered by E6 */
        SVI_STEP("publish.addressed");
        /* The commit: everything above is visible to who sees it. */
        if (svi_cas_seq(&target->s_word, seen,
                        svi_slot_successor(seen, buffer))) { /* E1, E2, E3, E15 */
            SVI_STEP("publish.committed");
            return 0;
        }
        if (old->claimed) {
            svi_store_seq(&old->header->b_writer, 0); /* E6 */
            SVI_STEP("publish.dropped");
        }
    }
}

int
sv_publish(sv_reservation *reservation, uint32_t slot, sv_error *err)
{
    svi_mapping *m = NULL;
    unsigned char *rw = NULL;
    publish_old old = {.header = NULL};
    int status;
    if ((status = publish_check_filled(reservation, "publish", &m, &rw, err)) != 0) {
        return status;
    }
    if (slot >= svi_size(m)) {
        return svi_fail(err, SV_EINDEX, 0, "publish", "slot %u of '%s' is not there: it has %u",
                        slot, m->name, svi_size(m));
    }
    if ((status = publish_commit(m, rw, slot, reservation->buffer_, &old, err)) != 0) {
        return status;
    }
    svi_stats_count(m, rw, slot, svi_reads_since(svi_buffer_reads(m, old.buffer), old.read_base));
    SVI_STEP("publish.counted");
    /* Only now, and the old one too: a claim dropped before the commit lets two writers meet. */
    svi_store_seq(&svi_buffer_at(m, rw, reservation->buffer_)->b_writer, 0); /* E6 */
    SVI_STEP("publish.released");
    if (old.claimed) {
        svi_store_seq(&old.header->b_writer, 0); /* E6 */
        SVI_STEP("publish.finished");
    }
    svi_hint(rw, old.buffer);
    svi_event_tell(rw, SVI_EVENT_CHANGED); /* while the reservation keeps the map */
    svi_event_tell(rw, SVI_EVENT_FREE);
    svi_reservation_end(m, reservation);
    return 0;
}

int
sv_publish_next(sv_reservation *reservation, uint32_t *slot, sv_error *err)
{
    svi_mapping *m = NULL;
    unsigned char *rw = NULL;
    int status;
    if ((status = publish_check_filled(reservation, "append", &m, &rw, err)) != 0) {
        return status;
    }
    svm_header *header = svi_header_at(rw);
    svm_buffer *fresh = svi_buffer_at(m, rw, reservation->buffer_);
    uint64_t index = 0;
    bool won = false;
    svi_store_release(&fresh->b_version, 1); /* C4 */
    svi_store_release(&fresh->b_read_base,
                      svi_buffer_reads_settled(m, reservation->buffer_)); /* C4 */
    svi_store_relaxed(&fresh->b_published_ns, svi_os_realtime_ns());      /* relaxed: for people */
    while (!won) {
        index = svi_load_seq(&header->h_size); /* E5 */
        if (index >= m->g.slot_count) {
            return svi_fail(err, SV_EFULL, 0, "append",
                            "all %u slots of '%s' are filled; replace one, or make the pool larger "
                            "(max_memory_size or slot_count)",
                            m->g.slot_count, m->name);
        }
        svi_store_seq(&fresh->b_slot, index + 1); /* ordered by E6 */
        SVI_STEP("append.addressed");
        won = svi_cas_seq(&svi_slots_at(m, rw)[index].s_word, SVI_EMPTY,
                          svi_slot_word(reservation->buffer_, 1)); /* E1, E3, E15 */
        SVI_STEP("append.committed");
        /* Won or lost: the slot is filled, and whoever filled it may be dead. */
        (void)svi_cas_seq(&header->h_size, index, index + 1); /* E5, E15 */
        SVI_STEP("append.counted");
    }
    svi_store_seq(&fresh->b_writer, 0); /* E6 */
    SVI_STEP("append.released");
    svi_event_tell(rw, SVI_EVENT_CHANGED); /* while the reservation keeps the map */
    svi_event_tell(rw, SVI_EVENT_FILLED);
    svi_reservation_end(m, reservation);
    *slot = (uint32_t)index;
    return 0;
}
