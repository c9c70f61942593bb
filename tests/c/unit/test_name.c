/* Names are used exactly as given, or refused with the reason. */
#include "name.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "world.h"

static void
good_names_are_taken(void)
{
    char longest[SV_MAX_NAME_BYTES + 1];
    memset(longest, 'n', SV_MAX_NAME_BYTES);
    longest[SV_MAX_NAME_BYTES] = '\0';
    const char *const names[] = {"a",     "run42", "with blank", "d\xc3\xa4tei", "x.lock.y",
                                 "ready", "a\nb",  "100%",       longest};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        sv_error err = {.code = 7};
        tap_context("name %zu", i);
        EQ(sv_name_check(names[i], &err), 0);
        EQ(err.code, 7); /* untouched on success */
    }
}

static void
bad_name(const char *name, const char *part)
{
    sv_error err = {.code = 0};
    EQ(sv_name_check(name, &err), SV_EINVAL);
    EQ(err.code, SV_EINVAL);
    EQ(err.sys_errno, 0);
    EQ_STR(err.operation, "check name");
    HAS(err.message, part);
    EQ(sv_name_check(name, NULL), SV_EINVAL);
}

static void
bad_names_are_refused_with_the_reason(void)
{
    char longer[SV_MAX_NAME_BYTES + 2];
    memset(longer, 'n', SV_MAX_NAME_BYTES + 1);
    longer[SV_MAX_NAME_BYTES + 1] = '\0';
    bad_name(NULL, "empty");
    bad_name("", "empty");
    bad_name("a/b", "'/'");
    bad_name("/a", "SHAREDVECTOR_SHM_DIR");
    bad_name(".hidden", "dot");
    bad_name("..", "dot");
    bad_name("pool.lock", ".lock");
    bad_name("pool.ready", "'pool.ready'");
    bad_name(longer, "240");
    bad_name(longer, "241");
}

static void
bad_names_are_refused_everywhere(void)
{
    sv_segment *segment = NULL;
    sv_owner *owner = NULL;
    char generation[SV_GENERATION_BYTES] = "same";
    int32_t pid = 5;
    EQ(sv_segment_open("a/b", NULL, SV_OPEN_CREATE, &segment, NULL), SV_EINVAL);
    EQ(sv_segment_remove("a/b", NULL, NULL), SV_EINVAL);
    EQ(sv_segment_remove_exact("a/b", NULL, 1, "g", NULL), SV_EINVAL);
    EQ(sv_owner_acquire("a/b", NULL, NULL, &owner, NULL), SV_EINVAL);
    EQ(sv_owner_adopt("a/b", NULL, 0, NULL, &owner, NULL), SV_EINVAL);
    EQ(sv_owner_probe("a/b", NULL, generation, &pid, NULL), SV_EINVAL);
    EQ(sv_ready_read("a/b", NULL, generation, NULL), SV_EINVAL);
    EQ(sv_pool_attach("a/b", NULL, NULL, 0, &segment, NULL), SV_EINVAL);
    CHECK(segment == NULL);
    CHECK(owner == NULL);
    EQ_STR(generation, "same");
    EQ(pid, 5);
}

static void
segment_with_the_longest_name_works(void)
{
    char name[SV_MAX_NAME_BYTES + 1];
    memset(name, 'x', SV_MAX_NAME_BYTES);
    name[SV_MAX_NAME_BYTES] = '\0';
    sv_segment *segment = world_segment(name, 1);
    sv_info info;
    EQ(sv_segment_info(segment, &info), 0);
    EQ_STR(info.name, name);
    CHECK(world_exists(name, ""));
    world_drop(segment);
}

static void
directories_come_from_the_call_the_environment_or_the_default(void)
{
    char out[SVI_DIRECTORY_BYTES];
    EQ(svi_shm_directory("/some/where", out, NULL), 0);
    EQ_STR(out, "/some/where");
    EQ(svi_shm_directory("/some/where///", out, NULL), 0);
    EQ_STR(out, "/some/where");
    EQ(svi_shm_directory("/", out, NULL), 0);
    EQ_STR(out, "/");
    EQ(svi_shm_directory(NULL, out, NULL), 0);
    EQ_STR(out, world_directory());
    EQ(svi_lock_directory("", out, NULL), 0);
    EQ_STR(out, world_directory());
    (void)setenv("SHAREDVECTOR_SHM_DIR", "", 1);
    (void)unsetenv("SHAREDVECTOR_LOCK_DIR");
    EQ(svi_shm_directory(NULL, out, NULL), 0);
    EQ_STR(out, "/dev/shm");
    EQ(svi_lock_directory(NULL, out, NULL), 0);
    EQ_STR(out, "/dev/shm");
    (void)setenv("SHAREDVECTOR_SHM_DIR", world_directory(), 1);
    (void)setenv("SHAREDVECTOR_LOCK_DIR", world_directory(), 1);
}

