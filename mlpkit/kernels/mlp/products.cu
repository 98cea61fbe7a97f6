// The matrix products of a small network, for a GPU that would be idle for most of a larger tile's time.
//
// At these sizes a product takes as long as its slowest block, and a block as long as its memory takes to answer. So the
// tiles are small, for many blocks; a block asks for all that it needs at once; and its eight warps share the depth of
// the sum out among themselves and add up in the end. What follows a product element by element is done before the
// result is written, and so is what follows the last layer row by row: the loss, and the way back through that layer.
//
// A kernel begins before the one ahead of it has ended: see in_turn.cuh. It asks for weights, and for whatever else is
// older than that kernel's results, before it waits for these.

#include "in_turn.cuh"
#include "reductions.cuh"
#include "softmax.cuh"

#ifndef REAL
#define REAL float
#endif
#ifndef SIZES
#define SIZES 784, 128, 128, 128, 10
#endif

constexpr int sizes[] = {SIZES};  // of the network's layers, inputs first
constexpr int LAYERS = sizeof(sizes) / sizeof(int) - 1;

const int WARPS = 8, THREADS = 32 * WARPS;
const int EXAMPLES = 4;           // of a block of `last_layer`
const int EDGE = 32, SLICES = 4;  // of a tile of gradients; 64 threads a slice

// Values side by side, loaded from shared memory at once.
template <int count>
struct alignas(count * sizeof(REAL)) Neighbours {
    REAL at[count];
};

extern __shared__ __align__(128) unsigned char shared_bytes[];

const int VECTOR = 16 / sizeof(REAL);  // the most neighbours that one copy takes

// May rows of this length, from this address on, be copied in vectors?
__device__ bool aligned(const REAL* rows, int length) { return length % VECTOR == 0 && (size_t)rows % 16 == 0; }

// Copy a piece of a matrix (length, depth) into shared memory: LENGTH of its rows from `first` on, and `chunk` values
// of each from `start` on. Zeros stand for what is outside of it. Neighbouring threads copy neighbours: a warp copies a
// row.
template <int LENGTH, int count>
__device__ void load_along(REAL* to, int row_stride, int depth_stride, const REAL* from, int first, int length, int depth,
                           int start, int chunk) {
    for (int i = threadIdx.x / 32; i < LENGTH; i += WARPS) {
        for (int k = threadIdx.x % 32 * count; k < chunk; k += 32 * count) {
            const bool inside = first + i < length && start + k < depth;
            const REAL* place = from + (long long)(first + i) * depth + start + k;
            cp_async<count * sizeof(REAL)>(to + i * row_stride + k * depth_stride, inside ? place : from, inside);
        }
    }
}

// The same of a matrix (depth, length), where neighbours are across the depth, into [chunk][stride].
template <int LENGTH, int count>
__device__ void load_across(REAL* to, int stride, const REAL* from, int first, int length, int depth, int start, int chunk) {
    for (int e = threadIdx.x; e < LENGTH / count * chunk; e += THREADS) {
        const int i = e % (LENGTH / count) * count, k = e / (LENGTH / count);
        const bool inside = first + i < length && start + k < depth;
        const REAL* place = from + (long long)(start + k) * length + first + i;
        cp_async<count * sizeof(REAL)>(to + k * stride + i, inside ? place : from, inside);
    }
}

template <int LENGTH>
__device__ void load_across(REAL* to, const REAL* from, int first, int length, int depth, int start, int chunk) {
    if (aligned(from, length)) {
        load_across<LENGTH, VECTOR>(to, LENGTH, from, first, length, depth, start, chunk);
    } else {
        load_across<LENGTH, 1>(to, LENGTH, from, first, length, depth, start, chunk);
    }
}

// A block's tile of the product of A (rows, depth), which the kernel ahead writes, and B (depth, columns), which may be
// stored transposed. A lane has 2 x 2 values of it, a warp's lanes are 4 x 8. A warp has every 8th part of the depth.
template <bool B_TRANSPOSED>
struct Tile {
    static const int ROWS = 8, COLUMNS = 16, PART = ROWS * (COLUMNS + 1);  // 1: then rows lie in different banks
    static const int STRIDE = COLUMNS + (B_TRANSPOSED ? 2 : 0);  // else a column would be written into two banks

