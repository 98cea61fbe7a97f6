// The weight gradient in the channel-blocked layout: the sum runs over windows, and a tap is an address again.
//
// needs sm_90a
//
// dW = dy x as a product for each tap: 64 output channels times CHUNK channels, summed over windows. Both lie with
// neighbours in the channels, not in the windows that the sum runs over. Elements of 16 bits are transposed on the way:
// x by wgmma, and dy, which all taps want, once, into registers. For TF32 there is no such way. Windows that begin
// between the rows have a dy of zero.
//
// Blocks of channels lie an odd number of pieces apart: wgmma transposes eight of them at a time, and reads from eight
// banks of 16 bytes only then. TMA wants to write at multiples of 128 bytes, so threads copy here, by cp.async: a
// warpgroup of producers.
//
// Three consumer warpgroups multiply, and each has TAPS taps: their accumulators stay in registers, 96 of each thread
// with 3 taps and 64 channels, while bands of rows come and go in a ring. A block has some of the bands. What the
// blocks of a cluster have summed they add in their shared memories, each CTA a part of it; that goes to memory, and a
// second kernel adds what the clusters have. All of this in the order of their numbers: the sum is the same every time.
// Where most of these sums are of no tap, filter or channel, the others leave without them (PACKED).

#include "blocked.cuh"

#ifndef TAPS
#define TAPS 3
#endif
#ifndef SLOTS
#define SLOTS 2
#endif
#ifndef CLUSTER
#define CLUSTER 4  // blocks
#endif
#ifndef PACKED
#define PACKED 0  // whether sums of no tap, filter or channel stay
#endif

constexpr int MULTIPLIERS = 3, LOADERS = 128, THREADS = 128 * MULTIPLIERS + LOADERS;
constexpr int SUMS = TAPS * CHUNK / 2;             // of a thread
constexpr int ELEMENTS = SUMS * 128 * MULTIPLIERS;  // of a block

static_assert(MODE != 1, "wgmma transposes elements of 16 bits only");

struct Barriers {
    Word64 full[SLOTS], empty[SLOTS];
};

// Copy `pieces` pieces of some planes, blocks of channels, that lie `area` apart, and of their low fp16 parts, `part`
// pieces further on; in shared memory planes are `plane` apart, the low parts behind the high ones. where(n): which
// pixel piece n is; less than 0, a zero.
template <typename Where>
inline void load_planes(const Piece* from, size_t area, size_t part, int planes, int pieces, Piece* to, int plane,
                        int part_pieces, int thread, Where where)
{
    for (int n = thread; n < pieces; n += LOADERS) {
        int at = where(n);
        #pragma unroll
        for (int i = 0; i < PARTS; ++i) {
            const Piece* source = from + i * part + max(at, 0);
            Piece* target = to + i * part_pieces + n;
            #pragma unroll 4
            for (int group = 0; group < planes; ++group, source += area, target += plane)
                cp_async<16>(target, source, at >= 0);
        }
    }
}

// How a launch divides the work: blocks are numbered by slices of the bands, a multiple of CLUSTER, then by 64 output
// channels, by CHUNK channels, and by groups of taps.
struct Division {
    int windows;          // of a band, those between the rows included: a multiple of 16
    int channels, plane;  // of dy; pieces from one of its planes to the next
    int heights, widths, tap_groups, slices;
};

// How many sums leave where they are PACKED, of channels as they are stored.
inline int packed_sums(const Problem& p, const Division& d)
{
    return p.taps_y * p.taps_x * d.channels * stored_channels(p);
}

// Where four sums go that are PACKED, number `four` of a tile's, which are of every other one of eight channels: by
// tap, eight channels, even or odd ones, filter. Less than 0: nowhere.
inline int packed_place(const Problem& p, const Division& d, int height, int width, int tap_group, int four)
{
    int thread = 4 * four % (128 * MULTIPLIERS), sum = 4 * four / (128 * MULTIPLIERS), i = sum % (CHUNK / 2);
    int tap = (tap_group * MULTIPLIERS + thread / 128) * TAPS + sum / (CHUNK / 2);
    int filter = height * 64 + thread / 32 % 4 * 16 + thread % 32 / 4 + i % 4 / 2 * 8;
    int group = width * (CHUNK / 8) + i / 4, groups = stored_channels(p) / 8;
    if (tap >= p.taps_y * p.taps_x || filter >= d.channels || group >= groups) return -1;
    return ((tap * groups + group) * 2 + i % 2) * d.channels + filter;
}

