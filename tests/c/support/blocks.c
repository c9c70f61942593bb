/* Blocks for the tests. */
#include "blocks.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "os.h"

uint64_t *
block_words(uint64_t stamp)
{
    uint64_t *words = world_memory(BLOCK_BYTES);
    for (size_t i = 0; i < BLOCK_WORDS; i++) {
        words[i] = stamp;
    }
    return words;
}

sv_array
block_array(const uint64_t *words)
{
    return (sv_array){.data = words,
                      .size_bytes = BLOCK_BYTES,
                      .itemsize = sizeof *words,
                      .ndim = 1,
                      .shape = {BLOCK_WORDS},
                      .dtype = "uint64"};
}

/* A block whose every word is `stamp`. */
sv_segment *
block_of(uint64_t stamp)
{
    uint64_t *words = block_words(stamp);
    const sv_array array = block_array(words);
    sv_segment *block = NULL;
    sv_error err = {.message = ""};
    if (!EQ(sv_block_create("test", &array, NULL, &block, &err), 0)) {
        printf("# %s\nBail out! no block\n", err.message);
        world_exit(1);
    }
    free(words);
    return block;
}

sv_segment *
block_attach(const char *name)
{
    sv_options options = world_options();
    svi_testing_separate = true;
    options.dtype = NULL;
    return world_open(name, &options, SV_OPEN_ATTACH);
}

const char *
block_name(const sv_segment *block)
{
    return svi_mapping_of(block)->name;
}

/* Is every word of the view `stamp`? */
bool
block_shows(const sv_view *view, uint64_t stamp)
{
    const uint64_t *words = view->data;
    for (size_t i = 0; i < BLOCK_WORDS; i++) {
        if (words[i] != stamp) {
            return false;
        }
    }
    return view->size_bytes == BLOCK_BYTES;
}

void
block_drop(sv_segment *block)
{
    (void)EQ(sv_block_remove(block, NULL), 0);
    (void)EQ(sv_segment_close(block, NULL), 0);
}

/* Memory that a file takes, through a descriptor that outlives its name. */
uint64_t
block_memory(int fd)
{
    struct stat st;
    (void)EQ(fstat(fd, &st), 0);
    return (uint64_t)st.st_blocks * 512;
}

int
block_look_behind(const sv_segment *block)
{
    int fd = svi_os_open(world_path(block_name(block), ""), O_RDONLY, 0);
    (void)CHECK(fd >= 0);
    return fd;
}
