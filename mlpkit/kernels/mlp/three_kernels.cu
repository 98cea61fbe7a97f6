// A training step in three kernels. Between them stands what must wait for a whole batch, and nothing else:
//
//   first_layer   a1 = relu(x W1 + b1): a block a tile of it; the examples are looked up on the way
//   rows          the other layers, the loss, and back to dz1: a block takes a few examples all the way there and back,
//                 and never needs to know what another block does
//   update        every weight's gradient is a sum over the batch: a block a tile of one, used as soon as it is there
//
// Arrays are (n, features), row after row; those of several layers follow each other. SIZES are the network's widths.
//
// What a kernel will need and can know from its beginning (weights, biases, labels, Adam's averages) it asks for before
// it waits for anything: 16 bytes a thread at a time, where rows begin at such places.

#include "in_turn.cuh"
#include "values.cuh"
#include "reductions.cuh"
#include "softmax.cuh"

#ifndef SIZES
#define SIZES 784, 128, 128, 128, 10
#endif

const int WARPS = 16, THREADS = 32 * WARPS, ROWS = 2, TILE_ROWS = 8, TILE_COLUMNS = 16, EDGE = 32, SLICES = 4;
const int WIDE = 128, EACH = WIDE / WARPS;  // a round of `rows`: so many inputs and columns, and so many inputs a warp
const int CHUNK = 512 / sizeof(REAL);       // examples that `update` has in shared memory
constexpr int WIDTHS[] = {SIZES};
constexpr int LAYERS = sizeof(WIDTHS) / sizeof(int) - 1;

// Where the arrays of a layer (0 is the first) begin: its weights and biases in theta, its outputs among the others.
constexpr int weights_of(int layer) { return layer ? weights_of(layer - 1) + WIDTHS[layer - 1] * WIDTHS[layer] : 0; }
constexpr int outputs_before(int layer) { return layer ? outputs_before(layer - 1) + WIDTHS[layer] : 0; }
constexpr int biases_of(int layer) { return weights_of(LAYERS) + outputs_before(layer); }
constexpr int up_to(int multiple, int n) { return (n + multiple - 1) / multiple * multiple; }
constexpr int widest(int from) {
    int width = WIDTHS[from];
    for (int i = from; i <= LAYERS; i++) width = WIDTHS[i] > width ? WIDTHS[i] : width;
    return width;
}
constexpr int WIDEST = up_to(WIDE, widest(1));  // of the layers' outputs, padded with zeros

static_assert(LAYERS > 0, "SIZES are the inputs and the width of each layer");
static_assert(WARPS % TILE_ROWS == 0 && TILE_ROWS == 8 && TILE_COLUMNS == 16, "a lane 8 examples and 4 columns");
static_assert(EACH * ROWS <= 32 && EACH % 4 == 0, "a lane is left with one sum");
static_assert(EDGE == 32 && CHUNK % SLICES == 0, "64 threads a slice of the examples, each 4 x 4 sums");

extern __shared__ __align__(16) unsigned char shared_bytes[];

// Neighbours that are loaded and stored in one piece.
template <typename T, int N>
struct __align__(N * sizeof(T) < 16 ? N * sizeof(T) : 16) Several {
    T at[N];
};
typedef Several<REAL, 4> Four;

// The elements at `from`, of which `there` exist; 0 for others. whole: rows of them begin where a piece may begin.
template <bool whole, int N, typename T>
__device__ Several<T, N> several(const T* from, int there) {
    Several<T, N> found = {};
    if constexpr (whole) {
        if (there > 0) found = *(const Several<T, N>*)from;
    } else {
#pragma unroll
        for (int i = 0; i < N; i++) {
            if (i < there) found.at[i] = from[i];
        }
    }
    return found;
}

template <bool whole, int N, typename T>
__device__ void put_several(T* to, const Several<T, N>& values, int there) {
    if constexpr (whole) {
        if (there > 0) *(Several<T, N>*)to = values;
    } else {
        for (int i = 0; i < N; i++) {
            if (i < there) to[i] = values.at[i];
        }
    }
}

// Do a layer's rows begin where a piece of four may begin: of its weights, and of its outputs?
constexpr bool whole_weights(int layer) { return weights_of(layer) % 4 == 0 && WIDTHS[layer + 1] % 4 == 0; }
constexpr bool whole_outputs(int layer) { return outputs_before(layer) % 4 == 0 && WIDTHS[layer + 1] % 4 == 0; }

