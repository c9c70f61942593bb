/*
 * The mapping of a segment in this process (rules V1-V3, S4): made once per file, shared by all
 * handles, given back when the last handle and the last view are gone.
 */
#include "mapping.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "block.h"
#include "error.h"
#include "fork.h"
#include "huge.h"
#include "os.h"
#include "row.h"
#include "share.h"

#define MAPPING_PREFAULT_LEAST (UINT64_C(64) << 10) /* bytes; below, the call gains nothing */
#define MAPPING_UNMAP_BYTES (UINT64_C(64) << 20)

#ifdef SVI_TESTING
bool svi_testing_single_map = false;
bool svi_testing_separate = false;
#endif

/* ---- descriptions of the file -------------------------------------------------------------- */

/* The mapping's file, opened by its name; -ENOENT when the name is somebody else's by now. */
static int
mapping_open_named(const svi_mapping *m)
{
    char path[SVI_PATH_BYTES];
    struct stat st;
    svi_path(path, m->directory, "", m->name, "");
    int fd = svi_os_open(path, O_RDWR, 0);
    if (fd >= 0 && (svi_os_fstat(fd, &st) != 0 || !svi_same_file(&st, m->device, m->inode))) {
        svi_os_close(fd);
        return -ENOENT;
    }
    return fd;
}

int
svi_probe(svi_mapping *m)
{
    struct stat st;
    if (m->probe >= 0 && svi_os_fstat(m->probe, &st) == 0 &&
        svi_same_file(&st, m->device, m->inode)) {
        return m->probe;
    }
    /* Somebody closed our descriptor, and it may be theirs by now: it is not ours to close. */
    int fd = mapping_open_named(m);
    m->probe = fd < 0 ? -1 : fd;
    return fd;
}

int
svi_fresh(svi_mapping *m)
{
    int probe = svi_probe(m);
    int fd = probe < 0 ? probe : svi_os_reopen(probe, O_RDWR);
    if (fd >= 0 || probe < 0) {
        return fd;
    }
    /* No /proc, or one that is closed to us (after setuid): the name does, if it still is the file. */
    int named = mapping_open_named(m);
    return named >= 0 ? named : fd;
}

int
svi_mapping_map(const svi_geometry *g, int fd, bool writable, void **out)
{
    return g->segment_bytes - g->off_payload >= SVI_HUGE_BYTES
               ? svi_os_map_huge(fd, 0, g->segment_bytes, writable, out)
               : svi_os_map(fd, 0, g->segment_bytes, writable, out);
}

static int
mapping_make_writable(svi_mapping *m, unsigned char **rw, sv_error *err)
{
    int fd = svi_probe(m);
    void *map = NULL;
    int status = fd < 0 ? fd : svi_mapping_map(&m->g, fd, true, &map);
    if (status < 0) {
        return svi_fail(err, status == -ENOMEM ? SV_ENOMEM : SV_ESYS, -status, "map segment",
                        "cannot map the %llu bytes of '%s' for writing",
                        (unsigned long long)m->g.segment_bytes, m->name);
    }
    svi_os_dont_dump((unsigned char *)map + m->g.off_payload,
                     m->g.segment_bytes - m->g.off_payload);
    *rw = map;
    return 0;
}

int
svi_writable_borrow(svi_mapping *m, unsigned char **rw, sv_error *err)
{
    unsigned char *kept = atomic_load_explicit(&m->rw, memory_order_acquire);
    if (kept != NULL) {
        *rw = kept;
        return 0;
    }
    return mapping_make_writable(m, rw, err);
}

void
svi_writable_return(svi_mapping *m, unsigned char *rw)
{
    if (rw != NULL && rw != atomic_load_explicit(&m->rw, memory_order_acquire)) {
        svi_os_unmap(rw, m->g.segment_bytes);
    }
}

