// What a warp's lanes hold of a product of TF32 values, and how they fetch it from the tiles.

#include "ptx.cuh"

using Element = float;
constexpr int PIECE_K = 8;  // k of an instruction

#include "implicit_cores.cuh"

// Tensor cores truncate a float32 after 10 bits. A little more than x, truncated, is x rounded, nearly: the factor is
// 1 + 2^-11.5, between half of the last bit's worth of the smallest mantissa and of the largest, and the error at most
// 0.71 of that bit, not 0.5. What has 11 bits stays as it is.
// cvt.rna.tf32 rounds exactly, and takes two instructions, as it looks for NaN first.
inline Word rounded(float x) { return __float_as_uint(x * 1.00034526698f); }

// A lane holds (g, t), (g + 8, t), (g, t + 4), (g + 8, t + 4) of a piece of A, and (t, g), (t + 4, g) of one of B, with
// g = lane / 4 and t = lane % 4. Which columns of the tile make up a piece is ours to say. So that a lane finds its
// values of four pieces side by side and loads them at once, piece j has columns j, 4 + j, 8 + j, ...; and where A
// lies transposed, two pieces of 16 rows share 32 rows in the same way.
constexpr int B_PIECES = PIECES_N % 4 ? 2 : 4, A_PIECES = PIECES_M % 2 ? 1 : 2;  // that are loaded at once

template <int ELEMENTS>
inline void load_words(Word (&to)[ELEMENTS], const float* from)
{
    if constexpr (ELEMENTS == 4) {
        float4 four = *reinterpret_cast<const float4*>(from);
        to[0] = __float_as_uint(four.x), to[1] = __float_as_uint(four.y);
        to[2] = __float_as_uint(four.z), to[3] = __float_as_uint(four.w);
    } else {
        float2 two = *reinterpret_cast<const float2*>(from);
        to[0] = __float_as_uint(two.x), to[1] = __float_as_uint(two.y);
    }
}

inline void load_b(Pieces& pieces, const float (*B)[TILE_N + 8], int column, int k)
{
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    #pragma unroll
    for (int j = 0; j < PIECES_N; j += B_PIECES)
        #pragma unroll
        for (int l = 0; l < 2; ++l) {
            Word words[B_PIECES];
            load_words(words, &B[k + t + 4 * l][column + 8 * j + B_PIECES * g]);
            #pragma unroll
            for (int n = 0; n < B_PIECES; ++n) pieces.b[j + n][l] = words[n];
        }
}

inline void load_pieces(Pieces& pieces, const Tiles& tiles, int row, int column, int k)
{
    int lane = threadIdx.x % 32;
    #pragma unroll
    for (int i = 0; i < PIECES_M; ++i)
        ldmatrix_x4(pieces.a[i], &tiles.A[row + 16 * i + lane % 16][k + lane / 16 * 4]);
    load_b(pieces, tiles.B, column, k);
}

inline int transposed_row(int i, int half)
{
    return 16 * (i - i % A_PIECES) + 2 * A_PIECES * (threadIdx.x % 32 / 4) + i % A_PIECES * 2 + half;
}

inline void load_pieces(Pieces& pieces, const TransposedTiles& tiles, int row, int column, int k)
{
    int t = threadIdx.x % 4;
    #pragma unroll
    for (int i = 0; i < PIECES_M; i += A_PIECES)
        #pragma unroll
        for (int l = 0; l < 2; ++l) {
            Word words[2 * A_PIECES];
            load_words(words, &tiles.A[k + t + 4 * l][row + transposed_row(i, 0)]);
            #pragma unroll
            for (int n = 0; n < 2 * A_PIECES; ++n) pieces.a[i + n / 2][2 * l + n % 2] = words[n];
        }
    load_b(pieces, tiles.B, column, k);
}

// A lane has columns 2t and 2t + 1 of each piece.
template <class Result>
inline void store_row(Result* row, const float (&totals)[PIECES_N][4], int half)
{
    #pragma unroll
    for (int j = 0; j < PIECES_N; j += B_PIECES)
        #pragma unroll
        for (int l = 0; l < 2; ++l) {
            float* at = row + 8 * j + B_PIECES * (threadIdx.x % 4 * 2 + l);
            int n = 2 * half + l;
            if constexpr (B_PIECES == 4) {
                *reinterpret_cast<float4*>(at) = {totals[j][n], totals[j + 1][n], totals[j + 2][n], totals[j + 3][n]};
            } else {
                *reinterpret_cast<float2*>(at) = {totals[j][n], totals[j + 1][n]};
            }
        }
}
