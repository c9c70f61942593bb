/*
 * Each system call of the core fails once. Whatever call it is: a code and a message or success, no
 * crash, no descriptor and no map left behind, and everything works afterwards.
 *
 * The functions of libc are replaced by those below, which this program's core calls instead.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "world.h"

static uint64_t calls_seen;
static uint64_t calls_fail_at; /* 0: none */
static bool calls_counted;     /* only while a scenario runs */
static const char *calls_failed;

#if !WORLD_SANITIZED

static bool
call_fails(const char *name)
{
    if (!calls_counted || ++calls_seen != calls_fail_at) {
        return false;
    }
    calls_failed = name;
    return true;
}

static void *
call_real(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);
    if (found == NULL) {
        _exit(1);
    }
    return found;
}

/* The names that libc gives its parameters are reserved ones.
 * NOLINTBEGIN(readability-inconsistent-declaration-parameter-name) */

/* The cast from an object to a function pointer, in the way that POSIX intends. */
#define REAL(name, type)                                                                           \
    static type real = NULL;                                                                       \
    if (real == NULL) {                                                                            \
        *(void **)(void *)&real = call_real(#name);                                                \
    }

typedef int (*open_type)(const char *, int, ...);
typedef void *(*mmap_type)(void *, size_t, int, int, int, off_t);
typedef int (*madvise_type)(void *, size_t, int);
typedef int (*ftruncate_type)(int, off_t);
typedef int (*fchmod_type)(int, mode_t);
typedef int (*fallocate_type)(int, off_t, off_t);
typedef int (*linkat_type)(int, const char *, int, const char *, int);
typedef ssize_t (*pwrite_type)(int, const void *, size_t, off_t);
typedef ssize_t (*pread_type)(int, void *, size_t, off_t);
typedef int (*fcntl_type)(int, int, ...);
typedef int (*flock_type)(int, int);
typedef int (*rename_type)(const char *, const char *);

int
open(const char *path, int flags, ...)
{
    REAL(open, open_type)
    va_list rest;
    va_start(rest, flags);
    mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? (mode_t)va_arg(rest, unsigned) : 0;
    va_end(rest);
    if (call_fails("open")) {
        errno = EMFILE;
        return -1;
    }
    return real(path, flags, mode);
}

void *
mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    REAL(mmap, mmap_type)
    if (call_fails("mmap")) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    return real(address, bytes, protection, flags, fd, offset);
}

int
madvise(void *address, size_t bytes, int advice)
{
    REAL(madvise, madvise_type)
    if (call_fails("madvise")) {
        errno = ENOMEM;
        return -1;
    }
    return real(address, bytes, advice);
}

int
ftruncate(int fd, off_t bytes)
{
    REAL(ftruncate, ftruncate_type)
    if (call_fails("ftruncate")) {
        errno = EFBIG;
        return -1;
    }
    return real(fd, bytes);
}

int
fchmod(int fd, mode_t mode)
{
    REAL(fchmod, fchmod_type)
    if (call_fails("fchmod")) {
        errno = EPERM;
        return -1;
    }
    return real(fd, mode);
}

int
posix_fallocate(int fd, off_t offset, off_t bytes)
{
    REAL(posix_fallocate, fallocate_type)
    return call_fails("posix_fallocate") ? ENOSPC : real(fd, offset, bytes);
}

int
linkat(int from_fd, const char *from, int to_fd, const char *to, int flags)
{
    REAL(linkat, linkat_type)
    if (call_fails("linkat")) {
        errno = EPERM;
        return -1;
    }
    return real(from_fd, from, to_fd, to, flags);
}

ssize_t
pwrite(int fd, const void *data, size_t bytes, off_t offset)
{
    REAL(pwrite, pwrite_type)
    if (call_fails("pwrite")) {
        errno = EIO;
        return -1;
    }
    return real(fd, data, bytes, offset);
}

ssize_t
pread(int fd, void *out, size_t bytes, off_t offset)
{
    REAL(pread, pread_type)
    if (call_fails("pread")) {
        errno = EIO;
        return -1;
    }
    return real(fd, out, bytes, offset);
}

int
fcntl(int fd, int command, ...)
{
    REAL(fcntl, fcntl_type)
    va_list rest;
    va_start(rest, command);
    void *argument = va_arg(rest, void *);
    va_end(rest);
    if (call_fails("fcntl")) {
        errno = ENOLCK;
        return -1;
    }
    return real(fd, command, argument);
}

int
flock(int fd, int operation)
{
    REAL(flock, flock_type)
    if (call_fails("flock")) {
        errno = ENOLCK;
        return -1;
    }
    return real(fd, operation);
}

int
rename(const char *from, const char *to)
{
    REAL(rename, rename_type)
    if (call_fails("rename")) {
        errno = EPERM;
        return -1;
    }
    return real(from, to);
}

/* NOLINTEND(readability-inconsistent-declaration-parameter-name) */
#endif

/* ---- leaks --------------------------------------------------------------------------------- */

typedef struct belongings {
    unsigned descriptors;
    unsigned maps; /* of files in the world's directory */
} belongings;

