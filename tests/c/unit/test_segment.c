/* Segments: made whole or not at all, attached only when safe, mapped until the last view. */
#include "segment.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lockfile.h"
#include "os.h"
#include "steps.h"

static int
try_open(const char *name, const sv_options *options, int flags, sv_error *err)
{
    sv_segment *segment = NULL;
    int status = sv_segment_open(name, options, flags, &segment, err);
    if (status == 0) {
        (void)EQ(sv_segment_close(segment, NULL), 0);
    } else {
        (void)CHECK(segment == NULL); /* written only on success */
    }
    return status;
}

static mode_t
mode_of(const char *name)
{
    struct stat st = {.st_mode = 0};
    (void)EQ(stat(world_path(name, ""), &st), 0);
    return st.st_mode & 07777;
}

/* ---- making and attaching ------------------------------------------------------------------ */

static void
options_have_their_defaults(void)
{
    sv_options options;
    sv_options_init(&options);
    EQ(options.size, sizeof options);
    EQ(options.chunk_size, 1 << 20);
    EQ(options.max_memory_size, 10 << 20);
    EQ(options.spare_buffers, 2);
    EQ(options.max_rows, 1024);
    EQ(options.max_arrays, 1);
    EQ(options.mode, 0600);
    EQ(options.timeout_ns, INT64_C(5000000000));
    EQ(options.slot_count + options.stats_capacity + options.itemsize + options.owned, 0);
    CHECK(options.dtype == NULL && options.directory == NULL && options.generation == NULL);
}

static void
a_segment_knows_its_facts(void)
{
    const char *name = world_name("facts");
    sv_options options = world_options();
    struct stat st;
    sv_info info;
    options.generation = "reign-1";
    sv_segment *segment = world_open(name, &options, SV_OPEN_EXCLUSIVE);
    EQ(stat(world_path(name, ""), &st), 0);
    EQ(sv_segment_info(segment, &info), 0);
    EQ_STR(info.name, name);
    EQ_STR(info.directory, world_directory());
    EQ_STR(info.generation, "reign-1");
    EQ_STR(info.dtype, "uint64");
    EQ(info.itemsize, 8);
    EQ(info.slot_count, 4);
    EQ(info.buffer_count, 6);
    EQ(info.max_rows, 16);
    EQ(info.max_arrays, 2);
    EQ(info.stats_capacity, 8);
    EQ(info.owned, 0);
    EQ(info.mode, 0600);
    EQ(info.chunk_size, 1024);
    EQ(info.row_bytes, 4096);
    EQ(info.inode, st.st_ino);
    EQ(info.segment_bytes, st.st_blocks * 512); /* all of it reserved, and nothing else */
    EQ(sv_size(segment), 0);
    EQ(world_living(segment), 1);
    world_drop(segment);
    CHECK(!world_exists(name, ""));
}

static void
without_options_the_defaults_apply(void)
{
    const char *name = world_name("default");
    sv_segment *segment = NULL;
    sv_info info;
    sv_error err = {.code = 3};
    EQ(sv_segment_open(name, NULL, SV_OPEN_CREATE, &segment, &err), 0);
    EQ(err.code, 3);
    EQ(sv_segment_info(segment, &info), 0);
    EQ_STR(info.dtype, "float32");
    EQ(info.itemsize, 4);
    EQ(info.slot_count, 9);
    EQ(info.buffer_count, 11);
    EQ(strlen(info.generation), 32);
    world_drop(segment);
}

static void
handles_of_one_process_share_map_and_row(void)
{
    const char *name = world_name("share");
    sv_segment *first = world_segment(name, 1);
    sv_segment *second = world_open(name, NULL, SV_OPEN_CREATE);
    sv_segment *third = world_open(name, NULL, SV_OPEN_ATTACH);
    CHECK(svi_mapping_of(first) == svi_mapping_of(second));
    CHECK(svi_mapping_of(first) == svi_mapping_of(third));
    EQ(world_living(first), 1);
    EQ(sv_handle_count(first), 3);
    EQ(sv_segment_close(first, NULL), 0);
    EQ(sv_handle_count(third), 2);
    EQ(sv_segment_close(second, NULL), 0);
    EQ(sv_handle_count(third), 1);
    EQ(world_stamp(third, 0), 1);
    world_drop(third);
}

