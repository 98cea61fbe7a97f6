// The end of a network of which only the answers are wanted: linear layers with ReLU between them, in two kernels.
//
// The first layer is wide: its sums are cut into slices, so that all multiprocessors have a part. In bfloat16 this is
// `parts` (for float32 see `forward_parts` in dense.cu): both operands lie by rows of inputs, in whatever order images
// have theirs, for the weights were put into that order. All that follows is little: a block takes a few examples, adds
// up their slices, and goes on to the outputs (`answers`).

#include "ptx.cuh"

#ifndef OVERLAPS
#define OVERLAPS 0  // whether it begins before the kernel before it has ended: see overlap.py
#endif
#ifndef TALL
#define TALL 64  // examples of a block of `parts`, or 128
#endif
#ifndef ROWS
#define ROWS 1  // examples of a block of `answers`
#endif

extern __shared__ __align__(128) unsigned char shared_bytes[];

// ---- The first layer ----

constexpr int TILE = 64, DEPTH = 64, PITCH = DEPTH + 8;  // numbers; a row's 144 bytes lead eight rows to all banks
constexpr int STAGES = 4, STAGE = (TALL + TILE) * PITCH, MULTIPLIERS = 2 * TALL;

// Ask for a tile (SIZE, 64) of a matrix with rows of `inputs` numbers, or zeros outside of it.
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
#if OVERLAPS
    griddepcontrol_launch_dependents();
    griddepcontrol_wait();
#endif
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

// ---- What follows ----

constexpr int MOST = 6, THREADS = 256;  // layers, threads of a block

// W (inputs, units), b (units,): float32. Of the first layer only b and units count.
struct Layer {
    const float *W, *b;
    int inputs, units;
};

struct Network {
    Layer layers[MOST];
    int count, n, slices, widest, held;
};

// Copy numbers to shared memory, 16 bytes at a time where that is possible.
__device__ void fetch(float* to, const float* from, int numbers)
{
    const bool by_fours = (size_t)from % 16 == 0 && (size_t)to % 16 == 0;
    const int fours = by_fours ? numbers / 4 : 0;
    for (int i = threadIdx.x; i < fours; i += THREADS) cp_async<16>(to + 4 * i, from + 4 * i);
    for (int i = 4 * fours + threadIdx.x; i < numbers; i += THREADS) cp_async<4>(to + i, from + i);
}

// Shared: two layers' activations (ROWS, widest), partial sums (ROWS, THREADS or widest), and what is `held`: each
// layer's biases, and its weights, but for the first one, all rounded up to 4 numbers; where it is 0 they stay outside.
extern "C" __global__ __launch_bounds__(THREADS)
void answers(const __grid_constant__ Network net, const float* parts, float* out)
{
    float *before = reinterpret_cast<float*>(shared_bytes), *here = before + ROWS * net.widest;
    float* partial = here + ROWS * net.widest;
    const int row = blockIdx.x * ROWS;
    float* held = partial + ROWS * max(THREADS, net.widest);
    for (int l = 0; l < net.count && net.held; ++l) {
        const int units = net.layers[l].units, weights = l ? units * net.layers[l].inputs : 0;
        fetch(held, net.layers[l].b, units);
        if (l) fetch(held + (units + 3) / 4 * 4, net.layers[l].W, weights);
        held += (units + 3) / 4 * 4 + (weights + 3) / 4 * 4;
    }
    held -= net.held;
#if OVERLAPS
    griddepcontrol_launch_dependents();
    griddepcontrol_wait();
#endif
    for (int l = 0; l < net.count; ++l) {
        const Layer& layer = net.layers[l];
        const int units = layer.units, groups = l ? max(1, THREADS / units) : 1, room = max(THREADS, units);
        const float *b = net.held ? held : layer.b, *W = net.held ? held + (units + 3) / 4 * 4 : layer.W;
        if (l == 0) {
            for (int i = threadIdx.x; i < ROWS * units; i += THREADS) {
                const int r = i / units, j = i % units;
                float sum = 0;
                #pragma unroll 16
                for (int s = 0; s < net.slices && row + r < net.n; ++s)
                    sum += parts[((size_t)s * net.n + row + r) * units + j];
                partial[r * room + j] = sum;
            }
        }
        for (int i = threadIdx.x; i < groups * units && l; i += THREADS) {
            const int j = i % units;
            float sums[ROWS] = {};
            #pragma unroll 4
            for (int k = i / units; k < layer.inputs; k += groups) {
                const float w = W[k * units + j];
                #pragma unroll
                for (int r = 0; r < ROWS; ++r) sums[r] += before[r * net.widest + k] * w;
            }
            #pragma unroll
            for (int r = 0; r < ROWS; ++r) partial[r * room + i] = sums[r];
        }
        if (l == 0) cp_async_wait_all();
        __syncthreads();
        for (int i = threadIdx.x; i < ROWS * units; i += THREADS) {
            const int r = i / units, j = i % units;
            float sum = b[j];
            #pragma unroll 8
            for (int group = 0; group < groups; ++group) sum += partial[r * room + group * units + j];
            if (l + 1 < net.count) here[r * net.widest + j] = sum < 0 ? 0 : sum;  // a NaN stays one
            else if (row + r < net.n) out[(size_t)(row + r) * units + j] = sum;
        }
        __syncthreads();
        float* other = before;
        before = here, here = other;
        if (net.held) held += (units + 3) / 4 * 4 + (l ? (units * layer.inputs + 3) / 4 * 4 : 0);
    }
}
