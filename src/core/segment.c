/*
 * Segments: making, attaching, mapping, closing (rules S1-S5).
 *
 * A segment is made nameless, reserved and initialised, its owner's locks taken, and linked last:
 * nobody ever sees half of one, and a crash before the link leaves nothing.
 */
#include "segment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "error.h"
#include "fork.h"
#include "lockfile.h"
#include "os.h"
#include "row.h"

#ifdef SVI_TESTING
bool svi_testing_single_map = false;
bool svi_testing_separate = false;
#endif

#define SEGMENT_POLL_NS UINT64_C(2000000)
#define SEGMENT_RESERVE_NS_PER_BYTE 5 /* 0.2 GB/s, several times slower than seen */

void
sv_options_init(sv_options *options)
{
    *options = (sv_options){.size = sizeof *options,
                            .chunk_size = UINT64_C(1) << 20,
                            .max_memory_size = UINT64_C(10) << 20,
                            .spare_buffers = 2,
                            .max_rows = 1024,
                            .max_arrays = 1,
                            .mode = 0600,
                            .timeout_ns = UINT64_C(5000000000)};
}

/* ---- maps ---------------------------------------------------------------------------------- */

static bool
segment_same_file(const struct stat *st, dev_t device, ino_t inode)
{
    return st->st_dev == device && st->st_ino == inode;
}

/* The mapping's file, opened by its name; -ENOENT when the name is somebody else's by now. */
static int
segment_open_named(const svi_mapping *m)
{
    char path[SVI_PATH_BYTES];
    struct stat st;
    svi_path(path, m->directory, "", m->name, "");
    int fd = svi_os_open(path, O_RDWR, 0);
    if (fd >= 0 && (svi_os_fstat(fd, &st) != 0 || !segment_same_file(&st, m->device, m->inode))) {
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
        segment_same_file(&st, m->device, m->inode)) {
        return m->probe;
    }
    /* Somebody closed our descriptor, and it may be theirs by now: it is not ours to close. */
    int fd = segment_open_named(m);
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
    int named = segment_open_named(m);
    return named >= 0 ? named : fd;
}

