/* Limits of the machine: memory, files, address space, file systems, descriptors. */
#include "segment.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "os.h"
#include "world.h"

static void
what_does_not_fit_says_how_much_is_wanted_and_free(void)
{
    const char *name = world_name("big");
    sv_options options = world_options();
    sv_error err = {.message = ""};
    options.chunk_size = UINT64_C(1) << 41;
    options.slot_count = 1;
    EQ(world_try_open(name, &options, SV_OPEN_CREATE, &err), SV_ESYS);
    EQ(err.sys_errno, ENOSPC);
    HAS(err.message, "needs 659706");
    HAS(err.message, "are free");
    HAS(err.message, "--shm-size");
    HAS(err.message, world_directory());
    EQ(world_files(), 0);
}

/* The memory of the old one may be needed for the new one, so it goes first. */
static void
a_replacement_that_does_not_fit_leaves_no_name(void)
{
    const char *name = world_name("replace");
    sv_options options = world_options();
    sv_error err = {.message = ""};
    sv_segment *segment = world_segment(name, 1);
    options.chunk_size = UINT64_C(1) << 41;
    options.slot_count = 1;
    EQ(world_try_open(name, &options, SV_OPEN_REPLACE, &err), SV_ESYS);
    EQ(err.sys_errno, ENOSPC);
    EQ(world_files(), 0);
    EQ(world_stamp(segment, 0), 1); /* those attached keep their data */
    world_audit(segment, 0, 0);
    world_drop(segment);
}

static int
create_under_file_limit(void *name)
{
    struct rlimit limit = {8192, 8192};
    sv_options options = world_options();
    sv_error err = {.message = ""};
    (void)signal(SIGXFSZ, SIG_IGN);
    EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    EQ(world_try_open(name, &options, SV_OPEN_CREATE, &err), SV_ESYS);
    EQ(err.sys_errno, EFBIG);
    HAS(err.message, "RLIMIT_FSIZE");
    HAS(err.message, "8192");
    return 0;
}

static void
the_file_limit_is_looked_at_first(void)
{
    world_child(create_under_file_limit, (void *)(uintptr_t)world_name("fsize"));
    EQ(world_files(), 0);
}

static int
attach_under_address_limit(void *name)
{
    struct rlimit limit = {1 << 20, 1 << 20};
    sv_options options = world_options();
    sv_error err = {.message = ""};
    EQ(setrlimit(RLIMIT_AS, &limit), 0);
    EQ(world_try_open(name, &options, SV_OPEN_ATTACH, &err), SV_ENOMEM);
    EQ(err.sys_errno, ENOMEM);
    HAS(err.message, "cannot map");
    return 0;
}

static void
a_full_address_space_is_an_error(void)
{
    if (WORLD_SANITIZED) {
        tap_skip("sanitizers need their address space");
        return;
    }
    const char *name = world_name("as");
    EQ(sv_segment_close(world_segment(name, 1), NULL), 0);
    world_child(attach_under_address_limit, (void *)(uintptr_t)name);
    sv_segment *segment = world_open(name, NULL, SV_OPEN_ATTACH);
    world_audit(segment, 0, 0);
    world_drop(segment);
}

static void
only_a_tmpfs_will_do(void)
{
    char directory[] = "/tmp/svtest-XXXXXX";
    sv_options options = world_options();
    sv_error err = {.message = ""};
    if (mkdtemp(directory) == NULL || svi_os_is_tmpfs(directory) != 0) {
        (void)rmdir(directory);
        tap_skip("/tmp is a tmpfs");
        return;
    }
    options.directory = directory;
    EQ(world_try_open("disk", &options, SV_OPEN_CREATE, &err), SV_EUNSUPPORTED);
    HAS(err.message, directory);
    HAS(err.message, "tmpfs");
    HAS(err.message, "SHAREDVECTOR_SHM_DIR");
    EQ(rmdir(directory), 0); /* nothing was left there */
    EQ(world_try_open("disk", &options, SV_OPEN_CREATE, &err), SV_ESYS);
    EQ(world_try_open("disk", &options, SV_OPEN_ATTACH, &err), SV_ENOENT);
}

