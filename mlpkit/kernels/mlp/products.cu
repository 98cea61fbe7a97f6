// The matrix products of a small network, for a GPU that would be idle for most of a larger tile's time.
//
// At these sizes a product takes as long as its slowest block, and a block as long as its memory takes to answer. So the
// tiles are small, for many blocks; a block asks for all that it needs at once; and its eight warps share the depth of
// the sum out among themselves and add up in the end. What follows a product element by element is done before the
// result is written.

#include "ptx.cuh"

#ifndef REAL
#define REAL float
#endif
#ifndef SIZES
#define SIZES 784, 128, 128, 128, 10
#endif

__constant__ const int sizes[] = {SIZES};  // of the network's layers, inputs first
const int LAYERS = sizeof(sizes) / sizeof(int) - 1;

const int WARPS = 8;

// Numbers side by side, loaded from shared memory at once.
template <int count>
struct alignas(count * sizeof(REAL)) Neighbours {
    REAL at[count];
};

extern __shared__ __align__(64) unsigned char shared_bytes[];

const int VECTOR = 16 / sizeof(REAL);  // the most neighbours that one copy takes

// May rows of this length, from this address on, be copied in vectors?
__device__ bool aligned(const REAL* rows, int length) { return length % VECTOR == 0 && (size_t)rows % 16 == 0; }

// A block's tile of the product of A (rows, depth) and B (depth, columns), either of which may be stored transposed.
// A lane has R x C numbers of it, a warp's lanes are LR x LC.
template <int R, int C, int LR, int LC, bool A_TRANSPOSED, bool B_TRANSPOSED>
struct Tile {
    static const int ROWS = R * LR, COLUMNS = C * LC;
    static const int STRIDE = COLUMNS + (B_TRANSPOSED ? 2 : 0);  // else a column would be written into two banks

    static_assert(LR * LC == 32, "a warp has 32 lanes");

    int row, column;  // of the tile's corner

    // Call store(row, column, sum) for every element of the tile that is inside of the matrix.
    template <typename Store>
    __device__ void multiply(const REAL* A, const REAL* B, int rows, int columns, int depth, int chunk, Store store) {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, depth_of_warp = chunk / WARPS;
        REAL* a = (REAL*)shared_bytes;  // [ROWS][chunk + 4]: 4, so that rows below each other lie in different banks
        REAL* b = a + ROWS * (chunk + 4);  // [chunk][STRIDE]
        REAL sums[R][C] = {};
        for (int start = 0; start < depth; start += chunk) {
            load(a, b, A, B, rows, columns, depth, start, chunk);
            cp_async_wait_all();
            __syncthreads();
            for (int k = warp * depth_of_warp; k < (warp + 1) * depth_of_warp; k += 4) {
                Neighbours<4> left[R];
                for (int i = 0; i < R; i++) left[i] = *(Neighbours<4>*)&a[(lane / LC + i * LR) * (chunk + 4) + k];
                for (int step = 0; step < 4; step++) {
                    const auto right = *(Neighbours<C>*)&b[(k + step) * STRIDE + lane % LC * C];
                    for (int i = 0; i < R; i++)
                        for (int j = 0; j < C; j++) sums[i][j] += left[i].at[step] * right.at[j];
                }
            }
            __syncthreads();
        }
        const int PART = ROWS * (COLUMNS + 1);  // 1, again for the banks
        REAL* parts = (REAL*)shared_bytes;      // [WARPS][ROWS][COLUMNS + 1], where a and b were
        for (int i = 0; i < R; i++)
            for (int j = 0; j < C; j++)
                parts[warp * PART + (lane / LC + i * LR) * (COLUMNS + 1) + lane % LC * C + j] = sums[i][j];
        __syncthreads();
        for (int e = threadIdx.x; e < ROWS * COLUMNS; e += blockDim.x) {
            const int i = e / COLUMNS, j = e % COLUMNS;
            REAL sum = 0;
            for (int part = 0; part < WARPS; part++) sum += parts[part * PART + i * (COLUMNS + 1) + j];
            if (row + i < rows && column + j < columns) store(row + i, column + j, sum);
        }
    }

    __device__ void load(REAL* a, REAL* b, const REAL* A, const REAL* B, int rows, int columns, int depth, int start,
                         int chunk) {
        if constexpr (A_TRANSPOSED) {
            load_across<ROWS, 1>(a, 1, chunk + 4, A, row, rows, depth, start, chunk);
        } else if (aligned(A, depth)) {
            load_along<ROWS, VECTOR>(a, chunk + 4, 1, A, row, rows, depth, start, chunk);
        } else {
            load_along<ROWS, 1>(a, chunk + 4, 1, A, row, rows, depth, start, chunk);
        }
        if constexpr (B_TRANSPOSED) {
            load_along<COLUMNS, 1>(b, 1, STRIDE, B, column, columns, depth, start, chunk);
        } else if (aligned(B, columns)) {
            load_across<COLUMNS, VECTOR>(b, STRIDE, 1, B, column, columns, depth, start, chunk);
        } else {
            load_across<COLUMNS, 1>(b, STRIDE, 1, B, column, columns, depth, start, chunk);
        }
    }

