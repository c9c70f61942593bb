/*
 * The pool: readers pin, writers reserve, publish, append and cancel, everybody attaches and
 * detaches, a recoverer gives back what the dead held. docs/PROTOCOL.md has the rules, docs/MODELS.md
 * says what this model shows and what it leaves out.
 *
 * One atomic block is one access that others can see; its comment is the SVI_STEP name in src/core.
 * A process may die before each of them. Its locks then end, nothing else does; another process
 * takes its place. Stamps are left out: a slot that changed and changed back still names a current
 * buffer, so the re-check and the commit stay right (stamps serve the version numbers).
 *
 * Sizes and mutations are macros: spin -DNREADERS=2 -DNO_RECHECK -a pool.pml
 */
#ifndef NREADERS
#define NREADERS 2
#endif
#ifndef NWRITERS
#define NWRITERS 2
#endif
#ifndef NSLOTS
#define NSLOTS 1
#endif
#ifndef NSPARES
#define NSPARES 2
#endif
#define NPROCS (NREADERS + NWRITERS)
#ifndef NROWS
#define NROWS NPROCS
#endif
#define NBUFS (NSLOTS + NSPARES)
#define RECOVERER (NPROCS + 1)
#define BIT(i) (1 << (i))

/* ---- shared memory --------------------------------------------------------------------------- */

byte slot[NSLOTS];  /* s_word: buffer + 1, 0 EMPTY */
byte size;          /* h_size */
byte pins[NROWS];   /* r_cells: one bit for each buffer; a process holds one view at a time */
byte claim[NBUFS];  /* b_writer: row + 1 or 0 */
byte home[NBUFS];   /* b_slot: slot + 1 or 0 */
byte live;          /* r_state, one bit for each row */
byte mark;          /* h_high_rows */
byte memory;        /* rows that have memory, one bit each */
byte counted;       /* r_counted: rows that are below the mark for good, one bit each */
bool ready;         /* the segment has its name (S1) */
byte held[NROWS];   /* the row's lock byte: process + 1, 0 free; kept by the kernel */

/* ---- what only the observer knows ------------------------------------------------------------ */

byte views[NBUFS];   /* views of the living */
byte fillers[NBUFS]; /* living writers that take the buffer for their own */
byte whole;          /* buffers with a complete chunk */
#ifdef COUNT_READS
byte reads[NROWS];   /* the upper half of the cells: was this buffer ever read through this row? */
byte reads_known[NROWS];
#endif

#ifdef REACH
/* Prints each interesting state once; no part of the state that is searched. */
c_decl {
    static int reach_seen[64];
    static const char *reach_name[64] = {
        "", "pin.added", "view", "pin.undone", "reserve.claimed", "reserve.named", "reserve.scanning",
        "reserve.filling", "publish.seen", "publish.claimed", "publish.addressed",
        "publish.committed", "publish.counted", "publish.released", "append.addressed",
        "append.committed", "append.counted", "cancel", "attach.locked", "attach.cleaning",
        "attach.live", "attach.counted", "detach.freed", "recover.locked", "recover.cleaning",
        "attach.remembered"};
}
#define REACHED(n, text) c_code { \
    if (!reach_seen[n]) { reach_seen[n] = 1; printf("reached: %s\n", text); } }
#else
#define REACHED(n, text) skip
#endif
#ifdef DEATHS
byte died[NROWS]; /* the step after which the row's process died */
c_code {
    static void reach_cleaned(int step)
    {
        if (step && !reach_seen[step]) {
            reach_seen[step] = 1;
            printf("reached: recovered after a death at %s\n", reach_name[step]);
        }
    }
}
#define DIED(r, step) died[r] = step
#else
#define DIED(r, step) skip
#endif

#define IS_LIVE(r) ((live & BIT(r)) != 0)
#define IS_COUNTED(r) ((counted & BIT(r)) != 0)
#define IS_PINNED(r, b) ((pins[r] & BIT(b)) != 0)
#define IS_NAMED(b) (home[b] != 0 && slot[home[b] - 1] == b + 1)

