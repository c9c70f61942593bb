/*
 * Hostile bytes where a segment should be: attach to them, or attach to a good segment and then put
 * them under it, and use every verb. Codes of errors are fine; a crash, a hang, a read or a view
 * outside of the segment is not.
 *
 * An input is the content of the file. Three ways to run it:
 *   fuzz_attach DIRECTORY    all inputs of the directory, then mutations of them for FUZZ_SECONDS
 *                            (1), from the printed SEED; every 16th runs in a storm: a thread
 *                            writes into the segment meanwhile
 *   fuzz_attach FILE...      these inputs only
 *   with FUZZ_ENGINE defined it is a target for libFuzzer, and for AFL++ with its driver of that
 * `fuzz_attach --seeds DIRECTORY` writes the corpus.
 */
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "batch.h"
#include "os.h"
#include "row.h"
#include "world.h"

#define INPUT_MAX 65536u
#define CHUNK 64u

int LLVMFuzzerInitialize(int *count, char ***arguments);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static unsigned attached; /* inputs that were taken for a segment */

static void
must(bool held, const char *what)
{
    if (!held) {
        printf("# broken: %s\n", what);
        (void)fflush(stdout);
        abort();
    }
}

/* Success or any error. */
static void
any_code(int status)
{
    must(status <= 0 && strlen(sv_error_text(status)) != 0, "a code of the table");
}

/* Not optimised away: each byte is really read. */
static uint64_t
look_at(const void *data, uint64_t bytes)
{
    static uint64_t seen;
    const unsigned char *byte = data;
    for (uint64_t i = 0; i < bytes; i++) {
        seen += byte[i];
    }
    return seen;
}

/* ---- every verb ---------------------------------------------------------------------------- */

static sv_options
small_options(void)
{
    sv_options options = world_options();
    options.chunk_size = CHUNK;
    options.slot_count = 3;
    options.spare_buffers = 2;
    options.max_rows = 3;
    options.stats_capacity = 4;
    options.timeout_ns = 1000000;
    options.generation = "seed";
    return options;
}

static sv_options
block_options(void)
{
    sv_options options = small_options();
    options.block = options.owned = options.slot_count = options.max_arrays = 1;
    return options;
}

static void
inside(const svi_mapping *m, const void *data, uint64_t bytes)
{
    const unsigned char *begin = data;
    const unsigned char *payload = m->ro + m->g.off_payload;
    const unsigned char *end = m->ro + m->g.segment_bytes;
    must(begin >= payload && begin <= end && bytes <= (uint64_t)(end - begin), "a view inside");
    must(bytes <= m->g.chunk_size, "a view no larger than a chunk");
    (void)look_at(data, bytes);
}

static void
read_slot(sv_segment *segment, uint32_t slot, bool quiet)
{
    sv_view view;
    if ((quiet ? sv_pin_quiet(segment, slot, &view) : sv_pin(segment, slot, &view)) != 0) {
        return;
    }
    const svi_mapping *m = svi_mapping_of(segment);
    double meta[SV_MAX_META];
    sv_chunk_info info;
    inside(m, view.data, view.size_bytes);
    must(view.ndim <= SV_MAX_NDIM && view.array_count <= SV_MAX_ARRAYS, "counts in range");
    for (uint32_t i = 0; i <= SV_MAX_ARRAYS; i++) {
        sv_array array;
        if (sv_view_array(&view, i, &array) == 0) {
            inside(m, array.data, array.size_bytes);
            must(strlen(array.name) < sizeof array.name, "a name with an end");
            must(strlen(array.dtype) < sizeof array.dtype, "a dtype with an end");
        }
    }
    must(sv_view_meta(&view, meta) <= SV_MAX_META, "meta in range");
    sv_view_info(&view, &info);
    sv_unpin(&view);
}

