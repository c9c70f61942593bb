/*
 * Whose turn it is (rule W8): the slot that a finished chunk replaces.
 *
 * A view keeps its buffer for as long as somebody likes. A writer that displaces a chunk with views
 * gets its buffer back when the last of them is dropped, so that a few views held for long would take
 * every spare buffer, and nothing would be refreshed any more. Therefore a writer chooses when its
 * chunk is ready, and passes over the slots whose chunk is pinned: a held view freezes its own slot.
 * Nothing here bears a proof: a pin that comes after the look keeps the old chunk, as ever (W2).
 */
#include "error.h"
#include "event.h"
#include "os.h"
#include "reserve.h"
#include "row.h"
#include "stats.h"

#define TURN_LOOKED_AT 4096 /* so that a look around a huge pool takes no more than milliseconds */
#define TURN_WATCHED_ROWS 64
#define TURN_LOOK_SHARE 20
#define TURN_UNREAD_NS UINT64_C(100000000) /* reading wakes nobody */
#define TURN_WATCH_NS UINT64_C(100000000)

/* A slot; nothing that was read; what was read is held; everything is. */
typedef enum turn_result { TURN_FOUND, TURN_UNREAD, TURN_PASSED, TURN_HELD } turn_result;

/* A pinned chunk, and the processes that have had it pinned ever since the watch began. */
typedef struct turn_watch {
    uint64_t word; /* of its slot; SVI_EMPTY: nothing is watched */
    uint64_t moves;
    uint64_t began_ns;
    uint32_t slot;
    uint32_t count;
    uint32_t rows[TURN_WATCHED_ROWS];
} turn_watch;

/* The slots that a writer refreshes, and where it goes on. */
typedef struct turn_range {
    svi_word *cursor; /* shared by all writers of the pool; NULL: `next` counts */
    uint32_t *next;
    uint32_t first;
    uint32_t count;
} turn_range;

static uint32_t
turn_step(const turn_range *range)
{
    /* relaxed: a counter; two writers look at different slots */
    uint64_t at = range->cursor != NULL ? svi_add_relaxed(range->cursor, 1) : (*range->next)++;
    return range->first + (uint32_t)(at % range->count);
}

/* The next slot whose chunk nobody has pinned and, unless `unread`, somebody has read. */
static int
turn_find(const svi_mapping *m, const turn_range *range, bool unread, uint32_t *slot,
          turn_result *result)
{
    uint32_t limit = range->count < TURN_LOOKED_AT ? range->count : TURN_LOOKED_AT;
    uint32_t held = 0;
    for (uint32_t looked = 0; looked < limit; looked++) {
        uint32_t index = turn_step(range);
        sv_slot_stats one;
        int status = svi_stats_slot(m, index, false, &one);
        if (status == SV_EFORMAT) {
            return status;
        }
        if (status != 0 || (!unread && one.reads == 0)) {
            continue; /* one that changes while we look at it is somebody else's */
        }
        uint64_t word = svi_load_seq(&svi_slots(m)[index].s_word); /* advice: a hint */
        uint32_t buffer = svi_slot_buffer(word);
        if (buffer < m->g.buffer_count && !svi_buffer_is_pinned(m, buffer)) {
            *slot = index;
            *result = TURN_FOUND;
            return 0;
        }
        held++;
    }
    *result = held == limit ? TURN_HELD : held != 0 ? TURN_PASSED : TURN_UNREAD;
    return 0;
}

/* The slots of a turn that are filled; NULL or no end: all of the pool's, in an order that all its
 * writers share. */
static turn_range
turn_range_of(const svi_mapping *m, unsigned char *rw, sv_turn *turn, sv_counter counter)
{
    uint32_t size = svi_size(m);
    uint32_t end = turn == NULL || turn->end == 0 || turn->end > size ? size : turn->end;
    turn_range range = {.first = 0, .count = size};
    if (turn == NULL || turn->end == 0) {
        range.cursor = &svi_header_at(rw)->h_counters[counter];
    } else {
        range.next = &turn->next;
        range.first = turn->first;
        range.count = turn->first < end ? end - turn->first : 0;
    }
    return range;
}

