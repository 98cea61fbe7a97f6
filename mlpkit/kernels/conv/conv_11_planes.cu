// Windows that are never gathered: the image lies in shared memory once, and a tap is an address.
//
// needs sm_90a
//
// y = W x as a product: 64 output channels times all windows of some rows. For each tap, and 16 channels, wgmma takes the
// filters' 64 x 16 numbers and the pixels of WIDTH windows: those lie side by side (see planes.cuh), 16 bytes after those of the
// tap before. No number of the image is copied twice, and no index is computed but where the tile is loaded.
//
// What it costs: between two rows lie the padding's pieces, and windows that begin there are computed and thrown away:
// 2 of 13 with 11 windows in a row of 13 pixels, 1 of 29 with a padding of 1 on 28 pixels.
//
// Blocks stay, one on each multiprocessor, and take one tile after the other. They have three roles: some threads load
// images, one asks for filters, a tap at a time, and warpgroups multiply, each a tile of its own or 64 output channels of its
// own. So the next tile is on its way while this one is multiplied. Loading needs few registers, multiplying many: setmaxnreg
// moves them. Where all filters of a block fit, they come once and stay (RESIDENT).
//
// The input gradient is the same product: dy and filters turned by 180 degrees; for a stride of 2, four times, each with the
// taps that hit the pixels of one phase.

#include "planes.cuh"

#ifndef WIDTH
#define WIDTH 104     // windows of a tile, those between the rows included
#define TILES 2    // that a block has,
#define HEIGHTS 1  // and how many times 64 output channels
#endif
#ifndef BLOCKS
#define BLOCKS 1  // on a multiprocessor
#endif
#ifndef SLOTS
#define SLOTS 4
#endif
#ifndef RESIDENT
#define RESIDENT 0  // whether there is a slot for each tap
#endif
#ifndef PROMOTE
#define PROMOTE 0  // whether each tap's sums are added by the multiprocessor's own float32 adders
#endif

constexpr int MULTIPLIERS = TILES * HEIGHTS, THREADS = 128 * (MULTIPLIERS + 1);  // warpgroups, threads
constexpr int LOAD = 96;  // threads that load images
constexpr int FEW = 64;   // registers of who loads, and of who multiplies
constexpr int AT_START = 65536 / BLOCKS / THREADS / 8 * 8, LEFT = (AT_START * (MULTIPLIERS + 1) - FEW) / MULTIPLIERS / 8 * 8;
constexpr int MANY = LEFT < 232 ? LEFT : 232;
constexpr int FILTER_PIECES = GROUPS * 64;  // of 64 output channels, a tap, CHUNK channels

struct Barriers {
    Word64 full_image[2], empty_image[2], full[SLOTS], empty[SLOTS];
};

// Sums leave as they are stored: 8 lanes have the same window and 8 output channels, in two planes or one.
inline void store(const Problem& p, void* to, int tile, int channel, const float (&sums)[WIDTH / 2], float unscale)
{
    int lane = threadIdx.x % 32, image = tile / p.bands, first_row = tile % p.bands * p.rows;
    int row_of_8 = lane / 4;
    size_t area = (size_t)p.to_height * p.to_width;
    #pragma unroll
    for (int i = 0; i < WIDTH / 8; ++i)
        #pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
            if constexpr (MODE == 0) {  // lanes 4 apart swap, so that each has two channels of one window
                if (pair) continue;
            }
            int odd = MODE == 0 ? row_of_8 % 2 : pair;
            int n = 8 * i + lane % 4 * 2 + odd, y = divided_by_pitch(p, n), x = n - y * p.pitch;
            bool inside = y < p.rows && first_row + y < p.windows_y && x < p.windows_x && image < p.images;
            size_t at = (size_t)(p.to_step * (first_row + y) + p.to_y) * p.to_width + p.to_step * x + p.to_x;
            #pragma unroll
            for (int half = 0; half < 2; ++half) {
                int first = channel + 8 * half;  // of 8
                if constexpr (MODE == 0) {
                    float first_of_two = sums[4 * i + 2 * half], second_of_two = sums[4 * i + 2 * half + 1];
                    float mine = odd ? second_of_two : first_of_two, other = odd ? first_of_two : second_of_two;
                    other = __shfl_xor_sync(~0u, other, 4);
                    Word both = odd ? cvt_rn_bf16(other) | Word(cvt_rn_bf16(mine)) << 16
                                    : cvt_rn_bf16(mine) | Word(cvt_rn_bf16(other)) << 16;
                    Word* words = static_cast<Word*>(to);
                    if (inside && first < p.to_channels)
                        words[(((size_t)image * p.to_channels + first) / 8 * area + at) * 4 + row_of_8 / 2] = both;
                } else {
                    float* numbers = static_cast<float*>(to);
                    int o = first + row_of_8;
                    if (inside && o < p.to_channels)
                        numbers[(((size_t)image * p.to_channels + o) / 4 * area + at) * 4 + o % 4] =
                            sums[4 * i + 2 * half + pair] * unscale;
                }
            }
        }
}

