// C = A B, with the next tiles on their way while these are multiplied, and registers in the right banks.
//
// needs sm_80
//
// cp.async copies from memory to shared memory with no register between, and without anybody waiting for it. Shared
// memory holds STAGES pairs of tiles, a ring: while one pair is multiplied, the next ones arrive. What a thread needs
// of the next k is loaded before this k is multiplied, also where that is in the next pair of tiles. So each step of
// DEPTH needs one barrier: it says that the next pair has arrived, and that nobody reads the one before any more.
//
// A block's tile is 128 x 256, a thread's 8 x 16: for each k it loads 24 elements, with 6 instructions, and does 128
// multiply-adds. The accumulators and what they need take so many registers that 8 warps fill a multiprocessor. That is
// enough: a thread has 128 accumulators that don't wait for each other.
//
// A's tile is transposed by copies of 4 bytes; rows that are 4 elements longer than the tile spread them over the
// banks.
//
// Registers have banks too: on the chips where others have measured it, Volta and Ampere, the even ones and the odd
// ones. A multiply-add reads three registers, and may be delayed where too many of them are in one bank; NVIDIA does
// not say when. One of the three may be kept from the instruction before, so the products go to and fro: down one
// column of the thread's tile, up the next. For the rest the compiler has to choose registers well, and must be free
// to. Values that one instruction loads or stores lie in registers that follow each other: b in an even, an odd, an
// even, an odd one. Were four totals stored in this way, each would be tied to the bank of its b, or to the other, in
// each of the K steps. So totals are stored one by one, to shared memory, and whole lines go from there to C.
//
// Blocks start in the order of their numbers. GROUP rows of tiles are taken together, column by column, so that the
// blocks that run at a time make up a patch of C that is about as high as it is wide, and find each other's A and B in
// the L2 cache.
//
// What bounds it now is the multiply-adds themselves, and the other instructions beside them. The next file has others
// do the arithmetic.

#ifndef DEPTH
#define DEPTH 8
#endif
#ifndef STAGES
#define STAGES 5
#endif
#include "tiles.cuh"

constexpr int LANES_M = 8, LANES_N = 4;                             // threads of a warp
constexpr int ROWS = WARP_M / LANES_M, COLUMNS = WARP_N / LANES_N;  // of a thread
constexpr int BLOCKS = 8 / WARPS;  // on a multiprocessor: tells the compiler how many registers there are

static_assert(DEPTH % 2 == 0, "each step begins with the first of the two sets of a and b");

struct Tiles {
    float A[DEPTH][TILE_M + 4];
    float B[DEPTH][TILE_N];
};

static_assert(ROWS % 4 == 0 && COLUMNS % 4 == 0, "a thread loads four elements at a time");
static_assert(STAGES >= 2 && STAGES * sizeof(Tiles) <= 227 << 10, "a block has at most 227 KiB of shared memory");
static_assert(WARPS * LANES_M * (WARP_N + 4) * sizeof(float) <= STAGES * sizeof(Tiles), "lines of C fit into the ring");

inline void load4(float* to, const float* from)
{
    float4 four = *reinterpret_cast<const float4*>(from);
    to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
}

// The epilogue: a warp's accumulators go to C, eight rows at a time by way of shared memory, which the tiles no longer
// need. rows: of this warp there. block, in_block: where the block's tile of C begins, and the warp's in it.
static __device__ __forceinline__ void store(const float (&total)[ROWS][COLUMNS], float (*rows)[WARP_N + 4], float* C,
                                             Corner block, Corner in_block, int M, int N, int lane, int lane_m,
                                             int lane_n)
{
    #pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        #pragma unroll
        for (int j = 0; j < COLUMNS; j += 4) {
            volatile float* at = &rows[lane_m][j * LANES_N + 4 * lane_n];  // volatile: not four at once
            #pragma unroll
            for (int l = 0; l < 4; ++l) at[l] = total[i][j + l];
        }
        __syncwarp();
        #pragma unroll
        for (int y = 0; y < LANES_M; ++y)
            #pragma unroll
            for (int x = lane; x < WARP_N; x += 32) {
                int row = block.row + in_block.row + i / 4 * 4 * LANES_M + 4 * y + i % 4;
                int column = block.column + in_block.column + x;
                if (row < M && column < N) C[(size_t)row * N + column] = rows[y][x];
            }
        __syncwarp();
    }
}

