/* Stage 2: which weights dropout keeps. */
#ifndef TESSERA_CUDA_SOFTMAX_DROPOUT_CUH
#define TESSERA_CUDA_SOFTMAX_DROPOUT_CUH

#include "device/modify.cuh"
#include "staged/block_row.cuh"

/* Whether the weight of query q and a key is kept. */
DEVICE bool softmax_keeps(const struct staged_params &p, int32_t key, const struct modify_query &q,
                          uint64_t seed) {
    const int32_t place = modify_place(p.modify, key, (int32_t)p.n_kv);
    const uint32_t j = (uint32_t)place + p.modify.first_key;
    const uint32_t words =
        modify_kept_words(modify_words<MODIFY_ROUNDS>(q, j, seed), p.modify.dropped);
    return words >> modify_word(q, j) & 1;
}

#endif
