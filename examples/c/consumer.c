/*
 * A consumer: attaches to a pool as soon as it is ready, reads chunks without copying them, and
 * checks each one.
 *
 *     consumer NAME [CHUNKS]
 *
 * Exit code 0 only if every chunk was whole.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "sharedvector/sharedvector.h"

/* All pixels hold the chunk's number, and the metadata says the same. */
static int
is_good(const sv_view *view)
{
    const float *pixels = view->data;
    double meta[SV_MAX_META];
    sv_chunk_info info;
    sv_view_info(view, &info);
    if (view->ndim != 2 || view->itemsize != sizeof(float) || sv_view_meta(view, meta) != 1 ||
        meta[0] != (double)info.source_index) {
        return 0;
    }
    for (uint64_t i = 0; i < view->shape[0] * view->shape[1]; i++) {
        if (pixels[i] != (float)info.source_index) {
            return 0;
        }
    }
    return 1;
}

int
main(int argc, char **argv)
{
    if (argc < 2 || argc > 3) {
        fprintf(stderr, "usage: %s NAME [CHUNKS]\n", argv[0]);
        return 2;
    }
    unsigned long wanted = argc > 2 ? strtoul(argv[2], NULL, 10) : 1000;
    unsigned long good = 0;
    uint64_t newest = 0;
    sv_segment *pool = NULL;
    sv_error err;
    if (sv_pool_attach(argv[1], NULL, NULL, UINT64_C(10000000000), &pool, &err) != 0) {
        fprintf(stderr, "consumer: %s\n", err.message);
        return 1;
    }
    uint32_t slots = sv_size(pool);
    for (unsigned long i = 0; i < wanted; i++) {
        sv_view view;
        sv_chunk_info info;
        int status = sv_pin(pool, (uint32_t)(i % slots), &view);
        if (status != 0) {
            fprintf(stderr, "consumer: %s\n", sv_error_text(status));
            break;
        }
        good += is_good(&view) ? 1 : 0;
        sv_view_info(&view, &info);
        newest = info.source_index > newest ? info.source_index : newest;
        sv_unpin(&view);
        if (i % slots == slots - 1) {
            struct timespec pause = {0, 1000000};
            (void)nanosleep(&pause, NULL); /* where a training step would be */
        }
    }
    printf("consumer: %lu of %lu chunks good, from %u slots, newest chunk %llu\n", good, wanted,
           slots, (unsigned long long)newest);
    if (sv_segment_close(pool, &err) != 0) {
        fprintf(stderr, "consumer: %s\n", err.message);
        return 1;
    }
    /* Chunks beyond the first filling show that the producer refreshed what we read. */
    return good == wanted && newest > slots ? 0 : 1;
}
