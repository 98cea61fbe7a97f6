// The implicit product on tensor cores with float32's accuracy: each value is the sum of two TF32 values.
//
// x = high + low: high is x rounded to 11 bits, low what is left of it, of which the tensor cores take 11 bits more. A
// product is then high high + high low + low high; low low is too small to count. Three mma.sync for one, the small
// terms first.
//
// That alone does not give float32's accuracy. Tensor cores truncate what does not fit into a sum, and do not round:
// each addition loses a little, always towards zero, and over thousands of them the sums become too small, by 1e-5 of
// the result and more. So they add up one step's products only (FLUSH), and ordinary additions, which round, add these
// to the totals. The error is then float32's own.
//
// What bounds it: mma.sync, three times as many as in the last file. And yet it is faster than multiply-adds.

#ifndef FLUSH
#define FLUSH 1
#endif
#include "implicit_tf32.cuh"

struct Parts {
    Word high, low;
};

inline Parts split(Word bits)
{
    Word high = rounded(__uint_as_float(bits)) & ~0x1fffu;
    return {high, __float_as_uint(__uint_as_float(bits) - __uint_as_float(high))};
}

inline void multiply_pieces(Totals& totals, const Pieces& pieces)
{
    Word b_high[PIECES_N][2], b_low[PIECES_N][2];
    #pragma unroll
    for (int j = 0; j < PIECES_N; ++j)
        #pragma unroll
        for (int l = 0; l < 2; ++l) {
            Parts parts = split(pieces.b[j][l]);
            b_high[j][l] = parts.high, b_low[j][l] = parts.low;
        }
    #pragma unroll
    for (int i = 0; i < PIECES_M; ++i) {
        Word a_high[4], a_low[4];
        #pragma unroll
        for (int l = 0; l < 4; ++l) {
            Parts parts = split(pieces.a[i][l]);
            a_high[l] = parts.high, a_low[l] = parts.low;
        }
        #pragma unroll
        for (int j = 0; j < PIECES_N; ++j) mma_m16n8k8_tf32(totals[i][j], a_low, b_high[j]);
        #pragma unroll
        for (int j = 0; j < PIECES_N; ++j) mma_m16n8k8_tf32(totals[i][j], a_high, b_low[j]);
        #pragma unroll
        for (int j = 0; j < PIECES_N; ++j) mma_m16n8k8_tf32(totals[i][j], a_high, b_high[j]);
    }
}
