/* The step hook. Its state lies in the page that children share. */
#include "steps.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "error.h"

typedef struct steps_page {
    svi_word passed;
    char last[48];
} steps_page;

static steps_page *steps;
static const char *steps_name;
static uint64_t steps_nth;
static uint64_t steps_seen;
static svi_word *steps_arrived;
static svi_word *steps_go;

static void
steps_prepare(void)
{
    if (steps == NULL) {
        void *page =
            mmap(NULL, sizeof *steps, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (page == MAP_FAILED) {
            perror("mmap");
            _exit(1);
        }
        steps = page;
    }
    svi_store_seq(&steps->passed, 0);
    steps_name = NULL;
    steps_seen = 0;
}

static void
steps_remember(const char *name)
{
    (void)snprintf(steps->last, sizeof steps->last, "%s", name);
}

static void
steps_hook_count(const char *name)
{
    svi_add_seq(&steps->passed, 1);
    steps_remember(name);
}

static void
steps_hook_kill(const char *name)
{
    if (steps_name != NULL && strcmp(steps_name, name) != 0) {
        return;
    }
    if (++steps_seen == steps_nth) {
        steps_remember(name);
        (void)kill(getpid(), SIGKILL);
        for (;;) {
            (void)pause();
        }
    }
}

static void
steps_hook_pause(const char *name)
{
    if (strcmp(steps_name, name) == 0 && svi_load_seq(steps_arrived) == 0) {
        svi_store_seq(steps_arrived, 1);
        (void)world_await(steps_go, 1);
    }
}

void
steps_count(void)
{
    steps_prepare();
    svi_step_hook = steps_hook_count;
}

uint64_t
steps_counted(void)
{
    return svi_load_seq(&steps->passed);
}

void
steps_kill_at(uint64_t nth)
{
    steps_kill_on(NULL, nth);
}

void
steps_kill_on(const char *name, uint64_t nth)
{
    steps_prepare();
    steps_name = name;
    steps_nth = nth;
    svi_step_hook = steps_hook_kill;
}

void
steps_pause_on(const char *name, svi_word *arrived, svi_word *go)
{
    steps_prepare();
    steps_name = name;
    steps_arrived = arrived;
    steps_go = go;
    svi_step_hook = steps_hook_pause;
}

void
steps_off(void)
{
    svi_step_hook = NULL;
}

const char *
steps_last(void)
{
    return steps->last;
}

typedef struct steps_victim {
    int (*body)(void *name);
    const char *name;
    uint64_t nth; /* 0: count */
} steps_victim;

static int
steps_run_victim(void *argument)
{
    const steps_victim *victim = argument;
    if (victim->nth == 0) {
        steps_count();
    } else {
        steps_kill_at(victim->nth);
    }
    return victim->body((void *)(uintptr_t)victim->name);
}

unsigned
steps_kill_everywhere(const char *what, void (*before)(const char *name), int (*victim)(void *name),
                      void (*after)(const char *name))
{
    uint64_t total = 0;
    unsigned kills = 0;
    steps_prepare(); /* the page must be there before the first fork */
    for (uint64_t nth = 0; nth <= total; nth++) {
        char name[SV_MAX_NAME_BYTES + 1];
        (void)snprintf(name, sizeof name, "%s", world_name(what));
        steps_victim run = {victim, name, nth};
        tap_context("%s, step %llu", what, (unsigned long long)nth);
        before(name);
        int status = world_wait(world_fork(steps_run_victim, &run), WORLD_WAIT_MS);
        if (nth == 0) {
            (void)EQ(status, 0);
            total = steps_counted();
            (void)CHECK(total != 0);
        } else {
            tap_context("%s, killed at %s (step %llu of %llu)", what, steps_last(),
                        (unsigned long long)nth, (unsigned long long)total);
            (void)EQ(status, 128 + SIGKILL);
            kills++;
        }
        after(name);
    }
    tap_context("%s", "");
    return kills;
}
