/* What is attached to: only files that are whole, of this format, and safe from strangers. */
#include "segment.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "os.h"
#include "world.h"

static mode_t
mode_of(const char *name)
{
    struct stat st = {.st_mode = 0};
    (void)EQ(stat(world_path(name, ""), &st), 0);
    return st.st_mode & 07777;
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
        EQ(world_try_open(name, &options, SV_OPEN_ATTACH, NULL), 0);
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
    EQ(world_try_open(name, &options, SV_OPEN_ATTACH, &err), SV_EFORMAT);
    HAS(err.message, "0622");
    HAS(err.message, "0600");
    HAS(err.message, "mode=0o622");
    options.mode = 0666;
    EQ(world_try_open(name, &options, SV_OPEN_ATTACH, &err), SV_EFORMAT);
    options.mode = 0622;
    EQ(world_try_open(name, &options, SV_OPEN_ATTACH, &err), 0);
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
        options.timeout_ns = WORLD_NEVER_NS; /* at once, or the program would take too long */
        tap_context("%s", junks[i].what);
        junks[i].make(name);
        EQ(world_try_open(name, &options, SV_OPEN_ATTACH, &err), SV_EFORMAT);
        HAS(err.message, world_path(name, ""));
        EQ(world_try_open(name, &options, SV_OPEN_CREATE, &err), SV_EFORMAT);
        EQ(world_files(), 1);
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

static void
a_directory_is_not_replaced(void)
{
    const char *name = world_name("folder");
    sv_options options = world_options();
    sv_error err = {.message = ""};
    options.timeout_ns = WORLD_NEVER_NS;
    make_directory(name);
    EQ(world_try_open(name, &options, SV_OPEN_REPLACE, &err), SV_ESYS);
    EQ(err.sys_errno, EISDIR);
    HAS(err.message, world_path(name, ""));
    EQ(rmdir(world_path(name, "")), 0);
    EQ(world_files(), 0);
}

static int
attach_cut(void *name)
{
    sv_options options = world_options();
    sv_error err = {.message = ""};
    EQ(world_try_open(name, &options, SV_OPEN_ATTACH, &err), SV_EFORMAT);
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

int
main(void)
{
    world_begin(55);
    RUN(handles_of_the_living_are_counted);
    RUN(the_mode_is_exact_whatever_the_umask);
    RUN(files_that_others_may_write_are_refused_unless_meant);
    RUN(another_user_is_let_in_only_by_mode);
    RUN(junk_under_the_name_is_an_error_at_once);
    RUN(junk_under_the_name_is_replaced);
    RUN(a_directory_is_not_replaced);
    RUN(a_truncated_segment_is_refused);
    RUN(no_flipped_byte_of_the_header_crashes);
    return world_end();
}
