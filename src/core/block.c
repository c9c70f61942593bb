/*
 * Blocks: segments of one buffer that is written in place (rules B1-B5).
 *
 * Their makers are short-lived scripts, so that everything here is about the end: the name goes with
 * its maker even at a fatal signal, and the memory with the name unless somebody looks at it.
 */
#include "block.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "array.h"
#include "error.h"
#include "fork.h"
#include "os.h"
#include "pin.h"
#include "reserve.h"
#include "row.h"
#include "segment.h"

#define BLOCK_PREFIX_BYTES 64u
#define BLOCK_DIGITS 16u
/* Not isalnum(): that asks the locale. */
#define BLOCK_LETTERS "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-"

/* ---- names --------------------------------------------------------------------------------- */

static bool
block_prefix_is_good(const char *prefix)
{
    size_t length = prefix == NULL ? 0 : strlen(prefix);
    return length >= 1 && length <= BLOCK_PREFIX_BYTES && strspn(prefix, BLOCK_LETTERS) == length;
}

int
sv_block_name(const char *prefix, char out[SV_MAX_NAME_BYTES + 1], sv_error *err)
{
    uint64_t drawn = 0;
    if (!block_prefix_is_good(prefix)) {
        return svi_fail(err, SV_EINVAL, 0, "name block",
                        "the prefix of a block has 1 to %u letters, digits, '_', '.' or '-', found "
                        "'%.80s'",
                        BLOCK_PREFIX_BYTES, prefix == NULL ? "" : prefix);
    }
    int status = svi_os_random(&drawn, sizeof drawn);
    if (status != 0) {
        return svi_fail(err, SV_ESYS, -status, "name block", "cannot read random bytes");
    }
    (void)snprintf(out, SV_MAX_NAME_BYTES + 1, "sv-%u-%s-%016llx", (unsigned)geteuid(), prefix,
                   (unsigned long long)drawn);
    return 0;
}

bool
svi_block_is_named(const char *name, const char *prefix)
{
    char start[32];
    size_t length = strlen(name);
    size_t head = (size_t)snprintf(start, sizeof start, "sv-%u-", (unsigned)geteuid());
    if (length < head + 1 + 1 + BLOCK_DIGITS || strncmp(name, start, head) != 0) {
        return false;
    }
    size_t tail = length - BLOCK_DIGITS; /* behind the last '-' */
    if (name[tail - 1] != '-' || strspn(name + tail, "0123456789abcdef") != BLOCK_DIGITS) {
        return false;
    }
    size_t middle = tail - 1 - head;
    return prefix == NULL ||
           (strlen(prefix) == middle && strncmp(name + head, prefix, middle) == 0);
}

/* ---- names that go with this process ------------------------------------------------------- */

enum block_listing_state { LISTING_FREE = 0, LISTING_ARMED = 1, LISTING_FIRED = 2 };

/* Never freed, so that a signal handler can walk the list at any moment (rule B4). */
typedef struct svi_listing {
    struct svi_listing *next;
    svi_word state;
    pid_t pid;
    char path[SVI_PATH_BYTES];
} svi_listing;

static _Atomic(svi_listing *) block_listings;

static svi_listing *
block_listing_obtain(void)
{
    svi_listing *first = atomic_load_explicit(&block_listings, memory_order_acquire);
    for (svi_listing *l = first; l != NULL; l = l->next) {
        if (svi_load_seq(&l->state) == LISTING_FREE) { /* B4 */
            return l;
        }
    }
    svi_listing *fresh = calloc(1, sizeof *fresh);
    if (fresh != NULL) {
        fresh->next = first;
        /* release: a handler that sees it sees it whole (B4) */
        atomic_store_explicit(&block_listings, fresh, memory_order_release);
    }
    return fresh;
}

