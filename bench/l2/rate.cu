/*
 * How fast the L2 cache fills shared memory by TMA tile copies, as the attention kernels fetch, and how
 * much of that rate is left beside tensor cores: the bound of tiles that read every key for few queries.
 * README.md says how to run it and what the columns are.
 *
 * A CTA has a ring of tiles of KEYS rows. Each of its issuing warps fills every warps'th of them, by
 * boxes of `box` rows drawn at random. Without products a stage is free once it has arrived; with
 * them a warpgroup takes the tiles in turns for K and V, s = q K', o += 1 V, and frees them.
 */
#include "device/sm90/tma.cuh"
#include "device/sm90/tensor_map.cuh"
#include "device/sm90/wgmma.cuh"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

enum { STAGES_MAX = 16, PANEL_ROW = 128, Q_PANEL = 64 * PANEL_ROW };
/* Each CTA's own draws; the same draws for all; the same, begun anywhere. */
enum { OWN, SHARED, PHASE };

static void check(cudaError_t e) {
    if (e != cudaSuccess) {
        printf("%s\n", cudaGetErrorString(e));
        exit(1);
    }
}

/* n tiles a CTA, of one head after the other; boxes lie at multiples of their rows. */
struct walk {
    int n, heads, order, box, boxes; /* how many such places a head has */
};

__host__ __device__ static uint32_t draw(uint32_t a, uint32_t b) {
    uint32_t x = a * 0x9e3779b1u ^ (b + 0x7f4a7c15u) * 0x85ebca6bu;
    x = (x ^ x >> 15) * 0x2c1b3c6du;
    x = (x ^ x >> 12) * 0x297a2d39u;
    return x ^ x >> 15;
}
__host__ __device__ static int row_of(const walk &w, int cta, int tile, int piece, int *head) {
    const int each = w.n / w.heads;
    *head = tile / each;
    int at = tile % each;
    if (w.order == PHASE)
        at = (at + draw(cta + 1, ~0u) % each) % each;
    const uint32_t x = draw(w.order == OWN ? cta + 1 : 0, (*head * each + at) * 64 + piece);
    return (int)((uint64_t)x * w.boxes >> 32) * w.box;
}
/* Small whole numbers, whose sums are exact. */
__host__ __device__ static int value(int head, int row, int d) {
    return (int)(draw(row * 2 + head, d) % 5) - 2;
}

__global__ void fill(__nv_bfloat16 *x, int rows, int d, size_t all) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < all;
         i += (size_t)gridDim.x * blockDim.x)
        x[i] =
            __float2bfloat16((float)value((int)(i / d / rows), (int)(i / d % rows), (int)(i % d)));
}

