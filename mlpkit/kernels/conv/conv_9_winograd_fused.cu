// Winograd's F(2 x 2, 3 x 3) in one kernel: the transformed images live in shared memory and registers only.
//
// In three kernels V and M, together eight times the image, go through memory. Here a block has FILTERS filters and
// COLUMNS tiles. For DEPTH channels at a time, a thread transforms a tile of one channel, and puts its 16 values
// into shared memory. Each of eight warps multiplies the matrices of two of the 16 places, and keeps their accumulators
// in registers, as a matrix product does. At the end all 16 places of a tile meet in shared memory, and are transformed
// back. Filters come transformed, from a small kernel before: U (channels, places, filters).
//
// With the weight gradient it is the same: there the sum is over tiles, and what a block has is FILTERS filters and
// COLUMNS channels; both tiles of the image and of dy are transformed on the way. Each block has a slice of the
// tiles; `add_slices` adds these up.
//
// What bounds it is instructions, and what waits between them. A thread with 128 sums does 1,024 multiply-adds for 8
// channels, and 280 other instructions: loads from shared memory, transforms, addresses. Such blocks are alone on a
// multiprocessor, and nobody multiplies while they begin and end. Blocks of 32 filters and 32 tiles come in pairs, and
// are faster where there are few channels; larger ones load less for each multiply-add, and win where there are many.
//
// F(4 x 4) would have 36 places: with as many sums as fit into registers, each place had a matrix of 32 x 32, and
// filters would have to come from the L2 cache as fast as it can send them. So tiles of 4 x 4 stay three kernels.

#include "ptx.cuh"

#ifndef FILTERS
#define FILTERS 64
#endif
#ifndef COLUMNS
#define COLUMNS 32
#endif

constexpr int PLACES = 16, TAPS = 9, WARPS = 8, THREADS = 32 * WARPS;
constexpr int DEPTH = THREADS / COLUMNS;  // a thread transforms one tile at a time
constexpr int LANES_F = FILTERS / 8, LANES_C = 32 / LANES_F, EACH_F = 8, EACH_C = COLUMNS / LANES_C;
constexpr int PITCH_F = FILTERS, PITCH_C = COLUMNS + 32 / DEPTH, PITCH_M = FILTERS + 4;
constexpr int BLOCKS = EACH_F * EACH_C > 32 ? 1 : 2;  // on a multiprocessor: says how many registers there are

static_assert(EACH_C == 4 || EACH_C == 8, "one or two loads of four elements");

// x (batch, height, width, channels) and y (batch, out_height, out_width, filters); `filters_padded`: of U, padded
// with zeros to whole blocks; its channels are padded, too. slices: of all tiles, for the weight gradient.
struct Sizes {
    int batch, height, width, channels, out_height, out_width, filters, filters_padded, down, across, padding, slices;
};

struct Stage {
    float U[PLACES][DEPTH][PITCH_F];
    float V[PLACES][DEPTH][PITCH_C];
};

struct Tile {
    int image, row, column;  // of its first output
    bool exists;

    Tile(const Sizes& s, int number)
    {
        const int above = number / s.across;
        image = above / s.down, exists = image < s.batch;
        row = (above - image * s.down) * 2, column = (number - above * s.across) * 2;
    }

    // Go on by so many tiles: with no division.
    void advance(const Sizes& s, int tiles)
    {
        for (column += 2 * tiles; column >= 2 * s.across; column -= 2 * s.across)
            if ((row += 2) >= 2 * s.down) row = 0, ++image;
        exists = image < s.batch;
    }
};

inline void load4(float* to, const float* from)
{
    const float4 four = *reinterpret_cast<const float4*>(from);
    to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
}

// B^T d B, in place.
inline void transform_input(float (&d)[4][4])
{
    #pragma unroll
    for (int j = 0; j < 4; ++j) {
        const float a = d[0][j] - d[2][j], b = d[1][j] + d[2][j], c = d[2][j] - d[1][j], e = d[1][j] - d[3][j];
        d[0][j] = a, d[1][j] = b, d[2][j] = c, d[3][j] = e;
    }
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float a = d[i][0] - d[i][2], b = d[i][1] + d[i][2], c = d[i][2] - d[i][1], e = d[i][1] - d[i][3];
        d[i][0] = a, d[i][1] = b, d[i][2] = c, d[i][3] = e;
    }
}