int
svi_block_list(svi_mapping *m, sv_error *err)
{
    if (m->g.kind != SVI_KIND_BLOCK || !m->owner) {
        return 0;
    }
    svi_listing *l = block_listing_obtain();
    if (l == NULL) {
        return svi_fail(err, SV_ENOMEM, ENOMEM, "create block", "no memory for its name");
    }
    svi_path(l->path, m->directory, "", m->name, "");
    l->pid = getpid();
    svi_store_seq(&l->state, LISTING_ARMED); /* B4 */
    m->listing = l;
    return 0;
}

void
svi_block_unlist(svi_mapping *m)
{
    if (m->listing != NULL) {
        (void)svi_cas_seq(&m->listing->state, LISTING_ARMED, LISTING_FREE); /* B4 */
        m->listing = NULL;
    }
}

void
sv_block_unlink_all(void)
{
    int saved = errno;
    svi_listing *l = atomic_load_explicit(&block_listings, memory_order_acquire); /* B4 */
    for (; l != NULL; l = l->next) {
        /* A child whose fork handlers did not run has its parent's list. FIRED stays: nobody writes
         * into the path again. */
        if (svi_load_seq(&l->state) == LISTING_ARMED && l->pid == getpid() && /* B4 */
            svi_cas_seq(&l->state, LISTING_ARMED, LISTING_FIRED)) {           /* B4 */
            (void)unlink(l->path);
        }
    }
    errno = saved;
}

/* ---- making -------------------------------------------------------------------------------- */

/* Not sv_append(), which wants data: a fresh segment is zeros already. */
static int
block_store(sv_segment *segment, const sv_chunk *chunk, sv_error *err)
{
    sv_reservation reservation;
    uint32_t slot = 0;
    int status = sv_reserve(segment, 0, &reservation, err);
    if (status != 0) {
        return status;
    }
    if ((status = sv_fill(&reservation, chunk, err)) != 0 ||
        (status = sv_publish_next(&reservation, &slot, err)) != 0) {
        sv_cancel(&reservation);
    }
    return status;
}

/* The options of a segment for this one array. */
static sv_options
block_options(const sv_array *array, const sv_options *given)
{
    sv_options wanted;
    sv_options_init(&wanted);
    if (given != NULL) {
        wanted = *given;
    }
    wanted.block = 1;
    wanted.owned = 1;
    wanted.slot_count = 1;
    wanted.spare_buffers = 0;
    wanted.max_arrays = 1;
    wanted.stats_capacity = 1;
    wanted.chunk_size = array->size_bytes == 0 ? 1 : array->size_bytes;
    wanted.dtype = array->dtype;
    wanted.itemsize = array->itemsize;
    wanted.generation = NULL;
    return wanted;
}

int
sv_block_create(const char *prefix, const sv_array *array, const sv_options *options,
                sv_segment **out, sv_error *err)
{
    char name[SV_MAX_NAME_BYTES + 1];
    sv_segment *segment = NULL;
    int status = sv_block_name(prefix, name, err);
    if (status != 0 || (options != NULL && (status = svi_options_check(options, err)) != 0)) {
        return status;
    }
    if (array == NULL || memchr(array->dtype, '\0', sizeof array->dtype) == NULL ||
        array->dtype[0] == '\0') {
        return svi_fail(err, SV_EINVAL, 0, "create block",
                        "a block holds one array, whose dtype is set");
    }
    uint64_t bytes = 0;
    if (!svi_array_bytes(array->itemsize, array->ndim, array->shape, &bytes) ||
        bytes != array->size_bytes) { /* before the memory is reserved */
        return svi_fail(err, SV_EINVAL, 0, "create block",
                        "size_bytes is %llu; %u dimensions and items of %u bytes make %llu",
                        (unsigned long long)array->size_bytes, array->ndim, array->itemsize,
                        (unsigned long long)bytes);
    }
    const sv_options wanted = block_options(array, options);
    if ((status = sv_segment_open(name, &wanted, SV_OPEN_EXCLUSIVE, &segment, err)) != 0) {
        return status;
    }
    sv_array stored = *array;
    stored.dtype[0] = '\0'; /* the segment's */
    const sv_chunk chunk = {.arrays = &stored, .array_count = 1};
    if ((status = block_store(segment, &chunk, err)) != 0) {
        (void)sv_block_remove(segment, NULL);
        (void)sv_segment_close(segment, NULL);
        return status;
    }
    *out = segment;
    return 0;
}

