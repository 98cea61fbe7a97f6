// Windows that are never gathered: the image lies in shared memory once, and a tap is an address.
//
// needs sm_90a
//
// y = W x as a product: 64 output channels times all windows of some rows. For each tap, and 16 channels, wgmma takes
// the filters' 64 x 16 elements and the pixels of WIDTH windows: those lie side by side (see blocked.cuh), 16 bytes
// after those of the tap before. No element of the image is copied twice, and no index is computed but where the tile
// is loaded.
//
// What it costs: between two rows lie the padding's pieces, and windows that begin there are computed and thrown away:
// 2 of 13 with 11 windows in a row of 13 pixels, 1 of 29 with a padding of 1 on 28 pixels.
//
// Blocks stay on their multiprocessor and take one tile after the other. Their warps are specialized: a producer warp
// asks for images, another for filters, a tap at a time, both by TMA, and consumer warpgroups multiply, each a tile of
// its own or 64 output channels of its own. So the next tile is on its way while this one is multiplied: images are
// double-buffered, and the filters' ring has SLOTS stages. Where all filters of a block fit, they come once and stay
// (RESIDENT).
//
// The input gradient is the same product: dy and filters rotated by 180 degrees; for a stride of 2, four times, each
// with the taps that hit the pixels of one phase.
//
// A normalization behind needs the moments of all sums. The epilogue leaves those of each tile (MOMENTS).
//
// What follows the convolution may be done in the epilogue (FOLLOWED): bias, pool and ReLU. The four sums of a pool's
// window lie in registers of different lanes, so they go through shared memory, eight channels at a time.
//
// A product has 64 rows. Where there are at most 32 filters, of which float32 has two fp16 parts, both may be in it
// (STACKED): two products take the place of three, and rows are added up in the end.

#include "blocked.cuh"

#ifndef FOLLOWED
#define FOLLOWED 0
#endif
#if FOLLOWED
#include "between.cuh"
#endif

#ifndef MOMENTS
#define MOMENTS 0  // whether the mean and the variance of what leaves are asked for, in parts
#endif
#ifndef FORGETS
#define FORGETS 0  // whether there is no pool, and nobody needs to know what the ReLU cut off: in bfloat16
#endif
#ifndef FIRST
#define FIRST 0  // whether sums go into the gradient of the first convolution before
#endif
#if FIRST
#include "first_sums.cuh"
#endif

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

#ifndef STACKED
#define STACKED 0  // whether 64 rows are both fp16 parts of 32 filters
#endif

#ifndef SPLIT
#define SPLIT 1  // warpgroups that share a tile: each has the windows behind those of the one before
#endif

constexpr int MINE = WIDTH / SPLIT;  // windows of a warpgroup
constexpr int MULTIPLIERS = TILES * HEIGHTS * SPLIT, THREADS = 128 * MULTIPLIERS + 64;  // warpgroups, threads
constexpr int FILTER_PIECES = GROUPS * 64;  // of 64 output channels, a tap, CHUNK channels
constexpr int FILTER_PARTS = STACKED ? 1 : PARTS;
// With FIRST, stages of filters that are asked for ahead of the first image, as much as is there before it could be.
constexpr int EARLY_BYTES = 32 << 10, STAGE_BYTES = HEIGHTS * FILTER_PARTS * FILTER_PIECES * sizeof(Piece);
constexpr int EARLY = EARLY_BYTES < STAGE_BYTES ? 1 : EARLY_BYTES / STAGE_BYTES;
constexpr int FIRST_PRODUCT = STACKED ? 1 : PARTS == 2 ? 0 : 2;  // low times high, high times low, high times high

static_assert(!STACKED || (PARTS == 2 && HEIGHTS == 1), "both parts of the same filters");
static_assert(SPLIT == 1 || (FIRST && WIDTH % SPLIT == 0), "the other epilogues have whole tiles");

struct Barriers {
    Word64 full_image[2], empty_image[2], full[SLOTS], empty[SLOTS];
};

// Where a lane's windows go: it has windows n, n + 8, n + 16 ..., and goes from one to the next without a division.
struct Place {
    int y, x, at;  // row and column of the window in its tile, and the pixel in its image

    __device__ Place(const Problem& p, int n, int first_row)
    {
        y = divided_by_pitch(p, n), x = n - y * p.pitch;
        at = (p.to_step * (first_row + y) + p.to_y) * p.to_width + p.to_step * x + p.to_x;
    }

