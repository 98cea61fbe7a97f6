// The way back through batch normalization, and through all that came after it before the next convolution.
//
// dx = scale (d - mean(d) - normalized mean(d normalized)), where d is the gradient behind pool and ReLU: two sums for
// each channel over the whole batch, and then everything is needed again. As on the way forward, blocks keep what they
// have in shared memory while they tell each other their sums. What leaves is the operand of the two gradients of the
// convolution before.
//
// d is never stored. It is made from the gradient that came, at the pool's size, and from marks. What went past a
// residual has a gradient of its own, that of the residual's sum: it is added here, where it is made of what came to
// the sum and of its marks. So nobody makes a trip through memory to add two arrays.
//
// Behind a convolution of one channel (STEM) nobody asks for dx but the gradient of the filters: it is summed here.
//
// needs sm_90
//
// The halves' scale: |dx| is at most largest(|scale d|) (2 + sqrt(m - 1)), m numbers a channel.

#include "norm.cuh"

#ifndef FROM
#define FROM 0  // how the gradient comes. 0: planes. 2: images of float32
#endif
#ifndef PAST
#define PAST 0  // the side of a pool behind the residual's sum, whose gradient is added; 1: no pool, 0: nothing is
#endif
#ifndef PAST_RELU
#define PAST_RELU 1
#define PAST_FROM 0  // as FROM
#endif
#ifndef KEEP
#define KEEP 0  // whether d is stored, too, as planes: the gradient that goes past a residual, where two were added
#endif

struct Room {
    Word64 there[BARRIERS];
    Pair of_warps[WARPS][8];
    float mean_d[AT_ONCE][8], slope[AT_ONCE][8];
    Word largest;
    float padding[3];
};

// gamma, beta and their gradients; kept: mean and 1 / deviation, from the forward pass; dbias: of the convolution
// before, or null. It is zero: what a bias adds, the mean takes away.
struct Channels {
    const float *gamma, *beta;
    const float2* kept;
    float *dgamma, *dbeta, *dbias;
};

// A gradient, and the marks of the pool or ReLU that it came through.
struct Given {
    const Piece* gradient;
    const void* marks;
};

// The 8 channels of pixel i of a unit, of images of float32.
inline void read_image(const Sizes& s, const void* images, int unit, int area, int i, float (&d)[8])
{
    int channel = unit / s.images * 8;
    size_t place = ((size_t)(unit % s.images) * s.channels + channel) * area + i;
    const float* from = static_cast<const float*>(images) + place;
    #pragma unroll
    for (int c = 0; c < 8; ++c) d[c] = channel + c < s.channels ? from[(size_t)c * area] : 0;
}

// Which of 8 channels a mark lets through, at place `choice` of its window.
inline void through(Word marks, int pool, int choice, float (&d)[8])
{
    #pragma unroll
    for (int c = 0; c < 8; ++c) {
        bool passes = pool > 1 ? (marks >> 4 * c & 15) == choice : marks >> c & 1;
        if (!passes) d[c] = 0;
    }
}

// What the backward pass knows of a group.
struct Norm {
    float mean[8], scale[8], beta[8];

    __device__ Norm(const Sizes& s, const Channels& p, int group)
    {
        #pragma unroll
        for (int i = 0; i < 8; ++i) {
            int c = group * 8 + i;
            bool real = c < s.channels;
            float2 kept = p.kept[c];
            mean[i] = kept.x, scale[i] = real ? p.gamma[c] * kept.y : 0, beta[i] = real ? p.beta[c] : 0;
        }
    }
};

struct Gradient {
    Units dy;
    Given own, past;

