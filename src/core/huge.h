/* Huge pages for the payload of a new segment, where the kernel gives some. */
#ifndef SVI_HUGE_H
#define SVI_HUGE_H

#include <stdint.h>

#define SVI_HUGE_BYTES (UINT64_C(2) << 20)

/*
 * Give what lies in [offset, end) of a fresh file its memory in huge pages, as far as it fills whole
 * ones. A wish: what it leaves has to be reserved as ever, and nothing fails here. The file is nobody
 * else's yet. It gives up when huge pages take too long to find. Takes the process lock for a moment.
 * SV_ETIMEDOUT: interrupted.
 */
int svi_huge_reserve(int fd, uint64_t offset, uint64_t end);

#endif
