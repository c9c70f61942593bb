/*
 * sharedvector - a pool of array chunks in shared memory that survives the death of any process.
 *
 * One process makes a named segment with a fixed number of slots; any number of processes attach by
 * name and read chunks without a copy, while writers go on replacing them. Readers never wait,
 * never see half a chunk, and a process killed at any instruction costs nobody else anything.
 *
 * Sketch
 *
 *     sv_options opt;
 *     sv_options_init(&opt);
 *     opt.chunk_size = 1 << 20;
 *     opt.slot_count = 64;
 *     opt.dtype = "float32";
 *     opt.itemsize = 4;
 *     sv_segment *seg;
 *     sv_error err;
 *     if (sv_segment_open("run42", &opt, SV_OPEN_CREATE, &seg, &err) != 0) {
 *         fprintf(stderr, "%s\n", err.message);
 *         return 1;
 *     }
 *     sv_view view;
 *     if (sv_pin(seg, 0, &view) == 0) {
 *         use(view.data, view.size_bytes);
 *         sv_unpin(&view);
 *     }
 *     sv_segment_close(seg, &err);
 *
 * Caveats, for people in trouble
 *   - A view keeps its chunk, not its slot: after a replacement a view goes on showing the old data.
 *     Writers that publish with sv_publish_turn() leave a slot alone while its chunk has views. A view
 *     of a chunk that was displaced all the same takes a buffer from the writers until it is dropped.
 *   - /dev/shm of a container has 64 MiB unless it is told otherwise (docker run --shm-size=...).
 *   - A segment without an owner stays until sv_segment_remove() or the next boot.
 *   - After fork() the child may go on using every handle and view; a reservation stays with the
 *     parent. When no row can be had for the child, it goes on looking at its views by its parent's row,
 *     and gets SV_EROWS (or ENOSPC) for new ones. A child made by a raw clone system call loses the pins of its views. A view that another
 *     thread is just pinning or unpinning while fork() runs may or may not count in the child: join
 *     or pause such threads first, as for any other state that threads share (Python's GIL does it).
 *   - Closing foreign file descriptors (closefrom and the like) does no harm to pins and ownership.
 *   - Functions that return nothing do nothing when they get NULL, so that a clean-up need not ask.
 *   - A process of the same user can write into the segment. Nothing read from there is trusted:
 *     damage gives SV_EFORMAT, never a crash of this library. Only cutting the file short is beyond
 *     it: the kernel answers that with SIGBUS.
 *
 * Versions: SV_VERSION_STRING is the library. The format of a segment has a version of its own
 * (SV_FORMAT_MAJOR); processes with different library versions share a node as long as it is equal.
 *
 * Errors: every fallible function returns 0 or a negative SV_E code and writes its out-parameters
 * only on success (an sv_view is undefined after a failed pin). Slow calls take `sv_error *err` last (NULL is allowed) and describe there what
 * was wanted, what was found and what to do. Unless a function says otherwise a failure changes
 * nothing.
 *
 * Threads: every function may be called from any thread, with any handle, unless it says otherwise.
 *
 * Who meets whom (all orders are argued in docs/PROTOCOL.md)
 *
 *     |            | pin                | reserve            | publish / append / replace         |
 *     |------------|--------------------|--------------------|------------------------------------|
 *     | pin        | never meet         | pin wins: that     | sees the old chunk or the new one, |
 *     |            |                    | buffer is skipped  | each whole                         |
 *     | reserve    | see left           | each gets another  | a displaced buffer is free once    |
 *     |            |                    | buffer             | its pins are gone                  |
 *     | publish    | see left           | see left           | one slot: one after the other      |
 *     | recover    | never touches the  | gives back what    | clears the claims of dead writers  |
 *     |            | living             | the dead held      |                                    |
 */
#ifndef SHAREDVECTOR_SHAREDVECTOR_H
#define SHAREDVECTOR_SHAREDVECTOR_H

#include <stddef.h>
#include <stdint.h>

#include "sharedvector/error_table.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SV_VERSION_STRING "0.2.0"
#define SV_FORMAT_MAJOR 1
#define SV_FORMAT_MINOR 1

#if defined(__GNUC__)
#define SV_API __attribute__((visibility("default")))
#define SV_MUST_CHECK __attribute__((warn_unused_result))
#else
#define SV_API
#define SV_MUST_CHECK
#endif

/* ---- limits -------------------------------------------------------------------------------- */

#define SV_MAX_NDIM 16          /* dimensions of an array */
#define SV_MAX_ARRAYS 8         /* named arrays in one chunk */
#define SV_MAX_META 8           /* float64 metadata values of one chunk */
#define SV_MAX_NAME_BYTES 240   /* bytes of a segment's name */
#define SV_DTYPE_BYTES 256      /* a dtype's text with its NUL */
#define SV_ARRAY_NAME_BYTES 32  /* an array's name with its NUL */
#define SV_GENERATION_BYTES 64  /* a generation's text with its NUL */
#define SV_MAX_BUFFERS 16777216 /* slots and spares together */
#define SV_MAX_ROWS 65536       /* processes attached at once */

/* ---- errors -------------------------------------------------------------------------------- */

#define SV_ERROR_ENUM_ROW(symbol, value, text, python_class) symbol = (value),
typedef enum sv_code { SV_OK = 0, SV_ERROR_TABLE(SV_ERROR_ENUM_ROW) } sv_code;
#undef SV_ERROR_ENUM_ROW

/* Filled by the caller's request when a slow call fails; untouched when it succeeds. */
typedef struct sv_error {
    int code;           /* an SV_E code */
    int sys_errno;      /* errno of the system call behind it, or 0 */
    char operation[48]; /* what was being done, e.g. "create segment" */
    char message[1024]; /* wanted, found, remedy; one line */
} sv_error;

/* The fixed text of a code; never NULL. */
SV_API const char *sv_error_text(int code);

