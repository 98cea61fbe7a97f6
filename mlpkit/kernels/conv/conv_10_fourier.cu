// Fourier: a shifted image has the spectrum of the image, multiplied by one number for each frequency.
//
// So all k k taps of a kernel become one factor, whatever k is, and a convolution becomes a product of matrices for
// each frequency,
//     Z = X conj(K)^T    dK = conj(dZ)^T X    dX = dZ K        (n, c), (o, c), (n, o), complex
// cuFFT makes the spectra and cuBLAS the products. The kernels here carry values from one to the other: they put
// images where cuFFT wants them, with zeros around; they turn what lies image by image into what lies frequency by
// frequency; and they pick the result. Half of the frequencies are enough for real numbers.
//
// What wraps around a border of the transform meets zeros: `length` is at least height + padding, so that the zeros
// on the right are those on the left, too.
//
// With a stride of 2 all windows are computed, and one of four is picked: a spectrum has them all. A direct way does
// a quarter.
//
// What bounds it is memory: each of these kernels, and each transform, reads and writes as much as the images'
// spectra, and does little with it. Products are few: for 7 x 7 kernels a tenth of the direct way's.

// Images (count, height, width) and transforms (count, length, wide). Of an image, every value is `step` values
// from the next, in rows and columns, and the first one is at `offset`, counted around the transform.
struct Sizes {
    int count, height, width, length, wide, step, offset;
};

// Put images into transforms, with zeros in between and around; here `offset` is 0.
extern "C" __global__ void spread(const float* images, float* transforms, Sizes s)
{
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    const int above = i / s.wide, column = i - above * s.wide, image = above / s.length, row = above - image * s.length;
    if (image >= s.count) return;
    const int y = row / s.step, z = column / s.step;
    const bool taken = y * s.step == row && z * s.step == column && y < s.height && z < s.width;
    transforms[i] = taken ? images[((size_t)image * s.height + y) * s.width + z] : 0;
}

// Pick images out of transforms, times `scale`.
extern "C" __global__ void pick(const float* transforms, float* images, Sizes s, float scale)
{
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    const int above = i / s.width, column = i - above * s.width;
    const int image = above / s.height, row = above - image * s.height;
    if (image >= s.count) return;
    const int y = (row * s.step + s.offset + s.length) % s.length, z = (column * s.step + s.offset + s.wide) % s.wide;
    images[i] = scale * transforms[((size_t)image * s.length + y) * s.wide + z];
}

constexpr int TILE = 32, ROWS = 8;  // a block's threads are TILE x ROWS

// to (columns, rows) = from^T, of complex numbers; times -1: those of the second parts.
extern "C" __global__ void transpose(const float2* from, float2* to, int rows, int columns, float sign)
{
    extern __shared__ __align__(128) unsigned char shared_bytes[];
    float2 (*tile)[TILE + 1] = (float2 (*)[TILE + 1]) shared_bytes;
    const int across = (columns + TILE - 1) / TILE, x = threadIdx.x % TILE, y = threadIdx.x / TILE;
    const int first_row = blockIdx.x / across * TILE, first_column = blockIdx.x % across * TILE;
    for (int i = y; i < TILE; i += ROWS)
        if (first_row + i < rows && first_column + x < columns)
            tile[i][x] = from[(size_t)(first_row + i) * columns + first_column + x];
    __syncthreads();
    for (int i = y; i < TILE; i += ROWS)
        if (first_column + i < columns && first_row + x < rows) {
            const float2 number = tile[x][i];
            to[(size_t)(first_column + i) * rows + first_row + x] = {number.x, sign * number.y};
        }
}