static void
flags_say_what_must_be_there(void)
{
    const char *name = world_name("flags");
    sv_error err = {.message = ""};
    EQ(try_open(name, NULL, SV_OPEN_ATTACH, &err), SV_ENOENT);
    HAS(err.message, name);
    HAS(err.message, world_directory());
    sv_segment *segment = world_segment(name, 1);
    sv_options options = world_options();
    EQ(try_open(name, &options, SV_OPEN_EXCLUSIVE, &err), SV_EEXIST);
    HAS(err.message, name);
    EQ(try_open(name, &options, 4, &err), SV_EINVAL);
    EQ(try_open(name, &options, -1, &err), SV_EINVAL);
    EQ(try_open(name, NULL, SV_OPEN_ATTACH, NULL), 0);
    world_drop(segment);
    EQ(world_files(), 0);
}

static void
attaching_compares_what_was_asked_for(void)
{
    const char *name = world_name("wishes");
    sv_options made = world_options();
    made.generation = "first";
    sv_segment *segment = world_open(name, &made, SV_OPEN_EXCLUSIVE);
    sv_info info;
    sv_options options;
    sv_error err = {.message = ""};
    EQ(sv_segment_info(segment, &info), 0);

    sv_options_init(&options);
    options.chunk_size = 77; /* all of these are ignored */
    options.max_memory_size = 1;
    options.spare_buffers = 0;
    options.max_rows = 0;
    options.max_arrays = 99;
    options.stats_capacity = 1;
    EQ(try_open(name, &options, SV_OPEN_ATTACH, &err), 0);

    options.dtype = "uint64";
    options.itemsize = 8;
    options.expect_slots = 4;
    options.expect_inode = info.inode;
    options.generation = "first";
    EQ(try_open(name, &options, SV_OPEN_ATTACH, &err), 0);
    EQ(try_open(name, &options, SV_OPEN_CREATE, &err), 0);

    options.dtype = "float32";
    EQ(try_open(name, &options, SV_OPEN_ATTACH, &err), SV_EMISMATCH);
    HAS(err.message, "uint64");
    HAS(err.message, "float32");
    EQ(try_open(name, &options, SV_OPEN_CREATE, &err), SV_EMISMATCH);
    options.dtype = NULL;
    options.expect_slots = 5;
    EQ(try_open(name, &options, SV_OPEN_ATTACH, &err), SV_EMISMATCH);
    HAS(err.message, "has 4 slots");
    HAS(err.message, "requested were 5");
    options.expect_slots = 0;
    options.expect_inode = info.inode + 1;
    EQ(try_open(name, &options, SV_OPEN_ATTACH, &err), SV_EMISMATCH);
    HAS(err.message, "made anew");
    options.expect_inode = 0;
    options.generation = "second";
    EQ(try_open(name, &options, SV_OPEN_ATTACH, &err), SV_EMISMATCH);
    HAS(err.message, "first");
    HAS(err.message, "second");
    world_drop(segment);
}

static void
bad_options_are_refused_before_anything_is_made(void)
{
    const char *name = world_name("options");
    char text[SV_DTYPE_BYTES + 1];
    sv_error err = {.message = ""};
    sv_options options = world_options();
    options.size = 8;
    EQ(try_open(name, &options, SV_OPEN_CREATE, &err), SV_EINVAL);
    HAS(err.message, "sv_options_init");
    options = world_options();
    options.dtype = "";
    EQ(try_open(name, &options, SV_OPEN_CREATE, &err), SV_EINVAL);
    HAS(err.message, "1 to 255");
    memset(text, 'd', sizeof text);
    text[SV_DTYPE_BYTES] = '\0';
    options.dtype = text;
    EQ(try_open(name, &options, SV_OPEN_CREATE, &err), SV_EINVAL);
    HAS(err.message, "found 256");
    options = world_options();
    options.mode = 0400;
    EQ(try_open(name, &options, SV_OPEN_CREATE, &err), SV_EINVAL);
    HAS(err.message, "0400");
    options.mode = 04600;
    EQ(try_open(name, &options, SV_OPEN_CREATE, &err), SV_EINVAL);
    options = world_options();
    options.generation = "two words";
    EQ(try_open(name, &options, SV_OPEN_CREATE, &err), SV_EINVAL);
    options = world_options();
    options.max_rows = 0;
    EQ(try_open(name, &options, SV_OPEN_CREATE, &err), SV_EINVAL);
    EQ(world_files(), 0);
}

/* ---- permissions --------------------------------------------------------------------------- */

