/*
 * Every atomic access of sharedvector goes through this file; its names carry the memory order.
 *
 * Protocol words use the `_seq` forms: the proof in docs/PROTOCOL.md needs one total order of pin,
 * re-check, commit and scan. There are no stand-alone fences, so ThreadSanitizer sees every edge.
 */
#ifndef SVI_ATOMIC_H
#define SVI_ATOMIC_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef _Atomic(uint64_t) svi_word;

/* Lock-free means address-free: the words work between processes that map them elsewhere. */
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "64-bit atomics must be lock-free");
_Static_assert(sizeof(svi_word) == 8, "an atomic word is 8 bytes");

static inline uint64_t
svi_load_relaxed(const svi_word *word)
{
    return atomic_load_explicit(word, memory_order_relaxed);
}

static inline uint64_t
svi_load_acquire(const svi_word *word)
{
    return atomic_load_explicit(word, memory_order_acquire);
}

static inline uint64_t
svi_load_seq(const svi_word *word)
{
    return atomic_load_explicit(word, memory_order_seq_cst);
}

static inline void
svi_store_relaxed(svi_word *word, uint64_t value)
{
    atomic_store_explicit(word, value, memory_order_relaxed);
}

static inline void
svi_store_release(svi_word *word, uint64_t value)
{
    atomic_store_explicit(word, value, memory_order_release);
}

static inline void
svi_store_seq(svi_word *word, uint64_t value)
{
    atomic_store_explicit(word, value, memory_order_seq_cst);
}

/* The read-modify-write forms return the value before. */
static inline uint64_t
svi_add_relaxed(svi_word *word, uint64_t amount)
{
    return atomic_fetch_add_explicit(word, amount, memory_order_relaxed);
}

static inline uint64_t
svi_add_seq(svi_word *word, uint64_t amount)
{
    return atomic_fetch_add_explicit(word, amount, memory_order_seq_cst);
}

static inline uint64_t
svi_sub_seq(svi_word *word, uint64_t amount)
{
    return atomic_fetch_sub_explicit(word, amount, memory_order_seq_cst);
}

static inline uint64_t
svi_and_seq(svi_word *word, uint64_t mask)
{
    return atomic_fetch_and_explicit(word, mask, memory_order_seq_cst);
}

static inline uint64_t
svi_or_seq(svi_word *word, uint64_t mask)
{
    return atomic_fetch_or_explicit(word, mask, memory_order_seq_cst);
}

static inline bool
svi_cas_seq(svi_word *word, uint64_t expected, uint64_t desired)
{
    return atomic_compare_exchange_strong_explicit(word, &expected, desired, memory_order_seq_cst,
                                                   memory_order_seq_cst);
}

/* Raise to at least `value`; a plain load and store would lose a higher value of another process. */
static inline void
svi_max_seq(svi_word *word, uint64_t value)
{
    uint64_t now = svi_load_seq(word);
    while (now < value &&
           !atomic_compare_exchange_weak_explicit(word, &now, value, memory_order_seq_cst,
                                                  memory_order_seq_cst)) {
    }
}

#endif
