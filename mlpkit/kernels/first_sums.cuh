// The first convolution's weight gradient from sums in registers: the gradient of what it pooled is never written.
//
// The input gradient of the second convolution is what the first one's pool wants back: a gradient d for each filter and
// window. It belongs to the one pixel of its window that was the largest, and is added up times the pixels that this
// one's sum saw. That is a product again: d, filters by windows, times patches, windows by taps, one for each place in a
// window; d is zero where another place was the largest. The accumulators of one product are fragments of the next, as
// they lie; the patches lie in shared memory in fp16 (parts), with ones in the column behind the taps, for the bias.
// What a warpgroup has of all its tiles leaves once, in the end.

#ifndef FIRST_KERNEL
#define FIRST_KERNEL 3  // of the first convolution, of images of one channel with a stride of 1
#define FIRST_PADDING 0
#define FIRST_POOL 2  // at most
#define FIRST_KEEPS 1
#define FIRST_HEIGHT 28  // of its images
#define FIRST_WIDTH 28
#define FIRST_DOWN 13  // windows of its pool
#define FIRST_ACROSS 13
#define FIRST_ROWS 64  // its filters, in groups of eight
#endif

constexpr int FIRST_TAPS = FIRST_KERNEL * FIRST_KERNEL, FIRST_EACH = FIRST_TAPS + 1;  // sums of a filter: and the bias
constexpr int FIRST_TALL = FIRST_DOWN * FIRST_POOL + FIRST_KERNEL - 1;
constexpr int FIRST_SEEN = FIRST_ACROSS * FIRST_POOL + FIRST_KERNEL - 1;
constexpr int FIRST_WIDE = FIRST_SEEN + (40 - FIRST_SEEN % 32) % 32;  // so that lanes read other banks
constexpr int FIRST_WINDOWS = FIRST_DOWN * FIRST_ACROSS;
constexpr int FIRST_PLACES = FIRST_POOL * FIRST_POOL;
constexpr int FIRST_COLUMNS = (FIRST_EACH + 15) / 16 * 2;  // of patches, eight each
constexpr int FIRST_DEPTHS = (WIDTH + 15) / 16 * 16;       // windows
constexpr int FIRST_PATCHES = FIRST_PLACES * FIRST_COLUMNS * FIRST_DEPTHS;  // pieces of a part
constexpr int FIRST_FIXED = FIRST_TALL * FIRST_WIDE + 8 * FIRST_WINDOWS + 64 * FIRST_EACH + 4;  // words: see FirstTile
constexpr int FIRST_WORDS = FIRST_FIXED + 4 * PARTS * FIRST_PATCHES;                           // of a warpgroup

// What a warpgroup has in shared memory: an image, what was kept of it, totals, its largest value, patches.
struct FirstTile {
    float *image, *totals;  // totals: of 64 filters FIRST_EACH each
    Word *kept, *largest;
    Piece* patches;  // (PARTS, places, columns, windows)

    __device__ FirstTile(float* buffer) : image(buffer)
    {
        kept = reinterpret_cast<Word*>(image + FIRST_TALL * FIRST_WIDE);
        totals = reinterpret_cast<float*>(kept + 8 * FIRST_WINDOWS);
        largest = reinterpret_cast<Word*>(totals + 64 * FIRST_EACH);
        patches = reinterpret_cast<Piece*>(largest + 4);
    }
};

// x (images, FIRST_HEIGHT, FIRST_WIDTH). kept: as in between.cuh, 4 bits a channel. sums (slices, FIRST_ROWS, FIRST_EACH).
struct First {
    const float* x;
    const Word* kept;
    float* sums;
    int groups, padding;  // of eight channels
};

