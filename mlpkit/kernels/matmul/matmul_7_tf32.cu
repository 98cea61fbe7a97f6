// C = A B on the tensor cores, with A and B rounded to TF32: float32's range, but 10 bits after the point instead of
// 23.
//
// needs sm_80
//
// One mma.sync instruction multiplies a 16 x 8 piece of A by an 8 x 8 piece of B, the 32 threads of a warp together:
// 1,024 multiply-adds, for which 32 FFMA instructions would be needed. The sums are kept in float32. The price is
// precision: a product is right to about 3 decimal digits, not 7. Rounding, not truncation: that halves the error,
// and NaN stays NaN.
//
// Each thread holds certain values of each piece: with g = lane / 4 and t = lane % 4,
//     A: (g, t), (g + 8, t), (g, t + 4), (g + 8, t + 4)     B: (t, g), (t + 4, g)     C: (g, 2t), (g, 2t + 1), and + 8
// ldmatrix brings all four of A at once: it hands 16 bytes of a row, four values, to four threads, one each.
//
// The ring of tiles is that of the last file. Rows of A are 4 values longer than its tile is wide, and those of B 8:
// so eight rows of A, and four rows t and eight columns g of B, lie in all 32 banks.
//
// What bounds it: mma.sync, an instruction of 2020 that gets only a part of what Hopper's tensor cores can do, and the road
// from shared memory to registers. It is not the L2 cache. At 4096 on an H200 this file asks it for 4.7 TB/s and the next
// for 5.1, and matmul_10_wgmma, with the same tile, gets 8.3. cuBLAS has wgmma, too, and blocks that share what they fetch.

#ifndef DEPTH
#define DEPTH 16
#endif
#ifndef STAGES
#define STAGES 5
#endif
#ifndef BLOCKS
#define BLOCKS 1
#endif
#include "tiles.cuh"

constexpr int PIECES_M = WARP_M / 16, PIECES_N = WARP_N / 8;  // of a warp's tile

static_assert(DEPTH % 16 == 0, "each step begins with the first of the two sets of a and b");

struct Tiles {
    float A[TILE_M][DEPTH + 4];
    float B[DEPTH][TILE_N + 8];
};

static_assert(STAGES >= 2 && STAGES * sizeof(Tiles) <= 227 << 10, "a block has at most 227 KiB of shared memory");

template <int ELEMENTS>
inline void multiply(Tiles* ring, const float* A, const float* B, float* C, int M, int N, int K)
{
    auto [first_row, first_column] = first_of_block(M, N);

    // This thread copies columns A_x, ... of A's tile in rows A_y, A_y + A_STEP, ..., and B likewise.
    constexpr int A_WIDTH = DEPTH / ELEMENTS, A_STEP = THREADS / A_WIDTH;
    constexpr int B_WIDTH = TILE_N / ELEMENTS, B_STEP = THREADS / B_WIDTH;
    static_assert(TILE_M % A_STEP == 0 && DEPTH % B_STEP == 0, "all threads copy as many elements");
    int A_x = threadIdx.x % A_WIDTH * ELEMENTS, A_y = threadIdx.x / A_WIDTH;
    int B_x = threadIdx.x % B_WIDTH * ELEMENTS, B_y = threadIdx.x / B_WIDTH;
    int A_rows = M - first_row - A_y, A_columns = K - A_x;  // so many are left, of A_columns fewer with each step,
    int B_rows = K - B_y, B_columns = N - first_column - B_x;  // and of B_rows
    const float* A_from = A + (size_t)(first_row + A_y) * K + A_x;
    const float* B_from = B + (size_t)B_y * N + first_column + B_x;
    auto start = [&](Tiles& tiles) {
        #pragma unroll
        for (int i = 0; i < TILE_M; i += A_STEP)
            cp_async<4 * ELEMENTS>(&tiles.A[A_y + i][A_x], A_from + (size_t)i * K, i < A_rows && A_columns > 0);
        #pragma unroll
        for (int i = 0; i < DEPTH; i += B_STEP)
            cp_async<4 * ELEMENTS>(&tiles.B[B_y + i][B_x], B_from + (size_t)i * N, i < B_rows && B_columns > 0);
        cp_async_commit_group();
        A_from += DEPTH, A_columns -= DEPTH;
        B_from += (size_t)DEPTH * N, B_rows -= DEPTH;
    };
    auto arrive = [] {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        __syncthreads();
    };

    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int warp_row = warp / WARPS_N * WARP_M, warp_column = warp % WARPS_N * WARP_N;
    unsigned a[2][PIECES_M][4], b[2][PIECES_N][2];
    float total[PIECES_M][PIECES_N][4] = {};
    auto load = [&](const Tiles& tiles, int k, int into) {
        #pragma unroll
        for (int i = 0; i < PIECES_M; ++i)
            ldmatrix_x4(a[into][i], &tiles.A[warp_row + 16 * i + lane % 16][k + lane / 16 * 4]);
        #pragma unroll
        for (int j = 0; j < PIECES_N; ++j)
            #pragma unroll
            for (int l = 0; l < 2; ++l)
                b[into][j][l] = __float_as_uint(tiles.B[k + t + 4 * l][warp_column + 8 * j + g]);
    };
    auto round = [&](int which) {
        #pragma unroll
        for (int i = 0; i < PIECES_M; ++i)
            #pragma unroll
            for (int l = 0; l < 4; ++l) a[which][i][l] = cvt_rna_tf32(__uint_as_float(a[which][i][l]));
        #pragma unroll
        for (int j = 0; j < PIECES_N; ++j)
            #pragma unroll
            for (int l = 0; l < 2; ++l) b[which][j][l] = cvt_rna_tf32(__uint_as_float(b[which][j][l]));
    };

    for (int slot = 0; slot < STAGES - 1; ++slot) start(ring[slot]);
    arrive();
    load(ring[0], 0, 0);
    for (int step = 0, slot = 0; step * DEPTH < K; ++step) {
        const Tiles& tiles = ring[slot];
        Tiles& last = ring[slot > 0 ? slot - 1 : STAGES - 1];
        slot = slot < STAGES - 1 ? slot + 1 : 0;
        #pragma unroll
        for (int k = 0; k < DEPTH; k += 8) {
            int now = k / 8 % 2;
            if (k == 0) start(last);
            if (k + 8 == DEPTH) arrive();
            load(k + 8 < DEPTH ? tiles : ring[slot], (k + 8) % DEPTH, 1 - now);
            round(now);
            #pragma unroll
            for (int i = 0; i < PIECES_M; ++i)
                #pragma unroll
                for (int j = 0; j < PIECES_N; ++j) mma_m16n8k8_tf32(total[i][j], a[now][i], b[now][j]);
        }
    }

    store_pieces(total, C, first_row + warp_row, first_column + warp_column, M, N);
}

extern "C" __global__ __launch_bounds__(THREADS, BLOCKS)
void matmul(const float* A, const float* B, float* C, int M, int N, int K)
{
    extern __shared__ __align__(16) char memory[];
    Tiles* ring = reinterpret_cast<Tiles*>(memory);
    if (aligned(A, K) && aligned(B, N)) multiply<4>(ring, A, B, C, M, N, K);
    else multiply<1>(ring, A, B, C, M, N, K);
}
