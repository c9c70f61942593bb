/*
 * Huge pages without a mount option: MADV_COLLAPSE (Linux 6.1) makes one of 2 MiB of a tmpfs file, and
 * fills up with zeros what has no memory yet. Chunks are then read through one entry of the page table
 * where there were 512, which is what scanning and decoding megabytes gains from.
 */
#include "huge.h"

#include "error.h"
#include "fork.h"
#include "os.h"

/* Collapsed in one call; each call has a cost of its own, and is not interrupted. */
#define HUGE_BATCH_BYTES (8 * SVI_HUGE_BYTES)

/* Two milliseconds for a huge page. It takes 0.3 when one is at hand, and twenty times as much when the
 * kernel has to move other pages first, or a virtual machine's host has to find the memory. Others
 * that want to make the segment wait for longer than this (SEGMENT_RESERVE_NS_PER_BYTE). */
#define HUGE_PATIENCE_NS UINT64_C(100000000)
#define HUGE_NS_PER_BYTE 1

/* A piece without any page of its own is refused, and the huge page is made on the node of that page:
 * where memory is interleaved by offset, not always the same one. */
static int
huge_touch(int fd, uint64_t start, uint64_t end)
{
    int status = 0;
    for (uint64_t at = start; at < end && status == 0; at += SVI_HUGE_BYTES) {
        uint64_t page = at / SVI_HUGE_BYTES % (SVI_HUGE_BYTES / 4096);
        status = svi_os_pwrite(fd, "", 1, at + page * 4096);
    }
    return status;
}

/* A map that no child inherits: it would keep the memory. */
static int
huge_map(int fd, uint64_t first, uint64_t bytes, void **out)
{
    int status = svi_process_lock(NULL);
    if (status != 0) {
        return status;
    }
    status = svi_os_map_huge(fd, first, bytes, true, out);
    if (status == 0 && svi_os_pass_to_children(*out, bytes, false) != 0) {
        svi_os_unmap(*out, bytes);
        status = SV_ESYS;
    }
    svi_process_unlock();
    return status;
}

int
svi_huge_reserve(int fd, uint64_t offset, uint64_t end)
{
    uint64_t first = (offset + SVI_HUGE_BYTES - 1) / SVI_HUGE_BYTES * SVI_HUGE_BYTES;
    uint64_t last = end / SVI_HUGE_BYTES * SVI_HUGE_BYTES;
    void *map = NULL;
    if (first >= last || huge_map(fd, first, last - first, &map) != 0) {
        return 0;
    }
    uint64_t started = svi_os_monotonic_ns();
    uint64_t patience = HUGE_PATIENCE_NS;
    bool interrupted = false;
    for (uint64_t at = first; at < last; at += HUGE_BATCH_BYTES) {
        uint64_t bytes = last - at < HUGE_BATCH_BYTES ? last - at : HUGE_BATCH_BYTES;
        patience += bytes * HUGE_NS_PER_BYTE;
        if (huge_touch(fd, at, at + bytes) != 0 ||
            svi_os_collapse((unsigned char *)map + (at - first), bytes) != 0 ||
            svi_os_monotonic_ns() - started > patience || (interrupted = svi_interrupted())) {
            break;
        }
    }
    svi_os_unmap(map, last - first);
    return interrupted ? SV_ETIMEDOUT : 0;
}
