/* What is left under the limits of control groups: with files like the kernel's laid over its own,
 * and in a real group where the machine lets us make one. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "machine.h"
#include "os.h"
#include "world.h"

#define MIB (UINT64_C(1) << 20)

typedef struct group_file {
    const char *path; /* below the root of the groups; directories end with a slash */
    const char *text;
} group_file;

/* ---- the kernel's files, made by hand ------------------------------------------------------ */

static bool
lay_over(const char *path, const char *text)
{
    const char *draft = world_path("draft", "");
    return world_write_text(draft, text) && mount(draft, path, "none", MS_BIND, NULL) == 0 &&
           unlink(draft) == 0;
}

/* Private mounts with these groups; the process is in those that `member` says. */
static bool
make_groups(const char *member, const group_file *files)
{
    char path[4200];
    if (!world_private_mounts() || !lay_over("/proc/self/cgroup", member) ||
        mount("tmpfs", "/sys/fs/cgroup", "tmpfs", 0, "size=1m,mode=0700") != 0) {
        return false;
    }
    for (; files->path != NULL; files++) {
        (void)snprintf(path, sizeof path, "/sys/fs/cgroup/%s", files->path);
        bool made =
            files->text == NULL ? mkdir(path, 0700) == 0 : world_write_text(path, files->text);
        (void)CHECK(made);
    }
    return true;
}

typedef struct case_of_groups {
    const char *what;
    const char *member;
    uint64_t room;    /* 0: that of the machine */
    uint64_t allowed; /* 0: no limit */
    group_file files[12];
} case_of_groups;

static const case_of_groups cases[] = {
    {"a container that sees its own group as the root",
     "0::/\n",
     7 * MIB,
     64 * MIB,
     {{"memory.max", "67108864\n"},
      {"memory.current", "62914560\n"},
      {"memory.stat", "anon 1\ninactive_file 1048576\nactive_file 2097152\nslab 9\n"}}},
    {"an ancestor's limit binds",
     "0::/job/step\n",
     1 * MIB,
     32 * MIB,
     {{"job/", NULL},
      {"job/step/", NULL},
      {"job/memory.max", "33554432\n"},
      {"job/memory.current", "32505856\n"},
      {"job/memory.stat", "anon 1\n"},
      {"job/step/memory.max", "max\n"},
      {"job/step/memory.current", "4096\n"}}},
    {"the own limit binds, not the ancestor's",
     "1:name=systemd:/\n0::/job/step\n",
     2 * MIB,
     3 * MIB,
     {{"job/", NULL},
      {"job/step/", NULL},
      {"job/memory.max", "33554432\n"},
      {"job/memory.current", "4096\n"},
      {"job/step/memory.max", "3145728\n"},
      {"job/step/memory.current", "1048576\n"}}},
    {"a path of the host, of which the container sees its own end",
     "0::/kubepods/pod1/container\n",
     3 * MIB,
     4 * MIB,
     {{"memory.max", "4194304\n"}, {"memory.current", "1048576\n"}}},
    {"more used than allowed, and more cached than allowed",
     "0::/\n",
     4 * MIB,
     4 * MIB,
     {{"memory.max", "4194304\n"},
      {"memory.current", "9437184\n"},
      {"memory.stat", "anon 1\nactive_file 8388608\ninactive_file 0\n"}}},
    {"version 1",
     "5:cpu,cpuacct:/job\n4:memory:/job\n0::/\n",
     6 * MIB,
     8 * MIB,
     {{"memory/", NULL},
      {"memory/job/", NULL},
      {"memory/memory.limit_in_bytes", "9223372036854771712\n"},
      {"memory/memory.usage_in_bytes", "4096\n"},
      {"memory/job/memory.limit_in_bytes", "8388608\n"},
      {"memory/job/memory.usage_in_bytes", "4194304\n"},
      {"memory/job/memory.stat",
       "cache 1\nactive_file 1\ntotal_inactive_file 1048576\ntotal_active_file 1048576\n"}}},
    {"version 1 with two controllers in one hierarchy",
     "4:hugetlb,memory:/\n",
     1 * MIB,
     2 * MIB,
     {{"memory/", NULL},
      {"memory/memory.limit_in_bytes", "2097152\n"},
      {"memory/memory.usage_in_bytes", "1048576\n"}}},
    {"both versions",
     "4:memory:/job\n0::/job\n",
     1 * MIB,
     4 * MIB,
     {{"memory/", NULL},
      {"memory/job/", NULL},
      {"memory/job/memory.limit_in_bytes", "8388608\n"},
      {"memory/job/memory.usage_in_bytes", "7340032\n"},
      {"job/", NULL},
      {"job/memory.max", "4194304\n"},
      {"job/memory.current", "1048576\n"}}},
    {"version 1 without a limit",
     "4:memory:/\n",
     0,
     0,
     {{"memory/", NULL},
      {"memory/memory.limit_in_bytes", "9223372036854771712\n"},
      {"memory/memory.usage_in_bytes", "4096\n"}}},
    {"no limit", "0::/\n", 0, 0, {{"memory.max", "max\n"}, {"memory.current", "1048576\n"}}},
    {"no files", "0::/job\n4:memory:/job\n", 0, 0, {{NULL, NULL}}},
    {"a limit without what is used", "0::/\n", 0, 4096, {{"memory.max", "4096\n"}}},
    {"nonsense", "0::\n:\nnemory:/\n4:memoryless:/\n", 0, 0, {{"memory.max", "-7\n"}}},
    {"in no group", "", 0, 0, {{"memory.max", "4096\n"}, {"memory.current", "0\n"}}},
};