/* Death before the next step. `lost` is what the observer must forget. */
#define DIE(step, lost) atomic { MORTAL -> DIED(row, step); held[row] = 0; lost; row = 0; goto dead }
#ifdef IMMORTAL
#define MORTAL false
#elif defined(OUTSIDE_WRITER)
#define MORTAL (_pid < NREADERS || _pid == NPROCS) /* readers and the recoverer */
#elif defined(LIVENESS)
#define MORTAL (_pid != NREADERS) /* the writer that is watched lives */
#else
#define MORTAL true
#endif

#define CLAIMS(r) (claim[0] == r + 1 || claim[1] == r + 1 CLAIMS_2(r) CLAIMS_3(r))
#if NBUFS > 2
#define CLAIMS_2(r) || claim[2] == r + 1
#else
#define CLAIMS_2(r)
#endif
#if NBUFS > 3
#define CLAIMS_3(r) || claim[3] == r + 1
#else
#define CLAIMS_3(r)
#endif

/* ---- rows (R1-R6) ---------------------------------------------------------------------------- */

#ifdef STORE_ZERO
#define UNPIN_DEAD(r, c) pins[r] = pins[r] & ~BIT(c); reads[r] = reads[r] & ~BIT(c)
#else
#define UNPIN_DEAD(r, c) pins[r] = pins[r] & ~BIT(c)
#endif

#ifdef NO_UNPIN_DEAD
#define HAS_DEAD_PIN(r, i) (false)
#define HAS_DEAD_PINS(r) (false)
#else
#define HAS_DEAD_PIN(r, i) (IS_PINNED(r, i))
#define HAS_DEAD_PINS(r) (pins[r] != 0)
#endif
#ifdef NO_UNCLAIM_DEAD
#define HAS_DEAD_CLAIM(r, i) (false)
#define HAS_DEAD_CLAIMS(r) (false)
#else
#define HAS_DEAD_CLAIM(r, i) (claim[i] == r + 1)
#define HAS_DEAD_CLAIMS(r) (CLAIMS(r))
#endif

#ifdef DEATHS
#define FREE_CLEANED(r) live = live & ~BIT(r); RECOVERED(r)
/* c_code takes no Promela expressions: one line for each row. */
inline RECOVERED(r)
{
    if
    :: r == 0 -> c_code { reach_cleaned(now.died[0]); now.died[0] = 0; }
    :: r == 1 -> c_code { reach_cleaned(now.died[1]); now.died[1] = 0; }
    :: r == 2 -> c_code { reach_cleaned(now.died[2]); now.died[2] = 0; }
    fi
}
#else
#define FREE_CLEANED(r) live = live & ~BIT(r)
#endif

#define DIE_CLEANING(r, step) atomic { MORTAL -> DIED(r, step); UNLOCK_OWN(r); r = 0; goto dead }
/* Some mutations clean without the lock: then it may be another's by now. */
#define UNLOCK_OWN(r) \
    if \
    :: held[r] == _pid + 1 -> held[r] = 0 \
    :: else -> skip \
    fi

/* row_clean(); `step` is where the cleaning process may die itself. Which cell or claim comes first
 * makes no difference to it, so any order is tried. */
inline clean_pins(r, step)
{
    do
    :: atomic { HAS_DEAD_PIN(r, 0) -> UNPIN_DEAD(r, 0) } /* recover.unpinned */
    :: atomic { HAS_DEAD_PIN(r, 1) -> UNPIN_DEAD(r, 1) }
#if NBUFS > 2
    :: atomic { HAS_DEAD_PIN(r, 2) -> UNPIN_DEAD(r, 2) }
#endif
#if NBUFS > 3
    :: atomic { HAS_DEAD_PIN(r, 3) -> UNPIN_DEAD(r, 3) }
#endif
    :: atomic { !HAS_DEAD_PINS(r) -> break }
    :: DIE_CLEANING(r, step)
    od
}