/* ---- looking at it ------------------------------------------------------------------------- */

static int
block_check(const svi_mapping *m, const char *operation, sv_error *err)
{
    if (m == NULL) {
        return svi_fail(err, SV_ECLOSED, 0, operation, "the handle is closed");
    }
    if (m->g.kind != SVI_KIND_BLOCK) {
        return svi_fail(err, SV_EINVAL, 0, operation, "segment '%s' is no block", m->name);
    }
    return 0;
}

int
sv_block_pin(sv_segment *segment, int writable, sv_view *view, void **data, sv_error *err)
{
    svi_mapping *m = svi_mapping_of(segment);
    unsigned char *rw = NULL;
    int status = block_check(m, "pin block", err);
    if (status != 0 || (writable && (status = svi_writable(m, &rw, err)) != 0)) {
        return status;
    }
    if ((status = sv_pin_quiet(segment, 0, view)) != 0) {
        if (status == SV_ENOENT) {
            return svi_fail(err, status, ENOENT, "pin block", "block '%s' was removed by its maker",
                            m->name);
        }
        if (status == SV_EINDEX) {
            return svi_fail(err, SV_EINVAL, 0, "pin block", "block '%s' is not finished", m->name);
        }
        /* In a forked child: why it cannot attach, in words. */
        int joined = sv_segment_join(segment, err);
        return joined != 0 ? joined
                           : svi_fail(err, status, 0, "pin block", "block '%s': %s", m->name,
                                      sv_error_text(status));
    }
    if (writable) {
        *data = svi_payload_at(m, rw, view->buffer_);
    }
    return 0;
}

void
sv_block_prefault(const sv_view *view, int writable, uint64_t offset, uint64_t size_bytes)
{
    const svi_mapping *m = view == NULL ? NULL : view->mapping_;
    if (m == NULL || offset >= m->g.buffer_stride) {
        return;
    }
    uint64_t end =
        size_bytes < m->g.buffer_stride - offset ? offset + size_bytes : m->g.buffer_stride;
    offset -= offset % SVI_PAGE;
    unsigned char *rw = atomic_load_explicit(&m->rw, memory_order_acquire);
    if (!writable) {
        (void)svi_os_prefault_read((unsigned char *)(uintptr_t)svi_payload(m, view->buffer_) +
                                       offset,
                                   end - offset);
    } else if (rw != NULL) {
        svi_os_prefault(svi_payload_at(m, rw, view->buffer_) + offset, end - offset);
    }
}

int
sv_block_map_private(sv_segment *segment, void **base, size_t *bytes, sv_error *err)
{
    svi_mapping *m = svi_mapping_of(segment);
    int status = block_check(m, "map block", err);
    if (status != 0 || (status = svi_process_lock(err)) != 0) {
        return status;
    }
    void *map = NULL;
    int fd = svi_probe(m);
    status = fd < 0 ? fd : svi_os_map_private(fd, m->g.off_payload, m->g.buffer_stride, &map);
    svi_process_unlock();
    if (status < 0) {
        return svi_fail(err, status == -ENOMEM ? SV_ENOMEM : SV_ESYS, -status, "map block",
                        "cannot map %llu bytes of '%s' privately",
                        (unsigned long long)m->g.buffer_stride, m->name);
    }
    *base = map;
    *bytes = m->g.buffer_stride;
    return 0;
}

/* ---- the end ------------------------------------------------------------------------------- */

/* Unlink the name while it is still this block's. Process lock held. */
static int
block_unlink(svi_mapping *m, sv_error *err)
{
    char path[SVI_PATH_BYTES];
    struct stat st;
    (void)svi_probe(m); /* whose descriptor the program closed opens it by its name */
    svi_path(path, m->directory, "", m->name, "");
    int status = svi_os_stat(path, &st);
    if (status == 0 && svi_same_file(&st, m->device, m->inode)) {
        status = svi_os_unlink(path);
        SVI_STEP("block.unlinked");
    }
    return status == 0 || status == -ENOENT
               ? 0
               : svi_fail(err, SV_ESYS, -status, "remove block", "cannot unlink %s", path);
}

