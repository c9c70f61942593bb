/* Directory, segments, twins and children of the tests. */
#include "world.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "fork.h"
#include "os.h"
#include "row.h"

#define WORLD_WORDS 64 /* uint64 values of a stamped chunk */
#define WORLD_SLOWER 3 /* the end of a program comes so much later: machines are slow, or busy */

svi_word *world_flags;

static char world_dir[64];
static unsigned world_patience = 1;
static pid_t world_root;
static unsigned world_counter;

#if WORLD_THREAD_SANITIZER
/* A child makes the fork gate anew, as it must: the thread that locked it for the fork has another
 * number there. ThreadSanitizer goes on believing that it is locked. */
const char *__tsan_default_suppressions(void);

const char *
__tsan_default_suppressions(void)
{
    return "mutex:svi_gate_enter\nmutex:svi_gate_leave\n";
}
#endif

/* ---- directory ----------------------------------------------------------------------------- */

/* Remove what is in the directory; returns how much it was. NOLINTBEGIN(bugprone-signal-handler) */
static unsigned
world_sweep(bool report)
{
    unsigned found = 0;
    DIR *stream = opendir(world_dir);
    const struct dirent *entry;
    while (stream != NULL && (entry = readdir(stream)) != NULL) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) {
            continue;
        }
        char path[400];
        (void)snprintf(path, sizeof path, "%s/%s", world_dir, entry->d_name);
        if (report) {
            tap_note("left behind: %s", path);
        }
        if (unlink(path) != 0) {
            (void)rmdir(path);
        }
        found++;
    }
    if (stream != NULL) {
        (void)closedir(stream);
    }
    return found;
}

static void
world_clean(void)
{
    if (getpid() == world_root && world_dir[0] != '\0') {
        (void)world_sweep(false);
        (void)rmdir(world_dir);
    }
}

/* Not all of this may be done in a signal handler; the program is lost anyway, and the files are
 * worth the attempt. */
static void
world_too_long(int signal_number)
{
    static const char text[] = "# the program took too long\nBail out!\n";
    (void)signal_number;
    ssize_t ignored = write(STDOUT_FILENO, text, sizeof text - 1);
    (void)ignored;
    world_clean();
    _exit(1);
}
/* NOLINTEND(bugprone-signal-handler) */

void
world_begin(unsigned limit_s)
{
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    world_root = getpid();
    const char *within = getenv("WORLD_WITHIN");
    (void)snprintf(world_dir, sizeof world_dir, "%.30s/svtest-%ld-XXXXXX",
                   within != NULL ? within : "/dev/shm", (long)world_root);
    void *flags = mmap(NULL, SVI_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (flags == MAP_FAILED || mkdtemp(world_dir) == NULL) {
        perror(world_dir);
        exit(1);
    }
    const char *patience = getenv("WORLD_PATIENCE");
    world_patience = patience != NULL ? (unsigned)strtoul(patience, NULL, 10) : 1;
    world_flags = flags;
    (void)setenv("SHAREDVECTOR_SHM_DIR", world_dir, 1);
    (void)setenv("SHAREDVECTOR_LOCK_DIR", world_dir, 1);
    (void)atexit(world_clean);
    if (limit_s != 0) {
        (void)signal(SIGALRM, world_too_long);
        (void)alarm(limit_s * world_patience * WORLD_SLOWER);
    }
    /* Grandchildren whose parent was killed come to us to be waited for. */
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1);
}

static void
world_is_clean(void)
{
    (void)EQ(world_sweep(true), 0);
}

int
world_end(void)
{
    RUN(world_is_clean);
    world_clean();
    return tap_done();
}

const char *
world_directory(void)
{
    return world_dir;
}

const char *
world_name(const char *tag)
{
    static char names[16][SV_MAX_NAME_BYTES + 1];
    char *name = names[world_counter % 16];
    (void)snprintf(name, sizeof names[0], "sv-%ld-%u-%s", (long)getpid(), world_counter, tag);
    world_counter++;
    return name;
}

const char *
world_path(const char *name, const char *suffix)
{
    static char path[SVI_PATH_BYTES];
    svi_path(path, world_dir, "", name, suffix);
    return path;
}

bool
world_exists(const char *name, const char *suffix)
{
    struct stat st;
    return lstat(world_path(name, suffix), &st) == 0;
}

