// A training step in three kernels. Between them stands what must wait for a whole batch, and nothing else:
//
//   first_layer   a1 = relu(x W1 + b1): a block a tile of it; the examples are looked up on the way
//   rows          the other layers, the loss, and back to dz1: a block takes a few examples all the way there and back,
//                 and never needs to know what another block does
//   update        every weight's gradient is a sum over the batch: a block a tile of one, used up as soon as it is there
//
// Arrays are (n, features), row after row; those of several layers follow each other. SIZES are the network's widths.

#include "numbers.cuh"
#include "reductions.cuh"

#ifndef SIZES
#define SIZES 784, 128, 128, 128, 10
#endif

const int WARPS = 16, ROWS = 2, TILE_ROWS = 8, TILE_COLUMNS = 16, EDGE = 32, CHUNK = 64;
constexpr int WIDTHS[] = {SIZES};
constexpr int LAYERS = sizeof(WIDTHS) / sizeof(int) - 1;

// Where the arrays of a layer (0 is the first) begin: its weights and its biases in theta, its outputs among the others.
constexpr int weights_of(int layer) { return layer ? weights_of(layer - 1) + WIDTHS[layer - 1] * WIDTHS[layer] : 0; }
constexpr int outputs_before(int layer) { return layer ? outputs_before(layer - 1) + WIDTHS[layer] : 0; }
constexpr int biases_of(int layer) { return weights_of(LAYERS) + outputs_before(layer); }
constexpr int widest(int from) {
    int width = WIDTHS[from];
    for (int i = from; i <= LAYERS; i++) width = WIDTHS[i] > width ? WIDTHS[i] : width;
    return width;
}
constexpr int WIDEST = widest(1);  // of the layers' outputs

static_assert(LAYERS > 0, "SIZES are the inputs and the width of each layer");
static_assert(32 * WARPS % (32 * TILE_ROWS) == 0 && TILE_COLUMNS == 16, "a warp an example; half a warp a row of a tile");
static_assert(ROWS <= 32, "a lane keeps each row's sum");
static_assert(CHUNK % (EDGE / 4) == 0 && EDGE % 4 == 0, "EDGE / 4 warps load a chunk's rows in turns");

extern __shared__ __align__(16) unsigned char shared_bytes[];

// The row of X that is example number `row` of the batch; *step counts the batches of the epoch.
__device__ const PIXEL* example(const PIXEL* X, const long long* order, const int* step, int batch_size, int row) {
    return X + order[(long long)*step * batch_size + row] * WIDTHS[0];
}

// A block a tile of 8 examples and 16 columns. A warp sums up a sixteenth of the pixels; each half of it every other one.
extern "C" __global__ void __launch_bounds__(32 * WARPS)
    first_layer(const PIXEL* X, const long long* order, const int* step, int batch_size, int n, const REAL* theta,
                REAL* outputs) {
    // [inputs][8 + 4]: one load brings a pixel of four examples; 4, so that fewer pixels share a bank
    REAL(*x)[TILE_ROWS + 4] = (REAL(*)[TILE_ROWS + 4])shared_bytes;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = blockIdx.y * TILE_ROWS;
    const int column = blockIdx.x * TILE_COLUMNS + lane % 16, columns = WIDTHS[1];
    // A warp loads every other piece of an example's pixels, and asks for many before it needs the first.
    const int row = warp % TILE_ROWS, begin = warp / TILE_ROWS * 32 + lane, AT_ONCE = 32 * WARPS / TILE_ROWS, EACH = 16;
    const PIXEL* pixels = example(X, order, step, batch_size, min(first + row, n - 1));
    for (int start = begin; start < WIDTHS[0]; start += EACH * AT_ONCE) {
        PIXEL ahead[EACH];
#pragma unroll
        for (int e = 0; e < EACH; e++) ahead[e] = pixels[min(start + e * AT_ONCE, WIDTHS[0] - 1)];
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            if (start + e * AT_ONCE < WIDTHS[0]) x[start + e * AT_ONCE][row] = number(ahead[e]);
        }
    }
    __syncthreads();

    REAL sums[TILE_ROWS] = {};