// Four weights of a layer, from input k and column j on.
template <int layer>
__device__ Four weights(const REAL* theta, int k, int j) {
    const REAL* from = theta + weights_of(layer) + (long long)k * WIDTHS[layer + 1] + j;
    return several<whole_weights(layer), 4>(from, k < WIDTHS[layer] ? WIDTHS[layer + 1] - j : 0);
}

// The row of X that is example number `row` of the batch; *step counts the batches of the epoch.
__device__ const PIXEL* example(const PIXEL* X, const long long* order, const int* step, int batch_size, int row) {
    return X + order[(long long)*step * batch_size + row] * WIDTHS[0];
}

// A block a tile of 8 examples and 16 columns. Of 128 pixels a warp takes 8, and a lane one of these with 4 columns.
extern "C" __global__ void __launch_bounds__(THREADS)
    first_layer(const PIXEL* X, const long long* order, const int* step, int batch_size, int n, const REAL* theta,
                REAL* outputs) {
    constexpr int INPUTS = WIDTHS[0], COLUMNS = WIDTHS[1], PIECE = INPUTS % 4 ? 1 : 4, ROUND = 8 * WARPS, AHEAD = 8;
    // [inputs][8 + 4]: one load brings a pixel of four examples, and eight lanes' pixels lie in different banks
    REAL(*x)[TILE_ROWS + 4] = (REAL(*)[TILE_ROWS + 4])shared_bytes;
    REAL(*parts)[TILE_ROWS][TILE_COLUMNS] = (REAL(*)[TILE_ROWS][TILE_COLUMNS])(x + INPUTS);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = blockIdx.y * TILE_ROWS;
    const int pixel = 8 * warp + lane % 8, column = blockIdx.x * TILE_COLUMNS + lane / 8 * 4;
    const int my_row = threadIdx.x / TILE_COLUMNS, mine = blockIdx.x * TILE_COLUMNS + threadIdx.x % TILE_COLUMNS;
    const bool has_output = my_row < TILE_ROWS && first + my_row < n && mine < COLUMNS;

    wait_for_the_kernel_ahead();
    REAL z = has_output ? theta[biases_of(0) + mine] : REAL(0);
    Four w[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; i++) w[i] = weights<0>(theta, pixel + i * ROUND, column);

    // Eight lanes of a warp take the eight examples, and the warps a piece after the other.
    const PIXEL* pixels = example(X, order, step, batch_size, min(first + lane % 8, n - 1));
    for (int piece = 4 * warp + lane / 8; piece * PIECE < INPUTS; piece += 16 * WARPS) {
        Several<PIXEL, PIECE> ahead[4];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int at = (piece + e * 4 * WARPS) * PIECE;
            ahead[e] = several<true, PIECE>(pixels + at, INPUTS - at);
        }
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int at = (piece + e * 4 * WARPS) * PIECE;
            for (int i = 0; i < PIECE && at < INPUTS; i++) x[at + i][lane % 8] = number(ahead[e].at[i]);
        }
    }
    __syncthreads();

    REAL sums[4 * TILE_ROWS] = {};
    for (int start = 0; start < INPUTS; start += AHEAD * ROUND) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const int k = start + i * ROUND + pixel;
            if (start) w[i] = weights<0>(theta, k, column);
            if (k >= INPUTS) continue;
#pragma unroll
            for (int r = 0; r < TILE_ROWS; r++) {
#pragma unroll
                for (int c = 0; c < 4; c++) sums[4 * r + c] += x[k][r] * w[i].at[c];
            }
        }
    }
    warp_sums<2 * TILE_ROWS, 4>(sums);  // over eight lanes: each is left with the row of its number
    *(Four*)&parts[warp][lane % 8][lane / 8 * 4] = {sums[0], sums[1], sums[2], sums[3]};
    __syncthreads();
    if (!has_output) return;
#pragma unroll
    for (int part = 0; part < WARPS; part++) z += parts[part][my_row][threadIdx.x % TILE_COLUMNS];
    outputs[(first + my_row) * COLUMNS + mine] = LAYERS > 1 && z < 0 ? 0 : z;  // in this order a NaN stays a NaN
}

// The last layer, if it has few columns, is multiplied from shared memory. The weights of the first two others wait in
// registers for the forward and the backward pass, if a warp's rows fill a round.
constexpr bool is_narrow(int layer) { return layer > 0 && layer == LAYERS - 1 && WIDTHS[layer + 1] <= 32; }
constexpr bool is_resident(int layer) {
    return (layer == 1 || layer == 2) && !is_narrow(layer) && WIDTHS[layer] <= WIDE && WIDTHS[layer + 1] <= WIDE;
}

