/*
 * Attaching to an open file (rules S3, S4): see that it is a segment, ours, and what was asked for;
 * share this process's mapping of it, or make one and take a row.
 */
#include "segment.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "error.h"
#include "fork.h"
#include "os.h"
#include "row.h"

/* The file must be one that only we, or those the caller named by mode, can write. */
static int
attach_check_file(const struct stat *st, const char *path, const sv_options *options, sv_error *err)
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

/* Is the segment what the caller asked for? */
static int
attach_check_wishes(const svi_mapping *m, const sv_options *options, sv_error *err)
{
    if (options->dtype != NULL && strcmp(options->dtype, m->dtype) != 0) {
        return svi_fail(err, SV_EMISMATCH, 0, "attach",
                        "dtype mismatch: segment '%s' holds %s, requested was %s", m->name,
                        m->dtype, options->dtype);
    }
    if (options->dtype == NULL && options->itemsize != 0 && options->itemsize != m->g.itemsize) {
        return svi_fail(err, SV_EMISMATCH, 0, "attach",
                        "segment '%s' holds %s with %u bytes each, requested were %u", m->name,
                        m->dtype, m->g.itemsize, options->itemsize);
    }
    if (options->expect_slots != 0 && options->expect_slots != m->g.slot_count) {
        return svi_fail(err, SV_EMISMATCH, 0, "attach",
                        "segment '%s' has %u slots, requested were %u; leave slot_count out to "
                        "take what is there",
                        m->name, m->g.slot_count, options->expect_slots);
    }
    if ((options->generation != NULL && strcmp(options->generation, m->generation) != 0) ||
        (options->expect_inode != 0 && options->expect_inode != (uint64_t)m->inode)) {
        return svi_fail(err, SV_EMISMATCH, 0, "attach",
                        "segment '%s' was made anew: its generation is %s, wanted is %s", m->name,
                        m->generation,
                        options->generation != NULL ? options->generation : "another one");
    }
    return 0;
}

/* A further handle on a mapping of this process. */
static int
attach_share(svi_mapping *m, const sv_options *options, sv_segment **out, sv_error *err)
{
    int status = attach_check_wishes(m, options, err);
    if (status == 0) {
        status = svi_row_join(m, -1, 0, err); /* in a forked child the row was the parent's */
    }
    if (status == 0) {
        status = svi_mapping_handle(m, out, err);
    }
    return status;
}

/* See that the file is a segment, and ours; read its header. */
static int
attach_look(int fd, const svi_place *place, const sv_options *options, svi_facts *out,
            sv_error *err)
{
    int status = svi_os_fstat(fd, &out->st);
    if (status != 0) {
        return svi_fail(err, SV_ESYS, -status, "attach", "cannot look at %s", place->path);
    }
    if (svi_os_fd_is_tmpfs(fd) == 0) {
        return svi_fail(err, SV_EUNSUPPORTED, 0, "attach",
                        "%s is not on tmpfs; set SHAREDVECTOR_SHM_DIR to a tmpfs", place->path);
    }
    if ((status = attach_check_file(&out->st, place->path, options, err)) != 0) {
        return status;
    }
    int got = svi_os_pread(fd, &out->header, sizeof out->header, 0);
    if (got != (int)sizeof out->header) {
        return svi_fail(err, SV_EFORMAT, got < 0 ? -got : 0, "attach",
                        "%s has %llu bytes, too few for a segment; remove it with "
                        "remove_shared_memory() if nobody needs it",
                        place->path, (unsigned long long)out->st.st_size);
    }
    return svi_geometry_read(&out->header, (uint64_t)out->st.st_size, place->path, &out->g, err);
}

/* The path opened once more: a description for the row, and the proof that the file still has its
 * name. SVI_ERETRY: it was renamed or replaced meanwhile. */
static int
attach_open_again(const svi_place *place, const struct stat *st, int *out, sv_error *err)
{
    struct stat again;
    int fd = svi_os_open(place->path, O_RDWR, 0);
    if (fd < 0) {
        return fd == -ENOENT
                   ? SVI_ERETRY
                   : svi_fail(err, SV_ESYS, -fd, "attach", "cannot open %s again", place->path);
    }
    int status = svi_os_fstat(fd, &again);
    if (status != 0 || !svi_same_file(&again, st->st_dev, st->st_ino)) {
        svi_os_close(fd);
        return status == 0
                   ? SVI_ERETRY
                   : svi_fail(err, SV_ESYS, -status, "attach", "cannot look at %s", place->path);
    }
    *out = fd;
    return 0;
}

/* Map a file that this process has not mapped yet, and take a row. Both descriptions belong to the
 * mapping and its row from here on. */
static int
attach_first(int fd, int again, const svi_place *place, const sv_options *options,
             const svi_facts *facts, sv_segment **out, sv_error *err)
{
    svi_mapping *m = NULL;
    int status = svi_mapping_begin(fd, &facts->st, &m, err);
    if (status == 0 && (status = svi_mapping_make(m, facts, place, err)) != 0) {
        svi_mapping_abandon(m);
    }
    if (status != 0) {
        svi_os_close(again);
        return status;
    }
    if ((status = attach_check_wishes(m, options, err)) != 0) {
        svi_os_close(again);
    } else if ((status = svi_row_join(m, again, 0, err)) == 0) {
        status = svi_mapping_handle(m, out, err);
    }
    if (status != 0) {
        svi_mapping_drop(m);
    }
    return status;
}

int
svi_attach(int fd, const svi_place *place, const sv_options *options, sv_segment **out,
           sv_error *err)
{
    svi_facts facts;
    int again = -1;
    int status = attach_look(fd, place, options, &facts, err);
    if (status == 0) {
        status = attach_open_again(place, &facts.st, &again, err);
    }
    if (status != 0) {
        svi_os_close(fd);
        return status;
    }
    svi_mapping *m = svi_mapping_find(facts.st.st_dev, facts.st.st_ino);
    if (m == NULL) {
        status = attach_first(fd, again, place, options, &facts, out, err);
    } else { /* mapped already, by another path */
        svi_os_close(fd);
        svi_os_close(again);
        status = attach_share(m, options, out, err);
    }
    return status == SV_EBUSY ? SVI_ERETRY : status; /* locked by a stranger */
}

int
svi_attach_again(const svi_place *place, const sv_options *options, sv_segment **out, sv_error *err)
{
    struct stat st;
    int status = svi_mapping_is_named(place) ? svi_os_stat(place->path, &st) : -ENOENT;
    svi_mapping *m = status == 0 ? svi_mapping_find(st.st_dev, st.st_ino) : NULL;
    if (status != 0 && status != -ENOENT) {
        return svi_fail(err, SV_ESYS, -status, "attach", "cannot look at %s", place->path);
    }
    if (m == NULL) {
        return SVI_EUNKNOWN;
    }
    if ((status = attach_check_file(&st, place->path, options, err)) == 0) {
        status = attach_share(m, options, out, err);
    }
    return status == SV_EBUSY ? SVI_ERETRY : status;
}
