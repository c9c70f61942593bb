/*
 * A mapped segment inside this process, and the handles on it.
 *
 * One svi_mapping per process and file, shared by all handles. Mapping structs are type-stable:
 * once made they are never freed, only used again, so that a thread that lost a race with the last
 * close reads a stale struct and no freed memory (rule V3).
 */
#ifndef SVI_MAPPING_H
#define SVI_MAPPING_H

#include <stdbool.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "cell.h"
#include "geometry.h"
#include "name.h"

#define SVI_NO_ROW UINT32_MAX

/* Where a segment is: its name, its directory, and both as one path. */
typedef struct svi_place {
    const char *name;
    const char *directory;
    const char *path;
} svi_place;

/* A row that this process holds: its number, the anchor that keeps its lock, and where to write to it
 * (the same place, but in tests). */
typedef struct svi_hold {
    uint32_t row;
    void *anchor;
    svm_row *map;
} svi_hold;

typedef _Atomic(svi_word *) svi_cells_pointer;

/* Cells are cleaned before their first use, and summed up at the end, by groups: a page's worth. */
#define SVI_CELL_GROUP 512u
typedef _Atomic(unsigned char) svi_used;

typedef struct svi_mapping {
    struct svi_mapping *next; /* all mappings ever made; process lock */
    svi_geometry g;
    const unsigned char *ro;     /* the whole file, read-only */
    _Atomic(unsigned char *) rw; /* the whole file, writable; NULL until the first write */
    svi_cells_pointer *cells;    /* this process's cells; NULL in a fresh child (rule F1) */
    svi_used *used; /* per group of cells: 1, this process may have pins there (rule R4) */
    _Atomic(svi_word *) numbers; /* per buffer, 0 or the number of the reservation that this process
                                     has open on it (rule W7); NULL before the first */
    uint32_t *prefaulted;        /* per buffer, pages faulted in for writing; may be NULL */
    svi_hold hold;               /* process lock */
    svi_hold child;              /* made by the fork handler for the child; process lock */
    bool sharing;                /* the next child shares this row (rule F3); process lock */
    bool keeping;                /* ... looks at a block without pins (rule B5); process lock */
    bool stays;           /* views without pins may show these maps: never unmapped; process lock */
    uint64_t views_since; /* views of older processes have no pins here (rule F3) */
    uint64_t shown_since; /* views of still older ones show nothing here */
    void *sharers;        /* the lock of those who share the row, on its way to a child */
    unsigned char *left;  /* per buffer: 1, a pin was left there for them; process lock */
    svi_word left_pins;   /* sum of these; written under the process lock */
    bool left_for_good;   /* it cannot be told when those children end; process lock */
    bool mapped;          /* process lock */
    bool busy;            /* made or given back without the process lock (rule F5); process lock */
    bool owner;           /* this process holds the owner byte; process lock */
    struct svi_listing *listing; /* of a block that this process made; process lock */
    uint32_t handles;            /* process lock */
    svi_word rows_seen;          /* rows that were seen to have memory; grows */
    svi_word reservations;
    svi_word looking; /* threads that read the map without a pin or the process lock (rule V2) */
    svi_word closing; /* SVI_CLOSED | SVI_SHARED (rule V2) */
    int probe;        /* only for making fresh descriptions and testing locks */
    dev_t device;
    ino_t inode;
    uint32_t owned;
    uint32_t mode;
    char name[SV_MAX_NAME_BYTES + 1];
    char directory[SVI_DIRECTORY_BYTES];
    char generation[SV_GENERATION_BYTES];
    char dtype[SV_DTYPE_BYTES];
} svi_mapping;

/* What an unpin has to look after, other than its cell. */
#define SVI_CLOSED UINT64_C(1) /* the last handle is gone, views are not */
#define SVI_SHARED UINT64_C(2) /* pins were left in the row for children (rule F3) */

/* A handle. Its memory outlives its close, so that whoever uses a closed one, also beside the thread that
 * closes it, reads NULL; it is freed when SVI_HANDLES_KEPT more have been closed. */
