// A thread for each value of the result, in float32, and neighbouring threads side by side in an image.
//
// The lanes of a warp have neighbours in a row: at each step they ask for one weight, the same for all, and for
// neighbours in a row of the image, in one piece. Which taps meet the image is known before the loops: no question
// is asked within. Still, each multiply-add needs two loads, as in the second product of matrices.
//
// The gradient of the weights has few values, and each is a sum over all images: 15,488 products for 64 to 128
// channels at 11 x 11, where 73,728 sums are wanted. A thread for each would walk through all images alone, and lanes
// side by side would read the same x and dy. So a warp has a weight: its lanes take neighbouring pixels, and add up
// what they have at the end. That reads every x and dy once for each weight that it has a part in, and as a
// convolution with few channels has few weights, most of the processors have nothing to do.

struct Range {
    int first, last;
};

// The taps p of a window at `start` whose place start + p is inside 0 .. size - 1.
inline Range inside(int start, int kernel, int size) { return {max(0, -start), min(kernel, size - start)}; }

extern "C" __global__ void forward(const float* x, const float* W, float* y, int batch, int channels, int channels_out,
                                   int height, int width, int out_height, int out_width, int kernel, int stride,
                                   int padding)
{
    size_t number = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    size_t plane = number / (out_height * out_width);
    if (plane >= (size_t)batch * channels_out) return;
    int pixel = number % (out_height * out_width), n = plane / channels_out, o = plane % channels_out;
    int top = pixel / out_width * stride - padding, left = pixel % out_width * stride - padding;
    Range rows = inside(top, kernel, height), columns = inside(left, kernel, width);

    float total = 0;
    for (int c = 0; c < channels; ++c) {
        const float* image = x + ((size_t)n * channels + c) * height * width;
        const float* w = W + ((size_t)o * channels + c) * kernel * kernel;
        for (int p = rows.first; p < rows.last; ++p)
            for (int q = columns.first; q < columns.last; ++q)
                total += w[p * kernel + q] * image[(top + p) * width + left + q];
    }
    y[number] = total;
}

extern "C" __global__ void input_gradient(const float* dy, const float* W, float* dx, int batch, int channels,
                                          int channels_out, int height, int width, int out_height, int out_width,
                                          int kernel, int stride, int padding)
{
    size_t number = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    size_t plane = number / (height * width);
    if (plane >= (size_t)batch * channels) return;
    int pixel = number % (height * width), n = plane / channels, c = plane % channels;
    int y = pixel / width + padding, x = pixel % width + padding;
    // Window i holds this row as its tap p = y - stride i: for p < kernel, i is at least so much, for p >= 0 at most.
    Range rows = {max(0, (y - kernel + stride) / stride), min(out_height - 1, y / stride)};
    Range columns = {max(0, (x - kernel + stride) / stride), min(out_width - 1, x / stride)};

    float total = 0;
    for (int o = 0; o < channels_out; ++o) {
        const float* image = dy + ((size_t)n * channels_out + o) * out_height * out_width;
        const float* w = W + ((size_t)o * channels + c) * kernel * kernel;
        for (int i = rows.first; i <= rows.last; ++i)
            for (int j = columns.first; j <= columns.last; ++j)
                total += w[(y - stride * i) * kernel + x - stride * j] * image[i * out_width + j];
    }
    dx[number] = total;
}

// A warp for each weight.
extern "C" __global__ void weight_gradient(const float* x, const float* dy, float* dW, int batch, int channels,
                                           int channels_out, int height, int width, int out_height, int out_width,
                                           int kernel, int stride, int padding)
{
    size_t number = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    int taps = kernel * kernel, lane = threadIdx.x % 32;
    if (number >= (size_t)channels_out * channels * taps) return;
    int q = number % kernel, p = number / kernel % kernel;
    int c = number / taps % channels, o = number / ((size_t)taps * channels);

    float total = 0;
    for (int n = 0; n < batch; ++n) {
        const float* image = x + ((size_t)n * channels + c) * height * width;
        const float* gradient = dy + ((size_t)n * channels_out + o) * out_height * out_width;
        for (int pixel = lane; pixel < out_height * out_width; pixel += 32) {
            int row = pixel / out_width * stride + p - padding, column = pixel % out_width * stride + q - padding;
            if (row >= 0 && row < height && column >= 0 && column < width)
                total += gradient[pixel] * image[row * width + column];
        }
    }
    #pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) total += __shfl_xor_sync(0xffffffff, total, distance);
    if (lane == 0) dW[number] = total;
}
