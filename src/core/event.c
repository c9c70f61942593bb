/*
 * Events (rules N1-N3), and the two that users wait for: a slot that changed, slots that are filled.
 *
 * A sleeper marks the word and looks at its condition then; a waker brings the condition about and
 * looks at the word then. In the single order of these four one of them sees the other: that is all
 * that keeps a wake from being lost (edges E14, E15).
 */
#include "event.h"

#include <errno.h>

#include "error.h"
#include "os.h"
#include "row.h"
#include "stats.h"

/* The half of the word that the kernel compares. */
static const void *
event_futex(const svi_word *word)
{
    const unsigned char *bytes = (const unsigned char *)word;
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    bytes += 4;
#endif
    return bytes;
}

uint64_t
svi_event_arm(unsigned char *rw, enum svi_event event)
{
    svi_word *word = &svi_header_at(rw)->h_events[event];
    uint64_t armed = svi_or_seq(word, SVI_EVENT_SLEEPERS) | SVI_EVENT_SLEEPERS; /* E14 */
    SVI_STEP("event.armed");
    return armed;
}

bool
svi_event_sleep(unsigned char *rw, enum svi_event event, uint64_t armed, uint64_t limit_ns)
{
    uint64_t most = event == SVI_EVENT_FREE ? SVI_EVENT_FREE_SLICE_NS : SVI_EVENT_SLICE_NS;
    uint64_t slice = limit_ns < most ? limit_ns : most;
    const svi_word *word = &svi_header_at(rw)->h_events[event];
    return svi_os_futex_wait(event_futex(word), (uint32_t)armed, slice) != -ETIMEDOUT;
}

void
svi_event_wake(unsigned char *rw, enum svi_event event)
{
    svi_word *word = &svi_header_at(rw)->h_events[event];
    uint64_t seen = svi_load_seq(word); /* E14 */
    /* The next count, without the bit. Whoever loses this swap leaves the wake to the winner. */
    if ((seen & SVI_EVENT_SLEEPERS) != 0 &&
        svi_cas_seq(word, seen, (uint32_t)(seen + SVI_EVENT_SLEEPERS))) { /* E14 */
        SVI_STEP("event.swapped");
        svi_os_futex_wake(event_futex(word));
    }
}

/* ---- waiting ------------------------------------------------------------------------------- */

/* What a caller waits for. `holds` says whether it is so, or sets a code that ends the wait. */
typedef struct event_wait {
    enum svi_event event;
    bool (*holds)(const svi_mapping *m, struct event_wait *wait);
    uint32_t slot;
    uint32_t count;
    uint64_t version;
    int status;
    const char *what;
} event_wait;

/* Why there is nothing to wait for any more; 0: there is. */
static int
event_end(svi_mapping *m, const event_wait *wait, uint64_t waited_ns, uint64_t timeout_ns,
          sv_error *err)
{
    const sv_segment self = {.mapping = m};
    if (svi_load_seq(&m->closing) != 0) { /* E11 (V2) */
        return svi_fail(err, SV_ECLOSED, 0, "wait", "the handle was closed meanwhile");
    }
    if (m->g.kind != SVI_KIND_BLOCK && sv_retired_get(&self) != SV_RETIRED_NO) {
        return svi_fail(err, SV_ESTALLED, 0, "wait",
                        "'%s' is no longer refreshed, so that %s cannot be waited for: its owner "
                        "closed it or died, or its producer was given up",
                        m->name, wait->what);
    }
    return waited_ns < timeout_ns
               ? 0
               : svi_fail(err, SV_ETIMEDOUT, 0, "wait", "'%s': no %s within %.3f s", m->name,
                          wait->what, (double)waited_ns / 1e9);
}

static int
event_wait_mapped(svi_mapping *m, unsigned char *rw, event_wait *wait, uint64_t timeout_ns,
                  sv_error *err)
{
    uint64_t started = svi_os_monotonic_ns();
    for (bool woken = false;;) {
        if (wait->holds(m, wait) || wait->status != 0) {
            return wait->status == 0 ? 0 : svi_fail(err, wait->status, 0, "wait", "%s", wait->what);
        }
        uint64_t waited = svi_os_monotonic_ns() - started;
        int status = event_end(m, wait, waited, timeout_ns, err);
        if (status != 0) {
            return status;
        }
        if (woken) {
            svi_os_sleep_ns(SVI_EVENT_PAUSE_NS);
        }
        uint64_t armed = svi_event_arm(rw, wait->event);
        woken = false;
        if (!wait->holds(m, wait) && wait->status == 0) { /* E15 */
            woken = svi_event_sleep(rw, wait->event, armed, timeout_ns - waited);
        }
    }
}

static int
event_wait_for(sv_segment *segment, event_wait *wait, uint64_t timeout_ns, sv_error *err)
{
    svi_mapping *m = svi_mapping_of(segment);
    unsigned char *rw = NULL;
    if (m == NULL) {
        return svi_fail(err, SV_ECLOSED, 0, "wait", "the handle is closed");
    }
    int status = svi_writable(m, &rw, err);
    if (status != 0) {
        return status;
    }
    svi_add_seq(&m->looking, 1); /* E12: nobody unmaps while we look (V2) */
    status = event_wait_mapped(m, rw, wait, timeout_ns, err);
    (void)svi_sub_seq(&m->looking, 1);    /* E12 */
    if (svi_load_seq(&m->closing) != 0) { /* E11 (V2) */
        svi_mapping_settle(m);
    }
    return status;
}

static bool
event_is_filled(const svi_mapping *m, event_wait *wait)
{
    return svi_load_seq(&svi_header(m)->h_size) >= wait->count; /* E5, E15 */
}

static bool
event_is_changed(const svi_mapping *m, event_wait *wait)
{
    sv_slot_stats now = {.writes = wait->version};
    int status = svi_stats_slot(m, wait->slot, false, &now);
    if (status != 0 && status != SV_EMODIFIED) { /* that one changes just now: look again */
        wait->status = status;
        return false;
    }
    bool changed = status == 0 && now.writes != wait->version;
    if (changed) {
        wait->version = now.writes;
    }
    return changed;
}

int
sv_wait_filled(sv_segment *segment, uint32_t count, uint64_t timeout_ns, sv_error *err)
{
    const svi_mapping *m = svi_mapping_of(segment);
    event_wait wait = {.event = SVI_EVENT_FILLED,
                       .holds = event_is_filled,
                       .count = count,
                       .what = "number of filled slots that was asked for"};
    if (m != NULL && count > m->g.slot_count) {
        return svi_fail(err, SV_EINVAL, 0, "wait", "'%s' has %u slots: %u can never be filled",
                        m->name, m->g.slot_count, count);
    }
    return event_wait_for(segment, &wait, timeout_ns, err);
}

int
sv_wait_changed(sv_segment *segment, uint32_t slot, uint64_t version, uint64_t timeout_ns,
                uint64_t *now, sv_error *err)
{
    event_wait wait = {.event = SVI_EVENT_CHANGED,
                       .holds = event_is_changed,
                       .slot = slot,
                       .version = version,
                       .what = "other chunk in the slot"};
    int status = event_wait_for(segment, &wait, timeout_ns, err);
    if (status == 0 && now != NULL) {
        *now = wait.version;
    }
    return status;
}
