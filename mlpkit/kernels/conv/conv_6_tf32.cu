// The implicit product on tensor cores, with all operands rounded to TF32 on their way to them.
//
// The ring of tiles and the copies are those of the last file, for images stored pixel by pixel. From shared memory on
// it is the TF32 matrix product: mma.sync multiplies 16 x 8 by 8 x 8 values at a time.
//
// Arithmetic takes so little time now that other instructions count: per mma.sync a warp may have about six. Three
// things save some. Rounding takes one multiplication, and not cvt.rna's two instructions (see `rounded`). A lane loads
// its values of four pieces at once, as we choose which columns make up a piece. And the copies go through the
// multiprocessor's own cache, the L1: each pixel is in up to k k windows, and asks the L2 cache once and not k k times.
//
// What bounds it: for few channels the L2 cache and the beginning and end of each block, for many mma.sync itself, an
// instruction of 2020 that gets less than two thirds of what Hopper's tensor cores can do.

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
