// Bytes that no product makes: pixels become blocked bytes, and what residuals add up, pooled.

#include "bytes.cuh"

#ifndef PIXEL
#define PIXEL unsigned char
#endif

// x (n, channels, area) becomes blocked bytes, zeros for channels that are none. A thread has a piece.
extern "C" __global__ __launch_bounds__(256)
void enter(const PIXEL* x, Piece* to, const __grid_constant__ Entry entry, int n, int channels, int area)
{
    const int groups = (channels + 15) / 16, i = blockIdx.x * 256 + threadIdx.x;
    begin_in_turn();
    if (i >= n * groups * area) return;
    const int group = i / area % groups, image = i / area / groups;
    Piece piece = {};
    #pragma unroll
    for (int j = 0; j < 16; ++j) {
        const int channel = group * 16 + j;
        if (channel < channels)
            piece.words[j / 4] |= (Word)entry.of(x[((size_t)image * channels + channel) * area + i % area]) << j % 4 * 8;
    }
    to[i] = piece;
}

struct Added {
    const Piece *a, *b;  // b: null where there is only one
    int of_a, of_b, zero_a, zero_b;  // multipliers, and what stands for zero
    long long half;
    int shift, low;
};

struct Images {
    int planes, across_in, area_in, down, across, size, stride;  // planes: groups of channels of all images
};

// to: ((a - zero) * of_a + (b - zero) * of_b + half) >> shift, the largest of each window. A thread has a piece.
extern "C" __global__ __launch_bounds__(256)
void add(const __grid_constant__ Added s, Piece* to, const __grid_constant__ Images images)
{
    const int area = images.down * images.across, i = blockIdx.x * 256 + threadIdx.x;
    begin_in_turn();
    if (i >= images.planes * area) return;
    const int y = i % area / images.across * images.stride, x = i % images.across * images.stride;
    const size_t corner = (size_t)(i / area) * images.area_in + y * images.across_in + x;
    int found[16];
    #pragma unroll
    for (int j = 0; j < 16; ++j) found[j] = s.low;
    for (int at = 0; at < images.size * images.size; ++at) {
        const size_t pixel = corner + at / images.size * images.across_in + at % images.size;
        const Piece a = s.a[pixel], b = s.b ? s.b[pixel] : Piece{};
        #pragma unroll
        for (int j = 0; j < 16; ++j) {
            const int one = a.words[j / 4] >> j % 4 * 8 & 255, two = b.words[j / 4] >> j % 4 * 8 & 255;
            const long long total = (long long)(one - s.zero_a) * s.of_a + (long long)(two - s.zero_b) * s.of_b;
            found[j] = max(found[j], (int)((total + s.half) >> s.shift));
        }
    }
    Piece piece;
    #pragma unroll
    for (int j = 0; j < 4; ++j)
        piece.words[j] = cvt_pack_sat_u8(found[4 * j], found[4 * j + 1], found[4 * j + 2], found[4 * j + 3]);
    to[i] = piece;
}
