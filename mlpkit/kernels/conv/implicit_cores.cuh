// The ring of tiles of the implicit products on tensor cores. The file that includes it says what an Element is, and
// how a warp loads its pieces and multiplies them. Images are stored pixel by pixel (NHWC): the channels of a tap
// follow each other, and one copy brings 16 bytes of them.
//
// Images whose channels are no multiple of 16 bytes are copied one by one where an Element has 4 bytes (A_ELEMENTS
// and B_ELEMENTS are 1); bfloat16 images are stored with channels up to the next multiple of 8, zeros.

#include "implicit.cuh"

#ifndef TILE_M
#define TILE_M 128
#define TILE_N 64
#define WARP_M 32
#define WARP_N 32
#endif
#ifndef DEPTH
#define DEPTH 32
#endif
#ifndef STAGES
#define STAGES 4
#endif
#ifndef BLOCKS
#define BLOCKS 1
#endif
#ifndef CACHED
#define CACHED 1  // windows are copied through the multiprocessor's cache: most of their pixels are in several
#endif
#ifndef FLUSH
#define FLUSH 0  // 1: tensor cores add up a step's sums, and others add them to the totals
#endif
#ifndef A_ELEMENTS
#define A_ELEMENTS (16 / sizeof(Element))
#endif
#ifndef B_ELEMENTS
#define B_ELEMENTS (16 / sizeof(Element))
#endif

constexpr int WARPS_N = TILE_N / WARP_N, WARPS = TILE_M / WARP_M * WARPS_N, THREADS = WARPS * 32;
constexpr int PIECES_M = WARP_M / 16, PIECES_N = WARP_N / 8;  // of a warp's tile
constexpr int FOUR_WORDS = 16 / sizeof(Element);

static_assert(TILE_M % WARP_M == 0 && TILE_N % WARP_N == 0, "a block's tile is made up of its warps' tiles");
static_assert(DEPTH % (2 * PIECE_K) == 0, "each step begins with the first of the two sets of a and b");
static_assert(WARP_N % 16 == 0, "pieces of b are loaded in pairs");

// Rows are some values longer than the tile, so that those that are read together begin in different banks.
struct Tiles {
    Element A[TILE_M][DEPTH + FOUR_WORDS];
    Element B[DEPTH][TILE_N + 8];
};

struct TransposedTiles {  // of a weight gradient: A lies as it lies in memory, a line for each pixel
    Element A[DEPTH][TILE_M + 8];
    Element B[DEPTH][TILE_N + 8];
};

constexpr size_t ROWS_BYTES = (TILE_M * sizeof(Row) + 127) / 128 * 128;  // before the ring
static_assert(ROWS_BYTES + STAGES * sizeof(Tiles) <= 227 << 10, "a block has at most 227 KiB of shared memory");
static_assert(STAGES >= 2, "one pair of tiles is multiplied while others arrive");

// Where the windows of a step's pixels begin: in the image, and at which line (its high half) and column of it. These
// divisions are done once for a pixel, by one thread, and not by all who copy a part of its window.
struct alignas(8) Begin {
    int from, place;
};

constexpr int OUTSIDE = 0x70000000;  // a line that no image has

constexpr size_t BEGINS_BYTES = (2 * DEPTH * sizeof(Begin) + 127) / 128 * 128;  // of two steps; before the ring
static_assert(BEGINS_BYTES + STAGES * sizeof(TransposedTiles) <= 227 << 10, "a block has at most 227 KiB");

// What the registers of a lane hold of a warp's pieces of one k.
struct Pieces {
    Word a[PIECES_M][4], b[PIECES_N][2];
};

using Totals = float[PIECES_M][PIECES_N][4];

void load_pieces(Pieces& pieces, const Tiles& tiles, int row, int column, int k);
void load_pieces(Pieces& pieces, const TransposedTiles& tiles, int row, int column, int k);
void multiply_pieces(Totals& totals, const Pieces& pieces);
int transposed_row(int i, int half);
template <class Result>
void store_row(Result* row, const float (&totals)[PIECES_N][4], int half);

// This thread's copies of a tile of HEIGHT rows of WIDTH values, ELEMENTS at a time: from column x of rows y, y + STEP,
// ...
template <int HEIGHT, int WIDTH, int ELEMENTS>
struct Share {
    static constexpr int ACROSS = WIDTH / ELEMENTS, STEP = THREADS / ACROSS, COPIES = (HEIGHT + STEP - 1) / STEP;
    static_assert(THREADS % ACROSS == 0, "all threads copy as many elements");
    int x = threadIdx.x % ACROSS * ELEMENTS, y = threadIdx.x / ACROSS;
    bool has(int i) const { return HEIGHT % STEP == 0 || y + i * STEP < HEIGHT; }
};

template <int ELEMENTS, bool THROUGH_CACHE = false>
inline void copy(Element* to, const Element* from, bool inside)
{
    if (THROUGH_CACHE) cp_async_ca<ELEMENTS * sizeof(Element)>(to, from, inside);
    else cp_async<ELEMENTS * sizeof(Element)>(to, from, inside);
}

