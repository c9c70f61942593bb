/* All system calls of the core, for Linux. */
#include "os.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/magic.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#define OS_PAGE 4096

int
svi_os_random(void *out, size_t bytes)
{
    size_t done = 0;
    while (done < bytes) {
        ssize_t got = getrandom((char *)out + done, bytes - done, 0);
        if (got < 0) {
            if (errno == EINTR) {
                continue;
            }
            return -errno;
        }
        done += (size_t)got;
    }
    return 0;
}

static uint64_t
os_clock_ns(clockid_t clock)
{
    struct timespec now = {0, 0};
    (void)clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

uint64_t
svi_os_monotonic_ns(void)
{
    return os_clock_ns(CLOCK_MONOTONIC);
}

uint64_t
svi_os_realtime_ns(void)
{
    return os_clock_ns(CLOCK_REALTIME);
}

void
svi_os_sleep_ns(uint64_t nanoseconds)
{
    struct timespec span = {(time_t)(nanoseconds / UINT64_C(1000000000)),
                            (long)(nanoseconds % UINT64_C(1000000000))};
    (void)nanosleep(&span, NULL);
}

int
svi_os_futex_wait(const void *address, uint32_t expected, uint64_t nanoseconds)
{
    struct timespec span = {(time_t)(nanoseconds / UINT64_C(1000000000)),
                            (long)(nanoseconds % UINT64_C(1000000000))};
    return syscall(SYS_futex, address, FUTEX_WAIT, expected, &span, NULL, 0) == 0 ? 0 : -errno;
}

void
svi_os_futex_wake(const void *address)
{
    (void)syscall(SYS_futex, address, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

int
svi_os_open(const char *path, int flags, mode_t mode)
{
    int fd;
    do {
        fd = open(path, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, mode);
    } while (fd < 0 && errno == EINTR);
    return fd < 0 ? -errno : fd;
}

int
svi_os_reopen(int fd, int flags)
{
    char path[32];
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int fresh;
    do {
        fresh = open(path, flags | O_CLOEXEC);
    } while (fresh < 0 && errno == EINTR);
    return fresh < 0 ? -errno : fresh;
}

int
svi_os_tmpfile(const char *directory, mode_t mode)
{
    int fd;
    do {
        fd = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, mode);
    } while (fd < 0 && errno == EINTR);
    return fd < 0 ? -errno : fd;
}

void
svi_os_close(int fd)
{
    if (fd >= 0) {
        (void)close(fd); /* after EINTR the descriptor is gone on Linux: never repeat */
    }
}

int
svi_os_dup(int fd)
{
    int copy = dup(fd);
    if (copy < 0) {
        return -errno;
    }
    (void)ioctl(copy, FIOCLEX);
    return copy;
}

int
svi_os_stat(const char *path, struct stat *out)
{
    return lstat(path, out) != 0 ? -errno : 0;
}

int
svi_os_fstat(int fd, struct stat *out)
{
    return fstat(fd, out) != 0 ? -errno : 0;
}

int
svi_os_fchmod(int fd, mode_t mode)
{
    return fchmod(fd, mode) != 0 ? -errno : 0;
}

int
svi_os_make_own(const char *path)
{
    char file[32];
    struct stat st;
    int fd = open(path, O_PATH | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) {
        return -errno;
    }
    (void)snprintf(file, sizeof file, "/proc/self/fd/%d", fd);
    int status = svi_os_fstat(fd, &st);
    if (status == 0 && (!S_ISREG(st.st_mode) || st.st_uid != geteuid())) {
        status = -EACCES;
    }
    if (status == 0 && chmod(file, (st.st_mode & 0777) | 0600) != 0) {
        status = -errno;
    }
    (void)close(fd);
    return status;
}

int
svi_os_truncate(int fd, uint64_t bytes)
{
    int status;
    do {
        status = ftruncate(fd, (off_t)bytes);
    } while (status != 0 && errno == EINTR);
    return status != 0 ? -errno : 0;
}

int
svi_os_allocate(int fd, uint64_t offset, uint64_t bytes)
{
    /* tmpfs gives the whole range back when a call fails half-way, and clears it in one go; pieces
     * keep each call short, so that signals get through. They end where huge pages end: a page that
     * two calls share is cleared by the second one. */
    const uint64_t piece = UINT64_C(4) << 20;
    uint64_t done = 0;
    while (done < bytes) {
        uint64_t span = piece - (offset + done) % piece;
        span = bytes - done < span ? bytes - done : span;
        int status = posix_fallocate(fd, (off_t)(offset + done), (off_t)span);
        if (status == EINTR) {
            continue;
        }
        if (status != 0) {
            return -status;
        }
        done += span;
    }
    return 0;
}

void
svi_os_punch(int fd, uint64_t offset, uint64_t bytes)
{
    (void)fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)bytes);
}

int
svi_os_link(int fd, const char *path)
{
    char from[32];
    (void)snprintf(from, sizeof from, "/proc/self/fd/%d", fd);
    return linkat(AT_FDCWD, from, AT_FDCWD, path, AT_SYMLINK_FOLLOW) != 0 ? -errno : 0;
}

int
svi_os_unlink(const char *path)
{
    return unlink(path) != 0 ? -errno : 0;
}

int
svi_os_rename(const char *from, const char *to)
{
    return rename(from, to) != 0 ? -errno : 0;
}

