// The gradients of all examples become new weights: a block computes some of the products over the batch, and adds up
// some of the convolutions' gradients, always in the same order.

#include "limit_shapes.cuh"

struct Settings {
    float beta1, rest1, beta2, rest2, eps, l2, shrink;  // rest: 1 - beta, as float64 has it
};

struct Vectors {
    float *theta, *m, *v;
};

struct Rates {
    float lr, m, v;  // m: lr over how much of its average m is; v: one over the root of how much of its average v is
};

struct Parameter {
    float w;
#if ADAM
    float m, v;
#endif

    __device__ void load(const Vectors& vectors, int place) {
        w = vectors.theta[place];
#if ADAM
        m = vectors.m[place], v = vectors.v[place];
#endif
    }

    __device__ void store(const Vectors& vectors, int place) const {
        vectors.theta[place] = w;
#if ADAM
        vectors.m[place] = m, vectors.v[place] = v;
#endif
    }

    __device__ void update(float g, const Settings& settings, const Rates& rates, bool is_weight) {
        if (is_weight) {  // only weights decay
            g += settings.l2 * w;
            w -= rates.lr * settings.shrink * w;
        }
#if ADAM
        m = settings.beta1 * m + settings.rest1 * g;
        v = settings.beta2 * v + settings.rest2 * g * g;
        w -= __fdividef(rates.m * m, sqrt_approx(v) * rates.v + settings.eps);
#else
        w -= rates.lr * g;
#endif
    }
};

// ---- Dense layers: 16 weights a lane, four inputs times four columns; the warps share out the examples ----

// A tile is so many fours of inputs, and of columns, that it takes few tiles to cover the layer.
struct Tiling {
    int down, across;  // fours of a tile
    int rows, columns; // tiles
};
constexpr Tiling tiling(int layer) {
    const int fours = wide(layer - 1) / 4, columns = wide(layer) / 4;
    Tiling best = {0, 0, 0, 0};
    for (int across = 1; across <= 32; across++) {
        const int down = 32 / across;
        const Tiling found = {down, across, parts(fours, down), parts(columns, across)};
        const int tiles = found.rows * found.columns, before = best.rows * best.columns;
        if (best.down == 0 || tiles < before || (tiles == before && down + across < best.down + best.across)) best = found;
    }
    return best;
}
constexpr int tiles_before(int layer) {
    return layer ? tiles_before(layer - 1) + tiling(layer - 1).rows * tiling(layer - 1).columns : 0;
}

// A block has so many tiles one after another, a thread so many weights of each of them, and 128 threads a bias.
const int ROUNDS = parts(tiles_before(LAYERS), GRID), OWN = parts(512, THREADS);
const int SUMS = 20;  // of a lane: its weights, and its biases

// Call use(layer, tile of the layer) for a tile, if there is such a one.
template <int layer = 0, typename Use>
__device__ void of_tile(int tile, Use use) {
    if constexpr (layer < LAYERS) {
        if (tile < tiles_before(layer + 1)) use(Number<layer>(), tile - tiles_before(layer));
        else of_tile<layer + 1>(tile, use);
    }
}

template <int layer>
__device__ void dense_sums(int tile, const float* activations, const float* slopes, int n) {
    constexpr Tiling t = tiling(layer);
    constexpr int AHEAD = 8, FOURS = wide(layer - 1) / 4, COLUMNS = wide(layer) / 4;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int down = min(tile / t.columns * t.down + lane / t.across, FOURS - 1);
    const int across = min(tile % t.columns * t.across + lane % t.across, COLUMNS - 1);
    const float* a = activations + activations_before(layer) + 4 * down;
    const float* s = slopes + slopes_before(layer) + 4 * across;
    float4 sums[4] = {}, bias = {};
    for (int start = warp; start < n; start += WARPS * AHEAD) {
        float4 x[AHEAD], dz[AHEAD];
#pragma unroll
        for (int e = 0; e < AHEAD; e++) {
            const int example = start + e * WARPS;
            x[e] = example < n ? __ldcg((const float4*)(a + example * ACTIVATIONS)) : make_float4(0, 0, 0, 0);
            dz[e] = example < n ? __ldcg((const float4*)(s + example * SLOPES)) : make_float4(0, 0, 0, 0);
        }
#pragma unroll
        for (int e = 0; e < AHEAD; e++) {
            multiply_add(sums[0], x[e].x, dz[e]), multiply_add(sums[1], x[e].y, dz[e]);
            multiply_add(sums[2], x[e].z, dz[e]), multiply_add(sums[3], x[e].w, dz[e]);
            bias.x += dz[e].x, bias.y += dz[e].y, bias.z += dz[e].z, bias.w += dz[e].w;
        }
    }
    float4* left = (float4*)shared_floats(DENSE_AT) + threadIdx.x * SUMS / 4;
#pragma unroll
    for (int i = 0; i < 4; i++) left[i] = sums[i];
    left[4] = bias;
}

