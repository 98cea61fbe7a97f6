// The wide first one of the linear layers at a network's end, on Hopper: its three products by wgmma, of fp16 parts.
//
// needs sm_90a
//
// It takes the place of two kernels of dense.cu, and there is little to wait for in either: a block asks for all that it
// multiplies at once, makes it the sum of fp16 parts on its way to shared memory, and multiplies. fp16 has few
// exponents, so each row and each column of an operand has a scale of its own, a power of two; a block has them whole in
// the direction of the sum, and its sums are scaled back in the end.
//
// Forward (`forward_parts`): a block has a slice of the inputs, and 64 units. Back (`gradients`): a block has 32 inputs,
// the examples' gradient dz whole, and with it both dx and dW: dz is read once for both. It lies in fp16 parts already,
// as `examples` of dense.cu leaves it: eight units a piece, with a scale for each example. In dW the sum is over the
// examples, so their scales are taken out of x.
//
// Pieces lie in planes, a piece a row, an odd number of pieces apart where wgmma transposes: see conv_12.

#include "dense.cuh"
#include "wgmma.cuh"

#ifndef ROWS
#define ROWS 128   // examples
#define GROUPS 32  // of eight units, a power of two
#endif

constexpr int MANY = 512, WARPGROUPS = 4;  // threads of a block
constexpr int PROMOTED = 64;               // depths that tensor cores add up before an ordinary addition does
constexpr int SLICE = 128, UNITS = 64;     // inputs and units of a block of `forward_parts`
constexpr int INPUTS = 32;                 // of a block of `gradients`
constexpr int FIRST_PRODUCT = PARTS == 2 ? 0 : 2;

// Eight values that follow each other, and where their parts go: the low ones behind all high ones.
struct Eight {
    float x[8];

    __device__ void load(const float* from, bool inside)
    {
        const float4* fours = reinterpret_cast<const float4*>(from);
        const float4 zero = {}, one = inside ? fours[0] : zero, two = inside ? fours[1] : zero;
        floats_of(one, two, x);
    }

    __device__ void store(Piece* to, int low) const
    {
        Piece parts[PARTS];
        pieces_of(x, 1, parts);
        #pragma unroll
        for (int part = 0; part < PARTS; ++part) put(to + part * low, parts[part]);
    }
};

// 1 / x of a power of two, to the bit.
inline float inverse(float x) { return __uint_as_float((254u << 23) - __float_as_uint(x)); }

// One of wgmma's operands: where its high parts begin, how far behind them the low ones are, and how far apart 16
// depths; leading, stride: as `descriptor` takes them. All in bytes.
struct Side {
    Word at, low, step, leading, stride;

    __device__ Word64 operator()(int k, bool is_low) const
    {
        return descriptor(at + k * step + is_low * low, leading, stride);
    }
};

// Add a b, of DEPTHS values, to a warpgroup's totals. See conv_7_tf32x3.cu on the order of the products. ready(i): is
// called before the PROMOTED depths number i are read.
template <int TRANSPOSED, int N, int DEPTHS, typename Ready>
static __device__ __forceinline__ void multiply(float (&totals)[N / 2], const Side& a, const Side& b, Ready ready)
{
    #pragma unroll 1  // what runs once has to be fetched, too
    for (int first = 0; first < DEPTHS / 16; first += PROMOTED / 16) {
        float sums[N / 2];
        ready(first / (PROMOTED / 16));
        wgmma_fence();
        #pragma unroll
        for (int product = FIRST_PRODUCT; product < 3; ++product)
            #pragma unroll
            for (int k = 0; k < PROMOTED / 16; ++k) {
                const Word64 of_a = a(first + k, product == 0), of_b = b(first + k, product == 1);
                if (product == FIRST_PRODUCT && k == 0) wgmma<FP16, TRANSPOSED, N, true>(sums, of_a, of_b);
                else wgmma<FP16, TRANSPOSED, N>(sums, of_a, of_b);
            }
        wgmma_commit_group();
        wgmma_wait_group<0>();
        #pragma unroll
        for (int i = 0; i < N / 2; ++i) totals[i] += sums[i];
    }
}

