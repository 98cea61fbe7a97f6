// needs sm_90
// Several networks, each trained for a whole epoch, in one launch. A network has a cluster: eight blocks on neighbouring
// multiprocessors, with a barrier of their own. Clusters know nothing of each other; those that find no place wait.
//
//   Every block owns 16 columns of W1, in shared memory, as it does all images of the batch: it computes its columns of
//   a1, and later updates its columns. Nobody else needs to see W1.
//
//   It takes an eighth of the examples from a1 through the other layers to the loss, and back to dz1, in between never
//   waiting for another block. W2 and W3 come from the L2 cache, right into the registers where they are needed.
//
//   It updates 16 rows of W2, of W3 and of W4, for which it needs what the layers returned for all examples.
//
// So the blocks wait for each other three times a step: for a1; for all that the examples' way back left; and for the
// new weights, but with the next step's first layer in between. What they hand over goes through the L2 cache.
//
// The first layer's products are those of persistent.cu: images are bytes, W1 and dz1 become integers, split into four
// bytes, and the tensor cores add up without rounding. The other products are of float32 values: each is split into
// two that the tensor cores can hold (TF32), and of the four products of the parts the three that matter are added up.

#include "network.cuh"
#include "optimizer.cuh"
#include "splits.cuh"
#include "pixels.cuh"
#include "reductions.cuh"

static_assert(BATCH == 64 || BATCH == 128, "a row of BATCH elements is at most as wide as a layer");

const int BLOCKS = 8;
const int ROWS = BATCH / BLOCKS;  // examples that a block takes through the hidden layers

static_assert(BLOCKS * TILE == WIDTH, "a block owns 16 columns of W1, and 16 rows of W2, W3 and W4");
static_assert(ROWS <= TILE && ROWS % 4 == 0, "a block's examples are the rows of a product, and move four at a time");

const int STAMPED_BLOCKS = BLOCKS, STAGES = 16;
const bool ALL_STAMPED = false;  // only those of the first network
#include "stamps.cuh"

// What the blocks of a cluster hand each other. Rows of BATCH values: what a unit returned for every example.
struct Exchange {
    float a[3][WIDTH][BATCH];    // of layers 1 to 3
    float dz[3][WIDTH][BATCH];   // gradients after layers 1 to 3
    float dz4[TILE][BATCH];
    float W[2][WIDTH][WIDTH];    // W2 and W3, transposed
    float W4[TILE][WIDTH];       // transposed
};

struct Network {
    const unsigned char* X;
    const long long *y, *order;
    int examples, batch_size, rank;  // rank: the block's number in its cluster
    Vectors vectors;
    const Rates* rates;  // of each step
    float* row_losses;   // (steps, batch_size)
    Exchange* exchange;
    Settings settings;
};

// From the L2 cache: what other blocks write is there, not in a multiprocessor's own cache.
__device__ float4 four_of(const float* from) { return __ldcg((const float4*)from); }

// The value that sums over four splits stand for: element e of each.
__device__ float value_of(const int (&sums)[4][4], int e) {
    const float low = (float)sums[0][e] + 256.0f * sums[1][e], high = (float)sums[2][e] + 256.0f * sums[3][e];
    return low + 65536.0f * high;
}

// ---- Shared memory ----

const int DEPTH = (INPUTS + 31) / 32;  // 32 pixels: as many as a product takes at once
const int STRIDE = 32 * DEPTH + 16;

struct Shared {
    unsigned char x[BATCH][INPUTS];
    unsigned char beyond[16];  // is read, and multiplied with zeros
    float W1[TILE][STRIDE];    // the block's columns
    union {
        float parts[2][TILE][BATCH + 4];   // of the first layer's sums
        float rows[3][TILE][WIDTH];        // of matrices on the left of a product
        Word dz1[4][TILE][BATCH / 4 + 4];  // splits of dz1
    };
    float W4[CLASSES][WIDTH];  // transposed
    Parameter b1[TILE], b[2][WIDTH], b4[TILE];
    float inverse[TILE];  // what dz1's integers stand for, in each column
    Word largest[WARPS];  // of W1
    long long examples[BATCH];  // of the next batch
    Network network;  // here rather than in registers, of which there are few
    Rates rates;      // of the step
};