// ---- The kernel: three consumer warpgroups, and then a warpgroup of producers ----

// What all warps know: which part of the work their block has, and how large the ring's stages are. It is given by
// value, so that its members are registers.
struct Work {
    int tile, slice, height, width, tap_group;
    int plane, bands, image_pieces, slot_pieces;

    __device__ Work(const Problem& p, const Division& d)
    {
        tile = blockIdx.x / d.slices, slice = blockIdx.x % d.slices;
        height = tile % d.heights, width = tile / d.heights % d.widths, tap_group = tile / (d.heights * d.widths);
        plane = PHASES * p.pieces | 1, bands = p.images * p.bands;
        image_pieces = PARTS * GROUPS * plane, slot_pieces = image_pieces + PARTS * 8 * d.plane;
    }
};

// The producers: a band of rows of x and of dy into each slot of the ring.
static __device__ __forceinline__ void produce(const Problem& p, const Division& d, const Piece* images,
                                               const Piece* dy, const Work work, Piece* ring, Barriers& barriers)
{
    int slot = 0, round = 0, thread = threadIdx.x - 128 * MULTIPLIERS;
    size_t area = (size_t)p.height * p.width, windows = (size_t)p.windows_y * p.windows_x;
    for (int band = work.slice; band < work.bands; band += d.slices) {
        int image = band / p.bands, first_row = band % p.bands * p.rows;
        Piece* to = ring + slot * work.slot_pieces;
        wait(&barriers.empty[slot], ~round & 1);
        load_planes(images + (size_t)(image * stored_channels(p) + work.width * CHUNK) / 8 * area, area,
                    (size_t)p.images * stored_channels(p) / 8 * area, GROUPS - (LACKS && work.width == d.widths - 1),
                    PHASES * p.pieces, to, work.plane, GROUPS * work.plane, thread, [&](int n) {
                        int phase = n / p.pieces, row = divided_by_pitch(p, n - phase * p.pieces);
                        int column = n - phase * p.pieces - row * p.pitch;
                        int y = (first_row + row) * STRIDE + phase / STRIDE - p.pad_y;
                        int x = column * STRIDE + phase % STRIDE - p.pad_x;
                        return y >= 0 && y < p.height && x >= 0 && x < p.width ? y * p.width + x : -1;
                    });
        load_planes(dy + ((size_t)image * d.channels / 8 + work.height * 8) * windows, windows,
                    (size_t)p.images * d.channels / 8 * windows, min(8, d.channels / 8 - 8 * work.height), d.windows,
                    to + work.image_pieces, d.plane, 8 * d.plane, thread, [&](int n) {
                        int row = divided_by_pitch(p, n), x = n - row * p.pitch, y = first_row + row;
                        return row < p.rows && y < p.windows_y && x < p.windows_x ? y * p.windows_x + x : -1;
                    });
        cp_async_wait_all();
        fence_proxy_async();  // wgmma reads shared memory by another way than threads write it
        mbarrier_arrive(&barriers.full[slot]);
        if (++slot == SLOTS) slot = 0, ++round;
    }
}