// Ask for an image with zeros around it, and for what was kept of it. By a warpgroup.
inline void ask_for_first(const First& f, int image, const FirstTile& to)
{
    const float* x = f.x + (size_t)image * (FIRST_HEIGHT * FIRST_WIDTH);
    if (threadIdx.x % 128 == 0) *to.largest = 0;
    for (int i = threadIdx.x % 128; i < FIRST_TALL * FIRST_WIDE; i += 128) {
        int row = i / FIRST_WIDE - FIRST_PADDING, column = i % FIRST_WIDE - FIRST_PADDING;
        bool inside = row >= 0 && row < FIRST_HEIGHT && column >= 0 && column < FIRST_WIDTH;
        cp_async<4>(to.image + i, inside ? x + row * FIRST_WIDTH + column : x, inside);
    }
    if (!FIRST_KEEPS) return;
    const Word* kept = f.kept + (size_t)image * f.groups * FIRST_WINDOWS;
    for (int i = threadIdx.x % 128; i < f.groups * FIRST_WINDOWS; i += 128) cp_async<4>(to.kept + i, kept + i, true);
}

// Find the largest magnitude in the image.
inline void look_for_largest(const FirstTile& of)
{
    float most = 0;
    for (int i = threadIdx.x % 128; i < FIRST_TALL * FIRST_WIDE; i += 128) most = fmaxf(most, fabsf(of.image[i]));
    const Word found = __reduce_max_sync(~0u, __float_as_uint(most));
    if (threadIdx.x % 32 == 0) atomicMax(of.largest, found);
}

// Two values as fp16, and what that leaves of them.
inline void two_parts(float x, float y, Word& high, Word& low)
{
    high = cvt_rn_f16x2(x, y);
    const float2 rounded = cvt_f32_f16x2(high);
    low = cvt_rn_f16x2(x - rounded.x, y - rounded.y);
}

// Where a window of a tile is: its number in the image, less than 0 for one between the rows.
inline int first_window(const Problem& p, int first_row, int n)
{
    const int y = divided_by_pitch(p, n), x = n - y * p.pitch;
    const bool inside = y < p.rows && first_row + y < p.windows_y && x < p.windows_x;
    return inside ? (first_row + y) * FIRST_ACROSS + x : -1;
}

// Make the patches of a tile's windows. By a warpgroup.
inline void make_patches(const Problem& p, int tile, const FirstTile& of)
{
    const int first_row = tile % p.bands * p.rows;
    const float scale = scale_for(*of.largest);
    for (int n = threadIdx.x % 128; n < FIRST_PATCHES; n += 128) {
        const int window = first_window(p, first_row, n % FIRST_DEPTHS);
        const int eight = n / FIRST_DEPTHS % FIRST_COLUMNS * 8, place = n / FIRST_DEPTHS / FIRST_COLUMNS;
        const int y = window / FIRST_ACROSS * FIRST_POOL + place / FIRST_POOL;
        const int x = window % FIRST_ACROSS * FIRST_POOL + place % FIRST_POOL;
        float values[8];
        #pragma unroll
        for (int j = 0; j < 8; ++j) {
            const int tap = eight + j, at = (y + tap / FIRST_KERNEL) * FIRST_WIDE + x + tap % FIRST_KERNEL;
            values[j] = tap == FIRST_TAPS ? 1 : 0;
            if (window >= 0 && tap < FIRST_TAPS) values[j] = of.image[at] * scale;
        }
        Piece high, low;
        #pragma unroll
        for (int j = 0; j < 4; ++j) two_parts(values[2 * j], values[2 * j + 1], high.words[j], low.words[j]);
        put(of.patches + n, high);
        if (PARTS == 2) put(of.patches + FIRST_PATCHES + n, low);
    }
}

// A warp's gradients of 16 windows, number `step` of these, as fragments: parts of fp16, and the places of each two.
struct FirstFragments {
    Word high[4], low[4], places[4];