#pragma unroll 8
    for (int start = 0; start < WIDTHS[0]; start += 2 * WARPS) {
        const int k = start + 2 * warp + lane / 16;
        const REAL w = k < WIDTHS[0] && column < columns ? theta[(long long)k * columns + column] : REAL(0);
        for (int r = 0; r < TILE_ROWS; r++) sums[r] += x[min(k, WIDTHS[0] - 1)][r] * w;
    }
    __syncthreads();
    REAL(*parts)[TILE_ROWS][TILE_COLUMNS] = (REAL(*)[TILE_ROWS][TILE_COLUMNS])shared_bytes;  // where x was
    for (int r = 0; r < TILE_ROWS; r++) parts[threadIdx.x / 16][r][lane % 16] = sums[r];
    __syncthreads();

    const int r = threadIdx.x / TILE_COLUMNS;
    if (r >= TILE_ROWS || first + r >= n || column >= columns) return;
    REAL z = theta[biases_of(0) + column];
    for (int part = 0; part < 2 * WARPS; part++) z += parts[part][r][lane % 16];
    outputs[(first + r) * columns + column] = LAYERS > 1 && z < 0 ? 0 : z;  // in this order a NaN stays a NaN
}

// next <- relu(in W + b), or without the relu for the last layer. A warp sums up the inputs number warp, warp + 16, ...
template <int layer>
__device__ void forward(const REAL* theta, const REAL* in, REAL* next, REAL* parts) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, inputs = WIDTHS[layer], columns = WIDTHS[layer + 1];
    const REAL* W = theta + weights_of(layer);
    for (int start = 0; start < columns; start += 128) {
        REAL sums[ROWS][4] = {};
#pragma unroll 8
        for (int k = warp; k < inputs; k += WARPS) {
            for (int c = 0; c < 4; c++) {
                const int j = start + 32 * c + lane;
                const REAL w = j < columns ? W[(long long)k * columns + j] : REAL(0);
                for (int r = 0; r < ROWS; r++) sums[r][c] += in[r * WIDEST + k] * w;
            }
        }
        for (int c = 0; c < 4; c++) {
            const int j = start + 32 * c + lane;
            for (int r = 0; r < ROWS && j < columns; r++) parts[(warp * ROWS + r) * WIDEST + j] = sums[r][c];
        }
    }
    __syncthreads();
    for (int e = threadIdx.x; e < ROWS * columns; e += blockDim.x) {
        const int r = e / columns, j = e % columns;
        REAL z = theta[biases_of(layer) + j];
        for (int part = 0; part < WARPS; part++) z += parts[(part * ROWS + r) * WIDEST + j];
        next[r * WIDEST + j] = layer + 1 < LAYERS && z < 0 ? 0 : z;
    }
    __syncthreads();
}

// below <- the gradient before the ReLU that returned a, from that after the layer, dz. A warp a sum over the columns.
template <int layer>
__device__ void backward(const REAL* theta, const REAL* dz, const REAL* a, REAL* below) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, inputs = WIDTHS[layer], columns = WIDTHS[layer + 1];
    const REAL* W = theta + weights_of(layer);
#pragma unroll 8
    for (int k = warp; k < inputs; k += WARPS) {
        REAL sums[ROWS] = {};
        for (int j = lane; j < columns; j += 32) {
            const REAL w = W[(long long)k * columns + j];
            for (int r = 0; r < ROWS; r++) sums[r] += dz[r * WIDEST + j] * w;
        }
        for (int r = 0; r < ROWS; r++) {
            const REAL sum = warp_sum<32>(sums[r]);
            if (lane == r) below[r * WIDEST + k] = a[r * WIDEST + k] > 0 ? sum : REAL(0);
        }
    }
    __syncthreads();
}

template <int layer>
__device__ void forward_from(const REAL* theta, REAL* a, REAL* parts) {
    if constexpr (layer < LAYERS) {
        forward<layer>(theta, a + (layer - 1) * ROWS * WIDEST, a + layer * ROWS * WIDEST, parts);
        forward_from<layer + 1>(theta, a, parts);
    }
}

