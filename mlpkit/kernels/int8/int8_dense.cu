// Linear layers of bytes at the end of a network, in two kernels: see predictions.cu.
//
// The first layer is wide: `parts` has its sums over slices of the inputs. All that follows is little: a block of `ends`
// takes a few examples, adds up their slices, and goes on to the outputs, by dp4a: four products of bytes and a sum.

#include "bytes.cuh"

#ifndef EXAMPLES
#define EXAMPLES 128  // of a block of `parts`: a multiple of 32, or 16
#endif
#ifndef ROWS
#define ROWS 8  // examples of a block of `ends`
#endif

extern __shared__ __align__(128) unsigned char shared_bytes[];

// ---- The first layer ----

constexpr int UNITS = 64, DEPTH = 128, PITCH = DEPTH + 16, STAGES = 4;  // bytes; 144 lead eight rows to all banks
constexpr int WARPS = 2 * (EXAMPLES < 32 ? 1 : EXAMPLES / 32), PAIRS = EXAMPLES < 32 ? EXAMPLES / 16 : 2;
constexpr int WEIGHTS = UNITS / 16 * (DEPTH / 32) * 32, STAGE = EXAMPLES * PITCH / 16 + WEIGHTS;  // pieces

struct Sizes {
    int n, inputs, steps, units, slice;  // inputs: a multiple of 16; steps: of 32 inputs; units: a multiple of 64
};

// Ask for a stage of the inputs: zeros for examples and inputs that are none.
static __device__ __forceinline__ void ask_x(unsigned char* to, const unsigned char* x, const Sizes& s, int row, int at)
{
    for (int i = threadIdx.x; i < EXAMPLES * (DEPTH / 16); i += 32 * WARPS) {
        const int y = i / (DEPTH / 16), k = at + i % (DEPTH / 16) * 16;
        const bool inside = row + y < s.n && k < s.inputs;
        cp_async<16>(to + y * PITCH + i % (DEPTH / 16) * 16, inside ? x + (size_t)(row + y) * s.inputs + k : x, inside);
    }
}

// And of the weights, [16 units][step][lane].
static __device__ __forceinline__ void ask_W(Piece* to, const Piece* W, const Sizes& s, int unit, int at)
{
    for (int i = threadIdx.x; i < WEIGHTS; i += 32 * WARPS) {
        const int tile = i / (DEPTH / 32 * 32), step = at / 32 + i / 32 % (DEPTH / 32);
        const bool inside = step < s.steps;
        cp_async<16>(to + i, inside ? W + ((size_t)(unit / 16 + tile) * s.steps + step) * 32 + i % 32 : W, inside);
    }
}

// to (slices, n, units): sums over `slice` inputs each, a multiple of DEPTH. x (n, inputs).
extern "C" __global__ __launch_bounds__(32 * WARPS)
void parts(const unsigned char* x, const Piece* W, int* to, const __grid_constant__ Sizes s)
{
    const int across = s.units / UNITS, down = (s.n + EXAMPLES - 1) / EXAMPLES, number = blockIdx.x / (across * down);
    const int row = blockIdx.x / across % down * EXAMPLES, unit = blockIdx.x % across * UNITS;
    const int first = number * s.slice, end = min(first + s.slice, s.inputs), count = (end - first + DEPTH - 1) / DEPTH;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, z = warp % 2, y = warp / 2 * 16 * PAIRS;
    Piece* stages = reinterpret_cast<Piece*>(shared_bytes);
    const auto weights = [&](int stage) { return stages + stage % STAGES * STAGE + EXAMPLES * PITCH / 16; };
    const auto inputs = [&](int stage) { return reinterpret_cast<unsigned char*>(stages + stage % STAGES * STAGE); };
    #pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage)
        if (stage < count) ask_W(weights(stage), W, s, unit, first + stage * DEPTH);
    begin_in_turn();
    #pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage) {
        if (stage < count) ask_x(inputs(stage), x, s, row, first + stage * DEPTH);
        cp_async_commit_group();
    }
    Sums sums[PAIRS] = {};
    for (int stage = 0; stage < count; ++stage) {
        cp_async_wait_group<STAGES - 2>();
        __syncthreads();  // the stage is there, and the one before it has been read
        const int next = stage + STAGES - 1;
        if (next < count) {
            ask_x(inputs(next), x, s, row, first + next * DEPTH);
            ask_W(weights(next), W, s, unit, first + next * DEPTH);
        }
        cp_async_commit_group();
        const unsigned char* at = inputs(stage) + (y + lane / 16 * 8 + lane % 8) * PITCH + lane / 8 % 2 * 16;
        const Piece* mine = weights(stage) + z * 2 * WEIGHTS / 4 + lane;
        #pragma unroll
        for (int step = 0; step < DEPTH / 32; ++step) {
            const Piece a[2] = {mine[step * 32], mine[WEIGHTS / 4 + step * 32]};
            #pragma unroll
            for (int pair = 0; pair < PAIRS; ++pair) {
                Word b[4];
                ldmatrix_x4(b, at + pair * 16 * PITCH + step * 32);
                sums[pair].add(a, b);
            }
        }
    }
    #pragma unroll
    for (int i = 0; i < 4 * PAIRS; ++i) {
        int found[4];
        const int example = row + y + i / 4 * 16 + i / 2 % 2 * 8 + lane % 4 * 2 + i % 2;
        sums[i / 4].column(i / 2 % 2, i % 2, found);
        if (example < s.n)
            *reinterpret_cast<int4*>(to + ((size_t)number * s.n + example) * s.units + unit + z * 32 + lane / 4 * 4) =
                {found[0], found[1], found[2], found[3]};
    }
}