// Of what a thread has of a product: the row of its sums 4 i + 2 half, and the column of the first of these two.
inline int row_of(int half) { return threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4 + 8 * half; }
inline int column_of(int i) { return 8 * i + 2 * (threadIdx.x % 4); }

// Find the largest of columns of which lanes FROM apart have eight each, and leave it in shared memory: lanes share the
// columns, so that each has 8 FROM / 32 of them in the end.
template <int FROM, int EACH>
inline void leave_largest(const Eight (&eights)[EACH], float* columns)
{
    constexpr int STEPS = FROM == 4 ? 3 : 2;
    static_assert(FROM << STEPS == 32, "of a warp");
    const int lane = threadIdx.x % 32;
    int column = lane % FROM * 8;
    Word most[8];
    #pragma unroll
    for (int j = 0; j < 8; ++j) {
        float largest = 0;
        #pragma unroll
        for (int i = 0; i < EACH; ++i) largest = fmaxf(largest, fabsf(eights[i].x[j]));
        most[j] = __float_as_uint(largest);
    }
    #pragma unroll
    for (int step = 0; step < STEPS; ++step) {
        const int many = 4 >> step, distance = 16 >> step;
        const bool upper = lane & distance;
        column += upper ? many : 0;
        #pragma unroll
        for (int j = 0; j < 4; ++j) {
            if (j >= many) break;
            const Word send = upper ? most[j] : most[j + many], keep = upper ? most[j + many] : most[j];
            most[j] = max(keep, __shfl_xor_sync(~0u, send, distance));
        }
    }
    #pragma unroll
    for (int j = 0; j < 8 >> STEPS; ++j) atomicMax(reinterpret_cast<Word*>(columns) + column + j, most[j]);
}

inline void scale_by(Eight& eight, float by)
{
    #pragma unroll
    for (int j = 0; j < 8; ++j) eight.x[j] *= by;
}

// The scale of a row of which `lanes` lanes, side by side, have eight values each; these are scaled.
inline float scale_row(Eight& eight, int lanes)
{
    Word most = __float_as_uint(largest_of(eight.x));
    #pragma unroll
    for (int distance = 1; distance < lanes; distance *= 2) most = max(most, __shfl_xor_sync(~0u, most, distance));
    const float scale = scale_for(most);
    scale_by(eight, scale);
    return scale;
}

// What columns are to be multiplied by, and what their sums are to be multiplied by then, in place of their largest
// values: by whole warps, a lane a column.
inline void settle_scales(float* columns, float* back, int count)
{
    if (threadIdx.x >= count) return;
    const float scale = scale_for(__float_as_uint(columns[threadIdx.x]));
    columns[threadIdx.x] = scale, back[threadIdx.x] = inverse(scale);
}

// Scale columns, and store them: a thread's piece number i at where(i).
template <int EACH, typename Where>
inline void store_scaled(Eight (&eights)[EACH], const float* columns, int low, Where where)
{
    const float4 one = *reinterpret_cast<const float4*>(columns), two = *reinterpret_cast<const float4*>(columns + 4);
    float scales[8];
    floats_of(one, two, scales);
    #pragma unroll
    for (int i = 0; i < EACH; ++i) {
        #pragma unroll
        for (int j = 0; j < 8; ++j) eights[i].x[j] *= scales[j];
        eights[i].store(where(i), low);
    }
}

// ---- Forward ----

constexpr int X_GROUPS = SLICE / 8, X_PLANE = ROWS + 1, W_GROUPS = UNITS / 8, W_PLANE = SLICE + 1;  // planes in pieces

