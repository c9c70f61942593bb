/* What machines do to a segment: small and full file systems, namespaces of containers, other users
 * and groups, and descriptors that run out. What needs privileges is skipped with the reason. */
#include "segment.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "machine.h"
#include "os.h"
#include "world.h"

/* ---- a small tmpfs ------------------------------------------------------------------------- */

static char small[600];

static bool
mount_small(const char *size)
{
    char options[64];
    (void)snprintf(options, sizeof options, "size=%s,mode=0700", size);
    return world_private_mounts() && mount("tmpfs", small, "tmpfs", 0, options) == 0;
}

static sv_options
options_there(void)
{
    sv_options options = world_options();
    options.directory = small;
    options.timeout_ns = 100000000;
    return options;
}

/* Take all the memory that is left; returns the descriptor, which gives it back when closed. */
static int
eat_everything(void)
{
    int fd = svi_os_tmpfile(small, 0600);
    uint64_t at = 0;
    (void)CHECK(fd >= 0);
    while (svi_os_allocate(fd, at, SVI_PAGE) == 0) {
        at += SVI_PAGE;
    }
    return fd;
}

static int
create_on_a_full_one(void *argument)
{
    (void)argument;
    if (!mount_small("256k")) {
        return CANNOT;
    }
    sv_options options = options_there();
    sv_error err = {.message = ""};
    options.chunk_size = 1 << 20;
    EQ(world_try_open("big", &options, SV_OPEN_CREATE, &err), SV_ESYS);
    EQ(err.sys_errno, ENOSPC);
    HAS(err.message, "262144 bytes");
    int fd = eat_everything();
    options = options_there();
    EQ(world_try_open("any", &options, SV_OPEN_CREATE, &err), SV_ESYS);
    EQ(err.sys_errno, ENOSPC);
    HAS(err.message, small);
    (void)close(fd);
    sv_segment *segment = world_open("any", &options, SV_OPEN_CREATE); /* nothing was left behind */
    EQ(world_append(segment, 1), 0);
    world_audit(segment, 0, 0);
    world_drop(segment);
    return 0;
}

/* What was reserved works on a full file system: every buffer, and as many processes as the segment is
 * made for. One more does not fit, and says so. */
static int
attach_to_a_full_one(void *argument)
{
    (void)argument;
    if (!mount_small("256k")) {
        return CANNOT;
    }
    sv_options options = options_there();
    sv_error err = {.message = ""};
    sv_segment *second = NULL;
    sv_segment *others[3];
    svi_testing_separate = true;
    options.processes = 3;
    sv_segment *segment = world_open("full", &options, SV_OPEN_CREATE);
    int fd = eat_everything();
    for (uint64_t i = 0; i < 4; i++) {
        EQ(world_append(segment, i + 1), 0);
    }
    for (uint64_t i = 0; i < 100; i++) {
        EQ(world_publish(segment, (uint32_t)(i % 4), i + 10), 0); /* every buffer has its memory */
    }
    for (size_t i = 0; i < 3; i++) {
        others[i] = world_open("full", &options, SV_OPEN_ATTACH);
        EQ(world_stamp(others[i], 0), 106);
    }
    EQ(sv_segment_open("full", &options, SV_OPEN_ATTACH, &second, &err), SV_ESYS);
    EQ(err.sys_errno, ENOSPC);
    HAS(err.message, "'full'");
    HAS(err.message, "made for 3 processes");
    HAS(err.message, small);
    for (size_t i = 0; i < 3; i++) {
        EQ(sv_segment_close(others[i], NULL), 0);
    }
    world_audit(segment, 0, 0);
    (void)close(fd);
    EQ(sv_segment_open("full", &options, SV_OPEN_ATTACH, &second, &err), 0);
    EQ(world_stamp(second, 3), 109);
    EQ(sv_segment_close(second, NULL), 0);
    world_audit(segment, 0, 0);
    world_drop(segment);
    return 0;
}

