// A patch of the result in each thread's registers, and the filters of its channel beside it.
//
// A thread has one channel of the result (or EACH of them) and a patch of PATCH_H x PATCH_W pixels: so many totals
// stay in registers from first to last. For each channel of the images it takes that channel's k x k weights into
// registers, once for the whole patch, and then row after row of the image, one ahead of the multiply-adds: a value
// that is loaded serves k x k products, a weight PATCH_H x PATCH_W. With 11 x 11 pixels that is 1,089 multiply-adds
// for 178 values.
//
// The lanes of a warp have the same patch and 32 channels. So all of them need the same values of the image: one
// address, one answer for all lanes, four values at a time. And each needs its own weights, from other banks than its
// neighbours'.
//
// What is known when this is compiled costs nothing when it runs: all sizes are macros. Loops over taps and pixels are
// unrolled, and products with the zeros around an image are left out: of rows always, of columns where a patch is as
// wide as the image.
//
// The input gradient is a convolution too: of dy, with filters rotated by 180 degrees. Where windows lie SPREAD pixels
// apart, it is as if dy had zeros between its pixels; these are not stored, and not multiplied. So one function does
// both passes.
//
// The gradient of the weights has k x k totals for a channel of x and one of dy, and sums over all pixels. Here a
// thread keeps the patch of dy in registers, in OUTS channels, and goes through EACH channels of x: again k x k
// products for each value that is loaded. There are few totals and much to add, so blocks take slices of the batch,
// and a second kernel adds these up, always in the same order.
//
// What bounds it: the multiply-adds. Nine of ten instructions are one, and about two thirds of those that an H200 could
// do get done with the best of many tiles, be its warps 8 or 16 and its loads few or many. A reason may be where
// registers lie: a multiply-add reads three of them, and waits if too many are in one bank. A pixel's total meets its
// left, middle and right neighbour in turn, and these lie in different banks: so it can't be in the right one for all,
// as in a product of matrices.

#include "ptx.cuh"

#ifndef CHANNELS  // of the images that are read: x, but dy for the input gradient
#define CHANNELS 64
#define HEIGHT 13
#define WIDTH 13
#define CHANNELS_OUT 128  // of those that are written (dy for the weights)
#define OUT_HEIGHT 11
#define OUT_WIDTH 11
#define KERNEL 3
#define STRIDE 1
#define SPREAD 1   // from one pixel that is read to the next, on the grid where windows lie
#define PADDING 0  // may be less than 0: pixels that nobody reads
#endif
#ifndef PATCH_H  // pixels of a thread
#define PATCH_H 4
#define PATCH_W 11
#define PATCHES_Y 3  // patches of a block
#define PATCHES_X 1
#define LANES 64  // threads for as many channels_out
#define EACH 1    // channels_out of a thread; for the weights, channels of x
#define GROUPS 1  // of EACH channels of x, for the weights
#define SLICES 1  // threads that share the sum for the same totals
#define CHUNK 4   // channels that are in shared memory at a time
#define VECTOR 4  // values of a copy: of filters, or of dy
#define OUTS 1    // channels of dy of a thread, for the weights
#endif

constexpr int TAPS = KERNEL * KERNEL;
constexpr int PATCHES = PATCHES_Y * PATCHES_X;
constexpr int SPAN_H = (PATCH_H - 1) * STRIDE + KERNEL, SPAN_W = (PATCH_W - 1) * STRIDE + KERNEL;  // that a patch needs
constexpr int FIRST = (PADDING % SPREAD + SPREAD) % SPREAD;  // the first row of these that has values
constexpr bool WHOLE_W = PATCH_W >= OUT_WIDTH;  // then columns are known when this is compiled, and zeros left out
constexpr int BEFORE = (FIRST - PADDING) / SPREAD, LEFT = WHOLE_W && BEFORE < 0 ? -BEFORE : 0;
constexpr int READ_H = (SPAN_H - FIRST + SPREAD - 1) / SPREAD, ALL_W = (SPAN_W - FIRST + SPREAD - 1) / SPREAD - LEFT;
constexpr int READ_W = WHOLE_W && ALL_W > WIDTH - (BEFORE + LEFT) ? WIDTH - (BEFORE + LEFT) : ALL_W;
constexpr int STEP_H = PATCH_H * STRIDE / SPREAD, STEP_W = PATCH_W * STRIDE / SPREAD;  // from a patch to the next
constexpr int ROWS = (PATCHES_Y - 1) * STEP_H + READ_H, PITCH = (READ_W + 3) / 4 * 4;
constexpr int PLANE = ROWS * PATCHES_X * PITCH;  // in shared memory, of one channel: each patch has its columns
constexpr int TILE_H = PATCHES_Y * PATCH_H, TILE_W = PATCHES_X * PATCH_W;
constexpr int TILES_Y = (OUT_HEIGHT + TILE_H - 1) / TILE_H, TILES_X = (OUT_WIDTH + TILE_W - 1) / TILE_W;

