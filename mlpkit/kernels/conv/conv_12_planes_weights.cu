// The weight gradient on planes: the sum runs over windows, and a tap is an address again.
//
// needs sm_90a
//
// dW = dy x as a product for each tap: 64 output channels times CHUNK channels, summed over windows. Both lie with
// neighbours in the channels, not in the windows that the sum runs over. For numbers of 16 bits wgmma turns both on the
// way, and for TF32 it can't. Windows that begin between the rows have a dy of zero.
//
// Three warpgroups multiply, and each has TAPS taps: their sums stay in its registers, 96 of each thread with 3 taps and 64
// channels, while bands of rows come and go in a ring. A block has some of the bands. What the blocks of a cluster have
// summed they add in their shared memories, each a part of it; that goes to memory, and a second kernel adds what the
// clusters have. All of this in the order of their numbers: the sum is the same every time.

#include "planes.cuh"

#ifndef TAPS
#define TAPS 3
#endif
#ifndef SLOTS
#define SLOTS 2
#endif
#ifndef CLUSTER
#define CLUSTER 4  // blocks
#endif

constexpr int MULTIPLIERS = 3, THREADS = 128 * (MULTIPLIERS + 1);  // warpgroups, threads
constexpr int LOAD = 64;                                           // threads that load images, and as many that load dy
constexpr int FEW = 56, MANY = 152;                                // registers
constexpr int SUMS = TAPS * CHUNK / 2;                             // of a thread
constexpr int NUMBERS = SUMS * 128 * MULTIPLIERS;                  // of a block

static_assert(MODE != 1, "wgmma turns numbers of 16 bits only");

struct Barriers {
    Word64 full[SLOTS], empty[SLOTS];
};

// How a launch divides the work: blocks are numbered by slices of the bands, a multiple of CLUSTER, then by 64 output
// channels, by CHUNK channels, and by groups of taps.
struct Division {
    int windows;   // of a band, those between the rows included: a multiple of 16
    int channels;  // of dy
    int heights, widths, tap_groups, slices;
};

extern "C" __global__ __launch_bounds__(THREADS, 1) __cluster_dims__(CLUSTER)
void multiply(const __grid_constant__ Problem p, const __grid_constant__ Division d, const void* images, const void* dy,
              float* partial)
{
    extern __shared__ __align__(128) unsigned char shared_bytes[];
    __shared__ Barriers barriers;
    int tile = blockIdx.x / d.slices, slice = blockIdx.x % d.slices;
    int height = tile % d.heights, width = tile / d.heights % d.widths, tap_group = tile / (d.heights * d.widths);
    int plane = phases(p) * p.pieces, bands = p.images * p.bands;
    int image_pieces = PARTS * GROUPS * plane, slot_pieces = image_pieces + PARTS * 8 * d.windows;
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
        for (int band = slice; band < bands; band += d.slices) {
            wait(&barriers.empty[slot], ~round & 1);
            Piece* to = ring + slot * slot_pieces;
            if (of_images) {
                load_images<LOAD>(p, images, band, width * CHUNK, to, thread);
            } else {
                int first_row = band % p.bands * p.rows, groups = min(8, d.channels / 8 - 8 * height);
                load_tile<LOAD, 8>(dy, (size_t)p.windows_y * p.windows_x, d.channels, band / p.bands, p.images, height * 64,
                                   groups, d.windows, to + image_pieces, thread, [&](int n) {
                                       int row = divided_by_pitch(p, n), column = n - row * p.pitch, y = first_row + row;
                                       bool inside = row < p.rows && y < p.windows_y && column < p.windows_x;
                                       return Pixel{y * p.windows_x + column, inside};
                                   });
            }
            arrive_when_copied(&barriers.full[slot]);
            if (++slot == SLOTS) slot = 0, ++round;
        }
    } else {
        setmaxnreg_inc<MANY>();
        float sums[TAPS][CHUNK / 2] = {};
        #pragma unroll
        for (int tap = 0; tap < TAPS; ++tap) in_registers(sums[tap]);
        Word shifts[TAPS];
        int first_tap = (tap_group * MULTIPLIERS + group) * TAPS;
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
                    Word a = gradient + (product == 0) * 8 * d.windows * 16;
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
        bar_sync<128 * MULTIPLIERS>(1);  // nobody multiplies from the ring any more
        float* mine = reinterpret_cast<float*>(shared_bytes) + threadIdx.x;
        #pragma unroll
        for (int tap = 0; tap < TAPS; ++tap)
            #pragma unroll
            for (int i = 0; i < CHUNK / 2; ++i) mine[(tap * CHUNK / 2 + i) * 128 * MULTIPLIERS] = sums[tap][i];
    }

    barrier_cluster_arrive();
    barrier_cluster_wait();
    constexpr int SHARE = NUMBERS / 4 / CLUSTER;  // float4s of a block
    int rank = blockIdx.x % CLUSTER;
    float4* to = reinterpret_cast<float4*>(partial) + ((size_t)(slice / CLUSTER) * gridDim.x / d.slices + tile) * (NUMBERS / 4);
    Word shared = shared_address(shared_bytes);
    for (int i = rank * SHARE + threadIdx.x; i < (rank + 1) * SHARE; i += THREADS) {
        float4 sum = {};
        #pragma unroll
        for (int other = 0; other < CLUSTER; ++other) {
            float4 found = ld_shared_cluster(mapa(shared + i * 16, other));
            sum.x += found.x, sum.y += found.y, sum.z += found.z, sum.w += found.w;
        }
        to[i] = sum;
    }
    barrier_cluster_arrive();  // nobody leaves while others read its memory
    barrier_cluster_wait();
}

// Add what the clusters have, in their order, and write it where it belongs: dW (o, c, k, l). A thread has a number.
extern "C" __global__ __launch_bounds__(256)
void add(const __grid_constant__ Problem p, const __grid_constant__ Division d, const float* partial, float* dW, int o_all,
         int c_all, const float* found, int blocks_found)
{
    int tiles = d.heights * d.widths * d.tap_groups, taps = p.taps_y * p.taps_x, all = tiles * NUMBERS;
    int number = blockIdx.x * blockDim.x + threadIdx.x;
    float unscale = SCALED ? unscale_of(found, blocks_found) : 1;
    if (number >= all) return;
    int tile = number / NUMBERS, thread = number % (128 * MULTIPLIERS), sum_of_thread = number % NUMBERS / (128 * MULTIPLIERS);
    int tap = (tile / (d.heights * d.widths) * MULTIPLIERS + thread / 128) * TAPS + sum_of_thread / (CHUNK / 2);
    int i = sum_of_thread % (CHUNK / 2);
    int o = tile % d.heights * 64 + thread / 32 % 4 * 16 + thread % 32 / 4 + i % 4 / 2 * 8;
    int c = tile / d.heights % d.widths * CHUNK + i / 4 * 8 + thread % 4 * 2 + i % 2;
    if (tap >= taps || o >= o_all || c >= c_all) return;
    float sum = 0;
    #pragma unroll 8
    for (int cluster = 0; cluster < d.slices / CLUSTER; ++cluster) sum += partial[(size_t)cluster * all + number];
    sum *= unscale;
    dW[((size_t)o * c_all + c) * taps + tap] = sum;
}
