// The first convolution: images of one channel or a few, for which tensor cores have nothing to multiply.
//
// A thread has eight filters and a pool's window, and in registers the pixels that the window's POOL x POOL sums see:
// so neither the sums nor their gradients are ever written. The images lie in shared memory with zeros around them, in
// rows of an even length.

#ifndef PIXEL
#define PIXEL float  // or unsigned char, 0 to 255: values from 0 to 1
#endif
#ifndef TALL_Z
#define TALL_Z 26
#define WIDE_Z 26
#endif

#include "between.cuh"
#include "first_shape.cuh"

constexpr int TAPS = KERNEL * KERNEL, SIDE = KERNEL + POOL - 1;
constexpr int TALL = TALL_Z + KERNEL - 1, WIDE = (WIDE_Z + KERNEL) / 2 * 2;  // of what is seen of a channel
constexpr int PIXELS = CHANNELS_IN * TALL * WIDE;                         // of an image
constexpr bool IN_PAIRS = POOL % 2 == 0 && SIDE % 2 == 0;

constexpr bool AS_THEY_LIE = PADDING == 0 && TALL == IMAGE_HEIGHT && WIDE == IMAGE_WIDTH && PIXELS % 4 == 0;

// Ask for some images with zeros around them, as they are needed. By `threads` threads, which have to wait for it.
inline void ask_for_images(const float* x, int first, int count, float* to, int threads)
{
    x += (size_t)first * CHANNELS_IN * (IMAGE_HEIGHT * IMAGE_WIDTH);
    if (AS_THEY_LIE && (size_t)x % 16 == 0) {
        #pragma unroll 1
        for (int i = threadIdx.x; i < count * PIXELS / 4; i += threads) cp_async<16>(to + 4 * i, x + 4 * i);
    } else {
        #pragma unroll 2
        for (int i = threadIdx.x; i < count * PIXELS; i += threads) {
            int column = i % WIDE - PADDING, row = i / WIDE % TALL - PADDING, plane = i / (WIDE * TALL);
            bool inside = row >= 0 && row < IMAGE_HEIGHT && column >= 0 && column < IMAGE_WIDTH;
            const float* from = x + (size_t)plane * (IMAGE_HEIGHT * IMAGE_WIDTH);
            cp_async<4>(to + i, inside ? from + row * IMAGE_WIDTH + column : x, inside);
        }
    }
}

// The same of bytes, which become values from 0 to 1.
inline void ask_for_images(const unsigned char* x, int first, int count, float* to, int threads)
{
    x += (size_t)first * CHANNELS_IN * (IMAGE_HEIGHT * IMAGE_WIDTH);
    #pragma unroll 4
    for (int i = threadIdx.x; i < count * PIXELS; i += threads) {
        int column = i % WIDE - PADDING, row = i / WIDE % TALL - PADDING, plane = i / (WIDE * TALL);
        bool inside = row >= 0 && row < IMAGE_HEIGHT && column >= 0 && column < IMAGE_WIDTH;
        to[i] = inside ? x[plane * (IMAGE_HEIGHT * IMAGE_WIDTH) + row * IMAGE_WIDTH + column] / 255.0f : 0;
    }
}

// Rows of pixels that a window sees, from its first one on, of a channel in shared memory.
template <int ROWS>
inline void load_rows(const float* channel, int window, float (&seen)[ROWS][SIDE])
{
    const float* corner = channel + window / ACROSS * POOL * WIDE + window % ACROSS * POOL;
    #pragma unroll
    for (int row = 0; row < ROWS; ++row, corner += WIDE) {
        #pragma unroll
        for (int i = 0; i < SIDE; i += 1 + IN_PAIRS) {
            if constexpr (IN_PAIRS) {
                float2 two = *reinterpret_cast<const float2*>(corner + i);
                seen[row][i] = two.x, seen[row][i + 1] = two.y;
            } else {
                seen[row][i] = corner[i];
            }
        }
    }
}
