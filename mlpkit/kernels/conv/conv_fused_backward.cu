// The way back through pool, ReLU and convolution: a gradient that is three quarters zeros, which nobody writes.
//
// Of the four pixels of a pool's window one was the largest, and it alone has a gradient: d, the pool's own, if its
// result was above 0, else 0. Written out, with its zeros, dz would be four times as large, and both products would
// take four times as many multiply-adds. Instead the choice says which of four places of the patch (KERNEL + 1)^2
// belongs to d:
//     dW[o][c][tap] += d patch[c][place + tap]     patch_gradient[c][place + tap] += d W[o][c][tap]
// A lane has two channels, and a warp one window: so d and the choice are the same for all lanes, and the warp goes
// one of four ways together. Registers can't be indexed; each way has its own KERNEL^2 registers of the patch. Where
// d is 0, as behind a ReLU it is for about half of the windows, the warp goes none.
//
// `weight_gradient`: a warp keeps FILTERS filters' sums in registers, and loads each window's patch once for all of
// them. Each block has a slice of the images, and writes its sums into a matrix of its own; `add_slices` adds these
// up, in order. With one channel, or a few, lanes would have nothing to do: `weight_gradient_few` has a filter a
// lane, and finds the pixels in shared memory, where an index may be anything.
//
// `input_gradient`: a warp keeps the patches' gradients of WINDOWS windows in registers, and goes through all
// filters. Then patches are put into shared memory, and each pixel adds up those that hold it, at most four with 3 x
// 3 kernels, in order.
//
// What bounds it is instructions: 18 multiply-adds take about 30, with the loads and the branch.

#include "ptx.cuh"

#ifndef KERNEL
#define KERNEL 3
#endif
#ifndef FILTERS
#define FILTERS 4
#endif
#ifndef WINDOWS
#define WINDOWS 4
#endif
#ifndef WARPS
#define WARPS 8
#endif

constexpr int TAPS = KERNEL * KERNEL, SIDE = KERNEL + 1, PATCH = SIDE * SIDE;
constexpr int CHANNELS = 64, PITCH = CHANNELS + 2;  // of a block: two a lane
constexpr int THREADS = 32 * WARPS, BLOCK_FILTERS = WARPS * FILTERS;

// Images x (batch, channels, height, width), windows (down, across) of each; `band`: rows of windows that a block has
// at a time; `slices`: of the images and their bands.
struct Sizes {
    int batch, channels, height, width, filters, down, across, padding, band, slices;
};

struct Gradient {
    float d;
    unsigned place;
};

// The gradient of a filter and window: 0 where the ReLU cut, and which of the four pixels it belongs to.
inline Gradient gradient(const float* dy, const float* y, const unsigned short* choices, const Sizes& s, int filter,
                         int image, int window)
{
    const int plane = s.down * s.across;
    const size_t at = ((size_t)image * s.filters + filter) * plane + window;
    const unsigned chosen = choices[(size_t)(filter / 8) * s.batch * plane + (size_t)image * plane + window];
    return {y[at] > 0 ? dy[at] : 0, chosen >> filter % 8 * 2 & 3};
}

// The images' bands of a block, one after the other.
struct Band {
    int image, row, rows;  // first row of windows, and how many

};

inline Band band_of(const Sizes& s, int number)
{
    const int bands = (s.down + s.band - 1) / s.band, row = number % bands * s.band;
    return {number / bands, row, min(s.band, s.down - row)};
}

inline int first_of_slice(const Sizes& s, int slice)
{
    const long long all = (long long)s.batch * ((s.down + s.band - 1) / s.band);
    return all * slice / s.slices;
}

// sums[tap] += d patch[place + tap], for two channels.
template <int PLACE>
inline void add(float2 (&sums)[TAPS], float d, const float2 (&patch)[PATCH])
{
    #pragma unroll
    for (int tap = 0; tap < TAPS; ++tap) {
        const float2 pixel = patch[(PLACE / 2 + tap / KERNEL) * SIDE + PLACE % 2 + tap % KERNEL];
        sums[tap].x += d * pixel.x, sums[tap].y += d * pixel.y;
    }
}

// Fill pixels[row][column][channel] with what a band's windows see, zeros outside. Lanes take neighbours in a row, and
// warps every WARPS-th channel: where a pixel is has to be found out once for all of these.
inline void load_pixels(float* pixels, const float* x, const Sizes& s, const Band& band, int first_channel)
{
    const int rows = 2 * band.rows + KERNEL - 1, columns = 2 * s.across + KERNEL - 1, warp = threadIdx.x / 32;
    const size_t plane = (size_t)s.height * s.width;
    for (int place = threadIdx.x % 32; place < rows * columns; place += 32) {
        const int row = place / columns, column = place - row * columns;
        const int y = 2 * band.row + row - s.padding, z = column - s.padding;
        const bool inside = y >= 0 && y < s.height && z >= 0 && z < s.width;
        const float* from = x + ((size_t)band.image * s.channels + first_channel + warp) * plane + y * s.width + z;
        #pragma unroll 4
        for (int i = 0; i < CHANNELS; i += WARPS, from += WARPS * plane)
            pixels[place * PITCH + warp + i] = inside && first_channel + warp + i < s.channels ? *from : 0;
    }
}

