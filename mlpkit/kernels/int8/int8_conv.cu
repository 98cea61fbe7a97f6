// A convolution of bytes, with bias, pool and ReLU, that gives bytes; and with STEM the one before it in the same kernel.
//
// The image lies in shared memory once, with a margin of the value that stands for zero, and a tap is an address: see
// conv_13_portable.cu. 32 k of a product are two pieces, of one tap or of two. All filters of a block are resident. A
// block has TEAMS teams of warps, and each team an image of its own: while one rounds and stores, others multiply.
//
// The stem is a first convolution of few channels. Its windows are gathered: nine bytes of 16 are a product's row, so a
// piece is a window. What it makes stays in shared memory.
//
// For few images time is a chain of waits. So pixels are asked for first, for theirs is the longest way, then all that
// is constant; and the filters, which are most of it, are waited for when the stem has been multiplied.

#include "bytes.cuh"

#ifndef STEM
#define STEM 0
#endif
#ifndef IN_DOWN
#define IN_DOWN 13  // pixels that the convolution reads, and groups of 16 channels
#define IN_ACROSS 13
#define IN_GROUPS 4
#define KERNEL 3
#define STRIDE 1
#define PADDING 0
#define POOL 2      // or 1
#define DOWN 5      // of the result
#define ACROSS 5
#define CHANNELS 128
#endif
#ifndef FLOATS
#define FLOATS 0  // whether the result is float32, (images, channels, pixels), as of a network's end
#endif
#ifndef WARPS_M
#define WARPS_M 4  // warps of a team, by 32 output channels, and by windows
#define WARPS_N 1
#define PAIRS 7    // of tiles of 8 windows, that a warp has at a time
#define TEAMS 3
#endif
#ifndef STEM_CHANNELS
#define STEM_CHANNELS 64
#define STEM_KERNEL 3
#define STEM_STRIDE 1
#define STEM_PADDING 0
#define STEM_POOL 2
#define PIXEL unsigned char
#define PIXEL_CHANNELS 1
#define PIXELS_DOWN 28
#define PIXELS_ACROSS 28
#endif

constexpr int TALL = IN_DOWN + 2 * PADDING, WIDE = IN_ACROSS + 2 * PADDING, PLANE = TALL * WIDE;
constexpr int TAPS = KERNEL * KERNEL, PIECES = TAPS * IN_GROUPS, STEPS = (PIECES + 1) / 2;
constexpr int WINDOWS = DOWN * ACROSS, ALL_PAIRS = POOL == 2 ? (WINDOWS + 3) / 4 : (WINDOWS + 15) / 16;
constexpr int GROUPS = (CHANNELS + 15) / 16, TEAM = 32 * WARPS_M * WARPS_N, THREADS = TEAM * TEAMS;
constexpr int FILTERS = 2 * WARPS_M * STEPS * 32, IMAGE = IN_GROUPS * PLANE, PLACES = (STEPS + 1) / 2;  // pieces

// Where a piece of a window lies, in bytes from the window's corner.
constexpr Word place(int piece)
{
    const int tap = piece < PIECES ? piece / IN_GROUPS : 0, group = piece < PIECES ? piece % IN_GROUPS : 0;
    return (group * PLANE + tap / KERNEL * WIDE + tap % KERNEL) * sizeof(Piece);
}

struct Arguments {
    const void* x;  // pixels with STEM, else blocked bytes
    void* y;
    const Piece* filters;  // [16 channels][step][lane]
    Back back;
    const float* scale;  // with FLOATS
    int images, zero;    // that stands for zero in x
};

struct StemArguments {
    const Piece* filters;
    Back back;
    Entry entry;
    int zero;  // that stands for zero in the pixels
};

extern __shared__ __align__(128) unsigned char shared_bytes[];

// ---- The first convolution ----

