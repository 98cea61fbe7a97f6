// The first convolution with what follows it: bias, pool, ReLU, and fp16 for the next one.
//
// Blocks take an image, or a part of its filters. Weights lie in shared memory, eight filters' side by side: a warp
// reads one address. See `first.cuh`.

#include "first.cuh"

constexpr int THREADS = 512;

// Leave the bits of an upper bound: |bias| + the largest |pixel| times the sum of |w|, of the filter where that is most.
inline void find_bound(const float* weights, const float* biases, int channels, float pixel, Word* bound)
{
    if (threadIdx.x == 0) *bound = 0;
    __syncthreads();  // weights and biases are there, too
    for (int i = threadIdx.x; i < channels; i += THREADS) {
        const float* filter = weights + i / 8 * (8 * CHANNELS_IN * TAPS) + i % 8;
        float sum = 0;
        #pragma unroll 9
        for (int k = 0; k < CHANNELS_IN * TAPS; ++k) sum += fabsf(filter[8 * k]);
        atomicMax(bound, __float_as_uint(fabsf(biases[i]) + pixel * sum));
    }
    __syncthreads();
}

// x (images, CHANNELS_IN, IMAGE_HEIGHT, IMAGE_WIDTH) of PIXEL, W (channels, CHANNELS_IN, KERNEL, KERNEL). bias, to, kept, scale:
// as in between_forward.cu. parts: of an image's groups of filters, for a block each. largest: with KNOWN the bits of the
// largest |pixel|, or of a larger one.
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
    for (int i = threadIdx.x; i < 8 * s.groups * CHANNELS_IN * TAPS; i += THREADS) {
        int channel = i / (8 * CHANNELS_IN * TAPS) * 8 + i % 8, tap = i / 8 % (CHANNELS_IN * TAPS);
        reinterpret_cast<float*>(weights)[i] = channel < s.channels ? W[channel * CHANNELS_IN * TAPS + tap] : 0;
    }
    for (int i = threadIdx.x; i < 8 * s.groups; i += THREADS) biases[i] = bias && i < s.channels ? bias[i] : 0;

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
                #pragma unroll 1
                for (int c = 0; c < CHANNELS_IN; ++c) {
                    float patch[PATCH];
                    load_patch(image + c * TALL * WIDE, at, patch);
                    const float4* filters = weights + 2 * (group * CHANNELS_IN + c) * TAPS;
                    #pragma unroll
                    for (int tap = 0; tap < TAPS; ++tap) {
                        float w[8];
                        floats_of(filters[2 * tap], filters[2 * tap + 1], w);
                        #pragma unroll
                        for (int place = 0; place < PLACES; ++place) {
                            int seen = (place / POOL + tap / KERNEL) * SIDE + place % POOL + tap % KERNEL;
                            #pragma unroll
                            for (int j = 0; j < 8; ++j) sums[place][j] += w[j] * patch[seen];
                        }
                    }
                }
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