/*
 * Have `interrupted` asked every few milliseconds by every call that waits for another process or
 * reserves much memory, with no lock held; other than 0 ends it with SV_ETIMEDOUT. For interpreters,
 * whose signal handlers run between two instructions. NULL: nobody is asked. Call it before other
 * threads use the library.
 */
SV_API void sv_interrupts(int (*interrupted)(void));

/* The version of the library that is linked, e.g. "0.2.0". */
SV_API const char *sv_version(void);

/* ---- types --------------------------------------------------------------------------------- */

/* A handle on an attached segment. Handles of one process on one segment share a mapping and a row. */
typedef struct sv_segment sv_segment;

/* The lock that makes a process the owner of a pool. */
typedef struct sv_owner sv_owner;

/* How to make or find a segment. Always start with sv_options_init(). */
typedef struct sv_options {
    size_t size;              /* sizeof(sv_options), set by sv_options_init */
    uint64_t chunk_size;      /* bytes one buffer holds; 1 MiB */
    uint64_t max_memory_size; /* bytes that the slots may take; used when slot_count is 0; 10 MiB */
    uint32_t slot_count;      /* slots, or 0: as many as max_memory_size gives */
    uint32_t spare_buffers;   /* buffers beyond the slots; 2, at least 1 */
    uint32_t max_rows;        /* processes that may be attached at once; 1024 */
    uint32_t max_arrays;      /* arrays per chunk, 1 to SV_MAX_ARRAYS; 1 */
    uint32_t stats_capacity;  /* samples that the ring holds; 0: two refresh cycles */
    uint32_t mode;            /* permission bits of the file; 0600 */
    uint32_t itemsize;        /* bytes of one element of dtype; 0 on attach: any */
    const char *dtype;        /* the segment's dtype as text; NULL on attach: any */
    const char *directory;    /* a tmpfs; NULL: SHAREDVECTOR_SHM_DIR, else /dev/shm */
    const char *generation;   /* create: NULL draws one. attach: refuse any other */
    uint64_t expect_inode;    /* attach: refuse any other file; 0: any */
    uint32_t expect_slots;    /* attach: refuse another number of slots; 0: any */
    uint32_t owned;           /* create: 1 makes this process the recorded owner (a pool) */
    uint32_t block;           /* create: 1 makes a block, of one slot and no spare buffer */
    uint64_t timeout_ns;      /* longest wait for another creator or a sweeper, beside the time that
                                  reserving the memory takes; 5 s */
    uint32_t processes;       /* create: attached processes, beside the one that makes the segment,
                                  whose rows are reserved with it, so that a full file system keeps
                                  none of them away; 0: 63, fewer for many tiny chunks */
} sv_options;

/* Facts that never change while a segment lives. */
typedef struct sv_info {
    char name[SV_MAX_NAME_BYTES + 1];
    char directory[512];
    char generation[SV_GENERATION_BYTES];
    char dtype[SV_DTYPE_BYTES];
    uint32_t itemsize;
    uint32_t slot_count;
    uint32_t buffer_count; /* slots and spares */
    uint32_t max_rows;
    uint32_t max_arrays;
    uint32_t stats_capacity;
    uint32_t owned; /* 1: a pool or a block whose owner is recorded */
    uint32_t block; /* 1: a block */
    uint32_t mode;
    uint64_t chunk_size;
    uint64_t segment_bytes; /* memory reserved in total: header, slots, headers, first rows, ring,
                                payload */
    uint64_t row_bytes;     /* memory that an attached process takes beyond `processes` */
    uint64_t inode;
    uint32_t processes; /* processes beside the maker whose rows are reserved; 0: format 1.0, which
                           did not say */
} sv_info;

/* One array of a chunk. In a view `data` lies in the pool and must not be written. */
typedef struct sv_array {
    const void *data;
    uint64_t size_bytes;
    uint32_t itemsize;
    uint32_t ndim;
    uint64_t shape[SV_MAX_NDIM];
    char name[SV_ARRAY_NAME_BYTES]; /* "" for the only array of a chunk */
    char dtype[SV_DTYPE_BYTES];     /* "" means the segment's dtype */
} sv_array;

/* What append and replace store: arrays in C order, and what is known about them. */
typedef struct sv_chunk {
    const sv_array *arrays;
    uint32_t array_count; /* 1 to max_arrays */
    uint32_t meta_count;  /* 0 to SV_MAX_META */
    const double *meta;
    uint64_t source_index; /* where the chunk came from; shown, never interpreted */
    uint64_t source_epoch;
} sv_chunk;

/* A pinned chunk. Allocated by the caller; the fields under the line belong to the library. A view may
 * be moved to another address, but a copy of it is not a view: one pin is given back once. Giving a
 * stale copy back is refused only when no other view of this process pins the same chunk, as pins are
 * counted and not told apart. */
typedef struct sv_view {
    const void *data; /* first array, 64-byte aligned, read-only */
    uint64_t size_bytes;
    uint32_t itemsize;
    uint32_t ndim;
    uint64_t shape[SV_MAX_NDIM]; /* the first ndim values are set */
    uint32_t array_count;
    uint32_t slot;
    /* ---- */
    void *mapping_;
    uint32_t buffer_;
    uint32_t state_;
} sv_view;

/* A free buffer that is being filled. Allocated by the caller. It may be moved to another address; once
 * it has ended, every copy of it is refused (SV_EINVAL), even when this process has reserved the same
 * buffer again. */
typedef struct sv_reservation {
    void *data; /* writable, 64-byte aligned */
    uint64_t capacity_bytes;
    /* ---- */
    void *mapping_;
    uint32_t buffer_;
    uint32_t state_;
    uint64_t process_;
    uint64_t number_;
} sv_reservation;

