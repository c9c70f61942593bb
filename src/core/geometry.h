/* Where everything lies in a segment, worked out from a few numbers and never read back. */
#ifndef SVI_GEOMETRY_H
#define SVI_GEOMETRY_H

#include "layout.h"

typedef struct svi_geometry {
    uint64_t chunk_size;
    uint64_t buffer_stride;
    uint64_t header_stride;
    uint64_t row_stride;
    uint64_t off_slots;
    uint64_t off_buffers;
    uint64_t off_rows;
    uint64_t off_ring;
    uint64_t off_payload;
    uint64_t segment_bytes;
    uint32_t slot_count;
    uint32_t buffer_count;
    uint32_t max_rows;
    uint32_t max_arrays;
    uint32_t stats_capacity;
    uint32_t itemsize;
    uint32_t kind;      /* enum svi_kind */
    uint32_t processes; /* beside the maker, whose rows are reserved; 0 in format 1.0 */
} svi_geometry;

/* Check the options of a creation and lay the segment out. SV_EINVAL names option and limits. */
int svi_geometry_plan(const sv_options *options, svi_geometry *out, sv_error *err);

/* Check a header that was copied out of a file of `file_bytes` bytes. SV_EFORMAT says what is wrong. */
int svi_geometry_read(const svm_header *header, uint64_t file_bytes, const char *path,
                      svi_geometry *out, sv_error *err);

/* Rows that get their memory when the segment is made: the maker's, and one for each process that the
 * segment is made for, which a full file system must not keep away. */
uint32_t svi_geometry_first_rows(const svi_geometry *geometry);

/* Bytes that have to be reserved when the segment is made: everything but further rows. */
uint64_t svi_geometry_reserved(const svi_geometry *geometry);

#endif