// Where values are in a row, so that the lanes which read or write at once meet different banks.
__device__ int in_row(int row, int column) { return column ^ ((row & 1) << 4 | (row & 2) << 2 | (row & 4)); }
__device__ int in_W1(int column, int pixel) { return pixel ^ column / 2 % 4 * 8; }

typedef float Rows[TILE][WIDTH];

// ---- The first layer ----

// The number of examples in a batch: the last one may be short, and there is none after it.
__device__ int in_batch(const Network& network, int step) {
    const long long left = network.examples - (long long)step * network.batch_size;
    return left < network.batch_size ? max((int)left, 0) : network.batch_size;
}

// Ask for what a step needs to know: the next batch's examples, and this one's rates.
__device__ void ask_for_order(const Network& network, Shared& shared, int step) {
    const long long first = (long long)step * network.batch_size;
    const int row = threadIdx.x;
    if (row < in_batch(network, step)) cp_async<8>(&shared.examples[row], network.order + first + row);
}
__device__ void ask_for_rates(const Network& network, Shared& shared, int step) {
    if (threadIdx.x < 3) cp_async<4>(&shared.rates.lr + threadIdx.x, &network.rates[step].lr + threadIdx.x);
}

// Ask for the images of a batch. A warp an image.
__device__ void fetch(const Network& network, Shared& shared, int step) {
    const int n = in_batch(network, step);
    for (int row = threadIdx.x / 32; row < n; row += WARPS) {
        const unsigned char* from = network.X + shared.examples[row] * INPUTS;
        for (int piece = threadIdx.x % 32 * 16; piece < INPUTS; piece += 32 * 16) {
            cp_async<16>(&shared.x[row][piece], from + piece);
        }
    }
}

// The products of a warp: 64 rows, 8 columns, and every SPLITS-th piece of 32 pixels.
const int ROW_GROUPS = BATCH / 64, SPLITS = WARPS / 2 / ROW_GROUPS;

static_assert(SPLITS % 2 == 0, "sums are added up in pairs of parts");

// Sums over the pixels for the block's columns of x W1, in two parts.
// This and the next stages are not inlined: so that each of them has all registers for itself.
__device__ __noinline__ void first_products(Shared& shared, float scale) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int half = warp % 2, first = warp / 2 % ROW_GROUPS * 64, split = warp / 2 / ROW_GROUPS;
    const int column = 8 * half + lane / 4;
    int sums[4][4][4] = {};  // of each tile of 16 rows, of each split
#pragma unroll 1
    for (int k = split; k < DEPTH; k += SPLITS) {
        const int pixel = 32 * k + lane % 4 * 4;
        const Splits left(*(const float4*)&shared.W1[column][in_W1(column, pixel)], scale);
        const Splits right(*(const float4*)&shared.W1[column][in_W1(column, pixel + 16)], scale);
#pragma unroll
        for (int tile = 0; tile < 4; tile++) {
            Word a[4];
            ldmatrix_x4(a, &shared.x[first + tile * 16 + lane % 16][0] + 32 * k + lane / 16 * 16);
#pragma unroll
            for (int d = 0; d < 4; d++) mma_m16n8k32_u8s8(sums[tile][d], a, left.of[d], right.of[d]);
        }
    }
#pragma unroll 1
    for (int round = 0; round < SPLITS; round += 2) {
        if (split / 2 * 2 == round) {
#pragma unroll
            for (int tile = 0; tile < 4; tile++) {
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const int row = first + tile * 16 + e / 2 * 8 + lane / 4;
                    float& part = shared.parts[split % 2][8 * half + lane % 4 * 2 + e % 2][row];
                    part = (round ? part : 0) + value_of(sums[tile], e);
                }
            }
        }
        __syncthreads();
    }
}

