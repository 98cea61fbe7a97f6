// A thread for each value of the result, and its sum in double precision: what all others are compared with.
//
// Each kernel is the definition, written down: y[n][o][i][j] is the sum of W[o][c][p][q] x[n][c][s i + p - pad]
// [s j + q - pad] over c, p and q; pixels outside of an image are 0. The two gradients are the same products, summed up
// for another of the three arrays: x[n][c][h][w] has met W[p][q] where s i + p - pad = h, if such an i exists.
//
// Every product asks for two values, and nobody shares anything. Sums of a million products lose no bit that float32
// has. NUMBER may be double as well: then the result is as good as NumPy's in float64.

#ifndef NUMBER
#define NUMBER float
#endif

struct Place {
    int n, c, y, x;
};

// Where element i lies in an array (any, channels, height, width).
inline Place place(size_t i, int channels, int height, int width)
{
    size_t row = i / width, plane = row / height;
    return {(int)(plane / channels), (int)(plane % channels), (int)(row % height), (int)(i % width)};
}

inline size_t index(int n, int c, int y, int x, int channels, int height, int width)
{
    return (((size_t)n * channels + c) * height + y) * width + x;
}

extern "C" __global__ void forward(const NUMBER* x, const NUMBER* W, NUMBER* y, int batch, int channels,
                                   int channels_out, int height, int width, int out_height, int out_width, int kernel,
                                   int stride, int padding)
{
    size_t number = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    auto [n, o, i, j] = place(number, channels_out, out_height, out_width);
    if (n >= batch) return;
    double total = 0;
    for (int c = 0; c < channels; ++c)
        for (int p = 0; p < kernel; ++p)
            for (int q = 0; q < kernel; ++q) {
                int row = stride * i + p - padding, column = stride * j + q - padding;
                if (row < 0 || row >= height || column < 0 || column >= width) continue;
                total += (double)W[index(o, c, p, q, channels, kernel, kernel)] *
                         x[index(n, c, row, column, channels, height, width)];
            }
    y[number] = total;
}

extern "C" __global__ void input_gradient(const NUMBER* dy, const NUMBER* W, NUMBER* dx, int batch, int channels,
                                          int channels_out, int height, int width, int out_height, int out_width,
                                          int kernel, int stride, int padding)
{
    size_t number = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    auto [n, c, row, column] = place(number, channels, height, width);
    if (n >= batch) return;
    double total = 0;
    for (int o = 0; o < channels_out; ++o)
        for (int p = 0; p < kernel; ++p)
            for (int q = 0; q < kernel; ++q) {
                int y = row + padding - p, x = column + padding - q;  // stride times i and j, if there are such
                if (y < 0 || y % stride || y / stride >= out_height) continue;
                if (x < 0 || x % stride || x / stride >= out_width) continue;
                total += (double)W[index(o, c, p, q, channels, kernel, kernel)] *
                         dy[index(n, o, y / stride, x / stride, channels_out, out_height, out_width)];
            }
    dx[number] = total;
}

extern "C" __global__ void weight_gradient(const NUMBER* x, const NUMBER* dy, NUMBER* dW, int batch, int channels,
                                           int channels_out, int height, int width, int out_height, int out_width,
                                           int kernel, int stride, int padding)
{
    size_t number = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    auto [o, c, p, q] = place(number, channels, kernel, kernel);
    if (o >= channels_out) return;
    double total = 0;
    for (int n = 0; n < batch; ++n)
        for (int i = 0; i < out_height; ++i)
            for (int j = 0; j < out_width; ++j) {
                int row = stride * i + p - padding, column = stride * j + q - padding;
                if (row < 0 || row >= height || column < 0 || column >= width) continue;
                total += (double)x[index(n, c, row, column, channels, height, width)] *
                         dy[index(n, o, i, j, channels_out, out_height, out_width)];
            }
    dW[number] = total;
}