    int row, column;  // of the tile's corner

    __device__ Tile(int number, int columns) {
        const int across = (columns + COLUMNS - 1) / COLUMNS;
        row = number / across * ROWS, column = number % across * COLUMNS;
    }

    // Call store(row, column, sum, ask(row, column)) for every element of the tile that is inside of the matrix. `ask` is
    // for what else an element needs from memory: it is called first.
    template <typename Ask, typename Store>
    __device__ void multiply(const REAL* A, const REAL* B, int rows, int columns, int depth, int chunk, Ask ask,
                             Store store) const {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, depth_of_warp = chunk / WARPS;
        const int i = threadIdx.x / COLUMNS, j = threadIdx.x % COLUMNS;  // of the element that this thread stores
        const bool stores = i < ROWS && row + i < rows && column + j < columns;
        const REAL asked = stores ? ask(row + i, column + j) : REAL(0);
        REAL* a = (REAL*)shared_bytes;  // [ROWS][chunk + 4]: 4, so that rows below each other lie in different banks
        REAL* b = a + ROWS * (chunk + 4);  // [chunk][STRIDE]
        REAL sums[2][2] = {};
        for (int start = 0; start < depth; start += chunk) {
            load_b(b, B, columns, depth, start, chunk);
            if (start == 0) wait_for_the_kernel_ahead();
            load_a(a, A, rows, depth, start, chunk);
            cp_async_wait_all();
            __syncthreads();
            for (int k = warp * depth_of_warp; k < (warp + 1) * depth_of_warp; k += 4) {
                Neighbours<4> left[2];
                for (int r = 0; r < 2; r++) left[r] = *(Neighbours<4>*)&a[(lane / 8 + r * 4) * (chunk + 4) + k];
                for (int step = 0; step < 4; step++) {
                    const auto right = *(Neighbours<2>*)&b[(k + step) * STRIDE + lane % 8 * 2];
                    for (int r = 0; r < 2; r++)
                        for (int c = 0; c < 2; c++) sums[r][c] += left[r].at[step] * right.at[c];
                }
            }
            __syncthreads();
        }
        REAL* parts = (REAL*)shared_bytes;  // [WARPS][ROWS][COLUMNS + 1], where a and b were
        for (int r = 0; r < 2; r++)
            for (int c = 0; c < 2; c++) {
                parts[warp * PART + (lane / 8 + r * 4) * (COLUMNS + 1) + lane % 8 * 2 + c] = sums[r][c];
            }
        __syncthreads();
        if (!stores) return;
        REAL sum = 0;
        for (int part = 0; part < WARPS; part++) sum += parts[part * PART + i * (COLUMNS + 1) + j];
        store(row + i, column + j, sum, asked);
    }

    __device__ void load_a(REAL* a, const REAL* A, int rows, int depth, int start, int chunk) const {
        if (aligned(A, depth)) {
            load_along<ROWS, VECTOR>(a, chunk + 4, 1, A, row, rows, depth, start, chunk);
        } else {
            load_along<ROWS, 1>(a, chunk + 4, 1, A, row, rows, depth, start, chunk);
        }
    }

    __device__ void load_b(REAL* b, const REAL* B, int columns, int depth, int start, int chunk) const {
        if constexpr (B_TRANSPOSED) {
            load_along<COLUMNS, 1>(b, 1, STRIDE, B, column, columns, depth, start, chunk);
        } else {
            load_across<COLUMNS>(b, B, column, columns, depth, start, chunk);
        }
    }
};