// a1 = relu(x W1 + b1) for the block's columns, a warp a column, a lane four rows.
__device__ void first_outputs(const Network& network, const Shared& shared, float unit) {
    const int column = threadIdx.x / 32, row = threadIdx.x % 32 * 4;
    if (row >= BATCH) return;
    const float b = shared.b1[column].w;
    float z[4];
    for (int i = 0; i < 4; i++) {
        z[i] = (shared.parts[0][column][row + i] + shared.parts[1][column][row + i]) * unit + b;
        z[i] = z[i] < 0 ? 0 : z[i];  // in this order a NaN stays a NaN
    }
    *(float4*)&network.exchange->a[0][TILE * network.rank + column][row] = make_float4(z[0], z[1], z[2], z[3]);
}

// Receive dz1 of the block's columns, write its splits into shared memory, and update b1. A warp a column; a lane has
// four rows, those that one register of the tensor cores' input holds.
__device__ void receive_dz1(const Network& network, Shared& shared) {
    const int column = threadIdx.x / 32, lane = threadIdx.x % 32;
    float4 dz = {0, 0, 0, 0};
    if (lane < BATCH / 4) {
        const float* from = &network.exchange->dz[0][TILE * network.rank + column][lane / 4 * 16 + lane % 4 * 2];
        const float2 low = __ldcg((const float2*)from), high = __ldcg((const float2*)(from + 8));
        dz = make_float4(low.x, low.y, high.x, high.y);
    }
    const Word largest = max(max(magnitude(dz.x), magnitude(dz.y)), max(magnitude(dz.z), magnitude(dz.w)));
    const int biased = biased_exponent(__reduce_max_sync(~0u, largest));
    const Splits splits(dz, scale(biased));
    for (int d = 0; d < 4; d++) {
        if (lane < BATCH / 4) shared.dz1[d][column][lane] = splits.of[d];
    }
    const float sum = warp_sum<32>(dz.x + dz.y + dz.z + dz.w);
    if (lane > 0) return;
    shared.inverse[column] = inverse_scale(biased);
    shared.b1[column].update(sum, shared.network.settings, shared.rates, false);
}

// The largest weight of W1 decides on what its integers stand for.
__device__ void note_largest(Shared& shared, Word largest) {
    largest = __reduce_max_sync(~0u, largest);
    if (threadIdx.x % 32 == 0) shared.largest[threadIdx.x / 32] = largest;
}

// The block's columns of W1, in tiles of 16 pixels and 8 columns, of which a warp has every eighth. A lane has four
// weights of a tile: of two pixels in two columns. Adam's averages stay in the L2 cache.
struct FirstTile {
    int tile;

    __device__ int column(int e) const { return threadIdx.x / 32 / 8 * 8 + threadIdx.x % 4 * 2 + e % 2; }
    __device__ int pixel(int e) const { return 16 * tile + threadIdx.x % 32 / 4 * 2 + e / 2; }
    __device__ float& weight(Shared& shared, int e) const {
        return shared.W1[column(e)][in_W1(column(e), pixel(e))];
    }
    __device__ int place(const Network& network, int e) const {
        return W1 + pixel(e) * WIDTH + TILE * network.rank + column(e);
    }

    // Ask for Adam's averages.
    __device__ void load(const Network& network, Parameter (&parameters)[4]) const {
        for (int e = 0; e < 4; e++) parameters[e].load_averages(network.vectors, place(network, e));
    }
};

// Call act(tile) for each of the warp's tiles.
template <typename Act>
__device__ void for_first_tiles(Act act) {
#pragma unroll 1
    for (int tile = threadIdx.x / 32 % 8; tile < PIXEL_TILES; tile += 8) act(FirstTile{tile});
}

__device__ void load_first(const Network& network, Shared& shared) {
    Word largest = 0;
    for_first_tiles([&](FirstTile tile) {
        for (int e = 0; e < 4; e++) {
            const float w = network.vectors.theta[tile.place(network, e)];
            tile.weight(shared, e) = w;
            largest = max(largest, magnitude(w));
        }
    });
    note_largest(shared, largest);
}

