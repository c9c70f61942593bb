/*
 * The reporting of the C tests: TAP on standard output, one line per test function.
 *
 * A failed check prints file, line, expression and values, marks the running test and goes on; it
 * returns whether it held, so that `if (!CHECK(p != NULL)) return;` reads well. Checks work in
 * forked children too: the child's exit code tells the parent (see world_fork).
 */
#ifndef TAP_H
#define TAP_H

#include <stdbool.h>
#include <stdint.h>

#define CHECK(condition) tap_check((condition) ? true : false, __FILE__, __LINE__, #condition)

/* Integers and codes; both sides are compared and shown as signed 64-bit numbers. */
#define EQ(found, wanted)                                                                          \
    tap_equal((int64_t)(found), (int64_t)(wanted), __FILE__, __LINE__, #found " == " #wanted)

#define EQ_STR(found, wanted) tap_equal_text(found, wanted, __FILE__, __LINE__, #found)

/* The text contains the part: for messages that must name what was wanted, found and to be done. */
#define HAS(text, part) tap_contains(text, part, __FILE__, __LINE__, #text)

/* Leaves the test function (a void one) when a later line would crash. */
#define REQUIRE(condition)                                                                         \
    do {                                                                                           \
        if (!CHECK(condition)) {                                                                   \
            return;                                                                                \
        }                                                                                          \
    } while (0)

#define RUN(test) tap_run(#test, test)

bool tap_check(bool held, const char *file, int line, const char *expression);
bool tap_equal(int64_t found, int64_t wanted, const char *file, int line, const char *expression);
bool tap_equal_text(const char *found, const char *wanted, const char *file, int line,
                    const char *expression);
bool tap_contains(const char *text, const char *part, const char *file, int line,
                  const char *expression);

/* What is being tried just now; shown with every failed check until it is set again ("" clears). */
void tap_context(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A line for people. */
void tap_note(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Run one test function and print its line. */
void tap_run(const char *name, void (*test)(void));

/* A test that cannot run on this machine says why; it counts as passed and is listed at the end. */
void tap_skip(const char *reason);

/* Checks that failed since the last tap_reset(); a forked child starts with a reset. */
unsigned tap_failures(void);
void tap_reset(void);

/* Print plan and summary; the exit code of the program: 0, 1 for failures, 77 when every test was
 * skipped. */
int tap_done(void);

#endif