// ---- What follows ----

struct Layer {
    const Word* W;  // (units, words): four inputs each; not looked at of the first one
    Back back;
    int words, units;
};

struct Layers {
    Layer of[6];
    const float* scale;  // of the outputs' sums
    int count, slices, padded, wide;  // units of a part; words of an example's activations
};

// The first layer's activations: sums of slices, back to bytes. Of an only layer they are outputs.
static __device__ __forceinline__ void begin(const Layers& net, const int* parts, Word* to, float* out, int row, int n)
{
    const Layer& layer = net.of[0];
    const int fours = (layer.units + 3) / 4;
    for (int i = threadIdx.x; i < ROWS * fours; i += 256) {
        const int r = i / fours, j = i % fours;
        if (row + r >= n) continue;
        int found[4] = {};
        #pragma unroll 8
        for (int slice = 0; slice < net.slices; ++slice) {
            const int4 part =
                *reinterpret_cast<const int4*>(parts + ((size_t)slice * n + row + r) * net.padded + 4 * j);
            found[0] += part.x, found[1] += part.y, found[2] += part.z, found[3] += part.w;
        }
        if (net.count > 1) {
            to[r * net.wide + j] = back_to_bytes(layer.back, 4 * j, found);
            continue;
        }
        #pragma unroll
        for (int k = 0; k < 4; ++k)
            if (4 * j + k < layer.units)
                out[(size_t)(row + r) * layer.units + 4 * j + k] = (float)(found[k] + layer.back.bias[4 * j + k]) * net.scale[4 * j + k];
    }
}

// The sums of a warp's lanes, of each example: lane r has that of number r.
inline int summed(int (&sums)[ROWS])
{
    int mine = 0;
    #pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        #pragma unroll
        for (int distance = 16; distance > 0; distance /= 2) sums[r] += __shfl_xor_sync(~0u, sums[r], distance);
        mine = threadIdx.x % 32 == r ? sums[r] : mine;
    }
    return mine;
}

// parts (slices, n, padded units). Shared: the activations of two layers, (ROWS, wide) words each.
extern "C" __global__ __launch_bounds__(256)
void ends(const __grid_constant__ Layers net, const int* parts, float* out, int n)
{
    Word *before = reinterpret_cast<Word*>(shared_bytes), *here = before + ROWS * net.wide;
    const int row = blockIdx.x * ROWS, lane = threadIdx.x % 32;
    for (int i = threadIdx.x; i < 2 * ROWS * net.wide; i += 256) before[i] = 0;
    __syncthreads();
    begin_in_turn();
    begin(net, parts, before, out, row, n);
    for (int l = 1; l < net.count; ++l) {
        __syncthreads();
        const Layer& layer = net.of[l];
        for (int unit = threadIdx.x / 32; unit < layer.units; unit += 8) {
            int sums[ROWS] = {};
            for (int k = lane; k < layer.words; k += 32) {
                const Word w = layer.W[unit * layer.words + k];
                #pragma unroll
                for (int r = 0; r < ROWS; ++r) sums[r] = dp4a_u8s8(before[r * net.wide + k], w, sums[r]);
            }
            const int sum = summed(sums);
            if (lane >= ROWS || row + lane >= n) continue;
            if (l + 1 == net.count) {
                out[(size_t)(row + lane) * layer.units + unit] = (float)(sum + layer.back.bias[unit]) * net.scale[unit];
            } else {
                const int value = min(requantized(layer.back, sum, layer.back.multiplier[unit], layer.back.more[unit]), 255);
                reinterpret_cast<unsigned char*>(here + lane * net.wide)[unit] = value;
            }
        }
        Word* other = before;
        before = here, here = other;
    }
}
