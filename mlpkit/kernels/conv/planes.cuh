// What the kernels on planes share: how images lie, in memory and in shared memory, and how they get from one to the
// other.
//
// An image is planes of pieces, and a piece is the 16 bytes of one pixel: 8 channels of 16 bits, or 4 of float32. In
// shared memory the pieces of a row follow each other, and rows do, PITCH pieces apart, with zeros where the padding
// is. So the pieces that a tap needs for neighbouring windows are neighbours, too, and those of the next tap lie 16
// bytes further on. That is what wgmma wants of a matrix without a swizzle: eight rows of 16 bytes, one after the
// other. To go on to the next tap is to add to an address.
//
// With a stride of 2 the pixels of even and odd rows and columns lie apart, in four phases; a tap belongs to one of
// them.

#include "wgmma.cuh"

#ifndef MODE
#define MODE 3
#endif
// 0: bfloat16. 1: float32, whose lower bits tensor cores leave out (TF32). 2: float32, rounded to halves before. 3:
// float32, made the sum of two halves before: three products of halves.
constexpr Kind KIND = MODE == 0 ? BF16 : MODE == 1 ? TF32 : FP16;
constexpr int PARTS = MODE == 3 ? 2 : 1;
constexpr bool SCALED = MODE >= 2;
constexpr int CHANNELS = MODE == 1 ? 4 : 8;  // of a piece

#ifndef CHUNK
#define CHUNK 64
#endif
constexpr int GROUPS = CHUNK / CHANNELS;  // of channels that are in shared memory at a time: planes

struct Piece {
    Word words[4];
};

#ifndef STRIDE
#define STRIDE 1
#endif
constexpr int PHASES = STRIDE * STRIDE;

// What a launch is about. The images that are read: channels are a multiple of CHUNK. Padding may be negative.
struct Problem {
    int images, channels, height, width;
    int pad_y, pad_x, taps_y, taps_x;
    int windows_y, windows_x;                                   // of an image
    int to_channels, to_height, to_width, to_step, to_y, to_x;  // window (i, j) is pixel (to_step i + to_y, ...)
    int pitch, rows, bands;                                     // of windows in a tile; of such tiles in an image
    int pieces, box;                                            // of a tile in a plane, in each phase, and those copied
    Word by_pitch;                                              // 2^32 / pitch, rounded up
};

inline int divided_by_pitch(const Problem& p, int n) { return p.pitch == 1 ? n : __umulhi(n, p.by_pitch); }

// The pieces by which a tap's pixels lie further on than the first tap's.
inline int shift(const Problem& p, int tap_y, int tap_x)
{
    return (tap_y % STRIDE * STRIDE + tap_x % STRIDE) * p.pieces + tap_y / STRIDE * p.pitch + tap_x / STRIDE;
}

// ---- Two halves for a float32 ----

// Halves reach from 2^-24 to 2^16. A power of two brings the largest number of an array to 2^14 and a little more: what
// is less than 2^-38 of it is then lost, and nothing overflows.
inline float scale_for(Word largest)
{
    int exponent = (largest >> 23) - 127;
    return largest > 0 ? __uint_as_float(min(max(127 + 14 - exponent, 1), 254) << 23) : 1;
}

// What a launch of `split` leaves for the next one: the scales that two arrays had. They are guessed to be the same
// again.
struct Scales {
    float of[2];
    Word largest[2][2];  // magnitudes, as the bits of floats; of launches with even and odd numbers
    Word arrived, launches;
};

// What a product of scaled numbers is to be multiplied by.
inline float unscale_of(const Scales* scales) { return 1 / scales->of[0] / scales->of[1]; }

// The pieces of an array of float32, 8 numbers each, and where their halves go. Piece number i is two pieces of 4
// channels, `area` pieces apart. Of every `block` pieces the second halves follow the first ones.
struct Pieces {
    const float4* from;
    Piece* to;
    int all, area, block;
};

// Make this thread's part of the halves; return the largest magnitude among its numbers.
inline float halves(const Pieces& p, float scale)
{
    float most = 0;
    #pragma unroll 2
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < p.all; i += gridDim.x * blockDim.x) {
        size_t first = (size_t)i + (size_t)(i / p.area) * p.area;
        float4 numbers[2] = {p.from[first], p.from[first + p.area]};
        const float* x = &numbers[0].x;
        Piece parts[PARTS];
        #pragma unroll
        for (int j = 0; j < 4; ++j) {
            most = fmaxf(most, fmaxf(fabsf(x[2 * j]), fabsf(x[2 * j + 1])));
            float low = x[2 * j] * scale, high = x[2 * j + 1] * scale;
            parts[0].words[j] = cvt_rn_f16x2(low, high);
            if constexpr (PARTS == 2) {
                float2 rounded = cvt_f32_f16x2(parts[0].words[j]);
                parts[1].words[j] = cvt_rn_f16x2(low - rounded.x, high - rounded.y);
            }
        }
        size_t to = (size_t)(i / p.block) * p.block * PARTS + i % p.block;
        #pragma unroll
        for (int part = 0; part < PARTS; ++part)
            *reinterpret_cast<int4*>(p.to + to + (size_t)part * p.block) = *reinterpret_cast<int4*>(&parts[part]);
    }
    return most;
}

