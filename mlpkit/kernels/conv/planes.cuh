// What the kernels on planes share: how images lie, in memory and in shared memory, and how they get from one to the other.
//
// An image is planes of pieces, and a piece is the 16 bytes of one pixel: 8 channels of 16 bits, or 4 of float32. In
// shared memory the pieces of a row follow each other, and rows do, PITCH pieces apart, with zeros where the padding is.
// So the pieces that a tap needs for neighbouring windows are neighbours, too, and those of the next tap lie 16 bytes
// further on. That is what wgmma wants of a matrix without a swizzle: eight rows of 16 bytes, one after the other. To
// go on to the next tap is to add to an address.
//
// With a stride of 2 the pixels of even and odd rows and columns lie apart, in four phases; a tap belongs to one of them.

#include "wgmma.cuh"

#ifndef MODE
#define MODE 3
#endif
// 0: bfloat16. 1: float32, whose lower bits tensor cores leave out (TF32). 2: float32, rounded to halves before. 3: float32,
// made the sum of two halves before: three products of halves.
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

// What a launch is about. The images that are read: channels are a multiple of CHUNK. Padding may be negative.
struct Problem {
    int images, channels, height, width;
    int pad_y, pad_x, stride, taps_y, taps_x;
    int windows_y, windows_x;                                        // of an image
    int to_channels, to_height, to_width, to_step, to_y, to_x;       // window (i, j) is pixel (to_step i + to_y, ...)
    int pitch, rows, bands;                                          // of windows in a tile; of such tiles in an image
    int pieces;                                                      // of a tile in a plane, in each phase
    Word by_pitch;                                                   // 2^32 / pitch, rounded up
};

inline int divided_by_pitch(const Problem& p, int n) { return p.pitch == 1 ? n : __umulhi(n, p.by_pitch); }

inline int phases(const Problem& p) { return p.stride * p.stride; }

// The pieces by which a tap's pixels lie further on than the first tap's.
inline int shift(const Problem& p, int tap_y, int tap_x)
{
    if (p.stride == 1) return tap_y * p.pitch + tap_x;
    return (tap_y % 2 * 2 + tap_x % 2) * p.pieces + tap_y / 2 * p.pitch + tap_x / 2;
}

// Which pixel of its image is piece number n of a phase of the tile that begins at window row `first`?
struct Pixel {
    int at;  // in the image
    bool inside;
};

inline Pixel pixel(const Problem& p, int first, int phase, int n)
{
    int row = divided_by_pitch(p, n), column = n - row * p.pitch;
    int y = (first + row) * p.stride + phase / p.stride - p.pad_y, x = column * p.stride + phase % p.stride - p.pad_x;
    return {y * p.width + x, y >= 0 && y < p.height && x >= 0 && x < p.width};
}

// ---- Two halves for a float32 ----

// Halves reach from 2^-24 to 2^16. A power of two brings the largest number of an array to 2^14 and a little more: what
// is less than 2^-38 of it is then lost, and nothing overflows.
inline float scale_for(float largest)
{
    int exponent = (__float_as_uint(largest) >> 23) - 127;
    return largest > 0 ? __uint_as_float(min(max(127 + 14 - exponent, 1), 254) << 23) : 1;
}

// The largest magnitude of each of two arrays, as `largest` left it, a number a block; all lanes of a warp have it.
inline float largest_of(const float* found, int blocks)
{
    float most = 0;
    for (int i = threadIdx.x % 32; i < blocks; i += 32) most = fmaxf(most, found[i]);
    return __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(most)));
}

// What a product of scaled numbers is to be multiplied by.
inline float unscale_of(const float* found, int blocks)
{
    return 1 / scale_for(largest_of(found, blocks)) / scale_for(largest_of(found + blocks, blocks));
}

