// C = A B on the tensor cores, with A and B rounded to TF32: float32's range, but 10 bits after the point instead of
// 23.
//
// One mma.sync instruction multiplies a 16 x 8 piece of A by an 8 x 8 piece of B, the 32 threads of a warp together:
// 1,024 multiply-adds, for which 32 FFMA instructions would be needed. The sums are kept in float32. The price is
// precision: a product is right to about 3 digits, not 7. Rounding, not cutting: that halves the error, and NaN stays
// NaN.
//
// Each thread holds certain numbers of each piece: with g = lane / 4 and t = lane % 4,
//     A: (g, t), (g + 8, t), (g, t + 4), (g + 8, t + 4)     B: (t, g), (t + 4, g)     C: (g, 2t), (g, 2t + 1), and + 8
// ldmatrix brings all four of A at once: it hands 16 bytes of a row, four numbers, to four threads, one each.
//
// The ring of tiles is that of the last file. Rows of A are 4 numbers longer than its tile is wide, and those of B 8:
// so eight rows of A, and four rows t and eight columns g of B, lie in all 32 banks.
//
// What bounds it, probably: arithmetic takes so little time now that the warps wait for the L2 cache. At 4096 on an H200
// this file asks for 4.7 TB/s, and the next for 5.1. Larger tiles would ask for less, but there are no registers for
// them. And mma.sync, an instruction of 2020, gets only a part of what Hopper's tensor cores can do: cuBLAS has wgmma, which
// only sm_90a has and which reads its operands from shared memory itself, and blocks that share what they fetch.

#ifndef TILE_M
#define TILE_M 128
#define TILE_N 256
#define WARP_M 64
#define WARP_N 64
#endif
#ifndef DEPTH
#define DEPTH 16
#endif
#ifndef STAGES
#define STAGES 5
#endif
#ifndef BLOCKS
#define BLOCKS 1
#endif
#ifndef GROUP
#define GROUP 8
#endif

constexpr int WARPS_N = TILE_N / WARP_N;
constexpr int THREADS = TILE_M / WARP_M * WARPS_N * 32;
constexpr int PIECES_M = WARP_M / 16, PIECES_N = WARP_N / 8;  // of a warp's tile

static_assert(DEPTH % 16 == 0, "each step begins with the first of the two sets of a and b");

struct Tiles {
    float A[TILE_M][DEPTH + 4];
    float B[DEPTH][TILE_N + 8];
};

inline bool aligned(const float* matrix, int columns) { return (size_t)matrix % 16 == 0 && columns % 4 == 0; }

// Start to copy so many neighbours, or to write as many zeros.
template <int NUMBERS>
inline void copy(float* to, const float* from, bool inside)
{
    unsigned address = __cvta_generic_to_shared(to);
    if (NUMBERS == 4)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(inside ? 16 : 0));
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address), "l"(from), "r"(inside ? 4 : 0));
}

inline unsigned tf32(unsigned bits)
{
    unsigned rounded;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(__uint_as_float(bits)));
    return rounded;
}

// Each thread names a row of 16 bytes: lanes 0 to 7 those of the first 8 x 16 bytes, lanes 8 to 15 of the second, ...
inline void load_matrices(unsigned (&to)[4], const void* row)
{
    unsigned address = __cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address));
}

inline void multiply_add(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2])
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

template <int NUMBERS>
inline void multiply(Tiles* ring, const float* A, const float* B, float* C, int M, int N, int K)
{
    int tiles_m = (M + TILE_M - 1) / TILE_M, tiles_n = (N + TILE_N - 1) / TILE_N;
    int group = blockIdx.x / (GROUP * tiles_n), in_group = blockIdx.x % (GROUP * tiles_n);
    int height = min(GROUP, tiles_m - group * GROUP);
    int first_row = (group * GROUP + in_group % height) * TILE_M, first_column = in_group / height * TILE_N;

    // This thread copies columns A_x, ... of A's tile in rows A_y, A_y + A_STEP, ..., and B likewise.
    constexpr int A_WIDTH = DEPTH / NUMBERS, A_STEP = THREADS / A_WIDTH;
    constexpr int B_WIDTH = TILE_N / NUMBERS, B_STEP = THREADS / B_WIDTH;
    int A_x = threadIdx.x % A_WIDTH * NUMBERS, A_y = threadIdx.x / A_WIDTH;
    int B_x = threadIdx.x % B_WIDTH * NUMBERS, B_y = threadIdx.x / B_WIDTH;
    int A_rows = M - first_row - A_y, A_columns = K - A_x;  // so many are left, of A_columns fewer with each step,
    int B_rows = K - B_y, B_columns = N - first_column - B_x;  // and of B_rows
    const float* A_from = A + (size_t)(first_row + A_y) * K + A_x;
    const float* B_from = B + (size_t)B_y * N + first_column + B_x;
    auto start = [&](Tiles& tiles) {
        #pragma unroll
        for (int i = 0; i < TILE_M; i += A_STEP)
            copy<NUMBERS>(&tiles.A[A_y + i][A_x], A_from + (size_t)i * K, i < A_rows && A_columns > 0);
        #pragma unroll
        for (int i = 0; i < DEPTH; i += B_STEP)
            copy<NUMBERS>(&tiles.B[B_y + i][B_x], B_from + (size_t)i * N, i < B_rows && B_columns > 0);
        asm volatile("cp.async.commit_group;");
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
            load_matrices(a[into][i], &tiles.A[warp_row + 16 * i + lane % 16][k + lane / 16 * 4]);
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
            for (int l = 0; l < 4; ++l) a[which][i][l] = tf32(a[which][i][l]);
        #pragma unroll
        for (int j = 0; j < PIECES_N; ++j)
            #pragma unroll
            for (int l = 0; l < 2; ++l) b[which][j][l] = tf32(b[which][j][l]);
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
                for (int j = 0; j < PIECES_N; ++j) multiply_add(total[i][j], a[now][i], b[now][j]);
        }
    }

    bool C_aligned = (size_t)C % 8 == 0 && N % 2 == 0;
    #pragma unroll
    for (int i = 0; i < PIECES_M; ++i)
        #pragma unroll
        for (int j = 0; j < PIECES_N; ++j)
            #pragma unroll
            for (int half = 0; half < 2; ++half) {
                int row = first_row + warp_row + 16 * i + 8 * half + g;
                int column = first_column + warp_column + 8 * j + 2 * t;
                if (row >= M) continue;
                float* at = C + (size_t)row * N + column;
                const float* from = total[i][j] + 2 * half;
                if (C_aligned && column < N) {
                    *reinterpret_cast<float2*>(at) = {from[0], from[1]};
                } else {
                    if (column < N) at[0] = from[0];
                    if (column + 1 < N) at[1] = from[1];
                }
            }
}

extern "C" __global__ __launch_bounds__(THREADS, BLOCKS)
void matmul(const float* A, const float* B, float* C, int M, int N, int K)
{
    extern __shared__ __align__(16) char memory[];
    Tiles* ring = reinterpret_cast<Tiles*>(memory);
    if (aligned(A, K) && aligned(B, N)) multiply<4>(ring, A, B, C, M, N, K);
    else multiply<1>(ring, A, B, C, M, N, K);
}
