// Linear layers of bytes at the end of a network, in two kernels: see predictions.cu.
//
// The first layer is wide: `parts` has its sums over slices of the inputs. All that follows is little: a block of `ends`
// takes a few examples, adds up their slices, and goes on to the outputs, by dp4a: four products of bytes and a sum.
// For few examples that is a chain of waits, and as short as can be: what is constant is there before it begins.

#include "bytes.cuh"

#ifndef EXAMPLES
#define EXAMPLES 128  // of a block of `parts`: a multiple of 32, or 16
#endif
#ifndef SIZES
#define SIZES 256, 10  // units of each layer
#endif
#ifndef SLICES
#define SLICES 25
#endif
#ifndef ROWS
#define ROWS 8  // examples of a block of `ends`
#endif
#ifndef RESIDENT
#define RESIDENT 1  // whether what the layers behind the first one have is resident in shared memory
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

// ---- What follows: sizes are macros, so that all loads of a sum are under way at once ----

constexpr int COUNTS[] = {SIZES}, LAYERS = sizeof(COUNTS) / sizeof(int), THREADS = 256;

// The words that a unit's weights are apart: an odd number, which leads neighbours to other banks.
constexpr int pitch(int layer) { return (COUNTS[layer - 1] + 3) / 4 | 1; }

// Where a layer's units and weights lie behind the ones of those before it, in pieces.
constexpr int begin_of(int layer)
{
    int begin = 0;
    for (int l = 1; l < layer; ++l) begin += COUNTS[l] + (COUNTS[l] * pitch(l) + 3) / 4;
    return begin;
}

constexpr int widest()
{
    int most = 0;
    for (int units : COUNTS) most = units > most ? units : most;
    return (most + 3) / 4;
}

// As many lanes as share a unit's products when all units are done at once: a power of two.
constexpr int lanes_of(int units)
{
    int lanes = 1;
    while (lanes < 32 && 2 * lanes * units <= THREADS) lanes *= 2;
    return lanes;
}

constexpr int WIDE = widest(), LATER = begin_of(LAYERS);  // words of an example's activations

// What leads a unit's sum on: as in `Back`; of the last layer `more` is the bias, and what follows are the outputs.
struct alignas(16) Unit {
    long long more;
    int multiplier;
    float scale;
};

struct Layers {
    const Unit* first;
    const Piece* later;  // of each layer: its units, and their weights
    struct {
        int shift, low;
    } back[6];
};

// What becomes of a sum: a byte of the next layer's input, or an output.
template <int L>
__device__ void go_on(const Layers& net, const Unit& unit, int sum, int number, Word* to, float* out, bool inside)
{
    if constexpr (L + 1 == LAYERS) {
        if (inside) out[number] = (float)(sum + (int)unit.more) * unit.scale;
    } else {
        const Back back = {nullptr, nullptr, nullptr, net.back[L].shift, net.back[L].low};
        reinterpret_cast<unsigned char*>(to)[number] = min(requantized(back, sum, unit.multiplier, unit.more), 255);
    }
}

// All layers from number L on. before, here: activations (ROWS, WIDE); bytes behind a row's last one meet zeros.
template <int L>
__device__ void later(const Layers& net, const Piece* resident, Word* before, Word* here, float* out, int row, int n)
{
    if constexpr (L < LAYERS) {
        constexpr int UNITS = COUNTS[L], WORDS = (COUNTS[L - 1] + 3) / 4, LANES = lanes_of(UNITS);
        const Unit* units = reinterpret_cast<const Unit*>(resident + begin_of(L));
        const Word* W = reinterpret_cast<const Word*>(units + UNITS);
        const int lane = threadIdx.x % LANES;
        for (int i = threadIdx.x; i < (UNITS * LANES + 31) / 32 * 32; i += THREADS) {  // by whole warps
            const int number = min(i / LANES, UNITS - 1);
            const Unit unit = units[number];
            int sums[ROWS] = {};
            #pragma unroll 8
            for (int k = lane; k < WORDS; k += LANES) {
                const Word w = W[number * pitch(L) + k];
                #pragma unroll
                for (int r = 0; r < ROWS; ++r) sums[r] = dp4a_u8s8(before[r * WIDE + k], w, sums[r]);
            }
            #pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                #pragma unroll
                for (int distance = LANES / 2; distance > 0; distance /= 2)
                    sums[r] += __shfl_xor_sync(~0u, sums[r], distance);
                if (lane == r % LANES && i < UNITS * LANES)
                    go_on<L>(net, unit, sums[r], number, here + r * WIDE, out + (size_t)(row + r) * UNITS, row + r < n);
            }
        }
        if (L + 1 < LAYERS) __syncthreads();
        later<L + 1>(net, resident, here, before, out, row, n);
    }
}

// parts (SLICES, n, padded units). Shared: the activations of two layers, and with RESIDENT what is later's.
extern "C" __global__ __launch_bounds__(THREADS, 1)
void ends(const __grid_constant__ Layers net, const int* parts, float* out, int n)
{
    constexpr int UNITS = COUNTS[0], PADDED = (UNITS + 63) / 64 * 64;
    Piece* resident = reinterpret_cast<Piece*>(shared_bytes);
    Word *before = reinterpret_cast<Word*>(resident + RESIDENT * LATER), *here = before + ROWS * WIDE;
    const int row = blockIdx.x * ROWS;
    #pragma unroll 1
    for (int i = threadIdx.x; i < RESIDENT * LATER; i += THREADS) cp_async<16>(resident + i, net.later + i);
    begin_in_turn();
    #pragma unroll (SLICES <= 8 ? 4 : 1)
    for (int i = threadIdx.x; i < ROWS * UNITS; i += THREADS) {
        const int r = i / UNITS, number = i % UNITS;
        if (row + r >= n) continue;
        const Unit unit = net.first[number];
        int sum = 0;
        #pragma unroll 32
        for (int slice = 0; slice < SLICES; ++slice) sum += parts[((size_t)slice * n + row + r) * PADDED + number];
        go_on<0>(net, unit, sum, number, before + r * WIDE, out + (size_t)(row + r) * UNITS, true);
    }
    cp_async_wait_all();
    __syncthreads();
    later<1>(net, RESIDENT ? resident : net.later, before, here, out, row, n);
}