static_assert(READ_W > 0 && (!WHOLE_W || PATCHES_X == 1), "there is something to read");
static_assert(STRIDE == 1 || SPREAD == 1, "windows or pixels lie apart");
static_assert(PATCH_H * STRIDE % SPREAD == 0 && PATCH_W * STRIDE % SPREAD == 0, "all patches begin alike");

// Whether the patch's column `u` may hold more than zeros, and where it is in what is read then.
constexpr bool column_counts(int u)
{
    return u % SPREAD == FIRST && (u - FIRST) / SPREAD >= LEFT && (u - FIRST) / SPREAD - LEFT < READ_W;
}
constexpr int column_read(int u) { return (u - FIRST) / SPREAD - LEFT; }

// This thread's places in a tile of an image in shared memory, the same for each channel, and where they come from.
template <int THREADS>
struct Places {
    static constexpr int COUNT = (PLANE + THREADS - 1) / THREADS;
    int from[COUNT];  // less than 0: outside

    inline void find(int tile_y, int tile_x)
    {
        #pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            int place = threadIdx.x + i * THREADS, x = place % PITCH, patch = place / PITCH % PATCHES_X;
            int row = tile_y * PATCHES_Y * STEP_H + BEFORE + place / (PITCH * PATCHES_X);
            int column = (tile_x * PATCHES_X + patch) * STEP_W + BEFORE + LEFT + x;
            bool inside = row >= 0 && row < HEIGHT && column >= 0 && column < WIDTH && x < READ_W && place < PLANE;
            from[i] = inside ? row * WIDTH + column : -1;
        }
    }

    // Zeros for what lies outside, in so many planes.
    inline void clear(float* planes, int many)
    {
        #pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            int place = threadIdx.x + i * THREADS;
            if (from[i] < 0 && place < PLANE)
                for (int c = 0; c < many; ++c) planes[c * PLANE + place] = 0;
        }
    }

    inline void copy(float* planes, const float* image, int many)
    {
        #pragma unroll
        for (int i = 0; i < COUNT; ++i)
            if (from[i] >= 0)
                for (int c = 0; c < many; ++c)
                    cp_async<4>(planes + c * PLANE + threadIdx.x + i * THREADS, image + c * (HEIGHT * WIDTH) + from[i]);
    }
};

// Load COUNT neighbours, four at a time.
template <int COUNT>
inline void load(float (&to)[COUNT], const float* from)
{
    #pragma unroll
    for (int j = 0; j + 4 <= COUNT; j += 4) {
        float4 four = *reinterpret_cast<const float4*>(from + j);
        to[j] = four.x, to[j + 1] = four.y, to[j + 2] = four.z, to[j + 3] = four.w;
    }
    constexpr int LEFT_OVER = COUNT / 4 * 4;
    if constexpr (COUNT % 4 >= 2) {
        float2 two = *reinterpret_cast<const float2*>(from + LEFT_OVER);
        to[LEFT_OVER] = two.x, to[LEFT_OVER + 1] = two.y;
    }
    if constexpr (COUNT % 2) to[COUNT - 1] = from[COUNT - 1];
}

// ---- forward, and the input gradient ----

constexpr int THREADS = LANES * PATCHES * SLICES, BLOCK_OUT = LANES * EACH;
constexpr int RUN = CHUNK * TAPS, RUN_PITCH = VECTOR == 1 ? RUN | 1 : (RUN / VECTOR | 1) * VECTOR;
constexpr int PIXELS = PATCH_H * PATCH_W;

struct Stage {
    float images[CHUNK * PLANE];
    float filters[(BLOCK_OUT * RUN_PITCH + 3) / 4 * 4];  // [o][c][tap]; for the input gradient [c][o][tap]
};

