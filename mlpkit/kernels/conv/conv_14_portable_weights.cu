// The weight gradient on any chip with tensor cores since Turing: the sum runs over windows, and a tap is an address.
//
// dW = dy x as a product for each tap, as in conv_12_blocked_weights.cu: output channels times channels, summed over
// windows. ldmatrix transposes both operands on the way, and its lanes name their rows: a table says where each window
// begins, and a tap is added to that.
//
// A block has TALL output channels, CHUNK channels and TAPS taps, and some of the bands of rows, which come and go in a
// ring. What blocks have summed goes to memory, and a second kernel adds it up, in the order of their numbers: the sum
// is the same every time.

#include "fp16.cuh"

#ifndef CHUNK
#define CHUNK 32
#define TAPS 3
#define WARPS_M 2  // of output channels
#define WARPS_N 2  // of the taps' channels
#define ROWS 2     // times 16 output channels of a warp
#endif
#ifndef SLOTS
#define SLOTS 2
#endif
#ifndef BLOCKS
#define BLOCKS 1  // on a multiprocessor
#endif

constexpr int GROUPS = CHUNK / 8, WARPS = WARPS_M * WARPS_N, THREADS = 32 * WARPS, TALL = WARPS_M * ROWS * 16;
constexpr int COLUMNS = TAPS * GROUPS / WARPS_N;  // times 8 channels of a warp
constexpr int TOGETHER = 6;                       // of them, whose pieces are loaded at once

static_assert(MODE != 1, "elements of 16 bits");
static_assert(TAPS * GROUPS % (2 * WARPS_N) == 0 && GROUPS % 2 == 0, "pieces come in pairs of one tap");

// As in conv_13_portable.cu, and how the work is divided: bands of `rows` rows; an image row of a band takes `pitch`
// pieces, with its padding; `steps` times 16 windows of a band, in `slices` slices of the bands.
struct Problem {
    int images, channels, groups, height, width;
    int pad_y, pad_x, taps_y, taps_x, windows_y, windows_x, stride;
    int channels_out, groups_out;
    int rows, bands, pitch, seen, steps;
    int heights, widths, tap_groups, slices;
};

struct Work {
    int slice, height, width, first_tap, plane, dy_plane, slot;
    int row, x, rows, columns;  // of this lane's first piece of a plane; how far it is from one to its next, 32 on

    __device__ Work(const Problem& p)
    {
        int tile = blockIdx.x / p.slices;
        slice = blockIdx.x % p.slices;
        height = tile % p.heights, width = tile / p.heights % p.widths;
        first_tap = tile / (p.heights * p.widths) * TAPS;
        plane = p.seen * p.pitch, dy_plane = p.rows * p.windows_x + 1;  // the last piece is zeros
        slot = PARTS * (GROUPS * plane + TALL / 8 * dy_plane);
        int lane = threadIdx.x % 32;
        row = lane / p.pitch, x = lane - row * p.pitch, rows = 32 / p.pitch, columns = 32 - rows * p.pitch;
    }
};

// Ask for a band of x and of dy; what is beside the image comes as zeros.
static __device__ __forceinline__ void ask_for(const Problem& p, const Work& work, const Piece* images, const Piece* dy,
                                               int band, Piece* to)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, image = band / p.bands, first_row = band % p.bands * p.rows;
    int top = first_row * p.stride - p.pad_y;
    for (int n = warp; n < PARTS * GROUPS; n += WARPS) {
        int group = work.width * GROUPS + n % GROUPS, y = top + work.row, x = work.x - p.pad_x;
        const Piece* from = images + ((size_t)(n / GROUPS * p.images + image) * p.groups + group) * p.height * p.width;
        #pragma unroll 2
        for (int k = lane; k < work.plane; k += 32) {
            bool inside = group < p.groups && y >= 0 && y < p.height && x >= 0 && x < p.width;
            cp_async<16>(to + n * work.plane + k, inside ? from + y * p.width + x : images, inside);
            y += work.rows, x += work.columns;
            if (x >= p.pitch - p.pad_x) x -= p.pitch, ++y;
        }
    }
    to += PARTS * GROUPS * work.plane;
    int windows = p.windows_y * p.windows_x, first = first_row * p.windows_x;
    for (int n = warp; n < PARTS * TALL / 8; n += WARPS) {
        int group = work.height * (TALL / 8) + n % (TALL / 8);
        size_t plane = (size_t)(n / (TALL / 8) * p.images + image) * p.groups_out + group;
        const Piece* from = group < p.groups_out ? dy + plane * windows : dy;
        #pragma unroll 4
        for (int k = lane; k < work.dy_plane; k += 32) {
            bool inside = group < p.groups_out && k + 1 < work.dy_plane && first + k < windows;
            cp_async<16>(to + n * work.dy_plane + k, inside ? from + first + k : dy, inside);
        }
    }
}

