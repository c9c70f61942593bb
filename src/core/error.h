/* Filling in an sv_error, and the step hook of the testing build. */
#ifndef SVI_ERROR_H
#define SVI_ERROR_H

#include <stdbool.h>

#include "sharedvector/sharedvector.h"

/* Internal, never leave the core: somebody else is at work on the file, look again; this process has
 * no mapping of the file. */
#define SVI_ERETRY (-1000)
#define SVI_EUNKNOWN (-1001)

/* Describe a failure and return its code. `err` may be NULL. */
int svi_fail(sv_error *err, int code, int sys_errno, const char *operation, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* Does the caller want a call that waits or reserves to end (sv_interrupts)? Such a call ends at once: it
 * must not succeed afterwards. No lock held. */
bool svi_interrupted(void);

/* Copy a text, cut to size - 1 bytes, and terminate it. */
void svi_text_copy(char *out, size_t size, const char *text);

#ifdef SVI_TESTING
/* Called after each store that other processes can see; tests kill the process there. */
extern void (*svi_step_hook)(const char *name);
#define SVI_STEP(name)                                                                             \
    do {                                                                                           \
        if (svi_step_hook != NULL) {                                                               \
            svi_step_hook(name);                                                                   \
        }                                                                                          \
    } while (0)
#else
#define SVI_STEP(name) ((void)0)
#endif

#endif
