// The implicit product: a convolution as a product of matrices, one of which, the windows, is never in memory.
//
// It is the pipelined matrix product with other copies: a ring of tiles in shared memory that cp.async fills, a
// thread's tile of sums in registers, one barrier a step. What is new is where the values of a tile come from:
// `implicit.cuh` tells how to find the value of a row m and a k in the image. What lies beside the image is not read:
// the copy instruction writes zeros for it.
//
// How images lie in memory decides who copies what (CHANNELS_FIRST). Pixel by pixel (NHWC), the channels of a tap
// follow each other: a copy brings four of them, and a thread keeps its k and goes from row to row. Channel by channel
// (NCHW), it is neighbouring pixels that follow each other: threads copy neighbouring rows of one k, one value at a
// time, for a window's line may begin anywhere. A thread keeps its row and goes from k to k; and where channels are no
// multiple of DEPTH, each k has a tap of its own. Results are transposed on their way out: a thread has several
// channels of a pixel, and memory wants pixels of a channel.
//
// A weight gradient is a sum over all pixels, and its matrix is small: too few tiles for all multiprocessors. So the
// pixels are cut into slices, each block adds up a tile of one slice, and a second kernel adds the slices in order.
//
// What bounds it: the multiply-adds, of which a step's instructions are 80 to 90 %, and how well tiles fill the chip: a
// layer of 121 tiles leaves 11 of 132 multiprocessors without work, and one of 140 would need a second round for eight.

#ifndef CHANNELS_FIRST
#define CHANNELS_FIRST 0
#endif
#ifndef TILE_M
#define TILE_M 128
#define TILE_N 64
#define WARP_M 64
#define WARP_N 32
#endif
#ifndef DEPTH
#define DEPTH 8
#endif
#ifndef STAGES
#define STAGES 4
#endif
#ifndef BLOCKS
#define BLOCKS 1  // on a multiprocessor: tells the compiler how many registers there are
#endif
#ifndef A_ELEMENTS
#define A_ELEMENTS 4  // that a copy brings of windows, where channels follow each other
#endif
#ifndef B_ELEMENTS
#define B_ELEMENTS 4  // and of the other operand, where its rows follow each other
#endif
#ifndef ONE_TAP
#define ONE_TAP 0  // 1: channels are a multiple of DEPTH, so that all k of a step have the same tap
#endif
#include "implicit.cuh"

constexpr int WARPS_N = TILE_N / WARP_N, WARPS = TILE_M / WARP_M * WARPS_N, THREADS = WARPS * 32;
constexpr int LANES_M = 8, LANES_N = 4;                             // threads of a warp
constexpr int ROWS = WARP_M / LANES_M, COLUMNS = WARP_N / LANES_N;  // of a thread

static_assert(TILE_M % WARP_M == 0 && TILE_N % WARP_N == 0, "a block's tile is made up of its warps' tiles");
static_assert(ROWS % 4 == 0 && COLUMNS % 4 == 0, "a thread loads four elements at a time");
static_assert(DEPTH % 8 == 0, "each step begins with the first of the two sets of a and b");

struct Tiles {
    float A[DEPTH][TILE_M + 4];
    float B[DEPTH][TILE_N + 4];
};

// Where the channels of a tap follow each other, 16 bytes of them are copied at a time. So a row of windows stays a
// row, and a thread loads four k of each of its rows at once. Rows are longer by 4: eight of them lie in all 32 banks.
struct RowTiles {
    float A[TILE_M][DEPTH + 4];
    float B[DEPTH][TILE_N + 4];
};

constexpr size_t ROWS_BYTES = (TILE_M * sizeof(Row) + 127) / 128 * 128;  // before the ring
static_assert(STAGES >= 2, "one pair of tiles is multiplied while others arrive");
static_assert(ROWS_BYTES + STAGES * sizeof(RowTiles) <= 227 << 10, "a block has at most 227 KiB of shared memory");

using Totals = float[ROWS][COLUMNS];

// This thread's copies of a tile that lies in pieces of WIDTH values, HEIGHT of them: ELEMENTS at a time, from x of
// pieces y, y + STEP, ...
template <int HEIGHT, int WIDTH, int ELEMENTS>
struct Share {
    static constexpr int ACROSS = WIDTH / ELEMENTS, STEP = THREADS / ACROSS, COPIES = (HEIGHT + STEP - 1) / STEP;
    static_assert(THREADS % ACROSS == 0, "all threads copy as many elements");
    int x = threadIdx.x % ACROSS * ELEMENTS, y = threadIdx.x / ACROSS;
    bool has(int i) const { return HEIGHT % STEP == 0 || y + i * STEP < HEIGHT; }
};

inline void load4(float* to, const float* from)
{
    float4 four = *reinterpret_cast<const float4*>(from);
    to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
}