// What a block of `rows` has in shared memory.
struct Resident {
    REAL a[LAYERS][ROWS][WIDEST], dz[LAYERS][ROWS][WIDEST], parts[WARPS][ROWS][WIDEST];
    REAL biases[up_to(4, outputs_before(LAYERS))];
    REAL last[is_narrow(LAYERS - 1) ? WIDTHS[LAYERS - 1] * WIDTHS[LAYERS] : 1];
};

struct Kept {
    Four of[2][EACH];

    template <int layer>
    __device__ void ask(const REAL* theta) {
        if constexpr (layer < LAYERS && is_resident(layer)) {
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                of[layer - 1][i] = weights<layer>(theta, threadIdx.x / 32 * EACH + i, threadIdx.x % 32 * 4);
            }
        }
    }

    template <int layer>
    __device__ Four get(const REAL* theta, int i, int k, int j) const {
        if constexpr (is_resident(layer)) return of[layer - 1][i];
        return weights<layer>(theta, k + i, j);
    }
};

// What rows of an example go to, for the update: those that the last block may lack are left out.
struct Rows {
    int first, n;
    REAL *outputs, *gradients;

    __device__ void put(REAL* to, int layer, int r, int j, REAL value) const {
        const int columns = WIDTHS[layer + 1];
        if (first + r < n && j < columns) to[outputs_before(layer) * n + (first + r) * columns + j] = value;
    }
};

// next <- relu(in W + b), or without the relu for the last layer.
template <int layer>
__device__ void forward(const REAL* theta, const Kept& kept, Resident& resident, const Rows& rows) {
    constexpr int INPUTS = WIDTHS[layer], COLUMNS = WIDTHS[layer + 1];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const REAL(*in)[WIDEST] = resident.a[layer - 1], *biases = resident.biases + outputs_before(layer);
    const auto keep = [&](int r, int j, REAL z) {
        z = layer + 1 < LAYERS && z < 0 ? 0 : z;
        resident.a[layer][r][j] = z;
        if (layer + 1 < LAYERS) rows.put(rows.outputs, layer, r, j, z);
    };
    if constexpr (is_narrow(layer)) {  // a warp a column
        for (int j = warp; j < COLUMNS; j += WARPS) {
            for (int r = 0; r < ROWS; r++) {
                REAL sum = 0;
                for (int k = lane; k < INPUTS; k += 32) sum += in[r][k] * resident.last[k * COLUMNS + j];
                sum = warp_sum<32>(sum);
                if (lane == r) keep(r, j, sum + biases[j]);
            }
        }
    } else {  // a warp some inputs, a lane four columns
        for (int start = 0; start < COLUMNS; start += WIDE) {
            REAL sums[ROWS][4] = {};
            for (int k = warp * EACH; k < INPUTS; k += WIDE) {
#pragma unroll
                for (int i = 0; i < EACH; i++) {
                    const Four w = kept.get<layer>(theta, i, k, start + 4 * lane);
                    for (int r = 0; r < ROWS; r++) {
                        for (int c = 0; c < 4; c++) sums[r][c] += in[r][k + i] * w.at[c];
                    }
                }
            }
            for (int r = 0; r < ROWS; r++) *(Four*)&resident.parts[warp][r][start + 4 * lane] = *(Four*)sums[r];
        }
        __syncthreads();
        for (int e = threadIdx.x; e < ROWS * COLUMNS; e += THREADS) {
            const int r = e / COLUMNS, j = e % COLUMNS;
            REAL z = biases[j];
#pragma unroll
            for (int part = 0; part < WARPS; part++) z += resident.parts[part][r][j];
            keep(r, j, z);
        }
    }
    __syncthreads();
}

