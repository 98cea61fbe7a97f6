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
// with 3 taps and 64 channels, while bands of rows come and go in a ring. A block has some of the bands. Of what the
// blocks of a cluster have summed each adds up a share: the others send it theirs, from registers to its shared memory,
// and it need not ask. That goes to memory, and a second kernel adds what the clusters have. All of this in one order:
// the sum is the same every time. Where most of these sums are of no tap, filter or channel, the others leave without
// them (PACKED). Where they are the last gradients of a step, the second kernel takes the optimizer's step, too.

#include "blocked.cuh"
#include "updates.cuh"

#ifndef TAPS
#define TAPS 3
#endif
#ifndef SLOTS
#define SLOTS 2
#endif
#ifndef CLUSTER
#define CLUSTER 4  // blocks
#endif
#ifndef OF_EACH
#define OF_EACH 2  // sums that a thread of `add` makes
#endif
#ifndef PACKED
#define PACKED 0  // whether sums of no tap, filter or channel stay
#endif
#ifndef UPDATES
#define UPDATES 0  // the optimizer's step: 1 for SGD's, 2 for Adam's
#endif

constexpr int MULTIPLIERS = 3, LOADERS = 128, THREADS = 128 * MULTIPLIERS + LOADERS;
constexpr int SUMS = TAPS * CHUNK / 2;             // of a thread
constexpr int ELEMENTS = SUMS * 128 * MULTIPLIERS;  // of a block
constexpr bool AHEAD = CHUNK < 64;                 // whether there are registers for what comes next
constexpr int KEPT = SUMS / CLUSTER, FOURS = (KEPT + 3) / 4;  // a thread's share of these

static_assert(MODE != 1, "wgmma transposes elements of 16 bits only");
static_assert(SUMS % CLUSTER == 0, "the blocks of a cluster have equal shares");

struct Barriers {
    Word64 full[SLOTS], empty[SLOTS];
    Word64 received[4 * MULTIPLIERS];  // of each warp: what the same warps of the cluster's other blocks send it
};

