// The first convolution with what follows it: bias, pool, ReLU, and fp16 for the next one.
//
// Blocks take an image, or a part of its filters. Weights lie in shared memory, eight filters' side by side: a warp
// reads one address. See `first.cuh`.

#include "first.cuh"

constexpr int THREADS = 512;

// Ask for the filters, eight side by side, and their biases; zeros for those that are none.
inline void ask_for_filters(const float* W, const float* bias, const Sizes& s, float* weights, float* biases)
{
    #pragma unroll 1
    for (int i = threadIdx.x; i < 8 * s.groups * CHANNELS_IN * TAPS; i += THREADS) {
        int channel = i / (8 * CHANNELS_IN * TAPS) * 8 + i % 8, tap = i / 8 % (CHANNELS_IN * TAPS);
        bool inside = channel < s.channels;
        cp_async<4>(weights + i, W + (inside ? channel * CHANNELS_IN * TAPS + tap : 0), inside);
    }
    #pragma unroll 1
    for (int i = threadIdx.x; i < 8 * s.groups; i += THREADS) {
        bool inside = bias && i < s.channels;
        cp_async<4>(biases + i, inside ? bias + i : W, inside);
    }
}

// Leave the bits of an upper bound: |bias| + the largest |pixel| times the sum of |w|, where that is most.
inline void find_bound(const float* weights, const float* biases, int channels, float pixel, Word* bound)
{
    if (threadIdx.x == 0) *bound = 0;
    cp_async_wait_all();
    __syncthreads();
    for (int i = threadIdx.x; i < channels; i += THREADS) {
        const float* filter = weights + i / 8 * (8 * CHANNELS_IN * TAPS) + i % 8;
        float sum = 0;
        #pragma unroll 9
        for (int k = 0; k < CHANNELS_IN * TAPS; ++k) sum += fabsf(filter[8 * k]);
        atomicMax(bound, __float_as_uint(fabsf(biases[i]) + pixel * sum));
    }
    __syncthreads();
}

// Add what a row of taps has to the sums of a window. rows: of pixels, from the first that this row of taps sees on.
inline void add_row(const float* rows, int window, const float4* filters, float (&sums)[PLACES][8])
{
    float seen[POOL][SIDE];
    load_rows(rows, window, seen);
    #pragma unroll
    for (int tap = 0; tap < KERNEL; ++tap) {
        float w[8];
        floats_of(filters[2 * tap], filters[2 * tap + 1], w);
        #pragma unroll
        for (int place = 0; place < PLACES; ++place)
            #pragma unroll
            for (int j = 0; j < 8; ++j) sums[place][j] += w[j] * seen[place / POOL][place % POOL + tap];
    }
}

// x (images, CHANNELS_IN, IMAGE_HEIGHT, IMAGE_WIDTH) of PIXEL, W (channels, CHANNELS_IN, KERNEL, KERNEL). bias, to,
// kept, scale: as in between_forward.cu. parts: of an image's groups of filters, for a block each. largest: with KNOWN
// the bits of the largest |pixel|, or of a larger one.
extern "C" __global__ __launch_bounds__(THREADS, 1)
void forward(const PIXEL* x, const float* W, const float* bias, void* to, Kept* kept, Scale* scale, Sizes s, int parts,
             const Word* largest)
{
    extern __shared__ __align__(128) unsigned char shared_bytes[];
    Word* words = reinterpret_cast<Word*>(shared_bytes);
    float4* weights = reinterpret_cast<float4*>(words + 4);  // [group][channel in][tap][8], then biases [8 groups]
    float* biases = reinterpret_cast<float*>(weights + 2 * s.groups * CHANNELS_IN * TAPS);
    float* image = biases + 8 * s.groups;
    int resident = blockIdx.x;  // whose image is there, or on its way
    begin_in_turn();
    ask_for_images(x, resident / parts, 1, image, THREADS);
    ask_for_filters(W, bias, s, reinterpret_cast<float*>(weights), biases);

    if constexpr (GUESSES && KNOWN)
        find_bound(reinterpret_cast<float*>(weights), biases, s.channels, __uint_as_float(*largest), words);
    with_scale(scale, words, [&](float factor, bool first) {
        float most = 0;
        for (int item = blockIdx.x; item < s.images * parts; item += gridDim.x) {
            int number = item / parts, first_group = item % parts * s.groups / parts;
            int groups = (item % parts + 1) * s.groups / parts - first_group;
            if (item != resident) {
                __syncthreads();
                ask_for_images(x, number, 1, image, THREADS);
                resident = item;
            }
            cp_async_wait_all();
            __syncthreads();
            for (int i = threadIdx.x; i < groups * WINDOWS; i += THREADS) {
                int at = i % WINDOWS, group = first_group + i / WINDOWS;
                float sums[PLACES][8];
                #pragma unroll
                for (int place = 0; place < PLACES; ++place)
                    #pragma unroll
                    for (int j = 0; j < 8; ++j) sums[place][j] = biases[group * 8 + j];
                #pragma unroll 1  // rows of taps: unrolled, they would wait for their text
                for (int row = 0; row < CHANNELS_IN * KERNEL; ++row)
                    add_row(image + (row / KERNEL * TALL + row % KERNEL) * WIDE, at,
                            weights + 2 * (group * CHANNELS_IN * KERNEL + row) * KERNEL, sums);
                Window window;
                #pragma unroll
                for (int place = 0; place < PLACES; ++place) window.look(place, sums[place]);
                if constexpr (RELU) window.cut();
                if (KEEPS && first && kept) kept[((size_t)number * s.groups + group) * WINDOWS + at] = window.kept();
                store(to, s, number, group, WINDOWS, at, window.best, factor);
                most = fmaxf(most, largest_of(window.best));
            }
        }
        return most;
    }, words);
}
