/*
 * What a segment looks like in memory (format 1.1). Layout only, no behaviour; docs/FORMAT.md says
 * the same in prose. Struct letters: h_ header, s_ slot, b_ buffer header, a_ array descriptor,
 * r_ row.
 *
 *   header (1 page) | slots | buffer headers | rows (page stride) | sample ring | payload
 *
 * Who writes: "fixed" fields only before the file gets its name; "claim" fields only the process
 * whose row + 1 is in b_writer; the rest is atomic and may be written by anybody attached.
 */
#ifndef SVI_LAYOUT_H
#define SVI_LAYOUT_H

#include <stddef.h>

#include "atomic.h"
#include "sharedvector/sharedvector.h"

#define SVI_MAGIC "SHVECT\r\n"
#define SVI_BYTE_ORDER UINT32_C(0x01020304)
#define SVI_PAGE 4096u
#define SVI_LINE 64u
#define SVI_HINTS 64u

/* Lock bytes of the segment's file. They lie beyond any possible data, so that they can never be
 * confused with an offset; a byte does not have to exist to be locked. */
#define SVI_LOCK_BASE (INT64_C(1) << 60)
#define SVI_LOCK_ATTACHED (SVI_LOCK_BASE + 0)       /* read: attached */
#define SVI_LOCK_OWNER (SVI_LOCK_BASE + 1)          /* write: the owner of the pool lives */
#define SVI_LOCK_ROW (SVI_LOCK_BASE + 64)           /* + row, write: the row's process lives */
#define SVI_LOCK_SHARED (SVI_LOCK_BASE + (1 << 20)) /* + row, read: children share the row */

/* What others can sleep for. */
enum svi_event { SVI_EVENT_CHANGED = 0, SVI_EVENT_FILLED = 1, SVI_EVENT_FREE = 2, SVI_EVENTS = 8 };
#define SVI_EVENT_SLEEPERS UINT64_C(1)

enum svi_kind { SVI_KIND_VECTOR = 0, SVI_KIND_BLOCK = 1 };

typedef struct svm_header {
    /* fixed */
    char h_magic[8];
    uint16_t h_major;
    uint16_t h_minor;
    uint32_t h_byte_order;
    uint32_t h_features_compatible;
    uint32_t h_features_read_only;
    uint32_t h_features_incompatible;
    uint32_t h_fingerprint; /* of the struct sizes below */
    uint64_t h_segment_bytes;
    uint64_t h_chunk_size;
    uint64_t h_buffer_stride;
    uint32_t h_slot_count;
    uint32_t h_buffer_count;
    uint32_t h_max_rows;
    uint32_t h_max_arrays;
    uint32_t h_stats_capacity;
    uint32_t h_itemsize;
    uint32_t h_owned;
    uint32_t h_mode;
    uint64_t h_off_slots;
    uint64_t h_off_buffers;
    uint64_t h_off_rows;
    uint64_t h_off_ring;
    uint64_t h_off_payload;
    uint64_t h_row_stride;
    uint64_t h_created_ns;
    uint32_t h_kind;      /* enum svi_kind */
    uint32_t h_processes; /* beside the maker, whose rows are reserved; 0 in format 1.0 */
    char h_pad0[40];
    char h_generation[SV_GENERATION_BYTES];
    char h_dtype[SV_DTYPE_BYTES];
    /* atomic; one cache line for each set of writers */
    svi_word h_size; /* slots counted; every slot below is filled (rule A2) */
    char h_pad1[56];
    svi_word h_high_rows; /* rows that were ever taken; atomic maximum (rule R3) */
    char h_pad2[56];
    svi_word h_moves; /* pins handed over to a child; a scan that saw it change repeats (rule F2) */
    char h_pad3[56];
    svi_word h_retired; /* enum sv_retired; set once */
    svi_word h_kept;    /* 1: a child without a row may look at this block; set once (rule B5) */
    char h_pad4[48];
    svi_word h_walk; /* where the next search for a free buffer begins; hint */
    char h_pad5[56];
    svi_word h_replace_events;
    svi_word h_reads_total;
    svi_word h_reads_max;
    svi_word h_blocked;
    svi_word h_ring_head;  /* samples ever written */
    svi_word h_ring_reset; /* value of h_ring_head at the last reset */
    char h_pad6[16];
    svi_word h_counters[SV_COUNTER_COUNT];
    svi_word h_hints[SVI_HINTS];   /* buffer + 1 that was displaced, or 0; hints, no proof */
    svi_word h_events[SVI_EVENTS]; /* lower half: bit 0 somebody sleeps, wakes (rules N1-N4; 1.1) */
    char h_pad7[SVI_PAGE - 1536 - SVI_EVENTS * 8];
} svm_header;