template <bool FLIPPED>
inline void copy_filters(float* to, const float* W, int first_out, int c)
{
    if (FLIPPED) {  // W is [c][o][tap]
        constexpr int LINE = BLOCK_OUT * TAPS;
        const int run = min(BLOCK_OUT, CHANNELS_OUT - first_out) * TAPS, many = min(CHUNK, CHANNELS - c);
        W += ((size_t)c * CHANNELS_OUT + first_out) * TAPS;
        #pragma unroll 4
        for (int i = threadIdx.x * VECTOR; i < many * LINE; i += THREADS * VECTOR)
            if (i % LINE < run)
                cp_async<4 * VECTOR>(to + i, W + (size_t)(i / LINE) * (CHANNELS_OUT * TAPS) + i % LINE);
    } else {
        const int run = min(CHUNK, CHANNELS - c) * TAPS, many = min(BLOCK_OUT, CHANNELS_OUT - first_out);
        W += ((size_t)first_out * CHANNELS + c) * TAPS;
        #pragma unroll 4
        for (int i = threadIdx.x * VECTOR; i < many * RUN; i += THREADS * VECTOR)
            if (i % RUN < run)
                cp_async<4 * VECTOR>(to + i / RUN * RUN_PITCH + i % RUN,
                                     W + (size_t)(i / RUN) * (CHANNELS * TAPS) + i % RUN);
    }
}

// Whether row `u` of a patch is a row of the image in all patches.
constexpr bool surely_inside(int u)
{
    return u >= PADDING && u + SPREAD * STEP_H * (TILES_Y * PATCHES_Y - 1) - PADDING < HEIGHT * SPREAD;
}

// totals += what one channel adds to them. While a row is multiplied, the next one is on its way.
inline void add_channel(float (&total)[EACH][PIXELS], const float (&w)[EACH][TAPS], const float* image, int top)
{
    float rows[2][READ_W];
    load(rows[0], image);
    #pragma unroll
    for (int r = 0; r < READ_H; ++r) {
        const int u = FIRST + r * SPREAD;
        if (r + 1 < READ_H) load(rows[(r + 1) % 2], image + (r + 1) * (PATCHES_X * PITCH));
        if (!surely_inside(u) && (top + r < 0 || top + r >= HEIGHT)) continue;
        const float (&row)[READ_W] = rows[r % 2];
        #pragma unroll
        for (int p = 0; p < KERNEL; ++p) {
            int i = (u - p) / STRIDE;
            if (u < p || (u - p) % STRIDE || i >= PATCH_H) continue;
            #pragma unroll
            for (int q = 0; q < KERNEL; ++q)
                #pragma unroll
                for (int e = 0; e < EACH; ++e)
                    #pragma unroll
                    for (int j = 0; j < PATCH_W; ++j)
                        if (column_counts(j * STRIDE + q))
                            total[e][i * PATCH_W + j] += w[e][p * KERNEL + q] * row[column_read(j * STRIDE + q)];
        }
    }
}

// Through shared memory: the sums of all slices, one after the other, and then whole lines to y.
inline void store_totals(float* lines, const float (&total)[EACH][PIXELS], float* y, int many_out, int tile_y,
                         int tile_x)
{
    constexpr int LINE_OUT = TILE_H * TILE_W | 1;  // odd: the lanes of a warp have their own banks
    int lane = threadIdx.x % LANES, patch = threadIdx.x / LANES % PATCHES, slice = threadIdx.x / (LANES * PATCHES);
    float* mine = lines + lane * LINE_OUT + patch / PATCHES_X * PATCH_H * TILE_W + patch % PATCHES_X * PATCH_W;
    const int first_row = tile_y * TILE_H, first_column = tile_x * TILE_W;
    #pragma unroll
    for (int e = 0; e < EACH; ++e) {
        for (int s = 0; s < SLICES; ++s) {
            __syncthreads();
            if (slice != s) continue;
            #pragma unroll
            for (int i = 0; i < PIXELS; ++i) {
                float& sum = mine[i / PATCH_W * TILE_W + i % PATCH_W];
                sum = s ? sum + total[e][i] : total[e][i];
            }
        }
        __syncthreads();
        for (int o = threadIdx.x / 32; o < LANES && e * LANES + o < many_out; o += THREADS / 32) {
            float* at = y + (size_t)(e * LANES + o) * (OUT_HEIGHT * OUT_WIDTH) + first_row * OUT_WIDTH;
            if (TILE_W == OUT_WIDTH) {
                const int pixels = min(TILE_H, OUT_HEIGHT - first_row) * OUT_WIDTH;
                #pragma unroll 4
                for (int i = threadIdx.x % 32; i < pixels; i += 32) at[i] = lines[o * LINE_OUT + i];
            } else {
                for (int i = threadIdx.x % 32; i < TILE_H * TILE_W; i += 32)
                    if (first_row + i / TILE_W < OUT_HEIGHT && first_column + i % TILE_W < OUT_WIDTH)
                        at[i / TILE_W * OUT_WIDTH + first_column + i % TILE_W] = lines[o * LINE_OUT + i];
            }
        }
    }
}