    __device__ void next(const Problem& p, int rows, int columns)  // 8 = rows * pitch + columns
    {
        bool wraps = x + columns >= p.pitch;
        int down = rows + wraps, right = columns - (wraps ? p.pitch : 0);
        y += down, x += right, at += p.to_step * (down * p.to_width + right);
    }
};

// What four neighbours have, added up, for all of them.
inline float summed_by_four(float mine)
{
    mine += __shfl_xor_sync(~0u, mine, 1);
    return mine + __shfl_xor_sync(~0u, mine, 2);
}

// Sums leave as they are stored: 8 lanes have the same window and 8 output channels, in two blocks of channels or one.
inline void store(const Problem& p, void* to, int tile, int channel, const float (&sums)[WIDTH / 2], float unscale)
{
    int image = tile / p.bands, first_row = tile % p.bands * p.rows, lane = threadIdx.x % 32, row_of_8 = lane / 4;
    int rows = image < p.images ? min(p.rows, p.windows_y - first_row) : 0;
    int down = divided_by_pitch(p, 8), right = 8 - down * p.pitch;
    size_t area = (size_t)p.to_height * p.to_width;
    if constexpr (MODE == 0) {  // lanes 4 apart swap, so that each has two channels of one window
        bool odd = row_of_8 % 2;
        Place place(p, lane % 4 * 2 + odd, first_row);
        Word* words = static_cast<Word*>(to) + (size_t)image * p.to_channels / 8 * area * 4 + row_of_8 / 2;
        Word* planes[2] = {words + channel / 8 * area * 4, words + (channel / 8 + 1) * area * 4};
        #pragma unroll
        for (int i = 0; i < WIDTH / 8; ++i, place.next(p, down, right))
            #pragma unroll
            for (int half = 0; half < 2; ++half) {
                float one = sums[4 * i + 2 * half], two = sums[4 * i + 2 * half + 1];
                float mine = odd ? two : one, other = __shfl_xor_sync(~0u, odd ? one : two, 4);
                Word both = cvt_rn_bf16x2(odd ? other : mine, odd ? mine : other);
                if (place.y < rows && place.x < p.windows_x && channel + 8 * half < p.to_channels)
                    planes[half][place.at * 4] = both;
            }
    } else {
        #pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
            Place place(p, lane % 4 * 2 + pair, first_row);
            float* elements = static_cast<float*>(to) + (size_t)image * p.to_channels / 4 * area * 4 + row_of_8 % 4;
            int plane = channel / 4 + row_of_8 / 4;
            float* planes[2] = {elements + plane * area * 4, elements + (plane + 2) * area * 4};
            #pragma unroll
            for (int i = 0; i < WIDTH / 8; ++i, place.next(p, down, right))
                #pragma unroll
                for (int half = 0; half < 2; ++half)
                    if (place.y < rows && place.x < p.windows_x && channel + 8 * half < p.to_channels)
                        planes[half][place.at * 4] = sums[4 * i + 2 * half + pair] * unscale;
        }
    }
}

// Which of a lane's windows are in their row, a bit for each: 8 i + lane % 4 * 2 + pair is the one of bit 2 i + pair.
inline Word64 windows_inside(const Problem& p, int lane)
{
    int down = divided_by_pitch(p, 8), right = 8 - down * p.pitch;
    Word64 inside = 0;
    #pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
        Place place(p, lane % 4 * 2 + pair, 0);
        #pragma unroll
        for (int i = 0; i < WIDTH / 8; ++i, place.next(p, down, right))
            inside |= Word64(place.x < p.windows_x) << (2 * i + pair);
    }
    return inside;
}