/* Damage raises the mark above rows that have no memory, and none is left to give them. */
static int
damage_the_mark_of_a_full_one(void *argument)
{
    (void)argument;
    if (!mount_small("256k")) {
        return CANNOT;
    }
    sv_options options = options_there();
    sv_error err = {.message = ""};
    sv_reservation reservation;
    sv_row_info rows[8];
    sv_view view;
    sv_stats stats;
    options.processes = 2;
    options.max_rows = 64;
    sv_segment *segment = world_open("mark", &options, SV_OPEN_CREATE);
    svi_mapping *m = svi_mapping_of(segment);
    unsigned char *rw = NULL;
    for (uint64_t i = 0; i < 4; i++) {
        EQ(world_append(segment, i + 1), 0);
    }
    int fd = eat_everything();
    EQ(svi_writable(m, &rw, NULL), 0);
    for (uint64_t mark = 60; mark < 80; mark += 10) { /* some that exist, and some beyond */
        svi_store_seq(&svi_header_at(rw)->h_high_rows, mark);
        EQ(sv_reserve(segment, 0, &reservation, &err), SV_EFORMAT);
        HAS(err.message, "'mark' is damaged");
        EQ(sv_recover(segment, NULL, &err), SV_EFORMAT);
        EQ(sv_check(segment, &err), SV_EFORMAT);
        EQ(sv_rows(segment, rows, 8), 1);
        EQ(sv_handle_count(segment), 1);
        sv_stats_get(segment, &stats);
        EQ(sv_pin(segment, 1, &view), 0); /* readers do not look at rows */
        sv_unpin(&view);
        EQ(world_stamp(segment, 2), 3);
    }
    svi_store_seq(&svi_header_at(rw)->h_high_rows, 1);
    (void)close(fd);
    world_audit(segment, 0, 0);
    world_drop(segment);
    return 0;
}

static int
create_without_a_limit(void *argument)
{
    (void)argument;
    if (!mount_small("0")) {
        return CANNOT;
    }
    sv_options options = options_there();
    sv_segment *segment = world_open("free", &options, SV_OPEN_CREATE);
    EQ(world_append(segment, 1), 0);
    world_audit(segment, 0, 0);
    world_drop(segment);
    /* No file system stands in its way, so what the machine has is looked at. */
    sv_error err = {.message = ""};
    options.chunk_size = UINT64_C(1) << 41;
    options.slot_count = 1;
    EQ(world_try_open("huge", &options, SV_OPEN_CREATE, &err), SV_ESYS);
    EQ(err.sys_errno, ENOSPC);
    HAS(err.message, "memory");
    return 0;
}

/* What was reserved stays reserved when pages are huge: the file system fills up, writing goes on. */
static int
write_to_huge_pages(void *argument)
{
    (void)argument;
    if (!mount_small("32m,huge=within_size")) {
        return CANNOT;
    }
    sv_options options = options_there();
    options.chunk_size = UINT64_C(2) << 20;
    options.slot_count = 4;
    svi_testing_separate = true;
    sv_segment *segment = world_open("huge", &options, SV_OPEN_CREATE);
    sv_segment *second = NULL;
    sv_error err = {.message = ""};
    int full = eat_everything();
    for (uint64_t i = 0; i < 8; i++) {
        EQ(i < 4 ? world_append(segment, i + 1) : world_publish(segment, (uint32_t)i % 4, i), 0);
        sv_reservation reservation;
        EQ(sv_reserve(segment, 0, &reservation, NULL), 0);
        memset(reservation.data, 1, options.chunk_size);
        sv_cancel(&reservation);
    }
    if (sv_segment_open("huge", &options, SV_OPEN_ATTACH, &second, &err) == 0) {
        EQ(world_stamp(second, 0), 4);
        EQ(sv_segment_close(second, NULL), 0);
    } else {
        EQ(err.sys_errno, ENOSPC);
    }
    EQ(close(full), 0);
    world_audit(segment, 0, 0);
    world_drop(segment);
    return 0;
}