// Where this thread's values are in the block's tile: rows row(i) and columns column(j).
inline int row_in_tile(int i)
{
    return threadIdx.x / 32 / WARPS_N * WARP_M + i / 4 * 4 * LANES_M + threadIdx.x % 32 / LANES_N * 4 + i % 4;
}
inline int row_of_rows(int i) { return threadIdx.x / 32 / WARPS_N * WARP_M + i * LANES_M + threadIdx.x % 32 / LANES_N; }
inline int column_in_tile(int j)
{
    return threadIdx.x / 32 % WARPS_N * WARP_N + j / 4 * 4 * LANES_N + threadIdx.x % LANES_N * 4 + j % 4;
}

inline void store4(float* at, float a, float b, float c, float d) { *reinterpret_cast<float4*>(at) = {a, b, c, d}; }

// Write this thread's values of a row of N.
inline void store_row(float* row, const float (&elements)[COLUMNS], int first_column, int N)
{
    #pragma unroll
    for (int j = 0; j < COLUMNS; j += 4) {
        int x = first_column + column_in_tile(j);
        if (N % 4 == 0) {
            if (x < N) store4(row + x, elements[j], elements[j + 1], elements[j + 2], elements[j + 3]);
        } else {
            #pragma unroll
            for (int l = 0; l < 4; ++l)
                if (x + l < N) row[x + l] = elements[j + l];
        }
    }
}

// Go through all steps. start(tiles): ask for the next tiles.
template <class Start>
inline void multiply(Tiles* ring, int steps, Totals& totals, Start start)
{
    auto arrive = [] {
        cp_async_wait_group<STAGES - 2>();
        __syncthreads();
    };
    float a[2][ROWS], b[2][COLUMNS];
    auto load = [&](const Tiles& tiles, int k, int into) {
        #pragma unroll
        for (int i = 0; i < ROWS; i += 4) load4(a[into] + i, &tiles.A[k][row_in_tile(i)]);
        #pragma unroll
        for (int j = 0; j < COLUMNS; j += 4) load4(b[into] + j, &tiles.B[k][column_in_tile(j)]);
    };
    for (int slot = 0; slot < STAGES - 1; ++slot) start(ring[slot]);
    arrive();
    load(ring[0], 0, 0);
    for (int step = 0, slot = 0; step < steps; ++step) {
        const Tiles& tiles = ring[slot];
        Tiles& last = ring[slot > 0 ? slot - 1 : STAGES - 1];
        slot = slot < STAGES - 1 ? slot + 1 : 0;
        #pragma unroll
        for (int k = 0; k < DEPTH; ++k) {
            if (k == 0) start(last);
            if (k == DEPTH - 1) arrive();
            load(k < DEPTH - 1 ? tiles : ring[slot], (k + 1) % DEPTH, (k + 1) % 2);
            #pragma unroll
            for (int j = 0; j < COLUMNS; ++j)
                #pragma unroll
                for (int n = 0; n < ROWS; ++n) {
                    int i = j % 2 ? ROWS - 1 - n : n;  // to and fro
                    totals[i][j] += a[k % 2][i] * b[k % 2][j];
                }
        }
    }
    cp_async_wait_all();
}

// The same for tiles of rows. A thread has four k of A at a time. With the last of them it goes row by row, and as soon
// as it is done with a row it loads the next four: so they need no registers of their own.
template <class Start>
inline void multiply(RowTiles* ring, int steps, Totals& totals, Start start)
{
    auto arrive = [] {
        cp_async_wait_group<STAGES - 2>();
        __syncthreads();
    };
    float a[ROWS][4], b[2][COLUMNS];
    auto load_b = [&](const RowTiles& tiles, int k) {
        #pragma unroll
        for (int j = 0; j < COLUMNS; j += 4) load4(b[k % 2] + j, &tiles.B[k][column_in_tile(j)]);
    };
    for (int slot = 0; slot < STAGES - 1; ++slot) start(ring[slot]);
    arrive();
    #pragma unroll
    for (int i = 0; i < ROWS; ++i) load4(a[i], &ring[0].A[row_of_rows(i)][0]);
    load_b(ring[0], 0);
    for (int step = 0, slot = 0; step < steps; ++step) {
        const RowTiles& tiles = ring[slot];
        RowTiles& last = ring[slot > 0 ? slot - 1 : STAGES - 1];
        slot = slot < STAGES - 1 ? slot + 1 : 0;
        #pragma unroll
        for (int k = 0; k < DEPTH; ++k) {
            if (k == 0) start(last);
            if (k == DEPTH - 1) arrive();
            const RowTiles& next = k < DEPTH - 1 ? tiles : ring[slot];
            load_b(next, (k + 1) % DEPTH);
            #pragma unroll
            for (int i = 0; i < ROWS; ++i) {
                #pragma unroll
                for (int n = 0; n < COLUMNS; ++n) {
                    int j = i % 2 ? COLUMNS - 1 - n : n;  // to and fro
                    totals[i][j] += a[i][k % 4] * b[k % 2][j];
                }
                if (k % 4 == 3) load4(a[i], &next.A[row_of_rows(i)][(k + 1) % DEPTH]);
            }
        }
    }
    cp_async_wait_all();
}

