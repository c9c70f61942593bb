/*
 * Segments by name: opening (attach or make), closing, removing, facts. Rules S1-S5.
 */
#include "segment.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "error.h"
#include "fork.h"
#include "lockfile.h"
#include "os.h"
#include "row.h"

#define SEGMENT_POLL_NS UINT64_C(2000000)
#define SEGMENT_REMOVE_PATIENCE_NS UINT64_C(1000000000)
#define SEGMENT_RESERVE_NS_PER_BYTE 5 /* 0.2 GB/s, several times slower than seen */

void
sv_options_init(sv_options *options)
{
    if (options == NULL) {
        return;
    }
    *options = (sv_options){.size = sizeof *options,
                            .chunk_size = UINT64_C(1) << 20,
                            .max_memory_size = UINT64_C(10) << 20,
                            .spare_buffers = 2,
                            .max_rows = 1024,
                            .max_arrays = 1,
                            .mode = 0600,
                            .timeout_ns = UINT64_C(5000000000)};
}

/* ---- opening ------------------------------------------------------------------------------- */

/* What is to be done about a name whose file is open as fd (-errno: it is not). */
static int
segment_open_found(int fd, const svi_place *place, const sv_options *options, int flags,
                   sv_segment **out, sv_error *err)
{
    if (flags == SV_OPEN_REPLACE || (fd == -ENOENT && flags != SV_OPEN_ATTACH)) {
        svi_os_close(fd);
        return svi_create(place, options, flags == SV_OPEN_REPLACE, out, err);
    }
    if (fd >= 0 && flags == SV_OPEN_EXCLUSIVE) {
        svi_os_close(fd);
        return svi_fail(err, SV_EEXIST, EEXIST, "create segment", "segment '%s' exists",
                        place->name);
    }
    if (fd >= 0) {
        return svi_attach(fd, place, options, out, err);
    }
    if (fd == -ENOENT) {
        return svi_fail(err, SV_ENOENT, ENOENT, "attach", "there is no segment '%s' in '%s'",
                        place->name, place->directory);
    }
    if (fd == -ELOOP || fd == -ENXIO || fd == -EISDIR) {
        return svi_fail(err, SV_EFORMAT, -fd, "attach", "%s is not a regular file", place->path);
    }
    return svi_fail(err, SV_ESYS, -fd, "attach", "cannot open %s", place->path);
}

/* One try. SVI_ERETRY: look again. Process lock held; making a segment gives it up meanwhile. */
static int
segment_open_once(const svi_place *place, const sv_options *options, int flags, sv_segment **out,
                  sv_error *err)
{
    svi_lockfile creating = SVI_LOCKFILE_INIT;
    bool may_attach = flags == SV_OPEN_ATTACH || flags == SV_OPEN_CREATE;
    int status = may_attach ? svi_attach_again(place, options, out, err) : SVI_EUNKNOWN;
    if (status != SVI_EUNKNOWN) {
        return status;
    }
    int fd = svi_os_open(place->path, O_RDWR, 0);
    /* Nobody else makes a block of this name: it was drawn. */
    bool alone = options->block != 0 && flags == SV_OPEN_EXCLUSIVE;
    if (!alone && (!may_attach || (flags == SV_OPEN_CREATE && fd == -ENOENT))) {
        /* Held from the look at the name that counts until the link: two creators never reserve the
         * memory twice. What exists can be attached to without it. */
        svi_os_close(fd);
        status = svi_lockfile_take(&creating, place->directory, ".", place->name, ".create", err);
        if (status != 0) {
            return status == SV_EBUSY ? SVI_ERETRY : status;
        }
        fd = svi_os_open(place->path, O_RDWR, 0);
    }
    status = segment_open_found(fd, place, options, flags, out, err);
    svi_lockfile_drop(&creating, true);
    return status;
}

int
svi_options_check(const sv_options *options, sv_error *err)
{
    return options->size == sizeof *options
               ? 0
               : svi_fail(err, SV_EINVAL, 0, "check options",
                          "sv_options has %zu bytes here and %zu in the caller: call "
                          "sv_options_init() and build against this header",
                          sizeof *options, options->size);
}