// For a normalization behind: the mean of a tile's sums of each channel, and the sum of squared differences from it, all
// as they are in registers, not yet rounded. A lane has windows of two channels, and three neighbours have the others.
// Sums are taken less the first one: what is summed is small then. to: (channels, tiles). inside: as `windows_inside` returns.
inline void leave_moments(const Problem& p, float2* to, int tile, int channel, const float (&sums)[WIDTH / 2],
                          float unscale, Word64 inside)
{
    int image = tile / p.bands, lane = threadIdx.x % 32, rows = min(p.rows, p.windows_y - tile % p.bands * p.rows);
    if (image >= p.images) return;
    int windows = rows * p.pitch, mine = windows / 8 * 2 + min(max(windows % 8 - lane % 4 * 2, 0), 2);
    if (mine < 64) inside &= (Word64(1) << mine) - 1;
    float part = __fdividef(1, rows * p.windows_x);
    #pragma unroll
    for (int half = 0; half < 2; ++half) {
        float pivot = __shfl_sync(~0u, sums[2 * half], lane / 4 * 4), sum = 0, squares = 0;
        #pragma unroll
        for (int k = 0; k < WIDTH / 4; ++k) {
            float away = sums[k / 2 * 4 + 2 * half + k % 2] - pivot;
            if (inside >> k & 1) sum += away, squares = fmaf(away, away, squares);
        }
        sum = summed_by_four(sum), squares = summed_by_four(squares);
        squares = fmaxf(fmaf(-sum * part, sum, squares), 0);
        int of = channel + 8 * half + lane / 4;
        if (lane % 4 == 0 && of < p.to_channels)
            to[(size_t)of * p.images * p.bands + tile] = {fmaf(sum, part, pivot) * unscale, squares * unscale * unscale};
    }
}

// Of a channel's sums: four lines are in different banks. With FIRST, where four lanes read four words of a line, the
// last four of eight begin four words later: then all eight are.
constexpr int LINE_WORDS = MINE + 4 * FIRST, LINE = LINE_WORDS + (40 - LINE_WORDS % 32) % 32;

#if FOLLOWED
// bias: of each lane, of the warp's channel of the lane's number % 16. buffer: a buffer of the warp, eight lines.
inline void store(const Problem& p, const Following& f, void* to, int tile, int channel, const float (&sums)[WIDTH / 2],
                  float unscale, float bias, float* buffer)
{
    int image = tile / p.bands, first_row = tile % p.bands * p.rows, lane = threadIdx.x % 32;
    int windows = image < p.images ? min(p.rows, p.windows_y - first_row) / POOL * ACROSS : 0;
    float unscale_added = ADD && SCALED ? 1 / f.of_added->of : 1;
    #pragma unroll 1  // one text for both: it has to be fetched, too
    for (int half = 0; half < 2; ++half) {
        int group = channel / 8 + half;
        if (group >= f.sizes.groups) return;
        __syncwarp();  // what is there is read
        #pragma unroll
        for (int i = 0; i < WIDTH / 8; ++i) {
            float one = half ? sums[4 * i + 2] : sums[4 * i], two = half ? sums[4 * i + 3] : sums[4 * i + 1];
            *reinterpret_cast<float2*>(buffer + lane / 4 * LINE + 8 * i + lane % 4 * 2) = {one * unscale, two * unscale};
        }
        __syncwarp();
        float add[8];
        #pragma unroll
        for (int j = 0; j < 8; ++j) add[j] = __shfl_sync(~0u, bias, 8 * half + j);
        for (int i = lane; i < windows; i += 32) {
            int at = first_row / POOL * ACROSS + i, corner = i / ACROSS * POOL * p.pitch + i % ACROSS * POOL;
            Window window;
            #pragma unroll (POOL <= 2 ? POOL * POOL : 1)
            for (int place = 0; place < PLACES; ++place) {
                float x[8];
                #pragma unroll
                for (int j = 0; j < 8; ++j)
                    x[j] = buffer[j * LINE + corner + place / POOL * p.pitch + place % POOL] + add[j];
                if constexpr (ADD) {
                    int pixel = (at / ACROSS * POOL + place / POOL) * WIDE_Z + at % ACROSS * POOL + place % POOL;
                    add_operand(f.added, unscale_added, f.sizes, image, group, AREA, pixel, x);
                }
                window.look(place, x);
            }
            if constexpr (RELU) window.cut();
            if (KEEPS && f.kept) f.kept[((size_t)image * f.sizes.groups + group) * WINDOWS + at] = window.kept();
            store(to, f.sizes, image, group, WINDOWS, at, window.best, 1);
        }
    }
}
#endif

#if FORGETS
static_assert(FOLLOWED && MODE == 0 && TO == 0 && POOL == 1, "sums leave as they are stored");