    // What came to pixel i of the result, before the marks: also from past a residual.
    __device__ void given(const Sizes& s, int unit, int first, int i, float (&d)[8]) const
    {
        int area = s.area_out();
        if constexpr (FROM == 0) read(dy.at(s, unit, first), area, i, d);
        else read_image(s, own.gradient, unit, area, i, d);
        if constexpr (PAST > 0) {
            float other[8];
            int width = s.width / POOL, down = s.height / POOL / PAST, across = width / PAST;
            int y = i / width, x = i - y * width, from = y / PAST * across + x / PAST;
            if (y / PAST >= down || x / PAST >= across) return;
            size_t place = s.place(unit) * down * across;
            if constexpr (PAST_FROM == 0) read(past.gradient + place * STORED, down * across, from, other);
            else read_image(s, past.gradient, unit, down * across, from, other);
            if constexpr (PAST > 1)
                through(static_cast<const Word*>(past.marks)[place + from], PAST, y % PAST * PAST + x % PAST, other);
            else if constexpr (PAST_RELU)
                through(static_cast<const unsigned char*>(past.marks)[place + from], 1, 0, other);
            #pragma unroll
            for (int c = 0; c < 8; ++c) d[c] += other[c];
        }
    }

    // The gradient at pixel i of what was normalized, whose numbers there are x.
    __device__ void at(const Sizes& s, const Norm& norm, int unit, int first, int i, const float (&x)[8],
                       float (&d)[8]) const
    {
        if constexpr (POOL > 1) {
            int down = s.height / POOL, across = s.width / POOL, row = i / s.width, column = i - row * s.width;
            #pragma unroll
            for (int c = 0; c < 8; ++c) d[c] = 0;
            if (row / POOL >= down || column / POOL >= across) return;
            int from = row / POOL * across + column / POOL;
            given(s, unit, first, from, d);
            Word marks = static_cast<const Word*>(own.marks)[s.place(unit) * down * across + from];
            through(marks, POOL, row % POOL * POOL + column % POOL, d);
        } else {
            given(s, unit, first, i, d);
            if constexpr (RELU && ADD) {
                through(static_cast<const unsigned char*>(own.marks)[s.place(unit) * s.area() + i], 1, 0, d);
            } else if constexpr (RELU) {
                #pragma unroll
                for (int c = 0; c < 8; ++c)
                    if (fmaf(x[c] - norm.mean[c], norm.scale[c], norm.beta[c]) <= 0) d[c] = 0;
            }
        }
    }
};

// This thread's sums of d and of d (x - mean), of a group's channels. Return the largest |scale d|.
inline float sums_of(const Sizes& s, const Norm& norm, const Numbers& y, const Gradient& gradient,
                     const Share& share, int first, Word64* there, Pair (&sums)[8])
{
    int area = s.area();
    float most = 0;
    for (int j = threadIdx.x; j < (share.end - share.begin) * area; j += BLOCK_THREADS) {
        int unit = share.begin + j / area, i = j % area;
        wait_for(s, unit, first, there);
        float x[8], d[8];
        y.at(s, unit, first, i, x);
        gradient.at(s, norm, unit, first, i, x, d);
        #pragma unroll
        for (int c = 0; c < 8; ++c) {
            sums[c].one += d[c], sums[c].two = fmaf(d[c], x[c] - norm.mean[c], sums[c].two);
            most = fmaxf(most, fabsf(norm.scale[c] * d[c]));
        }
    }
    return most;
}

// What is subtracted from a channel's d, and the gradients of its scale and shift: by lane 0 of a warp.
inline void settle(const Sizes& s, const Channels& p, const Pair& all, int group, int channel, Room& room, int slot)
{
    int c = group * 8 + channel;
    float inverse = p.kept[c].y, count = (float)s.images * s.area(), dgamma = all.two * inverse;
    room.mean_d[slot][channel] = all.one / count;
    room.slope[slot][channel] = dgamma / count * inverse;
    if (blockIdx.x != s.first_block(group) || c >= s.channels) return;
    p.dgamma[c] = dgamma, p.dbeta[c] = all.one;
    if (p.dbias) p.dbias[c] = 0;
}

