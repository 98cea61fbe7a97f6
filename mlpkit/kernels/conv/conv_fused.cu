// Convolution, bias, ReLU and 2 x 2 max pool in one kernel: what is not needed any more is never written.
//
// A pool's window is four pixels of the convolution's output, and they see a patch of (KERNEL + STRIDE)^2 pixels of
// the image. A thread computes the four pixels of EACH windows for eight filters. So the largest of four is found in
// its own registers: a quarter of the numbers goes to memory, and with them, for the way back, which of the four it
// was: two bits, of eight filters together in 16. Where several are equal, it is the first of them: left before
// right, above before below. Where none is above 0, the result is 0, and so is its gradient: that is to be seen in
// the result and needs no bit. A row and a column that the pool leaves out are not computed.
//
// Shared memory holds the patches of WINDOWS windows and the weights of FILTERS filters, for CHANNELS channels at a
// time, twice: while these are multiplied, registers hold the next, on their way. A weight is used for four pixels, a
// pixel of a patch for up to KERNEL^2 taps of eight filters: with 3 x 3 kernels, 288 multiply-adds need 16 loads of
// one number and 18 of four.
//
// `convolution` is the same without the pool: what is written between separate kernels. What bounds both is
// multiply-adds where there are channels, and memory where there is one.

#ifndef KERNEL
#define KERNEL 3
#endif
#ifndef STRIDE
#define STRIDE 1
#endif
#ifndef FILTERS
#define FILTERS 64
#endif
#ifndef WINDOWS
#define WINDOWS 32
#endif
#ifndef EACH
#define EACH 1
#endif
#ifndef CHANNELS
#define CHANNELS 2
#endif

constexpr int TAPS = KERNEL * KERNEL, SIDE = KERNEL + STRIDE, PATCH = SIDE * SIDE;
constexpr int GROUP = 8, LANES = WINDOWS / EACH, THREADS = FILTERS / GROUP * LANES;
constexpr int WEIGHTS = CHANNELS * TAPS * FILTERS / 4;  // fours of them in shared memory, at a time
constexpr int PIXELS_EACH = (PATCH * WINDOWS + THREADS - 1) / THREADS, WEIGHTS_EACH = (WEIGHTS + THREADS - 1) / THREADS;

static_assert(FILTERS % GROUP == 0 && WINDOWS % EACH == 0 && THREADS % 32 == 0, "whole groups and warps");

// Images x (batch, channels, height, width), outputs (out_height, out_width), windows (down, across) of them.
// filters: of the result; filters_room: of the weights (channels, TAPS, filters_room), filled up with zeros.
struct Sizes {
    int batch, channels, height, width, filters, filters_room, out_height, out_width, down, across, padding;
};

struct Stage {
    float pixels[CHANNELS][PATCH][WINDOWS];
    float4 weights[CHANNELS][TAPS][FILTERS / 4];
};

struct Window {
    int image, row, column;

    Window(const Sizes& s, int number)
    {
        const int above = number / s.across;
        image = above / s.down, row = above - image * s.down, column = number - above * s.across;
    }
};

// What a thread fetches: pixels from the same places of each channel, and weights.
struct Fetched {
    float pixels[CHANNELS][PIXELS_EACH];
    float4 weights[WEIGHTS_EACH];
};

