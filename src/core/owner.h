/* What other modules ask of an owner. */
#ifndef SVI_OWNER_H
#define SVI_OWNER_H

#include "sharedvector/sharedvector.h"

const char *svi_owner_name(const sv_owner *owner);

#endif
