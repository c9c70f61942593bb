/* What other modules ask of an owner. */
#ifndef SVI_OWNER_H
#define SVI_OWNER_H

#include <stdbool.h>

#include "sharedvector/sharedvector.h"

const char *svi_owner_name(const sv_owner *owner);

/* Did this process take it, and not the parent before a fork? */
bool svi_owner_is_mine(const sv_owner *owner);

/* Give the lock file, and the marker when it is written, the permissions of the pool. */
int svi_owner_set_mode(sv_owner *owner, uint32_t mode, sv_error *err);

#endif