static void
relative_directories_become_absolute(void)
{
    char out[SVI_DIRECTORY_BYTES];
    char before[4096];
    char lost[SVI_DIRECTORY_BYTES];
    sv_error err = {.code = 0};
    (void)snprintf(lost, sizeof lost, "%s", world_path("lost", ""));
    REQUIRE(getcwd(before, sizeof before) != NULL && mkdir(lost, 0700) == 0);
    EQ(chdir(world_directory()), 0);
    EQ(svi_shm_directory("here/", out, &err), 0);
    EQ_STR(out, world_path("here", ""));
    EQ(setenv("SHAREDVECTOR_LOCK_DIR", "here", 1), 0);
    EQ(svi_lock_directory(NULL, out, &err), SV_EINVAL);
    HAS(err.message, "SHAREDVECTOR_LOCK_DIR is 'here'");
    EQ(setenv("SHAREDVECTOR_LOCK_DIR", world_directory(), 1), 0);
    EQ(chdir(lost), 0);
    EQ(rmdir(lost), 0);
    EQ(svi_shm_directory("here", out, &err), SV_EINVAL);
    HAS(err.message, "give an absolute path");
    EQ(chdir(before), 0);
}

static void
too_long_directories_are_refused(void)
{
    char given[SVI_DIRECTORY_BYTES + 1];
    char out[SVI_DIRECTORY_BYTES] = "same";
    sv_error err = {.code = 0};
    memset(given, 'd', sizeof given);
    given[0] = '/';
    given[SVI_DIRECTORY_BYTES] = '\0';
    EQ(svi_shm_directory(given, out, &err), SV_EINVAL);
    HAS(err.message, "511");
    HAS(err.message, "512");
    HAS(err.message, "SHAREDVECTOR_SHM_DIR");
    EQ_STR(out, "same");
    sv_owner *owner = NULL;
    EQ(sv_owner_acquire("pool", given, NULL, &owner, &err), SV_EINVAL);
    EQ(sv_list(given, NULL, NULL, &err), SV_EINVAL);
    given[SVI_DIRECTORY_BYTES - 1] = '\0';
    EQ(svi_shm_directory(given, out, &err), 0);
    EQ_STR(out, given);
}

static void
paths_are_put_together(void)
{
    char path[SVI_PATH_BYTES];
    svi_path(path, "/dev/shm", ".", "pool", ".create");
    EQ_STR(path, "/dev/shm/.pool.create");
}

static void
generations_are_drawn_and_checked(void)
{
    char first[SV_GENERATION_BYTES];
    char second[SV_GENERATION_BYTES];
    char longer[SV_GENERATION_BYTES + 1];
    sv_error err = {.code = 0};
    EQ(svi_generation_draw(first, NULL), 0);
    EQ(svi_generation_draw(second, NULL), 0);
    EQ(strlen(first), 32);
    EQ(strspn(first, "0123456789abcdef"), 32);
    CHECK(strcmp(first, second) != 0);
    EQ(svi_generation_check(first, NULL), 0);
    EQ(svi_generation_check("A-1_~!", NULL), 0);
    EQ(svi_generation_check("", &err), SV_EINVAL);
    HAS(err.message, "1 to 63");
    memset(longer, 'g', sizeof longer);
    longer[SV_GENERATION_BYTES] = '\0';
    EQ(svi_generation_check(longer, &err), SV_EINVAL);
    HAS(err.message, "found 64");
    longer[SV_GENERATION_BYTES - 1] = '\0';
    EQ(svi_generation_check(longer, NULL), 0);
    EQ(svi_generation_check("a b", &err), SV_EINVAL);
    HAS(err.message, "byte 32 at 1");
    EQ(svi_generation_check("a\"b", NULL), SV_EINVAL);
    EQ(svi_generation_check("a\\b", NULL), SV_EINVAL);
    EQ(svi_generation_check("\xc3\xa4", NULL), SV_EINVAL);
    EQ(svi_generation_check("a\n", NULL), SV_EINVAL);
}

int
main(void)
{
    world_begin(50);
    RUN(good_names_are_taken);
    RUN(bad_names_are_refused_with_the_reason);
    RUN(bad_names_are_refused_everywhere);
    RUN(segment_with_the_longest_name_works);
    RUN(directories_come_from_the_call_the_environment_or_the_default);
    RUN(relative_directories_become_absolute);
    RUN(too_long_directories_are_refused);
    RUN(paths_are_put_together);
    RUN(generations_are_drawn_and_checked);
    return world_end();
}
