/*
 * Who owns a pool (rules O1-O4): candidates take the lock file, make and fill the pool, mark it ready,
 * reign and take it down again; whoever outlives a dead owner, its supervisor, removes what that one
 * left. Each may die before every step. A follower attaches to what is marked ready.
 *
 * A file is there as long as somebody has it open or it has its name: the lock that a candidate gets
 * may be that of a file which lost its name.
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
c_decl { static int reach_seen[8]; }
#define REACHED(n, text) c_code { \
    if (!reach_seen[n]) { reach_seen[n] = 1; printf("reached: %s\n", text); } }
#else
#define REACHED(n, text) skip
#endif

#define ME (_pid + 1)
#define ALONE (taken == 1 && owners == 1) /* the owner, and the only one */

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
    file = 0; mine = 0; taken = 0; cleans = 0
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

inline clear_marker()
{
    assert(ALONE); marker = 0 /* ready.cleared */
}

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
    bit taken;
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
        STEP(taken = 1; owners++; assert(owners == 1)); /* lockfile.taken */
#else
        if
        :: atomic { lock_name == file -> taken = 1; owners++; assert(owners == 1) }
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
#ifndef MARKER_LAST
        STEP(clear_marker());
#endif
        STEP(assert(ALONE); segment = 0);                       /* create.unlinked */
        STEP(assert(ALONE); segment = mine; reigns[mine] = ME); /* create.linked */
#ifdef MARKER_LAST
        STEP(clear_marker());
#endif
#ifdef MARKED_EARLY
        STEP(assert(ALONE); marker = mine);
        STEP(filled[mine] = true);
#else
        STEP(filled[mine] = true);
        STEP(assert(ALONE); marker = mine); /* ready.renamed */
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
        STEP(clear_marker());
#else
        STEP(clear_marker());
        STEP(unlink_segment(mine));
#endif
        STEP(reigns[mine] = 0); /* the segment is closed */
        goto leave;
clean:
        STEP(clear_marker());
        STEP(unlink_segment(cleans));
leave:
#ifdef UNLOCKED_FIRST
        STEP(no_owner_any_more(); holder[file] = 0);
        STEP(unlink_lock_file(); opened[file]--; file = 0);
#else
        STEP(no_owner_any_more(); unlink_lock_file());
        STEP(let_go());
#endif
        mine = 0; cleans = 0
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
