/* Who owns a pool, and whether it is ready (rules O1-O4). */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "error.h"
#include "fork.h"
#include "layout.h"
#include "lockfile.h"
#include "os.h"
#include "owner.h"

#define OWNER_TEXT_BYTES 256

struct sv_owner {
    svi_lockfile lock;
    uint64_t process; /* who took it: a forked child holds nothing */
    bool regained;    /* after somebody removed the lock file: others may have owned the name */
    mode_t mode;      /* of the lock file and the marker: the pool's */
    char name[SV_MAX_NAME_BYTES + 1];
    char directory[SVI_DIRECTORY_BYTES];
    char generation[SV_GENERATION_BYTES];
};

static void
owner_text(char out[OWNER_TEXT_BYTES], const char *generation)
{
    (void)snprintf(out, OWNER_TEXT_BYTES, "{\"generation\": \"%s\", \"pid\": %ld}\n", generation,
                   (long)getpid());
}

/* The values of our own one-line JSON; anything else gives "" and 0. */
static void
owner_parse(const char *text, char generation[SV_GENERATION_BYTES], int32_t *pid)
{
    char found[SV_GENERATION_BYTES] = "";
    long number = 0;
    if (sscanf(text, " { \"generation\" : \"%63[^\"]\" , \"pid\" : %ld", found, &number) < 1 ||
        svi_generation_check(found, NULL) != 0) {
        found[0] = '\0';
        number = 0;
    }
    if (generation != NULL) {
        memcpy(generation, found, sizeof found);
    }
    if (pid != NULL) {
        *pid = (int32_t)number;
    }
}

static int
owner_read(const char *path, char text[OWNER_TEXT_BYTES])
{
    struct stat st;
    int fd = svi_os_open(path, O_RDONLY, 0);
    if (fd < 0) {
        return fd;
    }
    int got = svi_os_fstat(fd, &st) == 0 && S_ISREG(st.st_mode)
                  ? svi_os_pread(fd, text, OWNER_TEXT_BYTES - 1, 0)
                  : -EINVAL;
    svi_os_close(fd);
    if (got >= 0) {
        text[got] = '\0';
    }
    return got < 0 ? got : 0;
}

static int
owner_new(const char *name, const char *lock_dir, const char *generation, sv_owner **out,
          sv_error *err)
{
    int status = sv_name_check(name, err);
    if (status != 0) {
        return status;
    }
    sv_owner *owner = calloc(1, sizeof *owner);
    if (owner == NULL) {
        return svi_fail(err, SV_ENOMEM, ENOMEM, "own pool", "no memory");
    }
    svi_text_copy(owner->name, sizeof owner->name, name);
    owner->mode = 0600;
    if ((status = svi_lock_directory(lock_dir, owner->directory, err)) != 0) {
        goto fail;
    }
    if (generation != NULL) {
        if ((status = svi_generation_check(generation, err)) != 0) {
            goto fail;
        }
        svi_text_copy(owner->generation, sizeof owner->generation, generation);
    } else if ((status = svi_generation_draw(owner->generation, err)) != 0) {
        goto fail;
    }
    *out = owner;
    return 0;
fail:
    free(owner);
    return status;
}

/* Say in the lock file whose it is. Process lock held. */
static int
owner_sign(sv_owner *owner, sv_error *err)
{
    char text[OWNER_TEXT_BYTES];
    owner->process = svi_process_token();
    owner_text(text, owner->generation);
    int status = svi_lockfile_write(&owner->lock, text);
    if (status != 0 || (status = svi_lockfile_set_mode(&owner->lock, owner->mode)) != 0) {
        svi_lockfile_drop(&owner->lock, true);
        return svi_fail(err, SV_ESYS, -status, "own pool", "cannot write %s", owner->lock.path);
    }
    return 0;
}

/* Process lock held. */
static int
owner_take(sv_owner *owner, sv_error *err)
{
    int status = svi_lockfile_take(&owner->lock, owner->directory, "", owner->name, ".lock", err);
    return status == 0 ? owner_sign(owner, err) : status;
}

/* Who says in the lock file that it is the owner; for people. */
static int
owner_pid(const sv_owner *owner)
{
    int32_t pid = 0;
    (void)sv_owner_probe(owner->name, owner->directory, NULL, &pid, NULL);
    return (int)pid;
}

