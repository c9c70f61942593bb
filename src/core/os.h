/*
 * The one seam to the operating system. Results are 0, a descriptor or a count, or -errno.
 * Interrupted calls are repeated. Nothing here knows about segments.
 */
#ifndef SVI_OS_H
#define SVI_OS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

int svi_os_random(void *out, size_t bytes);
uint64_t svi_os_monotonic_ns(void);
uint64_t svi_os_realtime_ns(void);
void svi_os_sleep_ns(uint64_t nanoseconds);

/* Sleep while the 32 bits at an address of a shared map are `expected`: 0, -ETIMEDOUT, -EAGAIN, -EINTR.
 * Wake all who sleep there. */
int svi_os_futex_wait(const void *address, uint32_t expected, uint64_t nanoseconds);
void svi_os_futex_wake(const void *address);

/* Open with O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK added: never follow a link, never wait for a FIFO. */
int svi_os_open(const char *path, int flags, mode_t mode);
/* A fresh open file description of what `fd` refers to. */
int svi_os_reopen(int fd, int flags);
/* A nameless file in a directory. */
int svi_os_tmpfile(const char *directory, mode_t mode);
/* Another descriptor, closed on exec, of the same description. */
int svi_os_dup(int fd);
void svi_os_close(int fd);
int svi_os_stat(const char *path, struct stat *out);
int svi_os_fstat(int fd, struct stat *out);
int svi_os_fchmod(int fd, mode_t mode);
/* Let this user read and write a regular file of his; any other: -EACCES. */
int svi_os_make_own(const char *path);
int svi_os_truncate(int fd, uint64_t bytes);
int svi_os_allocate(int fd, uint64_t offset, uint64_t bytes);
/* Give the memory of a part of the file back; it reads as zeros. A file system that cannot: nothing. */
void svi_os_punch(int fd, uint64_t offset, uint64_t bytes);
int svi_os_link(int fd, const char *path);
int svi_os_unlink(const char *path);
int svi_os_rename(const char *from, const char *to);
int svi_os_pread(int fd, void *out, size_t bytes, uint64_t offset);
int svi_os_pwrite(int fd, const void *data, size_t bytes, uint64_t offset);

int svi_os_map(int fd, uint64_t offset, size_t bytes, bool writable, void **out);
/* The same at an address that agrees with the offset modulo 2 MiB, so that huge pages of the file are
 * mapped as such. */
int svi_os_map_huge(int fd, uint64_t offset, size_t bytes, bool writable, void **out);
/* Make huge pages of a shared map, whose bounds are multiples of 2 MiB; a kernel that cannot says
 * -EINVAL. */
int svi_os_collapse(void *address, size_t bytes);
/* A writable map whose changes stay private to this process. */
int svi_os_map_private(int fd, uint64_t offset, size_t bytes, void **out);
/* A writable map that keeps fd's open file description alive, in this process and (unless `inherit`)
 * in no forked child. */
int svi_os_map_anchor(int fd, uint64_t offset, size_t bytes, bool inherit, void **out);
int svi_os_map_wipe_on_fork(size_t bytes, void **out);
/* Fault whole pages in for writing, all at once (Linux 5.14); where that fails they fault one by one. */
void svi_os_prefault(void *address, size_t bytes);
/* The same for reading; -EFAULT: a page cannot be had, and touching it would be fatal; -EINVAL: the kernel
 * is too old to say. */
int svi_os_prefault_read(void *address, size_t bytes);
void svi_os_unmap(void *address, size_t bytes);
/* MADV_DONTDUMP, MADV_DONTFORK and MADV_DOFORK; advice that the kernel refuses is no error, except
 * that the fork advice reports it. */
void svi_os_dont_dump(void *address, size_t bytes);
int svi_os_pass_to_children(void *address, size_t bytes, bool pass);

/* Open-file-description locks on one byte. `try` returns -EAGAIN when another description holds a
 * conflicting one. `test` returns 1 when a write lock would conflict, 0 when not. */
int svi_os_lock_try(int fd, int64_t byte, bool exclusive);
int svi_os_unlock(int fd, int64_t byte);
int svi_os_lock_test(int fd, int64_t byte);
int svi_os_flock_try(int fd);

/* Is the directory on tmpfs (or another memory file system that keeps every promise)? 1, 0, -errno */
int svi_os_is_tmpfs(const char *directory);
int svi_os_fd_is_tmpfs(int fd);
int svi_os_free_bytes(const char *directory, uint64_t *free_bytes, uint64_t *total_bytes);
/* The largest file this process may make; UINT64_MAX: no limit. */
uint64_t svi_os_file_limit(void);
/* A small file as text, cut to `bytes`; its length, or -errno. */
int svi_os_read_text(const char *path, char *out, size_t bytes);
/* Memory that the machine and this process's control groups still have (UINT64_MAX: unknown); where
 * not NULL, in words which of them it is, and what the groups allow (UINT64_MAX: no limit). tmpfs may
 * be larger than memory: beyond this the kernel kills somebody instead of reporting ENOSPC. */
uint64_t svi_os_memory_free(const char **limit, uint64_t *group_limit);
uint32_t svi_os_processors(void);
/* Is there no such process here? A process of another pid namespace may look gone or alive: a hint. */
bool svi_os_process_gone(int pid);
uint64_t svi_os_start_time(void);
void svi_os_command(char *out, size_t bytes);

#endif
