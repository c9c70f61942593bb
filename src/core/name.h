/* Names of segments and paths of their files. */
#ifndef SVI_NAME_H
#define SVI_NAME_H

#include "sharedvector/sharedvector.h"

#define SVI_DIRECTORY_BYTES 512
#define SVI_PATH_BYTES (SVI_DIRECTORY_BYTES + SV_MAX_NAME_BYTES + 32)

/* The directory of segments: `directory`, or SHAREDVECTOR_SHM_DIR, or /dev/shm. */
int svi_shm_directory(const char *directory, char out[SVI_DIRECTORY_BYTES], sv_error *err);

/* The directory of lock and ready files: `lock_dir`, or SHAREDVECTOR_LOCK_DIR, or /dev/shm. */
int svi_lock_directory(const char *lock_dir, char out[SVI_DIRECTORY_BYTES], sv_error *err);

/* directory/ + prefix + name + suffix; the parts were checked before, so that it always fits. */
void svi_path(char out[SVI_PATH_BYTES], const char *directory, const char *prefix, const char *name,
              const char *suffix);

/* Draw a new generation: 32 hexadecimal digits from the kernel. */
int svi_generation_draw(char out[SV_GENERATION_BYTES], sv_error *err);

/* Check a generation given by a caller: 1 to 63 characters, printable, no quotes or blanks. */
int svi_generation_check(const char *generation, sv_error *err);

#endif