// Go through all steps. start(tiles): ask for the next tiles; all threads have met since it was called last.
template <class T, class Start>
inline void multiply(T* ring, int steps, Totals& totals, Start start)
{
    auto arrive = [] {
        cp_async_wait_group<STAGES - 2>();
        __syncthreads();
    };
    int warp = threadIdx.x / 32, row = warp / WARPS_N * WARP_M, column = warp % WARPS_N * WARP_N;
    Pieces pieces[2];
    for (int slot = 0; slot < STAGES - 1; ++slot) {
        if (slot > 0) __syncthreads();
        start(ring[slot]);
    }
    arrive();
    load_pieces(pieces[0], ring[0], row, column, 0);
    for (int step = 0, slot = 0; step < steps; ++step) {
        const T& tiles = ring[slot];
        T& last = ring[slot > 0 ? slot - 1 : STAGES - 1];
        slot = slot < STAGES - 1 ? slot + 1 : 0;
        Totals parts = {};
        #pragma unroll
        for (int k = 0; k < DEPTH; k += PIECE_K) {
            int which = k / PIECE_K % 2;
            if (k == 0) start(last);
            if (k + PIECE_K == DEPTH) arrive();
            const T& next = k + PIECE_K < DEPTH ? tiles : ring[slot];
            load_pieces(pieces[1 - which], next, row, column, (k + PIECE_K) % DEPTH);
            multiply_pieces(FLUSH ? parts : totals, pieces[which]);
        }
        if (!FLUSH) continue;
        #pragma unroll
        for (int i = 0; i < PIECES_M; ++i)
            #pragma unroll
            for (int j = 0; j < PIECES_N; ++j)
                #pragma unroll
                for (int l = 0; l < 4; ++l) totals[i][j][l] += parts[i][j][l];
    }
}

// The ring's memory takes a block's results (a launch gives as much as the larger of both needs). From there they leave
// by whole lines, 16 bytes a thread. row_in_warp(i, half): a lane's row of its warp's tile, in a half of piece i.
// line(y): where row y of the block's tile belongs, or null.
template <class Result, class Row, class Line>
inline void store_results(const Totals& totals, void* ring, int first_column, int N, Row row_in_warp, Line line)
{
    cp_async_wait_all();
    __syncthreads();
    Result(*results)[TILE_N + 8] = reinterpret_cast<Result(*)[TILE_N + 8]>(ring);
    int warp = threadIdx.x / 32, row = warp / WARPS_N * WARP_M, column = warp % WARPS_N * WARP_N;
    #pragma unroll
    for (int i = 0; i < PIECES_M; ++i)
        #pragma unroll
        for (int half = 0; half < 2; ++half) store_row(&results[row + row_in_warp(i, half)][column], totals[i], half);
    __syncthreads();
    Share<TILE_M, TILE_N, B_ELEMENTS == 1 ? 1 : 16 / sizeof(Result)> share;
    if (first_column + share.x >= N) return;
    #pragma unroll
    for (int i = 0; i < share.COPIES; ++i) {
        int y = share.y + i * share.STEP;
        Result* to = share.has(i) ? line(y) : nullptr;
        if (!to) continue;
        to += first_column + share.x;
        const Result* from = &results[y][share.x];
        if (B_ELEMENTS == 1) *to = *from;
        else *reinterpret_cast<int4*>(to) = *reinterpret_cast<const int4*>(from);
    }
}

// Forward and input gradient: a block's tile of a product of windows and filters.
inline void multiply_windows(const Product& product, int images, const Element* image, const Element* filters,
                             Element* out, unsigned char* memory)
{
    Row* rows = reinterpret_cast<Row*>(memory);
    Tiles* ring = reinterpret_cast<Tiles*>(memory + ROWS_BYTES);
    int tiles_n = (product.N + TILE_N - 1) / TILE_N;
    int first_row = product.block / tiles_n * TILE_M, first_column = product.block % tiles_n * TILE_N;
    int K = product.taps_y * product.taps_x * product.channels;
    for (int i = threadIdx.x; i < TILE_M; i += THREADS) rows[i] = row_of(product, images, first_row + i);
    __syncthreads();

    Share<TILE_M, DEPTH, A_ELEMENTS> a;
    Share<DEPTH, TILE_N, B_ELEMENTS> b;
    Row mine[a.COPIES];
    #pragma unroll
    for (int i = 0; i < a.COPIES; ++i) {
        mine[i] = a.has(i) ? rows[a.y + i * a.STEP] : Row{};
        mine[i].from *= product.channels;
    }
    Tap tap = {};
    advance(tap, a.x, product);
    int left = K - b.y;  // rows of filters
    bool b_inside = first_column + b.x < product.N;
    const Element* b_from = filters + (size_t)(product.filters + b.y) * product.N + first_column + b.x;
    auto start = [&](Tiles& tiles) {
        int further = distance(tap, product) * product.channels + tap.channel;
        unsigned bits = needed(tap, product);
        #pragma unroll
        for (int i = 0; i < a.COPIES; ++i) {
            bool inside = is_inside(mine[i], bits);
            const Element* from = image + (inside ? mine[i].from + further : 0);
            if (a.has(i)) copy<A_ELEMENTS, (CACHED > 0)>(&tiles.A[a.y + i * a.STEP][a.x], from, inside);
        }
        #pragma unroll
        for (int i = 0; i < b.COPIES; ++i) {
            bool inside = b_inside && i * b.STEP < left;
            const Element* from = inside ? b_from + (size_t)(i * b.STEP) * product.N : filters;
            if (b.has(i)) copy<B_ELEMENTS, (CACHED > 1)>(&tiles.B[b.y + i * b.STEP][b.x], from, inside);
        }
        cp_async_commit_group();
        advance(tap, DEPTH, product);
        b_from += (size_t)DEPTH * product.N, left -= DEPTH;
    };
    Totals totals = {};
    multiply(ring, (K + DEPTH - 1) / DEPTH, totals, start);

    auto row_in_warp = [](int i, int half) { return 16 * i + 8 * half + (int)threadIdx.x % 32 / 4; };
    store_results<Element>(totals, ring, first_column, product.N, row_in_warp, [&](int y) {
        return rows[y].to < 0 ? nullptr : out + (size_t)rows[y].to * product.N;
    });
}