inline clean_claims(r, step)
{
    do
    :: atomic { HAS_DEAD_CLAIM(r, 0) -> claim[0] = 0 } /* recover.unclaimed */
    :: atomic { HAS_DEAD_CLAIM(r, 1) -> claim[1] = 0 }
#if NBUFS > 2
    :: atomic { HAS_DEAD_CLAIM(r, 2) -> claim[2] = 0 }
#endif
#if NBUFS > 3
    :: atomic { HAS_DEAD_CLAIM(r, 3) -> claim[3] = 0 }
#endif
    :: atomic { !HAS_DEAD_CLAIMS(r) -> break }
    :: DIE_CLEANING(r, step)
    od
}

inline clean_free(r, step)
{
    if
    :: atomic { true -> FREE_CLEANED(r) } /* recover.freed */
    :: DIE_CLEANING(r, step)
    fi
}

#ifdef FREE_FIRST
#define CLEAN(r, step) clean_free(r, step); clean_pins(r, step); clean_claims(r, step)
#else
#define CLEAN(r, step) clean_pins(r, step); clean_claims(r, step); clean_free(r, step)
#endif

inline set_live()
{
    if
    :: atomic { true -> live = live | BIT(row) } /* attach.live */
    :: DIE(18, skip)
    fi
}

inline raise_mark()
{
#ifdef MARK_STORE
    atomic { true -> c = mark };
    atomic { true ->
        if
        :: c < row + 1 -> mark = row + 1
        :: else -> skip
        fi;
        c = 0 }
#else
    if
    :: atomic { true -> /* attach.counted */
        if
        :: mark < row + 1 -> mark = row + 1
        :: else -> skip
        fi }
    :: DIE(20, skip)
    fi
#endif
}

/* A row that was below the mark stays there; it remembers that, once the mark is raised. */
inline count_row()
{
    if
    :: atomic { IS_COUNTED(row) -> skip }
    :: atomic { !IS_COUNTED(row) -> skip };
#ifdef COUNTED_FIRST
        atomic { true -> counted = counted | BIT(row) };
        raise_mark()
#else
        raise_mark();
        if
        :: atomic { true -> counted = counted | BIT(row) } /* attach.remembered */
        :: DIE(21, skip)
        fi
#endif
    fi
}

#ifdef STATIC_ROWS
/* The small form: a process has the row of its own number, and a dead one's is taken again when it
 * has been cleaned. */
#define TAKE_ROW(n) row = n; held[n] = _pid + 1; live = live | BIT(n); DIED(n, 0)
#define RAISE_MARK mark = NROWS
inline attach()
{
    atomic { ready && held[_pid] == 0 && !IS_LIVE(_pid) -> TAKE_ROW(_pid); RAISE_MARK }
}
#else
/* svi_row_take(): any row whose byte can be locked; which one looks free is a hint. */
inline attach()
{
    if /* attach.locked */
    :: atomic { ready && held[0] == 0 -> held[0] = _pid + 1; row = 0 }
#if NROWS > 1
    :: atomic { ready && held[1] == 0 -> held[1] = _pid + 1; row = 1 }
#endif
#if NROWS > 2
    :: atomic { ready && held[2] == 0 -> held[2] = _pid + 1; row = 2 }
#endif
    fi;
    if /* memory for the row and for all rows between the mark and it */
    :: atomic { IS_COUNTED(row) -> skip }
    :: atomic { !IS_COUNTED(row) ->
#ifdef HOLES
        memory = memory | BIT(row)
#else
        c = row;
        do
        :: memory = memory | BIT(c);
            if
            :: c > mark -> c--
            :: else -> break
            fi
        od;
        c = 0
#endif
        }
    :: DIE(18, skip)
    fi;
#ifndef NO_CLEAN_AT_ATTACH
    if
    :: atomic { !IS_LIVE(row) -> skip }
    :: atomic { IS_LIVE(row) -> skip };
        CLEAN(row, 19)
    fi;
#endif
#ifndef PIN_BEFORE_LIVE
    set_live();
#endif
#ifndef PIN_BEFORE_MARK
    count_row();
#endif
    skip
}
#endif

