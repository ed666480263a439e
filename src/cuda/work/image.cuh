/* A filled image, by kernels that begin early: its header and first item, and what a foreign one makes of outputs. */
#ifndef TESSERA_CUDA_FILLED_IMAGE_CUH
#define TESSERA_CUDA_FILLED_IMAGE_CUH

#include "work/early.cuh"
#include "work/item.cuh"

/* Fetches a kernel's parameters before it waits, a word of each 64 bytes: constants looked up in turn each
 * come from L2. The words go to `memory`: unused loads are not made. */
template <class params> DEVICE void early_fetch(const params &p, void *memory) {
    const uint32_t *const words = reinterpret_cast<const uint32_t *>(&p);
    for (uint32_t i = threadIdx.x / 32; i < sizeof p / 64; i += blockDim.x / 32)
        static_cast<volatile uint32_t *>(memory)[i] = words[16 * i];
}

/* Eight bytes by a load that stays where it is written: with others, and not behind a branch. */
DEVICE uint64_t filled_load(const void *from) {
    uint64_t x;
    asm volatile("ld.global.b64 %0, [%1];" : "=l"(x) : "l"(from) : "memory");
    return x;
}

/* An item, which may not be today's: it comes with the header. */
DEVICE struct work_item filled_first_item(const struct work_item *from) {
    union {
        uint64_t words[sizeof(struct work_item) / 8];
        struct work_item item;
    } x;
#pragma unroll
    for (int i = 0; i < (int)(sizeof x / 8); i++)
        x.words[i] = filled_load(reinterpret_cast<const uint64_t *>(from) + i);
    return x.item;
}

/* A count of the header, today's; 0 where this plan has not filled the image. */
DEVICE int64_t filled_count(const struct decode_params &p, const int64_t *of_header) {
    const struct fill_header *const header = p.image.header;
    const uint64_t magic = filled_load(&header->magic), layout = filled_load(&header->layout),
                   count = filled_load(of_header);
    return magic == FILL_MAGIC && layout == p.image.layout ? (int64_t)count : 0;
}
DEVICE int64_t filled_items(const struct decode_params &p) {
    return filled_count(p, &p.image.header->items);
}

/* Whether no fill of an equal plan made the image. */
DEVICE bool filled_foreign(const struct decode_params &p) {
    const struct fill_header *const header = p.image.header;
    return filled_load(&header->magic) != FILL_MAGIC ||
           filled_load(&header->layout) != p.image.layout;
}

/* Makes all of o and lse NaN, which a word of ones is in every type: what a run over a foreign image answers. A
 * CTA's threads 0 ... threads - 1 take part. Rows of o are whole 16-byte pieces. */
DEVICE void filled_store_nan(const struct decode_params &p, int thread, int threads) {
    const struct attention_params &run = p.run;
    const int64_t size = p.o_f32 ? 4 : 2;
#pragma unroll 1
    for (int64_t bh = blockIdx.x; bh < (int64_t)run.batch * run.heads_q; bh += gridDim.x) {
        const int32_t b = (int32_t)fill_quotient((uint32_t)bh, (uint32_t)run.heads_q);
        const int32_t h = (int32_t)bh - b * run.heads_q;
#pragma unroll 1
        for (int64_t n = thread; n < run.n_q; n += threads) {
            const struct rows_view &o = run.o, &lse = run.lse;
            char *const row = static_cast<char *>(o.data) +
                              size * (b * o.stride[0] + h * o.stride[1] + n * o.stride[2]);
#pragma unroll 1
            for (int64_t at = 0; at < size * run.d_v; at += 16)
                *reinterpret_cast<uint4 *>(row + at) = {~0u, ~0u, ~0u, ~0u};
            if (lse.data)
                static_cast<float *>(
                    lse.data)[b * lse.stride[0] + h * lse.stride[1] + n * lse.stride[2]] =
                    __uint_as_float(~0u);
        }
    }
}

#endif