struct sv_segment {
    _Atomic(svi_mapping *) mapping; /* NULL: closed */
    struct sv_segment *next;        /* closed, the oldest first; process lock */
};

#define SVI_HANDLES_KEPT 1024u

/* The mapping of an open handle, or NULL. */
static inline svi_mapping *
svi_mapping_of(const sv_segment *segment)
{
    /* relaxed: mapping structs are never freed (V3), and who hands a handle to a thread orders it */
    return segment == NULL ? NULL : atomic_load_explicit(&segment->mapping, memory_order_relaxed);
}

static inline const svm_header *
svi_header(const svi_mapping *m)
{
    return (const svm_header *)(const void *)m->ro;
}

static inline const svm_slot *
svi_slots(const svi_mapping *m)
{
    return (const svm_slot *)(const void *)(m->ro + m->g.off_slots);
}

static inline const svm_buffer *
svi_buffer(const svi_mapping *m, uint32_t buffer)
{
    return (const svm_buffer *)(const void *)(m->ro + m->g.off_buffers +
                                              buffer * m->g.header_stride);
}

static inline const svm_row *
svi_row(const svi_mapping *m, uint32_t row)
{
    return (const svm_row *)(const void *)(m->ro + m->g.off_rows + row * m->g.row_stride);
}

/* The same places in a writable map of the whole file. */
static inline svm_header *
svi_header_at(unsigned char *rw)
{
    return (svm_header *)(void *)rw;
}

static inline svm_slot *
svi_slots_at(const svi_mapping *m, unsigned char *rw)
{
    return (svm_slot *)(void *)(rw + m->g.off_slots);
}

static inline svm_buffer *
svi_buffer_at(const svi_mapping *m, unsigned char *rw, uint32_t buffer)
{
    return (svm_buffer *)(void *)(rw + m->g.off_buffers + buffer * m->g.header_stride);
}

static inline svm_row *
svi_row_at(const svi_mapping *m, unsigned char *rw, uint32_t row)
{
    return (svm_row *)(void *)(rw + m->g.off_rows + row * m->g.row_stride);
}

static inline uint32_t
svi_cell_groups(const svi_mapping *m)
{
    return (m->g.buffer_count + SVI_CELL_GROUP - 1) / SVI_CELL_GROUP;
}

static inline unsigned char *
svi_payload_at(const svi_mapping *m, unsigned char *rw, uint32_t buffer)
{
    return rw + m->g.off_payload + buffer * m->g.buffer_stride;
}

static inline const unsigned char *
svi_payload(const svi_mapping *m, uint32_t buffer)
{
    return m->ro + m->g.off_payload + buffer * m->g.buffer_stride;
}

/* Have all rows below the mark memory? Damage may have raised it, and reading a hole on a full file
 * system is fatal. Seen once for each row; false: *high rows have some. */
bool svi_rows_look(const svi_mapping *m, uint32_t *high);

/* Rows that were ever taken, never more than there are. Rows at or above it may be holes. */
static inline bool
svi_rows_readable(const svi_mapping *m, uint32_t *high)
{
    uint64_t mark = svi_load_seq(&svi_header(m)->h_high_rows); /* E8 */
    *high = (uint32_t)mark;
    /* relaxed: a number of this process, which only grows */
    return __builtin_expect(mark <= svi_load_relaxed(&m->rows_seen), 1) || svi_rows_look(m, high);
}

/* The same for who counts what can be read. */
static inline uint32_t
svi_high_rows(const svi_mapping *m)
{
    uint32_t high = 0;
    (void)svi_rows_readable(m, &high);
    return high;
}

/* SV_EFORMAT when the mark is damaged. */
int svi_rows_check(const svi_mapping *m, const char *operation, sv_error *err);

/* Slots that are counted, never more than there are. */
static inline uint32_t
svi_size(const svi_mapping *m)
{
    uint64_t size = svi_load_acquire(&svi_header(m)->h_size); /* E5 */
    return size > m->g.slot_count ? m->g.slot_count : (uint32_t)size;
}

/* Map a whole segment; -errno. */
int svi_mapping_map(const svi_geometry *g, int fd, bool writable, void **out);