// Fill gradients[window][filter], with so many filters a window: lanes take neighbouring windows, and warps filters.
inline void load_gradients(Gradient* gradients, const float* dy, const float* y, const unsigned short* choices,
                           const Sizes& s, const Band& band, int first_filter, int filters, int pitch)
{
    const int windows = band.rows * s.across;
    for (int filter = threadIdx.x / 32; filter < filters; filter += WARPS)
        #pragma unroll 2
        for (int window = threadIdx.x % 32; window < windows; window += 32) {
            const bool inside = first_filter + filter < s.filters;
            gradients[window * pitch + filter] =
                inside ? gradient(dy, y, choices, s, first_filter + filter, band.image, band.row * s.across + window)
                       : Gradient{0, 0};
        }
}

// parts (slices, filters, TAPS, channels). Blocks: filters by BLOCK_FILTERS, then channels by CHANNELS, then slices.
extern "C" __global__ __launch_bounds__(THREADS)
void weight_gradient(const float* x, const float* dy, const float* y, const unsigned short* choices, float* parts,
                     Sizes s)
{
    extern __shared__ __align__(128) unsigned char shared_bytes[];
    const int filter_blocks = (s.filters + BLOCK_FILTERS - 1) / BLOCK_FILTERS;
    const int channel_blocks = (s.channels + CHANNELS - 1) / CHANNELS;
    const int slice = blockIdx.x / (filter_blocks * channel_blocks), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int first_filter = blockIdx.x % filter_blocks * BLOCK_FILTERS;
    const int first_channel = blockIdx.x / filter_blocks % channel_blocks * CHANNELS;
    const int columns = 2 * s.across + KERNEL - 1;
    float* pixels = (float*)shared_bytes;
    Gradient* gradients = (Gradient*)(pixels + (2 * s.band + KERNEL - 1) * columns * PITCH);

    float2 sums[FILTERS][TAPS] = {};
    for (int number = first_of_slice(s, slice), end = first_of_slice(s, slice + 1); number < end; ++number) {
        const Band band = band_of(s, number);
        __syncthreads();
        load_pixels(pixels, x, s, band, first_channel);
        load_gradients(gradients, dy, y, choices, s, band, first_filter, BLOCK_FILTERS, BLOCK_FILTERS);
        __syncthreads();
        for (int window = 0; window < band.rows * s.across; ++window) {
            const int row = window / s.across, column = window - row * s.across;
            const float* corner = pixels + (2 * row * columns + 2 * column) * PITCH + 2 * lane;
            float2 patch[PATCH];
            #pragma unroll
            for (int i = 0; i < PATCH; ++i)
                patch[i] = *(const float2*)(corner + (i / SIDE * columns + i % SIDE) * PITCH);
            #pragma unroll
            for (int f = 0; f < FILTERS; ++f) {
                const Gradient g = gradients[window * BLOCK_FILTERS + warp * FILTERS + f];
                if (g.d == 0) continue;
                if (g.place & 2) {
                    if (g.place & 1) add<3>(sums[f], g.d, patch);
                    else add<2>(sums[f], g.d, patch);
                } else {
                    if (g.place & 1) add<1>(sums[f], g.d, patch);
                    else add<0>(sums[f], g.d, patch);
                }
            }
        }
    }
    const int channel = first_channel + 2 * lane;
    #pragma unroll
    for (int f = 0; f < FILTERS; ++f) {
        const int filter = first_filter + warp * FILTERS + f;
        if (filter >= s.filters) break;
        #pragma unroll
        for (int tap = 0; tap < TAPS; ++tap) {
            float* to = parts + (((size_t)slice * s.filters + filter) * TAPS + tap) * s.channels + channel;
            if (channel < s.channels) to[0] = sums[f][tap].x;
            if (channel + 1 < s.channels) to[1] = sums[f][tap].y;
        }
    }
}

