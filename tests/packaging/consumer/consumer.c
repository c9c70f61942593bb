/* Makes a segment and removes it, through the public header alone. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sharedvector/sharedvector.h>

int
main(int argc, char **argv)
{
    sv_options options;
    sv_segment *segment = NULL;
    sv_error error;
    sv_view view;
    int good;

    if (argc != 2) {
        fprintf(stderr, "usage: consumer NAME\n");
        return 2;
    }
    if (strcmp(sv_version(), SV_VERSION_STRING) != 0) {
        fprintf(stderr, "header %s, library %s\n", SV_VERSION_STRING, sv_version());
        return 1;
    }
    sv_options_init(&options);
    options.chunk_size = 4096;
    options.slot_count = 2;
    options.dtype = "float32";
    options.itemsize = 4;
    if (sv_segment_open(argv[1], &options, SV_OPEN_CREATE, &segment, &error) != 0) {
        fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    good = sv_size(segment) == 0 && sv_pin(segment, 0, &view) != 0;
    if (sv_segment_close(segment, &error) != 0 || sv_segment_remove(argv[1], NULL, &error) != 0) {
        fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    puts(good ? "consumer: good" : "consumer: bad");
    return good ? 0 : 1;
}