static __device__ __forceinline__ void multiply_add(float (&c)[4], const Word (&a)[4], Word b0, Word b1)
{
    if constexpr (MODE == 0) mma_m16n8k16_bf16(c, a, b0, b1);
    else mma_m16n8k16_f16(c, a, b0, b1);
}

using Sums = float[ROWS][COLUMNS][4];

// Add the products of a band, `steps` times 16 windows of it. corners, shifts: see `multiply`.
static __device__ __forceinline__ void multiply_band(Sums& sums, const Work& work, const Piece* image,
                                                     const int* corners, const int (&shifts)[COLUMNS / 2],
                                                     int first_row, int steps)
{
    int lane = threadIdx.x % 32;
    const Piece* gradient = image + PARTS * GROUPS * work.plane + (first_row / 8 + lane / 8 % 2) * work.dy_plane;
    int corner = corners[lane % 16];
    for (int step = 0; step < steps; ++step) {
        int k = step * 16 + lane % 8 + lane / 16 * 8;  // this lane's row of dy
        const Piece* mine = gradient + min(k, work.dy_plane - 1);
        Word a[PARTS][ROWS][4];
        #pragma unroll
        for (int part = 0; part < PARTS; ++part)
            #pragma unroll
            for (int i = 0; i < ROWS; ++i)
                ldmatrix_x4_trans(a[part][i], mine + (part * (TALL / 8) + 2 * i) * work.dy_plane);
        const Piece* window = image + corner;
        corner = corners[min(step + 1, steps - 1) * 16 + lane % 16];  // early: addresses wait for it
        #pragma unroll
        for (int first = 0; first < COLUMNS; first += TOGETHER) {
            Word b[TOGETHER / 2][PARTS][4];
            #pragma unroll
            for (int j = 0; j < TOGETHER && first + j < COLUMNS; j += 2)
                #pragma unroll
                for (int part = 0; part < PARTS; ++part)
                    ldmatrix_x4_trans(b[j / 2][part],
                                      window + part * GROUPS * work.plane + shifts[(first + j) / 2]);
            #pragma unroll
            for (int product = PARTS == 2 ? 0 : 2; product < 3; ++product)  // low high, high low, high high
                #pragma unroll
                for (int j = 0; j < TOGETHER && first + j < COLUMNS; ++j)
                    #pragma unroll
                    for (int i = 0; i < ROWS; ++i) {
                        const Word(&here)[4] = b[j / 2][product == 1 ? PARTS - 1 : 0];
                        multiply_add(sums[i][first + j], a[product == 0 ? PARTS - 1 : 0][i], here[j % 2 * 2],
                                     here[j % 2 * 2 + 1]);
                    }
        }
    }
}

