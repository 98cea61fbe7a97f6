// Windows that are never gathered, on any chip with tensor cores since Turing (2018): mma.sync and ldmatrix.
//
// The idea is that of conv_11_blocked.cu, and so is the layout: an image is planes of pieces, the 16 bytes of eight
// channels of a pixel, and a tap is an address. ldmatrix goes further than wgmma: each lane names the row that it
// wants. So windows may be any pixels, no two rows of them lie between others, and what is beside the image is one
// piece of zeros behind each plane: an image lies in shared memory as it lies in memory.
//
// y = x W as a product: windows times output channels. A block has the windows of some rows of an image, or of some
// whole images, and TILE_N output channels. Channels come CHUNK at a time, the filters a tap at a time, in a ring of
// SLOTS stages that threads fill by cp.async; before Ampere they copy as usual, and the ring hides less.
//
// Which windows make up the rows of a product is ours to say: the four of a pool's window belong to one lane. So pool,
// bias and ReLU take no trip through shared memory (FOLLOWED).
//
// The input gradient is the same product: dy and filters rotated by 180 degrees; for a stride of 2, four times, each
// with the taps that hit the pixels of one phase.

#include "fp16.cuh"

#ifndef FOLLOWED
#define FOLLOWED 0
#endif
#if FOLLOWED
#include "between.cuh"
#endif

#ifndef CHUNK
#define CHUNK 32    // channels at a time
#define WARPS_M 2   // of windows
#define WARPS_N 2   // of output channels
#define ROWS 2      // times 16 windows of a warp
#define COLUMNS 4   // times 8 output channels of a warp
#endif
#ifndef SLOTS
#define SLOTS 3
#endif
#ifndef BLOCKS
#define BLOCKS 1  // on a multiprocessor
#endif

constexpr int GROUPS = CHUNK / 8, WARPS = WARPS_M * WARPS_N, THREADS = 32 * WARPS, TILE_N = WARPS_N * COLUMNS * 8;
constexpr int STAGE = PARTS * GROUPS * TILE_N;  // pieces of filters: a tap of CHUNK channels
#if FOLLOWED
constexpr bool QUADS = POOL == 2;  // whether a lane has the four windows of a pool's window
static_assert(POOL <= 2 && !(SCALED && TO == 0), "pools of 2 x 2, and no scale to guess");
#else
constexpr bool QUADS = false;
#endif

static_assert(MODE != 1, "elements of 16 bits");
static_assert(COLUMNS % 2 == 0 && (ROWS % 2 == 0 || !QUADS) && CHUNK % 16 == 0 && SLOTS >= 2, "pieces come in pairs");

// What a launch is about. groups: of eight channels, as they are stored. Padding may be negative. A tile is `rows` rows
// of windows of an image, or those of `together` whole images; `seen` rows of an image are needed for them.
struct Problem {
    int images, channels, groups, height, width;
    int pad_y, pad_x, taps_y, taps_x, windows_y, windows_x, stride;
    int to_channels, to_height, to_width, to_step, to_y, to_x;  // window (i, j) is pixel (to_step i + to_y, ...)
    int rows, bands, together, seen;
};

// A row of the product: a window, number `place` of those of a pool.
struct Row {
    int image, y, x;  // less than 0: none
};

static __device__ __forceinline__ Row row_of(const Problem& p, int number, int tile)
{
    constexpr int SIDE = QUADS ? 2 : 1;
    int window = QUADS ? number / 32 * 8 + number % 8 : number;
    int across = p.windows_x / SIDE, of_tile = p.rows / SIDE * across;
    int i = window / of_tile, rest = window - i * of_tile, y = rest / across, x = rest - y * across;
    if (QUADS) y = 2 * y + number / 16 % 2, x = 2 * x + number / 8 % 2;
    int image = tile / p.bands * p.together + i;
    y += tile % p.bands * p.rows;
    bool there = i < p.together && image < p.images && y < p.windows_y;
    return {there ? image : -1, y, x};
}

