/* Private mounts. */
#include "machine.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

bool
world_write_text(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    bool done = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    (void)close(fd);
    return done;
}

bool
world_private_mounts(void)
{
    if (unshare(CLONE_NEWNS) != 0) {
        char user[64];
        char group[64];
        (void)snprintf(user, sizeof user, "0 %ld 1", (long)geteuid());
        (void)snprintf(group, sizeof group, "0 %ld 1", (long)getegid());
        if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0 ||
            !world_write_text("/proc/self/uid_map", user) ||
            !world_write_text("/proc/self/setgroups", "deny") ||
            !world_write_text("/proc/self/gid_map", group)) {
            return false;
        }
    }
    return mount("none", "/", "none", MS_REC | MS_PRIVATE, NULL) == 0;
}