extern "C" __global__ __launch_bounds__(512)
void largest(const float4* a, size_t a_fours, const float4* b, size_t b_fours, float* found)
{
    __shared__ float most_of_warp[16];
    for (int which = 0; which < 2; ++which) {
        const float4* from = which ? b : a;
        size_t fours = which ? b_fours : a_fours;
        float most = 0;
        #pragma unroll 4
        for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < fours; i += gridDim.x * blockDim.x) {
            float4 x = from[i];
            most = fmaxf(most, fmaxf(fmaxf(fabsf(x.x), fabsf(x.y)), fmaxf(fabsf(x.z), fabsf(x.w))));
        }
        most = __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(most)));
        __syncthreads();
        if (threadIdx.x % 32 == 0) most_of_warp[threadIdx.x / 32] = most;
        __syncthreads();
        if (threadIdx.x < 32) {
            most = threadIdx.x < blockDim.x / 32 ? most_of_warp[threadIdx.x] : 0;
            most = __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(most)));
            if (threadIdx.x == 0) found[which * gridDim.x + blockIdx.x] = most;
        }
    }
}

// The pieces of an array of float32, 8 numbers each, and where their halves go. Piece number i is two pieces of 4 channels,
// `area` pieces apart. Of every `block` pieces the second halves follow the first ones.
struct Pieces {
    const float4* from;
    Piece* to;
    int all, area, block;
};

extern "C" __global__ __launch_bounds__(512)
void split(const __grid_constant__ Pieces a, const __grid_constant__ Pieces b, const float* found, int blocks_found)
{
    for (int which = 0; which < 2; ++which) {
        const Pieces& p = which ? b : a;
        float scale = scale_for(largest_of(found + which * blocks_found, blocks_found));
        #pragma unroll 2
        for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < p.all; i += gridDim.x * blockDim.x) {
            size_t first = (size_t)i + (size_t)(i / p.area) * p.area;
            float4 numbers[2] = {p.from[first], p.from[first + p.area]};
            const float* x = &numbers[0].x;
            Piece parts[PARTS];
            #pragma unroll
            for (int j = 0; j < 4; ++j) {
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
    }
}

// ---- From memory to shared memory ----

// Copy planes of a tile, `groups` of them from `first_channel` on, `plane` pieces each, and all parts of them one after
// the other. where(n): which pixel piece n is. By so many threads, of which this is number `thread`.
template <int THREADS, int PLANES = GROUPS, typename Where>
inline void load_tile(const void* images, size_t area, int channels, int image, int all_images, int first_channel, int groups,
                      int plane, Piece* to, int thread, Where where)
{
    const Piece* from = static_cast<const Piece*>(images) + ((size_t)image * channels + first_channel) / CHANNELS * area;
    size_t part_size = (size_t)all_images * channels / CHANNELS * area;
    for (int n = thread; n < plane; n += THREADS) {
        auto [at, inside] = where(n);
        inside = inside && image < all_images;
        #pragma unroll
        for (int part = 0; part < PARTS; ++part)
            #pragma unroll 4
            for (int group = 0; group < groups; ++group)
                cp_async<16>(to + (part * PLANES + group) * plane + n,
                             inside ? from + part * part_size + group * area + at : images, inside);
    }
}

// Arrive when this thread's copies are there and wgmma sees them: it reads shared memory by another way than threads do.
inline void arrive_when_copied(Word64* barrier)
{
    cp_async_wait_all();
    fence_proxy_async();
    mbarrier_arrive(barrier);
}

// CHUNK channels of the images, with what the padding needs.
template <int THREADS>
inline void load_images(const Problem& p, const void* images, int tile, int first_channel, Piece* to, int thread)
{
    int image = tile / p.bands, first_row = tile % p.bands * p.rows;
    load_tile<THREADS>(images, (size_t)p.height * p.width, p.channels, image, p.images, first_channel, GROUPS,
                       phases(p) * p.pieces, to, thread, [&](int n) {
                           int phase = p.stride == 1 ? 0 : n / p.pieces;
                           return pixel(p, first_row, phase, n - phase * p.pieces);
                       });
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
