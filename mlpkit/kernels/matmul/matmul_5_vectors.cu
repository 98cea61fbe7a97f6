// C = A B, with four values in each load and store: from memory, to and from shared memory, and to memory.
//
// A processor issues one instruction at a time for a warp, and a load of 16 bytes is one, like a load of 4. For each k
// a thread now issues 4 loads from shared memory, where it issued 16, beside its 64 multiply-adds. As many bytes as
// before come from shared memory: what is saved is instructions.
//
// Four neighbours in a row of B belong to four columns of C: just what a thread needs at once. Four neighbours in a
// row of A belong to four values of k, and it needs four rows. So A's tile is transposed when stored: A_tile[k][row].
// What is gained in each of the many loads is paid for in the few stores.
//
// Where rows don't begin at a multiple of 16 bytes, because K or N is no multiple of 4, four loads take one's place.
//
// What is left: while a tile is fetched nobody multiplies, and while the block multiplies nothing is fetched. And the
// transposed stores of A meet in the same banks. That is the next file.

constexpr int TILE = 128, DEPTH = 8, EACH = 8;
constexpr int SIDE = TILE / EACH;
constexpr int THREADS = SIDE * SIDE;  // a thread fetches four values of A and four of B: 4 x 256 = 128 x 8

static_assert(4 * THREADS == TILE * DEPTH && EACH == 8, "one load each for A and B, and two for rows and for columns");

// Does every row begin at a multiple of 16 bytes?
inline bool aligned(const float* matrix, int columns) { return (size_t)matrix % 16 == 0 && columns % 4 == 0; }

// Return four neighbours from a row, 0 for those outside.
inline float4 load4(const float* matrix, int row, int column, int rows, int columns, bool aligned)
{
    if (row >= rows) return {};
    const float* at = matrix + (size_t)row * columns + column;
    if (aligned && column + 4 <= columns) return *reinterpret_cast<const float4*>(at);
    return {column < columns ? at[0] : 0, column + 1 < columns ? at[1] : 0,
            column + 2 < columns ? at[2] : 0, column + 3 < columns ? at[3] : 0};
}

inline void store4(float* matrix, int row, int column, int rows, int columns, bool aligned, const float* from)
{
    if (row >= rows) return;
    float* at = matrix + (size_t)row * columns + column;
    if (aligned && column + 4 <= columns) {
        *reinterpret_cast<float4*>(at) = {from[0], from[1], from[2], from[3]};
        return;
    }
    #pragma unroll
    for (int j = 0; j < 4; ++j)
        if (column + j < columns) at[j] = from[j];
}

extern "C" __global__ __launch_bounds__(THREADS)
void matmul(const float* A, const float* B, float* C, int M, int N, int K)
{
    __shared__ __align__(16) float A_tile[DEPTH][TILE];
    __shared__ float4 B_tile[DEPTH][TILE / 4];
    bool A_aligned = aligned(A, K), B_aligned = aligned(B, N), C_aligned = aligned(C, N);
    int thread = threadIdx.x, x = thread % SIDE, y = thread / SIDE;
    int first_row = blockIdx.y * TILE, first_column = blockIdx.x * TILE;
    int A_row = thread / (DEPTH / 4), A_k = thread % (DEPTH / 4) * 4;
    int B_k = thread / (TILE / 4), B_column = thread % (TILE / 4) * 4;

    float total[EACH][EACH] = {};
    for (int start = 0; start < K; start += DEPTH) {
        float4 a = load4(A, first_row + A_row, start + A_k, M, K, A_aligned);
        A_tile[A_k][A_row] = a.x;
        A_tile[A_k + 1][A_row] = a.y;
        A_tile[A_k + 2][A_row] = a.z;
        A_tile[A_k + 3][A_row] = a.w;
        B_tile[B_k][B_column / 4] =
            load4(B, start + B_k, first_column + B_column, K, N, B_aligned);
        __syncthreads();

        #pragma unroll
        for (int k = 0; k < DEPTH; ++k) {
            float4 a[2], b[2];  // rows 4 y to 4 y + 3, and those half a tile below; columns likewise
            #pragma unroll
            for (int half = 0; half < 2; ++half) {
                a[half] = reinterpret_cast<const float4*>(A_tile[k])[y + half * SIDE];
                b[half] = B_tile[k][x + half * SIDE];
            }
            const float* as = reinterpret_cast<const float*>(a);
            const float* bs = reinterpret_cast<const float*>(b);
            #pragma unroll
            for (int i = 0; i < EACH; ++i)
                #pragma unroll
                for (int j = 0; j < EACH; ++j) total[i][j] += as[i] * bs[j];
        }
        __syncthreads();
    }

    #pragma unroll
    for (int i = 0; i < EACH; ++i)
        #pragma unroll
        for (int half = 0; half < 2; ++half) {
            int row = first_row + i / 4 * (TILE / 2) + 4 * y + i % 4;
            int column = first_column + half * (TILE / 2) + 4 * x;
            store4(C, row, column, M, N, C_aligned, total[i] + 4 * half);
        }
}