static int
look_in_groups(void *argument)
{
    const case_of_groups *one = argument;
    const char *limit = NULL;
    if (!make_groups(one->member, one->files)) {
        return CANNOT;
    }
    uint64_t allowed = 0;
    uint64_t room = svi_os_memory_free(&limit, &allowed);
    EQ(allowed, one->allowed != 0 ? one->allowed : UINT64_MAX);
    if (one->room != 0) {
        EQ(room, one->room);
        HAS(limit, "control group");
    } else {
        CHECK(room > 64 * MIB);
        HAS(limit, "machine");
    }
    return 0;
}

/* false: not permitted here, and said so. */
static bool
in_private_mounts(int (*body)(void *argument), const void *argument)
{
    int status = world_wait(world_fork(body, (void *)(uintptr_t)argument), WORLD_WAIT_MS);
    (void)unlink(world_path("draft", ""));
    if (status == CANNOT) {
        tap_skip("laying files over the kernel's needs CAP_SYS_ADMIN or user namespaces");
        return false;
    }
    return EQ(status, 0);
}

static void
limits_of_control_groups_are_found(void)
{
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tap_context("%s", cases[i].what);
        if (!in_private_mounts(look_in_groups, &cases[i])) {
            return;
        }
    }
}

static int
look_at_a_strange_meminfo(void *argument)
{
    const char *limit = NULL;
    if (!world_private_mounts() || !lay_over("/proc/self/cgroup", "") ||
        !lay_over("/proc/meminfo", argument)) {
        return CANNOT;
    }
    uint64_t allowed = 0;
    EQ(svi_os_memory_free(&limit, &allowed), UINT64_MAX);
    EQ(allowed, UINT64_MAX);
    HAS(limit, "machine");
    return 0;
}

static void
a_machine_that_does_not_say_has_no_limit(void)
{
    static const char *const texts[] = {"", "MemTotal: 1 kB\nMemAvailable: 1 kB\n",
                                        "MemTotal: 1 kB\nSwapFree: 1 kB\n"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        if (!in_private_mounts(look_at_a_strange_meminfo, texts[i])) {
            return;
        }
    }
}

/* ---- what comes of it ---------------------------------------------------------------------- */