#if CHANNELS_FIRST
using Ring = Tiles*;
#else
using Ring = RowTiles*;
#endif

// Forward and input gradient: a block's tile of a product of windows and filters.
inline void multiply_windows(const Product& product, int images, const float* image, const float* filters, float* out,
                             unsigned char* memory)
{
    Row* rows = reinterpret_cast<Row*>(memory);
    Ring ring = reinterpret_cast<Ring>(memory + ROWS_BYTES);
    int tiles_n = (product.N + TILE_N - 1) / TILE_N;
    int first_row = product.block / tiles_n * TILE_M, first_column = product.block % tiles_n * TILE_N;
    int K = product.taps_y * product.taps_x * product.channels;
    for (int i = threadIdx.x; i < TILE_M; i += THREADS) rows[i] = row_of(product, images, first_row + i);
    __syncthreads();

    // NHWC: the same k for several rows. NCHW: the same row for several k.
    Share<CHANNELS_FIRST ? DEPTH : TILE_M, CHANNELS_FIRST ? TILE_M : DEPTH, CHANNELS_FIRST ? 1 : A_ELEMENTS> a;
    Share<DEPTH, TILE_N, B_ELEMENTS> b;
    Row mine[CHANNELS_FIRST ? 1 : a.COPIES];
    Tap taps[CHANNELS_FIRST && !ONE_TAP ? a.COPIES : 1] = {};
    #pragma unroll
    for (int i = 0; i < a.COPIES; ++i) {
        if (!CHANNELS_FIRST || i == 0) mine[i] = a.has(i) ? rows[CHANNELS_FIRST ? a.x : a.y + i * a.STEP] : Row{};
        if (i < sizeof(taps) / sizeof(Tap)) advance(taps[i], CHANNELS_FIRST ? a.y + i * a.STEP : a.x, product);
    }
    int plane = product.height * product.width, left = K - b.y;  // rows of filters
    bool b_inside = first_column + b.x < product.N;
    const float* b_from = filters + (size_t)(product.filters + b.y) * product.N + first_column + b.x;
    auto start = [&](auto& tiles) {
        #pragma unroll
        for (int i = 0; i < a.COPIES; ++i) {
            const Row& row = mine[CHANNELS_FIRST ? 0 : i];
            Tap tap = taps[CHANNELS_FIRST && !ONE_TAP ? i : 0];
            if (CHANNELS_FIRST && ONE_TAP) tap.channel += i * a.STEP;
            bool inside = is_inside(row, needed(tap, product));
            int pixel = row.from + distance(tap, product);
            if (CHANNELS_FIRST) pixel += (row.image * (product.channels - 1) + tap.channel) * plane;
            else pixel = pixel * product.channels + tap.channel;
            int y = a.y + i * a.STEP;
            const float* from = image + (inside ? pixel : 0);
            if (a.has(i)) cp_async<CHANNELS_FIRST ? 4 : 4 * A_ELEMENTS>(&tiles.A[y][a.x], from, inside);
        }
        #pragma unroll
        for (int i = 0; i < b.COPIES; ++i) {
            bool inside = b_inside && i * b.STEP < left;
            const float* from = inside ? b_from + (size_t)(i * b.STEP) * product.N : filters;
            if (b.has(i)) cp_async<4 * B_ELEMENTS>(&tiles.B[b.y + i * b.STEP][b.x], from, inside);
        }
        cp_async_commit_group();
        #pragma unroll
        for (Tap& tap : taps) advance(tap, DEPTH, product);
        b_from += (size_t)DEPTH * product.N, left -= DEPTH;
    };
    Totals totals = {};
    multiply(ring, (K + DEPTH - 1) / DEPTH, totals, start);

    if (CHANNELS_FIRST) {
        // Through the ring's memory, transposed: then neighbouring threads have neighbouring pixels of a channel.
        __syncthreads();
        float(*results)[TILE_M + 4] = reinterpret_cast<float(*)[TILE_M + 4]>(ring);
        #pragma unroll
        for (int j = 0; j < COLUMNS; ++j)
            #pragma unroll
            for (int i = 0; i < ROWS; i += 4)
                store4(&results[column_in_tile(j)][row_in_tile(i)], totals[i][j], totals[i + 1][j], totals[i + 2][j],
                       totals[i + 3][j]);
        __syncthreads();
        int plane = product.out_height * product.out_width, channels = min(TILE_N, product.N - first_column);
        for (int n = threadIdx.x; n < TILE_M * channels; n += THREADS) {
            int y = n % TILE_M, x = n / TILE_M;
            size_t first = rows[y].to + (size_t)(rows[y].image * (product.N - 1) + first_column + x) * plane;
            if (rows[y].to >= 0) out[first] = results[x][y];
        }
        return;
    }
    #pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        int to = rows[row_of_rows(i)].to;
        if (to >= 0) store_row(out + (size_t)to * product.N, totals[i], first_column, product.N);
    }
}