static int
segment_map_writable(svi_mapping *m, unsigned char **rw, sv_error *err)
{
    int fd = svi_probe(m);
    void *map = NULL;
    int status = fd < 0 ? fd : svi_os_map(fd, 0, m->g.segment_bytes, true, &map);
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
    return segment_map_writable(m, rw, err);
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
        status = segment_map_writable(m, &kept, err);
        if (status == 0) {
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

/* Give everything of a mapping back. Nothing is pinned. Process lock held. */
static void
segment_unmap(svi_mapping *m)
{
    unsigned char *rw = atomic_load_explicit(&m->rw, memory_order_relaxed);
    atomic_store_explicit(m->cells, NULL, memory_order_relaxed);
    svi_row_drop(m, &m->hold);
    if (rw != NULL && rw != m->ro) {
        svi_os_unmap(rw, m->g.segment_bytes);
    }
    svi_os_unmap((unsigned char *)(uintptr_t)m->ro, m->g.segment_bytes);
    atomic_store_explicit(&m->rw, NULL, memory_order_relaxed);
    m->ro = NULL;
    struct stat st;
    if (m->probe >= 0 && svi_os_fstat(m->probe, &st) == 0 &&
        segment_same_file(&st, m->device, m->inode)) {
        svi_os_close(m->probe);
    }
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
    if (m->mapped && m->handles == 0 && svi_load_seq(&m->closing) != 0 && /* E11 */
        svi_row_own_pins(m) == 0) {
        segment_unmap(m);
    }
    svi_process_unlock();
}

/* ---- attaching ----------------------------------------------------------------------------- */

/* The file must be one that only we, or those the caller named by mode, can write. */
static int
segment_check_file(const struct stat *st, const char *path, const sv_options *options,
                   sv_error *err)
{
    uint32_t mode = st->st_mode & 07777;
    if (!S_ISREG(st->st_mode)) {
        return svi_fail(err, SV_EFORMAT, 0, "attach", "%s is not a regular file", path);
    }
    bool shared = (options->mode & 077) != 0;
    if (st->st_uid != geteuid() && !shared) {
        return svi_fail(err, SV_EFORMAT, 0, "attach",
                        "%s belongs to uid %u, this process runs as uid %u; to share a segment "
                        "between users, make it and attach with the same mode=",
                        path, (unsigned)st->st_uid, (unsigned)geteuid());
    }
    if (mode != (shared ? options->mode : 0600u) && (mode & 077) != 0) {
        return svi_fail(err, SV_EFORMAT, 0, "attach",
                        "%s has permissions %04o, asked for were %04o; somebody else may write to "
                        "it; attach with mode=0o%o if that is meant",
                        path, mode, options->mode, mode);
    }
    return 0;
}

static int
segment_check_wishes(const svm_header *header, const struct stat *st, const char *name,
                     const sv_options *options, sv_error *err)
{
    if (options->dtype != NULL && strcmp(options->dtype, header->h_dtype) != 0) {
        return svi_fail(err, SV_EMISMATCH, 0, "attach",
                        "dtype mismatch: segment '%s' holds %s, requested was %s", name,
                        header->h_dtype, options->dtype);
    }
    if (options->dtype == NULL && options->itemsize != 0 &&
        options->itemsize != header->h_itemsize) {
        return svi_fail(err, SV_EMISMATCH, 0, "attach",
                        "segment '%s' holds %s with %u bytes each, requested were %u", name,
                        header->h_dtype, header->h_itemsize, options->itemsize);
    }
    if (options->expect_slots != 0 && options->expect_slots != header->h_slot_count) {
        return svi_fail(err, SV_EMISMATCH, 0, "attach",
                        "segment '%s' has %u slots, requested were %u; leave slot_count out to "
                        "take what is there",
                        name, header->h_slot_count, options->expect_slots);
    }
    if ((options->generation != NULL && strcmp(options->generation, header->h_generation) != 0) ||
        (options->expect_inode != 0 && options->expect_inode != (uint64_t)st->st_ino)) {
        return svi_fail(err, SV_EMISMATCH, 0, "attach",
                        "segment '%s' was made anew: its generation is %s, wanted is %s", name,
                        header->h_generation,
                        options->generation != NULL ? options->generation : "another one");
    }
    return 0;
}

static svi_mapping *
segment_find(dev_t device, ino_t inode)
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

/* Fill in an unused mapping from a header that was copied and checked, and map the file. */
static int
segment_map(svi_mapping *m, int fd, const struct stat *st, const svm_header *header,
            const svi_geometry *g, const char *directory, const char *name, sv_error *err)
{
    void *map = NULL;
    int status = svi_os_map(fd, 0, g->segment_bytes, false, &map);
#ifdef SVI_TESTING
    if (svi_testing_single_map) {
        svi_os_unmap(map, g->segment_bytes);
        status = svi_os_map(fd, 0, g->segment_bytes, true, &map);
        atomic_store_explicit(&m->rw, map, memory_order_release);
    }
#endif
    if (status != 0) {
        return svi_fail(err, status == -ENOMEM ? SV_ENOMEM : SV_ESYS, -status, "map segment",
                        "cannot map the %llu bytes of '%s' (limit of address space?)",
                        (unsigned long long)g->segment_bytes, name);
    }
    svi_os_dont_dump((unsigned char *)map + g->off_payload, g->segment_bytes - g->off_payload);
    m->ro = map;
    m->g = *g;
    m->device = st->st_dev;
    m->inode = st->st_ino;
    m->owned = header->h_owned;
    m->mode = header->h_mode;
    memcpy(m->generation, header->h_generation, sizeof m->generation);
    memcpy(m->dtype, header->h_dtype, sizeof m->dtype);
    svi_text_copy(m->name, sizeof m->name, name);
    memcpy(m->directory, directory, sizeof m->directory);
    m->probe = fd;
    m->mapped = true;
    return 0;
}

static int
segment_handle(svi_mapping *m, sv_segment **out, sv_error *err)
{
    sv_segment *segment = calloc(1, sizeof *segment);
    if (segment == NULL) {
        return svi_fail(err, SV_ENOMEM, ENOMEM, "attach", "no memory for a handle");
    }
    segment->magic = SVI_HANDLE_MAGIC;
    segment->mapping = m;
    m->handles++;
    svi_row_show_handles(m);
    svi_store_seq(&m->closing, 0); /* V2: undone under the process lock */
    *out = segment;
    return 0;
}

/* Attach to the open file fd, whose ownership this takes. Process lock held. */
static int
segment_attach_fd(int fd, const char *path, const char *directory, const char *name,
                  const sv_options *options, sv_segment **out, sv_error *err)
{
    struct stat st;
    struct stat named;
    svm_header header;
    svi_geometry g;
    int status = svi_os_fstat(fd, &st);
    if (status != 0) {
        svi_os_close(fd);
        return svi_fail(err, SV_ESYS, -status, "attach", "cannot look at %s", path);
    }
    if (svi_os_fd_is_tmpfs(fd) == 0) {
        svi_os_close(fd);
        return svi_fail(err, SV_EUNSUPPORTED, 0, "attach",
                        "%s is not on tmpfs; set SHAREDVECTOR_SHM_DIR to a tmpfs", path);
    }
    if ((status = segment_check_file(&st, path, options, err)) != 0) {
        svi_os_close(fd);
        return status;
    }
    int got = svi_os_pread(fd, &header, sizeof header, 0);
    if (got != (int)sizeof header) {
        svi_os_close(fd);
        return svi_fail(err, SV_EFORMAT, got < 0 ? -got : 0, "attach",
                        "%s has %llu bytes, too few for a segment; remove it with "
                        "remove_shared_memory() if nobody needs it",
                        path, (unsigned long long)st.st_size);
    }
    if ((status = svi_geometry_read(&header, (uint64_t)st.st_size, path, &g, err)) != 0 ||
        (status = segment_check_wishes(&header, &st, name, options, err)) != 0) {
        svi_os_close(fd);
        return status;
    }
    if (svi_os_stat(path, &named) != 0 || !segment_same_file(&named, st.st_dev, st.st_ino)) {
        svi_os_close(fd);
        return SVI_ERETRY; /* renamed or replaced meanwhile */
    }
    svi_mapping *m = segment_find(st.st_dev, st.st_ino);
    if (m != NULL) {
        svi_os_close(fd);
        /* In a forked child the mapping is there, but its row is the parent's. */
        svi_hold own;
        if (svi_cells(m) == NULL) {
            if ((status = svi_row_take(m, false, false, &own, err)) != 0) {
                return status == SV_EBUSY ? SVI_ERETRY : status;
            }
            svi_row_install(m, &own);
        }
        return segment_handle(m, out, err);
    }
    if ((m = svi_mapping_obtain()) == NULL) {
        svi_os_close(fd);
        return svi_fail(err, SV_ENOMEM, ENOMEM, "attach", "no memory for a mapping");
    }
    if ((status = segment_map(m, fd, &st, &header, &g, directory, name, err)) != 0) {
        svi_os_close(fd);
        return status;
    }
    svi_hold hold;
    if ((status = svi_row_take(m, false, false, &hold, err)) != 0) {
        segment_unmap(m);
        return status == SV_EBUSY ? SVI_ERETRY : status; /* being swept */
    }
    svi_row_install(m, &hold);
    if ((status = segment_handle(m, out, err)) != 0) {
        segment_unmap(m);
    }
    return status;
}

/* ---- making -------------------------------------------------------------------------------- */

static int
segment_check_room(const char *directory, const char *name, const svi_geometry *g, sv_error *err)
{
    uint64_t need = svi_geometry_reserved(g);
    uint64_t free_bytes = 0;
    uint64_t total = 0;
    int status = svi_os_is_tmpfs(directory);
    if (status <= 0) {
        return svi_fail(err, status == 0 ? SV_EUNSUPPORTED : SV_ESYS, -status, "create segment",
                        "'%s' %s; set SHAREDVECTOR_SHM_DIR to a tmpfs", directory,
                        status == 0 ? "is not on tmpfs" : "cannot be used");
    }
    if (svi_os_file_limit() < g->segment_bytes) {
        return svi_fail(err, SV_ESYS, EFBIG, "create segment",
                        "segment '%s' needs a file of %llu bytes, the limit of this process "
                        "(RLIMIT_FSIZE, ulimit -f) is %llu",
                        name, (unsigned long long)g->segment_bytes,
                        (unsigned long long)svi_os_file_limit());
    }
    if (svi_os_free_bytes(directory, &free_bytes, &total) == 0 && free_bytes < need) {
        return svi_fail_no_space(err, "create segment", directory, name, need, free_bytes, NULL);
    }
    const char *limit = NULL;
    uint64_t room = svi_os_memory_free(&limit);
    if (room < need) {
        return svi_fail_no_space(err, "create segment", directory, name, need, room, limit);
    }
    return 0;
}

static void
segment_write_header(svm_header *h, const svi_geometry *g, const sv_options *options,
                     const char *generation, const char *dtype)
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
    h->h_mode = options->mode;
    h->h_off_slots = g->off_slots;
    h->h_off_buffers = g->off_buffers;
    h->h_off_rows = g->off_rows;
    h->h_off_ring = g->off_ring;
    h->h_off_payload = g->off_payload;
    h->h_row_stride = g->row_stride;
    h->h_created_ns = svi_os_realtime_ns();
    svi_text_copy(h->h_generation, sizeof h->h_generation, generation);
    svi_text_copy(h->h_dtype, sizeof h->h_dtype, dtype);
}

/* Do kernel locks work here? A second description must conflict with the row that we just took. */
static int
segment_test_locks(svi_mapping *m, sv_error *err)
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

/* Make the segment without a name; on success the caller links m->probe. Process lock held. */
static int
segment_make(const char *directory, const char *name, const sv_options *options,
             const svi_geometry *g, const char *generation, svi_mapping **out, sv_error *err)
{
    svi_mapping *m = NULL;
    svm_header header;
    struct stat st;
    uint64_t head = g->off_rows;
    int fd = svi_os_tmpfile(directory, (mode_t)options->mode);
    if (fd < 0) {
        return svi_fail(err, fd == -EOPNOTSUPP || fd == -EISDIR ? SV_EUNSUPPORTED : SV_ESYS, -fd,
                        "create segment", "cannot make a nameless file in '%s'", directory);
    }
    int status;
    if ((status = svi_os_fchmod(fd, (mode_t)options->mode)) != 0 ||
        (status = svi_os_truncate(fd, g->segment_bytes)) != 0 ||
        (status = svi_os_fstat(fd, &st)) != 0) {
        status = svi_fail(err, SV_ESYS, -status, "create segment", "cannot prepare '%s' in '%s'",
                          name, directory);
        goto fail;
    }
    if ((status = svi_os_allocate(fd, 0, head)) != 0 ||
        (status = svi_os_allocate(fd, g->off_ring, g->segment_bytes - g->off_ring)) != 0) {
        uint64_t free_bytes = 0;
        uint64_t total = 0;
        (void)svi_os_free_bytes(directory, &free_bytes, &total);
        status = status == -ENOSPC ? svi_fail_no_space(err, "create segment", directory, name,
                                                       svi_geometry_reserved(g), free_bytes, NULL)
                                   : svi_fail(err, SV_ESYS, -status, "create segment",
                                              "cannot reserve %llu bytes for '%s'",
                                              (unsigned long long)svi_geometry_reserved(g), name);
        goto fail;
    }
    memset(&header, 0, sizeof header);
    segment_write_header(&header, g, options, generation,
                         options->dtype != NULL ? options->dtype : "float32");
    if ((status = svi_os_pwrite(fd, &header, sizeof header, 0)) != 0) {
        status = svi_fail(err, SV_ESYS, -status, "create segment", "cannot write the header");
        goto fail;
    }
    if ((m = svi_mapping_obtain()) == NULL) {
        status = svi_fail(err, SV_ENOMEM, ENOMEM, "create segment", "no memory for a mapping");
        goto fail;
    }
    if ((status = segment_map(m, fd, &st, &header, g, directory, name, err)) != 0) {
        goto fail;
    }
    svi_hold hold;
    if ((status = svi_row_take(m, false, options->owned != 0, &hold, err)) != 0) {
        segment_unmap(m);
        return status;
    }
    svi_row_install(m, &hold);
    m->owner = options->owned != 0;
    if ((status = segment_test_locks(m, err)) != 0) {
        segment_unmap(m);
        return status;
    }
    *out = m;
    return 0;

fail:
    svi_os_close(fd);
    return status;
}

/* May the segment of this name be replaced? Not while the owner that it records lives: that one has
 * another lock directory than we, or the wish is a mistake. */
static int
segment_check_replaceable(const char *path, const char *name, sv_error *err)
{
    svm_header header;
    int fd = svi_os_open(path, O_RDONLY, 0);
    bool owned = fd >= 0 && svi_os_pread(fd, &header, sizeof header, 0) == (int)sizeof header &&
                 memcmp(header.h_magic, SVI_MAGIC, sizeof header.h_magic) == 0 &&
                 header.h_owned != 0 && svi_os_lock_test(fd, SVI_LOCK_OWNER) == 1;
    svi_os_close(fd);
    return owned ? svi_fail(err, SV_EBUSY, 0, "create segment",
                            "pool '%s' has a living owner (generation %.63s), perhaps one with "
                            "another lock directory (lock_dir, SHAREDVECTOR_LOCK_DIR); end it, or "
                            "use its directory",
                            name, header.h_generation)
                 : 0;
}

static int
segment_create(const char *path, const char *directory, const char *name, const sv_options *options,
               bool replace, sv_segment **out, sv_error *err)
{
    sv_options filled = *options;
    char generation[SV_GENERATION_BYTES];
    svi_geometry g;
    svi_mapping *m = NULL;
    int status;
    if (filled.dtype == NULL) {
        filled.dtype = "float32";
        filled.itemsize = 4;
    }
    if (filled.dtype[0] == '\0' || strlen(filled.dtype) >= SV_DTYPE_BYTES) {
        return svi_fail(err, SV_EINVAL, 0, "check options",
                        "the text of a dtype has 1 to %d bytes, found %zu", SV_DTYPE_BYTES - 1,
                        strlen(filled.dtype));
    }
    if ((filled.mode & ~0777u) != 0 || (filled.mode & 0600u) != 0600u) {
        return svi_fail(err, SV_EINVAL, 0, "check options",
                        "mode must let its user read and write (0600 to 0777), found %04o",
                        filled.mode);
    }
    if (filled.generation != NULL) {
        if ((status = svi_generation_check(filled.generation, err)) != 0) {
            return status;
        }
        svi_text_copy(generation, sizeof generation, filled.generation);
    } else if ((status = svi_generation_draw(generation, err)) != 0) {
        return status;
    }
    if ((status = svi_geometry_plan(&filled, &g, err)) != 0) {
        return status;
    }
    if (replace && (status = segment_check_replaceable(path, name, err)) != 0) {
        return status;
    }
    if (replace) {
        /* First: what it takes may be needed for the new one. */
        status = svi_os_unlink(path);
        if (status != 0 && status != -ENOENT) {
            return svi_fail(err, SV_ESYS, -status, "create segment",
                            "cannot replace %s: unlinking it failed", path);
        }
        SVI_STEP("create.unlinked");
    }
    if ((status = segment_check_room(directory, name, &g, err)) != 0 ||
        (status = segment_make(directory, name, &filled, &g, generation, &m, err)) != 0) {
        return status;
    }
    SVI_STEP("create.made");
    if ((status = svi_os_link(m->probe, path)) != 0) {
        status = status == -EEXIST ? SVI_ERETRY
                                   : svi_fail(err, SV_ESYS, -status, "create segment",
                                              "cannot give the segment its name %s", path);
        segment_unmap(m);
        return status;
    }
    SVI_STEP("create.linked");
    if ((status = segment_handle(m, out, err)) != 0) {
        (void)svi_os_unlink(path);
        segment_unmap(m);
    }
    return status;
}

/* ---- opening ------------------------------------------------------------------------------- */

/* One try. SVI_ERETRY: look again. */
static int
segment_open_once(const char *name, const char *directory, const sv_options *options, int flags,
                  sv_segment **out, sv_error *err)
{
    char path[SVI_PATH_BYTES];
    svi_lockfile creating = SVI_LOCKFILE_INIT;
    svi_path(path, directory, "", name, "");
    int status = svi_process_lock(err);
    if (status != 0) {
        return status;
    }
    int fd = svi_os_open(path, O_RDWR, 0);
    if (flags == SV_OPEN_EXCLUSIVE || flags == SV_OPEN_REPLACE ||
        (flags == SV_OPEN_CREATE && fd == -ENOENT)) {
        /* Held from the look at the name that counts until the link: two creators never reserve the
         * memory twice. What exists can be attached to without it. */
        svi_os_close(fd);
        status = svi_lockfile_take(&creating, directory, ".", name, ".create", err);
        if (status != 0) {
            svi_process_unlock();
            return status == SV_EBUSY ? SVI_ERETRY : status;
        }
        fd = svi_os_open(path, O_RDWR, 0);
    }
    if (fd >= 0 && flags == SV_OPEN_EXCLUSIVE) {
        svi_os_close(fd);
        status = svi_fail(err, SV_EEXIST, EEXIST, "create segment", "segment '%s' exists", name);
    } else if (flags == SV_OPEN_REPLACE) {
        svi_os_close(fd);
        status = segment_create(path, directory, name, options, true, out, err);
    } else if (fd >= 0) {
        status = segment_attach_fd(fd, path, directory, name, options, out, err);
    } else if (fd == -ENOENT && flags == SV_OPEN_ATTACH) {
        status = svi_fail(err, SV_ENOENT, ENOENT, "attach", "there is no segment '%s' in '%s'",
                          name, directory);
    } else if (fd == -ENOENT) {
        status = segment_create(path, directory, name, options, false, out, err);
    } else if (fd == -ELOOP || fd == -ENXIO || fd == -EISDIR) {
        status = svi_fail(err, SV_EFORMAT, -fd, "attach", "%s is not a regular file", path);
    } else {
        status = svi_fail(err, SV_ESYS, -fd, "attach", "cannot open %s", path);
    }
    svi_lockfile_drop(&creating, true);
    svi_process_unlock();
    return status;
}

static int
segment_check_options(const sv_options *options, int flags, sv_error *err)
{
    if (options->size != sizeof *options) {
        return svi_fail(err, SV_EINVAL, 0, "check options",
                        "sv_options has %zu bytes here and %zu in the caller: call "
                        "sv_options_init() and build against this header",
                        sizeof *options, options->size);
    }
    if (flags < SV_OPEN_ATTACH || flags > SV_OPEN_REPLACE) {
        return svi_fail(err, SV_EINVAL, 0, "check options", "unknown open flags %d", flags);
    }
    return 0;
}

/* How long to wait for another creator: its memory takes time to be reserved. */
static uint64_t
segment_patience(const sv_options *options, int flags)
{
    svi_geometry g;
    sv_options filled = *options;
    filled.itemsize = filled.itemsize == 0 ? 1 : filled.itemsize;
    uint64_t more = 0;
    if (flags != SV_OPEN_ATTACH && svi_geometry_plan(&filled, &g, NULL) == 0) {
        more = svi_geometry_reserved(&g) * SEGMENT_RESERVE_NS_PER_BYTE;
    }
    return options->timeout_ns > UINT64_MAX - more ? UINT64_MAX : options->timeout_ns + more;
}

int
sv_segment_open(const char *name, const sv_options *options, int flags, sv_segment **out,
                sv_error *err)
{
    sv_options defaults;
    char directory[SVI_DIRECTORY_BYTES];
    memset(directory, 0, sizeof directory);
    if (options == NULL) {
        sv_options_init(&defaults);
        options = &defaults;
    }
    int status;
    if ((status = sv_name_check(name, err)) != 0 ||
        (status = segment_check_options(options, flags, err)) != 0 ||
        (status = svi_shm_directory(options->directory, directory, err)) != 0) {
        return status;
    }
    uint64_t started = svi_os_monotonic_ns();
    for (;;) {
        sv_error attempt; /* a success after a retry leaves the caller's untouched */
        memset(&attempt, 0, sizeof attempt);
        status = segment_open_once(name, directory, options, flags, out, &attempt);
        if (status != SVI_ERETRY) {
            if (status != 0 && err != NULL) {
                *err = attempt;
            }
            return status;
        }
        uint64_t patience = segment_patience(options, flags);
        if (svi_os_monotonic_ns() - started >= patience) {
            return svi_fail(err, SV_ETIMEDOUT, 0, "open segment",
                            "another process has been making or sweeping '%s' for %.1f s; try "
                            "again, or look who holds %s/.%s.create",
                            name, (double)patience / 1e9, directory, name);
        }
        svi_os_sleep_ns(SEGMENT_POLL_NS);
    }
}

int
sv_segment_close(sv_segment *segment, sv_error *err)
{
    svi_mapping *m = svi_mapping_of(segment);
    if (m == NULL) {
        return svi_fail(err, SV_EINVAL, 0, "close segment", "not an open handle");
    }
    int status = svi_process_lock(err);
    if (status != 0) {
        return status;
    }
    if (m->handles == 1 && svi_load_seq(&m->reservations) != 0) { /* counter of this process */
        status = svi_fail(err, SV_EINUSE, 0, "close segment",
                          "%llu reservation(s) of '%s' are open; publish or cancel them first",
                          (unsigned long long)svi_load_seq(&m->reservations), /* the counter */
                          m->name);
    } else {
        segment->magic = 0;
        segment->mapping = NULL;
        free(segment);
        m->handles--;
        svi_row_show_handles(m);
        if (m->handles == 0) {
            svi_store_seq(&m->closing, 1); /* E11 (V2) */
            if (m->mapped && svi_row_own_pins(m) == 0) {
                segment_unmap(m);
            }
        }
    }
    svi_process_unlock();
    return status;
}

/* ---- removing and facts -------------------------------------------------------------------- */

/* Unlink a segment's name; a missing one is no error. */
static int
segment_unlink(const char *path, sv_error *err)
{
    int status = svi_os_unlink(path);
    if (status != 0 && status != -ENOENT) {
        return svi_fail(err, SV_ESYS, -status, "remove segment", "cannot unlink %s", path);
    }
    SVI_STEP("remove.unlinked");
    return 0;
}

int
sv_segment_remove(const char *name, const char *directory, sv_error *err)
{
    char where[SVI_DIRECTORY_BYTES];
    char path[SVI_PATH_BYTES];
    svi_lockfile creating = SVI_LOCKFILE_INIT;
    int status;
    if ((status = sv_name_check(name, err)) != 0 ||
        (status = svi_shm_directory(directory, where, err)) != 0 ||
        (status = svi_process_lock(err)) != 0) {
        return status;
    }
    svi_path(path, where, "", name, "");
    if ((status = segment_unlink(path, err)) == 0) {
        /* A creator that was killed leaves its lock file, which belongs to the same name. */
        svi_path(path, where, ".", name, ".create");
        struct stat st;
        if (svi_os_stat(path, &st) == 0 &&
            svi_lockfile_take(&creating, where, ".", name, ".create", NULL) == 0) {
            svi_lockfile_drop(&creating, true);
        }
    }
    svi_process_unlock();
    return status;
}

static bool
segment_is_exact(const char *path, uint64_t inode, const char *generation)
{
    svm_header header;
    struct stat st;
    int fd = svi_os_open(path, O_RDONLY, 0);
    bool same = fd >= 0 && svi_os_fstat(fd, &st) == 0 && (uint64_t)st.st_ino == inode &&
                svi_os_pread(fd, &header, sizeof header, 0) == (int)sizeof header &&
                strncmp(header.h_generation, generation, sizeof header.h_generation) == 0;
    svi_os_close(fd);
    return same;
}

int
sv_segment_remove_exact(const char *name, const char *directory, uint64_t inode,
                        const char *generation, sv_error *err)
{
    char where[SVI_DIRECTORY_BYTES];
    char path[SVI_PATH_BYTES];
    svi_lockfile creating = SVI_LOCKFILE_INIT;
    int status;
    if ((status = sv_name_check(name, err)) != 0 ||
        (status = svi_shm_directory(directory, where, err)) != 0 ||
        (status = svi_process_lock(err)) != 0) {
        return status;
    }
    svi_path(path, where, "", name, "");
    /* Nobody may put a new segment under the name between the look and the unlink. Who holds the
     * lock is past its own look at the name: then the name is not the one we mean. */
    (void)svi_lockfile_take(&creating, where, ".", name, ".create", NULL);
    if (!segment_is_exact(path, inode, generation)) {
        status = svi_fail(err, SV_ENOENT, ENOENT, "remove segment",
                          "%s is not the segment with inode %llu and generation %s", path,
                          (unsigned long long)inode, generation);
    } else {
        status = segment_unlink(path, err);
    }
    svi_lockfile_drop(&creating, true);
    svi_process_unlock();
    return status;
}

int
sv_segment_info(const sv_segment *segment, sv_info *out)
{
    const svi_mapping *m = svi_mapping_of(segment);
    if (m == NULL) {
        return SV_ECLOSED;
    }
    memset(out, 0, sizeof *out);
    memcpy(out->name, m->name, sizeof out->name);
    memcpy(out->directory, m->directory, sizeof out->directory);
    memcpy(out->generation, m->generation, sizeof out->generation);
    memcpy(out->dtype, m->dtype, sizeof out->dtype);
    out->itemsize = m->g.itemsize;
    out->slot_count = m->g.slot_count;
    out->buffer_count = m->g.buffer_count;
    out->max_rows = m->g.max_rows;
    out->max_arrays = m->g.max_arrays;
    out->stats_capacity = m->g.stats_capacity;
    out->owned = m->owned;
    out->mode = m->mode;
    out->chunk_size = m->g.chunk_size;
    out->segment_bytes = svi_geometry_reserved(&m->g);
    out->row_bytes = m->g.row_stride;
    out->inode = (uint64_t)m->inode;
    return 0;
}

uint32_t
sv_size(const sv_segment *segment)
{
    const svi_mapping *m = svi_mapping_of(segment);
    return m == NULL ? 0 : svi_size(m);
}