int
svi_writable(svi_mapping *m, unsigned char **rw, sv_error *err)
{
    unsigned char *kept = atomic_load_explicit(&m->rw, memory_order_acquire);
    if (kept != NULL) {
        *rw = kept;
        return 0;
    }
    int status = svi_process_lock(err);
    if (status != 0) {
        return status;
    }
    kept = atomic_load_explicit(&m->rw, memory_order_acquire);
    if (kept == NULL && !m->mapped) {
        status = svi_fail(err, SV_ECLOSED, 0, "map segment", "the handle is closed");
    } else if (kept == NULL) {
        status = mapping_make_writable(m, &kept, err);
        if (status == 0) {
            if (m->g.chunk_size >= MAPPING_PREFAULT_LEAST) {
                m->prefaulted = calloc(m->g.buffer_count, sizeof *m->prefaulted);
            }
            /* release: pairs with the acquire loads above */
            atomic_store_explicit(&m->rw, kept, memory_order_release);
        }
    }
    svi_process_unlock();
    if (status == 0) {
        *rw = kept;
    }
    return status;
}

void
svi_prefault(svi_mapping *m, unsigned char *rw, uint32_t buffer, uint64_t bytes)
{
    uint64_t pages = (bytes + SVI_PAGE - 1) / SVI_PAGE;
    if (bytes < MAPPING_PREFAULT_LEAST || m->prefaulted == NULL || pages > UINT32_MAX ||
        pages <= m->prefaulted[buffer]) {
        return;
    }
    uint64_t done = (uint64_t)m->prefaulted[buffer] * SVI_PAGE;
    svi_os_prefault(svi_payload_at(m, rw, buffer) + done, pages * SVI_PAGE - done);
    m->prefaulted[buffer] = (uint32_t)pages;
}

bool
svi_mapping_is_unused(const svi_mapping *m)
{
    /* The pins first: who looks gave its pin back after it began to. */
    return m->handles == 0 && svi_row_own_pins(m) == 0 && svi_load_seq(&m->looking) == 0; /* E12 */
}

/* What is of this process alone. */
static void
mapping_free(svi_mapping *m)
{
    free(m->used);
    m->used = NULL;
    free(m->left);
    m->left = NULL;
    free(m->prefaulted);
    m->prefaulted = NULL;
    free(atomic_load_explicit(&m->numbers, memory_order_relaxed));
    atomic_store_explicit(&m->numbers, NULL, memory_order_relaxed);
}

static void
mapping_close_probe(svi_mapping *m)
{
    struct stat st;
    if (m->probe >= 0 && svi_os_fstat(m->probe, &st) == 0 &&
        svi_same_file(&st, m->device, m->inode)) {
        svi_os_close(m->probe);
    }
    m->probe = -1;
}

void
svi_mapping_abandon(svi_mapping *m)
{
    mapping_close_probe(m);
    m->busy = false;
}

/* From the end, piece by piece: while the kernel takes a piece out of the page table, no other thread
 * can map or fork. */
static void
mapping_unmap(unsigned char *map, uint64_t bytes)
{
    while (map != NULL && bytes > MAPPING_UNMAP_BYTES) {
        uint64_t rest = (bytes - 1) / MAPPING_UNMAP_BYTES * MAPPING_UNMAP_BYTES;
        svi_os_unmap(map + rest, bytes - rest);
        bytes = rest;
    }
    svi_os_unmap(map, bytes);
}

/* What the kernel frees for long: without the process lock. */
static void
mapping_free_memory(svi_mapping *m, unsigned char *ro, unsigned char *rw, bool punch)
{
    uint64_t bytes = m->g.segment_bytes;
    /* A child that is forked from here on inherits neither map (F5). */
    (void)svi_os_pass_to_children(ro, ro == NULL ? 0 : bytes, false);
    (void)svi_os_pass_to_children(rw, rw == NULL ? 0 : bytes, false);
    if (!punch) {
        mapping_close_probe(m); /* frees nothing while the maps are there */
    }
    svi_process_unlock();
    SVI_STEP("detach.unmapping");
    if (punch) {
        svi_os_punch(m->probe, m->g.off_payload, bytes - m->g.off_payload);
        SVI_STEP("block.emptied");
    }
    mapping_unmap(rw, bytes);
    mapping_unmap(ro, bytes);
    (void)svi_process_lock(NULL); /* was held before: it cannot fail */
}