// Weight gradient: a block's tile of the sums over one slice of the pixels.
inline void multiply_pixels(const Geometry& g, const float* image, const float* dy, float* sums, int slice,
                            unsigned char* memory)
{
    Tiles* ring = reinterpret_cast<Tiles*>(memory);
    int M = g.kernel * g.kernel * g.channels, N = g.channels_out, plane = g.out_height * g.out_width;
    int pixels = g.images * plane;
    int tiles_n = (N + TILE_N - 1) / TILE_N, tiles = (M + TILE_M - 1) / TILE_M * tiles_n;
    int tile = blockIdx.x % tiles, first_row = tile / tiles_n * TILE_M, first_column = tile % tiles_n * TILE_N;
    int begin = blockIdx.x / tiles * slice, end = min(pixels, begin + slice);

    // NHWC: the same tap and channels for several pixels. NCHW: the same pixel for several taps and channels.
    Share<CHANNELS_FIRST ? TILE_M : DEPTH, CHANNELS_FIRST ? DEPTH : TILE_M, CHANNELS_FIRST ? 1 : A_ELEMENTS> a;
    Share<CHANNELS_FIRST ? TILE_N : DEPTH, CHANNELS_FIRST ? DEPTH : TILE_N, CHANNELS_FIRST ? 1 : B_ELEMENTS> b;
    Tap taps[CHANNELS_FIRST ? a.COPIES : 1];
    #pragma unroll
    for (int i = 0; i < (CHANNELS_FIRST ? a.COPIES : 1); ++i) {
        int m = first_row + (CHANNELS_FIRST ? a.y + i * a.STEP : a.x), tap = m / g.channels;
        taps[i] = {m < M ? m % g.channels : -1, tap / g.kernel, tap % g.kernel};
    }
    auto start = [&](Tiles& tiles) {
        #pragma unroll
        for (int i = 0; i < a.COPIES; ++i) {
            const Tap& tap = taps[CHANNELS_FIRST ? i : 0];
            int pixel = begin + (CHANNELS_FIRST ? a.x : a.y + i * a.STEP);
            Corner corner = corner_of(g, pixel);
            int y = corner.y + tap.p, x = corner.x + tap.q;
            bool inside = tap.channel >= 0 && pixel < end && (unsigned)y < g.height && (unsigned)x < g.width;
            int from = CHANNELS_FIRST ? ((corner.image * g.channels + tap.channel) * g.height + y) * g.width + x
                                      : ((corner.image * g.height + y) * g.width + x) * g.channels + tap.channel;
            int row = a.y + i * a.STEP;
            float* to = CHANNELS_FIRST ? &tiles.A[a.x][row] : &tiles.A[row][a.x];
            if (a.has(i)) cp_async<CHANNELS_FIRST ? 4 : 4 * A_ELEMENTS>(to, image + (inside ? from : 0), inside);
        }
        #pragma unroll
        for (int i = 0; i < b.COPIES; ++i) {
            int row = b.y + i * b.STEP, pixel = begin + (CHANNELS_FIRST ? b.x : row);
            int column = first_column + (CHANNELS_FIRST ? row : b.x);
            bool inside = column < N && pixel < end;
            int in_image = CHANNELS_FIRST ? divide(pixel, g.by_image[0]) : 0;
            size_t from = CHANNELS_FIRST ? (size_t)pixel + (size_t)(in_image * (N - 1) + column) * plane
                                         : (size_t)pixel * N + column;
            float* to = CHANNELS_FIRST ? &tiles.B[b.x][row] : &tiles.B[row][b.x];
            if (b.has(i)) cp_async<CHANNELS_FIRST ? 4 : 4 * B_ELEMENTS>(to, dy + (inside ? from : 0), inside);
        }
        cp_async_commit_group();
        begin += DEPTH;
    };
    Totals totals = {};
    multiply(ring, (max(end - begin, 0) + DEPTH - 1) / DEPTH, totals, start);

    sums += (size_t)(blockIdx.x / tiles) * M * N;
    #pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        int y = first_row + row_in_tile(i);
        if (y < M) store_row(sums + (size_t)y * N, totals[i], first_column, N);
    }
}

using Element = float;

#include "implicit_passes.cuh"