static void
read_all(sv_segment *segment)
{
    uint64_t numbers[3][8];
    uint32_t samples[8];
    sv_slot_stats slot_stats;
    sv_row_info rows[4];
    sv_stats stats;
    sv_info info;
    must(sv_segment_info(segment, &info) == 0, "facts of an open handle");
    uint32_t size = sv_size(segment);
    must(size <= info.slot_count, "size in range");
    for (uint32_t slot = 0; slot < size + 2 && slot < 64; slot++) {
        const uint32_t pair[] = {slot, 0};
        read_slot(segment, slot, false);
        read_slot(segment, slot, true);
        any_code(sv_slot_stats_get(segment, slot, &slot_stats));
        unsigned char *out = world_memory(2 * info.chunk_size);
        if (batch_gather(segment, pair, 2, out, info.chunk_size, 1, NULL) == 0) {
            (void)look_at(out, 1);
        }
        free(out);
    }
    must(sv_slot_stats_all(segment, 8, numbers[0], numbers[1], numbers[2]) <= 8, "slots counted");
    sv_stats_get(segment, &stats);
    must(stats.sample_count <= stats.sample_capacity, "samples in range");
    must(sv_stats_samples(segment, samples, 8) <= 8, "samples that fit");
    uint32_t found = sv_rows(segment, rows, 4);
    for (uint32_t i = 0; i < found && i < 4; i++) {
        must(rows[i].row < info.max_rows, "row in range");
        must(strlen(rows[i].command) < sizeof rows[i].command, "a command with an end");
    }
    (void)sv_handle_count(segment);
    (void)sv_owner_live(segment);
    must(sv_retired_get(segment) <= SV_RETIRED_PRODUCER, "a reason that there is");
    (void)sv_counter_add(segment, SV_COUNTER_LOADS, 0);
    sv_error err = {.message = ""};
    if (sv_check(segment, &err) != 0) {
        must(err.message[0] != '\0', "a reason for a failed check");
    }
}

static void
write_all(sv_segment *segment)
{
    uint64_t words[4] = {1, 2, 3, 4};
    const sv_array arrays[] =
        {{.data = words, .size_bytes = 32, .itemsize = 8, .ndim = 2, .shape = {2, 2}, .name = "a"},
         {.data = words, .size_bytes = 0, .itemsize = 8, .ndim = 1, .shape = {0}, .name = "b"}};
    const double meta[] = {1.5};
    const sv_chunk chunk = {.arrays = arrays, .array_count = 2, .meta = meta, .meta_count = 1};
    sv_reservation held[2];
    uint32_t slot = 0;
    int unread = 0;
    any_code(sv_append(segment, &chunk, &slot, NULL));
    for (uint32_t i = 0; i < 4; i++) {
        any_code(sv_replace(segment, i, &chunk, 0, NULL));
        if (sv_reserve(segment, 0, &held[0], NULL) == 0) {
            memset(held[0].data, 0xab, held[0].capacity_bytes);
            if (sv_fill(&held[0], &chunk, NULL) != 0 || sv_publish(&held[0], i, NULL) != 0) {
                sv_cancel(&held[0]);
            }
        }
        read_slot(segment, i, false);
    }
    bool first = sv_reserve(segment, 0, &held[0], NULL) == 0;
    bool second = sv_reserve(segment, 0, &held[1], NULL) == 0;
    must(!first || !second || held[0].data != held[1].data, "two reservations are two buffers");
    if (first) {
        sv_cancel(&held[0]);
    }
    if (second) {
        sv_cancel(&held[1]);
    }
    any_code(sv_refresh_next(segment, &slot, &unread));
    sv_count_blocked(segment, 1);
    (void)sv_counter_add(segment, SV_COUNTER_ERRORS, 2);
    (void)sv_recover(segment, NULL, NULL);
    (void)sv_stats_reset(segment, NULL);
    sv_retire(segment, SV_RETIRED_PRODUCER);
}

/* Pins that the bytes had put into our row would keep the map alive for ever. */
static void
close_surely(sv_segment *segment)
{
    const svi_mapping *m = svi_mapping_of(segment);
    for (uint32_t b = 0; b < m->g.buffer_count; b++) {
        (void)svi_and_seq(&m->hold.map->r_cells[b], ~SVI_PINS_MASK);
    }
    must(sv_segment_close(segment, NULL) == 0, "a handle without reservations closes");
}

