/* Decode: what kernels begin with. They wait for the one before, fetch parameters, and read header and first item. */
#ifndef TESSERA_CUDA_DECODE_BEGIN_CUH
#define TESSERA_CUDA_DECODE_BEGIN_CUH

#include "decode/config.cuh"
#include "device/architecture.cuh"

/* Programmatic dependent launch, sm_90 and later: a kernel may take room that the one before leaves, and waits there
 * until that has ended and its writes are visible. Kernels of a run wait before they let the next one begin: that one
 * may then read what the fill has written before it waits itself. */
static __device__ __forceinline__ void decode_early(void) {
#if ARCHITECTURE_CLUSTERS
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
static __device__ __forceinline__ void decode_wait(void) {
#if ARCHITECTURE_CLUSTERS
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Fetches a kernel's parameters, a word of each 64 bytes: constants that are looked up one after another come from L2
 * each time. They go to `memory`, as loads that nobody uses are not made. */
static __device__ __forceinline__ void decode_fetch(const struct decode_params &p, char *memory) {
    const uint32_t *const words = reinterpret_cast<const uint32_t *>(&p);
    for (uint32_t i = threadIdx.x / 32; i < sizeof p / 64; i += blockDim.x / 32)
        reinterpret_cast<volatile uint32_t *>(memory)[i] = words[16 * i];
}

/* Eight bytes by a load that stays where it is written: with others, and not behind a branch. */
static __device__ __forceinline__ uint64_t decode_load_here(const void *from) {
    uint64_t x;
    asm volatile("ld.global.b64 %0, [%1];" : "=l"(x) : "l"(from) : "memory");
    return x;
}

/* An item, which may not be today's: it comes with the header. */
static __device__ __forceinline__ struct work_item decode_first_item(const struct work_item *from) {
    union {
        uint64_t words[sizeof(struct work_item) / 8];
        struct work_item item;
    } x;
#pragma unroll
    for (int i = 0; i < (int)(sizeof x / 8); i++)
        x.words[i] = decode_load_here(reinterpret_cast<const uint64_t *>(from) + i);
    return x.item;
}

/* A count of the header, today's; 0 where this plan has not filled the image. */
static __device__ __forceinline__ int64_t decode_count(const struct decode_params &p,
                                                       const int64_t *of_header) {
    const struct fill_header *const header = p.image.header;
    const uint64_t magic = decode_load_here(&header->magic),
                   layout = decode_load_here(&header->layout), count = decode_load_here(of_header);
    return magic == FILL_MAGIC && layout == p.image.layout ? (int64_t)count : 0;
}
static __device__ __forceinline__ int64_t decode_items(const struct decode_params &p) {
    return decode_count(p, &p.image.header->items);
}

#endif
