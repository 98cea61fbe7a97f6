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
// What the way forward made may be made again (AGAIN): y is here, and so nobody needs to keep the operand that was made
// of it until the gradient of the next convolution's filters asks for it. It has the same bits.
//
// Behind a convolution of one channel (STEM) nobody asks for dx but the gradient of the filters, a sum over pixels of
// dx times what a tap sees. dx is d, less multiples of 1 and of x that are known when all is summed, and x is a sum
// over taps: so it is enough to sum d, 1 and what each other tap sees, times what a tap sees. Then d is made once, and
// blocks meet once. What taps see is taken less a pixel's mean, which changes nothing, as dx sums to 0: but what is
// subtracted is small then.
//
// The scale of fp16: |dx| is at most largest(|scale d|) (2 + sqrt(m - 1)), m values a channel.

#include "norm.cuh"

#ifndef FROM
#define FROM 0  // how the gradient comes. 0: blocked. 2: images of float32
#endif
#ifndef PAST
#define PAST 0  // the side of a pool behind the residual's sum, whose gradient is added; 1: no pool, 0: nothing is
#endif
#ifndef PAST_RELU
#define PAST_RELU 1
#define PAST_FROM 0  // as FROM
#endif
#ifndef SIDE
#define SIDE 1  // of the windows that a thread has whole, as their pixels have a pixel of a pool's result in common
#endif
#ifndef KEEP
#define KEEP 0  // whether d is stored, too, blocked: the gradient that goes past a residual, where two were added
#endif
#ifndef AGAIN
#define AGAIN 0  // whether the operand that the way forward made is stored again; only where it had no pool and no sum
#endif

// Whether a window's loads are asked for a window ahead. A stem has no registers left: each pixel asks again, and finds
// all but the first time in L1.
constexpr bool AHEAD = !STEM;

// Sums of products of what two taps see, less the middle, and then of what each sees.
constexpr int PRODUCTS = TAPS * (TAPS + 1) / 2, WINDOW_ROWS = (PRODUCTS + TAPS + 7) / 8;
static_assert(WINDOW_ROWS <= TAPS, "they lie where the weights' sums do");