static belongings
count_belongings(void)
{
    belongings count = {0, 0};
    char line[1024];
    for (int fd = 0; fd < 256; fd++) {
        struct stat st;
        count.descriptors += fstat(fd, &st) == 0;
    }
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL) {
        count.maps += strstr(line, "/dev/shm/") != NULL;
    }
    if (maps != NULL) {
        (void)fclose(maps);
    }
    return count;
}

/* ---- scenarios ----------------------------------------------------------------------------- */

typedef int (*scenario)(const char *name, sv_error *err);

static int
create(const char *name, sv_error *err)
{
    sv_options options = world_options();
    sv_segment *segment = NULL;
    options.owned = 1;
    options.timeout_ns = 20000000;
    int status = sv_segment_open(name, &options, SV_OPEN_CREATE, &segment, err);
    calls_counted = false;
    if (status != 0) {
        (void)CHECK(segment == NULL);
        (void)CHECK(!world_exists(name, ""));
        segment = world_open(name, &options, SV_OPEN_CREATE); /* nothing stands in its way */
    }
    (void)EQ(world_append(segment, 1), 0);
    world_audit(segment, 0, 0);
    world_drop(segment);
    (void)EQ(world_files(), 0);
    return status;
}

static sv_segment *other; /* made and left by "another process" */

static int
attach_and_use(const char *name, sv_error *err)
{
    sv_options options = world_options();
    sv_segment *segment = NULL;
    sv_reservation reservation;
    options.timeout_ns = 20000000;
    int status = sv_segment_open(name, &options, SV_OPEN_ATTACH, &segment, err);
    if (status != 0) {
        calls_counted = false;
        (void)CHECK(segment == NULL);
        return status;
    }
    status = sv_reserve(segment, 0, &reservation, err); /* makes the writable map */
    if (status == 0) {
        (void)EQ(world_fill(&reservation, 5), 0);
        status = sv_publish(&reservation, 0, err);
    }
    int recovered = sv_recover(segment, NULL, status == 0 ? err : NULL);
    calls_counted = false;
    (void)EQ(sv_segment_close(segment, NULL), 0);
    return status != 0 ? status : recovered;
}

static int
own(const char *name, sv_error *err)
{
    sv_owner *owner = NULL;
    int32_t pid = 0;
    char generation[SV_GENERATION_BYTES];
    int status = sv_owner_acquire(name, NULL, NULL, &owner, err);
    if (status == 0 && (status = sv_ready_write(owner, err)) == 0 &&
        (status = sv_ready_read(name, NULL, generation, err)) == 0) {
        status = sv_owner_probe(name, NULL, generation, &pid, err);
        status = status > 0 ? 0 : status;
    }
    calls_counted = false;
    if (owner == NULL) {
        (void)EQ(sv_owner_acquire(name, NULL, NULL, &owner, NULL), 0); /* nobody owns it */
    }
    (void)EQ(sv_ready_clear(owner, NULL), 0);
    sv_owner_release(owner);
    (void)EQ(world_files(), 0);
    return status;
}

/* Run once to count, then once for each call, which fails. */
static void
fail_each_call(scenario run, const char *what, const char *name)
{
    uint64_t total = 1;
    unsigned failures = 0;
    for (uint64_t nth = 0; nth <= total; nth++) {
        sv_error err = {.code = 0, .message = ""};
        const char *fresh = name != NULL ? name : world_name(what);
        belongings before = count_belongings();
        calls_seen = 0;
        calls_failed = "none";
        calls_fail_at = nth;
        calls_counted = true;
        int status = run(fresh, &err);
        calls_counted = false;
        tap_context("%s, call %llu (%s): %d %s", what, (unsigned long long)nth, calls_failed,
                    status, err.message);
        if (nth == 0) {
            (void)EQ(status, 0);
            total = calls_seen;
        } else if (status != 0) {
            (void)CHECK(status < 0);
            (void)EQ(err.code, status);
            (void)CHECK(strlen(err.message) > 10);
            failures++;
        }
        belongings after = count_belongings();
        (void)EQ(after.descriptors, before.descriptors);
        (void)EQ(after.maps, before.maps);
    }
    tap_note("%s: %llu calls, %u of them needed", what, (unsigned long long)total, failures);
    (void)CHECK(failures > 3);
}

static bool
cannot_replace_libc(void)
{
    if (WORLD_SANITIZED) {
        tap_skip("sanitizers replace the functions of libc themselves");
    }
    return WORLD_SANITIZED;
}

static void
each_call_of_a_creation_fails(void)
{
    if (!cannot_replace_libc()) {
        fail_each_call(create, "create", NULL);
    }
}

static void
each_call_of_attaching_and_writing_fails(void)
{
    if (cannot_replace_libc()) {
        return;
    }
    const char *name = world_name("attach");
    svi_testing_separate = true;
    other = world_segment(name, 2);
    fail_each_call(attach_and_use, "attach", name);
    tap_context("%s", "");
    world_audit(other, 0, 0);
    world_drop(other);
    svi_testing_separate = false;
}

static void
each_call_of_a_reign_fails(void)
{
    if (!cannot_replace_libc()) {
        fail_each_call(own, "own", NULL);
    }
}

int
main(void)
{
    world_begin(50);
    RUN(each_call_of_a_creation_fails);
    RUN(each_call_of_attaching_and_writing_fails);
    RUN(each_call_of_a_reign_fails);
    return world_end();
}