static void
the_mode_is_exact_whatever_the_umask(void)
{
    static const mode_t masks[] = {0, 022, 077, 0777};
    for (size_t i = 0; i < sizeof masks / sizeof masks[0]; i++) {
        const char *name = world_name("mode");
        mode_t old = umask(masks[i]);
        sv_options options = world_options();
        tap_context("umask %03o", masks[i]);
        sv_segment *segment = world_open(name, &options, SV_OPEN_CREATE);
        EQ(mode_of(name), 0600);
        world_drop(segment);
        options.mode = 0666;
        segment = world_open(name, &options, SV_OPEN_CREATE);
        EQ(mode_of(name), 0666);
        EQ(try_open(name, &options, SV_OPEN_ATTACH, NULL), 0);
        world_drop(segment);
        (void)umask(old);
    }
}

static void
files_that_others_may_write_are_refused_unless_meant(void)
{
    const char *name = world_name("chmod");
    sv_segment *segment = world_segment(name, 1);
    sv_options options = world_options();
    sv_error err = {.message = ""};
    EQ(chmod(world_path(name, ""), 0622), 0);
    EQ(try_open(name, &options, SV_OPEN_ATTACH, &err), SV_EFORMAT);
    HAS(err.message, "0622");
    HAS(err.message, "0600");
    HAS(err.message, "mode=0o622");
    options.mode = 0666;
    EQ(try_open(name, &options, SV_OPEN_ATTACH, &err), SV_EFORMAT);
    options.mode = 0622;
    EQ(try_open(name, &options, SV_OPEN_ATTACH, &err), 0);
    world_drop(segment);
}

typedef struct stranger {
    const char *name;
    uint32_t mode;
    int wanted;
    const char *part;
} stranger;

static int
attach_as_stranger(void *argument)
{
    const stranger *who = argument;
    sv_options options = world_options();
    sv_error err = {.message = ""};
    sv_segment *segment = NULL;
    options.mode = who->mode;
    EQ(setgid(65534), 0);
    EQ(setuid(65534), 0);
    /* After setuid the kernel gives /proc/self to root; a freshly started program has its own. */
    EQ(prctl(PR_SET_DUMPABLE, 1), 0);
    EQ(sv_segment_open(who->name, &options, SV_OPEN_ATTACH, &segment, &err), who->wanted);
    HAS(err.message, who->part);
    if (segment != NULL) {
        EQ(world_stamp(segment, 0), 1);
        EQ(world_publish(segment, 0, 5), 0);
        EQ(sv_segment_close(segment, NULL), 0);
    }
    return 0;
}

static void
another_user_is_let_in_only_by_mode(void)
{
    if (geteuid() != 0) {
        tap_skip("becoming another user needs root");
        return;
    }
    const char *name = world_name("uid");
    sv_options options = world_options();
    EQ(chmod(world_directory(), 0711), 0);
    sv_segment *segment = world_segment(name, 1);
    EQ(sv_segment_close(segment, NULL), 0); /* so that the child maps anew */
    stranger who = {name, 0600, SV_ESYS, "cannot open"};
    world_child(attach_as_stranger, &who);
    EQ(sv_segment_remove(name, NULL, NULL), 0);

    options.mode = 0666;
    segment = world_open(name, &options, SV_OPEN_CREATE);
    EQ(world_append(segment, 1), 0);
    EQ(sv_segment_close(segment, NULL), 0);
    who = (stranger){name, 0600, SV_EFORMAT, "belongs to uid 0, this process runs as uid 65534"};
    world_child(attach_as_stranger, &who);
    who = (stranger){name, 0666, 0, ""};
    world_child(attach_as_stranger, &who);
    segment = world_open(name, &options, SV_OPEN_ATTACH);
    EQ(world_stamp(segment, 0), 5);
    world_audit(segment, 0, 0);
    world_drop(segment);
    EQ(chmod(world_directory(), 0700), 0);
}

/* ---- what else may lie under the name (H01) ------------------------------------------------ */

static void
make_empty(const char *name)
{
    world_junk(name, 0, 0);
}

static void
make_short(const char *name)
{
    world_junk(name, 'S', 100);
}

static void
make_zeros(const char *name)
{
    world_junk(name, 0, 1 << 20);
}

static void
make_noise(const char *name)
{
    world_junk(name, 0xa5, 1 << 20);
}

static void
make_cut(const char *name)
{
    world_segment(name, 1);
    EQ(truncate(world_path(name, ""), 8192), 0);
}

static void
make_fifo(const char *name)
{
    EQ(mkfifo(world_path(name, ""), 0600), 0);
}

static void
make_symlink(const char *name)
{
    EQ(symlink("/dev/zero", world_path(name, "")), 0);
}

static void
make_dangling(const char *name)
{
    EQ(symlink("/no/such/file", world_path(name, "")), 0);
}

static void
make_directory(const char *name)
{
    EQ(mkdir(world_path(name, ""), 0700), 0);
}

