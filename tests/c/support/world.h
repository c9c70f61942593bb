/*
 * The surroundings of a test program: a directory of its own on /dev/shm that must be empty at the
 * end, segments with stamped chunks, children under a time limit, and the audit that no pin, no
 * buffer and no chunk is lost.
 */
#ifndef WORLD_H
#define WORLD_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "segment.h"
#include "tap.h"

/* Some things cannot be done under sanitizers; tests say so and skip them. */
#if defined(__has_feature)
#define WORLD_HAS_FEATURE(feature) __has_feature(feature)
#else
#define WORLD_HAS_FEATURE(feature) 0
#endif
#if defined(__SANITIZE_THREAD__) || WORLD_HAS_FEATURE(thread_sanitizer)
#define WORLD_THREAD_SANITIZER 1
#else
#define WORLD_THREAD_SANITIZER 0
#endif
#if defined(__SANITIZE_ADDRESS__) || WORLD_HAS_FEATURE(address_sanitizer)
#define WORLD_ADDRESS_SANITIZER 1
#else
#define WORLD_ADDRESS_SANITIZER 0
#endif
#define WORLD_SANITIZED (WORLD_THREAD_SANITIZER || WORLD_ADDRESS_SANITIZER)

/* Make the directory (in /dev/shm, or WORLD_WITHIN: a short path there, for programs that an engine
 * ends by SIGKILL), point SHAREDVECTOR_SHM_DIR and SHAREDVECTOR_LOCK_DIR to it, and end the whole
 * program when it takes three times `limit_s` seconds, which is ample for a machine that has time (0:
 * never). WORLD_PATIENCE in the environment multiplies this limit and all others, for slow
 * (instrumented) builds. */
void world_begin(unsigned limit_s);

/* Fail on leftovers, remove the directory, print the summary; the exit code of the program. */
int world_end(void);

const char *world_directory(void);

/* A name that no other test uses; valid until 16 more were asked for. */
const char *world_name(const char *tag);

/* directory/name + suffix, in a static buffer. */
const char *world_path(const char *name, const char *suffix);

/* Does the file exist in the world's directory? */
bool world_exists(const char *name, const char *suffix);

/* Files in the world's directory, hidden ones included. */
unsigned world_files(void);

/* Write a file of `bytes` bytes of `value`. */
void world_junk(const char *name, int value, size_t bytes);

/* ---- segments ------------------------------------------------------------------------------ */

/* 4 slots, 2 spares, chunks of 1024 bytes, uint64, 16 rows, 2 arrays, 8 samples. */
sv_options world_options(void);

/* Memory, or the end of the program. */
void *world_memory(size_t bytes);

/* Open or end the program; NULL options: world_options(). */
sv_segment *world_open(const char *name, const sv_options *options, int flags);

/* Open and close again; the code of the opening. A failed one must have left the handle alone. */
int world_try_open(const char *name, const sv_options *options, int flags, sv_error *err);

/* A segment with `size` stamped chunks: slot i holds stamp i + 1. */
sv_segment *world_segment(const char *name, uint32_t size);

/* Close and remove; both must succeed. */
void world_drop(sv_segment *segment);

/* Write a chunk whose every word is `stamp`; meta and source say the same. Codes of the calls. */
int world_append(sv_segment *segment, uint64_t stamp);
int world_fill(sv_reservation *reservation, uint64_t stamp);
int world_publish(sv_segment *segment, uint32_t slot, uint64_t stamp);
int world_replace(sv_segment *segment, uint32_t slot, uint64_t stamp);

/* Rows of living processes. */
uint32_t world_living(const sv_segment *segment);

/* Is the chunk whole, and what is its stamp? */
bool world_whole(const sv_view *view, uint64_t *stamp);

/* Stamp of a slot's chunk, read through a quiet pin; 0 and a failed check when it is not whole. */
uint64_t world_stamp(sv_segment *segment, uint32_t slot);

/*
 * Recover, then nothing may be lost: sv_check passes, no row but the living, no claim, every chunk
 * whole, exactly `pins` pins, and all buffers beyond the slots (less `held`) can be reserved at once.
 */
void world_audit(sv_segment *segment, uint64_t pins, uint32_t held);

/* ---- many processes in one ----------------------------------------------------------------- */

/* A second attached "process": a handle with a row of its own over the SAME map, so that
 * ThreadSanitizer sees its races with the first (it sees none between two maps of one file).
 * svi_testing_single_map must be set before the first handle is opened. */
sv_segment *world_twin(sv_segment *of);
void world_twin_close(sv_segment *twin);

/* As if its process were killed: the lock goes, everything else stays. */
void world_twin_kill(sv_segment *twin);

/* ---- processes ----------------------------------------------------------------------------- */

#define WORLD_WAIT_MS 20000

/* A time limit for verbs that must not wait: one that does is ended with the program. */
#define WORLD_NEVER_NS UINT64_C(36000000000000)

/* How long a thing may take at most, here: so many seconds times WORLD_PATIENCE, in nanoseconds. */
uint64_t world_limit_ns(unsigned seconds);

/* Run body(argument) in a child that dies with its parent. It exits with the result of body, or 99
 * when one of its checks failed. */
pid_t world_fork(int (*body)(void *argument), void *argument);

/* _exit() that writes the counts of a coverage build first. */
void world_exit(int code) __attribute__((noreturn));

/* Exit code, or 128 + signal. A child that takes longer than `timeout_ms` is killed: -1 and a
 * failed check. */
int world_wait(pid_t pid, unsigned timeout_ms);

/* SIGKILL and wait. */
void world_kill(pid_t pid);

/* world_fork and world_wait in one; the exit code must be 0. */
void world_child(int (*body)(void *argument), void *argument);

#define WORLD_FLAGS 64

/* Words shared with all children, zeroed by world_flags_clear(). */
extern svi_word *world_flags;
void world_flags_clear(void);

/* Wait until the flag is at least `value`; false and a failed check after WORLD_WAIT_MS. */
bool world_await(const svi_word *flag, uint64_t value);
void world_set(svi_word *flag, uint64_t value);

/* Pseudo-random numbers from a printed seed (SEED in the environment repeats a run). */
uint64_t world_seed(void);
uint64_t world_random(uint64_t *state);

#endif