// A consumer warpgroup: TAPS taps, whose accumulators stay in registers over all bands; then they take the ring's
// memory.
static __device__ __forceinline__ void consume(const Problem& p, const Division& d, const Work work, Piece* ring,
                                               Barriers& barriers, int group, int warp, int lane)
{
    float sums[TAPS][CHUNK / 2] = {};
    #pragma unroll
    for (int tap = 0; tap < TAPS; ++tap) in_registers(sums[tap]);
    Word shifts[TAPS];
    int first_tap = (work.tap_group * MULTIPLIERS + group) * TAPS;
    #pragma unroll
    for (int tap = 0; tap < TAPS; ++tap) {
        int number = min(first_tap + tap, p.taps_y * p.taps_x - 1);
        shifts[tap] = shift(p, number / p.taps_x, number % p.taps_x) * 16;
    }
    int round = 0, slot = 0;
    for (int band = work.slice; band < work.bands; band += d.slices) {
        const Piece* from = ring + slot * work.slot_pieces;
        Word image = shared_address(from);
        const Piece* gradient = from + work.image_pieces + (warp % 4 * 2 + lane / 8 % 2) * d.plane;
        gradient += lane / 16 * 8 + lane % 8;  // this lane's row of four matrices
        wait(&barriers.full[slot], round & 1);
        for (int k = 0; k < d.windows; k += 16, image += 16 * 16, gradient += 16) {
            #pragma unroll
            for (int part = PARTS - 1; part >= 0; --part) {  // low times high, high times low, high times high
                Word a[4];
                ldmatrix_x4_trans(a, gradient + part * 8 * d.plane);
                wgmma_fence();
                #pragma unroll
                for (int tap = 0; tap < TAPS; ++tap)
                    #pragma unroll
                    for (int other = PARTS - 1 - part; other >= 0; --other) {
                        Word b = image + other * GROUPS * work.plane * 16 + shifts[tap];
                        wgmma_registers<KIND, CHUNK>(sums[tap], a, descriptor(b, 128, work.plane * 16));
                    }
                wgmma_commit_group();
                wgmma_wait_group<0>();  // two other warpgroups are at work meanwhile
            }
        }
        if (lane == 0) mbarrier_arrive(&barriers.empty[slot]);
        if (++slot == SLOTS) slot = 0, ++round;
    }
    bar_sync<128 * MULTIPLIERS>(1);  // nobody multiplies from the ring any more
    float* mine = reinterpret_cast<float*>(ring) + threadIdx.x;
    #pragma unroll
    for (int tap = 0; tap < TAPS; ++tap)
        #pragma unroll
        for (int i = 0; i < CHUNK / 2; ++i) mine[(tap * CHUNK / 2 + i) * 128 * MULTIPLIERS] = sums[tap][i];
}

// The epilogue: the CTAs of a cluster add up what they have in their shared memories, each a part of it. The order is
// that of their ranks.
static __device__ __forceinline__ void reduce_in_cluster(const Problem& p, const Division& d, const Work work,
                                                         const void* shared_bytes, float* partial)
{
    constexpr int SHARE = ELEMENTS / 4 / CLUSTER;  // float4s of a block
    int rank = blockIdx.x % CLUSTER;
    size_t place = (size_t)(work.slice / CLUSTER) * gridDim.x / d.slices + work.tile;
    float4* to = reinterpret_cast<float4*>(partial) + place * (ELEMENTS / 4);
    if (PACKED) to = reinterpret_cast<float4*>(partial) + (size_t)(work.slice / CLUSTER) * packed_sums(p, d) / 4;
    Word shared = shared_address(shared_bytes);
    for (int i = rank * SHARE + threadIdx.x; i < (rank + 1) * SHARE; i += THREADS) {
        int at = PACKED ? packed_place(p, d, work.height, work.width, work.tap_group, i) : i;
        if (PACKED && at < 0) continue;
        float4 sum = {};
        #pragma unroll
        for (int other = 0; other < CLUSTER; ++other) {
            float4 found = ld_shared_cluster(mapa(shared + i * 16, other));
            sum.x += found.x, sum.y += found.y, sum.z += found.z, sum.w += found.w;
        }
        to[at] = sum;
    }
}

extern "C" __global__ __launch_bounds__(THREADS, 1) __cluster_dims__(CLUSTER)
void multiply(const __grid_constant__ Problem p, const __grid_constant__ Division d, const Piece* images,
              const Piece* dy, float* partial)
{
    extern __shared__ __align__(128) unsigned char shared_bytes[];
    __shared__ Barriers barriers;
    Work work(p, d);
    Piece* ring = reinterpret_cast<Piece*>(shared_bytes);

    if (threadIdx.x == 0) {
        for (int i = 0; i < SLOTS; ++i)
            mbarrier_init<LOADERS>(&barriers.full[i]), mbarrier_init<4 * MULTIPLIERS>(&barriers.empty[i]);
        fence_proxy_async();
    }
    __syncthreads();
    begin_in_turn();
    int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32, group = warp / 4;
    if (group == MULTIPLIERS) produce(p, d, images, dy, work, ring, barriers);
    else consume(p, d, work, ring, barriers, group, warp, lane);

    barrier_cluster_arrive();
    barrier_cluster_wait();
    reduce_in_cluster(p, d, work, shared_bytes, partial);
    barrier_cluster_arrive();  // nobody leaves while others read its memory
    barrier_cluster_wait();
}

