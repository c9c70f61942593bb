/* How much memory there still is: what the machine can give, and the limits of the control groups
 * (containers, jobs) that this process is in. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "os.h"

#define MEMORY_UNLIMITED (UINT64_C(1) << 62) /* version 1 says a little less than 2^63 */
#define MEMORY_PATH_BYTES 4608               /* a mount point, the path of a group, a file in it */

/* A hierarchy of control groups, and its files. */
typedef struct memory_hierarchy {
    const char *controller; /* as /proc/self/cgroup lists it; version 2 lists none */
    const char *mount;
    const char *limit;
    const char *used;
    const char *active; /* lines of memory.stat */
    const char *inactive;
} memory_hierarchy;

static const memory_hierarchy memory_hierarchies[] = {
    {"", "/sys/fs/cgroup", "memory.max", "memory.current", "\nactive_file ", "\ninactive_file "},
    {"memory", "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
     "\ntotal_active_file ", "\ntotal_inactive_file "},
};

/* The number behind a key; `absent` if the text has no such key. */
static uint64_t
memory_number_behind(const char *text, const char *key, uint64_t absent)
{
    const char *found = strstr(text, key);
    return found == NULL ? absent : strtoull(found + strlen(key), NULL, 10);
}

/* UINT64_MAX: "max", or no such file. */
static uint64_t
memory_read_number(const char *directory, const char *file)
{
    char path[MEMORY_PATH_BYTES];
    char text[64];
    int length = snprintf(path, sizeof path, "%s/%s", directory, file);
    if (length >= (int)sizeof path || svi_os_read_text(path, text, sizeof text) <= 0 ||
        text[0] < '0' || text[0] > '9') {
        return UINT64_MAX;
    }
    return strtoull(text, NULL, 10);
}

/* Page cache of files that the kernel can drop counts as free. */
static uint64_t
memory_reclaimable(const memory_hierarchy *h, const char *directory)
{
    char path[MEMORY_PATH_BYTES];
    char text[8192];
    int length = snprintf(path, sizeof path, "%s/memory.stat", directory);
    if (length >= (int)sizeof path || svi_os_read_text(path, text, sizeof text) <= 0) {
        return 0;
    }
    return memory_number_behind(text, h->active, 0) + memory_number_behind(text, h->inactive, 0);
}

/* Lower both to those of one group, where it has a limit. */
static void
memory_of_group(const memory_hierarchy *h, const char *directory, uint64_t *room, uint64_t *allowed)
{
    uint64_t limit = memory_read_number(directory, h->limit);
    if (limit >= MEMORY_UNLIMITED) {
        return;
    }
    *allowed = limit < *allowed ? limit : *allowed;
    uint64_t used = memory_read_number(directory, h->used);
    if (used == UINT64_MAX) {
        return;
    }
    uint64_t rest = (limit > used ? limit - used : 0) + memory_reclaimable(h, directory);
    rest = rest < limit ? rest : limit;
    *room = rest < *room ? rest : *room;
}

/* Is the controller in a list of them? "a,b,c" ends at a colon. */
static bool
memory_is_listed(const char *list, const char *controller)
{
    size_t wanted = strlen(controller);
    for (;;) {
        size_t length = strcspn(list, ",:\n");
        if (length == wanted && memcmp(list, controller, wanted) == 0) {
            return true;
        }
        if (list[length] != ',') {
            return false;
        }
        list += length + 1;
    }
}

/* The path of this process's group in the hierarchy, from a text with lines
 * "number:controllers:path"; it is cut out of the text. NULL: it is in none. */
static char *
memory_find_group(char *text, const char *controller)
{
    for (char *line = text; line != NULL; line = strchr(line, '\n')) {
        line += *line == '\n';
        char *list = strchr(line, ':');
        char *path = list == NULL ? NULL : strchr(list + 1, ':');
        if (path != NULL && memory_is_listed(list + 1, controller)) {
            path++;
            path[strcspn(path, "\n")] = '\0';
            return path[0] == '/' ? path : NULL;
        }
    }
    return NULL;
}

/* The limit of any ancestor binds as well. In a container the path may be that of the host, of which
 * only the end of the walk, the root of the mount, is to be seen: the container's own group. */
static void
memory_of_groups(const memory_hierarchy *h, uint64_t *room, uint64_t *allowed)
{
    char text[4096];
    char directory[MEMORY_PATH_BYTES];
    if (svi_os_read_text("/proc/self/cgroup", text, sizeof text) <= 0) {
        return;
    }
    char *group = memory_find_group(text, h->controller);
    if (group == NULL) {
        return;
    }
    char *end = group + (group[1] == '\0' ? 0 : strlen(group)); /* the root's path is "/" */
    while (end != NULL) {
        *end = '\0';
        (void)snprintf(directory, sizeof directory, "%s%s", h->mount, group);
        memory_of_group(h, directory, room, allowed);
        end = strrchr(group, '/');
    }
}

/* What the machine can still give without killing somebody, swap included. */
static uint64_t
memory_of_machine(void)
{
    char text[4096];
    if (svi_os_read_text("/proc/meminfo", text, sizeof text) <= 0) {
        return UINT64_MAX;
    }
    uint64_t available = memory_number_behind(text, "\nMemAvailable:", UINT64_MAX);
    uint64_t swap = memory_number_behind(text, "\nSwapFree:", UINT64_MAX);
    return available == UINT64_MAX || swap == UINT64_MAX ? UINT64_MAX : (available + swap) * 1024;
}

uint64_t
svi_os_memory_free(const char **limit, uint64_t *group_limit)
{
    uint64_t machine = memory_of_machine();
    uint64_t room = machine;
    uint64_t allowed = UINT64_MAX;
    for (size_t i = 0; i < sizeof memory_hierarchies / sizeof memory_hierarchies[0]; i++) {
        memory_of_groups(&memory_hierarchies[i], &room, &allowed);
    }
    if (limit != NULL) {
        *limit =
            room < machine ? "this control group's (container's) memory" : "this machine's memory";
    }
    if (group_limit != NULL) {
        *group_limit = allowed;
    }
    return room;
}
