// Pooling of images (n, c, h, w): a thread a value that is written, which looks for all that it needs.
//
// On the way back, too: a pixel looks for the windows that hold it, so that no two threads add to one value.

#ifndef REAL
#define REAL float
#endif
#ifndef INDEX
#define INDEX unsigned char  // of a value's place in its window
#endif

struct Sizes {
    int planes, height, width, out_height, out_width, size, stride;  // planes: images times channels
};

// The pixel or the window that this thread is about.
struct Place {
    int plane, y, z;
};

__device__ bool here(int planes, int height, int width, Place& place, long long& i)
{
    i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    place = {int(i / width / height), int(i / width % height), int(i % width)};
    return place.plane < planes;
}

// y (n, c, h', w'), and where in its window the first of the largest is. A NaN is larger than all, and its
// place counts as 0.
extern "C" __global__ void max_pool(const REAL* x, REAL* y, INDEX* index, Sizes s)
{
    Place at;
    long long i;
    if (!here(s.planes, s.out_height, s.out_width, at, i)) return;
    const REAL* window = x + ((long long)at.plane * s.height + at.y * s.stride) * s.width + at.z * s.stride;
    REAL largest = window[0];
    int found = 0;
    for (int t = 1; t < s.size * s.size; ++t) {
        const REAL number = window[t / s.size * s.width + t % s.size];
        if (number != number && largest == largest) {
            largest = number, found = 0;
        } else if (number > largest) {
            largest = number, found = t;
        }
    }
    y[i] = largest;
    index[i] = found;
}

// The sum over the windows that hold this pixel: of the whole gradient where it is the largest, or of its share.
template <bool MAX>
__device__ REAL gradient(const REAL* dy, const INDEX* index, const Sizes& s, const Place& at)
{
    REAL sum = 0;
    const int top = max(at.y - s.size + s.stride, 0) / s.stride, left = max(at.z - s.size + s.stride, 0) / s.stride;
    for (int row = top; row < s.out_height && row * s.stride <= at.y; ++row) {
        for (int column = left; column < s.out_width && column * s.stride <= at.z; ++column) {
            const long long window = ((long long)at.plane * s.out_height + row) * s.out_width + column;
            const int p = at.y - row * s.stride, q = at.z - column * s.stride;
            if (p < s.size && q < s.size && (!MAX || index[window] == p * s.size + q)) sum += dy[window];
        }
    }
    return sum;
}

extern "C" __global__ void max_pool_backward(const REAL* dy, const INDEX* index, REAL* dx, Sizes s)
{
    Place at;
    long long i;
    if (here(s.planes, s.height, s.width, at, i)) dx[i] = gradient<true>(dy, index, s, at);
}

extern "C" __global__ void avg_pool(const REAL* x, REAL* y, Sizes s)
{
    Place at;
    long long i;
    if (!here(s.planes, s.out_height, s.out_width, at, i)) return;
    const REAL* window = x + ((long long)at.plane * s.height + at.y * s.stride) * s.width + at.z * s.stride;
    REAL sum = 0;
    for (int t = 0; t < s.size * s.size; ++t) sum += window[t / s.size * s.width + t % s.size];
    y[i] = sum / (s.size * s.size);
}

extern "C" __global__ void avg_pool_backward(const REAL* dy, REAL* dx, Sizes s)
{
    Place at;
    long long i;
    if (here(s.planes, s.height, s.width, at, i)) dx[i] = gradient<false>(dy, nullptr, s, at) / (s.size * s.size);
}