static int
open_and_count(void *name)
{
    svi_testing_separate = true;
    sv_segment *segment = world_open(name, NULL, SV_OPEN_ATTACH);
    EQ(sv_handle_count(segment), 2);
    world_set(&world_flags[0], 1);
    return world_await(&world_flags[1], 1) ? 0 : 1;
}

static void
handles_of_the_living_are_counted(void)
{
    const char *name = world_name("handles");
    sv_segment *segment = world_segment(name, 1);
    world_flags_clear();
    pid_t pid = world_fork(open_and_count, (void *)(uintptr_t)name);
    REQUIRE(world_await(&world_flags[0], 1));
    EQ(sv_handle_count(segment), 2);
    world_kill(pid);
    EQ(sv_handle_count(segment), 1);
    world_audit(segment, 0, 0);
    world_drop(segment);
}

typedef struct junk {
    const char *what;
    void (*make)(const char *name);
} junk;

static const junk junks[] = {{"empty", make_empty},       {"short", make_short},
                             {"zeros", make_zeros},       {"noise", make_noise},
                             {"fifo", make_fifo},         {"symlink", make_symlink},
                             {"dangling", make_dangling}, {"directory", make_directory}};

static void
junk_under_the_name_is_an_error_at_once(void)
{
    for (size_t i = 0; i < sizeof junks / sizeof junks[0]; i++) {
        const char *name = world_name("junk");
        sv_options options = world_options();
        sv_error err = {.message = ""};
        uint64_t started = svi_os_monotonic_ns();
        tap_context("%s", junks[i].what);
        junks[i].make(name);
        EQ(try_open(name, &options, SV_OPEN_ATTACH, &err), SV_EFORMAT);
        HAS(err.message, world_path(name, ""));
        EQ(try_open(name, &options, SV_OPEN_CREATE, &err), SV_EFORMAT);
        EQ(world_files(), 1);
        CHECK(svi_os_monotonic_ns() - started < UINT64_C(2000000000));
        bool directory = junks[i].make == make_directory;
        EQ(sv_segment_remove(name, NULL, &err), directory ? SV_ESYS : 0);
        if (directory) {
            EQ(rmdir(world_path(name, "")), 0);
        }
        EQ(world_files(), 0);
    }
}

static void
junk_under_the_name_is_replaced(void)
{
    for (size_t i = 0; i < sizeof junks / sizeof junks[0]; i++) {
        if (junks[i].make == make_directory) {
            continue;
        }
        const char *name = world_name("over");
        tap_context("%s", junks[i].what);
        junks[i].make(name);
        sv_segment *segment = world_open(name, NULL, SV_OPEN_REPLACE);
        EQ(world_append(segment, 1), 0);
        world_audit(segment, 0, 0);
        world_drop(segment);
    }
}

static int
attach_cut(void *name)
{
    sv_options options = world_options();
    sv_error err = {.message = ""};
    EQ(try_open(name, &options, SV_OPEN_ATTACH, &err), SV_EFORMAT);
    HAS(err.message, "8192");
    return 0;
}

static int
make_cut_child(void *name)
{
    make_cut(name);
    return 0;
}

static void
a_truncated_segment_is_refused(void)
{
    const char *name = world_name("cut");
    world_child(make_cut_child, (void *)(uintptr_t)name);
    world_child(attach_cut, (void *)(uintptr_t)name);
    EQ(sv_segment_remove(name, NULL, NULL), 0);
}

/* ---- a damaged header ---------------------------------------------------------------------- */

/* Use everything that a damaged header could lead astray; codes do not matter, crashes do. */
static void
use_all(sv_segment *segment)
{
    sv_error err;
    sv_slot_stats stats;
    sv_stats pool;
    sv_row_info rows[4];
    uint32_t samples[8];
    uint64_t sum = 0;
    int codes = 0;
    for (uint32_t slot = 0; slot < 6; slot++) {
        sv_view view;
        if (sv_pin(segment, slot, &view) == 0) {
            for (uint64_t k = 0; k < view.size_bytes; k++) {
                sum += ((const unsigned char *)view.data)[k];
            }
            sv_unpin(&view);
        }
        codes += sv_slot_stats_get(segment, slot, &stats);
    }
    (void)sv_rows(segment, rows, 4);
    (void)sv_handle_count(segment);
    (void)sv_recover(segment, NULL, &err);
    (void)world_publish(segment, 0, sum | 1);
    (void)sv_stats_samples(segment, samples, 8);
    sv_stats_get(segment, &pool);
    codes += sv_check(segment, &err);
    CHECK(codes <= 0);
}

