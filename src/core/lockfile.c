/* Lock files held through anchors (rules O1, O2). */
#include "lockfile.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "error.h"
#include "layout.h"
#include "os.h"

static svi_lockfile *lockfile_kept; /* those whose descriptors are kept */

static bool
lockfile_is_same(const svi_lockfile *lock, const struct stat *st)
{
    return st->st_dev == lock->device && st->st_ino == lock->inode;
}

/* Note which file fd is open on; its user can open it again, whatever the umask was. */
static int
lockfile_identify(svi_lockfile *lock, int fd)
{
    struct stat st;
    int status = svi_os_fstat(fd, &st);
    if (status != 0) {
        return status;
    }
    lock->device = st.st_dev;
    lock->inode = st.st_ino;
    if (!S_ISREG(st.st_mode)) {
        return -EINVAL;
    }
    return (st.st_mode & 0600) == 0600 ? 0 : svi_os_fchmod(fd, (st.st_mode & 0777) | 0600);
}

/* 1: the path leads to the file. 0: to another one, or to none. */
static int
lockfile_is_named(const svi_lockfile *lock)
{
    struct stat named;
    int status = svi_os_stat(lock->path, &named);
    if (status != 0) {
        return status == -ENOENT ? 0 : status;
    }
    return lockfile_is_same(lock, &named);
}

/* The file by its name; -ESTALE: the name is gone, or somebody else's by now. */
static int
lockfile_open_named(const svi_lockfile *lock)
{
    struct stat st;
    int fd = svi_os_open(lock->path, O_RDWR, 0);
    int status = fd < 0 ? fd : svi_os_fstat(fd, &st);
    if (status >= 0 && !lockfile_is_same(lock, &st)) {
        status = -ESTALE;
    }
    if (status < 0) {
        svi_os_close(fd);
        return status == -ENOENT ? -ESTALE : status;
    }
    return fd;
}

/* Does a map keep the locks of the description that it was made from? Not on overlayfs, which maps
 * another file. Tried with byte 1 of a second description; who has the flock is alone with it.
 * 1, 0, or -errno; -ENOTSUP: nobody else would see our lock. */
static int
lockfile_is_kept_by_maps(const svi_lockfile *lock, int fd)
{
    void *map = NULL;
    int second = lockfile_open_named(lock);
    if (second < 0) {
        return second;
    }
    int status = svi_os_lock_test(second, 0);
    status = status == 1 ? svi_os_lock_try(second, 1, true) : status == 0 ? -ENOTSUP : status;
    bool mapped = status == 0 && svi_os_map_anchor(second, 0, SVI_PAGE, false, &map) == 0;
    svi_os_close(second);
    if (status == 0) {
        status = mapped ? svi_os_lock_test(fd, 1) : 0;
    }
    svi_os_unmap(map, SVI_PAGE);
    return status;
}

/* Lock fd and make sure that the lock lasts; on success fd is the lock's. Besides the flock the
 * holder has a record lock on byte 0, which others can test without disturbing anybody. -ESTALE: the
 * name does not lead to the file. */
static int
lockfile_hold(svi_lockfile *lock, int fd)
{
    void *anchor = NULL;
    int status = svi_os_flock_try(fd);
    if (status != 0 || (status = svi_os_lock_try(fd, 0, true)) != 0) {
        return status;
    }
    if ((status = lockfile_is_named(lock)) != 1) {
        return status == 0 ? -ESTALE : status;
    }
    if ((status = lockfile_is_kept_by_maps(lock, fd)) < 0) {
        return status;
    }
    bool kept = status == 1;
    if (kept && (status = svi_os_map_anchor(fd, 0, SVI_PAGE, false, &anchor)) != 0) {
        return status;
    }
    lock->held = true;
    lock->anchor = anchor;
    lock->fd = kept ? -1 : fd;
    if (kept) {
        svi_os_close(fd);
    } else {
        lock->next = lockfile_kept;
        lockfile_kept = lock;
    }
    return 0;
}

static void
lockfile_forget(const svi_lockfile *lock)
{
    for (svi_lockfile **at = &lockfile_kept; *at != NULL; at = &(*at)->next) {
        if (*at == lock) {
            *at = lock->next;
            return;
        }
    }
}

static int
lockfile_fail(const svi_lockfile *lock, int status, sv_error *err)
{
    static const char operation[] = "take lock file";
    switch (status) {
    case -EAGAIN:
        return svi_fail(err, SV_EBUSY, 0, operation, "%s is held by another process", lock->path);
    case -ESTALE:
        return svi_fail(err, SV_EBUSY, 0, operation, "%s is being made and removed all the time",
                        lock->path);
    case -ENOTSUP:
        return svi_fail(err, SV_EUNSUPPORTED, 0, operation,
                        "other processes cannot see the lock of %s: its file system has no "
                        "open-file-description locks; choose another directory (lock_dir, "
                        "SHAREDVECTOR_LOCK_DIR)",
                        lock->path);
    case -ENOENT:
        return svi_fail(err, SV_ESYS, ENOENT, operation,
                        "cannot make %s: its directory is missing; make it, or choose another "
                        "(lock_dir, SHAREDVECTOR_LOCK_DIR)",
                        lock->path);
    case -EACCES:
        return svi_fail(err, SV_ESYS, EACCES, operation,
                        "cannot open %s: you may not write to its directory, or another user left "
                        "it and should remove it",
                        lock->path);
    default:
        return svi_fail(err, SV_ESYS, -status, operation, "cannot lock %s", lock->path);
    }
}