__device__ void store_first(const Network& network, Shared& shared) {
    for_first_tiles([&](FirstTile tile) {
        for (int e = 0; e < 4; e++) network.vectors.theta[tile.place(network, e)] = tile.weight(shared, e);
    });
}

// W1's gradient, x^T dz1, for the block's columns, and the update.
__device__ __noinline__ void update_first(const Network& network, Shared& shared) {
    receive_dz1(network, shared);
    __syncthreads();
    const int lane = threadIdx.x % 32, columns = threadIdx.x / 32 / 8 * 8;
    const float* inverse = &shared.inverse[columns + lane % 4 * 2];
    const float unit[2] = {inverse[0] / 255, inverse[1] / 255};
    Word b[BATCH / 32][4][2], largest = 0;
#pragma unroll
    for (int e = 0; e < BATCH / 4; e++) {
        const int step = e / 8, d = e / 2 % 4, part = e % 2;
        b[step][d][part] = shared.dz1[d][columns + lane / 4][8 * step + 4 * part + lane % 4];
    }
    for_first_tiles([&](FirstTile tile) {
        Parameter parameters[4];
        tile.load(network, parameters);
        Pixels<BATCH> pixels;
        pixels.load(shared.x, tile.tile);
        int sums[4][4] = {};
#pragma unroll
        for (int step = 0; step < BATCH / 32; step++) {
#pragma unroll
            for (int d = 0; d < 4; d++) mma_m16n8k32_u8s8(sums[d], pixels.of[step], b[step][d][0], b[step][d][1]);
        }
#pragma unroll
        for (int e = 0; e < 4; e++) {
            parameters[e].w = tile.weight(shared, e);
            parameters[e].update(value_of(sums, e) * unit[e % 2], network.settings, shared.rates, true);
            tile.weight(shared, e) = parameters[e].w;
            parameters[e].store_averages(network.vectors, tile.place(network, e));  // w stays in shared memory
            largest = max(largest, magnitude(parameters[e].w));
        }
    });
    note_largest(shared, largest);
    __syncthreads();
}

// ---- Products in float32: on the left 16 rows, in shared memory; on the right a matrix, 8 of its rows a warp ----

// x = big + small, nearly: big is x to 11 bits, and small the next 11, of which the tensor cores ignore what is beyond.
struct Split {
    Word big, small;

    __device__ Split(float x) {
        big = (__float_as_uint(x) + 0x1000) & 0xffffe000u;
        small = __float_as_uint(x - __uint_as_float(big));
    }
};

// A lane's share of the matrix on the right: one row, of every 16 columns four.
struct Right {
    float4 of[WIDTH / 16];

    template <int COLUMNS>
    static __device__ const float* place(const float* matrix, int i) {
        return matrix + (8 * (threadIdx.x / 32) + threadIdx.x % 32 / 4) * COLUMNS + 16 * i + threadIdx.x % 4 * 4;
    }

    template <int COLUMNS>
    __device__ void ask(const float* matrix) {
#pragma unroll
        for (int i = 0; i < COLUMNS / 16; i++) of[i] = four_of(place<COLUMNS>(matrix, i));
    }

