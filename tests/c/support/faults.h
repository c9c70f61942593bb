/*
 * Every call of the core that can fail passes here in the testing build: this file is included
 * before each of its sources. A hook may count the call, let it fail, or kill the process there.
 *
 * The names in the table of faults.c are those given to svi_fault().
 */
#ifndef FAULTS_H
#define FAULTS_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

/* Returns the errno with which the call shall fail, or 0: then it is made. */
extern int (*svi_fault_hook)(const char *call);

static inline int
svi_fault(const char *call)
{
    int code = svi_fault_hook == NULL ? 0 : svi_fault_hook(call);
    if (code != 0) {
        errno = code;
    }
    return code;
}

/* A lock request that waits can be interrupted; one that tests or unlocks cannot. */
static inline const char *
svi_fault_fcntl(int command, const struct flock *request)
{
    return command == F_OFD_GETLK       ? "fcntl.test"
           : request->l_type == F_UNLCK ? "fcntl.unlock"
                                        : "fcntl.lock";
}

#ifdef SVI_FAULTS
#define SVI_CALL(failed, call, ...) (svi_fault(#call) != 0 ? (failed) : call(__VA_ARGS__))

#define calloc(...) SVI_CALL(NULL, calloc, __VA_ARGS__)
#define close(...) SVI_CALL(-1, close, __VA_ARGS__)
#define dup(...) SVI_CALL(-1, dup, __VA_ARGS__)
#define fchmod(...) SVI_CALL(-1, fchmod, __VA_ARGS__)
#define fcntl(fd, command, request)                                                                \
    (svi_fault(svi_fault_fcntl(command, request)) != 0 ? -1 : fcntl(fd, command, request))
#define flock(...) SVI_CALL(-1, flock, __VA_ARGS__)
#define fstat(...) SVI_CALL(-1, fstat, __VA_ARGS__)
#define fstatfs(...) SVI_CALL(-1, fstatfs, __VA_ARGS__)
#define ftruncate(...) SVI_CALL(-1, ftruncate, __VA_ARGS__)
#define getrandom(...) SVI_CALL(-1, getrandom, __VA_ARGS__)
#define getrlimit(...) SVI_CALL(-1, getrlimit, __VA_ARGS__)
#define linkat(...) SVI_CALL(-1, linkat, __VA_ARGS__)
#define lstat(...) SVI_CALL(-1, lstat, __VA_ARGS__)
#define madvise(...) SVI_CALL(-1, madvise, __VA_ARGS__)
#define mmap(...) SVI_CALL(MAP_FAILED, mmap, __VA_ARGS__)
#define munmap(...) SVI_CALL(-1, munmap, __VA_ARGS__)
#define open(...) SVI_CALL(-1, open, __VA_ARGS__)
#define opendir(...) SVI_CALL(NULL, opendir, __VA_ARGS__)
#define posix_fallocate(...) SVI_CALL(errno, posix_fallocate, __VA_ARGS__)
#define pread(...) SVI_CALL(-1, pread, __VA_ARGS__)
#define pthread_atfork(...) SVI_CALL(errno, pthread_atfork, __VA_ARGS__)
#define pthread_create(...) SVI_CALL(errno, pthread_create, __VA_ARGS__)
#define pwrite(...) SVI_CALL(-1, pwrite, __VA_ARGS__)
#define rename(...) SVI_CALL(-1, rename, __VA_ARGS__)
#define sched_getaffinity(...) SVI_CALL(-1, sched_getaffinity, __VA_ARGS__)
#define statfs(...) SVI_CALL(-1, statfs, __VA_ARGS__)
#define statvfs(...) SVI_CALL(-1, statvfs, __VA_ARGS__)
#define unlink(...) SVI_CALL(-1, unlink, __VA_ARGS__)
#endif

#endif
