/* Making a segment, attaching to one: the two ways in which segment.c opens a name. */
#ifndef SVI_SEGMENT_H
#define SVI_SEGMENT_H

#include "mapping.h"

/* Is a caller's struct (not NULL) that of this header? Before anything else of it is read: a shorter one
 * may end where memory ends. */
int svi_options_check(const sv_options *options, sv_error *err);

/* Attach to the file behind fd, whose ownership this takes. SVI_ERETRY: it is being replaced, look
 * again. Process lock held. */
int svi_attach(int fd, const svi_place *place, const sv_options *options, sv_segment **out,
               sv_error *err);

/* A further handle on a file that this process has mapped, for one look at its name. SVI_EUNKNOWN: the
 * name is not that of such a file. Process lock held. */
int svi_attach_again(const svi_place *place, const sv_options *options, sv_segment **out,
                     sv_error *err);

/* Make a segment and give it its name; `replace`: in place of one that has no living owner.
 * SVI_ERETRY: somebody else was first. Process lock and the creators' lock file held; the process lock is
 * given up for what takes long: reserving memory, and freeing it. */
int svi_create(const svi_place *place, const sv_options *options, bool replace, sv_segment **out,
               sv_error *err);

#endif