    // The sum of the lane's row.
    template <int COLUMNS>
    __device__ float sum() const {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < COLUMNS / 16; i++) sum += of[i].x + of[i].y + of[i].z + of[i].w;
        return warp_sum_from_nearest<4>(sum);
    }

    // left times the matrix transposed; row_of and column_of tell which four values of it a lane gets.
    // What was used makes room for the next matrix, which is on its way while this one is worked on.
    template <int COLUMNS>
    __device__ void multiply_with(const Rows& left, float (&sums)[4], const float* next) {
        const int row = threadIdx.x % 32 / 4;
        float rest[2][4] = {};  // the small parts' share
        __syncwarp();
        for (int e = 0; e < 4; e++) sums[e] = 0;
#pragma unroll
        for (int i = 0; i < COLUMNS / 16; i++) {
            const int column = in_row(row, 16 * i + threadIdx.x % 4 * 4);  // the same in row + 8
            const float4 low = *(const float4*)&left[row][column], high = *(const float4*)&left[row + 8][column];
            const float a[2][4] = {{low.x, high.x, low.y, high.y}, {low.z, high.z, low.w, high.w}};
            const float b[2][2] = {{of[i].x, of[i].y}, {of[i].z, of[i].w}};
            float part[4] = {};  // the tensor cores truncate what they add: so not too many sums in there
#pragma unroll
            for (int k = 0; k < 2; k++) {
                Word big[4], small[4];
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const Split split(a[k][e]);
                    big[e] = split.big, small[e] = split.small;
                }
                const Split first(b[k][0]), second(b[k][1]);
                mma_m16n8k8_tf32(part, big, {first.big, second.big});
                mma_m16n8k8_tf32(rest[0], big, {first.small, second.small});
                mma_m16n8k8_tf32(rest[1], small, {first.big, second.big});
            }
            for (int e = 0; e < 4; e++) sums[e] += part[e];
            if (next) of[i] = four_of(place<COLUMNS>(next, i));
        }
        for (int e = 0; e < 4; e++) sums[e] += rest[0][e] + rest[1][e];
    }
};

// What a lane has of such a product.
__device__ int row_of(int e) { return threadIdx.x % 32 / 4 + e / 2 * 8; }
__device__ int column_of(int e) { return 8 * (threadIdx.x / 32) + threadIdx.x % 4 * 2 + e % 2; }

__device__ void put(Rows& rows, const float (&elements)[4]) {
    for (int e = 0; e < 4; e += 2) {
        float* to = &rows[row_of(e)][in_row(row_of(e), column_of(e))];
        *(float2*)to = make_float2(elements[e], elements[e + 1]);
    }
}

// ---- The examples' way through the other layers, and back ----

// The block's examples, from and to a matrix of all examples, which has a unit a row. A thread has four of a unit's.
__device__ void take(Rows& rows, const float (*units)[BATCH], int rank) {
    const int unit = threadIdx.x % WIDTH, row = threadIdx.x / WIDTH * 4;
    if (row >= ROWS) return;
    const float4 four = four_of(&units[unit][ROWS * rank + row]);
    const float elements[4] = {four.x, four.y, four.z, four.w};
    for (int i = 0; i < 4; i++) rows[row + i][in_row(row + i, unit)] = elements[i];
}

__device__ void give(const Rows& rows, float (*units)[BATCH], int rank) {
    const int unit = threadIdx.x % WIDTH, row = threadIdx.x / WIDTH * 4;
    if (row >= ROWS) return;
    float four[4];
    for (int i = 0; i < 4; i++) four[i] = rows[row + i][in_row(row + i, unit)];
    *(float4*)&units[unit][ROWS * rank + row] = make_float4(four[0], four[1], four[2], four[3]);
}

// Which of a lane's values are above zero, a bit each.
__device__ Word positive(const float (&a)[4]) {
    return (a[0] > 0) | (a[1] > 0) << 1 | (a[2] > 0) << 2 | (a[3] > 0) << 3;
}

// out <- relu(in W + b). W: transposed. Returns where it is positive.
__device__ Word forward(const Rows& in, Right& W, const Parameter* b, Rows& out, const float* next) {
    float z[4];
    W.multiply_with<WIDTH>(in, z, next);
    for (int e = 0; e < 4; e++) {
        z[e] += b[column_of(e)].w;
        z[e] = z[e] < 0 ? 0 : z[e];
    }
    put(out, z);
    __syncthreads();
    return positive(z);
}