/* What blocks alone can: to others it is an error. */
static void
use_as_block(sv_segment *segment, int removed)
{
    sv_view view;
    void *data = NULL;
    void *base = NULL;
    size_t bytes = 0;
    const svi_mapping *m = svi_mapping_of(segment);
    bool block = m->g.kind == SVI_KIND_BLOCK;
    any_code(sv_block_remove(segment, NULL) == removed ? 0 : 1);
    int mapped = sv_block_map_private(segment, &base, &bytes, NULL);
    must((mapped == 0) == block, "blocks are mapped privately, and nothing else");
    if (mapped == 0) {
        memset(base, 0xcd, bytes);
        (void)munmap(base, bytes);
    }
    if (sv_block_pin(segment, 1, &view, &data, NULL) == 0) {
        must(block, "a pinned block");
        inside(m, view.data, view.size_bytes);
        sv_block_prefault(&view, 1, bytes / 2, UINT64_MAX);
        sv_block_prefault(&view, 0, 1, view.size_bytes);
        memset(data, 0xef, view.size_bytes);
        sv_unpin(&view);
    }
}

static void
use(sv_segment *segment)
{
    bool block = svi_mapping_of(segment)->g.kind == SVI_KIND_BLOCK;
    read_all(segment);
    use_as_block(segment, block ? SV_EFORKED : SV_EINVAL);
    write_all(segment);
    read_all(segment);
    close_surely(segment);
}

/* ---- inputs -------------------------------------------------------------------------------- */

static void
write_file(const char *path, const void *data, size_t size)
{
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    must(fd >= 0 && svi_os_pwrite(fd, data, size, 0) == 0, "an input on disk");
    (void)close(fd);
}

static int
note_listed(const sv_listed *item, void *context)
{
    must(strlen(item->generation) < sizeof item->generation, "a generation with an end");
    ++*(unsigned *)context;
    return 0;
}

/* The file as it is: refused with a reason, or used. */
static void
attach_to(const uint8_t *data, size_t size)
{
    char hostile[64]; /* so that a sweeper may take it for a block */
    (void)snprintf(hostile, sizeof hostile, "sv-%u-hostile-0123456789abcdef", (unsigned)geteuid());
    sv_options options = small_options();
    sv_segment *segment = NULL;
    sv_error err = {.message = ""};
    unsigned listed = 0;
    options.dtype = NULL;
    options.itemsize = 0;
    options.generation = NULL;
    write_file(world_path(hostile, ""), data, size);
    (void)sv_list(NULL, note_listed, &listed, NULL);
    int status = sv_segment_open(hostile, &options, SV_OPEN_ATTACH, &segment, &err);
    if (status == 0) {
        attached++;
        use(segment);
    } else {
        must(status < 0 && err.code == status && err.message[0] != '\0', "a code and a reason");
    }
    (void)sv_segment_remove_exact(hostile, NULL, 1, "seed", NULL);
    any_code(sv_sweep(NULL, NULL, NULL, 0, note_listed, &listed, NULL) > 0 ? 0 : -1);
    must(sv_segment_remove(hostile, NULL, NULL) == 0, "a file that can be removed");
}

static svi_word storm_ends;

static void *
storm(void *map)
{
    svi_word *words = map;
    uint64_t seed = svi_os_monotonic_ns();
    while (svi_load_relaxed(&storm_ends) == 0) {
        uint64_t random = world_random(&seed);
        /* Not the first page: it is read once, at attach. Its words from 512 on are used. */
        uint64_t at = 64 + random % (INPUT_MAX / 4 / 8 - 64);
        svi_store_relaxed(&words[at], (random >> 32) % 5 == 0 ? random : random >> 61);
    }
    return NULL;
}

