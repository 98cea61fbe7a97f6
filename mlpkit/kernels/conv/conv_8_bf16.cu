// The implicit product on tensor cores, with images and filters stored as bfloat16.
//
// needs sm_80
//
// Half the bytes, and an mma.sync instruction multiplies 16 x 16 by 16 x 8 values. ldmatrix brings a lane its pairs of
// neighbouring k. Filters lie with their columns side by side, and .trans transposes them on the way; in a weight
// gradient k are the pixels, and both operands lie transposed.
//
// Channels are stored up to the next multiple of 8, so that each copy of 16 bytes lies in one pixel: an image of one
// channel takes eight times its memory, and eight times the arithmetic. Results are rounded and leave by whole lines; a
// weight gradient stays float32.
//
// What bounds it: a block's beginning and end, for the steps in between take few microseconds; for many channels
// mma.sync, which gets 60 % of what wgmma does.

#include "ptx.cuh"

using Element = unsigned short;  // a bfloat16's 16 bits; only the tensor cores calculate with it
constexpr int PIECE_K = 16;     // k of an instruction

#include "implicit_cores.cuh"

inline void load_b(Pieces& pieces, const Element (*B)[TILE_N + 8], int column, int k)
{
    int lane = threadIdx.x % 32;
    #pragma unroll
    for (int j = 0; j < PIECES_N; j += 2) {
        Word pair[4];
        ldmatrix_x4_trans(pair, &B[k + lane % 16][column + 8 * j + lane / 16 * 8]);
        pieces.b[j][0] = pair[0], pieces.b[j][1] = pair[1], pieces.b[j + 1][0] = pair[2], pieces.b[j + 1][1] = pair[3];
    }
}

inline void load_pieces(Pieces& pieces, const Tiles& tiles, int row, int column, int k)
{
    int lane = threadIdx.x % 32;
    #pragma unroll
    for (int i = 0; i < PIECES_M; ++i)
        ldmatrix_x4(pieces.a[i], &tiles.A[row + 16 * i + lane % 16][k + lane / 16 * 8]);
    load_b(pieces, tiles.B, column, k);
}

// A lies transposed in memory: its four matrices are transposed back on the way.
inline void load_pieces(Pieces& pieces, const TransposedTiles& tiles, int row, int column, int k)
{
    int lane = threadIdx.x % 32;
    #pragma unroll
    for (int i = 0; i < PIECES_M; ++i)
        ldmatrix_x4_trans(pieces.a[i], &tiles.A[k + lane % 8 + lane / 16 * 8][row + 16 * i + lane / 8 % 2 * 8]);
    load_b(pieces, tiles.B, column, k);
}

inline void multiply_pieces(Totals& totals, const Pieces& pieces)
{
    #pragma unroll
    for (int i = 0; i < PIECES_M; ++i)
        #pragma unroll
        for (int j = 0; j < PIECES_N; ++j)
            mma_m16n8k16_bf16(totals[i][j], pieces.a[i], pieces.b[j][0], pieces.b[j][1]);
}

inline int transposed_row(int i, int half) { return 16 * i + 8 * half + threadIdx.x % 32 / 4; }

// A lane has columns 2t and 2t + 1 of each piece.
inline void store_pair(Element* at, float first, float second)
{
    *reinterpret_cast<Word*>(at) = cvt_rn_bf16x2(first, second);
}
inline void store_pair(float* at, float first, float second) { *reinterpret_cast<float2*>(at) = {first, second}; }

template <class Result>
inline void store_row(Result* row, const float (&totals)[PIECES_N][4], int half)
{
    #pragma unroll
    for (int j = 0; j < PIECES_N; ++j)
        store_pair(row + 8 * j + threadIdx.x % 4 * 2, totals[j][2 * half], totals[j][2 * half + 1]);
}