// a <- relu(x W + b). x (n, inputs), W (inputs, outputs). A block a tile.
extern "C" __global__ __launch_bounds__(THREADS)
    void forward(const REAL* x, const REAL* W, const REAL* b, REAL* a, int n, int inputs, int outputs, int chunk) {
    const Tile<false> tile(blockIdx.x, outputs);
    tile.multiply(x, W, n, outputs, inputs, chunk, [=](int i, int j) { return b[j]; },
                  [=](int i, int j, REAL sum, REAL bias) {
                      const REAL z = sum + bias;
                      a[i * outputs + j] = z < 0 ? 0 : z;  // in this order a NaN stays a NaN
                  });
}

// dz <- the gradient before the ReLU that returned a (n, inputs), from that after the layer, next (n, outputs).
extern "C" __global__ __launch_bounds__(THREADS)
    void backward(const REAL* next, const REAL* W, const REAL* a, REAL* dz, int n, int inputs, int outputs, int chunk) {
    const Tile<true> tile(blockIdx.x, inputs);
    tile.multiply(next, W, n, inputs, outputs, chunk, [=](int i, int j) { return a[i * inputs + j]; },
                  [=](int i, int j, REAL sum, REAL passed) { dz[i * inputs + j] = passed > 0 ? sum : REAL(0); });
}

// The last layer, of x (n, inputs); row_losses, and dz, the gradient of its outputs; and below, that of its inputs before
// their ReLU, where there is a layer below. A warp an example. resident: whether there is shared memory for W.
extern "C" __global__ __launch_bounds__(32 * EXAMPLES)
    void last_layer(const REAL* x, const REAL* W, const REAL* b, const long long* labels, REAL* dz, REAL* below,
                    REAL* row_losses, int n, int resident) {
    constexpr int INPUTS = sizes[LAYERS - 1], CLASSES = sizes[LAYERS], EACH = (INPUTS + 31) / 32;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = blockIdx.x * EXAMPLES + warp;
    REAL *z = (REAL*)shared_bytes + 2 * warp * CLASSES, *slope = z + CLASSES;
    REAL* copy = (REAL*)shared_bytes + 2 * EXAMPLES * CLASSES;
    const REAL* w = resident ? copy : W;
    const int copies = resident ? INPUTS * CLASSES : 0;
    for (int e = threadIdx.x; e < copies; e += 32 * EXAMPLES) cp_async<sizeof(REAL)>(copy + e, W + e);
    wait_for_the_kernel_ahead();
    const int label = row < n ? labels[row] : 0;
    REAL a[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int k = lane + 32 * i;
        a[i] = row < n && k < INPUTS ? x[row * INPUTS + k] : REAL(0);
    }
    cp_async_wait_all();
    __syncthreads();
    if (row >= n) return;
#pragma unroll 16
    for (int c = 0; c < CLASSES; c++) {
        REAL sum = 0;
        for (int i = 0; i < EACH; i++) sum += lane + 32 * i < INPUTS ? a[i] * w[(lane + 32 * i) * CLASSES + c] : REAL(0);
        sum = warp_sum<32>(sum);
        if (lane == c % 32) z[c] = sum + b[c];
    }
    __syncwarp();
    const REAL loss = softmax<CLASSES>(z, slope, label, n);
    __syncwarp();
    if (lane == 0) row_losses[row] = loss;
    for (int c = lane; c < CLASSES; c += 32) dz[row * CLASSES + c] = slope[c];
    for (int i = 0; LAYERS > 1 && i < EACH; i++) {
        const int k = lane + 32 * i;
        if (k >= INPUTS) break;
        REAL sum = 0;
#pragma unroll 16
        for (int c = 0; c < CLASSES; c++) sum += slope[c] * w[k * CLASSES + c];
        below[row * INPUTS + k] = a[i] > 0 ? sum : REAL(0);
    }
}

// losses[*step] <- the mean of n losses; then *step goes on by one. Without step it is losses[0]. By one block.
__device__ void mean_loss(const REAL* row_losses, REAL* losses, int* step, int n) {
    double *sums = (double*)shared_bytes, sum = 0;
    for (int row = threadIdx.x; row < n; row += THREADS) sum += row_losses[row];
    sum = warp_sum<32>(sum);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int warp = 1; warp < WARPS; warp++) sum += sums[warp];
    losses[step ? (*step)++ : 0] = sum / n;
}

