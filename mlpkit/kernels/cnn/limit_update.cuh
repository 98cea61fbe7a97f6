// The gradients of all examples become new weights: a block computes some of the products over the batch, and adds up
// some of the convolutions' gradients, always in the same order.

#include "limit_shapes.cuh"
#include "limit_waits.cuh"
#include "limit_places.cuh"
#include "limit_stamps.cuh"
#include "optimizer.cuh"

// ---- Dense layers: 16 weights a lane, four inputs times four columns; the warps share out the examples ----

// A tile is so many fours of inputs, and of columns, 32 in all at most, that it takes few tiles to cover the layer.
struct Tiling {
    int down, across;  // fours of a tile
    int rows, columns; // tiles
};
constexpr Tiling tiling(int layer) {
    const int fours = wide(layer - 1) / 4, columns = wide(layer) / 4;
    Tiling best = {0, 0, 0, 0};
    for (int across = 1; across < 32; across++) {
        const int down = least(32 / across, 32 - across);
        const Tiling found = {down, across, parts(fours, down), parts(columns, across)};
        const int tiles = found.rows * found.columns, before = best.rows * best.columns;
        const bool rounder = tiles == before && down + across < best.down + best.across;
        if (best.down == 0 || tiles < before || rounder) best = found;
    }
    return best;
}
constexpr int tiles_before(int layer) {
    return layer ? tiles_before(layer - 1) + tiling(layer - 1).rows * tiling(layer - 1).columns : 0;
}

// A block has so many tiles one after another, a thread so many weights of each of them, and 128 threads a bias.
const int ROUNDS = parts(tiles_before(LAYERS), GRID), OWN = parts(512, THREADS);
const int SUMS = 20;  // of a lane: its weights, and its biases
// A block sends other GPUs the gradients of what it owns, so many a thread, and at first that it is there.
const int SENT = ROUNDS * (OWN + 1) + 1;
const long long SLOTS = (long long)GRID * (SENT * THREADS + 1), HERE = SLOTS - GRID;

// A warp has the rows of so many examples at a time.
constexpr int ahead(int layer) {
    const int fours = tiling(layer).down + tiling(layer).across;
    return least(least(8, parts(BATCH, WARPS)), 32 * SUMS / 4 / fours);
}
// They lie where its sums will be.
__device__ float4* warps_rows() { return (float4*)shared_floats(LATE_AT) + thread() / 32 * 32 * SUMS / 4; }

// Call use(layer, tile of the layer) for a tile, if there is such a one.
template <int layer = 0, typename Use>
__device__ void of_tile(int tile, Use use) {
    if constexpr (layer < LAYERS) {
        if (tile < tiles_before(layer + 1)) use(Constant<layer>(), tile - tiles_before(layer));
        else of_tile<layer + 1>(tile, use);
    }
}

// Where the blocks find the gradients of all examples, and put new parameters.
struct Given {
    const float *activations, *slopes;
    const Message* partials;
    float* packed;
    Message* convs;
};

// Ask for rows of examples, of which a warp multiplies each WARPS-th, from `start` on: of each of them, the inputs and
// then the slopes that belong to a tile.
template <int layer>
__device__ void ask_rows(int tile, const Given& given, int start, int n) {
    constexpr Tiling t = tiling(layer);
    constexpr int FOURS = t.down + t.across, AT_ONCE = 32 / FOURS;  // examples: a lane has a four of one of them
    const int lane = thread() % 32, four = lane % FOURS, first = lane < AT_ONCE * FOURS ? lane / FOURS : BATCH;
    const int down = min(tile / t.columns * t.down + four, wide(layer - 1) / 4 - 1);
    const int across = min(tile % t.columns * t.across + four - t.down, wide(layer) / 4 - 1);
    const bool input = four < t.down;
    const float* from = input ? given.activations + activations_before(layer) + 4 * down
                              : given.slopes + slopes_before(layer) + 4 * across;
    float4* to = warps_rows() + lane;
#pragma unroll
    for (int i = 0; i < ahead(layer); i += AT_ONCE) {
        const int example = start + (first + i) * WARPS;
        const bool there = example < n && (ahead(layer) % AT_ONCE == 0 || first + i < ahead(layer));
        if (there) cp_async<16>(to + i * FOURS, from + example * (input ? ACTIVATIONS : SLOPES));
    }
}

// Of a block's first tile: as soon as all rows are there.
__device__ void ask_rows(const Given& given, int n) {
    of_tile(blockIdx.x, [&](auto layer, int tile) { ask_rows<decltype(layer)::value>(tile, given, thread() / 32, n); });
}