/* The writable map of the whole file; made by the first write and kept. */
int svi_writable(svi_mapping *m, unsigned char **rw, sv_error *err);

/* Have the pages of a claimed buffer's first `bytes` in the writable map before they are written. Each of
 * them is worth it once; one by one they cost four times as much. */
void svi_prefault(svi_mapping *m, unsigned char *rw, uint32_t buffer, uint64_t bytes);

/* A writable map for one call: the kept one, or a new one that svi_writable_return() drops. */
int svi_writable_borrow(svi_mapping *m, unsigned char **rw, sv_error *err);
void svi_writable_return(svi_mapping *m, unsigned char *rw);

/* The probe descriptor, checked to be still ours (a program may close every descriptor it sees);
 * opened again by name when it is not. -1: neither works. Process lock held. */
int svi_probe(svi_mapping *m);

/* A fresh open file description of the segment, for locks; -errno. Process lock held. */
int svi_fresh(svi_mapping *m);

static inline bool
svi_same_file(const struct stat *st, dev_t device, ino_t inode)
{
    return st->st_dev == device && st->st_ino == inode;
}

/* The mapping of a file in this process, or NULL. Process lock held. */
svi_mapping *svi_mapping_find(dev_t device, ino_t inode);

/* Has this process a mapping that was opened by this name? Process lock held. */
bool svi_mapping_is_named(const svi_place *place);

/* What was found out about a file: its header, copied and checked, and the places in it. */
typedef struct svi_facts {
    struct stat st;
    svm_header header;
    svi_geometry g;
} svi_facts;

/*
 * Begin a mapping of the file behind fd, whose ownership this takes. Until svi_mapping_make() or
 * svi_mapping_abandon() it is busy: nobody finds it, and a child forked meanwhile closes the descriptor
 * (rule F5), so that the process lock may be given up. Process lock held.
 */
int svi_mapping_begin(int fd, const struct stat *st, svi_mapping **out, sv_error *err);

/* Map the file of a mapping that was begun; after a failure it still is. Process lock held. */
int svi_mapping_make(svi_mapping *m, const svi_facts *facts, const svi_place *place, sv_error *err);

/* End a busy mapping of which nothing is mapped. Process lock held. */
void svi_mapping_abandon(svi_mapping *m);

/* A new handle on a mapping. Process lock held. */
int svi_mapping_handle(svi_mapping *m, sv_segment **out, sv_error *err);

/* End a handle. Process lock held. */
void svi_mapping_unhandle(svi_mapping *m, sv_segment *segment);

/* Is the mapping without handles, pins and looks at its header? Process lock held. */
bool svi_mapping_is_unused(const svi_mapping *m);

/* Give everything of an unused mapping back. Process lock held; it is given up while the kernel frees
 * the memory, which takes long for gigabytes. */
void svi_mapping_drop(svi_mapping *m);

/* Unmap when the last handle and the last view are gone. Takes the process lock. */
void svi_mapping_settle(svi_mapping *m);

/* A mapping that stays mapped while it is looked at, without a pin and without the process lock. */
typedef struct svi_look {
    svi_mapping *m;
    int probe; /* as svi_probe() */
} svi_look;

/* Look at a mapping, or at that of a handle, until svi_look_end() (rule V2). SV_ECLOSED. Both take the
 * process lock. */
int svi_look_begin(svi_mapping *m, svi_look *out, sv_error *err);
int svi_look_begin_handle(const sv_segment *segment, svi_look *out, sv_error *err);
void svi_look_end(const svi_look *look);

/* Complete an ENOSPC message: free space, how to enlarge it, orphans of this user. */
int svi_fail_no_space(sv_error *err, const char *operation, const char *directory, const char *name,
                      uint64_t wanted, uint64_t available, const char *limit);

#ifdef SVI_TESTING
/* Testing: one writable map serves for everything, so that ThreadSanitizer sees all races; and each
 * open makes a mapping and a row of its own, so that one process can play many. */
extern bool svi_testing_single_map;
extern bool svi_testing_separate;
#endif

#endif