template <bool FLIPPED>
inline void convolve(Stage* stages, const float* x, const float* W, float* y)
{
    constexpr int GROUPS_OUT = (CHANNELS_OUT + BLOCK_OUT - 1) / BLOCK_OUT;
    const int first_out = blockIdx.x % GROUPS_OUT * BLOCK_OUT, tile = blockIdx.x / GROUPS_OUT;
    const int tile_x = tile % TILES_X, tile_y = tile / TILES_X % TILES_Y;
    const size_t n = tile / (TILES_X * TILES_Y);
    const int lane = threadIdx.x % LANES, patch = threadIdx.x / LANES % PATCHES;
    const int slice = threadIdx.x / (LANES * PATCHES);
    const int patch_y = patch / PATCHES_X, patch_x = patch % PATCHES_X;
    const int top = (tile_y * PATCHES_Y + patch_y) * STEP_H + (FIRST - PADDING) / SPREAD;
    x += n * CHANNELS * HEIGHT * WIDTH;
    y += (n * CHANNELS_OUT + first_out) * (OUT_HEIGHT * OUT_WIDTH);

    Places<THREADS> places;
    places.find(tile_y, tile_x);
    places.clear(stages[0].images, CHUNK);
    places.clear(stages[1].images, CHUNK);
    auto start = [&](Stage& stage, int c) {
        places.copy(stage.images, x + (size_t)c * (HEIGHT * WIDTH), min(CHUNK, CHANNELS - c));
        copy_filters<FLIPPED>(stage.filters, W, first_out, c);
    };

    float total[EACH][PIXELS] = {};
    start(stages[0], 0);
    for (int first = 0, turn = 0; first < CHANNELS; first += CHUNK, turn ^= 1) {
        cp_async_wait_all();
        __syncthreads();  // this chunk is there, and nobody needs the one before
        if (first + CHUNK < CHANNELS) start(stages[turn ^ 1], first + CHUNK);
        const Stage& stage = stages[turn];
        const int many = min(CHUNK, CHANNELS - first);
        #pragma unroll 1
        for (int c = slice; c < many; c += SLICES) {
            float w[EACH][TAPS];
            #pragma unroll
            for (int e = 0; e < EACH; ++e)
                #pragma unroll
                for (int tap = 0; tap < TAPS; ++tap)
                    w[e][tap] = FLIPPED ? stage.filters[(c * BLOCK_OUT + lane + e * LANES) * TAPS + TAPS - 1 - tap]
                                       : stage.filters[(lane + e * LANES) * RUN_PITCH + c * TAPS + tap];
            add_channel(total, w, stage.images + c * PLANE + (patch_y * STEP_H * PATCHES_X + patch_x) * PITCH, top);
        }
    }
    store_totals(reinterpret_cast<float*>(stages), total, y, CHANNELS_OUT - first_out, tile_y, tile_x);
}

#if !defined(PASS) || PASS == 0
extern "C" __global__ __launch_bounds__(THREADS, 1)
void forward(const float* x, const float* W, float* y)
{
    extern __shared__ __align__(128) unsigned char shared_bytes[];
    convolve<false>(reinterpret_cast<Stage*>(shared_bytes), x, W, y);
}
#endif

#if !defined(PASS) || PASS == 1
extern "C" __global__ __launch_bounds__(THREADS, 1)
void input_gradient(const float* dy, const float* W, float* dx)
{
    extern __shared__ __align__(128) unsigned char shared_bytes[];
    convolve<true>(reinterpret_cast<Stage*>(shared_bytes), dy, W, dx);
}
#endif

