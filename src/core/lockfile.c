/* Lock files held through anchors (rules O1, O2). */
#include "lockfile.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "error.h"
#include "layout.h"
#include "os.h"

/* Keep fd's description by an anchor; the descriptor itself goes. Besides the flock the owner holds
 * a record lock on byte 0, which others can test without disturbing anybody. */
static int
lockfile_anchor(svi_lockfile *lock, int fd)
{
    int status = svi_os_map_anchor(fd, 0, SVI_PAGE, false, &lock->anchor);
    if (status != 0) {
        return status;
    }
    if ((status = svi_os_flock_try(fd)) != 0 || (status = svi_os_lock_try(fd, 0, true)) != 0) {
        svi_os_unmap(lock->anchor, SVI_PAGE);
        lock->anchor = NULL;
    }
    return status;
}

/* 1: the path still names the file that was opened. 0: it names another one, or none. */
static int
lockfile_is_named(const char *path, dev_t device, ino_t inode)
{
    struct stat named;
    int status = svi_os_stat(path, &named);
    if (status != 0) {
        return status == -ENOENT ? 0 : status;
    }
    return named.st_dev == device && named.st_ino == inode;
}

/* Open or make the file and lock it; it may have lost its name meanwhile. */
static int
lockfile_lock(svi_lockfile *lock, struct stat *held, sv_error *err)
{
    int fd = svi_os_open(lock->path, O_RDWR | O_CREAT, 0600);
    if (fd < 0) {
        return svi_fail(err, SV_ESYS, -fd, "take lock file", "cannot open %s%s", lock->path,
                        fd == -EACCES ? " (left by another user; ask them to remove it)" : "");
    }
    int status = svi_os_fstat(fd, held);
    if (status == 0 && !S_ISREG(held->st_mode)) {
        status = -EINVAL;
    }
    if (status == 0) {
        status = lockfile_anchor(lock, fd);
    }
    svi_os_close(fd);
    if (status == -EAGAIN) {
        return svi_fail(err, SV_EBUSY, 0, "take lock file", "%s is held by another process",
                        lock->path);
    }
    if (status != 0) {
        return svi_fail(err, SV_ESYS, -status, "take lock file", "cannot lock %s", lock->path);
    }
    return 0;
}

int
svi_lockfile_take(svi_lockfile *lock, const char *directory, const char *prefix, const char *name,
                  const char *suffix, sv_error *err)
{
    svi_path(lock->path, directory, prefix, name, suffix);
    /* The holder unlinks its file while it holds it, so the file that we lock may have lost its
     * name meanwhile: then the lock is worth nothing, and we start again. */
    for (int attempt = 0; attempt < 1000; attempt++) {
        struct stat held;
        int status = lockfile_lock(lock, &held, err);
        if (status != 0) {
            return status;
        }
        int named = lockfile_is_named(lock->path, held.st_dev, held.st_ino);
        if (named == 1) {
            lock->device = held.st_dev;
            lock->inode = held.st_ino;
            SVI_STEP("lockfile.taken");
            return 0;
        }
        svi_os_unmap(lock->anchor, SVI_PAGE);
        lock->anchor = NULL;
        if (named < 0) {
            return svi_fail(err, SV_ESYS, -named, "take lock file", "cannot look at %s",
                            lock->path);
        }
    }
    return svi_fail(err, SV_EBUSY, 0, "take lock file", "%s is being made and removed all the time",
                    lock->path);
}

int
svi_lockfile_adopt(svi_lockfile *lock, int fd, const char *path, sv_error *err)
{
    struct stat held;
    int status = svi_os_fstat(fd, &held);
    int same = status == 0 ? lockfile_is_named(path, held.st_dev, held.st_ino) : 0;
    if (same < 0) {
        return svi_fail(err, SV_ESYS, -same, "adopt lock file", "cannot look at %s", path);
    }
    if (same == 0) {
        return svi_fail(err, SV_EINVAL, -status, "adopt lock file",
                        "descriptor %d is not open on %s", fd, path);
    }
    svi_text_copy(lock->path, sizeof lock->path, path);
    lock->device = held.st_dev;
    lock->inode = held.st_ino;
    if ((status = lockfile_anchor(lock, fd)) != 0) {
        return svi_fail(err, status == -EAGAIN ? SV_EBUSY : SV_ESYS, -status, "adopt lock file",
                        "descriptor %d does not hold the lock of %s", fd, path);
    }
    return 0;
}

void
svi_lockfile_drop(svi_lockfile *lock, bool unlink)
{
    if (lock->anchor == NULL) {
        return;
    }
    if (unlink && lockfile_is_named(lock->path, lock->device, lock->inode) == 1) {
        (void)svi_os_unlink(lock->path);
        SVI_STEP("lockfile.unlinked");
    }
    svi_os_unmap(lock->anchor, SVI_PAGE);
    lock->anchor = NULL;
}

int
svi_lockfile_write(const svi_lockfile *lock, const char *text)
{
    int fd = svi_os_open(lock->path, O_RDWR, 0);
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