#if FOLLOWED
// Two neighbouring channels of an operand, from `channel` on.
static __device__ __forceinline__ float2 added_at(const Following& f, int image, int channel, int pixel, float unscale)
{
    float2 sum = {0, 0};
    #pragma unroll
    for (int part = 0; part < PARTS; ++part) {
        size_t plane = (size_t)(part * f.sizes.images + image) * f.sizes.groups + channel / 8;
        Word word = static_cast<const Word*>(f.added)[(plane * AREA + pixel) * 4 + channel % 8 / 2];
        float2 two = SCALED ? cvt_f32_f16x2(word)
                            : float2{__uint_as_float(word << 16), __uint_as_float(word & 0xFFFF0000)};
        sum.x += two.x * unscale, sum.y += two.y * unscale;
    }
    return sum;
}

// Two neighbouring channels leave, from `channel` on, of pixel `at` of `area`.
static __device__ __forceinline__ void store_two(const Following& f, void* to, int image, int channel, int area, int at,
                                                 float one, float two)
{
    if constexpr (TO == 2) {
        float* first = static_cast<float*>(to) + ((size_t)image * f.sizes.channels + channel) * area + at;
        if (channel < f.sizes.channels) first[0] = one;
        if (channel + 1 < f.sizes.channels) first[area] = two;
    } else if constexpr (TO == 1) {
        size_t plane = (size_t)image * f.sizes.groups * 2 + channel / 4;
        *reinterpret_cast<float2*>(static_cast<float*>(to) + (plane * area + at) * 4 + channel % 4) = {one, two};
    } else {
        size_t plane = (size_t)image * f.sizes.groups + channel / 8;
        static_cast<Word*>(to)[(plane * area + at) * 4 + channel % 8 / 2] = cvt_rn_bf16x2(one, two);
    }
}

using After = Following;
#else
struct After {};
#endif

// This block's part of the work, and where the two rings lie in shared memory.
struct Work {
    int tile, height, top, count, plane, chunks, taps, stages;  // image rows from `top` on, so many
    Piece *image_ring, *filter_ring;

    __device__ Work(const Problem& p, unsigned char* memory)
    {
        int heights = (p.to_channels + TILE_N - 1) / TILE_N;
        tile = blockIdx.x / heights, height = blockIdx.x % heights;
        int first = tile % p.bands * p.rows * p.stride - p.pad_y;
        top = max(first, 0);
        count = max(min(first + (p.rows - 1) * p.stride + p.taps_y, p.height) - top, 0);
        plane = p.together * p.seen * p.width + 1;
        chunks = p.channels / CHUNK, taps = p.taps_y * p.taps_x, stages = chunks * taps;
        image_ring = reinterpret_cast<Piece*>(memory);
        filter_ring = image_ring + min(chunks, 2) * PARTS * GROUPS * plane;
    }
    __device__ Piece* image(int chunk) const { return image_ring + chunk % 2 * PARTS * GROUPS * plane; }
};

// Ask for CHUNK channels of the tile's images.
static __device__ __forceinline__ void ask_for_images(const Problem& p, const Work& work, const Piece* images, int chunk)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int n = warp; n < PARTS * GROUPS * p.together; n += WARPS) {
        int i = n % p.together, number = n / p.together, group = chunk * GROUPS + number % GROUPS;
        int image = work.tile / p.bands * p.together + i;
        bool there = image < p.images && group < p.groups;
        size_t plane = (size_t)(number / GROUPS * p.images + image) * p.groups + group;
        const Piece* from = there ? images + (plane * p.height + work.top) * p.width : images;
        Piece* to = work.image(chunk) + number * work.plane + i * p.seen * p.width;
        #pragma unroll 4
        for (int k = lane; k < work.count * p.width; k += 32) cp_async<16>(to + k, there ? from + k : from, there);
    }
}

