/*
 * sharedvector: look at the pools and blocks of this node and mend them, without Python.
 *
 *     sharedvector list              every segment, its size, owner and readers
 *     sharedvector info NAME         settings, counters, and who is attached
 *     sharedvector recover NAME      give back what dead processes held
 *     sharedvector check NAME        check the segment's invariants
 *     sharedvector remove NAME...    unlink names that no living owner has; those attached keep their
 *                                    data
 *     sharedvector sweep [--prefix PREFIX] [--dry-run]
 *                                    remove what dead makers and owners left
 *
 * `python -m sharedvector` has diagnostics and a benchmark besides.
 *
 * Exit status: 0 done, 1 it failed, 64 wrong call (2 is a pool that has an owner, in the
 * commands that own pools).
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

#include "sharedvector/sharedvector.h"

static int
command_fail(const sv_error *err)
{
    (void)fprintf(stderr, "sharedvector: %s: %s\n", err->operation, err->message);
    return 1;
}

static double
mebibytes(uint64_t bytes)
{
    return (double)bytes / 1048576.0;
}

static const char *
owner_word(uint32_t owned, uint32_t live)
{
    return !owned ? "none" : live ? "alive" : "dead: an orphan";
}

static int
print_item(const sv_listed *item, void *context)
{
    (void)context;
    printf("%-32s %10.1f MiB  uid %-6u  %s %-16s %s\n", item->name, mebibytes(item->bytes),
           item->uid, item->block ? "block, maker" : "owner",
           owner_word(item->owned, item->owner_live),
           item->attached ? "in use" : "nobody attached");
    return 0;
}

static int
command_list(void)
{
    sv_error err;
    return sv_list(NULL, print_item, NULL, &err) == 0 ? 0 : command_fail(&err);
}

/* Permission bits in octal, with or without Python's 0o; 0 when the text is something else. */
static uint32_t
read_mode(const char *text)
{
    char *end = NULL;
    if (strncmp(text, "0o", 2) == 0) {
        text += 2;
    }
    unsigned long mode = strtoul(text, &end, 8);
    return text[0] >= '0' && text[0] <= '7' && *end == '\0' && mode <= 0777 ? (uint32_t)mode : 0;
}

/* Attach; on failure NULL, with what to exit with. */
static sv_segment *
attach(const char *name, uint32_t mode, int *status)
{
    sv_options options;
    sv_error err;
    sv_segment *segment = NULL;
    sv_options_init(&options);
    options.mode = mode;
    if (sv_segment_open(name, &options, SV_OPEN_ATTACH, &segment, &err) != 0) {
        *status = command_fail(&err);
    }
    return segment;
}

/* Under the names that PoolStats has for them. */
static void
print_counters(sv_segment *segment)
{
    static const struct {
        const char *name;
        sv_counter counter;
    } told[] = {{"loads_direct", SV_COUNTER_DIRECT},
                {"loads_zarr", SV_COUNTER_ZARR},
                {"loads_tensorstore", SV_COUNTER_TENSORSTORE},
                {"missing_chunks", SV_COUNTER_MISSING},
                {"sources_loaded", SV_COUNTER_LOADS},
                {"sources_failed", SV_COUNTER_ERRORS},
                {"sources_empty", SV_COUNTER_EMPTY},
                {"restarts", SV_COUNTER_RESTARTS}};
    for (size_t i = 0; i < sizeof told / sizeof told[0]; i++) {
        printf("%-17s  %" PRIu64 "\n", told[i].name, sv_counter_add(segment, told[i].counter, 0));
    }
}

static void
print_pool(const sv_segment *segment, const sv_info *info)
{
    static const char *const reasons[] = {"", "its owner closed it", "its owner died",
                                          "its producer was given up"};
    sv_stats stats;
    sv_stats_get(segment, &stats);
    int retired = sv_retired_get(segment);
    printf("slots              %u of %u filled, %u spare buffers\n", sv_size(segment),
           info->slot_count, info->buffer_count - info->slot_count);
    printf("chunk size         %" PRIu64 " bytes\n", info->chunk_size);
    printf("owner              %s\n", owner_word(info->owned, (uint32_t)sv_owner_live(segment)));
    if (retired > 0 && retired < 4) {
        printf("refreshed          no: %s\n", reasons[retired]);
    }
    printf("replaced           %" PRIu64 " chunks, %.2f reads each, at most %" PRIu64 "\n",
           stats.replace_events,
           stats.replace_events == 0
               ? 0.0
               : (double)stats.reads_at_replace_total / (double)stats.replace_events,
           stats.reads_at_replace_max);
    printf("blocked            %" PRIu64 " replaces\n", stats.blocked_replaces);
}

static void
print_block(const sv_segment *segment, const sv_info *info)
{
    printf("block              %" PRIu64 " bytes%s\n", info->chunk_size,
           sv_size(segment) != 0 ? "" : ", not finished");
    printf("maker              %s\n", owner_word(info->owned, (uint32_t)sv_owner_live(segment)));
}

static void
print_facts(sv_segment *segment)
{
    sv_info info;
    if (sv_segment_info(segment, &info) != 0) {
        return;
    }
    printf("name               %s/%s\n", info.directory, info.name);
    printf("generation         %s\n", info.generation);
    printf("dtype              %s, %u bytes\n", info.dtype, info.itemsize);
    printf("memory             %.1f MiB, and %.1f KiB for each attached process\n",
           mebibytes(info.segment_bytes), (double)info.row_bytes / 1024.0);
    if (info.block) {
        print_block(segment, &info);
    } else {
        print_pool(segment, &info);
        print_counters(segment);
    }
}