template <int layer>
__device__ void backward_from(const REAL* theta, const REAL* a, REAL* dz) {
    if constexpr (layer > 0) {
        const int below = (layer - 1) * ROWS * WIDEST;
        backward<layer>(theta, dz + layer * ROWS * WIDEST, a + below, dz + below);
        backward_from<layer - 1>(theta, a, dz);
    }
}

// Copy a block's rows of one array a layer between global and shared memory.
template <typename Copy>
__device__ void for_each_output(int from, int to, int first, int n, Copy copy) {
    for (int layer = from; layer < to; layer++) {
        const int columns = WIDTHS[layer + 1];
        for (int e = threadIdx.x; e < ROWS * columns; e += blockDim.x) {
            const int r = e / columns, j = e % columns;
            const int place = outputs_before(layer) * n + (first + r) * columns + j;
            if (first + r < n) copy(place, (layer * ROWS + r) * WIDEST + j);
        }
    }
}

// A block ROWS examples. outputs: what each layer returned, that of the first is there already; gradients: each one's dz.
// steps[0] is this step's number; it is copied for the next kernel, which counts on while nobody reads.
extern "C" __global__ void __launch_bounds__(32 * WARPS)
    rows(const long long* y, const long long* order, int* steps, int batch_size, int n, const REAL* theta,
         REAL* outputs, REAL* gradients, REAL* row_losses) {
    REAL* a = (REAL*)shared_bytes;  // [LAYERS][ROWS][WIDEST]
    REAL* dz = a + LAYERS * ROWS * WIDEST;
    REAL* parts = dz + LAYERS * ROWS * WIDEST;  // [WARPS][ROWS][WIDEST]
    const int first = blockIdx.x * ROWS;
    for (int e = threadIdx.x; e < ROWS * WIDEST; e += blockDim.x) a[e] = 0;  // rows that the last block may lack
    __syncthreads();
    for_each_output(0, 1, first, n, [=](int place, int e) { a[e] = outputs[place]; });
    __syncthreads();
    forward_from<1>(theta, a, parts);

    if (threadIdx.x < ROWS && first + threadIdx.x < n) {
        const int r = threadIdx.x, classes = WIDTHS[LAYERS];
        const REAL* z = a + ((LAYERS - 1) * ROWS + r) * WIDEST;
        REAL* slope = dz + ((LAYERS - 1) * ROWS + r) * WIDEST;
        const int label = y[order[(long long)steps[0] * batch_size + first + r]];
        REAL largest = z[0], total = 0;
        for (int j = 1; j < classes; j++) largest = max(largest, z[j]);
        for (int j = 0; j < classes; j++) total += slope[j] = exp(z[j] - largest);
        const REAL scale = 1 / (total * n);
        for (int j = 0; j < classes; j++) slope[j] *= scale;
        slope[label] -= REAL(1) / n;
        row_losses[(long long)steps[0] * batch_size + first + r] = log(total) - (z[label] - largest);
    }
    __syncthreads();
    backward_from<LAYERS - 1>(theta, a, dz);
    for_each_output(1, LAYERS - 1, first, n, [=](int place, int e) { outputs[place] = a[e]; });
    for_each_output(0, LAYERS, first, n, [=](int place, int e) { gradients[place] = dz[e]; });
    if (blockIdx.x == 0 && threadIdx.x == 0) steps[1] = steps[0];
}

// One step of the optimizer for parameter number i. m and v: Adam's averages; SGD has none.
// rest: 1 - beta, as float64 has it. rates: this step's rate, and for Adam: the rate over how much of its average m is,
// and one over the root of how much of its average v is.
__device__ void optimize(REAL g, long long i, REAL* theta, REAL* m, REAL* v, const double* rates, REAL beta1,
                         REAL rest1, REAL beta2, REAL rest2, REAL eps, REAL l2, REAL shrink) {
    const REAL lr = rates[0];
    REAL w = theta[i];
    if (i < weights_of(LAYERS)) {  // only weights decay
        g += l2 * w;
        w -= lr * shrink * w;
    }
    if (m) {
        m[i] = beta1 * m[i] + rest1 * g;
        v[i] = beta2 * v[i] + rest2 * g * g;
        theta[i] = w - REAL(rates[1]) * m[i] / (sqrt(v[i]) * REAL(rates[2]) + eps);
    } else {
        theta[i] = w - lr * g;
    }
}