static int
eat_and_give_back(void *argument)
{
    (void)argument;
    while (svi_load_seq(&world_flags[0]) == 0) {
        (void)close(eat_everything());
        svi_add_seq(&world_flags[1], 1);
    }
    return 0;
}

/* Another process eats the memory while we make and attach: whole or an error, and no SIGBUS. */
static int
create_while_another_eats(void *argument)
{
    (void)argument;
    if (!mount_small("512k")) {
        return CANNOT;
    }
    sv_options options = options_there();
    unsigned made = 0;
    world_flags_clear();
    svi_testing_separate = true;
    pid_t pid = world_fork(eat_and_give_back, NULL);
    uint64_t began = svi_os_monotonic_ns();
    while (svi_os_monotonic_ns() - began < UINT64_C(1000000000)) {
        sv_error err = {.message = ""};
        sv_segment *segment = NULL;
        sv_segment *second = NULL;
        int status = sv_segment_open("prey", &options, SV_OPEN_EXCLUSIVE, &segment, &err);
        if (status != 0) {
            EQ(err.sys_errno, ENOSPC);
            continue;
        }
        made++;
        for (uint64_t i = 0; i < 8; i++) {
            EQ(i < 4 ? world_append(segment, i + 1) : world_publish(segment, (uint32_t)i % 4, i),
               0);
        }
        if (sv_segment_open("prey", &options, SV_OPEN_ATTACH, &second, &err) == 0) {
            EQ(world_stamp(second, 0), 4);
            EQ(sv_segment_close(second, NULL), 0);
        } else {
            EQ(err.sys_errno, ENOSPC);
        }
        EQ(sv_check(segment, NULL), 0);
        world_drop(segment);
    }
    world_set(&world_flags[0], 1);
    EQ(world_wait(pid, WORLD_WAIT_MS), 0);
    tap_note("%u segments made while the file system was full %llu times", made,
             (unsigned long long)svi_load_seq(&world_flags[1]));
    return 0;
}

static void
in_small_tmpfs(int (*body)(void *argument))
{
    (void)snprintf(small, sizeof small, "%s/small", world_directory());
    EQ(mkdir(small, 0700), 0);
    int status = world_wait(world_fork(body, NULL), WORLD_WAIT_MS);
    EQ(rmdir(small), 0); /* its mount went with the namespace */
    if (status == CANNOT) {
        tap_skip("mounting a tmpfs needs CAP_SYS_ADMIN or user namespaces");
    } else {
        EQ(status, 0);
    }
}

static void
a_full_file_system_at_creation(void)
{
    in_small_tmpfs(create_on_a_full_one);
}

static void
a_full_file_system_at_attach(void)
{
    in_small_tmpfs(attach_to_a_full_one);
}

static void
a_raised_mark_on_a_full_file_system(void)
{
    in_small_tmpfs(damage_the_mark_of_a_full_one);
}

static void
a_file_system_without_a_limit(void)
{
    in_small_tmpfs(create_without_a_limit);
}

static void
a_file_system_with_huge_pages(void)
{
    in_small_tmpfs(write_to_huge_pages);
}

static void
a_file_system_that_fills_meanwhile(void)
{
    in_small_tmpfs(create_while_another_eats);
}

/* ---- pid namespaces ------------------------------------------------------------------------ */

static const char *shared_name;

/* The first process of a pid namespace: it is number 1 there, as its neighbour is in its own. */
static int
live_as_number_one(void *argument)
{
    sv_view view;
    (void)argument;
    (void)EQ(getpid(), 1);
    svi_testing_separate = true;
    sv_segment *segment = world_open(shared_name, NULL, SV_OPEN_ATTACH);
    (void)EQ(sv_pin(segment, 0, &view), 0);
    svi_add_seq(&world_flags[0], 1);
    (void)world_await(&world_flags[1], 1);
    EQ(world_living(segment), 2); /* the test and we: the neighbour is dead, though "pid 1" lives */
    EQ(sv_recover(segment, NULL, NULL), 0);
    sv_unpin(&view);
    EQ(world_publish(segment, 0, 55), 0);
    return sv_segment_close(segment, NULL);
}

