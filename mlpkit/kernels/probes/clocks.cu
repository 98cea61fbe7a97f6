// How fast does each multiprocessor's own clock go? Beside the timer that all of them share, for a while, in which a block
// does nothing but look at the timer, or multiplies and adds.

#include "ptx.cuh"

// found: of each block the multiprocessor that it is on, clocks, nanoseconds. out: where the products seem to be needed.
extern "C" __global__ void clocks(long long nanoseconds, bool busy, long long* found, float* out) {
    const long long begin = globaltimer(), first = clock64();
    float x = threadIdx.x, y = 1 - x;
    while (globaltimer() < begin + nanoseconds) {
        for (int i = 0; busy && i < 256; i++) x = x * 0.5f + 1, y = y * 0.5f - 1;
    }
    const long long clocks = clock64() - first, took = globaltimer() - begin;
    if (threadIdx.x == 0) {
        const long long facts[] = {smid(), clocks, took};
        for (int i = 0; i < 3; i++) found[3 * blockIdx.x + i] = facts[i];
    }
    out[blockIdx.x * blockDim.x + threadIdx.x] = x + y;
}
