// Operands as the blocked products read them: images and filters split into fp16, and filters in order.
//
// `split` makes fp16 of arrays that lie in their order already. `in_order` makes filters of parameters, which change
// each step: those of all convolutions of a model in one launch. W (o, c, k, k) becomes, for each pass, [64 rows][chunk
// of columns][tap][piece of columns][row]: rows are o and columns c for the forward pass, and the other way round, with
// the taps rotated by 180 degrees, for the input gradient. A block takes a part of W through shared memory: from there
// each thread makes pieces, and a warp's pieces are neighbours, whichever pass it is for. In fp16 the low parts follow
// the high ones: of a tap, of 32 filters, or of a whole array.

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
    begin_in_turn();
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

constexpr int MOST = 16;             // orders in a launch, and filters
constexpr int TALL = 8, WIDE = 16;  // output and input channels that a block takes at a time

// Powers of two come as the number of their bits: nobody divides.
struct Order {
    Piece* to;
    int by_inputs;                         // whether its rows are input channels
    int rows, groups, chunks, taps;        // rows, with those that are added; bits of the pieces of columns in a chunk
    int taps_x, by_taps_x;                 // and 2^16 / taps_x, rounded up
    int tap_y, tap_x, step_y, step_x;      // tap (i, j) is W's (tap_y + step_y i, tap_x + step_x j)
    int tile, block;                       // bits of rows side by side; of pieces that their low fp16 parts follow
    int padding;
};

// Parts of W are numbered from `first` on, `across` of them side by side; its orders, too.
struct Filter {
    const float* from;
    int outputs, inputs, side, area;
    int first, across, first_order, orders;
};

struct Orders {
    Order of[MOST];
    Filter filters[MOST];
    Scale* scales[MOST];
    int count, parts, unused[2];
};

// A part of W in shared memory: output channels are an odd number of elements apart.
struct Part {
    int output, input, pitch;

    __device__ Part(const Filter& f, int number)
        : output((number - f.first) / f.across * TALL), input((number - f.first) % f.across * WIDE),
          pitch(WIDE * f.area | 1) {}
};

// Copy a part, zeros where W has nothing; return the largest magnitude that this thread found.
inline float load(const Filter& f, const Part& part, float* to)
{
    float most = 0;
    const int row = WIDE * f.area, there = (f.inputs - part.input) * f.area;
    #pragma unroll 8  // all are on their way at once
    for (int i = threadIdx.x; i < TALL * row; i += blockDim.x) {
        int o = i / row, rest = i - o * row;
        bool inside = part.output + o < f.outputs && rest < there;
        float x = inside ? f.from[(size_t)(part.output + o) * f.inputs * f.area + part.input * f.area + rest] : 0;
        to[o * part.pitch + rest] = x;
        most = fmaxf(most, fabsf(x));
    }
    return most;
}

// Make the pieces of an order that a part has.
template <bool BY_INPUTS>
inline void make(const Order& order, const Filter& f, const Part& part, const float* from, float scale)
{
    constexpr int ROWS = BY_INPUTS ? WIDE : TALL, GROUPS = (BY_INPUTS ? TALL : WIDE) / CHANNELS;
    const int first_row = BY_INPUTS ? part.input : part.output;
    const int first = (BY_INPUTS ? part.output : part.input) / CHANNELS;
    const int row_step = BY_INPUTS ? f.area : part.pitch, step = BY_INPUTS ? part.pitch : f.area;
    for (int i = threadIdx.x; i < ROWS * GROUPS * order.taps; i += blockDim.x) {
        int row = first_row + i % ROWS, group = first + i / ROWS % GROUPS, tap = i / ROWS / GROUPS;
        if (row >= order.rows || group >= order.chunks << order.groups) continue;
        int down = tap * order.by_taps_x >> 16;
        int y = order.tap_y + order.step_y * down, z = order.tap_x + order.step_x * (tap - down * order.taps_x);
        const float* here = from + i % ROWS * row_step + i / ROWS % GROUPS * CHANNELS * step + y * f.side + z;
        float x[8] = {};
        #pragma unroll
        for (int j = 0; j < CHANNELS; ++j) x[j] = here[j * step];
        int n = ((row >> order.tile) * order.chunks + (group >> order.groups)) * order.taps + tap;
        n = (n << order.groups | group & (1 << order.groups) - 1) << order.tile | row & (1 << order.tile) - 1;
        if constexpr (MODE == 1) {
            *reinterpret_cast<float4*>(order.to + n) = {x[0], x[1], x[2], x[3]};
        } else {
            Piece parts[PARTS];
            pieces_of(x, scale, parts);
            Piece* to = order.to + ((n >> order.block) * PARTS << order.block | n & (1 << order.block) - 1);
            #pragma unroll
            for (int part = 0; part < PARTS; ++part) put(to + (part << order.block), parts[part]);
        }
    }
}

