/*
 * Making a segment (rules S1, S2): nameless, reserved and initialised, its owner's locks taken, and
 * linked last. Nobody ever sees half of one, and a crash before the link leaves nothing.
 */
#include "segment.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "block.h"
#include "error.h"
#include "fork.h"
#include "huge.h"
#include "os.h"
#include "row.h"

#define CREATE_PIECE_BYTES (UINT64_C(64) << 20)

static int
create_check_room(const svi_place *place, const svi_geometry *g, sv_error *err)
{
    uint64_t need = svi_geometry_reserved(g);
    uint64_t free_bytes = 0;
    uint64_t total = 0;
    int status = svi_os_is_tmpfs(place->directory);
    if (status <= 0) {
        return svi_fail(err, status == 0 ? SV_EUNSUPPORTED : SV_ESYS, -status, "create segment",
                        "'%s' %s; set SHAREDVECTOR_SHM_DIR to a tmpfs", place->directory,
                        status == 0 ? "is not on tmpfs" : "cannot be used");
    }
    if (svi_os_file_limit() < g->segment_bytes) {
        return svi_fail(err, SV_ESYS, EFBIG, "create segment",
                        "segment '%s' needs a file of %llu bytes, the limit of this process "
                        "(RLIMIT_FSIZE, ulimit -f) is %llu",
                        place->name, (unsigned long long)g->segment_bytes,
                        (unsigned long long)svi_os_file_limit());
    }
    if (svi_os_free_bytes(place->directory, &free_bytes, &total) == 0 && free_bytes < need) {
        return svi_fail_no_space(err, "create segment", place->directory, place->name, need,
                                 free_bytes, NULL);
    }
    const char *limit = NULL;
    uint64_t room = svi_os_memory_free(&limit, NULL);
    if (room < need) {
        return svi_fail_no_space(err, "create segment", place->directory, place->name, need, room,
                                 limit);
    }
    return 0;
}

static void
create_write_header(svm_header *h, const svi_geometry *g, const sv_options *options,
                    const char *generation)
{
    memcpy(h->h_magic, SVI_MAGIC, sizeof h->h_magic);
    h->h_major = SV_FORMAT_MAJOR;
    h->h_minor = SV_FORMAT_MINOR;
    h->h_byte_order = SVI_BYTE_ORDER;
    h->h_fingerprint = SVI_FINGERPRINT;
    h->h_segment_bytes = g->segment_bytes;
    h->h_chunk_size = g->chunk_size;
    h->h_buffer_stride = g->buffer_stride;
    h->h_slot_count = g->slot_count;
    h->h_buffer_count = g->buffer_count;
    h->h_max_rows = g->max_rows;
    h->h_max_arrays = g->max_arrays;
    h->h_stats_capacity = g->stats_capacity;
    h->h_itemsize = g->itemsize;
    h->h_owned = options->owned != 0;
    h->h_kind = g->kind;
    h->h_processes = g->processes;
    h->h_mode = options->mode;
    h->h_off_slots = g->off_slots;
    h->h_off_buffers = g->off_buffers;
    h->h_off_rows = g->off_rows;
    h->h_off_ring = g->off_ring;
    h->h_off_payload = g->off_payload;
    h->h_row_stride = g->row_stride;
    h->h_created_ns = svi_os_realtime_ns();
    svi_text_copy(h->h_generation, sizeof h->h_generation, generation);
    svi_text_copy(h->h_dtype, sizeof h->h_dtype, options->dtype);
}

/* Do kernel locks work here, and does a map keep them? The row that we just took is held by its anchor
 * alone by now, and a second description must conflict with it. */
static int
create_test_locks(svi_mapping *m, sv_error *err)
{
    int fd = svi_fresh(m);
    if (fd < 0) {
        return svi_fail(err, SV_ESYS, -fd, "create segment", "cannot open '%s' again", m->name);
    }
    int status = svi_os_lock_try(fd, SVI_LOCK_ROW + m->hold.row, true);
    svi_os_close(fd);
    if (status != -EAGAIN) {
        return svi_fail(err, SV_EUNSUPPORTED, status < 0 ? -status : 0, "create segment",
                        "open-file-description locks do not work in '%s' (kernel or sandbox): a "
                        "dead process could not be told from a living one",
                        m->directory);
    }
    return 0;
}

