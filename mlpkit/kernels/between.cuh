// What is between convolutions: how eight channels of a pixel are read and written, and what is kept for the way back.
//
// A thread has a group of eight channels of a pixel, which are a piece of 16 bytes in bfloat16 or fp16 and two in
// float32. A pool's window is POOL x POOL pixels, side by side. Of each channel is kept which of them was the largest,
// or that the ReLU cut it off: 4 bits, or 8 where windows are large. So the way back needs neither y nor z.

#include "fp16.cuh"

#ifndef POOL
#define POOL 2
#endif
#ifndef RELU
#define RELU 1
#endif
#ifndef FROM
#define FROM 0  // what is read: 0 for blocked float32, 1 for blocked bfloat16, 2 for rows (n, c, h, w) of float32
#endif
#ifndef TO
#define TO 0  // what is written: 0 for an operand as MODE has it, 1 for blocked float32, 2 for rows of float32
#endif
#ifndef KNOWN
#define KNOWN 0  // whether somebody has looked for the largest value before
#endif
#ifndef ADD
#define ADD 0  // whether an operand is added, as MODE has it, of as many pixels
#endif
#ifndef TALL_Z
#define TALL_Z 10  // of the images with pixels, of which all windows are whole
#define WIDE_Z 10
#endif

constexpr int DOWN = TALL_Z / POOL, ACROSS = WIDE_Z / POOL, AREA = TALL_Z * WIDE_Z, WINDOWS = DOWN * ACROSS;
constexpr int PLACES = POOL * POOL, BITS = PLACES < 16 ? 4 : 8;
constexpr bool KEEPS = RELU || POOL > 1, GUESSES = SCALED && TO == 0;

static_assert(TALL_Z % POOL == 0 && WIDE_Z % POOL == 0 && POOL <= 15, "whole windows");

template <int BITS>
struct KeptOf {
    typedef Word Bits;
};
template <>
struct KeptOf<8> {
    typedef Word64 Bits;
};
typedef KeptOf<BITS>::Bits Kept;
constexpr Word CUT = (1 << BITS) - 1;  // no place: the ReLU was at work

// groups: of eight channels; `channels` are real.
struct Sizes {
    int images, channels, groups;
};

// What follows the sums of a product that goes on itself, and where what is kept of it goes.
struct Following {
    const float* bias;
    Kept* kept;
    const void* added;  // with ADD, an operand; and the scale of its fp16 parts
    const Scale* of_added;
    Sizes sizes;
};

// Channels of a group, of pixel number `at` in planes of `area` pixels.
inline void load(const void* from, const Sizes& s, int image, int group, int area, int at, float (&x)[8])
{
    size_t plane = (size_t)image * s.groups + group;
    if constexpr (FROM == 0) {
        const float4* one = static_cast<const float4*>(from) + 2 * plane * area + at;
        floats_of(one[0], one[area], x);
    } else if constexpr (FROM == 1) {
        Piece piece;
        *reinterpret_cast<int4*>(&piece) = static_cast<const int4*>(from)[plane * area + at];
        floats_of(piece, x);
    } else {
        const float* one = static_cast<const float*>(from) + ((size_t)image * s.channels + group * 8) * area + at;
        #pragma unroll
        for (int j = 0; j < 8; ++j) x[j] = group * 8 + j < s.channels ? one[(size_t)j * area] : 0;
    }
}

// Add to channels of a group those of an operand, pixel number `at`. unscale: what its fp16 is to be multiplied by.
inline void add_operand(const void* added, float unscale, const Sizes& s, int image, int group, int area, int at,
                        float (&x)[8])
{
    size_t plane = (size_t)image * s.groups + group;
    float more[8] = {};
    #pragma unroll
    for (int part = 0; part < PARTS; ++part) {
        float here[8];
        if constexpr (MODE == 1) {
            const float4* one = static_cast<const float4*>(added) + 2 * plane * area + at;
            floats_of(one[0], one[area], here);
        } else {
            Piece piece;
            *reinterpret_cast<int4*>(&piece) =
                static_cast<const int4*>(added)[((size_t)part * s.images * s.groups + plane) * area + at];
            if constexpr (SCALED) floats_of_fp16(piece, here);
            else floats_of(piece, here);
        }
        #pragma unroll
        for (int j = 0; j < 8; ++j) more[j] += here[j];
    }
    #pragma unroll
    for (int j = 0; j < 8; ++j) x[j] += more[j] * unscale;
}

