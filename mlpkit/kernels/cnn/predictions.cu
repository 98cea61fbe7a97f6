// The end of a network of which only the outputs are wanted: linear layers with ReLU between them, in two kernels.
//
// The first layer is wide: its sums are cut into slices, so that all multiprocessors have a part. In bfloat16 this is
// `parts` (for float32 see `forward_parts` in dense.cu): both operands lie by rows of inputs, in whatever order images
// have theirs, for the weights were put into that order. All that follows is little: a block takes a few examples, adds
// up their slices, and goes on to the outputs (`predictions`).

#include "ptx.cuh"

#ifndef TALL
#define TALL 64  // examples of a block of `parts`, or 128
#endif
#ifndef SIZES
#define SIZES 256, 10  // units of each layer
#endif
#ifndef SLICES
#define SLICES 25
#endif
#ifndef RESIDENT
#define RESIDENT 1  // whether weights behind the first layer are resident in shared memory
#endif
#ifndef ROWS
#define ROWS 1  // examples of a block of `predictions`
#endif

extern __shared__ __align__(128) unsigned char shared_bytes[];

// ---- The first layer ----

constexpr int TILE = 64, DEPTH = 64, PITCH = DEPTH + 8;  // values; a row's 144 bytes lead eight rows to all banks
constexpr int STAGES = 4, STAGE = (TALL + TILE) * PITCH, MULTIPLIERS = 2 * TALL;

// Ask for a tile (SIZE, 64) of a matrix with rows of `inputs` values, or zeros outside of it.
template <int SIZE>
__device__ void ask(unsigned short* to, const unsigned short* from, int rows, int inputs, int row, int first, int end)
{
    #pragma unroll
    for (int i = threadIdx.x; i < SIZE * DEPTH / 8; i += MULTIPLIERS) {
        const int y = i / (DEPTH / 8), x = first + i % (DEPTH / 8) * 8;
        const bool inside = row + y < rows && x < end;
        cp_async<16>(to + y * PITCH + i % (DEPTH / 8) * 8, inside ? from + (size_t)(row + y) * inputs + x : from, inside);
    }
}

