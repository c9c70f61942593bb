/*
 * Events (rules N1-N4): sleeping in the kernel until another process has changed something.
 *
 * Each event is a word of the header whose lower half is a futex: bit 0 says that somebody sleeps, the
 * rest counts wakes. Whoever brings an event about looks at the word afterwards, one load of a line
 * that nobody writes while nobody sleeps.
 */
#ifndef SVI_EVENT_H
#define SVI_EVENT_H

#include "mapping.h"

/* Sleepers look again at least so often: a waker may be killed before it wakes, an older version never
 * wakes, and neither the death of an owner nor a closed handle is an event. */
#define SVI_EVENT_SLICE_NS UINT64_C(500000000)
/* ... and for a free buffer: a reader's death is no event either (rule N4). */
#define SVI_EVENT_FREE_SLICE_NS UINT64_C(100000000)

/* After a wake, so that those who wake pay for it once in a millisecond at most. */
#define SVI_EVENT_PAUSE_NS UINT64_C(1000000)

/* Say that we are about to sleep; look at the condition afterwards (rule N1). */
uint64_t svi_event_arm(unsigned char *rw, enum svi_event event);

/* Sleep until the event comes after `armed`, at most a slice. True: it came. */
bool svi_event_sleep(unsigned char *rw, enum svi_event event, uint64_t armed, uint64_t limit_ns);

/* Wake those who sleep. */
void svi_event_wake(unsigned char *rw, enum svi_event event);

/* Does somebody sleep? A hint, for those who cannot look afterwards (rule N4). */
static inline bool
svi_event_is_awaited(const svi_mapping *m, enum svi_event event)
{
    return (svi_load_relaxed(&svi_header(m)->h_events[event]) & SVI_EVENT_SLEEPERS) != 0; /* N4 */
}

/* Called after what brings the event about (rule N2), while the map is sure to stay. */
static inline void
svi_event_tell(unsigned char *rw, enum svi_event event)
{
    uint64_t word = svi_load_seq(&svi_header_at(rw)->h_events[event]); /* E14 */
    if (__builtin_expect((word & SVI_EVENT_SLEEPERS) != 0, 0)) {
        svi_event_wake(rw, event);
    }
}

#endif
