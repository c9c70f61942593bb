/*
 * Who owns a pool (rules O1-O4): candidates take the lock file, make and fill the pool, mark it ready,
 * reign and take it down again; whoever outlives a dead owner, its supervisor, removes what that one
 * left. Each may die before every step. A follower attaches to what is marked ready.
 *
 * A file is there as long as somebody has it open or it has its name: the lock that a candidate gets
 * may be that of a file which lost its name.
 *
 * RUDE: somebody removes names behind a living owner, which finds that out where it touches one: it
 * takes the lock that the name leads to, or finds another owner there. That look and the touch are one
 * step here; docs/MODELS.md says what that leaves out.
 */
#ifndef NPROCS
#define NPROCS 2
#endif
#ifndef NGENS
#define NGENS 3 /* reigns; the first has number 1 */
#endif
#ifndef NDEATHS
#define NDEATHS 2
#endif
#define NFILES (NPROCS + 1)

byte lock_name; /* the file that <name>.lock names; 0: none */
byte segment;   /* the generation of the segment <name> */
byte marker;    /* the generation that <name>.ready says */
byte holder[NFILES + 1]; /* whose flock, process + 1 */
byte opened[NFILES + 1];
bool filled[NGENS + 1];
byte reigns[NGENS + 1];  /* who holds the owner's byte of the segment, process + 1 */
byte next = 1;
byte orphan; /* the generation of a dead owner whose supervisor lives */

byte deaths, owners; /* what only the observer knows */

#ifdef REACH
c_decl { static int reach_seen[10]; }
#define REACHED(n, text) c_code { \
    if (!reach_seen[n]) { reach_seen[n] = 1; printf("reached: %s\n", text); } }
#else
#define REACHED(n, text) skip
#endif

#define ME (_pid + 1)
#ifdef RUDE
#define ALONE true /* two may hold locks, of which one has no name */
#define ONE_OWNER true
#else
#define ALONE (taken == 1 && owners == 1) /* the owner, and the only one */
#define ONE_OWNER (owners == 1)
#endif
/* The segment of the name has a living owner. */
#define LIVING (segment != 0 && reigns[segment] != 0)
/* Another owner's, who lives and has not lost it. */
#define OTHERS(generation) (generation != 0 && generation == segment && \
                            reigns[generation] != 0 && reigns[generation] != ME)

/* In a search for progress the first candidate lives, and the last reign is left to it. */
#ifdef LIVENESS
#define MORTAL (_pid != 0 && deaths < NDEATHS)
#define MAY_REIGN (next < NGENS || (_pid == 0 && next == NGENS))
#else
#define MORTAL (deaths < NDEATHS)
#define MAY_REIGN (next <= NGENS)
#endif

/* The kernel closes what a dead process had; its reservation of names stays. */
inline die()
{
    deaths++;
#ifndef LOCK_INHERITED
    if
    :: file != 0 && holder[file] == ME -> holder[file] = 0
    :: else
    fi;
    if
    :: file != 0 -> opened[file]--
    :: else
    fi;
#endif
    if
    :: mine != 0 && reigns[mine] == ME -> reigns[mine] = 0; orphan = mine
    :: else
    fi;
    owners = owners - taken;
    file = 0; mine = 0; taken = 0; cleans = 0; regained = 0
}

#define OR_DIE :: atomic { MORTAL -> die(); goto fresh }

/* One look or one change, or death before it. */
#define STEP(what) if :: atomic { true -> what } OR_DIE fi

inline open_lock_file() /* open(O_CREAT) */
{
    if
    :: lock_name != 0 -> file = lock_name
    :: else ->
        file = 1;
        do
        :: opened[file] != 0 -> file++
        :: else -> break
        od;
        lock_name = file
    fi;
    opened[file]++
}

inline let_go()
{
    holder[file] = 0; opened[file]--; file = 0
}

inline no_owner_any_more()
{
    owners = owners - taken; taken = 0
}

inline take_again()
{
    if :: holder[file] == ME -> holder[file] = 0 :: else fi;
    opened[file]--; open_lock_file(); holder[file] = ME; regained = 1
}

/* Before a marker is touched: is the lock ours that the name leads to, or can it be? */
inline hold_name()
{
#if defined(RUDE) && !defined(NAME_NOT_HELD)
    if
    :: lock_name == file
    :: lock_name != file && (lock_name == 0 || holder[lock_name] == 0) ->
        REACHED(6, "a lock file that its owner makes or takes anew");
        take_again()
    :: lock_name != file && lock_name != 0 && holder[lock_name] != 0
    fi
#else
    skip
#endif
}

#if defined(RUDE) && !defined(NAME_NOT_HELD)
#define NAME_IS_HELD (lock_name == file)
#else
#define NAME_IS_HELD true
#endif

#ifdef ANY_MARKER
#define IS_MINE(generation) true
#else
#define IS_MINE(generation) (!regained || marker == generation)
#endif

/* Whichever reign it is from, as long as the lock was never lost. */
inline clear_marker(generation)
{
    hold_name();
    if
    :: NAME_IS_HELD && IS_MINE(generation) ->
        assert(ALONE && !OTHERS(marker)); marker = 0 /* ready.cleared */
    :: NAME_IS_HELD && !IS_MINE(generation) -> REACHED(8, "a marker of another who owned the name")
    :: !NAME_IS_HELD -> REACHED(7, "an old owner that leaves the marker to the new one")
    fi
}

inline write_marker()
{
    hold_name();
    if
    :: NAME_IS_HELD -> assert(ALONE && !OTHERS(marker)); marker = mine /* ready.renamed */
    :: !NAME_IS_HELD
    fi
}