template <int D, int KEYS, int CTAS>
__global__ void __launch_bounds__(256, CTAS)
    stream(const __grid_constant__ CUtensorMap map, walk w, int stages, int warps, float *out) {
    constexpr int PANELS = D / 64, STAGE = KEYS * D * 2, PANEL = KEYS * PANEL_ROW;
    const bool products = blockDim.x > 128; /* by the first warpgroup */
    extern __shared__ char memory[];
    __shared__ uint64_t full[STAGES_MAX], empty[STAGES_MAX], q_full;
    const uint32_t q = ((uint32_t)__cvta_generic_to_shared(memory) + 1023) & ~1023u,
                   ring = q + PANELS * Q_PANEL;
    const uint32_t full_at = (uint32_t)__cvta_generic_to_shared(full);
    const uint32_t empty_at = (uint32_t)__cvta_generic_to_shared(empty);
    const uint32_t q_at = (uint32_t)__cvta_generic_to_shared(&q_full);
    const int lane = threadIdx.x % 32, warp = sm90_uniform(threadIdx.x / 32) - (products ? 4 : 0);
    if (threadIdx.x == 0) {
        for (int i = 0; i < stages; i++) {
            barrier_init(full_at + 8 * i, 1);
            barrier_init(empty_at + 8 * i, 4);
        }
        barrier_init(q_at, 1);
        barrier_init_fence();
    }
    __syncthreads();
    if (warp >= 0) {
        if (CTAS > 1)
            registers_release<CTAS == 2 ? 40 : 32>();
        if (products && warp == 0 && lane == 0) {
            barrier_arrive_expect_tx(q_at, PANELS * Q_PANEL);
            for (int p = 0; p < PANELS; p++)
                for (int r = 0; r < 64; r += w.box)
                    tma_load(q + p * Q_PANEL + r * PANEL_ROW, &map, q_at, 64 * p, r, 0, 0,
                             TMA_EVICT_LAST);
        }
        const int pieces = KEYS / w.box;
        for (int i = warp; i < w.n && warp < warps; i += warps) {
            const int s = i % stages, round = i / stages;
            if (round > 0)
                barrier_wait((products ? empty_at : full_at) + 8 * s, (round - 1) & 1);
            if (lane == 0)
                barrier_arrive_expect_tx(full_at + 8 * s, STAGE);
            __syncwarp();
            for (int j = lane; j < pieces * PANELS; j += 32) {
                int head;
                const int piece = j / PANELS, p = j % PANELS,
                          row = row_of(w, blockIdx.x, i, piece, &head);
                tma_load(ring + s * STAGE + p * PANEL + piece * w.box * PANEL_ROW, &map,
                         full_at + 8 * s, 64 * p, row, head, 0, TMA_EVICT_LAST);
            }
        }
        for (int i = max(w.n - stages, 0); i < w.n; i++) /* no CTA ends before its copies */
            barrier_wait(full_at + 8 * (i % stages), (i / stages) & 1);
        return;
    }
    if (CTAS > 1)
        registers_claim<CTAS == 2 ? 216 : 128>();
    float s[KEYS / 2], o[D / 2];
    const uint32_t ones[4] = {0x3f803f80, 0x3f803f80, 0x3f803f80, 0x3f803f80};
    for (int i = 0; i < D / 2; i++)
        o[i] = 0;
    const __nv_bfloat16 type = __nv_bfloat16();
    barrier_wait(q_at, 0);
    int stage = 0, parity = 0, before = 0;
    for (int i = 0; i < w.n; i += 2) {
        barrier_wait(full_at + 8 * stage, parity);
        wgmma_fence_operand(s);
        wgmma_fence();
        const uint64_t on_q = wgmma_k_major(q), on_k = wgmma_k_major(ring + stage * STAGE);
#pragma unroll
        for (int k = 0; k < D / 16; k++)
            wgmma_ss(s, on_q + k / 4 * (Q_PANEL / 16) + k % 4 * 2,
                     on_k + k / 4 * (PANEL / 16) + k % 4 * 2, k != 0, type);
        wgmma_commit();
        wgmma_wait<1>(); /* V of before is read */
        if (i > 0 && lane == 0)
            barrier_arrive(empty_at + 8 * before);
        before = stage;
        parity ^= ++stage == stages;
        stage = stage == stages ? 0 : stage;

        barrier_wait(full_at + 8 * stage, parity);
        wgmma_fence_operand(o);
        wgmma_fence();
        const uint64_t on_v = wgmma_mn_major(ring + stage * STAGE, PANEL);
#pragma unroll
        for (int k = 0; k < KEYS / 16; k++)
            wgmma_rs(o, ones, on_v + k * (16 * PANEL_ROW / 16), 1, type);
        wgmma_commit();
        wgmma_wait<1>(); /* and so is K */
        if (lane == 0)
            barrier_arrive(empty_at + 8 * before);
        before = stage;
        parity ^= ++stage == stages;
        stage = stage == stages ? 0 : stage;
    }
    wgmma_wait<0>();
    wgmma_fence_operand(s);
    wgmma_fence_operand(o);
    if (out) {
        float *mine = out + (blockIdx.x * 128 + threadIdx.x) * (KEYS / 2 + D / 2);
        for (int i = 0; i < KEYS / 2; i++)
            mine[i] = s[i];
        for (int i = 0; i < D / 2; i++)
            mine[KEYS / 2 + i] = o[i];
    }
}

/* Whether a CTA's sums are those of the rows that it was to fetch. */
static bool right(const walk &w, const float *out, int cta, int d, int keys) {
    int head = 0, wrong = 0;
    std::vector<int> sum(d), last(keys);
    for (int i = 1; i < w.n; i += 2)
        for (int r = 0; r < keys; r++) {
            const int row = row_of(w, cta, i, r / w.box, &head) + r % w.box;
            for (int c = 0; c < d; c++)
                sum[c] += value(head, row, c);
        }
    for (int r = 0; r < keys; r++)
        last[r] = row_of(w, cta, w.n - 2, r / w.box, &head) + r % w.box;
    for (int t = 0; t < 128; t++)
        for (int i = 0; i < keys / 2 + d / 2; i++) {
            const int j = i < keys / 2 ? i : i - keys / 2;
            const int row = t / 32 * 16 + t % 32 / 4 + j % 4 / 2 * 8,
                      column = j / 4 * 8 + t % 4 * 2 + j % 2;
            int is = i < keys / 2 ? 0 : sum[column];
            for (int c = 0; i < keys / 2 && c < d; c++)
                is += value(0, row, c) * value(head, last[column], c);
            wrong += out[((size_t)cta * 128 + t) * (keys / 2 + d / 2) + i] != (float)is;
        }
    return wrong == 0;
}

