// C = A B for a small C and a long K, as in the first layer of our network: 128 x 784 x 128.
//
// A tile of 128 x 128 would be all of C: one block, while an H200's other 131 multiprocessors have nothing to do. So tiles are small,
// 8 x 16, which makes 128 blocks; and within a block the steps of k are shared out, to WARPS warps and in each to 4
// groups of 8 threads. A thread adds up its own slice of K for 4 x 4 values of C. The 4 groups of a warp add their
// sums by exchanging registers (shuffles), the warps theirs through shared memory; always in the same order, so that
// the same product gives the same bits each time.
//
// Small tiles make poor use of what is fetched: 2 M N K / 10.7 values come from the L2 cache. For large matrices that
// is too much; here the whole of A and B fits there, and what counts is that all of it is asked for at once. No tile
// of A or B is kept in shared memory: the few threads that need the same values ask in the same instruction, or
// shortly after one another, when they are in the L1 cache.

#ifndef WARPS
#define WARPS 16
#endif
#ifndef AHEAD
#define AHEAD 1
#endif

constexpr int TILE_M = 8, TILE_N = 16;  // 2 x 4 threads, 4 x 4 values each
constexpr int SLICES = WARPS * 4;       // of K, in turns of 4 steps

static_assert(WARPS >= 1 && WARPS <= 32 && AHEAD >= 1, "a block has at most 32 warps");

inline bool aligned(const float* matrix, int columns) { return (size_t)matrix % 16 == 0 && columns % 4 == 0; }

// Load four neighbours from a row, 0 for those outside. No branch: loads that may or may not happen can be under way
// together, while what lies beyond a branch has to wait for it.
template <bool ALIGNED>
inline void load4(float (&to)[4], const float* matrix, int row, int column, int rows, int columns)
{
    const float* at = matrix + (size_t)row * columns + column;
    if (ALIGNED) {
        float4 four = {};
        if (row < rows && column < columns) four = *reinterpret_cast<const float4*>(at);
        to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
    } else {
        #pragma unroll
        for (int j = 0; j < 4; ++j) to[j] = row < rows && column + j < columns ? at[j] : 0;
    }
}

// Add to `total` what this thread's slices of k contribute to the 4 x 4 values of C from (row, column) on.
template <bool ALIGNED>
inline void add_slices(float (&total)[4][4], const float* A, const float* B, int row, int column, int slice,
                       int M, int N, int K)
{
    for (int start = slice * 4; start < K; start += SLICES * AHEAD * 4) {
        float a[AHEAD][4][4], b[AHEAD][4][4];
        #pragma unroll
        for (int step = 0; step < AHEAD; ++step)
            #pragma unroll
            for (int i = 0; i < 4; ++i) {
                int k = start + step * SLICES * 4;
                load4<ALIGNED>(a[step][i], A, row + i, k, M, K);
                load4<ALIGNED>(b[step][i], B, k + i, column, K, N);
            }
        #pragma unroll
        for (int step = 0; step < AHEAD; ++step)
            #pragma unroll
            for (int k = 0; k < 4; ++k)
                #pragma unroll
                for (int i = 0; i < 4; ++i)
                    #pragma unroll
                    for (int j = 0; j < 4; ++j) total[i][j] += a[step][i][k] * b[step][k][j];
    }
}

extern "C" __global__ __launch_bounds__(WARPS * 32)
void matmul(const float* A, const float* B, float* C, int M, int N, int K)
{
    __shared__ float sums[WARPS][TILE_M][TILE_N];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int slice = lane % 4, x = lane / 4 % 4 * 4, y = lane / 16 * 4;
    int first_row = blockIdx.y * TILE_M, first_column = blockIdx.x * TILE_N;

    float total[4][4] = {};
    if (aligned(A, K) && aligned(B, N))
        add_slices<true>(total, A, B, first_row + y, first_column + x, warp * 4 + slice, M, N, K);
    else
        add_slices<false>(total, A, B, first_row + y, first_column + x, warp * 4 + slice, M, N, K);

    #pragma unroll
    for (int i = 0; i < 4; ++i)
        #pragma unroll
        for (int j = 0; j < 4; ++j) {
            total[i][j] += __shfl_xor_sync(0xffffffff, total[i][j], 1);
            total[i][j] += __shfl_xor_sync(0xffffffff, total[i][j], 2);
            if (slice == j) sums[warp][y + i][x + j] = total[i][j];
        }
    __syncthreads();

    for (int i = threadIdx.x; i < TILE_M * TILE_N; i += WARPS * 32) {
        int row = first_row + i / TILE_N, column = first_column + i % TILE_N;
        float sum = 0;
        #pragma unroll
        for (int w = 0; w < WARPS; ++w) sum += sums[w][i / TILE_N][i % TILE_N];
        if (row < M && column < N) C[(size_t)row * N + column] = sum;
    }
}
