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

void
svi_mapping_drop(svi_mapping *m)
{
    unsigned char *rw = atomic_load_explicit(&m->rw, memory_order_relaxed);
    svi_share_settle(m);
    svi_block_settle_locked(m);
    svi_block_unlist(m);
    atomic_store_explicit(m->cells, NULL, memory_order_relaxed);
    if (svi_load_relaxed(&m->left_pins) != 0) { /* relaxed: process lock */
        svi_row_leave(m, &m->hold);
    } else {
        svi_row_drop(m, &m->hold);
    }
    if (!m->stays) {
        svi_os_unmap(rw != m->ro ? rw : NULL, m->g.segment_bytes);
        svi_os_unmap((unsigned char *)(uintptr_t)m->ro, m->g.segment_bytes);
        m->ro = NULL; /* else views show it, and their descriptions are read there */
    }
    atomic_store_explicit(&m->rw, NULL, memory_order_relaxed);
    struct stat st;
    if (m->probe >= 0 && svi_os_fstat(m->probe, &st) == 0 &&
        svi_same_file(&st, m->device, m->inode)) {
        svi_os_close(m->probe);
    }
    mapping_free(m);
    m->probe = -1;
    m->owner = false;
    m->mapped = false;
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
svi_mapping_make(int fd, const svi_facts *facts, const svi_place *place, svi_mapping **out,
                 sv_error *err)
{
    const svi_geometry *g = &facts->g;
    svi_mapping *m = svi_mapping_obtain();
    if (m == NULL) {
        svi_os_close(fd);
        return svi_fail(err, SV_ENOMEM, ENOMEM, "map segment", "no memory for a mapping");
    }
    m->g = *g;
    m->used = calloc(svi_cell_groups(m), sizeof *m->used);
    m->left = calloc(m->g.buffer_count, sizeof *m->left);
    if (m->used == NULL || m->left == NULL) {
        mapping_free(m);
        svi_os_close(fd);
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
        svi_os_close(fd);
        return svi_fail(err, status == -ENOMEM ? SV_ENOMEM : SV_ESYS, -status, "map segment",
                        "cannot map the %llu bytes of '%s' (limit of address space?)",
                        (unsigned long long)g->segment_bytes, place->name);
    }
    svi_os_dont_dump((unsigned char *)map + g->off_payload, g->segment_bytes - g->off_payload);
    m->ro = map;
    m->device = facts->st.st_dev;
    m->inode = facts->st.st_ino;
    m->owned = facts->header.h_owned;
    m->mode = facts->header.h_mode;
    memcpy(m->generation, facts->header.h_generation, sizeof m->generation);
    memcpy(m->dtype, facts->header.h_dtype, sizeof m->dtype);
    svi_text_copy(m->name, sizeof m->name, place->name);
    svi_text_copy(m->directory, sizeof m->directory, place->directory);
    m->probe = fd;
    m->mapped = true;
    *out = m;
    return 0;
}

int
svi_mapping_handle(svi_mapping *m, sv_segment **out, sv_error *err)
{
    sv_segment *segment = calloc(1, sizeof *segment);
    if (segment == NULL) {
        return svi_fail(err, SV_ENOMEM, ENOMEM, "attach", "no memory for a handle");
    }
    segment->magic = SVI_HANDLE_MAGIC;
    segment->mapping = m;
    m->handles++;
    svi_row_show_handles(m);
    /* V2: undone under the process lock */
    svi_store_seq(&m->closing, svi_load_relaxed(&m->closing) & ~SVI_CLOSED);
    *out = segment;
    return 0;
}
