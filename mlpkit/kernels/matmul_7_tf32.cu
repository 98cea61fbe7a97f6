// C = A B on the tensor cores, with A and B rounded to TF32: float32's range, but 10 bits after the point instead of 23.
//
// One mma.sync instruction multiplies a 16 x 8 piece of A by an 8 x 8 piece of B, the 32 threads of a warp together: 1,024
// multiply-adds, for which 32 FFMA instructions would be needed. The sums are kept in float32. The price is precision:
// a product is right to about 3 digits, not 7. Rounding, not cutting: that halves the error, and NaN stays NaN.
//
// Each thread holds certain numbers of each piece: with g = lane / 4 and t = lane % 4,
//     A: (g, t), (g + 8, t), (g, t + 4), (g + 8, t + 4)     B: (t, g), (t + 4, g)     C: (g, 2t), (g, 2t + 1), and + 8
// ldmatrix brings all four of A at once: it hands 16 bytes of a row, four numbers, to four threads, one each.
//
// The ring of tiles and its copies are those of the last file; rows of B are 8 numbers longer than the tile is wide, so
// that four rows t and eight columns g lie in 32 different banks.
//
// What bounds it: mma.sync, an instruction of 2020, gets at most about 60 % of what Hopper's tensor cores can do. The
// rest is for wgmma, which reads its operands from shared memory itself, and which only sm_90a has.

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
#define STAGES 4
#endif
#ifndef BLOCKS
#define BLOCKS 1
#endif
#ifndef GROUP
#define GROUP 16
#endif

constexpr int WARPS_N = TILE_N / WARP_N;
constexpr int THREADS = TILE_M / WARP_M * WARPS_N * 32;
constexpr int PIECES_M = WARP_M / 16, PIECES_N = WARP_N / 8;  // of a warp's tile

struct Tiles {
    float A[TILE_M][DEPTH + 4];
    float B[DEPTH][TILE_N + 8];
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

inline unsigned tf32(float value)
{
    unsigned rounded;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(value));
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
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

extern "C" __global__ __launch_bounds__(THREADS, BLOCKS)
void matmul(const float* A, const float* B, float* C, int M, int N, int K)
{
    extern __shared__ __align__(16) char memory[];
    Tiles* ring = reinterpret_cast<Tiles*>(memory);
    bool A_aligned = aligned(A, K), B_aligned = aligned(B, N), C_aligned = (size_t)C % 8 == 0 && N % 2 == 0;

    int tiles_m = (M + TILE_M - 1) / TILE_M, tiles_n = (N + TILE_N - 1) / TILE_N;
    int group = blockIdx.x / (GROUP * tiles_n), in_group = blockIdx.x % (GROUP * tiles_n);
    int height = min(GROUP, tiles_m - group * GROUP);
    int first_row = (group * GROUP + in_group % height) * TILE_M, first_column = in_group / height * TILE_N;

    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int warp_row = warp / WARPS_N * WARP_M, warp_column = warp % WARPS_N * WARP_N;

    auto start = [&](int step) {
        Tiles& tiles = ring[step % STAGES];
        if (step * DEPTH < K) {
            fetch<TILE_M, DEPTH>(tiles.A, A, first_row, step * DEPTH, M, K, A_aligned);
            fetch<DEPTH, TILE_N>(tiles.B, B, step * DEPTH, first_column, K, N, B_aligned);
        }
        asm volatile("cp.async.commit_group;");
    };
    for (int step = 0; step < STAGES - 1; ++step) start(step);

    float total[PIECES_M][PIECES_N][4] = {};
    for (int step = 0; step * DEPTH < K; ++step) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        __syncthreads();
        start(step + STAGES - 1);
        const Tiles& tiles = ring[step % STAGES];
        #pragma unroll
        for (int k = 0; k < DEPTH; k += 8) {
            unsigned a[PIECES_M][4], b[PIECES_N][2];
            #pragma unroll
            for (int i = 0; i < PIECES_M; ++i) {
                load_matrices(a[i], &tiles.A[warp_row + 16 * i + lane % 16][k + lane / 16 * 4]);
                #pragma unroll
                for (int l = 0; l < 4; ++l) a[i][l] = tf32(__uint_as_float(a[i][l]));
            }
            #pragma unroll
            for (int j = 0; j < PIECES_N; ++j)
                #pragma unroll
                for (int l = 0; l < 2; ++l) b[j][l] = tf32(tiles.B[k + t + 4 * l][warp_column + 8 * j + g]);
            #pragma unroll
            for (int i = 0; i < PIECES_M; ++i)
                #pragma unroll
                for (int j = 0; j < PIECES_N; ++j) multiply_add(total[i][j], a[i], b[j]);
        }
    }

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
