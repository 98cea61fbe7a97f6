// Images of one channel: the windows of a few pixels stay in registers, and the filters go by.
//
// At 1 to 64 channels, 28 x 28 pixels, there is almost nothing to multiply, and 22 MB to write: memory decides. A
// thread takes PIXELS neighbours in an image of y, one after the other across the ends of rows, and loads their
// windows once. Then filter after filter goes by, from shared memory: 9 weights for 4 pixels' 36 multiply-adds, and
// one store of 16 bytes. A warp stores 512 bytes in one piece.
//
// A block has an image, which it brings to shared memory with zeros around, and GROUP filters: so that there are
// enough blocks to keep all of memory busy.
//
// The input gradient reads these 22 MB, once. A lane has a column of dy and goes down its rows, channel after channel:
// one load for k x k multiply-adds. What it has times the weights of column q of a filter belongs to column j + q of
// dx, so it keeps k totals for each row of dx: they are shifted, and added up, only at the end.
//
// The gradient of the weights reads them once as well. Again a lane has a column of dy, in EACH channels; it keeps
// these channels' k x k totals, and the part of x that its windows see slides down with it. A block has an image; the
// sums over lanes go through shared memory, those over images through a second kernel.

#ifndef HEIGHT
#define HEIGHT 28
#define WIDTH 28
#define OUT_HEIGHT 26
#define OUT_WIDTH 26
#define CHANNELS_OUT 64
#define KERNEL 3
#define STRIDE 1
#define PADDING 0
#endif
#ifndef PIXELS  // for forward
#define PIXELS 4
#define GROUP 64
#define BLOCK_THREADS 96
#endif
#ifndef ROWS  // for the gradients
#define ROWS 28  // of dx that a block has; for the weights, of dy at a time
#define EACH 4   // channels_out of a warp, for the weights
#define WARPS 8  // of a block
#endif

constexpr int TAPS = KERNEL * KERNEL, PLANE = OUT_HEIGHT * OUT_WIDTH;
constexpr int STRIPS = (OUT_WIDTH + 31) / 32;  // of columns of dy, each as wide as a warp

#if !defined(PASS) || PASS == 0
constexpr int LINE = (TAPS + 3) / 4 * 4, PIECES = PLANE / PIXELS;  // of an image
constexpr int SEEN_H = (OUT_HEIGHT - 1) * STRIDE + KERNEL, SEEN_W = (OUT_WIDTH - 1) * STRIDE + KERNEL;

static_assert(PLANE % PIXELS == 0, "each thread has as many pixels");

template <int COUNT>
inline void store(float* to, const float (&from)[COUNT])
{
    if constexpr (COUNT == 4) *reinterpret_cast<float4*>(to) = {from[0], from[1], from[2], from[3]};
    else if constexpr (COUNT == 2) *reinterpret_cast<float2*>(to) = {from[0], from[1]};
    else to[0] = from[0];
}

// Block (image, GROUP filters).
extern "C" __global__ __launch_bounds__(BLOCK_THREADS, 1)
void forward(const float* x, const float* W, float* y)
{
    extern __shared__ __align__(128) unsigned char shared_bytes[];
    constexpr int GROUPS = (CHANNELS_OUT + GROUP - 1) / GROUP;
    float (*filters)[LINE] = reinterpret_cast<float (*)[LINE]>(shared_bytes);
    float* image = reinterpret_cast<float*>(filters + GROUP);
    const int first = blockIdx.x % GROUPS * GROUP, many = min(GROUP, CHANNELS_OUT - first);
    const size_t n = blockIdx.x / GROUPS;
    for (int i = threadIdx.x; i < many * TAPS; i += BLOCK_THREADS) filters[i / TAPS][i % TAPS] = W[first * TAPS + i];
    for (int i = threadIdx.x; i < SEEN_H * SEEN_W; i += BLOCK_THREADS) {
        const int row = i / SEEN_W - PADDING, column = i % SEEN_W - PADDING;
        const bool inside = row >= 0 && row < HEIGHT && column >= 0 && column < WIDTH;
        image[i] = inside ? x[n * (HEIGHT * WIDTH) + row * WIDTH + column] : 0;
    }
    __syncthreads();

    y += (n * CHANNELS_OUT + first) * PLANE;
    for (int piece = threadIdx.x; piece < PIECES; piece += BLOCK_THREADS) {
        float window[PIXELS][TAPS];
        #pragma unroll
        for (int i = 0; i < PIXELS; ++i) {
            const int pixel = piece * PIXELS + i;
            const float* from = image + (pixel / OUT_WIDTH * SEEN_W + pixel % OUT_WIDTH) * STRIDE;
            #pragma unroll
            for (int tap = 0; tap < TAPS; ++tap) window[i][tap] = from[tap / KERNEL * SEEN_W + tap % KERNEL];
        }
        #pragma unroll 2
        for (int o = 0; o < many; ++o) {
            float w[LINE], total[PIXELS] = {};
            #pragma unroll
            for (int tap = 0; tap < LINE; tap += 4) {
                float4 four = *reinterpret_cast<const float4*>(filters[o] + tap);
                w[tap] = four.x, w[tap + 1] = four.y, w[tap + 2] = four.z, w[tap + 3] = four.w;
            }
            #pragma unroll
            for (int tap = 0; tap < TAPS; ++tap)
                #pragma unroll
                for (int i = 0; i < PIXELS; ++i) total[i] += w[tap] * window[i][tap];
            store<PIXELS>(y + o * PLANE + piece * PIXELS, total);
        }
    }
}
#endif

