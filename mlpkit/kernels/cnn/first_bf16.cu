// The first convolution on tensor cores, as a kernel by itself: see first_bf16.cuh.
//
// A block has an image, or a part of its patches, and asks for the next one while it multiplies.
// needs sm_80

#include "first_bf16.cuh"

#ifndef PAIRS
#define PAIRS 4  // of groups of eight filters: those that a block's warps have at a time; divides WARPS
#endif
#ifndef ODD
#define ODD 0  // whether the last pair has one group only
#endif

constexpr int THREADS = 256, WARPS = THREADS / 32, STREAMS = WARPS / PAIRS;

struct Sizes {
    int images, channels, groups;
};

// x (images, CHANNELS_IN, IMAGE_HEIGHT, IMAGE_WIDTH). filters: for each group of eight filters, each of the four places
// and each step a lane's two words of B, and bias (8 groups,): of an even number of groups. to: blocked (images,
// groups, pixels, 8). parts: of an image, for a block each. With FIRST_KEEPS filters and bias are a layer's W and b,
// and kept is (images, groups, pixels, 4).
extern "C" __global__ __launch_bounds__(THREADS, 2)
void convolve(const PIXEL* x, const first::Given* filters, const float* bias, Word* to, Sizes s, int parts,
              unsigned char* kept)
{
    extern __shared__ __align__(128) unsigned char shared_bytes[];
    Word* images[2] = {reinterpret_cast<Word*>(shared_bytes), reinterpret_cast<Word*>(shared_bytes) + first::IMAGE};
    const int warp = threadIdx.x / 32, items = s.images * parts;
    constexpr int PLANE = first::ELEMENTS * 4;
    for (int i = threadIdx.x; i < 2 * first::IMAGE; i += THREADS) images[0][i] = 0;
    begin_in_turn();
    for (int begin = 0; begin < (s.groups + ODD) / 2; begin += PAIRS) {
        const int pair = begin + warp % PAIRS;
        first::Resident<THREADS> resident;
        if (blockIdx.x < items) resident.fetch(x, blockIdx.x / parts, threadIdx.x);
        first::Filters mine = {};
        if (2 * pair < s.groups) mine.load(filters, bias, pair, s.channels);
        int buffer = 0;
        __syncthreads();  // zeros are there, and the last image has been read
        for (int item = blockIdx.x; item < items; item += gridDim.x, buffer ^= 1) {
            resident.put(reinterpret_cast<unsigned short*>(images[buffer]), threadIdx.x);
            __syncthreads();  // and the image before this one's has been read by all: its buffer is the next one
            if (item + gridDim.x < items) resident.fetch(x, (item + gridDim.x) / parts, threadIdx.x);
            if (2 * pair >= s.groups) continue;
            const int end = (item % parts + 1) * first::TILES / parts;
            const size_t plane = ((size_t)(item / parts) * s.groups + 2 * pair) * PLANE;
            for (int tile = item % parts * first::TILES / parts + warp / PAIRS; tile < end; tile += STREAMS)
                mine.tile(images[buffer], tile, to + plane, PLANE, ODD && 2 * pair + 1 == s.groups ? 1 : 2,
                          kept + plane);
        }
    }
}