int
sv_owner_acquire(const char *name, const char *lock_dir, const char *generation, sv_owner **out,
                 sv_error *err)
{
    sv_owner *owner = NULL;
    int status = owner_new(name, lock_dir, generation, &owner, err);
    if (status != 0) {
        return status;
    }
    if ((status = svi_process_lock(err)) == 0) {
        status = owner_take(owner, err);
        svi_process_unlock();
    }
    if (status == SV_EBUSY) {
        status = svi_fail(err, SV_EBUSY, 0, "own pool",
                          "pool '%s' is owned by pid %d; attach to it, or end that process", name,
                          owner_pid(owner));
    }
    if (status != 0) {
        free(owner);
        return status;
    }
    *out = owner;
    return 0;
}

int
sv_owner_adopt(const char *name, const char *lock_dir, int fd, const char *generation,
               sv_owner **out, sv_error *err)
{
    sv_owner *owner = NULL;
    char path[SVI_PATH_BYTES];
    int status = owner_new(name, lock_dir, generation, &owner, err);
    if (status != 0) {
        return status;
    }
    svi_path(path, owner->directory, "", name, ".lock");
    if ((status = svi_process_lock(err)) == 0) {
        status = svi_lockfile_adopt(&owner->lock, fd, path, err);
        status = status == 0 ? owner_sign(owner, err) : status;
        svi_process_unlock();
    }
    if (status != 0) {
        free(owner);
        return status;
    }
    svi_os_close(fd); /* the lock has its own */
    *out = owner;
    return 0;
}

bool
svi_owner_is_mine(const sv_owner *owner)
{
    return owner != NULL && owner->process == svi_process_token();
}

int
sv_owner_held(const sv_owner *owner)
{
    return svi_owner_is_mine(owner) && svi_lockfile_is_held(&owner->lock);
}

const char *
sv_owner_generation(const sv_owner *owner)
{
    return owner->generation;
}

const char *
svi_owner_name(const sv_owner *owner)
{
    return owner->name;
}

void
sv_owner_release(sv_owner *owner)
{
    if (owner == NULL) {
        return;
    }
    /* In a forked child the anchor's address is not ours (MADV_DONTFORK): leave it alone. */
    if (svi_owner_is_mine(owner) && svi_process_lock(NULL) == 0) {
        svi_lockfile_drop(&owner->lock, true);
        svi_process_unlock();
    }
    free(owner);
}

int
sv_owner_probe(const char *name, const char *lock_dir, char *generation, int32_t *pid,
               sv_error *err)
{
    char directory[SVI_DIRECTORY_BYTES];
    char path[SVI_PATH_BYTES];
    char text[OWNER_TEXT_BYTES] = "";
    int status;
    if ((status = sv_name_check(name, err)) != 0 ||
        (status = svi_lock_directory(lock_dir, directory, err)) != 0) {
        return status;
    }
    svi_path(path, directory, "", name, ".lock");
    owner_parse("", generation, pid);
    int fd = svi_os_open(path, O_RDONLY, 0);
    if (fd == -ENOENT) {
        return 0;
    }
    if (fd < 0) {
        return svi_fail(err, SV_ESYS, -fd, "look for owner", "cannot open %s", path);
    }
    int held = svi_os_lock_test(fd, 0);
    svi_os_close(fd);
    if (held < 0) {
        return svi_fail(err, SV_ESYS, -held, "look for owner", "cannot test the lock of %s", path);
    }
    if (owner_read(path, text) == 0) {
        owner_parse(text, generation, pid);
    }
    return held;
}

/* ---- ready marker -------------------------------------------------------------------------- */

/* Only who holds the lock that the name leads to may touch the pool's other names (O3). Where the lock
 * file was removed behind our back, the lock is taken anew. SV_EBUSY: somebody else did so first. */
static int
owner_hold_name(sv_owner *owner, const char *operation, sv_error *err)
{
    if (!svi_owner_is_mine(owner)) {
        return svi_fail(err, SV_EFORKED, 0, operation, "this process does not own the pool%s",
                        owner == NULL ? "" : " (any more)");
    }
    int status = svi_process_lock(err);
    if (status != 0) {
        return status;
    }
    int ours = svi_lockfile_is_ours(&owner->lock);
    if (ours == 0) {
        svi_lockfile_drop(&owner->lock, false);
        owner->regained = true;
        status = owner_take(owner, err);
    } else if (ours < 0) {
        status = svi_fail(err, SV_ESYS, -ours, operation, "cannot look at %s", owner->lock.path);
    }
    svi_process_unlock();
    return status == SV_EBUSY
               ? svi_fail(err, SV_EBUSY, 0, operation,
                          "the lock file of pool '%s' was removed behind its owner, and process %d "
                          "owns the name by now",
                          owner->name, owner_pid(owner))
               : status;
}

