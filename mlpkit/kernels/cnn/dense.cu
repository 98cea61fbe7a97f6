// The end of a network: linear layers with ReLU between them, softmax cross-entropy, and the backward pass: three
// kernels.
//
// The first layer is wide: its sums are split-K, in slices, so that all multiprocessors have a part (`forward_parts`).
// All that follows is little, and of one example alone: a block has an example, adds up its slices, and goes on to the
// loss and back to the first layer's gradient (`examples`). What is left are products that nobody waits for: the
// weights' gradients, and that of the input, all at once (`gradients`).
//
// Tiles of 64 x 64 by mma.sync. With three PRODUCTS a float32 is the sum of two TF32 values, and products of the small
// parts come first; each step's sums are added to the totals by ordinary additions, which round: see conv_7_tf32x3.cu.
// No two threads add to one element.

#include "ptx.cuh"

#ifndef PRODUCTS
#define PRODUCTS 3
#endif
#ifndef STAGES
#define STAGES 3  // pairs of tiles in shared memory: one is multiplied, the others are on their way
#endif
#ifndef FEW
#define FEW 0  // whether there are at most eight slices, whose sums then come all at once
#endif
constexpr int TILE = 64, DEPTH = 32, THREADS = 256;  // of a block: two groups of warps, each with half of the depths
constexpr int TALL = DEPTH + 4, WIDE = TILE + 8;     // elements from row to row, so that no two lanes' banks do
constexpr int ELEMENTS = TILE * TALL;                // of a tile, of either form
static_assert(DEPTH * WIDE == ELEMENTS, "both forms take as much");

constexpr int MOST = 6;  // layers

// A layer: x (n, inputs), W (inputs, units), b (units,), and what is written: y (n, units), after the ReLU, for all
// layers but the last; dz (n, units), dW, db.
struct Layer {
    const float *x, *W, *b;
    float *y, *dz, *dW, *db;
    int inputs, units;
};

struct Network {
    Layer layers[MOST];
    float* dx;  // or null
    int count, n;
};

extern __shared__ __align__(128) unsigned char shared_bytes[];

// ---- Tiles ----

struct Matrix {
    const float* at;
    int rows, columns;  // one row after another
};

// An operand's tiles: rows from `row` on, and depth after depth from `first` to `end`, zeros outside. In memory its
// rows lie one after another, or TRANSPOSED its depths. In shared memory a tile is 64 x 32, or TRANSPOSED 32 x 64.
template <bool TRANSPOSED>
struct Operand {
    static constexpr int ACROSS = TRANSPOSED ? TILE : DEPTH, PITCH = TRANSPOSED ? WIDE : TALL, PIECES = ACROSS / 4;
    static constexpr int EACH = TILE * DEPTH / 4 / THREADS, DOWN = THREADS / PIECES;  // pieces of a thread, apart
    const Matrix& m;
    const float* from;  // this thread's first element
    int row, end_row, first, end, x, y;
    bool by_fours;

    __device__ Operand(const Matrix& m, int row, int end_row, int first, int end)
        : m(m), row(row), end_row(end_row), first(first), end(end)
    {
        x = threadIdx.x % PIECES * 4, y = threadIdx.x / PIECES;
        by_fours = m.columns % 4 == 0 && (TRANSPOSED ? end_row : end) % 4 == 0 && (size_t)m.at % 16 == 0;
        const int down = TRANSPOSED ? first : row, right = TRANSPOSED ? row : first;
        from = m.at + (size_t)(down + y) * m.columns + right + x;
    }