static int sms, warps, bad;
static __nv_bfloat16 *data;
static float *sums;
static cudaEvent_t begin, end;

/* TB/s, median of seven launches after two. */
template <int D, int KEYS, int CTAS>
static double rate(int mb, int heads, int order, int box, int products) {
    const int rows = (mb << 20) / (D * 2), stage = KEYS * D * 2, grid = sms * CTAS;
    const int threads = 128 + 128 * products, room = (CTAS == 1 ? 208 : CTAS == 2 ? 100 : 66) << 10;
    /* A stage has one issuing warp: no warp may be two rounds ahead of another on the same stage. */
    const int stages = std::min((int)STAGES_MAX, (room - D * 128) / stage) / warps * warps;
    const int shared = D * 128 + stages * stage + 1024;
    const int n = (int)(2.5e9 / ((double)grid * stage)) / 2 * 2 * heads; /* of K and V in turns */
    const walk w = {n, heads, order, box, rows / box};
    const auto kernel = stream<D, KEYS, CTAS>;
    const int64_t size[4] = {1, heads, rows, D};
    CUtensorMap map;
    const struct rows_view of = {data, {(int64_t)heads * rows * D, (int64_t)rows * D, D}};
    if (!sm90_map_make(&map, sm90_encode_find(), CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, of, size, box))
        exit(1);
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    int resident;
    check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, threads, shared));
    if (resident < CTAS)
        return 0; /* not what the line says */
    std::vector<float> ms(9);
    for (float &x : ms) {
        check(cudaEventRecord(begin));
        kernel<<<grid, threads, shared>>>(map, w, stages, warps, &x == &ms[0] ? sums : NULL);
        check(cudaEventRecord(end));
        check(cudaEventSynchronize(end));
        check(cudaEventElapsedTime(&x, begin, end));
    }
    if (products && mb == 8) { /* once for each kernel, box and order is enough */
        std::vector<float> back((size_t)grid * 128 * (KEYS + D) / 2);
        check(cudaMemcpy(back.data(), sums, back.size() * 4, cudaMemcpyDeviceToHost));
        bad += !right(w, back.data(), grid - 1, D, KEYS);
    }
    std::sort(ms.begin() + 2, ms.end());
    return (double)grid * w.n * stage / ms[5] * 1e-9;
}

template <int D, int KEYS, int CTAS> static void table(int products) {
    for (int box : {64, 16, 8, 4}) {
        printf("%4d %4d %4d %4d %5s ", D, KEYS, CTAS, box, products ? "yes" : "no");
        for (int mb : {8, 24, 40, 56}) {
            const int heads = mb == 56 ? 2 : 1, rows = (mb << 20) / (D * 2);
            fill<<<1024, 256>>>(data, rows, D, (size_t)heads * rows * D);
            printf(" |");
            for (int order : {OWN, SHARED, PHASE})
                printf(" %5.2f", rate<D, KEYS, CTAS>(mb, heads, order, box, products));
        }
        printf("\n");
        fflush(stdout);
    }
}

template <int D> static void tables() {
    for (int products : {0, 1}) {
        table<D, 64, 1>(products);
        table<D, 64, 2>(products);
        if (D == 64) /* three of 128 dims have no registers for it */
            table<64, 64, 3>(products);
    }
    table<D, 128, 1>(1);
}

int main(int argc, char **argv) {
    warps = argc > 1 ? std::max(1, std::min(4, atoi(argv[1]))) : 4;
    cudaDeviceProp device;
    check(cudaGetDeviceProperties(&device, 0));
    sms = device.multiProcessorCount;
    check(cudaMalloc(&data, (size_t)2 * 56 << 20));
    check(cudaMalloc(&sums, (size_t)sms * 3 * 128 * 128 * 4));
    check(cudaEventCreate(&begin));
    check(cudaEventCreate(&end));
    printf("%s, %d issuing warps a CTA: TB/s of L2 to shared memory, three orders by working set: "
           "own, shared, phase\n",
           device.name, warps);
    printf("   D keys CTAs rows wgmma |        8 MB       |       24 MB       |       40 MB       "
           "|    56 MB, 2 heads\n");
    for (int i = 0; i < 100; i++) /* a card that has rested is faster than it will be */
        rate<128, 64, 1>(24, 1, OWN, 64, 1);
    tables<128>();
    tables<64>();
    printf("%s\n",
           bad ? "WRONG: products of other rows than those asked for" : "products are right");
    return bad != 0;
}
