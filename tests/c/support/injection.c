/* The loop over all misfortunes. What a child passes is counted in a page shared with it. */
#include "injection.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "error.h"
#include "faults.h"

#ifdef SVI_COVERAGE
extern void __gcov_dump(void);
#endif

#define CALLS_MAX 1024
#define ERRORS_MAX 5

typedef enum misfortune { NOTHING, KILL_AT_STEP, KILL_AT_CALL, FAIL_ONCE, FAIL_ALWAYS } misfortune;

/* Which errors a call may give. None: it is only killed there. EINTR must be repeated by the core,
 * so that the verb succeeds. */
static const struct call_errors {
    const char *call;
    int codes[ERRORS_MAX];
} call_errors[] = {
    {"calloc", {ENOMEM}},
    {"close", {0}},
    {"fchmod", {EACCES}},
    {"fcntl.lock", {ENOLCK, EINTR}},
    {"fcntl.test", {ENOLCK}},
    {"fcntl.unlock", {ENOLCK}},
    {"dup", {EMFILE}},
    {"flock", {ENOLCK, EINTR}},
    {"fstat", {EBADF}},
    {"fstatfs", {ENOMEM}},
    {"ftruncate", {EFBIG, EINTR}},
    {"getrandom", {ENOSYS, EINTR}},
    {"getrlimit", {EINVAL}},
    {"linkat", {EACCES, ENOSPC, ENOMEM}},
    {"lstat", {EACCES, ENOMEM}},
    {"madvise", {ENOMEM, EINVAL}},
    {"mmap", {ENOMEM, EACCES}},
    {"munmap", {0}},
    {"open", {EMFILE, EACCES, ENOSPC, ENOMEM, EINTR}},
    {"opendir", {EMFILE, EACCES}},
    {"posix_fallocate", {ENOSPC, ENOMEM, EINTR}},
    {"pread", {EIO, EINTR}},
    {"pthread_atfork", {ENOMEM}},
    {"pthread_create", {EAGAIN}},
    {"pwrite", {ENOSPC, EIO, EINTR}},
    {"rename", {EACCES, ENOSPC}},
    {"sched_getaffinity", {EINVAL}},
    {"statfs", {EACCES, ENOMEM}},
    {"statvfs", {EACCES}},
    {"unlink", {EACCES}},
};

typedef struct run {
    const injection *what;
    const char *name;
    misfortune kind;
    uint64_t nth;
    int code;
} run;

static struct page {
    svi_word steps;
    svi_word calls;
    svi_word struck; /* the misfortune came */
    svi_word failed; /* the verb failed of it */
    char step[48];   /* the last one */
    char call[24];   /* that of the misfortune */
    char names[CALLS_MAX][24];
} *page;

static const run *running; /* in the child */
static pid_t victim;

/* Does what this process does count? With two of them at work the order would be left to chance. */
static bool
inject_counts_here(void)
{
    return running->what->who == INJECT_ALL ||
           (running->what->who == INJECT_VICTIM) == (getpid() == victim);
}

static void
inject_die(void)
{
    svi_store_seq(&page->struck, 1);
#ifdef SVI_COVERAGE
    __gcov_dump();
#endif
    (void)kill(getpid(), SIGKILL);
    for (;;) {
        (void)pause();
    }
}

static void
inject_at_step(const char *name)
{
    if (!inject_counts_here()) {
        return;
    }
    uint64_t nth = svi_add_seq(&page->steps, 1) + 1;
    (void)snprintf(page->step, sizeof page->step, "%s", name);
    if (running->kind == KILL_AT_STEP && nth == running->nth) {
        inject_die();
    }
}

static int
inject_at_call(const char *call)
{
    if (!inject_counts_here()) {
        return 0;
    }
    uint64_t nth = svi_add_seq(&page->calls, 1) + 1;
    if (running->kind == NOTHING && nth <= CALLS_MAX) {
        (void)snprintf(page->names[nth - 1], sizeof page->names[0], "%s", call);
    }
    if (nth == running->nth && running->kind >= KILL_AT_CALL) {
        (void)EQ_STR(call, page->call); /* the same calls in the same order, every time */
        if (running->kind == KILL_AT_CALL) {
            inject_die();
        }
        svi_store_seq(&page->struck, 1);
        return running->code;
    }
    bool again = running->kind == FAIL_ALWAYS && nth > running->nth;
    return again && strcmp(call, page->call) == 0 ? running->code : 0;
}

/* ---- leaks --------------------------------------------------------------------------------- */

typedef struct belongings {
    unsigned descriptors;
    unsigned maps; /* of files in the world's directory */
} belongings;