    // Copy tile `number`. Four elements at a time, where all rows begin at a multiple of 16 bytes.
    __device__ void load(float* to, int number) const
    {
        const int depth = number * DEPTH, left = end - first - depth;
        if (by_fours) {
            const float* here = from + (TRANSPOSED ? (size_t)depth * m.columns : depth);
            #pragma unroll
            for (int i = 0; i < EACH; ++i) {
                const bool inside = TRANSPOSED ? y + i * DOWN < left && row + x < end_row
                                           : x < left && row + y + i * DOWN < end_row;
                const float* piece = inside ? here + (size_t)i * DOWN * m.columns : m.at;
                cp_async<16>(to + (y + i * DOWN) * PITCH + x, piece, inside);
            }
        } else {
            for (int i = threadIdx.x; i < TILE * DEPTH; i += THREADS) {
                const int b = i / ACROSS, a = i % ACROSS, k = TRANSPOSED ? b : a, r = row + (TRANSPOSED ? a : b);
                const bool inside = k < left && r < end_row;
                const size_t place = TRANSPOSED ? (size_t)(first + depth + k) * m.columns + r
                                            : (size_t)r * m.columns + first + depth + k;
                cp_async<4>(to + b * PITCH + a, m.at + (inside ? place : 0), inside);
            }
        }
    }
};

struct Parts {
    Word high, low;
};

// Tensor cores truncate a float32 to 10 bits: a little more than x, truncated, is nearly x rounded. See
// implicit_tf32.cuh. Before Ampere no tensor core takes it, and all bits count: nothing is left for a low part.
__device__ Parts split(float x)
{
    if (!AMPERE) return {__float_as_uint(x), 0};
    const Word high = __float_as_uint(x * 1.00034526698f) & ~0x1fffu;
    return {high, __float_as_uint(x - __uint_as_float(high))};
}

// A lane's fragments of 32 rows of A and 32 columns of B, 8 depths each: high and low parts.
struct Pieces {
    Word a[2][2][4], b[2][4][2];
};

// a, b: where this lane's elements of the tiles begin. step: a multiple of 8 depths.
template <bool A_TRANSPOSED, bool B_TRANSPOSED>
__device__ void fetch(Pieces& to, const float* a, const float* b, int step)
{
    #pragma unroll
    for (int l = 0; l < 4; ++l) {
        #pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int m = 16 * i + l % 2 * 8, k = step + l / 2 * 4;
            const Parts parts = split(a[A_TRANSPOSED ? k * WIDE + m : m * TALL + k]);
            to.a[0][i][l] = parts.high, to.a[1][i][l] = parts.low;
        }
        #pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int n = 8 * l, k = step + 4 * half;
            const Parts parts = split(b[B_TRANSPOSED ? n * TALL + k : k * WIDE + n]);
            to.b[0][l][half] = parts.high, to.b[1][l][half] = parts.low;
        }
    }
}

// Add the products of all pieces. Those that follow each other are of different columns: none waits for the last one.
__device__ void multiply(float (&totals)[2][4][4], const Pieces& pieces)
{
    #pragma unroll
    for (int i = 0; i < 2; ++i) {
        float sums[4][4] = {};
        #pragma unroll
        for (int product = AMPERE ? 3 - PRODUCTS : 2; product < 3; ++product)  // low high, high low, high high
            #pragma unroll
            for (int j = 0; j < 4; ++j) {
                auto& to = PRODUCTS == 1 ? totals[i][j] : sums[j];
                mma_m16n8k8_tf32(to, pieces.a[product == 0][i], pieces.b[product == 1][j]);
            }
        #pragma unroll
        for (int n = 0; n < 16 && PRODUCTS > 1; ++n) totals[i][n / 4][n % 4] += sums[n / 4][n % 4];
    }
}

// The place of a lane's sums (i, j, l) in a tile: row, column.
__device__ int2 place(int i, int j, int l)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    return {warp / 2 * 32 + 16 * i + l / 2 * 8 + lane / 4, warp % 2 * 32 + 8 * j + 2 * (lane % 4) + l % 2};
}

// Write a tile: the sums of both groups of warps. largest: null, or the bits of a magnitude, which become those of the
// tile's largest element, if that is larger.
__device__ void store(float (&totals)[2][4][4], float* to, int rows, int columns, int row, int column, Word* largest)
{
    float* others = reinterpret_cast<float*>(shared_bytes);
    const bool second = threadIdx.x >= THREADS / 2;
    __syncthreads();  // the tiles have been read
    #pragma unroll
    for (int n = 0; n < 32 && second; ++n)
        others[n * (THREADS / 2) + threadIdx.x - THREADS / 2] = totals[n / 16][n / 4 % 4][n % 4];
    __syncthreads();
    float most = 0;
    #pragma unroll
    for (int n = 0; n < 32 && !second; ++n) {
        const int2 at = place(n / 16, n / 4 % 4, n % 4);
        const float sum = totals[n / 16][n / 4 % 4][n % 4] + others[n * (THREADS / 2) + threadIdx.x];
        if (row + at.x < rows && column + at.y < columns) to[(size_t)(row + at.x) * columns + column + at.y] = sum;
        most = fmaxf(most, fabsf(sum));
    }
    if (!largest) return;
    const Word found = __reduce_max_sync(~0u, __float_as_uint(most));
    if (threadIdx.x % 32 == 0) atomicMax(largest, found);
}

