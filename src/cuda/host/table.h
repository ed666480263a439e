/* The CUDA backend's table of kernels, which planning reads without nvcc or a device. Code that runs on one
 * stands behind the functions below (run.c, device.c). */
#ifndef TESSERA_CUDA_TABLE_H
#define TESSERA_CUDA_TABLE_H

#include "host/fill.h"
#include "host/image.h"
#include "lists/prepare.h"
#include "plan/kernels.h"

/* Rows: one for each kernel and type: of the stages, of the forward, of decode, of the backward. */
#define CUDA_ROWS_16bit 2
#define CUDA_ROWS_f32 1
#define CUDA_ROWS_any 1
#define CUDA_ROWS_f32_f16 1
#define CUDA_ROWS_f32_bf16 1
#define CUDA_STAGED(types, ...) +CUDA_ROWS_##types
#define CUDA_FORWARD(types, ...) +CUDA_ROWS_##types
#define CUDA_DECODE(types, ...) +CUDA_ROWS_##types
#define CUDA_BACKWARD(...) +1
#define CUDA_DELTA(...) +1
#define CUDA_SUMS(...) +1
#define CUDA_MLP_UP(...) +2
#define CUDA_MLP_DOWN(...) +2
enum {
    CUDA_ROWS = 0
#include "instances.def"
};
#undef CUDA_STAGED
#undef CUDA_FORWARD
#undef CUDA_DECODE
#undef CUDA_BACKWARD
#undef CUDA_DELTA
#undef CUDA_SUMS
#undef CUDA_MLP_UP
#undef CUDA_MLP_DOWN
extern const struct kernel cuda_table[CUDA_ROWS];

/* The plan's image on the device: exact bytes; SIZE_MAX where they do not fit. */
size_t cuda_image_size(const struct kernel_args *args);
/* An image's header, all arrays of which are full; and its arrays, where the image lies at `image`. Answers how
 * many. */
void cuda_image_header(const struct kernel_args *args, void *header);
size_t cuda_image_parts(struct device_part parts[IMAGE_ARRAYS], const struct kernel_args *args,
                        char *image);

/* Words about a launch beside its kernel: operand path, and launches that follow. */
int cuda_detail(const struct kernel_args *args, char *room, size_t size);

/* Bytes a second of the fastest memory that was built beside an architecture: predictions are never faster. */
int64_t cuda_memory_rate(int32_t architecture);

/* Answers to planning, and for its images. */
#define CUDA_PLANNING                                                                              \
    .name = "cuda", .kernels = cuda_table, .n_kernels = CUDA_ROWS, .workers = cuda_workers,        \
    .fill = {.scratch = cuda_fill_scratch, .run = cuda_fill_run}, .detail = cuda_detail
#define CUDA_IMAGE .size = cuda_image_size, .header = cuda_image_header

/* Launches of the table's kernels, and what refuses tensors of a run before any. */
const char *forward_refuses_run(const struct kernel_args *args);
const char *decode_refuses_run(const struct kernel_args *args);
const char *mlp_refuses_run(const struct kernel_args *args);
tess_status staged_run(const struct kernel_args *args, tess_error *error);
tess_status forward_run(const struct kernel_args *args, tess_error *error);
tess_status decode_run(const struct kernel_args *args, tess_error *error);
tess_status gradient_run(const struct kernel_args *args, tess_error *error);
tess_status delta_run(const struct kernel_args *args, tess_error *error);
tess_status column_sums_run(const struct kernel_args *args, tess_error *error);
tess_status mlp_run(const struct kernel_args *args, tess_error *error);
tess_status cuda_fill_run(const struct fill_job *job, tess_error *error);

/* NULL, or why no kernel runs on this machine. */
const char *cuda_unusable(void);

#endif