#if STEM
namespace stem {

constexpr int TALL = PIXELS_DOWN + 2 * STEM_PADDING, WIDE = PIXELS_ACROSS + 2 * STEM_PADDING;
constexpr int VALUES = PIXEL_CHANNELS * STEM_KERNEL * STEM_KERNEL, PIECES = (VALUES + 15) / 16, STEPS = (PIECES + 1) / 2;
constexpr int WINDOWS = IN_DOWN * IN_ACROSS, STEM_PAIRS = STEM_POOL == 2 ? (WINDOWS + 3) / 4 : (WINDOWS + 15) / 16;
constexpr int COLUMNS = 16 * STEM_PAIRS, TILES = (STEM_CHANNELS + 31) / 32, FILTERS = 2 * TILES * STEPS * 32;
constexpr int AREA = PIXELS_DOWN * PIXELS_ACROSS, PIXELS = PIXEL_CHANNELS * AREA;
constexpr int WARPS = TEAM / 32, EACH = (STEM_PAIRS + WARPS - 1) / WARPS, FIT = THREADS > 512 ? 2 : 4;
constexpr int AT_ONCE = EACH < FIT ? EACH : FIT;  // pairs of tiles that a warp has under way
constexpr int BYTES = (PIXEL_CHANNELS * TALL * WIDE + 15) / 16 * 16;  // of an image's pixels, with their margin

// The pixels of the next image, in a team's registers until the one before has been gathered.
struct Next {
    static constexpr int EACH = (PIXELS + TEAM - 1) / TEAM;
    PIXEL pixels[EACH];

    __device__ void fetch(const void* x, int image, int thread)
    {
        #pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const int at = i * TEAM + thread;
            if (at < PIXELS) pixels[i] = static_cast<const PIXEL*>(x)[(size_t)image * PIXELS + at];
        }
    }

    __device__ void put(const Entry& entry, unsigned char* to, int thread) const
    {
        #pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const int at = i * TEAM + thread, row = at % AREA / PIXELS_ACROSS + STEM_PADDING;
            if (at < PIXELS)
                to[(at / AREA * TALL + row) * WIDE + at % PIXELS_ACROSS + STEM_PADDING] = entry.of(pixels[i]);
        }
    }
};

// Gather what each window sees: pieces [number][column].
static __device__ __forceinline__ void gather(const unsigned char* pixels, Piece* to, int thread)
{
    for (int column = thread; column < COLUMNS; column += TEAM) {
        const Columns<STEM_POOL, IN_ACROSS, WINDOWS> at(column / 16, column / 8 % 2, column % 8);
        const unsigned char* corner = pixels + (at.y * WIDE + at.x) * STEM_STRIDE;
        #pragma unroll
        for (int number = 0; number < PIECES; ++number) {
            Piece piece = {};
            #pragma unroll
            for (int j = 0; j < 16; ++j) {
                const int k = number * 16 + j, c = k / (STEM_KERNEL * STEM_KERNEL), tap = k % (STEM_KERNEL * STEM_KERNEL);
                if (k < VALUES)
                    piece.words[j / 4] |= (Word)corner[(c * TALL + tap / STEM_KERNEL) * WIDE + tap % STEM_KERNEL]
                                          << j % 4 * 8;
            }
            to[number * COLUMNS + column] = piece;
        }
    }
}

// Write a window's four channels into the image.
static __device__ __forceinline__ void put(Piece* image, int window, int group, Word bytes)
{
    const int lane = threadIdx.x % 32;
    const int at = (window / IN_ACROSS + PADDING) * ::WIDE + window % IN_ACROSS + PADDING;
    if (window < WINDOWS && group < IN_GROUPS) image[group * PLANE + at].words[lane / 4 % 4] = bytes;
}

// Multiply: a warp takes each TEAM / 32-th pair of tiles, and all filters, 32 at a time.
static __device__ __forceinline__ void multiply(const Back& back, const Factors<32 * TILES>& factors,
                                                const Piece* filters, const Piece* gathered, Piece* image, int warp,
                                                int lane)
{
    const int row = lane / 16 * 8 + lane % 8;
    #pragma unroll 1
    for (int tile = 0; tile < TILES; ++tile) {
        const Four four(factors, 32 * tile + lane / 4 * 4);
        Piece mine[STEPS][2];
        #pragma unroll
        for (int i = 0; i < 2 * STEPS; ++i)
            mine[i / 2][i % 2] = filters[((2 * tile + i % 2) * STEPS + i / 2) * 32 + lane];
        #pragma unroll 1
        for (int begin = warp; begin < STEM_PAIRS; begin += AT_ONCE * WARPS) {
            Sums sums[AT_ONCE] = {};
            #pragma unroll
            for (int i = 0; i < AT_ONCE * STEPS; ++i) {
                const int number = min(i % STEPS * 2 + lane / 8 % 2, PIECES - 1);
                const int pair = min(begin + i / STEPS * WARPS, STEM_PAIRS - 1);
                Word b[4];
                ldmatrix_x4(b, shared_address(gathered) + (number * COLUMNS + pair * 16 + row) * sizeof(Piece));
                sums[i / STEPS].add(mine[i % STEPS], b);
            }
            #pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                const int pair = begin + i * WARPS, group = 2 * tile + lane / 16;
                int found[4];
                if (pair >= STEM_PAIRS) break;
                if constexpr (STEM_POOL == 2) {
                    sums[i].largest(found);
                    put(image, 4 * pair + lane % 4, group, four.back_to_bytes(back, found));
                } else {
                    #pragma unroll
                    for (int j = 0; j < 4; ++j) {
                        sums[i].column(j / 2, j % 2, found);
                        const int window = 16 * pair + j / 2 * 8 + lane % 4 * 2 + j % 2;
                        put(image, window, group, four.back_to_bytes(back, found));
                    }
                }
            }
        }
    }
}

}  // namespace stem
#endif

