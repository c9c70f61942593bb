/* What happens at the steps of the core (SVI_STEP): count them, stop there, or be killed there. */
#ifndef STEPS_H
#define STEPS_H

#include "world.h"

/* Count the steps of this process and its later children, and note the last one's name. */
void steps_count(void);
uint64_t steps_counted(void);

/* SIGKILL to whoever comes to the nth step from now, or to the nth step of that name. */
void steps_kill_at(uint64_t nth);
void steps_kill_on(const char *name, uint64_t nth);

/* At the first step of that name raise *arrived to 1 and wait until *go is 1. */
void steps_pause_on(const char *name, svi_word *arrived, svi_word *go);

void steps_off(void);

/* Name of the step at which the last killed process was. */
const char *steps_last(void);

/*
 * Run `victim` in a child once to count its steps, then once for each step, killed there. `before`
 * and `after` run in this process, each time with a fresh name. Returns the number of kills.
 */
unsigned steps_kill_everywhere(const char *what, void (*before)(const char *name),
                               int (*victim)(void *name), void (*after)(const char *name));

#endif