inline void store(void* to, const Sizes& s, int image, int group, int area, int at, const float (&x)[8], float scale)
{
    size_t plane = (size_t)image * s.groups + group;
    if constexpr (TO == 2) {
        float* one = static_cast<float*>(to) + ((size_t)image * s.channels + group * 8) * area + at;
        #pragma unroll
        for (int j = 0; j < 8; ++j)
            if (group * 8 + j < s.channels) one[(size_t)j * area] = x[j];
    } else if constexpr (TO == 1 || MODE == 1) {
        float4* one = static_cast<float4*>(to) + 2 * plane * area + at;
        one[0] = {x[0], x[1], x[2], x[3]}, one[area] = {x[4], x[5], x[6], x[7]};
    } else {
        Piece parts[PARTS];
        pieces_of(x, scale, parts);
        #pragma unroll
        for (int part = 0; part < PARTS; ++part)
            put(static_cast<Piece*>(to) + ((size_t)part * s.images * s.groups + plane) * area + at, parts[part]);
    }
}

// The largest of a window, one pixel after the other: the first of equal ones, and a NaN where there is one.
struct Window {
    float best[8];
    Word place[8];

    inline void look(int number, const float (&x)[8])
    {
        #pragma unroll
        for (int j = 0; j < 8; ++j) {
            place[j] = number == 0 || x[j] > best[j] ? number : place[j];
            best[j] = number == 0 ? x[j] : max_nan(best[j], x[j]);
        }
    }

    inline void cut()
    {
        #pragma unroll
        for (int j = 0; j < 8; ++j) place[j] = best[j] <= 0 ? CUT : place[j], best[j] = max_nan(best[j], 0);
    }

    inline Kept kept() const
    {
        Kept all = 0;
        #pragma unroll
        for (int j = 0; j < 8; ++j) all |= (Kept)place[j] << BITS * j;
        return all;
    }
};

// Do `make(scale, whether it is the first time)`, which returns the largest magnitude that this thread found, with the
// scale that was right in the last launch; and again, when all blocks have met, if that was wrong. words: four of
// shared memory. largest: with KNOWN the bits of the largest magnitude, or of a larger one; then nobody guesses.
template <typename Make>
inline void with_scale(Scale* scale, Word* words, Make make, const Word* largest = nullptr)
{
    if constexpr (GUESSES && KNOWN) {
        float right = scale_for(*largest);
        if (blockIdx.x == 0 && threadIdx.x == 0) scale->of = right;
        make(right, true);
    } else if constexpr (GUESSES) {
        float guess = scale->of, factor = guess;
        if (threadIdx.x == 0) words[0] = 0, words[1] = scale->launches;
        __syncthreads();
        #pragma unroll 1  // one text for both times: it has to be fetched, too
        for (bool first = true;; first = false) {
            Word found = __reduce_max_sync(~0u, __float_as_uint(make(factor, first)));
            if (!first) return;
            if (threadIdx.x % 32 == 0) atomicMax(&words[0], found);
            find_scales(&scale, 1, words, words + 1);
            factor = __uint_as_float(words[0]);
            if (factor == guess) return;
        }
    } else {
        make(1.0f, true);
    }
}

// The sums of eight values over a warp's lanes: lane i has that of number i / 4.
inline float sum_of_warp(const float (&x)[8])
{
    float v[8];
    #pragma unroll
    for (int j = 0; j < 8; ++j) v[j] = x[j];
    int lane = threadIdx.x % 32;
    #pragma unroll
    for (int many = 4, mask = 16; many > 0; many /= 2, mask /= 2) {
        bool upper = lane & mask;
        #pragma unroll
        for (int j = 0; j < many; ++j) {
            float send = upper ? v[j] : v[j + many], keep = upper ? v[j + many] : v[j];
            v[j] = keep + __shfl_xor_sync(~0u, send, mask);
        }
    }
    v[0] += __shfl_xor_sync(~0u, v[0], 2);
    return v[0] + __shfl_xor_sync(~0u, v[0], 1);
}