// Call finish(window, filter, sums[4]) for each window and each filter of this thread.
template <typename Finish>
inline void convolve(const float* x, const float4* w, const Sizes& s, Stage* stages, Finish finish)
{
    const int filter_blocks = s.filters_room / FILTERS, block = blockIdx.x / filter_blocks;
    const int first_window = block * WINDOWS, first_filter = blockIdx.x % filter_blocks * FILTERS;
    const int windows = s.batch * s.down * s.across, thread = threadIdx.x;
    const int plane = s.height * s.width;

    long long from[PIXELS_EACH];  // where a pixel of channel 0 is, or -1 outside
    #pragma unroll
    for (int i = 0; i < PIXELS_EACH; ++i) {
        const int e = thread + i * THREADS, place = e / WINDOWS, number = first_window + e % WINDOWS;
        const Window window(s, number);
        const int y = 2 * STRIDE * window.row + place / SIDE - s.padding;
        const int z = 2 * STRIDE * window.column + place % SIDE - s.padding;
        const bool inside = place < PATCH && number < windows && y >= 0 && y < s.height && z >= 0 && z < s.width;
        from[i] = inside ? (long long)window.image * s.channels * plane + y * s.width + z : -1;
    }
    Fetched fetched;
    auto fetch = [&](int channel) {
        #pragma unroll
        for (int c = 0; c < CHANNELS; ++c)
            #pragma unroll
            for (int i = 0; i < PIXELS_EACH; ++i) {
                const bool inside = from[i] >= 0 && channel + c < s.channels;
                fetched.pixels[c][i] = inside ? x[from[i] + (long long)(channel + c) * plane] : 0;
            }
        #pragma unroll
        for (int i = 0; i < WEIGHTS_EACH; ++i) {
            const int e = thread + i * THREADS, tap = channel * TAPS + e / (FILTERS / 4);
            const bool inside = e < WEIGHTS && tap < s.channels * TAPS;
            fetched.weights[i] = inside ? w[(size_t)tap * (s.filters_room / 4) + first_filter / 4 + e % (FILTERS / 4)]
                                        : float4{0, 0, 0, 0};
        }
    };
    auto store = [&](Stage& stage) {
        #pragma unroll
        for (int i = 0; i < PIXELS_EACH; ++i) {
            const int e = thread + i * THREADS;
            #pragma unroll
            for (int c = 0; c < CHANNELS; ++c)
                if (e < PATCH * WINDOWS) stage.pixels[c][0][e] = fetched.pixels[c][i];
        }
        #pragma unroll
        for (int i = 0; i < WEIGHTS_EACH; ++i) {
            const int e = thread + i * THREADS;
            if (e < WEIGHTS) stage.weights[0][0][e] = fetched.weights[i];
        }
    };

    const int lane = thread % LANES, group = thread / LANES;
    float sums[EACH][GROUP][4] = {};
    fetch(0);
    store(stages[0]);
    __syncthreads();
    for (int channel = 0, turn = 0; channel < s.channels; channel += CHANNELS, turn ^= 1) {
        const bool more = channel + CHANNELS < s.channels;
        if (more) fetch(channel + CHANNELS);
        #pragma unroll
        for (int c = 0; c < CHANNELS; ++c) {
            float patch[EACH][PATCH];
            #pragma unroll
            for (int e = 0; e < EACH; ++e)
                #pragma unroll
                for (int i = 0; i < PATCH; ++i) patch[e][i] = stages[turn].pixels[c][i][lane + e * LANES];
            #pragma unroll
            for (int tap = 0; tap < TAPS; ++tap) {
                const float4* eight = &stages[turn].weights[c][tap][2 * group];
                const float4 low = eight[0], high = eight[1];
                const float weights[GROUP] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
                #pragma unroll
                for (int e = 0; e < EACH; ++e)
                    #pragma unroll
                    for (int f = 0; f < GROUP; ++f)
                        #pragma unroll
                        for (int i = 0; i < 4; ++i) {
                            const int y = i / 2 * STRIDE + tap / KERNEL, z = i % 2 * STRIDE + tap % KERNEL;
                            sums[e][f][i] += weights[f] * patch[e][y * SIDE + z];
                        }
            }
        }
        if (more) {
            store(stages[turn ^ 1]);
            __syncthreads();
        }
    }
    #pragma unroll
    for (int e = 0; e < EACH; ++e)
        if (first_window + lane + e * LANES < windows)
            finish(first_window + lane + e * LANES, first_filter + group * GROUP, sums[e]);
}