static int
segment_check_options(const sv_options *options, int flags, sv_error *err)
{
    int status = svi_options_check(options, err);
    if (status != 0) {
        return status;
    }
    if (options->block != 0 &&
        (flags != SV_OPEN_EXCLUSIVE || options->slot_count > 1 || options->max_arrays != 1)) {
        return svi_fail(err, SV_EINVAL, 0, "check options",
                        "a block is made with SV_OPEN_EXCLUSIVE, one slot and one array; found "
                        "flags %d, %u slots, %u arrays",
                        flags, options->slot_count, options->max_arrays);
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
    char path[SVI_PATH_BYTES];
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
    svi_path(path, directory, "", name, "");
    const svi_place place = {.name = name, .directory = directory, .path = path};
    uint64_t started = svi_os_monotonic_ns();
    for (;;) {
        sv_error attempt; /* a success after a retry leaves the caller's untouched */
        memset(&attempt, 0, sizeof attempt);
        if ((status = svi_process_lock(err)) != 0) {
            return status;
        }
        status = segment_open_once(&place, options, flags, out, &attempt);
        svi_process_unlock();
        if (status != SVI_ERETRY) {
            if (status != 0 && err != NULL) {
                *err = attempt;
            }
            return status;
        }
        if (svi_interrupted()) {
            return svi_fail(err, SV_ETIMEDOUT, 0, "open segment",
                            "interrupted while another process was at work on '%s'", name);
        }
        uint64_t patience = segment_patience(options, flags);
        if (svi_os_monotonic_ns() - started >= patience) {
            return svi_fail(err, SV_ETIMEDOUT, 0, "open segment",
                            "another process has been at work on '%s' for %.1f s; try "
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
    if (svi_mapping_of(segment) != m) {
        status = svi_fail(err, SV_EINVAL, 0, "close segment", "another thread closed the handle");
    } else if (m->handles == 1 &&
               svi_load_seq(&m->reservations) != 0) { /* this process's counter */
        status = svi_fail(err, SV_EINUSE, 0, "close segment",
                          "%llu reservation(s) of '%s' are open; publish or cancel them first",
                          (unsigned long long)svi_load_seq(&m->reservations), /* the counter */
                          m->name);
    } else {
        svi_mapping_unhandle(m, segment);
        if (m->handles == 0) {
            /* E11 (V2); relaxed: written under the process lock */
            svi_store_seq(&m->closing, svi_load_relaxed(&m->closing) | SVI_CLOSED);
            if (m->mapped && svi_mapping_is_unused(m)) {
                svi_mapping_drop(m);
            }
        }
    }
    svi_process_unlock();
    return status;
}

/* ---- removing and facts -------------------------------------------------------------------- */

/* Unlink a segment's name; a missing one is no error. Without the process lock: it may free gigabytes. */
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
        (status = svi_shm_directory(directory, where, err)) != 0) {
        return status;
    }
    svi_path(path, where, "", name, "");
    if ((status = segment_unlink(path, err)) != 0) {
        return status;
    }
    /* A creator that was killed leaves its lock file, which belongs to the same name. */
    struct stat st;
    svi_path(path, where, ".", name, ".create");
    if (svi_os_stat(path, &st) == 0 && (status = svi_process_lock(err)) == 0) {
        if (svi_lockfile_take(&creating, where, ".", name, ".create", NULL) == 0) {
            svi_lockfile_drop(&creating, true);
        }
        svi_process_unlock();
    }
    return status;
}

/* Which file a name must lead to before it is unlinked. */
typedef struct segment_wanted {
    uint64_t inode;
    const char *generation; /* NULL: whatever the header says, as the file is mapped here */
    dev_t device;           /* without a generation */
} segment_wanted;

/* 1, 0, or -errno: it cannot be told. */
static int
segment_is_wanted(const char *path, const segment_wanted *wanted)
{
    svm_header header;
    struct stat st;
    int status = svi_os_stat(path, &st);
    if (status != 0) {
        return status == -ENOENT ? 0 : status;
    }
    if ((uint64_t)st.st_ino != wanted->inode) {
        return 0;
    }
    if (wanted->generation == NULL) {
        return st.st_dev == wanted->device;
    }
    int fd = svi_os_open(path, O_RDONLY, 0);
    if (fd < 0) {
        return fd == -ENOENT ? 0 : fd;
    }
    int got = svi_os_fstat(fd, &st);
    bool same = got == 0 && (uint64_t)st.st_ino == wanted->inode;
    if (same) {
        got = svi_os_pread(fd, &header, sizeof header, 0);
        same = got == (int)sizeof header &&
               strncmp(header.h_generation, wanted->generation, SV_GENERATION_BYTES - 1) == 0;
    }
    svi_os_close(fd);
    return got < 0 ? got : same;
}

/* One try. SV_EBUSY: a creator is at work on the name. Process lock held, given up for the unlink. */
static int
segment_remove_wanted_once(const char *name, const char *where, const segment_wanted *wanted,
                           sv_error *err)
{
    char path[SVI_PATH_BYTES];
    svi_lockfile creating = SVI_LOCKFILE_INIT;
    svi_path(path, where, "", name, "");
    /* Nobody may put a new segment under the name between the look and the unlink. Where no lock file
     * can be made, nobody can create either. */
    bool busy = svi_lockfile_take(&creating, where, ".", name, ".create", NULL) == SV_EBUSY;
    int status = segment_is_wanted(path, wanted);
    if (status < 0) {
        status = svi_fail(err, SV_ESYS, -status, "remove segment", "cannot look at %s", path);
    } else if (status == 0) {
        status = svi_fail(err, SV_ENOENT, ENOENT, "remove segment",
                          "%s is not the segment with inode %llu%s%s", path,
                          (unsigned long long)wanted->inode,
                          wanted->generation != NULL ? " and generation " : "",
                          wanted->generation != NULL ? wanted->generation : "");
    } else if (busy) {
        status = svi_fail(err, SV_EBUSY, 0, "remove segment",
                          "another process is making a segment in place of %s; try again later, "
                          "or look who holds %s/.%s.create",
                          path, where, name);
    } else {
        svi_process_unlock();
        status = segment_unlink(path, err);
        (void)svi_process_lock(NULL); /* was held before: it cannot fail */
    }
    svi_lockfile_drop(&creating, true);
    return status;
}

static int
segment_remove_wanted(const char *name, const char *where, const segment_wanted *wanted,
                      sv_error *err)
{
    uint64_t started = svi_os_monotonic_ns();
    for (;;) {
        sv_error attempt; /* a success after a retry leaves the caller's untouched */
        memset(&attempt, 0, sizeof attempt);
        int status = svi_process_lock(err);
        if (status != 0) {
            return status;
        }
        status = segment_remove_wanted_once(name, where, wanted, &attempt);
        svi_process_unlock();
        if (status != SV_EBUSY || svi_interrupted() ||
            svi_os_monotonic_ns() - started >= SEGMENT_REMOVE_PATIENCE_NS) {
            if (status != 0 && err != NULL) {
                *err = attempt;
            }
            return status;
        }
        svi_os_sleep_ns(SEGMENT_POLL_NS);
    }
}

int
sv_segment_remove_exact(const char *name, const char *directory, uint64_t inode,
                        const char *generation, sv_error *err)
{
    char where[SVI_DIRECTORY_BYTES];
    int status;
    if ((status = sv_name_check(name, err)) != 0 ||
        (status = svi_shm_directory(directory, where, err)) != 0) {
        return status;
    }
    const segment_wanted wanted = {.inode = inode, .generation = generation};
    return segment_remove_wanted(name, where, &wanted, err);
}

int
sv_segment_remove_own(sv_segment *segment, sv_error *err)
{
    const svi_mapping *m = svi_mapping_of(segment);
    if (m == NULL) {
        return svi_fail(err, SV_ECLOSED, 0, "remove segment", "the handle is closed");
    }
    /* While it is mapped, no other file has its inode. */
    const segment_wanted wanted = {.inode = (uint64_t)m->inode, .device = m->device};
    return segment_remove_wanted(m->name, m->directory, &wanted, err);
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
    out->block = m->g.kind == SVI_KIND_BLOCK;
    out->mode = m->mode;
    out->chunk_size = m->g.chunk_size;
    out->segment_bytes = svi_geometry_reserved(&m->g);
    out->row_bytes = m->g.row_stride;
    out->inode = (uint64_t)m->inode;
    out->processes = m->g.processes;
    return 0;
}

uint32_t
sv_size(const sv_segment *segment)
{
    const svi_mapping *m = svi_mapping_of(segment);
    return m == NULL ? 0 : svi_size(m);
}