static int
print_rows(const sv_segment *segment)
{
    uint32_t count = sv_rows(segment, NULL, 0);
    sv_row_info *rows = calloc(count == 0 ? 1 : count, sizeof *rows);
    if (rows == NULL) {
        (void)fprintf(stderr, "sharedvector: no memory\n");
        return 1;
    }
    uint32_t found = sv_rows(segment, rows, count);
    printf("attached\n");
    for (uint32_t i = 0; i < found && i < count; i++) {
        printf("  pid %-8d %-6s %8" PRIu64 " pins %4" PRIu64 " claims%s  %s\n", (int)rows[i].pid,
               rows[i].live ? "alive" : "dead", rows[i].pins, rows[i].claims,
               rows[i].owner ? "  owner" : "", rows[i].command);
    }
    free(rows);
    return 0;
}

static int
command_info(sv_segment *segment)
{
    print_facts(segment);
    return print_rows(segment);
}

static int
command_recover(sv_segment *segment)
{
    sv_error err;
    /* Attaching alone may have cleaned a dead row to take it, so a count would mislead. */
    if (sv_recover(segment, NULL, &err) != 0) {
        return command_fail(&err);
    }
    printf("what dead processes held has been given back\n");
    return 0;
}

static int
command_check(sv_segment *segment)
{
    sv_error err;
    if (sv_check(segment, &err) != 0) {
        return command_fail(&err);
    }
    printf("good\n");
    return 0;
}

static int
command_remove(int count, char **names)
{
    int status = 0;
    for (int i = 0; i < count; i++) {
        sv_error err;
        if (sv_pool_remove(names[i], NULL, NULL, &err) != 0) {
            status = command_fail(&err);
        }
    }
    return status;
}

typedef struct sweeping {
    const char *word;
    uint64_t count;
    uint64_t bytes;
} sweeping;

static int
print_swept(const sv_listed *item, void *context)
{
    sweeping *so_far = context;
    so_far->count++;
    so_far->bytes += item->bytes;
    printf("%s  %-5s  %10.1f MiB  %s\n", so_far->word, item->block ? "block" : "pool",
           mebibytes(item->bytes), item->name);
    return 0;
}

/* -1: a wrong call. */
static int
command_sweep(int count, char **words)
{
    const char *prefix = NULL;
    int dry_run = 0;
    for (int i = 0; i < count; i++) {
        if (strcmp(words[i], "--dry-run") == 0) {
            dry_run = 1;
        } else if (strcmp(words[i], "--prefix") == 0 && i + 1 < count) {
            prefix = words[++i];
        } else {
            return -1;
        }
    }
    sv_error err;
    sweeping all = {.word = dry_run ? "would remove" : "removed", .count = 0, .bytes = 0};
    int status = sv_sweep(NULL, NULL, prefix, dry_run, print_swept, &all, &err);
    printf("%s %" PRIu64 " orphan%s, %.1f MiB\n", all.word, all.count, all.count == 1 ? "" : "s",
           mebibytes(all.bytes));
    return status == 0 ? 0 : command_fail(&err);
}

static void
usage(FILE *to)
{
    (void)fprintf(to, "usage: sharedvector list\n"
                      "       sharedvector info|recover|check NAME [--mode OCTAL]\n"
                      "       sharedvector remove NAME...\n"
                      "       sharedvector sweep [--prefix PREFIX] [--dry-run]\n"
                      "       sharedvector --version|--help\n");
}

int
main(int argc, char **argv)
{
    static const struct {
        const char *word;
        int (*run)(sv_segment *segment);
    } verbs[] = {{"info", command_info}, {"recover", command_recover}, {"check", command_check}};
    if (argc == 2 && strcmp(argv[1], "--version") == 0) {
        printf("sharedvector %s, segment format %d.%d\n", sv_version(), SV_FORMAT_MAJOR,
               SV_FORMAT_MINOR);
        return 0;
    }
    if (argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        usage(stdout);
        return 0;
    }
    if (argc == 2 && strcmp(argv[1], "list") == 0) {
        return command_list();
    }
    if (argc >= 3 && strcmp(argv[1], "remove") == 0) {
        return command_remove(argc - 2, argv + 2);
    }
    if (argc >= 2 && strcmp(argv[1], "sweep") == 0) {
        int status = command_sweep(argc - 2, argv + 2);
        if (status < 0) {
            usage(stderr);
            return EX_USAGE;
        }
        return status;
    }
    uint32_t mode = argc == 3 ? 0600 : 0;
    if (argc == 5 && strcmp(argv[3], "--mode") == 0) {
        mode = read_mode(argv[4]);
    }
    for (size_t i = 0; mode != 0 && i < sizeof verbs / sizeof verbs[0]; i++) {
        if (strcmp(argv[1], verbs[i].word) == 0) {
            int status = 0;
            sv_segment *segment = attach(argv[2], mode, &status);
            if (segment != NULL) {
                status = verbs[i].run(segment);
                (void)sv_segment_close(segment, NULL);
            }
            return status;
        }
    }
    usage(stderr);
    return EX_USAGE;
}
