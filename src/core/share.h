/*
 * Sharing a row with a forked child for which none could be had (rule F3).
 *
 * The child's views stay pinned by its parent's row: the parent leaves one pin behind on each buffer
 * that it pins, and the child keeps the row's lock alive. A read lock that only such children hold
 * tells the parent when the last one has ended, and the pins can go.
 */
#ifndef SVI_SHARE_H
#define SVI_SHARE_H

#include "mapping.h"

/* The next child shares this process's row, which holds pins. Cannot fail: when it cannot be told
 * later whether the child lives, the pins stay as long as the row. Fork gate and process lock held. */
void svi_share_begin(svi_mapping *m);

/* After the fork, in the parent: what was for the child is the child's alone. */
void svi_share_part(svi_mapping *m);

/* After the fork, in the child, which has left nothing behind. */
void svi_share_forget(svi_mapping *m);

/* Take back what was left behind, if all those children have ended. Process lock held. */
void svi_share_settle(svi_mapping *m);

#endif