// Put a part of W that is in shared memory into all of its orders.
inline void put_in_order(const Orders& all, const Filter& f, const Part& part, const float* patch, float scale)
{
    for (int k = f.first_order; k < f.first_order + f.orders; ++k) {
        if (all.of[k].by_inputs) make<true>(all.of[k], f, part, patch, scale);
        else make<false>(all.of[k], f, part, patch, scale);
    }
}

// Put filters number i in order once more, when all blocks have done so with a wrong scale. By one block.
inline void do_again(const Orders& all, int i, float* patch, float scale, Word done)
{
    if (threadIdx.x == 0)
        for (Word turns = 0; ld_acquire_gpu(&all.scales[0]->done) != done; give_up_after_a_while(turns)) {}
    int end = i + 1 < all.count ? all.filters[i + 1].first : all.parts;
    for (int number = all.filters[i].first; number < end; ++number) {
        const Part part(all.filters[i], number);
        __syncthreads();  // what is there is read
        load(all.filters[i], part, patch);
        __syncthreads();
        put_in_order(all, all.filters[i], part, patch, scale);
    }
}

// Blocks tell what they have found before they write, and the first one alone hears it: when it has written, it mostly
// need not wait. Where the guess was wrong it does everything again.
extern "C" __global__ __launch_bounds__(256)
void in_order(const __grid_constant__ Orders all)
{
    extern __shared__ __align__(128) unsigned char shared_bytes[];
    Word *most = reinterpret_cast<Word*>(shared_bytes), *launches = most + MOST;
    float *scales = reinterpret_cast<float*>(launches + MOST), *patch = scales + MOST;
    begin_in_turn();
    if (threadIdx.x < all.count) {
        most[threadIdx.x] = 0, scales[threadIdx.x] = SCALED ? all.scales[threadIdx.x]->of : 1;
        launches[threadIdx.x] = SCALED ? all.scales[threadIdx.x]->launches : 0;
    }
    for (int number = blockIdx.x, i = 0; number < all.parts; number += gridDim.x) {
        while (i + 1 < all.count && number >= all.filters[i + 1].first) ++i;
        const Part part(all.filters[i], number);
        __syncthreads();  // what is there is read
        Word found = __reduce_max_sync(~0u, __float_as_uint(load(all.filters[i], part, patch)));
        if (SCALED && threadIdx.x % 32 == 0) atomicMax(&most[i], found);
        __syncthreads();
        if (SCALED && number + gridDim.x >= all.parts) tell_largest(all.scales, all.count, most, launches);
        put_in_order(all, all.filters[i], part, patch, scales[i]);
    }
    if (!SCALED) return;
    if (blockIdx.x > 0) {
        __syncthreads();
        if (threadIdx.x == 0) __threadfence(), atomicAdd(&all.scales[0]->done, 1u);
        return;
    }
    Word done = (launches[0] + 1) * (gridDim.x - 1);  // by all others, in all launches
    hear_scales(all.scales, all.count, most, launches);
    #pragma unroll 1
    for (int i = 0; i < all.count; ++i)
        if (__uint_as_float(most[i]) != scales[i]) do_again(all, i, patch, __uint_as_float(most[i]), done);
}
