/* Looking around: which segments are there, whose owners are dead, and what fills the disk. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "block.h"
#include "error.h"
#include "os.h"

/* The owner made the segment, so that its row is the first, until somebody takes it after its death.
 * For people: the words of the row are read one by one. */
static void
sweep_look_at_owner(int fd, const svm_header *header, sv_listed *item)
{
    uint64_t words[sizeof(svm_row) / sizeof(uint64_t)];
    if (svi_os_pread(fd, words, sizeof words, header->h_off_rows) != (int)sizeof words ||
        words[offsetof(svm_row, r_owner) / sizeof words[0]] == 0) {
        return;
    }
    uint64_t pid = words[offsetof(svm_row, r_pid) / sizeof words[0]];
    item->owner_pid = pid <= INT32_MAX ? (int32_t)pid : 0;
    memcpy(item->owner_command, &words[offsetof(svm_row, r_command) / sizeof words[0]],
           sizeof item->owner_command - 1);
}

/* Is the file a segment of this format? Fills *item. Nothing is mapped or changed. 0, SV_EFORMAT, or
 * -errno. */
static int
sweep_look(const char *directory, const char *name, sv_listed *item)
{
    char path[SVI_PATH_BYTES];
    svm_header header;
    struct stat st;
    svi_path(path, directory, "", name, "");
    int fd = svi_os_open(path, O_RDONLY, 0);
    if (fd < 0) {
        return fd;
    }
    int status = svi_os_fstat(fd, &st);
    if (status == 0 && S_ISREG(st.st_mode)) {
        status = svi_os_pread(fd, &header, sizeof header, 0);
    }
    if (status == (int)sizeof header &&
        memcmp(header.h_magic, SVI_MAGIC, sizeof header.h_magic) == 0 &&
        header.h_major == SV_FORMAT_MAJOR) {
        memset(item, 0, sizeof *item);
        svi_text_copy(item->name, sizeof item->name, name);
        memcpy(item->generation, header.h_generation, sizeof item->generation);
        item->generation[sizeof item->generation - 1] = '\0';
        item->bytes = (uint64_t)st.st_blocks * 512;
        item->owned = header.h_owned != 0;
        item->block = header.h_kind == SVI_KIND_BLOCK;
        item->owner_live = item->owned && svi_os_lock_test(fd, SVI_LOCK_OWNER) != 0;
        item->attached = svi_os_lock_test(fd, SVI_LOCK_ATTACHED) != 0;
        item->uid = st.st_uid;
        item->inode = (uint64_t)st.st_ino;
        if (item->owned) {
            sweep_look_at_owner(fd, &header, item);
        }
        status = 0;
    } else if (status >= 0) {
        status = SVI_EUNKNOWN;
    }
    svi_os_close(fd);
    return status;
}

int
sv_look(const char *name, const char *directory, sv_listed *out, sv_error *err)
{
    char where[SVI_DIRECTORY_BYTES];
    int status;
    if ((status = sv_name_check(name, err)) != 0 ||
        (status = svi_shm_directory(directory, where, err)) != 0) {
        return status;
    }
    status = sweep_look(where, name, out);
    switch (status) {
    case 0:
        return 0;
    case -ENOENT:
        return svi_fail(err, SV_ENOENT, ENOENT, "look", "there is no segment '%s' in '%s'", name,
                        where);
    case SVI_EUNKNOWN:
    case -ELOOP:
    case -ENXIO:
        return svi_fail(err, SV_EFORMAT, 0, "look", "%s/%s is no segment of format %d", where, name,
                        SV_FORMAT_MAJOR);
    default:
        return svi_fail(err, SV_ESYS, -status, "look", "cannot read %s/%s", where, name);
    }
}

int
sv_list(const char *directory, int (*each)(const sv_listed *item, void *context), void *context,
        sv_error *err)
{
    char where[SVI_DIRECTORY_BYTES];
    int status = svi_shm_directory(directory, where, err);
    if (status != 0) {
        return status;
    }
    DIR *stream = opendir(where);
    if (stream == NULL) {
        return svi_fail(err, SV_ESYS, errno, "list segments", "cannot read '%s'", where);
    }
    const struct dirent *entry;
    while (status == 0 && (errno = 0, entry = readdir(stream)) != NULL) {
        sv_listed item;
        if (sv_name_check(entry->d_name, NULL) == 0 &&
            sweep_look(where, entry->d_name, &item) == 0) {
            status = each(&item, context);
        }
    }
    if (status == 0 && errno != 0) {
        status = svi_fail(err, SV_ESYS, errno, "list segments", "cannot read '%s'", where);
    }
    (void)closedir(stream);
    return status;
}

/* ---- sweeping ------------------------------------------------------------------------------ */

typedef struct sweep_job {
    const char *directory;
    const char *lock_dir;
    const char *prefix;
    int dry_run;
    int (*each)(const sv_listed *item, void *context);
    void *context;
    sv_error *err;
    int status; /* the first removal that failed */
} sweep_job;

/* Left by a dead owner, of a kind that records one, and ours? */
static bool
sweep_is_due(const sv_listed *item, const char *prefix)
{
    if (item->owned == 0 || item->owner_live != 0 || item->uid != geteuid()) {
        return false;
    }
    return item->block != 0 ? svi_block_is_named(item->name, prefix)
                            : prefix == NULL || strncmp(item->name, prefix, strlen(prefix)) == 0;
}

