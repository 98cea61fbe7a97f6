// What the products with a ring of tiles share: the tiles' sizes, which tile of C a block has, and how tensor cores'
// sums get there.

#include "ptx.cuh"

#ifndef TILE_M
#define TILE_M 128
#define TILE_N 256
#define WARP_M 64
#define WARP_N 64
#endif
#ifndef GROUP
#define GROUP 8
#endif

constexpr int WARPS_N = TILE_N / WARP_N, WARPS = TILE_M / WARP_M * WARPS_N, THREADS = WARPS * 32;

static_assert(TILE_M % WARP_M == 0 && TILE_N % WARP_N == 0, "a block's tile is made up of its warps' tiles");
static_assert(THREADS <= 1024, "a block has at most 1024 threads");

inline bool aligned(const float* matrix, int columns) { return (size_t)matrix % 16 == 0 && columns % 4 == 0; }

struct Corner {
    int row, column;
};

// Blocks start in the order of their numbers: GROUP rows of tiles are taken together, column by column.
inline Corner first_of_block(int M, int N)
{
    int tiles_m = (M + TILE_M - 1) / TILE_M, tiles_n = (N + TILE_N - 1) / TILE_N;
    int group = blockIdx.x / (GROUP * tiles_n), in_group = blockIdx.x % (GROUP * tiles_n);
    int height = min(GROUP, tiles_m - group * GROUP);
    return {(group * GROUP + in_group % height) * TILE_M, in_group / height * TILE_N};
}

// Write a warp's pieces of 16 x 8 sums, the first at (row, column): a lane has two neighbours in each of two rows.
template <int PIECES_M, int PIECES_N>
inline void store_pieces(const float (&total)[PIECES_M][PIECES_N][4], float* C, int row, int column, int M, int N)
{
    bool C_aligned = (size_t)C % 8 == 0 && N % 2 == 0;
    row += threadIdx.x % 32 / 4, column += threadIdx.x % 4 * 2;
    #pragma unroll
    for (int i = 0; i < PIECES_M; ++i)
        #pragma unroll
        for (int j = 0; j < PIECES_N; ++j)
            #pragma unroll
            for (int half = 0; half < 2; ++half) {
                int y = row + 16 * i + 8 * half, x = column + 8 * j;
                if (y >= M) continue;
                float* at = C + (size_t)y * N + x;
                const float* from = total[i][j] + 2 * half;
                if (C_aligned && x < N) {
                    *reinterpret_cast<float2*>(at) = {from[0], from[1]};
                } else {
                    if (x < N) at[0] = from[0];
                    if (x + 1 < N) at[1] = from[1];
                }
            }
}
