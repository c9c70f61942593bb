/*
 * Events (rules N1-N3): sleepers wait until every waker has brought its part of the condition about.
 * The kernel compares and falls asleep, or wakes all, in one step. Without kills there is no slice: who
 * sleeps and is not woken stays asleep, which the checker reports as an invalid end state.
 */
#ifndef NSLEEPERS
#define NSLEEPERS 2
#endif
#ifndef NWAKERS
#define NWAKERS 2
#endif

bool marked;               /* somebody sleeps */
byte count;             /* wakes; cannot come round here */
byte done;              /* the condition: NWAKERS of them */
bool asleep[NSLEEPERS];
bool slice;             /* a waker was killed: sleepers look again by themselves (N3) */

#ifdef REACH
c_decl { static int reach_seen[8]; }
#define REACHED(n, text) c_code { \
    if (!reach_seen[n]) { reach_seen[n] = 1; printf("reached: %s\n", text); } }
#else
#define REACHED(n, text) skip
#endif

#ifdef KILLS
#define MAY_DIE :: true -> atomic { slice = true; REACHED(1, "a waker killed before its wake") }; goto dead
#else
#define MAY_DIE
#endif

inline wake_all()
{
    atomic {
        i = 0;
        do
        :: i < NSLEEPERS -> asleep[i] = false; i++
        :: i == NSLEEPERS -> i = 0; break
        od
    }
}

/* svi_event_wake() */
inline tell()
{
    atomic { seen_mark = marked; seen_count = count };
    if
    :: seen_mark ->
        if
        MAY_DIE
        :: true -> skip
        fi;
        atomic {
            if
            :: marked == seen_mark && count == seen_count ->
                marked = false;
#ifndef NO_COUNT
                count++;
#endif
                swapped = true
            :: else -> swapped = false; REACHED(2, "a lost swap")
            fi
        };
        if
        MAY_DIE
        :: swapped -> wake_all()
        :: !swapped -> skip
        fi
    :: !seen_mark -> skip
    fi
}

proctype waker()
{
    byte i, seen_count;
    bool seen_mark, swapped;
#ifdef TELL_FIRST
    tell();
    done++
#else
    done++;
    if
    MAY_DIE
    :: true -> skip
    fi;
    tell()
#endif
dead:
    skip
}

proctype sleeper(byte me)
{
    byte armed;
#ifdef LOOK_FIRST
    bool holds;
#endif
again:
#ifdef LOOK_FIRST
    holds = (done == NWAKERS);
#endif
    atomic { marked = true; armed = count };
#ifdef LOOK_FIRST
    if
    :: holds -> goto over
    :: !holds -> skip
    fi;
#else
    if
    :: done == NWAKERS -> goto over
    :: done < NWAKERS -> skip
    fi;
#endif
    atomic { /* the kernel compares the word and queues */
        if
#ifdef NO_COMPARE
        :: true -> asleep[me] = true
#else
        :: marked && count == armed -> asleep[me] = true; REACHED(3, "asleep")
        :: else -> REACHED(4, "the word changed before the sleep"); goto again
#endif
        fi
    };
    (!asleep[me] || slice);
    asleep[me] = false;
    goto again;
over:
    skip
}

init
{
    byte n;
    atomic {
        n = 0;
        do
        :: n < NSLEEPERS -> run sleeper(n); n++
        :: n == NSLEEPERS -> break
        od;
        n = 0;
        do
        :: n < NWAKERS -> run waker(); n++
        :: n == NWAKERS -> break
        od
    }
}
