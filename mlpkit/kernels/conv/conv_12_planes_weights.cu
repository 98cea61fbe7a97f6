// The weight gradient on planes: the sum runs over windows, and a tap is an address again.
//
// needs sm_90a
//
// dW = dy x as a product for each tap: 64 output channels times CHUNK channels, summed over windows. Both lie with
// neighbours in the channels, not in the windows that the sum runs over. For numbers of 16 bits wgmma turns both on the
// way, and for TF32 it can't. Windows that begin between the rows have a dy of zero.
//
// Three warpgroups multiply, and each has TAPS taps: their sums stay in its registers, 96 of each thread with 3 taps and 64
// channels, while bands of rows come and go in a ring. A block has some of the bands, what it has summed goes to memory,
// and a second kernel adds what the blocks have, in their order. So the sum is the same every time.

#include "planes.cuh"

#ifndef TAPS
#define TAPS 3
#endif
#ifndef SLOTS
#define SLOTS 2
#endif

constexpr int MULTIPLIERS = 3, THREADS = 128 * (MULTIPLIERS + 1);  // warpgroups, threads
constexpr int LOAD = 64;                                           // threads that load images, and as many that load dy
constexpr int FEW = 56, MANY = 152;                                // registers
constexpr int SUMS = TAPS * CHUNK / 2;                             // of a thread

static_assert(MODE != 1, "wgmma turns numbers of 16 bits only");

struct Barriers {
    Word64 full[SLOTS], empty[SLOTS];
};

// How a launch divides the work: blocks are numbered by 64 output channels, by CHUNK channels, by groups of taps, and
// slowest by slices of the bands.
struct Division {
    int windows;   // of a band, those between the rows included: a multiple of 16
    int channels;  // of dy
    int heights, widths, tap_groups, slices;
};

