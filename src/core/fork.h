/*
 * State of this process as a whole: the lock that serialises attaching, recovering and elections
 * with fork, the list of mappings, and the hand-over of views to a forked child.
 *
 * Lock order: fork gate, then process lock. Neither is held while anybody waits for another process.
 *
 * What is done under the process lock is short, as forks, first pins and closes wait for it: system calls
 * that neither reserve nor free payload, one look at each row (attaching), one pass over the cells and
 * claims of one row (recovering, forking). Reserving and freeing memory, unlinking, and passes over all
 * rows are done without it (rules F5, V2).
 */
#ifndef SVI_FORK_H
#define SVI_FORK_H

#include "mapping.h"

/* Take the process lock. Prepares the process on first use and repairs a child that was made
 * without fork handlers. Fails only when memory or the kernel's support is missing. */
int svi_process_lock(sv_error *err);
void svi_process_unlock(void);

/* A number that names this process among its forked relatives; never 0. Process prepared. */
uint64_t svi_process_token(void);

/* The same without a look whether this child was repaired: only after svi_cells() gave a row. */
extern svi_word svi_process_number;
static inline uint64_t
svi_process_token_quick(void)
{
    return svi_load_relaxed(&svi_process_number);
}

/* Internal pins that a fork must not copy are taken between these two. */
void svi_gate_enter(void);
void svi_gate_leave(void);

/* First mapping of the list. Process lock held. */
svi_mapping *svi_process_mappings(void);

/* An unused mapping struct, zeroed, in the list. Process lock held. NULL: out of memory. */
svi_mapping *svi_mapping_obtain(void);

#endif