// A tile of EDGE x EDGE of a layer's dW = a^T dz, and for a tile of its first inputs also db: dz's columns, added up. A
// slice of the threads has every 4th example; a thread 4 x 4 sums. dz is what the kernel ahead writes.
__device__ void gradient_tile(const REAL* a, const REAL* dz, REAL* dW, REAL* db, int inputs, int outputs, int row,
                              int column, int n, int chunk) {
    typedef REAL Row[EDGE];
    Row *left = (Row*)shared_bytes, *right = left + chunk;
    const int slice = threadIdx.x / 64, i = threadIdx.x % 64 / 8 * 4, j = threadIdx.x % 8 * 4;
    REAL sums[4][4] = {}, bias[4] = {};
    for (int start = 0; start < n; start += chunk) {
        load_across<EDGE>(left[0], a, row, inputs, n, start, chunk);
        if (start == 0) wait_for_the_kernel_ahead();
        load_across<EDGE>(right[0], dz, column, outputs, n, start, chunk);
        cp_async_wait_all();
        __syncthreads();
#pragma unroll 8
        for (int k = slice; k < chunk; k += SLICES) {
            const auto x = *(Neighbours<4>*)&left[k][i], slope = *(Neighbours<4>*)&right[k][j];
            for (int p = 0; p < 4; p++)
                for (int q = 0; q < 4; q++) sums[p][q] += x.at[p] * slope.at[q];
            for (int q = 0; q < 4; q++) bias[q] += slope.at[q];
        }
        __syncthreads();
    }
    typedef Row Part[EDGE + 1];  // the last row: of the bias
    Part* parts = (Part*)shared_bytes;
    for (int p = 0; p < 4; p++) *(Neighbours<4>*)&parts[slice][i + p][j] = *(Neighbours<4>*)sums[p];
    if (i == 0) *(Neighbours<4>*)&parts[slice][EDGE][j] = *(Neighbours<4>*)bias;
    __syncthreads();
    for (int e = threadIdx.x; e < (row ? EDGE : EDGE + 1) * EDGE; e += THREADS) {
        const int p = e / EDGE, q = e % EDGE;
        if ((p < EDGE && row + p >= inputs) || column + q >= outputs) continue;
        REAL sum = 0;
        for (int part = 0; part < SLICES; part++) sum += parts[part][p][q];
        (p < EDGE ? dW + (long long)(row + p) * outputs : db)[column + q] = sum;
    }
}

// The gradients of all parameters, laid out as theta is, in one launch: no layer's waits for another's.
// activations, dz: those of one layer after another, each (n, features). A block a tile, of any layer, and one block more
// for the mean of the losses.
extern "C" __global__ __launch_bounds__(THREADS)
    void parameter_gradients(const REAL* x, const REAL* activations, const REAL* dz, REAL* grad, const REAL* row_losses,
                             REAL* losses, int* step, int n, int chunk) {
    if (blockIdx.x == gridDim.x - 1) {
        wait_for_the_kernel_ahead();
        mean_loss(row_losses, losses, step, n);
        return;
    }
    long long biases = 0;
    for (int layer = 0; layer < LAYERS; layer++) biases += (long long)sizes[layer] * sizes[layer + 1];
    const REAL* a = x;
    REAL *dW = grad, *db = grad + biases;
    int layer = 0, number = blockIdx.x, across;
    while (true) {  // which layer's tile is this?
        across = (sizes[layer + 1] + EDGE - 1) / EDGE;
        const int tiles = across * ((sizes[layer] + EDGE - 1) / EDGE);
        if (number < tiles) break;
        number -= tiles;
        a = layer == 0 ? activations : a + (long long)n * sizes[layer];
        dW += (long long)sizes[layer] * sizes[layer + 1];
        dz += (long long)n * sizes[layer + 1];
        db += sizes[layer + 1];
        layer++;
    }
    const int row = number / across * EDGE, column = number % across * EDGE;
    gradient_tile(a, dz, dW, db, sizes[layer], sizes[layer + 1], row, column, n, chunk);
}