// Ask for a stage of the filters.
static __device__ __forceinline__ void ask_for_filters(const Work& work, const Piece* filters, int stage)
{
    const Piece* from = filters + ((size_t)work.height * work.stages + stage) * STAGE;
    Piece* to = work.filter_ring + stage % SLOTS * STAGE;
    #pragma unroll 4
    for (int k = threadIdx.x; k < STAGE; k += THREADS) cp_async<16>(to + k, from + k);
}

static __device__ __forceinline__ void multiply_add(float (&c)[4], const Word (&a)[4], Word b0, Word b1)
{
    if constexpr (MODE == 0) mma_m16n8k16_bf16(c, a, b0, b1);
    else mma_m16n8k16_f16(c, a, b0, b1);
}

using Sums = float[ROWS][COLUMNS][4];

// What a lane holds of 16 channels: its parts of the pixels and of the filters.
struct Pieces {
    Word a[PARTS][ROWS][4], b[COLUMNS / 2][PARTS][4];
};

// Of channels from 8 k on. at: of each 16 windows the pixel of this lane's row, in a plane. filter: this lane's row.
static __device__ __forceinline__ void load(Pieces& pieces, const Piece* image, const int (&at)[ROWS], int plane,
                                            const Piece* filter, int k)
{
    #pragma unroll
    for (int part = 0; part < PARTS; ++part) {
        #pragma unroll
        for (int i = 0; i < ROWS; ++i)
            ldmatrix_x4(pieces.a[part][i], image + (part * GROUPS + k) * plane + at[i]);
        #pragma unroll
        for (int j = 0; j < COLUMNS; j += 2)
            ldmatrix_x4(pieces.b[j / 2][part], filter + (part * GROUPS + k) * TILE_N + 8 * j);
    }
}

static __device__ __forceinline__ void add_products(Sums& sums, const Pieces& pieces)
{
    #pragma unroll
    for (int j = 0; j < COLUMNS; j += 2)
        #pragma unroll
        for (int product = PARTS == 2 ? 0 : 2; product < 3; ++product)  // low high, high low, high high
            #pragma unroll
            for (int i = 0; i < ROWS; ++i)
                #pragma unroll
                for (int l = 0; l < 2; ++l) {
                    const Word(&b)[4] = pieces.b[j / 2][product == 1 ? PARTS - 1 : 0];
                    multiply_add(sums[i][j + l], pieces.a[product == 0 ? PARTS - 1 : 0][i], b[2 * l], b[2 * l + 1]);
                }
}

// Add one stage's products. Where registers allow it, the next pieces are on their way while these are multiplied.
static __device__ __forceinline__ void multiply(Sums& sums, const Piece* image, const int (&at)[ROWS], int plane,
                                                const Piece* filter)
{
    constexpr int AHEAD = PARTS == 1 ? 2 : 1;
    Pieces pieces[AHEAD];
    if (AHEAD == 2) load(pieces[0], image, at, plane, filter, 0);
    #pragma unroll
    for (int k = 0; k < GROUPS; k += 2) {
        if (AHEAD == 1) load(pieces[0], image, at, plane, filter, k);
        else if (k + 2 < GROUPS) load(pieces[(k / 2 + 1) % AHEAD], image, at, plane, filter, k + 2);
        add_products(sums, pieces[k / 2 % AHEAD]);
    }
}