extern "C" __global__ __launch_bounds__(THREADS, BLOCKS)
void convolve(const __grid_constant__ Problem p, const void* images, const void* filters, void* to, const float* found,
              int blocks_found)
{
    extern __shared__ __align__(128) unsigned char shared_bytes[];
    __shared__ Barriers barriers;
    int taps = p.taps_y * p.taps_x, chunks = p.channels / CHUNK, stages = chunks * taps;
    int heights = (p.to_channels + 64 * HEIGHTS - 1) / (64 * HEIGHTS);
    int items = (p.images * p.bands + TILES - 1) / TILES * heights;  // of which a block takes each gridDim.x-th
    int buffers = chunks > 1 || items > gridDim.x ? 2 : 1;
    int plane = phases(p) * p.pieces, tile_pieces = PARTS * GROUPS * plane;
    Piece* image_ring = reinterpret_cast<Piece*>(shared_bytes);
    Piece* filter_ring = image_ring + buffers * TILES * tile_pieces;

    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; ++i)
            mbarrier_init<LOAD>(&barriers.full_image[i]), mbarrier_init<4 * MULTIPLIERS>(&barriers.empty_image[i]);
        for (int i = 0; i < SLOTS; ++i) mbarrier_init<1>(&barriers.full[i]), mbarrier_init<4 * MULTIPLIERS>(&barriers.empty[i]);
        fence_proxy_async();
    }
    __syncthreads();
    int group = __shfl_sync(~0u, threadIdx.x / 128, 0);

    if (group == MULTIPLIERS) {
        setmaxnreg_dec<FEW>();
        int thread = threadIdx.x % 128;
        if (thread < LOAD) {  // the images
            int buffer = 0, round = 0;
            for (int item = blockIdx.x; item < items; item += gridDim.x)
                for (int chunk = 0; chunk < chunks; ++chunk) {
                    wait(&barriers.empty_image[buffer], ~round & 1);
                    for (int tile = 0; tile < TILES; ++tile)
                        load_images<LOAD>(p, images, item / heights * TILES + tile, chunk * CHUNK,
                                          image_ring + (buffer * TILES + tile) * tile_pieces, thread);
                    arrive_when_copied(&barriers.full_image[buffer]);
                    if (++buffer == buffers) buffer = 0, ++round;
                }
        } else if (thread == LOAD) {  // the filters
            int slot = 0, round = 0;
            for (int item = blockIdx.x; item < (RESIDENT ? blockIdx.x + 1 : items); item += gridDim.x)
                for (int stage = 0; stage < stages; ++stage) {
                    wait(&barriers.empty[slot], ~round & 1);
                    mbarrier_arrive_expect_tx(&barriers.full[slot], HEIGHTS * PARTS * FILTER_PIECES * sizeof(Piece));
                    for (int i = 0; i < HEIGHTS; ++i) {
                        size_t from = ((size_t)(item % heights * HEIGHTS + i) * stages + stage) * PARTS * FILTER_PIECES;
                        cp_async_bulk(filter_ring + (slot * HEIGHTS + i) * PARTS * FILTER_PIECES,
                                      static_cast<const Piece*>(filters) + from, PARTS * FILTER_PIECES * sizeof(Piece),
                                      &barriers.full[slot]);
                    }
                    if (++slot == SLOTS) slot = 0, ++round;
                }
        }
    } else {  // the products
        setmaxnreg_inc<MANY>();
        int tile = group % TILES, height = group / TILES, lane = threadIdx.x % 32;
        float unscale = SCALED ? unscale_of(found, blocks_found) : 1;
        int slot = 0, round = 0, last = 0, buffer = 0, image_round = 0;
        for (int item = blockIdx.x; item < items; item += gridDim.x) {
            float sums[WIDTH / 2] = {};
            in_registers(sums);
            float total[PROMOTE ? WIDTH / 2 : 1] = {};
            int tap_y = 0, tap_x = 0;
            Word image = 0;
            for (int stage = 0; stage < stages; ++stage) {
                bool new_chunk = tap_y == 0 && tap_x == 0;
                if (new_chunk) {
                    if (stage > 0 && ++buffer == buffers) buffer = 0, ++image_round;
                    image = shared_address(image_ring + (buffer * TILES + tile) * tile_pieces);
                    wait(&barriers.full_image[buffer], image_round & 1);
                }
                Word pixels = image + shift(p, tap_y, tap_x) * 16;
                Word filter = shared_address(filter_ring + (slot * HEIGHTS + height) * PARTS * FILTER_PIECES);
                wait(&barriers.full[slot], round & 1);
                wgmma_fence();
                #pragma unroll
                for (int product = PARTS == 2 ? 0 : 2; product < 3; ++product)  // low times high, high times low
                    #pragma unroll
                    for (int k = 0; k < GROUPS; k += 2) {
                        Word a = filter + ((product == 0) * GROUPS + k) * 64 * 16;
                        Word b = pixels + ((product == 1) * GROUPS + k) * plane * 16;
                        wgmma<KIND, false, WIDTH>(sums, descriptor(a, 64 * 16, 128), descriptor(b, plane * 16, 128));
                    }
                wgmma_commit_group();
                if constexpr (PROMOTE) {
                    wgmma_wait_group<0>();
                    #pragma unroll
                    for (int i = 0; i < WIDTH / 2; ++i) total[i] += sums[i], sums[i] = 0;
                    last = slot;
                } else {
                    wgmma_wait_group<1>();  // the tap before is done: its slot may be filled again
                }
                if (!RESIDENT && lane == 0 && (PROMOTE || stage > 0)) mbarrier_arrive(&barriers.empty[last]);
                if (lane == 0 && new_chunk && stage > 0) mbarrier_arrive(&barriers.empty_image[(buffer + 1) % buffers]);
                last = slot;
                if (++slot == SLOTS) slot = 0, round += !RESIDENT;
                if (++tap_x == p.taps_x) tap_x = 0, ++tap_y;
                if (tap_y == p.taps_y) tap_y = 0;
            }
            wgmma_wait_group<0>();
            if (!RESIDENT && !PROMOTE && lane == 0) mbarrier_arrive(&barriers.empty[last]);
            if (lane == 0) mbarrier_arrive(&barriers.empty_image[buffer]);
            if (++buffer == buffers) buffer = 0, ++image_round;
            if constexpr (PROMOTE) {
                #pragma unroll
                for (int i = 0; i < WIDTH / 2; ++i) sums[i] = total[i];
            }
            int channel = (item % heights * HEIGHTS + height) * 64 + threadIdx.x / 32 % 4 * 16;
            store(p, to, item / heights * TILES + tile, channel, sums, unscale);
        }
    }
}
