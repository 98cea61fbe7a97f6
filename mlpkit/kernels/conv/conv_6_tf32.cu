// The implicit product on tensor cores, with all operands rounded to TF32 on their way to them.

#include "implicit_tf32.cuh"

inline void multiply_pieces(Totals& totals, const Pieces& pieces)
{
    Word b[PIECES_N][2];
    #pragma unroll
    for (int j = 0; j < PIECES_N; ++j)
        #pragma unroll
        for (int l = 0; l < 2; ++l) b[j][l] = rounded(__uint_as_float(pieces.b[j][l]));
    #pragma unroll
    for (int i = 0; i < PIECES_M; ++i) {
        Word a[4];
        #pragma unroll
        for (int l = 0; l < 4; ++l) a[l] = rounded(__uint_as_float(pieces.a[i][l]));
        #pragma unroll
        for (int j = 0; j < PIECES_N; ++j) mma_m16n8k8_tf32(totals[i][j], a, b[j]);
    }
}
