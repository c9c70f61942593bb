/* Maps of files, and advice about them. */
#include <errno.h>
#include <sys/mman.h>

#include "os.h"

int
svi_os_map(int fd, uint64_t offset, size_t bytes, bool writable, void **out)
{
    int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
    void *address = mmap(NULL, bytes, protection, MAP_SHARED | MAP_NORESERVE, fd, (off_t)offset);
    if (address == MAP_FAILED) {
        return -errno;
    }
    *out = address;
    return 0;
}

int
svi_os_map_anchor(int fd, uint64_t offset, size_t bytes, bool inherit, void **out)
{
    void *address = NULL;
    int status = svi_os_map(fd, offset, bytes, true, &address);
    if (status != 0) {
        return status;
    }
    if (!inherit && madvise(address, bytes, MADV_DONTFORK) != 0) {
        status = -errno;
        (void)munmap(address, bytes);
        return status;
    }
    *out = address;
    return 0;
}

int
svi_os_map_huge(int fd, uint64_t offset, size_t bytes, bool writable, void **out)
{
    const uintptr_t huge = (uintptr_t)2 << 20;
    int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
    void *room =
        mmap(NULL, bytes + huge, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) {
        return svi_os_map(fd, offset, bytes, writable, out); /* a limit of address space */
    }
    size_t head = (size_t)(((uintptr_t)offset - (uintptr_t)room) % huge);
    char *start = (char *)room + head;
    size_t mapped = (bytes + 4095) / 4096 * 4096;
    void *address =
        mmap(start, bytes, protection, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd, (off_t)offset);
    if (address == MAP_FAILED) {
        int status = -errno;
        (void)munmap(room, bytes + huge);
        return status;
    }
    if (head != 0) {
        (void)munmap(room, head);
    }
    if (mapped < bytes + huge - head) {
        (void)munmap(start + mapped, bytes + huge - head - mapped);
    }
    *out = address;
    return 0;
}

int
svi_os_collapse(void *address, size_t bytes)
{
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
    return madvise(address, bytes, MADV_COLLAPSE) != 0 ? -errno : 0;
}

int
svi_os_map_private(int fd, uint64_t offset, size_t bytes, void **out)
{
    void *address =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd, (off_t)offset);
    if (address == MAP_FAILED) {
        return -errno;
    }
    *out = address;
    return 0;
}

int
svi_os_map_wipe_on_fork(size_t bytes, void **out)
{
    void *address = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (address == MAP_FAILED) {
        return -errno;
    }
    if (madvise(address, bytes, MADV_WIPEONFORK) != 0) {
        int status = -errno;
        (void)munmap(address, bytes);
        return status;
    }
    *out = address;
    return 0;
}

/* In pieces: during each no other thread can map or fork. */
static int
map_populate(void *address, size_t bytes, int advice)
{
    const size_t piece = (size_t)16 << 20;
    for (size_t at = 0; at < bytes; at += piece) {
        if (madvise((char *)address + at, bytes - at < piece ? bytes - at : piece, advice) != 0) {
            return -errno;
        }
    }
    return 0;
}

void
svi_os_prefault(void *address, size_t bytes)
{
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
    (void)map_populate(address, bytes, MADV_POPULATE_WRITE);
}

int
svi_os_prefault_read(void *address, size_t bytes)
{
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
    return map_populate(address, bytes, MADV_POPULATE_READ);
}

void
svi_os_unmap(void *address, size_t bytes)
{
    if (address != NULL) {
        (void)munmap(address, bytes);
    }
}

void
svi_os_dont_dump(void *address, size_t bytes)
{
    (void)madvise(address, bytes, MADV_DONTDUMP);
}

int
svi_os_pass_to_children(void *address, size_t bytes, bool pass)
{
    return madvise(address, bytes, pass ? MADV_DOFORK : MADV_DONTFORK) != 0 ? -errno : 0;
}
