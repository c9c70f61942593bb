/*
 * A lock file: flock-ed through an anchor, so that the lock lives exactly as long as this address
 * space, and unlinked by its holder. Used by creators (.<name>.create) and owners (<name>.lock).
 *
 * Where a map does not keep the lock (overlayfs, file systems that cannot be mapped) the descriptor
 * stays open instead; fork's handler closes it in the child. There a program that closes all its
 * descriptors gives the lock up, and a child of a raw clone keeps it until it ends.
 */
#ifndef SVI_LOCKFILE_H
#define SVI_LOCKFILE_H

#include <stdbool.h>
#include <sys/types.h>

#include "name.h"

typedef struct svi_lockfile {
    bool held;
    void *anchor;              /* NULL: the descriptor keeps the lock */
    int fd;                    /* -1: the anchor does */
    struct svi_lockfile *next; /* of those whose descriptor is kept, for fork */
    char path[SVI_PATH_BYTES];
    dev_t device;
    ino_t inode;
} svi_lockfile;

#define SVI_LOCKFILE_INIT {.held = false}

/* SV_EBUSY: somebody else holds it. SV_EUNSUPPORTED: locks do not work there. Process lock held. */
int svi_lockfile_take(svi_lockfile *lock, const char *directory, const char *prefix,
                      const char *name, const char *suffix, sv_error *err);

/* Make a descriptor that is flock-ed already into a lock; the descriptor stays the caller's, who may
 * close it. Process lock held. */
int svi_lockfile_adopt(svi_lockfile *lock, int fd, const char *path, sv_error *err);

/* Is it held, and not lost with a descriptor that somebody closed? */
bool svi_lockfile_is_held(const svi_lockfile *lock);

/* Is it held, and does its name still lead to it? 1, 0, or -errno. */
int svi_lockfile_is_ours(const svi_lockfile *lock);

/* Unlink the file if it is still ours, then let the lock go. A lock that is not held: nothing. Process
 * lock held. */
void svi_lockfile_drop(svi_lockfile *lock, bool unlink);

/* Replace the file's contents, or set its permissions. -ESTALE: the name does not lead to it. */
int svi_lockfile_write(const svi_lockfile *lock, const char *text);
int svi_lockfile_set_mode(const svi_lockfile *lock, mode_t mode);

/* In a child: its parent's locks are not its own. `close` their descriptors, unless the table of
 * descriptors may be the parent's too. Process lock held. */
void svi_lockfile_forked(bool close);

#endif
