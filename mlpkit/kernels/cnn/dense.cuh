// What the kernels at the end of a network share: its layers, and tiles of 64 x 64 by mma.sync.
//
// With three PRODUCTS a float32 is the sum of two TF32 values, and products of the small parts come first; each step's
// sums are added to the totals by ordinary additions, which round: see conv_7_tf32x3.cu. No two threads add to one
// element.

#include "fp16.cuh"

#ifndef PRODUCTS
#define PRODUCTS 3
#endif
#ifndef STAGES
#define STAGES 3  // pairs of tiles in shared memory: one is multiplied, the others are on their way
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

constexpr int NARROW = 16, INPUTS_OF_NARROW = 32;  // units of a layer, at most, whose dW is no tile; inputs of a block

// dW of a narrow layer, of INPUTS_OF_NARROW inputs from number `input` on: a lane has one, and a warp some of the
// examples. All loads of a turn are under way before the first product.
static __device__ __forceinline__ void narrow_dW(const Layer& layer, int n, int input)
{
    constexpr int WARPS = THREADS / 32, EACH = 16, AT_ONCE = WARPS * EACH, PITCH = INPUTS_OF_NARROW + 1;
    float *dz = reinterpret_cast<float*>(shared_bytes), *sums = dz + AT_ONCE * NARROW;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, units = layer.units;
    float totals[NARROW] = {};
    #pragma unroll 1
    for (int first = 0; first < n; first += AT_ONCE) {
        float x[EACH], of_dz[NARROW / 2];
        #pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const int row = first + warp * EACH + i;
            x[i] = row < n && input + lane < layer.inputs ? layer.x[(size_t)row * layer.inputs + input + lane] : 0;
        }
        #pragma unroll
        for (int i = 0; i < NARROW / 2; ++i) {
            const int row = threadIdx.x / NARROW + i * (THREADS / NARROW), j = threadIdx.x % NARROW;
            of_dz[i] = first + row < n && j < units ? layer.dz[(size_t)(first + row) * units + j] : 0;
        }
        #pragma unroll
        for (int i = 0; i < NARROW / 2; ++i) dz[threadIdx.x + i * THREADS] = of_dz[i];
        __syncthreads();
        #pragma unroll
        for (int i = 0; i < EACH; ++i)
            #pragma unroll
            for (int j = 0; j < NARROW; ++j) totals[j] += x[i] * dz[(warp * EACH + i) * NARROW + j];
        __syncthreads();
    }
    #pragma unroll
    for (int j = 0; j < NARROW; ++j) sums[(warp * NARROW + j) * PITCH + lane] = totals[j];
    __syncthreads();
    for (int i = threadIdx.x; i < INPUTS_OF_NARROW * units; i += THREADS) {
        const int k = i / units, j = i % units;
        float sum = 0;
        #pragma unroll
        for (int w = 0; w < WARPS; ++w) sum += sums[(w * NARROW + j) * PITCH + k];
        if (input + k < layer.inputs) layer.dW[(size_t)(input + k) * units + j] = sum;
    }
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

// Block number `block` of those of dW and db, layer by layer, dW only of the layers from `from` on; the last block is
// the loss's.
static __device__ __forceinline__ void rest(const Network& net, int block, int from, const float* row_losses,
                                            float* losses, int* step)
{
    for (int l = 0; l < net.count; ++l) {
        const Layer& layer = net.layers[l];
        const int sums = (layer.units + THREADS - 1) / THREADS, across = tiles_of(layer.units);
        const bool narrow = layer.units <= NARROW;
        const int down = narrow ? (layer.inputs + INPUTS_OF_NARROW - 1) / INPUTS_OF_NARROW : tiles_of(layer.inputs);
        const int tiles = l < from ? 0 : down * across;
        if (block < tiles && narrow) {
            narrow_dW(layer, net.n, block * INPUTS_OF_NARROW);
            return;
        }
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
