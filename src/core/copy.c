/*
 * Copies into and out of the pool. A chunk that is written is not read again soon by who wrote it:
 * stores that bypass the cache (streaming stores) save the reading of each line before it is
 * written, and leave in the cache what was there.
 *
 * Four pages are copied side by side. The memory then works on four of its rows, and its prefetcher
 * on four streams; one stream alone reaches little more than half as much.
 */
#include "copy.h"

#include <string.h>
#include <unistd.h>

#include "atomic.h"
#include "parallel.h"
#include "sharedvector/sharedvector.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define COPY_HAS_STREAMING 1
#endif

#define COPY_LINE 64
#define COPY_PAGE 4096
#define COPY_THREAD_BYTES (UINT64_C(4) << 20) /* at least so much for each further thread */
#define COPY_PARTS_PER_THREAD 4
#define COPY_PIECE (128 << 10)

/* ---- streaming stores ---------------------------------------------------------------------- */

#ifdef COPY_HAS_STREAMING
#define COPY_PAGES 4
#define COPY_STEP (2 * COPY_LINE) /* processors fetch lines in pairs */
#define COPY_AHEAD 256            /* bytes; more gains nothing, and crosses into other pages */

__attribute__((target("avx512f"))) static inline void
copy_step_avx512(unsigned char *to, const unsigned char *from)
{
    __m512i a = _mm512_loadu_si512(from);
    __m512i b = _mm512_loadu_si512(from + 64);
    _mm512_stream_si512((void *)to, a);
    _mm512_stream_si512((void *)(to + 64), b);
}

__attribute__((target("avx2"))) static inline void
copy_step_avx2(unsigned char *to, const unsigned char *from)
{
    __m256i a = _mm256_loadu_si256((const __m256i *)(const void *)from);
    __m256i b = _mm256_loadu_si256((const __m256i *)(const void *)(from + 32));
    __m256i c = _mm256_loadu_si256((const __m256i *)(const void *)(from + 64));
    __m256i d = _mm256_loadu_si256((const __m256i *)(const void *)(from + 96));
    _mm256_stream_si256((__m256i *)(void *)to, a);
    _mm256_stream_si256((__m256i *)(void *)(to + 32), b);
    _mm256_stream_si256((__m256i *)(void *)(to + 64), c);
    _mm256_stream_si256((__m256i *)(void *)(to + 96), d);
}

/* Copy to a destination at the start of a line; returns how many bytes, up to COPY_STEP less than
 * asked for. */
#define COPY_STREAM(isa, features)                                                                 \
    __attribute__((target(features))) static size_t copy_stream_##isa(unsigned char *to,           \
                                                                      const unsigned char *from,   \
                                                                      size_t bytes)                \
    {                                                                                              \
        size_t done = 0;                                                                           \
        for (; bytes - done >= COPY_PAGES * COPY_PAGE; done += COPY_PAGES * COPY_PAGE) {           \
            for (size_t at = done; at < done + COPY_PAGE; at += COPY_STEP) {                       \
                for (size_t page = 0; page < COPY_PAGES * COPY_PAGE; page += COPY_PAGE) {          \
                    const unsigned char *next = from + at + page;                                  \
                    _mm_prefetch((const char *)next + COPY_AHEAD, _MM_HINT_T0);                    \
                    _mm_prefetch((const char *)next + COPY_AHEAD + COPY_LINE, _MM_HINT_T0);        \
                    copy_step_##isa(to + at + page, next);                                         \
                }                                                                                  \
            }                                                                                      \
        }                                                                                          \
        for (; bytes - done >= COPY_STEP; done += COPY_STEP) {                                     \
            copy_step_##isa(to + done, from + done);                                               \
        }                                                                                          \
        return done;                                                                               \
    }
COPY_STREAM(avx512, "avx512f")
COPY_STREAM(avx2, "avx2")

#ifdef SVI_TESTING
bool svi_testing_avx2_only;
#define COPY_MAY_USE_AVX512 (!svi_testing_avx2_only)
#else
#define COPY_MAY_USE_AVX512 true
#endif