// ---- The convolution ----

// What a block's teams share, in shared memory, and behind it what each team has.
struct Shared {
    Piece filters[FILTERS];
    Factors<32 * WARPS_M> factors;
    Piece places[PLACES];  // of all pieces of a window: words
#if STEM
    Piece stem_filters[stem::FILTERS];
    Factors<32 * stem::TILES> stem_factors;
    unsigned char table[256];
#endif
};

struct Team {
    Piece image[IMAGE];
#if STEM
    Piece gathered[stem::PIECES * stem::COLUMNS];
    unsigned char pixels[stem::BYTES];
#endif
};

// Ask for an image, and leave its margin as it is.
static __device__ __forceinline__ void ask(const Arguments& a, Piece* image, int number, int thread)
{
    constexpr int AREA = IN_DOWN * IN_ACROSS, ALL = IN_GROUPS * AREA;
    const Piece* from = static_cast<const Piece*>(a.x) + (size_t)number * ALL;
    for (int i = thread; i < ALL; i += TEAM) {
        const int group = i / AREA, row = i % AREA / IN_ACROSS, column = i % IN_ACROSS;
        cp_async<16>(image + group * PLANE + (row + PADDING) * WIDE + column + PADDING, from + i);
    }
}

// Store four channels of a window. first: of the channels.
static __device__ __forceinline__ void store(const Arguments& a, const Four& four, int image, int first, int window,
                                             const int (&found)[4])
{
    if (window >= WINDOWS || first >= 16 * GROUPS) return;
    if constexpr (FLOATS) {
        #pragma unroll
        for (int j = 0; j < 4; ++j)
            if (first + j < CHANNELS)
                static_cast<float*>(a.y)[((size_t)image * CHANNELS + first + j) * WINDOWS + window] =
                    (float)(found[j] + a.back.bias[first + j]) * a.scale[first + j];
    } else {
        Piece* to = static_cast<Piece*>(a.y) + ((size_t)image * GROUPS + first / 16) * WINDOWS + window;
        to->words[first / 4 % 4] = four.back_to_bytes(a.back, found);
    }
}

// The products of a warp's 32 channels with PAIRS pairs of tiles, from `begin` on, and what becomes of their sums.
static __device__ __forceinline__ void multiply(const Arguments& a, const Shared& shared, const Piece* image,
                                                int number, int height, int begin, int warp, int lane)
{
    const Piece* filters = shared.filters + warp * 2 * STEPS * 32;
    const Word* places = reinterpret_cast<const Word*>(shared.places);
    Sums sums[PAIRS] = {};
    Word corner[PAIRS];
    #pragma unroll
    for (int pair = 0; pair < PAIRS; ++pair) {
        const Columns<POOL, ACROSS, WINDOWS> at(begin + pair, lane / 16, lane % 8);
        corner[pair] = shared_address(image) + (at.y * WIDE + at.x) * STRIDE * sizeof(Piece);
    }
    #pragma unroll (PAIRS == 1 ? 9 : PAIRS <= 4 ? 4 : 1)
    for (int step = 0; step < STEPS; ++step) {
        const Word further = places[2 * step + lane / 8 % 2];
        const Piece mine[2] = {filters[step * 32 + lane], filters[(STEPS + step) * 32 + lane]};
        #pragma unroll
        for (int pair = 0; pair < PAIRS; ++pair) {
            Word b[4];
            ldmatrix_x4(b, corner[pair] + further);
            sums[pair].add(mine, b);
        }
    }
    const int mine = warp * 32 + lane / 4 * 4, first = height * 32 * WARPS_M + mine;
    const Four four(shared.factors, mine);
    #pragma unroll
    for (int pair = 0; pair < PAIRS; ++pair) {
        int found[4];
        if constexpr (POOL == 2) {
            sums[pair].largest(found);
            store(a, four, number, first, 4 * (begin + pair) + lane % 4, found);
        } else {
            #pragma unroll
            for (int i = 0; i < 4; ++i) {
                sums[pair].column(i / 2, i % 2, found);
                store(a, four, number, first, 16 * (begin + pair) + i / 2 * 8 + lane % 4 * 2 + i % 2, found);
            }
        }
    }
}

