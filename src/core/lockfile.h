/*
 * A lock file: flock-ed through an anchor, so that the lock lives exactly as long as this address
 * space, and unlinked by its holder. Used by creators (.<name>.create) and owners (<name>.lock).
 */
#ifndef SVI_LOCKFILE_H
#define SVI_LOCKFILE_H

#include <stdbool.h>
#include <sys/types.h>

#include "name.h"

typedef struct svi_lockfile {
    void *anchor;
    char path[SVI_PATH_BYTES];
    dev_t device;
    ino_t inode;
} svi_lockfile;

#define SVI_LOCKFILE_INIT {.anchor = NULL}

/* SV_EBUSY: somebody else holds it. Process lock held. */
int svi_lockfile_take(svi_lockfile *lock, const char *directory, const char *prefix,
                      const char *name, const char *suffix, sv_error *err);

/* Make a descriptor that is flock-ed already into a lock; the descriptor stays open. */
int svi_lockfile_adopt(svi_lockfile *lock, int fd, const char *path, sv_error *err);

/* Unlink the file if it is still ours, then let the lock go. A lock that is not held: nothing. */
void svi_lockfile_drop(svi_lockfile *lock, bool unlink);

/* Replace the file's contents. */
int svi_lockfile_write(const svi_lockfile *lock, const char *text);

#endif