int
svi_owner_set_mode(sv_owner *owner, uint32_t mode, sv_error *err)
{
    int status = owner_hold_name(owner, "own pool", err);
    if (status != 0) {
        return status;
    }
    owner->mode = (mode_t)mode;
    status = svi_lockfile_set_mode(&owner->lock, owner->mode);
    return status == 0 ? 0
                       : svi_fail(err, SV_ESYS, -status, "own pool",
                                  "cannot set the permissions of %s", owner->lock.path);
}

int
sv_ready_write(sv_owner *owner, sv_error *err)
{
    char path[SVI_PATH_BYTES];
    char fresh[SVI_PATH_BYTES];
    char text[OWNER_TEXT_BYTES];
    int status = owner_hold_name(owner, "mark ready", err);
    if (status != 0) {
        return status;
    }
    svi_path(path, owner->directory, "", owner->name, ".ready");
    svi_path(fresh, owner->directory, ".", owner->name, ".ready");
    owner_text(text, owner->generation);
    /* Only the owner writes this file, so that a leftover of a killed one can be overwritten. */
    (void)svi_os_unlink(fresh);
    int fd = svi_os_open(fresh, O_RDWR | O_CREAT | O_EXCL, 0600);
    status = fd < 0 ? fd : svi_os_fchmod(fd, owner->mode); /* whatever the umask */
    status = status < 0 ? status : svi_os_pwrite(fd, text, strlen(text), 0);
    svi_os_close(fd);
    SVI_STEP("ready.written");
    if (status >= 0) {
        status = svi_os_rename(fresh, path);
    }
    if (status < 0) {
        (void)svi_os_unlink(fresh);
        return svi_fail(err, SV_ESYS, -status, "mark ready", "cannot write %s", path);
    }
    SVI_STEP("ready.renamed");
    return 0;
}

int
sv_ready_read(const char *name, const char *lock_dir, char generation[SV_GENERATION_BYTES],
              sv_error *err)
{
    char directory[SVI_DIRECTORY_BYTES];
    char path[SVI_PATH_BYTES];
    char text[OWNER_TEXT_BYTES];
    char found[SV_GENERATION_BYTES];
    int status;
    if ((status = sv_name_check(name, err)) != 0 ||
        (status = svi_lock_directory(lock_dir, directory, err)) != 0) {
        return status;
    }
    svi_path(path, directory, "", name, ".ready");
    status = owner_read(path, text);
    if (status == -ENOENT) {
        return svi_fail(err, SV_ENOENT, ENOENT, "read marker", "pool '%s' is not marked ready",
                        name);
    }
    if (status == -EINVAL || status == -ELOOP) {
        return svi_fail(err, SV_EFORMAT, 0, "read marker", "%s is not a regular file", path);
    }
    if (status != 0) {
        return svi_fail(err, SV_ESYS, -status, "read marker", "cannot read %s", path);
    }
    owner_parse(text, found, NULL);
    if (found[0] == '\0') {
        return svi_fail(err, SV_EFORMAT, 0, "read marker", "%s is not a ready marker", path);
    }
    memcpy(generation, found, sizeof found);
    return 0;
}

int
sv_ready_clear(sv_owner *owner, sv_error *err)
{
    char path[SVI_PATH_BYTES];
    char found[SV_GENERATION_BYTES];
    sv_error failed = {.message = ""};
    int status = owner_hold_name(owner, "clear marker", &failed);
    if (status == SV_ESYS && failed.sys_errno == ENOENT) {
        return 0; /* the directory was removed, and the marker with it */
    }
    if (status != 0) {
        if (err != NULL) {
            *err = failed;
        }
        return status;
    }
    if (owner->regained && sv_ready_read(owner->name, owner->directory, found, NULL) == 0 &&
        strcmp(found, owner->generation) != 0) {
        return 0; /* of one who owned the name meanwhile, and may live */
    }
    svi_path(path, owner->directory, ".", owner->name, ".ready");
    (void)svi_os_unlink(path);
    svi_path(path, owner->directory, "", owner->name, ".ready");
    status = svi_os_unlink(path);
    if (status != 0 && status != -ENOENT) {
        return svi_fail(err, SV_ESYS, -status, "clear marker", "cannot unlink %s", path);
    }
    SVI_STEP("ready.cleared");
    return 0;
}
