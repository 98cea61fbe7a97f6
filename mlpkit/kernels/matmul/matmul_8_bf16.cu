// C = A B on the tensor cores, with A and B stored as bfloat16: float32's sign and exponent, and 7 bits after the
// point.
//
// needs sm_80
//
// Half the bytes, and twice the arithmetic: a mma.sync instruction now multiplies 16 x 16 by 16 x 8 values, 2,048
// multiply-adds. A product is right to about 2 decimal digits; sums are still kept in float32, and so is C.
//
// Someone has to round A and B first. `round_rows` does, in a pass of its own, and gives each row zeros at its end up
// to a multiple of 8 values: then every row begins at a multiple of 16 bytes, whatever K and N are. In a training
// whose weights and activations are kept in bfloat16 that pass is not needed.
//
// Threads hold pairs of values that are neighbours in k. Those of A lie side by side in memory, those of B one below
// the other: ldmatrix with .trans transposes each 8 x 8 piece on the way. Rows in shared memory are 8 values longer
// than the tiles are wide, so that eight rows begin in different banks.
//
// What bounds it is what bounded the last file.

#ifndef DEPTH
#define DEPTH 64
#endif
#ifndef STAGES
#define STAGES 3
#endif
#ifndef BLOCKS
#define BLOCKS 1
#endif
#include "tiles.cuh"

constexpr int PIECES_M = WARP_M / 16, PIECES_N = WARP_N / 8;  // of a warp's tile

using bf16 = unsigned short;  // its 16 bits; only the tensor cores calculate with it

static_assert(DEPTH % 32 == 0, "each step begins with the first of the two sets of a and b");

struct Tiles {
    bf16 A[TILE_M][DEPTH + 8];
    bf16 B[DEPTH][TILE_N + 8];
};

static_assert(STAGES >= 2 && STAGES * sizeof(Tiles) <= 227 << 10, "a block has at most 227 KiB of shared memory");

inline int padded(int columns) { return (columns + 7) / 8 * 8; }

// Write a float32 matrix as bfloat16, rounded to the nearest; the rows of `to` have `padded(columns)` values.
extern "C" __global__ void round_rows(const float* from, bf16* to, int rows, int columns)
{
    size_t width = padded(columns), all = gridDim.x * blockDim.x;
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < rows * width; i += all) {
        size_t row = i / width, column = i % width;
        to[i] = cvt_rn_bf16(column < columns ? from[row * columns + column] : 0);
    }
}

extern "C" __global__ __launch_bounds__(THREADS, BLOCKS)
void matmul(const bf16* A, const bf16* B, float* C, int M, int N, int K)
{
    extern __shared__ __align__(16) char memory[];
    Tiles* ring = reinterpret_cast<Tiles*>(memory);
    auto [first_row, first_column] = first_of_block(M, N);

    // This thread copies columns A_x, ... of A's tile in rows A_y, A_y + A_STEP, ..., and B likewise.
    constexpr int A_WIDTH = DEPTH / 8, A_STEP = THREADS / A_WIDTH;
    constexpr int B_WIDTH = TILE_N / 8, B_STEP = THREADS / B_WIDTH;
    static_assert(TILE_M % A_STEP == 0 && DEPTH % B_STEP == 0, "all threads copy as many elements");
    int A_x = threadIdx.x % A_WIDTH * 8, A_y = threadIdx.x / A_WIDTH;
    int B_x = threadIdx.x % B_WIDTH * 8, B_y = threadIdx.x / B_WIDTH;
    int A_rows = M - first_row - A_y, A_columns = K - A_x;  // so many are left, of A_columns fewer with each step,
    int B_rows = K - B_y, B_columns = N - first_column - B_x;  // and of B_rows
    int A_stride = padded(K), B_stride = padded(N);
    const bf16* A_from = A + (size_t)(first_row + A_y) * A_stride + A_x;
    const bf16* B_from = B + (size_t)B_y * B_stride + first_column + B_x;
    auto start = [&](Tiles& tiles) {
        #pragma unroll
        for (int i = 0; i < TILE_M; i += A_STEP)
            cp_async<16>(&tiles.A[A_y + i][A_x], A_from + (size_t)i * A_stride, i < A_rows && A_columns > 0);
        #pragma unroll
        for (int i = 0; i < DEPTH; i += B_STEP)
            cp_async<16>(&tiles.B[B_y + i][B_x], B_from + (size_t)i * B_stride, i < B_rows && B_columns > 0);
        cp_async_commit_group();
        A_from += DEPTH, A_columns -= DEPTH;
        B_from += (size_t)DEPTH * B_stride, B_rows -= DEPTH;
    };
    auto arrive = [] {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        __syncthreads();
    };

    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int warp_row = warp / WARPS_N * WARP_M, warp_column = warp % WARPS_N * WARP_N;
    unsigned a[2][PIECES_M][4], b[2][PIECES_N / 2][4];
    float total[PIECES_M][PIECES_N][4] = {};
    auto load = [&](const Tiles& tiles, int k, int into) {
        #pragma unroll
        for (int i = 0; i < PIECES_M; ++i)
            ldmatrix_x4(a[into][i], &tiles.A[warp_row + 16 * i + lane % 16][k + lane / 16 * 8]);
        #pragma unroll
        for (int j = 0; j < PIECES_N / 2; ++j)
            ldmatrix_x4_trans(b[into][j], &tiles.B[k + lane % 16][warp_column + 16 * j + lane / 16 * 8]);
    };

    for (int slot = 0; slot < STAGES - 1; ++slot) start(ring[slot]);
    arrive();
    load(ring[0], 0, 0);
    for (int step = 0, slot = 0; step * DEPTH < K; ++step) {
        const Tiles& tiles = ring[slot];
        Tiles& last = ring[slot > 0 ? slot - 1 : STAGES - 1];
        slot = slot < STAGES - 1 ? slot + 1 : 0;
        #pragma unroll
        for (int k = 0; k < DEPTH; k += 16) {
            int now = k / 16 % 2;
            if (k == 0) start(last);
            if (k + 16 == DEPTH) arrive();
            load(k + 16 < DEPTH ? tiles : ring[slot], (k + 16) % DEPTH, 1 - now);
            #pragma unroll
            for (int i = 0; i < PIECES_M; ++i)
                #pragma unroll
                for (int j = 0; j < PIECES_N; ++j)
                    mma_m16n8k16_bf16(total[i][j], a[now][i], b[now][j / 2][j % 2 * 2], b[now][j / 2][j % 2 * 2 + 1]);
        }
    }

    store_pieces(total, C, first_row + warp_row, first_column + warp_column, M, N);
}
