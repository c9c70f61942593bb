/*
 * A producer: owns a pool, fills it, says that it is ready, and keeps refreshing the slots that have
 * been read until its time is over.
 *
 *     producer NAME [SECONDS]
 *
 * Each chunk is an image of 64 x 64 float32 whose pixels all hold the chunk's number, so that a
 * consumer can tell a good one. Stop it early with Ctrl-C: the pool is closed all the same.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "sharedvector/sharedvector.h"

#define SIDE 64
#define SLOTS 8

static volatile sig_atomic_t stopped;

static void
stop(int signal_number)
{
    (void)signal_number;
    stopped = 1;
}

static double
now_s(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void
sleep_ms(long milliseconds)
{
    struct timespec span = {milliseconds / 1000, milliseconds % 1000 * 1000000};
    (void)nanosleep(&span, NULL);
}

static void
draw(float *pixels, unsigned number)
{
    for (size_t i = 0; i < SIDE * SIDE; i++) {
        pixels[i] = (float)number;
    }
}

static sv_array
describe(const float *pixels)
{
    sv_array image = {.data = pixels,
                      .size_bytes = SIDE * SIDE * sizeof(float),
                      .itemsize = sizeof(float),
                      .ndim = 2,
                      .shape = {SIDE, SIDE}};
    return image;
}

/* Fill every slot from memory of our own. */
static int
fill_pool(sv_segment *pool, unsigned *number, sv_error *err)
{
    static float pixels[SIDE * SIDE];
    for (unsigned i = 0; i < SLOTS; i++) {
        draw(pixels, *number);
        sv_array image = describe(pixels);
        double meta = *number;
        sv_chunk chunk = {.arrays = &image,
                          .array_count = 1,
                          .meta = &meta,
                          .meta_count = 1,
                          .source_index = *number};
        int status = sv_append(pool, &chunk, NULL, err);
        if (status != 0) {
            return status;
        }
        ++*number;
    }
    return 0;
}

/* Draw straight into a free buffer and make it current: no copy, and no reader waits. */
static int
refresh(sv_segment *pool, uint32_t slot, unsigned *number, sv_error *err)
{
    sv_reservation reservation;
    int status = sv_reserve(pool, UINT64_C(1000000000), &reservation, err);
    if (status != 0) {
        return status;
    }
    draw(reservation.data, *number);
    sv_array image = describe(NULL); /* it lies in its place already */
    double meta = *number;
    sv_chunk chunk = {.arrays = &image,
                      .array_count = 1,
                      .meta = &meta,
                      .meta_count = 1,
                      .source_index = *number};
    status = sv_fill(&reservation, &chunk, err);
    if (status == 0) {
        status = sv_publish(&reservation, slot, err);
    }
    if (status != 0) {
        sv_cancel(&reservation);
        return status;
    }
    ++*number;
    return 0;
}

static int
refresh_until(sv_segment *pool, double end_s, unsigned *number, sv_error *err)
{
    while (!stopped && now_s() < end_s) {
        uint32_t slot = 0;
        int unread = 0;
        int status = sv_refresh_next(pool, &slot, &unread);
        if (status != 0) {
            (void)snprintf(err->message, sizeof err->message, "%s", sv_error_text(status));
            return status;
        }
        if (unread) {
            sleep_ms(1); /* nobody has read anything new: there is no hurry */
            continue;
        }
        status = refresh(pool, slot, number, err);
        if (status == SV_EINUSE) {
            sv_count_blocked(pool, 1);
        } else if (status != 0) {
            return status;
        }
    }
    return 0;
}

int
main(int argc, char **argv)
{
    if (argc < 2 || argc > 3) {
        fprintf(stderr, "usage: %s NAME [SECONDS]\n", argv[0]);
        return 2;
    }
    const char *name = argv[1];
    double seconds = argc > 2 ? strtod(argv[2], NULL) : 10.0;
    unsigned number = 1;
    sv_owner *owner = NULL;
    sv_segment *pool = NULL;
    sv_stats stats;
    sv_error err;
    int status;
    (void)signal(SIGINT, stop);
    (void)signal(SIGTERM, stop);

    if (sv_owner_acquire(name, NULL, NULL, &owner, &err) != 0) {
        fprintf(stderr, "producer: %s\n", err.message);
        return 1;
    }
    sv_options options;
    sv_options_init(&options);
    options.chunk_size = SIDE * SIDE * sizeof(float);
    options.slot_count = SLOTS;
    options.dtype = "float32";
    options.itemsize = sizeof(float);
    if (sv_pool_create(owner, &options, &pool, &err) != 0) {
        fprintf(stderr, "producer: %s\n", err.message);
        sv_owner_release(owner);
        return 1;
    }
    if ((status = fill_pool(pool, &number, &err)) != 0 ||
        (status = sv_ready_write(owner, &err)) != 0 ||
        (status = refresh_until(pool, now_s() + seconds, &number, &err)) != 0) {
        fprintf(stderr, "producer: %s\n", err.message);
    }
    sv_stats_get(pool, &stats);
    printf("producer: %u chunks made, %llu replaced, %llu times no buffer was free\n", number - 1,
           (unsigned long long)stats.replace_events, (unsigned long long)stats.blocked_replaces);
    if (sv_pool_close(owner, pool, &err) != 0) {
        fprintf(stderr, "producer: %s\n", err.message);
        return 1;
    }
    return status == 0 ? 0 : 1;
}
