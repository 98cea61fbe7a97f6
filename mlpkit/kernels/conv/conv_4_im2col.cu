// im2col: the windows written to memory, a row for each, and then a product of two matrices that a library knows.
//
// Images lie pixel by pixel, with a pixel's channels side by side (NHWC). A window is a row of k k c values, tap by
// tap, and a row of the filters has the same order. Then, with M = n h' w' windows,
//     y (M, o) = windows (M, k k c) W^T      dwindows (M, k k c) = dy (M, o) W      dW (o, k k c) = dy^T windows
// and each is a product that cuBLAS does as well as any other. What is left to write is here: to deal the images out,
// and to add the windows' gradients up, where they overlap. No sum is made by two threads: who writes a pixel of dx
// looks for the windows that hold it, at most k k of them, and adds them in the order of the taps.
//
// The price is memory. An image is written k k times (with a stride of 1), and read again by the product: nine times
// the image each way for a 3 x 3 kernel. For 256 channels of 28 x 28, 128 images, that is 925 MB, which no cache
// holds. A product of two large matrices has 2 o multiply-adds a value of `windows` to hide it behind: with float32
// units that is enough, and with tensor cores, which are ten times as fast, it is not.
//
// VECTOR: values that a thread moves at a time, 4 where the channels are a multiple of 4.

#ifndef VECTOR
#define VECTOR 4
#endif

struct alignas(4 * VECTOR) Elements {
    float each[VECTOR];
};

// The shape: channels in Elements; pitch: Elements from one row of the windows to the next.
struct Sizes {
    int batch, height, width, channels, out_height, out_width, kernel, stride, padding, pitch;
};

// Each block writes `rows` rows of the windows. What is beyond k k c in a row, to fill it up, is 0.
extern "C" __global__ void windows(const Elements* x, Elements* windows, Sizes s, int rows)
{
    const int total = s.batch * s.out_height * s.out_width, first = blockIdx.x * rows;
    const int mine = min(rows, total - first) * s.pitch, across = s.kernel * s.channels;
    Elements* to = windows + (size_t)first * s.pitch;
    for (int i = threadIdx.x; i < mine; i += blockDim.x) {
        const int row = first + i / s.pitch, column = i % s.pitch;
        const int p = column / across, rest = column - p * across, q = rest / s.channels;
        const int j = row % s.out_width, above = row / s.out_width, image = above / s.out_height;
        const int y = (above - image * s.out_height) * s.stride + p - s.padding, z = j * s.stride + q - s.padding;
        Elements found = {};
        if (p < s.kernel && y >= 0 && y < s.height && z >= 0 && z < s.width)
            found = x[((size_t)(image * s.height + y) * s.width + z) * s.channels + rest - q * s.channels];
        to[i] = found;
    }
}

// Each block writes the channels of `pixels` pixels of dx.
extern "C" __global__ void gather(const Elements* windows, Elements* dx, Sizes s, int pixels)
{
    const int total = s.batch * s.height * s.width, first = blockIdx.x * pixels;
    const int mine = min(pixels, total - first) * s.channels;
    Elements* to = dx + (size_t)first * s.channels;
    for (int i = threadIdx.x; i < mine; i += blockDim.x) {
        const int pixel = first + i / s.channels, channel = i % s.channels;
        const int z = pixel % s.width, above = pixel / s.width, image = above / s.height;
        const int y = above - image * s.height;
        Elements sum = {};
        for (int p = 0; p < s.kernel; ++p) {
            const int down = y + s.padding - p, window_y = down / s.stride;
            if (down < 0 || down % s.stride || window_y >= s.out_height) continue;
            for (int q = 0; q < s.kernel; ++q) {
                const int right = z + s.padding - q, window_x = right / s.stride;
                if (right < 0 || right % s.stride || window_x >= s.out_width) continue;
                const size_t row = (size_t)(image * s.out_height + window_y) * s.out_width + window_x;
                const Elements found = windows[row * s.pitch + (p * s.kernel + q) * s.channels + channel];
                #pragma unroll
                for (int v = 0; v < VECTOR; ++v) sum.each[v] += found.each[v];
            }
        }
        to[i] = sum;
    }
}
