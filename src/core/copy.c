/*
 * Copies into and out of the pool. Above the size of a cache, stores that bypass it (streaming
 * stores) are faster and leave the reader's data where it is; docs/RATIONALE.md has the figures.
 */
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "fork.h"
#include "os.h"
#include "pin.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define COPY_HAS_STREAMING 1
#endif

/* Below this a plain copy wins: the destination is read again soon, from the cache. */
#define COPY_STREAM_BYTES (UINT64_C(1) << 20)
#define COPY_THREAD_BYTES (UINT64_C(8) << 20) /* at least so much for each further thread */
#define COPY_THREADS_MAX 16

#ifdef COPY_HAS_STREAMING
__attribute__((target("avx2"))) static void
copy_stream_avx2(unsigned char *to, const unsigned char *from, size_t bytes)
{
    size_t head = (size_t)(-(uintptr_t)to & 31);
    head = head > bytes ? bytes : head;
    memcpy(to, from, head);
    to += head;
    from += head;
    bytes -= head;
    for (; bytes >= 128; bytes -= 128, to += 128, from += 128) {
        _mm_prefetch((const char *)from + 1024, _MM_HINT_NTA);
        _mm_prefetch((const char *)from + 1088, _MM_HINT_NTA);
        __m256i a = _mm256_loadu_si256((const __m256i *)(const void *)from);
        __m256i b = _mm256_loadu_si256((const __m256i *)(const void *)(from + 32));
        __m256i c = _mm256_loadu_si256((const __m256i *)(const void *)(from + 64));
        __m256i d = _mm256_loadu_si256((const __m256i *)(const void *)(from + 96));
        _mm256_stream_si256((__m256i *)(void *)to, a);
        _mm256_stream_si256((__m256i *)(void *)(to + 32), b);
        _mm256_stream_si256((__m256i *)(void *)(to + 64), c);
        _mm256_stream_si256((__m256i *)(void *)(to + 96), d);
    }
    memcpy(to, from, bytes);
    /* Streaming stores are not ordered by later atomics: without this the commit could pass them. */
    _mm_sfence();
}
#endif

static void
copy_one(unsigned char *to, const unsigned char *from, size_t bytes)
{
#ifdef COPY_HAS_STREAMING
    if (bytes >= COPY_STREAM_BYTES && __builtin_cpu_supports("avx2")) {
        copy_stream_avx2(to, from, bytes);
        return;
    }
#endif
    if (bytes != 0) {
        memcpy(to, from, bytes);
    }
}

/* ---- threads ------------------------------------------------------------------------------- */

/* A row of equal-sized jobs; each thread takes a fixed share of the bytes of all of them. */
typedef struct copy_share {
    unsigned char *to;
    const unsigned char *from;
    size_t bytes;
} copy_share;

static void *
copy_run_share(void *argument)
{
    const copy_share *share = argument;
    copy_one(share->to, share->from, share->bytes);
    return NULL;
}

static uint32_t
copy_choose_threads(uint64_t bytes, uint32_t wished)
{
    uint64_t threads = wished != 0 ? wished : svi_os_processors();
    uint64_t useful = bytes / COPY_THREAD_BYTES;
    threads = threads < useful ? threads : useful;
    threads = threads < COPY_THREADS_MAX ? threads : COPY_THREADS_MAX;
    return threads < 1 ? 1 : (uint32_t)threads;
}

void
sv_copy(void *destination, const void *source, size_t size_bytes, uint32_t threads)
{
    unsigned char *to = destination;
    const unsigned char *from = source;
    uint32_t count = threads == 1 ? 1 : copy_choose_threads(size_bytes, threads);
    if (count == 1) {
        copy_one(to, from, size_bytes);
        return;
    }
    copy_share shares[COPY_THREADS_MAX];
    pthread_t ids[COPY_THREADS_MAX];
    bool started[COPY_THREADS_MAX];
    size_t each = size_bytes / count / 4096 * 4096;
    for (uint32_t i = 0; i < count; i++) {
        size_t begin = i * each;
        size_t bytes = i + 1 == count ? size_bytes - begin : each;
        shares[i] = (copy_share){to + begin, from + begin, bytes};
        started[i] =
            i + 1 < count && pthread_create(&ids[i], NULL, copy_run_share, &shares[i]) == 0;
    }
    for (uint32_t i = 0; i < count; i++) {
        if (!started[i]) {
            (void)copy_run_share(&shares[i]);
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        if (started[i]) {
            (void)pthread_join(ids[i], NULL);
        }
    }
}

/* ---- gather -------------------------------------------------------------------------------- */

static int
copy_fail_shape(const svi_mapping *m, uint32_t slot, const sv_view *view, const sv_view *first,
                sv_error *err)
{
    return svi_fail(err, SV_EINVAL, 0, "gather",
                    "slot %u of '%s' holds %llu bytes in %u dimensions, the first one %llu in %u; "
                    "all chunks of a batch need one shape",
                    slot, m->name, (unsigned long long)view->size_bytes, view->ndim,
                    (unsigned long long)first->size_bytes, first->ndim);
}

static bool
copy_same_shape(const sv_view *a, const sv_view *b)
{
    return a->ndim == b->ndim && a->size_bytes == b->size_bytes && a->itemsize == b->itemsize &&
           memcmp(a->shape, b->shape, a->ndim * sizeof a->shape[0]) == 0;
}

int
sv_gather(sv_segment *segment, const uint32_t *slots, size_t count, void *out,
          uint64_t stride_bytes, uint32_t threads, sv_error *err)
{
    svi_mapping *m = svi_mapping_of(segment);
    sv_view first;
    int status = 0;
    memset(&first, 0, sizeof first);
    if (m == NULL) {
        return svi_fail(err, SV_ECLOSED, 0, "gather", "the handle is closed");
    }
    for (size_t i = 0; i < count && status == 0; i++) {
        sv_view view;
        /* Between enter and leave no fork happens, so that a child never inherits this pin. */
        svi_gate_enter();
        status = sv_pin(segment, slots[i], &view);
        if (status != 0) {
            svi_gate_leave();
            return svi_fail(err, status, 0, "gather", "item %zu, slot %u of '%s': %s", i, slots[i],
                            m->name, sv_error_text(status));
        }
        if (i == 0) {
            first = view;
        }
        if (view.size_bytes > stride_bytes) {
            status = svi_fail(err, SV_EINVAL, 0, "gather",
                              "slot %u of '%s' holds %llu bytes, the output has room for %llu",
                              slots[i], m->name, (unsigned long long)view.size_bytes,
                              (unsigned long long)stride_bytes);
        } else if (!copy_same_shape(&view, &first)) {
            status = copy_fail_shape(m, slots[i], &view, &first, err);
        } else {
            sv_copy((unsigned char *)out + i * stride_bytes, view.data, view.size_bytes, threads);
        }
        sv_unpin(&view);
        svi_gate_leave();
    }
    return status;
}