/* What elements are, where that matters. Everything else moves as bytes. */
typedef enum sv_type {
    SV_OPAQUE = 0, /* any other: booleans, structures, foreign byte orders, ... */
    SV_U8 = 1,
    SV_I8 = 2,
    SV_U16 = 3,
    SV_I16 = 4,
    SV_U32 = 5,
    SV_I32 = 6,
    SV_U64 = 7,
    SV_I64 = 8,
    SV_F16 = 9,
    SV_F32 = 10,
    SV_F64 = 11
} sv_type;

/* An array anywhere in memory. Elements need not be aligned. */
typedef struct sv_strided {
    void *data;        /* the element with all indices 0; only read when it is a source */
    uint32_t type;     /* an sv_type */
    uint32_t itemsize; /* bytes of one element */
    uint32_t ndim;
    uint64_t shape[SV_MAX_NDIM];
    int64_t strides[SV_MAX_NDIM]; /* bytes from one element to the next; may be negative */
} sv_strided;

/* value * scale + offset. */
typedef struct sv_scale {
    double scale;
    double offset;
} sv_scale;

/* What sv_gather() makes of each chunk. Always start with sv_gather_options_init(). */
typedef struct sv_gather_options {
    size_t size;                 /* sizeof(sv_gather_options), set by sv_gather_options_init */
    uint64_t shape[SV_MAX_NDIM]; /* of each item of the output */
    uint32_t ndim;
    uint32_t threads;        /* 0: chosen by size and processors */
    uint32_t type;           /* sv_type of the chunks; only a conversion needs it */
    uint32_t out_type;       /* sv_type of the output; equal to `type`: none */
    const sv_scale *scale;   /* as for sv_move(); NULL: none */
    const uint64_t *origins; /* crop: count x ndim indices where it begins; NULL: none */
    /* Crop, too: count x ndim numbers u, 0 <= u < 1; it begins at floor(u * (length of the chunk -
     * length of the crop + 1)). NULL: none; wins over origins. */
    const double *fractions;
    const uint32_t *flips;       /* count masks: bit i mirrors axis i; NULL: none */
    double (*meta)[SV_MAX_META]; /* count rows for the chunks' metadata; NULL: not wanted */
    uint32_t *meta_counts;       /* how many values each row has got; only with meta */
} sv_gather_options;

/* What is known about the chunk that a view holds. */
typedef struct sv_chunk_info {
    uint64_t version; /* writes to the slot up to this chunk; the append counts as one */
    uint64_t source_index;
    uint64_t source_epoch;
    uint64_t published_ns; /* CLOCK_REALTIME */
} sv_chunk_info;

/* One slot's counters. */
typedef struct sv_slot_stats {
    uint64_t pins;       /* views that are alive in all processes */
    uint64_t reads;      /* reads since the last write */
    uint64_t writes;     /* writes, the append included */
    uint64_t last_reads; /* reads that the previous chunk had got when it was replaced */
} sv_slot_stats;

/* The pool's counters since it was made or sv_stats_reset() was called. */
typedef struct sv_stats {
    uint64_t replace_events;
    uint64_t reads_at_replace_total;
    uint64_t reads_at_replace_max;
    uint64_t blocked_replaces;
    uint64_t sample_count; /* samples that the ring holds now */
    uint64_t sample_capacity;
} sv_stats;

/* Counters that the producers of a pool share. Values start at 0 and only grow. */
typedef enum sv_counter {
    SV_COUNTER_SOURCE = 0,      /* ticket of the next source to load */
    SV_COUNTER_LOADS = 1,       /* sources loaded */
    SV_COUNTER_ERRORS = 2,      /* sources that could not be loaded */
    SV_COUNTER_CURSOR = 3,      /* next slot to refresh, modulo the number of slots */
    SV_COUNTER_EMPTY = 4,       /* sources that gave no chunk */
    SV_COUNTER_RESTARTS = 5,    /* producer workers and supervisors that were started again */
    SV_COUNTER_IDLE = 6,        /* next slot to refresh while nothing is read, modulo as above */
    SV_COUNTER_DIRECT = 7,      /* reads of volumes by the loader's own decoder */
    SV_COUNTER_ZARR = 8,        /* ... by zarr-python */
    SV_COUNTER_TENSORSTORE = 9, /* ... by TensorStore */
    SV_COUNTER_MISSING = 10,    /* pieces of volumes that were not stored: fill values instead */
    SV_COUNTER_HELD_MS = 11, /* milliseconds that writers waited as views were held of everything */
    SV_COUNTER_COUNT = 16
} sv_counter;

/* Why a pool is no longer refreshed. */
typedef enum sv_retired {
    SV_RETIRED_NO = 0,     /* it is refreshed, or it never had an owner */
    SV_RETIRED_CLOSED = 1, /* the owner closed it */
    SV_RETIRED_OWNER_DIED = 2,
    SV_RETIRED_PRODUCER = 3 /* the producer failed and was given up */
} sv_retired;

/* One attached process. pid and command are for people; death is told by the kernel's lock. */
typedef struct sv_row_info {
    uint32_t row;
    uint32_t live;  /* 1: the kernel still holds its lock */
    uint32_t owner; /* 1: it holds the owner's lock of this segment */
    int32_t pid;
    uint64_t start_time;  /* clock ticks after boot, as in /proc/PID/stat */
    uint64_t attached_ns; /* CLOCK_REALTIME */
    uint64_t pins;
    uint64_t claims; /* buffers that it is filling */
    uint64_t
        oldest_ns; /* CLOCK_REALTIME when the oldest chunk that it has pinned was published: none
                            of its pins is older; 0: it has none */
    char command[64];
} sv_row_info;