// parts (slices, ROWS, units): the sums over SLICE inputs each. early: whether the weights were there before the kernel
// before this one began.
extern "C" __global__ __launch_bounds__(MANY, 1)
void forward_parts(const __grid_constant__ Network net, float* parts, int early)
{
    constexpr int X_EACH = ROWS * X_GROUPS / MANY, W_EACH = SLICE * W_GROUPS / MANY;
    constexpr int X_DOWN = MANY / X_GROUPS, W_DOWN = MANY / W_GROUPS, ACROSS = 8 * GROUPS / UNITS;
    const Layer& first = net.layers[0];
    const int slice = blockIdx.x / ACROSS, unit = blockIdx.x % ACROSS * UNITS, input = slice * SLICE;
    const int thread = threadIdx.x, depth = min(SLICE, first.inputs - input);
    const int x_column = thread % X_GROUPS, x_row = thread / X_GROUPS;
    const int W_column = thread % W_GROUPS, W_row = thread / W_GROUPS;
    Piece *x_at = reinterpret_cast<Piece*>(shared_bytes), *W_at = x_at + PARTS * X_GROUPS * X_PLANE;
    float* of_rows = reinterpret_cast<float*>(W_at + PARTS * W_GROUPS * W_PLANE);  // what scales their sums back
    float *of_units = of_rows + ROWS, *units_back = of_units + UNITS;
    if (thread < UNITS) of_units[thread] = 0;
    __syncthreads();
    if (!early) begin_in_turn();
    Eight x[X_EACH], W[W_EACH];
    #pragma unroll
    for (int i = 0; i < W_EACH; ++i)
        W[i].load(first.W + (size_t)(input + W_row + i * W_DOWN) * (8 * GROUPS) + unit + 8 * W_column,
                  W_row + i * W_DOWN < depth);
    if (early) begin_in_turn();
    #pragma unroll
    for (int i = 0; i < X_EACH; ++i)
        x[i].load(first.x + (size_t)(x_row + i * X_DOWN) * first.inputs + input + 8 * x_column, 8 * x_column < depth);
    leave_largest<W_GROUPS>(W, of_units);
    #pragma unroll
    for (int i = 0; i < X_EACH; ++i) {
        const float scale = scale_row(x[i], X_GROUPS);
        x[i].store(x_at + x_column * X_PLANE + x_row + i * X_DOWN, X_GROUPS * X_PLANE);
        if (x_column == 0) of_rows[x_row + i * X_DOWN] = inverse(scale);
    }
    __syncthreads();
    settle_scales(of_units, units_back, UNITS);
    __syncthreads();
    store_scaled(W, of_units + 8 * W_column, W_GROUPS * W_PLANE,
                 [&](int i) { return W_at + W_column * W_PLANE + W_row + i * W_DOWN; });
    fence_proxy_async();  // wgmma reads shared memory by another way than threads write it
    __syncthreads();
    constexpr int N = UNITS * ROWS / 64 / WARPGROUPS;  // columns of a warpgroup, and how many have the same rows
    constexpr int SIDE_BY_SIDE = UNITS / N;
    const int group = __shfl_sync(~0u, thread / 128, 0), row = group / SIDE_BY_SIDE * 64, column = group % SIDE_BY_SIDE * N;
    const Side a = {shared_address(x_at) + row * 16, X_GROUPS * X_PLANE * 16, 2 * X_PLANE * 16, X_PLANE * 16, 128};
    const Side b = {shared_address(W_at) + column / 8 * W_PLANE * 16, W_GROUPS * W_PLANE * 16, 256, 128, W_PLANE * 16};
    float totals[N / 2] = {};
    multiply<ONLY_B, N, SLICE>(totals, a, b, [](int) {});
    float* to = parts + ((size_t)slice * ROWS + row) * (8 * GROUPS) + unit + column;
    const float of_row[2] = {of_rows[row + row_of(0)], of_rows[row + row_of(1)]};
    #pragma unroll
    for (int i = 0; i < N / 8; ++i) {
        const float2 back = *reinterpret_cast<const float2*>(units_back + column + column_of(i));
        #pragma unroll
        for (int half = 0; half < 2; ++half)
            *reinterpret_cast<float2*>(to + row_of(half) * (8 * GROUPS) + column_of(i)) = {
                totals[4 * i + 2 * half] * of_row[half] * back.x, totals[4 * i + 2 * half + 1] * of_row[half] * back.y};
    }
}

// ---- Back ----

constexpr int DZ_PLANE = ROWS + 1, BACK_PLANE = INPUTS + 1, BACK_GROUPS = INPUTS / 8;  // planes in pieces
constexpr int CHUNK = PROMOTED / 8, CHUNKS = GROUPS / CHUNK;  // groups of dz that come together

