/*
 * Fork hand-over (rules F1-F3): a process with a view forks, parent and child drop their views when
 * they like, and one of them may fork again, while a writer displaces and refills buffers and a
 * recoverer gives back what the dead held. Anybody but the writer may die before each step.
 *
 * A row's lock is the set of address spaces that map its anchor: it ends when the last one is gone. A
 * child for which no row can be had shares its parent's: it maps the anchor too, and holds a lock that
 * tells the parent when it may take back the pin that it left behind.
 */
#ifndef NPROCS
#define NPROCS 2 /* processes ever: the first, and its descendants */
#endif
#ifndef NROWS
#define NROWS 2
#endif
#ifndef NFORKS
#define NFORKS NPROCS
#endif
#ifndef NBUFS
#define NBUFS 3 /* one slot and the spares */
#endif
#define BIT(i) (1 << (i))
#define RECOVERING 128

/* ---- shared memory --------------------------------------------------------------------------- */

byte slot = 0;          /* s_word: the current buffer */
byte pins[NROWS];       /* r_cells, one bit for each buffer */
byte left[NROWS];       /* ... with a pin that was left behind for those who share the row */
byte live;              /* r_state, one bit for each row */
byte mark;              /* h_high_rows */
byte moves;             /* h_moves */
byte anchors[NROWS];    /* who maps the anchor of the row: one bit for each process */
byte sharers[NROWS];    /* who holds the lock of those who share the row */

/* ---- what only the observer knows ------------------------------------------------------------ */

byte tried;             /* forks begun; a failed one counts */
byte born = 1;          /* processes made so far */
byte views[NBUFS];
byte filling = NBUFS;   /* the buffer that the writer takes for its own */

#define IS_LIVE(r) ((live & BIT(r)) != 0)
#define IS_PINNED(r, b) (((pins[r] | left[r]) & BIT(b)) != 0)
#ifdef REACH
c_decl { static int reach_seen[8]; }
#define REACHED(n, text) c_code { \
    if (!reach_seen[n]) { reach_seen[n] = 1; printf("reached: %s\n", text); } }
#else
#define REACHED(n, text) skip
#endif

/* The kernel takes a dead process's mappings away. No descendant (they have higher numbers) may still
 * keep its row, or its pins would stay for as long as that one lives, but those who share it. A parent
 * that has not come back from fork() may. */
inline end_maps()
{
    anchors[0] = anchors[0] & ~BIT(me); sharers[0] = sharers[0] & ~BIT(me);
    anchors[1] = anchors[1] & ~BIT(me); sharers[1] = sharers[1] & ~BIT(me);
#if NROWS > 2
    anchors[2] = anchors[2] & ~BIT(me); sharers[2] = sharers[2] & ~BIT(me);
#endif
#ifndef PARENT_ROW
    assert(shares || (anchors[row] & ~sharers[row] & (RECOVERING - 1)) >> (me + 1) == 0)
#endif
}
#define DIE(lost) atomic { true -> lost; end_maps(); goto dead }
#define LOSE_VIEW \
    if \
    :: view != NBUFS -> views[view]-- \
    :: else -> skip \
    fi

#ifdef ANCHOR_INHERITED
#define INHERITED anchors[row] = anchors[row] | BIT(born)
#elif defined(GRANDCHILD_KEEPS)
#define INHERITED \
    if \
    :: me != 0 -> anchors[row] = anchors[row] | BIT(born) \
    :: else -> skip \
    fi
#else
#define INHERITED skip /* MADV_DONTFORK */
#endif

inline copy_pins()
{
#ifndef PARENT_ROW
    if
    :: atomic { true -> pins[to] = pins[to] | BIT(view) } /* fork.copied */
    :: DIE(LOSE_VIEW)
    fi
#else
    skip
#endif
}

inline count_move()
{
    if
    :: atomic { true -> moves++ } /* fork.moved */
    :: DIE(LOSE_VIEW)
    fi
}

