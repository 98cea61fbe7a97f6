// What the implicit products share: which matrix a convolution is a product of, and where its values lie.
//
//     forward           y (pixels of y, o)     = windows (pixels of y, k k c)    filters (k k c, o)
//     input gradient    dx (pixels of dx, c)   = windows (pixels of dx, k k o)   filters (k k o, c)
//     weight gradient   dW (k k c, o)          = windows (pixels of y, k k c)'   dy (pixels of y, o)
//
// The matrix of windows is k k times as large as the image, and is never in memory. Where its element (m, k) lies in
// the image is a sum: a part that m alone decides, the window's corner, and a part that k alone decides, the tap and
// the channel. So a block works out each row's part once, and a thread its own k's part once a step. What lies beside
// the image is not read: the copy instruction writes zeros in its place.
//
// The input gradient has windows, too: they lie in dy, and are read from their last tap to their first. With a stride
// of 2, a pixel of dx meets only every second tap in y and in x; which ones depends on whether its line and its column
// are even. The pixels of each of the four kinds, or phases, are a product of their own, with just the taps that hit.

#include "ptx.cuh"

// n / d for all n below 2^31, with a multiplication instead (Granlund and Montgomery 1994). prepare finds the factor.
struct Divider {
    unsigned factor, shift;
};

inline int divide(int n, Divider d) { return (__umulhi(n, d.factor) + n) >> d.shift; }

struct Geometry {
    int images, channels, height, width, channels_out, out_height, out_width, kernel, stride, padding;
    Divider by_image[4], by_line[4];  // by the windows in an image, and in a line of it: for each phase
};

// A product of windows and filters. Window (u, v) begins at line u * step + line; its tap p is turn * p lines further.
struct Product {
    int lines, columns;                     // of windows in an image
    Divider by_image, by_line;              // by their product, and by the columns
    int step, direction, line, column;      // where they lie
    int taps_y, taps_x;                     // of each
    int channels, height, width;            // of the images that they lie in
    int out_step, out_line, out_column;     // where the results belong: window (u, v) to line u * out_step + out_line
    int out_height, out_width, N;           // in images of this size, with N channels
    int block;                              // this block's number in the product
    int filters;                            // the first of its rows in the matrix of filters
};

inline Product forward_product(const Geometry& g)
{
    return {g.out_height, g.out_width, g.by_image[0], g.by_line[0], g.stride, 1, -g.padding, -g.padding,
            g.kernel, g.kernel, g.channels, g.height, g.width, 1, 0, 0, g.out_height, g.out_width, g.channels_out,
            (int)blockIdx.x, 0};
}

// The phase that this block belongs to: those of the first phase come first. Filters lie in the phases' order, too.
inline Product gradient_product(const Geometry& g, int tile_m, int tiles_n)
{
    int block = blockIdx.x, filters = 0, s = g.stride;
    for (int i = 0;; ++i) {
        int y = i / s, x = i % s;                              // its pixels' first line and column
        int p = (y + g.padding) % s, q = (x + g.padding) % s;  // its first taps
        int lines = (g.height - y + s - 1) / s, columns = (g.width - x + s - 1) / s;
        int taps_y = (g.kernel - p + s - 1) / s, taps_x = (g.kernel - q + s - 1) / s;
        int blocks = (g.images * lines * columns + tile_m - 1) / tile_m * tiles_n;
        if (block < blocks || i == s * s - 1) {
            return {lines, columns, g.by_image[i], g.by_line[i], 1, -1, (y + g.padding - p) / s,
                    (x + g.padding - q) / s, taps_y, taps_x, g.channels_out, g.out_height, g.out_width, s, y, x,
                    g.height, g.width, g.channels, block, filters};
        }
        block -= blocks, filters += taps_y * taps_x * g.channels_out;
    }
}

// What row m of a product decides: where its window begins in the image (in pixels; may lie outside), which of its
// taps' lines and columns are inside (a bit each; columns from bit 8), which pixel its result is (-1: none), and of
// which image.
struct Row {
    int from;
    unsigned inside;
    int to, image;
};

// A bit for each tap that is inside, of a window that begins at `begin`: from the first one to the last one.
inline unsigned inside_of(int begin, int direction, int taps, int size)
{
    int first = direction > 0 ? -begin : begin - size + 1, behind = direction > 0 ? size - begin : begin + 1;
    first = max(first, 0), behind = max(min(behind, taps), 0);
    return first < behind ? (1u << behind) - (1u << first) : 0;
}

inline Row row_of(const Product& product, int images, int m)
{
    int image = divide(m, product.by_image), in_image = m - image * product.lines * product.columns;
    int u = divide(in_image, product.by_line), v = in_image - u * product.columns;
    if (image >= images) return {0, 0, -1, 0};
    int y = u * product.step + product.line, x = v * product.step + product.column;
    unsigned inside = inside_of(y, product.direction, product.taps_y, product.height) |
                      inside_of(x, product.direction, product.taps_x, product.width) << 8;
    int line = u * product.out_step + product.out_line, column = v * product.out_step + product.out_column;
    return {(image * product.height + y) * product.width + x, inside,
            (image * product.out_height + line) * product.out_width + column, image};
}

// What k decides: a channel and a tap.
struct Tap {
    int channel, p, q;
};

// Go on by so many k.
inline void advance(Tap& tap, int steps, const Product& product)
{
    tap.channel += steps;
    while (tap.channel >= product.channels) {
        tap.channel -= product.channels;
        if (++tap.q == product.taps_x) tap.q = 0, ++tap.p;
    }
}

// The bits of a row that must be set where the tap is inside the image; -1, which no row has, after the last tap.
inline unsigned needed(const Tap& tap, const Product& product)
{
    return tap.p < product.taps_y ? 1 << tap.p | 256 << tap.q : ~0u;
}

inline bool is_inside(const Row& row, unsigned needed) { return (row.inside & needed) == needed; }

// How far tap p, q is from its window's beginning, in pixels.
inline int distance(const Tap& tap, const Product& product)
{
    return product.direction * (tap.p * product.width + tap.q);
}

// A pixel of y, and the corner of its window in x.
struct Corner {
    int image, y, x;
};

inline Corner corner_of(const Geometry& g, int pixel)
{
    int image = divide(pixel, g.by_image[0]), in_image = pixel - image * g.out_height * g.out_width;
    int line = divide(in_image, g.by_line[0]), column = in_image - line * g.out_width;
    return {image, line * g.stride - g.padding, column * g.stride - g.padding};
}

// The second kernel of a weight gradient: add the slices' sums, always in the same order. A block has 32 values; eight
// threads share one, each with every eighth slice.
extern "C" __global__ __launch_bounds__(256) void add_slices(const float* from, float* to, int elements, int slices)
{
    extern __shared__ __align__(128) unsigned char shared_bytes[];
    float(*sums)[32] = reinterpret_cast<float(*)[32]>(shared_bytes);
    int x = threadIdx.x % 32, y = threadIdx.x / 32, number = blockIdx.x * 32 + x;
    float sum = 0;
    if (number < elements) {
        #pragma unroll 4
        for (int slice = y; slice < slices; slice += 8) sum += from[(size_t)slice * elements + number];
    }
    sums[y][x] = sum;
    __syncthreads();
    if (y > 0 || number >= elements) return;
    #pragma unroll
    for (int other = 1; other < 8; ++other) sum += sums[other][x];
    to[number] = sum;
}