/* One file of a directory that is a segment. */
typedef struct sv_listed {
    char name[SV_MAX_NAME_BYTES + 1];
    char generation[SV_GENERATION_BYTES];
    uint64_t bytes; /* memory that it takes now */
    uint32_t owned; /* 1: a pool or a block whose owner is recorded */
    uint32_t block; /* 1: a block */
    uint32_t owner_live;
    uint32_t attached; /* 1: at least one living process is attached */
    uint32_t uid;
    int32_t owner_pid; /* of the owner, as it saw itself; for people; 0: not known */
    uint64_t inode;
    char owner_command[64]; /* of that process; "": not known */
} sv_listed;

/* ---- life of a segment --------------------------------------------------------------------- */

/* Set every option to its default. */
SV_API void sv_options_init(sv_options *options);

/* Is `name` a name that a segment and its side files may have? 0, or SV_EINVAL with the reason:
 * empty, over SV_MAX_NAME_BYTES, '/' or a leading dot in it, or ending in ".lock" or ".ready". */
SV_API int sv_name_check(const char *name, sv_error *err);

enum sv_open_flags {
    SV_OPEN_ATTACH = 0,    /* the segment must exist */
    SV_OPEN_CREATE = 1,    /* attach when it exists, else make it */
    SV_OPEN_EXCLUSIVE = 2, /* make it; SV_EEXIST when the name is taken */
    SV_OPEN_REPLACE = 3 /* make it; what has the name is unlinked first, and stays so on failure */
};

/*
 * Attach to the segment `name`, or make it.
 *
 * Effect    A made segment appears under its name complete or not at all: its memory is reserved
 *           first (SV_ESYS with ENOSPC otherwise). *out is closed with sv_segment_close().
 *           On attach chunk_size, max_memory_size, spare_buffers, max_rows, max_arrays and
 *           stats_capacity are ignored.
 * Returns   SV_EINVAL bad name or option · SV_ENOENT no such name (ATTACH) · SV_EEXIST (EXCLUSIVE)
 *           · SV_EMISMATCH another dtype, generation, inode or number of slots than asked for ·
 *           SV_EFORMAT a file of that name is no segment of this format or not safe to use ·
 *           SV_EROWS max_rows processes are attached · SV_ETIMEDOUT another process holds the name
 *           for longer than timeout_ns · SV_EBUSY (REPLACE) the segment's recorded owner lives ·
 *           SV_EUNSUPPORTED not a tmpfs, or no working kernel locks · SV_ESYS, SV_ENOMEM.
 * Cost      Attach: tens of microseconds, plus the cells of one row (8 bytes per buffer).
 * Python    SharedVector(...)
 */
SV_API SV_MUST_CHECK int sv_segment_open(const char *name, const sv_options *options, int flags,
                                         sv_segment **out, sv_error *err);

/*
 * Close a handle.
 *
 * Effect    The last handle of the process gives its row back. While views are alive the memory
 *           stays mapped until the last of them is unpinned; they remain valid.
 *           A closed handle is refused (SV_ECLOSED) until 1,024 others have been closed after it;
 *           then its memory is freed.
 * Returns   SV_EINUSE while a reservation made in this process is open: the handle stays open.
 *           SV_EINVAL for NULL and for a handle that is closed.
 * Concurrency  A call that another thread has begun with the handle may still come to its end; none
 *           reads freed memory. Who pins with a handle should not race with its last close.
 */
SV_API int sv_segment_close(sv_segment *segment, sv_error *err);

/*
 * Take this process's row now. A forked child does it by itself at its first use; this tells why it
 * cannot, in words that a pin has no room for. SV_EROWS, SV_ESYS (ENOSPC: no room for the row's
 * cells), SV_ENOMEM, SV_ECLOSED. Harmless when the row is there.
 */
SV_API SV_MUST_CHECK int sv_segment_join(sv_segment *segment, sv_error *err);

/* Unlink a segment's name (or a broken file of that name). Those attached keep their data. A missing
 * name is no error. `directory` as in sv_options. SV_EINVAL bad name · SV_ESYS. */
SV_API int sv_segment_remove(const char *name, const char *directory, sv_error *err);

/* Unlink the name only while it names the file with this inode and generation. SV_ENOENT otherwise.
 * SV_EBUSY another process is making a segment of this name, for longer than a second. SV_ESYS. */
SV_API int sv_segment_remove_exact(const char *name, const char *directory, uint64_t inode,
                                   const char *generation, sv_error *err);

/* The same for the very file that this handle has mapped, whatever became of its header: what an owner
 * calls at the end. SV_ENOENT: the name is gone, or leads to another file by now. */
SV_API int sv_segment_remove_own(sv_segment *segment, sv_error *err);

/* Facts about the segment. Valid after close of other handles; never fails on an open handle. */
SV_API int sv_segment_info(const sv_segment *segment, sv_info *out);

/* ---- waiting ------------------------------------------------------------------------------- */

/*
 * Waiting. The calls below sleep in the kernel until a writer wakes them, so that they cost nothing
 * meanwhile, and writers one load for each publication while nobody sleeps. They look again every half
 * a second besides, which bounds what a killed writer or one of an older version (format 1.0) costs.
 * They do not recover what the dead hold. Any number of threads and processes may wait.
 *
 * Returns   SV_ETIMEDOUT · SV_ESTALLED the pool is no longer refreshed (sv_retired_get()) · SV_ECLOSED the
 *           process's last handle was closed meanwhile, within half a second · SV_ESYS, SV_ENOMEM.
 * Concurrency  Edges E14, E15.
 */

/* Wait until at least `count` slots are filled. SV_EINVAL there are fewer slots. */
SV_API SV_MUST_CHECK int sv_wait_filled(sv_segment *segment, uint32_t count, uint64_t timeout_ns,
                                        sv_error *err);

/* Wait until the version of a slot's chunk (as in sv_chunk_info, sv_slot_stats.writes) is another one than
 * `version`; *now (NULL allowed) is set to it. SV_EINDEX slot >= sv_size() · SV_EFORMAT damage. */
SV_API SV_MUST_CHECK int sv_wait_changed(sv_segment *segment, uint32_t slot, uint64_t version,
                                         uint64_t timeout_ns, uint64_t *now, sv_error *err);