// The tile (64, 64) of a product, from (row, column) on, of the depths from `first` to `end`. A (rows, depth), or
// TRANSPOSED, (depth, rows); B (depth, columns), or TRANSPOSED (columns, depth). Result: to (rows, columns).
template <bool A_TRANSPOSED, bool B_TRANSPOSED>
__device__ void tile(const Matrix& A, const Matrix& B, float* to, int rows, int columns, int row, int column, int first,
                     int end, Word* largest = nullptr)
{
    float* shared = reinterpret_cast<float*>(shared_bytes);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, k = warp / 4 * (DEPTH / 2) + lane % 4;
    const int y = warp % 4 / 2 * 32 + lane / 4, x = warp % 2 * 32 + lane / 4;
    const int mine_of_a = A_TRANSPOSED ? k * WIDE + y : y * TALL + k;
    const int mine_of_b = B_TRANSPOSED ? x * TALL + k : k * WIDE + x;
    const Operand<A_TRANSPOSED> of_a(A, row, rows, first, end);
    const Operand<!B_TRANSPOSED> of_b(B, column, columns, first, end);
    const int count = (end - first + DEPTH - 1) / DEPTH;
    const auto ask = [&](int number) {
        float* to = shared + number % STAGES * 2 * ELEMENTS;
        if (number < count) of_a.load(to, number), of_b.load(to + ELEMENTS, number);
        cp_async_commit_group();
    };
    float totals[2][4][4] = {};
    #pragma unroll
    for (int number = 0; number < STAGES - 1; ++number) ask(number);
    for (int number = 0; number < count; ++number) {
        cp_async_wait_group<STAGES - 2>();
        __syncthreads();  // all of the tile is there, and the one before it has been read
        ask(number + STAGES - 1);
        const float* tiles = shared + number % STAGES * 2 * ELEMENTS;
        #pragma unroll(PRODUCTS == 1 ? 2 : 1)
        for (int step = 0; step < DEPTH / 2; step += 8) {
            Pieces pieces;
            fetch<A_TRANSPOSED, B_TRANSPOSED>(pieces, tiles + mine_of_a, tiles + ELEMENTS + mine_of_b, step);
            multiply(totals, pieces);
        }
    }
    cp_async_wait_all();
    store(totals, to, rows, columns, row, column, largest);
}

__device__ int tiles_of(int length) { return (length + TILE - 1) / TILE; }

// parts (slices, n, units): the first layer's sums over `slice` of its inputs each.
extern "C" __global__ __launch_bounds__(THREADS, 1)
void forward_parts(const __grid_constant__ Network net, float* parts, int slice)
{
    begin_in_turn();
    const Layer& first = net.layers[0];
    const int across = tiles_of(first.units), down = tiles_of(net.n), i = blockIdx.x / (across * down);
    const int row = blockIdx.x / across % down * TILE, column = blockIdx.x % across * TILE;
    float* to = parts + (size_t)i * net.n * first.units;
    tile<false, false>({first.x, net.n, first.inputs}, {first.W, first.inputs, first.units}, to, net.n, first.units,
                       row, column, i * slice, min(i * slice + slice, first.inputs));
}

// ---- One example ----

__device__ float relu(float z) { return z < 0 ? 0 : z; }  // in this order a NaN stays a NaN

// The sum over lanes of a group of 16; all of them get it.
__device__ float group_sum(float x)
{
    for (int distance = 8; distance > 0; distance /= 2) x += __shfl_xor_sync(~0u, x, distance);
    return x;
}

