/*
 * Threads of one call. Each takes the next part when it has done one, so that a slow processor does
 * less. They are made for the call: keeping them would gain some 20 us of work that takes
 * milliseconds, and would have to be stopped at every fork.
 */
#include "parallel.h"

#include <pthread.h>
#include <signal.h>

#include "atomic.h"
#include "os.h"

typedef struct parallel_work {
    void (*run)(void *context, uint64_t part);
    void *context;
    uint64_t parts;
    svi_word next;
} parallel_work;

uint32_t
svi_parallel_threads(uint32_t wished, uint64_t bytes, uint64_t each)
{
    uint64_t useful = bytes / each;
    if (wished == 1 || useful < 2) {
        return 1;
    }
    uint64_t threads = wished != 0 ? wished : svi_os_processors();
    threads = threads < useful ? threads : useful;
    return threads < SVI_THREADS_MAX ? (uint32_t)threads : SVI_THREADS_MAX;
}

static void *
parallel_thread(void *argument)
{
    parallel_work *work = argument;
    for (;;) {
        uint64_t part = svi_add_relaxed(&work->next, 1); /* relaxed: counter only */
        if (part >= work->parts) {
            return NULL;
        }
        work->run(work->context, part);
    }
}

void
svi_parallel(uint32_t threads, uint64_t parts, void (*run)(void *context, uint64_t part),
             void *context)
{
    parallel_work work = {.run = run, .context = context, .parts = parts};
    pthread_t ids[SVI_THREADS_MAX];
    uint32_t started = 0;
    threads = threads < SVI_THREADS_MAX ? threads : SVI_THREADS_MAX;
    if (threads > 1 && parts > 1) {
        sigset_t all, before;
        (void)sigfillset(&all);
        /* The program's signal handlers run on its own threads. */
        (void)pthread_sigmask(SIG_SETMASK, &all, &before);
        while (started + 1 < threads && started + 1 < parts &&
               pthread_create(&ids[started], NULL, parallel_thread, &work) == 0) {
            started++;
        }
        (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    (void)parallel_thread(&work);
    while (started > 0) {
        (void)pthread_join(ids[--started], NULL);
    }
}
