// Two convolutions, each with bias, pool and ReLU, in one kernel: what the first one makes never leaves the chip.
//
// needs sm_90a
//
// The second convolution is that of conv_11_blocked.cu, in bfloat16, with all of its filters resident in shared
// memory. But TMA does not bring its images: STEMS producer warps compute them there, by first_bf16.cuh, and while one
// image is multiplied, they make the next one. So a block has an image, whole, and 64 or 128 of the filters. Rows are
// of an even length, so that the two columns of a pool are in one lane's registers, and its rows a shuffle apart.

#ifndef FIRST_PITCH
#define FIRST_PITCH 14
#endif
#include "first_bf16.cuh"
#include "blocked.cuh"
#include "between.cuh"

#ifndef WIDTH
#define WIDTH 144  // windows of an image, those between the rows included
#endif
#ifndef HEIGHTS
#define HEIGHTS 1  // how many times 64 output channels a block has
#endif
#ifndef SIDE_TAPS
#define SIDE_TAPS 3  // of the second convolution, in a row
#endif
#ifndef STEMS
#define STEMS 4  // warps that make images: a multiple of the pairs of groups, or a part of it
#endif

constexpr int MULTIPLIERS = HEIGHTS, THREADS = 128 * MULTIPLIERS + 32 * STEMS + 32, STEM_THREADS = 32 * STEMS;
constexpr int TAPS = SIDE_TAPS * SIDE_TAPS;
constexpr int FILTER_PIECES = GROUPS * 64;  // of 64 output channels and a tap
constexpr int PLANE = (first::ELEMENTS + 7) / 8 * 8, PAIRS_OF_GROUPS = GROUPS / 2;

struct Stem {
    const PIXEL* x;
    const first::Pair* filters;
    const float* bias;
};

struct Barriers {
    Word64 full_image[2], empty_image[2], full;
};

// Of the windows in a lane's registers the next row's lie FAR pairs of windows further on: in this lane, or another.
constexpr int FAR = FIRST_PITCH / 2, FAR_LANES = FAR % 4, FAR_PIECES = FAR / 4;
static_assert(POOL == 2 && FIRST_PITCH % 2 == 0, "a pool's two columns are in one lane");

// Whether a piece of four pairs of windows has some that a pool begins with.
constexpr bool begins(int piece)
{
    for (int pair = 4 * piece; pair < 4 * piece + 4; ++pair)
        if (pair % (2 * FAR) < ACROSS && pair / (2 * FAR) < DOWN) return true;
    return false;
}

// Pool, bias, ReLU, and out: neither takes a trip through shared memory. to: bfloat16, (images, groups, windows, 8).
inline void pooled(const float (&add)[2], const Sizes& s, unsigned short* to, int image, int channel,
                   const float (&sums)[WIDTH / 2])
{
    const int lane = threadIdx.x % 32, l = lane % 4, from = lane / 4 * 4 + (l + FAR_LANES) % 4;
    #pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int group = channel / 8 + half;
        if (group >= s.groups) return;
        unsigned short* plane = to + ((size_t)image * s.groups + group) * WINDOWS * 8 + lane / 4;
        const auto wider = [&](int piece) {
            return piece < WIDTH / 8 ? max_nan(sums[4 * piece + 2 * half], sums[4 * piece + 2 * half + 1]) : 0;
        };
        #pragma unroll
        for (int i = 0; i < WIDTH / 8; ++i) {
            if (!begins(i)) continue;
            const float send = l < FAR_LANES ? wider(i + FAR_PIECES + 1) : wider(i + FAR_PIECES);
            const float best = max_nan(wider(i), __shfl_sync(~0u, send, from)) + add[half];
            const int pair = 4 * i + l, y = pair / (2 * FAR), x = pair % (2 * FAR);
            if (x < ACROSS && y < DOWN) plane[(y * ACROSS + x) * 8] = cvt_rn_bf16(RELU ? max_nan(best, 0) : best);
        }
    }
}

constexpr int IMAGE_PIECES = GROUPS * PLANE;

// What lies where in shared memory: two images in channel blocks, as wgmma reads them, all filters [tap][height], and
// two images as pixels: double buffering.
struct Shared {
    Piece *image_ring, *filters;
    Word* pixels;

    __device__ Shared(unsigned char* bytes)
    {
        image_ring = reinterpret_cast<Piece*>(bytes);
        filters = image_ring + 2 * IMAGE_PIECES;
        pixels = reinterpret_cast<Word*>(filters + TAPS * HEIGHTS * FILTER_PIECES);
    }
};

// The prologue: barriers, and zeros around the pixels. By the block.
static __device__ __forceinline__ void set_up(Barriers& barriers, Word* pixels)
{
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; ++i)
            mbarrier_init<STEMS>(&barriers.full_image[i]), mbarrier_init<4 * MULTIPLIERS>(&barriers.empty_image[i]);
        mbarrier_init<1>(&barriers.full);
        fence_proxy_async();
    }
    for (int i = threadIdx.x; i < 2 * first::IMAGE; i += THREADS) pixels[i] = 0;
    __syncthreads();
}

// The producer warp of the filters: gridDim.x is a multiple of heights, so they come once and stay resident.
static __device__ __forceinline__ void produce_filters(const void* filters, const Shared shared, Barriers& barriers,
                                                       int heights, int lane)
{
    const int height = blockIdx.x % heights;
    if (lane == 0) mbarrier_arrive_expect_tx(&barriers.full, TAPS * HEIGHTS * FILTER_PIECES * sizeof(Piece));
    __syncwarp();
    for (int i = lane; i < TAPS * HEIGHTS; i += 32) {
        const size_t from = (size_t)(height * HEIGHTS + i % HEIGHTS) * TAPS + i / HEIGHTS;
        cp_async_bulk(shared.filters + i * FILTER_PIECES, static_cast<const Piece*>(filters) + from * FILTER_PIECES,
                      FILTER_PIECES * sizeof(Piece), &barriers.full);
    }
}