// partial: (slices, output channels as they are stored, taps, channels as they are stored).
extern "C" __global__ __launch_bounds__(THREADS, BLOCKS)
void multiply(const __grid_constant__ Problem p, const Piece* images, const Piece* dy, float* partial)
{
    extern __shared__ __align__(128) unsigned char shared_bytes[];
    begin_in_turn();
    Work work(p);
    int* corners = reinterpret_cast<int*>(shared_bytes);  // of windows, in a band
    Piece* ring = reinterpret_cast<Piece*>(shared_bytes + p.steps * 16 * sizeof(int));
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, bands = p.images * p.bands, taps = p.taps_y * p.taps_x;
    int first_row = warp / WARPS_N * ROWS * 16, first_column = warp % WARPS_N * COLUMNS;
    for (int i = threadIdx.x; i < p.steps * 16; i += THREADS) {
        int y = i / p.windows_x, x = i - y * p.windows_x;
        corners[i] = y < p.rows ? y * p.stride * p.pitch + x * p.stride : 0;
    }
    int shifts[COLUMNS / 2];  // of pairs of columns: tap and channels
    #pragma unroll
    for (int j = 0; j < COLUMNS / 2; ++j) {
        int column = first_column + 2 * j, tap = min(work.first_tap + column / GROUPS, taps - 1);
        shifts[j] = tap / p.taps_x * p.pitch + tap % p.taps_x + (column % GROUPS + lane / 16) * work.plane;
    }
    Sums sums = {};
    auto ask = [&](int number) {
        int band = work.slice + number * p.slices;
        if (band < bands) ask_for(p, work, images, dy, band, ring + number % SLOTS * work.slot);
        cp_async_commit_group();
    };
    #pragma unroll
    for (int number = 0; number < SLOTS - 1; ++number) ask(number);
    int number = 0;
    for (int band = work.slice; band < bands; band += p.slices, ++number) {
        cp_async_wait_group<SLOTS - 2>();
        __syncthreads();  // all of the band is there, and the one before it has been read
        ask(number + SLOTS - 1);
        const Piece* image = ring + number % SLOTS * work.slot;
        multiply_band(sums, work, image, corners, shifts, first_row, p.steps);
    }
    cp_async_wait_all();
    partial += (size_t)work.slice * p.groups_out * 8 * taps * p.groups * 8;
    #pragma unroll
    for (int j = 0; j < COLUMNS; ++j) {
        int column = first_column + j, tap = work.first_tap + column / GROUPS;
        int group = work.width * GROUPS + column % GROUPS;
        if (tap >= taps || group >= p.groups) continue;
        #pragma unroll
        for (int i = 0; i < 2 * ROWS; ++i) {
            int filter = work.height * TALL + first_row + 8 * i + lane / 4;
            if (filter >= p.groups_out * 8) continue;
            float* to = partial + ((size_t)filter * taps + tap) * p.groups * 8 + group * 8 + lane % 4 * 2;
            *reinterpret_cast<float2*>(to) = {sums[i / 2][j][i % 2 * 2], sums[i / 2][j][i % 2 * 2 + 1]};
        }
    }
}

// Add what the slices have, in their order, and write it where it belongs: dW (o, c, k, l). A thread has an element.
// The first threads also add up db (o,) of `bias_slices` slices (o_padded,), if there are any.
extern "C" __global__ __launch_bounds__(256)
void add(const __grid_constant__ Problem p, const float* partial, float* dW, const Scale* of_images, const Scale* of_dy,
         const float* bias, float* db, int bias_slices)
{
    begin_in_turn();
    int taps = p.taps_y * p.taps_x, c_padded = p.groups * 8, o_padded = p.groups_out * 8;
    int all = o_padded * taps * c_padded, number = blockIdx.x * blockDim.x + threadIdx.x;
    float unscale = SCALED ? unscale_of(of_images, of_dy) : 1;
    for (int o = number; bias_slices > 0 && o < p.channels_out; o += gridDim.x * blockDim.x) {
        float sum = 0;
        #pragma unroll 8
        for (int slice = 0; slice < bias_slices; ++slice) sum += bias[slice * o_padded + o];
        db[o] = sum;
    }
    int c = number % c_padded, tap = number / c_padded % taps, o = number / c_padded / taps;
    if (number >= all || o >= p.channels_out || c >= p.channels) return;
    float sum = 0;
    #pragma unroll 8
    for (int slice = 0; slice < p.slices; ++slice) sum += partial[(size_t)slice * all + number];
    dW[((size_t)o * p.channels + c) * taps + tap] = sum * unscale;
}
