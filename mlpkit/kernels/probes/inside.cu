// How long an all-reduce takes inside a kernel that stays, by flagged messages from GPU to GPU: see ranks.cuh.

#include "ptx.cuh"

extern __shared__ __align__(128) unsigned char shared_bytes[];

enum Awaited { OTHER_GPUS };

#include "watch.cuh"
#include "ranks.cuh"

#ifndef EACH
#define EACH 1
#endif

// Replace n floats of each GPU by the weighted sums of all GPUs', again and again. A thread has EACH of them; the grid has
// a thread for each at least, and fits the GPU at once. Of n + gridDim.x places the last ones are where blocks meet.
extern "C" __global__ __launch_bounds__(512, 1) void rounds(float* x, int n, int rounds, Word64* failure, Ranks ranks) {
    if (threadIdx.x == 0) {
        watch().failure = failure;
        ranks.meet(n + blockIdx.x);
    }
    __syncthreads();
    const int first = blockIdx.x * blockDim.x + threadIdx.x, stride = gridDim.x * blockDim.x;
    const auto at = [=](int i) { return first + i * stride < n ? first + i * stride : -1; };
    float own[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) own[i] = first + i * stride < n ? x[first + i * stride] : 0;
    for (int step = 1; step <= rounds; step++) {
        ranks.send(own, at, step);
        ranks.sum(own, at, step);
    }
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        if (first + i * stride < n) x[first + i * stride] = own[i];
    }
}