unsigned
world_files(void)
{
    unsigned count = 0;
    DIR *stream = opendir(world_dir);
    while (stream != NULL && readdir(stream) != NULL) {
        count++;
    }
    if (stream != NULL) {
        (void)closedir(stream);
    }
    return count < 2 ? 0 : count - 2;
}

void
world_junk(const char *name, int value, size_t bytes)
{
    char block[256];
    int fd = open(world_path(name, ""), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    (void)CHECK(fd >= 0);
    memset(block, value, sizeof block);
    for (size_t done = 0; done < bytes; done += sizeof block) {
        size_t span = bytes - done < sizeof block ? bytes - done : sizeof block;
        (void)CHECK(write(fd, block, span) == (ssize_t)span);
    }
    (void)close(fd);
}

/* ---- segments ------------------------------------------------------------------------------ */

sv_options
world_options(void)
{
    sv_options options;
    sv_options_init(&options);
    options.chunk_size = 1024;
    options.slot_count = 4;
    options.spare_buffers = 2;
    options.max_rows = 16;
    options.max_arrays = 2;
    options.stats_capacity = 8;
    options.dtype = "uint64";
    options.itemsize = 8;
    return options;
}

void *
world_memory(size_t bytes)
{
    void *memory = malloc(bytes);
    if (memory == NULL) {
        printf("Bail out! no memory\n");
        exit(1);
    }
    return memory;
}

sv_segment *
world_open(const char *name, const sv_options *options, int flags)
{
    sv_options defaults = world_options();
    sv_segment *segment = NULL;
    sv_error err = {.code = 0};
    int status =
        sv_segment_open(name, options != NULL ? options : &defaults, flags, &segment, &err);
    if (status != 0) {
        printf("# cannot open %s: %d %s\nBail out!\n", name, status, err.message);
        exit(1);
    }
    return segment;
}

int
world_try_open(const char *name, const sv_options *options, int flags, sv_error *err)
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

sv_segment *
world_segment(const char *name, uint32_t size)
{
    sv_segment *segment = world_open(name, NULL, SV_OPEN_EXCLUSIVE);
    for (uint32_t i = 0; i < size; i++) {
        (void)EQ(world_append(segment, i + 1), 0);
    }
    return segment;
}

void
world_drop(sv_segment *segment)
{
    sv_info info;
    sv_error err = {.message = ""};
    (void)EQ(sv_segment_info(segment, &info), 0);
    if (!EQ(sv_segment_close(segment, &err), 0)) {
        tap_note("%s", err.message);
    }
    (void)EQ(sv_segment_remove(info.name, info.directory, NULL), 0);
}

static void
world_describe(uint64_t stamp, const void *data, sv_array *array, double *meta, sv_chunk *chunk)
{
    *array = (sv_array){.data = data,
                        .size_bytes = WORLD_WORDS * sizeof stamp,
                        .itemsize = sizeof stamp,
                        .ndim = 1,
                        .shape = {WORLD_WORDS}};
    *meta = (double)stamp;
    *chunk = (sv_chunk){.arrays = array,
                        .array_count = 1,
                        .meta = meta,
                        .meta_count = 1,
                        .source_index = stamp,
                        .source_epoch = ~stamp};
}

static void
world_stamp_words(uint64_t *words, uint64_t stamp)
{
    for (size_t i = 0; i < WORLD_WORDS; i++) {
        words[i] = stamp;
    }
}

int
world_append(sv_segment *segment, uint64_t stamp)
{
    uint64_t words[WORLD_WORDS];
    sv_array array;
    sv_chunk chunk;
    double meta;
    world_stamp_words(words, stamp);
    world_describe(stamp, words, &array, &meta, &chunk);
    return sv_append(segment, &chunk, NULL, NULL);
}

int
world_replace(sv_segment *segment, uint32_t slot, uint64_t stamp)
{
    uint64_t words[WORLD_WORDS];
    sv_array array;
    sv_chunk chunk;
    double meta;
    world_stamp_words(words, stamp);
    world_describe(stamp, words, &array, &meta, &chunk);
    return sv_replace(segment, slot, &chunk, 0, NULL);
}

int
world_fill(sv_reservation *reservation, uint64_t stamp)
{
    sv_array array;
    sv_chunk chunk;
    double meta;
    world_stamp_words(reservation->data, stamp);
    world_describe(stamp, NULL, &array, &meta, &chunk);
    return sv_fill(reservation, &chunk, NULL);
}

int
world_publish(sv_segment *segment, uint32_t slot, uint64_t stamp)
{
    sv_reservation reservation;
    int status = sv_reserve(segment, UINT64_C(5000000000), &reservation, NULL);
    if (status != 0) {
        return status;
    }
    if ((status = world_fill(&reservation, stamp)) != 0 ||
        (status = sv_publish(&reservation, slot, NULL)) != 0) {
        sv_cancel(&reservation);
    }
    return status;
}

bool
world_whole(const sv_view *view, uint64_t *stamp)
{
    const uint64_t *words = view->data;
    double meta[SV_MAX_META];
    sv_chunk_info info;
    sv_view_info(view, &info);
    if (view->size_bytes != WORLD_WORDS * sizeof *words || view->ndim != 1 ||
        view->shape[0] != WORLD_WORDS || view->itemsize != sizeof *words) {
        return false;
    }
    *stamp = words[0];
    for (size_t i = 1; i < WORLD_WORDS; i++) {
        if (words[i] != words[0]) {
            return false;
        }
    }
    return sv_view_meta(view, meta) == 1 && (uint64_t)meta[0] == words[0] &&
           info.source_index == words[0] && info.source_epoch == ~words[0];
}

uint64_t
world_stamp(sv_segment *segment, uint32_t slot)
{
    sv_view view;
    uint64_t stamp = 0;
    if (!EQ(sv_pin_quiet(segment, slot, &view), 0)) {
        return 0;
    }
    bool whole = world_whole(&view, &stamp);
    sv_unpin(&view);
    return CHECK(whole) ? stamp : 0;
}

uint32_t
world_living(const sv_segment *segment)
{
    sv_row_info rows[64];
    uint32_t count = sv_rows(segment, rows, 64);
    uint32_t living = 0;
    for (uint32_t i = 0; i < count && i < 64; i++) {
        living += rows[i].live;
    }
    return living;
}

void
world_audit(sv_segment *segment, uint64_t pins, uint32_t held)
{
    sv_row_info rows[64];
    sv_reservation taken[64];
    sv_reservation more;
    sv_info info;
    sv_error err = {.message = ""};
    uint64_t found_pins = 0;
    uint64_t found_claims = 0;
    uint32_t free_count = 0;
    (void)EQ(sv_recover(segment, NULL, &err), 0);
    if (!EQ(sv_check(segment, &err), 0)) {
        tap_note("%s", err.message);
    }
    (void)EQ(sv_segment_info(segment, &info), 0);
    uint32_t count = sv_rows(segment, rows, 64);
    for (uint32_t i = 0; i < count && i < 64; i++) {
        (void)EQ(rows[i].live, 1);
        found_pins += rows[i].pins;
        found_claims += rows[i].claims;
    }
    (void)EQ(found_pins, pins);
    (void)EQ(found_claims, 0);
    for (uint32_t slot = 0; slot < sv_size(segment); slot++) {
        (void)CHECK(world_stamp(segment, slot) != 0);
    }
    uint32_t wanted = info.buffer_count - sv_size(segment) - held;
    while (free_count < 64 && sv_reserve(segment, 0, &taken[free_count], NULL) == 0) {
        free_count++;
    }
    (void)EQ(free_count, wanted);
    (void)EQ(sv_reserve(segment, 0, &more, NULL), SV_EINUSE);
    while (free_count != 0) {
        sv_cancel(&taken[--free_count]);
    }
    (void)EQ(sv_check(segment, NULL), 0);
}

/* ---- twins --------------------------------------------------------------------------------- */

sv_segment *
world_twin(sv_segment *of)
{
    const svi_mapping *base = svi_mapping_of(of);
    sv_segment *twin = calloc(1, sizeof *twin);
    int status = svi_process_lock(NULL);
    svi_mapping *m = status == 0 ? svi_mapping_obtain() : NULL;
    if (twin == NULL || m == NULL || !svi_testing_single_map) {
        printf("Bail out! no twin\n");
        exit(1);
    }
    m->ro = base->ro;
    atomic_store(&m->rw, atomic_load(&base->rw));
    m->g = base->g;
    m->device = base->device;
    m->inode = base->inode;
    m->owned = base->owned;
    m->mode = base->mode;
    memcpy(m->name, base->name, sizeof m->name);
    memcpy(m->directory, base->directory, sizeof m->directory);
    memcpy(m->generation, base->generation, sizeof m->generation);
    memcpy(m->dtype, base->dtype, sizeof m->dtype);
    m->used = calloc(svi_cell_groups(m), sizeof *m->used);
    m->probe = svi_os_reopen(base->probe, O_RDWR);
    m->mapped = true;
    m->handles = 1;
    (void)EQ(svi_row_join(m, -1, 0, NULL), 0);
    twin->mapping = m;
    svi_process_unlock();
    return twin;
}

/* Forget the twin's mapping; the map itself belongs to the first handle. */
static void
world_twin_forget(sv_segment *twin)
{
    svi_mapping *m = svi_mapping_of(twin);
    svi_os_close(m->probe);
    m->probe = -1;
    m->ro = NULL;
    atomic_store(&m->rw, NULL);
    atomic_store(m->cells, NULL);
    free(m->used);
    m->used = NULL;
    m->handles = 0;
    m->mapped = false;
    free(twin);
}

void
world_twin_close(sv_segment *twin)
{
    (void)svi_process_lock(NULL);
    svi_row_drop(svi_mapping_of(twin), &svi_mapping_of(twin)->hold);
    world_twin_forget(twin);
    svi_process_unlock();
}

void
world_twin_kill(sv_segment *twin)
{
    (void)svi_process_lock(NULL);
    svi_os_unmap(twin->mapping->hold.anchor, twin->mapping->g.row_stride);
    world_twin_forget(twin);
    svi_process_unlock();
}

/* ---- processes ----------------------------------------------------------------------------- */

static void
world_sleep_ms(unsigned milliseconds)
{
    struct timespec span = {milliseconds / 1000, (long)(milliseconds % 1000) * 1000000L};
    (void)nanosleep(&span, NULL);
}

uint64_t
world_limit_ns(unsigned seconds)
{
    return UINT64_C(1000000000) * seconds * world_patience;
}

#ifdef SVI_COVERAGE
extern void __gcov_dump(void);
#endif

/* Not exit(): sanitizers would look for leaks in the child, which dies with everything open on
 * purpose. */
void
world_exit(int code)
{
#ifdef SVI_COVERAGE
    __gcov_dump();
#endif
    _exit(code);
}

pid_t
world_fork(int (*body)(void *argument), void *argument)
{
    pid_t parent = getpid();
    pid_t pid = fork();
    if (pid < 0) {
        perror("fork");
        exit(1);
    }
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) {
            _exit(98);
        }
        tap_reset();
        int code = body(argument);
        (void)fflush(stdout);
        world_exit(tap_failures() != 0 ? 99 : code);
    }
    return pid;
}