typedef struct svm_slot {
    svi_word s_word;       /* EMPTY or {buffer, stamp}: the commit point of every publication */
    svi_word s_last_reads; /* reads of the chunk before; relaxed, statistics only */
} svm_slot;

typedef struct svm_array {
    /* claim */
    uint64_t a_offset; /* from the buffer's start, multiple of 64 */
    uint64_t a_bytes;
    uint32_t a_itemsize;
    uint32_t a_ndim;
    uint64_t a_shape[SV_MAX_NDIM];
    char a_name[SV_ARRAY_NAME_BYTES];
    char a_dtype[SV_DTYPE_BYTES];
    char a_pad[8];
} svm_array;

typedef struct svm_buffer {
    svi_word b_writer;    /* 0, or row + 1 of the process that fills or counts it (rule W1) */
    svi_word b_slot;      /* slot + 1 it was last published to, 0 never; written under the claim */
    svi_word b_version;   /* writes to the slot up to this chunk; written under the claim */
    svi_word b_read_base; /* sum of the reads of its cells at publication; under the claim */
    /* claim */
    uint32_t b_array_count;
    uint32_t b_meta_count;
    uint64_t b_source_index;
    uint64_t b_source_epoch;
    svi_word b_published_ns; /* relaxed: for people */
    double b_meta[SV_MAX_META];
    svm_array b_arrays[]; /* h_max_arrays of them */
} svm_buffer;

enum svi_row_state { SVI_ROW_FREE = 0, SVI_ROW_LIVE = 1 };

typedef struct svm_row {
    svi_word r_state; /* enum svi_row_state; FREE again only when nothing is held (rule R4) */
    /* for people; relaxed */
    svi_word r_pid;
    svi_word r_start_time;
    svi_word r_attached_ns;
    svi_word r_owner;   /* 1: it held the owner byte when it attached */
    svi_word r_handles; /* handles that the process has open */
    svi_word r_counted; /* 1: the row has memory and lies below the mark; stays (rule R3) */
    char r_pad0[8];
    svi_word r_command[8]; /* 64 characters */
    char r_pad1[128];
    svi_word
        r_cells[]; /* h_buffer_count of them; written by this row's process alone while it lives */
} svm_row;

_Static_assert(offsetof(svm_header, h_segment_bytes) == 32, "format 1");
_Static_assert(offsetof(svm_header, h_off_slots) == 88, "format 1");
_Static_assert(offsetof(svm_header, h_kind) == 144, "format 1");
_Static_assert(offsetof(svm_header, h_processes) == 148, "format 1");
_Static_assert(offsetof(svm_header, h_generation) == 192, "format 1");
_Static_assert(offsetof(svm_header, h_dtype) == 256, "format 1");
_Static_assert(offsetof(svm_header, h_size) == 512, "format 1");
_Static_assert(offsetof(svm_header, h_high_rows) == 576, "format 1");
_Static_assert(offsetof(svm_header, h_moves) == 640, "format 1");
_Static_assert(offsetof(svm_header, h_retired) == 704, "format 1");
_Static_assert(offsetof(svm_header, h_walk) == 768, "format 1");
_Static_assert(offsetof(svm_header, h_replace_events) == 832, "format 1");
_Static_assert(offsetof(svm_header, h_counters) == 896, "format 1");
_Static_assert(offsetof(svm_header, h_hints) == 1024, "format 1");
_Static_assert(offsetof(svm_header, h_events) == 1536, "format 1");
_Static_assert(offsetof(svm_header, h_pad7) == 1600, "format 1");
_Static_assert(sizeof(svm_header) == SVI_PAGE, "format 1");
_Static_assert(sizeof(svm_slot) == 16, "format 1");
_Static_assert(sizeof(svm_array) == 448, "format 1");
_Static_assert(offsetof(svm_array, a_name) == 152, "format 1");
_Static_assert(sizeof(svm_buffer) == 128, "format 1");
_Static_assert(offsetof(svm_buffer, b_meta) == 64, "format 1");
_Static_assert(sizeof(svm_row) == 256, "format 1");
_Static_assert(offsetof(svm_row, r_counted) == 48, "format 1");
_Static_assert(offsetof(svm_row, r_command) == 64, "format 1");

/* Changes whenever a struct or an array above changes its size; part of what attach compares. */
#define SVI_FINGERPRINT                                                                            \
    ((uint32_t)(sizeof(svm_header) * 31 + sizeof(svm_slot) * 37 + sizeof(svm_array) * 41 +         \
                sizeof(svm_buffer) * 43 + sizeof(svm_row) * 47 + SVI_HINTS +                       \
                SV_COUNTER_COUNT * 53))

#endif