    // Neighbouring threads copy neighbours in global memory. Here those are along the depth: a warp copies a row.
    template <int LENGTH, int count>
    __device__ static void load_along(REAL* to, int row_stride, int depth_stride, const REAL* from, int first, int length,
                                      int depth, int start, int chunk) {
        for (int i = threadIdx.x / 32; i < LENGTH; i += WARPS) {
            for (int k = threadIdx.x % 32 * count; k < chunk; k += 32 * count) {
                const bool inside = first + i < length && start + k < depth;
                const REAL* place = from + (long long)(first + i) * depth + start + k;
                cp_async<count * sizeof(REAL)>(to + i * row_stride + k * depth_stride, inside ? place : from, inside);
            }
        }
    }

    // Here neighbours are across it: one number of each of the tile's rows, or columns, after another.
    template <int LENGTH, int count>
    __device__ static void load_across(REAL* to, int depth_stride, int stride, const REAL* from, int first, int length,
                                       int depth, int start, int chunk) {
        for (int e = threadIdx.x; e < LENGTH / count * chunk; e += 32 * WARPS) {
            const int i = e % (LENGTH / count) * count, k = e / (LENGTH / count);
            const bool inside = first + i < length && start + k < depth;
            const REAL* place = from + (long long)(start + k) * length + first + i;
            cp_async<count * sizeof(REAL)>(to + k * depth_stride + i * stride, inside ? place : from, inside);
        }
    }
};

// a <- relu(x W + b), or x W + b for the last layer. x (n, inputs), W (inputs, outputs). Grid: (columns, rows) of tiles.
extern "C" __global__ void __launch_bounds__(32 * WARPS)
    forward(const REAL* x, const REAL* W, const REAL* b, REAL* a, int n, int inputs, int outputs, int relu, int chunk) {
    Tile<2, 2, 4, 8, false, false> tile;
    tile.row = blockIdx.y * tile.ROWS, tile.column = blockIdx.x * tile.COLUMNS;
    tile.multiply(x, W, n, outputs, inputs, chunk, [=](int i, int j, REAL sum) {
        const REAL z = sum + b[j];
        a[i * outputs + j] = relu && z < 0 ? 0 : z;  // in this order a NaN stays a NaN
    });
}

// dz <- the gradient before the ReLU that returned a (n, inputs), from that after the layer, next (n, outputs).
extern "C" __global__ void __launch_bounds__(32 * WARPS)
    backward(const REAL* next, const REAL* W, const REAL* a, REAL* dz, int n, int inputs, int outputs, int chunk) {
    Tile<2, 2, 4, 8, false, true> tile;
    tile.row = blockIdx.y * tile.ROWS, tile.column = blockIdx.x * tile.COLUMNS;
    tile.multiply(next, W, n, inputs, outputs, chunk, [=](int i, int j, REAL sum) {
        dz[i * inputs + j] = a[i * inputs + j] > 0 ? sum : REAL(0);
    });
}

// The gradients of all parameters, laid out as theta is, in one launch: no layer's waits for another's.
// activations, dz: those of one layer after another, each (n, features). A block a tile, of any layer.
extern "C" __global__ void __launch_bounds__(32 * WARPS)
    parameter_gradients(const REAL* x, const REAL* activations, const REAL* dz, REAL* grad, int n,
                        int chunk) {
    Tile<4, 8, 8, 4, true, false> tile;
    long long biases = 0;
    for (int layer = 0; layer < LAYERS; layer++) biases += (long long)sizes[layer] * sizes[layer + 1];
    const REAL* a = x;
    REAL *dW = grad, *db = grad + biases;
    int layer = 0, number = blockIdx.x, tiles_across;
    while (true) {  // which layer's tile is this?
        tiles_across = (sizes[layer + 1] + tile.COLUMNS - 1) / tile.COLUMNS;
        const int tiles = tiles_across * ((sizes[layer] + tile.ROWS - 1) / tile.ROWS);
        if (number < tiles) break;
        number -= tiles;
        a = layer == 0 ? activations : a + (long long)n * sizes[layer];
        dW += (long long)sizes[layer] * sizes[layer + 1];
        dz += (long long)n * sizes[layer + 1];
        db += sizes[layer + 1];
        layer++;
    }
    const int inputs = sizes[layer], outputs = sizes[layer + 1];
    tile.row = number / tiles_across * tile.ROWS, tile.column = number % tiles_across * tile.COLUMNS;
    tile.multiply(a, dz, inputs, outputs, n, chunk,
                  [=](int i, int j, REAL sum) { dW[(long long)i * outputs + j] = sum; });
    if (tile.row > 0) return;
    __syncthreads();
    REAL* sums = (REAL*)shared_bytes;  // [WARPS][32]
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = tile.column + lane;
    REAL sum = 0;
    for (int row = warp; row < n && column < outputs; row += WARPS) sum += dz[(long long)row * outputs + column];
    sums[warp * 32 + lane] = sum;
    __syncthreads();
    if (warp == 0 && column < outputs) {
        for (int other = 1; other < WARPS; other++) sum += sums[other * 32 + lane];
        db[column] = sum;
    }
}