int
world_wait(pid_t pid, unsigned timeout_ms)
{
    int status = 0;
    for (unsigned waited = 0; waited <= timeout_ms * world_patience; waited++) {
        pid_t got = waitpid(pid, &status, WNOHANG);
        if (got == pid) {
            return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
        }
        if (got < 0 && errno != EINTR) {
            (void)CHECK(got >= 0);
            return -1;
        }
        world_sleep_ms(1);
    }
    tap_note("pid %ld was not done within %u ms", (long)pid, timeout_ms);
    (void)tap_check(false, __FILE__, __LINE__, "child in time");
    world_kill(pid);
    return -1;
}

void
world_kill(pid_t pid)
{
    (void)kill(pid, SIGKILL);
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
    }
}

void
world_child(int (*body)(void *argument), void *argument)
{
    (void)EQ(world_wait(world_fork(body, argument), WORLD_WAIT_MS), 0);
}

void
world_flags_clear(void)
{
    for (size_t i = 0; i < WORLD_FLAGS; i++) {
        svi_store_seq(&world_flags[i], 0);
    }
}

void
world_set(svi_word *flag, uint64_t value)
{
    svi_store_seq(flag, value);
}

bool
world_await(const svi_word *flag, uint64_t value)
{
    for (unsigned waited = 0; waited < WORLD_WAIT_MS * world_patience; waited++) {
        if (svi_load_seq(flag) >= value) {
            return true;
        }
        world_sleep_ms(1);
    }
    return tap_check(false, __FILE__, __LINE__, "flag in time");
}

uint64_t
world_seed(void)
{
    const char *given = getenv("SEED");
    uint64_t seed = given != NULL ? strtoull(given, NULL, 0) : svi_os_realtime_ns() | 1;
    tap_note("SEED=%llu", (unsigned long long)seed);
    return seed;
}

uint64_t
world_random(uint64_t *state)
{
    /* xorshift64*: good enough to choose slots and moments. */
    uint64_t x = *state == 0 ? 1 : *state;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    *state = x;
    return x * UINT64_C(2685821657736338717);
}