/* ---- reading ------------------------------------------------------------------------------- */

/* Slots filled so far. Grows only. Any index below it can be pinned. Never more than
 * there are slots. 0 on a closed handle. */
SV_API uint32_t sv_size(const sv_segment *segment);

/*
 * Pin the chunk that is current in `slot` and count one read.
 *
 * Caller    keeps *view until sv_unpin(view), called exactly once.
 * Effect    The buffer is not refilled while the view lives, whatever becomes of the slot.
 * Returns   SV_EINDEX slot >= sv_size() · SV_EMODIFIED the slot changed 10,000 times while we
 *           tried · SV_EINUSE this process holds 8 million views of the chunk · SV_EFORMAT damaged
 *           header · SV_ECLOSED · in a child after fork also what attaching returns.
 * Concurrency  Wait-free against readers; lock-free against writers. Edges E1-E4.
 * Cost      Two atomic operations on the process's own cache line; 10 to 20 ns.
 * Python    SharedVector.get
 */
SV_API SV_MUST_CHECK int sv_pin(sv_segment *segment, uint32_t slot, sv_view *view);

/* As sv_pin(), without counting a read. Python: get_meta and the internal pins. */
SV_API SV_MUST_CHECK int sv_pin_quiet(sv_segment *segment, uint32_t slot, sv_view *view);

/* Give a view back; its data must not be used any more. A second call does nothing, nor does NULL. */
SV_API void sv_unpin(sv_view *view);

/* May sv_unpin() of this view have to wait for other threads, as it ends a closed handle's mapping or a
 * removed block? 1 or 0; a hint for callers who hold a lock that others need. */
SV_API int sv_unpin_waits(const sv_view *view);

/* The i-th array of a view's chunk. SV_EINDEX, SV_EFORMAT. */
SV_API SV_MUST_CHECK int sv_view_array(const sv_view *view, uint32_t index, sv_array *out);

/* Copy the metadata of a view's chunk; returns how many values there are (0 to SV_MAX_META). */
SV_API uint32_t sv_view_meta(const sv_view *view, double out[SV_MAX_META]);

/* Version, source and time of a view's chunk. */
SV_API void sv_view_info(const sv_view *view, sv_chunk_info *out);

/* Set every option to 0. */
SV_API void sv_gather_options_init(sv_gather_options *options);

/*
 * Copy chunks, or a part of each, into one block of memory: item k of `count` goes to
 * out + k * stride_bytes, in C order.
 *
 * Caller    `how` says what an item of the output is. Without a crop every chunk must have exactly
 *           its shape; with one, at least that on every axis.
 * Effect    Counts one read per item. A chunk is pinned only while it is copied; each item comes
 *           from one chunk, and `meta` with it. On failure the contents of `out` and `meta` are
 *           undefined, nothing stays pinned, reads stay counted.
 * Returns   as sv_pin(); SV_EINVAL a chunk of another shape, a crop that leaves the chunk, an output
 *           without room or that overlaps a chunk, named in err · SV_ETYPE as sv_move().
 * Concurrency  A fork in another thread waits for up to 64 MiB of the copy, or one item.
 * Cost      One pass; streaming stores and several threads for large batches.
 * Python    SharedVector.gather
 */
SV_API SV_MUST_CHECK int sv_gather(sv_segment *segment, const uint32_t *slots, size_t count,
                                   const sv_gather_options *how, void *out, uint64_t stride_bytes,
                                   sv_error *err);

/* ---- writing ------------------------------------------------------------------------------- */

/*
 * Take a free buffer to fill it in its final place.
 *
 * Effect    Nobody sees or takes the buffer until sv_publish(), sv_publish_next() or sv_cancel().
 * Returns   SV_EINUSE nothing became free within timeout_ns; err names the processes that hold
 *           pins. The pins of dead processes are given back first. SV_EFORMAT, SV_ECLOSED, SV_ESYS.
 * Concurrency  Lock-free while a buffer is free; else sleeps until one is (rule N4). Edges E3-E6.
 * Python    SharedVector.reserve
 */
SV_API SV_MUST_CHECK int sv_reserve(sv_segment *segment, uint64_t timeout_ns,
                                    sv_reservation *reservation, sv_error *err);

/*
 * Say what the reserved buffer holds. `chunk->arrays[i].data` is NULL for arrays that were written
 * in place: array 0 at reservation->data, each next one on the next 64-byte boundary; other data is
 * copied there, from 16 MiB on by several threads. SV_EINVAL a bad chunk, or a reservation that is over ·
 * SV_ETOOBIG (nothing was written) · SV_EFORKED · SV_EFORMAT damage.
 */
SV_API SV_MUST_CHECK int sv_fill(sv_reservation *reservation, const sv_chunk *chunk, sv_error *err);

/*
 * Make the filled buffer the current one of `slot`, whoever has the old chunk pinned.
 *
 * Effect    Ends the reservation. Readers see the old chunk or the new one. On failure the
 *           reservation is unchanged and still has to be ended.
 * Returns   SV_EINDEX slot >= sv_size() · SV_EINVAL nothing was filled, or the reservation is over (a
 *           copy of it, too) · SV_EFORKED made before a fork, in the parent · SV_EFORMAT.
 * Cost      Independent of the chunk's size.
 * Python    Reservation.publish
 */
SV_API SV_MUST_CHECK int sv_publish(sv_reservation *reservation, uint32_t slot, sv_error *err);

/* Which slots sv_publish_turn() chooses from. Zeroed: all, only chunks that were read, no wait. */
typedef struct sv_turn {
    uint64_t timeout_ns; /* longest wait */
    uint32_t first;      /* first slot of the caller's own ... */
    uint32_t end;        /* ... and the one after its last; 0: all, shared with other writers */
    uint32_t next;       /* with `end`: where the turn goes on; kept from call to call */
    uint32_t unread;     /* 1: where nothing was read, replace the next chunk all the same */
} sv_turn;