// The 4 x 4 pixels of one channel that a tile sees: where the first is, and a bit for each that is inside.
struct Patch {
    const float* first;
    unsigned inside;

    Patch(const float* x, const Sizes& s, const Tile& tile, int channel)
    {
        const int top = tile.row - s.padding, left = tile.column - s.padding;
        first = x + (((long long)tile.image * s.height + top) * s.width + left) * s.channels + channel;
        unsigned columns = 0;
        inside = 0;
        #pragma unroll
        for (int j = 0; j < 4; ++j) columns |= (left + j >= 0 && left + j < s.width) << j;
        #pragma unroll
        for (int i = 0; i < 4; ++i) inside |= top + i >= 0 && top + i < s.height ? columns << 4 * i : 0;
        if (!tile.exists) inside = 0;
    }

    // Fetch them, zeros outside.
    void fetch(float (&d)[4][4], const Sizes& s, bool exists) const
    {
        const unsigned mine = exists ? inside : 0;
        const float* row = first;
        #pragma unroll
        for (int i = 0; i < 4; ++i, row += s.width * s.channels) {
            const float* at = row;
            #pragma unroll
            for (int j = 0; j < 4; ++j, at += s.channels) d[i][j] = mine >> (4 * i + j) & 1 ? *at : 0;
        }
    }
};

// The accumulators of a thread, for two places: filters and columns, four neighbours and four others half a block
// further.
struct Sums {
    float at[2][EACH_F][EACH_C];

    void multiply(const Stage& stage)
    {
        const int warp = threadIdx.x / 32, lane_f = threadIdx.x % 32 / LANES_C, lane_c = threadIdx.x % LANES_C;
        #pragma unroll
        for (int k = 0; k < DEPTH; ++k)
            #pragma unroll
            for (int p = 0; p < 2; ++p) {
                float u[EACH_F], v[EACH_C];
                #pragma unroll
                for (int half = 0; half < EACH_F; half += 4)
                    load4(u + half, &stage.U[2 * warp + p][k][half * LANES_F + 4 * lane_f]);
                #pragma unroll
                for (int half = 0; half < EACH_C; half += 4)
                    load4(v + half, &stage.V[2 * warp + p][k][half * LANES_C + 4 * lane_c]);
                #pragma unroll
                for (int j = 0; j < EACH_C; ++j)
                    #pragma unroll
                    for (int n = 0; n < EACH_F; ++n) {
                        const int i = j % 2 ? EACH_F - 1 - n : n;  // to and fro
                        at[p][i][j] += u[i] * v[j];
                    }
            }
    }

    // Put the accumulators into shared memory, (PLACES, COLUMNS, FILTERS), pitched.
    void put(float* M) const
    {
        const int warp = threadIdx.x / 32, lane_f = threadIdx.x % 32 / LANES_C, lane_c = threadIdx.x % LANES_C;
        #pragma unroll
        for (int p = 0; p < 2; ++p)
            #pragma unroll
            for (int j = 0; j < EACH_C; ++j)
                #pragma unroll
                for (int i = 0; i < EACH_F; i += 4) {
                    const int column = j / 4 * 4 * LANES_C + 4 * lane_c + j % 4, filter = i * LANES_F + 4 * lane_f;
                    float* to = M + ((2 * warp + p) * COLUMNS + column) * PITCH_M + filter;
                    *reinterpret_cast<float4*>(to) = {at[p][i][j], at[p][i + 1][j], at[p][i + 2][j], at[p][i + 3][j]};
                }
    }
};

