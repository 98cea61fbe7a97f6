// Values as the blocked products read them: bfloat16, float32, or fp16, two of which make a float32.
//
// fp16 has few exponents. So an array has a scale, a power of two that brings its largest value to 2^11 and up to
// 2^15. To look for the largest value first would be a trip through memory. Instead the scale that was right in the
// last launch is guessed to be right again, and the largest value is looked for meanwhile; when all blocks have met,
// they know, and if the guess was wrong, they do their work again.

#include "ptx.cuh"

#ifndef MODE
#define MODE 3
#endif
// 0: bfloat16. 1: float32, whose lower bits tensor cores leave out (TF32). 2: float32, rounded to fp16 before. 3:
// float32, made the sum of two fp16 parts before: three products of fp16.
constexpr int PARTS = MODE == 3 ? 2 : 1;
constexpr bool SCALED = MODE >= 2;
constexpr int CHANNELS = MODE == 1 ? 4 : 8;  // of a piece

struct Piece {
    Word words[4];
};

// fp16 reaches from 2^-24 to 2^16: what is less than 2^-36 of the largest value is lost, and nothing overflows. Every
// fourth power of two only, so that a guess is seldom wrong.
inline float scale_for(Word largest)
{
    int exponent = (int)(largest >> 23) - 127;
    return largest > 0 ? __uint_as_float(min(max(127 + 14 - (exponent + 3 & ~3), 1), 254) << 23) : 1;
}

// Of an array: the scale, for its readers and as the next guess, and what blocks tell each other. messages: one for
// each block of a launch, with what it has found below, and above the number of the launch. done: how many blocks have
// written all that they had to, in all launches.
struct Scale {
    float of;
    Word done, launches, unused[3];
    Word64* messages;
};

// What a product of scaled values is to be multiplied by.
inline float unscale_of(const Scale* a, const Scale* b)
{
    float of_a = a->of, of_b = b->of;  // both before a division, so that they come together
    return 1 / of_a / of_b;
}

// Eight values as pieces of fp16, or of bfloat16.
inline void pieces_of(const float (&x)[8], float scale, Piece (&parts)[PARTS])
{
    #pragma unroll
    for (int j = 0; j < 4; ++j) {
        if constexpr (MODE == 0) {
            parts[0].words[j] = cvt_rn_bf16x2(x[2 * j], x[2 * j + 1]);
        } else {
            float low = x[2 * j] * scale, high = x[2 * j + 1] * scale;
            parts[0].words[j] = cvt_rn_f16x2(low, high);
            if constexpr (PARTS == 2) {
                float2 rounded = cvt_f32_f16x2(parts[0].words[j]);
                parts[PARTS - 1].words[j] = cvt_rn_f16x2(low - rounded.x, high - rounded.y);
            }
        }
    }
}

inline void put(Piece* to, const Piece& piece)
{
    *reinterpret_cast<int4*>(to) = *reinterpret_cast<const int4*>(&piece);
}

inline float largest_of(const float (&x)[8])
{
    float most = 0;
    #pragma unroll
    for (int j = 0; j < 8; ++j) most = fmaxf(most, fabsf(x[j]));
    return most;
}

// Eight values that somebody has stored as floats or as bfloat16.
inline void floats_of(const float4& one, const float4& two, float (&x)[8])
{
    x[0] = one.x, x[1] = one.y, x[2] = one.z, x[3] = one.w, x[4] = two.x, x[5] = two.y, x[6] = two.z, x[7] = two.w;
}

inline void floats_of(const Piece& piece, float (&x)[8])
{
    #pragma unroll
    for (int j = 0; j < 4; ++j) {
        x[2 * j] = __uint_as_float(piece.words[j] << 16);
        x[2 * j + 1] = __uint_as_float(piece.words[j] & 0xFFFF0000);
    }
}

// Eight values of fp16, still scaled.
inline void floats_of_fp16(const Piece& piece, float (&x)[8])
{
    #pragma unroll
    for (int j = 0; j < 4; ++j) {
        float2 two = cvt_f32_f16x2(piece.words[j]);
        x[2 * j] = two.x, x[2 * j + 1] = two.y;
    }
}

// Whether this block is the last one of so many to come here, and count anew: it sees what all have written. found: a
// word of shared memory. By whole blocks.
inline bool is_last(Word* arrived, int all, Word* found)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        *found = atomicAdd(arrived, 1u) == all - 1;
        if (*found) *arrived = 0;
        __threadfence();
    }
    __syncthreads();
    return *found;
}

// The scale that each of `count` arrays should have had: blocks tell each other what they have found, `most`, and whoever
// hears it waits for all. launches: of the scales, in the beginning. All of these are in shared memory; the right scales
// take the place of `most`. It is no barrier: other memory may come later. By whole blocks.
inline void tell_largest(Scale* const* scales, int count, const Word* most, const Word* launches)
{
    for (int i = threadIdx.x; i < count; i += blockDim.x)
        st_relaxed_gpu(scales[i]->messages + blockIdx.x, (Word64)(launches[i] + 1) << 32 | most[i]);
}

inline void hear_scales(Scale* const* scales, int count, Word* most, const Word* launches)
{
    int padded = (gridDim.x + 31) / 32 * 32;  // a warp looks for messages of one array
    for (int n = threadIdx.x; n < count * padded; n += blockDim.x) {
        int i = n / padded, block = n % padded;
        Word64 message = 0;
        for (Word turns = 0; block < gridDim.x; give_up_after_a_while(turns)) {
            ld_relaxed_gpu(message, scales[i]->messages + block);
            if (message >> 32 == launches[i] + 1) break;
        }
        Word found = __reduce_max_sync(~0u, (Word)message);
        if (threadIdx.x % 32 == 0) atomicMax(&most[i], found);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < count; i += blockDim.x) {
        float right = scale_for(most[i]);
        most[i] = __float_as_uint(right);
        if (blockIdx.x == 0) scales[i]->of = right, scales[i]->launches = launches[i] + 1;
    }
    __syncthreads();
}

// By all blocks of a cooperative launch.
inline void find_scales(Scale* const* scales, int count, Word* most, const Word* launches)
{
    __syncthreads();
    tell_largest(scales, count, most, launches);
    hear_scales(scales, count, most, launches);
}