static int
flip_each_byte(void *argument)
{
    const char *name = argument;
    sv_options options;
    sv_options_init(&options);
    svm_header good;
    int fd = open(world_path(name, ""), O_RDWR);
    EQ(pread(fd, &good, sizeof good, 0), sizeof good);
    unsigned refused = 0;
    for (size_t i = 0; i < offsetof(svm_header, h_pad7); i++) {
        unsigned char bad = (unsigned char)(((unsigned char *)&good)[i] ^ 0xff);
        sv_segment *segment = NULL;
        sv_error err = {.message = ""};
        tap_context("byte %zu of the header", i);
        world_set(&world_flags[0], i);
        EQ(pwrite(fd, &bad, 1, (off_t)i), 1);
        int status = sv_segment_open(name, &options, SV_OPEN_ATTACH, &segment, &err);
        if (status == 0) {
            CHECK(i >= sizeof good.h_magic + sizeof good.h_major); /* these never pass */
            use_all(segment);
            EQ(sv_segment_close(segment, NULL), 0);
        } else {
            EQ(status, SV_EFORMAT);
            CHECK(strlen(err.message) != 0);
            CHECK(segment == NULL);
            refused++;
        }
        EQ(pwrite(fd, &good, sizeof good, 0), sizeof good);
    }
    /* Magic, versions, byte order, fingerprint and all numbers of the geometry. */
    CHECK(refused > 100);
    (void)close(fd);
    return 0;
}

static void
no_flipped_byte_of_the_header_crashes(void)
{
    const char *name = world_name("flip");
    EQ(sv_segment_close(world_segment(name, 3), NULL), 0);
    world_flags_clear();
    int status = world_wait(world_fork(flip_each_byte, (void *)(uintptr_t)name), WORLD_WAIT_MS * 2);
    if (!EQ(status, 0)) {
        tap_note("last byte: %llu", (unsigned long long)svi_load_seq(&world_flags[0]));
    }
    EQ(sv_segment_remove(name, NULL, NULL), 0);
}

/* ---- many at once -------------------------------------------------------------------------- */

static int
open_at_once(void *name)
{
    sv_info info;
    svi_add_seq(&world_flags[0], 1);
    EQ(world_await(&world_flags[1], 1), true);
    sv_segment *segment = world_open(name, NULL, SV_OPEN_CREATE);
    EQ(sv_segment_info(segment, &info), 0);
    if (!svi_cas_seq(&world_flags[2], 0, info.inode)) {
        EQ(svi_load_seq(&world_flags[2]), info.inode); /* one segment for all */
    }
    uint64_t me = svi_add_seq(&world_flags[3], 1);
    if (me < 4) {
        EQ(world_append(segment, me + 1), 0);
    }
    return 0;
}

static void
many_creators_at_once_make_one_segment(void)
{
    for (int round = 0; round < 10; round++) {
        const char *name = world_name("many");
        pid_t pids[8];
        world_flags_clear();
        for (size_t i = 0; i < 8; i++) {
            pids[i] = world_fork(open_at_once, (void *)(uintptr_t)name);
        }
        REQUIRE(world_await(&world_flags[0], 8));
        world_set(&world_flags[1], 1);
        for (size_t i = 0; i < 8; i++) {
            EQ(world_wait(pids[i], WORLD_WAIT_MS), 0);
        }
        EQ(world_files(), 1);
        sv_segment *segment = world_open(name, NULL, SV_OPEN_ATTACH);
        EQ(sv_size(segment), 4);
        world_audit(segment, 0, 0);
        world_drop(segment);
    }
}

static int
pause_while_creating(void *name)
{
    steps_pause_on("create.made", &world_flags[0], &world_flags[1]);
    return world_open(name, NULL, SV_OPEN_CREATE) == NULL;
}

static void
a_half_made_segment_cannot_be_seen(void)
{
    const char *name = world_name("half");
    sv_options options = world_options();
    sv_error err = {.message = ""};
    world_flags_clear();
    pid_t pid = world_fork(pause_while_creating, (void *)(uintptr_t)name);
    REQUIRE(world_await(&world_flags[0], 1));
    CHECK(!world_exists(name, ""));
    EQ(try_open(name, &options, SV_OPEN_ATTACH, &err), SV_ENOENT);
    options.timeout_ns = 50000000;
    EQ(try_open(name, &options, SV_OPEN_CREATE, &err), SV_ETIMEDOUT);
    HAS(err.message, name);
    HAS(err.message, ".create");
    world_set(&world_flags[1], 1);
    EQ(world_wait(pid, WORLD_WAIT_MS), 0);
    EQ(try_open(name, &options, SV_OPEN_ATTACH, &err), 0);
    EQ(sv_segment_remove(name, NULL, NULL), 0);
}