// Without a pool, and where nothing is kept, sums take no trip through shared memory: as the first `store`.
inline void store_at_once(const Problem& p, const Following& f, void* to, int tile, int channel,
                          const float (&sums)[WIDTH / 2])
{
    int image = tile / p.bands, first_row = tile % p.bands * p.rows, lane = threadIdx.x % 32, row_of_8 = lane / 4;
    int rows = image < p.images ? min(p.rows, p.windows_y - first_row) : 0;
    int down = divided_by_pitch(p, 8), right = 8 - down * p.pitch;
    bool odd = row_of_8 % 2;
    float add[2];
    #pragma unroll
    for (int half = 0; half < 2; ++half) {
        int mine = channel + 8 * half + row_of_8;
        add[half] = f.bias && mine < f.sizes.channels ? f.bias[mine] : 0;
    }
    Place place(p, lane % 4 * 2 + odd, first_row);
    size_t plane = ((size_t)image * f.sizes.groups + channel / 8) * AREA * 4 + row_of_8 / 2;  // in words
    #pragma unroll
    for (int i = 0; i < WIDTH / 8; ++i, place.next(p, down, right))
        #pragma unroll
        for (int half = 0; half < 2; ++half) {
            float one = sums[4 * i + 2 * half] + add[half], two = sums[4 * i + 2 * half + 1] + add[half];
            float mine = odd ? two : one, other = __shfl_xor_sync(~0u, odd ? one : two, 4);
            float low = odd ? other : mine, high = odd ? mine : other;
            if (place.y >= rows || place.x >= p.windows_x || channel + 8 * half >= p.to_channels) continue;
            size_t at = plane + (half * AREA + place.at) * 4;
            if constexpr (ADD) {
                Word more = static_cast<const Word*>(f.added)[at];
                low += __uint_as_float(more << 16), high += __uint_as_float(more & 0xFFFF0000);
            }
            if constexpr (RELU) low = max_nan(low, 0), high = max_nan(high, 0);
            static_cast<Word*>(to)[at] = cvt_rn_bf16x2(low, high);
        }
}
#endif

#if FIRST
static_assert(!STACKED && HEIGHTS == 1, "a warp has the same channels of all tiles");

// Add what a tile's sums mean for the first convolution to the warp's totals. See first_sums.cuh. part: which of the
// tile's windows they are. buffer: of the tile. lines, to: of the warp.
inline void add_to_first(const Problem& p, const First& f, int tile, int part, int channel,
                         const float (&sums)[MINE / 2], float unscale, const float* buffer, float* lines, float* to)
{
    int first_row = tile % p.bands * p.rows, lane = threadIdx.x % 32, n = part * MINE + lane % 4;
    int windows = (min(p.rows, p.windows_y - first_row) - 1) * p.pitch + p.windows_x - part * MINE;
    // To a lane's next window, in the tile, of what is kept and in the image: in this row, and where a row ends.
    int down = divided_by_pitch(p, 4), right = 4 - down * p.pitch, left = right - p.pitch;
    int cells = down * FIRST_ACROSS + right, wrapped_cells = cells + FIRST_ACROSS - p.pitch;
    int words = (down * FIRST_WIDE + right) * FIRST_POOL, wrapped_words = words + (FIRST_WIDE - p.pitch) * FIRST_POOL;
    const Word* kept = reinterpret_cast<const Word*>(buffer + FIRST_TALL * FIRST_WIDE);
    float* line = lines + lane / 4 * LINE + lane / 16 * 4;
    #pragma unroll 1  // one text for both: it has to be fetched, too
    for (int half = 0; half < 2; ++half) {
        int group = channel / 8 + half;
        if (group >= f.groups) return;
        __syncwarp();  // what is there is read
        #pragma unroll
        for (int i = 0; i < MINE / 8; ++i)
            *reinterpret_cast<float2*>(line + 8 * i + lane % 4 * 2) =
                {half ? sums[4 * i + 2] : sums[4 * i], half ? sums[4 * i + 3] : sums[4 * i + 1]};
        __syncwarp();
        float totals[FIRST_EACH] = {};
        int y = divided_by_pitch(p, n), x = n - y * p.pitch, from = ((y + first_row) * FIRST_WIDE + x) * FIRST_POOL;
        int cell = group * FIRST_WINDOWS + (y + first_row) * FIRST_ACROSS + x;
        #pragma unroll 2
        for (int i = lane % 4; i < MINE; i += 4) {
            bool inside = x < p.windows_x && i < windows;
            Word at = FIRST_KEEPS && inside ? kept[cell] >> lane / 4 * 4 : 0;
            float d = inside && at % 16 != 15 ? line[i] : 0;
            const float* corner = buffer + (inside ? from : 0);
            if (FIRST_POOL == 2) corner += (at >> 1 & 1) * FIRST_WIDE + (at & 1);
            #pragma unroll
            for (int tap = 0; tap < FIRST_TAPS; ++tap)
                totals[tap] += d * corner[tap / FIRST_KERNEL * FIRST_WIDE + tap % FIRST_KERNEL];
            totals[FIRST_TAPS] += d;
            bool wraps = x + right >= p.pitch;
            x += wraps ? left : right, cell += wraps ? wrapped_cells : cells, from += wraps ? wrapped_words : words;
        }
        #pragma unroll
        for (int k = 0; k < FIRST_EACH; ++k) {
            totals[k] += __shfl_xor_sync(~0u, totals[k], 1);
            totals[k] += __shfl_xor_sync(~0u, totals[k], 2);
            if (lane % 4 == 0) to[(8 * half + lane / 4) * FIRST_EACH + k] += totals[k] * unscale;
        }
    }
}
#endif

