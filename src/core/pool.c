/* Whole pools, for programs without Python: owner, segment and marker in their right order. */
#include <errno.h>
#include <string.h>

#include "error.h"
#include "event.h"
#include "fork.h"
#include "os.h"
#include "owner.h"
#include "segment.h"

#define POOL_POLL_NS UINT64_C(20000000)

/* ---- retirement ---------------------------------------------------------------------------- */

int
sv_owner_live(const sv_segment *segment)
{
    svi_mapping *m = svi_mapping_of(segment);
    if (m == NULL || m->owned == 0 || svi_process_lock(NULL) != 0) {
        return 0;
    }
    int probe = svi_probe(m);
    int live = probe < 0 || svi_os_lock_test(probe, SVI_LOCK_OWNER) != 0;
    svi_process_unlock();
    return live;
}

int
sv_retired_get(const sv_segment *segment)
{
    const svi_mapping *m = svi_mapping_of(segment);
    if (m == NULL) {
        return SV_RETIRED_NO;
    }
    uint64_t reason = svi_load_relaxed(&svi_header(m)->h_retired); /* set once, read alone */
    if (reason != SV_RETIRED_NO) {
        return reason > SV_RETIRED_PRODUCER ? SV_RETIRED_PRODUCER : (int)reason;
    }
    return m->owned != 0 && !sv_owner_live(segment) ? SV_RETIRED_OWNER_DIED : SV_RETIRED_NO;
}

void
sv_retire(sv_segment *segment, sv_retired reason)
{
    svi_mapping *m = svi_mapping_of(segment);
    unsigned char *rw = NULL;
    /* Of a block the word says more: that nobody may look at it any more (B2). */
    if (m != NULL && m->g.kind != SVI_KIND_BLOCK && svi_writable(m, &rw, NULL) == 0) {
        /* relaxed would do: set once, read alone */
        (void)svi_cas_seq(&svi_header_at(rw)->h_retired, SV_RETIRED_NO, (uint64_t)reason);
        SVI_STEP("retire.set");
        svi_event_tell(rw, SVI_EVENT_CHANGED);
        svi_event_tell(rw, SVI_EVENT_FILLED);
    }
}

/* ---- pools --------------------------------------------------------------------------------- */

/* SV_ENOENT and SV_EFORMAT: not ready yet. */
static int
pool_attach_once(const char *name, const char *lock_dir, const sv_options *options,
                 sv_segment **out, sv_error *err)
{
    char generation[SV_GENERATION_BYTES];
    sv_segment *segment = NULL;
    sv_info info;
    int status = sv_ready_read(name, lock_dir, generation, err);
    if (status != 0 ||
        (status = sv_segment_open(name, options, SV_OPEN_ATTACH, &segment, err)) != 0) {
        return status;
    }
    (void)sv_segment_info(segment, &info);
    if (strcmp(info.generation, generation) != 0) {
        status = svi_fail(err, SV_ENOENT, 0, "attach to pool",
                          "the marker is of generation %s, the segment of %s", generation,
                          info.generation);
    } else if (info.owned != 0 && !sv_owner_live(segment)) {
        status = svi_fail(err, SV_ENOENT, 0, "attach to pool", "the owner of '%s' is dead", name);
    }
    if (status != 0) {
        (void)sv_segment_close(segment, NULL);
        return status;
    }
    *out = segment;
    return 0;
}

int
sv_pool_attach(const char *name, const char *lock_dir, const sv_options *options,
               uint64_t timeout_ns, sv_segment **out, sv_error *err)
{
    sv_options defaults;
    sv_error last;
    memset(&last, 0, sizeof last);
    if (options == NULL) {
        sv_options_init(&defaults);
        options = &defaults;
    }
    uint64_t started = svi_os_monotonic_ns();
    for (;;) {
        int status = pool_attach_once(name, lock_dir, options, out, &last);
        if (status != SV_ENOENT && status != SV_EFORMAT) {
            if (status != 0 && err != NULL) {
                *err = last;
            }
            return status; /* attached, or waiting does not help */
        }
        if (svi_os_monotonic_ns() - started >= timeout_ns) {
            return svi_fail(err, SV_ETIMEDOUT, 0, "attach to pool",
                            "pool '%s' was not ready within %.1f s: %.700s", name,
                            (double)timeout_ns / 1e9, last.message);
        }
        if (svi_interrupted()) {
            return svi_fail(err, SV_ETIMEDOUT, 0, "attach to pool",
                            "interrupted while waiting for pool '%s'", name);
        }
        svi_os_sleep_ns(POOL_POLL_NS);
    }
}

