/* Blocks, as the modules see them that make, pin and drop segments. */
#ifndef SVI_BLOCK_H
#define SVI_BLOCK_H

#include "mapping.h"

/* Is this the name of a block of this user, made with `prefix` (NULL: with any)? */
bool svi_block_is_named(const char *name, const char *prefix);

/* Note the name of a block that is about to be linked, for sv_block_unlink_all(); other segments:
 * nothing. Process lock held. */
int svi_block_list(svi_mapping *m, sv_error *err);

/* Forget it again; a mapping without: nothing. Process lock held. */
void svi_block_unlist(svi_mapping *m);

/* A child that gets no row is about to inherit views of a block: its memory is not to be given back
 * before all maps are gone (rule B5). False: this cannot be said, or it is no block. Process lock
 * held. */
bool svi_block_keep(svi_mapping *m);

/* Give back a pin of a block, and with the last one of a removed block its memory, whoever still has it
 * mapped. Takes the process lock when it was removed. */
void svi_block_unpin(svi_mapping *m, uint32_t buffer);

/* Is this a removed block that nobody looks at, so that its memory may be given back? A block that is
 * due stays so. Process lock held. */
bool svi_block_is_due(const svi_mapping *m);

/* Has its maker removed the block? Asked after a pin, so that its memory stays when not, and after an
 * unpin, so that it goes when so (E13). */
static inline bool
svi_block_is_removed(const svi_mapping *m)
{
    return svi_load_seq(&svi_header(m)->h_retired) != SV_RETIRED_NO; /* E13 */
}

#endif
