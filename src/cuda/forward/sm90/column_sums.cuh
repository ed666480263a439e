/*
 * Fused attention on Hopper: column sums of a dense run, whose tiles are whole groups (docs/semantics.md, "Column
 * sums"). P of a step is exp2(score - base) before it is rounded, and base - reference is a number of a row: so a
 * term is one product. A consumer warp sums its 16 rows in registers, by a transposing butterfly over the eight lanes
 * that share a column, while P V of the step before runs. Two warps of the producer warpgroup add up the warps'
 * slabs, always in one order, and store the sums.
 *
 *   consumer warp    P f over rows g and g + 8, then over g: lane (g, t) has column g of each 32     slab
 *   warps 2, 3       half of the step's columns each: slabs of all consumer warps                    column_sums
 *
 *   barrier          completed by         phase ends when             waited for by
 *   slab_full        consumer warps       their rows are there        warps 2 and 3
 *   slab_empty       warps 2 and 3        they have been read         consumer warps
 */
#ifndef TESSERA_CUDA_SM90_COLUMN_SUMS_CUH
#define TESSERA_CUDA_SM90_COLUMN_SUMS_CUH

#include "forward/sm90/consumer.cuh"

#define SM90_SUMS_MOST 110.0f /* log2 of a row's factor at most: sums of 256 rows stay in range */

/* References of this thread's rows of an item, base 2; +Inf: the row adds nothing. */
template <class shape>
DEVICE void sm90_sums_begin(float (&reference)[2], const sm90_cursor &cursor,
                            const struct attention_params &p) {
    const struct granule_item &item = sm90_item<shape>(cursor.memory, cursor.job);
    const float *const from = static_cast<const float *>(p.reference.data) +
                              item.batch * p.reference.stride[0] +
                              item.head * p.reference.stride[1];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int at = sm90_consumer_row<shape>(cursor.consumer) + sm90_thread_here() / 32 * 16 +
                       warp_lane_here() / 4 + 8 * h;
        const float x = at < item.rows ? from[(item.row + at) * p.reference.stride[2]] : -INFINITY;
        reference[h] = x == -INFINITY ? INFINITY : x * p.modify.unit;
    }
}

/* Half of x, N numbers, of this lane and of the lane at `far`, added up: the upper half where `upper`. */
template <int N> DEVICE void sm90_sums_halve(float (&x)[8], int far, bool upper) {
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        const float kept = upper ? x[i + N / 2] : x[i], sent = upper ? x[i] : x[i + N / 2];
        x[i] = kept + __shfl_xor_sync(WARP_ALL, sent, far);
    }
}

/* Leaves the sums of this warp's rows over P of the step at `cursor`. FIRST: of its item. */
template <bool FIRST, class shape>
DEVICE void sm90_sums_step(struct sm90_fragments<shape> &w, const sm90_cursor &cursor,
                           const struct attention_params &p) {
    const int lane = warp_lane_here(), warp = 4 * cursor.consumer + sm90_thread_here() / 32;
    const uint32_t stage = cursor.step & 1, barrier = cursor.shared + 8 * stage;
    if (FIRST)
        sm90_sums_begin<shape>(w.reference, cursor, p);
    const float f[2] = {attention_exp2(fminf(w.state.base[0] - w.reference[0], SM90_SUMS_MOST)),
                        attention_exp2(fminf(w.state.base[1] - w.reference[1], SM90_SUMS_MOST))};
    const int of_lane = 8 * (lane / 8 % 2 + lane / 16 * 2) + 2 * (lane % 4) + lane / 4 % 2;
    const uint32_t to = cursor.shared + shape::SLABS + stage * shape::SLAB +
                        (uint32_t)(warp * shape::KEYS + of_lane) * 4;
    barrier_wait(barrier + shape::SLAB_EMPTY, (cursor.step >> 1 & 1) ^ 1);
#pragma unroll
    for (int i = 0; i < shape::SCORES; i += 16) {
        float x[8];
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const float *const s = w.s + i + j / 2 * 4 + j % 2;
            x[j] = fmaf(s[0], f[0], s[2] * f[1]);
        }
        sm90_sums_halve<8>(x, 16, lane & 16);
        sm90_sums_halve<4>(x, 8, lane & 8);
        sm90_sums_halve<2>(x, 4, lane & 4);
        shared_store_4(to + (uint32_t)(i / 16 * 128), __float_as_uint(x[0]));
    }
    __syncwarp();
    if (lane == 0)
        barrier_arrive(barrier + shape::SLAB_FULL);
}

/* Adds up and stores the sums of all items of this CTA: half `half` of the columns of each step. load: as in
 * sm90_store_empty. */
template <class shape, class loads>
DEVICE void sm90_sums_items(char *memory, const struct attention_params &p, const loads &load,
                            uint32_t shared, int half, int64_t begin, int64_t end) {
    const int bits = p.granule_bits;
    uint32_t step = 0;
#pragma unroll 1
    for (int64_t first = begin; first < end; first += 32) {
        const struct granule_item items = load(first);
#pragma unroll 1
        for (uint32_t left = __ballot_sync(WARP_ALL, items.count > 0); left; left &= left - 1) {
            const int lane = __ffs((int)left) - 1;
            const int32_t *const keys = p.image.keys + sm90_of_lane(items.first, lane);
            const int32_t places = sm90_of_lane(items.count, lane) << bits;
            const int64_t row =
                sm90_of_lane(items.batch, lane) * p.column_sums.stride[0] +
                sm90_of_lane(items.head, lane) * p.column_sums.stride[1] +
                sm90_of_lane(items.row, lane) / p.tile_rows * p.column_sums.stride[2];
#pragma unroll 1
            for (int32_t at = 0; at < places; at += shape::KEYS, step++) {
                const uint32_t stage = step & 1;
                barrier_wait(shared + shape::SLAB_FULL + 8 * stage, step >> 1 & 1);
#pragma unroll
                for (int i = 0; i < shape::KEYS / 2; i += 32) {
                    const int column = half * (shape::KEYS / 2) + i + warp_lane();
                    const float *const slab =
                        reinterpret_cast<const float *>(memory + shape::SLABS) +
                        stage * (shape::SLAB / 4) + column;
                    float sum = slab[0];
#pragma unroll
                    for (int warp = 1; warp < 4 * shape::CONSUMERS; warp++)
                        sum += slab[warp * shape::KEYS];
                    const int32_t place = at + column;
                    const int32_t key =
                        place < places ? __ldg(keys + (place >> bits)) + (place & ((1 << bits) - 1))
                                       : p.n_kv;
                    if (key < p.n_kv && p.sum_type == TESS_F32)
                        static_cast<float *>(p.column_sums.data)[row + key] = sum;
                    else if (key < p.n_kv)
                        from_f32(static_cast<__nv_bfloat16 *>(p.column_sums.data) + row + key, sum);
                }
                __syncwarp();
                if (warp_lane() == 0)
                    barrier_arrive(shared + shape::SLAB_EMPTY + 8 * stage);
            }
        }
    }
}

#endif