// out <- the gradient before the ReLU, where that let something pass, from that after the layer.
__device__ void backward(const Rows& dz, Right& W, Word passed, Rows& out, const float* next) {
    float da[4];
    W.multiply_with<WIDTH>(dz, da, next);
    for (int e = 0; e < 4; e++) da[e] = passed >> e & 1 ? da[e] : 0;
    put(out, da);
    __syncthreads();
}

// The last layer, the loss, and the gradient of the last hidden layer: a warp a row.
// A lane has four of the row's units; then two lanes a class; then four units again.
__device__ void last_layer(const Network& network, Shared& shared, const Rows& in, Rows& out, int step, int label) {
    const int lane = threadIdx.x % 32, r = threadIdx.x / 32, row = ROWS * network.rank + r;
    if (r < ROWS) {
        const int n = in_batch(network, step);
        const float4 a = *(const float4*)&in[r][in_row(r, 4 * lane)];
        float z[TILE] = {};
#pragma unroll
        for (int c = 0; c < CLASSES; c++) {
            const float4 w = *(const float4*)&shared.W4[c][4 * lane];
            z[c] = a.x * w.x + a.y * w.y + a.z * w.z + a.w * w.w;
        }
        warp_sums<TILE / 2, 16>(z);
        const int c = lane / 2;
        const float logit = c < CLASSES ? z[0] + shared.b4[c].w : -__uint_as_float(0x7f800000u);  // minus infinity
        const float largest = warp_max<TILE, 2>(logit), power = expf(logit - largest), total = warp_sum<TILE, 2>(power);
        // Else the row only fills up the batch.
        const float dz4 = row < n ? power / (total * n) - (c == label ? 1.0f / n : 0.0f) : 0.0f;
        if (lane % 2 == 0) network.exchange->dz4[c][row] = dz4;

        float4 da = {0, 0, 0, 0};
#pragma unroll
        for (int c = 0; c < CLASSES; c++) {
            const float4 w = *(const float4*)&shared.W4[c][4 * lane];
            const float d = __shfl_sync(~0u, dz4, 2 * c);
            da.x += d * w.x, da.y += d * w.y, da.z += d * w.z, da.w += d * w.w;
        }
        da = {a.x > 0 ? da.x : 0, a.y > 0 ? da.y : 0, a.z > 0 ? da.z : 0, a.w > 0 ? da.w : 0};
        *(float4*)&out[r][in_row(r, 4 * lane)] = da;
        if (row < n && lane == 2 * label) {
            network.row_losses[(long long)step * network.batch_size + row] = logf(total) - (logit - largest);
        }
    }
    __syncthreads();
}

// From a1 to the loss, and back to dz1. unit: what the integers stand for that the first layer's sums are made of.
__device__ __noinline__ void there_and_back(const Network& network, Shared& shared, float unit, int step) {
    Exchange& exchange = *network.exchange;
    const int rank = network.rank;
    const int row = ROWS * rank + threadIdx.x / 32;  // the warp's example, for the last layer
    const bool used = threadIdx.x / 32 < ROWS && row < in_batch(network, step);
    const int label = used ? (int)network.y[network.order[(long long)step * network.batch_size + row]] : -1;
    ask_for_order(network, shared, step + 1);
    ask_for_rates(network, shared, step);
    Rows &one = shared.rows[0], &other = shared.rows[1];
    barrier_cluster_wait();  // for the new W2, W3 and W4
    Right W;
    W.ask<WIDTH>(exchange.W[0][0]);
    first_outputs(network, shared, unit);
    stamp(step, 2);
    barrier_cluster_arrive();
    barrier_cluster_wait();  // for a1
    stamp(step, 3);
    take(one, exchange.a[0], rank);
    for (int e = 4 * threadIdx.x; e < CLASSES * WIDTH; e += 4 * THREADS) {
        *(float4*)(&shared.W4[0][0] + e) = four_of(&exchange.W4[0][0] + e);
    }
    __syncthreads();
    float a1[4];
    for (int e = 0; e < 4; e++) a1[e] = one[row_of(e)][in_row(row_of(e), column_of(e))];
    const Word first_passed = positive(a1);

    stamp(step, 4);
    const Word passed = forward(one, W, shared.b[0], other, exchange.W[1][0]);
    give(other, exchange.a[1], rank);
    stamp(step, 5);
    forward(other, W, shared.b[1], one, network.vectors.theta + W3);
    give(one, exchange.a[2], rank);
    stamp(step, 6);
    last_layer(network, shared, one, other, step, label);
    give(other, exchange.dz[2], rank);
    stamp(step, 7);
    backward(other, W, passed, one, network.vectors.theta + W2);
    give(one, exchange.dz[1], rank);
    stamp(step, 8);
    backward(one, W, first_passed, other, nullptr);
    give(other, exchange.dz[0], rank);
    cp_async_wait_all();
}