/* Stays outside: only its children are in the new namespace. */
static int
make_pid_namespace(void *argument)
{
    bool may = unshare(CLONE_NEWPID) == 0;
    world_set(&world_flags[4], may ? 1 : CANNOT);
    if (!may) {
        return CANNOT;
    }
    pid_t pid = fork(); /* not world_fork: there the child looks for its parent's pid */
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        tap_reset();
        int code = live_as_number_one(argument);
        (void)fflush(stdout);
        world_exit(tap_failures() != 0 ? 99 : code);
    }
    svi_store_seq(&world_flags[2 + (argument != NULL)], (uint64_t)pid);
    return world_wait(pid, WORLD_WAIT_MS);
}

static void
two_containers_share_a_segment(void)
{
    shared_name = world_name("pidns");
    sv_segment *segment = world_segment(shared_name, 2);
    world_flags_clear();
    pid_t first = world_fork(make_pid_namespace, NULL);
    REQUIRE(world_await(&world_flags[4], 1));
    if (svi_load_seq(&world_flags[4]) == CANNOT) {
        tap_skip("pid namespaces need CAP_SYS_ADMIN");
        EQ(world_wait(first, WORLD_WAIT_MS), CANNOT);
        world_drop(segment);
        return;
    }
    pid_t second = world_fork(make_pid_namespace, small);
    REQUIRE(world_await(&world_flags[0], 2));
    EQ(world_living(segment), 3);
    REQUIRE(world_await(&world_flags[2], 1));
    (void)kill((pid_t)svi_load_seq(&world_flags[2]), SIGKILL);
    EQ(world_wait(first, WORLD_WAIT_MS), 128 + SIGKILL);
    world_set(&world_flags[1], 1);
    EQ(world_wait(second, WORLD_WAIT_MS), 0);
    EQ(world_stamp(segment, 0), 55);
    world_audit(segment, 0, 0);
    world_drop(segment);
}

/* ---- descriptors --------------------------------------------------------------------------- */

static int
attach_with_few_descriptors(void *name)
{
    struct rlimit limit;
    unsigned refused = 0;
    bool done = false;
    svi_testing_separate = true;
    EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
    int next = open("/dev/null", O_RDONLY | O_CLOEXEC);
    (void)close(next);
    for (unsigned spare = 0; spare < 8 && !done; spare++) {
        sv_options options = world_options();
        sv_error err = {.message = ""};
        sv_segment *segment = NULL;
        struct rlimit few = {(rlim_t)next + spare, limit.rlim_max};
        EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
        int status = sv_segment_open(name, &options, SV_OPEN_ATTACH, &segment, &err);
        if (status != 0) {
            EQ(status, SV_ESYS);
            EQ(err.sys_errno, EMFILE);
            refused++;
        } else {
            EQ(world_publish(segment, 0, 9), 0);
            EQ(sv_recover(segment, NULL, NULL), 0);
            EQ(sv_segment_close(segment, NULL), 0);
            done = true;
        }
    }
    EQ(done, true);
    CHECK(refused >= 1);
    return 0;
}

static void
descriptors_that_run_out_are_an_error(void)
{
    const char *name = world_name("nofile");
    sv_segment *segment = world_segment(name, 2);
    world_child(attach_with_few_descriptors, (void *)(uintptr_t)name);
    EQ(world_stamp(segment, 0), 9);
    world_audit(segment, 0, 0);
    world_drop(segment);
}

/* ---- users and groups ---------------------------------------------------------------------- */

typedef struct member {
    const char *name;
    gid_t group;
    uid_t user;
    uint32_t mode;
    int wanted;
    bool make;
} member;