/* Does the input say that it is a block? */
static bool
says_block(const uint8_t *data, size_t size)
{
    uint32_t kind = SVI_KIND_VECTOR;
    if (size >= sizeof(svm_header)) {
        memcpy(&kind, data + offsetof(svm_header, h_kind), sizeof kind);
    }
    return kind == SVI_KIND_BLOCK;
}

/* A good segment that somebody overwrites after we attached (or made the block), once or all the
 * time. */
static void
overwrite(const uint8_t *data, size_t size, bool stormy)
{
    bool block = says_block(data, size);
    sv_options options = block ? block_options() : small_options();
    sv_segment *segment =
        world_open("victim", &options, block ? SV_OPEN_EXCLUSIVE : SV_OPEN_REPLACE);
    sv_info info;
    struct stat st;
    pthread_t thread;
    void *map = MAP_FAILED;
    must(sv_segment_info(segment, &info) == 0, "facts");
    int fd = open(world_path("victim", ""), O_RDWR | O_CLOEXEC);
    must(fd >= 0 && fstat(fd, &st) == 0, "the victim's file");
    size_t span = size < (size_t)st.st_size ? size : (size_t)st.st_size;
    if (stormy && (size_t)st.st_size >= INPUT_MAX / 4) {
        map = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        svi_store_relaxed(&storm_ends, 0);
        must(map != MAP_FAILED && pthread_create(&thread, NULL, storm, map) == 0, "a storm");
    }
    must(svi_os_pwrite(fd, data, span, 0) == 0, "overwritten");
    read_all(segment);
    write_all(segment);
    read_all(segment);
    if (block) {
        use_as_block(segment, 0);
        read_all(segment);
    }
    if (map != MAP_FAILED) {
        svi_store_relaxed(&storm_ends, 1);
        (void)pthread_join(thread, NULL);
        (void)munmap(map, (size_t)st.st_size);
    }
    (void)close(fd);
    close_surely(segment);
    must(sv_segment_remove("victim", NULL, NULL) == 0, "a victim that can be removed");
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size <= INPUT_MAX) {
        attach_to(data, size);
        overwrite(data, size, false);
    }
    return 0;
}

#ifdef FUZZ_ENGINE
int
LLVMFuzzerInitialize(int *count, char ***arguments)
{
    (void)count;
    (void)arguments;
    world_begin(0); /* the engine has limits of its own */
    svi_testing_separate = true;
    return 0;
}
#else

/* ---- without an engine --------------------------------------------------------------------- */

#define SEEDS_MAX 64
#define RUNS_LEAST 16 /* with a storm among them, however slow the machine is */

static struct {
    uint8_t *data;
    size_t size;
} seeds[SEEDS_MAX];
static unsigned seed_count;

static void
load_seed(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size > INPUT_MAX ||
        seed_count == SEEDS_MAX) {
        tap_note("not used: %s", path);
        (void)close(fd);
        return;
    }
    size_t size = (size_t)st.st_size;
    seeds[seed_count].data = world_memory(size + 1);
    seeds[seed_count].size = size;
    must(svi_os_pread(fd, seeds[seed_count].data, size, 0) == (int)size, "a readable seed");
    seed_count++;
    (void)close(fd);
}

static void
load_seeds(const char *directory)
{
    DIR *stream = opendir(directory);
    const struct dirent *entry;
    must(stream != NULL, "a directory with inputs");
    while ((entry = readdir(stream)) != NULL) {
        char path[1024];
        (void)snprintf(path, sizeof path, "%s/%s", directory, entry->d_name);
        if (entry->d_name[0] != '.') {
            load_seed(path);
        }
    }
    (void)closedir(stream);
}

/* A place worth damaging: mostly words that the verbs believe for a moment. */
static size_t
choose_place(uint64_t *random, size_t size)
{
    static const struct {
        size_t begin, end;
    } regions[] = {{0, 512}, {512, 1536}, {512, 1536}, {4096, 4160}, {4096, 8192}, {8192, 20480}};
    uint64_t chosen = world_random(random);
    size_t region = (size_t)(chosen % 7);
    size_t begin = region < 6 ? regions[region].begin : 0;
    size_t end = region < 6 ? regions[region].end : size;
    if (begin >= size) {
        return (size_t)((chosen >> 8) % size);
    }
    end = end < size ? end : size;
    return begin + (size_t)((chosen >> 8) % (end - begin));
}

