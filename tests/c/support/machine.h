/* A machine of the test's own: private mounts, files of text. */
#ifndef MACHINE_H
#define MACHINE_H

#include <stdbool.h>

/* Exit code of a child that was not allowed to prepare its surroundings. */
#define CANNOT 78

/* Write a file that is there or can be made. */
bool world_write_text(const char *path, const char *text);

/* From now on this process's mounts are its own; without root in a user namespace. false: not here. */
bool world_private_mounts(void);

#endif