// The largest of four and its number: the first of those that are equal.
inline float largest(const float (&four)[4], unsigned& number)
{
    float best = four[0];
    number = 0;
    #pragma unroll
    for (unsigned i = 1; i < 4; ++i)
        if (four[i] > best) best = four[i], number = i;
    return best;
}

// y (batch, filters, down, across), choices (groups of eight filters, windows of all images): eight times two bits.
extern "C" __global__ __launch_bounds__(THREADS)
void convolution_pool(const float* x, const float4* w, const float* bias, float* y, unsigned short* choices, Sizes s)
{
    extern __shared__ __align__(128) unsigned char shared_bytes[];
    const int windows = s.batch * s.down * s.across, plane = s.down * s.across;
    convolve(x, w, s, (Stage*)shared_bytes, [&](int window, int filter, const float (&sums)[GROUP][4]) {
        const int image = window / plane;
        float* to = y + ((size_t)image * s.filters + filter) * plane + (window - image * plane);
        unsigned chosen = 0;
        #pragma unroll
        for (int f = 0; f < GROUP; ++f) {
            if (filter + f >= s.filters) break;
            float four[4];
            #pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float sum = sums[f][i] + bias[filter + f];
                four[i] = sum > 0 ? sum : 0;
            }
            unsigned number;
            to[(size_t)f * plane] = largest(four, number);
            chosen |= number << 2 * f;
        }
        if (filter < s.filters) choices[(size_t)(filter / GROUP) * windows + window] = chosen;
    });
}

// z (batch, filters, out_height, out_width), with the bias and the ReLU or without: `bias` may be null.
extern "C" __global__ __launch_bounds__(THREADS)
void convolution(const float* x, const float4* w, const float* bias, float* z, Sizes s)
{
    extern __shared__ __align__(128) unsigned char shared_bytes[];
    convolve(x, w, s, (Stage*)shared_bytes, [&](int number, int filter, const float (&sums)[GROUP][4]) {
        const Window window(s, number);
        float* to = z + ((size_t)window.image * s.filters + filter) * s.out_height * s.out_width;
        #pragma unroll
        for (int f = 0; f < GROUP; ++f) {
            if (filter + f >= s.filters) break;
            #pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int row = 2 * window.row + i / 2, column = 2 * window.column + i % 2;
                if (row >= s.out_height || column >= s.out_width) continue;
                const float sum = bias ? sums[f][i] + bias[filter + f] : sums[f][i];
                to[((size_t)f * s.out_height + row) * s.out_width + column] = bias && !(sum > 0) ? 0 : sum;
            }
        }
    });
}

// z = max(z + bias, 0), for z (rows of filters, plane).
extern "C" __global__ void bias_relu(float* z, const float* bias, int filters, int plane, int total)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= total) return;
    const float sum = z[i] + bias[i / plane % filters];
    z[i] = sum > 0 ? sum : 0;
}

// The pool of z (batch, filters, out_height, out_width): a thread has a window of eight filters. `s`: as of
// convolution_pool.
extern "C" __global__ void pool(const float* z, float* y, unsigned short* choices, Sizes s)
{
    const int windows = s.batch * s.down * s.across, i = blockIdx.x * blockDim.x + threadIdx.x;
    const int number = i % windows, filter = i / windows * GROUP;
    if (filter >= s.filters) return;
    const Window window(s, number);
    unsigned chosen = 0;
    for (int f = 0; f < GROUP && filter + f < s.filters; ++f) {
        const size_t image = (size_t)window.image * s.filters + filter + f;
        const float* from = z + (image * s.out_height + 2 * window.row) * s.out_width + 2 * window.column;
        const float four[4] = {from[0], from[1], from[s.out_width], from[s.out_width + 1]};
        unsigned which;
        y[(image * s.down + window.row) * s.across + window.column] = largest(four, which);
        chosen |= which << 2 * f;
    }
    choices[i] = chosen;
}
