/*
 * Huge pages without a mount option: MADV_COLLAPSE (Linux 6.1) makes one of 2 MiB of a tmpfs file, and
 * fills up with zeros what has no memory yet. Chunks are then read through one entry of the page table
 * where there were 512, which is what scanning and decoding megabytes gains from.
 */
#include "huge.h"

#include "os.h"

/* A piece takes 0.3 ms of the processor when a huge page is at hand, twenty times as much when the kernel
 * has to move other pages first, or a virtual machine's host has to find the memory. Slow pieces are
 * mostly the first ones; this bounds the average. */
#define HUGE_PIECE_NS UINT64_C(4000000)
#define HUGE_PIECES_AHEAD 16

void
svi_huge_reserve(int fd, uint64_t offset, uint64_t end)
{
    uint64_t first = (offset + SVI_HUGE_BYTES - 1) / SVI_HUGE_BYTES * SVI_HUGE_BYTES;
    uint64_t last = end / SVI_HUGE_BYTES * SVI_HUGE_BYTES;
    void *map = NULL;
    if (first >= last || svi_os_map_huge(fd, first, last - first, true, &map) != 0) {
        return;
    }
    /* The kernel compacts memory in this thread, so that its own time tells; by the clock a piece is slow
     * when somebody else runs. */
    uint64_t started = svi_os_thread_ns();
    uint64_t patience = HUGE_PIECES_AHEAD * HUGE_PIECE_NS;
    for (uint64_t at = first; at < last; at += SVI_HUGE_BYTES, patience += HUGE_PIECE_NS) {
        /* A piece without any page of its own is refused. */
        if (svi_os_pwrite(fd, "", 1, at) != 0 ||
            svi_os_collapse((unsigned char *)map + (at - first), SVI_HUGE_BYTES) != 0 ||
            svi_os_thread_ns() - started > patience) {
            break;
        }
    }
    svi_os_unmap(map, last - first);
}