// dx of 8 numbers x, of which d are made.
struct Slope {
    float mean_d[8], slope[8];

    __device__ Slope(const Room& room, int slot)
    {
        #pragma unroll
        for (int c = 0; c < 8; ++c) mean_d[c] = room.mean_d[slot][c], slope[c] = room.slope[slot][c];
    }
    __device__ void dx(const Norm& norm, const float (&x)[8], float (&d)[8]) const
    {
        #pragma unroll
        for (int c = 0; c < 8; ++c) d[c] = norm.scale[c] * (d[c] - mean_d[c] - (x[c] - norm.mean[c]) * slope[c]);
    }
};

inline void write_share(const Sizes& s, const Norm& norm, const Slope& slope, const Numbers& y,
                        const Gradient& gradient, const Share& share, int first, Piece* to, Piece* kept, float scale)
{
    int area = s.area();
    for (int j = threadIdx.x; j < (share.end - share.begin) * area; j += BLOCK_THREADS) {
        int unit = share.begin + j / area, i = j % area;
        float x[8], d[8];
        y.at(s, unit, first, i, x);
        gradient.at(s, norm, unit, first, i, x, d);
        if constexpr (KEEP) write(kept + s.place(unit) * area * STORED, area, i, d);
        slope.dx(norm, x, d);
        Piece parts[PARTS];
        pieces_of(d, scale, parts);
        Piece* piece = to + s.place(unit) * area + i;
        #pragma unroll
        for (int part = 0; part < PARTS; ++part) put(piece + (size_t)part * s.images * s.groups * area, parts[part]);
    }
}

// ---- The filters of a convolution of one channel ----

struct One {
    float sum;
};

inline One join(const One& a, const One& b) { return {a.sum + b.sum}; }
inline One of_lane(const One& mine, int distance) { return {__shfl_xor_sync(~0u, mine.sum, distance)}; }
inline One load(const One* from) { return {__ldcg(&from->sum)}; }

// What the block's images add to the gradient of each weight of a group: partial[tap][block + group][channel].
inline void weigh_share(const Sizes& s, const Norm& norm, const Slope& slope, const Numbers& y,
                        const Gradient& gradient, const Share& share, int first, Room& room, One* partial)
{
    int area = s.area();
    One sums[TAPS][8] = {};
    for (int j = threadIdx.x; j < (share.end - share.begin) * area; j += BLOCK_THREADS) {
        int unit = share.begin + j / area, i = j % area;
        float seen[TAPS], x[8], d[8];
        y.window(s, unit, first, i, seen);
        y.multiply(seen, x);
        gradient.at(s, norm, unit, first, i, x, d);
        slope.dx(norm, x, d);
        #pragma unroll
        for (int tap = 0; tap < TAPS; ++tap)
            #pragma unroll
            for (int c = 0; c < 8; ++c) sums[tap][c].sum = fmaf(d[c], seen[tap], sums[tap][c].sum);
    }
    One (*of_warps)[8] = reinterpret_cast<One (*)[8]>(room.of_warps);
    #pragma unroll
    for (int tap = 0; tap < TAPS; ++tap)
        leave(sums[tap], of_warps, partial + tap * (gridDim.x + s.groups) * 8, share.group);
}

// Add what blocks have: dW (o, KERNEL, KERNEL). By the first block of the group.
inline void add_weights(const Sizes& s, int group, const One* partial, float* dW)
{
    if (blockIdx.x != s.first_block(group)) return;
    for (int i = threadIdx.x / 32; i < TAPS * 8; i += WARPS) {
        int tap = i / 8, c = group * 8 + i % 8;
        One sum = collected(s, partial + tap * (gridDim.x + s.groups) * 8, group, i % 8);
        if (threadIdx.x % 32 == 0 && c < s.channels) dW[c * TAPS + tap] = sum.sum;
    }
}