/*
 * As sv_publish(), into the slot whose turn it is: the next one whose chunk has been read since it was
 * written and of which nobody has a view just now (of the next 4096, in a large pool).
 *
 * Effect    A view that is held for long freezes its own slot and no other. Only where views are held
 *           of every chunk is one displaced: if another buffer is free, or if its readers have come and
 *           gone since the call began (no view of it is as old as the call). A view that comes between
 *           the look and the publication keeps the old chunk.
 * Returns   SV_ETIMEDOUT nothing that could be replaced was read within timeout_ns · SV_EINUSE views are
 *           held of everything; err names the holders · SV_EINDEX no slot of the range is filled · else
 *           as sv_publish(). On failure the reservation is unchanged.
 * Python    Reservation.publish_turn
 */
SV_API SV_MUST_CHECK int sv_publish_turn(sv_reservation *reservation, sv_turn *turn, uint32_t *slot,
                                         sv_error *err);

/* As sv_publish(), into the next empty slot, whose number goes to *slot. SV_EFULL none is left: the
 * reservation is unchanged, and sv_publish() may still take it. */
SV_API SV_MUST_CHECK int sv_publish_next(sv_reservation *reservation, uint32_t *slot,
                                         sv_error *err);

/*
 * Get ready to write the first size_bytes of a reserved buffer. A process that writes a buffer for the
 * first time takes a page fault for each page of it; this takes them all in one call of the kernel,
 * at a quarter of their cost. sv_fill() does it for what it copies.
 *
 * Effect    A hint: never fails, does nothing for little memory and the second time.
 * Cost      About 0.1 s for each GiB that this process has not written to before; else none.
 */
SV_API void sv_prefault(sv_reservation *reservation, uint64_t size_bytes);

/* Give a reserved buffer back unused. A second call, one with NULL or a copy of a reservation that has
 * ended, or one in a forked child, does nothing. */
SV_API void sv_cancel(sv_reservation *reservation);

/* Reserve, fill and publish into the next empty slot. Errors of the three. Python: append. */
SV_API SV_MUST_CHECK int sv_append(sv_segment *segment, const sv_chunk *chunk, uint32_t *slot,
                                   sv_error *err);

/*
 * Reserve, fill and publish into `slot`, unless a view of its current chunk is alive: then
 * SV_EINUSE at once (after giving back the pins of the dead), counted in blocked_replaces; err
 * names the holders. The check is advisory: a pin that comes later keeps its old chunk.
 * Python: replace.
 */
SV_API SV_MUST_CHECK int sv_replace(sv_segment *segment, uint32_t slot, const sv_chunk *chunk,
                                    uint64_t timeout_ns, sv_error *err);

/* Count `count` more replacements that found no free buffer. */
SV_API void sv_count_blocked(sv_segment *segment, uint64_t count);

/* ---- statistics ---------------------------------------------------------------------------- */

/* Counters of one slot. SV_EINDEX, SV_EFORMAT, SV_EMODIFIED. */
SV_API SV_MUST_CHECK int sv_slot_stats_get(const sv_segment *segment, uint32_t slot,
                                           sv_slot_stats *out);

/* One counter of the first `count` slots (at most sv_size() are written; returns how many).
 * Arrays may be NULL. */
SV_API uint32_t sv_slot_stats_all(const sv_segment *segment, uint32_t count, uint64_t *reads,
                                  uint64_t *writes, uint64_t *last_reads);

/* Counters of the pool. */
SV_API void sv_stats_get(const sv_segment *segment, sv_stats *out);

/* Zero the pool's counters and forget the samples; the slots' counters stay. SV_ESYS, SV_EROWS. */
SV_API int sv_stats_reset(sv_segment *segment, sv_error *err);

/* Copy the newest `count` samples (reads a chunk had got when it was replaced), oldest first;
 * returns how many were written. */
SV_API uint32_t sv_stats_samples(const sv_segment *segment, uint32_t *out, uint32_t count);

/* Add to a shared counter; returns its value before, 0 on a closed handle. Read it with amount 0. */
SV_API uint64_t sv_counter_add(sv_segment *segment, sv_counter counter, uint64_t amount);

/*
 * The slot that a producer should refresh next: the next one in turn that has been read since its
 * last write and that nobody has pinned. *unread is 1 when there is none (of the next 4096, in a large
 * pool); then it is simply the next in turn, and a producer does well to slow down. A view may come
 * until the chunk is ready: sv_publish_turn() chooses then. SV_EINDEX while the pool is empty.
 */
SV_API SV_MUST_CHECK int sv_refresh_next(sv_segment *segment, uint32_t *slot, int *unread);

/* ---- processes ----------------------------------------------------------------------------- */

/* Handles that living processes have open on the segment, this one's included. Python: ref_count. */
SV_API uint64_t sv_handle_count(const sv_segment *segment);

/* Describe up to `count` rows that are in use, the dead included; returns how many there are. */
SV_API uint32_t sv_rows(const sv_segment *segment, sv_row_info *out, uint32_t count);

/* Give back what dead processes held; *recovered is the number of rows (NULL allowed). SV_ESYS. */
SV_API int sv_recover(sv_segment *segment, uint32_t *recovered, sv_error *err);

/* Does a living process hold the owner's lock of this segment? 0 for a segment without owner. */
SV_API int sv_owner_live(const sv_segment *segment);

/* Why the pool is no longer refreshed (enum sv_retired); tells a vanished owner from the kernel's
 * lock, without any help of that owner. */
SV_API int sv_retired_get(const sv_segment *segment);

/* Say so to everybody attached; the first reason stays. Nothing happens to a block, which only
 * sv_block_remove() ends. */
SV_API void sv_retire(sv_segment *segment, sv_retired reason);