// The producer warps of the images, STEMS of them: they compute them, by the first convolution. The pixels of the next
// image are on their way to registers meanwhile.
static __device__ __forceinline__ void produce_images(const Stem& stem, const Shared shared, Barriers& barriers,
                                                      int heights, int items, int warp, int lane)
{
    const int stem_warp = warp - 4 * MULTIPLIERS, thread = threadIdx.x - 128 * MULTIPLIERS;
    constexpr int TOGETHER = STEMS < PAIRS_OF_GROUPS ? STEMS : PAIRS_OF_GROUPS, STREAMS = STEMS / TOGETHER;
    constexpr int ROUNDS = (PAIRS_OF_GROUPS + TOGETHER - 1) / TOGETHER;
    first::Resident<STEM_THREADS> next;
    if (blockIdx.x < items) next.fetch(stem.x, blockIdx.x / heights, thread);
    first::Filters mine[ROUNDS] = {};
    #pragma unroll
    for (int i = 0; i < ROUNDS; ++i) {
        const int pair = i * TOGETHER + stem_warp % TOGETHER;
        if (pair < PAIRS_OF_GROUPS) mine[i].load(stem.filters, stem.bias, pair);
    }
    int buffer = 0, round = 0;
    for (int item = blockIdx.x; item < items; item += gridDim.x) {
        Word* image = shared.pixels + buffer * first::IMAGE;
        next.put(reinterpret_cast<unsigned short*>(image), thread);
        bar_sync<STEM_THREADS>(1);  // it is there, and the one before it has been read by all
        if (item + gridDim.x < items) next.fetch(stem.x, (item + gridDim.x) / heights, thread);
        wait(&barriers.empty_image[buffer], ~round & 1);
        Word* planes = reinterpret_cast<Word*>(shared.image_ring + buffer * IMAGE_PIECES);
        #pragma unroll
        for (int i = 0; i < ROUNDS; ++i) {
            const int pair = i * TOGETHER + stem_warp % TOGETHER;
            if (pair < PAIRS_OF_GROUPS)
                for (int tile = stem_warp / TOGETHER; tile < first::TILES; tile += STREAMS)
                    mine[i].tile(image, tile, planes + 2 * pair * PLANE * 4, PLANE * 4);
        }
        fence_proxy_async();  // wgmma will read what this thread wrote
        __syncwarp();
        if (lane == 0) mbarrier_arrive(&barriers.full_image[buffer]);
        if (++buffer == 2) buffer = 0, ++round;
    }
}

// A consumer warpgroup: 64 output channels. For each image the main loop over the taps, and the epilogue, `pooled`.
static __device__ __forceinline__ void consume(const float* bias, unsigned short* to, const Sizes& s,
                                               const Shared shared, Barriers& barriers, int heights, int items,
                                               int warp, int lane)
{
    const int height = warp / 4;
    int buffer = 0, round = 0;
    const int channel = (blockIdx.x % heights * HEIGHTS + height) * 64 + warp % 4 * 16;
    float add[2];
    #pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int mine = channel + 8 * half + lane / 4;
        add[half] = bias && mine < s.channels ? bias[mine] : 0;
    }
    wait(&barriers.full, 0);
    for (int item = blockIdx.x; item < items; item += gridDim.x) {
        float sums[WIDTH / 2] = {};  // the accumulators
        in_registers(sums);
        const Word image = shared_address(shared.image_ring + buffer * IMAGE_PIECES);
        wait(&barriers.full_image[buffer], round & 1);
        wgmma_fence();
        #pragma unroll 1
        for (int tap = 0; tap < TAPS; ++tap) {
            const Word at = image + (tap / SIDE_TAPS * FIRST_PITCH + tap % SIDE_TAPS) * 16;
            const Word filter = shared_address(shared.filters + (tap * HEIGHTS + height) * FILTER_PIECES);
            #pragma unroll
            for (int k = 0; k < GROUPS; k += 2)
                wgmma<BF16, false, WIDTH>(sums, descriptor(filter + k * 64 * 16, 64 * 16, 128),
                                          descriptor(at + k * PLANE * 16, PLANE * 16, 128));
            wgmma_commit_group();
        }
        wgmma_wait_group<0>();
        if (lane == 0) mbarrier_arrive(&barriers.empty_image[buffer]);
        if (++buffer == 2) buffer = 0, ++round;
        pooled(add, s, to, item / heights, channel, sums);
    }
}

// Warp specialization: consumer warpgroups, then producer warps of the images, and the one of the filters.
// stem: the images and the first convolution, of which GROUPS groups come out. filters: of the second one, as
// `blocked.Filters` makes them. bias: (channels,) or null. to: (images, groups, windows, 8). s: of the result.
extern "C" __global__ __launch_bounds__(THREADS, 1)
void convolve(const __grid_constant__ Stem stem, const void* filters, const float* bias, unsigned short* to, Sizes s)
{
    extern __shared__ __align__(128) unsigned char shared_bytes[];
    __shared__ Barriers barriers;
    const int heights = (s.groups * 8 + 64 * HEIGHTS - 1) / (64 * HEIGHTS), items = s.images * heights;
    const Shared shared(shared_bytes);
    set_up(barriers, shared.pixels);
    launch_dependents();
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    if (warp == 4 * MULTIPLIERS + STEMS) produce_filters(filters, shared, barriers, heights, lane);
    else if (warp >= 4 * MULTIPLIERS) produce_images(stem, shared, barriers, heights, items, warp, lane);
    else consume(bias, to, s, shared, barriers, heights, items, warp, lane);
}