static belongings
inject_count_belongings(void)
{
    belongings count = {0, 0};
    char line[1024];
    for (int fd = 0; fd < 256; fd++) {
        struct stat st;
        count.descriptors += fstat(fd, &st) == 0;
    }
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL) {
        count.maps += strstr(line, world_directory()) != NULL;
    }
    if (maps != NULL) {
        (void)fclose(maps);
    }
    return count;
}

/* ---- one run ------------------------------------------------------------------------------- */

static void
inject_judge(int status, const sv_error *err)
{
    svi_store_seq(&page->failed, status != 0);
    if (running->kind < FAIL_ONCE || running->code == EINTR) {
        (void)EQ(status, 0);
    }
    if (status != 0) {
        (void)CHECK(status < 0);
    }
    if (status != 0 && !running->what->silent) {
        (void)EQ(err->code, status);
        (void)CHECK(strlen(err->message) > 10);
    }
}

static int
inject_victim(void *argument)
{
    sv_error err = {.code = 0, .message = ""};
    belongings before = inject_count_belongings();
    running = argument;
    victim = getpid();
    svi_testing_separate = true;
    if (running->what->arrange != NULL) {
        running->what->arrange(running->name);
    }
    svi_step_hook = inject_at_step;
    svi_fault_hook = inject_at_call;
    int status = running->what->verb(running->name, &err);
    svi_step_hook = NULL;
    svi_fault_hook = NULL;
    inject_judge(status, &err);
    running->what->settle(running->name, status);
    belongings after = inject_count_belongings();
    /* A descriptor that fstat calls bad belongs to somebody else: the core leaves it alone. */
    if (!running->what->inherits && running->code != EBADF) {
        (void)EQ(after.descriptors, before.descriptors);
        (void)EQ(after.maps, before.maps);
    }
    if (tap_failures() != 0) {
        tap_note("%s", err.message);
    }
    return 0;
}

static bool
inject_run(const injection *what, misfortune kind, uint64_t nth, int code)
{
    static const char *const words[] = {"undisturbed", "killed at step", "killed at call",
                                        "call fails once:", "call fails from then on:"};
    char name[SV_MAX_NAME_BYTES + 1];
    (void)snprintf(name, sizeof name, "%s", world_name(what->what));
    run now = {what, name, kind, nth, code};
    svi_store_seq(&page->steps, 0);
    svi_store_seq(&page->calls, 0);
    svi_store_seq(&page->struck, 0);
    svi_store_seq(&page->failed, 0);
    page->step[0] = '\0';
    if (kind >= KILL_AT_CALL && nth <= CALLS_MAX) {
        memcpy(page->call, page->names[nth - 1], sizeof page->call);
    }
    tap_context("%s, %s %llu %s %s", what->what, words[kind], (unsigned long long)nth,
                kind >= KILL_AT_CALL ? page->call : "", code != 0 ? strerror(code) : "");
    if (what->before != NULL) {
        what->before(name);
    }
    int status = world_wait(world_fork(inject_victim, &now), WORLD_WAIT_MS);
    while (waitpid(-1, NULL, 0) > 0) { /* children of the killed */
    }
    bool struck = svi_load_seq(&page->struck) != 0;
    if (kind == KILL_AT_STEP) {
        tap_context("%s, killed at step %llu, %s", what->what, (unsigned long long)nth, page->step);
    }
    /* Killed may have been a child of the child, which then says nothing else. */
    (void)CHECK(status == 0 || (status == 128 + SIGKILL && kind <= KILL_AT_CALL && struck));
    what->after(name);
    tap_context("%s", "");
    return struck;
}

/* The runs in which one call fails, in each way that it may; returns how many. */
static unsigned
inject_failures(const injection *what, uint64_t nth, unsigned *needed)
{
    unsigned runs = 0;
    char call[sizeof page->names[0]];
    memcpy(call, page->names[nth - 1], sizeof call);
    const struct call_errors *errors = NULL;
    for (size_t i = 0; i < sizeof call_errors / sizeof call_errors[0]; i++) {
        if (strcmp(call_errors[i].call, call) == 0) {
            errors = &call_errors[i];
        }
    }
    if (errors == NULL) {
        tap_note("no errors are listed for %s", call);
        (void)CHECK(errors != NULL);
        return 0;
    }
    for (size_t i = 0; i < ERRORS_MAX && errors->codes[i] != 0; i++) {
        int code = errors->codes[i];
        (void)CHECK(inject_run(what, FAIL_ONCE, nth, code));
        *needed += svi_load_seq(&page->failed) != 0;
        runs++;
        if (code != EINTR) {
            (void)CHECK(inject_run(what, FAIL_ALWAYS, nth, code));
            runs++;
        }
    }
    return runs;
}