static int
open_as_member(void *argument)
{
    const member *who = argument;
    sv_options options = world_options();
    sv_segment *segment = NULL;
    sv_error err = {.message = ""};
    options.mode = who->mode;
    (void)umask(077); /* the mode that was asked for counts, whatever the umask */
    EQ(setgroups(0, NULL), 0);
    EQ(setgid(who->group), 0);
    EQ(setuid(who->user), 0);
    EQ(prctl(PR_SET_DUMPABLE, 1), 0);
    int flags = who->make ? SV_OPEN_EXCLUSIVE : SV_OPEN_ATTACH;
    if (!EQ(sv_segment_open(who->name, &options, flags, &segment, &err), who->wanted)) {
        tap_note("%s", err.message);
    }
    if (segment != NULL) {
        EQ(who->make ? world_append(segment, 1) : world_publish(segment, 0, 5), 0);
        EQ(sv_recover(segment, NULL, NULL), 0);
        EQ(sv_segment_close(segment, NULL), 0);
    }
    return 0;
}

static void
a_group_shares_a_segment_by_mode(void)
{
    if (geteuid() != 0) {
        tap_skip("becoming other users needs root");
        return;
    }
    member who = {world_name("group"), 65533, 65531, 0660, 0, true};
    EQ(chmod(world_directory(), 01777), 0);
    world_child(open_as_member, &who);
    who = (member){who.name, 65533, 65532, 0660, 0, false};
    world_child(open_as_member, &who); /* of the group */
    who = (member){who.name, 65533, 65532, 0600, SV_EFORMAT, false};
    world_child(open_as_member, &who); /* without saying that sharing is meant */
    who = (member){who.name, 65532, 65530, 0660, SV_ESYS, false};
    world_child(open_as_member, &who); /* not of the group */
    EQ(sv_segment_remove(who.name, NULL, NULL), 0);
    EQ(chmod(world_directory(), 0700), 0);
}

static int
own_where_nothing_can_be_written(void *name)
{
    sv_owner *owner = NULL;
    sv_error err = {.message = ""};
    char generation[SV_GENERATION_BYTES];
    if (geteuid() == 0) {
        EQ(setgid(65534), 0);
        EQ(setuid(65534), 0);
    }
    EQ(sv_owner_acquire(name, small, NULL, &owner, &err), SV_ESYS);
    EQ(err.sys_errno, EACCES);
    HAS(err.message, small);
    EQ(sv_owner_probe(name, small, NULL, NULL, &err), 0);
    EQ(sv_ready_read(name, small, generation, &err), SV_ENOENT);
    return 0;
}

static void
a_lock_directory_that_cannot_be_used(void)
{
    const char *name = world_name("lockdir");
    sv_owner *owner = NULL;
    sv_error err = {.message = ""};
    EQ(sv_owner_acquire(name, "/no/such/directory", NULL, &owner, &err), SV_ESYS);
    EQ(err.sys_errno, ENOENT);
    HAS(err.message, "/no/such/directory");
    EQ(sv_owner_probe(name, "/no/such/directory", NULL, NULL, &err), 0);
    (void)snprintf(small, sizeof small, "%s/readonly", world_directory());
    EQ(mkdir(small, 0555), 0);
    EQ(chmod(world_directory(), 0755), 0);
    world_child(own_where_nothing_can_be_written, (void *)(uintptr_t)name);
    EQ(chmod(world_directory(), 0700), 0);
    EQ(rmdir(small), 0);
}

int
main(void)
{
    world_begin(55);
    RUN(a_full_file_system_at_creation);
    RUN(a_full_file_system_at_attach);
    RUN(a_raised_mark_on_a_full_file_system);
    RUN(a_file_system_without_a_limit);
    RUN(a_file_system_with_huge_pages);
    RUN(a_file_system_that_fills_meanwhile);
    RUN(two_containers_share_a_segment);
    RUN(descriptors_that_run_out_are_an_error);
    RUN(a_group_shares_a_segment_by_mode);
    RUN(a_lock_directory_that_cannot_be_used);
    return world_end();
}