#if FIRST
using After = First;
#elif FOLLOWED
using After = Following;
#elif MOMENTS
using After = float2*;
#else
struct After {};
#endif

// What all warps know: how the launch's work is divided, and where the two rings lie in shared memory. It is given by
// value, so that its members are registers.
struct Work {
    int taps, chunks, stages;  // a stage of the filters' ring is a tap of CHUNK channels
    int heights, items;        // of which a block takes each gridDim.x-th: tiles times groups of output channels
    int buffers, plane, tile_pieces;
    Piece *image_ring, *filter_ring;

    __device__ Work(const Problem& p, unsigned char* shared_bytes)
    {
        taps = p.taps_y * p.taps_x, chunks = p.channels / CHUNK, stages = chunks * taps;
        heights = (p.to_channels + 64 * HEIGHTS - 1) / (64 * HEIGHTS);
        items = (p.images * p.bands + TILES - 1) / TILES * heights;
        buffers = chunks > 1 || items > gridDim.x ? 2 : 1;  // double buffering
        plane = PHASES * p.pieces, tile_pieces = PARTS * GROUPS * plane;
        image_ring = reinterpret_cast<Piece*>(shared_bytes);
        filter_ring = image_ring + buffers * TILES * tile_pieces;
    }
};

// The prologue: the barriers, before anybody uses one. A full slot waits for one arrival and its bytes, an empty one for
// an arrival of each consumer warp. By the block.
static __device__ __forceinline__ void set_up(Barriers& barriers)
{
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; ++i)
            mbarrier_init<1>(&barriers.full_image[i]), mbarrier_init<4 * MULTIPLIERS>(&barriers.empty_image[i]);
        for (int i = 0; i < SLOTS; ++i)
            mbarrier_init<1>(&barriers.full[i]), mbarrier_init<4 * MULTIPLIERS>(&barriers.empty[i]);
        fence_proxy_async();
    }
    __syncthreads();
}

// The producer warp of the images: CHUNK channels of a block's tiles at a time, by TMA. With FIRST, where filters are
// on their way already, the second one is not asked for before the first one is there: all blocks begin together, and
// what is not needed yet would take its share of the bandwidth.
static __device__ __forceinline__ void produce_images(const Problem& p, const TensorMap* images, const Work work,
                                                      Barriers& barriers, int lane)
{
    int buffer = 0, round = 0;
    for (int item = blockIdx.x; item < work.items; item += gridDim.x)
        for (int chunk = 0; chunk < work.chunks; ++chunk) {
            if (FIRST && buffer == 1 && round == 0) wait(&barriers.full_image[0], 0);
            wait(&barriers.empty_image[buffer], ~round & 1);
            if (lane == 0)
                mbarrier_arrive_expect_tx(&barriers.full_image[buffer],
                                          TILES * PARTS * GROUPS * PHASES * p.box * sizeof(Piece));
            __syncwarp();
            for (int tile = 0; tile < TILES; ++tile)
                load_images(p, images, item / work.heights * TILES + tile, chunk * CHUNK,
                            work.image_ring + (buffer * TILES + tile) * work.tile_pieces, &barriers.full_image[buffer]);
            if (++buffer == work.buffers) buffer = 0, ++round;
        }
}

