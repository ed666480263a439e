/*
 * Philox4x32-7 from its definition (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as
 * 1, 2, 3, 2011), and the words that dropout draws by it (docs/semantics.md, "Dropout").
 */
#ifndef LAB_PHILOX_H
#define LAB_PHILOX_H

#include <stdint.h>

static inline void lab_philox(uint32_t c[4], uint64_t seed) {
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 7; round++) {
        const uint64_t a = UINT64_C(0xD2511F53) * c[0], b = UINT64_C(0xCD9E8D57) * c[2];
        const uint32_t next[4] = {(uint32_t)(b >> 32) ^ c[1] ^ k0, (uint32_t)b,
                                  (uint32_t)(a >> 32) ^ c[3] ^ k1, (uint32_t)a};
        for (int i = 0; i < 4; i++)
            c[i] = next[i];
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

/* The 16 bits of query i and key j of a head, in whole-problem numbers. */
static inline uint32_t lab_draw(uint64_t seed, uint32_t head, uint32_t i, uint32_t j) {
    uint32_t c[4] = {j / 16, i / 16, head, 4 * (i % 8) + j % 8 / 2};
    lab_philox(c, seed);
    const uint32_t word = 4 * (i / 8 % 2) + 2 * (j / 8 % 2) + j % 2;
    return c[word / 2] >> (word % 2 * 16) & 0xffff;
}

#endif
