// Batch normalization of a convolution's output, and all that follows before the next convolution, in one launch.
//
// Statistics of a batch need all of its images, and then all of these are needed again. Here blocks keep theirs in
// shared memory while they tell each other what they have summed: the images are read from memory once. What leaves is
// the next convolution's operand: scaled, shifted, added to what went past a residual, with its ReLU and its pool, and
// as halves.
//
// Halves need a scale before their first number is known. None of m numbers of mean 0 and deviation 1 is larger than
// sqrt(m - 1): so gamma and beta tell the largest that can come. That is some bits more than what comes, and there are
// enough.
//
// The backward pass gets what it can't make again from y: which number of a window went on (4 bits), or, where
// something was added, whether it was above 0 (1 bit).
//
// needs sm_90

#include "norm.cuh"

#ifndef OUT
#define OUT 0  // 0: an operand of products. 1: planes of float32. 2: images of float32
#endif

struct Room {
    Word64 there[BARRIERS];
    Moments of_warps[WARPS][8];
    float mean[AT_ONCE][8], scale[AT_ONCE][8], beta[AT_ONCE][8];
    Word largest;
    float padding[3];
};

// What a channel is trained to, and what its training keeps; bias: of the convolution before, or null.
struct Channels {
    const float *gamma, *beta, *bias;
    float *mean, *variance;  // running averages
    float2* kept;            // for the backward pass: mean, 1 / deviation; of the channels of the padding, too
    float momentum, eps;
};

struct Written {
    void* to;
    void* marks;  // for the backward pass
    Scale* scale;
};

// What is known of a channel before there are statistics; asked for while its block waits for others.
struct Known {
    float gamma = 0, beta = 0, bias = 0, mean = 0, variance = 0;
    int group, channel;

    __device__ Known(const Sizes& s, const Channels& p, int group) : group(group), channel(threadIdx.x / 32 % 8)
    {
        int c = group * 8 + channel;
        if (group >= s.groups || c >= s.channels) return;
        gamma = p.gamma[c], beta = p.beta[c];
        if (blockIdx.x != s.first_block(group)) return;
        mean = p.mean[c], variance = p.variance[c], bias = p.bias ? p.bias[c] : 0;
    }
};

// The scale and shift of a channel go to shared memory, and the first block of a group keeps statistics. By a warp.
inline void settle(const Sizes& s, const Channels& p, const Known& known, const Moments* partial, Room& room, int slot)
{
    Moments all = collected(s, partial, known.group, known.channel);
    if (threadIdx.x % 32) return;
    int c = known.group * 8 + known.channel;
    float variance = all.squares / all.count, inverse = 1 / sqrtf(variance + p.eps);
    room.mean[slot][known.channel] = all.mean;
    room.scale[slot][known.channel] = known.gamma * inverse;
    room.beta[slot][known.channel] = known.beta;
    if (blockIdx.x != s.first_block(known.group)) return;
    p.kept[c] = {all.mean, inverse};
    if (c >= s.channels) return;
    p.mean[c] = known.mean + p.momentum * (all.mean + known.bias - known.mean);
    variance *= all.count / fmaxf(all.count - 1, 1);
    p.variance[c] = known.variance + p.momentum * (variance - known.variance);
}

// The largest magnitude that can come, as the bits of a float. By a warp.
inline Word bound(const Sizes& s, const Channels& p, const Scale* of_added)
{
    float most = 0, root = sqrtf((float)s.images * s.area());
    for (int c = threadIdx.x % 32; c < s.channels; c += 32)
        most = fmaxf(most, fmaf(fabsf(p.gamma[c]), root, fabsf(p.beta[c])));
    most = __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(most)));
    return __float_as_uint(ADD && SCALED ? most + 32768 / of_added->of : most);
}

