/*
 * The part of the DLPack 1.x binary interface that a producer of CPU arrays needs.
 */
#ifndef SHAREDVECTOR_DLPACK_H
#define SHAREDVECTOR_DLPACK_H

#include <stdint.h>

#define DL_MAJOR 1
#define DL_MINOR 0
#define DL_DEVICE_CPU 1
#define DL_FLAG_READONLY UINT64_C(1)

enum dl_code {
    DL_INT = 0,
    DL_UINT = 1,
    DL_FLOAT = 2,
    DL_BFLOAT = 4,
    DL_COMPLEX = 5,
    DL_BOOL = 6,
};

typedef struct {
    int32_t device_type;
    int32_t device_id;
} dl_device;

typedef struct {
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
} dl_type;

typedef struct {
    void *data;
    dl_device device;
    int32_t ndim;
    dl_type dtype;
    int64_t *shape;
    int64_t *strides;
    uint64_t byte_offset;
} dl_tensor;

typedef struct dl_managed {
    struct {
        uint32_t major;
        uint32_t minor;
    } version;
    void *manager_ctx;
    void (*deleter)(struct dl_managed *self);
    uint64_t flags;
    dl_tensor tensor;
} dl_managed;

#endif
