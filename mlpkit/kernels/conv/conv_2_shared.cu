// A block for each tile of the result, with the piece of the images that it needs, and its filters, in shared memory.
//
// A block has SIDE x SIDE pixels of FILTERS channels, a thread a value. Windows of neighbouring pixels overlap: for 8
// x 8 of them, 3 x 3 wide, an image's tile is 10 x 10, the 8 x 8 pixels and a border around, the halo. The threads
// fetch it together, CHUNK channels at a time, and each of its values is used FILTERS k k times, less at the border.
// Zeros for what lies outside of the image are made here, once, and nobody asks for borders again.
//
// In the input gradient the tile is dx's, and dy's is fetched: where windows lie two pixels apart it is half as wide.
//
// The gradient of the weights is a product of matrices, dy (channels_out, pixels) times the windows of x (pixels,
// channels), one for each tap: tiles of TILE x TILE as in the third product of matrices, where x's are read at another
// place for each tap. The pixels of all images make up a long k, so it is cut into slices: each block adds up its
// slice of the batch, and another kernel adds up slices, always in the same order.
//
// Shared memory brings two values for each multiply-add. That is what bounds this. The next file lets a thread do
// many multiply-adds with each value.

#ifndef KERNEL
#define KERNEL 3
#endif
#ifndef STRIDE
#define STRIDE 1
#endif
#ifndef PADDING
#define PADDING 0
#endif

constexpr int SIDE = 8, FILTERS = 4, CHUNK = 8, TAPS = KERNEL * KERNEL;
constexpr int THREADS = SIDE * SIDE * FILTERS;
constexpr int SPAN = (SIDE - 1) * STRIDE + KERNEL;             // pixels of x along an edge, for SIDE windows
constexpr int DY_SPAN = (SIDE - 1 + KERNEL - 1) / STRIDE + 2;  // pixels of dy along an edge, for SIDE pixels of dx

extern __shared__ __align__(128) unsigned char shared_bytes[];

struct Corner {
    int n, first_channel, first_row, first_column;
};

// Blocks of an array (batch, channels, height, width): along a row of it first, then down, then the next channels.
inline Corner corner_of(int channels, int height, int width)
{
    int across = (width + SIDE - 1) / SIDE, down = (height + SIDE - 1) / SIDE;
    int groups = (channels + FILTERS - 1) / FILTERS;
    int i = blockIdx.x, tile = i / across, plane = tile / down;
    return {plane / groups, plane % groups * FILTERS, tile % down * SIDE, i % across * SIDE};
}

// Fetch `many` tiles of edge EDGE from (row, column) on; what is outside is 0.
template <int EDGE>
inline void fetch_images(float (*to)[EDGE][EDGE], const float* images, int many, int row, int column, int height,
                         int width)
{
    for (int i = threadIdx.x; i < many * EDGE * EDGE; i += THREADS) {
        int c = i / (EDGE * EDGE), y = row + i / EDGE % EDGE, x = column + i % EDGE;
        bool inside = y >= 0 && y < height && x >= 0 && x < width;
        to[c][i / EDGE % EDGE][i % EDGE] = inside ? images[((size_t)c * height + y) * width + x] : 0;
    }
}

extern "C" __global__ __launch_bounds__(THREADS, 1)
void forward(const float* x, const float* W, float* y, int channels, int channels_out, int height, int width,
             int out_height, int out_width)
{
    float (*images)[SPAN][SPAN] = reinterpret_cast<float (*)[SPAN][SPAN]>(shared_bytes);
    float (*filters)[CHUNK][TAPS] = reinterpret_cast<float (*)[CHUNK][TAPS]>(images + CHUNK);
    auto [n, first_out, first_row, first_column] = corner_of(channels_out, out_height, out_width);
    int thread = threadIdx.x, i = thread / SIDE % SIDE, j = thread % SIDE, filter = thread / (SIDE * SIDE);

    float total = 0;
    for (int first = 0; first < channels; first += CHUNK) {
        int many = min(CHUNK, channels - first);
        fetch_images<SPAN>(images, x + ((size_t)n * channels + first) * height * width, many,
                           first_row * STRIDE - PADDING, first_column * STRIDE - PADDING, height, width);
        for (int k = thread; k < FILTERS * many * TAPS; k += THREADS) {
            int o = k / (many * TAPS), rest = k % (many * TAPS);
            if (first_out + o < channels_out)
                filters[o][rest / TAPS][rest % TAPS] = W[((size_t)(first_out + o) * channels + first) * TAPS + rest];
        }
        __syncthreads();  // the tiles are complete
        for (int c = 0; c < many; ++c)
            #pragma unroll
            for (int p = 0; p < KERNEL; ++p)
                #pragma unroll
                for (int q = 0; q < KERNEL; ++q)
                    total += filters[filter][c][p * KERNEL + q] * images[c][i * STRIDE + p][j * STRIDE + q];
        __syncthreads();  // nobody needs them any more
    }
    int o = first_out + filter, row = first_row + i, column = first_column + j;
    if (o < channels_out && row < out_height && column < out_width)
        y[(((size_t)n * channels_out + o) * out_height + row) * out_width + column] = total;
}

