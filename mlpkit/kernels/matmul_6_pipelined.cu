// C = A B, with the next tiles on their way while these are multiplied, and no two threads at the same bank.
//
// cp.async copies from memory to shared memory with no register between, and without anybody waiting for it. Shared
// memory holds STAGES pairs of tiles, a ring: while one pair is multiplied, the next ones arrive. A step of the loop needs
// one barrier instead of two: when all threads have come to it, the pair of the step before is free to be overwritten.
//
// A copy can't turn A's tile, and need not: a thread loads four neighbours of a row of A, which are four steps of k, for
// each of its 8 rows: as many loads as from a turned tile. Eight threads read eight rows at once; rows that are DEPTH + 4
// numbers long make these begin in different banks, four banks apart or a multiple of that.
//
// A warp's tile is 64 x 64, so a thread's is 8 x 16: for each k it loads 24 numbers, with 6 instructions, and does 128
// multiply-adds. Those totals and what they need take most of the 255 registers a thread can have, so only 2 blocks of 4
// warps fit on a multiprocessor. That is enough: a thread has 128 sums that don't wait for each other.
//
// Blocks start in the order of their numbers. GROUP rows of tiles are taken together, column by column, so that the
// blocks that run at a time make up a patch of C as high as it is wide, and find each other's A and B in the L2 cache.
//
// What bounds it now is the multiply-adds themselves: only other hardware is faster. See the next file.

#ifndef TILE_M
#define TILE_M 128
#define TILE_N 128
#define WARP_M 64
#define WARP_N 64
#endif
#ifndef DEPTH
#define DEPTH 16
#endif
#ifndef STAGES
#define STAGES 3
#endif
#ifndef BLOCKS
#define BLOCKS 2
#endif
#ifndef LANES_M
#define LANES_M 8
#endif
#ifndef GROUP
#define GROUP 16
#endif
#ifndef LANE_ORDER
#define LANE_ORDER 0
#endif

constexpr int LANES_N = 32 / LANES_M;
constexpr int ROWS = WARP_M / LANES_M, COLUMNS = WARP_N / LANES_N;  // of a thread
constexpr int WARPS_N = TILE_N / WARP_N;
constexpr int THREADS = TILE_M / WARP_M * WARPS_N * 32;

struct Tiles {
    float A[TILE_M][DEPTH + 4];
    float B[DEPTH][TILE_N];
};

inline bool aligned(const float* matrix, int columns) { return (size_t)matrix % 16 == 0 && columns % 4 == 0; }

inline void copy16(float* to, const float* from, int bytes = 16)  // the rest of the 16 bytes become 0
{
    unsigned address = __cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(bytes));
}

inline void copy4(float* to, const float* from, int bytes)
{
    unsigned address = __cvta_generic_to_shared(to);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address), "l"(from), "r"(bytes));
}

// Start to copy a tile of HEIGHT x WIDTH numbers; those outside of the matrix become 0.
template <int HEIGHT, int WIDTH, int STRIDE>
inline void fetch(float (*tile)[STRIDE], const float* matrix, int row, int column, int rows, int columns, bool aligned)
{
    constexpr int PIECES = WIDTH / 4, STEP = THREADS / PIECES;
    int y = threadIdx.x / PIECES, x = threadIdx.x % PIECES * 4;
    const float* from = matrix + (size_t)(row + y) * columns + column + x;
    if (aligned && row + HEIGHT <= rows && column + WIDTH <= columns) {
        #pragma unroll
        for (int i = 0; i < HEIGHT; i += STEP) copy16(&tile[y + i][x], from + (size_t)i * columns);
        return;
    }
    for (int i = 0; i < HEIGHT; i += STEP) {
        int inside = row + y + i < rows ? min(max(columns - column - x, 0), 4) : 0;
        if (aligned) {
            copy16(&tile[y + i][x], inside ? from + (size_t)i * columns : matrix, 4 * inside);
        } else {
            for (int j = 0; j < 4; ++j)
                copy4(&tile[y + i][x + j], j < inside ? from + (size_t)i * columns + j : matrix, j < inside ? 4 : 0);
        }
    }
}

inline void load4(float* to, const float* from)
{
    float4 four = *reinterpret_cast<const float4*>(from);
    to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
}

extern "C" __global__ __launch_bounds__(THREADS, BLOCKS)
void matmul(const float* A, const float* B, float* C, int M, int N, int K)
{
    extern __shared__ __align__(16) char memory[];
    Tiles* ring = reinterpret_cast<Tiles*>(memory);
    bool A_aligned = aligned(A, K), B_aligned = aligned(B, N), C_aligned = aligned(C, N);

    int tiles_m = (M + TILE_M - 1) / TILE_M, tiles_n = (N + TILE_N - 1) / TILE_N;
    int group = blockIdx.x / (GROUP * tiles_n), in_group = blockIdx.x % (GROUP * tiles_n);
    int height = min(GROUP, tiles_m - group * GROUP);
    int first_row = (group * GROUP + in_group % height) * TILE_M, first_column = in_group / height * TILE_N;

    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int lane_m = LANE_ORDER ? lane % LANES_M : lane / LANES_N, lane_n = LANE_ORDER ? lane / LANES_M : lane % LANES_N;
    int own_row = warp / WARPS_N * WARP_M + lane_m, own_column = warp % WARPS_N * WARP_N + lane_n * 4;

    auto start = [&](int step) {
        Tiles& tiles = ring[step % STAGES];
        if (step * DEPTH < K) {
            fetch<TILE_M, DEPTH>(tiles.A, A, first_row, step * DEPTH, M, K, A_aligned);
            fetch<DEPTH, TILE_N>(tiles.B, B, step * DEPTH, first_column, K, N, B_aligned);
        }
        asm volatile("cp.async.commit_group;");  // an empty group too: what is waited for is a number of groups
    };
    for (int step = 0; step < STAGES - 1; ++step) start(step);

    float total[ROWS][COLUMNS] = {};
    for (int step = 0; step * DEPTH < K; ++step) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");  // all but the last so many groups are here
        __syncthreads();
        start(step + STAGES - 1);
        const Tiles& tiles = ring[step % STAGES];
        #pragma unroll
        for (int k = 0; k < DEPTH; k += 4) {
            float a[ROWS][4];
            #pragma unroll
            for (int i = 0; i < ROWS; ++i) load4(a[i], &tiles.A[own_row + i * LANES_M][k]);
            #pragma unroll
            for (int l = 0; l < 4; ++l) {
                float b[COLUMNS];
                #pragma unroll
                for (int j = 0; j < COLUMNS; j += 4) load4(b + j, &tiles.B[k + l][own_column + j * LANES_N]);
                #pragma unroll
                for (int i = 0; i < ROWS; ++i)
                    #pragma unroll
                    for (int j = 0; j < COLUMNS; ++j) total[i][j] += a[i][l] * b[j];
            }
        }
    }

    #pragma unroll
    for (int i = 0; i < ROWS; ++i)
        #pragma unroll
        for (int j = 0; j < COLUMNS; j += 4) {
            int row = first_row + own_row + i * LANES_M, column = first_column + own_column + j * LANES_N;
            if (row >= M) continue;
            float* at = C + (size_t)row * N + column;
            if (C_aligned && column < N) {
                *reinterpret_cast<float4*>(at) = {total[i][j], total[i][j + 1], total[i][j + 2], total[i][j + 3]};
            } else {
                #pragma unroll
                for (int l = 0; l < 4; ++l)
                    if (column + l < N) at[l] = total[i][j + l];
            }
        }
}