// The same for a few channels, one after the other: a lane has a filter, and warps share the windows.
// Blocks: filters by 32, then channels, then slices. parts (slices, filters, TAPS, channels).
extern "C" __global__ __launch_bounds__(THREADS)
void weight_gradient_few(const float* x, const float* dy, const float* y, const unsigned short* choices, float* parts,
                         Sizes s)
{
    extern __shared__ __align__(128) unsigned char shared_bytes[];
    const int filter_blocks = (s.filters + 31) / 32, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int slice = blockIdx.x / (filter_blocks * s.channels), channel = blockIdx.x / filter_blocks % s.channels;
    const int filter = blockIdx.x % filter_blocks * 32 + lane;
    const int columns = 2 * s.across + KERNEL - 1;
    Gradient* gradients = (Gradient*)shared_bytes;  // of a window, 33 apart: lanes fill them window by window
    float* pixels = (float*)(gradients + s.band * s.across * 33);

    float sums[TAPS] = {};
    for (int number = first_of_slice(s, slice), end = first_of_slice(s, slice + 1); number < end; ++number) {
        const Band band = band_of(s, number);
        const int windows = band.rows * s.across, places = (2 * band.rows + KERNEL - 1) * columns;
        __syncthreads();
        for (int i = threadIdx.x; i < places; i += THREADS) {
            const int row = i / columns, at = 2 * band.row + row - s.padding, z = i - row * columns - s.padding;
            const bool inside = at >= 0 && at < s.height && z >= 0 && z < s.width;
            pixels[i] = inside ? x[(((size_t)band.image * s.channels + channel) * s.height + at) * s.width + z] : 0;
        }
        load_gradients(gradients, dy, y, choices, s, band, filter - lane, 32, 33);
        __syncthreads();
        for (int window = warp; window < windows; window += WARPS) {
            const Gradient g = gradients[window * 33 + lane];
            const int row = window / s.across, column = window - row * s.across;
            const float* corner = pixels + (2 * row + g.place / 2) * columns + 2 * column + g.place % 2;
            #pragma unroll
            for (int p = 0; p < KERNEL; ++p, corner += columns)
                #pragma unroll
                for (int q = 0; q < KERNEL; ++q) sums[p * KERNEL + q] += g.d * corner[q];
        }
    }
    __syncthreads();
    float* shared = (float*)shared_bytes;  // sums of the warps, (WARPS, TAPS, 32)
    #pragma unroll
    for (int tap = 0; tap < TAPS; ++tap) shared[(warp * TAPS + tap) * 32 + lane] = sums[tap];
    __syncthreads();
    for (int i = threadIdx.x; i < TAPS * 32; i += THREADS) {
        const int tap = i / 32, to = filter - lane + i % 32;
        float sum = 0;
        for (int w = 0; w < WARPS; ++w) sum += shared[w * TAPS * 32 + i];
        if (to < s.filters) parts[(((size_t)slice * s.filters + to) * TAPS + tap) * s.channels + channel] = sum;
    }
}

// dW (filters, channels, TAPS): the sum of parts (slices, filters, TAPS, channels), in order.
extern "C" __global__ void add_slices(const float* parts, float* dW, int filters, int channels, int slices)
{
    const int total = filters * TAPS * channels, i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= total) return;
    float sum = 0;
    #pragma unroll 32
    for (int slice = 0; slice < slices; ++slice) sum += parts[(size_t)slice * total + i];
    const int channel = i % channels, tap = i / channels % TAPS, filter = i / channels / TAPS;
    dW[((size_t)filter * channels + channel) * TAPS + tap] = sum;
}

constexpr int CHUNK = 8;                               // filters, whose weights are in shared memory at a time
constexpr int PLACE_PITCH = CHANNELS + 1, WINDOW_PITCH = PATCH * PLACE_PITCH + 1;  // neighbours in different banks

struct Chunk {
    float weights[CHUNK][TAPS][CHANNELS];
    Gradient gradients[WARPS * WINDOWS][CHUNK];
};

static_assert(WARPS * WINDOWS * CHUNK <= THREADS, "a thread fetches one gradient");

// patch[place + tap] += d w[tap], for two channels.
template <int PLACE>
inline void add_to_patch(float2 (&patch)[PATCH], float d, const float2 (&w)[TAPS])
{
    #pragma unroll
    for (int tap = 0; tap < TAPS; ++tap) {
        float2& pixel = patch[(PLACE / 2 + tap / KERNEL) * SIDE + PLACE % 2 + tap % KERNEL];
        pixel.x += d * w[tap].x, pixel.y += d * w[tap].y;
    }
}

