/*
 * Fault injection: a verb runs in a child again and again, each time with another misfortune.
 *
 *   1. once undisturbed, to count its steps (SVI_STEP) and its calls of the system;
 *   2. once for each step and for each call, killed there (SIGKILL);
 *   3. once for each call and each error that it may give, failing once, and failing from then on.
 *
 * A verb that failed must say why, leave nothing behind, and work as soon as the fault is gone.
 * After each run another process recovers and audits the segment.
 */
#ifndef INJECTION_H
#define INJECTION_H

#include "world.h"

/* Whose steps and calls count when the verb forks. */
typedef enum inject_who { INJECT_ALL, INJECT_VICTIM, INJECT_ITS_CHILD } inject_who;

typedef struct injection {
    const char *what;
    void (*before)(const char *name);             /* in the test, for every run; may be NULL */
    void (*arrange)(const char *name);            /* in the child; not counted, nothing fails */
    int (*verb)(const char *name, sv_error *err); /* in the child; counted */
    /* In the child, nothing fails any more: repeat the verb if `status` is not 0, see that it did
     * its work, and give everything back. */
    void (*settle)(const char *name, int status);
    void (*after)(const char *name); /* in the test: recover and audit */
    unsigned steps;                  /* at least so many are passed */
    unsigned calls;
    inject_who who;
    bool silent;   /* the verb has no sv_error */
    bool cold;     /* `before` and `after` use no segment in the test's own process */
    bool inherits; /* it uses maps of the test's own: they are not counted */
} injection;

/* Run all of it; a line for people says how many runs there were. */
void inject_everywhere(const injection *what);
#define INJECT(...) inject_everywhere(&(const injection){__VA_ARGS__})

/* ---- what most verbs need ------------------------------------------------------------------ */

/* Opened in the test by inject_segment(): 3 chunks in 4 slots, 2 spares. */
extern sv_segment *inject_subject;
void inject_segment(const char *name);

/* The same, and a dead process that held two pins and a half-filled buffer. */
void inject_segment_with_dead(const char *name);

/* The same, and another one with a lower row, so that who attaches does not clean the first. */
void inject_segment_with_two_dead(const char *name);

/* Dead processes hold every free buffer; one more has the lowest row. */
void inject_segment_exhausted(const char *name);

/* Recover, audit, remove, and see that no file is left. */
void inject_audit(const char *name);

/* The child's own handle, with a row of its own; patience 20 ms, so that no run takes long. */
extern sv_segment *inject_mine;
int inject_attach(const char *name, sv_error *err);
void inject_attach_surely(const char *name);
void inject_detach(void);

#endif