// Fill with a byte what no image ever writes: margins.
static __device__ __forceinline__ void fill(Piece* to, int pieces, int byte, int thread)
{
    const Word four = byte * 0x01010101u;
    #pragma unroll 1
    for (int i = thread; i < pieces; i += TEAM) to[i] = {four, four, four, four};
}

// gridDim.x is a multiple of the number of times that a block's channels are in all of them.
extern "C" __global__ __launch_bounds__(THREADS, 1)
void convolve(const __grid_constant__ Arguments a
#if STEM
              , const __grid_constant__ StemArguments s
#endif
)
{
    const int warp = threadIdx.x / 32 % (TEAM / 32), lane = threadIdx.x % 32;
    const int thread = threadIdx.x % TEAM, team = threadIdx.x / TEAM;
    constexpr int HEIGHTS = (CHANNELS + 32 * WARPS_M - 1) / (32 * WARPS_M);
    const int height = blockIdx.x % HEIGHTS, step = gridDim.x / HEIGHTS * TEAMS;
    Shared& shared = *reinterpret_cast<Shared*>(shared_bytes);
    Team& mine = reinterpret_cast<Team*>(&shared + 1)[team];
    int image = blockIdx.x / HEIGHTS * TEAMS + team;
#if STEM
    Entry entry = s.entry;
    entry.table = shared.table;
    begin_in_turn();
    stem::Next next;
    if (image < a.images) next.fetch(a.x, image, thread);
    ask_for<stem::FILTERS, THREADS>(shared.stem_filters, s.filters, threadIdx.x);
    ask_for<16, THREADS>(reinterpret_cast<Piece*>(shared.table), s.entry.table, threadIdx.x);
    shared.stem_factors.ask<THREADS>(s.back, 0, threadIdx.x);
    cp_async_commit_group();
#endif
    ask_for<FILTERS, THREADS>(shared.filters, a.filters + (size_t)height * FILTERS, threadIdx.x);
    shared.factors.ask<THREADS>(a.back, height * 32 * WARPS_M, threadIdx.x);
    cp_async_commit_group();
#if STEM
    if (STEM_PADDING > 0) fill(reinterpret_cast<Piece*>(mine.pixels), stem::BYTES / 16, s.zero, thread);
#endif
    if (PADDING > 0) fill(mine.image, IMAGE, a.zero, thread);
    #pragma unroll 1
    for (int i = threadIdx.x; i < 2 * STEPS; i += THREADS) reinterpret_cast<Word*>(shared.places)[i] = place(i);
#if !STEM
    begin_in_turn();
#endif
    cp_async_wait_group<STEM && TEAMS == 1>();  // a team that has no image waits for nobody later on
    __syncthreads();
    for (; image < a.images; image += step) {
#if STEM
        next.put(entry, mine.pixels, thread);
        bar_sync<TEAM>(1 + team);  // pixels are there; all have multiplied the image before
        if (image + step < a.images) next.fetch(a.x, image + step, thread);
        stem::gather(mine.pixels, mine.gathered, thread);
        bar_sync<TEAM>(1 + team);
        stem::multiply(s.back, shared.stem_factors, shared.stem_filters, mine.gathered, mine.image, warp, lane);
#else
        bar_sync<TEAM>(1 + team);  // all have multiplied the image before
        ask(a, mine.image, image, thread);
#endif
        cp_async_wait_all();
        bar_sync<TEAM>(1 + team);  // the image is there
        for (int begin = warp / WARPS_M * PAIRS; begin < ALL_PAIRS; begin += WARPS_N * PAIRS)
            multiply(a, shared, mine.image, image, height, begin, warp % WARPS_M, lane);
    }
}
