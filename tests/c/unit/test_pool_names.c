/* Whose names they are: nobody touches a lock file, marker or segment that is somebody else's by now. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "faults.h"
#include "owner.h"
#include "segment.h"
#include "world.h"

typedef struct reign {
    sv_owner *owner;
    sv_segment *segment;
} reign;

static reign
begin_reign(const char *name, uint32_t mode)
{
    reign r = {NULL, NULL};
    sv_options options = world_options();
    sv_error err = {.message = ""};
    options.mode = mode;
    if (!EQ(sv_owner_acquire(name, NULL, NULL, &r.owner, &err), 0) ||
        !EQ(sv_pool_create(r.owner, &options, &r.segment, &err), 0) ||
        !EQ(world_append(r.segment, 1), 0) || !EQ(sv_ready_write(r.owner, &err), 0)) {
        printf("# %s\nBail out!\n", err.message);
        _exit(1);
    }
    return r;
}

static void
end_reign(reign r)
{
    sv_error err = {.message = ""};
    if (!EQ(sv_pool_close(r.owner, r.segment, &err), 0)) {
        tap_note("%s", err.message);
    }
}

static const char *const files[] = {"", ".lock", ".ready"};

static void
remove_files(const char *name)
{
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        EQ(unlink(world_path(name, files[i])), 0);
    }
}

static void
follow(const char *name, uint32_t mode)
{
    sv_segment *follower = NULL;
    sv_options options;
    sv_options_init(&options);
    options.mode = mode;
    EQ(sv_pool_attach(name, NULL, &options, 0, &follower, NULL), 0);
    EQ(world_stamp(follower, 0), 1);
    EQ(sv_segment_close(follower, NULL), 0);
}

static void
the_old_owner_leaves_the_new_one_alone(void)
{
    const char *name = world_name("new");
    sv_error err = {.message = ""};
    reign old = begin_reign(name, 0600);
    remove_files(name);
    reign new = begin_reign(name, 0600);
    EQ(sv_ready_write(old.owner, &err), SV_EBUSY);
    HAS(err.message, "owns the name by now");
    EQ(sv_ready_clear(old.owner, NULL), SV_EBUSY);
    EQ(sv_owner_held(old.owner), 0);
    EQ(sv_owner_held(new.owner), 1);
    follow(name, 0600);
    end_reign(old);
    EQ(world_files(), 3);
    EQ(sv_owner_probe(name, NULL, NULL, NULL, NULL), 1);
    follow(name, 0600);
    end_reign(new);
    EQ(world_files(), 0);
}

static void
each_file_alone_may_be_missing_at_the_end(void)
{
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        const char *name = world_name("alone");
        reign r = begin_reign(name, 0600);
        EQ(unlink(world_path(name, files[i])), 0);
        tap_context("without %s", files[i]);
        end_reign(r);
        EQ(world_files(), 0);
    }
}

static void
a_lost_lock_file_is_made_and_locked_anew(void)
{
    const char *name = world_name("anew");
    int32_t pid = 0;
    reign r = begin_reign(name, 0640);
    EQ(unlink(world_path(name, ".lock")), 0);
    EQ(sv_owner_probe(name, NULL, NULL, NULL, NULL), 0);
    EQ(sv_ready_write(r.owner, NULL), 0);
    EQ(sv_owner_probe(name, NULL, NULL, &pid, NULL), 1);
    EQ(pid, getpid());
    EQ(sv_owner_held(r.owner), 1);
    end_reign(r);
    EQ(world_files(), 0);
}

/* Its segment shows that the owner lives: nobody takes its marker or its name away. */
static void
whoever_finds_the_lock_free_sees_the_living_owner(void)
{
    const char *name = world_name("seen");
    char pid[32];
    sv_owner *other = NULL;
    sv_segment *segment = NULL;
    sv_options options = world_options();
    sv_error err = {.message = ""};
    reign r = begin_reign(name, 0600);
    EQ(unlink(world_path(name, ".lock")), 0);
    EQ(sv_owner_acquire(name, NULL, NULL, &other, NULL), 0);
    EQ(sv_pool_create(other, &options, &segment, &err), SV_EBUSY);
    (void)snprintf(pid, sizeof pid, "process %ld (", (long)getpid());
    HAS(err.message, pid);
    CHECK(segment == NULL);
    EQ(sv_pool_close(other, NULL, NULL), 0);
    CHECK(world_exists(name, ".ready"));
    EQ(sv_ready_write(r.owner, NULL), 0);
    follow(name, 0600);
    end_reign(r);
    EQ(world_files(), 0);
}