// The sum of `count` elements that lie `step` apart: AT_ONCE are on their way together, and they are added in order.
template <int AT_ONCE>
inline float sum_of(const float* from, int count, size_t step)
{
    float sum = 0;
    for (int first = 0; first < count; first += AT_ONCE) {
        float found[AT_ONCE];
        #pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) found[i] = first + i < count ? from[(first + i) * step] : 0;
        #pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) sum += found[i];
    }
    return sum;
}

// Sums of a convolution before, (slices, room, each): of a filter those of its taps, dW (channels, each - 1), and of
// its bias, db or null. padded: channels, padded.
struct Before {
    const float* sums;
    float *dW, *db;
    int slices, channels, padded, each;
};

constexpr int LANES = 8;  // that add up an element of these together

inline void add_before(const Before& b, int n)
{
    int lane = n % LANES, step = b.padded * b.each;
    n /= LANES;
    int element = min(n, b.channels * b.each - 1), first = b.slices * lane / LANES;
    float sum = sum_of<16>(b.sums + first * step + element, b.slices * (lane + 1) / LANES - first, step);
    #pragma unroll
    for (int distance = 1; distance < LANES; distance *= 2) sum += __shfl_xor_sync(~0u, sum, distance);
    if (n >= b.channels * b.each || lane > 0) return;
    int channel = n / b.each, tap = n % b.each;
    if (tap < b.each - 1) b.dW[channel * (b.each - 1) + tap] = sum;
    else if (b.db) b.db[channel] = sum;
}

// Add what the clusters have, in their order, and write it where it belongs: dW (o, c, k, l). A thread has an element.
// The first threads also add up db (o,) of `bias_slices` slices (o_padded,), if there are any, the last blocks what is
// `before`.
extern "C" __global__ __launch_bounds__(256)
void add(const __grid_constant__ Problem p, const __grid_constant__ Division d, const float* partial, float* dW,
         int o_all, int c_all, const Scale* of_images, const Scale* of_dy, const float* bias, float* db,
         int bias_slices, int o_padded, const __grid_constant__ Before before)
{
    int tiles = d.heights * d.widths * d.tap_groups, taps = p.taps_y * p.taps_x;
    int all = PACKED ? packed_sums(p, d) : tiles * ELEMENTS, number = blockIdx.x * blockDim.x + threadIdx.x;
    int all_blocks = (all + 255) / 256 * 256;  // whole blocks of these, and then of those before
    begin_in_turn();
    float unscale = SCALED ? unscale_of(of_images, of_dy) : 1;
    for (int o = number; bias_slices > 0 && o < o_all; o += gridDim.x * blockDim.x) {
        db[o] = sum_of<16>(bias + o, bias_slices, o_padded);
    }
    if (blockIdx.x * blockDim.x >= all_blocks) {
        add_before(before, number - all_blocks);
        return;
    }
    int tile = number / ELEMENTS, thread = number % (128 * MULTIPLIERS);
    int sum_of_thread = number % ELEMENTS / (128 * MULTIPLIERS);
    int tap = (tile / (d.heights * d.widths) * MULTIPLIERS + thread / 128) * TAPS + sum_of_thread / (CHUNK / 2);
    int i = sum_of_thread % (CHUNK / 2);
    int o = tile % d.heights * 64 + thread / 32 % 4 * 16 + thread % 32 / 4 + i % 4 / 2 * 8;
    int c = tile / d.heights % d.widths * CHUNK + i / 4 * 8 + thread % 4 * 2 + i % 2;
    if constexpr (PACKED) {
        int groups = stored_channels(p) / 8, rest = number / 8 / d.channels;  // the tap and the eight channels
        o = number / 4 % d.channels, tap = rest / groups;
        c = rest % groups * 8 + number % 4 * 2 + number / 4 / d.channels % 2;
    }
    if (number >= all || tap >= taps || o >= o_all || c >= c_all) return;
    dW[((size_t)o * c_all + c) * taps + tap] = sum_of<32>(partial + number, d.slices / CLUSTER, all) * unscale;
}