// Make the halves of two arrays with the scales that were right last time, and meanwhile look for the largest
// magnitudes. When all blocks have met, they know the right scales; where one was not the guess, they make those halves
// again. By as many blocks as there is room for at once.
extern "C" __global__ __launch_bounds__(1024, 1)
void split(const __grid_constant__ Pieces a, const __grid_constant__ Pieces b, Scales* scales)
{
    __shared__ Word most[2];
    float guesses[2] = {scales->of[0], scales->of[1]};
    Word launch = ld_acquire_gpu(&scales->launches);
    if (threadIdx.x < 2) most[threadIdx.x] = 0;
    __syncthreads();
    #pragma unroll
    for (int which = 0; which < 2; ++which) {
        Word found = __reduce_max_sync(~0u, __float_as_uint(halves(which ? b : a, guesses[which])));
        if (threadIdx.x % 32 == 0) atomicMax(&most[which], found);
    }
    __syncthreads();
    if (threadIdx.x == 0) {  // for its block: all warps at the same two words would wait for each other
        for (int which = 0; which < 2; ++which) atomicMax(&scales->largest[launch % 2][which], most[which]);
        __threadfence();
        if (atomicAdd(&scales->arrived, 1) == gridDim.x - 1) {
            scales->arrived = 0;
            st_release_gpu(&scales->launches, launch + 1);
        } else {
            for (Word turns = 0; ld_acquire_gpu(&scales->launches) == launch;) give_up_after_a_while(turns);
        }
    }
    __syncthreads();
    #pragma unroll
    for (int which = 0; which < 2; ++which) {
        Word* largest = &scales->largest[launch % 2][which];
        float scale = scale_for(ld_acquire_gpu(largest));
        if (scale != guesses[which]) halves(which ? b : a, scale);
        if (blockIdx.x == 0 && threadIdx.x == 0) {
            scales->of[which] = scale;
            scales->largest[(launch + 1) % 2][which] = 0;
        }
    }
}

// ---- From memory to shared memory: by the copy engine, which knows the images from a tensor map ----

// Ask for planes of a tile, from `first_plane` on, `plane` pieces each; and of their second halves, `all_planes`
// further on in memory. What lies outside of an image comes as zeros: the padding. By the lanes of a warp, a plane
// each.
template <int PLANES>
inline void load_planes(const TensorMap* images, int all_planes, int first_plane, int planes, int x, int y, int plane,
                        Piece* to, Word64* barrier)
{
    for (int i = threadIdx.x % 32; i < PARTS * planes; i += 32) {
        int part = i / planes, number = i % planes;
        cp_async_bulk_tensor_3d(to + (part * PLANES + number) * plane, images, 2 * x, y,
                                part * all_planes + first_plane + number, barrier);
    }
}

// The tile of the images, number `tile`, CHUNK channels of it from `first_channel` on. The barrier counts its bytes.
inline void load_images(const Problem& p, const TensorMap* images, int tile, int first_channel, Piece* to,
                        Word64* barrier)
{
    int image = tile / p.bands, y = tile % p.bands * p.rows * STRIDE - p.pad_y;
    int first = (image * p.channels + first_channel) / CHANNELS, all = p.images * p.channels / CHANNELS;
    if constexpr (STRIDE == 1) {
        load_planes<GROUPS>(images, all, first, GROUPS, -p.pad_x, y, p.pieces, to, barrier);
    } else {
        for (int i = threadIdx.x % 32; i < PARTS * GROUPS * PHASES; i += 32) {
            int phase = i % PHASES, group = i / PHASES % GROUPS, part = i / PHASES / GROUPS;
            cp_async_bulk_tensor_4d(to + i / PHASES * PHASES * p.pieces + phase * p.pieces, images, 0,
                                    phase % STRIDE - p.pad_x, y + phase / STRIDE, part * all + first + group, barrier);
        }
    }
}

// ---- What wgmma is told of a matrix: where it begins, and how far apart the groups of 8 are, in k and in m or n ----

inline Word64 descriptor(Word address, Word leading, Word stride)
{
    return (address & 0x3FFFF) / 16 | Word64(leading / 16) << 16 | Word64(stride / 16) << 32;
}

// What wgmma adds to must be in registers before the first of a sequence begins: the compiler shall not put it off.
template <int COUNT>
inline void in_registers(float (&sums)[COUNT])
{
    #pragma unroll
    for (int i = 0; i < COUNT; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

inline void wait(Word64* barrier, Word phase)
{
    for (Word turns = 0; !mbarrier_try_wait(barrier, phase);) give_up_after_a_while(turns);
}