void
svi_mapping_drop(svi_mapping *m)
{
    unsigned char *rw = atomic_load_explicit(&m->rw, memory_order_relaxed);
    svi_share_settle(m);
    bool punch = svi_block_is_due(m) && svi_probe(m) >= 0;
    svi_block_unlist(m);
    atomic_store_explicit(m->cells, NULL, memory_order_relaxed);
    if (svi_load_relaxed(&m->left_pins) != 0) { /* relaxed: process lock */
        svi_row_leave(m, &m->hold);
    } else {
        svi_row_drop(m, &m->hold);
    }
    mapping_free(m);
    unsigned char *ro = NULL;
    if (!m->stays) {
        ro = (unsigned char *)(uintptr_t)m->ro;
        m->ro = NULL; /* else views show it, and their descriptions are read there */
    }
    atomic_store_explicit(&m->rw, NULL, memory_order_relaxed);
    m->owner = false;
    m->mapped = false;
    m->busy = true;
    mapping_free_memory(m, ro, m->stays || rw == ro ? NULL : rw, punch);
    svi_mapping_abandon(m);
}

void
svi_mapping_settle(svi_mapping *m)
{
    if (svi_process_lock(NULL) != 0) {
        return;
    }
    if (m->mapped) {
        svi_share_settle(m);
    }
    if (m->mapped && (svi_load_seq(&m->closing) & SVI_CLOSED) != 0 && /* E11 */
        svi_mapping_is_unused(m)) {
        svi_mapping_drop(m);
    }
    svi_process_unlock();
}

/* ---- looking without a pin ----------------------------------------------------------------- */

static int
look_begin_locked(svi_mapping *m, svi_look *out, sv_error *err)
{
    if (m == NULL || !m->mapped) {
        return svi_fail(err, SV_ECLOSED, 0, "look at segment", "the handle is closed");
    }
    svi_add_seq(&m->looking, 1); /* E12 */
    *out = (svi_look){.m = m, .probe = svi_probe(m)};
    return 0;
}

int
svi_look_begin(svi_mapping *m, svi_look *out, sv_error *err)
{
    int status = svi_process_lock(err);
    if (status == 0) {
        status = look_begin_locked(m, out, err);
        svi_process_unlock();
    }
    return status;
}

int
svi_look_begin_handle(const sv_segment *segment, svi_look *out, sv_error *err)
{
    int status = svi_process_lock(err);
    if (status == 0) {
        status = look_begin_locked(svi_mapping_of(segment), out, err);
        svi_process_unlock();
    }
    return status;
}

void
svi_look_end(const svi_look *look)
{
    (void)svi_sub_seq(&look->m->looking, 1);                         /* E12 */
    if (__builtin_expect(svi_load_seq(&look->m->closing) != 0, 0)) { /* E11 (V2) */
        svi_mapping_settle(look->m);
    }
}

/* ---- handles ------------------------------------------------------------------------------- */

svi_mapping *
svi_mapping_find(dev_t device, ino_t inode)
{
#ifdef SVI_TESTING
    if (svi_testing_separate) {
        return NULL;
    }
#endif
    for (svi_mapping *m = svi_process_mappings(); m != NULL; m = m->next) {
        if (m->mapped && m->device == device && m->inode == inode) {
            return m;
        }
    }
    return NULL;
}

bool
svi_mapping_is_named(const svi_place *place)
{
    for (const svi_mapping *m = svi_process_mappings(); m != NULL; m = m->next) {
        if (m->mapped && strcmp(m->name, place->name) == 0 &&
            strcmp(m->directory, place->directory) == 0) {
            return true;
        }
    }
    return false;
}