// below <- the gradient before the ReLU that returned a, from that after the layer, dz.
template <int layer>
__device__ void backward(const REAL* theta, const Kept& kept, Resident& resident, const Rows& rows) {
    constexpr int INPUTS = WIDTHS[layer], COLUMNS = WIDTHS[layer + 1];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const REAL(*dz)[WIDEST] = resident.dz[layer];
    const auto keep = [&](int r, int k, REAL sum) {
        const REAL below = resident.a[layer - 1][r][k] > 0 ? sum : REAL(0);
        resident.dz[layer - 1][r][k] = below;
        rows.put(rows.gradients, layer - 1, r, k, below);
    };
    if constexpr (is_narrow(layer)) {  // a thread an input
        for (int e = threadIdx.x; e < ROWS * INPUTS; e += THREADS) {
            const int r = e / INPUTS, k = e % INPUTS;
            REAL sum = 0;
#pragma unroll
            for (int j = 0; j < COLUMNS; j++) sum += dz[r][j] * resident.last[k * COLUMNS + j];
            keep(r, k, sum);
        }
    } else {  // a warp some inputs, a lane four columns
        for (int k = warp * EACH; k < INPUTS; k += WIDE) {
            REAL sums[ROWS * EACH] = {};
            for (int start = 0; start < COLUMNS; start += WIDE) {
#pragma unroll
                for (int i = 0; i < EACH; i++) {
                    const Four w = kept.get<layer>(theta, i, k, start + 4 * lane);
                    for (int r = 0; r < ROWS; r++) {
                        for (int c = 0; c < 4; c++) sums[r * EACH + i] += dz[r][start + 4 * lane + c] * w.at[c];
                    }
                }
            }
            warp_sums<ROWS * EACH / 2, 16>(sums);
            constexpr int SHARE = 32 / (ROWS * EACH);  // lanes that are left with the same sum
            const int mine = lane / SHARE;
            if (lane % SHARE == 0) keep(mine / EACH, k + mine % EACH, sums[0]);
        }
    }
    __syncthreads();
}

template <int layer>
__device__ void forward_from(const REAL* theta, const Kept& kept, Resident& resident, const Rows& rows) {
    if constexpr (layer < LAYERS) {
        forward<layer>(theta, kept, resident, rows);
        forward_from<layer + 1>(theta, kept, resident, rows);
    }
}

template <int layer>
__device__ void backward_from(const REAL* theta, const Kept& kept, Resident& resident, const Rows& rows) {
    if constexpr (layer > 0) {
        backward<layer>(theta, kept, resident, rows);
        backward_from<layer - 1>(theta, kept, resident, rows);
    }
}

// A block ROWS examples. outputs: what each layer returned, the first one's is there already; gradients: each one's dz.
// steps[0] is this step's number; it is copied for the next kernel, which counts on while nobody reads.
extern "C" __global__ void __launch_bounds__(THREADS)
    rows(const long long* y, const long long* order, int* steps, int batch_size, int n, const REAL* theta,
         REAL* outputs, REAL* gradients, REAL* row_losses) {
    constexpr int COLUMNS = WIDTHS[1], CLASSES = WIDTHS[LAYERS];
    Resident& resident = *(Resident*)shared_bytes;
    const Rows mine = {(int)blockIdx.x * ROWS, n, outputs, gradients};
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    // Whoever asks for what depends on an answer waits for it, so that comes last.
    const long long step = steps[0];
    Kept kept;
    kept.ask<1>(theta);
    kept.ask<2>(theta);
    const bool has_example = warp < ROWS && mine.first + warp < n;  // of the loss, in each of its warps
    const long long place = step * batch_size + mine.first + warp, index = has_example ? order[place] : 0;
    // All activations but the first, and behind them dz
    for (int e = ROWS * WIDEST + threadIdx.x; e < 2 * LAYERS * ROWS * WIDEST; e += THREADS) resident.a[0][0][e] = 0;
    for (int e = threadIdx.x; e < outputs_before(LAYERS); e += THREADS) resident.biases[e] = theta[biases_of(0) + e];
    if constexpr (is_narrow(LAYERS - 1)) {
        const REAL* from = theta + weights_of(LAYERS - 1);
        for (int e = threadIdx.x; e < WIDTHS[LAYERS - 1] * CLASSES; e += THREADS) resident.last[e] = from[e];
    }
    const int label = has_example ? y[index] : 0;
    wait_for_the_kernel_ahead();
    for (int e = threadIdx.x; e < ROWS * WIDEST; e += THREADS) {
        const int r = e / WIDEST, j = e % WIDEST;
        resident.a[0][0][e] = mine.first + r < n && j < COLUMNS ? outputs[(mine.first + r) * COLUMNS + j] : REAL(0);
    }
    __syncthreads();
    forward_from<1>(theta, kept, resident, mine);
    if (has_example) {
        REAL* slope = resident.dz[LAYERS - 1][warp];
        const REAL loss = softmax<CLASSES>(resident.a[LAYERS - 1][warp], slope, label, n);
        __syncwarp();
        for (int j = lane; j < CLASSES; j += 32) mine.put(gradients, LAYERS - 1, warp, j, slope[j]);
        if (lane == 0) row_losses[place] = loss;
    }
    __syncthreads();
    backward_from<LAYERS - 1>(theta, kept, resident, mine);
    if (blockIdx.x == 0 && threadIdx.x == 0) steps[1] = steps[0];
}

