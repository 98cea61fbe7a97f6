// Winograd: TILE x TILE outputs of a 3 x 3 convolution from (TILE + 2)^2 multiplications, where 9 TILE^2 were needed.
//
// A polynomial of degree T - 1 is known from its values at T points, and a product of two polynomials has, at each
// point, the product of their values. A convolution is such a product, read the other way round. So a tile d of the
// image, T = TILE + 2 pixels long, and the filter g are transformed, multiplied element by element, and transformed
// back:
//     y = A^T ((G g) * (B^T d))        in two dimensions: A^T (G g G^T * B^T d B) A
// The points are 0, 1, -1 and infinity for F(2, 3). For F(4, 3) everybody adds 2 and -2, and has integers. With 0,
// 5/8, -5/8, 3/2, -3/2 and infinity the matrices have as many elements, and results are twice as near: sums of what is
// much larger than they cost bits. Sums over channels can be made before the way back. So each of the T^2 places of
// a tile is a matrix product of its own,
//     M[place] (tiles, o) = V[place] (tiles, c) U[place] (c, o)
// and a thread of the kernels here transforms a tile of one channel, or of VECTOR channels, in registers. Products
// are a library's.
//
// The input gradient is a convolution, of dy with the filters rotated by 180 degrees. The weight gradient has the same
// matrices, transposed: y is linear in g, so dg = G^T (sum over tiles of (A dy A^T) * (B^T d B)) G: a convolution with
// a "kernel" of TILE x TILE and an "output" of 3 x 3. Its sum over tiles is a product as well, over `slices` of the
// tiles, added up in order at the end.
//
// Multiplications for an output: 9 -> 4 with tiles of 2, 9 -> 2.25 with tiles of 4. What is paid: V and M are 4
// times, or 2.25 times, as large as the image (tiles overlap), and go through memory: for many channels the product
// takes most of the time, for few it is memory. And precision: what the rows of F(4, 3) add up is larger than the
// result, and in TF32 an error of 0.0005 becomes 0.0016.
//
// On tensor cores, V and U can be split: a float32 is a TF32 value and a rest, which is one, too, nearly.
// Then V and U have three copies, low, high, high and high, low, high, one behind the other along the sum, and the
// product is as right as float32's.
//
// Images lie pixel by pixel (NHWC). Rows of V and M are `pitch` elements long, a multiple of 4; who makes them fills
// them with 0.

#include "ptx.cuh"

#ifndef TILE
#define TILE 2
#endif
#ifndef VECTOR
#define VECTOR 4
#endif

constexpr int T = TILE + 2, PLACES = T * T, TAPS = 3;

template <int N>
struct alignas(4 * N) Pack {
    float each[N];
};
typedef Pack<VECTOR> Elements;  // of neighbouring channels
typedef Pack<1> Element;

#if TILE == 2
constexpr float BT[4][4] = {{1, 0, -1, 0}, {0, 1, 1, 0}, {0, -1, 1, 0}, {0, 1, 0, -1}};
constexpr float G[4][3] = {{1, 0, 0}, {0.5f, 0.5f, 0.5f}, {0.5f, -0.5f, 0.5f}, {0, 0, 1}};
constexpr float AT[2][4] = {{1, 1, 1, 0}, {0, 1, -1, -1}};
#else
constexpr float P = 5 / 8.f, Q = 3 / 2.f, PP = P * P, QQ = Q * Q;  // the points: 0, P, -P, Q, -Q, infinity
constexpr float AT_P = 2 * PP * (PP - QQ), AT_Q = 2 * QQ * (QQ - PP);
constexpr float BT[6][6] = {{PP * QQ, 0, -PP - QQ, 0, 1, 0}, {0, -P * QQ, -QQ, P, 1, 0}, {0, P * QQ, -QQ, -P, 1, 0},
                            {0, -Q * PP, -PP, Q, 1, 0}, {0, Q * PP, -PP, -Q, 1, 0}, {0, PP * QQ, 0, -PP - QQ, 0, 1}};
constexpr float G[6][3] = {{1 / (PP * QQ), 0, 0}, {1 / AT_P, P / AT_P, PP / AT_P}, {1 / AT_P, -P / AT_P, PP / AT_P},
                           {1 / AT_Q, Q / AT_Q, QQ / AT_Q}, {1 / AT_Q, -Q / AT_Q, QQ / AT_Q}, {0, 0, 1}};