// The epilogue of `forward`: y of a block's filters and tiles, A^T M A.
static __device__ __forceinline__ void store_outputs(const float* M, float* y, const Sizes& s, int first_filter,
                                                     int first_tile)
{
    for (int i = threadIdx.x; i < FILTERS * COLUMNS; i += THREADS) {
        const int filter = first_filter + i % FILTERS;
        const Tile tile(s, first_tile + i / FILTERS);
        if (!tile.exists || filter >= s.filters) continue;
        const float* from = M + i / FILTERS * PITCH_M + i % FILTERS;
        float half[2][4];
        #pragma unroll
        for (int j = 0; j < 4; ++j) {
            const float a = from[j * COLUMNS * PITCH_M], b = from[(4 + j) * COLUMNS * PITCH_M];
            const float c = from[(8 + j) * COLUMNS * PITCH_M], e = from[(12 + j) * COLUMNS * PITCH_M];
            half[0][j] = a + b + c, half[1][j] = b - c - e;
        }
        #pragma unroll
        for (int r = 0; r < 2; ++r) {
            if (tile.row + r >= s.out_height) break;
            const size_t row = (size_t)tile.image * s.out_height + tile.row + r;
            float* to = y + (row * s.out_width + tile.column) * s.filters + filter;
            to[0] = half[r][0] + half[r][1] + half[r][2];
            if (tile.column + 1 < s.out_width) to[s.filters] = half[r][1] - half[r][2] - half[r][3];
        }
    }
}

// y, or dx: of images x, and U (channels, PLACES, filters_padded). Blocks: filters by FILTERS, then tiles by COLUMNS.
extern "C" __global__ __launch_bounds__(THREADS, BLOCKS)
void forward(const float* x, const float* U, float* y, Sizes s)
{
    extern __shared__ __align__(128) unsigned char shared_bytes[];
    Stage* stages = (Stage*)shared_bytes;
    const int filter_blocks = s.filters_padded / FILTERS, first_filter = blockIdx.x % filter_blocks * FILTERS;
    const int first_tile = blockIdx.x / filter_blocks * COLUMNS;
    const int k = threadIdx.x % DEPTH, column = threadIdx.x / DEPTH;
    Patch patch(x, s, Tile(s, first_tile + column), k);
    // This thread copies four filters, of places and channels that follow each other.
    constexpr int FOURS = FILTERS / 4, ROWS = THREADS / FOURS;
    const int four = threadIdx.x % FOURS * 4, first_row = threadIdx.x / FOURS;
    const float* U_from = U + (size_t)first_row * s.filters_padded + first_filter + four;
    auto start = [&](Stage& stage) {
        #pragma unroll
        for (int i = 0; i < PLACES * DEPTH / ROWS; ++i) {
            const int row = first_row + i * ROWS;
            cp_async<16>(&stage.U[row % PLACES][row / PLACES][four], U_from);
            U_from += (size_t)ROWS * s.filters_padded;
        }
    };
    float d[4][4];
    auto finish = [&](Stage& stage) {
        transform_input(d);
        #pragma unroll
        for (int place = 0; place < PLACES; ++place) stage.V[place][k][column] = d[place / 4][place % 4];
        cp_async_wait_all();
        __syncthreads();
    };

    Sums sums = {};
    start(stages[0]);
    patch.fetch(d, s, k < s.channels);
    finish(stages[0]);
    for (int channel = 0, turn = 0; channel < s.channels; channel += DEPTH, turn ^= 1) {
        const bool more = channel + DEPTH < s.channels;
        if (more) {
            start(stages[turn ^ 1]);
            patch.first += DEPTH;
            patch.fetch(d, s, channel + DEPTH + k < s.channels);
        }
        sums.multiply(stages[turn]);
        if (more) finish(stages[turn ^ 1]);
    }

    __syncthreads();
    float* M = (float*)shared_bytes;
    sums.put(M);
    __syncthreads();
    store_outputs(M, y, s, first_filter, first_tile);
}