extern "C" __global__ __launch_bounds__(THREADS, 1)
void input_gradient(const float* dy, const float* W, float* dx, int channels, int channels_out, int height, int width,
                    int out_height, int out_width)
{
    float (*images)[DY_SPAN][DY_SPAN] = reinterpret_cast<float (*)[DY_SPAN][DY_SPAN]>(shared_bytes);
    float (*filters)[CHUNK][TAPS] = reinterpret_cast<float (*)[CHUNK][TAPS]>(images + CHUNK);
    auto [n, first_in, first_row, first_column] = corner_of(channels, height, width);
    int thread = threadIdx.x, filter = thread / (SIDE * SIDE);
    // The first window that may hold a pixel of this tile; 2 KERNEL is even, and keeps what is divided from being < 0.
    int top = (first_row + PADDING - KERNEL + 1 + 2 * KERNEL) / STRIDE - 2 * KERNEL / STRIDE;
    int left = (first_column + PADDING - KERNEL + 1 + 2 * KERNEL) / STRIDE - 2 * KERNEL / STRIDE;
    int y = first_row + thread / SIDE % SIDE + PADDING - top * STRIDE;
    int x = first_column + thread % SIDE + PADDING - left * STRIDE;

    float total = 0;
    for (int first = 0; first < channels_out; first += CHUNK) {
        int many = min(CHUNK, channels_out - first);
        fetch_images<DY_SPAN>(images, dy + ((size_t)n * channels_out + first) * out_height * out_width, many, top, left,
                              out_height, out_width);
        for (int k = thread; k < FILTERS * many * TAPS; k += THREADS) {
            int c = k / TAPS % FILTERS, o = k / (TAPS * FILTERS);
            if (first_in + c < channels)
                filters[c][o][k % TAPS] = W[((size_t)(first + o) * channels + first_in + c) * TAPS + k % TAPS];
        }
        __syncthreads();
        for (int o = 0; o < many; ++o)
            #pragma unroll
            for (int p = 0; p < KERNEL; ++p)
                #pragma unroll
                for (int q = 0; q < KERNEL; ++q)
                    if ((y - p) % STRIDE == 0 && (x - q) % STRIDE == 0)
                        total += filters[filter][o][p * KERNEL + q] * images[o][(y - p) / STRIDE][(x - q) / STRIDE];
        __syncthreads();
    }
    int c = first_in + filter, row = first_row + thread / SIDE % SIDE, column = first_column + thread % SIDE;
    if (c < channels && row < height && column < width)
        dx[(((size_t)n * channels + c) * height + row) * width + column] = total;
}

constexpr int TILE = 16, DEPTH = 32;  // channels of x and of dy, and pixels at a time

// Block (tap, tile of channels, tile of channels_out, slice of the batch) writes its part of sums [slice][o][c][tap].
extern "C" __global__ __launch_bounds__(TILE * TILE, 1)
void weight_gradient(const float* x, const float* dy, float* sums, int batch, int channels, int channels_out,
                     int height, int width, int out_height, int out_width, int slices)
{
    float (*x_tile)[DEPTH + 1] = reinterpret_cast<float (*)[DEPTH + 1]>(shared_bytes);
    float (*dy_tile)[DEPTH + 1] = x_tile + TILE;
    int tap = blockIdx.x % TAPS, rest = blockIdx.x / TAPS;
    int tiles_in = (channels + TILE - 1) / TILE, tiles_out = (channels_out + TILE - 1) / TILE;
    int first_in = rest % tiles_in * TILE, first_out = rest / tiles_in % tiles_out * TILE;
    int slice = rest / (tiles_in * tiles_out), pixels = out_height * out_width;
    int first = (long long)batch * slice / slices, last = (long long)batch * (slice + 1) / slices;
    int c = threadIdx.x % TILE, o = threadIdx.x / TILE;

    float total = 0;
    for (int n = first; n < last; ++n)
        for (int start = 0; start < pixels; start += DEPTH) {
            for (int k = threadIdx.x; k < TILE * DEPTH; k += TILE * TILE) {
                int channel = k / DEPTH, pixel = start + k % DEPTH;
                int row = pixel / out_width * STRIDE + tap / KERNEL - PADDING;
                int column = pixel % out_width * STRIDE + tap % KERNEL - PADDING;
                bool inside = row >= 0 && row < height && column >= 0 && column < width && pixel < pixels;
                x_tile[channel][k % DEPTH] = inside && first_in + channel < channels
                    ? x[(((size_t)n * channels + first_in + channel) * height + row) * width + column] : 0;
                dy_tile[channel][k % DEPTH] = pixel < pixels && first_out + channel < channels_out
                    ? dy[((size_t)n * channels_out + first_out + channel) * pixels + pixel] : 0;
            }
            __syncthreads();
            #pragma unroll
            for (int k = 0; k < DEPTH; ++k) total += dy_tile[o][k] * x_tile[c][k];
            __syncthreads();
        }
    if (first_out + o < channels_out && first_in + c < channels)
        sums[(((size_t)slice * channels_out + first_out + o) * channels + first_in + c) * TAPS + tap] = total;
}

// dW = the sum of all slices, in their order.
extern "C" __global__ void add_slices(const float* sums, float* dW, int weights, int slices)
{
    int weight = blockIdx.x * blockDim.x + threadIdx.x;
    if (weight >= weights) return;
    float total = 0;
    for (int s = 0; s < slices; ++s) total += sums[(size_t)s * weights + weight];
    dW[weight] = total;
}