/* svi_row_drop(): FREE, and only then the lock. */
inline detach()
{
#ifdef UNLOCK_FIRST
    atomic { true -> held[row] = 0 };
    atomic { true -> live = live & ~BIT(row); row = 0 }
#else
    if
    :: atomic { true -> live = live & ~BIT(row) } /* detach.freed */
    :: DIE(25, skip)
    fi;
    atomic { true -> DIED(row, 0); held[row] = 0; row = 0 }
#endif
}

/* ---- reading (P1-P4) ------------------------------------------------------------------------- */

#ifdef COUNT_READS
#define ADD_READ(b) reads[row] = reads[row] | BIT(b); reads_known[row] = reads_known[row] | BIT(b)
#else
#define ADD_READ(b) skip
#endif

inline end_view()
{
#ifdef UNPIN_EARLY
    if
    :: atomic { true -> pins[row] = pins[row] & ~BIT(b) }
    :: DIE(2, views[b]--; b = 0; s = 0)
    fi;
    atomic { true -> views[b]--; b = 0; s = 0 }
#else
    if
    :: atomic { true -> /* unpin.done */
        assert(IS_PINNED(row, b)); /* nobody took the pin of the living */
        if
        :: slot[s] != b + 1 -> REACHED(40, "a view of a displaced buffer")
        :: else -> skip
        fi;
        views[b]--; pins[row] = pins[row] & ~BIT(b); b = 0; s = 0 }
    :: DIE(2, views[b]--; b = 0; s = 0)
    fi
#endif
}

