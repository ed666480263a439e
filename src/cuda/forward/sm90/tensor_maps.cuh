/* Tensor maps of Q, K, V and O for fused attention. */
#ifndef TESSERA_CUDA_SM90_TENSOR_MAPS_CUH
#define TESSERA_CUDA_SM90_TENSOR_MAPS_CUH

#include "device/sm90/tensor_map.cuh"
#include "forward/sm90/config.cuh"

/* False where TMA cannot address a tensor: strides of 2^40 bytes, say. */
template <class T>
static bool sm90_maps_make(struct sm90_maps *maps, const struct attention_params *p, T) {
    const sm90_encode encode = sm90_encode_find();
    const CUtensorMapDataType type = sm90_map_type(T());
    const int64_t q[4] = {p->batch, p->heads_q, p->n_q, p->d_qk};
    const int64_t k[4] = {p->batch, p->heads_kv, p->n_kv, p->d_qk};
    const int64_t v[4] = {p->batch, p->heads_kv, p->n_kv, p->d_v};
    bool made = encode && sm90_map_make(&maps->q, encode, type, p->q, q, (cuuint32_t)p->tile_rows);
    for (int two = 0; two < 2 && made; two++) {
        const cuuint32_t rows = 1u << (p->granule_bits + two);
        made = sm90_map_make(&maps->k[two], encode, type, p->k, k, rows) &&
               sm90_map_make(&maps->v[two], encode, type, p->v, v, rows);
    }
    return made;
}

template <class T>
static bool sm90_map_make_o(CUtensorMap *map, const struct attention_params *p, T) {
    const sm90_encode encode = sm90_encode_find();
    const int64_t o[4] = {p->batch, p->heads_q, p->n_q, p->d_v};
    return encode && sm90_map_make(map, encode, sm90_map_type(T()), p->o, o,
                                   (cuuint32_t)(p->tile_rows < 64 ? p->tile_rows : 64));
}

#endif