// ---- The gradient of the weights ----

#if !defined(PASS) || PASS == 2
constexpr int W_THREADS = LANES * GROUPS * SLICES, BLOCK_C = GROUPS * EACH;
constexpr int BLOCK_DY = LANES * OUTS, SUMS = OUTS * EACH * TAPS;
constexpr int STRIP = TILE_H * OUT_WIDTH;  // of dy: all columns, so that it is in one piece
constexpr int LINE = VECTOR == 1 ? STRIP | 1 : (STRIP / VECTOR | 1) * VECTOR;

static_assert(SPREAD == 1, "x is read as it is");

struct WeightStage {
    float images[BLOCK_C * PLANE];
    float dy[(BLOCK_DY * LINE + 3) / 4 * 4];
};

inline void copy_dy(float* to, const float* dy, int many, int rows)
{
    for (int o = threadIdx.x / 32; o < min(BLOCK_DY, many); o += W_THREADS / 32)
        #pragma unroll 4
        for (int i = threadIdx.x % 32 * VECTOR; i < rows * OUT_WIDTH; i += 32 * VECTOR)
            cp_async<4 * VECTOR>(to + o * LINE + i, dy + (size_t)o * (OUT_HEIGHT * OUT_WIDTH) + i);
}

// Load a patch of dy, as many values at a time as were copied: then each lane of a warp has its own banks.
inline void load_patch(float (&d)[PATCH_H][PATCH_W], const float* dy, int rows, int columns)
{
    constexpr int AT_ONCE = PATCH_W % VECTOR || OUT_WIDTH % VECTOR ? 1 : VECTOR;
    #pragma unroll
    for (int i = 0; i < PATCH_H; ++i)
        #pragma unroll
        for (int j = 0; j < PATCH_W; j += AT_ONCE) {
            float elements[AT_ONCE] = {};
            if ((OUT_HEIGHT % PATCH_H == 0 || i < rows) && (OUT_WIDTH % PATCH_W == 0 || j < columns))
                load(elements, dy + i * OUT_WIDTH + j);
            #pragma unroll
            for (int k = 0; k < AT_ONCE; ++k) d[i][j + k] = elements[k];
        }
}

// total += the products of a patch of dy with what its windows see in each channel.
inline void add_patch(float (&total)[OUTS][EACH][TAPS], const float* dy, const float* images, int rows, int columns)
{
    float d[OUTS][PATCH_H][PATCH_W];
    #pragma unroll
    for (int o = 0; o < OUTS; ++o) load_patch(d[o], dy + o * LANES * LINE, rows, columns);
    #pragma unroll
    for (int e = 0; e < EACH; ++e)
        #pragma unroll
        for (int u = 0; u < SPAN_H; ++u) {
            float row[READ_W];
            load(row, images + e * PLANE + u * (PATCHES_X * PITCH));
            #pragma unroll
            for (int j = 0; j < PATCH_W; ++j)
                #pragma unroll
                for (int p = 0; p < KERNEL; ++p) {
                    int i = (u - p) / STRIDE;
                    if (u < p || (u - p) % STRIDE || i >= PATCH_H) continue;
                    #pragma unroll
                    for (int q = 0; q < KERNEL; ++q)
                        #pragma unroll
                        for (int o = 0; o < OUTS; ++o)
                            if (column_counts(j * STRIDE + q))
                                total[o][e][p * KERNEL + q] += d[o][i][j] * row[column_read(j * STRIDE + q)];
                }
        }
}