// Copy `pieces` pieces of some planes, blocks of channels, that lie `area` apart, and of their low fp16 parts, `part`
// pieces further on; in shared memory planes are `plane` apart, the low parts behind the high ones. where(n): which
// pixel piece n is; less than 0, a zero.
template <int PLANES, typename Where>
inline void load_planes(const Piece* from, size_t area, size_t part, int planes, int pieces, Piece* to, int plane,
                        int part_pieces, int thread, Where where)
{
    #pragma unroll 1  // code that runs once waits for itself
    for (int n = thread; n < pieces; n += LOADERS) {
        int at = where(n);
        #pragma unroll
        for (int i = 0; i < PARTS; ++i) {
            const Piece* source = from + i * part + max(at, 0);
            Piece* target = to + i * part_pieces + n;
            #pragma unroll
            for (int group = 0; group < PLANES; ++group, source += area, target += plane)
                if (group < planes) cp_async<16>(target, source, at >= 0);
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
// value, so that its members are registers, and known before the block's turn comes.
struct Work {
    int tile, slice, height, width, tap_group;
    int plane, bands, image_pieces, slot_pieces;

    __device__ Work(const Problem& p, const Division& d)
    {
        tile = now(blockIdx.x / d.slices), slice = now(blockIdx.x % d.slices), height = now(tile % d.heights);
        width = now(tile / d.heights % d.widths), tap_group = now(tile / (d.heights * d.widths));
        plane = PHASES * p.pieces | 1, bands = p.images * p.bands;
        image_pieces = PARTS * GROUPS * plane, slot_pieces = image_pieces + PARTS * 8 * d.plane;
    }
};

// The producers: a band of rows of x and of dy into each slot of the ring. They don't wait for what they ask for: each
// slot's barrier does.
static __device__ __forceinline__ void produce(const Problem& p, const Division& d, const Piece* images,
                                               const Piece* dy, const Work work, Piece* ring, Barriers& barriers)
{
    int slot = 0, round = 0, thread = threadIdx.x - 128 * MULTIPLIERS;
    size_t area = (size_t)p.height * p.width, windows = (size_t)p.windows_y * p.windows_x;
    for (int band = work.slice; band < work.bands; band += d.slices) {
        int image = p.bands > 1 ? band / p.bands : band, first_row = (band - image * p.bands) * p.rows;
        Piece* to = ring + slot * work.slot_pieces;
        wait(&barriers.empty[slot], ~round & 1);
        load_planes<GROUPS>(images + (size_t)(image * stored_channels(p) + work.width * CHUNK) / 8 * area, area,
                    (size_t)p.images * stored_channels(p) / 8 * area, GROUPS - (LACKS && work.width == d.widths - 1),
                    PHASES * p.pieces, to, work.plane, GROUPS * work.plane, thread, [&](int n) {
                        int phase = PHASES > 1 ? n / p.pieces : 0, row = divided_by_pitch(p, n - phase * p.pieces);
                        int column = n - phase * p.pieces - row * p.pitch;
                        int y = (first_row + row) * STRIDE + phase / STRIDE - p.pad_y;
                        int x = column * STRIDE + phase % STRIDE - p.pad_x;
                        return y >= 0 && y < p.height && x >= 0 && x < p.width ? y * p.width + x : -1;
                    });
        load_planes<8>(dy + ((size_t)image * d.channels / 8 + work.height * 8) * windows, windows,
                    (size_t)p.images * d.channels / 8 * windows, min(8, d.channels / 8 - 8 * work.height), d.windows,
                    to + work.image_pieces, d.plane, 8 * d.plane, thread, [&](int n) {
                        int row = divided_by_pitch(p, n), x = n - row * p.pitch, y = first_row + row;
                        return row < p.rows && y < p.windows_y && x < p.windows_x ? y * p.windows_x + x : -1;
                    });
        cp_async_mbarrier_arrive(&barriers.full[slot]);
        if (++slot == SLOTS) slot = 0, ++round;
    }
    cp_async_wait_all();
}

// A warp's rows of dy, for 16 windows.
inline void load_gradient(Word (&a)[PARTS][4], const Division& d, const Piece* row)
{
    #pragma unroll
    for (int part = 0; part < PARTS; ++part) ldmatrix_x4_trans(a[part], row + part * 8 * d.plane);
}

// A consumer warpgroup: TAPS taps, whose accumulators stay in registers over all bands.
static __device__ __forceinline__ void consume(const Problem& p, const Division& d, const Work work, Piece* ring,
                                               Barriers& barriers, int group, int warp, int lane,
                                               float (&sums)[TAPS][CHUNK / 2])
{
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
        fence_proxy_async();  // wgmma reads shared memory by another way than threads write it
        Word a[PARTS][4], next[PARTS][4];
        if constexpr (AHEAD) load_gradient(a, d, gradient);
        #pragma unroll (AHEAD ? 2 : 1)
        for (int k = 0; k < d.windows; k += 16, image += 16 * 16) {
            #pragma unroll
            for (int part = PARTS - 1; part >= 0; --part) {  // low times high, high times low, high times high
                if constexpr (!AHEAD) ldmatrix_x4_trans(a[part], gradient + part * 8 * d.plane);
                if (!AHEAD || part == PARTS - 1) wgmma_fence();
                #pragma unroll
                for (int tap = 0; tap < TAPS; ++tap)
                    #pragma unroll
                    for (int other = PARTS - 1 - part; other >= 0; --other) {
                        Word b = image + other * GROUPS * work.plane * 16 + shifts[tap];
                        wgmma_registers<KIND, CHUNK>(sums[tap], a[part], descriptor(b, 128, work.plane * 16));
                    }
                if (!AHEAD || part == 0) wgmma_commit_group();
                if (!AHEAD) wgmma_wait_group<0>();
            }
            gradient += k + 16 < d.windows ? 16 : 0;
            if constexpr (AHEAD) {
                load_gradient(next, d, gradient);
                wgmma_wait_group<0>();  // two other warpgroups are at work meanwhile
                #pragma unroll
                for (int i = 0; i < PARTS * 4; ++i) a[i / 4][i % 4] = next[i / 4][i % 4];
            }
        }
        if (lane == 0) mbarrier_arrive(&barriers.empty[slot]);
        if (++slot == SLOTS) slot = 0, ++round;
    }
}

// Four of the sums of a share.
inline float4 four_of(const float (&sums)[TAPS][CHUNK / 2], int share, int four)
{
    float found[4] = {};
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
        int n = share * KEPT + min(4 * four + i, KEPT - 1);
        found[i] = sums[n / (CHUNK / 2)][n % (CHUNK / 2)];
    }
    return make_float4(found[0], found[1], found[2], found[3]);
}

// The epilogue: each of a cluster's CTAs adds to its share what the others have of it, the one with the next rank
// first. received: float4s, by who sends them, four, and thread.
static __device__ __forceinline__ void leave(const Problem& p, const Division& d, const Work work,
                                             const float (&sums)[TAPS][CHUNK / 2], float4* received,
                                             Barriers& barriers, int warp, float* partial)
{
    int rank = blockIdx.x % CLUSTER, slice = work.slice / CLUSTER;
    float4 kept[FOURS];
    if constexpr (CLUSTER > 1) barrier_cluster_wait();  // the others have begun: their barriers are there
    #pragma unroll
    for (int share = 0; share < CLUSTER; ++share) {
        if (share == rank) {
            #pragma unroll
            for (int i = 0; i < FOURS; ++i) kept[i] = four_of(sums, share, i);
        } else {
            int number = (rank + CLUSTER - share) % CLUSTER - 1;
            Word to = mapa(shared_address(received + number * FOURS * 128 * MULTIPLIERS + threadIdx.x), share);
            Word barrier = mapa(shared_address(&barriers.received[warp]), share);
            #pragma unroll
            for (int i = 0; i < FOURS; ++i)
                st_async(to + i * 128 * MULTIPLIERS * 16, four_of(sums, share, i), barrier);
        }
    }
    if constexpr (CLUSTER > 1) wait(&barriers.received[warp], 0);
    int first = rank * KEPT * 128 * MULTIPLIERS + threadIdx.x;
    if (PACKED) partial += (size_t)slice * packed_sums(p, d) + threadIdx.x % 4;
    else partial += (size_t)(slice * d.heights * d.widths * d.tap_groups + work.tile) * ELEMENTS + first;
    #pragma unroll
    for (int i = 0; i < FOURS; ++i) {
        #pragma unroll
        for (int other = 0; other < CLUSTER - 1; ++other) {
            float4 found = received[(other * FOURS + i) * 128 * MULTIPLIERS + threadIdx.x];
            kept[i].x += found.x, kept[i].y += found.y, kept[i].z += found.z, kept[i].w += found.w;
        }
        float four[4] = {kept[i].x, kept[i].y, kept[i].z, kept[i].w};
        #pragma unroll
        for (int j = 0; j < 4 && 4 * i + j < KEPT; ++j) {
            int at = (4 * i + j) * 128 * MULTIPLIERS;
            if (PACKED) at = 4 * packed_place(p, d, work.height, work.width, work.tap_group, (first + at) / 4);
            if (!PACKED || at >= 0) partial[at] = four[j];
        }
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

    if (threadIdx.x < 4 * MULTIPLIERS) {
        for (int i = threadIdx.x; i < SLOTS; i += 4 * MULTIPLIERS)
            mbarrier_init<LOADERS>(&barriers.full[i]), mbarrier_init<4 * MULTIPLIERS>(&barriers.empty[i]);
        mbarrier_init<1>(&barriers.received[threadIdx.x]);
        mbarrier_arrive_expect_tx(&barriers.received[threadIdx.x], (CLUSTER - 1) * FOURS * 32 * sizeof(float4));
        fence_mbarrier_init();
    }
    __syncthreads();
    if constexpr (CLUSTER > 1) barrier_cluster_arrive_relaxed();
    int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32, group = warp / 4;
    if (group == MULTIPLIERS) {
        begin_in_turn();
        produce(p, d, images, dy, work, ring, barriers);
        __syncwarp();
        if constexpr (CLUSTER > 1) barrier_cluster_wait();
    } else {
        float sums[TAPS][CHUNK / 2] = {};
        begin_in_turn();
        consume(p, d, work, ring, barriers, group, warp, lane, sums);
        float4* received = reinterpret_cast<float4*>(ring + SLOTS * work.slot_pieces);
        leave(p, d, work, sums, received, barriers, warp, partial);
    }
}

// ---- The second kernel ----

// The sum of part `number` of `parts` of the `count` elements that lie `step` apart, in their order: several are on
// their way together.
inline float sum_of_part(const float* from, size_t step, int count, int number, int parts)
{
    constexpr int AT_ONCE = 8;
    int first = count * number / parts, end = count * (number + 1) / parts;
    float sum = 0;
    from += first * step;
    #pragma unroll 1
    for (; first < end; first += AT_ONCE) {
        float found[AT_ONCE];
        #pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) found[i] = *from, from += first + i + 1 < end ? step : 0;
        #pragma unroll
        for (int i = 0; i < AT_ONCE; ++i)
            if (first + i < end) sum += found[i];
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

constexpr int LANES = 16;                      // that add up an element of these together, or of a bias
constexpr int ADDERS = 256;                    // threads of a block
constexpr int COLUMNS = ADDERS * OF_EACH / 4;  // of four elements
constexpr int AT_ONCE = 32 / OF_EACH;          // slices, in 32 KiB

// What lies behind the filters' blocks: first all elements of `before`, and then those of a bias. By whole warps.
inline void add_others(const Before& b, const float* bias, float* db, int bias_slices, int o_all, int o_padded, int n,
                       const Update& u)
{
    int lane = n % LANES, of_before = b.channels * b.each;
    n /= LANES;
    bool is_bias = n >= of_before;
    int element = min(is_bias ? n - of_before : n, (is_bias ? o_all : of_before) - 1);
    int channel = element / max(b.each, 1), tap = element - channel * b.each;
    float* to = is_bias ? db + element : tap < b.each - 1 ? b.dW + channel * (b.each - 1) + tap : b.db + channel;
    bool exists = is_bias ? n < of_before + o_all && bias_slices > 0 : tap < b.each - 1 || b.db;
    bool writes = lane == 0 && exists;
    Parameter<UPDATES == 2> parameter;
    Rates rates;
    if (UPDATES && writes) parameter.load(u, to - u.grad), rates = rates_of<UPDATES == 2>(u);
    float sum = sum_of_part((is_bias ? bias : b.sums) + element, is_bias ? o_padded : b.padded * b.each,
                            is_bias ? bias_slices : b.slices, lane, LANES);
    #pragma unroll
    for (int distance = 1; distance < LANES; distance *= 2) sum += __shfl_xor_sync(~0u, sum, distance);
    if (!writes) return;
    *to = sum;
    if (UPDATES) parameter.update(u, rates, sum), parameter.store(u, to - u.grad);
}

static_assert(ELEMENTS % (ADDERS * OF_EACH) == 0, "a block is in one tile");

// Where a block's sum number `at` goes in dW (o, c, k, l); -1: nowhere.
inline int place_of(const Problem& p, const Division& d, int all, int o_all, int c_all, int block, int at)
{
    int first = block * ADDERS * OF_EACH, number = first + at, tile = first / ELEMENTS;
    int thread = number % (128 * MULTIPLIERS), sum_of_thread = number % ELEMENTS / (128 * MULTIPLIERS);
    int i = sum_of_thread % (CHUNK / 2), taps = p.taps_y * p.taps_x;
    int tap = (tile / (d.heights * d.widths) * MULTIPLIERS + thread / 128) * TAPS + sum_of_thread / (CHUNK / 2);
    int o = tile % d.heights * 64 + thread / 32 % 4 * 16 + thread % 32 / 4 + i % 4 / 2 * 8;
    int c = tile / d.heights % d.widths * CHUNK + i / 4 * 8 + thread % 4 * 2 + i % 2;
    if constexpr (PACKED) {
        int groups = stored_channels(p) / 8, rest = number / 8 / d.channels;  // the tap and the eight channels
        o = number / 4 % d.channels, tap = rest / groups;
        c = rest % groups * 8 + number % 4 * 2 + number / 4 / d.channels % 2;
    }
    return number < all && tap < taps && o < o_all && c < c_all ? (o * c_all + c) * taps + tap : -1;
}

// Add what the clusters have, in their order, and write it where it belongs. The blocks behind those that do add up
// what is `before`, and db (o,) of `bias_slices` slices (o_padded,), if there are any.
//
// With UPDATES, as the last kernel on the way back, it also takes the optimizer's step `u`: each thread that writes a
// gradient updates its parameter, and the first blocks update all others. These do not wait for `multiply`, which writes
// nothing that they read, and reads no parameters. That they run means that all blocks of `multiply` have begun in turn:
// so all before it is done, whoever reads the old parameters, and all other gradients. They read them from L2, where
// they are for sure. Whoever reads the new ones waits for this kernel, or for one that has.
extern "C" __global__ __launch_bounds__(ADDERS)
void add(const __grid_constant__ Problem p, const __grid_constant__ Division d, const float* partial, float* dW,
         int o_all, int c_all, const Scale* of_images, const Scale* of_dy, const float* bias, float* db,
         int bias_slices, int o_padded, const __grid_constant__ Before before, const __grid_constant__ Update u)
{
    extern __shared__ __align__(128) unsigned char shared_bytes[];
    float4 (*found)[COLUMNS] = reinterpret_cast<float4(*)[COLUMNS]>(shared_bytes);  // [AT_ONCE]
    int all = PACKED ? packed_sums(p, d) : d.heights * d.widths * d.tap_groups * ELEMENTS;
    int blocks = (all + 4 * COLUMNS - 1) / (4 * COLUMNS), thread = threadIdx.x;
    int block = (int)blockIdx.x - (UPDATES ? u.blocks : 0);
    if (UPDATES && block < 0) {
        update_rest<UPDATES == 2>(u, blockIdx.x * ADDERS + thread, u.blocks * ADDERS);
        return;
    }
    begin_in_turn();
    if (block >= blocks) {
        add_others(before, bias, db, bias_slices, o_all, o_padded, (block - blocks) * ADDERS + thread, u);
        return;
    }
    int column = min(block * COLUMNS + thread % COLUMNS, all / 4 - 1), slices = d.slices / CLUSTER;
    const float4* from = reinterpret_cast<const float4*>(partial) + column + (size_t)(thread / COLUMNS) * (all / 4);
    float sums[OF_EACH] = {}, of_x = SCALED ? of_images->of : 1, of_gradient = SCALED ? of_dy->of : 1;
    int places[OF_EACH];
    Parameter<UPDATES == 2> parameters[OF_EACH];
    Rates rates;
    #pragma unroll 1
    for (int first = 0; first < slices; first += AT_ONCE) {  // by way of shared memory: registers are too few
        int count = min(AT_ONCE, slices - first);
        if (first > 0) __syncthreads();
        #pragma unroll
        for (int i = 0; i < AT_ONCE; i += ADDERS / COLUMNS, from += (size_t)(ADDERS / COLUMNS) * (all / 4))
            if (i + thread / COLUMNS < count) cp_async<16>(&found[i + thread / COLUMNS][thread % COLUMNS], from);
        if (first == 0) {  // meanwhile, and not before
            int of_block = now(block), at = now(thread);
            #pragma unroll
            for (int i = 0; i < OF_EACH; ++i) places[i] = place_of(p, d, all, o_all, c_all, of_block, i * ADDERS + at);
            if (UPDATES) rates = rates_of<UPDATES == 2>(u);
            #pragma unroll
            for (int i = 0; i < OF_EACH; ++i)
                if (UPDATES && places[i] >= 0) parameters[i].load(u, dW + places[i] - u.grad);
        }
        cp_async_wait_all();
        __syncthreads();
        #pragma unroll
        for (int j = 0; j < AT_ONCE; ++j)
            #pragma unroll
            for (int i = 0; i < OF_EACH; ++i)
                if (j < count) sums[i] += reinterpret_cast<const float*>(found[j])[i * ADDERS + thread];
    }
    #pragma unroll
    for (int i = 0; i < OF_EACH; ++i) {
        if (places[i] < 0) continue;
        float g = sums[i] * (1 / of_x / of_gradient);
        dW[places[i]] = g;
        if (UPDATES) parameters[i].update(u, rates, g), parameters[i].store(u, dW + places[i] - u.grad);
    }
}