// w (filters filled up with zeros to whole CHUNKs, TAPS, channels filled up to whole CHANNELS). Here `band` counts
// rows of dx, and a lane's channels are 32 apart. Blocks: bands, then channels by CHANNELS, then images.
extern "C" __global__ __launch_bounds__(THREADS)
void input_gradient(const float* w, const float* dy, const float* y, const unsigned short* choices, float* dx, Sizes s)
{
    extern __shared__ __align__(128) unsigned char shared_bytes[];
    const int bands = (s.height + s.band - 1) / s.band, channel_blocks = (s.channels + CHANNELS - 1) / CHANNELS;
    const int image = blockIdx.x / (bands * channel_blocks), first_row = blockIdx.x % bands * s.band;
    const int first_channel = blockIdx.x / bands % channel_blocks * CHANNELS;
    const int last_row = min(first_row + s.band, s.height) - 1;
    const int first_down = max(first_row + s.padding - KERNEL + 1, 0) / 2;  // rows of windows that see these rows
    const Band band = {image, first_down, min((last_row + s.padding) / 2, s.down - 1) - first_down + 1};
    const int windows = max(band.rows, 0) * s.across, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    Chunk* chunks = (Chunk*)shared_bytes;
    float* patches = (float*)(chunks + 2);  // (windows, PATCH, CHANNELS), pitched

    for (int first = 0; first < windows; first += WARPS * WINDOWS) {
        const int filter = threadIdx.x / (WARPS * WINDOWS), window = threadIdx.x % (WARPS * WINDOWS);
        Gradient mine;  // on its way
        auto start = [&](Chunk& chunk, int number) {
            for (int i = threadIdx.x; i < CHUNK * TAPS * CHANNELS / 4; i += THREADS) {
                const int row = number * TAPS + i / (CHANNELS / 4), four = i % (CHANNELS / 4) * 4;
                const float* from = w + (size_t)row * (channel_blocks * CHANNELS) + first_channel + four;
                cp_async<16>(&chunk.weights[0][0][0] + 4 * i, from);
            }
            const bool inside = filter < CHUNK && first + window < windows && number + filter < s.filters;
            mine = inside ? gradient(dy, y, choices, s, number + filter, image, first_down * s.across + first + window)
                          : Gradient{0, 0};
        };
        auto finish = [&](Chunk& chunk) {
            if (filter < CHUNK) chunk.gradients[window][filter] = mine;
            cp_async_wait_all();
            __syncthreads();
        };
        float2 patch[WINDOWS][PATCH] = {};
        __syncthreads();
        start(chunks[0], 0);
        finish(chunks[0]);
        for (int number = 0, turn = 0; number < s.filters; number += CHUNK, turn ^= 1) {
            const Chunk& chunk = chunks[turn];
            const bool more = number + CHUNK < s.filters;
            if (more) start(chunks[turn ^ 1], number + CHUNK);
            #pragma unroll 1
            for (int filter = 0; filter < CHUNK; ++filter) {
                float2 taps[TAPS];
                #pragma unroll
                for (int tap = 0; tap < TAPS; ++tap)
                    taps[tap] = {chunk.weights[filter][tap][lane], chunk.weights[filter][tap][lane + 32]};
                #pragma unroll
                for (int i = 0; i < WINDOWS; ++i) {
                    const Gradient g = chunk.gradients[warp * WINDOWS + i][filter];
                    if (g.d == 0) continue;
                    if (g.place & 2) {
                        if (g.place & 1) add_to_patch<3>(patch[i], g.d, taps);
                        else add_to_patch<2>(patch[i], g.d, taps);
                    } else {
                        if (g.place & 1) add_to_patch<1>(patch[i], g.d, taps);
                        else add_to_patch<0>(patch[i], g.d, taps);
                    }
                }
            }
            if (more) finish(chunks[turn ^ 1]);
        }
        #pragma unroll
        for (int i = 0; i < WINDOWS; ++i) {
            const int window = first + warp * WINDOWS + i;
            if (window >= windows) break;
            #pragma unroll
            for (int place = 0; place < PATCH; ++place) {
                float* to = patches + window * WINDOW_PITCH + place * PLACE_PITCH + lane;
                to[0] = patch[i][place].x, to[32] = patch[i][place].y;
            }
        }
    }
    __syncthreads();
    const int plane = (last_row - first_row + 1) * s.width;
    for (int i = threadIdx.x; i < CHANNELS * plane; i += THREADS) {
        const int channel = i / plane, pixel = i - channel * plane;
        if (first_channel + channel >= s.channels) break;
        const int row = first_row + pixel / s.width, column = pixel % s.width;
        float sum = 0;
        const int bottom = row + s.padding, right = column + s.padding;  // in the image with its zeros
        for (int down = max(bottom - KERNEL + 1, 0) / 2; down <= min(bottom / 2, s.down - 1); ++down)
            for (int across = max(right - KERNEL + 1, 0) / 2; across <= min(right / 2, s.across - 1); ++across) {
                const int window = (down - first_down) * s.across + across;
                const int place = (bottom - 2 * down) * SIDE + right - 2 * across;
                sum += patches[window * WINDOW_PITCH + place * PLACE_PITCH + channel];
            }
        dx[(((size_t)image * s.channels + first_channel + channel) * s.height + row) * s.width + column] = sum;
    }
}
