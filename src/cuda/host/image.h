/* Beginning of images on a device: their version, and of each array the place, the room and how much of it
 * is filled. */
#ifndef TESSERA_CUDA_IMAGE_HEADER_H
#define TESSERA_CUDA_IMAGE_HEADER_H

#include "plan/kernels.h"

#define IMAGE_MAGIC UINT64_C(0x314d495353534554) /* "TESSSIM1": the last is the version */
#define IMAGE_ARRAYS 16

struct image_array {
    int64_t offset;          /* bytes from the image's begin */
    int64_t capacity, count; /* elements: room, and those in use, which kernels read */
};

struct image_header {
    uint64_t magic;
    int64_t arrays;
    struct image_array array[IMAGE_ARRAYS]; /* in the order of the image's struct */
};

/* An array of an image: where it lies on the device and what it is copied from. from NULL: it is
 * derived there of the others. */
struct device_part {
    void *to;
    const void *from;
    int64_t count;
    size_t size;
};

#endif