/* Nobody makes a block of this name again, so that the look above still holds. */
static int
sweep_block(const sweep_job *job, const sv_listed *item, sv_error *err)
{
    char path[SVI_PATH_BYTES];
    svi_path(path, job->directory, "", item->name, "");
    int status = svi_os_unlink(path);
    return status == 0         ? 0
           : status == -ENOENT ? SVI_ERETRY
                               : svi_fail(err, SV_ESYS, -status, "sweep", "cannot unlink %s", path);
}

/* Under the owner's lock, like everything that is done to a pool's names (O3). SVI_ERETRY: somebody
 * else took it or removed it. */
static int
sweep_pool(const sweep_job *job, const sv_listed *item, sv_error *err)
{
    char marked[SV_GENERATION_BYTES];
    sv_owner *owner = NULL;
    sv_listed now;
    int status = sv_owner_acquire(item->name, job->lock_dir, NULL, &owner, err);
    if (status != 0) {
        return status == SV_EBUSY ? SVI_ERETRY : status;
    }
    /* An heir with another lock directory, or whose lock file somebody removed, is seen by its segment.
     * Its marker stays; one of the dead goes. */
    bool heir = sweep_look(job->directory, item->name, &now) == 0 && now.owner_live != 0;
    if (!heir || (sv_ready_read(item->name, job->lock_dir, marked, NULL) == 0 &&
                  strcmp(marked, item->generation) == 0)) {
        status = sv_ready_clear(owner, err);
    }
    if (status == 0) {
        status =
            sv_segment_remove_exact(item->name, job->directory, item->inode, item->generation, err);
    }
    status = status == SV_ENOENT || status == SV_EBUSY ? SVI_ERETRY : status;
    sv_owner_release(owner);
    return status;
}

static int
sweep_one(const sv_listed *item, void *context)
{
    sweep_job *job = context;
    sv_error failed = {.message = ""};
    if (!sweep_is_due(item, job->prefix)) {
        return 0;
    }
    int status = 0;
    if (job->dry_run == 0) {
        status =
            item->block != 0 ? sweep_block(job, item, &failed) : sweep_pool(job, item, &failed);
    }
    if (status == SVI_ERETRY) {
        return 0; /* somebody else was first */
    }
    if (status != 0) {
        if (job->status == 0) {
            job->status = status;
            if (job->err != NULL) {
                *job->err = failed;
            }
        }
        return 0;
    }
    return job->each != NULL ? job->each(item, job->context) : 0;
}

int
sv_sweep(const char *directory, const char *lock_dir, const char *prefix, int dry_run,
         int (*each)(const sv_listed *item, void *context), void *context, sv_error *err)
{
    char where[SVI_DIRECTORY_BYTES];
    if (prefix != NULL && prefix[0] == '\0') {
        return svi_fail(err, SV_EINVAL, 0, "sweep",
                        "the prefix is empty; leave it out to sweep everything");
    }
    int status = svi_shm_directory(directory, where, err);
    if (status != 0) {
        return status;
    }
    sweep_job job = {.directory = where,
                     .lock_dir = lock_dir,
                     .prefix = prefix,
                     .dry_run = dry_run,
                     .each = each,
                     .context = context,
                     .err = err};
    status = sv_list(where, sweep_one, &job, err);
    return status != 0 ? status : job.status;
}

uint64_t
sv_memory_free(const char **limit, uint64_t *group_limit)
{
    return svi_os_memory_free(limit, group_limit);
}

/* ---- a full file system -------------------------------------------------------------------- */

typedef struct sweep_orphans {
    char text[300];
    size_t used;
    uint32_t count;
    uint64_t bytes;
} sweep_orphans;

static int
sweep_add_orphan(const sv_listed *item, void *context)
{
    sweep_orphans *orphans = context;
    if (sweep_is_due(item, NULL)) {
        orphans->count++;
        orphans->bytes += item->bytes;
        if (orphans->used + 96 < sizeof orphans->text) {
            orphans->used += (size_t)snprintf(orphans->text + orphans->used,
                                              sizeof orphans->text - orphans->used,
                                              "%s%.60s (%.1f MiB)", orphans->used == 0 ? "" : ", ",
                                              item->name, (double)item->bytes / 1048576.0);
        }
    }
    return 0;
}

int
svi_fail_no_space(sv_error *err, const char *operation, const char *directory, const char *name,
                  uint64_t wanted, uint64_t available, const char *limit)
{
    sweep_orphans orphans;
    char tail[420] = "";
    memset(&orphans, 0, sizeof orphans);
    (void)sv_list(directory, sweep_add_orphan, &orphans, NULL);
    if (orphans.count != 0) {
        (void)snprintf(tail, sizeof tail,
                       "; %u pool(s) or block(s) of yours without an owner take %.1f MiB: %s; "
                       "remove them with: "
                       "sharedvector sweep",
                       orphans.count, (double)orphans.bytes / 1048576.0, orphans.text);
    }
    return svi_fail(err, SV_ESYS, ENOSPC, operation,
                    "segment '%.80s' needs %llu bytes (%.1f MiB) in %.120s, %llu bytes (%.1f MiB) "
                    "are %s%s; enlarge it (docker run --shm-size=..., mount -o "
                    "remount,size=... %.120s) or ask for less%s",
                    name, (unsigned long long)wanted, (double)wanted / 1048576.0, directory,
                    (unsigned long long)available, (double)available / 1048576.0,
                    limit != NULL ? "left of " : "free", limit != NULL ? limit : "", directory,
                    tail);
}
