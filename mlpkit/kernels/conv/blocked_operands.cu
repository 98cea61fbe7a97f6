// Operands as the blocked products read them: images and filters split into fp16, and filters in order.
//
// `split` makes fp16 of arrays that lie in their order already. `in_order` makes filters of parameters, which change
// each step: those of all convolutions of a model in one launch. W (o, c, k, k) becomes, for each pass, [64 rows][chunk
// of columns][tap][piece of columns][row]: rows are o and columns c for the forward pass, and the other way round, with
// the taps rotated by 180 degrees, for the input gradient. A thread makes a piece, and a warp's pieces are neighbours.
// In fp16 the low parts follow the high ones: of a tap, of 32 filters, or of a whole array.

#include "fp16.cuh"

// ---- Arrays as they lie ----

// The pieces of an array of float32, 8 values each, and where their fp16 goes. Piece number i is two pieces of 4
// channels, `area` pieces apart. Of every `block` pieces the low parts follow the high ones.
struct Pieces {
    const float4* from;
    Piece* to;
    int all, area, block;
};

// Make this thread's part of the fp16; return the largest magnitude among its values.
inline float fp16_of(const Pieces& p, float scale)
{
    float most = 0;
    #pragma unroll 2
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < p.all; i += gridDim.x * blockDim.x) {
        size_t first = (size_t)i + (size_t)(i / p.area) * p.area;
        float4 one = p.from[first], two = p.from[first + p.area];
        const float x[8] = {one.x, one.y, one.z, one.w, two.x, two.y, two.z, two.w};
        Piece parts[PARTS];
        most = fmaxf(most, largest_of(x));
        pieces_of(x, scale, parts);
        size_t to = (size_t)(i / p.block) * p.block * PARTS + i % p.block;
        #pragma unroll
        for (int part = 0; part < PARTS; ++part) put(p.to + to + (size_t)part * p.block, parts[part]);
    }
    return most;
}

// Make the fp16 of two arrays, or of one, if the other has no pieces. By as many blocks as there is room for at once.
extern "C" __global__ __launch_bounds__(1024, 1)
void split(const __grid_constant__ Pieces a, const __grid_constant__ Pieces b, Scale* of_a, Scale* of_b)
{
    extern __shared__ __align__(128) unsigned char shared_bytes[];
    Word *most = reinterpret_cast<Word*>(shared_bytes), *launches = most + 2;
    Scale* scales[2] = {of_a, of_b};
    float guesses[2];
    int count = b.all > 0 ? 2 : 1;
    #pragma unroll
    for (int i = 0; i < 2; ++i)
        if (i < count) guesses[i] = scales[i]->of;
    if (threadIdx.x < count) most[threadIdx.x] = 0, launches[threadIdx.x] = scales[threadIdx.x]->launches;
    __syncthreads();
    #pragma unroll
    for (int i = 0; i < 2; ++i) {
        if (i >= count) break;
        Word found = __reduce_max_sync(~0u, __float_as_uint(fp16_of(i ? b : a, guesses[i])));
        if (threadIdx.x % 32 == 0) atomicMax(&most[i], found);
    }
    find_scales(scales, count, most, launches);
    #pragma unroll
    for (int i = 0; i < 2; ++i) {
        if (i >= count) break;
        float scale = __uint_as_float(most[i]);
        if (scale != guesses[i]) fp16_of(i ? b : a, scale);
    }
}

// ---- Filters ----

#ifndef MOST
#define MOST 16  // orders in a launch
#endif

// Piece number `first` of the launch is the first of `to`. which: the number of its scale.
struct Order {
    const float* from;
    Piece* to;
    int first, which;
    int rows, columns, row_step, column_step;  // of W as a matrix for each tap: how many, and values between neighbours
    int groups, chunks, taps, taps_x;          // pieces of columns in a chunk
    int tap_y, tap_x, step_y, step_x, side;    // tap (i, j) is W's (tap_y + step_y i, tap_x + step_x j)
    int tile, block, padding;  // rows side by side; pieces that are followed by their low fp16 parts
};

struct Orders {
    Order of[MOST];
    Scale* scales[MOST];
    int count, scales_count, pieces, padding;
};

// Make piece number i, and return the largest magnitude in it.
inline float make(const Order& order, int i, float scale)
{
    int n = i - order.first, row = n % order.tile, group = n / order.tile % order.groups;
    int rest = n / order.tile / order.groups;
    int tap = rest % order.taps, chunk = rest / order.taps % order.chunks;
    int o = rest / order.taps / order.chunks * order.tile + row, c = (chunk * order.groups + group) * CHANNELS;
    int y = order.tap_y + order.step_y * (tap / order.taps_x), z = order.tap_x + order.step_x * (tap % order.taps_x);
    const float* from = order.from + (size_t)o * order.row_step + (size_t)c * order.column_step + y * order.side + z;
    float x[8] = {};
    #pragma unroll
    for (int j = 0; j < CHANNELS; ++j)
        if (o < order.rows && c + j < order.columns) x[j] = from[(size_t)j * order.column_step];
    if constexpr (MODE == 1) {
        *reinterpret_cast<float4*>(order.to + n) = {x[0], x[1], x[2], x[3]};
    } else {
        Piece parts[PARTS];
        pieces_of(x, scale, parts);
        int block = order.block, to = n / block * block * PARTS + n % block;
        #pragma unroll
        for (int part = 0; part < PARTS; ++part) put(order.to + to + part * block, parts[part]);
    }
    return largest_of(x);
}

extern "C" __global__ __launch_bounds__(256)
void in_order(const __grid_constant__ Orders orders)
{
    extern __shared__ __align__(128) unsigned char shared_bytes[];
    Word *most = reinterpret_cast<Word*>(shared_bytes), *launches = most + MOST;
    float* guesses = reinterpret_cast<float*>(launches + MOST);
    int thread = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x;
    if constexpr (SCALED) {
        if (threadIdx.x < orders.scales_count) {
            const Scale* scale = orders.scales[threadIdx.x];
            most[threadIdx.x] = 0, guesses[threadIdx.x] = scale->of;
            launches[threadIdx.x] = scale->launches;
        }
        __syncthreads();
    }
    for (int i = thread, number = 0; i < orders.pieces; i += threads) {
        while (number + 1 < orders.count && i >= orders.of[number + 1].first) ++number;
        const Order& order = orders.of[number];
        float found = make(order, i, SCALED ? guesses[order.which] : 1);
        if constexpr (SCALED) {
            Word of_warp = __reduce_max_sync(~0u, __float_as_uint(found));
            if (threadIdx.x % 32 == 0) atomicMax(&most[order.which], of_warp);
        }
    }
    if constexpr (SCALED) {
        find_scales(orders.scales, orders.scales_count, most, launches);
        for (int number = 0; number < orders.count; ++number) {
            const Order& order = orders.of[number];
            float scale = __uint_as_float(most[order.which]);
            if (scale == guesses[order.which]) continue;
            int end = number + 1 < orders.count ? orders.of[number + 1].first : orders.pieces;
            for (int i = order.first + thread; i < end; i += threads) make(order, i, scale);
        }
    }
}