// What the optimizer is told. m and v: Adam's averages; SGD has none. rates: this step's rate, and for Adam: the rate
// over how much of its average m is, and one over the root of how much of its average v is. rest: 1 - beta, as float64
// has it.
struct Optimizer {
    REAL *theta, *m, *v;
    REAL rate, rate1, unit2, beta1, rest1, beta2, rest2, eps, l2, shrink;

    // One step for parameter w of gradient g, with its averages.
    __device__ void step(REAL g, REAL& w, REAL& of_g, REAL& of_g2, bool decays) const {
        if (decays) {
            g += l2 * w;
            w -= rate * shrink * w;
        }
        if (m) {
            of_g = beta1 * of_g + rest1 * g;
            of_g2 = beta2 * of_g2 + rest2 * g * g;
            w -= rate1 * of_g / (sqrt(of_g2) * unit2 + eps);
        } else {
            w -= rate * g;
        }
    }
};

// What a block of `update` has in shared memory: some examples, and at the end each slice's sums.
union Chunk {
    struct {
        REAL a[CHUNK][EDGE], dz[CHUNK][EDGE];
    };
    REAL parts[SLICES][EDGE + 1][EDGE];  // the last row: of the biases
};

// The main loop: add a slice of the examples in shared memory to a thread's accumulators, of 4 x 4 weights from (i, j)
// of the tile on, and where it has them, of four biases.
static __device__ __forceinline__ void accumulate(const Chunk& chunk, int slice, int i, int j, bool has_bias,
                                                  REAL (&sums)[4][4], REAL (&bias)[4]) {
#pragma unroll 8
    for (int e = slice; e < CHUNK; e += SLICES) {
        const Four x = *(const Four*)&chunk.a[e][i], slope = *(const Four*)&chunk.dz[e][j];
        for (int p = 0; p < 4; p++) {
            for (int q = 0; q < 4; q++) sums[p][q] += x.at[p] * slope.at[q];
        }
        if (has_bias) {
            for (int q = 0; q < 4; q++) bias[q] += slope.at[q];
        }
    }
}

// The epilogue of one bias, element `at` of theta: one of the first threads adds up the slices, and takes a step.
static __device__ __forceinline__ void update_bias(const Chunk& chunk, const Optimizer& optimizer, int at) {
    REAL sum = 0, b = optimizer.theta[at], none = 0;
    for (int part = 0; part < SLICES; part++) sum += chunk.parts[part][EDGE][threadIdx.x];
    REAL &of_b = optimizer.m ? optimizer.m[at] : none, &of_b2 = optimizer.m ? optimizer.v[at] : none;
    optimizer.step(sum, b, of_b, of_b2, false);
    optimizer.theta[at] = b;
}