// Put A g A^T of 2 x 2 elements of dy into a stage, where `forward` has transformed filters. i: of (DEPTH, FILTERS).
static __device__ __forceinline__ void transform_gradient(const float (&g)[2][2], Stage& stage, int i)
{
    float half[4][2];  // A g, with A = (1 0, 1 1, 1 -1, 0 -1)
    #pragma unroll
    for (int j = 0; j < 2; ++j) {
        half[0][j] = g[0][j], half[1][j] = g[0][j] + g[1][j];
        half[2][j] = g[0][j] - g[1][j], half[3][j] = -g[1][j];
    }
    #pragma unroll
    for (int r = 0; r < 4; ++r) {
        stage.U[4 * r][i / FILTERS][i % FILTERS] = half[r][0];
        stage.U[4 * r + 1][i / FILTERS][i % FILTERS] = half[r][0] + half[r][1];
        stage.U[4 * r + 2][i / FILTERS][i % FILTERS] = half[r][0] - half[r][1];
        stage.U[4 * r + 3][i / FILTERS][i % FILTERS] = -half[r][1];
    }
}

// The epilogue of `weight_gradient`: a slice's part of dW for a block's filters and channels, G^T M G.
static __device__ __forceinline__ void store_gradient(const float* M, float* parts, const Sizes& s, int first_filter,
                                                      int first_channel, int slice)
{
    for (int i = threadIdx.x; i < FILTERS * COLUMNS; i += THREADS) {
        const int filter = first_filter + i % FILTERS, channel = first_channel + i / FILTERS;
        if (filter >= s.filters || channel >= s.channels) continue;
        const float* from = M + i / FILTERS * PITCH_M + i % FILTERS;
        float half[3][4];  // G^T M, with G^T = (1 1/2 1/2 0, 0 1/2 -1/2 0, 0 1/2 1/2 1)
        #pragma unroll
        for (int j = 0; j < 4; ++j) {
            const float a = from[j * COLUMNS * PITCH_M], e = from[(12 + j) * COLUMNS * PITCH_M];
            const float b = 0.5f * from[(4 + j) * COLUMNS * PITCH_M], c = 0.5f * from[(8 + j) * COLUMNS * PITCH_M];
            half[0][j] = a + b + c, half[1][j] = b - c, half[2][j] = b + c + e;
        }
        const size_t step = (size_t)s.channels * s.filters;
        float* to = parts + (size_t)slice * TAPS * step + (size_t)channel * s.filters + filter;
        #pragma unroll
        for (int p = 0; p < 3; ++p) {
            const float b = 0.5f * half[p][1], c = 0.5f * half[p][2];
            to[(3 * p) * step] = half[p][0] + b + c;
            to[(3 * p + 1) * step] = b - c;
            to[(3 * p + 2) * step] = b + c + half[p][3];
        }
    }
}