int
svi_os_pread(int fd, void *out, size_t bytes, uint64_t offset)
{
    size_t done = 0;
    while (done < bytes) {
        ssize_t got = pread(fd, (char *)out + done, bytes - done, (off_t)(offset + done));
        if (got < 0) {
            if (errno == EINTR) {
                continue;
            }
            return -errno;
        }
        if (got == 0) {
            break;
        }
        done += (size_t)got;
    }
    return (int)done;
}

int
svi_os_pwrite(int fd, const void *data, size_t bytes, uint64_t offset)
{
    size_t done = 0;
    while (done < bytes) {
        ssize_t put = pwrite(fd, (const char *)data + done, bytes - done, (off_t)(offset + done));
        if (put < 0) {
            if (errno == EINTR) {
                continue;
            }
            return -errno;
        }
        done += (size_t)put;
    }
    return 0;
}

static struct flock
os_lock_request(int64_t byte, short type)
{
    return (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
}

int
svi_os_lock_try(int fd, int64_t byte, bool exclusive)
{
    struct flock request = os_lock_request(byte, exclusive ? F_WRLCK : F_RDLCK);
    int status;
    do {
        status = fcntl(fd, F_OFD_SETLK, &request);
    } while (status != 0 && errno == EINTR);
    if (status != 0) {
        return errno == EACCES ? -EAGAIN : -errno;
    }
    return 0;
}

int
svi_os_unlock(int fd, int64_t byte)
{
    struct flock request = os_lock_request(byte, F_UNLCK);
    return fcntl(fd, F_OFD_SETLK, &request) != 0 ? -errno : 0;
}

int
svi_os_lock_test(int fd, int64_t byte)
{
    struct flock request = os_lock_request(byte, F_WRLCK);
    if (fcntl(fd, F_OFD_GETLK, &request) != 0) {
        return -errno;
    }
    return request.l_type != F_UNLCK;
}

int
svi_os_flock_try(int fd)
{
    int status;
    do {
        status = flock(fd, LOCK_EX | LOCK_NB);
    } while (status != 0 && errno == EINTR);
    if (status != 0) {
        return errno == EWOULDBLOCK ? -EAGAIN : -errno;
    }
    return 0;
}

int
svi_os_is_tmpfs(const char *directory)
{
    struct statfs info;
    if (statfs(directory, &info) != 0) {
        return -errno;
    }
    return info.f_type == TMPFS_MAGIC;
}

int
svi_os_fd_is_tmpfs(int fd)
{
    struct statfs info;
    if (fstatfs(fd, &info) != 0) {
        return -errno;
    }
    return info.f_type == TMPFS_MAGIC;
}

int
svi_os_free_bytes(const char *directory, uint64_t *free_bytes, uint64_t *total_bytes)
{
    struct statvfs info;
    if (statvfs(directory, &info) != 0) {
        return -errno;
    }
    if (info.f_blocks == 0) { /* a tmpfs without a limit */
        *free_bytes = UINT64_MAX;
        *total_bytes = UINT64_MAX;
        return 0;
    }
    *free_bytes = (uint64_t)info.f_bavail * info.f_frsize;
    *total_bytes = (uint64_t)info.f_blocks * info.f_frsize;
    return 0;
}

uint64_t
svi_os_file_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
        return UINT64_MAX;
    }
    return limit.rlim_cur;
}

int
svi_os_read_text(const char *path, char *out, size_t bytes)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return -errno;
    }
    int got = svi_os_pread(fd, out, bytes - 1, 0);
    (void)close(fd);
    if (got >= 0) {
        out[got] = '\0';
    }
    return got;
}

uint32_t
svi_os_processors(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) {
        return 1;
    }
    int count = CPU_COUNT(&set);
    return count < 1 ? 1 : (uint32_t)count;
}

bool
svi_os_process_gone(int pid)
{
    return pid <= 0 || (kill(pid, 0) != 0 && errno == ESRCH);
}

uint64_t
svi_os_start_time(void)
{
    char text[1024];
    if (svi_os_read_text("/proc/self/stat", text, sizeof text) <= 0) {
        return 0;
    }
    char *at = strrchr(text, ')'); /* the command may hold blanks and parentheses */
    for (int field = 2; at != NULL && field < 22; field++) {
        at = strchr(at + 1, ' ');
    }
    return at == NULL ? 0 : strtoull(at + 1, NULL, 10);
}

void
svi_os_command(char *out, size_t bytes)
{
    char text[4096];
    size_t used = 0;
    int got = svi_os_read_text("/proc/self/cmdline", text, sizeof text);
    /* Words of absolute paths are shown by their last part: the row has room for few characters. */
    for (int i = 0; i < got && used + 1 < bytes; i += (int)strlen(text + i) + 1) {
        const char *slash = text[i] == '/' ? strrchr(text + i, '/') : NULL;
        int length = snprintf(out + used, bytes - used, "%s%s", used == 0 ? "" : " ",
                              slash != NULL && slash[1] != '\0' ? slash + 1 : text + i);
        used += length > 0 ? (size_t)length : 0;
    }
    out[used < bytes ? used : bytes - 1] = '\0';
    for (char *c = out; *c != '\0'; c++) {
        *c = *c > 0 && *c < ' ' ? ' ' : *c; /* a script given by -c has lines */
    }
}