static void
a_sweeper_is_waited_for(void)
{
    const char *name = world_name("sweep");
    sv_options options = world_options();
    sv_error err = {.message = ""};
    EQ(sv_segment_close(world_segment(name, 1), NULL), 0);
    int fd = open(world_path(name, ""), O_RDWR);
    EQ(svi_os_lock_try(fd, SVI_LOCK_ATTACHED, true), 0);
    options.timeout_ns = 30000000;
    EQ(try_open(name, &options, SV_OPEN_ATTACH, &err), SV_ETIMEDOUT);
    HAS(err.message, "sweeping");
    (void)close(fd);
    EQ(try_open(name, &options, SV_OPEN_ATTACH, &err), 0);
    EQ(sv_segment_remove(name, NULL, NULL), 0);
}

/* ---- replacing and removing ---------------------------------------------------------------- */

static void
replacing_leaves_those_attached_alone(void)
{
    const char *name = world_name("anew");
    sv_segment *old = world_segment(name, 2);
    sv_segment *fresh = world_open(name, NULL, SV_OPEN_REPLACE);
    sv_info a;
    sv_info b;
    EQ(sv_segment_info(old, &a), 0);
    EQ(sv_segment_info(fresh, &b), 0);
    CHECK(strcmp(a.generation, b.generation) != 0);
    CHECK(a.inode != b.inode);
    EQ(sv_size(old), 2);
    EQ(sv_size(fresh), 0);
    EQ(world_append(old, 3), 0);
    EQ(world_stamp(old, 2), 3);
    world_audit(old, 0, 0); /* rows, locks and recovery do not need the name */
    EQ(sv_segment_close(old, NULL), 0);
    EQ(world_append(fresh, 9), 0);
    EQ(world_stamp(fresh, 0), 9);
    world_drop(fresh);
}

static void
removing_is_forgiving_and_exact(void)
{
    const char *name = world_name("remove");
    sv_info info;
    sv_error err = {.message = ""};
    EQ(sv_segment_remove(name, NULL, &err), 0); /* a missing name is no error */
    sv_segment *segment = world_segment(name, 1);
    EQ(sv_segment_info(segment, &info), 0);
    EQ(sv_segment_remove_exact(name, NULL, info.inode + 1, info.generation, &err), SV_ENOENT);
    EQ(sv_segment_remove_exact(name, NULL, info.inode, "other", &err), SV_ENOENT);
    HAS(err.message, "other");
    CHECK(world_exists(name, ""));
    EQ(sv_segment_remove_exact(name, NULL, info.inode, info.generation, &err), 0);
    CHECK(!world_exists(name, ""));
    EQ(sv_segment_remove_exact(name, NULL, info.inode, info.generation, &err), SV_ENOENT);
    EQ(world_stamp(segment, 0), 1);
    world_audit(segment, 0, 0);
    EQ(sv_segment_close(segment, NULL), 0);
}

/* ---- closing ------------------------------------------------------------------------------- */

static void
closing_with_live_views_defers(void)
{
    const char *name = world_name("defer");
    sv_segment *segment = world_segment(name, 2);
    const svi_mapping *m = svi_mapping_of(segment);
    uint64_t stamp = 0;
    sv_view first;
    sv_view second;
    EQ(sv_pin(segment, 0, &first), 0);
    EQ(sv_pin(segment, 1, &second), 0);
    EQ(sv_segment_close(segment, NULL), 0);
    CHECK(m->mapped);
    CHECK(world_whole(&first, &stamp));
    EQ(stamp, 1);
    sv_unpin(&first);
    CHECK(m->mapped);
    CHECK(world_whole(&second, &stamp));
    EQ(stamp, 2);

    segment = world_open(name, NULL, SV_OPEN_ATTACH); /* joins what is still mapped */
    CHECK(svi_mapping_of(segment) == m);
    EQ(world_living(segment), 1);
    EQ(sv_segment_close(segment, NULL), 0);
    CHECK(m->mapped);
    sv_unpin(&second);
    CHECK(!m->mapped);
    sv_unpin(&second); /* a second call does nothing */

    segment = world_open(name, NULL, SV_OPEN_ATTACH);
    world_audit(segment, 0, 0);
    world_drop(segment);
}