// asked: whether the first rows are.
template <int layer>
__device__ void dense_sums(bool asked, int tile, const Given& given, int n) {
    constexpr Tiling t = tiling(layer);
    constexpr int FOURS = t.down + t.across, EXAMPLES = ahead(layer) * WARPS;
    const int lane = thread() % 32, warp = thread() / 32;
    const float4* rows = warps_rows();
    float4 sums[4] = {}, bias = {};
    for (int start = warp; start < n; start += EXAMPLES) {
        if (!asked || start >= EXAMPLES) __syncwarp(), ask_rows<layer>(tile, given, start, n);
        cp_async_wait_all();
        __syncwarp();
#pragma unroll
        for (int e = 0; e < ahead(layer); e++) {
            if (start + e * WARPS >= n) break;
            const float4 x = rows[e * FOURS + lane / t.across], dz = rows[e * FOURS + t.down + lane % t.across];
            multiply_add(sums[0], x.x, dz), multiply_add(sums[1], x.y, dz);
            multiply_add(sums[2], x.z, dz), multiply_add(sums[3], x.w, dz);
            bias.x += dz.x, bias.y += dz.y, bias.z += dz.z, bias.w += dz.w;
        }
        if (BATCH <= EXAMPLES) break;
    }
    __syncwarp();
    float4* left = warps_rows() + lane * SUMS / 4;
#pragma unroll
    for (int i = 0; i < 4; i++) left[i] = sums[i];
    left[4] = bias;
}

// The i-th weight that this thread owns of a tile.
template <int layer>
__device__ Place weight_of(int tile, int i) {
    constexpr Tiling t = tiling(layer);
    const int e = thread() + i * THREADS, lane = e / 16;
    const int k = 4 * (tile / t.columns * t.down + lane / t.across) + e % 16 / 4;
    const int j = 4 * (tile % t.columns * t.across + lane % t.across) + e % 4;
    const bool there = e < 512 && lane < t.down * t.across && k < inputs(layer) && j < units(layer);
    return {there ? dense_weights(layer) + k * units(layer) + j : -1, dense_packed(layer) + k * wide(layer) + j};
}

template <int layer>
__device__ Place bias_of(int tile) {
    constexpr Tiling t = tiling(layer);
    const int j = 4 * (tile % t.columns * t.across + thread() / 4) + thread() % 4;
    const bool there = tile / t.columns == 0 && thread() < 4 * t.across && j < units(layer);
    return {there ? dense_biases(layer) + j : -1, bias_packed(layer) + j};
}

// ---- Convolutions: a block has so many parameters, sixteen lanes two of each ----

static_assert(PASSES * 32 <= THREADS, "too many weights of convolutions");

// The parameter of the convolutions that this thread owns.
__device__ Place conv_place() {
    return thread() < CONV_EACH ? conv_place_of(blockIdx.x * CONV_EACH + thread()) : Place{-1, 0};
}

// Gradients of pairs of parameters on their way, of some examples: those that a lane takes in a pass, from `start` on.
typedef Mail<ulonglong2, least(4, parts(BATCH, WARPS * 2))> ConvMail;
__device__ auto conv_places(const Message* partials, int n, int pass, int start) {
    const int own = pass * 32 + thread() % 16 * 2, e = blockIdx.x * CONV_EACH + own;
    constexpr int APART = WARPS * 2;  // examples of a lane
    const Message* first = own < CONV_EACH && e < CONV_WEIGHTS + CONV_BIASES ? partials + start * PARTIAL + e : 0;
    return [=](int i) { return first && start + i * APART < n ? first + i * APART * PARTIAL : (const Message*)0; };
}

// Its gradient: the sum over the examples' own. mail: the first ones, which are asked for.
__device__ float conv_sum(ConvMail& mail, const Message* partials, int n, Word step) {
    constexpr int AHEAD = ConvMail::COUNT;
    const int lane = thread() % 32, warp = thread() / 32;
    float2* left = (float2*)shared_floats(SCRATCH_AT);
#pragma unroll
    for (int pass = 0; pass < PASSES; pass++) {
        float2 sum = {};
        for (int start = thread() / 16; start - lane / 16 < n; start += WARPS * 2 * AHEAD) {
            const auto at = conv_places(partials, n, pass, start);
            if (pass || start >= WARPS * 2) mail.ask(at);
            mail.wait(step, at, CONVS_THERE);
#pragma unroll
            for (int i = 0; i < AHEAD; i++) sum.x += value_of(mail.items[i].x), sum.y += value_of(mail.items[i].y);
        }
        sum.x += __shfl_xor_sync(~0u, sum.x, 16), sum.y += __shfl_xor_sync(~0u, sum.y, 16);
        if (lane < 16) left[(pass * WARPS + warp) * 16 + lane] = sum;
    }
    __syncthreads();
    float sum = 0;
    if (thread() < PASSES * 32) {
        const float* from = shared_floats(SCRATCH_AT) + thread() / 32 * WARPS * 32 + thread() % 32;
#pragma unroll
        for (int i = 0; i < WARPS; i++) sum += from[i * 32];
    }
    return sum;
}

// Where the i-th gradient lies that this thread sends.
__device__ long long slot(int i) { return ((long long)blockIdx.x * SENT + i) * THREADS + thread(); }