#if AMPERE
// parts (slices, n, units): sums over `slice` inputs each. x (n, inputs), W (units rounded up to 64, inputs): bfloat16,
// inputs a multiple of 8. A warp has 32 x 32 of a tile.
extern "C" __global__ __launch_bounds__(MULTIPLIERS, 2)
void parts(const unsigned short* x, const unsigned short* W, float* to, int n, int inputs, int units, int slice)
{
    unsigned short* stages = reinterpret_cast<unsigned short*>(shared_bytes);
    const int across = (units + TILE - 1) / TILE, down = (n + TALL - 1) / TALL, number = blockIdx.x / (across * down);
    const int row = blockIdx.x / across % down * TALL, column = blockIdx.x % across * TILE;
    const int first = number * slice, end = min(first + slice, inputs), count = (end - first + DEPTH - 1) / DEPTH;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, y = warp / 2 * 32, z = warp % 2 * 32;
    const auto fetch_x = [&](int stage) {
        if (stage < count) ask<TALL>(stages + stage % STAGES * STAGE, x, n, inputs, row, first + stage * DEPTH, end);
    };
    const auto fetch_W = [&](int stage) {
        unsigned short* tile = stages + stage % STAGES * STAGE + TALL * PITCH;
        if (stage < count) ask<TILE>(tile, W, across * TILE, inputs, column, first + stage * DEPTH, end);
    };
    float sums[2][4][4] = {};
    #pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage) fetch_W(stage);
    begin_in_turn();
    #pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage) {
        fetch_x(stage);
        cp_async_commit_group();
    }
    for (int stage = 0; stage < count; ++stage) {
        cp_async_wait_group<STAGES - 2>();
        __syncthreads();  // all of the tiles are there, and those before them have been read
        fetch_x(stage + STAGES - 1), fetch_W(stage + STAGES - 1);
        cp_async_commit_group();
        const unsigned short* of_x = stages + stage % STAGES * STAGE;
        const unsigned short* of_W = of_x + TALL * PITCH;
        #pragma unroll
        for (int k = 0; k < DEPTH; k += 16) {
            Word a[2][4], b[2][4];
            #pragma unroll
            for (int i = 0; i < 2; ++i) {
                ldmatrix_x4(a[i], of_x + (y + 16 * i + lane % 16) * PITCH + k + lane / 16 * 8);
                ldmatrix_x4(b[i], of_W + (z + 16 * i + lane / 16 * 8 + lane % 8) * PITCH + k + lane / 8 % 2 * 8);
            }
            #pragma unroll
            for (int i = 0; i < 2; ++i)
                #pragma unroll
                for (int j = 0; j < 4; ++j)
                    mma_m16n8k16_bf16(sums[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
        }
    }
    cp_async_wait_all();
    #pragma unroll
    for (int i = 0; i < 32; ++i) {
        const int at_row = row + y + i / 16 * 16 + i / 2 % 2 * 8 + lane / 4;
        const int at_column = column + z + i / 4 % 4 * 8 + lane % 4 * 2 + i % 2;
        if (at_row < n && at_column < units)
            to[((size_t)number * n + at_row) * units + at_column] = sums[i / 16][i / 4 % 4][i % 4];
    }
}
#endif

// ---- What follows: sizes are macros, so that nothing is divided, and all loads of a sum are under way at once ----

constexpr int UNITS[] = {SIZES}, COUNT = sizeof(UNITS) / sizeof(int), THREADS = 256;

constexpr int padded(int elements) { return (elements + 3) / 4 * 4; }

constexpr int widest()
{
    int most = THREADS;
    for (int l = 0; l < COUNT; ++l) most = UNITS[l] > most ? UNITS[l] : most;
    return padded(most);
}

// Where the weights of a layer behind the first one lie among those that are resident.
constexpr int begin_of(int layer)
{
    int begin = 0;
    for (int l = 1; l < layer; ++l) begin += padded(UNITS[l - 1] * UNITS[l]);
    return begin;
}

constexpr int WIDEST = widest(), RESIDENT_ELEMENTS = RESIDENT ? begin_of(COUNT) : 0;

// Of each layer: W (inputs, units), b (units,), float32. The first one's W is not looked at.
struct Network {
    const float *W[6], *b[6];
};

// Copy values to shared memory, 16 bytes at a time where that is possible.
__device__ void fetch(float* to, const float* from, int elements)
{
    const int fours = (size_t)from % 16 == 0 ? elements / 4 : 0;
    for (int i = threadIdx.x; i < fours; i += THREADS) cp_async<16>(to + 4 * i, from + 4 * i);
    for (int i = 4 * fours + threadIdx.x; i < elements; i += THREADS) cp_async<4>(to + i, from + i);
}

template <int L>
__device__ void fetch_weights(const Network& net, float* resident)
{
    if constexpr (L < COUNT && RESIDENT) {
        fetch(resident + begin_of(L), net.W[L], UNITS[L - 1] * UNITS[L]);
        fetch_weights<L + 1>(net, resident);
    }
}

__device__ float relu(float z) { return z < 0 ? 0 : z; }  // in this order a NaN stays a NaN

// All layers from number L on. before: activations (ROWS, WIDEST), and a buffer for those of this layer; resident:
// weights.
template <int L>
__device__ void later(const Network& net, float* before, float* here, float* partial, const float* resident, float* out,
                      int row, int n)
{
    if constexpr (L < COUNT) {
        constexpr int INPUTS = UNITS[L - 1], OUTPUTS = UNITS[L], GROUPS = OUTPUTS < THREADS ? THREADS / OUTPUTS : 1;
        #pragma unroll
        for (int i = threadIdx.x; i < GROUPS * OUTPUTS; i += THREADS) {
            float sums[ROWS] = {};
            #pragma unroll 8
            for (int k = i / OUTPUTS; k < INPUTS; k += GROUPS) {
                const int at = k * OUTPUTS + i % OUTPUTS;
                const float w = RESIDENT ? resident[begin_of(L) + at] : net.W[L][at];
                #pragma unroll
                for (int r = 0; r < ROWS; ++r) sums[r] += before[r * WIDEST + k] * w;
            }
            #pragma unroll
            for (int r = 0; r < ROWS; ++r) partial[r * WIDEST + i] = sums[r];
        }
        __syncthreads();
        for (int i = threadIdx.x; i < ROWS * OUTPUTS; i += THREADS) {
            const int r = i / OUTPUTS, j = i % OUTPUTS;
            float sum = net.b[L][j];
            #pragma unroll
            for (int group = 0; group < GROUPS; ++group) sum += partial[r * WIDEST + group * OUTPUTS + j];
            if (L + 1 < COUNT) here[r * WIDEST + j] = relu(sum);
            else if (row + r < n) out[(size_t)(row + r) * OUTPUTS + j] = sum;
        }
        if (L + 1 < COUNT) __syncthreads();
        later<L + 1>(net, here, before, partial, resident, out, row, n);
    }
}

// parts (SLICES, n, units of the first layer): its sums. Shared: the activations of two layers and partial sums, each
// (ROWS, WIDEST), and with RESIDENT the weights behind the first layer.
extern "C" __global__ __launch_bounds__(THREADS)
void predictions(const __grid_constant__ Network net, const float* parts, float* out, int n)
{
    float *before = reinterpret_cast<float*>(shared_bytes), *here = before + ROWS * WIDEST;
    float *partial = here + ROWS * WIDEST, *resident = partial + ROWS * WIDEST;
    const int row = blockIdx.x * ROWS;
    fetch_weights<1>(net, resident);
    begin_in_turn();
    #pragma unroll
    for (int i = threadIdx.x; i < ROWS * UNITS[0]; i += THREADS) {
        const int r = i / UNITS[0], j = i % UNITS[0];
        if (row + r >= n) continue;
        float sum = net.b[0][j];
        #pragma unroll 32
        for (int s = 0; s < SLICES; ++s) sum += parts[((size_t)s * n + row + r) * UNITS[0] + j];
        if (COUNT == 1) out[(size_t)(row + r) * UNITS[0] + j] = sum;
        else before[r * WIDEST + j] = relu(sum);
    }
    cp_async_wait_all();
    __syncthreads();
    later<1>(net, before, here, partial, resident, out, row, n);
}
