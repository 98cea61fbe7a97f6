// The first convolution on tensor cores, with bias, pool and ReLU: what a window sees is a row of a matrix.
//
// The sums of 2 x 2 neighbours see SIDE x SIDE pixels: with filters of 3 x 3 that is 16, as many as an instruction
// multiplies. So A is 16 such patches, and B eight filters, four times: for each of the four sums at another place in
// the patch, with zeros around. Then the pool is a maximum of registers. A patch begins in an even column: two pixels
// in bfloat16 are a word, and a lane takes its words from the image as it lies in shared memory. Bytes, 0 to 255, are
// exact in bfloat16.

#include "first_shape.cuh"
#include "ptx.cuh"

#ifndef PIXEL
#define PIXEL unsigned char
#endif
#ifndef FIRST_POOL
#define FIRST_POOL 2  // or 1
#endif
#ifndef FIRST_RELU
#define FIRST_RELU 1
#endif
#ifndef FIRST_KEEPS
#define FIRST_KEEPS 0  // whether is kept which of a pool's sums came through, or that ReLU cut it off; see between.cuh
#endif
#ifndef FIRST_TALL
#define FIRST_TALL 26  // of the sums that are asked for
#define FIRST_WIDE 26
#endif
#ifndef FIRST_PITCH
#define FIRST_PITCH (FIRST_WIDE / FIRST_POOL)  // pixels from one row of the result to the next
#endif

namespace first {

constexpr int SIDE = KERNEL + 1, ACROSS_SIDE = (SIDE + 1) / 2;  // rows of a patch, and words of a row
constexpr int WORDS = CHANNELS_IN * SIDE * ACROSS_SIDE, STEPS = (WORDS + 7) / 8;
constexpr int DOWN = (FIRST_TALL + 1) / 2, ACROSS = (FIRST_WIDE + 1) / 2, PATCHES = DOWN * ACROSS;
constexpr int TILES = (PATCHES + 15) / 16;
constexpr int TALL = 2 * DOWN + KERNEL - 1, WIDE = ACROSS + ACROSS_SIDE - 1;  // of a channel in shared memory: in words
constexpr int IMAGE = CHANNELS_IN * TALL * WIDE, AREA = IMAGE_HEIGHT * IMAGE_WIDTH;
constexpr int ELEMENTS = FIRST_TALL / FIRST_POOL * FIRST_PITCH;  // of a channel of the result

// What a lane has of B: inputs 2 (lane % 4) and the next one, and those 8 further on.
struct alignas(8) Pair {
    Word first, second;
};

#if FIRST_KEEPS
typedef float Given;  // in training: filters as the layer has them
#else
typedef Pair Given;
#endif

// What `THREADS` threads hold of the next image, until there is room for it. thread: of these.
template <int THREADS>
struct Resident {
    static constexpr int EACH = (CHANNELS_IN * AREA + THREADS - 1) / THREADS;  // pixels of a thread
    PIXEL pixels[EACH];

    __device__ void fetch(const PIXEL* x, int image, int thread)
    {
        #pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const int at = i * THREADS + thread;
            if (at < CHANNELS_IN * AREA) pixels[i] = x[(size_t)image * (CHANNELS_IN * AREA) + at];
        }
    }

    __device__ void put(unsigned short* image, int thread) const
    {
        #pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const int at = i * THREADS + thread, plane = at / AREA;
            const int row = at % AREA / IMAGE_WIDTH + PADDING, column = at % IMAGE_WIDTH + PADDING;
            if (plane < CHANNELS_IN && row < TALL && column < 2 * WIDE)
                image[(plane * TALL + row) * (2 * WIDE) + column] = cvt_rn_bf16((float)pixels[i]);
        }
    }
};

// Two groups of eight filters, as a warp has them, and what it does with them.
struct Filters {
    Pair b[2][4][STEPS];
    float2 bias[2];
    int offsets[STEPS][2];  // of a lane's words of a patch, from its corner: rows and channels lie apart in the image

    // filters, biases: of all groups, as the kernel is given them. pair: of groups.
    __device__ void load(const Pair* filters, const float* biases, int pair, int = 0)
    {
        const int lane = threadIdx.x % 32;
        #pragma unroll
        for (int i = 0; i < 8 * STEPS; ++i)
            b[i / STEPS / 4][i / STEPS % 4][i % STEPS] = filters[(size_t)(pair * 8 * STEPS + i) * 32 + lane];
        #pragma unroll
        for (int g = 0; g < 2; ++g) bias[g] = reinterpret_cast<const float2*>(biases)[(2 * pair + g) * 4 + lane % 4];
        find_offsets();
    }

    __device__ void find_offsets()
    {
        #pragma unroll
        for (int i = 0; i < 2 * STEPS; ++i) {
            const int word = 4 * i + threadIdx.x % 4, row = word / ACROSS_SIDE;
            offsets[i / 2][i % 2] = word < WORDS ? (row / SIDE * TALL + row % SIDE) * WIDE + word % ACROSS_SIDE : 0;
        }
    }