// What a block of `gradients` has in shared memory.
struct Block {
    Piece dz[PARTS * GROUPS * DZ_PLANE], W[PARTS * GROUPS * BACK_PLANE], x[PARTS * BACK_GROUPS * DZ_PLANE];
    float of_rows[ROWS], of_W[INPUTS], of_x[INPUTS], x_back[INPUTS];  // scales, and all but of_x of what scales sums back
};

// Ask for dz, a plane at a time, chunk after chunk: the first one is multiplied while the others come. By a warp.
static __device__ __forceinline__ void ask_for_dz(Block& b, const Piece* dz, Word64* barriers)
{
    if (threadIdx.x < CHUNKS) mbarrier_arrive_expect_tx(barriers + threadIdx.x, PARTS * CHUNK * ROWS * sizeof(Piece));
    __syncwarp();
    for (int i = threadIdx.x; i < PARTS * GROUPS; i += 32) {
        const int chunk = i / (PARTS * CHUNK), plane = i / CHUNK % PARTS * GROUPS + chunk * CHUNK + i % CHUNK;
        cp_async_bulk(b.dz + plane * DZ_PLANE, dz + plane * ROWS, ROWS * sizeof(Piece), barriers + chunk);
    }
}

// dx of 64 examples from number `row` on. By a warpgroup, as the next one.
static __device__ __forceinline__ void leave_dx(const Network& net, const Block& b, int input, int row, Word64* barriers,
                                                Word* largest)
{
    const Side dz = {shared_address(b.dz + row), GROUPS * DZ_PLANE * 16, 2 * DZ_PLANE * 16, DZ_PLANE * 16, 128};
    const Side W = {shared_address(b.W), GROUPS * BACK_PLANE * 16, 2 * BACK_PLANE * 16, BACK_PLANE * 16, 128};
    float totals[INPUTS / 2] = {}, most = 0;
    multiply<NEITHER, INPUTS, 8 * GROUPS>(totals, dz, W, [&](int chunk) { wait(barriers + chunk, 0); });
    float* to = net.dx + (size_t)row * net.layers[0].inputs + input;
    const float of_row[2] = {b.of_rows[row + row_of(0)], b.of_rows[row + row_of(1)]};
    #pragma unroll
    for (int i = 0; i < INPUTS / 8; ++i) {
        const float2 of_W = *reinterpret_cast<const float2*>(b.of_W + column_of(i));
        #pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float2 dx = {totals[4 * i + 2 * half] * of_row[half] * of_W.x,
                               totals[4 * i + 2 * half + 1] * of_row[half] * of_W.y};
            *reinterpret_cast<float2*>(to + (size_t)row_of(half) * net.layers[0].inputs + column_of(i)) = dx;
            most = fmaxf(most, fmaxf(fabsf(dx.x), fabsf(dx.y)));
        }
    }
    if (!largest) return;
    const Word found = __reduce_max_sync(~0u, __float_as_uint(most));
    if (threadIdx.x % 32 == 0) atomicMax(largest, found);
}

// dW of 64 units from number `unit` on.
static __device__ __forceinline__ void leave_dW(const Network& net, const Block& b, int input, int unit)
{
    const Side dz = {shared_address(b.dz + unit / 8 * DZ_PLANE), GROUPS * DZ_PLANE * 16, 256, 128, DZ_PLANE * 16};
    const Side x = {shared_address(b.x), BACK_GROUPS * DZ_PLANE * 16, 256, 128, DZ_PLANE * 16};
    float totals[INPUTS / 2] = {};
    multiply<BOTH, INPUTS, ROWS>(totals, dz, x, [](int) {});
    float* to = net.layers[0].dW + (size_t)input * (8 * GROUPS) + unit + row_of(0);
    #pragma unroll
    for (int i = 0; i < INPUTS / 8; ++i)
        #pragma unroll
        for (int j = 0; j < 2; ++j) {
            const int column = column_of(i) + j;
            const float back = b.x_back[column];
            to[column * (8 * GROUPS)] = totals[4 * i + j] * back;
            to[column * (8 * GROUPS) + 8] = totals[4 * i + 2 + j] * back;
        }
}

