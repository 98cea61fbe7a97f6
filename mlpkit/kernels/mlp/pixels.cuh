// Images as the tensor cores want them, for the gradient of the first layer's weights: x^T, of 16 pixels and all rows.

#include "network.cuh"

const int PIXEL_TILES = INPUTS / 16;

template <int ROWS>
struct Pixels {
    Word of[ROWS / 32][4];

    __device__ void load(const unsigned char (*x)[INPUTS], int tile) {
#pragma unroll
        for (int step = 0; step < ROWS / 32; step++) {
            Word pairs[4];  // a register has two pixels of two rows; the tensor cores want four rows of one pixel
            ldmatrix_x4_trans(pairs, &x[step * 32 + threadIdx.x % 32][tile * 16]);
            of[step][0] = __byte_perm(pairs[0], pairs[1], 0x6420);
            of[step][1] = __byte_perm(pairs[0], pairs[1], 0x7531);
            of[step][2] = __byte_perm(pairs[2], pairs[3], 0x6420);
            of[step][3] = __byte_perm(pairs[2], pairs[3], 0x7531);
        }
    }

    // The same, where it shall not be put off until the pixels are needed.
    __device__ void load_now(const unsigned char (*x)[INPUTS], int tile) {
        load(x, tile);
        for (auto& step : of) {
            for (Word& pixels : step) pixels = now(pixels);
        }
    }
};