// Copy elements to shared memory, 16 bytes at a time where that is possible. A commit of the copies is left to do.
__device__ void fetch(float* to, const float* from, int elements)
{
    if (elements % 4 == 0 && (size_t)from % 16 == 0 && (size_t)to % 16 == 0) {
        for (int i = 4 * threadIdx.x; i < elements; i += 4 * THREADS) cp_async<16>(to + i, from + i);
    } else {
        for (int i = threadIdx.x; i < elements; i += THREADS) cp_async<4>(to + i, from + i);
    }
}

// Softmax cross-entropy of an example, and its gradient in the logits' place. By a warp.
static __device__ __forceinline__ void softmax(const Network& net, const Layer& top, int row, const long long* labels,
                                               float* dz, float* row_losses)
{
    const int label = labels[row];
    const float right = dz[label];
    float largest = dz[0], total = 0;
    for (int j = 1; j < top.units; ++j) largest = fmaxf(largest, dz[j]);
    for (int j = threadIdx.x; j < top.units; j += 32) total += expf(dz[j] - largest);
    for (int distance = 16; distance > 0; distance /= 2) total += __shfl_xor_sync(~0u, total, distance);
    const float scale = 1 / (total * net.n);
    __syncwarp();
    for (int j = threadIdx.x; j < top.units; j += 32) {
        dz[j] = expf(dz[j] - largest) * scale - (j == label ? 1.0f / net.n : 0.0f);
        top.dz[(size_t)row * top.units + j] = dz[j];
    }
    if (threadIdx.x == 0) row_losses[row] = logf(total) - (right - largest);
}

// dz_before, the gradient before the ReLU in front of a layer, from dz, that after the layer. before: what the ReLU
// returned.
static __device__ __forceinline__ void backward(const Network& net, int l, int row, const float* W, const float* before,
                                                const float* dz, float* dz_before)
{
    const Layer& layer = net.layers[l];
    const int lanes = layer.units <= 16 ? 1 : 16, lane = threadIdx.x % lanes;  // of an input
    #pragma unroll 2
    for (int first = 0; first < layer.inputs; first += THREADS / lanes) {
        const int k = first + threadIdx.x / lanes;
        float sum = 0;
        #pragma unroll 8
        for (int j = lane; j < layer.units && k < layer.inputs; j += lanes) sum += dz[j] * W[k * layer.units + j];
        if (lanes > 1) sum = group_sum(sum);
        if (lane == 0 && k < layer.inputs) {
            dz_before[k] = before[k] > 0 ? sum : 0;
            net.layers[l - 1].dz[(size_t)row * layer.inputs + k] = dz_before[k];
        }
    }
    __syncthreads();
}