/* Take the name away, and say so: from then on no pin counts (rule B2). Whatever fails, the name goes
 * first: who cannot map the header has no use for the block either. Process lock held. */
static int
block_retire(svi_mapping *m, sv_error *err)
{
    unsigned char *rw = NULL;
    int status = block_unlink(m, err);
    if (status != 0) {
        return status;
    }
    svi_block_unlist(m); /* after it: a signal in between unlinks nothing twice */
    if ((status = svi_writable_borrow(m, &rw, err)) == 0) {
        (void)svi_cas_seq(&svi_header_at(rw)->h_retired, SV_RETIRED_NO,
                          SV_RETIRED_CLOSED); /* E13 */
        SVI_STEP("block.retired");
        svi_writable_return(m, rw);
    }
    return status;
}

bool
svi_block_is_due(const svi_mapping *m)
{
    return m->mapped && m->g.kind == SVI_KIND_BLOCK && svi_block_is_removed(m) &&
           !svi_buffer_is_pinned(m, 0) &&             /* E13, after the retirement */
           svi_load_seq(&svi_header(m)->h_kept) == 0; /* B5: before the pin of who set it went */
}

/* Give the memory of a removed block back, unless somebody looks at it. It may be gigabytes, so that
 * this is not done under the process lock: the caller counts in `looking` (V2). */
static bool
block_empty(svi_mapping *m)
{
    if (svi_process_lock(NULL) != 0) {
        return false;
    }
    int fd = svi_block_is_due(m) ? svi_probe(m) : -1;
    svi_process_unlock();
    if (fd >= 0) {
        svi_os_punch(fd, m->g.off_payload, m->g.segment_bytes - m->g.off_payload);
        SVI_STEP("block.emptied");
    }
    return fd >= 0;
}

bool
svi_block_keep(svi_mapping *m)
{
    unsigned char *rw = NULL;
    if (m->g.kind != SVI_KIND_BLOCK || svi_writable_borrow(m, &rw, NULL) != 0) {
        return false;
    }
    svi_store_seq(&svi_header_at(rw)->h_kept, 1); /* B5 */
    svi_writable_return(m, rw);
    return true;
}

int
sv_block_remove(sv_segment *segment, sv_error *err)
{
    svi_look look;
    int status = block_check(svi_mapping_of(segment), "remove block", err);
    if (status != 0 || (status = svi_look_begin_handle(segment, &look, err)) != 0) {
        return status;
    }
    svi_mapping *m = look.m;
    if ((status = svi_process_lock(err)) == 0) {
        status = m->owner ? block_retire(m, err)
                          : svi_fail(err, SV_EFORKED, 0, "remove block",
                                     "'%s' was made by another process, which alone removes it",
                                     m->name);
        svi_process_unlock();
    }
    /* What the dead pinned holds nothing up. When that fails, the memory goes with the last process
     * that is attached. */
    if (status == 0 && !block_empty(m) && svi_recover(m, 0, NULL, NULL) == 0) {
        (void)block_empty(m);
    }
    svi_look_end(&look);
    return status;
}

/* Without the pin the header may be unmapped at any moment: a look at it counts as one (V2). */
void
svi_block_unpin(svi_mapping *m, uint32_t buffer)
{
    const svi_look look = {.m = m, .probe = -1};
    svi_add_seq(&m->looking, 1); /* E12: before the pin goes */
    svi_unpin_buffer(m, buffer);
    SVI_STEP("block.unpinned");
    if (__builtin_expect(svi_block_is_removed(m), 0)) {
        (void)block_empty(m);
    }
    svi_look_end(&look);
}

uint64_t
sv_own_pins(const sv_segment *segment)
{
    const svi_mapping *m = svi_mapping_of(segment);
    return m == NULL ? 0 : svi_row_own_pins(m);
}