// A block's products: a warpgroup has dx of 64 examples, or dW of some of the units.
static __device__ __forceinline__ void leave_products(const Network& net, const Block& b, int input, Word64* barriers,
                                                      Word* largest)
{
    constexpr int OF_DX = ROWS / 64;
    const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);
    if (group >= OF_DX) {
        #pragma unroll 1
        for (int unit = (group - OF_DX) * 64; unit < 8 * GROUPS; unit += (WARPGROUPS - OF_DX) * 64) {
            wait(barriers + unit / PROMOTED, 0);
            leave_dW(net, b, input, unit);
        }
    } else if (net.dx) {
        leave_dx(net, b, input, group * 64, barriers, largest);
    }
}

// dz: as `examples` leaves it in parts, with the scales of_rows (ROWS,). The others are those of dense.cu's `gradients`.
// The blocks of the first layer come first. Until it waits, a block may read what was there before `examples` began.
extern "C" __global__ __launch_bounds__(MANY, 1)
void gradients(const __grid_constant__ Network net, const float* row_losses, float* losses, int* step, Word* largest,
               const Piece* dz, const float* of_rows)
{
    constexpr int X_EACH = (ROWS * BACK_GROUPS + MANY - 1) / MANY, X_DOWN = MANY / BACK_GROUPS;
    constexpr int W_EACH = (INPUTS * GROUPS + MANY - 1) / MANY, W_DOWN = MANY / GROUPS;
    __shared__ Word64 barriers[CHUNKS];  // of dz
    const Layer& first = net.layers[0];
    const int blocks = first.inputs / INPUTS, input = blockIdx.x * INPUTS, thread = threadIdx.x;
    if (blockIdx.x >= blocks) {
        begin_in_turn();
        if (thread < THREADS) rest(net, blockIdx.x - blocks, 1, row_losses, losses, step);  // the others are done
        return;
    }
    Block& b = *reinterpret_cast<Block*>(shared_bytes);
    const int x_column = thread % BACK_GROUPS, x_row = thread / BACK_GROUPS;
    if (thread < CHUNKS) mbarrier_init<1>(barriers + thread), fence_proxy_async();
    if (thread < INPUTS) b.of_x[thread] = 0;
    Eight x[X_EACH];
    #pragma unroll
    for (int i = 0; i < X_EACH; ++i)
        x[i].load(first.x + (size_t)(x_row + i * X_DOWN) * first.inputs + input + 8 * x_column,
                  x_row + i * X_DOWN < ROWS);
    #pragma unroll
    for (int i = 0; i < W_EACH; ++i) {
        const int column = thread % GROUPS, row = thread / GROUPS + i * W_DOWN;
        Eight W;
        W.load(first.W + (size_t)(input + row) * (8 * GROUPS) + 8 * column, row < INPUTS);
        const float scale = scale_row(W, GROUPS);
        if (row >= INPUTS) break;
        W.store(b.W + column * BACK_PLANE + row, GROUPS * BACK_PLANE);
        if (column == 0) b.of_W[row] = inverse(scale);
    }
    __syncthreads();  // the barriers and the zeros are there
    begin_in_turn();
    if (thread < 32) ask_for_dz(b, dz, barriers);
    #pragma unroll
    for (int i = 0; i < X_EACH; ++i) {
        if (x_row + i * X_DOWN >= ROWS) break;
        const float back = inverse(of_rows[x_row + i * X_DOWN]);
        if (x_column == 0) b.of_rows[x_row + i * X_DOWN] = back;
        scale_by(x[i], back);
    }
    leave_largest<BACK_GROUPS>(x, b.of_x);
    __syncthreads();
    settle_scales(b.of_x, b.x_back, INPUTS);
    __syncthreads();
    if (x_row < ROWS)
        store_scaled(x, b.of_x + 8 * x_column, BACK_GROUPS * DZ_PLANE,
                     [&](int i) { return b.x + x_column * DZ_PLANE + x_row + i * X_DOWN; });
    fence_proxy_async();
    __syncthreads();
    leave_products(net, b, input, barriers, largest);
}