static void
damage(uint8_t *data, size_t size, uint64_t *random)
{
    static const uint64_t values[] = {0,
                                      1,
                                      2,
                                      3,
                                      4,
                                      5,
                                      63,
                                      64,
                                      65,
                                      255,
                                      4095,
                                      4096,
                                      65535,
                                      0x7fffffff,
                                      0x80000000,
                                      0xffffffff,
                                      UINT64_MAX,
                                      UINT64_MAX / 2,
                                      UINT64_C(1) << 63};
    size_t place = choose_place(random, size);
    uint64_t how = world_random(random);
    if (how % 4 == 0) {
        data[place] ^= (uint8_t)(1u << (how >> 8) % 8);
        return;
    }
    size_t width = how % 4 == 1 ? 4 : 8;
    uint64_t value = (how >> 3) % 8 == 0 ? world_random(random)
                                         : values[(how >> 16) % (sizeof values / sizeof values[0])];
    place -= place % width;
    if (place + width <= size) {
        memcpy(data + place, &value, width);
    }
}

static void
the_corpus_harms_nobody(void)
{
    for (unsigned i = 0; i < seed_count; i++) {
        LLVMFuzzerTestOneInput(seeds[i].data, seeds[i].size);
    }
    CHECK(seed_count >= 5);
    CHECK(attached >= 3); /* the corpus is of this format */
    tap_note("%u inputs, %u of them good enough to attach to", seed_count, attached);
}

static void
mutations_harm_nobody(void)
{
    const char *given = getenv("FUZZ_SECONDS");
    uint64_t seconds = given != NULL ? strtoull(given, NULL, 10) : 1;
    uint64_t random = world_seed();
    uint64_t runs = 0;
    uint64_t longest = 0;
    unsigned before = attached;
    uint8_t *data = world_memory(INPUT_MAX);
    uint64_t now = svi_os_monotonic_ns();
    for (uint64_t began = now; now - began < seconds * UINT64_C(1000000000) || runs < RUNS_LEAST;
         runs++) {
        uint64_t choice = world_random(&random);
        size_t size = seeds[choice % seed_count].size;
        memcpy(data, seeds[choice % seed_count].data, size);
        for (uint64_t n = 1 + (choice >> 8) % 8; n != 0 && size != 0; n--) {
            damage(data, size, &random);
        }
        if ((choice >> 16) % 64 == 0) { /* cut short */
            size = size * ((choice >> 24) % 16) / 16;
        }
        attach_to(data, size);
        overwrite(data, size, runs % 16 == 15);
        uint64_t then = now;
        now = svi_os_monotonic_ns();
        longest = now - then > longest ? now - then : longest;
    }
    free(data);
    tap_note("%llu mutations, %u good enough to attach to, the longest took %.3f s",
             (unsigned long long)runs, attached - before, (double)longest / 1e9);
    CHECK(longest < world_limit_ns(10));
}

/* ---- the corpus ---------------------------------------------------------------------------- */

static const char *seeds_to;

/* What tells the machine, the moment and the process that made a seed: not for the corpus. */
static void
forget_the_maker(uint8_t *data, const svi_geometry *g)
{
    memset(data + offsetof(svm_header, h_created_ns), 0, sizeof(uint64_t));
    for (uint32_t r = 0; r < g->max_rows; r++) {
        uint8_t *row = data + g->off_rows + r * g->row_stride;
        size_t from = offsetof(svm_row, r_pid);
        memset(row + from, 0, offsetof(svm_row, r_owner) - from);
        memset(row + offsetof(svm_row, r_command), 0, sizeof((svm_row *)NULL)->r_command);
    }
    for (uint32_t b = 0; b < g->buffer_count; b++) {
        uint8_t *buffer = data + g->off_buffers + b * g->header_stride;
        memset(buffer + offsetof(svm_buffer, b_published_ns), 0, sizeof(uint64_t));
    }
}

