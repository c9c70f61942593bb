/* Rows: one record per attached process, and the recovery of what the dead held. */
#ifndef SVI_ROW_H
#define SVI_ROW_H

#include "segment.h"

/*
 * Take the lowest free row: lock it through an anchor, clean it if a dead process left it, give its
 * cells memory, make it live. `owner` also takes the owner byte. SV_EBUSY: a sweeper is at work on
 * the file, try again later. SV_EROWS, SV_ESYS. Process lock held.
 */
int svi_row_take(svi_mapping *m, bool inherit, bool owner, svi_hold *out, sv_error *err);

/* Give a row back. Nothing may be pinned through it. Process lock held. */
void svi_row_drop(svi_mapping *m, svi_hold *hold);

/* Unmap a row's writable map, if it has one of its own. */
void svi_row_unmap(const svi_mapping *m, svi_hold *hold);

/* Write into a row who has it. Process lock held. */
void svi_row_sign(svm_row *row, bool owner);

/* Make this process's row current for pin and unpin. Process lock held. */
void svi_row_install(svi_mapping *m, const svi_hold *hold);

/* Tell others how many handles this process has open. Process lock held. */
void svi_row_show_handles(const svi_mapping *m);

/* Pins that this process holds; 0 without a row. */
uint64_t svi_row_own_pins(const svi_mapping *m);

/* This process's cells, attaching a child on its first use. NULL with *status set on failure. */
svi_word *svi_cells_slow(svi_mapping *m, int *status, sv_error *err);

static inline svi_word *
svi_cells(const svi_mapping *m)
{
    /* acquire: in a child another thread may have attached; hold.row belongs to these cells */
    return atomic_load_explicit(m->cells, memory_order_acquire);
}

/* Does the row's process live? A row whose state cannot be told counts as living. Process lock. */
bool svi_row_alive(svi_mapping *m, uint32_t row);

#define SVI_ANY_BUFFER UINT32_MAX

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

/* Write "pid 12 (3 pins), ..." about those that pin `buffer` (or anything) into out. */
void svi_row_holders(svi_mapping *m, uint32_t buffer, char *out, size_t bytes);

#endif