/* A nameless file of the right size and mode, as a busy mapping. Process lock held. */
static int
create_begin(const svi_place *place, const sv_options *options, svi_facts *facts, svi_mapping **out,
             sv_error *err)
{
    int status;
    int fd = svi_os_tmpfile(place->directory, (mode_t)options->mode);
    if (fd < 0) {
        return svi_fail(err, fd == -EOPNOTSUPP || fd == -EISDIR ? SV_EUNSUPPORTED : SV_ESYS, -fd,
                        "create segment", "cannot make a nameless file in '%s'", place->directory);
    }
    if ((status = svi_os_fchmod(fd, (mode_t)options->mode)) != 0 ||
        (status = svi_os_truncate(fd, facts->g.segment_bytes)) != 0 ||
        (status = svi_os_fstat(fd, &facts->st)) != 0) {
        svi_os_close(fd);
        return svi_fail(err, SV_ESYS, -status, "create segment", "cannot prepare '%s' in '%s'",
                        place->name, place->directory);
    }
    return svi_mapping_begin(fd, &facts->st, out, err);
}

/* In pieces, for who wants to interrupt it (SV_ETIMEDOUT); else -errno. */
static int
create_allocate(int fd, uint64_t offset, uint64_t end)
{
    int status = 0;
    while (status == 0 && offset < end) {
        uint64_t bytes = end - offset < CREATE_PIECE_BYTES ? end - offset : CREATE_PIECE_BYTES;
        status = svi_interrupted() ? SV_ETIMEDOUT : svi_os_allocate(fd, offset, bytes);
        offset += bytes;
    }
    return status;
}

/* Reserve the memory of the file and write its header. Takes seconds for gigabytes: without the process
 * lock. */
static int
create_fill(int fd, const svi_place *place, const sv_options *options, const char *generation,
            svi_facts *facts, sv_error *err)
{
    const svi_geometry *g = &facts->g;
    int status;
    SVI_STEP("create.reserving");
    uint64_t rows = (uint64_t)svi_geometry_first_rows(g) * g->row_stride;
    if ((status = svi_huge_reserve(fd, g->off_payload, g->segment_bytes)) != 0 ||
        (status = svi_os_allocate(fd, 0, g->off_rows + rows)) != 0 ||
        (status = create_allocate(fd, g->off_ring, g->segment_bytes)) != 0) {
        if (status == SV_ETIMEDOUT) {
            return svi_fail(err, status, 0, "create segment",
                            "interrupted while the memory of '%s' was reserved", place->name);
        }
        uint64_t free_bytes = 0;
        uint64_t total = 0;
        (void)svi_os_free_bytes(place->directory, &free_bytes, &total);
        return status == -ENOSPC
                   ? svi_fail_no_space(err, "create segment", place->directory, place->name,
                                       svi_geometry_reserved(g), free_bytes, NULL)
                   : svi_fail(err, SV_ESYS, -status, "create segment",
                              "cannot reserve %llu bytes for '%s'",
                              (unsigned long long)svi_geometry_reserved(g), place->name);
    }
    memset(&facts->header, 0, sizeof facts->header);
    create_write_header(&facts->header, g, options, generation);
    if ((status = svi_os_pwrite(fd, &facts->header, sizeof facts->header, 0)) != 0) {
        return svi_fail(err, SV_ESYS, -status, "create segment", "cannot write the header");
    }
    SVI_STEP("create.reserved");
    return 0;
}

/* Make the segment without a name; on success the caller links its probe. Process lock held; it is
 * given up while memory is reserved, or given back after a failure. */
static int
create_make(const svi_place *place, const sv_options *options, const svi_geometry *g,
            const char *generation, svi_mapping **out, sv_error *err)
{
    svi_mapping *m = NULL;
    svi_facts facts = {.g = *g};
    int status = create_begin(place, options, &facts, &m, err);
    if (status != 0) {
        return status;
    }
    svi_process_unlock();
    status = create_fill(m->probe, place, options, generation, &facts, err);
    (void)svi_process_lock(NULL); /* was held before: it cannot fail */
    if (status != 0 || (status = svi_mapping_make(m, &facts, place, err)) != 0) {
        svi_process_unlock();
        (void)svi_os_truncate(m->probe, 0);
        (void)svi_process_lock(NULL);
        svi_mapping_abandon(m);
        return status;
    }
    m->owner = options->owned != 0;
    if ((status = svi_row_join(m, -1, m->owner ? SVI_ROW_OWNER : 0, err)) != 0 ||
        (status = create_test_locks(m, err)) != 0 || (status = svi_block_list(m, err)) != 0) {
        svi_mapping_drop(m);
        return status;
    }
    *out = m;
    return 0;
}