// images: what was normalized, or images of one channel, and then filters. to: an operand, or the filters' gradient.
// scales: the operand's, by which blocks meet, too, and another one to meet again. kept: planes, where KEEP. partial:
// room for the sums of 8 channels of blocks + groups; weights: for each weight's. Blocks: as on the way forward.
extern "C" __global__ __launch_bounds__(BLOCK_THREADS, 1)
void normalize_backward(const __grid_constant__ Sizes s, const __grid_constant__ Channels p, const Piece* images,
                        const float* filters, const __grid_constant__ Given own, const __grid_constant__ Given past,
                        Pair* partial, One* weights, void* to, Scale* scale_of_to, Piece* kept)
{
    extern __shared__ __align__(128) unsigned char shared_bytes[];
    Room& room = *reinterpret_cast<Room*>(shared_bytes);
    int first = s.first_unit(blockIdx.x), last = s.first_unit(blockIdx.x + 1);
    Piece* near = reinterpret_cast<Piece*>(&room + 1);
    Numbers y = {{images, near, 0, Numbers::room(s), 1}, filters};
    Piece* behind = FROM == 0 ? near + s.held * y.units.pieces : nullptr;
    Gradient gradient = {{own.gradient, behind, 0, s.area_out() * STORED, 1}, own, past};
    Scale* scales[2] = {scale_of_to, scale_of_to + 1};
    Word launch = ld_acquire_gpu(&scales[0]->launches);
    if (threadIdx.x == 0) {
        room.largest = 0;
        for (int i = 0; i < BARRIERS; ++i) mbarrier_init<1>(&room.there[i]);
        fence_proxy_async();
        ask_for(s, first, last, y.units, gradient.dy, room.there);
    }
    if (STEM) y.fetch(s, first, last);
    __syncthreads();
    int group = first / s.images, groups = (last - 1) / s.images + 1;
    for (int g = group; g < groups; ++g) {
        Pair mine[8] = {};
        y.set(s, g);
        float most = sums_of(s, Norm(s, p, g), y, gradient, Share(s, blockIdx.x, g), first, room.there, mine);
        Word of_warp = __reduce_max_sync(~0u, __float_as_uint(most));
        if (threadIdx.x % 32 == 0) atomicMax(&room.largest, of_warp);
        leave(mine, room.of_warps, partial, g);
    }
    meet(scales, 1, &room.largest, launch);
    float most = __uint_as_float(ld_acquire_gpu(&scales[0]->largest[launch % 2]));
    float scale = SCALED ? scale_for(__float_as_uint(most * (2 + sqrtf((float)s.images * s.area())))) : 1;
    if (blockIdx.x == 0 && threadIdx.x == 0) scales[0]->of = scale, scales[0]->largest[(launch + 1) % 2] = 0;

    for (int g = group; g < groups; g += AT_ONCE) {
        int slot = threadIdx.x / 32 / 8, channel = threadIdx.x / 32 % 8;
        if (g + slot < groups) {
            Pair all = collected(s, partial, g + slot, channel);
            if (threadIdx.x % 32 == 0) settle(s, p, all, g + slot, channel, room, slot);
        }
        __syncthreads();
        for (int i = 0; i < min(AT_ONCE, groups - g); ++i) {
            Share share(s, blockIdx.x, g + i);
            Norm norm(s, p, g + i);
            y.set(s, g + i);
            if constexpr (STEM) weigh_share(s, norm, Slope(room, i), y, gradient, share, first, room, weights);
            else write_share(s, norm, Slope(room, i), y, gradient, share, first, static_cast<Piece*>(to), kept, scale);
        }
        __syncthreads();
    }
    if constexpr (STEM) {
        Word nothing = 0;
        meet(scales + 1, 1, &nothing, ld_acquire_gpu(&scales[1]->launches));
        for (int g = group; g < groups; ++g) add_weights(s, g, weights, static_cast<float*>(to));
    }
}
