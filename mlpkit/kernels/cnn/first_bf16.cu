// The first convolution on tensor cores, with bias, pool and ReLU: what a window sees is a row of a matrix.
//
// The sums of 2 x 2 neighbours see SIDE x SIDE pixels: with filters of 3 x 3 that is 16, as many as an instruction
// multiplies. So A is 16 such patches, and B eight filters, four times: for each of the four sums at another place in
// the patch, with zeros around. Then the pool is a maximum of registers. A patch begins in an even column: two pixels
// in bfloat16 are a word, and a lane takes its words from the image as it lies in shared memory. Bytes, 0 to 255, are
// exact in bfloat16.

#include "ptx.cuh"

#ifndef PIXEL
#define PIXEL unsigned char
#endif
#ifndef CHANNELS_IN
#define CHANNELS_IN 1
#endif
#ifndef KERNEL
#define KERNEL 3
#endif
#ifndef PADDING
#define PADDING 0
#endif
#ifndef POOL
#define POOL 2  // or 1
#endif
#ifndef RELU
#define RELU 1
#endif
#ifndef IMAGE_HEIGHT
#define IMAGE_HEIGHT 28
#define IMAGE_WIDTH 28
#define TALL_Z 26  // of the sums that are asked for
#define WIDE_Z 26
#endif
#ifndef PAIRS
#define PAIRS 4  // of groups of eight filters: those that a block's warps have at a time; divides WARPS
#endif

constexpr int THREADS = 256, WARPS = THREADS / 32, STREAMS = WARPS / PAIRS;
constexpr int SIDE = KERNEL + 1, ACROSS_SIDE = (SIDE + 1) / 2;         // rows of a patch, and words of a row
constexpr int WORDS = CHANNELS_IN * SIDE * ACROSS_SIDE, STEPS = (WORDS + 7) / 8;
constexpr int DOWN = (TALL_Z + 1) / 2, ACROSS = (WIDE_Z + 1) / 2, PATCHES = DOWN * ACROSS, TILES = (PATCHES + 15) / 16;
constexpr int TALL = 2 * DOWN + KERNEL - 1, WIDE = ACROSS + ACROSS_SIDE - 1;  // of a channel in shared memory: in words
constexpr int IMAGE = CHANNELS_IN * TALL * WIDE, AREA = IMAGE_HEIGHT * IMAGE_WIDTH;
constexpr int EACH = (CHANNELS_IN * AREA + THREADS - 1) / THREADS;  // pixels of a thread

// What a lane has of B: inputs 2 (lane % 4) and the next one, and those 8 further on.
struct alignas(8) Pair {
    Word first, second;
};

struct Sizes {
    int images, channels, groups;
};

// What is held of the next image, until there is room for it.
struct Held {
    PIXEL pixels[EACH];

    __device__ void fetch(const PIXEL* x, int image)
    {
        #pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const int at = i * THREADS + threadIdx.x;
            if (at < CHANNELS_IN * AREA) pixels[i] = x[(size_t)image * (CHANNELS_IN * AREA) + at];
        }
    }

    __device__ void put(unsigned short* image) const
    {
        #pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const int at = i * THREADS + threadIdx.x, plane = at / AREA;
            const int row = at % AREA / IMAGE_WIDTH + PADDING, column = at % IMAGE_WIDTH + PADDING;
            if (plane < CHANNELS_IN && row < TALL && column < 2 * WIDE)
                image[(plane * TALL + row) * (2 * WIDE) + column] = cvt_rn_bf16((float)pixels[i]);
        }
    }
};

// What a patch's word number `word` is before it: rows and channels lie apart in the image.
__device__ int offset(int word)
{
    const int row = word / ACROSS_SIDE;
    return word < WORDS ? (row / SIDE * TALL + row % SIDE) * WIDE + word % ACROSS_SIDE : 0;
}

__device__ int corner(int patch) { return patch / ACROSS * 2 * WIDE + patch % ACROSS; }