// Sums leave as they are stored: a lane has two neighbouring channels of a window.
static __device__ __forceinline__ void store(const Problem& p, const Work& work, void* to, const Sums& sums,
                                             int first_row, int first_channel, float unscale)
{
    int lane = threadIdx.x % 32;
    size_t area = (size_t)p.to_height * p.to_width;
    #pragma unroll
    for (int i = 0; i < ROWS; ++i)
        #pragma unroll
        for (int half = 0; half < 2; ++half) {
            Row row = row_of(p, first_row + 16 * i + 8 * half + lane / 4, work.tile);
            if (row.image < 0) continue;
            size_t at = (size_t)(p.to_step * row.y + p.to_y) * p.to_width + p.to_step * row.x + p.to_x;
            #pragma unroll
            for (int j = 0; j < COLUMNS; ++j) {
                int channel = first_channel + 8 * j + lane % 4 * 2;
                if (channel >= p.to_channels) continue;
                float one = sums[i][j][2 * half] * unscale, two = sums[i][j][2 * half + 1] * unscale;
                if constexpr (MODE == 0) {
                    size_t plane = (size_t)row.image * p.to_channels / 8 + channel / 8;
                    static_cast<Word*>(to)[(plane * area + at) * 4 + channel % 8 / 2] = cvt_rn_bf16x2(one, two);
                } else {
                    size_t plane = (size_t)row.image * p.to_channels / 4 + channel / 4;
                    *reinterpret_cast<float2*>(static_cast<float*>(to) + (plane * area + at) * 4 + channel % 4) =
                        {one, two};
                }
            }
        }
}

#if FOLLOWED
// What is made of the windows of a pool, or of one: two neighbouring channels. By whole warps.
static __device__ __forceinline__ void store(const Problem& p, const Work& work, const Following& f, void* to,
                                             const Sums& sums, int first_row, int first_channel, float unscale)
{
    constexpr int TOGETHER = QUADS ? 2 : 1, TIMES = QUADS ? 1 : 2;  // pieces of 16 windows, and of 8
    int lane = threadIdx.x % 32;
    float unscale_added = ADD && SCALED ? 1 / f.of_added->of : 1;
    #pragma unroll
    for (int i = 0; i < ROWS; i += TOGETHER)
        #pragma unroll
        for (int time = 0; time < TIMES; ++time) {
            Row row = row_of(p, first_row + 16 * i + 8 * time + lane / 4, work.tile);
            bool there = row.image >= 0;
            int at = there ? row.y / POOL * ACROSS + row.x / POOL : 0;
            #pragma unroll
            for (int j = 0; j < COLUMNS; ++j) {
                int channel = first_channel + 8 * j + lane % 4 * 2;
                if (channel / 8 >= f.sizes.groups) continue;
                float best[2];
                Word places = 0;
                #pragma unroll
                for (int l = 0; l < 2; ++l) {
                    float bias = f.bias && channel + l < f.sizes.channels ? f.bias[channel + l] : 0;
                    Word place = 0;
                    #pragma unroll
                    for (int n = 0; n < PLACES; ++n) {
                        float x = sums[i + n / 2][j][2 * (QUADS ? n % 2 : time) + l] * unscale + bias;
                        if constexpr (ADD) {
                            float2 more = {0, 0};
                            int pixel = (row.y + n / 2) * WIDE_Z + row.x + n % 2;
                            if (there) more = added_at(f, row.image, channel, pixel, unscale_added);
                            x += l ? more.y : more.x;
                        }
                        place = n == 0 || x > best[l] ? n : place;
                        best[l] = n == 0 ? x : max_nan(best[l], x);
                    }
                    if constexpr (RELU) place = best[l] <= 0 ? CUT : place, best[l] = max_nan(best[l], 0);
                    places |= place << (channel % 8 + l) * 4;
                }
                if (KEEPS && f.kept) {
                    places |= __shfl_xor_sync(~0u, places, 1);
                    places |= __shfl_xor_sync(~0u, places, 2);
                    if (lane % 4 == 0 && there)
                        f.kept[((size_t)row.image * f.sizes.groups + channel / 8) * WINDOWS + at] = places;
                }
                if (there) store_two(f, to, row.image, channel, WINDOWS, at, best[0], best[1]);
            }
        }
}
#endif