/* Open or make the file and lock it. -ESTALE: it lost its name meanwhile. */
static int
lockfile_try(svi_lockfile *lock)
{
    int fd = svi_os_open(lock->path, O_RDWR | O_CREAT, 0600);
    if (fd == -EACCES && svi_os_make_own(lock->path) == 0) { /* made under a strict umask */
        fd = svi_os_open(lock->path, O_RDWR | O_CREAT, 0600);
    }
    if (fd < 0) {
        return fd;
    }
    int status = lockfile_identify(lock, fd);
    if (status != 0 || (status = lockfile_hold(lock, fd)) != 0) {
        svi_os_close(fd);
    }
    return status;
}

int
svi_lockfile_take(svi_lockfile *lock, const char *directory, const char *prefix, const char *name,
                  const char *suffix, sv_error *err)
{
    svi_path(lock->path, directory, prefix, name, suffix);
    /* The holder unlinks its file while it holds it, so the file that we lock may have lost its
     * name meanwhile: then the lock is worth nothing, and we start again. */
    int status = -ESTALE;
    for (int attempt = 0; attempt < 1000 && status == -ESTALE; attempt++) {
        status = lockfile_try(lock);
    }
    if (status != 0) {
        return lockfile_fail(lock, status, err);
    }
    SVI_STEP("lockfile.taken");
    return 0;
}

int
svi_lockfile_adopt(svi_lockfile *lock, int fd, const char *path, sv_error *err)
{
    svi_text_copy(lock->path, sizeof lock->path, path);
    int own = svi_os_dup(fd); /* the same description, and with it the lock */
    int status = own < 0 ? own : lockfile_identify(lock, own);
    if (status == 0) {
        status = lockfile_is_named(lock); /* no lock is taken on another file */
        status = status == 1 ? lockfile_hold(lock, own) : status == 0 ? -ESTALE : status;
    }
    if (status == 0) {
        return 0;
    }
    svi_os_close(own);
    if (status == -EINVAL || status == -EBADF || status == -ESTALE) {
        return svi_fail(err, SV_EINVAL, -status, "adopt lock file",
                        "descriptor %d is not open on %s", fd, path);
    }
    return lockfile_fail(lock, status, err);
}

/* Is our descriptor still open, and not somebody else's by now? */
static bool
lockfile_has_descriptor(const svi_lockfile *lock)
{
    struct stat st;
    return lock->fd >= 0 && svi_os_fstat(lock->fd, &st) == 0 && lockfile_is_same(lock, &st);
}

bool
svi_lockfile_is_held(const svi_lockfile *lock)
{
    return lock->held && (lock->anchor != NULL || lockfile_has_descriptor(lock));
}

int
svi_lockfile_is_ours(const svi_lockfile *lock)
{
    return svi_lockfile_is_held(lock) ? lockfile_is_named(lock) : 0;
}

void
svi_lockfile_drop(svi_lockfile *lock, bool unlink)
{
    if (!lock->held) {
        return;
    }
    if (unlink && svi_lockfile_is_ours(lock) == 1) {
        (void)svi_os_unlink(lock->path);
        SVI_STEP("lockfile.unlinked");
    }
    if (lock->anchor == NULL) {
        lockfile_forget(lock);
        if (lockfile_has_descriptor(lock)) {
            svi_os_close(lock->fd);
        }
    }
    svi_os_unmap(lock->anchor, SVI_PAGE);
    lock->anchor = NULL;
    lock->held = false;
}

void
svi_lockfile_forked(bool close)
{
    for (svi_lockfile *lock = lockfile_kept; lock != NULL; lock = lock->next) {
        if (close && lockfile_has_descriptor(lock)) {
            svi_os_close(lock->fd);
        }
        lock->held = false;
    }
    lockfile_kept = NULL;
}

int
svi_lockfile_write(const svi_lockfile *lock, const char *text)
{
    int fd = lockfile_open_named(lock);
    if (fd < 0) {
        return fd;
    }
    int status = svi_os_truncate(fd, 0);
    if (status == 0) {
        SVI_STEP("lockfile.cut");
        status = svi_os_pwrite(fd, text, strlen(text), 0);
        SVI_STEP("lockfile.written");
    }
    svi_os_close(fd);
    return status;
}

int
svi_lockfile_set_mode(const svi_lockfile *lock, mode_t mode)
{
    int fd = lockfile_open_named(lock);
    if (fd < 0) {
        return fd;
    }
    int status = svi_os_fchmod(fd, mode);
    svi_os_close(fd);
    return status;
}