// In shared memory: the activations of each layer but the last, partial sums, the gradients of two layers, and if they
// fit, the weights of all layers but the first, which are `resident`: they come while the slices are added up.
extern "C" __global__ __launch_bounds__(THREADS, 2)
void examples(const __grid_constant__ Network net, const float* parts, int slices, const long long* labels,
              float* row_losses, int widest, int resident, Word* largest_of_dx)
{
    if (largest_of_dx && blockIdx.x == 0 && threadIdx.x == 0) *largest_of_dx = 0;  // before `gradients` looks for it
    float* activations = reinterpret_cast<float*>(shared_bytes);
    float *partial = activations + (MOST - 1) * widest, *dz = partial + max(THREADS, widest), *dz_before = dz + widest;
    const int row = blockIdx.x, last = net.count - 1;
    float *weights = dz_before + widest, *end = weights;
    for (int l = 1; l <= last && resident; ++l) {
        const int elements = net.layers[l].inputs * net.layers[l].units;
        fetch(end, net.layers[l].W, elements);
        end += elements;
    }
    for (int l = 0; l <= last; ++l) {
        const Layer& layer = net.layers[l];
        const float* W = resident ? weights : layer.W;
        const int units = layer.units, groups = l ? max(1, THREADS / units) : 1;
        float* here = l == last ? dz : activations + l * widest;
        const float* before = activations + (l - 1) * widest;
        for (int i = threadIdx.x; i < groups * units; i += THREADS) {
            const int group = i / units, j = i % units;
            float sum = 0;
            if (l == 0 && FEW) {
                float found[8];
                #pragma unroll
                for (int s = 0; s < 8; ++s) found[s] = s < slices ? parts[((size_t)s * net.n + row) * units + j] : 0;
                #pragma unroll
                for (int s = 0; s < 8; ++s) sum += found[s];
            } else if (l == 0) {
                #pragma unroll 8
                for (int s = 0; s < slices; ++s) sum += parts[((size_t)s * net.n + row) * units + j];
            } else {
                #pragma unroll 8
                for (int k = group; k < layer.inputs; k += groups) sum += before[k] * W[k * units + j];
            }
            partial[i] = sum;
        }
        if (l == 0) cp_async_wait_all();
        if (l > 0) weights += layer.inputs * units;
        __syncthreads();
        for (int j = threadIdx.x; j < units; j += THREADS) {
            float sum = layer.b[j];
            for (int group = 0; group < groups; ++group) sum += partial[group * units + j];
            here[j] = l < last ? relu(sum) : sum;
            if (l < last) layer.y[(size_t)row * units + j] = here[j];
        }
        __syncthreads();
    }
    if (threadIdx.x < 32) softmax(net, net.layers[last], row, labels, dz, row_losses);
    __syncthreads();
    for (int l = last; l > 0; --l) {
        const Layer& layer = net.layers[l];
        const float* before = activations + (l - 1) * widest;
        const float* W = resident ? weights -= layer.inputs * layer.units : layer.W;
        backward(net, l, row, W, before, dz, dz_before);
        float* other = dz;
        dz = dz_before, dz_before = other;
    }
}

// ---- What nobody waits for ----

// sums (units,) of dz (n, units): a thread a column.
__device__ void column_sums(const float* dz, float* sums, int n, int units, int j)
{
    if (j >= units) return;
    float sum = 0;
    #pragma unroll 32
    for (int row = 0; row < n; ++row) sum += dz[(size_t)row * units + j];
    sums[j] = sum;
}

// The mean of the losses; then *step goes on by one.
__device__ void mean_loss(const float* row_losses, int n, float* losses, int* step)
{
    double* sums = reinterpret_cast<double*>(shared_bytes);
    double sum = 0;
    for (int row = threadIdx.x; row < n; row += THREADS) sum += row_losses[row];
    for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(~0u, sum, distance);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x) return;
    for (int warp = 1; warp < THREADS / 32; ++warp) sum += sums[warp];
    losses[step ? (*step)++ : 0] = sum / n;
}

// largest: null, or for the bits of the largest magnitude in dx, 0 before.
// First the blocks of dx, whose sums are the longest, then those of dW and db, layer by layer; the last is the loss's.
extern "C" __global__ __launch_bounds__(THREADS, 2)
void gradients(const __grid_constant__ Network net, const float* row_losses, float* losses, int* step, Word* largest)
{
    int block = blockIdx.x;
    const Layer& first = net.layers[0];
    const int inputs = tiles_of(first.inputs), tiles_of_dx = net.dx ? tiles_of(net.n) * inputs : 0;
    if (block < tiles_of_dx) {
        tile<false, true>({first.dz, net.n, first.units}, {first.W, first.inputs, first.units}, net.dx, net.n,
                          first.inputs, block / inputs * TILE, block % inputs * TILE, 0, first.units, largest);
        return;
    }
    block -= tiles_of_dx;
    for (int l = 0; l < net.count; ++l) {
        const Layer& layer = net.layers[l];
        const int sums = (layer.units + THREADS - 1) / THREADS, across = tiles_of(layer.units);
        const int tiles = tiles_of(layer.inputs) * across;
        if (block < tiles) {
            tile<true, false>({layer.x, net.n, layer.inputs}, {layer.dz, net.n, layer.units}, layer.dW, layer.inputs,
                              layer.units, block / across * TILE, block % across * TILE, 0, net.n);
            return;
        }
        block -= tiles;
        if (block < sums) {
            column_sums(layer.dz, layer.db, net.n, layer.units, block * THREADS + threadIdx.x);
            return;
        }
        block -= sums;
    }
    mean_loss(row_losses, net.n, losses, step);
}
