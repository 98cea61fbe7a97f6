// Images as the tensor cores want them, for the gradient of the first layer's weights: x^T, of 16 pixels and all rows.

#include "network.cuh"

const int PIXEL_TILES = INPUTS / 16;

struct Pixels {
    Word of[BATCH / 32][4];

    __device__ void load(const unsigned char (*x)[INPUTS], int tile) {
#pragma unroll
        for (int step = 0; step < BATCH / 32; step++) {
            Word pairs[4];  // a register has two pixels of two rows; the tensor cores want four rows of one pixel
            ldmatrix_x4_trans(pairs, &x[step * 32 + threadIdx.x % 32][tile * 16]);
            of[step][0] = __byte_perm(pairs[0], pairs[1], 0x6420);
            of[step][1] = __byte_perm(pairs[0], pairs[1], 0x7531);
            of[step][2] = __byte_perm(pairs[2], pairs[3], 0x6420);
            of[step][3] = __byte_perm(pairs[2], pairs[3], 0x7531);
        }
    }
};