// Block (group of channels_out, group of channels, slice of the batch) writes its part of sums [slice][o][c][tap].
extern "C" __global__ __launch_bounds__(W_THREADS, 1)
void weight_gradient(const float* x, const float* dy, float* sums, int batch, int slices)
{
    extern __shared__ __align__(128) unsigned char shared_bytes[];
    WeightStage* stages = reinterpret_cast<WeightStage*>(shared_bytes);
    constexpr int GROUPS_OUT = (CHANNELS_OUT + BLOCK_DY - 1) / BLOCK_DY, GROUPS_IN = (CHANNELS + BLOCK_C - 1) / BLOCK_C;
    const int first_out = blockIdx.x % GROUPS_OUT * BLOCK_DY;
    const int first_in = blockIdx.x / GROUPS_OUT % GROUPS_IN * BLOCK_C, part = blockIdx.x / (GROUPS_OUT * GROUPS_IN);
    const int lane = threadIdx.x % LANES, group = threadIdx.x / LANES % GROUPS, slice = threadIdx.x / (LANES * GROUPS);
    const int first = (long long)batch * part / slices, last = (long long)batch * (part + 1) / slices;
    const int many_in = min(BLOCK_C, CHANNELS - first_in), many_out = min(BLOCK_DY, CHANNELS_OUT - first_out);

    Places<W_THREADS> places;
    auto start = [&](WeightStage& stage, int turn) {
        const int tile_y = turn % TILES_Y;
        const size_t n = first + turn / TILES_Y;
        if (TILES_Y > 1 || turn < 2) {
            places.find(tile_y, 0);
            places.clear(stage.images, BLOCK_C);
        }
        places.copy(stage.images, x + (n * CHANNELS + first_in) * (HEIGHT * WIDTH), many_in);
        copy_dy(stage.dy, dy + ((n * CHANNELS_OUT + first_out) * OUT_HEIGHT + tile_y * TILE_H) * OUT_WIDTH, many_out,
                min(TILE_H, OUT_HEIGHT - tile_y * TILE_H));
    };

    float total[OUTS][EACH][TAPS] = {};
    const int turns = (last - first) * TILES_Y;
    if (turns > 0) start(stages[0], 0);
    for (int turn = 0; turn < turns; ++turn) {
        cp_async_wait_all();
        __syncthreads();
        if (turn + 1 < turns) start(stages[(turn + 1) % 2], turn + 1);
        const WeightStage& stage = stages[turn % 2];
        const int rows = OUT_HEIGHT - turn % TILES_Y * TILE_H;
        #pragma unroll 1
        for (int patch = slice; patch < PATCHES; patch += SLICES) {
            int y = patch / PATCHES_X, x = patch % PATCHES_X;
            if (y * PATCH_H >= rows) break;
            add_patch(total, stage.dy + lane * LINE + y * PATCH_H * OUT_WIDTH + x * PATCH_W,
                      stage.images + group * EACH * PLANE + (y * STEP_H * PATCHES_X + x) * PITCH, rows - y * PATCH_H,
                      OUT_WIDTH - x * PATCH_W);
        }
    }

    constexpr int NEXT = W_THREADS + 1;  // each thread has a column of totals, as above
    float* all = reinterpret_cast<float*>(shared_bytes);
    __syncthreads();
    #pragma unroll
    for (int i = 0; i < SUMS; ++i) all[i * NEXT + threadIdx.x] = total[i / (EACH * TAPS)][i / TAPS % EACH][i % TAPS];
    __syncthreads();
    sums += (((size_t)part * CHANNELS_OUT + first_out) * CHANNELS + first_in) * TAPS;
    for (int o = threadIdx.x / 32; o < many_out; o += W_THREADS / 32)
        for (int i = threadIdx.x % 32; i < many_in * TAPS; i += 32) {
            const int which = o / LANES * (EACH * TAPS) + i % (EACH * TAPS);
            const int from = o % LANES + i / (EACH * TAPS) * LANES;
            float sum = 0;
            #pragma unroll
            for (int s = 0; s < SLICES; ++s) sum += all[which * NEXT + from + s * (LANES * GROUPS)];
            sums[(size_t)o * (CHANNELS * TAPS) + i] = sum;
        }
}

// dW = the sum of all slices. Eight threads share the slices of a weight; always the same ones, in the same order.
extern "C" __global__ __launch_bounds__(256)
void add_slices(const float* sums, float* dW, int weights, int slices)
{
    extern __shared__ __align__(128) unsigned char shared_bytes[];
    float* parts = reinterpret_cast<float*>(shared_bytes);
    int weight = blockIdx.x * 32 + threadIdx.x % 32, share = threadIdx.x / 32;
    float total = 0;
    if (weight < weights)
        #pragma unroll 8
        for (int s = share; s < slices; s += 8) total += sums[(size_t)s * weights + weight];
    parts[threadIdx.x] = total;
    __syncthreads();
    if (share > 0 || weight >= weights) return;
    for (int i = 1; i < 8; ++i) total += parts[i * 32 + threadIdx.x];
    dW[weight] = total;
}
#endif
