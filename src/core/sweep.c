/* Looking around: which segments are there, whose owners are dead, and what fills the disk. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "error.h"
#include "os.h"
#include "segment.h"

/* Is the file a segment of this format? Fills *item. Nothing is mapped or changed. */
static bool
sweep_look(const char *directory, const char *name, sv_listed *item)
{
    char path[SVI_PATH_BYTES];
    svm_header header;
    struct stat st;
    bool found = false;
    svi_path(path, directory, "", name, "");
    int fd = svi_os_open(path, O_RDONLY, 0);
    if (fd < 0) {
        return false;
    }
    if (svi_os_fstat(fd, &st) == 0 && S_ISREG(st.st_mode) &&
        svi_os_pread(fd, &header, sizeof header, 0) == (int)sizeof header &&
        memcmp(header.h_magic, SVI_MAGIC, sizeof header.h_magic) == 0 &&
        header.h_major == SV_FORMAT_MAJOR) {
        memset(item, 0, sizeof *item);
        svi_text_copy(item->name, sizeof item->name, name);
        memcpy(item->generation, header.h_generation, sizeof item->generation);
        item->generation[sizeof item->generation - 1] = '\0';
        item->bytes = (uint64_t)st.st_blocks * 512;
        item->owned = header.h_owned != 0;
        item->owner_live = item->owned && svi_os_lock_test(fd, SVI_LOCK_OWNER) != 0;
        item->attached = svi_os_lock_test(fd, SVI_LOCK_ATTACHED) != 0;
        item->uid = st.st_uid;
        item->inode = (uint64_t)st.st_ino;
        found = true;
    }
    svi_os_close(fd);
    return found;
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
    while (status == 0 && (entry = readdir(stream)) != NULL) {
        sv_listed item;
        if (sv_name_check(entry->d_name, NULL) == 0 && sweep_look(where, entry->d_name, &item)) {
            status = each(&item, context);
        }
    }
    (void)closedir(stream);
    return status;
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
    if (item->owned != 0 && item->owner_live == 0 && item->uid == geteuid()) {
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
                       "; %u pool(s) of yours without an owner take %.1f MiB: %s; remove one with: "
                       "sharedvector remove NAME",
                       orphans.count, (double)orphans.bytes / 1048576.0, orphans.text);
    }
    return svi_fail(err, SV_ESYS, ENOSPC, operation,
                    "segment '%.80s' needs %llu bytes (%.1f MiB) in %.120s, %llu bytes (%.1f MiB) "
                    "are %s%s; enlarge it (docker run --shm-size=..., mount -o "
                    "remount,size=... %.120s) or ask for fewer or smaller slots%s",
                    name, (unsigned long long)wanted, (double)wanted / 1048576.0, directory,
                    (unsigned long long)available, (double)available / 1048576.0,
                    limit != NULL ? "left of " : "free", limit != NULL ? limit : "", directory,
                    tail);
}