extern "C" __global__ __launch_bounds__(THREADS, 1)
void multiply(const __grid_constant__ Problem p, const __grid_constant__ Division d, const void* images, const void* dy,
              float* partial, const float* found, int blocks_found)
{
    extern __shared__ __align__(128) unsigned char shared_bytes[];
    __shared__ Barriers barriers;
    int tiles = d.heights * d.widths * d.tap_groups, tile = blockIdx.x % tiles, slice = blockIdx.x / tiles;
    int height = tile % d.heights, width = tile / d.heights % d.widths, tap_group = tile / (d.heights * d.widths);
    int plane = phases(p) * p.pieces, bands = p.images * p.bands;
    int image_pieces = PARTS * GROUPS * plane, slot_pieces = image_pieces + PARTS * GROUPS_OF_64 * d.windows;
    Piece* ring = reinterpret_cast<Piece*>(shared_bytes);

    if (threadIdx.x == 0) {
        for (int i = 0; i < SLOTS; ++i)
            mbarrier_init<2 * LOAD>(&barriers.full[i]), mbarrier_init<4 * MULTIPLIERS>(&barriers.empty[i]);
        fence_proxy_async();
    }
    __syncthreads();
    int group = __shfl_sync(~0u, threadIdx.x / 128, 0);

    if (group >= MULTIPLIERS) {
        setmaxnreg_dec<FEW>();
        bool of_images = threadIdx.x % 128 < LOAD;
        int thread = threadIdx.x % LOAD, slot = 0, round = 0;
        float scale = CONVERTS ? scale_for(largest_of(found + (of_images ? 0 : blocks_found), blocks_found)) : 1;
        for (int band = slice; band < bands; band += d.slices) {
            wait(&barriers.empty[slot], ~round & 1);
            Piece* to = ring + slot * slot_pieces;
            if (of_images) {
                load_images<LOAD>(p, images, band, width * CHUNK, scale, to, thread);
            } else {
                int first_row = band % p.bands * p.rows, groups = min(8, d.channels / 8 - 8 * height);
                load_tile<LOAD, GROUPS_OF_64>(p, dy, p.windows_y, p.windows_x, d.channels, band / p.bands, height * 64,
                                             groups, d.windows, scale, to + image_pieces, thread, [&](int n) {
                                                 int row = divided_by_pitch(p, n), column = n - row * p.pitch;
                                                 bool inside = row < p.rows && first_row + row < p.windows_y;
                                                 return Pixel{first_row + row, column, inside && column < p.windows_x};
                                             });
            }
            mbarrier_arrive(&barriers.full[slot]);
            if (++slot == SLOTS) slot = 0, ++round;
        }
    } else {
        setmaxnreg_inc<MANY>();
        float sums[TAPS][CHUNK / 2] = {};
        #pragma unroll
        for (int tap = 0; tap < TAPS; ++tap) in_registers(sums[tap]);
        Word shifts[TAPS];
        int first_tap = (tap_group * MULTIPLIERS + group) * TAPS, taps = min(TAPS, p.taps_y * p.taps_x - first_tap);
        #pragma unroll
        for (int tap = 0; tap < TAPS; ++tap) {
            int number = min(first_tap + tap, p.taps_y * p.taps_x - 1);
            shifts[tap] = shift(p, number / p.taps_x, number % p.taps_x) * 16;
        }
        int slot = 0, round = 0, last = 0, k = 0;
        Word image = 0, gradient = 0;
        for (int band = slice; band < bands;) {  // 16 windows at a time
            if (k == 0) {
                image = shared_address(ring + slot * slot_pieces), gradient = image + image_pieces * 16;
                wait(&barriers.full[slot], round & 1);
            }
            wgmma_fence();
            #pragma unroll
            for (int tap = 0; tap < TAPS; ++tap)
                #pragma unroll
                for (int product = PARTS == 2 ? 0 : 2; product < 3; ++product) {
                    Word a = gradient + (product == 0) * GROUPS_OF_64 * d.windows * 16;
                    Word b = image + (product == 1) * GROUPS * plane * 16 + shifts[tap];
                    wgmma<KIND, true, CHUNK>(sums[tap], descriptor(a, 128, d.windows * 16),
                                             descriptor(b, 128, plane * 16));
                }
            wgmma_commit_group();
            wgmma_wait_group<1>();  // those before are done: if they were of another band, its slot may be filled again
            if (k == 0 && threadIdx.x % 32 == 0 && band != slice) mbarrier_arrive(&barriers.empty[last]);
            k += 16, image += 16 * 16, gradient += 16 * 16;
            if (k == d.windows) {
                k = 0, band += d.slices, last = slot;
                if (++slot == SLOTS) slot = 0, ++round;
            }
        }
        wgmma_wait_group<0>();
        float* to = partial + ((size_t)blockIdx.x * MULTIPLIERS + group) * SUMS * 128 + threadIdx.x % 128;
        #pragma unroll
        for (int tap = 0; tap < TAPS; ++tap)
            #pragma unroll
            for (int i = 0; i < CHUNK / 2; ++i)
                if (tap < taps) to[(tap * CHUNK / 2 + i) * 128] = sums[tap][i];
    }
}

// Add what the slices have, in their order, and write it where it belongs: dW (o, c, k, l). A thread has a number.
extern "C" __global__ __launch_bounds__(256)
void add(const __grid_constant__ Problem p, const __grid_constant__ Division d, const float* partial, float* dW, int o_all,
         int c_all, const float* found, int blocks_found)
{
    int tiles = d.heights * d.widths * d.tap_groups, taps = p.taps_y * p.taps_x;
    size_t of_tile = (size_t)MULTIPLIERS * SUMS * 128, all = tiles * of_tile;
    size_t number = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (number >= all) return;
    int tile = number / of_tile, thread = number % 128, in_tile = number % of_tile / 128;
    int tap = tile / (d.heights * d.widths) * MULTIPLIERS * TAPS + in_tile / (CHUNK / 2), i = in_tile % (CHUNK / 2);
    int o = tile % d.heights * 64 + thread / 32 * 16 + thread % 32 / 4 + i % 4 / 2 * 8;
    int c = tile / d.heights % d.widths * CHUNK + i / 4 * 8 + thread % 4 * 2 + i % 2;
    if (tap >= taps || o >= o_all || c >= c_all) return;
    float sum = 0;
    #pragma unroll 8
    for (int slice = 0; slice < d.slices; ++slice) sum += partial[slice * all + number];
    if constexpr (CONVERTS)
        for (int which = 0; which < 2; ++which) {
            float most = 0;
            for (int block = 0; block < blocks_found; ++block) most = fmaxf(most, found[which * blocks_found + block]);
            sum /= scale_for(most);
        }
    dW[((size_t)o * c_all + c) * taps + tap] = sum;
}