constexpr float AT[4][6] = {
    {1, 1, 1, 1, 1, 0}, {0, P, -P, Q, -Q, 0}, {0, PP, PP, QQ, QQ, 0}, {0, P * PP, -P * PP, Q * QQ, -Q * QQ, 1}};
#endif

// The matrices, and their transposes, as what a template can be given.
struct InputTransform {
    static constexpr int ROWS = T, COLUMNS = T;
    static constexpr float at(int i, int j) { return BT[i][j]; }
};
struct OutputTransform {
    static constexpr int ROWS = TILE, COLUMNS = T;
    static constexpr float at(int i, int j) { return AT[i][j]; }
};
struct OutputGradient {
    static constexpr int ROWS = T, COLUMNS = TILE;
    static constexpr float at(int i, int j) { return AT[j][i]; }
};
struct FilterTransform {
    static constexpr int ROWS = T, COLUMNS = TAPS;
    static constexpr float at(int i, int j) { return G[i][j]; }
};
struct FilterGradient {
    static constexpr int ROWS = TAPS, COLUMNS = T;
    static constexpr float at(int i, int j) { return G[j][i]; }
};

// to = matrix from, for a column of values; what is multiplied by 0 is not looked at.
template <typename Matrix, int N>
inline void times(Pack<N> (&to)[Matrix::ROWS], const Pack<N> (&from)[Matrix::COLUMNS])
{
    #pragma unroll
    for (int i = 0; i < Matrix::ROWS; ++i)
        #pragma unroll
        for (int v = 0; v < N; ++v) {
            float sum = 0;
            #pragma unroll
            for (int j = 0; j < Matrix::COLUMNS; ++j)
                if (Matrix::at(i, j) != 0) sum += Matrix::at(i, j) * from[j].each[v];
            to[i].each[v] = sum;
        }
}

// Store matrix d matrix^T, d given by column: load(i, j) returns d's element in row i, column j.
template <typename Matrix, int N, typename Load, typename Store>
inline void transform(Load load, Store store)
{
    typedef Pack<N> Elements;
    Elements half[Matrix::ROWS][Matrix::COLUMNS];
    #pragma unroll
    for (int j = 0; j < Matrix::COLUMNS; ++j) {
        Elements column[Matrix::COLUMNS], made[Matrix::ROWS];
        #pragma unroll
        for (int i = 0; i < Matrix::COLUMNS; ++i) column[i] = load(i, j);
        times<Matrix>(made, column);
        #pragma unroll
        for (int i = 0; i < Matrix::ROWS; ++i) half[i][j] = made[i];
    }
    #pragma unroll
    for (int i = 0; i < Matrix::ROWS; ++i) {
        Elements made[Matrix::ROWS];
        times<Matrix>(made, half[i]);
        #pragma unroll
        for (int j = 0; j < Matrix::ROWS; ++j) store(i, j, made[j]);
    }
}

// Images (batch, height, width, channels) and the tiles that cover their windows' outputs. channels, pitch: in
// elements; places: elements from one place's matrix to the next; copies: from one of three copies to the next, or 0,
// where there is one; low: which of them, the first or the second, is what is left of an element when it is rounded to
// TF32.
struct Sizes {
    int batch, height, width, channels, down, across, padding, pitch;
    long long places, copies;
    int low;
};

template <int N>
inline void put(Pack<N>* to, Pack<N> found, long long copies, int low)
{
    if (copies) {
        Pack<N> high;
        #pragma unroll
        for (int v = 0; v < N; ++v) {
            high.each[v] = __uint_as_float(cvt_rna_tf32(found.each[v]));
            found.each[v] -= high.each[v];
        }
        to[(1 - low) * copies] = high, to[2 * copies] = high;
    }
    to[low * copies] = found;
}

struct Tile {
    int number, channel, image, row, column;  // row, column: of its first output

    Tile(const Sizes& s)
    {
        const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
        number = i / s.channels, channel = i % s.channels;
        const int above = number / s.across;
        image = above / s.down;
        row = (above - image * s.down) * TILE, column = (number - above * s.across) * TILE;
    }
    bool exists(const Sizes& s) const { return number < s.batch * s.down * s.across; }
    size_t pixel(const Sizes& s, int i, int j) const
    {
        return ((size_t)(image * s.height + i) * s.width + j) * s.channels + channel;
    }
    size_t place(const Sizes& s) const { return (size_t)number * s.pitch + channel; }
};