#if !defined(PASS) || PASS == 1
constexpr int DX_PLANE = ROWS * WIDTH;

// Block (image, ROWS rows of dx): each warp adds up its channels of dy, and then the warps do.
extern "C" __global__ __launch_bounds__(32 * WARPS, 1)
void input_gradient(const float* dy, const float* W, float* dx)
{
    extern __shared__ __align__(128) unsigned char shared_bytes[];
    constexpr int TILES = (HEIGHT + ROWS - 1) / ROWS;
    static_assert(ROWS % STRIDE == 0, "all tiles begin alike");
    constexpr int ABOVE = (KERNEL - 1 - PADDING + 8 * STRIDE) / STRIDE - 8;  // windows that reach into the tile
    constexpr int BELOW = (ROWS - 1 + PADDING) / STRIDE + 1;               // that begin within it
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, first_row = blockIdx.x % TILES * ROWS;
    const size_t n = blockIdx.x / TILES;
    float* mine = reinterpret_cast<float*>(shared_bytes) + warp * DX_PLANE;
    for (int i = lane; i < DX_PLANE; i += 32) mine[i] = 0;
    __syncwarp();

    for (int strip = 0; strip < STRIPS; ++strip) {
        const int j = strip * 32 + lane;
        float total[ROWS][KERNEL] = {};
        #pragma unroll 1
        for (int o = warp; o < CHANNELS_OUT; o += WARPS) {
            const float* column = dy + (n * CHANNELS_OUT + o) * PLANE + (first_row / STRIDE - ABOVE) * OUT_WIDTH + j;
            float d[ABOVE + BELOW], w[TAPS];
            #pragma unroll
            for (int i = 0; i < ABOVE + BELOW; ++i) {
                int row = first_row / STRIDE - ABOVE + i;
                d[i] = row >= 0 && row < OUT_HEIGHT && j < OUT_WIDTH ? column[i * OUT_WIDTH] : 0;
            }
            #pragma unroll
            for (int tap = 0; tap < TAPS; ++tap) w[tap] = W[o * TAPS + tap];
            #pragma unroll
            for (int i = 0; i < ABOVE + BELOW; ++i)
                #pragma unroll
                for (int p = 0; p < KERNEL; ++p) {
                    int row = (i - ABOVE) * STRIDE + p - PADDING;  // of dx
                    if (row < 0 || row >= ROWS) continue;
                    #pragma unroll
                    for (int q = 0; q < KERNEL; ++q) total[row][q] += w[p * KERNEL + q] * d[i];
                }
        }
        #pragma unroll
        for (int q = 0; q < KERNEL; ++q) {
            const int column = j * STRIDE + q - PADDING;
            if (column >= 0 && column < WIDTH)
                #pragma unroll
                for (int row = 0; row < ROWS; ++row) mine[row * WIDTH + column] += total[row][q];
            __syncwarp();
        }
    }
    __syncthreads();
    dx += (n * HEIGHT + first_row) * WIDTH;
    const float* all = reinterpret_cast<const float*>(shared_bytes);
    for (int i = threadIdx.x; i < min(ROWS, HEIGHT - first_row) * WIDTH; i += 32 * WARPS) {
        float sum = 0;
        #pragma unroll
        for (int other = 0; other < WARPS; ++other) sum += all[other * DX_PLANE + i];
        dx[i] = sum;
    }
}
#endif