static void
a_directory_that_was_removed_is_no_error_at_the_end(void)
{
    const char *name = world_name("gone");
    char directory[SVI_DIRECTORY_BYTES];
    sv_owner *owner = NULL;
    (void)snprintf(directory, sizeof directory, "%s/locks", world_directory());
    EQ(mkdir(directory, 0700), 0);
    EQ(sv_owner_acquire(name, directory, NULL, &owner, NULL), 0);
    char path[SVI_PATH_BYTES];
    svi_path(path, directory, "", name, ".lock");
    EQ(unlink(path), 0);
    EQ(rmdir(directory), 0);
    EQ(sv_ready_write(owner, NULL), SV_ESYS);
    EQ(sv_ready_clear(owner, NULL), 0);
    sv_owner_release(owner);
    EQ(world_files(), 0);
}

/* ---- permissions --------------------------------------------------------------------------- */

static mode_t
mode_of(const char *path)
{
    struct stat st = {.st_mode = 0};
    EQ(stat(path, &st), 0);
    return st.st_mode & 07777;
}

static void
the_side_files_have_the_mode_of_the_pool(void)
{
    const char *name = world_name("group");
    static const uint32_t modes[] = {0600, 0660, 0644};
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        reign r = begin_reign(name, modes[i]);
        for (size_t f = 0; f < sizeof files / sizeof files[0]; f++) {
            EQ(mode_of(world_path(name, files[f])), modes[i]);
        }
        end_reign(r);
    }
    EQ(world_files(), 0);
}

static int
reign_under_a_strict_umask(void *name)
{
    (void)umask(0777);
    reign r = begin_reign(name, 0640);
    for (size_t f = 0; f < sizeof files / sizeof files[0]; f++) {
        EQ(mode_of(world_path(name, files[f])), 0640);
    }
    follow(name, 0640);
    end_reign(r);
    return 0;
}

static void
the_umask_takes_nothing_away(void)
{
    world_child(reign_under_a_strict_umask, (void *)(uintptr_t)world_name("umask"));
    EQ(world_files(), 0);
}

/* As a killed process left it that had made the file under a strict umask. Root may open anything. */
static int
take_a_file_without_permissions(void *directory)
{
    const char *name = world_name("closed");
    char path[SVI_PATH_BYTES];
    sv_owner *owner = NULL;
    sv_error err = {.message = ""};
    if (geteuid() == 0) {
        EQ(setresuid(65534, 65534, 65534), 0);
    }
    svi_path(path, directory, "", name, ".lock");
    (void)close(open(path, O_RDWR | O_CREAT, 0));
    if (!EQ(sv_owner_acquire(name, directory, NULL, &owner, &err), 0)) {
        tap_note("%s", err.message);
    }
    EQ(mode_of(path), 0600);
    sv_owner_release(owner);
    return 0;
}

static void
a_file_that_its_user_may_not_open_is_taken(void)
{
    char directory[] = "/dev/shm/svtest-open-XXXXXX";
    REQUIRE(mkdtemp(directory) != NULL);
    EQ(chmod(directory, 01777), 0);
    world_child(take_a_file_without_permissions, directory);
    EQ(rmdir(directory), 0);
}

/* ---- what cannot be removed ---------------------------------------------------------------- */

static unsigned unlinks;

/* After those of the marker's draft and the marker. */
static int
the_segment_cannot_be_unlinked(const char *call)
{
    return strcmp(call, "unlink") == 0 && ++unlinks == 3 ? EPERM : 0;
}

static void
a_segment_that_cannot_be_removed_is_told(void)
{
    const char *name = world_name("stuck");
    sv_error err = {.message = ""};
    reign r = begin_reign(name, 0600);
    unlinks = 0;
    svi_fault_hook = the_segment_cannot_be_unlinked;
    EQ(sv_pool_close(r.owner, r.segment, &err), SV_ESYS);
    svi_fault_hook = NULL;
    HAS(err.message, world_path(name, ""));
    CHECK(world_exists(name, ""));
    EQ(sv_owner_held(r.owner), 1);
    end_reign(r);
    EQ(world_files(), 0);
}

static void
damage(const char *name, size_t offset, size_t bytes)
{
    unsigned char junk[SV_GENERATION_BYTES];
    int fd = open(world_path(name, ""), O_RDWR);
    memset(junk, 0xff, sizeof junk);
    EQ(pwrite(fd, junk, bytes, (off_t)offset), bytes);
    (void)close(fd);
}

static void
a_damaged_header_does_not_keep_the_name(void)
{
    static const struct {
        size_t offset;
        size_t bytes;
    } damages[] = {{0, 8},
                   {offsetof(svm_header, h_generation), 8},
                   {offsetof(svm_header, h_generation), SV_GENERATION_BYTES}};
    for (size_t i = 0; i < sizeof damages / sizeof damages[0]; i++) {
        const char *name = world_name("damaged");
        reign r = begin_reign(name, 0600);
        damage(name, damages[i].offset, damages[i].bytes);
        end_reign(r);
        EQ(world_files(), 0);
    }
}

static int
own_and_die(void *name)
{
    (void)begin_reign(name, 0600);
    return raise(SIGKILL);
}