    // The same from filters as a layer has them, W (channels, CHANNELS_IN, KERNEL, KERNEL), and biases, or null.
    __device__ void load(const float* W, const float* biases, int pair, int channels)
    {
        const int lane = threadIdx.x % 32;
        const auto weight = [&](int filter, int place, int word, int odd) {
            const int row = word / ACROSS_SIDE, y = row % SIDE - place / 2;
            const int x = 2 * (word % ACROSS_SIDE) + odd - place % 2;
            const bool inside = word < WORDS && filter < channels && y >= 0 && y < KERNEL && x >= 0 && x < KERNEL;
            return inside ? W[((filter * CHANNELS_IN + row / SIDE) * KERNEL + y) * KERNEL + x] : 0;
        };
        #pragma unroll
        for (int i = 0; i < 8 * STEPS; ++i) {
            const int filter = (2 * pair + i / STEPS / 4) * 8 + lane / 4, place = i / STEPS % 4;
            const int word = 8 * (i % STEPS) + lane % 4;
            b[i / STEPS / 4][place][i % STEPS] = {
                cvt_rn_bf16x2(weight(filter, place, word, 0), weight(filter, place, word, 1)),
                cvt_rn_bf16x2(weight(filter, place, word + 4, 0), weight(filter, place, word + 4, 1))};
        }
        #pragma unroll
        for (int g = 0; g < 2; ++g) {
            const int filter = (2 * pair + g) * 8 + 2 * (lane % 4);
            bias[g].x = biases && filter < channels ? biases[filter] : 0;
            bias[g].y = biases && filter + 1 < channels ? biases[filter + 1] : 0;
        }
        find_offsets();
    }

    // The results of 16 patches, from the image to blocked words: `to` of the first group, `plane` words further on
    // the second one, if there are two `groups`. kept: of the first group, with FIRST_KEEPS; four bytes a patch.
    __device__ void tile(const Word* image, int number, Word* to, size_t plane, int groups = 2,
                         unsigned char* kept = nullptr) const
    {
        const int one = number * 16 + threadIdx.x % 32 / 4, two = one + 8;
        const Word* at_one = image + corner(min(one, PATCHES - 1));
        const Word* at_two = image + corner(min(two, PATCHES - 1));
        Word a[STEPS][4];
        #pragma unroll
        for (int i = 0; i < 4 * STEPS; ++i) a[i / 4][i % 4] = (i % 2 ? at_two : at_one)[offsets[i / 4][i % 4 / 2]];
        #pragma unroll
        for (int g = 0; g < 2; ++g) {
            if (g >= groups) break;
            float sums[4][4] = {};
            #pragma unroll
            for (int step = 0; step < STEPS; ++step)
                #pragma unroll
                for (int place = 0; place < 4; ++place)
                    mma_m16n8k16_bf16(sums[place], a[step], b[g][place][step].first, b[g][place][step].second);
            store(sums, 0, bias[g], to + g * plane, one, kept + g * plane);
            store(sums, 2, bias[g], to + g * plane, two, kept + g * plane);
        }
    }

    static __device__ int corner(int patch) { return patch / ACROSS * 2 * WIDE + patch % ACROSS; }

    // Write two filters' sums of a patch.
    static __device__ void store(const float (&sums)[4][4], int half, float2 bias, Word* to, int patch,
                                 unsigned char* kept)
    {
        const auto finish = [&](float x, float y) {
            x += bias.x, y += bias.y;
            return FIRST_RELU ? cvt_rn_bf16x2(max_nan(x, 0), max_nan(y, 0)) : cvt_rn_bf16x2(x, y);
        };
        const int lane = threadIdx.x % 4;
        if (FIRST_KEEPS) {
            static_assert(!FIRST_KEEPS || FIRST_POOL == 2 && FIRST_RELU, "a window's places and the cut are four bits");
            float best[2];
            Word code = 0;
            #pragma unroll
            for (int j = 0; j < 2; ++j) {
                float most = sums[0][half + j];
                Word place = 0;
                #pragma unroll
                for (int other = 1; other < 4; ++other) {
                    place = sums[other][half + j] > most ? other : place;
                    most = max_nan(most, sums[other][half + j]);
                }
                best[j] = most;
                code |= (most + (j ? bias.y : bias.x) <= 0 ? 15 : place) << 4 * j;
            }
            if (patch >= PATCHES) return;
            to[patch * 4 + lane] = finish(best[0], best[1]);
            kept[patch * 4 + lane] = code;
        } else if (FIRST_POOL == 2) {
            float x = sums[0][half], y = sums[0][half + 1];
            #pragma unroll
            for (int place = 1; place < 4; ++place)
                x = max_nan(x, sums[place][half]), y = max_nan(y, sums[place][half + 1]);
            if (patch < PATCHES) to[(patch / ACROSS * FIRST_PITCH + patch % ACROSS) * 4 + lane] = finish(x, y);
        } else {
            #pragma unroll
            for (int place = 0; place < 4; ++place) {
                const int row = patch / ACROSS * 2 + place / 2, column = patch % ACROSS * 2 + place % 2;
                if (patch < PATCHES && row < FIRST_TALL && column < FIRST_WIDE)
                    to[(row * FIRST_PITCH + column) * 4 + lane] = finish(sums[place][half], sums[place][half + 1]);
            }
        }
    }
};

}  // namespace first