#if !defined(PASS) || PASS == 2
constexpr int SPAN_H = (ROWS - 1) * STRIDE + KERNEL, SPAN_W = (32 * STRIPS - 1) * STRIDE + KERNEL;  // of x, with zeros

// Block (image, WARPS EACH channels of dy) writes the image's part of sums [image][o][tap].
extern "C" __global__ __launch_bounds__(32 * WARPS, 1)
void weight_gradient(const float* x, const float* dy, float* sums)
{
    extern __shared__ __align__(128) unsigned char shared_bytes[];
    constexpr int GROUPS = (CHANNELS_OUT + WARPS * EACH - 1) / (WARPS * EACH);
    float* image = reinterpret_cast<float*>(shared_bytes);  // SPAN_H x SPAN_W; later a line of lanes for each total
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const size_t n = blockIdx.x / GROUPS;
    const int first_out = (blockIdx.x % GROUPS * WARPS + warp) * EACH;

    float total[EACH][TAPS] = {};
    for (int top = 0; top < OUT_HEIGHT; top += ROWS) {
        __syncthreads();
        for (int i = threadIdx.x; i < SPAN_H * SPAN_W; i += 32 * WARPS) {
            int row = top * STRIDE + i / SPAN_W - PADDING, column = i % SPAN_W - PADDING;
            bool inside = row >= 0 && row < HEIGHT && column >= 0 && column < WIDTH;
            image[i] = inside ? x[n * (HEIGHT * WIDTH) + row * WIDTH + column] : 0;
        }
        __syncthreads();
        #pragma unroll 1
        for (int strip = 0; strip < STRIPS; ++strip) {
            const int j = strip * 32 + lane;
            const float* column = dy + (n * CHANNELS_OUT + first_out) * PLANE + top * OUT_WIDTH + j;
            const float* window = image + j * STRIDE;
            float seen[SPAN_H][KERNEL];
            #pragma unroll
            for (int i = 0; i < ROWS; ++i) {
                #pragma unroll
                for (int u = i ? (i - 1) * STRIDE + KERNEL : 0; u < i * STRIDE + KERNEL; ++u)
                    #pragma unroll
                    for (int q = 0; q < KERNEL; ++q) seen[u][q] = window[u * SPAN_W + q];
                #pragma unroll
                for (int e = 0; e < EACH; ++e) {
                    bool inside = top + i < OUT_HEIGHT && j < OUT_WIDTH && first_out + e < CHANNELS_OUT;
                    float d = inside ? column[(size_t)e * PLANE + i * OUT_WIDTH] : 0;
                    #pragma unroll
                    for (int tap = 0; tap < TAPS; ++tap)
                        total[e][tap] += d * seen[i * STRIDE + tap / KERNEL][tap % KERNEL];
                }
            }
        }
    }
    __syncthreads();
    float* lines = reinterpret_cast<float*>(shared_bytes) + warp * (EACH * TAPS * 33);
    #pragma unroll
    for (int e = 0; e < EACH; ++e)
        #pragma unroll
        for (int tap = 0; tap < TAPS; ++tap) lines[(e * TAPS + tap) * 33 + lane] = total[e][tap];
    __syncwarp();
    for (int i = lane; i < EACH * TAPS && first_out * TAPS + i < CHANNELS_OUT * TAPS; i += 32) {
        float sum = 0;
        #pragma unroll
        for (int other = 0; other < 32; ++other) sum += lines[i * 33 + other];
        sums[(n * CHANNELS_OUT + first_out) * TAPS + i] = sum;
    }
}

// dW = the sum over all images. 32 lanes share the images of a weight; always the same ones, in the same order.
extern "C" __global__ __launch_bounds__(256)
void add_slices(const float* sums, float* dW, int weights, int slices)
{
    extern __shared__ __align__(128) unsigned char shared_bytes[];
    float* parts = reinterpret_cast<float*>(shared_bytes);
    const int weight = blockIdx.x * 8 + threadIdx.x % 8, share = threadIdx.x / 8;
    float total = 0;
    if (weight < weights)
        #pragma unroll 4
        for (int s = share; s < slices; s += 32) total += sums[(size_t)s * weights + weight];
    parts[threadIdx.x] = total;
    __syncthreads();
    if (share > 0 || weight >= weights) return;
    for (int i = 1; i < 32; ++i) total += parts[i * 8 + threadIdx.x];
    dW[weight] = total;
}
#endif
