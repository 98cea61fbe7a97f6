// Dropout, whose mask is never in memory: a thread draws the numbers of eight neighbours, and multiplies these.
// They are asked for before the numbers are drawn, and arrive meanwhile. See philox.cuh and dropout.py.

#include "philox.cuh"

#ifndef REAL
#define REAL float
#endif
#ifndef STEP
#define STEP long long
#endif

struct alignas(16) Eight {
    REAL elements[8];
};

// y = x * (number < rate ? 0 : scale), n values; x may be y. The step is where `step_there` points, else `step`.
extern "C" __global__ void dropout(const REAL* x, REAL* y, long long n, float rate, REAL scale,
                                   unsigned long long key0, unsigned long long key1, long long step,
                                   const STEP* step_there) {
    const long long group = (long long)blockIdx.x * blockDim.x + threadIdx.x, first = 8 * group;
    if (first >= n) return;
    const bool whole = first + 8 <= n && (size_t)x % 16 == 0 && (size_t)y % 16 == 0;  // else value by value
    Eight eight;
    if (whole) {
        eight = ((const Eight*)x)[group];
    } else {
        for (int i = 0; i < 8; i++) eight.elements[i] = first + i < n ? x[first + i] : (REAL)0;
    }
    float drawn[8];
    draw_eight(drawn, group, step_there ? *step_there : step, key0, key1);
    #pragma unroll
    for (int i = 0; i < 8; i++) eight.elements[i] *= drawn[i] < rate ? (REAL)0 : scale;
    if (whole) {
        ((Eight*)y)[group] = eight;
    } else {
        for (int i = 0; i < 8 && first + i < n; i++) y[first + i] = eight.elements[i];
    }
}