struct Place {
    int theta, packed;  // theta: -1 where there is no such parameter
};

// The i-th weight that this thread owns of a tile.
template <int layer>
__device__ Place weight_of(int tile, int i) {
    constexpr Tiling t = tiling(layer);
    const int e = threadIdx.x + i * THREADS, lane = e / 16;
    const int k = 4 * (tile / t.columns * t.down + lane / t.across) + e % 16 / 4;
    const int j = 4 * (tile % t.columns * t.across + lane % t.across) + e % 4;
    const bool there = e < 512 && lane < t.down * t.across && k < inputs(layer) && j < units(layer);
    return {there ? dense_weights(layer) + k * units(layer) + j : -1, dense_packed(layer) + k * wide(layer) + j};
}

template <int layer>
__device__ Place bias_of(int tile) {
    constexpr Tiling t = tiling(layer);
    const int j = 4 * (tile % t.columns * t.across + threadIdx.x / 4) + threadIdx.x % 4;
    const bool there = tile / t.columns == 0 && threadIdx.x < 4 * t.across && j < units(layer);
    return {there ? dense_biases(layer) + j : -1, bias_packed(layer) + j};
}

// ---- Convolutions: a block has so many fours of parameters; eight lanes a pass ----

const int FOURS_EACH = parts(PARTIAL / 4, GRID), PASSES = parts(FOURS_EACH, 8);
static_assert(PASSES * 32 <= THREADS && 4 * PASSES * WARPS * 32 <= SHARED_LIMIT, "too many weights of convolutions");

template <int block = 0>
__device__ Place conv_place_of(int e) {
    if constexpr (block < BLOCKS) {
        constexpr Shape s = shape(block);
        constexpr int WEIGHTS = conv_weights(block), BIASES = CONV_WEIGHTS + conv_biases(block) - conv_biases(0);
        if (e >= WEIGHTS && e < WEIGHTS + s.co * s.taps()) {
            const int channel = (e - WEIGHTS) / s.taps(), tap = (e - WEIGHTS) % s.taps();
            return {e, conv_packed(block) + (channel / s.each() * s.taps() + tap) * 4 + channel % s.each()};
        }
        if (e >= BIASES && e < BIASES + s.co) return {conv_biases(block) + e - BIASES, conv_bias_packed(block) + e - BIASES};
        return conv_place_of<block + 1>(e);
    }
    return {-1, 0};
}

// The parameter of the convolutions that this thread owns.
__device__ Place conv_place() {
    const int four = threadIdx.x / 4, e = (blockIdx.x * FOURS_EACH + four) * 4 + threadIdx.x % 4;
    return four < FOURS_EACH && threadIdx.x < PASSES * 32 ? conv_place_of(e) : Place{-1, 0};
}

