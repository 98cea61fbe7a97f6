// C = A B, with a tile of C in each thread's registers: 8 x 8 values, in a block's tile of 128 x 128.
//
// For each k a thread loads 8 values of A and 8 of B from shared memory, and does all 64 products of the two: 4
// multiply-adds a load, where the last file's text has half a one. The 64 totals stay in registers from first to last.
// Nothing is faster than a register, but they have no addresses: every index into `total` has to be known when this is
// compiled, so the loops over it are unrolled.
//
// The block's tile is larger as well, so memory and caches bring a quarter of what they brought for tiles of 32 x 32:
// 2 M N K / 128 values.
//
// Neighbouring threads take neighbouring rows and columns, and the next ones of a thread follow 16 further on: so the
// threads of a warp read neighbours in shared memory, each from a bank of its own.
//
// All loads are of one value, though the hardware can bring four with one instruction. That is the next file.

constexpr int TILE = 128, DEPTH = 8;  // edge of a block's tile, and steps of k at a time
constexpr int EACH = 8;               // rows and columns of a thread's tile
constexpr int SIDE = TILE / EACH;     // threads along an edge
constexpr int THREADS = SIDE * SIDE;

static_assert(TILE % EACH == 0 && THREADS <= 1024, "a tile's edge is shared out evenly");

extern "C" __global__ __launch_bounds__(THREADS)
void matmul(const float* A, const float* B, float* C, int M, int N, int K)
{
    __shared__ float A_tile[TILE][DEPTH];
    __shared__ float B_tile[DEPTH][TILE];
    int thread = threadIdx.x, x = thread % SIDE, y = thread / SIDE;
    int first_row = blockIdx.y * TILE, first_column = blockIdx.x * TILE;

    float total[EACH][EACH] = {};
    for (int start = 0; start < K; start += DEPTH) {
        for (int i = thread; i < TILE * DEPTH; i += THREADS) {
            int row = first_row + i / DEPTH, k = start + i % DEPTH;
            A_tile[i / DEPTH][i % DEPTH] = row < M && k < K ? A[(size_t)row * K + k] : 0;
        }
        for (int i = thread; i < TILE * DEPTH; i += THREADS) {
            int k = start + i / TILE, column = first_column + i % TILE;
            B_tile[i / TILE][i % TILE] = k < K && column < N ? B[(size_t)k * N + column] : 0;
        }
        __syncthreads();

        for (int k = 0; k < DEPTH; ++k) {
            float a[EACH], b[EACH];
            #pragma unroll
            for (int i = 0; i < EACH; ++i) a[i] = A_tile[y + i * SIDE][k];
            #pragma unroll
            for (int j = 0; j < EACH; ++j) b[j] = B_tile[k][x + j * SIDE];
            #pragma unroll
            for (int i = 0; i < EACH; ++i)
                #pragma unroll
                for (int j = 0; j < EACH; ++j) total[i][j] += a[i] * b[j];
        }
        __syncthreads();
    }

    #pragma unroll
    for (int i = 0; i < EACH; ++i)
        #pragma unroll
        for (int j = 0; j < EACH; ++j) {
            int row = first_row + y + i * SIDE, column = first_column + x + j * SIDE;
            if (row < M && column < N) C[(size_t)row * N + column] = total[i][j];
        }
}