void
inject_everywhere(const injection *what)
{
    if (page == NULL) {
        void *shared =
            mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (shared == MAP_FAILED) {
            perror("mmap");
            _exit(1);
        }
        page = shared;
    }
    if (!what->cold) { /* or only the first of all runs would find the process unprepared */
        world_drop(world_segment(world_name("warm"), 0));
    }
    unsigned needed = 0;
    unsigned kills = 0;
    unsigned failures = 0;
    (void)CHECK(!inject_run(what, NOTHING, 0, 0));
    uint64_t steps = svi_load_seq(&page->steps);
    uint64_t calls = svi_load_seq(&page->calls);
    (void)CHECK(steps >= what->steps);
    (void)CHECK(calls >= what->calls && calls <= CALLS_MAX);
    for (uint64_t nth = 1; nth <= steps; nth++) {
        kills += CHECK(inject_run(what, KILL_AT_STEP, nth, 0));
    }
    for (uint64_t nth = 1; nth <= calls && nth <= CALLS_MAX; nth++) {
        kills += CHECK(inject_run(what, KILL_AT_CALL, nth, 0));
        failures += inject_failures(what, nth, &needed);
    }
    tap_note("%s: %llu steps, %llu calls; %u kills, %u failures (%u of them told)", what->what,
             (unsigned long long)steps, (unsigned long long)calls, kills, failures, needed);
}

/* ---- segments ------------------------------------------------------------------------------ */

sv_segment *inject_subject;
sv_segment *inject_mine;

void
inject_segment(const char *name)
{
    inject_subject = world_segment(name, 3);
}

static int
inject_attach_and_wait(void *name)
{
    svi_testing_separate = true;
    (void)world_open(name, NULL, SV_OPEN_ATTACH);
    svi_add_seq(&world_flags[0], 1);
    (void)world_await(&world_flags[1], 1);
    return 0;
}

static int
inject_hold_and_wait(void *name)
{
    sv_view views[2];
    sv_reservation reservation;
    svi_testing_separate = true;
    sv_segment *segment = world_open(name, NULL, SV_OPEN_ATTACH);
    (void)EQ(sv_pin(segment, 0, &views[0]), 0);
    (void)EQ(sv_pin(segment, 1, &views[1]), 0);
    if (EQ(sv_reserve(segment, 0, &reservation, NULL), 0)) {
        memset(reservation.data, 0xee, 64);
    }
    svi_add_seq(&world_flags[0], 1);
    (void)world_await(&world_flags[1], 1);
    return 0;
}

/* The first of them holds nothing but its row, which the next one to attach will take. */
static void
inject_leave_dead(const char *name, bool idle, unsigned holding)
{
    pid_t pids[8];
    unsigned count = 0;
    world_flags_clear();
    for (unsigned i = 0; i < holding + idle; i++) {
        pids[count++] = world_fork(idle && i == 0 ? inject_attach_and_wait : inject_hold_and_wait,
                                   (void *)(uintptr_t)name);
        (void)world_await(&world_flags[0], count);
    }
    while (count != 0) {
        world_kill(pids[--count]);
    }
}

void
inject_segment_with_dead(const char *name)
{
    inject_segment(name);
    inject_leave_dead(name, false, 1);
}

void
inject_segment_with_two_dead(const char *name)
{
    inject_segment(name);
    inject_leave_dead(name, true, 1);
}

void
inject_segment_exhausted(const char *name)
{
    inject_segment(name);
    inject_leave_dead(name, true, 3);
}

void
inject_audit(const char *name)
{
    (void)name;
    world_audit(inject_subject, 0, 0);
    (void)EQ(world_living(inject_subject), 1);
    world_drop(inject_subject);
    (void)EQ(world_files(), 0);
}

int
inject_attach(const char *name, sv_error *err)
{
    sv_options options = world_options();
    options.timeout_ns = 20000000;
    return sv_segment_open(name, &options, SV_OPEN_ATTACH, &inject_mine, err);
}

void
inject_attach_surely(const char *name)
{
    sv_error err = {.message = ""};
    if (!EQ(inject_attach(name, &err), 0)) {
        printf("# %s\nBail out! cannot attach\n", err.message);
        _exit(1);
    }
}

void
inject_detach(void)
{
    (void)EQ(sv_segment_close(inject_mine, NULL), 0);
    inject_mine = NULL;
}