/* By the file itself, which no other name leads to. */
inline unlink_segment(generation)
{
    if
    :: segment == generation -> assert(ALONE); segment = 0 /* remove.unlinked */
    :: else
    fi
}

inline unlink_lock_file() /* lockfile.unlinked */
{
    if
    :: lock_name == file -> lock_name = 0
    :: else
    fi
}

active [NPROCS] proctype candidate()
{
    byte file, mine, cleans;
    bit taken, regained;
fresh:
    do
    :: atomic { MAY_REIGN -> cleans = 0 };
again:
        STEP(open_lock_file());
        if /* flock */
        :: atomic { holder[file] == 0 -> holder[file] = ME }
        :: atomic { holder[file] != 0 -> opened[file]--; file = 0;
                    if :: cleans != 0 -> REACHED(1, "a supervisor that found a new owner")
                       :: else fi };
            if
            :: cleans != 0 -> goto fresh /* it touches no name */
            :: else -> goto again
            fi
        OR_DIE
        fi;
#ifdef NO_FILE_CHECK
        STEP(taken = 1; owners++; assert(ONE_OWNER)); /* lockfile.taken */
#else
        if
        :: atomic { lock_name == file -> taken = 1; owners++; assert(ONE_OWNER) }
        :: atomic { lock_name != file -> REACHED(2, "the lock of a file that lost its name");
                    let_go(); goto again }
        OR_DIE
        fi;
#endif
        if
        :: cleans != 0 -> goto clean
        :: atomic { cleans == 0 && MAY_REIGN -> mine = next; next++ }
        :: atomic { cleans == 0 && !MAY_REIGN -> goto leave }
        fi;
        if
        :: atomic { segment != 0 -> REACHED(3, "taking over from the dead") }
        :: else
        fi;
#ifndef MARKER_FIRST_OF_ALL
        if /* its segment shows a living owner whose lock file was removed */
        :: atomic { LIVING -> mine = 0; goto leave }
        :: atomic { !LIVING -> skip }
        OR_DIE
        fi;
#endif
#ifndef MARKER_LAST
        STEP(clear_marker(mine));
#endif
        if
        :: atomic { LIVING -> mine = 0; goto leave }
        :: atomic { !LIVING -> assert(ALONE); segment = 0 } /* create.unlinked */
        OR_DIE
        fi;
        if
        :: atomic { segment != 0 -> mine = 0; goto leave }
        :: atomic { segment == 0 -> assert(ALONE); segment = mine; reigns[mine] = ME } /* create.linked */
        OR_DIE
        fi;
#ifdef MARKER_LAST
        STEP(clear_marker(mine));
#endif
#ifdef MARKED_EARLY
        STEP(write_marker());
        STEP(filled[mine] = true);
#else
        STEP(filled[mine] = true);
        STEP(write_marker());
#endif
#ifdef LIVENESS
        if
        :: _pid == 0 ->
progress_reigns:
            atomic { filled[mine] -> skip };
            goto progress_reigns
        :: else
        fi;
#endif
        /* The end of the reign. */
#ifdef LOCK_UNLINKED_EARLY
        STEP(unlink_lock_file());
#endif
#ifdef SEGMENT_FIRST
        STEP(unlink_segment(mine));
        STEP(clear_marker(mine));
#else
        STEP(clear_marker(mine));
        STEP(unlink_segment(mine));
#endif
        STEP(reigns[mine] = 0); /* the segment is closed */
        goto leave;
clean:
        STEP(if :: marker == cleans -> clear_marker(cleans) :: else fi);
        STEP(unlink_segment(cleans));
leave:
#ifdef UNLOCKED_FIRST
        STEP(no_owner_any_more(); holder[file] = 0);
        STEP(unlink_lock_file(); opened[file]--; file = 0);
#else
        STEP(no_owner_any_more(); unlink_lock_file());
        STEP(let_go());
#endif
        mine = 0; cleans = 0; regained = 0
    :: atomic { orphan != 0 -> cleans = orphan; orphan = 0 }; /* the supervisor of a dead owner */
#ifdef CLEANED_BY_OTHERS
        goto clean
#else
        goto again
#endif
    :: atomic { !MAY_REIGN && orphan == 0 -> break }
    od
}

/* sv_pool_attach() */
active proctype follower()
{
    byte marked, found;
    do
    :: atomic { marker != 0 -> marked = marker };
        if
        :: atomic { segment != 0 -> found = segment };
            if
#ifndef NO_COMPARISON
            :: atomic { found != marked -> REACHED(4, "a marker of another generation") }
            :: found == marked ->
#else
            :: true ->
#endif
                if
                :: atomic { reigns[found] != 0 -> assert(filled[found]) } /* attached */
                :: atomic { reigns[found] == 0 -> REACHED(5, "a pool whose owner is dead") }
                fi
            fi
        :: segment == 0
        fi;
        marked = 0; found = 0
    :: atomic { true -> break }
    od
}

#ifdef RUDE
active proctype rude()
{
    byte n;
    do
    :: atomic { n < RUDE && lock_name != 0 -> lock_name = 0; n++ }
    :: atomic { n < RUDE && marker != 0 -> marker = 0; n++ }
    :: atomic { n < RUDE && segment != 0 -> segment = 0; n++ }
    :: atomic { true -> break }
    od
}
#else
/* A marker beside the segment of a living owner is that owner's, and says the truth. */
active proctype observer()
{
    if
    :: atomic { segment != 0 && reigns[segment] != 0 && marker != 0 && marker != segment ->
                assert(false) }
    :: atomic { marker != 0 && reigns[marker] != 0 && (segment != marker || !filled[marker]) ->
                assert(false) }
    :: atomic { true -> skip }
    fi
}
#endif