// parts (slices, TAPS, channels, filters). Blocks: filters by FILTERS, then channels by COLUMNS, then slices of the
// tiles.
extern "C" __global__ __launch_bounds__(THREADS, BLOCKS)
void weight_gradient(const float* x, const float* dy, float* parts, Sizes s)
{
    extern __shared__ __align__(128) unsigned char shared_bytes[];
    Stage* stages = (Stage*)shared_bytes;
    const int filter_blocks = (s.filters + FILTERS - 1) / FILTERS;
    const int channel_blocks = (s.channels + COLUMNS - 1) / COLUMNS;
    const int first_filter = blockIdx.x % filter_blocks * FILTERS;
    const int slice = blockIdx.x / (filter_blocks * channel_blocks);
    const int first_channel = blockIdx.x / filter_blocks % channel_blocks * COLUMNS;
    const int k = threadIdx.x / COLUMNS, column = threadIdx.x % COLUMNS;
    const long long all = (s.batch * s.down * s.across + DEPTH - 1) / DEPTH;
    const int begin = all * slice / s.slices * DEPTH, end = all * (slice + 1) / s.slices * DEPTH;
    constexpr int EACH = (DEPTH * FILTERS + THREADS - 1) / THREADS;  // tiles of dy that a thread transforms
    constexpr int STEP = THREADS / FILTERS;
    const int channel = first_channel + column, filter = first_filter + threadIdx.x % FILTERS;
    float d[4][4], g[EACH][2][2];
    Tile tile(s, begin + k), tile_y(s, begin + threadIdx.x / FILTERS);
    auto start = [&] {
        Patch(x, s, tile, channel).fetch(d, s, channel < s.channels);
        tile.advance(s, DEPTH);
        #pragma unroll
        for (int e = 0; e < EACH; ++e) {
            const bool exists = tile_y.exists && filter < s.filters;
            const bool below = tile_y.row + 1 < s.out_height, right = tile_y.column + 1 < s.out_width;
            const size_t row = (size_t)tile_y.image * s.out_height + tile_y.row;
            const float* from = dy + (row * s.out_width + tile_y.column) * s.filters + filter;
            g[e][0][0] = exists ? from[0] : 0, g[e][0][1] = exists && right ? from[s.filters] : 0;
            from += s.out_width * s.filters;
            g[e][1][0] = exists && below ? from[0] : 0, g[e][1][1] = exists && below && right ? from[s.filters] : 0;
            tile_y.advance(s, STEP < DEPTH ? STEP : DEPTH);
        }
    };
    auto finish = [&](Stage& stage) {
        transform_input(d);
        #pragma unroll
        for (int place = 0; place < PLACES; ++place) stage.V[place][k][column] = d[place / 4][place % 4];
        #pragma unroll
        for (int e = 0; e < EACH; ++e) {
            const int i = threadIdx.x + e * THREADS;
            if (i >= DEPTH * FILTERS) break;
            transform_gradient(g[e], stage, i);
        }
        __syncthreads();
    };

    Sums sums = {};
    if (begin < end) {
        start();
        finish(stages[0]);
    }
    for (int first = begin, turn = 0; first < end; first += DEPTH, turn ^= 1) {
        const bool more = first + DEPTH < end;
        if (more) start();
        sums.multiply(stages[turn]);
        if (more) finish(stages[turn ^ 1]);
    }

    __syncthreads();
    float* M = (float*)shared_bytes;
    sums.put(M);
    __syncthreads();
    store_gradient(M, parts, s, first_filter, first_channel, slice);
}

// U (channels, PLACES, pitch) = G g G^T of filters g: w[in * in_step + out * out_step], rotated by 180 degrees or not.
extern "C" __global__ void transform_filters(const float* w, float* U, int in, int out, int in_step, int out_step,
                                             int pitch, int flipped)
{
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x, from_in = i / out, from_out = i % out;
    if (from_in >= in) return;
    const float* g = w + (size_t)from_in * in_step + (size_t)from_out * out_step;
    float* to = U + (size_t)from_in * PLACES * pitch + from_out;
    float half[4][3];
    #pragma unroll
    for (int q = 0; q < 3; ++q) {
        const float a = g[flipped ? 8 - q : q], b = g[flipped ? 5 - q : 3 + q], c = g[flipped ? 2 - q : 6 + q];
        half[0][q] = a, half[1][q] = 0.5f * (a + b + c), half[2][q] = 0.5f * (a - b + c), half[3][q] = c;
    }
    #pragma unroll
    for (int r = 0; r < 4; ++r) {
        const float a = half[r][0], b = half[r][1], c = half[r][2];
        to[(4 * r) * pitch] = a, to[(4 * r + 1) * pitch] = 0.5f * (a + b + c);
        to[(4 * r + 2) * pitch] = 0.5f * (a - b + c), to[(4 * r + 3) * pitch] = c;
    }
}

// dW (filters, channels, TAPS): the sum of parts, in order.
extern "C" __global__ void add_slices(const float* parts, float* dW, int filters, int channels, int slices)
{
    const int total = filters * TAPS * channels, i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= total) return;
    float sum = 0;
    #pragma unroll 8
    for (int slice = 0; slice < slices; ++slice) sum += parts[(size_t)slice * total + i];
    const int filter = i % filters, channel = i / filters % channels, tap = i / filters / channels;
    dW[((size_t)filter * channels + channel) * TAPS + tap] = sum;
}