inline bool inside(const Sizes& s, int i, int j) { return i >= 0 && i < s.height && j >= 0 && j < s.width; }

// V = B^T d B of the tiles d of an image that has `padding` zeros around it.
extern "C" __global__ void transform_input(const Elements* x, Elements* V, Sizes s)
{
    const Tile tile(s);
    if (!tile.exists(s)) return;
    const int top = tile.row - s.padding, left = tile.column - s.padding;
    Elements* to = V + tile.place(s);
    transform<InputTransform, VECTOR>(
        [&](int i, int j) { return inside(s, top + i, left + j) ? x[tile.pixel(s, top + i, left + j)] : Elements{}; },
        [&](int i, int j, Elements found) { put(to + (i * T + j) * s.places, found, s.copies, s.low); });
}

// y = A^T M A, but for what lies outside.
extern "C" __global__ void transform_output(const Elements* M, Elements* y, Sizes s)
{
    const Tile tile(s);
    if (!tile.exists(s)) return;
    const Elements* from = M + tile.place(s);
    transform<OutputTransform, VECTOR>(
        [&](int i, int j) { return from[(i * T + j) * s.places]; },
        [&](int i, int j, Elements found) {
            if (inside(s, tile.row + i, tile.column + j)) y[tile.pixel(s, tile.row + i, tile.column + j)] = found;
        });
}

// dM = A dy A^T.
extern "C" __global__ void transform_output_gradient(const Elements* dy, Elements* dM, Sizes s)
{
    const Tile tile(s);
    if (!tile.exists(s)) return;
    Elements* to = dM + tile.place(s);
    transform<OutputGradient, VECTOR>(
        [&](int i, int j) {
            const int y = tile.row + i, z = tile.column + j;
            return inside(s, y, z) ? dy[tile.pixel(s, y, z)] : Elements{};
        },
        [&](int i, int j, Elements found) { put(to + (i * T + j) * s.places, found, s.copies, s.low); });
}

// U[place] (channels_in, channels_out) = G g G^T of filters g: w[in * in_step + out * out_step], rotated by 180
// degrees or not.
extern "C" __global__ void transform_filters(const Element* w, Element* U, int in, int out, int in_step, int out_step,
                                             int pitch, long long places, long long copies, int low, int flipped)
{
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x, from_in = i / out, from_out = i % out;
    if (from_in >= in) return;
    const Element* g = w + (size_t)from_in * in_step + (size_t)from_out * out_step;
    Element* to = U + (size_t)from_in * pitch + from_out;
    transform<FilterTransform, 1>(
        [&](int p, int q) { return g[flipped ? 8 - (p * TAPS + q) : p * TAPS + q]; },
        [&](int p, int q, Element found) { put(to + (p * T + q) * places, found, copies, low); });
}

constexpr int PAIRS = 32;  // of a filter and a channel, of a block

// dW (o, c, 3, 3) = G^T dU G, where dU[place] is the sum of `slices` matrices (o, c) with rows of `pitch` elements.
// First all of a block's threads add up slices, as many sums at a time as there are threads; then a warp transforms.
extern "C" __global__ void transform_filter_gradient(const float* dU, Element* dW, int o, int c, int pitch,
                                                     long long matrix, int slices)
{
    extern __shared__ __align__(128) unsigned char shared_bytes[];
    Element* sums = (Element*)shared_bytes;  // (PLACES, PAIRS)
    for (int i = threadIdx.x; i < PLACES * PAIRS; i += blockDim.x) {
        const int pair = blockIdx.x * PAIRS + i % PAIRS, filter = pair / c;
        if (filter >= o) continue;
        const float* from = dU + (size_t)(i / PAIRS) * slices * matrix + (size_t)filter * pitch + (pair - filter * c);
        float sum = 0;
        #pragma unroll 4
        for (int slice = 0; slice < slices; ++slice) sum += from[slice * matrix];
        sums[i].each[0] = sum;
    }
    __syncthreads();
    const int pair = blockIdx.x * PAIRS + threadIdx.x;
    if (threadIdx.x >= PAIRS || pair >= o * c) return;
    Element* to = dW + (size_t)pair * TAPS * TAPS;
    transform<FilterGradient, 1>([&](int p, int q) { return sums[(p * T + q) * PAIRS + threadIdx.x]; },
                                 [&](int p, int q, Element found) { to[p * TAPS + q] = found; });
}