// Its gradient: the sum over the examples' own.
__device__ float conv_sum(const float* partials, int n) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float4* left = (float4*)shared_floats(SCRATCH_AT);
#pragma unroll
    for (int pass = 0; pass < PASSES; pass++) {
        const int own = pass * 8 + lane % 8, four = blockIdx.x * FOURS_EACH + own;
        const bool there = own < FOURS_EACH && four < PARTIAL / 4;
        float4 sum = {};
#pragma unroll 4
        for (int example = warp * 4 + lane / 8; example < n; example += WARPS * 4) {
            if (there) {
                const float4 found = __ldcg((const float4*)(partials + example * PARTIAL) + four);
                sum.x += found.x, sum.y += found.y, sum.z += found.z, sum.w += found.w;
            }
        }
        for (int distance = 16; distance >= 8; distance /= 2) {
            sum.x += __shfl_xor_sync(~0u, sum.x, distance), sum.y += __shfl_xor_sync(~0u, sum.y, distance);
            sum.z += __shfl_xor_sync(~0u, sum.z, distance), sum.w += __shfl_xor_sync(~0u, sum.w, distance);
        }
        if (lane < 8) left[(pass * WARPS + warp) * 8 + lane] = sum;
    }
    __syncthreads();
    float sum = 0;
    if (threadIdx.x < PASSES * 32) {
        const float* from = shared_floats(SCRATCH_AT) + threadIdx.x / 32 * WARPS * 32 + threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < WARPS; i++) sum += from[i * 32];
    }
    return sum;
}

// What a thread owns of all parameters, for as long as the kernel runs.
struct Owned {
    Parameter weights[ROUNDS][OWN], biases[ROUNDS], conv;

    // Call use(parameter, place, whether it is a weight) for each that there is, of one tile.
    template <typename Use>
    __device__ void of_dense(int round, Use use) {
        of_tile(blockIdx.x + round * GRID, [&](auto layer, int tile) {
            constexpr int LAYER = decltype(layer)::value;
#pragma unroll
            for (int i = 0; i < OWN; i++) {
                const Place place = weight_of<LAYER>(tile, i);
                if (place.theta >= 0) use(weights[round][i], place, threadIdx.x + i * THREADS, true);
            }
            const Place place = bias_of<LAYER>(tile);
            if (place.theta >= 0) use(biases[round], place, 0, false);
        });
    }

    // The same for all.
    template <typename Use>
    __device__ void of_all(Use use) {
#pragma unroll
        for (int round = 0; round < ROUNDS; round++) of_dense(round, use);
        const Place place = conv_place();
        if (place.theta >= 0) use(conv, place, 0, place.theta < CONV_WEIGHTS);
    }

    __device__ void load(const Vectors& vectors) {
        of_all([&](Parameter& own, Place place, int, bool) { own.load(vectors, place.theta); });
    }
    __device__ void store(const Vectors& vectors) {
        of_all([&](Parameter& own, Place place, int, bool) { own.store(vectors, place.theta); });
    }
    __device__ void publish(float* packed) {
        of_all([&](Parameter& own, Place place, int, bool) { packed[place.packed] = own.w; });
        fence_proxy_async_all();
    }

    // Update the dense layers' parameters with the gradients of n examples, and hand them over.
    __device__ void update_dense(const float* activations, const float* slopes, int n, const Settings& settings,
                                 const Rates& rates, float* packed) {
#pragma unroll
        for (int round = 0; round < ROUNDS; round++) {
            if (round) __syncthreads();
            of_tile(blockIdx.x + round * GRID, [&](auto layer, int tile) {
                dense_sums<decltype(layer)::value>(tile, activations, slopes, n);
            });
            __syncthreads();
            of_dense(round, [&](Parameter& own, Place place, int e, bool is_weight) {
                const int at = is_weight ? e / 16 * SUMS + e % 16 : threadIdx.x / 4 * SUMS + 16 + threadIdx.x % 4;
                float g = 0;
#pragma unroll
                for (int warp = 0; warp < WARPS; warp++) g += shared_floats(DENSE_AT)[warp * 32 * SUMS + at];
                own.update(g, settings, rates, is_weight);
                packed[place.packed] = own.w;
            });
        }
        fence_proxy_async_all();
        __syncthreads();
    }

    __device__ void update_conv(const float* partials, int n, const Settings& settings, const Rates& rates, float* packed) {
        const float g = conv_sum(partials, n);
        const Place place = conv_place();
        if (place.theta >= 0) {
            conv.update(g, settings, rates, place.theta < CONV_WEIGHTS);
            packed[place.packed] = conv.w;
        }
        fence_proxy_async_all();
        __syncthreads();
    }
};
