// Batch normalization of a convolution's output, and all that follows before the next convolution, in one launch.
//
// Statistics of a batch need all of its images, and then all of these are needed again. Where the convolution had its
// sums in registers it has left the moments of its tiles, from which each block makes those of the batch (MOMENTS): of
// sums before they were rounded to bfloat16, which matters where a mean is some hundred deviations. Else blocks keep
// their images in shared memory while they tell each other what they have summed: they are read from memory once.
//
// What leaves is the next convolution's operand: scaled, shifted, added to what went past a residual, with its ReLU and
// its pool, and as fp16.
//
// fp16 needs a scale before its first value is known. None of m values of mean 0 and deviation 1 is larger than
// sqrt(m - 1): so gamma and beta tell the largest that can come. That is some bits more than what comes, and there are
// enough.
//
// The backward pass gets what it can't make again from y: which value of a window went on (4 bits), or, where
// something was added, whether it was above 0 (1 bit).

#include "norm.cuh"

#ifndef MOMENTS
#define MOMENTS 0  // whether the convolution has left the moments of its tiles
#endif
#ifndef OUT
#define OUT 0  // 0: an operand of products. 1: blocked float32. 2: images of float32
#endif

struct Shared {
    Word64 there[BARRIERS];
    Sums of_warps[WARPS][8];
    float mean[8], scale[8], beta[8];
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

// What a convolution has left of its tiles, (channels, tiles): means, and sums of squared differences from them.
struct Moments {
    const float2* of;
    int tiles, bands, rows, padding;  // an image is `bands` tiles, of `rows` rows or less
};

// What is known of a channel before there are statistics; asked for while its block waits for others. By a warp.
struct Known {
    float gamma = 0, beta = 0, bias = 0, mean = 0, variance = 0;
    int c;