struct Shared {
    Word64 there[BARRIERS];
    Sums of_warps[WARPS][8];
    float of_weights[STEM ? WARPS : 1][TAPS * 8];
    float of_windows[8 * WINDOW_ROWS];
    float mean_d[8], slope[8];
    float most[WARPS], scale, padding[3];
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

// An operand, and its scale.
struct Operand {
    Piece* to;
    const Scale* scale;
};

// The 8 channels of pixel i of an image of float32.
inline void read_image(const Sizes& s, const void* images, const Share& share, int image, int area, int i,
                       float (&d)[8])
{
    int channel = share.group * 8;
    const float* from = static_cast<const float*>(images) + ((size_t)image * s.channels + channel) * area;
    #pragma unroll
    for (int c = 0; c < 8; ++c) d[c] = channel + c < s.channels ? from[(size_t)c * area + i] : 0;
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

// What the gradients of a window's pixels take that is not in shared memory: that of images, that of a residual's sum,
// marks. from: the number of the pixel of the result that they have in common. choice, past_choice: the first one's
// place in the pool's window, and that of the result's pixel in a window of the pool behind the sum.
struct Far {
    int from, choice, past_choice;
    float own[8], past[8];
    Word marks, past_marks;
};

struct Gradient {
    Units dy;
    Given own, past;

    // Ask for a window whose first pixel is (row, column). There is no branch, so all loads are under way together;
    // where a pool's window is cut off, no value of it went on.
    __device__ Far ask(const Sizes& s, const Share& share, int image, int row, int column) const
    {
        Far far;
        int y = row / POOL, x = column / POOL, across = s.across();
        bool inside = POOL == 1 || (y < s.height / POOL && x < across);
        far.from = inside ? y * across + x : 0, far.choice = row % POOL * POOL + column % POOL;
        if constexpr (FROM != 0) read_image(s, own.gradient, share, image, s.area_out(), far.from, far.own);
        size_t place = share.place(image) * s.area_out() + far.from;
        if constexpr (POOL > 1) {
            Word marks = static_cast<const Word*>(own.marks)[place];
            far.marks = inside ? marks : ~0u;
        } else if constexpr (RELU && ADD) {
            far.marks = static_cast<const unsigned char*>(own.marks)[place];
        }
        if constexpr (PAST > 0) ask_past(s, share, image, y, x, far);
        return far;
    }

    // The same of the gradient that goes past a residual. y, x: of the result.
    __device__ void ask_past(const Sizes& s, const Share& share, int image, int y, int x, Far& far) const
    {
        int down = s.height / POOL / PAST, across = s.across() / PAST;
        int from = PAST > 1 ? y / PAST * across + x / PAST : far.from;
        bool inside = PAST == 1 || (y / PAST < down && x / PAST < across);
        if (!inside) from = 0;
        size_t place = share.place(image) * down * across;
        if constexpr (PAST_FROM == 0) read(past.gradient + place * STORED, down * across, from, far.past);
        else read_image(s, past.gradient, share, image, down * across, from, far.past);
        if constexpr (PAST > 1) {
            Word marks = static_cast<const Word*>(past.marks)[place + from];
            far.past_marks = inside ? marks : ~0u, far.past_choice = y % PAST * PAST + x % PAST;
        } else if constexpr (PAST_RELU) {
            far.past_marks = static_cast<const unsigned char*>(past.marks)[place + from];
        }
    }

    // The gradient at pixel i of what was normalized, at a place of its window, whose values there are x.
    __device__ void at(const Sizes& s, const Norm& norm, const Share& share, int image, int i, int place,
                       const Far& far, const float (&x)[8], float (&d)[8]) const
    {
        if constexpr (FROM == 0) read(dy.at(share, image), s.area_out(), POOL > 1 ? far.from : i, d);
        #pragma unroll
        for (int c = 0; c < 8; ++c)
            if (FROM != 0) d[c] = far.own[c];
        if constexpr (PAST > 0) {
            float other[8];
            #pragma unroll
            for (int c = 0; c < 8; ++c) other[c] = far.past[c];
            if (PAST > 1 || PAST_RELU) through(far.past_marks, PAST, far.past_choice + (POOL == 1 ? place : 0), other);
            #pragma unroll
            for (int c = 0; c < 8; ++c) d[c] += other[c];
        }
        if constexpr (POOL > 1 || (RELU && ADD)) {
            through(far.marks, POOL, far.choice + place, d);
        } else if constexpr (RELU) {
            #pragma unroll
            for (int c = 0; c < 8; ++c)
                if (fmaf(x[c] - norm.mean[c], norm.scale[c], norm.beta[c]) <= 0) d[c] = 0;
        }
    }
};

// Do work(image, pixel, place in its window, far) for all pixels of this thread's windows, S x S, in a share. The loads
// of the next window are under way meanwhile: there are too few warps to hide how long they take. S: who writes takes
// single pixels, as neighbours write side by side then, and who does not takes all that have a load in common.
template <int S, typename Work>
inline void for_each_pixel(const Sizes& s, const Share& share, const Gradient& gradient, Work work)
{
    int across = (s.width + S - 1) / S;
    Word by_across = S == 1 ? s.by_width : s.by_across;
    const auto ask = [&](const Walk& at) {
        int row = divided(at.i, across, by_across);
        return gradient.ask(s, share, min(at.image, share.end - 1), row * S, (at.i - row * across) * S);
    };
    Walk next(share, (s.height + S - 1) / S * across, S == 1 ? s.by_area : s.by_windows);
    Far ahead = AHEAD ? ask(next) : Far{};
    #pragma unroll 1
    while (next.image < share.end) {
        Walk at = next;
        Far far = ahead;
        next.next();
        if (AHEAD) ahead = ask(next);  // behind the last window nobody looks
        int row = divided(at.i, across, by_across), y = row * S, x = (at.i - row * across) * S;
        #pragma unroll (STEM ? 1 : S * S)
        for (int place = 0; place < S * S; ++place) {
            int down = place / S, right = place % S;
            if (y + down < s.height && x + right < s.width)
                work(at.image, (y + down) * s.width + x + right, place, AHEAD ? far : ask(at));
        }
    }
    __syncwarp();  // else lanes that had one window more would go their own way from here on
}

// What a warp's lanes have of a group, sums of d and of d (x - mean), goes to its place in memory: by all threads.
inline void leave_channels(const Sizes& s, const Share& share, const Sums (&sums)[8], Sums (*of_warps)[8],
                           float4* messages, Word launch)
{
    int lane = threadIdx.x % 32;
    Sums found = summed_by_channel(sums);
    if (lane % 4 == 0) of_warps[threadIdx.x / 32][lane / 4] = found;
    __syncthreads();
    if (threadIdx.x < 8 * WARPS) {
        Sums whole = summed<WARPS>(of_warps[threadIdx.x % WARPS][threadIdx.x / WARPS]);
        if (threadIdx.x % WARPS == 0)
            tell(messages + share.message(s) + threadIdx.x / WARPS, whole, launch);
    }
    __syncthreads();
}

// What this block has of a group's sums. Return this thread's largest |scale d|.
inline float leave_sums(const Sizes& s, const Norm& norm, const Elements& y, const Gradient& gradient,
                        const Share& share, Arrivals& arrivals, Sums (*of_warps)[8], float4* messages,
                        Word launch)
{
    float most = 0;
    Sums sums[8] = {};
    for_each_pixel<SIDE>(s, share, gradient, [&](int image, int i, int place, const Far& far) {
        arrivals.wait_for(share, image);
        float x[8], d[8];
        y.at(s, share, image, i, x);
        gradient.at(s, norm, share, image, i, place, far, x, d);
        #pragma unroll
        for (int c = 0; c < 8; ++c) {
            sums[c].first += d[c], sums[c].second = fmaf(d[c], x[c] - norm.mean[c], sums[c].second);
            most = fmaxf(most, fabsf(norm.scale[c] * d[c]));
        }
    });
    leave_channels(s, share, sums, of_warps, messages, launch);
    return most;
}

// The gradients of a channel's scale and shift, and of the bias before.
inline void give(const Channels& p, int c, float dgamma, float dbeta)
{
    p.dgamma[c] = dgamma, p.dbeta[c] = dbeta;
    if (p.dbias) p.dbias[c] = 0;
}

// What is subtracted from a channel's d, and the gradients of its scale and shift: by lane 0 of a warp.
inline void settle(const Sizes& s, const Channels& p, float inverse, const Sums& all, const Share& share,
                   Shared& shared)
{
    int channel = threadIdx.x / 32, c = share.group * 8 + channel;
    float dgamma = all.second * inverse;
    shared.mean_d[channel] = all.first * s.part;
    shared.slope[channel] = dgamma * s.part * inverse;
    if (share.cta == 0 && c < s.channels) give(p, c, dgamma, all.first);
}

// dx of 8 values x, of which d are made.
struct Slope {
    float mean_d[8], slope[8];

    __device__ Slope(const Shared& shared)
    {
        #pragma unroll
        for (int c = 0; c < 8; ++c) mean_d[c] = shared.mean_d[c], slope[c] = shared.slope[c];
    }
    __device__ void dx(const Norm& norm, const float (&x)[8], float (&d)[8]) const
    {
        #pragma unroll
        for (int c = 0; c < 8; ++c) d[c] = norm.scale[c] * (d[c] - mean_d[c] - (x[c] - norm.mean[c]) * slope[c]);
    }
};

// What the way forward made of 8 values x, as it made it.
inline void make_again(const Sizes& s, const Norm& norm, const Share& share, int image, int i, const float (&x)[8],
                       Piece* to, float scale)
{
    if constexpr (AGAIN) {
        float v[8];
        #pragma unroll
        for (int c = 0; c < 8; ++c) {
            v[c] = fmaf(x[c] - norm.mean[c], norm.scale[c], norm.beta[c]);
            if (RELU && v[c] <= 0) v[c] = 0;
        }
        write_operand(to, s.units(), share.place(image), s.area(), i, v, scale);
    }
}

inline void write_share(const Sizes& s, const Norm& norm, const Slope& slope, const Elements& y,
                        const Gradient& gradient, const Share& share, Piece* to, Piece* kept, float scale,
                        Piece* again, float scale_again)
{
    int area = s.area();
    for_each_pixel<1>(s, share, gradient, [&](int image, int i, int place, const Far& far) {
        float x[8], d[8];
        y.at(s, share, image, i, x);
        gradient.at(s, norm, share, image, i, place, far, x, d);
        if constexpr (KEEP) write(kept + share.place(image) * area * STORED, area, i, d);
        make_again(s, norm, share, image, i, x, again, scale_again);
        slope.dx(norm, x, d);
        write_operand(to, s.units(), share.place(image), area, i, d, scale);
    });
}

// ---- The filters of a convolution of one channel ----

// What the warps have left, added up.
inline float sum_of_warps(const Shared& shared, int number)
{
    float sum = 0;
    #pragma unroll
    for (int warp = 0; warp < (STEM ? WARPS : 1); ++warp) sum += shared.of_weights[warp][number];
    return sum;
}

// The number of the product of what taps a and b see.
inline int product(int a, int b)
{
    int low = min(a, b), high = max(a, b);
    return low * TAPS - low * (low - 1) / 2 + high - low;
}

// Sum products of what taps see of the block's images, and what each sees, less the middle: of_windows. It needs no
// gradient, and so passes the time until the way back has come here.
inline void sum_windows(const Sizes& s, const Elements& y, const Share& share, float middle, Shared& shared)
{
    float sums[WINDOW_ROWS][8] = {};
    #pragma unroll 1
    for (Walk at(share, s.area(), s.by_area); at.image < share.end; at.next()) {
        float seen[TAPS];
        y.window(s, share, at.image, at.i, seen);
        #pragma unroll
        for (int a = 0; a < TAPS; ++a) {
            seen[a] -= middle;
            sums[(PRODUCTS + a) / 8][(PRODUCTS + a) % 8] += seen[a];
        }
        #pragma unroll
        for (int a = 0; a < TAPS; ++a)
            #pragma unroll
            for (int b = a; b < TAPS; ++b) {
                int n = product(a, b);
                sums[n / 8][n % 8] = fmaf(seen[a], seen[b], sums[n / 8][n % 8]);
            }
    }
    __syncwarp();
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    #pragma unroll
    for (int row = 0; row < WINDOW_ROWS; ++row) {
        float found = summed_by_channel(sums[row]);
        if (lane % 4 == 0) shared.of_weights[warp][row * 8 + lane / 4] = found;
    }
    __syncthreads();
    if (threadIdx.x < WINDOW_ROWS * 8) shared.of_windows[threadIdx.x] = sum_of_warps(shared, threadIdx.x);
    __syncthreads();
}

// The sum over pixels of x - mean of a channel times what a tap sees, less the middle: x is a sum over taps.
inline float of_x(const Sizes& s, const Channels& p, const Elements& y, int channel, int tap, float middle,
                  const Shared& shared)
{
    float sum = 0, weights = 0;
    if (channel >= s.channels) return 0;
    #pragma unroll
    for (int other = 0; other < TAPS; ++other) {
        float w = y.filters[channel * TAPS + other];
        weights += w, sum = fmaf(w, shared.of_windows[product(tap, other)], sum);
    }
    return fmaf(fmaf(weights, middle, -p.kept[channel].x), shared.of_windows[PRODUCTS + tap], sum);
}

// What the block's images add to the sums of a group: as flagged messages. Of each weight there are three: the sums
// over pixels of what its tap sees, less the middle, times d, times x - mean, and alone.
inline void leave_all(const Sizes& s, const Channels& p, const Norm& norm, const Elements& y, const Gradient& gradient,
                      const Share& share, Arrivals& arrivals, Shared& shared, Told* told, Word launch, Piece* again,
                      float scale_again)
{
    float of_weights[TAPS][8] = {}, middle = y.middle(norm.mean);
    Sums sums[8] = {};
    for_each_pixel<SIDE>(s, share, gradient, [&](int image, int i, int place, const Far& far) {
        float seen[TAPS], x[8], d[8];
        arrivals.wait_for(share, image);
        y.window(s, share, image, i, seen);
        y.multiply(seen, x);
        gradient.at(s, norm, share, image, i, place, far, x, d);
        make_again(s, norm, share, image, i, x, again, scale_again);
        #pragma unroll
        for (int c = 0; c < 8; ++c) {
            sums[c].first += d[c];
            #pragma unroll
            for (int tap = 0; tap < TAPS; ++tap) of_weights[tap][c] = fmaf(d[c], seen[tap], of_weights[tap][c]);
        }
    });
    #pragma unroll
    for (int c = 0; c < 8; ++c) {
        sums[c].second = -norm.mean[c] * sums[c].first;
        #pragma unroll
        for (int tap = 0; tap < TAPS; ++tap) sums[c].second = fmaf(y.w[tap][c], of_weights[tap][c], sums[c].second);
    }
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    #pragma unroll
    for (int tap = 0; tap < TAPS; ++tap) {
        #pragma unroll
        for (int c = 0; c < 8; ++c) of_weights[tap][c] = fmaf(-middle, sums[c].first, of_weights[tap][c]);
        float found = summed_by_channel(of_weights[tap]);
        if (lane % 4 == 0) shared.of_weights[warp][tap * 8 + lane / 4] = found;
    }
    leave_channels(s, share, sums, shared.of_warps, told->sums(), launch);
    if (threadIdx.x < 8 * TAPS) {
        int tap = threadIdx.x / 8, c = threadIdx.x % 8;
        Sums found = {sum_of_warps(shared, threadIdx.x), of_x(s, p, y, share.group * 8 + c, tap, middle, shared)};
        tell(told->weights(s, tap) + share.message(s) + c, found, launch, shared.of_windows[PRODUCTS + tap]);
    }
    __syncthreads();
}

// The gradients of a group's channels and filters, dW (o, KERNEL, KERNEL), when the group's CTAs have told all: a
// weight a warp, by as many CTAs as that takes.
inline void settle_all(const Sizes& s, const Channels& p, const Share& share, Told* told, float* dW, Word launch)
{
    #pragma unroll 1
    for (int i = share.cta * WARPS + threadIdx.x / 32; i < TAPS * 8; i += s.ctas * WARPS) {
        int tap = i / 8, c = share.group * 8 + i % 8;
        float2 kept = p.kept[c];
        float gamma = c < s.channels ? p.gamma[c] : 0, sum = 0;
        float4 got[2][MOST_HEARD];
        hear<2>(s, {told->sums(), told->weights(s, tap)}, share.group, i % 8, launch, got);
        #pragma unroll
        for (int n = 0; n < MOST_HEARD; ++n) sum += got[1][n].w;
        Sums all = summed_messages(got[0]), found = summed_messages(got[1]);
        float seen = summed<32>(sum), dgamma = all.second * kept.y;
        if (threadIdx.x % 32 > 0 || c >= s.channels) continue;
        float less = s.part * (all.first * seen + dgamma * kept.y * found.second);
        dW[c * TAPS + tap] = gamma * kept.y * (found.first - less);
        if (tap == 0) give(p, c, dgamma, all.first);
    }
}

// Tell the largest value of this block's. By all threads.
inline void tell_largest(float most, float (&of_warps)[WARPS], Word64* message, Word launch)
{
    most = __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(most)));
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = most;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int warp = 1; warp < WARPS; ++warp) most = fmaxf(most, of_warps[warp]);
    tell(message, most, launch);
}