// The producer warp of the filters: a stage at a time; where they are RESIDENT, each stage once. With FIRST, all but
// the EARLY ones come behind the first image, too. It also says what scaled sums are to be multiplied by.
static __device__ __forceinline__ void produce_filters(const Work work, const void* filters, const Scale* of_images,
                                                       const Scale* of_filters, Barriers& barriers, int lane,
                                                       float& unscale)
{
    int slot = 0, round = 0;
    for (int item = blockIdx.x; item < (RESIDENT ? blockIdx.x + 1 : work.items); item += gridDim.x)
        for (int stage = 0; stage < work.stages; ++stage) {
            wait(&barriers.empty[slot], ~round & 1);
            if (FIRST && stage == EARLY && stage < work.taps && item == blockIdx.x) wait(&barriers.full_image[0], 0);
            // There before the last tap is, so it holds up none of the first ones; once, as others read it then.
            if (stage == work.stages - 1 && item == blockIdx.x) {
#if OVERLAPS || FIRST
                if (SCALED) griddepcontrol_wait();  // the images' scale is not
#endif
                float factor = SCALED ? unscale_of(of_images, of_filters) : 1;
                if (lane == 0) unscale = factor;
            }
            if (lane == 0)
                mbarrier_arrive_expect_tx(&barriers.full[slot],
                                          HEIGHTS * FILTER_PARTS * FILTER_PIECES * sizeof(Piece));
            __syncwarp();
            if (lane < HEIGHTS) {
                size_t from = (size_t)(item % work.heights * HEIGHTS + lane) * work.stages + stage;
                cp_async_bulk(work.filter_ring + (slot * HEIGHTS + lane) * FILTER_PARTS * FILTER_PIECES,
                              static_cast<const Piece*>(filters) + from * FILTER_PARTS * FILTER_PIECES,
                              FILTER_PARTS * FILTER_PIECES * sizeof(Piece), &barriers.full[slot]);
            }
            if (++slot == SLOTS) slot = 0, ++round;
        }
}

// Issue one stage's products: they are in the accumulators only after a `wgmma_wait_group`. pixels, filter: addresses
// in shared memory. plane: pieces from one block of channels to the next.
static __device__ __forceinline__ void multiply(float (&sums)[MINE / 2], Word pixels, Word filter, int plane)
{
    Word64 filters_at = descriptor(filter, 64 * 16, 128), pixels_at = descriptor(pixels, plane * 16, 128);
    wgmma_fence();
    #pragma unroll
    for (int product = FIRST_PRODUCT; product < 3; ++product)
        #pragma unroll
        for (int k = 0; k < GROUPS; k += 2) {
            Word a = filter + ((product == 0) * GROUPS + k) * 64 * 16;
            Word b = pixels + ((product == 1) * GROUPS + k) * plane * 16;
            Word64 filters_here = further(filters_at, a - filter), pixels_here = further(pixels_at, b - pixels);
            if (PROMOTE && k == 0 && product == FIRST_PRODUCT)
                wgmma<KIND, false, MINE, true>(sums, filters_here, pixels_here);
            else wgmma<KIND, false, MINE>(sums, filters_here, pixels_here);
        }
    wgmma_commit_group();
}

// With STACKED, rows of low parts join those of high ones: the upper two warps of a warpgroup hand their accumulators
// to the lower two, through shared memory. Whether this warp has any left.
static __device__ __forceinline__ bool join_parts(float (&sums)[MINE / 2], float* buffer, int warp, int lane)
{
    float* theirs = buffer + (warp / 4 * 2 + warp % 2) * (MINE / 2 * 32) + lane;
    #pragma unroll
    for (int i = 0; i < MINE / 2; ++i)
        if (warp % 4 >= 2) theirs[i * 32] = sums[i];
    bar_sync<128>(1 + warp / 4);
    #pragma unroll
    for (int i = 0; i < MINE / 2; ++i)
        if (warp % 4 < 2) sums[i] += theirs[i * 32];
    bar_sync<128>(1 + warp / 4);  // they are read
    return warp % 4 < 2;
}

#if FIRST
// What a warp of consumers has in shared memory for the first convolution's gradient: see first_sums.cuh.
struct FirstBuffers {
    float *lines, *of_tile, *totals;