/* ---- owner and ready marker ---------------------------------------------------------------- */

/*
 * Become the owner of the pool `name`: hold an flock on <lock_dir>/<name>.lock for as long as this
 * address space lives. Neither fork, nor exec, nor closing descriptors passes it on or loses it. (Where
 * maps do not keep locks, on overlayfs, it takes a descriptor, and closing that one loses it.)
 *
 * lock_dir  NULL: SHAREDVECTOR_LOCK_DIR, else /dev/shm. Must be local to the node.
 * generation  NULL draws a new one.
 * Returns   SV_EBUSY another process is the owner (err names its pid) · SV_EINVAL · SV_ESYS ·
 *           SV_EUNSUPPORTED nobody else would see the lock there.
 * Python    OwnerLock.try_acquire
 */
SV_API SV_MUST_CHECK int sv_owner_acquire(const char *name, const char *lock_dir,
                                          const char *generation, sv_owner **out, sv_error *err);

/* Adopt a descriptor on <lock_dir>/<name>.lock that is flock-ed already; it is closed on success. */
SV_API SV_MUST_CHECK int sv_owner_adopt(const char *name, const char *lock_dir, int fd,
                                        const char *generation, sv_owner **out, sv_error *err);

/* Does this process hold it? 0 in a forked child and after a release. */
SV_API int sv_owner_held(const sv_owner *owner);

/* The generation of this reign; valid until the release. */
SV_API const char *sv_owner_generation(const sv_owner *owner);

/* Remove the lock file and give the lock up. In a forked child only the memory is freed. */
SV_API void sv_owner_release(sv_owner *owner);

/* Is somebody the owner of `name`? 1, 0, or a negative code. generation (SV_GENERATION_BYTES) and
 * pid are filled from the lock file when they are not NULL ("" and 0 when unknown). */
SV_API int sv_owner_probe(const char *name, const char *lock_dir, char *generation, int32_t *pid,
                          sv_error *err);

/*
 * Write <lock_dir>/<name>.ready by rename: followers may attach. A lock file that was removed behind
 * the owner is made and locked anew first. SV_EFORKED · SV_EBUSY somebody else owns the name by now ·
 * SV_ESYS.
 */
SV_API SV_MUST_CHECK int sv_ready_write(sv_owner *owner, sv_error *err);

/* Read the generation that the marker holds. SV_ENOENT there is none · SV_EFORMAT unreadable. */
SV_API SV_MUST_CHECK int sv_ready_read(const char *name, const char *lock_dir,
                                       char generation[SV_GENERATION_BYTES], sv_error *err);

/* Remove the marker, whichever reign it is from; a missing one is no error. As sv_ready_write() otherwise:
 * while somebody else owns the name, the marker is not ours (SV_EBUSY), and after the lock was lost and
 * taken anew only a marker of this reign is. */
SV_API int sv_ready_clear(sv_owner *owner, sv_error *err);

/* ---- the whole pool, for programs without Python ------------------------------------------- */

/*
 * Attach to a pool as soon as it is ready, and to no segment that its owner is about to replace:
 * the marker's generation and the segment's must agree.
 * SV_ETIMEDOUT with the last reason; the errors of sv_segment_open().
 */
SV_API SV_MUST_CHECK int sv_pool_attach(const char *name, const char *lock_dir,
                                        const sv_options *options, uint64_t timeout_ns,
                                        sv_segment **out, sv_error *err);

/*
 * Make the pool of an owner: leftovers of an earlier reign are removed (marker first), then the
 * segment is made with the owner's generation and its life tied to this process. Fill it with
 * sv_append(), then call sv_ready_write().
 */
SV_API SV_MUST_CHECK int sv_pool_create(sv_owner *owner, const sv_options *options,
                                        sv_segment **out, sv_error *err);

/*
 * End a reign: marker, segment, handle, lock, in this order. Names that do not lead to this reign's
 * files any more are left alone. On failure handle and owner are still there: call it again, or give
 * them up one by one (sv_segment_close(), sv_owner_release()).
 * SV_EFORKED · SV_EINUSE reservations are open · SV_EBUSY, SV_ESYS a file could not be removed.
 */
SV_API int sv_pool_close(sv_owner *owner, sv_segment *segment, sv_error *err);

/*
 * Remove the names of a pool (marker, segment, lock file), a plain segment, a block or a broken file,
 * under the owner's lock. Those attached keep their data. A missing name is no error.
 * SV_EBUSY its owner lives: err names the process · SV_EINVAL · SV_ESYS.
 */
SV_API int sv_pool_remove(const char *name, const char *directory, const char *lock_dir,
                          sv_error *err);

/* ---- blocks: one array, shared with the processes of one job ------------------------------- */

/*
 * Draw a name for a block: sv-<uid>-<prefix>-<16 hexadecimal digits>.
 *
 * prefix   1 to 64 letters, digits, '_', '.' and '-'. SV_EINVAL, SV_ESYS.
 */
SV_API SV_MUST_CHECK int sv_block_name(const char *prefix, char out[SV_MAX_NAME_BYTES + 1],
                                       sv_error *err);

/*
 * Make a block: a segment with one buffer, which is written in place and never replaced. Its life is
 * tied to this process: when that dies, sv_sweep() removes the block.
 *
 * array    what it holds. data NULL: zeros. dtype must be set; at most one array.
 * options  mode, directory, max_rows and timeout_ns count (NULL: defaults).
 * Effect   *out is removed with sv_block_remove() and closed with sv_segment_close(). One that is only
 *          closed keeps its name until somebody sweeps.
 * Returns  as sv_segment_open() and sv_append().
 * Cost     One copy, by several threads from 16 MiB on; none for zeros.
 * Python   share, SharedArray.empty
 */
SV_API SV_MUST_CHECK int sv_block_create(const char *prefix, const sv_array *array,
                                         const sv_options *options, sv_segment **out,
                                         sv_error *err);