// ---- The update of W2, W3 and W4: 16 rows of each ----

// The block's units, for all examples.
__device__ void take_units(Rows& rows, const float (*units)[BATCH], int rank) {
    const int unit = threadIdx.x / (BATCH / 4), row = threadIdx.x % (BATCH / 4) * 4;
    if (unit < TILE) *(float4*)&rows[unit][in_row(unit, row)] = four_of(&units[TILE * rank + unit][row]);
}

// The gradient and the update of weights (WIDTH, COLUMNS) and of a bias, by all warps that have one of their columns.
// a: the layer's inputs, the block's units. dz: has been asked for. transposed: where others expect the new weights.
template <int COLUMNS>
__device__ void update_rows(const Network& network, const Shared& shared, const Rows& a, Right& dz, const float* next,
                            int weights, Parameter* b, float (*transposed)[WIDTH]) {
    if (threadIdx.x / 32 * 8 >= COLUMNS) return;
    Parameter parameters[4];
    const auto place = [&](int e) { return weights + (TILE * network.rank + row_of(e)) * COLUMNS + column_of(e); };
#pragma unroll
    for (int e = 0; e < 4; e++) {
        if (column_of(e) < COLUMNS) parameters[e].load(network.vectors, place(e));
    }
    const float bias = dz.sum<BATCH>();
    float g[4];
    dz.multiply_with<BATCH>(a, g, next);
#pragma unroll
    for (int e = 0; e < 4; e++) {
        if (column_of(e) >= COLUMNS) continue;
        parameters[e].update(g[e], network.settings, shared.rates, true);
        parameters[e].store(network.vectors, place(e));
        transposed[column_of(e)][TILE * network.rank + row_of(e)] = parameters[e].w;
    }
    // Every block has all biases, and updates them in the same way.
    if (threadIdx.x % 4 == 0 && threadIdx.x / 4 < COLUMNS) {
        b[threadIdx.x / 4].update(bias, network.settings, shared.rates, false);
    }
}

__device__ __noinline__ void update_others(const Network& network, Shared& shared, int step) {
    Exchange& exchange = *network.exchange;
    fetch(network, shared, step + 1);  // if there is a next batch
    Right dz;
    dz.ask<BATCH>(exchange.dz[2][0]);
    for (int layer = 0; layer < 3; layer++) take_units(shared.rows[layer], exchange.a[layer], network.rank);
    __syncthreads();
    stamp(step, 12);
    update_rows<WIDTH>(network, shared, shared.rows[1], dz, exchange.dz[1][0], W3, shared.b[1], exchange.W[1]);
    stamp(step, 13);
    const float* last = threadIdx.x < 2 * 32 ? exchange.dz4[0] : nullptr;
    update_rows<WIDTH>(network, shared, shared.rows[0], dz, last, W2, shared.b[0], exchange.W[0]);
    update_rows<CLASSES>(network, shared, shared.rows[2], dz, nullptr, W4, shared.b4, exchange.W4);
}

// ---- An epoch ----