    // sums: as the accumulators of a product of 64 by WIDTH, zeros where there is no window.
    __device__ FirstFragments(const Problem& p, const First& f, const FirstTile& of, int first_row, int channel,
                              int lane, const float (&sums)[WIDTH / 2], float scale, int step)
    {
        #pragma unroll
        for (int eight = 0; eight < 2; ++eight) {
            const int i = 2 * step + eight;
            int windows[2];
            #pragma unroll
            for (int j = 0; j < 2; ++j)
                windows[j] = max(first_window(p, first_row, 8 * i + lane % 4 * 2 + j), 0);
            #pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int group = channel / 8 + half;
                float x[2];
                Word place[2];
                #pragma unroll
                for (int j = 0; j < 2; ++j) {
                    const bool here = 8 * i < WIDTH && group < f.groups;
                    const int at = here ? group * FIRST_WINDOWS + windows[j] : 0;
                    place[j] = FIRST_KEEPS ? of.kept[at] >> lane / 4 * 4 & 15 : 0;
                    x[j] = here && place[j] != 15 ? sums[8 * i < WIDTH ? 4 * i + 2 * half + j : 0] * scale : 0;
                }
                two_parts(x[0], x[1], high[2 * eight + half], low[2 * eight + half]);
                places[2 * eight + half] = place[0] | place[1] << 16;
            }
        }
    }

    // The parts at one place of the windows, and zeros at the others.
    __device__ void at(Word place, Word (&highs)[4], Word (&lows)[4]) const
    {
        #pragma unroll
        for (int j = 0; j < 4; ++j) {
            const Word other = places[j] ^ place * 0x10001;
            const Word mask = (other & 0xFFFF ? 0 : 0xFFFF) | (other >> 16 ? 0 : 0xFFFF0000);
            highs[j] = FIRST_PLACES > 1 ? high[j] & mask : high[j], lows[j] = FIRST_PLACES > 1 ? low[j] & mask : low[j];
        }
    }
};

// Add what a tile's sums mean for the first convolution to the warp's totals: of 16 filters from `channel` on.
static __device__ __forceinline__ void add_to_first(const Problem& p, const First& f, int tile, int channel,
                                                    float (&sums)[WIDTH / 2], float unscale, const FirstTile& of)
{
    const int first_row = tile % p.bands * p.rows;
    int lane = threadIdx.x % 32;
    float most = 0, totals[FIRST_COLUMNS][4] = {};
    #pragma unroll
    for (int i = 0; i < WIDTH / 4; ++i) {  // sums of no window may be anything
        const bool there = first_window(p, first_row, i / 2 * 8 + lane % 4 * 2 + i % 2) >= 0;
        #pragma unroll
        for (int half = 0; half < 2; ++half) {
            float& sum = sums[i / 2 * 4 + 2 * half + i % 2];
            sum = there ? sum : 0;
            most = fmaxf(most, fabsf(sum));
        }
    }
    compute_anew(lane);  // or the windows would want registers
    const float scale = scale_for(__reduce_max_sync(~0u, __float_as_uint(most)));
    #pragma unroll
    for (int step = 0; step < FIRST_DEPTHS / 16; ++step) {
        const FirstFragments d(p, f, of, first_row, channel, lane, sums, scale, step);
        #pragma unroll
        for (int place = 0; place < FIRST_PLACES; ++place) {
            Word highs[4], lows[4], b[4], b_low[4];
            d.at(place, highs, lows);
            #pragma unroll
            for (int column = 0; column < FIRST_COLUMNS; column += 2) {
                const Piece* from = of.patches + (place * FIRST_COLUMNS + column + lane / 16) * FIRST_DEPTHS;
                ldmatrix_x4_trans(b, from + 16 * step + lane % 16);
                if (PARTS == 2) ldmatrix_x4_trans(b_low, from + FIRST_PATCHES + 16 * step + lane % 16);
                #pragma unroll
                for (int k = 0; k < 2; ++k) {
                    if (PARTS == 2) mma_m16n8k16_f16(totals[column + k], highs, b_low[2 * k], b_low[2 * k + 1]);
                    mma_m16n8k16_f16(totals[column + k], lows, b[2 * k], b[2 * k + 1]);
                    mma_m16n8k16_f16(totals[column + k], highs, b[2 * k], b[2 * k + 1]);
                }
            }
        }
    }
    const float of_bias = unscale / scale, of_taps = of_bias / scale_for(*of.largest);
    #pragma unroll
    for (int i = 0; i < 4 * FIRST_COLUMNS; ++i) {
        const int tap = i / 4 * 8 + lane % 4 * 2 + i % 2, filter = channel % 64 + lane / 4 + i % 4 / 2 * 8;
        if (tap < FIRST_EACH)
            of.totals[filter * FIRST_EACH + tap] += totals[i / 4][i % 4] * (tap < FIRST_TAPS ? of_taps : of_bias);
    }
}
