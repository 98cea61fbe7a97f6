// Dropout, whose mask is never in memory: a lane draws the numbers of eight neighbours, and multiplies every 32nd.
// So a warp reads and writes 32 neighbours at once, and asks its lanes for their numbers. See philox.cuh and dropout.py.

#include "philox.cuh"

#ifndef REAL
#define REAL float
#endif
#ifndef STEP
#define STEP long long
#endif

// y = x * (number < rate ? 0 : scale), n numbers; x may be y. The step is where `step_there` points, else `step`.
extern "C" __global__ void dropout(const REAL* x, REAL* y, long long n, float rate, REAL scale,
                                   unsigned long long key0, unsigned long long key1, long long step,
                                   const STEP* step_there) {
    const int lane = threadIdx.x % 32;
    const long long thread = (long long)blockIdx.x * blockDim.x + threadIdx.x, first = (thread - lane) * 8;
    if (first >= n) return;  // the whole warp
    float numbers[8];
    draw_eight(numbers, thread, step_there ? *step_there : step, key0, key1);
    unsigned kept = 0;
    #pragma unroll
    for (int i = 0; i < 8; i++) kept |= (numbers[i] >= rate) << i;
    #pragma unroll
    for (int i = 0; i < 8; i++) {
        const unsigned of_eight = __shfl_sync(~0u, kept, i * 4 + lane / 8);
        const long long at = first + i * 32 + lane;
        if (at < n) y[at] = x[at] * (of_eight >> lane % 8 & 1 ? scale : (REAL)0);
    }
}