// Weight gradient: a block's tile of the sums over one slice of the pixels.
inline void multiply_pixels(const Geometry& g, const Element* image, const Element* dy, float* sums, int slice,
                            unsigned char* memory)
{
    Begin(*begins)[DEPTH] = reinterpret_cast<Begin(*)[DEPTH]>(memory);
    TransposedTiles* ring = reinterpret_cast<TransposedTiles*>(memory + BEGINS_BYTES);
    int M = g.kernel * g.kernel * g.channels, N = g.channels_out, pixels = g.images * g.out_height * g.out_width;
    int tiles_n = (N + TILE_N - 1) / TILE_N, tiles = (M + TILE_M - 1) / TILE_M * tiles_n;
    int tile = blockIdx.x % tiles, first_row = tile / tiles_n * TILE_M, first_column = tile % tiles_n * TILE_N;
    int begin = blockIdx.x / tiles * slice, end = min(pixels, begin + slice);

    Share<DEPTH, TILE_M, A_ELEMENTS> a;
    Share<DEPTH, TILE_N, B_ELEMENTS> b;
    int m = first_row + a.x, tap = m / g.channels, p = tap / g.kernel, q = tap % g.kernel;  // the same in all steps
    const Element* a_from = image + ((p * g.width + q) * g.channels + m % g.channels);
    int further = m < M ? p * 65536 + q : OUTSIDE, which = 0;
    bool b_inside = first_column + b.x < N;
    int left = end - begin - b.y;  // rows of dy
    const Element* b_from = dy + (size_t)(begin + b.y) * N + first_column + b.x;
    auto look_ahead = [&](int pixel) {
        if (threadIdx.x >= DEPTH) return;
        Corner corner = corner_of(g, pixel + threadIdx.x);
        int from = ((corner.image * g.height + corner.y) * g.width + corner.x) * g.channels;
        begins[which][threadIdx.x] = {from, pixel + (int)threadIdx.x < end ? corner.y * 65536 + corner.x : OUTSIDE};
    };
    look_ahead(begin);
    __syncthreads();
    auto start = [&](TransposedTiles& tiles) {
        Begin ats[decltype(a)::COPIES];  // all of them before the first copy
        #pragma unroll
        for (int i = 0; i < a.COPIES; ++i) ats[i] = begins[which][a.has(i) ? a.y + i * a.STEP : 0];
        #pragma unroll
        for (int i = 0; i < a.COPIES; ++i) {
            Begin at = ats[i];
            unsigned place = at.place + further;  // a column below 0 is one far beyond the last, and so is a line
            bool inside = place % 65536 < g.width && place / 65536 < g.height;
            const Element* from = inside ? a_from + at.from : image;
            if (a.has(i)) copy<A_ELEMENTS, (CACHED > 0)>(&tiles.A[a.y + i * a.STEP][a.x], from, inside);
        }
        which = 1 - which;
        look_ahead(begin + DEPTH);
        #pragma unroll
        for (int i = 0; i < b.COPIES; ++i) {
            bool inside = b_inside && i * b.STEP < left;
            const Element* from = inside ? b_from + (size_t)(i * b.STEP) * N : dy;
            if (b.has(i)) copy<B_ELEMENTS, (CACHED > 1)>(&tiles.B[b.y + i * b.STEP][b.x], from, inside);
        }
        cp_async_commit_group();
        begin += DEPTH;
        b_from += (size_t)DEPTH * N, left -= DEPTH;
    };
    Totals totals = {};
    multiply(ring, (max(end - begin, 0) + DEPTH - 1) / DEPTH, totals, start);
    sums += (size_t)(blockIdx.x / tiles) * M * N;
    store_results<float>(totals, ring, first_column, N, transposed_row, [&](int y) {
        return first_row + y < M ? sums + (size_t)(first_row + y) * N : nullptr;
    });
}

#include "implicit_passes.cuh"
