/* Rows: one record per attached process, and the recovery of what the dead held. */
#ifndef SVI_ROW_H
#define SVI_ROW_H

#include "mapping.h"

#define SVI_ROW_INHERIT 1u /* forked children keep the row alive too */
#define SVI_ROW_OWNER 2u   /* take the owner byte as well */

/*
 * Take the lowest free row: lock it, give it memory, map it (the map is its anchor), clean it if a
 * dead process left it, make it live. `fd` is a description of the file that nothing else uses, and
 * is closed; -1: a fresh one is made. SV_EBUSY: another program has locked the file, try again later.
 * SV_EROWS, SV_ESYS. Process lock held.
 */
int svi_row_take(svi_mapping *m, int fd, uint32_t flags, svi_hold *out, sv_error *err);

/* The same for this process, if it has none yet. Its cells are opened by their first use. */
int svi_row_join(svi_mapping *m, int fd, uint32_t flags, sv_error *err);

/* Give a row back. Nothing may be pinned through it. Process lock held. */
void svi_row_drop(svi_mapping *m, svi_hold *hold);

/* Take away the pins that a group of cells has before its first use: bytes of a damaged segment. */
void svi_row_clear(const svi_mapping *m, svm_row *row, uint32_t group);

/* Let pin and unpin use the cells of this process's row. Process lock held. */
void svi_row_open(svi_mapping *m);

/* Write into a row who has it. Process lock held. */
void svi_row_sign(svm_row *row, bool owner);

/* Give up a row in which pins were left for children that share it (rule F3): they keep it locked, and
 * when the last one has ended it is recovered as any dead process's. Process lock held. */
void svi_row_leave(svi_mapping *m, svi_hold *hold);

/* Tell others how many handles this process has open. Process lock held. */
void svi_row_show_handles(const svi_mapping *m);

/* Pins that this process holds, without those it has left for children; 0 before its first. */
uint64_t svi_row_own_pins(const svi_mapping *m);

/* This process's cells, opened by their first use, which attaches a forked child. NULL with *status
 * set on failure. */
svi_word *svi_cells_slow(svi_mapping *m, int *status, sv_error *err);

/* Clean the group of cells that a buffer's cell belongs to, for their first use. Takes the process
 * lock. */
int svi_cells_clean(svi_mapping *m, uint32_t buffer);

/* May the cell be used, or does its group need svi_cells_clean()? This process has its cells. */
static inline bool
svi_cells_are_clean(const svi_mapping *m, uint32_t buffer)
{
    /* acquire: pairs with the release of who cleaned them (R4) */
    return atomic_load_explicit(&m->used[buffer / SVI_CELL_GROUP], memory_order_acquire) != 0;
}

static inline uint32_t
svi_cell_group_end(const svi_mapping *m, uint32_t group)
{
    uint32_t end = (group + 1) * SVI_CELL_GROUP;
    return end < m->g.buffer_count ? end : m->g.buffer_count;
}

static inline svi_word *
svi_cells(const svi_mapping *m)
{
    /* acquire: in a child another thread may have attached; hold.row belongs to these cells */
    return atomic_load_explicit(m->cells, memory_order_acquire);
}

/* Does the row's process live? A row whose state cannot be told (probe -1) counts as living. */
bool svi_row_alive(int probe, uint32_t row);

#define SVI_ANY_BUFFER UINT32_MAX

/* Take back the pins and claims of a dead row, make it free. Its lock byte is held by us; may be
 * repeated after a crash at any point. */
void svi_row_clean(const svi_mapping *m, unsigned char *rw, uint32_t row);

/* Give back what dead rows hold (those that pin `buffer`, or all), and count filled slots that a
 * dead appender left uncounted. *recovered counts rows; NULL allowed. Takes the process lock. */
int svi_recover(svi_mapping *m, uint32_t buffer, uint32_t *recovered, sv_error *err);

/* Pins that all rows hold on a buffer now. */
uint64_t svi_buffer_pins(const svi_mapping *m, uint32_t buffer);

/* Sum of the reads of a buffer's cells, modulo 2^40. */
uint64_t svi_buffer_reads(const svi_mapping *m, uint32_t buffer);

/* The same for a buffer that no slot names: a pin there is one that is being undone, and its read
 * with it, so wait a moment for it. */
uint64_t svi_buffer_reads_settled(const svi_mapping *m, uint32_t buffer);

/* Room for the names of those who hold what others wait for. */
#define SVI_HOLDERS_BYTES 640

/* Write "pid 12 (command): 3 views, ...; ..." about those that pin `buffer` into out; for SVI_ANY_BUFFER
 * about those that pin or have reserved anything. */
void svi_row_holders(svi_mapping *m, uint32_t buffer, char *out, size_t bytes);

#endif