static size_t
copy_stream(unsigned char *to, const unsigned char *from, size_t bytes)
{
    if (COPY_MAY_USE_AVX512 && __builtin_cpu_supports("avx512f")) {
        return copy_stream_avx512(to, from, bytes);
    }
    return __builtin_cpu_supports("avx2") ? copy_stream_avx2(to, from, bytes) : 0;
}
#endif

void
svi_copy_block(void *to_, const void *from_, size_t bytes, bool stream)
{
    unsigned char *to = to_;
    const unsigned char *from = from_;
#ifdef COPY_HAS_STREAMING
    size_t head = (size_t)(-(uintptr_t)to & (COPY_LINE - 1));
    if (stream && bytes >= head + COPY_STEP) {
        memcpy(to, from, head);
        head += copy_stream(to + head, from + head, bytes - head);
        to += head;
        from += head;
        bytes -= head;
    }
#endif
    (void)stream;
    if (bytes != 0) {
        memcpy(to, from, bytes);
    }
}

void
svi_copy_fence(void)
{
#ifdef COPY_HAS_STREAMING
    /* Streaming stores are not ordered by later atomics: without this the commit could pass them. */
    _mm_sfence();
#endif
}

/* ---- when ---------------------------------------------------------------------------------- */

#define COPY_CACHE_LEAST (UINT64_C(512) << 10) /* what is taken for a cache of unknown size, too */
#define COPY_CACHE_MOST (UINT64_C(4) << 20)
#define COPY_STREAM_LEAST                                                                          \
    (UINT64_C(16) << 10) /* waiting for the last stores costs more than it gains */

/* The cache that a processor has for itself, and the next one does not see into. */
static uint64_t
copy_cache_bytes(void)
{
    static svi_word known; /* 0: not asked for yet */
    uint64_t bytes = svi_load_relaxed(&known);
    if (bytes == 0) {
        long found = 0;
#ifdef _SC_LEVEL2_CACHE_SIZE
        found = sysconf(_SC_LEVEL2_CACHE_SIZE);
#endif
        bytes = found<(long)COPY_CACHE_LEAST ? COPY_CACHE_LEAST : found>(long) COPY_CACHE_MOST
                    ? COPY_CACHE_MOST
                    : (uint64_t)found;
        svi_store_relaxed(&known, bytes);
    }
    return bytes;
}

/* A quarter of the cache gains even where it is read again at once, as a batch is. Memory that is
 * written in turn and does not fit into the cache by far is never found there anyway. */
bool
svi_copy_streams(uint64_t bytes, uint64_t around)
{
    uint64_t cache = copy_cache_bytes();
    return bytes >= cache / 4 || (bytes >= COPY_STREAM_LEAST && around / 8 >= cache);
}

/* ---- threads ------------------------------------------------------------------------------- */

typedef struct copy_work {
    unsigned char *to;
    const unsigned char *from;
    size_t bytes;
    size_t each;
    bool stream;
} copy_work;

static void
copy_run_part(void *context, uint64_t part)
{
    const copy_work *work = context;
    size_t begin = (size_t)part * work->each;
    size_t bytes = work->bytes - begin < work->each ? work->bytes - begin : work->each;
    svi_copy_block(work->to + begin, work->from + begin, bytes, work->stream);
    if (work->stream) {
        svi_copy_fence();
    }
}

void
svi_copy_parallel(void *to, const void *from, size_t bytes, bool stream, uint32_t threads)
{
    copy_work work = {to, from, bytes, bytes, stream};
    uint64_t parts = 1;
    if (threads > 1) {
        size_t wished = bytes / (threads * COPY_PARTS_PER_THREAD);
        work.each = wished / COPY_PAGE * COPY_PAGE;
        parts = (bytes + work.each - 1) / work.each;
    }
    svi_parallel(threads, parts, copy_run_part, &work);
}

/* Who copies out of a pool reads the copy next: it stays in the cache. libc has streaming stores of
 * its own for large blocks, so that it is given small ones. */
void
sv_copy(void *destination, const void *source, size_t size_bytes, uint32_t threads)
{
    copy_work work = {destination, source, size_bytes, COPY_PIECE, false};
    svi_parallel(svi_parallel_threads(threads, size_bytes, COPY_THREAD_BYTES),
                 (size_bytes + COPY_PIECE - 1) / COPY_PIECE, copy_run_part, &work);
}