/* May the segment of this name be replaced? Not while the owner that it records lives: that one has
 * another lock directory than we, or the wish is a mistake. */
static int
create_check_replaceable(const svi_place *place, sv_error *err)
{
    svm_header header;
    int fd = svi_os_open(place->path, O_RDONLY, 0);
    bool owned = fd >= 0 && svi_os_pread(fd, &header, sizeof header, 0) == (int)sizeof header &&
                 memcmp(header.h_magic, SVI_MAGIC, sizeof header.h_magic) == 0 &&
                 header.h_owned != 0 && svi_os_lock_test(fd, SVI_LOCK_OWNER) == 1;
    svi_os_close(fd);
    return owned ? svi_fail(err, SV_EBUSY, 0, "create segment",
                            "pool '%s' has a living owner (generation %.63s), perhaps one with "
                            "another lock directory (lock_dir, SHAREDVECTOR_LOCK_DIR); end it, or "
                            "use its directory",
                            place->name, header.h_generation)
                 : 0;
}

/* Check the wishes for a new segment and complete them: dtype, generation, geometry. */
static int
create_plan(sv_options *options, char generation[SV_GENERATION_BYTES], svi_geometry *g,
            sv_error *err)
{
    int status;
    if (options->dtype == NULL) {
        options->dtype = "float32";
        options->itemsize = 4;
    }
    if (options->dtype[0] == '\0' || strlen(options->dtype) >= SV_DTYPE_BYTES) {
        return svi_fail(err, SV_EINVAL, 0, "check options",
                        "the text of a dtype has 1 to %d bytes, found %zu", SV_DTYPE_BYTES - 1,
                        strlen(options->dtype));
    }
    if ((options->mode & ~0777u) != 0 || (options->mode & 0600u) != 0600u) {
        return svi_fail(err, SV_EINVAL, 0, "check options",
                        "mode must let its user read and write (0600 to 0777), found %04o",
                        options->mode);
    }
    if (options->generation != NULL) {
        if ((status = svi_generation_check(options->generation, err)) != 0) {
            return status;
        }
        svi_text_copy(generation, SV_GENERATION_BYTES, options->generation);
    } else if ((status = svi_generation_draw(generation, err)) != 0) {
        return status;
    }
    return svi_geometry_plan(options, g, err);
}

/* First, as what it takes may be needed for the new one. */
static int
create_unlink_old(const svi_place *place, sv_error *err)
{
    int status = svi_os_unlink(place->path);
    if (status != 0 && status != -ENOENT) {
        return svi_fail(err, SV_ESYS, -status, "create segment",
                        "cannot replace %s: unlinking it failed", place->path);
    }
    SVI_STEP("create.unlinked");
    return 0;
}

int
svi_create(const svi_place *place, const sv_options *options, bool replace, sv_segment **out,
           sv_error *err)
{
    sv_options filled = *options;
    char generation[SV_GENERATION_BYTES];
    svi_geometry g;
    svi_mapping *m = NULL;
    int status;
    if ((status = create_plan(&filled, generation, &g, err)) != 0 ||
        (replace && (status = create_check_replaceable(place, err)) != 0)) {
        return status;
    }
    svi_process_unlock(); /* freeing what was replaced takes as long as reserving it */
    if (!replace || (status = create_unlink_old(place, err)) == 0) {
        status = create_check_room(place, &g, err);
    }
    (void)svi_process_lock(NULL); /* was held before: it cannot fail */
    if (status != 0 || (status = create_make(place, &filled, &g, generation, &m, err)) != 0) {
        return status;
    }
    SVI_STEP("create.made");
    if ((status = svi_os_link(m->probe, place->path)) != 0) {
        status = status == -EEXIST ? SVI_ERETRY
                                   : svi_fail(err, SV_ESYS, -status, "create segment",
                                              "cannot give the segment its name %s", place->path);
        svi_mapping_drop(m);
        return status;
    }
    SVI_STEP("create.linked");
    if ((status = svi_mapping_handle(m, out, err)) != 0) {
        (void)svi_os_unlink(place->path);
        svi_mapping_drop(m);
    }
    return status;
}