/* Until somebody may have dropped a view (rule N4), or read something. A look around takes a twentieth of
 * the time at most. */
static void
turn_pause(unsigned char *rw, turn_result result, uint64_t armed, uint64_t look_ns,
           uint64_t left_ns)
{
    uint64_t pause = result == TURN_UNREAD ? TURN_UNREAD_NS : look_ns * TURN_LOOK_SHARE;
    if (result != TURN_UNREAD && armed != 0 &&
        !svi_event_sleep(rw, SVI_EVENT_FREE, armed, left_ns)) {
        return; /* nobody gave anything back: it has slept long enough */
    }
    pause = pause < SVI_EVENT_PAUSE_NS ? SVI_EVENT_PAUSE_NS : pause;
    svi_os_sleep_ns(pause < left_ns ? pause : left_ns);
}

/* Watch the next slot: who has its chunk pinned? */
static void
turn_watch_begin(const svi_mapping *m, const turn_range *range, turn_watch *watch)
{
    uint32_t slot = turn_step(range);
    uint64_t word = svi_load_seq(&svi_slots(m)[slot].s_word); /* advice: a hint */
    uint32_t buffer = svi_slot_buffer(word);
    uint32_t high = svi_high_rows(m);
    *watch = (turn_watch){.slot = slot, .began_ns = svi_os_monotonic_ns()};
    watch->moves = svi_load_seq(&svi_header(m)->h_moves); /* E9 */
    if (buffer >= m->g.buffer_count) {
        return;
    }
    for (uint32_t r = 0; r < high; r++) {
        if (svi_cell_pins(svi_load_seq(&svi_row(m, r)->r_cells[buffer])) == 0) { /* E4, E10 */
            continue;
        }
        if (watch->count == TURN_WATCHED_ROWS) {
            return; /* too many: another slot may have fewer */
        }
        watch->rows[watch->count++] = r;
    }
    watch->word = word;
}

/* Has every process that had the chunk pinned when the watch began been seen without a pin of it
 * since? Then no view of it is older than the watch: readers come and go there, none stays, and it may
 * be displaced. A pin that a fork has copied meanwhile may be older. */
static bool
turn_is_passing(const svi_mapping *m, const turn_range *range, turn_watch *watch)
{
    if (watch->word == SVI_EMPTY || svi_os_monotonic_ns() - watch->began_ns >= TURN_WATCH_NS ||
        svi_load_seq(&svi_header(m)->h_moves) != watch->moves ||          /* E9 */
        svi_load_seq(&svi_slots(m)[watch->slot].s_word) != watch->word) { /* advice: a hint */
        turn_watch_begin(m, range, watch);
    }
    uint32_t buffer = svi_slot_buffer(watch->word);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < watch->count && watch->word != SVI_EMPTY; i++) {
        const svm_row *row = svi_row(m, watch->rows[i]);
        if (svi_cell_pins(svi_load_seq(&row->r_cells[buffer])) != 0) { /* E4, E10 */
            watch->rows[kept++] = watch->rows[i];
        }
    }
    watch->count = kept;
    return watch->word != SVI_EMPTY && kept == 0;
}

/* The slot for a chunk that is ready (rule W8). */
static int
turn_choose(const svi_mapping *m, unsigned char *rw, sv_turn *turn, turn_watch *watch,
            uint32_t *slot, turn_result *result)
{
    turn_range range = turn_range_of(m, rw, turn, SV_COUNTER_CURSOR);
    if (range.count == 0) {
        return SV_EINDEX;
    }
    int status = turn_find(m, &range, false, slot, result);
    if (status == 0 && *result != TURN_FOUND && turn->unread != 0) {
        /* A round of its own: each look for what was read moves the other one, by steps that may
         * leave slots out for ever. */
        turn_range idle = turn_range_of(m, rw, turn, SV_COUNTER_IDLE);
        status = turn_find(m, &idle, true, slot, result);
    }
    if (status != 0 || *result != TURN_HELD) {
        return status;
    }
    if (svi_is_any_free(m, rw)) {
        *slot = turn_step(&range);
        *result = TURN_FOUND;
    } else if (turn_is_passing(m, &range, watch)) {
        *slot = watch->slot;
        *result = TURN_FOUND;
    }
    return 0;
}