    __device__ Known(const Sizes& s, const Channels& p, const Share& share) : c(share.group * 8 + threadIdx.x / 32)
    {
        if (threadIdx.x >= 256 || c >= s.channels) return;
        gamma = p.gamma[c], beta = p.beta[c];
        if (share.cta > 0) return;
        mean = p.mean[c], variance = p.variance[c], bias = p.bias ? p.bias[c] : 0;
    }
};

// ---- Mean and m2, the sum of squared differences from it: of values, of warps, of blocks ----

// That of several groups of values, `count` each, and MANY of them a lane: nothing large is subtracted from anything
// large. part: 1 / number of all. For all of LANES neighbours.
template <int LANES, int MANY>
inline Sums merged(const Sums (&each)[MANY], const float (&counts)[MANY], float part)
{
    float pivot = __shfl_sync(~0u, each[0].first, threadIdx.x % 32 / LANES * LANES), away = 0, squares = 0;
    #pragma unroll
    for (int i = 0; i < MANY; ++i)
        if (counts[i] > 0) away += counts[i] * (each[i].first - pivot);
    float mean = pivot + summed<LANES>(away) * part;
    #pragma unroll
    for (int i = 0; i < MANY; ++i)
        if (counts[i] > 0) squares += each[i].second + counts[i] * (each[i].first - mean) * (each[i].first - mean);
    return {mean, summed<LANES>(squares)};
}

// How many of `all` values, dealt out to threads in turns, a warp has.
inline int count_of(int all, int warp)
{
    return all / BLOCK_THREADS * 32 + min(max(all % BLOCK_THREADS - 32 * warp, 0), 32);
}

// What this block's threads have seen of a group's channels goes to its place in memory. A warp's values are taken
// less one of its own: what is summed is as small as it can be.
inline void leave_moments(const Sizes& s, const Elements& y, const Share& share, Arrivals& arrivals,
                          Sums (*of_warps)[8], float4* messages, Word launch)
{
    float pivot[8] = {};
    Sums sums[8] = {};
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, all = (share.end - share.begin) * s.area();
    Walk at(share, s.area(), s.by_area);
    if (at.image < share.end) {
        arrivals.wait_for(share, at.image);
        y.at(s, share, at.image, at.i, pivot);
    }
    __syncwarp();
    #pragma unroll
    for (int c = 0; c < 8; ++c) pivot[c] = __shfl_sync(~0u, pivot[c], 0);
    #pragma unroll 1
    for (; at.image < share.end; at.next()) {
        float x[8];
        arrivals.wait_for(share, at.image);
        y.at(s, share, at.image, at.i, x);
        #pragma unroll
        for (int c = 0; c < 8; ++c) {
            float away = x[c] - pivot[c];
            sums[c].first += away, sums[c].second = fmaf(away, away, sums[c].second);
        }
    }
    __syncwarp();
    Sums found = summed_by_channel(sums);
    float count = count_of(all, warp), part = count > 0 ? __fdividef(1, count) : 0, mine = 0;
    #pragma unroll
    for (int c = 0; c < 8; ++c)
        mine = chosen(lane / 4 == c, pivot[c], mine);
    float squares = fmaxf(fmaf(-found.first * part, found.first, found.second), 0);
    if (lane % 4 == 0) of_warps[warp][lane / 4] = {fmaf(found.first, part, mine), squares};
    __syncthreads();
    if (threadIdx.x < 8 * WARPS) {
        Sums each[1] = {of_warps[threadIdx.x % WARPS][threadIdx.x / WARPS]};
        float counts[1] = {(float)count_of(all, threadIdx.x % WARPS)};
        Sums whole = merged<WARPS, 1>(each, counts, __fdividef(1, all));
        if (threadIdx.x % WARPS == 0)
            tell(messages + share.message(s) + threadIdx.x / WARPS, whole, launch);
    }
    __syncthreads();
}

// Of all blocks: for all lanes. By a warp.
inline Sums moments(const Sizes& s, const float4* messages, int group, int channel, Word launch)
{
    float4 got[1][MOST_HEARD];
    Sums each[MOST_HEARD];
    float counts[MOST_HEARD];
    hear<1>(s, {messages}, group, channel, launch, got);
    #pragma unroll
    for (int i = 0; i < MOST_HEARD; ++i) {
        int cta = threadIdx.x % 32 + 32 * i;
        each[i] = {got[0][i].x, got[0][i].y};
        counts[i] = cta < s.ctas ? (s.each + (cta < s.more)) * s.area() : 0;
    }
    return merged<32, MOST_HEARD>(each, counts, s.part);
}

// The same of all tiles that a convolution has left. They come to each lane twice, from L1 the second time.
inline Sums moments(const Sizes& s, const Moments& m, int channel)
{
    const float2* from = m.of + (size_t)channel * m.tiles;
    float pivot = from->x, away = 0, squares = 0;
    const auto count = [&](int tile) { return float(min(m.rows, s.height - tile % m.bands * m.rows) * s.width); };
    #pragma unroll 8
    for (int i = threadIdx.x % 32; i < m.tiles; i += 32) away += count(i) * (from[i].x - pivot);
    float mean = pivot + summed<32>(away) * s.part;
    #pragma unroll 8
    for (int i = threadIdx.x % 32; i < m.tiles; i += 32)
        squares += from[i].y + count(i) * (from[i].x - mean) * (from[i].x - mean);
    return {mean, summed<32>(squares)};
}

// The scale and shift of a channel go to shared memory, and the first CTA of a group keeps statistics. By a warp.
inline void settle(const Sizes& s, const Channels& p, const Known& known, const Share& share, const Sums& all,
                   Shared& shared)
{
    if (threadIdx.x % 32) return;
    int channel = threadIdx.x / 32;
    float variance = all.second * s.part, inverse = __fdividef(1, sqrtf(variance + p.eps));
    shared.mean[channel] = all.first;
    shared.scale[channel] = known.gamma * inverse;
    shared.beta[channel] = known.beta;
    if (share.cta > 0) return;
    p.kept[known.c] = {all.first, inverse};
    if (known.c >= s.channels) return;
    p.mean[known.c] = known.mean + p.momentum * (all.first + known.bias - known.mean);
    variance *= __fdividef(s.count, fmaxf(s.count - 1, 1));
    p.variance[known.c] = known.variance + p.momentum * (variance - known.variance);
}

// The largest magnitude that can come, as the bits of a float. By a warp.
inline Word bound(const Sizes& s, const Channels& p, const Scale* of_added)
{
    float most = 0;
    #pragma unroll 1
    for (int c = threadIdx.x % 32; c < s.channels; c += 32)
        most = fmaxf(most, fmaf(fabsf(p.gamma[c]), s.root, fabsf(p.beta[c])));
    most = __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(most)));
    return __float_as_uint(ADD && SCALED ? most + 32768 / of_added->of : most);
}

// What is done to the values of a group.
struct Norm {
    float mean[8], scale[8], beta[8], unscale;

    __device__ Norm(const Shared& shared, float unscale) : unscale(unscale)
    {
        #pragma unroll
        for (int c = 0; c < 8; ++c)
            mean[c] = shared.mean[c], scale[c] = shared.scale[c], beta[c] = shared.beta[c];
    }

    // Pixel i of an image, normalized, and with what was added; before the ReLU.
    __device__ void at(const Sizes& s, const Elements& y, const Units& x, const Share& share, int image, int i,
                       float (&v)[8]) const
    {
        y.at(s, share, image, i, v);
        #pragma unroll
        for (int c = 0; c < 8; ++c) v[c] = fmaf(v[c] - mean[c], scale[c], beta[c]);
        if constexpr (ADD) {
            float other[8];
            read_operand(x.at(share, image), x.part(share, image), i, unscale, other);
            #pragma unroll
            for (int c = 0; c < 8; ++c) v[c] += other[c];
        }
    }
};

