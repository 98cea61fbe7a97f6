// The first convolution's weight gradient, from the gradient of what was pooled: dz, mostly zeros, never exists.
//
// A thread keeps the sums of EACH filters' taps. It takes windows of a slice of the images: of each it has the pixels
// in registers, and adds d times the pixels that the largest one's sum saw. Registers can't be indexed: so for each
// place that could be the largest it adds d, or 0. When its slice is done, a block adds up its threads' sums; the last
// block of all slices adds these up, always in the same order.

#include "first.cuh"

#ifndef EACH
#define EACH 4  // filters of a thread: 4, 2 or 1
#endif

constexpr int THREADS = 256, WARPS = THREADS / 32;
constexpr int SUMS = (EACH * (TAPS + 1) + 7) / 8 * 8;  // of a thread: taps and the bias

// What a window has for this thread: d of EACH filters, and which pixels it belongs to.
struct Gradient {
    float d[EACH];
    Word places;
};

// Of the window number `at` of an image: part number `part` of a group's filters.
inline Gradient gradient(const void* dy, const Kept* kept, const Sizes& s, int image, int group, int part, int at)
{
    Gradient found;
    size_t plane = (size_t)image * s.groups + group;
    int first = part * EACH;  // of the eight
    if constexpr (FROM == 0) {
        const float* from = static_cast<const float*>(dy) + ((2 * plane + first / 4) * WINDOWS + at) * 4 + first % 4;
        if constexpr (EACH == 4) {
            float4 four = *reinterpret_cast<const float4*>(from);
            found.d[0] = four.x, found.d[1] = four.y, found.d[2] = four.z, found.d[3] = four.w;
        } else {
            #pragma unroll
            for (int j = 0; j < EACH; ++j) found.d[j] = from[j];
        }
    } else if constexpr (FROM == 1) {
        const unsigned short* from = static_cast<const unsigned short*>(dy) + (plane * WINDOWS + at) * 8 + first;
        #pragma unroll
        for (int j = 0; j < EACH; ++j) found.d[j] = __uint_as_float((Word)from[j] << 16);
    } else {
        size_t first_plane = (size_t)image * s.channels + group * 8 + first;
        const float* from = static_cast<const float*>(dy) + first_plane * WINDOWS + at;
        #pragma unroll
        for (int j = 0; j < EACH; ++j)
            found.d[j] = group * 8 + first + j < s.channels ? from[(size_t)j * WINDOWS] : 0;
    }
    found.places = 0;
    if constexpr (KEEPS) found.places = (Word)(kept[plane * WINDOWS + at] >> BITS * first);
    return found;
}

// dy: as FROM says, of windows. db: (channels,) or null. arrived: zeros, one for each block of a slice. partial: (slices,
// 8 groups, CHANNELS_IN, TAPS + 1). chunk: of images, which are in shared memory at a time.
extern "C" __global__ __launch_bounds__(THREADS, 2)
void weights(const float* x, const void* dy, const Kept* kept, float* partial, float* dW, float* db, Word* arrived,
             Sizes s, int slices, int chunk)
{
    extern __shared__ __align__(128) unsigned char shared_bytes[];
    Word* words = reinterpret_cast<Word*>(shared_bytes);
    float* images = reinterpret_cast<float*>(words + 4);  // later the sums of the warps
    constexpr int OF_GROUP = 8 / EACH;
    int item = blockIdx.x, slice = item % slices, c = item / slices % CHANNELS_IN;
    int part = item / slices / CHANNELS_IN % OF_GROUP, group = item / slices / CHANNELS_IN / OF_GROUP;
    int begin = (int)((long long)s.images * slice / slices), end = (int)((long long)s.images * (slice + 1) / slices);

    begin_in_turn();
    float sums[SUMS] = {};
    for (int first = begin; first < end; first += chunk) {
        int count = min(chunk, end - first);
        Gradient next = {};
        auto fetch = [&](int i) {
            if (i < count * WINDOWS) next = gradient(dy, kept, s, first + i / WINDOWS, group, part, i % WINDOWS);
        };
        fetch(threadIdx.x);
        __syncthreads();
        ask_for_images(x, first, count, images, THREADS);
        cp_async_wait_all();
        __syncthreads();
        for (int i = threadIdx.x; i < count * WINDOWS; i += THREADS) {
            Gradient mine = next;
            fetch(i + THREADS);
            float seen[SIDE][SIDE];
            load_rows(images + (i / WINDOWS * CHANNELS_IN + c) * TALL * WIDE, i % WINDOWS, seen);
            #pragma unroll
            for (int j = 0; j < EACH; ++j)
                #pragma unroll
                for (int place = 0; place < PLACES; ++place) {
                    float here = !KEEPS || (mine.places >> BITS * j & CUT) == place ? mine.d[j] : 0;
                    sums[j * (TAPS + 1) + TAPS] += here;
                    #pragma unroll
                    for (int tap = 0; tap < TAPS; ++tap)
                        sums[j * (TAPS + 1) + tap] +=
                            here * seen[place / POOL + tap / KERNEL][place % POOL + tap % KERNEL];
                }
        }
    }
    __syncthreads();
    #pragma unroll
    for (int i = 0; i < SUMS; i += 8) {
        float eight[8];
        #pragma unroll
        for (int j = 0; j < 8; ++j) eight[j] = sums[i + j];
        float sum = sum_of_warp(eight);
        if (threadIdx.x % 4 == 0) images[threadIdx.x / 32 * SUMS + i + threadIdx.x % 32 / 4] = sum;
    }
    __syncthreads();
    int all = 8 * s.groups * CHANNELS_IN * (TAPS + 1);
    for (int i = threadIdx.x; i < EACH * (TAPS + 1); i += THREADS) {
        int filter = group * 8 + part * EACH + i / (TAPS + 1);
        float total = 0;
        for (int warp = 0; warp < WARPS; ++warp) total += images[warp * SUMS + i];
        partial[(size_t)slice * all + (filter * CHANNELS_IN + c) * (TAPS + 1) + i % (TAPS + 1)] = total;
    }
    if (!is_last(arrived + item / slices, slices, words)) return;
    for (int i = threadIdx.x; i < EACH * (TAPS + 1); i += THREADS) {
        int filter = group * 8 + part * EACH + i / (TAPS + 1), tap = i % (TAPS + 1);
        const float* from = partial + (filter * CHANNELS_IN + c) * (TAPS + 1) + tap;
        float total = 0;
        #pragma unroll 16
        for (int other = 0; other < slices; ++other) total += __ldcg(from + (size_t)other * all);
        if (filter >= s.channels) continue;
        if (tap < TAPS) dW[(filter * CHANNELS_IN + c) * TAPS + tap] = total;
        else if (db && c == 0) db[filter] = total;
    }
}