extern "C" __global__ __launch_bounds__(THREADS, BLOCKS)
void convolve(const Piece* images, const __grid_constant__ Problem p, const Piece* filters, void* to,
              const Scale* of_images, const Scale* of_filters
#if FOLLOWED
              , const __grid_constant__ After after
#endif
)
{
    extern __shared__ __align__(128) unsigned char shared_bytes[];
    begin_in_turn();
    Work work(p, shared_bytes);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int first_row = warp / WARPS_N * ROWS * 16, first_column = warp % WARPS_N * COLUMNS * 8;
    ask_for_images(p, work, images, 0);
    #pragma unroll
    for (int stage = 0; stage < SLOTS - 1; ++stage) {
        if (stage < work.stages) ask_for_filters(work, filters, stage);
        cp_async_commit_group();
    }
    for (int i = threadIdx.x; i < min(work.chunks, 2) * PARTS * GROUPS; i += THREADS)
        put(work.image_ring + (i + 1) * work.plane - 1, Piece{});

    int corner[ROWS];   // of this lane's windows: a pixel of the tile
    Word inside[ROWS];  // a bit for each tap that is inside the image, rows and from bit 8 on columns
    #pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        Row row = row_of(p, first_row + 16 * i + lane % 16, work.tile);
        int y = row.y * p.stride - p.pad_y, x = row.x * p.stride - p.pad_x;
        corner[i] = (row.image % p.together * p.seen + y - work.top) * p.width + x;
        inside[i] = 0;
        for (int tap = 0; tap < p.taps_y; ++tap) inside[i] |= Word(y + tap >= 0 && y + tap < p.height) << tap;
        for (int tap = 0; tap < p.taps_x; ++tap) inside[i] |= Word(x + tap >= 0 && x + tap < p.width) << 8 + tap;
        if (row.image < 0) inside[i] = 0;
    }
    const Piece* my_filter = work.filter_ring + lane / 8 % 2 * TILE_N + first_column + lane / 16 * 8 + lane % 8;

    Sums sums = {};
    int tap_y = 0, tap_x = 0, chunk = 0;
    for (int stage = 0; stage < work.stages; ++stage) {
        cp_async_wait_group<SLOTS - 2>();
        __syncthreads();  // all of the stage is there, and the one before it has been read
        if (stage + SLOTS - 1 < work.stages) ask_for_filters(work, filters, stage + SLOTS - 1);
        if (tap_y == 0 && tap_x == 0 && chunk + 1 < work.chunks) ask_for_images(p, work, images, chunk + 1);
        cp_async_commit_group();
        int at[ROWS];
        #pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            bool there = inside[i] >> tap_y & inside[i] >> 8 + tap_x & 1;
            at[i] = (there ? corner[i] + tap_y * p.width + tap_x : work.plane - 1) + lane / 16 * work.plane;
        }
        const Piece* filter = my_filter + stage % SLOTS * STAGE;
        if constexpr (PARTS == 2) {  // tensor cores add up a stage's sums, and others add them to the totals
            Sums parts = {};
            multiply(parts, work.image(chunk), at, work.plane, filter);
            #pragma unroll
            for (int i = 0; i < ROWS * COLUMNS * 4; ++i)
                sums[i / COLUMNS / 4][i / 4 % COLUMNS][i % 4] += parts[i / COLUMNS / 4][i / 4 % COLUMNS][i % 4];
        } else {
            multiply(sums, work.image(chunk), at, work.plane, filter);
        }
        if (++tap_x == p.taps_x) tap_x = 0, ++tap_y;
        if (tap_y == p.taps_y) tap_y = 0, ++chunk;
    }
    cp_async_wait_all();
    float unscale = SCALED ? unscale_of(of_images, of_filters) : 1;
    int channel = work.height * TILE_N + first_column;
#if FOLLOWED
    store(p, work, after, to, sums, first_row, channel, unscale);
#else
    store(p, work, to, sums, first_row, channel, unscale);
#endif
}