/* Room for 16 MiB: one segment fits, one does not, is refused before any memory is taken. */
static void
create_within_16_mib(const char *where)
{
    sv_options options = world_options();
    sv_error err = {.message = ""};
    options.slot_count = 32;
    options.chunk_size = 1 << 20;
    EQ(world_try_open("wide", &options, SV_OPEN_CREATE, &err), SV_ESYS);
    EQ(err.sys_errno, ENOSPC);
    HAS(err.message, where);
    CHECK(!world_exists("wide", ""));
    options.slot_count = 2;
    sv_segment *segment = world_open("narrow", &options, SV_OPEN_CREATE);
    EQ(world_append(segment, 1), 0);
    world_audit(segment, 0, 0);
    world_drop(segment);
}

static int
create_in_made_groups(void *argument)
{
    static const group_file files[] = {{"memory.max", "67108864\n"},
                                       {"memory.current", "50331648\n"},
                                       {NULL, NULL}};
    (void)argument;
    if (!make_groups("0::/\n", files)) {
        return CANNOT;
    }
    create_within_16_mib("control group's (container's) memory");
    return 0;
}

static void
a_segment_larger_than_the_groups_room_is_refused(void)
{
    (void)in_private_mounts(create_in_made_groups, NULL);
}

/* ---- a real group -------------------------------------------------------------------------- */

static char group[600];

/* Make a group with a limit of 24 MiB; of version 2 or 1, whichever manages memory here. */
static bool
make_real_group(void)
{
    static const char *const roots[][2] = {{"/sys/fs/cgroup", "memory.max"},
                                           {"/sys/fs/cgroup/memory", "memory.limit_in_bytes"}};
    char path[700];
    for (size_t i = 0; i < 2; i++) {
        (void)snprintf(group, sizeof group, "%s/svtest-%ld", roots[i][0], (long)getpid());
        if (mkdir(group, 0755) != 0) {
            continue;
        }
        (void)snprintf(path, sizeof path, "%s/%s", group, roots[i][1]);
        if (access(path, F_OK) == 0 && world_write_text(path, "25165824")) {
            return true;
        }
        (void)rmdir(group);
    }
    return false;
}

static int
create_in_the_real_group(void *argument)
{
    char path[700];
    const char *limit = NULL;
    (void)argument;
    (void)snprintf(path, sizeof path, "%s/cgroup.procs", group);
    if (!world_write_text(path, "0")) {
        return CANNOT;
    }
    uint64_t allowed = 0;
    uint64_t room = svi_os_memory_free(&limit, &allowed);
    EQ(allowed, 24 * MIB);
    CHECK(room > 0 && room <= 24 * MIB);
    HAS(limit, "control group");
    create_within_16_mib("control group's (container's) memory");
    return 0;
}

/* Killed for want of memory is what the limit would be without the look at it. */
static void
in_a_real_group_nobody_is_killed(void)
{
    if (WORLD_SANITIZED) {
        tap_skip("a sanitizer needs more memory than the group has");
        return;
    }
    if (!make_real_group()) {
        tap_skip("no control group with a memory limit can be made here");
        return;
    }
    int status = world_wait(world_fork(create_in_the_real_group, NULL), WORLD_WAIT_MS);
    for (int i = 0; i < WORLD_WAIT_MS && rmdir(group) != 0; i++) {
        svi_os_sleep_ns(1000000); /* until the kernel has taken the process out */
    }
    CHECK(access(group, F_OK) != 0);
    if (status == CANNOT) {
        tap_skip("this process cannot move to a control group of its own");
    } else {
        EQ(status, 0);
    }
}

int
main(void)
{
    world_begin(50);
    RUN(limits_of_control_groups_are_found);
    RUN(a_machine_that_does_not_say_has_no_limit);
    RUN(a_segment_larger_than_the_groups_room_is_refused);
    RUN(in_a_real_group_nobody_is_killed);
    return world_end();
}