// The moments of this thread's numbers of a group.
inline void moments_of(const Sizes& s, const Numbers& y, const Share& share, int first, Word64* there,
                       Moments (&found)[8])
{
    float pivot[8] = {}, sum[8] = {}, squares[8] = {};
    int count = 0, area = s.area();
    for (int j = threadIdx.x; j < (share.end - share.begin) * area; j += BLOCK_THREADS, ++count) {
        int unit = share.begin + j / area, i = j % area;
        wait_for(s, unit, first, there);
        float x[8];
        y.at(s, unit, first, i, x);
        #pragma unroll
        for (int c = 0; c < 8; ++c) {
            if (count == 0) pivot[c] = x[c];  // a number of its own: what is summed is as small as it can be
            float away = x[c] - pivot[c];
            sum[c] += away, squares[c] = fmaf(away, away, squares[c]);
        }
    }
    float part = count > 0 ? 1.0f / count : 0;
    #pragma unroll
    for (int c = 0; c < 8; ++c)
        found[c] = {(float)count, fmaf(sum[c], part, pivot[c]), fmaxf(fmaf(-sum[c] * part, sum[c], squares[c]), 0)};
}

// What is done to the numbers of a group.
struct Norm {
    float mean[8], scale[8], beta[8], unscale;

    __device__ Norm(const Room& room, int slot, float unscale) : unscale(unscale)
    {
        #pragma unroll
        for (int c = 0; c < 8; ++c)
            mean[c] = room.mean[slot][c], scale[c] = room.scale[slot][c], beta[c] = room.beta[slot][c];
    }

    // Pixel i of a unit, normalized, and with what was added; before the ReLU.
    __device__ void at(const Sizes& s, const Numbers& y, const Units& x, int unit, int first, int i,
                       float (&v)[8]) const
    {
        y.at(s, unit, first, i, v);
        #pragma unroll
        for (int c = 0; c < 8; ++c) v[c] = fmaf(v[c] - mean[c], scale[c], beta[c]);
        if constexpr (ADD) {
            float other[8];
            read_operand(x.at(s, unit, first), x.part(s, unit, first), i, unscale, other);
            #pragma unroll
            for (int c = 0; c < 8; ++c) v[c] += other[c];
        }
    }
};

// The largest of each channel's window, or the pixel itself, after the ReLU; NaN stays NaN. Return what is kept of it.
inline Word largest_of_window(const Sizes& s, const Norm& norm, const Numbers& y, const Units& x, int unit, int first,
                              int i, float (&best)[8])
{
    int across = s.width / POOL, corner = i / across * POOL * s.width + i % across * POOL;
    Word marks = 0;
    norm.at(s, y, x, unit, first, POOL > 1 ? corner : i, best);
    #pragma unroll
    for (int choice = 1; choice < POOL * POOL; ++choice) {
        float v[8];
        norm.at(s, y, x, unit, first, corner + choice / POOL * s.width + choice % POOL, v);
        #pragma unroll
        for (int c = 0; c < 8; ++c)
            if (v[c] > best[c] || v[c] != v[c]) best[c] = v[c], marks = (marks & ~(15u << 4 * c)) | choice << 4 * c;
    }
    if constexpr (RELU) {
        #pragma unroll
        for (int c = 0; c < 8; ++c) {
            bool off = best[c] <= 0;
            if (off) best[c] = 0;
            if (POOL == 1 && !off) marks |= 1u << c;
            if (POOL > 1 && off) marks |= Word(NONE) << 4 * c;
        }
    }
    return marks;
}

inline void write_out(const Sizes& s, const Written& w, int unit, int i, const float (&v)[8], float scale)
{
    int area = s.area_out();
    size_t piece = s.place(unit) * area + i;
    if constexpr (OUT == 0) {
        Piece parts[PARTS], *to = static_cast<Piece*>(w.to) + piece;
        pieces_of(v, scale, parts);
        #pragma unroll
        for (int part = 0; part < PARTS; ++part) put(to + (size_t)part * s.images * s.groups * area, parts[part]);
    } else if constexpr (OUT == 1) {
        write(static_cast<Piece*>(w.to) + s.place(unit) * area * STORED, area, i, v);
    } else {
        int image = unit % s.images, first = unit / s.images * 8;
        float* to = static_cast<float*>(w.to) + ((size_t)image * s.channels + first) * area + i;
        #pragma unroll
        for (int c = 0; c < 8; ++c)
            if (first + c < s.channels) to[(size_t)c * area] = v[c];
    }
}