inline make_live()
{
    if
    :: atomic { true -> live = live | BIT(to) } /* attach.live */
    :: DIE(LOSE_VIEW)
    fi;
    if
    :: atomic { true -> /* attach.counted */
        if
        :: mark <= to -> mark = to + 1
        :: else -> skip
        fi }
    :: DIE(LOSE_VIEW)
    fi
}

inline hand_over()
{
    /* attach.locked; what the row's last process left is cleaned under the lock (pool.pml) */
    if
    :: atomic { anchors[0] == 0 -> to = 0; anchors[0] = BIT(me); pins[0] = 0; left[0] = 0; live = live & ~BIT(0) }
    :: atomic { anchors[1] == 0 -> to = 1; anchors[1] = BIT(me); pins[1] = 0; left[1] = 0; live = live & ~BIT(1) }
#if NROWS > 2
    :: atomic { anchors[2] == 0 -> to = 2; anchors[2] = BIT(me); pins[2] = 0; left[2] = 0; live = live & ~BIT(2) }
#endif
    fi;
#if defined(COPY_BEFORE_LIVE)
    copy_pins(); make_live(); count_move();
#elif defined(MOVES_FIRST)
    make_live(); count_move(); copy_pins();
#elif defined(NO_MOVES)
    make_live(); copy_pins();
#elif defined(COPY_AFTER_FORK)
    make_live();
#else
    make_live(); copy_pins(); count_move();
#endif
#ifdef ANCHOR_EARLY
    atomic { true -> anchors[to] = anchors[to] & ~BIT(me) };
#endif
    if /* fork() */
    :: atomic { born < NPROCS ->
#ifndef ANCHOR_EARLY
        anchors[to] = anchors[to] | BIT(born);
#endif
        INHERITED; views[view]++;
#ifdef PARENT_ROW
        run process(born, row, view, false);
#else
        run process(born, to, view, false);
#endif
        born++; REACHED(1, "a child with a row of its own") }
    :: atomic { true -> REACHED(2, "a fork that failed") }
    :: DIE(LOSE_VIEW)
    fi;
#ifdef COPY_AFTER_FORK
    copy_pins(); count_move();
#endif
    if /* the parent unmaps the anchor; the child's map keeps the lock */
    :: atomic { true -> anchors[to] = anchors[to] & ~BIT(me); to = 0 }
    :: DIE(LOSE_VIEW)
    fi
}

/* No row can be had: the child shares this one, or the one that this process shares. */
inline share()
{
#ifndef NOTHING_LEFT
    if
    :: atomic { !shares -> left[row] = left[row] | BIT(view) } /* fork.shared */
    :: atomic { shares -> skip }
    :: DIE(LOSE_VIEW)
    fi;
#endif
    if /* fork() */
    :: atomic { born < NPROCS ->
#ifndef SHARED_WITHOUT_ANCHOR
        anchors[row] = anchors[row] | BIT(born);
#endif
        sharers[row] = sharers[row] | BIT(born); views[view]++;
        run process(born, row, view, true);
        born++; REACHED(5, "a child that shares a row") }
    :: atomic { true -> skip } /* it failed */
    :: DIE(LOSE_VIEW)
    fi
}

#ifdef SETTLED_EARLY
#define MAY_SETTLE true
#else
#define MAY_SETTLE sharers[row] == 0
#endif

