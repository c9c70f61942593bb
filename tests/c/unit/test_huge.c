/* Huge pages of a fresh file, and maps that show them as such. */
#include "huge.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "os.h"
#include "world.h"

#define PIECE SVI_HUGE_BYTES
#define FILE_BYTES (5 * PIECE + 3 * SVI_PAGE)

static int
scratch(void)
{
    int fd = svi_os_tmpfile(world_directory(), 0600);
    (void)CHECK(fd >= 0);
    (void)EQ(svi_os_truncate(fd, FILE_BYTES), 0);
    return fd;
}

static uint64_t
memory_of(int fd)
{
    struct stat st;
    (void)EQ(svi_os_fstat(fd, &st), 0);
    return (uint64_t)st.st_blocks * 512;
}

/* Address space of this process. */
static uint64_t
mapped_bytes(void)
{
    char text[128];
    CHECK(svi_os_read_text("/proc/self/statm", text, sizeof text) > 0);
    return strtoull(text, NULL, 10) * SVI_PAGE;
}

/* Address space that is taken, but cannot be used: what an aligned map must not leave behind. */
static uint64_t
unusable_bytes(void)
{
    char line[512];
    uint64_t sum = 0;
    FILE *maps = fopen("/proc/self/maps", "re");
    (void)CHECK(maps != NULL);
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL) {
        char *dash = strchr(line, '-');
        uint64_t start = strtoull(line, NULL, 16);
        uint64_t end = dash == NULL ? start : strtoull(dash + 1, NULL, 16);
        sum += strstr(line, " ---p ") != NULL ? end - start : 0;
    }
    (void)(maps != NULL && fclose(maps));
    return sum;
}

static bool
is_zero(const unsigned char *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        if (data[i] != 0) {
            return false;
        }
    }
    return true;
}

static void
whole_pieces_get_memory_and_hold_zeros(void)
{
    int fd = scratch();
    void *map = NULL;
    EQ(svi_huge_reserve(fd, SVI_PAGE, FILE_BYTES), 0); /* pieces 1 to 4 lie inside */
    uint64_t taken = memory_of(fd);
    EQ(taken % SVI_PAGE, 0);
    CHECK(taken <= 4 * PIECE);
    CHECK(taken >= SVI_PAGE); /* even where the kernel makes none: the page that was asked for */
    tap_note("%llu of 4 pieces are huge", (unsigned long long)(taken / PIECE));
    EQ(svi_os_allocate(fd, 0, FILE_BYTES), 0);
    EQ(memory_of(fd), FILE_BYTES);
    EQ(svi_os_map_huge(fd, 0, FILE_BYTES, true, &map), 0);
    CHECK(is_zero(map, FILE_BYTES));
    svi_os_unmap(map, FILE_BYTES);
    svi_os_close(fd);
}

static void
less_than_a_piece_is_left_alone(void)
{
    int fd = scratch();
    EQ(svi_huge_reserve(fd, SVI_PAGE, 2 * PIECE - SVI_PAGE), 0); /* no whole piece */
    EQ(memory_of(fd), 0);
    EQ(svi_huge_reserve(fd, PIECE, PIECE), 0);
    EQ(memory_of(fd), 0);
    EQ(svi_huge_reserve(-1, 0, FILE_BYTES), 0); /* nothing fails here */
    svi_os_close(fd);
}

static void
addresses_agree_with_the_file(void)
{
    static const uint64_t offsets[] = {0, SVI_PAGE, PIECE, PIECE + SVI_PAGE};
    int fd = scratch();
    for (size_t i = 0; i < sizeof offsets / sizeof offsets[0]; i++) {
        uint64_t offset = offsets[i];
        void *map = NULL;
        void *plain = NULL;
        size_t bytes = FILE_BYTES - offset - (i == 0 ? SVI_PAGE - 1 : 0); /* a broken page, too */
        EQ(svi_os_map_huge(fd, offset, bytes, true, &map), 0);
        EQ(svi_os_map(fd, offset, bytes, false, &plain), 0);
        EQ(((uintptr_t)map - offset) % PIECE, 0);
        ((unsigned char *)map)[bytes - 1] = (unsigned char)(i + 1);
        ((unsigned char *)map)[0] = (unsigned char)(i + 101);
        EQ(((unsigned char *)plain)[bytes - 1], i + 1);
        EQ(((unsigned char *)plain)[0], i + 101);
        svi_os_unmap(map, bytes);
        svi_os_unmap(plain, bytes);
    }
    svi_os_close(fd);
}

static void
only_what_was_asked_for_stays_mapped(void)
{
    int fd = scratch();
    uint64_t before = unusable_bytes();
    void *map = NULL;
    EQ(svi_os_map_huge(fd, 0, FILE_BYTES, false, &map), 0);
    EQ(unusable_bytes(), before);
    svi_os_unmap(map, FILE_BYTES);
    EQ(unusable_bytes(), before);
    svi_os_close(fd);
}

static void
a_map_that_cannot_be_had_is_an_error(void)
{
    void *map = NULL;
    uint64_t before = unusable_bytes();
    EQ(svi_os_map_huge(-1, 0, FILE_BYTES, true, &map), -EBADF);
    EQ(unusable_bytes(), before);
    EQ(svi_os_collapse(&map, 1), -EINVAL);
}

/* Room for the map, but not for the map and its alignment. */
static int
map_in_little_room(void *argument)
{
    int fd = scratch();
    struct rlimit limit;
    void *map = NULL;
    (void)argument;
    uint64_t room = mapped_bytes() + FILE_BYTES + PIECE / 2;
    limit = (struct rlimit){room, room};
    EQ(setrlimit(RLIMIT_AS, &limit), 0);
    EQ(svi_os_map_huge(fd, 0, FILE_BYTES, true, &map), 0);
    ((unsigned char *)map)[FILE_BYTES - 1] = 1;
    return 0;
}

static void
a_limit_of_address_space_costs_the_alignment_only(void)
{
    if (WORLD_SANITIZED) {
        tap_skip("sanitizers need the address space that the limit takes away");
        return;
    }
    world_child(map_in_little_room, NULL);
}

int
main(void)
{
    world_begin(55);
    RUN(whole_pieces_get_memory_and_hold_zeros);
    RUN(less_than_a_piece_is_left_alone);
    RUN(addresses_agree_with_the_file);
    RUN(only_what_was_asked_for_stays_mapped);
    RUN(a_map_that_cannot_be_had_is_an_error);
    RUN(a_limit_of_address_space_costs_the_alignment_only);
    return world_end();
}