inline void normalize_share(const Sizes& s, const Norm& norm, const Numbers& y, const Units& x, const Share& share,
                            int first, const Written& w, float scale)
{
    int area = s.area_out();
    for (int j = threadIdx.x; j < (share.end - share.begin) * area; j += BLOCK_THREADS) {
        int unit = share.begin + j / area, i = j % area;
        float v[8];
        Word marks = largest_of_window(s, norm, y, x, unit, first, i, v);
        write_out(s, w, unit, i, v, scale);
        size_t piece = s.place(unit) * area + i;
        if constexpr (POOL > 1) static_cast<Word*>(w.marks)[piece] = marks;
        else if constexpr (ADD && RELU) static_cast<unsigned char*>(w.marks)[piece] = marks;
    }
}

// images: planes, or images of one channel, and then filters. added: an operand, and its scale. partial: room for the
// moments of 8 channels of blocks + groups. By as many blocks as there is room for at once, at most a unit's each.
extern "C" __global__ __launch_bounds__(BLOCK_THREADS, 1)
void normalize(const __grid_constant__ Sizes s, const __grid_constant__ Channels p, const Piece* images,
               const float* filters, const Piece* added, const Scale* of_added, Moments* partial,
               const __grid_constant__ Written w)
{
    extern __shared__ __align__(128) unsigned char shared_bytes[];
    Room& room = *reinterpret_cast<Room*>(shared_bytes);
    int area = s.area(), first = s.first_unit(blockIdx.x), last = s.first_unit(blockIdx.x + 1);
    Piece* near = reinterpret_cast<Piece*>(&room + 1);
    Numbers y = {{images, near, 0, Numbers::room(s), 1}, filters};
    Units x = {added, ADD ? near + s.held * y.units.pieces : nullptr, (size_t)s.images * s.groups * area, area, PARTS};
    Word launch = ld_acquire_gpu(&w.scale->launches);
    if (threadIdx.x == 0) {
        for (int i = 0; i < BARRIERS; ++i) mbarrier_init<1>(&room.there[i]);
        fence_proxy_async();
        ask_for(s, first, last, y.units, x, room.there);
    }
    if (threadIdx.x / 32 == 1) {
        Word largest = bound(s, p, of_added);
        if (threadIdx.x % 32 == 0) room.largest = largest;
    }
    if (STEM) y.fetch(s, first, last);
    __syncthreads();
    int group = first / s.images, groups = (last - 1) / s.images + 1;
    for (int g = group; g < groups; ++g) {
        Moments mine[8];
        y.set(s, g);
        moments_of(s, y, Share(s, blockIdx.x, g), first, room.there, mine);
        leave(mine, room.of_warps, partial, g);
    }
    float scale = SCALED ? scale_for(room.largest) : 1, unscale = ADD && SCALED ? 1 / of_added->of : 1;
    if (blockIdx.x == 0 && threadIdx.x == 0) w.scale->of = scale;
    Word nothing = 0;
    Scale* scales[1] = {w.scale};
    int slot = threadIdx.x / 32 / 8;
    Known known(s, p, group + slot);
    meet(scales, 1, &nothing, launch);

    for (; group < groups; group += AT_ONCE) {
        if (group + slot < groups) settle(s, p, known, partial, room, slot);
        known = Known(s, p, group + AT_ONCE + slot);
        __syncthreads();
        for (int i = 0; i < min(AT_ONCE, groups - group); ++i) {
            y.set(s, group + i);
            normalize_share(s, Norm(room, i, unscale), y, x, Share(s, blockIdx.x, group + i), first, w, scale);
        }
        __syncthreads();
    }
}