// The gradient of the convolutions that this thread owns, with what other GPUs have of it.
__device__ float summed(float own, const Ranks& ranks, Word step) {
    float g[1] = {own};
    const auto at = [](int) { return conv_place().theta >= 0 ? slot(SENT - 1) : -1; };
    ranks.send(g, at, step);
    ranks.sum(g, at, step);
    return g[0];
}

// What a thread owns of all parameters, for as long as the kernel runs.
struct Owned {
    Parameter weights[ROUNDS][OWN], biases[ROUNDS], conv;
    bool biased[ROUNDS] = {};  // whether there is such a bias

    // Call use(parameter, place, whether it is a weight) for each that there is, of one tile.
    template <typename Use>
    __device__ void of_dense(int round, Use use) {
        of_tile(blockIdx.x + round * GRID, [&](auto layer, int tile) {
            constexpr int LAYER = decltype(layer)::value;
#pragma unroll
            for (int i = 0; i < OWN; i++) {
                const Place place = weight_of<LAYER>(tile, i);
                if (place.theta >= 0) use(weights[round][i], place, thread() + i * THREADS, true);
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
#pragma unroll
        for (int round = 0; round < (RANKS > 1 ? ROUNDS : 0); round++) {
            of_dense(round, [&](Parameter&, Place, int, bool is_weight) { biased[round] |= !is_weight; });
        }
    }
    __device__ void store(const Vectors& vectors) {
        of_all([&](Parameter& own, Place place, int, bool) { own.store(vectors, place.theta); });
    }
    __device__ void publish(float* packed, Message* convs, Word step) {
#pragma unroll
        for (int round = 0; round < ROUNDS; round++) {
            of_dense(round, [&](Parameter& own, Place place, int, bool) { packed[place.packed] = own.w; });
        }
        if (conv_place().theta >= 0) send(convs + conv_place().packed, conv.w, step);
        if constexpr (!STREAMS) fence_proxy_async_all();
    }

    // Update all parameters with the gradients of n examples of this step, and hand them over for the next one. First
    // come those of the convolutions, for which everybody waits; but their gradients take a while to get here, and
    // meanwhile there are products to compute. The new dense weights are read by bulk copies: between the two must stand
    // a fence of the proxies, and it is the reader's alone (`ask_weights`), as here every thread would wait for its own.
    __device__ void update(Given given, int n, const Settings& settings, const Rates& rates, const Ranks& ranks,
                           Word step, Word next) {
        ConvMail mail;
        const auto gradient = [](int e, bool is_weight) {
            const int at = is_weight ? e / 16 * SUMS + e % 16 : thread() / 4 * SUMS + 16 + thread() % 4;
            float g = 0;
#pragma unroll
            for (int warp = 0; warp < WARPS; warp++) g += shared_floats(LATE_AT)[warp * 32 * SUMS + at];
            return g;
        };
#pragma unroll
        for (int round = 0; round < ROUNDS; round++) {
            float own[OWN + 1];  // of more GPUs than one: weights' gradients, a bias'
            const auto at = [&](int i) { return i < OWN || biased[round] ? slot(round * (OWN + 1) + i) : -1; };
            if (round) __syncthreads();
            if (round + 1 == ROUNDS) mail.ask(conv_places(given.partials, n, 0, thread() / 16));
            of_tile(blockIdx.x + round * GRID, [&](auto layer, int tile) {
                dense_sums<decltype(layer)::value>(round == 0, tile, given, n);
            });
            stamp(8);
            if constexpr (RANKS > 1) {  // they are on their way while the convolutions' come
                __syncthreads();
#pragma unroll
                for (int i = 0; i < OWN; i++) own[i] = gradient(min(thread() + i * THREADS, 511), true);
                own[OWN] = biased[round] ? gradient(0, false) : 0;
                ranks.send(own, at, step);
            }
            if (round + 1 == ROUNDS) update_convs(mail, given, n, settings, rates, ranks, step, next);
            else __syncthreads();
            stamp(9);
            ranks.sum(own, at, step);
            of_dense(round, [&](Parameter& parameter, Place place, int e, bool is_weight) {
                const float g = RANKS > 1 ? own[is_weight ? e / THREADS : OWN] : gradient(e, is_weight);
                parameter.update(g, settings, rates, is_weight);
                given.packed[place.packed] = parameter.w;
            });
        }
        __syncthreads();
    }

    __device__ void update_convs(ConvMail& mail, Given given, int n, const Settings& settings, const Rates& rates,
                                 const Ranks& ranks, Word step, Word next) {
        const float own = conv_sum(mail, given.partials, n, step);  // then all threads have met
        const float g = summed(own, ranks, step);
        const Place place = conv_place();
        if (place.theta >= 0) {
            conv.update(g, settings, rates, place.theta < CONV_WEIGHTS);
            send(given.convs + place.packed, conv.w, next);
        }
    }
};
