// Convolution as a matrix product, for images as layers know them, (n, c, h, w): what is left to do beside the product.
//
// A window is a column of c k k values, channel by channel, and tap by tap. With P = n h' w' windows,
//     z (o, P) = W (o, c k k) columns (c k k, P)      dcolumns = W^T dz (o, P)      dW = dz columns^T
// The products want the channels out first, the layers want the images first: `transpose` is between them.
//
// No sum is made by two threads: who writes a value of dx looks for the windows that hold it, in the order of the
// taps.

#ifndef REAL
#define REAL float
#endif

struct Sizes {
    int batch, channels, height, width, out_height, out_width, kernel, stride, padding;
};

// columns (c k k, P): a thread a value, neighbours of one row.
extern "C" __global__ void columns(const REAL* x, REAL* columns, Sizes s)
{
    const int windows = s.batch * s.out_height * s.out_width, taps = s.kernel * s.kernel;
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= (long long)s.channels * taps * windows) return;
    const int row = i / windows, window = i % windows, c = row / taps, p = row % taps / s.kernel, q = row % s.kernel;
    const int j = window % s.out_width, above = window / s.out_width, image = above / s.out_height;
    const int y = (above - image * s.out_height) * s.stride + p - s.padding, z = j * s.stride + q - s.padding;
    const bool inside = y >= 0 && y < s.height && z >= 0 && z < s.width;
    columns[i] = inside ? x[(((long long)image * s.channels + c) * s.height + y) * s.width + z] : REAL(0);
}

// dx (n, c, h, w): the sums of the windows' gradients, where they overlap.
extern "C" __global__ void images(const REAL* columns, REAL* dx, Sizes s)
{
    const int windows = s.batch * s.out_height * s.out_width, taps = s.kernel * s.kernel;
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= (long long)s.batch * s.channels * s.height * s.width) return;
    const int z = i % s.width, y = i / s.width % s.height, c = i / s.width / s.height % s.channels;
    const int image = i / s.width / s.height / s.channels;
    REAL sum = 0;
    for (int p = 0; p < s.kernel; ++p) {
        const int down = y + s.padding - p, row = down / s.stride;
        if (down < 0 || down % s.stride || row >= s.out_height) continue;
        for (int q = 0; q < s.kernel; ++q) {
            const int right = z + s.padding - q, column = right / s.stride;
            if (right < 0 || right % s.stride || column >= s.out_width) continue;
            sum += columns[((long long)c * taps + p * s.kernel + q) * windows
                           + (image * s.out_height + row) * s.out_width + column];
        }
    }
    dx[i] = sum;
}

// to (second, first, area) <- from (first, second, area), with a value of b (first,) added, unless b is null.
extern "C" __global__ void transpose(const REAL* from, const REAL* b, REAL* to, int first, int second, int area)
{
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= (long long)first * second * area) return;
    const int place = i % area, mine = i / area % first, other = i / area / first;
    to[i] = from[((long long)mine * second + other) * area + place] + (b ? b[mine] : REAL(0));
}