// The largest of all blocks': for all lanes. By a warp.
inline float hear_largest(const Word64* messages, Word launch)
{
    float most = 0;
    #pragma unroll 1
    for (int block = threadIdx.x % 32; block < gridDim.x; block += 32) {
        Word64 got = 0;
        for (Word turns = 0;; give_up_after_a_while(turns)) {
            ld_relaxed_gpu(got, messages + block);
            if (heard(got, launch)) break;
        }
        most = fmaxf(most, content(got));
    }
    __syncwarp();
    return __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(most)));
}

// images: what was normalized, or images of one channel, and then filters. to: an operand and its scale, or the
// filters' gradient. kept: blocked, where KEEP. again: where AGAIN. Blocks: as on the way forward. Where they have all
// in shared memory, `to` may be where the images are, and `again` where the gradient is: who writes fp16 has heard of
// all blocks, and bfloat16 is written where the same thread has read.
extern "C" __global__ __launch_bounds__(BLOCK_THREADS, 1)
void normalize_backward(const __grid_constant__ Sizes s, const __grid_constant__ Channels p, const Piece* images,
                        const float* filters, const __grid_constant__ Given own, const __grid_constant__ Given past,
                        Told* told, void* to, Scale* scale_of_to, Piece* kept, const __grid_constant__ Operand again)
{
    extern __shared__ __align__(128) unsigned char shared_bytes[];
    Shared& shared = *reinterpret_cast<Shared*>(shared_bytes);
    Share share(s);
    Piece* near = reinterpret_cast<Piece*>(&shared + 1);
    Elements y = {{images, near, 0, Elements::piece_count(s), 1}, filters};
    Piece* behind = FROM == 0 ? near + s.resident * y.units.pieces : nullptr;
    Gradient gradient = {{own.gradient, behind, 0, s.area_out() * STORED, 1}, own, past};
    // The images are there since the way forward, as y is, and what is known of a channel.
    if (STEM) y.fetch(s, share), y.set(s, share.group);
    Norm norm(s, p, share.group);
    bool more = share.group + s.together < s.groups;  // whether this block has another group
    if constexpr (STEM) {
        cp_async_wait_all();
        __syncthreads();
        sum_windows(s, y, share, y.middle(norm.mean), shared);
    }
    ask_for(share, STEM ? Units{} : y.units, gradient.dy, shared.there);
    Word launch = told->launches + 1;
    __syncthreads();
    Arrivals arrivals = {shared.there, -1};
    float scale_again = AGAIN && SCALED ? again.scale->of : 1;
    if constexpr (STEM) {
        #pragma unroll 1
        for (Share mine = share; mine.group < s.groups; mine.next(s)) {
            if (mine.group != share.group) {
                norm = Norm(s, p, mine.group), y.set(s, mine.group);
                sum_windows(s, y, mine, y.middle(norm.mean), shared);
            }
            leave_all(s, p, norm, y, gradient, mine, arrivals, shared, told, launch, again.to, scale_again);
        }
        #pragma unroll 1
        for (Share mine = share; mine.group < s.groups; mine.next(s))
            settle_all(s, p, mine, told, static_cast<float*>(to), launch);
        if (blockIdx.x == gridDim.x - 1) count_launch(told, launch);  // it has least to settle
        return;
    }
    float most = 0;
    #pragma unroll 1
    for (Share mine = share; mine.group < s.groups; mine.next(s)) {
        if (mine.group != share.group) norm = Norm(s, p, mine.group);
        float found = leave_sums(s, norm, y, gradient, mine, arrivals, shared.of_warps, told->sums(), launch);
        most = fmaxf(most, found);
    }
    if (SCALED) tell_largest(most, shared.most, told->largest(s) + blockIdx.x, launch);
    #pragma unroll 1
    for (Share mine = share; mine.group < s.groups; mine.next(s)) {
        if (threadIdx.x < 256) {
            float4 got[1][MOST_HEARD];
            float inverse = p.kept[mine.group * 8 + threadIdx.x / 32].y;  // asked for early
            hear<1>(s, {told->sums()}, mine.group, threadIdx.x / 32, launch, got);
            Sums all = summed_messages(got[0]);
            if (threadIdx.x % 32 == 0) settle(s, p, inverse, all, mine, shared);
        }
        if (SCALED && mine.group == share.group && threadIdx.x / 32 == WARPS - 1) {
            float all = hear_largest(told->largest(s), launch) * (2 + s.root);
            if (threadIdx.x % 32 == 0) shared.scale = scale_for(__float_as_uint(all));
        }
        __syncthreads();
        float scale = SCALED ? shared.scale : 1;
        if (SCALED && blockIdx.x == 0 && threadIdx.x == 0) scale_of_to->of = scale;
        if (more) norm = Norm(s, p, mine.group);
        write_share(s, norm, Slope(shared), y, gradient, mine, static_cast<Piece*>(to), kept, scale, again.to,
                    scale_again);
        __syncthreads();
    }
    if (blockIdx.x == 0) count_launch(told, launch);
}
