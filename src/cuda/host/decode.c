/* The host's side of decode on CUDA: what kernels get. Nothing of an image is read here. */
#include "host/decode.h"

/* Programmatic dependent launch. */
#define EARLY_ARCHITECTURE 90

struct decode_params decode_params_of(const struct kernel_args *args) {
    const struct lists *lists = args->lists;
    return (struct decode_params){
        .of = attention_params_shared(args),
        .image = *args->filled,
        .lengths = args->lengths,
        .keys = lists->keys,
        .full_ptr = lists->full_ptr,
        .full_end = lists->full_end,
        .masked_ptr = lists->masked_ptr,
        .masked_end = lists->masked_end,
        .full = lists->full,
        .masked = lists->masked,
        .tiles = lists->tiles,
        .early = args->target->architecture >= EARLY_ARCHITECTURE,
        .multiprocessors = args->target->multiprocessors,
        .packs = (int32_t)(args->filled->units / lists->tiles),
    };
}
