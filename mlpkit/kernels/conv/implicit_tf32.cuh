// What a warp's lanes hold of a product of TF32 numbers, and how they fetch it from the tiles.

#include "ptx.cuh"

using Number = float;
constexpr int PIECE_K = 8;  // k of an instruction

inline void store_pair(float* at, const float* from) { *reinterpret_cast<float2*>(at) = {from[0], from[1]}; }

#include "implicit_cores.cuh"

// Tensor cores cut a float32 off after 10 bits. A little more than x, cut off, is x rounded: the factor is 1 + 2^-11.5,
// between half of the last bit's worth of the smallest mantissa and of the largest. What has 11 bits stays as it is.
// cvt.rna.tf32 rounds exactly, and takes two instructions, as it looks for NaN first.
inline Word rounded(float x) { return __float_as_uint(x * 1.00034526698f); }

// A lane holds (g, t), (g + 8, t), (g, t + 4), (g + 8, t + 4) of a piece of A, and (t, g), (t + 4, g) of one of B, with
// g = lane / 4 and t = lane % 4.
inline void load_b(Pieces& pieces, const float (*B)[TILE_N + 8], int column, int k)
{
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    #pragma unroll
    for (int j = 0; j < PIECES_N; ++j)
        #pragma unroll
        for (int l = 0; l < 2; ++l) pieces.b[j][l] = __float_as_uint(B[k + t + 4 * l][column + 8 * j + g]);
}

inline void load_pieces(Pieces& pieces, const Tiles& tiles, int row, int column, int k)
{
    int lane = threadIdx.x % 32;
    #pragma unroll
    for (int i = 0; i < PIECES_M; ++i)
        ldmatrix_x4(pieces.a[i], &tiles.A[row + 16 * i + lane % 16][k + lane / 16 * 4]);
    load_b(pieces, tiles.B, column, k);
}

inline void load_pieces(Pieces& pieces, const TurnedTiles& tiles, int row, int column, int k)
{
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    #pragma unroll
    for (int i = 0; i < PIECES_M; ++i)
        #pragma unroll
        for (int l = 0; l < 4; ++l)
            pieces.a[i][l] = __float_as_uint(tiles.A[k + t + l / 2 * 4][row + 16 * i + g + l % 2 * 8]);
    load_b(pieces, tiles.B, column, k);
}