    __device__ FirstBuffers(const Work work, int warp, int lane)
    {
        float* all = reinterpret_cast<float*>(work.filter_ring + SLOTS * FILTER_PARTS * FILTER_PIECES);
        lines = all + warp * 8 * LINE;
        of_tile = all + 4 * MULTIPLIERS * 8 * LINE + warp / 4 % TILES * FIRST_WORDS;
        totals = first_totals(of_tile, warp / 4 / TILES * 64 + warp % 4 * 16);
        for (int i = lane; i < 16 * FIRST_EACH; i += 32) totals[i] = 0;
        __syncwarp();
    }

    // What all tiles have added up leaves once, in the end; of warpgroups that share a tile, in their order.
    __device__ void leave(const First& before, int warp, int lane) const
    {
        int tile = warp / 4 % TILES, rows = FIRST_ROWS == 64 ? 16 : min(16, FIRST_ROWS - warp % 4 * 16);
        __syncwarp();
        if (SPLIT > 1) bar_sync<128 * SPLIT>(1 + tile);
        if (warp / 4 / TILES > 0) return;
        float* to = before.sums + ((blockIdx.x * TILES + tile) * FIRST_ROWS + warp % 4 * 16) * FIRST_EACH;
        for (int i = lane; i < rows * FIRST_EACH; i += 32) {
            float all = totals[i];
            #pragma unroll
            for (int part = 1; part < SPLIT; ++part) all += totals[part * 64 * FIRST_EACH + i];
            to[i] = all;
        }
    }
};
#else
struct FirstBuffers {
    __device__ FirstBuffers(const Work, int, int) {}
};
#endif

// The epilogue of an item: its accumulators leave, as this file's macros say.
static __device__ __forceinline__ void epilogue(const Problem& p, const Work work, int warp, int lane, int item,
                                                int channel, float bias, Word64 inside, float (&sums)[MINE / 2],
                                                const float& unscale, void* to, const After& after,
                                                const FirstBuffers& first)
{
    int group = warp / 4, tile = group % TILES;
    float* buffer = reinterpret_cast<float*>(work.filter_ring + SLOTS * HEIGHTS * FILTER_PARTS * FILTER_PIECES);
    if constexpr (STACKED) {
        if (!join_parts(sums, buffer, warp, lane)) return;
        buffer += TILES * 2 * (WIDTH / 2 * 32);
    }
#if FIRST
    cp_async_wait_all();
    bar_sync<128 * SPLIT>(1 + tile);  // all of the image is there
    if ((item * TILES + tile) / p.bands < p.images)
        add_to_first(p, after, item * TILES + tile, group / TILES, channel, sums, unscale, first.of_tile, first.lines,
                     first.totals);
    if (item + gridDim.x < work.items) bar_sync<128 * SPLIT>(1 + tile);  // and is read
#elif FORGETS
    store_at_once(p, after, to, item / work.heights * TILES + tile, channel, sums);
#elif FOLLOWED
    store(p, after, to, item / work.heights * TILES + tile, channel, sums, unscale, bias,
          buffer + warp * 8 * LINE);
#else
    store(p, to, item / work.heights * TILES + tile, channel, sums, unscale);
#if MOMENTS
    leave_moments(p, after, item / work.heights * TILES + tile, channel, sums, unscale, inside);
#endif
#endif
}