int
svi_mapping_begin(int fd, const struct stat *st, svi_mapping **out, sv_error *err)
{
    svi_mapping *m = svi_mapping_obtain();
    if (m == NULL) {
        svi_os_close(fd);
        return svi_fail(err, SV_ENOMEM, ENOMEM, "map segment", "no memory for a mapping");
    }
    m->device = st->st_dev;
    m->inode = st->st_ino;
    m->probe = fd;
    m->busy = true;
    *out = m;
    return 0;
}

int
svi_mapping_make(svi_mapping *m, const svi_facts *facts, const svi_place *place, sv_error *err)
{
    const svi_geometry *g = &facts->g;
    int fd = m->probe;
    m->g = *g;
    m->used = calloc(svi_cell_groups(m), sizeof *m->used);
    m->left = calloc(m->g.buffer_count, sizeof *m->left);
    if (m->used == NULL || m->left == NULL) {
        mapping_free(m);
        return svi_fail(err, SV_ENOMEM, ENOMEM, "map segment", "no memory for a mapping");
    }
    void *map = NULL;
    int status = svi_mapping_map(g, fd, false, &map);
#ifdef SVI_TESTING
    if (svi_testing_single_map) {
        svi_os_unmap(map, g->segment_bytes);
        status = svi_mapping_map(g, fd, true, &map);
        atomic_store_explicit(&m->rw, map, memory_order_release);
    }
#endif
    if (status != 0) {
        mapping_free(m);
        return svi_fail(err, status == -ENOMEM ? SV_ENOMEM : SV_ESYS, -status, "map segment",
                        "cannot map the %llu bytes of '%s' (limit of address space?)",
                        (unsigned long long)g->segment_bytes, place->name);
    }
    svi_os_dont_dump((unsigned char *)map + g->off_payload, g->segment_bytes - g->off_payload);
    m->ro = map;
    m->owned = facts->header.h_owned;
    m->mode = facts->header.h_mode;
    memcpy(m->generation, facts->header.h_generation, sizeof m->generation);
    memcpy(m->dtype, facts->header.h_dtype, sizeof m->dtype);
    svi_text_copy(m->name, sizeof m->name, place->name);
    svi_text_copy(m->directory, sizeof m->directory, place->directory);
    m->mapped = true;
    m->busy = false;
    return 0;
}

/* Handles that were closed: a queue. Process lock. */
static sv_segment *handles_oldest;
static sv_segment *handles_newest;
static uint32_t handles_closed;

int
svi_mapping_handle(svi_mapping *m, sv_segment **out, sv_error *err)
{
    sv_segment *segment = calloc(1, sizeof *segment);
    if (segment == NULL) {
        return svi_fail(err, SV_ENOMEM, ENOMEM, "attach", "no memory for a handle");
    }
    atomic_store_explicit(&segment->mapping, m, memory_order_relaxed); /* as in svi_mapping_of */
    m->handles++;
    svi_row_show_handles(m);
    /* V2: undone under the process lock */
    svi_store_seq(&m->closing, svi_load_relaxed(&m->closing) & ~SVI_CLOSED);
    *out = segment;
    return 0;
}

void
svi_mapping_unhandle(svi_mapping *m, sv_segment *segment)
{
    atomic_store_explicit(&segment->mapping, NULL, memory_order_relaxed); /* as in svi_mapping_of */
    if (handles_closed == 0) {
        handles_oldest = segment;
    } else {
        handles_newest->next = segment;
    }
    handles_newest = segment;
    if (++handles_closed > SVI_HANDLES_KEPT) {
        sv_segment *oldest = handles_oldest;
        handles_oldest = oldest->next;
        handles_closed--;
        free(oldest);
    }
    m->handles--;
    svi_row_show_handles(m);
}
