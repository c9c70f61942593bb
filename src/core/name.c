/* Names of segments and paths of their files. A name is used exactly as given, or refused. */
#include "name.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "error.h"
#include "os.h"

static int
name_ends_with(const char *name, size_t length, const char *suffix)
{
    size_t suffix_length = strlen(suffix);
    return length >= suffix_length && strcmp(name + length - suffix_length, suffix) == 0;
}

int
sv_name_check(const char *name, sv_error *err)
{
    static const char operation[] = "check name";
    if (name == NULL || name[0] == '\0') {
        return svi_fail(err, SV_EINVAL, 0, operation, "a segment name must not be empty");
    }
    size_t length = strlen(name);
    if (length > SV_MAX_NAME_BYTES) {
        return svi_fail(err, SV_EINVAL, 0, operation,
                        "a segment name has at most %d bytes, this one has %zu: %.40s...",
                        SV_MAX_NAME_BYTES, length, name);
    }
    if (strchr(name, '/') != NULL) {
        return svi_fail(
            err, SV_EINVAL, 0, operation,
            "a segment name must not contain '/', found '%s'; choose the directory with "
            "SHAREDVECTOR_SHM_DIR",
            name);
    }
    if (name[0] == '.') {
        return svi_fail(err, SV_EINVAL, 0, operation,
                        "a segment name must not begin with a dot, found '%s'", name);
    }
    if (name_ends_with(name, length, ".lock") || name_ends_with(name, length, ".ready")) {
        return svi_fail(err, SV_EINVAL, 0, operation,
                        "'%s' would be a side file of another pool; a segment name must not end in "
                        ".lock or .ready",
                        name);
    }
    return 0;
}

static int
name_directory(const char *given, const char *variable, char out[SVI_DIRECTORY_BYTES],
               sv_error *err)
{
    const char *directory = given;
    if (directory == NULL || directory[0] == '\0') {
        directory = getenv(variable);
    }
    if (directory == NULL || directory[0] == '\0') {
        directory = "/dev/shm";
    }
    size_t length = strlen(directory);
    while (length > 1 && directory[length - 1] == '/') {
        length--;
    }
    /* Absolute from here on: what is removed at the end must not depend on where the program went. */
    char here[SVI_DIRECTORY_BYTES] = "";
    size_t start = 0;
    if (directory[0] != '/' && directory != given) {
        return svi_fail(
            err, SV_EINVAL, 0, "check directory",
            "%s is '%s', another place for each working directory; give an absolute path", variable,
            directory);
    }
    if (directory[0] != '/') {
        if (getcwd(here, sizeof here - 1) == NULL) {
            return svi_fail(err, SV_EINVAL, errno, "check directory",
                            "'%s' (%s) is relative, and the working directory cannot be told; give "
                            "an absolute path",
                            directory, variable);
        }
        start = strlen(here);
        here[start++] = '/';
    }
    if (start + length >= SVI_DIRECTORY_BYTES) {
        return svi_fail(err, SV_EINVAL, 0, "check directory",
                        "the absolute path of a directory has at most %d bytes, found %zu (%s)",
                        SVI_DIRECTORY_BYTES - 1, start + length, variable);
    }
    memcpy(out, here, start);
    memcpy(out + start, directory, length);
    out[start + length] = '\0';
    return 0;
}

int
svi_shm_directory(const char *directory, char out[SVI_DIRECTORY_BYTES], sv_error *err)
{
    return name_directory(directory, "SHAREDVECTOR_SHM_DIR", out, err);
}

int
svi_lock_directory(const char *lock_dir, char out[SVI_DIRECTORY_BYTES], sv_error *err)
{
    return name_directory(lock_dir, "SHAREDVECTOR_LOCK_DIR", out, err);
}

void
svi_path(char out[SVI_PATH_BYTES], const char *directory, const char *prefix, const char *name,
         const char *suffix)
{
    (void)snprintf(out, SVI_PATH_BYTES, "%s/%s%s%s", directory, prefix, name, suffix);
}

int
svi_generation_draw(char out[SV_GENERATION_BYTES], sv_error *err)
{
    unsigned char bytes[16];
    int status = svi_os_random(bytes, sizeof bytes);
    if (status != 0) {
        return svi_fail(err, SV_ESYS, -status, "draw generation", "cannot read random bytes");
    }
    for (size_t i = 0; i < sizeof bytes; i++) {
        (void)snprintf(out + 2 * i, 3, "%02x", bytes[i]);
    }
    return 0;
}

int
svi_generation_check(const char *generation, sv_error *err)
{
    size_t length = strlen(generation);
    if (length == 0 || length >= SV_GENERATION_BYTES) {
        return svi_fail(err, SV_EINVAL, 0, "check generation",
                        "a generation has 1 to %d characters, found %zu", SV_GENERATION_BYTES - 1,
                        length);
    }
    for (size_t i = 0; i < length; i++) {
        char c = generation[i];
        if (c <= ' ' || c > '~' || c == '"' || c == '\\') {
            return svi_fail(err, SV_EINVAL, 0, "check generation",
                            "a generation is printable ASCII without blanks, quotes and "
                            "backslashes; found byte %d at %zu",
                            (unsigned char)c, i);
        }
    }
    return 0;
}