// ELEMENTS: elements of B, to copy at a time.
template <int ELEMENTS>
inline void multiply(Tiles* ring, const float* A, const float* B, float* C, int M, int N, int K)
{
    auto [first_row, first_column] = first_of_block(M, N);

    // This thread copies column A_x of A's tile in rows A_y, A_y + A_STEP, ..., and B likewise.
    constexpr int A_STEP = THREADS / DEPTH, B_STEP = THREADS / (TILE_N / ELEMENTS);
    static_assert(TILE_M % A_STEP == 0 && DEPTH % B_STEP == 0, "all threads copy as many elements");
    int A_x = threadIdx.x % DEPTH, A_y = threadIdx.x / DEPTH;
    int B_x = threadIdx.x % (TILE_N / ELEMENTS) * ELEMENTS, B_y = threadIdx.x / (TILE_N / ELEMENTS);
    int A_rows = M - first_row - A_y, A_columns = K - A_x;  // so many are left, of A_columns fewer with each step,
    int B_rows = K - B_y, B_columns = N - first_column - B_x;  // and of B_rows
    const float* A_from = A + (size_t)(first_row + A_y) * K + A_x;
    const float* B_from = B + (size_t)B_y * N + first_column + B_x;
    auto start = [&](Tiles& tiles) {
        #pragma unroll
        for (int i = 0; i < TILE_M; i += A_STEP)
            cp_async<4>(&tiles.A[A_x][A_y + i], A_from + (size_t)i * K, i < A_rows && A_columns > 0);
        #pragma unroll
        for (int i = 0; i < DEPTH; i += B_STEP)
            cp_async<4 * ELEMENTS>(&tiles.B[B_y + i][B_x], B_from + (size_t)i * N, i < B_rows && B_columns > 0);
        cp_async_commit_group();
        A_from += DEPTH, A_columns -= DEPTH;
        B_from += (size_t)DEPTH * N, B_rows -= DEPTH;
    };
    // Wait for all but the last so many groups of copies: one is started in each step.
    auto arrive = [] {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        __syncthreads();
    };

    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, lane_m = lane / LANES_N, lane_n = lane % LANES_N;
    int warp_row = warp / WARPS_N * WARP_M, warp_column = warp % WARPS_N * WARP_N;
    float a[2][ROWS], b[2][COLUMNS], total[ROWS][COLUMNS] = {};
    auto load = [&](const Tiles& tiles, int k, int into) {
        #pragma unroll
        for (int i = 0; i < ROWS; i += 4) load4(a[into] + i, &tiles.A[k][warp_row + i * LANES_M + 4 * lane_m]);
        #pragma unroll
        for (int j = 0; j < COLUMNS; j += 4) load4(b[into] + j, &tiles.B[k][warp_column + j * LANES_N + 4 * lane_n]);
    };

    for (int slot = 0; slot < STAGES - 1; ++slot) start(ring[slot]);
    arrive();
    load(ring[0], 0, 0);
    for (int step = 0, slot = 0; step * DEPTH < K; ++step) {
        const Tiles& tiles = ring[slot];
        Tiles& last = ring[slot > 0 ? slot - 1 : STAGES - 1];
        slot = slot < STAGES - 1 ? slot + 1 : 0;
        #pragma unroll
        for (int k = 0; k < DEPTH; ++k) {
            if (k == 0) start(last);
            if (k == DEPTH - 1) arrive();
            load(k < DEPTH - 1 ? tiles : ring[slot], (k + 1) % DEPTH, (k + 1) % 2);
            #pragma unroll
            for (int j = 0; j < COLUMNS; ++j)
                #pragma unroll
                for (int n = 0; n < ROWS; ++n) {
                    int i = j % 2 ? ROWS - 1 - n : n;  // to and fro
                    total[i][j] += a[k % 2][i] * b[k % 2][j];
                }
        }
    }

    cp_async_wait_all();
    __syncthreads();  // nobody needs the tiles any more
    float (*rows)[WARP_N + 4] = reinterpret_cast<float (*)[WARP_N + 4]>(ring) + warp * LANES_M;
    store(total, rows, C, {first_row, first_column}, {warp_row, warp_column}, M, N, lane, lane_m, lane_n);
}

extern "C" __global__ __launch_bounds__(THREADS, BLOCKS)
void matmul(const float* A, const float* B, float* C, int M, int N, int K)
{
    extern __shared__ __align__(16) char memory[];
    Tiles* ring = reinterpret_cast<Tiles*>(memory);
    if (aligned(B, N)) multiply<4>(ring, A, B, C, M, N, K);
    else multiply<1>(ring, A, B, C, M, N, K);
}