active [NREADERS] proctype reader()
{
    byte row, s, b;
#ifndef STATIC_ROWS
    byte c;
#endif
start:
    attach();
    do
    :: atomic { size > 0 -> s = 0; b = slot[0] - 1 } /* the first load, relaxed */
    pin:
        if
        :: atomic { true -> pins[row] = pins[row] | BIT(b); ADD_READ(b) } /* pin.added */
        :: DIE(1, b = 0; s = 0)
        fi;
#ifdef PIN_BEFORE_LIVE
        set_live();
#endif
        if /* the re-check */
#ifdef NO_RECHECK
        :: atomic { true ->
#else
        :: atomic { slot[s] == b + 1 ->
#endif
            assert(fillers[b] == 0); /* I1 */
            assert((whole & BIT(b)) != 0); /* I2 */
            views[b]++ }
#ifdef PIN_BEFORE_MARK
            count_row();
#endif
            end_view()
#ifndef NO_RECHECK
        :: atomic { slot[s] != b + 1 -> /* pin.undone */
            assert(IS_PINNED(row, b));
            REACHED(41, "a late pin on a displaced buffer");
            pins[row] = pins[row] & ~BIT(b); b = 0; s = 0 }
#endif
        :: DIE(1, b = 0; s = 0)
        fi
#if NSLOTS > 1
    :: atomic { size > 1 -> s = 1; b = slot[1] - 1 }; goto pin
#endif
#ifndef STATIC_ROWS
    :: detach(); goto start
#endif
    od;
dead:
#ifdef LIVENESS
    false; /* nobody takes its place */
#endif
    goto start
}

/* ---- writing (W1-W6, A1-A3) ------------------------------------------------------------------ */

#ifdef NO_CLAIM
#define CLAIM_FREE(i) (true)
#define CLAIM_SET(i) skip
#else
#define CLAIM_FREE(i) (claim[i] == 0)
#define CLAIM_SET(i) claim[i] = row + 1
#endif
#ifdef LIVENESS
#define CANDIDATE(i) (b == i) /* the walk: each in its turn */
#define NEXT b = (b + 1) % NBUFS
#else
#define CANDIDATE(i) (true) /* any order: hints decide nothing (W6) */
#define NEXT b = 0
#endif

#ifdef NO_CLAIM
#define CLAIM_DROP(i) skip
#else
/* The assertion: nobody took the claim of the living. */
#define CLAIM_DROP(i) assert(claim[i] == row + 1); claim[i] = 0
#endif
#define FORGET b = 0; seen = 0; claimed = 0; c = 0; high = 0; s = 0

#if defined(NO_OLD_CLAIM) || defined(OLD_DROPPED_BEFORE_COMMIT)
#define OLD_DROP skip
#else
#define OLD_DROP CLAIM_DROP(seen - 1)
#endif

inline drop_claim(i, step)
{
    if
    :: atomic { true -> CLAIM_DROP(i) }
    :: DIE(step, FORGET)
    fi
}

/* publish_take(), second step: does its slot name it? */
inline look_at_name()
{
#ifndef NO_NAME_CHECK
    if
    :: atomic { IS_NAMED(b) -> CLAIM_DROP(b); NEXT }; goto reserve /* reserve.unclaimed */
    :: atomic { !IS_NAMED(b) -> skip }
    :: DIE(4, FORGET)
    fi
#else
    skip
#endif
}

/* The rows of writers have no pins here; the small form leaves them out. */
#ifdef STATIC_ROWS
#define SCANNED NREADERS
#else
#define SCANNED mark
#endif

/* publish_is_pinned(): the mark read now, then one row after the other. */
inline scan()
{
#ifndef NO_SCAN
#ifndef MARK_EARLY
    if
    :: atomic { true -> high = SCANNED }
    :: DIE(5, FORGET)
    fi;
#endif
    c = 0;
    do
    :: atomic { c < high && !IS_PINNED(c, b) ->
#ifndef STATIC_ROWS
        assert((memory & BIT(c)) != 0); /* R3: no holes below the mark */
#endif
        c++ }
    :: atomic { c < high && IS_PINNED(c, b) -> /* reserve.unclaimed */
        REACHED(42, "a scan that finds a pin"); CLAIM_DROP(b); c = 0; NEXT };
        goto reserve
    :: atomic { c == high -> c = 0;
#ifndef MARK_EARLY
        high = 0;
#endif
        break }
    :: DIE(6, FORGET)
    od
#else
    skip
#endif
}

inline claim_buffer()
{
    if
    :: atomic { CANDIDATE(0) && CLAIM_FREE(0) -> b = 0; CLAIM_SET(0) } /* reserve.claimed */
    :: atomic { CANDIDATE(1) && CLAIM_FREE(1) -> b = 1; CLAIM_SET(1) }
#if NBUFS > 2
    :: atomic { CANDIDATE(2) && CLAIM_FREE(2) -> b = 2; CLAIM_SET(2) }
#endif
#if NBUFS > 3
    :: atomic { CANDIDATE(3) && CLAIM_FREE(3) -> b = 3; CLAIM_SET(3) }
#endif
#ifdef LIVENESS
    :: atomic { !CLAIM_FREE(b) -> NEXT }; goto reserve
#endif
    fi
}

#ifdef LIVENESS
/* Nothing was free all the way round: svi_recover() by the writer itself, as in sv_reserve(). */
inline recover_all()
{
#ifndef NO_RECOVER
    r = 0;
    do
    :: atomic { r < mark && (!IS_LIVE(r) || held[r] != 0) -> r++ }
    :: atomic { r < mark && IS_LIVE(r) && held[r] == 0 -> held[r] = _pid + 1 };
        clean_pins(r, 0); clean_claims(r, 0); clean_free(r, 0);
        atomic { true -> held[r] = 0; r++ }
    :: atomic { r == mark -> r = 0; break }
    od
#else
    skip
#endif
}
#endif

active [NWRITERS] proctype writer()
{
    byte row, b, s, seen, claimed, c, high;
#ifdef LIVENESS
    byte r, rounds;
#endif
start:
#ifdef OUTSIDE_WRITER
    atomic { ready -> row = NROWS }; /* they never die and pin nothing; threads of one process */
#else
    attach();
#endif
reserve:
#ifdef LIVENESS
    if
    :: atomic { b == 0 && _pid == NREADERS -> skip }; recover_all()
    :: atomic { b != 0 || _pid != NREADERS -> skip }
    fi;
#endif
#if !defined(STATIC_ROWS) && !defined(OUTSIDE_WRITER)
    if
    :: detach(); goto start
    :: skip
    fi;
#endif
#ifdef MARK_EARLY
    atomic { true -> high = mark };
#endif
#if defined(NAME_BEFORE_CLAIM)
    if
    :: atomic { true -> b = 0 }
    :: atomic { true -> b = 1 }
#if NBUFS > 2
    :: atomic { true -> b = 2 }
#endif
    fi;
    if
    :: atomic { IS_NAMED(b) -> b = 0 }; goto reserve
    :: atomic { !IS_NAMED(b) -> skip }
    fi;
    if
    :: atomic { claim[b] == 0 -> claim[b] = row + 1 }
    :: atomic { claim[b] != 0 -> b = 0 }; goto reserve
    fi;
    scan();
#elif defined(SCAN_BEFORE_NAME)
    claim_buffer();
    scan();
    look_at_name();
#elif defined(SCAN_BEFORE_CLAIM)
    if
    :: atomic { true -> b = 0 }
    :: atomic { true -> b = 1 }
#if NBUFS > 2
    :: atomic { true -> b = 2 }
#endif
    fi;
    atomic { true -> high = mark; c = 0 };
    do
    :: atomic { c < high && !IS_PINNED(c, b) -> c++ }
    :: atomic { c < high && IS_PINNED(c, b) -> c = 0; b = 0 }; goto reserve
    :: atomic { c == high -> c = 0; high = 0; break }
    od;
    if
    :: atomic { claim[b] == 0 -> claim[b] = row + 1 }
    :: atomic { claim[b] != 0 -> b = 0 }; goto reserve
    fi;
    look_at_name();
#else
    claim_buffer();
    look_at_name();
    scan();
#endif
    if /* the buffer is ours: fill it */
    :: atomic { true ->
        assert(views[b] == 0); /* I1 */
        assert(fillers[b] == 0); /* W1: filled by one */
        assert(!IS_NAMED(b));
        fillers[b]++; whole = whole & ~BIT(b) }
    :: DIE(6, FORGET)
    fi;
    if
    :: atomic { true -> whole = whole | BIT(b) }
    :: DIE(7, fillers[b]--; FORGET)
    fi;
#ifdef CLAIM_DROPPED_BEFORE_COMMIT
    drop_claim(b, 7);
#endif
    if
#ifndef APPEND_ONLY
    :: atomic { size > 0 -> s = 0; seen = slot[0] }
#if NSLOTS > 1
    :: atomic { size > 1 -> s = 1; seen = slot[1] }
#endif
#endif
#ifdef APPEND
    :: goto append
#endif
#ifndef LIVENESS
    :: atomic { true -> fillers[b]--; CLAIM_DROP(b); b = 0 }; goto reserve /* cancel.released */
#endif
    :: DIE(7, fillers[b]--; FORGET)
    fi;

publish:
#ifdef NO_OLD_CLAIM
    atomic { true -> claimed = 1 };
#else
    if /* publish.claimed, or given up after a bounded time */
    :: atomic { claim[seen - 1] == 0 -> claim[seen - 1] = row + 1; claimed = 1 }
#ifndef WAIT_FOR_EVER
    :: atomic { claim[seen - 1] != 0 -> REACHED(43, "a publisher that goes on without the old claim") }
#endif
    :: DIE(8, fillers[b]--; FORGET)
    fi;
#endif
    if
    :: atomic { true -> home[b] = s + 1 } /* publish.addressed */
    :: DIE(9, fillers[b]--; FORGET)
    fi;
#ifdef OLD_DROPPED_BEFORE_COMMIT
    if
    :: atomic { claimed == 1 -> claim[seen - 1] = 0 }
    :: atomic { claimed == 0 -> skip }
    fi;
#endif
    if
#ifdef COMMIT_STORE
    :: atomic { true ->
        assert(slot[s] == seen); /* W4: what is counted is what was displaced */
#else
    :: atomic { slot[s] == seen -> /* publish.committed */
#endif
        slot[s] = b + 1; fillers[b]-- }
#ifndef COMMIT_STORE
    :: atomic { slot[s] != seen -> REACHED(44, "a commit that another publisher beat") };
        if
        :: atomic { claimed == 1 -> OLD_DROP; claimed = 0; seen = slot[s] }
        :: atomic { claimed == 0 -> seen = slot[s] }
        :: DIE(10, fillers[b]--; FORGET)
        fi;
        goto publish
#endif
    :: DIE(10, fillers[b]--; FORGET)
    fi;
#ifdef LIVENESS
progress_published:
#endif
    if /* publish.counted, publish.released */
    :: atomic { true -> assert(claimed == 0 || fillers[seen - 1] == 0); /* W3 */
#ifndef CLAIM_DROPPED_BEFORE_COMMIT
        CLAIM_DROP(b)
#endif
        }
    :: DIE(11, FORGET)
    fi;
    if /* publish.finished */
    :: atomic { claimed == 1 -> OLD_DROP; FORGET }
    :: atomic { claimed == 0 -> FORGET }
    :: DIE(13, FORGET)
    fi;
#ifdef LIVENESS
    if
    :: _pid == NREADERS -> skip
    :: else -> false /* the others end after one chunk */
    fi;
#endif
    goto reserve;

#ifdef APPEND
append:
    if
    :: atomic { size >= NSLOTS -> fillers[b]--; CLAIM_DROP(b); FORGET };
#ifdef LIVENESS
        do /* full: nothing is waited for any more */
        :: true -> progress_full: skip
        od;
#endif
        goto reserve
    :: atomic { size < NSLOTS -> s = size }
    :: DIE(7, fillers[b]--; FORGET)
    fi;
    if
    :: atomic { true -> home[b] = s + 1 } /* append.addressed */
    :: DIE(7, fillers[b]--; FORGET)
    fi;
#ifdef SIZE_EARLY
    if
    :: atomic { size == s -> size++ }
    :: atomic { size != s -> skip }
    :: DIE(14, fillers[b]--; FORGET)
    fi;
#endif
    if
    :: atomic { slot[s] == 0 -> slot[s] = b + 1; fillers[b]--; seen = 1 } /* append.committed */
    :: atomic { slot[s] != 0 -> REACHED(45, "an appender that lost its slot") }
    :: DIE(14, fillers[b]--; FORGET)
    fi;
    if /* append.counted: won or lost */
#if defined(SIZE_STORE)
    :: atomic { true -> assert(size <= s + 1); size = s + 1 }
#elif defined(SIZE_ADD)
    :: atomic { true -> size++ }
#elif defined(SIZE_WINNER_ONLY)
    :: atomic { seen == 1 && size == s -> size++ }
    :: atomic { seen == 0 || size != s -> skip }
#else
    :: atomic { size == s -> size++ }
    :: atomic { size != s -> skip }
#endif
    :: DIE(15, if :: seen == 0 -> fillers[b]-- :: else -> skip fi; FORGET)
    fi;
    if
    :: atomic { seen == 0 -> s = 0 }; goto append
    :: atomic { seen == 1 -> s = 0; seen = 0 }
    fi;
#ifdef LIVENESS
progress_appended:
#endif
    drop_claim(b, 16); /* append.released */
    atomic { true -> FORGET };
    goto reserve;
#endif

dead:
    b = 0;
#ifdef LIVENESS
    false;
#endif
    goto start
}

/* ---- recovering (R5, R6, A3) ----------------------------------------------------------------- */

#ifndef LIVENESS
#define LOOKS_DEAD(n) (n < mark && IS_LIVE(n) && held[n] == 0)
active proctype recoverer()
{
    byte r, c;
start:
    do
    :: atomic { LOOKS_DEAD(0) -> r = 0 }; /* a look, no proof */
    locking:
        if
        :: atomic { held[r] == 0 -> held[r] = RECOVERER } /* recover.locked */
        :: atomic { held[r] != 0 -> r = 0 }; goto start
        fi;
        if
        :: atomic { !IS_LIVE(r) -> skip }
        :: atomic { IS_LIVE(r) -> skip };
#if defined(CLEAN_UNLOCKED)
            atomic { true -> held[r] = 0 };
            CLEAN(r, 24); atomic { true -> r = 0 }; goto start
#elif defined(LATE_UNCLAIM)
            clean_pins(r, 24); clean_free(r, 24); atomic { true -> held[r] = 0 };
            clean_claims(r, 24); atomic { true -> r = 0 }; goto start
#else
            CLEAN(r, 24)
#endif
        fi;
        atomic { true -> held[r] = 0; r = 0 }
#if NROWS > 1
    :: atomic { LOOKS_DEAD(1) -> r = 1 }; goto locking
#endif
#if NROWS > 2
    :: atomic { LOOKS_DEAD(2) -> r = 2 }; goto locking
#endif
#if NROWS > 3
    :: atomic { LOOKS_DEAD(3) -> r = 3 }; goto locking
#endif
#ifdef APPEND
    :: atomic { size < NSLOTS && slot[size] != 0 -> size++; REACHED(46, "a slot counted by recover") }
#endif
    od;
dead:
    goto start
}

/* ---- what always holds ----------------------------------------------------------------------- */

#define HOLDS(r) (pins[r] != 0 || CLAIMS(r))
/* R4: a row that is FREE and nobody's holds nothing. R3: nor does one that no scan looks at. */
#define LOST(r) ((held[r] == 0 && !IS_LIVE(r) && HOLDS(r)) || (r >= mark && HOLDS(r)))

#ifndef NO_OBSERVER
/* Always false: names for what the checker prints. */
hidden byte nothing_is_lost, counted_are_filled, slots_differ, reads_stay;

active proctype observer()
{
    do
    :: atomic { LOST(0) -> assert(nothing_is_lost) }
#if NROWS > 1
    :: atomic { LOST(1) -> assert(nothing_is_lost) }
#endif
#if NROWS > 2
    :: atomic { LOST(2) -> assert(nothing_is_lost) }
#endif
#if NROWS > 3
    :: atomic { LOST(3) -> assert(nothing_is_lost) }
#endif
    :: atomic { size > 0 && slot[0] == 0 -> assert(counted_are_filled) } /* A2 */
#if NSLOTS > 1
    :: atomic { size > 1 && slot[1] == 0 -> assert(counted_are_filled) }
    :: atomic { slot[0] != 0 && slot[0] == slot[1] -> assert(slots_differ) } /* I2 */
#endif
    :: atomic { size > NSLOTS -> assert(counted_are_filled) }
#ifdef COUNT_READS
    :: atomic { reads[0] != reads_known[0] -> assert(reads_stay) } /* C1: reads never fall */
#endif
    od
}
#endif
#endif

init {
    d_step {
        ready = true;
#ifndef APPEND
        slot[0] = 1; home[0] = 1; whole = BIT(0); size = NSLOTS;
#if NSLOTS > 1
        slot[1] = 2; home[1] = 2; whole = whole | BIT(1);
#endif
#endif
    }
}