static void
closing_with_a_reservation_is_refused(void)
{
    sv_segment *segment = world_segment(world_name("held"), 1);
    sv_reservation reservation;
    sv_error err = {.message = ""};
    EQ(sv_reserve(segment, 0, &reservation, NULL), 0);
    EQ(sv_segment_close(segment, &err), SV_EINUSE);
    HAS(err.message, "1 reservation");
    EQ(world_stamp(segment, 0), 1); /* still open */
    sv_cancel(&reservation);
    world_audit(segment, 0, 0);
    world_drop(segment);
}

static void
what_is_no_open_handle_is_refused(void)
{
    sv_segment closed = {.magic = 0, .mapping = NULL};
    sv_info info = {.slot_count = 3};
    sv_view view = {.slot = 3};
    sv_error err = {.message = ""};
    sv_reservation reservation = {.buffer_ = 3};
    sv_slot_stats stats = {.reads = 3};
    sv_row_info row;
    uint32_t slot = 3;
    int unread = 3;
    sv_array array = {.itemsize = 1};
    sv_chunk chunk = {.arrays = &array, .array_count = 1};
    EQ(sv_segment_close(NULL, &err), SV_EINVAL);
    EQ(sv_segment_close(&closed, &err), SV_EINVAL);
    EQ(sv_segment_info(&closed, &info), SV_ECLOSED);
    EQ(sv_size(&closed), 0);
    EQ(sv_pin(&closed, 0, &view), SV_ECLOSED);
    EQ(sv_pin_quiet(&closed, 0, &view), SV_ECLOSED);
    EQ(sv_reserve(&closed, 0, &reservation, &err), SV_ECLOSED);
    EQ(sv_append(&closed, &chunk, &slot, &err), SV_ECLOSED);
    EQ(sv_replace(&closed, 0, &chunk, 0, &err), SV_ECLOSED);
    EQ(sv_gather(&closed, &slot, 1, &stats, 8, 1, &err), SV_ECLOSED);
    EQ(sv_slot_stats_get(&closed, 0, &stats), SV_ECLOSED);
    EQ(sv_slot_stats_all(&closed, 1, NULL, NULL, NULL), 0);
    EQ(sv_stats_reset(&closed, &err), SV_ECLOSED);
    EQ(sv_stats_samples(&closed, &slot, 1), 0);
    EQ(sv_counter_add(&closed, SV_COUNTER_LOADS, 1), 0);
    EQ(sv_refresh_next(&closed, &slot, &unread), SV_ECLOSED);
    EQ(sv_rows(&closed, &row, 1), 0);
    EQ(sv_handle_count(&closed), 0);
    EQ(sv_recover(&closed, &slot, &err), SV_ECLOSED);
    EQ(sv_check(&closed, &err), SV_ECLOSED);
    EQ(sv_owner_live(&closed), 0);
    EQ(sv_retired_get(&closed), SV_RETIRED_NO);
    sv_retire(&closed, SV_RETIRED_CLOSED);
    sv_count_blocked(&closed, 1);
    EQ(info.slot_count + view.slot + reservation.buffer_ + slot, 12);
    EQ(stats.reads + (uint64_t)unread, 6);
}

/* ---- limits of the machine ----------------------------------------------------------------- */

static void
what_does_not_fit_says_how_much_is_wanted_and_free(void)
{
    const char *name = world_name("big");
    sv_options options = world_options();
    sv_error err = {.message = ""};
    options.chunk_size = UINT64_C(1) << 41;
    options.slot_count = 1;
    EQ(try_open(name, &options, SV_OPEN_CREATE, &err), SV_ESYS);
    EQ(err.sys_errno, ENOSPC);
    HAS(err.message, "needs 659706");
    HAS(err.message, "are free");
    HAS(err.message, "--shm-size");
    HAS(err.message, world_directory());
    EQ(world_files(), 0);
}

static int
create_under_file_limit(void *name)
{
    struct rlimit limit = {8192, 8192};
    sv_options options = world_options();
    sv_error err = {.message = ""};
    (void)signal(SIGXFSZ, SIG_IGN);
    EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    EQ(try_open(name, &options, SV_OPEN_CREATE, &err), SV_ESYS);
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
    EQ(try_open(name, &options, SV_OPEN_ATTACH, &err), SV_ENOMEM);
    EQ(err.sys_errno, ENOMEM);
    HAS(err.message, "cannot map");
    return 0;
}