/* SV_EBUSY: the pool or block has a living owner; `advice` says what to do about it. */
static int
pool_check_free(const char *name, const char *directory, sv_listed *item, const char *advice,
                sv_error *err)
{
    int status = sv_look(name, directory, item, err);
    if (status != 0 || item->owner_live == 0) {
        return status;
    }
    return svi_fail(err, SV_EBUSY, 0, item->block ? "remove block" : "remove pool",
                    "%s '%s' is in use by its %s, process %d (%.60s); %s",
                    item->block ? "block" : "pool", name, item->block ? "maker" : "owner",
                    (int)item->owner_pid, item->owner_command, advice);
}

int
sv_pool_create(sv_owner *owner, const sv_options *options, sv_segment **out, sv_error *err)
{
    sv_options wanted;
    sv_listed found;
    int status;
    if (options == NULL) {
        sv_options_init(&wanted);
    } else if ((status = svi_options_check(options, err)) != 0) {
        return status;
    } else {
        wanted = *options;
    }
    /* A living owner keeps its marker too. Then marker first: nobody attaches to a segment that is about
     * to be replaced. */
    if ((status = svi_owner_set_mode(owner, wanted.mode, err)) != 0 ||
        (status = pool_check_free(svi_owner_name(owner), wanted.directory, &found,
                                  "end it; or, if it uses another lock directory (lock_dir, "
                                  "SHAREDVECTOR_LOCK_DIR), use that one",
                                  err)) == SV_EBUSY ||
        (status = sv_ready_clear(owner, err)) != 0) {
        return status;
    }
    wanted.owned = 1;
    wanted.generation = sv_owner_generation(owner);
    return sv_segment_open(svi_owner_name(owner), &wanted, SV_OPEN_REPLACE, out, err);
}

int
sv_pool_close(sv_owner *owner, sv_segment *segment, sv_error *err)
{
    int status;
    if (!svi_owner_is_mine(owner)) {
        return svi_fail(err, SV_EFORKED, 0, "close pool", "this process does not own the pool");
    }
    svi_mapping *m = svi_mapping_of(segment);
    if (m != NULL && svi_load_seq(&m->reservations) != 0) { /* counter of this process */
        return svi_fail(err, SV_EINUSE, 0, "close pool",
                        "reservations of '%s' are open; publish or cancel them first", m->name);
    }
    /* A pool that could not be made has no marker: there, it is that of the owner who was in the way. */
    status = m != NULL ? sv_ready_clear(owner, err) : 0;
    if (status != 0 && status != SV_EBUSY) { /* busy: the marker is another owner's */
        return status;
    }
    if (m != NULL) {
        sv_retire(segment, SV_RETIRED_CLOSED);
        status = sv_segment_remove_own(segment, err);
        if (status != 0 && status != SV_ENOENT) {
            return status;
        }
        if ((status = sv_segment_close(segment, err)) != 0) {
            return status;
        }
    }
    sv_owner_release(owner);
    return 0;
}

int
sv_pool_remove(const char *name, const char *directory, const char *lock_dir, sv_error *err)
{
    sv_listed found = {.block = 0};
    sv_owner *owner = NULL;
    sv_error refusal = {.message = ""};
    int owned = sv_owner_acquire(name, lock_dir, NULL, &owner, &refusal);
    /* Looked at under the lock; and an owner with another lock directory, or without its lock file, is
     * seen by its segment. */
    int status =
        pool_check_free(name, directory, &found,
                        "end that process, which removes it; those attached keep their data", err);
    bool segment = status == 0;
    if (segment || status == SV_ENOENT || status == SV_EFORMAT) {
        status = owned;
        if (status != 0 && err != NULL) {
            *err = refusal;
        }
    }
    if (status == 0 && (status = sv_ready_clear(owner, err)) == 0) {
        status = segment
                     ? sv_segment_remove_exact(name, directory, found.inode, found.generation, err)
                     : sv_segment_remove(name, directory, err);
        status = status == SV_ENOENT ? 0 : status; /* somebody was first */
    }
    sv_owner_release(owner);
    return status;
}