proctype process(byte me; byte row; byte view; bool shares)
{
    byte b, to;
    do
    :: atomic { view == NBUFS && !shares -> b = slot };
        if
        :: atomic { true -> pins[row] = pins[row] | BIT(b) } /* pin.added */
        :: DIE(skip)
        fi;
        if
        :: atomic { slot == b -> assert(filling != b); views[b]++; view = b; b = 0 }
        :: atomic { slot != b -> pins[row] = pins[row] & ~BIT(b); b = 0 } /* pin.undone */
        :: DIE(skip)
        fi
    :: atomic { view != NBUFS && shares -> /* holds nothing here */
        assert(filling != view);
        views[view]--; view = NBUFS }
    :: atomic { !shares && left[row] != 0 && MAY_SETTLE -> /* share.settled */
        left[row] = 0; REACHED(6, "a pin left behind, taken back") }
    :: atomic { view != NBUFS && !shares -> /* unpin.done */
        assert((pins[row] & BIT(view)) != 0); /* nobody else gave this pin back */
        assert(filling != view);
        views[view]--; pins[row] = pins[row] & ~BIT(view); view = NBUFS }
    :: atomic { view != NBUFS && !shares && tried < NFORKS -> tried++ };
        hand_over()
    :: atomic { view != NBUFS && tried < NFORKS -> tried++ };
        share()
    :: DIE(LOSE_VIEW)
    od;
dead:
    skip
}

/* One writer; its claim is never contended, pool.pml shows that part. */
active proctype writer()
{
    byte b, r, high, before;
take:
    do
    :: atomic { slot != 0 -> b = 0 }; break
    :: atomic { slot != 1 -> b = 1 }; break
#if NBUFS > 2
    :: atomic { slot != 2 -> b = 2 }; break
#endif
    od;
    atomic { true -> before = moves };
    atomic { true -> high = mark; r = 0 };
    do
    :: atomic { r < high && !IS_PINNED(r, b) -> r++ }
    :: atomic { r < high && IS_PINNED(r, b) -> r = 0; high = 0; before = 0 }; goto take
    :: atomic { r == high -> r = 0; high = 0 }; break
    od;
    if
    :: atomic { moves == before -> before = 0 }
#ifndef NO_MOVES
    :: atomic { moves != before -> before = 0; REACHED(3, "a scan that saw a move") }; goto take
#endif
    fi;
    atomic { true -> assert(views[b] == 0); filling = b }; /* I1 */
    atomic { true -> filling = NBUFS; slot = b };
    goto take
}

#define LOOKS_DEAD(r) (r < mark && IS_LIVE(r) && anchors[r] == 0)
active proctype recoverer()
{
    byte r;
look:
    if
    :: atomic { LOOKS_DEAD(0) -> r = 0; anchors[0] = RECOVERING } /* recover.locked */
    :: atomic { LOOKS_DEAD(1) -> r = 1; anchors[1] = RECOVERING }
#if NROWS > 2
    :: atomic { LOOKS_DEAD(2) -> r = 2; anchors[2] = RECOVERING }
#endif
    fi;
    if
    :: atomic { true -> pins[r] = 0; left[r] = 0; REACHED(4, "a row that fork made, recovered") } /* recover.unpinned */
    :: atomic { true -> anchors[r] = 0 }; goto look /* it dies */
    fi;
    if
    :: atomic { true -> live = live & ~BIT(r) } /* recover.freed */
    :: atomic { true -> anchors[r] = 0 }; goto look
    fi;
    atomic { true -> anchors[r] = 0; r = 0 };
    goto look
}

/* R4: a row that is FREE and nobody's holds nothing; R3: nor does one that no scan looks at. */
#define LOST(r) ((pins[r] | left[r]) != 0 && ((anchors[r] == 0 && !IS_LIVE(r)) || r >= mark))
hidden byte nothing_is_lost; /* always false: a name for what the checker prints */

active proctype observer()
{
    do
    :: atomic { LOST(0) -> assert(nothing_is_lost) }
    :: atomic { LOST(1) -> assert(nothing_is_lost) }
#if NROWS > 2
    :: atomic { LOST(2) -> assert(nothing_is_lost) }
#endif
    od
}

init {
    /* The first process may have the lower or the higher row: scans go upwards. */
    atomic {
        if
        :: true -> anchors[0] = BIT(0); live = BIT(0); mark = 1; run process(0, 0, NBUFS, false)
        :: true -> anchors[1] = BIT(0); live = BIT(1); mark = 2; run process(0, 1, NBUFS, false)
        fi
    }
}