static svi_geometry seed_geometry;

static void
save(const char *name, const char *as, size_t bytes)
{
    static uint8_t data[INPUT_MAX];
    char path[1024];
    int fd = open(world_path(name, ""), O_RDONLY | O_CLOEXEC);
    int got = svi_os_pread(fd, data, sizeof data, 0);
    (void)close(fd);
    (void)snprintf(path, sizeof path, "%s/%s", seeds_to, as);
    must(got > 0 && (uint64_t)got == seed_geometry.segment_bytes, "a segment to save");
    forget_the_maker(data, &seed_geometry);
    write_file(path, data, bytes != 0 ? bytes : (size_t)got);
}

static int
hold_and_die(void *name)
{
    sv_view view;
    sv_reservation reservation;
    sv_segment *segment = world_open(name, NULL, SV_OPEN_ATTACH);
    must(sv_pin(segment, 0, &view) == 0 && sv_pin(segment, 1, &view) == 0, "pins");
    must(sv_reserve(segment, 0, &reservation, NULL) == 0, "a claim");
    return raise(SIGKILL);
}

static void
make_block_seeds(void)
{
    uint64_t words[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    const sv_array array = {.data = words,
                            .size_bytes = CHUNK,
                            .itemsize = 8,
                            .ndim = 2,
                            .shape = {2, 4}};
    const sv_chunk chunk = {.arrays = &array, .array_count = 1};
    sv_options options = block_options();
    sv_segment *block = world_open("block", &options, SV_OPEN_EXCLUSIVE);
    seed_geometry = svi_mapping_of(block)->g;
    save("block", "block-unfinished", 0);
    EQ(sv_append(block, &chunk, NULL, NULL), 0);
    save("block", "block", 0);
    sv_retire(block, SV_RETIRED_CLOSED);
    save("block", "block-retired", 0);
    EQ(sv_block_remove(block, NULL), 0);
    EQ(sv_segment_close(block, NULL), 0);
}

static void
make_seeds(void)
{
    sv_options options = small_options();
    sv_segment *segment = world_open("seed", &options, SV_OPEN_EXCLUSIVE);
    seed_geometry = svi_mapping_of(segment)->g;
    save("seed", "empty", 0);
    write_all(segment); /* one chunk, and room for more */
    save("seed", "one", 0);
    save("seed", "header-only", 4096);
    save("seed", "cut", 9000);
    write_all(segment);
    write_all(segment);
    read_all(segment);
    save("seed", "full", 0);
    EQ(sv_segment_close(segment, NULL), 0);
    save("seed", "left", 0);
    EQ(world_wait(world_fork(hold_and_die, (void *)(uintptr_t)"seed"), WORLD_WAIT_MS), 137);
    save("seed", "dead", 0);
    EQ(sv_segment_remove("seed", NULL, NULL), 0);
    make_block_seeds();
    char path[1024];
    (void)snprintf(path, sizeof path, "%s/nothing", seeds_to);
    write_file(path, "", 0);
}

int
main(int count, char **arguments)
{
    struct stat st;
    const char *given = getenv("FUZZ_SECONDS");
    world_begin(60 + (given != NULL ? (unsigned)strtoul(given, NULL, 10) : 1));
    svi_testing_separate = true;
    if (count == 3 && strcmp(arguments[1], "--seeds") == 0) {
        seeds_to = arguments[2];
        RUN(make_seeds);
        return world_end();
    }
    bool directory = count == 2 && stat(arguments[1], &st) == 0 && S_ISDIR(st.st_mode);
    for (int i = 1; i < count && !directory; i++) {
        load_seed(arguments[i]);
        LLVMFuzzerTestOneInput(seeds[seed_count - 1].data, seeds[seed_count - 1].size);
    }
    if (directory) {
        load_seeds(arguments[1]);
        RUN(the_corpus_harms_nobody);
        RUN(mutations_harm_nobody);
    }
    return world_end();
}
#endif