// A block a tile of 32 inputs and 32 columns of one layer's weights; a thread has 2 x 2 of them.
extern "C" __global__ void __launch_bounds__(EDGE* EDGE / 4)
    update(const PIXEL* X, const long long* order, int* steps, int batch_size, int n, const REAL* outputs,
           const REAL* gradients, REAL* theta, REAL* m, REAL* v, const double* rates, REAL beta1, REAL rest1,
           REAL beta2, REAL rest2, REAL eps, REAL l2, REAL shrink) {
    __shared__ __align__(16) REAL a[CHUNK][EDGE], dz[CHUNK][EDGE];
    const int lane = threadIdx.x % EDGE, warp = threadIdx.x / EDGE, AT_ONCE = EDGE / 4, EACH = CHUNK / AT_ONCE;
    const REAL *below = outputs, *slopes = gradients;
    long long weights = 0, biases = biases_of(0);
    int layer = 0, tile = blockIdx.x, inputs, columns, across;
    while (true) {  // which layer's tile is this?
        inputs = WIDTHS[layer], columns = WIDTHS[layer + 1], across = (columns + EDGE - 1) / EDGE;
        const int tiles = (inputs + EDGE - 1) / EDGE * across;
        if (tile < tiles) break;
        tile -= tiles;
        if (layer++) below += inputs * n;
        slopes += columns * n;
        weights += (long long)inputs * columns;
        biases += columns;
    }
    const int row = tile / across * EDGE, column = tile % across * EDGE, k = row + lane, c = column + lane;

    const int i = threadIdx.x / (EDGE / 2) * 2, j = threadIdx.x % (EDGE / 2) * 2;
    REAL sums[2][2] = {}, bias = 0;
    for (int start = 0; start < n; start += CHUNK) {
        // All are asked for before the first is needed; outside of the matrices, what is nearest, and then 0 instead.
        REAL a_ahead[EACH], dz_ahead[EACH];
        if (layer == 0) {
#pragma unroll
            for (int e = 0; e < EACH; e++) {
                const int at = min(start + e * AT_ONCE + warp, n - 1);
                a_ahead[e] = number(example(X, order, steps + 1, batch_size, at)[min(k, inputs - 1)]);
            }
        } else {
#pragma unroll
            for (int e = 0; e < EACH; e++) {
                a_ahead[e] = below[min(start + e * AT_ONCE + warp, n - 1) * inputs + min(k, inputs - 1)];
            }
        }
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            dz_ahead[e] = slopes[min(start + e * AT_ONCE + warp, n - 1) * columns + min(c, columns - 1)];
        }
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            const int at = e * AT_ONCE + warp;
            a[at][lane] = start + at < n && k < inputs ? a_ahead[e] : REAL(0);
            dz[at][lane] = start + at < n && c < columns ? dz_ahead[e] : REAL(0);
        }
        __syncthreads();
#pragma unroll 8
        for (int e = 0; e < CHUNK; e++) {
            for (int p = 0; p < 2; p++) {
                for (int q = 0; q < 2; q++) sums[p][q] += a[e][i + p] * dz[e][j + q];
            }
            if (threadIdx.x < EDGE) bias += dz[e][threadIdx.x];
        }
        __syncthreads();
    }
    rates += 3 * steps[1];
    for (int p = 0; p < 2; p++) {
        for (int q = 0; q < 2; q++) {
            if (row + i + p < inputs && column + j + q < columns) {
                const long long place = weights + (long long)(row + i + p) * columns + column + j + q;
                optimize(sums[p][q], place, theta, m, v, rates, beta1, rest1, beta2, rest2, eps, l2, shrink);
            }
        }
    }
    if (row == 0 && threadIdx.x < EDGE && c < columns) {
        optimize(bias, biases + c, theta, m, v, rates, beta1, rest1, beta2, rest2, eps, l2, shrink);
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) steps[0] = steps[1] + 1;
}