/*
 * Pin the array of a block, to read it or to write it.
 *
 * writable  1: *data is set to where it may be written. What several processes write there at once is
 *           theirs to sort out.
 * Effect    The memory stays until sv_unpin(view), whatever becomes of the block. Counts no read.
 * Returns   as sv_pin(), and SV_ENOENT the block was removed · SV_EINVAL it is no block, or its maker
 *           has not finished it.
 * Python    SharedArray.array
 */
SV_API SV_MUST_CHECK int sv_block_pin(sv_segment *segment, int writable, sv_view *view, void **data,
                                      sv_error *err);

/*
 * Map a part of a pinned block before it is read (or written) for the first time: all of its page
 * faults in one call. A hint: never fails; offset and size_bytes are cut to the block.
 */
SV_API void sv_block_prefault(const sv_view *view, int writable, uint64_t offset,
                              uint64_t size_bytes);

/*
 * A private copy of a block's array, made page by page as it is written to (MAP_PRIVATE): nothing that
 * is done to it reaches the block. Keep a view of the block while it is in use; give it back with
 * munmap(*base, *bytes). SV_EINVAL no block · SV_ENOMEM, SV_ESYS, SV_ECLOSED.
 */
SV_API SV_MUST_CHECK int sv_block_map_private(sv_segment *segment, void **base, size_t *bytes,
                                              sv_error *err);

/*
 * Remove a block's name, and give its memory back at once unless a view of it is alive anywhere; then
 * when the last of those who are attached lets go. Only the process that made it may: SV_EFORKED in
 * others, and nothing happens. A second call does nothing. SV_EINVAL no block · SV_ECLOSED · SV_ESYS the
 * name cannot be unlinked, nothing is changed; or it is gone, but (SV_ENOMEM too) the header cannot be
 * mapped: then the memory goes with the last who are attached, and the call may be repeated.
 *
 * Concurrency  Edge E13: either the remover sees a pin, or the reader sees that the block is gone.
 */
SV_API int sv_block_remove(sv_segment *segment, sv_error *err);

/* Unlink the names of all blocks that this process made and has not removed. Async-signal-safe: for a
 * handler of a signal that ends the process. */
SV_API void sv_block_unlink_all(void);

/* Views of a segment that this process holds; 0 on a closed handle. */
SV_API uint64_t sv_own_pins(const sv_segment *segment);

/* ---- looking around ------------------------------------------------------------------------ */

/* Call `each` for every segment in a directory (as in sv_options). A non-zero return ends the walk
 * and is returned. SV_ESYS the directory cannot be read. */
SV_API int sv_list(const char *directory, int (*each)(const sv_listed *item, void *context),
                   void *context, sv_error *err);

/* The same for one name, without attaching. SV_ENOENT · SV_EFORMAT no segment of this format · SV_EINVAL ·
 * SV_ESYS. */
SV_API int sv_look(const char *name, const char *directory, sv_listed *out, sv_error *err);

/*
 * Remove what dead processes left: blocks that the caller's user named (sv-<uid>-...), and pools that
 * record an owner. Never one whose owner lives, in whatever pid namespace; never a plain segment,
 * which records no owner; never another user's.
 *
 * lock_dir  as for sv_owner_acquire(); a pool is removed under its owner's lock.
 * prefix    NULL: all; else only blocks made with this prefix, and pools whose names begin with it.
 * dry_run   1: remove nothing, only tell.
 * each      called for everything that was removed (NULL: nobody asks); a non-zero return ends it.
 * Returns   that non-zero value, or SV_EINVAL an empty prefix · SV_ESYS a directory cannot be read, or
 *           what the first thing failed with that could not be removed, after all others were.
 * Python    sweep
 */
SV_API int sv_sweep(const char *directory, const char *lock_dir, const char *prefix, int dry_run,
                    int (*each)(const sv_listed *item, void *context), void *context,
                    sv_error *err);

/* Bytes of memory that this machine and the caller's control groups still have, UINT64_MAX when
 * unknown. Where not NULL, *limit is set to words for which of them it is, and *group_limit to the
 * bytes that the control groups allow altogether (UINT64_MAX: no limit). */
SV_API uint64_t sv_memory_free(const char **limit, uint64_t *group_limit);

/* Check the invariants of docs/PROTOCOL.md while other processes go on. Returns 0, or SV_EFORMAT
 * with the first broken one in err. */
SV_API SV_MUST_CHECK int sv_check(sv_segment *segment, sv_error *err);

/* Copy like memcpy, large blocks with several threads (0: chosen). The copy stays in the cache, as
 * far as there is room, for the caller who reads it next. */
SV_API void sv_copy(void *destination, const void *source, size_t size_bytes, uint32_t threads);

/*
 * Copy one strided array to another of the same shape in one pass, converting where types differ.
 *
 * Caller    the two share no element.
 * Effect    To integers: values out of range are clipped (infinities too), fractions cut off
 *           towards zero, NaN becomes 0. To floats: rounded to nearest, ties to even; too large
 *           becomes infinite. With `scale` (NULL: none; only towards floats) value * scale + offset
 *           is computed in float32, or in float64 when either side is SV_F64 or the source an
 *           integer of four or eight bytes. Nothing is written on failure.
 * Returns   SV_EINVAL shapes differ, a size is wrong, or elements of `to` overlap each other ·
 *           SV_ETYPE types differ and one is SV_OPAQUE, item sizes of opaque elements differ, or
 *           scale with another destination than a float.
 * Cost      One pass over both; streaming stores and up to `threads` threads (0: chosen by size and
 *           processors) for large ones.
 */
SV_API SV_MUST_CHECK int sv_move(const sv_strided *to, const sv_strided *from,
                                 const sv_scale *scale, uint32_t threads, sv_error *err);

#ifdef __cplusplus
}
#endif

#endif