static void
copy_file(const char *from, const char *to)
{
    char block[4096];
    ssize_t got = 0;
    int in = open(from, O_RDONLY);
    int out = open(to, O_WRONLY | O_CREAT, 0600);
    while ((got = read(in, block, sizeof block)) > 0) {
        (void)EQ(write(out, block, (size_t)got), got);
    }
    (void)close(in);
    (void)close(out);
}

static void
a_segment_copied_to_a_disk_is_refused(void)
{
    char directory[] = "/tmp/svtest-XXXXXX";
    char path[64];
    sv_options options = world_options();
    sv_error err = {.message = ""};
    if (mkdtemp(directory) == NULL || svi_os_is_tmpfs(directory) != 0) {
        (void)rmdir(directory);
        tap_skip("/tmp is a tmpfs");
        return;
    }
    const char *name = world_name("copy");
    sv_segment *segment = world_segment(name, 1);
    (void)snprintf(path, sizeof path, "%s/copy", directory);
    copy_file(world_path(name, ""), path);
    options.directory = directory;
    EQ(world_try_open("copy", &options, SV_OPEN_ATTACH, &err), SV_EUNSUPPORTED);
    HAS(err.message, "tmpfs");
    EQ(unlink(path), 0);
    EQ(rmdir(directory), 0);
    world_drop(segment);
}

static void
closing_every_descriptor_does_no_harm(void)
{
    const char *name = world_name("closefrom");
    sv_segment *segment = world_segment(name, 2);
    sv_view view;
    EQ(sv_pin(segment, 0, &view), 0);
    for (int fd = 3; fd < 256; fd++) {
        (void)close(fd);
    }
    EQ(world_living(segment), 1);
    EQ(world_publish(segment, 0, 7), 0);
    uint64_t stamp = 0;
    CHECK(world_whole(&view, &stamp));
    EQ(stamp, 1);
    world_audit(segment, 1, 1);
    sv_unpin(&view);
    world_audit(segment, 0, 0);
    world_drop(segment);
}

static void
the_probe_is_not_fooled_by_another_file(void)
{
    const char *name = world_name("probe");
    sv_segment *segment = world_segment(name, 1);
    svi_mapping *m = svi_mapping_of(segment);
    int probe = m->probe;
    int other = open("/dev/null", O_RDWR);
    if (probe < 0 || other < 0) {
        tap_check(false, __FILE__, __LINE__, "two descriptors");
        return;
    }
    EQ(dup2(other, probe), probe); /* somebody closed ours and opened theirs */
    EQ(world_living(segment), 1);
    world_audit(segment, 0, 0);
    CHECK(m->probe != probe);
    world_drop(segment);
    CHECK(fcntl(probe, F_GETFD) >= 0); /* theirs was not closed */
    (void)close(probe);
    (void)close(other);
}

/* A clean-up calls them without asking what it has. */
static void
null_is_nothing(void)
{
    sv_chunk_info info;
    sv_stats stats;
    double meta[SV_MAX_META];
    sv_options_init(NULL);
    sv_gather_options_init(NULL);
    sv_unpin(NULL);
    sv_cancel(NULL);
    sv_prefault(NULL, 1);
    sv_block_prefault(NULL, 1, 0, 1);
    sv_owner_release(NULL);
    sv_retire(NULL, SV_RETIRED_CLOSED);
    sv_count_blocked(NULL, 1);
    sv_copy(NULL, NULL, 0, 1);
    sv_view_info(NULL, NULL);
    sv_view_info(NULL, &info);
    EQ(info.version, 0);
    EQ(sv_view_meta(NULL, meta), 0);
    sv_stats_get(NULL, NULL);
    sv_stats_get(NULL, &stats);
    EQ(stats.replace_events, 0);
}

int
main(void)
{
    world_begin(50);
    RUN(what_does_not_fit_says_how_much_is_wanted_and_free);
    RUN(a_replacement_that_does_not_fit_leaves_no_name);
    RUN(the_file_limit_is_looked_at_first);
    RUN(a_full_address_space_is_an_error);
    RUN(only_a_tmpfs_will_do);
    RUN(a_segment_copied_to_a_disk_is_refused);
    RUN(closing_every_descriptor_does_no_harm);
    RUN(the_probe_is_not_fooled_by_another_file);
    RUN(null_is_nothing);
    return world_end();
}