static void
a_full_address_space_is_an_error(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    tap_skip("sanitizers need their address space");
#else
    const char *name = world_name("as");
    EQ(sv_segment_close(world_segment(name, 1), NULL), 0);
    world_child(attach_under_address_limit, (void *)(uintptr_t)name);
    sv_segment *segment = world_open(name, NULL, SV_OPEN_ATTACH);
    world_audit(segment, 0, 0);
    world_drop(segment);
#endif
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
    EQ(try_open("disk", &options, SV_OPEN_CREATE, &err), SV_EUNSUPPORTED);
    HAS(err.message, directory);
    HAS(err.message, "tmpfs");
    HAS(err.message, "SHAREDVECTOR_SHM_DIR");
    EQ(rmdir(directory), 0); /* nothing was left there */
    EQ(try_open("disk", &options, SV_OPEN_CREATE, &err), SV_ESYS);
    EQ(try_open("disk", &options, SV_OPEN_ATTACH, &err), SV_ENOENT);
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
    EQ(dup2(other, probe), probe); /* somebody closed ours and opened theirs */
    EQ(world_living(segment), 1);
    world_audit(segment, 0, 0);
    CHECK(m->probe != probe);
    world_drop(segment);
    CHECK(fcntl(probe, F_GETFD) >= 0); /* theirs was not closed */
    (void)close(probe);
    (void)close(other);
}

/* ---- killed while making ------------------------------------------------------------------- */

static void
before_nothing(const char *name)
{
    (void)name;
}

static void
before_old_segment(const char *name)
{
    EQ(sv_segment_close(world_segment(name, 2), NULL), 0);
}

static int
victim_creates(void *name)
{
    sv_segment *segment = world_open(name, NULL, SV_OPEN_EXCLUSIVE);
    return sv_segment_close(segment, NULL);
}

static int
victim_replaces(void *name)
{
    sv_segment *segment = world_open(name, NULL, SV_OPEN_REPLACE);
    return sv_segment_close(segment, NULL);
}

/* The name is absent or whole; whoever comes next gets a good segment, and nothing is left. */
static void
after_making(const char *name)
{
    sv_info info;
    CHECK(!world_exists(name, "") || try_open(name, NULL, SV_OPEN_ATTACH, NULL) == 0);
    sv_segment *segment = world_open(name, NULL, SV_OPEN_CREATE);
    while (sv_size(segment) < 4) {
        EQ(world_append(segment, 1 + sv_size(segment)), 0);
    }
    EQ(world_living(segment), 1);
    world_audit(segment, 0, 0);
    EQ(sv_segment_info(segment, &info), 0);
    EQ(sv_segment_close(segment, NULL), 0);
    EQ(sv_segment_remove_exact(name, NULL, info.inode, info.generation, NULL), 0);
    EQ(world_files(), 0);
}

static void
a_killed_creator_leaves_a_whole_segment_or_none(void)
{
    CHECK(steps_kill_everywhere("create", before_nothing, victim_creates, after_making) >= 6);
    CHECK(steps_kill_everywhere("replace", before_old_segment, victim_replaces, after_making) >= 7);
}

int
main(void)
{
    world_begin(55);
    RUN(options_have_their_defaults);
    RUN(a_segment_knows_its_facts);
    RUN(without_options_the_defaults_apply);
    RUN(handles_of_one_process_share_map_and_row);
    RUN(handles_of_the_living_are_counted);
    RUN(flags_say_what_must_be_there);
    RUN(attaching_compares_what_was_asked_for);
    RUN(bad_options_are_refused_before_anything_is_made);
    RUN(the_mode_is_exact_whatever_the_umask);
    RUN(files_that_others_may_write_are_refused_unless_meant);
    RUN(another_user_is_let_in_only_by_mode);
    RUN(junk_under_the_name_is_an_error_at_once);
    RUN(junk_under_the_name_is_replaced);
    RUN(a_truncated_segment_is_refused);
    RUN(no_flipped_byte_of_the_header_crashes);
    RUN(many_creators_at_once_make_one_segment);
    RUN(a_half_made_segment_cannot_be_seen);
    RUN(a_sweeper_is_waited_for);
    RUN(replacing_leaves_those_attached_alone);
    RUN(removing_is_forgiving_and_exact);
    RUN(closing_with_live_views_defers);
    RUN(closing_with_a_reservation_is_refused);
    RUN(what_is_no_open_handle_is_refused);
    RUN(what_does_not_fit_says_how_much_is_wanted_and_free);
    RUN(the_file_limit_is_looked_at_first);
    RUN(a_full_address_space_is_an_error);
    RUN(only_a_tmpfs_will_do);
    RUN(closing_every_descriptor_does_no_harm);
    RUN(the_probe_is_not_fooled_by_another_file);
    RUN(a_killed_creator_leaves_a_whole_segment_or_none);
    return world_end();
}
