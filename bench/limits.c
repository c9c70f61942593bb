/* What the machine can do at best: plain and streaming copies, a gather, an atomic addition and
 * accesses to scattered places. Loaded by limits.py; nothing of the package is used. */

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { LINE = 64, PAGE = 4096, THREADS_MAX = 16 };

static double
lim_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

#if defined(__x86_64__)
/* Four pages side by side, two lines of each in turn: the memory serves several streams faster than
 * one. `bytes` is a multiple of four pages. */
__attribute__((target("avx512f"))) static void
lim_stream_512(char *to, const char *from, size_t bytes)
{
    for (size_t block = 0; block < bytes; block += 4 * PAGE) {
        for (size_t line = 0; line < PAGE; line += 2 * LINE) {
            for (size_t page = 0; page < 4 * PAGE; page += PAGE) {
                size_t at = block + page + line;
                _mm_prefetch(from + at + 8 * LINE, _MM_HINT_T0);
                _mm_prefetch(from + at + 9 * LINE, _MM_HINT_T0);
                __m512i a = _mm512_loadu_si512(from + at);
                __m512i b = _mm512_loadu_si512(from + at + LINE);
                _mm512_stream_si512((__m512i *)(to + at), a);
                _mm512_stream_si512((__m512i *)(to + at + LINE), b);
            }
        }
    }
    _mm_sfence();
}

__attribute__((target("avx2"))) static void
lim_stream_256(char *to, const char *from, size_t bytes)
{
    for (size_t block = 0; block < bytes; block += 4 * PAGE) {
        for (size_t line = 0; line < PAGE; line += LINE) {
            for (size_t page = 0; page < 4 * PAGE; page += PAGE) {
                size_t at = block + page + line;
                _mm_prefetch(from + at + 8 * LINE, _MM_HINT_T0);
                __m256i a = _mm256_loadu_si256((const __m256i *)(from + at));
                __m256i b = _mm256_loadu_si256((const __m256i *)(from + at + LINE / 2));
                _mm256_stream_si256((__m256i *)(to + at), a);
                _mm256_stream_si256((__m256i *)(to + at + LINE / 2), b);
            }
        }
    }
    _mm_sfence();
}
#endif

void
lim_copy(char *to, const char *from, size_t bytes)
{
    memcpy(to, from, bytes);
}

/* Copies past the caches: `to` on a cache line, `bytes` a multiple of four pages. */
void
lim_stream(char *to, const char *from, size_t bytes)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) {
        lim_stream_512(to, from, bytes);
        return;
    }
    if (__builtin_cpu_supports("avx2")) {
        lim_stream_256(to, from, bytes);
        return;
    }
#endif
    memcpy(to, from, bytes);
}

typedef struct {
    char *to;
    const char *const *from;
    size_t items, bytes, begin, end;
} lim_part;

/* Copies bytes begin..end of the batch, which is the items one after the other. */
static void *
lim_gather_part(void *argument)
{
    const lim_part *part = argument;
    for (size_t at = part->begin; at < part->end;) {
        size_t item = at / part->bytes;
        size_t item_end = (item + 1) * part->bytes;
        size_t end = item_end < part->end ? item_end : part->end;
        lim_stream(part->to + at, part->from[item] + (at - item * part->bytes), end - at);
        at = end;
    }
    return NULL;
}

/* Streams `items` items of `bytes` (a multiple of four pages) into one batch, in `threads` parts.
 * Returns the seconds that it took, negative when a thread could not be started. */
double
lim_gather(char *to, const char *const *from, size_t items, size_t bytes, unsigned threads)
{
    lim_part parts[THREADS_MAX];
    pthread_t helpers[THREADS_MAX];
    size_t count = threads < 1 ? 1 : threads > THREADS_MAX ? THREADS_MAX : threads;
    size_t share = (items * bytes / count + 4 * PAGE - 1) / (4 * PAGE) * (4 * PAGE);
    double start = lim_now();
    size_t running = 0;
    for (; running < count; running++) {
        size_t begin = running * share < items * bytes ? running * share : items * bytes;
        size_t end = begin + share < items * bytes ? begin + share : items * bytes;
        parts[running] = (lim_part){to, from, items, bytes, begin, end};
        if (running > 0 &&
            pthread_create(&helpers[running], NULL, lim_gather_part, &parts[running]) != 0) {
            break;
        }
    }
    lim_gather_part(&parts[0]);
    for (size_t i = 1; i < running; i++) {
        pthread_join(helpers[i], NULL);
    }
    return running == count ? lim_now() - start : -1.0;
}

/* Seconds per copy of `bytes` to one place after the other; places count in `stride`s. */
double
lim_scatter(char *base, const uint32_t *places, size_t count, size_t stride, const char *from,
            size_t bytes)
{
    double start = lim_now();
    for (size_t i = 0; i < count; i++) {
        memcpy(base + places[i] * stride, from, bytes);
    }
    return (lim_now() - start) / (double)count;
}

/* Seconds per atomic addition and its subtraction on one word after the other: what a pin and its
 * release cannot do without. */
double
lim_atomic(char *base, const uint32_t *places, size_t count, size_t stride)
{
    double start = lim_now();
    for (size_t i = 0; i < count; i++) {
        _Atomic uint64_t *word = (_Atomic uint64_t *)(void *)(base + places[i] * stride);
        atomic_fetch_add(word, 1);
        atomic_fetch_sub(word, 1);
    }
    return (lim_now() - start) / (double)count;
}