// Write two filters' sums of a patch. to: words of planes, of a group.
__device__ void store(const float (&sums)[4][4], int half, float2 bias, Word* to, int patch)
{
    const auto finish = [&](float x, float y) {
        x += bias.x, y += bias.y;
        return RELU ? cvt_rn_bf16x2(max_nan(x, 0), max_nan(y, 0)) : cvt_rn_bf16x2(x, y);
    };
    const int lane = threadIdx.x % 4;
    if (POOL == 2) {
        float x = sums[0][half], y = sums[0][half + 1];
        #pragma unroll
        for (int place = 1; place < 4; ++place)
            x = max_nan(x, sums[place][half]), y = max_nan(y, sums[place][half + 1]);
        if (patch < PATCHES) to[patch * 4 + lane] = finish(x, y);
    } else {
        #pragma unroll
        for (int place = 0; place < 4; ++place) {
            const int row = patch / ACROSS * 2 + place / 2, column = patch % ACROSS * 2 + place % 2;
            if (patch < PATCHES && row < TALL_Z && column < WIDE_Z)
                to[(row * WIDE_Z + column) * 4 + lane] = finish(sums[place][half], sums[place][half + 1]);
        }
    }
}

// x (images, CHANNELS_IN, IMAGE_HEIGHT, IMAGE_WIDTH). filters: for each group of eight filters, each of the four places
// and each step a lane's two words of B. bias (8 groups,). to: planes (images, groups, pixels, 8). parts: of an image,
// for a block each.
extern "C" __global__ __launch_bounds__(THREADS, 2)
void convolve(const PIXEL* x, const Pair* filters, const float* bias, Word* to, Sizes s, int parts)
{
    extern __shared__ __align__(128) unsigned char shared_bytes[];
    Word* images[2] = {reinterpret_cast<Word*>(shared_bytes), reinterpret_cast<Word*>(shared_bytes) + IMAGE};
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, items = s.images * parts;
    constexpr int NUMBERS = POOL == 2 ? PATCHES : TALL_Z * WIDE_Z;  // of a plane
    for (int i = threadIdx.x; i < 2 * IMAGE; i += THREADS) images[0][i] = 0;
    int offsets[STEPS][2];
    #pragma unroll
    for (int i = 0; i < 2 * STEPS; ++i) offsets[i / 2][i % 2] = offset(4 * i + lane % 4);
    for (int first = 0; first < s.groups / 2; first += PAIRS) {
        const int pair = first + warp % PAIRS;
        Held held;
        if (blockIdx.x < items) held.fetch(x, blockIdx.x / parts);
        Pair b[2][4][STEPS] = {};
        float2 add[2] = {};
        if (2 * pair < s.groups) {
            #pragma unroll
            for (int i = 0; i < 8 * STEPS; ++i)
                b[i / STEPS / 4][i / STEPS % 4][i % STEPS] = filters[(size_t)(pair * 8 * STEPS + i) * 32 + lane];
            #pragma unroll
            for (int g = 0; g < 2; ++g) add[g] = reinterpret_cast<const float2*>(bias)[(2 * pair + g) * 4 + lane % 4];
        }
        int buffer = 0;
        __syncthreads();  // zeros are there, and the last image has been read
        for (int item = blockIdx.x; item < items; item += gridDim.x, buffer ^= 1) {
            held.put(reinterpret_cast<unsigned short*>(images[buffer]));
            __syncthreads();  // and the image before this one's has been read by all: its buffer is the next one
            if (item + gridDim.x < items) held.fetch(x, (item + gridDim.x) / parts);
            if (2 * pair >= s.groups) continue;
            const int end = (item % parts + 1) * TILES / parts;
            for (int tile = item % parts * TILES / parts + warp / PAIRS; tile < end; tile += STREAMS) {
                const int one = tile * 16 + lane / 4, two = one + 8;
                const Word* at_one = images[buffer] + corner(min(one, PATCHES - 1));
                const Word* at_two = images[buffer] + corner(min(two, PATCHES - 1));
                Word a[STEPS][4];
                #pragma unroll
                for (int i = 0; i < 4 * STEPS; ++i)
                    a[i / 4][i % 4] = (i % 2 ? at_two : at_one)[offsets[i / 4][i % 4 / 2]];
                #pragma unroll
                for (int g = 0; g < 2; ++g) {
                    float sums[4][4] = {};
                    #pragma unroll
                    for (int step = 0; step < STEPS; ++step)
                        #pragma unroll
                        for (int place = 0; place < 4; ++place)
                            mma_m16n8k16_bf16(sums[place], a[step], b[g][place][step].first, b[g][place][step].second);
                    Word* plane = to + ((size_t)(item / parts) * s.groups + 2 * pair + g) * NUMBERS * 4;
                    store(sums, 0, add[g], plane, one);
                    store(sums, 2, add[g], plane, two);
                }
            }
        }
    }
}