// A tile of EDGE inputs and EDGE columns of one layer's weights: 64 threads a slice of the examples, each 4 x 4
// accumulators.
template <int layer>
__device__ void tile(int number_of_tile, const PIXEL* X, const long long* order, const int* step, int batch_size, int n,
                     const REAL* outputs, const REAL* gradients, Optimizer optimizer, const double* rates,
                     Chunk& chunk) {
    constexpr int INPUTS = WIDTHS[layer], COLUMNS = WIDTHS[layer + 1], ACROSS = up_to(EDGE, COLUMNS) / EDGE;
    constexpr int TILES = up_to(EDGE, INPUTS) / EDGE * ACROSS, FOURS = EDGE / 4, PASS = 8 * EDGE / FOURS;
    if (number_of_tile >= TILES) {
        if constexpr (layer + 1 < LAYERS) {
            tile<layer + 1>(number_of_tile - TILES, X, order, step, batch_size, n, outputs, gradients, optimizer, rates,
                            chunk);
        }
        return;
    }
    const int row = number_of_tile / ACROSS * EDGE, column = number_of_tile % ACROSS * EDGE;
    const int my_row = threadIdx.x / FOURS, my_four = threadIdx.x % FOURS * 4;  // of a tile, or of examples
    const REAL* below = outputs + outputs_before(layer - (layer > 0)) * n;
    const REAL* slopes = gradients + outputs_before(layer) * n;

    // The parameters that this thread will change, with their averages
    const long long place = weights_of(layer) + (long long)(row + my_row) * COLUMNS + column + my_four;
    const int there = row + my_row < INPUTS ? COLUMNS - column - my_four : 0;
    constexpr bool WHOLE = whole_weights(layer);
    Four w = several<WHOLE, 4>(optimizer.theta + place, there), of_g = {}, of_g2 = {};
    if (optimizer.m) {
        of_g = several<WHOLE, 4>(optimizer.m + place, there);
        of_g2 = several<WHOLE, 4>(optimizer.v + place, there);
    }
    wait_for_the_kernel_ahead();

    const int slice = threadIdx.x / 64, i = threadIdx.x % 64 / FOURS * 4, j = threadIdx.x % FOURS * 4;
    REAL sums[4][4] = {}, bias[4] = {};
    for (int start = 0; start < n; start += CHUNK) {
        // All are asked for before the first is needed
        Several<PIXEL, 4> pixels[CHUNK / PASS];
        Four a[CHUNK / PASS], dz[CHUNK / PASS];
#pragma unroll
        for (int e = 0; e < CHUNK / PASS; e++) {
            const int at = start + e * PASS + my_row, found = min(at, n - 1);
            dz[e] = several<whole_outputs(layer), 4>(slopes + found * COLUMNS + column + my_four,
                                                at < n ? COLUMNS - column - my_four : 0);
            const int k = row + my_four, inputs = at < n ? INPUTS - k : 0;
            if constexpr (layer == 0) {
                pixels[e] = several<INPUTS % 4 == 0, 4>(example(X, order, step, batch_size, found) + k, inputs);
            } else {
                a[e] = several<whole_outputs(layer - 1), 4>(below + found * INPUTS + k, inputs);
            }
        }
        if (start) __syncthreads();
#pragma unroll
        for (int e = 0; e < CHUNK / PASS; e++) {
            if constexpr (layer == 0) {
                for (int k = 0; k < 4; k++) a[e].at[k] = number(pixels[e].at[k]);
            }
            *(Four*)&chunk.a[e * PASS + my_row][my_four] = a[e];
            *(Four*)&chunk.dz[e * PASS + my_row][my_four] = dz[e];
        }
        __syncthreads();
        accumulate(chunk, slice, i, j, row == 0 && i == 0, sums, bias);
    }
    __syncthreads();
    for (int p = 0; p < 4; p++) *(Four*)&chunk.parts[slice][i + p][j] = *(Four*)sums[p];
    if (row == 0 && i == 0) *(Four*)&chunk.parts[slice][EDGE][j] = *(Four*)bias;
    rates += 3 * *step;
    optimizer.rate = rates[0], optimizer.rate1 = rates[1], optimizer.unit2 = rates[2];
    __syncthreads();
    Four g = {};
    for (int part = 0; part < SLICES; part++) {
        for (int q = 0; q < 4; q++) g.at[q] += chunk.parts[part][my_row][my_four + q];
    }
    for (int q = 0; q < 4; q++) optimizer.step(g.at[q], w.at[q], of_g.at[q], of_g2.at[q], true);
    put_several<WHOLE>(optimizer.theta + place, w, there);
    if (optimizer.m) {
        put_several<WHOLE>(optimizer.m + place, of_g, there);
        put_several<WHOLE>(optimizer.v + place, of_g2, there);
    }
    if (row == 0 && threadIdx.x < EDGE && column + threadIdx.x < COLUMNS) {
        update_bias(chunk, optimizer, biases_of(layer) + column + threadIdx.x);
    }
}

// A block a tile.
extern "C" __global__ void __launch_bounds__(8 * EDGE)
    update(const PIXEL* X, const long long* order, int* steps, int batch_size, int n, const REAL* outputs,
           const REAL* gradients, REAL* theta, REAL* m, REAL* v, const double* rates, REAL beta1, REAL rest1,
           REAL beta2, REAL rest2, REAL eps, REAL l2, REAL shrink) {
    __shared__ __align__(16) Chunk resident;
    const Optimizer optimizer = {theta, m, v, 0, 0, 0, beta1, rest1, beta2, rest2, eps, l2, shrink};
    tile<0>(blockIdx.x, X, order, steps + 1, batch_size, n, outputs, gradients, optimizer, rates, resident);
    if (blockIdx.x == 0 && threadIdx.x == 0) steps[0] = steps[1] + 1;
}