// The largest of each channel's window, or the pixel itself, after the ReLU; NaN stays NaN. Return what is kept of it.
inline Word largest_of_window(const Sizes& s, const Norm& norm, const Elements& y, const Units& x, const Share& share,
                              int image, int i, float (&best)[8])
{
    int row = POOL > 1 ? divided(i, s.across(), s.by_across) : 0;
    int corner = POOL > 1 ? row * POOL * s.width + (i - row * s.across()) * POOL : i;
    Word marks = 0;
    norm.at(s, y, x, share, image, corner, best);
    #pragma unroll 1
    for (int choice = 1; choice < POOL * POOL; ++choice) {
        float v[8];
        norm.at(s, y, x, share, image, corner + choice / POOL * s.width + choice % POOL, v);
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

inline void write_out(const Sizes& s, const Written& w, const Share& share, int image, int i, const float (&v)[8],
                      float scale)
{
    int area = s.area_out();
    if constexpr (OUT == 0) {
        write_operand(static_cast<Piece*>(w.to), s.units(), share.place(image), area, i, v, scale);
    } else if constexpr (OUT == 1) {
        write(static_cast<Piece*>(w.to) + share.place(image) * area * STORED, area, i, v);
    } else {
        int first = share.group * 8;
        float* to = static_cast<float*>(w.to) + ((size_t)image * s.channels + first) * area + i;
        #pragma unroll
        for (int c = 0; c < 8; ++c)
            if (first + c < s.channels) to[(size_t)c * area] = v[c];
    }
}

inline void normalize_share(const Sizes& s, const Norm& norm, const Elements& y, const Units& x, const Share& share,
                            Arrivals& arrivals, const Written& w, float scale)
{
    #pragma unroll 1
    for (Walk at(share, s.area_out(), s.by_windows); at.image < share.end; at.next()) {
        float v[8];
        arrivals.wait_for(share, at.image);
        Word marks = largest_of_window(s, norm, y, x, share, at.image, at.i, v);
        write_out(s, w, share, at.image, at.i, v, scale);
        size_t piece = share.place(at.image) * s.area_out() + at.i;
        if constexpr (POOL > 1) static_cast<Word*>(w.marks)[piece] = marks;
        else if constexpr (ADD && RELU) static_cast<unsigned char*>(w.marks)[piece] = marks;
    }
}

// images: blocked, or images of one channel, and then filters. added: an operand, and its scale. By as many blocks as
// there is room for at once: `ctas` for each group, of so many groups at a time. moments: where MOMENTS; then blocks
// need not hear of each other.
extern "C" __global__ __launch_bounds__(BLOCK_THREADS, 1)
void normalize(const __grid_constant__ Sizes s, const __grid_constant__ Channels p, const Piece* images,
               const float* filters, const Piece* added, const Scale* of_added, Told* told,
               const __grid_constant__ Moments m, const __grid_constant__ Written w)
{
    extern __shared__ __align__(128) unsigned char shared_bytes[];
    Shared& shared = *reinterpret_cast<Shared*>(shared_bytes);
    Share share(s);
    Piece* near = reinterpret_cast<Piece*>(&shared + 1);
    Elements y = {{images, near, 0, Elements::piece_count(s), 1}, filters};
    Units x = {added, ADD ? near + s.resident * y.units.pieces : nullptr, s.units() * s.area(), s.area(), PARTS};
    ask_for(share, x, STEM ? Units{} : y.units, shared.there);
    Word launch = told->launches + 1;
    if (threadIdx.x / 32 == WARPS - 1) {
        Word largest = bound(s, p, of_added);
        if (threadIdx.x % 32 == 0) shared.largest = largest;
    }
    if (STEM) y.fetch(s, share), cp_async_wait_all();
    __syncthreads();
    float scale = SCALED ? scale_for(shared.largest) : 1, unscale = ADD && SCALED ? 1 / of_added->of : 1;
    if (blockIdx.x == 0 && threadIdx.x == 0 && w.scale) w.scale->of = scale;
    Arrivals arrivals = {shared.there, -1};
    #pragma unroll 1
    for (; share.group < s.groups; share.next(s)) {
        Known known(s, p, share);
        y.set(s, share.group);
        if (!MOMENTS) leave_moments(s, y, share, arrivals, shared.of_warps, told->sums(), launch);
        if (threadIdx.x < 256)
            settle(s, p, known, share, MOMENTS ? moments(s, m, known.c)
                                               : moments(s, told->sums(), share.group, threadIdx.x / 32, launch), shared);
        __syncthreads();
        normalize_share(s, Norm(shared, unscale), y, x, share, arrivals, w, scale);
        __syncthreads();
    }
    if (!MOMENTS && blockIdx.x == 0) count_launch(told, launch);
}