// Call act(parameter, place in theta) for the block's parameters in shared memory.
template <typename Act>
__device__ void for_biases(const Network& network, Shared& shared, Act act) {
    const int e = threadIdx.x;
    if (e < TILE) act(shared.b1[e], B1 + TILE * network.rank + e);
    if (e < 2 * WIDTH) act(shared.b[e / WIDTH][e % WIDTH], B2 + e);  // and B3
    if (e < CLASSES) act(shared.b4[e], B4 + e);
}

// The weights that other blocks will want transposed.
__device__ void transpose_rows(const Network& network) {
    for (int e = threadIdx.x; e < TILE * WIDTH; e += THREADS) {
        const int row = TILE * network.rank + e / WIDTH, column = e % WIDTH;
        network.exchange->W[0][column][row] = network.vectors.theta[W2 + row * WIDTH + column];
        network.exchange->W[1][column][row] = network.vectors.theta[W3 + row * WIDTH + column];
        if (column < CLASSES) network.exchange->W4[column][row] = network.vectors.theta[W4 + row * CLASSES + column];
    }
}

__device__ __noinline__ void begin(const Network& network, Shared& shared) {
    for (int e = threadIdx.x; e < TILE * STRIDE; e += THREADS) (&shared.W1[0][0])[e] = 0;
    for_biases(network, shared, [&](Parameter& parameter, int place) { parameter.load(network.vectors, place); });
    ask_for_order(network, shared, 0);
    transpose_rows(network);
    cp_async_wait_all();
    __syncthreads();  // the zeros are there, and the order
    load_first(network, shared);
    fetch(network, shared, 0);
}

__device__ __noinline__ void finish(const Network& network, Shared& shared) {
    store_first(network, shared);
    for_biases(network, shared, [&](Parameter& parameter, int place) {
        if (network.rank == 0 || place < B2) parameter.store(network.vectors, place);
    });
}

__device__ void train_network(const Network& network, Shared& shared) {
    begin(network, shared);
    barrier_cluster_arrive();
    for (int step = 0; (long long)step * network.batch_size < network.examples; step++) {
        cp_async_wait_all();
        __syncthreads();  // the images are there, and W1
        stamp(step, 0);
        const int biased = biased_exponent(__reduce_max_sync(~0u, shared.largest[threadIdx.x % WARPS]));
        first_products(shared, scale(biased));
        stamp(step, 1);
        there_and_back(network, shared, inverse_scale(biased) / 255, step);
        stamp(step, 9);
        barrier_cluster_arrive();
        barrier_cluster_wait();  // for what the examples left
        stamp(step, 10);
        update_first(network, shared);
        stamp(step, 11);
        update_others(network, shared, step);
        barrier_cluster_arrive();
        stamp(step, 14);
    }
    barrier_cluster_wait();
    finish(network, shared);
}

// Train networks on the examples in their orders (networks, examples). Grid: BLOCKS a network. vectors: each network's
// theta, m and v. rates: (networks, steps). row_losses: (networks, steps, batch_size). exchange: one a network.
extern "C" __global__ void __cluster_dims__(BLOCKS) __launch_bounds__(THREADS, 1)
    train(const unsigned char* X, const long long* y, const long long* orders, int examples, int batch_size,
          float* row_losses, Exchange* exchange, float* const (*vectors)[3], const Rates* rates,
          const Settings* settings) {
    Shared& shared = *(Shared*)shared_bytes;
    if (threadIdx.x == 0) {
        const long long number = blockIdx.x / BLOCKS, steps = (examples + batch_size - 1) / batch_size;
        shared.network = {X,
                          y,
                          orders + number * examples,
                          examples,
                          batch_size,
                          (int)(blockIdx.x % BLOCKS),
                          {vectors[number][0], vectors[number][1], vectors[number][2]},
                          rates + number * steps,
                          row_losses + number * steps * batch_size,
                          exchange + number,
                          settings[number]};
    }
    __syncthreads();
    train_network(shared.network, shared);
}

// How much memory a launch needs, which the host can't work out by itself.
extern "C" __global__ void requirements(int* answer) {
    answer[0] = sizeof(Exchange);
    answer[1] = sizeof(Shared);
}