static int
turn_fail(svi_mapping *m, turn_result result, uint64_t waited_ns, sv_error *err)
{
    char holders[SVI_HOLDERS_BYTES];
    if (result != TURN_HELD) {
        return svi_fail(err, SV_ETIMEDOUT, 0, "publish",
                        "no chunk of '%s' that could be replaced has been read after %.3f s",
                        m->name, (double)waited_ns / 1e9);
    }
    if (err == NULL) {
        return SV_EINUSE; /* the text takes a look at every cell */
    }
    svi_row_holders(m, SVI_ANY_BUFFER, holders, sizeof holders);
    return svi_fail(err, SV_EINUSE, 0, "publish",
                    "every chunk of '%s' that could be replaced is held by views, and no buffer is "
                    "free, after %.3f s: %s; drop views, or give the pool more spare_buffers",
                    m->name, (double)waited_ns / 1e9, holders);
}

int
sv_publish_turn(sv_reservation *reservation, sv_turn *turn, uint32_t *slot, sv_error *err)
{
    svi_mapping *m = NULL;
    unsigned char *rw = NULL;
    turn_watch watch = {.word = SVI_EMPTY};
    uint32_t chosen = 0;
    int status = svi_reservation_check(reservation, "publish", &m, &rw, err);
    uint64_t started = svi_os_monotonic_ns();
    uint64_t recovered = 0;
    uint64_t armed = 0; /* 0 at the first look: most find something */
    while (status == 0) {
        turn_result result = TURN_UNREAD;
        uint64_t looked = svi_os_monotonic_ns();
        if ((status = turn_choose(m, rw, turn, &watch, &chosen, &result)) != 0) {
            return svi_fail(err, status, 0, "publish",
                            "'%s' has no filled slot of this range, or is damaged", m->name);
        }
        if (result == TURN_FOUND) {
            if ((status = sv_publish(reservation, chosen, err)) == 0) {
                *slot = chosen;
            }
            return status;
        }
        uint64_t now = svi_os_monotonic_ns();
        if (result == TURN_HELD && now - recovered >= TURN_WATCH_NS) {
            recovered = now; /* some of the views may be those of the dead */
            uint32_t rows = 0;
            if (svi_recover(m, SVI_ANY_BUFFER, &rows, NULL) == 0 && rows != 0) {
                continue;
            }
        }
        if (now - started < turn->timeout_ns) {
            turn_pause(rw, result, armed, now - looked, turn->timeout_ns - (now - started));
            armed = svi_event_arm(rw, SVI_EVENT_FREE); /* before the next look */
        }
        if (svi_os_monotonic_ns() - started >= turn->timeout_ns) {
            return turn_fail(m, result, now - started, err);
        }
    }
    return status;
}

int
sv_refresh_next(sv_segment *segment, uint32_t *slot, int *unread)
{
    svi_mapping *m = svi_mapping_of(segment);
    unsigned char *rw = NULL;
    if (m == NULL) {
        return SV_ECLOSED;
    }
    int status = svi_size(m) == 0 ? SV_EINDEX : svi_writable(m, &rw, NULL);
    if (status != 0) {
        return status;
    }
    turn_range range = turn_range_of(m, rw, NULL, SV_COUNTER_CURSOR);
    turn_result result = TURN_UNREAD;
    uint32_t found = 0;
    if ((status = turn_find(m, &range, false, &found, &result)) != 0) {
        return status;
    }
    /* One more: a full turn would end where it began, and the same slot would come again. */
    *slot = result == TURN_FOUND ? found : turn_step(&range);
    *unread = result != TURN_FOUND;
    return 0;
}
