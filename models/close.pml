/*
 * Closing with live views (rules V1-V3): inside one process, threads drop views while another closes
 * the last handle and opens the segment again. The mapping must never go away under a view or a
 * handle, and must be gone when the last of both is.
 */
#ifndef NTHREADS
#define NTHREADS 2
#endif
#ifndef ROUNDS
#define ROUNDS 2
#endif

bool lock;             /* process_mutex */
bool mapped;
byte handles;
bool closing;
byte cells[NTHREADS];  /* this process's row: thread i pins buffer i */
bool freed;            /* the struct's memory was given back */
byte done;

byte views;            /* what only the observer knows */

#ifdef REACH
c_decl { static int reach_seen[8]; }
#define REACHED(n, text) c_code { \
    if (!reach_seen[n]) { reach_seen[n] = 1; printf("reached: %s\n", text); } }
#else
#define REACHED(n, text) skip
#endif

/* c_code takes no parameter of an inline. */
inline REACH_UNMAP(n)
{
    if
    :: n == 1 -> REACHED(1, "unmapped by the last view")
    :: n == 4 -> REACHED(4, "unmapped by the last handle")
    fi
}

#ifdef STRUCT_FREED
#define UNMAP mapped = false; freed = true
#else
#define UNMAP mapped = false
#endif

/* svi_row_own_pins(): one cell after the other. */
inline sum_pins()
{
    atomic { true -> assert(mapped); sum = cells[0] };
#if NTHREADS > 1
    atomic { true -> assert(mapped); sum = sum + cells[1] };
#endif
#if NTHREADS > 2
    atomic { true -> assert(mapped); sum = sum + cells[2] };
#endif
    skip
}

inline unmap_unpinned(n)
{
    if
    :: atomic { sum == 0 -> assert(mapped && views == 0 && handles == 0); UNMAP; REACH_UNMAP(n) }
    :: atomic { sum != 0 -> sum = 0 }
    fi
}

inline settle()
{
#ifndef SETTLE_UNLOCKED
    atomic { !lock -> lock = true };
#endif
    if
#ifdef SETTLE_BLIND
    :: atomic { mapped -> skip };
#else
    :: atomic { mapped && handles == 0 && closing -> skip };
#endif
        sum_pins();
        unmap_unpinned(1)
    :: else -> REACHED(2, "a late look that finds nothing to do")
    fi;
#ifndef SETTLE_UNLOCKED
    atomic { true -> lock = false }
#else
    skip
#endif
}

active [NTHREADS] proctype viewer()
{
    byte sum, round;
    bool seen;
    do
    /* A handle is not closed under a call that uses it: pin needs no more than this. */
    :: atomic { round < ROUNDS && handles > 0 -> assert(mapped); cells[_pid]++; views++ };
#ifdef LOOK_FIRST
        atomic { true -> seen = closing };
        atomic { true -> assert(mapped); views--; cells[_pid]-- };
#else
        atomic { true -> assert(mapped); views--; cells[_pid]-- }; /* unpin.done */
        atomic { true -> assert(!freed); seen = closing };
#endif
        if
        :: seen -> settle()
        :: else -> skip
        fi;
        atomic { true -> seen = false; sum = 0; round++ }
    :: round == ROUNDS -> break
    :: atomic { handles == 0 && round < ROUNDS -> round++ } /* no handle: this round does nothing */
    od;
    done++
}

active proctype opener()
{
    byte sum, round;
    do
    :: round < ROUNDS ->
        atomic { !lock -> lock = true };
        if /* sv_segment_open */
        :: atomic { mapped -> handles++; REACHED(3, "opened again while views live") }; closing = false
        :: atomic { !mapped -> closing = false; freed = false };
            atomic { true -> mapped = true; handles++ }
        fi;
        atomic { true -> lock = false };
        atomic { !lock -> lock = true };
        handles--; /* sv_segment_close */
#ifdef SUM_FIRST
        sum_pins();
        closing = true;
#else
        closing = true;
        sum_pins();
#endif
        unmap_unpinned(4);
        atomic { true -> lock = false; sum = 0; round++ }
    :: round == ROUNDS -> break
    od;
    done++
}

/* Nobody is left who could unmap it. */
active proctype observer()
{
    atomic { done == NTHREADS + 1 -> assert(!mapped) }
}