// A consumer warpgroup: for each item the main loop over the stages, and the epilogue.
static __device__ __forceinline__ void consume(const Problem& p, const Work work, Barriers& barriers, int warp,
                                               int lane, const float& unscale, void* to, const After& after)
{
    int group = warp / 4, tile = group % TILES, height = group / TILES % HEIGHTS;
    int first_window = group / (TILES * HEIGHTS) * MINE;
    int slot = 0, round = 0, last = 0, buffer = 0, image_round = 0;
    FirstBuffers first(work, warp, lane);
    Word64 inside = MOMENTS ? windows_inside(p, lane) : 0;  // meanwhile the first tile is on its way
    for (int item = blockIdx.x; item < work.items; item += gridDim.x) {
#if FIRST
        int image_of_first = (item * TILES + tile) / p.bands;
        if (image_of_first < p.images)
            ask_for_first<128 * SPLIT>(after, image_of_first, group / TILES * 128 + threadIdx.x % 128, first.of_tile);
#endif
        int channel = (item % work.heights * HEIGHTS + height) * 64 + threadIdx.x / 32 % 4 * 16;
        float bias = 0;  // asked for early
#if FOLLOWED
        int of_bias = channel + lane % 16;
        if (after.bias && of_bias < after.sizes.channels) bias = after.bias[of_bias];
#endif
        float sums[MINE / 2] = {};  // the accumulators
        in_registers(sums);
        float total[PROMOTE ? MINE / 2 : 1] = {};
        int tap_y = 0, tap_x = 0;
        Word image = 0;
        for (int stage = 0; stage < work.stages; ++stage) {
            bool new_chunk = tap_y == 0 && tap_x == 0;
            if (new_chunk) {
                if (stage > 0 && ++buffer == work.buffers) buffer = 0, ++image_round;
                image = shared_address(work.image_ring + (buffer * TILES + tile) * work.tile_pieces + first_window);
                wait(&barriers.full_image[buffer], image_round & 1);
            }
            Word pixels = image + shift(p, tap_y, tap_x) * 16;
            Word filter = shared_address(work.filter_ring + (slot * HEIGHTS + height) * FILTER_PARTS * FILTER_PIECES);
            wait(&barriers.full[slot], round & 1);
            multiply(sums, pixels, filter, work.plane);
            if constexpr (PROMOTE) {
                wgmma_wait_group<0>();
                #pragma unroll
                for (int i = 0; i < MINE / 2; ++i) total[i] += sums[i];
                last = slot;
            } else {
                wgmma_wait_group<1>();  // the tap before is done: its slot may be filled again
            }
            if (!RESIDENT && lane == 0 && (PROMOTE || stage > 0)) mbarrier_arrive(&barriers.empty[last]);
            if (lane == 0 && new_chunk && stage > 0)
                mbarrier_arrive(&barriers.empty_image[(buffer + 1) % work.buffers]);
            last = slot;
            if (++slot == SLOTS) slot = 0, round += !RESIDENT;
            if (++tap_x == p.taps_x) tap_x = 0, ++tap_y;
            if (tap_y == p.taps_y) tap_y = 0;
        }
        wgmma_wait_group<0>();
        if (!RESIDENT && !PROMOTE && lane == 0) mbarrier_arrive(&barriers.empty[last]);
        if (lane == 0) mbarrier_arrive(&barriers.empty_image[buffer]);
        if (++buffer == work.buffers) buffer = 0, ++image_round;
        if constexpr (PROMOTE) {
            #pragma unroll
            for (int i = 0; i < MINE / 2; ++i) sums[i] = total[i];
        }
        epilogue(p, work, warp, lane, item, channel, bias, inside, sums, unscale, to, after, first);
    }
#if FIRST
    griddepcontrol_wait();  // those before have read what was there
    first.leave(after, warp, lane);
#endif
}

// Warp specialization: MULTIPLIERS consumer warpgroups, then the two producer warps.
extern "C" __global__ __launch_bounds__(THREADS, BLOCKS)
void convolve(const __grid_constant__ TensorMap images, const __grid_constant__ Problem p, const void* filters,
              void* to, const Scale* of_images, const Scale* of_filters
#if FIRST || FOLLOWED || MOMENTS
              , const __grid_constant__ After after
#endif
)
{
    extern __shared__ __align__(128) unsigned char shared_bytes[];
    __shared__ Barriers barriers;
    __shared__ float unscale;
#if !FIRST && !FOLLOWED && !MOMENTS
    After after;
#endif
    Work work(p, shared_bytes);
    int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    if (warp == 4 * MULTIPLIERS && lane == 0) prefetch_tensormap(&images);
    set_up(barriers);
#if OVERLAPS
    griddepcontrol_launch_dependents();
    if (warp != 4 * MULTIPLIERS + 1) griddepcontrol_wait();  // filters are there, and need not wait
#elif FIRST
    if (warp == 4 * MULTIPLIERS) begin_in_turn();  // all but dy is there since the way forward
#else
    begin_in_turn();
#endif
    if (warp == 4 * MULTIPLIERS) produce_images(p, &images, work, barriers, lane);
    else if (warp == 4 * MULTIPLIERS + 1)
        produce_filters(work, filters, of_images, of_filters, barriers, lane, unscale);
    else consume(p, work, barriers, warp, lane, unscale, to, after);
}
