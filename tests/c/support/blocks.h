/* Blocks of one stamp, and what the file system says about them. */
#ifndef BLOCKS_H
#define BLOCKS_H

#include "world.h"

#define BLOCK_WORDS UINT64_C(8192) /* 16 pages */
#define BLOCK_BYTES (BLOCK_WORDS * sizeof(uint64_t))

/* Memory with `stamp` in every word; to be freed. */
uint64_t *block_words(uint64_t stamp);

/* An array over them (NULL: zeros), as a block stores it. */
sv_array block_array(const uint64_t *words);

/* A block whose every word is `stamp`, or the end of the program. */
sv_segment *block_of(uint64_t stamp);

/* A handle with a row of its own on somebody's block. */
sv_segment *block_attach(const char *name);

const char *block_name(const sv_segment *block);

/* Is every word of the view `stamp`? */
bool block_shows(const sv_view *view, uint64_t stamp);

/* Both must succeed. */
void block_drop(sv_segment *block);

/* A descriptor that outlives the name, and the memory that the file behind it takes. */
int block_look_behind(const sv_segment *block);
uint64_t block_memory(int fd);

#endif
