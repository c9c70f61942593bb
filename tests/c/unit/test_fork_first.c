/* The first calls of a process, from many threads at once: each round is a process of its own, which
 * this program starts by executing itself. Under ThreadSanitizer a race ends it with an error. */
#include "fork.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "world.h"

#define THREADS 16
#define ROUNDS 40

static const char *segment_name;
static pthread_barrier_t together;

/* ---- what the threads of a round call first ------------------------------------------------- */

static int
attach_and_look(void)
{
    sv_segment *segment = NULL;
    sv_view view = {.data = NULL};
    uint64_t stamp = 0;
    int wrong = sv_segment_open(segment_name, NULL, SV_OPEN_ATTACH, &segment, NULL);
    wrong = wrong != 0 ? wrong : sv_pin(segment, 0, &view);
    wrong = wrong != 0 ? wrong : !world_whole(&view, &stamp) || stamp != 1;
    sv_unpin(&view);
    return wrong != 0 ? wrong : sv_segment_close(segment, NULL);
}

static int
remove_nothing(void)
{
    return sv_segment_remove("not-there", NULL, NULL);
}

static int
convert_and_copy(void)
{
    static const float source[64] = {1, 2, 3};
    int16_t converted[64];
    float copied[64];
    sv_strided from = {.data = (void *)(uintptr_t)source, .type = SV_F32, .itemsize = 4};
    sv_strided to = {.data = converted, .type = SV_I16, .itemsize = 2};
    from.ndim = to.ndim = 1;
    from.shape[0] = to.shape[0] = 64;
    from.strides[0] = 4;
    to.strides[0] = 2;
    int wrong = sv_move(&to, &from, NULL, 1, NULL);
    sv_copy(copied, source, sizeof source, 1);
    return wrong != 0 || converted[2] != 3 || copied[2] != 3;
}

static void *
call_first(void *argument)
{
    static int (*const calls[])(void) = {attach_and_look, attach_and_look, remove_nothing,
                                         convert_and_copy};
    size_t which = (size_t)(uintptr_t)argument % (sizeof calls / sizeof calls[0]);
    (void)pthread_barrier_wait(&together);
    int wrong = calls[which]();
    wrong = wrong != 0 ? wrong : attach_and_look();
    return (void *)(intptr_t)wrong;
}

/* Exit code 0 when all threads found everything as it should be. */
static int
run_threads(void)
{
    pthread_t threads[THREADS];
    int wrong = pthread_barrier_init(&together, NULL, THREADS);
    for (size_t i = 0; i < THREADS; i++) {
        wrong |= pthread_create(&threads[i], NULL, call_first, (void *)i);
    }
    for (size_t i = 0; i < THREADS; i++) {
        void *result = NULL;
        wrong |= pthread_join(threads[i], &result);
        wrong |= result != NULL;
    }
    return wrong != 0;
}

static void *
call_once(void *argument)
{
    (void)argument;
    (void)pthread_barrier_wait(&together);
    (void)attach_and_look();
    return NULL;
}

/* One thread makes the first call while another one forks: the child's own first call must not find
 * a lock that a thread holds which it does not have. */
static int
fork_meanwhile(void)
{
    pthread_t thread;
    int status = 0;
    int wrong = pthread_barrier_init(&together, NULL, 2);
    wrong |= pthread_create(&thread, NULL, call_once, NULL);
    (void)pthread_barrier_wait(&together);
    pid_t pid = fork();
    if (pid == 0) {
        (void)alarm(10);
        _exit(attach_and_look() != 0);
    }
    wrong |= waitpid(pid, &status, 0) != pid || status != 0;
    wrong |= pthread_join(thread, NULL);
    return wrong != 0;
}

/* ---- rounds --------------------------------------------------------------------------------- */

static int
execute_round(void *kind)
{
    (void)execl("/proc/self/exe", "first", (const char *)kind, segment_name, (char *)NULL);
    return 1;
}

static void
run_rounds(const char *kind)
{
    const char *rounds = getenv("ROUNDS");
    unsigned count = rounds != NULL ? (unsigned)strtoul(rounds, NULL, 10) : ROUNDS;
    segment_name = world_name("first");
    sv_segment *segment = world_segment(segment_name, 3);
    for (unsigned i = 0; i < count && tap_failures() == 0; i++) {
        world_child(execute_round, (void *)(uintptr_t)kind);
    }
    EQ(world_living(segment), 1);
    world_audit(segment, 0, 0);
    world_drop(segment);
}

static void
threads_make_the_first_call_together(void)
{
    run_rounds("threads");
}

static void
a_fork_during_the_first_call(void)
{
    if (WORLD_THREAD_SANITIZER) {
        tap_skip("ThreadSanitizer ends children of programs with threads");
        return;
    }
    run_rounds("fork");
}

/* The same for the first calls of a child that no fork handler prepared. */
static void
threads_of_a_raw_clone(void)
{
    if (WORLD_THREAD_SANITIZER) {
        tap_skip("ThreadSanitizer does not follow a raw clone");
        return;
    }
    segment_name = world_name("clone");
    sv_segment *segment = world_segment(segment_name, 3);
    sv_view view;
    EQ(sv_pin(segment, 0, &view), 0);
    (void)fflush(stdout);
    for (unsigned i = 0; i < ROUNDS && tap_failures() == 0; i++) {
        pid_t pid = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
        if (pid == 0) {
            world_exit(run_threads());
        }
        EQ(world_wait(pid, WORLD_WAIT_MS), 0);
    }
    sv_unpin(&view);
    world_audit(segment, 0, 0);
    world_drop(segment);
}

int
main(int argc, char **argv)
{
    if (argc == 3) {
        segment_name = argv[2];
        return strcmp(argv[1], "fork") == 0 ? fork_meanwhile() : run_threads();
    }
    world_begin(60);
    RUN(threads_make_the_first_call_together);
    RUN(a_fork_during_the_first_call);
    RUN(threads_of_a_raw_clone);
    return world_end();
}