static void
a_damaged_orphan_is_swept(void)
{
    const char *name = world_name("swept");
    EQ(world_wait(world_fork(own_and_die, (void *)(uintptr_t)name), WORLD_WAIT_MS), 128 + SIGKILL);
    damage(name, offsetof(svm_header, h_generation), SV_GENERATION_BYTES);
    EQ(sv_sweep(NULL, NULL, name, 0, NULL, NULL, NULL), 0);
    EQ(world_files(), 0);
}

/* ---- removing by name ---------------------------------------------------------------------- */

static void
a_living_pool_is_not_removed(void)
{
    const char *name = world_name("live");
    char pid[32];
    sv_error err = {.message = ""};
    reign r = begin_reign(name, 0600);
    EQ(sv_pool_remove(name, NULL, NULL, &err), SV_EBUSY);
    (void)snprintf(pid, sizeof pid, "process %ld (", (long)getpid());
    HAS(err.message, pid);
    HAS(err.message, "test_pool_names");
    HAS(err.message, "end that process");
    EQ(sv_pool_remove(name, NULL, "/dev/shm", NULL), SV_EBUSY); /* whatever the lock directory */
    EQ(world_files(), 3);
    follow(name, 0600);
    end_reign(r);
    sv_owner *owner = NULL; /* one that has made no segment yet */
    EQ(sv_owner_acquire(name, NULL, NULL, &owner, NULL), 0);
    EQ(sv_pool_remove(name, NULL, NULL, &err), SV_EBUSY);
    sv_owner_release(owner);
    EQ(world_files(), 0);
}

static void
what_nobody_owns_is_removed_whole(void)
{
    const char *name = world_name("dead");
    sv_error err = {.message = ""};
    EQ(world_wait(world_fork(own_and_die, (void *)(uintptr_t)name), WORLD_WAIT_MS), 128 + SIGKILL);
    EQ(world_files(), 3);
    EQ(sv_pool_remove(name, NULL, NULL, &err), 0);
    EQ(world_files(), 0);
    EQ(sv_pool_remove(name, NULL, NULL, &err), 0); /* a missing one */
    sv_segment *plain = world_segment(name, 1);
    EQ(sv_pool_remove(name, NULL, NULL, &err), 0);
    EQ(world_stamp(plain, 0), 1);
    EQ(sv_segment_close(plain, NULL), 0);
    world_junk(name, 'j', 5);
    EQ(sv_pool_remove(name, NULL, NULL, &err), 0);
    EQ(world_files(), 0);
    EQ(sv_pool_remove("a/b", NULL, NULL, &err), SV_EINVAL);
    EQ(sv_pool_remove(name, NULL, "/no/such/dir", &err), SV_ESYS);
    HAS(err.message, "/no/such/dir");
}

static void
one_name_is_looked_at(void)
{
    const char *name = world_name("look");
    sv_listed item = {.bytes = 7};
    sv_error err = {.message = ""};
    EQ(sv_look(name, NULL, &item, &err), SV_ENOENT);
    world_junk(name, 'j', 4096);
    EQ(sv_look(name, NULL, &item, &err), SV_EFORMAT);
    EQ(unlink(world_path(name, "")), 0);
    EQ(mkdir(world_path(name, ""), 0700), 0);
    EQ(sv_look(name, NULL, &item, &err), SV_EFORMAT);
    EQ(rmdir(world_path(name, "")), 0);
    EQ(item.bytes, 7);
    EQ(sv_look("", NULL, &item, &err), SV_EINVAL);
    reign r = begin_reign(name, 0600);
    EQ(sv_look(name, NULL, &item, &err), 0);
    EQ_STR(item.name, name);
    EQ_STR(item.generation, sv_owner_generation(r.owner));
    EQ(item.owner_live, 1);
    EQ(item.owner_pid, getpid());
    HAS(item.owner_command, "test_pool_names");
    end_reign(r);
}

int
main(void)
{
    world_begin(30);
    RUN(the_old_owner_leaves_the_new_one_alone);
    RUN(each_file_alone_may_be_missing_at_the_end);
    RUN(a_lost_lock_file_is_made_and_locked_anew);
    RUN(whoever_finds_the_lock_free_sees_the_living_owner);
    RUN(a_directory_that_was_removed_is_no_error_at_the_end);
    RUN(the_side_files_have_the_mode_of_the_pool);
    RUN(the_umask_takes_nothing_away);
    RUN(a_file_that_its_user_may_not_open_is_taken);
    RUN(a_segment_that_cannot_be_removed_is_told);
    RUN(a_damaged_header_does_not_keep_the_name);
    RUN(a_damaged_orphan_is_swept);
    RUN(a_living_pool_is_not_removed);
    RUN(what_nobody_owns_is_removed_whole);
    RUN(one_name_is_looked_at);
    return world_end();
}
